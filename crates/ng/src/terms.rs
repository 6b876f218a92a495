//! Command options that are sent with a description, and the check of descriptions against policy.

use anchor::AnchorError;
use anchor::sdp::{LineTransport, parse_media};
use anchor::security::sdp::{Profile, ProfileTransport, security_attributes};
use config::{Ice, Keying, MediaSecurity, SrtpPolicy};
use protect::srtp::Suite;
use wire::ng::Value;

/// One side of a call, for its node.
#[derive(Clone, Copy, Debug)]
pub struct PartyTerms<'c> {
    /// Name of the interface at the node.
    pub interface: Option<&'c str>,
    /// Its media security by policy.
    pub security: &'c MediaSecurity,
    /// Profile of its last description.
    pub profile: Option<Profile>,
}

/// Options for an offer of `from` to `to`.
pub fn offer_options(from: PartyTerms<'_>, to: PartyTerms<'_>, dscp: u8) -> Value {
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
    // The code point is above the two ECN bits (RFC 2474, RFC 3168).
    terms.set("TOS", i64::from(dscp) << 2);
    let replaced: Vec<Value> = vec!["origin".into()];
    terms.set("replace", replaced);
    if from.security.is_pass() && to.security.is_pass() {
        return terms;
    }
    let profile = to.profile.unwrap_or_else(|| default_profile(to.security));
    terms.set("transport-protocol", profile.name());
    match profile.transport {
        ProfileTransport::Srtp => {
            terms.set("DTLS", "off");
            // rtpengine would offer all suites that it supports, including those without encryption.
            let others = Suite::ALL
                .iter()
                .filter(|suite| !to.security.suites.contains(suite));
            let others: Vec<Value> = others
                .map(|suite| Value::from(format!("no-{}", suite.name())))
                .collect();
            terms.set("SDES", others);
        }
        ProfileTransport::Dtls => {
            let off: Vec<Value> = vec!["off".into()];
            terms.set("SDES", off);
        }
        ProfileTransport::Plain => {}
    }
    terms
}

/// The profile towards a side without a description yet.
fn default_profile(security: &MediaSecurity) -> Profile {
    let keying = security.keying.first();
    let transport = match (security.srtp, keying) {
        (SrtpPolicy::Require, Some(Keying::Dtls)) => ProfileTransport::Dtls,
        (SrtpPolicy::Require, _) => ProfileTransport::Srtp,
        // Without a requirement RTP is offered; `prefer` is refused by the check of the configuration.
        (SrtpPolicy::Pass | SrtpPolicy::Refuse | SrtpPolicy::Prefer, _) => ProfileTransport::Plain,
    };
    Profile {
        transport,
        // Browsers, recognised by ICE and DTLS, require feedback.
        feedback: security
            .feedback
            .unwrap_or(security.ice.is_on() && transport == ProfileTransport::Dtls),
    }
}

/// Whether a description puts the other side on hold (RFC 3264 section 8.4): its side receives nothing.
pub fn puts_on_hold(sdp: &[u8]) -> bool {
    let facts = parse_media(sdp).unwrap_or_default();
    let mut used = facts.iter().filter(|fact| fact.port != 0).peekable();
    used.peek().is_some() && used.all(|fact| !fact.direction.receives || fact.is_zero_held())
}

/// Reason of a refusal; by policy with the line and a text.
pub type PolicyRefusal = (AnchorError, Option<(usize, &'static str)>);

/// Checks a description against the policy of its side; returns the profile of the first RTP line.
///
/// # Errors
/// [`AnchorError::Bad`]; [`AnchorError::Protection`] with line and reason.
pub fn check_policy(
    sdp: &[u8],
    security: &MediaSecurity,
) -> Result<Option<Profile>, PolicyRefusal> {
    let facts = parse_media(sdp).map_err(|bad| (AnchorError::Bad(bad), None))?;
    let mut first = None;
    for (index, (fact, attributes)) in facts.iter().zip(security_attributes(sdp)).enumerate() {
        let Some(profile) = attributes.profile.filter(|_| fact.port != 0) else {
            continue;
        };
        if fact.carriage != LineTransport::Rtp {
            continue;
        }
        first.get_or_insert(profile);
        let reason = match (security.srtp, profile.transport) {
            (SrtpPolicy::Require, ProfileTransport::Plain) => "SRTP is required",
            (SrtpPolicy::Require, ProfileTransport::Srtp)
                if !security.keying.contains(&Keying::Sdes) =>
            {
                "SRTP keyed by DTLS is required"
            }
            (SrtpPolicy::Require, ProfileTransport::Dtls)
                if !security.keying.contains(&Keying::Dtls) =>
            {
                "SRTP keyed by SDES is required"
            }
            (SrtpPolicy::Refuse, ProfileTransport::Srtp | ProfileTransport::Dtls) => {
                "SRTP is refused"
            }
            _ => continue,
        };
        return Err((AnchorError::Protection, Some((index, reason))));
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

    fn party(security: &MediaSecurity) -> PartyTerms<'_> {
        PartyTerms {
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
    fn security_policies_select_profiles() {
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
            let terms = offer_options(party(from), party(to), 46);
            assert_eq!(profile_of(&terms).as_deref(), profile);
        }
        let mut written = Vec::new();
        offer_options(party(&pass), party(&sdes), 46).write(&mut written);
        let written = String::from_utf8(written).unwrap();
        assert!(written.contains("no-NULL_HMAC_SHA1_80"), "{written}");
        assert!(!written.contains("no-AES_CM_128_HMAC_SHA1_80"), "{written}");
        let existing = PartyTerms {
            profile: Profile::parse(b"RTP/SAVPF"),
            ..party(&pass)
        };
        let terms = offer_options(party(&sdes), existing, 46);
        assert_eq!(
            profile_of(&terms).as_deref(),
            Some("RTP/SAVPF"),
            "a side keeps its profile"
        );
    }

    #[test]
    fn descriptions_are_checked_against_policy() {
        let sdp = |profile: &str| {
            format!(
                "v=0\r\no=a 1 1 IN IP4 10.0.0.1\r\ns=-\r\nc=IN IP4 10.0.0.1\r\nt=0 0\r\nm=audio 4000 {profile} 0\r\n"
            )
        };
        let policy = |srtp, keying| security(srtp, keying, false);
        let judged = |profile: &str, security: &MediaSecurity| {
            check_policy(sdp(profile).as_bytes(), security).map_err(|(_, reason)| reason.unwrap().1)
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
        assert_eq!(check_policy(rejected.as_bytes(), &refuse).unwrap(), None);
        assert!(check_policy(b"v=0\r\nm=audio x\r\n", &refuse).is_err());
    }
}
