//! `a=crypto`: parsing, writing, offer, answer and rejection.

use crate::common;

use common::{protect_packet, rtp, unprotect_packet};
use engine::Entropy;
use proptest::prelude::*;
use protect::sdes::{CryptoAttribute, Order, Policy, Reason, accept, answer, offer};
use protect::srtp::{ContextLimits, KeyError, SrtpFailure, Suite};

const KEY: &str = "WVNfX19zZW1jdGwgKCkgewkyMjA7fQp9CnVubGVz";

fn parse(text: &str) -> Result<CryptoAttribute, Reason> {
    CryptoAttribute::parse(text.as_bytes())
}

fn refusal(text: &str) -> Reason {
    parse(text).expect_err(text)
}

fn values(attributes: &[CryptoAttribute]) -> Vec<Vec<u8>> {
    let value = |attribute: &CryptoAttribute| attribute.value().as_bytes().to_vec();
    attributes.iter().map(value).collect()
}

fn slices(values: &[Vec<u8>]) -> impl Iterator<Item = &[u8]> {
    values.iter().map(Vec::as_slice)
}

/// The examples of RFC 4568 sections 4.1 and 6.1.
#[test]
fn crypto_attribute_round_trip() {
    for text in [
        format!("1 AES_CM_128_HMAC_SHA1_80 inline:{KEY}"),
        format!("1 AES_CM_128_HMAC_SHA1_80 inline:{KEY}|2^20|1:4"),
        format!("2 AES_CM_128_HMAC_SHA1_32 inline:{KEY}|2^20"),
        format!("3 AES_CM_128_HMAC_SHA1_32 inline:{KEY}|1066:4"),
        format!("999999999 AES_CM_128_HMAC_SHA1_80 inline:{KEY}|1000000|1:1;inline:{KEY}|2:1"),
        format!(
            "7 AES_CM_128_HMAC_SHA1_80 inline:{KEY} KDR=24 UNENCRYPTED_SRTCP FEC_ORDER=SRTP_FEC WSH=256"
        ),
    ] {
        let read = parse(&text).unwrap();
        assert_eq!(read.value().as_str(), text);
        assert!(!format!("{read:?}").contains(KEY));
    }
    let read = parse(&format!(
        "1\tAES_CM_128_HMAC_SHA1_80   inline:{KEY}|2^20|1066:4"
    ))
    .unwrap();
    assert_eq!((read.tag, read.suite), (1, Suite::AesCm128HmacSha1_80));
    assert_eq!(read.keys[0].mki(), [0, 0, 4, 42]);
    assert_eq!(read.keys[0].lifetime(), 1 << 20);
    let ignored = parse(&format!(
        "1 AES_CM_128_HMAC_SHA1_80 inline:{KEY} -FUTURE=1 WSH=70000"
    ))
    .unwrap();
    assert_eq!(
        ignored.parameters.window,
        Some(32_768),
        "limited to our largest window"
    );
    for suite in Suite::ALL {
        let key = common::key(suite, 5);
        let attribute = CryptoAttribute {
            tag: 4,
            suite,
            keys: vec![key.clone().with_mki(&[255; 128]).unwrap()],
            parameters: Default::default(),
        };
        let read = CryptoAttribute::parse(attribute.value().as_bytes()).unwrap();
        assert_eq!(read.keys[0].key_and_salt(), key.key_and_salt());
        assert_eq!(read.keys[0].mki(), [255; 128]);
        let unpadded = attribute.value().replace('=', "");
        assert!(
            parse(&unpadded).is_ok(),
            "{suite}: some leave the padding out"
        );
    }
}

