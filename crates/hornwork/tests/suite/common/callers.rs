//! Test callers over real sockets: each calls, sends a tone, analyses received audio, sends digits, and handles BYE.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use codec::packet::PacketiserSettings;
use codec::{Format, Kind, Packetiser, Tone, ToneGenerator, Unpacker};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::rtp::{RtpHeader, RtpView, TelephoneEvent};

/// Samples in which a tone is searched: half a second.
const WINDOW: usize = 4_000;

#[derive(Default)]
struct State {
    status: u16,
    heard: Vec<i16>,
    packets: u64,
    ended: bool,
}

/// A caller on a thread of its own.
pub struct Caller {
    pub hz: f64,
    state: Arc<Mutex<State>>,
    digits: Sender<char>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Waits for a condition, long enough for a machine that stalls at times.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < end, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Caller {
    /// Calls `user` of the border at `sip` from 127.0.0.1, and sends a tone.
    pub fn dial(sip: u16, user: &str, hz: f64) -> Caller {
        let state = Arc::new(Mutex::new(State::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let (digits, pressed) = channel();
        let line = Line::new(sip, user, hz, state.clone(), pressed);
        let until = stop.clone();
        let thread = std::thread::spawn(move || line.run(&until));
        Caller {
            hz,
            state,
            digits,
            stop,
            thread: Some(thread),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The final status of its INVITE; waits for it.
    pub fn status(&self) -> u16 {
        eventually("a final response", || self.state().status > 0);
        self.state().status
    }

    /// Whether the border has sent BYE.
    pub fn ended(&self) -> bool {
        self.state().ended
    }

    /// Number of received RTP packets.
    pub fn packets(&self) -> u64 {
        self.state().packets
    }

    /// Discards the audio received so far.
    pub fn discard_audio(&self) {
        self.state().heard.clear();
    }

    pub fn press(&self, digit: char) {
        self.digits.send(digit).unwrap();
    }

    /// Level of a tone in the last half second, in dB relative to the callers' tones; `None` before half a second was
    /// received.
    pub fn level(&self, hz: f64) -> Option<f64> {
        let state = self.state();
        let from = state.heard.len().checked_sub(WINDOW)?;
        let samples = &state.heard[from..];
        let step = core::f64::consts::TAU * hz / 8_000.0;
        let (mut re, mut im) = (0.0, 0.0);
        for (index, &sample) in samples.iter().enumerate() {
            let place = core::f64::consts::TAU * index as f64 / WINDOW as f64;
            let window = 0.5 - 0.5 * place.cos();
            re += window * f64::from(sample) * (step * index as f64).cos();
            im += window * f64::from(sample) * (step * index as f64).sin();
        }
        let amplitude = 4.0 * f64::hypot(re, im) / WINDOW as f64;
        Some(20.0 * (amplitude.max(1e-3) / 3_617.0).log10())
    }

    /// Waits until a tone is received, or no longer received.
    pub fn wait_for_tone(&self, hz: f64, heard: bool) {
        self.discard_audio();
        eventually(&format!("{hz} Hz received: {heard}"), || {
            self.level(hz).is_some_and(|level| match heard {
                true => level > -7.0,
                false => level < -30.0,
            })
        });
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Line {
    state: Arc<Mutex<State>>,
    pressed: Receiver<char>,
    sip: UdpSocket,
    rtp: UdpSocket,
    /// Common part of Call-ID, tag and branch.
    mark: String,
    border: SocketAddr,
    user: String,
    to: Option<SocketAddr>,
    packetiser: Packetiser,
    unpacker: Unpacker,
    tone: ToneGenerator,
    sequence: u16,
}

impl Line {
    fn new(
        sip: u16,
        user: &str,
        hz: f64,
        state: Arc<Mutex<State>>,
        pressed: Receiver<char>,
    ) -> Line {
        let socket = || {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            socket
                .set_read_timeout(Some(Duration::from_millis(2)))
                .expect("timeout");
            socket
        };
        let own = socket();
        let mark = own.local_addr().expect("address").port().to_string();
        let packing = PacketiserSettings {
            packet_ms: 20,
            suppress_silence: false,
        };
        let format = Format::new(Kind::Pcma);
        Line {
            state,
            pressed,
            sip: own,
            rtp: socket(),
            mark,
            border: SocketAddr::from(([127, 0, 0, 1], sip)),
            user: user.to_owned(),
            to: None,
            packetiser: Packetiser::new(&format, 8_000, packing).expect("PCMA"),
            unpacker: Unpacker::new(&format, 8_000, 1).expect("PCMA"),
            tone: ToneGenerator::new(Tone::sine(hz, -16.0), 8_000),
            sequence: 1,
        }
    }

    fn request(&self, method: &str, to_tag: &str, body: &str) {
        let mark = &self.mark;
        let kind = match body {
            "" => "",
            _ => "Content-Type: application/sdp\r\n",
        };
        let text = format!(
            "{method} sip:{user}@127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1:{mark};branch=z9hG4bK{method}{mark};rport\r\n\
             Max-Forwards: 70\r\nFrom: <sip:caller{mark}@127.0.0.1>;tag=t{mark}\r\nTo: <sip:{user}@127.0.0.1>{to_tag}\r\n\
             Call-ID: call{mark}\r\nCSeq: 1 {method}\r\nContact: <sip:caller@127.0.0.1:{mark}>\r\n{kind}Content-Length: {}\r\n\r\n{body}",
            body.len(),
            user = self.user,
        );
        let _ = self.sip.send_to(text.as_bytes(), self.border);
    }

    fn run(mut self, stop: &AtomicBool) {
        let port = self.rtp.local_addr().expect("address").port();
        let offer = format!(
            "v=0\r\no=x 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {port} RTP/AVP 8 101\r\n\
             a=rtpmap:101 telephone-event/8000\r\na=ptime:20\r\n"
        );
        let begun = Instant::now();
        let (mut invited, mut spoken, mut pressed) = (0, 0, 0);
        let mut bytes = [0; 4096];
        while !stop.load(Ordering::Acquire) {
            // Retransmitted each second until there is a response (RFC 3261 section 17.1.1.2).
            let status = self.state().status;
            if status == 0 && begun.elapsed() >= Duration::from_secs(invited) {
                invited += 1;
                self.request("INVITE", "", &offer);
            }
            while let Ok((length, _)) = self.sip.recv_from(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
                self.handle_message(&text);
            }
            while let Ok(length) = self.rtp.recv(&mut bytes) {
                self.handle_audio(&bytes[..length]);
                if u128::from(spoken) * 10 < begun.elapsed().as_millis() {
                    break;
                }
            }
            while u128::from(spoken) * 10 < begun.elapsed().as_millis() {
                spoken += 1u64;
                self.send_audio();
            }
            // Each digit is an event with a timestamp of its own, also if several wait after a stall.
            if let Some(to) = self.to
                && spoken >= pressed + 6
                && let Ok(digit) = self.pressed.try_recv()
            {
                pressed = spoken;
                self.press(digit, spoken as u32 * 80, to);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle_message(&mut self, text: &str) {
        let line = |name: &str| {
            let mut lines = text.lines();
            lines
                .find_map(|line| line.strip_prefix(name))
                .map(str::to_owned)
        };
        if text.starts_with("BYE ") {
            let copied = ["Via: ", "From: ", "To: ", "Call-ID: ", "CSeq: "]
                .map(|name| {
                    let values = text.lines().filter(|line| line.starts_with(name));
                    values.map(|line| format!("{line}\r\n")).collect::<String>()
                })
                .concat();
            let answer = format!("SIP/2.0 200 OK\r\n{copied}Content-Length: 0\r\n\r\n");
            let _ = self.sip.send_to(answer.as_bytes(), self.border);
            self.state().ended = true;
            return;
        }
        let status: u16 = text
            .strip_prefix("SIP/2.0 ")
            .and_then(|rest| rest.get(..3)?.parse().ok())
            .unwrap_or(0);
        if status < 200 || !line("CSeq: ").is_some_and(|value| value.ends_with("INVITE")) {
            return;
        }
        let tag = line("To: ").and_then(|to| Some(format!(";tag={}", to.split(";tag=").nth(1)?)));
        self.request("ACK", &tag.unwrap_or_default(), "");
        if status == 200 {
            let port = text.split("m=audio ").nth(1);
            let port = port.and_then(|rest| rest.split(' ').next()?.parse::<u16>().ok());
            self.to = port.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        }
        self.state().status = status;
    }

    fn handle_audio(&mut self, bytes: &[u8]) {
        if wire::rtcp::is_rtcp(bytes) {
            return;
        }
        let Some(view) = RtpView::parse(bytes) else {
            return;
        };
        let mut samples = [0; codec::coder::MAX_SAMPLES];
        let made = self
            .unpacker
            .audio(view.payload().unwrap_or_default(), &mut samples)
            .expect("PCMA");
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.packets += 1;
        state.heard.extend_from_slice(&samples[..made]);
    }

    /// Sends 10 ms of its tone.
    fn send_audio(&mut self) {
        let mut samples = [0; 80];
        self.tone.fill(&mut samples);
        let (rtp, to, sequence) = (&self.rtp, self.to, &mut self.sequence);
        let ssrc = self.user.len() as u32 + self.mark.len() as u32;
        self.packetiser
            .push(&samples, &mut |packet| {
                let header = RtpHeader {
                    payload_type: 8,
                    sequence: *sequence,
                    timestamp: packet.timestamp,
                    ssrc,
                    ..RtpHeader::default()
                };
                if let Some(to) = to {
                    *sequence = sequence.wrapping_add(1);
                    let _ = rtp.send_to(&header.packet(packet.payload), to);
                }
            })
            .expect("PCMA");
    }

    /// Sends a digit as three packets of one event.
    fn press(&mut self, digit: char, timestamp: u32, to: SocketAddr) {
        let event = TelephoneEvent {
            event: TelephoneEvent::code(digit).expect("a digit"),
            end: true,
            volume: 10,
            duration: 800,
        };
        for _ in 0..3 {
            let header = RtpHeader {
                payload_type: 101,
                sequence: self.sequence,
                timestamp,
                ssrc: self.user.len() as u32 + self.mark.len() as u32,
                ..RtpHeader::default()
            };
            self.sequence = self.sequence.wrapping_add(1);
            let _ = self.rtp.send_to(&header.packet(&event.to_bytes()), to);
        }
    }
}
