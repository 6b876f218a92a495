//! SDP attributes of media security: profiles, keys (RFC 4568), fingerprints (RFC 8122, RFC 8842), ICE (RFC 8839),
//! BUNDLE (RFC 8843).
//!
//! In a call with media security on either side none of these is forwarded: each side gets its own.

use crate::sdp::{connection_line, origin, words, write_address};
use protect::dtls::CertificateFingerprint;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::net::IpAddr;

/// Protection of a media line by its profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProfileTransport {
    /// `RTP/AVP`, possibly with keys (RFC 8643).
    Plain,
    /// `RTP/SAVP` (RFC 3711).
    Srtp,
    /// `UDP/TLS/RTP/SAVP` (RFC 5764).
    Dtls,
}

/// Profile of a media line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// Transport below RTP.
    pub transport: ProfileTransport,
    /// With feedback (RFC 4585, RFC 5124): `AVPF`, `SAVPF`.
    pub feedback: bool,
}

impl Profile {
    const ALL: [(&'static str, ProfileTransport, bool); 6] = [
        ("RTP/AVP", ProfileTransport::Plain, false),
        ("RTP/AVPF", ProfileTransport::Plain, true),
        ("RTP/SAVP", ProfileTransport::Srtp, false),
        ("RTP/SAVPF", ProfileTransport::Srtp, true),
        ("UDP/TLS/RTP/SAVP", ProfileTransport::Dtls, false),
        ("UDP/TLS/RTP/SAVPF", ProfileTransport::Dtls, true),
    ];

    /// The profile of this name in a media line; `None`: unknown.
    pub fn parse(text: &[u8]) -> Option<Profile> {
        let existing = Profile::ALL
            .iter()
            .find(|existing| existing.0.as_bytes().eq_ignore_ascii_case(text))?;
        Some(Profile {
            transport: existing.1,
            feedback: existing.2,
        })
    }

    /// Name in a media line.
    pub fn name(self) -> &'static str {
        Profile::ALL
            .iter()
            .find(|existing| (existing.1, existing.2) == (self.transport, self.feedback))
            .map_or("RTP/AVP", |existing| existing.0)
    }
}

/// Role in the DTLS handshake (`a=setup`, RFC 4145, RFC 8842).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DtlsSetup {
    /// `active`
    Active,
    /// `passive`
    Passive,
    /// `actpass`
    Actpass,
    /// `holdconn`
    Holdconn,
}

/// Candidates parsed per line; this includes those over TCP, of RTCP and with host names, which are not used.
const MAX_CANDIDATES: usize = 64;

/// Security attributes of one media line, of its own or of the session.
#[derive(Clone, Debug, Default)]
pub struct SecurityAttributes<'a> {
    /// `None`: not a profile of RTP over UDP.
    pub profile: Option<Profile>,
    /// Values of `a=crypto`.
    pub cryptos: SmallVec<[&'a [u8]; 4]>,
    /// Values of `a=fingerprint`.
    pub fingerprints: SmallVec<[CertificateFingerprint; 1]>,
    /// A fingerprint cannot be parsed.
    pub bad_fingerprint: bool,
    /// Value of `a=setup`.
    pub setup: Option<DtlsSetup>,
    /// Value of `a=tls-id`.
    pub tls_id: Option<&'a [u8]>,
    /// Value of `a=ice-ufrag`.
    pub ice_ufrag: Option<&'a [u8]>,
    /// Value of `a=ice-pwd`.
    pub ice_pwd: Option<&'a [u8]>,
    /// Values of `a=candidate`.
    pub candidates: SmallVec<[&'a [u8]; 2]>,
    /// Number of candidates that were not parsed.
    pub candidates_skipped: u64,
    /// The sender is a lite agent.
    pub ice_lite: bool,
    /// `a=rtcp-mux` is present.
    pub mux: bool,
    /// Value of `a=mid`.
    pub mid: Option<&'a [u8]>,
    /// The line is in a BUNDLE group.
    pub bundled: bool,
}

impl<'a> SecurityAttributes<'a> {
    fn add_attribute(&mut self, attribute: &'a [u8]) {
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
                    .and_then(|(hash, digits)| CertificateFingerprint::parse(hash, digits))
                {
                    Some(fingerprint) => self.fingerprints.push(fingerprint),
                    None => self.bad_fingerprint = true,
                }
            }
            b"setup" => {
                self.setup = match value {
                    b"active" => Some(DtlsSetup::Active),
                    b"passive" => Some(DtlsSetup::Passive),
                    b"actpass" => Some(DtlsSetup::Actpass),
                    b"holdconn" => Some(DtlsSetup::Holdconn),
                    _ => None,
                }
            }
            b"tls-id" => self.tls_id = Some(value),
            b"ice-ufrag" => self.ice_ufrag = Some(value),
            b"ice-pwd" => self.ice_pwd = Some(value),
            b"candidate" if self.candidates.len() < MAX_CANDIDATES => self.candidates.push(value),
            b"candidate" => self.candidates_skipped += 1,
            b"ice-lite" => self.ice_lite = true,
            b"rtcp-mux" => self.mux = true,
            b"mid" => self.mid = Some(value),
            _ => {}
        }
    }
}

