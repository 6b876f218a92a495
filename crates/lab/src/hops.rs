//! The delay of media packets divided by hop: generator, links, protection, system under test.
//!
//! In virtual time every packet is observed where it leaves a host and where it arrives. On sockets the hops have
//! stamps of their own (the generator's lateness, the link's and the gateways' times), and the system under test has
//! the rest.

use crate::decimal::plain;
use crate::record::StreamRecord;
use crate::statistics::quantile;
use crate::trial_records::{LinkRecord, SendLateness};
use engine::Time;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use sim::{HostId, TapPoint, TapRecord, TapTransport};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{BuildHasherDefault, Hasher};
use wire::rtp::RtpView;

/// Packets under way whose stamps are kept; further ones are not timed.
const MAX_UNDER_WAY: usize = 1 << 20;
/// Longest delay with its own class, nanoseconds.
const LONGEST_NS: u64 = 60_000_000_000;

/// Delay at one hop, milliseconds; `null`: not measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HopDelay {
    /// `generator`, `link of callers`, `link of called side`, `link`, `protection`, `SUT`, `end to end`.
    pub hop: String,
    /// Mean.
    pub mean_ms: Option<f64>,
    /// Median.
    pub p50_ms: Option<f64>,
    /// 99th percentile.
    pub p99_ms: Option<f64>,
    /// `packets`: stamps of each packet; `all packets`: stamps of all packets of the hop, signalling included; `rest`:
    /// the delay that the other hops leave; `virtual time`: zero, as sending takes no time there.
    pub from: String,
}

impl HopDelay {
    fn new(hop: &str, [mean, p50, p99]: [Option<f64>; 3], from: &str) -> HopDelay {
        HopDelay {
            hop: hop.to_owned(),
            mean_ms: mean,
            p50_ms: p50,
            p99_ms: p99,
            from: from.to_owned(),
        }
    }

    pub(crate) fn figures(&self) -> [(&'static str, Option<f64>); 3] {
        [
            ("mean_ms", self.mean_ms),
            ("p50_ms", self.p50_ms),
            ("p99_ms", self.p99_ms),
        ]
    }
}

/// The delay of a trial's media packets by hop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DelaySplit {
    /// Packets, or streams on sockets.
    pub samples: u64,
    /// `packets` or `streams`.
    pub of: String,
    /// The hops in the order in which a packet passes them.
    pub hops: Vec<HopDelay>,
    /// Sum of the means that were measured, milliseconds.
    pub sum_ms: f64,
    /// From the due time of a packet to its arrival.
    pub end_to_end: HopDelay,
}

impl DelaySplit {
    fn new(samples: (u64, &str), hops: Vec<HopDelay>, end_to_end: HopDelay) -> DelaySplit {
        DelaySplit {
            samples: samples.0,
            of: samples.1.to_owned(),
            sum_ms: hops.iter().filter_map(|hop| hop.mean_ms).sum(),
            hops,
            end_to_end,
        }
    }

    /// One line: the means by hop, their sum, and the delay from end to end.
    pub fn line(&self) -> String {
        let number = |value: Option<f64>| value.map_or("-".to_owned(), |ms| plain(rounded(ms)));
        let mut out = String::new();
        for hop in &self.hops {
            let _ = write!(out, "{} {}, ", hop.hop, number(hop.mean_ms));
        }
        let end = &self.end_to_end;
        let _ = write!(
            out,
            "sum {}; end to end {} (p50 {}, p99 {})",
            number(Some(self.sum_ms)),
            number(end.mean_ms),
            number(end.p50_ms),
            number(end.p99_ms)
        );
        out
    }
}

/// Microseconds are the resolution of a line of text.
fn rounded(ms: f64) -> f64 {
    (ms * 1e3).round() / 1e3
}

/// Delays of one hop.
#[derive(Clone, Debug)]
pub(crate) struct DelayCounter {
    histogram: Histogram<u64>,
    sum_ns: u128,
}

impl Default for DelayCounter {
    fn default() -> DelayCounter {
        DelayCounter {
            histogram: Histogram::new_with_bounds(1, LONGEST_NS, 3)
                .unwrap_or_else(|error| unreachable!("bounds of a histogram: {error}")),
            sum_ns: 0,
        }
    }
}

