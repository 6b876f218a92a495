//! Routing policy: a pure function from facts to an immutable plan. It reads the configuration and the state of trunks
//! and registrations through a trait, uses a random number that is one of the facts, and changes nothing.

mod open_routes;
mod order;
mod skipped;
mod trunk_uri;

#[cfg(test)]
mod tests;

pub(crate) use open_routes::permits_unauthenticated;
pub use order::in_order;
pub use skipped::{SkipReason, SkippedTrunk};

use crate::emergency::is_emergency;
use crate::policy::trunk_uri::trunk_uri;
use config::{
    Authenticate, Config, HostName, InterfaceId, Match, MediaMode, Number, NumberRewrite, Register,
    RouteAction, RouteSpec, RouteTrunk, TargetSpec, Trunk, TrunkId,
};
use core::time::Duration;
use engine::{Reason, Transport};
use open_routes::is_open;
use serde::{Deserialize, Serialize};
use sip::Flow;
use std::borrow::Cow;
use std::net::SocketAddr;
use wire::sip::{Host, Scheme, Uri, percent_decode};

/// Maximum number of contacts called for a number that is not registered itself.
const MAX_CONTACTS: usize = 16;

/// Facts about a new call.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The interface on which it arrived.
    pub interface: InterfaceId,
    /// The trunk that it came from: by [`Config::trunk_of`], or the resolved address of a target with a name.
    pub trunk: Option<TrunkId>,
    /// Whether the source is authenticated: it is a trunk, has authenticated by digest, or uses the flow of an accepted
    /// registration.
    pub authenticated: bool,
    /// Whether digest is not required of this call because a route permits unauthenticated sources.
    pub exempt: bool,
    /// The URI of the caller (in From).
    pub from: &'a [u8],
    /// The Request-URI.
    pub to: &'a [u8],
    /// A random number for decisions by weight.
    pub random: u64,
    /// Number of calls.
    pub calls: usize,
    /// Whether the border is draining.
    pub draining: bool,
}

/// A target of a trunk by its index: each is a server of its own, with its overload and sequence (RFC 7339 section
/// 5.2).
pub(crate) type TrunkTarget = (TrunkId, u16);

/// State of trunks and registrations.
pub trait RoutingState {
    /// Whether the operator lets a trunk take calls.
    fn trunk_in_service(&self, trunk: TrunkId) -> bool;
    /// Whether a target of a trunk is up.
    fn target_up(&self, trunk: TrunkId, target: usize) -> bool;
    /// Whether overload control permits another new call to a target of a trunk; `random` decides if it accepts a share
    /// of them.
    fn target_takes(&self, target: TrunkTarget, random: u64) -> bool;
    /// Number of calls of a trunk.
    fn trunk_calls(&self, trunk: TrunkId) -> u32;
    /// Route values that our carrier wants in requests to a target of a trunk (RFC 3608), in order.
    fn service_route(&self, trunk: TrunkId, target: usize) -> Vec<Box<[u8]>>;
    /// Contacts of a user, or the contact that was forwarded with `token`; the preferred one first.
    fn contacts(&self, user: &str, token: Option<&[u8]>) -> Vec<Contact>;
    /// Contacts of registered users whose name begins with this prefix of numbers.
    fn contacts_below(&self, prefix: &str) -> Vec<Contact>;
}

/// A registered contact as the target of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// Its interface.
    pub interface: InterfaceId,
    /// Request-URI.
    pub uri: Box<[u8]>,
    /// Route values (RFC 3327), in order.
    pub path: Vec<Box<[u8]>>,
    /// The flow by which it is reached.
    pub flow: Flow,
    /// Preference in thousandths.
    pub q: u16,
}

impl Contact {
    /// Uses the address in the URI as destination, if it is an IP address and the phone registered over UDP without
    /// proxies. Connections stay the destination of phones that opened them.
    pub(crate) fn lead_to_address(&mut self) {
        let address = Uri::parse(&self.uri).and_then(|uri| {
            let port = uri.port.unwrap_or(5060);
            Some(SocketAddr::new(uri.host.ip()?, port))
        });
        if let Some(address) = address
            && self.flow.transport == Transport::Udp
            && self.path.is_empty()
        {
            self.flow.remote = address;
        }
    }
}

