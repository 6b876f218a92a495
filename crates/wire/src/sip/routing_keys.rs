//! Fast extraction of the fields that determine the owner of a message, without the index of a whole
//! [`super::Message`]: a worker decides with them whether to process a message or to hand it off.

use memchr::{memchr, memrchr};

/// The fields that determine the owner of a message; `None` for fields that are absent or malformed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoutingKeys<'a> {
    /// Whether it is a request.
    pub is_request: bool,
    /// The branch of the topmost Via of a response.
    pub branch: Option<&'a [u8]>,
    /// The tag of To of a request.
    pub to_tag: Option<&'a [u8]>,
    /// The Call-ID of a request.
    pub call_id: Option<&'a [u8]>,
    /// The local tag in Replaces of an INVITE outside of any dialog (RFC 3891 section 3).
    pub replaces: Option<&'a [u8]>,
    /// The other tag in it: ours, if the dialog is named from its far side.
    pub replaces_from: Option<&'a [u8]>,
}

impl<'a> RoutingKeys<'a> {
    /// Extracts the fields from a message, or from its beginning.
    pub fn parse(bytes: &'a [u8]) -> RoutingKeys<'a> {
        let mut keys = RoutingKeys {
            is_request: !bytes
                .get(..4)
                .is_some_and(|start| start.eq_ignore_ascii_case(b"SIP/")),
            ..RoutingKeys::default()
        };
        let invite = bytes.starts_with(b"INVITE ");
        let mut seen_to = false;
        let mut rest = bytes;
        // The start line contains none of the fields.
        while let Some(end) = memchr(b'\n', rest) {
            rest = rest.get(end + 1..).unwrap_or_default();
            let Some(first) = rest.first() else { break };
            match (first | 0x20, keys.is_request) {
                // \r and \n: the end of the headers.
                (0x2d | 0x2a, _) => break,
                (b'v', false) => {
                    if let Some(via) = value(rest, &[b"Via", b"v"]) {
                        keys.branch = parameter(first_value(via), b"branch", memchr);
                        break;
                    }
                }
                (b't', true) => {
                    if let Some(to) = value(rest, &[b"To", b"t"]) {
                        seen_to = true;
                        // The last match: display name and URI before it may contain any text.
                        keys.to_tag = parameter(to, b"tag", memrchr);
                    }
                }
                (b'c' | b'i', true) => {
                    if let Some(id) = value(rest, &[b"Call-ID", b"i"]) {
                        keys.call_id = Some(id);
                    }
                }
                (b'r', true) if invite => {
                    if let Some(replaces) = value(rest, &[b"Replaces"]) {
                        keys.replaces = parameter(replaces, b"to-tag", memchr);
                        keys.replaces_from = parameter(replaces, b"from-tag", memchr);
                    }
                }
                _ => {}
            }
            // An INVITE outside of a dialog may replace another dialog, and Replaces may follow further down.
            let creates_dialog = invite && keys.to_tag.is_none();
            if seen_to && keys.call_id.is_some() && !creates_dialog {
                break;
            }
        }
        keys
    }
}

/// The value of the header at the beginning of `rest`, including folded lines, if it has one of these names.
fn value<'a>(rest: &'a [u8], names: &[&[u8]]) -> Option<&'a [u8]> {
    // All names are shorter, and few lines match: other lines are skipped cheaply.
    let colon = memchr(b':', rest.get(..12).unwrap_or(rest))?;
    let name = rest.get(..colon)?.trim_ascii_end();
    if !names
        .iter()
        .any(|candidate| name.eq_ignore_ascii_case(candidate))
    {
        return None;
    }
    let mut end = colon + 1;
    loop {
        match memchr(b'\n', rest.get(end..)?) {
            Some(found) => {
                end += found;
                if !matches!(rest.get(end + 1), Some(b' ' | b'\t')) {
                    break;
                }
                end += 1;
            }
            None => {
                end = rest.len();
                break;
            }
        }
    }
    Some(rest.get(colon + 1..end)?.trim_ascii())
}

/// The first value of a comma-separated list.
fn first_value(value: &[u8]) -> &[u8] {
    let end = memchr(b',', value).unwrap_or(value.len());
    value.get(..end).unwrap_or_default()
}

