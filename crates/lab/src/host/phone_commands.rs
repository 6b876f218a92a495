//! Commands to a phone, and its reports.

use super::calls::HostCallKey;
use super::phone::{PhoneOccurrence, PhoneRefusal};
use super::{HostState, LabHost};
use engine::Time;

impl LabHost {
    /// The next occurrence; none unless the host is a phone.
    pub fn next_phone_event(&mut self) -> Option<PhoneOccurrence> {
        if let Some(digit) = self.inner.media.take_digit() {
            return Some(PhoneOccurrence::Digit(digit));
        }
        self.inner.phone_events.pop_front()
    }

    /// Ends its calls: BYE, CANCEL, or a refusal. It takes no further call.
    pub fn hang_up(&mut self, now: Time) {
        self.inner.plan.answers = None;
        for key in self.inner.call_keys() {
            self.inner.hang_up(&mut self.endpoint, key, now);
            self.inner.cancel(&mut self.endpoint, key, false, now);
            self.inner.decline(&mut self.endpoint, key, now);
        }
    }

    /// Puts the established call on hold, or resumes it.
    ///
    /// # Errors
    /// [`PhoneRefusal::NoCall`].
    pub fn hold(&mut self, hold: bool, now: Time) -> Result<(), PhoneRefusal> {
        let key = self.inner.established_call().ok_or(PhoneRefusal::NoCall)?;
        self.inner.put_on_hold(&mut self.endpoint, key, hold, now);
        Ok(())
    }

    /// Whether the established call is on hold by our request.
    pub fn is_holding(&self) -> bool {
        let call = self.inner.established_call();
        call.is_some_and(|key| self.inner.is_held(key))
    }

    /// Transfers the established call to `uri` without consultation (RFC 5589 section 6.1).
    ///
    /// # Errors
    /// [`PhoneRefusal::NoCall`], [`PhoneRefusal::Dialog`].
    pub fn transfer(&mut self, uri: &str, now: Time) -> Result<(), PhoneRefusal> {
        let key = self.inner.established_call().ok_or(PhoneRefusal::NoCall)?;
        self.inner.refer(&mut self.endpoint, key, uri, now)
    }

    /// Sends digits as telephone events of 160 ms each (RFC 4733).
    ///
    /// # Errors
    /// [`PhoneRefusal`].
    pub fn send_digits(&mut self, digits: &str) -> Result<(), PhoneRefusal> {
        let key = self.inner.established_call().ok_or(PhoneRefusal::NoCall)?;
        let session = self.inner.session_of(key).ok_or(PhoneRefusal::NoCall)?;
        self.inner.media.send_digits(session, digits)
    }

    /// Digits that were sent, those of calls that have ended included.
    pub fn digits_sent(&self) -> u64 {
        self.inner.media.digits_sent()
    }

    /// Moves the audio recorded since the last call to the end of `out`; returns its sample rate in Hz.
    pub fn take_recording(&mut self, out: &mut Vec<i16>) -> Option<u32> {
        self.inner.media.take_recording(out)
    }
}

impl HostState {
    pub(crate) fn report(&mut self, event: PhoneOccurrence) {
        if self.plan.phone.is_some() {
            self.phone_events.push_back(event);
        }
    }

    /// Whether a phone is in a call already.
    pub(crate) fn is_phone_busy(&self) -> bool {
        self.plan.phone.is_some() && !self.calls.is_empty()
    }

    fn established_call(&self) -> Option<HostCallKey> {
        self.call_keys().into_iter().find(|key| self.is_up(*key))
    }
}
