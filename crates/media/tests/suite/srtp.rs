//! SRTP on one side and on both, and rejected packets. The peers are `protect`'s own contexts, which that crate tests
//! against libsrtp and the vectors of the RFCs.

use engine::{DropReason, Entropy, Forward, HashKey, MediaPacket, PacketVerdict, SocketId, Time};
use media::forward::SessionStats;
use media::{
    Carriage, Forwarder, ForwarderLimits, Keys, Latching, MediaCommand, MediaEvent, Protection,
    SessionPlan, SidePlan,
};
use protect::srtp::{ContextLimits, Contexts, Inbound, MasterKey, Outbound, Suite};
use std::net::SocketAddr;
use std::sync::Arc;
use wire::rtcp::CompoundBuilder;
use wire::rtp::RtpHeader;

const A: SocketId = SocketId(70_000);
const B: SocketId = SocketId(70_001);
const PHONE: &str = "192.0.2.1:4000";
const OTHER: &str = "192.0.2.2:5000";

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn key(suite: Suite, number: u64) -> MasterKey {
    MasterKey::generate(suite, &mut Entropy::from_number(number))
}

/// The forwarder's keys and the peer's contexts for them.
fn keys(suite: Suite, number: u64, association: u32) -> (Protection, Contexts) {
    let (ours, theirs) = (key(suite, number), key(suite, number + 1));
    let peer = Contexts {
        outbound: Outbound::new(&theirs, ContextLimits::default()).unwrap(),
        inbound: Inbound::new(&ours, ContextLimits::default()).unwrap(),
    };
    let keys = Keys {
        association,
        local: ours,
        remote: vec![theirs],
        window: 0,
    };
    (Protection::Srtp(Arc::new(keys)), peer)
}

fn plan(a: Protection, b: Protection) -> SessionPlan {
    let mut sides = [SidePlan::new(A), SidePlan::new(B)];
    for (side, (address, protection)) in sides.iter_mut().zip([(PHONE, a), (OTHER, b)]) {
        side.mux = true;
        side.signalled_rtp = Some(addr(address));
        side.protection = protection;
    }
    SessionPlan::single(1, Carriage::Rtp, sides)
}

fn with(plan: SessionPlan) -> Forwarder {
    let mut forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::default());
    forwarder.command(MediaCommand::Add(Box::new(plan)), Time::ZERO);
    forwarder
}

fn rtp(ssrc: u32, sequence: u16) -> Vec<u8> {
    RtpHeader {
        ssrc,
        sequence,
        timestamp: u32::from(sequence) * 160,
        ..RtpHeader::default()
    }
    .packet(&[sequence as u8; 160])
}

fn rtcp(ssrc: u32) -> Vec<u8> {
    CompoundBuilder::new()
        .receiver_report(ssrc, &[])
        .cname(ssrc, "a@b")
        .finish()
}

fn sealed(outbound: &mut Outbound, packet: &[u8], rtcp: bool) -> Vec<u8> {
    let mut buffer = packet.to_vec();
    buffer.resize(packet.len() + MediaPacket::TAILROOM, 0);
    let length = match rtcp {
        true => outbound.protect_rtcp(&mut buffer, packet.len()),
        false => outbound.protect_rtp(&mut buffer, packet.len()),
    };
    buffer.truncate(length.unwrap());
    buffer
}

fn opened(inbound: &mut Inbound, packet: &[u8], rtcp: bool) -> Vec<u8> {
    let mut buffer = packet.to_vec();
    let length = match rtcp {
        true => inbound.unprotect_rtcp(&mut buffer),
        false => inbound.unprotect_rtp(&mut buffer),
    };
    buffer.truncate(length.unwrap());
    buffer
}

/// The packet that the forwarder sends for a packet, or the drop reason.
fn pass(
    forwarder: &mut Forwarder,
    socket: SocketId,
    source: &str,
    bytes: &[u8],
) -> Result<(SocketAddr, Vec<u8>), DropReason> {
    let mut buffer = bytes.to_vec();
    buffer.resize(bytes.len() + MediaPacket::TAILROOM, 0);
    let mut packet = MediaPacket {
        length: bytes.len(),
        ..MediaPacket::new(socket, addr(source), Time::from_secs(1), &mut buffer)
    };
    match forwarder.forward(&mut packet, Time::from_secs(1)) {
        PacketVerdict::Forward { destination, .. } => Ok((destination, packet.bytes().to_vec())),
        PacketVerdict::Drop(reason) => Err(reason),
        other => panic!("{other:?}"),
    }
}

