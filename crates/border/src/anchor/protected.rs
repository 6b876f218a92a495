//! What session descriptions say of the protection of media, and descriptions with ours in its place: profiles, keys (RFC 4568),
//! fingerprints (RFC 8122, RFC 8842), ICE (RFC 8839), BUNDLE (RFC 8843).
//!
//! Where we protect media on either side of a call, nothing of all that passes from end to end: each side has its own.

use super::sdp::{connection_line, origin, words, write_address};
use protect::dtls::Fingerprint;
use smallvec::SmallVec;
use std::net::IpAddr;

/// How the transport of a media line is protected, by its profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// `RTP/AVP`, also with keys beside it (RFC 8643).
    Plain,
    /// `RTP/SAVP` (RFC 3711).
    Srtp,
    /// `UDP/TLS/RTP/SAVP` (RFC 5764).
    Dtls,
}

/// The profile of a media line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) transport: Transport,
    /// With feedback (RFC 4585, RFC 5124): `AVPF`, `SAVPF`.
    pub(crate) feedback: bool,
}

impl Profile {
    const ALL: [(&'static str, Transport, bool); 6] = [
        ("RTP/AVP", Transport::Plain, false),
        ("RTP/AVPF", Transport::Plain, true),
        ("RTP/SAVP", Transport::Srtp, false),
        ("RTP/SAVPF", Transport::Srtp, true),
        ("UDP/TLS/RTP/SAVP", Transport::Dtls, false),
        ("UDP/TLS/RTP/SAVPF", Transport::Dtls, true),
    ];

    pub(crate) fn parse(text: &[u8]) -> Option<Profile> {
        let known = Profile::ALL
            .iter()
            .find(|known| known.0.as_bytes().eq_ignore_ascii_case(text))?;
        Some(Profile {
            transport: known.1,
            feedback: known.2,
        })
    }

    /// As it stands in a media line.
    pub(crate) fn name(self) -> &'static str {
        Profile::ALL
            .iter()
            .find(|known| (known.1, known.2) == (self.transport, self.feedback))
            .map_or("RTP/AVP", |known| known.0)
    }
}

/// Who begins a DTLS handshake (`a=setup`, RFC 4145, RFC 8842).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setup {
    Active,
    Passive,
    Actpass,
    Holdconn,
}

/// Candidates of one line that are read: those over TCP, of RTCP and with names, which are of no use here, are among them.
const MAX_CANDIDATES: usize = 64;

