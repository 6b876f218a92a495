//! Session descriptions written by hand: accessors, rewriting, offer and answer.

use proptest::prelude::*;
use wire::sdp::offer::{self, Mismatch, match_answer, write_answer, write_offer};
use wire::sdp::{
    Codec, Direction, MediaRewrite, OriginRewrite, Rewrite, RtcpPort, Sdp, SdpError, Setup, rewrite,
};

const OFFER: &str = "v=0\r\n\
    o=alice 2890844526 2890844527 IN IP4 10.1.2.3\r\n\
    s= \r\n\
    c=IN IP4 10.1.2.3\r\n\
    b=AS:80\r\n\
    t=0 0\r\n\
    a=ice-lite\r\n\
    a=group:BUNDLE a v\r\n\
    x=kept as it came\r\n\
    m=audio 49170/2 RTP/AVP 0 97 101\r\n\
    i=speech\r\n\
    a=rtpmap:97 opus/48000/2\r\n\
    a=fmtp:97 useinbandfec=1; stereo=0\r\n\
    a=rtpmap:101 telephone-event/8000\r\n\
    a=fmtp:101 0-16\r\n\
    a=ptime:20\r\n\
    a=sendonly\r\n\
    a=mid:a\r\n\
    a=rtcp:53020 IN IP4 10.1.2.4\r\n\
    a=candidate:1 1 UDP 2130706431 10.1.2.3 49170 typ host\r\n\
    a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:secret\r\n\
    m=video 0 RTP/SAVPF 31\r\n\
    c=IN IP6 2001:db8::7\r\n\
    a=mid:v\r\n\
    m=image 5000 udptl t38\r\n\
    c=IN IP4 0.0.0.0\r\n\
    a=setup:actpass\r\n\
    a=fingerprint:sha-256 AA:BB\r\n";

fn parse(text: &str) -> Sdp<'_> {
    Sdp::parse(text.as_bytes()).expect("a session description")
}

#[test]
fn accessors() {
    let sdp = parse(OFFER);
    let origin = sdp.origin().unwrap();
    assert_eq!(
        (origin.session_id, origin.address),
        (&b"2890844526"[..], &b"IN IP4 10.1.2.3"[..])
    );
    let [audio, video, image] = [0, 1, 2].map(|index| sdp.media_at(index).unwrap());
    assert_eq!(
        (audio.line.kind, audio.line.port, audio.line.count),
        (&b"audio"[..], 49170, 2)
    );
    assert_eq!(audio.rtp_address(), Some("10.1.2.3:49170".parse().unwrap()));
    assert_eq!(
        audio.rtcp_address(),
        Some("10.1.2.4:53020".parse().unwrap())
    );
    let codecs: Vec<_> = audio.codecs().collect();
    assert_eq!(codecs.len(), 3);
    assert_eq!((codecs[0].name, codecs[0].clock_rate), (&b"PCMU"[..], 8000));
    assert_eq!(
        (codecs[1].channels, codecs[1].fmtp),
        (2, Some(&b"useinbandfec=1; stereo=0"[..]))
    );
    assert_eq!(
        (audio.ptime(), audio.mid(), audio.direction()),
        (Some(20), Some(&b"a"[..]), Direction::SendOnly)
    );
    assert!(audio.is_hold() && audio.is_rtp() && !audio.is_secure() && !audio.has_rtcp_mux());
    let candidate = audio.candidates().next().unwrap();
    assert_eq!(
        candidate.socket_addr(),
        Some("10.1.2.3:49170".parse().unwrap())
    );
    let crypto = audio.cryptos().next().unwrap();
    assert_eq!((crypto.tag, crypto.parameters), (1, &b"inline:secret"[..]));
    assert!(
        !format!("{crypto:?}").contains("secret"),
        "keys are not shown"
    );
    assert!(
        video.is_rejected()
            && video.is_secure()
            && video.rtp_address().is_none()
            && !video.is_hold()
    );
    assert!(image.is_hold(), "0.0.0.0 is a hold");
    assert_eq!(image.setup(), Some(Setup::ActPass));
    assert_eq!(image.fingerprint().unwrap().value, b"AA:BB");
    let group = sdp.groups().next().unwrap();
    assert_eq!(group.mids().collect::<Vec<_>>(), [b"a", b"v"]);
}

