//! Media security of one side of a media line: offered and agreed parameters, keys, DTLS association and ICE agent.
//!
//! An offer of the side is evaluated at once ([`SideSecurity::evaluate_offer`]), so that it is refused before the
//! call is sent on if its security cannot be agreed. The parameters come into force with the answer.

use super::association::{DtlsAssociation, EarlyAssociations};
use super::ice::{IceAgent, IcePathEvent, RemoteAgent};
use super::sdp::{DtlsSetup, LineRewrite, Profile, ProfileTransport, SecurityAttributes};
use config::{Ice, Keying, MediaSecurity, SrtpPolicy};
use engine::{DropReason, Entropy, SocketId, Time};
use media::{Keys, Latching, Protection};
use protect::dtls::{self, CertificateFingerprint, HashFunction, Role};
use protect::ice::{self, host_candidate};
use protect::sdes::{self, CryptoAttribute, SdesAgreement};
use protect::srtp::Suite;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::stun::{MediaProtocol, media_protocol};

/// Resources for keying.
pub struct KeyingContext<'m> {
    /// Source of keys and identifiers.
    pub entropy: &'m mut Entropy,
    /// DTLS certificate and settings, if configured.
    pub dtls: Option<&'m dtls::DtlsEndpoint>,
    /// Time of the input.
    pub now: Time,
    /// Number of candidates above the limit.
    pub candidates_dropped: &'m mut u64,
    /// STUN and DTLS datagrams to send.
    pub datagrams: &'m mut Datagrams,
}

/// Our end of a side's media, and the sources that it accepts.
pub struct MediaEndpoint {
    /// The socket for RTP.
    pub socket: SocketId,
    /// The peer's signalled address.
    pub signalled: Option<SocketAddr>,
    /// Allowed sources, without ICE.
    pub latching: Latching,
    /// The party has had this port, which another one is about to take over.
    pub is_former: bool,
}

/// Description of a failed negotiation; it never contains a key.
pub type SecurityFailure = String;

/// An event of one side.
#[derive(Debug)]
pub enum SecurityEvent {
    /// Keys are agreed.
    Keyed(Keying, Suite),
    /// Keying has failed.
    Failed(SecurityFailure),
    /// ICE has nominated a pair with this address.
    Nominated(SocketAddr),
    /// The peer's consent has expired.
    ConsentLost,
    /// ICE has found no working pair.
    IceFailed,
}

/// Parameters of the open offer that come into force with our answer.
#[derive(Debug, Serialize, Deserialize)]
struct PendingSecurity {
    profile: Profile,
    mid: Option<Vec<u8>>,
    bundled: bool,
    keying: Option<Keying>,
    agreed: Option<SdesAgreement>,
    role: Role,
    fingerprints: Vec<CertificateFingerprint>,
    tls_id: Option<Vec<u8>>,
    ice: Option<RemoteAgent>,
}

/// Media security of one side of a line.
#[derive(Debug, Serialize, Deserialize)]
pub struct SideSecurity {
    policy: Arc<MediaSecurity>,
    /// Profile of the line on this side, in the last exchange.
    profile: Profile,
    mid: Option<Vec<u8>>,
    bundled: bool,
    /// Current keying; `None`: no SRTP.
    keying: Option<Keying>,
    pending: Option<Box<PendingSecurity>>,
    /// Our keys in the open offer.
    offered_cryptos: Vec<CryptoAttribute>,
    agreed_crypto: Option<Box<SdesAgreement>>,
    association: Option<Box<DtlsAssociation>>,
    early: EarlyAssociations,
    ice: Option<IceAgent>,
    /// Whether the peer has agreed on ICE. Otherwise the agent is that of an open offer.
    ice_agreed: bool,
    keys: Option<Arc<Keys>>,
    associations: u32,
    /// Whether an exchange of this side has been completed.
    negotiated: bool,
}

/// Result of a datagram or timeout.
#[derive(Debug, Default)]
pub struct SecurityOutput {
    /// The forwarder needs a new plan.
    pub changed: bool,
    /// Events, in order.
    pub events: SmallVec<[SecurityEvent; 1]>,
}

/// Datagrams to send: socket, destination, bytes.
pub type Datagrams = std::collections::VecDeque<(SocketId, SocketAddr, Vec<u8>)>;

const PLAIN_PROFILE: Profile = Profile {
    transport: ProfileTransport::Plain,
    feedback: false,
};

