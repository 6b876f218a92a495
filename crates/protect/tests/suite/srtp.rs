//! SRTP and SRTCP through the public interface: every suite, every rule about indices, keys and sources, every reason
//! for rejection.

use crate::common;

use common::{
    inbound, key, outbound, protect_packet, protect_rtcp_packet, rtcp, rtp, unprotect_packet,
    unprotect_rtcp_packet,
};
use engine::{DropReason, Drops};
use protect::srtp::{
    ContextLimits, Inbound, KeyError, MAX_KEYS, MAX_OVERHEAD, MasterKey, Options, Outbound,
    SourceState, SrtpFailure, Suite,
};

const SSRC: u32 = 0xcafe_babe;

#[test]
fn every_suite_round_trip() {
    for suite in Suite::ALL {
        let key = key(suite, 1);
        let (mut outbound_context, mut inbound_context) = (outbound(&key), inbound(&key));
        for (nth, size) in [0usize, 1, 15, 16, 17, 20, 96, 97, 160, 1400]
            .iter()
            .enumerate()
        {
            let payload: Vec<u8> = (0..*size).map(|at| at as u8).collect();
            let plain = rtp(SSRC, nth as u16, &payload);
            let protected = protect_packet(&mut outbound_context, &plain).unwrap();
            assert_eq!(protected.len(), plain.len() + suite.rtp_tag_length());
            assert_eq!(protected[..12], plain[..12], "the header is not encrypted");
            let hidden = suite.is_registered_for_sdes();
            if *size >= 15 {
                assert_eq!(protected[12..plain.len()] != plain[12..], hidden, "{suite}");
            }
            assert_eq!(
                unprotect_packet(&mut inbound_context, &protected).unwrap(),
                plain
            );

            let plain = rtcp(SSRC, "someone");
            let protected = protect_rtcp_packet(&mut outbound_context, &plain).unwrap();
            assert_eq!(protected.len(), plain.len() + 4 + suite.rtcp_tag_length());
            assert_eq!(protected[..8], plain[..8]);
            assert_eq!(
                unprotect_rtcp_packet(&mut inbound_context, &protected).unwrap(),
                plain
            );
        }
    }
}

#[test]
fn csrcs_and_extension_are_authenticated_and_not_encrypted() {
    for suite in [Suite::AesCm128HmacSha1_80, Suite::AeadAes256Gcm] {
        let key = key(suite, 2);
        let header = wire::rtp::RtpHeader {
            ssrc: SSRC,
            csrcs: &[1, 2, 3],
            extension: Some((0xbede, &[0x10, 0xff, 0, 0])),
            ..wire::rtp::RtpHeader::default()
        };
        let plain = header.packet(b"words");
        let protected = protect_packet(&mut outbound(&key), &plain).unwrap();
        assert_eq!(protected[..header.length()], plain[..header.length()]);
        assert_ne!(
            protected[header.length()..plain.len()],
            plain[header.length()..]
        );
        for at in 0..protected.len() {
            let mut altered = protected.clone();
            altered[at] ^= 1;
            let failure = unprotect_packet(&mut inbound(&key), &altered).unwrap_err();
            assert!(
                matches!(
                    failure,
                    SrtpFailure::Authentication | SrtpFailure::Malformed
                ),
                "byte {at}: {failure:?}"
            );
        }
        assert_eq!(
            unprotect_packet(&mut inbound(&key), &protected).unwrap(),
            plain
        );
    }
}

