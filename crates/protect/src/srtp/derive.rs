//! Derivation of session keys from master keys (RFC 3711 section 4.3, RFC 6188 section 3, RFC 7714 section 11).

use crate::cipher::{BadKey, CounterKey, PacketCipher};

/// Label of a session key for SRTP; the SRTCP labels are greater by three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Label {
    Encryption = 0,
    Authentication = 1,
    Salt = 2,
}

/// Fills `out` with the pseudo-random function AES-CM, keyed with the master key, at `epoch` = `index DIV
/// key_derivation_rate`.
///
/// A salt of 96 bits is padded with zeros to 112 bits (RFC 7714 section 11). The epoch has 48 bits for SRTCP, too, so
/// that the label has the same position as in other implementations.
pub(super) fn derive(
    master: &CounterKey,
    salt: &[u8],
    label: Label,
    rtcp: bool,
    epoch: u64,
    out: &mut [u8],
) {
    let mut block = [0u8; 16];
    for (byte, salt) in block.iter_mut().zip(salt.iter().take(14)) {
        *byte = *salt;
    }
    block[7] ^= label as u8 + if rtcp { 3 } else { 0 };
    let [_, _, epoch @ ..] = epoch.to_be_bytes();
    for (byte, epoch) in block.iter_mut().skip(8).zip(epoch) {
        *byte ^= epoch;
    }
    out.fill(0);
    master.encrypt(&block, out);
}

/// The key of the pseudo-random function.
pub(super) fn master_cipher(key: &[u8]) -> Result<CounterKey, BadKey> {
    CounterKey::new(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_bytes::hex;

    fn check(key: &str, salt: &str, cipher: &str, session_salt: &str, auth: &str) {
        let master = master_cipher(&hex(key)).unwrap();
        for (label, want) in [
            (Label::Encryption, cipher),
            (Label::Salt, session_salt),
            (Label::Authentication, auth),
        ] {
            let want = hex(want);
            let mut out = vec![0xaa; want.len()];
            derive(&master, &hex(salt), label, false, 0, &mut out);
            assert_eq!(out, want, "{label:?}");
        }
    }

    #[test]
    fn rfc_3711_appendix_b_3() {
        check(
            "E1F97A0D3E018BE0D64FA32C06DE4139",
            "0EC675AD498AFEEBB6960B3AABE6",
            "C61E7A93744F39EE10734AFE3FF7A087",
            "30CBBC08863D8C85D49DB34A9AE1",
            "CEBE321F6FF7716B6FD4AB49AF256A156D38BAA4",
        );
    }

    #[test]
    fn rfc_6188_section_7_2() {
        check(
            "f0f04914b513f2763a1b1fa130f10e2998f6f6e43e4309d1e622a0e332b9f1b6",
            "3b04803de51ee7c96423ab5b78d2",
            "5ba1064e30ec51613cad926c5a28ef731ec7fb397f70a960653caf06554cd8c4",
            "fa31791685ca444a9e07c6c64e93",
            "fd9c32d39ed5fbb5a9dc96b30818454d1313dc05",
        );
    }

    #[test]
    fn rfc_6188_section_7_4() {
        check(
            "73edc66c4fa15776fb57f9505c17136550ffda71f3e8e5f1",
            "c8522f3acd4ce86d5add78edbb11",
            "31874736a8f1143870c26e4857d8a5b2c4a354407faadabb",
            "2372b82d639b6d8503a47adc0a6c",
            "355b10973cd95b9eacf4061c7e1a7151e7cfbfcb",
        );
    }
}
