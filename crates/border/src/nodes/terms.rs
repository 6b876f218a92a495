//! What a node is told beside a description, and whether a description is one that policy takes.

use crate::anchor::AnchorError;
use crate::anchor::protected::{Profile, Transport, said};
use crate::anchor::sdp::{Carriage, describe};
use crate::config::{Ice, Keying, MediaSecurity, SrtpPolicy};
use protect::srtp::Suite;
use wire::ng::Value;

/// One side of a call, as its node is to see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Party<'c> {
    /// The node's name for where it is.
    pub(super) interface: Option<&'c str>,
    pub(super) security: &'c MediaSecurity,
    /// The profile that it used last.
    pub(super) profile: Option<Profile>,
}

/// What an offer of `from` is to be for `to`.
pub(super) fn offer(from: Party<'_>, to: Party<'_>, dscp: u8) -> Value {
    let mut terms = Value::dictionary();
    if let (Some(from), Some(to)) = (from.interface, to.interface) {
        let names: Vec<Value> = vec![from.into(), to.into()];
        terms.set("direction", names);
    }
    terms.set(
        "ICE",
        if to.security.ice.is_on() {
            "force"
        } else {
            "remove"
        },
    );
    let agents = [from.security.ice, to.security.ice];
    if agents.contains(&Ice::Full) {
        terms.set(
            "ICE-lite",
            match agents {
                [Ice::Full, Ice::Full] => "off",
                [Ice::Full, _] => "forward",
                _ => "backward",
            },
        );
    }
    // The code point stands above the two bits of explicit congestion notification (RFC 2474, RFC 3168).
    terms.set("TOS", i64::from(dscp) << 2);
    let replaced: Vec<Value> = vec!["origin".into()];
    terms.set("replace", replaced);
    if from.security.is_pass() && to.security.is_pass() {
        return terms;
    }
    let profile = to.profile.unwrap_or_else(|| usual(to.security));
    terms.set("transport-protocol", profile.name());
    match profile.transport {
        Transport::Srtp => {
            terms.set("DTLS", "off");
            // rtpengine would offer all that it knows, those without encryption included.
            let others = Suite::ALL
                .iter()
                .filter(|suite| !to.security.suites.contains(suite));
            let others: Vec<Value> = others
                .map(|suite| Value::from(format!("no-{}", suite.name())))
                .collect();
            terms.set("SDES", others);
        }
        Transport::Dtls => {
            let off: Vec<Value> = vec!["off".into()];
            terms.set("SDES", off);
        }
        Transport::Plain => {}
    }
    terms
}

/// The profile towards a side that has said nothing yet.
fn usual(security: &MediaSecurity) -> Profile {
    let keying = security.keying.first();
    let transport = match (security.srtp, keying) {
        (SrtpPolicy::Require, Some(Keying::Dtls)) => Transport::Dtls,
        (SrtpPolicy::Require, _) => Transport::Srtp,
        // What may come as it likes is offered in the clear; `prefer` is refused where the configuration is checked.
        (SrtpPolicy::Pass | SrtpPolicy::Refuse | SrtpPolicy::Prefer, _) => Transport::Plain,
    };
    Profile {
        transport,
        // Browsers, who are those with ICE and DTLS, want feedback.
        feedback: security
            .feedback
            .unwrap_or(security.ice.is_on() && transport == Transport::Dtls),
    }
}

/// Whether a description lets nothing come to its side: it puts the other one on hold (RFC 3264 section 8.4).
pub(super) fn holds(sdp: &[u8]) -> bool {
    let facts = describe(sdp).unwrap_or_default();
    let mut used = facts.iter().filter(|fact| fact.port != 0).peekable();
    used.peek().is_some() && used.all(|fact| !fact.direction.receives || fact.is_zero_held())
}

