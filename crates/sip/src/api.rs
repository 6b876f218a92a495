//! The words between an endpoint and its user.

use crate::Endpoint;
use core::fmt;
use core::time::Duration;
use engine::{ConnectionId, SocketId, Time, Transport};
use std::net::SocketAddr;
use wire::sip::{Edit, HeaderId, Message, Method};

/// A leg: one side of a call, from the first INVITE to the end. Out-dated names are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LegId {
    pub(crate) slot: u32,
    pub(crate) check: u32,
}

/// A dialog that is no call, see [`Endpoint::subscribe`]. Out-dated names are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DialogId(pub(crate) LegId);

/// A client transaction (a request that we sent).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId {
    pub(crate) slot: u32,
    pub(crate) check: u32,
}

/// A server transaction (a request that came and that the user has to answer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerTransaction {
    pub(crate) slot: u32,
    pub(crate) check: u32,
}

/// A listening point of ours, see [`Endpoint::add_local`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalId(pub u16);

/// A branch of a forked INVITE: counts the early dialogs of a leg in the order in which they came (RFC 3261 section 12.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fork(pub u8);

/// A listening point: Via and Contact are written from it.
#[derive(Clone, Debug)]
pub struct Local {
    /// The interface's name. Locals of the same name stand for one another: a large request moves from the UDP one to
    /// the TCP one (RFC 3261 section 18.1.1).
    pub name: String,
    /// The socket (UDP) or listener (TCP); the host opens it.
    pub socket: SocketId,
    /// UDP or TCP.
    pub transport: Transport,
    /// Where it is bound. With port 0 the real port is taken from [`engine::Input::Opened`].
    pub address: SocketAddr,
    /// `host[:port]` as peers shall see it; empty: the address.
    pub advertised: String,
}

/// Where a message came from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Our side.
    pub local: LocalId,
    /// Transport.
    pub transport: Transport,
    /// The peer's side.
    pub remote: SocketAddr,
    /// The connection, for streams: preferred while it stands; else one to `remote` is reused or opened.
    pub connection: Option<ConnectionId>,
}

/// A name to which the requests of a dialog go: its user locates it (RFC 3263), see [`Endpoint::named_hop_of`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamedHop {
    /// The name, in small letters.
    pub host: String,
    /// The port, where one is written.
    pub port: Option<u16>,
    /// The transport, where one is written.
    pub transport: Option<Transport>,
    /// The scheme is `sips`.
    pub secure: bool,
}

/// Where a new request goes.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The Request-URI.
    pub uri: &'a [u8],
    /// The next hop, which the user has located (RFC 3263).
    pub flow: Flow,
    /// Route values to write, in order, each as `<sip:...;lr>` (a pre-loaded route set; RFC 3261 section 8.1.1.1).
    pub routes: &'a [&'a [u8]],
    /// Later requests of the dialog go to `flow` too, whatever host the peer's Contact or Record-Route names: for peers
    /// behind NAT, and for outbound proxies without Record-Route.
    pub pinned: bool,
    /// The peer takes TCP at the same address and port: requests above 1,300 bytes go over it (RFC 3261 section 18.1.1).
    pub tcp_when_large: bool,
    /// The peer is asked how much it can take (`oc` in the Via, RFC 7339); its answer is in the Via of its responses.
    pub feedback: bool,
}

impl<'a> Target<'a> {
    /// The URI at the given next hop, without routes, not pinned.
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
    /// The template's with its Content-Type; none where there is no template.
    #[default]
    Template,
    /// None.
    None,
    /// This one.
    New {
        /// Content-Type.
        content_type: &'a [u8],
        /// The bytes.
        bytes: &'a [u8],
    },
}

