//! Media of a host: sockets, sessions, sending and receiving.

mod packet_clock;
mod stream_result;

use super::loss_by_second::LossBySecond;
use super::outbox::HostOutbox;
use super::packet_times::{PacketTimes, Transit};
use super::phone::{PhonePlan, PhoneRefusal};
use super::plan::{HostPlan, MediaKind};
use super::rtcp::SessionRtcp;
use super::sdp::{NegotiatedMedia, OwnRtcp};
use super::send_times::SendTimes;
use super::sounds::{SoundCache, SoundKind, TURN};
use codec::g711::Law;
use codec::{Format, Tone, ToneGenerator, speech};
use engine::PagedSlab;
use engine::timers::TimerHeap;
use engine::{Datagram, Deadline, Entropy, SocketId, SocketKind, Time};
use media::echo::Echo;
use media::playout::{Playout, TURN as PLAYOUT_TURN};
use media::shared_tone::SharedTone;
use media::sink::{Received, RtpSink, SinkConfig};
use media::source::{RtpSource, SourceConfig, SourceContent};
use protect::sdes::SdesAgreement;
use protect::srtp::{Contexts, MAX_OVERHEAD};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use stream_result::result;
pub use stream_result::{DueMedia, ReceivedSpeech, SentStream, StreamResult};
use wire::rtp::RtpView;

/// The first number of media sockets.
const BASE: u32 = 16;
/// The test tone, at -10 dBm0.
pub(super) const TONE: Tone = Tone::sine(1004.0, -10.0);
/// Duration of a packet.
const PACKET_TIME: Duration = Duration::from_millis(20);
/// Seconds of audio kept of a compared call.
const LISTEN_SECONDS: u32 = 8;
/// Duration of a digit that a phone sends.
const DIGIT: Duration = Duration::from_millis(160);
/// Received digits that are kept until they are read.
const MAX_DIGITS: usize = 256;
/// Recorded samples that are kept until they are read: 10 s at 48 kHz.
const MAX_RECORDED: usize = 480_000;

/// The voice of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoiceSide {
    /// The calling side's.
    Caller,
    /// The called side's.
    Callee,
}

impl VoiceSide {
    /// Its samples.
    pub fn samples(self) -> &'static [i16] {
        match self {
            VoiceSide::Caller => speech::speech(),
            VoiceSide::Callee => speech::answer(),
        }
    }
}

#[derive(Debug)]
struct MediaSocket {
    local: Option<SocketAddr>,
    session: Option<u32>,
}

/// Parameters of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MediaSessionPlan {
    /// Number of the call.
    pub(crate) number: u64,
    /// `caller` or `callee`.
    pub(crate) side: &'static str,
    /// Media to send.
    pub(crate) sends: MediaKind,
    /// Voice of this side.
    pub(crate) voice: VoiceSide,
    /// Expected voice, if audio is compared.
    pub(crate) listen: Option<VoiceSide>,
    /// Whether media is expected.
    pub(crate) expects_media: bool,
    /// Place among the participants that take turns.
    pub(crate) turn_index: u64,
    /// Whether send and arrival time of each packet are recorded.
    pub(crate) timed: bool,
}

/// The first packet of a sent stream.
#[derive(Clone, Copy, Debug)]
struct SourceStart {
    timestamp: u32,
    at: Time,
    clock_rate: u32,
}

#[derive(Debug)]
struct HostMediaSession {
    socket: u32,
    generation: u32,
    plan: MediaSessionPlan,
    remote: Option<SocketAddr>,
    source: Option<RtpSource>,
    started: Option<SourceStart>,
    echo: Option<(Echo, Option<(u32, u32)>)>,
    echoed: u64,
    may_send: bool,
    /// The session was on hold: no media was due for a time.
    was_held: bool,
    /// The peer was never permitted to send.
    is_silent: bool,
    /// As in [`DueMedia`].
    arrived: Option<(Time, Time)>,
    sink: RtpSink,
    losses: LossBySecond,
    transit: Transit,
    format: Format,
    /// Payload type of the agreed codec.
    payload_type: u8,
    srtp: SessionSecurity,
    /// RTCP of a phone.
    rtcp: Option<Box<SessionRtcp>>,
    /// Playout of a phone that records.
    playout: Option<Box<Playout>>,
    /// As in [`StreamResult`].
    times: [Option<PacketTimes>; 2],
}

