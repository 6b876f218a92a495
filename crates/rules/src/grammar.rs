//! Headers that rules may change, and the syntax of values that keeps messages well-formed.

use crate::context::RuleDirection;
use crate::spec::Diagnosis;
use wire::sip::{HeaderId, NameAddr, Param, Params, Uri, Values};

/// Maximum size of the text that rules write for one message, in octets. Further edits are omitted and counted.
pub const MAX_ADDED: usize = 16_384;

/// Maximum number of values of one header that conditions and actions use.
pub(crate) const MAX_VALUES: usize = 64;

/// Characters of `token` (RFC 3261 section 25.1).
pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-.!%*_+`'~".contains(&byte)
}

fn all_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().copied().all(is_token)
}

/// Why rules may not change a header, and a remedy; `None` if they may.
fn reserved_reason(id: HeaderId) -> Option<(&'static str, &'static str)> {
    use HeaderId as H;
    let (why, remedy) = match id {
        H::Via | H::Route | H::RecordRoute | H::MaxForwards => (
            "determines the path of requests and responses",
            "remove the action",
        ),
        H::Path | H::ServiceRoute => ("determines the path of registrations", "remove the action"),
        H::CallId | H::CSeq | H::RSeq | H::RAck => (
            "identifies a dialog or its transactions",
            "remove the action",
        ),
        H::Contact => (
            "contains the border's own address",
            "for another user part towards a carrier use `from_user` or `register` of the trunk",
        ),
        H::From | H::To => (
            "contains the tag of the dialog and cannot be written as a whole",
            "change a part of it: { rewrite = \"From\", part = \"host\", value = \"...\" }",
        ),
        H::ContentLength | H::ContentType | H::ContentEncoding => {
            ("describes the body", "remove the action")
        }
        H::SessionExpires | H::MinSe => (
            "is negotiated on each leg separately",
            "see [session_timer] of the configuration",
        ),
        H::Supported | H::Require | H::ProxyRequire | H::Unsupported => (
            "states the extensions that the border supports",
            "remove the action; option tags of both ends are relayed anyway",
        ),
        H::Authorization
        | H::ProxyAuthorization
        | H::WwwAuthenticate
        | H::ProxyAuthenticate
        | H::AuthenticationInfo => ("belongs to digest authentication", "remove the action"),
        _ => return None,
    };
    Some((why, remedy))
}

/// Whether rules may not change a header as a whole.
pub fn is_reserved_header(id: HeaderId) -> bool {
    reserved_reason(id).is_some()
}

/// Returns an error if rules may not change this header.
pub(crate) fn check_changeable(id: HeaderId, name: &str) -> Result<(), Diagnosis> {
    match reserved_reason(id) {
        None => Ok(()),
        Some((why, remedy)) => Err(Diagnosis::new(
            format!("\"{name}\" {why}: rules cannot change it"),
            remedy,
        )),
    }
}

/// Whether the border writes this header itself when it sends, instead of copying it.
pub(crate) fn is_written_by_border(direction: RuleDirection, id: HeaderId) -> bool {
    use HeaderId as H;
    direction == RuleDirection::Out
        && matches!(
            id,
            H::Via
                | H::CallId
                | H::CSeq
                | H::Route
                | H::RecordRoute
                | H::RSeq
                | H::RAck
                | H::SessionExpires
                | H::MinSe
                | H::Contact
                | H::MaxForwards
                | H::Supported
                | H::Require
                | H::ProxyRequire
                | H::Unsupported
                | H::Allow
                | H::UserAgent
                | H::Server
        )
}

/// Whether the values of a header are addresses (name-addr or addr-spec with parameters).
pub(crate) fn holds_addresses(id: HeaderId) -> bool {
    use HeaderId as H;
    matches!(
        id,
        H::From
            | H::To
            | H::Contact
            | H::PAssertedIdentity
            | H::PPreferredIdentity
            | H::PAssociatedUri
            | H::PCalledPartyId
            | H::Diversion
            | H::HistoryInfo
            | H::RemotePartyId
            | H::ReferTo
            | H::ReferredBy
            | H::ReplyTo
    )
}

/// Syntax of a header's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Addresses,
    Number,
    /// Tokens separated by `;`.
    Tokens,
    /// Any text without line ends.
    Line,
    /// Values with balanced quotes and brackets, so that all receivers split them at the same commas.
    Values,
}

fn shape(id: HeaderId) -> Shape {
    use HeaderId as H;
    match id {
        _ if holds_addresses(id) => Shape::Addresses,
        H::Expires | H::MinExpires | H::FlowTimer => Shape::Number,
        H::Privacy => Shape::Tokens,
        H::Subject | H::Organization | H::UserAgent | H::Server | H::Date | H::Other => Shape::Line,
        _ => Shape::Values,
    }
}

/// Whether any text without line ends is a valid value of this header.
pub(crate) fn takes_any_line(id: HeaderId) -> bool {
    shape(id) == Shape::Line
}

/// Whether `value` is a valid value of this header.
pub(crate) fn fits(id: HeaderId, value: &[u8]) -> bool {
    if value.is_empty() || !is_line(value) {
        return false;
    }
    match shape(id) {
        Shape::Line => true,
        Shape::Number => value.len() < 10 && value.iter().all(u8::is_ascii_digit),
        Shape::Tokens => value
            .split(|byte| *byte == b';')
            .all(|part| all_token(part.trim_ascii())),
        Shape::Values => is_balanced(value),
        Shape::Addresses => {
            let mut count = 0;
            let sound = is_balanced(value)
                && Values::list(value).all(|one| {
                    count += 1;
                    is_address(one)
                });
            sound && count > 0 && (id.is_list() || count == 1)
        }
    }
}

/// Whether the text is one line: without control characters except the tab.
pub(crate) fn is_line(value: &[u8]) -> bool {
    is_line_wordwise(value).unwrap_or_else(|| is_line_bytewise(value))
}

/// `Some(true)` if no group of eight bytes has a control character; `None` if undecided.
fn is_line_wordwise(value: &[u8]) -> Option<bool> {
    const fn eight(byte: u8) -> u64 {
        u64::from_le_bytes([byte; 8])
    }
    // A byte below the bound borrows from the next one, so matches may be false; they are checked bytewise.
    let below = |word: u64, bound: u8| word.wrapping_sub(eight(bound)) & !word & eight(0x80);
    let is_plain = |bytes: [u8; 8]| {
        let word = u64::from_le_bytes(bytes);
        below(word, b' ') | below(word ^ eight(0x7f), 1) == 0
    };
    let (words, _) = value.as_chunks::<8>();
    let last = *value.last_chunk::<8>()?;
    (words.iter().all(|word| is_plain(*word)) && is_plain(last)).then_some(true)
}

fn is_line_bytewise(value: &[u8]) -> bool {
    !value
        .iter()
        .any(|byte| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f)
}

/// Whether quotes and angle brackets are balanced.
fn is_balanced(value: &[u8]) -> bool {
    let mut rest = value.iter();
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => loop {
                match rest.next() {
                    Some(b'"') => break,
                    Some(b'\\') if rest.next().is_some() => {}
                    Some(b'\\') | None => return false,
                    Some(_) => {}
                }
            },
            b'<' if !rest.any(|byte| *byte == b'>') => return false,
            b'>' => return false,
            _ => {}
        }
    }
    true
}

/// Whether this is one valid address.
pub(crate) fn is_address(value: &[u8]) -> bool {
    NameAddr::parse(value).is_some_and(|address| {
        Uri::parse(address.uri).is_some() && address.params.iter().all(|param| is_param(&param))
            // The iterator skips empty parameters; they are invalid here.
            && !has_empty_piece(address.params)
    })
}

fn has_empty_piece(params: Params<'_>) -> bool {
    let bytes = params.as_bytes().trim_ascii();
    !bytes.is_empty()
        && (bytes.ends_with(b";")
            || bytes.starts_with(b";")
            || bytes.windows(2).any(|pair| pair == b";;"))
}

fn is_param(param: &Param<'_>) -> bool {
    all_token(param.name)
        && param.value.is_none_or(|value| match value {
            [b'"', .., b'"'] if value.len() > 1 => is_balanced(value),
            _ => !value.is_empty() && value.iter().all(|byte| is_bare(*byte)),
        })
}

/// Characters of an unquoted parameter value: token or host (RFC 3261 `gen-value`).
fn is_bare(byte: u8) -> bool {
    is_token(byte) || b"[]:/@&=$?".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The wordwise check never contradicts the bytewise one.
        #[test]
        fn both_line_checks_agree(
            value in prop::collection::vec(
                prop_oneof![4 => b' '..=b'~', 1 => 0u8..=0x20, 1 => 0x7eu8..=0xff],
                0..40,
            ),
        ) {
            prop_assert_eq!(is_line(&value), is_line_bytewise(&value));
        }

        #[test]
        fn plain_lines_need_no_bytewise_check(value in "[!-~]{8,40}") {
            prop_assert_eq!(is_line_wordwise(value.as_bytes()), Some(true));
        }
    }

    #[test]
    fn values_that_break_a_message_are_invalid() {
        for (id, value, fit) in [
            (HeaderId::Subject, "a \"b", true),
            (HeaderId::Subject, "a\r\nVia: x", false),
            (HeaderId::Subject, "a\rb", false),
            (HeaderId::Subject, "a\0b", false),
            (HeaderId::Subject, "", false),
            (HeaderId::Other, "x\ty", true),
            (HeaderId::Expires, "3600", true),
            (HeaderId::Expires, "an hour", false),
            (HeaderId::Expires, "99999999999", false),
            (HeaderId::Privacy, "id;user", true),
            (HeaderId::Privacy, "id;;user", false),
            (HeaderId::AlertInfo, "<http://x/y>;a=\"b,c\"", true),
            (HeaderId::AlertInfo, "<http://x/y", false),
            (HeaderId::AlertInfo, "a\"b", false),
            (HeaderId::AlertInfo, "\"b\\\"", false),
            (HeaderId::AlertInfo, "b>", false),
            (
                HeaderId::PAssertedIdentity,
                "\"A\" <sip:a@b>, <tel:+1>",
                true,
            ),
            (HeaderId::PAssertedIdentity, "alice", false),
            (HeaderId::PAssertedIdentity, "<sip:a b@c>", false),
            (HeaderId::PAssertedIdentity, ",", false),
            (
                HeaderId::Diversion,
                "<sip:a@b>;reason=unconditional;counter=1",
                true,
            ),
            (HeaderId::Diversion, "<sip:a@b>;;counter=1", false),
            (HeaderId::Diversion, "<sip:a@b>;r=\"", false),
            (HeaderId::ReplyTo, "<sip:a@b>, <sip:c@d>", false),
        ] {
            assert_eq!(fits(id, value.as_bytes()), fit, "{} {value:?}", id.name());
        }
    }

    #[test]
    fn headers_of_dialogs_are_protected() {
        for name in [
            "Via",
            "v",
            "Call-ID",
            "i",
            "CSeq",
            "Content-Length",
            "l",
            "From",
            "To",
            "Max-Forwards",
            "Route",
            "Record-Route",
            "Contact",
            "m",
            "Supported",
        ] {
            let id = HeaderId::from_name(name.as_bytes());
            assert!(check_changeable(id, name).is_err(), "{name}");
        }
        for name in [
            "Subject",
            "P-Asserted-Identity",
            "X-Anything",
            "User-Agent",
            "Diversion",
        ] {
            let id = HeaderId::from_name(name.as_bytes());
            assert!(check_changeable(id, name).is_ok(), "{name}");
        }
    }
}
