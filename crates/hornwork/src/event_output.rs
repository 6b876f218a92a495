//! Events of one packet thread: to the log, to the call records, and into counts for metrics.

use crate::call_tap::CallTap;
use crate::log::EventLog;
use crate::records::RecordSink;
use border::border::{BorderCounters, CallOutcome};
use engine::record::is_recorded;
use engine::{Event, EventKind, Reason};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Upper bounds of the histogram of the time from INVITE to answer, milliseconds.
pub(crate) const SETUP_BOUNDS_MS: [u64; 12] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000,
];

/// Most calls with intervals that are known at a time; those of further calls count at their end.
const MAX_REPORTED: usize = 500_000;
/// Most trunks with counts of their own; a configuration has fewer.
const MAX_TRUNKS: usize = 4_096;

/// Ended calls by outcome, in the order of [`OUTCOMES`].
pub(crate) type OutcomeCounts = [u64; OUTCOMES.len()];

/// Outcomes of calls as labels of metrics.
pub(crate) const OUTCOMES: [&str; 7] = CallOutcome::NAMES;

/// Ended calls by outcome, in the order of [`OUTCOMES`].
pub(crate) fn outcomes(counters: &BorderCounters) -> OutcomeCounts {
    [
        counters.completed,
        counters.cancelled,
        counters.declined,
        counters.unanswered,
        counters.refused,
        counters.redirected,
        counters.failed,
    ]
}

/// Ended calls of trunks by outcome.
pub(crate) type TrunkOutcomes = BTreeMap<String, OutcomeCounts>;

/// Counts derived from the events of one thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventCounts {
    /// Answered calls by the time from INVITE to answer: not cumulative, the last one is above all bounds.
    pub(crate) setup: [u64; SETUP_BOUNDS_MS.len() + 1],
    /// Sum of these times, milliseconds.
    pub(crate) setup_sum_ms: u64,
    /// Ended calls of each trunk by outcome.
    pub(crate) trunks: TrunkOutcomes,
    /// RTP packets of ended calls, and those lost before they arrived.
    pub(crate) media_packets: u64,
    pub(crate) media_lost: u64,
    /// The same of all calls as far as they are reported: by intervals, and the rest at the end.
    pub(crate) reported_packets: u64,
    pub(crate) reported_lost: u64,
    /// Ended calls with a MOS, and the sum of the lower MOS of their directions, hundredths.
    pub(crate) mos_calls: u64,
    pub(crate) mos_sum: u64,
    /// Registrations stored or refreshed.
    pub(crate) registrations: u64,
}

impl EventCounts {
    /// Adds the sums of another thread.
    pub(crate) fn merge(&mut self, other: &EventCounts) {
        for (mine, theirs) in self.setup.iter_mut().zip(other.setup) {
            *mine += theirs;
        }
        self.setup_sum_ms += other.setup_sum_ms;
        self.media_packets += other.media_packets;
        self.media_lost += other.media_lost;
        self.reported_packets += other.reported_packets;
        self.reported_lost += other.reported_lost;
        self.mos_calls += other.mos_calls;
        self.mos_sum += other.mos_sum;
        self.registrations += other.registrations;
    }

    /// A copy without the counts of trunks, whose number is not small.
    pub(crate) fn sums(&self) -> EventCounts {
        EventCounts {
            trunks: TrunkOutcomes::new(),
            ..*self
        }
    }

    /// Counts of at most `limit` trunks behind `after` in the order of their names.
    pub(crate) fn trunks_after(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<(String, OutcomeCounts)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let trunks = self.trunks.range::<str, _>((from, Bound::Unbounded));
        let trunks = trunks.take(limit);
        trunks
            .map(|(name, counts)| (name.clone(), *counts))
            .collect()
    }