/// Media security of a session.
#[derive(Debug, Default)]
enum SessionSecurity {
    /// RTP.
    #[default]
    None,
    /// SRTP.
    With(Box<Contexts>),
    /// Keying failed: received packets are discarded, and none are sent.
    Failed,
}

impl SessionSecurity {
    /// Protects the packet of this length at the beginning of `buffer`; returns its new length, or `None` if it must
    /// not be sent.
    fn seal(&mut self, buffer: &mut [u8], length: usize) -> Option<usize> {
        match self {
            SessionSecurity::None => Some(length),
            SessionSecurity::With(contexts) => contexts.outbound.protect_rtp(buffer, length).ok(),
            SessionSecurity::Failed => None,
        }
    }

    /// Unprotects a packet in place; returns its length. A packet that fails authentication counts as lost.
    fn open(&mut self, packet: &mut [u8]) -> Option<usize> {
        match self {
            SessionSecurity::None => Some(packet.len()),
            SessionSecurity::With(contexts) => contexts.inbound.unprotect_rtp(packet).ok(),
            SessionSecurity::Failed => None,
        }
    }
}

impl SessionSecurity {
    /// The RTCP packet as it is sent; `None`: it must not be sent.
    fn seal_rtcp(&mut self, mut packet: Vec<u8>) -> Option<Vec<u8>> {
        match self {
            SessionSecurity::None => Some(packet),
            SessionSecurity::With(contexts) => {
                let length = packet.len();
                packet.resize(length + MAX_OVERHEAD, 0);
                let sealed = contexts.outbound.protect_rtcp(&mut packet, length).ok()?;
                packet.truncate(sealed);
                Some(packet)
            }
            SessionSecurity::Failed => None,
        }
    }

    /// Unprotects an RTCP packet in place; returns its length.
    fn open_rtcp(&mut self, packet: &mut [u8]) -> Option<usize> {
        match self {
            SessionSecurity::None => Some(packet.len()),
            SessionSecurity::With(contexts) => contexts.inbound.unprotect_rtcp(packet).ok(),
            SessionSecurity::Failed => None,
        }
    }
}

impl HostMediaSession {
    /// Sends the RTCP report that is due; with `ends` the last one.
    fn send_report(&mut self, now: Time, ends: bool, out: &mut HostOutbox) {
        let Some(rtcp) = &mut self.rtcp else { return };
        let report = rtcp.report(now, self.source.as_ref(), &mut self.sink, ends);
        let path = rtcp.path(self.socket);
        if let (Some(report), Some((socket, to))) = (report, path)
            && let Some(sealed) = self.srtp.seal_rtcp(report)
        {
            out.datagram(SocketId(BASE + socket), to, &sealed);
        }
    }
}

/// All media of a host.
#[derive(Debug)]
pub(crate) struct HostMedia {
    name: String,
    bind: SocketAddr,
    next_port: u16,
    entropy: Entropy,
    sockets: PagedSlab<MediaSocket>,
    idle: VecDeque<u32>,
    opening: usize,
    sessions: PagedSlab<HostMediaSession>,
    generation: u32,
    clock: TimerHeap<(u32, u32)>,
    voices: Vec<(VoiceSide, Law, Arc<[u8]>)>,
    tones: Vec<(Law, SharedTone)>,
    sound_cache: SoundCache,
    participants: u64,
    /// Start of the trial.
    epoch: Time,
    /// The interval in which received media counts.
    window: Option<(Time, Time)>,
    /// Softphone functions.
    phone: Option<PhonePlan>,
    /// Playout turns of recording sessions.
    turns: TimerHeap<(u32, u32)>,
    /// RTCP reports of phones.
    reports: TimerHeap<(u32, u32)>,
    /// Received digits.
    digits: VecDeque<char>,
    digits_sent: u64,
    /// Recorded audio and its sample rate.
    recorded: (Vec<i16>, Option<u32>),
    /// Buffer for outgoing packets.
    scratch: Vec<u8>,
    packets_in: u64,
    packets_out: u64,
    /// Whether the driver calls for due packets ([`engine::Engine::send_media`]), as on sockets of a load generator.
    driver_clock: bool,
    /// Number of phases that calls have taken.
    phases: u64,
    /// Lateness of the sent packets.
    pub(super) send_times: SendTimes,
}