#[test]
fn rtcp_address_rules() {
    let of = |attributes: &str| {
        let text = format!("v=0\r\nc=IN IP6 ::1\r\nm=audio 4000 RTP/AVP 0\r\n{attributes}");
        parse(&text).media_at(0).unwrap().rtcp_address()
    };
    assert_eq!(of(""), "[::1]:4001".parse().ok());
    assert_eq!(of("a=rtcp-mux\r\n"), "[::1]:4000".parse().ok());
    assert_eq!(of("a=rtcp:5000\r\n"), "[::1]:5000".parse().ok());
    assert_eq!(
        of("a=rtcp:5000 IN IP4 192.0.2.1\r\n"),
        "192.0.2.1:5000".parse().ok()
    );
}

#[test]
fn anchoring_an_offer() {
    let sdp = parse(OFFER);
    let anchor = "203.0.113.9:30000".parse().unwrap();
    let other = "[2001:db8::9]:30004".parse().unwrap();
    let media = [
        MediaRewrite::anchor(anchor, RtcpPort::At(30001)),
        MediaRewrite::anchor(other, RtcpPort::Above),
        MediaRewrite::anchor(anchor, RtcpPort::Above),
    ];
    let origin = OriginRewrite {
        address: anchor.ip(),
        username: Some(b"-"),
        session_id: None,
        version: Some(5),
    };
    let drop = |media: Option<usize>, name: &[u8]| media == Some(0) && name == b"crypto";
    let mut out = Vec::new();
    rewrite(
        &sdp,
        &Rewrite {
            origin: Some(origin),
            media: &media,
            drop: Some(&drop),
        },
        &mut out,
    );
    let expected = OFFER
        .replace(
            "o=alice 2890844526 2890844527 IN IP4 10.1.2.3",
            "o=- 2890844526 5 IN IP4 203.0.113.9",
        )
        .replace("s= \r\nc=IN IP4 10.1.2.3", "s= \r\nc=IN IP4 203.0.113.9")
        .replace("a=ice-lite\r\n", "")
        .replace("m=audio 49170/2 ", "m=audio 30000 ")
        .replace(
            "a=rtcp:53020 IN IP4 10.1.2.4",
            "a=rtcp:30001 IN IP4 203.0.113.9",
        )
        .replace(
            "a=candidate:1 1 UDP 2130706431 10.1.2.3 49170 typ host\r\n",
            "",
        )
        .replace("a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:secret\r\n", "")
        .replace("2001:db8::7", "2001:db8::9")
        .replace("m=image 5000", "m=image 30000");
    assert_eq!(
        String::from_utf8(out).unwrap(),
        expected,
        "0.0.0.0 and the rejected line stay"
    );
}

#[test]
fn anchoring_one_line_of_two_keeps_the_other_reachable() {
    let text = "v=0\no=- 1 1 IN IP4 10.0.0.1\ns=-\nc=IN IP4 10.0.0.1\nt=0 0\nm=audio 4000 RTP/AVP 0\ni=x\nm=video 4002 RTP/AVP 31";
    let sdp = parse(text);
    let media = [
        MediaRewrite::Keep,
        MediaRewrite::Anchor {
            address: "[2001:db8::9]:30000".parse().unwrap(),
            rtcp: RtcpPort::Mux,
            direction: Some(Direction::RecvOnly),
            protocol: Some("RTP/AVPF"),
            add: &[b"a=x:1"],
        },
    ];
    let mut out = Vec::new();
    rewrite(
        &sdp,
        &Rewrite {
            origin: None,
            media: &media,
            drop: None,
        },
        &mut out,
    );
    let expected = "v=0\no=- 1 1 IN IP4 10.0.0.1\ns=-\nc=IN IP6 2001:db8::9\nt=0 0\nm=audio 4000 RTP/AVP 0\ni=x\n\
        c=IN IP4 10.0.0.1\nm=video 30000 RTP/AVPF 31\r\na=rtcp-mux\r\na=recvonly\r\na=x:1\r\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
    let mut out = Vec::new();
    rewrite(
        &sdp,
        &Rewrite {
            origin: None,
            media: &[MediaRewrite::Reject],
            drop: None,
        },
        &mut out,
    );
    assert_eq!(
        String::from_utf8(out).unwrap(),
        text.replace("audio 4000", "audio 0")
    );
}

