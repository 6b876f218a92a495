//! Effects of rules on a message: collected here, applied by the owner of the message.

use crate::context::MessageContext;
use crate::grammar::MAX_ADDED;
use smallvec::SmallVec;
use wire::sip::{
    COLON, CRLF, Edit, FieldLines, HeaderId, HeaderSets, Message, Values, plain_user_of,
};

/// A range of [`Effects::arena`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArenaSpan {
    start: u32,
    end: u32,
}

impl ArenaSpan {
    fn of(self, text: &[u8]) -> &[u8] {
        text.get(self.start as usize..self.end as usize)
            .unwrap_or_default()
    }
}

/// A header, by identifier, or by name if it has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeaderName {
    pub(crate) id: HeaderId,
    pub(crate) text: Box<[u8]>,
}

impl HeaderName {
    /// The header with this name; `None` if the name is not a token.
    pub(crate) fn new(text: &str) -> Option<HeaderName> {
        let id = HeaderId::from_name(text.as_bytes());
        let token = !text.is_empty() && text.bytes().all(crate::grammar::is_token);
        token.then(|| HeaderName {
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

/// A field in [`Effects::arena`]: `name: value`, followed by its line end.
#[derive(Clone, Copy, Debug)]
struct FieldSpan {
    start: u32,
    /// Start of the value, behind colon and space.
    value: u32,
    end: u32,
}

/// Consecutive lines in [`Effects::arena`].
#[derive(Clone, Copy, Debug)]
struct Block {
    start: u32,
    end: u32,
}

impl Block {
    #[inline]
    fn edit<'e>(self, text: &'e [u8], heads: &'e HeaderSets) -> Option<Edit<'e>> {
        let lines = text.get(self.start as usize..self.end as usize)?;
        FieldLines::new(lines, heads).map(Edit::Lines)
    }
}

impl FieldSpan {
    const fn name(self) -> ArenaSpan {
        ArenaSpan {
            start: self.start,
            end: self.value - COLON.len() as u32,
        }
    }

    const fn value(self) -> ArenaSpan {
        ArenaSpan {
            start: self.value,
            end: self.end,
        }
    }

    const fn shifted(self, by: u32) -> FieldSpan {
        FieldSpan {
            start: self.start + by,
            value: self.value + by,
            end: self.end + by,
        }
    }

    /// End of its line.
    const fn line_end(self) -> u32 {
        self.end + CRLF.len() as u32
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Remove all values.
    Remove { id: HeaderId, name: ArenaSpan },
    /// Replace all values by this field.
    Set { id: HeaderId, field: FieldSpan },
    /// Add a field.
    Add { id: HeaderId, field: FieldSpan },
}

impl Op {
    const fn id(self) -> HeaderId {
        let (Op::Remove { id, .. } | Op::Set { id, .. } | Op::Add { id, .. }) = self;
        id
    }

    const fn name(self) -> ArenaSpan {
        match self {
            Op::Remove { name, .. } => name,
            Op::Set { field, .. } | Op::Add { field, .. } => field.name(),
        }
    }

    /// The field that is written.
    const fn field(self) -> Option<FieldSpan> {
        match self {
            Op::Remove { .. } => None,
            Op::Set { field, .. } | Op::Add { field, .. } => Some(field),
        }
    }

    /// The same operation for text at a later position.
    #[inline]
    const fn shifted(self, by: u32) -> Op {
        match self {
            Op::Remove { id, name } => Op::Remove {
                id,
                name: ArenaSpan {
                    start: name.start + by,
                    end: name.end + by,
                },
            },
            Op::Set { id, field } => Op::Set {
                id,
                field: field.shifted(by),
            },
            Op::Add { id, field } => Op::Add {
                id,
                field: field.shifted(by),
            },
        }
    }
}

/// Header changes that are the same for every message, prepared when rules are loaded: see [`Effects::into_prepared`].
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    text: Box<[u8]>,
    ops: Box<[Op]>,
    /// As in [`Effects`].
    heads: HeaderSets,
    /// As in [`Effects`].
    removes_named: bool,
    /// Headers whose earlier changes are discarded.
    replaced_headers: Box<[HeaderName]>,
    /// From or To if its user is the value of the last field; the text lacks the user and the line end.
    user: Option<HeaderId>,
    /// As in [`Effects`].
    non_contiguous: bool,
}

/// A refusal of the request by a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleRefusal {
    /// Index of the rule.
    pub rule: u16,
    /// Status, 400 to 699.
    pub status: u16,
    /// Reason phrase, if not the default one.
    pub reason: Option<Box<str>>,
}

/// A value that is stored with the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleTag {
    /// Index of the rule.
    pub rule: u16,
    /// Name of the tag.
    pub name: Box<str>,
    /// Value of the tag.
    pub value: Box<str>,
}

/// A log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLogLine {
    /// Index of the rule.
    pub rule: u16,
    /// The text.
    pub text: String,
}

/// Bytes of text stored without heap allocation, enough for most messages.
const INLINE: usize = 320;

/// Append-only text, the first bytes of it inline.
#[derive(Debug)]
pub(crate) struct Arena {
    inline: [u8; INLINE],
    length: usize,
    /// The whole text, once it exceeds `inline`.
    heap: Vec<u8>,
}

impl Default for Arena {
    fn default() -> Self {
        Arena {
            inline: [0; INLINE],
            length: 0,
            heap: Vec::new(),
        }
    }
}

impl Arena {
    fn len(&self) -> usize {
        self.length
    }

