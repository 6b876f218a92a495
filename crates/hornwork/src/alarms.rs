//! Alarms: conditions that an operator should look at. Each is raised once and cleared with hysteresis, so that a
//! condition that flaps is one alarm. Changes are told to receivers outside of the border by `output`.

mod disk;
mod notice;
mod output;
mod receiver;

pub(crate) use disk::{WatchedDisk, WrittenFolders};
pub(crate) use output::{AlarmFiles, AlarmOutput, NoticeQueue, summary};

use border::views::NodeView;
use config::Config;
use engine::{EventKind, Time};
use notice::{AlarmChange, AlarmNotice};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Cleared alarms that are kept for the list.
const MAX_CLEARED: usize = 100;
/// Most active alarms of objects that no configuration bounds; further ones are not raised.
const MAX_ACTIVE: usize = 1_000;
/// Interval of the checks of figures.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Time for which the condition has to be over before an alarm is cleared.
const CLEAR_AFTER: Duration = Duration::from_secs(15);

/// Declares the kinds of alarms once; names, severities and texts follow from this list.
macro_rules! alarms {
    ($($(#[doc = $text:literal])* $variant:ident $name:literal $severity:literal;)*) => {
        /// The kind of an alarm.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum AlarmKind { $($(#[doc = $text])* $variant,)* }

        impl AlarmKind {
            /// Name, severity and meaning of each.
            pub(crate) const REFERENCE: &'static [(&'static str, &'static str, &'static str)] =
                &[$(($name, $severity, concat!($($text),*)),)*];
        }
    };
}

alarms! {
    /// All targets of a trunk are down. Cleared when one was up for 15 s.
    TrunkDown "trunk_down" "critical";
    /// A media node does not answer. Cleared when it was up for 15 s.
    MediaNodeDown "media_node_down" "major";
    /// Requests were refused because of the queueing delay. Cleared when none was for 15 s.
    Overload "overload" "major";
    /// Lost RTP packets of calls, by the reports of 5 s (intervals of quality with `[store]`, ends of calls otherwise):
    /// at least 2 % of at least 500 packets. Cleared below 1 % for 15 s; with fewer packets it stays as it is, for ten
    /// minutes.
    MediaLoss "media_loss" "major";
    /// Requests of attackers or faulty devices: at least 100 failed authentications, rate-limited or shed requests
    /// within 5 s. Cleared below 50.
    Attack "attack" "major";
    /// Call records cannot be written. Cleared when they were for 15 s.
    Records "records" "critical";
    /// Registrations cannot be written to their file. Cleared when they were for 15 s.
    RegistrationStore "registration_store" "major";
    /// The store of calls and messages cannot be written. Cleared when it was for 15 s.
    Store "store" "major";
    /// The store of calls and messages lost messages, events, drops or calls. Cleared when it lost none for 15 s.
    StoreLoss "store_loss" "minor";
    /// A file system of store, call records, registrations, audit log or statistics is almost full: less than a tenth
    /// of it, or than 1 GiB if that is less, is free. Cleared when 1.2 times as much was free for 15 s.
    Disk "disk" "major";
    /// A certificate expires within 30 days. Cleared when it is replaced.
    Certificate "certificate" "major";
    /// The clock of the machine was set by more than a second since the start: times in log, records and store count
    /// from the start, until a restart.
    Clock "clock" "minor";
    /// A receiver of alarms or traces cannot be reached or refuses them, or the name of the HEP collector cannot be
    /// resolved. Cleared when that was over for 15 s.
    ReceiverDown "receiver_down" "minor";
}

/// Fewer packets tell nothing about the loss.
const FEWEST_PACKETS: u64 = 500;
/// Time without enough packets after which the alarm about loss is cleared.
const LOSS_UNKNOWN: Duration = Duration::from_secs(600);

/// Alarms that an event raises, and another one calms.
const OF_EVENTS: [AlarmKind; 6] = [
    AlarmKind::TrunkDown,
    AlarmKind::MediaNodeDown,
    AlarmKind::Records,
    AlarmKind::RegistrationStore,
    AlarmKind::Store,
    AlarmKind::ReceiverDown,
];

