use super::*;
use std::collections::{BTreeMap, VecDeque};

const CONTACT: &[u8] = b"sip:192.0.2.1:5060";
const WANTED: Duration = Duration::from_micros(12_500);
const LIMIT: u64 = 25;

fn call(number: u64) -> Vec<u8> {
    let mut text =
        format!("INVITE sip:a@b SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK{number}\r\n");
    text.push_str(&"X: y\r\n".repeat(40));
    text.into_bytes()
}

/// What a message is about.
#[derive(Clone, Copy)]
enum Comes {
    Invite(u64),
    /// What else belongs to a call that was taken.
    Rest,
    /// The ACK of a refusal.
    Ack,
}

/// A socket with its thread, in steps of a millisecond. A call takes ten units of work, seven of them when it comes and three
/// when it ends, a refusal two; callers send what was not answered again, as RFC 3261 has it.
struct Flood {
    queue: Queue,
    sieve: Option<Sieve>,
    /// Units of work in each millisecond.
    power: f64,
    left: f64,
    now: u64,
    number: u64,
    due: f64,
    waiting: VecDeque<(u64, Comes)>,
    later: BTreeMap<u64, Vec<(Comes, u64)>>,
    /// Calls without an answer: when they came first.
    open: BTreeMap<u64, u64>,
    percent: Option<u32>,
    taken: u64,
    late: u64,
    refused: u64,
    dropped: u64,
    slow: u64,
}

impl Flood {
    /// A thread that can take so many calls a second.
    fn new(calls: f64) -> Flood {
        Flood {
            queue: Queue::new(SocketId(1)),
            sieve: None,
            power: calls / 100.0,
            left: 0.0,
            now: 0,
            number: 0,
            due: 0.0,
            waiting: VecDeque::new(),
            later: BTreeMap::new(),
            open: BTreeMap::new(),
            percent: Some(5),
            taken: 0,
            late: 0,
            refused: 0,
            dropped: 0,
            slow: 0,
        }
    }

    fn comes(&mut self, what: Comes, gap: u64) {
        let Comes::Invite(number) = what else {
            self.waiting.push_back((self.now, what));
            return;
        };
        if !self.open.contains_key(&number) {
            return;
        }
        if gap <= 16_000 {
            let again = self.later.entry(self.now + gap).or_default();
            again.push((what, gap * 2));
        }
        match self
            .sieve
            .as_ref()
            .is_none_or(|sieve| sieve.passes(&call(number)))
        {
            true => self.waiting.push_back((self.now, what)),
            false => self.dropped += 1,
        }
    }

    fn serves(&mut self, came: u64, what: Comes) {
        let waited = self.now - came;
        self.queue.comes_after(Duration::from_millis(waited));
        self.left -= match what {
            Comes::Rest => 3.0,
            Comes::Ack => 0.5,
            Comes::Invite(number) => {
                let first = self.open.get(&number).copied();
                let beyond = self.queue.is_beyond(&call(number), ALL);
                match first {
                    // A repetition of what is known.
                    None => 1.0,
                    Some(_) if waited > LIMIT || beyond => {
                        match beyond {
                            true => self.queue.refused_beyond(),
                            false => self.queue.refused_late(Time::from_millis(came)),
                        }
                        self.refused += 1;
                        self.open.remove(&number);
                        self.later
                            .entry(self.now + 2)
                            .or_default()
                            .push((Comes::Ack, 0));
                        1.5
                    }
                    Some(first) => {
                        self.queue.taken += 1;
                        self.taken += 1;
                        self.late += u64::from(self.now - first > 400);
                        self.slow += u64::from(self.now - first > 30);
                        self.open.remove(&number);
                        self.later
                            .entry(self.now + 1_000)
                            .or_default()
                            .push((Comes::Rest, 0));
                        7.0
                    }
                }
            }
        };
    }

    /// `calls` a second for so many seconds.
    fn run(&mut self, calls: f64, seconds: u64) {
        for _ in 0..seconds * 1_000 {
            self.now += 1;
            self.due += calls / 1_000.0;
            while self.due >= 1.0 {
                self.due -= 1.0;
                self.number += 1;
                self.open.insert(self.number, self.now);
                self.comes(Comes::Invite(self.number), 500);
            }
            for (what, gap) in self.later.remove(&self.now).unwrap_or_default() {
                self.comes(what, gap);
            }
            self.left = (self.left + self.power).min(self.power.max(10.0));
            while self.left > 0.0
                && let Some((came, what)) = self.waiting.pop_front()
            {
                self.serves(came, what);
            }
            if self.now.is_multiple_of(LOOK.as_millis() as u64) {
                let share = self.queue.look(
                    WANTED,
                    self.percent,
                    || CONTACT,
                    99,
                    Time::from_millis(self.now),
                );
                let sieve = share.and_then(|share| self.queue.let_through(share));
                self.sieve = sieve.unwrap_or(self.sieve);
            }
        }
    }

