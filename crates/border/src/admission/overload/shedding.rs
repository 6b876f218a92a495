//! Load shedding at one address: the shares of new calls that are accepted, refused and dropped.
//!
//! Each new call has a rank that is computed from its bytes ([`SocketFilter::rank`]). Calls of low rank are accepted,
//! those above are refused, and the rest is dropped before it is read. Two limits move: the first so that messages
//! are queued for the target delay and no longer, the second so that refusals cost no more than a share of the
//! accepted calls. Between both limits there is always a margin of calls that were answered: when the first limit
//! rises into it, no call is accepted late. Calls of the margin are accepted when the thread has time for them, so
//! that the thread always has work.

use core::time::Duration;
use engine::worker::lock;
use engine::{Prefix, SocketFilter, SocketId, Time};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The whole of a share or of the ranks.
pub(crate) const ALL: u32 = 65_536;
/// Minimum of the accepted share: one of a thousand, so that the end of the flood can be observed.
const MIN_ACCEPTED: f64 = 0.001;
/// Refusals that are always allowed in one interval.
const FREE_REFUSALS: u64 = 2;
/// Interval at which accepted and refused calls are compared.
pub(crate) const CONTROL_INTERVAL: Duration = Duration::from_millis(100);
/// A dropped call is retransmitted after 0.5, 1, 2, 4, 8 and 16 seconds, each counted from the transmission before
/// (Timer A of RFC 3261 section 17.1.1.2, with T1 of 500 ms): intervals in the longest of them.
const MAX_RETRY_INTERVALS: u8 = 160;
/// Intervals in the first retransmission time.
const FIRST_RETRY_INTERVALS: u8 = 5;
/// Weight of one interval in the average over the last half second.
const WEIGHT_HALF_SECOND: f64 = 0.2;
/// Weights for the averages over the last second and the last two seconds.
const WEIGHT_ONE_SECOND: f64 = 0.1;
const WEIGHT_TWO_SECONDS: f64 = 0.05;
/// Intervals at the beginning of a flood in which the capacity is uncertain: it was measured while calls began and
/// none ended.
const WARM_UP_INTERVALS: u32 = 10;
/// Calls needed for an estimate of the arrival rate; fewer may have arrived together by chance.
const MIN_SAMPLE: f64 = 20.0;
/// Ratio of arrival rate to capacity, beyond deviations by chance, from which on it is a flood.
const FLOOD_RATIO: f64 = 1.15;
/// Deviation of the mean of clustered arrivals, as a part of the capacity.
const CLUSTER_DEVIATION: f64 = 0.05;
/// Lower bound of the factor by which the accepted share is reduced in one step.
const MIN_CUT: f64 = 0.02;
/// Part of the correction for late calls that is applied per interval: a queue that was too long by chance does not
/// justify more.
const LATE_GAIN: f64 = 0.1;
/// Late calls of one interval that are counted at most, as a part of the usual accepted calls: more of them show a
/// thread that was kept from running.
const MAX_LATE: f64 = 0.15;
/// Late calls as a part of the calls below the limit: with so many the processor is always busy.
const TARGET_LATE: f64 = 0.02;
/// Growth of the accepted share per interval while no message is queued.
const RISE: f64 = 0.01;
/// The same after several intervals without a queue.
const FAST_RISE: f64 = 0.075;
/// Ratio of queueing delay to its target from which on there is no capacity for more.
const DELAY_CEILING: f64 = 0.6;
/// Calls of the margin per interval that are needed for a judgement.
const MIN_MARGIN: f64 = 0.5;
/// Price of a refusal, about, as a part of the cost of a call.
const REFUSAL_COST: f64 = 0.3;
/// Price of a call that is dropped after it was read.
const SHED_COST: f64 = 0.12;
/// Growth of the allowed refusals per interval while no message is queued.
const SPARE_GROWTH: f64 = 1.2;
/// Refused share behind the accepted one at the beginning of a flood, as a part of the latter: the estimate of so
/// short a time may be wrong by so much, and a dropped call cannot be accepted for a while.
const INITIAL_MARGIN: f64 = 0.2;
/// Decay of the peak of accepted calls per interval.
const PEAK_DECAY: f64 = 0.9995;
/// Refusals of one interval at most, as a multiple of that peak.
const MAX_SPARE: f64 = 3.0;
/// Power of the correction for too many refusals that is applied per interval.
const NARROWING_EXPONENT: f64 = 0.15;
/// Ratio of arrivals to capacity below which the flood may be over.
const BELOW_CAPACITY: f64 = 0.85;
/// Intervals without a queue after which the flood is over and the rise is steeper.
const IDLE_INTERVALS: u32 = 4;

