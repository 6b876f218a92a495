//! Which address a side is heard from.

use super::plan::Latching;
use engine::DropReason;
use std::net::{IpAddr, SocketAddr};

/// Packets in sequence from one address and one source that make an address learned.
pub const LATCH_PACKETS: u8 = 3;
/// Addresses that are considered at the same time.
const CANDIDATES: usize = 3;
/// A gap in sequence numbers that still counts as continued.
const MAX_GAP: u16 = 50;

/// What a packet shows of itself besides its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// An RTP packet's source and sequence number.
    Rtp {
        /// Synchronisation source.
        ssrc: u32,
        /// Sequence number.
        sequence: u16,
    },
    /// A datagram that shows nothing.
    Datagram,
    /// A packet from which no address is learned (RTCP on the RTP port).
    Nothing,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    address: SocketAddr,
    ssrc: u32,
    sequence: u16,
    count: u8,
}

/// The latch of one component of one side.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latch {
    signalled: Option<SocketAddr>,
    locked: Option<SocketAddr>,
    candidates: [Option<Candidate>; CANDIDATES],
    /// Which candidate is replaced next.
    turn: u8,
}

/// Whether a packet may pass, and whether it locked the latch.
pub(crate) type Admission = Result<Option<SocketAddr>, DropReason>;

impl Latch {
    /// Begins anew with what was signalled.
    pub(crate) fn reset(&mut self, signalled: Option<SocketAddr>) {
        *self = Latch {
            signalled,
            ..Latch::default()
        };
    }

    pub(crate) fn signalled(&self) -> Option<SocketAddr> {
        self.signalled
    }

    pub(crate) fn locked(&self) -> Option<SocketAddr> {
        self.locked
    }

    /// Where packets for this side go.
    pub(crate) fn destination(&self) -> Option<SocketAddr> {
        self.locked.or(self.signalled)
    }

    /// A packet from `source`.
    pub(crate) fn admit(
        &mut self,
        source: SocketAddr,
        latching: Latching,
        evidence: Evidence,
    ) -> Admission {
        if self.locked == Some(source) {
            return Ok(None);
        }
        if self.signalled == Some(source) {
            return Ok(self.lock(source));
        }
        let may_learn = match latching {
            Latching::Signalled => false,
            Latching::SameAddress(address) => source.ip() == address,
            Latching::Anywhere => true,
        };
        if self.locked.is_some() || !may_learn {
            return Err(DropReason::MediaStranger);
        }
        if self.learn(source, evidence) {
            Ok(self.lock(source))
        } else {
            Err(DropReason::MediaLearning)
        }
    }

    /// Whether a packet from `source` may be taken once it has proved to be the peer's (SRTP, with a tag that is right); `true`:
    /// it locks the latch then.
    pub(crate) fn may_prove(
        &self,
        source: SocketAddr,
        latching: Latching,
    ) -> Result<bool, DropReason> {
        if self.locked == Some(source) {
            return Ok(false);
        }
        if self.signalled == Some(source) {
            return Ok(true);
        }
        let may_learn = match latching {
            Latching::Signalled => false,
            Latching::SameAddress(address) => source.ip() == address,
            Latching::Anywhere => true,
        };
        match self.locked.is_none() && may_learn {
            true => Ok(true),
            false => Err(DropReason::MediaStranger),
        }
    }

    /// A packet from `source` that [`Latch::may_prove`] let through has proved it.
    pub(crate) fn proved(&mut self, source: SocketAddr) -> Option<SocketAddr> {
        self.lock(source)
    }

    /// A packet of RTCP on its own port: where it does not come from the signalled address, its host must be the one to
    /// which RTP is locked. Reports are too rare to wait for several.
    pub(crate) fn admit_rtcp(
        &mut self,
        source: SocketAddr,
        latching: Latching,
        rtp: Option<IpAddr>,
    ) -> Admission {
        if self.locked == Some(source) {
            return Ok(None);
        }
        if self.signalled == Some(source) {
            return Ok(self.lock(source));
        }
        if self.locked.is_some() || latching == Latching::Signalled {
            return Err(DropReason::MediaStranger);
        }
        match rtp {
            Some(address) if address == source.ip() => Ok(self.lock(source)),
            Some(_) => Err(DropReason::MediaStranger),
            None => Err(DropReason::MediaLearning),
        }
    }

    fn lock(&mut self, source: SocketAddr) -> Option<SocketAddr> {
        self.locked = Some(source);
        self.candidates = [None; CANDIDATES];
        self.locked
    }

    /// Counts a packet of an unknown address; whether it is enough now.
    fn learn(&mut self, source: SocketAddr, evidence: Evidence) -> bool {
        let (ssrc, sequence) = match evidence {
            Evidence::Rtp { ssrc, sequence } => (ssrc, sequence),
            Evidence::Datagram => (0, 0),
            Evidence::Nothing => return false,
        };
        let fresh = Candidate {
            address: source,
            ssrc,
            sequence,
            count: 1,
        };
        let known = self
            .candidates
            .iter_mut()
            .flatten()
            .find(|candidate| candidate.address == source);
        let Some(candidate) = known else {
            let turn = usize::from(self.turn);
            self.turn = ((turn + 1) % CANDIDATES) as u8;
            if let Some(slot) = self.candidates.get_mut(turn) {
                *slot = Some(fresh);
            }
            return false;
        };
        let gap = sequence.wrapping_sub(candidate.sequence);
        let continues = candidate.ssrc == ssrc
            && (evidence == Evidence::Datagram || (1..=MAX_GAP).contains(&gap));
        if !continues {
            *candidate = fresh;
            return false;
        }
        candidate.sequence = sequence;
        candidate.count += 1;
        candidate.count >= LATCH_PACKETS
    }
}
