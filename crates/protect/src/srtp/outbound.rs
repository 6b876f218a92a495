//! Protection of sent packets.

use super::keyring::{KeyEntry, KeyUse, Keyring};
use super::window::estimate;
use super::{
    ContextLimits, KeyError, MasterKey, SourceState, SrtpFailure, rtcp_sender, rtp_fields,
};
use crate::replay::Window;
use smallvec::SmallVec;

/// A source of sent packets.
struct OutboundSource {
    ssrc: u32,
    /// `None` until the first SRTP packet.
    rtp: Option<Window>,
    /// The initial rollover counter.
    rollover: u32,
    /// The next SRTCP index, before reduction modulo 2^31. A new key does not reset it (RFC 3711 section 3.2.1).
    rtcp: u64,
}

/// Protects RTP and RTCP packets (RFC 3711 sections 3.3 and 3.4).
///
/// The caller assigns sequence numbers. Because the keystream depends on them, a number that was used before is
/// rejected ([`SrtpFailure::IndexReused`]), even for the same packet: the relay must give a source that restarts other
/// numbers or another SSRC.
pub struct Outbound {
    ring: Keyring,
    active: usize,
    sources: SmallVec<[OutboundSource; 1]>,
    limits: ContextLimits,
}

impl Outbound {
    /// A context that protects with `master`.
    ///
    /// # Errors
    /// The key does not fit its suite.
    pub fn new(master: &MasterKey, limits: ContextLimits) -> Result<Outbound, KeyError> {
        Ok(Outbound {
            ring: Keyring::new(master)?,
            active: 0,
            sources: SmallVec::new(),
            limits,
        })
    }

    /// Adds a key for later use: by [`Outbound::activate`], or by its range when the index reaches it.
    ///
    /// # Errors
    /// Too many keys, or conflicting identifiers.
    pub fn add(&mut self, master: &MasterKey) -> Result<(), KeyError> {
        self.ring.add(master).map(|_| ())
    }

    /// Switches to the key with this identifier.
    ///
    /// # Errors
    /// [`KeyError::NoSuchKey`].
    pub fn activate(&mut self, mki: &[u8]) -> Result<(), KeyError> {
        self.active = self.ring.with_mki(mki).ok_or(KeyError::NoSuchKey)?;
        Ok(())
    }

    /// Switches to `master` and removes all other keys. Rollover counters and SRTCP indices continue (RFC 3711
    /// section 8.1).
    ///
    /// # Errors
    /// The key is invalid; the old ones are kept.
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

    /// Reads the data that the next RTP packet needs, to load it into the cache. The value has no meaning.
    pub fn prefetch(&self) -> u64 {
        let key = self
            .ring
            .keys
            .get(self.active)
            .map_or(0, KeyEntry::prefetch);
        let source = self.sources.first().and_then(|source| source.rtp.as_ref());
        key ^ source.map_or(0, |window| window.highest())
    }

    /// Consumption of the active key.
    pub fn key_use(&self) -> Option<KeyUse> {
        self.ring.keys.get(self.active).map(|key| key.used)
    }

    /// Upper bound of the bytes that protection adds with the present keys.
    pub fn overhead(&self) -> usize {
        let overheads = self
            .ring
            .keys
            .iter()
            .map(|key| key.rtcp().rtcp_overhead(key.mki.len()));
        overheads.max().unwrap_or(0)
    }

    /// Protects the first `length` bytes of `buffer`, an RTP packet; returns the length of the SRTP packet. On an
    /// error nothing has changed.
    ///
    /// # Errors
    /// [`SrtpFailure::NoRoom`] if `buffer` is too short, [`SrtpFailure::IndexReused`], [`SrtpFailure::KeyExhausted`],
    /// [`SrtpFailure::NoKey`], [`SrtpFailure::TooManySources`], [`SrtpFailure::Malformed`].
    pub fn protect_rtp(&mut self, buffer: &mut [u8], length: usize) -> Result<usize, SrtpFailure> {
        let fields = rtp_fields(buffer.get(..length).ok_or(SrtpFailure::Malformed)?)?;
        let position = self.find(fields.ssrc);
        let source = position.and_then(|at| self.sources.get(at));
        let index = match source.and_then(|source| source.rtp.as_ref()) {
            Some(window) => {
                let index = estimate(window.highest(), fields.sequence);
                let index = index.ok_or(if window.highest() >> 47 == 0 {
                    SrtpFailure::IndexReused
                } else {
                    SrtpFailure::KeyExhausted
                })?;
                window.check(index).map_err(|_| SrtpFailure::IndexReused)?;
                index
            }
            None => {
                let rollover = source.map_or(0, |source| source.rollover);
                u64::from(rollover) << 16 | u64::from(fields.sequence)
            }
        };
        if position.is_none() && self.sources.len() >= self.limits.sources {
            return Err(SrtpFailure::TooManySources);
        }
        let key = key_for(&mut self.ring, self.active, index)?;
        if key.used.srtp >= key.used.srtp_limit {
            return Err(SrtpFailure::KeyExhausted);
        }
        let (transform, mki) = key.rtp_at(index);
        let sealed = transform.protect_rtp(buffer, length, fields.ssrc, index, mki)?;
        key.used.srtp += 1;
        let size = self.limits.window;
        if let Some(source) = self.at_or_new(position, fields.ssrc) {
            match &mut source.rtp {
                Some(window) => window.accept(index),
                None => source.rtp = Some(Window::new(size, index)),
            }
        }
        Ok(sealed)
    }

