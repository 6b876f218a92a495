//! Quality statistics of ended calls, logged with their end after the forwarder or the media node has reported them.
//!
//! Nothing is computed per packet: the statistics of sources are read out once.

use crate::admission::MediaPath;
use crate::calls::ended::{EndedBy, EndedCall, ReceptionQuality, SideTotals, StatisticsSource};
use crate::calls::key::CallSlot;
use crate::calls::rated_line::{PACKET_MS, rated_line, round_trip_of};
use crate::calls::{Call, CallStage};
use crate::components::Components;
use crate::ng_client::NodeId;
use crate::ng_client::relay::NodeRelay;
use anchor::encodings::{encoding_of, main_of};
use anchor::{CallMedia, Encodings, Side};
use config::TrunkId;
use engine::{Hundredths, Reason, ReportedJitter, Time};
use media::MediaCommand;
use media::forward::{SessionStats, SideStats, SourceStats};
use media::quality::{Observation, codec_quality, rate};

/// Calls that are queried in a tick, at most, while the kernel relays media: it returns the streams of a call for that,
/// and gets them again. With more calls than that, those with the longest interval come first.
const KERNEL_QUERIES: usize = 5;
/// Calls at media nodes that are queried in a tick, at most. With more, those with the longest interval come first.
const NODE_QUERIES: usize = 100;

impl Components {
    /// Logs the end of a call, or postpones it until the pending report; once.
    pub(crate) fn log_call_end(
        &mut self,
        slot: CallSlot,
        pending: StatisticsSource,
        encodings: Encodings,
    ) {
        let now = self.ctx.now;
        let path = self.media.paths.offload.path;
        let config = &self.ctx.config;
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if core::mem::replace(&mut call.summary.logged, true) {
            return;
        }
        let (by, why) = call.summary.end.unwrap_or((EndedBy::Border, Reason::Done));
        let ended = EndedCall {
            by,
            why,
            status: call.summary.status,
            // An answer that could not be passed on was none for the caller, who got a refusal.
            duration_ms: call
                .summary
                .answered_at
                .filter(|_| call.summary.status == 200)
                .map(|answered| now.since(answered).as_millis() as u64),
            trunk: config.name_of_trunk(trunk_of(call)).map(Into::into),
            path: path_of(call, path),
            encodings,
            codec: negotiated_codec(call),
        };
        let number = call.number;
        match pending {
            StatisticsSource::Nothing => {
                ended.report(&mut self.ctx, number, None, Default::default())
            }
            StatisticsSource::Forwarder | StatisticsSource::Node => {
                self.calls.ended.insert(number, Box::new(ended));
            }
        }
    }

    /// The last report of the forwarder about a call; `None` if it had no session.
    pub(crate) fn record_session_statistics(&mut self, number: u64, stats: Option<&SessionStats>) {
        let Some(ended) = self.calls.ended.remove(&number) else {
            return;
        };
        let kernel = stats.is_some_and(|stats| {
            let mut sides = stats.flows.iter().flat_map(|flow| &flow.sides);
            sides.any(|side| side.offloaded.packets > 0)
        });
        let path = kernel.then_some("kernel");
        let mut reception = stats.map_or_else(Default::default, |stats| {
            reception_of(stats, &ended.encodings)
        });
        if let Some(stats) = stats {
            for (side, reception) in Side::BOTH.into_iter().zip(&mut reception) {
                reception.totals = totals_of(stats, side);
            }
        }
        ended.report(&mut self.ctx, number, path, reception);
        self.worker.finish_drain_if_idle(&mut self.ctx, &self.calls);
    }

    /// The last report of a media node about a call.
    pub(crate) fn record_node_statistics(&mut self, number: u64, reception: [ReceptionQuality; 2]) {
        self.quality_intervals.remove_at_node(number);
        if let Some(ended) = self.calls.ended.remove(&number) {
            ended.report(&mut self.ctx, number, None, reception);
            self.worker.finish_drain_if_idle(&mut self.ctx, &self.calls);
        }
    }
}

/// The codec that the last answer has chosen, or our answer to a participant of a conference.
fn negotiated_codec(call: &Call) -> Option<Box<str>> {
    let voice = call.media.anchored().and_then(CallMedia::voice);
    let of_participant = voice.map(|(_, voice)| voice.format.kind().name().into());
    call.summary.codec.clone().or(of_participant)
}

/// The trunk of the target tried last, otherwise that of the caller.
fn trunk_of(call: &Call) -> Option<TrunkId> {
    (*call.trunks.get(Side::Callee))
        .or(call.last_trunk)
        .or(*call.trunks.get(Side::Caller))
}

/// Totals of a side of a session.
fn totals_of(stats: &SessionStats, side: Side) -> SideTotals {
    let own = || {
        let flows = stats.flows.iter();
        flows.filter_map(move |flow| flow.sides.get(side.index()))
    };
    let lost = |side: &SideStats| side.totals().lost;
    let remote_lost = own()
        .filter_map(|side| side.report)
        .map(|report| u64::try_from(report.cumulative_lost).unwrap_or(0));
    let round_trip = own().find_map(|side| side.round_trip);
    let protection = |side: &SideStats| match side.srtp {
        Some(suite) => format!("srtp:{}", suite.name()),
        None => "none".to_owned(),
    };
    SideTotals {
        packets: Some(own().map(|side| side.received.packets).sum()),
        lost: Some(own().map(lost).sum()),
        sent: Some(own().map(|side| side.sent.packets).sum()),
        remote_lost: remote_lost.reduce(|one, other| one + other),
        delay_ms: round_trip.map(|span| Hundredths::of(span.as_secs_f64() * 500.0)),
        protection: own().map(protection).next(),
    }
}