impl DelayCounter {
    pub(crate) fn record(&mut self, nanoseconds: u64) {
        self.histogram.saturating_record(nanoseconds);
        self.sum_ns += u128::from(nanoseconds);
    }

    pub(crate) fn add(&mut self, other: &DelayCounter) {
        // Both have the same bounds.
        let _ = self.histogram.add(&other.histogram);
        self.sum_ns += other.sum_ns;
    }

    /// Mean, median and 99th percentile, milliseconds.
    pub(crate) fn figures(&self) -> [Option<f64>; 3] {
        let count = self.histogram.len();
        let known = |ms: f64| (count > 0).then_some(ms);
        // A zero has no class of its own: it is in the lowest one.
        let quantile = |q: f64| match self.histogram.value_at_quantile(q) {
            0 | 1 => 0.0,
            value => value as f64 / 1e6,
        };
        [
            known(self.sum_ns as f64 / count.max(1) as f64 / 1e6),
            known(quantile(0.5)),
            known(quantile(0.99)),
        ]
    }
}

/// A packet under way.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    last: Time,
    on_link: bool,
    link_ns: u64,
    subject_ns: u64,
}

/// Multiplicative hash of names of packets, all of which the simulated hosts have generated.
#[derive(Debug, Default)]
struct PacketHasher(u64);

impl Hasher for PacketHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u16(&mut self, value: u16) {
        self.write_u64(u64::from(value));
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

/// Observes the RTP packets of a simulated trial: `(SSRC, sequence number)` names a packet, which the border keeps.
#[derive(Debug, Default)]
pub(crate) struct HopTap {
    ends: Vec<HostId>,
    under_way: HashMap<(u32, u16), UnderWay, BuildHasherDefault<PacketHasher>>,
    link: DelayCounter,
    subject: DelayCounter,
    total: DelayCounter,
}

impl HopTap {
    /// Packets begin and end at these hosts.
    pub(crate) fn set_ends(&mut self, ends: impl IntoIterator<Item = HostId>) {
        self.ends = ends.into_iter().collect();
    }

    pub(crate) fn take(&mut self, packet: &TapRecord<'_>) {
        if packet.transport != TapTransport::Udp || wire::rtcp::is_rtcp(packet.bytes) {
            return;
        }
        let Some(view) = RtpView::parse(packet.bytes) else {
            return;
        };
        let key = (view.ssrc(), view.sequence());
        match packet.point {
            TapPoint::Sent(host) if self.ends.contains(&host) => self.begin(key, packet.at),
            TapPoint::Sent(_) => {
                if let Some(known) = self.under_way.get_mut(&key).filter(|known| !known.on_link) {
                    known.subject_ns += packet.at.since(known.last).as_nanos() as u64;
                    (known.last, known.on_link) = (packet.at, true);
                }
            }
            TapPoint::Delivered(host) => {
                let Some(known) = self.under_way.get_mut(&key).filter(|known| known.on_link) else {
                    return;
                };
                known.link_ns += packet.at.since(known.last).as_nanos() as u64;
                (known.last, known.on_link) = (packet.at, false);
                if self.ends.contains(&host) {
                    self.end(key);
                }
            }
        }
    }

    fn begin(&mut self, key: (u32, u16), now: Time) {
        if self.under_way.len() >= MAX_UNDER_WAY && !self.under_way.contains_key(&key) {
            return;
        }
        self.under_way.insert(
            key,
            UnderWay {
                last: now,
                on_link: true,
                link_ns: 0,
                subject_ns: 0,
            },
        );
    }

    fn end(&mut self, key: (u32, u16)) {
        if let Some(packet) = self.under_way.remove(&key) {
            self.link.record(packet.link_ns);
            self.subject.record(packet.subject_ns);
            self.total.record(packet.link_ns + packet.subject_ns);
        }
    }