/// Observations of new calls and of queues in one interval.
#[derive(Clone, Copy, Debug, Default)]
struct LoadSample {
    /// Accepted calls.
    accepted: u64,
    /// Calls refused because of their queueing delay that arrived after the last reduction.
    late: u64,
    /// Calls refused for another reason.
    refused_other: u64,
    /// Calls of the margin that were accepted because there was time, and refused because there was none.
    margin_accepted: u64,
    margin_refused: u64,
    /// Refused calls that arrived before the last reduction.
    before_cut: u64,
    /// Sum of the queueing delays of messages, and their number.
    delay: Duration,
    messages: u32,
    /// Calls dropped after they were read.
    shed: u64,
    /// Arrival rate by time of arrival, and capacity, both in calls per second, of the workers that know both.
    offered: f64,
    capacity: f64,
    /// Standard deviation of the arrivals below the limit by chance.
    deviation: f64,
    /// Capacity in calls per second by the measured processing time of messages; 0 if unknown.
    service_rate: f64,
    /// Calls of the margin, and the part of them that was accepted, 0 to 1, both averaged over half a second; with
    /// several workers the least of their parts.
    margin: f64,
    margin_share: f64,
}

impl LoadSample {
    fn add(&mut self, other: LoadSample) {
        self.accepted += other.accepted;
        self.late += other.late;
        self.refused_other += other.refused_other;
        self.margin_accepted += other.margin_accepted;
        self.margin_refused += other.margin_refused;
        self.before_cut += other.before_cut;
        self.delay += other.delay;
        self.messages += other.messages;
        self.shed += other.shed;
        self.offered += other.offered;
        self.capacity += other.capacity;
        self.deviation += other.deviation;
        self.service_rate += other.service_rate;
        if other.margin > 0.0 {
            self.margin_share = match self.margin > 0.0 {
                true => self.margin_share.min(other.margin_share),
                false => other.margin_share,
            };
            self.margin += other.margin;
        }
    }
}

/// State of the queue of one socket.
#[derive(Debug)]
pub(super) struct SocketQueue {
    pub(crate) socket: SocketId,
    /// Time since when the delay of every message is above the limit.
    pub(crate) above_since: Option<Time>,
    /// Time at which the last message above the limit was processed.
    pub(crate) last_late: Option<Time>,
    sample: LoadSample,
    view: Option<ShedView>,
    pace: RateEstimate,
    /// Calls of the margin that were accepted, and refused, per interval, averaged over half a second.
    margin_accepted: f64,
    margin_refused: f64,
}

/// Estimate of arrival rate and capacity.
#[derive(Debug)]
struct RateEstimate {
    /// Time of the last update.
    updated_at: Time,
    /// Arrival times of the first and the last call below the limit since then, their number, and the number of all
    /// arrivals that they represent.
    first: Time,
    last: Time,
    number: u64,
    all: f64,
    /// Arrival rate of all calls per second, extrapolated from the calls below the limit, averaged over some seconds.
    offered: f64,
    /// Calls in the estimate during the warm-up, and the arrival time of the last of them.
    sample_size: f64,
    sample_end: Option<Time>,
    /// Calls accepted per second before the overload.
    usual: f64,
    /// Capacity in calls per second; 0 if unknown.
    capacity: f64,
    /// Intervals so far.
    intervals: u32,
}

impl RateEstimate {
    fn new(usual: f64, now: Time) -> RateEstimate {
        RateEstimate {
            updated_at: now,
            offered: 0.0,
            sample_size: 0.0,
            sample_end: None,
            usual,
            first: Time::ZERO,
            last: Time::ZERO,
            number: 0,
            all: 0.0,
            capacity: 0.0,
            intervals: 0,
        }
    }

