//! The media node plays sounds to parties of a call, in virtual time.

use crate::rig::*;

use codec::wav::{Encoding, write};
use codec::{Format, Kind, Unpacker, level};
use engine::DropReason;
use protect::sdes;
use protect::srtp::{ContextLimits, Inbound};
use std::time::Duration;
use wire::ng::Value;
use wire::rtp::RtpView;

const A: &str = "10.0.0.1:4000";
const B: &str = "10.0.0.2:5000";

fn plain_a() -> String {
    sdp("10.0.0.1", 4000, "RTP/AVP", "")
}

fn plain_b() -> String {
    sdp("10.0.0.2", 5000, "RTP/AVP", "")
}

/// Samples that differ from all their neighbours.
fn samples(count: usize) -> Vec<i16> {
    (0..count).map(|n| (n * 7919 % 20_011) as i16).collect()
}

/// A WAV file at 8000 Hz.
fn wav(samples: &[i16]) -> Vec<u8> {
    write(Encoding::Pcm16, 8000, 1, samples).unwrap()
}

/// The samples encoded as PCMU.
fn coded(samples: &[i16]) -> Vec<u8> {
    let law = codec::g711::Law::Mu;
    samples.iter().map(|&s| law.encode_sample(s)).collect()
}

/// A node with a call without SRTP between A and B; its ports towards them.
fn call(rig: &mut Rig) -> (String, String) {
    let offered = rig.offer(&plain_a(), &[("direction", "[outside,inside]")]);
    let answered = rig.answer(&plain_b(), &[]);
    (
        format!("192.0.2.1:{}", port_of(&answered)),
        format!("198.51.100.1:{}", port_of(&offered)),
    )
}

fn play(rig: &mut Rig, more: &[(&str, &str)]) -> Value {
    let mut pairs = vec![
        ("command", "play media"),
        ("call-id", "call"),
        ("from-tag", "a"),
        ("file", "a.wav"),
    ];
    pairs.retain(|(key, _)| !more.iter().any(|(other, _)| other == key));
    pairs.extend_from_slice(more);
    let reply = rig.ask(&command(&pairs));
    assert_eq!(text(&reply, "result"), "ok", "{reply:?}");
    reply
}

fn stop(rig: &mut Rig) -> Value {
    let pairs = [
        ("command", "stop media"),
        ("call-id", "call"),
        ("from-tag", "a"),
    ];
    rig.ask(&command(&pairs))
}

/// Reason, position and number of packets of ended playbacks.
fn ends(rig: &Rig) -> Vec<(String, u64, u64)> {
    let ended = rig.events.iter().filter_map(|event| match &event.kind {
        engine::EventKind::PlaybackEnded {
            reason: why,
            position_samples: position,
            packets,
            ..
        } => Some((why.clone(), *position, *packets)),
        _ => None,
    });
    ended.collect()
}

/// Fetches the sent packets, checks that they are in sequence, and returns the payloads.
fn received_samples(rig: &mut Rig, from: &str, to: &str, step: u32) -> Vec<Vec<u8>> {
    let media = std::mem::take(&mut rig.media);
    let mut before: Option<(u32, u16, u32)> = None;
    let mut payloads = Vec::new();
    for (source, destination, bytes) in media {
        assert_eq!((source, destination), (addr(from), addr(to)));
        let view = RtpView::parse(&bytes).unwrap();
        assert!(
            before.is_none() || !view.marker(),
            "only the first packet has the marker"
        );
        if let Some((ssrc, sequence, timestamp)) = before {
            assert_eq!(view.ssrc(), ssrc);
            assert_eq!(view.sequence(), sequence.wrapping_add(1));
            assert_eq!(view.timestamp(), timestamp.wrapping_add(step));
        }
        before = Some((view.ssrc(), view.sequence(), view.timestamp()));
        payloads.push(view.payload().unwrap().to_vec());
    }
    payloads
}