impl AlarmKind {
    fn reference(self) -> (&'static str, &'static str, &'static str) {
        let at = AlarmKind::REFERENCE.get(self as usize).copied();
        at.unwrap_or(("unknown", "minor", ""))
    }

    /// The name in events and JSON.
    pub(crate) fn name(self) -> &'static str {
        self.reference().0
    }

    /// Whether its objects are those of [`AlarmObjects`].
    fn is_configured(self) -> bool {
        use AlarmKind::{Certificate, MediaNodeDown, TrunkDown};
        matches!(self, TrunkDown | MediaNodeDown | Certificate)
    }

    /// critical, major or minor.
    pub(crate) fn severity(self) -> &'static str {
        self.reference().1
    }
}

/// An alarm.
#[derive(Clone, Debug)]
pub(crate) struct RaisedAlarm {
    /// Number, for acknowledging.
    pub(crate) id: u64,
    pub(crate) kind: AlarmKind,
    /// The trunk, node, folder or certificate; empty for the border.
    pub(crate) object: String,
    /// Details of the moment at which it was raised.
    pub(crate) detail: String,
    pub(crate) raised: Time,
    pub(crate) cleared: Option<Time>,
    pub(crate) acknowledged: Option<Time>,
    /// The user or source that acknowledged it first.
    pub(crate) acknowledged_by: Option<String>,
    /// Since when the condition is over.
    calm: Option<Time>,
}

impl RaisedAlarm {
    fn new(id: u64, kind: AlarmKind, object: &str, detail: &str, now: Time) -> RaisedAlarm {
        RaisedAlarm {
            id,
            kind,
            object: object.to_owned(),
            detail: detail.to_owned(),
            raised: now,
            cleared: None,
            acknowledged: None,
            acknowledged_by: None,
            calm: None,
        }
    }
}

/// The objects of the configuration that can have an alarm, with a text that identifies their state: where it differs
/// after a reload, the object begins anew.
pub(crate) type AlarmObjects = BTreeMap<(AlarmKind, String), String>;

/// The trunks, media nodes and certificates of a configuration.
pub(crate) fn objects(
    config: &Config,
    certificates: impl IntoIterator<Item = String>,
) -> AlarmObjects {
    // A trunk without ping has no state, and one with another number of targets is up again.
    let pinged = config
        .trunks
        .iter()
        .filter(|one| one.ping_interval.is_some());
    let trunks = pinged.map(|one| {
        let key = (AlarmKind::TrunkDown, one.name.clone());
        (key, one.targets.len().to_string())
    });
    let nodes = config.media_nodes.iter().map(|one| {
        let key = (AlarmKind::MediaNodeDown, one.name.clone());
        (key, one.control.to_string())
    });
    let certificates = certificates
        .into_iter()
        .map(|name| ((AlarmKind::Certificate, name), String::new()));
    trunks.chain(nodes).chain(certificates).collect()
}

#[derive(Debug, Default)]
struct AlarmState {
    last_id: u64,
    /// `None`: all objects can have alarms.
    objects: Option<AlarmObjects>,
    /// Receivers outside of the border, and the number of notices so far.
    receivers: Vec<NoticeQueue>,
    notices: u64,
    active: BTreeMap<(AlarmKind, String), RaisedAlarm>,
    cleared: VecDeque<RaisedAlarm>,
    /// Sums at the last check.
    packets: u64,
    lost: u64,
    refused: u64,
    store_lost: u64,
    /// Time of the last check with enough packets.
    loss_known: Time,
}

/// Sums since the start and present states that alarms watch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WatchedFigures {
    /// RTP packets of calls as far as they are reported, and those lost before they arrived.
    pub(crate) packets: u64,
    pub(crate) lost: u64,
    /// Requests refused to protect the border.
    pub(crate) refused: u64,
    /// Items that the store of calls and messages lost.
    pub(crate) store_lost: u64,
    pub(crate) overload: bool,
    pub(crate) queue_delay: Duration,
    /// Difference of the wall clock from the one that started with the program.
    pub(crate) clock_error: Duration,
}