impl HostMedia {
    pub(crate) fn new(plan: &HostPlan, entropy: Entropy, out: &mut HostOutbox) -> HostMedia {
        let mut plane = HostMedia {
            name: plan.name.clone(),
            bind: SocketAddr::new(plan.address.ip(), 0),
            next_port: plan.media_port,
            entropy,
            sockets: PagedSlab::new(),
            idle: VecDeque::new(),
            opening: 0,
            sessions: PagedSlab::new(),
            generation: 0,
            clock: TimerHeap::new(),
            voices: Vec::new(),
            tones: Vec::new(),
            sound_cache: SoundCache::new(plan.phone.as_ref().and_then(|phone| phone.audio.clone())),
            participants: plan
                .calls
                .iter()
                .map(|call| call.participants)
                .max()
                .unwrap_or(0),
            epoch: Time::ZERO,
            window: None,
            phone: plan.phone.clone(),
            turns: TimerHeap::new(),
            reports: TimerHeap::new(),
            digits: VecDeque::new(),
            digits_sent: 0,
            recorded: (Vec::new(), None),
            scratch: Vec::new(),
            packets_in: 0,
            packets_out: 0,
            driver_clock: false,
            phases: 0,
            send_times: SendTimes::default(),
        };
        for _ in 0..plan.media_sockets {
            plane.grow(out);
        }
        plane.prepare(plan);
        plane
    }

    /// Encodes the speech of slow codecs in advance.
    fn prepare(&mut self, plan: &HostPlan) {
        let calls = plan
            .calls
            .iter()
            .map(|call| (call.sends, VoiceSide::Caller, call.codec));
        let answers = plan
            .answers
            .iter()
            .map(|plan| (plan.sends, VoiceSide::Callee, plan.codec));
        let streams = plan
            .streams
            .iter()
            .map(|plan| (plan.sends, VoiceSide::Caller, plan.codec));
        let phone = plan.phone.iter().filter(|phone| phone.live.is_none());
        let phone = phone.flat_map(|phone| &phone.codecs);
        let phone = phone.map(|format| (MediaKind::Speech, VoiceSide::Caller, *format));
        let contents: Vec<_> = calls.chain(answers).chain(streams).chain(phone).collect();
        for (sends, voice, format) in contents {
            if let Some(sound) = self.sound(sends, voice, format) {
                self.sound_cache.content(sound, format, 0);
            }
        }
    }

    /// The prepared sound of a session; `None` for G.711, which is encoded by table.
    fn sound(&self, sends: MediaKind, voice: VoiceSide, format: Format) -> Option<SoundKind> {
        let pauses = matches!(format, Format::G729 { annex_b: true });
        if self.phone.is_some() {
            return (sends != MediaKind::None).then_some(SoundKind::Phone);
        }
        match (sends, format.kind().law()) {
            (MediaKind::Turns, _) => Some(SoundKind::Turns(self.participants)),
            (MediaKind::None | MediaKind::Echo, _) | (_, Some(_)) => None,
            (MediaKind::Tone, None) => Some(SoundKind::Tone),
            (MediaKind::Speech, None) if pauses => Some(SoundKind::Pauses(voice)),
            (MediaKind::Speech, None) => Some(SoundKind::Voice(voice)),
        }
    }

    /// Starts at `start`; received media counts within `window` from then on.
    pub(crate) fn begin(&mut self, start: Time, window: Option<(Duration, Duration)>) {
        self.epoch = start;
        self.window = window.map(|(after, duration)| (start + after, start + after + duration));
    }

