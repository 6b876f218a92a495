//! Media of calls: sockets that open or fail, packets and timeouts of the keying, and the end of calls whose media
//! failed.

use crate::calls::Call;
use crate::calls::conference::ConferenceCalls;
use crate::calls::key::{CallKey, CallSlot};
use crate::calls::table::OngoingCalls;
use crate::calls::transfer::TransferControl;
use crate::components::{Calls, Components};
use crate::shared::{Alarm, Ctx};
use anchor::security::call::{MediaNotice, MediaStatus, unexpected_reason};
use anchor::sockets::MEDIA_BASE;
use anchor::{CallMedia, PortReplacement, Side};
use engine::{DropReason, EventKind, Reason, SocketId};
use std::net::SocketAddr;

impl OngoingCalls {
    pub(crate) fn media_latched(
        &mut self,
        ctx: &mut Ctx,
        key: CallKey,
        side: u8,
        address: SocketAddr,
    ) {
        let now = ctx.now;
        let Some(call) = self.slot_of(key).and_then(|slot| self.get(slot)) else {
            return;
        };
        let number = call.number;
        let side = if side == 0 {
            Side::Caller
        } else {
            Side::Callee
        };
        ctx.events.tell(now, || EventKind::MediaLatched {
            call: number,
            side: side.name().to_owned(),
            address: address.to_string(),
        });
    }
}

/// A socket that could not be opened.
#[derive(Clone, Copy, Debug)]
struct FailedSocket<'a> {
    socket: SocketId,
    place: Option<SocketAddr>,
    error: &'a str,
}

impl FailedSocket<'_> {
    fn address(&self) -> String {
        self.place
            .map_or_else(String::new, |address| address.to_string())
    }

    fn event(&self, purpose: &str) -> EventKind {
        EventKind::SocketFailed {
            purpose: purpose.to_owned(),
            address: self.address(),
            error: self.error.to_owned(),
        }
    }
}

