//! Offer and answer of `a=crypto` attributes (RFC 4568 sections 5 and 7).

use super::attribute::unencrypted;
use super::{CryptoAttribute, Reason, RejectedAttribute, SessionParameters};
use crate::srtp::{ContextLimits, Contexts, Inbound, KeyError, MasterKey, Outbound, Suite};
use engine::Entropy;
use serde::{Deserialize, Serialize};

/// The order by which one of several acceptable attributes is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The offerer's order (RFC 4568 section 5.1.2).
    #[default]
    Theirs,
    /// The order of our list of suites.
    Ours,
}

/// Which attributes are offered and accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Suites, preferred first.
    pub suites: Vec<Suite>,
    /// The order that decides.
    pub order: Order,
    /// Whether `UNENCRYPTED_SRTP` and `UNENCRYPTED_SRTCP` are accepted.
    pub unencrypted: bool,
    /// Whether `UNAUTHENTICATED_SRTP` is accepted.
    pub unauthenticated: bool,
    /// Lifetime of our keys, packets; `None`: the maximum, which is not written into the attribute.
    pub lifetime: Option<u64>,
    /// Length of the master key identifier in our packets, bytes; 0: none.
    pub mki_length: u8,
    /// Capacity of the contexts.
    pub limits: ContextLimits,
}

impl Default for Policy {
    /// Encryption and authentication are always required. AES-192 is not offered: every peer with it has AES-256,
    /// too, and every line enlarges the datagram.
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
    /// Checks an attribute of the other side.
    fn check(&self, attribute: &CryptoAttribute) -> Result<(), Reason> {
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

    /// Generates an attribute with a new key.
    fn generate(
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

/// Generates the attributes of an offer: one for each suite with an SDES name, preferred first, each with its own
/// key.
///
/// # Errors
/// The policy's lifetime or identifier length is invalid.
pub fn offer(policy: &Policy, entropy: &mut Entropy) -> Result<Vec<CryptoAttribute>, KeyError> {
    let suites = policy
        .suites
        .iter()
        .filter(|suite| suite.is_registered_for_sdes());
    (1..)
        .zip(suites)
        .map(|(tag, suite)| policy.generate(tag, *suite, SessionParameters::default(), entropy))
        .collect()
}

/// Result of offer and answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SdesAgreement {
    /// Our attribute: its key protects sent packets.
    pub local: CryptoAttribute,
    /// The peer's attribute: its key unprotects received packets.
    pub remote: CryptoAttribute,
}

/// Chooses one of the offered attributes (given as values) and generates the answer.
///
/// # Errors
/// The reason for each rejected attribute; empty if none was offered.
pub fn answer<'v>(
    policy: &Policy,
    offered: impl IntoIterator<Item = &'v [u8]>,
    entropy: &mut Entropy,
) -> Result<SdesAgreement, Vec<RejectedAttribute>> {
    let mut refusals = Vec::new();
    let mut tags = Vec::new();
    let mut best: Option<(usize, CryptoAttribute)> = None;
    for value in offered {
        let tag = CryptoAttribute::tag_of(value);
        let mut refuse = |reason| refusals.push(RejectedAttribute { tag, reason });
        if tag.is_some() && tags.contains(&tag) {
            refuse(Reason::DuplicateTag);
            continue;
        }
        tags.push(tag);
        let judged = CryptoAttribute::parse(value)
            .and_then(|attribute| policy.check(&attribute).map(|()| attribute));
        let attribute = match judged {
            Ok(attribute) => attribute,
            Err(reason) => {
                refuse(reason);
                continue;
            }
        };
        let rank_of = |suite| policy.suites.iter().position(|existing| *existing == suite);
        let rank = match policy.order {
            Order::Theirs => 0,
            Order::Ours => rank_of(attribute.suite).unwrap_or(usize::MAX),
        };
        if best.as_ref().is_none_or(|(existing, _)| rank < *existing) {
            best = Some((rank, attribute));
        }
    }
    let Some((_, remote)) = best else {
        return Err(refusals);
    };
    let parameters = negotiated_parameters(remote.parameters);
    match policy.generate(remote.tag, remote.suite, parameters, entropy) {
        Ok(local) => Ok(SdesAgreement { local, remote }),
        Err(error) => {
            refusals.push(RejectedAttribute {
                tag: Some(remote.tag),
                reason: error.into(),
            });
            Err(refusals)
        }
    }
}

/// Processes the answer (the values of its attributes) to our offer.
///
/// # Errors
/// The answer is invalid: it must be one attribute, with the tag, the suite and the negotiated parameters of an
/// offered one (RFC 4568 section 5.1.3).
pub fn accept<'v>(
    policy: &Policy,
    offered: &[CryptoAttribute],
    answer: impl IntoIterator<Item = &'v [u8]>,
) -> Result<SdesAgreement, RejectedAttribute> {
    let values: Vec<&[u8]> = answer.into_iter().collect();
    let [value] = values.as_slice() else {
        return Err(RejectedAttribute {
            tag: None,
            reason: Reason::AnswerCount(values.len()),
        });
    };
    let tag = CryptoAttribute::tag_of(value);
    let refuse = |reason| RejectedAttribute { tag, reason };
    let remote = CryptoAttribute::parse(value).map_err(refuse)?;
    let local = offered
        .iter()
        .find(|attribute| attribute.tag == remote.tag)
        .ok_or(refuse(Reason::TagNotOffered))?;
    if local.suite != remote.suite {
        return Err(refuse(Reason::SuiteChanged));
    }
    if negotiated_parameters(local.parameters).options
        != negotiated_parameters(remote.parameters).options
    {
        return Err(refuse(Reason::ParametersChanged));
    }
    policy.check(&remote).map_err(refuse)?;
    Ok(SdesAgreement {
        local: local.clone(),
        remote,
    })
}

