//! Registrations of our accounts at carriers (RFC 3261 section 10.2), also from behind NAT. This module determines
//! which REGISTER is due and processes its result; it sends nothing. The endpoint answers challenges with the
//! credentials of the trunk.

mod service_route;
#[cfg(test)]
mod tests;

use crate::policy::escape_user;
use config::{
    CarrierAccount, Config, HostName, InterfaceId, InterfaceSpec, KeepAlive, ListenAddress, Trunk,
    TrunkId,
};
use core::time::Duration;
use engine::timers::TimerHeap;
use engine::{Deadline, Entropy, EventKind, Time, Transport};
pub(crate) use service_route::ServiceRoute;
use std::net::{IpAddr, SocketAddr};
use wire::sip::{HeaderId, Message};

/// A REGISTER to send to the target of a trunk, with its credentials. Report the result by [`Carriers::result`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The trunk.
    pub trunk: TrunkId,
    /// Index of the target.
    pub target: usize,
    /// The address of a target with a name that is tried first.
    pub address: Option<SocketAddr>,
    /// The interface to use.
    pub interface: InterfaceId,
    /// Request-URI: the domain.
    pub uri: Vec<u8>,
    /// From and To, as `<sip:user@domain>`.
    pub account: Vec<u8>,
    /// Contact.
    pub contact: Vec<u8>,
    /// Expires in seconds; 0 removes the registration.
    pub expires: u32,
    /// Call-ID, constant for the life of the process (RFC 3261 section 10.2).
    pub call_id: String,
    /// CSeq.
    pub cseq: u32,
    /// Serial number, which identifies results of outdated requests.
    pub number: u32,
}

/// Result of a REGISTER.
#[derive(Clone, Copy, Debug)]
pub enum CarrierResult<'m> {
    /// A final response; after a challenge, the last one.
    Response(&'m Message<'m>),
    /// No final response in time.
    TimedOut,
    /// It could not be sent: no address or connection.
    NotSent,
}

/// Our side of a trunk: the `host[:port]` that the interface advertises, and the transport to the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OurEnd {
    /// `host[:port]`.
    pub host: String,
    /// Transport.
    pub transport: Transport,
}

/// The registrar and our address towards it. A registration by another path tells the carrier nothing about this one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RegistrationPath {
    /// Host, transport and priority of each target. The transport of a name may follow from its lookup.
    targets: Vec<(HostName, Option<Transport>, u16)>,
    /// Name of the interface.
    interface: String,
    advertise: Option<HostName>,
    /// Its listening addresses that reach a target.
    listen: Vec<(Transport, SocketAddr)>,
}

impl RegistrationPath {
    fn of(trunk: &Trunk, interface: Option<&InterfaceSpec>) -> RegistrationPath {
        let targets: Vec<_> = trunk
            .targets
            .iter()
            .map(|target| {
                let direct = target.direct().map(|(_, transport)| transport);
                (
                    target.host.clone(),
                    direct.or(target.transport),
                    target.priority,
                )
            })
            .collect();
        let listen = interface
            .into_iter()
            .flat_map(|interface| &interface.listen);
        let reaches = |listen: &ListenAddress, transport: Option<Transport>| {
            transport.is_none_or(|transport| transport == listen.transport)
        };
        let listen = listen
            .filter(|listen| targets.iter().any(|target| reaches(listen, target.1)))
            .map(|listen| (listen.transport, listen.address))
            .collect();
        RegistrationPath {
            targets,
            interface: interface.map_or_else(String::new, |interface| interface.name.clone()),
            advertise: interface.and_then(|interface| interface.advertise.clone()),
            listen,
        }
    }

    /// Indices of the targets by priority.
    fn targets(&self) -> Vec<usize> {
        let mut indices: Vec<usize> = (0..self.targets.len()).collect();
        indices.sort_by_key(|&index| self.targets.get(index).map(|target| target.2));
        indices
    }
}

