//! The plan of a host: its workloads and parameters.

use super::phone::PhonePlan;
use crate::experiment::{HangUp, fill};
use crate::pace::{ArrivalProcess, Arrivals, AttemptSchedule, Bounds, HoldTime, PlanShare};
use codec::Format;
use engine::{Entropy, Limits, Time, Transport};
use std::net::SocketAddr;
use std::time::Duration;

/// Message flow of call set-up, and the media that a side sends.
pub use crate::experiment::{CallFlow, MediaKind};

/// The plan of a host.
#[derive(Clone, Debug)]
pub struct HostPlan {
    /// Name of the workload in records.
    pub name: String,
    /// SIP listener; port 0 lets the driver choose. Media uses the same IP address.
    pub address: SocketAddr,
    /// Stream transport beside UDP. TCP listens at the port of UDP; TLS at that of [`HostPlan::address`], or at one
    /// that the driver chooses; WebSockets are outgoing only.
    pub stream: Option<Transport>,
    /// TLS or WebSocket address of the SUT; needed before anything is sent over them.
    pub stream_peer: Option<StreamPeer>,
    /// The stream transport is listened on; otherwise it serves outgoing connections only.
    pub listens: bool,
    /// Softphone functions.
    pub phone: Option<PhonePlan>,
    /// Media sockets opened in advance.
    pub media_sockets: usize,
    /// First port of the media sockets opened in advance; 0 lets the driver choose each.
    pub media_port: u16,
    /// Outgoing calls.
    pub calls: Vec<OutgoingCallPlan>,
    /// Incoming calls; refused with 480 if `None`.
    pub answers: Option<AnswerPlan>,
    /// Registrations.
    pub registrations: Option<RegistrationPlan>,
    /// Acts as a registrar that accepts every user and keeps no bindings.
    pub registrar: bool,
    /// The registrar challenges (digest, MD5), and this template gives each user's password; empty: no authentication.
    pub registrar_password: String,
    /// Streams without signalling.
    pub streams: Option<StreamPlan>,
    /// Media counts within this interval: start and end after the beginning of the trial; `None`: all of it.
    pub window: Option<(Duration, Duration)>,
    /// Batching delay: actions due within it start together, and received messages may wait as long for more.
    pub batch: Duration,
    /// Priority of its thread under SCHED_FIFO; 0: the default scheduler.
    pub realtime: u8,
    /// The thread polls instead of sleeping this long before a deadline; zero: it sleeps.
    pub spin: Duration,
    /// The part of the plans that this host executes.
    pub share: PlanShare,
    /// Seed of the plans that several hosts execute together: their random values have to agree.
    pub plan_seed: Option<u64>,
    /// Seed of Call-IDs, tags and branches apart from the plan; `None`: they follow from the seed of the trial. A SUT
    /// that outlives the trial remembers those of an earlier one, and refuses them as loops or repetitions.
    pub identity_seed: Option<u64>,
}

impl HostPlan {
    /// A host without workloads.
    pub fn new(name: &str, address: SocketAddr) -> HostPlan {
        HostPlan {
            name: name.to_owned(),
            address,
            stream: None,
            stream_peer: None,
            listens: true,
            phone: None,
            media_sockets: 0,
            media_port: 0,
            calls: Vec::new(),
            answers: None,
            registrations: None,
            registrar: false,
            registrar_password: String::new(),
            streams: None,
            window: None,
            batch: Duration::ZERO,
            realtime: 0,
            spin: Duration::ZERO,
            share: PlanShare::ALL,
            plan_seed: None,
            identity_seed: None,
        }
    }
}

impl HostPlan {
    /// Whether any of its calls has preconditions.
    pub(crate) fn is_volte(&self) -> bool {
        let calls = self.calls.iter().map(|plan| plan.flow);
        let mut flows = calls.chain(self.answers.as_ref().map(|plan| plan.flow));
        flows.any(|flow| flow == CallFlow::Volte)
    }

    /// Stream connections that may be open at a time: those of its workloads with a margin for connections that are
    /// closing, and at least the default limit.
    pub(crate) fn stream_connections(&self) -> usize {
        let calls = self.calls.iter().map(|calls| calls.connections);
        let users = self.registrations.iter().map(|users| users.connections);
        let planned = calls.chain(users).max().unwrap_or(0) as usize;
        (planned + planned / 10 + 100).max(Limits::default().connections)
    }

    /// Whether it does nothing but receive streams: nothing that it sends depends on the time at which it reads them.
    pub(crate) fn only_receives_streams(&self) -> bool {
        let receives = self.streams.as_ref().is_some_and(|plan| plan.to.is_none());
        let registers = self.registrations.is_some() || self.registrar;
        receives && self.calls.is_empty() && self.answers.is_none() && !registers
    }
}

