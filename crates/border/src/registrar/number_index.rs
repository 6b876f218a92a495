//! Registered users whose name begins with a prefix of `numbers`: a system that registers one of its numbers is reached
//! at all of them. Other users are not in the index.

use core::ops::Bound;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of users that are found for a prefix.
const MAX_FOUND: usize = 64;

/// Users in the order of their names.
#[derive(Debug, Default)]
pub(super) struct NumberIndex {
    /// None begins with another one. With the number of its users.
    prefixes: BTreeMap<Box<str>, usize>,
    users: BTreeSet<Box<str>>,
}

impl NumberIndex {
    /// Applies new prefixes; `users` are all registered users.
    pub(super) fn set_prefixes<'u>(
        &mut self,
        mut prefixes: Vec<Box<str>>,
        users: impl Iterator<Item = &'u str>,
    ) {
        // A prefix follows those that it begins with.
        prefixes.sort_unstable();
        prefixes.dedup_by(|next, last| next.starts_with(&**last));
        self.prefixes = prefixes.into_iter().map(|prefix| (prefix, 0)).collect();
        self.users.clear();
        users.for_each(|user| self.insert(user));
    }

    pub(super) fn insert(&mut self, user: &str) {
        if let Some(users) = count_of(&mut self.prefixes, user)
            && self.users.insert(user.into())
        {
            *users += 1;
        }
    }

    pub(super) fn remove(&mut self, user: &str) {
        if self.users.remove(user)
            && let Some(users) = count_of(&mut self.prefixes, user)
        {
            *users -= 1;
        }
    }

    /// Number of registered users whose name begins with this prefix.
    pub(super) fn count(&self, prefix: &str) -> usize {
        self.prefixes.get(prefix).copied().unwrap_or(0)
    }

    /// Registered users whose name begins with `prefix`.
    pub(super) fn users_below<'i>(&'i self, prefix: &'i str) -> impl Iterator<Item = &'i str> {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let users = self.users.range::<str, _>(from);
        users
            .map(|user| &**user)
            .take_while(move |user| user.starts_with(prefix))
            .take(MAX_FOUND)
    }
}

/// The number of users of the prefix that a user begins with.
fn count_of<'p>(prefixes: &'p mut BTreeMap<Box<str>, usize>, user: &str) -> Option<&'p mut usize> {
    let upto = (Bound::Unbounded, Bound::Included(user));
    let (prefix, users) = prefixes.range_mut::<str, _>(upto).next_back()?;
    user.starts_with(&**prefix).then_some(users)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_prefix() {
        let mut index = NumberIndex::default();
        let prefixes = ["+4312345", "+43", "99", "+431"].map(Box::from).to_vec();
        let before = ["+43699", "alice", "99", "100"];
        index.set_prefixes(prefixes, before.into_iter());
        for user in ["+4312345", "+44", "+4", "990", "98", ""] {
            index.insert(user);
        }
        let found = |index: &NumberIndex, prefix: &str| {
            let users: Vec<String> = index.users_below(prefix).map(str::to_owned).collect();
            users
        };
        assert_eq!(found(&index, "+43"), ["+4312345", "+43699"]);
        assert_eq!(found(&index, "+4312345"), ["+4312345"]);
        assert_eq!(found(&index, "99"), ["99", "990"]);
        assert_eq!((index.count("+43"), index.count("99")), (2, 2));
        index.remove("99");
        assert_eq!(found(&index, "9"), ["990"]);
        assert_eq!((index.count("99"), index.count("98")), (1, 0));
        index.set_prefixes(vec!["1".into()], before.into_iter());
        assert_eq!(found(&index, ""), ["100"]);
        for number in 0..1_000 {
            index.insert(&format!("1{number}"));
        }
        assert_eq!(found(&index, "1").len(), MAX_FOUND);
    }
}