    /// The split; `None` if no packet passed from end to end.
    pub(crate) fn split(&self, has_protection: bool) -> Option<DelaySplit> {
        let packets = self.total.histogram.len();
        let none = [Some(0.0); 3];
        let mut hops = vec![
            HopDelay::new("generator", none, "virtual time"),
            HopDelay::new("link", self.link.figures(), "packets"),
        ];
        if has_protection {
            hops.push(HopDelay::new("protection", none, "virtual time"));
        }
        hops.push(HopDelay::new("SUT", self.subject.figures(), "packets"));
        let end = HopDelay::new("end to end", self.total.figures(), "packets");
        (packets > 0).then(|| DelaySplit::new((packets, "packets"), hops, end))
    }
}

/// The split of a trial on sockets, from the figures of its streams and the stamps of its hops; `None` if no stream has
/// a one-way delay, as with a called side on another clock, or if the called side sends an echo, whose packets pass the
/// hops twice.
pub(crate) fn on_sockets(
    streams: &[&StreamRecord],
    sent: Option<&SendLateness>,
    links: &[LinkRecord],
    protection: Option<[Option<f64>; 3]>,
) -> Option<DelaySplit> {
    let is_echo =
        |stream: &&StreamRecord| stream.round_trip_ms.is_some() && stream.one_way_mean_ms.is_none();
    if streams.iter().any(is_echo) {
        return None;
    }
    let mean = weighted(streams, |stream| stream.one_way_mean_ms)?;
    let count = streams
        .iter()
        .filter(|s| s.one_way_mean_ms.is_some())
        .count() as u64;
    let passed = weighted(streams, |stream| stream.relay_mean_ms);
    // With stamps of each packet, the rest of its delay is the time from its due time to its sending.
    let generator_mean = passed
        .map(|passed| mean - passed)
        .or(sent.map(|sent| sent.mean_ms));
    let generator = HopDelay::new(
        "generator",
        [
            generator_mean,
            sent.map(|sent| sent.p50_ms),
            sent.map(|sent| sent.p99_ms),
        ],
        if passed.is_some() {
            "packets"
        } else {
            "all packets"
        },
    );
    let mut hops = vec![generator];
    // A record of faults alone, as of gateways without a link, is no hop.
    let is_hop = |link: &&LinkRecord| !link.directions.is_empty() || link.faults.is_empty();
    for link in links.iter().filter(is_hop) {
        let figures = link.delay_ms.map_or([None; 3], |figures| figures.map(Some));
        hops.push(HopDelay::new(
            &format!("link of {}", link.name),
            figures,
            "all packets",
        ));
    }
    hops.extend(protection.map(|figures| HopDelay::new("protection", figures, "all packets")));
    let known: Option<f64> = hops.iter().map(|hop| hop.mean_ms).sum();
    // The lateness of turns is an upper bound: a rest below zero says nothing of the system under test.
    let rest = known.map(|known| mean - known).filter(|rest| *rest >= 0.0);
    let is_direct = hops.len() == 1;
    let spread = |of: fn(&StreamRecord) -> Option<f64>, q| {
        is_direct.then(|| spread(streams, of, q)).flatten()
    };
    let subject = [
        rest,
        spread(|s| s.relay_p50_ms, 0.5),
        spread(|s| s.relay_p99_ms, 0.99),
    ];
    let from = if is_direct && passed.is_some() {
        "packets"
    } else {
        "rest"
    };
    hops.push(HopDelay::new("SUT", subject, from));
    let quantiles = [
        self::spread(streams, |s| s.one_way_p50_ms, 0.5),
        self::spread(streams, |s| s.one_way_p99_ms, 0.99),
    ];
    let end = HopDelay::new(
        "end to end",
        [Some(mean), quantiles[0], quantiles[1]],
        "packets",
    );
    Some(DelaySplit::new((count, "streams"), hops, end))
}

/// Mean over the received packets of the streams that have the figure.
fn weighted(streams: &[&StreamRecord], of: impl Fn(&StreamRecord) -> Option<f64>) -> Option<f64> {
    let (mut sum, mut packets) = (0.0, 0.0);
    for stream in streams {
        if let Some(value) = of(stream) {
            sum += value * stream.received as f64;
            packets += stream.received as f64;
        }
    }
    (packets > 0.0).then(|| sum / packets)
}

/// A quantile of the streams' own quantiles.
fn spread(streams: &[&StreamRecord], of: fn(&StreamRecord) -> Option<f64>, q: f64) -> Option<f64> {
    let mut values: Vec<f64> = streams.iter().filter_map(|stream| of(stream)).collect();
    values.sort_by(f64::total_cmp);
    quantile(&values, q)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{Deadline, Engine, Input, Output, SocketId, SocketKind};
    use sim::{Delay, LinkConfig, World};
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::net::SocketAddr;
    use std::rc::Rc;
    use std::time::Duration;
    use wire::rtp::RtpHeader;

    fn stream(one_way: f64, relay: Option<f64>) -> StreamRecord {
        StreamRecord {
            received: 100,
            one_way_mean_ms: Some(one_way),
            one_way_p50_ms: relay.map(|_| one_way),
            one_way_p99_ms: relay.map(|_| one_way + 1.0),
            relay_mean_ms: relay,
            relay_p50_ms: relay,
            relay_p99_ms: relay.map(|relay| relay + 0.5),
            ..StreamRecord::default()
        }
    }

    fn lateness() -> SendLateness {
        SendLateness {
            packets: 200,
            mean_ms: 0.25,
            p50_ms: 0.2,
            p99_ms: 0.75,
            ..SendLateness::default()
        }
    }

    fn means(split: &DelaySplit) -> Vec<(&str, Option<f64>)> {
        split
            .hops
            .iter()
            .map(|hop| (hop.hop.as_str(), hop.mean_ms))
            .collect()
    }

    #[test]
    fn system_under_test_has_the_rest_of_the_hops() {
        let streams = [stream(41.0, Some(40.5)), stream(43.0, Some(42.5))];
        let all: Vec<&StreamRecord> = streams.iter().collect();
        let link = |name: &str, mean: f64| LinkRecord {
            name: name.to_owned(),
            delay_ms: Some([mean, mean, mean]),
            ..LinkRecord::default()
        };
        let links = [link("callers", 20.0), link("called side", 10.0)];
        let protection = Some([Some(0.5); 3]);
        let split = on_sockets(&all, Some(&lateness()), &links, protection).unwrap();
        let expected = [
            ("generator", Some(0.5)),
            ("link of callers", Some(20.0)),
            ("link of called side", Some(10.0)),
            ("protection", Some(0.5)),
            ("SUT", Some(11.0)),
        ];
        assert_eq!(means(&split), expected);
        assert_eq!((split.sum_ms, split.end_to_end.mean_ms), (42.0, Some(42.0)));
        let subject = split.hops.last().unwrap();
        assert_eq!((subject.from.as_str(), subject.p99_ms), ("rest", None));
        assert!(
            split
                .line()
                .contains("SUT 11, sum 42; end to end 42 (p50 42, p99 ")
        );
    }

    #[test]
    fn calls_with_an_echo_are_not_split() {
        let there = stream(41.0, None);
        let echo = StreamRecord {
            received: 100,
            round_trip_ms: Some(82.0),
            ..StreamRecord::default()
        };
        let split = on_sockets(&[&there, &echo], Some(&lateness()), &[], None);
        assert_eq!(split, None);
        assert!(on_sockets(&[&there], Some(&lateness()), &[], None).is_some());
    }

    #[test]
    fn without_links_the_packets_themselves_tell_the_subject() {
        let streams = [stream(41.0, Some(40.5))];
        let split = on_sockets(&[&streams[0]], Some(&lateness()), &[], None).unwrap();
        assert_eq!(
            means(&split),
            [("generator", Some(0.5)), ("SUT", Some(40.5))]
        );
        assert_eq!(split.hops[1].p99_ms, Some(41.0));
        // Without stamps of packets the lateness of the turns counts.
        let streams = [stream(41.0, None)];
        let split = on_sockets(&[&streams[0]], Some(&lateness()), &[], None).unwrap();
        assert_eq!(
            means(&split),
            [("generator", Some(0.25)), ("SUT", Some(40.75))]
        );
        assert_eq!(
            (split.hops[1].p99_ms, split.end_to_end.p99_ms),
            (None, None)
        );
        // A hop without stamps leaves the rest unknown.
        let link = LinkRecord::default();
        let split = on_sockets(&[&streams[0]], Some(&lateness()), &[link], None).unwrap();
        assert_eq!(split.hops.last().unwrap().mean_ms, None);
        let foreign = StreamRecord::default();
        assert_eq!(on_sockets(&[&foreign], Some(&lateness()), &[], None), None);
    }

    /// Holds each packet for a while, and sends it on. A sender is one whose packets come from itself.
    struct RelayNode {
        local: SocketAddr,
        next: Option<SocketAddr>,
        hold: Duration,
        waiting: VecDeque<(Time, Vec<u8>)>,
        is_open: bool,
        current: Vec<u8>,
        sent: Vec<u8>,
    }

    impl RelayNode {
        fn new(local: &str, next: Option<&str>, hold_ms: u64) -> RelayNode {
            RelayNode {
                local: local.parse().unwrap(),
                next: next.map(|next| next.parse().unwrap()),
                hold: Duration::from_millis(hold_ms),
                waiting: VecDeque::new(),
                is_open: false,
                current: Vec::new(),
                sent: Vec::new(),
            }
        }
    }

    impl Engine for RelayNode {
        fn handle(&mut self, input: Input<'_>, now: Time) {
            if let Input::Datagram(datagram) = input
                && self.next.is_some()
            {
                self.waiting
                    .push_back((now + self.hold, datagram.bytes.to_vec()));
            }
            // A packet whose time has come is sent by the turn of its deadline.
            let due = self.waiting.front().filter(|(at, _)| *at <= now);
            if due.is_some() && self.current.is_empty() {
                self.current = self
                    .waiting
                    .pop_front()
                    .map(|(_, bytes)| bytes)
                    .unwrap_or_default();
            }
        }

        fn next_output(&mut self) -> Option<Output<'_>> {
            if !self.is_open {
                self.is_open = true;
                return Some(Output::OpenSocket {
                    socket: SocketId(1),
                    kind: SocketKind::UdpSignalling,
                    local: self.local,
                });
            }
            let bytes = std::mem::take(&mut self.current);
            self.sent = bytes;
            Some(Output::Datagram {
                socket: SocketId(1),
                destination: self.next?,
                bytes: (!self.sent.is_empty()).then_some(&self.sent)?,
            })
        }

        fn next_deadline(&self) -> Option<Deadline> {
            let (at, _) = self.waiting.front()?;
            Some(Deadline::new(*at, "packet"))
        }
    }