    /// Counts the arrival of a call below the limit; `part` of all calls are below it.
    fn record_arrival(&mut self, arrived: Time, part: f64) {
        if self.number == 0 {
            (self.first, self.last) = (arrived, arrived);
        }
        self.last = self.last.max(arrived);
        self.number += 1;
        self.all += 1.0 / part;
    }

    /// Updates the capacity from the last interval and adds arrival rate and capacity to the sample.
    ///
    /// `part` of all arrivals are below the limit; `service_rate` is the capacity in calls per second by the measured
    /// processing time of messages, 0 if unknown.
    fn update(&mut self, sample: &mut LoadSample, part: f64, service_rate: f64, now: Time) {
        let past = now.since(self.updated_at).as_secs_f64();
        // Too soon: a very short interval gives no estimate.
        if past * 8.0 < CONTROL_INTERVAL.as_secs_f64() {
            return;
        }
        self.updated_at = now;
        self.intervals = self.intervals.saturating_add(1);
        let refusals = (sample.late + sample.refused_other) as f64 * REFUSAL_COST;
        let rate = (sample.accepted as f64 + refusals + sample.shed as f64 * SHED_COST) / past;
        // With more INVITEs than subsequent messages the accepted calls have cost only a part so far: the processing
        // time of messages is the better estimate.
        let rate = match service_rate > 0.0 && self.intervals < WARM_UP_INTERVALS {
            true => rate.min(service_rate.max(self.usual)),
            false => rate,
        };
        self.capacity = match self.capacity > 0.0 {
            false => rate.max(self.usual),
            true if rate > self.capacity => {
                self.capacity + (rate - self.capacity) * WEIGHT_ONE_SECOND
            }
            true if self.intervals < WARM_UP_INTERVALS => {
                self.capacity + (rate - self.capacity) * WEIGHT_HALF_SECOND
            }
            // A thread that was kept from running could have accepted more: weigh this least.
            true => self.capacity + (rate - self.capacity) * WEIGHT_TWO_SECONDS,
        };
        let number = self.number as f64;
        let all = core::mem::take(&mut self.all);
        self.number = 0;
        // By time of arrival, not by time of reading.
        let from = self.sample_end.unwrap_or(self.first).min(self.first);
        let span = self.last.since(from).as_secs_f64();
        if self.intervals >= WARM_UP_INTERVALS {
            // Calls may be clustered: the mean over some seconds counts, independently of arrival and reading within
            // them.
            self.offered += (all / past - self.offered) * WEIGHT_TWO_SECONDS;
            sample.offered = self.offered;
            sample.deviation = (self.offered * part).sqrt() + self.capacity * CLUSTER_DEVIATION;
            sample.capacity = self.capacity;
        } else if number >= MIN_SAMPLE && span > CONTROL_INTERVAL.as_secs_f64() / 20.0 {
            self.sample_end = Some(self.last);
            self.sample_size += number;
            self.offered += (all / span - self.offered) * number / self.sample_size;
            sample.offered = self.offered;
            sample.deviation = self.offered * part / self.sample_size.sqrt();
            sample.capacity = self.capacity;
        }
    }
}

/// State of the shared shed list that a worker keeps a copy of.
#[derive(Clone, Copy, Debug)]
struct ShedView {
    /// The socket filter and the share that passes it, since the last update.
    filter: SocketFilter,
    share: u32,
    /// Ranks below this, of [`ALL`], are accepted.
    accept_below: u32,
    /// Ranks below this are accepted when there is time.
    margin_below: u32,
    /// Time of the last reduction for late calls.
    reduced_at: Time,
}

/// Shared shed list of one address: all workers' sockets at it.
#[derive(Debug)]
struct ShedList {
    /// Our Contact at the address; the key of the list.
    contact: Box<[u8]>,
    /// Of all workers, since the last update.
    sample: LoadSample,
    updated_at: Time,
    /// Time of the last reduction for late calls.
    reduced_at: Time,
    shedding: Shedding,
}