#[test]
fn invalid_crypto_attributes_are_rejected_with_the_reason() {
    let suite = "AES_CM_128_HMAC_SHA1_80";
    let syntax = |text: &str| matches!(refusal(text), Reason::Syntax(_));
    assert!(syntax("") && syntax("1") && syntax(&format!("1 {suite}")));
    assert!(syntax(&format!("x {suite} inline:{KEY}")));
    assert!(syntax(&format!("1234567890 {suite} inline:{KEY}")));
    assert!(syntax(&format!("1 {suite} inline:{KEY}|2^20|1:4|9")));
    assert_eq!(
        refusal(&format!("1 F8_128_HMAC_SHA1_80 inline:{KEY}")),
        Reason::UnknownSuite("F8_128_HMAC_SHA1_80".into())
    );
    assert_eq!(refusal(&format!("1 {suite} uri:{KEY}")), Reason::KeyMethod);
    assert_eq!(refusal(&format!("1 {suite} {KEY}")), Reason::KeyMethod);
    assert_eq!(refusal(&format!("1 {suite} inline:{KEY}*")), Reason::Base64);
    let length = Reason::Key(KeyError::Length {
        required: 46,
        actual: 30,
    });
    assert_eq!(
        refusal(&format!("1 AES_256_CM_HMAC_SHA1_80 inline:{KEY}")),
        length
    );
    for lifetime in ["2^49", "2^64", "2^x", "0", "99999999999999999999999", ""] {
        assert_eq!(
            refusal(&format!("1 {suite} inline:{KEY}|{lifetime}")),
            Reason::Key(KeyError::Lifetime),
            "{lifetime}"
        );
    }
    for mki in ["1:0", "1:129", "256:1", ":4", "1:", "x:4", "1:4:4"] {
        assert_eq!(
            refusal(&format!("1 {suite} inline:{KEY}|2^20|{mki}")),
            Reason::Key(KeyError::Mki),
            "{mki}"
        );
    }
    assert_eq!(
        refusal(&format!("1 {suite} inline:{KEY};inline:{KEY}|1:1")),
        Reason::MkiMissing
    );
    for other in ["1:1", "2:2"] {
        assert_eq!(
            refusal(&format!("1 {suite} inline:{KEY}|1:1;inline:{KEY}|{other}")),
            Reason::Key(KeyError::MkiConflict)
        );
    }
    for (parameters, reason) in [
        ("KDR=25", Reason::Value("KDR")),
        ("KDR", Reason::Value("KDR")),
        ("WSH=63", Reason::Value("WSH")),
        ("FEC_ORDER=FIRST", Reason::Value("FEC_ORDER")),
        ("UNENCRYPTED_SRTP=1", Reason::Value("UNENCRYPTED_SRTP")),
        ("KDR=1 KDR=1", Reason::Repeated("KDR")),
        ("FUTURE", Reason::Parameter("FUTURE".into())),
        ("FEC_KEY=inline:x", Reason::Parameter("FEC_KEY".into())),
        ("-", Reason::Parameter("-".into())),
    ] {
        assert_eq!(
            refusal(&format!("1 {suite} inline:{KEY} {parameters}")),
            reason,
            "{parameters}"
        );
    }
    let gcm = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==";
    assert_eq!(
        refusal(&format!(
            "1 AEAD_AES_128_GCM inline:{gcm} UNAUTHENTICATED_SRTP"
        )),
        Reason::Key(KeyError::Unauthenticated)
    );
}

#[test]
fn sdes_offer_and_answer_yield_working_contexts() {
    let (mut ours, mut theirs) = (Entropy::from_number(1), Entropy::from_number(2));
    let policy = Policy {
        lifetime: Some(1 << 31),
        mki_length: 2,
        ..Policy::default()
    };
    for suite in Suite::ALL
        .into_iter()
        .filter(|s| s.is_registered_for_sdes())
    {
        let all = Policy {
            suites: Suite::ALL.to_vec(),
            ..policy.clone()
        };
        let offered = offer(&all, &mut ours).unwrap();
        assert_eq!(
            offered.len(),
            8,
            "suites without an SDES name are not offered"
        );
        let only = Policy {
            suites: vec![suite],
            ..Policy::default()
        };
        let answered = answer(&only, slices(&values(&offered)), &mut theirs).unwrap();
        assert_eq!(answered.local.suite, suite);
        let agreed = accept(&all, &offered, [answered.local.value().as_bytes()]).unwrap();
        let mut a = agreed.contexts(policy.limits).unwrap();
        let mut b = answered.contexts(policy.limits).unwrap();
        let plain = rtp(5, 1, b"there");
        let protected = protect_packet(&mut a.outbound, &plain).unwrap();
        assert_eq!(protected.len(), plain.len() + 2 + suite.rtp_tag_length());
        assert_eq!(unprotect_packet(&mut b.inbound, &protected).unwrap(), plain);
        let protected = protect_packet(&mut b.outbound, &plain).unwrap();
        assert_eq!(unprotect_packet(&mut a.inbound, &protected).unwrap(), plain);
        assert_eq!(
            unprotect_packet(
                &mut a.inbound,
                &protect_packet(&mut a.outbound, &rtp(6, 1, b"")).unwrap()
            ),
            Err(SrtpFailure::Authentication),
            "each direction has its own key"
        );
    }
}

