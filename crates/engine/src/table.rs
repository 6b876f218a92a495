//! Tables keyed by values from the network, with a keyed hash against collision attacks and a limit on their growth.

use core::hash::{BuildHasher, Hash};
use hashbrown::HashMap;
use siphasher::sip::SipHasher13;

/// The key of the hash; generated once per process from [`crate::Entropy`].
#[derive(Clone, Copy, Debug, Default)]
pub struct HashKey(u64, u64);

impl HashKey {
    /// A key from the generator.
    pub fn new(entropy: &mut crate::Entropy) -> HashKey {
        HashKey(entropy.u64(), entropy.u64())
    }
}

impl BuildHasher for HashKey {
    type Hasher = SipHasher13;
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}

/// The table is full; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A hash table with a limit. The iteration order depends on the key and must not influence behaviour.
#[derive(Clone, Debug)]
pub struct BoundedMap<K, V> {
    map: HashMap<K, V, HashKey>,
    limit: usize,
}

impl<K: Eq + Hash, V> BoundedMap<K, V> {
    /// An empty table for at most `limit` entries.
    pub fn new(limit: usize, key: HashKey) -> Self {
        BoundedMap {
            map: HashMap::with_hasher(key),
            limit,
        }
    }

    /// Inserts `value` at `key` and returns the previous value.
    ///
    /// # Errors
    /// [`Full`] if the key is new and the limit is reached.
    pub fn insert(&mut self, key: K, value: V) -> Result<Option<V>, Full> {
        if self.map.len() >= self.limit && !self.map.contains_key(&key) {
            return Err(Full);
        }
        Ok(self.map.insert(key, value))
    }

    /// The value at `key`.
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        Q: Hash + hashbrown::Equivalent<K> + ?Sized,
    {
        self.map.get(key)
    }

    /// The value at `key`, for modification.
    pub fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        Q: Hash + hashbrown::Equivalent<K> + ?Sized,
    {
        self.map.get_mut(key)
    }

    /// Removes the entry.
    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        Q: Hash + hashbrown::Equivalent<K> + ?Sized,
    {
        self.map.remove(key)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the table has no entries.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Whether the limit is reached.
    pub fn is_full(&self) -> bool {
        self.map.len() >= self.limit
    }

    /// Allocates memory for `more` further entries, up to the limit.
    pub fn reserve(&mut self, more: usize) {
        self.map
            .reserve(more.min(self.limit.saturating_sub(self.map.len())));
    }

    /// Changes the limit; entries above it stay.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// All entries in arbitrary order; for counting, or for sorting afterwards.
    pub fn iter_unordered(&self) -> impl Iterator<Item = (&K, &V)> {
        self.map.iter()
    }

    /// All values in arbitrary order, to be changed.
    pub fn values_mut_unordered(&mut self) -> impl Iterator<Item = &mut V> {
        self.map.values_mut()
    }

    /// Removes all entries; the memory stays allocated.
    pub fn clear(&mut self) {
        self.map.clear();
    }

    /// Keeps the entries for which `keep` returns true.
    pub fn retain(&mut self, keep: impl FnMut(&K, &mut V) -> bool) {
        self.map.retain(keep);
    }
}
