//! Networks, protections and codecs of study C, with the study's own figures.

use crate::study::Reading;

/// A network of the study: a profile of `lab link`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StudyNetwork {
    /// Name in records.
    pub name: &'static str,
    /// Profile of the link.
    pub profile: &'static str,
    /// The study's words.
    pub label: &'static str,
}

/// The networks.
pub const NETWORKS: [StudyNetwork; 4] = [
    StudyNetwork {
        name: "wan-38",
        profile: "serial-38",
        label: "38 kbit/s",
    },
    StudyNetwork {
        name: "wan-64",
        profile: "serial-64",
        label: "64 kbit/s",
    },
    StudyNetwork {
        name: "lan-100",
        profile: "lan",
        label: "100 Mbit/s",
    },
    StudyNetwork {
        name: "long-distance",
        profile: "adsl2-perth-barcelona",
        label: "Perth to Barcelona",
    },
];

/// Means of protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tunnel {
    /// Packets in the clear.
    None,
    /// OpenVPN with a static key, this cipher and HMAC-SHA1.
    OpenVpn(&'static str),
    /// WireGuard: ChaCha20-Poly1305.
    WireGuard,
    /// strongSwan: IKEv2, ESP in UDP with AES-256-GCM in user space.
    StrongSwan,
    /// SRTP of this program: AES-128 in counter mode and HMAC-SHA1-80. The packets of the media are its own.
    Srtp,
    /// ESP of this program in tunnel mode, with the algorithms of this [`crate::esp::EspCase`].
    Esp(&'static str),
}

/// A protection of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StudyProtection {
    /// Name in records.
    pub name: &'static str,
    /// Name on the page.
    pub label: &'static str,
    /// A stateful firewall at both hosts.
    pub has_firewall: bool,
    /// The tunnel.
    pub tunnel: Tunnel,
    /// Rank of its security, 1 is best; 0: not ranked.
    pub security: u8,
    /// Reason of the rank.
    pub reason: &'static str,
    /// The study's ranks: security, latency, jitter, loss (table 2); 0: none.
    pub study_ranks: [u8; 4],
}

