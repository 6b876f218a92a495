//! What rules do to a message: collected here, carried out by whoever has the message.

use crate::grammar::MAX_ADDED;
use crate::scene::Scene;
use smallvec::SmallVec;
use wire::sip::{COLON, CRLF, Edit, FieldLines, HeaderId, Heads, Message, Values, plain_user_of};

/// A piece of [`Effects::arena`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn of(self, text: &[u8]) -> &[u8] {
        text.get(self.start as usize..self.end as usize)
            .unwrap_or_default()
    }
}

/// A header, by identifier or (where it has none) by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) id: HeaderId,
    pub(crate) text: Box<[u8]>,
}

impl Name {
    /// The header of this name; `None` where it is no token.
    pub(crate) fn new(text: &str) -> Option<Name> {
        let id = HeaderId::from_name(text.as_bytes());
        let token = !text.is_empty() && text.bytes().all(crate::grammar::is_token);
        token.then(|| Name {
            id,
            text: match id {
                HeaderId::Other => text.as_bytes().into(),
                id => id.name().as_bytes().into(),
            },
        })
    }

    pub(crate) fn is(&self, id: HeaderId, name: &[u8]) -> bool {
        self.id == id && (id != HeaderId::Other || self.text.eq_ignore_ascii_case(name))
    }
}

/// A field in [`Effects::arena`]: `name: value`, with its line end behind it.
#[derive(Clone, Copy, Debug)]
struct Field {
    start: u32,
    /// Where the value begins, behind the colon and a blank.
    value: u32,
    end: u32,
}

/// Lines in [`Effects::arena`] that stand behind each other.
#[derive(Clone, Copy, Debug)]
struct Block {
    start: u32,
    end: u32,
}

impl Block {
    #[inline]
    fn of<'e>(self, text: &'e [u8], heads: &'e Heads) -> Option<Edit<'e>> {
        let lines = text.get(self.start as usize..self.end as usize)?;
        FieldLines::new(lines, heads).map(Edit::Lines)
    }
}

impl Field {
    const fn name(self) -> Span {
        Span {
            start: self.start,
            end: self.value - COLON.len() as u32,
        }
    }

    const fn value(self) -> Span {
        Span {
            start: self.value,
            end: self.end,
        }
    }

    const fn moved(self, by: u32) -> Field {
        Field {
            start: self.start + by,
            value: self.value + by,
            end: self.end + by,
        }
    }

    /// Where its line ends.
    const fn line_end(self) -> u32 {
        self.end + CRLF.len() as u32
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// All values go.
    Remove { id: HeaderId, name: Span },
    /// One field is left, with this value.
    Set { id: HeaderId, field: Field },
    /// One field more.
    Add { id: HeaderId, field: Field },
}

impl Op {
    const fn id(self) -> HeaderId {
        let (Op::Remove { id, .. } | Op::Set { id, .. } | Op::Add { id, .. }) = self;
        id
    }

    const fn name(self) -> Span {
        match self {
            Op::Remove { name, .. } => name,
            Op::Set { field, .. } | Op::Add { field, .. } => field.name(),
        }
    }

    /// The field that is written.
    const fn field(self) -> Option<Field> {
        match self {
            Op::Remove { .. } => None,
            Op::Set { field, .. } | Op::Add { field, .. } => Some(field),
        }
    }

    /// The same where its text lies that much further behind.
    #[inline]
    const fn moved(self, by: u32) -> Op {
        match self {
            Op::Remove { id, name } => Op::Remove {
                id,
                name: Span {
                    start: name.start + by,
                    end: name.end + by,
                },
            },
            Op::Set { id, field } => Op::Set {
                id,
                field: field.moved(by),
            },
            Op::Add { id, field } => Op::Add {
                id,
                field: field.moved(by),
            },
        }
    }
}

/// Changes of headers that are the same for every message, put together ahead: see [`Effects::into_prepared`].
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    text: Box<[u8]>,
    ops: Box<[Op]>,
    /// As in [`Effects`].
    heads: Heads,
    /// As in [`Effects`].
    names_go: bool,
    /// Headers of which earlier changes do not count any more.
    overruled: Box<[Name]>,
    /// The header whose user is the value of the last field: the text has all but him and the end of the line.
    user: Option<HeaderId>,
    /// As in [`Effects`].
    apart: bool,
}