#[derive(Debug)]
struct Account {
    name: String,
    account: CarrierAccount,
    path: RegistrationPath,
    trunk: TrunkId,
    interface: InterfaceId,
    /// Indices of the targets by priority.
    targets: Vec<usize>,
    /// The current one, as an index into `targets`.
    at: usize,
    /// The address that accepted the last registration, while the next one goes there.
    address: Option<SocketAddr>,
    call_id: String,
    cseq: u32,
    number: u32,
    waiting: bool,
    registered: bool,
    /// End of the registration at the carrier.
    until: Time,
    /// Requested lifetime in seconds: the configured one, or that of a 423.
    expires: u32,
    /// Failures in a row.
    failures: u32,
    /// Whether a failure was reported since the last registration.
    troubled: bool,
    /// Our address as seen by the carrier (`received` and `rport`), if known.
    seen: Option<SocketAddr>,
    /// Whether the last registration only corrected the Contact.
    corrected: bool,
    /// The last Contact that was sent.
    contact: Vec<u8>,
    /// That of the last 2xx.
    service_route: Option<ServiceRoute>,
    /// Whether a Service-Route that is not used was reported.
    route_refused: bool,
    removal: Removal,
}

/// Removal of a registration at a graceful shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    /// Not requested.
    None,
    /// Requested; the REGISTER that removes it was not sent yet. One that registers may be in progress.
    Due,
    /// The REGISTER that removes it was sent.
    Sent,
}

/// All accounts.
#[derive(Debug)]
pub struct Carriers {
    accounts: Vec<Account>,
    agenda: TimerHeap<(usize, u32)>,
    entropy: Entropy,
    /// Serial of the schedule; older timers are void.
    plans: Vec<u32>,
    /// Whether this worker registers the accounts.
    ours: bool,
    /// Whether all registrations are being removed: no account registers any more.
    is_removing: bool,
}

/// The state of an account in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccountState {
    Registered,
    /// The last attempt failed; the registration may still exist.
    Failed,
    Expired,
    Removed,
}

impl AccountState {
    fn name(self) -> &'static str {
        match self {
            AccountState::Registered => "registered",
            AccountState::Failed => "failed",
            AccountState::Expired => "expired",
            AccountState::Removed => "removed",
        }
    }
}

/// The delay after a failure.
#[derive(Clone, Copy, Debug)]
enum RetryWait {
    /// At first this one, longer after further failures.
    Growing(Duration),
    /// Retry-After of the carrier: not before that (RFC 3261 section 20.33).
    Requested(Duration),
}

/// First delay after a failure, doubled up to [`MOST_WAIT`] (RFC 5626 section 4.5).
const FIRST_WAIT: Duration = Duration::from_secs(30);
const MOST_WAIT: Duration = Duration::from_secs(1_800);
/// Delay after a refusal of the account (401, 403, 404), which the carrier does not correct within seconds.
const REFUSED_WAIT: Duration = Duration::from_secs(300);
/// Longest Retry-After that is obeyed.
const MOST_RETRY_AFTER: Duration = Duration::from_secs(86_400);

/// Granted seconds from which a refresh may find the preferred target dead and reach another one before the expiry.
const FAILBACK_LIFETIME: u32 = 180;

impl Carriers {
    /// The accounts of `config`. Registrations start at once, slightly spread. Of several workers, one registers.
    pub fn new(config: &Config, ours: bool, entropy: Entropy, now: Time) -> Carriers {
        let mut carriers = Carriers {
            accounts: Vec::new(),
            agenda: TimerHeap::new(),
            entropy,
            plans: Vec::new(),
            ours,
            is_removing: false,
        };
        carriers.reload(config, now);
        carriers
    }