/// The media path of a call, as far as the call knows it; packets relayed by the kernel are reported later.
fn path_of(call: &Call, path: MediaPath) -> Option<&'static str> {
    if call.kind.participant().is_some() {
        return Some("conference");
    }
    if call.media.node().is_some() {
        return Some("node");
    }
    if call.media.anchored().is_some() {
        return Some(match path {
            MediaPath::AfXdp => "af_xdp",
            MediaPath::SocketPerPort | MediaPath::SharedPortSocket | MediaPath::Kernel => "sockets",
        });
    }
    call.summary.answered_at.map(|_| "bypass")
}

/// Statistics of both sides: of the line whose quality is reported.
fn reception_of(stats: &SessionStats, encodings: &Encodings) -> [ReceptionQuality; 2] {
    let Some(line) = rated_line(stats, encodings) else {
        return Default::default();
    };
    let round_trip_ms = round_trip_of(stats, line);
    Side::BOTH.map(|side| {
        let own = || {
            let flows = stats.flows.iter().filter(|flow| flow.line == line);
            flows.filter_map(move |flow| flow.sides.get(side.index()))
        };
        let (mut lost, mut expected) = (0, 0);
        for totals in own().map(SideStats::totals) {
            lost += totals.lost;
            expected += totals.expected;
        }
        let Some(main) = main_of(own()) else {
            return ReceptionQuality::default();
        };
        let codec = encoding_of(main, line, side, encodings);
        ReceptionQuality {
            codec: codec.map(str::to_owned),
            loss_percent: (expected > 0)
                .then(|| Hundredths::of(lost as f64 * 100.0 / expected as f64)),
            jitter_ms: main
                .summary
                .jitter_ms
                .map(|jitter| ReportedJitter::measured(jitter.mean)),
            mos: codec.and_then(|codec| mos(main, codec, round_trip_ms / 2.0)),
            totals: SideTotals::default(),
        }
    })
}

/// MOS of a source by its loss, the network delay as far as reported by RTCP, the packet time, and the delay of a
/// jitter buffer for 99 of 100 packets.
fn mos(source: &SourceStats, codec: &str, network_ms: f64) -> Option<Hundredths> {
    let (quality, summary) = (codec_quality(codec)?, &source.summary);
    let buffer = summary.jitter_ms?.p99.max(PACKET_MS);
    let observed = Observation {
        loss_percent: summary.lost_percent,
        burst_ratio: summary.burst_ratio,
        delay_ms: network_ms + PACKET_MS + buffer,
    };
    Some(Hundredths::of(rate(quality, &observed).mos))
}

impl Components {
    /// Queries the media of a part of the calls.
    pub(crate) fn quality_tick(&mut self) {
        let parts = self;
        let intervals = &mut parts.quality_intervals;
        let Some((tick, ticks)) = intervals.tick(&mut parts.ctx, !parts.calls.is_empty()) else {
            return;
        };
        let slots = parts.calls.capacity();
        let mut due: Vec<(Time, CallSlot)> = Vec::new();
        let mut at_nodes: Vec<(Time, CallSlot, NodeId)> = Vec::new();
        for slot in slots * tick / ticks..slots * (tick + 1) / ticks {
            let slot = CallSlot(slot);
            let Some(call) = parts.calls.get(slot) else {
                continue;
            };
            let is_answered = matches!(call.stage, CallStage::ExpectAck | CallStage::ExpectBye);
            let Some(answered) = call.summary.answered_at.filter(|_| is_answered) else {
                continue;
            };
            let media = call.media.anchored();
            if media.is_some_and(CallMedia::is_in_forwarder) {
                let session = parts.calls.key_of(slot).0;
                due.push((intervals.since(session).unwrap_or(answered), slot));
            }
            let relay = call.media.node();
            if let Some(node) = relay.and_then(NodeRelay::established_node)
                && !parts.media_nodes.is_down(node)
            {
                let since = intervals.since_at_node(call.number).unwrap_or(answered);
                at_nodes.push((since, slot, node));
            }
        }
        if parts.media.paths.offload.path == MediaPath::Kernel && due.len() > KERNEL_QUERIES {
            due.sort_unstable();
            due.truncate(KERNEL_QUERIES);
        }
        for (since, slot) in due {
            let media = parts.calls.get(slot).and_then(|call| call.media.anchored());
            let encodings = media.map(CallMedia::encodings).unwrap_or_default();
            let session = parts.calls.key_of(slot).0;
            intervals.query(session, since, encodings);
            let commands = &mut parts.media.plane.commands;
            commands.push_back(MediaCommand::Query(session));
        }
        at_nodes.sort_unstable_by_key(|(since, ..)| *since);
        for (since, slot, node) in at_nodes.into_iter().take(NODE_QUERIES) {
            let key = parts.calls.key_of(slot);
            parts.quality_intervals.query_node(key.number(), since);
            parts.query_call(slot, key, node);
        }
    }
}