    /// Sets the SRTP contexts of a session; `None`: keying failed, and it has no media.
    pub(crate) fn secure(&mut self, session: u32, contexts: Option<Contexts>) {
        if let Some(entry) = self.sessions.get_mut(session as usize) {
            entry.srtp = match contexts {
                Some(contexts) => SessionSecurity::With(Box::new(contexts)),
                None => SessionSecurity::Failed,
            };
        }
    }

    /// Updates the SRTP contexts of a session from the agreement `before` to `after`.
    ///
    /// # Errors
    /// The contexts refuse a key; they are unchanged then, or the session has no media.
    pub(crate) fn rekey(
        &mut self,
        session: u32,
        before: &SdesAgreement,
        after: &SdesAgreement,
    ) -> Result<(), String> {
        let entry = self.sessions.get_mut(session as usize);
        match entry.map(|entry| &mut entry.srtp) {
            Some(SessionSecurity::With(contexts)) => after
                .rekey(contexts, before)
                .map_err(|error| error.to_string()),
            _ => Err("no keys before".to_owned()),
        }
    }

    /// Requests another socket.
    pub(crate) fn grow(&mut self, out: &mut HostOutbox) {
        let mut local = self.bind;
        local.set_port(self.next_port);
        if self.next_port != 0 {
            // RTP on even ports, RTCP of a phone on the port above (RFC 3550 section 11).
            let step = if self.phone.is_some() { 1 } else { 2 };
            self.next_port = self.next_port.saturating_add(step);
        }
        let index = self.sockets.insert(MediaSocket {
            local: None,
            session: None,
        });
        self.opening += 1;
        out.open(SocketId(BASE + index as u32), SocketKind::UdpMedia, local);
    }

    pub(crate) fn owns(&self, socket: SocketId) -> bool {
        socket.0 >= BASE
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.opening == 0
    }

    pub(crate) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    pub(crate) fn packets(&self) -> (u64, u64) {
        (self.packets_in, self.packets_out)
    }

    pub(crate) fn opened(&mut self, socket: SocketId, local: SocketAddr) {
        let index = socket.0 - BASE;
        if let Some(entry) = self.sockets.get_mut(index as usize) {
            entry.local = Some(local);
            self.opening = self.opening.saturating_sub(1);
            self.idle.push_back(index);
        }
    }

    pub(crate) fn failed(&mut self, socket: SocketId) {
        if self
            .sockets
            .try_remove((socket.0 - BASE) as usize)
            .is_some()
        {
            self.opening = self.opening.saturating_sub(1);
        }
    }

    /// Opens a session on the socket that was idle longest, so that late packets of its last call have arrived.
    pub(crate) fn open(&mut self, plan: MediaSessionPlan) -> Option<(u32, SocketAddr)> {
        let socket = self.idle.pop_front()?;
        let local = self.sockets.get(socket as usize)?.local?;
        let rtcp = self
            .phone
            .is_some()
            .then(|| SessionRtcp::new(self.idle.pop_front()));
        let rtcp_socket = rtcp.as_ref().and_then(|rtcp| rtcp.socket);
        self.generation = self.generation.wrapping_add(1);
        let capture_s = if plan.listen.is_some() {
            LISTEN_SECONDS
        } else {
            0
        };
        let session = self.sessions.insert(HostMediaSession {
            socket,
            generation: self.generation,
            plan,
            remote: None,
            source: None,
            started: None,
            echo: None,
            echoed: 0,
            may_send: false,
            was_held: false,
            is_silent: false,
            arrived: None,
            sink: RtpSink::new(SinkConfig {
                capture_s,
                ..SinkConfig::default()
            }),
            losses: LossBySecond::default(),
            transit: Transit::default(),
            format: Format::Pcma,
            payload_type: 0,
            srtp: SessionSecurity::None,
            rtcp: rtcp.map(Box::new),
            playout: None,
            times: [None, None],
        }) as u32;
        for socket in [Some(socket), rtcp_socket].into_iter().flatten() {
            self.sockets.get_mut(socket as usize)?.session = Some(session);
        }
        Some((session, local))
    }

