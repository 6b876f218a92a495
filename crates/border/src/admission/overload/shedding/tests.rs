use super::*;
use std::collections::{BTreeMap, VecDeque};

const CONTACT: &[u8] = b"sip:192.0.2.1:5060";
const TARGET_DELAY: Duration = Duration::from_micros(12_500);
const LIMIT: u64 = 25;

/// An INVITE; only the number in its branch differs from call to call.
fn call(number: u64) -> Vec<u8> {
    const START: &[u8] = b"INVITE sip:a@b SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK";
    let mut text = Vec::with_capacity(SocketFilter::HASHED_BYTES + 16);
    text.extend_from_slice(START);
    text.extend(
        (0..16)
            .rev()
            .map(|digit| b'a' + (number >> (4 * digit) & 15) as u8),
    );
    text.extend_from_slice(b"\r\nX: ");
    text.resize(SocketFilter::HASHED_BYTES + 16, b'y');
    text
}

/// Kind of an arriving message.
#[derive(Clone, Copy)]
enum SimMessage {
    Invite(u64),
    /// Another message of an accepted call.
    Rest,
    /// ACK to a refusal.
    Ack,
}

/// Units of work: of a new call, of its end, of a refusal, of the ACK.
const WORK: [f64; 4] = [7.0, 3.0, 1.5, 0.5];

/// A thread with its socket, simulated.
struct SimThread {
    queue: SocketQueue,
    filter: Option<SocketFilter>,
    queue_content: VecDeque<(u64, SimMessage)>,
    work_left: f64,
}

/// Simulation of threads with their sockets, in steps of a millisecond. A call takes ten units of work, seven at its
/// beginning and three at its end, a refusal two; callers retransmit by RFC 3261. Each call arrives at the thread
/// that owns it.
struct Flood {
    lists: ShedLists,
    threads: Vec<SimThread>,
    /// Units of work per millisecond and thread.
    work_per_ms: f64,
    /// Capacity in calls per second that each thread reports; 0 if unknown.
    reported_rate: f64,
    now: u64,
    number: u64,
    due: f64,
    scheduled: BTreeMap<u64, Vec<(usize, SimMessage, u64)>>,
    /// Calls without an answer, with the time of their first transmission.
    unanswered: BTreeMap<u64, u64>,
    percent: Option<u32>,
    accepted: u64,
    late: u64,
    refused: u64,
    shed: u64,
    delayed: u64,
}

impl Flood {
    /// One thread with a capacity of `calls` per second.
    fn new(calls: f64) -> Flood {
        Flood::of(1, calls)
    }

    /// Several threads with a common capacity of `calls` per second.
    fn of(threads: usize, calls: f64) -> Flood {
        let thread = |_| SimThread {
            queue: SocketQueue::new(SocketId(1), 0.0, Time::ZERO),
            filter: None,
            queue_content: VecDeque::new(),
            work_left: 0.0,
        };
        Flood {
            lists: ShedLists::new(99),
            threads: (0..threads).map(thread).collect(),
            work_per_ms: calls / 100.0 / threads as f64,
            reported_rate: 0.0,
            now: 0,
            number: 0,
            due: 0.0,
            scheduled: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            percent: Some(5),
            accepted: 0,
            late: 0,
            refused: 0,
            shed: 0,
            delayed: 0,
        }
    }

    /// The thread that owns a call.
    fn owner(&self, number: u64) -> usize {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        mixed as usize % self.threads.len()
    }

    fn arrive(&mut self, at: usize, what: SimMessage, gap: u64) {
        let thread = &mut self.threads[at];
        let SimMessage::Invite(number) = what else {
            thread.queue_content.push_back((self.now, what));
            return;
        };
        if !self.unanswered.contains_key(&number) {
            return;
        }
        if gap <= 16_000 {
            let again = self.scheduled.entry(self.now + gap).or_default();
            again.push((at, what, gap * 2));
        }
        let filter = thread.filter.as_ref();
        match filter.is_none_or(|filter| filter.passes(&call(number))) {
            true => thread.queue_content.push_back((self.now, what)),
            false => self.shed += 1,
        }
    }

