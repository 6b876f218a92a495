//! Parsing and writing of SIP: messages written by hand, and properties for arbitrary bytes.

use proptest::prelude::*;
use std::net::{IpAddr, Ipv6Addr};
use wire::sip::{
    Credentials, Edit, FieldLines, FrameError, FrameLimits, HeaderId, HeaderSets, Host, HostPort,
    Message, Method, NameAddr, Refresher, Response, Scheme, StreamFrame, StreamFramer, Unparsable,
    Uri, ViaParts, Writer, emit, percent_decode, unquote, write_response,
};

const INVITE: &str = "INVITE sip:bob@example.com SIP/2.0\r\n\
    v: SIP/2.0/UDP pc33.example.com:5066;rport;branch=z9hG4bK776, SIP/2.0/TCP [2001:db8::1]:5070 ;branch=z9hG4bKx\r\n\
    Via : SIP / 2.0 / UDP 192.0.2.1 : 5060;received=192.0.2.207;rport=4711;ttl=16\r\n\
    f: \"Ann, \\\"the\\\" <Boss>\" <sip:ann@example.com;x=y>;tag=88sja8x\r\n\
    t:\r\n sip:bob@example.com;p=1\r\n\
    i: a84b4c76e66710@pc33\r\n\
    CSeq:   00314159\tINVITE\r\n\
    m: <sip:ann@pc33>;expires=60;q=0.75, \"B, C\" <sip:b@c>;q=1 , sip:d@e;z\r\n\
    X-Odd:\r\n\
    Subject: one\r\n\t two\r\n\
    k: 100rel,timer , ,replaces\r\n\
    x: 1800;refresher=uac\r\n\
    Route: <sip:p1;lr>,<sip:p2;lr>\r\n\
    ROUTE: <sip:p3;lr>\r\n\
    c: application/sdp;charset=\"utf-8\"\r\n\
    l: 4\r\n\
    \r\n\
    v=0\nIGNORED";

fn parse(text: &str) -> Message<'_> {
    Message::parse(text.as_bytes()).expect("a message")
}