/// Each kind of invalid packet has its own counter.
#[test]
fn every_srtp_failure_has_its_own_drop_reason() {
    for suite in Suite::ALL {
        let with_mki = key(suite, 3).with_mki(&[0, 7]).unwrap();
        let (mut outbound_context, mut inbound_context) = (outbound(&with_mki), inbound(&with_mki));
        let mut drops = Drops::new();
        let protected =
            protect_packet(&mut outbound_context, &rtp(SSRC, 200, b"hello there")).unwrap();
        unprotect_packet(&mut inbound_context, &protected).unwrap();
        let mut refuse = |packet: &[u8], reason: DropReason| {
            let failure = unprotect_packet(&mut inbound_context, packet).unwrap_err();
            assert_eq!(failure.reason(), reason, "{suite}");
            drops.count(failure.into());
            assert_eq!(drops.get(reason), 1);
        };
        refuse(&protected, DropReason::SrtpReplayed);
        refuse(&protected[..13], DropReason::SrtpUnknownMki);
        refuse(&protected[..11], DropReason::SrtpMalformed);
        let other = key(suite, 4).with_mki(&[0, 7]).unwrap();
        let wrong = protect_packet(&mut outbound(&other), &rtp(SSRC, 201, b"hello there")).unwrap();
        refuse(&wrong, DropReason::SrtpAuthentication);
        refuse(
            &protect_packet(&mut outbound(&with_mki), &rtp(SSRC, 50, b"")).unwrap(),
            DropReason::SrtpTooOld,
        );
        assert_eq!(drops.total(), 5);

        // SRTCP, with the same reasons.
        let protected = protect_rtcp_packet(&mut outbound_context, &rtcp(SSRC, "x")).unwrap();
        unprotect_rtcp_packet(&mut inbound_context, &protected).unwrap();
        assert_eq!(
            unprotect_rtcp_packet(&mut inbound_context, &protected),
            Err(SrtpFailure::Replayed)
        );
        let wrong = protect_rtcp_packet(&mut outbound(&other), &rtcp(7, "x")).unwrap();
        assert_eq!(
            unprotect_rtcp_packet(&mut inbound_context, &wrong),
            Err(SrtpFailure::Authentication)
        );
        let foreign = key(suite, 3).with_mki(&[1, 7]).unwrap();
        let wrong = protect_rtcp_packet(&mut outbound(&foreign), &rtcp(SSRC, "x")).unwrap();
        assert_eq!(
            unprotect_rtcp_packet(&mut inbound_context, &wrong),
            Err(SrtpFailure::UnknownMki)
        );
        for length in 0..8 {
            let cut = &protected[..length];
            assert_eq!(
                unprotect_rtcp_packet(&mut inbound_context, cut),
                Err(SrtpFailure::Malformed)
            );
        }
    }
}

/// A packet that is truncated at any point or changed in any byte is rejected.
#[test]
fn truncated_and_altered_packets_are_rejected() {
    for suite in Suite::ALL {
        let key = key(suite, 5);
        let mut outbound_context = outbound(&key);
        let protected = protect_packet(
            &mut outbound_context,
            &rtp(SSRC, 1, b"twenty bytes of G729"),
        )
        .unwrap();
        let report = protect_rtcp_packet(&mut outbound_context, &rtcp(SSRC, "someone")).unwrap();
        let mut inbound_context = inbound(&key);
        for length in 0..protected.len() {
            assert!(
                unprotect_packet(&mut inbound_context, &protected[..length]).is_err(),
                "{suite} {length}"
            );
        }
        for length in 0..report.len() {
            assert!(unprotect_rtcp_packet(&mut inbound_context, &report[..length]).is_err());
        }
        for at in 0..report.len() {
            let mut altered = report.clone();
            altered[at] ^= 0x10;
            assert!(
                unprotect_rtcp_packet(&mut inbound_context, &altered).is_err(),
                "{suite} {at}"
            );
        }
        assert_eq!(
            inbound_context.sources().count(),
            0,
            "no unauthenticated source enters the table"
        );
        unprotect_packet(&mut inbound_context, &protected).unwrap();
        unprotect_rtcp_packet(&mut inbound_context, &report).unwrap();
    }
}

#[test]
fn rollover_counter_advances_on_both_sides() {
    for suite in [Suite::AesCm128HmacSha1_32, Suite::AeadAes128Gcm] {
        let key = key(suite, 6);
        let (mut outbound_context, mut inbound_context) = (outbound(&key), inbound(&key));
        let mut packets = Vec::new();
        // Three cycles in steps, and the packets around each wrap reordered.
        for index in (65_500u64..3 * 65_536 + 100).step_by(7) {
            packets.push((
                index,
                protect_packet(&mut outbound_context, &rtp(SSRC, index as u16, b"abc")).unwrap(),
            ));
        }
        for chunk in packets.chunks_mut(5) {
            chunk.reverse();
        }
        for (index, protected) in &packets {
            let unprotected = unprotect_packet(&mut inbound_context, protected);
            assert!(unprotected.is_ok(), "{index}: {unprotected:?}");
        }
        let highest = inbound_context.sources().next().unwrap().rtp.unwrap();
        assert_eq!(
            highest,
            packets.iter().map(|(index, _)| *index).max().unwrap()
        );
        assert_eq!(
            outbound_context.sources().next().unwrap().rtp,
            Some(highest)
        );
    }
}

