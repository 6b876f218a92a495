//! A call comes: who may call, whether it loops, where it goes.

use super::join::known_step;
use super::try_next::{MAX_BREADTH, text};
use super::{Call, CallKey, Phase, SetUp, Sides};
use crate::admission::Bill;
use crate::border::{Alarm, Core, Outcome, address_of_record};
use crate::config::{
    Authenticate, HostName, Interface, InterfaceId, InterfaceKind, MediaMode, Register, TrunkId,
};
use crate::policy::{CallPlan, Facts, Plan, Refusal, decide, decide_for};
use crate::registrar::{Authentication, Claim};
use crate::rules::Tags;
use engine::{Note, Time};
use sip::{Content, Endpoint, Flow, LegId};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::net::IpAddr;
use wire::sip::{Edit, HeaderId, Message, Method, NameAddr, Uri, percent_decode};

/// Why a request without credentials is challenged, which is no failure.
const AUTHENTICATION_REQUIRED: &str = "authentication required";

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) interface: InterfaceId,
    pub(crate) trunk: Option<TrunkId>,
    /// Whether the source is known: see [`Facts::authenticated`].
    pub(crate) authenticated: bool,
    /// Whether it is where a name was located: see [`Facts::located`].
    pub(crate) located: bool,
}

/// A refusal with the headers it needs.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) status: u16,
    pub(crate) reason: Option<String>,
    pub(crate) why: &'static str,
    pub(crate) headers: Vec<(HeaderId, Vec<u8>)>,
}

impl Refused {
    pub(crate) fn new(status: u16, why: &'static str) -> Refused {
        Refused {
            status,
            reason: None,
            why,
            headers: Vec::new(),
        }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        let headers = refusal
            .retry_after
            .map(|seconds| (HeaderId::RetryAfter, seconds.to_string().into_bytes()));
        Refused {
            status: refusal.status,
            reason: refusal.reason,
            why: refusal.why,
            headers: headers.into_iter().collect(),
        }
    }
}

impl Core {
    /// A new INVITE.
    pub(crate) fn offered(
        &mut self,
        endpoint: &mut Endpoint,
        leg: LegId,
        request: &Message<'_>,
        flow: Flow,
        now: Time,
    ) {
        self.counters.offered += 1;
        let result = self.let_in(request, flow, now).and_then(|let_in| {
            self.without_loop(request)?;
            match breadth_of(request) {
                Some(0) => Err(Refused::new(440, "no breadth is left")),
                _ => Ok(let_in),
            }
        });
        let admitted = result
            .and_then(|(origin, user)| Ok((origin, self.admit(request, origin, flow, user)?)));
        let (origin, admitted) = match admitted {
            Ok(admitted) => admitted,
            Err(refused) => return self.refuse_call(endpoint, leg, request, flow, &refused, now),
        };
        let changed = admitted.message();
        let request = changed.as_ref().unwrap_or(request);
        if self
            .config
            .interface(origin.interface)
            .is_some_and(|interface| interface.kind == InterfaceKind::Access)
        {
            // Phones behind NAT write addresses that nobody reaches: they are met where they are.
            let _ = endpoint.pin(leg, flow);
        }
        if let Ok(wanted) = request.replaces()
            && let Some(replaced) =
                endpoint.find_leg(wanted.call_id, wanted.to_tag, wanted.from_tag)
        {
            let hop = known_step(origin.interface, origin.trunk);
            return match self.replaceable(endpoint, replaced, wanted.early_only) {
                Ok((slot, side)) => {
                    // It becomes a part of the call that it changes.
                    self.counters.offered -= 1;
                    self.replace(
                        endpoint,
                        leg,
                        (slot, side, replaced),
                        request,
                        flow,
                        hop,
                        now,
                    );
                }
                Err(refused) => self.refuse_call(endpoint, leg, request, flow, &refused, now),
            };
        }
        if admitted.route.is_none()
            && self.reaches_rooms(origin)
            && let Some(called) = self.room_called(request.request_uri(), origin)
        {
            if let Some(crew) = &self.crew
                && !crew.has_room(&called.number)
            {
                // Another worker has read another configuration, or the caller has just registered: it is so for a moment.
                let mut refused = Refused::new(503, "the conference is at another worker");
                refused.headers.push((HeaderId::RetryAfter, b"1".to_vec()));
                return self.refuse_call(endpoint, leg, request, flow, &refused, now);
            }
            let kept = (admitted.tags.clone(), admitted.user.clone(), called);
            return self.seat_offered(endpoint, leg, request, flow, origin, kept, now);
        }
        let planned = self.plan(request, origin, admitted.route);
        let planned = planned.and_then(|plan| {
            let bill = self.take_cost(request.request_uri(), &plan, flow, origin, now)?;
            Ok((plan, bill))
        });
        match planned {
            Ok((plan, bill)) => {
                let kept = (admitted.tags.clone(), admitted.user.clone(), bill);
                self.begin_call(endpoint, leg, request, flow, origin, plan, kept, now);
            }
            Err(refused) => self.refuse_call(endpoint, leg, request, flow, &refused, now),
        }
    }

