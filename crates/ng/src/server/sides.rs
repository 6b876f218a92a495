//! Parameters of the sides of a branch, by command options and descriptions.

use super::NgServer;
use super::branches::PartyDescription;
use super::options::{CommandError, CommandOptions, IceOption};
use anchor::MediaSide;
use anchor::sdp::parse_media;
use anchor::security::sdp::{Profile, ProfileTransport, security_attributes};
use config::{Ice, Keying, MediaSecurity, SrtpPolicy};
use media::Latching;
use std::net::IpAddr;
use std::sync::Arc;

/// Properties of a description that determine its sides.
#[derive(Debug)]
pub(super) struct SdpSummary {
    /// Profile of the first RTP line.
    pub(super) profile: Option<Profile>,
    pub(super) ice: bool,
    /// The RTP profile with keys (RFC 8643).
    pub(super) opportunistic: bool,
    pub(super) mux: bool,
    /// The first address; `None` where all are zero (hold as in RFC 2543, or ICE without an address yet).
    pub(super) address: Option<IpAddr>,
    pub(super) kinds: Vec<(Vec<u8>, Vec<u8>)>,
}

impl SdpSummary {
    /// # Errors
    /// The reason why it cannot be parsed.
    pub(super) fn of(sdp: &[u8]) -> Result<SdpSummary, CommandError> {
        let facts = parse_media(sdp).map_err(|bad| bad.reason().text().to_owned())?;
        let attributes = security_attributes(sdp);
        let line = attributes
            .iter()
            .zip(&facts)
            .find(|(attributes, fact)| attributes.profile.is_some() && fact.port != 0)
            .or_else(|| {
                attributes
                    .iter()
                    .zip(&facts)
                    .find(|(attributes, _)| attributes.profile.is_some())
            });
        let first = line.map(|(attributes, _)| attributes);
        let plain = |profile: &Profile| profile.transport == ProfileTransport::Plain;
        let profile = first.and_then(|attributes| attributes.profile);
        Ok(SdpSummary {
            profile,
            ice: first.is_some_and(|attributes| {
                attributes.ice_ufrag.is_some() && attributes.ice_pwd.is_some()
            }),
            opportunistic: profile.as_ref().is_some_and(plain)
                && first.is_some_and(|attributes| {
                    !attributes.cryptos.is_empty() || !attributes.fingerprints.is_empty()
                }),
            mux: first.is_some_and(|attributes| attributes.mux),
            address: facts
                .iter()
                .filter_map(|fact| fact.address)
                .find(|address| !address.is_unspecified()),
            kinds: super::sdp::kinds(sdp),
        })
    }

    pub(super) fn descriptions(&self) -> PartyDescription {
        PartyDescription {
            transport: self.profile.map(|profile| profile.transport),
            ice: self.ice,
            kinds: self.kinds.clone(),
            audio: None,
        }
    }
}

/// Media security of the offering and of the offered side.
pub(super) type SecurityPair = (Option<Arc<MediaSecurity>>, Option<Arc<MediaSecurity>>);

/// Policy towards the offerer: all kinds of keying, and ICE if it is offered.
fn accepting_policy(summary: &SdpSummary, options: &CommandOptions<'_>) -> MediaSecurity {
    let [ours, _] = options.agents.unwrap_or([Ice::Lite; 2]);
    MediaSecurity {
        keying: vec![Keying::Dtls, Keying::Sdes],
        ice: if summary.ice { ours } else { Ice::Off },
        ..MediaSecurity::default()
    }
}