    fn as_slice(&self) -> &[u8] {
        match self.heap.is_empty() {
            true => self.inline.get(..self.length).unwrap_or_default(),
            false => &self.heap,
        }
    }

    pub(crate) fn extend_from_slice(&mut self, text: &[u8]) {
        let end = self.length + text.len();
        match self.inline.get_mut(self.length..end) {
            Some(room) if self.heap.is_empty() => room.copy_from_slice(text),
            _ => {
                if self.heap.is_empty() {
                    let inline = self.inline.get(..self.length).unwrap_or_default();
                    self.heap.extend_from_slice(inline);
                }
                self.heap.extend_from_slice(text);
            }
        }
        self.length = end;
    }

    fn truncate(&mut self, length: usize) {
        self.heap.truncate(length);
        self.length = self.length.min(length);
        if self.length == 0 {
            self.heap.clear();
        }
    }
}

/// The effects of the matching rules on a message.
#[derive(Debug, Default)]
pub struct Effects {
    arena: Arena,
    ops: SmallVec<[Op; 8]>,
    /// Headers that are written or replaced.
    heads: HeaderSets,
    /// Whether fields are removed or replaced by name.
    removes_named: bool,
    /// Whether there are changes other than fields in consecutive lines.
    non_contiguous: bool,
    uri: Option<ArenaSpan>,
    from: Option<ArenaSpan>,
    to: Option<ArenaSpan>,
    /// Indices of the applied rules, in order.
    pub matched: SmallVec<[u16; 8]>,
    /// Refusal of the request.
    pub refusal: Option<RuleRefusal>,
    /// Index of the trunk to which the request is routed.
    pub route: Option<u16>,
    /// Tags to store with the call.
    pub tags: Vec<RuleTag>,
    /// Lines for the log.
    pub log: Vec<RuleLogLine>,
    /// Edits that were omitted because they would have broken the message.
    pub refused_edits: u32,
    /// Conditions without a value (division by zero, text that is not a number); they count as false.
    pub failed_conditions: u32,
}

impl Effects {
    /// Removes all effects and keeps the memory.
    pub fn clear(&mut self) {
        self.arena.truncate(0);
        self.ops.clear();
        self.heads = HeaderSets::default();
        self.removes_named = false;
        self.non_contiguous = false;
        (self.uri, self.from, self.to) = (None, None, None);
        self.matched.clear();
        self.refusal = None;
        self.route = None;
        self.tags.clear();
        self.log.clear();
        self.refused_edits = 0;
        self.failed_conditions = 0;
    }

