//! Session timers (RFC 4028).

use crate::Endpoint;
use crate::api::{Ending, Handler, Indication, LegId, LegState, MessageContent};
use crate::compose::Lines;
use crate::dialog::LegDialog;
use crate::session_state::{FLOOR, SessionRequest};
use crate::timer::Timer;
use core::time::Duration;
use engine::Time;
use wire::sip::{HeaderId, Message, Method, Refresher};

/// Time until another attempt, if a refresh cannot be sent.
const BLOCKED_WAIT: Duration = Duration::from_secs(2);
/// Shortest time until another attempt after a 5xx: Retry-After may be 0.
const RETRY_FLOOR: Duration = Duration::from_secs(1);
/// Time until another attempt after a refusal that names none.
const FAILED_WAIT: Duration = Duration::from_secs(10);

impl Endpoint {
    pub(crate) fn our_min_se(&self) -> u32 {
        self.config.session.map_or(FLOOR, |s| s.min_se.max(FLOOR))
    }

    /// Session timer headers of a request (section 9).
    pub(crate) fn session_request(&self, request: &Message<'_>) -> SessionRequest {
        let expires = request.session_expires().ok();
        SessionRequest {
            seconds: expires.map_or(0, |e| e.seconds),
            min_se: request.min_se().unwrap_or(0),
            refresher: expires.and_then(|e| e.refresher),
            supported: request.lists(HeaderId::Supported, b"timer"),
        }
    }

    /// Whether a request has a shorter interval than we accept; only a client with `timer` support gets a 422 (section
    /// 9).
    pub(crate) fn is_interval_too_small(&self, request: &SessionRequest) -> bool {
        request.supported && request.seconds != 0 && request.seconds < self.our_min_se()
    }

    /// Session-Expires and Min-SE of a request that opens or refreshes a session (section 7.1).
    pub(crate) fn write_session_request(&mut self, id: LegId) {
        let Some(leg) = self.legs.get(id.slot as usize) else {
            return;
        };
        let ours = self.config.session;
        let seconds = match (leg.session.seconds, ours) {
            (0, Some(ours)) => ours.expires,
            (agreed, _) => agreed,
        };
        if seconds == 0 {
            return;
        }
        let min_se = leg.session.min_se(ours.map_or(0, |s| s.min_se));
        let seconds = seconds.max(min_se);
        let mut lines = Lines {
            out: &mut self.net.out.arena,
        };
        lines
            .name(HeaderId::SessionExpires)
            .digits(u64::from(seconds));
        // Within a session the refresher does not change; in the first request the peer may choose.
        if leg.session.seconds != 0 {
            lines.raw(match leg.session.we_refresh {
                true => b";refresher=uac",
                false => b";refresher=uas",
            });
        }
        lines.end();
        if min_se > FLOOR {
            lines.number(HeaderId::MinSe, u64::from(min_se));
        }
    }

    /// Writes Session-Expires and Require of our 2xx to a request with these headers and starts the session (section
    /// 9).
    pub(crate) fn write_session_response(&mut self, id: LegId, request: &SessionRequest) {
        let Some(before) = self.leg(id).map(|leg| leg.session) else {
            return;
        };
        // Without a configuration we accept the peer's interval. A response without an interval would switch off the
        // timer (section 7.2), so that a request without one continues the session as it is.
        let theirs = match request.seconds {
            0 => before.seconds,
            seconds => seconds,
        };
        let Some(ours) = self.config.session.or({
            (theirs != 0).then_some(crate::SessionConfig {
                expires: theirs,
                min_se: FLOOR,
            })
        }) else {
            return;
        };
        // The requested interval may be lowered, not below its Min-SE, and never raised (section 9).
        let preferred = ours.expires.max(ours.min_se).max(FLOOR);
        let seconds = match request.seconds {
            0 => preferred,
            // Shorter intervals are invalid (section 4); a client without `timer` gets no 422 for them.
            requested => requested.max(FLOOR).min(preferred.max(request.min_se)),
        };
        // A client without `timer` cannot refresh. Otherwise its choice applies, and by default the client refreshes.
        let we_refresh = !request.supported
            || request.refresher == Some(Refresher::Uas)
            || (request.seconds == 0 && before.seconds != 0 && before.we_refresh);
        let mut lines = Lines {
            out: &mut self.net.out.arena,
        };
        lines
            .name(HeaderId::SessionExpires)
            .digits(u64::from(seconds))
            .raw(match we_refresh {
                true => b";refresher=uas",
                false => b";refresher=uac",
            })
            .end();
        if request.supported {
            lines.raw(b"Require: timer\r\n");
        }
        self.start_session(id, seconds, we_refresh);
    }