#[test]
fn late_joiner_can_set_the_rollover_counter() {
    for suite in [Suite::AesCm256HmacSha1_80, Suite::AeadAes256Gcm] {
        let key = key(suite, 7);
        let mut outbound_context = outbound(&key);
        assert!(outbound_context.set_rollover(SSRC, 5));
        let protected = protect_packet(&mut outbound_context, &rtp(SSRC, 40_000, b"late")).unwrap();
        assert!(
            !outbound_context.set_rollover(SSRC, 6),
            "packets were sent already"
        );
        let mut inbound_context = inbound(&key);
        assert_eq!(
            unprotect_packet(&mut inbound_context, &protected),
            Err(SrtpFailure::Authentication)
        );
        assert!(inbound_context.set_rollover(SSRC, 5));
        assert!(unprotect_packet(&mut inbound_context, &protected).is_ok());
        assert!(!inbound_context.set_rollover(SSRC, 5), "never lower");
        // To a higher value, for a receiver that missed more than half a cycle.
        assert!(inbound_context.set_rollover(SSRC, 9));
        assert_eq!(
            unprotect_packet(&mut inbound_context, &protected),
            Err(SrtpFailure::TooOld)
        );
    }
}

/// The first packets are lost and the first to arrive is behind the wrap: its rollover counter is one.
#[test]
fn start_just_before_the_sequence_wrap() {
    for suite in [Suite::AesCm128HmacSha1_80, Suite::AeadAes128Gcm] {
        let key = key(suite, 8);
        let mut outbound_context = outbound(&key);
        let before = protect_packet(&mut outbound_context, &rtp(SSRC, 65_534, b"1")).unwrap();
        protect_packet(&mut outbound_context, &rtp(SSRC, 65_535, b"2")).unwrap();
        let behind = protect_packet(&mut outbound_context, &rtp(SSRC, 0, b"3")).unwrap();
        let mut inbound_context = inbound(&key);
        assert!(unprotect_packet(&mut inbound_context, &behind).is_ok());
        assert!(
            unprotect_packet(&mut inbound_context, &before).is_ok(),
            "late but within the window"
        );
        assert_eq!(inbound_context.sources().next().unwrap().rtp, Some(65_536));
    }
}

#[test]
fn sources_under_one_key_have_separate_indices() {
    let key = key(Suite::AesCm128HmacSha1_80, 9);
    let limits = ContextLimits {
        sources: 3,
        ..ContextLimits::default()
    };
    let mut outbound_context = Outbound::new(&key, limits).unwrap();
    let mut inbound_context = Inbound::new(&key, limits).unwrap();
    for ssrc in 1..=3 {
        let protected =
            protect_packet(&mut outbound_context, &rtp(ssrc, 10, b"same number")).unwrap();
        assert!(unprotect_packet(&mut inbound_context, &protected).is_ok());
    }
    let one_more = rtp(4, 10, b"same number");
    assert_eq!(
        protect_packet(&mut outbound_context, &one_more),
        Err(SrtpFailure::TooManySources)
    );
    assert_eq!(
        protect_rtcp_packet(&mut outbound_context, &rtcp(4, "")),
        Err(SrtpFailure::TooManySources)
    );
    let protected = protect_packet(&mut outbound(&key), &one_more).unwrap();
    assert_eq!(
        unprotect_packet(&mut inbound_context, &protected),
        Err(SrtpFailure::TooManySources)
    );
    inbound_context.forget(2);
    assert!(
        unprotect_packet(&mut inbound_context, &protected).is_ok(),
        "a removed source makes room"
    );
    let known: Vec<u32> = inbound_context
        .sources()
        .map(|source| source.ssrc)
        .collect();
    assert_eq!(known, [1, 3, 4]);
}

/// Two streams with colliding SSRCs would share a keystream: the second packet with the same number is rejected.
#[test]
fn no_index_is_protected_twice() {
    for suite in Suite::ALL {
        let mut outbound_context = outbound(&key(suite, 10));
        protect_packet(&mut outbound_context, &rtp(SSRC, 300, b"first")).unwrap();
        for payload in [b"first", b"other"] {
            assert_eq!(
                protect_packet(&mut outbound_context, &rtp(SSRC, 300, payload)),
                Err(SrtpFailure::IndexReused)
            );
        }
        protect_packet(&mut outbound_context, &rtp(SSRC, 299, b"late, but new")).unwrap();
        assert_eq!(
            protect_packet(&mut outbound_context, &rtp(SSRC, 100, b"before the window")),
            Err(SrtpFailure::IndexReused)
        );
        assert_eq!(
            protect_packet(
                &mut outbound_context,
                &rtp(SSRC, 65_000, b"before the start")
            ),
            Err(SrtpFailure::IndexReused)
        );
        assert_eq!(outbound_context.key_use().unwrap().srtp, 2);
    }
}

