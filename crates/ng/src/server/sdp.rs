//! Changes to descriptions beyond anchoring: source addresses, codecs, the `o=` line, `a=mid`.

use anchor::sdp::words;
use std::net::IpAddr;

/// Codecs to remove from an offer.
#[derive(Debug, Default)]
pub(super) struct CodecFilter<'a> {
    /// Names, or `all`.
    pub(super) strip: Vec<&'a str>,
    /// Names of codecs that are kept in any case.
    pub(super) keep: Vec<&'a str>,
}

impl CodecFilter<'_> {
    /// `name` is as in `a=rtpmap`: `opus/48000/2`.
    fn removes(&self, name: &[u8]) -> bool {
        let fits = |kind: &&str| {
            let kind = kind.as_bytes();
            kind.eq_ignore_ascii_case(b"all")
                || kind.eq_ignore_ascii_case(b"full")
                || begins(name, kind)
        };
        let kept = |kind: &&str| begins(name, kind.as_bytes());
        self.strip.iter().any(fits) && !self.keep.iter().any(kept)
    }
}

/// Whether a codec has this name; rate and channels are compared if the name has them.
fn begins(codec: &[u8], name: &[u8]) -> bool {
    codec
        .get(..name.len())
        .is_some_and(|head| head.eq_ignore_ascii_case(name))
        && matches!(codec.get(name.len()), None | Some(b'/'))
}

/// Static payload types (RFC 3551 section 6).
fn static_codec(payload_type: &[u8]) -> &'static [u8] {
    match payload_type {
        b"0" => b"PCMU/8000",
        b"3" => b"GSM/8000",
        b"4" => b"G723/8000",
        b"5" | b"6" | b"16" | b"17" => b"DVI4",
        b"7" => b"LPC/8000",
        b"8" => b"PCMA/8000",
        b"9" => b"G722/8000",
        b"10" | b"11" => b"L16/44100",
        b"12" => b"QCELP/8000",
        b"13" => b"CN/8000",
        b"15" => b"G728/8000",
        b"18" => b"G729/8000",
        b"26" => b"JPEG/90000",
        b"31" => b"H261/90000",
        b"32" => b"MPV/90000",
        b"34" => b"H263/90000",
        _ => b"",
    }
}

/// Lines of a description with their line ends.
fn lines(sdp: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    sdp.split_inclusive(|&byte| byte == b'\n').map(|raw| {
        let line = raw.trim_ascii_end();
        (line, raw.get(line.len()..).unwrap_or_default())
    })
}

/// `sdp` with `address` in every connection line, except zero addresses; `a=rtcp` keeps its port only (RFC 3605).
pub(super) fn from_source(sdp: &[u8], address: IpAddr) -> Vec<u8> {
    const RTCP: &[u8] = b"a=rtcp:";
    let mut out = Vec::with_capacity(sdp.len() + 32);
    for (line, end) in lines(sdp) {
        match (line, line.strip_prefix(RTCP)) {
            ([b'c', b'=', rest @ ..], _) => {
                anchor::sdp::connection_line(rest, address, &mut out);
            }
            (_, Some(rest)) => {
                out.extend_from_slice(RTCP);
                out.extend_from_slice(words(rest).next().unwrap_or_default());
            }
            _ => out.extend_from_slice(line),
        }
        out.extend_from_slice(end);
    }
    out
}

/// `sdp` without the selected codecs in its RTP lines.
///
/// # Errors
/// A line would have no codec left.
pub(super) fn without_codecs(sdp: &[u8], options: &CodecFilter<'_>) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(sdp.len());
    let mut gone: Vec<&[u8]> = Vec::new();
    let all: Vec<(&[u8], &[u8])> = lines(sdp).collect();
    for (at, (line, end)) in all.iter().enumerate() {
        if let [b'm', b'=', rest @ ..] = line {
            gone.clear();
            let parts: Vec<&[u8]> = words(rest).collect();
            let is_rtp = parts.get(2).is_some_and(|profile| {
                profile
                    .split(|&byte| byte == b'/')
                    .any(|part| part.eq_ignore_ascii_case(b"RTP"))
            });
            if is_rtp && parts.get(1) != Some(&&b"0"[..]) {
                let behind = all.get(at + 1..).unwrap_or_default();
                let formats = parts.get(3..).unwrap_or_default();
                let name = |format: &&[u8]| codec_of(format, behind);
                gone.extend(
                    formats
                        .iter()
                        .filter(|format| options.removes(name(format))),
                );
                if gone.len() == formats.len() {
                    return Err("codec strip leaves a line without codecs".to_owned());
                }
            }
            out.extend_from_slice(b"m=");
            let left = parts
                .iter()
                .enumerate()
                .filter(|(position, part)| *position < 3 || !gone.contains(part));
            for (position, (_, part)) in left.enumerate() {
                if position > 0 {
                    out.push(b' ');
                }
                out.extend_from_slice(part);
            }
        } else if payload_type_of(line).is_some_and(|format| gone.contains(&format)) {
            continue;
        } else {
            out.extend_from_slice(line);
        }
        out.extend_from_slice(end);
    }
    Ok(out)
}

