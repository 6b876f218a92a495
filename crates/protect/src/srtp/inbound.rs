//! Unprotection of received packets.

use super::keyring::{KeyEntry, KeyUse, Keyring};
use super::window::estimate;
use super::{
    ContextLimits, KeyError, MAX_KEYS, MasterKey, SourceState, SrtpFailure, rtcp_sender, rtp_fields,
};
use crate::replay::{Stale, Window};
use smallvec::SmallVec;

/// Packets unprotected with a newer key after which an older one without an identifier is removed: about twenty
/// seconds of voice. Until then both keys are accepted.
const KEY_OVERLAP_PACKETS: u32 = 1024;

/// One direction of a source: its replay window, and its latest verified key.
struct SourceDirection {
    window: Window,
    key: u32,
    /// The highest index of earlier windows, which ended when the sender reset its counters with a new key.
    former: Option<u64>,
}

impl SourceDirection {
    /// The highest index so far.
    fn highest(&self) -> Option<u64> {
        self.former.max(Some(self.window.highest()))
    }

    /// Whether a packet with this index may have been received under a key that returns.
    fn may_be_recorded(&self, key: &KeyEntry, index: u64) -> bool {
        key.is_known && self.former.is_some_and(|former| index <= former)
    }
}

/// A source of received packets.
struct InboundSource {
    ssrc: u32,
    rtp: Option<SourceDirection>,
    rtcp: Option<SourceDirection>,
    /// The initial rollover counter.
    rollover: u32,
}

/// A possible index of a packet.
#[derive(Clone, Copy)]
struct IndexGuess {
    index: u64,
    /// Whether it starts a new window of the source instead of continuing the present one.
    new_window: bool,
}

type IndexGuesses = SmallVec<[IndexGuess; 4]>;

/// Unprotects SRTP and SRTCP packets (RFC 3711 sections 3.3 and 3.4).
///
/// A source enters the table with its first authenticated packet. Its rollover counter is assumed to be zero, then
/// one if the sequence number is low (the packets before the wrap may be lost); [`Inbound::set_rollover`] sets
/// another value.
pub struct Inbound {
    ring: Keyring,
    /// The key that was last verified.
    current: usize,
    sources: SmallVec<[InboundSource; 1]>,
    limits: ContextLimits,
    /// A copy of the packet while it may have to be tried with another key.
    spare: Vec<u8>,
}

impl Inbound {
    /// A context that unprotects with `master`.
    ///
    /// # Errors
    /// The key does not fit its suite.
    pub fn new(master: &MasterKey, limits: ContextLimits) -> Result<Inbound, KeyError> {
        Ok(Inbound {
            ring: Keyring::new(master)?,
            current: 0,
            sources: SmallVec::new(),
            limits,
            spare: Vec::new(),
        })
    }

    /// Adds a key to the present ones: one with another identifier or range, or the next one of a re-keying. In the
    /// last case packets under both are accepted until [`Inbound::retire`], or until the new key has verified a
    /// thousand.
    ///
    /// A sender that resets its rollover counters with a new key is supported, once for each source and key. With a key
    /// that the context had before, counters continue: otherwise recorded packets would be accepted again, and a sender
    /// that resets them repeats its keystream (RFC 3711 section 9.1).
    ///
    /// # Errors
    /// Too many keys, or conflicting identifiers.
    pub fn add(&mut self, master: &MasterKey) -> Result<(), KeyError> {
        self.ring.add(master).map(|_| ())
    }

    /// Adds a key of a re-keying as [`Inbound::add`]; present keys whose identifiers conflict with its own are removed,
    /// and the least used one if there are too many. The state of the sources is kept: rollover counters continue (RFC
    /// 3711 section 8.1).
    ///
    /// # Errors
    /// The key does not fit its suite; nothing has changed then.
    pub fn replace(&mut self, master: &MasterKey) -> Result<(), KeyError> {
        let current = self.ring.keys.get(self.current).map(|key| key.id);
        self.ring.replace(master)?;
        let keys = &self.ring.keys;
        let at = keys.iter().position(|key| Some(key.id) == current);
        self.current = at.unwrap_or(keys.len().saturating_sub(1));
        Ok(())
    }

    /// Removes all keys except the newest.
    pub fn retire(&mut self) {
        let newest = self.ring.keys.iter().map(|key| key.id).max();
        self.ring.keys.retain(|key| Some(key.id) == newest);
        self.current = 0;
    }

    /// Reads the data that the next RTP packet needs, to load it into the cache. The value has no meaning.
    pub fn prefetch(&self) -> u64 {
        let key = self
            .ring
            .keys
            .get(self.current)
            .map_or(0, KeyEntry::prefetch);
        let source = self.sources.first().and_then(|source| source.rtp.as_ref());
        key ^ source.map_or(0, |flow| flow.window.highest())
    }

