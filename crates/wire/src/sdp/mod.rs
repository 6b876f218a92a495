//! SDP (RFC 8866), line by line and without copying: all lines and their order are kept, accessors parse on demand,
//! [`rewrite()`] changes addresses and ports only, [`offer`] implements offer and answer (RFC 3264).

mod attributes;
pub mod offer;
mod precondition;
mod rewrite;

pub use attributes::{
    Candidate, Codec, Crypto, Direction, Fingerprint, MediaGroup, Rtcp, RtpMap, Setup,
};
pub use precondition::{DirectionTag, Precondition, QOS, StatusType, Strength};
pub use rewrite::{DropAttribute, MediaRewrite, OriginRewrite, Rewrite, RtcpPort, is_ice, rewrite};

use crate::sip_text::{next_word, number};
use memchr::memchr;
use smallvec::SmallVec;
use std::fmt;
use std::net::IpAddr;

/// Maximum number of lines; longer descriptions are refused.
pub const MAX_LINES: usize = 2_000;
/// Maximum number of media descriptions; more are refused.
pub const MAX_MEDIA: usize = 64;

/// The reason why bytes are no usable session description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SdpError {
    /// It does not begin with `v=0`.
    Version,
    /// A line that is not `letter=...`.
    Line,
    /// An `m=` line without kind, port, protocol or format, or with a malformed port.
    Media,
    /// A malformed `c=` line.
    Connection,
    /// More than [`MAX_LINES`] lines or [`MAX_MEDIA`] media descriptions, or longer than 4 GiB.
    TooMany,
}

impl fmt::Display for SdpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SdpError::Version => "session description without v=0",
            SdpError::Line => "malformed line in session description",
            SdpError::Media => "malformed m= line",
            SdpError::Connection => "malformed c= line",
            SdpError::TooMany => "session description too long",
        })
    }
}

impl std::error::Error for SdpError {}

/// One line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// The letter before `=`.
    pub kind: u8,
    /// The text after `=`, without the line end.
    pub value: &'a [u8],
    /// The complete line with its line end.
    pub raw: &'a [u8],
}

impl<'a> Line<'a> {
    /// Name and value of an `a=` line; the value is empty for a property attribute.
    pub fn attribute(&self) -> Option<(&'a [u8], &'a [u8])> {
        (self.kind == b'a').then(|| match memchr(b':', self.value) {
            Some(colon) => (
                self.value.get(..colon).unwrap_or_default(),
                self.value.get(colon + 1..).unwrap_or_default(),
            ),
            None => (self.value, &b""[..]),
        })
    }
}

impl fmt::Debug for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", char::from(self.kind), self.value.escape_ascii())
    }
}

/// The `o=` line (RFC 8866 section 5.2), parts unmodified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin<'a> {
    /// User name, `-` for none.
    pub username: &'a [u8],
    /// Session identifier.
    pub session_id: &'a [u8],
    /// Session version.
    pub version: &'a [u8],
    /// Network type, address type and address.
    pub address: &'a [u8],
}

/// The address of a `c=` line (RFC 8866 section 5.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection<'a> {
    /// `IP4` or `IP6`, unmodified.
    pub family: &'a [u8],
    /// The address or name, without time to live and count.
    pub address: &'a [u8],
    /// The text after the first slash of the address.
    pub scope: &'a [u8],
}