/// All alarms; shared by all threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct AlarmBoard(Arc<Mutex<AlarmState>>);

/// Result of an acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledgement {
    /// There is no such active alarm.
    Unknown,
    /// It was acknowledged before.
    Repeated,
    /// It is acknowledged now; the event tells it.
    First(Box<EventKind>),
}

impl AlarmState {
    /// Queues a notice for each receiver.
    fn tell(&mut self, change: AlarmChange, alarm: &RaisedAlarm, now: Time) {
        if self.receivers.is_empty() {
            return;
        }
        self.notices += 1;
        let notice = Arc::new(AlarmNotice {
            number: self.notices,
            change,
            at: now,
            alarm: alarm.clone(),
        });
        for receiver in &self.receivers {
            receiver.offer(&notice);
        }
    }

    fn raise(
        &mut self,
        kind: AlarmKind,
        object: &str,
        detail: String,
        now: Time,
    ) -> Option<EventKind> {
        let key = (kind, object.to_owned());
        if !self.is_known(&key) {
            return None;
        }
        if let Some(alarm) = self.active.get_mut(&key) {
            alarm.calm = None;
            return None;
        }
        // Thousands of trunks that are down must not keep an alarm about something else from being raised.
        let is_bounded = |kind: AlarmKind| self.objects.is_some() && kind.is_configured();
        if !is_bounded(kind) {
            let mut others = self.active.keys().filter(|(kind, _)| !is_bounded(*kind));
            if others.nth(MAX_ACTIVE - 1).is_some() {
                return None;
            }
        }
        self.last_id += 1;
        let alarm = RaisedAlarm::new(self.last_id, kind, object, &detail, now);
        self.tell(AlarmChange::Raised, &alarm, now);
        self.active.insert(key, alarm);
        Some(EventKind::AlarmRaised {
            alarm: kind.name().to_owned(),
            id: self.last_id,
            severity: kind.severity().to_owned(),
            object: object.to_owned(),
            detail,
        })
    }

    /// Whether the configuration has this object. Calls of a removed trunk or node may still fail.
    fn is_known(&self, key: &(AlarmKind, String)) -> bool {
        let objects = self.objects.as_ref().filter(|_| key.0.is_configured());
        objects.is_none_or(|objects| objects.contains_key(key))
    }

    fn clear(&mut self, kind: AlarmKind, object: &str, now: Time) -> Option<EventKind> {
        let mut alarm = self.active.remove(&(kind, object.to_owned()))?;
        alarm.cleared = Some(now);
        self.tell(AlarmChange::Cleared, &alarm, now);
        let event = EventKind::AlarmCleared {
            alarm: kind.name().to_owned(),
            id: alarm.id,
            object: object.to_owned(),
            duration_s: now.since(alarm.raised).as_secs(),
        };
        if self.cleared.len() >= MAX_CLEARED {
            self.cleared.pop_front();
        }
        self.cleared.push_back(alarm);
        Some(event)
    }

    /// The condition is over; the alarm is cleared if that lasts.
    fn calm(&mut self, kind: AlarmKind, object: &str, now: Time) -> Option<EventKind> {
        let alarm = self.active.get_mut(&(kind, object.to_owned()))?;
        let since = *alarm.calm.get_or_insert(now);
        match now.since(since) >= CLEAR_AFTER {
            true => self.clear(kind, object, now),
            false => None,
        }
    }

    /// Clears alarms of events whose condition has been over for long enough.
    fn clear_calm(&mut self, now: Time) -> Vec<EventKind> {
        let calm = self
            .active
            .iter()
            .filter(|((kind, _), alarm)| OF_EVENTS.contains(kind) && alarm.calm.is_some());
        let calm: Vec<(AlarmKind, String)> = calm.map(|(key, _)| key.clone()).collect();
        let events = calm
            .iter()
            .filter_map(|(kind, object)| self.calm(*kind, object, now));
        events.collect()
    }