impl SideSecurity {
    /// Shares the policy if it is equal to this one.
    pub(crate) fn share_policy(&mut self, policy: &Arc<MediaSecurity>) {
        if self.policy == *policy {
            self.policy = Arc::clone(policy);
        }
    }

    /// A side with this policy, without keys.
    pub fn new(policy: Arc<MediaSecurity>) -> SideSecurity {
        SideSecurity {
            policy,
            profile: PLAIN_PROFILE,
            mid: None,
            bundled: false,
            keying: None,
            pending: None,
            offered_cryptos: Vec::new(),
            agreed_crypto: None,
            association: None,
            early: EarlyAssociations::default(),
            ice: None,
            ice_agreed: false,
            keys: None,
            associations: 0,
            negotiated: false,
        }
    }

    /// State for another policy towards the same party: its rollover counters continue with new keys, and the line
    /// keeps its identification.
    pub(crate) fn with_policy(&self, policy: Arc<MediaSecurity>) -> SideSecurity {
        SideSecurity {
            associations: self.associations,
            mid: self.mid.clone(),
            bundled: self.bundled,
            ..SideSecurity::new(policy)
        }
    }

    /// State for another party in the place of this one: it neither gets a key that the previous party knows (RFC 4568
    /// section 7) nor knows the rollover counters of our streams, so both begin anew.
    pub(crate) fn for_other_party(&self, policy: Arc<MediaSecurity>) -> SideSecurity {
        SideSecurity {
            associations: self.associations.wrapping_add(1),
            ..SideSecurity::new(policy)
        }
    }

    /// State for a contact that is called beside others: it knows no rollover counters of the streams to them.
    pub(crate) fn of_branch(policy: Arc<MediaSecurity>, branch: usize) -> SideSecurity {
        SideSecurity {
            associations: (branch as u32) << 16,
            ..SideSecurity::new(policy)
        }
    }

    /// Whether SRTP or ICE of this side is in force.
    pub(crate) fn is_in_use(&self) -> bool {
        self.keying.is_some() || (self.negotiated && self.ice_agreed)
    }

    /// The policy.
    pub fn policy(&self) -> &Arc<MediaSecurity> {
        &self.policy
    }

    /// Whether STUN or DTLS is expected on its media port.
    pub fn receives_stun_or_dtls(&self) -> bool {
        self.ice.is_some() || self.association.is_some()
    }

    /// Whether the peer has agreed on ICE or DTLS, so that RTP and RTCP share a port.
    pub(crate) fn shares_port(&self) -> bool {
        let is_known = |association: &DtlsAssociation| association.fingerprints.is_some();
        self.ice_agreed || self.association.as_deref().is_some_and(is_known)
    }

    /// Whether it has an ICE agent, or gets one with our answer: the addresses in descriptions are not used then.
    pub fn has_ice(&self) -> bool {
        self.ice_in_force().is_some()
            || self
                .pending
                .as_ref()
                .is_some_and(|pending| pending.ice.is_some())
    }

    /// Whether the side is a browser, or supports the attributes of browsers.
    pub fn is_browser(&self) -> bool {
        let profile = match &self.pending {
            Some(pending) => pending.profile,
            None => self.profile,
        };
        profile.feedback && (profile.transport == ProfileTransport::Dtls || self.ice.is_some())
    }

    /// Protection that the forwarder has to apply.
    pub fn protection(&self) -> Protection {
        match (self.keying, &self.keys) {
            (Some(_), Some(keys)) => Protection::Srtp(keys.clone()),
            (Some(_), None) => Protection::Pending,
            // Nothing is agreed yet, and SRTP is required or pending: no packet in the clear.
            (None, _) if self.policy.srtp == SrtpPolicy::Require => Protection::Pending,
            (None, _)
                if !self.negotiated
                    && self
                        .pending
                        .as_ref()
                        .is_some_and(|pending| pending.keying.is_some()) =>
            {
                Protection::Pending
            }
            (None, _) => Protection::None,
        }
    }

    /// Whether it has a DTLS association.
    pub fn has_dtls(&self) -> bool {
        self.association.is_some()
    }

    /// The ICE agent, if it decides on the addresses of media. The agent of a further offer does not until it is
    /// answered: that offer may be refused, or answered without ICE.
    fn ice_in_force(&self) -> Option<&IceAgent> {
        let is_in_force = self.ice_agreed || !self.negotiated;
        self.ice.as_ref().filter(|_| is_in_force)
    }