/// What an outgoing message carries besides what the endpoint itself writes.
///
/// The endpoint writes Via, From, To, Call-ID, CSeq, Route, Record-Route, Content-Length, RSeq, RAck, Session-Expires and
/// Min-SE: the template's are left aside, and an edit that names one is refused. It also writes Contact, Max-Forwards,
/// Supported, Require, Allow, User-Agent and Server: the template's are left aside (Max-Forwards is counted down), an
/// edit `Replace` or `Remove` decides otherwise, `Add` writes beside them. All other headers of the template are copied
/// byte for byte, changed by the edits. In 3xx and 485 responses Contact belongs to the content.
#[derive(Clone, Copy, Debug, Default)]
pub struct Content<'a> {
    /// Headers, and by default the body, are copied from it.
    pub template: Option<&'a Message<'a>>,
    /// Changes to them.
    pub edits: &'a [Edit<'a>],
    /// The body.
    pub body: Body<'a>,
    /// The reason phrase of a response; `None`: the template's where the status is the same, else the RFC's.
    pub reason: Option<&'a [u8]>,
}

impl<'a> Content<'a> {
    /// Only a body.
    pub fn body(content_type: &'a [u8], bytes: &'a [u8]) -> Content<'a> {
        Content {
            body: Body::New {
                content_type,
                bytes,
            },
            ..Content::default()
        }
    }

    /// An SDP body.
    pub fn sdp(bytes: &'a [u8]) -> Content<'a> {
        Content::body(b"application/sdp", bytes)
    }

    /// Headers and body of `template`.
    pub fn like(template: &'a Message<'a>) -> Content<'a> {
        Content {
            template: Some(template),
            ..Content::default()
        }
    }

    /// The same with these edits.
    pub fn with(self, edits: &'a [Edit<'a>]) -> Content<'a> {
        Content { edits, ..self }
    }
}

/// User name and password for a digest challenge (RFC 3261 section 22).
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

/// Who acknowledges reliable provisional responses of a leg that we opened (RFC 3262).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prack {
    /// The endpoint, without a body.
    #[default]
    Automatic,
    /// The user, by [`Endpoint::prack`]: where a body has to go along, or both ends are to be coupled.
    User,
}

/// A call to be opened.
#[derive(Clone, Copy, Debug)]
pub struct Invite<'a> {
    /// Where it goes. `flow.local` is the listening point that it leaves from.
    pub target: Target<'a>,
    /// From without tag, as `"Name" <sip:...>`; `None`: the template's, else our Contact.
    pub from: Option<&'a [u8]>,
    /// To; `None`: the template's, else the target URI.
    pub to: Option<&'a [u8]>,
    /// Call-ID; `None`: a random one.
    pub call_id: Option<&'a [u8]>,
    /// Headers and body.
    pub content: Content<'a>,
    /// A number of the user's, see [`Endpoint::user_of`].
    pub user: u64,
    /// Answers to challenges; one try for each challenge.
    pub login: Option<Login<'a>>,
    /// Who sends PRACK.
    pub prack: Prack,
}

impl<'a> Invite<'a> {
    /// A call to `target` with nothing but defaults.
    pub fn new(target: Target<'a>) -> Invite<'a> {
        Invite {
            target,
            from: None,
            to: None,
            call_id: None,
            content: Content::default(),
            user: 0,
            login: None,
            prack: Prack::Automatic,
        }
    }
}

/// A request outside of any dialog.
#[derive(Clone, Copy, Debug)]
pub struct Outside<'a> {
    /// The method; not INVITE, ACK, CANCEL, BYE or PRACK.
    pub method: Method<'a>,
    /// Where it goes.
    pub target: Target<'a>,
    /// From without tag; `None`: the template's, else our Contact.
    pub from: Option<&'a [u8]>,
    /// To; `None`: the template's, else the target URI.
    pub to: Option<&'a [u8]>,
    /// Call-ID; `None`: a random one. A registration keeps its own (RFC 3261 section 10.2).
    pub call_id: Option<&'a [u8]>,
    /// CSeq; `None`: 1. A registration counts up.
    pub cseq: Option<u32>,
    /// Headers and body.
    pub content: Content<'a>,
    /// A number of the user's, given back with the response.
    pub user: u64,
    /// Answers to a challenge; one try.
    pub login: Option<Login<'a>>,
}

