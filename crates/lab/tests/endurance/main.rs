//! A day of everything at once through one border, in virtual time: calls with and without media, calls of mobile networks,
//! registrations with their refreshes, parties that hold, offer and transfer, bursts that are too much, losses, partitions, a
//! core and carriers that crash and come back, reloads. After each spell of it the border holds what it held in the
//! beginning: no transaction, dialog, call, port, socket, timer or registration, and no more memory.
//!
//! `HORNWORK_HOURS=24 cargo test --release -p lab --test endurance -- --nocapture` is the day; by default it is two hours.

mod party;

use border::border::{Border, BorderCensus, Counters};
use border::config;
use engine::{Entropy, HashKey, Time, Transport};
use lab::experiment::{CallFlow, HangUp, MediaKind};
use lab::host::{AnswerPlan, CallPlan, Host, HostPlan, Login, RegistrationPlan};
use lab::pace::{Bounds, Hold, Pace};
use lab::record::{Kind, Outcome};
use media::forward::{Forwarder, ForwarderLimits};
use party::{Did, Party};
use sim::{Delay, Detail, Fault, HostId, LinkConfig, Loss, Storm, World};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

struct Counting;

thread_local! {
    /// Bytes that this thread has from the allocator: the whole world runs in it.
    static HEAP: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    let _ = HEAP.try_with(|heap| heap.set(heap.get() + bytes));
}

// SAFETY: every call goes to the system's allocator as it came.
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

/// Traffic in each spell, and rest after it: longer than the idle connections (15 minutes) and media on hold (30 minutes).
const REST: Duration = Duration::from_secs(40 * 60);
/// A spell with its rest.
const SPELL: Duration = Duration::from_secs(2 * 3600);
/// Faults come in rounds.
const ROUND: Duration = Duration::from_secs(600);

const OUTSIDE: &str = "10.0.1.254:5060";
const INSIDE: &str = "10.0.2.254:5060";
const CORE: &str = "10.0.2.1:5060";
const CARRIER: &str = "10.0.2.2:5060";
const IMS: &str = "10.0.2.3:5060";
const FAR_PARTY: &str = "10.0.2.4:5060";
const PHONES: &str = "10.0.1.1:5060";
const MOBILES: &str = "10.0.1.2:5060";
const NEAR_PARTY: &str = "10.0.1.3:5060";
const CROWD: &str = "10.0.1.4:5060";

const USERS: u64 = 40;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn border_config(agent: &str, workers: u8) -> config::Config {
    // Both calls of a transfer have to be one worker's.
    let refer = if workers > 1 { "pass" } else { "act" };
    let text = format!(
        r#"
[[interface]]
name = "outside"
listen = ["udp:{OUTSIDE}", "tcp:{OUTSIDE}"]
register = "pass:core"
refer = "pass"
rates = {{ calls = 40, status = 486 }}
media = {{ address = "10.0.1.254", ports = "20000-20399" }}
[[interface]]
name = "inside"
kind = "core"
listen = ["udp:{INSIDE}", "tcp:{INSIDE}"]
refer = "pass"
media = {{ address = "10.0.2.254", ports = "20000-20399" }}
[[trunk]]
name = "core"
interface = "inside"
target = "udp:{CORE}"
domain = "pbx.example"
ping = 30
[[trunk]]
name = "carrier"
interface = "inside"
target = ["tcp:{CARRIER}", {{ address = "udp:{CARRIER}", priority = 1 }}]
ping = 20
refer = "{refer}"
redirect = "follow"
[[trunk]]
name = "ims"
interface = "inside"
target = "udp:{IMS}"
[[trunk]]
name = "party"
interface = "inside"
target = "udp:{FAR_PARTY}"
refer = "{refer}"
[[trunk]]
name = "near-party"
interface = "outside"
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
pass_every = 600
[sip]
agent = "{agent}"
workers = {workers}
queue = 25
[session_timer]
expires = 300
[limits]
memory = 64
"#
    );
    config::parse(&text, "border").unwrap_or_else(|mistakes| {
        let text: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        panic!("{}", text.join("\n"))
    })
}

