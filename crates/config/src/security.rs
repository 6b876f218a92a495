//! Media security towards an interface or a trunk: SRTP policy, keying, crypto suites, ICE.

use super::one_or_many::OneOrMany;
use super::sink::Sink;
use protect::srtp::Suite;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// SRTP policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SrtpPolicy {
    /// If the other side of a call has this policy too, keys and packets are passed from end to end unchanged.
    /// Otherwise SRTP is accepted when offered, but not offered by us.
    #[default]
    Pass,
    /// Plain RTP only.
    Refuse,
    /// Offered beside plain RTP (RFC 8643), and accepted when offered.
    Prefer,
    /// SRTP only.
    Require,
}

/// Keying methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Keying {
    /// Keys in session descriptions (RFC 4568).
    Sdes,
    /// DTLS handshake in the media path (RFC 5763, RFC 5764).
    Dtls,
}

/// Kind of ICE agent (RFC 8445).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Ice {
    /// None: candidates are removed from session descriptions.
    #[default]
    Off,
    /// An agent that answers connectivity checks.
    Lite,
    /// An agent that also sends connectivity checks.
    Full,
}

impl Ice {
    /// Whether the border is an ICE agent.
    pub fn is_on(self) -> bool {
        self != Ice::Off
    }
}

/// Multiplexing of RTCP with RTP (rtcp-mux, RFC 5761) towards a side, if the controller of an ng server requests it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mux {
    /// Offered, whatever the other side offers.
    Offer,
    /// Offered and assumed to be agreed.
    Require,
    /// Not offered. With DTLS or ICE, RTP and RTCP share a port nevertheless.
    Separate,
}

/// Media security towards a side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaSecurity {
    /// SRTP policy.
    pub srtp: SrtpPolicy,
    /// Keying methods, best first; at least one.
    pub keying: Vec<Keying>,
    /// Crypto suites with keys in SDP, best first; at least one.
    pub suites: Vec<Suite>,
    /// Crypto suites that DTLS may agree on. The association, and with it the call, ends if it agrees on another one.
    pub dtls_suites: Vec<Suite>,
    /// Kind of ICE agent.
    pub ice: Ice,
    /// Whether a profile with feedback (RFC 4585) is offered; `None`: as the other side does, and as DTLS requires.
    pub feedback: Option<bool>,
    /// Multiplexing of RTCP; `None`: it is offered if the other side offers it.
    pub mux: Option<Mux>,
}

impl Default for MediaSecurity {
    fn default() -> Self {
        MediaSecurity {
            srtp: SrtpPolicy::Pass,
            keying: vec![Keying::Sdes],
            suites: protect::sdes::Policy::default().suites,
            dtls_suites: protect::dtls::Settings::default().profiles,
            ice: Ice::Off,
            feedback: None,
            mux: None,
        }
    }
}

impl MediaSecurity {
    /// Whether all settings are the defaults, so that media is passed unchanged.
    pub fn is_pass(&self) -> bool {
        self.srtp == SrtpPolicy::Pass
            && !self.ice.is_on()
            && self.feedback.is_none()
            && self.mux.is_none()
    }

    /// Whether DTLS may be used.
    pub fn may_use_dtls(&self) -> bool {
        self.srtp != SrtpPolicy::Refuse && self.keying.contains(&Keying::Dtls)
    }

    /// Whether we may write keys into session descriptions that we compose.
    pub fn tells_keys(&self) -> bool {
        matches!(self.srtp, SrtpPolicy::Prefer | SrtpPolicy::Require)
            && self.keying.contains(&Keying::Sdes)
    }
}

/// The four keys as written in an interface or a trunk.
pub(super) struct Written<'r> {
    pub(super) srtp: Option<SrtpPolicy>,
    pub(super) keying: &'r OneOrMany<Keying>,
    pub(super) suites: &'r OneOrMany<String>,
    pub(super) ice: Option<Ice>,
}

