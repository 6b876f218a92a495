//! Overload control by the queueing delay that the kernel reports for each datagram. Above the limit new requests are
//! refused at once, at a fraction of the cost of a call, while messages of existing calls keep their order.
//!
//! - The responses to a new request arrive at other sockets than it does: their queueing delay counts for it, too. Each
//!   socket gets the same share of a busy thread, and the queue of one may be short while that of another grows.
//! - The queue stays near the limit, so that the processor always has work.
//! - Refusals cost time, too: at ten times the peak they would take all of it. They are limited to a share of the
//!   accepted calls; beyond that a socket filter ([`SocketFilter`]) drops a share of the new calls before they are
//!   read.
//! - Acceptance, refusal and drop are decided by the bytes of the call: a retransmission is treated like the first
//!   transmission, and a dropped call is not accepted late.
//! - Each worker has its own queue and socket filter; the decision is the same for all of them.

pub(crate) mod feedback;
mod flood;
pub(crate) mod shedding;

use crate::admission::overload::feedback::{LossFeedback, VALID};
use crate::emergency::is_emergency;
use crate::shared::{Alarm, Ctx};
use crate::views::OverloadView;
use core::time::Duration;
use engine::{EventKind, SocketFilter, SocketId, Time};
use flood::{FloodDetector, ServiceTime};
use shedding::{CONTROL_INTERVAL, ShedLists, SocketQueue};
use sip::{Endpoint, StatelessResponse};
use std::collections::VecDeque;
use std::sync::Arc;
use wire::sip::{HeaderId, Message, Method};

/// Time for which the delay has to be above the limit, unless a flood is detected ([`FloodDetector`]): a machine that
/// stalled for a moment recovers by itself.
const MIN_DURATION: Duration = Duration::from_millis(100);
/// A delay above this fraction of the limit shows that the thread has been busy all the time.
const BUSY_DIVISOR: u32 = 12;
/// Period in which new calls are counted to estimate the rate at which they can be accepted.
const SECOND: Duration = Duration::from_secs(1);
/// The overload ends this long after the last refusal.
const END_AFTER: Duration = Duration::from_secs(5);

/// Queueing delays of a worker, in percent of the configured limit.
#[derive(Clone, Copy, Debug)]
struct DelayTargets {
    /// Target of the delay: long enough that there is always work, short enough that the answers to accepted calls
    /// are early.
    target_percent: u32,
    /// New calls are refused above this delay: their answers have to pass the queue, too.
    refuse_above_percent: u32,
    /// Below this delay calls of the margin are accepted as well.
    accept_margin_below_percent: u32,
}

impl DelayTargets {
    /// For one worker, whose queue a call passes twice until it is answered.
    const SINGLE_WORKER: DelayTargets = DelayTargets {
        target_percent: 55,
        refuse_above_percent: 90,
        accept_margin_below_percent: 45,
    };
    /// For several. A message that is read by one worker and owned by another passes the queues of both, with the
    /// INVITE and with its answer.
    const SEVERAL_WORKERS: DelayTargets = DelayTargets {
        target_percent: 40,
        refuse_above_percent: 70,
        accept_margin_below_percent: 40,
    };

    const fn of(workers: u8) -> DelayTargets {
        match workers {
            0 | 1 => DelayTargets::SINGLE_WORKER,
            _ => DelayTargets::SEVERAL_WORKERS,
        }
    }
}

/// Reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShedReason {
    /// The queueing delay was above the limit.
    QueueDelay,
    /// The rank of the call is above the limit, see [`shedding`].
    Rank,
}