/// Why a description is not taken; where policy says so the line and the reason.
pub(super) type Refusal = (AnchorError, Option<(usize, &'static str)>);

/// Whether a side's policy takes its description; the profile of the first line of RTP.
///
/// # Errors
/// [`AnchorError::Bad`]; [`AnchorError::Protection`], with the line and why.
pub(super) fn judge(sdp: &[u8], security: &MediaSecurity) -> Result<Option<Profile>, Refusal> {
    let facts = describe(sdp).map_err(|bad| (AnchorError::Bad(bad), None))?;
    let mut first = None;
    for (index, (fact, said)) in facts.iter().zip(said(sdp)).enumerate() {
        let Some(profile) = said.profile.filter(|_| fact.port != 0) else {
            continue;
        };
        if fact.carriage != Carriage::Rtp {
            continue;
        }
        first.get_or_insert(profile);
        let why = match (security.srtp, profile.transport) {
            (SrtpPolicy::Require, Transport::Plain) => "SRTP is required",
            (SrtpPolicy::Require, Transport::Srtp) if !security.keying.contains(&Keying::Sdes) => {
                "SRTP keyed by DTLS is required"
            }
            (SrtpPolicy::Require, Transport::Dtls) if !security.keying.contains(&Keying::Dtls) => {
                "SRTP keyed by SDES is required"
            }
            (SrtpPolicy::Refuse, Transport::Srtp | Transport::Dtls) => "SRTP is refused",
            _ => continue,
        };
        return Err((AnchorError::Protection, Some((index, why))));
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn security(srtp: SrtpPolicy, keying: Keying, ice: bool) -> MediaSecurity {
        let ice = if ice { Ice::Lite } else { Ice::Off };
        MediaSecurity {
            srtp,
            keying: vec![keying],
            ice,
            ..MediaSecurity::default()
        }
    }

    fn party(security: &MediaSecurity) -> Party<'_> {
        Party {
            interface: None,
            security,
            profile: None,
        }
    }

    fn profile_of(terms: &Value) -> Option<String> {
        let Value::Dictionary(terms) = terms else {
            panic!("{terms:?}");
        };
        match terms.get(&b"transport-protocol"[..]) {
            Some(Value::Bytes(bytes)) => Some(String::from_utf8(bytes.clone()).unwrap()),
            _ => None,
        }
    }

    #[test]
    fn policies_become_profiles() {
        let pass = MediaSecurity::default();
        let plain = security(SrtpPolicy::Refuse, Keying::Sdes, false);
        let sdes = security(SrtpPolicy::Require, Keying::Sdes, false);
        let browser = security(SrtpPolicy::Require, Keying::Dtls, true);
        for (from, to, profile) in [
            (&pass, &pass, None),
            (&pass, &sdes, Some("RTP/SAVP")),
            (&sdes, &pass, Some("RTP/AVP")),
            (&browser, &plain, Some("RTP/AVP")),
            (&plain, &browser, Some("UDP/TLS/RTP/SAVPF")),
        ] {
            let terms = offer(party(from), party(to), 46);
            assert_eq!(profile_of(&terms).as_deref(), profile);
        }
        let mut written = Vec::new();
        offer(party(&pass), party(&sdes), 46).write(&mut written);
        let written = String::from_utf8(written).unwrap();
        assert!(written.contains("no-NULL_HMAC_SHA1_80"), "{written}");
        assert!(!written.contains("no-AES_CM_128_HMAC_SHA1_80"), "{written}");
        let known = Party {
            profile: Profile::parse(b"RTP/SAVPF"),
            ..party(&pass)
        };
        let terms = offer(party(&sdes), known, 46);
        assert_eq!(
            profile_of(&terms).as_deref(),
            Some("RTP/SAVPF"),
            "a side goes on as it began"
        );
    }

    #[test]
    fn descriptions_are_held_against_policy() {
        let sdp = |profile: &str| {
            format!(
                "v=0\r\no=a 1 1 IN IP4 10.0.0.1\r\ns=-\r\nc=IN IP4 10.0.0.1\r\nt=0 0\r\nm=audio 4000 {profile} 0\r\n"
            )
        };
        let policy = |srtp, keying| security(srtp, keying, false);
        let judged = |profile: &str, security: &MediaSecurity| {
            judge(sdp(profile).as_bytes(), security).map_err(|(_, why)| why.unwrap().1)
        };
        let require = policy(SrtpPolicy::Require, Keying::Sdes);
        assert_eq!(judged("RTP/AVP", &require), Err("SRTP is required"));
        assert_eq!(
            judged("UDP/TLS/RTP/SAVP", &require),
            Err("SRTP keyed by SDES is required")
        );
        assert!(judged("RTP/SAVP", &require).unwrap().is_some());
        let refuse = policy(SrtpPolicy::Refuse, Keying::Sdes);
        assert_eq!(judged("RTP/SAVP", &refuse), Err("SRTP is refused"));
        let rejected = sdp("RTP/SAVP").replace("4000", "0");
        assert_eq!(judge(rejected.as_bytes(), &refuse).unwrap(), None);
        assert!(judge(b"v=0\r\nm=audio x\r\n", &refuse).is_err());
    }
}