#[test]
fn direction_answers_follow_rfc_3264() {
    use Direction::{Inactive, RecvOnly, SendOnly, SendRecv};
    // RFC 3264 section 6.1: table by offered direction and direction preferred by the answerer.
    for (offered, wanted, answer) in [
        (SendRecv, SendRecv, SendRecv),
        (SendRecv, SendOnly, SendOnly),
        (SendRecv, Inactive, Inactive),
        (SendOnly, SendRecv, RecvOnly),
        (SendOnly, SendOnly, Inactive),
        (RecvOnly, SendRecv, SendOnly),
        (RecvOnly, RecvOnly, Inactive),
        (Inactive, SendRecv, Inactive),
    ] {
        assert_eq!(offered.answer(wanted), answer, "{offered:?} {wanted:?}");
        assert_eq!(offered.reversed().reversed(), offered);
        assert_eq!(
            Direction::from_name(offered.name().as_bytes()),
            Some(offered)
        );
    }
    let held = parse("v=0\r\na=inactive\r\nm=audio 4000 RTP/AVP 0\r\nc=IN IP4 192.0.2.1\r\n");
    assert_eq!(
        held.media_at(0).unwrap().direction(),
        Inactive,
        "inherited from the session"
    );
}

const PCMA: Codec<'static> = Codec {
    payload_type: 8,
    name: b"PCMA",
    clock_rate: 8000,
    channels: 1,
    fmtp: None,
};
const OPUS: Codec<'static> = Codec {
    payload_type: 111,
    name: b"opus",
    clock_rate: 48000,
    channels: 2,
    fmtp: Some(b"useinbandfec=1"),
};
const EVENT: Codec<'static> = Codec {
    payload_type: 96,
    name: b"telephone-event",
    clock_rate: 8000,
    channels: 1,
    fmtp: Some(b"0-15"),
};

