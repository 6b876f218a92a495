//! The ICE agent of one side of a media line, lite or full, and what signalling tells it of the peer's.

use super::protected::Said;
use super::secure::Means;
use crate::config::Ice;
use core::time::Duration;
use engine::{DropReason, SocketId, Time};
use protect::ice::{Agent, CONSENT, Candidate, Credentials, Event, Lite, Role};
use std::net::SocketAddr;

/// How often it is looked whether the peer of a lite agent still agrees to be sent to (RFC 7675).
const CONSENT_LOOK: Duration = Duration::from_secs(5);

/// What a description says of the peer's agent.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) credentials: Credentials,
    /// It is a lite one.
    lite: bool,
    candidates: Vec<Candidate>,
    /// Candidates beyond what was read.
    beyond: u64,
}

impl Remote {
    /// None: there is nothing of ICE, or two lite agents would need none between them.
    pub(super) fn of(said: &Said<'_>, ours: Ice) -> Option<Remote> {
        if ours == Ice::Off || (ours == Ice::Lite && said.lite) {
            return None;
        }
        let text = |bytes| std::str::from_utf8(bytes).ok();
        let credentials = Credentials::parse(text(said.fragment?)?, text(said.password?)?)?;
        let full = ours == Ice::Full;
        let candidates = said.candidates.iter().filter(|_| full);
        Some(Remote {
            credentials,
            lite: said.lite,
            candidates: candidates
                .filter_map(|value| Candidate::parse(value))
                .collect(),
            beyond: if full { said.candidates_beyond } else { 0 },
        })
    }
}

/// What happened to the path of media.
#[derive(Debug)]
pub(super) enum News {
    /// A pair was nominated; where media goes from now on.
    Nominated(SocketAddr),
    /// The peer has stopped agreeing to be sent to.
    ConsentLost,
    /// No pair works.
    Failed,
}

/// See the module's text.
#[derive(Debug)]
pub(super) enum IceAgent {
    /// With the time until which consent of before a restart holds.
    Lite(Box<Lite>, Time),
    Full(Box<Agent>),
}

impl IceAgent {
    /// An agent of this kind, whose address is to be told to the peer as `address`; none where ICE is off.
    pub(super) fn new(
        kind: Ice,
        role: Role,
        address: SocketAddr,
        means: &mut Means<'_>,
    ) -> Option<IceAgent> {
        let local = Credentials::generate(means.entropy);
        match kind {
            Ice::Off => None,
            Ice::Lite => Some(IceAgent::Lite(Box::new(Lite::new(local, None)), Time::ZERO)),
            Ice::Full => {
                let mut agent = Agent::new(local, role, means.entropy.fork());
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

    pub(super) fn local(&self) -> &Credentials {
        match self {
            IceAgent::Lite(lite, _) => lite.local(),
            IceAgent::Full(agent) => agent.local(),
        }
    }

    /// Takes what a description says of the peer's agent. `answers`: we answer it, so that new credentials are a restart, for which
    /// ours are new as well (RFC 8445 section 9). Of several answers to an offer of ours each has credentials of its own, and ours are
    /// those of the offer.
    pub(super) fn settle(&mut self, remote: Remote, answers: bool, means: &mut Means<'_>) {
        let Remote {
            credentials,
            lite: peer_is_lite,
            candidates,
            beyond,
        } = remote;
        let known = match self {
            IceAgent::Lite(lite, _) => lite.remote(),
            IceAgent::Full(agent) => agent.remote(),
        };
        let same = known == Some(&credentials);
        let restart = known.is_some() && !same && answers;
        match self {
            IceAgent::Lite(lite, holds) if restart => {
                *holds = means.now + CONSENT;
                lite.restart(Credentials::generate(means.entropy), Some(credentials));
            }
            IceAgent::Lite(lite, _) => lite.set_remote(credentials),
            IceAgent::Full(agent) => {
                // RFC 8445 section 6.1.1: who offers controls, but a lite agent never does.
                let role = match answers && !peer_is_lite {
                    true => Role::Controlled,
                    false => Role::Controlling,
                };
                if restart {
                    agent.restart(Credentials::generate(means.entropy), role, means.now);
                } else if !same {
                    agent.set_role(role);
                }
                agent.set_remote(credentials, peer_is_lite, means.now);
                let refused = candidates
                    .into_iter()
                    .filter_map(|candidate| agent.add_remote(candidate).err());
                *means.candidates_dropped += beyond + refused.count() as u64;
                agent.begin(means.now);
            }
        }
    }

    /// Where media goes.
    pub(super) fn selected(&self) -> Option<SocketAddr> {
        match self {
            IceAgent::Lite(lite, _) => lite.selected(),
            IceAgent::Full(agent) => agent.selected().map(|path| path.remote),
        }
    }

    /// Whether a handshake from there may be taken.
    pub(super) fn admits(&self, source: SocketAddr) -> bool {
        match self {
            IceAgent::Lite(lite, _) => lite.admits(source),
            IceAgent::Full(agent) => agent.admits(source),
        }
    }

    /// A STUN datagram that came to the port of the line.
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

    /// Tells the time.
    pub(super) fn timeout(&mut self, now: Time) {
        if let IceAgent::Full(agent) = self
            && agent.next_deadline().is_some_and(|due| due <= now)
        {
            agent.timeout(now);
        }
    }

    /// When it wants to be told the time, as things stand `now`.
    pub(super) fn next_deadline(&self, now: Time) -> Option<Time> {
        match self {
            IceAgent::Lite(lite, _) => lite.selected().map(|_| now + CONSENT_LOOK),
            IceAgent::Full(agent) => agent.next_deadline(),
        }
    }

    /// Takes out the datagrams that are to be sent.
    pub(super) fn drain(&mut self, socket: SocketId, out: &mut super::secure::Datagrams) {
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

    /// The next thing that has happened; `before`: where media went when it was looked last.
    pub(super) fn news(&mut self, before: Option<SocketAddr>, now: Time) -> Option<News> {
        match self {
            IceAgent::Lite(lite, holds) => match lite.selected() {
                Some(_) if now >= *holds && !lite.consents(now) && lite.forget() => {
                    Some(News::ConsentLost)
                }
                Some(selected) if before != Some(selected) => Some(News::Nominated(selected)),
                _ => None,
            },
            IceAgent::Full(agent) => Some(match agent.next_event()? {
                Event::Selected(path) => News::Nominated(path.remote),
                Event::ConsentLost(_) => News::ConsentLost,
                Event::Failed => News::Failed,
            }),
        }
    }
}
