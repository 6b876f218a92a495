//! More comes than can be dealt with: each datagram tells how long it lay in the socket. Where that is longer than is
//! wanted, what would begin something new is refused at once, which costs a fraction of a call, and what belongs to calls
//! that stand keeps its turn. The queue so stays as long as the limit says, and the processor has always something to do.
//!
//! Refusals cost, too: those of ten times the peak would take all that calls need. So they are counted against the calls
//! that are taken, and where they are too many, a [`Sieve`] before the socket drops a share of the new calls unread. Who is
//! taken, refused or dropped, the calls' own bytes decide: a call that is sent again fares as it did before, and one that was
//! dropped has no late beginning. Of several workers each has its own queue and sieve; who is taken is the same for all of them.

mod onset;
pub(crate) mod sifting;

use crate::border::{Alarm, Border, Core};
use crate::feedback::{Told, VALID};
use core::time::Duration;
use engine::{Datagram, Note, Sieve, SocketId, Time};
use onset::{Onset, Work};
use sifting::{LOOK, Queue, Rows};
use sip::{Endpoint, Stateless};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::sip::{HeaderId, Message, Method, Refusable};

/// The queue has to be too long for this long, unless a flood is plain to see ([`Onset`]): a machine that stood still for a
/// moment makes up for it by itself.
const LASTING: Duration = Duration::from_millis(100);
/// Messages that waited for so much of what they may wait at most tell that the thread has always had something to do.
const FORMS: u32 = 12;
/// For so long new calls are counted, that it is known how many could be taken.
const SECOND: Duration = Duration::from_secs(1);
/// After this long without a refusal it is over.
const CALM: Duration = Duration::from_secs(5);

/// How long messages wait in the queue of a worker, in percent of what they may wait at most.
#[derive(Clone, Copy, Debug)]
struct Waits {
    /// They are to wait so long: long enough that there is always something to do, short enough that the answers to calls that
    /// are taken come early.
    wanted: u32,
    /// New calls are refused when they have waited for so long: their answers have to wait, too.
    late: u32,
    /// Where they have waited for less than this, some more are taken: those who come next in the row.
    early: u32,
}

impl Waits {
    /// Of one worker, whose queue a call passes twice until it is answered.
    const ALONE: Waits = Waits {
        wanted: 55,
        late: 90,
        early: 45,
    };
    /// Of several. What one reads and another owns waits in the queues of both, the INVITE and its answer.
    const SEVERAL: Waits = Waits {
        wanted: 40,
        late: 70,
        early: 40,
    };

    const fn of(workers: u8) -> Waits {
        match workers {
            0 | 1 => Waits::ALONE,
            _ => Waits::SEVERAL,
        }
    }
}

/// Why something is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// It had waited too long.
    Waited,
    /// It is too far behind in the row of those who come, see [`sifting`].
    Beyond,
}

/// How long what is dealt with now has waited, and what was refused for that.
#[derive(Debug)]
pub(crate) struct Overload {
    /// Of the message that is being dealt with, since it came to the host.
    waited: Duration,
    /// How much of that it lay in the queue of this worker.
    queued: Duration,
    /// Where it came from, unless by a stream.
    socket: Option<SocketId>,
    /// Sockets with a queue that is too long, or was so lately: one that nobody writes to says nothing of another.
    queues: Vec<Queue>,
    /// Whether that has lasted on the socket of the message that is being dealt with.
    lasts: bool,
    /// Refused since it began.
    shed: u64,
    /// Dropped unread since it began.
    unread: u64,
    /// The last refusal of an overload that is not over.
    last: Option<Time>,
    /// Sieves to be put before sockets, or taken away.
    sieves: VecDeque<(SocketId, Option<Sieve>)>,
    /// What neighbours are told.
    told: Told,
    /// Those who come, in common to all workers.
    rows: Arc<Rows>,
    /// Whether it is to be looked how much there is.
    looks: bool,
    lately: Lately,
    work: Work,
    onset: Onset,
    waits: Waits,
}

