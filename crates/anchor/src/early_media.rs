//! Authorisation of early media (RFC 5009).

use serde::{Deserialize, Serialize};
use wire::sip::{HeaderId, Message};

/// Authorised early media (RFC 5009 section 8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlyMedia {
    /// From the callee to the caller.
    pub backward: bool,
    /// From the caller to the callee.
    pub forward: bool,
}

impl EarlyMedia {
    /// Authorisation in a message of the callee; `None` if it has none. Of several values, collected by a forking
    /// network, the most permissive counts.
    pub fn of(message: &Message<'_>) -> Option<EarlyMedia> {
        let mut found = None;
        for value in message.values(HeaderId::PEarlyMedia) {
            let (backward, forward) = match value {
                value if value.eq_ignore_ascii_case(b"sendrecv") => (true, true),
                value if value.eq_ignore_ascii_case(b"sendonly") => (true, false),
                value if value.eq_ignore_ascii_case(b"recvonly") => (false, true),
                value if value.eq_ignore_ascii_case(b"inactive") => (false, false),
                _ => continue,
            };
            let other = found.unwrap_or(EarlyMedia::default());
            found = Some(EarlyMedia {
                backward: backward || other.backward,
                forward: forward || other.forward,
            });
        }
        found
    }
}