fn edited(text: &str, edits: &[Edit<'_>]) -> String {
    let mut out = Vec::new();
    emit(&parse(text), edits, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn unusual_but_valid_invite_is_parsed() {
    let message = parse(INVITE);
    assert_eq!(message.validate(), Ok(()));
    assert_eq!(
        (message.method(), message.request_uri()),
        (Method::Invite, &b"sip:bob@example.com"[..])
    );
    assert_eq!(message.body(), b"v=0\n");
    let vias: Vec<_> = message.vias().map(Result::unwrap).collect();
    assert_eq!(vias.len(), 3);
    assert_eq!(
        (vias[0].branch(), vias[0].rport(), vias[0].port),
        (&b"z9hG4bK776"[..], Some(None), Some(5066))
    );
    assert_eq!(vias[1].host, Host::V6("2001:db8::1".parse().unwrap()));
    assert_eq!(
        (vias[1].transport, vias[1].port, vias[1].rport()),
        (&b"TCP"[..], Some(5070), None)
    );
    assert_eq!(
        (vias[2].received(), vias[2].rport()),
        (Some("192.0.2.207".parse().unwrap()), Some(Some(4711)))
    );
    assert_eq!(vias[2].sent_by().to_string(), "192.0.2.1:5060");
    let from = message.from().unwrap();
    assert_eq!(&*unquote(from.display), b"Ann, \"the\" <Boss>");
    assert_eq!(
        (from.uri, from.tag()),
        (&b"sip:ann@example.com;x=y"[..], Some(&b"88sja8x"[..]))
    );
    let to = message.to().unwrap();
    assert_eq!(
        (to.uri, to.params.get(b"P"), to.tag()),
        (&b"sip:bob@example.com"[..], Some(&b"1"[..]), None)
    );
    assert_eq!(
        (
            message.cseq().unwrap().number,
            message.cseq().unwrap().method
        ),
        (314_159, Method::Invite)
    );
    let contacts: Vec<_> = message.contacts().map(Result::unwrap).collect();
    assert_eq!(
        contacts.iter().map(|c| c.uri).collect::<Vec<_>>(),
        [&b"sip:ann@pc33"[..], b"sip:b@c", b"sip:d@e"]
    );
    assert_eq!(
        (contacts[0].expires(), contacts[0].q_thousandths()),
        (Some(60), Some(750))
    );
    assert_eq!(
        (contacts[1].q_thousandths(), contacts[2].params.has(b"Z")),
        (Some(1000), true)
    );
    assert_eq!(message.header_named(b"x-odd"), Some(&b""[..]));
    assert_eq!(
        message.header(HeaderId::Subject),
        Some(&b"one\r\n\t two"[..])
    );
    assert_eq!(
        message.supported().collect::<Vec<_>>(),
        [&b"100rel"[..], b"timer", b"replaces"]
    );
    assert!(
        message.lists(HeaderId::Supported, b"TIMER") && !message.lists(HeaderId::Require, b"timer")
    );
    let session = message.session_expires().unwrap();
    assert_eq!(
        (session.seconds, session.refresher),
        (1800, Some(Refresher::Uac))
    );
    assert_eq!(message.routes().count(), 3);
    assert!(message.content_type().unwrap().is("Application", "SDP"));
    assert_eq!(message.expires().ok(), None);
}

#[test]
fn emission_without_edits_is_identical() {
    assert_eq!(edited(INVITE, &[]), INVITE.strip_suffix("IGNORED").unwrap());
}

#[test]
fn prepared_lines_replace_existing_fields() {
    let message =
        Message::parse(b"OPTIONS sip:a@b SIP/2.0\r\ns: old\r\nSubject: older\r\nX-A: 1\r\n\r\n")
            .unwrap();
    let heads = HeaderSets {
        written: HeaderId::Subject.bit() | HeaderId::Other.bit(),
        replaced: HeaderId::Subject.bit(),
    };
    let lines = FieldLines::new(b"Subject: new: er\r\nX-A: 2\r\n", &heads).expect("lines");
    let fields: Vec<_> = lines.fields().collect();
    assert_eq!(
        fields,
        [
            (HeaderId::Subject, &b"Subject"[..], &b"new: er"[..]),
            (HeaderId::Other, b"X-A", b"2"),
        ]
    );
    let mut out = Vec::new();
    emit(&message, &[Edit::Lines(lines)], &mut out);
    assert_eq!(
        String::from_utf8_lossy(&out),
        "OPTIONS sip:a@b SIP/2.0\r\nX-A: 1\r\nSubject: new: er\r\nX-A: 2\r\n\r\n"
    );
    // An incomplete line would be joined with the next one.
    for text in [&b""[..], b"X-A: 2\r\nX-A: 3", b"X-A: 2\n"] {
        assert!(FieldLines::new(text, &heads).is_none());
    }
}

#[test]
fn edits_leave_other_fields_unchanged() {
    let text = edited(
        INVITE,
        &[
            Edit::RequestUri(b"sip:1000@192.0.2.2"),
            Edit::RemoveFirst(HeaderId::Via),
            Edit::RemoveFirst(HeaderId::Route),
            Edit::RemoveFirst(HeaderId::Route),
            Edit::RemoveFirst(HeaderId::Route),
            Edit::Prepend {
                id: HeaderId::Via,
                value: b"SIP/2.0/UDP me;branch=z9hG4bKme",
            },
            Edit::Prepend {
                id: HeaderId::RecordRoute,
                value: b"<sip:me;lr>",
            },
            Edit::Replace {
                id: HeaderId::Contact,
                value: b"<sip:me>",
            },
            Edit::Replace {
                id: HeaderId::MaxForwards,
                value: b"69",
            },
            Edit::RemoveNamed(b"x-odd"),
            Edit::AddNamed {
                name: b"X-New",
                value: b"a\r\nInjected: 1",
            },
            Edit::Add {
                id: HeaderId::Server,
                value: b"h",
            },
            Edit::Body {
                content_type: None,
                body: b"v=0\r\no=x\r\n",
            },
        ],
    );
    let expected = "INVITE sip:1000@192.0.2.2 SIP/2.0\r\n\
        Record-Route: <sip:me;lr>\r\n\
        Via: SIP/2.0/UDP me;branch=z9hG4bKme\r\n\
        Via: SIP/2.0/TCP [2001:db8::1]:5070 ;branch=z9hG4bKx\r\n\
        Via : SIP / 2.0 / UDP 192.0.2.1 : 5060;received=192.0.2.207;rport=4711;ttl=16\r\n\
        f: \"Ann, \\\"the\\\" <Boss>\" <sip:ann@example.com;x=y>;tag=88sja8x\r\n\
        t:\r\n sip:bob@example.com;p=1\r\n\
        i: a84b4c76e66710@pc33\r\n\
        CSeq:   00314159\tINVITE\r\n\
        Contact: <sip:me>\r\n\
        Subject: one\r\n\t two\r\n\
        k: 100rel,timer , ,replaces\r\n\
        x: 1800;refresher=uac\r\n\
        c: application/sdp;charset=\"utf-8\"\r\n\
        Content-Length: 10\r\n\
        Max-Forwards: 69\r\n\
        X-New: a  Injected: 1\r\n\
        Server: h\r\n\
        \r\n\
        v=0\r\no=x\r\n";
    assert_eq!(text, expected);
    let empty = edited(
        INVITE,
        &[
            Edit::Body {
                content_type: Some(b"x/y"),
                body: b"",
            },
            Edit::Remove(HeaderId::Via),
        ],
    );
    let empty = parse(&empty);
    assert!(!empty.has(HeaderId::ContentType) && !empty.has(HeaderId::Via));
    assert_eq!((empty.content_length(), empty.body()), (Ok(0), &b""[..]));
}

#[test]
fn written_messages_can_be_parsed() {
    let mut out = b"before".to_vec();
    let mut writer = Writer::request(&mut out, Method::Options, b"sip:a@b");
    let host = Host::V6(Ipv6Addr::LOCALHOST);
    writer.via(&ViaParts {
        transport: "TCP",
        sent_by: HostPort {
            host,
            port: Some(5080),
        },
        branch: b"z9hG4bK1",
        rport: true,
        extra: b"alias",
    });
    writer
        .address(HeaderId::From, b"sip:x@y", Some(b"1"))
        .address(HeaderId::To, b"sip:a@b", None)
        .header_fmt(HeaderId::CallId, format_args!("{:x}@h", 255))
        .cseq(7, Method::Options)
        .number(HeaderId::MaxForwards, 70)
        .header_parts(HeaderId::Contact, &[b"<sip:", b"x", b">"]);
    writer.body(b"text/plain", b"hello");
    let expected = "beforeOPTIONS sip:a@b SIP/2.0\r\nVia: SIP/2.0/TCP [::1]:5080;branch=z9hG4bK1;rport;alias\r\n\
        From: <sip:x@y>;tag=1\r\nTo: <sip:a@b>\r\nCall-ID: ff@h\r\nCSeq: 7 OPTIONS\r\nMax-Forwards: 70\r\n\
        Contact: <sip:x>\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello";
    assert_eq!(String::from_utf8(out.clone()).unwrap(), expected);
    assert_eq!(Message::parse_framed(&out[6..]).unwrap().validate(), Ok(()));
}

#[test]
fn responses_copy_mandatory_fields() {
    let request = parse(INVITE);
    let mut out = Vec::new();
    let extra = |writer: &mut Writer<'_>| {
        writer.header(HeaderId::Server, b"h");
    };
    write_response(
        &request,
        486,
        "Besetzt \u{1f4de}".as_bytes(),
        Some(b"tt"),
        extra,
        &mut out,
    );
    let response = Message::parse_framed(&out).unwrap();
    assert_eq!(response.validate(), Ok(()));
    assert_eq!(
        (response.status(), response.method()),
        (486, Method::Invite)
    );
    assert_eq!(response.reason(), "Besetzt \u{1f4de}".as_bytes());
    assert_eq!(response.to().unwrap().tag(), Some(&b"tt"[..]));
    assert_eq!(
        response.header(HeaderId::From),
        request.header(HeaderId::From)
    );
    assert!(
        response
            .vias()
            .map(|via| via.unwrap().raw)
            .eq(request.vias().map(|via| via.unwrap().raw))
    );
    let mut out = Vec::new();
    let with_source = Response {
        source: Some("198.51.100.3:6000".parse().unwrap()),
        to_tag: Some(b"never on 100"),
        ..Response::new(&request, 100, b"Trying")
    };
    with_source.write(|_| {}, &mut out);
    let response = Message::parse_framed(&out).unwrap();
    let top = response.via().unwrap();
    assert_eq!(
        (top.received(), top.rport()),
        (Some(IpAddr::from([198, 51, 100, 3])), Some(Some(6000)))
    );
    assert_eq!(
        (top.branch(), response.vias().count()),
        (&b"z9hG4bK776"[..], 3)
    );
    assert_eq!(response.to().unwrap().tag(), None);
    // Malformed requests are answered as far as possible.
    let broken = parse("INVITE nonsense SIP/2.0\r\nVia: ?\r\nGarbage\r\nCall-ID: c\r\n");
    assert_eq!(broken.validate().unwrap_err().status, 400);
    let mut out = Vec::new();
    write_response(&broken, 400, b"Bad Request", Some(b"t"), |_| {}, &mut out);
    let expected = "SIP/2.0 400 Bad Request\r\nVia: ?\r\nTo: ;tag=t\r\nCall-ID: c\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

/// A valid request with one line changed or added.
fn with(find: &str, replace: &str) -> String {
    let sound = "OPTIONS sip:a@b SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bKy\r\nMax-Forwards: 70\r\nFrom: <sip:x@y>;tag=1\r\n\
        To: <sip:a@b>\r\nCall-ID: c\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(parse(sound).validate(), Ok(()));
    assert!(sound.contains(find));
    sound.replacen(find, replace, 1)
}

#[test]
fn malformed_requests_are_refused_with_their_status() {
    for (find, replace, status) in [
        ("sip:a@b ", "sip:a@b  ", 400),
        ("SIP/2.0\r\n", "SIP/2.0 \r\n", 400),
        ("SIP/2.0\r\n", "SIP/3.0\r\n", 505),
        ("sip:a@b", "h323:a@b", 416),
        ("sip:a@b", "sip:a@b?x=y", 400),
        ("sip:a@b", "sip:[::1", 400),
        ("sip:a@b", "sip:@b", 400),
        ("sip:a@b", "sip:a%4@b", 400),
        ("sip:a@b", "sip:a@b:70000", 400),
        ("sip:a@b", "sip:a@999.1.1.1:5060:1", 400),
        ("OPTIONS sip", "OP{IONS sip", 400),
        ("CSeq: 1", "CSeq: 2147483648", 400),
        ("CSeq: 1", "CSeq: -1", 400),
        ("1 OPTIONS", "1 INVITE", 400),
        ("Call-ID: c\r\n", "", 400),
        ("Call-ID: c", "Call-ID: c d", 400),
        ("Call-ID: c", "Call-ID: c\r\nCall-ID: c", 400),
        ("From: <sip:x@y>", "From: \"open <sip:x@y>", 400),
        ("From: <sip:x@y>", "From: <sip:x@y", 400),
        ("From: <sip:x@y>", "From: <>", 400),
        ("To: <sip:a@b>", "To: \"a\" b <sip:a@b> c", 400),
        ("Via: SIP/2.0/UDP h", "Via: SIP/2.0/UDP", 400),
        ("Via: SIP/2.0/UDP h", "Via: SIP/2.0 h", 400),
        ("Max-Forwards: 70", "Max-Forwards: 256", 400),
        (
            "Max-Forwards: 70",
            "Max-Forwards: 70\r\nMax-Forwards: 70",
            400,
        ),
        ("Content-Length: 0", "Content-Length: 1", 400),
        ("Content-Length: 0", "Content-Length: +0", 400),
        ("Content-Length: 0", "Content-Length: 0\r\nl: 1", 400),
        ("Content-Length: 0", "Content Length: 0", 400),
        ("Content-Length: 0", ": 0", 400),
        ("Call-ID: c\r\n", "Call-ID: c\n", 400),
        ("Call-ID: c\r\n", "Call-ID: c\r\rX: y\r\n", 400),
        ("\r\n\r\n", "\r\n", 400),
    ] {
        let text = with(find, replace);
        let rejection = parse(&text).validate();
        assert_eq!(rejection.map_err(|r| r.status), Err(status), "{replace:?}");
        wire::fuzz::fuzz_sip(text.as_bytes());
    }
    for (find, replace) in [
        ("sip:a@b", "tel:+49-30-1234;phone-context=x"),
        ("sip:a@b", "urn:service:sos.fire"),
        ("sip:a@b", "sips:a:pw@[2001:db8::1]:5061;transport=tls"),
        ("Max-Forwards: 70\r\n", ""),
        ("Call-ID: c", "call-id:\r\n c"),
        ("OPTIONS sip", "\r\n\r\nOPTIONS sip"),
    ] {
        assert_eq!(
            parse(&with(find, replace)).validate(),
            Ok(()),
            "{replace:?}"
        );
    }
}

#[test]
fn unparsable_bytes_are_classified() {
    let many = format!("OPTIONS sip:a SIP/2.0\r\n{}\r\n", "a: b\r\n".repeat(251));
    for (bytes, error) in [
        (&b""[..], Unparsable::Empty),
        (b"\r\n\r\n", Unparsable::Empty),
        (b"hello", Unparsable::StartLine),
        (b"GET / HTTP/1.1\r\n\r\n", Unparsable::StartLine),
        (b"INVITE SIP/2.0\r\n\r\n", Unparsable::StartLine),
        (b"SIP/2.0 99 x\r\n\r\n", Unparsable::StartLine),
        (b"SIP/2.0 2000 x\r\n\r\n", Unparsable::StartLine),
        (many.as_bytes(), Unparsable::TooManyHeaders),
    ] {
        assert_eq!(Message::parse(bytes).err(), Some(error));
    }
}

#[test]
fn uris_compare_by_rfc_3261() {
    let same = |a: &str, b: &str| {
        let (a, b) = (
            Uri::parse(a.as_bytes()).unwrap(),
            Uri::parse(b.as_bytes()).unwrap(),
        );
        assert_eq!(a.equivalent(&b), b.equivalent(&a));
        a.equivalent(&b)
    };
    // Both lists of section 19.1.4.
    for (a, b) in [
        (
            "sip:%61lice@atlanta.com;transport=TCP",
            "sip:alice@AtLanTa.CoM;Transport=tcp",
        ),
        ("sip:carol@chicago.com", "sip:carol@chicago.com;newparam=5"),
        (
            "sip:carol@chicago.com;security=on",
            "sip:carol@chicago.com;newparam=5",
        ),
        (
            "sip:biloxi.com;transport=tcp;method=REGISTER?to=sip:bob%40biloxi.com",
            "sip:biloxi.com;method=REGISTER;transport=tcp?to=sip:bob%40biloxi.com",
        ),
        (
            "sip:alice@atlanta.com?subject=project%20x&priority=urgent",
            "sip:alice@atlanta.com?priority=urgent&subject=project%20x",
        ),
        ("tel:+1-201-555-0123", "TEL:+12015550123"),
    ] {
        assert!(same(a, b), "{a} {b}");
    }
    for (a, b) in [
        (
            "SIP:ALICE@AtLanTa.CoM;Transport=udp",
            "sip:alice@AtLanTa.CoM;Transport=UDP",
        ),
        ("sip:bob@biloxi.com", "sip:bob@biloxi.com:5060"),
        ("sip:bob@biloxi.com", "sip:bob@biloxi.com;transport=udp"),
        (
            "sip:bob@biloxi.com",
            "sip:bob@biloxi.com:6000;transport=tcp",
        ),
        (
            "sip:carol@chicago.com",
            "sip:carol@chicago.com?Subject=next%20meeting",
        ),
        ("sip:bob@phone21.boxesbybob.com", "sip:bob@192.0.2.4"),
        (
            "sip:carol@chicago.com;security=on",
            "sip:carol@chicago.com;security=off",
        ),
        ("sip:a%3Bb@c", "sip:a;b@c"),
        ("sip:a@c", "sips:a@c"),
    ] {
        assert!(!same(a, b), "{a} {b}");
    }
    let uri =
        Uri::parse(b"sip:a%20b:p@h.example:5070;lr;transport=tls?Subject=x&Replaces=1").unwrap();
    assert_eq!(&*percent_decode(uri.user.unwrap()), b"a b");
    assert_eq!(
        (uri.password, uri.port, uri.transport()),
        (Some(&b"p"[..]), Some(5070), Some(&b"tls"[..]))
    );
    assert!(uri.is_loose_router() && uri.is_sip());
    assert_eq!(uri.header_pairs().count(), 2);
    let tel = Uri::parse(b"tel:+4930;phone-context=x").unwrap();
    assert_eq!(
        (tel.scheme, tel.user, tel.params.has(b"phone-context")),
        (Scheme::Tel, Some(&b"+4930"[..]), true)
    );
}

#[test]
fn spellings_of_one_target_are_equal() {
    let same = |a: &str, b: &str| {
        let (a, b) = (
            Uri::parse(a.as_bytes()).unwrap(),
            Uri::parse(b.as_bytes()).unwrap(),
        );
        assert_eq!(a.same_target(&b), b.same_target(&a));
        a.same_target(&b)
    };
    for (a, b) in [
        (
            "sip:bob@example.com",
            "sip:bob@EXAMPLE.com:5060;transport=tcp",
        ),
        (
            "sip:%62ob@example.com;user=phone",
            "sip:bob:word@example.com",
        ),
        ("sips:bob@example.com", "sips:bob@example.com:5061"),
        ("sip:[2001:db8::1]", "sip:[2001:DB8:0::1]:5060"),
        ("tel:+43-1-234", "tel:+431234"),
    ] {
        assert!(same(a, b), "{a} {b}");
    }
    for (a, b) in [
        ("sip:bob@example.com", "sip:Bob@example.com"),
        ("sip:bob@example.com", "sip:example.com"),
        ("sip:bob@example.com", "sips:bob@example.com"),
        ("sip:bob@example.com", "sip:bob@example.com:5070"),
        ("sip:bob@example.com", "sip:bob@example.org"),
        ("tel:+431234", "tel:+431235"),
        ("tel:+431234", "sip:+431234@example.com"),
    ] {
        assert!(!same(a, b), "{a} {b}");
    }
}

#[test]
fn challenges_keep_quoted_commas() {
    let value = b"Digest realm=\"a, \\\"b\\\"\", nonce=\"n=,\",algorithm=MD5 , qop=\"auth,auth-int\", stale=TRUE";
    let credentials = Credentials::parse(value).unwrap();
    assert!(credentials.is_digest());
    assert_eq!(
        &*unquote(credentials.params.get(b"REALM").unwrap()),
        b"a, \"b\""
    );
    assert_eq!(
        &*unquote(credentials.params.get(b"qop").unwrap()),
        b"auth,auth-int"
    );
    assert_eq!(credentials.params.iter().count(), 5);
}

#[test]
fn all_forms_of_addresses_are_parsed() {
    let star = NameAddr::parse(b"*").unwrap();
    assert!(star.is_star());
    let bare = NameAddr::parse(b"sip:a@b;tag=x?y").unwrap();
    assert_eq!((bare.uri, bare.tag()), (&b"sip:a@b"[..], Some(&b"x?y"[..])));
    let quoted = NameAddr::parse(b"\"a\\\"<;>\"<sip:a>\t; Tag = q").unwrap();
    assert_eq!((quoted.uri, quoted.tag()), (&b"sip:a"[..], Some(&b"q"[..])));
    for bad in ["", "\"x", "\"x\"", "<sip:a", "a b c", "<sip:a> x"] {
        assert!(NameAddr::parse(bad.as_bytes()).is_none(), "{bad}");
    }
}

#[test]
fn framer_splits_streams() {
    let message = with("OPTIONS sip", "OPTIONS sip")
        .replace("Content-Length: 0\r\n\r\n", "l:\r\n 3\r\n\r\nabc");
    let stream = format!("\r\n\r\n{message}\r\n{message}\r\n");
    for piece in [1, 2, 3, 7, 100, 10_000] {
        let mut framer = StreamFramer::new(FrameLimits::default());
        let (mut messages, mut pings, mut pongs) = (0, 0, 0);
        for bytes in stream.as_bytes().chunks(piece) {
            framer.push(bytes);
            while let Some(frame) = framer.next() {
                match frame {
                    StreamFrame::Message(bytes) => {
                        assert_eq!(bytes, message.as_bytes());
                        messages += 1;
                    }
                    StreamFrame::Ping => pings += 1,
                    StreamFrame::Pong => pongs += 1,
                    StreamFrame::Unframed(_, error) | StreamFrame::Error(error) => {
                        panic!("{error}")
                    }
                }
            }
        }
        pongs += usize::from(framer.flush_pong().is_some());
        assert_eq!(
            (messages, pings, pongs, framer.pending()),
            (2, 1, 2, 0),
            "pieces of {piece}"
        );
    }
}

#[test]
fn framer_reports_lost_framing() {
    let limits = FrameLimits {
        headers: 300,
        body: 10,
    };
    let long = with("Call-ID: c", &format!("Call-ID: {}", "c".repeat(300)));
    for (bytes, error) in [
        (
            with("Content-Length: 0", "Content-Length: -999"),
            FrameError::BadContentLength,
        ),
        (
            with("Content-Length: 0", "Content-Length: 0\r\nl: 1"),
            FrameError::BadContentLength,
        ),
        (
            with("Content-Length: 0", "Content-Length: 11"),
            FrameError::BodyTooLong,
        ),
        (long, FrameError::HeadersTooLong),
        ("x".repeat(400), FrameError::HeadersTooLong),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), FrameError::NotSip),
        ("\u{16}\u{3}\u{1}".to_owned(), FrameError::NotSip),
    ] {
        let mut framer = StreamFramer::new(limits);
        framer.push(bytes.as_bytes());
        let head = matches!(
            error,
            FrameError::BadContentLength | FrameError::BodyTooLong
        );
        if head {
            // The header section can still be answered.
            assert_eq!(
                framer.next(),
                Some(StreamFrame::Unframed(bytes.as_bytes(), error))
            );
            framer.push(b"more");
        }
        assert_eq!(framer.next(), Some(StreamFrame::Error(error)), "{bytes:?}");
        framer.push(b"more");
        assert_eq!(framer.next(), Some(StreamFrame::Error(error)));
        assert_eq!(framer.pending(), 0);
    }
}

/// CPU time of this thread in nanoseconds: other programs of the machine do not change it.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("schedstat");
    let first = text.split(' ').next().and_then(|word| word.parse().ok());
    first.expect("nanoseconds")
}

