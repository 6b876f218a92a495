//! Attributes of media lines, parsed on demand.

use super::{Connection, Media, Section, parse_ip};
use crate::sip_text::{next_word, number};
use memchr::memchr;
use std::net::{IpAddr, SocketAddr};

/// The directions of media (RFC 8866 section 6.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Both sides send (`sendrecv`).
    #[default]
    SendRecv,
    /// Only the author of the description sends (`sendonly`).
    SendOnly,
    /// Only the reader of the description sends (`recvonly`).
    RecvOnly,
    /// Neither side sends (`inactive`).
    Inactive,
}

impl Direction {
    /// The direction of this attribute name.
    pub fn from_name(name: &[u8]) -> Option<Direction> {
        match name {
            b"sendrecv" => Some(Direction::SendRecv),
            b"sendonly" => Some(Direction::SendOnly),
            b"recvonly" => Some(Direction::RecvOnly),
            b"inactive" => Some(Direction::Inactive),
            _ => None,
        }
    }

    /// The attribute's name.
    pub const fn name(self) -> &'static str {
        match self {
            Direction::SendRecv => "sendrecv",
            Direction::SendOnly => "sendonly",
            Direction::RecvOnly => "recvonly",
            Direction::Inactive => "inactive",
        }
    }

    /// The direction in which the author sends and receives as given.
    pub const fn from_flags(sends: bool, receives: bool) -> Direction {
        match (sends, receives) {
            (true, true) => Direction::SendRecv,
            (true, false) => Direction::SendOnly,
            (false, true) => Direction::RecvOnly,
            (false, false) => Direction::Inactive,
        }
    }

    /// Whether the author sends.
    pub const fn sends(self) -> bool {
        matches!(self, Direction::SendRecv | Direction::SendOnly)
    }

    /// Whether the author receives.
    pub const fn receives(self) -> bool {
        matches!(self, Direction::SendRecv | Direction::RecvOnly)
    }

    /// The same direction from the other side's view.
    pub const fn reversed(self) -> Direction {
        Direction::from_flags(self.receives(), self.sends())
    }

    /// The direction to answer to this offer if `preferred` is preferred (RFC 3264 section 6.1).
    pub const fn answer(self, preferred: Direction) -> Direction {
        Direction::from_flags(
            self.receives() && preferred.sends(),
            self.sends() && preferred.receives(),
        )
    }
}

/// `a=rtpmap` (RFC 8866 section 6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtpMap<'a> {
    /// Payload type, 0 to 127.
    pub payload_type: u8,
    /// Encoding name, compared without regard to case.
    pub name: &'a [u8],
    /// RTP clock rate in Hz.
    pub clock_rate: u32,
    /// Channels, 1 if not specified.
    pub channels: u8,
}

impl<'a> RtpMap<'a> {
    fn parse(value: &'a [u8]) -> Option<RtpMap<'a>> {
        let (payload_type, rest) = next_word(value);
        let mut parts = rest.trim_ascii().split(|byte| *byte == b'/');
        let name = parts.next().filter(|name| !name.is_empty())?;
        let clock_rate = u32::try_from(number(parts.next()?)?).ok()?;
        let channels = match parts.next() {
            Some(channels) => u8::try_from(number(channels)?).ok()?,
            None => 1,
        };
        Some(RtpMap {
            payload_type: payload_type_of(payload_type)?,
            name,
            clock_rate,
            channels,
        })
    }
}

fn payload_type_of(text: &[u8]) -> Option<u8> {
    number(text)
        .filter(|number| *number < 128)
        .map(|number| number as u8)
}

/// A format of an RTP media line with its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codec<'a> {
    /// Payload type.
    pub payload_type: u8,
    /// Encoding name.
    pub name: &'a [u8],
    /// RTP clock rate in Hz.
    pub clock_rate: u32,
    /// Channels.
    pub channels: u8,
    /// Format parameters.
    pub fmtp: Option<&'a [u8]>,
}

impl Codec<'_> {
    /// Whether encoding, clock rate and channels are equal, regardless of the payload type.
    pub fn same_encoding(&self, other: &Codec<'_>) -> bool {
        self.name.eq_ignore_ascii_case(other.name)
            && self.clock_rate == other.clock_rate
            && self.channels == other.channels
    }
}