/// The payload type of an attribute.
fn payload_type_of(line: &[u8]) -> Option<&[u8]> {
    let rest = [&b"a=rtpmap:"[..], b"a=fmtp:", b"a=rtcp-fb:"]
        .iter()
        .find_map(|prefix| line.strip_prefix(*prefix))?;
    words(rest).next()
}

/// The codec of a payload type, by the attributes of its line or by static assignment.
fn codec_of<'a>(format: &[u8], behind: &[(&'a [u8], &'a [u8])]) -> &'a [u8] {
    behind
        .iter()
        .map(|(line, _)| *line)
        .take_while(|line| !line.starts_with(b"m="))
        .find_map(|line| {
            let mut parts = words(line.strip_prefix(b"a=rtpmap:")?);
            (parts.next()? == format).then(|| parts.next()).flatten()
        })
        .unwrap_or(static_codec(format))
}

/// Changes to a description before it is returned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SdpFinish {
    /// The original `o=` line, if it is kept.
    pub(super) origin: Option<Vec<u8>>,
    /// Whether media lines without `a=mid` get one.
    pub(super) add_mids: bool,
    /// The mark of our own descriptions.
    pub(super) mark: Option<Vec<u8>>,
}

impl SdpFinish {
    /// Applies the changes.
    pub(super) fn apply(&self, sdp: Vec<u8>) -> Vec<u8> {
        if *self == SdpFinish::default() {
            return sdp;
        }
        let mut out = Vec::with_capacity(sdp.len() + 64);
        let mut line_end: &[u8] = b"\r\n";
        let mut section = None;
        let mut has_mid = true;
        let attribute = |out: &mut Vec<u8>, name: &[u8], value: &[u8], end: &[u8]| {
            if !out.ends_with(b"\n") {
                out.extend_from_slice(end);
            }
            for part in [&b"a="[..], name, b":", value, end] {
                out.extend_from_slice(part);
            }
        };
        for (line, end) in lines(&sdp) {
            if !end.is_empty() {
                line_end = end;
            }
            match (line, &self.origin) {
                ([b'o', b'=', ..], Some(origin)) => out.extend_from_slice(origin),
                ([b'm', b'=', ..], _) => {
                    match section {
                        None => {
                            if let Some(mark) = &self.mark {
                                attribute(&mut out, MARK, mark, line_end);
                            }
                        }
                        Some(number) if self.add_mids && !has_mid => {
                            attribute(&mut out, b"mid", name(number).as_bytes(), line_end);
                        }
                        Some(_) => {}
                    }
                    section = Some(section.map_or(0, |number: u32| number + 1));
                    has_mid = false;
                    out.extend_from_slice(line);
                }
                _ => {
                    has_mid |= line.starts_with(b"a=mid:");
                    out.extend_from_slice(line);
                }
            }
            out.extend_from_slice(end);
        }
        if let Some(number) = section
            && self.add_mids
            && !has_mid
        {
            attribute(&mut out, b"mid", name(number).as_bytes(), line_end);
        }
        out
    }
}

/// The attribute with the mark.
const MARK: &[u8] = b"hornwork-node";

fn name(section: u32) -> String {
    (section + 1).to_string()
}

/// Whether a description has this mark.
pub(super) fn is_marked(sdp: &[u8], mark: &[u8]) -> bool {
    lines(sdp).any(|(line, _)| {
        line.strip_prefix(b"a=")
            .and_then(|rest| rest.strip_prefix(MARK))
            .and_then(|rest| rest.strip_prefix(b":"))
            == Some(mark)
    })
}