/// A refusal by a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Index of the rule.
    pub rule: u16,
    /// Status, 400 to 699.
    pub status: u16,
    /// Reason phrase, where another than the usual.
    pub reason: Option<Box<str>>,
}

/// A value kept with the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Index of the rule.
    pub rule: u16,
    /// Its name.
    pub name: Box<str>,
    /// Its value.
    pub value: Box<str>,
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Index of the rule.
    pub rule: u16,
    /// The text.
    pub text: String,
}

/// Octets that most messages' effects fit into without memory of their own.
const NEAR: usize = 320;

/// Text that grows at its end; the first octets stand where the effects are.
#[derive(Debug)]
pub(crate) struct Arena {
    near: [u8; NEAR],
    length: usize,
    /// All of it, once it has outgrown `near`.
    far: Vec<u8>,
}

impl Default for Arena {
    fn default() -> Self {
        Arena {
            near: [0; NEAR],
            length: 0,
            far: Vec::new(),
        }
    }
}

impl Arena {
    fn len(&self) -> usize {
        self.length
    }

    fn as_slice(&self) -> &[u8] {
        match self.far.is_empty() {
            true => self.near.get(..self.length).unwrap_or_default(),
            false => &self.far,
        }
    }

    pub(crate) fn extend_from_slice(&mut self, text: &[u8]) {
        let end = self.length + text.len();
        match self.near.get_mut(self.length..end) {
            Some(room) if self.far.is_empty() => room.copy_from_slice(text),
            _ => {
                if self.far.is_empty() {
                    let near = self.near.get(..self.length).unwrap_or_default();
                    self.far.extend_from_slice(near);
                }
                self.far.extend_from_slice(text);
            }
        }
        self.length = end;
    }

    fn truncate(&mut self, length: usize) {
        self.far.truncate(length);
        self.length = self.length.min(length);
        if self.length == 0 {
            self.far.clear();
        }
    }
}

/// What the rules that held want done.
#[derive(Debug, Default)]
pub struct Effects {
    arena: Arena,
    ops: SmallVec<[Op; 8]>,
    /// Headers that some of them writes, removes or replaces.
    heads: Heads,
    /// Some of them removes or replaces fields by name.
    names_go: bool,
    /// There is more than fields whose lines follow each other.
    apart: bool,
    uri: Option<Span>,
    from: Option<Span>,
    to: Option<Span>,
    /// Indices of the rules that were carried out, in order.
    pub matched: SmallVec<[u16; 8]>,
    /// The request is to be refused.
    pub refusal: Option<Refusal>,
    /// The request is to go to this trunk.
    pub route: Option<u16>,
    /// Values to keep with the call.
    pub tags: Vec<Tag>,
    /// Lines for the log.
    pub log: Vec<Line>,
    /// Edits left out because they would have broken the message.
    pub refused_edits: u32,
    /// Conditions that could not be evaluated (a division by zero, a text that is no number): taken for false.
    pub failed_conditions: u32,
}

impl Effects {
    /// None, and the memory kept.
    pub fn clear(&mut self) {
        self.arena.truncate(0);
        self.ops.clear();
        self.heads = Heads::default();
        self.names_go = false;
        self.apart = false;
        (self.uri, self.from, self.to) = (None, None, None);
        self.matched.clear();
        self.refusal = None;
        self.route = None;
        self.tags.clear();
        self.log.clear();
        self.refused_edits = 0;
        self.failed_conditions = 0;
    }

