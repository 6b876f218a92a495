//! Topology hiding of session descriptions.

/// SDP lines with information about their author, and their replacement: session name, information, URI, contact, keys
/// (obsolete, possibly a URI), tool, and source filters (which are ours).
pub const LINES: [(&[u8], Option<&[u8]>); 8] = [
    (b"s=", Some(b"s=-")),
    (b"i=", None),
    (b"u=", None),
    (b"e=", None),
    (b"p=", None),
    (b"k=", None),
    (b"a=tool:", None),
    (b"a=source-filter:", None),
];

/// Attributes that are passed, in lower case and sorted: those of the IANA registry that concern media formats,
/// negotiation, ICE, keys, WebRTC, fax, messages, floor control and recording, and two of browsers and fax gateways in
/// use. Registered ones that name hosts, or are free text, are left out (`control`, `keywds`, `ts-refclk`), and those
/// that anchoring removes in any case (`altc`, `ccap`, `acap`).
pub const ATTRIBUTES: [&str; 126] = [
    "3gpp-qos-hint",
    "accept-types",
    "accept-wrapped-types",
    "acfg",
    "anbr",
    "bcap",
    "bfcpver",
    "bundle-only",
    "candidate",
    "cdsc",
    "charset",
    "chatroom",
    "conf",
    "confid",
    "connection",
    "content",
    "cpar",
    "creq",
    "crypto",
    "csup",
    "curr",
    "dcmap",
    "dcsa",
    "depend",
    "des",
    "direction",
    "ecan",
    "ecn-capable-rtp",
    "end-of-candidates",
    "extmap",
    "extmap-allow-mixed",
    "fec-repair-flow",
    "fec-source-flow",
    "file-date",
    "file-disposition",
    "file-icon",
    "file-range",
    "file-selector",
    "file-transfer-id",
    "fingerprint",
    "floorctrl",
    "floorid",
    "fmtp",
    "framerate",
    "framesize",
    "gpmd",
    "group",
    "ice-lite",
    "ice-mismatch",
    "ice-options",
    "ice-pacing",
    "ice-pwd",
    "ice-ufrag",
    "identity",
    "imageattr",
    "inactive",
    "key-mgmt",
    "label",
    "lang",
    "lcfg",
    "max-message-size",
    "max-size",
    "maxprate",
    "maxptime",
    "mfcap",
    "mid",
    "mptime",
    "mscap",
    "msid",
    "msid-semantic",
    "msrp-cema",
    "omcap",
    "orient",
    "path",
    "pcfg",
    "ptime",
    "quality",
    "range",
    "rate",
    "record",
    "recordpref",
    "recvonly",
    "remote-candidates",
    "repair-window",
    "rid",
    "rmcap",
    "rtcp",
    "rtcp-fb",
    "rtcp-mux",
    "rtcp-mux-only",
    "rtcp-rsize",
    "rtcp-xr",
    "rtpmap",
    "sctp-port",
    "sctpmap",
    "sdplang",
    "sendonly",
    "sendrecv",
    "sescap",
    "setup",
    "silencesupp",
    "simulcast",
    "sprtmap",
    "sqn",
    "ssrc",
    "ssrc-group",
    "t38faxfillbitremoval",
    "t38faxmaxbuffer",
    "t38faxmaxdatagram",
    "t38faxmaxifp",
    "t38faxratemanagement",
    "t38faxtranscodingjbig",
    "t38faxtranscodingmmr",
    "t38faxudpec",
    "t38faxudpecdepth",
    "t38faxudpfecmaxspan",
    "t38faxversion",
    "t38maxbitrate",
    "t38modemtype",
    "t38vendorinfo",
    "tcap",
    "tls-id",
    "type",
    "userid",
    "x-google-flag",
    "zrtp-hash",
];

/// Types of other lines that are passed; the border writes `o`, `c` and `m`.
const TYPES: &[u8] = b"vocmbtrz";

/// Longest name of [`ATTRIBUTES`].
const LONGEST: usize = 21;

/// Treatment of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineFate {
    Passes,
    Goes,
    Becomes(&'static [u8]),
    /// An `a=ssrc` line whose CNAME gets a pseudonym.
    Source,
}