/// The decision about a call. A refusal is a plan too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Forward it.
    Call(CallPlan),
    /// Refuse it.
    Refuse(Refusal),
}

/// Forwarding of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPlan {
    /// Name of the route; `default` if none matched.
    pub route: String,
    /// Treatment of its media.
    pub media: MediaMode,
    /// Steps in order; at least one.
    pub steps: Vec<HopStep>,
    /// Ring timeout.
    pub ring_timeout: Duration,
    /// Trunks of the route that get no INVITE.
    pub skipped: Vec<SkippedTrunk>,
}

/// A destination of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopStep {
    /// Steps of the same group are adjacent, and called at the same time.
    pub group: u16,
    /// The interface.
    pub interface: InterfaceId,
    /// The trunk, whose settings apply (domain, credentials, timeouts).
    pub trunk: Option<TrunkId>,
    /// Index of the trunk's target.
    pub target: u16,
    /// Name of the trunk or user, for events.
    pub label: String,
    /// Request-URI.
    pub uri: Vec<u8>,
    /// Route values, in order.
    pub routes: Vec<Box<[u8]>>,
    /// Destination.
    pub place: StepTarget,
    /// Whether a 3xx response added it.
    pub redirected: bool,
    /// Whether that leads to another host than those of the trunk, which gets neither its credentials nor its trust.
    pub foreign: bool,
    /// Whether it is the first step for a contact of a 3xx response.
    pub begins_contact: bool,
}

impl HopStep {
    /// Set in `group` of the steps for the addresses of a name, with the group of the name and the number of the
    /// address.
    const LOCATED: u16 = 0x8000;
    /// Bits of the number of the address.
    const ADDRESS: u16 = 0xf;

    /// The step for an address of its name; `number` is below 16.
    pub(crate) fn at_address(
        &self,
        number: u16,
        address: SocketAddr,
        transport: Transport,
    ) -> HopStep {
        HopStep {
            place: StepTarget::Address(address, transport),
            group: HopStep::LOCATED | (self.group << 4) | number,
            begins_contact: false,
            ..self.clone()
        }
    }

    /// The target of a trunk whose name it has; `None` if a peer has written the name.
    pub(crate) fn named_target(&self) -> Option<(TrunkId, usize)> {
        let (trunk, target) = self.trunk_target()?;
        matches!(self.place, StepTarget::Name(..)).then_some((trunk, usize::from(target)))
    }

    /// The target of a trunk, unless a redirect has led elsewhere.
    pub(crate) fn trunk_target(&self) -> Option<TrunkTarget> {
        let trunk = self.trunk.filter(|_| !self.redirected)?;
        Some((trunk, self.target))
    }

    /// Whether the host of its URI is that of a target or the domain of this trunk.
    pub(crate) fn is_at(&self, trunk: &Trunk) -> bool {
        Uri::parse(&self.uri).is_some_and(|uri| is_at(trunk, &uri))
    }

    /// Whether both are addresses of one name.
    pub(crate) fn is_of_same_name(&self, other: &HopStep) -> bool {
        self.group & HopStep::LOCATED != 0
            && self.group & !HopStep::ADDRESS == other.group & !HopStep::ADDRESS
            && self.redirected == other.redirected
    }
}

/// Whether the host of a URI is that of a target or the domain of a trunk.
pub(crate) fn is_at(trunk: &Trunk, uri: &Uri<'_>) -> bool {
    HostName::parse(&uri.host.to_string()).is_some_and(|host| {
        let own = trunk.targets.iter().map(|target| &target.host);
        let mut own = own.chain(&trunk.domain);
        own.any(|own| match own.ip() {
            Some(ip) => host.ip() == Some(ip),
            None => own.text().eq_ignore_ascii_case(host.text()),
        })
    })
}

/// Destination of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepTarget {
    /// An address.
    Address(SocketAddr, Transport),
    /// The peer of a flow that it opened.
    Flow(Flow),
    /// A name to resolve (RFC 3263), over this transport if one is given.
    Name(HostName, Option<Transport>),
}

/// A refusal of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Status.
    pub status: u16,
    /// Reason phrase, unless it is that of the status.
    pub reason: Option<String>,
    /// Reason for the log.
    pub why: Reason,
    /// Retry-After in seconds.
    pub retry_after: Option<u32>,
    /// The route that decided.
    pub route: Option<String>,
    /// Trunks of the route that get no INVITE.
    pub skipped: Vec<SkippedTrunk>,
}