#[test]
fn file_replaces_the_audio_of_the_other_party() {
    let mut rig = Rig::new(CONFIG);
    let sound = samples(1_650);
    rig.sounds.insert("a.wav".into(), wav(&sound));
    let (towards_a, towards_b) = call(&mut rig);
    rig.send(A, &towards_a, &rtp(7, 1));
    assert!(rig.send(B, &towards_b, &rtp(9, 1)).is_some());
    let reply = play(&mut rig, &[("file", "/sounds/a.wav")]);
    assert_eq!(number(&reply, &["duration"]), 206);
    rig.pass(Duration::from_millis(100));
    // The party's audio is still relayed to the other one, whose audio it does not get meanwhile.
    assert_eq!(rig.send(B, &towards_b, &rtp(9, 2)), None);
    assert_eq!(
        rig.send(A, &towards_a, &rtp(7, 2)),
        Some((addr(B), rtp(7, 2)))
    );
    assert_eq!(
        rig.forwarder.drops().get(DropReason::MediaMutedForPlayback),
        1
    );
    rig.pass(Duration::from_millis(95));
    // At 0, 20 ... 180 ms.
    assert_eq!(rig.media.len(), 10);
    rig.pass(Duration::from_secs(1));
    assert!(RtpView::parse(&rig.media[0].2).unwrap().marker());
    let payloads = received_samples(&mut rig, &towards_a, A, 160);
    let mut whole = sound.clone();
    whole.resize(11 * 160, 0);
    assert_eq!(payloads.concat(), coded(&whole));
    assert_eq!(ends(&rig), [("finished".to_owned(), 1_650, 11)]);
    assert!(rig.send(B, &towards_b, &rtp(9, 3)).is_some());
    rig.ask(&command(&[("command", "delete"), ("call-id", "call")]));
    rig.assert_quiet();
}

#[test]
fn playback_obeys_repetitions_duration_and_start() {
    let mut rig = Rig::new(CONFIG);
    let sound = samples(800);
    rig.sounds.insert("a.wav".into(), wav(&sound));
    let (towards_a, _) = call(&mut rig);
    let mut twice = sound[320..].to_vec();
    twice.extend_from_slice(&sound);
    for (more, wanted) in [
        (vec![("start-pos", "320")], sound[320..].to_vec()),
        (vec![("repeat-times", "3")], sound.repeat(3)),
        (vec![("start-pos", "320"), ("repeat-times", "2")], twice),
        (vec![("repeat-duration", "500")], sound.repeat(5)),
        (
            vec![("repeat-duration", "100000"), ("repeat-times", "2")],
            sound.repeat(2),
        ),
        (
            vec![("repeat-duration", "40"), ("repeat-times", "9")],
            sound[..320].to_vec(),
        ),
    ] {
        play(&mut rig, &more);
        rig.pass(Duration::from_secs(3));
        let payloads = received_samples(&mut rig, &towards_a, A, 160);
        assert_eq!(payloads.concat(), coded(&wanted), "{more:?}");
        assert_eq!(ends(&rig).last().unwrap().0, "finished");
    }
    assert_eq!(rig.node.census().sounds, 0);
}

#[test]
fn playbacks_to_a_party_are_one_stream() {
    let mut rig = Rig::new(CONFIG);
    rig.sounds.insert("a.wav".into(), wav(&samples(80_000)));
    let (towards_a, _) = call(&mut rig);
    play(&mut rig, &[]);
    rig.pass(Duration::from_millis(195));
    let reply = stop(&mut rig);
    assert_eq!(number(&reply, &["last-frame-pos"]), 1_600);
    rig.pass(Duration::from_millis(805));
    assert_eq!(rig.media.len(), 10, "stopped");
    assert_eq!(stop(&mut rig), Value::dictionary().with("result", "ok"));
    let last = rig.media.last().unwrap().2.clone();
    rig.media.clear();
    play(&mut rig, &[("start-pos", "1600")]);
    rig.pass(Duration::from_millis(10));
    // Another playback replaces it.
    play(&mut rig, &[("start-pos", "40000")]);
    rig.pass(Duration::from_millis(10));
    let (last, next) = (
        RtpView::parse(&last).unwrap(),
        RtpView::parse(&rig.media[0].2).unwrap(),
    );
    assert_eq!(next.ssrc(), last.ssrc());
    assert_eq!(next.sequence(), last.sequence().wrapping_add(1));
    // A second later than the first packet of the first sound, which was nine packets before the last.
    let since = next.timestamp().wrapping_sub(last.timestamp());
    assert_eq!(since, 8_000 - 9 * 160);
    assert_eq!(next.payload().unwrap(), coded(&samples(1_760)[1_600..]));
    let replaced = ("replaced".to_owned(), 1_760, 1);
    assert_eq!(ends(&rig)[1], replaced);
    rig.media.clear();
    rig.pass(Duration::from_millis(200));
    assert_eq!(received_samples(&mut rig, &towards_a, A, 160).len(), 10);
    // It ends with the call.
    rig.ask(&command(&[("command", "delete"), ("call-id", "call")]));
    assert_eq!(ends(&rig)[2].0, "media_ended");
    rig.pass(Duration::from_secs(1));
    assert!(rig.media.is_empty());
    rig.assert_quiet();
}