/// The lists of all addresses, shared by all workers: a retransmission over another path is treated like the first
/// transmission.
#[derive(Debug)]
pub(crate) struct ShedLists {
    lists: Mutex<Vec<ShedList>>,
    /// Whether load is shed at any address.
    is_shedding: AtomicBool,
    /// Seed of the ranks.
    salt: u32,
    /// Numbers of emergency calls.
    emergency_numbers: Mutex<Vec<String>>,
}

impl ShedLists {
    pub(crate) fn new(salt: u32) -> ShedLists {
        ShedLists {
            lists: Mutex::default(),
            is_shedding: AtomicBool::new(false),
            salt,
            emergency_numbers: Mutex::default(),
        }
    }

    /// Applies the configured numbers of emergency calls, from the next overload on.
    pub(crate) fn set_emergency_numbers(&self, numbers: &[String]) {
        let mut known = lock(&self.emergency_numbers);
        if *known != numbers {
            known.clear();
            known.extend_from_slice(numbers);
        }
    }

    /// Whether load is shed at any address.
    pub(super) fn is_shedding(&self) -> bool {
        self.is_shedding.load(Ordering::Relaxed)
    }

    /// Removes lists that shed nothing.
    pub(super) fn remove_inactive(&self) {
        let mut lists = lock(&self.lists);
        lists.retain(|list| list.shedding.is_shedding());
        self.is_shedding.store(!lists.is_empty(), Ordering::Relaxed);
    }
}

/// Ranks per segment, the unit in which dropped calls are recorded.
const SEGMENT: u32 = 64;

/// A segment of the ranks.
#[derive(Clone, Copy, Debug, Default)]
struct ShedSegment {
    /// Intervals since the first call of those dropped in this segment; 0 if there is none.
    retrying: u8,
    /// Intervals since the last drop in this segment.
    since_open: u8,
}

/// Limits of one address and the averages that move them.
#[derive(Debug)]
struct Shedding {
    filter: SocketFilter,
    /// Share of all arrivals that could be accepted, 0 to 1.
    accept_share: f64,
    /// Share refused behind it, 0 to 1.
    refuse_share: f64,
    /// Ranks below this, of [`ALL`], are accepted.
    accept_below: u32,
    /// Below this rank no dropped call is being retransmitted.
    undropped_below: u32,
    /// Share that passes the socket filter, of [`ALL`], since the last update.
    share: u32,
    /// Segments in which dropped calls may be retransmitted.
    segments: Box<[ShedSegment; (ALL / SEGMENT) as usize]>,
    /// Ratio of queueing delay to its target, averaged over half a second.
    delay_ratio: f64,
    /// Accepted calls, and late ones among those below the limit, per interval, averaged over half a second.
    accepted: f64,
    late: f64,
    /// Accepted calls per interval, averaged over some seconds.
    usual: f64,
    /// Recent peak of accepted calls per interval.
    peak: f64,
    /// Refusals per interval for which there is spare time.
    spare: f64,
    /// All refusals per interval, averaged over half a second.
    refused: f64,
    /// Intervals without a queue.
    idle: u32,
}

impl Shedding {
    fn is_shedding(&self) -> bool {
        self.accept_below < ALL || self.share < ALL
    }

    fn new(salt: u32, contact: &[u8], emergency_numbers: &[String]) -> Shedding {
        // In-dialog requests are addressed to our Contact; emergency calls to a service, or to a number.
        let mut exempt = vec![[b"INVITE ", contact].concat(), b"INVITE urn:".to_vec()];
        let numbers = emergency_numbers.iter();
        exempt.extend(numbers.map(|number| format!("INVITE sip:{number}@").into_bytes()));
        Shedding {
            filter: SocketFilter {
                matched: Prefix::new(b"INVITE "),
                exempt: SocketFilter::exempting(exempt.iter().map(Vec::as_slice)),
                pass_share: u16::MAX,
                salt,
            },
            accept_share: 1.0,
            refuse_share: 1.0,
            accept_below: ALL,
            undropped_below: ALL,
            share: ALL,
            segments: Box::new([ShedSegment::default(); (ALL / SEGMENT) as usize]),
            delay_ratio: 0.0,
            accepted: 0.0,
            late: 0.0,
            usual: 0.0,
            peak: 0.0,
            spare: 0.0,
            refused: 0.0,
            idle: 0,
        }
    }

