//! What we seal with.

use super::keyring::{Key, KeyUse, Keyring};
use super::window::{Window, estimate};
use super::{ContextLimits, Failure, KeyError, MasterKey, SourceState, rtcp_sender, rtp_fields};
use smallvec::SmallVec;

/// A source that we seal packets of.
struct Source {
    ssrc: u32,
    /// `None` until the first SRTP packet.
    rtp: Option<Window>,
    /// The rollover counter to begin with.
    rollover: u32,
    /// The next SRTCP index, not yet modulo 2^31. A new key does not set it back (RFC 3711 section 3.2.1).
    rtcp: u64,
}

/// Seals RTP and RTCP packets (RFC 3711 sections 3.3 and 3.4).
///
/// Sequence numbers are the caller's. Because the keystream hangs on them, a number that was sealed before is refused
/// ([`Failure::IndexReused`]), even when the packet is the same: a source that starts over must be given other numbers or
/// another SSRC by whoever relays it.
pub struct Outbound {
    ring: Keyring,
    active: usize,
    sources: SmallVec<[Source; 1]>,
    limits: ContextLimits,
}

impl Outbound {
    /// A context that seals with `master`.
    ///
    /// # Errors
    /// A key that does not fit its suite.
    pub fn new(master: &MasterKey, limits: ContextLimits) -> Result<Outbound, KeyError> {
        Ok(Outbound {
            ring: Keyring::new(master)?,
            active: 0,
            sources: SmallVec::new(),
            limits,
        })
    }

    /// Adds a key that is not used yet: by [`Outbound::activate`], or by its range as the index gets there.
    ///
    /// # Errors
    /// Too many keys, or identifiers in conflict.
    pub fn add(&mut self, master: &MasterKey) -> Result<(), KeyError> {
        self.ring.add(master).map(|_| ())
    }

    /// Seals with the key of this identifier from now on.
    ///
    /// # Errors
    /// [`KeyError::NoSuchKey`].
    pub fn activate(&mut self, mki: &[u8]) -> Result<(), KeyError> {
        self.active = self.ring.with_mki(mki).ok_or(KeyError::NoSuchKey)?;
        Ok(())
    }

    /// Seals with `master` from now on and forgets every other key. Rollover counters and SRTCP indices go on (RFC 3711
    /// section 8.1).
    ///
    /// # Errors
    /// A key that does not fit; the old ones stay then.
    pub fn rekey(&mut self, master: &MasterKey) -> Result<(), KeyError> {
        let kept = std::mem::take(&mut self.ring.keys);
        match self.ring.add(master) {
            Ok(at) => {
                self.active = at;
                Ok(())
            }
            Err(error) => {
                self.ring.keys = kept;
                Err(error)
            }
        }
    }

    /// Reads what the next RTP packet will need, so that it is in the cache. The value means nothing.
    pub fn read_ahead(&self) -> u64 {
        let key = self.ring.keys.get(self.active).map_or(0, Key::read_ahead);
        let source = self.sources.first().and_then(|source| source.rtp.as_ref());
        key ^ source.map_or(0, |window| window.highest())
    }

    /// How far the active key is used up.
    pub fn key_use(&self) -> Option<KeyUse> {
        self.ring.keys.get(self.active).map(|key| key.used)
    }

    /// The most that sealing adds with the keys that there are.
    pub fn overhead(&self) -> usize {
        let overheads = self
            .ring
            .keys
            .iter()
            .map(|key| key.rtcp().rtcp_overhead(key.mki.len()));
        overheads.max().unwrap_or(0)
    }

    /// Seals the first `length` bytes of `buffer`, an RTP packet; gives the length of the SRTP packet. Where it fails, nothing
    /// has changed.
    ///
    /// # Errors
    /// [`Failure::NoRoom`] where `buffer` is too short behind the packet, [`Failure::IndexReused`], [`Failure::KeyExhausted`],
    /// [`Failure::NoKey`], [`Failure::TooManySources`], [`Failure::Malformed`].
    pub fn protect_rtp(&mut self, buffer: &mut [u8], length: usize) -> Result<usize, Failure> {
        let fields = rtp_fields(buffer.get(..length).ok_or(Failure::Malformed)?)?;
        let known = self.find(fields.ssrc);
        let source = known.and_then(|at| self.sources.get(at));
        let index = match source.and_then(|source| source.rtp.as_ref()) {
            Some(window) => {
                let index = estimate(window.highest(), fields.sequence);
                let index = index.ok_or(if window.highest() >> 47 == 0 {
                    Failure::IndexReused
                } else {
                    Failure::KeyExhausted
                })?;
                window.check(index).map_err(|_| Failure::IndexReused)?;
                index
            }
            None => {
                let rollover = source.map_or(0, |source| source.rollover);
                u64::from(rollover) << 16 | u64::from(fields.sequence)
            }
        };
        if known.is_none() && self.sources.len() >= self.limits.sources {
            return Err(Failure::TooManySources);
        }
        let key = key_for(&mut self.ring, self.active, index)?;
        if key.used.srtp >= key.used.srtp_limit {
            return Err(Failure::KeyExhausted);
        }
        let (transform, mki) = key.rtp_at(index);
        let sealed = transform.seal_rtp(buffer, length, fields.ssrc, index, mki)?;
        key.used.srtp += 1;
        let size = self.limits.window;
        if let Some(source) = self.at_or_new(known, fields.ssrc) {
            match &mut source.rtp {
                Some(window) => window.accept(index),
                None => source.rtp = Some(Window::new(size, index)),
            }
        }
        Ok(sealed)
    }

