//! SRTP and SRTCP as their users see them: every suite, every rule about indices, keys and sources, every reason to refuse.

use crate::common;

use common::{inbound, key, open, open_rtcp, outbound, rtcp, rtp, seal, seal_rtcp};
use engine::{DropReason, Drops};
use protect::srtp::{
    ContextLimits, Failure, Inbound, KeyError, MAX_KEYS, MAX_OVERHEAD, MasterKey, Options,
    Outbound, SourceState, Suite,
};

const SSRC: u32 = 0xcafe_babe;

#[test]
fn every_suite_there_and_back() {
    for suite in Suite::ALL {
        let key = key(suite, 1);
        let (mut out, mut inn) = (outbound(&key), inbound(&key));
        for (nth, size) in [0usize, 1, 15, 16, 17, 20, 96, 97, 160, 1400]
            .iter()
            .enumerate()
        {
            let payload: Vec<u8> = (0..*size).map(|at| at as u8).collect();
            let plain = rtp(SSRC, nth as u16, &payload);
            let sealed = seal(&mut out, &plain).unwrap();
            assert_eq!(sealed.len(), plain.len() + suite.rtp_tag_length());
            assert_eq!(sealed[..12], plain[..12], "the header stays readable");
            let hidden = suite.is_registered_for_sdes();
            if *size >= 15 {
                assert_eq!(sealed[12..plain.len()] != plain[12..], hidden, "{suite}");
            }
            assert_eq!(open(&mut inn, &sealed).unwrap(), plain);

            let plain = rtcp(SSRC, "someone");
            let sealed = seal_rtcp(&mut out, &plain).unwrap();
            assert_eq!(sealed.len(), plain.len() + 4 + suite.rtcp_tag_length());
            assert_eq!(sealed[..8], plain[..8]);
            assert_eq!(open_rtcp(&mut inn, &sealed).unwrap(), plain);
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
        let sealed = seal(&mut outbound(&key), &plain).unwrap();
        assert_eq!(sealed[..header.length()], plain[..header.length()]);
        assert_ne!(
            sealed[header.length()..plain.len()],
            plain[header.length()..]
        );
        for at in 0..sealed.len() {
            let mut altered = sealed.clone();
            altered[at] ^= 1;
            let failure = open(&mut inbound(&key), &altered).unwrap_err();
            assert!(
                matches!(failure, Failure::Authentication | Failure::Malformed),
                "byte {at}: {failure:?}"
            );
        }
        assert_eq!(open(&mut inbound(&key), &sealed).unwrap(), plain);
    }
}

/// Each kind of bad packet has a counter of its own.
#[test]
fn every_refusal_is_counted_under_its_own_name() {
    for suite in Suite::ALL {
        let with_mki = key(suite, 3).with_mki(&[0, 7]).unwrap();
        let (mut out, mut inn) = (outbound(&with_mki), inbound(&with_mki));
        let mut drops = Drops::new();
        let sealed = seal(&mut out, &rtp(SSRC, 200, b"hello there")).unwrap();
        open(&mut inn, &sealed).unwrap();
        let mut refuse = |packet: &[u8], reason: DropReason| {
            let failure = open(&mut inn, packet).unwrap_err();
            assert_eq!(failure.reason(), reason, "{suite}");
            drops.count(failure.into());
            assert_eq!(drops.get(reason), 1);
        };
        refuse(&sealed, DropReason::SrtpReplayed);
        refuse(&sealed[..13], DropReason::SrtpUnknownMki);
        refuse(&sealed[..11], DropReason::SrtpMalformed);
        let other = key(suite, 4).with_mki(&[0, 7]).unwrap();
        let wrong = seal(&mut outbound(&other), &rtp(SSRC, 201, b"hello there")).unwrap();
        refuse(&wrong, DropReason::SrtpAuthentication);
        refuse(
            &seal(&mut outbound(&with_mki), &rtp(SSRC, 50, b"")).unwrap(),
            DropReason::SrtpTooOld,
        );
        assert_eq!(drops.total(), 5);

        // SRTCP, with the same names.
        let sealed = seal_rtcp(&mut out, &rtcp(SSRC, "x")).unwrap();
        open_rtcp(&mut inn, &sealed).unwrap();
        assert_eq!(open_rtcp(&mut inn, &sealed), Err(Failure::Replayed));
        let wrong = seal_rtcp(&mut outbound(&other), &rtcp(7, "x")).unwrap();
        assert_eq!(open_rtcp(&mut inn, &wrong), Err(Failure::Authentication));
        let foreign = key(suite, 3).with_mki(&[1, 7]).unwrap();
        let wrong = seal_rtcp(&mut outbound(&foreign), &rtcp(SSRC, "x")).unwrap();
        assert_eq!(open_rtcp(&mut inn, &wrong), Err(Failure::UnknownMki));
        for length in 0..8 {
            let cut = &sealed[..length];
            assert_eq!(open_rtcp(&mut inn, cut), Err(Failure::Malformed));
        }
    }
}

/// Cut off anywhere, a packet is refused and never opened; so is one with a byte changed anywhere.
#[test]
fn truncated_and_altered() {
    for suite in Suite::ALL {
        let key = key(suite, 5);
        let mut out = outbound(&key);
        let sealed = seal(&mut out, &rtp(SSRC, 1, b"twenty bytes of G729")).unwrap();
        let report = seal_rtcp(&mut out, &rtcp(SSRC, "someone")).unwrap();
        let mut inn = inbound(&key);
        for length in 0..sealed.len() {
            assert!(
                open(&mut inn, &sealed[..length]).is_err(),
                "{suite} {length}"
            );
        }
        for length in 0..report.len() {
            assert!(open_rtcp(&mut inn, &report[..length]).is_err());
        }
        for at in 0..report.len() {
            let mut altered = report.clone();
            altered[at] ^= 0x10;
            assert!(open_rtcp(&mut inn, &altered).is_err(), "{suite} {at}");
        }
        assert_eq!(inn.sources().count(), 0, "no stranger enters the table");
        open(&mut inn, &sealed).unwrap();
        open_rtcp(&mut inn, &report).unwrap();
    }
}

#[test]
fn the_rollover_counter_goes_on_both_sides() {
    for suite in [Suite::AesCm128HmacSha1_32, Suite::AeadAes128Gcm] {
        let key = key(suite, 6);
        let (mut out, mut inn) = (outbound(&key), inbound(&key));
        let mut packets = Vec::new();
        // Three cycles in steps, and the packets around each wrap in disorder.
        for index in (65_500u64..3 * 65_536 + 100).step_by(7) {
            packets.push((
                index,
                seal(&mut out, &rtp(SSRC, index as u16, b"abc")).unwrap(),
            ));
        }
        for chunk in packets.chunks_mut(5) {
            chunk.reverse();
        }
        for (index, sealed) in &packets {
            let opened = open(&mut inn, sealed);
            assert!(opened.is_ok(), "{index}: {opened:?}");
        }
        let highest = inn.sources().next().unwrap().rtp.unwrap();
        assert_eq!(
            highest,
            packets.iter().map(|(index, _)| *index).max().unwrap()
        );
        assert_eq!(out.sources().next().unwrap().rtp, Some(highest));
    }
}

#[test]
fn a_late_joiner_is_told_the_rollover_counter() {
    for suite in [Suite::AesCm256HmacSha1_80, Suite::AeadAes256Gcm] {
        let key = key(suite, 7);
        let mut out = outbound(&key);
        assert!(out.set_rollover(SSRC, 5));
        let sealed = seal(&mut out, &rtp(SSRC, 40_000, b"late")).unwrap();
        assert!(!out.set_rollover(SSRC, 6), "it has begun");
        let mut inn = inbound(&key);
        assert_eq!(open(&mut inn, &sealed), Err(Failure::Authentication));
        assert!(inn.set_rollover(SSRC, 5));
        assert!(open(&mut inn, &sealed).is_ok());
        assert!(!inn.set_rollover(SSRC, 5), "never backwards");
        // Forward, for one who missed more than half a cycle.
        assert!(inn.set_rollover(SSRC, 9));
        assert_eq!(open(&mut inn, &sealed), Err(Failure::TooOld));
    }
}

/// The first packets are lost and the first that arrives is behind the wrap: its rollover counter is one.
#[test]
fn a_start_just_before_the_wrap() {
    for suite in [Suite::AesCm128HmacSha1_80, Suite::AeadAes128Gcm] {
        let key = key(suite, 8);
        let mut out = outbound(&key);
        let before = seal(&mut out, &rtp(SSRC, 65_534, b"1")).unwrap();
        seal(&mut out, &rtp(SSRC, 65_535, b"2")).unwrap();
        let behind = seal(&mut out, &rtp(SSRC, 0, b"3")).unwrap();
        let mut inn = inbound(&key);
        assert!(open(&mut inn, &behind).is_ok());
        assert!(open(&mut inn, &before).is_ok(), "it comes late, and fits");
        assert_eq!(inn.sources().next().unwrap().rtp, Some(65_536));
    }
}

#[test]
fn many_sources_under_one_key_each_with_its_own_indices() {
    let key = key(Suite::AesCm128HmacSha1_80, 9);
    let limits = ContextLimits {
        sources: 3,
        ..ContextLimits::default()
    };
    let mut out = Outbound::new(&key, limits).unwrap();
    let mut inn = Inbound::new(&key, limits).unwrap();
    for ssrc in 1..=3 {
        let sealed = seal(&mut out, &rtp(ssrc, 10, b"same number")).unwrap();
        assert!(open(&mut inn, &sealed).is_ok());
    }
    let one_more = rtp(4, 10, b"same number");
    assert_eq!(seal(&mut out, &one_more), Err(Failure::TooManySources));
    assert_eq!(
        seal_rtcp(&mut out, &rtcp(4, "")),
        Err(Failure::TooManySources)
    );
    let sealed = seal(&mut outbound(&key), &one_more).unwrap();
    assert_eq!(open(&mut inn, &sealed), Err(Failure::TooManySources));
    inn.forget(2);
    assert!(open(&mut inn, &sealed).is_ok(), "a goodbye makes room");
    let known: Vec<u32> = inn.sources().map(|source| source.ssrc).collect();
    assert_eq!(known, [1, 3, 4]);
}

/// Two streams that collide in their SSRC would share a keystream: the second packet with the same number is not sealed.
#[test]
fn no_index_is_sealed_twice() {
    for suite in Suite::ALL {
        let mut out = outbound(&key(suite, 10));
        seal(&mut out, &rtp(SSRC, 300, b"first")).unwrap();
        for payload in [b"first", b"other"] {
            assert_eq!(
                seal(&mut out, &rtp(SSRC, 300, payload)),
                Err(Failure::IndexReused)
            );
        }
        seal(&mut out, &rtp(SSRC, 299, b"late, but new")).unwrap();
        assert_eq!(
            seal(&mut out, &rtp(SSRC, 100, b"before the window")),
            Err(Failure::IndexReused)
        );
        assert_eq!(
            seal(&mut out, &rtp(SSRC, 65_000, b"before the start")),
            Err(Failure::IndexReused)
        );
        assert_eq!(out.key_use().unwrap().srtp, 2);
    }
}

#[test]
fn a_window_as_wide_as_agreed() {
    let key = key(Suite::AesCm128HmacSha1_80, 11);
    let mut out = outbound(&key);
    let sealed: Vec<_> = (0..1200)
        .map(|at| seal(&mut out, &rtp(SSRC, at, b"")).unwrap())
        .collect();
    for (window, reach) in [(64, 63), (128, 127), (1000, 1023)] {
        let limits = ContextLimits {
            window,
            ..ContextLimits::default()
        };
        let mut inn = Inbound::new(&key, limits).unwrap();
        open(&mut inn, &sealed[1199]).unwrap();
        open(&mut inn, &sealed[1199 - reach]).unwrap();
        assert_eq!(
            open(&mut inn, &sealed[1199 - reach - 1]),
            Err(Failure::TooOld)
        );
    }
}

#[test]
fn a_buffer_without_room_stays_as_it_was() {
    for suite in Suite::ALL {
        let key = key(suite, 12).with_mki(&[1, 2, 3, 4]).unwrap();
        let mut out = outbound(&key);
        let plain = rtp(SSRC, 1, b"payload");
        let report = rtcp(SSRC, "x");
        for room in 0..suite.rtp_tag_length() + 4 {
            let mut buffer = plain.clone();
            buffer.resize(plain.len() + room, 0);
            let before = buffer.clone();
            assert_eq!(
                out.protect_rtp(&mut buffer, plain.len()),
                Err(Failure::NoRoom)
            );
            assert_eq!(buffer, before);
        }
        let mut buffer = report.clone();
        buffer.resize(report.len() + suite.rtcp_tag_length() + 7, 0);
        assert_eq!(
            out.protect_rtcp(&mut buffer, report.len()),
            Err(Failure::NoRoom)
        );
        assert!(out.overhead() <= MAX_OVERHEAD);
        assert!(seal(&mut out, &plain).is_ok(), "the number is not used up");
        assert_eq!(
            out.protect_rtp(&mut [0x80; 5], 12),
            Err(Failure::Malformed),
            "longer than its buffer"
        );
        assert_eq!(
            out.protect_rtcp(&mut [0x80; 40], 7),
            Err(Failure::Malformed)
        );
    }
}

#[test]
fn keys_by_identifier() {
    for suite in [
        Suite::AesCm128HmacSha1_80,
        Suite::AeadAes128Gcm,
        Suite::NullHmacSha1_32,
    ] {
        let first = key(suite, 13).with_mki(&[0, 1]).unwrap();
        let second = key(suite, 14).with_mki(&[0, 2]).unwrap();
        let (mut out, mut inn) = (outbound(&first), inbound(&first));
        out.add(&second).unwrap();
        inn.add(&second).unwrap();
        assert_eq!(inn.add(&second), Err(KeyError::MkiConflict));
        let longer = key(suite, 15).with_mki(&[0, 0, 3]).unwrap();
        assert_eq!(inn.add(&longer), Err(KeyError::MkiConflict));
        assert_eq!(out.activate(&[9, 9]), Err(KeyError::NoSuchKey));
        for (sequence, mki) in [(1, [0, 1]), (2, [0, 2]), (3, [0, 1]), (4, [0, 2])] {
            out.activate(&mki).unwrap();
            let plain = rtp(SSRC, sequence, b"either");
            let sealed = seal(&mut out, &plain).unwrap();
            let at = match suite {
                Suite::AeadAes128Gcm => sealed.len() - 2,
                _ => plain.len(),
            };
            assert_eq!(sealed[at..at + 2], mki, "{suite}");
            assert_eq!(open(&mut inn, &sealed).unwrap(), plain);
            assert_eq!(open(&mut inn, &sealed), Err(Failure::Replayed));
            let plain = rtcp(SSRC, "either");
            let sealed = seal_rtcp(&mut out, &plain).unwrap();
            assert_eq!(open_rtcp(&mut inn, &sealed).unwrap(), plain);
        }
    }
}

/// A new SDES key: packets on their way under the old one are still opened, rollover counters go on, the old key goes
/// by itself or when told.
#[test]
fn rekeying_with_overlap() {
    for suite in [Suite::AesCm128HmacSha1_80, Suite::AeadAes256Gcm] {
        let (old, new) = (key(suite, 16), key(Suite::AesCm256HmacSha1_80, 17));
        let (mut out, mut inn) = (outbound(&old), inbound(&old));
        for sequence in [65_530u16, 2, 3] {
            open(
                &mut inn,
                &seal(&mut out, &rtp(SSRC, sequence, b"old")).unwrap(),
            )
            .unwrap();
        }
        let on_its_way = seal(&mut out, &rtp(SSRC, 4, b"old")).unwrap();
        inn.add(&new).unwrap();
        out.rekey(&new).unwrap();
        assert_eq!(inn.keys(), 2);
        let first = seal(&mut out, &rtp(SSRC, 5, b"new")).unwrap();
        assert!(open(&mut inn, &first).is_ok());
        assert!(open(&mut inn, &on_its_way).is_ok());
        assert_eq!(open(&mut inn, &on_its_way), Err(Failure::Replayed));
        assert_eq!(open(&mut inn, &first), Err(Failure::Replayed));
        assert_eq!(inn.sources().next().unwrap().rtp, Some(65_541));
        for sequence in 6..1_100u16 {
            open(
                &mut inn,
                &seal(&mut out, &rtp(SSRC, sequence, b"new")).unwrap(),
            )
            .unwrap();
        }
        assert_eq!(
            inn.keys(),
            1,
            "a thousand packets later the old key is gone"
        );
    }
}

#[test]
fn retired_at_once() {
    let (old, new) = (
        key(Suite::AesCm128HmacSha1_80, 18),
        key(Suite::AesCm128HmacSha1_80, 19),
    );
    let mut inn = inbound(&old);
    let sealed = seal(&mut outbound(&old), &rtp(SSRC, 1, b"")).unwrap();
    inn.add(&new).unwrap();
    inn.retire();
    assert_eq!(open(&mut inn, &sealed), Err(Failure::Authentication));
    let sealed = seal(&mut outbound(&new), &rtp(SSRC, 1, b"")).unwrap();
    assert!(open(&mut inn, &sealed).is_ok());
    for nth in 0..MAX_KEYS as u64 - 1 {
        inn.add(&key(Suite::AesCm128HmacSha1_80, 20 + nth)).unwrap();
    }
    assert_eq!(inn.add(&new), Err(KeyError::TooManyKeys));
}

/// Senders that start their counters again with a new key are understood; what was sealed with the old key is not thereby
/// let in a second time.
#[test]
fn counters_set_back_with_a_new_key() {
    for suite in [Suite::AesCm128HmacSha1_80, Suite::AeadAes128Gcm] {
        let (old, new) = (key(suite, 30), key(suite, 31));
        let (mut out, mut inn) = (outbound(&old), inbound(&old));
        assert!(out.set_rollover(SSRC, 1) && inn.set_rollover(SSRC, 1));
        let mut recorded = Vec::new();
        for sequence in 10..20 {
            let sealed = seal(&mut out, &rtp(SSRC, sequence, b"old")).unwrap();
            open(&mut inn, &sealed).unwrap();
            recorded.push(sealed);
            let sealed = seal_rtcp(&mut out, &rtcp(SSRC, "old")).unwrap();
            open_rtcp(&mut inn, &sealed).unwrap();
        }
        inn.add(&new).unwrap();
        let mut afresh = outbound(&new);
        let sealed = seal(&mut afresh, &rtp(SSRC, 20, b"new")).unwrap();
        assert!(open(&mut inn, &sealed).is_ok());
        let report = seal_rtcp(&mut afresh, &rtcp(SSRC, "new")).unwrap();
        assert!(open_rtcp(&mut inn, &report).is_ok());
        assert_eq!(open(&mut inn, &sealed), Err(Failure::Replayed));
        assert_eq!(open_rtcp(&mut inn, &report), Err(Failure::Replayed));
        for packet in &recorded {
            assert!(
                open(&mut inn, packet).is_err(),
                "a recording under the old key"
            );
        }
    }
}

#[test]
fn keys_by_range_of_indices() {
    let suite = Suite::AesCm128HmacSha1_80;
    let first = key(suite, 32).with_range(0, 99).unwrap();
    let second = key(suite, 33).with_range(100, 199).unwrap();
    let (mut out, mut inn) = (outbound(&first), inbound(&first));
    out.add(&second).unwrap();
    inn.add(&second).unwrap();
    let mut sealed = Vec::new();
    for sequence in 90..110 {
        sealed.push(seal(&mut out, &rtp(SSRC, sequence, b"")).unwrap());
        let report = seal_rtcp(&mut out, &rtcp(SSRC, "x")).unwrap();
        assert!(open_rtcp(&mut inn, &report).is_ok());
    }
    sealed.swap(9, 11);
    for packet in &sealed {
        assert!(open(&mut inn, packet).is_ok());
    }
    assert_eq!(
        seal(&mut out, &rtp(SSRC, 200, b"")),
        Err(Failure::NoKey),
        "no key covers it"
    );
    let mut rest = Outbound::new(&key(suite, 33), ContextLimits::default()).unwrap();
    let sealed = seal(&mut rest, &rtp(SSRC, 200, b"")).unwrap();
    assert_eq!(open(&mut inn, &sealed), Err(Failure::NoKey));
    assert!(key(suite, 1).with_range(5, 4).is_err());
    assert!(key(suite, 1).with_range(5, 1 << 48).is_err());
}

#[test]
fn a_key_has_an_end() {
    for suite in [Suite::AesCm128HmacSha1_80, Suite::AeadAes128Gcm] {
        let key = key(suite, 34).with_lifetime(16).unwrap();
        let (mut out, mut inn) = (outbound(&key), inbound(&key));
        let mut unlimited = outbound(&MasterKey::new(suite, key.key_and_salt()).unwrap());
        for sequence in 0..16 {
            assert_eq!(out.key_use().unwrap().is_due(), sequence >= 14);
            let sealed = seal(&mut out, &rtp(SSRC, sequence, b"")).unwrap();
            assert_eq!(
                seal(&mut unlimited, &rtp(SSRC, sequence, b"")).unwrap(),
                sealed
            );
            open(&mut inn, &sealed).unwrap();
            let sealed = seal_rtcp(&mut out, &rtcp(SSRC, "")).unwrap();
            open_rtcp(&mut inn, &sealed).unwrap();
        }
        let next = rtp(SSRC, 16, b"");
        assert_eq!(seal(&mut out, &next), Err(Failure::KeyExhausted));
        assert_eq!(
            seal_rtcp(&mut out, &rtcp(SSRC, "")),
            Err(Failure::KeyExhausted)
        );
        let sealed = seal(&mut unlimited, &next).unwrap();
        assert_eq!(open(&mut inn, &sealed), Err(Failure::KeyExhausted));
        let fresh = common::key(suite, 35);
        out.rekey(&fresh).unwrap();
        inn.add(&fresh).unwrap();
        let sealed = seal(&mut out, &next).unwrap();
        assert!(open(&mut inn, &sealed).is_ok());
        assert_eq!(out.sources().next().unwrap().rtcp, Some(15), "not set back");
        let report = seal_rtcp(&mut out, &rtcp(SSRC, "")).unwrap();
        assert!(open_rtcp(&mut inn, &report).is_ok());
    }
}

/// 2^48 and 2^31: the ends of the index spaces.
#[test]
fn the_index_spaces_have_an_end() {
    let key = key(Suite::AesCm128HmacSha1_80, 36);
    let last = (1u64 << 48) - 1;
    let mut out = outbound(&key);
    assert!(out.restore(SourceState {
        ssrc: SSRC,
        rtp: Some(last - 1),
        rtcp: Some((1 << 31) - 2),
    }));
    let mut inn = inbound(&key);
    assert!(inn.restore(SourceState {
        ssrc: SSRC,
        rtp: Some(last - 1),
        rtcp: Some((1 << 31) - 2),
    }));
    let sealed = seal(&mut out, &rtp(SSRC, 0xffff, b"last")).unwrap();
    assert!(open(&mut inn, &sealed).is_ok());
    assert_eq!(
        seal(&mut out, &rtp(SSRC, 0, b"none")),
        Err(Failure::KeyExhausted)
    );
    let report = seal_rtcp(&mut out, &rtcp(SSRC, "last")).unwrap();
    assert!(open_rtcp(&mut inn, &report).is_ok());
    let limit = out.key_use().unwrap();
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

/// A standby that takes over goes on where the other stood and lets nothing in that was in before.
#[test]
fn a_standby_goes_on() {
    let key = key(Suite::AeadAes128Gcm, 37);
    let (mut out, mut inn) = (outbound(&key), inbound(&key));
    let mut last = Vec::new();
    for sequence in 65_500..=65_535u16 {
        last = seal(&mut out, &rtp(SSRC, sequence, b"one")).unwrap();
        open(&mut inn, &last).unwrap();
        open_rtcp(&mut inn, &seal_rtcp(&mut out, &rtcp(SSRC, "")).unwrap()).unwrap();
    }
    let (mut out2, mut inn2) = (outbound(&key), inbound(&key));
    for state in out.sources() {
        assert!(out2.restore(state));
    }
    for state in inn.sources() {
        assert!(inn2.restore(state));
    }
    assert_eq!(open(&mut inn2, &last), Err(Failure::Replayed));
    assert_eq!(
        seal(&mut out2, &rtp(SSRC, 65_535, b"two")),
        Err(Failure::IndexReused)
    );
    let sealed = seal(&mut out2, &rtp(SSRC, 0, b"two")).unwrap();
    assert!(open(&mut inn2, &sealed).is_ok());
    let behind = SourceState {
        ssrc: SSRC,
        rtp: Some(3),
        rtcp: None,
    };
    assert!(out2.restore(behind) && inn2.restore(behind), "never back");
    assert_eq!(
        seal(&mut out2, &rtp(SSRC, 0, b"two")),
        Err(Failure::IndexReused)
    );
    assert_eq!(open(&mut inn2, &sealed), Err(Failure::Replayed));
    let report = seal_rtcp(&mut out2, &rtcp(SSRC, "two")).unwrap();
    assert!(open_rtcp(&mut inn2, &report).is_ok());
}

#[test]
fn agreed_deviations() {
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
        let (mut out, mut inn) = (outbound(&clear), inbound(&clear));
        let mut sealed = seal(&mut out, &plain).unwrap();
        assert_eq!(sealed[..plain.len()], plain);
        assert_eq!(open(&mut inn, &sealed).unwrap(), plain);
        sealed[15] ^= 1;
        assert_eq!(
            open(&mut inbound(&clear), &sealed),
            Err(Failure::Authentication)
        );
        let sealed = seal_rtcp(&mut out, &report).unwrap();
        assert_eq!(sealed[..report.len()], report);
        assert_eq!(open_rtcp(&mut inn, &sealed).unwrap(), report);
    }

    let options = Options {
        unauthenticated_srtp: true,
        ..Options::default()
    };
    let bare = key(suite, 41).with_options(options).unwrap();
    let (mut out, mut inn) = (outbound(&bare), inbound(&bare));
    let sealed = seal(&mut out, &plain).unwrap();
    assert_eq!(sealed.len(), plain.len());
    assert_eq!(open(&mut inn, &sealed).unwrap(), plain);
    assert_eq!(
        open(&mut inn, &sealed).unwrap(),
        plain,
        "no tag, no protection from replay"
    );
    let sealed = seal_rtcp(&mut out, &report).unwrap();
    assert_eq!(sealed.len(), report.len() + 4 + 10, "SRTCP keeps its tag");
    assert_eq!(open_rtcp(&mut inn, &sealed).unwrap(), report);
    assert_eq!(
        key(Suite::AeadAes128Gcm, 1)
            .with_options(options)
            .unwrap_err(),
        KeyError::Unauthenticated
    );
}

/// Session keys derived anew every 16 packets: both sides agree across the changes, packets in disorder included, and the keys
/// really differ.
#[test]
fn key_derivation_rate() {
    for suite in [Suite::AesCm128HmacSha1_80, Suite::AeadAes128Gcm] {
        let options = Options {
            key_derivation_rate: 4,
            ..Options::default()
        };
        let fast = key(suite, 42).with_options(options).unwrap();
        let once = key(suite, 42);
        let (mut out, mut inn) = (outbound(&fast), inbound(&fast));
        let mut without = outbound(&once);
        let mut packets = Vec::new();
        for sequence in 0..200 {
            let plain = rtp(SSRC, sequence, b"twenty bytes of G729");
            let sealed = seal(&mut out, &plain).unwrap();
            let same = seal(&mut without, &plain).unwrap() == sealed;
            assert_eq!(same, sequence < 16, "{sequence}");
            packets.push((plain, sealed));
            let plain = rtcp(SSRC, "");
            let sealed = seal_rtcp(&mut out, &plain).unwrap();
            assert_eq!(open_rtcp(&mut inn, &sealed).unwrap(), plain);
        }
        for chunk in packets.chunks_mut(7) {
            chunk.reverse();
        }
        for (plain, sealed) in &packets {
            assert_eq!(&open(&mut inn, sealed).unwrap(), plain);
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
fn keys_that_do_not_fit() {
    for suite in Suite::ALL {
        let wanted = suite.key_and_salt_length();
        for given in [0, wanted - 1, wanted + 1, 200] {
            let error = MasterKey::new(suite, &vec![1; given]).unwrap_err();
            assert_eq!(error, KeyError::Length { wanted, given });
        }
    }
    let key = key(Suite::AesCm128HmacSha1_80, 1);
    assert_eq!(key.clone().with_mki(&[]).unwrap_err(), KeyError::Mki);
    assert_eq!(key.clone().with_mki(&[0; 129]).unwrap_err(), KeyError::Mki);
    let shown = format!("{key:?}");
    assert!(shown.contains("AesCm128HmacSha1_80") && !shown.contains("secret: ["));
}