    /// Whether nothing of the message changes.
    pub fn changes_nothing(&self) -> bool {
        self.ops.is_empty() && self.uri.is_none() && self.from.is_none() && self.to.is_none()
    }

    /// Whether there is anything that others than the message's writer want to know.
    pub fn is_silent(&self) -> bool {
        self.tags.is_empty()
            && self.log.is_empty()
            && self.refused_edits == 0
            && self.failed_conditions == 0
            && self.refusal.is_none()
    }

    /// The new Request-URI.
    pub fn uri(&self) -> Option<&[u8]> {
        self.uri.map(|span| self.at(span))
    }

    /// The new From, with the tag of the old one where that had one.
    pub fn from(&self) -> Option<&[u8]> {
        self.from.map(|span| self.at(span))
    }

    /// The new To, with the tag of the old one where that had one.
    pub fn to(&self) -> Option<&[u8]> {
        self.to.map(|span| self.at(span))
    }

    /// The changes of headers but From and To, in order; each header's begin with what removes or replaces it.
    pub fn edits(&self) -> impl Iterator<Item = Edit<'_>> {
        self.ops.iter().map(|op| match *op {
            Op::Remove {
                id: HeaderId::Other,
                name,
            } => Edit::RemoveNamed(self.at(name)),
            Op::Remove { id, .. } => Edit::Remove(id),
            Op::Set { id, field } => Edit::Replace {
                id,
                value: self.at(field.value()),
            },
            Op::Add {
                id: HeaderId::Other,
                field,
            } => Edit::AddNamed {
                name: self.at(field.name()),
                value: self.at(field.value()),
            },
            Op::Add { id, field } => Edit::Add {
                id,
                value: self.at(field.value()),
            },
        })
    }

    /// All changes as edits of a message as it stands ([`wire::sip::emit`]).
    pub fn all_edits(&self) -> impl Iterator<Item = Edit<'_>> {
        let address = |id, span: Option<Span>| {
            span.map(|span| Edit::Replace {
                id,
                value: self.at(span),
            })
        };
        self.uri
            .map(|span| Edit::RequestUri(self.at(span)))
            .into_iter()
            .chain(address(HeaderId::From, self.from))
            .chain(address(HeaderId::To, self.to))
            .chain(self.edits())
    }

    /// Adds the changes of headers to edits that were decided before; of those, the ones go that are overruled.
    pub fn merge<'e, const N: usize>(&'e self, edits: &mut SmallVec<[Edit<'e>; N]>) {
        let mut overruled = self.heads.replaced;
        if self.names_go {
            overruled |= HeaderId::Other.bit();
        }
        let decided = edits.iter().fold(0, |set, edit| set | edited(edit));
        if decided & overruled != 0 {
            if edits.iter().any(|edit| matches!(edit, Edit::Lines(_))) {
                *edits = edits.iter().flat_map(one_by_one).collect();
            }
            for op in &self.ops {
                let (id, name) = (op.id(), op.name());
                if matches!(op, Op::Add { .. }) || decided & id.bit() == 0 {
                    continue;
                }
                let name = self.at(name);
                edits.retain(|edit| !edits_header(edit, id, name));
            }
        }
        let text = self.arena.as_slice();
        if !self.apart {
            let ends = self.ops.first().zip(self.ops.last());
            if let Some((Some(first), Some(last))) = ends.map(|(a, b)| (a.field(), b.field())) {
                let block = Block {
                    start: first.start,
                    end: last.line_end(),
                };
                if let Some(edit) = block.of(text, &self.heads) {
                    edits.push(edit);
                }
                return;
            }
        }
        // Where headers are composed, what takes a header's place stands behind the others anyway: so lines that stand
        // together here are written together. What removes goes before them, and is about others by now.
        let mut block: Option<Block> = None;
        for op in &self.ops {
            let field = match *op {
                Op::Remove {
                    id: HeaderId::Other,
                    name,
                } => {
                    edits.push(Edit::RemoveNamed(name.of(text)));
                    continue;
                }
                Op::Remove { id, .. } => {
                    edits.push(Edit::Remove(id));
                    continue;
                }
                Op::Set { field, .. } | Op::Add { field, .. } => field,
            };
            let start = match block {
                Some(block) if block.end == field.start => block.start,
                Some(block) => {
                    edits.extend(block.of(text, &self.heads));
                    field.start
                }
                None => field.start,
            };
            block = Some(Block {
                start,
                end: field.line_end(),
            });
        }
        if let Some(edit) = block.and_then(|block| block.of(text, &self.heads)) {
            edits.push(edit);
        }
    }

    fn at(&self, span: Span) -> &[u8] {
        span.of(self.arena.as_slice())
    }

    /// Where the arena ends: what is written behind it becomes a [`Span`] by [`Effects::span_from`], or goes again by
    /// [`Effects::refuse_from`].
    pub(crate) fn mark(&self) -> usize {
        self.arena.len()
    }

    pub(crate) fn text(&mut self) -> &mut Arena {
        &mut self.arena
    }

    pub(crate) fn span_from(&self, mark: usize) -> Span {
        Span {
            start: mark as u32,
            end: self.arena.len() as u32,
        }
    }

    /// What was written behind `mark` is too much, or breaks the message.
    pub(crate) fn refuse_from(&mut self, mark: usize) {
        self.arena.truncate(mark);
        self.refused_edits += 1;
    }

    /// The user of From or To, where no rule has changed that and he is an ordinary one: letters, digits and marks.
    pub(crate) fn plain_user<'s>(&self, scene: &Scene<'s>, party: HeaderId) -> Option<&'s [u8]> {
        let changed = match party {
            HeaderId::From => self.from,
            _ => self.to,
        };
        if changed.is_some() {
            return None;
        }
        let field = scene
            .given(party)
            .or_else(|| scene.message.and_then(|message| message.header(party)))?;
        plain_user_of(field)
    }

    /// Whether the rules have written all that they may for one message.
    pub(crate) fn is_full(&self) -> bool {
        self.arena.len() > MAX_ADDED
    }

    /// Begins a field: what is written from now on is its value, until it is kept by [`Effects::add`] or
    /// [`Effects::set`].
    pub(crate) fn begin(&mut self, name: &Name) {
        self.arena.extend_from_slice(&name.text);
        self.arena.extend_from_slice(COLON);
    }

    /// Ends the field of this header that was begun at `mark`.
    fn field_from(&mut self, name: &Name, mark: usize) -> Field {
        let end = self.arena.len() as u32;
        self.arena.extend_from_slice(CRLF);
        self.heads.written |= name.id.bit();
        Field {
            start: mark as u32,
            value: (mark + name.text.len() + COLON.len()) as u32,
            end,
        }
    }

    /// Earlier changes of this header do not count any more.
    fn overrule(&mut self, name: &Name) {
        let arena = self.arena.as_slice();
        let is_about = |op: &Op| {
            op.id() == name.id
                && (name.id != HeaderId::Other || {
                    let at = op.name();
                    let text = arena.get(at.start as usize..at.end as usize);
                    name.is(name.id, text.unwrap_or_default())
                })
        };
        if self.ops.iter().any(is_about) {
            self.ops.retain(|op| !is_about(op));
            self.apart = true;
        }
    }

    /// Keeps the field that was begun at `mark`.
    pub(crate) fn add(&mut self, name: &Name, mark: usize) {
        let field = self.field_from(name, mark);
        self.ops.push(Op::Add { id: name.id, field });
    }

    pub(crate) fn remove(&mut self, name: &Name) {
        self.overrule(name);
        let name_at = match name.id {
            HeaderId::Other => {
                let mark = self.mark();
                self.arena.extend_from_slice(&name.text);
                self.span_from(mark)
            }
            _ => Span { start: 0, end: 0 },
        };
        self.replaces(name.id);
        self.apart = true;
        self.ops.push(Op::Remove {
            id: name.id,
            name: name_at,
        });
    }

    fn replaces(&mut self, id: HeaderId) {
        match id {
            HeaderId::Other => self.names_go = true,
            id => self.heads.replaced |= id.bit(),
        }
    }

    /// Keeps the field that was begun at `mark`, as the only one of this header.
    pub(crate) fn set(&mut self, name: &Name, mark: usize) {
        let field = self.field_from(name, mark);
        self.overrule(name);
        let id = name.id;
        self.replaces(id);
        match id {
            HeaderId::Other => {
                let name = field.name();
                self.apart = true;
                self.ops.push(Op::Remove { id, name });
                self.ops.push(Op::Add { id, field });
            }
            _ => self.ops.push(Op::Set { id, field }),
        }
    }

    /// These effects as what they do to any message's headers, where constant fields alone made them. `overruled`: the headers
    /// of which they are to leave nothing that was decided earlier. `user`: the header whose user the last field is to have,
    /// which is empty so far.
    pub(crate) fn into_prepared(self, overruled: Vec<Name>, user: Option<HeaderId>) -> Prepared {
        let text = self.arena.as_slice();
        let text = match user {
            Some(_) => text.strip_suffix(CRLF).unwrap_or(text),
            None => text,
        };
        Prepared {
            text: text.into(),
            ops: self.ops.into_vec().into_boxed_slice(),
            heads: self.heads,
            names_go: self.names_go,
            overruled: overruled.into_boxed_slice(),
            user,
            apart: self.apart,
        }
    }

    /// Carries out what was put together ahead. `false`, and nothing is done, where its user is to be looked at closely, or where it
    /// comes near the end of what rules may write for one message: which of its fields are beyond it is to be found one by one.
    pub(crate) fn add_prepared(&mut self, fields: &Prepared, scene: &Scene<'_>) -> bool {
        let tail = match fields.user {
            None => None,
            Some(party) => match self.plain_user(scene, party) {
                None => return false,
                user => user,
            },
        };
        let from = self.arena.len();
        let size = fields.text.len() + tail.map_or(0, |user| user.len() + CRLF.len());
        if from + size > MAX_ADDED {
            return false;
        }
        if !self.ops.is_empty() {
            for name in &fields.overruled {
                self.overrule(name);
            }
        }
        self.arena.extend_from_slice(&fields.text);
        for op in &fields.ops {
            self.ops.push(op.moved(from as u32));
        }
        if let Some(user) = tail {
            self.arena.extend_from_slice(user);
            let ends = self.arena.len() as u32;
            self.arena.extend_from_slice(CRLF);
            if let Some(Op::Set { field, .. } | Op::Add { field, .. }) = self.ops.last_mut() {
                field.end = ends;
            }
        }
        self.heads.written |= fields.heads.written;
        self.heads.replaced |= fields.heads.replaced;
        self.names_go |= fields.names_go;
        self.apart |= fields.apart;
        true
    }

    pub(crate) fn set_uri(&mut self, value: Span) {
        self.apart = true;
        self.uri = Some(value);
    }

    pub(crate) fn set_address(&mut self, id: HeaderId, value: Span) {
        self.apart = true;
        match id {
            HeaderId::From => self.from = Some(value),
            _ => self.to = Some(value),
        }
    }
}