/// Determines the media security of both sides of an offer. `before`: the current one; `existing`: the last
/// description of the offered side; `has_certificate`: whether DTLS is available.
///
/// # Errors
/// The reason why the options cannot be met.
pub(super) fn choose_security(
    options: &CommandOptions<'_>,
    summary: &SdpSummary,
    before: &SecurityPair,
    existing: &PartyDescription,
    has_certificate: bool,
) -> Result<SecurityPair, CommandError> {
    let offered = summary.profile;
    let Some(offered) = offered else {
        // Without RTP there is no media security.
        return Ok((None, None));
    };
    let requested = match (options.profile, existing.transport) {
        (Some(profile), _) => profile,
        // A known side keeps its transport.
        (None, Some(transport)) => Profile {
            transport,
            feedback: offered.feedback,
        },
        (None, None) => offered,
    };
    let ice = match options.ice {
        IceOption::Remove => false,
        IceOption::Force => true,
        IceOption::AsOffered => existing.ice || summary.ice,
    };
    let terminates = requested != offered
        || offered.transport == ProfileTransport::Dtls
        || ice
        || summary.ice
        || options.opportunistic
        || options.mux.is_some()
        || (options.mux_accept && summary.mux)
        || options.no_dtls
        || options.sdes.off
        || !options.sdes.without.is_empty()
        || !options.sdes.only.is_empty()
        || before.0.is_some()
        || before.1.is_some();
    if !terminates {
        // Keys and packets are passed end to end.
        return Ok((None, None));
    }
    let dtls = (Keying::Dtls, options.no_dtls || !has_certificate);
    let sdes = (Keying::Sdes, options.sdes.off);
    let allowed_of = |choices: &[(Keying, bool)]| -> Vec<Keying> {
        let allowed = choices.iter().filter(|(_, off)| !off);
        allowed.map(|(keying, _)| *keying).collect()
    };
    let (srtp, keying) = match requested.transport {
        ProfileTransport::Dtls => (SrtpPolicy::Require, allowed_of(&[dtls])),
        ProfileTransport::Srtp => (SrtpPolicy::Require, allowed_of(&[sdes, dtls])),
        ProfileTransport::Plain
            if options.opportunistic || (requested == offered && summary.opportunistic) =>
        {
            (SrtpPolicy::Prefer, allowed_of(&[sdes, dtls]))
        }
        ProfileTransport::Plain => (SrtpPolicy::Refuse, vec![Keying::Sdes]),
    };
    let keying = match (requested.transport, keying.as_slice()) {
        // RTP/SAVP prefers keys in the description (RFC 4568). RTP/SAVPF is that of browsers, too: they have DTLS only.
        (ProfileTransport::Srtp, [Keying::Sdes, ..]) if !requested.feedback => vec![Keying::Sdes],
        _ => keying,
    };
    if keying.is_empty() {
        return Err("SRTP is required, but no way to agree on keys is allowed".to_owned());
    }
    let suites = options.suites(MediaSecurity::default().suites);
    if suites.is_empty() {
        return Err("SDES: no crypto suite is allowed".to_owned());
    }
    let mux = options.mux;
    let towards = MediaSecurity {
        srtp,
        keying,
        suites,
        ice: match (ice, options.agents) {
            (false, _) => Ice::Off,
            (true, None) => Ice::Lite,
            (true, Some([_, towards])) => towards,
        },
        feedback: options.profile.map(|profile| profile.feedback),
        mux,
        // `SDES` options do not concern DTLS.
        ..MediaSecurity::default()
    };
    // Keep the current policy if possible: another one would renew the keys.
    let unchanged =
        |before: &Option<Arc<MediaSecurity>>, transport: ProfileTransport, ice: bool| {
            let same = existing.transport == Some(transport) && existing.ice == ice;
            let requested = options.agents.filter(|_| ice);
            before
                .clone()
                .filter(|before| same && requested.is_none_or(|[_, towards]| before.ice == towards))
        };
    let towards = match unchanged(&before.1, requested.transport, ice) {
        Some(security) => security,
        None => Arc::new(towards),
    };
    let from = match &before.0 {
        Some(security) if accepts_offer(security, summary, options) => security.clone(),
        _ => Arc::new(accepting_policy(summary, options)),
    };
    Ok((Some(from), Some(towards)))
}

/// Whether the current policy of the offerer's side fits its new offer.
fn accepts_offer(
    security: &MediaSecurity,
    summary: &SdpSummary,
    options: &CommandOptions<'_>,
) -> bool {
    let transport = summary.profile.map(|profile| profile.transport);
    let keying = |keying| security.keying.contains(&keying);
    let requested = options.agents.filter(|_| summary.ice);
    security.ice.is_on() == summary.ice
        && requested.is_none_or(|[ours, _]| security.ice == ours)
        && match transport {
            Some(ProfileTransport::Dtls) => {
                security.srtp != SrtpPolicy::Refuse && keying(Keying::Dtls)
            }
            Some(ProfileTransport::Srtp) => {
                security.srtp != SrtpPolicy::Refuse && keying(Keying::Sdes)
            }
            Some(ProfileTransport::Plain) => security.srtp != SrtpPolicy::Require,
            None => true,
        }
}

impl NgServer {
    /// The named interface, or the first one.
    fn interface(&self, name: Option<&str>) -> Result<&config::NgServerInterface, CommandError> {
        let found = match name {
            Some(name) => self.settings.interface(name),
            None => self.settings.interfaces.first(),
        };
        found.ok_or_else(|| format!("there is no interface \"{}\"", name.unwrap_or_default()))
    }

