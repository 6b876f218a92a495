//! A day of mixed traffic through one border, in virtual time: calls with and without media, VoLTE calls, registrations
//! with refreshes, phones that hold, re-offer and transfer, overload bursts, loss, partitions, a core and carriers that
//! crash and restart, reloads. After each period the border has as many objects as at the start: no transaction,
//! dialog, call, port, socket, timer or registration is remaining, and memory does not grow.
//!
//! `HORNWORK_HOURS=24 cargo test --release -p lab --test endurance -- --nocapture` runs a day; the default is eight
//! periods of one round.

mod random_phone;

use border::border::{Border, BorderCensus, BorderCounters};
use engine::{Entropy, HashKey, Time, Transport};
use lab::experiment::{CallFlow, HangUp, MediaKind};
use lab::host::{
    AnswerPlan, HostPlan, LabHost, LoginTemplates, OutgoingCallPlan, RegistrationPlan,
};
use lab::pace::{ArrivalProcess, Bounds, HoldTime};
use lab::record::{AttemptKind, AttemptOutcome};
use media::forward::{Forwarder, ForwarderLimits};
use random_phone::{ActionCounts, RandomPhone};
use sim::{Delay, Detail, Fault, HostId, LinkConfig, Loss, Storm, World};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

struct Counting;

thread_local! {
    /// Bytes allocated by this thread, which runs the whole world.
    static HEAP: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    let _ = HEAP.try_with(|heap| heap.set(heap.get() + bytes));
}

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as for the trait.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as for the trait.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: as for the trait.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Idle time after the traffic of a period: longer than idle connections (15 minutes) and media on hold (30 minutes)
/// last.
const IDLE: Duration = Duration::from_secs(40 * 60);
/// Length of a period, idle time included.
const PERIOD: Duration = Duration::from_secs(2 * 3600);
/// Length of a round, in which faults occur.
const ROUND: Duration = Duration::from_secs(600);

const BORDER_ACCESS: &str = "10.0.1.254:5060";
const BORDER_CORE: &str = "10.0.2.254:5060";
const CORE: &str = "10.0.2.1:5060";
const CARRIER: &str = "10.0.2.2:5060";
const IMS: &str = "10.0.2.3:5060";
const FAR_PARTY: &str = "10.0.2.4:5060";
const PHONES: &str = "10.0.1.1:5060";
const MOBILES: &str = "10.0.1.2:5060";
const NEAR_PARTY: &str = "10.0.1.3:5060";
const OVERLOAD: &str = "10.0.1.4:5060";

const USERS: u64 = 40;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn border_config(agent: &str, workers: u8) -> config::Config {
    // Both calls of a transfer must belong to one worker.
    let refer = if workers > 1 { "pass" } else { "act" };
    let text = format!(
        r#"
[[interface]]
name = "access"
listen = ["udp:{BORDER_ACCESS}", "tcp:{BORDER_ACCESS}"]
register = "pass:core"
refer = "pass"
rate_limits = {{ calls_per_s = 40, status = 486 }}
media = {{ address = "10.0.1.254", ports = "20000-20399" }}
[[interface]]
name = "core"
kind = "core"
listen = ["udp:{BORDER_CORE}", "tcp:{BORDER_CORE}"]
refer = "pass"
media = {{ address = "10.0.2.254", ports = "20000-20399" }}
[[trunk]]
name = "core"
interface = "core"
target = "udp:{CORE}"
domain = "pbx.example"
ping_interval_s = 30
[[trunk]]
name = "carrier"
interface = "core"
target = ["tcp:{CARRIER}", {{ address = "udp:{CARRIER}", priority = 1 }}]
ping_interval_s = 20
refer = "{refer}"
redirect = "follow"
[[trunk]]
name = "ims"
interface = "core"
target = "udp:{IMS}"
[[trunk]]
name = "party"
interface = "core"
target = "udp:{FAR_PARTY}"
refer = "{refer}"
[[trunk]]
name = "near-party"
interface = "access"
target = "udp:{NEAR_PARTY}"
[[route]]
to = {{ user = "far" }}
trunk = "party"
[[route]]
to = {{ user = "near" }}
trunk = "near-party"
[[route]]
to = {{ prefix = "8" }}
trunk = "ims"
[[route]]
to = {{ prefix = "7" }}
trunk = ["carrier", "core"]
media = "bypass"
[[route]]
to = {{ prefix = "5" }}
trunk = ["carrier", "core"]
[[route]]
trunk = "core"
[registrar]
refresh_interval_s = 600
[sip]
agent = "{agent}"
workers = {workers}
queueing_delay_ms = 25
[session_timer]
expires_s = 300
[limits]
memory_mib = 64
"#
    );
    config::parse(&text, "border").unwrap_or_else(|mistakes| {
        let text: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        panic!("{}", text.join("\n"))
    })
}