    /// The remote address selected by ICE; the outer `None` means no ICE.
    pub fn selected(&self) -> Option<Option<SocketAddr>> {
        self.ice_in_force().map(|ice| ice.selected())
    }

    fn sdes_policy(&self) -> sdes::Policy {
        sdes::Policy {
            suites: self.policy.suites.clone(),
            ..sdes::Policy::default()
        }
    }

    /// Evaluates an offer of this side and prepares our answer.
    ///
    /// # Errors
    /// Reason why the offer cannot be accepted.
    pub fn evaluate_offer(
        &mut self,
        attributes: &SecurityAttributes<'_>,
        context: &mut KeyingContext<'_>,
    ) -> Result<(), SecurityFailure> {
        let profile = attributes
            .profile
            .ok_or_else(|| SecurityFailure::from("unsupported media profile"))?;
        let plain = profile.transport == ProfileTransport::Plain;
        let mut pending = PendingSecurity {
            profile,
            mid: attributes.mid.map(<[u8]>::to_vec),
            bundled: attributes.bundled,
            keying: None,
            agreed: None,
            role: Role::Server,
            fingerprints: Vec::new(),
            tls_id: attributes.tls_id.map(<[u8]>::to_vec),
            ice: None,
        };
        let mut reasons = Vec::new();
        if self.policy.srtp == SrtpPolicy::Refuse {
            if !plain {
                return Err("SRTP was offered, but is not allowed".into());
            }
        } else {
            for keying in self.policy.keying.clone() {
                let chosen = match keying {
                    Keying::Sdes if profile.transport != ProfileTransport::Dtls => {
                        self.choose_sdes(attributes, context, &mut pending)
                    }
                    Keying::Dtls => self.choose_dtls(attributes, context, &mut pending),
                    Keying::Sdes => Err(None),
                };
                match chosen {
                    Ok(()) => {
                        pending.keying = Some(keying);
                        break;
                    }
                    Err(failure) => reasons.extend(failure),
                }
            }
        }
        if pending.keying.is_none() && (!plain || self.policy.srtp == SrtpPolicy::Require) {
            if reasons.is_empty() {
                reasons.push(match plain {
                    true => "SRTP is required, but RTP was offered".into(),
                    false => "no acceptable SRTP keying was offered".into(),
                });
            }
            return Err(reasons.join("; "));
        }
        pending.ice = RemoteAgent::of(attributes, self.policy.ice);
        self.pending = Some(Box::new(pending));
        Ok(())
    }

    fn choose_sdes(
        &self,
        attributes: &SecurityAttributes<'_>,
        context: &mut KeyingContext<'_>,
        pending: &mut PendingSecurity,
    ) -> Result<(), Option<SecurityFailure>> {
        if attributes.cryptos.is_empty() {
            return Err(None);
        }
        let policy = self.sdes_policy();
        let mut agreed = sdes::answer(&policy, attributes.cryptos.iter().copied(), context.entropy)
            .map_err(|refusals| {
                let texts: Vec<String> = refusals.iter().map(ToString::to_string).collect();
                Some(texts.join("; "))
            })?;
        if let Some(before) = &self.agreed_crypto
            && before.local.suite == agreed.local.suite
            && before.local.parameters.options == agreed.local.parameters.options
        {
            // Keep our key if possible (RFC 4568 section 7.1.4); only its tag follows the offer.
            agreed.local.keys.clone_from(&before.local.keys);
        }
        pending.agreed = Some(agreed);
        Ok(())
    }

    fn choose_dtls(
        &self,
        attributes: &SecurityAttributes<'_>,
        context: &KeyingContext<'_>,
        pending: &mut PendingSecurity,
    ) -> Result<(), Option<SecurityFailure>> {
        if attributes.fingerprints.is_empty() {
            return Err(attributes
                .bad_fingerprint
                .then(|| "invalid certificate fingerprint".into()));
        }
        if context.dtls.is_none() {
            return Err(Some("DTLS is not available: no certificate".into()));
        }
        pending.role = match (attributes.setup, self.existing_role(attributes)) {
            (Some(DtlsSetup::Holdconn), _) => {
                return Err(Some("a=setup:holdconn was offered".into()));
            }
            // RFC 8842 section 5.3: an established association keeps its roles.
            (Some(DtlsSetup::Actpass) | None, Some(role)) => role,
            (Some(DtlsSetup::Passive), _) => Role::Client,
            _ => Role::Server,
        };
        pending.fingerprints = attributes.fingerprints.to_vec();
        Ok(())
    }

