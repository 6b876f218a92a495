//! A slab in pages: it grows by a page and moves no entry, so that growth takes the same time at any size. A slab in
//! one piece of memory copies itself when it grows: 80 ms at 65,536 calls, in which the thread carries no packet.

use core::ops::{Index, IndexMut};

/// Log2 of the entries of a page.
const PAGE_BITS: u32 = 7;
const PAGE: usize = 1 << PAGE_BITS;

#[derive(Clone, Debug)]
enum Entry<T> {
    /// Free; the key of the next free entry, which is the number of all entries at the end of the list.
    Vacant(usize),
    Occupied(T),
}

/// Values under keys that the slab chooses. The key of a removed value is used again first.
#[derive(Clone, Debug)]
pub struct PagedSlab<T> {
    /// All pages but the last one are full.
    pages: Vec<Vec<Entry<T>>>,
    /// The entry that the next value takes.
    next: usize,
    /// Number of values.
    len: usize,
}

impl<T> Default for PagedSlab<T> {
    fn default() -> Self {
        PagedSlab::new()
    }
}

impl<T> PagedSlab<T> {
    /// No values.
    pub const fn new() -> Self {
        PagedSlab {
            pages: Vec::new(),
            next: 0,
            len: 0,
        }
    }

    /// Number of entries, free ones included.
    fn entries(&self) -> usize {
        let full = self.pages.len().saturating_sub(1) * PAGE;
        full + self.pages.last().map_or(0, Vec::len)
    }

    fn entry(&self, key: usize) -> Option<&Entry<T>> {
        self.pages.get(key >> PAGE_BITS)?.get(key & (PAGE - 1))
    }

    fn entry_mut(&mut self, key: usize) -> Option<&mut Entry<T>> {
        self.pages
            .get_mut(key >> PAGE_BITS)?
            .get_mut(key & (PAGE - 1))
    }

    /// Adds a value; returns its key.
    pub fn insert(&mut self, value: T) -> usize {
        let key = self.next;
        self.len += 1;
        match self.entry_mut(key) {
            Some(entry) => {
                if let Entry::Vacant(next) = *entry {
                    *entry = Entry::Occupied(value);
                    self.next = next;
                }
            }
            None => {
                self.push(value);
                self.next = key + 1;
            }
        }
        key
    }

    /// Adds an entry behind all others. The first page is small while it has few entries.
    fn push(&mut self, value: T) {
        if self.pages.last().is_none_or(|page| page.len() == PAGE) {
            self.pages.push(match self.pages.is_empty() {
                true => Vec::new(),
                false => Vec::with_capacity(PAGE),
            });
        }
        if let Some(page) = self.pages.last_mut() {
            page.push(Entry::Occupied(value));
        }
    }

    /// The key that the next value will have.
    pub fn vacant_key(&self) -> usize {
        self.next
    }

    /// The value at `key`.
    pub fn get(&self, key: usize) -> Option<&T> {
        match self.entry(key)? {
            Entry::Occupied(value) => Some(value),
            Entry::Vacant(_) => None,
        }
    }

    /// The value at `key`, for modification.
    pub fn get_mut(&mut self, key: usize) -> Option<&mut T> {
        match self.entry_mut(key)? {
            Entry::Occupied(value) => Some(value),
            Entry::Vacant(_) => None,
        }
    }

    /// Whether there is a value at `key`.
    pub fn contains(&self, key: usize) -> bool {
        self.get(key).is_some()
    }

    /// Removes the value at `key`, if there is one.
    pub fn try_remove(&mut self, key: usize) -> Option<T> {
        let next = self.next;
        let entry = self.entry_mut(key)?;
        if matches!(entry, Entry::Vacant(_)) {
            return None;
        }
        let removed = core::mem::replace(entry, Entry::Vacant(next));
        self.next = key;
        self.len -= 1;
        match removed {
            Entry::Occupied(value) => Some(value),
            Entry::Vacant(_) => None,
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of values for which memory is allocated.
    pub fn capacity(&self) -> usize {
        let full = self.pages.len().saturating_sub(1) * PAGE;
        full + self.pages.last().map_or(0, Vec::capacity)
    }

    /// Removes all values and frees the memory.
    pub fn clear(&mut self) {
        *self = PagedSlab::new();
    }

    /// Removes the values for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(usize, &mut T) -> bool) {
        for key in 0..self.entries() {
            if self.get_mut(key).is_some_and(|value| !keep(key, value)) {
                self.try_remove(key);
            }
        }
    }

    /// All keys and values, by key.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (usize, &T)> {
        let pages = self.pages.iter().enumerate();
        pages.flat_map(|(number, page)| {
            page.iter()
                .enumerate()
                .filter_map(move |(place, entry)| match entry {
                    Entry::Occupied(value) => Some((number << PAGE_BITS | place, value)),
                    Entry::Vacant(_) => None,
                })
        })
    }