/// Small pieces and deep nesting cost linear time: a megabyte takes far less time than with quadratic cost.
#[test]
fn hostile_input_costs_linear_time() {
    let start = cpu_ns();
    for filling in ["\"", "<", "\\", ",", ";", "\r\n ", "a,", "(", "\"\\"] {
        let text = with(
            "Call-ID: c",
            &format!("Contact: {}", filling.repeat(60_000 / filling.len())),
        );
        wire::fuzz::fuzz_sip(text.as_bytes());
    }
    let mut framer = StreamFramer::new(FrameLimits {
        headers: 1 << 20,
        body: 1 << 20,
    });
    for _ in 0..1 << 19 {
        framer.push(b"a");
        assert_eq!(framer.next(), None);
    }
    let spent = cpu_ns() - start;
    assert!(spent < 20_000_000_000, "{spent} ns");
}

/// Bytes that resemble SIP closely enough to reach deep code.
fn nearly_sip() -> impl Strategy<Value = Vec<u8>> {
    let word = prop::sample::select(vec![
        "INVITE ",
        "sip:a@b",
        " SIP/2.0\r\n",
        "SIP/2.0 200 OK\r\n",
        "Via: ",
        "SIP/2.0/UDP h",
        ";branch=z9hG4bK",
        "From: ",
        "To: ",
        "CSeq: 1 INVITE",
        "Call-ID: x",
        "Contact: ",
        "<sip:[::1]:5060;lr>",
        "\"q\\\"",
        "\"",
        "<",
        ">",
        ";tag=1",
        ",",
        ";",
        "=",
        "?",
        "%41",
        "%",
        "\r\n",
        "\r\n ",
        "\n",
        "\r",
        "\r\n\r\n",
        "Content-Length: ",
        "7",
        "99999999999999999999",
        "l: 0\r\n",
        "m: *",
        "Route: ",
        "Digest a=\"b\"",
        "WWW-Authenticate: ",
        ":",
        " ",
        "\u{fc}",
        "\0",
        "Refer-To: ",
        "Session-Expires: ",
        "RAck: ",
        "1 ",
    ]);
    prop::collection::vec(
        prop_oneof![4 => word.prop_map(|word| word.as_bytes().to_vec()), 1 => prop::collection::vec(any::<u8>(), 0..6)],
        0..60,
    )
    .prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        wire::fuzz::fuzz_sip(&bytes);
    }

    #[test]
    fn sip_like_bytes(bytes in nearly_sip()) {
        wire::fuzz::fuzz_sip(&bytes);
        let mut request = b"INVITE sip:a@b SIP/2.0\r\n".to_vec();
        request.extend_from_slice(&bytes);
        wire::fuzz::fuzz_sip(&request);
    }

    #[test]
    fn corrupted_messages_do_not_panic(changes in prop::collection::vec((0..INVITE.len(), any::<u8>()), 0..6)) {
        let mut bytes = INVITE.as_bytes().to_vec();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        wire::fuzz::fuzz_sip(&bytes);
    }
}