    fn count(&mut self, event: &EventKind) {
        if let EventKind::CallEnded {
            caller_mos,
            callee_mos,
            ..
        } = event
            && let Some(mos) = [caller_mos, callee_mos].into_iter().flatten().min()
        {
            self.mos_calls += 1;
            self.mos_sum += mos.0;
        }
        match event {
            EventKind::CallAnswered {
                setup_ms: Some(ms), ..
            } => {
                let at = SETUP_BOUNDS_MS.iter().position(|bound| ms <= bound);
                if let Some(count) = self.setup.get_mut(at.unwrap_or(SETUP_BOUNDS_MS.len())) {
                    *count += 1;
                }
                self.setup_sum_ms += ms;
            }
            EventKind::RegistrationStored { .. } => self.registrations += 1,
            EventKind::CallMedia {
                caller_packets,
                caller_lost,
                callee_packets,
                callee_lost,
                ..
            } => {
                self.media_packets += caller_packets.unwrap_or(0) + callee_packets.unwrap_or(0);
                self.media_lost += caller_lost.unwrap_or(0) + callee_lost.unwrap_or(0);
            }
            // The INVITE is repeated with credentials.
            EventKind::CallEnded { reason, .. } if reason == Reason::Challenged.text() => {}
            EventKind::CallEnded {
                status,
                reason,
                trunk: Some(trunk),
                ..
            } => {
                if self.trunks.len() >= MAX_TRUNKS && !self.trunks.contains_key(&**trunk) {
                    return;
                }
                // As the border counts it: only the caller cancels.
                let outcome = match (*status, reason.as_str()) {
                    (487, "cancelled") => CallOutcome::Cancelled,
                    (status, _) => CallOutcome::of(status),
                };
                let counts = self.trunks.entry(trunk.to_string()).or_default();
                if let Some(count) = counts.get_mut(outcome as usize) {
                    *count += 1;
                }
            }
            _ => {}
        }
    }
}

/// RTP packets of a call that intervals have reported, and those lost.
type ReportedMedia = (u64, u64);

/// Reports of media: intervals of quality while a call lasts, and the sum at its end.
#[derive(Default)]
struct MediaReports {
    /// Calls in progress with an interval, by number.
    open: BTreeMap<u64, ReportedMedia>,
}

impl MediaReports {
    /// Packets, and lost ones, that an event reports anew.
    fn news(&mut self, event: &EventKind) -> ReportedMedia {
        let both = |one: &Option<u64>, other: &Option<u64>| one.unwrap_or(0) + other.unwrap_or(0);
        match event {
            EventKind::CallMediaInterval {
                call,
                caller_packets,
                caller_lost,
                callee_packets,
                callee_lost,
                ..
            } => {
                if self.open.len() >= MAX_REPORTED && !self.open.contains_key(call) {
                    return (0, 0);
                }
                let new = (
                    both(caller_packets, callee_packets),
                    both(caller_lost, callee_lost),
                );
                let sum = self.open.entry(*call).or_default();
                (sum.0, sum.1) = (sum.0 + new.0, sum.1 + new.1);
                new
            }
            EventKind::CallMedia {
                call,
                caller_packets,
                caller_lost,
                callee_packets,
                callee_lost,
                ..
            } => {
                let (packets, lost) = self.open.remove(call).unwrap_or_default();
                // A late packet is lost in its interval, and received in the sum.
                (
                    both(caller_packets, callee_packets).saturating_sub(packets),
                    both(caller_lost, callee_lost).saturating_sub(lost),
                )
            }
            EventKind::CallEnded { call, .. } => {
                self.open.remove(call);
                (0, 0)
            }
            _ => (0, 0),
        }
    }
}

/// The events of one packet thread.
pub(crate) struct EventOutput {
    log: EventLog,
    records: Option<RecordSink>,
    traces: Option<RecordSink>,
    recorded: Vec<Event>,
    counts: EventCounts,
    media: MediaReports,
    console: Option<CallTap>,
}

impl EventOutput {
    pub(crate) fn new(
        log: EventLog,
        (records, traces): (Option<RecordSink>, Option<RecordSink>),
        console: Option<CallTap>,
    ) -> EventOutput {
        EventOutput {
            log,
            records,
            traces,
            console,
            recorded: Vec::new(),
            counts: EventCounts::default(),
            media: MediaReports::default(),
        }
    }

    /// The same outputs for another thread, with counts of its own.
    pub(crate) fn for_thread(&self) -> EventOutput {
        let sinks = (self.records.clone(), self.traces.clone());
        EventOutput::new(self.log.clone(), sinks, self.console.clone())
    }