    fn forget(&mut self) {
        (self.taken, self.late, self.refused, self.dropped, self.slow) = (0, 0, 0, 0, 0);
    }
}

#[test]
fn refusals_are_held_to_their_share_and_the_peak_is_taken() {
    for times in [1.3, 2.0, 10.0, 20.0] {
        let mut flood = Flood::new(800.0);
        flood.run(800.0 * times, 15);
        flood.forget();
        flood.run(800.0 * times, 30);
        // A refusal with its ACK takes a fifth of what a call takes, here.
        let taken = flood.taken as f64 / (800.0 * 30.0);
        let refused = flood.refused as f64 / (800.0 * 30.0);
        assert!(taken >= 0.93, "{times}: {taken}");
        assert!(taken + refused / 5.0 >= 0.96, "{times}: {taken} {refused}");
        assert!(refused <= 0.2, "{times}: {refused}");
        assert!(
            flood.late * 200 <= flood.taken,
            "{times}: {} late",
            flood.late
        );
        assert!(
            flood.slow * 100 <= flood.taken,
            "{times}: {} slow",
            flood.slow
        );
    }
}

#[test]
fn what_is_within_the_share_is_all_answered() {
    let mut flood = Flood::new(800.0);
    flood.run(815.0, 60);
    assert!(flood.refused > 0);
    assert!(flood.dropped * 100 <= flood.number, "{}", flood.dropped);
}

#[test]
fn when_the_flood_is_over_everything_comes_through_again() {
    for times in [2.0, 10.0] {
        let mut flood = Flood::new(800.0);
        flood.run(800.0 * times, 40);
        assert!(flood.queue.drops());
        // Those who were dropped come again for half a minute, and are answered then.
        flood.run(400.0, 55);
        assert!(!flood.queue.sifts(), "{times}: {:?}", flood.queue);
        assert_eq!(flood.sieve, None);
        flood.forget();
        flood.run(400.0, 10);
        assert_eq!((flood.taken, flood.refused, flood.late), (4_000, 0, 0));
    }
}

/// A flood of a second is no reason to refuse anybody for long.
#[test]
fn what_was_short_is_soon_over() {
    let mut flood = Flood::new(800.0);
    flood.run(600.0, 5);
    flood.run(3_000.0, 1);
    flood.run(600.0, 6);
    flood.forget();
    flood.run(600.0, 10);
    assert!(flood.taken >= 5_990, "{}", flood.taken);
}

#[test]
fn a_call_that_was_dropped_is_not_taken_when_it_comes_again() {
    let mut flood = Flood::new(800.0);
    flood.run(8_000.0, 40);
    let before = flood.late;
    flood.run(400.0, 40);
    assert!(
        (flood.late - before) * 100 <= flood.taken,
        "{}",
        flood.late - before
    );
}

#[test]
fn requests_of_dialogs_and_calls_for_help_are_spared() {
    let mut flood = Flood::new(10.0);
    flood.run(50_000.0, 2);
    let sieve = flood.sieve.unwrap();
    for begin in [
        "INVITE sip:192.0.2.1:5060 SIP/2.0",
        "INVITE urn:service:sos SIP/2.0",
        "BYE sip:a@b SIP/2.0",
    ] {
        let text = format!("{begin}\r\n{}", "X: y\r\n".repeat(60));
        assert!(sieve.passes(text.as_bytes()), "{begin}");
        assert!(!flood.queue.is_beyond(text.as_bytes(), 0), "{begin}");
    }
}

#[test]
fn where_every_refusal_is_said_nothing_is_dropped() {
    let mut flood = Flood::new(800.0);
    flood.percent = None;
    flood.run(2_000.0, 20);
    assert_eq!((flood.dropped, flood.sieve), (0, None));
    assert!(
        flood.refused > 10_000 && flood.slow * 50 <= flood.taken,
        "{}",
        flood.slow
    );
}

/// What others have dropped is refused, though here there is room.
#[test]
fn what_another_worker_dropped_is_known() {
    let mut queue = Queue::new(SocketId(1));
    queue.line_up(99, || CONTACT);
    let beyond = |clean| {
        (0..1_000)
            .filter(|n| queue.is_beyond(&call(*n), clean))
            .count()
    };
    assert_eq!(beyond(ALL), 0);
    assert!((450..550).contains(&beyond(ALL / 2)), "{}", beyond(ALL / 2));
}

/// A thread that stood still for half a second in the midst of a flood soon takes as much as before.
#[test]
fn a_standstill_is_soon_over() {
    for times in [2.0, 5.0, 10.0] {
        let mut flood = Flood::new(1_000.0);
        flood.run(1_000.0 * times, 1);
        flood.left = -5_000.0;
        flood.run(1_000.0 * times, 4);
        flood.forget();
        flood.run(1_000.0 * times, 5);
        assert!(flood.taken >= 4_300, "{times}: {}", flood.taken);
        assert_eq!(flood.late, 0);
    }
}
