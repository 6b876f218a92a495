//! The list of hidden headers against its page, and the effect on headers and SDP.

use super::*;
use anchor::hiding::{ATTRIBUTES, LINES, description};
use config::headers::HEADERS;
use wire::sip::emit;

/// For the page: towards `known`, and towards `all`.
const fn texts(treatment: Treatment) -> [&'static str; 2] {
    match treatment {
        Treatment::Passes => ["relayed", "relayed"],
        Treatment::Own => ["each side has its own", "the same"],
        Treatment::Trust => [
            "by trust ([identities](conformance/identity.md))",
            "the same",
        ],
        Treatment::Network => ["not relayed", "relayed between trusted sides in calls"],
        Treatment::Content => ["relayed: content of the user", "the same"],
        Treatment::Pseudonym => [
            "hosts become a pseudonym, texts the standard text of the code",
            "hosts become a pseudonym",
        ],
        Treatment::Registrar => ["not relayed; our registrar has its own", "the same"],
        Treatment::Features => [
            "feature tags of RFC 3840 (except `description`), `+sip.`, `+g.3gpp.` and `+g.gsma.` are relayed, other parameters removed",
            "relayed",
        ],
        Treatment::Comment => ["comments are removed", "relayed"],
        Treatment::Host => [
            "its address gets our host; parameters that name a host are removed",
            "relayed",
        ],
        Treatment::Uri => [
            "URNs and parts of the body (`cid`) are relayed; other URIs become ours, with their parameters except those that name a host, and are removed with `purpose`",
            "relayed",
        ],
        Treatment::Urn => [
            "URNs and parts of the body (`cid`) are relayed; other URIs are removed",
            "relayed",
        ],
        Treatment::Text => [
            "the parameter `text` is removed, and others that may name a host",
            "relayed",
        ],
        Treatment::Target => [
            "our address becomes ours on the other side, and so do addresses and the hosts of the trunk that sends it",
            "our address becomes ours on the other side",
        ],
        Treatment::Hexadecimal => ["relayed if it is hexadecimal, otherwise removed", "relayed"],
        Treatment::Goes => ["removed", "relayed"],
    }
}

/// The generated page.
fn page() -> String {
    let mut page = String::from(
        "# Topology hiding\n\n\
         Treatment of each header and SDP line between the two sides of the border, in requests and responses, in-dialog and out-of-dialog.\n\
         `known` and `all` are the `headers` of the outgoing interface ([configuration](configuration.md)): `known` is the default for interfaces\n\
         that are not `trusted`, `all` for those that are. Headers in that interface's `pass_headers` are relayed unchanged, unknown ones included.\n\
         Header rules in direction `out` are applied afterwards; headers that rules in direction `in` add are treated like received ones.\n\
         Of a header that is rewritten, at most 64 values are relayed; `cid` may name the first 16 parts of a body.\n\
         Contact of each side is ours, with the feature tags of the other side (those that `Accept-Contact` may have, except `+sip.instance`),\n\
         at most 1,024 octets.\n\n\
         A test compares this page with the list in `crates/config/src/headers.rs`; `HORNWORK_WRITE_PAGES=1 cargo test -p border --lib hiding`\n\
         regenerates it.\n\n\
         ## Headers\n\n| header | towards `known` | towards `all` |\n| --- | --- | --- |\n",
    );
    let mut rows: Vec<(&str, Treatment)> = HEADERS
        .iter()
        .map(|(id, treatment)| (id.name(), *treatment))
        .collect();
    rows.extend(NAMED);
    rows.push(("P-Charging-Function-Addresses", Treatment::Network));
    rows.sort_by_key(|row| row.0);
    for (name, treatment) in rows {
        let [known, all] = texts(treatment);
        page.push_str(&format!("| `{name}` | {known} | {all} |\n"));
    }
    page.push_str(
        "| all others | removed | relayed |\n\
         | reason phrase of the status line | becomes the standard phrase of the status; phrases that are configured here stay | relayed |\n\n\
         Contact of a redirect (3xx, 485) is treated like Refer-To, and loses parameters and headers of its URI where it gets our address; towards\n\
         `known` also those that may name a host, and URIs other than sip, sips, tel and urn. Hosts of the trunk that gets the message stay.\n\
         Our address has the `transport` over which the recipient reaches us, UDP excepted.\n\n\
         Bodies other than session descriptions are relayed unchanged.\n\n\
         ## Lines of session descriptions\n\n\
         These apply where media is anchored here or at a media node; with media bypass descriptions are relayed unchanged.\n\
         A description in a refusal is not relayed where media is anchored.\n\n\
         | line | towards `known` | towards `all` |\n| --- | --- | --- |\n\
         | `o=` | user `-`, our address | the same |\n\
         | `c=`, `m=`, `a=rtcp`, `a=candidate` and other ICE attributes | ours | the same |\n\
         | `a=altc`, `a=ccap`, `a=acap` | removed: they may offer other addresses | the same |\n",
    );
    for (start, instead) in LINES {
        let line = String::from_utf8_lossy(start);
        let known = match instead {
            Some(instead) => format!("becomes `{}`", String::from_utf8_lossy(instead)),
            None => "removed".to_owned(),
        };
        page.push_str(&format!(
            "| `{}` | {known} | relayed |\n",
            line.trim_end_matches(':')
        ));
    }
    page.push_str(
        "| `a=ssrc` with a `cname` that has one of `.`, `:`, `@`, `%` | the `cname` becomes a number | relayed |\n\
         | `a=path` of a rejected line (port 0) | removed | relayed |\n\
         | other attributes of the list below | relayed | relayed |\n\
         | all other attributes (`a=`) | removed | relayed |\n\
         | `v=`, `b=`, `t=`, `r=`, `z=` | relayed | relayed |\n\
         | all other lines | removed | relayed |\n\n\
         Attributes that are relayed; of `a=label` only values without `.` and `:`:\n\n",
    );
    let names: Vec<String> = ATTRIBUTES.iter().map(|name| format!("`{name}`")).collect();
    page.push_str(&format!("{}.\n", names.join(", ")));
    page.push_str(
        "\n## RTCP\n\n\
         These apply where media is anchored here, to RTCP and to SRTCP whose keys are known here; not with media bypass, at media nodes, and\n\
         with `srtp = \"pass\"` on both sides, where SRTCP is relayed as it is (its names are encrypted).\n\n\
         | part | towards `known` | towards `all` |\n| --- | --- | --- |\n\
         | CNAME | a pseudonym of at most 16 random characters (RFC 7022), the same for the whole call and for all its streams with that CNAME | relayed |\n\
         | NAME, EMAIL, PHONE, LOC, TOOL, NOTE, PRIV and other items of source descriptions | removed | relayed |\n\
         | MID, RtpStreamId, RepairedRtpStreamId | relayed | relayed |\n\
         | reason of BYE | removed | relayed |\n\
         | malformed source description | its items are removed | relayed |\n\
         | application-defined packets (APP) | relayed | relayed |\n\
         | datagrams that are no valid compound | dropped (`media_malformed`); relayed where both descriptions leave SRTCP to the phones | relayed |\n\
         | all other packets | relayed | relayed |\n",
    );
    page
}