    /// Consumption of the key that was last verified.
    pub fn key_use(&self) -> Option<KeyUse> {
        self.ring.keys.get(self.current).map(|key| key.used)
    }

    /// Number of keys in use.
    pub fn keys(&self) -> usize {
        self.ring.keys.len()
    }

    /// Unprotects an SRTP packet in place; returns the length of the RTP packet. On an error the contents of `packet`
    /// are undefined.
    ///
    /// # Errors
    /// Any [`SrtpFailure`] but [`SrtpFailure::NoRoom`] and [`SrtpFailure::IndexReused`].
    pub fn unprotect_rtp(&mut self, packet: &mut [u8]) -> Result<usize, SrtpFailure> {
        let fields = rtp_fields(packet)?;
        let position = self.find(fields.ssrc);
        if position.is_none() && self.sources.len() >= self.limits.sources {
            return Err(SrtpFailure::TooManySources);
        }
        let mut failures = MostSpecificFailure::new();
        let several = self.ring.keys.len() > 1;
        for at in self.trial_order() {
            let Some(key) = self.ring.keys.get_mut(at) else {
                continue;
            };
            if !key.mki.is_empty() && key.rtp().mki(packet, key.mki.len()) != Some(&key.mki) {
                failures.add(SrtpFailure::UnknownMki);
                continue;
            }
            let source = position.and_then(|position| self.sources.get(position));
            let flow = source.and_then(|source| source.rtp.as_ref());
            let guesses = guesses(source, key, fields.sequence);
            for (nth, guess) in guesses.iter().enumerate() {
                if let Err(failure) = check_guess(key, flow, *guess) {
                    failures.add(failure);
                    continue;
                }
                let (transform, mki) = key.rtp_at(guess.index);
                // A failed attempt with an AEAD cipher destroys the packet for the next one.
                let again = several || nth + 1 < guesses.len();
                let spare = (again && transform.destroys_on_failure()).then_some(&mut self.spare);
                let spare = spare.map(|spare| save_copy(spare, packet));
                match transform.unprotect_rtp(packet, fields.ssrc, guess.index, mki.len()) {
                    Ok(length) => {
                        key.used.srtp += 1;
                        self.accept_rtp(at, position, fields.ssrc, *guess);
                        return Ok(length);
                    }
                    Err(failure) => failures.add(failure),
                }
                if let Some(spare) = spare {
                    packet.copy_from_slice(spare);
                }
            }
        }
        Err(failures.failure())
    }

    /// Unprotects an SRTCP packet in place; returns the length of the RTCP packet. On an error the contents of
    /// `packet` are undefined.
    ///
    /// # Errors
    /// As [`Inbound::unprotect_rtp`].
    pub fn unprotect_rtcp(&mut self, packet: &mut [u8]) -> Result<usize, SrtpFailure> {
        let ssrc = rtcp_sender(packet)?;
        let position = self.find(ssrc);
        if position.is_none() && self.sources.len() >= self.limits.sources {
            return Err(SrtpFailure::TooManySources);
        }
        let mut failures = MostSpecificFailure::new();
        let several = self.ring.keys.len() > 1;
        for at in self.trial_order() {
            let Some(key) = self.ring.keys.get_mut(at) else {
                continue;
            };
            let mki = key.mki.len();
            if mki > 0 && key.rtcp().mki(packet, mki) != Some(&key.mki) {
                failures.add(SrtpFailure::UnknownMki);
                continue;
            }
            let (index, encrypted) = match key.rtcp().rtcp_index(packet, mki) {
                Ok(word) => word,
                Err(failure) => {
                    failures.add(failure);
                    continue;
                }
            };
            let flow = position
                .and_then(|position| self.sources.get(position))
                .and_then(|source| source.rtcp.as_ref());
            let new_window = match flow {
                Some(flow) if flow.may_be_recorded(key, u64::from(index)) => {
                    failures.add(SrtpFailure::Replayed);
                    continue;
                }
                // A key that the source has not used yet may begin at any index: no packet under it was accepted.
                Some(flow) if key.id <= flow.key || key.is_known => {
                    if let Err(stale) = flow.window.check(u64::from(index)) {
                        failures.add(stale.into());
                        continue;
                    }
                    false
                }
                Some(flow) => flow.window.check(u64::from(index)).is_err(),
                None => true,
            };
            if key.used.srtcp >= key.used.srtcp_limit {
                failures.add(SrtpFailure::KeyExhausted);
                continue;
            }
            let (transform, _) = key.rtcp_at(index);
            let spare = (several && transform.destroys_on_failure()).then_some(&mut self.spare);
            let spare = spare.map(|spare| save_copy(spare, packet));
            match transform.unprotect_rtcp(packet, ssrc, index, encrypted, mki) {
                Ok(length) => {
                    key.used.srtcp += 1;
                    self.accept_rtcp(at, position, ssrc, index, new_window);
                    return Ok(length);
                }
                Err(failure) => failures.add(failure),
            }
            if let Some(spare) = spare {
                packet.copy_from_slice(spare);
            }
        }
        Err(failures.failure())
    }