/// Queueing delay of the current message, and the state of an overload.
#[derive(Debug)]
pub(crate) struct Overload {
    /// Of the current message: time since its arrival at the host.
    age: Duration,
    /// The part of it that the message was queued for this worker.
    queue_delay: Duration,
    /// Socket of the current message; `None` for a stream.
    socket: Option<SocketId>,
    /// Both delays by which a new request is judged: the longer ones of its own and those of calls' messages.
    judged_age: Duration,
    judged_delay: Duration,
    call_delays: CallDelays,
    /// Sockets whose queue is too long, or was so recently; an idle socket gives no information about another.
    queues: Vec<SocketQueue>,
    /// Whether the delay has been above the limit for long enough on the socket of the current message.
    is_sustained: bool,
    /// Refusals since the overload began.
    refused: u64,
    /// Calls dropped since the overload began.
    dropped: u64,
    /// Time of the last refusal in an overload that has not ended.
    last_refusal: Option<Time>,
    /// Socket filters that the driver has to attach or remove.
    filters: VecDeque<(SocketId, Option<SocketFilter>)>,
    /// Loss feedback for neighbours (RFC 7339).
    pub(super) neighbours: LossFeedback,
    /// The shed lists shared by all workers.
    shed_lists: Arc<ShedLists>,
    /// Whether an update of the limits is scheduled.
    is_update_scheduled: bool,
    accept_rate: AcceptRate,
    service_time: ServiceTime,
    flood: FloodDetector,
    targets: DelayTargets,
}

/// Time for which the delay of a message of a call says something about the queue of its socket.
const CALL_DELAY_VALID: Duration = Duration::from_millis(50);

/// Least share of the datagrams read at a socket that match a transaction or dialog where its queue counts for other
/// sockets.
const MIN_CALL_SHARE: f64 = 0.25;
/// Time for which the share of a socket is kept without a further such datagram.
const CALL_SHARE_VALID: Duration = Duration::from_secs(1);
/// Weight of one datagram in that share.
const CALL_SHARE_WEIGHT: f64 = 1.0 / 32.0;

/// Queueing delays of the datagrams that matched a transaction or dialog, by socket. Their sockets are those that the
/// responses to new requests arrive at, or ones like them. Only lasting queues are kept, not those after a stall of the
/// thread, and only queues of such datagrams count: a flood of other messages at a socket is no reason to refuse
/// requests at another.
#[derive(Debug, Default)]
struct CallDelays(Vec<CallDelay>);

/// Of the latest such datagram of a socket.
#[derive(Clone, Copy, Debug)]
struct CallDelay {
    socket: SocketId,
    /// Time at which it was processed.
    at: Time,
    /// As [`Overload::age`] and [`Overload::queue_delay`].
    age: Duration,
    queue_delay: Duration,
    /// Part of the latest datagrams of the socket that matched, 0 to 1.
    share: f64,
}

impl CallDelays {
    /// A datagram was read at this socket; whether it matches is not known yet.
    fn record_read(&mut self, socket: SocketId) {
        if let Some(of) = self.0.iter_mut().find(|of| of.socket == socket) {
            of.share -= of.share * CALL_SHARE_WEIGHT;
        }
    }

    /// The datagram that was read last matches. The share of `latest` is set here.
    fn record(&mut self, mut latest: CallDelay) {
        latest.share = CALL_SHARE_WEIGHT;
        match self.0.iter_mut().find(|of| of.socket == latest.socket) {
            Some(of) => {
                latest.share += of.share;
                *of = latest;
            }
            None => self.0.push(latest),
        }
    }

    fn forget(&mut self, socket: SocketId) {
        self.0.retain(|of| of.socket != socket);
    }

    /// The longest age and queueing delay of the last moments; zero if no message was processed, or few of them
    /// matched.
    fn longest(&mut self, now: Time) -> (Duration, Duration) {
        self.0.retain(|of| now.since(of.at) <= CALL_SHARE_VALID);
        let delays = self
            .0
            .iter()
            .filter(|of| now.since(of.at) <= CALL_DELAY_VALID && of.share >= MIN_CALL_SHARE);
        delays.fold(
            (Duration::ZERO, Duration::ZERO),
            |(age, queue_delay), of| (age.max(of.age), queue_delay.max(of.queue_delay)),
        )
    }
}

/// Rate of accepted new calls before an overload.
#[derive(Clone, Copy, Debug, Default)]
struct AcceptRate {
    since: Time,
    number: u32,
    /// Calls per second in the second before.
    rate: f64,
}

impl AcceptRate {
    fn record(&mut self, now: Time) {
        let past = now.since(self.since);
        if past >= SECOND {
            // An older second gives no information.
            self.rate = match past < SECOND * 2 {
                true => f64::from(self.number) / past.as_secs_f64(),
                false => 0.0,
            };
            (self.since, self.number) = (now, 0);
        }
        self.number = self.number.saturating_add(1);
    }