impl<'a> Outside<'a> {
    /// A request with nothing but defaults.
    pub fn new(method: Method<'a>, target: Target<'a>) -> Outside<'a> {
        Outside {
            method,
            target,
            from: None,
            to: None,
            call_id: None,
            cseq: None,
            content: Content::default(),
            user: 0,
            login: None,
        }
    }
}

/// Why a command was not carried out; nothing has changed and nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such leg or transaction (any more).
    Gone,
    /// Not in this state of the leg.
    State,
    /// A table is full.
    Full,
    /// An INVITE of this dialog, ours or theirs, has no final answer yet (RFC 3261 section 14.1).
    InvitePending,
    /// An offer of this dialog, ours or theirs, has no answer yet (RFC 3264 section 4, RFC 3311 section 5.1), or an UPDATE
    /// of ours has none (section 5.2).
    OfferPending,
    /// There is no such listening point, or it has another transport or address family than the target.
    Transport,
    /// The message would be larger than the limit (65,535 bytes over UDP).
    TooLarge,
    /// An edit names a header that only the endpoint writes.
    Edit(HeaderId),
    /// A value that would break the message or the protocol: an empty URI, a wrong status or method.
    Value,
    /// The peer does not support it (reliable provisional responses without `100rel`).
    NotSupported,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Gone => "no such leg or transaction",
            Refused::State => "not in this state",
            Refused::Full => "table full",
            Refused::InvitePending => "an INVITE is pending",
            Refused::OfferPending => "an offer is pending",
            Refused::Transport => "no fitting listening point",
            Refused::TooLarge => "message too large",
            Refused::Edit(_) => "an edit names a header of the endpoint's",
            Refused::Value => "unfit value",
            Refused::NotSupported => "not supported by the peer",
        })
    }
}

impl std::error::Error for Refused {}

/// Why a leg that we opened was never answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A final response of 300 or above; it is given along.
    Response,
    /// No final response within 64*T1 (Timer B), or none after CANCEL (RFC 3261 section 9.1).
    TimedOut,
    /// We cancelled, yet a 2xx came: it was acknowledged, and BYE was sent.
    CancelCrossed,
    /// Cancelled before anything was heard, and nothing has been heard since: no CANCEL could be sent.
    CancelledUnheard,
    /// The connection failed or could not be opened (RFC 3261 section 8.1.3.1: as 503).
    Transport,
}

/// Why a leg that stood has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The peer sent BYE; it was answered 200.
    Peer,
    /// Our BYE was answered.
    Us,
    /// Our BYE was not answered (Timer F), or could not be sent.
    Unanswered,
    /// No ACK came for our 2xx within 64*T1; BYE was sent (RFC 3261 section 13.3.1.4).
    NoAck,
    /// No PRACK came for our reliable provisional response; the INVITE was answered 500 (RFC 3262 section 3).
    NoPrack,
    /// The session ran out (RFC 4028 section 10); BYE was sent.
    SessionExpired,
    /// The peer no longer knows the dialog: 481 or 408 to a request of ours in it (RFC 3261 section 12.2.1.2).
    Unknown,
}