impl Refusal {
    fn new(why: Reason, retry_after: Option<u32>) -> Refusal {
        Refusal {
            status: why.status(),
            reason: None,
            why,
            retry_after,
            route: None,
            skipped: Vec::new(),
        }
    }

    fn plan(why: Reason) -> Plan {
        Plan::Refuse(Refusal::new(why, None))
    }

    fn later(why: Reason, seconds: u32) -> Plan {
        Plan::Refuse(Refusal::new(why, Some(seconds)))
    }
}

/// An address as seen by conditions.
struct RoutingParty<'a> {
    /// User part, unescaped and without parameters; a tel number without visual separators.
    user: Cow<'a, str>,
    /// Parameters of the number, as written: behind it in the user part of a sip URI (RFC 3261 section 19.1.6).
    parameters: &'a [u8],
    /// Whether the user part is a telephone number by its URI (`user=phone`, tel).
    is_telephone: bool,
    /// Host; empty for tel.
    host: Host<'a>,
    /// The whole URN of a service (RFC 5031), which has no user part.
    service: Option<&'a [u8]>,
}

/// The called party after all changes.
#[derive(Clone, Copy)]
enum CalledParty<'a> {
    /// A number or a user.
    Number(CalledNumber<'a>),
    /// A service, whose URN is forwarded unchanged.
    Service(&'a [u8]),
}

/// A number or a user, with parameters for the next network.
#[derive(Clone, Copy)]
struct CalledNumber<'a> {
    number: &'a str,
    /// See [`RoutingParty`].
    parameters: &'a [u8],
    is_telephone: bool,
}

impl<'a> RoutingParty<'a> {
    fn read(uri: &Uri<'a>) -> RoutingParty<'a> {
        if is_service(uri) {
            return RoutingParty {
                user: Cow::Borrowed(""),
                parameters: b"",
                is_telephone: false,
                host: uri.host,
                service: Some(uri.raw),
            };
        }
        let user = uri.user.unwrap_or_default();
        // Parameters inside the user part (RFC 4694 and similar) do not belong to the number.
        let end = user.iter().position(|byte| *byte == b';');
        let (user, parameters) = user.split_at(end.unwrap_or(user.len()));
        let (parameters, is_telephone) = match uri.scheme {
            Scheme::Tel => (uri.params.as_bytes(), true),
            _ => {
                let kind = uri.params.get(b"user").unwrap_or_default();
                (parameters, kind.eq_ignore_ascii_case(b"phone"))
            }
        };
        let user = match percent_decode(user) {
            Cow::Borrowed(bytes) => match core::str::from_utf8(bytes) {
                Ok(user) => Cow::Borrowed(user),
                Err(_) => String::from_utf8_lossy(bytes),
            },
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        };
        let user = match uri.scheme {
            Scheme::Tel if user.contains(['-', '.', '(', ')']) => {
                Cow::Owned(user.replace(['-', '.', '(', ')'], ""))
            }
            _ => user,
        };
        RoutingParty {
            user,
            parameters,
            is_telephone,
            host: uri.host,
            service: None,
        }
    }

    /// The called party without changes.
    fn called(&self) -> CalledParty<'_> {
        match self.service {
            Some(urn) => CalledParty::Service(urn),
            None => CalledParty::Number(CalledNumber {
                number: &self.user,
                parameters: self.parameters,
                is_telephone: self.is_telephone,
            }),
        }
    }

    /// Host in lower case, IPv6 without brackets; empty for tel.
    fn domain(&self) -> String {
        match self.host.ip() {
            Some(ip) => ip.to_string(),
            None => self.host.to_string().to_ascii_lowercase(),
        }
    }
}