/// Parses the security attributes of all media lines.
pub fn security_attributes(sdp: &[u8]) -> SmallVec<[SecurityAttributes<'_>; 2]> {
    let mut session = SecurityAttributes::default();
    let mut lines: SmallVec<[SecurityAttributes<'_>; 2]> = SmallVec::new();
    let mut bundle: SmallVec<[&[u8]; 4]> = SmallVec::new();
    for raw in sdp.split(|&byte| byte == b'\n') {
        match raw.trim_ascii_end() {
            [b'm', b'=', rest @ ..] => lines.push(SecurityAttributes {
                profile: words(rest).nth(2).and_then(Profile::parse),
                ..SecurityAttributes::default()
            }),
            [b'a', b'=', rest @ ..] => match lines.last_mut() {
                Some(line) => line.add_attribute(rest),
                None => {
                    session.add_attribute(rest);
                    if let Some(mids) = rest.strip_prefix(b"group:BUNDLE ") {
                        bundle.extend(words(mids));
                    }
                }
            },
            _ => {}
        }
    }
    for line in &mut lines {
        // Session-level attributes apply to lines without their own (RFC 8839 section 4.4, RFC 8122 section 5).
        if line.fingerprints.is_empty() && !line.bad_fingerprint {
            line.fingerprints.clone_from(&session.fingerprints);
        }
        line.setup = line.setup.or(session.setup);
        line.tls_id = line.tls_id.or(session.tls_id);
        line.ice_ufrag = line.ice_ufrag.or(session.ice_ufrag);
        line.ice_pwd = line.ice_pwd.or(session.ice_pwd);
        line.ice_lite = session.ice_lite;
        line.bundled = line.mid.is_some_and(|mid| bundle.contains(&mid));
    }
    lines
}

/// Rewriting of one media line.
#[derive(Debug, Default)]
pub struct LineRewrite {
    /// Zero: rejected.
    pub port: u16,
    /// `None`: as received, for transports other than RTP.
    pub profile: Option<Profile>,
    /// Our attributes, each with its line end.
    pub attributes: Vec<u8>,
    /// Whether attributes that only browsers use are kept.
    pub browser: bool,
    /// Value of `a=mid`, where the line stays in a group.
    pub bundled: Option<Vec<u8>>,
    /// We are a lite ICE agent on the line.
    pub lite: bool,
    /// The line is not RTP: its security attributes are forwarded.
    pub foreign: bool,
}

/// Attributes that terminate at the border and are replaced by its own.
const BORDER_ATTRIBUTES: [&[u8]; 23] = [
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

/// Attributes used between browsers: telephones do not need them, and a description with them exceeds a datagram.
/// Header extensions and feedback would have to be supported in both directions to be useful.
const BROWSER_ATTRIBUTES: [&[u8]; 9] = [
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

/// Writes `sdp` to `out` with our `address`, and each media line as in `rewrites`; `zero_holds`: a zero connection
/// address is kept, because it means hold.
pub fn write_description(
    sdp: &[u8],
    address: IpAddr,
    rewrites: &[LineRewrite],
    zero_holds: bool,
    out: &mut Vec<u8>,
) {
    let none = LineRewrite::default();
    let mut at: Option<usize> = None;
    let mut line_end: &[u8] = b"\r\n";
    out.reserve(sdp.len() + 256);
    for raw in sdp.split_inclusive(|&byte| byte == b'\n') {
        let line = raw.trim_ascii_end();
        let end = raw.get(line.len()..).unwrap_or_default();
        if !end.is_empty() {
            line_end = end;
        }
        let rewrite = at.map(|at| rewrites.get(at).unwrap_or(&none));
        match line {
            [b'o', b'=', rest @ ..] => origin(rest, address, out),
            [b'c', b'=', rest @ ..] if zero_holds => connection_line(rest, address, out),
            [b'c', b'=', ..] => {
                out.extend_from_slice(b"c=");
                write_address(address, out);
            }
            [b'm', b'=', rest @ ..] => {
                match rewrite {
                    Some(rewrite) => append(&rewrite.attributes, out),
                    None => session_attributes(rewrites, line_end, out),
                }
                let next = at.map_or(0, |at| at + 1);
                at = Some(next);
                media_line(rest, rewrites.get(next).unwrap_or(&none), out);
            }
            [b'a', b'=', rest @ ..] => {
                let name = name_of(rest);
                let is_ours = BORDER_ATTRIBUTES.contains(&name)
                    || crate::sdp::offers_alternative(name)
                    || matches!(name, b"group" | b"msid-semantic");
                let dropped = match rewrite {
                    // Lines other than RTP keep their attributes, except those that let media bypass the border.
                    Some(rewrite) if rewrite.foreign => crate::sdp::bypasses_anchor(rest),
                    Some(rewrite) => {
                        is_ours || (!rewrite.browser && BROWSER_ATTRIBUTES.contains(&name))
                    }
                    None => is_ours || BROWSER_ATTRIBUTES.contains(&name),
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
    if let Some(rewrite) = at.and_then(|at| rewrites.get(at)) {
        append(&rewrite.attributes, out);
    }
}

fn append(attributes: &[u8], out: &mut Vec<u8>) {
    if !attributes.is_empty() && !out.ends_with(b"\n") {
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(attributes);
}

fn session_attributes(rewrites: &[LineRewrite], end: &[u8], out: &mut Vec<u8>) {
    if rewrites
        .iter()
        .any(|rewrite| rewrite.lite && rewrite.port != 0)
    {
        out.extend_from_slice(b"a=ice-lite");
        out.extend_from_slice(end);
    }
    // We do not multiplex several lines on one transport: the first line stays in the group, the others leave it (RFC
    // 8843 section 7.3.3).
    if let Some(mid) = rewrites
        .iter()
        .filter(|rewrite| rewrite.port != 0)
        .find_map(|rewrite| rewrite.bundled.as_deref())
    {
        out.extend_from_slice(b"a=group:BUNDLE ");
        out.extend_from_slice(mid);
        out.extend_from_slice(end);
    }
}

fn media_line(rest: &[u8], rewrite: &LineRewrite, out: &mut Vec<u8>) {
    use std::io::Write;
    let mut words = words(rest);
    out.extend_from_slice(b"m=");
    out.extend_from_slice(words.next().unwrap_or_default());
    // Writing to a Vec cannot fail.
    let _ = write!(out, " {} ", rewrite.port);
    let profile = words.nth(1).unwrap_or_default();
    match rewrite.profile {
        Some(profile) => out.extend_from_slice(profile.name().as_bytes()),
        None => out.extend_from_slice(profile),
    }
    // Several blanks between words are read as one.
    for format in words {
        out.push(b' ');
        out.extend_from_slice(format);
    }
}