/// The settings as written; defaults are those of `inherited`.
pub(super) fn media_security(
    written: &Written<'_>,
    inherited: &Arc<MediaSecurity>,
    path: &str,
    sink: &mut Sink<'_>,
) -> Arc<MediaSecurity> {
    let mut security = (**inherited).clone();
    if let Some(srtp) = written.srtp {
        security.srtp = srtp;
    }
    if let Some(ice) = written.ice {
        security.ice = ice;
    }
    let refused = security.srtp == SrtpPolicy::Refuse;
    let keying = written.keying.as_slice();
    if !keying.is_empty() {
        let at = format!("{path}.srtp_keying");
        if refused {
            without_effect("srtp_keying", &at, sink);
        }
        if keying.len() > 1 && keying.first() == keying.last() {
            sink.report(
                &at,
                "a keying method is listed twice",
                "list each method once",
            );
        }
        security.keying = keying.to_vec();
    }
    if !written.suites.as_slice().is_empty() {
        if refused {
            without_effect("srtp_suites", &format!("{path}.srtp_suites"), sink);
        }
        security.suites = suites(written.suites, path, sink);
        security.dtls_suites.clone_from(&security.suites);
    }
    let is_written = !keying.is_empty() || !written.suites.as_slice().is_empty();
    if is_written && security.may_use_dtls() && !security.suites.is_empty() {
        check_dtls_suites(&security.dtls_suites, path, sink);
    }
    match security == **inherited {
        true => inherited.clone(),
        false => Arc::new(security),
    }
}

/// DTLS offers and accepts all suites that its library supports, strongest first: one that is not listed would be
/// agreed on in place of a weaker one that is, and end the call.
fn check_dtls_suites(listed: &[Suite], path: &str, sink: &mut Sink<'_>) {
    let supported = protect::dtls::Settings::default().profiles;
    let at = format!("{path}.srtp_suites");
    let Some(weakest) = supported.iter().rposition(|suite| listed.contains(suite)) else {
        sink.report(
            &at,
            "DTLS supports none of these suites",
            "add AEAD_AES_128_GCM, AEAD_AES_256_GCM or AES_CM_128_HMAC_SHA1_80, or remove \"dtls\" from srtp_keying",
        );
        return;
    };
    let stronger = supported.iter().take(weakest);
    for missing in stronger.filter(|suite| !listed.contains(suite)) {
        sink.report(
            &at,
            format!(
                "DTLS agrees on {missing} with each peer that supports it, and the call would end"
            ),
            format!("add {missing}, or remove \"dtls\" from srtp_keying"),
        );
    }
}

fn without_effect(key: &str, at: &str, sink: &mut Sink<'_>) {
    sink.report(
        at,
        format!("`{key}` has no effect, because SRTP is refused"),
        "remove it, or set srtp = \"prefer\" or \"require\"",
    );
}

fn suites(written: &OneOrMany<String>, path: &str, sink: &mut Sink<'_>) -> Vec<Suite> {
    let base = format!("{path}.srtp_suites");
    let mut suites = Vec::new();
    for (index, name) in written.as_slice().iter().enumerate() {
        let at = written.path(&base, index);
        match Suite::from_name(name.as_bytes()).filter(|suite| suite.is_registered_for_sdes()) {
            Some(suite) if suites.contains(&suite) => {
                sink.report(
                    &at,
                    format!("{suite} is listed twice"),
                    "list each suite once",
                );
            }
            Some(suite) => suites.push(suite),
            None => {
                let known: Vec<&str> = Suite::ALL
                    .iter()
                    .filter(|suite| suite.is_registered_for_sdes())
                    .map(|suite| suite.name())
                    .collect();
                sink.report(
                    &at,
                    format!("crypto suite \"{name}\" is not supported"),
                    format!("use one of {}", known.join(", ")),
                );
            }
        }
    }
    suites
}
