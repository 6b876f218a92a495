//! Parsing and rewriting of session descriptions for anchoring (RFC 8866): addresses, ports, and attributes that
//! would let media bypass the border. All other lines are kept in their order.

use engine::Reason;
use media::Carriage as MediaCarriage;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::net::{IpAddr, SocketAddr};

/// Media lines at most: no known application has more, and each costs ports.
pub const MAX_MEDIA: usize = 16;

/// Transport of a media line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LineTransport {
    /// RTP and RTCP over UDP, with or without SRTP.
    Rtp,
    /// Datagrams that are not RTP: T.38 UDPTL, BFCP over UDP, SCTP over DTLS.
    Datagrams,
    /// Streams (MSRP, BFCP over TCP), which cannot be anchored.
    Stream,
}

impl LineTransport {
    /// The forwarder's equivalent; `None` for streams.
    pub fn forwarded(self) -> Option<MediaCarriage> {
        match self {
            LineTransport::Rtp => Some(MediaCarriage::Rtp),
            LineTransport::Datagrams => Some(MediaCarriage::Datagrams),
            LineTransport::Stream => None,
        }
    }
}

/// Direction of media, from the point of view of the description's sender (RFC 3264 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaDirection {
    /// The sender of the description sends media.
    pub sends: bool,
    /// The sender of the description receives media.
    pub receives: bool,
}

/// Clock rates kept per line at most.
const MAX_RATES: usize = 16;

/// Parsed fields of one `m=` line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaFacts {
    /// Port; zero for a rejected or disabled line.
    pub port: u16,
    /// Transport.
    pub carriage: LineTransport,
    /// Connection address; `None` for a name, multicast or a missing one.
    pub address: Option<IpAddr>,
    /// Port (and address, if any) of RTCP (RFC 3605).
    pub rtcp: Option<(u16, Option<IpAddr>)>,
    /// `a=rtcp-mux` (RFC 5761).
    pub mux: bool,
    /// SRTP by its profile, or offered by keys or fingerprints (RFC 8643); or ZRTP.
    pub encrypted: bool,
    /// Direction of the media.
    pub direction: MediaDirection,
    /// Payload types with their clock rates (`a=rtpmap`).
    pub clock_rates: SmallVec<[(u8, u32); 2]>,
    /// Dynamic payload types whose encoding has a quality model.
    #[serde(with = "crate::encodings::saved")]
    pub encodings: SmallVec<[(u8, &'static str); 1]>,
    /// Payload types that are not ordinary media.
    pub special: SmallVec<[u8; 4]>,
}

impl MediaFacts {
    /// Hold as in RFC 2543: the connection address is zero.
    pub fn is_zero_held(&self) -> bool {
        self.address.is_some_and(|address| address.is_unspecified())
    }

    /// RTP address; `None` for hold by a zero address, disabled lines and unusable addresses.
    pub fn rtp(&self) -> Option<SocketAddr> {
        let address = self.address.filter(|address| !address.is_unspecified())?;
        (self.port != 0).then(|| SocketAddr::new(address, self.port))
    }

    /// RTCP address; `mux`: multiplexing is agreed. If only one side has offered it, RTCP has its own port (RFC 5761
    /// section 5.1.1).
    pub fn rtcp(&self, mux: bool) -> Option<SocketAddr> {
        let rtp = self.rtp()?;
        if mux {
            return Some(rtp);
        }
        match self.rtcp {
            Some((port, address)) => {
                (port != 0).then(|| SocketAddr::new(address.unwrap_or(rtp.ip()), port))
            }
            None => rtp
                .port()
                .checked_add(1)
                .map(|port| SocketAddr::new(rtp.ip(), port)),
        }
    }
}

/// Reason why a description cannot be anchored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BadSdp {
    /// Not a session description: does not begin with `v=0`.
    NotSdp,
    /// An `m=` line that cannot be parsed.
    MediaLine,
    /// More than [`MAX_MEDIA`] media lines.
    TooManyMedia,
    /// A media line in use has no `c=` line with a usable address, and the session has none (RFC 8866 section 5.7).
    NoConnection,
}

impl BadSdp {
    /// The declared reason.
    pub fn reason(self) -> Reason {
        match self {
            BadSdp::NotSdp => Reason::NotSdp,
            BadSdp::MediaLine => Reason::BadMediaLine,
            BadSdp::TooManyMedia => Reason::TooManyMediaLines,
            BadSdp::NoConnection => Reason::NoConnectionLine,
        }
    }
}