/// A call to a sips URI uses TLS on all hops (RFC 3261 section 26.2, RFC 5630 section 3.1.3): other steps are removed;
/// without any left it is refused.
fn only_tls(facts: &Facts<'_>, plan: Plan) -> Plan {
    let sips = |uri: &[u8]| {
        uri.get(..5)
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"sips:"))
    };
    let mut plan = match plan {
        Plan::Call(plan) if sips(facts.to) => plan,
        plan => return plan,
    };
    plan.steps.retain_mut(|step| {
        let secure = match &mut step.place {
            StepTarget::Address(_, transport) => *transport == Transport::Tls,
            StepTarget::Name(_, transport @ None) => {
                *transport = Some(Transport::Tls);
                true
            }
            StepTarget::Name(_, transport) => *transport == Some(Transport::Tls),
            // A contact with a sip URI must not be reached for a sips URI (RFC 5630 section 5.3).
            StepTarget::Flow(flow) => {
                matches!(flow.transport, Transport::Tls | Transport::Wss) && sips(&step.uri)
            }
        };
        if secure && step.trunk.is_some() {
            upgrade(&mut step.uri);
        }
        secure
    });
    match plan.steps.is_empty() {
        false => Plan::Call(plan),
        // RFC 5630 section 5.1.1.2.
        true => Refusal::plan(Reason::SipsNeedsTls),
    }
}

/// Converts a sip URI of a trunk to sips, without a transport parameter.
fn upgrade(uri: &mut Vec<u8>) {
    if uri.starts_with(b"sip:") {
        uri.insert(3, b's');
    }
    if let Some(bare) = uri.strip_suffix(b";transport=tls") {
        uri.truncate(bare.len());
    }
}

/// The plan of a call that a header rule sends to `trunk`: limits apply, routes do not.
pub fn decide_for(
    trunk: TrunkId,
    config: &Config,
    facts: &Facts<'_>,
    view: &dyn RoutingState,
) -> Plan {
    only_tls(facts, only_to(trunk, config, facts, view))
}

fn only_to(trunk: TrunkId, config: &Config, facts: &Facts<'_>, view: &dyn RoutingState) -> Plan {
    let router = |called: &RoutingParty<'_>| {
        let router = Router {
            config,
            facts,
            view,
            token: None,
        };
        let only = [RouteTrunk {
            trunk,
            priority: 0,
            weight: 1,
        }];
        router.to_trunks("rule", MediaMode::Anchor, &only, called.called())
    };
    match admissible(config, facts) {
        Ok(to) => router(&RoutingParty::read(&to)),
        Err(plan) => plan,
    }
}

/// The called number (or user) of an acceptable call; `None` for calls without a number.
///
/// # Errors
/// The refusal.
pub(crate) fn called_number(config: &Config, facts: &Facts<'_>) -> Result<Option<String>, Refusal> {
    match admissible(config, facts) {
        Ok(to) => {
            let party = RoutingParty::read(&to);
            Ok((party.service.is_none()).then(|| party.user.into_owned()))
        }
        Err(Plan::Refuse(refusal)) => Err(refusal),
        Err(Plan::Call(_)) => Ok(None),
    }
}

/// The Request-URI of an acceptable call.
fn admissible<'f>(config: &Config, facts: &Facts<'f>) -> Result<Uri<'f>, Plan> {
    let limited = !is_emergency(config, facts.to);
    if limited && facts.draining {
        return Err(Refusal::later(Reason::Draining, 5));
    }
    if limited && facts.calls >= config.limits.calls {
        return Err(Refusal::later(Reason::CallLimit, 5));
    }
    let to = Uri::parse(facts.to).ok_or(Refusal::plan(Reason::UnreadableUri))?;
    match to.scheme {
        Scheme::Sip | Scheme::Sips | Scheme::Tel => Ok(to),
        Scheme::Urn if is_service(&to) => Ok(to),
        _ => Err(Refusal::plan(Reason::UnsupportedScheme)),
    }
}

/// The plan of a call.
pub fn decide(config: &Config, facts: &Facts<'_>, view: &dyn RoutingState) -> Plan {
    only_tls(facts, by_routes(config, facts, view))
}

fn by_routes(config: &Config, facts: &Facts<'_>, view: &dyn RoutingState) -> Plan {
    let to = match admissible(config, facts) {
        Ok(to) => to,
        Err(plan) => return plan,
    };
    let called = RoutingParty::read(&to);
    // A caller without a readable URI (anonymous, or another scheme) matches no condition on callers.
    let caller = Uri::parse(facts.from).map(|uri| RoutingParty::read(&uri));
    let router = Router {
        config,
        facts,
        view,
        token: to
            .params
            .get(crate::headers::TOKEN)
            .filter(|t| !t.is_empty()),
    };
    if router.token.is_some() && router.owns_registrations() {
        // Our own Contact, as sent to the core, identifies the phone. Routes could only send the call back.
        return router
            .to_own_contacts("registration", &called.user)
            .unwrap_or_else(|| Refusal::plan(Reason::RegistrationOver));
    }
    for route in &config.routes {
        if !router.matches(route, caller.as_ref(), &called) {
            continue;
        }
        if !is_open(route, config, facts, router.passing_trunk()) {
            // The first request of a user has no credentials either: it is challenged, and takes this route then.
            if facts.exempt && router.carry_out(route, &called).is_some() {
                return Refusal::plan(Reason::NoRoute);
            }
            continue;
        }
        if let Some(plan) = router.carry_out(route, &called) {
            return plan;
        }
    }
    router.without_route(&called)
}

