//! Latching: learns the address of a side from its packets (symmetric RTP, RFC 4961, RFC 7362).

use super::plan::Latching;
use engine::DropReason;
use std::net::{IpAddr, SocketAddr};

/// Packets in sequence, from one address and one source, after which the address is latched.
pub const LATCH_PACKETS: u8 = 3;
/// Addresses that are evaluated at the same time.
const MAX_CANDIDATES: usize = 3;
/// The largest gap in sequence numbers that still counts as a continuation.
const MAX_GAP: u16 = 50;

/// Evidence of a packet that its sender is the peer, beside its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// Source and sequence number of an RTP packet.
    Rtp {
        /// Synchronisation source.
        ssrc: u32,
        /// Sequence number.
        sequence: u16,
    },
    /// A datagram of another protocol, without evidence.
    Datagram,
    /// A packet that does not lead to latching (RTCP on the RTP port).
    Nothing,
}

#[derive(Clone, Copy, Debug)]
struct LatchCandidate {
    address: SocketAddr,
    ssrc: u32,
    sequence: u16,
    count: u8,
}

/// The latch of one component of a side.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latch {
    signalled: Option<SocketAddr>,
    locked: Option<SocketAddr>,
    /// Packets of the locked address that close the learning of another one; 0: no other is learned.
    relearning: u8,
    candidates: [Option<LatchCandidate>; MAX_CANDIDATES],
    /// Index of the candidate that is replaced next.
    next_candidate: u8,
}

/// `Ok` if the packet is accepted, with the address if this packet latched it.
pub(crate) type Admission = Result<Option<SocketAddr>, DropReason>;

impl Latch {
    /// Resets the latch to a signalled address.
    pub(crate) fn reset(&mut self, signalled: Option<SocketAddr>) {
        *self = Latch {
            signalled,
            ..Latch::default()
        };
    }

    /// Lets another permitted address replace the locked one, once: a phone's port at its NAT may be another after a
    /// pause. The locked address stays valid, and ends the learning by as many packets as another one needs. Nothing is
    /// learned if it is the signalled one.
    pub(crate) fn relearn(&mut self) {
        if self.locked.is_some() && self.locked != self.signalled {
            self.relearning = LATCH_PACKETS;
            self.candidates = [None; MAX_CANDIDATES];
        }
    }

    /// Whether an address may be learned.
    fn is_open(&self) -> bool {
        self.locked.is_none() || self.relearning > 0
    }

    pub(crate) fn signalled(&self) -> Option<SocketAddr> {
        self.signalled
    }

    pub(crate) fn locked(&self) -> Option<SocketAddr> {
        self.locked
    }

    /// The locked address, once no other one may be learned.
    pub(crate) fn settled(&self) -> Option<SocketAddr> {
        self.locked.filter(|_| !self.is_open())
    }

    /// Destination of packets to this side.
    pub(crate) fn destination(&self) -> Option<SocketAddr> {
        self.locked.or(self.signalled)
    }

    /// Checks a packet from `source`.
    pub(crate) fn admit(
        &mut self,
        source: SocketAddr,
        latching: Latching,
        evidence: Evidence,
    ) -> Admission {
        if self.locked == Some(source) {
            if self.relearning > 0 && evidence != Evidence::Nothing {
                self.relearning -= 1;
            }
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
        if !self.is_open() || !may_learn {
            return Err(DropReason::MediaUnexpectedSource);
        }
        if self.count_candidate(source, evidence) {
            Ok(self.lock(source))
        } else {
            Err(DropReason::MediaLatching)
        }
    }

    /// Checks whether an SRTP packet from `source` may be accepted once its authentication tag is verified. `true`: the
    /// latch is locked to `source` then.
    pub(crate) fn may_authenticate(
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
        match self.is_open() && may_learn {
            true => Ok(true),
            false => Err(DropReason::MediaUnexpectedSource),
        }
    }

    /// Locks the latch to the source of an authenticated packet that [`Latch::may_authenticate`] allowed.
    pub(crate) fn lock_authenticated(&mut self, source: SocketAddr) -> Option<SocketAddr> {
        self.lock(source)
    }

    /// Checks an RTCP packet on a separate port: it must come from the signalled address, or from the host to which RTP
    /// is latched. RTCP is too rare to wait for several packets.
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
        if !self.is_open() || latching == Latching::Signalled {
            return Err(DropReason::MediaUnexpectedSource);
        }
        match rtp {
            Some(address) if address == source.ip() => Ok(self.lock(source)),
            Some(_) => Err(DropReason::MediaUnexpectedSource),
            None => Err(DropReason::MediaLatching),
        }
    }

    fn lock(&mut self, source: SocketAddr) -> Option<SocketAddr> {
        self.locked = Some(source);
        self.relearning = 0;
        self.candidates = [None; MAX_CANDIDATES];
        self.locked
    }

    /// Counts a packet from an unknown address. Returns whether the address can be latched.
    fn count_candidate(&mut self, source: SocketAddr, evidence: Evidence) -> bool {
        let (ssrc, sequence) = match evidence {
            Evidence::Rtp { ssrc, sequence } => (ssrc, sequence),
            Evidence::Datagram => (0, 0),
            Evidence::Nothing => return false,
        };
        let new_candidate = LatchCandidate {
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
            let next_candidate = usize::from(self.next_candidate);
            self.next_candidate = ((next_candidate + 1) % MAX_CANDIDATES) as u8;
            if let Some(slot) = self.candidates.get_mut(next_candidate) {
                *slot = Some(new_candidate);
            }
            return false;
        };
        let gap = sequence.wrapping_sub(candidate.sequence);
        let continues = candidate.ssrc == ssrc
            && (evidence == Evidence::Datagram || (1..=MAX_GAP).contains(&gap));
        if !continues {
            *candidate = new_candidate;
            return false;
        }
        candidate.sequence = sequence;
        candidate.count += 1;
        candidate.count >= LATCH_PACKETS
    }
}