/// What an endpoint tells its user. Messages are lent for the call.
#[derive(Debug)]
pub enum Indication<'m> {
    /// A call is offered: a new INVITE. Answer with `progress`, `answer` or `reject`, now or later.
    Offered {
        /// The new leg.
        leg: LegId,
        /// The INVITE.
        request: &'m Message<'m>,
        /// Where it came from.
        flow: Flow,
    },
    /// A provisional response above 100 to our INVITE (100 is not told).
    Progressed {
        /// The leg.
        leg: LegId,
        /// Which early dialog; `None` where the response has no To tag.
        fork: Option<Fork>,
        /// The response.
        response: &'m Message<'m>,
        /// Whether it is reliable and awaits PRACK (told once, whatever is retransmitted).
        reliable: bool,
    },
    /// Our INVITE was answered with a 2xx (the first). Send [`Endpoint::ack`], now or soon.
    Answered {
        /// The leg.
        leg: LegId,
        /// The response.
        response: &'m Message<'m>,
    },
    /// Our INVITE was never answered; the leg is gone when this returns.
    Failed {
        /// The leg.
        leg: LegId,
        /// Why.
        why: Failure,
        /// The response, for [`Failure::Response`] and [`Failure::CancelCrossed`].
        response: Option<&'m Message<'m>>,
    },
    /// ACK came for our 2xx.
    Acked {
        /// The leg.
        leg: LegId,
        /// The ACK (its body is the answer where our 2xx had the offer).
        request: &'m Message<'m>,
    },
    /// The caller gave up before we answered: CANCEL (or BYE); it was answered 200 and the INVITE 487. The leg is gone
    /// when this returns.
    Cancelled {
        /// The leg.
        leg: LegId,
        /// CANCEL or BYE; its Reason header may be worth passing on.
        request: &'m Message<'m>,
    },
    /// PRACK came for our reliable provisional response; answer it (2xx, with a body where it has an offer) by
    /// [`Endpoint::respond`].
    Pracked {
        /// The leg.
        leg: LegId,
        /// To be answered.
        transaction: ServerTransaction,
        /// The PRACK.
        request: &'m Message<'m>,
    },
    /// Another request of the dialog: re-INVITE, UPDATE, INFO, REFER, NOTIFY, OPTIONS, MESSAGE, anything. Answer it by
    /// [`Endpoint::respond`].
    Request {
        /// The leg.
        leg: LegId,
        /// To be answered.
        transaction: ServerTransaction,
        /// The request.
        request: &'m Message<'m>,
    },
    /// A re-INVITE of theirs was cancelled; it was answered 487.
    RequestCancelled {
        /// The leg.
        leg: LegId,
        /// The transaction, which is over.
        transaction: ServerTransaction,
    },
    /// A response to a request of ours inside the dialog (a re-INVITE's 2xx wants [`Endpoint::ack`]). After a 491,
    /// [`Endpoint::glare_wait`] says how long to wait before trying again.
    Response {
        /// The leg.
        leg: LegId,
        /// Which request.
        transaction: TransactionId,
        /// The response, provisional or final.
        response: &'m Message<'m>,
    },
    /// A request of ours inside the dialog got no final response, or could not be sent.
    TimedOut {
        /// The leg.
        leg: LegId,
        /// Which request.
        transaction: TransactionId,
    },
    /// A request outside of any dialog, not INVITE. Answer it by [`Endpoint::respond`].
    OutOfDialog {
        /// To be answered.
        transaction: ServerTransaction,
        /// The request.
        request: &'m Message<'m>,
        /// Where it came from.
        flow: Flow,
    },
    /// A request inside a dialog that is no call. Answer it by [`Endpoint::respond`].
    InDialog {
        /// The dialog.
        dialog: DialogId,
        /// The user's number of it.
        user: u64,
        /// To be answered.
        transaction: ServerTransaction,
        /// The request.
        request: &'m Message<'m>,
    },
    /// A response to a request that we sent outside of any dialog.
    OutOfDialogResponse {
        /// Which request.
        transaction: TransactionId,
        /// The user's number.
        user: u64,
        /// The response, provisional or final.
        response: &'m Message<'m>,
        /// Where it came from: with its `rport` and `received` a client behind NAT learns its own address.
        flow: Flow,
    },
    /// A request that we sent outside of any dialog got no final response (as 408), or could not be sent (as 503).
    OutOfDialogTimedOut {
        /// Which request.
        transaction: TransactionId,
        /// The user's number.
        user: u64,
    },
    /// A leg that stood has ended; it is gone when this returns.
    Ended {
        /// The leg.
        leg: LegId,
        /// Why.
        why: Ending,
        /// The BYE of [`Ending::Peer`], or the response of [`Ending::Us`].
        message: Option<&'m Message<'m>>,
    },
    /// It is our turn to refresh the session and the peer takes no UPDATE: send a re-INVITE with the present session
    /// description. (Where the peer allows UPDATE the endpoint refreshes by itself, RFC 4028 section 7.4.)
    RefreshDue {
        /// The leg.
        leg: LegId,
    },
    /// The session has not been refreshed in time. Send `bye` with headers of your own now, or the endpoint will send one;
    /// `Ended` follows.
    SessionExpired {
        /// The leg.
        leg: LegId,
    },
    /// A connection ended (a peer's flow of RFC 5626 with it).
    FlowFailed {
        /// Which.
        flow: Flow,
    },
}