/// Parsed media lines of a description.
pub type ParsedLines = SmallVec<[MediaFacts; 2]>;

/// Parses the fields that anchoring needs.
pub fn parse_media(sdp: &[u8]) -> Result<ParsedLines, BadSdp> {
    if !sdp.starts_with(b"v=0") {
        return Err(BadSdp::NotSdp);
    }
    let mut media = ParsedLines::new();
    let mut session_address = None;
    // Lines in use without a connection, as bits; without a session-level connection each line needs its own.
    let mut session_connected = false;
    let mut unconnected = 0u32;
    let mut session_direction = MediaDirection {
        sends: true,
        receives: true,
    };
    let mut session_encrypted = false;
    for raw in sdp.split_inclusive(|&byte| byte == b'\n') {
        let line = raw.trim_ascii_end();
        match line {
            [b'm', b'=', rest @ ..] => {
                if media.len() >= MAX_MEDIA {
                    return Err(BadSdp::TooManyMedia);
                }
                let (port, carriage) = media_line(rest).ok_or(BadSdp::MediaLine)?;
                let encrypted = session_encrypted || has_secure_profile(rest);
                // A rejected or disabled line needs no address.
                if port != 0 && !session_connected {
                    unconnected |= 1 << media.len();
                }
                media.push(MediaFacts {
                    port,
                    carriage,
                    address: session_address,
                    rtcp: None,
                    mux: false,
                    encrypted,
                    direction: session_direction,
                    clock_rates: SmallVec::new(),
                    encodings: SmallVec::new(),
                    special: SmallVec::new(),
                });
            }
            [b'c', b'=', rest @ ..] => {
                let connected = is_connection(rest);
                match media.len().checked_sub(1).zip(media.last_mut()) {
                    Some((index, media)) => {
                        media.address = connection(rest);
                        match connected {
                            true => unconnected &= !(1 << index),
                            false if media.port != 0 => unconnected |= 1 << index,
                            false => {}
                        }
                    }
                    None => {
                        session_address = connection(rest);
                        session_connected |= connected;
                    }
                }
            }
            [b'a', b'=', rest @ ..] => {
                let direction = match media.last_mut() {
                    Some(media) => {
                        attribute(rest, media);
                        &mut media.direction
                    }
                    None => {
                        session_encrypted |= has_keys(rest);
                        &mut session_direction
                    }
                };
                if let Some(new) = direction_of(rest) {
                    *direction = new;
                }
            }
            _ => {}
        }
    }
    match unconnected {
        0 => Ok(media),
        _ => Err(BadSdp::NoConnection),
    }
}

fn attribute(attribute: &[u8], media: &mut MediaFacts) {
    media.encrypted |= has_keys(attribute);
    if attribute == b"rtcp-mux" {
        media.mux = true;
    } else if let Some(rest) = attribute.strip_prefix(b"rtcp:") {
        let mut words = words(rest);
        let port = words.next().and_then(number);
        let address = words.nth(2).and_then(address);
        media.rtcp = port.map(|port| (port, address));
    } else if let Some(rest) = attribute.strip_prefix(b"rtpmap:")
        && media.clock_rates.len() < MAX_RATES
        && let Some((name, rate)) = mapping(rest)
    {
        media.clock_rates.push(rate);
        if let Some(name) = encoding(name, rate.0) {
            media.encodings.push((rate.0, name));
        }
        if SPECIAL
            .iter()
            .any(|existing| name.eq_ignore_ascii_case(existing))
        {
            media.special.push(rate.0);
        }
    }
}

/// Encodings that are not ordinary media: digits and tones (RFC 4733), comfort noise (RFC 3389), redundancy and
/// repair.
pub(crate) const SPECIAL: [&[u8]; 6] = [
    b"telephone-event",
    b"tone",
    b"CN",
    b"red",
    b"ulpfec",
    b"rtx",
];

/// Name, and payload type with clock rate, of `96 opus/48000/2`.
pub(crate) fn mapping(rest: &[u8]) -> Option<(&[u8], (u8, u32))> {
    let mut words = words(rest);
    let payload_type = u8::try_from(words.next().and_then(number)?).ok()?;
    let mut parts = words.next()?.split(|&byte| byte == b'/');
    let name = parts.next()?;
    let rate = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    Some((name, (payload_type, rate)))
}

