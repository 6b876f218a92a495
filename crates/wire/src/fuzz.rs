//! Entry points for the fuzz targets and property tests: they call every parser of network input.

use crate::sdp::{Direction, MediaRewrite, OriginRewrite, Rewrite, RtcpPort, Sdp, offer, rewrite};
use crate::sip::{
    AuthParams, Edit, FieldLines, FrameLimits, HeaderId, HeaderSets, Message, NameAddr, Response,
    StreamFrame, StreamFramer, Uri, emit, percent_decode, request_uri, unquote,
};

/// Parses `data` as SIP by every function and checks the invariants.
///
/// # Panics
/// If an invariant is violated: that is the finding.
pub fn fuzz_sip(data: &[u8]) {
    for message in [Message::parse_datagram(data), Message::parse_framed(data)] {
        let Ok(message) = message else { continue };
        let uri = request_uri(data).unwrap_or_default();
        assert_eq!(uri, message.request_uri(), "both parsers find the same URI");
        call_accessors(&message);
        check_header_cache(&message);
        check_unedited_emission(&message);
        check_edited_emission(&message);
        check_responses(&message);
    }
    check_framing(data);
    if let Some(uri) = Uri::parse(data) {
        assert!(
            uri.equivalent(&uri) || uri.params.iter().count() > 1,
            "a URI equals itself"
        );
        let _ = percent_decode(uri.user.unwrap_or_default());
    }
    let _ = NameAddr::parse(data).map(|address| (address.tag().is_some(), address.q_thousandths()));
    for param in AuthParams::new(data).iter() {
        let _ = unquote(param.value.unwrap_or_default());
    }
}

/// Checks that cached headers equal those of a fresh parse.
fn check_header_cache(message: &Message<'_>) {
    let fresh = Message::parse_framed(message.bytes());
    let Ok(fresh) = fresh else { return };
    let _ = (message.via(), message.from(), message.to());
    let _ = (message.contact(), message.cseq());
    assert_eq!(message.via(), fresh.via());
    assert_eq!(message.from(), fresh.from());
    assert_eq!(message.to(), fresh.to());
    assert_eq!(message.contact(), fresh.contact());
    assert_eq!(message.cseq(), fresh.cseq());
}

/// Calls every accessor.
fn call_accessors(message: &Message<'_>) {
    let _ = (
        message.validate(),
        message.method(),
        message.status(),
        message.reason(),
    );
    let _ = (
        message.from().is_ok(),
        message.to().is_ok(),
        message.call_id().is_ok(),
        message.cseq().is_ok(),
    );
    let _ = (
        message.max_forwards(),
        message.expires(),
        message.min_expires(),
        message.content_length(),
    );
    let _ = (
        message.content_type().is_ok(),
        message.session_expires(),
        message.min_se(),
        message.rseq(),
    );
    let _ = (
        message.rack().is_ok(),
        message.refer_to().is_ok(),
        message.replaces().is_ok(),
    );
    let _ = (
        message.event().is_ok(),
        message.subscription_state().is_ok(),
        message.retry_after(),
    );
    let _ = Uri::parse(message.request_uri());
    for via in message.vias().flatten() {
        let _ = (
            via.branch(),
            via.received(),
            via.rport(),
            via.maddr(),
            via.sent_by().to_string(),
        );
    }
    let addresses = message
        .contacts()
        .chain(message.routes())
        .chain(message.record_routes());
    for address in addresses.flatten() {
        let _ = (
            address.tag(),
            address.expires(),
            address.q_thousandths(),
            address.is_star(),
        );
        if let Some(uri) = address.parse_uri() {
            let _ = (
                uri.transport(),
                uri.is_loose_router(),
                uri.header_pairs().count(),
            );
        }
    }
    let lists = message
        .require()
        .chain(message.proxy_require())
        .chain(message.supported());
    let _ = (
        lists.count(),
        message.allow().count(),
        message.lists(HeaderId::Supported, b"100rel"),
    );
    for id in [
        HeaderId::Authorization,
        HeaderId::WwwAuthenticate,
        HeaderId::ProxyAuthenticate,
    ] {
        for credentials in message.credentials(id).flatten() {
            let _ = credentials.params.get(b"realm").map(unquote);
        }
    }
    for header in message.headers() {
        let _ = (
            header.id,
            message.header_named(header.name),
            message.values(header.id).count(),
        );
    }
}