/// The same edits where none is about several headers.
fn one_by_one<'e>(edit: &Edit<'e>) -> SmallVec<[Edit<'e>; 4]> {
    let Edit::Lines(lines) = edit else {
        return SmallVec::from_slice(core::slice::from_ref(edit));
    };
    let mut edits = SmallVec::new();
    let mut gone = lines.heads().replaced;
    while gone != 0 {
        let id = HeaderId::first_in(gone);
        gone &= !id.bit();
        edits.push(Edit::Remove(id));
    }
    edits.extend(lines.fields().map(|(id, name, value)| match id {
        HeaderId::Other => Edit::AddNamed { name, value },
        id => Edit::Add { id, value },
    }));
    edits
}

/// Whether a field is of this header.
fn is_field((its, called, _): (HeaderId, &[u8], &[u8]), id: HeaderId, name: &[u8]) -> bool {
    its == id && (id != HeaderId::Other || called.eq_ignore_ascii_case(name))
}

/// The header that an edit is about, as a set; a name may be written in any way, so that all without an identifier are one.
fn edited(edit: &Edit<'_>) -> u128 {
    match *edit {
        Edit::Remove(id)
        | Edit::RemoveFirst(id)
        | Edit::Replace { id, .. }
        | Edit::Prepend { id, .. }
        | Edit::Add { id, .. } => id.bit(),
        Edit::Lines(lines) => lines.heads().written | lines.heads().replaced,
        Edit::RemoveNamed(name) | Edit::AddNamed { name, .. } => HeaderId::from_name(name).bit(),
        Edit::RequestUri(_) | Edit::Body { .. } => 0,
    }
}