    /// Ages the records of dropped calls by one interval. A dropped call is retransmitted after at most the time
    /// since its first transmission plus half a second, and is answered then; the longest wait is
    /// [`MAX_RETRY_INTERVALS`].
    fn age_segments(&mut self) {
        let mut undropped_below = ALL;
        for (rank, part) in (0..)
            .step_by(SEGMENT as usize)
            .zip(self.segments.iter_mut())
        {
            if self.share < rank + SEGMENT {
                let retrying = part
                    .retrying
                    .saturating_add(part.since_open)
                    .saturating_add(1);
                part.retrying = retrying.min(MAX_RETRY_INTERVALS);
                part.since_open = 0;
            } else if part.retrying > 0 {
                part.since_open += 1;
                if part.since_open >= MAX_RETRY_INTERVALS.min(part.retrying + FIRST_RETRY_INTERVALS)
                {
                    *part = ShedSegment::default();
                }
            }
            if part.retrying > 0 {
                undropped_below = undropped_below.min(rank);
            }
        }
        self.undropped_below = undropped_below;
    }

    /// Moves the first limit by the sample; `delay_ratio` is queueing delay over target. Returns whether the limit
    /// was reduced because of a flood.
    ///
    /// Reducing it is free: the calls are dropped. Raising it is expensive: all dropped calls of the ranks in
    /// question are retransmitted and have to be refused first, at the cost of many calls. Therefore the limit is
    /// approached from above, in one step by the arrival rate and slowly from there on, and it is raised only where
    /// nothing else helps.
    fn adjust_accepted(&mut self, sample: LoadSample, delay_ratio: f64) -> bool {
        let [accepted, late] = [sample.accepted, sample.late].map(|count| count as f64);
        let free = (FREE_REFUSALS as f64).max(accepted / 50.0);
        self.delay_ratio += (delay_ratio - self.delay_ratio) * WEIGHT_HALF_SECOND;
        let has_history = self.usual > 0.0;
        match has_history {
            true => {
                self.accepted += (accepted - self.accepted) * WEIGHT_HALF_SECOND;
                self.usual += (accepted - self.usual) * WEIGHT_TWO_SECONDS;
            }
            // The first sample may cover more than one interval.
            false => {
                let most = match sample.capacity > 0.0 {
                    true => sample.capacity * CONTROL_INTERVAL.as_secs_f64(),
                    false => accepted,
                };
                (self.accepted, self.usual) = (accepted.min(most), accepted.min(most));
            }
        }
        let most = MAX_LATE * self.max_accepted().max(1.0);
        self.late += (late.min(most) - self.late) * WEIGHT_HALF_SECOND;
        // While arrivals are near the capacity the flood is not over, even without a queue: accepted calls still have
        // to end.
        let fewer = self.accepted
            < BELOW_CAPACITY * sample.service_rate * CONTROL_INTERVAL.as_secs_f64()
            || sample.service_rate == 0.0;
        self.idle = match late == 0.0 && delay_ratio < 0.4 && fewer {
            true => self.idle + 1,
            false => 0,
        };
        let margin = sample.margin;
        // Arrival times do not depend on the times of reading: a thread that was kept from running is not a flood. A
        // worker that has just received the limit has counted calls above it, too.
        let arriving = sample.offered * f64::from(self.accept_below.max(1)) / f64::from(ALL);
        let flood = (late > free || !has_history)
            && sample.capacity > 0.0
            && arriving - 2.0 * sample.deviation > FLOOD_RATIO * sample.capacity;
        let late = self.late / (self.accepted + self.late).max(1.0);
        let factor = if flood {
            self.late = 0.0;
            (sample.capacity / (arriving - sample.deviation * 0.5)).max(MIN_CUT)
        } else if late > TARGET_LATE {
            1.0 - LATE_GAIN * (late - TARGET_LATE) * (1.0 - REFUSAL_COST)
        } else if self.idle > IDLE_INTERVALS {
            1.0 + (1.0 - self.delay_ratio / DELAY_CEILING).max(0.0) * FAST_RISE
        } else if margin > MIN_MARGIN {
            // Accept half of the margin, too.
            1.0 + (sample.margin_share - 0.5).max(0.0) * 2.0 * RISE
        } else {
            1.0 + (1.0 - self.delay_ratio / DELAY_CEILING).max(0.0) * RISE
        };
        let before = self.accept_share;
        self.accept_share = (self.accept_share * factor).clamp(MIN_ACCEPTED, 1.0);
        // The share that passes the filter is controlled by the second limit.
        if !flood && self.idle <= IDLE_INTERVALS {
            self.refuse_share += (before - self.accept_share).max(0.0);
        }
        // Calls refused for another reason give no information about the capacity.
        let accept_below = f64::from(self.accept_below) / f64::from(ALL);
        self.accept_share = self
            .accept_share
            .min((accept_below * 1.03).max(MIN_ACCEPTED));
        flood
    }