    /// Where a request outside of any dialog came from, and the user as which its source has authenticated. What was found
    /// when it was greeted is not asked again: credentials serve once.
    ///
    /// # Errors
    /// The source is not served, or has to authenticate.
    pub(crate) fn let_in(
        &mut self,
        request: &Message<'_>,
        flow: Flow,
        now: Time,
    ) -> Result<(Origin, Option<Box<str>>), Refused> {
        match self.authorized.take() {
            Some(authorized) => Ok(authorized),
            None => self.authorize(request, flow, now),
        }
    }

    /// As [`Core::let_in`], of a request that has not been looked at.
    pub(crate) fn authorize(
        &mut self,
        request: &Message<'_>,
        flow: Flow,
        now: Time,
    ) -> Result<(Origin, Option<Box<str>>), Refused> {
        let interface = self
            .interface_of(flow.local)
            .ok_or(Refused::new(503, "interface is no longer served"))?;
        let config = self.config.clone();
        let trunk = self.trunk_at(interface, &flow);
        let origin = Origin {
            interface,
            trunk,
            authenticated: trunk.is_some(),
            located: self.is_located(&flow),
        };
        if self.is_foreign_to_core(origin) {
            self.without_loop(request)?;
            return Err(Refused::new(
                403,
                "source belongs to no trunk of this core interface: add it to `sources` of the trunk or to `allow`",
            ));
        }
        if !self.requires_authentication(origin) {
            let core = config
                .interface(interface)
                .is_some_and(|settings| settings.kind == InterfaceKind::Core);
            let origin = Origin {
                authenticated: core || trunk.is_some() || self.is_registered(request, flow),
                ..origin
            };
            return Ok((origin, self.registered_user(origin, request, flow)));
        }
        let origin = Origin {
            authenticated: true,
            ..origin
        };
        let aor = match request.method() {
            Method::Register => address_of_record(request),
            _ => {
                let from = request.from().ok().and_then(|from| user_at(&from));
                from.map_or_else(String::new, String::from)
            }
        };
        let claim = Claim {
            source: flow.remote.ip(),
            registered: self.location.holds(&aor, flow),
        };
        let result = self.authority.hold().check(&config, request, claim, now);
        match result {
            Authentication::Authenticated(user) => {
                self.events.tell(now, || Note::Authenticated {
                    method: text(request.method().as_bytes()),
                    user: user.clone(),
                    source: flow.remote.to_string(),
                });
                Ok((origin, Some(user.into())))
            }
            Authentication::Required { status, headers } => Err(Refused {
                headers,
                ..Refused::new(status, AUTHENTICATION_REQUIRED)
            }),
            Authentication::Failed {
                status,
                headers,
                user,
                why,
            } => {
                self.tell_failure(flow, &aor, &user, why, now);
                Err(Refused {
                    headers,
                    ..Refused::new(status, why)
                })
            }
            Authentication::Delayed { user, after } => {
                let why = "not judged: too many failures before";
                self.tell_failure(flow, &aor, &user, why, now);
                let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
                Err(Refused {
                    headers: vec![(HeaderId::RetryAfter, seconds.to_string().into_bytes())],
                    ..Refused::new(503, why)
                })
            }
        }
    }