/// A Hornwork registrar behind the border; calls to unregistered users are rejected.
fn core(entropy: &mut Entropy) -> (Border, Forwarder) {
    let mut text = format!(
        "[[interface]]\nname = \"all\"\nkind = \"core\"\nlisten = \"udp:{CORE}\"\n\
         register = \"local\"\nauthenticate = \"digest\"\n[[route]]\nregistered = true\nmedia = \"bypass\"\n"
    );
    for user in 0..USERS {
        text.push_str(&format!(
            "[[user]]\nname = \"{user:04}\"\npassword = \"secret-{user:04}\"\n"
        ));
    }
    let config = config::parse(&text, "core").unwrap();
    let key = HashKey::new(entropy);
    let forwarder = Forwarder::new(ForwarderLimits::default(), key);
    (Border::new(config, entropy.fork()), forwarder)
}

fn login() -> LoginTemplates {
    LoginTemplates {
        user: "{number:4}".to_owned(),
        password: "secret-{user}".to_owned(),
    }
}

fn calls(name: &str, rate: f64, dial: &str, hold: f64, duration: Duration) -> OutgoingCallPlan {
    OutgoingCallPlan {
        name: name.to_owned(),
        pace: ArrivalProcess::Poisson { rate },
        after: Duration::ZERO,
        bounds: Bounds::default(),
        duration: Some(duration),
        hold: HoldTime::Exponential(hold),
        dial: dial.to_owned(),
        from: "{number:4}".to_owned(),
        cycle: USERS,
        login: None,
        domain: String::new(),
        transport: Transport::Udp,
        connections: 1,
        hang_up: HangUp::Caller,
        sends: MediaKind::None,
        expects: MediaKind::None,
        codec: codec::Format::Pcma,
        participants: 0,
        srtp: false,
        timed: false,
        cancel_percent: 5.0,
        hold_percent: 10.0,
        listen_percent: 0.0,
        ring_limit: Duration::from_secs(20),
        flow: CallFlow::Plain,
        reserve: Duration::ZERO,
    }
}

/// Phones: silent calls of any length, some over TCP, some with media bypass, a few with audio; registrations.
fn phones(duration: Duration, round: u64) -> HostPlan {
    let mut plan = HostPlan::new("phones", at(PHONES));
    plan.stream = Some(Transport::Tcp);
    plan.media_sockets = 40;
    let silent = calls("silent", 0.3, "5555", 20.0, duration);
    let mut passing = calls("passing", 0.1, "7000", 60.0, duration);
    passing.transport = Transport::Tcp;
    let mut sounding = calls("sounding", 0.03, "5000", 8.0, duration);
    sounding.sends = MediaKind::Tone;
    sounding.expects = MediaKind::Echo;
    let mut called = calls("called", 0.05, "{number:4}", 5.0, duration);
    called.login = Some(login());
    called.domain = "pbx.example".to_owned();
    plan.calls = vec![silent, passing, sounding, called];
    plan.answers = Some(answers(HangUp::Caller, MediaKind::None));
    plan.registrations = Some(RegistrationPlan {
        name: format!("registrations {round}"),
        pace: ArrivalProcess::Poisson { rate: 2.0 },
        users: USERS,
        login: login(),
        domain: "pbx.example".to_owned(),
        expires: 120,
        refresh: Some(Duration::from_secs(50)),
        follows_expiry: false,
        refreshes: (duration.as_secs() / 50).saturating_sub(2) as u32,
        // In every other round they stop without deregistering.
        refresh_rate: 0.0,
        remove: round.is_multiple_of(2),
        transport: Transport::Udp,
        connections: 1,
    });
    plan
}

