//! How a side of a branch is reached, by what a command asks for and what descriptions have said.

use super::Node;
use super::branches::Heard;
use super::wishes::{IceWish, Refusal, Wishes};
use crate::anchor::MediaSide;
use crate::anchor::protected::{self, Profile, Transport};
use crate::anchor::sdp::describe;
use crate::config::{Ice, Keying, MediaSecurity, SrtpPolicy};
use media::Latching;
use std::net::IpAddr;
use std::sync::Arc;

/// What a description says that decides about its sides.
#[derive(Debug)]
pub(super) struct Reading {
    /// The profile of the first line of RTP.
    pub(super) profile: Option<Profile>,
    pub(super) ice: bool,
    /// Keys stand beside media in the clear (RFC 8643).
    pub(super) opportunistic: bool,
    pub(super) mux: bool,
    pub(super) address: Option<IpAddr>,
    pub(super) kinds: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Reading {
    /// # Errors
    /// It is no description of media.
    pub(super) fn of(sdp: &[u8]) -> Result<Reading, Refusal> {
        let facts = describe(sdp).map_err(|bad| bad.text().to_owned())?;
        let said = protected::said(sdp);
        let line = said
            .iter()
            .zip(&facts)
            .find(|(said, fact)| said.profile.is_some() && fact.port != 0)
            .or_else(|| {
                said.iter()
                    .zip(&facts)
                    .find(|(said, _)| said.profile.is_some())
            });
        let first = line.map(|(said, _)| said);
        let plain = |profile: &Profile| profile.transport == Transport::Plain;
        let profile = first.and_then(|said| said.profile);
        Ok(Reading {
            profile,
            ice: first.is_some_and(|said| said.fragment.is_some() && said.password.is_some()),
            opportunistic: profile.as_ref().is_some_and(plain)
                && first
                    .is_some_and(|said| !said.cryptos.is_empty() || !said.fingerprints.is_empty()),
            mux: first.is_some_and(|said| said.mux),
            address: facts.iter().find_map(|fact| fact.address),
            kinds: super::text::kinds(sdp),
        })
    }

    pub(super) fn heard(&self) -> Heard {
        Heard {
            transport: self.profile.map(|profile| profile.transport),
            ice: self.ice,
            kinds: self.kinds.clone(),
            speech: None,
        }
    }
}

/// The protection of the two sides of an exchange: of whoever offers, and of whoever is offered to.
pub(super) type Protections = (Option<Arc<MediaSecurity>>, Option<Arc<MediaSecurity>>);

/// What is taken from whoever offers: every keying that there is, and ICE where it speaks it.
fn accepting(reading: &Reading, wishes: &Wishes<'_>) -> MediaSecurity {
    let [ours, _] = wishes.agents.unwrap_or([Ice::Lite; 2]);
    MediaSecurity {
        keying: vec![Keying::Dtls, Keying::Sdes],
        ice: if reading.ice { ours } else { Ice::Off },
        ..MediaSecurity::default()
    }
}

/// Decides how both sides of an offer are protected. `before`: how they were; `known`: what the side that is offered to said last;
/// `has_certificate`: whether we can speak DTLS.
///
/// # Errors
/// What is asked for cannot be had.
pub(super) fn protections(
    wishes: &Wishes<'_>,
    reading: &Reading,
    before: &Protections,
    known: &Heard,
    has_certificate: bool,
) -> Result<Protections, Refusal> {
    let offered = reading.profile;
    let Some(offered) = offered else {
        // Nothing of RTP: there is nothing to protect.
        return Ok((None, None));
    };
    let wanted = match (wishes.profile, known.transport) {
        (Some(profile), _) => profile,
        // Whoever is known stays as it is.
        (None, Some(transport)) => Profile {
            transport,
            feedback: offered.feedback,
        },
        (None, None) => offered,
    };
    let ice = match wishes.ice {
        IceWish::Remove => false,
        IceWish::Force => true,
        IceWish::Usual => known.ice || reading.ice,
    };
    let ends = wanted != offered
        || offered.transport == Transport::Dtls
        || ice
        || reading.ice
        || wishes.opportunistic
        || wishes.mux.is_some()
        || (wishes.mux_accept && reading.mux)
        || wishes.no_dtls
        || wishes.sdes.off
        || !wishes.sdes.without.is_empty()
        || !wishes.sdes.only.is_empty()
        || before.0.is_some()
        || before.1.is_some();
    if !ends {
        // Keys and packets pass from end to end.
        return Ok((None, None));
    }
    let dtls = (Keying::Dtls, wishes.no_dtls || !has_certificate);
    let sdes = (Keying::Sdes, wishes.sdes.off);
    let may = |choices: &[(Keying, bool)]| -> Vec<Keying> {
        let allowed = choices.iter().filter(|(_, off)| !off);
        allowed.map(|(keying, _)| *keying).collect()
    };
    let (srtp, keying) = match wanted.transport {
        Transport::Dtls => (SrtpPolicy::Require, may(&[dtls])),
        Transport::Srtp => (SrtpPolicy::Require, may(&[sdes, dtls])),
        Transport::Plain
            if wishes.opportunistic || (wanted == offered && reading.opportunistic) =>
        {
            (SrtpPolicy::Prefer, may(&[sdes, dtls]))
        }
        Transport::Plain => (SrtpPolicy::Refuse, vec![Keying::Sdes]),
    };
    let keying = match (wanted.transport, keying.as_slice()) {
        // RTP/SAVP has its keys in the description wherever that may be (RFC 4568).
        (Transport::Srtp, [Keying::Sdes, ..]) => vec![Keying::Sdes],
        _ => keying,
    };
    if keying.is_empty() {
        return Err("SRTP is asked for, and no way to agree on keys is left".to_owned());
    }
    let suites = wishes.suites(MediaSecurity::default().suites);
    if suites.is_empty() {
        return Err("SDES: no crypto suite is left".to_owned());
    }
    let mux = wishes.mux;
    let towards = MediaSecurity {
        srtp,
        keying,
        suites,
        ice: match (ice, wishes.agents) {
            (false, _) => Ice::Off,
            (true, None) => Ice::Lite,
            (true, Some([_, towards])) => towards,
        },
        feedback: wishes.profile.map(|profile| profile.feedback),
        mux,
    };
    // What stands goes on: another policy would begin its keys anew.
    let stays = |before: &Option<Arc<MediaSecurity>>, transport: Transport, ice: bool| {
        let same = known.transport == Some(transport) && known.ice == ice;
        let wanted = wishes.agents.filter(|_| ice);
        before
            .clone()
            .filter(|before| same && wanted.is_none_or(|[_, towards]| before.ice == towards))
    };
    let towards = match stays(&before.1, wanted.transport, ice) {
        Some(security) => security,
        None => Arc::new(towards),
    };
    let from = match &before.0 {
        Some(security) if accepts(security, reading, wishes) => security.clone(),
        _ => Arc::new(accepting(reading, wishes)),
    };
    Ok((Some(from), Some(towards)))
}

/// Whether a side that is protected so goes on so with this offer of its own.
fn accepts(security: &MediaSecurity, reading: &Reading, wishes: &Wishes<'_>) -> bool {
    let transport = reading.profile.map(|profile| profile.transport);
    let keying = |keying| security.keying.contains(&keying);
    let wanted = wishes.agents.filter(|_| reading.ice);
    security.ice.is_on() == reading.ice
        && wanted.is_none_or(|[ours, _]| security.ice == ours)
        && match transport {
            Some(Transport::Dtls) => security.srtp != SrtpPolicy::Refuse && keying(Keying::Dtls),
            Some(Transport::Srtp) => security.srtp != SrtpPolicy::Refuse && keying(Keying::Sdes),
            Some(Transport::Plain) => security.srtp != SrtpPolicy::Require,
            None => true,
        }
}

impl Node {
    /// The interface of this name; without one, the first.
    fn interface(&self, name: Option<&str>) -> Result<&crate::config::NodeInterface, Refusal> {
        let found = match name {
            Some(name) => self.spec.interface(name),
            None => self.spec.interfaces.first(),
        };
        found.ok_or_else(|| format!("there is no interface \"{}\"", name.unwrap_or_default()))
    }

    /// How a side is reached: `ipv6`: by which family of addresses; `demanded`: that one and no other.
    ///
    /// # Errors
    /// There is no such interface, or no address of that family on it.
    pub(super) fn media_side(
        &self,
        interface: Option<&str>,
        ipv6: bool,
        demanded: bool,
        wishes: &Wishes<'_>,
        security: Option<Arc<MediaSecurity>>,
    ) -> Result<(String, MediaSide), Refusal> {
        let interface = self.interface(interface)?;
        let fits = |media: &&crate::config::MediaAddress| media.address.is_ipv6() == ipv6;
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
            dscp: wishes.dscp.unwrap_or(self.config.media.dscp),
            security,
            transcoding: None,
        };
        Ok((interface.name.clone(), side))
    }

    /// From where the media of whoever sent a description may be learned.
    pub(super) fn latching(wishes: &Wishes<'_>, reading: &Reading) -> Latching {
        let narrow = reading.address.or(wishes.received_from);
        match (wishes.asymmetric, wishes.strict, narrow) {
            (true, ..) => Latching::Signalled,
            (false, true, Some(address)) => Latching::SameAddress(address),
            (false, true, None) => Latching::Signalled,
            (false, false, _) => Latching::Anywhere,
        }
    }
}