    /// Protects the first `length` bytes of `buffer`, an RTCP packet; returns the length of the SRTCP packet. On an
    /// error nothing has changed.
    ///
    /// # Errors
    /// As [`Outbound::protect_rtp`], without [`SrtpFailure::IndexReused`].
    pub fn protect_rtcp(&mut self, buffer: &mut [u8], length: usize) -> Result<usize, SrtpFailure> {
        let ssrc = rtcp_sender(buffer.get(..length).ok_or(SrtpFailure::Malformed)?)?;
        let position = self.find(ssrc);
        let source = position.and_then(|at| self.sources.get(at));
        if position.is_none() && self.sources.len() >= self.limits.sources {
            return Err(SrtpFailure::TooManySources);
        }
        let next = source.map_or(0, |source| source.rtcp);
        let index = (next & 0x7fff_ffff) as u32;
        // SRTCP has no index range of its own: it uses the present key of the source's SRTP.
        let highest = source
            .and_then(|source| source.rtp.as_ref())
            .map_or(0, Window::highest);
        let key = key_for(&mut self.ring, self.active, highest)?;
        if key.used.srtcp >= key.used.srtcp_limit {
            return Err(SrtpFailure::KeyExhausted);
        }
        let (transform, mki) = key.rtcp_at(index);
        let sealed = transform.protect_rtcp(buffer, length, ssrc, index, mki)?;
        key.used.srtcp += 1;
        if let Some(source) = self.at_or_new(position, ssrc) {
            source.rtcp = next + 1;
        }
        Ok(sealed)
    }

    /// Sets the initial rollover counter of a source; `false` if the source has sent packets already, or the table is
    /// full.
    pub fn set_rollover(&mut self, ssrc: u32, rollover: u32) -> bool {
        let position = self.find(ssrc);
        match self.at_or_new(position, ssrc) {
            Some(source) if source.rtp.is_none() => {
                source.rollover = rollover;
                true
            }
            _ => false,
        }
    }

    /// The state of all sources, in order of appearance.
    pub fn sources(&self) -> impl Iterator<Item = SourceState> + '_ {
        self.sources.iter().map(|source| SourceState {
            ssrc: source.ssrc,
            rtp: source.rtp.as_ref().map(Window::highest),
            rtcp: source.rtcp.checked_sub(1),
        })
    }

    /// Restores the state of another context: indices up to its highest are not used again. It never goes back.
    /// `false` if the table is full.
    pub fn restore(&mut self, state: SourceState) -> bool {
        let position = self.find(state.ssrc);
        let size = self.limits.window;
        let Some(source) = self.at_or_new(position, state.ssrc) else {
            return false;
        };
        let current = source.rtp.as_ref().map(Window::highest);
        if let Some(highest) = state.rtp.filter(|highest| Some(*highest) > current) {
            source.rtp = Some(Window::restored(size, highest));
        }
        source.rtcp = source.rtcp.max(state.rtcp.map_or(0, |last| last + 1));
        true
    }

    fn find(&self, ssrc: u32) -> Option<usize> {
        self.sources.iter().position(|source| source.ssrc == ssrc)
    }

    fn at_or_new(&mut self, position: Option<usize>, ssrc: u32) -> Option<&mut OutboundSource> {
        let at = match position {
            Some(at) => at,
            None if self.sources.len() >= self.limits.sources => return None,
            None => {
                self.sources.push(OutboundSource {
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

/// The active key, or the key whose range contains `index` if keys have ranges.
#[inline]
fn key_for(ring: &mut Keyring, active: usize, index: u64) -> Result<&mut KeyEntry, SrtpFailure> {
    let chosen = match ring.keys.get(active) {
        Some(key) if !key.has_range() => active,
        _ => ring
            .keys
            .iter()
            .position(|key| key.has_range() && key.covers(index))
            .ok_or(SrtpFailure::NoKey)?,
    };
    ring.keys.get_mut(chosen).ok_or(SrtpFailure::NoKey)
}
