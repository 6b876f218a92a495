//! State common to all components of the border. It is lent to them; each component owns the rest of its state.

use crate::calls::key::CallKey;
use crate::counters::BorderCounters;
use config::Config;
use core::time::Duration;
use engine::timers::TimerWheel;
use engine::{Drops, Entropy, Event, Time};
use sip::{LegId, ListenerId, TransactionId};
use std::collections::VecDeque;
use std::sync::Arc;

/// State that every component may use while an input is processed.
#[derive(Debug)]
pub(crate) struct Ctx {
    /// Time of the current input.
    pub(crate) now: Time,
    /// Number of inputs and reports so far.
    pub(crate) inputs: u64,
    pub(crate) config: Arc<Config>,
    pub(crate) events: EventQueue,
    /// Limits the events of refused INVITEs, which any source can cause.
    pub(crate) refused_invites: ReportLimit,
    pub(crate) counters: BorderCounters,
    pub(crate) drops: Drops,
    pub(crate) entropy: Entropy,
    pub(crate) timers: TimerWheel<Alarm>,
}

impl Ctx {
    pub(crate) fn new(config: Arc<Config>, entropy: Entropy) -> Ctx {
        Ctx {
            now: Time::ZERO,
            inputs: 0,
            config,
            events: EventQueue {
                wanted: true,
                debug: true,
                records: false,
                edits: false,
                queue: VecDeque::new(),
            },
            refused_invites: ReportLimit::default(),
            counters: BorderCounters::default(),
            drops: Drops::new(),
            entropy,
            timers: TimerWheel::new(),
        }
    }
}

/// Burst of events, and time until it is available again.
const EVENTS: u32 = 20;
const EVENTS_EVERY: Duration = Duration::from_secs(10);

/// Limit of events of one kind.
#[derive(Debug, Default)]
pub(crate) struct ReportLimit {
    logged: u32,
    unlogged: u64,
    since: Option<Time>,
}

impl ReportLimit {
    /// Whether to log an event; the value is the number of those that were not logged since the last one.
    pub(crate) fn take(&mut self, now: Time) -> Option<u64> {
        if self
            .since
            .is_none_or(|since| now.since(since) >= EVENTS_EVERY)
        {
            self.since = Some(now);
            self.logged = 0;
        }
        if self.logged >= EVENTS {
            self.unlogged += 1;
            return None;
        }
        self.logged += 1;
        Some(core::mem::take(&mut self.unlogged))
    }
}

/// Purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// A call rang for too long.
    RingTimeout(CallKey),
    /// A target sent no response.
    AnswerTimeout(CallKey, LegId),
    /// The waiting time after glare is over.
    TransferRetry(CallKey),
    /// The target of a transfer rang for too long.
    TransferRing(CallKey),
    /// The target of a transfer has not responded.
    TransferAnswer(CallKey, LegId),
    /// A re-INVITE of a transfer was not answered in time.
    ReinviteTimeout(CallKey, TransactionId),
    /// The time for draining is over.
    DrainTimeout,
    /// A listener that was removed from the configuration may be closed; whether calls used it at the last check.
    CloseListener(ListenerId, bool),
    /// Try again to open a listener.
    OpenListener(ListenerId),
    /// Check whether an overload is over.
    OverloadCheck,
    /// Update the load shedding of the socket filter.
    SheddingUpdate,
    /// A target sent no response to this forwarded out-of-dialog request.
    RelayTimeout(u64),
    /// A target of the core has not responded to a forwarded REGISTER, and there is another one.
    RegisterTimeout(u64),
    /// A subscription expired.
    Subscription(u64),
    /// Send a keep-alive on a flow of our registration.
    KeepAlive(u32),
    /// A timeout of media security in a call is due.
    Keying(CallKey),
    /// Query whether a media node still has a call.
    NodeQuery(CallKey),
    /// Retry a call whose media node failed.
    FailoverRetry(CallKey),
    /// Announce ports that replace those of a description; the attempts before.
    AnnouncePorts(CallKey, u8),
    /// A caller did not enter the PIN of a conference in time.
    PinTimeout(CallKey),
    /// Continue a query about a conference with its next participants.
    ConferenceQueryStep(u64),
    /// Query the media of the next part of the calls.
    QualityTick,
    /// Check the state of a transfer whose other call belongs to another worker.
    TransferPoll(u64, CallKey),
}

/// Queue of events.
#[derive(Debug)]
pub(crate) struct EventQueue {
    pub(crate) wanted: bool,
    /// Whether events of refused requests, of level debug, are composed.
    pub(crate) debug: bool,
    /// Whether events that only call records need are composed.
    pub(crate) records: bool,
    /// Whether events about changes by header rules are composed: while messages are stored.
    pub(crate) edits: bool,
    pub(crate) queue: VecDeque<Event>,
}

impl EventQueue {
    /// Queues the event that `make` composes, if events are enabled.
    pub(crate) fn tell(&mut self, now: Time, make: impl FnOnce() -> engine::EventKind) {
        if self.wanted {
            self.queue.push_back(Event::new(now, make()));
        }
    }

    /// The same for frequent events of level debug.
    pub(crate) fn tell_debug(&mut self, now: Time, make: impl FnOnce() -> engine::EventKind) {
        if self.debug {
            self.tell(now, make);
        }
    }
}