    /// Parameters of a side; `ipv6`: the preferred address family; `demanded`: only that family.
    ///
    /// # Errors
    /// There is no such interface, or it has no address of that family.
    pub(super) fn media_side(
        &self,
        interface: Option<&str>,
        ipv6: bool,
        demanded: bool,
        security: Option<Arc<MediaSecurity>>,
    ) -> Result<(String, MediaSide), CommandError> {
        let interface = self.interface(interface)?;
        let fits = |media: &&config::MediaAddress| media.address.is_ipv6() == ipv6;
        let found = interface.media.iter().find(fits);
        let address = match found {
            None if demanded => None,
            found => found.or_else(|| interface.media.first()),
        };
        let address = address.ok_or_else(|| {
            format!(
                "interface \"{}\" has no address of that family",
                interface.name
            )
        })?;
        let pool = self.pools.get(address.range).copied().unwrap_or(u16::MAX);
        let side = MediaSide {
            hides: false,
            pool,
            advertised: address.signalled(),
            latching: Latching::Anywhere,
            dscp: self.dscp,
            security,
            transcoding: None,
        };
        Ok((interface.name.clone(), side))
    }

    /// Constraint on learning the media address of the description's sender; `before`: the present one, which a
    /// description without an address does not change.
    pub(super) fn latching(
        options: &CommandOptions<'_>,
        summary: &SdpSummary,
        before: Latching,
    ) -> Latching {
        let narrow = summary.address.or(options.received_from);
        match (options.asymmetric, options.strict, narrow) {
            (true, ..) => Latching::Signalled,
            (false, true, Some(address)) => Latching::SameAddress(address),
            (false, true, None) if before != Latching::Anywhere => before,
            (false, true, None) => Latching::Signalled,
            (false, false, _) => Latching::Anywhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::ng::{Dictionary, Value};

    /// A browser needs a fingerprint, a telephone has keys in its answer.
    #[test]
    fn both_kinds_of_keys_are_offered_with_feedback() {
        for (profile, has_certificate, keying) in [
            ("RTP/SAVPF", true, &[Keying::Sdes, Keying::Dtls][..]),
            ("RTP/SAVPF", false, &[Keying::Sdes]),
            ("RTP/SAVP", true, &[Keying::Sdes]),
        ] {
            let mut bytes = Vec::new();
            let body = Value::dictionary().with("transport-protocol", profile);
            body.write(&mut bytes);
            let options = CommandOptions::read(Dictionary::parse(&bytes).unwrap(), 46).unwrap();
            let offer =
                b"v=0\r\no=- 1 1 IN IP4 192.0.2.7\r\ns=-\r\nc=IN IP4 192.0.2.7\r\nt=0 0\r\n\
                m=audio 4000 RTP/AVP 0\r\n";
            let summary = SdpSummary::of(offer).unwrap();
            let existing = PartyDescription::default();
            let before = (None, None);
            let pair = choose_security(&options, &summary, &before, &existing, has_certificate);
            assert_eq!(pair.unwrap().1.unwrap().keying, keying, "{profile}");
        }
    }

    #[test]
    fn sdes_options_do_not_concern_dtls() {
        let sdes: Vec<Value> = vec!["no-AEAD_AES_256_GCM".into()];
        let body = Value::dictionary()
            .with("SDES", sdes)
            .with("transport-protocol", "UDP/TLS/RTP/SAVPF");
        let mut bytes = Vec::new();
        body.write(&mut bytes);
        let options = CommandOptions::read(Dictionary::parse(&bytes).unwrap(), 46).unwrap();
        let offer = b"v=0\r\no=- 1 1 IN IP4 192.0.2.7\r\ns=-\r\nc=IN IP4 192.0.2.7\r\nt=0 0\r\n\
            m=audio 4000 RTP/AVP 0\r\n";
        let summary = SdpSummary::of(offer).unwrap();
        let existing = PartyDescription::default();
        let pair = choose_security(&options, &summary, &(None, None), &existing, true).unwrap();
        let towards = pair.1.unwrap();
        assert_eq!(towards.keying, [Keying::Dtls]);
        // A browser selects the strongest suite.
        let strongest = protect::srtp::Suite::AeadAes256Gcm;
        assert!(!towards.suites.contains(&strongest));
        assert!(towards.dtls_suites.contains(&strongest));
    }
}