/// Static payload types (RFC 3551 section 6).
const STATIC_PAYLOAD_TYPES: &[(u8, &str, u32, u8)] = &[
    (0, "PCMU", 8000, 1),
    (3, "GSM", 8000, 1),
    (4, "G723", 8000, 1),
    (5, "DVI4", 8000, 1),
    (6, "DVI4", 16000, 1),
    (7, "LPC", 8000, 1),
    (8, "PCMA", 8000, 1),
    (9, "G722", 8000, 1),
    (10, "L16", 44100, 2),
    (11, "L16", 44100, 1),
    (12, "QCELP", 8000, 1),
    (13, "CN", 8000, 1),
    (14, "MPA", 90000, 1),
    (15, "G728", 8000, 1),
    (16, "DVI4", 11025, 1),
    (17, "DVI4", 22050, 1),
    (18, "G729", 8000, 1),
    (25, "CelB", 90000, 1),
    (26, "JPEG", 90000, 1),
    (28, "nv", 90000, 1),
    (31, "H261", 90000, 1),
    (32, "MPV", 90000, 1),
    (33, "MP2T", 90000, 1),
    (34, "H263", 90000, 1),
];

/// Destination of RTCP (RFC 3605).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rtcp<'a> {
    /// The port.
    pub port: u16,
    /// The address, if specified.
    pub connection: Option<Connection<'a>>,
}

impl<'a> Rtcp<'a> {
    pub(super) fn parse(value: &'a [u8]) -> Option<Rtcp<'a>> {
        let (port, rest) = next_word(value);
        let connection = match rest.trim_ascii() {
            [] => None,
            rest => Some(Connection::parse(rest)?),
        };
        Some(Rtcp {
            port: u16::try_from(number(port)?).ok()?,
            connection,
        })
    }
}

/// An ICE candidate (RFC 8839 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Foundation.
    pub foundation: &'a [u8],
    /// 1 RTP, 2 RTCP.
    pub component: u16,
    /// `UDP` or `TCP`.
    pub transport: &'a [u8],
    /// Priority.
    pub priority: u32,
    /// Address or name.
    pub address: &'a [u8],
    /// Port.
    pub port: u16,
    /// `host`, `srflx`, `prflx`, `relay`.
    pub kind: &'a [u8],
    /// The extensions.
    pub rest: &'a [u8],
}

impl<'a> Candidate<'a> {
    /// Parses the attribute's value.
    pub fn parse(value: &'a [u8]) -> Option<Candidate<'a>> {
        let (foundation, rest) = next_word(value);
        let (component, rest) = next_word(rest);
        let (transport, rest) = next_word(rest);
        let (priority, rest) = next_word(rest);
        let (address, rest) = next_word(rest);
        let (port, rest) = next_word(rest);
        let (typ, rest) = next_word(rest);
        let (kind, rest) = next_word(rest);
        (typ == b"typ" && !kind.is_empty()).then_some(Candidate {
            foundation,
            component: u16::try_from(number(component)?).ok()?,
            transport,
            priority: u32::try_from(number(priority)?).ok()?,
            address,
            port: u16::try_from(number(port)?).ok()?,
            kind,
            rest: rest.trim_ascii(),
        })
    }

    /// Address and port; `None` for a name.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(parse_ip(self.address)?, self.port))
    }
}

/// SDES keying (RFC 4568).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Crypto<'a> {
    /// Tag.
    pub tag: u32,
    /// Suite, for example `AES_CM_128_HMAC_SHA1_80`.
    pub suite: &'a [u8],
    /// Key parameters and session parameters. Secret: never logged.
    pub parameters: &'a [u8],
}

impl std::fmt::Debug for Crypto<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "crypto:{} {} (key)", self.tag, self.suite.escape_ascii())
    }
}

