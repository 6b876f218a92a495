//! How much of an overload is read at all, for each socket.

use engine::{Prefix, Sieve, SocketId, Time};

/// Everything comes through.
const ALL: u32 = 65_536;
/// The least that comes through: one of a thousand, so that it shows when the flood is over.
const LEAST: u32 = 64;
/// Refusals that may always be said between two looks.
const FREE: u64 = 2;
/// A call that was dropped is sent again for this long (Timer B of RFC 3261 section 17.1.1.2, with T1 of 500 ms).
const AGAIN: usize = 32;

/// What is known of the queue of one socket.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) socket: SocketId,
    /// Since when every message has waited too long.
    pub(super) above: Option<Time>,
    /// New calls taken since the last look.
    pub(super) taken: u64,
    /// New calls refused since the last look.
    pub(super) refused: u64,
    sifting: Option<Sifting>,
}

/// What stands before a socket, and stood there lately.
#[derive(Debug)]
struct Sifting {
    sieve: Sieve,
    /// What comes through, of [`ALL`].
    share: u32,
    /// The least of it in each of the last seconds.
    least: [u32; AGAIN],
    second: u64,
}

impl Sifting {
    fn passes(&mut self, share: u32, now: Time) {
        let second = now.since(Time::ZERO).as_secs();
        let new = second.saturating_sub(self.second).min(AGAIN as u64);
        for back in 0..new {
            if let Some(least) = self
                .least
                .get_mut(((second - back) % AGAIN as u64) as usize)
            {
                *least = self.share.min(share);
            }
        }
        if let Some(least) = self.least.get_mut((second % AGAIN as u64) as usize) {
            *least = share.min(*least);
        }
        self.second = second;
        self.share = share;
        self.sieve.share = u16::try_from(share).unwrap_or(u16::MAX);
    }
}

impl Queue {
    pub(super) fn new(socket: SocketId) -> Queue {
        Queue {
            socket,
            above: None,
            taken: 0,
            refused: 0,
            sifting: None,
        }
    }

    /// New calls since the last look, with those that were dropped unread as far as can be told.
    pub(super) fn offered(&self) -> u64 {
        let share = self.sifting.as_ref().map_or(ALL, |sifting| sifting.share);
        (self.taken + self.refused) * u64::from(ALL) / u64::from(share.max(1))
    }

    /// Whether anything is dropped unread at present.
    pub(super) fn sifts(&self) -> bool {
        self.sifting
            .as_ref()
            .is_some_and(|sifting| sifting.share < ALL)
    }

    /// Whether the sieve has perhaps dropped this call when it was sent before.
    pub(super) fn may_have_dropped(&self, bytes: &[u8]) -> bool {
        self.sifting.as_ref().is_some_and(|sifting| {
            let least = sifting.least.iter().copied().min().unwrap_or(ALL);
            let place = sifting.sieve.place(bytes);
            place.is_some_and(|place| u32::from(place) >= least)
        })
    }