    /// Our role in the present association, if a description belongs to it.
    fn existing_role(&self, attributes: &SecurityAttributes<'_>) -> Option<Role> {
        let existing = self.association.as_ref()?;
        existing
            .role
            .filter(|_| existing.matches(&attributes.fingerprints, attributes.tls_id))
    }

    /// Puts the evaluated offer of this side into force. `address` is our advertised address.
    pub fn apply_pending(
        &mut self,
        address: SocketAddr,
        context: &mut KeyingContext<'_>,
    ) -> Option<SecurityEvent> {
        let pending = *self.pending.take()?;
        self.negotiated = true;
        self.profile = pending.profile;
        self.mid = pending.mid;
        self.bundled = pending.bundled;
        self.offered_cryptos.clear();
        if pending.ice.is_some() && self.ice.is_none() {
            let role = ice::IceRole::Controlled;
            self.ice = IceAgent::new(self.policy.ice, role, address, context);
        }
        self.apply_ice(pending.ice, true, context);
        let mut event = None;
        match pending.keying {
            Some(Keying::Sdes) => {
                if let Some(agreed) = pending.agreed {
                    event = self.apply_sdes(agreed);
                }
            }
            Some(Keying::Dtls) => {
                self.apply_dtls(pending.role, pending.fingerprints, pending.tls_id);
            }
            None => self.apply_plain(),
        }
        self.discard_unanswered();
        event
    }

    /// Removes ICE from the answer, although it was offered.
    pub fn remove_ice(&mut self) {
        self.ice = None;
        self.ice_agreed = false;
        if let Some(pending) = &mut self.pending {
            pending.ice = None;
        }
    }

    /// Discards an offer that was refused.
    pub fn abandon(&mut self) {
        self.pending = None;
        self.offered_cryptos.clear();
        self.discard_unanswered();
    }

    /// Discards the keys, the ICE agent and the DTLS association of our offer that its final answer has not agreed on.
    pub(crate) fn discard_unanswered(&mut self) {
        if !self.ice_agreed {
            self.ice = None;
        }
        if self.agreed_crypto.is_none() {
            // An earlier session or an early dialog may have used one of them, and its indices are forgotten.
            self.offered_cryptos.clear();
        }
        self.association
            .take_if(|association| association.fingerprints.is_none());
        self.early.clear();
    }

    /// Takes the DTLS association out of use. That of our offer remains, as other early dialogs may answer with DTLS;
    /// [`SideSecurity::discard_unanswered`] follows the final answer.
    fn renew_association(&mut self) {
        if let Some(association) = &mut self.association
            && association.fingerprints.is_some()
        {
            let before = core::mem::replace(association, Box::new(DtlsAssociation::new()));
            self.early.keep(before, self.keys.clone());
        }
    }

    /// Discards an offer whose line was answered as other media than RTP; the keys remain for RTP in a later exchange.
    pub(crate) fn answered_without_rtp(&mut self) {
        self.pending = None;
    }

    /// Applies the answer of this side to our offer.
    ///
    /// # Errors
    /// Reason why the answer cannot be accepted.
    pub fn apply_answer(
        &mut self,
        attributes: &SecurityAttributes<'_>,
        context: &mut KeyingContext<'_>,
    ) -> Result<Option<SecurityEvent>, SecurityFailure> {
        let offers_dtls = self.association.is_some();
        let dtls = offers_dtls && !attributes.fingerprints.is_empty();
        let sdes = !self.offered_cryptos.is_empty() && !attributes.cryptos.is_empty();
        let prefers_dtls = self.policy.keying.first() == Some(&Keying::Dtls);
        let kind = self.ice.as_ref().map_or(Ice::Off, IceAgent::kind);
        let ice = RemoteAgent::of(attributes, kind);
        let event = if dtls && (prefers_dtls || !sdes) {
            let role = match attributes.setup {
                Some(DtlsSetup::Active) => Role::Server,
                Some(DtlsSetup::Passive) => Role::Client,
                Some(DtlsSetup::Holdconn) => return Err("a=setup:holdconn was answered".into()),
                // RFC 5763 section 5: an answer must not contain actpass; treat it as active, the usual value.
                Some(DtlsSetup::Actpass) | None => {
                    self.existing_role(attributes).unwrap_or(Role::Server)
                }
            };
            let tls_id = attributes.tls_id.map(<[u8]>::to_vec);
            self.apply_ice(ice, false, context);
            self.apply_dtls(role, attributes.fingerprints.to_vec(), tls_id);
            None
        } else if sdes {
            let policy = self.sdes_policy();
            let agreed = sdes::accept(
                &policy,
                &self.offered_cryptos,
                attributes.cryptos.iter().copied(),
            )
            .map_err(|refusal| refusal.to_string())?;
            self.apply_ice(ice, false, context);
            self.apply_sdes(agreed)
        } else {
            let demanded = self.policy.srtp == SrtpPolicy::Require;
            let is_secure = attributes
                .profile
                .is_none_or(|profile| profile.transport != ProfileTransport::Plain);
            if demanded || is_secure {
                return Err(match is_secure {
                    true => "the answer uses SRTP without a key for the offer".into(),
                    false => "SRTP is required, but the answer is RTP".into(),
                });
            }
            self.apply_ice(ice, false, context);
            self.apply_plain();
            None
        };
        self.negotiated = true;
        Ok(event)
    }

