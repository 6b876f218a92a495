//! Types of the interface between an endpoint and its handler: identifiers, commands, indications.

pub use crate::handler::Handler;
use core::fmt;
use core::time::Duration;
use engine::{ConnectionId, SocketId, Transport};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use wire::sip::{Edit, HeaderId, Message, Method};

/// A leg: one side of a call, from the first INVITE to the end. Stale identifiers are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LegId {
    pub(crate) slot: u32,
    pub(crate) check: u32,
}

/// A dialog that is not a call, see [`Endpoint::subscribe`]. Stale identifiers are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DialogId(pub(crate) LegId);

/// A client transaction: a request that we sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TransactionId {
    pub(crate) slot: u32,
    pub(crate) check: u32,
}

/// A request of ours that has come back, see [`Endpoint::earlier_request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlierRequest {
    /// A request of this leg.
    Leg(LegId),
    /// A request outside of any dialog, with the number that the handler gave it.
    OutOfDialog(u64),
}

/// A server transaction: a received request that the handler has to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServerTransaction {
    pub(crate) slot: u32,
    pub(crate) check: u32,
}

/// A listener, see [`Endpoint::add_listener`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ListenerId(pub u16);

/// A branch of a forked INVITE: the index of an early dialog of a leg, in order of arrival (RFC 3261 section 12.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fork(pub u8);

/// A listener. Via and Contact are written from it.
#[derive(Clone, Debug)]
pub struct ListenerConfig {
    /// The interface's name. Listeners of one name replace each other: a large request moves from the UDP listener to
    /// the TCP listener (RFC 3261 section 18.1.1).
    pub name: String,
    /// The socket (UDP) or listening socket (TCP). The host opens it.
    pub socket: SocketId,
    /// UDP or TCP.
    pub transport: Transport,
    /// The bound address. With port 0 the port is set by [`engine::Input::Opened`].
    pub address: SocketAddr,
    /// `host[:port]` that is written for peers; empty: the address.
    pub advertised: String,
}

/// The two ends between which a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Flow {
    /// The local end.
    pub local: ListenerId,
    /// Transport.
    pub transport: Transport,
    /// The peer's address.
    pub remote: SocketAddr,
    /// The connection, for streams. It is preferred while it is open; otherwise one to `remote` is reused or opened.
    pub connection: Option<ConnectionId>,
}

/// The host name to which the requests of a dialog are sent. The handler resolves it (RFC 3263), see
/// [`Endpoint::named_hop_of`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NamedHop {
    /// The name in lower case.
    pub host: String,
    /// The port, if the URI has one.
    pub port: Option<u16>,
    /// The transport, if the URI has one.
    pub transport: Option<Transport>,
    /// The scheme is `sips`.
    pub secure: bool,
}

/// A TLS peer at an address, see [`Endpoint::learn_peer`].
#[derive(Clone, Copy, Debug)]
pub struct KnownPeer<'a> {
    /// The listener that sends.
    pub local: ListenerId,
    /// The peer's address.
    pub address: SocketAddr,
    /// Name that its certificate must contain.
    pub name: &'a str,
    /// Name of the driver's TLS settings.
    pub profile: &'a str,
}

/// Destination of a new request.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The Request-URI.
    pub uri: &'a [u8],
    /// The next hop, resolved by the handler (RFC 3263).
    pub flow: Flow,
    /// Route values in order, each as `<sip:...;lr>` (a pre-loaded route set; RFC 3261 section 8.1.1.1).
    pub routes: &'a [&'a [u8]],
    /// Later requests of the dialog are sent to `flow` too, not to the host in the peer's Contact or Record-Route. For
    /// peers behind NAT, and for outbound proxies without Record-Route.
    pub pinned: bool,
    /// The peer accepts TCP at the same address and port: requests above 1,300 bytes use it (RFC 3261 section 18.1.1).
    pub tcp_when_large: bool,
    /// The Via requests overload feedback (`oc`, RFC 7339); the peer writes it into the Via of its responses.
    pub feedback: bool,
}