    fn tell_failure(&mut self, flow: Flow, aor: &str, user: &str, why: &str, now: Time) {
        self.counters.authentication_failed += 1;
        let Some(untold) = self.authority.hold().tell_failure(now) else {
            return;
        };
        let short = |name: &str| name.chars().take(100).collect();
        self.events.tell(now, || Note::AuthenticationFailed {
            source: flow.remote.to_string(),
            aor: short(aor),
            user: short(user),
            reason: why.to_owned(),
            untold,
        });
    }

    /// Whether a request came on a core interface that names no networks, from a source that is no trunk's: our own network
    /// is what the configuration names, not each host that reaches the address.
    fn is_foreign_to_core(&self, origin: Origin) -> bool {
        let interface = self.config.interface(origin.interface);
        origin.trunk.is_none()
            && interface.is_some_and(|interface| {
                interface.kind == InterfaceKind::Core
                    && interface.allow.is_empty()
                    && interface.authenticate == Authenticate::None
                    && interface.register == Register::Refuse
            })
            && !origin.located
    }

    /// Whether requests were sent to this address because a name was located there.
    fn is_located(&self, flow: &Flow) -> bool {
        self.located_peers
            .look(|peers| peers.get(&flow.remote.ip()).is_some())
    }

    /// Whether the user of From is registered from just where the request comes from.
    pub(crate) fn is_registered(&self, request: &Message<'_>, flow: Flow) -> bool {
        let user = request.from().ok().and_then(|from| user_at(&from));
        user.is_some_and(|user| self.location.holds(&user, flow))
    }

    /// Whether sources there have to authenticate by digest.
    pub(crate) fn requires_authentication(&self, origin: Origin) -> bool {
        let interface = self.config.interface(origin.interface);
        let asks = interface.is_some_and(|i| i.authenticate == Authenticate::Digest);
        asks && origin.trunk.is_none()
    }

    /// The user who is registered from just where a request comes from, where that is taken for proof: the one whom the
    /// caller wants to be (RFC 3325 section 6), else whom From names.
    pub(crate) fn registered_user(
        &self,
        origin: Origin,
        request: &Message<'_>,
        flow: Flow,
    ) -> Option<Box<str>> {
        let asserts = self
            .config
            .interface(origin.interface)
            .is_some_and(|interface| interface.assert_registered);
        if !asserts || origin.trunk.is_some() {
            return None;
        }
        let preferred = request
            .name_addrs(HeaderId::PPreferredIdentity)
            .flatten()
            .filter_map(|address| user_at(&address));
        let mut candidates = preferred.chain(request.from().ok().and_then(|from| user_at(&from)));
        candidates.find(|user| self.location.holds(user, flow))
    }

    /// Whether calls from there may be to conferences: where a trunk authenticates, those of its registered phones.
    fn reaches_rooms(&self, origin: Origin) -> bool {
        let interface = self.config.interface(origin.interface);
        origin.authenticated || interface.is_none_or(|i| i.authenticate != Authenticate::Trunk)
    }

    /// An INVITE that we sent and that comes back with the Request-URI that it had loops (RFC 5393 section 4.2); with
    /// another one it spirals, which is in order. Loops through others that change the Call-ID end by Max-Forwards.
    fn without_loop(&self, request: &Message<'_>) -> Result<(), Refused> {
        let call = request
            .call_id()
            .ok()
            .and_then(|id| self.call_of_id(id))
            .and_then(|key| self.slot_of(key))
            .and_then(|slot| self.calls.get(slot));
        match call {
            Some(call) if call.mark == self.mark_of(request.request_uri()) => {
                Err(Refused::new(482, "loop"))
            }
            _ => Ok(()),
        }
    }