/// An answer of which nothing is kept (RFC 3261 section 8.2.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stateless {
    /// Final status.
    pub status: u16,
    /// Reason phrase; `None`: the usual.
    pub reason: Option<&'static str>,
    /// Headers to add, in order.
    pub headers: Vec<(HeaderId, Vec<u8>)>,
}

/// What is done with a request that would found something new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// It is answered with that at once, without a transaction; so its repetitions come again, and must do no harm.
    Answer(Stateless),
    /// It takes its usual way; its source is known and gets what the protocol says.
    Known,
    /// It takes its usual way; over UDP its source gets at most twice the bytes of its requests until it gets a provisional
    /// response beyond 100 or a 2xx ([`crate::EndpointConfig::bounded_answers`]).
    Unknown,
}

/// Who uses an endpoint.
pub trait User {
    /// A request came that would found something new: outside of any dialog, part of no transaction that stands, and no
    /// CANCEL.
    fn greet(&mut self, request: &Message<'_>, flow: &Flow, now: Time) -> Greeting {
        let _ = (request, flow, now);
        Greeting::Known
    }

    /// Which of several workers is to have an INVITE outside of any dialog, and its CANCEL, where another than its Call-ID leads
    /// to; `bytes` are what came. The same bytes of the same flow have the same answer from all workers: repetitions find each
    /// other by it. A CANCEL may be answered otherwise, it is looked for at all of them.
    fn owner(&self, bytes: &[u8], flow: &Flow) -> Option<u8> {
        let _ = (bytes, flow);
        None
    }

    /// Something came for a dialog that another worker has given to us ([`Moving`]) and that is not taken in yet: now is the time.
    fn awaited(&mut self, endpoint: &mut Endpoint, now: Time) {
        let _ = (endpoint, now);
    }

    /// Something happened. Commands may be given to `endpoint` at once; they never call back from inside.
    fn indication(&mut self, endpoint: &mut Endpoint, indication: Indication<'_>, now: Time);
}

/// How much of everything an endpoint holds: what tests watch for leaks.
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
    /// Dialogs that are no calls.
    pub dialogs: usize,
    /// Timers.
    pub timers: usize,
    /// Stream connections.
    pub connections: usize,
    /// Bytes of kept copies: requests and responses that may be sent again, header blocks for answers to come, dialogs.
    pub kept_bytes: usize,
}

impl Census {
    /// Whether nothing is left but connections (which have a life of their own).
    pub fn is_quiet(&self) -> bool {
        *self
            == Census {
                connections: self.connections,
                ..Census::default()
            }
    }
}

/// The state of a leg, for users that look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegState {
    /// We sent INVITE; nothing, or only provisional responses, came.
    Calling,
    /// INVITE came and has no final answer.
    Offered,
    /// A 2xx was received and not yet acknowledged, or sent and not yet acknowledged.
    Answered,
    /// The dialog is confirmed.
    Confirmed,
    /// BYE or CANCEL is under way.
    Ending,
}

/// How long to wait for a second try after 491 (RFC 3261 section 14.1).
pub(crate) fn glare_interval(owner: bool, random: u64) -> Duration {
    match owner {
        true => Duration::from_millis(2_100 + 10 * (random % 191)),
        false => Duration::from_millis(10 * (random % 201)),
    }
}