impl<'a> Target<'a> {
    /// The URI at this next hop, without routes, not pinned.
    pub fn new(uri: &'a [u8], flow: Flow) -> Target<'a> {
        Target {
            uri,
            flow,
            routes: &[],
            pinned: false,
            tcp_when_large: false,
            feedback: false,
        }
    }
}

/// The body of an outgoing message.
#[derive(Clone, Copy, Debug, Default)]
pub enum Body<'a> {
    /// The template's body with its Content-Type; none without a template.
    #[default]
    Template,
    /// No body.
    None,
    /// A new body.
    New {
        /// Content-Type.
        content_type: &'a [u8],
        /// The bytes.
        bytes: &'a [u8],
    },
}

/// Headers and body of an outgoing message, besides the headers that the endpoint writes itself.
///
/// The endpoint writes Via, From, To, Call-ID, CSeq, Route, Record-Route, Content-Length, RSeq, RAck, Session-Expires
/// and Min-SE: those of the template are not copied, and an edit of one of them is refused. It also writes Contact,
/// Max-Forwards, Supported, Require, Allow, User-Agent and Server: those of the template are not copied either
/// (Max-Forwards is decremented), an edit `Replace` or `Remove` overrides the endpoint's value, `Add` writes a further
/// one. All other headers of the template are copied byte for byte, changed by the edits. In 3xx and 485 responses
/// Contact belongs to the content.
#[derive(Clone, Copy, Debug, Default)]
pub struct MessageContent<'a> {
    /// Source of headers and, by default, of the body.
    pub template: Option<&'a Message<'a>>,
    /// Changes to the headers.
    pub edits: &'a [Edit<'a>],
    /// The body.
    pub body: Body<'a>,
    /// The reason phrase of a response. `None`: the template's if its status is the same, else the RFC's.
    pub reason: Option<&'a [u8]>,
}

impl<'a> MessageContent<'a> {
    /// Only a body.
    pub fn body(content_type: &'a [u8], bytes: &'a [u8]) -> MessageContent<'a> {
        MessageContent {
            body: Body::New {
                content_type,
                bytes,
            },
            ..MessageContent::default()
        }
    }

    /// An SDP body.
    pub fn sdp(bytes: &'a [u8]) -> MessageContent<'a> {
        MessageContent::body(b"application/sdp", bytes)
    }

    /// Headers and body of `template`.
    pub fn from_template(template: &'a Message<'a>) -> MessageContent<'a> {
        MessageContent {
            template: Some(template),
            ..MessageContent::default()
        }
    }

    /// The same content with these edits.
    pub fn with(self, edits: &'a [Edit<'a>]) -> MessageContent<'a> {
        MessageContent { edits, ..self }
    }
}

/// User name and password for digest challenges (RFC 3261 section 22).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Login<'a> {
    /// The user name.
    pub user: &'a [u8],
    /// The password.
    pub password: &'a [u8],
}

impl fmt::Debug for Login<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({}, ...)", self.user.escape_ascii())
    }
}

/// Source of the PRACK for reliable provisional responses on a leg that we opened (RFC 3262).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Prack {
    /// The endpoint sends it, without a body.
    #[default]
    Automatic,
    /// The handler sends it by [`Endpoint::prack`]: if it needs a body, or if the PRACKs of two legs are coupled.
    Handler,
}

/// An INVITE of ours that was challenged and whose leg has ended. Its repetition has the same From tag and the next
/// CSeq (RFC 3261 section 22.2).
#[derive(Clone, Copy, Debug)]
pub struct ChallengedInvite<'a> {
    /// Our tag in From.
    pub tag: &'a [u8],
    /// The number in CSeq.
    pub cseq: u32,
}

/// An INVITE that opens a call.
#[derive(Clone, Copy, Debug)]
pub struct Invite<'a> {
    /// The destination. `flow.local` is the listener that sends.
    pub target: Target<'a>,
    /// From without tag, as `"Name" <sip:...>`; `None`: the template's, else our Contact.
    pub from: Option<&'a [u8]>,
    /// To; `None`: the template's, else the target URI.
    pub to: Option<&'a [u8]>,
    /// Call-ID; `None`: a random one.
    pub call_id: Option<&'a [u8]>,
    /// The challenged INVITE that this one repeats with credentials, with the same Call-ID.
    pub repeats: Option<ChallengedInvite<'a>>,
    /// Headers and body.
    pub content: MessageContent<'a>,
    /// A number for the handler, see [`Endpoint::user_of`].
    pub user: u64,
    /// Credentials for challenges; one attempt for each challenge.
    pub login: Option<Login<'a>>,
    /// Source of PRACK.
    pub prack: Prack,
}

