//! State of trunks, determined by OPTIONS pings. This module determines which ping is due and processes its result; it
//! sends nothing.

use crate::carrier::ServiceRoute;
use config::{Config, TrunkId};
use core::time::Duration;
use engine::timers::TimerHeap;
use engine::worker::lock;
use engine::{Deadline, Entropy, EventKind, Time};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};

/// A ping to send now. Report the result by [`Trunks::result`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    /// The trunk.
    pub trunk: TrunkId,
    /// Index of the target.
    pub target: u16,
    /// Serial number, which identifies results from before a reload.
    pub epoch: u32,
}

/// Result of a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PingResult {
    /// A final response. 408 and 503 count as failures (a target that responds with 503 accepts no calls, RFC 3261
    /// section 21.5.4); any other, including a refusal, shows that the target is up.
    Response(u16),
    /// No final response in time, or it could not be sent.
    TimedOut,
}

impl PingResult {
    /// Whether it shows that the target is up.
    pub(crate) fn is_good(self) -> bool {
        !matches!(self, PingResult::TimedOut | PingResult::Response(408 | 503))
    }

    fn why(self) -> String {
        match self {
            PingResult::Response(status) => format!("answered {status}"),
            PingResult::TimedOut => "no answer".to_owned(),
        }
    }
}

#[derive(Debug)]
struct TargetState {
    up: AtomicBool,
    /// Failed pings in a row.
    failures: AtomicU32,
    /// Calls without any response in a row, since the last answered ping.
    unanswered: AtomicU32,
    /// Whether a ping is pending.
    waiting: AtomicBool,
}

/// The Service-Route of the account at a trunk, which one worker registers and all use. Most trunks have none: their
/// calls take no lock.
#[derive(Debug, Default)]
struct SharedServiceRoute {
    is_set: AtomicBool,
    route: Mutex<Option<ServiceRoute>>,
}

/// State of a trunk, shared by all workers without locks, except for its Service-Route.
#[derive(Debug)]
struct Board {
    name: String,
    targets: Box<[TargetState]>,
    /// Kept even if the targets change.
    calls: Arc<AtomicU32>,
    /// Whether an operator has disabled it; kept as well.
    disabled: Arc<AtomicBool>,
    service_route: SharedServiceRoute,
}

impl Board {
    fn new(name: &str, targets: usize, before: Option<&Board>) -> Board {
        let fresh = |_| TargetState {
            up: AtomicBool::new(true),
            failures: AtomicU32::new(0),
            unanswered: AtomicU32::new(0),
            waiting: AtomicBool::new(false),
        };
        Board {
            name: name.to_owned(),
            targets: (0..targets).map(fresh).collect(),
            calls: before.map_or_else(Arc::default, |before| before.calls.clone()),
            disabled: before.map_or_else(Arc::default, |before| before.disabled.clone()),
            // The worker that registers sets it after its reload.
            service_route: SharedServiceRoute::default(),
        }
    }
}

/// The shared states of the trunks, of the newest configuration that any worker has loaded.
#[derive(Debug, Default)]
pub(crate) struct Boards {
    epoch: u32,
    boards: Vec<Arc<Board>>,
}

impl Boards {
    /// Applies a configuration: trunks of the same name and number of targets keep their state; numbers of calls are
    /// kept in any case.
    fn reload(&mut self, config: &Config) {
        let before = std::mem::take(&mut self.boards);
        for trunk in &config.trunks {
            let old = before.iter().find(|old| old.name == trunk.name);
            let board = match old {
                Some(old)
                    if old.targets.len() == trunk.targets.len()
                        && trunk.ping_interval.is_some() =>
                {
                    old.clone()
                }
                old => Arc::new(Board::new(
                    &trunk.name,
                    trunk.targets.len(),
                    old.map(|old| &**old),
                )),
            };
            self.boards.push(board);
        }
    }

    fn find(&self, name: &str, targets: usize) -> Option<Arc<Board>> {
        let same = |board: &&Arc<Board>| board.name == name && board.targets.len() == targets;
        self.boards.iter().find(same).cloned()
    }
}

#[derive(Debug, Clone)]
struct TrunkState {
    board: Arc<Board>,
    interval: Option<Duration>,
    most_failures: u32,
}

impl TrunkState {
    fn up(&self) -> bool {
        self.board
            .targets
            .iter()
            .any(|target| target.up.load(Relaxed))
    }