#[test]
fn replay_window_has_the_negotiated_size() {
    let key = key(Suite::AesCm128HmacSha1_80, 11);
    let mut outbound_context = outbound(&key);
    let protected: Vec<_> = (0..1200)
        .map(|at| protect_packet(&mut outbound_context, &rtp(SSRC, at, b"")).unwrap())
        .collect();
    for (window, reach) in [(64, 63), (128, 127), (1000, 1023)] {
        let limits = ContextLimits {
            window,
            ..ContextLimits::default()
        };
        let mut inbound_context = Inbound::new(&key, limits).unwrap();
        unprotect_packet(&mut inbound_context, &protected[1199]).unwrap();
        unprotect_packet(&mut inbound_context, &protected[1199 - reach]).unwrap();
        assert_eq!(
            unprotect_packet(&mut inbound_context, &protected[1199 - reach - 1]),
            Err(SrtpFailure::TooOld)
        );
    }
}

#[test]
fn buffer_without_room_is_unchanged() {
    for suite in Suite::ALL {
        let key = key(suite, 12).with_mki(&[1, 2, 3, 4]).unwrap();
        let mut outbound_context = outbound(&key);
        let plain = rtp(SSRC, 1, b"payload");
        let report = rtcp(SSRC, "x");
        for room in 0..suite.rtp_tag_length() + 4 {
            let mut buffer = plain.clone();
            buffer.resize(plain.len() + room, 0);
            let before = buffer.clone();
            assert_eq!(
                outbound_context.protect_rtp(&mut buffer, plain.len()),
                Err(SrtpFailure::NoRoom)
            );
            assert_eq!(buffer, before);
        }
        let mut buffer = report.clone();
        buffer.resize(report.len() + suite.rtcp_tag_length() + 7, 0);
        assert_eq!(
            outbound_context.protect_rtcp(&mut buffer, report.len()),
            Err(SrtpFailure::NoRoom)
        );
        assert!(outbound_context.overhead() <= MAX_OVERHEAD);
        assert!(
            protect_packet(&mut outbound_context, &plain).is_ok(),
            "the number is still unused"
        );
        assert_eq!(
            outbound_context.protect_rtp(&mut [0x80; 5], 12),
            Err(SrtpFailure::Malformed),
            "longer than its buffer"
        );
        assert_eq!(
            outbound_context.protect_rtcp(&mut [0x80; 40], 7),
            Err(SrtpFailure::Malformed)
        );
    }
}

#[test]
fn keys_are_selected_by_mki() {
    for suite in [
        Suite::AesCm128HmacSha1_80,
        Suite::AeadAes128Gcm,
        Suite::NullHmacSha1_32,
    ] {
        let first = key(suite, 13).with_mki(&[0, 1]).unwrap();
        let second = key(suite, 14).with_mki(&[0, 2]).unwrap();
        let (mut outbound_context, mut inbound_context) = (outbound(&first), inbound(&first));
        outbound_context.add(&second).unwrap();
        inbound_context.add(&second).unwrap();
        assert_eq!(inbound_context.add(&second), Err(KeyError::MkiConflict));
        let longer = key(suite, 15).with_mki(&[0, 0, 3]).unwrap();
        assert_eq!(inbound_context.add(&longer), Err(KeyError::MkiConflict));
        assert_eq!(outbound_context.activate(&[9, 9]), Err(KeyError::NoSuchKey));
        for (sequence, mki) in [(1, [0, 1]), (2, [0, 2]), (3, [0, 1]), (4, [0, 2])] {
            outbound_context.activate(&mki).unwrap();
            let plain = rtp(SSRC, sequence, b"either");
            let protected = protect_packet(&mut outbound_context, &plain).unwrap();
            let at = match suite {
                Suite::AeadAes128Gcm => protected.len() - 2,
                _ => plain.len(),
            };
            assert_eq!(protected[at..at + 2], mki, "{suite}");
            assert_eq!(
                unprotect_packet(&mut inbound_context, &protected).unwrap(),
                plain
            );
            assert_eq!(
                unprotect_packet(&mut inbound_context, &protected),
                Err(SrtpFailure::Replayed)
            );
            let plain = rtcp(SSRC, "either");
            let protected = protect_rtcp_packet(&mut outbound_context, &plain).unwrap();
            assert_eq!(
                unprotect_rtcp_packet(&mut inbound_context, &protected).unwrap(),
                plain
            );
        }
    }
}