/// What is said of the protection of one media line, by itself or for the whole session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said<'a> {
    /// `None`: one that is none of RTP's over UDP.
    pub(crate) profile: Option<Profile>,
    /// Values of `a=crypto`.
    pub(crate) cryptos: SmallVec<[&'a [u8]; 4]>,
    pub(crate) fingerprints: SmallVec<[Fingerprint; 1]>,
    /// A fingerprint stands there that cannot be read.
    pub(crate) bad_fingerprint: bool,
    pub(crate) setup: Option<Setup>,
    pub(crate) tls_id: Option<&'a [u8]>,
    pub(crate) fragment: Option<&'a [u8]>,
    pub(crate) password: Option<&'a [u8]>,
    /// Values of `a=candidate`.
    pub(crate) candidates: SmallVec<[&'a [u8]; 2]>,
    /// How many more there are than are read.
    pub(crate) candidates_beyond: u64,
    /// The writer is a lite agent itself.
    pub(crate) lite: bool,
    pub(crate) mux: bool,
    pub(crate) mid: Option<&'a [u8]>,
    /// It is in a group that shares one transport.
    pub(crate) bundled: bool,
}

impl<'a> Said<'a> {
    fn take(&mut self, attribute: &'a [u8]) {
        let colon = attribute.iter().position(|&byte| byte == b':');
        let (name, value) = match colon {
            Some(at) => (
                attribute.get(..at).unwrap_or_default(),
                attribute.get(at + 1..).unwrap_or_default(),
            ),
            None => (attribute, &[][..]),
        };
        match name {
            b"crypto" if self.cryptos.len() < 16 => self.cryptos.push(value),
            b"fingerprint" if self.fingerprints.len() < 8 => {
                let mut parts = words(value);
                let (hash, digits) = (parts.next(), parts.next());
                match hash
                    .zip(digits)
                    .and_then(|(hash, digits)| Fingerprint::parse(hash, digits))
                {
                    Some(fingerprint) => self.fingerprints.push(fingerprint),
                    None => self.bad_fingerprint = true,
                }
            }
            b"setup" => {
                self.setup = match value {
                    b"active" => Some(Setup::Active),
                    b"passive" => Some(Setup::Passive),
                    b"actpass" => Some(Setup::Actpass),
                    b"holdconn" => Some(Setup::Holdconn),
                    _ => None,
                }
            }
            b"tls-id" => self.tls_id = Some(value),
            b"ice-ufrag" => self.fragment = Some(value),
            b"ice-pwd" => self.password = Some(value),
            b"candidate" if self.candidates.len() < MAX_CANDIDATES => self.candidates.push(value),
            b"candidate" => self.candidates_beyond += 1,
            b"ice-lite" => self.lite = true,
            b"rtcp-mux" => self.mux = true,
            b"mid" => self.mid = Some(value),
            _ => {}
        }
    }
}

/// What a description says of the protection of its media lines.
pub(crate) fn said(sdp: &[u8]) -> SmallVec<[Said<'_>; 2]> {
    let mut session = Said::default();
    let mut lines: SmallVec<[Said<'_>; 2]> = SmallVec::new();
    let mut bundle: SmallVec<[&[u8]; 4]> = SmallVec::new();
    for raw in sdp.split(|&byte| byte == b'\n') {
        match raw.trim_ascii_end() {
            [b'm', b'=', rest @ ..] => lines.push(Said {
                profile: words(rest).nth(2).and_then(Profile::parse),
                ..Said::default()
            }),
            [b'a', b'=', rest @ ..] => match lines.last_mut() {
                Some(line) => line.take(rest),
                None => {
                    session.take(rest);
                    if let Some(mids) = rest.strip_prefix(b"group:BUNDLE ") {
                        bundle.extend(words(mids));
                    }
                }
            },
            _ => {}
        }
    }
    for line in &mut lines {
        // What a line does not say by itself, the session says for it (RFC 8839 section 4.4, RFC 8122 section 5).
        if line.fingerprints.is_empty() && !line.bad_fingerprint {
            line.fingerprints.clone_from(&session.fingerprints);
        }
        line.setup = line.setup.or(session.setup);
        line.tls_id = line.tls_id.or(session.tls_id);
        line.fragment = line.fragment.or(session.fragment);
        line.password = line.password.or(session.password);
        line.lite = session.lite;
        line.bundled = line.mid.is_some_and(|mid| bundle.contains(&mid));
    }
    lines
}

/// What one media line is to look like.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// Zero: rejected.
    pub(crate) port: u16,
    /// `None`: as it came, with what we know nothing of.
    pub(crate) profile: Option<Profile>,
    /// Our attributes, each with its line end.
    pub(crate) attributes: Vec<u8>,
    /// Whether what only browsers understand stays in it.
    pub(crate) browser: bool,
    /// The name of the line, where it stays in a group.
    pub(crate) bundled: Option<Vec<u8>>,
    /// We are a lite ICE agent for it.
    pub(crate) lite: bool,
    /// It is none of RTP's: what it says of its protection is for the other end.
    pub(crate) foreign: bool,
}

/// Attributes of whoever protects the media, and that are ours to write.
const OURS: [&[u8]; 23] = [
    b"crypto",
    b"fingerprint",
    b"setup",
    b"connection",
    b"tls-id",
    b"dtls-id",
    b"key-mgmt",
    b"zrtp-hash",
    b"identity",
    b"candidate",
    b"remote-candidates",
    b"end-of-candidates",
    b"ice-ufrag",
    b"ice-pwd",
    b"ice-options",
    b"ice-lite",
    b"ice-mismatch",
    b"ice-pacing",
    b"rtcp",
    b"rtcp-mux",
    b"rtcp-mux-only",
    b"mid",
    b"bundle-only",
];

/// What browsers say to one another: a telephone has no use for it, and a description with it exceeds a datagram. Header extensions
/// and feedback would have to pass both ways to be of use.
const BROWSERS: [&[u8]; 9] = [
    b"rtcp-fb",
    b"rtcp-rsize",
    b"extmap",
    b"extmap-allow-mixed",
    b"ssrc",
    b"ssrc-group",
    b"msid",
    b"rid",
    b"simulcast",
];

fn name_of(attribute: &[u8]) -> &[u8] {
    attribute
        .split(|&byte| byte == b':')
        .next()
        .unwrap_or_default()
}

/// Writes `sdp` to `out` with our `address`, and each media line as `looks` has it; `zero_holds`: a connection address of zero stays
/// one, for it means hold.
pub(crate) fn write(
    sdp: &[u8],
    address: IpAddr,
    looks: &[Look],
    zero_holds: bool,
    out: &mut Vec<u8>,
) {
    let none = Look::default();
    let mut at: Option<usize> = None;
    let mut line_end: &[u8] = b"\r\n";
    out.reserve(sdp.len() + 256);
    for raw in sdp.split_inclusive(|&byte| byte == b'\n') {
        let line = raw.trim_ascii_end();
        let end = raw.get(line.len()..).unwrap_or_default();
        if !end.is_empty() {
            line_end = end;
        }
        let look = at.map(|at| looks.get(at).unwrap_or(&none));
        match line {
            [b'o', b'=', rest @ ..] => origin(rest, address, out),
            [b'c', b'=', rest @ ..] if zero_holds => connection_line(rest, address, out),
            [b'c', b'=', ..] => {
                out.extend_from_slice(b"c=");
                write_address(address, out);
            }
            [b'm', b'=', rest @ ..] => {
                match look {
                    Some(look) => append(&look.attributes, out),
                    None => session_attributes(looks, line_end, out),
                }
                let next = at.map_or(0, |at| at + 1);
                at = Some(next);
                media_line(rest, looks.get(next).unwrap_or(&none), out);
            }
            [b'a', b'=', rest @ ..] => {
                let name = name_of(rest);
                let protects = OURS.contains(&name) || matches!(name, b"group" | b"msid-semantic");
                let dropped = match look {
                    // What is none of RTP's keeps its attributes but for those that lead past us.
                    Some(look) if look.foreign => super::sdp::leads_past_us(rest),
                    Some(look) => protects || (!look.browser && BROWSERS.contains(&name)),
                    None => protects || BROWSERS.contains(&name),
                };
                if dropped {
                    continue;
                }
                out.extend_from_slice(line);
            }
            _ => out.extend_from_slice(line),
        }
        out.extend_from_slice(end);
    }
    if let Some(look) = at.and_then(|at| looks.get(at)) {
        append(&look.attributes, out);
    }
}

fn append(attributes: &[u8], out: &mut Vec<u8>) {
    if !attributes.is_empty() && !out.ends_with(b"\n") {
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(attributes);
}

fn session_attributes(looks: &[Look], end: &[u8], out: &mut Vec<u8>) {
    if looks.iter().any(|look| look.lite && look.port != 0) {
        out.extend_from_slice(b"a=ice-lite");
        out.extend_from_slice(end);
    }
    // One transport for several lines is not for us: the first one stays in the group, the others leave it (RFC 8843 section 7.3.3).
    if let Some(mid) = looks
        .iter()
        .filter(|look| look.port != 0)
        .find_map(|look| look.bundled.as_deref())
    {
        out.extend_from_slice(b"a=group:BUNDLE ");
        out.extend_from_slice(mid);
        out.extend_from_slice(end);
    }
}

fn media_line(rest: &[u8], look: &Look, out: &mut Vec<u8>) {
    use std::io::Write;
    let mut pieces = rest.splitn(4, |&byte| byte == b' ');
    let media = pieces.next().unwrap_or_default();
    let profile = pieces.nth(1).unwrap_or_default();
    out.extend_from_slice(b"m=");
    out.extend_from_slice(media);
    // Writing to a Vec cannot fail.
    let _ = write!(out, " {} ", look.port);
    match look.profile {
        Some(profile) => out.extend_from_slice(profile.name().as_bytes()),
        None => out.extend_from_slice(profile),
    }
    if let Some(formats) = pieces.next() {
        out.push(b' ');
        out.extend_from_slice(formats);
    }
}