    /// Raises above `high`, and calms below `low`.
    fn level(
        &mut self,
        (kind, object): (AlarmKind, &str),
        (level, high, low): (f64, f64, f64),
        detail: String,
        now: Time,
    ) -> Option<EventKind> {
        if level >= high {
            self.raise(kind, object, detail, now)
        } else if level < low {
            self.calm(kind, object, now)
        } else {
            // Between both limits nothing changes, and the calm begins anew.
            let alarm = self.active.get_mut(&(kind, object.to_owned()))?;
            alarm.calm = None;
            None
        }
    }
}

impl AlarmBoard {
    fn state(&self) -> MutexGuard<'_, AlarmState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows an event; returns the event of an alarm that it raises or clears.
    pub(crate) fn observe(&self, event: &EventKind, now: Time) -> Option<EventKind> {
        use AlarmKind::{
            Certificate, MediaNodeDown, ReceiverDown, Records, RegistrationStore, Store, TrunkDown,
        };
        match event {
            EventKind::TrunkDown { trunk, reason } => {
                self.state().raise(TrunkDown, trunk, reason.clone(), now)
            }
            EventKind::TrunkUp { trunk } => self.state().calm(TrunkDown, trunk, now),
            EventKind::MediaNodeDown { node, reason, .. } => {
                self.state().raise(MediaNodeDown, node, reason.clone(), now)
            }
            EventKind::MediaNodeUp { node, .. } => self.state().calm(MediaNodeDown, node, now),
            EventKind::RecordsFailed { folder, reason, .. } => {
                self.state().raise(Records, folder, reason.clone(), now)
            }
            EventKind::RecordsRecovered { folder, .. } => self.state().calm(Records, folder, now),
            EventKind::RegistrationStoreFailed { store, reason, .. } => {
                self.state()
                    .raise(RegistrationStore, store, reason.clone(), now)
            }
            EventKind::RegistrationStoreRecovered { store, .. } => {
                self.state().calm(RegistrationStore, store, now)
            }
            EventKind::StoreFailed { folder, reason, .. } => {
                self.state().raise(Store, folder, reason.clone(), now)
            }
            EventKind::StoreResumed { folder, .. } => self.state().calm(Store, folder, now),
            EventKind::CertificateExpires {
                certificate,
                valid_until,
                ..
            } => {
                let detail = format!("valid until {valid_until}");
                self.state().raise(Certificate, certificate, detail, now)
            }
            EventKind::CertificateLoaded { certificate, .. } => {
                // It is followed by an event about its expiry if it expires soon as well.
                self.state().clear(Certificate, certificate, now)
            }
            EventKind::ReceiverFailed { receiver, reason } => {
                self.state()
                    .raise(ReceiverDown, receiver, reason.clone(), now)
            }
            EventKind::ReceiverRecovered { receiver, .. } => {
                self.state().calm(ReceiverDown, receiver, now)
            }
            _ => None,
        }
    }

    /// Checks figures; returns events of alarms.
    pub(crate) fn check(&self, figures: &WatchedFigures, now: Time) -> Vec<EventKind> {
        let mut state = self.state();
        let packets = figures.packets.saturating_sub(state.packets);
        let lost = figures.lost.saturating_sub(state.lost);
        let refused = figures.refused.saturating_sub(state.refused);
        (state.packets, state.lost) = (figures.packets, figures.lost);
        state.refused = figures.refused;
        let store_lost = figures.store_lost.saturating_sub(state.store_lost);
        state.store_lost = figures.store_lost;
        let clock_error = figures.clock_error;
        let all = packets + lost;
        let percent = lost as f64 * 100.0 / all.max(1) as f64;
        let media_loss = if all >= FEWEST_PACKETS {
            state.loss_known = now;
            state.level(
                (AlarmKind::MediaLoss, ""),
                (percent, 2.0, 1.0),
                format!("{percent:.1} % of {all} packets"),
                now,
            )
        } else if now.since(state.loss_known) >= LOSS_UNKNOWN {
            state.clear(AlarmKind::MediaLoss, "", now)
        } else {
            // The next calls tell whether the loss goes on.
            None
        };
        let overload = f64::from(u8::from(figures.overload));
        let delay = figures.queue_delay.as_millis();
        [
            media_loss,
            state.level(
                (AlarmKind::Attack, ""),
                (refused as f64, 100.0, 50.0),
                format!("{refused} requests refused within 5 s"),
                now,
            ),
            state.level(
                (AlarmKind::Overload, ""),
                (overload, 1.0, 1.0),
                format!("queueing delay {delay} ms"),
                now,
            ),
            state.level(
                (AlarmKind::StoreLoss, ""),
                (store_lost as f64, 1.0, 1.0),
                format!("{store_lost} messages, events, drops and calls not stored within 5 s"),
                now,
            ),
            state.level(
                (AlarmKind::Clock, ""),
                (clock_error.as_secs_f64(), 1.0, 0.5),
                format!("set by {:.1} s", clock_error.as_secs_f64()),
                now,
            ),
        ]
        .into_iter()
        .flatten()
        .chain(state.clear_calm(now))
        .collect()
    }

