//! SRTP of callers and phones: keys in the session description (RFC 4568).

use super::{HostCallKey, note};
use crate::host::{HostState, SrtpUse};
use engine::Entropy;
use protect::sdes::{self, CryptoAttribute, Policy, SdesAgreement};
use protect::srtp::{ContextLimits, Suite};
use wire::sdp::{Media, Sdp};

/// The mandatory crypto suite (RFC 4568 section 6.2), also that of the systems in the studies.
fn caller_policy() -> Policy {
    Policy {
        suites: vec![Suite::AesCm128HmacSha1_80],
        ..Policy::default()
    }
}

/// The lines of a description with these keys.
pub(super) fn lines(keys: &[CryptoAttribute]) -> Vec<String> {
    let line = |key: &CryptoAttribute| format!("a=crypto:{}", key.value().as_str());
    keys.iter().map(line).collect()
}

/// The audio line of a description that is not refused.
fn audio<'s, 'a>(sdp: &'s Sdp<'a>) -> Option<Media<'s, 'a>> {
    sdp.media()
        .find(|media| media.line.kind == b"audio" && !media.is_rejected())
}

impl HostState {
    /// Callers of the lab use one suite, so that trials can be compared; a phone uses all.
    fn sdes_policy(&self) -> Policy {
        match self.plan.phone {
            Some(_) => Policy::default(),
            None => caller_policy(),
        }
    }

    /// Generates keys for an offer.
    ///
    /// # Errors
    /// The reason why no keys could be generated.
    pub(super) fn offered_keys(&mut self) -> Result<Vec<CryptoAttribute>, String> {
        offer(&self.sdes_policy(), &mut self.entropy)
    }

    /// The keys of an offer within a call, or of an offer in an answer: the present key, so that it does not change;
    /// none for a call without SRTP.
    ///
    /// # Errors
    /// As [`HostState::offered_keys`].
    pub(super) fn keys_of_offer(
        &mut self,
        key: HostCallKey,
    ) -> Result<Vec<CryptoAttribute>, String> {
        let required = self.requires_srtp();
        let call = self.call(key).ok_or("gone")?;
        let keys = match (&call.agreement, call.established_at().is_some()) {
            (Some(agreement), _) => vec![agreement.local.clone()],
            (None, true) => Vec::new(),
            (None, false) if required => self.offered_keys()?,
            (None, false) => Vec::new(),
        };
        if let Some(call) = self.call(key) {
            call.keys.clone_from(&keys);
        }
        Ok(keys)
    }

    fn requires_srtp(&self) -> bool {
        let phone = self.plan.phone.as_ref();
        phone.is_some_and(|phone| phone.srtp == SrtpUse::Required)
    }

    /// Takes the keys of an offer; returns the lines of the answer, none for RTP. Hosts other than phones answer RTP
    /// only.
    ///
    /// # Errors
    /// The reason why the offer is refused (488).
    pub(super) fn answer_keys(
        &mut self,
        key: HostCallKey,
        offer: &[u8],
    ) -> Result<Vec<String>, String> {
        let Some(phone) = &self.plan.phone else {
            return Ok(Vec::new());
        };
        let used = phone.srtp;
        let sdp = Sdp::parse(offer).map_err(|error| error.to_string())?;
        let media = audio(&sdp).ok_or("no audio in the offer")?;
        match (media.line.protocol, used) {
            (b"RTP/AVP", SrtpUse::Required) => {
                return Err("the peer offers RTP, and SRTP is required".to_owned());
            }
            (b"RTP/AVP", _) => return Ok(Vec::new()),
            (b"RTP/SAVP", SrtpUse::Off) => {
                return Err("the peer offers SRTP, which is switched off".to_owned());
            }
            (b"RTP/SAVP", _) => {}
            (other, _) => {
                let name = String::from_utf8_lossy(other);
                return Err(format!("the media protocol {name} is not supported"));
            }
        }
        let values = media.section.attributes(b"crypto");
        let policy = self.sdes_policy();
        let agreed = sdes::answer(&policy, values, &mut self.entropy);
        let mut agreed = agreed.map_err(|refusals| match refusals.first() {
            Some(refusal) => format!("SRTP: {refusal}"),
            None => "SRTP without keys in the session description (a=crypto)".to_owned(),
        })?;
        let call = self.call(key).ok_or("gone")?;
        // Our key stays the same during the call if the suite does.
        if let Some(before) = &call.agreement
            && before.local.suite == agreed.remote.suite
        {
            agreed.local = CryptoAttribute {
                tag: agreed.remote.tag,
                ..before.local.clone()
            };
        }
        let written = lines(std::slice::from_ref(&agreed.local));
        self.apply_agreement(key, agreed)?;
        Ok(written)
    }

    /// Applies the answer to an offer with keys. Without matching keys nothing is sent: the call has no media.
    pub(super) fn secure(&mut self, key: HostCallKey, session: u32, answer: &[u8]) {
        let policy = self.sdes_policy();
        let Some(call) = self.call(key).filter(|call| !call.keys.is_empty()) else {
            return;
        };
        let keys = std::mem::take(&mut call.keys);
        let applied =
            accept(&policy, &keys, answer).and_then(|agreed| self.apply_agreement(key, agreed));
        if let Err(why) = applied {
            self.media.secure(session, None);
            if let Some(call) = self.call(key) {
                note(&mut call.attempt.why, &format!("SRTP: {why}"));
            }
        }
    }

    fn apply_agreement(&mut self, key: HostCallKey, agreed: SdesAgreement) -> Result<(), String> {
        let call = self.call(key).ok_or("gone")?;
        let session = call.session.ok_or("no media session")?;
        let before = call.agreement.take();
        let kept = before
            .filter(|before| before.local.suite == agreed.local.suite)
            .is_some_and(|before| self.media.rekey(session, &before, &agreed).is_ok());
        if !kept {
            let contexts = agreed
                .contexts(ContextLimits::default())
                .map_err(|error| error.to_string())?;
            self.media.secure(session, Some(contexts));
        }
        if let Some(call) = self.call(key) {
            call.agreement = Some(Box::new(agreed));
        }
        Ok(())
    }
}

fn offer(policy: &Policy, entropy: &mut Entropy) -> Result<Vec<CryptoAttribute>, String> {
    sdes::offer(policy, entropy).map_err(|error| error.to_string())
}

fn accept(
    policy: &Policy,
    keys: &[CryptoAttribute],
    answer: &[u8],
) -> Result<SdesAgreement, String> {
    let sdp = Sdp::parse(answer).map_err(|error| error.to_string())?;
    let media = audio(&sdp).ok_or("no audio in the answer")?;
    let values = media.section.attributes(b"crypto");
    sdes::accept(policy, keys, values).map_err(|refusal| refusal.to_string())
}