    /// Holds the refusals since the last look against the calls taken, of which they may be `percent`; `None`: there may be
    /// any number. Gives what stands before the socket from now on, where that changes.
    pub(super) fn look<'c>(
        &mut self,
        percent: Option<u32>,
        contact: impl FnOnce() -> &'c [u8],
        salt: impl FnOnce() -> u32,
        now: Time,
    ) -> Option<Option<Sieve>> {
        let taken = core::mem::take(&mut self.taken);
        let refused = core::mem::take(&mut self.refused);
        let old = self.sifting.as_ref().map_or(ALL, |sifting| sifting.share);
        let share = percent.map_or(ALL, |percent| {
            let may = FREE.max(taken * u64::from(percent) / 100);
            match refused > may {
                // Not all at once: what was counted in a tenth of a second is a guess.
                true => {
                    let fair = u64::from(old) * (taken + may) / (taken + refused);
                    LEAST.max(old / 2).max(u32::try_from(fair).unwrap_or(ALL))
                }
                false => ALL.min(old + old / 10 + LEAST),
            }
        });
        if share == ALL && self.sifting.is_none() {
            return None;
        }
        let sifting = self.sifting.get_or_insert_with(|| Sifting {
            sieve: Sieve {
                sifted: Prefix::new(b"INVITE "),
                // Requests inside of dialogs are addressed to our Contact; calls for help to a service.
                spared: [
                    Prefix::new(&[b"INVITE ", contact()].concat()),
                    Prefix::new(b"INVITE urn:"),
                ],
                share: u16::MAX,
                salt: salt(),
            },
            share: ALL,
            least: [ALL; AGAIN],
            second: now.since(Time::ZERO).as_secs(),
        });
        sifting.passes(share, now);
        (share != old).then(|| (share < ALL).then_some(sifting.sieve))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    const CONTACT: &[u8] = b"sip:192.0.2.1:5060";

    /// A socket at which so many calls come in each tenth of a second, of which so many can be taken.
    struct Flood {
        queue: Queue,
        sieve: Option<Sieve>,
        number: u64,
        now: Time,
    }

    impl Flood {
        fn new() -> Flood {
            Flood {
                queue: Queue::new(SocketId(1)),
                sieve: None,
                number: 0,
                now: Time::from_secs(100),
            }
        }

        fn call(number: u64) -> Vec<u8> {
            let mut text =
                format!("INVITE sip:a@b SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK{number}\r\n");
            text.push_str(&"X: y\r\n".repeat(40));
            text.into_bytes()
        }

        /// What was taken, refused and dropped.
        fn tenth(&mut self, calls: u64, can: u64) -> (u64, u64, u64) {
            let mut dropped = 0;
            for _ in 0..calls {
                self.number += 1;
                let passes = |sieve: &Sieve| sieve.passes(&Flood::call(self.number));
                match self.sieve.as_ref().is_none_or(passes) {
                    false => dropped += 1,
                    true if self.queue.taken < can => self.queue.taken += 1,
                    true => self.queue.refused += 1,
                }
            }
            let (taken, refused) = (self.queue.taken, self.queue.refused);
            self.now += Duration::from_millis(100);
            let new = self.queue.look(Some(50), || CONTACT, || 99, self.now);
            if let Some(sieve) = new {
                self.sieve = sieve;
            }
            (taken, refused, dropped)
        }
    }

    #[test]
    fn refusals_are_held_to_their_share_and_the_peak_is_taken() {
        for times in [2, 10, 50] {
            let mut flood = Flood::new();
            for _ in 0..30 {
                flood.tenth(80 * times, 80);
            }
            let mut sum = (0, 0, 0);
            for _ in 0..100 {
                let (taken, refused, dropped) = flood.tenth(80 * times, 80);
                sum = (sum.0 + taken, sum.1 + refused, sum.2 + dropped);
            }
            assert!(sum.0 >= 7_840, "{times}: {sum:?}");
            assert!(sum.1 <= 8_000 * 60 / 100, "{times}: {sum:?}");
            assert_eq!(sum.0 + sum.1 + sum.2, 8_000 * times);
        }
    }

    #[test]
    fn what_is_within_the_share_is_all_read() {
        let mut flood = Flood::new();
        for _ in 0..100 {
            let (_, _, dropped) = flood.tenth(110, 80);
            assert_eq!(dropped, 0);
        }
        assert!(!flood.queue.sifts());
    }

    #[test]
    fn when_the_flood_is_over_everything_comes_through_again() {
        let mut flood = Flood::new();
        for _ in 0..50 {
            flood.tenth(4_000, 80);
        }
        assert!(flood.queue.sifts());
        let mut looks = 0;
        while flood.queue.sifts() {
            flood.tenth(40, 80);
            looks += 1;
        }
        assert!(looks <= 80, "{looks}");
        assert_eq!(flood.sieve, None);
    }

    #[test]
    fn a_call_that_was_dropped_is_known_when_it_comes_again() {
        let mut flood = Flood::new();
        for _ in 0..50 {
            flood.tenth(800, 80);
        }
        let sieve = flood.sieve.unwrap();
        let dropped: Vec<Vec<u8>> = (0..200)
            .map(Flood::call)
            .filter(|call| !sieve.passes(call))
            .collect();
        // The flood ends within a few seconds, and soon everything comes through.
        while flood.queue.sifts() {
            flood.tenth(40, 80);
        }
        assert!(
            dropped
                .iter()
                .all(|call| flood.queue.may_have_dropped(call))
        );
        let first = (0..200)
            .map(Flood::call)
            .filter(|call| !flood.queue.may_have_dropped(call));
        assert!(first.count() > 0, "the others come for the first time");
        // After as long as they are sent again, no call is old.
        for _ in 0..330 {
            flood.tenth(40, 80);
        }
        assert!(
            !dropped
                .iter()
                .any(|call| flood.queue.may_have_dropped(call))
        );
    }

    #[test]
    fn requests_of_dialogs_and_calls_for_help_are_spared() {
        let mut flood = Flood::new();
        for _ in 0..100 {
            flood.tenth(100_000 / 20, 1);
        }
        let sieve = flood.sieve.unwrap();
        for begin in [
            "INVITE sip:192.0.2.1:5060 SIP/2.0",
            "INVITE urn:service:sos SIP/2.0",
            "BYE sip:a@b SIP/2.0",
        ] {
            let text = format!("{begin}\r\n{}", "X: y\r\n".repeat(60));
            assert!(sieve.passes(text.as_bytes()), "{begin}");
        }
    }

    #[test]
    fn where_every_refusal_is_said_nothing_is_sifted() {
        let mut queue = Queue::new(SocketId(1));
        queue.refused = 10_000;
        assert_eq!(queue.look(None, || CONTACT, || 1, Time::from_secs(1)), None);
    }
}