impl Calls<'_> {
    /// The forwarder refused a session: the call is ended, because it would have no audio.
    pub(crate) fn media_refused(&mut self, key: CallKey) {
        if let Some(slot) = self.parts.calls.slot_of(key) {
            self.give_up(slot, Reason::MediaRefused);
        }
    }

    /// A media socket is open: resumes the call that waited for it.
    pub(crate) fn media_opened(&mut self, socket: SocketId) {
        let now = self.parts.ctx.now;
        let plane = &mut self.parts.media.plane;
        let waiter = plane.sockets.opened(socket, now, &mut plane.work);
        if let Some(slot) = waiter.and_then(|key| self.parts.calls.slot_of(CallKey(key))) {
            self.resume_call(slot);
        }
    }

    /// Sends the messages of a call that waited for its media sockets.
    fn resume_call(&mut self, slot: CallSlot) {
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let plane = &mut self.parts.media.plane;
        if call
            .media
            .anchored_mut()
            .is_none_or(|media| media.defer_until_open(plane))
        {
            return;
        }
        if call.kind.participant().is_some() {
            return ConferenceCalls::new(self).participant_sockets_opened(slot);
        }
        if let Some(held) = call.requests.held.take() {
            self.pass_held(slot, &held);
        }
        self.call_opened_hops(slot);
    }

    /// A media socket could not be opened: the call uses another port pair, or is ended. One line is logged for a call,
    /// with the first port that failed.
    fn media_failed(&mut self, slot: CallSlot, failed: FailedSocket<'_>) {
        let now = self.parts.ctx.now;
        let socket = failed.socket;
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let number = call.number;
        let is_participant = call.kind.participant().is_some();
        let media = call.media.anchored();
        let logged = media.is_some_and(CallMedia::has_replaced_pairs);
        let plane = &mut self.parts.media.plane;
        let replaced = call
            .media
            .anchored_mut()
            .map_or(PortReplacement::Foreign, |media| {
                media.replace_pair(plane, socket, failed.error)
            });
        let events = &mut self.parts.ctx.events;
        if !logged {
            events.tell(now, || match &replaced {
                PortReplacement::By(instead) | PortReplacement::Reannounced(instead) => {
                    EventKind::MediaPortInUse {
                        call: number,
                        address: failed.address(),
                        error: failed.error.to_owned(),
                        replacement: instead.to_string(),
                    }
                }
                _ => failed.event("media"),
            });
        }
        match replaced {
            PortReplacement::Foreign => {}
            PortReplacement::By(_) => {
                self.parts.ctx.counters.ports_taken += 1;
                self.resume_call(slot);
            }
            PortReplacement::Reannounced(_) if is_participant => {
                self.give_up(slot, Reason::MediaPort);
            }
            PortReplacement::Reannounced(_) => {
                self.parts.ctx.counters.ports_taken += 1;
                TransferControl::new(self).announce_ports_later(slot, 0);
            }
            PortReplacement::WithoutRtcp => {}
            PortReplacement::Exhausted(pool) => {
                self.parts.media.ports_exhausted(&mut self.parts.ctx, pool);
                self.give_up(slot, Reason::MediaPort);
            }
            PortReplacement::AllFail | PortReplacement::Announced => {
                self.give_up(slot, Reason::MediaPort);
            }
        }
    }

    /// A socket could not be opened: a call that waits for it uses another one, or is ended.
    pub(crate) fn open_failed(&mut self, socket: SocketId, error: &str) {
        if self.parts.is_for_nodes(socket) {
            return self.parts.command_socket_failed(socket, error);
        }
        let now = self.parts.ctx.now;
        if let Some(is_logged) = self.parts.resolver.socket_failed(socket, now) {
            let failed = FailedSocket {
                socket,
                place: None,
                error,
            };
            if is_logged {
                self.parts.ctx.events.tell(now, || failed.event("dns"));
            }
            return;
        }
        let (address, waiter) = match socket.0 >= MEDIA_BASE {
            true => self.parts.media.plane.sockets.failed(socket).unzip(),
            false => {
                let Components { ctx, listeners, .. } = &mut *self.parts;
                (listeners.open_failed(ctx, socket), None)
            }
        };
        let failed = FailedSocket {
            socket,
            place: address,
            error,
        };
        if socket.0 < MEDIA_BASE {
            return self.parts.ctx.events.tell(now, || failed.event("sip"));
        }
        let waiter = waiter.flatten();
        let waiting = waiter.and_then(|key| self.parts.calls.slot_of(CallKey(key)));
        let user = waiting.or_else(|| {
            let mut calls = self.parts.calls.iter();
            let uses = |call: &Call| {
                call.media
                    .anchored()
                    .is_some_and(|media| media.uses(socket))
            };
            calls.find(|(_, call)| uses(call)).map(|(slot, _)| slot)
        });
        match user {
            Some(slot) => self.media_failed(slot, failed),
            // Its call has ended, and needs it no more; the line of that call has been logged.
            None if waiter.is_some() => {}
            None => self.parts.ctx.events.tell(now, || failed.event("media")),
        }
    }

    /// Schedules requested timeouts, writes events, and ends calls whose keying has failed.
    pub(crate) fn process_media_notices(&mut self) {
        while let Some((session, at)) = self.parts.media.plane.keying.next_timeout_request() {
            // The call may have ended in the meantime.
            let media = self
                .parts
                .calls
                .slot_of(CallKey(session))
                .and_then(|slot| self.parts.calls.get_mut(slot)?.media.anchored_mut());
            let Some(media) = media else { continue };
            let timer = self
                .parts
                .ctx
                .timers
                .schedule(at, Alarm::Keying(CallKey(session)));
            if let Some(later) = media.keying_timer.replace(timer) {
                self.parts.ctx.timers.cancel(later);
            }
        }
        self.parts
            .media
            .plane
            .keying
            .count_drops(&mut self.parts.ctx.drops);
        while let Some(notice) = self.parts.media.plane.keying.next_notice() {
            self.process_notice(notice);
        }
    }

    fn process_notice(&mut self, notice: MediaNotice) {
        let now = self.parts.ctx.now;
        if let MediaStatus::Transcoded(kinds) = notice.status {
            self.parts
                .reserve_transcoding(CallKey(notice.session), kinds);
        }
        if let MediaStatus::Keyed(keying, suite) = notice.status {
            let line_side = (notice.line, notice.side);
            self.parts
                .reserve_srtp(CallKey(notice.session), line_side, (keying, suite));
        }
        self.parts.ctx.events.tell(now, || notice.event());
        if notice.is_fatal
            && let Some(slot) = self.parts.calls.slot_of(CallKey(notice.session))
        {
            self.give_up(slot, Reason::MediaKeys);
        }
    }

    /// Processes STUN or DTLS from a media port.
    pub(crate) fn handle_media_datagram(
        &mut self,
        socket: SocketId,
        source: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let unexpected = unexpected_reason(bytes);
        let owner = self
            .parts
            .media
            .plane
            .sockets
            .owner(socket)
            .ok_or(unexpected)?;
        let slot = self.parts.calls.slot_of(CallKey(owner)).ok_or(unexpected)?;
        let media = self.parts.calls.media_mut(slot).ok_or(unexpected)?;
        media.handle_datagram(&mut self.parts.media.plane, socket, source, bytes)
    }

    /// Handles the requested timeout of a call.
    pub(crate) fn handle_keying_timeout(&mut self, key: CallKey) {
        if let Some(slot) = self.parts.calls.slot_of(key)
            && let Some(media) = self.parts.calls.media_mut(slot)
        {
            media.handle_keying_timeout(&mut self.parts.media.plane);
        }
    }
}

/// Logs the packets of a session that were relayed by the kernel, if any.
pub(crate) fn log_kernel_relay(ctx: &mut Ctx, key: CallKey, stats: &media::forward::SessionStats) {
    let now = ctx.now;
    for flow in &stats.flows {
        let [caller, callee] = &flow.sides;
        let reception = [caller, callee].map(reception_of);
        if stats.offload_allowed && caller.received.packets + callee.received.packets > 0 {
            ctx.events.tell(now, || EventKind::MediaRelayedInKernel {
                call: key.number(),
                line: flow.line.into(),
                caller_packets: caller.received.packets,
                caller_relayed: caller.offloaded.packets,
                caller_lost: reception[0].0,
                caller_jitter_us: reception[0].1,
                callee_packets: callee.received.packets,
                callee_relayed: callee.offloaded.packets,
                callee_lost: reception[1].0,
                callee_jitter_us: reception[1].1,
            });
        }
    }
}

/// Packets lost by the sources of a side, and the mean jitter of its main source in microseconds.
fn reception_of(side: &media::forward::SideStats) -> (u64, u64) {
    let lost = side.totals().lost;
    let main = side
        .sources
        .iter()
        .max_by_key(|source| source.summary.received);
    let jitter = main.and_then(|main| main.summary.jitter_ms.as_ref());
    (
        lost,
        jitter.map_or(0, |jitter| (jitter.mean * 1_000.0) as u64),
    )
}