impl<'a> Crypto<'a> {
    /// Parses the attribute's value.
    pub fn parse(value: &'a [u8]) -> Option<Crypto<'a>> {
        let (tag, rest) = next_word(value);
        let (suite, parameters) = next_word(rest);
        (tag.len() <= 9 && !suite.is_empty() && !parameters.is_empty()).then_some(Crypto {
            tag: u32::try_from(number(tag)?).ok()?,
            suite,
            parameters: parameters.trim_ascii(),
        })
    }
}

/// A certificate's fingerprint (RFC 8122).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint<'a> {
    /// Hash function, for example `sha-256`.
    pub hash: &'a [u8],
    /// Pairs of hexadecimal digits with colons.
    pub value: &'a [u8],
}

/// The side that opens the connection (RFC 4145; for DTLS RFC 5763).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Setup {
    /// The author (`active`).
    Active,
    /// The reader (`passive`).
    Passive,
    /// Either (`actpass`).
    ActPass,
    /// Neither for now (`holdconn`).
    HoldConn,
}

/// A group of media (RFC 5888).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaGroup<'a> {
    /// For example `BUNDLE`.
    pub semantics: &'a [u8],
    mids: &'a [u8],
}

impl<'a> MediaGroup<'a> {
    pub(super) fn parse(value: &'a [u8]) -> Option<MediaGroup<'a>> {
        let (semantics, mids) = next_word(value);
        (!semantics.is_empty()).then_some(MediaGroup { semantics, mids })
    }

    /// The `mid`s.
    pub fn mids(&self) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        words(self.mids)
    }
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    text.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
}

impl<'s, 'a> Media<'s, 'a> {
    /// Whether it is refused or disabled (port 0).
    pub fn is_rejected(&self) -> bool {
        self.line.port == 0
    }

    /// Whether it is RTP of any profile.
    pub fn is_rtp(&self) -> bool {
        let protocol = self.line.protocol;
        let contains = |part: &[u8]| {
            protocol
                .split(|byte| *byte == b'/')
                .any(|found| found == part)
        };
        contains(b"RTP")
    }

    /// Whether the profile is a secure one (RTP/SAVP, RTP/SAVPF, UDP/TLS/...).
    pub fn is_secure(&self) -> bool {
        self.line
            .protocol
            .split(|byte| *byte == b'/')
            .any(|part| matches!(part, b"SAVP" | b"SAVPF" | b"TLS" | b"DTLS"))
    }

