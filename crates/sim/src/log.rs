//! The log of a run: every input, output, loss and event as a line of text; kept, or only digested.

use engine::{Time, push_digits};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::fmt::{self, Write as _};
use std::hash::Hasher;
use std::net::SocketAddr;

/// Level of detail of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Events and faults only.
    Events,
    /// Also each packet and connection: addresses, length, digest of the payload, fate.
    Packets,
    /// Also each payload, with bytes outside printable ASCII escaped.
    Payloads,
}

pub(crate) struct Log {
    pub(crate) detail: Detail,
    kept: Option<Vec<u8>>,
    digest: SipHasher13,
    line: String,
}

impl Log {
    pub(crate) fn new() -> Log {
        Log {
            detail: Detail::Packets,
            kept: None,
            digest: SipHasher13::new(),
            line: String::new(),
        }
    }

    pub(crate) fn keep(&mut self) {
        self.kept.get_or_insert_default();
    }

    pub(crate) fn kept(&self) -> &[u8] {
        self.kept.as_deref().unwrap_or_default()
    }

    pub(crate) fn digest(&self) -> u128 {
        self.digest.finish128().as_u128()
    }

    /// Writes a line, if the log has this level of detail.
    pub(crate) fn line(&mut self, level: Detail, text: fmt::Arguments<'_>) {
        if level > self.detail {
            return;
        }
        self.line.clear();
        // Writing to memory cannot fail.
        let _ = self.line.write_fmt(text);
        self.end_line();
    }

    fn end_line(&mut self) {
        self.line.push('\n');
        self.digest.write(self.line.as_bytes());
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(self.line.as_bytes());
        }
    }

    /// The digest of a payload in the lines of its packet; `None` if the log has no packets.
    pub(crate) fn payload_digest(&self, bytes: &[u8]) -> Option<u64> {
        (self.detail >= Detail::Packets).then(|| digest_of(bytes))
    }

    /// The line of a packet, if the log has packets: most lines of a run, so they are written without the formatter.
    pub(crate) fn packet(
        &mut self,
        now: Time,
        what: &str,
        (source, to): (SocketAddr, SocketAddr),
        (length, digest): (usize, u64),
    ) {
        if self.detail < Detail::Packets {
            return;
        }
        let line = &mut self.line;
        line.clear();
        push_digits(line, now.0 / 1_000_000_000, 1);
        line.push('.');
        push_digits(line, now.0 % 1_000_000_000, 9);
        line.push(' ');
        line.push_str(what);
        for address in [source, to] {
            line.push(' ');
            push_address(line, address);
        }
        line.push(' ');
        push_digits(line, length as u64, 1);
        line.push(' ');
        push_hex(line, digest);
        self.end_line();
    }

    /// Writes a payload, if the log has payloads.
    pub(crate) fn payload(&mut self, bytes: &[u8]) {
        if self.detail >= Detail::Payloads {
            self.line(Detail::Payloads, format_args!("  {}", bytes.escape_ascii()));
        }
    }
}

/// A short digest of a payload.
pub(crate) struct Short<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", digest_of(self.0))
    }
}

fn digest_of(bytes: &[u8]) -> u64 {
    let mut hasher = siphasher::sip::SipHasher13::new();
    hasher.write(bytes);
    hasher.finish()
}

fn push_hex(line: &mut String, number: u64) {
    for place in (0..16).rev() {
        let digit = (number >> (4 * place)) as usize & 15;
        line.push(char::from(b"0123456789abcdef"[digit]));
    }
}

fn push_address(line: &mut String, address: SocketAddr) {
    let SocketAddr::V4(v4) = address else {
        // As above.
        let _ = write!(line, "{address}");
        return;
    };
    for (place, octet) in v4.ip().octets().into_iter().enumerate() {
        if place > 0 {
            line.push('.');
        }
        push_digits(line, u64::from(octet), 1);
    }
    line.push(':');
    push_digits(line, u64::from(v4.port()), 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_line_is_that_of_the_formatter() {
        let mut log = Log::new();
        log.keep();
        let mut expected = String::new();
        let ends = [
            "0.0.0.0:0",
            "10.0.0.255:5060",
            "192.168.100.1:65535",
            "[2001:db8::1]:4000",
            "[::ffff:10.0.0.1]:1",
        ]
        .map(|text| text.parse::<SocketAddr>().unwrap());
        let times = [
            0,
            1,
            999_999_999,
            1_000_000_000,
            12_345_000_000_678,
            u64::MAX,
        ];
        let bytes: Vec<u8> = (0..=255).collect();
        for (number, now) in times.map(Time).into_iter().enumerate() {
            for source in ends {
                for to in ends {
                    let bytes = &bytes[..number * 40];
                    let (length, short) = (bytes.len(), Short(bytes));
                    expected += &format!("{now} udp {source} {to} {length} {short}\n");
                    let digest = log.payload_digest(bytes).unwrap();
                    log.packet(now, "udp", (source, to), (length, digest));
                }
            }
        }
        assert_eq!(String::from_utf8_lossy(log.kept()), expected);
        let mut formatted = Log::new();
        for line in expected.lines() {
            formatted.line(Detail::Packets, format_args!("{line}"));
        }
        assert_eq!(log.digest(), formatted.digest());
        log.detail = Detail::Events;
        let before = log.digest();
        assert_eq!(log.payload_digest(b"x"), None);
        log.packet(Time(1), "udp", (ends[0], ends[1]), (1, 0));
        assert_eq!(log.digest(), before);
    }
}
