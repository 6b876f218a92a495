//! SRTP of callers: keys in the session description (RFC 4568).

use super::{HostCallKey, note};
use crate::host::HostState;
use engine::Entropy;
use protect::sdes::{self, CryptoAttribute, Policy};
use protect::srtp::{ContextLimits, Suite};
use wire::sdp::Sdp;

/// The mandatory crypto suite (RFC 4568 section 6.2), also that of the systems in the studies.
fn policy() -> Policy {
    Policy {
        suites: vec![Suite::AesCm128HmacSha1_80],
        ..Policy::default()
    }
}

/// Generates keys for an offer.
///
/// # Errors
/// The reason why no keys could be generated.
pub(super) fn keys(entropy: &mut Entropy) -> Result<Vec<CryptoAttribute>, String> {
    sdes::offer(&policy(), entropy).map_err(|error| error.to_string())
}

/// The lines of an offer with these keys.
pub(super) fn lines(keys: &[CryptoAttribute]) -> Vec<String> {
    let line = |key: &CryptoAttribute| format!("a=crypto:{}", key.value().as_str());
    keys.iter().map(line).collect()
}

impl HostState {
    /// Applies the answer to an offer with keys. Without matching keys nothing is sent: the call has no media.
    pub(super) fn secure(&mut self, key: HostCallKey, session: u32, answer: &[u8]) {
        let Some(call) = self.call(key).filter(|call| !call.keys.is_empty()) else {
            return;
        };
        let keys = std::mem::take(&mut call.keys);
        let contexts = contexts(&keys, answer);
        let contexts = match contexts {
            Ok(contexts) => Some(contexts),
            Err(why) => {
                note(&mut call.attempt.why, &format!("SRTP: {why}"));
                None
            }
        };
        self.media.secure(session, contexts);
    }
}

fn contexts(keys: &[CryptoAttribute], answer: &[u8]) -> Result<protect::srtp::Contexts, String> {
    let sdp = Sdp::parse(answer).map_err(|error| error.to_string())?;
    let audio = sdp.media().find(|media| media.line.kind == b"audio");
    let audio = audio.ok_or("no audio in the answer")?;
    let values = audio.section.attributes(b"crypto");
    let agreed = sdes::accept(&policy(), keys, values).map_err(|refusal| refusal.to_string())?;
    agreed
        .contexts(ContextLimits::default())
        .map_err(|error| error.to_string())
}
