//! HEP: messages of capture agents, and counts of packets in both directions.

use super::store_nanos;
use config::StoreSpec;
use console::{StoredDirection, StoredMessage};
use engine::{EventKind, Hundredths, Time, Transport};
use net::Clock;
use serde::Deserialize;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use wire::hep::{HepPacket, ip_protocol, payload_type};

/// Longest datagram.
const DATAGRAM: usize = 65_535;
/// Messages of agents that are handed over at once.
const HANDOVER: usize = 64;
/// Batches of messages of agents that may wait for the writer.
const WAITING: usize = 256;
/// Longest wait for a datagram, so that the end of the program is noticed; and the age at which packets are handed
/// over.
const RECEIVE_WAIT: Duration = Duration::from_millis(100);
/// Interval of the reports of drops.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Difference between the clock of an agent and ours to which its times are believed, nanoseconds.
const CLOCK_TOLERANCE: u64 = 1_000_000_000;
/// Age to which times of agents are believed, nanoseconds.
const AGE_TOLERANCE: u64 = 1_500_000_000;
/// Report blocks of an RTCP packet that are stored, at most.
const MAX_REPORTS: usize = 8;
/// Longest correlation id of an agent.
const MAX_CORRELATION: usize = 256;

/// Outcomes of HEP packets.
#[derive(Clone, Copy, Debug)]
pub(super) enum HepOutcome {
    Sent,
    /// The socket refused it, or the name of the collector is not resolved.
    Socket,
    TooLong,
    Received,
    Malformed,
    NoSip,
    RateLimit,
    /// RTCP without a report block.
    NoReport,
    /// RTCP of a call that the store does not know.
    UnknownCall,
    /// The writer of the store is too slow.
    QueueFull,
}

/// Direction and name of each outcome, in the order of declaration.
const OUTCOMES: [(&str, &str); 10] = [
    ("sent", "ok"),
    ("sent", "socket"),
    ("sent", "too long"),
    ("received", "ok"),
    ("received", "malformed"),
    ("received", "no SIP"),
    ("received", "rate limit"),
    ("received", "no report"),
    ("received", "unknown call"),
    ("received", "queue full"),
];

/// Counts of HEP packets since the start. Counting never waits.
#[derive(Debug, Default)]
pub(crate) struct HepCounts([AtomicU64; OUTCOMES.len()]);

impl HepCounts {
    pub(super) fn add(&self, outcome: HepOutcome, packets: u64) {
        if let Some(count) = self.0.get(outcome as usize) {
            count.fetch_add(packets, Ordering::Relaxed);
        }
    }

    /// Counts a packet about a call that the store does not know.
    pub(crate) fn add_unknown_call(&self) {
        self.add(HepOutcome::UnknownCall, 1);
    }

    /// Counts a packet that was stored.
    pub(crate) fn add_received(&self) {
        self.add(HepOutcome::Received, 1);
    }

    /// Direction, result and number of packets.
    pub(crate) fn counts(&self) -> [(&'static str, &'static str, u64); OUTCOMES.len()] {
        let mut counts = OUTCOMES.map(|(direction, result)| (direction, result, 0));
        for (count, (_, _, packets)) in self.0.iter().zip(&mut counts) {
            *packets = count.load(Ordering::Relaxed);
        }
        counts
    }
}

/// Reports packets that were dropped.
pub(crate) struct HepReports {
    counts: Arc<HepCounts>,
    /// Counts of the last report, and its time.
    before: [u64; OUTCOMES.len()],
    reported: Option<Time>,
}

impl HepReports {
    pub(crate) fn new(counts: Arc<HepCounts>) -> HepReports {
        HepReports {
            counts,
            before: [0; OUTCOMES.len()],
            reported: None,
        }
    }