    fn serve(&mut self, at: usize, came: u64, what: SimMessage) {
        let waited = self.now - came;
        let SimThread {
            queue, work_left, ..
        } = &mut self.threads[at];
        queue.record_delay(Duration::from_millis(waited));
        *work_left -= match what {
            SimMessage::Rest => WORK[1],
            SimMessage::Ack => WORK[3],
            SimMessage::Invite(number) => {
                let first = self.unanswered.get(&number).copied();
                let by_rank = queue.is_refused_by_rank(&call(number), waited * 100 < LIMIT * 45);
                match first {
                    // It is retransmitted.
                    Some(_) if queue.is_beyond_filter(&call(number)) => {
                        queue.record_shed();
                        self.shed += 1;
                        0.5
                    }
                    // A retransmission of an answered call.
                    None => 1.0,
                    Some(_) if waited > LIMIT || by_rank => {
                        match by_rank {
                            true => {
                                queue.record_refused_by_rank(&call(number), Time::from_millis(came))
                            }
                            false => queue.record_refused_late(Time::from_millis(came)),
                        }
                        self.refused += 1;
                        self.unanswered.remove(&number);
                        let then = self.scheduled.entry(self.now + 2).or_default();
                        then.push((at, SimMessage::Ack, 0));
                        WORK[2]
                    }
                    Some(first) => {
                        queue.record_accepted(&call(number), Time::from_millis(came));
                        self.accepted += 1;
                        self.late += u64::from(self.now - first > 400);
                        self.delayed += u64::from(self.now - first > 30);
                        self.unanswered.remove(&number);
                        let then = self.scheduled.entry(self.now + 1_000).or_default();
                        then.push((at, SimMessage::Rest, 0));
                        WORK[0]
                    }
                }
            }
        };
    }

    /// `calls` per second for so many seconds.
    fn run(&mut self, calls: f64, seconds: u64) {
        for _ in 0..seconds * 1_000 {
            self.now += 1;
            self.due += calls / 1_000.0;
            while self.due >= 1.0 {
                self.due -= 1.0;
                self.number += 1;
                self.unanswered.insert(self.number, self.now);
                self.arrive(
                    self.owner(self.number),
                    SimMessage::Invite(self.number),
                    500,
                );
            }
            self.tick();
        }
    }

    /// Callers stall for so many milliseconds and send the backlog at once afterwards.
    fn hold_back(&mut self, calls: f64, milliseconds: u64) {
        for _ in 0..milliseconds {
            self.now += 1;
            self.due += calls / 1_000.0;
            self.tick();
        }
    }

    /// The remaining steps of this millisecond.
    fn tick(&mut self) {
        for (at, what, gap) in self.scheduled.remove(&self.now).unwrap_or_default() {
            self.arrive(at, what, gap);
        }
        for at in 0..self.threads.len() {
            self.run_thread(at);
        }
    }

    fn run_thread(&mut self, at: usize) {
        let thread = &mut self.threads[at];
        thread.work_left = (thread.work_left + self.work_per_ms).min(self.work_per_ms.max(10.0));
        while self.threads[at].work_left > 0.0
            && let Some((came, what)) = self.threads[at].queue_content.pop_front()
        {
            self.serve(at, came, what);
        }
        // Each thread updates at times of its own.
        let look = CONTROL_INTERVAL.as_millis() as u64;
        if (self.now + 37 * at as u64).is_multiple_of(look) {
            let SimThread { queue, filter, .. } = &mut self.threads[at];
            let now = Time::from_millis(self.now);
            let (lists, reported_rate) = (&self.lists, self.reported_rate);
            let new = queue.update(
                lists,
                CONTACT,
                reported_rate,
                Some(TARGET_DELAY),
                self.percent,
                now,
            );
            *filter = new.unwrap_or(*filter);
        }
    }

    fn reset_counts(&mut self) {
        (
            self.accepted,
            self.late,
            self.refused,
            self.shed,
            self.delayed,
        ) = (0, 0, 0, 0, 0);
    }
}

