//! What we open with.

use super::keyring::{Key, KeyUse, Keyring};
use super::window::{Stale, Window, estimate};
use super::{
    ContextLimits, Failure, KeyError, MAX_KEYS, MasterKey, SourceState, rtcp_sender, rtp_fields,
};
use smallvec::SmallVec;

/// Packets that a newer key opens before an older one without an identifier is forgotten: about twenty seconds of voice. Until
/// then packets sealed with either are opened.
const OVERLAP: u32 = 1024;

/// One direction of a source: what was taken in, and the key that last proved right.
struct Flow {
    window: Window,
    key: u32,
}

/// A source that we open packets of.
struct Source {
    ssrc: u32,
    rtp: Option<Flow>,
    rtcp: Option<Flow>,
    /// The rollover counter to begin with.
    rollover: u32,
}

/// An index that a packet may have.
#[derive(Clone, Copy)]
struct Guess {
    index: u64,
    /// Whether it starts the source's window anew instead of going on in it.
    anew: bool,
}

type Guesses = SmallVec<[Guess; 4]>;

/// Opens SRTP and SRTCP packets (RFC 3711 sections 3.3 and 3.4).
///
/// A source enters the table with its first packet whose tag is right. Its rollover counter is taken as zero, then as one where
/// the sequence number is low (the packets before the wrap may be lost); [`Inbound::set_rollover`] says better.
pub struct Inbound {
    ring: Keyring,
    /// The key that last proved right.
    current: usize,
    sources: SmallVec<[Source; 1]>,
    limits: ContextLimits,
    /// A copy of the packet while it may have to be tried with another key.
    spare: Vec<u8>,
}

impl Inbound {
    /// A context that opens with `master`.
    ///
    /// # Errors
    /// A key that does not fit its suite.
    pub fn new(master: &MasterKey, limits: ContextLimits) -> Result<Inbound, KeyError> {
        Ok(Inbound {
            ring: Keyring::new(master)?,
            current: 0,
            sources: SmallVec::new(),
            limits,
            spare: Vec::new(),
        })
    }

    /// Adds a key beside those that there are: one with another identifier or range, or the next one of a re-keying. In the
    /// last case packets under either are opened until [`Inbound::retire`], or until the new key has opened a thousand.
    ///
    /// A sender that sets its rollover counters back with a new key is understood too, once for each source and key.
    ///
    /// # Errors
    /// Too many keys, or identifiers in conflict.
    pub fn add(&mut self, master: &MasterKey) -> Result<(), KeyError> {
        self.ring.add(master).map(|_| ())
    }

    /// Forgets every key but the newest.
    pub fn retire(&mut self) {
        let newest = self.ring.keys.iter().map(|key| key.id).max();
        self.ring.keys.retain(|key| Some(key.id) == newest);
        self.current = 0;
    }

    /// Reads what the next RTP packet will need, so that it is in the cache. The value means nothing.
    pub fn read_ahead(&self) -> u64 {
        let key = self.ring.keys.get(self.current).map_or(0, Key::read_ahead);
        let source = self.sources.first().and_then(|source| source.rtp.as_ref());
        key ^ source.map_or(0, |flow| flow.window.highest())
    }

    /// How far the key that last proved right is used up.
    pub fn key_use(&self) -> Option<KeyUse> {
        self.ring.keys.get(self.current).map(|key| key.used)
    }

    /// How many keys are being tried.
    pub fn keys(&self) -> usize {
        self.ring.keys.len()
    }

    /// Opens an SRTP packet in place; gives the length of the RTP packet in it. Where it fails, the contents of `packet` are
    /// of no use.
    ///
    /// # Errors
    /// Any [`Failure`] but [`Failure::NoRoom`] and [`Failure::IndexReused`].
    pub fn unprotect_rtp(&mut self, packet: &mut [u8]) -> Result<usize, Failure> {
        let fields = rtp_fields(packet)?;
        let known = self.find(fields.ssrc);
        if known.is_none() && self.sources.len() >= self.limits.sources {
            return Err(Failure::TooManySources);
        }
        let mut worst = Worst::new();
        let several = self.ring.keys.len() > 1;
        for at in self.order() {
            let Some(key) = self.ring.keys.get_mut(at) else {
                continue;
            };
            if !key.mki.is_empty() && key.rtp().mki(packet, key.mki.len()) != Some(&key.mki) {
                worst.add(Failure::UnknownMki);
                continue;
            }
            let source = known.and_then(|known| self.sources.get(known));
            let flow = source.and_then(|source| source.rtp.as_ref());
            let guesses = guesses(source, key.id, fields.sequence);
            for (nth, guess) in guesses.iter().enumerate() {
                if let Err(failure) = admissible(key, flow, *guess) {
                    worst.add(failure);
                    continue;
                }
                let (transform, mki) = key.rtp_at(guess.index);
                // A failed attempt with an AEAD cipher leaves nothing for the next one.
                let again = several || nth + 1 < guesses.len();
                let spare = (again && transform.destroys()).then_some(&mut self.spare);
                let spare = spare.map(|spare| keep(spare, packet));
                match transform.open_rtp(packet, fields.ssrc, guess.index, mki.len()) {
                    Ok(length) => {
                        key.used.srtp += 1;
                        self.accept_rtp(at, known, fields.ssrc, *guess);
                        return Ok(length);
                    }
                    Err(failure) => worst.add(failure),
                }
                if let Some(spare) = spare {
                    packet.copy_from_slice(spare);
                }
            }
        }
        Err(worst.failure())
    }

