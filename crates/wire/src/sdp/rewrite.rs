//! Emission with changed addresses and ports; all other lines stay byte for byte the same.

use super::{Line, Media, Rtcp, Sdp};
use std::fmt;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};

/// Announcement of the RTCP port of an anchored media line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RtcpPort {
    /// The port above that of RTP: `a=rtcp` lines are removed.
    #[default]
    Above,
    /// This port, in an `a=rtcp` line.
    At(u16),
    /// The RTP port: `a=rtcp-mux` is kept or added, an `a=rtcp` line gets the port.
    Mux,
}

/// The change of one media description.
#[derive(Clone, Copy, Debug, Default)]
pub enum MediaRewrite<'e> {
    /// Unmodified.
    #[default]
    Keep,
    /// Anchored at a local address: `c=`, port and `a=rtcp` are replaced, ICE lines removed, `a=rtcp-mux` follows
    /// `rtcp`. A `c=` of 0.0.0.0 is kept (an old-style hold must be passed on as one), and so is port 0.
    Anchor {
        /// Local RTP address.
        address: SocketAddr,
        /// Local RTCP port.
        rtcp: RtcpPort,
        /// New direction attribute; `None` keeps it.
        direction: Option<super::Direction>,
        /// New protocol, for example `RTP/AVP` for plain media; `None` keeps it.
        protocol: Option<&'e str>,
        /// Lines to add at the end of the section, without line ends, for example `a=crypto:...`.
        add: &'e [&'e [u8]],
    },
    /// Refused: port 0, all else unmodified.
    Reject,
}

impl MediaRewrite<'_> {
    /// Anchored at `address`, without other changes.
    pub fn anchor(address: SocketAddr, rtcp: RtcpPort) -> Self {
        MediaRewrite::Anchor {
            address,
            rtcp,
            direction: None,
            protocol: None,
            add: &[],
        }
    }

    fn anchor_address(&self) -> Option<SocketAddr> {
        match self {
            MediaRewrite::Anchor { address, .. } => Some(*address),
            _ => None,
        }
    }
}

/// The change of the `o=` line: given parts are replaced.
#[derive(Clone, Copy, Debug)]
pub struct OriginRewrite<'e> {
    /// The address that replaces the original one.
    pub address: IpAddr,
    /// New user name.
    pub username: Option<&'e [u8]>,
    /// New session identifier.
    pub session_id: Option<u64>,
    /// New version (RFC 3264 section 8: incremented with each change).
    pub version: Option<u64>,
}

/// Decides whether an attribute is removed, by media index (`None`: session) and attribute name.
pub type DropAttribute = dyn Fn(Option<usize>, &[u8]) -> bool;

/// The changes of [`rewrite`].
#[derive(Clone, Copy)]
pub struct Rewrite<'e> {
    /// The `o=` line; `None` keeps it.
    pub origin: Option<OriginRewrite<'e>>,
    /// By media index; lines beyond the slice are kept.
    pub media: &'e [MediaRewrite<'e>],
    /// Attributes to remove.
    pub drop: Option<&'e DropAttribute>,
}

impl fmt::Debug for Rewrite<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rewrite")
            .field("origin", &self.origin)
            .field("media", &self.media)
            .field("drop", &self.drop.is_some())
            .finish()
    }
}

/// Whether an attribute belongs to ICE (RFC 8839), which an anchored media line does not use.
pub fn is_ice(attribute: &[u8]) -> bool {
    matches!(
        attribute,
        b"candidate"
            | b"remote-candidates"
            | b"end-of-candidates"
            | b"ice-ufrag"
            | b"ice-pwd"
            | b"ice-lite"
            | b"ice-options"
            | b"ice-mismatch"
            | b"ice-pacing"
    )
}

/// Appends `sdp` with the changes to `out`. Without changes the bytes are identical.
pub fn rewrite(sdp: &Sdp<'_>, changes: &Rewrite<'_>, out: &mut Vec<u8>) {
    let session_address = changes
        .media
        .iter()
        .take(sdp.media_count())
        .find_map(MediaRewrite::anchor_address)
        .map(|address| address.ip());
    let mut emission = Emission {
        sdp,
        changes,
        session_address,
        out,
    };
    emission.session();
    for (index, media) in sdp.media().enumerate() {
        match changes.media.get(index).copied().unwrap_or_default() {
            MediaRewrite::Keep => emission.kept(index, &media),
            MediaRewrite::Reject => emission.rejected(index, &media),
            MediaRewrite::Anchor {
                address,
                rtcp,
                direction,
                protocol,
                add,
            } => emission.anchored(
                index,
                &media,
                &Anchor {
                    address,
                    rtcp,
                    direction,
                    protocol,
                    add,
                },
            ),
        }
    }
}