    /// Upper rank of the margin: no call was dropped below it that could be accepted late.
    fn margin_below(&self) -> u32 {
        self.undropped_below.min(self.share).max(self.accept_below)
    }

    /// Calls accepted per interval while nothing keeps the threads from running.
    fn max_accepted(&self) -> f64 {
        self.accepted.max(self.usual)
    }

    /// Moves the second limit by the number of refusals, which may be `percent` of the accepted calls; `offered` is
    /// the arrival rate per second, given when the first limit was reduced for it.
    fn adjust_refused(&mut self, refused: f64, offered: Option<f64>, percent: Option<u32>) {
        let Some(percent) = percent else {
            self.refuse_share = 1.0;
            return;
        };
        let target = (FREE_REFUSALS as f64).max(self.max_accepted() * f64::from(percent) / 100.0);
        self.refused += (refused - self.refused) * WEIGHT_HALF_SECOND;
        if let Some(offered) = offered {
            self.refused = 0.0;
            // With the arrival rate the share for the allowed number of refusals can be computed.
            let enough = target / (offered * CONTROL_INTERVAL.as_secs_f64()).max(1.0);
            self.refuse_share = self
                .refuse_share
                .min(enough.max(self.accept_share * INITIAL_MARGIN));
            return;
        }
        // Without a queue there is time for more: retransmissions of dropped calls are answered sooner.
        let idle = self.idle > IDLE_INTERVALS;
        self.spare = match idle {
            true => self.spare * SPARE_GROWTH + FREE_REFUSALS as f64,
            false => self.spare * 0.9,
        };
        self.peak = self.accepted.max(self.peak * PEAK_DECAY);
        self.spare = self.spare.min(self.peak * MAX_SPARE);
        let allowed = target + self.spare;
        // Calls in a share that has been refused for a while were all answered soon: reduce it only if refusals delay
        // other calls.
        if self.refused > allowed && self.delay_ratio > 0.4 {
            self.refuse_share *= (allowed / self.refused).powf(NARROWING_EXPONENT);
        } else if self.refused <= allowed * 0.5 {
            let accept_below = f64::from(self.accept_below) / f64::from(ALL);
            self.refuse_share = match idle {
                true => self.refuse_share * 1.3 + accept_below / 20.0,
                false => self.refuse_share * 1.02 + 0.0001,
            };
        }
        self.refuse_share = self.refuse_share.min(1.0);
    }
}

fn of_all(part: f64) -> u32 {
    (part * f64::from(ALL)) as u32
}

impl SocketQueue {
    /// `usual`: calls per second that were accepted before the queue became too long.
    pub(crate) fn new(socket: SocketId, usual: f64, now: Time) -> SocketQueue {
        SocketQueue {
            socket,
            above_since: None,
            last_late: None,
            sample: LoadSample::default(),
            view: None,
            pace: RateEstimate::new(usual, now),
            margin_accepted: 0.0,
            margin_refused: 0.0,
        }
    }