    /// Applies the session interval of a 2xx to our request (section 7.2).
    pub(crate) fn apply_session_response(&mut self, id: LegId, response: &Message<'_>) {
        match response.session_expires() {
            Ok(agreed) if agreed.seconds > 0 => {
                let we_refresh = agreed.refresher != Some(Refresher::Uas);
                self.start_session(id, agreed.seconds, we_refresh);
            }
            _ => self.stop_session(id),
        }
    }

    fn stop_session(&mut self, id: LegId) {
        if let Some(leg) = self.leg_mut(id) {
            leg.session.seconds = 0;
            leg.session.refreshing = false;
            if let Some(timer) = leg.session.timer.take() {
                self.wheel.cancel(timer);
            }
        }
    }

    /// Starts a session of `seconds` from now: refresh at half of it, or end it shortly before its expiry (section 10:
    /// the smaller of 32 s and a third before).
    fn start_session(&mut self, id: LegId, seconds: u32, we_refresh: bool) {
        let now = self.now;
        // A peer must not make us refresh more often than the smallest valid interval requires.
        let seconds = seconds.max(FLOOR);
        let length = Duration::from_secs(u64::from(seconds));
        let Some(leg) = self.leg_mut(id) else {
            return;
        };
        leg.session.seconds = seconds;
        leg.session.we_refresh = we_refresh;
        leg.session.refreshing = false;
        leg.session.expires = now + (length - (length / 3).min(Duration::from_secs(32)));
        let at = match we_refresh {
            true => now + length / 2,
            false => leg.session.expires,
        };
        self.arm_session(id, at);
    }

    /// Restarts the timer of a session that another worker had.
    pub(crate) fn resume_session(&mut self, id: LegId) {
        let now = self.now;
        let Some(leg) = self.leg_mut(id).filter(|leg| leg.session.seconds != 0) else {
            return;
        };
        leg.session.refreshing = false;
        let length = Duration::from_secs(u64::from(leg.session.seconds));
        let left = leg.session.expires.since(now) + (length / 3).min(Duration::from_secs(32));
        let at = match leg.session.we_refresh {
            true => now + left.saturating_sub(length / 2),
            false => leg.session.expires,
        };
        self.arm_session(id, at);
    }

    pub(crate) fn arm_session(&mut self, id: LegId, at: Time) {
        let timer = self.wheel.schedule(at, Timer::Session(id.slot));
        match self.leg_mut(id) {
            Some(leg) => {
                if let Some(old) = leg.session.timer.replace(timer) {
                    self.wheel.cancel(old);
                }
            }
            None => {
                self.wheel.cancel(timer);
            }
        }
    }

    /// Session timer: refresh, or expiry.
    pub(crate) fn session_timer(&mut self, slot: u32, handler: &mut dyn Handler) {
        let now = self.now;
        let Some(leg) = self.legs.get_mut(slot as usize) else {
            return;
        };
        leg.session.timer = None;
        let id = LegId {
            slot,
            check: leg.cookie as u32,
        };
        let expires = leg.session.expires;
        if leg.session.seconds == 0 || leg.state == LegState::Ending {
            return;
        }
        if now >= expires {
            handler.on_indication(self, Indication::SessionExpired { leg: id }, now);
            self.expire(id, handler);
            return;
        }
        self.arm_session(id, expires);
        let Some(leg) = self.leg_mut(id).filter(|leg| !leg.session.refreshing) else {
            return;
        };
        leg.session.refreshing = true;
        if !leg.features.update {
            handler.on_indication(self, Indication::RefreshDue { leg: id }, now);
            return;
        }
        self.refresh(id);
    }