#[test]
fn stalled_thread_skips_nothing_and_sends_no_burst() {
    use engine::Forward;
    let mut rig = Rig::new(CONFIG);
    rig.sounds.insert("a.wav".into(), wav(&samples(3_200)));
    call(&mut rig);
    play(&mut rig, &[]);
    rig.pass(Duration::from_millis(90));
    // Two packets are due and sent at once.
    rig.now += Duration::from_millis(40);
    rig.forwarder.timeout(rig.now);
    rig.drain();
    assert_eq!(rig.media.len(), 7);
    rig.now += Duration::from_millis(500);
    rig.forwarder.timeout(rig.now);
    rig.drain();
    assert_eq!(rig.media.len(), 8, "one, and the others in their time");
    rig.pass(Duration::from_secs(1));
    assert_eq!(rig.media.len(), 20);
    let packets = std::mem::take(&mut rig.media);
    let views = packets
        .iter()
        .map(|(_, _, bytes)| RtpView::parse(bytes).unwrap());
    let views: Vec<RtpView<'_>> = views.collect();
    let payloads: Vec<u8> = views
        .iter()
        .flat_map(|v| v.payload().unwrap().to_vec())
        .collect();
    assert_eq!(payloads, coded(&samples(3_200)));
    for (at, pair) in views.windows(2).enumerate() {
        let since = pair[1].timestamp().wrapping_sub(pair[0].timestamp());
        // The eighth was due at 140 ms and sent at 630 ms.
        let (wanted, marked) = if at == 6 {
            (160 + 490 * 8, true)
        } else {
            (160, false)
        };
        assert_eq!((since, pair[1].marker()), (wanted, marked), "{at}");
    }
}

/// A second of a tone at 1 kHz, with 16,000 samples per second and two channels.
fn tone() -> Vec<u8> {
    let mut samples = Vec::new();
    for n in 0..16_000 {
        let angle = f64::from(n) * std::f64::consts::TAU / 16.0;
        samples.extend([(angle.sin() * 10_000.0) as i16; 2]);
    }
    write(Encoding::Pcm16, 16_000, 2, &samples).unwrap()
}