    /// Applies a new configuration. Unchanged accounts keep their registration; those with another registrar or another
    /// address of ours are registered at once. Previous registrations expire.
    pub fn reload(&mut self, config: &Config, now: Time) {
        let mut before = std::mem::take(&mut self.accounts);
        self.agenda = TimerHeap::new();
        self.plans.clear();
        let ours = self.ours;
        let trunks = config.trunks.iter().filter(|_| ours);
        for (index, trunk) in trunks.enumerate() {
            let Some(account) = &trunk.register else {
                continue;
            };
            let id = TrunkId(u16::try_from(index).unwrap_or(u16::MAX));
            let path = RegistrationPath::of(trunk, config.interface(trunk.interface));
            let same = |old: &Account| old.name == trunk.name && old.account == *account;
            let kept = before
                .iter()
                .position(same)
                .map(|at| before.swap_remove(at));
            let fresh = kept.as_ref().is_none_or(|kept| kept.path != path);
            let mut entry = kept.unwrap_or_else(|| Account {
                name: trunk.name.clone(),
                account: account.clone(),
                path: path.clone(),
                trunk: id,
                interface: trunk.interface,
                targets: Vec::new(),
                at: 0,
                address: None,
                call_id: format!("{:016x}{:016x}", self.entropy.u64(), self.entropy.u64()),
                cseq: 0,
                number: 0,
                waiting: false,
                registered: false,
                until: Time::ZERO,
                expires: requested_lifetime(account),
                failures: 0,
                troubled: false,
                seen: None,
                corrected: false,
                contact: Vec::new(),
                service_route: None,
                route_refused: false,
                removal: Removal::None,
            });
            if fresh {
                entry.begin(path);
            }
            entry.trunk = id;
            entry.interface = trunk.interface;
            // Pending responses are recognised by their serial number and ignored.
            entry.number = entry.number.wrapping_add(1);
            if std::mem::take(&mut entry.waiting) {
                // The one with credentials has the next CSeq.
                entry.cseq = entry.cseq.wrapping_add(1) & 0x7fff_ffff;
            }
            let at = match fresh {
                true => now + Duration::from_secs(1).mul_f64(self.entropy.unit()),
                false => refresh_at(now, entry.until),
            };
            let registers = !self.is_removing || entry.registered;
            self.accounts.push(entry);
            self.plans.push(0);
            if registers {
                self.plan(self.accounts.len() - 1, at);
            }
        }
    }

    fn plan(&mut self, index: usize, at: Time) {
        if let Some(plan) = self.plans.get_mut(index) {
            *plan = plan.wrapping_add(1);
            self.agenda.push(at, (index, *plan));
        }
    }

    /// The next REGISTER that is due. `our_end` returns our side of a trunk, or `None` while it is unknown (a socket
    /// that is not open yet); then it is retried after a second.
    pub fn next_registration(
        &mut self,
        now: Time,
        our_end: impl Fn(InterfaceId, TrunkId, usize) -> Option<OurEnd>,
    ) -> Option<Registration> {
        while let Some((_, (index, plan))) = self.agenda.pop_due(now) {
            if self.plans.get(index) != Some(&plan) {
                continue;
            }
            let account = self.accounts.get_mut(index)?;
            if account.waiting {
                continue;
            }
            match our_end(account.interface, account.trunk, account.target()) {
                Some(end) => return Some(account.register(&end)),
                None => self.plan(index, now + Duration::from_secs(1)),
            }
        }
        None
    }

    /// The CSeq of a REGISTER that is repeated at another address of the same target: above that of a repetition with
    /// credentials. `None`: it is outdated.
    pub fn next_cseq(&mut self, trunk: TrunkId, number: u32) -> Option<u32> {
        let mut accounts = self.accounts.iter_mut();
        let account = accounts.find(|account| account.trunk == trunk)?;
        if account.number != number || !account.waiting {
            return None;
        }
        account.cseq = account.cseq.wrapping_add(2) & 0x7fff_ffff;
        Some(account.cseq)
    }

