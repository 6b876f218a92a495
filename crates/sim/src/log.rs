//! The log of a run: every input, output, loss and event as a line of text; kept, or only digested.

use siphasher::sip128::{Hasher128, SipHasher13};
use std::fmt;
use std::hash::Hasher;

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
        // Writing to a string cannot fail.
        let _ = fmt::Write::write_fmt(&mut self.line, text);
        self.line.push('\n');
        self.digest.write(self.line.as_bytes());
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(self.line.as_bytes());
        }
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
        let mut hasher = siphasher::sip::SipHasher13::new();
        hasher.write(self.0);
        write!(f, "{:016x}", hasher.finish())
    }
}