#[test]
fn every_codec_and_packet_time_plays_a_file_of_another_rate() {
    for (kind, number, ptime) in [
        (Kind::Pcma, 8, 20),
        (Kind::Pcmu, 0, 30),
        (Kind::G722, 9, 20),
        (Kind::G729, 18, 40),
        (Kind::Opus, 111, 20),
    ] {
        if !kind.is_available() {
            eprintln!("skipped: {} is not built in", kind.name());
            continue;
        }
        let mut rig = Rig::new(CONFIG);
        rig.sounds.insert("a.wav".into(), tone());
        let clock = kind.rtp_clock();
        let channels = if kind == Kind::Opus { "/2" } else { "" };
        let party = |address: &str, port: u16| {
            format!(
                "v=0\r\no=x 1 1 IN IP4 {address}\r\ns=-\r\nc=IN IP4 {address}\r\nt=0 0\r\n\
                 m=audio {port} RTP/AVP {number}\r\na=rtpmap:{number} {}/{clock}{channels}\r\na=ptime:{ptime}\r\n",
                kind.name()
            )
        };
        let offered = rig.offer(&party("10.0.0.1", 4000), &[]);
        rig.answer(&party("10.0.0.2", 5000), &[]);
        assert_eq!(number_of(&play(&mut rig, &[("from-tag", "b")])), 1_000);
        rig.pass(Duration::from_secs(2));
        let towards_b = format!("192.0.2.1:{}", port_of(&offered));
        let payloads = received_samples(&mut rig, &towards_b, B, clock / 1000 * ptime);
        let most = 1_000 / ptime as usize;
        assert!(
            (most..=most + 2).contains(&payloads.len()),
            "{}",
            payloads.len()
        );
        let rate = kind.rate_near(16_000);
        let mut unpacker = Unpacker::new(&Format::new(kind), rate, 1).unwrap();
        let mut samples = Vec::new();
        for payload in &payloads {
            let mut decoded = [0; codec::coder::MAX_SAMPLES];
            let made = unpacker.audio(payload, &mut decoded).unwrap();
            samples.extend_from_slice(&decoded[..made]);
        }
        let middle = &samples[samples.len() / 4..samples.len() * 3 / 4];
        let all = level::dbov(middle);
        assert!((-16.0..-11.0).contains(&all), "{kind:?}: {all} dBov");
        // The signal without the tone: a sample and the one half a period later cancel.
        let half = rate as usize / 2_000;
        let rest: Vec<i16> = middle
            .windows(half + 1)
            .map(|w| ((i32::from(w[0]) + i32::from(w[half])) / 2) as i16)
            .collect();
        let rest = level::dbov(&rest);
        assert!(rest < all - 8.0, "{kind:?}: {all} and {rest} dBov");
    }
}

fn number_of(reply: &Value) -> i64 {
    number(reply, &["duration"])
}

#[test]
fn playback_uses_srtp() {
    let mut rig = Rig::new(CONFIG);
    rig.sounds.insert("a.wav".into(), wav(&samples(16_000)));
    let offered = rig.offer(&plain_a(), &[("transport-protocol", "RTP/SAVP")]);
    let values = offered
        .lines()
        .filter_map(|line| line.strip_prefix("a=crypto:"));
    let agreed = sdes::answer(
        &sdes::Policy::default(),
        values.map(str::as_bytes),
        &mut engine::Entropy::from_number(3),
    )
    .unwrap();
    let crypto = format!("a=crypto:{}\r\n", agreed.local.value().as_str());
    // Before the answer there are no keys and no address.
    let early = rig.refusal(&[
        ("command", "play media"),
        ("call-id", "call"),
        ("from-tag", "b"),
        ("file", "a.wav"),
    ]);
    assert!(early.contains("no party with this tag"), "{early}");
    let answered = rig.answer(&sdp("10.0.0.2", 5000, "RTP/SAVP", &crypto), &[]);
    let limits = ContextLimits::default();
    let mut inbound = Inbound::new(&agreed.remote.keys[0], limits).unwrap();
    let (towards_a, towards_b) = (
        format!("192.0.2.1:{}", port_of(&answered)),
        format!("192.0.2.1:{}", port_of(&offered)),
    );
    play(&mut rig, &[("from-tag", "b")]);
    rig.pass(Duration::from_millis(395));
    let payloads = opened(&mut rig, &mut inbound, &towards_b);
    assert_eq!(payloads, coded(&samples(3_200)));
    let reply = rig.ask(&command(&[
        ("command", "stop media"),
        ("call-id", "call"),
        ("flags", "[all]"),
    ]));
    assert_eq!(number(&reply, &["last-frame-pos"]), 3_200);
    // A's packets use the same context.
    let (_, mut sealed) = rig.send(A, &towards_a, &rtp(7, 1)).unwrap();
    let length = inbound.unprotect_rtp(&mut sealed).unwrap();
    assert_eq!(sealed[..length], rtp(7, 1));
    play(&mut rig, &[("from-tag", "b"), ("start-pos", "3200")]);
    rig.pass(Duration::from_millis(395));
    let payloads = opened(&mut rig, &mut inbound, &towards_b);
    assert_eq!(payloads, coded(&samples(6_400)[3_200..]));
}

