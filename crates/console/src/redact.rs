//! Messages and numbers for readers who must not see everything: no bodies, no credentials, and numbers only in part.

use core::fmt::Write as _;
use std::net::IpAddr;

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
/// Headers about users, in full and compact form.
const USERS: [&str; 12] = [
    "From",
    "f",
    "To",
    "t",
    "P-Asserted-Identity",
    "P-Preferred-Identity",
    "Remote-Party-ID",
    "Diversion",
    "History-Info",
    "Refer-To",
    "r",
    "Referred-By",
];
/// The beginning of responses.
const VERSION: &str = "SIP/2.0 ";
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

/// A reason phrase in which numbers are masked although the users of its call are not known: all with two digits or
/// more, but for a status at the beginning.
pub fn mask_phrase(text: &str) -> String {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let status = if digits(text) == 3 { 3 } else { 0 };
    let (status, mut rest) = text.split_at(status);
    let mut users = MaskedUsers::default();
    while let Some(first) = rest.chars().next() {
        let row = digits(rest);
        if row >= 2 {
            users.add_user(rest.get(..row).unwrap_or_default());
        }
        rest = rest.get(row.max(first.len_utf8())..).unwrap_or_default();
    }
    format!(
        "{status}{}",
        users.mask(text.get(status.len()..).unwrap_or_default())
    )
}

/// Users of one call or exchange, which are masked wherever they stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaskedUsers(Vec<String>);

/// Users of one call that are masked, at most.
const MAX_USERS: usize = 64;

impl MaskedUsers {
    /// Adds a user, or the user of a URI. Hosts of URIs without user are no numbers.
    pub fn add(&mut self, text: &str) {
        match uri_user(text) {
            Some((_, user, _)) => self.add_user(user),
            None if text.contains(':') || text.parse::<IpAddr>().is_ok() => {}
            None => self.add_user(text),
        }
    }

    fn add_user(&mut self, user: &str) {
        // Of a user with a password or parameters, the name (RFC 3261, section 25.1).
        let user = user.split([':', ';']).next().unwrap_or_default();
        let known = self.0.iter().any(|known| known == user);
        if !user.is_empty() && !known && self.0.len() < MAX_USERS {
            self.0.push(user.to_owned());
        }
    }

    /// Adds the users that a message names in its start line and in From, To and further headers about users.
    pub fn add_message(&mut self, message: &[u8]) {
        for (index, line) in message.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii_end();
            if line.is_empty() {
                break;
            }
            let line = String::from_utf8_lossy(line);
            let name = line.split(':').next().unwrap_or_default().trim_end();
            let names_users = USERS.iter().any(|one| one.eq_ignore_ascii_case(name));
            if index > 0 && !names_users {
                continue;
            }
            let mut rest = &*line;
            while let Some(first) = rest.chars().next() {
                rest = match uri_user(rest) {
                    Some((_, user, after)) => {
                        self.add_user(user);
                        after
                    }
                    None => rest.get(first.len_utf8()..).unwrap_or_default(),
                };
            }
        }
    }

    /// A text in which these users, URIs, quoted names and numbers are masked. See [`mask_numbers`].
    pub fn mask(&self, text: &str) -> String {
        mask_numbers(&self.mask_users(text))
    }

    /// Masks the users where they are words of their own; neither in longer words nor in addresses and versions.
    fn mask_users(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        let mut before = (' ', ' ');
        while let Some(first) = rest.chars().next() {
            let is_start = begins_word(before);
            let users = self
                .0
                .iter()
                .filter(|user| is_start && ends_word(rest, user));
            let taken = match users.max_by_key(|user| user.len()) {
                Some(user) => {
                    out.push_str(&mask(user));
                    user.as_str()
                }
                None => {
                    out.push(first);
                    rest.get(..first.len_utf8()).unwrap_or(rest)
                }
            };
            for one in taken.chars() {
                before = (before.1, one);
            }
            rest = rest.get(taken.len()..).unwrap_or_default();
        }
        out
    }
}

/// Whether a word can begin after these two characters: not inside of a word, nor in an address, a port or a version.
fn begins_word((second, last): (char, char)) -> bool {
    let is_port = last == ':' && (second.is_ascii_digit() || second == ']');
    !last.is_alphanumeric() && last != '.' && !is_port
}