/// A new SDES key: packets in flight under the old one are accepted, rollover counters continue, and the old key is
/// removed automatically or on request.
#[test]
fn rekeying_accepts_both_keys_for_a_while() {
    for suite in [Suite::AesCm128HmacSha1_80, Suite::AeadAes256Gcm] {
        let (old, new) = (key(suite, 16), key(Suite::AesCm256HmacSha1_80, 17));
        let (mut outbound_context, mut inbound_context) = (outbound(&old), inbound(&old));
        for sequence in [65_530u16, 2, 3] {
            unprotect_packet(
                &mut inbound_context,
                &protect_packet(&mut outbound_context, &rtp(SSRC, sequence, b"old")).unwrap(),
            )
            .unwrap();
        }
        let on_its_way = protect_packet(&mut outbound_context, &rtp(SSRC, 4, b"old")).unwrap();
        inbound_context.add(&new).unwrap();
        outbound_context.rekey(&new).unwrap();
        assert_eq!(inbound_context.keys(), 2);
        let first = protect_packet(&mut outbound_context, &rtp(SSRC, 5, b"new")).unwrap();
        assert!(unprotect_packet(&mut inbound_context, &first).is_ok());
        assert!(unprotect_packet(&mut inbound_context, &on_its_way).is_ok());
        assert_eq!(
            unprotect_packet(&mut inbound_context, &on_its_way),
            Err(SrtpFailure::Replayed)
        );
        assert_eq!(
            unprotect_packet(&mut inbound_context, &first),
            Err(SrtpFailure::Replayed)
        );
        assert_eq!(inbound_context.sources().next().unwrap().rtp, Some(65_541));
        for sequence in 6..1_100u16 {
            unprotect_packet(
                &mut inbound_context,
                &protect_packet(&mut outbound_context, &rtp(SSRC, sequence, b"new")).unwrap(),
            )
            .unwrap();
        }
        assert_eq!(
            inbound_context.keys(),
            1,
            "the old key is removed after a thousand packets"
        );
    }
}

#[test]
fn retired_keys_are_removed_at_once() {
    let (old, new) = (
        key(Suite::AesCm128HmacSha1_80, 18),
        key(Suite::AesCm128HmacSha1_80, 19),
    );
    let mut inbound_context = inbound(&old);
    let protected = protect_packet(&mut outbound(&old), &rtp(SSRC, 1, b"")).unwrap();
    inbound_context.add(&new).unwrap();
    inbound_context.retire();
    assert_eq!(
        unprotect_packet(&mut inbound_context, &protected),
        Err(SrtpFailure::Authentication)
    );
    let protected = protect_packet(&mut outbound(&new), &rtp(SSRC, 1, b"")).unwrap();
    assert!(unprotect_packet(&mut inbound_context, &protected).is_ok());
    for nth in 0..MAX_KEYS as u64 - 1 {
        inbound_context
            .add(&key(Suite::AesCm128HmacSha1_80, 20 + nth))
            .unwrap();
    }
    assert_eq!(inbound_context.add(&new), Err(KeyError::TooManyKeys));
}

/// Senders that reset their counters with a new key are supported; packets under the old key are not accepted a
/// second time.
#[test]
fn counters_may_be_reset_with_a_new_key() {
    for suite in [Suite::AesCm128HmacSha1_80, Suite::AeadAes128Gcm] {
        let (old, new) = (key(suite, 30), key(suite, 31));
        let (mut outbound_context, mut inbound_context) = (outbound(&old), inbound(&old));
        assert!(outbound_context.set_rollover(SSRC, 1) && inbound_context.set_rollover(SSRC, 1));
        let (mut recorded, mut reports) = (Vec::new(), Vec::new());
        for sequence in 10..20 {
            let protected =
                protect_packet(&mut outbound_context, &rtp(SSRC, sequence, b"old")).unwrap();
            unprotect_packet(&mut inbound_context, &protected).unwrap();
            recorded.push(protected);
            let protected = protect_rtcp_packet(&mut outbound_context, &rtcp(SSRC, "old")).unwrap();
            unprotect_rtcp_packet(&mut inbound_context, &protected).unwrap();
            reports.push(protected);
        }
        inbound_context.add(&new).unwrap();
        let mut afresh = outbound(&new);
        let protected = protect_packet(&mut afresh, &rtp(SSRC, 20, b"new")).unwrap();
        assert!(unprotect_packet(&mut inbound_context, &protected).is_ok());
        let report = protect_rtcp_packet(&mut afresh, &rtcp(SSRC, "new")).unwrap();
        assert!(unprotect_rtcp_packet(&mut inbound_context, &report).is_ok());
        assert_eq!(
            unprotect_packet(&mut inbound_context, &protected),
            Err(SrtpFailure::Replayed)
        );
        assert_eq!(
            unprotect_rtcp_packet(&mut inbound_context, &report),
            Err(SrtpFailure::Replayed)
        );
        for packet in &recorded {
            assert!(
                unprotect_packet(&mut inbound_context, packet).is_err(),
                "a replay under the old key"
            );
        }
        // The old key returns, and its counters continue.
        inbound_context.replace(&old).unwrap();
        assert_eq!(inbound_context.keys(), 2);
        for (packet, report) in recorded.iter().zip(&reports) {
            let replayed = Err(SrtpFailure::Replayed);
            assert_eq!(unprotect_packet(&mut inbound_context, packet), replayed);
            assert_eq!(
                unprotect_rtcp_packet(&mut inbound_context, report),
                replayed
            );
        }
        let next = protect_packet(&mut outbound_context, &rtp(SSRC, 21, b"old")).unwrap();
        assert!(unprotect_packet(&mut inbound_context, &next).is_ok());
        let next = protect_rtcp_packet(&mut outbound_context, &rtcp(SSRC, "old")).unwrap();
        assert!(unprotect_rtcp_packet(&mut inbound_context, &next).is_ok());
    }
}