    /// Checks the media nodes: one that does not answer a single worker is down, also if it answers others. Returns
    /// events of alarms.
    pub(crate) fn check_nodes(&self, nodes: &[NodeView], now: Time) -> Vec<EventKind> {
        let mut state = self.state();
        let kind = AlarmKind::MediaNodeDown;
        let events = nodes.iter().filter_map(|node| match node.up {
            true => state.calm(kind, &node.name, now),
            false => state.raise(kind, &node.name, "no answer".to_owned(), now),
        });
        events.collect()
    }

    /// Checks the space of file systems; returns events of alarms.
    pub(crate) fn check_disks(&self, disks: &[WatchedDisk], now: Time) -> Vec<EventKind> {
        let mut state = self.state();
        let events = disks.iter().filter_map(|disk| {
            // The fuller, the higher.
            let level = 1.0 / disk.room().max(f64::MIN_POSITIVE);
            let object = (AlarmKind::Disk, disk.folder.as_str());
            let limits = (level, 1.0, 1.0 / disk::RECOVERED);
            state.level(object, limits, disk.detail(), now)
        });
        events.collect()
    }

    /// Takes over the objects of a new configuration; returns the events of alarms that are cleared because their
    /// object is gone, or begins anew.
    pub(crate) fn set_objects(&self, objects: AlarmObjects, now: Time) -> Vec<EventKind> {
        let mut state = self.state();
        let old = state.objects.replace(objects).unwrap_or_default();
        let new = state.objects.as_ref();
        let ends = |key: &(AlarmKind, String)| {
            let identity = new.and_then(|new| new.get(key));
            !state.is_known(key) || old.get(key).is_some_and(|old| Some(old) != identity)
        };
        let all = state.active.keys();
        let ended: Vec<(AlarmKind, String)> = all.filter(|key| ends(key)).cloned().collect();
        let events = ended
            .iter()
            .filter_map(|(kind, object)| state.clear(*kind, object, now));
        events.collect()
    }

    /// Active alarms, then cleared ones, the newest first.
    pub(crate) fn list(&self) -> Vec<RaisedAlarm> {
        let state = self.state();
        let mut active: Vec<RaisedAlarm> = state.active.values().cloned().collect();
        active.sort_by_key(|alarm| std::cmp::Reverse(alarm.id));
        active.extend(state.cleared.iter().rev().cloned());
        active
    }

    /// Acknowledges an active alarm.
    pub(crate) fn acknowledge(&self, id: u64, by: &str, now: Time) -> Acknowledgement {
        let mut state = self.state();
        let alarm = state.active.values_mut().find(|alarm| alarm.id == id);
        let Some(alarm) = alarm else {
            return Acknowledgement::Unknown;
        };
        if alarm.acknowledged.is_some() {
            return Acknowledgement::Repeated;
        }
        alarm.acknowledged = Some(now);
        alarm.acknowledged_by = Some(by.to_owned());
        let alarm = alarm.clone();
        state.tell(AlarmChange::Acknowledged, &alarm, now);
        Acknowledgement::First(Box::new(EventKind::AlarmAcknowledged {
            alarm: alarm.kind.name().to_owned(),
            id,
            object: alarm.object,
            by: by.to_owned(),
        }))
    }