/// A registrar of ours behind the border; what is not registered is nobody's.
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

fn login() -> Login {
    Login {
        user: "{number:4}".to_owned(),
        password: "secret-{user}".to_owned(),
    }
}

fn calls(name: &str, rate: f64, dial: &str, hold: f64, lasting: Duration) -> CallPlan {
    CallPlan {
        name: name.to_owned(),
        pace: Pace::Poisson { rate },
        after: Duration::ZERO,
        bounds: Bounds::default(),
        lasting: Some(lasting),
        hold: Hold::Exponential(hold),
        dial: dial.to_owned(),
        from: "{number:4}".to_owned(),
        cycle: USERS,
        login: None,
        domain: String::new(),
        transport: Transport::Udp,
        connections: 1,
        hang_up: HangUp::Caller,
        say: MediaKind::None,
        hear: MediaKind::None,
        codec: codec::Format::Pcma,
        seats: 0,
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

/// Telephones: silent calls of any length, some by TCP, some past the border's media, a few with sound; registrations.
fn phones(lasting: Duration, round: u64) -> HostPlan {
    let mut plan = HostPlan::new("phones", at(PHONES));
    plan.stream = Some(Transport::Tcp);
    plan.media_sockets = 40;
    let silent = calls("silent", 0.3, "5555", 20.0, lasting);
    let mut passing = calls("passing", 0.1, "7000", 60.0, lasting);
    passing.transport = Transport::Tcp;
    let mut sounding = calls("sounding", 0.03, "5000", 8.0, lasting);
    sounding.say = MediaKind::Tone;
    sounding.hear = MediaKind::Echo;
    let mut called = calls("called", 0.05, "{number:4}", 5.0, lasting);
    called.login = Some(login());
    called.domain = "pbx.example".to_owned();
    plan.calls = vec![silent, passing, sounding, called];
    plan.answers = Some(answers(HangUp::Caller, MediaKind::None));
    plan.registrations = Some(RegistrationPlan {
        name: format!("registrations {round}"),
        pace: Pace::Poisson { rate: 2.0 },
        users: USERS,
        login: login(),
        domain: "pbx.example".to_owned(),
        expires: 120,
        refresh: Some(Duration::from_secs(50)),
        refreshes: (lasting.as_secs() / 50).saturating_sub(2) as u32,
        // One round in two they just go away.
        refresh_rate: 0.0,
        remove: round.is_multiple_of(2),
        transport: Transport::Udp,
        connections: 1,
    });
    plan
}

fn answers(hang_up: HangUp, say: MediaKind) -> AnswerPlan {
    let mut plan = AnswerPlan::new("callees", say);
    plan.ring = Duration::from_millis(50);
    plan.answer = Duration::from_millis(800);
    plan.random = true;
    plan.busy_percent = 8.0;
    plan.no_answer_percent = 4.0;
    plan.hang_up = (hang_up == HangUp::Callee).then_some(Hold::Exponential(20.0));
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

fn mobiles(lasting: Duration) -> HostPlan {
    let mut plan = HostPlan::new("mobiles", at(MOBILES));
    let mut mobile = calls("mobile", 0.1, "8000", 15.0, lasting);
    mobile.flow = CallFlow::Volte;
    mobile.reserve = Duration::from_millis(300);
    plan.calls = vec![mobile];
    plan
}

/// Far more at once than is let in.
fn crowd() -> HostPlan {
    let mut plan = HostPlan::new("crowd", at(CROWD));
    let mut all = calls("crowd", 150.0, "5555", 1.0, Duration::from_secs(2));
    all.pace = Pace::Constant { rate: 150.0 };
    plan.calls = vec![all];
    plan
}

/// What is left after a spell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    quiet: bool,
    /// Of the first worker that is not quiet, else of the last one.
    census: BorderCensus,
    /// Media sockets that are kept for the next calls.
    media: usize,
    /// Sessions and sockets of the forwarders.
    forwarder: (usize, usize),
    /// Sockets that the border has open, without those for media, and connections.
    open: (usize, usize),
}

/// How attempts of the laboratory's hosts ended, with the last status.
type Fates = BTreeMap<(Kind, Outcome, u16), u64>;

struct Day {
    world: World,
    entropy: Entropy,
    border: HostId,
    workers: u8,
    core: HostId,
    carrier: HostId,
    ims: HostId,
    phones: HostId,
    mobiles: HostId,
    crowd: HostId,
    parties: [HostId; 2],
    did: [Did; 2],
    attempts: u64,
    good: u64,
    rounds: u64,
    fates: Fates,
}

const FRIENDS: [&[&str]; 2] = [
    &["far", "far", "5555", "7000", "0001", "nobody"],
    &["near", "near", "5555", "far", "0002", "nobody"],
];

impl Day {
    fn new(seed: u64, workers: u8) -> Day {
        let mut world = World::new(seed);
        world.set_detail(Detail::Events);
        let mut entropy = world.entropy();
        let key = HashKey::new(&mut entropy);
        let ips = [OUTSIDE, INSIDE].map(|text| at(text).ip());
        let borders = Border::crew(border_config("Day", workers), workers, entropy.fork());
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
                world.add_crew("border", &ips, members)
            }
        };
        let ip = |text: &str| -> [IpAddr; 1] { [at(text).ip()] };
        let (registrar, forwarder) = core(&mut entropy);
        let core = world.add_control("core", &ip(CORE), registrar, forwarder);
        let idle = |name: &str, address: &str| HostPlan::new(name, at(address));
        let mut host = |world: &mut World, plan: HostPlan| {
            let (name, ips) = (plan.name.clone(), [plan.address.ip()]);
            world.add_engine(&name, &ips, Host::new(plan, entropy.fork()))
        };
        let carrier = host(&mut world, carrier());
        let ims = host(&mut world, ims());
        let phones = host(&mut world, idle("phones", PHONES));
        let mobiles = host(&mut world, idle("mobiles", MOBILES));
        let crowd = host(&mut world, idle("crowd", CROWD));
        let mut party = |own: &str, border: &str, friends| {
            let engine = Party::new(at(own), at(border), friends, entropy.fork());
            world.add_engine("party", &[at(own).ip()], engine)
        };
        let parties = [
            party(NEAR_PARTY, OUTSIDE, FRIENDS[0]),
            party(FAR_PARTY, INSIDE, FRIENDS[1]),
        ];
        let mut day = Day {
            world,
            entropy,
            border,
            workers,
            core,
            carrier,
            ims,
            phones,
            mobiles,
            crowd,
            parties,
            did: [Did::default(); 2],
            attempts: 0,
            good: 0,
            rounds: 0,
            fates: Fates::new(),
        };
        day.world.set_default_link(good());
        day.pass(Duration::from_secs(1));
        day
    }

    fn pass(&mut self, span: Duration) {
        let until = self.world.now() + span;
        self.world.run_until(until);
    }

    /// A new host in the place of one that has stopped; its results are counted and forgotten.
    fn begin(&mut self, host: HostId, plan: HostPlan, target: &str) {
        self.collect(host);
        self.world.plan(self.world.now(), Fault::Crash(host));
        self.pass(Duration::from_millis(10));
        let engine = Host::new(plan, self.entropy.fork());
        self.world.restart(host, engine);
        self.pass(Duration::from_millis(10));
        let begin = |host: &mut Host, now: Time| host.begin(at(target), now);
        self.world.with_engine(host, begin).unwrap();
    }

    fn collect(&mut self, host: HostId) {
        let finish = |host: &mut Host, now: Time| host.finish(now);
        if let Some(results) = self.world.with_engine(host, finish) {
            let good = results.attempts.iter().filter(|a| a.outcome.is_good());
            self.good += good.count() as u64;
            for attempt in &results.attempts {
                let key = (attempt.kind, attempt.outcome, attempt.status);
                *self.fates.entry(key).or_insert(0) += 1;
            }
            self.attempts += results.attempts.len() as u64;
        }
    }

    /// A host stops without a word, and is back after `away`.
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
        let engine = Host::new(plan, self.entropy.fork());
        self.world.restart(host, engine);
    }

    fn collect_if_host(&mut self, host: HostId) {
        if host != self.core {
            self.collect(host);
        }
    }

    /// Ten minutes of traffic with all that can go wrong.
    fn round(&mut self) {
        self.rounds += 1;
        let began = self.world.now();
        // Good weather first.
        self.pass(Duration::from_secs(60));
        let storm = Storm {
            link: bad(),
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

    /// More calls at once than the border lets in: refused by rate, and once more while it is slow, shed by overload.
    fn burst(&mut self) {
        for effort in [Duration::ZERO, Duration::from_millis(8)] {
            self.world.set_effort(self.border, effort);
            self.begin(self.crowd, crowd(), OUTSIDE);
            self.pass(Duration::from_secs(5));
            self.world.set_effort(self.border, Duration::ZERO);
            self.pass(Duration::from_secs(30));
        }
    }

    fn reload(&mut self) {
        let agent = ["Day", "Night"][self.rounds as usize % 2];
        let config = border_config(agent, self.workers);
        self.each(|border, _, now| border.reload(config.clone(), now));
    }

    /// Each of the border's workers.
    fn each<R>(&mut self, mut work: impl FnMut(&mut Border, &Forwarder, Time) -> R) -> Vec<R> {
        let mut results = Vec::new();
        for worker in 0..usize::from(self.workers) {
            let work = |border: &mut Border, forwarder: &mut Forwarder, now: Time| {
                work(border, forwarder, now)
            };
            let result = match self.workers {
                1 => self.world.with_control(self.border, work),
                _ => self.world.with_member(self.border, worker, work),
            };
            results.extend(result);
        }
        assert_eq!(results.len(), usize::from(self.workers));
        results
    }

    /// Traffic for a while, then rest; what is left.
    fn spell(&mut self, traffic: Duration) -> Left {
        self.begin(self.phones, phones(traffic, self.rounds), OUTSIDE);
        self.begin(self.mobiles, mobiles(traffic), OUTSIDE);
        for party in self.parties {
            self.world
                .with_engine(party, |party: &mut Party, now| party.begin(now))
                .unwrap();
        }
        for _ in 0..traffic.as_secs() / ROUND.as_secs() {
            self.round();
        }
        for party in self.parties {
            self.world
                .with_engine(party, |party: &mut Party, now| party.rest(now))
                .unwrap();
        }
        self.pass(Duration::from_secs(200));
        // Whoever still talks falls silent without a word.
        for (host, name, address) in [
            (self.phones, "phones", PHONES),
            (self.mobiles, "mobiles", MOBILES),
            (self.crowd, "crowd", CROWD),
        ] {
            self.begin(host, HostPlan::new(name, at(address)), OUTSIDE);
        }
        for (host, plan) in [(self.carrier, carrier()), (self.ims, ims())] {
            self.begin(host, plan, INSIDE);
        }
        self.crash(self.core, Duration::from_secs(1));
        self.pass(REST);
        for (index, party) in self.parties.into_iter().enumerate() {
            let (did, census) = self
                .world
                .with_engine(party, |party: &mut Party, _| (party.did(), party.census()))
                .unwrap();
            assert!(census.is_quiet(), "a party holds {census:?}");
            self.did[index] = did;
        }
        self.settled()
    }

    /// What is held, once no ping of a trunk is under way.
    /// What is left when each worker has been quiet at some moment. Pings of trunks go on, so that the workers need not be quiet at the
    /// same one; what is forgotten by mistake keeps its worker from ever being quiet.
    fn settled(&mut self) -> Left {
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
        Left {
            quiet: seen.iter().all(|seen| *seen),
            ..self.left()
        }
    }

    fn left(&mut self) -> Left {
        let (sockets, connections) = self.world.open(self.border);
        let held = self.each(|border, forwarder, _| {
            let census = border.census();
            (census, forwarder.sessions(), forwarder.sockets())
        });
        let busy = held.iter().find(|(census, ..)| !census.is_quiet());
        let media = held.iter().map(|(census, ..)| census.sockets_open).sum();
        Left {
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

    /// Of all workers.
    fn counters(&mut self) -> Counters {
        let all = self.each(|border, _, _| border.counters().clone());
        let sum = |of: fn(&Counters) -> u64| all.iter().map(of).sum();
        Counters {
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
            ..Counters::default()
        }
    }
}

fn good() -> LinkConfig {
    LinkConfig {
        delay: Delay::Uniform(Duration::from_millis(2), Duration::from_millis(12)),
        loss: Loss::Random(0.002),
        ..LinkConfig::default()
    }
}

fn bad() -> LinkConfig {
    LinkConfig {
        delay: Delay::Uniform(Duration::from_millis(5), Duration::from_millis(400)),
        loss: Loss::Random(0.15),
        duplicate: 0.05,
        reorder: 0.05,
        ..LinkConfig::default()
    }
}

fn heap() -> i64 {
    HEAP.with(Cell::get)
}

/// Heap that one spell may leave above the second one's: tables grow to what the worst moment needed, and stay.
const SLACK: i64 = 160 * 1024;

#[test]
fn a_day_of_everything_leaves_nothing_behind() {
    live(1);
}

#[test]
fn a_day_of_everything_leaves_nothing_behind_with_several_workers() {
    live(3);
}

fn live(workers: u8) {
    let hours = std::env::var("HORNWORK_HOURS").ok();
    let hours: Option<u64> = hours.and_then(|text| text.parse().ok());
    // By default one round in each spell, and three spells.
    let (end, traffic) = match hours {
        Some(hours) => (
            Time::from_secs(hours * 3_600),
            SPELL.saturating_sub(REST + Duration::from_secs(300)),
        ),
        None => (Time::ZERO, ROUND),
    };
    let mut day = Day::new(1, workers);
    let fresh = day.settled();
    assert!(fresh.quiet, "{fresh:?}");
    let mut heaps = Vec::new();
    while heaps.len() < 3 || day.world.now() < end {
        let left = day.spell(traffic);
        let counters = day.counters();
        heaps.push(heap());
        let spell = heaps.len();
        eprintln!(
            "{spell}: {} s, {} calls, {} registrations answered here, {} refused by rate, {} by overload, {} relayed, heap {} KiB, {} media sockets kept",
            seconds(day.world.now()),
            counters.offered,
            counters.refreshed,
            counters.shielded,
            counters.shed,
            counters.relayed,
            heap() / 1024,
            left.media,
        );
        assert!(left.quiet, "after spell {spell}: {left:?}");
        assert_eq!(left.census.registrations, 0, "after spell {spell}");
        assert_eq!(left.forwarder, (0, 0), "after spell {spell}: {left:?}");
        // The connections of the pings may stand, one of each worker's at most.
        assert_eq!(left.open.0, fresh.open.0, "after spell {spell}: {left:?}");
        assert!(
            left.open.1 <= usize::from(workers),
            "after spell {spell}: {left:?}"
        );
    }
    let second = heaps[1];
    assert!(
        heaps.iter().skip(2).all(|heap| *heap <= second + SLACK),
        "memory grows: {heaps:?}"
    );
    let counters = day.counters();
    let did = day.did[0].and(day.did[1]);
    eprintln!(
        "{} s, {} rounds, {} of {} attempts good, {did:?}, {counters:?}",
        seconds(day.world.now()),
        day.rounds,
        day.good,
        day.attempts,
    );
    eprintln!("{:?}", day.fates);
    // All of it did happen. What is dropped at a glance one worker alone does.
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
        ("offers", did.offers),
        ("referred", did.accepted),
        ("cancels", did.cancels),
    ] {
        assert!(count > 0, "{what} never happened: {counters:?} {did:?}");
    }
    assert!(
        day.good * 2 > day.attempts,
        "{} of {}",
        day.good,
        day.attempts
    );
}

fn seconds(time: Time) -> u64 {
    time.0 / 1_000_000_000
}