#[test]
fn policy_order_selects_the_suite() {
    let mut entropy = Entropy::from_number(3);
    let weak_first = Policy {
        suites: vec![Suite::AesCm128HmacSha1_32, Suite::AeadAes256Gcm],
        ..Policy::default()
    };
    let offered = values(&offer(&weak_first, &mut entropy).unwrap());
    let mut policy = Policy::default();
    let theirs = answer(&policy, slices(&offered), &mut entropy).unwrap();
    assert_eq!(theirs.local.suite, Suite::AesCm128HmacSha1_32);
    policy.order = Order::Ours;
    let ours = answer(&policy, slices(&offered), &mut entropy).unwrap();
    assert_eq!(ours.local.suite, Suite::AeadAes256Gcm);
    assert_eq!(ours.local.tag, 2);
}

#[test]
fn each_rejected_crypto_attribute_has_its_reason() {
    let lines = [
        format!("1 NULL_HMAC_SHA1_80 inline:{KEY}"),
        format!("2 AES_CM_128_HMAC_SHA1_80 inline:{KEY} UNENCRYPTED_SRTP"),
        format!("3 AES_CM_128_HMAC_SHA1_80 inline:{KEY} UNAUTHENTICATED_SRTP"),
        "4 AES_CM_128_HMAC_SHA1_80 inline:short".to_owned(),
        format!("4 AES_CM_128_HMAC_SHA1_80 inline:{KEY}"),
        "nonsense".to_owned(),
    ];
    let mut entropy = Entropy::from_number(4);
    let offered = || lines.iter().map(String::as_bytes);
    let refusals = answer(&Policy::default(), offered(), &mut entropy).unwrap_err();
    let reasons: Vec<_> = refusals
        .iter()
        .map(|refusal| (refusal.tag, refusal.reason.clone()))
        .collect();
    assert_eq!(reasons[0], (Some(1), Reason::SuiteNotAllowed));
    assert_eq!(reasons[1], (Some(2), Reason::UnencryptedNotAllowed));
    assert_eq!(reasons[2], (Some(3), Reason::UnauthenticatedNotAllowed));
    assert!(matches!(
        reasons[3],
        (Some(4), Reason::Base64 | Reason::Key(_))
    ));
    assert_eq!(reasons[4], (Some(4), Reason::DuplicateTag));
    assert!(matches!(reasons[5], (None, Reason::Syntax(_))));
    assert!(
        refusals
            .iter()
            .all(|refusal| !refusal.to_string().is_empty())
    );
    let lax = Policy {
        unencrypted: true,
        ..Policy::default()
    };
    let agreed = answer(&lax, offered(), &mut entropy).unwrap();
    assert!(
        agreed.local.value().ends_with("UNENCRYPTED_SRTP"),
        "negotiated parameters are repeated"
    );
    let none: [&[u8]; 0] = [];
    assert!(answer(&lax, none, &mut entropy).unwrap_err().is_empty());
}

#[test]
fn answers_that_do_not_match_the_offer_are_rejected() {
    let mut entropy = Entropy::from_number(5);
    let policy = Policy::default();
    let offered = offer(&policy, &mut entropy).unwrap();
    let good = answer(&policy, slices(&values(&offered)), &mut entropy).unwrap();
    let good = good.local.value().to_string();
    let reason = |lines: &[&str]| {
        let lines = lines.iter().map(|line| line.as_bytes());
        accept(&policy, &offered, lines).unwrap_err().reason
    };
    assert_eq!(reason(&[]), Reason::AnswerCount(0));
    assert_eq!(reason(&[&good, &good]), Reason::AnswerCount(2));
    assert_eq!(
        reason(&[&good.replacen('1', "77", 1)]),
        Reason::TagNotOffered
    );
    assert_eq!(reason(&[&good.replacen('1', "4", 1)]), Reason::SuiteChanged);
    assert_eq!(
        reason(&[&format!("{good} UNENCRYPTED_SRTP")]),
        Reason::ParametersChanged
    );
    let own = format!("{good} KDR=3 WSH=512");
    let agreed = accept(&policy, &offered, [own.as_bytes()]).unwrap();
    let mut contexts = agreed.contexts(ContextLimits::default()).unwrap();
    assert!(protect_packet(&mut contexts.outbound, &rtp(1, 1, b"")).is_ok());
}

