//! Topology hiding of session descriptions.

/// SDP lines with information about their author, and their replacement: session name, information, URI, contact, tool,
/// and source filters (which are ours).
pub const LINES: [(&[u8], Option<&[u8]>); 7] = [
    (b"s=", Some(b"s=-")),
    (b"i=", None),
    (b"u=", None),
    (b"e=", None),
    (b"p=", None),
    (b"a=tool:", None),
    (b"a=source-filter:", None),
];

/// Attributes that are passed, in lower case and sorted: those of the IANA registry that concern media formats,
/// negotiation, ICE, keys, WebRTC, fax, messages, floor control and recording, and two of browsers and fax gateways in
/// use. Registered ones that name hosts, or are free text, are left out (`control`, `keywds`, `ts-refclk`).
pub const ATTRIBUTES: [&str; 129] = [
    "3gpp-qos-hint",
    "acap",
    "accept-types",
    "accept-wrapped-types",
    "acfg",
    "altc",
    "anbr",
    "bcap",
    "bfcpver",
    "bundle-only",
    "candidate",
    "ccap",
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

/// Longest name of [`ATTRIBUTES`].
const LONGEST: usize = 21;

/// Treatment of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineFate {
    Passes,
    Goes,
    Becomes(&'static [u8]),
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
        _ => LineFate::Passes,
    }
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

/// Replaces or removes such lines, and removes unknown attributes, in the SDP that begins at `from` in `out`.
pub fn description(out: &mut Vec<u8>, from: usize) {
    let lines = || {
        out.get(from..)
            .unwrap_or_default()
            .split_inclusive(|byte| *byte == b'\n')
    };
    if lines().all(|line| fate(line) == LineFate::Passes) {
        return;
    }
    let mut hidden = Vec::with_capacity(out.len() - from);
    for line in lines() {
        match fate(line) {
            LineFate::Passes => hidden.extend_from_slice(line),
            LineFate::Goes => {}
            LineFate::Becomes(instead) => {
                hidden.extend_from_slice(instead);
                let end = line.trim_ascii_end().len();
                hidden.extend_from_slice(line.get(end..).unwrap_or_default());
            }
        }
    }
    out.truncate(from);
    out.append(&mut hidden);
}
