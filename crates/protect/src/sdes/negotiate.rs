//! Offer and answer of `a=crypto` attributes (RFC 4568 sections 5 and 7).

use super::attribute::unencrypted;
use super::{CryptoAttribute, Reason, Refusal, SessionParameters};
use crate::srtp::{ContextLimits, Contexts, Inbound, KeyError, MasterKey, Outbound, Suite};
use engine::Entropy;

/// Whose order decides where several attributes are acceptable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The offerer's, as RFC 4568 section 5.1.2 has it.
    #[default]
    Theirs,
    /// That of our own list of suites.
    Ours,
}

/// What we offer and accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Suites, the best first.
    pub suites: Vec<Suite>,
    /// Whose order decides.
    pub order: Order,
    /// Whether `UNENCRYPTED_SRTP` and `UNENCRYPTED_SRTCP` are accepted.
    pub unencrypted: bool,
    /// Whether `UNAUTHENTICATED_SRTP` is accepted.
    pub unauthenticated: bool,
    /// Packets that our keys are good for; `None`: as many as they may be, and nothing is written about it.
    pub lifetime: Option<u64>,
    /// Bytes of identifier that our packets carry; 0: none.
    pub mki_length: u8,
    /// Capacities of the contexts.
    pub limits: ContextLimits,
}

impl Default for Policy {
    /// Encryption and authentication are never given up. AES-192 is left out of offers: nothing needs it that does not have
    /// AES-256, and every line makes the datagram longer.
    fn default() -> Self {
        Policy {
            suites: vec![
                Suite::AeadAes256Gcm,
                Suite::AeadAes128Gcm,
                Suite::AesCm256HmacSha1_80,
                Suite::AesCm128HmacSha1_80,
                Suite::AesCm128HmacSha1_32,
            ],
            order: Order::Theirs,
            unencrypted: false,
            unauthenticated: false,
            lifetime: None,
            mki_length: 0,
            limits: ContextLimits::default(),
        }
    }
}

impl Policy {
    /// Whether an attribute of the other side may be used.
    fn judge(&self, attribute: &CryptoAttribute) -> Result<(), Reason> {
        if !self.suites.contains(&attribute.suite) {
            return Err(Reason::SuiteNotAllowed);
        }
        let options = attribute.parameters.options;
        if unencrypted(attribute.suite, options) && !self.unencrypted {
            return Err(Reason::UnencryptedNotAllowed);
        }
        if options.unauthenticated_srtp && !self.unauthenticated {
            return Err(Reason::UnauthenticatedNotAllowed);
        }
        Ok(())
    }

    /// A new attribute of ours with one new key.
    fn make(
        &self,
        tag: u32,
        suite: Suite,
        parameters: SessionParameters,
        entropy: &mut Entropy,
    ) -> Result<CryptoAttribute, KeyError> {
        let mut key = MasterKey::generate(suite, entropy).with_options(parameters.options)?;
        if let Some(lifetime) = self.lifetime {
            key = key.with_lifetime(lifetime)?;
        }
        if self.mki_length > 0 {
            let mut mki = vec![0; usize::from(self.mki_length)];
            entropy.fill(&mut mki);
            key = key.with_mki(&mki)?;
        }
        Ok(CryptoAttribute {
            tag,
            suite,
            keys: vec![key],
            parameters,
        })
    }
}

/// The attributes of an offer: one for each suite that SDES has a name for, the best first, each with a key of its own.
///
/// # Errors
/// A lifetime or an identifier's length in the policy that cannot be.
pub fn offer(policy: &Policy, entropy: &mut Entropy) -> Result<Vec<CryptoAttribute>, KeyError> {
    let suites = policy
        .suites
        .iter()
        .filter(|suite| suite.is_registered_for_sdes());
    (1..)
        .zip(suites)
        .map(|(tag, suite)| policy.make(tag, *suite, SessionParameters::default(), entropy))
        .collect()
}

/// What both sides agreed on.
#[derive(Clone, Debug)]
pub struct Agreed {
    /// Our attribute: what we seal with.
    pub local: CryptoAttribute,
    /// Theirs: what we open with.
    pub remote: CryptoAttribute,
}

