//! Replies to `query` and `delete`, in the format of rtpengine.

use anchor::Encodings;
use anchor::LineSideView;
use anchor::Side;
use anchor::encodings::{encoding_of, main_of};
use engine::{EventKind, Time};
use media::forward::{SessionStats, SideStats, SourceStats};
use media::quality::{Observation, codec_quality, rate};
use std::net::SocketAddr;
use wire::ng::Value;

/// One side of a branch.
#[derive(Clone, Debug)]
pub(super) struct PartyView {
    pub(super) tag: Vec<u8>,
    /// Media type and profile of each line of its description.
    pub(super) kinds: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Snapshot of a branch.
#[derive(Clone, Debug)]
pub(super) struct BranchView {
    pub(super) session: u64,
    pub(super) created: Time,
    pub(super) parties: [PartyView; 2],
    pub(super) lines: Vec<(usize, [LineSideView; 2])>,
    pub(super) blocked: [bool; 2],
    pub(super) recording: bool,
    pub(super) encodings: Encodings,
}

/// Snapshot of a call with its branches, each with the forwarder's figures.
#[derive(Debug)]
pub(super) struct CallView {
    pub(super) created: Time,
    pub(super) signalled: Time,
    pub(super) branches: Vec<(BranchView, Option<Box<SessionStats>>)>,
}

/// Wall clock at time zero.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WallClock(pub(super) u64);

impl WallClock {
    /// Nanoseconds since 1970.
    pub(super) fn nanos(self, at: Time) -> u64 {
        self.0.saturating_add(at.as_nanos())
    }

    fn seconds(self, at: Time) -> u64 {
        self.nanos(at) / 1_000_000_000
    }
}

#[derive(Clone, Copy, Default)]
struct TrafficSum {
    packets: u64,
    bytes: u64,
    errors: u64,
}

impl TrafficSum {
    fn value(self) -> Value {
        Value::dictionary()
            .with("packets", self.packets)
            .with("bytes", self.bytes)
            .with("errors", self.errors)
    }

    fn add(&mut self, other: TrafficSum) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.errors += other.errors;
    }
}

fn rtp_of(stats: &SideStats) -> TrafficSum {
    TrafficSum {
        packets: stats.received.packets,
        bytes: stats.received.bytes,
        errors: stats.drops.iter().map(|(_, count)| count).sum(),
    }
}

fn rtcp_of(stats: &SideStats) -> TrafficSum {
    TrafficSum {
        packets: stats.received_rtcp.packets,
        bytes: stats.received_rtcp.bytes,
        errors: 0,
    }
}

fn endpoint(address: SocketAddr) -> Value {
    Value::dictionary()
        .with("family", if address.is_ipv4() { "IPv4" } else { "IPv6" })
        .with("address", address.ip().to_string())
        .with("port", u64::from(address.port()))
}

fn set(dictionary: &mut Value, key: &str, under: &[u8], value: Value) {
    // Keys from the network are octets, not text.
    if let Value::Dictionary(entries) = dictionary
        && let Some(Value::Dictionary(inner)) = entries.get_mut(key.as_bytes())
    {
        inner.insert(under.to_vec(), value);
    }
}

impl CallView {
    /// The reply without `result`.
    pub(super) fn value(&self, clock: WallClock) -> Value {
        let (mut rtp, mut rtcp) = (TrafficSum::default(), TrafficSum::default());
        let mut reply = Value::dictionary()
            .with("created", clock.seconds(self.created))
            .with("created_us", clock.nanos(self.created) / 1_000 % 1_000_000)
            .with("last signal", clock.seconds(self.signalled))
            .with("tags", Value::dictionary())
            .with("SSRC", Value::dictionary());
        for (branch, stats) in &self.branches {
            for side in Side::BOTH {
                let figures = stats.as_deref().map(|stats| &stats.flows);
                let all = figures.into_iter().flatten();
                for flow in all {
                    let [caller, callee] = &flow.sides;
                    let own = if side == Side::Caller { caller } else { callee };
                    rtp.add(rtp_of(own));
                    rtcp.add(rtcp_of(own));
                    for source in &own.sources {
                        let key = source.ssrc.to_string();
                        let codec = encoding_of(source, flow.line, side, &branch.encodings);
                        let value = source_value(source, own, codec);
                        set(&mut reply, "SSRC", key.as_bytes(), value);
                    }
                }
                self.party(&mut reply, branch, stats.as_deref(), side, clock);
            }
        }
        let totals = Value::dictionary()
            .with("RTP", rtp.value())
            .with("RTCP", rtcp.value());
        reply.with("totals", totals)
    }

