//! Where a call goes: a pure function from facts to an immutable plan. It reads the configuration and the state of the
//! world through [`View`], draws no randomness of its own (a random number is one of the facts) and changes nothing.

mod order;
#[cfg(test)]
mod tests;

pub use order::in_order;

use crate::config::{
    Action, Authenticate, Config, HostName, Identity, InterfaceId, Match, MediaMode, Register,
    Rewrite, Route, RouteTrunk, Target, Trunk, TrunkId,
};
use crate::overload::calls_for_help;
use core::time::Duration;
use engine::Transport;
use sip::Flow;
use std::borrow::Cow;
use std::net::SocketAddr;
use wire::sip::{Host, Scheme, Uri, percent_decode};

/// What is known of a call when it is offered.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The interface on which it came.
    pub interface: InterfaceId,
    /// The trunk from which it came ([`Config::trunk_of`]).
    pub trunk: Option<TrunkId>,
    /// Whether the source is known: it is a trunk, it has authenticated by digest, or it is the flow of a registration that
    /// was accepted.
    pub authenticated: bool,
    /// Whether the source has an address at which a name was located that we sent requests to.
    pub located: bool,
    /// The caller's URI (of From).
    pub from: &'a [u8],
    /// The Request-URI.
    pub to: &'a [u8],
    /// Any number: decides by weights.
    pub random: u64,
    /// Calls that are up.
    pub calls: usize,
    /// Whether we are stopping.
    pub draining: bool,
}

/// The state of the world as policy sees it.
pub trait View {
    /// Whether a target of a trunk answers.
    fn target_up(&self, trunk: TrunkId, target: usize) -> bool;
    /// Whether a trunk wants to have one more new call; `random` decides where it wants a share of them.
    fn trunk_takes(&self, trunk: TrunkId, random: u64) -> bool;
    /// Calls that a trunk carries.
    fn trunk_calls(&self, trunk: TrunkId) -> u32;
    /// Where a user is registered, or, with `token`, the one contact that was passed on under it; the preferred first.
    fn contacts(&self, user: &str, token: Option<&[u8]>) -> Vec<Contact>;
}

/// A registered contact, as a call reaches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// The interface behind which it is.
    pub interface: InterfaceId,
    /// Request-URI.
    pub uri: Box<[u8]>,
    /// Route values (RFC 3327), in order.
    pub path: Vec<Box<[u8]>>,
    /// The flow on which it is reached.
    pub flow: Flow,
    /// Preference in thousandths.
    pub q: u16,
}

impl Contact {
    /// Leads to the address that the URI names, where it names one and the phone registered over UDP and without proxies; a
    /// connection stays the way to whoever opened it.
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

/// What becomes of a call. A refusal is a plan too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// It is sent on.
    Call(CallPlan),
    /// It is refused.
    Refuse(Refusal),
}

/// How a call is sent on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPlan {
    /// Name of the route that decided; `default` where none did.
    pub route: String,
    /// What is done with its media.
    pub media: MediaMode,
    /// Places to try, in order; at least one.
    pub steps: Vec<Step>,
    /// How long it may ring.
    pub ring_timeout: Duration,
}

/// A place to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Steps of the same number stand next to each other and are called at the same time.
    pub group: u16,
    /// Through this interface.
    pub interface: InterfaceId,
    /// Of this trunk; its settings say more (domain, credentials, timeouts).
    pub trunk: Option<TrunkId>,
    /// Which of the trunk's targets.
    pub target: u16,
    /// For events: the trunk's name, or the user's.
    pub label: String,
    /// Request-URI.
    pub uri: Vec<u8>,
    /// Route values, in order.
    pub routes: Vec<Box<[u8]>>,
    /// Where it is.
    pub place: Place,
    /// Whether asserted identities (P-Asserted-Identity and the like) go there.
    pub identity: bool,
    /// A 3xx response named it.
    pub redirected: bool,
}

/// Where a step leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// To an address.
    Address(SocketAddr, Transport),
    /// To the end of a flow that the peer opened.
    Flow(Flow),
    /// To a name, to be located (RFC 3263), over this transport where it is said.
    Name(HostName, Option<Transport>),
}

