//! Syslog messages (RFC 5424), and their framing on streams by octet counting (RFC 6587 section 3.4.1, RFC 5425 section
//! 4.3).

use core::fmt::Write as _;

/// Longest value of a parameter that is written, characters.
const MAX_VALUE: usize = 512;
/// Longest text that is written, characters.
const MAX_TEXT: usize = 1_024;
/// Mark of UTF-8 before a text (RFC 5424 section 6.4).
const BOM: &str = "\u{feff}";

/// A syslog message with one element of structured data.
#[derive(Clone, Copy, Debug)]
pub struct SyslogMessage<'a> {
    /// Facility, 0 to 23.
    pub facility: u8,
    /// Severity, 0 (emergency) to 7 (debug).
    pub severity: u8,
    /// RFC 3339 with at most six decimals.
    pub timestamp: &'a str,
    /// Name of the sender; at most 255 characters are written.
    pub host: &'a str,
    /// Name of the program; at most 48 characters are written.
    pub program: &'a str,
    /// Number of its process.
    pub process: u32,
    /// Kind of the message; at most 32 characters are written.
    pub kind: &'a str,
    /// Identifier of the structured data: a name, `@` and an enterprise number.
    pub data: &'a str,
    /// Its parameters.
    pub parameters: &'a [(&'a str, &'a str)],
    /// Text.
    pub text: &'a str,
}

/// Appends a field of the header: printable ASCII of a limited length, `-` if it is empty.
fn header_field(out: &mut String, text: &str, longest: usize) {
    let before = out.len();
    let printable = text.chars().filter(char::is_ascii_graphic);
    out.extend(printable.take(longest));
    if out.len() == before {
        out.push('-');
    }
}

/// Appends text of a limited length with spaces in place of control characters.
fn plain(out: &mut String, text: &str, longest: usize) {
    let visible = |char: char| if char.is_control() { ' ' } else { char };
    out.extend(text.chars().take(longest).map(visible));
}

impl SyslogMessage<'_> {
    /// The message. Characters that its fields cannot have are left out, control characters become spaces.
    pub fn to_text(&self) -> String {
        let mut out = String::with_capacity(512);
        let priority = u32::from(self.facility.min(23)) * 8 + u32::from(self.severity.min(7));
        // Writing to a String cannot fail.
        let _ = write!(out, "<{priority}>1 ");
        header_field(&mut out, self.timestamp, 48);
        out.push(' ');
        header_field(&mut out, self.host, 255);
        out.push(' ');
        header_field(&mut out, self.program, 48);
        let _ = write!(out, " {} ", self.process);
        header_field(&mut out, self.kind, 32);
        let _ = write!(out, " [{}", self.data);
        for (name, value) in self.parameters {
            let _ = write!(out, " {name}=\"");
            let mut shown = String::new();
            plain(&mut shown, value, MAX_VALUE);
            // RFC 5424 section 6.3.3.
            for char in shown.chars() {
                if matches!(char, '"' | '\\' | ']') {
                    out.push('\\');
                }
                out.push(char);
            }
            out.push('"');
        }
        out.push_str("] ");
        if !self.text.is_ascii() {
            out.push_str(BOM);
        }
        plain(&mut out, self.text, MAX_TEXT);
        out
    }
}

/// A message with its length in octets, as it is sent on a stream.
pub fn counted(message: &str) -> Vec<u8> {
    let mut out = format!("{} ", message.len()).into_bytes();
    out.extend_from_slice(message.as_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_has_the_form_of_the_rfc() {
        let mut message = SyslogMessage {
            facility: 3,
            severity: 1,
            timestamp: "2026-01-02T03:04:05.000006Z",
            host: "border 1",
            program: "hornwork",
            process: 7,
            kind: "trunk_down",
            data: "hornwork@32473",
            parameters: &[("id", "1"), ("object", "a\"b]c\\d\r\n")],
            text: "trunk down",
        };
        assert_eq!(
            message.to_text(),
            "<25>1 2026-01-02T03:04:05.000006Z border1 hornwork 7 trunk_down [hornwork@32473 id=\"1\" object=\"a\\\"b\\]c\\\\d  \"] trunk down"
        );
        message.host = "";
        message.text = "Überlast\n";
        let text = message.to_text();
        assert!(text.contains("Z - hornwork 7"), "{text}");
        assert!(text.ends_with("] \u{feff}Überlast "), "{text}");
        // Octets are counted, not characters.
        assert!(counted("Ü").starts_with(b"2 "));
    }
}