    /// Sets the present rollover counter of a source, for a late joiner. Possible before the first packet, or to a
    /// higher value; `false` otherwise, or if the table is full.
    pub fn set_rollover(&mut self, ssrc: u32, rollover: u32) -> bool {
        let position = self.find(ssrc);
        let size = self.limits.window;
        let Some(source) = self.at_or_new(position, ssrc) else {
            return false;
        };
        match &mut source.rtp {
            Some(flow) if flow.window.highest() >> 16 >= u64::from(rollover) => return false,
            Some(flow) => flow.window = Window::restored(size, (u64::from(rollover) << 16) - 1),
            None => source.rollover = rollover,
        }
        true
    }

    /// The state of all sources, in order of appearance.
    pub fn sources(&self) -> impl Iterator<Item = SourceState> + '_ {
        let highest =
            |flow: &Option<SourceDirection>| flow.as_ref().map(|flow| flow.window.highest());
        self.sources.iter().map(move |source| SourceState {
            ssrc: source.ssrc,
            rtp: highest(&source.rtp),
            rtcp: highest(&source.rtcp),
        })
    }

    /// Restores the state of another context with these keys: indices up to its highest are not accepted again. It
    /// never goes back. `false` if the table is full.
    pub fn restore(&mut self, state: SourceState) -> bool {
        let position = self.find(state.ssrc);
        let size = self.limits.window;
        let key = self.ring.keys.iter().map(|key| key.id).max().unwrap_or(0);
        let Some(source) = self.at_or_new(position, state.ssrc) else {
            return false;
        };
        let forward = |flow: &mut Option<SourceDirection>, state: Option<u64>| {
            let stands = flow.as_ref().map(|flow| flow.window.highest());
            if let Some(highest) = state.filter(|highest| Some(*highest) > stands) {
                let window = Window::restored(size, highest);
                let former = flow.as_ref().and_then(|flow| flow.former);
                *flow = Some(SourceDirection {
                    window,
                    key,
                    former,
                });
            }
        };
        forward(&mut source.rtp, state.rtp);
        forward(&mut source.rtcp, state.rtcp);
        true
    }

    /// Removes a source that has ended. Its replay protection is removed with it, so it must be called only after an
    /// authenticated BYE, and only to make room.
    pub fn forget(&mut self, ssrc: u32) {
        self.sources.retain(|source| source.ssrc != ssrc);
    }

    fn find(&self, ssrc: u32) -> Option<usize> {
        self.sources.iter().position(|source| source.ssrc == ssrc)
    }

    /// The order in which keys are tried: the last verified one, then the others from new to old.
    fn trial_order(&self) -> SmallVec<[usize; MAX_KEYS]> {
        let current = (self.current < self.ring.keys.len()).then_some(self.current);
        let others = (0..self.ring.keys.len())
            .rev()
            .filter(|at| Some(*at) != current);
        current.into_iter().chain(others).collect()
    }

    fn accept_rtp(&mut self, at: usize, position: Option<usize>, ssrc: u32, guess: IndexGuess) {
        let size = self.limits.window;
        let id = self.record_verified(at);
        let Some(source) = self.at_or_new(position, ssrc) else {
            return;
        };
        match &mut source.rtp {
            Some(flow) if !guess.new_window => {
                flow.window.accept(guess.index);
                flow.key = flow.key.max(id);
            }
            flow => {
                *flow = Some(SourceDirection {
                    window: Window::new(size, guess.index),
                    key: id,
                    former: flow.as_ref().and_then(SourceDirection::highest),
                });
            }
        }
    }

    fn accept_rtcp(
        &mut self,
        at: usize,
        position: Option<usize>,
        ssrc: u32,
        index: u32,
        new_window: bool,
    ) {
        let size = self.limits.window;
        let id = self.record_verified(at);
        let Some(source) = self.at_or_new(position, ssrc) else {
            return;
        };
        match &mut source.rtcp {
            Some(flow) if !new_window => {
                flow.window.accept(u64::from(index));
                flow.key = flow.key.max(id);
            }
            flow => {
                *flow = Some(SourceDirection {
                    window: Window::new(size, u64::from(index)),
                    key: id,
                    former: flow.as_ref().and_then(SourceDirection::highest),
                });
            }
        }
    }

    /// Records that the key at `at` verified a packet, and removes older ones without an identifier after
    /// [`KEY_OVERLAP_PACKETS`] packets; returns its number.
    fn record_verified(&mut self, at: usize) -> u32 {
        let Some(key) = self.ring.keys.get_mut(at) else {
            return 0;
        };
        let id = key.id;
        self.current = at;
        if self.ring.keys.len() == 1 {
            return id;
        }
        for (nth, key) in self.ring.keys.iter_mut().enumerate() {
            if nth == at {
                key.idle = 0;
            } else if key.id < id && key.mki.is_empty() && !key.has_range() {
                key.idle += 1;
            }
        }
        if self
            .ring
            .keys
            .iter()
            .any(|key| key.idle >= KEY_OVERLAP_PACKETS)
        {
            self.ring.keys.retain(|key| key.idle < KEY_OVERLAP_PACKETS);
            let places = &self.ring.keys;
            self.current = places.iter().position(|key| key.id == id).unwrap_or(0);
        }
        id
    }

    fn at_or_new(&mut self, position: Option<usize>, ssrc: u32) -> Option<&mut InboundSource> {
        let at = match position {
            Some(at) => at,
            None if self.sources.len() >= self.limits.sources => return None,
            None => {
                self.sources.push(InboundSource {
                    ssrc,
                    rtp: None,
                    rtcp: None,
                    rollover: 0,
                });
                self.sources.len() - 1
            }
        };
        self.sources.get_mut(at)
    }
}