    /// The Contact of the REGISTER of this number, which is sent from this end: that of a target with a name is known
    /// only when the name has been located. `None`: it is outdated.
    pub fn contact_from(&mut self, trunk: TrunkId, number: u32, end: &OurEnd) -> Option<&[u8]> {
        let mut accounts = self.accounts.iter_mut();
        let account = accounts.find(|account| account.trunk == trunk)?;
        if account.number != number || !account.waiting {
            return None;
        }
        account.contact = account.contact_for(end);
        Some(&account.contact)
    }

    /// The REGISTER of this number was accepted at this address. Report the response by [`Carriers::result`]
    /// afterwards.
    pub fn accepted_at(&mut self, trunk: TrunkId, number: u32, address: SocketAddr) {
        let mut accounts = self.accounts.iter_mut();
        let account = accounts.find(|account| account.trunk == trunk);
        if let Some(account) = account.filter(|account| account.number == number) {
            account.address = Some(address);
        }
    }

    /// When [`Carriers::next_registration`] is due.
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.agenda
            .next_at()
            .map(|at| Deadline::new(at, "carrier registration"))
    }

    /// Processes the result of a REGISTER. Returns an event if the state of the account changed.
    pub fn result(
        &mut self,
        trunk: TrunkId,
        number: u32,
        result: CarrierResult<'_>,
        now: Time,
    ) -> Option<EventKind> {
        let index = self
            .accounts
            .iter()
            .position(|account| account.trunk == trunk)?;
        let jitter = 0.5 + 0.5 * self.entropy.unit();
        let account = self.accounts.get_mut(index)?;
        if account.number != number || !account.waiting {
            return None;
        }
        account.waiting = false;
        account.catch_up(result);
        let (next, note) = account.take(result, jitter, now);
        if let Some(at) = next {
            self.plan(index, at);
        }
        note
    }

    /// Whether the flow of this response needs keep-alives, and the least and greatest interval between them in seconds
    /// (RFC 5626 sections 4.4.1 and 4.4.2).
    pub fn keeps_alive(
        &self,
        trunk: TrunkId,
        response: &Message<'_>,
        transport: Transport,
    ) -> Option<(u64, u64)> {
        let of = |account: &&Account| account.trunk == trunk && account.registered;
        let account = self.accounts.iter().find(of)?;
        let flow_timer = response
            .header_named(b"Flow-Timer")
            .and_then(|value| std::str::from_utf8(value).ok()?.trim().parse::<u64>().ok())
            .map(|seconds| seconds.clamp(5, 86_400));
        let says = flow_timer.is_some()
            || response.lists(HeaderId::Supported, b"outbound")
            || response.lists(HeaderId::Require, b"outbound");
        let wanted = match account.account.keep_alive {
            KeepAlive::Auto => says,
            KeepAlive::Always => true,
            KeepAlive::Never => false,
        };
        wanted.then(|| match (flow_timer, transport) {
            (Some(seconds), _) => (seconds * 4 / 5, seconds),
            (None, Transport::Udp) => (24, 29),
            (None, _) => (95, 120),
        })
    }

    /// The flow of an account has failed: it is registered again soon. Returns an event.
    pub fn flow_failed(&mut self, trunk: TrunkId, now: Time) -> Option<EventKind> {
        let of = |account: &Account| account.trunk == trunk;
        let index = self.accounts.iter().position(of)?;
        let account = self
            .accounts
            .get_mut(index)
            .filter(|account| account.registered)?;
        account.troubled = true;
        let note = account.note(AccountState::Failed, Some("flow failed"));
        // Spread, so that the clients of a server do not register all at once (section 4.5).
        let wait = Duration::from_secs(1).mul_f64(1.0 + 4.0 * self.entropy.unit());
        if !account.waiting {
            self.plan(index, now + wait);
        }
        Some(note)
    }

    /// Schedules REGISTERs that remove all registrations, for a graceful shutdown. Accounts that are not registered do
    /// not register any more; one whose REGISTER is in progress is removed if the carrier accepts it.
    pub fn remove_all(&mut self, now: Time) {
        self.is_removing = true;
        for index in 0..self.accounts.len() {
            let Some(account) = self.accounts.get_mut(index) else {
                continue;
            };
            account.removal = Removal::Due;
            if account.registered {
                account.waiting = false;
                self.plan(index, now);
            } else if let Some(plan) = self.plans.get_mut(index) {
                *plan = plan.wrapping_add(1);
            }
        }
    }

    /// Whether no account is registered, or may be when the response to a REGISTER in progress arrives.
    pub fn none_registered(&self) -> bool {
        let may_be = |account: &Account| {
            account.registered || account.waiting && account.removal == Removal::Due
        };
        !self.accounts.iter().any(may_be)
    }

    /// Whether the account of a trunk is registered; `None` if the trunk has none.
    pub fn registered(&self, trunk: TrunkId) -> Option<bool> {
        self.accounts
            .iter()
            .find(|account| account.trunk == trunk)
            .map(|account| account.registered)
    }

    /// The route of requests to a trunk whose account is registered, if the carrier has given one.
    pub(crate) fn service_route(&self, trunk: TrunkId) -> Option<&ServiceRoute> {
        let registered = |account: &&Account| account.trunk == trunk && account.registered;
        let account = self.accounts.iter().find(registered)?;
        account.service_route.as_ref()
    }

    /// User part of our Contact at the carrier; calls from the carrier arrive with it.
    pub fn contact_user(&self, trunk: TrunkId) -> Option<&str> {
        self.accounts
            .iter()
            .find(|account| account.trunk == trunk)
            .map(|account| account.account.contact_user.as_str())
    }
}