impl<'a> Connection<'a> {
    fn parse(value: &'a [u8]) -> Option<Connection<'a>> {
        let (network, rest) = next_word(value);
        let (family, rest) = next_word(rest);
        let (address, _) = next_word(rest);
        if !network.eq_ignore_ascii_case(b"IN") || family.is_empty() || address.is_empty() {
            return None;
        }
        let slash = memchr(b'/', address).unwrap_or(address.len());
        Some(Connection {
            family,
            address: address.get(..slash)?,
            scope: address.get(slash + 1..).unwrap_or_default(),
        })
    }

    /// The address; `None` for a name.
    pub fn ip(&self) -> Option<IpAddr> {
        parse_ip(self.address)
    }

    /// Whether it is `0.0.0.0` or `::`, the old form of hold (RFC 3264 section 8.4).
    pub fn is_unspecified(&self) -> bool {
        self.ip().is_some_and(|address| address.is_unspecified())
    }
}

/// An address without brackets.
fn parse_ip(text: &[u8]) -> Option<IpAddr> {
    if text.len() > 45 {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    end: u32,
    /// Bytes of the line end: 0 to 2.
    line_end: u8,
    kind: u8,
}

/// The parts of an `m=` line (RFC 8866 section 5.14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediaLine<'a> {
    /// For example `audio`.
    pub kind: &'a [u8],
    /// The port; 0: rejected or disabled.
    pub port: u16,
    /// The number of ports, 1 if not specified.
    pub count: u16,
    /// For example `RTP/AVP`.
    pub protocol: &'a [u8],
    /// The formats, separated by blanks.
    pub formats: &'a [u8],
}

impl<'a> MediaLine<'a> {
    fn parse(value: &'a [u8]) -> Option<MediaLine<'a>> {
        let (kind, rest) = next_word(value);
        let (ports, rest) = next_word(rest);
        let (protocol, formats) = next_word(rest);
        let slash = memchr(b'/', ports).unwrap_or(ports.len());
        let port = u16::try_from(number(ports.get(..slash)?)?).ok()?;
        let count = match ports.get(slash + 1..) {
            Some(count) => u16::try_from(number(count)?).ok()?,
            None => 1,
        };
        (!kind.is_empty() && !protocol.is_empty()).then_some(MediaLine {
            kind,
            port,
            count,
            protocol,
            formats: formats.trim_ascii(),
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct MediaSpan {
    /// Index of its `m=` line.
    first: u32,
    /// Index after its last line.
    end: u32,
}

/// The index of a session description.
#[derive(Clone, Debug)]
pub struct Sdp<'a> {
    bytes: &'a [u8],
    lines: SmallVec<[Span; 32]>,
    media: SmallVec<[MediaSpan; 4]>,
}

impl<'a> Sdp<'a> {
    /// Indexes a session description. Line ends may be CRLF or LF (RFC 8866 section 5); empty lines are kept and have
    /// no meaning. Every `m=` and `c=` line must be well-formed; other lines are parsed on demand.
    pub fn parse(bytes: &'a [u8]) -> Result<Sdp<'a>, SdpError> {
        if u32::try_from(bytes.len()).is_err() {
            return Err(SdpError::TooMany);
        }
        let mut sdp = Sdp {
            bytes,
            lines: SmallVec::new(),
            media: SmallVec::new(),
        };
        let mut at = 0;
        while at < bytes.len() {
            at = sdp.index_line(at)?;
        }
        sdp.close_media();
        let first = sdp.lines().find(|line| line.kind != 0);
        match first.is_some_and(|line| line.kind == b'v' && line.value.trim_ascii() == b"0") {
            true => Ok(sdp),
            false => Err(SdpError::Version),
        }
    }

    fn index_line(&mut self, start: usize) -> Result<usize, SdpError> {
        let rest = self.bytes.get(start..).unwrap_or_default();
        let (length, line_end) = match memchr(b'\n', rest) {
            Some(end) if end > 0 && rest.get(end - 1) == Some(&b'\r') => (end + 1, 2),
            Some(end) => (end + 1, 1),
            None => (rest.len(), 0),
        };
        let text = rest.get(..length - line_end).unwrap_or_default();
        let kind = match text {
            [] => 0,
            // The first line determines whether this is SDP.
            [kind, b'=', ..] if kind.is_ascii_alphabetic() => *kind,
            _ if self.lines.is_empty() => return Err(SdpError::Version),
            _ => return Err(SdpError::Line),
        };
        if self.lines.len() >= MAX_LINES {
            return Err(SdpError::TooMany);
        }
        let value = text.get(2..).unwrap_or_default();
        if kind == b'm' {
            MediaLine::parse(value).ok_or(SdpError::Media)?;
            if self.media.len() >= MAX_MEDIA {
                return Err(SdpError::TooMany);
            }
            self.close_media();
            let first = self.lines.len() as u32;
            self.media.push(MediaSpan { first, end: first });
        }
        if kind == b'c' && Connection::parse(value).is_none() {
            return Err(SdpError::Connection);
        }
        self.lines.push(Span {
            start: start as u32,
            end: (start + length) as u32,
            line_end: line_end as u8,
            kind,
        });
        Ok(start + length)
    }

    fn close_media(&mut self) {
        let end = self.lines.len() as u32;
        if let Some(last) = self.media.last_mut() {
            last.end = end;
        }
    }

    /// The bytes, unmodified.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// All lines in order (kind 0: an empty line).
    pub fn lines(&self) -> impl ExactSizeIterator<Item = Line<'a>> + Clone + '_ {
        self.slice(0, self.lines.len())
    }

    fn slice(
        &self,
        from: usize,
        to: usize,
    ) -> impl ExactSizeIterator<Item = Line<'a>> + Clone + '_ {
        let bytes = self.bytes;
        let spans = self.lines.get(from..to).unwrap_or_default();
        spans.iter().map(move |span| {
            let raw = bytes
                .get(span.start as usize..span.end as usize)
                .unwrap_or_default();
            let text = raw.len() - usize::from(span.line_end);
            Line {
                kind: span.kind,
                value: raw.get(2..text).unwrap_or_default(),
                raw,
            }
        })
    }

    /// The session section: the lines before the first `m=`.
    pub fn session(&self) -> Section<'_, 'a> {
        let end = self
            .media
            .first()
            .map_or(self.lines.len(), |media| media.first as usize);
        Section {
            sdp: self,
            from: 0,
            to: end,
        }
    }

    /// Number of media descriptions.
    pub fn media_count(&self) -> usize {
        self.media.len()
    }

    /// The media descriptions in order.
    pub fn media(&self) -> impl ExactSizeIterator<Item = Media<'_, 'a>> + Clone + '_ {
        self.media.iter().map(|span| Media {
            line: self.media_line(span),
            section: Section {
                sdp: self,
                from: span.first as usize,
                to: span.end as usize,
            },
        })
    }

    /// Parsed again instead of stored; `parse` has checked it.
    fn media_line(&self, span: &MediaSpan) -> MediaLine<'a> {
        let first = span.first as usize;
        let line = self.slice(first, first + 1).next();
        line.and_then(|line| MediaLine::parse(line.value))
            .unwrap_or_default()
    }

    /// The media description with this index.
    pub fn media_at(&self, index: usize) -> Option<Media<'_, 'a>> {
        self.media().nth(index)
    }

    /// The `o=` line, if it has its six parts.
    pub fn origin(&self) -> Option<Origin<'a>> {
        let value = self.session().first(b'o')?;
        let (username, rest) = next_word(value);
        let (session_id, rest) = next_word(rest);
        let (version, address) = next_word(rest);
        (!address.is_empty()).then_some(Origin {
            username,
            session_id,
            version,
            address: address.trim_ascii(),
        })
    }

    /// Groups of media (RFC 5888) of the session section.
    pub fn groups(&self) -> impl Iterator<Item = MediaGroup<'a>> + Clone + '_ {
        self.session()
            .attributes(b"group")
            .filter_map(MediaGroup::parse)
    }
}

/// The session section or one media section.
#[derive(Clone, Copy, Debug)]
pub struct Section<'s, 'a> {
    sdp: &'s Sdp<'a>,
    from: usize,
    to: usize,
}

impl<'s, 'a> Section<'s, 'a> {
    /// Its lines, the `m=` line first.
    pub fn lines(&self) -> impl ExactSizeIterator<Item = Line<'a>> + Clone + use<'s, 'a> {
        self.sdp.slice(self.from, self.to)
    }

    /// The value of the first line of this kind.
    pub fn first(&self, kind: u8) -> Option<&'a [u8]> {
        self.lines()
            .find(|line| line.kind == kind)
            .map(|line| line.value)
    }