    /// Takes a target out of service if failed pings and unanswered calls together reach the limit.
    fn judge(&self, target: &TargetState) {
        let pings = target.failures.load(Relaxed);
        let calls = target.unanswered.load(Relaxed);
        if pings.saturating_add(calls) >= self.most_failures {
            target.up.store(false, Relaxed);
        }
    }
}

/// Workers count at the same time; a lost increment only delays the decision.
fn count(counter: &AtomicU32) {
    counter.store(counter.load(Relaxed).saturating_add(1), Relaxed);
}

/// The state of all trunks.
#[derive(Debug)]
pub struct Trunks {
    trunks: Vec<TrunkState>,
    common: Arc<Mutex<Boards>>,
    /// Whether this worker sends the pings.
    pings: bool,
    agenda: TimerHeap<Ping>,
    entropy: Entropy,
    epoch: u32,
}

impl Trunks {
    /// All trunks of `config`, initially up. First pings are sent within one interval, spread.
    pub fn new(config: &Config, entropy: Entropy, now: Time) -> Trunks {
        let mut trunks = Trunks {
            trunks: Vec::new(),
            common: Arc::default(),
            pings: true,
            agenda: TimerHeap::new(),
            entropy,
            epoch: 0,
        };
        trunks.reload(config, now);
        trunks
    }

    /// The same for one of several workers, one of which sends pings.
    pub(crate) fn of_worker(
        config: &Config,
        entropy: Entropy,
        common: Arc<Mutex<Boards>>,
        pings: bool,
    ) -> Trunks {
        let mut trunks = Trunks {
            trunks: Vec::new(),
            common,
            pings,
            agenda: TimerHeap::new(),
            entropy,
            epoch: 0,
        };
        trunks.reload(config, Time::ZERO);
        trunks
    }

    /// Applies a new configuration: trunks of the same name and number of targets keep their state and number of calls.
    pub fn reload(&mut self, config: &Config, now: Time) {
        self.trunks.clear();
        self.agenda = TimerHeap::new();
        self.epoch = self.epoch.wrapping_add(1);
        let mut common = lock(&self.common);
        if common.epoch < self.epoch {
            common.epoch = self.epoch;
            common.reload(config);
        }
        for (index, trunk) in config.trunks.iter().enumerate() {
            let count = trunk.targets.len();
            // Another worker may have loaded a newer configuration without this trunk.
            let board = common
                .find(&trunk.name, count)
                .unwrap_or_else(|| Arc::new(Board::new(&trunk.name, count, None)));
            if self.pings {
                // Results of pings before this reload are ignored. Another worker may have been the first to reload, so
                // that such a ping was sent after that.
                for target in &board.targets {
                    target.waiting.store(false, Relaxed);
                }
            }
            if let Some(interval) = trunk.ping_interval.filter(|_| self.pings) {
                for target in 0..count {
                    let ping = Ping {
                        trunk: TrunkId(u16::try_from(index).unwrap_or(u16::MAX)),
                        target: u16::try_from(target).unwrap_or(u16::MAX),
                        epoch: self.epoch,
                    };
                    // At most five seconds, so that the state is known soon after the start.
                    let first = interval
                        .min(Duration::from_secs(5))
                        .mul_f64(self.entropy.unit());
                    self.agenda.push(now + first, ping);
                }
            }
            self.trunks.push(TrunkState {
                board,
                interval: trunk.ping_interval,
                most_failures: trunk.ping_failures,
            });
        }
    }

    /// The next ping that is due.
    pub fn next_ping(&mut self, now: Time) -> Option<Ping> {
        while let Some((_, ping)) = self.agenda.pop_due(now) {
            let Some(trunk) = self.trunks.get(usize::from(ping.trunk.0)) else {
                continue;
            };
            let Some(interval) = trunk.interval else {
                continue;
            };
            // A random tenth more or less, so that many borders do not ping in step.
            let span = interval.mul_f64(0.9 + 0.2 * self.entropy.unit());
            self.agenda.push(now + span, ping);
            let Some(target) = trunk.board.targets.get(usize::from(ping.target)) else {
                continue;
            };
            // The interval may be shorter than the transaction: one ping at a time.
            if !target.waiting.swap(true, Relaxed) {
                return Some(ping);
            }
        }
        None
    }

    /// Whether the trunks were not reloaded since this ping.
    pub(crate) fn is_current(&self, ping: Ping) -> bool {
        ping.epoch == self.epoch
    }