/// The configured lifetime in seconds.
fn requested_lifetime(account: &CarrierAccount) -> u32 {
    u32::try_from(account.expires.as_secs()).unwrap_or(u32::MAX)
}

/// Half of the remaining lifetime, at least five seconds before its end, and at least one second from now.
fn refresh_at(now: Time, until: Time) -> Time {
    let left = until.since(now);
    let latest = left.saturating_sub(Duration::from_secs(5));
    now + (left / 2).min(latest).max(Duration::from_secs(1))
}

impl Account {
    /// Begins to register by this path. Call-ID and CSeq continue, so that a registrar that both paths lead to accepts
    /// the order of the requests.
    fn begin(&mut self, path: RegistrationPath) {
        self.targets = path.targets();
        self.path = path;
        self.at = 0;
        self.address = None;
        self.registered = false;
        self.until = Time::ZERO;
        self.expires = requested_lifetime(&self.account);
        self.failures = 0;
        self.troubled = false;
        self.seen = None;
        self.corrected = false;
        self.service_route = None;
        self.route_refused = false;
    }

    /// Whether the interface has a configured address, so that none is learned.
    fn is_fixed(&self) -> bool {
        self.path.advertise.is_some()
    }

    /// Index of the current target.
    fn target(&self) -> usize {
        self.targets.get(self.at).copied().unwrap_or(0)
    }

    fn register(&mut self, end: &OurEnd) -> Registration {
        self.cseq = self.cseq.wrapping_add(1) & 0x7fff_ffff;
        self.number = self.number.wrapping_add(1);
        self.waiting = true;
        let mut address = b"<sip:".to_vec();
        escape_user(&self.account.user, &mut address);
        let domain = self.account.domain.to_string();
        address.extend_from_slice(format!("@{}>", self.account.domain.uri_host()).as_bytes());
        self.contact = self.contact_for(end);
        let removes = self.removal != Removal::None;
        if removes {
            self.removal = Removal::Sent;
        }
        Registration {
            trunk: self.trunk,
            target: self.target(),
            address: self.address,
            interface: self.interface,
            uri: format!("sip:{domain}").into_bytes(),
            account: address,
            contact: self.contact.clone(),
            expires: if removes { 0 } else { self.expires },
            call_id: self.call_id.clone(),
            cseq: self.cseq,
            number: self.number,
        }
    }