fn plan<'p>(media: &'p [offer::MediaPlan<'p>]) -> offer::Plan<'p> {
    offer::Plan {
        username: "-",
        session_id: 1,
        version: 2,
        address: "192.0.2.5".parse().unwrap(),
        media,
    }
}

fn audio<'p>(codecs: &'p [Codec<'p>]) -> offer::MediaPlan<'p> {
    offer::MediaPlan {
        kind: "audio",
        port: 6000,
        protocol: "RTP/AVP",
        codecs,
        direction: Direction::SendRecv,
        ptime: Some(20),
        extra: &[],
    }
}

#[test]
fn offer_and_answer() {
    let mut bytes = Vec::new();
    let codecs = [PCMA, OPUS, EVENT];
    write_offer(&plan(&[audio(&codecs)]), &mut bytes);
    let text = "v=0\r\no=- 1 2 IN IP4 192.0.2.5\r\ns=-\r\nc=IN IP4 192.0.2.5\r\nt=0 0\r\nm=audio 6000 RTP/AVP 8 111 96\r\n\
        a=rtpmap:8 PCMA/8000\r\na=rtpmap:111 opus/48000/2\r\na=fmtp:111 useinbandfec=1\r\n\
        a=rtpmap:96 telephone-event/8000\r\na=fmtp:96 0-15\r\na=ptime:20\r\na=sendrecv\r\n";
    assert_eq!(String::from_utf8(bytes.clone()).unwrap(), text);
    assert!(parse(text).media_at(0).unwrap().codecs().eq(codecs));

    // The answer to the offer above: audio on hold by the offerer with its own payload types, all other lines refused.
    let offered = parse(OFFER);
    let codecs = [
        PCMA,
        OPUS,
        EVENT,
        Codec {
            payload_type: 0,
            name: b"pcmu",
            ..PCMA
        },
    ];
    let mut answer = Vec::new();
    let mut accepted = Vec::new();
    write_answer(
        &offered,
        &plan(&[audio(&codecs)]),
        |line| accepted.push(line),
        &mut answer,
    );
    let text = String::from_utf8(answer).unwrap();
    assert!(text.ends_with(
        "m=audio 6000 RTP/AVP 0 101\r\na=rtpmap:0 PCMU/8000\r\na=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-15\r\n\
        a=ptime:20\r\na=recvonly\r\na=mid:a\r\nm=video 0 RTP/SAVPF 31\r\nm=image 0 udptl t38\r\n"
    ), "{text}");
    assert_eq!(accepted.len(), 1);
    assert_eq!(
        (accepted[0].codec.payload_type, accepted[0].events),
        (0, Some(101))
    );
    assert_eq!(accepted[0].direction, Direction::RecvOnly);
    let answer = parse(&text);
    let agreed: Vec<_> = match_answer(&offered, &answer).unwrap().collect();
    assert_eq!(
        agreed.iter().map(|line| line.accepted).collect::<Vec<_>>(),
        [true, false, false]
    );
    assert_eq!(agreed[0].direction, Direction::SendOnly);
}

#[test]
fn mismatching_answers_are_refused() {
    let offer = parse("v=0\r\nc=IN IP4 192.0.2.1\r\nm=audio 4000 RTP/AVP 0\r\n");
    for (answer, mismatch) in [
        ("v=0\r\n", Mismatch::Count),
        (
            "v=0\r\nm=video 4000 RTP/AVP 0\r\n",
            Mismatch::Kind { index: 0 },
        ),
        (
            "v=0\r\nm=audio 4000 RTP/AVP 8\r\n",
            Mismatch::Formats { index: 0 },
        ),
    ] {
        assert_eq!(match_answer(&offer, &parse(answer)).err(), Some(mismatch));
    }
    let other_number = parse("v=0\r\nm=audio 4000 RTP/AVP 96\r\na=rtpmap:96 PCMU/8000\r\n");
    assert!(match_answer(&offer, &other_number).is_ok());
    let none = parse("v=0\r\nm=audio 0 RTP/AVP 8\r\n");
    assert!(match_answer(&offer, &none).is_ok_and(|mut lines| lines.all(|line| !line.accepted)));
}

#[test]
fn faults() {
    let many_lines = format!("v=0\r\n{}", "a=x\r\n".repeat(2000));
    let many_media = format!("v=0\r\n{}", "m=audio 1 RTP/AVP 0\r\n".repeat(65));
    for (text, error) in [
        ("", SdpError::Version),
        ("hello", SdpError::Version),
        ("v=1\r\n", SdpError::Version),
        ("s=-\r\nv=0\r\n", SdpError::Version),
        ("v=0\r\nnonsense\r\n", SdpError::Line),
        ("v=0\r\nm=audio\r\n", SdpError::Media),
        ("v=0\r\nm=audio 65536 RTP/AVP 0\r\n", SdpError::Media),
        ("v=0\r\nm=audio -1 RTP/AVP 0\r\n", SdpError::Media),
        ("v=0\r\nc=IN IP4\r\n", SdpError::Connection),
        (&many_lines, SdpError::TooMany),
        (&many_media, SdpError::TooMany),
    ] {
        assert_eq!(Sdp::parse(text.as_bytes()).err(), Some(error), "{text:.40}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        wire::fuzz::fuzz_sdp(&bytes);
    }

    #[test]
    fn any_lines(picks in prop::collection::vec((0..40usize, any::<u8>(), any::<bool>()), 0..40)) {
        let lines: Vec<&str> = OFFER.split_inclusive("\r\n").collect();
        let mut bytes = b"v=0\r\n".to_vec();
        for (pick, byte, damage) in picks {
            let from = bytes.len();
            bytes.extend_from_slice(lines[pick % lines.len()].as_bytes());
            if damage {
                let at = from + usize::from(byte) % (bytes.len() - from);
                bytes[at] = byte;
            }
        }
        wire::fuzz::fuzz_sdp(&bytes);
    }
}