    /// Sets the receivers, and tells them the active alarms.
    fn set_receivers(&self, receivers: Vec<NoticeQueue>) {
        let mut state = self.state();
        state.receivers = receivers;
        let active: Vec<RaisedAlarm> = state.active.values().cloned().collect();
        for alarm in active {
            state.tell(AlarmChange::Raised, &alarm, alarm.raised);
        }
    }

    /// The receivers with their counts.
    pub(crate) fn receivers(&self) -> Vec<NoticeQueue> {
        self.state().receivers.clone()
    }

    /// Number of active alarms of a severity.
    pub(crate) fn active(&self, severity: &str) -> u64 {
        let state = self.state();
        state
            .active
            .keys()
            .filter(|(kind, _)| kind.severity() == severity)
            .count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_secs(seconds)
    }

    #[test]
    fn flapping_trunk_is_one_alarm_until_it_stays_up() {
        let board = AlarmBoard::default();
        let down = EventKind::TrunkDown {
            trunk: "pbx".into(),
            reason: "no answer".into(),
        };
        let up = EventKind::TrunkUp {
            trunk: "pbx".into(),
        };
        assert!(matches!(
            board.observe(&down, at(1)),
            Some(EventKind::AlarmRaised { .. })
        ));
        assert_eq!(board.observe(&down, at(2)), None);
        assert_eq!(board.active("critical"), 1);
        let acknowledged = |id| board.acknowledge(id, "ann", at(3));
        assert!(matches!(acknowledged(1), Acknowledgement::First(_)));
        assert_eq!(acknowledged(1), Acknowledgement::Repeated);
        assert_eq!(acknowledged(2), Acknowledgement::Unknown);
        let check = |seconds| board.check(&WatchedFigures::default(), at(seconds));
        // It answers and refuses in turn.
        for seconds in (4..40).step_by(4) {
            assert_eq!(board.observe(&up, at(seconds)), None);
            assert_eq!(check(seconds + 1), []);
            assert_eq!(board.observe(&down, at(seconds + 2)), None);
            assert_eq!(check(seconds + 3), []);
        }
        assert_eq!((board.active("critical"), board.list().len()), (1, 1));
        assert_eq!(board.observe(&up, at(40)), None);
        assert_eq!((check(45), check(54)), (vec![], vec![]));
        let cleared = check(55);
        assert!(
            matches!(
                cleared[..],
                [EventKind::AlarmCleared {
                    id: 1,
                    duration_s: 54,
                    ..
                }]
            ),
            "{cleared:?}"
        );
        assert_eq!(board.observe(&up, at(56)), None);
        assert_eq!((board.active("critical"), board.list().len()), (0, 1));
    }

    /// A worker whose flow to the node stays blocked tells nothing more.
    #[test]
    fn node_that_is_down_for_one_worker_stays_an_alarm() {
        let board = AlarmBoard::default();
        let node = "relay".to_owned();
        let down = EventKind::MediaNodeDown {
            node: node.clone(),
            calls: 3,
            reason: "no answer".to_owned(),
        };
        assert!(board.observe(&down, at(1)).is_some());
        assert_eq!(board.observe(&down, at(1)), None);
        let up = EventKind::MediaNodeUp { node: node.clone() };
        assert_eq!(board.observe(&up, at(4)), None);
        let check = |up: bool, seconds| {
            let view = NodeView {
                name: node.clone(),
                control: "192.0.2.1:2223".to_owned(),
                up,
                drain: false,
                calls: 0,
                sessions: None,
            };
            let mut events = board.check_nodes(&[view], at(seconds));
            events.extend(board.check(&WatchedFigures::default(), at(seconds)));
            events
        };
        for seconds in (5..60).step_by(5) {
            assert_eq!(check(false, seconds), []);
        }
        assert_eq!(board.active("major"), 1);
        for seconds in [60, 65, 70] {
            assert_eq!(check(true, seconds), []);
        }
        assert_eq!(check(true, 75).len(), 1);
        assert_eq!(board.active("major"), 0);
        // The event was lost.
        assert_eq!(check(false, 80).len(), 1);
        assert_eq!(board.active("major"), 1);
    }