    /// The own RTCP of a session, for its descriptions.
    pub(crate) fn rtcp(&self, session: u32) -> OwnRtcp {
        let entry = self.sessions.get(session as usize);
        let Some(rtcp) = entry.and_then(|entry| entry.rtcp.as_ref()) else {
            return OwnRtcp::Absent;
        };
        let socket = rtcp
            .socket
            .and_then(|socket| self.sockets.get(socket as usize));
        match socket.and_then(|socket| socket.local) {
            Some(local) => OwnRtcp::Port(local.port()),
            None => OwnRtcp::Mux,
        }
    }

    /// Starts or changes the sent media of the session.
    pub(crate) fn agree(&mut self, session: u32, agreed: &NegotiatedMedia, now: Time) {
        let Some(entry) = self.sessions.get_mut(session as usize) else {
            return;
        };
        let is_first = entry.remote.is_none();
        entry.is_silent = !agreed.receive && (is_first || entry.is_silent);
        entry.remote = Some(agreed.remote);
        entry.may_send = agreed.send;
        entry.was_held |= !agreed.send || !agreed.receive;
        if self.phone.is_some() {
            let clock_rate = agreed.format.kind().rtp_clock();
            let clock_rates = [(agreed.payload_type, clock_rate)];
            entry.sink.set_payload_types(agreed.events, &clock_rates);
        }
        let changed = entry.format != agreed.format || entry.payload_type != agreed.payload_type;
        if entry.format.kind().rtp_clock() != agreed.format.kind().rtp_clock() {
            // Times of packets before the answer were computed with the default codec's clock.
            entry.transit = Transit::default();
            entry.times[1] = None;
        }
        entry.format = agreed.format;
        entry.payload_type = agreed.payload_type;
        // Another codec begins another stream; the packets of the former one are not in the figure of sent packets.
        if changed && self.phone.is_some() {
            entry.source = None;
        }
        self.plan_playout(session, agreed.format, now);
        let Some(entry) = self.sessions.get_mut(session as usize) else {
            return;
        };
        match (entry.plan.sends, &mut entry.source) {
            (MediaKind::None, _) => {}
            (MediaKind::Echo, _) => {
                if entry.echo.is_none() {
                    entry.echo = Some((Echo::new(&mut self.entropy), None));
                }
            }
            (_, Some(source)) if agreed.send => {
                source.resume(now);
                let generation = entry.generation;
                self.plan_next(session, generation);
            }
            (_, Some(source)) => source.stop(),
            (_, None) if agreed.send => self.start(session, agreed, now),
            (_, None) => {}
        }
        self.plan_reports(session, agreed, now);
    }

    /// Begins the RTCP reports of a phone, or goes on with them.
    fn plan_reports(&mut self, session: u32, agreed: &NegotiatedMedia, now: Time) {
        let Some(entry) = self.sessions.get_mut(session as usize) else {
            return;
        };
        let Some(rtcp) = &mut entry.rtcp else { return };
        let ssrc = entry.source.as_ref().map(RtpSource::ssrc);
        let next = rtcp.agree(agreed.rtcp, ssrc, &mut self.entropy, now);
        if let Some(at) = next {
            self.reports.push(at, (session, entry.generation));
        }
    }

    /// Sends the reports that are due.
    fn run_reports(&mut self, now: Time, out: &mut HostOutbox) {
        while let Some((_, (session, generation))) = self.reports.pop_due(now) {
            let entry = self.sessions.get_mut(session as usize);
            let Some(entry) = entry.filter(|entry| entry.generation == generation) else {
                continue;
            };
            entry.send_report(now, false, out);
            let next = entry.rtcp.as_ref().and_then(|rtcp| rtcp.next_at());
            if let Some(at) = next {
                self.reports.push(at, (session, generation));
            }
        }
    }

