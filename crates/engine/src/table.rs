//! Tables keyed by values from the network, with a keyed hash against collision attacks and a limit on their growth.

use core::hash::{BuildHasher, Hash};
use hashbrown::HashTable;
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

/// Log2 of the parts of a table.
const PART_BITS: u32 = 6;
const PARTS: usize = 1 << PART_BITS;

/// A hash table with a limit. It consists of parts that grow one by one: growing moves all entries of a part. In one
/// piece it took 4 ms at 16,384 calls, in which the thread carries no packet. The iteration order depends on the key
/// and must not influence behaviour.
#[derive(Clone, Debug)]
pub struct BoundedMap<K, V> {
    /// None before the first entry.
    parts: Vec<HashTable<(K, V)>>,
    len: usize,
    limit: usize,
    key: HashKey,
}

/// The part of a hash; the table of the part uses the lowest and the highest bits.
fn part_of(hash: u64) -> usize {
    (hash >> 32) as usize & (PARTS - 1)
}

impl<K: Eq + Hash, V> BoundedMap<K, V> {
    /// An empty table for at most `limit` entries.
    pub fn new(limit: usize, key: HashKey) -> Self {
        BoundedMap {
            parts: Vec::new(),
            len: 0,
            limit,
            key,
        }
    }

    /// Inserts `value` at `key` and returns the previous value.
    ///
    /// # Errors
    /// [`Full`] if the key is new and the limit is reached.
    pub fn insert(&mut self, key: K, value: V) -> Result<Option<V>, Full> {
        if self.parts.is_empty() {
            if self.limit == 0 {
                return Err(Full);
            }
            self.parts.resize_with(PARTS, HashTable::new);
        }
        let hash = self.key.hash_one(&key);
        let hasher = self.key;
        let Some(part) = self.parts.get_mut(part_of(hash)) else {
            return Err(Full);
        };
        if let Some((_, known)) = part.find_mut(hash, |(known, _)| *known == key) {
            return Ok(Some(core::mem::replace(known, value)));
        }
        if self.len >= self.limit {
            return Err(Full);
        }
        part.insert_unique(hash, (key, value), |(key, _)| hasher.hash_one(key));
        self.len += 1;
        Ok(None)
    }

    /// The value at `key`.
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        Q: Hash + hashbrown::Equivalent<K> + ?Sized,
    {
        if self.len == 0 {
            return None;
        }
        let hash = self.key.hash_one(key);
        let found = self
            .parts
            .get(part_of(hash))?
            .find(hash, |(known, _)| key.equivalent(known));
        found.map(|(_, value)| value)
    }

    /// The value at `key`, for modification.
    pub fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        Q: Hash + hashbrown::Equivalent<K> + ?Sized,
    {
        if self.len == 0 {
            return None;
        }
        let hash = self.key.hash_one(key);
        let found = self
            .parts
            .get_mut(part_of(hash))?
            .find_mut(hash, |(known, _)| key.equivalent(known));
        found.map(|(_, value)| value)
    }