    /// The formats, unmodified.
    pub fn formats(&self) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        words(self.line.formats)
    }

    /// The connection address that applies: that of the line, else that of the session.
    pub fn connection(&self) -> Option<Connection<'a>> {
        self.section
            .connection()
            .or_else(|| self.session().connection())
    }

    /// The destination of RTP; `None` for a rejected line, without address, or with a name as address.
    pub fn rtp_address(&self) -> Option<SocketAddr> {
        (!self.is_rejected()).then_some(())?;
        Some(SocketAddr::new(self.connection()?.ip()?, self.line.port))
    }

    /// The destination of RTCP: `a=rtcp`, else the RTP port with rtcp-mux, else the port above (RFC 3550 section 11).
    /// The result for rtcp-mux requires that both sides have agreed on it.
    pub fn rtcp_address(&self) -> Option<SocketAddr> {
        let rtp = self.rtp_address()?;
        match self.rtcp() {
            Some(Rtcp { port: 0, .. }) => None,
            Some(rtcp) => {
                let address: IpAddr = match rtcp.connection {
                    Some(connection) => connection.ip()?,
                    None => rtp.ip(),
                };
                Some(SocketAddr::new(address, rtcp.port))
            }
            None if self.has_rtcp_mux() => Some(rtp),
            None => Some(SocketAddr::new(rtp.ip(), rtp.port().checked_add(1)?)),
        }
    }

    /// `a=rtcp`, if well-formed.
    pub fn rtcp(&self) -> Option<Rtcp<'a>> {
        Rtcp::parse(self.section.attribute(b"rtcp")?)
    }

    /// Whether RTP and RTCP may share the port (RFC 5761).
    pub fn has_rtcp_mux(&self) -> bool {
        self.section.has(b"rtcp-mux") || self.section.has(b"rtcp-mux-only")
    }

    /// The direction: that of the line, else that of the session, else sendrecv.
    pub fn direction(&self) -> Direction {
        self.section
            .direction()
            .or_else(|| self.session().direction())
            .unwrap_or_default()
    }

    /// The direction; a `c=` of 0.0.0.0 counts as not receiving (RFC 3264 section 8.4).
    pub fn effective_direction(&self) -> Direction {
        let receives = !self
            .connection()
            .is_some_and(|connection| connection.is_unspecified());
        let direction = self.direction();
        Direction::from_flags(direction.sends(), direction.receives() && receives)
    }

    /// Whether the author has put the reader on hold: the author does not receive.
    pub fn is_hold(&self) -> bool {
        !self.is_rejected() && !self.effective_direction().receives()
    }

    /// The well-formed `a=rtpmap` lines.
    pub fn rtpmaps(&self) -> impl Iterator<Item = RtpMap<'a>> + Clone + use<'s, 'a> {
        self.section.attributes(b"rtpmap").filter_map(RtpMap::parse)
    }

    /// Format parameters of a payload type.
    pub fn fmtp(&self, payload_type: u8) -> Option<&'a [u8]> {
        self.section.attributes(b"fmtp").find_map(|value| {
            let (format, parameters) = next_word(value);
            (payload_type_of(format)? == payload_type).then_some(parameters.trim_ascii())
        })
    }

    /// The formats of an RTP line in order, with rtpmap or static meaning; others are skipped.
    pub fn codecs(&self) -> impl Iterator<Item = Codec<'a>> + Clone + use<'s, 'a> {
        let media = *self;
        self.formats()
            .take(128)
            .filter_map(payload_type_of)
            .filter_map(move |payload_type| media.codec(payload_type))
    }

    /// The codec of a payload type in this line.
    pub fn codec(&self, payload_type: u8) -> Option<Codec<'a>> {
        let fmtp = self.fmtp(payload_type);
        let mapped = self.rtpmaps().find(|map| map.payload_type == payload_type);
        let (name, clock_rate, channels) = match mapped {
            Some(map) => (map.name, map.clock_rate, map.channels),
            None => {
                let (_, name, clock_rate, channels) = STATIC_PAYLOAD_TYPES
                    .iter()
                    .find(|entry| entry.0 == payload_type)?;
                (name.as_bytes(), *clock_rate, *channels)
            }
        };
        Some(Codec {
            payload_type,
            name,
            clock_rate,
            channels,
            fmtp,
        })
    }

    /// Packet time in milliseconds; `None` unless a whole number of at least one.
    pub fn ptime(&self) -> Option<u32> {
        let value = self.section.attribute(b"ptime")?.trim_ascii();
        let whole = value.get(..memchr(b'.', value).unwrap_or(value.len()))?;
        u32::try_from(number(whole)?)
            .ok()
            .filter(|ptime| *ptime > 0)
    }

    /// The media stream identifier (RFC 5888).
    pub fn mid(&self) -> Option<&'a [u8]> {
        self.section.attribute(b"mid").map(<[u8]>::trim_ascii)
    }

    /// The well-formed ICE candidates.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate<'a>> + Clone + use<'s, 'a> {
        self.section
            .attributes(b"candidate")
            .filter_map(Candidate::parse)
    }

    /// The well-formed SDES keys.
    pub fn cryptos(&self) -> impl Iterator<Item = Crypto<'a>> + Clone + use<'s, 'a> {
        self.section.attributes(b"crypto").filter_map(Crypto::parse)
    }

    /// The fingerprint of the line, else of the session.
    pub fn fingerprint(&self) -> Option<Fingerprint<'a>> {
        let value = self.inherited(b"fingerprint")?;
        let (hash, value) = next_word(value);
        (!value.is_empty()).then_some(Fingerprint {
            hash,
            value: value.trim_ascii(),
        })
    }

    /// The setup role of the line, else of the session.
    pub fn setup(&self) -> Option<Setup> {
        match self.inherited(b"setup")?.trim_ascii() {
            b"active" => Some(Setup::Active),
            b"passive" => Some(Setup::Passive),
            b"actpass" => Some(Setup::ActPass),
            b"holdconn" => Some(Setup::HoldConn),
            _ => None,
        }
    }

    fn inherited(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.section
            .attribute(name)
            .or_else(|| self.session().attribute(name))
    }

    fn session(&self) -> Section<'s, 'a> {
        self.section.sdp.session()
    }
}