impl<'a> Invite<'a> {
    /// A call to `target` with defaults.
    pub fn new(target: Target<'a>) -> Invite<'a> {
        Invite {
            target,
            from: None,
            to: None,
            call_id: None,
            repeats: None,
            content: MessageContent::default(),
            user: 0,
            login: None,
            prack: Prack::Automatic,
        }
    }
}

/// A request outside of any dialog.
#[derive(Clone, Copy, Debug)]
pub struct OutOfDialogRequest<'a> {
    /// The method. INVITE, ACK, CANCEL, BYE and PRACK are refused.
    pub method: Method<'a>,
    /// The destination.
    pub target: Target<'a>,
    /// From without tag; `None`: the template's, else our Contact.
    pub from: Option<&'a [u8]>,
    /// To; `None`: the template's, else the target URI.
    pub to: Option<&'a [u8]>,
    /// Call-ID; `None`: a random one. A registration uses one Call-ID for all its requests (RFC 3261 section 10.2).
    pub call_id: Option<&'a [u8]>,
    /// CSeq; `None`: 1. A registration increments it.
    pub cseq: Option<u32>,
    /// Our tag in From; `None`, no tag of ours, or, if the request creates a dialog, one in use: a new one. A request
    /// that repeats a challenged one with credentials has its tag (RFC 3261 section 22.2).
    pub tag: Option<&'a [u8]>,
    /// Headers and body.
    pub content: MessageContent<'a>,
    /// A number for the handler, returned with the response.
    pub user: u64,
    /// Credentials for a challenge; one attempt.
    pub login: Option<Login<'a>>,
}

impl<'a> OutOfDialogRequest<'a> {
    /// A request with defaults.
    pub fn new(method: Method<'a>, target: Target<'a>) -> OutOfDialogRequest<'a> {
        OutOfDialogRequest {
            method,
            target,
            from: None,
            to: None,
            call_id: None,
            cseq: None,
            tag: None,
            content: MessageContent::default(),
            user: 0,
            login: None,
        }
    }
}

/// Reason why a command was refused. The endpoint's state is unchanged and nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The leg or transaction does not exist (any more).
    Gone,
    /// Not allowed in this state of the leg.
    State,
    /// A table is full.
    Full,
    /// An INVITE of this dialog, of either side, has no final response yet (RFC 3261 section 14.1).
    InvitePending,
    /// An offer of this dialog, of either side, has no answer yet (RFC 3264 section 4, RFC 3311 section 5.1), or our
    /// UPDATE has no final response yet (section 5.2).
    OfferPending,
    /// The listener does not exist, or its transport or address family differs from the target's.
    Transport,
    /// The message would be larger than the limit (65,535 bytes over UDP).
    TooLarge,
    /// An edit of a header that only the endpoint writes.
    Edit(HeaderId),
    /// A value that would break the message or the protocol: an empty URI, a wrong status or method.
    Value,
    /// The peer does not support the extension (reliable provisional responses without `100rel`).
    NotSupported,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Gone => "the leg or transaction does not exist",
            Refused::State => "not allowed in this state",
            Refused::Full => "table full",
            Refused::InvitePending => "an INVITE is pending",
            Refused::OfferPending => "an offer is pending",
            Refused::Transport => "no listener for this transport and address family",
            Refused::TooLarge => "message too large",
            Refused::Edit(_) => "an edit changes a header that only the endpoint writes",
            Refused::Value => "invalid value",
            Refused::NotSupported => "not supported by the peer",
        })
    }
}

impl std::error::Error for Refused {}

/// Reason why a leg that we opened was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A final response of 300 or above; the indication carries it.
    Response,
    /// No final response within 64*T1 (Timer B), or none after CANCEL (RFC 3261 section 9.1).
    TimedOut,
    /// A 2xx crossed our CANCEL. It was acknowledged, and BYE was sent.
    CancelCrossed,
    /// Cancelled before the first response, and none was received since, so that no CANCEL could be sent.
    CancelledWithoutResponse,
    /// The connection failed or could not be opened (RFC 3261 section 8.1.3.1: treated as 503).
    Transport,
}