fn stats(forwarder: &Forwarder) -> SessionStats {
    forwarder.stats(1).unwrap()
}

#[test]
fn every_suite_to_plain_rtp_and_back() {
    for suite in Suite::ALL {
        let (protection, mut phone) = keys(suite, 1, 0);
        let mut forwarder = with(plan(protection, Protection::None));
        for sequence in [65_534u16, 65_535, 0, 1] {
            let plain = rtp(7, sequence);
            let secret = sealed(&mut phone.outbound, &plain, false);
            let out = pass(&mut forwarder, A, PHONE, &secret).unwrap();
            assert_eq!(out, (addr(OTHER), plain.clone()), "{suite}");
            let (to, out) = pass(&mut forwarder, B, OTHER, &plain).unwrap();
            assert_eq!(to, addr(PHONE));
            assert_eq!(out.len(), plain.len() + suite.rtp_tag_length());
            assert_eq!(opened(&mut phone.inbound, &out, false), plain);
        }
        let plain = rtcp(7);
        let secret = sealed(&mut phone.outbound, &plain, true);
        assert_eq!(pass(&mut forwarder, A, PHONE, &secret).unwrap().1, plain);
        let (_, out) = pass(&mut forwarder, B, OTHER, &plain).unwrap();
        assert_eq!(opened(&mut phone.inbound, &out, true), plain);
        let stats = stats(&forwarder);
        let [a, b] = &stats.flows[0].sides;
        assert_eq!((a.srtp, b.srtp), (Some(suite), None));
        assert_eq!(
            (a.received.packets, a.received_rtcp.packets, b.sent.packets),
            (4, 1, 4)
        );
    }
}

/// Topology hiding of RTCP where the forwarder has the keys of one side or both.
#[test]
fn names_in_srtcp_are_hidden() {
    let (left, mut phone) = keys(Suite::AesCm128HmacSha1_80, 1, 0);
    let (right, mut other) = keys(Suite::AeadAes256Gcm, 9, 0);
    let mut plan = plan(left, right);
    for side in &mut plan.flows[0].sides {
        side.hides = true;
    }
    let mut forwarder = with(plan);
    let plain = CompoundBuilder::new()
        .receiver_report(7, &[])
        .cname(7, "alice@pbx.example.com")
        .finish();
    let secret = sealed(&mut phone.outbound, &plain, true);
    let (_, out) = pass(&mut forwarder, A, PHONE, &secret).unwrap();
    let there = opened(&mut other.inbound, &out, true);
    let secret = sealed(&mut other.outbound, &plain, true);
    let (_, out) = pass(&mut forwarder, B, OTHER, &secret).unwrap();
    let back = opened(&mut phone.inbound, &out, true);
    for opened in [&there, &back] {
        assert_eq!(opened.len(), plain.len() - 4, "16 bytes of 21 stay");
        assert!(wire::rtcp::is_compound(opened));
        assert!(!opened.windows(3).any(|word| word == b"pbx"));
    }
    assert_eq!(there, back, "one name in the call");
}

