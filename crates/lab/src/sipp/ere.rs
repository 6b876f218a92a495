//! POSIX extended regular expressions, as in SIPp's `ereg`, on top of the `regex` library.
//!
//! Differences of notation are rewritten: in brackets a backslash is literal, a brace without a count is literal, a dot
//! matches line ends, and `^` and `$` are the ends of the text. One difference remains: among several matches POSIX
//! takes the longest, the library the first alternative. It matters if an alternative is a prefix of a later one.

use regex::bytes::{Regex, RegexBuilder};

/// Memory limit of one compiled expression, bytes.
const SIZE: usize = 1 << 20;

/// Compiles an expression.
///
/// # Errors
/// Not a valid expression, one with references to its groups, or one that is too large.
pub fn compile(expression: &str) -> Result<Regex, String> {
    let text = rewrite(expression)?;
    RegexBuilder::new(&text)
        .unicode(false)
        .dot_matches_new_line(true)
        .size_limit(SIZE)
        .dfa_size_limit(SIZE)
        .nest_limit(60)
        .build()
        .map_err(|error| match error {
            regex::Error::Syntax(_) => format!("{expression:?} is not a regular expression"),
            error => format!("{expression:?}: {error}"),
        })
}

/// Rewrites POSIX notation to the library's. Characters represent bytes.
fn rewrite(expression: &str) -> Result<String, String> {
    let characters: Vec<char> = expression.chars().collect();
    let mut out = String::with_capacity(expression.len() + 8);
    let mut at = 0;
    // Whether the part before repeats something, and whether a count of repetitions is open.
    let (mut repeats, mut counts) = (false, false);
    while let Some(&character) = characters.get(at) {
        at += 1;
        let after_repetition = std::mem::take(&mut repeats);
        match character {
            '\\' => {
                let next = characters.get(at).copied();
                at += 1;
                match next {
                    // GNU extensions of POSIX.
                    Some('w' | 'W' | 's' | 'S' | 'b' | 'B' | '<' | '>') => {
                        out.push('\\');
                        out.extend(next);
                    }
                    Some('1'..='9') => {
                        return Err(format!(
                            "{expression:?}: references to groups are not supported"
                        ));
                    }
                    Some('`') => out.push_str("\\A"),
                    Some('\'') => out.push_str("\\z"),
                    Some(next) => push(next, &mut out),
                    None => out.push_str("\\\\"),
                }
            }
            '[' => at = bracket(&characters, at, &mut out),
            '{' if !is_count(characters.get(at..).unwrap_or_default()) => out.push_str("\\{"),
            // POSIX has no groups with a question mark; the library gives them another meaning.
            '(' if characters.get(at) == Some(&'?') => out.push_str("(\\"),
            // Behind a repetition it makes that one optional; the library would take the shortest match.
            '?' if after_repetition => {
                out.push_str("{0,1}");
                repeats = true;
            }
            '*' | '+' | '?' => {
                out.push(character);
                repeats = true;
            }
            '{' => {
                out.push(character);
                // Without a first number the count begins at zero.
                if characters.get(at) == Some(&',') {
                    out.push('0');
                }
                counts = true;
            }
            '}' => {
                out.push(character);
                repeats = std::mem::take(&mut counts);
            }
            '^' | '$' | '.' | '(' | ')' | '|' => out.push(character),
            character => push(character, &mut out),
        }
    }
    Ok(out)
}

/// One literal character.
fn push(character: char, out: &mut String) {
    let code = u32::from(character);
    if code >= 0x80 {
        // The expression matches bytes.
        let mut bytes = [0; 4];
        match u8::try_from(code) {
            Ok(byte) => out.push_str(&format!("(?-u:\\x{byte:02x})")),
            Err(_) => {
                for byte in character.encode_utf8(&mut bytes).bytes() {
                    out.push_str(&format!("(?-u:\\x{byte:02x})"));
                }
            }
        }
    } else {
        out.push_str(&regex::escape(character.encode_utf8(&mut [0; 4])));
    }
}

/// Whether an interval follows: digits, optional comma and digits, closing brace; glibc has the first digits optional.
fn is_count(rest: &[char]) -> bool {
    let Some(end) = rest.iter().position(|character| *character == '}') else {
        return false;
    };
    let inside = rest.get(..end).unwrap_or_default();
    let digits = |part: &[char]| part.iter().all(char::is_ascii_digit);
    let mut parts = inside.splitn(2, |character| *character == ',');
    let first = parts.next().unwrap_or_default();
    match parts.next() {
        None => !first.is_empty() && digits(first),
        Some(last) => digits(first) && digits(last),
    }
}

/// The character of a collating element, or of an equivalence class, that begins a text: `[.a.]`, `[=a=]`.
fn collated(text: &[char]) -> Option<char> {
    match text {
        ['[', kind @ ('.' | '='), one, end, ']', ..] if kind == end => Some(*one),
        _ => None,
    }
}

