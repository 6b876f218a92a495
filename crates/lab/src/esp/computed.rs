//! Lengths of voice packets in ESP, computed from the RFCs alone: the constants here are not those of `protect`.

use protect::esp::{EspEncryption, EspIntegrity, EspSuite};
use sim::TunnelFormat;

/// IPv4 header without options (RFC 791).
const IPV4: usize = 20;
/// UDP header (RFC 768).
const UDP: usize = 8;
/// RTP header without contributing sources and extension (RFC 3550 section 5.1).
const RTP: usize = 12;
/// SPI and sequence number (RFC 4303 section 2).
const ESP_HEADER: usize = 8;
/// Pad length and next header (RFC 4303 section 2).
const ESP_TRAILER: usize = 2;

/// How ESP packets are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EspCarriage {
    /// Transport mode, IP protocol 50.
    Transport,
    /// Tunnel mode, IP protocol 50.
    Tunnel,
    /// Transport mode in UDP (RFC 3948).
    TransportInUdp,
    /// Tunnel mode in UDP.
    TunnelInUdp,
}

impl EspCarriage {
    /// All of them.
    pub const ALL: [EspCarriage; 4] = [
        EspCarriage::Transport,
        EspCarriage::Tunnel,
        EspCarriage::TransportInUdp,
        EspCarriage::TunnelInUdp,
    ];

    /// Name in figures.
    pub const fn name(self) -> &'static str {
        match self {
            EspCarriage::Transport => "transport",
            EspCarriage::Tunnel => "tunnel",
            EspCarriage::TransportInUdp => "transport-udp",
            EspCarriage::TunnelInUdp => "tunnel-udp",
        }
    }

    /// Whether whole IP packets are sealed.
    pub const fn is_tunnel(self) -> bool {
        matches!(self, EspCarriage::Tunnel | EspCarriage::TunnelInUdp)
    }

    /// Whether a UDP header stands before ESP.
    pub const fn is_encapsulated(self) -> bool {
        matches!(self, EspCarriage::TransportInUdp | EspCarriage::TunnelInUdp)
    }

    /// The same mode in UDP.
    pub const fn in_udp(self) -> EspCarriage {
        match self.is_tunnel() {
            true => EspCarriage::TunnelInUdp,
            false => EspCarriage::TransportInUdp,
        }
    }
}

/// Algorithms of an experiment, with the lengths that their RFCs give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspCase {
    /// Name in experiment files and figures.
    pub name: &'static str,
    /// Algorithms.
    pub suite: EspSuite,
    /// Encryption key with its salt, bytes.
    pub key_bytes: usize,
    /// Initialisation vector in a packet, bytes.
    pub iv: usize,
    /// Block to which payload and trailer are padded, bytes; at least 4 (RFC 4303 section 2.4).
    pub block: usize,
    /// Integrity check value, bytes.
    pub icv: usize,
}

const fn case(
    name: &'static str,
    suite: (EspEncryption, EspIntegrity),
    key_bytes: usize,
    lengths: [usize; 3],
) -> EspCase {
    let [iv, block, icv] = lengths;
    EspCase {
        name,
        suite: EspSuite::new(suite.0, suite.1),
        key_bytes,
        iv,
        block,
        icv,
    }
}

impl EspCase {
    /// All of them: RFC 3602 (AES-CBC), 2404 and 2403 (HMACs of 96 bits), 4868 (SHA2-256 of 128 bits), 4106 (AES-GCM),
    /// 7634 (ChaCha20), 2451 (3DES, Blowfish), 2410 (NULL).
    pub const ALL: [EspCase; 11] = [
        case(
            "aes-cbc",
            (EspEncryption::AesCbc, EspIntegrity::None),
            16,
            [16, 16, 0],
        ),
        case(
            "aes-cbc-sha1",
            (EspEncryption::AesCbc, EspIntegrity::HmacSha1),
            16,
            [16, 16, 12],
        ),
        case(
            "aes-cbc-md5",
            (EspEncryption::AesCbc, EspIntegrity::HmacMd5),
            16,
            [16, 16, 12],
        ),
        case(
            "aes-cbc-sha256",
            (EspEncryption::AesCbc, EspIntegrity::HmacSha256),
            16,
            [16, 16, 16],
        ),
        case(
            "aes256-cbc-sha256",
            (EspEncryption::AesCbc, EspIntegrity::HmacSha256),
            32,
            [16, 16, 16],
        ),
        case(
            "aes-gcm",
            (EspEncryption::AesGcm16, EspIntegrity::None),
            20,
            [8, 4, 16],
        ),
        case(
            "aes256-gcm",
            (EspEncryption::AesGcm16, EspIntegrity::None),
            36,
            [8, 4, 16],
        ),
        case(
            "chacha20-poly1305",
            (EspEncryption::ChaCha20Poly1305, EspIntegrity::None),
            36,
            [8, 4, 16],
        ),
        case(
            "3des-sha1",
            (EspEncryption::TripleDes, EspIntegrity::HmacSha1),
            24,
            [8, 8, 12],
        ),
        case(
            "blowfish-sha1",
            (EspEncryption::Blowfish, EspIntegrity::HmacSha1),
            16,
            [8, 8, 12],
        ),
        case(
            "null-sha1",
            (EspEncryption::Null, EspIntegrity::HmacSha1),
            0,
            [0, 4, 12],
        ),
    ];