/// A phone that restarts its stream under the same source gets other numbers: a keystream is used once.
#[test]
fn restarted_sequence_reaches_a_side_with_srtp() {
    let (protection, mut phone) = keys(Suite::AesCm128HmacSha1_80, 1, 0);
    let mut forwarder = with(plan(protection, Protection::None));
    let mut numbers = Vec::new();
    for start in [1_000u16, 1, 700] {
        let count = if start == 1_000 { 500 } else { 100 };
        let before = numbers.len();
        for sequence in start..start + count {
            if let Ok((_, out)) = pass(&mut forwarder, B, OTHER, &rtp(7, sequence)) {
                let plain = opened(&mut phone.inbound, &out, false);
                numbers.push(u16::from_be_bytes([plain[2], plain[3]]));
            }
        }
        let relayed = numbers.len() - before;
        assert!(relayed >= usize::from(count) - 2, "{start}: {relayed}");
    }
    assert!(
        numbers
            .windows(2)
            .all(|two| two[1] == two[0] + 1 || two[1] > 1_500),
        "{numbers:?}"
    );
    // Reports about the stream have the sender's numbers.
    let block = wire::rtcp::ReportBlock {
        ssrc: 7,
        highest_sequence: u32::from(numbers[numbers.len() - 1]),
        ..Default::default()
    };
    let report = CompoundBuilder::new()
        .receiver_report(8, &[block])
        .cname(8, "a@b")
        .finish();
    let secret = sealed(&mut phone.outbound, &report, true);
    let (_, out) = pass(&mut forwarder, A, PHONE, &secret).unwrap();
    let part = wire::rtcp::Compound::new(&out).next().unwrap();
    assert_eq!(part.reports().next().unwrap().highest_sequence, 799);
}

/// A held phone or PBX that goes on sending: after more than 32,768 packets its numbers look like old ones (RFC 3711
/// section 3.3.1).
#[test]
fn side_with_srtp_has_audio_after_a_long_hold() {
    for (held, restarted) in [
        (40_000u32, false),
        (65_536, false),
        (70_000, false),
        (40_000, true),
    ] {
        let (protection, mut phone) = keys(Suite::AesCm128HmacSha1_80, 1, 0);
        let mut plan = plan(protection, Protection::None);
        plan.flows[0].sides[1].plain_rtcp = true;
        let mut forwarder = with(plan.clone());
        let mut sequence = 30_000u16;
        let mut next = || {
            sequence = sequence.wrapping_add(1);
            rtp(7, sequence)
        };
        let mut numbers = Vec::new();
        let mut relay = |forwarder: &mut Forwarder, packet: &[u8]| {
            let (_, out) = pass(forwarder, B, OTHER, packet).unwrap();
            let plain = opened(&mut phone.inbound, &out, false);
            assert_eq!(plain[12..], packet[12..]);
            numbers.push(u16::from_be_bytes([plain[2], plain[3]]));
        };
        if restarted {
            // It is renumbered already.
            for sequence in 40_000..40_100 {
                relay(&mut forwarder, &rtp(7, sequence));
            }
            for _ in 0..2 {
                let _ = pass(&mut forwarder, B, OTHER, &next());
            }
        }
        for _ in 0..100 {
            relay(&mut forwarder, &next());
        }
        plan.flows[0].sides[0].receives = false;
        forwarder.command(MediaCommand::Update(Box::new(plan.clone())), Time::ZERO);
        for _ in 0..held {
            let dropped = pass(&mut forwarder, B, OTHER, &next());
            assert_eq!(dropped, Err(DropReason::MediaDirectionClosed));
        }
        plan.flows[0].sides[0].receives = true;
        forwarder.command(MediaCommand::Update(Box::new(plan)), Time::ZERO);
        for _ in 0..100 {
            relay(&mut forwarder, &next());
        }
        let after = &numbers[numbers.len() - 100..];
        assert!(
            after.windows(2).all(|two| two[1] == two[0].wrapping_add(1)),
            "{held}: {after:?}"
        );
    }
}

#[test]
fn both_sides_use_srtp() {
    let (left, mut one) = keys(Suite::AesCm128HmacSha1_80, 1, 0);
    let (right, mut two) = keys(Suite::AeadAes256Gcm, 9, 0);
    let mut forwarder = with(plan(left, right));
    let plain = rtp(7, 1);
    let secret = sealed(&mut one.outbound, &plain, false);
    let (_, out) = pass(&mut forwarder, A, PHONE, &secret).unwrap();
    assert_eq!(opened(&mut two.inbound, &out, false), plain);
    let secret = sealed(&mut two.outbound, &plain, false);
    let (_, out) = pass(&mut forwarder, B, OTHER, &secret).unwrap();
    assert_eq!(opened(&mut one.inbound, &out, false), plain);
}