/// Accepted and refused calls, as parts of the capacity.
fn accepted_and_refused(threads: usize, capacity: f64, times: f64) -> (f64, f64) {
    let mut flood = Flood::of(threads, capacity);
    flood.run(capacity * times, 15);
    flood.reset_counts();
    flood.run(capacity * times, 15);
    let Flood {
        accepted,
        late,
        delayed,
        ..
    } = flood;
    assert_eq!(late, 0, "{threads} {capacity} {times}");
    assert!(
        delayed * 100 <= accepted,
        "{threads} {capacity} {times}: {delayed}"
    );
    let all = capacity * 15.0;
    (accepted as f64 / all, flood.refused as f64 / all)
}

#[test]
fn refusals_stay_within_their_share_at_peak_throughput() {
    for times in [1.3, 2.0, 10.0, 20.0] {
        // A refusal with its ACK takes a fifth of the work of a call here.
        let (accepted, refused) = accepted_and_refused(1, 3_000.0, times);
        assert!(accepted >= 0.98, "{times}: {accepted}");
        assert!(refused <= 0.08, "{times}: {refused}");
    }
}

/// A thread may underestimate its capacity in its first moments: the calls of the margin are answered all the same.
#[test]
fn an_underestimated_service_rate_does_not_reduce_throughput() {
    for (times, least) in [(2.0, 0.992), (10.0, 0.945)] {
        let mut flood = Flood::new(800.0);
        flood.reported_rate = 800.0 * 0.85;
        flood.run(800.0 * times, 5);
        let accepted = flood.accepted as f64 / 4_000.0;
        assert!(accepted >= least, "{times}: {accepted}");
    }
}

/// With few calls in the queue chance matters more.
#[test]
fn slow_threads_reach_nearly_the_peak() {
    for (times, least) in [(2.0, 0.975), (10.0, 0.97)] {
        let (accepted, refused) = accepted_and_refused(1, 800.0, times);
        assert!(accepted >= least, "{times}: {accepted}");
        assert!(refused <= 0.12, "{times}: {refused}");
    }
}

/// Several threads move one limit: together they accept as much as one would.
#[test]
fn several_threads_reach_the_peak_together() {
    for (threads, capacity, times, least) in [
        (2, 6_000.0, 2.0, 0.98),
        (3, 6_000.0, 10.0, 0.975),
        (3, 1_000.0, 2.0, 0.96),
        (3, 1_000.0, 10.0, 0.94),
    ] {
        let (accepted, refused) = accepted_and_refused(threads, capacity, times);
        assert!(
            accepted >= least,
            "{threads} {capacity} {times}: {accepted}"
        );
        assert!(refused <= 0.15, "{threads} {capacity} {times}: {refused}");
    }
}

#[test]
fn a_slight_overload_drops_almost_no_call() {
    let mut flood = Flood::new(800.0);
    flood.run(815.0, 60);
    assert!(flood.refused > 0);
    assert!(flood.shed * 100 <= flood.number, "{}", flood.shed);
}

#[test]
fn all_calls_are_accepted_after_the_flood() {
    for times in [2.0, 10.0] {
        let mut flood = Flood::new(800.0);
        flood.run(800.0 * times, 40);
        assert!(flood.threads[0].queue.is_dropping());
        // Dropped calls are retransmitted for half a minute, and are answered then.
        flood.run(400.0, 55);
        assert!(
            !flood.threads[0].queue.is_shedding(),
            "{times}: {}",
            flood.threads[0].queue.accepted_and_offered().1
        );
        assert_eq!(flood.threads[0].filter, None);
        flood.reset_counts();
        flood.run(400.0, 10);
        assert_eq!((flood.accepted, flood.refused, flood.late), (4_000, 0, 0));
    }
}

/// A flood of a second does not justify long refusals.
#[test]
fn a_short_flood_is_soon_over() {
    let mut flood = Flood::new(800.0);
    flood.run(600.0, 5);
    flood.run(3_000.0, 1);
    flood.run(600.0, 6);
    flood.reset_counts();
    flood.run(600.0, 10);
    assert!(flood.accepted >= 5_980, "{}", flood.accepted);
}

