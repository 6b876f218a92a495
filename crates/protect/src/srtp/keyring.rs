//! The master keys of a context, each with its session keys and how often it was used.

use super::key::MAX_SRTCP_PACKETS;
use super::transform::Transform;
use super::{KeyError, MasterKey};
use smallvec::SmallVec;

/// The most master keys of a context at a time. A packet without an identifier may have to be tried with each.
pub const MAX_KEYS: usize = 8;
/// Sets of session keys kept per master key where they are derived anew as the index grows: this one and the one before, for
/// SRTP and SRTCP.
const DERIVED: usize = 4;

/// How much of a master key's lifetime is gone; the larger share of SRTP and SRTCP counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// SRTP packets so far.
    pub srtp: u64,
    /// SRTP packets in all.
    pub srtp_limit: u64,
    /// SRTCP packets so far.
    pub srtcp: u64,
    /// SRTCP packets in all.
    pub srtcp_limit: u64,
}

impl KeyUse {
    /// Whether it is time to agree on a new key: less than an eighth is left.
    pub fn is_due(&self) -> bool {
        let due = |used: u64, limit: u64| used >= limit - limit / 8;
        due(self.srtp, self.srtp_limit) || due(self.srtcp, self.srtcp_limit)
    }
}

/// A master key in use.
pub(super) struct Key {
    /// Grows with every key of a context, so that newer and older can be told.
    pub id: u32,
    pub mki: SmallVec<[u8; 4]>,
    pub used: KeyUse,
    /// Packets that newer keys opened since this one last did.
    pub idle: u32,
    range: Option<(u64, u64)>,
    rtp: Transform,
    rtcp: Transform,
    /// Only where session keys are derived anew as the index grows.
    rederive: Option<Box<Rederive>>,
}

struct Rederive {
    master: MasterKey,
    derived: Vec<(bool, u64, Transform)>,
}

impl Key {
    pub fn new(id: u32, master: &MasterKey) -> Result<Key, KeyError> {
        let bad = |_| KeyError::Length {
            wanted: master.suite().key_and_salt_length(),
            given: master.key_and_salt().len(),
        };
        let rederive = (master.options().key_derivation_rate != 0).then(|| {
            Box::new(Rederive {
                master: master.clone(),
                derived: Vec::with_capacity(DERIVED),
            })
        });
        Ok(Key {
            id,
            mki: SmallVec::from_slice(master.mki()),
            used: KeyUse {
                srtp: 0,
                srtp_limit: master.lifetime(),
                srtcp: 0,
                srtcp_limit: master.lifetime().min(MAX_SRTCP_PACKETS),
            },
            idle: 0,
            range: master.range,
            rtp: Transform::derive(master, false, 0).map_err(bad)?,
            rtcp: Transform::derive(master, true, 0).map_err(bad)?,
            rederive,
        })
    }

    /// Reads what the next packet will need of it.
    pub fn read_ahead(&self) -> u64 {
        let due = self.used.srtp ^ self.used.srtp_limit ^ u64::from(self.idle);
        due ^ self.mki.len() as u64 ^ self.rtp.read_ahead()
    }

    /// The SRTP session keys of the first epoch: good for lengths and kinds, which are the same in all.
    pub fn rtp(&self) -> &Transform {
        &self.rtp
    }

    /// The SRTCP session keys of the first epoch: good for lengths and kinds, which are the same in all.
    pub fn rtcp(&self) -> &Transform {
        &self.rtcp
    }

    /// The SRTP session keys for `index`, and the identifier.
    #[inline]
    pub fn rtp_at(&mut self, index: u64) -> (&Transform, &[u8]) {
        let transform = match &mut self.rederive {
            Some(rederive) => rederive.at(false, index).unwrap_or(&self.rtp),
            None => &self.rtp,
        };
        (transform, &self.mki)
    }

    /// The SRTCP session keys for `index`, and the identifier.
    #[inline]
    pub fn rtcp_at(&mut self, index: u32) -> (&Transform, &[u8]) {
        let transform = match &mut self.rederive {
            Some(rederive) => rederive.at(true, u64::from(index)).unwrap_or(&self.rtcp),
            None => &self.rtcp,
        };
        (transform, &self.mki)
    }

    /// Whether `<From, To>` covers an SRTP index; without a range every index is covered.
    pub fn covers(&self, index: u64) -> bool {
        self.range
            .is_none_or(|(from, to)| (from..=to).contains(&index))
    }

    /// Whether the key is chosen by index.
    pub fn has_range(&self) -> bool {
        self.range.is_some()
    }
}

impl Rederive {
    /// The session keys of the epoch of `index`; `None` for the first epoch, which the key itself holds.
    fn at(&mut self, rtcp: bool, index: u64) -> Option<&Transform> {
        let epoch = index >> self.master.options().key_derivation_rate;
        if epoch == 0 {
            return None;
        }
        let known = self
            .derived
            .iter()
            .position(|(kind, at, _)| *kind == rtcp && *at == epoch);
        let at = match known {
            Some(at) => at,
            None => {
                // The key was good for the first epoch, so it is for every other.
                let transform = Transform::derive(&self.master, rtcp, epoch).ok()?;
                if self.derived.len() >= DERIVED {
                    self.derived.remove(0);
                }
                self.derived.push((rtcp, epoch, transform));
                self.derived.len() - 1
            }
        };
        self.derived.get(at).map(|(_, _, transform)| transform)
    }
}

/// The keys of a context.
pub(super) struct Keyring {
    /// Beside the rest, where there is one: a packet waits for no pointer then.
    pub keys: SmallVec<[Key; 1]>,
    next: u32,
}

impl Keyring {
    pub fn new(master: &MasterKey) -> Result<Keyring, KeyError> {
        let mut ring = Keyring {
            keys: SmallVec::new(),
            next: 0,
        };
        ring.add(master)?;
        Ok(ring)
    }

    /// Adds a key; gives its place.
    pub fn add(&mut self, master: &MasterKey) -> Result<usize, KeyError> {
        if self.keys.len() >= MAX_KEYS {
            return Err(KeyError::TooManyKeys);
        }
        let mki = master.mki();
        let conflict = |key: &Key| {
            !key.mki.is_empty() && (key.mki.len() != mki.len() || key.mki.as_slice() == mki)
        };
        if !mki.is_empty() && self.keys.iter().any(conflict) {
            return Err(KeyError::MkiConflict);
        }
        self.keys.push(Key::new(self.next, master)?);
        self.next += 1;
        Ok(self.keys.len() - 1)
    }

    /// The place of the key with that identifier.
    pub fn with_mki(&self, mki: &[u8]) -> Option<usize> {
        self.keys.iter().position(|key| key.mki.as_slice() == mki)
    }
}