/// A new offer with the same keys leaves the contexts unchanged; one with a new key re-keys, in either direction.
#[test]
fn second_offer_rekeys_only_changed_keys() {
    let mut entropy = Entropy::from_number(6);
    let policy = Policy::default();
    let offered = offer(&policy, &mut entropy).unwrap();
    let b1 = answer(&policy, slices(&values(&offered)), &mut entropy).unwrap();
    let a1 = accept(&policy, &offered, [b1.local.value().as_bytes()]).unwrap();
    let mut a = a1.contexts(policy.limits).unwrap();
    let mut b = b1.contexts(policy.limits).unwrap();
    let first = protect_packet(&mut a.outbound, &rtp(5, 65_535, b"")).unwrap();
    unprotect_packet(&mut b.inbound, &first).unwrap();
    b1.rekey(&mut b, &b1).unwrap();
    assert_eq!(
        unprotect_packet(&mut b.inbound, &first),
        Err(SrtpFailure::Replayed),
        "unchanged"
    );

    let offered = offer(&policy, &mut entropy).unwrap();
    let b2 = answer(&policy, slices(&values(&offered)), &mut entropy).unwrap();
    let a2 = accept(&policy, &offered, [b2.local.value().as_bytes()]).unwrap();
    let late = protect_packet(&mut a.outbound, &rtp(5, 0, b"old key")).unwrap();
    b2.rekey(&mut b, &b1).unwrap();
    a2.rekey(&mut a, &a1).unwrap();
    let new = protect_packet(&mut a.outbound, &rtp(5, 1, b"new key")).unwrap();
    assert!(unprotect_packet(&mut b.inbound, &new).is_ok());
    assert!(unprotect_packet(&mut b.inbound, &late).is_ok());
    let back = protect_packet(&mut b.outbound, &rtp(9, 1, b"")).unwrap();
    assert!(unprotect_packet(&mut a.inbound, &back).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_line(line in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = CryptoAttribute::parse(&line);
        protect::fuzz_srtp(&line);
    }

    /// Bytes that resemble an attribute.
    #[test]
    fn plausible_lines(
        tag in "[0-9]{0,10}",
        suite in "(AES_CM_128_HMAC_SHA1_80|AES_CM_128_HMAC_SHA1_32|AEAD_AES_128_GCM|NULL_HMAC_SHA1_80)",
        key in "(inline:)?[A-Za-z0-9+/]{38,42}={0,2}",
        more in "(\\|(2\\^)?[0-9]{0,3})?(\\|[0-9]{0,4}:[0-9]{0,3})?( (KDR|WSH|UNENCRYPTED_SRTP|-X)(=[0-9]{0,4})?){0,3}",
    ) {
        protect::fuzz_srtp(format!("{tag} {suite} {key}{more}").as_bytes());
    }

    /// Steps of the fuzz target.
    #[test]
    fn any_steps(steps in proptest::collection::vec(any::<u8>(), 0..2_000)) {
        protect::fuzz_srtp(&steps);
    }

    /// Arbitrary bytes as packets, with contexts of every suite.
    #[test]
    fn any_packet(bytes in proptest::collection::vec(any::<u8>(), 0..300), seed in any::<u64>()) {
        for suite in Suite::ALL {
            let key = common::key(suite, seed);
            let mut inbound_context = common::inbound(&key);
            let mut outbound_context = common::outbound(&key);
            for first in [0x80, 0x90, 0xbf] {
                let mut packet = bytes.clone();
                if let Some(byte) = packet.first_mut() {
                    *byte = first;
                }
                prop_assert!(unprotect_packet(&mut inbound_context, &packet).is_err());
                prop_assert!(common::unprotect_rtcp_packet(&mut inbound_context, &packet).is_err());
                if let Ok(protected) = protect_packet(&mut outbound_context, &packet) {
                    prop_assert_eq!(unprotect_packet(&mut inbound_context, &protected).unwrap(), packet.clone());
                }
            }
        }
    }
}