/// The encoding of a dynamic payload type, if it has a quality model.
fn encoding(name: &[u8], payload_type: u8) -> Option<&'static str> {
    if wire::rtp::static_payload_type(payload_type).is_some() {
        return None;
    }
    media::quality::encoding_name(std::str::from_utf8(name).ok()?)
}

fn direction_of(attribute: &[u8]) -> Option<MediaDirection> {
    let (sends, receives) = match attribute {
        b"sendrecv" => (true, true),
        b"sendonly" => (true, false),
        b"recvonly" => (false, true),
        b"inactive" => (false, false),
        _ => return None,
    };
    Some(MediaDirection { sends, receives })
}

/// Whether an attribute has keys of SRTP, or announces an agreement on them.
fn has_keys(attribute: &[u8]) -> bool {
    let names: [&[u8]; 4] = [b"crypto:", b"fingerprint:", b"key-mgmt:", b"zrtp-hash:"];
    names.iter().any(|name| attribute.starts_with(name))
}

/// Whether the value of an `m=` line has a profile of SRTP.
fn has_secure_profile(rest: &[u8]) -> bool {
    let protocol = words(rest).nth(2).unwrap_or_default();
    protocol
        .split(|&byte| byte == b'/')
        .any(|piece| piece.eq_ignore_ascii_case(b"SAVP") || piece.eq_ignore_ascii_case(b"SAVPF"))
}

/// Port and transport in the value of an `m=` line.
pub(crate) fn media_line(rest: &[u8]) -> Option<(u16, LineTransport)> {
    let mut words = words(rest);
    words.next()?;
    let port = words.next()?;
    let port = port.split(|&byte| byte == b'/').next().and_then(number)?;
    let protocol = words.next()?;
    let contains = |part: &[u8]| {
        protocol
            .split(|&byte| byte == b'/')
            .any(|piece| piece.eq_ignore_ascii_case(part))
    };
    let carriage = if contains(b"TCP") {
        LineTransport::Stream
    } else if contains(b"RTP") {
        LineTransport::Rtp
    } else if contains(b"udptl") || contains(b"UDP") || contains(b"DTLS") {
        LineTransport::Datagrams
    } else {
        LineTransport::Stream
    };
    Some((port, carriage))
}

/// The words of a line, separated by spaces.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b' ')
        .filter(|word| !word.is_empty())
}

fn number(digits: &[u8]) -> Option<u16> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn address(word: &[u8]) -> Option<IpAddr> {
    // A multicast TTL (`/127`) may follow.
    let word = word.split(|&byte| byte == b'/').next()?;
    let address: IpAddr = std::str::from_utf8(word).ok()?.parse().ok()?;
    (!address.is_multicast()).then_some(address)
}

/// Whether the value of a `c=` line has a unicast address of its family, or a host name.
fn is_connection(rest: &[u8]) -> bool {
    let mut words = words(rest).skip(1);
    let (Some(family), Some(host)) = (words.next(), words.next()) else {
        return false;
    };
    let text = std::str::from_utf8(host).unwrap_or_default();
    match text.parse::<IpAddr>() {
        Ok(address) => {
            let fits = match address {
                IpAddr::V4(_) => family.eq_ignore_ascii_case(b"IP4"),
                IpAddr::V6(_) => family.eq_ignore_ascii_case(b"IP6"),
            };
            fits && !address.is_multicast()
        }
        Err(_) => is_host_name(text),
    }
}

/// RFC 1123 section 2.1: the last label of a name is not numeric, so that a malformed address is none.
fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !label.is_empty() && label.bytes().all(valid)
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    let last = name.rsplit('.').next().unwrap_or_default();
    name.split('.').all(label) && !last.bytes().all(|byte| byte.is_ascii_digit())
}

/// The address in the value of a `c=` line.
fn connection(rest: &[u8]) -> Option<IpAddr> {
    words(rest).nth(2).and_then(address)
}