    /// Whether the message remains unchanged.
    pub fn changes_nothing(&self) -> bool {
        self.ops.is_empty() && self.uri.is_none() && self.from.is_none() && self.to.is_none()
    }

    /// Whether there is nothing to store, log, count or refuse.
    pub fn has_no_reports(&self) -> bool {
        self.tags.is_empty()
            && self.log.is_empty()
            && self.refused_edits == 0
            && self.failed_conditions == 0
            && self.refusal.is_none()
    }

    /// The new Request-URI.
    pub fn uri(&self) -> Option<&[u8]> {
        self.uri.map(|span| self.text_of(span))
    }

    /// The new From. It keeps the tag of the old one.
    pub fn from(&self) -> Option<&[u8]> {
        self.from.map(|span| self.text_of(span))
    }

    /// The new To. It keeps the tag of the old one.
    pub fn to(&self) -> Option<&[u8]> {
        self.to.map(|span| self.text_of(span))
    }

    /// Header edits in order, without From and To. For each header, removal or replacement comes first.
    pub fn edits(&self) -> impl Iterator<Item = Edit<'_>> {
        self.ops.iter().map(|op| match *op {
            Op::Remove {
                id: HeaderId::Other,
                name,
            } => Edit::RemoveNamed(self.text_of(name)),
            Op::Remove { id, .. } => Edit::Remove(id),
            Op::Set { id, field } => Edit::Replace {
                id,
                value: self.text_of(field.value()),
            },
            Op::Add {
                id: HeaderId::Other,
                field,
            } => Edit::AddNamed {
                name: self.text_of(field.name()),
                value: self.text_of(field.value()),
            },
            Op::Add { id, field } => Edit::Add {
                id,
                value: self.text_of(field.value()),
            },
        })
    }