#[test]
fn keys_are_selected_by_index_range() {
    let suite = Suite::AesCm128HmacSha1_80;
    let first = key(suite, 32).with_range(0, 99).unwrap();
    let second = key(suite, 33).with_range(100, 199).unwrap();
    let (mut outbound_context, mut inbound_context) = (outbound(&first), inbound(&first));
    outbound_context.add(&second).unwrap();
    inbound_context.add(&second).unwrap();
    let mut protected = Vec::new();
    for sequence in 90..110 {
        protected.push(protect_packet(&mut outbound_context, &rtp(SSRC, sequence, b"")).unwrap());
        let report = protect_rtcp_packet(&mut outbound_context, &rtcp(SSRC, "x")).unwrap();
        assert!(unprotect_rtcp_packet(&mut inbound_context, &report).is_ok());
    }
    protected.swap(9, 11);
    for packet in &protected {
        assert!(unprotect_packet(&mut inbound_context, packet).is_ok());
    }
    assert_eq!(
        protect_packet(&mut outbound_context, &rtp(SSRC, 200, b"")),
        Err(SrtpFailure::NoKey),
        "no key has this index"
    );
    let mut rest = Outbound::new(&key(suite, 33), ContextLimits::default()).unwrap();
    let protected = protect_packet(&mut rest, &rtp(SSRC, 200, b"")).unwrap();
    assert_eq!(
        unprotect_packet(&mut inbound_context, &protected),
        Err(SrtpFailure::NoKey)
    );
    assert!(key(suite, 1).with_range(5, 4).is_err());
    assert!(key(suite, 1).with_range(5, 1 << 48).is_err());
}

#[test]
fn key_lifetime_is_enforced() {
    for suite in [Suite::AesCm128HmacSha1_80, Suite::AeadAes128Gcm] {
        let key = key(suite, 34).with_lifetime(16).unwrap();
        let (mut outbound_context, mut inbound_context) = (outbound(&key), inbound(&key));
        let mut unlimited = outbound(&MasterKey::new(suite, key.key_and_salt()).unwrap());
        for sequence in 0..16 {
            assert_eq!(outbound_context.key_use().unwrap().is_due(), sequence >= 14);
            let protected =
                protect_packet(&mut outbound_context, &rtp(SSRC, sequence, b"")).unwrap();
            assert_eq!(
                protect_packet(&mut unlimited, &rtp(SSRC, sequence, b"")).unwrap(),
                protected
            );
            unprotect_packet(&mut inbound_context, &protected).unwrap();
            let protected = protect_rtcp_packet(&mut outbound_context, &rtcp(SSRC, "")).unwrap();
            unprotect_rtcp_packet(&mut inbound_context, &protected).unwrap();
        }
        let next = rtp(SSRC, 16, b"");
        assert_eq!(
            protect_packet(&mut outbound_context, &next),
            Err(SrtpFailure::KeyExhausted)
        );
        assert_eq!(
            protect_rtcp_packet(&mut outbound_context, &rtcp(SSRC, "")),
            Err(SrtpFailure::KeyExhausted)
        );
        let protected = protect_packet(&mut unlimited, &next).unwrap();
        assert_eq!(
            unprotect_packet(&mut inbound_context, &protected),
            Err(SrtpFailure::KeyExhausted)
        );
        let fresh = common::key(suite, 35);
        outbound_context.rekey(&fresh).unwrap();
        inbound_context.add(&fresh).unwrap();
        let protected = protect_packet(&mut outbound_context, &next).unwrap();
        assert!(unprotect_packet(&mut inbound_context, &protected).is_ok());
        assert_eq!(
            outbound_context.sources().next().unwrap().rtcp,
            Some(15),
            "not reset"
        );
        let report = protect_rtcp_packet(&mut outbound_context, &rtcp(SSRC, "")).unwrap();
        assert!(unprotect_rtcp_packet(&mut inbound_context, &report).is_ok());
    }
}