#[test]
fn a_dropped_call_is_not_accepted_late_on_retransmission() {
    let mut flood = Flood::new(800.0);
    flood.run(8_000.0, 40);
    let before = flood.late;
    flood.run(400.0, 40);
    assert!(
        (flood.late - before) * 100 <= flood.accepted,
        "{}",
        flood.late - before
    );
}

#[test]
fn in_dialog_requests_and_emergency_calls_are_never_shed() {
    let mut flood = Flood::new(10.0);
    let numbers = ["110", "112"].map(String::from);
    flood.lists.set_emergency_numbers(&numbers);
    flood.run(50_000.0, 2);
    let filter = flood.threads[0].filter.unwrap();
    for begin in [
        "INVITE sip:192.0.2.1:5060 SIP/2.0",
        "INVITE urn:service:sos SIP/2.0",
        "INVITE sip:112@192.0.2.1 SIP/2.0",
        "BYE sip:a@b SIP/2.0",
    ] {
        let text = format!("{begin}\r\n{}", "X: y\r\n".repeat(60));
        assert!(filter.passes(text.as_bytes()), "{begin}");
        assert!(
            !flood.threads[0]
                .queue
                .is_refused_by_rank(text.as_bytes(), false),
            "{begin}"
        );
    }
}

#[test]
fn nothing_is_dropped_without_a_limit_of_refusals() {
    let mut flood = Flood::new(800.0);
    flood.percent = None;
    flood.run(2_000.0, 20);
    assert_eq!((flood.shed, flood.threads[0].filter), (0, None));
    assert!(
        flood.refused > 10_000 && flood.delayed * 50 <= flood.accepted,
        "{}",
        flood.delayed
    );
}

/// A thread that stalls briefly now and then accepts most of the calls that it still could.
#[test]
fn short_stalls_of_the_thread_cost_little() {
    for (times, least) in [(2.0, 0.94), (10.0, 0.93)] {
        let mut flood = Flood::new(1_500.0);
        let mut before = 0;
        for second in 0..35 {
            if second == 10 {
                before = flood.accepted;
            }
            flood.threads[0].work_left -= 60.0 * flood.work_per_ms;
            flood.run(1_500.0 * times, 1);
        }
        let could = 1_500.0 * 25.0 * 0.94;
        let accepted = (flood.accepted - before) as f64 / could;
        assert!(accepted >= least, "{times}: {accepted}");
    }
}

/// Clustered calls are no larger flood than the same calls spread evenly.
#[test]
fn clustered_calls_cost_little() {
    for times in [2.0, 10.0] {
        let mut flood = Flood::new(1_500.0);
        let mut before = 0;
        for second in 0..34 {
            if second == 10 {
                before = flood.accepted;
            }
            if second % 2 == 1 {
                flood.hold_back(1_500.0 * times, 100);
            }
            flood.run(1_500.0 * times, 1);
        }
        // Calls missing during the stall are lost, and some of those that arrive at once.
        let could = 1_500.0 * 24.0;
        let accepted = (flood.accepted - before) as f64 / could;
        assert!(accepted >= 0.88, "{times}: {accepted}");
    }
}