#[test]
fn forged_packets_are_counted_drops() {
    let (protection, mut phone) = keys(Suite::AesCm128HmacSha1_80, 1, 0);
    let (_, mut stranger) = keys(Suite::AesCm128HmacSha1_80, 77, 0);
    let mut forwarder = with(plan(protection, Protection::None));
    let good = sealed(&mut phone.outbound, &rtp(7, 1), false);
    let wrong_key = sealed(&mut stranger.outbound, &rtp(8, 1), false);
    let mut altered = sealed(&mut phone.outbound, &rtp(7, 2), false);
    altered[20] ^= 1;
    let late = sealed(&mut phone.outbound, &rtp(7, 3), false);
    for (bytes, expected) in [
        (rtp(7, 9), Some(DropReason::SrtpAuthentication)),
        (wrong_key, Some(DropReason::SrtpAuthentication)),
        (altered, Some(DropReason::SrtpAuthentication)),
        (
            good[..good.len() - 1].to_vec(),
            Some(DropReason::SrtpAuthentication),
        ),
        (good[..14].to_vec(), Some(DropReason::SrtpMalformed)),
        (good.clone(), None),
        (good, Some(DropReason::SrtpReplayed)),
        (late, None),
        (rtcp(7), Some(DropReason::SrtpMalformed)),
        (vec![0x80], Some(DropReason::SrtpMalformed)),
        (vec![], Some(DropReason::MediaMalformed)),
        (vec![22, 254, 253, 0], Some(DropReason::MediaMalformed)),
    ] {
        let result = pass(&mut forwarder, A, PHONE, &bytes);
        match expected {
            None => assert!(result.is_ok(), "{result:?}"),
            Some(DropReason::SrtpMalformed) => assert!(
                matches!(
                    result,
                    Err(DropReason::SrtpMalformed | DropReason::SrtpAuthentication)
                ),
                "{result:?}"
            ),
            Some(reason) => assert_eq!(result.unwrap_err(), reason),
        }
    }
    let [side, _] = &stats(&forwarder).flows[0].sides;
    assert_eq!(side.received.packets, 2, "no other packet is accepted");
    assert!(
        side.drops.contains(&(DropReason::SrtpReplayed, 1)),
        "{:?}",
        side.drops
    );
}

#[test]
fn unknown_master_key_identifier_is_rejected() {
    let base = key(Suite::AesCm128HmacSha1_80, 1);
    let marked = base.clone().with_mki(&[1]).unwrap();
    let other = base.with_mki(&[2]).unwrap();
    let keys = Keys {
        association: 0,
        local: key(Suite::AesCm128HmacSha1_80, 2),
        remote: vec![marked.clone()],
        window: 0,
    };
    let mut forwarder = with(plan(Protection::Srtp(Arc::new(keys)), Protection::None));
    let mut wrong = Outbound::new(&other, ContextLimits::default()).unwrap();
    let mut right = Outbound::new(&marked, ContextLimits::default()).unwrap();
    let bytes = sealed(&mut wrong, &rtp(7, 1), false);
    assert_eq!(
        pass(&mut forwarder, A, PHONE, &bytes),
        Err(DropReason::SrtpUnknownMki)
    );
    let bytes = sealed(&mut right, &rtp(7, 1), false);
    assert!(pass(&mut forwarder, A, PHONE, &bytes).is_ok());
}

/// Symmetric RTP: a phone behind NAT sends from another address than it signalled.
#[test]
fn only_authentic_packets_latch() {
    let (protection, mut phone) = keys(Suite::AesCm128HmacSha1_80, 1, 0);
    let mut plan = plan(protection, Protection::None);
    plan.flows[0].sides[0].latching = Latching::SameAddress(addr(PHONE).ip());
    plan.flows[0].sides[0].signalled_rtp = Some(addr("10.0.0.1:4000"));
    let mut forwarder = with(plan);
    for sequence in 0..50 {
        let result = pass(&mut forwarder, A, "192.0.2.1:6666", &rtp(7, sequence));
        assert_eq!(result, Err(DropReason::SrtpAuthentication));
    }
    let bytes = sealed(&mut phone.outbound, &rtp(7, 1), false);
    assert_eq!(
        pass(&mut forwarder, A, "203.0.113.9:4000", &bytes),
        Err(DropReason::MediaUnexpectedSource),
        "latching forbids this address"
    );
    assert!(pass(&mut forwarder, A, PHONE, &bytes).is_ok());
    let latched = std::iter::from_fn(|| forwarder.next_report()).any(
        |report| matches!(report, MediaEvent::Latched { address, side: 0, .. } if address == addr(PHONE)),
    );
    assert!(latched, "one authentic packet is enough");
    assert_eq!(
        pass(&mut forwarder, A, "192.0.2.1:6666", &rtp(7, 51)),
        Err(DropReason::MediaUnexpectedSource)
    );
    let (to, _) = pass(&mut forwarder, B, OTHER, &rtp(3, 1)).unwrap();
    assert_eq!(to, addr(PHONE));
}