/// Whether an edit is about this header.
fn edits_header(edit: &Edit<'_>, id: HeaderId, name: &[u8]) -> bool {
    match *edit {
        Edit::Remove(which)
        | Edit::RemoveFirst(which)
        | Edit::Replace { id: which, .. }
        | Edit::Prepend { id: which, .. }
        | Edit::Add { id: which, .. } => id != HeaderId::Other && which == id,
        Edit::RemoveNamed(which) | Edit::AddNamed { name: which, .. } => match id {
            HeaderId::Other => which.eq_ignore_ascii_case(name),
            id => HeaderId::from_name(which) == id,
        },
        Edit::Lines(lines) => {
            id != HeaderId::Other && lines.heads().replaced & id.bit() != 0
                || lines.fields().any(|field| is_field(field, id, name))
        }
        Edit::RequestUri(_) | Edit::Body { .. } => false,
    }
}

/// The message of a scene with what was done to it so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'v> {
    pub(crate) scene: &'v Scene<'v>,
    pub(crate) effects: &'v Effects,
}

/// Field values of one header.
pub(crate) type Fields<'v> = SmallVec<[&'v [u8]; 4]>;

impl<'v> View<'v> {
    /// The message, as far as its own header `id` is what will leave.
    fn message(&self, id: HeaderId) -> Option<&'v Message<'v>> {
        self.scene
            .message
            .filter(|_| !crate::grammar::is_written_by_border(self.scene.direction, id))
    }

