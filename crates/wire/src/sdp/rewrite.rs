//! Emission with other addresses and ports; every line that is not named leaves as it came.

use super::{Line, Media, Rtcp, Sdp};
use std::fmt;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};

/// Where RTCP is announced for an anchored media line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RtcpPort {
    /// On the port above RTP's: `a=rtcp` lines go.
    #[default]
    Above,
    /// On this port: an `a=rtcp` line says so.
    At(u16),
    /// On RTP's own port: `a=rtcp-mux` is left or added, an `a=rtcp` line gets the port.
    Mux,
}

/// What becomes of one media description.
#[derive(Clone, Copy, Debug, Default)]
pub enum MediaRewrite<'e> {
    /// It leaves as it came.
    #[default]
    Keep,
    /// It is anchored at our address: `c=`, port and `a=rtcp` change, ICE lines go, `a=rtcp-mux` follows `rtcp`.
    /// A `c=` of 0.0.0.0 stays one (an old hold must arrive as one), a port of 0 stays 0.
    Anchor {
        /// Where we receive RTP.
        address: SocketAddr,
        /// Where we receive RTCP.
        rtcp: RtcpPort,
        /// Another direction attribute, `None` leaves it.
        direction: Option<super::Direction>,
        /// Another protocol, for example `RTP/AVP` in front of plain media; `None` leaves it.
        protocol: Option<&'e str>,
        /// Lines to add at the section's end, each without line end, for example `a=crypto:...`.
        add: &'e [&'e [u8]],
    },
    /// It is refused: port 0, all else as it came.
    Reject,
}

impl MediaRewrite<'_> {
    /// Anchored at `address` with nothing else changed.
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

/// What becomes of the `o=` line: parts given replace those that came.
#[derive(Clone, Copy, Debug)]
pub struct OriginRewrite<'e> {
    /// The address that hides theirs.
    pub address: IpAddr,
    /// Another user name.
    pub username: Option<&'e [u8]>,
    /// Another session identifier.
    pub session_id: Option<u64>,
    /// Another version (RFC 3264 section 8: one more with each change).
    pub version: Option<u64>,
}

/// Says whether an attribute is left out, by media index (`None`: session) and attribute name.
pub type DropAttribute = dyn Fn(Option<usize>, &[u8]) -> bool;

/// What [`rewrite`] changes.
#[derive(Clone, Copy)]
pub struct Rewrite<'e> {
    /// The `o=` line; `None` leaves it.
    pub origin: Option<OriginRewrite<'e>>,
    /// By media index; those beyond the slice are kept.
    pub media: &'e [MediaRewrite<'e>],
    /// Attributes to leave out.
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

/// Whether an attribute belongs to ICE (RFC 8839), which an anchored media line does not speak.
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

/// Appends `sdp` with the changes to `out`. Without changes the bytes are those that came.
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
    /// What the session's `c=` becomes: the first anchor's address, `None` leaves it.
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

    /// A `c=` line with our address; an unspecified one stays unspecified.
    fn connection(&mut self, line: &Line<'_>, address: IpAddr) {
        let held = super::Connection::parse(line.value).is_some_and(|old| old.is_unspecified());
        self.connection_line(if held { unspecified(address) } else { address });
        self.end_line(line);
    }

    fn connection_line(&mut self, address: IpAddr) {
        self.formatted(format_args!("c=IN {} {address}", family(address)));
    }

    fn kept(&mut self, index: usize, media: &Media<'_, '_>) {
        // Its address may have been the session's, which is now ours: say the old one here.
        let inherits = self.session_address.is_some() && media.section.first(b'c').is_none();
        let old = self.sdp.session().first(b'c').filter(|_| inherits);
        let place = connection_place(media);
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
        // Several ports were offered: we hold one.
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
        let place = connection_place(media);
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
                let held = media.connection().is_some_and(|old| old.is_unspecified());
                let address = anchor.address.ip();
                self.connection_line(if held { unspecified(address) } else { address });
                self.end_line(&line);
            }
        }
        if let Some(last) = last.filter(|_| !media.is_rejected()) {
            self.anchored_extra(media, anchor, &last);
        }
    }

    /// Whether a section without `c=` needs one: the session's says something else, or there is none.
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

    /// Lines that the section must have and has not.
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

    /// The line end of the line that this one stands for; a line end where it had none.
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

/// Index of the line behind which a section's `c=` belongs: `m=`, or the `i=` behind it (RFC 8866 section 9).
fn connection_place(media: &Media<'_, '_>) -> usize {
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
