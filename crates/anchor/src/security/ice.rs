//! The ICE agent of one side of a media line, lite or full, and the peer's parameters from signalling.

use super::sdp::SecurityAttributes;
use super::side::KeyingContext;
use config::Ice;
use core::time::Duration;
use engine::{DropReason, SocketId, Time};
use protect::ice::{Agent, CONSENT, IceCandidate, IceCredentials, IceEvent, IceRole, LiteAgent};
use protect::stun::{StunMessage, attribute, message_type};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use wire::stun::{MediaProtocol, media_protocol};

/// Interval at which the peer's consent is checked for a lite agent (RFC 7675).
const CONSENT_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// ICE parameters in a description of the peer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RemoteAgent {
    pub(super) credentials: IceCredentials,
    /// The peer is a lite agent.
    lite: bool,
    candidates: Vec<IceCandidate>,
    /// Number of candidates that were not parsed.
    skipped: u64,
}

impl RemoteAgent {
    /// `None` without ICE parameters, and where both agents are lite.
    pub(super) fn of(attributes: &SecurityAttributes<'_>, ours: Ice) -> Option<RemoteAgent> {
        if ours == Ice::Off || (ours == Ice::Lite && attributes.ice_lite) {
            return None;
        }
        let text = |bytes| std::str::from_utf8(bytes).ok();
        let credentials =
            IceCredentials::parse(text(attributes.ice_ufrag?)?, text(attributes.ice_pwd?)?)?;
        let full = ours == Ice::Full;
        let candidates = attributes.candidates.iter().filter(|_| full);
        Some(RemoteAgent {
            credentials,
            lite: attributes.ice_lite,
            candidates: candidates
                .filter_map(|value| IceCandidate::parse(value))
                .collect(),
            skipped: if full {
                attributes.candidates_skipped
            } else {
                0
            },
        })
    }
}

/// An event of the media path.
#[derive(Debug)]
pub(super) enum IcePathEvent {
    /// A pair was nominated; media goes to this address.
    Nominated(SocketAddr),
    /// The peer's consent has expired.
    ConsentLost,
    /// No pair works.
    Failed,
}

/// An ICE agent of either kind.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum IceAgent {
    /// With the time until which the consent given before a restart, or to another agent of the peer, is valid.
    Lite(Box<LiteAgent>, Time),
    Full(Box<Agent>),
}

impl IceAgent {
    /// A new agent with the local candidate `address`; `None` where ICE is off.
    pub(super) fn new(
        kind: Ice,
        role: IceRole,
        address: SocketAddr,
        context: &mut KeyingContext<'_>,
    ) -> Option<IceAgent> {
        let local = IceCredentials::generate(context.entropy);
        match kind {
            Ice::Off => None,
            Ice::Lite => Some(IceAgent::Lite(
                Box::new(LiteAgent::new(local, None)),
                Time::ZERO,
            )),
            Ice::Full => {
                let mut agent = Agent::new(local, role, context.entropy.fork());
                agent.add_local(address);
                Some(IceAgent::Full(Box::new(agent)))
            }
        }
    }

    pub(super) fn kind(&self) -> Ice {
        match self {
            IceAgent::Lite(..) => Ice::Lite,
            IceAgent::Full(_) => Ice::Full,
        }
    }

    pub(super) fn local(&self) -> &IceCredentials {
        match self {
            IceAgent::Lite(lite, _) => lite.local(),
            IceAgent::Full(agent) => agent.local(),
        }
    }

    /// Applies the peer's parameters. `answers`: we answer its description, so that new credentials are a restart,
    /// for which ours are new as well (RFC 8445 section 9). Several answers to an offer of ours each have credentials
    /// of their own, and ours are those of the offer.
    pub(super) fn apply_remote(
        &mut self,
        remote: RemoteAgent,
        answers: bool,
        context: &mut KeyingContext<'_>,
    ) {
        let RemoteAgent {
            credentials,
            lite: peer_is_lite,
            candidates,
            skipped,
        } = remote;
        let existing = match self {
            IceAgent::Lite(lite, _) => lite.remote(),
            IceAgent::Full(agent) => agent.remote(),
        };
        let same = existing == Some(&credentials);
        let is_other_agent = existing.is_some() && !same;
        let restart = is_other_agent && answers;
        match self {
            IceAgent::Lite(lite, consent_valid_until) if restart => {
                *consent_valid_until = context.now + CONSENT;
                lite.restart(IceCredentials::generate(context.entropy), Some(credentials));
            }
            IceAgent::Lite(lite, consent_valid_until) => {
                if is_other_agent {
                    *consent_valid_until = context.now + CONSENT;
                }
                lite.set_remote(credentials);
            }
            IceAgent::Full(agent) => {
                // RFC 8445 section 6.1.1: the offerer is controlling, but a lite agent never is.
                let role = match answers && !peer_is_lite {
                    true => IceRole::Controlled,
                    false => IceRole::Controlling,
                };
                if restart {
                    agent.restart(IceCredentials::generate(context.entropy), role, context.now);
                } else if !same {
                    agent.set_role(role);
                }
                agent.set_remote(credentials, peer_is_lite, context.now);
                let refused = candidates
                    .into_iter()
                    .filter_map(|candidate| agent.add_remote(candidate).err());
                *context.candidates_dropped += skipped + refused.count() as u64;
                agent.begin(context.now);
            }
        }
    }

