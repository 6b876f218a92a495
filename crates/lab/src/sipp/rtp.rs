//! Received media of calls: sent back, and compared with the patterns that were sent.

use super::call::PeerRoute;
use super::engine::{ScenarioGenerator, VIDEO};
use engine::Datagram;
use std::net::SocketAddr;

/// Octets before the payload of the compared packets, as in SIPp.
const HEADER: usize = 12;

impl ScenarioGenerator {
    /// Processes a media packet.
    pub(super) fn media_received(&mut self, datagram: &Datagram<'_>) {
        self.statistics.media[1] += 1;
        self.compare(datagram);
        let echoes = self.echoing || self.echoes.contains_key(&datagram.source);
        if echoes {
            self.statistics.media[2] += 1;
            let route = PeerRoute::Udp(datagram.socket, datagram.source);
            self.outbox.send(route, datagram.bytes);
        }
    }

    /// Sends the media of a peer back from now on, in place of another one of the call. Calls may have a peer in
    /// common.
    pub(super) fn set_echo(&mut self, slot: usize, video: bool, wanted: Option<SocketAddr>) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let current = &mut call.media.echo[usize::from(video)];
        if *current == wanted {
            return;
        }
        if let Some(before) = std::mem::replace(current, wanted)
            && let Some(calls) = self.echoes.get_mut(&before)
        {
            *calls = calls.saturating_sub(1);
            if *calls == 0 {
                self.echoes.remove(&before);
            }
        }
        if let Some(address) = wanted {
            *self.echoes.entry(address).or_default() += 1;
        }
    }

    /// The echo follows the peer's address after a session description.
    pub(super) fn follow_echo(&mut self, slot: usize) {
        for video in [false, true] {
            let Some(call) = self.calls.get(slot) else {
                return;
            };
            if call.media.echo[usize::from(video)].is_some() {
                let address = call.media.of(video);
                self.set_echo(slot, video, address);
            }
        }
    }

    /// Expects the pattern that the call sends on this line, if it does, from its peer.
    pub(super) fn expect_pattern(&mut self, slot: usize, video: bool) {
        let line = usize::from(video);
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let playing = call.media.playing[line].as_ref();
        let (Some(octet), Some(peer), Some(numbering)) = (
            playing.and_then(|playing| playing.pattern()),
            call.media.of(video),
            call.media.numbering[line],
        ) else {
            return;
        };
        let source = (peer, numbering.ssrc);
        let check = &mut call.media.patterns[line];
        check.octet = octet;
        if let Some(before) = check.source.replace(source) {
            self.patterns.remove(&before);
        }
        self.patterns.insert(source, (slot as u32, video));
    }

    /// Compares a received packet with the pattern of its call. Calls with one peer address are told apart by the
    /// source of the packets that they sent, which an echo keeps.
    fn compare(&mut self, datagram: &Datagram<'_>) {
        if self.patterns.is_empty() {
            return;
        }
        let Some((header, payload)) = datagram.bytes.split_at_checked(HEADER) else {
            return;
        };
        let [.., a, b, c, d] = *header else { return };
        let ssrc = u32::from_be_bytes([a, b, c, d]);
        let from = |ssrc| (datagram.source, ssrc);
        let known = self.patterns.get(&from(ssrc)).or_else(|| {
            let mut of_peer = self.patterns.range(from(0)..=from(u32::MAX));
            let (_, only) = of_peer.next()?;
            of_peer.next().is_none().then_some(only)
        });
        let Some((slot, video)) = known.copied() else {
            return;
        };
        if video != (datagram.socket == VIDEO) {
            return;
        }
        if let Some(call) = self.calls.get_mut(slot as usize) {
            let check = &mut call.media.patterns[usize::from(video)];
            let is_equal = !payload.is_empty() && payload.iter().all(|octet| *octet == check.octet);
            check.matched += u64::from(is_equal);
        }
    }

    /// Ends the echo of a call, and grades its patterns.
    pub(super) fn release_media(&mut self, slot: usize) {
        for video in [false, true] {
            self.set_echo(slot, video, None);
            let line = usize::from(video);
            let Some(call) = self.calls.get_mut(slot) else {
                return;
            };
            let check = std::mem::take(&mut call.media.patterns[line]);
            if let Some(source) = check.source {
                self.patterns.remove(&source);
            }
            let missing = match check.sent {
                0 if check.is_without_address => 1.0,
                0 => continue,
                sent => 1.0 - check.matched.min(sent) as f64 / sent as f64,
            };
            // A tolerance of 0 permits no packet to be missing.
            let tolerance = self.context.settings.tolerances[line];
            let failed = missing > 0.0 && missing >= tolerance;
            self.statistics.patterns[0] += 1;
            self.statistics.patterns[1] += u64::from(failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RunVerdict;
    use crate::sipp::compile::compile;
    use crate::sipp::engine::{AUDIO, GeneratorParts};
    use crate::sipp::outcome::ScenarioResult;
    use crate::sipp::schedule::CallLimits;
    use crate::sipp::settings::ScenarioSettings;
    use crate::sipp::template::NameTable;
    use crate::sipp::xml;
    use engine::{Engine, Entropy, Input, Output, SocketId, Time};
    use media::dtmf::EventReceiver;
    use std::collections::BTreeMap;
    use wire::rtp::TelephoneEvent;

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 2], port))
    }

    /// A generator, driven by hand.
    struct MediaBench {
        generator: ScenarioGenerator,
        now: Time,
        /// Sent RTP packets.
        rtp: Vec<Vec<u8>>,
        sip: Vec<String>,
        /// Whether RTP comes back.
        returns: bool,
    }

    impl MediaBench {
        fn new(text: &str, calls: u64, tolerance: f64) -> MediaBench {
            let root = xml::read(text.as_bytes()).unwrap();
            let program = compile(&root, &mut NameTable::default()).unwrap();
            let settings = ScenarioSettings {
                remote: Some(peer(5_060)),
                limits: CallLimits {
                    total: Some(calls),
                    ..CallLimits::default()
                },
                tolerances: [tolerance; 2],
                ..ScenarioSettings::default()
            };
            let parts = GeneratorParts {
                program,
                settings,
                files: Vec::new(),
                recordings: Vec::new(),
                sounds: BTreeMap::new(),
            };
            let mut bench = MediaBench {
                generator: ScenarioGenerator::new(parts, Entropy::from_number(1)),
                now: Time::ZERO,
                rtp: Vec::new(),
                sip: Vec::new(),
                returns: false,
            };
            bench.give(Input::Timeout);
            for socket in 0..3 {
                bench.give(Input::Opened {
                    socket: SocketId(socket),
                    local: SocketAddr::from(([127, 0, 0, 1], 5_070)),
                });
            }
            bench.give(Input::Timeout);
            bench
        }

        fn give(&mut self, input: Input<'_>) {
            self.generator.handle(input, self.now);
            let mut returned = Vec::new();
            while let Some(output) = self.generator.next_output() {
                let Output::Datagram { socket, bytes, .. } = output else {
                    continue;
                };
                if socket == AUDIO {
                    self.rtp.push(bytes.to_vec());
                    returned.push(bytes.to_vec());
                } else {
                    self.sip.push(String::from_utf8_lossy(bytes).into_owned());
                }
            }
            if self.returns {
                returned
                    .into_iter()
                    .for_each(|packet| self.hear_rtp(7_000, packet));
            }
        }

        fn hear(&mut self, socket: SocketId, source: SocketAddr, mut bytes: Vec<u8>) {
            self.give(Input::Datagram(Datagram {
                socket,
                source,
                arrived: self.now,
                bytes: &mut bytes,
            }));
        }

        fn hear_rtp(&mut self, port: u16, packet: Vec<u8>) {
            self.hear(AUDIO, peer(port), packet);
        }

        fn hear_sip(&mut self, text: &str) {
            let bytes = text.replace('\n', "\r\n").into_bytes();
            self.hear(SocketId(0), peer(5_060), bytes);
        }

        /// Answers the INVITE of a call with this media port.
        fn answer(&mut self, call: u32, port: u16) {
            let body = sdp(port);
            self.hear_sip(&format!(
                "SIP/2.0 200 OK\nVia: SIP/2.0/UDP 127.0.0.1:5070;branch=z9hG4bK-1-{call}-0\nFrom: <sip:a@127.0.0.1>;tag={call}\n\
                 To: <sip:b@10.0.0.2>;tag=2\nCall-ID: {call}-1@127.0.0.1\nCSeq: 1 INVITE\nContent-Type: application/sdp\n\n{body}"
            ));
        }

        fn wait(&mut self, milliseconds: u64) {
            let end = Time(self.now.0 + milliseconds * 1_000_000);
            while let Some(deadline) = self.generator.next_deadline().filter(|next| next.at <= end)
            {
                self.now = self.now.max(deadline.at);
                self.give(Input::Timeout);
            }
            self.now = end;
        }

        fn verdict(&self) -> RunVerdict {
            let result = ScenarioResult {
                program: self.generator.program().clone(),
                file: String::new(),
                statistics: self.generator.statistics().clone(),
                seconds: 1.0,
                cpu: None,
                noise_p99_us: None,
                simulated: true,
                timed_out: false,
                other: None,
            };
            result.verdict()
        }
    }

    fn sdp(port: u16) -> String {
        format!(
            "v=0\no=- 1 1 IN IP4 10.0.0.2\ns=-\nc=IN IP4 10.0.0.2\nt=0 0\nm=audio {port} RTP/AVP 0 99\na=rtpmap:99 telephone-event/8000\n"
        )
    }

    fn caller(steps: &str) -> String {
        format!(
            "<scenario><send><![CDATA[\nINVITE sip:b@[remote_ip]:[remote_port] SIP/2.0\n\
             Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]\nFrom: <sip:a@[local_ip]>;tag=[call_number]\n\
             To: <sip:b@[remote_ip]>\nCall-ID: [call_id]\nCSeq: 1 INVITE\nContent-Length: 0\n]]></send><recv response=\"200\"/>{steps}</scenario>"
        )
    }

    fn action(exec: &str, pause: u32) -> String {
        format!("<nop><action><exec {exec}/></action></nop><pause milliseconds=\"{pause}\"/>")
    }

    fn number(packet: &[u8]) -> u16 {
        u16::from_be_bytes([packet[2], packet[3]])
    }

    #[test]
    fn pattern_that_does_not_come_back_fails_the_run() {
        let text = caller(&action("rtp_stream=\"apattern,1,0,PCMU/8000\"", 490));
        let verdict_at = |port: u16, returns: bool, tolerance: f64| {
            let mut bench = MediaBench::new(&text, 1, tolerance);
            bench.returns = returns;
            bench.answer(1, port);
            bench.wait(1_000);
            let statistics = bench.generator.statistics();
            assert_eq!((statistics.successful, statistics.patterns[0]), (1, 1));
            assert!(bench.generator.patterns.is_empty());
            bench.verdict()
        };
        let verdict = |returns, tolerance| verdict_at(7_000, returns, tolerance);
        assert_eq!(verdict(true, 1.0), RunVerdict::Passed);
        assert_eq!(verdict(true, 0.0), RunVerdict::Passed);
        assert_eq!(verdict(false, 1.0), RunVerdict::Failed);
        // The answer rejects audio: no packet of the pattern is sent.
        assert_eq!(verdict_at(0, true, 1.0), RunVerdict::Failed);
    }

    #[test]
    fn another_payload_is_no_returned_pattern() {
        let text = caller(&action("rtp_stream=\"apattern,1,0,PCMU/8000\"", 490));
        let mut bench = MediaBench::new(&text, 1, 1.0);
        bench.answer(1, 7_000);
        bench.wait(200);
        for _ in 0..10 {
            let mut packet = bench.rtp[0].clone();
            packet[20] ^= 1;
            bench.hear_rtp(7_000, packet);
            // The right octets of another peer.
            let packet = bench.rtp[0].clone();
            bench.hear_rtp(7_004, packet);
        }
        bench.wait(800);
        assert_eq!(bench.verdict(), RunVerdict::Failed);
    }

    #[test]
    fn calls_with_one_peer_address_are_told_apart_by_their_source() {
        let text = caller(&action("rtp_stream=\"apattern,1,0,PCMU/8000\"", 490));
        let mut bench = MediaBench::new(&text, 2, 1.0);
        bench.wait(150);
        bench.answer(1, 7_000);
        bench.answer(2, 7_000);
        bench.wait(100);
        let mut sources: Vec<&[u8]> = bench.rtp.iter().map(|packet| &packet[8..12]).collect();
        sources.sort_unstable();
        sources.dedup();
        assert_eq!(sources.len(), 2, "each call is a source of its own");
        // The media of one call only comes back.
        let packet = bench.rtp[0].clone();
        bench.hear_rtp(7_000, packet);
        bench.wait(1_000);
        assert_eq!(bench.generator.statistics().patterns, [2, 1]);
    }

    #[test]
    fn a_digit_that_is_pressed_twice_is_two_events() {
        let press = action("play_dtmf=\"1,100\"", 400);
        let mut bench = MediaBench::new(&caller(&press.repeat(2)), 1, 1.0);
        bench.answer(1, 7_000);
        bench.wait(1_000);
        assert_eq!(bench.rtp.len(), 14);
        let mut receiver = EventReceiver::default();
        let mut events = 0;
        for packet in &bench.rtp {
            let timestamp = u32::from_be_bytes([packet[4], packet[5], packet[6], packet[7]]);
            let event = TelephoneEvent::parse(&packet[12..]).unwrap();
            events += u32::from(receiver.receive(timestamp, event));
        }
        assert_eq!(events, 2);
        let mut pairs = bench.rtp.windows(2);
        assert!(pairs.all(|pair| number(&pair[1]) == number(&pair[0]).wrapping_add(1)));
    }

    #[test]
    fn sequence_numbers_and_timestamps_continue_over_streams() {
        let first = action("rtp_stream=\"apattern,1,0,PCMU/8000\"", 100);
        let second = action("rtp_stream=\"apattern,2,0,PCMU/8000\"", 100);
        let mut bench = MediaBench::new(&caller(&(first + &second)), 1, 1.0);
        bench.answer(1, 7_000);
        bench.wait(500);
        assert!(bench.rtp.len() > 8);
        let stamp =
            |packet: &[u8]| u32::from_be_bytes([packet[4], packet[5], packet[6], packet[7]]);
        for pair in bench.rtp.windows(2) {
            assert_eq!(number(&pair[1]), number(&pair[0]).wrapping_add(1));
            assert_eq!(pair[0][8..12], pair[1][8..12]);
            let step = stamp(&pair[1]).wrapping_sub(stamp(&pair[0]));
            assert!((0..=160).contains(&step), "{step}");
        }
    }

    fn invite(call: u32, cseq: u32, port: u16) -> String {
        let body = sdp(port);
        format!(
            "INVITE sip:b@127.0.0.1:5070 SIP/2.0\nVia: SIP/2.0/UDP 10.0.0.2:5060;branch=z9hG4bK-{call}-{cseq}\nFrom: <sip:a@10.0.0.2>;tag=1\n\
             To: <sip:b@127.0.0.1>\nCall-ID: echo-{call}\nCSeq: {cseq} INVITE\nContact: <sip:a@10.0.0.2>\nContent-Type: application/sdp\n\n{body}"
        )
    }

    fn bye(call: u32) -> String {
        format!(
            "BYE sip:b@127.0.0.1:5070 SIP/2.0\nVia: SIP/2.0/UDP 10.0.0.2:5060;branch=z9hG4bK-{call}-bye\nFrom: <sip:a@10.0.0.2>;tag=1\n\
             To: <sip:b@127.0.0.1>;tag=2\nCall-ID: echo-{call}\nCSeq: 9 BYE\n\n"
        )
    }

    #[test]
    fn echo_lasts_until_the_last_call_of_a_peer_has_ended() {
        let answer = |method: &str| {
            format!(
                "<send><![CDATA[\nSIP/2.0 200 OK\n[last_Via:]\n[last_From:]\n[last_To:];tag=2\n[last_Call-ID:]\n[last_CSeq:]\n\
                 X-Of: {method}\nContent-Length: 0\n]]></send>"
            )
        };
        let text = format!(
            "<scenario><recv request=\"INVITE\"><action><exec rtp_echo=\"startaudio,0,PCMU/8000\"/></action></recv>{}\
             <recv request=\"INVITE\" optional=\"true\" next=\"again\"/><recv request=\"BYE\"/>{}<pause milliseconds=\"1\" next=\"end\"/>\
             <label id=\"again\"/>{}<recv request=\"BYE\"/>{}<label id=\"end\"/></scenario>",
            answer("INVITE"),
            answer("BYE"),
            answer("INVITE"),
            answer("BYE")
        );
        let mut bench = MediaBench::new(&text, 3, 1.0);
        let echoed = |bench: &mut MediaBench, port: u16| {
            let before = bench.rtp.len();
            bench.hear_rtp(port, vec![0x80; 172]);
            bench.rtp.len() - before
        };
        for call in [1, 2] {
            bench.hear_sip(&invite(call, 1, 7_000));
        }
        assert_eq!(echoed(&mut bench, 7_000), 1);
        bench.hear_sip(&bye(1));
        bench.wait(100);
        assert_eq!(echoed(&mut bench, 7_000), 1, "the other call is open");
        // A re-INVITE moves the media of the other one.
        bench.hear_sip(&invite(2, 2, 7_002));
        assert_eq!(
            (echoed(&mut bench, 7_000), echoed(&mut bench, 7_002)),
            (0, 1)
        );
        bench.hear_sip(&bye(2));
        bench.wait(100);
        assert!(bench.generator.echoes.is_empty());
    }
}