    fn apply_plain(&mut self) {
        self.renew_association();
        self.keying = None;
        self.keys = None;
        // A discarded key is never used again: its indices are discarded with it.
        self.agreed_crypto = None;
    }

    fn apply_sdes(&mut self, agreed: SdesAgreement) -> Option<SecurityEvent> {
        let local = agreed.local.keys.first()?.clone();
        self.renew_association();
        let keys = Keys {
            association: self.associations,
            local,
            remote: agreed.remote.keys.clone(),
            window: usize::from(agreed.remote.parameters.window.unwrap_or(0)),
        };
        let suite = agreed.local.suite;
        let changed = self.keys.as_deref() != Some(&keys);
        if changed {
            self.keys = Some(Arc::new(keys));
        }
        self.keying = Some(Keying::Sdes);
        self.agreed_crypto = Some(Box::new(agreed));
        changed.then_some(SecurityEvent::Keyed(Keying::Sdes, suite))
    }

    fn apply_ice(
        &mut self,
        remote: Option<RemoteAgent>,
        answers: bool,
        context: &mut KeyingContext<'_>,
    ) {
        self.ice_agreed = false;
        if let (Some(remote), Some(ice)) = (remote, &mut self.ice) {
            ice.apply_remote(remote, answers, context);
            self.ice_agreed = true;
        }
    }

    fn apply_dtls(
        &mut self,
        role: Role,
        fingerprints: Vec<CertificateFingerprint>,
        tls_id: Option<Vec<u8>>,
    ) {
        self.keying = Some(Keying::Dtls);
        if self.agreed_crypto.take().is_some() {
            // Those of SDES; the handshake brings others.
            self.keys = None;
        }
        // Other roles are those of another association (RFC 8842 section 3.1).
        let is_existing = self.association.as_ref().is_some_and(|existing| {
            existing.role == Some(role) && existing.matches(&fingerprints, tls_id.as_deref())
        });
        if is_existing {
            return;
        }
        let returning = (self.early).take(role, &fingerprints, tls_id.as_deref());
        if let Some(replaced) = self
            .association
            .take_if(|association| association.fingerprints.is_some())
        {
            self.early.keep(replaced, self.keys.clone());
        }
        if let Some((association, keys)) = returning {
            self.association = Some(association);
            self.keys = keys;
            return;
        }
        let mut association = match self.association.take() {
            // The association of our offer: its handshake may have begun already.
            Some(open) if open.role.is_none_or(|existing| existing == role) => open,
            _ => Box::new(DtlsAssociation::new()),
        };
        association.role = Some(role);
        association.tls_id = tls_id;
        if let Some(session) = &mut association.session {
            session.set_fingerprints(fingerprints.clone());
        }
        association.fingerprints = Some(fingerprints);
        self.association = Some(association);
    }