const fn vpn(
    name: &'static str,
    label: &'static str,
    cipher: &'static str,
    (security, reason): (u8, &'static str),
    study_ranks: [u8; 4],
) -> StudyProtection {
    StudyProtection {
        name,
        label,
        has_firewall: true,
        tunnel: Tunnel::OpenVpn(cipher),
        security,
        reason,
        study_ranks,
    }
}

const fn clear(name: &'static str, label: &'static str, has_firewall: bool) -> StudyProtection {
    StudyProtection {
        name,
        label,
        has_firewall,
        tunnel: Tunnel::None,
        security: 0,
        reason: "media in the clear",
        study_ranks: [0; 4],
    }
}

const fn beside(
    name: &'static str,
    label: &'static str,
    tunnel: Tunnel,
    (security, reason): (u8, &'static str),
) -> StudyProtection {
    StudyProtection {
        name,
        label,
        has_firewall: true,
        tunnel,
        security,
        reason,
        study_ranks: [0; 4],
    }
}

/// The protections.
pub const PROTECTIONS: [StudyProtection; 13] = [
    clear("none", "no security", false),
    clear("firewall", "firewall", true),
    vpn(
        "des",
        "DES",
        "DES-CBC",
        (6, "56-bit key, found by search within days since 1998"),
        [6, 6, 5, 1],
    ),
    vpn(
        "3des",
        "3DES",
        "DES-EDE3-CBC",
        (
            4,
            "112 bits of effective key; blocks of 64 bits (CVE-2016-2183); withdrawn by NIST in 2024",
        ),
        [5, 2, 2, 6],
    ),
    vpn(
        "aes-128",
        "AES-128",
        "AES-128-CBC",
        (2, "no practical attack; 128-bit key"),
        [2, 5, 6, 4],
    ),
    vpn(
        "aes-256",
        "AES-256",
        "AES-256-CBC",
        (1, "no practical attack; 256-bit key"),
        [1, 4, 4, 2],
    ),
    vpn(
        "blowfish",
        "Blowfish",
        "BF-CBC",
        (
            3,
            "no practical attack on the key; blocks of 64 bits (CVE-2016-2183)",
        ),
        [3, 3, 1, 5],
    ),
    vpn(
        "rc2",
        "RC2",
        "RC2-CBC",
        (5, "blocks of 64 bits; related-key attack (1997)"),
        [4, 1, 3, 3],
    ),
    beside(
        "wireguard",
        "WireGuard",
        Tunnel::WireGuard,
        (
            1,
            "authenticated encryption, 256-bit key, forward secrecy; not in the study",
        ),
    ),
    beside(
        "strongswan",
        "strongSwan",
        Tunnel::StrongSwan,
        (
            1,
            "authenticated encryption (AES-256-GCM), 256-bit key, forward secrecy; not in the study",
        ),
    ),
    beside(
        "srtp",
        "SRTP",
        Tunnel::Srtp,
        (
            2,
            "no practical attack; 128-bit key; the headers of RTP and the addresses are in the clear; not in the study",
        ),
    ),
    beside(
        "esp-aes-cbc-sha1",
        "ESP AES-128-CBC",
        Tunnel::Esp("aes-cbc-sha1"),
        (
            2,
            "no practical attack; 128-bit key, HMAC-SHA1-96; not in the study",
        ),
    ),
    beside(
        "esp-aes-gcm",
        "ESP AES-128-GCM",
        Tunnel::Esp("aes-gcm"),
        (2, "authenticated encryption; 128-bit key; not in the study"),
    ),
];

/// Protections that the study does not have: by programs of others, and by this program. Those of a group are measured
/// at the same time.
pub const BESIDE_THE_STUDY: [&[&str]; 2] = [
    &["wireguard", "strongswan"],
    &["srtp", "esp-aes-cbc-sha1", "esp-aes-gcm"],
];

/// Mark of these protections in tables and plots.
pub const NOT_OF_STUDY: &str = "*";

/// A name in tables and plots, with a mark for a protection that the study does not have.
pub fn marked(label: &str, is_of_study: bool) -> String {
    match is_of_study {
        true => label.to_owned(),
        false => format!("{label} {NOT_OF_STUDY}"),
    }
}

fn is_of_study(protection: &str) -> bool {
    !BESIDE_THE_STUDY
        .iter()
        .any(|group| group.contains(&protection))
}

impl StudyProtection {
    /// Whether the study has it.
    pub fn is_of_study(&self) -> bool {
        is_of_study(self.name)
    }

    /// Its name in tables and plots, with a mark if the study does not have it.
    pub fn marked(&self) -> String {
        marked(self.label, self.is_of_study())
    }

    /// Whether its tunnel is OpenVPN.
    pub const fn is_openvpn(&self) -> bool {
        matches!(self.tunnel, Tunnel::OpenVpn(_))
    }

    /// Neither its key nor its blocks are too short for new use.
    pub fn is_acceptable(&self) -> bool {
        self.security > 0 && self.security <= 2
    }
}

/// Frames of a codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StudyCodec {
    /// Name in records.
    pub name: &'static str,
    /// Name on the page.
    pub label: &'static str,
    /// RTP payload type.
    pub payload_type: u8,
    /// Bytes of a packet.
    pub bytes: usize,
    /// Packet time, milliseconds.
    pub packet_ms: u32,
    /// Clock rate, Hz.
    pub clock_hz: u32,
}

/// The codecs; the first one stands for that of the study.
pub const CODECS: [StudyCodec; 3] = [
    StudyCodec {
        name: "g723",
        label: "G.723.1 (6.3 kbit/s)",
        payload_type: 4,
        bytes: 24,
        packet_ms: 30,
        clock_hz: 8_000,
    },
    StudyCodec {
        name: "g729",
        label: "G.729",
        payload_type: 18,
        bytes: 20,
        packet_ms: 20,
        clock_hz: 8_000,
    },
    StudyCodec {
        name: "opus",
        label: "Opus (24 kbit/s)",
        payload_type: 111,
        bytes: 60,
        packet_ms: 20,
        clock_hz: 48_000,
    },
];

/// Figures measured in each cell.
pub const FIGURES: [(&str, &str); 3] = [("loss", "%"), ("latency", "ms"), ("jitter", "ms")];

/// The study's figure, as its text states it; its pictures have no readable values.
pub fn study_value(network: &str, protection: &str, figure: &str) -> Option<Reading> {
    use Reading::Number;
    let words = |text: &str| Reading::Words(text.to_owned());
    Some(match (network, figure, protection) {
        (_, _, other) if !is_of_study(other) => return None,
        ("wan-38", "loss", "3des") => Number(4.0),
        ("wan-38", "loss", "blowfish" | "aes-128" | "aes-256") => words("more than 10"),
        ("wan-38", "loss", _) => words("4 to 16"),
        ("wan-38", "latency", "blowfish" | "aes-128" | "aes-256") => {
            words("about 40 above the others, below 150")
        }
        ("wan-38", "latency", _) => words("below 150"),
        ("wan-64", "loss", "3des" | "firewall") => Number(4.0),
        ("wan-64", "loss", "aes-128" | "rc2") => words("below 1"),
        ("wan-64", "latency", _) => words("below 150"),
        ("wan-64", "jitter", "firewall") => Number(32.0),
        ("lan-100", "jitter", "none" | "firewall" | "3des") => words("almost 0"),
        ("lan-100", "loss", "aes-128" | "aes-256") => words("below 1"),
        ("long-distance", "loss", "none" | "des") => Number(1.6),
        ("long-distance", "loss", "3des") => Number(3.5),
        ("long-distance", "loss", _) => words("1.6 to 3.5"),
        ("long-distance", "latency", _) => words("6 times 150"),
        ("long-distance", "jitter", _) => words("150 times 0.5"),
        _ => return None,
    })
}

/// The study's words on the speed of a cipher (table 1).
pub fn study_speed(protection: &str) -> Option<Reading> {
    let words = match protection {
        "rc2" => "very fast",
        "blowfish" | "aes-128" | "aes-256" => "fast",
        "des" => "slow",
        "3des" => "very slow",
        _ => return None,
    };
    Some(Reading::Words(words.to_owned()))
}

/// Differences of the set-up in real time from that of the study.
pub const DIFFERS: [&str; 4] = [
    "emulated lines and Linux hosts in one machine instead of Cisco 2500 routers, Windows hosts and the Internet",
    "nftables (stateful) instead of Windows Firewall",
    "OpenVPN 2.6 with a static key; the study does not name version, mode or authentication",
    "WireGuard, strongSwan, SRTP and ESP are beside the study; SRTP and ESP are those of this program, with manual keys",
];

/// Differences of a simulation from the study, and from a measurement.
pub const SIMULATION_DIFFERS: [&str; 4] = [
    "a simulation in virtual time: no program, kernel or host takes part; only line, queue, bytes and ciphers have an effect",
    "the tunnels are packets of the size that their formats give (OpenVPN with a static key, CBC and HMAC-SHA1; WireGuard; ESP), without handshakes; SRTP protects the packets",
    "time in a host is that of cipher and HMAC alone, from speeds measured once; reading, writing and scheduling of a tunnel program are not in it",
    "the firewall changes no packet and takes no time",
];

/// Differences of both from the study.
pub const COMMON_DIFFERS: [&str; 4] = [
    "frames of 24 bytes each 30 ms (G.723.1) without a codec; the study used NetMeeting and names none",
    "no H.323 signalling and no video; RTCP each 5 s",
    "delay, jitter and loss of the long distance are set from the study's own figures; packets keep their order there, which lengthens the delay and lowers the jitter: only the change by a protection is a result",
    "jitter is that of RFC 3550; the study does not define its measure",
];