struct Router<'a> {
    config: &'a Config,
    facts: &'a Facts<'a>,
    view: &'a dyn RoutingState,
    token: Option<&'a [u8]>,
}

impl Router<'_> {
    /// The trunk to which the interface forwards registrations, unless the request comes from a trunk.
    fn passing_trunk(&self) -> Option<TrunkId> {
        if self.facts.trunk.is_some() {
            return None;
        }
        match self.config.interface(self.facts.interface)?.register {
            Register::Pass(trunk) => Some(trunk),
            Register::Local | Register::Refuse => None,
        }
    }

    /// Whether registrations are forwarded to the trunk that the request came from.
    fn owns_registrations(&self) -> bool {
        let mut interfaces = self.config.interfaces.iter();
        interfaces.any(|interface| match interface.register {
            Register::Pass(trunk) => self.is_from(trunk),
            Register::Local | Register::Refuse => false,
        })
    }

    /// Whether the request comes from this trunk.
    fn is_from(&self, id: TrunkId) -> bool {
        self.facts.trunk == Some(id)
    }

    /// Whether a contact is reachable for this request without a route. Contacts forwarded to a trunk are reachable
    /// from that trunk; contacts kept here are reachable from trunks, from authenticated sources, and from all sources
    /// of an interface without authentication.
    fn owns(&self, contact: &Contact) -> bool {
        let facts = self.facts;
        let Some(interface) = self.config.interface(contact.interface) else {
            return false;
        };
        match interface.register {
            Register::Pass(trunk) => self.is_from(trunk),
            Register::Local => {
                facts.authenticated
                    || contact.interface == facts.interface
                        && interface.authenticate == Authenticate::None
            }
            // A reload has changed it: the contact stays until it expires.
            Register::Refuse => facts.authenticated,
        }
    }

    fn matches(
        &self,
        route: &RouteSpec,
        caller: Option<&RoutingParty<'_>>,
        called: &RoutingParty<'_>,
    ) -> bool {
        let facts = self.facts;
        let listed = |empty: bool, found: bool| empty || found;
        listed(
            route.interfaces.is_empty(),
            route.interfaces.contains(&facts.interface),
        ) && listed(
            route.from_trunks.is_empty(),
            facts
                .trunk
                .is_some_and(|trunk| route.from_trunks.contains(&trunk)),
        ) && matches_party(&route.to, Some(called))
            && matches_party(&route.from, caller)
    }

    /// The plan of a route; `None` if the next route decides.
    fn carry_out(&self, route: &RouteSpec, called: &RoutingParty<'_>) -> Option<Plan> {
        let rewrite = &route.rewrite;
        let number = match called.service {
            // The number to call instead of the service.
            Some(_) => Cow::Borrowed(rewrite.replace.as_deref().unwrap_or_default()),
            None => rewritten(rewrite, route.to.regex.as_ref(), &called.user),
        };
        let goes = match called.service {
            Some(urn) if number.is_empty() => CalledParty::Service(urn),
            _ => CalledParty::Number(CalledNumber {
                number: &number,
                // They describe the number as it was dialled.
                parameters: match number == called.user {
                    true => called.parameters,
                    false => b"",
                },
                is_telephone: called.is_telephone,
            }),
        };
        match &route.action {
            RouteAction::Reject { status, reason } => Some(Plan::Refuse(Refusal {
                status: *status,
                reason: reason.clone(),
                route: Some(route.name.clone()),
                ..Refusal::new(Reason::RefusedByRoute, None)
            })),
            // A service cannot be registered.
            RouteAction::Registered if called.service.is_some() => None,
            RouteAction::Registered => self.to_contacts(&route.name, route.media, &number),
            RouteAction::Trunks(trunks) => {
                Some(self.to_trunks(&route.name, route.media, trunks, goes))
            }
        }
    }

    fn without_route(&self, called: &RoutingParty<'_>) -> Plan {
        if self.facts.exempt {
            return Refusal::plan(Reason::NoRoute);
        }
        if called.service.is_none()
            && let Some(plan) = self.to_own_contacts("default", &called.user)
        {
            return plan;
        }
        if let Some(trunk) = self.passing_trunk() {
            let only = [RouteTrunk {
                trunk,
                priority: 0,
                weight: 1,
            }];
            return self.to_trunks("default", MediaMode::Anchor, &only, called.called());
        }
        if self.config.routes.is_empty() {
            let trunks: Vec<RouteTrunk> = (0u16..)
                .take(self.config.trunks.len())
                .map(TrunkId)
                .filter(|&trunk| Some(trunk) != self.facts.trunk)
                .enumerate()
                .map(|(priority, trunk)| RouteTrunk {
                    trunk,
                    priority: u16::try_from(priority).unwrap_or(u16::MAX),
                    weight: 1,
                })
                .collect();
            // An unregistered user of ours is not routed elsewhere.
            if !trunks.is_empty() && self.config.user_called(&called.user).is_none() {
                return self.to_trunks("default", MediaMode::Anchor, &trunks, called.called());
            }
        }
        match self.config.user_called(&called.user).is_some() {
            true => Refusal::plan(Reason::NotRegistered),
            false => Refusal::plan(Reason::NoRoute),
        }
    }

    /// The contacts of a user, looked up without a route; `None` if there are none.
    fn to_own_contacts(&self, route: &str, user: &str) -> Option<Plan> {
        let mut contacts = self.contacts_of(user);
        contacts.retain(|contact| self.owns(contact));
        self.route_to_contacts(contacts, route, MediaMode::Anchor, user)
    }

    /// Contacts registered for the called number, otherwise those of the user that the number belongs to: registered
    /// for its name, or for other numbers of it.
    fn contacts_of(&self, user: &str) -> Vec<Contact> {
        let mut contacts = self.view.contacts(user, self.token);
        let Some(owner) = self
            .config
            .user_called(user)
            .filter(|_| self.token.is_none())
        else {
            return contacts;
        };
        if contacts.is_empty() && owner.name != user {
            contacts = self.view.contacts(&owner.name, None);
        }
        if contacts.is_empty() {
            contacts = self.contacts_of_numbers(&owner.numbers);
        }
        if owner.number_in_uri && owner.name != user {
            for contact in &mut contacts {
                contact.uri = uri_of_user(&contact.uri, user);
            }
        }
        contacts
    }

    /// Contacts registered for any of these numbers, one for each flow: a system may register all its numbers.
    fn contacts_of_numbers(&self, numbers: &[Number]) -> Vec<Contact> {
        let mut contacts: Vec<Contact> = Vec::new();
        for number in numbers {
            let found = match number {
                Number::One(number) => self.view.contacts(number, None),
                Number::Prefix(prefix) => self.view.contacts_below(prefix),
            };
            for contact in found {
                // Phones behind a proxy have its flow in common.
                let known = contact.path.is_empty()
                    && contacts.iter().any(|known| known.flow == contact.flow);
                if !known && contacts.len() < MAX_CONTACTS {
                    contacts.push(contact);
                }
            }
        }
        contacts.sort_by_key(|contact| core::cmp::Reverse(contact.q));
        contacts
    }

    /// The contacts of a user; `None` if it is not registered.
    fn to_contacts(&self, route: &str, media: MediaMode, user: &str) -> Option<Plan> {
        let contacts = self.contacts_of(user);
        self.route_to_contacts(contacts, route, media, user)
    }

    fn route_to_contacts(
        &self,
        contacts: Vec<Contact>,
        route: &str,
        media: MediaMode,
        user: &str,
    ) -> Option<Plan> {
        let mut steps: Vec<HopStep> = Vec::with_capacity(contacts.len());
        let mut last: Option<u16> = None;
        for contact in contacts {
            let group = match (steps.last(), last) {
                (Some(step), Some(q)) => step.group + u16::from(q != contact.q),
                _ => 0,
            };
            last = Some(contact.q);
            steps.push(HopStep {
                group,
                interface: contact.interface,
                trunk: None,
                target: 0,
                label: user.to_owned(),
                uri: contact.uri.into_vec(),
                routes: contact.path,
                place: StepTarget::Flow(contact.flow),
                redirected: false,
                foreign: false,
                begins_contact: false,
            });
        }
        (!steps.is_empty()).then(|| {
            Plan::Call(CallPlan {
                route: route.to_owned(),
                media,
                steps,
                ring_timeout: self.config.sip.ring_timeout,
                skipped: Vec::new(),
            })
        })
    }

    fn to_trunks(
        &self,
        route: &str,
        media: MediaMode,
        trunks: &[RouteTrunk],
        mut called: CalledParty<'_>,
    ) -> Plan {
        if let CalledParty::Number(called) = &mut called
            && self.facts.trunk.is_none()
        {
            // Only another network knows where a number was ported to. A phone could choose a destination that policy
            // has not seen.
            called.parameters = b"";
        }
        let mut random = self.facts.random;
        let keys = trunks.iter().map(|trunk| (trunk.priority, trunk.weight));
        let mut steps = Vec::new();
        // Targets of an emergency call that do not answer pings: it tries them after all others.
        let mut down = Vec::new();
        let mut skipped = Vec::new();
        let limited = !is_emergency(self.config, self.facts.to);
        for at in in_order(keys, &mut random) {
            let Some(id) = trunks.get(at).map(|entry| entry.trunk) else {
                continue;
            };
            let Some(trunk) = self.config.trunk(id) else {
                continue;
            };
            let calls = self.view.trunk_calls(id);
            let full = trunk.max_calls.filter(|most| limited && calls >= *most);
            let reason = match full {
                _ if !self.view.trunk_in_service(id) => Some(SkipReason::OutOfService),
                Some(max_calls) => Some(SkipReason::Full { calls, max_calls }),
                None => None,
            };
            if let Some(reason) = reason {
                skipped.push(SkippedTrunk { trunk: id, reason });
                continue;
            }
            let before = steps.len() + down.len();
            let mut throttled = 0;
            let keys = trunk
                .targets
                .iter()
                .map(|target| (target.priority, target.weight));
            for index in in_order(keys, &mut random) {
                let Some(target) = trunk.targets.get(index) else {
                    continue;
                };
                match (self.view.target_up(id, index), limited) {
                    (true, true) if self.is_throttled(id, trunk, index) => throttled += 1,
                    (true, _) => steps.push(self.step(id, trunk, index, target, called)),
                    (false, true) => {}
                    (false, false) => down.push(self.step(id, trunk, index, target, called)),
                }
            }
            if steps.len() + down.len() == before {
                let reason = match throttled {
                    0 => SkipReason::Down {
                        targets: trunk.targets.len(),
                    },
                    _ => SkipReason::Overloaded,
                };
                skipped.push(SkippedTrunk { trunk: id, reason });
            }
        }
        steps.append(&mut down);
        for (group, step) in (0u16..).zip(&mut steps) {
            step.group = group;
        }
        if steps.is_empty() {
            let (why, retry_after) = skipped::refusal(&skipped);
            return Plan::Refuse(Refusal {
                route: Some(route.to_owned()),
                skipped,
                ..Refusal::new(why, retry_after)
            });
        }
        Plan::Call(CallPlan {
            route: route.to_owned(),
            media,
            steps,
            ring_timeout: self.config.sip.ring_timeout,
            skipped,
        })
    }

    /// Whether a target has asked for fewer calls, and this one is beyond its share.
    fn is_throttled(&self, id: TrunkId, trunk: &Trunk, index: usize) -> bool {
        let target = (id, u16::try_from(index).unwrap_or(u16::MAX));
        trunk.overload_control && !self.view.target_takes(target, self.facts.random)
    }

    /// The step for a target, without its group.
    fn step(
        &self,
        id: TrunkId,
        trunk: &Trunk,
        index: usize,
        target: &TargetSpec,
        called: CalledParty<'_>,
    ) -> HopStep {
        HopStep {
            group: 0,
            interface: trunk.interface,
            trunk: Some(id),
            target: u16::try_from(index).unwrap_or(u16::MAX),
            label: trunk.name.clone(),
            uri: match called {
                CalledParty::Number(number) => trunk_uri(trunk, target, number),
                CalledParty::Service(urn) => urn.to_vec(),
            },
            routes: self.view.service_route(id, index),
            place: match target.direct() {
                Some((address, transport)) => StepTarget::Address(address, transport),
                None => StepTarget::Name(target.host.clone(), target.transport),
            },
            redirected: false,
            foreign: false,
            begins_contact: false,
        }
    }
}