    fn contact_for(&self, end: &OurEnd) -> Vec<u8> {
        let mut contact = b"<sip:".to_vec();
        escape_user(&self.account.contact_user, &mut contact);
        let host = match self.seen.filter(|_| !self.is_fixed()) {
            Some(seen) => seen.to_string(),
            None => end.host.clone(),
        };
        contact.extend_from_slice(format!("@{host}").as_bytes());
        if end.transport != Transport::Udp {
            contact
                .extend_from_slice(format!(";transport={}", end.transport.uri_name()).as_bytes());
        }
        contact.push(b'>');
        contact
    }

    /// The endpoint increments CSeq when it answers a challenge; the next REGISTER must exceed that.
    fn catch_up(&mut self, result: CarrierResult<'_>) {
        let used = match result {
            CarrierResult::Response(response) => response.cseq().map_or(0, |cseq| cseq.number),
            CarrierResult::TimedOut => self.cseq + 1,
            CarrierResult::NotSent => 0,
        };
        self.cseq = self.cseq.max(used);
    }

    /// Next time to send, and an event.
    fn take(
        &mut self,
        result: CarrierResult<'_>,
        jitter: f64,
        now: Time,
    ) -> (Option<Time>, Option<EventKind>) {
        let response = match result {
            CarrierResult::Response(response) => response,
            CarrierResult::TimedOut | CarrierResult::NotSent => {
                let wait = RetryWait::Growing(FIRST_WAIT);
                return self.failed("no answer", wait, jitter, now);
            }
        };
        if self.removal == Removal::Sent {
            self.registered = false;
            return (None, Some(self.note(AccountState::Removed, None)));
        }
        match response.status() {
            200..=299 if self.removal == Removal::Due => {
                self.registered = true;
                (Some(now), Some(self.note(AccountState::Registered, None)))
            }
            200..=299 => self.taken(response, now),
            _ if self.removal == Removal::Due => (None, None),
            423 => match response.min_expires() {
                Ok(seconds) if seconds > self.expires && seconds <= 86_400 => {
                    self.expires = seconds;
                    // One second, for carriers that raise the lifetime each time.
                    (Some(now + Duration::from_secs(1)), None)
                }
                _ => {
                    let wait = RetryWait::Growing(REFUSED_WAIT);
                    self.failed("refused with 423", wait, jitter, now)
                }
            },
            status @ (500..=599 | 408) => {
                let wait = match response.retry_after() {
                    Ok(seconds) => {
                        let wait = Duration::from_secs(u64::from(seconds));
                        RetryWait::Requested(wait.min(MOST_RETRY_AFTER))
                    }
                    Err(_) => RetryWait::Growing(FIRST_WAIT),
                };
                self.failed(&format!("answered {status}"), wait, jitter, now)
            }
            status => {
                // RFC 3608 section 6.1: after a refusal it is discarded, although the registration lasts.
                self.service_route = None;
                let wait = RetryWait::Growing(REFUSED_WAIT);
                self.failed(&format!("refused with {status}"), wait, jitter, now)
            }
        }
    }

    fn taken(&mut self, response: &Message<'_>, now: Time) -> (Option<Time>, Option<EventKind>) {
        let granted = self.granted(response);
        self.failures = 0;
        self.until = now + Duration::from_secs(u64::from(granted));
        // Each 2xx replaces the route, also one without (RFC 3608 section 6.1).
        let route = ServiceRoute::of(response, self.target());
        let refused = route.as_ref().err().copied();
        self.service_route = route.unwrap_or_default();
        let was_refused = std::mem::replace(&mut self.route_refused, refused.is_some());
        let is_news = !self.registered || self.troubled || refused.is_some() && !was_refused;
        let note = is_news.then(|| self.note(AccountState::Registered, refused));
        self.registered = true;
        self.troubled = false;
        let news = self.learn(response);
        if news && !self.corrected {
            // The Contact at the carrier is unreachable: a correct one follows at once, but only once in a row, because
            // some NATs assign another port each time.
            self.corrected = true;
            return (Some(now), note);
        }
        self.corrected = false;
        // The next refresh goes to the preferred target and address again, if the registration lasts until the others
        // were tried.
        if granted >= FAILBACK_LIFETIME {
            self.at = 0;
            self.address = None;
        }
        (Some(refresh_at(now, self.until)), note)
    }

