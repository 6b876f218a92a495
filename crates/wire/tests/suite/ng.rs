//! Bencode and the framing of "ng": written values can be parsed again, malformed input is refused.

use proptest::prelude::*;
use wire::ng::{
    BencodeError, BencodeItem, Dictionary, MAX_DEPTH, MAX_MESSAGE, NgError, NgMessage,
    NgStreamFramer, Scanner, Value,
};

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(Value::Integer),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(Value::Bytes),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::List),
            proptest::collection::btree_map(
                proptest::collection::vec(any::<u8>(), 0..8),
                inner,
                0..6
            )
            .prop_map(Value::Dictionary),
        ]
    })
}

fn written(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    value.write(&mut out);
    out
}

proptest! {
    #[test]
    fn written_values_can_be_parsed(value in values()) {
        let bytes = written(&value);
        let item = BencodeItem::parse(&bytes).unwrap();
        prop_assert_eq!(Value::from(item), value);
    }

    #[test]
    fn every_part_of_a_value_is_truncated(value in values(), part in 0.0f64..1.0) {
        let bytes = written(&value);
        let cut = (bytes.len() as f64 * part) as usize;
        if cut < bytes.len() {
            prop_assert_eq!(BencodeItem::parse(&bytes[..cut]), Err(BencodeError::Truncated));
        }
    }

    #[test]
    fn stream_messages_do_not_depend_on_segmentation(
        values in proptest::collection::vec(values(), 1..5),
        sizes in proptest::collection::vec(1usize..50, 1..20),
    ) {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (number, value) in values.into_iter().enumerate() {
            let body = Value::dictionary().with("value", value);
            let from = bytes.len();
            NgMessage::write(format!("cookie{number}").as_bytes(), &body, &mut bytes);
            expected.push(bytes[from..].to_vec());
            if number % 2 == 0 {
                bytes.extend_from_slice(b"\r\n");
            }
        }
        let mut framer = NgStreamFramer::default();
        let mut got = Vec::new();
        let (mut rest, mut turn) = (bytes.as_slice(), 0);
        while !rest.is_empty() {
            let size = sizes[turn % sizes.len()].min(rest.len());
            turn += 1;
            let (piece, behind) = rest.split_at(size);
            rest = behind;
            framer.push(piece);
            while let Some(message) = framer.next_message().unwrap() {
                NgMessage::parse(message).unwrap();
                got.push(message.to_vec());
            }
        }
        prop_assert_eq!(got, expected);
        // Line ends after the last message may still be buffered, or skipped.
        prop_assert!(framer.waiting() <= 2);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        wire::fuzz::fuzz_ng(&bytes);
    }

    #[test]
    fn bencode_like_bytes_do_not_panic(text in "[a-c]{0,3} ?[deil0-9:\\-x]{0,80}") {
        wire::fuzz::fuzz_ng(text.as_bytes());
    }
}

#[test]
fn client_command_is_parsed() {
    // The keys are unsorted, as Kamailio's module writes them.
    let bytes = b"5323_1 d3:sdp4:v=0\n7:command5:offer7:call-id4:ab@c5:flagsl13:trust-addresse12:delete-delayi-1ee";
    let message = NgMessage::parse(bytes).unwrap();
    assert_eq!(message.cookie, b"5323_1");
    let text = |key| message.body.get(key).and_then(BencodeItem::text);
    assert_eq!(text("command"), Some("offer"));
    assert_eq!(text("call-id"), Some("ab@c"));
    assert_eq!(
        message
            .body
            .get("delete-delay")
            .and_then(BencodeItem::integer),
        Some(-1)
    );
    let flags = message
        .body
        .get("flags")
        .and_then(BencodeItem::list)
        .unwrap();
    assert_eq!(
        flags
            .iter()
            .filter_map(BencodeItem::text)
            .collect::<Vec<_>>(),
        ["trust-address"]
    );
    assert_eq!(message.body.get("from-tag"), None);
    assert_eq!(message.body.iter().count(), 5);
}

#[test]
fn written_values_are_canonical() {
    let value = Value::dictionary()
        .with("result", "ok")
        .with("created", 12u64)
        .with("tags", Value::List(vec!["b".into(), Value::Integer(-3)]));
    let mut out = Vec::new();
    NgMessage::write(b"c", &value, &mut out);
    assert_eq!(out, b"c d7:createdi12e6:result2:ok4:tagsl1:bi-3eee");
}