/// The `o=` line of a description.
pub(super) fn origin_of(sdp: &[u8]) -> Option<Vec<u8>> {
    lines(sdp)
        .map(|(line, _)| line)
        .find(|line| line.starts_with(b"o="))
        .map(<[u8]>::to_vec)
}

/// Media type and profile of each media line: `audio`, `RTP/AVP`.
pub(super) fn kinds(sdp: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    lines(sdp)
        .filter_map(|(line, _)| {
            let mut parts = words(line.strip_prefix(b"m=")?);
            let kind = parts.next()?.to_vec();
            Some((kind, parts.nth(1)?.to_vec()))
        })
        .take(anchor::sdp::MAX_MEDIA)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SDP: &[u8] = b"v=0\r\no=bob 1 1 IN IP4 10.0.0.1\r\ns=-\r\nc=IN IP4 10.0.0.1\r\nt=0 0\r\n\
        m=audio 4000 RTP/AVP 0 8 96 101\r\na=rtpmap:96 opus/48000/2\r\na=fmtp:96 useinbandfec=1\r\n\
        a=rtpmap:101 telephone-event/8000\r\nm=image 4002 udptl t38\r\n";

    fn strip(strip: &[&str], keep: &[&str]) -> Result<String, String> {
        let options = CodecFilter {
            strip: strip.to_vec(),
            keep: keep.to_vec(),
        };
        without_codecs(SDP, &options).map(|sdp| String::from_utf8(sdp).unwrap())
    }

    #[test]
    fn codecs_are_removed_with_their_attributes() {
        let text = strip(&["opus", "pcma"], &[]).unwrap();
        assert!(
            text.contains("m=audio 4000 RTP/AVP 0 101\r\na=rtpmap:101 "),
            "{text}"
        );
        assert!(text.ends_with("m=image 4002 udptl t38\r\n"), "{text}");
        let text = strip(&["all"], &["PCMA", "telephone-event"]).unwrap();
        assert!(text.contains("RTP/AVP 8 101\r\n"), "{text}");
        assert!(strip(&["opus/16000"], &[]).unwrap().contains("0 8 96 101"));
        assert!(strip(&["OPUS/48000"], &[]).unwrap().contains("0 8 101"));
        assert!(strip(&["all"], &[]).unwrap_err().contains("without codecs"));
    }

    #[test]
    fn requested_changes_are_applied_to_a_description() {
        let finish = SdpFinish {
            origin: Some(b"o=x 9 9 IN IP4 192.0.2.1".to_vec()),
            add_mids: true,
            mark: Some(b"77".to_vec()),
        };
        let text = String::from_utf8(finish.apply(SDP.to_vec())).unwrap();
        assert!(
            text.contains("v=0\r\no=x 9 9 IN IP4 192.0.2.1\r\ns=-"),
            "{text}"
        );
        assert!(
            text.contains("t=0 0\r\na=hornwork-node:77\r\nm=audio"),
            "{text}"
        );
        assert!(text.contains("/8000\r\na=mid:1\r\nm=image"), "{text}");
        assert!(text.ends_with("t38\r\na=mid:2\r\n"), "{text}");
        assert!(is_marked(text.as_bytes(), b"77") && !is_marked(text.as_bytes(), b"7"));
        assert_eq!(SdpFinish::default().apply(SDP.to_vec()), SDP);
    }

    #[test]
    fn the_signalling_source_replaces_connection_addresses() {
        let deferred = String::from_utf8(SDP.to_vec()).unwrap().replace(
            "m=image",
            "a=rtcp:4009 IN IP4 10.0.0.1\r\nc=IN IP4 0.0.0.0\r\nm=image",
        );
        let text = from_source(deferred.as_bytes(), "192.0.2.9".parse().unwrap());
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("c=IN IP4 192.0.2.9\r\nt=0"), "{text}");
        assert!(
            text.contains("a=rtcp:4009\r\nc=IN IP4 0.0.0.0\r\nm=image"),
            "{text}"
        );
        assert_eq!(kinds(SDP).len(), 2);
        assert_eq!(origin_of(SDP).unwrap(), b"o=bob 1 1 IN IP4 10.0.0.1");
    }
}