    /// Opens an SRTCP packet in place; gives the length of the RTCP packet in it. Where it fails, the contents of `packet` are
    /// of no use.
    ///
    /// # Errors
    /// As [`Inbound::unprotect_rtp`].
    pub fn unprotect_rtcp(&mut self, packet: &mut [u8]) -> Result<usize, Failure> {
        let ssrc = rtcp_sender(packet)?;
        let known = self.find(ssrc);
        if known.is_none() && self.sources.len() >= self.limits.sources {
            return Err(Failure::TooManySources);
        }
        let mut worst = Worst::new();
        let several = self.ring.keys.len() > 1;
        for at in self.order() {
            let Some(key) = self.ring.keys.get_mut(at) else {
                continue;
            };
            let mki = key.mki.len();
            if mki > 0 && key.rtcp().mki(packet, mki) != Some(&key.mki) {
                worst.add(Failure::UnknownMki);
                continue;
            }
            let (index, encrypted) = match key.rtcp().rtcp_index(packet, mki) {
                Ok(word) => word,
                Err(failure) => {
                    worst.add(failure);
                    continue;
                }
            };
            let flow = known
                .and_then(|known| self.sources.get(known))
                .and_then(|source| source.rtcp.as_ref());
            let anew = match flow {
                // A key that the source has not used yet begins wherever it likes: nothing sealed with it was taken in.
                Some(flow) if key.id <= flow.key => {
                    if let Err(stale) = flow.window.check(u64::from(index)) {
                        worst.add(stale.into());
                        continue;
                    }
                    false
                }
                Some(flow) => flow.window.check(u64::from(index)).is_err(),
                None => true,
            };
            if key.used.srtcp >= key.used.srtcp_limit {
                worst.add(Failure::KeyExhausted);
                continue;
            }
            let (transform, _) = key.rtcp_at(index);
            let spare = (several && transform.destroys()).then_some(&mut self.spare);
            let spare = spare.map(|spare| keep(spare, packet));
            match transform.open_rtcp(packet, ssrc, index, encrypted, mki) {
                Ok(length) => {
                    key.used.srtcp += 1;
                    self.accept_rtcp(at, known, ssrc, index, anew);
                    return Ok(length);
                }
                Err(failure) => worst.add(failure),
            }
            if let Some(spare) = spare {
                packet.copy_from_slice(spare);
            }
        }
        Err(worst.failure())
    }

    /// The rollover counter that a source has now, for one who joins late. Only before its first packet, or to go forward;
    /// gives `false` otherwise, or where the table is full.
    pub fn set_rollover(&mut self, ssrc: u32, rollover: u32) -> bool {
        let known = self.find(ssrc);
        let size = self.limits.window;
        let Some(source) = self.at_or_new(known, ssrc) else {
            return false;
        };
        match &mut source.rtp {
            Some(flow) if flow.window.highest() >> 16 >= u64::from(rollover) => return false,
            Some(flow) => flow.window = Window::restored(size, (u64::from(rollover) << 16) - 1),
            None => source.rollover = rollover,
        }
        true
    }