    /// Takes one event.
    pub(crate) fn take(&mut self, event: &Event) {
        self.log.event(event);
        self.counts.count(&event.kind);
        let (packets, lost) = self.media.news(&event.kind);
        self.counts.reported_packets += packets;
        self.counts.reported_lost += lost;
        if let Some(console) = &self.console {
            console.take(event);
        }
        let is_used = self.records.is_some() || self.traces.is_some();
        if is_used && is_recorded(&event.kind) {
            self.recorded.push(event.clone());
        }
    }

    /// Passes on the events of a turn without waiting.
    pub(crate) fn flush(&mut self) {
        match (&self.records, &self.traces) {
            (Some(records), Some(traces)) => {
                traces.put(&mut self.recorded.clone());
                records.put(&mut self.recorded);
            }
            (Some(sink), None) | (None, Some(sink)) => sink.put(&mut self.recorded),
            (None, None) => {}
        }
        self.log.flush();
    }

    /// Whether events of level debug are logged at present.
    pub(crate) fn has_debug(&self) -> bool {
        self.log.has_debug()
    }

    /// Counts since the start.
    pub(crate) fn counts(&self) -> &EventCounts {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_is_reported_once_by_intervals_and_the_end() {
        let interval = |call, packets, lost| EventKind::CallMediaInterval {
            call,
            interval_ms: 10_000,
            caller_packets: Some(packets),
            caller_lost: Some(lost),
            caller_loss_percent: None,
            caller_jitter_ms: None,
            caller_mos: None,
            callee_packets: Some(1),
            callee_lost: None,
            callee_loss_percent: None,
            callee_jitter_ms: None,
            callee_mos: None,
        };
        let end = |call, packets, lost| EventKind::CallMedia {
            call,
            caller_packets: Some(packets),
            caller_lost: Some(lost),
            caller_sent: None,
            caller_remote_lost: None,
            caller_delay_ms: None,
            caller_protection: None,
            callee_packets: Some(2),
            callee_lost: Some(0),
            callee_sent: None,
            callee_remote_lost: None,
            callee_delay_ms: None,
            callee_protection: None,
        };
        let mut reports = MediaReports::default();
        // Calls in progress count.
        assert_eq!(reports.news(&interval(1, 400, 100)), (401, 100));
        assert_eq!(reports.news(&interval(1, 500, 0)), (501, 0));
        // The rest at the end; a packet was late, not lost.
        assert_eq!(reports.news(&end(1, 950, 99)), (50, 0));
        // Without intervals all of it.
        assert_eq!(reports.news(&end(2, 950, 99)), (952, 99));
        assert!(reports.open.is_empty());
    }

    fn refused(reason: Reason) -> EventKind {
        EventKind::CallEnded {
            call: 1,
            ended_by: "callee".into(),
            reason: reason.text().into(),
            status: 407,
            duration_ms: None,
            trunk: Some("pbx".into()),
            path: None,
            codec: None,
            caller_loss_percent: None,
            caller_jitter_ms: None,
            caller_mos: None,
            callee_loss_percent: None,
            callee_jitter_ms: None,
            callee_mos: None,
        }
    }

    #[test]
    fn challenged_calls_do_not_count_for_their_trunk() {
        let mut counts = EventCounts::default();
        counts.count(&refused(Reason::Challenged));
        assert!(counts.trunks.is_empty());
        counts.count(&refused(Reason::Refused));
        assert_eq!(counts.trunks["pbx"][CallOutcome::Refused as usize], 1);
    }

    /// Packet threads copy figures for each scrape.
    #[test]
    fn counts_of_trunks_are_copied_in_pages() {
        let mut counts = EventCounts {
            setup_sum_ms: 7,
            ..EventCounts::default()
        };
        for number in 0..1_200u64 {
            counts.trunks.insert(format!("{number:04}"), [number; 7]);
        }
        let sums = counts.sums();
        assert_eq!((sums.setup_sum_ms, sums.trunks.len()), (7, 0));
        let mut all = Vec::new();
        loop {
            let last = all.last().map(|(name, _): &(String, _)| name.clone());
            let page = counts.trunks_after(last.as_deref(), 500);
            assert!(page.len() <= 500);
            if page.is_empty() {
                break;
            }
            all.extend(page);
        }
        assert!(all.into_iter().eq(counts.trunks));
    }
}