struct Anchor<'e> {
    address: SocketAddr,
    rtcp: RtcpPort,
    direction: Option<super::Direction>,
    protocol: Option<&'e str>,
    add: &'e [&'e [u8]],
}

struct Emission<'m, 'a, 'e, 'o> {
    sdp: &'m Sdp<'a>,
    changes: &'m Rewrite<'e>,
    /// New address of the session's `c=`: that of the first anchored line; `None` keeps it.
    session_address: Option<IpAddr>,
    out: &'o mut Vec<u8>,
}

impl Emission<'_, '_, '_, '_> {
    fn session(&mut self) {
        for line in self.sdp.session().lines() {
            match line.kind {
                b'o' => self.origin(&line),
                b'c' => match self.session_address {
                    Some(address) => self.connection(&line, address),
                    None => self.copy(&line),
                },
                b'a' => {
                    let name = line.attribute().map_or(&b""[..], |(name, _)| name);
                    let ice = self.session_address.is_some() && is_ice(name);
                    if !ice && !self.drops(None, name) {
                        self.copy(&line);
                    }
                }
                _ => self.copy(&line),
            }
        }
    }

    fn drops(&self, media: Option<usize>, name: &[u8]) -> bool {
        self.changes.drop.is_some_and(|drop| drop(media, name))
    }

    fn origin(&mut self, line: &Line<'_>) {
        let (Some(new), Some(old)) = (self.changes.origin, self.sdp.origin()) else {
            return self.copy(line);
        };
        self.out.extend_from_slice(b"o=");
        self.out
            .extend_from_slice(new.username.unwrap_or(old.username));
        for (number, text) in [(new.session_id, old.session_id), (new.version, old.version)] {
            self.out.push(b' ');
            match number {
                Some(number) => self.formatted(format_args!("{number}")),
                None => self.out.extend_from_slice(text),
            }
        }
        self.formatted(format_args!(" IN {} {}", family(new.address), new.address));
        self.end_line(line);
    }

    /// A `c=` line with the local address; an unspecified one stays unspecified.
    fn connection(&mut self, line: &Line<'_>, address: IpAddr) {
        let on_hold = super::Connection::parse(line.value).is_some_and(|old| old.is_unspecified());
        self.connection_line(if on_hold {
            unspecified(address)
        } else {
            address
        });
        self.end_line(line);
    }

    fn connection_line(&mut self, address: IpAddr) {
        self.formatted(format_args!("c=IN {} {address}", family(address)));
    }

    fn kept(&mut self, index: usize, media: &Media<'_, '_>) {
        // The line may have inherited the session's address, which is replaced: write the original address here.
        let inherits = self.session_address.is_some() && media.section.first(b'c').is_none();
        let old = self.sdp.session().first(b'c').filter(|_| inherits);
        let place = connection_line_index(media);
        for (at, line) in media.section.lines().enumerate() {
            if !self.dropped(index, &line) {
                self.copy(&line);
            }
            if at == place
                && let Some(old) = old
            {
                self.out.extend_from_slice(b"c=");
                self.out.extend_from_slice(old);
                self.end_line(&line);
            }
        }
    }

    fn dropped(&self, index: usize, line: &Line<'_>) -> bool {
        line.attribute()
            .is_some_and(|(name, _)| self.drops(Some(index), name))
    }

    fn rejected(&mut self, index: usize, media: &Media<'_, '_>) {
        for (at, line) in media.section.lines().enumerate() {
            if at == 0 {
                self.media_line(media, &line, 0, None);
            } else if !self.dropped(index, &line) {
                self.copy(&line);
            }
        }
    }

    fn media_line(
        &mut self,
        media: &Media<'_, '_>,
        line: &Line<'_>,
        port: u16,
        protocol: Option<&str>,
    ) {
        let old = media.line;
        self.out.extend_from_slice(b"m=");
        self.out.extend_from_slice(old.kind);
        self.formatted(format_args!(" {port}"));
        // A line may offer several ports; an anchored line has one.
        self.out.push(b' ');
        self.out
            .extend_from_slice(protocol.map_or(old.protocol, str::as_bytes));
        if !old.formats.is_empty() {
            self.out.push(b' ');
            self.out.extend_from_slice(old.formats);
        }
        self.end_line(line);
    }