/// Writes `sdp` to `out` with our `address`, and for each media line the port in `ports` (zero: rejected). Attributes
/// that would let media bypass the border (ICE candidates and credentials, `a=rtcp`, alternative addresses) are
/// removed; RTCP uses the next port.
pub fn rewrite(sdp: &[u8], address: IpAddr, ports: &[u16], out: &mut Vec<u8>) {
    let mut index = 0;
    out.reserve(sdp.len() + 64);
    for raw in sdp.split_inclusive(|&byte| byte == b'\n') {
        let line = raw.trim_ascii_end();
        let end = raw.get(line.len()..).unwrap_or_default();
        match line {
            [b'o', b'=', rest @ ..] => origin(rest, address, out),
            [b'c', b'=', rest @ ..] => connection_line(rest, address, out),
            [b'm', b'=', rest @ ..] => {
                let port = ports.get(index).copied().unwrap_or(0);
                index += 1;
                write_media_line(rest, port, out);
            }
            [b'a', b'=', rest @ ..] if bypasses_anchor(rest) => continue,
            _ => out.extend_from_slice(line),
        }
        out.extend_from_slice(end);
    }
}

pub(super) fn bypasses_anchor(attribute: &[u8]) -> bool {
    let name = attribute
        .split(|&byte| byte == b':')
        .next()
        .unwrap_or_default();
    matches!(
        name,
        b"candidate"
            | b"remote-candidates"
            | b"end-of-candidates"
            | b"ice-ufrag"
            | b"ice-pwd"
            | b"ice-options"
            | b"ice-lite"
            | b"ice-mismatch"
            | b"ice-pacing"
            | b"rtcp"
    ) || offers_alternative(name)
}

/// Whether the attribute may offer another address: RFC 6947, and of capability negotiation those of connections (RFC
/// 7006) and of attributes such as candidates (RFC 5939).
pub(super) fn offers_alternative(name: &[u8]) -> bool {
    matches!(name, b"altc" | b"ccap" | b"acap")
}

/// `o=` with our address; session id and version are kept, so that versions of later offers increase.
pub(super) fn origin(rest: &[u8], address: IpAddr, out: &mut Vec<u8>) {
    out.extend_from_slice(b"o=");
    for (count, word) in words(rest).take(3).enumerate() {
        // The user name may be a host name or address; nothing depends on it.
        out.extend_from_slice(if count == 0 { b"-" } else { word });
        out.push(b' ');
    }
    write_address(address, out);
}

/// Raises the version of the description that begins at `from`.
pub(super) fn raise_version(out: &mut Vec<u8>, from: usize, steps: u64) {
    let mut start = from;
    let text = out.get(from..).unwrap_or_default();
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        let Some(rest) = line.strip_prefix(b"o=") else {
            start += line.len();
            continue;
        };
        // As written by `origin`: one blank between words.
        let mut words = rest.splitn(4, |&byte| byte == b' ');
        let before = words.by_ref().take(2).map(|word| word.len() + 1);
        let at = start + b"o=".len() + before.sum::<usize>();
        let word = words.next().unwrap_or_default();
        let version = core::str::from_utf8(word).ok();
        // A version that is not a number has no order.
        if let Some(version) = version.and_then(|version| version.parse::<u64>().ok()) {
            let end = at + word.len();
            let raised = version.wrapping_add(steps).to_string();
            out.splice(at..end, raised.into_bytes());
        }
        return;
    }
}

/// Writes a `c=` line with our address.
pub fn connection_line(rest: &[u8], address: IpAddr, out: &mut Vec<u8>) {
    out.extend_from_slice(b"c=");
    // Hold as in RFC 2543 stays hold.
    let held = connection(rest).is_some_and(|address| address.is_unspecified());
    let address = match (held, address) {
        (false, address) => address,
        (true, IpAddr::V4(_)) => IpAddr::from([0u8; 4]),
        (true, IpAddr::V6(_)) => IpAddr::from([0u8; 16]),
    };
    write_address(address, out);
}

pub(super) fn write_address(address: IpAddr, out: &mut Vec<u8>) {
    use std::io::Write;
    let family = if address.is_ipv4() { "IP4" } else { "IP6" };
    // Writing to a Vec cannot fail.
    let _ = write!(out, "IN {family} {address}");
}

