//! How media is protected towards an interface or a trunk: SRTP policy, keying, suites, ICE.

use super::check::Sink;
use super::raw::OneOrMany;
use protect::srtp::Suite;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What is done about SRTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SrtpPolicy {
    /// Where the other side of a call says `pass` as well, keys and packets pass from end to end as they come. Else: taken where it
    /// is offered, not offered by us.
    #[default]
    Pass,
    /// Only media in the clear.
    Refuse,
    /// Offered beside media in the clear (RFC 8643) and taken where it is offered.
    Prefer,
    /// Only SRTP.
    Require,
}

/// How keys are agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Keying {
    /// In session descriptions (RFC 4568).
    Sdes,
    /// By a DTLS handshake in the media path (RFC 5763, RFC 5764).
    Dtls,
}

/// Which kind of ICE agent we are (RFC 8445).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Ice {
    /// None: candidates are taken out of descriptions.
    #[default]
    Off,
    /// We answer checks.
    Lite,
    /// We send checks as well.
    Full,
}

impl Ice {
    /// Whether we are an agent at all.
    pub fn is_on(self) -> bool {
        self != Ice::Off
    }
}

/// What becomes of RTCP on the port of RTP (rtcp-mux, RFC 5761) towards a side, where whoever commands a media node says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mux {
    /// We offer it, whatever the other side does.
    Offer,
    /// The same, and it counts as agreed on.
    Require,
    /// We do not offer it. Where DTLS or ICE is spoken, RTP and RTCP share a port all the same.
    Separate,
}

/// How media towards a side is protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaSecurity {
    /// What is done about SRTP.
    pub srtp: SrtpPolicy,
    /// How keys are agreed on, the best first; at least one.
    pub keying: Vec<Keying>,
    /// Crypto suites, the best first; at least one.
    pub suites: Vec<Suite>,
    /// Which kind of ICE agent we are there.
    pub ice: Ice,
    /// Whether a profile with feedback (RFC 4585) is offered there; `None`: as the other side does, and as DTLS demands.
    pub feedback: Option<bool>,
    /// What becomes of rtcp-mux there; `None`: it is offered where the other side does.
    pub mux: Option<Mux>,
}

impl Default for MediaSecurity {
    fn default() -> Self {
        MediaSecurity {
            srtp: SrtpPolicy::Pass,
            keying: vec![Keying::Sdes],
            suites: protect::sdes::Policy::default().suites,
            ice: Ice::Off,
            feedback: None,
            mux: None,
        }
    }
}

impl MediaSecurity {
    /// Whether nothing is asked of media here.
    pub fn is_pass(&self) -> bool {
        self.srtp == SrtpPolicy::Pass
            && !self.ice.is_on()
            && self.feedback.is_none()
            && self.mux.is_none()
    }

    /// Whether DTLS may come to be spoken here.
    pub fn may_use_dtls(&self) -> bool {
        self.srtp != SrtpPolicy::Refuse && self.keying.contains(&Keying::Dtls)
    }

    /// Whether keys may stand in session descriptions that we write on our own account.
    pub(crate) fn tells_keys(&self) -> bool {
        matches!(self.srtp, SrtpPolicy::Prefer | SrtpPolicy::Require)
            && self.keying.contains(&Keying::Sdes)
    }
}

/// The four keys as they are written in an interface or a trunk.
pub(super) struct Written<'r> {
    pub(super) srtp: Option<SrtpPolicy>,
    pub(super) keying: &'r OneOrMany<Keying>,
    pub(super) suites: &'r OneOrMany<String>,
    pub(super) ice: Option<Ice>,
}

/// What is written, where it is not what `inherited` says already.
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
            sink.report(&at, "the same keying twice", "name each once");
        }
        security.keying = keying.to_vec();
    }
    if !written.suites.as_slice().is_empty() {
        if refused {
            without_effect("srtp_suites", &format!("{path}.srtp_suites"), sink);
        }
        security.suites = suites(written.suites, path, sink);
    }
    let dtls = |suite: &Suite| protect::dtls::Settings::default().profiles.contains(suite);
    if security.may_use_dtls() && !security.suites.is_empty() && !security.suites.iter().any(dtls) {
        sink.report(
            &format!("{path}.srtp_suites"),
            "none of these suites can be agreed on by DTLS",
            "add AEAD_AES_128_GCM, AEAD_AES_256_GCM or AES_CM_128_HMAC_SHA1_80, or take \"dtls\" out of srtp_keying",
        );
    }
    match security == **inherited {
        true => inherited.clone(),
        false => Arc::new(security),
    }
}

fn without_effect(key: &str, at: &str, sink: &mut Sink<'_>) {
    sink.report(
        at,
        format!("`{key}` has no effect, because SRTP is refused"),
        "take it out, or write srtp = \"prefer\" or \"require\"",
    );
}

fn suites(written: &OneOrMany<String>, path: &str, sink: &mut Sink<'_>) -> Vec<Suite> {
    let base = format!("{path}.srtp_suites");
    let mut suites = Vec::new();
    for (index, name) in written.as_slice().iter().enumerate() {
        let at = written.path(&base, index);
        match Suite::from_name(name.as_bytes()).filter(|suite| suite.is_registered_for_sdes()) {
            Some(suite) if suites.contains(&suite) => {
                sink.report(&at, format!("{suite} stands twice"), "name each suite once");
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
                    format!("\"{name}\" is no crypto suite that we have"),
                    format!("write one of {}", known.join(", ")),
                );
            }
        }
    }
    suites
}