#[test]
fn no_packet_is_accepted_without_keys() {
    let mut forwarder = with(plan(Protection::Pending, Protection::None));
    assert_eq!(
        pass(&mut forwarder, A, PHONE, &rtp(7, 1)),
        Err(DropReason::SrtpNoKey)
    );
    assert_eq!(
        pass(&mut forwarder, B, OTHER, &rtp(7, 1)),
        Err(DropReason::SrtpNoKey),
        "no packet is sent unprotected"
    );
    let (protection, mut phone) = keys(Suite::AeadAes128Gcm, 1, 0);
    forwarder.command(
        MediaCommand::Update(Box::new(plan(protection, Protection::None))),
        Time::ZERO,
    );
    let bytes = sealed(&mut phone.outbound, &rtp(7, 2), false);
    assert!(pass(&mut forwarder, A, PHONE, &bytes).is_ok(), "late keys");
}

#[test]
fn dtls_and_stun_are_punted() {
    let mut pending = plan(Protection::Pending, Protection::None);
    pending.flows[0].sides[0].dtls = true;
    let mut forwarder = with(pending);
    let mut hello = [22u8, 254, 253, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
    let mut packet = MediaPacket::new(A, addr("203.0.113.5:9"), Time::ZERO, &mut hello);
    assert_eq!(
        forwarder.forward(&mut packet, Time::ZERO),
        PacketVerdict::Punt("dtls")
    );
    let mut check = [0u8; 20];
    check[..8].copy_from_slice(&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42]);
    let mut packet = MediaPacket::new(A, addr("203.0.113.5:9"), Time::ZERO, &mut check);
    assert_eq!(
        forwarder.forward(&mut packet, Time::ZERO),
        PacketVerdict::Punt("stun")
    );
}

/// A re-INVITE with new keys: both remote keys are valid for a while, the local key changes at once, rollover counters
/// continue.
#[test]
fn rekeying_keeps_rollover_counters() {
    let suite = Suite::AesCm128HmacSha1_80;
    let (first, mut phone) = keys(suite, 1, 0);
    let (second, mut renewed) = keys(suite, 11, 0);
    let mut forwarder = with(plan(first, Protection::None));
    for sequence in [65_535u16, 0] {
        let bytes = sealed(&mut phone.outbound, &rtp(7, sequence), false);
        pass(&mut forwarder, A, PHONE, &bytes).unwrap();
        pass(&mut forwarder, B, OTHER, &rtp(3, sequence)).unwrap();
    }
    forwarder.command(
        MediaCommand::Update(Box::new(plan(second, Protection::None))),
        Time::ZERO,
    );
    let old = sealed(&mut phone.outbound, &rtp(7, 1), false);
    assert!(
        pass(&mut forwarder, A, PHONE, &old).is_ok(),
        "packet under the previous key"
    );
    // Rollover counters continue under a new key (RFC 3711 section 8.1).
    assert!(renewed.outbound.set_rollover(7, 1));
    let new = sealed(&mut renewed.outbound, &rtp(7, 2), false);
    assert!(pass(&mut forwarder, A, PHONE, &new).is_ok());
    let (_, out) = pass(&mut forwarder, B, OTHER, &rtp(3, 1)).unwrap();
    renewed.inbound.set_rollover(3, 1);
    assert_eq!(opened(&mut renewed.inbound, &out, false), rtp(3, 1));
    assert_eq!(
        pass(&mut forwarder, B, OTHER, &rtp(3, 1)),
        Err(DropReason::SrtpIndexReused),
        "no index is protected twice"
    );
}

