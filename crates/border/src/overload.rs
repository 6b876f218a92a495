//! More comes than can be dealt with: each datagram tells how long it lay in the socket. Where that is longer than is
//! wanted, what would begin something new is refused at once, which costs a fraction of a call, and what belongs to calls
//! that stand keeps its turn. The queue so stays as long as the limit says, and the processor has always something to do.

use crate::border::{Alarm, Core};
use core::time::Duration;
use engine::{Note, SocketId, Time};
use sip::Stateless;
use wire::sip::{HeaderId, Message, Method};

/// The queue has to be too long for this long: a machine that stood still for a moment makes up for it by itself.
const LASTING: Duration = Duration::from_millis(250);
/// After this long without a refusal it is over.
const CALM: Duration = Duration::from_secs(5);

/// How long what is dealt with now has waited, and what was refused for that.
#[derive(Debug, Default)]
pub(crate) struct Overload {
    /// Of the message that is being dealt with.
    waited: Duration,
    /// Sockets on which every message has waited too long, and since when: one that nobody writes to says nothing of another.
    above: Vec<(SocketId, Time)>,
    /// Whether that has lasted on the socket of the message that is being dealt with.
    lasts: bool,
    /// Refused since it began.
    shed: u64,
    /// The last refusal of an overload that is not over.
    last: Option<Time>,
}

impl Core {
    /// A datagram that lay in its socket for so long comes now.
    pub(crate) fn comes_after(&mut self, socket: SocketId, waited: Duration, now: Time) {
        let overload = &mut self.overload;
        overload.waited = waited;
        overload.lasts = false;
        let known = overload.above.iter().position(|(of, _)| *of == socket);
        match (self.config.sip.queue, known) {
            (Some(limit), Some(at)) if waited > limit => {
                let since = overload.above.get(at).map_or(now, |(_, since)| *since);
                overload.lasts = now.since(since) >= LASTING;
            }
            (Some(limit), None) if waited > limit => overload.above.push((socket, now)),
            (_, Some(at)) => {
                overload.above.swap_remove(at);
            }
            (_, None) => {}
        }
    }

    /// What comes now waited in no queue of ours: streams hold their senders back by themselves.
    pub(crate) fn comes_at_once(&mut self) {
        self.overload.waited = Duration::ZERO;
    }

    /// The refusal of what would begin something new, where the queue is too long; calls for help are never refused.
    pub(crate) fn shed(&mut self, request: &Message<'_>, now: Time) -> Option<Stateless> {
        let limit = self.config.sip.queue?;
        let begins = matches!(
            request.method(),
            Method::Invite
                | Method::Register
                | Method::Subscribe
                | Method::Message
                | Method::Publish
                | Method::Refer
        );
        let overload = &self.overload;
        // Once it has begun, each message is judged by its own waiting, until it is over.
        let lasts = overload.last.is_some() || overload.lasts;
        if overload.waited <= limit || !lasts || !begins || calls_for_help(request) {
            return None;
        }
        self.counters.shed += 1;
        self.overload.shed += 1;
        if self.overload.last.replace(now).is_none() {
            self.timers.schedule(now + CALM, Alarm::Calm);
            let waited = self.overload.waited;
            self.events.tell(now, || Note::Overload {
                state: "began".to_owned(),
                waited: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
                refused: 0,
            });
        }
        // Not all at the same time.
        let seconds = 1 + self.entropy.below(10);
        Some(Stateless {
            status: 503,
            reason: None,
            headers: vec![(HeaderId::RetryAfter, seconds.to_string().into_bytes())],
        })
    }

    /// Looks whether the overload is over.
    pub(crate) fn calm(&mut self, now: Time) {
        let Some(last) = self.overload.last else {
            return;
        };
        if now < last + CALM {
            self.timers.schedule(last + CALM, Alarm::Calm);
            return;
        }
        self.overload.last = None;
        let refused = core::mem::take(&mut self.overload.shed);
        self.events.tell(now, || Note::Overload {
            state: "ended".to_owned(),
            waited: 0,
            refused,
        });
    }
}

/// `urn:service:sos` and what is below it (RFC 5031 section 4.2).
fn calls_for_help(request: &Message<'_>) -> bool {
    const SOS: &[u8] = b"urn:service:sos";
    let uri = request.request_uri();
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
            let text =
                format!("INVITE {uri} SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\n\r\n");
            let message = Message::parse(text.as_bytes()).unwrap();
            assert_eq!(calls_for_help(&message), help, "{uri}");
        }
    }
}