    /// Events about packets that were dropped since the last report: the first ones at once, further ones after
    /// [`REPORT_INTERVAL`].
    pub(crate) fn take(&mut self, now: Time) -> Vec<EventKind> {
        if self
            .reported
            .is_some_and(|reported| now.since(reported) < REPORT_INTERVAL)
        {
            return Vec::new();
        }
        let mut events = Vec::new();
        for ((direction, reason, packets), before) in
            self.counts.counts().into_iter().zip(&mut self.before)
        {
            let new = packets.saturating_sub(std::mem::replace(before, packets));
            if new > 0 && reason != "ok" {
                events.push(EventKind::HepPacketsDropped {
                    direction: direction.to_owned(),
                    reason: reason.to_owned(),
                    packets: new,
                });
            }
        }
        if !events.is_empty() {
            self.reported = Some(now);
        }
        events
    }
}

/// A packet of a capture agent.
pub(crate) enum AgentPacket {
    /// A SIP message.
    Message(AgentMessage),
    /// An RTCP packet: its reports, and their time in nanoseconds.
    Reports(u64, Vec<EventKind>),
}

/// A message of a capture agent.
pub(crate) struct AgentMessage {
    time: u64,
    transport: Transport,
    source: SocketAddr,
    destination: SocketAddr,
    pub(crate) correlation: Vec<u8>,
    bytes: Vec<u8>,
}

impl AgentMessage {
    /// A message over UDP.
    #[cfg(test)]
    pub(crate) fn observed(bytes: &[u8], time: u64) -> AgentMessage {
        AgentMessage {
            time,
            transport: Transport::Udp,
            source: ([127, 0, 0, 1], 5_060).into(),
            destination: ([127, 0, 0, 1], 5_070).into(),
            correlation: Vec::new(),
            bytes: bytes.to_vec(),
        }
    }

    /// The message for the store.
    pub(crate) fn stored(&self) -> StoredMessage<'_> {
        StoredMessage {
            time: self.time,
            direction: StoredDirection::Observed,
            transport: self.transport,
            source: self.source,
            destination: self.destination,
            bytes: &self.bytes,
        }
    }
}

