//! Media security of calls: packets for the keying of a call, its timeouts, and the end of calls whose keying failed.

use super::CallKey;
use crate::border::{Alarm, Core};
use anchor::security::call::{MediaNotice, MediaStatus, unexpected_reason};
use engine::{DropReason, SocketId, Time};
use sip::Endpoint;
use std::net::SocketAddr;

impl Core {
    /// Processes STUN or DTLS from a media port.
    pub(crate) fn handle_media_datagram(
        &mut self,
        socket: SocketId,
        source: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let unexpected = unexpected_reason(bytes);
        let owner = self.plane.sockets.owner(socket).ok_or(unexpected)?;
        let slot = self.slot_of(CallKey(owner)).ok_or(unexpected)?;
        let media = self
            .calls
            .get_mut(slot)
            .and_then(|call| call.media.as_deref_mut())
            .ok_or(unexpected)?;
        media.handle_datagram(&mut self.plane, socket, source, bytes)
    }

    /// Handles the requested timeout of a call.
    pub(crate) fn handle_keying_timeout(&mut self, key: CallKey) {
        if let Some(slot) = self.slot_of(key)
            && let Some(media) = self
                .calls
                .get_mut(slot)
                .and_then(|call| call.media.as_deref_mut())
        {
            media.handle_keying_timeout(&mut self.plane);
        }
    }

    /// Schedules requested timeouts, writes events, and ends calls whose keying has failed.
    pub(crate) fn process_media_notices(&mut self, endpoint: &mut Endpoint, now: Time) {
        while let Some((session, at)) = self.plane.keying.next_timeout_request() {
            // The call may have ended in the meantime.
            let media = self
                .slot_of(CallKey(session))
                .and_then(|slot| self.calls.get_mut(slot)?.media.as_deref_mut());
            let Some(media) = media else { continue };
            let timer = self.timers.schedule(at, Alarm::Keying(CallKey(session)));
            if let Some(later) = media.keying_timer.replace(timer) {
                self.timers.cancel(later);
            }
        }
        self.plane.keying.count_drops(&mut self.drops);
        while let Some(notice) = self.plane.keying.next_notice() {
            self.process_notice(endpoint, notice, now);
        }
    }

    fn process_notice(&mut self, endpoint: &mut Endpoint, notice: MediaNotice, now: Time) {
        if let MediaStatus::Transcoded(kinds) = notice.status {
            self.reserve_transcoding(CallKey(notice.session), kinds);
        }
        if let MediaStatus::Keyed(keying, suite) = notice.status {
            let line_side = (notice.line, notice.side);
            self.reserve_srtp(CallKey(notice.session), line_side, (keying, suite), now);
        }
        self.events.tell(now, || notice.event());
        if notice.is_fatal
            && let Some(slot) = self.slot_of(CallKey(notice.session))
        {
            let reason = b"SIP;cause=488;text=\"Media keys\"";
            self.give_up(endpoint, slot, "media keys", reason, now);
        }
    }
}
