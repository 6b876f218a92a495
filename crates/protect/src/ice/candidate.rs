//! Candidates in session descriptions (RFC 8839 section 5.1), and the priorities of RFC 8445.

use core::fmt;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// Type of a candidate (RFC 8445 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CandidateType {
    /// A local address of the host.
    Host,
    /// The address seen by a STUN server.
    ServerReflexive,
    /// The address seen by the peer.
    PeerReflexive,
    /// An address of a relay (TURN).
    Relayed,
}

impl CandidateType {
    /// The recommended type preference (RFC 8445 section 5.1.2.2).
    pub const fn preference(self) -> u32 {
        match self {
            CandidateType::Host => 126,
            CandidateType::PeerReflexive => 110,
            CandidateType::ServerReflexive => 100,
            CandidateType::Relayed => 0,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            CandidateType::Host => "host",
            CandidateType::ServerReflexive => "srflx",
            CandidateType::PeerReflexive => "prflx",
            CandidateType::Relayed => "relay",
        }
    }
}

/// Priority of a local candidate (RFC 8445 section 5.1.2.1): `preference` distinguishes the addresses of one agent,
/// highest first; `component` is 1 for RTP and 2 for RTCP.
pub const fn priority(kind: CandidateType, preference: u16, component: u8) -> u32 {
    kind.preference() << 24 | (preference as u32) << 8 | (256 - component as u32)
}

/// Length limit of a foundation (RFC 8839 section 5.1).
const FOUNDATION: usize = 32;

/// A UDP transport address of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IceCandidate {
    /// Candidates with the same foundation are likely to succeed or fail together.
    pub foundation: String,
    /// 1 for RTP, 2 for RTCP.
    pub component: u8,
    /// Higher is better.
    pub priority: u32,
    /// Transport address.
    pub address: SocketAddr,
    /// Type.
    pub kind: CandidateType,
}

impl IceCandidate {
    /// Parses the value of an `a=candidate` attribute. `None` if it is not UDP or has no valid destination address.
    /// Host names (RFC 8828) are not resolved: such a peer is found as a peer-reflexive candidate.
    pub fn parse(value: &[u8]) -> Option<IceCandidate> {
        let text = std::str::from_utf8(value).ok()?;
        let mut words = text.split_ascii_whitespace();
        let foundation = words.next()?;
        let component: u8 = words.next()?.parse().ok()?;
        let udp = words.next()?.eq_ignore_ascii_case("udp");
        let priority: u32 = words.next()?.parse().ok()?;
        let ip: IpAddr = words.next()?.parse().ok()?;
        let port: u16 = words.next()?.parse().ok()?;
        let typed = words.next()? == "typ";
        let kind = match words.next()? {
            "host" => CandidateType::Host,
            "srflx" => CandidateType::ServerReflexive,
            "prflx" => CandidateType::PeerReflexive,
            "relay" => CandidateType::Relayed,
            _ => return None,
        };
        let right = udp
            && typed
            && (1..=FOUNDATION).contains(&foundation.len())
            && foundation
                .bytes()
                .all(|byte| super::ICE_CHARS.contains(&byte))
            && component > 0
            && priority > 0
            && port > 0
            && can_be_sent_to(ip);
        right.then(|| IceCandidate {
            foundation: foundation.to_owned(),
            component,
            priority,
            address: SocketAddr::new(ip.to_canonical(), port),
            kind,
        })
    }
}

/// Whether the address is neither multicast nor broadcast nor unspecified.
fn can_be_sent_to(ip: IpAddr) -> bool {
    let broadcast = matches!(ip.to_canonical(), IpAddr::V4(ip) if ip.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || broadcast)
}

impl fmt::Display for IceCandidate {
    /// The value of an `a=candidate` attribute.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ip, port) = (self.address.ip().to_canonical(), self.address.port());
        write!(
            f,
            "{} {} UDP {} {ip} {port} typ {}",
            self.foundation,
            self.component,
            self.priority,
            self.kind.name()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_of_other_implementations_are_parsed() {
        let host = b"1467250027 1 udp 2122260223 192.168.0.196 46243 typ host generation 0";
        let host = IceCandidate::parse(host).unwrap();
        assert_eq!(host.address, "192.168.0.196:46243".parse().unwrap());
        assert_eq!(
            (host.priority, host.kind),
            (2_122_260_223, CandidateType::Host)
        );
        assert_eq!(
            host.to_string(),
            "1467250027 1 UDP 2122260223 192.168.0.196 46243 typ host"
        );
        let reflexive = b"2 2 UDP 1694498814 2001:db8::5 45664 typ srflx raddr ::1 rport 9";
        let reflexive = IceCandidate::parse(reflexive).unwrap();
        assert_eq!(
            (reflexive.component, reflexive.kind),
            (2, CandidateType::ServerReflexive)
        );
        assert_eq!(priority(CandidateType::Host, 65_535, 1), 2_130_706_431);
        for bad in [
            "1 1 tcp 2122260223 192.0.2.1 9 typ host tcptype active",
            "1 1 udp 2122260223 4f2c-1.local 9 typ host",
            "1 1 udp 2122260223 192.0.2.1 0 typ host",
            "1 1 udp 2122260223 0.0.0.0 9 typ host",
            "1 1 udp 2122260223 224.0.0.1 9 typ host",
            "1 1 udp 2122260223 255.255.255.255 9 typ host",
            "1 1 udp 4294967296 192.0.2.1 9 typ host",
            "1 0 udp 1 192.0.2.1 9 typ host",
            "1 1 udp 1 192.0.2.1 9 typ other",
            "1 1 udp 1 192.0.2.1 9 host",
            "123456789012345678901234567890123 1 udp 1 192.0.2.1 9 typ host",
            "a:b 1 udp 1 192.0.2.1 9 typ host",
            "",
        ] {
            assert_eq!(IceCandidate::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
