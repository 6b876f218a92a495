//! Packets and captures of other implementations, from the test data.

use crate::common;

use base64::Engine as _;
use common::{
    hex, inbound, json, outbound, protect_packet, protect_rtcp_packet, testdata, to_hex,
    unprotect_packet, unprotect_rtcp_packet,
};
use protect::srtp::{MasterKey, SourceState, Suite};
use sha2::{Digest, Sha256};

/// libsrtp's reference packets: we produce the same bytes and unprotect them.
#[test]
fn libsrtp_reference_packets() {
    let Some(folder) = testdata() else { return };
    let file = json(&folder, "crypto/srtp-libsrtp-reference-packets-part1.json");
    let mut cases = 0;
    for (name, case) in file["cases"].as_object().unwrap() {
        let text = |field: &str| hex(case[field].as_str().unwrap());
        let suite = match name.as_str() {
            "srtp_validate" => Suite::AesCm128HmacSha1_80,
            "srtp_validate_null_sha1_80" => Suite::NullHmacSha1_80,
            other => panic!("a case that this test does not know: {other}"),
        };
        let secret = hex(file["keys"][case["key_name"].as_str().unwrap()]
            .as_str()
            .unwrap());
        let key = MasterKey::new(suite, &secret[..suite.key_and_salt_length()]).unwrap();
        let (mut outbound_context, mut inbound_context) = (outbound(&key), inbound(&key));
        let plain = text("srtp_plaintext_ref");
        let protected = text("srtp_ciphertext");
        assert_eq!(
            to_hex(&protect_packet(&mut outbound_context, &plain).unwrap()),
            to_hex(&protected)
        );
        assert_eq!(
            unprotect_packet(&mut inbound_context, &protected).unwrap(),
            plain
        );

        // The reference begins with index one.
        let plain = text("rtcp_plaintext_ref");
        let protected = text("srtcp_ciphertext");
        let begun = SourceState {
            ssrc: 0xcafe_babe,
            rtp: None,
            rtcp: Some(0),
        };
        assert!(outbound_context.restore(begun));
        assert_eq!(
            to_hex(&protect_rtcp_packet(&mut outbound_context, &plain).unwrap()),
            to_hex(&protected)
        );
        assert_eq!(
            unprotect_rtcp_packet(&mut inbound_context, &protected).unwrap(),
            plain
        );
        cases += 1;
    }
    assert_eq!(cases, 2);
}

/// The UDP payloads of a classic capture file with Ethernet frames.
fn udp_payloads(file: &[u8]) -> Vec<Vec<u8>> {
    let little = file.starts_with(&[0xd4, 0xc3, 0xb2, 0xa1]);
    let word = |at: usize| {
        let bytes: [u8; 4] = file[at..at + 4].try_into().unwrap();
        if little {
            u32::from_le_bytes(bytes)
        } else {
            u32::from_be_bytes(bytes)
        }
    };
    let link = word(20);
    let skip = match link {
        1 => 14,
        113 => 16,
        101 | 228 => 0,
        other => panic!("link type {other}"),
    };
    let mut payloads = Vec::new();
    let mut at = 24;
    while at + 16 <= file.len() {
        let length = word(at + 8) as usize;
        let frame = &file[at + 16..at + 16 + length];
        at += 16 + length;
        let Some(packet) = frame.get(skip..) else {
            continue;
        };
        if packet.len() > 28 && packet[0] >> 4 == 4 && packet[9] == 17 {
            let header = usize::from(packet[0] & 15) * 4;
            let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
            payloads.push(packet[header + 8..total].to_vec());
        }
    }
    payloads
}

/// Calls of other phones, with their negotiated keys: every packet is unprotected, with the expected content.
#[test]
fn captured_calls_are_unprotected() {
    let Some(folder) = testdata() else { return };
    for name in ["rtpproxy-alice_srtp", "rtpproxy-bob_srtp"] {
        let expected = json(&folder, &format!("captures/srtp/{name}.expected.json"));
        let capture = std::fs::read(folder.join(format!("captures/srtp/{name}.pcap"))).unwrap();
        let suite = Suite::from_name(expected["suite"].as_str().unwrap().as_bytes()).unwrap();
        let secret = base64::engine::general_purpose::STANDARD
            .decode(expected["sdes_inline_key"].as_str().unwrap())
            .unwrap();
        let mut inbound_context = inbound(&MasterKey::new(suite, &secret).unwrap());
        let mut hash = Sha256::new();
        let (mut unprotected, mut failed) = (0u64, 0u64);
        for packet in udp_payloads(&capture) {
            if wire::rtcp::is_rtcp(&packet) || packet.first().is_none_or(|byte| byte >> 6 != 2) {
                continue;
            }
            match unprotect_packet(&mut inbound_context, &packet) {
                Ok(plain) => {
                    unprotected += 1;
                    let view = wire::rtp::RtpView::parse(&plain).unwrap();
                    hash.update(view.payload_and_padding());
                }
                Err(_) => failed += 1,
            }
        }
        assert_eq!(Some(unprotected), expected["auth_ok"].as_u64(), "{name}");
        assert_eq!(Some(failed), expected["auth_fail"].as_u64(), "{name}");
        let digest = to_hex(&hash.finalize());
        assert_eq!(
            Some(digest.as_str()),
            expected["sha256_of_concatenated_decrypted_payloads_in_capture_order"].as_str()
        );
    }
}