    /// Removes the entry.
    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        Q: Hash + hashbrown::Equivalent<K> + ?Sized,
    {
        if self.len == 0 {
            return None;
        }
        let hash = self.key.hash_one(key);
        let part = self.parts.get_mut(part_of(hash))?;
        let entry = part.find_entry(hash, |(known, _)| key.equivalent(known));
        let ((_, value), _) = entry.ok()?.remove();
        self.len -= 1;
        Some(value)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table has no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the limit is reached.
    pub fn is_full(&self) -> bool {
        self.len >= self.limit
    }

    /// Changes the limit; entries above it stay.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// All entries in arbitrary order; for counting, or for sorting afterwards.
    pub fn iter_unordered(&self) -> impl Iterator<Item = (&K, &V)> {
        let entries = self.parts.iter().flat_map(HashTable::iter);
        entries.map(|(key, value)| (key, value))
    }

    /// All values in arbitrary order, to be changed.
    pub fn values_mut_unordered(&mut self) -> impl Iterator<Item = &mut V> {
        let entries = self.parts.iter_mut().flat_map(HashTable::iter_mut);
        entries.map(|(_, value)| value)
    }

    /// Removes all entries; the memory stays allocated.
    pub fn clear(&mut self) {
        self.parts.iter_mut().for_each(HashTable::clear);
        self.len = 0;
    }

    /// Keeps the entries for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        for part in &mut self.parts {
            part.retain(|(key, value)| keep(key, value));
        }
        self.len = self.parts.iter().map(HashTable::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn entries_are_those_of_a_table_in_one_piece() {
        let mut entropy = crate::Entropy::from_number(3);
        let mut bounded = BoundedMap::new(3_000, HashKey::new(&mut entropy));
        let mut plain: BTreeMap<u64, u64> = BTreeMap::new();
        for step in 0..60_000_u64 {
            let (key, value) = (entropy.u64() % 4_500, entropy.u64());
            if entropy.u64().is_multiple_of(3) {
                assert_eq!(bounded.remove(&key), plain.remove(&key));
            } else if plain.len() >= 3_000 && !plain.contains_key(&key) {
                assert!(bounded.is_full());
                assert_eq!(bounded.insert(key, value), Err(Full));
            } else {
                assert_eq!(bounded.insert(key, value), Ok(plain.insert(key, value)));
            }
            let key = entropy.u64() % 4_500;
            assert_eq!(bounded.get(&key), plain.get(&key));
            assert_eq!(bounded.get_mut(&key), plain.get_mut(&key));
            assert_eq!(bounded.len(), plain.len());
            if step == 40_000 {
                bounded.retain(|key, value| key ^ *value & 1 == 0);
                plain.retain(|key, value| *key ^ *value & 1 == 0);
            }
        }
        let mut entries: Vec<_> = bounded.iter_unordered().map(|(k, v)| (*k, *v)).collect();
        let expected: Vec<_> = plain.into_iter().collect();
        entries.sort_unstable();
        assert_eq!(entries, expected);
        bounded.clear();
        assert!(bounded.is_empty() && bounded.iter_unordered().next().is_none());
    }

    /// A key that counts how often it is hashed.
    struct CountedKey<'c>(u8, &'c core::cell::Cell<usize>);

    impl Hash for CountedKey<'_> {
        fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
            self.1.set(self.1.get() + 1);
            self.0.hash(state);
        }
    }

    impl PartialEq for CountedKey<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }

    impl Eq for CountedKey<'_> {}

    #[test]
    fn insertion_hashes_a_key_once() {
        let hashed = core::cell::Cell::new(0);
        let mut bounded = BoundedMap::new(2, HashKey::default());
        let mut insert = |key| {
            let before = hashed.get();
            let done = bounded.insert(CountedKey(key, &hashed), key);
            (done, hashed.get() - before)
        };
        assert_eq!(insert(1), (Ok(None), 1));
        // A new key, a known one, and one without room.
        assert_eq!(insert(2), (Ok(None), 1));
        assert_eq!(insert(1), (Ok(Some(1)), 1));
        assert_eq!(insert(3), (Err(Full), 1));
        let mut none = BoundedMap::new(0, HashKey::default());
        assert_eq!(none.insert(1, 1), Err(Full));
        assert!(none.parts.is_empty());
    }

    #[test]
    fn growing_moves_a_small_share_of_the_entries() {
        let mut entropy = crate::Entropy::from_number(4);
        let mut bounded = BoundedMap::new(usize::MAX, HashKey::new(&mut entropy));
        for _ in 0..100_000 {
            let _ = bounded.insert(entropy.u64(), ());
        }
        let largest = bounded.parts.iter().map(HashTable::len).max().unwrap_or(0);
        assert!(largest < 2_000, "{largest}");
    }
}