/// Another association begins with rollover counters at zero.
#[test]
fn new_association_resets_rollover_counters() {
    let suite = Suite::AeadAes128Gcm;
    let (first, mut phone) = keys(suite, 1, 1);
    let (second, mut renewed) = keys(suite, 11, 2);
    let mut forwarder = with(plan(first, Protection::None));
    for sequence in [65_535u16, 0] {
        let bytes = sealed(&mut phone.outbound, &rtp(7, sequence), false);
        pass(&mut forwarder, A, PHONE, &bytes).unwrap();
        pass(&mut forwarder, B, OTHER, &rtp(3, sequence)).unwrap();
    }
    forwarder.command(
        MediaCommand::Update(Box::new(plan(second, Protection::None))),
        Time::ZERO,
    );
    let (_, out) = pass(&mut forwarder, B, OTHER, &rtp(3, 1)).unwrap();
    assert_eq!(opened(&mut renewed.inbound, &out, false), rtp(3, 1));
    let new = sealed(&mut renewed.outbound, &rtp(7, 1), false);
    assert!(pass(&mut forwarder, A, PHONE, &new).is_ok());
}

/// An early dialog, others with keys of their own, without keys or in the clear, and the final answer of the first.
#[test]
fn returning_association_continues_its_indices() {
    let suite = Suite::AesCm128HmacSha1_80;
    let mut contacts = Vec::new();
    for association in 2..=5 {
        contacts.push(Protection::Pending);
        contacts.push(keys(suite, 10 * u64::from(association), association).0);
    }
    for others in [
        vec![keys(suite, 11, 2).0],
        vec![Protection::Pending],
        vec![Protection::None],
        contacts,
    ] {
        let (first, mut phone) = keys(suite, 1, 1);
        let mut forwarder = with(plan(first.clone(), Protection::None));
        let mut talk = |forwarder: &mut Forwarder, sequence: u16| {
            let (_, out) = pass(forwarder, B, OTHER, &rtp(3, sequence)).unwrap();
            assert_eq!(opened(&mut phone.inbound, &out, false), rtp(3, sequence));
            let (_, out) = pass(forwarder, B, OTHER, &rtcp(3)).unwrap();
            opened(&mut phone.inbound, &out, true);
            let bytes = sealed(&mut phone.outbound, &rtp(7, sequence), false);
            pass(forwarder, A, PHONE, &bytes).unwrap();
        };
        for sequence in [65_535, 0] {
            talk(&mut forwarder, sequence);
        }
        for protection in others.into_iter().chain([first]) {
            let update = MediaCommand::Update(Box::new(plan(protection, Protection::None)));
            forwarder.command(update, Time::ZERO);
        }
        talk(&mut forwarder, 1);
    }
}

/// A phone that numbers its only key 1, and has another with each re-INVITE.
#[test]
fn new_key_under_the_same_identifier_continues_rollover_counters() {
    let suite = Suite::AesCm128HmacSha1_80;
    let local = key(suite, 1);
    let marked = |number| key(suite, number).with_mki(&[1]).unwrap();
    let plan_with = |remote: &MasterKey| {
        let keys = Keys {
            association: 0,
            local: local.clone(),
            remote: vec![remote.clone()],
            window: 0,
        };
        plan(Protection::Srtp(Arc::new(keys)), Protection::None)
    };
    let first = marked(2);
    let mut forwarder = with(plan_with(&first));
    let mut phone = Outbound::new(&first, ContextLimits::default()).unwrap();
    let mut sequence = 0u16;
    let mut send = |forwarder: &mut Forwarder, phone: &mut Outbound, step: u16| {
        sequence = sequence.wrapping_add(step);
        let bytes = sealed(phone, &rtp(7, sequence), false);
        pass(forwarder, A, PHONE, &bytes).unwrap();
        bytes
    };
    // Two wraps.
    for _ in 0..14 {
        send(&mut forwarder, &mut phone, 10_000);
    }
    for number in 3..15 {
        let next = marked(number);
        phone.rekey(&next).unwrap();
        let update = MediaCommand::Update(Box::new(plan_with(&next)));
        forwarder.command(update, Time::ZERO);
        let bytes = send(&mut forwarder, &mut phone, 1);
        assert_eq!(
            pass(&mut forwarder, A, PHONE, &bytes),
            Err(DropReason::SrtpReplayed)
        );
    }
}