    /// What policy says about a request.
    /// `trunk`: a rule has decided where it goes.
    pub(crate) fn plan(
        &mut self,
        request: &Message<'_>,
        origin: Origin,
        trunk: Option<TrunkId>,
    ) -> Result<CallPlan, Refused> {
        let from = request.from().map(|from| from.uri).unwrap_or_default();
        let facts = Facts {
            interface: origin.interface,
            trunk: origin.trunk,
            authenticated: origin.authenticated,
            located: origin.located,
            from,
            to: request.request_uri(),
            random: self.entropy.u64(),
            calls: self.calls_of_all(),
            draining: self.draining.is_some(),
        };
        let plan = match trunk {
            Some(trunk) => decide_for(trunk, &self.config, &facts, &self.view()),
            None => decide(&self.config, &facts, &self.view()),
        };
        match plan {
            Plan::Call(mut plan) => {
                if plan.media == MediaMode::Anchor && self.config.media.at_nodes {
                    plan.media = MediaMode::Node;
                }
                Ok(plan)
            }
            Plan::Refuse(refusal) => Err(refusal.into()),
        }
    }

    pub(crate) fn refuse_call(
        &mut self,
        endpoint: &mut Endpoint,
        leg: LegId,
        request: &Message<'_>,
        flow: Flow,
        refused: &Refused,
        now: Time,
    ) {
        if refused.status != 401 && refused.status != 407 {
            self.counters.count(Outcome::of(refused.status));
        } else {
            // The call proper comes with credentials.
            self.counters.offered -= 1;
        }
        self.tell_refusal(request, flow, refused, now);
        let mut effects = ::rules::Effects::default();
        let mut edits: SmallVec<[Edit<'_>; 4]> = refused
            .headers
            .iter()
            .map(|(id, value)| Edit::Add { id: *id, value })
            .collect();
        let what = (request.method(), refused.status);
        self.rules_answer(flow, None, what, &mut edits, &mut effects);
        let content = Content {
            edits: &edits,
            reason: refused.reason.as_deref().map(str::as_bytes),
            ..Content::default()
        };
        let _ = endpoint.reject(leg, refused.status, &content, now);
    }

    pub(crate) fn tell_refusal(
        &mut self,
        request: &Message<'_>,
        flow: Flow,
        refused: &Refused,
        now: Time,
    ) {
        let method = || text(request.method().as_bytes());
        self.events.tell(now, || match refused.why {
            AUTHENTICATION_REQUIRED => Note::AuthenticationRequired {
                method: method(),
                status: refused.status,
                source: flow.remote.to_string(),
            },
            why => Note::RequestRefused {
                method: method(),
                status: refused.status,
                why: why.to_owned(),
                source: flow.remote.to_string(),
            },
        });
    }

    #[allow(clippy::too_many_arguments)]
    fn begin_call(
        &mut self,
        endpoint: &mut Endpoint,
        leg: LegId,
        request: &Message<'_>,
        flow: Flow,
        origin: Origin,
        plan: CallPlan,
        (tags, user, bill): (Tags, Option<Box<str>>, Bill),
        now: Time,
    ) {
        let number = self.next_number(endpoint);
        let relay = match plan.media {
            MediaMode::Node => Some(Box::new(self.new_relay())),
            MediaMode::Anchor | MediaMode::Bypass => None,
        };
        let entry = self.calls.vacant_entry();
        let slot = entry.key();
        let key = CallKey::new(slot, number);
        let ring_timer = self
            .timers
            .schedule(now + plan.ring_timeout, Alarm::RingTimeout(key));
        let reliable = request.lists(HeaderId::Supported, b"100rel")
            || request.lists(HeaderId::Require, b"100rel");
        entry.insert(Call {
            number,
            phase: Phase::SetUp,
            legs: Sides::new(Some(leg), None),
            interfaces: Sides::new(origin.interface, origin.interface),
            trunks: Sides::new(origin.trunk, None),
            set_up: Some(Box::new(SetUp {
                invite: request.bytes().into(),
                hops: plan.steps,
                next: 0,
                locating: 0,
                opening: SmallVec::new(),
                branches: SmallVec::new(),
                progressed: false,
                offered: super::pass::has_sdp(request),
                reliable,
                answered_by: None,
                spoke: None,
                to_prack: VecDeque::new(),
                best: super::Best::default(),
                breadth: breadth_of(request),
                share: None,
                route: plan.route.into(),
                anchor: plan.media == MediaMode::Anchor,
                user,
                source: flow.remote,
                ring_timer: Some(ring_timer),
                answer_timer: None,
            })),
            media: None,
            relay,
            transcoded: false,
            links: Vec::new(),
            held: None,
            join: None,
            ack_due: None,
            ack_sent: false,
            early_request: None,
            mark: 0,
            bill,
            offered_at: now,
            answered_at: None,
            end: None,
            tags,
            status: 0,
            counted: false,
            end_told: false,
            seat: None,
            charging: None,
        });
        self.tell_crew();
        self.charge(slot, origin, request);
        endpoint.set_user(leg, key.0);
        self.locate_dialog(endpoint, leg, None, now);
        self.trunk_call_began(origin.trunk);
        let config = self.config.clone();
        self.events.tell(now, || Note::CallOffered {
            call: number,
            interface: config
                .interface(origin.interface)
                .map_or_else(String::new, |interface| interface.name.clone()),
            call_id: text(request.call_id().unwrap_or_default()),
            from: text(request.from().map(|from| from.uri).unwrap_or_default()),
            to: text(request.request_uri()),
        });
        self.tell_first_tags(slot, now);
        self.try_with(endpoint, slot, request, now);
        self.settle_set_up(endpoint, slot, now);
    }
}

impl Core {
    /// The charging vector of a new call: made for calls from an untrusted side whose interface is configured so, kept for
    /// those of a trusted one.
    pub(crate) fn charge(&mut self, slot: usize, origin: Origin, request: &Message<'_>) {
        let config = self.config.clone();
        let value = match config.trusts(origin.interface, origin.trunk) {
            true => request
                .header(HeaderId::PChargingVector)
                .filter(|_| config.interfaces.iter().any(|i| i.charging_vector))
                .map(Box::from),
            false => config
                .interface(origin.interface)
                .filter(|interface| interface.charging_vector)
                .map(|interface| self.charging_vector(interface)),
        };
        if let Some(call) = self.calls.get_mut(slot) {
            call.charging = value;
        }
    }