    fn rate(&self, now: Time) -> f64 {
        let past = now.since(self.since);
        // A part of a second is enough unless it is short.
        let part = match past > SECOND / 4 {
            true => f64::from(self.number) / past.as_secs_f64(),
            false => 0.0,
        };
        match past < SECOND * 2 {
            true => self.rate.max(part),
            false => 0.0,
        }
    }
}

fn before(now: Time, past: Duration) -> Time {
    Time(now.0.saturating_sub(past.as_nanos() as u64))
}

impl Overload {
    /// For one of `workers` workers.
    pub(crate) fn new(shed_lists: Arc<ShedLists>, workers: u8) -> Overload {
        Overload {
            age: Duration::ZERO,
            queue_delay: Duration::ZERO,
            socket: None,
            judged_age: Duration::ZERO,
            judged_delay: Duration::ZERO,
            call_delays: CallDelays::default(),
            queues: Vec::new(),
            is_sustained: false,
            refused: 0,
            dropped: 0,
            last_refusal: None,
            filters: VecDeque::new(),
            neighbours: LossFeedback::default(),
            shed_lists,
            is_update_scheduled: false,
            accept_rate: AcceptRate::default(),
            service_time: ServiceTime::new(workers),
            flood: FloodDetector::default(),
            targets: DelayTargets::of(workers),
        }
    }

    /// State for operators.
    pub(crate) fn view(&self) -> OverloadView {
        OverloadView {
            active: self.last_refusal.is_some(),
            queue_delay: self.queue_delay,
        }
    }

    /// The next socket filter for the driver: the socket, and the filter or `None` to remove it.
    pub(crate) fn next_socket_filter(&mut self) -> Option<(SocketId, Option<SocketFilter>)> {
        self.filters.pop_front()
    }

    /// Time of arrival of the current message.
    fn arrived(&self, now: Time) -> Time {
        before(now, self.age)
    }

    /// The queue of the current message's socket, where one is kept.
    fn existing_queue(&mut self) -> Option<&mut SocketQueue> {
        let socket = self.socket?;
        self.queues.iter_mut().find(|queue| queue.socket == socket)
    }

    /// The queue of the current message's socket, added where none is kept.
    fn queue(&mut self, now: Time) -> Option<&mut SocketQueue> {
        let socket = self.socket?;
        let at = match self.queues.iter().position(|queue| queue.socket == socket) {
            Some(at) => at,
            None => {
                let usual = self.accept_rate.rate(now);
                self.queues.push(SocketQueue::new(socket, usual, now));
                self.queues.len() - 1
            }
        };
        self.queues.get_mut(at)
    }

    /// Whether the arrival rate of the last moments is a flood. As long as the capacity is unknown it is not: the rate
    /// before may have been low because there were few calls.
    fn is_flooded(&self, now: Time) -> bool {
        let capacity = self.service_time.calls_per_second();
        capacity > 0.0
            && self
                .flood
                .is_flood(capacity.max(self.accept_rate.rate(now)))
    }

    fn is_shedding(&self) -> bool {
        self.queues.iter().any(SocketQueue::is_shedding)
    }

    fn is_dropping(&self) -> bool {
        self.queues.iter().any(SocketQueue::is_dropping)
    }
}

impl Overload {
    /// Records a datagram that is handed off to another worker.
    pub(crate) fn record_handed_on(&mut self, ctx: &Ctx, arrived: Time) {
        let now = ctx.now;
        let Some(limit) = ctx.config.sip.queueing_delay else {
            return;
        };
        let service_time = &mut self.service_time;
        service_time.record_message(arrived, now.since(arrived) > limit / BUSY_DIVISOR, now);
        // Nothing is sent for it.
        service_time.record_no_reply();
    }

    /// Records a datagram that another worker received at `arrived` and handed off at `handed`.
    pub(crate) fn record_handoff(
        &mut self,
        ctx: &Ctx,
        socket: SocketId,
        arrived: Time,
        handed: Time,
    ) {
        let now = ctx.now;
        self.record_delays(ctx, socket, now.since(arrived), now.since(handed));
    }