/// Hold and resume with a new key each time: more keys than are stored, and few packets with each.
#[test]
fn rollover_counters_outlast_many_keys() {
    let suite = Suite::AesCm128HmacSha1_80;
    let local = key(suite, 1);
    let mut forwarder = None;
    let mut phone = Outbound::new(&key(suite, 100), ContextLimits::default()).unwrap();
    let mut sequence = 0u16;
    for number in 100..120 {
        let theirs = key(suite, number);
        phone.rekey(&theirs).unwrap();
        let keys = Keys {
            association: 0,
            local: local.clone(),
            remote: vec![theirs],
            window: 0,
        };
        let plan = plan(Protection::Srtp(Arc::new(keys)), Protection::None);
        let forwarder = match &mut forwarder {
            None => forwarder.insert(with(plan)),
            Some(forwarder) => {
                forwarder.command(MediaCommand::Update(Box::new(plan)), Time::ZERO);
                forwarder
            }
        };
        // One wrap is between two keys.
        for _ in 0..7 {
            sequence = sequence.wrapping_add(10_000);
            let bytes = sealed(&mut phone, &rtp(7, sequence), false);
            assert!(pass(forwarder, A, PHONE, &bytes).is_ok(), "key {number}");
        }
    }
}

/// A phone, then music on hold with a key of its own, then the phone again: packets that were recorded before the music
/// are not heard a second time.
#[test]
fn key_that_returns_accepts_no_recorded_packet() {
    let suite = Suite::AesCm128HmacSha1_80;
    let plan_of = |number| {
        let keys = Keys {
            association: 0,
            local: key(suite, 1),
            remote: vec![key(suite, number)],
            window: 0,
        };
        plan(Protection::Srtp(Arc::new(keys)), Protection::None)
    };
    let update = |forwarder: &mut Forwarder, number| {
        let plan = Box::new(plan_of(number));
        forwarder.command(MediaCommand::Update(plan), Time::ZERO);
    };
    let mut forwarder = with(plan_of(100));
    let mut phone = Outbound::new(&key(suite, 100), ContextLimits::default()).unwrap();
    let send = |forwarder: &mut Forwarder, phone: &mut Outbound, sequence: u16| {
        let bytes = sealed(phone, &rtp(7, sequence), false);
        assert!(pass(forwarder, A, PHONE, &bytes).is_ok(), "{sequence}");
        bytes
    };
    let recorded: Vec<Vec<u8>> = (1..6)
        .map(|sequence| send(&mut forwarder, &mut phone, sequence))
        .collect();
    update(&mut forwarder, 101);
    phone.rekey(&key(suite, 101)).unwrap();
    for sequence in 6..9 {
        send(&mut forwarder, &mut phone, sequence);
    }
    update(&mut forwarder, 100);
    phone.rekey(&key(suite, 100)).unwrap();
    for bytes in &recorded {
        let replayed = pass(&mut forwarder, A, PHONE, bytes);
        assert_eq!(replayed, Err(DropReason::SrtpReplayed));
    }
    send(&mut forwarder, &mut phone, 9);
}

/// Another party in the place of the former one, which has its own keys and knows no rollover counters.
#[test]
fn keys_of_the_previous_association_are_not_accepted() {
    let suite = Suite::AesCm128HmacSha1_80;
    let (first, mut before) = keys(suite, 1, 0);
    let (second, mut after) = keys(suite, 11, 1);
    let mut forwarder = with(plan(first, Protection::None));
    let bytes = sealed(&mut before.outbound, &rtp(7, 1), false);
    pass(&mut forwarder, A, PHONE, &bytes).unwrap();
    let update = MediaCommand::Update(Box::new(plan(second, Protection::None)));
    forwarder.command(update, Time::ZERO);
    let old = sealed(&mut before.outbound, &rtp(7, 2), false);
    assert_eq!(
        pass(&mut forwarder, A, PHONE, &old),
        Err(DropReason::SrtpAuthentication)
    );
    let new = sealed(&mut after.outbound, &rtp(7, 2), false);
    assert!(pass(&mut forwarder, A, PHONE, &new).is_ok());
}