/// The thread that receives messages of capture agents.
pub(crate) struct Agents {
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Agents {
    /// Starts it if an address is configured.
    ///
    /// # Errors
    /// The address cannot be used.
    pub(crate) fn start(
        spec: &StoreSpec,
        clock: Clock,
        counts: &Arc<HepCounts>,
    ) -> io::Result<Option<(Agents, Receiver<Vec<AgentPacket>>)>> {
        let Some(listen) = spec.hep.listen else {
            return Ok(None);
        };
        let socket = UdpSocket::bind(listen).map_err(|error| {
            io::Error::other(format!(
                "cannot listen for HEP on {listen}: {error}\n  remedy: stop the program that uses the port, or correct `listen` of [store] hep"
            ))
        })?;
        socket.set_read_timeout(Some(RECEIVE_WAIT))?;
        let (queue, messages) = sync_channel(WAITING);
        let stopping = Arc::new(AtomicBool::new(false));
        let receiver = AgentReceiver {
            socket,
            clock,
            queue,
            stopping: stopping.clone(),
            counts: counts.clone(),
            rate: spec.hep.rate,
            second: 0,
            accepted: 0,
            waiting: Vec::new(),
            since: Time::ZERO,
        };
        let thread = std::thread::Builder::new()
            .name("hep".to_owned())
            .spawn(move || {
                // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
                let _ = net::block_signals();
                receiver.run();
            })?;
        let agents = Agents { stopping, thread };
        Ok(Some((agents, messages)))
    }

    /// Ends it.
    pub(crate) fn stop(self) {
        self.stopping.store(true, Ordering::Release);
        // It ends within 100 ms.
        let _ = self.thread.join();
    }
}

struct AgentReceiver {
    socket: UdpSocket,
    clock: Clock,
    queue: SyncSender<Vec<AgentPacket>>,
    stopping: Arc<AtomicBool>,
    counts: Arc<HepCounts>,
    /// Messages per second.
    rate: u32,
    second: u64,
    /// Messages of this second.
    accepted: u32,
    waiting: Vec<AgentPacket>,
    /// Time of the datagram before which none waited.
    since: Time,
}

impl AgentReceiver {
    fn run(mut self) {
        let mut buffer = vec![0; DATAGRAM];
        while !self.stopping.load(Ordering::Acquire) {
            match self.socket.recv(&mut buffer) {
                Ok(length) => {
                    let now = self.clock.now();
                    if self.waiting.is_empty() {
                        self.since = now;
                    }
                    self.packet(buffer.get(..length).unwrap_or_default());
                    // Some agents are never silent for as long as a receive waits.
                    let is_due = now.since(self.since) >= RECEIVE_WAIT;
                    if is_due || self.waiting.len() >= HANDOVER {
                        self.hand_over();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.hand_over(),
                // An ICMP error of an agent, or a signal.
                Err(_) => {}
            }
        }
        self.hand_over();
    }

    fn packet(&mut self, bytes: &[u8]) {
        let now = store_nanos(&self.clock);
        let second = now / 1_000_000_000;
        if second != self.second {
            (self.second, self.accepted) = (second, 0);
        }
        if self.accepted >= self.rate {
            self.counts.add(HepOutcome::RateLimit, 1);
            return;
        }
        // Malformed packets count too: parsing them takes time.
        self.accepted += 1;
        let Ok(packet) = HepPacket::parse(bytes) else {
            self.counts.add(HepOutcome::Malformed, 1);
            return;
        };
        if packet.kind != payload_type::SIP && packet.kind != payload_type::RTCP_JSON {
            self.counts.add(HepOutcome::NoSip, 1);
            return;
        }
        let is_plausible =
            packet.time <= now + CLOCK_TOLERANCE && packet.time + AGE_TOLERANCE >= now;
        let time = if is_plausible { packet.time } else { now };
        if packet.kind == payload_type::RTCP_JSON {
            match reports_of(&packet) {
                Ok(reports) => self.waiting.push(AgentPacket::Reports(time, reports)),
                Err(outcome) => self.counts.add(outcome, 1),
            }
            return;
        }
        let correlation = packet.correlation.get(..MAX_CORRELATION);
        self.waiting.push(AgentPacket::Message(AgentMessage {
            time,
            transport: transport_of(&packet),
            source: packet.source,
            destination: packet.destination,
            correlation: correlation.unwrap_or(packet.correlation).to_vec(),
            bytes: packet.payload.to_vec(),
        }));
    }

    fn hand_over(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let messages = std::mem::take(&mut self.waiting);
        let packets = messages.len() as u64;
        let is_message = |packet: &&AgentPacket| matches!(packet, AgentPacket::Message(_));
        let sip = messages.iter().filter(is_message).count() as u64;
        match self.queue.try_send(messages) {
            // Reports are counted when their calls are looked for.
            Ok(()) => self.counts.add(HepOutcome::Received, sip),
            Err(_) => self.counts.add(HepOutcome::QueueFull, packets),
        }
    }
}

/// The transport of a message. HEP names UDP and TCP only; the topmost Via names that of the hop (RFC 3261 section
/// 18.1.1), so that a message which the agent decrypted is known as such. It is found in malformed messages as well.
fn transport_of(packet: &HepPacket<'_>) -> Transport {
    let lines = packet.payload.split(|byte| *byte == b'\n').skip(1);
    let mut headers = lines.take_while(|line| !line.trim_ascii().is_empty());
    let via = headers.find_map(|line| {
        let at = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (line.get(..at)?.trim_ascii(), line.get(at + 1..)?);
        let is_via = name.eq_ignore_ascii_case(b"via") || name.eq_ignore_ascii_case(b"v");
        is_via.then_some(value)
    });
    let via = via.unwrap_or_default();
    // SIP/2.0/TLS, with spaces around the slashes or without.
    let name = via.splitn(3, |byte| *byte == b'/').nth(2);
    let name = name.unwrap_or_default().trim_ascii_start();
    let end = name.iter().position(|byte| !byte.is_ascii_alphanumeric());
    let name = name.get(..end.unwrap_or(name.len())).unwrap_or_default();
    match (packet.protocol, &*name.to_ascii_uppercase()) {
        (_, b"TLS") => Transport::Tls,
        (_, b"WS") => Transport::Ws,
        (_, b"WSS") => Transport::Wss,
        (ip_protocol::UDP, _) => Transport::Udp,
        _ => Transport::Tcp,
    }
}

/// An RTCP packet as rtpengine, heplify and FreeSWITCH write it (HEP protocol 5).
#[derive(Deserialize)]
struct RtcpJson {
    ssrc: u32,
    #[serde(default)]
    report_blocks: Vec<ReportBlock>,
}

#[derive(Deserialize)]
struct ReportBlock {
    source_ssrc: u32,
    fraction_lost: u8,
    packets_lost: i64,
    ia_jitter: u32,
}

/// The reports of an RTCP packet as events; or the reason why there is none.
fn reports_of(packet: &HepPacket<'_>) -> Result<Vec<EventKind>, HepOutcome> {
    let parsed: RtcpJson =
        serde_json::from_slice(packet.payload).map_err(|_| HepOutcome::Malformed)?;
    let call_id = std::str::from_utf8(packet.correlation).unwrap_or_default();
    if call_id.is_empty() || call_id.len() > MAX_CORRELATION {
        return Err(HepOutcome::UnknownCall);
    }
    let blocks = parsed.report_blocks.iter().take(MAX_REPORTS);
    let reports = blocks.map(|block| EventKind::RtcpReport {
        call_id: call_id.to_owned(),
        agent: packet.agent,
        source: packet.source.to_string(),
        destination: packet.destination.to_string(),
        ssrc: parsed.ssrc,
        media_ssrc: block.source_ssrc,
        loss_percent: Hundredths::of(f64::from(block.fraction_lost) * 100.0 / 256.0),
        packets_lost: cumulative(block.packets_lost),
        jitter_units: block.ia_jitter,
    });
    let reports: Vec<EventKind> = reports.collect();
    match reports.is_empty() {
        true => Err(HepOutcome::NoReport),
        false => Ok(reports),
    }
}

/// The cumulative number of lost packets. It is a signed number of 24 bits (RFC 3550, section 6.4.1), negative with
/// duplicates, which agents write with and without sign.
fn cumulative(lost: i64) -> u32 {
    match lost {
        0..0x80_0000 => lost as u32,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that rtpengine 10.5.3.5 (Debian 12) sent for a sender report with one block, with `--homer` and
    /// `--homer-id=77`.
    const RTPENGINE: &[u8] = include_bytes!("../../tests/suite/hep_rtcp_of_rtpengine.bin");

    /// A packet with a SIP message, as an agent sends it.
    fn sip_packet(payload: &[u8]) -> Vec<u8> {
        let packet = HepPacket {
            source: "192.0.2.1:5060".parse().unwrap(),
            destination: "192.0.2.2:5060".parse().unwrap(),
            protocol: ip_protocol::TCP,
            time: 1,
            kind: payload_type::SIP,
            agent: 7,
            key: b"",
            correlation: b"",
            payload,
        };
        let mut bytes = Vec::new();
        assert!(packet.write(&mut bytes));
        bytes
    }

    /// HEP of a proxy that decrypted the message: its content must not be stored.
    #[test]
    fn messages_that_an_agent_decrypted_have_their_own_transport() {
        for (via, transport) in [
            ("Via: SIP/2.0/TLS a;branch=z", Transport::Tls),
            ("v:SIP / 2.0 / wss a, SIP/2.0/UDP b", Transport::Wss),
            ("VIA : SIP/2.0/WS a", Transport::Ws),
            ("Via: SIP/2.0/TCP a\r\nVia: SIP/2.0/TLS b", Transport::Tcp),
            ("Via: SIP/2.0", Transport::Tcp),
            ("Via: SIP/2.0/", Transport::Tcp),
            ("To: x\r\n\r\nVia: SIP/2.0/TLS a", Transport::Tcp),
        ] {
            let message = format!("OPTIONS sip:x SIP/2.0\r\nFrom: SIP/2.0/TLS\r\n{via}\r\n\r\n");
            let bytes = sip_packet(message.as_bytes());
            let packet = HepPacket::parse(&bytes).unwrap();
            assert_eq!(transport_of(&packet), transport, "{via}");
        }
        let bytes = sip_packet(b"");
        let packet = HepPacket::parse(&bytes).unwrap();
        assert_eq!(transport_of(&packet), Transport::Tcp);
    }

    /// Less than the longest wait lies between two packets, and fewer come than are handed over at once.
    #[test]
    fn packets_are_handed_over_while_an_agent_is_never_silent() {
        const PACKETS: usize = HANDOVER - 1;
        let port = UdpSocket::bind("127.0.0.1:0").unwrap();
        let listen = port.local_addr().unwrap();
        drop(port);
        let text = format!(
            "[[interface]]\nname=\"x\"\nlisten=\"udp:192.0.2.1\"\n[store]\nfolder=\"/nowhere\"\nhep={{listen=\"udp:{listen}\"}}\n"
        );
        let spec = config::parse(&text, "test").unwrap().store.unwrap();
        let counts = Arc::default();
        let (agents, batches) = Agents::start(&spec, Clock::new(), &counts)
            .unwrap()
            .unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let bytes = sip_packet(b"OPTIONS sip:x SIP/2.0\r\n\r\n");
        // A thread at idle priority may be late.
        let (mut sent, mut early) = (0, 0);
        while early < 15 {
            assert!(sent < PACKETS, "{early}");
            socket.send_to(&bytes, listen).unwrap();
            sent += 1;
            std::thread::sleep(RECEIVE_WAIT * 6 / 10);
            early += batches.try_iter().map(|batch| batch.len()).sum::<usize>();
        }
        agents.stop();
        let late: usize = batches.try_iter().map(|batch| batch.len()).sum();
        assert_eq!(early + late, sent);
    }

    #[test]
    fn rtcp_of_rtpengine_is_read() {
        let packet = HepPacket::parse(RTPENGINE).unwrap();
        let expected = EventKind::RtcpReport {
            call_id: "rtpe-7@192.0.2.1".into(),
            agent: 77,
            source: "127.0.7.8:40001".into(),
            destination: "127.0.7.7:31001".into(),
            ssrc: 0x1111_1111,
            media_ssrc: 0x2222_2222,
            loss_percent: Hundredths(977),
            packets_lost: 10,
            jitter_units: 40,
        };
        assert_eq!(reports_of(&packet).ok(), Some(vec![expected]));
        let with = |correlation: &'static [u8], payload: &'static [u8]| {
            let packet = HepPacket {
                correlation,
                payload,
                ..packet
            };
            reports_of(&packet)
                .err()
                .map(|outcome| OUTCOMES[outcome as usize].1)
        };
        let id = b"a".as_slice();
        assert_eq!(with(id, b"{}"), Some("malformed"));
        assert_eq!(with(id, b"\x81\xc8"), Some("malformed"));
        assert_eq!(with(id, b"{\"ssrc\":1}"), Some("no report"));
        let report = b"{\"ssrc\":1,\"report_blocks\":[{\"source_ssrc\":2,\"fraction_lost\":0,\"ia_jitter\":0,\"packets_lost\":16777215}]}";
        assert_eq!(with(b"", report), Some("unknown call"));
        assert_eq!(
            with(&[b'x'; MAX_CORRELATION + 1], report),
            Some("unknown call")
        );
        assert_eq!(with(id, report), None);
        assert_eq!(
            [-1, 16_777_215, 8_388_607].map(cumulative),
            [0, 0, 8_388_607]
        );
    }
}