    /// Refreshes by UPDATE without offer; retries soon if another request is pending.
    pub(crate) fn refresh(&mut self, id: LegId) {
        let dialog = LegDialog::confirmed(id);
        let content = MessageContent::default();
        let sent = self.start_leg_request(dialog, Method::Update, &content, true);
        if sent.is_err() {
            self.refresh_again(id, BLOCKED_WAIT);
        }
    }

    /// Schedules another refresh after `wait`, at the latest when the session expires.
    fn refresh_again(&mut self, id: LegId, wait: Duration) {
        let now = self.now;
        if let Some(leg) = self.leg_mut(id).filter(|leg| leg.session.seconds != 0) {
            leg.session.refreshing = false;
            let at = (now + wait).min(leg.session.expires);
            self.arm_session(id, at);
        }
    }

    /// Repeats [`Indication::RefreshDue`] soon, because the handler cannot send the re-INVITE now.
    pub fn refresh_later(&mut self, leg: LegId, now: Time) {
        self.now = now;
        if self.refresh_is_due(leg) {
            self.refresh_again(leg, BLOCKED_WAIT);
        }
    }

    /// Our refresh by UPDATE could not be sent: it is repeated, as after a 503. The peer may be reached again before
    /// the session expires, over another connection for example.
    pub(crate) fn refresh_not_sent(&mut self, id: LegId) {
        self.refresh_again(id, FAILED_WAIT);
    }

    /// The re-INVITE that refreshes the session of a leg was refused: [`Indication::RefreshDue`] is repeated as for a
    /// refresh by UPDATE, after a 491 or a 5xx. After other refusals the session expires.
    pub fn refresh_refused(&mut self, leg: LegId, response: &Message<'_>, now: Time) {
        self.now = now;
        if self.refresh_is_due(leg)
            && let Some(wait) = self.refresh_wait(leg, response)
        {
            self.refresh_again(leg, wait);
        }
    }

    /// Time until another refresh after a refusal, if one is worthwhile (RFC 3261 section 14.1, RFC 4028 section 10).
    fn refresh_wait(&mut self, id: LegId, response: &Message<'_>) -> Option<Duration> {
        match response.status() {
            491 => self.glare(id),
            500..=599 => {
                let after = response.retry_after().ok();
                let after = after.map(|seconds| Duration::from_secs(u64::from(seconds)));
                Some(after.map_or(FAILED_WAIT, |after| after.max(RETRY_FLOOR)))
            }
            _ => None,
        }
    }

    /// Our refresh by UPDATE was refused: after 422, 491 and 5xx retry later, after other 4xx by re-INVITE, otherwise
    /// let the session expire. A 422 with a larger interval was followed by a retry at once
    /// ([`Endpoint::retry_request`]).
    pub(crate) fn refresh_failed(&mut self, id: LegId, response: &Message<'_>) {
        let wait = match response.status() {
            422 => {
                let requested = response.min_se().unwrap_or(FLOOR);
                if let Some(leg) = self.leg_mut(id) {
                    leg.session.min_se = leg.session.min_se.max(requested);
                }
                Some(FAILED_WAIT)
            }
            400..=421 | 423..=490 | 492..=499 | 501 => {
                // No support for UPDATE after all, or for one without a description: the next refresh is a re-INVITE
                // by the handler.
                if let Some(leg) = self.leg_mut(id) {
                    leg.features.update = false;
                }
                Some(Duration::ZERO)
            }
            _ => self.refresh_wait(id, response),
        };
        match (wait, self.leg_mut(id)) {
            (Some(wait), _) => self.refresh_again(id, wait),
            (None, Some(leg)) => leg.session.refreshing = false,
            (None, None) => {}
        }
    }

    fn expire(&mut self, id: LegId, handler: &mut dyn Handler) {
        let Some(leg) = self.leg_mut(id) else {
            return;
        };
        if leg.state == LegState::Ending {
            return;
        }
        self.bye_and_end(id, Ending::SessionExpired, handler);
    }
}