/// TLS or WebSocket address of a SUT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPeer {
    /// Its address.
    pub address: SocketAddr,
    /// Name that its certificate must contain (RFC 5922); without meaning for plain WebSocket.
    pub name: String,
}

/// User and password, as templates over the attempt's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginTemplates {
    /// User name.
    pub user: String,
    /// Password; may contain `{user}`.
    pub password: String,
}

impl LoginTemplates {
    /// User and password of the attempt `number`.
    pub fn of(&self, number: u64) -> (String, String) {
        let user = fill(&self.user, number, "");
        let password = fill(&self.password, number, &user);
        (user, password)
    }
}

/// Outgoing calls.
#[derive(Clone, Debug)]
pub struct OutgoingCallPlan {
    /// Name of the workload in records.
    pub name: String,
    /// Arrivals.
    pub pace: ArrivalProcess,
    /// Delay of the first arrival after the trial's start.
    pub after: Duration,
    /// Attempts in total and at a time.
    pub bounds: Bounds,
    /// End of arrivals after the trial's start.
    pub duration: Option<Duration>,
    /// Time between answer and BYE.
    pub hold: HoldTime,
    /// Number dialled; a template.
    pub dial: String,
    /// The number of the caller; a template.
    pub from: String,
    /// Attempt numbers in templates are taken modulo this, so that callers take turns; 0: unchanged.
    pub cycle: u64,
    /// Digest.
    pub login: Option<LoginTemplates>,
    /// Host part of the URIs; empty: the address of the SUT.
    pub domain: String,
    /// SIP transport.
    pub transport: Transport,
    /// Stream connections, used in turn by the calls.
    pub connections: u32,
    /// The side that sends BYE.
    pub hang_up: HangUp,
    /// Media to send.
    pub sends: MediaKind,
    /// Media of the peer; `None` kind if none is expected.
    pub expects: MediaKind,
    /// Codec.
    pub codec: Format,
    /// Participants of a conference that take turns; 0: no turns.
    pub participants: u64,
    /// With SRTP, by keys in the session description.
    pub srtp: bool,
    /// Whether send and arrival time of each packet are recorded.
    pub timed: bool,
    /// Share cancelled while ringing, percent.
    pub cancel_percent: f64,
    /// Share put on hold and resumed, percent.
    pub hold_percent: f64,
    /// Share whose audio is compared, percent.
    pub listen_percent: f64,
    /// Longest ringing.
    pub ring_limit: Duration,
    /// Message flow of call set-up.
    pub flow: CallFlow,
    /// Time for reserving resources, in a flow with preconditions.
    pub reserve: Duration,
}

impl OutgoingCallPlan {
    pub(crate) fn schedule(
        &self,
        start: Time,
        entropy: Entropy,
        share: PlanShare,
    ) -> AttemptSchedule {
        let bounds = Bounds {
            until: self.duration.map(|span| start + span),
            ..self.bounds
        };
        let arrivals = Arrivals::new(self.pace, start + self.after, entropy);
        AttemptSchedule::shared(arrivals, bounds, share)
    }
}

/// Incoming calls.
#[derive(Clone, Debug)]
pub struct AnswerPlan {
    /// Name of the workload in records.
    pub name: String,
    /// INVITE to 180.
    pub ring: Duration,
    /// INVITE to 200.
    pub answer: Duration,
    /// The answer delay is exponentially distributed.
    pub random: bool,
    /// Share refused with 486, percent.
    pub busy_percent: f64,
    /// Share that rings without an answer, percent.
    pub no_answer_percent: f64,
    /// Media to send.
    pub sends: MediaKind,
    /// The codec of the answer; G.711 of either law accepts the other one, too.
    pub codec: Format,
    /// Whether send and arrival time of each packet are recorded.
    pub timed: bool,
    /// Number at which received audio is sent back, instead of the media of `sends`.
    pub echo_number: Option<String>,
    /// The called side hangs up after this hold time.
    pub hang_up: Option<HoldTime>,
    /// Share whose audio is compared, percent.
    pub listen_percent: f64,
    /// Expected media of the callers.
    pub expects: MediaKind,
    /// Message flow of call set-up, if the caller supports it.
    pub flow: CallFlow,
    /// Time for reserving resources, in a flow with preconditions.
    pub reserve: Duration,
}

