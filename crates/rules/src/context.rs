//! The context of a message for rules: the message, its direction and the peer.

use engine::Transport;
use std::net::SocketAddr;
use wire::sip::{Edit, HeaderId, Message, Method};

/// Direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleDirection {
    /// Received: rules act before routing.
    In,
    /// Sent: rules act on the composed message.
    Out,
}

impl RuleDirection {
    /// `in` or `out`.
    pub const fn name(self) -> &'static str {
        match self {
            RuleDirection::In => "in",
            RuleDirection::Out => "out",
        }
    }
}

/// Kind of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// A peer of an access interface that is not a trunk.
    Access,
    /// A peer of a core interface that is not a trunk.
    Core,
    /// A trunk, on any interface.
    Trunk,
}

impl PeerKind {
    /// `access`, `core` or `trunk`.
    pub const fn name(self) -> &'static str {
        match self {
            PeerKind::Access => "access",
            PeerKind::Core => "core",
            PeerKind::Trunk => "trunk",
        }
    }
}

/// The peer that sent or will receive a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRef {
    /// Index of the interface.
    pub interface: u16,
    /// Kind of the peer.
    pub kind: PeerKind,
    /// Index of the trunk, if the peer is one.
    pub trunk: Option<u16>,
}

/// A message with its context.
#[derive(Clone, Copy, Debug)]
pub struct MessageContext<'a> {
    /// Whether it is received or sent.
    pub direction: RuleDirection,
    /// The peer.
    pub remote: PeerRef,
    /// Address of the peer, if known.
    pub peer: Option<SocketAddr>,
    /// Transport to the peer.
    pub transport: Transport,
    /// Whether the peer is trusted (RFC 3325 section 2.3).
    pub trusted: bool,
    /// The authenticated user; empty for none.
    pub user: &'a str,
    /// The received message; for a message to send, the one whose headers are copied. `None` if it has no such
    /// original.
    pub message: Option<&'a Message<'a>>,
    /// Method of the request, or of the request that a response belongs to.
    pub method: Method<'a>,
    /// The status; 0 for requests.
    pub status: u16,
    /// Whether it is an out-of-dialog request, whose Request-URI, From and To may be changed.
    pub initial: bool,
    /// Request-URI if it differs from the message's.
    pub uri: Option<&'a [u8]>,
    /// From if it differs from the message's.
    pub from: Option<&'a [u8]>,
    /// To if it differs from the message's.
    pub to: Option<&'a [u8]>,
    /// Earlier edits of the message's headers.
    pub edits: &'a [Edit<'a>],
    /// Tags of earlier messages of the call: name and value.
    pub tags: &'a [(Box<str>, Box<str>)],
}

impl<'a> MessageContext<'a> {
    /// The context of a message without earlier edits.
    pub fn of(
        message: &'a Message<'a>,
        direction: RuleDirection,
        remote: PeerRef,
        transport: Transport,
    ) -> MessageContext<'a> {
        let tagged = message.to().is_ok_and(|to| to.tag().is_some());
        MessageContext {
            direction,
            remote,
            peer: None,
            transport,
            trusted: remote.kind != PeerKind::Access,
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

    /// The value of From or To if it differs from the message's.
    pub(crate) fn given(&self, id: HeaderId) -> Option<&'a [u8]> {
        match id {
            HeaderId::From => self.from,
            HeaderId::To => self.to,
            _ => None,
        }
    }
}