/// A bracket expression, after its `[`; returns its end. An unclosed bracket is literal.
fn bracket(characters: &[char], from: usize, out: &mut String) -> usize {
    let mut at = from;
    let negated = characters.get(at) == Some(&'^');
    at += usize::from(negated);
    let mut inside = String::new();
    let mut first = true;
    loop {
        if let Some(character) = collated(characters.get(at..).unwrap_or_default()) {
            inside.push_str(&regex::escape(character.encode_utf8(&mut [0; 4])));
            at += 5;
            first = false;
            continue;
        }
        match characters.get(at) {
            None => {
                out.push_str("\\[");
                return from;
            }
            Some(']') if !first => break,
            Some('[') if matches!(characters.get(at + 1), Some(':')) => {
                let rest = characters.get(at..).unwrap_or_default();
                match rest.windows(2).position(|pair| pair == [':', ']']) {
                    Some(end) => {
                        inside.extend(rest.iter().take(end + 2));
                        at += end + 2;
                    }
                    None => {
                        inside.push_str("\\[");
                        at += 1;
                    }
                }
            }
            // A range keeps its dash; a dash at either end is literal.
            Some('-') if !first && !matches!(characters.get(at + 1), None | Some(']')) => {
                inside.push('-');
                at += 1;
            }
            Some(&character) => {
                match u8::try_from(u32::from(character)) {
                    Ok(byte) => inside.push_str(&format!("\\x{byte:02x}")),
                    Err(_) => inside.push(character),
                }
                at += 1;
            }
        }
        first = false;
    }
    out.push('[');
    if negated {
        out.push('^');
    }
    out.push_str(&inside);
    out.push(']');
    at + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(expression: &str, text: &str) -> Option<Vec<String>> {
        let captures = compile(expression).unwrap().captures(text.as_bytes())?;
        Some(
            captures
                .iter()
                .map(|group| {
                    group.map_or(String::new(), |group| {
                        String::from_utf8_lossy(group.as_bytes()).into_owned()
                    })
                })
                .collect(),
        )
    }

    #[test]
    fn examples_of_the_sipp_documentation() {
        assert_eq!(
            found(
                "o=([[:alnum:]]*) ([[:alnum:]]*) ([[:alnum:]]*)",
                "\r\no=user1 53655765 2353687637 IN"
            )
            .unwrap(),
            [
                "o=user1 53655765 2353687637",
                "user1",
                "53655765",
                "2353687637"
            ]
        );
        let address = "([0-9]{1,3}\\.){3}[0-9]{1,3}:[0-9]*";
        assert_eq!(
            found(address, "Via: 10.0.0.1:5060;x").unwrap()[0],
            "10.0.0.1:5060"
        );
        assert_eq!(
            found("<sip:([^;@]*)", "To: <sip:bob@x>").unwrap(),
            ["<sip:bob", "bob"]
        );
        assert_eq!(
            found(
                "Digest .*username=\"([^\"]*)\"",
                "Digest a=b, username=\"joe\""
            )
            .unwrap()[1],
            "joe"
        );
    }

    #[test]
    fn posix_notation_differs_from_perl() {
        // A backslash in brackets is literal, a dot matches line ends, a lone brace is literal.
        assert_eq!(found("[\\n]+", "a\\nb").unwrap(), ["\\n"]);
        assert_eq!(found("a.b", "a\nb").unwrap(), ["a\nb"]);
        assert_eq!(found("{a", "x{a").unwrap(), ["{a"]);
        assert_eq!(found("[]a-]+", "-]a").unwrap(), ["-]a"]);
        assert_eq!(found("[a&&b]+", "&b").unwrap(), ["&b"]);
        assert_eq!(found("^b", "a\nb"), None);
        assert_eq!(found("[[:digit:]x-z]+", "ay9z").unwrap(), ["y9z"]);
        // A question mark behind a repetition does not shorten it, as glibc has it.
        for (expression, text, whole) in [
            ("a.*?b", "a1b2b", "a1b2b"),
            ("a[0-9]+?", "a12", "a12"),
            ("xa{2,3}?", "xaaa", "xaaa"),
            ("xa{2,3}?", "xa", "x"),
            ("xa??", "xa", "xa"),
            ("x}?y", "xy", "xy"),
            ("a{,3}", "aaaa", "aaa"),
            ("[[.a.][=b=]]+", "cabd", "ab"),
            ("a\\*?b", "a*b", "a*b"),
        ] {
            assert_eq!(found(expression, text).unwrap(), [whole], "{expression}");
        }
        assert!(compile("(.)\\1").unwrap_err().contains("references"));
        assert!(compile("a(").is_err());
        assert!(compile("(a{1000}){1000}").is_err());
    }
}
