//! Our host and that of the target in messages of a hop.

use crate::headers::{is_anonymous, is_withheld};
use crate::listeners::Listeners;
use crate::policy::HopStep;
use config::Trunk;
use engine::Transport;
use sip::Flow;
use wire::sip::{NameAddr, Uri};

/// Our host and the host of the target at one hop.
#[derive(Debug)]
pub(crate) struct HopHosts {
    /// Host of From.
    pub(crate) from_host: Vec<u8>,
    to_host: Vec<u8>,
    /// Whether the target also accepts TCP at the same address and port.
    pub(crate) takes_tcp: bool,
}

/// The host of the target of a hop whose URI has none: the URN of a service (RFC 5031).
fn host_of_target(trunk: &Trunk, hop: &HopStep) -> Vec<u8> {
    let mut host = Vec::new();
    if let Some(target) = trunk.targets.get(usize::from(hop.target)) {
        target.host.append_to(&mut host);
    }
    host
}

impl HopHosts {
    pub(crate) fn new(
        listeners: &Listeners,
        hop: &HopStep,
        trunk: Option<&Trunk>,
        flow: Flow,
    ) -> HopHosts {
        let own = listeners.advertised_host(flow.local);
        let domain = trunk
            .and_then(|trunk| trunk.domain.as_ref())
            .map(|domain| domain.to_string().into_bytes());
        let to_host = match (trunk, &domain) {
            (_, Some(domain)) => domain.clone(),
            (Some(trunk), None) => {
                match Uri::parse(&hop.uri).map(|uri| uri.raw_host_port().to_vec()) {
                    Some(host) if !host.is_empty() => host,
                    _ => host_of_target(trunk, hop),
                }
            }
            // The address of record of a registered user is in our domain.
            (None, None) => own.clone(),
        };
        let takes_tcp = flow.transport == Transport::Udp
            && trunk.is_some_and(|trunk| {
                trunk.targets.iter().any(|target| {
                    target.transport == Some(Transport::Tcp)
                        && target.address(Transport::Tcp) == Some(flow.remote)
                })
            });
        HopHosts {
            from_host: domain.unwrap_or(own),
            to_host,
            takes_tcp,
        }
    }

    /// The host for From; `None`: unchanged (anonymous callers, RFC 3323 section 4.1).
    pub(crate) fn caller_host(&self, caller: &NameAddr<'_>) -> Option<&[u8]> {
        (!is_anonymous(caller)).then_some(self.from_host.as_slice())
    }

    /// Appends From: the user of the trunk if it has one, otherwise the caller. Anonymous callers stay so, because the
    /// number of the trunk names them, too.
    pub(crate) fn from(&self, trunk: Option<&Trunk>, caller: &NameAddr<'_>, out: &mut Vec<u8>) {
        match trunk.and_then(|trunk| trunk.from_user.as_deref()) {
            Some(user) if !is_withheld(caller) => {
                out.extend_from_slice(b"<sip:");
                out.extend_from_slice(user.as_bytes());
                out.push(b'@');
                out.extend_from_slice(&self.from_host);
                out.push(b'>');
            }
            _ => crate::headers::address_with_host(caller, self.caller_host(caller), out),
        }
    }

    /// Appends To.
    pub(crate) fn to(&self, called: &NameAddr<'_>, out: &mut Vec<u8>) {
        crate::headers::address_with_host(called, Some(&self.to_host), out);
    }
}