fn check_unedited_emission(message: &Message<'_>) {
    let mut out = Vec::new();
    emit(message, &[], &mut out);
    assert_eq!(
        out,
        message.bytes(),
        "without edits the bytes are identical"
    );
}

fn check_edited_emission(message: &Message<'_>) {
    let heads = HeaderSets {
        written: HeaderId::Subject.bit(),
        replaced: HeaderId::Subject.bit(),
    };
    let edits = [
        Edit::RequestUri(b"sip:x@example.org"),
        Edit::Remove(HeaderId::Contact),
        Edit::RemoveFirst(HeaderId::Via),
        Edit::RemoveFirst(HeaderId::Route),
        Edit::RemoveFirst(HeaderId::Route),
        Edit::Replace {
            id: HeaderId::CallId,
            value: b"fuzz",
        },
        Edit::Prepend {
            id: HeaderId::Via,
            value: b"SIP/2.0/UDP h;branch=z9hG4bKx",
        },
        Edit::Body {
            content_type: Some(b"text/plain"),
            body: b"body",
        },
        Edit::Lines(FieldLines::new(b"Subject: ahead\r\n", &heads).expect("a complete line")),
    ];
    let mut out = Vec::new();
    emit(message, &edits, &mut out);
    // A malformed header line or line end is emitted unmodified and may change the meaning of the following lines: only
    // then may the emission differ.
    if message.validate().is_ok() {
        let again = Message::parse_framed(&out).expect("an edited valid message is a message");
        assert_eq!(again.body(), b"body");
        assert_eq!(again.header(HeaderId::CallId), Some(&b"fuzz"[..]));
        assert_eq!(again.via().expect("ours").branch(), b"z9hG4bKx");
        assert!(!again.has(HeaderId::Contact));
        assert!(again.all(HeaderId::Subject).eq([&b"ahead"[..]]));
    }
}

fn check_responses(message: &Message<'_>) {
    let mut out = Vec::new();
    let source = "192.0.2.9:4444".parse().ok();
    let response = Response {
        to_tag: Some(b"t"),
        source,
        ..Response::new(message, 400, b"Bad Request")
    };
    response.write(|_| {}, &mut out);
    let again = Message::parse_framed(&out).expect("a response to anything is a message");
    assert_eq!((again.status(), again.body().len()), (400, 0));
}

/// Checks that every segmentation of the stream gives the same frames.
fn check_framing(data: &[u8]) {
    let limits = FrameLimits {
        headers: 4096,
        body: 4096,
    };
    let frames = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut framer = StreamFramer::new(limits);
        let mut sizes = Vec::new();
        for piece in pieces {
            framer.push(piece);
            while let Some(frame) = framer.next() {
                match frame {
                    StreamFrame::Message(message) => {
                        let _ = Message::parse_framed(message);
                        sizes.push(message.len());
                    }
                    StreamFrame::Ping | StreamFrame::Pong => {}
                    StreamFrame::Unframed(head, _) => {
                        let _ = Message::parse_framed(head);
                        sizes.push(head.len());
                    }
                    StreamFrame::Error(_) => return sizes,
                }
            }
            assert!(
                framer.pending() <= limits.headers + limits.body + piece.len(),
                "bounded"
            );
        }
        sizes
    };
    let whole = frames(&mut std::iter::once(data));
    let single = frames(&mut data.chunks(1));
    assert_eq!(
        whole, single,
        "frames do not depend on the segmentation of the stream"
    );
}