    #[test]
    fn many_trunks_that_are_down_leave_room_for_other_alarms() {
        let board = AlarmBoard::default();
        let trunks = (0..1_500).map(|number| (AlarmKind::TrunkDown, format!("t{number}")));
        let objects = trunks.clone().map(|trunk| (trunk, String::new()));
        board.set_objects(objects.collect(), at(0));
        for (_, trunk) in trunks {
            let reason = "no answer".to_owned();
            let down = EventKind::TrunkDown { trunk, reason };
            assert!(board.observe(&down, at(1)).is_some());
        }
        let failed = |number: usize| EventKind::ReceiverFailed {
            receiver: format!("r{number}"),
            reason: String::new(),
        };
        let raised = (0..1_500).filter(|number| board.observe(&failed(*number), at(2)).is_some());
        assert_eq!(raised.count(), MAX_ACTIVE);
        assert_eq!(board.active("critical"), 1_500);
    }

    #[test]
    fn alarms_of_removed_objects_are_cleared_at_a_reload() {
        let board = AlarmBoard::default();
        let objects = |text: &str, certificates: &[&str]| {
            let text = format!("[[interface]]\nname='x'\nlisten='udp:192.0.2.1'\n{text}");
            let config = config::parse(&text, "test").unwrap();
            super::objects(&config, certificates.iter().map(|&name| name.to_owned()))
        };
        let trunk = |name: &str, target: &str, more: &str| {
            format!("[[trunk]]\nname='{name}'\ntarget={target}\n{more}\n")
        };
        let (one, ping) = ("'192.0.2.2'", "ping_interval_s=5");
        let old = trunk("kept", one, ping)
            + &trunk("gone", one, ping)
            + &trunk("mute", one, ping)
            + &trunk("moved", one, ping);
        assert_eq!(
            board.set_objects(objects(&old, &["a.pem", "b.pem"]), at(0)),
            []
        );
        let down = |trunk: &str, seconds| {
            let (trunk, reason) = (trunk.to_owned(), "no answer".to_owned());
            board.observe(&EventKind::TrunkDown { trunk, reason }, at(seconds))
        };
        for trunk in ["kept", "gone", "mute", "moved"] {
            assert!(down(trunk, 1).is_some());
        }
        let expires = |certificate: &str| {
            let kind = EventKind::CertificateExpires {
                certificate: certificate.into(),
                names: String::new(),
                valid_until: String::new(),
                days_left: 1,
                state: "urgent".into(),
            };
            board.observe(&kind, at(1))
        };
        assert!(expires("a.pem").is_some() && expires("b.pem").is_some());
        let new = trunk("kept", one, ping)
            + &trunk("mute", one, "")
            + &trunk("moved", "['192.0.2.2','192.0.2.3']", ping);
        let events = board.set_objects(objects(&new, &["b.pem"]), at(5));
        let cleared = events.iter().map(|event| match event {
            EventKind::AlarmCleared {
                object,
                duration_s: 4,
                ..
            } => &**object,
            other => panic!("{other:?}"),
        });
        let mut cleared: Vec<&str> = cleared.collect();
        cleared.sort_unstable();
        assert_eq!(cleared, ["a.pem", "gone", "moved", "mute"]);
        assert_eq!(board.active("critical"), 1);
        // A call of the removed trunk fails later.
        assert_eq!(down("gone", 6), None);
        assert!(down("moved", 6).is_some());
        assert_eq!(board.set_objects(objects(&new, &["b.pem"]), at(7)), []);
    }

    #[test]
    fn loss_is_cleared_only_after_a_calm_time() {
        let board = AlarmBoard::default();
        let mut figures = WatchedFigures::default();
        let mut check = |packets, lost, seconds| {
            figures.packets += packets;
            figures.lost += lost;
            board.check(&figures, at(seconds)).len()
        };
        assert_eq!(check(100, 50, 5), 0, "too few packets");
        assert_eq!(check(1_000, 30, 10), 1);
        assert_eq!(check(1_000, 15, 15), 0, "between both limits");
        assert_eq!(check(1_000, 0, 20), 0);
        assert_eq!(check(1_000, 30, 25), 0, "again: the same alarm");
        assert_eq!((check(1_000, 0, 30), check(1_000, 0, 40)), (0, 0));
        assert_eq!(check(1_000, 0, 45), 1, "calm for 15 s");
    }