/// 2^48 and 2^31: the limits of the index spaces.
#[test]
fn index_space_limits_are_enforced() {
    let key = key(Suite::AesCm128HmacSha1_80, 36);
    let last = (1u64 << 48) - 1;
    let mut outbound_context = outbound(&key);
    assert!(outbound_context.restore(SourceState {
        ssrc: SSRC,
        rtp: Some(last - 1),
        rtcp: Some((1 << 31) - 2),
    }));
    let mut inbound_context = inbound(&key);
    assert!(inbound_context.restore(SourceState {
        ssrc: SSRC,
        rtp: Some(last - 1),
        rtcp: Some((1 << 31) - 2),
    }));
    let protected = protect_packet(&mut outbound_context, &rtp(SSRC, 0xffff, b"last")).unwrap();
    assert!(unprotect_packet(&mut inbound_context, &protected).is_ok());
    assert_eq!(
        protect_packet(&mut outbound_context, &rtp(SSRC, 0, b"none")),
        Err(SrtpFailure::KeyExhausted)
    );
    let report = protect_rtcp_packet(&mut outbound_context, &rtcp(SSRC, "last")).unwrap();
    assert!(unprotect_rtcp_packet(&mut inbound_context, &report).is_ok());
    let limit = outbound_context.key_use().unwrap();
    assert_eq!((limit.srtp_limit, limit.srtcp_limit), (1 << 48, 1 << 31));
    assert!(
        common::key(Suite::AeadAes128Gcm, 1)
            .with_lifetime((1 << 48) + 1)
            .is_err()
    );
    assert!(
        common::key(Suite::AeadAes128Gcm, 1)
            .with_lifetime(0)
            .is_err()
    );
}

/// A standby continues with the other context's state and accepts no packet that it has accepted before.
#[test]
fn standby_continues_from_restored_state() {
    let key = key(Suite::AeadAes128Gcm, 37);
    let (mut outbound_context, mut inbound_context) = (outbound(&key), inbound(&key));
    let mut last = Vec::new();
    for sequence in 65_500..=65_535u16 {
        last = protect_packet(&mut outbound_context, &rtp(SSRC, sequence, b"one")).unwrap();
        unprotect_packet(&mut inbound_context, &last).unwrap();
        unprotect_rtcp_packet(
            &mut inbound_context,
            &protect_rtcp_packet(&mut outbound_context, &rtcp(SSRC, "")).unwrap(),
        )
        .unwrap();
    }
    let (mut out2, mut inn2) = (outbound(&key), inbound(&key));
    for state in outbound_context.sources() {
        assert!(out2.restore(state));
    }
    for state in inbound_context.sources() {
        assert!(inn2.restore(state));
    }
    assert_eq!(
        unprotect_packet(&mut inn2, &last),
        Err(SrtpFailure::Replayed)
    );
    assert_eq!(
        protect_packet(&mut out2, &rtp(SSRC, 65_535, b"two")),
        Err(SrtpFailure::IndexReused)
    );
    let protected = protect_packet(&mut out2, &rtp(SSRC, 0, b"two")).unwrap();
    assert!(unprotect_packet(&mut inn2, &protected).is_ok());
    let behind = SourceState {
        ssrc: SSRC,
        rtp: Some(3),
        rtcp: None,
    };
    assert!(out2.restore(behind) && inn2.restore(behind), "never lower");
    assert_eq!(
        protect_packet(&mut out2, &rtp(SSRC, 0, b"two")),
        Err(SrtpFailure::IndexReused)
    );
    assert_eq!(
        unprotect_packet(&mut inn2, &protected),
        Err(SrtpFailure::Replayed)
    );
    let report = protect_rtcp_packet(&mut out2, &rtcp(SSRC, "two")).unwrap();
    assert!(unprotect_rtcp_packet(&mut inn2, &report).is_ok());
}

