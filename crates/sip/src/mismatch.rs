//! Responses with other fields than their request. A client transaction takes a response by its branch and the method
//! of CSeq (RFC 3261 section 17.1.3); a server that copies the other fields wrongly (section 8.2.6.2) is noticed here.

use wire::sip::{CSeq, HeaderId, Message, NameAddr, RefusableRequest};

/// The first field of a response that is not that of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseMismatch {
    /// Call-ID.
    CallId,
    /// CSeq: the number, or the method.
    CSeq,
    /// The tag of From.
    FromTag,
}

impl ResponseMismatch {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            ResponseMismatch::CallId => "Call-ID",
            ResponseMismatch::CSeq => "CSeq",
            ResponseMismatch::FromTag => "From tag",
        }
    }
}

/// The owner of a request, with the number that the handler gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOwner {
    /// A leg.
    Leg(u64),
    /// A request outside of any dialog.
    OutOfDialog(u64),
    /// The endpoint itself, as of a CANCEL.
    Endpoint,
}

/// The first field of a response that is not that of the request. A request in an unusual form, with header lines of a
/// user, is not compared.
pub(crate) fn mismatch(request: &[u8], response: &Message<'_>) -> Option<ResponseMismatch> {
    let sent = RefusableRequest::parse(request)?;
    if response.call_id().ok() != Some(sent.call_id()) {
        return Some(ResponseMismatch::CallId);
    }
    let cseq = value(sent.cseq_line());
    if response.header(HeaderId::CSeq) != Some(cseq) && response.cseq().ok() != CSeq::parse(cseq) {
        return Some(ResponseMismatch::CSeq);
    }
    let from = value(sent.from_line());
    // Nearly every server copies the line; only a rewritten one is parsed.
    if response.header(HeaderId::From) == Some(from) {
        return None;
    }
    let rewritten = response.from().ok();
    let received = rewritten.as_ref().and_then(NameAddr::tag);
    let from = NameAddr::parse(from)?;
    // Parameter values are case-insensitive (section 7.3.1).
    let is_same = match (from.tag(), received) {
        (Some(own), Some(received)) => own.eq_ignore_ascii_case(received),
        (own, received) => own == received,
    };
    (!is_same).then_some(ResponseMismatch::FromTag)
}

/// The value of a header line.
fn value(line: &[u8]) -> &[u8] {
    let colon = line.iter().position(|byte| *byte == b':');
    let from = colon.map_or(line.len(), |colon| colon + 1);
    line.get(from..).unwrap_or_default().trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &str = "INVITE sip:b@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.2;branch=z9hG4bKa;rport\r\n\
        Max-Forwards: 70\r\nFrom: \"A\" <sip:a@192.0.2.2>;tag=Ab1\r\nTo: <sip:b@192.0.2.1>\r\nCall-ID: 7-1-c0ffee\r\n\
        CSeq: 2 INVITE\r\nContent-Length: 0\r\n\r\n";

    fn field(from: &str, to: &str) -> Option<ResponseMismatch> {
        let answer = REQUEST.replacen("INVITE sip:b@192.0.2.1 SIP/2.0", "SIP/2.0 200 OK", 1);
        let changed = answer.replacen(from, to, 1);
        assert!(from == to || changed != answer, "{from}");
        let response = Message::parse(changed.as_bytes()).unwrap();
        mismatch(REQUEST.as_bytes(), &response)
    }

    #[test]
    fn each_field_of_another_request_is_named() {
        assert_eq!(field("", ""), None);
        // The user agent may write its own names, and tags in another case.
        assert_eq!(
            field(
                "\"A\" <sip:a@192.0.2.2>;tag=Ab1",
                "<sip:a@192.0.2.2>;tag=aB1"
            ),
            None
        );
        assert_eq!(
            field("7-1-c0ffee", "7-1-C0FFEE"),
            Some(ResponseMismatch::CallId)
        );
        assert_eq!(field("CSeq: 2", "CSeq: 1"), Some(ResponseMismatch::CSeq));
        assert_eq!(field("2 INVITE", "2 BYE"), Some(ResponseMismatch::CSeq));
        assert_eq!(field("tag=Ab1", "tag=Ab2"), Some(ResponseMismatch::FromTag));
        assert_eq!(field(";tag=Ab1", ""), Some(ResponseMismatch::FromTag));
    }
}