    /// Where every source stands, in order of appearance.
    pub fn sources(&self) -> impl Iterator<Item = SourceState> + '_ {
        let highest = |flow: &Option<Flow>| flow.as_ref().map(|flow| flow.window.highest());
        self.sources.iter().map(move |source| SourceState {
            ssrc: source.ssrc,
            rtp: highest(&source.rtp),
            rtcp: highest(&source.rtcp),
        })
    }

    /// Goes on where another context with these keys stood: nothing at or below its indices is taken in again. Never goes
    /// back. `false` where the table is full.
    pub fn restore(&mut self, state: SourceState) -> bool {
        let known = self.find(state.ssrc);
        let size = self.limits.window;
        let key = self.ring.keys.iter().map(|key| key.id).max().unwrap_or(0);
        let Some(source) = self.at_or_new(known, state.ssrc) else {
            return false;
        };
        let forward = |flow: &mut Option<Flow>, state: Option<u64>| {
            let stands = flow.as_ref().map(|flow| flow.window.highest());
            if let Some(highest) = state.filter(|highest| Some(*highest) > stands) {
                let window = Window::restored(size, highest);
                *flow = Some(Flow { window, key });
            }
        };
        forward(&mut source.rtp, state.rtp);
        forward(&mut source.rtcp, state.rtcp);
        true
    }

    /// Forgets a source that said goodbye. With it goes what guards against its packets being replayed, so only after a BYE
    /// whose tag was right, and only to make room.
    pub fn forget(&mut self, ssrc: u32) {
        self.sources.retain(|source| source.ssrc != ssrc);
    }

    fn find(&self, ssrc: u32) -> Option<usize> {
        self.sources.iter().position(|source| source.ssrc == ssrc)
    }

    /// The places of the keys: the one that last proved right, then the newest to the oldest.
    fn order(&self) -> SmallVec<[usize; MAX_KEYS]> {
        let current = (self.current < self.ring.keys.len()).then_some(self.current);
        let others = (0..self.ring.keys.len())
            .rev()
            .filter(|at| Some(*at) != current);
        current.into_iter().chain(others).collect()
    }

    fn accept_rtp(&mut self, at: usize, known: Option<usize>, ssrc: u32, guess: Guess) {
        let size = self.limits.window;
        let id = self.proved(at);
        let Some(source) = self.at_or_new(known, ssrc) else {
            return;
        };
        match &mut source.rtp {
            Some(flow) if !guess.anew => {
                flow.window.accept(guess.index);
                flow.key = flow.key.max(id);
            }
            flow => {
                *flow = Some(Flow {
                    window: Window::new(size, guess.index),
                    key: id,
                });
            }
        }
    }

    fn accept_rtcp(&mut self, at: usize, known: Option<usize>, ssrc: u32, index: u32, anew: bool) {
        let size = self.limits.window;
        let id = self.proved(at);
        let Some(source) = self.at_or_new(known, ssrc) else {
            return;
        };
        match &mut source.rtcp {
            Some(flow) if !anew => {
                flow.window.accept(u64::from(index));
                flow.key = flow.key.max(id);
            }
            flow => {
                *flow = Some(Flow {
                    window: Window::new(size, u64::from(index)),
                    key: id,
                });
            }
        }
    }

    /// Notes that the key at `at` opened a packet, and forgets older ones without an identifier that have not for long; gives
    /// its number.
    fn proved(&mut self, at: usize) -> u32 {
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
        if self.ring.keys.iter().any(|key| key.idle >= OVERLAP) {
            self.ring.keys.retain(|key| key.idle < OVERLAP);
            let places = &self.ring.keys;
            self.current = places.iter().position(|key| key.id == id).unwrap_or(0);
        }
        id
    }

    fn at_or_new(&mut self, known: Option<usize>, ssrc: u32) -> Option<&mut Source> {
        let at = match known {
            Some(at) => at,
            None if self.sources.len() >= self.limits.sources => return None,
            None => {
                self.sources.push(Source {
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

/// Copies `packet` to `spare`, whose memory is kept from one use to the next.
fn keep<'s>(spare: &'s mut Vec<u8>, packet: &[u8]) -> &'s [u8] {
    spare.clear();
    spare.extend_from_slice(packet);
    spare
}

/// The indices that a sequence number may stand for, likeliest first.
#[inline]
fn guesses(source: Option<&Source>, key: u32, sequence: u16) -> Guesses {
    let mut guesses = Guesses::new();
    let flow = source.and_then(|source| source.rtp.as_ref());
    if let Some(flow) = flow {
        if let Some(index) = estimate(flow.window.highest(), sequence) {
            guesses.push(Guess { index, anew: false });
        }
        // Only a key that the source has not used yet may begin anew: nothing sealed with it was taken in before.
        if key <= flow.key {
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
        guesses.push(Guess { index, anew: true });
        if sequence >= 0x8000 {
            break;
        }
    }
    guesses
}

/// Whether an index may be tried with a key at all.
#[inline]
fn admissible(key: &Key, flow: Option<&Flow>, guess: Guess) -> Result<(), Failure> {
    if !key.covers(guess.index) {
        return Err(Failure::NoKey);
    }
    if key.used.srtp >= key.used.srtp_limit {
        return Err(Failure::KeyExhausted);
    }
    match flow {
        // Without tags a replay cannot be told from a forgery, so there is no protection from it (RFC 3711 section 3.3.2).
        Some(flow) if !guess.anew && key.rtp().authenticates() => {
            flow.window.check(guess.index).map_err(Stale::into)
        }
        _ => Ok(()),
    }
}

/// The failure that tells most, of several attempts.
struct Worst(Option<Failure>);

impl Worst {
    fn new() -> Worst {
        Worst(None)
    }

    fn add(&mut self, failure: Failure) {
        if self.0.is_none_or(|known| rank(failure) > rank(known)) {
            self.0 = Some(failure);
        }
    }

    fn failure(&self) -> Failure {
        self.0.unwrap_or(Failure::NoKey)
    }
}

fn rank(failure: Failure) -> u8 {
    match failure {
        Failure::NoRoom | Failure::IndexReused | Failure::TooManySources => 0,
        Failure::UnknownMki => 1,
        Failure::Malformed => 2,
        Failure::NoKey => 3,
        Failure::KeyExhausted => 4,
        Failure::Authentication => 5,
        Failure::TooOld => 6,
        Failure::Replayed => 7,
    }
}
