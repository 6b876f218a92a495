//! Facts of a message that conditions and templates can use.

use crate::address::{Part, part_of_address, part_of_uri, port_of, unfolded};
use crate::effects::{HeaderName, MessageView};
use crate::grammar::{MAX_VALUES, holds_addresses};
use crate::spec::Diagnosis;
use crate::template::Filled;
use cel::common::ast::{Expr, LiteralValue};
use std::borrow::Cow;
use std::net::IpAddr;
use wire::sip::{HeaderId, NameAddr, plain_user_of};

/// The address that a fact refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Party {
    RequestUri,
    Header(HeaderName),
}

/// An IP network, the argument of `within`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpNetwork {
    ip: IpAddr,
    bits: u32,
}

impl IpNetwork {
    fn parse(text: &str) -> Option<IpNetwork> {
        let (ip, bits) = match text.split_once('/') {
            Some((ip, bits)) => (ip.parse::<IpAddr>().ok()?, bits.parse().ok()?),
            None => {
                let ip = text.parse::<IpAddr>().ok()?;
                (ip, if ip.is_ipv4() { 32 } else { 128 })
            }
        };
        let most = if ip.is_ipv4() { 32 } else { 128 };
        // Sources are compared as IPv4 addresses: none is in a network of mapped ones.
        (bits <= most && ip.to_canonical() == ip).then_some(IpNetwork { ip, bits })
    }

    fn contains(&self, ip: IpAddr) -> bool {
        let same =
            |a: u128, b: u128, width: u32| self.bits == 0 || (a ^ b) >> (width - self.bits) == 0;
        match (self.ip, ip.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
            _ => false,
        }
    }
}

/// A fact with a text value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TextFact {
    Method,
    Reason,
    CallId,
    Direction,
    Interface,
    Kind,
    Trunk,
    Transport,
    PeerAddress,
    User,
    BodyType,
    Part(Party, Part),
    Header(HeaderName),
    Tag(Box<str>),
}

/// A fact with an integer value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IntFact {
    Status,
    PeerPort,
    BodySize,
    Port(Party),
}

/// A fact with a Boolean value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BoolFact {
    Request,
    Response,
    Initial,
    Trusted,
    HasHeader(HeaderName),
    HasPart(Party, Part),
    HasTag(Box<str>),
    Within(IpNetwork),
}

/// Any fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    Text(TextFact),
    Int(IntFact),
    Bool(BoolFact),
    /// All values of a header.
    Texts(HeaderName),
}

/// Top-level names, for error texts.
pub(crate) const NAMES: &[&str] = &[
    "method",
    "status",
    "reason",
    "request",
    "response",
    "initial",
    "direction",
    "interface",
    "kind",
    "trunk",
    "transport",
    "peer",
    "trusted",
    "user",
    "call_id",
    "body",
    "uri",
    "from",
    "to",
    "contact",
    "pai",
    "ppi",
    "diversion",
    "history",
    "refer_to",
    "referred_by",
    "reply_to",
    "rpid",
    "header",
    "headers",
    "tag",
];

/// The address that a top-level name refers to.
fn party(name: &str) -> Option<Party> {
    let id = match name {
        "uri" => return Some(Party::RequestUri),
        "from" => HeaderId::From,
        "to" => HeaderId::To,
        "contact" => HeaderId::Contact,
        "pai" => HeaderId::PAssertedIdentity,
        "ppi" => HeaderId::PPreferredIdentity,
        "diversion" => HeaderId::Diversion,
        "history" => HeaderId::HistoryInfo,
        "refer_to" => HeaderId::ReferTo,
        "referred_by" => HeaderId::ReferredBy,
        "reply_to" => HeaderId::ReplyTo,
        "rpid" => HeaderId::RemotePartyId,
        _ => return None,
    };
    HeaderName::new(id.name()).map(Party::Header)
}

/// A fact that is a single name.
fn plain(name: &str) -> Option<Fact> {
    Some(match name {
        "method" => Fact::Text(TextFact::Method),
        "reason" => Fact::Text(TextFact::Reason),
        "direction" => Fact::Text(TextFact::Direction),
        "interface" => Fact::Text(TextFact::Interface),
        "kind" => Fact::Text(TextFact::Kind),
        "trunk" => Fact::Text(TextFact::Trunk),
        "transport" => Fact::Text(TextFact::Transport),
        "user" => Fact::Text(TextFact::User),
        "call_id" => Fact::Text(TextFact::CallId),
        "status" => Fact::Int(IntFact::Status),
        "request" => Fact::Bool(BoolFact::Request),
        "response" => Fact::Bool(BoolFact::Response),
        "initial" => Fact::Bool(BoolFact::Initial),
        "trusted" => Fact::Bool(BoolFact::Trusted),
        _ => return None,
    })
}

