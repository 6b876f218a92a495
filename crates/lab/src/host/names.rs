//! URIs and names of one request, written into reused buffers.

use std::fmt::{Display, Write as _};
use std::net::SocketAddr;

/// The buffers.
#[derive(Debug, Default)]
pub(crate) struct UriBuffers {
    /// The host part of URIs: that of the plan, or an address.
    domain: String,
    /// The address from which `domain` was written.
    of: Option<SocketAddr>,
    /// Request-URI.
    pub(crate) uri: String,
    /// From, and To if it is the same.
    pub(crate) from: String,
    /// Contact.
    pub(crate) contact: String,
}

impl UriBuffers {
    /// Writes `sip:USER@DOMAIN` (without a user `sip:DOMAIN`) and `<sip:FROM@DOMAIN>`; the domain is `planned`, or the
    /// address `remote` where that is empty.
    pub(crate) fn write(&mut self, planned: &str, remote: SocketAddr, user: &str, from: &str) {
        let domain = match planned {
            "" => {
                if self.of != Some(remote) {
                    self.domain = remote.to_string();
                    self.of = Some(remote);
                }
                &self.domain
            }
            planned => planned,
        };
        let at = if user.is_empty() { "" } else { "@" };
        set(&mut self.uri, &["sip:", user, at, domain]);
        set(&mut self.from, &["<sip:", from, "@", domain, ">"]);
    }

    /// Writes `<sip:USER@HOST` and the parameter.
    pub(crate) fn write_contact(&mut self, user: &str, host: impl Display, parameter: &str) {
        set(&mut self.contact, &["<sip:", user, "@"]);
        // Writing into a String cannot fail.
        let _ = write!(self.contact, "{host}{parameter}>");
    }
}

fn set(text: &mut String, parts: &[&str]) {
    text.clear();
    for part in parts {
        text.push_str(part);
    }
}

/// Appends hexadecimal digits, at least `least` of them.
pub(crate) fn hex(value: u64, least: usize, out: &mut String) {
    let needed = (64 - value.leading_zeros() as usize).div_ceil(4);
    for place in (0..needed.max(least).max(1)).rev() {
        let digit = (value >> (4 * place)) as u32 & 15;
        out.push(char::from_digit(digit, 16).unwrap_or('0'));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_overwritten() {
        let mut names = UriBuffers::default();
        let (one, two) = ([192, 0, 2, 1], [192, 0, 2, 2]);
        let address = |ip: [u8; 4]| SocketAddr::from((ip, 5060));
        for (planned, ip, domain) in [
            ("", one, "192.0.2.1:5060"),
            ("example.com", one, "example.com"),
            ("", two, "192.0.2.2:5060"),
            ("", one, "192.0.2.1:5060"),
        ] {
            names.write(planned, address(ip), "5555", "alice");
            assert_eq!(names.uri, format!("sip:5555@{domain}"));
            assert_eq!(names.from, format!("<sip:alice@{domain}>"));
            names.write(planned, address(ip), "", "bob");
            assert_eq!(names.uri, format!("sip:{domain}"));
        }
        names.write_contact("alice", address(one), ";transport=tcp");
        assert_eq!(names.contact, "<sip:alice@192.0.2.1:5060;transport=tcp>");
    }

    #[test]
    fn hexadecimal_digits_match_the_library() {
        for value in [0, 1, 15, 16, 255, 0x1234_5678, u64::MAX] {
            let mut text = String::new();
            hex(value, 1, &mut text);
            hex(value, 8, &mut text);
            assert_eq!(text, format!("{value:x}{value:08x}"));
        }
    }
}
