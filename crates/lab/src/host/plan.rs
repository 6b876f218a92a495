//! What a host is to do.

use crate::experiment::{HangUp, MediaKind, fill};
use crate::pace::{Arrivals, Bounds, Hold, Pace, Plan, Share};
use codec::Format;
use engine::{Entropy, Time, Transport};
use std::net::SocketAddr;
use std::time::Duration;

/// What a side sends.
pub type Say = MediaKind;

/// Which messages set a call up.
pub use crate::experiment::CallFlow;

/// A whole host.
#[derive(Clone, Debug)]
pub struct HostPlan {
    /// Name of the workload in records.
    pub name: String,
    /// SIP listening point; port 0 lets the driver choose. Media goes from the same IP address.
    pub address: SocketAddr,
    /// Streams of this transport too. TCP listens at the port of UDP; TLS at that of [`HostPlan::address`], or at one of the
    /// driver's choice; WebSockets are only opened.
    pub stream: Option<Transport>,
    /// Where the subject takes TLS or WebSockets; needed before anything goes out over them.
    pub stream_peer: Option<StreamPeer>,
    /// Media sockets opened before anything begins.
    pub media_sockets: usize,
    /// First port of the media sockets opened beforehand; 0 lets the driver choose each.
    pub media_port: u16,
    /// About how many attempts begin in the time for which transactions are remembered (32 s): room for them is made
    /// beforehand. 0: as they come.
    pub attempts_remembered: usize,
    /// Calls made.
    pub calls: Vec<CallPlan>,
    /// Calls taken; refused with 480 where `None`.
    pub answers: Option<AnswerPlan>,
    /// Registrations.
    pub registrations: Option<RegistrationPlan>,
    /// Takes registrations, of whoever comes, and keeps none.
    pub registrar: bool,
    /// The registrar challenges (digest, MD5), and this template gives each user's password; empty: it takes whoever comes.
    pub registrar_password: String,
    /// Streams without signalling.
    pub streams: Option<StreamPlan>,
    /// What comes within the second of these spans, from the first one after the beginning on, counts in the figures of media;
    /// `None`: all of it.
    pub window: Option<(Duration, Duration)>,
    /// What is due within so long of each other is begun together, and what is received may wait as long for more of it.
    pub batch: Duration,
    /// Priority of its thread under SCHED_FIFO; 0: it shares as all do.
    pub realtime: u8,
    /// Which part of its plans it plays.
    pub share: Share,
    /// What is drawn of the plans, where several hosts play them together: they have to draw the same.
    pub plan_seed: Option<u64>,
}

impl HostPlan {
    /// A host that does nothing yet.
    pub fn new(name: &str, address: SocketAddr) -> HostPlan {
        HostPlan {
            name: name.to_owned(),
            address,
            stream: None,
            stream_peer: None,
            media_sockets: 0,
            media_port: 0,
            attempts_remembered: 0,
            calls: Vec::new(),
            answers: None,
            registrations: None,
            registrar: false,
            registrar_password: String::new(),
            streams: None,
            window: None,
            batch: Duration::ZERO,
            realtime: 0,
            share: Share::ALL,
            plan_seed: None,
        }
    }
}

impl HostPlan {
    /// Whether any call of it has preconditions.
    pub(crate) fn is_volte(&self) -> bool {
        let calls = self.calls.iter().map(|plan| plan.flow);
        let mut flows = calls.chain(self.answers.as_ref().map(|plan| plan.flow));
        flows.any(|flow| flow == CallFlow::Volte)
    }
}

/// Where a subject takes TLS or WebSockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPeer {
    /// Its address.
    pub address: SocketAddr,
    /// Whom its certificate has to stand for (RFC 5922); of no use without TLS.
    pub name: String,
}

/// User and password, as templates over the attempt's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// User name.
    pub user: String,
    /// Password; may contain `{user}`.
    pub password: String,
}

impl Login {
    /// User and password of the attempt `number`.
    pub fn of(&self, number: u64) -> (String, String) {
        let user = fill(&self.user, number, "");
        let password = fill(&self.password, number, &user);
        (user, password)
    }
}

/// Calls made.
#[derive(Clone, Debug)]
pub struct CallPlan {
    /// Name of the workload in records.
    pub name: String,
    /// Arrivals.
    pub pace: Pace,
    /// Delay of the first arrival after the trial's start.
    pub after: Duration,
    /// Attempts in total and at a time.
    pub bounds: Bounds,
    /// No attempt is due after this span from the trial's start.
    pub lasting: Option<Duration>,
    /// Answer to BYE.
    pub hold: Hold,
    /// Number dialled; a template.
    pub dial: String,
    /// The caller's own number; a template.
    pub from: String,
    /// Attempt numbers given to templates are taken modulo this, so that callers take turns; 0: as they are.
    pub cycle: u64,
    /// Digest.
    pub login: Option<Login>,
    /// Host part of the URIs; empty: the subject's address.
    pub domain: String,
    /// SIP transport.
    pub transport: Transport,
    /// Stream connections that take turns, call by call.
    pub connections: u32,
    /// Who sends BYE.
    pub hang_up: HangUp,
    /// What is sent.
    pub say: Say,
    /// What the other side sends, as far as known: `None` where nothing is expected.
    pub hear: Say,
    /// In which codec.
    pub codec: Format,
    /// Participants of a conference who take turns; 0: nobody does.
    pub seats: u64,
    /// With SRTP, by keys in the session description.
    pub srtp: bool,
    /// When each packet was sent, and when each came, is kept.
    pub timed: bool,
    /// Share cancelled while ringing, percent.
    pub cancel_percent: f64,
    /// Share put on hold and taken back, percent.
    pub hold_percent: f64,
    /// Share listened to, percent.
    pub listen_percent: f64,
    /// Longest ringing.
    pub ring_limit: Duration,
    /// Which messages set it up.
    pub flow: CallFlow,
    /// How long resources take to be reserved, where the flow has preconditions.
    pub reserve: Duration,
}

