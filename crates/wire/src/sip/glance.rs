//! A glance at a message: what says whose it is, without the index of a whole [`super::Message`]. For telling workers'
//! messages apart before one of them reads it.

use memchr::{memchr, memrchr};

/// What says whose a message is. What cannot be read is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Glance<'a> {
    /// Whether it is a request.
    pub request: bool,
    /// Of a response, the branch of the topmost Via.
    pub branch: Option<&'a [u8]>,
    /// Of a request, the tag of To.
    pub to_tag: Option<&'a [u8]>,
    /// Of a request, its Call-ID.
    pub call_id: Option<&'a [u8]>,
    /// Of an INVITE outside of any dialog, the tag that Replaces names as ours (RFC 3891 section 3).
    pub replaces: Option<&'a [u8]>,
}

impl<'a> Glance<'a> {
    /// Looks at a message, or at its beginning.
    pub fn at(bytes: &'a [u8]) -> Glance<'a> {
        let mut glance = Glance {
            request: !bytes
                .get(..4)
                .is_some_and(|start| start.eq_ignore_ascii_case(b"SIP/")),
            ..Glance::default()
        };
        let invite = bytes.starts_with(b"INVITE ");
        let mut seen_to = false;
        let mut rest = bytes;
        // The start line says nothing of it.
        while let Some(end) = memchr(b'\n', rest) {
            rest = rest.get(end + 1..).unwrap_or_default();
            let Some(first) = rest.first() else { break };
            match (first | 0x20, glance.request) {
                // \r and \n: the headers are over.
                (0x2d | 0x2a, _) => break,
                (b'v', false) => {
                    if let Some(via) = value(rest, &[b"Via", b"v"]) {
                        glance.branch = parameter(first_of(via), b"branch", memchr);
                        break;
                    }
                }
                (b't', true) => {
                    if let Some(to) = value(rest, &[b"To", b"t"]) {
                        seen_to = true;
                        // The last one: names and URIs in front of it may say anything.
                        glance.to_tag = parameter(to, b"tag", memrchr);
                    }
                }
                (b'c' | b'i', true) => {
                    if let Some(id) = value(rest, &[b"Call-ID", b"i"]) {
                        glance.call_id = Some(id);
                    }
                }
                (b'r', true) if invite => {
                    if let Some(replaces) = value(rest, &[b"Replaces"]) {
                        glance.replaces = parameter(replaces, b"to-tag", memchr);
                    }
                }
                _ => {}
            }
            // What founds a dialog may take the place of another, which stands further below.
            let founds = invite && glance.to_tag.is_none();
            if seen_to && glance.call_id.is_some() && !founds {
                break;
            }
        }
        glance
    }
}

/// The value of the header at the beginning of `rest`, folded lines included, where it has one of these names.
fn value<'a>(rest: &'a [u8], names: &[&[u8]]) -> Option<&'a [u8]> {
    // No name is longer, and few lines are of interest: this stays cheap for the others.
    let colon = memchr(b':', rest.get(..12).unwrap_or(rest))?;
    let name = rest.get(..colon)?.trim_ascii_end();
    if !names.iter().any(|known| name.eq_ignore_ascii_case(known)) {
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

/// The first of several values.
fn first_of(value: &[u8]) -> &[u8] {
    let end = memchr(b',', value).unwrap_or(value.len());
    value.get(..end).unwrap_or_default()
}

/// A parameter, by the semicolons that `find` finds, one after the other from its end of the value.
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
    fn a_request_inside_a_dialog_is_known_by_its_tag() {
        let text = b"BYE sip:a@b SIP/2.0\r\nVia: SIP/2.0/UDP c;branch=z9hG4bKx\r\nt : \"x;tag=no\" <sip:a@b;tag=no>\r\n ;x=y; TAG = yes ;z\r\nCall-ID: id\r\n\r\n";
        let glance = Glance::at(text);
        assert_eq!(glance.to_tag, Some(&b"yes"[..]));
        assert_eq!(glance.call_id, Some(&b"id"[..]));
        assert!(glance.request && glance.branch.is_none());
    }

    #[test]
    fn a_response_is_known_by_its_topmost_branch() {
        let text = b"SIP/2.0 200 OK\r\nTo: <sip:a>;tag=1\r\nv: SIP/2.0/UDP c;rport;Branch=z9hG4bKx, SIP/2.0/UDP d;branch=z9hG4bKy\r\ni: id\r\n\r\n";
        let glance = Glance::at(text);
        assert_eq!(glance.branch, Some(&b"z9hG4bKx"[..]));
        assert!(!glance.request);
    }

    #[test]
    fn what_takes_the_place_of_another_is_known_by_that() {
        let text = b"INVITE sip:a@b SIP/2.0\nTo: <sip:a@b>\ni: id\nReplaces: x@y;from-tag=2;to-tag=3\n\nTo: <sip:a>;tag=4\n";
        let glance = Glance::at(text);
        assert_eq!(glance.replaces, Some(&b"3"[..]));
        assert_eq!(glance.to_tag, None);
        let inside =
            Glance::at(b"INVITE a SIP/2.0\nTo: <sip:a>;tag=1\ni: id\nReplaces: x;to-tag=3\n\n");
        assert_eq!((inside.to_tag, inside.replaces), (Some(&b"1"[..]), None));
    }

    proptest! {
        #[test]
        fn any_bytes_may_be_glanced_at(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Glance::at(&bytes);
        }

        /// It sees what the parser sees.
        #[test]
        fn it_agrees_with_the_parser(tag in "[a-z0-9]{1,24}", id in "[a-z0-9@.]{1,30}", name in "(\"[a-z;=,<> ]{0,9}\" )?", more in "(;[a-z]{1,3}(=[a-z0-9]{1,3})?){0,2}", compact in any::<bool>()) {
            let (to, call) = if compact { ("t", "i") } else { ("To", "Call-ID") };
            let text = format!("BYE sip:a@b SIP/2.0\r\nVia: SIP/2.0/UDP c;branch=z9hG4bKx\r\nFrom: <sip:x@y>;tag=f\r\n{to}: {name}<sip:a@b>{more};tag={tag}\r\n{call}: {id}\r\nCSeq: 1 BYE\r\n\r\n");
            let message = Message::parse(text.as_bytes()).unwrap();
            let glance = Glance::at(text.as_bytes());
            prop_assert_eq!(glance.call_id, message.call_id().ok());
            prop_assume!(!more.contains("tag"));
            prop_assert_eq!(glance.to_tag, message.to().ok().and_then(|to| to.tag()));
        }
    }
}