    pub(crate) fn uri(&self) -> &'v [u8] {
        self.effects
            .uri()
            .or(self.scene.uri)
            .or_else(|| self.scene.message.map(|message| message.request_uri()))
            .unwrap_or_default()
    }

    /// Nothing was decided about this header but what the message itself has.
    fn is_plain(&self, name: &Name) -> bool {
        self.effects.ops.is_empty() && self.scene.edits.is_empty()
            || !self
                .scene
                .edits
                .iter()
                .any(|edit| edits_header(edit, name.id, &name.text))
                && !self
                    .effects
                    .ops
                    .iter()
                    .any(|op| name.is(op.id(), self.effects.at(op.name())))
    }

    /// Whether From or To is another one than the message's.
    pub(crate) fn is_readdressed(&self, id: HeaderId) -> bool {
        self.given(id).is_some()
    }

    fn given(&self, id: HeaderId) -> Option<&'v [u8]> {
        let changed = match id {
            HeaderId::From => self.effects.from(),
            HeaderId::To => self.effects.to(),
            _ => None,
        };
        changed.or(self.scene.given(id))
    }

    /// The value of From or To, which no edit changes.
    pub(crate) fn party_field(&self, id: HeaderId) -> Option<&'v [u8]> {
        self.given(id)
            .or_else(|| self.scene.message.and_then(|message| message.header(id)))
    }

    /// The first field of a header; the whole field, which may be a list.
    pub(crate) fn first_field(&self, name: &Name) -> Option<&'v [u8]> {
        if let Some(value) = self.given(name.id) {
            return Some(value);
        }
        if !self.is_plain(name) {
            return self.fields(name).first().copied();
        }
        let message = self.message(name.id)?;
        match name.id {
            HeaderId::Other => message.header_named(&name.text),
            id => message.header(id),
        }
    }

    /// The first value of a header, list headers split.
    pub(crate) fn first(&self, name: &Name) -> Option<&'v [u8]> {
        let field = self.first_field(name)?;
        match name.id.is_list() {
            true => Values::list(field).next(),
            false => Some(field),
        }
    }

    /// The fields of a header, in the order in which they would leave.
    pub(crate) fn fields(&self, name: &Name) -> Fields<'v> {
        let mut fields = Fields::new();
        if let Some(value) = self.given(name.id) {
            fields.push(value);
            return fields;
        }
        if let Some(message) = self.message(name.id) {
            match name.id {
                HeaderId::Other => fields.extend(
                    message
                        .headers()
                        .filter(|header| name.is(header.id, header.name))
                        .map(|header| header.value),
                ),
                id => fields.extend(message.all(id)),
            }
        }
        for edit in self.scene.edits {
            if edits_header(edit, name.id, &name.text) {
                apply(edit, name, &mut fields);
            }
        }
        for op in &self.effects.ops {
            match *op {
                Op::Remove { id, name: at } if name.is(id, self.effects.at(at)) => fields.clear(),
                Op::Set { id, field } if id == name.id => {
                    fields.clear();
                    fields.push(self.effects.at(field.value()));
                }
                Op::Add { id, field } if name.is(id, self.effects.at(field.name())) => {
                    fields.push(self.effects.at(field.value()));
                }
                _ => {}
            }
        }
        fields
    }

    /// The values of a header, list headers split at their commas.
    pub(crate) fn values(&self, name: &Name) -> Fields<'v> {
        let fields = self.fields(name);
        match name.id.is_list() {
            true => fields.into_iter().flat_map(Values::list).collect(),
            false => fields,
        }
    }

    pub(crate) fn has(&self, name: &Name) -> bool {
        match self.is_plain(name) && name.id != HeaderId::Other {
            true => {
                self.given(name.id).is_some()
                    || self
                        .message(name.id)
                        .is_some_and(|message| message.has(name.id))
            }
            false => !self.fields(name).is_empty(),
        }
    }

    /// A tag that this message or an earlier one of its call was given.
    pub(crate) fn tag(&self, name: &str) -> Option<&'v str> {
        let new = self
            .effects
            .tags
            .iter()
            .rev()
            .find(|tag| &*tag.name == name);
        match new {
            Some(tag) => Some(&tag.value),
            None => {
                let mut old = self.scene.tags.iter().rev();
                old.find(|(known, _)| &**known == name)
                    .map(|(_, value)| &**value)
            }
        }
    }
}

/// What an edit makes of a header's fields.
fn apply<'v>(edit: &Edit<'v>, name: &Name, fields: &mut Fields<'v>) {
    match *edit {
        Edit::Remove(_) | Edit::RemoveNamed(_) => fields.clear(),
        Edit::RemoveFirst(_) => {
            if !fields.is_empty() {
                fields.remove(0);
            }
        }
        Edit::Replace { value, .. } => {
            fields.clear();
            fields.push(value);
        }
        Edit::Prepend { value, .. } => fields.insert(0, value),
        Edit::Add { value, .. } | Edit::AddNamed { value, .. } => fields.push(value),
        Edit::Lines(lines) => {
            if name.id != HeaderId::Other && lines.heads().replaced & name.id.bit() != 0 {
                fields.clear();
            }
            let its = lines
                .fields()
                .filter(|field| is_field(*field, name.id, &name.text));
            fields.extend(its.map(|(_, _, value)| value));
        }
        Edit::RequestUri(_) | Edit::Body { .. } => {}
    }
}
