//! Messages and numbers for readers who must not see everything: no bodies, no credentials, and numbers only in part.

use core::fmt::Write as _;

/// Headers with credentials, or with signed copies of numbers (RFC 8224).
const HIDDEN: [&str; 8] = [
    "authorization",
    "proxy-authorization",
    "www-authenticate",
    "proxy-authenticate",
    "authentication-info",
    "proxy-authentication-info",
    "identity",
    "y",
];
/// Headers without numbers of callers.
const NUMBERLESS: [&str; 11] = [
    "via",
    "v",
    "call-id",
    "i",
    "cseq",
    "content-length",
    "l",
    "max-forwards",
    "date",
    "rseq",
    "rack",
];
/// Digits in a row from which they are taken for a number.
const MIN_DIGITS: usize = 5;
/// Characters of a number that remain.
const SHOWN: usize = 2;

/// A number or user of which only the last two characters remain.
pub fn mask(text: &str) -> String {
    let count = text.chars().count();
    if count == 0 {
        return String::new();
    }
    let shown = if count > SHOWN { SHOWN } else { 0 };
    let tail: String = text.chars().skip(count - shown).collect();
    format!("{}{tail}", "*".repeat((count - shown).min(8)))
}

/// A text in which users of `sip:`, `sips:` and `tel:` URIs, quoted names and rows of five digits or more are masked.
pub fn mask_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some((scheme, user, after)) = uri_user(rest) {
            out.push_str(scheme);
            out.push_str(&mask(user));
            rest = after;
        } else if first == '"' {
            let end = rest.get(1..).and_then(|text| text.find('"'));
            let end = end.map_or(rest.len(), |end| end + 2);
            out.push_str("\"***\"");
            rest = rest.get(end..).unwrap_or_default();
        } else if first.is_ascii_digit() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (row, after) = rest.split_at(digits);
            match digits >= MIN_DIGITS {
                true => out.push_str(&mask(row)),
                false => out.push_str(row),
            }
            rest = after;
        } else {
            out.push(first);
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
        }
    }
    out
}

/// Splits a text that begins with a URI into scheme, user part, and the rest from the `@` (or end of a tel URI) on.
fn uri_user(text: &str) -> Option<(&str, &str, &str)> {
    let length = ["sips:", "sip:", "tel:"].into_iter().find_map(|scheme| {
        let start = text.get(..scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(scheme.len())
    })?;
    let (scheme, after) = text.split_at(length);
    let end = after.find(|one: char| one == '>' || one == '"' || one.is_whitespace());
    let uri = after.get(..end.unwrap_or(after.len()))?;
    let end = match scheme.eq_ignore_ascii_case("tel:") {
        true => uri.find(';').unwrap_or(uri.len()),
        false => uri.find('@')?,
    };
    let (user, _) = uri.split_at(end);
    Some((scheme, user, after.get(end..)?))
}

fn is_token(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-.!%*_+`'~".contains(&byte))
}

/// The start line and headers of a message without credentials; the body is replaced by its size. With `numbers`, users
/// and numbers are masked too. Lines in the head that are no headers are left out, because a malformed message could
/// carry its body there.
pub fn redact(message: &[u8], numbers: bool) -> String {
    let masked = |text: &str| match numbers {
        true => mask_numbers(text),
        false => text.to_owned(),
    };
    let mut out = String::new();
    let mut offset = 0;
    let mut keeps = true;
    let mut is_masked = true;
    let mut kind = "unknown content".to_owned();
    for (index, line) in message.split_inclusive(|byte| *byte == b'\n').enumerate() {
        offset += line.len();
        let text = String::from_utf8_lossy(line.trim_ascii_end());
        if index == 0 {
            out.push_str(&masked(&text));
            out.push_str("\r\n");
            continue;
        }
        if text.is_empty() {
            break;
        }
        if !line.starts_with(b" ") && !line.starts_with(b"\t") {
            let name = text.split(':').next().unwrap_or_default().trim_end();
            let lower = name.to_ascii_lowercase();
            let hidden = HIDDEN.contains(&lower.as_str());
            keeps = !hidden && is_token(name) && text.contains(':');
            is_masked = !NUMBERLESS.contains(&lower.as_str());
            if hidden {
                // Writing into a String cannot fail.
                let _ = write!(out, "{name}: [not shown]\r\n");
            }
            if matches!(lower.as_str(), "content-type" | "c") {
                let value = text.split_once(':').map_or("", |(_, value)| value.trim());
                kind = value.split(';').next().unwrap_or_default().to_owned();
            }
        }
        if keeps {
            match is_masked {
                true => out.push_str(&masked(&text)),
                false => out.push_str(&text),
            }
            out.push_str("\r\n");
        }
    }
    out.push_str("\r\n");
    let body = message.len().saturating_sub(offset);
    if body > 0 {
        let _ = write!(out, "[{body} octets of {kind} not shown]\r\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_keys_and_credentials_never_remain() {
        let body = "v=0\r\na=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:c2VjcmV0\r\n";
        for (message, about) in [
            (
                format!(
                    "INVITE sip:4930123456@x SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK1234567\r\nFrom: \"Ann\" <sip:4930777777@x>;tag=1\r\nAuthorization: Digest username=\"ann\",\r\n response=\"feed\"\r\nContent-Type: application/sdp\r\nContent-Length: 70\r\n\r\n{body}"
                ),
                "regular",
            ),
            (
                format!("INVITE sip:b@x SIP/2.0\nContent-Type: application/sdp\n\n{body}"),
                "bare line feeds",
            ),
            (format!("INVITE sip:b@x SIP/2.0\r\n{body}"), "no empty line"),
        ] {
            for numbers in [false, true] {
                let text = redact(message.as_bytes(), numbers);
                for secret in ["inline", "c2VjcmV0", "response", "feed"] {
                    assert!(!text.contains(secret), "{about}: {text}");
                }
                assert!(text.starts_with("INVITE sip:"), "{text}");
                if numbers {
                    assert!(!text.contains("4930") && !text.contains("Ann"), "{text}");
                }
            }
        }
        let text = redact(b"BYE sip:x SIP/2.0\r\nVia: a 123456\r\n\r\n", true);
        assert_eq!(text, "BYE sip:x SIP/2.0\r\nVia: a 123456\r\n\r\n");
    }

    #[test]
    fn numbers_keep_two_characters() {
        for (text, expected) in [
            ("sip:600@192.0.2.1", "sip:*00@192.0.2.1"),
            (
                "<SIPS:+4930123456@x;user=phone>",
                "<SIPS:********56@x;user=phone>",
            ),
            (
                "tel:+4930123456;phone-context=x",
                "tel:********56;phone-context=x",
            ),
            ("sip:192.0.2.1:5060", "sip:192.0.2.1:5060"),
            ("from 0301234567 to 600", "from ********67 to 600"),
            ("\"Ann B\" <sip:é@x>", "\"***\" <sip:*@x>"),
            ("\"open", "\"***\""),
        ] {
            assert_eq!(mask_numbers(text), expected);
        }
        assert_eq!((mask("600").as_str(), mask("7").as_str()), ("*00", "*"));
    }
}