impl CallPlan {
    pub(crate) fn schedule(&self, start: Time, entropy: Entropy, share: Share) -> Plan {
        let bounds = Bounds {
            until: self.lasting.map(|span| start + span),
            ..self.bounds
        };
        let arrivals = Arrivals::new(self.pace, start + self.after, entropy);
        Plan::shared(arrivals, bounds, share)
    }
}

/// Calls taken.
#[derive(Clone, Debug)]
pub struct AnswerPlan {
    /// Name of the workload in records.
    pub name: String,
    /// INVITE to 180.
    pub ring: Duration,
    /// INVITE to 200.
    pub answer: Duration,
    /// The answer delay is drawn, exponentially.
    pub random: bool,
    /// Share refused with 486, percent.
    pub busy_percent: f64,
    /// Share that only rings, percent.
    pub no_answer_percent: f64,
    /// What is sent.
    pub say: Say,
    /// The codec that is answered with; G.711 of either law takes the other one, too.
    pub codec: Format,
    /// When each packet was sent, and when each came, is kept.
    pub timed: bool,
    /// Number at which what is heard is sent back, whatever `say` says.
    pub echo_number: Option<String>,
    /// We hang up, after this hold time.
    pub hang_up: Option<Hold>,
    /// Share listened to, percent.
    pub listen_percent: f64,
    /// The callers' speech is expected.
    pub hear: Say,
    /// Which messages set a call up, where the caller supports it.
    pub flow: CallFlow,
    /// How long resources take to be reserved, where the flow has preconditions.
    pub reserve: Duration,
}

impl AnswerPlan {
    /// Answers at once.
    pub fn new(name: &str, say: Say) -> AnswerPlan {
        AnswerPlan {
            name: name.to_owned(),
            ring: Duration::ZERO,
            answer: Duration::ZERO,
            random: false,
            busy_percent: 0.0,
            no_answer_percent: 0.0,
            say,
            codec: Format::Pcma,
            timed: false,
            echo_number: None,
            hang_up: None,
            listen_percent: 0.0,
            hear: Say::None,
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
    pub pace: Pace,
    /// Users.
    pub users: u64,
    /// Their names and passwords; no digest where the password is empty.
    pub login: Login,
    /// Host part of the URIs; empty: the subject's address.
    pub domain: String,
    /// Seconds asked for.
    pub expires: u32,
    /// From an answer to the next refresh; `None`: never refreshed.
    pub refresh: Option<Duration>,
    /// Refreshes of each user.
    pub refreshes: u32,
    /// Refreshes come at this rate, users in turn, once all have registered; 0: each by itself.
    pub refresh_rate: f64,
    /// Taken back after the last refresh.
    pub remove: bool,
    /// SIP transport.
    pub transport: Transport,
    /// Stream connections that take turns, user by user.
    pub connections: u32,
}

impl RegistrationPlan {
    /// The highest rate at which they come, per second.
    pub(crate) fn rate(&self) -> f64 {
        match self.pace {
            Pace::Constant { rate } | Pace::Poisson { rate } => rate,
            Pace::Ramp { from, to, .. } => from.max(to),
        }
    }

    pub(crate) fn schedule(&self, start: Time, entropy: Entropy, share: Share) -> Plan {
        let bounds = Bounds {
            total: Some(self.users),
            ..Bounds::default()
        };
        Plan::shared(Arrivals::new(self.pace, start, entropy), bounds, share)
    }

    /// The refreshes that come at a rate, and when they begin: that follows from the plan alone. `entropy` as for
    /// [`RegistrationPlan::schedule`].
    pub(crate) fn cycles(
        &self,
        start: Time,
        entropy: Entropy,
        share: Share,
    ) -> Option<(Time, Plan)> {
        if self.refresh_rate <= 0.0 {
            return None;
        }
        let mut first = Arrivals::new(self.pace, start, entropy.clone());
        let last = usize::try_from(self.users.saturating_sub(1)).ok()?;
        let begin = first.nth(last)? + CYCLE_PAUSE;
        let pace = Pace::Constant {
            rate: self.refresh_rate,
        };
        let bounds = Bounds {
            total: Some(self.users.saturating_mul(u64::from(self.refreshes))),
            ..Bounds::default()
        };
        let arrivals = Arrivals::new(pace, begin, entropy);
        Some((begin, Plan::shared(arrivals, bounds, share)))
    }
}

/// From the last first registration to the first refresh of a cycle: the subject has come to rest by then.
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
    /// How long each lasts.
    pub lasting: Duration,
    /// What is sent; nothing where this host only receives.
    pub say: Say,
    /// In which codec.
    pub codec: Format,
    /// What the sender of a received stream says.
    pub hear: Say,
    /// Share of the received streams that is listened to, percent.
    pub listen_percent: f64,
    /// Stream `n` goes to this address, `2 n` ports higher.
    pub to: Option<SocketAddr>,
}

impl StreamPlan {
    pub(crate) fn schedule(&self, start: Time, entropy: Entropy) -> Plan {
        let bounds = Bounds {
            total: Some(self.count),
            ..Bounds::default()
        };
        let pace = Pace::Constant { rate: self.rate };
        Plan::new(Arrivals::new(pace, start, entropy), bounds)
    }
}