fn answers(hang_up: HangUp, sends: MediaKind) -> AnswerPlan {
    let mut plan = AnswerPlan::new("callees", sends);
    plan.ring = Duration::from_millis(50);
    plan.answer = Duration::from_millis(800);
    plan.random = true;
    plan.busy_percent = 8.0;
    plan.no_answer_percent = 4.0;
    plan.hang_up = (hang_up == HangUp::Callee).then_some(HoldTime::Exponential(20.0));
    plan
}

fn carrier() -> HostPlan {
    let mut plan = HostPlan::new("carrier", at(CARRIER));
    plan.stream = Some(Transport::Tcp);
    plan.media_sockets = 40;
    plan.answers = Some(answers(HangUp::Caller, MediaKind::Echo));
    plan
}

fn ims() -> HostPlan {
    let mut plan = HostPlan::new("ims", at(IMS));
    let mut answers = answers(HangUp::Caller, MediaKind::None);
    answers.flow = CallFlow::Volte;
    answers.reserve = Duration::from_millis(200);
    plan.answers = Some(answers);
    plan
}

fn mobiles(duration: Duration) -> HostPlan {
    let mut plan = HostPlan::new("mobiles", at(MOBILES));
    let mut mobile = calls("mobile", 0.1, "8000", 15.0, duration);
    mobile.flow = CallFlow::Volte;
    mobile.reserve = Duration::from_millis(300);
    plan.calls = vec![mobile];
    plan
}

/// More calls per second than the rate limit admits.
fn overload() -> HostPlan {
    let mut plan = HostPlan::new("overload", at(OVERLOAD));
    let mut all = calls("overload", 150.0, "5555", 1.0, Duration::from_secs(2));
    all.pace = ArrivalProcess::Constant { rate: 150.0 };
    plan.calls = vec![all];
    plan
}

/// Objects that are left after a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Remaining {
    quiet: bool,
    /// Census of the first worker that is not quiet, else of the last one.
    census: BorderCensus,
    /// Media sockets kept open for later calls.
    media: usize,
    /// Sessions and sockets of the forwarders.
    forwarder: (usize, usize),
    /// Open sockets of the border without media sockets, and its connections.
    open: (usize, usize),
}

/// Outcomes of the generator's attempts, with the last status.
type OutcomeCounts = BTreeMap<(AttemptKind, AttemptOutcome, u16), u64>;

struct MixedTraffic {
    world: World,
    entropy: Entropy,
    border: HostId,
    workers: u8,
    core: HostId,
    carrier: HostId,
    ims: HostId,
    phones: HostId,
    mobiles: HostId,
    overload: HostId,
    random_phones: [HostId; 2],
    counts: [ActionCounts; 2],
    attempts: u64,
    good: u64,
    rounds: u64,
    outcomes: OutcomeCounts,
}

const CALLED_USERS: [&[&str]; 2] = [
    &["far", "far", "5555", "7000", "0001", "nobody"],
    &["near", "near", "5555", "far", "0002", "nobody"],
];