/// The unprotected packets that B receives.
fn opened(rig: &mut Rig, inbound: &mut Inbound, towards_b: &str) -> Vec<u8> {
    for (_, _, bytes) in &mut rig.media {
        let length = inbound.unprotect_rtp(bytes).unwrap();
        bytes.truncate(length);
    }
    received_samples(rig, towards_b, B, 160).concat()
}

#[test]
fn new_answer_changes_the_codec_of_a_playback() {
    let mut rig = Rig::new(CONFIG);
    rig.sounds.insert("a.wav".into(), wav(&samples(16_000)));
    call(&mut rig);
    play(&mut rig, &[]);
    rig.pass(Duration::from_millis(95));
    // B changes to another phone, which supports A-law only.
    let other = plain_b().replace("RTP/AVP 0 8 101", "RTP/AVP 8 101");
    rig.offer(&plain_a(), &[("to-tag", "b")]);
    rig.answer(&other, &[]);
    rig.pass(Duration::from_millis(100));
    let law = codec::g711::Law::A;
    let mut at = 0;
    let mut types = Vec::new();
    for (_, _, bytes) in &rig.media {
        let view = RtpView::parse(bytes).unwrap();
        let sound = &samples(16_000)[at..at + 160];
        let wanted: Vec<u8> = match view.payload_type() {
            0 => coded(sound),
            _ => sound.iter().map(|&s| law.encode_sample(s)).collect(),
        };
        assert_eq!(view.payload().unwrap(), wanted);
        types.push(view.payload_type());
        at += 160;
    }
    assert_eq!(types, [0, 0, 0, 0, 0, 8, 8, 8, 8, 8]);
    // The line is rejected, so the playback ends.
    rig.offer(&plain_a(), &[("to-tag", "b")]);
    rig.answer(&other.replace("m=audio 5000", "m=audio 0"), &[]);
    assert_eq!(ends(&rig).len(), 1, "{:?}", rig.events);
    assert_eq!(rig.node.census().sounds, 0);
}

#[test]
fn playback_obeys_the_direction_of_a_line() {
    let mut rig = Rig::new(CONFIG);
    rig.sounds.insert("a.wav".into(), wav(&samples(1_600)));
    rig.offer(&sdp("10.0.0.1", 4000, "RTP/AVP", "a=recvonly\r\n"), &[]);
    // Before any answer: an announcement to the caller.
    play(&mut rig, &[]);
    rig.pass(Duration::from_millis(500));
    assert_eq!(rig.media.len(), 10);
    rig.media.clear();
    rig.answer(&sdp("10.0.0.2", 5000, "RTP/AVP", "a=sendonly\r\n"), &[]);
    play(&mut rig, &[("flags", "[all,block-egress]")]);
    rig.pass(Duration::from_millis(500));
    assert_eq!(rig.media.len(), 10);
    assert!(rig.media.iter().all(|(_, to, _)| *to == addr(A)));
    let playing = ends(&rig);
    assert_eq!(playing.len(), 2, "the other one waits: {playing:?}");
    assert_eq!(rig.node.census().sounds, 1);
    // Now it may receive, from the beginning.
    rig.media.clear();
    rig.offer(&plain_a(), &[("to-tag", "b")]);
    rig.answer(&plain_b(), &[]);
    rig.pass(Duration::from_millis(500));
    assert_eq!(rig.media.len(), 10);
    assert_eq!(ends(&rig).len(), 3);
}