/// Why a call is not sent on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Status.
    pub status: u16,
    /// Reason phrase, where another than the usual.
    pub reason: Option<String>,
    /// Why, for the log.
    pub why: &'static str,
    /// Retry-After, seconds.
    pub retry_after: Option<u32>,
}

impl Refusal {
    fn plan(status: u16, why: &'static str) -> Plan {
        Plan::Refuse(Refusal {
            status,
            reason: None,
            why,
            retry_after: None,
        })
    }

    fn later(why: &'static str, seconds: u32) -> Plan {
        Plan::Refuse(Refusal {
            status: 503,
            reason: None,
            why,
            retry_after: Some(seconds),
        })
    }
}

/// An address as conditions look at it.
struct Party<'a> {
    /// User part without escapes and without its parameters; a tel number without visual separators.
    user: Cow<'a, str>,
    /// An empty name for tel.
    host: Host<'a>,
    /// A service that is called (RFC 5031), as its whole URN; it has no user then.
    service: Option<&'a [u8]>,
}

/// What is called in the end.
#[derive(Clone, Copy)]
enum Called<'a> {
    /// A number, or a user.
    Number(&'a str),
    /// A service, whose URN goes on as it came.
    Service(&'a [u8]),
}

impl<'a> Party<'a> {
    fn read(uri: &Uri<'a>) -> Party<'a> {
        if is_service(uri) {
            return Party {
                user: Cow::Borrowed(""),
                host: uri.host,
                service: Some(uri.raw),
            };
        }
        let user = uri.user.unwrap_or_default();
        // Parameters inside the user part (RFC 4694 and the like) are no part of the number.
        let user = user.split(|byte| *byte == b';').next().unwrap_or(user);
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
        Party {
            user,
            host: uri.host,
            service: None,
        }
    }

    /// As it goes on where nothing changes it.
    fn called(&self) -> Called<'_> {
        match self.service {
            Some(urn) => Called::Service(urn),
            None => Called::Number(&self.user),
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

/// A call to a sips URI goes over TLS all the way (RFC 3261 section 26.2, RFC 5630 section 3.1.3): other places are left
/// out, and where none is left it is refused.
fn secured(facts: &Facts<'_>, plan: Plan) -> Plan {
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
            Place::Address(_, transport) => *transport == Transport::Tls,
            Place::Name(_, transport @ None) => {
                *transport = Some(Transport::Tls);
                true
            }
            Place::Name(_, transport) => *transport == Some(Transport::Tls),
            // A contact of the sip scheme is not reached under a sips name (RFC 5630 section 5.3).
            Place::Flow(flow) => {
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
        true => Refusal::plan(480, "sips was asked for, and no way there is secure"),
    }
}

/// A sip URI of a trunk as a sips one; its transport goes without saying.
fn upgrade(uri: &mut Vec<u8>) {
    if uri.starts_with(b"sip:") {
        uri.insert(3, b's');
    }
    if let Some(bare) = uri.strip_suffix(b";transport=tls") {
        uri.truncate(bare.len());
    }
}

/// Decides about a call that a header rule sends to `trunk`: the limits count, the routes do not.
pub fn decide_for(trunk: TrunkId, config: &Config, facts: &Facts<'_>, view: &dyn View) -> Plan {
    secured(facts, only_to(trunk, config, facts, view))
}

fn only_to(trunk: TrunkId, config: &Config, facts: &Facts<'_>, view: &dyn View) -> Plan {
    let router = |called: &Party<'_>| {
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
        Ok(to) => router(&Party::read(&to)),
        Err(plan) => plan,
    }
}

/// The number (or user) that is called, of a call that may be taken at all; `None` where no number is.
///
/// # Errors
/// The refusal.
pub(crate) fn called_number(config: &Config, facts: &Facts<'_>) -> Result<Option<String>, Refusal> {
    match admissible(config, facts) {
        Ok(to) => {
            let party = Party::read(&to);
            Ok((party.service.is_none()).then(|| party.user.into_owned()))
        }
        Err(Plan::Refuse(refusal)) => Err(refusal),
        Err(Plan::Call(_)) => Ok(None),
    }
}

/// The Request-URI of a call that may be sent on at all.
fn admissible<'f>(config: &Config, facts: &Facts<'f>) -> Result<Uri<'f>, Plan> {
    if facts.draining {
        return Err(Refusal::later("draining", 5));
    }
    if facts.calls >= config.limits.calls {
        return Err(Refusal::later("call limit reached", 5));
    }
    let to = Uri::parse(facts.to).ok_or(Refusal::plan(400, "Request-URI cannot be read"))?;
    match to.scheme {
        Scheme::Sip | Scheme::Sips | Scheme::Tel => Ok(to),
        Scheme::Urn if is_service(&to) => Ok(to),
        _ => Err(Refusal::plan(416, "Request-URI of another scheme")),
    }
}

/// Decides what becomes of a call.
pub fn decide(config: &Config, facts: &Facts<'_>, view: &dyn View) -> Plan {
    secured(facts, by_routes(config, facts, view))
}

fn by_routes(config: &Config, facts: &Facts<'_>, view: &dyn View) -> Plan {
    let to = match admissible(config, facts) {
        Ok(to) => to,
        Err(plan) => return plan,
    };
    let called = Party::read(&to);
    // A caller without a URI that can be read (anonymous, or another scheme) meets no condition on callers.
    let caller = Uri::parse(facts.from).map(|uri| Party::read(&uri));
    let router = Router {
        config,
        facts,
        view,
        token: to
            .params
            .get(crate::registrar::TOKEN)
            .filter(|t| !t.is_empty()),
    };
    if router.token.is_some() && router.owns_registrations() {
        // Our own Contact, as it was given to the core: it says where, and routes could only lead back.
        return router
            .to_own_contacts("registration", &called.user)
            .unwrap_or_else(|| Refusal::plan(480, "registration is gone"));
    }
    for route in &config.routes {
        if !router.matches(route, caller.as_ref(), &called) || !router.open_to(route) {
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
    view: &'a dyn View,
    token: Option<&'a [u8]>,
}

impl Router<'_> {
    /// The trunk to which the interface of the request passes registrations, for requests that are not that of a trunk.
    fn passing_trunk(&self) -> Option<TrunkId> {
        if self.facts.trunk.is_some() {
            return None;
        }
        match self.config.interface(self.facts.interface)?.register {
            Register::Pass(trunk) => Some(trunk),
            Register::Local | Register::Refuse => None,
        }
    }

    /// Whether a route may be taken by this source. Where the trunk of registrations authenticates, a source that is not
    /// registered reaches that trunk alone.
    fn open_to(&self, route: &Route) -> bool {
        let interface = self.config.interface(self.facts.interface);
        let by_trunk = interface.is_some_and(|i| i.authenticate == Authenticate::Trunk);
        if !by_trunk || self.facts.authenticated || route.unauthenticated {
            return true;
        }
        match &route.action {
            Action::Reject { .. } => true,
            Action::Registered => false,
            Action::Trunks(trunks) => {
                let passing = self.passing_trunk();
                trunks.iter().all(|entry| Some(entry.trunk) == passing)
            }
        }
    }

    /// Whether registrations are passed to the trunk from which the request came.
    fn owns_registrations(&self) -> bool {
        let mut interfaces = self.config.interfaces.iter();
        interfaces.any(|interface| match interface.register {
            Register::Pass(trunk) => self.is_from(trunk),
            Register::Local | Register::Refuse => false,
        })
    }

    /// Whether the request comes from this trunk. One whose target is a name has no address in the configuration: it is known
    /// by where the name was located.
    fn is_from(&self, id: TrunkId) -> bool {
        let facts = self.facts;
        let named = |trunk: &Trunk| {
            trunk.interface == facts.interface
                && trunk
                    .targets
                    .iter()
                    .any(|target| target.host.ip().is_none())
        };
        facts.trunk == Some(id)
            || facts.trunk.is_none() && facts.located && self.config.trunk(id).is_some_and(named)
    }

    /// Whether a contact is looked up for this request where no route says so: those that were passed to a trunk belong to
    /// that trunk; those that are kept here are for trunks and for sources that have authenticated, and for the other
    /// sources of an interface without authentication.
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

    fn matches(&self, route: &Route, caller: Option<&Party<'_>>, called: &Party<'_>) -> bool {
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

    /// `None`: the next route decides.
    fn carry_out(&self, route: &Route, called: &Party<'_>) -> Option<Plan> {
        let rewrite = &route.rewrite;
        let number = match called.service {
            // The number in its place.
            Some(_) => Cow::Borrowed(rewrite.replace.as_deref().unwrap_or_default()),
            None => rewritten(rewrite, route.to.regex.as_ref(), &called.user),
        };
        let goes = match called.service {
            Some(urn) if number.is_empty() => Called::Service(urn),
            _ => Called::Number(&number),
        };
        match &route.action {
            Action::Reject { status, reason } => Some(Plan::Refuse(Refusal {
                status: *status,
                reason: reason.clone(),
                why: "refused by a route",
                retry_after: None,
            })),
            // Nobody is registered as a service.
            Action::Registered if called.service.is_some() => None,
            Action::Registered => self.to_contacts(&route.name, route.media, &number),
            Action::Trunks(trunks) => Some(self.to_trunks(&route.name, route.media, trunks, goes)),
        }
    }

    fn without_route(&self, called: &Party<'_>) -> Plan {
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
            // A user of ours who is not registered is not looked for elsewhere.
            if !trunks.is_empty() && self.config.user_called(&called.user).is_none() {
                return self.to_trunks("default", MediaMode::Anchor, &trunks, called.called());
            }
        }
        match self.config.user_called(&called.user).is_some() {
            true => Refusal::plan(480, "user is not registered"),
            false => Refusal::plan(404, "no route"),
        }
    }

    /// Whether the side from which the call came is trusted with identities.
    fn trusted(&self) -> bool {
        self.config.trusts(self.facts.interface, self.facts.trunk)
    }

    /// To the contacts of a user that are looked up without a route; `None` where there are none.
    fn to_own_contacts(&self, route: &str, user: &str) -> Option<Plan> {
        let mut contacts = self.contacts_of(user);
        contacts.retain(|contact| self.owns(contact));
        self.lead_to(contacts, route, MediaMode::Anchor, user)
    }

    /// The contacts that are registered for the number that is called, else those of the user whose number it is.
    fn contacts_of(&self, user: &str) -> Vec<Contact> {
        let contacts = self.view.contacts(user, self.token);
        match self.config.user_called(user) {
            Some(owner) if contacts.is_empty() && owner.name != user => {
                self.view.contacts(&owner.name, self.token)
            }
            _ => contacts,
        }
    }

    /// `None` where the user is not registered.
    fn to_contacts(&self, route: &str, media: MediaMode, user: &str) -> Option<Plan> {
        let contacts = self.contacts_of(user);
        self.lead_to(contacts, route, media, user)
    }

    fn lead_to(
        &self,
        contacts: Vec<Contact>,
        route: &str,
        media: MediaMode,
        user: &str,
    ) -> Option<Plan> {
        let mut steps: Vec<Step> = Vec::with_capacity(contacts.len());
        let mut last: Option<u16> = None;
        for contact in contacts {
            let group = match (steps.last(), last) {
                (Some(step), Some(q)) => step.group + u16::from(q != contact.q),
                _ => 0,
            };
            last = Some(contact.q);
            steps.push(Step {
                group,
                interface: contact.interface,
                trunk: None,
                target: 0,
                label: user.to_owned(),
                uri: contact.uri.into_vec(),
                routes: contact.path,
                place: Place::Flow(contact.flow),
                identity: self.trusted(),
                redirected: false,
            });
        }
        (!steps.is_empty()).then(|| {
            Plan::Call(CallPlan {
                route: route.to_owned(),
                media,
                steps,
                ring_timeout: self.config.sip.ring_timeout,
            })
        })
    }

    fn to_trunks(
        &self,
        route: &str,
        media: MediaMode,
        trunks: &[RouteTrunk],
        called: Called<'_>,
    ) -> Plan {
        let mut random = self.facts.random;
        let keys = trunks.iter().map(|trunk| (trunk.priority, trunk.weight));
        let mut steps = Vec::new();
        let (mut full, mut throttled) = (false, false);
        let for_help = calls_for_help(self.facts.to);
        for at in in_order(keys, &mut random) {
            let Some(id) = trunks.get(at).map(|entry| entry.trunk) else {
                continue;
            };
            let Some(trunk) = self.config.trunk(id) else {
                continue;
            };
            if trunk
                .max_calls
                .is_some_and(|most| self.view.trunk_calls(id) >= most)
            {
                full = true;
                continue;
            }
            if trunk.feedback && !for_help && !self.view.trunk_takes(id, self.facts.random) {
                throttled = true;
                continue;
            }
            let keys = trunk
                .targets
                .iter()
                .map(|target| (target.priority, target.weight));
            for index in in_order(keys, &mut random) {
                if let Some(target) = trunk.targets.get(index)
                    && self.view.target_up(id, index)
                {
                    let group = u16::try_from(steps.len()).unwrap_or(u16::MAX);
                    steps.push(self.step(id, trunk, index, target, called, group));
                }
            }
        }
        if steps.is_empty() {
            return match (full, throttled) {
                // The caller is to try others: our trunk's wish is not for him to wait for (RFC 7339 section 5.10.2).
                (_, true) => Refusal::plan(503, "trunks want fewer calls"),
                (true, _) => Refusal::later("trunks are full", 5),
                (false, _) => Refusal::later("trunks are down", 30),
            };
        }
        Plan::Call(CallPlan {
            route: route.to_owned(),
            media,
            steps,
            ring_timeout: self.config.sip.ring_timeout,
        })
    }

    fn step(
        &self,
        id: TrunkId,
        trunk: &Trunk,
        index: usize,
        target: &Target,
        called: Called<'_>,
        group: u16,
    ) -> Step {
        Step {
            group,
            interface: trunk.interface,
            trunk: Some(id),
            target: u16::try_from(index).unwrap_or(u16::MAX),
            label: trunk.name.clone(),
            uri: match called {
                Called::Number(number) => trunk_uri(trunk, target, number),
                Called::Service(urn) => urn.to_vec(),
            },
            routes: Vec::new(),
            place: match target.direct() {
                Some((address, transport)) => Place::Address(address, transport),
                None => Place::Name(target.host.clone(), target.transport),
            },
            identity: self.trusted() && trunk.identity == Identity::Pass,
            redirected: false,
        }
    }
}

/// The URI of `number` at a trunk; where no number is called, of the trunk itself.
fn trunk_uri(trunk: &Trunk, target: &Target, number: &str) -> Vec<u8> {
    // Room for all of it, so that it does not move while it grows.
    let mut uri = Vec::with_capacity(48);
    uri.extend_from_slice(b"sip:");
    if !number.is_empty() {
        escape_user(number, &mut uri);
        uri.push(b'@');
    }
    let host = trunk.domain.as_ref().unwrap_or(&target.host);
    host.append_to(&mut uri);
    if let Some(transport) = target
        .transport
        .filter(|&transport| transport != Transport::Udp)
    {
        uri.extend_from_slice(b";transport=");
        uri.extend_from_slice(transport.uri_name().as_bytes());
    }
    uri
}

/// Appends a user part; what may not stand in one is escaped (RFC 3261 section 25.1).
pub(crate) fn escape_user(user: &str, out: &mut Vec<u8>) {
    for &byte in user.as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.!~*'()&=+$,;?/".contains(&byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}

fn matches_party(condition: &Match, party: Option<&Party<'_>>) -> bool {
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

/// Whether a service is called (`urn:service:`, RFC 5031).
fn is_service(uri: &Uri<'_>) -> bool {
    const SERVICE: &[u8] = b"service:";
    let name = uri.user.unwrap_or_default();
    uri.scheme == Scheme::Urn
        && name.len() > SERVICE.len()
        && name
            .get(..SERVICE.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(SERVICE))
}

/// Whether a URN is `service`, in lower case, or below it (RFC 5031 section 3: labels between dots, without regard to case).
fn is_of(urn: &[u8], service: &str) -> bool {
    urn.get(..service.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(service.as_bytes()))
        && matches!(urn.get(service.len()), None | Some(b'.'))
}

fn rewritten<'n>(rewrite: &Rewrite, regex: Option<&regex::Regex>, number: &'n str) -> Cow<'n, str> {
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