    fn start(&mut self, session: u32, agreed: &NegotiatedMedia, now: Time) {
        let Some(plan) = self.sessions.get(session as usize).map(|entry| entry.plan) else {
            return;
        };
        let law = agreed.format.kind().law().unwrap_or(Law::A);
        let live = self.phone.as_ref().and_then(|phone| phone.live.clone());
        let content = match (
            self.sound(plan.sends, plan.voice, agreed.format),
            plan.sends,
        ) {
            (Some(SoundKind::Phone), _) if live.is_some() => {
                let format = agreed.format;
                live.map(|reader| SourceContent::Live { reader, format })
            }
            (Some(sound), _) => {
                let packets = now.since(self.epoch).as_millis() / PACKET_TIME.as_millis();
                let packets = usize::try_from(packets).unwrap_or_default();
                let turn_index = usize::try_from(plan.turn_index).unwrap_or_default();
                let first = match sound {
                    // A late participant still speaks in its own turn.
                    SoundKind::Turns(_) => packets + turn_index * TURN,
                    _ => 0,
                };
                self.sound_cache.content(sound, agreed.format, first)
            }
            (None, MediaKind::Tone) => Some(SourceContent::SharedTone(self.tone(law))),
            (None, _) => Some(SourceContent::Codes(self.voice(plan.voice, law))),
        };
        // A codec that is missing in this build was refused before.
        let Some(content) = content else { return };
        let clock_rate = agreed.format.kind().rtp_clock();
        let config = SourceConfig {
            payload_type: agreed.payload_type,
            clock_rate,
            event_payload_type: agreed.events.filter(|_| self.phone.is_some()),
            ..SourceConfig::g711(law, content, now)
        };
        // 20 ms at the clock rate of the codec is always a valid configuration.
        let Ok(source) = RtpSource::new(config, &mut self.entropy) else {
            return;
        };
        if let Some(entry) = self.sessions.get_mut(session as usize) {
            let timestamp = source.timestamp_at(now);
            entry.started = Some(SourceStart {
                timestamp,
                at: now,
                clock_rate,
            });
            let timed = entry.plan.timed;
            entry.times[0] = timed.then(|| PacketTimes::new(timestamp, now, clock_rate));
            entry.source = Some(source);
            let generation = entry.generation;
            self.plan_next(session, generation);
        }
    }

    fn voice(&mut self, voice: VoiceSide, law: Law) -> Arc<[u8]> {
        if let Some((_, _, codes)) = self
            .voices
            .iter()
            .find(|known| known.0 == voice && known.1 == law)
        {
            return codes.clone();
        }
        let codes: Arc<[u8]> = voice
            .samples()
            .iter()
            .map(|&sample| law.encode_sample(sample))
            .collect();
        self.voices.push((voice, law, codes.clone()));
        codes
    }

    fn tone(&mut self, law: Law) -> SharedTone {
        let known = self.tones.iter().find(|known| known.0 == law);
        if let Some((_, tone)) = known {
            return tone.clone();
        }
        let tone = SharedTone::new(ToneGenerator::new(TONE, speech::RATE), law);
        self.tones.push((law, tone.clone()));
        tone
    }

    fn plan_next(&mut self, session: u32, generation: u32) {
        let deadline = self
            .sessions
            .get(session as usize)
            .and_then(|entry| entry.source.as_ref()?.next_deadline());
        if let Some(deadline) = deadline {
            self.clock.push(deadline.at, (session, generation));
        }
    }

    /// Stops sending; received packets still count.
    pub(crate) fn mute(&mut self, session: u32) {
        if let Some(entry) = self.sessions.get_mut(session as usize) {
            entry.may_send = false;
            if let Some(source) = &mut entry.source {
                source.stop();
            }
        }
    }