impl MixedTraffic {
    fn new(seed: u64, workers: u8) -> MixedTraffic {
        let mut world = World::new(seed);
        world.set_detail(Detail::Events);
        let mut entropy = world.entropy();
        let key = HashKey::new(&mut entropy);
        let ips = [BORDER_ACCESS, BORDER_CORE].map(|text| at(text).ip());
        let borders = Border::worker_pool(
            border_config("MixedTraffic", workers),
            workers,
            entropy.fork(),
        );
        let forwarder = || Forwarder::new(ForwarderLimits::default(), key);
        let mut members: Vec<(Border, Forwarder)> = borders
            .into_iter()
            .map(|border| (border, forwarder()))
            .collect();
        let border = match members.pop() {
            Some((border, forwarder)) if members.is_empty() => {
                world.add_control("border", &ips, border, forwarder)
            }
            last => {
                members.extend(last);
                world.add_workers("border", &ips, members)
            }
        };
        let ip = |text: &str| -> [IpAddr; 1] { [at(text).ip()] };
        let (registrar, forwarder) = core(&mut entropy);
        let core = world.add_control("core", &ip(CORE), registrar, forwarder);
        let idle = |name: &str, address: &str| HostPlan::new(name, at(address));
        let mut host = |world: &mut World, plan: HostPlan| {
            let (name, ips) = (plan.name.clone(), [plan.address.ip()]);
            world.add_engine(&name, &ips, LabHost::new(plan, entropy.fork()))
        };
        let carrier = host(&mut world, carrier());
        let ims = host(&mut world, ims());
        let phones = host(&mut world, idle("phones", PHONES));
        let mobiles = host(&mut world, idle("mobiles", MOBILES));
        let overload = host(&mut world, idle("overload", OVERLOAD));
        let mut random_phone = |own: &str, border: &str, users| {
            let engine = RandomPhone::new(at(own), at(border), users, entropy.fork());
            world.add_engine("party", &[at(own).ip()], engine)
        };
        let random_phones = [
            random_phone(NEAR_PARTY, BORDER_ACCESS, CALLED_USERS[0]),
            random_phone(FAR_PARTY, BORDER_CORE, CALLED_USERS[1]),
        ];
        let mut traffic = MixedTraffic {
            world,
            entropy,
            border,
            workers,
            core,
            carrier,
            ims,
            phones,
            mobiles,
            overload,
            random_phones,
            counts: [ActionCounts::default(); 2],
            attempts: 0,
            good: 0,
            rounds: 0,
            outcomes: OutcomeCounts::new(),
        };
        traffic.world.set_default_link(faultless_link());
        traffic.pass(Duration::from_secs(1));
        traffic
    }

    fn pass(&mut self, span: Duration) {
        let until = self.world.now() + span;
        self.world.run_until(until);
    }

    /// Replaces a stopped host by a new one; its results are counted and discarded.
    fn begin(&mut self, host: HostId, plan: HostPlan, target: &str) {
        self.collect(host);
        self.world.plan(self.world.now(), Fault::Crash(host));
        self.pass(Duration::from_millis(10));
        let engine = LabHost::new(plan, self.entropy.fork());
        self.world.restart(host, engine);
        self.pass(Duration::from_millis(10));
        let begin = |host: &mut LabHost, now: Time| host.begin(at(target), now);
        self.world.with_engine(host, begin).unwrap();
    }

    fn collect(&mut self, host: HostId) {
        let finish = |host: &mut LabHost, now: Time| host.finish(now);
        if let Some(results) = self.world.with_engine(host, finish) {
            let good = results.attempts.iter().filter(|a| a.outcome.is_good());
            self.good += good.count() as u64;
            for attempt in &results.attempts {
                let key = (attempt.kind, attempt.outcome, attempt.status);
                *self.outcomes.entry(key).or_insert(0) += 1;
            }
            self.attempts += results.attempts.len() as u64;
        }
    }