#[test]
fn negotiated_session_parameters_are_applied() {
    let suite = Suite::AesCm128HmacSha1_80;
    let plain = rtp(SSRC, 1, b"payload in clear");
    let report = rtcp(SSRC, "name in clear");

    let options = Options {
        unencrypted_srtp: true,
        unencrypted_srtcp: true,
        ..Options::default()
    };
    for suite in [suite, Suite::AeadAes256Gcm] {
        let clear = key(suite, 40).with_options(options).unwrap();
        let (mut outbound_context, mut inbound_context) = (outbound(&clear), inbound(&clear));
        let mut protected = protect_packet(&mut outbound_context, &plain).unwrap();
        assert_eq!(protected[..plain.len()], plain);
        assert_eq!(
            unprotect_packet(&mut inbound_context, &protected).unwrap(),
            plain
        );
        protected[15] ^= 1;
        assert_eq!(
            unprotect_packet(&mut inbound(&clear), &protected),
            Err(SrtpFailure::Authentication)
        );
        let protected = protect_rtcp_packet(&mut outbound_context, &report).unwrap();
        assert_eq!(protected[..report.len()], report);
        assert_eq!(
            unprotect_rtcp_packet(&mut inbound_context, &protected).unwrap(),
            report
        );
    }

    let options = Options {
        unauthenticated_srtp: true,
        ..Options::default()
    };
    let bare = key(suite, 41).with_options(options).unwrap();
    let (mut outbound_context, mut inbound_context) = (outbound(&bare), inbound(&bare));
    let protected = protect_packet(&mut outbound_context, &plain).unwrap();
    assert_eq!(protected.len(), plain.len());
    assert_eq!(
        unprotect_packet(&mut inbound_context, &protected).unwrap(),
        plain
    );
    assert_eq!(
        unprotect_packet(&mut inbound_context, &protected).unwrap(),
        plain,
        "without a tag there is no replay protection"
    );
    let protected = protect_rtcp_packet(&mut outbound_context, &report).unwrap();
    assert_eq!(
        protected.len(),
        report.len() + 4 + 10,
        "SRTCP keeps its tag"
    );
    assert_eq!(
        unprotect_rtcp_packet(&mut inbound_context, &protected).unwrap(),
        report
    );
    assert_eq!(
        key(Suite::AeadAes128Gcm, 1)
            .with_options(options)
            .unwrap_err(),
        KeyError::Unauthenticated
    );
}

/// Session keys derived every 16 packets: both sides agree across the changes, with reordered packets, too, and the
/// keys really differ.
#[test]
fn key_derivation_rate() {
    for suite in [Suite::AesCm128HmacSha1_80, Suite::AeadAes128Gcm] {
        let options = Options {
            key_derivation_rate: 4,
            ..Options::default()
        };
        let fast = key(suite, 42).with_options(options).unwrap();
        let once = key(suite, 42);
        let (mut outbound_context, mut inbound_context) = (outbound(&fast), inbound(&fast));
        let mut without = outbound(&once);
        let mut packets = Vec::new();
        for sequence in 0..200 {
            let plain = rtp(SSRC, sequence, b"twenty bytes of G729");
            let protected = protect_packet(&mut outbound_context, &plain).unwrap();
            let same = protect_packet(&mut without, &plain).unwrap() == protected;
            assert_eq!(same, sequence < 16, "{sequence}");
            packets.push((plain, protected));
            let plain = rtcp(SSRC, "");
            let protected = protect_rtcp_packet(&mut outbound_context, &plain).unwrap();
            assert_eq!(
                unprotect_rtcp_packet(&mut inbound_context, &protected).unwrap(),
                plain
            );
        }
        for chunk in packets.chunks_mut(7) {
            chunk.reverse();
        }
        for (plain, protected) in &packets {
            assert_eq!(
                &unprotect_packet(&mut inbound_context, protected).unwrap(),
                plain
            );
        }
        let excess = Options {
            key_derivation_rate: 25,
            ..options
        };
        assert_eq!(
            key(suite, 1).with_options(excess).unwrap_err(),
            KeyError::KeyDerivationRate
        );
    }
}

#[test]
fn keys_of_wrong_length_are_rejected() {
    for suite in Suite::ALL {
        let required = suite.key_and_salt_length();
        for actual in [0, required - 1, required + 1, 200] {
            let error = MasterKey::new(suite, &vec![1; actual]).unwrap_err();
            assert_eq!(error, KeyError::Length { required, actual });
        }
    }
    let key = key(Suite::AesCm128HmacSha1_80, 1);
    assert_eq!(key.clone().with_mki(&[]).unwrap_err(), KeyError::Mki);
    assert_eq!(key.clone().with_mki(&[0; 129]).unwrap_err(), KeyError::Mki);
    let shown = format!("{key:?}");
    assert!(shown.contains("AesCm128HmacSha1_80") && !shown.contains("secret: ["));
}