    /// All edits of an existing message ([`wire::sip::emit`]).
    pub fn all_edits(&self) -> impl Iterator<Item = Edit<'_>> {
        let address = |id, span: Option<ArenaSpan>| {
            span.map(|span| Edit::Replace {
                id,
                value: self.text_of(span),
            })
        };
        self.uri
            .map(|span| Edit::RequestUri(self.text_of(span)))
            .into_iter()
            .chain(address(HeaderId::From, self.from))
            .chain(address(HeaderId::To, self.to))
            .chain(self.edits())
    }

    /// Appends the header edits to earlier edits, and removes the earlier edits that they replace.
    pub fn merge<'e, const N: usize>(&'e self, edits: &mut SmallVec<[Edit<'e>; N]>) {
        let mut replaced_headers = self.heads.replaced;
        if self.removes_named {
            replaced_headers |= HeaderId::Other.bit();
        }
        let decided = edits.iter().fold(0, |set, edit| set | edited(edit));
        if decided & replaced_headers != 0 {
            if edits.iter().any(|edit| matches!(edit, Edit::Lines(_))) {
                *edits = edits.iter().flat_map(expand_lines).collect();
            }
            for op in &self.ops {
                let (id, name) = (op.id(), op.name());
                if matches!(op, Op::Add { .. }) || decided & id.bit() == 0 {
                    continue;
                }
                let name = self.text_of(name);
                edits.retain(|edit| !edits_header(edit, id, name));
            }
        }
        let text = self.arena.as_slice();
        if !self.non_contiguous {
            let ends = self.ops.first().zip(self.ops.last());
            if let Some((Some(first), Some(last))) = ends.map(|(a, b)| (a.field(), b.field())) {
                let block = Block {
                    start: first.start,
                    end: last.line_end(),
                };
                if let Some(edit) = block.edit(text, &self.heads) {
                    edits.push(edit);
                }
                return;
            }
        }
        // In a composed message, replaced headers follow the others, so consecutive lines can be written together.
        // Removals come before them and concern other headers.
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
                    edits.extend(block.edit(text, &self.heads));
                    field.start
                }
                None => field.start,
            };
            block = Some(Block {
                start,
                end: field.line_end(),
            });
        }
        if let Some(edit) = block.and_then(|block| block.edit(text, &self.heads)) {
            edits.push(edit);
        }
    }

    fn text_of(&self, span: ArenaSpan) -> &[u8] {
        span.of(self.arena.as_slice())
    }

    /// End of the arena. Text written behind it becomes an [`ArenaSpan`] by [`Effects::span_from`], or is discarded by
    /// [`Effects::discard_from`].
    pub(crate) fn mark(&self) -> usize {
        self.arena.len()
    }

    pub(crate) fn text(&mut self) -> &mut Arena {
        &mut self.arena
    }

    pub(crate) fn span_from(&self, mark: usize) -> ArenaSpan {
        ArenaSpan {
            start: mark as u32,
            end: self.arena.len() as u32,
        }
    }

    /// Discards the text behind `mark`, which is too long or would break the message.
    pub(crate) fn discard_from(&mut self, mark: usize) {
        self.arena.truncate(mark);
        self.refused_edits += 1;
    }

    /// The user of From or To, if no rule changed that header and the user consists of letters, digits and marks.
    pub(crate) fn plain_user<'s>(
        &self,
        context: &MessageContext<'s>,
        party: HeaderId,
    ) -> Option<&'s [u8]> {
        let changed = match party {
            HeaderId::From => self.from,
            _ => self.to,
        };
        if changed.is_some() {
            return None;
        }
        let field = context
            .given(party)
            .or_else(|| context.message.and_then(|message| message.header(party)))?;
        plain_user_of(field)
    }

    /// Whether rules have written the maximum for one message.
    pub(crate) fn is_full(&self) -> bool {
        self.arena.len() > MAX_ADDED
    }

    /// Begins a field. The text that follows is its value, until [`Effects::add`] or [`Effects::set`].
    pub(crate) fn begin(&mut self, name: &HeaderName) {
        self.arena.extend_from_slice(&name.text);
        self.arena.extend_from_slice(COLON);
    }

    /// Ends the field that was begun at `mark`.
    fn field_from(&mut self, name: &HeaderName, mark: usize) -> FieldSpan {
        let end = self.arena.len() as u32;
        self.arena.extend_from_slice(CRLF);
        self.heads.written |= name.id.bit();
        FieldSpan {
            start: mark as u32,
            value: (mark + name.text.len() + COLON.len()) as u32,
            end,
        }
    }

    /// Discards the earlier changes of this header.
    fn discard_changes_of(&mut self, name: &HeaderName) {
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
            self.non_contiguous = true;
        }
    }

    /// Adds the field that was begun at `mark`.
    pub(crate) fn add(&mut self, name: &HeaderName, mark: usize) {
        let field = self.field_from(name, mark);
        self.ops.push(Op::Add { id: name.id, field });
    }

    /// Removes all fields of a header.
    pub(crate) fn remove(&mut self, name: &HeaderName) {
        self.discard_changes_of(name);
        let name_at = match name.id {
            HeaderId::Other => {
                let mark = self.mark();
                self.arena.extend_from_slice(&name.text);
                self.span_from(mark)
            }
            _ => ArenaSpan { start: 0, end: 0 },
        };
        self.mark_replaced(name.id);
        self.non_contiguous = true;
        self.ops.push(Op::Remove {
            id: name.id,
            name: name_at,
        });
    }

    fn mark_replaced(&mut self, id: HeaderId) {
        match id {
            HeaderId::Other => self.removes_named = true,
            id => self.heads.replaced |= id.bit(),
        }
    }

    /// Sets the field that was begun at `mark` as the only one of this header.
    pub(crate) fn set(&mut self, name: &HeaderName, mark: usize) {
        let field = self.field_from(name, mark);
        self.discard_changes_of(name);
        let id = name.id;
        self.mark_replaced(id);
        match id {
            HeaderId::Other => {
                let name = field.name();
                self.non_contiguous = true;
                self.ops.push(Op::Remove { id, name });
                self.ops.push(Op::Add { id, field });
            }
            _ => self.ops.push(Op::Set { id, field }),
        }
    }

    /// Converts effects of constant fields to a form that can be applied to any message. `replaced_headers`: headers
    /// whose earlier changes are discarded. `user`: From or To if its user is the value of the last field, which is
    /// empty so far.
    pub(crate) fn into_prepared(
        self,
        replaced_headers: Vec<HeaderName>,
        user: Option<HeaderId>,
    ) -> Prepared {
        let text = self.arena.as_slice();
        let text = match user {
            Some(_) => text.strip_suffix(CRLF).unwrap_or(text),
            None => text,
        };
        Prepared {
            text: text.into(),
            ops: self.ops.into_vec().into_boxed_slice(),
            heads: self.heads,
            removes_named: self.removes_named,
            replaced_headers: replaced_headers.into_boxed_slice(),
            user,
            non_contiguous: self.non_contiguous,
        }
    }

    /// Applies prepared changes. Returns false without effect if the user needs a check, or if the size limit is near,
    /// so that the fields have to be applied one by one.
    pub(crate) fn add_prepared(&mut self, fields: &Prepared, context: &MessageContext<'_>) -> bool {
        let user_text = match fields.user {
            None => None,
            Some(party) => match self.plain_user(context, party) {
                None => return false,
                user => user,
            },
        };
        let from = self.arena.len();
        let size = fields.text.len() + user_text.map_or(0, |user| user.len() + CRLF.len());
        if from + size > MAX_ADDED {
            return false;
        }
        if !self.ops.is_empty() {
            for name in &fields.replaced_headers {
                self.discard_changes_of(name);
            }
        }
        self.arena.extend_from_slice(&fields.text);
        for op in &fields.ops {
            self.ops.push(op.shifted(from as u32));
        }
        if let Some(user) = user_text {
            self.arena.extend_from_slice(user);
            let ends = self.arena.len() as u32;
            self.arena.extend_from_slice(CRLF);
            if let Some(Op::Set { field, .. } | Op::Add { field, .. }) = self.ops.last_mut() {
                field.end = ends;
            }
        }
        self.heads.written |= fields.heads.written;
        self.heads.replaced |= fields.heads.replaced;
        self.removes_named |= fields.removes_named;
        self.non_contiguous |= fields.non_contiguous;
        true
    }

    pub(crate) fn set_uri(&mut self, value: ArenaSpan) {
        self.non_contiguous = true;
        self.uri = Some(value);
    }

    pub(crate) fn set_address(&mut self, id: HeaderId, value: ArenaSpan) {
        self.non_contiguous = true;
        match id {
            HeaderId::From => self.from = Some(value),
            _ => self.to = Some(value),
        }
    }
}

