//! Bytes and time that a protection adds to a packet, computed from its format: for the simulation.

use super::model::Tunnel;
use crate::esp::{EspCarriage, EspCase, tunnel_format};
use sim::TunnelFormat;
use std::time::Duration;

/// IPv4 and UDP headers, of the outer packet or of one with SRTP.
const OUTER: usize = 20 + 8;
/// Packet number and time before the plaintext (OpenVPN with a static key: both, as the key has no sessions).
const OPENVPN_NUMBER: usize = 8;
/// HMAC-SHA1.
const OPENVPN_HMAC: usize = 20;
/// Type, receiver and counter of a data message of WireGuard; its plaintext is padded to blocks of 16 bytes.
const WIREGUARD_HEADER: usize = 16;
const WIREGUARD_BLOCK: usize = 16;
/// Poly1305.
const WIREGUARD_TAG: usize = 16;
/// SPI, sequence number and IV of ESP with AES-GCM (RFC 4106); padding length and next header before the ICV.
const ESP_HEADER: usize = SPI_AND_NUMBER + 8;
const SPI_AND_NUMBER: usize = 8;
const ESP_TRAILER: usize = 2;
const ESP_ALIGNMENT: usize = 4;
const ESP_ICV: usize = 16;
/// Megabytes per second of HMAC-SHA1 over blocks of 128 bytes; measured as [`cipher_mb_s`].
const HMAC_MB_S: f64 = 234.0;

/// Megabytes per second of AES-128 in counter mode (SRTP) and in GCM (ESP); measured as [`cipher_mb_s`].
const AES_128_CTR_MB_S: f64 = 2_430.0;
const AES_128_GCM_MB_S: f64 = 116.0;

/// The measurement behind [`cipher_mb_s`], for the page.
pub const SPEEDS_FROM: &str = "openssl speed (OpenSSL 3.0.19, blocks of 64 bytes, median of 5 rounds) on one core of an AMD EPYC, 2026-11-26; AES-256-GCM: 2026-11-28; AES-128 in CTR and GCM: median of 3 rounds on one of an Intel Xeon, 2026-11-29";

/// Megabytes per second of a cipher in the simulation: a measured constant, so that a seed gives the same bytes on each
/// machine. See [`SPEEDS_FROM`].
pub fn cipher_mb_s(tunnel: Tunnel) -> Option<f64> {
    Some(match tunnel {
        Tunnel::None => return None,
        Tunnel::WireGuard => 404.0,
        Tunnel::StrongSwan => 119.0,
        Tunnel::OpenVpn("DES-CBC") => 60.4,
        Tunnel::OpenVpn("DES-EDE3-CBC") => 23.6,
        Tunnel::OpenVpn("AES-128-CBC") => 950.0,
        Tunnel::OpenVpn("AES-256-CBC") => 682.0,
        Tunnel::OpenVpn("BF-CBC") => 116.0,
        Tunnel::OpenVpn("RC2-CBC") => 46.3,
        Tunnel::OpenVpn(_) => return None,
        Tunnel::Srtp => AES_128_CTR_MB_S,
        Tunnel::Esp("aes-cbc-sha1") => 950.0,
        Tunnel::Esp("aes-gcm") => AES_128_GCM_MB_S,
        Tunnel::Esp(_) => return None,
    })
}

/// Bytes of a block of a cipher in CBC mode.
fn block(cipher: &str) -> usize {
    match cipher.starts_with("AES") {
        true => 16,
        false => 8,
    }
}

/// Ciphertext of an inner packet with CBC: number, packet, and padding of 1 to a whole block (PKCS 7).
fn cbc_bytes(cipher: &str, inner: usize) -> usize {
    let block = block(cipher);
    ((OPENVPN_NUMBER + inner) / block + 1) * block
}

/// Format of the packets of a tunnel; `None` without one. SRTP is a part of the inner packets.
pub fn format(tunnel: Tunnel) -> Option<TunnelFormat> {
    Some(match tunnel {
        Tunnel::None | Tunnel::Srtp => return None,
        Tunnel::Esp(name) => tunnel_format(EspCase::of(name)?, EspCarriage::Tunnel),
        Tunnel::OpenVpn(cipher) => TunnelFormat {
            header: OUTER + OPENVPN_HMAC + block(cipher),
            clear: 0,
            // Padding of CBC has one byte at least (PKCS 7).
            trailer: OPENVPN_NUMBER + 1,
            block: block(cipher),
            check: 0,
        },
        Tunnel::WireGuard => TunnelFormat {
            header: OUTER + WIREGUARD_HEADER,
            clear: 0,
            trailer: 0,
            block: WIREGUARD_BLOCK,
            check: WIREGUARD_TAG,
        },
        Tunnel::StrongSwan => TunnelFormat {
            header: OUTER + ESP_HEADER,
            clear: 0,
            trailer: ESP_TRAILER,
            block: ESP_ALIGNMENT,
            check: ESP_ICV,
        },
    })
}

