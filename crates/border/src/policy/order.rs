//! Order by priority and weight, as in RFC 2782 for SRV records.

/// A step of SplitMix64, which derives the draws of a decision from one random value.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut value = *state;
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Indices of `entries` (priority, weight) in the order to try them: lower priority values first, equal ones in random
/// order by weight. Entries of weight 0 follow the others of their priority in their order.
pub fn in_order(entries: impl Iterator<Item = (u16, u16)>, random: &mut u64) -> Vec<usize> {
    let mut waiting: Vec<(usize, u16, u16)> = entries
        .enumerate()
        .map(|(index, (priority, weight))| (index, priority, weight))
        .collect();
    waiting.sort_by_key(|&(index, priority, weight)| (priority, weight == 0, index));
    let mut order = Vec::with_capacity(waiting.len());
    let mut at = 0;
    while let Some(&(_, priority, _)) = waiting.get(at) {
        let same = waiting
            .iter()
            .skip(at)
            .take_while(|entry| entry.1 == priority)
            .count();
        let mut group: Vec<(usize, u16)> = waiting
            .iter()
            .skip(at)
            .take(same)
            .map(|&(index, _, weight)| (index, weight))
            .collect();
        at += same;
        while !group.is_empty() {
            let chosen = choose(&group, random);
            order.push(group.remove(chosen).0);
        }
    }
    order
}

/// Chooses one of the group by weight; the first if all weights are 0.
fn choose(group: &[(usize, u16)], random: &mut u64) -> usize {
    let total: u64 = group.iter().map(|entry| u64::from(entry.1)).sum();
    if total == 0 || group.len() == 1 {
        return 0;
    }
    let mut left = ((u128::from(draw(random)) * u128::from(total)) >> 64) as u64;
    for (at, entry) in group.iter().enumerate() {
        match left.checked_sub(u64::from(entry.1)) {
            Some(rest) => left = rest,
            None => return at,
        }
    }
    0
}