/// The same edit as edits of one header each.
fn expand_lines<'e>(edit: &Edit<'e>) -> SmallVec<[Edit<'e>; 4]> {
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

/// Whether a field belongs to this header.
fn is_field((its, called, _): (HeaderId, &[u8], &[u8]), id: HeaderId, name: &[u8]) -> bool {
    its == id && (id != HeaderId::Other || called.eq_ignore_ascii_case(name))
}

/// The headers that an edit concerns, as a set. Headers without identifier are one element of it, as their names may be
/// written in any way.
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

/// Whether an edit concerns this header.
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

/// The message of a context with the present effects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageView<'v> {
    pub(crate) context: &'v MessageContext<'v>,
    pub(crate) effects: &'v Effects,
}

/// Field values of one header.
pub(crate) type FieldValues<'v> = SmallVec<[&'v [u8]; 4]>;

impl<'v> MessageView<'v> {
    /// The message, unless its header `id` is replaced by the border's own.
    fn message(&self, id: HeaderId) -> Option<&'v Message<'v>> {
        self.context
            .message
            .filter(|_| !crate::grammar::is_written_by_border(self.context.direction, id))
    }

    pub(crate) fn uri(&self) -> &'v [u8] {
        self.effects
            .uri()
            .or(self.context.uri)
            .or_else(|| self.context.message.map(|message| message.request_uri()))
            .unwrap_or_default()
    }

    /// Whether neither edits nor effects concern this header.
    fn is_plain(&self, name: &HeaderName) -> bool {
        self.effects.ops.is_empty() && self.context.edits.is_empty()
            || !self
                .context
                .edits
                .iter()
                .any(|edit| edits_header(edit, name.id, &name.text))
                && !self
                    .effects
                    .ops
                    .iter()
                    .any(|op| name.is(op.id(), self.effects.text_of(op.name())))
    }

    /// Whether From or To differs from the message's.
    pub(crate) fn is_address_changed(&self, id: HeaderId) -> bool {
        self.given(id).is_some()
    }

    fn given(&self, id: HeaderId) -> Option<&'v [u8]> {
        let changed = match id {
            HeaderId::From => self.effects.from(),
            HeaderId::To => self.effects.to(),
            _ => None,
        };
        changed.or(self.context.given(id))
    }

    /// The value of From or To; edits do not change it.
    pub(crate) fn party_field(&self, id: HeaderId) -> Option<&'v [u8]> {
        self.given(id)
            .or_else(|| self.context.message.and_then(|message| message.header(id)))
    }

    /// The first field of a header, which may contain a list.
    pub(crate) fn first_field(&self, name: &HeaderName) -> Option<&'v [u8]> {
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

    /// The first value of a header; list headers are split.
    pub(crate) fn first(&self, name: &HeaderName) -> Option<&'v [u8]> {
        let field = self.first_field(name)?;
        match name.id.is_list() {
            true => Values::list(field).next(),
            false => Some(field),
        }
    }

    /// The fields of a header in the order of sending.
    pub(crate) fn fields(&self, name: &HeaderName) -> FieldValues<'v> {
        let mut fields = FieldValues::new();
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
        for edit in self.context.edits {
            if edits_header(edit, name.id, &name.text) {
                apply(edit, name, &mut fields);
            }
        }
        for op in &self.effects.ops {
            match *op {
                Op::Remove { id, name: at } if name.is(id, self.effects.text_of(at)) => {
                    fields.clear()
                }
                Op::Set { id, field } if id == name.id => {
                    fields.clear();
                    fields.push(self.effects.text_of(field.value()));
                }
                Op::Add { id, field } if name.is(id, self.effects.text_of(field.name())) => {
                    fields.push(self.effects.text_of(field.value()));
                }
                _ => {}
            }
        }
        fields
    }

    /// The values of a header; list headers are split at their commas.
    pub(crate) fn values(&self, name: &HeaderName) -> FieldValues<'v> {
        let fields = self.fields(name);
        match name.id.is_list() {
            true => fields.into_iter().flat_map(Values::list).collect(),
            false => fields,
        }
    }

    pub(crate) fn has(&self, name: &HeaderName) -> bool {
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

    /// A tag of this message or of an earlier one of its call.
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
                let mut old = self.context.tags.iter().rev();
                old.find(|(known, _)| &**known == name)
                    .map(|(_, value)| &**value)
            }
        }
    }
}

/// Applies an edit to a header's fields.
fn apply<'v>(edit: &Edit<'v>, name: &HeaderName, fields: &mut FieldValues<'v>) {
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