/// The parameters of an offer that its answer must repeat: KDR, FEC_ORDER and WSH describe only their sender (RFC
/// 4568 section 6.3).
fn negotiated_parameters(offered: SessionParameters) -> SessionParameters {
    let mut options = offered.options;
    options.key_derivation_rate = 0;
    SessionParameters {
        options,
        ..SessionParameters::default()
    }
}

impl SdesAgreement {
    /// Creates new contexts.
    ///
    /// # Errors
    /// The keys are invalid; this does not happen with parsed keys, which were checked.
    pub fn contexts(&self, limits: ContextLimits) -> Result<Contexts, KeyError> {
        let first = |attribute: &CryptoAttribute| {
            let key = attribute.keys.first();
            key.cloned().ok_or(KeyError::NoSuchKey)
        };
        let suggested = usize::from(self.remote.parameters.window.unwrap_or(0));
        let inbound_limits = ContextLimits {
            window: limits.window.max(suggested),
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

    /// Updates contexts from the result `before` to this one: unchanged keys are kept, so that counters and windows
    /// continue; a new key of the peer is added to the old one, a new key of ours replaces it.
    ///
    /// # Errors
    /// There is no room for another key, or identifiers conflict.
    pub fn rekey(&self, contexts: &mut Contexts, before: &SdesAgreement) -> Result<(), KeyError> {
        let existing = |keys: &[MasterKey], key: &MasterKey| {
            keys.iter().any(|existing| {
                existing.suite() == key.suite()
                    && existing.key_and_salt() == key.key_and_salt()
                    && existing.mki() == key.mki()
                    && existing.options() == key.options()
            })
        };
        for key in &self.remote.keys {
            if !existing(&before.remote.keys, key) {
                contexts.inbound.add(key)?;
            }
        }
        for key in &self.local.keys {
            if !existing(&before.local.keys, key) {
                contexts.outbound.rekey(key)?;
            }
        }
        Ok(())
    }
}