    /// When [`Trunks::next_ping`] is due.
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.agenda
            .next_at()
            .map(|at| Deadline::new(at, "trunk ping"))
    }

    /// Processes the result of a ping. Returns an event if the state of the trunk changed.
    pub fn result(&mut self, ping: Ping, result: PingResult) -> Option<EventKind> {
        if ping.epoch != self.epoch {
            return None;
        }
        let trunk = self.trunks.get(usize::from(ping.trunk.0))?;
        let was_up = trunk.up();
        let target = trunk.board.targets.get(usize::from(ping.target))?;
        target.waiting.store(false, Relaxed);
        if result.is_good() {
            target.failures.store(0, Relaxed);
            target.unanswered.store(0, Relaxed);
            target.up.store(true, Relaxed);
        } else {
            count(&target.failures);
            trunk.judge(target);
        }
        trunk.changed(was_up, result)
    }

    /// A call to this target got no response at all: counts like a failed ping if the trunk is pinged; otherwise it
    /// would stay down.
    pub fn call_unanswered(&mut self, trunk: TrunkId, target: u16) -> Option<EventKind> {
        let trunk = self.trunks.get(usize::from(trunk.0))?;
        trunk.interval?;
        let was_up = trunk.up();
        let target = trunk.board.targets.get(usize::from(target))?;
        count(&target.unanswered);
        trunk.judge(target);
        trunk.changed(was_up, PingResult::TimedOut)
    }

    /// A call to this target got a response. Also 503 shows that it is there: carriers send it for a single destination
    /// that is congested, so that the trunk is down for all calls only if pings get it.
    pub fn call_responded(&mut self, trunk: TrunkId, target: u16) {
        let trunk = self.trunks.get(usize::from(trunk.0));
        let target = trunk.and_then(|trunk| trunk.board.targets.get(usize::from(target)));
        if let Some(target) = target {
            target.unanswered.store(0, Relaxed);
        }
    }

    /// Whether a target gets calls: it is up, and its trunk is enabled.
    pub fn target_up(&self, trunk: TrunkId, target: usize) -> bool {
        self.is_enabled(trunk) && self.is_answering(trunk, target)
    }

    /// Whether a trunk is in service.
    pub fn is_enabled(&self, trunk: TrunkId) -> bool {
        let trunk = self.trunks.get(usize::from(trunk.0));
        trunk.is_some_and(|trunk| !trunk.board.disabled.load(Relaxed))
    }

    /// Puts a trunk into service or out of it.
    pub fn set_enabled(&mut self, trunk: TrunkId, enabled: bool) {
        if let Some(trunk) = self.trunks.get(usize::from(trunk.0)) {
            trunk.board.disabled.store(!enabled, Relaxed);
        }
    }

    /// Sets the route of requests to a target of a trunk, or removes it.
    pub(crate) fn set_service_route(&mut self, trunk: TrunkId, route: Option<&ServiceRoute>) {
        let Some(trunk) = self.trunks.get(usize::from(trunk.0)) else {
            return;
        };
        let shared = &trunk.board.service_route;
        if route.is_none() && !shared.is_set.load(Relaxed) {
            return;
        }
        let mut present = lock(&shared.route);
        if present.as_ref() != route {
            *present = route.cloned();
        }
        shared.is_set.store(route.is_some(), Relaxed);
    }

    /// Route values of requests to a target of a trunk; usually none.
    pub(crate) fn service_route(&self, trunk: TrunkId, target: usize) -> Vec<Box<[u8]>> {
        let trunk = self.trunks.get(usize::from(trunk.0));
        let shared = trunk.map(|trunk| &trunk.board.service_route);
        let Some(shared) = shared.filter(|shared| shared.is_set.load(Relaxed)) else {
            return Vec::new();
        };
        let present = lock(&shared.route);
        let of_target = present.as_ref().filter(|route| route.target == target);
        of_target.map_or_else(Vec::new, |route| route.values.clone())
    }

    /// Whether a target answers.
    pub fn is_answering(&self, trunk: TrunkId, target: usize) -> bool {
        self.trunks
            .get(usize::from(trunk.0))
            .and_then(|trunk| trunk.board.targets.get(target))
            .is_some_and(|target| target.up.load(Relaxed))
    }

    /// Number of calls of a trunk.
    pub fn calls(&self, trunk: TrunkId) -> u32 {
        self.trunks
            .get(usize::from(trunk.0))
            .map_or(0, |trunk| trunk.board.calls.load(Relaxed))
    }

    /// Calls of all trunks.
    pub(crate) fn all_calls(&self) -> u64 {
        let calls = |trunk: &TrunkState| u64::from(trunk.board.calls.load(Relaxed));
        self.trunks.iter().map(calls).sum()
    }

    /// Counts a call, if it uses a trunk.
    pub(crate) fn begin_call(&mut self, trunk: Option<TrunkId>) {
        if let Some(trunk) = trunk {
            self.call_began(trunk);
        }
    }

    /// A call has ended, which may have used a trunk.
    pub(crate) fn end_call(&mut self, trunk: Option<TrunkId>) {
        if let Some(trunk) = trunk {
            self.call_ended(trunk);
        }
    }

    /// Counts a call of this trunk.
    pub fn call_began(&mut self, trunk: TrunkId) {
        if let Some(trunk) = self.trunks.get(usize::from(trunk.0)) {
            trunk.board.calls.fetch_add(1, Relaxed);
        }
    }

    /// A call of this trunk has ended.
    pub fn call_ended(&mut self, trunk: TrunkId) {
        if let Some(trunk) = self.trunks.get(usize::from(trunk.0)) {
            let less = |calls: u32| calls.checked_sub(1);
            // Saturates at 0.
            let _ = trunk.board.calls.fetch_update(Relaxed, Relaxed, less);
        }
    }
}

