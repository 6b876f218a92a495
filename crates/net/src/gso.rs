//! Plans which datagrams of a batch are sent together as GSO bursts.

use crate::batch::{BATCH, MAX_GSO_BYTES, MAX_GSO_SEGMENT};
use engine::Time;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Size of the table of order numbers; numbers that share a slot are also kept in order with each other.
const ORDER_SLOTS: usize = 64;

/// Destinations whose path refuses longer segments, at most; the oldest entry is replaced.
const MAX_PATHS: usize = 64;
/// Time after which longer segments are tried again.
const PATH_LIFETIME: Duration = Duration::from_secs(600);

/// A queued datagram, reduced to the properties that the plan needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingDatagram {
    pub(crate) destination: SocketAddr,
    pub(crate) length: usize,
    /// Datagrams with the same number are sent in the order in which they were queued; 0: in order with all.
    pub(crate) order: u32,
}

#[derive(Clone, Copy, Debug)]
struct GsoBurst {
    destination: SocketAddr,
    length: usize,
    first: u8,
    last: u8,
    segments: u8,
}

/// The plan for one batch: bursts of datagrams of equal length to one destination.
#[derive(Debug)]
pub(crate) struct GsoPlan {
    bursts: Vec<GsoBurst>,
    /// For each datagram the next one of its burst; itself at the end.
    next: [u8; BATCH],
    /// For each order slot, one more than the index of the last burst that contains it.
    last_burst: [u8; ORDER_SLOTS],
    /// Bursts before this index are closed.
    barrier: usize,
    /// Destinations with the length below which segments fit into a packet of the path, the oldest first.
    paths: Vec<(IpAddr, usize, Time)>,
}

impl GsoPlan {
    pub(crate) fn new() -> GsoPlan {
        GsoPlan {
            bursts: Vec::with_capacity(BATCH),
            next: [0; BATCH],
            last_burst: [0; ORDER_SLOTS],
            barrier: 0,
            paths: Vec::new(),
        }
    }

    /// The path to `destination` has refused segments of this length: a segment must fit into one packet.
    pub(crate) fn limit_segments(&mut self, destination: IpAddr, length: usize, now: Time) {
        self.paths.retain(|(ip, known, until)| {
            let replaced = *ip == destination && *known >= length;
            !replaced && *until > now
        });
        if self.paths.len() >= MAX_PATHS {
            self.paths.remove(0);
        }
        self.paths.push((destination, length, now + PATH_LIFETIME));
    }

    /// Forgets paths whose time is over.
    pub(crate) fn expire_paths(&mut self, now: Time) {
        if self
            .paths
            .first()
            .is_some_and(|(_, _, until)| *until <= now)
        {
            self.paths.retain(|(_, _, until)| *until > now);
        }
    }

    fn is_too_long(&self, waiting: &PendingDatagram) -> bool {
        let too_long = |(ip, length, _): &(IpAddr, usize, Time)| {
            *ip == waiting.destination.ip() && waiting.length >= *length
        };
        self.paths.iter().any(too_long)
    }

    pub(crate) fn clear(&mut self) {
        self.bursts.clear();
        self.last_burst = [0; ORDER_SLOTS];
        self.barrier = 0;
    }

    /// Appends datagram `index` (less than [`BATCH`], ascending) to the first burst that it may join.
    pub(crate) fn add(&mut self, index: usize, waiting: PendingDatagram) {
        let slot = waiting.order as usize % ORDER_SLOTS;
        let (from, strict) = match waiting.order {
            0 => (self.bursts.len().saturating_sub(1), true),
            _ => (usize::from(self.last_burst[slot]).saturating_sub(1), false),
        };
        let from = match self.is_too_long(&waiting) {
            true => self.bursts.len(),
            false => from.max(self.barrier),
        };
        let joined = self
            .bursts
            .iter_mut()
            .enumerate()
            .skip(from)
            .find(|(_, burst)| burst.accepts(&waiting));
        let number = match joined {
            Some((number, burst)) => {
                self.next[usize::from(burst.last)] = index as u8;
                burst.last = index as u8;
                burst.segments += 1;
                number
            }
            None => {
                self.bursts.push(GsoBurst {
                    destination: waiting.destination,
                    length: waiting.length,
                    first: index as u8,
                    last: index as u8,
                    segments: 1,
                });
                self.bursts.len() - 1
            }
        };
        self.next[index] = index as u8;
        if strict {
            // Later datagrams must not overtake it.
            self.barrier = number;
        } else {
            self.last_burst[slot] = number as u8 + 1;
        }
    }

    /// The bursts in sending order; each yields the indices of its datagrams in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = impl Iterator<Item = usize> + '_> + '_ {
        let next_of = &self.next;
        self.bursts.iter().map(move |burst| {
            let mut at = Some(burst.first);
            std::iter::from_fn(move || {
                let index = at?;
                let next = next_of[usize::from(index)];
                at = (next != index).then_some(next);
                Some(usize::from(index))
            })
        })
    }
}

impl GsoBurst {
    fn accepts(&self, waiting: &PendingDatagram) -> bool {
        self.length == waiting.length
            && waiting.length > 0
            && waiting.length <= MAX_GSO_SEGMENT
            && self.destination == waiting.destination
            && (usize::from(self.segments) + 1) * self.length <= MAX_GSO_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(datagrams: &[(u16, usize, u32)]) -> Vec<Vec<usize>> {
        let mut bursts = GsoPlan::new();
        bursts.clear();
        for (index, &(port, length, order)) in datagrams.iter().enumerate() {
            bursts.add(
                index,
                PendingDatagram {
                    destination: ([127, 0, 0, 1], port).into(),
                    length,
                    order,
                },
            );
        }
        bursts.iter().map(Iterator::collect).collect()
    }

    #[test]
    fn datagrams_of_equal_length_are_sent_together() {
        let got = plan(&[
            (1, 300, 7),
            (1, 400, 7),
            (1, 300, 8),
            (2, 300, 9),
            (1, 400, 8),
        ]);
        assert_eq!(got, [vec![0, 2], vec![1, 4], vec![3]]);
    }

    #[test]
    fn datagrams_of_one_order_number_are_not_reordered() {
        // The second 400 belongs to the call of the 300: it must not join the burst before it.
        let got = plan(&[(1, 400, 5), (1, 300, 6), (1, 400, 6), (1, 300, 5)]);
        assert_eq!(got, [vec![0], vec![1, 3], vec![2]]);
    }

    #[test]
    fn without_order_numbers_all_datagrams_stay_in_order() {
        let got = plan(&[
            (1, 300, 0),
            (1, 300, 0),
            (1, 400, 0),
            (1, 300, 0),
            (1, 300, 3),
        ]);
        assert_eq!(got, [vec![0, 1], vec![2], vec![3, 4]]);
    }

    #[test]
    fn datagrams_larger_than_a_packet_are_sent_alone() {
        let got = plan(&[(1, 1_500, 1), (1, 1_500, 2), (1, 0, 3), (1, 0, 4)]);
        assert_eq!(got.len(), 4);
    }

    #[test]
    fn burst_size_is_limited() {
        let many: Vec<_> = (1..=60).map(|order| (1, 1_400, order)).collect();
        let got = plan(&many);
        assert_eq!(got.len(), 2);
        assert!(got.iter().all(|burst| burst.len() * 1_400 <= MAX_GSO_BYTES));
    }
}