#[test]
fn first_value_of_a_repeated_key_counts() {
    let dictionary = Dictionary::parse(b"d1:ai1e1:ai2ee").unwrap();
    assert_eq!(dictionary.get("a"), Some(BencodeItem::Integer(1)));
    let value = Value::from(BencodeItem::Dictionary(dictionary));
    assert_eq!(written(&value), b"d1:ai1ee");
}

#[test]
fn malformed_bencode_is_refused_with_its_reason() {
    for (bytes, reason) in [
        (&b""[..], BencodeError::Truncated),
        (b"d", BencodeError::Truncated),
        (b"d1:a", BencodeError::Truncated),
        (b"999999:", BencodeError::Truncated),
        (b"i12", BencodeError::Truncated),
        (b"i1ei2e", BencodeError::Trailing),
        (b"de ", BencodeError::Trailing),
        (b"e", BencodeError::Octet(b'e')),
        (b"x", BencodeError::Octet(b'x')),
        (b"lxe", BencodeError::Octet(b'x')),
        (b"ie", BencodeError::Integer),
        (b"i-e", BencodeError::Integer),
        (b"i-0e", BencodeError::Integer),
        (b"i03e", BencodeError::Integer),
        (b"i9223372036854775808e", BencodeError::Integer),
        (b"i1111111111111111111111111111", BencodeError::Integer),
        (b"i1-1e", BencodeError::Integer),
        (b"01:a", BencodeError::Length),
        (b"9999999:a", BencodeError::Length),
        (b"1x", BencodeError::Length),
        (b"di1ei1ee", BencodeError::Key),
        (b"dlei1ee", BencodeError::Key),
        (b"d1:ae", BencodeError::Key),
    ] {
        let text = String::from_utf8_lossy(bytes);
        assert_eq!(BencodeItem::parse(bytes), Err(reason), "{text}");
    }
    assert_eq!(Dictionary::parse(b"le"), Err(BencodeError::NoDictionary));
    assert!(BencodeItem::parse(b"i-9223372036854775808e").is_ok());
}

#[test]
fn depth_and_size_are_limited() {
    let nested = |depth: usize| ["l".repeat(depth), "e".repeat(depth)].concat();
    assert!(BencodeItem::parse(nested(MAX_DEPTH).as_bytes()).is_ok());
    assert_eq!(
        BencodeItem::parse(nested(MAX_DEPTH + 1).as_bytes()),
        Err(BencodeError::TooDeep)
    );
    // Excessive nesting is refused at the limit, not at the end.
    assert_eq!(
        Scanner::new().scan("d1:a".repeat(100_000).as_bytes()),
        Err(BencodeError::TooDeep)
    );
    let large = format!("c d1:a{}:{}e", MAX_MESSAGE, "x".repeat(MAX_MESSAGE));
    assert_eq!(NgMessage::parse(large.as_bytes()), Err(NgError::TooLarge));
    let mut framer = NgStreamFramer::default();
    framer.push(large.as_bytes().split_at(MAX_MESSAGE + 1).0);
    assert_eq!(framer.next_message(), Err(NgError::TooLarge));
}

#[test]
fn cookies_are_printable_and_short() {
    for bytes in [
        &b""[..],
        b" de",
        b"a",
        b"\x01 de",
        b"a\tb de",
        &[&[b'a'; 256][..], b" de"].concat(),
    ] {
        assert_eq!(NgMessage::parse(bytes), Err(NgError::NoCookie));
    }
    assert!(NgMessage::parse(&[&[b'a'; 255][..], b" de"].concat()).is_ok());
    assert_eq!(NgMessage::cookie_of(b"abc rubbish"), Some(&b"abc"[..]));
    let mut framer = NgStreamFramer::default();
    framer.push(b"GET / HTTP/1.1\r\n");
    assert!(matches!(framer.next_message(), Err(NgError::Bencode(_))));
    let mut framer = NgStreamFramer::default();
    framer.push(b"\x16\x03\x01");
    assert_eq!(framer.next_message(), Err(NgError::NoCookie));
}