    /// Crashes a host, and restarts it after `away`.
    fn crash(&mut self, host: HostId, away: Duration) {
        self.collect_if_host(host);
        self.world.plan(self.world.now(), Fault::Crash(host));
        self.pass(away);
        if host == self.core {
            let (border, forwarder) = core(&mut self.entropy);
            self.world.restart_control(host, border, forwarder);
            return;
        }
        let plan = match host {
            host if host == self.carrier => carrier(),
            _ => ims(),
        };
        let engine = LabHost::new(plan, self.entropy.fork());
        self.world.restart(host, engine);
    }

    fn collect_if_host(&mut self, host: HostId) {
        if host != self.core {
            self.collect(host);
        }
    }

    /// Ten minutes of traffic with all faults.
    fn round(&mut self) {
        self.rounds += 1;
        let began = self.world.now();
        // First without faults.
        self.pass(Duration::from_secs(60));
        let storm = Storm {
            link: faulty_link(),
            partitions: 3,
            partition: Duration::from_secs(8),
            resets: 4,
        };
        self.world
            .storm(&storm, self.world.now() + Duration::from_secs(60));
        self.pass(Duration::from_secs(90));
        self.crash(self.core, Duration::from_secs(25));
        self.pass(Duration::from_secs(40));
        let (border, core) = (self.border, self.core);
        self.world
            .plan(self.world.now(), Fault::Partition(border, core));
        self.pass(Duration::from_secs(45));
        self.world.plan(self.world.now(), Fault::Heal(border, core));
        self.pass(Duration::from_secs(20));
        self.crash(self.carrier, Duration::from_secs(15));
        self.pass(Duration::from_secs(30));
        self.crash(self.ims, Duration::from_secs(5));
        self.pass(Duration::from_secs(30));
        self.burst();
        self.reload();
        let spent = self.world.now().since(began);
        self.pass(ROUND.saturating_sub(spent));
    }

    /// More calls at once than the border admits: refused by rate limiting, then shed by overload control while it is
    /// slow.
    fn burst(&mut self) {
        for effort in [Duration::ZERO, Duration::from_millis(8)] {
            self.world.set_processing_time(self.border, effort);
            self.begin(self.overload, overload(), BORDER_ACCESS);
            self.pass(Duration::from_secs(5));
            self.world.set_processing_time(self.border, Duration::ZERO);
            self.pass(Duration::from_secs(30));
        }
    }

    fn reload(&mut self) {
        let agent = ["Day", "Night"][self.rounds as usize % 2];
        let config = border_config(agent, self.workers);
        self.each(|border, _, now| border.reload(config.clone(), now));
    }

    /// Calls a closure for each worker of the border.
    fn each<R>(&mut self, mut work: impl FnMut(&mut Border, &Forwarder, Time) -> R) -> Vec<R> {
        let mut results = Vec::new();
        for worker in 0..usize::from(self.workers) {
            let work = |border: &mut Border, forwarder: &mut Forwarder, now: Time| {
                work(border, forwarder, now)
            };
            let result = match self.workers {
                1 => self.world.with_control(self.border, work),
                _ => self.world.with_worker(self.border, worker, work),
            };
            results.extend(result);
        }
        assert_eq!(results.len(), usize::from(self.workers));
        results
    }