/// A parameter of a value, searched at the semicolons that `find` returns, forwards or backwards.
fn parameter<'a>(
    value: &'a [u8],
    name: &[u8],
    find: fn(u8, &[u8]) -> Option<usize>,
) -> Option<&'a [u8]> {
    let backwards = find(b';', b";;") == Some(1);
    let mut from = 0;
    let mut until = value.len();
    while let Some(found) = find(b';', value.get(from..until)?) {
        let at = from + found;
        let after = value.get(at + 1..)?.trim_ascii_start();
        if let Some((head, tail)) = after.split_at_checked(name.len())
            && head.eq_ignore_ascii_case(name)
            && let [b'=', text @ ..] = tail.trim_ascii_start()
        {
            let text = text.trim_ascii_start();
            let end = text
                .iter()
                .position(|byte| matches!(byte, b';' | b',' | b' ' | b'\t' | b'\r' | b'\n' | b'>'))
                .unwrap_or(text.len());
            return text.get(..end);
        }
        match backwards {
            true => until = at,
            false => from = at + 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sip::Message;
    use proptest::prelude::*;

    #[test]
    fn in_dialog_request_is_identified_by_to_tag() {
        let text = b"BYE sip:a@b SIP/2.0\r\nVia: SIP/2.0/UDP c;branch=z9hG4bKx\r\nt : \"x;tag=no\" <sip:a@b;tag=no>\r\n ;x=y; TAG = yes ;z\r\nCall-ID: id\r\n\r\n";
        let keys = RoutingKeys::parse(text);
        assert_eq!(keys.to_tag, Some(&b"yes"[..]));
        assert_eq!(keys.call_id, Some(&b"id"[..]));
        assert!(keys.is_request && keys.branch.is_none());
    }

    #[test]
    fn response_is_identified_by_topmost_branch() {
        let text = b"SIP/2.0 200 OK\r\nTo: <sip:a>;tag=1\r\nv: SIP/2.0/UDP c;rport;Branch=z9hG4bKx, SIP/2.0/UDP d;branch=z9hG4bKy\r\ni: id\r\n\r\n";
        let keys = RoutingKeys::parse(text);
        assert_eq!(keys.branch, Some(&b"z9hG4bKx"[..]));
        assert!(!keys.is_request);
    }

    #[test]
    fn invite_with_replaces_is_identified_by_the_replaced_tag() {
        let text = b"INVITE sip:a@b SIP/2.0\nTo: <sip:a@b>\ni: id\nReplaces: x@y;from-tag=2;to-tag=3\n\nTo: <sip:a>;tag=4\n";
        let keys = RoutingKeys::parse(text);
        assert_eq!(keys.replaces, Some(&b"3"[..]));
        assert_eq!(keys.replaces_from, Some(&b"2"[..]));
        assert_eq!(keys.to_tag, None);
        let in_dialog = RoutingKeys::parse(
            b"INVITE a SIP/2.0\nTo: <sip:a>;tag=1\ni: id\nReplaces: x;to-tag=3\n\n",
        );
        assert_eq!(
            (in_dialog.to_tag, in_dialog.replaces),
            (Some(&b"1"[..]), None)
        );
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = RoutingKeys::parse(&bytes);
        }

        /// The extracted fields equal those of the full parser.
        #[test]
        fn extraction_agrees_with_the_parser(tag in "[a-z0-9]{1,24}", id in "[a-z0-9@.]{1,30}", name in "(\"[a-z;=,<> ]{0,9}\" )?", more in "(;[a-z]{1,3}(=[a-z0-9]{1,3})?){0,2}", compact in any::<bool>()) {
            let (to, call) = if compact { ("t", "i") } else { ("To", "Call-ID") };
            let text = format!("BYE sip:a@b SIP/2.0\r\nVia: SIP/2.0/UDP c;branch=z9hG4bKx\r\nFrom: <sip:x@y>;tag=f\r\n{to}: {name}<sip:a@b>{more};tag={tag}\r\n{call}: {id}\r\nCSeq: 1 BYE\r\n\r\n");
            let message = Message::parse(text.as_bytes()).unwrap();
            let keys = RoutingKeys::parse(text.as_bytes());
            prop_assert_eq!(keys.call_id, message.call_id().ok());
            prop_assume!(!more.contains("tag"));
            prop_assert_eq!(keys.to_tag, message.to().ok().and_then(|to| to.tag()));
        }
    }
}