    /// The values of all `a=name` lines; a property attribute has an empty value. Names are case-sensitive.
    pub fn attributes<'n>(
        &self,
        name: &'n [u8],
    ) -> impl Iterator<Item = &'a [u8]> + Clone + use<'s, 'a, 'n> {
        self.lines()
            .filter_map(|line| line.attribute())
            .filter(move |(found, _)| *found == name)
            .map(|(_, value)| value)
    }

    /// The value of the first `a=name` line.
    pub fn attribute(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.attributes(name).next()
    }

    /// Whether there is such an attribute.
    pub fn has(&self, name: &[u8]) -> bool {
        self.attribute(name).is_some()
    }

    /// The `c=` line of this section.
    pub fn connection(&self) -> Option<Connection<'a>> {
        Connection::parse(self.first(b'c')?)
    }

    /// The direction attribute of this section, the last of several.
    pub fn direction(&self) -> Option<Direction> {
        self.lines()
            .filter_map(|line| line.attribute())
            .filter(|(_, value)| value.is_empty())
            .filter_map(|(name, _)| Direction::from_name(name))
            .last()
    }
}

/// One media description.
#[derive(Clone, Copy, Debug)]
pub struct Media<'s, 'a> {
    /// Its `m=` line.
    pub line: MediaLine<'a>,
    /// Its lines.
    pub section: Section<'s, 'a>,
}