    /// Traffic for a while, then idle time; returns the objects left.
    fn period(&mut self, traffic: Duration) -> Remaining {
        self.begin(self.phones, phones(traffic, self.rounds), BORDER_ACCESS);
        self.begin(self.mobiles, mobiles(traffic), BORDER_ACCESS);
        for phone in self.random_phones {
            self.world
                .with_engine(phone, |phone: &mut RandomPhone, now| phone.begin(now))
                .unwrap();
        }
        for _ in 0..traffic.as_secs() / ROUND.as_secs() {
            self.round();
        }
        for phone in self.random_phones {
            self.world
                .with_engine(phone, |phone: &mut RandomPhone, now| phone.stop(now))
                .unwrap();
        }
        self.pass(Duration::from_secs(200));
        // Phones with calls stop without signalling.
        for (host, name, address) in [
            (self.phones, "phones", PHONES),
            (self.mobiles, "mobiles", MOBILES),
            (self.overload, "overload", OVERLOAD),
        ] {
            self.begin(host, HostPlan::new(name, at(address)), BORDER_ACCESS);
        }
        for (host, plan) in [(self.carrier, carrier()), (self.ims, ims())] {
            self.begin(host, plan, BORDER_CORE);
        }
        self.crash(self.core, Duration::from_secs(1));
        self.pass(IDLE);
        for (index, phone) in self.random_phones.into_iter().enumerate() {
            let (counts, census) = self
                .world
                .with_engine(phone, |phone: &mut RandomPhone, _| {
                    (phone.counts(), phone.census())
                })
                .unwrap();
            assert!(census.is_quiet(), "a phone still has {census:?}");
            self.counts[index] = counts;
        }
        self.remaining_when_quiet()
    }

    /// Objects that are left when each worker has been quiet at some moment. Pings of trunks continue, so that the
    /// workers are not all quiet at the same moment; a leaked object keeps its worker from ever being quiet.
    fn remaining_when_quiet(&mut self) -> Remaining {
        let mut seen: Vec<bool> = Vec::new();
        for _ in 0..200 {
            let now = self.each(|border, _, _| border.census().is_quiet());
            seen.resize(now.len(), false);
            seen.iter_mut()
                .zip(now)
                .for_each(|(seen, now)| *seen |= now);
            if seen.iter().all(|seen| *seen) {
                break;
            }
            self.pass(Duration::from_millis(500));
        }
        Remaining {
            quiet: seen.iter().all(|seen| *seen),
            ..self.remaining()
        }
    }

    fn remaining(&mut self) -> Remaining {
        let (sockets, connections) = self.world.open(self.border);
        let held = self.each(|border, forwarder, _| {
            let census = border.census();
            (census, forwarder.sessions(), forwarder.sockets())
        });
        let busy = held.iter().find(|(census, ..)| !census.is_quiet());
        let media = held.iter().map(|(census, ..)| census.sockets_open).sum();
        Remaining {
            quiet: busy.is_none(),
            census: busy.or(held.last()).unwrap().0,
            media,
            forwarder: (
                held.iter().map(|held| held.1).sum(),
                held.iter().map(|held| held.2).sum(),
            ),
            open: (sockets - media, connections),
        }
    }

    /// Sum over all workers.
    fn counters(&mut self) -> BorderCounters {
        let all = self.each(|border, _, _| border.counters().clone());
        let sum = |of: fn(&BorderCounters) -> u64| all.iter().map(of).sum();
        BorderCounters {
            offered: sum(|c| c.offered),
            completed: sum(|c| c.completed),
            cancelled: sum(|c| c.cancelled),
            declined: sum(|c| c.declined),
            failed: sum(|c| c.failed),
            media_sessions_ended: sum(|c| c.media_sessions_ended),
            relayed: sum(|c| c.relayed),
            shielded: sum(|c| c.shielded),
            shed: sum(|c| c.shed + c.unread),
            refreshed: sum(|c| c.refreshed),
            subscriptions: sum(|c| c.subscriptions),
            ..BorderCounters::default()
        }
    }
}

fn faultless_link() -> LinkConfig {
    LinkConfig {
        delay: Delay::Uniform(Duration::from_millis(2), Duration::from_millis(12)),
        loss: Loss::Random(0.002),
        ..LinkConfig::default()
    }
}

fn faulty_link() -> LinkConfig {
    LinkConfig {
        delay: Delay::Uniform(Duration::from_millis(5), Duration::from_millis(400)),
        loss: Loss::Random(0.15),
        duplicate: 0.05,
        reorder: 0.05,
        ..LinkConfig::default()
    }
}

fn heap_bytes() -> i64 {
    HEAP.with(Cell::get)
}