    /// Begins the playout of a session, or continues it with another codec.
    fn plan_playout(&mut self, session: u32, format: Format, now: Time) {
        let Some(phone) = self.phone.as_ref().filter(|phone| phone.records) else {
            return;
        };
        let max_delay = phone.max_playout_delay;
        let Some(entry) = self.sessions.get_mut(session as usize) else {
            return;
        };
        if entry
            .playout
            .as_ref()
            .is_some_and(|playout| playout.format() == format)
        {
            return;
        }
        let rate = *self.recorded.1.get_or_insert(Playout::rate_of(format));
        // A codec that is missing in this build was refused before, and all rates of codecs have filters.
        let Ok(playout) = Playout::new(format, rate, max_delay, self.entropy.u64()) else {
            return;
        };
        if entry.playout.replace(Box::new(playout)).is_none() {
            self.turns
                .push(now + PLAYOUT_TURN, (session, entry.generation));
        }
    }

    /// Plays the turns that are due. They have absolute times, so that the recording has the length of the call.
    fn run_turns(&mut self, now: Time) {
        while let Some((at, (session, generation))) = self.turns.pop_due(now) {
            let entry = self.sessions.get_mut(session as usize);
            let Some(entry) = entry.filter(|entry| entry.generation == generation) else {
                continue;
            };
            if let Some(playout) = &mut entry.playout {
                playout.turn(at, &mut self.recorded.0);
                // A reader that stopped reading loses the oldest audio.
                let excess = self.recorded.0.len().saturating_sub(MAX_RECORDED);
                self.recorded.0.drain(..excess);
                self.turns.push(at + PLAYOUT_TURN, (session, generation));
            }
        }
    }

    /// As [`super::LabHost::take_recording`].
    pub(crate) fn take_recording(&mut self, out: &mut Vec<i16>) -> Option<u32> {
        out.append(&mut self.recorded.0);
        self.recorded.1
    }

    /// The next received digit.
    pub(crate) fn take_digit(&mut self) -> Option<char> {
        self.digits.pop_front()
    }

    /// Digits that were sent in all sessions.
    pub(crate) fn digits_sent(&self) -> u64 {
        self.digits_sent
    }