    /// Records a datagram and the time that it was queued in its socket.
    pub(crate) fn record_queue_delay(&mut self, ctx: &Ctx, socket: SocketId, age: Duration) {
        self.record_delays(ctx, socket, age, age);
    }

    /// Records a datagram of age `age` that was queued for this worker for `queue_delay`; for the rest of its age
    /// this thread may have been idle.
    fn record_delays(&mut self, ctx: &Ctx, socket: SocketId, age: Duration, queue_delay: Duration) {
        let now = ctx.now;
        let overload = &mut *self;
        overload.age = age;
        overload.queue_delay = queue_delay;
        overload.socket = Some(socket);
        overload.is_sustained = false;
        let limit = ctx.config.sip.queueing_delay.unwrap_or(Duration::MAX);
        let queued_at = before(now, queue_delay);
        overload
            .service_time
            .record_message(queued_at, queue_delay > limit / BUSY_DIVISOR, now);
        overload.call_delays.record_read(socket);
        let (call_age, call_delay) = overload.call_delays.longest(now);
        let queue_delay = queue_delay.max(call_delay);
        (overload.judged_age, overload.judged_delay) = (age.max(call_age), queue_delay);
        let arrived = overload.arrived(now);
        let is_queued = overload.judged_age > limit / 2;
        if age > limit {
            let since = overload.queue(now).map(|queue| {
                queue.record_delay(queue_delay);
                // The queue was empty when this one arrived: two stalls of the thread are no lasting queue.
                if queue.last_late.is_some_and(|last_late| arrived > last_late) {
                    queue.above_since = None;
                }
                queue.last_late = Some(now);
                *queue.above_since.get_or_insert(now)
            });
            overload.is_sustained = since.is_some_and(|since| now.since(since) >= MIN_DURATION)
                || overload.is_flooded(now);
        } else if is_queued {
            // The queue of calls' messages lasts already.
            overload.is_sustained = call_age > limit;
            if let Some(queue) = overload.queue(now) {
                queue.above_since = None;
                queue.record_delay(queue_delay);
            }
        } else if !overload.queues.is_empty()
            && let Some(at) = overload
                .queues
                .iter()
                .position(|queue| queue.socket == socket)
            && let Some(queue) = overload.queues.get_mut(at)
        {
            queue.above_since = None;
            queue.record_delay(queue_delay);
            if !overload.is_update_scheduled {
                overload.queues.swap_remove(at);
            }
        }
    }

    /// Records that the current message matched a transaction or dialog.
    pub(crate) fn record_call_message(&mut self, now: Time) {
        let Some(socket) = self.socket else {
            return;
        };
        if !self.is_overloaded() {
            self.call_delays.forget(socket);
        } else {
            self.call_delays.record(CallDelay {
                socket,
                at: now,
                age: self.age,
                queue_delay: self.queue_delay,
                share: 0.0,
            });
        }
    }

    /// Records a message without queueing delay: streams have backpressure.
    pub(crate) fn record_no_queue(&mut self) {
        self.age = Duration::ZERO;
        self.queue_delay = Duration::ZERO;
        self.judged_age = Duration::ZERO;
        self.judged_delay = Duration::ZERO;
        self.socket = None;
    }

    /// Whether an overload lasts or begins, at this worker or another.
    pub(super) fn is_overloaded(&self) -> bool {
        self.last_refusal.is_some() || self.is_sustained || self.shed_lists.is_shedding()
    }

    /// Drops a new call that arrived before the socket filter that would have dropped it: it is retransmitted, and
    /// treated as if it had arrived a moment later.
    pub(super) fn shed_beyond_filter(&mut self, ctx: &mut Ctx, bytes: &[u8]) -> bool {
        let Some(queue) = self.existing_queue() else {
            return false;
        };
        let is_dropped = queue.is_beyond_filter(bytes);
        if is_dropped {
            queue.record_shed();
            self.service_time.record_no_reply();
            self.record_shed(ctx, 1);
        }
        is_dropped
    }

