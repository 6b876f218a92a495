//! State and counters of the border, as plain values.

use crate::admission::{CostPart, Price};
use crate::border::Border;
use crate::calls::key::CallSlot;
use crate::calls::{Call, CallStage};
use crate::counters::BorderCounters;
use anchor::Side;
use engine::{Hundredths, ReportedJitter, Time};
use wire::sip::NameAddr;

/// Sizes of all tables of the border. Tests check them for leaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BorderCensus {
    /// Tables of the endpoint.
    pub sip: sip::Census,
    /// Calls.
    pub calls: usize,
    /// Name lookups in progress.
    pub lookups: usize,
    /// Out-of-dialog requests that await a response.
    pub outside: usize,
    /// Forwarded subscriptions.
    pub subscriptions: usize,
    /// Participants of conferences.
    pub participants: usize,
    /// Media port pairs held by calls.
    pub ports: usize,
    /// Sessions in the forwarder.
    pub sessions: usize,
    /// Media sockets held by calls.
    pub sockets_busy: usize,
    /// Open media sockets, including idle ones.
    pub sockets_open: usize,
    /// Calls with media at media nodes, and pending commands about calls.
    pub at_nodes: usize,
    /// Calls whose media quality is recorded in intervals.
    pub quality_intervals: usize,
    /// Timers of calls.
    pub timers: usize,
    /// Memory of admitted calls in KiB.
    pub admitted: u64,
    /// CPU time of admitted calls in microseconds per second.
    pub working: u64,
    /// Calls counted on trunks.
    pub trunk_calls: u64,
    /// Transfers between workers, and dialogs that moved to another worker; of all workers.
    pub moved: usize,
    /// Registered users of all workers.
    pub registrations: usize,
}

impl BorderCensus {
    /// Whether no call and nothing that belongs to a call is left.
    pub fn is_quiet(&self) -> bool {
        self.sip.is_quiet()
            && *self
                == BorderCensus {
                    sip: self.sip,
                    sockets_open: self.sockets_open,
                    registrations: self.registrations,
                    ..BorderCensus::default()
                }
    }
}

/// Media received from one side of a call in progress, in its last interval of quality (`[store] quality_interval_s`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveMedia {
    /// Name of the codec, by session description.
    pub codec: Option<String>,
    /// Packets lost before they arrived here or at the media node, percent of those sent.
    pub loss_percent: Option<Hundredths>,
    /// Mean interarrival jitter (RFC 3550), milliseconds.
    pub jitter_ms: Option<ReportedJitter>,
    /// Voice quality by the E-model: MOS-CQE, 1 to 4.5.
    pub mos: Option<Hundredths>,
}

/// A call, as a plain value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallInfo {
    /// Number.
    pub number: u64,
    /// State.
    pub stage: CallStage,
    /// Call-IDs of the caller's and the callee's leg, if they exist.
    pub call_ids: [Option<String>; 2],
    /// Address in From, and in To, of the caller's leg.
    pub from: String,
    /// See `from`.
    pub to: String,
    /// Transports and addresses of the peers.
    pub addresses: [Option<String>; 2],
    /// Names of the interfaces.
    pub interfaces: [String; 2],
    /// Names of the trunks.
    pub trunks: [Option<String>; 2],
    /// When the INVITE arrived.
    pub offered_at: Time,
    /// When it was answered.
    pub answered_at: Option<Time>,
    /// Whether its media is anchored at the border or a media node.
    pub anchored: bool,
    /// Media of caller and callee.
    pub media: [LiveMedia; 2],
    /// Values stored by header rules.
    pub tags: Vec<(String, String)>,
}

impl Border {
    fn live_media(&self, slot: CallSlot, call: u64) -> [LiveMedia; 2] {
        let session = self.parts.calls.key_of(slot).0;
        let Some(latest) = self.parts.quality_intervals.latest(session, call) else {
            return Default::default();
        };
        latest.each_ref().map(|side| LiveMedia {
            codec: side.codec.clone(),
            loss_percent: side.loss_percent,
            jitter_ms: side.jitter_ms,
            mos: side.mos,
        })
    }