    /// A value that no other call has, and that tells nothing of how many there were.
    fn charging_vector(&mut self, interface: &Interface) -> Box<[u8]> {
        let (high, low) = (self.entropy.u64(), self.entropy.u64());
        let address = interface.listen.first().map(|listen| listen.address.ip());
        let advertised = interface.advertise.as_ref();
        let ip = advertised.map_or(address, HostName::ip);
        let host = match ip {
            Some(IpAddr::V6(ip)) => format!("[{ip}]"),
            Some(IpAddr::V4(ip)) => ip.to_string(),
            None => advertised.map_or_else(String::new, |name| name.text().to_owned()),
        };
        format!("icid-value={high:016x}{low:016x};icid-generated-at={host}")
            .into_bytes()
            .into()
    }
}

/// The user part of an address, decoded.
pub(crate) fn user_at(address: &NameAddr<'_>) -> Option<Box<str>> {
    let uri = address.parse_uri().filter(Uri::is_sip)?;
    let user = percent_decode(uri.user?);
    Some(std::str::from_utf8(&user).ok()?.into())
}

/// Max-Breadth (RFC 5393 section 5.3): how many branches the request may still have at a time.
fn breadth_of(request: &Message<'_>) -> Option<u16> {
    if !request.has(HeaderId::Other) {
        return None;
    }
    let value = request.header_named(MAX_BREADTH)?;
    let digits = std::str::from_utf8(value).ok()?.trim();
    let all = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    all.then(|| digits.parse().unwrap_or(u16::MAX))
}
