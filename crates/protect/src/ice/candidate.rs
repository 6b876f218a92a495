//! Candidates as session descriptions have them (RFC 8839 section 5.1), and the priorities of RFC 8445.

use core::fmt;
use std::net::{IpAddr, SocketAddr};

/// What kind of address a candidate is (RFC 8445 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An address of the host itself.
    Host,
    /// What a STUN server saw.
    ServerReflexive,
    /// What the peer saw.
    PeerReflexive,
    /// An address at a relay (TURN).
    Relayed,
}

impl Kind {
    /// The recommended type preference (RFC 8445 section 5.1.2.2).
    pub const fn preference(self) -> u32 {
        match self {
            Kind::Host => 126,
            Kind::PeerReflexive => 110,
            Kind::ServerReflexive => 100,
            Kind::Relayed => 0,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Kind::Host => "host",
            Kind::ServerReflexive => "srflx",
            Kind::PeerReflexive => "prflx",
            Kind::Relayed => "relay",
        }
    }
}

/// The priority of a candidate of ours (RFC 8445 section 5.1.2.1): `preference` tells the addresses of one agent apart, the first has
/// the highest; `component` is 1 for RTP and 2 for RTCP.
pub const fn priority(kind: Kind, preference: u16, component: u8) -> u32 {
    kind.preference() << 24 | (preference as u32) << 8 | (256 - component as u32)
}

/// The longest foundation (RFC 8839 section 5.1).
const FOUNDATION: usize = 32;

/// A transport address over UDP at which an agent may be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Candidates that share it are likely to work, or not to, together.
    pub foundation: String,
    /// 1 for RTP, 2 for RTCP.
    pub component: u8,
    /// The higher the better.
    pub priority: u32,
    /// Where.
    pub address: SocketAddr,
    /// What kind.
    pub kind: Kind,
}

impl Candidate {
    /// Reads the value of an `a=candidate` attribute. `None`: it is not one over UDP with an address that can be sent to; names
    /// (RFC 8828) are not looked up, for whoever has such a one is found as a peer-reflexive candidate.
    pub fn parse(value: &[u8]) -> Option<Candidate> {
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
            "host" => Kind::Host,
            "srflx" => Kind::ServerReflexive,
            "prflx" => Kind::PeerReflexive,
            "relay" => Kind::Relayed,
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
        right.then(|| Candidate {
            foundation: foundation.to_owned(),
            component,
            priority,
            address: SocketAddr::new(ip.to_canonical(), port),
            kind,
        })
    }
}

/// No group, no broadcast, no address that stands for all.
fn can_be_sent_to(ip: IpAddr) -> bool {
    let broadcast = matches!(ip.to_canonical(), IpAddr::V4(ip) if ip.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || broadcast)
}

impl fmt::Display for Candidate {
    /// As the value of an `a=candidate` attribute.
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
    fn attributes_as_others_write_them() {
        let host = b"1467250027 1 udp 2122260223 192.168.0.196 46243 typ host generation 0";
        let host = Candidate::parse(host).unwrap();
        assert_eq!(host.address, "192.168.0.196:46243".parse().unwrap());
        assert_eq!((host.priority, host.kind), (2_122_260_223, Kind::Host));
        assert_eq!(
            host.to_string(),
            "1467250027 1 UDP 2122260223 192.168.0.196 46243 typ host"
        );
        let reflexive = b"2 2 UDP 1694498814 2001:db8::5 45664 typ srflx raddr ::1 rport 9";
        let reflexive = Candidate::parse(reflexive).unwrap();
        assert_eq!(
            (reflexive.component, reflexive.kind),
            (2, Kind::ServerReflexive)
        );
        assert_eq!(priority(Kind::Host, 65_535, 1), 2_130_706_431);
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
            assert_eq!(Candidate::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