impl TrunkState {
    fn changed(&self, was_up: bool, result: PingResult) -> Option<EventKind> {
        match (was_up, self.up()) {
            (false, true) => Some(EventKind::TrunkUp {
                trunk: self.board.name.clone(),
            }),
            (true, false) => Some(EventKind::TrunkDown {
                trunk: self.board.name.clone(),
                reason: result.why(),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trunks() -> Trunks {
        let text = "[[interface]]\nname='a'\nlisten='udp:192.0.2.1:5060'\n\
             [[trunk]]\nname='pbx'\ntarget=['192.0.2.2','192.0.2.3']\nping_interval_s=10\nping_failures=2\n\
             [[trunk]]\nname='quiet'\ntarget='192.0.2.4'\n";
        let config = config::parse(text, "t").unwrap();
        Trunks::new(&config, Entropy::from_number(7), Time::ZERO)
    }

    fn run(trunks: &mut Trunks, seconds: u64, result: PingResult) -> (Vec<Ping>, Vec<EventKind>) {
        let (mut pings, mut notes) = (Vec::new(), Vec::new());
        let end = Time::from_secs(seconds);
        while let Some(deadline) = trunks.next_deadline().filter(|d| d.at <= end) {
            while let Some(ping) = trunks.next_ping(deadline.at) {
                pings.push(ping);
                notes.extend(trunks.result(ping, result));
            }
        }
        (pings, notes)
    }

    #[test]
    fn pings_follow_the_configured_interval() {
        let mut trunks = trunks();
        let (pings, notes) = run(&mut trunks, 100, PingResult::Response(200));
        assert!((18..=24).contains(&pings.len()), "{}", pings.len());
        assert!(pings.iter().all(|ping| ping.trunk == TrunkId(0)));
        assert!(notes.is_empty());
    }

    /// Another target may not reach the proxies of the route.
    #[test]
    fn service_route_is_that_of_one_target() {
        let mut trunks = trunks();
        let values: Vec<Box<[u8]>> = vec![b"<sip:edge;lr>"[..].into(), b"<sip:core;lr>"[..].into()];
        let route = ServiceRoute { target: 1, values };
        trunks.set_service_route(TrunkId(0), Some(&route));
        trunks.set_service_route(TrunkId(9), Some(&route));
        assert_eq!(trunks.service_route(TrunkId(0), 1), route.values);
        for (trunk, target) in [(0, 0), (1, 1), (9, 1)] {
            assert!(trunks.service_route(TrunkId(trunk), target).is_empty());
        }
        trunks.set_service_route(TrunkId(0), None);
        assert!(trunks.service_route(TrunkId(0), 1).is_empty());
    }

    #[test]
    fn trunk_is_down_after_failures_of_all_targets() {
        let mut trunks = trunks();
        let (_, notes) = run(&mut trunks, 6, PingResult::TimedOut);
        assert!(notes.is_empty(), "one failure is none");
        assert!(trunks.target_up(TrunkId(0), 0));
        let (_, notes) = run(&mut trunks, 18, PingResult::Response(503));
        assert_eq!(
            notes,
            [EventKind::TrunkDown {
                trunk: "pbx".into(),
                reason: "answered 503".into()
            }]
        );
        assert!(!trunks.target_up(TrunkId(0), 0) && !trunks.target_up(TrunkId(0), 1));
        assert!(trunks.target_up(TrunkId(1), 0), "not pinged: counts as up");
        let (_, notes) = run(&mut trunks, 40, PingResult::Response(404));
        assert_eq!(
            notes,
            [EventKind::TrunkUp {
                trunk: "pbx".into()
            }]
        );
    }

    #[test]
    fn ping_results_before_a_reload_are_ignored() {
        let mut trunks = trunks();
        let mut asked = Vec::new();
        for second in 0..60 {
            asked.extend(std::iter::from_fn(|| {
                trunks.next_ping(Time::from_secs(second))
            }));
        }
        assert_eq!(asked.len(), 2, "no second ping while the first waits");
        let text = "[[interface]]\nname='a'\nlisten='udp:192.0.2.1:5060'\n\
             [[trunk]]\nname='pbx'\ntarget=['192.0.2.2','192.0.2.3']\nping_interval_s=10\nping_failures=1\n";
        trunks.call_began(TrunkId(0));
        trunks.set_enabled(TrunkId(0), false);
        trunks.reload(&config::parse(text, "t").unwrap(), Time::from_secs(60));
        assert_eq!(trunks.result(asked[0], PingResult::TimedOut), None);
        assert!(!trunks.target_up(TrunkId(0), 0), "it is still disabled");
        assert!(trunks.is_answering(TrunkId(0), 0));
        trunks.set_enabled(TrunkId(0), true);
        assert!(trunks.target_up(TrunkId(0), 0));
        assert_eq!(trunks.calls(TrunkId(0)), 1);
    }

    /// A worker that does not ping reloads first, and a ping is sent before the pinging worker reloads.
    #[test]
    fn pings_continue_after_a_reload_by_several_workers() {
        let text = "[[interface]]\nname='a'\nlisten='udp:192.0.2.1:5060'\n\
             [[trunk]]\nname='pbx'\ntarget='192.0.2.2'\nping_interval_s=10\n";
        let config = config::parse(text, "t").unwrap();
        let common = Arc::<Mutex<Boards>>::default();
        let worker = |seed, pings| {
            let entropy = Entropy::from_number(seed);
            Trunks::of_worker(&config, entropy, common.clone(), pings)
        };
        let (mut pinging, mut other) = (worker(1, true), worker(2, false));
        let at = Time::from_secs(60);
        other.reload(&config, at);
        let before = pinging.next_ping(at).unwrap();
        pinging.reload(&config, at);
        assert_eq!(pinging.result(before, PingResult::TimedOut), None);
        let after = pinging.next_ping(at + Duration::from_secs(20));
        assert!(after.is_some());
    }

    #[test]
    fn unanswered_calls_mark_only_pinged_targets_down() {
        let mut trunks = trunks();
        for _ in 0..3 {
            assert_eq!(trunks.call_unanswered(TrunkId(1), 0), None);
        }
        assert!(trunks.target_up(TrunkId(1), 0));
        for target in [0, 0, 1] {
            assert_eq!(trunks.call_unanswered(TrunkId(0), target), None);
        }
        assert!(trunks.call_unanswered(TrunkId(0), 1).is_some());
        // Only an answered ping puts it up again.
        trunks.call_responded(TrunkId(0), 1);
        assert!(!trunks.target_up(TrunkId(0), 1));
    }

    /// A response to a call ends the row of unanswered calls, but not that of failed pings: a system that is being
    /// drained answers pings with 503 and calls with 200.
    #[test]
    fn responses_to_calls_end_the_row_of_unanswered_ones() {
        let mut trunks = trunks();
        for _ in 0..5 {
            assert_eq!(trunks.call_unanswered(TrunkId(0), 0), None);
            assert!(trunks.target_up(TrunkId(0), 0));
            trunks.call_responded(TrunkId(0), 0);
        }
        run(&mut trunks, 6, PingResult::Response(503));
        trunks.call_responded(TrunkId(0), 0);
        assert!(trunks.target_up(TrunkId(0), 0), "one failed ping");
        trunks.call_unanswered(TrunkId(0), 0);
        assert!(!trunks.target_up(TrunkId(0), 0));
    }
}