/// Parses `data` as SDP, rewrites and answers it.
///
/// # Panics
/// If an invariant is violated: that is the finding.
pub fn fuzz_sdp(data: &[u8]) {
    let Ok(sdp) = Sdp::parse(data) else { return };
    let lines: Vec<u8> = sdp.lines().flat_map(|line| line.raw.to_vec()).collect();
    assert_eq!(lines, data, "every line is kept");
    let mut same = Vec::new();
    let nothing = Rewrite {
        origin: None,
        media: &[],
        drop: None,
    };
    rewrite(&sdp, &nothing, &mut same);
    assert_eq!(same, data, "without changes the bytes are identical");
    let _ = (
        sdp.origin(),
        sdp.groups().flat_map(|group| group.mids()).count(),
    );
    for media in sdp.media() {
        let _ = (
            media.rtp_address(),
            media.rtcp_address(),
            media.is_hold(),
            media.codecs().count(),
        );
        let _ = (
            media.ptime(),
            media.mid(),
            media.candidates().count(),
            media.cryptos().count(),
        );
        let _ = (
            media.fingerprint(),
            media.setup(),
            media.is_secure(),
            media.is_rtp(),
        );
    }
    check_anchoring(&sdp);
    let plan = offer::Plan {
        username: "-",
        session_id: 1,
        version: 1,
        address: std::net::Ipv4Addr::LOCALHOST.into(),
        media: &[offer::MediaPlan {
            kind: "audio",
            port: 4000,
            protocol: "RTP/AVP",
            codecs: &sdp
                .media()
                .next()
                .map_or(Vec::new(), |media| media.codecs().collect()),
            direction: Direction::SendRecv,
            ptime: Some(20),
            extra: &[],
        }],
    };
    let mut out = Vec::new();
    offer::write_answer(&sdp, &plan, |_| {}, &mut out);
    let answer = Sdp::parse(&out).expect("our answer is a description");
    let matched = offer::match_answer(&sdp, &answer).expect("our answer fits its offer");
    assert_eq!(matched.len(), sdp.media_count());
}

/// Checks that after anchoring every line all addresses are local and no ICE attribute is left.
fn check_anchoring(sdp: &Sdp<'_>) {
    let address: std::net::SocketAddr = ([203, 0, 113, 9], 30_000).into();
    let anchors = vec![MediaRewrite::anchor(address, RtcpPort::At(30_001)); sdp.media_count()];
    let origin = OriginRewrite {
        address: address.ip(),
        username: Some(b"-"),
        session_id: Some(7),
        version: Some(8),
    };
    let mut out = Vec::new();
    rewrite(
        sdp,
        &Rewrite {
            origin: Some(origin),
            media: &anchors,
            drop: None,
        },
        &mut out,
    );
    let again = Sdp::parse(&out).expect("an anchored description is one");
    assert_eq!(again.media_count(), sdp.media_count());
    for (new, old) in again.media().zip(sdp.media()) {
        assert_eq!(new.is_rejected(), old.is_rejected());
        assert_eq!(new.candidates().count(), 0);
        if let Some(found) = new.rtp_address() {
            assert!(found.ip().is_unspecified() || found == address, "{found}");
        }
    }
}

/// Parses `data` as a message of the "ng" protocol and as a stream of them: a parsed message can be written and parsed
/// again, and the messages of a stream do not depend on its segmentation.
///
/// # Panics
/// If an invariant is violated: that is the finding.
pub fn fuzz_ng(data: &[u8]) {
    use crate::ng::{BencodeItem, NgMessage, NgStreamFramer, Value};
    fn walk(item: BencodeItem<'_>) -> usize {
        match item {
            BencodeItem::Integer(_) | BencodeItem::Bytes(_) => 1,
            BencodeItem::List(list) => 1 + list.iter().map(walk).sum::<usize>(),
            BencodeItem::Dictionary(dictionary) => {
                1 + dictionary
                    .iter()
                    .map(|(_, value)| walk(value))
                    .sum::<usize>()
            }
        }
    }
    if let Ok(message) = NgMessage::parse(data) {
        let item = BencodeItem::Dictionary(message.body);
        assert!(walk(item) <= data.len(), "more items than octets");
        let value = Value::from(item);
        let mut out = Vec::new();
        NgMessage::write(message.cookie, &value, &mut out);
        let again = NgMessage::parse(&out).expect("a written message can be parsed");
        assert_eq!(again.cookie, message.cookie);
        assert_eq!(Value::from(BencodeItem::Dictionary(again.body)), value);
    }
    let run = |size: usize| {
        let mut framer = NgStreamFramer::default();
        let mut messages = Vec::new();
        for piece in data.chunks(size) {
            framer.push(piece);
            loop {
                match framer.next_message() {
                    Ok(Some(message)) => messages.push(message.to_vec()),
                    Ok(None) => break,
                    Err(_) => return messages,
                }
            }
        }
        messages
    };
    let whole = run(data.len().max(1));
    assert_eq!(run(1), whole, "octet by octet");
    assert_eq!(run(7), whole, "in pieces of seven");
}
