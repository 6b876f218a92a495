//! A message as rules see it: what came or is about to leave, and where.

use engine::Transport;
use std::net::SocketAddr;
use wire::sip::{Edit, HeaderId, Message, Method};

/// Whether a message comes or leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It comes: rules act before routing.
    In,
    /// It leaves: rules act on what was composed.
    Out,
}

impl Direction {
    /// `in` or `out`.
    pub const fn name(self) -> &'static str {
        match self {
            Direction::In => "in",
            Direction::Out => "out",
        }
    }
}

/// What stands at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A peer of an access interface that is no trunk.
    Access,
    /// A peer of a core interface that is no trunk.
    Core,
    /// A trunk, at whichever interface.
    Trunk,
}

impl Kind {
    /// `access`, `core` or `trunk`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Access => "access",
            Kind::Core => "core",
            Kind::Trunk => "trunk",
        }
    }
}

/// Where a message comes or leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the interface.
    pub interface: u16,
    /// What is at the other end.
    pub kind: Kind,
    /// Index of the trunk, where the other end is one.
    pub trunk: Option<u16>,
}

/// A message and its surroundings.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// Whether it comes or leaves.
    pub direction: Direction,
    /// Where.
    pub place: Place,
    /// The other end's address, where it is known.
    pub peer: Option<SocketAddr>,
    /// How it is reached.
    pub transport: Transport,
    /// Whether the other end is trusted (RFC 3325 section 2.3).
    pub trusted: bool,
    /// The user that proved who it is; empty: none did.
    pub user: &'a str,
    /// What came; for what leaves: whose headers are copied. `None` for what we write without an example.
    pub message: Option<&'a Message<'a>>,
    /// The method of the request, or of the one that is answered.
    pub method: Method<'a>,
    /// The status; 0 for requests.
    pub status: u16,
    /// Whether it is a request outside of any dialog: then Request-URI, From and To can be changed.
    pub initial: bool,
    /// Request-URI where it is another one than the message's.
    pub uri: Option<&'a [u8]>,
    /// From where it is another one than the message's.
    pub from: Option<&'a [u8]>,
    /// To where it is another one than the message's.
    pub to: Option<&'a [u8]>,
    /// Changes to the message's headers that were decided before.
    pub edits: &'a [Edit<'a>],
    /// Tags that earlier messages of the call were given: name and value.
    pub tags: &'a [(Box<str>, Box<str>)],
}

impl<'a> Scene<'a> {
    /// A message that came, or leaves, as it stands.
    pub fn of(
        message: &'a Message<'a>,
        direction: Direction,
        place: Place,
        transport: Transport,
    ) -> Scene<'a> {
        let tagged = message.to().is_ok_and(|to| to.tag().is_some());
        Scene {
            direction,
            place,
            peer: None,
            transport,
            trusted: place.kind != Kind::Access,
            user: "",
            message: Some(message),
            method: message.method(),
            status: message.status(),
            initial: message.is_request() && !tagged,
            uri: None,
            from: None,
            to: None,
            edits: &[],
            tags: &[],
        }
    }

    /// Whether it is a request.
    pub fn is_request(&self) -> bool {
        self.status == 0
    }

    /// The value of a header that others decide than its message: From, To.
    pub(crate) fn given(&self, id: HeaderId) -> Option<&'a [u8]> {
        match id {
            HeaderId::From => self.from,
            HeaderId::To => self.to,
            _ => None,
        }
    }
}
