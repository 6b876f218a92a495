//! Which datagrams of a batch leave together.

use crate::batch::{BATCH, SEGMENT, TRAIN};
use std::net::SocketAddr;

/// Places in the table of what was seen of each order; numbers that share a place are merely kept in order.
const PLACES: usize = 64;

/// A datagram that waits, as the plan for trains sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) destination: SocketAddr,
    pub(crate) length: usize,
    /// Datagrams with the same number leave in the order in which they came; 0: in order with all.
    pub(crate) order: u32,
}

#[derive(Clone, Copy, Debug)]
struct Train {
    destination: SocketAddr,
    length: usize,
    first: u8,
    last: u8,
    wagons: u8,
}

/// The plan for one batch: trains of equal datagrams to one destination.
#[derive(Debug)]
pub(crate) struct Trains {
    trains: Vec<Train>,
    /// For each datagram, the next one of its train; itself at the end.
    next: [u8; BATCH],
    /// For each order number's place, one more than the last train that has it.
    seen: [u8; PLACES],
    /// Trains in front of this one take nobody any more.
    barrier: usize,
}

impl Trains {
    pub(crate) fn new() -> Trains {
        Trains {
            trains: Vec::with_capacity(BATCH),
            next: [0; BATCH],
            seen: [0; PLACES],
            barrier: 0,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.trains.clear();
        self.seen = [0; PLACES];
        self.barrier = 0;
    }

    /// Adds datagram `index` (of fewer than [`BATCH`], rising) to the first train that it may join.
    pub(crate) fn add(&mut self, index: usize, waiting: Waiting) {
        let place = waiting.order as usize % PLACES;
        let (from, strict) = match waiting.order {
            0 => (self.trains.len().saturating_sub(1), true),
            _ => (usize::from(self.seen[place]).saturating_sub(1), false),
        };
        let from = from.max(self.barrier);
        let joined = self
            .trains
            .iter_mut()
            .enumerate()
            .skip(from)
            .find(|(_, train)| train.takes(&waiting));
        let number = match joined {
            Some((number, train)) => {
                self.next[usize::from(train.last)] = index as u8;
                train.last = index as u8;
                train.wagons += 1;
                number
            }
            None => {
                self.trains.push(Train {
                    destination: waiting.destination,
                    length: waiting.length,
                    first: index as u8,
                    last: index as u8,
                    wagons: 1,
                });
                self.trains.len() - 1
            }
        };
        self.next[index] = index as u8;
        if strict {
            // What comes later must not overtake it.
            self.barrier = number;
        } else {
            self.seen[place] = number as u8 + 1;
        }
    }

    /// The trains in the order of leaving; each gives the indices of its datagrams in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = impl Iterator<Item = usize> + '_> + '_ {
        let next_of = &self.next;
        self.trains.iter().map(move |train| {
            let mut at = Some(train.first);
            std::iter::from_fn(move || {
                let index = at?;
                let next = next_of[usize::from(index)];
                at = (next != index).then_some(next);
                Some(usize::from(index))
            })
        })
    }
}

impl Train {
    fn takes(&self, waiting: &Waiting) -> bool {
        self.length == waiting.length
            && waiting.length > 0
            && waiting.length <= SEGMENT
            && self.destination == waiting.destination
            && (usize::from(self.wagons) + 1) * self.length <= TRAIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(datagrams: &[(u16, usize, u32)]) -> Vec<Vec<usize>> {
        let mut trains = Trains::new();
        trains.clear();
        for (index, &(port, length, order)) in datagrams.iter().enumerate() {
            trains.add(
                index,
                Waiting {
                    destination: ([127, 0, 0, 1], port).into(),
                    length,
                    order,
                },
            );
        }
        trains.iter().map(Iterator::collect).collect()
    }

    #[test]
    fn equals_leave_together() {
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
    fn nobody_overtakes_within_an_order() {
        // The second 400 belongs to the call of the 300: it must not join the train in front of it.
        let got = plan(&[(1, 400, 5), (1, 300, 6), (1, 400, 6), (1, 300, 5)]);
        assert_eq!(got, [vec![0], vec![1, 3], vec![2]]);
    }

    #[test]
    fn without_an_order_all_stays_in_order() {
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
    fn what_would_be_cut_up_travels_alone() {
        let got = plan(&[(1, 1_500, 1), (1, 1_500, 2), (1, 0, 3), (1, 0, 4)]);
        assert_eq!(got.len(), 4);
    }

    #[test]
    fn a_train_has_its_limit() {
        let many: Vec<_> = (1..=60).map(|order| (1, 1_400, order)).collect();
        let got = plan(&many);
        assert_eq!(got.len(), 2);
        assert!(got.iter().all(|train| train.len() * 1_400 <= TRAIN));
    }
}