/// Chooses one of the offered attributes (each given as its value) and makes the answer to it.
///
/// # Errors
/// Why each of them was refused; none where none was offered.
pub fn answer<'v>(
    policy: &Policy,
    offered: impl IntoIterator<Item = &'v [u8]>,
    entropy: &mut Entropy,
) -> Result<Agreed, Vec<Refusal>> {
    let mut refusals = Vec::new();
    let mut tags = Vec::new();
    let mut best: Option<(usize, CryptoAttribute)> = None;
    for value in offered {
        let tag = CryptoAttribute::tag_of(value);
        let mut refuse = |reason| refusals.push(Refusal { tag, reason });
        if tag.is_some() && tags.contains(&tag) {
            refuse(Reason::DuplicateTag);
            continue;
        }
        tags.push(tag);
        let judged = CryptoAttribute::parse(value)
            .and_then(|attribute| policy.judge(&attribute).map(|()| attribute));
        let attribute = match judged {
            Ok(attribute) => attribute,
            Err(reason) => {
                refuse(reason);
                continue;
            }
        };
        let place = |suite| policy.suites.iter().position(|known| *known == suite);
        let rank = match policy.order {
            Order::Theirs => 0,
            Order::Ours => place(attribute.suite).unwrap_or(usize::MAX),
        };
        if best.as_ref().is_none_or(|(known, _)| rank < *known) {
            best = Some((rank, attribute));
        }
    }
    let Some((_, remote)) = best else {
        return Err(refusals);
    };
    let parameters = answered(remote.parameters);
    match policy.make(remote.tag, remote.suite, parameters, entropy) {
        Ok(local) => Ok(Agreed { local, remote }),
        Err(error) => {
            refusals.push(Refusal {
                tag: Some(remote.tag),
                reason: error.into(),
            });
            Err(refusals)
        }
    }
}

/// Takes in the answer (the values of its attributes) to our offer.
///
/// # Errors
/// Why it cannot be used: it must be one attribute, with the tag, the suite and the negotiated parameters of one that we
/// offered (RFC 4568 section 5.1.3).
pub fn accept<'v>(
    policy: &Policy,
    offered: &[CryptoAttribute],
    answer: impl IntoIterator<Item = &'v [u8]>,
) -> Result<Agreed, Refusal> {
    let values: Vec<&[u8]> = answer.into_iter().collect();
    let [value] = values.as_slice() else {
        return Err(Refusal {
            tag: None,
            reason: Reason::AnswerCount(values.len()),
        });
    };
    let tag = CryptoAttribute::tag_of(value);
    let refuse = |reason| Refusal { tag, reason };
    let remote = CryptoAttribute::parse(value).map_err(refuse)?;
    let local = offered
        .iter()
        .find(|attribute| attribute.tag == remote.tag)
        .ok_or(refuse(Reason::TagNotOffered))?;
    if local.suite != remote.suite {
        return Err(refuse(Reason::SuiteChanged));
    }
    if answered(local.parameters).options != answered(remote.parameters).options {
        return Err(refuse(Reason::ParametersChanged));
    }
    policy.judge(&remote).map_err(refuse)?;
    Ok(Agreed {
        local: local.clone(),
        remote,
    })
}

/// Of the parameters of an offer, those that its answer must repeat: KDR, FEC_ORDER and WSH speak of their own sender only
/// (RFC 4568 section 6.3).
fn answered(offered: SessionParameters) -> SessionParameters {
    let mut options = offered.options;
    options.key_derivation_rate = 0;
    SessionParameters {
        options,
        ..SessionParameters::default()
    }
}

impl Agreed {
    /// New contexts.
    ///
    /// # Errors
    /// Keys that do not fit; they were checked when they were read, so that does not happen to read ones.
    pub fn contexts(&self, limits: ContextLimits) -> Result<Contexts, KeyError> {
        let first = |attribute: &CryptoAttribute| {
            let key = attribute.keys.first();
            key.cloned().ok_or(KeyError::NoSuchKey)
        };
        let wished = usize::from(self.remote.parameters.window.unwrap_or(0));
        let inbound_limits = ContextLimits {
            window: limits.window.max(wished),
            ..limits
        };
        let mut inbound = Inbound::new(&first(&self.remote)?, inbound_limits)?;
        for key in self.remote.keys.iter().skip(1) {
            inbound.add(key)?;
        }
        Ok(Contexts {
            outbound: Outbound::new(&first(&self.local)?, limits)?,
            inbound,
        })
    }

    /// Brings contexts that were made from `before` to what was agreed now: keys that stayed are left alone, so that counters
    /// and windows go on; a new key of theirs is added beside the old one, a new key of ours replaces it.
    ///
    /// # Errors
    /// No room for another key, or identifiers in conflict.
    pub fn rekey(&self, contexts: &mut Contexts, before: &Agreed) -> Result<(), KeyError> {
        let known = |keys: &[MasterKey], key: &MasterKey| {
            keys.iter().any(|known| {
                known.suite() == key.suite()
                    && known.key_and_salt() == key.key_and_salt()
                    && known.mki() == key.mki()
                    && known.options() == key.options()
            })
        };
        for key in &self.remote.keys {
            if !known(&before.remote.keys, key) {
                contexts.inbound.add(key)?;
            }
        }
        for key in &self.local.keys {
            if !known(&before.local.keys, key) {
                contexts.outbound.rekey(key)?;
            }
        }
        Ok(())
    }
}