    /// Seals the first `length` bytes of `buffer`, an RTCP packet; gives the length of the SRTCP packet. Where it fails, nothing
    /// has changed.
    ///
    /// # Errors
    /// As [`Outbound::protect_rtp`], without [`Failure::IndexReused`].
    pub fn protect_rtcp(&mut self, buffer: &mut [u8], length: usize) -> Result<usize, Failure> {
        let ssrc = rtcp_sender(buffer.get(..length).ok_or(Failure::Malformed)?)?;
        let known = self.find(ssrc);
        let source = known.and_then(|at| self.sources.get(at));
        if known.is_none() && self.sources.len() >= self.limits.sources {
            return Err(Failure::TooManySources);
        }
        let next = source.map_or(0, |source| source.rtcp);
        let index = (next & 0x7fff_ffff) as u32;
        // SRTCP has no range of its own: its key is the one that the source's SRTP has now.
        let highest = source
            .and_then(|source| source.rtp.as_ref())
            .map_or(0, Window::highest);
        let key = key_for(&mut self.ring, self.active, highest)?;
        if key.used.srtcp >= key.used.srtcp_limit {
            return Err(Failure::KeyExhausted);
        }
        let (transform, mki) = key.rtcp_at(index);
        let sealed = transform.seal_rtcp(buffer, length, ssrc, index, mki)?;
        key.used.srtcp += 1;
        if let Some(source) = self.at_or_new(known, ssrc) {
            source.rtcp = next + 1;
        }
        Ok(sealed)
    }

    /// The rollover counter that a source begins with; `false` where it has begun, or the table is full.
    pub fn set_rollover(&mut self, ssrc: u32, rollover: u32) -> bool {
        let known = self.find(ssrc);
        match self.at_or_new(known, ssrc) {
            Some(source) if source.rtp.is_none() => {
                source.rollover = rollover;
                true
            }
            _ => false,
        }
    }

    /// Where every source stands, in order of appearance.
    pub fn sources(&self) -> impl Iterator<Item = SourceState> + '_ {
        self.sources.iter().map(|source| SourceState {
            ssrc: source.ssrc,
            rtp: source.rtp.as_ref().map(Window::highest),
            rtcp: source.rtcp.checked_sub(1),
        })
    }

    /// Goes on where another context stood: nothing at or below its indices is sealed again. Never goes back. `false` where the
    /// table is full.
    pub fn restore(&mut self, state: SourceState) -> bool {
        let known = self.find(state.ssrc);
        let size = self.limits.window;
        let Some(source) = self.at_or_new(known, state.ssrc) else {
            return false;
        };
        let stands = source.rtp.as_ref().map(Window::highest);
        if let Some(highest) = state.rtp.filter(|highest| Some(*highest) > stands) {
            source.rtp = Some(Window::restored(size, highest));
        }
        source.rtcp = source.rtcp.max(state.rtcp.map_or(0, |last| last + 1));
        true
    }

    fn find(&self, ssrc: u32) -> Option<usize> {
        self.sources.iter().position(|source| source.ssrc == ssrc)
    }

    fn at_or_new(&mut self, known: Option<usize>, ssrc: u32) -> Option<&mut Source> {
        let at = match known {
            Some(at) => at,
            None if self.sources.len() >= self.limits.sources => return None,
            None => {
                self.sources.push(Source {
                    ssrc,
                    rtp: None,
                    rollover: 0,
                    rtcp: 0,
                });
                self.sources.len() - 1
            }
        };
        self.sources.get_mut(at)
    }
}

/// The active key, or the one whose range covers `index` where keys are chosen by index.
#[inline]
fn key_for(ring: &mut Keyring, active: usize, index: u64) -> Result<&mut Key, Failure> {
    let chosen = match ring.keys.get(active) {
        Some(key) if !key.has_range() => active,
        _ => ring
            .keys
            .iter()
            .position(|key| key.has_range() && key.covers(index))
            .ok_or(Failure::NoKey)?,
    };
    ring.keys.get_mut(chosen).ok_or(Failure::NoKey)
}