fn fate(line: &[u8]) -> LineFate {
    if let Some((_, instead)) = LINES.iter().find(|(start, _)| line.starts_with(start)) {
        return match instead {
            None => LineFate::Goes,
            Some(instead) if *instead == line.trim_ascii_end() => LineFate::Passes,
            Some(instead) => LineFate::Becomes(instead),
        };
    }
    match line.strip_prefix(b"a=") {
        Some(attribute) if !is_known(attribute.trim_ascii_end()) => LineFate::Goes,
        Some(attribute) if named_source(attribute.trim_ascii_end()).is_some() => LineFate::Source,
        Some(_) => LineFate::Passes,
        None => match line {
            [kind, b'=', ..] if !TYPES.contains(kind) => LineFate::Goes,
            _ => LineFate::Passes,
        },
    }
}

/// The start of an `a=ssrc` line up to its CNAME (RFC 5576), and the CNAME, if that may name a host: RTP stacks use
/// `user@host` (RFC 3550 section 6.5.1), browsers a random word.
fn named_source(attribute: &[u8]) -> Option<(&[u8], &[u8])> {
    const CNAME: &[u8] = b" cname:";
    let is_source = attribute
        .get(..5)
        .is_some_and(|name| name.eq_ignore_ascii_case(b"ssrc:"));
    let at = attribute
        .windows(CNAME.len())
        .position(|part| part.eq_ignore_ascii_case(CNAME));
    let (start, name) = attribute.split_at_checked(at? + CNAME.len())?;
    let names_host = name
        .iter()
        .any(|byte| matches!(byte, b'.' | b':' | b'@' | b'%'));
    (is_source && names_host).then_some((start, name))
}

/// Whether an attribute is passed.
fn is_known(attribute: &[u8]) -> bool {
    let mut parts = attribute.splitn(2, |byte| *byte == b':');
    let name = parts.next().unwrap_or_default();
    let mut lower = [0; LONGEST];
    let Some(lower) = lower.get_mut(..name.len()) else {
        return false;
    };
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let known = ATTRIBUTES.binary_search_by(|known| known.as_bytes().cmp(lower));
    // Labels are numbers or words (RFC 4574), but any token is allowed.
    let names_host = |value: &[u8]| value.iter().any(|byte| matches!(byte, b'.' | b':'));
    known.is_ok() && !(&*lower == b"label" && parts.next().is_some_and(names_host))
}

/// Replaces or removes such lines, and removes unknown attributes, in the SDP that begins at `from` in `out`. CNAMEs
/// that may name a host become the number of their first occurrence, so that sources with one CNAME stay together.
pub fn description(out: &mut Vec<u8>, from: usize) {
    let lines = || {
        out.get(from..)
            .unwrap_or_default()
            .split_inclusive(|byte| *byte == b'\n')
    };
    let path = |line: &[u8]| {
        line.get(..7)
            .is_some_and(|start| start.eq_ignore_ascii_case(b"a=path:"))
    };
    if lines().all(|line| fate(line) == LineFate::Passes && !path(line)) {
        return;
    }
    let mut hidden = Vec::with_capacity(out.len() - from);
    let mut names: Vec<&[u8]> = Vec::new();
    // A rejected line of messages still has the URI of its author (RFC 4975 section 8).
    let mut rejected = false;
    for line in lines() {
        let bare = line.trim_ascii_end();
        let end = line.get(bare.len()..).unwrap_or_default();
        if let Some(media) = bare.strip_prefix(b"m=") {
            rejected = media.split(|byte| *byte == b' ').nth(1) == Some(b"0");
        }
        match fate(line) {
            LineFate::Passes if rejected && path(line) => {}
            LineFate::Passes => hidden.extend_from_slice(line),
            LineFate::Goes => {}
            LineFate::Becomes(instead) => {
                hidden.extend_from_slice(instead);
                hidden.extend_from_slice(end);
            }
            LineFate::Source => {
                let Some((start, name)) = bare.strip_prefix(b"a=").and_then(named_source) else {
                    continue;
                };
                let number = names.iter().position(|known| *known == name);
                let number = number.unwrap_or_else(|| {
                    names.push(name);
                    names.len() - 1
                });
                hidden.extend_from_slice(b"a=");
                hidden.extend_from_slice(start);
                hidden.extend_from_slice((number + 1).to_string().as_bytes());
                hidden.extend_from_slice(end);
            }
        }
    }
    out.truncate(from);
    out.append(&mut hidden);
}