    /// All keys and values, by key, for modification.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (usize, &mut T)> {
        let pages = self.pages.iter_mut().enumerate();
        pages.flat_map(|(number, page)| {
            page.iter_mut()
                .enumerate()
                .filter_map(move |(place, entry)| match entry {
                    Entry::Occupied(value) => Some((number << PAGE_BITS | place, value)),
                    Entry::Vacant(_) => None,
                })
        })
    }
}

impl<T> Index<usize> for PagedSlab<T> {
    type Output = T;

    /// # Panics
    /// If there is no value at `key`.
    fn index(&self, key: usize) -> &T {
        match &self.pages[key >> PAGE_BITS][key & (PAGE - 1)] {
            Entry::Occupied(value) => value,
            Entry::Vacant(_) => panic!("no value at key {key}"),
        }
    }
}

impl<T> IndexMut<usize> for PagedSlab<T> {
    /// # Panics
    /// If there is no value at `key`.
    fn index_mut(&mut self, key: usize) -> &mut T {
        match &mut self.pages[key >> PAGE_BITS][key & (PAGE - 1)] {
            Entry::Occupied(value) => value,
            Entry::Vacant(_) => panic!("no value at key {key}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Entropy;
    use slab::Slab;

    #[test]
    fn keys_and_values_are_those_of_a_slab_in_one_piece() {
        let mut entropy = Entropy::from_number(7);
        let (mut paged, mut whole) = (PagedSlab::new(), Slab::new());
        for step in 0..20_000_u64 {
            let random = entropy.u64();
            // It grows to some pages, and becomes smaller again.
            if random % 100 < if step < 10_000 { 70 } else { 30 } {
                assert_eq!(paged.vacant_key(), whole.vacant_key());
                assert_eq!(paged.insert(random), whole.insert(random));
            } else {
                let key =
                    usize::try_from(random >> 20).unwrap_or(0) % (whole.capacity().max(1) + 9);
                assert_eq!(paged.try_remove(key), whole.try_remove(key));
            }
            let key = usize::try_from(random >> 30).unwrap_or(0) % (whole.capacity().max(1) + 9);
            assert_eq!(paged.get(key), whole.get(key));
            assert_eq!(paged.get_mut(key), whole.get_mut(key));
            assert_eq!(paged.contains(key), whole.contains(key));
            assert_eq!(paged.len(), whole.len());
        }
        assert!(paged.pages.len() > 5);
        assert!(paged.iter().eq(whole.iter()));
        assert!(paged.iter_mut().rev().eq(whole.iter_mut().rev()));
        paged.retain(|key, value| (*value as usize ^ key).is_multiple_of(3));
        whole.retain(|key, value| (*value as usize ^ key).is_multiple_of(3));
        assert!(paged.iter().eq(whole.iter()));
        assert_eq!(paged.insert(1), whole.insert(1));
        paged.clear();
        assert!(paged.is_empty() && paged.iter().next().is_none() && paged.vacant_key() == 0);
    }

    #[test]
    fn growing_moves_no_value() {
        let mut slab = PagedSlab::new();
        let places: Vec<*const u64> = (0..PAGE as u64)
            .map(|value| slab.insert(value))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|key| core::ptr::from_ref(&slab[key]))
            .collect();
        for value in 0..100_000 {
            slab.insert(value);
        }
        for (key, place) in places.into_iter().enumerate() {
            assert!(core::ptr::eq(&slab[key], place));
        }
        // A page more at most.
        assert!(slab.capacity() - slab.len() < PAGE);
    }
}