/// The part of an address that a field names. The port is an integer and is handled separately.
fn part(party: &Party, field: &str) -> Result<Part, Diagnosis> {
    let part = match field {
        "uri" => Part::Uri,
        "scheme" => Part::Scheme,
        "user" => Part::User,
        "host" => Part::Host,
        "port" => Part::Port,
        "display" if *party != Party::RequestUri => Part::Display,
        _ => {
            let params = match party {
                Party::RequestUri => "params[\"NAME\"]",
                Party::Header(_) => "display, params[\"NAME\"], uri_params[\"NAME\"]",
            };
            return Err(Diagnosis::new(
                format!("an address has no `{field}`"),
                format!("its facts are: uri, scheme, user, host, port, {params}"),
            ));
        }
    };
    Ok(part)
}

fn text_fact(party: Party, part: Part) -> Fact {
    match part {
        Part::Port => Fact::Int(IntFact::Port(party)),
        part => Fact::Text(TextFact::Part(party, part)),
    }
}

fn header(name: &str) -> Result<HeaderName, Diagnosis> {
    HeaderName::new(name).ok_or_else(|| {
        Diagnosis::new(
            format!("\"{name}\" is not a valid header name"),
            "write a name such as \"X-Account\"",
        )
    })
}

/// A top-level name as an expression.
fn root(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Ident(name) => Some(name),
        _ => None,
    }
}