/// Bytes of the IP packet on the line that carries an inner IP packet.
pub fn outer_bytes(tunnel: Tunnel, inner: usize) -> usize {
    format(tunnel).map_or(inner, |format| format.outer_bytes(inner))
}

/// Time of cipher and HMAC for an inner IP packet at one end.
pub fn cipher_time(tunnel: Tunnel, inner: usize) -> Duration {
    let Some(cipher_mb_s) = cipher_mb_s(tunnel) else {
        return Duration::ZERO;
    };
    let micros = match tunnel {
        Tunnel::OpenVpn(cipher) => {
            let bytes = cbc_bytes(cipher, inner) as f64;
            bytes / cipher_mb_s + (bytes + block(cipher) as f64) / HMAC_MB_S
        }
        Tunnel::Srtp => {
            let bytes = inner.saturating_sub(OUTER) as f64;
            bytes / cipher_mb_s + bytes / HMAC_MB_S
        }
        Tunnel::Esp(name) => {
            let Some(case) = EspCase::of(name) else {
                return Duration::ZERO;
            };
            let bytes = case.encrypted_bytes(inner) as f64;
            // GCM authenticates with its cipher; the HMAC is over SPI, sequence number and IV, too.
            let hmac = match case.suite.integrity.key_length() {
                0 => 0.0,
                _ => (bytes + (SPI_AND_NUMBER + case.iv) as f64) / HMAC_MB_S,
            };
            bytes / cipher_mb_s + hmac
        }
        _ => inner.next_multiple_of(WIREGUARD_BLOCK) as f64 / cipher_mb_s,
    };
    Duration::from_nanos((micros * 1e3).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study_c::model::PROTECTIONS;

    #[test]
    fn packets_have_the_sizes_that_were_measured_on_the_line() {
        // G.723.1: 20 + 8 + 12 + 24 bytes. The captures of real tunnels have 136 and 144 (docs/study-c.md, less HDLC).
        let bytes = |tunnel| outer_bytes(tunnel, 64);
        assert_eq!(bytes(Tunnel::None), 64);
        assert_eq!(bytes(Tunnel::OpenVpn("BF-CBC")), 136);
        assert_eq!(bytes(Tunnel::OpenVpn("AES-256-CBC")), 144);
        // WireGuard (its white paper, 5.4.6): 32 bytes and the outer headers.
        assert_eq!(bytes(Tunnel::WireGuard), 64 + 32 + 28);
        // 8 bytes of SPI and number, 8 of IV, 68 of ciphertext, 16 of ICV: as strongSwan has in a capture (142 with
        // Ethernet).
        assert_eq!(bytes(Tunnel::StrongSwan), 28 + 8 + 8 + 68 + 16);
        // RFC 4303: 20 + 8, IV, the packet with a trailer of 2 in blocks, ICV.
        assert_eq!(bytes(Tunnel::Esp("aes-cbc-sha1")), 28 + 16 + 80 + 12);
        assert_eq!(bytes(Tunnel::Esp("aes-gcm")), 28 + 8 + 68 + 16);
        // The tag of SRTP is in the inner packet.
        assert_eq!(outer_bytes(Tunnel::Srtp, 74), 74);
        // A whole last block is followed by one of padding.
        assert_eq!(
            outer_bytes(Tunnel::OpenVpn("DES-CBC"), 63),
            28 + 20 + 8 + 72
        );
        assert_eq!(
            outer_bytes(Tunnel::OpenVpn("DES-CBC"), 64),
            28 + 20 + 8 + 80
        );
    }

    #[test]
    fn every_tunnel_takes_time() {
        for protection in PROTECTIONS {
            let time = cipher_time(protection.tunnel, 64);
            assert_eq!(time.is_zero(), protection.tunnel == Tunnel::None);
            assert!(time < Duration::from_micros(20), "{time:?}");
        }
        // 3DES: 80 bytes at 23.6 MB/s and 88 at 234 MB/s.
        let time = cipher_time(Tunnel::OpenVpn("DES-EDE3-CBC"), 64);
        assert_eq!(time, Duration::from_nanos(3_766));
    }
}