    /// Prepares an offer of ours to this side: `mid` identifies the line if it needs that and has none, `source` is the
    /// profile of the offerer on the other side, `browser` whether that is a browser; `address` is our advertised
    /// address. Repeated calls change nothing, so that one offer can be sent to several targets.
    pub fn prepare_offer(
        &mut self,
        mid: Vec<u8>,
        source: Option<Profile>,
        browser: bool,
        address: SocketAddr,
        context: &mut KeyingContext<'_>,
    ) {
        self.pending = None;
        let keyed = self.keying.is_some();
        let offers = keyed || matches!(self.policy.srtp, SrtpPolicy::Prefer | SrtpPolicy::Require);
        // Established keying is kept.
        let is_allowed = |keying: Keying| {
            offers
                && self.policy.keying.contains(&keying)
                && self.keying.is_none_or(|existing| existing == keying)
        };
        let dtls = is_allowed(Keying::Dtls) && context.dtls.is_some();
        let sdes = is_allowed(Keying::Sdes);
        let feedback = source.is_some_and(|source| source.feedback);
        let feedback_policy = self.policy.feedback;
        if !keyed {
            let transport = match (self.policy.srtp, dtls, sdes) {
                (SrtpPolicy::Require, true, false) => ProfileTransport::Dtls,
                (SrtpPolicy::Require, ..) => ProfileTransport::Srtp,
                _ => ProfileTransport::Plain,
            };
            self.profile = Profile {
                transport,
                // Browsers require feedback (RFC 8834 section 4.2); telephones often refuse it.
                feedback: feedback_policy.unwrap_or(match transport {
                    ProfileTransport::Dtls => true,
                    _ => feedback && !browser,
                }),
            };
        }
        if sdes && self.offered_cryptos.is_empty() {
            // The policy has neither a lifetime nor identifiers, which are the only possible errors.
            self.offered_cryptos =
                sdes::offer(&self.sdes_policy(), context.entropy).unwrap_or_default();
            if let Some(agreed) = &self.agreed_crypto {
                // The current key is kept and comes first.
                let mut local = agreed.local.clone();
                self.offered_cryptos
                    .retain(|other| other.suite != local.suite);
                local.tag = 0;
                self.offered_cryptos.insert(0, local);
                for (tag, attribute) in (1..).zip(&mut self.offered_cryptos) {
                    attribute.tag = tag;
                }
            }
        }
        if dtls && self.association.is_none() {
            self.association = Some(Box::new(DtlsAssociation::new()));
        }
        if self.ice.is_none() {
            let role = ice::IceRole::Controlling;
            self.ice = IceAgent::new(self.policy.ice, role, address, context);
        }
        // Chromium with `bundlePolicy: "max-bundle"` refuses an offer without a group (newer ones, of several lines).
        if self.mid.is_none() && self.association.is_some() && self.ice.is_some() {
            self.mid = Some(mid);
            self.bundled = true;
        }
    }

    /// The line in our offer or answer for this side. `address` is our advertised address.
    pub fn rewrite(
        &self,
        offers: bool,
        mux: bool,
        address: SocketAddr,
        context: &KeyingContext<'_>,
    ) -> LineRewrite {
        use std::io::Write;
        let mut text = Vec::new();
        let (profile, mid, bundled) = match (&self.pending, offers) {
            (Some(pending), false) => (pending.profile, &pending.mid, pending.bundled),
            _ => (self.profile, &self.mid, self.bundled),
        };
        // Writing to a Vec cannot fail.
        if mux {
            text.extend_from_slice(b"a=rtcp-mux\r\n");
        }
        // Further offers have it as well: browsers refuse to take a line out of a group (RFC 8843 section 7.5).
        if let Some(mid) = mid {
            text.extend_from_slice(b"a=mid:");
            text.extend_from_slice(mid);
            text.extend_from_slice(b"\r\n");
        }
        let keying = match (&self.pending, offers) {
            (Some(pending), false) => pending.keying,
            _ => self.keying,
        };
        if offers {
            for attribute in &self.offered_cryptos {
                let _ = write!(text, "a=crypto:{}\r\n", attribute.value().as_str());
            }
        } else if keying == Some(Keying::Sdes) {
            let agreed = match &self.pending {
                Some(pending) => pending.agreed.as_ref(),
                None => self.agreed_crypto.as_deref(),
            };
            if let Some(agreed) = agreed {
                let _ = write!(text, "a=crypto:{}\r\n", agreed.local.value().as_str());
            }
        }
        let dtls = match offers {
            true => self.association.is_some(),
            false => keying == Some(Keying::Dtls),
        };
        if dtls && let Some(endpoint) = context.dtls {
            let role = match (&self.pending, offers) {
                (Some(pending), false) => Some(pending.role),
                (None, false) => self.association.as_ref().and_then(|existing| existing.role),
                _ => None,
            };
            let setup = match role {
                None => "actpass",
                Some(Role::Client) => "active",
                Some(Role::Server) => "passive",
            };
            let fingerprint = endpoint.certificate().fingerprint(HashFunction::Sha256);
            let _ = write!(text, "a=setup:{setup}\r\na=fingerprint:{fingerprint}\r\n");
        }
        let ice = match (&self.pending, offers) {
            (Some(pending), false) => pending.ice.is_some(),
            _ => self.ice.is_some(),
        };
        let agent = self.ice.as_ref().filter(|_| ice);
        let kind = agent.map_or(Ice::Off, IceAgent::kind);
        if let Some(agent) = agent {
            let local = agent.local();
            if kind == Ice::Full {
                // We support no ICE older than RFC 8445 (section 10).
                text.extend_from_slice(b"a=ice-options:ice2\r\n");
            }
            let _ = write!(
                text,
                "a=ice-ufrag:{}\r\na=ice-pwd:{}\r\na=candidate:{}\r\n",
                local.fragment(),
                local.password(),
                host_candidate(1, 1, 65_535, address)
            );
            text.extend_from_slice(b"a=end-of-candidates\r\n");
        }
        LineRewrite {
            port: address.port(),
            profile: Some(profile),
            attributes: text,
            browser: profile.feedback,
            bundled: mid.clone().filter(|_| bundled),
            lite: kind == Ice::Lite,
            foreign: false,
        }
    }

