//! Origin and refusal of a request that creates a dialog or a transaction.

use crate::headers::text;
use crate::policy::{Refusal, SkippedTrunk};
use crate::shared::Ctx;
use config::{Authenticate, Config, InterfaceId, InterfaceKind, Register, TrunkId};
use engine::{EventKind, Reason};
use sip::Flow;
use wire::sip::{HeaderId, Message, Method, NameAddr, Uri, percent_decode};

/// Origin of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestOrigin {
    pub(crate) interface: InterfaceId,
    pub(crate) trunk: Option<TrunkId>,
    /// Whether the source is authenticated: see [`Facts::authenticated`].
    pub(crate) authenticated: bool,
}

impl RequestOrigin {
    /// Whether a request arrived on a core interface without `allow` from a source that belongs to no trunk: the core
    /// consists of configured systems, not of all hosts that reach the address.
    pub(crate) fn is_foreign_to_core(&self, config: &Config) -> bool {
        let interface = config.interface(self.interface);
        self.trunk.is_none()
            && interface.is_some_and(|interface| {
                interface.kind == InterfaceKind::Core
                    && interface.allow.is_empty()
                    && interface.authenticate == Authenticate::None
                    && interface.register == Register::Refuse
            })
    }

    /// Whether requests of this origin must authenticate by digest.
    pub(crate) fn requires_authentication(&self, config: &Config) -> bool {
        let interface = config.interface(self.interface);
        let asks = interface.is_some_and(|i| i.authenticate == Authenticate::Digest);
        asks && self.trunk.is_none()
    }

    /// Whether calls of this origin may reach conferences; if the interface authenticates, those of its users and of
    /// registered phones.
    pub(crate) fn reaches_conferences(&self, config: &Config) -> bool {
        let interface = config.interface(self.interface);
        self.authenticated || interface.is_none_or(|i| i.authenticate == Authenticate::None)
    }

    /// Whether the interface permits out-of-dialog requests of this method.
    pub(crate) fn permits(
        &self,
        config: &Config,
        request: &Message<'_>,
    ) -> Result<(), RequestRefusal> {
        let Some(interface) = config.interface(self.interface) else {
            return Ok(());
        };
        match request.method() {
            Method::Subscribe if !interface.subscribe => {
                Err(RequestRefusal::new(Reason::SubscriptionsNotForwarded))
            }
            Method::Notify if !interface.subscribe => {
                Err(RequestRefusal::new(Reason::NotificationsNotForwarded))
            }
            Method::Refer if !interface.refer => {
                Err(RequestRefusal::new(Reason::ReferNotForwarded))
            }
            _ => Ok(()),
        }
    }
}

/// Interface and trunk of a peer.
pub(crate) type PeerLocation = (InterfaceId, Option<TrunkId>);

/// Longest text from a refused request in an event.
const MAX_LOGGED: usize = 200;

/// A refusal with its headers.
#[derive(Debug)]
pub(crate) struct RequestRefusal {
    pub(crate) status: u16,
    pub(crate) reason: Option<String>,
    pub(crate) why: Reason,
    pub(crate) headers: Vec<(HeaderId, Vec<u8>)>,
    /// The decision behind it, of a call.
    pub(crate) decision: Option<Box<RefusedBy>>,
}

/// Parts of the configuration that refused a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RefusedBy {
    /// Name of the route.
    pub(crate) route: Option<String>,
    /// Index of the header rule.
    pub(crate) rule: Option<u16>,
    /// Trunks of the route that were skipped.
    pub(crate) skipped: Vec<SkippedTrunk>,
}

impl RequestRefusal {
    pub(crate) fn new(why: Reason) -> RequestRefusal {
        RequestRefusal::with_status(why.status(), why)
    }

    /// A refusal whose status does not follow from the reason.
    pub(crate) fn with_status(status: u16, why: Reason) -> RequestRefusal {
        RequestRefusal {
            status,
            reason: None,
            why,
            headers: Vec::new(),
            decision: None,
        }
    }

    /// Logs the refusal of a request that arrived on `interface`.
    pub(crate) fn report(
        &self,
        ctx: &mut Ctx,
        request: &Message<'_>,
        flow: Flow,
        interface: Option<InterfaceId>,
    ) {
        let method = || text(request.method().as_bytes());
        let short = |bytes: &[u8]| text(bytes.get(..MAX_LOGGED).unwrap_or(bytes));
        let config = &ctx.config;
        // Failed authentications have an event of their own.
        let is_refused_call = request.method() == Method::Invite
            && !matches!(self.status, 401 | 407)
            && self.why != Reason::TooManyFailures;
        if is_refused_call && let Some(suppressed) = ctx.refused_invites.take(ctx.now) {
            return ctx.events.tell(ctx.now, || EventKind::InviteRefused {
                to: short(request.request_uri()),
                call_id: short(request.call_id().unwrap_or_default()),
                interface: interface.map_or_else(String::new, |id| config.interface_name(id)),
                status: self.status,
                reason: self.why.text().to_owned(),
                source: flow.remote.to_string(),
                suppressed,
            });
        }
        ctx.events.tell_debug(ctx.now, || match self.why {
            Reason::AuthenticationRequired => EventKind::AuthenticationRequired {
                method: method(),
                status: self.status,
                source: flow.remote.to_string(),
                trunk: None,
            },
            why => EventKind::RequestRefused {
                method: method(),
                to: short(request.request_uri()),
                call_id: short(request.call_id().unwrap_or_default()),
                interface: interface.map_or_else(String::new, |id| config.interface_name(id)),
                status: self.status,
                reason: why.text().to_owned(),
                source: flow.remote.to_string(),
            },
        });
    }
}

impl From<Refusal> for RequestRefusal {
    fn from(refusal: Refusal) -> RequestRefusal {
        let headers = refusal
            .retry_after
            .map(|seconds| (HeaderId::RetryAfter, seconds.to_string().into_bytes()));
        RequestRefusal {
            status: refusal.status,
            reason: refusal.reason,
            why: refusal.why,
            headers: headers.into_iter().collect(),
            decision: refusal.route.map(|route| {
                Box::new(RefusedBy {
                    route: Some(route),
                    rule: None,
                    skipped: refusal.skipped,
                })
            }),
        }
    }
}

/// The decoded user part of an address.
pub(crate) fn user_at(address: &NameAddr<'_>) -> Option<Box<str>> {
    let uri = address.parse_uri().filter(Uri::is_sip)?;
    let user = percent_decode(uri.user?);
    Some(std::str::from_utf8(&user).ok()?.into())
}

/// The refusal of a REGISTER above the rate limit.
pub(crate) fn too_many(seconds: u32) -> RequestRefusal {
    RequestRefusal {
        headers: vec![(HeaderId::RetryAfter, seconds.to_string().into_bytes())],
        ..RequestRefusal::new(Reason::RegistrationRate)
    }
}

/// The user part of To.
pub(crate) fn address_of_record(request: &Message<'_>) -> String {
    request
        .to()
        .map_or_else(|_| String::new(), |to| user_of_record(&to))
}

/// The decoded user part of an address; empty if there is none.
pub(crate) fn user_of_record(address: &NameAddr<'_>) -> String {
    let user = address.parse_uri().and_then(|uri| uri.user);
    String::from_utf8_lossy(&percent_decode(user.unwrap_or_default())).into_owned()
}
