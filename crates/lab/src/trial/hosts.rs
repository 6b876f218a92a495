//! The generator hosts that the workloads of an experiment need.

use crate::error::LabError;
use crate::experiment::{
    Callees, Callers, Experiment, GeneratorSettings, HangUp, MediaKind, RegistrarLocation,
    Registrations, StreamLoad, TransportName,
};
use crate::host::{
    AnswerPlan, HostPlan, LoginTemplates, OutgoingCallPlan, RegistrationPlan, StreamPlan,
};
use crate::pace::{Bounds, PlanShare};
use engine::Transport;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Most media sockets opened before a trial begins; more are opened on demand.
const MAX_PREOPENED_SOCKETS: u64 = 3_000;

/// The hosts of a trial.
#[derive(Clone, Debug)]
pub struct TrialHosts {
    /// Sends calls, registrations and streams.
    pub near: HostPlan,
    /// Receives calls and streams.
    pub far: Option<HostPlan>,
}

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value.max(0.0)).unwrap_or(Duration::MAX)
}

fn non_zero(value: u64) -> Option<u64> {
    (value > 0).then_some(value)
}

impl TrialHosts {
    /// The hosts of `experiment`: callers at `near`, and callees at `far` unless the experiment names an address.
    /// Streams without signalling are received at `far`, from port `stream_port` on.
    ///
    /// # Errors
    /// If the experiment requires a combination that its workloads do not support.
    pub fn of(
        experiment: &Experiment,
        near: IpAddr,
        far: IpAddr,
        stream_port: u16,
    ) -> Result<TrialHosts, LabError> {
        check_codecs(experiment)?;
        let expects = experiment
            .callees
            .as_ref()
            .map_or(MediaKind::None, |callees| callees.media);
        let mut host = HostPlan::new("callers", SocketAddr::new(near, 0));
        if let Some(callers) = &experiment.callers {
            host.calls.push(call_plan(callers, expects));
            host.media_sockets = sockets(callers, expects);
        }
        if let Some(registrations) = &experiment.registrations {
            host.registrations = Some(registration_plan(registrations));
        }
        let streams = experiment.transports().map(Transport::from);
        host.stream = streams.into_iter().find(|name| *name != Transport::Udp);
        let mut other = None;
        if let Some(callees) = &experiment.callees {
            let address = callees.address.unwrap_or(SocketAddr::new(far, 0));
            let mut plan = HostPlan::new("callees", address);
            plan.answers = Some(answer_plan(callees, experiment.callers.as_ref()));
            plan.media_sockets = host.media_sockets;
            plan.stream = Some(match callees.transport {
                TransportName::Tls => Transport::Tls,
                TransportName::Udp | TransportName::Tcp => Transport::Tcp,
                TransportName::Ws | TransportName::Wss => {
                    return Err(LabError::bad_input(
                        "callees.transport: callees do not support WebSocket",
                    ));
                }
            });
            other = Some(plan);
        }
        let core = experiment
            .registrations
            .as_ref()
            .is_some_and(|plan| plan.registrar == RegistrarLocation::Core);
        if core {
            let plan = other.get_or_insert_with(|| HostPlan::new("core", SocketAddr::new(far, 0)));
            plan.registrar = true;
            let passwords = experiment.registrations.iter().map(|r| &r.password);
            plan.registrar_password = passwords.cloned().collect();
        }
        if let Some(streams) = &experiment.streams {
            let count = streams.count.min(MAX_PREOPENED_SOCKETS) as usize;
            if !matches!(streams.media, MediaKind::Speech | MediaKind::Tone) {
                return Err(LabError::bad_input("streams.media: must be speech or tone"));
            }
            if other.is_some() || host.media_sockets > 0 {
                return Err(LabError::bad_input(
                    "[streams] cannot be combined with calls: use an experiment of its own",
                ));
            }
            host.media_sockets = count;
            host.streams = Some(stream_plan(
                streams,
                Some(SocketAddr::new(far, stream_port)),
            ));
            let mut plan = HostPlan::new("receivers", SocketAddr::new(far, 0));
            plan.media_sockets = count;
            plan.media_port = stream_port;
            plan.streams = Some(stream_plan(streams, None));
            other = Some(plan);
        }
        Ok(TrialHosts {
            near: host,
            far: other,
        })
    }
}

impl TrialHosts {
    /// The same hosts several times, each with its share of the plan; `seed` is for draws that must be equal in all of
    /// them. Callees with a given port use that port and the following ones.
    ///
    /// # Errors
    /// If there are not enough ports.
    pub fn split(
        mut self,
        generator: &GeneratorSettings,
        seed: u64,
    ) -> Result<(Vec<HostPlan>, Vec<HostPlan>), LabError> {
        let workers = generator.workers;
        for plan in self.far.iter_mut().chain([&mut self.near]) {
            plan.batch = Duration::from_micros(u64::from(generator.batch_us));
            plan.spin = Duration::from_micros(u64::from(generator.spin_us));
            plan.realtime = generator.realtime_priority;
        }
        if workers <= 1 {
            return Ok((vec![self.near], self.far.into_iter().collect()));
        }
        let count = u64::from(workers);
        let one = |plan: &HostPlan, index: u64| HostPlan {
            name: format!("{} {index}", plan.name),
            media_sockets: (plan.media_sockets as u64).div_ceil(count) as usize,
            share: PlanShare { index, count },
            plan_seed: Some(seed),
            ..plan.clone()
        };
        let near = (0..count).map(|index| one(&self.near, index)).collect();
        let mut far = Vec::new();
        for (plan, index) in self
            .far
            .iter()
            .flat_map(|plan| (0..workers).map(move |n| (plan, n)))
        {
            let mut plan = one(plan, u64::from(index));
            if plan.address.port() != 0 {
                let port = plan.address.port().checked_add(index).ok_or_else(|| {
                    LabError::bad_input(
                        "callees.address: its port and the following ones must suffice for generator.workers",
                    )
                })?;
                plan.address.set_port(port);
            }
            far.push(plan);
        }
        Ok((near, far))
    }
}