/// Copies `packet` to `spare`, whose memory is reused.
fn save_copy<'s>(spare: &'s mut Vec<u8>, packet: &[u8]) -> &'s [u8] {
    spare.clear();
    spare.extend_from_slice(packet);
    spare
}

/// The possible indices of a sequence number, likeliest first.
#[inline]
fn guesses(source: Option<&InboundSource>, key: &KeyEntry, sequence: u16) -> IndexGuesses {
    let mut guesses = IndexGuesses::new();
    let flow = source.and_then(|source| source.rtp.as_ref());
    if let Some(flow) = flow {
        if let Some(index) = estimate(flow.window.highest(), sequence) {
            guesses.push(IndexGuess {
                index,
                new_window: false,
            });
        }
        // Only a key that the source has not used yet may start a new window: no packet under it was accepted before.
        if key.id <= flow.key {
            return guesses;
        }
        if key.is_known {
            // The counters that were in use with it may continue.
            let index = flow.former.and_then(|former| estimate(former, sequence));
            guesses.extend(index.map(|index| IndexGuess {
                index,
                new_window: true,
            }));
            return guesses;
        }
    }
    let rollover = match flow {
        None => source.map_or(0, |source| source.rollover),
        Some(_) => 0,
    };
    for rollover in [Some(rollover), rollover.checked_add(1)] {
        let Some(rollover) = rollover else { continue };
        let index = u64::from(rollover) << 16 | u64::from(sequence);
        guesses.push(IndexGuess {
            index,
            new_window: true,
        });
        if sequence >= 0x8000 {
            break;
        }
    }
    guesses
}

/// Whether an index may be tried with a key.
#[inline]
fn check_guess(
    key: &KeyEntry,
    flow: Option<&SourceDirection>,
    guess: IndexGuess,
) -> Result<(), SrtpFailure> {
    if !key.covers(guess.index) {
        return Err(SrtpFailure::NoKey);
    }
    if key.used.srtp >= key.used.srtp_limit {
        return Err(SrtpFailure::KeyExhausted);
    }
    match flow {
        Some(flow) if flow.may_be_recorded(key, guess.index) => Err(SrtpFailure::Replayed),
        // Without tags a replay cannot be distinguished from a forgery, so there is no replay protection (RFC 3711
        // section 3.3.2).
        Some(flow) if !guess.new_window && key.rtp().authenticates() => {
            flow.window.check(guess.index).map_err(Stale::into)
        }
        _ => Ok(()),
    }
}

/// The most specific failure of several attempts.
struct MostSpecificFailure(Option<SrtpFailure>);

impl MostSpecificFailure {
    fn new() -> MostSpecificFailure {
        MostSpecificFailure(None)
    }

    fn add(&mut self, failure: SrtpFailure) {
        if self.0.is_none_or(|worst| rank(failure) > rank(worst)) {
            self.0 = Some(failure);
        }
    }

    fn failure(&self) -> SrtpFailure {
        self.0.unwrap_or(SrtpFailure::NoKey)
    }
}

fn rank(failure: SrtpFailure) -> u8 {
    match failure {
        SrtpFailure::NoRoom | SrtpFailure::IndexReused | SrtpFailure::TooManySources => 0,
        SrtpFailure::UnknownMki => 1,
        SrtpFailure::Malformed => 2,
        SrtpFailure::NoKey => 3,
        SrtpFailure::KeyExhausted => 4,
        SrtpFailure::Authentication => 5,
        SrtpFailure::TooOld => 6,
        SrtpFailure::Replayed => 7,
    }
}