    /// The reason to refuse a new request; `bytes` are those of an INVITE in a datagram.
    pub(super) fn refusal_reason(&mut self, ctx: &Ctx, bytes: Option<&[u8]>) -> Option<ShedReason> {
        let limit = ctx.config.sip.queueing_delay?;
        // During an overload each message is judged by its own delay.
        if !self.is_overloaded() {
            return None;
        }
        let Overload {
            judged_age: age,
            judged_delay: queue_delay,
            targets,
            ..
        } = *self;
        if let (Some(bytes), Some(queue)) = (bytes, self.existing_queue())
            && queue.is_refused_by_rank(
                bytes,
                queue_delay < limit * targets.accept_margin_below_percent / 100,
            )
        {
            return Some(ShedReason::Rank);
        }
        let longest = queue_delay.max(age.saturating_sub(queue_delay));
        (longest > limit * targets.refuse_above_percent / 100).then_some(ShedReason::QueueDelay)
    }

    /// Seconds for the Retry-After of a refusal: random, so that callers do not return at the same time, and longer
    /// under heavy load. All values have the same number of digits, so that the answers to one peer can be sent in
    /// one burst.
    pub(super) fn retry_after_s(&mut self, ctx: &mut Ctx) -> u32 {
        let (least, spread) = match self.is_dropping() {
            false => (1, 9),
            true => (10, 20),
        };
        least + ctx.entropy.below(spread) as u32
    }

    /// Counts a refusal because of overload.
    pub(super) fn record_refusal(
        &mut self,
        ctx: &mut Ctx,
        method: Method<'_>,
        bytes: Option<&[u8]>,
        reason: ShedReason,
    ) {
        let now = ctx.now;
        ctx.counters.shed += 1;
        self.refused += 1;
        let arrived = self.arrived(now);
        if method == Method::Invite
            && let Some(queue) = self.queue(now)
        {
            match reason {
                ShedReason::QueueDelay => queue.record_refused_late(arrived),
                ShedReason::Rank => {
                    queue.record_refused_by_rank(bytes.unwrap_or_default(), arrived)
                }
            }
        }
        if self.last_refusal.replace(now).is_none() {
            ctx.timers.schedule(now + END_AFTER, Alarm::OverloadCheck);
            // The messages since the beginning give a first sample at once.
            self.schedule_update(ctx, Duration::ZERO);
            let age = self.judged_age;
            ctx.events.tell(now, || EventKind::Overload {
                state: "started".to_owned(),
                queue_delay_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
                refused: 0,
                shed: 0,
            });
        }
    }

    /// Applies the configured numbers of emergency calls, which socket filters never drop.
    pub(crate) fn set_emergency_numbers(&self, numbers: &[String]) {
        self.shed_lists.set_emergency_numbers(numbers);
    }

    /// Refuses a new request where the queue is too long; emergency calls are never refused.
    pub(crate) fn shed(
        &mut self,
        ctx: &mut Ctx,
        request: &Message<'_>,
    ) -> Option<StatelessResponse> {
        let method = request.method();
        let is_new = matches!(
            method,
            Method::Invite
                | Method::Register
                | Method::Subscribe
                | Method::Message
                | Method::Publish
                | Method::Refer
        );
        if !is_new || is_emergency(&ctx.config, request.request_uri()) {
            return None;
        }
        if !self.is_overloaded() {
            if method == Method::Invite {
                self.record_accepted(ctx, request.bytes());
            }
            return None;
        }
        if let Ok(via) = request.via() {
            self.neighbours.record_request(&via);
        }
        let bytes = (method == Method::Invite).then(|| request.bytes());
        let Some(reason) = self.refusal_reason(ctx, bytes) else {
            if method == Method::Invite {
                self.record_accepted(ctx, request.bytes());
            }
            return None;
        };
        self.record_refusal(ctx, method, bytes, reason);
        let seconds = self.retry_after_s(ctx);
        Some(StatelessResponse {
            status: 503,
            reason: None,
            headers: vec![(HeaderId::RetryAfter, seconds.to_string().into_bytes())],
        })
    }

    /// Records a message that gets no reply.
    pub(super) fn record_no_reply(&mut self) {
        self.service_time.record_no_reply();
    }

    /// Whether another worker has begun to shed, and the queue of this message has no copy of the shared list.
    pub(super) fn lacks_shed_list(&mut self, now: Time) -> bool {
        self.shed_lists.is_shedding() && self.queue(now).is_some_and(|queue| !queue.has_view())
    }

