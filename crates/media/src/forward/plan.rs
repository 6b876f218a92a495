//! What control says about a session: plain values.

use super::recode::RecodePlan;
use super::secure::Protection;
use core::fmt;
use core::time::Duration;
use engine::SocketId;
use smallvec::SmallVec;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Media lines of a session at most.
pub const MAX_FLOWS: usize = 16;

/// RTP or RTCP (the components of a media line, RFC 8445).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Component {
    /// RTP, and RTCP where both share the port.
    Rtp,
    /// RTCP on a port of its own.
    Rtcp,
}

/// What a media line carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carriage {
    /// RTP and RTCP, checked as such (their payload may be encrypted).
    Rtp,
    /// Datagrams of another kind (T.38 UDPTL): only the sender is checked.
    Datagrams,
}

/// From which addresses a side may be learned when it does not send from where it signalled (symmetric RTP, RFC 4961).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Latching {
    /// From none: the signalled address only.
    Signalled,
    /// From any port of this address, usually the one from which its signalling comes.
    SameAddress(IpAddr),
    /// From anywhere.
    Anywhere,
}

/// One side of a media line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidePlan {
    /// Our socket towards this side.
    pub rtp: SocketId,
    /// Our socket for RTCP where it has a port of its own; may be given with `mux`, as RTCP may come to both until the
    /// answer is there (RFC 5761 section 5.1.1).
    pub rtcp: Option<SocketId>,
    /// Whether the sockets are IPv6.
    pub ipv6: bool,
    /// Where this side said that it receives RTP.
    pub signalled_rtp: Option<SocketAddr>,
    /// Where this side said that it receives RTCP (ignored with `mux`).
    pub signalled_rtcp: Option<SocketAddr>,
    /// Whether rtcp-mux (RFC 5761) was agreed with this side.
    pub mux: bool,
    /// May it be learned?
    pub latching: Latching,
    /// A new number lets the side be learned anew although what it signalled is the same.
    pub latch_epoch: u32,
    /// Whether this side may send media, by offer and answer.
    pub sends: bool,
    /// Whether this side receives media, by offer and answer.
    pub receives: bool,
    /// Code point with which packets leave towards this side.
    pub dscp: u8,
    /// Clock rates (Hz) of dynamic payload types that this side sends; for jitter.
    pub clock_rates: SmallVec<[(u8, u32); 2]>,
    /// Payload types that are not this side's ordinary media (digits, comfort noise): they never take a shortcut.
    pub special: SmallVec<[u8; 4]>,
    /// How its media is protected; only for RTP.
    pub protection: Protection,
    /// Whether its keys come by DTLS in the media path: such datagrams are punted then.
    pub dtls: bool,
    /// How what it sends is transcoded for the other side; `None`: it passes as it is. Only for RTP.
    pub recode: Option<Arc<RecodePlan>>,
}

impl SidePlan {
    /// A side with one socket, nothing signalled, learned from anywhere, sending and receiving.
    pub fn new(rtp: SocketId) -> SidePlan {
        SidePlan {
            rtp,
            rtcp: None,
            ipv6: false,
            signalled_rtp: None,
            signalled_rtcp: None,
            mux: false,
            latching: Latching::Anywhere,
            latch_epoch: 0,
            sends: true,
            receives: true,
            dscp: 0,
            clock_rates: SmallVec::new(),
            special: SmallVec::new(),
            protection: Protection::None,
            dtls: false,
            recode: None,
        }
    }
}

/// One media line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowPlan {
    /// Its number among the `m=` lines; names it across updates.
    pub line: u8,
    /// What it carries.
    pub carriage: Carriage,
    /// The two sides.
    pub sides: [SidePlan; 2],
}

/// The media of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPlan {
    /// Control's number.
    pub session: u64,
    /// Media lines; those that are disabled are left out.
    pub flows: SmallVec<[FlowPlan; 1]>,
    /// Silence of all sides after which [`super::MediaEvent::Timeout`] is told; `None` for never.
    pub inactivity: Option<Duration>,
    /// The same while no side may send (hold).
    pub hold_inactivity: Option<Duration>,
}

impl SessionPlan {
    /// Silence after which a session times out where the configuration does not say otherwise.
    pub const INACTIVITY: Duration = Duration::from_secs(60);

    /// A session with one line, that of number 0.
    pub fn single(session: u64, carriage: Carriage, sides: [SidePlan; 2]) -> SessionPlan {
        let line = FlowPlan {
            line: 0,
            carriage,
            sides,
        };
        SessionPlan {
            session,
            flows: SmallVec::from_iter([line]),
            inactivity: Some(Self::INACTIVITY),
            hold_inactivity: None,
        }
    }

    /// Whether no side may send on any line.
    pub fn is_held(&self) -> bool {
        !self
            .flows
            .iter()
            .flat_map(|flow| &flow.sides)
            .any(|side| side.sends)
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = SocketId> + '_ {
        self.flows
            .iter()
            .flat_map(|flow| &flow.sides)
            .flat_map(|side| core::iter::once(side.rtp).chain(side.rtcp))
    }

    /// What can be found wrong in the plan by itself.
    pub(crate) fn check(&self, socket_limit: u32) -> Result<(), PlanError> {
        if self.flows.len() > MAX_FLOWS {
            return Err(PlanError::TooManyFlows);
        }
        let mut seen = SmallVec::<[SocketId; 8]>::new();
        for socket in self.sockets() {
            if socket.0 >= socket_limit {
                return Err(PlanError::SocketOutOfRange(socket));
            }
            if seen.contains(&socket) {
                return Err(PlanError::SocketInUse(socket));
            }
            seen.push(socket);
        }
        let mut lines = SmallVec::<[u8; 4]>::new();
        for flow in &self.flows {
            if lines.contains(&flow.line) {
                return Err(PlanError::LineTwice(flow.line));
            }
            lines.push(flow.line);
        }
        Ok(())
    }
}

/// Why a command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// There is a session of this number.
    SessionExists,
    /// There is no session of this number.
    NoSuchSession,
    /// As many sessions as allowed exist.
    Full,
    /// More than [`MAX_FLOWS`] lines.
    TooManyFlows,
    /// Two lines of the same number.
    LineTwice(u8),
    /// The socket serves another place already.
    SocketInUse(SocketId),
    /// The socket's number is above the limit.
    SocketOutOfRange(SocketId),
    /// As many seats as the conference has are taken.
    RoomFull,
    /// A seat stays in its conference.
    OtherRoom,
    /// Its codec cannot be used.
    Codec(codec::CodecError),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::SessionExists => f.write_str("a session of this number exists"),
            PlanError::NoSuchSession => f.write_str("no session of this number exists"),
            PlanError::Full => f.write_str("as many sessions as allowed exist"),
            PlanError::TooManyFlows => f.write_str("too many media lines"),
            PlanError::LineTwice(line) => write!(f, "media line {line} is given twice"),
            PlanError::SocketInUse(socket) => write!(f, "socket {} is in use", socket.0),
            PlanError::SocketOutOfRange(socket) => {
                write!(f, "socket {} is above the limit", socket.0)
            }
            PlanError::RoomFull => f.write_str("as many seats as the conference has are taken"),
            PlanError::OtherRoom => f.write_str("a seat stays in its conference"),
            PlanError::Codec(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PlanError {}