    fn anchored(&mut self, index: usize, media: &Media<'_, '_>, anchor: &Anchor<'_>) {
        let own = media.section.first(b'c').is_some();
        let add_connection = !own && self.needs_connection(media, anchor.address.ip());
        let place = connection_line_index(media);
        let last = media.section.lines().last();
        for (at, line) in media.section.lines().enumerate() {
            match line.kind {
                b'm' => {
                    let port = if media.is_rejected() {
                        0
                    } else {
                        anchor.address.port()
                    };
                    self.media_line(media, &line, port, anchor.protocol);
                }
                b'c' => self.connection(&line, anchor.address.ip()),
                b'a' => self.anchored_attribute(index, &line, anchor),
                _ => self.copy(&line),
            }
            if at == place && add_connection {
                let on_hold = media.connection().is_some_and(|old| old.is_unspecified());
                let address = anchor.address.ip();
                self.connection_line(if on_hold {
                    unspecified(address)
                } else {
                    address
                });
                self.end_line(&line);
            }
        }
        if let Some(last) = last.filter(|_| !media.is_rejected()) {
            self.anchored_extra(media, anchor, &last);
        }
    }

    /// Whether a section without `c=` needs one: the session's address differs, or there is none.
    fn needs_connection(&self, media: &Media<'_, '_>, address: IpAddr) -> bool {
        match self.sdp.session().first(b'c') {
            Some(_) => self.session_address != Some(address),
            None => !media.is_rejected(),
        }
    }

    fn anchored_attribute(&mut self, index: usize, line: &Line<'_>, anchor: &Anchor<'_>) {
        let (name, value) = line.attribute().unwrap_or_default();
        if is_ice(name) || self.drops(Some(index), name) {
            return;
        }
        match name {
            b"rtcp" => self.rtcp(line, value, anchor),
            b"rtcp-mux" | b"rtcp-mux-only" if anchor.rtcp != RtcpPort::Mux => {}
            _ => match anchor.direction.filter(|_| value.is_empty()) {
                Some(direction) if super::Direction::from_name(name).is_some() => {
                    self.formatted(format_args!("a={}", direction.name()));
                    self.end_line(line);
                }
                _ => self.copy(line),
            },
        }
    }

    fn rtcp(&mut self, line: &Line<'_>, value: &[u8], anchor: &Anchor<'_>) {
        let port = match anchor.rtcp {
            RtcpPort::Above => return,
            RtcpPort::At(port) => port,
            RtcpPort::Mux => anchor.address.port(),
        };
        let address = anchor.address.ip();
        let with_address = Rtcp::parse(value).is_some_and(|rtcp| rtcp.connection.is_some());
        match with_address {
            true => self.formatted(format_args!(
                "a=rtcp:{port} IN {} {address}",
                family(address)
            )),
            false => self.formatted(format_args!("a=rtcp:{port}")),
        }
        self.end_line(line);
    }

    /// Adds required lines that the section does not have.
    fn anchored_extra(&mut self, media: &Media<'_, '_>, anchor: &Anchor<'_>, last: &Line<'_>) {
        if !last.raw.ends_with(b"\n") && !self.out.ends_with(b"\n") {
            self.out.extend_from_slice(b"\r\n");
        }
        match anchor.rtcp {
            RtcpPort::At(port) if media.section.attribute(b"rtcp").is_none() => {
                self.formatted(format_args!("a=rtcp:{port}\r\n"));
            }
            RtcpPort::Mux if !media.section.has(b"rtcp-mux") => {
                self.out.extend_from_slice(b"a=rtcp-mux\r\n");
            }
            _ => {}
        }
        if let Some(direction) = anchor.direction
            && media.section.direction().is_none()
        {
            self.formatted(format_args!("a={}\r\n", direction.name()));
        }
        for line in anchor.add {
            self.out.extend_from_slice(line);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    fn copy(&mut self, line: &Line<'_>) {
        self.out.extend_from_slice(line.raw);
    }

    /// The line end of the replaced line; CRLF if it has none.
    fn end_line(&mut self, line: &Line<'_>) {
        let end: &[u8] = match line.raw {
            [.., b'\r', b'\n'] => b"\r\n",
            [.., b'\n'] => b"\n",
            _ => b"\r\n",
        };
        self.out.extend_from_slice(end);
    }

    fn formatted(&mut self, text: fmt::Arguments<'_>) {
        // Writing into a Vec cannot fail.
        let _ = self.out.write_fmt(text);
    }
}

/// Index of the line after which a section's `c=` belongs: `m=`, or the `i=` after it (RFC 8866 section 9).
fn connection_line_index(media: &Media<'_, '_>) -> usize {
    match media.section.lines().nth(1) {
        Some(line) if line.kind == b'i' => 1,
        _ => 0,
    }
}

pub(super) fn family(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "IP4",
        IpAddr::V6(_) => "IP6",
    }
}

fn unspecified(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}