    /// Records a message and its queueing delay.
    pub(crate) fn record_delay(&mut self, delay: Duration) {
        self.sample.delay += delay;
        self.sample.messages += 1;
    }

    /// Records that a new call with time of arrival `arrived` was accepted.
    pub(crate) fn record_accepted(&mut self, bytes: &[u8], arrived: Time) {
        self.sample.accepted += 1;
        match self.rank(bytes) {
            Some((rank, view)) if rank >= view.accept_below => self.sample.margin_accepted += 1,
            _ => {
                let part = self.accepted_share();
                self.pace.record_arrival(arrived, part);
            }
        }
    }

    /// Share of all arrivals that is accepted, according to this worker's copy.
    fn accepted_share(&self) -> f64 {
        self.view.map_or(1.0, |view| {
            f64::from(view.accept_below.max(1)) / f64::from(ALL)
        })
    }

    /// Rank of a new call, while not every call is accepted.
    fn rank(&self, bytes: &[u8]) -> Option<(u32, ShedView)> {
        let view = self.view.filter(|view| view.accept_below < ALL)?;
        Some((u32::from(view.filter.rank(bytes)?), view))
    }

    /// Records a new call that was dropped after it was read, see [`SocketQueue::is_beyond_filter`].
    pub(crate) fn record_shed(&mut self) {
        self.sample.shed += 1;
    }

    /// Whether the socket filter would drop a new call if it arrived now.
    pub(crate) fn is_beyond_filter(&self, bytes: &[u8]) -> bool {
        self.view.is_some_and(|view| {
            view.share < ALL
                && view
                    .filter
                    .rank(bytes)
                    .is_some_and(|rank| u32::from(rank) >= view.share)
        })
    }

    /// Records a new call that was refused because of its delay. Calls that arrived before the last reduction give no
    /// information about the limit.
    pub(crate) fn record_refused_late(&mut self, arrived: Time) {
        match self.view.is_none_or(|view| arrived >= view.reduced_at) {
            true => self.sample.late += 1,
            false => {
                (self.sample.refused_other, self.sample.before_cut) =
                    (self.sample.refused_other + 1, self.sample.before_cut + 1)
            }
        }
        let part = self.accepted_share();
        self.pace.record_arrival(arrived, part);
    }

    /// Records a new call that was refused because of its rank.
    pub(crate) fn record_refused_by_rank(&mut self, bytes: &[u8], arrived: Time) {
        self.sample.refused_other += 1;
        if self.view.is_some_and(|view| arrived < view.reduced_at) {
            self.sample.before_cut += 1;
        } else if self
            .rank(bytes)
            .is_some_and(|(rank, view)| rank < view.margin_below)
        {
            self.sample.margin_refused += 1;
        }
    }

    /// New calls accepted since the last update, and all arrivals, extrapolated for those that the filter dropped.
    pub(crate) fn accepted_and_offered(&self) -> (u64, u64) {
        let share = self.view.map_or(ALL, |view| view.share);
        let read = self.sample.accepted + self.sample.late + self.sample.refused_other;
        (
            self.sample.accepted,
            read * u64::from(ALL) / u64::from(share.max(1)),
        )
    }

    /// Whether not every call is accepted at present.
    pub(super) fn is_shedding(&self) -> bool {
        self.view
            .is_some_and(|view| view.accept_below < ALL || view.share < ALL)
    }

    /// Whether the socket filter drops calls at present.
    pub(crate) fn is_dropping(&self) -> bool {
        self.view.is_some_and(|view| view.share < ALL)
    }

    /// Whether a new call is above the limit, or an earlier transmission may have been dropped; `early`: there is
    /// time for calls of the margin.
    pub(crate) fn is_refused_by_rank(&self, bytes: &[u8], early: bool) -> bool {
        self.rank(bytes).is_some_and(|(rank, view)| match early {
            true => rank >= view.margin_below,
            false => rank >= view.accept_below,
        })
    }

    /// Whether this worker has a copy of the shared shed list.
    pub(crate) fn has_view(&self) -> bool {
        self.view.is_some()
    }

