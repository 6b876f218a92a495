//! The master keys of a context, each with its session keys and use counts.

use super::key::MAX_SRTCP_PACKETS;
use super::transform::Transform;
use super::{KeyError, MasterKey};
use core::hash::Hasher as _;
use smallvec::SmallVec;
use std::hash::DefaultHasher;

/// Largest number of master keys of a context. A packet without an identifier may be tried with each of them.
pub const MAX_KEYS: usize = 8;
/// Sets of derived session keys cached per master key with a key derivation rate: the present and the previous epoch,
/// for SRTP and SRTCP.
const DERIVED: usize = 4;
/// Latest keys that a context remembers to have had.
const MAX_KNOWN: usize = 64;

/// Consumption of a master key's lifetime; the larger share of SRTP and SRTCP counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// SRTP packets processed.
    pub srtp: u64,
    /// Limit of SRTP packets.
    pub srtp_limit: u64,
    /// SRTCP packets processed.
    pub srtcp: u64,
    /// Limit of SRTCP packets.
    pub srtcp_limit: u64,
}

impl KeyUse {
    /// Whether a new key should be negotiated: less than an eighth is left.
    pub fn is_due(&self) -> bool {
        let due = |used: u64, limit: u64| used >= limit - limit / 8;
        due(self.srtp, self.srtp_limit) || due(self.srtcp, self.srtcp_limit)
    }
}

/// A master key in use.
pub(super) struct KeyEntry {
    /// Ascending number within the context, which orders keys by age.
    pub id: u32,
    pub mki: SmallVec<[u8; 4]>,
    pub used: KeyUse,
    /// Packets unprotected with newer keys since this one was last used.
    pub idle: u32,
    /// Whether the context had the key before: packets of that time may have been recorded.
    pub is_known: bool,
    /// See [`hash_of`].
    hash: u64,
    range: Option<(u64, u64)>,
    rtp: Transform,
    rtcp: Transform,
    /// Present with a key derivation rate.
    rederivation: Option<Box<Rederivation>>,
}

struct Rederivation {
    master: MasterKey,
    derived: Vec<(bool, u64, Transform)>,
}

impl KeyEntry {
    pub fn new(id: u32, master: &MasterKey) -> Result<KeyEntry, KeyError> {
        let bad = |_| KeyError::Length {
            required: master.suite().key_and_salt_length(),
            actual: master.key_and_salt().len(),
        };
        let rederivation = (master.options().key_derivation_rate != 0).then(|| {
            Box::new(Rederivation {
                master: master.clone(),
                derived: Vec::with_capacity(DERIVED),
            })
        });
        Ok(KeyEntry {
            id,
            mki: SmallVec::from_slice(master.mki()),
            used: KeyUse {
                srtp: 0,
                srtp_limit: master.lifetime(),
                srtcp: 0,
                srtcp_limit: master.lifetime().min(MAX_SRTCP_PACKETS),
            },
            idle: 0,
            is_known: false,
            hash: hash_of(master),
            range: master.range,
            rtp: Transform::derive(master, false, 0).map_err(bad)?,
            rtcp: Transform::derive(master, true, 0).map_err(bad)?,
            rederivation,
        })
    }

    /// Reads the data that the next packet needs.
    pub fn prefetch(&self) -> u64 {
        let due = self.used.srtp ^ self.used.srtp_limit ^ u64::from(self.idle);
        due ^ self.mki.len() as u64 ^ self.rtp.prefetch()
    }

    /// The SRTP session keys of the first epoch: lengths and transforms are the same in all epochs.
    pub fn rtp(&self) -> &Transform {
        &self.rtp
    }

    /// The SRTCP session keys of the first epoch: lengths and transforms are the same in all epochs.
    pub fn rtcp(&self) -> &Transform {
        &self.rtcp
    }

    /// The SRTP session keys for `index`, and the identifier.
    #[inline]
    pub fn rtp_at(&mut self, index: u64) -> (&Transform, &[u8]) {
        let transform = match &mut self.rederivation {
            Some(rederivation) => rederivation.keys_at(false, index).unwrap_or(&self.rtp),
            None => &self.rtp,
        };
        (transform, &self.mki)
    }