/// A sip URI with another user part; other URIs unchanged.
fn uri_of_user(uri: &[u8], user: &str) -> Box<[u8]> {
    let parsed = Uri::parse(uri).filter(Uri::is_sip);
    let Some(scheme) = parsed.and_then(|_| uri.iter().position(|byte| *byte == b':')) else {
        return uri.into();
    };
    let (scheme, rest) = uri.split_at(scheme + 1);
    let host = match parsed.and_then(|uri| uri.user) {
        // The user part contains no `@` (RFC 3261 section 25.1).
        Some(_) => rest
            .iter()
            .position(|byte| *byte == b'@')
            .map_or(0, |at| at + 1),
        None => 0,
    };
    let mut out = scheme.to_vec();
    escape_user(user, &mut out);
    out.push(b'@');
    out.extend_from_slice(rest.get(host..).unwrap_or_default());
    out.into()
}

/// Appends a user part, with characters escaped that it may not contain (RFC 3261 section 25.1).
pub(crate) fn escape_user(user: &str, out: &mut Vec<u8>) {
    for &byte in user.as_bytes() {
        escape_user_byte(byte, out);
    }
}

fn escape_user_byte(byte: u8, out: &mut Vec<u8>) {
    if byte.is_ascii_alphanumeric() || b"-_.!~*'()&=+$,;?/".contains(&byte) {
        out.push(byte);
    } else {
        out.extend_from_slice(format!("%{byte:02X}").as_bytes());
    }
}