/// A worker that gets the reduced limit late has counted all earlier arrivals: they must not reduce it a second time.
#[test]
fn all_workers_reduce_once_for_one_flood() {
    let lists = ShedLists::new(99);
    let start = Time::from_secs(1);
    let mut queues = [1, 2].map(|id| SocketQueue::new(SocketId(id), 0.0, start));
    // The capacity of each is 800 calls per second, and 4,000 arrive at each.
    let (mut number, mut could) = (0, [0.0; 2]);
    for step in 0..500 {
        let now = start + Duration::from_millis(step);
        for (at, queue) in queues.iter_mut().enumerate() {
            could[at] += 0.8;
            for _ in 0..4 {
                number += 1;
                let bytes = call(number);
                if queue.is_beyond_filter(&bytes) {
                    continue;
                }
                queue.record_delay(Duration::from_millis(20));
                match queue.is_refused_by_rank(&bytes, false) {
                    true => queue.record_refused_by_rank(&bytes, now),
                    false if could[at] >= 1.0 => {
                        could[at] -= 1.0;
                        queue.record_accepted(&bytes, now);
                    }
                    false => queue.record_refused_late(now),
                }
            }
            let due = step % 100 == if at == 0 { 99 } else { 36 };
            if due && (step >= 99 || at == 0) {
                queue.update(&lists, CONTACT, 800.0, Some(TARGET_DELAY), Some(5), now);
            }
        }
    }
    for queue in &queues {
        let takes = queue.accepted_share();
        assert!((0.17..=0.23).contains(&takes), "{takes}");
    }
}

/// Calls dropped by one worker are refused by others, though there is time for them.
#[test]
fn calls_dropped_by_another_worker_are_refused() {
    let mut flood = Flood::of(2, 800.0);
    // All calls are owned by the first thread.
    for _ in 0..3_000 {
        flood.number += 1;
        while flood.owner(flood.number) != 0 {
            flood.number += 1;
        }
        flood.unanswered.insert(flood.number, flood.now);
        flood.arrive(0, SimMessage::Invite(flood.number), 20_000);
        flood.now += 1;
        flood.tick();
    }
    assert!(flood.threads[0].queue.is_dropping());
    assert!(flood.lists.is_shedding());
    let second = &flood.threads[1].queue;
    let by_rank = (0..1_000).filter(|n| second.is_refused_by_rank(&call(*n), true));
    assert!(by_rank.count() > 300);
}

/// A thread that stalled for half a second during a flood soon accepts as much as before.
#[test]
fn throughput_recovers_after_a_stall() {
    for times in [2.0, 5.0, 10.0] {
        let mut accepted = 0;
        // The salt determines the ranks: three different ones.
        for salt in [1, 22, 333] {
            let mut flood = Flood::new(1_000.0);
            flood.lists = ShedLists::new(salt);
            flood.run(1_000.0 * times, 1);
            flood.threads[0].work_left = -5_000.0;
            flood.run(1_000.0 * times, 4);
            flood.reset_counts();
            flood.run(1_000.0 * times, 5);
            assert!(flood.accepted >= 4_100, "{times}: {}", flood.accepted);
            assert_eq!(flood.late, 0);
            accepted += flood.accepted;
        }
        assert!(accepted >= 3 * 4_300, "{times}: {accepted}");
    }
}

/// A worker that is idle through the end of an overload finds the list removed by the others.
#[test]
fn a_late_worker_accepts_everything_after_the_list_was_removed() {
    let lists = ShedLists::new(7);
    let mut now = Time::from_secs(1);
    let [mut awake, mut asleep] =
        [1, 2].map(|number| SocketQueue::new(SocketId(number), 0.0, Time::ZERO));
    let target = Some(Duration::from_millis(20));
    for _ in 0..50 {
        now += CONTROL_INTERVAL;
        for queue in [&mut awake, &mut asleep] {
            for _ in 0..100 {
                queue.record_delay(Duration::from_millis(100));
                queue.record_refused_late(now);
            }
            queue.update(&lists, b"sip:contact", 0.0, target, Some(5), now);
        }
    }
    assert!(awake.is_dropping() && asleep.is_dropping());
    for _ in 0..10_000 {
        now += CONTROL_INTERVAL;
        awake.update(&lists, b"sip:contact", 0.0, target, Some(5), now);
        if !awake.is_shedding() {
            break;
        }
    }
    assert!(!awake.is_shedding() && asleep.is_shedding());
    lists.remove_inactive();
    let change = asleep.update(&lists, b"sip:contact", 0.0, target, Some(5), now);
    assert!(matches!(change, Some(None)), "the socket filter is removed");
    assert!(!asleep.is_shedding() && !asleep.is_dropping() && !asleep.has_view());
}
