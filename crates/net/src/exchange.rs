//! What workers hand to each other: each has a mailbox, into which the others put what is its in bundles, once per turn. The
//! cost of a lock and, where the owner sleeps, of waking it is so shared by all that is handed over in a turn.

use crate::media::Waker;
use engine::worker::lock;
use engine::{Parcel, ParcelHead};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Bytes that may lie in a mailbox; a worker that is so far behind loses what comes then, as a full socket would.
const MOST: usize = 16 << 20;

/// Parcels in one block.
#[derive(Debug, Default)]
pub(crate) struct Bundle {
    heads: Vec<(ParcelHead, u32)>,
    bytes: Vec<u8>,
}

impl Bundle {
    fn clear(&mut self) {
        self.heads.clear();
        self.bytes.clear();
    }

    fn append(&mut self, other: &Bundle) {
        self.heads.extend_from_slice(&other.heads);
        self.bytes.extend_from_slice(&other.bytes);
    }

    /// The parcels, in order.
    pub(crate) fn parcels(&self) -> impl Iterator<Item = Parcel<'_>> {
        let mut rest = self.bytes.as_slice();
        self.heads.iter().map(move |&(head, length)| {
            // Each length was that of what was appended.
            let (bytes, after) = rest.split_at_checked(length as usize).unwrap_or_default();
            rest = after;
            Parcel { head, bytes }
        })
    }
}

#[derive(Debug, Default)]
struct Mailbox {
    waiting: Mutex<Bundle>,
    /// Whether there is something in it, so that looking costs no lock.
    filled: AtomicBool,
    owner: OnceLock<Waker>,
}

/// A worker's place at the exchange: see [`crate::Driver::join`].
#[derive(Debug)]
pub struct Desk {
    number: u8,
    mailboxes: Arc<[Mailbox]>,
    /// What leaves at the end of this turn, for each.
    out: Vec<Bundle>,
    inbox: Bundle,
}

/// Desks for `workers` of one host.
pub fn desks(workers: u8) -> Vec<Desk> {
    let mailboxes: Arc<[Mailbox]> = (0..workers).map(|_| Mailbox::default()).collect();
    let desk = |number| Desk {
        number,
        mailboxes: mailboxes.clone(),
        out: (0..workers).map(|_| Bundle::default()).collect(),
        inbox: Bundle::default(),
    };
    (0..workers).map(desk).collect()
}

impl Desk {
    /// Which worker's it is.
    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    fn own(&self) -> Option<&Mailbox> {
        self.mailboxes.get(usize::from(self.number))
    }

    /// Who is woken when something comes.
    pub(crate) fn open(&self, waker: Waker) {
        if let Some(own) = self.own() {
            // Each desk joins one driver.
            let _ = own.owner.set(waker);
        }
    }

    /// Puts a parcel with what leaves at the end of the turn; `false`: there is no such worker.
    pub(crate) fn put(&mut self, worker: u8, parcel: Parcel<'_>) -> bool {
        let Some(bundle) = self.out.get_mut(usize::from(worker)) else {
            return false;
        };
        bundle.bytes.extend_from_slice(parcel.bytes);
        bundle.heads.push((parcel.head, parcel.bytes.len() as u32));
        true
    }

    /// Delivers what was put; gives how many parcels there was no room for.
    pub(crate) fn post(&mut self) -> usize {
        let mut lost = 0;
        for (bundle, mailbox) in self.out.iter_mut().zip(self.mailboxes.iter()) {
            if bundle.heads.is_empty() {
                continue;
            }
            let mut waiting = lock(&mailbox.waiting);
            if waiting.heads.is_empty() {
                core::mem::swap(&mut *waiting, bundle);
            } else if waiting.bytes.len() + bundle.bytes.len() <= MOST {
                waiting.append(bundle);
            } else {
                lost += bundle.heads.len();
            }
            mailbox.filled.store(true, Ordering::SeqCst);
            drop(waiting);
            bundle.clear();
            if let Some(owner) = mailbox.owner.get() {
                owner.nudge();
            }
        }
        lost
    }

    /// Whether something has come.
    pub(crate) fn has_come(&self) -> bool {
        self.own()
            .is_some_and(|own| own.filled.load(Ordering::SeqCst))
    }

    /// Takes what has come; to be given back by [`Desk::done`].
    pub(crate) fn take(&mut self) -> Bundle {
        let mut taken = core::mem::take(&mut self.inbox);
        if let Some(own) = self.own() {
            let mut waiting = lock(&own.waiting);
            own.filled.store(false, Ordering::SeqCst);
            core::mem::swap(&mut *waiting, &mut taken);
        }
        taken
    }

    /// Gives a bundle back, whose room serves again.
    pub(crate) fn done(&mut self, mut bundle: Bundle) {
        bundle.clear();
        self.inbox = bundle;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::ConnectionId;

    fn parcel(number: u64, bytes: &[u8]) -> Parcel<'_> {
        let connection = ConnectionId(number);
        let head = ParcelHead::Closed { connection };
        Parcel { head, bytes }
    }

    #[test]
    fn what_is_handed_over_comes_whole_and_in_order() {
        let mut desks = desks(2);
        for round in 0..3 {
            assert!(desks[0].put(1, parcel(round * 2, b"one")));
            assert!(desks[0].put(1, parcel(round * 2 + 1, b"")));
            assert_eq!(desks[0].post(), 0);
        }
        assert!(!desks[0].put(2, parcel(0, b"")), "there is no such worker");
        assert!(desks[1].has_come() && !desks[0].has_come());
        let bundle = desks[1].take();
        let numbers: Vec<(ParcelHead, usize)> = bundle
            .parcels()
            .map(|parcel| (parcel.head, parcel.bytes.len()))
            .collect();
        let expected: Vec<(ParcelHead, usize)> = (0..6)
            .map(|number| {
                (
                    parcel(number, b"").head,
                    if number % 2 == 0 { 3 } else { 0 },
                )
            })
            .collect();
        assert_eq!(numbers, expected);
        desks[1].done(bundle);
        assert!(!desks[1].has_come() && desks[1].take().heads.is_empty());
    }

    #[test]
    fn a_full_mailbox_takes_no_more_and_says_so() {
        let mut desks = desks(2);
        let much = vec![0; MOST / 2 + 1];
        for lost in [0, 1] {
            desks[0].put(1, parcel(1, &much));
            assert_eq!(desks[0].post(), lost);
        }
        assert_eq!(desks[1].take().heads.len(), 1);
    }
}