fn matches_party(condition: &Match, party: Option<&RoutingParty<'_>>) -> bool {
    let free = condition.prefixes.is_empty()
        && condition.regex.is_none()
        && condition.domains.is_empty()
        && condition.users.is_empty();
    let services = &condition.services;
    match party.and_then(|party| party.service) {
        Some(urn) => {
            return free && (services.is_empty() || services.iter().any(|s| is_of(urn, s)));
        }
        None if !services.is_empty() => return false,
        None => {}
    }
    let Some(party) = party else {
        return free;
    };
    let user = party.user.as_ref();
    let any = |list: &[String], test: &dyn Fn(&str) -> bool| {
        list.is_empty() || list.iter().any(|entry| test(entry))
    };
    any(&condition.prefixes, &|prefix| user.starts_with(prefix))
        && any(&condition.users, &|name| user == name)
        && (condition.domains.is_empty() || condition.domains.contains(&party.domain()))
        && condition
            .regex
            .as_ref()
            .is_none_or(|regex| regex.is_match(user))
}

/// Whether the URI is a service URN (`urn:service:`, RFC 5031).
fn is_service(uri: &Uri<'_>) -> bool {
    const SERVICE: &[u8] = b"service:";
    let name = uri.user.unwrap_or_default();
    uri.scheme == Scheme::Urn
        && name.len() > SERVICE.len()
        && name
            .get(..SERVICE.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(SERVICE))
}

/// Whether a URN is `service` (in lower case) or below it (RFC 5031 section 3: labels between dots, without regard to
/// case).
fn is_of(urn: &[u8], service: &str) -> bool {
    urn.get(..service.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(service.as_bytes()))
        && matches!(urn.get(service.len()), None | Some(b'.'))
}

fn rewritten<'n>(
    rewrite: &NumberRewrite,
    regex: Option<&regex::Regex>,
    number: &'n str,
) -> Cow<'n, str> {
    let mut result = match (&rewrite.replace, regex) {
        (Some(replace), Some(regex)) => regex.replace(number, replace.as_str()),
        _ => {
            let from = number
                .char_indices()
                .nth(rewrite.strip)
                .map_or(number.len(), |(at, _)| at);
            Cow::Borrowed(number.get(from..).unwrap_or_default())
        }
    };
    if !rewrite.prefix.is_empty() {
        result = Cow::Owned(format!("{}{result}", rewrite.prefix));
    }
    result
}