impl AnswerPlan {
    /// A plan that answers at once.
    pub fn new(name: &str, sends: MediaKind) -> AnswerPlan {
        AnswerPlan {
            name: name.to_owned(),
            ring: Duration::ZERO,
            answer: Duration::ZERO,
            random: false,
            busy_percent: 0.0,
            no_answer_percent: 0.0,
            sends,
            codec: Format::Pcma,
            timed: false,
            echo_number: None,
            hang_up: None,
            listen_percent: 0.0,
            expects: MediaKind::None,
            flow: CallFlow::Plain,
            reserve: Duration::ZERO,
        }
    }
}

/// Registrations.
#[derive(Clone, Debug)]
pub struct RegistrationPlan {
    /// Name of the workload in records.
    pub name: String,
    /// Arrivals.
    pub pace: ArrivalProcess,
    /// Users.
    pub users: u64,
    /// Their names and passwords; no digest where the password is empty.
    pub login: LoginTemplates,
    /// Host part of the URIs; empty: the address of the SUT.
    pub domain: String,
    /// Requested expiry, seconds.
    pub expires: u32,
    /// Interval from an answer to the next refresh; `None`: no refresh.
    pub refresh: Option<Duration>,
    /// The interval follows from the expiry that the registrar grants, in place of `refresh`: half of it.
    pub follows_expiry: bool,
    /// Refreshes of each user.
    pub refreshes: u32,
    /// Rate of refreshes, by users in turn, after all first registrations; 0: each user by its own timer.
    pub refresh_rate: f64,
    /// Bindings are removed after the last refresh.
    pub remove: bool,
    /// SIP transport.
    pub transport: Transport,
    /// Stream connections, used in turn by the users.
    pub connections: u32,
}

impl RegistrationPlan {
    /// The highest rate of registrations, per second.
    pub(crate) fn rate(&self) -> f64 {
        match self.pace {
            ArrivalProcess::Constant { rate } | ArrivalProcess::Poisson { rate } => rate,
            ArrivalProcess::Ramp { from, to, .. } => from.max(to),
        }
    }

    pub(crate) fn schedule(
        &self,
        start: Time,
        entropy: Entropy,
        share: PlanShare,
    ) -> AttemptSchedule {
        let bounds = Bounds {
            total: Some(self.users),
            ..Bounds::default()
        };
        AttemptSchedule::shared(Arrivals::new(self.pace, start, entropy), bounds, share)
    }

    /// The refreshes at a rate. Their start follows from the plan alone. `entropy` as for
    /// [`RegistrationPlan::schedule`].
    pub(crate) fn cycles(
        &self,
        start: Time,
        entropy: Entropy,
        share: PlanShare,
    ) -> Option<(Time, AttemptSchedule)> {
        if self.refresh_rate <= 0.0 {
            return None;
        }
        let mut first = Arrivals::new(self.pace, start, entropy.clone());
        let last = usize::try_from(self.users.saturating_sub(1)).ok()?;
        let begin = first.nth(last)? + CYCLE_PAUSE;
        let pace = ArrivalProcess::Constant {
            rate: self.refresh_rate,
        };
        let bounds = Bounds {
            total: Some(self.users.saturating_mul(u64::from(self.refreshes))),
            ..Bounds::default()
        };
        let arrivals = Arrivals::new(pace, begin, entropy);
        Some((begin, AttemptSchedule::shared(arrivals, bounds, share)))
    }
}

/// Pause between the last first registration and the first refresh of a cycle, in which the SUT becomes idle.
const CYCLE_PAUSE: Duration = Duration::from_secs(2);

/// Streams without signalling.
#[derive(Clone, Debug)]
pub struct StreamPlan {
    /// Name of the workload in records.
    pub name: String,
    /// Streams started per second.
    pub rate: f64,
    /// Streams.
    pub count: u64,
    /// Duration of each stream.
    pub duration: Duration,
    /// Media to send; none for a host that only receives.
    pub sends: MediaKind,
    /// Codec.
    pub codec: Format,
    /// Media of the sender of a received stream.
    pub expects: MediaKind,
    /// Share of the received streams whose audio is compared, percent.
    pub listen_percent: f64,
    /// Destination: stream `n` goes to this address, `2 n` ports higher.
    pub to: Option<SocketAddr>,
}

impl StreamPlan {
    pub(crate) fn schedule(&self, start: Time, entropy: Entropy) -> AttemptSchedule {
        let bounds = Bounds {
            total: Some(self.count),
            ..Bounds::default()
        };
        let pace = ArrivalProcess::Constant { rate: self.rate };
        AttemptSchedule::new(Arrivals::new(pace, start, entropy), bounds)
    }
}