/// Several peers answer one offer with different keys, more of them than can be stored.
#[test]
fn forked_answers_have_separate_keys() {
    let suite = Suite::AesCm128HmacSha1_80;
    let local = key(suite, 1);
    let mut forwarder = None;
    let mut sequence = 0;
    for fork in 0..20 {
        let theirs = key(suite, 100 + fork);
        let keys = Keys {
            association: 0,
            local: local.clone(),
            remote: vec![theirs.clone()],
            window: 0,
        };
        let plan = plan(Protection::Srtp(Arc::new(keys)), Protection::None);
        let forwarder = match &mut forwarder {
            None => forwarder.insert(with(plan)),
            Some(forwarder) => {
                forwarder.command(MediaCommand::Update(Box::new(plan)), Time::ZERO);
                forwarder
            }
        };
        let mut peer = Outbound::new(&theirs, ContextLimits::default()).unwrap();
        let bytes = sealed(&mut peer, &rtp(fork as u32, 1), false);
        assert!(pass(forwarder, A, PHONE, &bytes).is_ok(), "fork {fork}");
        sequence += 1;
        assert!(pass(forwarder, B, OTHER, &rtp(3, sequence)).is_ok());
        assert_eq!(
            pass(forwarder, B, OTHER, &rtp(3, sequence)),
            Err(DropReason::SrtpIndexReused),
            "the unchanged key remains valid"
        );
    }
}

#[test]
fn packets_are_authenticated_on_hold() {
    let (protection, mut phone) = keys(Suite::AesCm128HmacSha1_80, 1, 0);
    let mut held = plan(protection, Protection::None);
    held.flows[0].sides[1].receives = false;
    let mut forwarder = with(held);
    let bytes = sealed(&mut phone.outbound, &rtp(7, 1), false);
    assert_eq!(
        pass(&mut forwarder, A, PHONE, &bytes),
        Err(DropReason::MediaDirectionClosed)
    );
    assert_eq!(
        pass(&mut forwarder, A, PHONE, &bytes),
        Err(DropReason::SrtpReplayed)
    );
}

#[test]
fn packet_without_free_space_is_not_protected() {
    let (protection, _) = keys(Suite::AesCm128HmacSha1_80, 1, 0);
    let mut forwarder = with(plan(protection, Protection::None));
    let mut bytes = rtp(3, 1);
    let mut packet = MediaPacket::new(B, addr(OTHER), Time::ZERO, &mut bytes);
    assert_eq!(
        forwarder.forward(&mut packet, Time::ZERO),
        PacketVerdict::Drop(DropReason::SrtpBufferTooSmall)
    );
}

/// RFC 6189: the phones agree on keys in the media path.
#[test]
fn zrtp_passes_where_packets_pass_unchanged() {
    let now = Time::ZERO;
    let mut hello = [0; 132];
    hello[0] = 0x10;
    hello[4..8].copy_from_slice(b"ZRTP");
    let mut other = hello;
    other[4] = b'X';
    let malformed = PacketVerdict::Drop(DropReason::MediaMalformed);
    let relayed = PacketVerdict::Forward {
        socket: B,
        destination: addr(OTHER),
    };
    for (a, b, packet, expected) in [
        (Protection::None, Protection::None, hello, relayed),
        (Protection::None, Protection::None, other, malformed),
        (Protection::Pending, Protection::None, hello, malformed),
        (Protection::None, Protection::Pending, hello, malformed),
    ] {
        let mut forwarder = with(plan(a, b));
        let mut bytes = packet.to_vec();
        let mut received = MediaPacket::new(A, addr(PHONE), now, &mut bytes);
        assert_eq!(forwarder.forward(&mut received, now), expected);
        assert_eq!(bytes, packet);
    }
    // Other hosts do not reach the phone.
    let mut forwarder = with(plan(Protection::None, Protection::None));
    let mut bytes = hello.to_vec();
    let mut received = MediaPacket::new(A, addr("203.0.113.9:1"), now, &mut bytes);
    let dropped = PacketVerdict::Drop(DropReason::MediaLatching);
    assert_eq!(forwarder.forward(&mut received, now), dropped);
}