#[test]
fn impossible_playback_is_refused_with_a_reason() {
    let mut rig = Rig::new(CONFIG);
    rig.sounds.insert("a.wav".into(), wav(&samples(160)));
    rig.sounds.insert("none.wav".into(), wav(&[]));
    rig.sounds
        .insert("bad.wav".into(), b"RIFFxxxxWAVEfmt ".to_vec());
    let odd = write(Encoding::Pcm16, 7_919, 1, &samples(100)).unwrap();
    rig.sounds.insert("odd.wav".into(), odd);
    call(&mut rig);
    let base = [("command", "play media"), ("call-id", "call")];
    for (more, why) in [
        (vec![("file", "a.wav")], "needs from-tag"),
        (vec![("from-tag", "c"), ("file", "a.wav")], "no party"),
        (vec![("from-tag", "a")], "No media file specified"),
        (
            vec![("from-tag", "a"), ("file", "a.wav"), ("blob", "x")],
            "exclude each other",
        ),
        (vec![("from-tag", "a"), ("db-id", "1")], "key \"db-id\""),
        (
            vec![("from-tag", "a"), ("address", "1.2.3.4")],
            "key \"address\"",
        ),
        (
            vec![("from-tag", "a"), ("blob", "rubbish")],
            "not a WAV file",
        ),
        (vec![("from-tag", "a"), ("file", "x.wav")], "No such file"),
        (
            vec![("from-tag", "a"), ("file", "bad.wav")],
            "no \"data\" chunk",
        ),
        (vec![("from-tag", "a"), ("file", "none.wav")], "no samples"),
        (vec![("from-tag", "a"), ("file", "odd.wav")], "7919"),
        (
            vec![("from-tag", "a"), ("file", "../a.wav")],
            "outside the folder",
        ),
        (
            vec![("from-tag", "a"), ("file", "/etc/passwd")],
            "outside the folder",
        ),
        (
            vec![("from-tag", "a"), ("file", "a.wav"), ("start-pos", "160")],
            "beyond the end",
        ),
        (
            vec![("from-tag", "a"), ("file", "a.wav"), ("repeat-times", "0")],
            "repeat-times",
        ),
        (
            vec![
                ("from-tag", "a"),
                ("file", "a.wav"),
                ("repeat-duration", "-1"),
            ],
            "repeat-duration",
        ),
    ] {
        let pairs = [&base[..], &more[..]].concat();
        let found = rig.refusal(&pairs);
        assert!(found.contains(why), "{more:?}: {found}");
    }
    let found = rig.refusal(&[("command", "query"), ("call-id", "call"), ("file", "a.wav")]);
    assert!(found.contains("does not take playback options"), "{found}");
    assert_eq!(rig.node.census().sounds, 0);
    assert!(rig.media.is_empty());
    // The parties have no supported codec, or there are no keys.
    let gsm = |address: &str, port: u16| sdp(address, port, "RTP/AVP", "").replace("0 8 101", "3");
    rig.offer(&gsm("10.0.0.1", 4000), &[("call-id", "gsm")]);
    rig.answer(&gsm("10.0.0.2", 5000), &[("call-id", "gsm")]);
    let crypto =
        "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:WVNfX19zZW1jdGwgKCkgewkyMjA7fQp9CnVubGVz\r\n";
    let kept = |address: &str, port: u16| sdp(address, port, "RTP/SAVP", crypto);
    rig.offer(&kept("10.0.0.1", 4000), &[("call-id", "kept")]);
    rig.answer(&kept("10.0.0.2", 5000), &[("call-id", "kept")]);
    for (call, why) in [("gsm", "supported codec"), ("kept", "end to end")] {
        let found = rig.refusal(&[
            ("command", "play media"),
            ("call-id", call),
            ("from-tag", "a"),
            ("file", "a.wav"),
        ]);
        assert!(found.contains(why), "{found}");
    }
    let mut bare = Rig::new(&CONFIG.replace("sounds='/sounds'", ""));
    call(&mut bare);
    let pairs = [&base[..], &[("from-tag", "a"), ("file", "a.wav")]].concat();
    assert!(
        bare.refusal(&pairs)
            .contains("no folder for sounds is configured")
    );
    // A sound in the command needs no directory. Its octets are not text.
    let mut body = command(&[&base[..], &[("from-tag", "a")]].concat());
    body.set("blob", wav(&samples(480)).as_slice());
    let reply = bare.ask(&body);
    assert_eq!(number(&reply, &["duration"]), 60, "{reply:?}");
    bare.pass(Duration::from_secs(1));
    assert_eq!(bare.media.len(), 3);
}