    #[test]
    fn a_disk_is_low_below_a_tenth_and_recovers_above() {
        let board = AlarmBoard::default();
        let check = |total, free, seconds| {
            let disk = WatchedDisk {
                folder: "/var".into(),
                space: net::DiskSpace { total, free },
            };
            board.check_disks(&[disk], at(seconds))
        };
        assert_eq!(check(1_000, 100, 0).len(), 1, "a tenth");
        assert_eq!(check(1_000, 0, 5), [], "the same alarm");
        assert_eq!(check(1_000, 115, 10), [], "above a tenth, but not by far");
        assert_eq!(
            (check(1_000, 121, 15), check(1_000, 110, 25)),
            (vec![], vec![])
        );
        assert_eq!(
            (check(1_000, 130, 30), check(1_000, 130, 40)),
            (vec![], vec![])
        );
        assert!(matches!(
            &check(1_000, 130, 45)[..],
            [EventKind::AlarmCleared { object, .. }] if object == "/var"
        ));
        // A tenth of a large disk is enough for long.
        assert_eq!(check(1 << 43, 2 << 30, 50), []);
        let raised = check(1 << 43, 1 << 29, 55);
        let [EventKind::AlarmRaised { detail, .. }] = &raised[..] else {
            panic!("{raised:?}");
        };
        assert_eq!(detail, "512 MiB free, 0.0 %");
    }

    /// A line that loses a tenth of the packets of one call a minute.
    #[test]
    fn loss_is_not_over_because_no_call_ends() {
        let board = AlarmBoard::default();
        let mut figures = WatchedFigures::default();
        let mut check = |packets, lost, seconds| {
            figures.packets += packets;
            figures.lost += lost;
            board.check(&figures, at(seconds))
        };
        let mut events = Vec::new();
        for minute in 0..5 {
            events.extend(check(9_000, 1_000, minute * 60 + 5));
            for seconds in (10..=60).step_by(5) {
                events.extend(check(20, 0, minute * 60 + seconds));
            }
        }
        assert!(
            matches!(events[..], [EventKind::AlarmRaised { .. }]),
            "{events:?}"
        );
        // Nothing is known for ten minutes.
        assert_eq!(check(0, 0, 244 + 600), []);
        assert!(matches!(
            check(0, 0, 245 + 600)[..],
            [EventKind::AlarmCleared { .. }]
        ));
        // Calls without loss end it, though they are rare.
        assert_eq!(check(9_000, 1_000, 2_000).len(), 1);
        assert_eq!(
            (check(9_000, 0, 2_060).len(), check(0, 0, 2_080).len()),
            (0, 0)
        );
        assert_eq!(check(9_000, 0, 2_120).len(), 1);
    }

    #[test]
    fn losses_of_the_store_are_one_alarm_while_they_grow() {
        let board = AlarmBoard::default();
        let mut figures = WatchedFigures::default();
        let mut check = |lost, seconds| {
            figures.store_lost += lost;
            board.check(&figures, at(seconds))
        };
        assert_eq!(check(0, 5), []);
        let raised = check(7, 10);
        let [EventKind::AlarmRaised { alarm, detail, .. }] = &raised[..] else {
            panic!("{raised:?}");
        };
        assert_eq!(alarm, "store_loss");
        assert!(detail.starts_with("7 messages"), "{detail}");
        assert_eq!((check(1, 15).len(), check(0, 20).len()), (0, 0));
        assert_eq!((check(2, 25).len(), check(0, 30).len()), (0, 0));
        assert_eq!(check(0, 40).len(), 0);
        assert!(matches!(
            check(0, 45)[..],
            [EventKind::AlarmCleared { duration_s: 35, .. }]
        ));
    }
}