    /// Sends digits in a session.
    pub(crate) fn send_digits(&mut self, session: u32, digits: &str) -> Result<(), PhoneRefusal> {
        let entry = self.sessions.get_mut(session as usize);
        let source = entry.and_then(|entry| entry.source.as_mut());
        let source = source.ok_or(PhoneRefusal::NoCall)?;
        match source.send_digits(digits, DIGIT) {
            Ok(true) => Ok(()),
            Ok(false) => Err(PhoneRefusal::NoEvents),
            Err(error) => Err(PhoneRefusal::Digits(error)),
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Deadline> {
        let packet = self.clock.next_at().filter(|_| !self.driver_clock);
        let turn = self.turns.next_at();
        let report = self.reports.next_at();
        let media = Deadline::earlier(
            packet.map(|at| Deadline::new(at, "rtp packet")),
            turn.map(|at| Deadline::new(at, "playout turn")),
        );
        Deadline::earlier(media, report.map(|at| Deadline::new(at, "rtcp report")))
    }

    pub(crate) fn receive(&mut self, datagram: Datagram<'_>, out: &mut HostOutbox) {
        let index = datagram.socket.0 - BASE;
        let socket = self.sockets.get(index as usize);
        let session = socket.and_then(|socket| socket.session);
        let Some(entry) = session.and_then(|session| self.sessions.get_mut(session as usize))
        else {
            return;
        };
        // RTCP goes to the port above by default, which may belong to another session: only phones take it.
        if wire::rtcp::is_rtcp(datagram.bytes) {
            if let Some(rtcp) = &mut entry.rtcp
                && let Some(length) = entry.srtp.open_rtcp(datagram.bytes)
            {
                let packet = datagram.bytes.get(..length).unwrap_or_default();
                rtcp.receive(packet, datagram.arrived);
                if let Some(source) = &mut entry.source {
                    source.set_expected_loss(rtcp.expected_loss());
                }
            }
            return;
        }
        let Some(length) = entry.srtp.open(datagram.bytes) else {
            return;
        };
        let arrived = datagram.arrived;
        let packet = datagram.bytes.get_mut(..length).unwrap_or_default();
        let counts = self
            .window
            .is_none_or(|(from, to)| (from..to).contains(&arrived));
        if !counts {
            self.packets_in += 1;
            return;
        }
        if let Some(view) = RtpView::parse(packet) {
            self.packets_in += 1;
            let first = entry.arrived.map_or(arrived, |(first, _)| first);
            entry.arrived = Some((first, arrived));
            if entry.sink.ssrc() != Some(view.ssrc()) {
                entry.transit = Transit::default();
                entry.times[1] = None;
                entry.losses.begin_source();
            }
            let clock_rate = entry.format.kind().rtp_clock();
            entry.transit.receive(view.timestamp(), arrived, clock_rate);
            if entry.plan.timed {
                let timestamp = view.timestamp();
                entry.times[1]
                    .get_or_insert_with(|| PacketTimes::new(timestamp, arrived, clock_rate))
                    .note(timestamp, arrived);
            }
        }
        if entry.sink.receive(packet, arrived) == Received::EventBegin
            && let Some(digit) = entry.sink.events().digits().last()
            && let Some(digit) = digit.character()
            && self.digits.len() < MAX_DIGITS
        {
            self.digits.push_back(digit);
        }
        let sequence = entry.sink.statistics().sequence();
        entry.losses.note(arrived, sequence);
        if let (Some(playout), Some(view)) = (&mut entry.playout, RtpView::parse(packet))
            && view.payload_type() == entry.payload_type
            && let Some(payload) = view.payload()
        {
            // Late packets and duplicates are in the statistics already.
            let _ = playout.insert(arrived, view.timestamp(), payload);
        }
        let (Some((echo, seen)), Some(remote), true) =
            (&mut entry.echo, entry.remote, entry.may_send)
        else {
            return;
        };
        let before = RtpView::parse(packet).map(|view| (view.ssrc(), view.timestamp()));
        if echo.turn(packet) {
            let after = RtpView::parse(packet).map(|view| view.timestamp());
            if let (Some((ssrc, before)), Some(after)) = (before, after) {
                *seen = Some((ssrc, after.wrapping_sub(before)));
            }
            entry.echoed += 1;
            self.packets_out += 1;
            out.datagram(datagram.socket, remote, packet);
        }
    }

    /// The agreed codec, if media was agreed.
    pub(crate) fn agreed_format(&self, session: u32) -> Option<Format> {
        let entry = self.sessions.get(session as usize)?;
        entry.remote.map(|_| entry.format)
    }

    /// Whether the peer was never permitted to send.
    pub(crate) fn is_silent(&self, session: u32) -> bool {
        let entry = self.sessions.get(session as usize);
        entry.is_some_and(|entry| entry.is_silent)
    }

    /// Number of received packets.
    pub(crate) fn received(&self, session: u32) -> u64 {
        self.sessions
            .get(session as usize)
            .map_or(0, |entry| entry.transit.count)
    }

    /// Ends a session and returns its result. `span`: the time in which media of the peer was due, if known. `None` if
    /// no packet was sent, received or due.
    pub(crate) fn close(
        &mut self,
        session: u32,
        span: Option<(Time, Time)>,
        now: Time,
        out: &mut HostOutbox,
    ) -> Option<StreamResult> {
        let mut entry = self.sessions.try_remove(session as usize)?;
        entry.send_report(now, true, out);
        let rtcp = entry.rtcp.as_ref().and_then(|rtcp| rtcp.socket);
        for number in [Some(entry.socket), rtcp].into_iter().flatten() {
            if let Some(socket) = self.sockets.get_mut(number as usize) {
                socket.session = None;
                self.idle.push_back(number);
            }
        }
        let window = self.window.filter(|_| entry.plan.expects_media);
        let least = window.map_or(0, |(from, to)| DueMedia::packets_in(to.since(from)));
        let span = span.filter(|_| entry.plan.expects_media && !entry.was_held);
        let due = span.map(|span| DueMedia {
            span,
            arrived: entry.arrived,
            pauses: matches!(entry.format, Format::G729 { annex_b: true }),
        });
        result(&self.name, entry, least, due)
    }
}