    /// Sizes of all tables.
    pub fn census(&self) -> BorderCensus {
        let parts = &self.parts;
        BorderCensus {
            sip: self.endpoint.census(),
            calls: parts.calls.len(),
            lookups: parts.resolver.waiting(),
            outside: parts.out_of_dialog.pending.len(),
            subscriptions: parts.out_of_dialog.subscriptions.len(),
            participants: parts.conferences.participants(),
            ports: parts.media.plane.ports_in_use(),
            sessions: parts.media.plane.sessions,
            sockets_busy: parts.media.plane.sockets.busy(),
            sockets_open: parts.media.plane.sockets.open(),
            at_nodes: parts.media_nodes.relayed_calls + parts.media_nodes.pending_commands(),
            quality_intervals: parts.quality_intervals.len(),
            // Timers of our registrations do not belong to calls.
            timers: parts
                .ctx
                .timers
                .len()
                .saturating_sub(parts.keep_alives.len()),
            admitted: parts.admission.reservations.reserved().memory,
            working: parts.admission.reservations.reserved().processor,
            trunk_calls: parts.trunks.all_calls(),
            moved: parts.worker.open_transfers() + self.endpoint.moved_dialogs(),
            registrations: parts.registrar.location.len(),
        }
    }

    /// Use of memory and CPU time by calls, registrations and handshakes.
    pub fn taken(&mut self, now: Time) -> [(CostPart, Price); CostPart::ALL.len()] {
        self.parts.ctx.now = now;
        self.parts.reserved()
    }

    /// Counters since the start.
    pub fn counters(&self) -> &BorderCounters {
        &self.parts.ctx.counters
    }

    /// The calls in progress, ordered by number.
    pub fn calls(&self) -> Vec<CallInfo> {
        self.calls_after(None, usize::MAX)
    }

    /// The calls in progress with higher numbers than `after`, ordered by number, at most `limit`: a page costs the
    /// copies of its calls, not of all.
    pub fn calls_after(&self, after: Option<u64>, limit: usize) -> Vec<CallInfo> {
        let parts = &self.parts;
        let all = parts.calls.iter().map(|(_, call)| call.number);
        let mut numbers: Vec<u64> = all
            .filter(|number| after.is_none_or(|after| *number > after))
            .collect();
        if limit < numbers.len() {
            numbers.select_nth_unstable(limit);
            numbers.truncate(limit);
        }
        let Some(last) = numbers.iter().copied().max() else {
            return Vec::new();
        };
        let mut calls: Vec<CallInfo> = parts
            .calls
            .iter()
            .filter(|(_, call)| {
                call.number <= last && after.is_none_or(|after| call.number > after)
            })
            .map(|(slot, call)| self.call_info(slot, call))
            .collect();
        calls.sort_by_key(|call| call.number);
        calls
    }

    /// A call of this worker as a plain value.
    pub(crate) fn call_info(&self, slot: CallSlot, call: &Call) -> CallInfo {
        let call_id = |side| {
            let leg = call.leg(side)?;
            let id = self.endpoint.call_id_of(leg)?;
            Some(String::from_utf8_lossy(id).into_owned())
        };
        let parts = &self.parts;
        let interface = |side| {
            parts
                .ctx
                .config
                .interface(*call.interfaces.get(side))
                .map_or_else(String::new, |interface| interface.name.clone())
        };
        let trunk = |side| {
            let trunk = parts.ctx.config.trunk((*call.trunks.get(side))?)?;
            Some(trunk.name.clone())
        };
        let address = |side| {
            let flow = self.endpoint.flow_of(call.leg(side)?)?;
            Some(crate::headers::address_of(&flow))
        };
        let parties = call
            .leg(Side::Caller)
            .and_then(|leg| self.endpoint.addresses_of(leg));
        let text = |address: &[u8]| {
            let parsed = NameAddr::parse(address);
            let uri = parsed.as_ref().map_or(address, |address| address.uri);
            String::from_utf8_lossy(uri).into_owned()
        };
        let (to, from) =
            parties.map_or_else(Default::default, |(own, peer)| (text(own), text(peer)));
        CallInfo {
            from,
            to,
            addresses: Side::BOTH.map(address),
            number: call.number,
            stage: call.stage,
            call_ids: Side::BOTH.map(call_id),
            interfaces: Side::BOTH.map(interface),
            trunks: Side::BOTH.map(trunk),
            offered_at: call.summary.offered_at,
            answered_at: call.summary.answered_at,
            anchored: call.media.is_some(),
            media: self.live_media(slot, call.number),
            tags: call
                .headers
                .tags
                .iter()
                .flat_map(|tags| tags.iter())
                .map(|(name, value)| (name.to_string(), value.to_string()))
                .collect(),
        }
    }
}
