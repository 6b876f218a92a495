use super::*;
use std::collections::{BTreeMap, VecDeque};

const CONTACT: &[u8] = b"sip:192.0.2.1:5060";
const WANTED: Duration = Duration::from_micros(12_500);
const LIMIT: u64 = 25;

/// An INVITE; only the number is written anew each time.
fn call(number: u64) -> Vec<u8> {
    const START: &[u8] = b"INVITE sip:a@b SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK";
    let mut text = Vec::with_capacity(Sieve::SEEN + 16);
    text.extend_from_slice(START);
    text.extend(
        (0..16)
            .rev()
            .map(|digit| b'a' + (number >> (4 * digit) & 15) as u8),
    );
    text.extend_from_slice(b"\r\nX: ");
    text.resize(Sieve::SEEN + 16, b'y');
    text
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

/// A call takes so many units of work when it comes, so many when it ends; a refusal; its ACK.
const EFFORT: [f64; 4] = [7.0, 3.0, 1.5, 0.5];

/// A thread with its socket.
struct Thread {
    queue: Queue,
    sieve: Option<Sieve>,
    waiting: VecDeque<(u64, Comes)>,
    left: f64,
}

/// Threads with their sockets, in steps of a millisecond. A call takes ten units of work, seven of them when it comes and three
/// when it ends, a refusal two; callers send what was not answered again, as RFC 3261 has it. Each call comes to the thread
/// that it is of.
struct Flood {
    rows: Rows,
    threads: Vec<Thread>,
    /// Units of work in each millisecond, of each thread.
    power: f64,
    /// Calls a second that each of them says it could take; 0: it does not know.
    says: f64,
    now: u64,
    number: u64,
    due: f64,
    later: BTreeMap<u64, Vec<(usize, Comes, u64)>>,
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
        Flood::of(1, calls)
    }

    /// Threads that can take so many calls a second, together.
    fn of(threads: usize, calls: f64) -> Flood {
        let thread = |_| Thread {
            queue: Queue::new(SocketId(1), 0.0, Time::ZERO),
            sieve: None,
            waiting: VecDeque::new(),
            left: 0.0,
        };
        Flood {
            rows: Rows::new(99),
            threads: (0..threads).map(thread).collect(),
            power: calls / 100.0 / threads as f64,
            says: 0.0,
            now: 0,
            number: 0,
            due: 0.0,
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

    /// Whose a call is.
    fn owner(&self, number: u64) -> usize {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        mixed as usize % self.threads.len()
    }

    fn comes(&mut self, at: usize, what: Comes, gap: u64) {
        let thread = &mut self.threads[at];
        let Comes::Invite(number) = what else {
            thread.waiting.push_back((self.now, what));
            return;
        };
        if !self.open.contains_key(&number) {
            return;
        }
        if gap <= 16_000 {
            let again = self.later.entry(self.now + gap).or_default();
            again.push((at, what, gap * 2));
        }
        let sieve = thread.sieve.as_ref();
        match sieve.is_none_or(|sieve| sieve.passes(&call(number))) {
            true => thread.waiting.push_back((self.now, what)),
            false => self.dropped += 1,
        }
    }

    fn serves(&mut self, at: usize, came: u64, what: Comes) {
        let waited = self.now - came;
        let Thread { queue, left, .. } = &mut self.threads[at];
        queue.comes_after(Duration::from_millis(waited));
        *left -= match what {
            Comes::Rest => EFFORT[1],
            Comes::Ack => EFFORT[3],
            Comes::Invite(number) => {
                let first = self.open.get(&number).copied();
                let beyond = queue.is_beyond(&call(number), waited * 100 < LIMIT * 45);
                match first {
                    // It will come again.
                    Some(_) if queue.is_behind_sieve(&call(number)) => {
                        queue.drops_unread();
                        self.dropped += 1;
                        0.5
                    }
                    // A repetition of what is known.
                    None => 1.0,
                    Some(_) if waited > LIMIT || beyond => {
                        match beyond {
                            true => queue.refused_beyond(&call(number), Time::from_millis(came)),
                            false => queue.refused_late(Time::from_millis(came)),
                        }
                        self.refused += 1;
                        self.open.remove(&number);
                        let then = self.later.entry(self.now + 2).or_default();
                        then.push((at, Comes::Ack, 0));
                        EFFORT[2]
                    }
                    Some(first) => {
                        queue.takes(&call(number), Time::from_millis(came));
                        self.taken += 1;
                        self.late += u64::from(self.now - first > 400);
                        self.slow += u64::from(self.now - first > 30);
                        self.open.remove(&number);
                        let then = self.later.entry(self.now + 1_000).or_default();
                        then.push((at, Comes::Rest, 0));
                        EFFORT[0]
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
                self.comes(self.owner(self.number), Comes::Invite(self.number), 500);
            }
            self.goes_on();
        }
    }

    /// Callers who stand still for so many milliseconds, and then send what was due meanwhile at once.
    fn heap(&mut self, calls: f64, milliseconds: u64) {
        for _ in 0..milliseconds {
            self.now += 1;
            self.due += calls / 1_000.0;
            self.goes_on();
        }
    }

    /// What else is to happen in this millisecond.
    fn goes_on(&mut self) {
        for (at, what, gap) in self.later.remove(&self.now).unwrap_or_default() {
            self.comes(at, what, gap);
        }
        for at in 0..self.threads.len() {
            self.works(at);
        }
    }

    fn works(&mut self, at: usize) {
        let thread = &mut self.threads[at];
        thread.left = (thread.left + self.power).min(self.power.max(10.0));
        while self.threads[at].left > 0.0
            && let Some((came, what)) = self.threads[at].waiting.pop_front()
        {
            self.serves(at, came, what);
        }
        // Each looks at times of its own.
        let look = LOOK.as_millis() as u64;
        if (self.now + 37 * at as u64).is_multiple_of(look) {
            let Thread { queue, sieve, .. } = &mut self.threads[at];
            let now = Time::from_millis(self.now);
            let (rows, says) = (&self.rows, self.says);
            let new = queue.look(rows, CONTACT, says, Some(WANTED), self.percent, now);
            *sieve = new.unwrap_or(*sieve);
        }
    }

    fn forget(&mut self) {
        (self.taken, self.late, self.refused, self.dropped, self.slow) = (0, 0, 0, 0, 0);
    }
}

/// What is taken of what could be, and what is refused, both of that.
fn taken_and_refused(threads: usize, capacity: f64, times: f64) -> (f64, f64) {
    let mut flood = Flood::of(threads, capacity);
    flood.run(capacity * times, 15);
    flood.forget();
    flood.run(capacity * times, 30);
    let Flood {
        taken, late, slow, ..
    } = flood;
    assert_eq!(late, 0, "{threads} {capacity} {times}");
    assert!(slow * 100 <= taken, "{threads} {capacity} {times}: {slow}");
    let all = capacity * 30.0;
    (taken as f64 / all, flood.refused as f64 / all)
}

#[test]
fn refusals_are_held_to_their_share_and_the_peak_is_taken() {
    for times in [1.3, 2.0, 10.0, 20.0] {
        // A refusal with its ACK takes a fifth of what a call takes, here.
        let (taken, refused) = taken_and_refused(1, 3_000.0, times);
        assert!(taken >= 0.98, "{times}: {taken}");
        assert!(refused <= 0.08, "{times}: {refused}");
    }
}

/// What a thread says of itself in its first moments may be too little: those behind are answered all the same.
#[test]
fn a_thread_that_says_too_little_of_itself_takes_the_peak() {
    for (times, least) in [(2.0, 0.992), (10.0, 0.945)] {
        let mut flood = Flood::new(800.0);
        flood.says = 800.0 * 0.85;
        flood.run(800.0 * times, 5);
        let taken = flood.taken as f64 / 4_000.0;
        assert!(taken >= least, "{times}: {taken}");
    }
}

/// Where few calls fill the queue, which of them are taken by chance counts for more.
#[test]
fn slow_threads_take_nearly_as_much() {
    for (times, least) in [(2.0, 0.975), (10.0, 0.97)] {
        let (taken, refused) = taken_and_refused(1, 800.0, times);
        assert!(taken >= least, "{times}: {taken}");
        assert!(refused <= 0.12, "{times}: {refused}");
    }
}

/// Several threads move one border: together they take as much as one would.
#[test]
fn several_threads_take_the_peak_together() {
    for (threads, capacity, times, least) in [
        (2, 6_000.0, 2.0, 0.98),
        (3, 6_000.0, 10.0, 0.975),
        (3, 1_000.0, 2.0, 0.96),
        (3, 1_000.0, 10.0, 0.94),
    ] {
        let (taken, refused) = taken_and_refused(threads, capacity, times);
        assert!(taken >= least, "{threads} {capacity} {times}: {taken}");
        assert!(refused <= 0.15, "{threads} {capacity} {times}: {refused}");
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
        assert!(flood.threads[0].queue.drops());
        // Those who were dropped come again for half a minute, and are answered then.
        flood.run(400.0, 55);
        assert!(
            !flood.threads[0].queue.sifts(),
            "{times}: {}",
            flood.threads[0].queue.taken_of().1
        );
        assert_eq!(flood.threads[0].sieve, None);
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
    assert!(flood.taken >= 5_980, "{}", flood.taken);
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
    let sieve = flood.threads[0].sieve.unwrap();
    for begin in [
        "INVITE sip:192.0.2.1:5060 SIP/2.0",
        "INVITE urn:service:sos SIP/2.0",
        "BYE sip:a@b SIP/2.0",
    ] {
        let text = format!("{begin}\r\n{}", "X: y\r\n".repeat(60));
        assert!(sieve.passes(text.as_bytes()), "{begin}");
        assert!(
            !flood.threads[0].queue.is_beyond(text.as_bytes(), false),
            "{begin}"
        );
    }
}

#[test]
fn where_every_refusal_is_said_nothing_is_dropped() {
    let mut flood = Flood::new(800.0);
    flood.percent = None;
    flood.run(2_000.0, 20);
    assert_eq!((flood.dropped, flood.threads[0].sieve), (0, None));
    assert!(
        flood.refused > 10_000 && flood.slow * 50 <= flood.taken,
        "{}",
        flood.slow
    );
}

/// A thread that is kept from running for a moment now and then takes most of what it still could.
#[test]
fn moments_of_standstill_cost_little() {
    for (times, least) in [(2.0, 0.94), (10.0, 0.93)] {
        let mut flood = Flood::new(1_500.0);
        let mut before = 0;
        for second in 0..35 {
            if second == 10 {
                before = flood.taken;
            }
            flood.threads[0].left -= 60.0 * flood.power;
            flood.run(1_500.0 * times, 1);
        }
        let could = 1_500.0 * 25.0 * 0.94;
        let taken = (flood.taken - before) as f64 / could;
        assert!(taken >= least, "{times}: {taken}");
    }
}

/// Calls that come in heaps are no larger flood than the same calls one after the other.
#[test]
fn heaps_of_calls_cost_little() {
    for times in [2.0, 10.0] {
        let mut flood = Flood::new(1_500.0);
        let mut before = 0;
        for second in 0..34 {
            if second == 10 {
                before = flood.taken;
            }
            if second % 2 == 1 {
                flood.heap(1_500.0 * times, 100);
            }
            flood.run(1_500.0 * times, 1);
        }
        // What could not come while they stood still is lost, and some of what came at once.
        let could = 1_500.0 * 24.0;
        let taken = (flood.taken - before) as f64 / could;
        assert!(taken >= 0.88, "{times}: {taken}");
    }
}

/// Who hears of a flood a moment after another has counted all who came before: they are no reason to take less a second time.
#[test]
fn a_flood_is_cut_once_for_all_workers() {
    let rows = Rows::new(99);
    let start = Time::from_secs(1);
    let mut queues = [1, 2].map(|id| Queue::new(SocketId(id), 0.0, start));
    // Each can take 800 calls a second, and 4,000 come to it.
    let (mut number, mut could) = (0, [0.0; 2]);
    for step in 0..500 {
        let now = start + Duration::from_millis(step);
        for (at, queue) in queues.iter_mut().enumerate() {
            could[at] += 0.8;
            for _ in 0..4 {
                number += 1;
                let bytes = call(number);
                if queue.is_behind_sieve(&bytes) {
                    continue;
                }
                queue.comes_after(Duration::from_millis(20));
                match queue.is_beyond(&bytes, false) {
                    true => queue.refused_beyond(&bytes, now),
                    false if could[at] >= 1.0 => {
                        could[at] -= 1.0;
                        queue.takes(&bytes, now);
                    }
                    false => queue.refused_late(now),
                }
            }
            let due = step % 100 == if at == 0 { 99 } else { 36 };
            if due && (step >= 99 || at == 0) {
                queue.look(&rows, CONTACT, 800.0, Some(WANTED), Some(5), now);
            }
        }
    }
    for queue in &queues {
        let takes = queue.part();
        assert!((0.17..=0.23).contains(&takes), "{takes}");
    }
}

/// What one worker has dropped others refuse, though there is room.
#[test]
fn what_another_worker_dropped_is_known() {
    let mut flood = Flood::of(2, 800.0);
    // All calls are the first one's.
    for _ in 0..3_000 {
        flood.number += 1;
        while flood.owner(flood.number) != 0 {
            flood.number += 1;
        }
        flood.open.insert(flood.number, flood.now);
        flood.comes(0, Comes::Invite(flood.number), 20_000);
        flood.now += 1;
        flood.goes_on();
    }
    assert!(flood.threads[0].queue.drops());
    assert!(flood.rows.sifts());
    let second = &flood.threads[1].queue;
    let beyond = (0..1_000).filter(|n| second.is_beyond(&call(*n), true));
    assert!(beyond.count() > 300);
}

/// A thread that stood still for half a second in the midst of a flood soon takes as much as before.
#[test]
fn a_standstill_is_soon_over() {
    for times in [2.0, 5.0, 10.0] {
        let mut taken = 0;
        // Which calls are the first ones is chance: three kinds of it.
        for salt in [1, 22, 333] {
            let mut flood = Flood::new(1_000.0);
            flood.rows = Rows::new(salt);
            flood.run(1_000.0 * times, 1);
            flood.threads[0].left = -5_000.0;
            flood.run(1_000.0 * times, 4);
            flood.forget();
            flood.run(1_000.0 * times, 5);
            assert!(flood.taken >= 4_100, "{times}: {}", flood.taken);
            assert_eq!(flood.late, 0);
            taken += flood.taken;
        }
        assert!(taken >= 3 * 4_300, "{times}: {taken}");
    }
}

/// A worker that sleeps through the end of an overload wakes to a row that the others have forgotten.
#[test]
fn who_looks_after_the_row_was_forgotten_takes_everything() {
    let rows = Rows::new(7);
    let mut now = Time::from_secs(1);
    let [mut awake, mut asleep] =
        [1, 2].map(|number| Queue::new(SocketId(number), 0.0, Time::ZERO));
    let wanted = Some(Duration::from_millis(20));
    for _ in 0..50 {
        now += LOOK;
        for queue in [&mut awake, &mut asleep] {
            for _ in 0..100 {
                queue.comes_after(Duration::from_millis(100));
                queue.refused_late(now);
            }
            queue.look(&rows, b"sip:contact", 0.0, wanted, Some(5), now);
        }
    }
    assert!(awake.drops() && asleep.drops());
    for _ in 0..10_000 {
        now += LOOK;
        awake.look(&rows, b"sip:contact", 0.0, wanted, Some(5), now);
        if !awake.sifts() {
            break;
        }
    }
    assert!(!awake.sifts() && asleep.sifts());
    rows.calm();
    let change = asleep.look(&rows, b"sip:contact", 0.0, wanted, Some(5), now);
    assert!(matches!(change, Some(None)), "its sieve is taken away");
    assert!(!asleep.sifts() && !asleep.drops() && !asleep.is_in_row());
}