/// Checks that this build has the codecs of the experiment.
///
/// # Errors
/// If one is missing.
pub(crate) fn check_codecs(experiment: &Experiment) -> Result<(), LabError> {
    let callers = experiment.callers.iter().map(|callers| callers.codec);
    let callees = experiment
        .callees
        .iter()
        .filter_map(|callees| callees.codec);
    let streams = experiment.streams.iter().map(|streams| streams.codec);
    let conference = experiment.conference.iter().map(|plan| plan.codec);
    let missing = callers
        .chain(callees)
        .chain(streams)
        .chain(conference)
        .map(|codec| codec.format(false).kind())
        .find(|kind| !kind.is_available());
    match missing {
        None => Ok(()),
        Some(kind) => Err(LabError::cannot_run(
            format!("this build has no codec {}", kind.name()),
            "install libbcg729-dev and build Hornwork again",
        )),
    }
}

/// Number of sockets for concurrent calls, from the limit or from Little's law with a margin.
fn sockets(callers: &Callers, expects: MediaKind) -> usize {
    if callers.media == MediaKind::None && expects == MediaKind::None {
        return 0;
    }
    let fastest = callers.rate.max(callers.ramp_to);
    let open = (fastest * (callers.hold_seconds + 1.0) * 1.3 + 20.0).max(0.0) as u64;
    let bounds = [
        non_zero(callers.limit),
        non_zero(callers.total),
        Some(MAX_PREOPENED_SOCKETS),
    ];
    bounds.into_iter().flatten().fold(open, u64::min) as usize
}

fn call_plan(callers: &Callers, expects: MediaKind) -> OutgoingCallPlan {
    OutgoingCallPlan {
        name: "callers".to_owned(),
        pace: callers.pace(),
        after: Duration::ZERO,
        bounds: Bounds {
            total: non_zero(callers.total),
            open: non_zero(callers.limit),
            until: None,
        },
        duration: (callers.duration_seconds > 0.0).then(|| seconds(callers.duration_seconds)),
        hold: callers.hold(),
        dial: callers.dial.clone(),
        from: callers.from.clone(),
        cycle: callers.users,
        login: (!callers.user.is_empty()).then(|| LoginTemplates {
            user: callers.user.clone(),
            password: callers.password.clone(),
        }),
        domain: String::new(),
        transport: callers.transport.into(),
        connections: callers.connections,
        hang_up: callers.hang_up,
        sends: callers.media,
        expects,
        codec: callers.codec.format(callers.silence_suppression),
        participants: 0,
        srtp: callers.srtp,
        timed: callers.time_packets,
        cancel_percent: callers.cancel_percent,
        hold_percent: callers.hold_percent,
        listen_percent: callers.listen_percent,
        ring_limit: seconds(callers.ring_seconds),
        flow: callers.flow,
        reserve: seconds(callers.reserve_ms / 1e3),
    }
}

fn answer_plan(callees: &Callees, callers: Option<&Callers>) -> AnswerPlan {
    let hold = callers
        .filter(|callers| callers.hang_up == HangUp::Callee)
        .map(Callers::hold);
    let codec = callees.codec.or(callers.map(|callers| callers.codec));
    let codec = codec.unwrap_or_default();
    AnswerPlan {
        name: "callees".to_owned(),
        ring: seconds(callees.ring_ms / 1e3),
        answer: seconds(callees.answer_ms / 1e3),
        random: callees.answer_random,
        busy_percent: callees.busy_percent,
        no_answer_percent: callees.no_answer_percent,
        sends: callees.media,
        codec: codec.format(callers.is_some_and(|callers| callers.silence_suppression)),
        timed: callers.is_some_and(|callers| callers.time_packets),
        echo_number: None,
        hang_up: hold,
        listen_percent: callers.map_or(0.0, |callers| callers.listen_percent),
        expects: callers.map_or(MediaKind::None, |callers| callers.media),
        flow: callees.flow,
        reserve: seconds(callees.reserve_ms / 1e3),
    }
}

fn registration_plan(registrations: &Registrations) -> RegistrationPlan {
    RegistrationPlan {
        name: "registrations".to_owned(),
        pace: registrations.pace(),
        users: registrations.users,
        login: LoginTemplates {
            user: registrations.user.clone(),
            password: registrations.password.clone(),
        },
        domain: String::new(),
        expires: registrations.expires_seconds,
        refresh: (registrations.refresh_seconds > 0.0)
            .then(|| seconds(registrations.refresh_seconds)),
        follows_expiry: false,
        refreshes: registrations.refreshes,
        refresh_rate: registrations.refresh_rate,
        remove: registrations.remove,
        transport: registrations.transport.into(),
        connections: registrations.connections_within(u64::MAX, 1),
    }
}

fn stream_plan(streams: &StreamLoad, to: Option<SocketAddr>) -> StreamPlan {
    StreamPlan {
        name: if to.is_some() { "senders" } else { "receivers" }.to_owned(),
        rate: streams.rate,
        count: streams.count,
        duration: seconds(streams.duration_seconds),
        sends: if to.is_some() {
            streams.media
        } else {
            MediaKind::None
        },
        codec: streams.codec.format(false),
        listen_percent: streams.listen_percent,
        expects: streams.media,
        to,
    }
}