    /// Counts an accepted new call, for its queue where one is kept.
    fn record_accepted(&mut self, ctx: &Ctx, bytes: &[u8]) {
        let now = ctx.now;
        let arrived = self.arrived(now);
        self.accept_rate.record(now);
        self.service_time.record_new_call();
        if self.socket.is_some() {
            self.flood.record(arrived);
        }
        if let Some(queue) = self.existing_queue() {
            queue.record_accepted(bytes, arrived);
        }
    }

    /// Schedules an update of the queues, unless one is scheduled.
    pub(super) fn schedule_update(&mut self, ctx: &mut Ctx, after: Duration) {
        let now = ctx.now;
        if !core::mem::replace(&mut self.is_update_scheduled, true) {
            ctx.timers.schedule(now + after, Alarm::SheddingUpdate);
        }
    }

    /// Counts calls that a socket filter has dropped.
    pub(crate) fn record_shed(&mut self, ctx: &mut Ctx, dropped: u64) {
        ctx.drops.add(engine::DropReason::SipShed, dropped);
        ctx.counters.unread += dropped;
        self.dropped += dropped;
    }

    /// Ends the overload when it is over.
    pub(crate) fn check_overload_end(&mut self, ctx: &mut Ctx) {
        let now = ctx.now;
        let Some(last) = self.last_refusal else {
            return;
        };
        let end = last + END_AFTER;
        if now < end || self.is_shedding() || self.neighbours.is_reducing() {
            ctx.timers
                .schedule(end.max(now + CONTROL_INTERVAL), Alarm::OverloadCheck);
            return;
        }
        self.last_refusal = None;
        self.queues.clear();
        self.shed_lists.remove_inactive();
        self.neighbours = LossFeedback::default();
        self.flood = FloodDetector::default();
        let refused = core::mem::take(&mut self.refused);
        let dropped = core::mem::take(&mut self.dropped);
        ctx.events.tell(now, || EventKind::Overload {
            state: "ended".to_owned(),
            queue_delay_ms: 0,
            refused,
            shed: dropped,
        });
    }

    /// Updates the limits between accepted, refused and dropped calls, and the feedback to neighbours.
    pub(crate) fn update(&mut self, ctx: &mut Ctx, endpoint: &mut Endpoint) {
        let now = ctx.now;
        self.is_update_scheduled = false;
        let (accepted, offered) = self.update_queues(ctx, endpoint);
        if self.last_refusal.is_some() || self.is_shedding() {
            self.schedule_update(ctx, CONTROL_INTERVAL);
        } else {
            // No overload here: other workers have updated the shared list.
            self.queues.clear();
        }
        if let Some(loss) = self.neighbours.update(accepted, offered)
            && ctx.config.sip.overload_feedback
        {
            endpoint.set_loss_feedback(Some(loss), VALID, now);
        }
    }

    /// Reports the samples to the shared lists and copies the new limits. Returns accepted calls and all arrivals.
    pub(super) fn update_queues(&mut self, ctx: &Ctx, endpoint: &Endpoint) -> (u64, u64) {
        let now = ctx.now;
        let percent = ctx.config.sip.refusals_percent;
        // `None` when the limit was removed by a reload.
        let target = ctx
            .config
            .sip
            .queueing_delay
            .map(|limit| limit * self.targets.target_percent / 100);
        let overload = &mut *self;
        let (mut accepted, mut offered) = (0, 0);
        let total: u64 = overload
            .queues
            .iter()
            .map(|queue| queue.accepted_and_offered().0)
            .sum();
        let calls = overload.service_time.calls_per_second();
        for queue in &mut overload.queues {
            let (queue_accepted, queue_offered) = queue.accepted_and_offered();
            // The capacity of the thread is divided among its sockets by their accepted calls.
            let service_rate = calls * queue_accepted as f64 / total.max(1) as f64;
            accepted += queue_accepted;
            offered += queue_offered;
            let contact = endpoint.contact_on(queue.socket).unwrap_or_default();
            if let Some(filter) = queue.update(
                &overload.shed_lists,
                contact,
                service_rate,
                target,
                percent,
                now,
            ) {
                overload.filters.push_back((queue.socket, filter));
            }
        }
        (accepted, offered)
    }
}