fn literal(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

/// `header["X"]`, `from.params["x"]` and similar: the operand and the key.
fn index(expr: &Expr) -> Option<(&Expr, &Expr)> {
    match expr {
        Expr::Call(call) if call.func_name == "_[_]" && call.target.is_none() => {
            match call.args.as_slice() {
                [map, key] => Some((&map.expr, &key.expr)),
                _ => None,
            }
        }
        _ => None,
    }
}

fn needs_key(what: &str) -> Diagnosis {
    Diagnosis::new(
        format!("`{what}` requires a literal name"),
        format!("write {what}[\"NAME\"]"),
    )
}

/// Whether a name is a fact, and so cannot be a variable.
pub(crate) fn is_known(name: &str) -> bool {
    NAMES.contains(&name)
}

/// The fact that an expression refers to; `None` if it is not a fact by itself.
pub(crate) fn resolve(expr: &Expr) -> Option<Result<Fact, Diagnosis>> {
    if let Some((map, key)) = index(expr) {
        return indexed(map, key);
    }
    match expr {
        Expr::Ident(name) => plain(name).map(Ok),
        Expr::Select(select) => {
            let field = select.field.as_str();
            match (root(&select.operand.expr), select.test) {
                (Some("peer"), false) => Some(match field {
                    "address" => Ok(Fact::Text(TextFact::PeerAddress)),
                    "port" => Ok(Fact::Int(IntFact::PeerPort)),
                    _ => Err(Diagnosis::new(
                        format!("`peer` has no `{field}`"),
                        "its facts are: address, port",
                    )),
                }),
                (Some("body"), false) => Some(match field {
                    "type" => Ok(Fact::Text(TextFact::BodyType)),
                    "size" => Ok(Fact::Int(IntFact::BodySize)),
                    _ => Err(Diagnosis::new(
                        format!("`body` has no `{field}`"),
                        "its facts are: type, size",
                    )),
                }),
                (Some("header"), false) => {
                    Some(header(field).map(|name| Fact::Text(TextFact::Header(name))))
                }
                (Some("headers"), false) => Some(header(field).map(Fact::Texts)),
                (Some("header" | "headers"), true) => {
                    Some(header(field).map(|name| Fact::Bool(BoolFact::HasHeader(name))))
                }
                (Some("tag"), false) => Some(Ok(Fact::Text(TextFact::Tag(field.into())))),
                (Some("tag"), true) => Some(Ok(Fact::Bool(BoolFact::HasTag(field.into())))),
                (Some(name), test) => {
                    let party = party(name)?;
                    Some(part(&party, field).map(|part| match test {
                        true => Fact::Bool(BoolFact::HasPart(party, part)),
                        false => text_fact(party, part),
                    }))
                }
                (None, test) => params(&select.operand.expr, field, test),
            }
        }
        Expr::Call(call) if call.func_name == "@in" && call.target.is_none() => {
            let [key, map] = call.args.as_slice() else {
                return None;
            };
            let (name, key) = (root(&map.expr)?, literal(&key.expr));
            match (name, key) {
                ("header" | "headers", Some(key)) => {
                    Some(header(key).map(|name| Fact::Bool(BoolFact::HasHeader(name))))
                }
                ("tag", Some(key)) => Some(Ok(Fact::Bool(BoolFact::HasTag(key.into())))),
                ("header" | "headers" | "tag", None) => Some(Err(needs_key(name))),
                _ => None,
            }
        }
        Expr::Call(call) if call.func_name == "within" && call.target.is_none() => {
            let network = match call.args.as_slice() {
                [one] => literal(&one.expr).and_then(IpNetwork::parse),
                _ => None,
            };
            Some(match network {
                Some(network) => Ok(Fact::Bool(BoolFact::Within(network))),
                None => Err(Diagnosis::new(
                    "`within` requires one literal network",
                    "write within(\"192.0.2.0/24\")",
                )),
            })
        }
        _ => None,
    }
}

/// `from.params.x` and `has(from.params.x)`.
fn params(operand: &Expr, name: &str, test: bool) -> Option<Result<Fact, Diagnosis>> {
    let Expr::Select(inner) = operand else {
        return None;
    };
    let party = party(root(&inner.operand.expr)?)?;
    let part = parameter(&party, &inner.field, name)?;
    Some(part.map(|part| match test {
        true => Fact::Bool(BoolFact::HasPart(party, part)),
        false => text_fact(party, part),
    }))
}

fn parameter(party: &Party, map: &str, name: &str) -> Option<Result<Part, Diagnosis>> {
    let name: Box<[u8]> = name.as_bytes().into();
    match (map, party) {
        ("params", Party::RequestUri) | ("uri_params", _) => Some(Ok(Part::UriParam(name))),
        ("params", Party::Header(_)) => Some(Ok(Part::Param(name))),
        _ => None,
    }
}

/// The fact of an index expression.
fn indexed(map: &Expr, key: &Expr) -> Option<Result<Fact, Diagnosis>> {
    if let Some(name) = root(map) {
        return match (name, literal(key)) {
            ("header", Some(key)) => {
                Some(header(key).map(|name| Fact::Text(TextFact::Header(name))))
            }
            ("headers", Some(key)) => Some(header(key).map(Fact::Texts)),
            ("tag", Some(key)) => Some(Ok(Fact::Text(TextFact::Tag(key.into())))),
            ("header" | "headers" | "tag", None) => Some(Err(needs_key(name))),
            _ => None,
        };
    }
    let Expr::Select(select) = map else {
        return None;
    };
    let name = root(&select.operand.expr)?;
    let party = party(name)?;
    let Some(key) = literal(key) else {
        return Some(Err(needs_key(&format!("{name}.{}", select.field))));
    };
    let part = parameter(&party, &select.field, key)?;
    Some(part.map(|part| text_fact(party, part)))
}

impl<'v> MessageView<'v> {
    /// The first address of a header.
    fn address(&self, name: &HeaderName) -> Option<NameAddr<'v>> {
        // The message caches these parsed addresses.
        let known = match name.id {
            HeaderId::From if !self.is_address_changed(name.id) => self.context.message?.from(),
            HeaderId::To if !self.is_address_changed(name.id) => self.context.message?.to(),
            _ => return NameAddr::parse(self.first(name)?),
        };
        known.ok()
    }

    /// The user of From or To, if it needs no unescaping.
    fn plain_user(&self, party: &Party, part: &Part) -> Option<&'v [u8]> {
        match (party, part) {
            (Party::Header(name), Part::User)
                if matches!(name.id, HeaderId::From | HeaderId::To) =>
            {
                self.party_field(name.id).and_then(plain_user_of)
            }
            _ => None,
        }
    }

    /// Appends a text in UTF-8.
    pub(crate) fn append_text(&self, fact: &TextFact, names: &'v RuleNames, out: &mut Filled) {
        if let TextFact::Part(party, part) = fact
            && let Some(user) = self.plain_user(party, part)
        {
            return out.extend_from_slice(user);
        }
        out.extend_from_slice(self.text(fact, names).as_bytes());
    }

    /// A part of an address.
    fn part(&self, party: &Party, part: &Part) -> Option<Cow<'v, str>> {
        match party {
            Party::RequestUri => Some(self.uri())
                .filter(|uri| !uri.is_empty())
                .and_then(|uri| part_of_uri(uri, part)),
            Party::Header(name) => {
                let plain = self.plain_user(party, part).map(core::str::from_utf8);
                match plain {
                    Some(Ok(user)) => Some(Cow::Borrowed(user)),
                    _ => part_of_address(&self.address(name)?, part),
                }
            }
        }
    }

    /// The value of a text fact; empty if absent.
    pub(crate) fn text(&self, fact: &TextFact, names: &'v RuleNames) -> Cow<'v, str> {
        let context = self.context;
        let message = context.message;
        let empty = Cow::Borrowed("");
        match fact {
            TextFact::Method => unfolded(context.method.as_bytes()),
            TextFact::Reason => message.map_or(empty, |message| unfolded(message.reason())),
            TextFact::CallId => message
                .and_then(|message| message.call_id().ok())
                .map_or(empty, unfolded),
            TextFact::Direction => Cow::Borrowed(context.direction.name()),
            TextFact::Kind => Cow::Borrowed(context.remote.kind.name()),
            TextFact::Transport => Cow::Borrowed(context.transport.uri_name()),
            TextFact::PeerAddress => context.peer.map_or(empty, |peer| {
                Cow::Owned(peer.ip().to_canonical().to_string())
            }),
            TextFact::User => Cow::Borrowed(context.user),
            TextFact::BodyType => message.map_or(empty, |message| body_type(message)),
            TextFact::Interface => names
                .interfaces
                .get(usize::from(context.remote.interface))
                .map_or(empty, |name| Cow::Borrowed(name.as_str())),
            TextFact::Trunk => context
                .remote
                .trunk
                .and_then(|trunk| names.trunks.get(usize::from(trunk)))
                .map_or(empty, |name| Cow::Borrowed(name.as_str())),
            TextFact::Part(party, part) => self.part(party, part).unwrap_or(empty),
            TextFact::Header(name) => self.first(name).map_or(empty, unfolded),
            TextFact::Tag(name) => self.tag(name).map_or(empty, Cow::Borrowed),
        }
    }

    /// The value of an integer fact; 0 if absent.
    pub(crate) fn int(&self, fact: &IntFact) -> i64 {
        match fact {
            IntFact::Status => self.context.status.into(),
            IntFact::PeerPort => self.context.peer.map_or(0, |peer| peer.port().into()),
            IntFact::BodySize => self
                .context
                .message
                .map_or(0, |message| message.body().len() as i64),
            IntFact::Port(Party::RequestUri) => port_of(self.uri()).into(),
            IntFact::Port(Party::Header(name)) => self
                .address(name)
                .map_or(0, |address| port_of(address.uri).into()),
        }
    }

    /// The value of a Boolean fact.
    pub(crate) fn bool(&self, fact: &BoolFact) -> bool {
        match fact {
            BoolFact::Request => self.context.is_request(),
            BoolFact::Response => !self.context.is_request(),
            BoolFact::Initial => self.context.initial,
            BoolFact::Trusted => self.context.trusted,
            BoolFact::HasHeader(name) => self.has(name),
            BoolFact::HasPart(party, part) => self.part(party, part).is_some(),
            BoolFact::HasTag(name) => self.tag(name).is_some(),
            BoolFact::Within(network) => self
                .context
                .peer
                .is_some_and(|peer| network.contains(peer.ip())),
        }
    }

    pub(crate) fn texts(&self, name: &HeaderName) -> Vec<Cow<'v, str>> {
        let values = self.values(name).into_iter().take(MAX_VALUES);
        values.map(unfolded).collect()
    }
}

/// The names behind the indices of places.
pub(crate) use crate::spec::RuleNames;

/// `type/subtype` in lower case; empty without a body.
fn body_type<'a>(message: &wire::sip::Message<'a>) -> Cow<'a, str> {
    if message.body().is_empty() {
        return Cow::Borrowed("");
    }
    match message.content_type() {
        Ok(kind) => {
            let text = format!(
                "{}/{}",
                String::from_utf8_lossy(kind.kind),
                String::from_utf8_lossy(kind.subtype)
            );
            Cow::Owned(text.to_ascii_lowercase())
        }
        Err(_) => Cow::Borrowed(""),
    }
}

/// Whether actions may change parts of this header.
pub(crate) fn has_parts(id: HeaderId) -> bool {
    holds_addresses(id)
}