/// Periods at least.
const PERIODS: usize = 8;
/// Periods in which tables grow: to the largest load, whose size they keep.
const GROWING: usize = 4;
/// Heap growth permitted after these.
const HEAP_TOLERANCE_BYTES: i64 = 160 * 1024;

#[test]
fn day_of_mixed_traffic_leaves_nothing_behind() {
    run(1);
}

#[test]
fn day_of_mixed_traffic_leaves_nothing_behind_with_several_workers() {
    run(3);
}

fn run(workers: u8) {
    let hours = std::env::var("HORNWORK_HOURS").ok();
    let hours: Option<u64> = hours.and_then(|text| text.parse().ok());
    // By default one round per period.
    let (end, traffic_time) = match hours {
        Some(hours) => (
            Time::from_secs(hours * 3_600),
            PERIOD.saturating_sub(IDLE + Duration::from_secs(300)),
        ),
        None => (Time::ZERO, ROUND),
    };
    let mut traffic = MixedTraffic::new(1, workers);
    let fresh = traffic.remaining_when_quiet();
    assert!(fresh.quiet, "{fresh:?}");
    let mut heaps = Vec::new();
    while heaps.len() < PERIODS || traffic.world.now() < end {
        let remaining = traffic.period(traffic_time);
        let counters = traffic.counters();
        heaps.push(heap_bytes());
        let period = heaps.len();
        eprintln!(
            "{period}: {} s, {} calls, {} registrations answered here, {} refused by rate, {} by overload, {} relayed, heap {} KiB, {} media sockets kept",
            seconds(traffic.world.now()),
            counters.offered,
            counters.refreshed,
            counters.shielded,
            counters.shed,
            counters.relayed,
            heap_bytes() / 1024,
            remaining.media,
        );
        assert!(remaining.quiet, "after period {period}: {remaining:?}");
        assert_eq!(remaining.census.registrations, 0, "after period {period}");
        assert_eq!(
            remaining.forwarder,
            (0, 0),
            "after period {period}: {remaining:?}"
        );
        // Connections for pings may be open, at most one per worker.
        assert_eq!(
            remaining.open.0, fresh.open.0,
            "after period {period}: {remaining:?}"
        );
        assert!(
            remaining.open.1 <= usize::from(workers),
            "after period {period}: {remaining:?}"
        );
    }
    let grown = heaps[GROWING - 1];
    assert!(
        heaps
            .iter()
            .skip(GROWING)
            .all(|heap| *heap <= grown + HEAP_TOLERANCE_BYTES),
        "memory grows: {heaps:?}"
    );
    let counters = traffic.counters();
    let counts = traffic.counts[0].and(traffic.counts[1]);
    eprintln!(
        "{} s, {} rounds, {} of {} attempts good, {counts:?}, {counters:?}",
        seconds(traffic.world.now()),
        traffic.rounds,
        traffic.good,
        traffic.attempts,
    );
    eprintln!("{:?}", traffic.outcomes);
    // Each kind of activity occurred. Requests are shed before parsing only with a single worker.
    let shed = if workers == 1 { counters.shed } else { 1 };
    for (what, count) in [
        ("completed", counters.completed),
        ("cancelled", counters.cancelled),
        ("declined", counters.declined),
        ("failed", counters.failed),
        ("refreshed", counters.refreshed),
        ("shielded", counters.shielded),
        ("shed", shed),
        ("relayed", counters.relayed),
        ("subscriptions", counters.subscriptions),
        ("media", counters.media_sessions_ended),
        ("offers", counts.offers),
        ("referred", counts.accepted),
        ("cancels", counts.cancels),
    ] {
        assert!(count > 0, "{what} did not occur: {counters:?} {counts:?}");
    }
    assert!(
        traffic.good * 2 > traffic.attempts,
        "{} of {}",
        traffic.good,
        traffic.attempts
    );
}

fn seconds(time: Time) -> u64 {
    time.0 / 1_000_000_000
}