    /// The SRTCP session keys for `index`, and the identifier.
    #[inline]
    pub fn rtcp_at(&mut self, index: u32) -> (&Transform, &[u8]) {
        let transform = match &mut self.rederivation {
            Some(rederivation) => rederivation
                .keys_at(true, u64::from(index))
                .unwrap_or(&self.rtcp),
            None => &self.rtcp,
        };
        (transform, &self.mki)
    }

    /// Whether `<From, To>` contains an SRTP index; without a range every index is valid.
    pub fn covers(&self, index: u64) -> bool {
        self.range
            .is_none_or(|(from, to)| (from..=to).contains(&index))
    }

    /// Whether a packet with the identifier `mki` of another key could not be told from one of this key.
    fn conflicts_with(&self, mki: &[u8]) -> bool {
        !mki.is_empty()
            && !self.mki.is_empty()
            && (self.mki.len() != mki.len() || self.mki.as_slice() == mki)
    }

    /// Whether the key has an index range.
    pub fn has_range(&self) -> bool {
        self.range.is_some()
    }
}

impl Rederivation {
    /// The session keys of the epoch of `index`; `None` for the first epoch, whose keys are in the key itself.
    fn keys_at(&mut self, rtcp: bool, index: u64) -> Option<&Transform> {
        let epoch = index >> self.master.options().key_derivation_rate;
        if epoch == 0 {
            return None;
        }
        let position = self
            .derived
            .iter()
            .position(|(kind, at, _)| *kind == rtcp && *at == epoch);
        let at = match position {
            Some(at) => at,
            None => {
                // The master key was valid for the first epoch, so it is for all.
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
    /// The first key is stored inline: it saves a packet one pointer access.
    pub keys: SmallVec<[KeyEntry; 1]>,
    next: u32,
    /// Hashes of the latest keys of the context. A peer that finds two keys with one hash harms itself only.
    known: SmallVec<[u64; 2]>,
}

/// Recognises a key that a context had before.
fn hash_of(master: &MasterKey) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(master.key_and_salt());
    hasher.finish()
}

impl Keyring {
    pub fn new(master: &MasterKey) -> Result<Keyring, KeyError> {
        let mut ring = Keyring {
            keys: SmallVec::new(),
            next: 0,
            known: SmallVec::new(),
        };
        ring.add(master)?;
        Ok(ring)
    }

    /// Adds a key; returns its index.
    pub fn add(&mut self, master: &MasterKey) -> Result<usize, KeyError> {
        if self.keys.len() >= MAX_KEYS {
            return Err(KeyError::TooManyKeys);
        }
        if self.keys.iter().any(|key| key.conflicts_with(master.mki())) {
            return Err(KeyError::MkiConflict);
        }
        let added = KeyEntry::new(self.next, master)?;
        self.push(added);
        Ok(self.keys.len() - 1)
    }

    fn push(&mut self, mut added: KeyEntry) {
        added.is_known = self.known.contains(&added.hash);
        if !added.is_known {
            if self.known.len() >= MAX_KNOWN {
                self.known.remove(0);
            }
            self.known.push(added.hash);
        }
        self.keys.push(added);
        self.next += 1;
    }

    /// Adds a key, for which conflicting ones are removed, and the one that has not been used for longest if there are
    /// too many.
    pub fn replace(&mut self, master: &MasterKey) -> Result<(), KeyError> {
        let mut added = KeyEntry::new(self.next, master)?;
        let mut present = self.keys.iter();
        if let Some(at) = present.position(|key| key.hash == added.hash) {
            // Its lifetime goes on.
            let before = self.keys.remove(at).used;
            (added.used.srtp, added.used.srtcp) = (before.srtp, before.srtcp);
        }
        self.keys.retain(|key| !key.conflicts_with(master.mki()));
        if self.keys.len() >= MAX_KEYS {
            let places = self.keys.iter().enumerate();
            let oldest = places.max_by_key(|(_, key)| (key.idle, core::cmp::Reverse(key.id)));
            if let Some(at) = oldest.map(|(at, _)| at) {
                self.keys.remove(at);
            }
        }
        self.push(added);
        Ok(())
    }

    /// The index of the key with an identifier.
    pub fn with_mki(&self, mki: &[u8]) -> Option<usize> {
        self.keys.iter().position(|key| key.mki.as_slice() == mki)
    }
}
