//! Packets and keystreams of the RFCs, which start from session keys.

use super::*;
use crate::test_bytes::hex;

fn keystream(key: &str, want: &str) {
    let salt = hex("f0f1f2f3f4f5f6f7f8f9fafbfcfd");
    let transform = Transform::new(CipherKind::Counter, &hex(key), &salt, &[0; 20]).unwrap();
    let want = hex(want);
    let mut packet = hex("800f0000decafbad00000000");
    packet.resize(12 + want.len() + 10, 0);
    let sealed = transform.protect_rtp(&mut packet, 12 + want.len(), 0, 0, &[]);
    assert_eq!(sealed, Ok(12 + want.len() + 10));
    assert_eq!(packet[12..12 + want.len()], want);
}

#[test]
fn rfc_3711_appendix_b_2() {
    keystream(
        "2B7E151628AED2A6ABF7158809CF4F3C",
        "e03ead0935c95e80e166b16dd92b4eb4d23513162b02d0f72a43a2fe4a5f97ab41e95b3bb0a2e8dd477901e4fca894c0",
    );
}

/// The last three blocks printed in the appendix: the block counter carries into no other field.
#[test]
fn rfc_3711_appendix_b_2_at_the_end_of_the_counter() {
    let salt = hex("f0f1f2f3f4f5f6f7f8f9fafbfcfd");
    let key = hex("2B7E151628AED2A6ABF7158809CF4F3C");
    let transform = Transform::new(CipherKind::Counter, &key, &salt, &[0; 20]).unwrap();
    let blocks = 0xff02;
    let mut packet = hex("800f0000decafbad00000000");
    packet.resize(12 + blocks * 16 + 10, 0);
    transform
        .protect_rtp(&mut packet, 12 + blocks * 16, 0, 0, &[])
        .unwrap();
    let tail = &packet[12 + 0xfeff * 16..12 + blocks * 16];
    assert_eq!(
        tail,
        hex(
            "ec8cdf7398607cb0f2d21675ea9ea1e4362b7c3c6773516318a077d7fc5073ae6a2cc3787889374fbeb4c81b17ba6c44"
        )
    );
}

#[test]
fn rfc_6188_section_7_1() {
    keystream(
        "57f82fe3613fd170a85ec93c40b1f0922ec4cb0dc025b58272147cc438944a98",
        "92bdd28a93c3f52511c677d08b5515a49da71b2378a854f67050756ded165bac63c4868b7096d88421b563b8c94c9a31",
    );
}

const GCM_RTP: &str = "8040f17b8041f8d35501a0b247616c6c696120657374206f6d6e69732064697669736120696e207061727465732074726573";
const GCM_RTCP: &str = "81c8000d4d6172734e5450314e545032525450200000042a0000e9304c756e61deadbeefdeadbeefdeadbeefdeadbeefdeadbeef";

struct Gcm {
    key: &'static str,
    rtp: &'static str,
    rtp_clear: &'static str,
    rtcp: &'static str,
    rtcp_clear: &'static str,
}

fn gcm(vector: &Gcm) {
    let salt = hex("517569642070726f2071756f");
    for encrypts in [true, false] {
        let mut transform = Transform::new(CipherKind::Gcm, &hex(vector.key), &salt, &[]).unwrap();
        transform.encrypts = encrypts;
        let (rtp, rtcp) = if encrypts {
            (vector.rtp, vector.rtcp)
        } else {
            (vector.rtp_clear, vector.rtcp_clear)
        };
        let plain = hex(GCM_RTP);
        let mut packet = plain.clone();
        packet.resize(plain.len() + 16, 0);
        let sealed = transform.protect_rtp(&mut packet, plain.len(), 0x5501_a0b2, 0xf17b, &[]);
        assert_eq!(sealed, Ok(packet.len()));
        assert_eq!(packet, hex(rtp));
        let length = transform.unprotect_rtp(&mut packet, 0x5501_a0b2, 0xf17b, 0);
        assert_eq!(length, Ok(plain.len()));
        assert_eq!(packet[..plain.len()], plain);

        let plain = hex(GCM_RTCP);
        let mut packet = plain.clone();
        packet.resize(plain.len() + 20, 0);
        let sealed = transform.protect_rtcp(&mut packet, plain.len(), 0x4d61_7273, 0x5d4, &[]);
        assert_eq!(sealed, Ok(packet.len()));
        assert_eq!(packet, hex(rtcp));
        assert_eq!(transform.rtcp_index(&packet, 0), Ok((0x5d4, encrypts)));
        let mut wrong = packet.clone();
        wrong[20] ^= 1;
        assert_eq!(
            transform.unprotect_rtcp(&mut wrong, 0x4d61_7273, 0x5d4, encrypts, 0),
            Err(SrtpFailure::Authentication)
        );
        let length = transform.unprotect_rtcp(&mut packet, 0x4d61_7273, 0x5d4, encrypts, 0);
        assert_eq!(length, Ok(plain.len()));
        assert_eq!(packet[..plain.len()], plain);
    }
}

#[test]
fn rfc_7714_sections_16_and_17_with_128_bits() {
    gcm(&Gcm {
        key: "000102030405060708090a0b0c0d0e0f",
        rtp: "8040f17b8041f8d35501a0b2f24de3a3fb34de6cacba861c9d7e4bcabe633bd50d294e6f42a5f47a51c7d19b36de3adf8833899d7f27beb16a9152cf765ee4390cce",
        rtp_clear: "8040f17b8041f8d35501a0b247616c6c696120657374206f6d6e69732064697669736120696e20706172746573207472657322493f82d2bce397e9d79e3b19aa4216",
        rtcp: "81c8000d4d61727363e94885dcdab67ca727d7662f6b7e997ff5c0f76c06f32dc676a5f1730d6fda4ce09b4686303ded0bb9275bc84aa45896cf4d2fc5abf87245d9eade800005d4",
        rtcp_clear: "81c8000d4d6172734e5450314e545032525450200000042a0000e9304c756e61deadbeefdeadbeefdeadbeefdeadbeefdeadbeef841dd9683dd78ec92ae58790125f62b3000005d4",
    });
}

#[test]
fn rfc_7714_sections_16_and_17_with_256_bits() {
    gcm(&Gcm {
        key: "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        rtp: "8040f17b8041f8d35501a0b232b1de78a822fe12ef9f78fa332e33aab18012389a58e2f3b50b2a0276ffae0f1ba63799b87b7aa3db36dfffd6b0f9bb7878d7a76c13",
        rtp_clear: "8040f17b8041f8d35501a0b247616c6c696120657374206f6d6e69732064697669736120696e207061727465732074726573a866d5910f887463067ceefec45215d4",
        rtcp: "81c8000d4d617273d50ae4d1f5ce5d304ba297e47d470c282c3ece5dbffe0a50a2eaa5c1110555be8415f658c61de0476f1b6fad1d1eb30c4446839f57ff6f6cb26ac3be800005d4",
        rtcp_clear: "81c8000d4d6172734e5450314e545032525450200000042a0000e9304c756e61deadbeefdeadbeefdeadbeefdeadbeefdeadbeef91db4afbfeee5a978fab4393ed2615fe000005d4",
    });
}