    /// Whether a datagram is for this party, where another one is about to take over its port.
    pub fn claims(&self, source: SocketAddr, bytes: &[u8]) -> bool {
        let association = self.association.as_deref();
        match &self.ice {
            Some(ice) => ice.claims(source, bytes),
            None => association.is_some_and(|existing| existing.peer == Some(source)),
        }
    }

    /// Processes a datagram that the forwarder passed up.
    pub fn handle_datagram(
        &mut self,
        local: &MediaEndpoint,
        source: SocketAddr,
        bytes: &[u8],
        context: &mut KeyingContext<'_>,
    ) -> Result<SecurityOutput, DropReason> {
        let mut output = SecurityOutput::default();
        let fed = match media_protocol(bytes) {
            MediaProtocol::Stun => {
                let ice = self.ice.as_mut().ok_or(DropReason::StunUnexpected)?;
                let before = ice.selected();
                let fed = ice.feed(bytes, source, context.now);
                self.drain_ice(before, local.socket, &mut output, context);
                fed
            }
            MediaProtocol::Dtls => {
                let ice = self.ice_in_force();
                let has_ice = ice.is_some();
                let admitted = match ice {
                    Some(ice) => ice.admits(source),
                    None => match (local.latching, local.signalled) {
                        (_, Some(signalled)) if signalled == source => true,
                        (Latching::SameAddress(address), _) => address == source.ip(),
                        (Latching::Anywhere, _) => true,
                        (Latching::Signalled, _) => false,
                    },
                };
                if !admitted {
                    return Err(DropReason::MediaUnexpectedSource);
                }
                let association = self
                    .association
                    .as_mut()
                    .ok_or(DropReason::DtlsUnexpected)?;
                association.ensure_session(context, true);
                let session = association
                    .session
                    .as_mut()
                    .ok_or(DropReason::DtlsUnexpected)?;
                let fed = session.feed(bytes, context.now);
                // Without ICE our own handshake goes to the signalled address: a datagram of another host, which is not
                // authenticated yet, does not direct it elsewhere.
                let is_fixed = association.role == Some(Role::Client)
                    && self.keys.is_none()
                    && !has_ice
                    && local.signalled.is_some();
                if fed.is_ok() && (!is_fixed || association.peer.is_none()) {
                    association.peer = Some(source);
                }
                fed
            }
            _ => return Err(DropReason::MediaMalformed),
        };
        self.drain_dtls(local.socket, &mut output, context.datagrams);
        // Events are reported even where the datagram itself is counted as bad.
        if output.events.is_empty() {
            fed?;
        }
        Ok(output)
    }

    /// Starts the handshake if we are the client and the destination is known.
    pub fn start_handshake(&mut self, context: &mut KeyingContext<'_>) {
        if let Some(association) = &mut self.association
            && association.role == Some(Role::Client)
            && association.peer.is_some()
            && association.fingerprints.is_some()
        {
            association.ensure_session(context, false);
        }
    }

    /// Continues keying after a description was received or sent.
    pub fn resume_keying(&mut self, context: &mut KeyingContext<'_>) {
        let selected = self.selected().flatten();
        if let Some(association) = &mut self.association
            && association.peer.is_none()
        {
            association.peer = selected;
        }
        self.start_handshake(context);
    }