    /// Granted seconds: of our Contact, otherwise of the Expires header, otherwise the requested ones.
    fn granted(&self, response: &Message<'_>) -> u32 {
        let ours = self.contact.get(1..self.contact.len().saturating_sub(1));
        let ours = ours.and_then(wire::sip::Uri::parse);
        response
            .contacts()
            .flatten()
            .find(|contact| {
                contact.parse_uri().zip(ours).is_some_and(|(theirs, ours)| {
                    theirs.user == ours.user && theirs.host == ours.host
                })
            })
            .and_then(|contact| contact.expires())
            .or_else(|| response.expires().ok())
            .unwrap_or(self.expires)
            .clamp(10, 86_400)
    }

    /// Learns our address from `received` and `rport` of our Via (RFC 3581 section 4). Returns whether it changed.
    fn learn(&mut self, response: &Message<'_>) -> bool {
        if self.is_fixed() || !response.has(HeaderId::Via) {
            return false;
        }
        let Ok(via) = response.via() else {
            return false;
        };
        let Some(Some(port)) = via.rport() else {
            return false;
        };
        let ip: Option<IpAddr> = via.received().or_else(|| via.host.ip());
        let Some(seen) = ip.map(|ip| SocketAddr::new(ip, port)) else {
            return false;
        };
        // On a stream, the port belongs to one connection: calls arrive on it, but new connections to it are
        // impossible.
        if via.transport != b"UDP" {
            return false;
        }
        let said = wire::sip::HostPort {
            host: via.host,
            port: via.port,
        }
        .socket_addr(5060);
        let known = self.seen.or(said);
        let news = known != Some(seen);
        self.seen = (Some(seen) != said).then_some(seen);
        news
    }

    fn failed(
        &mut self,
        why: &str,
        wait: RetryWait,
        jitter: f64,
        now: Time,
    ) -> (Option<Time>, Option<EventKind>) {
        self.failures = self.failures.saturating_add(1);
        if self.removal != Removal::None {
            let was_registered = std::mem::replace(&mut self.registered, false);
            let note = was_registered.then(|| self.note(AccountState::Expired, Some(why)));
            return (None, note);
        }
        // The next target, if there are several; the delay grows after each of them was tried.
        let targets = self.targets.len().max(1);
        self.at = (self.at + 1) % targets;
        self.address = None;
        let rounds = (self.failures - 1) / u32::try_from(targets).unwrap_or(1);
        let (longest, spread) = match (self.at, wait) {
            (0, RetryWait::Growing(base)) => {
                let longest = base.saturating_mul(1 << rounds.min(6));
                (longest.min(MOST_WAIT.max(base)), jitter)
            }
            // Up to a tenth later.
            (0, RetryWait::Requested(base)) => (base, 0.9 + 0.2 * jitter),
            _ => (Duration::from_secs(1), jitter),
        };
        let lost = self.registered && self.until <= now + longest;
        let state = match lost {
            true => AccountState::Expired,
            false => AccountState::Failed,
        };
        if lost {
            self.registered = false;
            self.service_route = None;
        }
        let note = (lost || !self.troubled).then(|| self.note(state, Some(why)));
        self.troubled = true;
        (Some(now + longest.mul_f64(spread)), note)
    }

    fn note(&self, state: AccountState, reason: Option<&str>) -> EventKind {
        EventKind::CarrierRegistration {
            trunk: self.name.clone(),
            state: state.name().to_owned(),
            reason: reason.map(str::to_owned),
        }
    }
}