/// Whether the text begins with this word.
fn ends_word(text: &str, word: &str) -> bool {
    let Some(after) = text.strip_prefix(word) else {
        return false;
    };
    let mut after = after.chars();
    match after.next() {
        // A full stop after a user ends a sentence; in an address more follows.
        Some('.') => !after.next().is_some_and(char::is_alphanumeric),
        Some(next) => !next.is_alphanumeric(),
        None => true,
    }
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

/// The start line and headers of a message without credentials; the body is replaced by its size. With `users`, numbers
/// and these users are masked too. Lines in the head that are no headers are left out, because a malformed message
/// could carry its body there.
pub fn redact(message: &[u8], users: Option<&MaskedUsers>) -> String {
    let masked = |text: &str| match users {
        Some(users) => users.mask(text),
        None => text.to_owned(),
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
            // A user may have the number of the status.
            let status = text.strip_prefix(VERSION).and_then(|rest| rest.get(..3));
            let kept = status.map_or(0, |status| VERSION.len() + status.len());
            let (status, rest) = text.split_at(kept);
            out.push_str(status);
            out.push_str(&masked(rest));
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
                let users = MaskedUsers::default();
                let text = redact(message.as_bytes(), numbers.then_some(&users));
                for secret in ["inline", "c2VjcmV0", "response", "feed"] {
                    assert!(!text.contains(secret), "{about}: {text}");
                }
                assert!(text.starts_with("INVITE sip:"), "{text}");
                if numbers {
                    assert!(!text.contains("4930") && !text.contains("Ann"), "{text}");
                }
            }
        }
        let users = MaskedUsers::default();
        let text = redact(b"BYE sip:x SIP/2.0\r\nVia: a 123456\r\n\r\n", Some(&users));
        assert_eq!(text, "BYE sip:x SIP/2.0\r\nVia: a 123456\r\n\r\n");
    }

    #[test]
    fn short_numbers_and_names_of_a_call_are_masked_in_free_text() {
        let invite = "INVITE sip:1600@x SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK600\r\nFrom: <sip:ann;x=1@x>;tag=1\r\nt: \"A\" <sip:600:secret@x>\r\nDiversion: <tel:0049;x=y>, <sip:192.0.2.1:5060>\r\nSubject: 600 for ann\r\nX-Note: 600, 6000 and 192.0.2.600\r\n\r\nsip:7@x";
        let mut users = MaskedUsers::default();
        users.add("600");
        users.add("sip:600@x");
        users.add("sip:192.0.2.1");
        users.add_message(invite.as_bytes());
        assert_eq!(users.0, ["600", "1600", "ann", "0049"]);
        for (text, expected) in [
            (
                "600 refused: call 1600, ann!",
                "*00 refused: call **00, *nn!",
            ),
            ("to=600;600", "to=*00;*00"),
            // Not in longer words, addresses, ports and versions.
            ("6000 160 annie x600 600x", "6000 160 annie x600 600x"),
            (
                "192.0.2.600:600 [::1]:600 600.1",
                "192.0.2.600:600 [::1]:600 600.1",
            ),
            ("This is 600. And 600", "This is *00. And *00"),
            ("é600 600é", "é600 600é"),
            ("sip:600@x from 0301234567", "sip:*00@x from ********67"),
        ] {
            assert_eq!(users.mask(text), expected);
        }
        assert_eq!(
            mask_phrase("486 Extension 600 busy (4930123456)"),
            "486 Extension *00 busy (********56)"
        );
        users.add("200");
        let text = redact(b"SIP/2.0 200 200 is there\r\n\r\n", Some(&users));
        assert!(text.starts_with("SIP/2.0 200 *00 is there"), "{text}");
        let text = redact(invite.as_bytes(), Some(&users));
        assert!(text.contains("Subject: *00 for *nn\r\n"), "{text}");
        assert!(text.contains("X-Note: *00, 6000 and 192.0.2.600"), "{text}");
        assert!(text.contains("branch=z9hG4bK600"), "{text}");
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
