//! Events of one packet thread: to the log, to the call records, and into counts for metrics.

use crate::call_tap::CallTap;
use crate::log::EventLog;
use crate::records::RecordSink;
use border::border::{BorderCounters, CallOutcome};
use engine::record::is_recorded;
use engine::{Event, EventKind, Reason};
use std::collections::BTreeMap;

/// Upper bounds of the histogram of the time from INVITE to answer, milliseconds.
pub(crate) const SETUP_BOUNDS_MS: [u64; 12] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000,
];

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

/// Counts derived from the events of one thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventCounts {
    /// Answered calls by the time from INVITE to answer: not cumulative, the last one is above all bounds.
    pub(crate) setup: [u64; SETUP_BOUNDS_MS.len() + 1],
    /// Sum of these times, milliseconds.
    pub(crate) setup_sum_ms: u64,
    /// Ended calls of each trunk by outcome.
    pub(crate) trunks: BTreeMap<String, OutcomeCounts>,
    /// RTP packets of ended calls, and those lost before they arrived.
    pub(crate) media_packets: u64,
    pub(crate) media_lost: u64,
    /// Ended calls with a MOS, and the sum of the lower MOS of their directions, hundredths.
    pub(crate) mos_calls: u64,
    pub(crate) mos_sum: u64,
    /// Registrations stored or refreshed.
    pub(crate) registrations: u64,
}

impl EventCounts {
    /// Adds the counts of another thread.
    pub(crate) fn merge(&mut self, other: &EventCounts) {
        for (mine, theirs) in self.setup.iter_mut().zip(other.setup) {
            *mine += theirs;
        }
        self.setup_sum_ms += other.setup_sum_ms;
        self.media_packets += other.media_packets;
        self.media_lost += other.media_lost;
        self.mos_calls += other.mos_calls;
        self.mos_sum += other.mos_sum;
        self.registrations += other.registrations;
        for (trunk, counts) in &other.trunks {
            let mine = self.trunks.entry(trunk.clone()).or_default();
            for (mine, theirs) in mine.iter_mut().zip(counts) {
                *mine += theirs;
            }
        }
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

/// The events of one packet thread.
pub(crate) struct EventOutput {
    log: EventLog,
    records: Option<RecordSink>,
    traces: Option<RecordSink>,
    recorded: Vec<Event>,
    counts: EventCounts,
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
}