/// Reason why an answered leg has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The peer sent BYE; it was answered with 200.
    Peer,
    /// Our BYE was answered.
    Local,
    /// Our BYE was not answered (Timer F), or could not be sent.
    Unanswered,
    /// No ACK for our 2xx within 64*T1; BYE was sent (RFC 3261 section 13.3.1.4).
    NoAck,
    /// No PRACK for our reliable provisional response; the INVITE was answered with 500 (RFC 3262 section 3).
    NoPrack,
    /// The session expired (RFC 4028 section 10); BYE was sent.
    SessionExpired,
    /// The dialog does not exist at the peer: 481 or 408 to a request of ours in it (RFC 3261 section 12.2.1.2).
    UnknownDialog,
}

/// An indication from the endpoint to its handler. Messages are borrowed for the call.
#[derive(Debug)]
pub enum Indication<'m> {
    /// A new INVITE offers a call. Answer with `progress`, `answer` or `reject`, now or later.
    Offered {
        /// The new leg.
        leg: LegId,
        /// The INVITE.
        request: &'m Message<'m>,
        /// The flow it was received on.
        flow: Flow,
    },
    /// A provisional response above 100 to our INVITE (100 is not indicated).
    Progressed {
        /// The leg.
        leg: LegId,
        /// The early dialog; `None` if the response has no To tag.
        fork: Option<Fork>,
        /// The response.
        response: &'m Message<'m>,
        /// Whether it is reliable and needs PRACK (indicated once; retransmissions are absorbed).
        reliable: bool,
    },
    /// The first 2xx to our INVITE. Send [`Endpoint::ack`], now or soon.
    Answered {
        /// The leg.
        leg: LegId,
        /// The early dialog that it confirms, if there was one.
        fork: Option<Fork>,
        /// The response.
        response: &'m Message<'m>,
    },
    /// Our INVITE was not answered. The leg is removed when this call returns.
    Failed {
        /// The leg.
        leg: LegId,
        /// The reason.
        reason: Failure,
        /// The response, for [`Failure::Response`] and [`Failure::CancelCrossed`].
        response: Option<&'m Message<'m>>,
    },
    /// ACK for our 2xx.
    Acked {
        /// The leg.
        leg: LegId,
        /// The ACK (its body is the answer where our 2xx had the offer).
        request: &'m Message<'m>,
    },
    /// The caller sent CANCEL (or BYE) before we answered; it was answered with 200 and the INVITE with 487. The leg is
    /// removed when this call returns.
    Cancelled {
        /// The leg.
        leg: LegId,
        /// CANCEL or BYE; it may have a Reason header to pass on.
        request: &'m Message<'m>,
    },
    /// PRACK for our reliable provisional response. Answer it (2xx, with a body if it carries an offer) by
    /// [`Endpoint::respond`].
    Pracked {
        /// The leg.
        leg: LegId,
        /// The transaction to answer.
        transaction: ServerTransaction,
        /// The PRACK.
        request: &'m Message<'m>,
    },
    /// Another request of the dialog: re-INVITE, UPDATE, INFO, REFER, NOTIFY, OPTIONS, MESSAGE, others. Answer it by
    /// [`Endpoint::respond`].
    Request {
        /// The leg.
        leg: LegId,
        /// The transaction to answer.
        transaction: ServerTransaction,
        /// The request.
        request: &'m Message<'m>,
    },
    /// The peer cancelled its re-INVITE, which was answered with 487.
    RequestCancelled {
        /// The leg.
        leg: LegId,
        /// The transaction, which has ended.
        transaction: ServerTransaction,
    },
    /// A response to our in-dialog request (a 2xx to a re-INVITE needs [`Endpoint::ack`]). After a 491 wait for
    /// [`Endpoint::glare_wait`] before retrying.
    Response {
        /// The leg.
        leg: LegId,
        /// The request's transaction.
        transaction: TransactionId,
        /// The response, provisional or final.
        response: &'m Message<'m>,
    },
    /// Our in-dialog request got no final response (treat as 408), or could not be sent (treat as 503: the dialog
    /// lasts).
    TimedOut {
        /// The leg.
        leg: LegId,
        /// The request's transaction.
        transaction: TransactionId,
        /// [`Failure::TimedOut`] or [`Failure::Transport`].
        reason: Failure,
    },
    /// A request outside of any dialog, not INVITE. Answer it by [`Endpoint::respond`].
    OutOfDialog {
        /// The transaction to answer.
        transaction: ServerTransaction,
        /// The request.
        request: &'m Message<'m>,
        /// The flow it was received on.
        flow: Flow,
    },
    /// A request within a dialog that is not a call. Answer it by [`Endpoint::respond`].
    InDialog {
        /// The dialog.
        dialog: DialogId,
        /// The handler's number of the dialog.
        user: u64,
        /// The transaction to answer.
        transaction: ServerTransaction,
        /// The request.
        request: &'m Message<'m>,
    },
    /// A response to our out-of-dialog request.
    OutOfDialogResponse {
        /// The request's transaction.
        transaction: TransactionId,
        /// The handler's number.
        user: u64,
        /// The response, provisional or final.
        response: &'m Message<'m>,
        /// The flow it was received on. A client behind NAT learns its own address from `rport` and `received`.
        flow: Flow,
    },
    /// Our out-of-dialog request got no final response (treat as 408), or could not be sent (treat as 503).
    OutOfDialogTimedOut {
        /// The request's transaction.
        transaction: TransactionId,
        /// The handler's number.
        user: u64,
        /// [`Failure::TimedOut`] or [`Failure::Transport`].
        reason: Failure,
    },
    /// An answered leg has ended. It is removed when this call returns.
    Ended {
        /// The leg.
        leg: LegId,
        /// The reason.
        reason: Ending,
        /// The BYE of [`Ending::Peer`], or the response of [`Ending::Local`].
        message: Option<&'m Message<'m>>,
    },
    /// We have to refresh the session and the peer does not allow UPDATE: send a re-INVITE with the present session
    /// description. (If the peer allows UPDATE the endpoint refreshes by itself, RFC 4028 section 7.4.)
    RefreshDue {
        /// The leg.
        leg: LegId,
    },
    /// The session was not refreshed in time. Send `bye` with own headers now, or the endpoint sends one; `Ended`
    /// follows.
    SessionExpired {
        /// The leg.
        leg: LegId,
    },
    /// A connection has ended, and with it the peer's flow (RFC 5626).
    FlowFailed {
        /// The flow.
        flow: Flow,
    },
}