    /// Reports the sample since the last update to the shared list, and updates the list where that is due. `target`
    /// is the target of the queueing delay (`None`: no limit), and refusals may be `percent` of the accepted calls
    /// (`None`: no limit). Returns the new socket filter, where it changes.
    pub(crate) fn update(
        &mut self,
        lists: &ShedLists,
        contact: &[u8],
        service_rate: f64,
        target: Option<Duration>,
        percent: Option<u32>,
        now: Time,
    ) -> Option<Option<SocketFilter>> {
        let mut sample = core::mem::take(&mut self.sample);
        sample.service_rate = service_rate;
        self.margin_accepted +=
            (sample.margin_accepted as f64 - self.margin_accepted) * WEIGHT_HALF_SECOND;
        self.margin_refused +=
            (sample.margin_refused as f64 - self.margin_refused) * WEIGHT_HALF_SECOND;
        sample.margin = self.margin_accepted + self.margin_refused;
        sample.margin_share = self.margin_accepted / sample.margin.max(f64::MIN_POSITIVE);
        let part = self.accepted_share();
        self.pace.update(&mut sample, part, service_rate, now);
        let mut all = lock(&lists.lists);
        let at = match all.iter().position(|list| *list.contact == *contact) {
            Some(at) => at,
            // Another worker has removed the list because the overload is over: accept everything here, too.
            None if sample.late == 0 || (self.view.is_some() && sample.late <= FREE_REFUSALS) => {
                let dropped = self.is_dropping();
                self.view = None;
                self.pace = RateEstimate::new(0.0, now);
                return dropped.then_some(None);
            }
            None => {
                all.push(ShedList {
                    contact: contact.into(),
                    sample: LoadSample::default(),
                    updated_at: Time::ZERO,
                    reduced_at: Time::ZERO,
                    shedding: Shedding::new(lists.salt, contact, &lock(&lists.emergency_numbers)),
                });
                all.len() - 1
            }
        };
        let list = all.get_mut(at)?;
        list.sample.add(sample);
        if now.since(list.updated_at) + CONTROL_INTERVAL / 8 >= CONTROL_INTERVAL {
            list.update(target, percent, now);
            let is_shedding = all.iter().any(|list| list.shedding.is_shedding());
            lists.is_shedding.store(is_shedding, Ordering::Relaxed);
        }
        let list = all.get(at)?;
        let old = self.view.map_or(ALL, |view| view.share);
        let view = list.view();
        self.view = Some(view);
        (view.share != old).then(|| (view.share < ALL).then_some(view.filter))
    }
}

impl ShedList {
    fn update(&mut self, target: Option<Duration>, percent: Option<u32>, now: Time) {
        self.updated_at = now;
        let sample = core::mem::take(&mut self.sample);
        let Some(target) = target else {
            // The limit was removed from the configuration.
            (self.shedding.accept_below, self.shedding.share) = (ALL, ALL);
            return;
        };
        let delay_ratio = sample
            .delay
            .checked_div(sample.messages)
            .unwrap_or_default();
        let delay_ratio = delay_ratio.as_secs_f64() / target.as_secs_f64().max(f64::MIN_POSITIVE);
        let shedding = &mut self.shedding;
        let flood = shedding.adjust_accepted(sample, delay_ratio);
        if flood {
            self.reduced_at = now;
        }
        let offered = flood.then_some(sample.offered);
        shedding.adjust_refused(
            (sample.late + sample.refused_other - sample.before_cut) as f64,
            offered,
            percent,
        );
        shedding.age_segments();
        shedding.accept_below = of_all(shedding.accept_share).min(shedding.undropped_below);
        shedding.share = ALL.min(shedding.accept_below + of_all(shedding.refuse_share));
    }

    fn view(&self) -> ShedView {
        let share = self.shedding.share;
        ShedView {
            filter: SocketFilter {
                pass_share: u16::try_from(share).unwrap_or(u16::MAX),
                ..self.shedding.filter
            },
            share,
            accept_below: self.shedding.accept_below,
            margin_below: self.shedding.margin_below(),
            reduced_at: self.reduced_at,
        }
    }
}

#[cfg(test)]
mod tests;