fn write_media_line(rest: &[u8], port: u16, out: &mut Vec<u8>) {
    use std::io::Write;
    let mut words = words(rest);
    out.extend_from_slice(b"m=");
    out.extend_from_slice(words.next().unwrap_or_default());
    let _ = write!(out, " {port}");
    // Several blanks between words are read as one.
    for word in words.skip(1) {
        out.push(b' ');
        out.extend_from_slice(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: &[u8] = b"v=0\r\no=alice 2890844526 7 IN IP4 10.1.1.1\r\ns=x y\r\nc=IN IP4 10.1.1.1\r\nt=0 0\r\n\
        a=ice-ufrag:F7gI\r\nm=audio 49170 RTP/AVP 0 101\r\na=rtpmap:0 PCMU/8000\r\na=rtpmap:101 Telephone-Event/8000\r\na=rtcp:53020\r\na=candidate:1 1 UDP 1 10.1.1.1 49170 typ host\r\n\
        a=sendonly\r\nm=video 51372 RTP/AVP 31\r\nc=IN IP6 2001:db8::1\r\na=rtcp-mux\r\na=unknown:kept\r\nm=message 7 TCP/MSRP *\r\nm=image 9000 udptl t38\r\n";

    #[test]
    fn media_lines_are_parsed() {
        let media = parse_media(OFFER).unwrap();
        assert_eq!(media.len(), 4);
        assert_eq!(media[0].rtp(), Some("10.1.1.1:49170".parse().unwrap()));
        assert_eq!(
            media[0].rtcp(false),
            Some("10.1.1.1:53020".parse().unwrap())
        );
        assert_eq!(
            media[0].direction,
            MediaDirection {
                sends: true,
                receives: false
            }
        );
        assert_eq!(
            media[1].rtcp(true),
            Some("[2001:db8::1]:51372".parse().unwrap())
        );
        assert_eq!(media[0].clock_rates.as_slice(), [(0, 8000), (101, 8000)]);
        assert_eq!(media[0].special.as_slice(), [101]);
        assert!(media[1].special.is_empty());
        assert_eq!(media[2].carriage, LineTransport::Stream);
        assert_eq!(media[3].carriage, LineTransport::Datagrams);
        assert!(media[1].mux && !media[0].mux);
    }

    #[test]
    fn encryption_is_known_by_profile_or_keys() {
        let session = "v=0\r\no=a 1 1 IN IP4 10.1.1.1\r\ns=x\r\nc=IN IP4 10.1.1.1\r\nt=0 0\r\n";
        let plain = "m=audio 4000 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n";
        for (text, encrypted) in [
            (format!("{session}{plain}"), false),
            (format!("{session}m=audio 4000 RTP/SAVP 0\r\n"), true),
            (
                format!("{session}m=audio 4000 UDP/TLS/RTP/SAVPF 0\r\n"),
                true,
            ),
            (
                format!("{session}{plain}a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:x\r\n"),
                true,
            ),
            (
                format!("{session}a=fingerprint:sha-256 AA\r\n{plain}"),
                true,
            ),
            (format!("{session}{plain}a=zrtp-hash:1.10 x\r\n"), true),
        ] {
            let media = parse_media(text.as_bytes()).unwrap();
            assert_eq!(media[0].encrypted, encrypted, "{text}");
        }
    }

    #[test]
    fn rewriting_keeps_all_other_lines() {
        let mut out = Vec::new();
        rewrite(
            OFFER,
            "192.0.2.9".parse().unwrap(),
            &[20000, 20002, 0, 20004],
            &mut out,
        );
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "v=0\r\no=- 2890844526 7 IN IP4 192.0.2.9\r\ns=x y\r\nc=IN IP4 192.0.2.9\r\nt=0 0\r\n\
             m=audio 20000 RTP/AVP 0 101\r\na=rtpmap:0 PCMU/8000\r\na=rtpmap:101 Telephone-Event/8000\r\na=sendonly\r\n\
             m=video 20002 RTP/AVP 31\r\nc=IN IP4 192.0.2.9\r\na=rtcp-mux\r\na=unknown:kept\r\n\
             m=message 0 TCP/MSRP *\r\nm=image 20004 udptl t38\r\n"
        );
    }

    #[test]
    fn version_of_the_last_description_is_raised() {
        let mut out = OFFER.to_vec();
        let from = out.len();
        rewrite(OFFER, "192.0.2.9".parse().unwrap(), &[20000], &mut out);
        let before = out.len();
        raise_version(&mut out, from, 3);
        assert_eq!(out.len(), before + 1);
        let (first, last) = out.split_at(from);
        assert_eq!(first, OFFER);
        let start = "v=0\r\no=- 2890844526 10 IN IP4 192.0.2.9\r\ns=x y\r\n";
        assert!(last.starts_with(start.as_bytes()));
        // Without a number there is no order of versions.
        for text in [
            "v=0\r\n",
            "v=0\r\no=-\r\n",
            "v=0\r\no=- 1 x IN IP4 192.0.2.9\r\n",
        ] {
            let mut out = text.as_bytes().to_vec();
            raise_version(&mut out, 0, 3);
            assert_eq!(out, text.as_bytes());
        }
    }

    #[test]
    fn several_blanks_in_a_media_line_are_one() {
        let offer = b"v=0\r\nc=IN  IP4 10.1.1.1\r\nm=audio  4000/2  RTP/AVP 0  8 \r\n";
        assert_eq!(parse_media(offer).unwrap()[0].port, 4000);
        let mut out = Vec::new();
        rewrite(offer, "192.0.2.9".parse().unwrap(), &[20000], &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "v=0\r\nc=IN IP4 192.0.2.9\r\nm=audio 20000 RTP/AVP 0 8 \r\n"
        );
    }

    #[test]
    fn hold_by_zero_address_stays_hold_in_both_families() {
        let held = b"v=0\no=- 1 1 IN IP4 0.0.0.0\nc=IN IP4 0.0.0.0\nm=audio 4000 RTP/AVP 0\n";
        assert_eq!(parse_media(held).unwrap()[0].rtp(), None);
        let mut out = Vec::new();
        rewrite(held, "2001:db8::9".parse().unwrap(), &[20000], &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "v=0\no=- 1 1 IN IP6 2001:db8::9\nc=IN IP6 ::\nm=audio 20000 RTP/AVP 0\n"
        );
    }

    #[test]
    fn each_line_in_use_needs_a_connection_line() {
        let described = |text: &str| parse_media(text.as_bytes()).map(|media| media.len());
        const C: &str = "c=IN IP4 10.1.1.1\r\n";
        const AUDIO: &str = "m=audio 4000 RTP/AVP 0\r\n";
        const VIDEO: &str = "m=video 4002 RTP/AVP 31\r\n";
        for sound in [
            format!("v=0\r\n{C}{AUDIO}{VIDEO}"),
            format!("v=0\r\n{AUDIO}{C}{VIDEO}{C}"),
            format!("v=0\r\n{C}{AUDIO}{C}{VIDEO}"),
            // A rejected line needs none.
            format!("v=0\r\n{AUDIO}{C}m=video 0 RTP/AVP 31\r\n"),
            // Names are accepted; they are not resolved.
            format!("v=0\r\nc=IN IP4 phone.example.com\r\n{AUDIO}{VIDEO}"),
        ] {
            assert_eq!(described(&sound), Ok(2), "{sound}");
        }
        for bad in [
            format!("v=0\r\n{AUDIO}"),
            format!("v=0\r\n{AUDIO}{C}{VIDEO}"),
            format!("v=0\r\n{AUDIO}{VIDEO}{C}"),
            format!("v=0\r\nc=\r\n{AUDIO}"),
        ] {
            assert_eq!(described(&bad), Err(BadSdp::NoConnection), "{bad}");
        }
    }

    #[test]
    fn invalid_descriptions_are_refused() {
        assert_eq!(parse_media(b"hello"), Err(BadSdp::NotSdp));
        assert_eq!(parse_media(b"v=0\r\nm=audio\r\n"), Err(BadSdp::MediaLine));
        assert_eq!(
            parse_media(b"v=0\r\nm=audio 99999 RTP/AVP 0\r\n"),
            Err(BadSdp::MediaLine)
        );
        let many = [
            b"v=0\r\n".as_slice(),
            &b"m=audio 1 RTP/AVP 0\r\n".repeat(17),
        ]
        .concat();
        assert_eq!(parse_media(&many), Err(BadSdp::TooManyMedia));
        let mut out = Vec::new();
        rewrite(
            b"v=0\nm=\nc=\no=\na=\n=\n",
            "192.0.2.9".parse().unwrap(),
            &[],
            &mut out,
        );
    }
}
