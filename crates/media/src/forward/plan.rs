//! The description of a session by control, as plain values.

use super::srtp::Protection;
use super::transcode::TranscodePlan;
use core::fmt;
use core::time::Duration;
use engine::SocketId;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Maximum number of media lines of a session.
pub const MAX_FLOWS: usize = 16;

/// Component of a media line (RFC 8445).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Component {
    /// RTP; with rtcp-mux also RTCP.
    Rtp,
    /// RTCP on a separate port.
    Rtcp,
}

/// Protocol of a media line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Carriage {
    /// RTP and RTCP. Packets are checked to be such; their payload may be encrypted.
    Rtp,
    /// Datagrams of another protocol (T.38 UDPTL): only the sender is checked.
    Datagrams,
}

/// Addresses that may be latched if a side sends from another address than the signalled one (symmetric RTP, RFC 4961).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Latching {
    /// None: only the signalled address is accepted.
    Signalled,
    /// Any port of this address, usually the source address of the signalling.
    SameAddress(IpAddr),
    /// Any address.
    Anywhere,
}

/// One side of a media line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidePlan {
    /// Our socket towards this side.
    pub rtp: SocketId,
    /// Our socket for RTCP, if RTCP has a separate port. May be set together with `mux`: until the answer is received,
    /// RTCP may use both ports (RFC 5761 section 5.1.1).
    pub rtcp: Option<SocketId>,
    /// Whether the sockets are IPv6.
    pub ipv6: bool,
    /// RTP address in the side's session description.
    pub signalled_rtp: Option<SocketAddr>,
    /// RTCP address in the side's session description; ignored with `mux`.
    pub signalled_rtcp: Option<SocketAddr>,
    /// Whether rtcp-mux (RFC 5761) was negotiated with this side.
    pub mux: bool,
    /// Which addresses may be latched.
    pub latching: Latching,
    /// With a changed number, another permitted address may replace the latched one, once; the latched one stays valid
    /// until then.
    pub latch_epoch: u32,
    /// Whether this side may send media, by offer and answer.
    pub sends: bool,
    /// Whether this side receives media, by offer and answer.
    pub receives: bool,
    /// DSCP code point of packets to this side, for the statistics: the driver marks its sockets, all with the same.
    pub dscp: u8,
    /// Clock rates in Hz of dynamic payload types that this side sends, for the jitter.
    pub clock_rates: SmallVec<[(u8, u32); 2]>,
    /// Payload types of telephone events and comfort noise: their packets are never offloaded.
    pub special: SmallVec<[u8; 4]>,
    /// Media security; only for RTP.
    pub protection: Protection,
    /// Whether the keys are agreed by DTLS on the media path; such datagrams are punted.
    pub dtls: bool,
    /// Whether topology hiding applies towards this side: RTCP to it gets pseudonyms as CNAMEs, and loses other names.
    pub hides: bool,
    /// Whether RTCP of this side is readable here. Then a datagram of it that is no compound goes to no side with
    /// topology hiding; otherwise it may be SRTCP whose keys are not known here.
    pub plain_rtcp: bool,
    /// How packets from this side are transcoded for the other side; `None`: relayed unchanged. Only for RTP.
    pub transcode: Option<Arc<TranscodePlan>>,
    /// RTP payload types of this side that the other side does not know: not relayed
    /// ([`engine::DropReason::MediaNotTranscoded`]).
    pub refused: SmallVec<[u8; 4]>,
}

impl SidePlan {
    /// A side with one socket, without a signalled address, that latches any address, sends and receives.
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
            hides: false,
            plain_rtcp: false,
            transcode: None,
            refused: SmallVec::new(),
        }
    }

    /// Whether this side sends or receives no media.
    pub(crate) fn is_held(&self) -> bool {
        !self.sends || !self.receives
    }
}

/// One media line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowPlan {
    /// Number of the `m=` line; identifies the line across updates.
    pub line: u8,
    /// Protocol of the line.
    pub carriage: Carriage,
    /// The two sides.
    pub sides: [SidePlan; 2],
}

/// The media of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPlan {
    /// Session number, chosen by control.
    pub session: u64,
    /// Media lines, without the disabled ones.
    pub flows: SmallVec<[FlowPlan; 1]>,
    /// Silence of all sides after which [`super::MediaEvent::Timeout`] is reported; `None` for never.
    pub inactivity: Option<Duration>,
    /// The same during hold, see [`SessionPlan::is_held`].
    pub hold_inactivity: Option<Duration>,
}

impl SessionPlan {
    /// Default of the inactivity timeout.
    pub const INACTIVITY: Duration = Duration::from_secs(60);

    /// A session with one media line, number 0.
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

    /// Whether each line is on hold: a side of it does not send, or does not receive (RFC 3264 section 8.4). Then
    /// silence is normal: the side on hold need not send music, and the other one's media is not wanted.
    pub fn is_held(&self) -> bool {
        self.flows
            .iter()
            .all(|flow| flow.sides.iter().any(SidePlan::is_held))
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = SocketId> + '_ {
        self.flows
            .iter()
            .flat_map(|flow| &flow.sides)
            .flat_map(|side| core::iter::once(side.rtp).chain(side.rtcp))
    }

    /// Checks of the plan that need no other state.
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

/// Reason for refusing a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// A session with this number exists.
    SessionExists,
    /// No session with this number exists.
    NoSuchSession,
    /// The limit of sessions is reached.
    Full,
    /// More than [`MAX_FLOWS`] lines.
    TooManyFlows,
    /// Two lines have the same number.
    LineTwice(u8),
    /// The socket is in use by another component or session.
    SocketInUse(SocketId),
    /// The socket number is above the limit.
    SocketOutOfRange(SocketId),
    /// The conference has no free place.
    ConferenceFull,
    /// A participant cannot be moved to another conference.
    OtherConference,
    /// The codec cannot be used.
    Codec(codec::CodecError),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::SessionExists => f.write_str("a session with this number exists"),
            PlanError::NoSuchSession => f.write_str("no session with this number exists"),
            PlanError::Full => f.write_str("the limit of sessions is reached"),
            PlanError::TooManyFlows => f.write_str("too many media lines"),
            PlanError::LineTwice(line) => write!(f, "media line {line} occurs twice"),
            PlanError::SocketInUse(socket) => write!(f, "socket {} is in use", socket.0),
            PlanError::SocketOutOfRange(socket) => {
                write!(f, "socket {} is above the limit", socket.0)
            }
            PlanError::ConferenceFull => f.write_str("the conference is full"),
            PlanError::OtherConference => {
                f.write_str("a participant cannot be moved to another conference")
            }
            PlanError::Codec(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PlanError {}