/// New calls taken, before anything is too much.
#[derive(Clone, Copy, Debug, Default)]
struct Lately {
    since: Time,
    number: u32,
    /// A second, in the second before.
    rate: f64,
}

impl Lately {
    fn takes(&mut self, now: Time) {
        let past = now.since(self.since);
        if past >= SECOND {
            // Of a second long ago nothing is to be learnt.
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
        // Of a part of a second enough is known when it was not short.
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

impl Overload {
    /// Of one of so many workers.
    pub(crate) fn new(rows: Arc<Rows>, workers: u8) -> Overload {
        Overload {
            waited: Duration::ZERO,
            queued: Duration::ZERO,
            socket: None,
            queues: Vec::new(),
            lasts: false,
            shed: 0,
            unread: 0,
            last: None,
            sieves: VecDeque::new(),
            told: Told::default(),
            rows,
            looks: false,
            lately: Lately::default(),
            work: Work::new(workers),
            onset: Onset::default(),
            waits: Waits::of(workers),
        }
    }

    /// The next sieve for the driver.
    pub(crate) fn next_sieve(&mut self) -> Option<(SocketId, Option<Sieve>)> {
        self.sieves.pop_front()
    }

    /// When the message came that is being dealt with.
    fn arrived(&self, now: Time) -> Time {
        Time(now.0.saturating_sub(self.waited.as_nanos() as u64))
    }

    /// The queue of the socket of the message that is being dealt with, where there is one.
    fn known_queue(&mut self) -> Option<&mut Queue> {
        let socket = self.socket?;
        self.queues.iter_mut().find(|queue| queue.socket == socket)
    }

    /// The same; made where there is none.
    fn queue(&mut self, now: Time) -> Option<&mut Queue> {
        let socket = self.socket?;
        let at = match self.queues.iter().position(|queue| queue.socket == socket) {
            Some(at) => at,
            None => {
                let usual = self.lately.rate(now);
                self.queues.push(Queue::new(socket, usual, now));
                self.queues.len() - 1
            }
        };
        self.queues.get_mut(at)
    }

    /// Whether many more calls come than can be taken, as far as the last moments tell.
    fn is_flooded(&self, now: Time) -> bool {
        self.onset
            .is_flood(self.work.calls().max(self.lately.rate(now)))
    }

    fn sifts(&self) -> bool {
        self.queues.iter().any(Queue::sifts)
    }

    fn drops(&self) -> bool {
        self.queues.iter().any(Queue::drops)
    }
}

impl Border {
    /// Deals with a new call that is to be refused, or with the ACK to such a refusal, without reading it in full.
    /// `false`: it takes its usual way.
    pub(crate) fn dealt_with_at_a_glance(
        &mut self,
        socket: SocketId,
        source: SocketAddr,
        bytes: &[u8],
        now: Time,
    ) -> bool {
        if !self.core.hurries() || bytes.len() > self.core.config.limits.message_bytes {
            return false;
        }
        if bytes.starts_with(b"ACK ") {
            let glance = Refusable::at(bytes);
            let absorbed = glance.is_some_and(|glance| self.endpoint.absorb_at_a_glance(&glance));
            if absorbed {
                self.core.overload.work.ends_here();
            }
            return absorbed;
        }
        if !bytes.starts_with(b"INVITE ") {
            return false;
        }
        self.join_row(now);
        if self.core.drops_new(bytes) {
            return true;
        }
        let Some(why) = self.core.refuses_new(Some(bytes)) else {
            return false;
        };
        let Some(glance) = Refusable::at(bytes).filter(|glance| !calls_for_help(glance.uri()))
        else {
            return false;
        };
        if let Some(via) = glance.via() {
            self.core.overload.told.asked(&via);
        }
        let wait = self.core.retry_after();
        let refused = self
            .endpoint
            .refuse_at_a_glance(&glance, socket, source, wait, now);
        if refused {
            self.core.refused(Method::Invite, Some(bytes), why, now);
        }
        refused
    }
}

impl Border {
    /// Spares another worker what is that one's and asks nothing of it: the ACK to a refusal. `false`: it is to be handed over.
    pub(crate) fn spares_its_owner(&mut self, datagram: &Datagram<'_>) -> bool {
        let bytes = &*datagram.bytes;
        bytes.starts_with(b"ACK ")
            && self.core.hurries()
            && bytes.len() <= self.core.config.limits.message_bytes
            && self.is_welcome(datagram.socket, datagram.source, bytes)
            && Refusable::at(bytes).is_some_and(|ack| self.endpoint.absorb_at_a_glance(&ack))
    }

    /// Others take no longer everything: so do we.
    fn join_row(&mut self, now: Time) {
        let overload = &mut self.core.overload;
        if !overload.rows.sifts() || overload.queue(now).is_none_or(|queue| queue.is_in_row()) {
            return;
        }
        self.core.look_at_queues(&self.endpoint, now);
        self.core.look_again(now, LOOK);
    }
}

impl Core {
    /// A datagram comes that is another worker's.
    pub(crate) fn is_handed_on(&mut self, arrived: Time, now: Time) {
        let Some(limit) = self.config.sip.queue else {
            return;
        };
        let work = &mut self.overload.work;
        work.comes(arrived, now.since(arrived) > limit / FORMS, now);
        // Nothing is sent for it.
        work.ends_here();
    }

    /// A datagram comes from another worker, to which it came at `arrived`, and which handed it over at `handed`.
    pub(crate) fn is_handed(&mut self, socket: SocketId, arrived: Time, handed: Time, now: Time) {
        self.comes_after_all(socket, now.since(arrived), now.since(handed), now);
    }

    /// A datagram that lay in its socket for so long comes now.
    pub(crate) fn comes_after(&mut self, socket: SocketId, waited: Duration, now: Time) {
        self.comes_after_all(socket, waited, waited, now);
    }

    /// Of what it `waited` it was `queued` here for so long: of the rest of that time this thread may have had nothing to do.
    fn comes_after_all(&mut self, socket: SocketId, waited: Duration, queued: Duration, now: Time) {
        let overload = &mut self.overload;
        overload.waited = waited;
        overload.queued = queued;
        overload.socket = Some(socket);
        overload.lasts = false;
        let limit = self.config.sip.queue.unwrap_or(Duration::MAX);
        let arrived = overload.arrived(now);
        let forms = waited > limit / 2;
        let began = Time(now.0.saturating_sub(queued.as_nanos() as u64));
        overload.work.comes(began, queued > limit / FORMS, now);
        if waited > limit {
            let since = overload.queue(now).map(|queue| {
                queue.comes_after(queued);
                // Nothing was left when this one came: two standstills of the thread are no queue that lasts.
                if queue.dealt.is_some_and(|dealt| arrived > dealt) {
                    queue.above = None;
                }
                queue.dealt = Some(now);
                *queue.above.get_or_insert(now)
            });
            overload.lasts =
                since.is_some_and(|since| now.since(since) >= LASTING) || overload.is_flooded(now);
        } else if forms {
            if let Some(queue) = overload.queue(now) {
                queue.above = None;
                queue.comes_after(queued);
            }
        } else if !overload.queues.is_empty()
            && let Some(at) = overload
                .queues
                .iter()
                .position(|queue| queue.socket == socket)
            && let Some(queue) = overload.queues.get_mut(at)
        {
            queue.above = None;
            queue.comes_after(queued);
            if !overload.looks {
                overload.queues.swap_remove(at);
            }
        }
    }

    /// What comes now waited in no queue of ours: streams hold their senders back by themselves.
    pub(crate) fn comes_at_once(&mut self) {
        self.overload.waited = Duration::ZERO;
        self.overload.queued = Duration::ZERO;
        self.overload.socket = None;
    }

    /// Whether an overload is not over, or begins, here or at another worker.
    fn hurries(&self) -> bool {
        self.overload.last.is_some() || self.overload.lasts || self.overload.rows.sifts()
    }

    /// Drops a new call that came before the sieve did by which it would have been dropped: such a call is sent again, and fares
    /// as if it had come a moment later.
    fn drops_new(&mut self, bytes: &[u8]) -> bool {
        let Some(queue) = self.overload.known_queue() else {
            return false;
        };
        let drops = queue.is_behind_sieve(bytes);
        if drops {
            queue.drops_unread();
            self.overload.work.ends_here();
            self.sifted(1);
        }
        drops
    }

    /// Whether what begins something new is refused; `bytes`: of a datagram.
    fn refuses_new(&mut self, bytes: Option<&[u8]>) -> Option<Why> {
        let limit = self.config.sip.queue?;
        // Once it has begun, each message is judged by its own waiting, until it is over.
        if !self.hurries() {
            return None;
        }
        let Overload {
            waited,
            queued,
            waits,
            ..
        } = self.overload;
        if let (Some(bytes), Some(queue)) = (bytes, self.overload.known_queue())
            && queue.is_beyond(bytes, queued < limit * waits.early / 100)
        {
            return Some(Why::Beyond);
        }
        let longest = queued.max(waited.saturating_sub(queued));
        (longest > limit * waits.late / 100).then_some(Why::Waited)
    }

    /// Seconds after which a refused caller may come again: not all at the same time, and later where there are many. The
    /// same number of digits for all, so that the answers to one peer leave together.
    fn retry_after(&mut self) -> u32 {
        let (least, spread) = match self.overload.drops() {
            false => (1, 9),
            true => (10, 20),
        };
        least + self.entropy.below(spread) as u32
    }

    /// Something was refused because there is too much to do.
    fn refused(&mut self, method: Method<'_>, bytes: Option<&[u8]>, why: Why, now: Time) {
        self.counters.shed += 1;
        self.overload.shed += 1;
        let arrived = self.overload.arrived(now);
        if method == Method::Invite
            && let Some(queue) = self.overload.queue(now)
        {
            match why {
                Why::Waited => queue.refused_late(arrived),
                Why::Beyond => queue.refused_beyond(bytes.unwrap_or_default(), arrived),
            }
        }
        if self.overload.last.replace(now).is_none() {
            self.timers.schedule(now + CALM, Alarm::Calm);
            // What came meanwhile tells at once how much there is.
            self.look_again(now, Duration::ZERO);
            let waited = self.overload.waited;
            self.events.tell(now, || Note::Overload {
                state: "began".to_owned(),
                waited: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
                refused: 0,
                unread: 0,
            });
        }
    }

    /// The refusal of what would begin something new, where the queue is too long; calls for help are never refused.
    pub(crate) fn shed(&mut self, request: &Message<'_>, now: Time) -> Option<Stateless> {
        let method = request.method();
        let begins = matches!(
            method,
            Method::Invite
                | Method::Register
                | Method::Subscribe
                | Method::Message
                | Method::Publish
                | Method::Refer
        );
        if !begins || calls_for_help(request.request_uri()) {
            return None;
        }
        if !self.hurries() {
            if method == Method::Invite {
                self.takes(request.bytes(), now);
            }
            return None;
        }
        if let Ok(via) = request.via() {
            self.overload.told.asked(&via);
        }
        let again = (method == Method::Invite).then(|| request.bytes());
        let Some(why) = self.refuses_new(again) else {
            if method == Method::Invite {
                self.takes(request.bytes(), now);
            }
            return None;
        };
        self.refused(method, again, why, now);
        let seconds = self.retry_after();
        Some(Stateless {
            status: 503,
            reason: None,
            headers: vec![(HeaderId::RetryAfter, seconds.to_string().into_bytes())],
        })
    }

    /// A new call is taken; of which queue, where one is too long.
    fn takes(&mut self, bytes: &[u8], now: Time) {
        let arrived = self.overload.arrived(now);
        self.overload.lately.takes(now);
        self.overload.work.begins_call();
        if self.overload.socket.is_some() {
            self.overload.onset.comes(arrived);
        }
        if let Some(queue) = self.overload.known_queue() {
            queue.takes(bytes, arrived);
        }
    }

    /// Looks how long messages waited and how many refusals there were for the calls that were taken, and moves the borders
    /// between those who are taken, refused and dropped.
    pub(crate) fn sift(&mut self, endpoint: &mut Endpoint, now: Time) {
        self.overload.looks = false;
        let (taken, offered) = self.look_at_queues(endpoint, now);
        if self.overload.last.is_some() || self.overload.sifts() {
            self.look_again(now, LOOK);
        } else {
            // Nothing was too much here: others looked for us.
            self.overload.queues.clear();
        }
        if let Some(loss) = self.overload.told.look(taken, offered)
            && self.config.sip.feedback
        {
            endpoint.tell_loss(Some(loss), VALID, now);
        }
    }

    /// Looks at the queues after a while, unless that is arranged already.
    fn look_again(&mut self, now: Time, after: Duration) {
        if !core::mem::replace(&mut self.overload.looks, true) {
            self.timers.schedule(now + after, Alarm::Sift);
        }
    }

    /// Tells the rows what was seen, and hears who is taken. Gives the calls taken, and those that came.
    fn look_at_queues(&mut self, endpoint: &Endpoint, now: Time) -> (u64, u64) {
        let percent = self.config.sip.refusals;
        // Where the configuration has changed since nothing is too much any more.
        let wanted = self
            .config
            .sip
            .queue
            .map(|limit| limit * self.overload.waits.wanted / 100);
        let overload = &mut self.overload;
        let (mut taken, mut offered) = (0, 0);
        let all: u64 = overload.queues.iter().map(|queue| queue.taken_of().0).sum();
        let calls = overload.work.calls();
        for queue in &mut overload.queues {
            let (took, came) = queue.taken_of();
            // What a thread can do is divided among its sockets as they need it.
            let work = calls * took as f64 / all.max(1) as f64;
            taken += took;
            offered += came;
            let contact = endpoint.contact_on(queue.socket).unwrap_or_default();
            if let Some(sieve) = queue.look(&overload.rows, contact, work, wanted, percent, now) {
                overload.sieves.push_back((queue.socket, sieve));
            }
        }
        (taken, offered)
    }

    /// A sieve of ours has dropped so many.
    pub(crate) fn sifted(&mut self, dropped: u64) {
        self.drops.add(engine::DropReason::SipUnread, dropped);
        self.counters.unread += dropped;
        self.overload.unread += dropped;
    }

    /// Looks whether the overload is over.
    pub(crate) fn calm(&mut self, now: Time) {
        let Some(last) = self.overload.last else {
            return;
        };
        let over = last + CALM;
        if now < over || self.overload.sifts() || self.overload.told.holds_back() {
            self.timers.schedule(over.max(now + LOOK), Alarm::Calm);
            return;
        }
        self.overload.last = None;
        self.overload.queues.clear();
        self.overload.rows.calm();
        self.overload.told = Told::default();
        self.overload.onset = Onset::default();
        let refused = core::mem::take(&mut self.overload.shed);
        let unread = core::mem::take(&mut self.overload.unread);
        self.events.tell(now, || Note::Overload {
            state: "ended".to_owned(),
            waited: 0,
            refused,
            unread,
        });
    }
}

/// `urn:service:sos` and what is below it (RFC 5031 section 4.2).
pub(crate) fn calls_for_help(uri: &[u8]) -> bool {
    const SOS: &[u8] = b"urn:service:sos";
    uri.get(..SOS.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(SOS))
        && matches!(uri.get(SOS.len()), None | Some(b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_for_help_are_known() {
        for (uri, help) in [
            ("urn:service:sos", true),
            ("URN:Service:SOS.fire", true),
            ("urn:service:sosnot", false),
            ("sip:sos@x", false),
        ] {
            assert_eq!(calls_for_help(uri.as_bytes()), help, "{uri}");
        }
    }
}