fn passed(headers: &str, passes: &[&str]) -> String {
    let bytes = format!(
        "INVITE sip:b@h SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\nFrom: <sip:a@x>;tag=1\r\nTo: <sip:b@x>\r\n\
         Call-ID: 1\r\nCSeq: 1 INVITE\r\n{}\r\n",
        headers.replace('\n', "\r\n")
    )
    .into_bytes();
    let message = Message::parse(&bytes).unwrap();
    let passes: Vec<Box<str>> = passes.iter().map(|name| Box::from(*name)).collect();
    let (mut texts, mut list) = (HidingTexts::default(), SmallVec::<[Edit<'_>; 8]>::new());
    edits(
        &message,
        &passes,
        || b"192.0.2.1".to_vec(),
        &mut texts,
        &mut list,
    );
    let mut out = Vec::new();
    emit(&message, &list, &mut out);
    let text = String::from_utf8(out).unwrap();
    let rest = text.split_once("CSeq: 1 INVITE\r\n").unwrap().1;
    rest.trim_end().replace("\r\n", "\n")
}

#[test]
fn every_header_has_one_treatment() {
    for (index, (id, treatment)) in HEADERS.into_iter().enumerate() {
        assert_eq!(id as usize, index, "{}", id.name());
        let written = matches!(
            treatment,
            Treatment::Host
                | Treatment::Uri
                | Treatment::Urn
                | Treatment::Text
                | Treatment::Features
                | Treatment::Comment
                | Treatment::Goes
        );
        assert_eq!(WRITTEN.contains(&id), written, "{}", id.name());
    }
    for (name, _) in NAMED {
        assert_eq!(
            HeaderId::from_name(name.as_bytes()),
            HeaderId::Other,
            "{name}"
        );
    }
}

#[test]
fn page_matches_the_treatments() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/topology-hiding.md");
    if std::env::var_os("HORNWORK_WRITE_PAGES").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap();
    // `cargo xtask docs` wraps its lines.
    let words = |text: &str| Vec::from_iter(text.split_whitespace().map(str::to_owned));
    let remedy = "HORNWORK_WRITE_PAGES=1 regenerates it";
    assert_eq!(words(&written), words(&page()), "{remedy}");
}

#[test]
fn values_without_hosts_are_relayed() {
    for same in [
        "Subject: lunch at pbx.example",
        "Alert-Info: <urn:alert:source:external>;info=ring2",
        "Call-Info: <cid:pic%25ture@a.example>;purpose=icon\n\nContent-ID: <pic%ture@a.example>",
        "Reason: Q.850;cause=16, SIP;cause=200",
        "Answer-Mode: Auto",
        "User-to-User: 00aa;encoding=hex",
        "Organization: Example",
        "Accept-Contact: *;audio;+g.3gpp.icsi-ref=\"urn%3Aurn-7%3A3gpp-service.ims.icsi.mmtel\";require",
        "Reject-Contact: *;actor=\"msg-taker\";+sip.instance=\"<urn:uuid:0>\"",
        "Retry-After: 5;duration=3600",
        "Session-ID: ab30317f1a784dc48ff824d0d3715d86;remote=47755a9de7794ba387653f2099600ef2",
    ] {
        assert_eq!(passed(&format!("{same}\n"), &[]), same);
    }
}

#[test]
fn values_with_hosts_are_rewritten_or_removed() {
    for (came, goes) in [
        (
            "Alert-Info: <http://10.2.0.7/ring.wav>;info=alert-autoanswer;delay=0;x=\"pbx\"",
            "Alert-Info: <sip:192.0.2.1>;info=alert-autoanswer;delay=0",
        ),
        (
            "Call-Info: <sip:10.2.0.7>;answer-after=0, <http://pbx/me.png>;purpose=icon",
            "Call-Info: <sip:192.0.2.1>;answer-after=0",
        ),
        ("Call-Info: <http://pbx/me.png>;purpose=icon", ""),
        ("Error-Info: <sip:sorry@10.2.0.7>", ""),
        // There is no such part of the body.
        ("Error-Info: <cid:sorry@10.2.0.7>", ""),
        ("Call-Info: <cid:a@10.2.0.7>", "Call-Info: <sip:192.0.2.1>"),
        ("Call-Info: <cid:a@10.2.0.7>;purpose=icon", ""),
        ("In-Reply-To: 1@10.2.0.7", ""),
        (
            "Reason: Q.850;cause=34;text=\"pbx7, 10.2.0.7; full\"",
            "Reason: Q.850;cause=34",
        ),
        (
            "Reason: SIP;cause=503;node=\"10.2.0.7\";ppi=pbx@core.example;location=LN",
            "Reason: SIP;cause=503;location=LN",
        ),
        (
            "Referred-By: \"Bob\" <sip:bob@10.2.0.7:5070;maddr=10.2.0.8?X=y>;cid=\"1@10.2.0.7\"",
            "Referred-By: \"Bob\" <sip:bob@192.0.2.1>",
        ),
        ("Referred-By: <http://10.2.0.7/>", ""),
        (
            "Referred-By: <sip:+4312;phone-context=pbx@10.2.0.7;user=phone>",
            "Referred-By: <sip:+4312;phone-context=pbx@192.0.2.1>",
        ),
        ("Session-ID: ab@10.0.0.20", ""),
        ("session-id: ab30;remote=ab@pbx", ""),
        ("Reply-To: <tel:+431234>", "Reply-To: <tel:+431234>"),
        ("X-Asterisk-HangupCause: Normal", ""),
        (
            "Accept-Contact: *;x=\"10.2.0.7\";audio;description=\"pbx7\";+uri-domain=\"pbx7\"",
            "Accept-Contact: *;audio",
        ),
        (
            "Retry-After: 5 (call (again) 10.2.0.7);duration=3600",
            "Retry-After: 5;duration=3600",
        ),
        ("Retry-After: pbx7", ""),
        ("x-a: 1\nX-B: 2\nX-A: 3", ""),
    ] {
        assert_eq!(passed(&format!("{came}\n"), &[]), goes, "{came}");
    }
}

/// The work for a message stays proportional to its length, though a list of values has no limit of its own.
#[test]
fn values_beyond_the_limit_are_removed_and_the_body_is_read_once() {
    let urn = |number: usize| format!("<urn:alert:x:{number}>");
    let list = |count: usize| (0..count).map(urn).collect::<Vec<String>>().join(", ");
    let relayed = passed(&format!("Alert-Info: {}\n", list(1_000)), &[]);
    assert_eq!(relayed, format!("Alert-Info: {}", list(MAX_VALUES)));
    let parts = |count: usize| {
        let part = |number: usize| format!("Content-ID: <{number}>\n");
        (0..count).map(part).collect::<String>()
    };
    let body = format!("{}\n{}", "x".repeat(32_000), parts(17));
    for (name, is_known) in [(0, true), (15, true), (16, false)] {
        let value = format!("Geolocation: <cid:{name}>");
        let relayed = passed(&format!("{value}\n\n{body}"), &[]);
        assert_eq!(relayed.starts_with(&value), is_known, "{name}");
    }
}

#[test]
fn parts_of_a_body_are_known_by_their_content_id() {
    for (body, is_known) in [
        ("--b\nContent-Type: x/y\nCONTENT-ID:<a@h>\n\n<z@h>", true),
        ("--b\nContent-ID:\n <a@h>\n", true),
        ("<a@h>", false),
        ("X-Content-ID: <a@h>", false),
        ("Content-ID: a@h", false),
        ("Content-ID: <a@h", false),
    ] {
        let relayed = passed(&format!("Error-Info: <cid:a@h>\n\n{body}"), &[]);
        assert_eq!(
            relayed.starts_with("Error-Info: <cid:a@h>"),
            is_known,
            "{body}"
        );
    }
    let long = "y".repeat(MAX_CONTENT_ID);
    let relayed = passed(
        &format!("Error-Info: <cid:{long}>\n\nContent-ID: <{long}>"),
        &[],
    );
    assert!(!relayed.starts_with("Error-Info: <cid"));
}

#[test]
fn pass_headers_are_relayed() {
    let came = "X-Account: 7\nError-Info: <sip:sorry@10.2.0.7>";
    assert_eq!(
        passed(&format!("{came}\n"), &["x-account", "error-info"]),
        came
    );
}

#[test]
fn sdp_identifying_lines_are_removed() {
    let hide = |text: &str| {
        let mut out = b"before".to_vec();
        out.extend_from_slice(text.as_bytes());
        description(&mut out, 6);
        String::from_utf8(out.split_off(6)).unwrap()
    };
    assert_eq!(
        hide(
            "v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=pbx7\r\ni=at pbx7\r\nu=http://pbx7/\r\ne=a@pbx7\r\np=+43\r\nc=IN IP4 192.0.2.1\r\n\
             k=uri:http://pbx7/\r\nt=0 0\r\nx=pbx7\r\na=altc:1 IP4 10.2.0.7 4000\r\na=tool:pbx7 1.0\r\na=x-srv:pbx7\r\nm=audio 4000 RTP/AVP 0\r\ni=line of pbx7\r\na=ptime:20\r\na=toolbox\r\na=label:10.2.0.7\r\na=label:7\r\na=source-filter: incl IN IP4 * 10.2.0.7\r\n"
        ),
        "v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0\r\na=ptime:20\r\na=label:7\r\n"
    );
    // Of browsers, fax gateways, and messages and floor control beside audio.
    for plain in [
        "v=0\ns=-\nt=0 0\n",
        "a=group:BUNDLE 0\na=msid-semantic: WMS\na=ice-ufrag:x\na=fingerprint:sha-256 00\na=setup:actpass\na=mid:0\n\
         a=extmap:1 urn:ietf:params:rtp-hdrext:ssrc-audio-level\na=sendrecv\na=rtcp-mux\na=rtcp-rsize\na=rtpmap:111 opus/48000/2\n\
         a=rtcp-fb:111 transport-cc\na=fmtp:111 minptime=10\na=ssrc:1 cname:x\na=ssrc-group:FID 1 2\na=extmap-allow-mixed\n\
         a=candidate:1 1 udp 1 192.0.2.1 4000 typ host\na=end-of-candidates\na=rid:h send\na=simulcast:send h\na=tls-id:1\n",
        "a=T38FaxVersion:0\na=T38MaxBitRate:14400\na=T38FaxRateManagement:transferredTCF\na=T38FaxUdpEC:t38UDPRedundancy\na=t38faxmaxbuffer:72\n",
        "a=path:msrp://192.0.2.1:4000/x;tcp\na=accept-types:text/plain\na=floorctrl:c-s\na=confid:1\na=userid:2\na=floorid:1 mstrm:10\na=label:10\n",
    ] {
        assert_eq!(hide(plain), plain);
    }
    assert!(ATTRIBUTES.is_sorted_by(|a, b| a < b));
    assert_eq!(hide("s="), "s=-");
    // CNAMEs that name a host; the same one for the sources of one device.
    assert_eq!(
        hide(
            "a=ssrc:1 cname:u@10.2.0.7\r\na=ssrc:2 cname:v@10.2.0.7\na=ssrc:3 cname:u@10.2.0.7\r\na=SSRC:4 CNAME:fe80::1"
        ),
        "a=ssrc:1 cname:1\r\na=ssrc:2 cname:2\na=ssrc:3 cname:1\r\na=SSRC:4 CNAME:3"
    );
    let rejected =
        "m=message 0 TCP/MSRP *\r\na=path:msrp://10.2.0.7:1/x;tcp\r\na=accept-types:*\r\n";
    assert_eq!(
        hide(rejected),
        "m=message 0 TCP/MSRP *\r\na=accept-types:*\r\n"
    );
    let accepted = rejected.replace(" 0 ", " 4000 ");
    assert_eq!(hide(&accepted), accepted);
}