    /// The case of this name.
    pub fn of(name: &str) -> Option<&'static EspCase> {
        EspCase::ALL.iter().find(|case| case.name == name)
    }

    /// Encrypted bytes of a packet with this payload: padded with its trailer.
    pub const fn encrypted_bytes(&self, payload: usize) -> usize {
        (payload + ESP_TRAILER).div_ceil(self.block) * self.block
    }
}

/// An RTP packet in UDP and IPv4, bytes.
pub const fn clear_packet_bytes(voice: usize) -> usize {
    IPV4 + UDP + RTP + voice
}

/// The IPv4 packet of this many bytes of voice in RTP, UDP and ESP, bytes (RFC 4303 section 2, RFC 3948 section 2.1).
pub const fn packet_bytes(case: &EspCase, carriage: EspCarriage, voice: usize) -> usize {
    let sealed = match carriage.is_tunnel() {
        true => clear_packet_bytes(voice),
        false => UDP + RTP + voice,
    };
    let encapsulation = match carriage.is_encapsulated() {
        true => UDP,
        false => 0,
    };
    IPV4 + encapsulation + ESP_HEADER + case.iv + case.encrypted_bytes(sealed) + case.icv
}

/// Format of the packets without UDP encapsulation, for links in virtual time.
pub const fn tunnel_format(case: &EspCase, carriage: EspCarriage) -> TunnelFormat {
    let (outer, clear) = match carriage.is_tunnel() {
        true => (IPV4, 0),
        false => (0, IPV4),
    };
    TunnelFormat {
        header: outer + ESP_HEADER + case.iv,
        clear,
        trailer: ESP_TRAILER,
        block: case.block,
        check: case.icv,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(name: &str, carriage: EspCarriage, voice: usize) -> usize {
        packet_bytes(EspCase::of(name).unwrap(), carriage, voice)
    }

    /// Derived by hand: 20 ms of G.711 are 160 bytes, in RTP and UDP 180, in IP 200.
    #[test]
    fn packets_of_20_ms() {
        use EspCarriage::{Transport, TransportInUdp, Tunnel, TunnelInUdp};
        assert_eq!(clear_packet_bytes(160), 200);
        // RFC 3602: 182 bytes with the trailer are 12 blocks, 192; 20 + 8 + 16 + 192.
        assert_eq!(bytes("aes-cbc", Transport, 160), 236);
        // RFC 2404 and 2403 add 12.
        assert_eq!(bytes("aes-cbc-sha1", Transport, 160), 248);
        assert_eq!(bytes("aes-cbc-md5", Transport, 160), 248);
        // 202 bytes are 13 blocks, 208; 20 + 8 + 16 + 208 + 12.
        assert_eq!(bytes("aes-cbc-sha1", Tunnel, 160), 264);
        assert_eq!(bytes("aes-cbc-sha256", Tunnel, 160), 268);
        // RFC 4106: padded to 4, IV of 8, ICV of 16: 20 + 8 + 8 + 184 + 16 and 20 + 8 + 8 + 204 + 16.
        assert_eq!(bytes("aes-gcm", Transport, 160), 236);
        assert_eq!(bytes("aes-gcm", Tunnel, 160), 256);
        assert_eq!(bytes("chacha20-poly1305", Tunnel, 160), 256);
        // RFC 2451: blocks of 8: 20 + 8 + 8 + 184 + 12.
        assert_eq!(bytes("3des-sha1", Transport, 160), 232);
        // RFC 2410: 20 + 8 + 184 + 12.
        assert_eq!(bytes("null-sha1", Transport, 160), 224);
        // RFC 3948: 8 more.
        assert_eq!(bytes("aes-cbc-sha1", TransportInUdp, 160), 256);
        assert_eq!(bytes("aes-cbc-sha1", TunnelInUdp, 160), 272);
    }

    /// 10 ms are 80 bytes, 60 ms 480.
    #[test]
    fn packets_of_10_and_60_ms() {
        use EspCarriage::{Transport, Tunnel};
        // 102 with the trailer, 112 in blocks.
        assert_eq!(bytes("aes-cbc-sha1", Transport, 80), 168);
        // 122, 128.
        assert_eq!(bytes("aes-cbc-sha1", Tunnel, 80), 184);
        // 502, 512.
        assert_eq!(bytes("aes-cbc-sha1", Transport, 480), 568);
        // 522, 528.
        assert_eq!(bytes("aes-cbc-sha1", Tunnel, 480), 584);
    }

    #[test]
    fn lengths_agree_with_the_sealing_end() {
        for case in EspCase::ALL {
            for payload in 0..64 {
                let ours = 8 + case.iv + case.encrypted_bytes(payload) + case.icv;
                assert_eq!(ours, case.suite.packet_length(payload), "{}", case.name);
            }
        }
    }
}