    fn party(
        &self,
        reply: &mut Value,
        branch: &BranchView,
        stats: Option<&SessionStats>,
        side: Side,
        clock: WallClock,
    ) {
        let [caller, callee] = &branch.parties;
        let (own, other, blocked) = match side {
            Side::Caller => (caller, callee, branch.blocked[0]),
            Side::Callee => (callee, caller, branch.blocked[1]),
        };
        if own.tag.is_empty() && own.kinds.is_empty() {
            return;
        }
        let mut medias = Vec::new();
        for (line, places) in &branch.lines {
            let [first, second] = places;
            let line_view = if side == Side::Caller { first } else { second };
            let figures = stats.and_then(|stats| {
                let flow = stats
                    .flows
                    .iter()
                    .rev()
                    .find(|flow| usize::from(flow.line) == *line)?;
                let [caller, callee] = &flow.sides;
                Some(if side == Side::Caller { caller } else { callee })
            });
            let last = stats.map_or(branch.created, |stats| stats.last_packet);
            let mut media = media(own, *line, line_view, figures, blocked, clock.seconds(last));
            let main = main_of(figures.into_iter());
            let codec =
                main.and_then(|source| encoding_of(source, *line as u8, side, &branch.encodings));
            if let Some(codec) = codec {
                media.set("codec", codec);
            }
            medias.push(media);
        }
        let relation = |tag: &[u8]| {
            vec![
                Value::dictionary()
                    .with("tag", tag)
                    .with("type", "offer/answer"),
            ]
        };
        let mut party = Value::dictionary()
            .with("tag", own.tag.as_slice())
            .with("created", clock.seconds(branch.created))
            .with("medias", medias);
        if !other.tag.is_empty() {
            party.set("subscriptions", relation(&other.tag));
            party.set("subscribers", relation(&other.tag));
        }
        if branch.recording {
            party.set("recording", "pcap");
        }
        set(reply, "tags", &own.tag, party);
    }
}

fn media(
    party: &PartyView,
    line: usize,
    line_view: &LineSideView,
    figures: Option<&SideStats>,
    blocked: bool,
    last: u64,
) -> Value {
    let (kind, profile) = party.kinds.get(line).cloned().unwrap_or_default();
    let mut flags: Vec<Value> = vec!["initialized".into()];
    if line_view.direction.sends {
        flags.push("send".into());
    }
    if line_view.direction.receives {
        flags.push("recv".into());
    }
    if line_view.mux {
        flags.push("rtcp-mux".into());
    }
    if figures.is_some_and(|figures| figures.srtp.is_some()) {
        flags.push("SRTP".into());
    }
    if blocked {
        flags.push("blocked".into());
    }
    let stream = |rtcp: bool, local: SocketAddr, signalled: Option<SocketAddr>| {
        let learned = figures.and_then(|figures| match rtcp {
            true => figures.rtcp_address,
            false => figures.address,
        });
        let sum = figures.map_or_else(TrafficSum::default, |figures| match rtcp {
            true => rtcp_of(figures),
            false => rtp_of(figures),
        });
        let mut words: Vec<Value> = vec![if rtcp { "RTCP" } else { "RTP" }.into()];
        if signalled.is_some() {
            words.push("filled".into());
        }
        if learned.is_some() {
            words.push("confirmed".into());
        }
        let mut stream = Value::dictionary()
            .with("local address", local.ip().to_string())
            .with("local port", u64::from(local.port()))
            .with("family", if local.is_ipv4() { "IPv4" } else { "IPv6" })
            .with("last packet", last)
            .with("flags", words)
            .with("stats", sum.value());
        if let Some(address) = learned.or(signalled) {
            stream.set("endpoint", endpoint(address));
        }
        if let Some(address) = signalled {
            stream.set("advertised endpoint", endpoint(address));
        }
        if let Some(source) = main_of(figures.into_iter()).filter(|_| !rtcp) {
            stream.set("SSRC", u64::from(source.ssrc));
        }
        stream
    };
    let mut streams = vec![stream(false, line_view.rtp, line_view.signalled_rtp)];
    if let Some(rtcp) = line_view.rtcp {
        streams.push(stream(true, rtcp, line_view.signalled_rtcp));
    }
    Value::dictionary()
        .with("index", line as u64 + 1)
        .with("type", kind.as_slice())
        .with("protocol", profile.as_slice())
        .with("flags", flags)
        .with("streams", streams)
}

/// Figures of a source. `average MOS` has the fields and units that Kamailio's module reads: ten times the score,
/// percent, milliseconds, microseconds.
fn source_value(source: &SourceStats, side: &SideStats, codec: Option<&str>) -> Value {
    let summary = &source.summary;
    let jitter = summary.jitter_ms.as_ref().map(|jitter| jitter.mean);
    let mut value = Value::dictionary()
        .with("packets", summary.received)
        .with("cumulative loss", summary.cumulative_lost)
        .with("duplicates", summary.duplicates)
        .with("out of order", summary.out_of_order);
    if let Some(jitter) = jitter {
        value.set("jitter", jitter.round() as i64);
    }
    if let Some(jitter) = &summary.jitter_ms {
        // Not in rtpengine: with sums, two queries give the mean of the time between them. Microseconds.
        value.set("jitter samples", jitter.samples);
        let sum = jitter.mean * jitter.samples as f64 * 1e3;
        value.set("jitter sum", sum.round() as i64);
    }
    if let Some(codec) = codec.and_then(codec_quality)
        && summary.received > 1
    {
        let observed = Observation {
            loss_percent: summary.lost_percent,
            burst_ratio: summary.burst_ratio,
            // The delay to the listener is unknown; half the round trip is the available estimate.
            delay_ms: side
                .round_trip
                .map_or(0.0, |round_trip| round_trip.as_secs_f64() * 500.0),
        };
        let quality = rate(codec, &observed);
        let mut mos = Value::dictionary()
            .with("MOS", (quality.mos * 10.0).round() as i64)
            .with("packet loss", summary.lost_percent.round() as i64)
            .with("jitter", jitter.unwrap_or(0.0).round() as i64)
            .with("samples", 1i64);
        if let Some(round_trip) = side.round_trip {
            mos.set("round-trip time", round_trip.as_micros() as i64);
        }
        value.set("average MOS", mos);
    }
    value
}

/// The event about the end of a call.
pub(super) fn ended_event(call: u64, reason: &str) -> EventKind {
    EventKind::NgCallEnded {
        call,
        reason: reason.to_owned(),
    }
}
