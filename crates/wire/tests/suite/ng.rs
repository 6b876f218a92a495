//! Bencode and the framing of "ng": what is written is read again, what is hostile is refused, whatever comes.

use proptest::prelude::*;
use wire::ng::{
    BencodeError, Dictionary, Item, MAX_DEPTH, MAX_MESSAGE, Message, NgError, Scanner,
    StreamFramer, Value,
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
    fn what_is_written_is_read_again(value in values()) {
        let bytes = written(&value);
        let item = Item::parse(&bytes).unwrap();
        prop_assert_eq!(Value::from(item), value);
    }

    #[test]
    fn every_part_of_a_value_is_truncated(value in values(), part in 0.0f64..1.0) {
        let bytes = written(&value);
        let cut = (bytes.len() as f64 * part) as usize;
        if cut < bytes.len() {
            prop_assert_eq!(Item::parse(&bytes[..cut]), Err(BencodeError::Truncated));
        }
    }

    #[test]
    fn a_stream_gives_the_same_messages_however_it_is_cut(
        values in proptest::collection::vec(values(), 1..5),
        sizes in proptest::collection::vec(1usize..50, 1..20),
    ) {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (number, value) in values.into_iter().enumerate() {
            let body = Value::dictionary().with("value", value);
            let from = bytes.len();
            Message::write(format!("cookie{number}").as_bytes(), &body, &mut bytes);
            expected.push(bytes[from..].to_vec());
            if number % 2 == 0 {
                bytes.extend_from_slice(b"\r\n");
            }
        }
        let mut framer = StreamFramer::default();
        let mut got = Vec::new();
        let (mut rest, mut turn) = (bytes.as_slice(), 0);
        while !rest.is_empty() {
            let size = sizes[turn % sizes.len()].min(rest.len());
            turn += 1;
            let (piece, behind) = rest.split_at(size);
            rest = behind;
            framer.push(piece);
            while let Some(message) = framer.next_message().unwrap() {
                Message::parse(message).unwrap();
                got.push(message.to_vec());
            }
        }
        prop_assert_eq!(got, expected);
        // Line ends behind the last one are still there, or passed over.
        prop_assert!(framer.waiting() <= 2);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        wire::fuzz::fuzz_ng(&bytes);
    }

    #[test]
    fn bytes_that_look_like_bencode_are_read_or_refused(text in "[a-c]{0,3} ?[deil0-9:\\-x]{0,80}") {
        wire::fuzz::fuzz_ng(text.as_bytes());
    }
}

#[test]
fn a_command_as_clients_write_it() {
    // The keys are in no order, as Kamailio's module writes them.
    let bytes = b"5323_1 d3:sdp4:v=0\n7:command5:offer7:call-id4:ab@c5:flagsl13:trust-addresse12:delete-delayi-1ee";
    let message = Message::parse(bytes).unwrap();
    assert_eq!(message.cookie, b"5323_1");
    let text = |key| message.body.get(key).and_then(Item::text);
    assert_eq!(text("command"), Some("offer"));
    assert_eq!(text("call-id"), Some("ab@c"));
    assert_eq!(
        message.body.get("delete-delay").and_then(Item::integer),
        Some(-1)
    );
    let flags = message.body.get("flags").and_then(Item::list).unwrap();
    assert_eq!(
        flags.iter().filter_map(Item::text).collect::<Vec<_>>(),
        ["trust-address"]
    );
    assert_eq!(message.body.get("from-tag"), None);
    assert_eq!(message.body.iter().count(), 5);
}

#[test]
fn what_we_write_is_in_canonical_form() {
    let value = Value::dictionary()
        .with("result", "ok")
        .with("created", 12u64)
        .with("tags", Value::List(vec!["b".into(), Value::Integer(-3)]));
    let mut out = Vec::new();
    Message::write(b"c", &value, &mut out);
    assert_eq!(out, b"c d7:createdi12e6:result2:ok4:tagsl1:bi-3eee");
}

#[test]
fn of_a_key_that_stands_twice_the_first_counts() {
    let dictionary = Dictionary::parse(b"d1:ai1e1:ai2ee").unwrap();
    assert_eq!(dictionary.get("a"), Some(Item::Integer(1)));
    let value = Value::from(Item::Dictionary(dictionary));
    assert_eq!(written(&value), b"d1:ai1ee");
}

#[test]
fn what_is_no_bencode_is_refused_with_its_reason() {
    for (bytes, why) in [
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
        assert_eq!(Item::parse(bytes), Err(why), "{text}");
    }
    assert_eq!(Dictionary::parse(b"le"), Err(BencodeError::NoDictionary));
    assert!(Item::parse(b"i-9223372036854775808e").is_ok());
}

#[test]
fn depth_and_size_have_limits() {
    let nested = |depth: usize| ["l".repeat(depth), "e".repeat(depth)].concat();
    assert!(Item::parse(nested(MAX_DEPTH).as_bytes()).is_ok());
    assert_eq!(
        Item::parse(nested(MAX_DEPTH + 1).as_bytes()),
        Err(BencodeError::TooDeep)
    );
    // A bomb is refused at its limit, not at its end.
    assert_eq!(
        Scanner::new().scan("d1:a".repeat(100_000).as_bytes()),
        Err(BencodeError::TooDeep)
    );
    let large = format!("c d1:a{}:{}e", MAX_MESSAGE, "x".repeat(MAX_MESSAGE));
    assert_eq!(Message::parse(large.as_bytes()), Err(NgError::TooLarge));
    let mut framer = StreamFramer::default();
    framer.push(large.as_bytes().split_at(MAX_MESSAGE + 1).0);
    assert_eq!(framer.next_message(), Err(NgError::TooLarge));
}

#[test]
fn a_cookie_is_printable_and_short() {
    for bytes in [
        &b""[..],
        b" de",
        b"a",
        b"\x01 de",
        b"a\tb de",
        &[&[b'a'; 256][..], b" de"].concat(),
    ] {
        assert_eq!(Message::parse(bytes), Err(NgError::NoCookie));
    }
    assert!(Message::parse(&[&[b'a'; 255][..], b" de"].concat()).is_ok());
    assert_eq!(Message::cookie_of(b"abc rubbish"), Some(&b"abc"[..]));
    let mut framer = StreamFramer::default();
    framer.push(b"GET / HTTP/1.1\r\n");
    assert!(matches!(framer.next_message(), Err(NgError::Bencode(_))));
    let mut framer = StreamFramer::default();
    framer.push(b"\x16\x03\x01");
    assert_eq!(framer.next_message(), Err(NgError::NoCookie));
}