    fn rtp(sequence: u16) -> Vec<u8> {
        let mut packet = Vec::new();
        let header = RtpHeader {
            sequence,
            timestamp: u32::from(sequence) * 160,
            ssrc: 7,
            ..RtpHeader::default()
        };
        header.write(&mut packet);
        packet.extend([0; 160]);
        packet
    }

    #[test]
    fn known_delays_of_link_and_subject_come_back() {
        let mut world = World::new(1);
        let tap = Rc::new(RefCell::new(HopTap::default()));
        let watching = Rc::clone(&tap);
        world.add_tap(move |packet| watching.borrow_mut().take(packet));
        let mut sender = RelayNode::new("10.0.0.1:4000", Some("10.0.0.2:4000"), 0);
        sender.waiting = (0..50)
            .map(|n| (Time::from_millis(1_000 + 20 * n), rtp(n as u16)))
            .collect();
        let relay = RelayNode::new("10.0.0.2:4000", Some("10.0.0.3:4000"), 7);
        let receiver = RelayNode::new("10.0.0.3:4000", None, 0);
        let nodes = [("sender", sender), ("relay", relay), ("receiver", receiver)];
        let hosts = nodes.map(|(name, node)| world.add_engine(name, &[node.local.ip()], node));
        tap.borrow_mut().set_ends([hosts[0], hosts[2]]);
        for (from, to, ms) in [(0, 1, 30), (1, 2, 10)] {
            let delay = Delay::Constant(Duration::from_millis(ms));
            let config = LinkConfig {
                delay,
                ..LinkConfig::default()
            };
            world.set_link(hosts[from], hosts[to], config);
        }
        world.run_until(Time::from_secs(5));
        let split = tap.borrow().split(false).unwrap();
        assert_eq!(split.samples, 50);
        let expected = [
            ("generator", Some(0.0)),
            ("link", Some(40.0)),
            ("SUT", Some(7.0)),
        ];
        assert_eq!(means(&split), expected);
        assert_eq!((split.sum_ms, split.end_to_end.mean_ms), (47.0, Some(47.0)));
        for (hop, ms) in [
            (&split.hops[1], 40.0),
            (&split.hops[2], 7.0),
            (&split.end_to_end, 47.0),
        ] {
            for quantile in [hop.p50_ms, hop.p99_ms] {
                assert!((quantile.unwrap() - ms).abs() < ms / 500.0, "{hop:?}");
            }
        }
        assert!(tap.borrow().under_way.is_empty());
    }
}