/// A response for which no state is kept (RFC 3261 section 8.2.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatelessResponse {
    /// Final status.
    pub status: u16,
    /// Reason phrase; `None`: the default of the status.
    pub reason: Option<&'static str>,
    /// Headers to add, in order.
    pub headers: Vec<(HeaderId, Vec<u8>)>,
}

/// Action for a request that would create a dialog or a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewRequestAction {
    /// Send this response at once, without a transaction. The handler is called again for each
    /// retransmission, so the decision must be free of side effects.
    Respond(StatelessResponse),
    /// Process it. Its source is trusted and gets responses without a size limit.
    Process,
    /// Process it, but send at most twice the bytes of its requests to its source over UDP, until a provisional
    /// response above 100 or a 2xx is sent ([`crate::EndpointConfig::bounded_answers`]).
    ProcessBounded,
}

/// Numbers of objects in an endpoint. Tests use them to find leaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Client transactions, ended ones included.
    pub clients: usize,
    /// Server transactions, ended ones included.
    pub servers: usize,
    /// Entries of the index of server transactions.
    pub index: usize,
    /// Legs.
    pub legs: usize,
    /// Dialogs that are not calls.
    pub dialogs: usize,
    /// Timers.
    pub timers: usize,
    /// Stream connections.
    pub connections: usize,
    /// Bytes of copies: requests and responses for retransmission, header blocks for later responses, dialogs.
    pub kept_bytes: usize,
}

impl Census {
    /// Whether only connections are left (which have their own lifetime).
    pub fn is_quiet(&self) -> bool {
        *self
            == Census {
                connections: self.connections,
                ..Census::default()
            }
    }
}

/// The state of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LegState {
    /// We sent INVITE and received no response or only provisional ones.
    Calling,
    /// We received INVITE and have sent no final response.
    Offered,
    /// A 2xx was received and not yet acknowledged, or sent and not yet acknowledged.
    Answered,
    /// The dialog is confirmed.
    Confirmed,
    /// BYE or CANCEL was sent.
    Ending,
}

/// Time before a retry after 491 (RFC 3261 section 14.1).
pub(crate) fn glare_interval(owner: bool, random: u64) -> Duration {
    match owner {
        true => Duration::from_millis(2_100 + 10 * (random % 191)),
        false => Duration::from_millis(10 * (random % 201)),
    }
}