    /// Sets the peer's signalled media address: without ICE our handshake goes there.
    pub fn set_signalled(&mut self, address: Option<SocketAddr>, context: &mut KeyingContext<'_>) {
        if self.ice_in_force().is_none()
            && let Some(association) = &mut self.association
            && association.session.is_none()
        {
            association.peer = address;
            self.start_handshake(context);
        }
    }

    /// Processes events of the DTLS association.
    pub fn drain_dtls(
        &mut self,
        socket: SocketId,
        output: &mut SecurityOutput,
        out: &mut Datagrams,
    ) {
        let Some(association) = &mut self.association else {
            return;
        };
        let (Some(session), Some(peer)) = (&mut association.session, association.peer) else {
            return;
        };
        while let Some(event) = session.next_event() {
            match event {
                dtls::DtlsEvent::Send(bytes) => out.push_back((socket, peer, bytes.to_vec())),
                dtls::DtlsEvent::Established(established) => {
                    output.changed = true;
                    if !self.policy.dtls_suites.contains(&established.suite) {
                        let failure = dtls::DtlsFailure::ProfileNotAllowed(established.suite);
                        self.keys = None;
                        output
                            .events
                            .push(SecurityEvent::Failed(failure.to_string()));
                        continue;
                    }
                    self.associations += 1;
                    output
                        .events
                        .push(SecurityEvent::Keyed(Keying::Dtls, established.suite));
                    self.keys = Some(Arc::new(Keys {
                        association: self.associations,
                        local: established.local,
                        remote: vec![established.remote],
                        window: 0,
                    }));
                }
                dtls::DtlsEvent::Failed(failure) => {
                    output
                        .events
                        .push(SecurityEvent::Failed(failure.to_string()));
                }
                dtls::DtlsEvent::Closed => {
                    output.changed = true;
                    self.keys = None;
                }
            }
        }
    }

    /// Handles timeouts.
    pub fn timeout(
        &mut self,
        socket: SocketId,
        output: &mut SecurityOutput,
        context: &mut KeyingContext<'_>,
    ) {
        let now = context.now;
        if let Some(ice) = &mut self.ice {
            let before = ice.selected();
            ice.timeout(now);
            self.drain_ice(before, socket, output, context);
        }
        if let Some(session) = self
            .association
            .as_mut()
            .and_then(|existing| existing.session.as_mut())
            && session.next_deadline().is_some_and(|due| due.at <= now)
        {
            session.timeout(now);
            self.drain_dtls(socket, output, context.datagrams);
        }
    }

    /// Time of the next timeout, as of `now`.
    pub fn next_deadline(&self, now: Time) -> Option<Time> {
        let session = self.association.as_ref().and_then(|existing| {
            let session = existing.session.as_ref()?;
            session.next_deadline().map(|due| due.at)
        });
        let ice = self.ice.as_ref().and_then(|ice| ice.next_deadline(now));
        session.into_iter().chain(ice).min()
    }

    /// Sends pending datagrams of the ICE agent and processes its events; `before` is the remote address at the last
    /// check.
    fn drain_ice(
        &mut self,
        mut before: Option<SocketAddr>,
        socket: SocketId,
        output: &mut SecurityOutput,
        context: &mut KeyingContext<'_>,
    ) {
        let Some(ice) = &mut self.ice else { return };
        ice.drain(socket, context.datagrams);
        let mut nominated = false;
        while let Some(event) = ice.next_event(before, context.now) {
            before = ice.selected();
            output.events.push(match event {
                IcePathEvent::Nominated(address) => {
                    nominated = true;
                    if let Some(association) = &mut self.association {
                        association.peer = Some(address);
                    }
                    SecurityEvent::Nominated(address)
                }
                IcePathEvent::ConsentLost => SecurityEvent::ConsentLost,
                IcePathEvent::Failed => SecurityEvent::IceFailed,
            });
            output.changed = true;
        }
        if nominated {
            self.start_handshake(context);
            self.drain_dtls(socket, output, context.datagrams);
        }
    }

    /// Closes the association towards the peer.
    pub fn close(&mut self, socket: SocketId, out: &mut Datagrams) {
        if let Some(session) = self
            .association
            .as_mut()
            .and_then(|existing| existing.session.as_mut())
        {
            session.close();
            self.drain_dtls(socket, &mut SecurityOutput::default(), out);
        }
    }
}
