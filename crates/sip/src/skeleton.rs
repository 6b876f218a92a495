//! Header fields that all responses to a request have in common, rendered when the request arrives (RFC 3261 section
//! 8.2.6).

use crate::compose::Lines;
use crate::tokens::IdToken;
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::net::SocketAddr;
use wire::sip::{HeaderId, Message, Values, Via};

/// Via, Record-Route, From, Call-ID, CSeq and To of a request, ready for a response.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Skeleton {
    bytes: Vec<u8>,
    via_end: usize,
    route_end: usize,
    /// End of To. Timestamp follows, for a 100 only (RFC 3261 section 8.2.6.1).
    end: usize,
    /// The request's To has a tag.
    tagged: bool,
}

impl Skeleton {
    /// Renders `request` received from `source`, with `received` and `rport` (RFC 3261 section 18.2.1, RFC 3581). If
    /// not empty, `feedback` replaces `oc` in the topmost Via (RFC 7339).
    pub(crate) fn render(&mut self, request: &Message<'_>, source: SocketAddr, feedback: &[u8]) {
        self.bytes.clear();
        let mut lines = Lines {
            out: &mut self.bytes,
        };
        vias(&mut lines, request, (source, feedback));
        self.via_end = lines.out.len();
        lines.copy_all(request, HeaderId::RecordRoute);
        self.route_end = lines.out.len();
        lines
            .copy_all(request, HeaderId::From)
            .copy_all(request, HeaderId::CallId)
            .copy_all(request, HeaderId::CSeq)
            .name(HeaderId::To)
            .text(request.header(HeaderId::To).unwrap_or_default());
        self.tagged = request.to().is_ok_and(|to| to.tag().is_some());
        self.end = lines.out.len();
        lines.copy_all(request, HeaderId::Timestamp);
    }

    /// The request's Timestamp as header lines.
    pub(crate) fn timestamp(&self) -> &[u8] {
        self.bytes.get(self.end..).unwrap_or_default()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Whether the request's To has a tag.
    pub(crate) fn tagged(&self) -> bool {
        self.tagged
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Writes the headers between status line and own headers of a response. A 100 gets no tag (RFC 3261 section
    /// 8.2.6.2).
    pub(crate) fn write(&self, record_route: bool, tag: Option<IdToken>, out: &mut Vec<u8>) {
        let part = |from: usize, to: usize| self.bytes.get(from..to).unwrap_or_default();
        out.extend_from_slice(part(0, self.via_end));
        if record_route {
            out.extend_from_slice(part(self.via_end, self.route_end));
        }
        out.extend_from_slice(part(self.route_end, self.end));
        if let Some(tag) = tag.filter(|_| !self.tagged) {
            out.extend_from_slice(b";tag=");
            out.extend_from_slice(tag.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }
}

fn vias(lines: &mut Lines<'_>, request: &Message<'_>, addition: (SocketAddr, &[u8])) {
    let Ok(top) = request.via() else {
        lines.copy_all(request, HeaderId::Via);
        return;
    };
    let headers = request.headers().filter(|h| h.id == HeaderId::Via);
    for (index, header) in headers.enumerate() {
        if index > 0 {
            lines.name(HeaderId::Via).text(header.value).end();
            continue;
        }
        lines.name(HeaderId::Via);
        received(lines, &top, addition);
        for rest in Values::list(header.value).skip(1) {
            lines.raw(b", ").text(rest);
        }
        lines.end();
    }
}

/// Writes the topmost Via with `received`, `rport` and, if requested, overload feedback.
fn received(lines: &mut Lines<'_>, via: &Via<'_>, (source, feedback): (SocketAddr, &[u8])) {
    let has_rport = via.rport().is_some();
    let is_ours =
        |name: &[u8]| name.eq_ignore_ascii_case(b"received") || name.eq_ignore_ascii_case(b"rport");
    let head = via.raw.len() - via.params.as_bytes().len();
    // Up to the semicolon before the parameters, or the whole Via.
    let front = via.raw.get(..head).unwrap_or_default();
    lines.text(front.strip_suffix(b";").unwrap_or(front).trim_ascii_end());
    let writes_feedback = !feedback.is_empty() && via.requests_feedback();
    let old = |name: &[u8]| writes_feedback && wire::sip::is_feedback(name);
    let kept = via.params.iter();
    for param in kept.filter(|param| !is_ours(param.name) && !old(param.name)) {
        lines.raw(b";").text(param.name);
        if let Some(value) = param.value {
            lines.raw(b"=").text(value);
        }
    }
    if has_rport || via.host.ip() != Some(source.ip()) {
        // Writing into a Vec cannot fail.
        let _ = write!(lines.out, ";received={}", source.ip());
    }
    if has_rport {
        lines.raw(b";rport=").digits(u64::from(source.port()));
    }
    if writes_feedback {
        lines.raw(feedback);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_and_rport_are_filled_in() {
        let request = b"OPTIONS sip:a@b SIP/2.0\r\n\
            Via: SIP/2.0/UDP pc33.atlanta.com;branch=z9hG4bKkjshdyff;rport , SIP/2.0/TCP 10.0.0.1;branch=x\r\n\
            v: SIP/2.0/UDP third\r\n\
            f: <sip:a@x>;tag=1\r\nTo: <sip:b@x>\r\nCall-ID: 1\r\nCSeq: 2 OPTIONS\r\n\
            Record-Route: <sip:p;lr>\r\nTimestamp: 54\r\nContent-Length: 0\r\n\r\n";
        let message = Message::parse(request).unwrap();
        let mut skeleton = Skeleton::default();
        skeleton.render(&message, "192.0.2.1:5099".parse().unwrap(), b";oc=1");
        let mut out = Vec::new();
        skeleton.write(true, Some(IdToken::new(1, 2)), &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "Via: SIP/2.0/UDP pc33.atlanta.com;branch=z9hG4bKkjshdyff;received=192.0.2.1;rport=5099, SIP/2.0/TCP 10.0.0.1;branch=x\r\n\
             Via: SIP/2.0/UDP third\r\n\
             Record-Route: <sip:p;lr>\r\n\
             f: <sip:a@x>;tag=1\r\nCall-ID: 1\r\nCSeq: 2 OPTIONS\r\n\
             To: <sip:b@x>;tag=000000010000000000000002\r\n"
        );
    }
}