    /// The remote address of the selected pair.
    pub(super) fn selected(&self) -> Option<SocketAddr> {
        match self {
            IceAgent::Lite(lite, _) => lite.selected(),
            IceAgent::Full(agent) => agent.selected().map(|path| path.remote),
        }
    }

    /// Whether a handshake from `source` is acceptable.
    pub(super) fn admits(&self, source: SocketAddr) -> bool {
        match self {
            IceAgent::Lite(lite, _) => lite.admits(source),
            IceAgent::Full(agent) => agent.admits(source),
        }
    }

    /// Whether a datagram is for this agent, and not for that of a party which has no answer to its offer yet: a check
    /// names our fragment, only this agent has sent checks, and it knows the sources of its peer.
    pub(super) fn claims(&self, source: SocketAddr, bytes: &[u8]) -> bool {
        if media_protocol(bytes) != MediaProtocol::Stun {
            return self.admits(source);
        }
        let Some(message) = StunMessage::parse(bytes) else {
            return false;
        };
        let fragment = self.local().fragment().as_bytes();
        let name = message.attribute(attribute::USERNAME);
        message.message_type() != message_type::BINDING_REQUEST
            || name
                .and_then(|name| name.strip_prefix(fragment))
                .is_some_and(|rest| rest.first() == Some(&b':'))
    }

    /// Processes a STUN datagram from the line's port.
    pub(super) fn feed(
        &mut self,
        bytes: &[u8],
        source: SocketAddr,
        now: Time,
    ) -> Result<(), DropReason> {
        match self {
            IceAgent::Lite(lite, _) => lite.feed(bytes, source, now),
            IceAgent::Full(agent) => agent.feed(0, bytes, source, now),
        }
    }

    /// Handles timeouts.
    pub(super) fn timeout(&mut self, now: Time) {
        if let IceAgent::Full(agent) = self
            && agent.next_deadline().is_some_and(|due| due <= now)
        {
            agent.timeout(now);
        }
    }

    /// Time of the next timeout, as of `now`.
    pub(super) fn next_deadline(&self, now: Time) -> Option<Time> {
        match self {
            IceAgent::Lite(lite, _) => lite.selected().map(|_| now + CONSENT_CHECK_INTERVAL),
            IceAgent::Full(agent) => agent.next_deadline(),
        }
    }

    /// Moves pending datagrams to `out`.
    pub(super) fn drain(&mut self, socket: SocketId, out: &mut super::side::Datagrams) {
        match self {
            IceAgent::Lite(lite, _) => {
                while let Some((to, answer)) = lite.next_answer() {
                    out.push_back((socket, to, answer));
                }
            }
            IceAgent::Full(agent) => {
                while let Some((_, to, bytes)) = agent.next_datagram() {
                    out.push_back((socket, to, bytes));
                }
            }
        }
    }

    /// The next event; `before` is the remote address at the last check.
    pub(super) fn next_event(
        &mut self,
        before: Option<SocketAddr>,
        now: Time,
    ) -> Option<IcePathEvent> {
        match self {
            IceAgent::Lite(lite, consent_valid_until) => {
                lite.selected()?;
                let has_consent = now < *consent_valid_until || lite.consents(now);
                if !has_consent && !lite.select_other(now) && lite.forget() {
                    return Some(IcePathEvent::ConsentLost);
                }
                let selected = lite.selected()?;
                (before != Some(selected)).then_some(IcePathEvent::Nominated(selected))
            }
            IceAgent::Full(agent) => Some(match agent.next_event()? {
                IceEvent::Selected(path) => IcePathEvent::Nominated(path.remote),
                IceEvent::ConsentLost(_) => IcePathEvent::ConsentLost,
                IceEvent::Failed => IcePathEvent::Failed,
            }),
        }
    }
}
