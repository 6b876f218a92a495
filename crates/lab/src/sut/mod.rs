//! The system under test: a Hornwork border, a foreign system, or none.

mod border_program;
mod border_thread;
mod layout;
mod node_thread;

pub use border_program::BorderProgram;
pub(crate) use border_program::{BorderGatewayCount, ProgramPlan, program};
pub use border_thread::{BorderState, BorderThread, CpuLimits};
pub use layout::{Layout, PortSpan};
pub use node_thread::{NodeState, NodeThread};

use crate::agent::{AgentAccess, AgentSubject};
use crate::error::LabError;
use crate::experiment::{Experiment, RegistrarLocation, Sut, SutMedia, TransportName, fill};
use crate::subject::{self, Family, RunningSubject, SubjectPlace};
use crate::tls::TrialCredentials;
use border::border::{Border, BorderCensus};
use engine::{Entropy, HashKey, Transport};
use media::{Forwarder, ForwarderLimits};
use net::Clock;
use sim::{HostId, World};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// A SUT on real sockets.
#[derive(Debug)]
pub enum RunningSut {
    /// None: callers and called side talk to each other directly.
    None,
    /// A foreign system.
    Foreign {
        /// Its address.
        address: SocketAddr,
        /// Its process on this machine, if its CPU time is to be read.
        process: Option<u32>,
    },
    /// A subject that the trial has started.
    Subject(RunningSubject),
    /// A subject that an agent has started on its host.
    Agent(Box<AgentSubject>),
    /// A Hornwork border on a thread of this process, with its media nodes on further threads.
    Border(BorderThread, Vec<NodeThread>),
    /// A Hornwork border that is a program of its own.
    Program(Box<BorderProgram>),
}

/// Address of the border towards callers in a network namespace of their own.
pub(crate) const PROTECTED_BORDER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2));
/// Longest wait for the border to release the resources of the last call.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);

/// Addresses of a SUT and of its peers.
#[derive(Clone, Copy, Debug)]
pub struct SutPlacement<'a> {
    /// Its addresses in this network namespace: towards callers, and towards the called side.
    pub addresses: [IpAddr; 2],
    /// Addresses to which its calls go.
    pub called: &'a [SocketAddr],
    /// Certificates and trust, if it uses TLS.
    pub credentials: Option<&'a TrialCredentials>,
    /// The border is a program of its own, with these parts; `None`: it is a thread.
    pub(crate) program: Option<ProgramPlan<'a>>,
}

impl RunningSut {
    /// Starts, or finds, the SUT of `experiment`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(
        experiment: &Experiment,
        placement: SutPlacement<'_>,
        entropy: Entropy,
        clock: Clock,
    ) -> Result<RunningSut, LabError> {
        if experiment.sut.direct {
            return Ok(RunningSut::None);
        }
        if let Some(address) = experiment.sut.address {
            return Ok(RunningSut::Foreign {
                address,
                process: experiment.sut.process_id,
            });
        }
        if !experiment.sut.subject.is_empty() {
            let placement = subject::Placement {
                ip: placement.addresses[0],
                called: placement.called.first().copied(),
                calls: most_calls(experiment),
            };
            return RunningSut::subject(&experiment.sut, placement);
        }
        if experiment.sut.workers > 1 {
            return Err(LabError::bad_input(
                "sut.workers: several workers need virtual time (--simulate), or a border that runs as a process of its own (sut.address)",
            ));
        }
        let calls = most_calls(experiment);
        let addresses = placement.addresses;
        let spans = PortSpan::free_for_calls(calls, addresses, &mut system_entropy()?)?;
        RunningSut::border(experiment, placement, spans, entropy, clock)
    }

    /// Starts a subject, here or at an agent.
    fn subject(sut: &Sut, placement: subject::Placement) -> Result<RunningSut, LabError> {
        match subject::place(&sut.subject)? {
            SubjectPlace::Agent(name, agent) => {
                let access = AgentAccess::new(agent, &sut.agent_token_file, &sut.agent_ca_file)?;
                let subject = AgentSubject::start(&name, &access, placement)?;
                Ok(RunningSut::Agent(Box::new(subject)))
            }
            SubjectPlace::Here(_) | SubjectPlace::Address(_) => {
                let file = subject::find(&sut.subject)?;
                RunningSubject::start(&file, placement).map(RunningSut::Subject)
            }
        }
    }

    /// Starts `count` SUTs of `experiment` with conferences, one after the other at the same addresses; a foreign one
    /// counts as one.
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn instances(
        experiment: &Experiment,
        (count, placement): (u64, SutPlacement<'_>),
        entropy: &mut Entropy,
        clock: Clock,
    ) -> Result<Vec<RunningSut>, LabError> {
        if experiment.sut.address.is_some() {
            return Ok(vec![RunningSut::start(
                experiment,
                placement,
                entropy.fork(),
                clock,
            )?]);
        }
        // Each opens its ports on demand; disjoint spans avoid collisions.
        let calls = most_calls(experiment) * count;
        let spans = PortSpan::free_for_calls(calls, placement.addresses, &mut system_entropy()?)?;
        let one = |number: u64| {
            let spans = spans.map(|span| span.part(number, count));
            RunningSut::border(experiment, placement, spans, entropy.fork(), clock)
        };
        (0..count).map(one).collect()
    }

    /// Starts a border with media ports in these spans.
    fn border(
        experiment: &Experiment,
        placement: SutPlacement<'_>,
        spans: [PortSpan; 2],
        entropy: Entropy,
        clock: Clock,
    ) -> Result<RunningSut, LabError> {
        let layout = Layout::on_free_ports(placement.addresses, spans)?;
        let mut layout = layout.for_experiment(experiment, placement.called);
        let mut entropy = entropy;
        let nodes = start_nodes(experiment, &mut layout, &mut entropy, clock)?;
        let own = |name: &TransportName| name.is_secure() || name.is_websocket();
        let access = experiment.transports().find(own).map(Transport::from);
        let core = Some(layout.trunk_transport).filter(|core| *core == Transport::Tls);
        layout = layout.with_streams([access, core], placement.credentials.cloned())?;
        if let Some(plan) = placement.program {
            check_program(&experiment.sut)?;
            let program = BorderProgram::start(&layout, plan)?;
            return Ok(RunningSut::Program(Box::new(program)));
        }
        let processor = CpuLimits {
            cpu: experiment.sut.cpu,
            percent: experiment.sut.cpu_percent,
            realtime: experiment.sut.realtime_priority,
        };
        let border = BorderThread::start(&layout, entropy, clock, processor)?;
        Ok(RunningSut::Border(border, nodes))
    }

    /// Its address; `None` without a SUT.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            RunningSut::None => None,
            RunningSut::Foreign { address, .. } => Some(*address),
            RunningSut::Subject(subject) => Some(subject.address()),
            RunningSut::Agent(subject) => Some(subject.address()),
            RunningSut::Border(border, _) => Some(border.address()),
            RunningSut::Program(border) => Some(border.address()),
        }
    }

    /// Its address for TLS or WebSocket; `None` without one.
    pub fn stream_address(&self) -> Option<SocketAddr> {
        match self {
            RunningSut::None => None,
            RunningSut::Foreign { address, .. } => Some(*address),
            RunningSut::Subject(subject) => Some(subject.address()),
            RunningSut::Agent(subject) => Some(subject.address()),
            RunningSut::Border(border, _) => border.stream_address(),
            RunningSut::Program(border) => border.stream_address(),
        }
    }

    /// Its CPU time so far, seconds; `None` if unknown.
    ///
    /// # Errors
    /// If the given process does not exist, or the border has stopped.
    pub fn cpu_seconds(&self) -> Result<Option<f64>, LabError> {
        match self {
            RunningSut::None => Ok(None),
            RunningSut::Foreign { process, .. } => {
                let figures = process.map(|process| foreign_figures(process, false));
                Ok(figures.transpose()?.map(|figures| figures.cpu_seconds))
            }
            RunningSut::Subject(subject) => Ok(Some(subject.figures(false).cpu_seconds)),
            RunningSut::Agent(subject) => Ok(Some(subject.figures(false)?.0.cpu_seconds)),
            RunningSut::Border(border, nodes) => {
                let mut seconds = border.state()?.cpu_seconds;
                for node in nodes {
                    seconds += node.state()?.cpu_seconds;
                }
                Ok(Some(seconds))
            }
            RunningSut::Program(border) => Ok(Some(border.figures(false)?.cpu_seconds)),
        }
    }

    /// Time in which its threads were ready to run and had no processor of this machine, seconds; `None` if unknown, as
    /// on another machine.
    ///
    /// # Errors
    /// If the given process does not exist, or the border has stopped.
    pub fn waited_seconds(&self) -> Result<Option<f64>, LabError> {
        match self {
            RunningSut::None | RunningSut::Agent(_) => Ok(None),
            RunningSut::Foreign { process, .. } => {
                let figures = process.map(|process| foreign_figures(process, false));
                Ok(figures.transpose()?.map(|figures| figures.waited_seconds))
            }
            RunningSut::Subject(subject) => Ok(Some(subject.figures(false).waited_seconds)),
            RunningSut::Border(border, _) => Ok(border.state()?.waited_seconds),
            RunningSut::Program(border) => Ok(Some(border.figures(false)?.waited_seconds)),
        }
    }

    /// Its resident memory with that of its descendants, bytes; `None` if it shares this process or runs on another
    /// machine.
    ///
    /// # Errors
    /// If the given process does not exist.
    pub fn resident_bytes(&self) -> Result<Option<u64>, LabError> {
        match self {
            RunningSut::Foreign { process, .. } => {
                let figures = process.map(|process| foreign_figures(process, true));
                Ok(figures.transpose()?.map(|figures| figures.memory_bytes))
            }
            RunningSut::Subject(subject) => Ok(Some(subject.figures(true).memory_bytes)),
            RunningSut::Agent(subject) => Ok(Some(subject.figures(true)?.0.memory_bytes)),
            RunningSut::Program(border) => Ok(Some(border.figures(true)?.memory_bytes)),
            RunningSut::None | RunningSut::Border(..) => Ok(None),
        }
    }

    /// Its CPU time so far on this machine, outside of this process, seconds; `None` if unknown, as of a foreign one
    /// without its process and of one that an agent has started.
    ///
    /// # Errors
    /// If the given process does not exist.
    pub fn cpu_seconds_beside(&self) -> Result<Option<f64>, LabError> {
        match self {
            RunningSut::None | RunningSut::Border(..) => Ok(Some(0.0)),
            RunningSut::Foreign { .. } | RunningSut::Subject(_) | RunningSut::Program(_) => {
                self.cpu_seconds()
            }
            RunningSut::Agent(_) => Ok(None),
        }
    }

    /// The reason, if a subject has ended by itself.
    ///
    /// # Errors
    /// If its agent does not answer.
    pub fn ended(&self) -> Result<Option<String>, LabError> {
        match self {
            RunningSut::Subject(subject) => Ok(subject.ended()),
            RunningSut::Agent(subject) => Ok(subject.figures(false)?.1),
            RunningSut::Program(border) => Ok(border.ended()),
            RunningSut::None | RunningSut::Foreign { .. } | RunningSut::Border(..) => Ok(None),
        }
    }

    /// Calls, legs, ports and sessions that remain after all calls have ended, of a program of its own calls alone;
    /// `None` if it cannot be queried.
    ///
    /// # Errors
    /// If it has stopped.
    pub fn remaining_objects(&self, clock: Clock) -> Result<Option<u64>, LabError> {
        let held = || -> Result<Option<u64>, LabError> {
            match self {
                RunningSut::Border(border, nodes) => {
                    let mut held = call_objects(&border.state()?.census);
                    for node in nodes {
                        held += node.state()?.held;
                    }
                    Ok(Some(held))
                }
                RunningSut::Program(border) => border.calls(),
                _ => Ok(None),
            }
        };
        let limit = clock.now() + SETTLE_TIMEOUT;
        loop {
            let Some(held) = held()? else {
                return Ok(None);
            };
            if held == 0 || clock.now() >= limit {
                return Ok(Some(held));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Number of calls per media node; empty without media nodes.
    ///
    /// # Errors
    /// If one has stopped.
    pub fn node_calls(&self) -> Result<Vec<u64>, LabError> {
        match self {
            RunningSut::Border(_, nodes) => nodes
                .iter()
                .map(|node| node.state().map(|state| state.begun))
                .collect(),
            _ => Ok(Vec::new()),
        }
    }

    /// Media packets that its kernel relay forwarded in ended calls; `None` without one.
    ///
    /// # Errors
    /// If it has stopped.
    pub fn kernel_relayed(&self) -> Result<Option<u64>, LabError> {
        match self {
            RunningSut::Border(border, _) => Ok(border.state()?.kernel_relayed),
            RunningSut::None
            | RunningSut::Foreign { .. }
            | RunningSut::Subject(_)
            | RunningSut::Agent(_)
            | RunningSut::Program(_) => Ok(None),
        }
    }

    /// Counts of the gateway that is part of it; `None` without one, and of one that has ended by itself.
    ///
    /// # Errors
    /// If it does not answer.
    pub(crate) fn gateway(&self) -> Result<Option<BorderGatewayCount>, LabError> {
        match self {
            RunningSut::Program(border) => border.gateway(),
            _ => Ok(None),
        }
    }

    /// Stops it; returns remarks about it.
    ///
    /// # Errors
    /// If it failed.
    pub fn finish(self) -> Result<Vec<String>, LabError> {
        match self {
            RunningSut::None | RunningSut::Foreign { .. } => Ok(Vec::new()),
            RunningSut::Subject(subject) => {
                drop(subject);
                Ok(Vec::new())
            }
            RunningSut::Agent(subject) => subject.stop().map(|()| Vec::new()),
            // The border first: it deletes its sessions at the nodes.
            RunningSut::Border(border, _nodes) => border.finish(),
            RunningSut::Program(border) => border.finish(),
        }
    }
}

/// Checks that an experiment sets nothing that only a border on a thread has.
fn check_program(sut: &Sut) -> Result<(), LabError> {
    let set = [
        ("sut.cpu", sut.cpu.is_some()),
        ("sut.cpu_percent", sut.cpu_percent > 0.0),
        ("sut.realtime_priority", sut.realtime_priority > 0),
        (
            "sut.media = \"kernel_relay\"",
            sut.media == SutMedia::KernelRelay,
        ),
        ("sut.media_nodes", sut.media_nodes > 0),
    ];
    match set.iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((name, _)) => Err(LabError::bad_input(format!(
            "{name} needs a border on a thread of the test lab, and [protection] has it as a program of its own: set protection.gateway = \"lab\", or leave {name} out"
        ))),
    }
}

/// Starts the media nodes of an experiment, and enters their addresses in the border's layout.
fn start_nodes(
    experiment: &Experiment,
    layout: &mut Layout,
    entropy: &mut Entropy,
    clock: Clock,
) -> Result<Vec<NodeThread>, LabError> {
    let count = u64::from(experiment.sut.media_nodes);
    if count == 0 {
        return Ok(Vec::new());
    }
    // A node may get all calls, and so needs ports for all of them.
    let addresses = [layout.access().ip(), layout.core().ip()];
    let calls = most_calls(experiment) * count * 2;
    let spans = PortSpan::free_for_calls(calls, addresses, &mut system_entropy()?)?;
    let mut nodes = Vec::new();
    for number in 0..count {
        let control = layout::free_control(Ipv4Addr::LOCALHOST.into())?;
        let sides = [0, 1].map(|side: usize| (addresses[side], spans[side].part(number, count)));
        nodes.push(NodeThread::start(control, sides, entropy.fork(), clock)?);
        layout.nodes.push(control);
    }
    layout.nodes_drained = usize::from(experiment.sut.media_nodes_drained);
    Ok(nodes)
}

/// Cost of a datagram, in or out, on a whole core in simulation: a call of seven messages, six in and seven out, costs
/// 52 us.
const DATAGRAM_COST: Duration = Duration::from_micros(4);

/// The loopback addresses of a trial on this machine: towards callers, and towards the called side.
pub(crate) fn loopback(experiment: &Experiment) -> [IpAddr; 2] {
    if experiment.protection.is_some() {
        // Without a border the called side is at the other end of the protection.
        let far = match experiment.sut.direct {
            true => PROTECTED_BORDER,
            false => Ipv4Addr::LOCALHOST.into(),
        };
        return [PROTECTED_BORDER, far];
    }
    experiment.sut.ip.sides().map(|six| match six {
        true => Ipv6Addr::LOCALHOST.into(),
        false => Ipv4Addr::LOCALHOST.into(),
    })
}

/// Number of objects that belong to calls: zero after the last one has ended.
pub fn call_objects(census: &BorderCensus) -> u64 {
    (census.calls + census.sip.legs + census.ports + census.sessions + census.sockets_busy) as u64
        + census.trunk_calls
}

/// Entropy of the operating system, for values that must differ between runs of equal seeds (port numbers).
pub(crate) fn system_entropy() -> Result<Entropy, LabError> {
    net::entropy().map_err(|error| {
        LabError::cannot_run(format!("getrandom: {error}"), "run it outside the sandbox")
    })
}

/// Most concurrent calls, for the number of ports.
fn most_calls(experiment: &Experiment) -> u64 {
    if let Some(plan) = &experiment.conference {
        return (plan.count + 1) * plan.participants;
    }
    let Some(callers) = &experiment.callers else {
        return 0;
    };
    let by_rate = callers.rate.max(callers.ramp_to) * (callers.hold_seconds + 10.0) * 2.0;
    let bounds = [callers.limit, callers.total]
        .into_iter()
        .filter(|bound| *bound > 0);
    bounds.fold(by_rate as u64 + 50, u64::min)
}

impl Layout {
    /// Adds the requirements of an experiment's workloads: a trunk to the called side, and users that register.
    pub(crate) fn for_experiment(mut self, experiment: &Experiment, far: &[SocketAddr]) -> Layout {
        self.bypass = experiment.sut.media == SutMedia::Bypass;
        self.kernel_relay = experiment.sut.media == SutMedia::KernelRelay;
        self.header_rules = experiment.sut.header_rules > 0;
        self.conference = experiment.conference.clone();
        self.srtp = experiment
            .callers
            .as_ref()
            .is_some_and(|callers| callers.srtp);
        let transcodes = experiment.transcodes_to();
        self.transcode = transcodes.map(|codec| codec.format(false).kind());
        self.call_limit = experiment.sut.call_limit_per_second;
        self.memory_mib = experiment.sut.memory_mib;
        self.refresh_interval_s = experiment.sut.refresh_interval_seconds;
        let callers = experiment.callers.as_ref().map(|plan| plan.connections);
        let users = experiment
            .registrations
            .as_ref()
            .map(|plan| plan.connections_within(u64::MAX, 1));
        // Some reserve for connections that are reopened while the old one is still closing.
        let most = callers.max(users).unwrap_or(0);
        self.connections = if most > 900 {
            most + most / 10 + 100
        } else {
            0
        };
        let callers = experiment.callers.as_ref();
        let per_s = callers.map_or(0.0, |callers| callers.rate.max(callers.ramp_to));
        self.load = (most_calls(experiment), per_s);
        self.trunk = far.to_vec();
        if let Some(callees) = &experiment.callees {
            self.trunk_transport = callees.transport.into();
        }
        let mut logins: Vec<(String, String)> = Vec::new();
        let registrations = experiment.registrations.as_ref();
        self.registrar_behind =
            registrations.is_some_and(|plan| plan.registrar == RegistrarLocation::Core);
        if let Some(registrations) =
            registrations.filter(|plan| plan.registrar == RegistrarLocation::Border)
        {
            logins.extend((0..registrations.users).map(|number| {
                let user = fill(&registrations.user, number, "");
                let password = fill(&registrations.password, number, &user);
                (user, password)
            }));
        }
        if let Some(callers) = experiment
            .callers
            .as_ref()
            .filter(|callers| !callers.user.is_empty())
        {
            let users = if callers.users > 0 {
                callers.users
            } else {
                callers.total
            };
            logins.extend((0..users).map(|number| {
                let user = fill(&callers.user, number, "");
                let password = fill(&callers.password, number, &user);
                (user, password)
            }));
        }
        logins.sort();
        logins.dedup();
        self.users = logins;
        self
    }
}

fn no_process(process: u32, error: &std::io::Error) -> LabError {
    LabError::bad_input(format!("sut.process_id: {process}: {error}"))
}

/// Figures of the process of a SUT that runs already.
fn foreign_figures(process: u32, with_memory: bool) -> Result<Family, LabError> {
    subject::family(process, with_memory).map_err(|error| no_process(process, &error))
}

/// A SUT in virtual time.
#[derive(Debug)]
pub struct Simulated {
    border: Option<HostId>,
    workers: usize,
    address: Option<SocketAddr>,
}

/// Host number of the border in both simulated networks.
const BORDER: u8 = 254;

/// Addresses of host `number` in the two networks of a simulation: callers' side, and called side.
pub(crate) fn simulated_addresses(experiment: &Experiment, number: u8) -> [IpAddr; 2] {
    let [near, far] = experiment.sut.ip.sides();
    let address = |six: bool, network: u8| match six {
        true => Ipv6Addr::from([
            0x2001,
            0xdb8,
            0,
            u16::from(network),
            0,
            0,
            0,
            u16::from(number),
        ])
        .into(),
        false => Ipv4Addr::new(10, 0, network, number).into(),
    };
    [address(near, 1), address(far, 2)]
}

impl Simulated {
    /// Adds the SUT of `experiment` to the world; of several, each has its own `instance` number.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn add(
        world: &mut World,
        experiment: &Experiment,
        instance: u8,
        far: Option<SocketAddr>,
    ) -> Result<Simulated, LabError> {
        if experiment.sut.media_nodes > 0 {
            return Err(LabError::bad_input(
                "sut.media_nodes: media nodes run on sockets, not in virtual time",
            ));
        }
        if experiment.sut.media == SutMedia::KernelRelay {
            return Err(LabError::bad_input(
                "sut.media = \"kernel_relay\": the kernel relay exists on sockets only, not in virtual time",
            ));
        }
        if experiment.sut.direct {
            return Ok(Simulated {
                border: None,
                workers: 0,
                address: None,
            });
        }
        let addresses = simulated_addresses(experiment, BORDER - instance);
        let [access, core] = addresses.map(|ip| SocketAddr::new(ip, 5060));
        let layout = Layout::new(
            access,
            core,
            [PortSpan::new(20_000, 10_000), PortSpan::new(40_000, 10_000)],
        )
        .for_experiment(experiment, far.as_slice());
        let config = layout.config()?;
        let mut entropy = world.entropy();
        let workers = experiment.sut.workers.max(1);
        let mut keys: Vec<HashKey> = (0..workers).map(|_| HashKey::new(&mut entropy)).collect();
        let borders = Border::worker_pool(config, workers, entropy);
        let mut members: Vec<(Border, Forwarder)> = borders
            .into_iter()
            .zip(keys.drain(..))
            .map(|(border, key)| (border, Forwarder::new(ForwarderLimits::default(), key)))
            .collect();
        let name = match instance {
            0 => "border".to_owned(),
            instance => format!("border {instance}"),
        };
        let host = match members.pop() {
            Some((border, forwarder)) if members.is_empty() => {
                world.add_control(&name, &addresses, border, forwarder)
            }
            last => {
                members.extend(last);
                world.add_workers(&name, &addresses, members)
            }
        };
        if experiment.sut.cpu_percent > 0.0 {
            let slower = 100.0 / experiment.sut.cpu_percent;
            world.set_processing_time(host, DATAGRAM_COST.mul_f64(slower));
        }
        Ok(Simulated {
            border: Some(host),
            workers: usize::from(workers),
            address: Some(layout.access()),
        })
    }

    /// Its host in the world; `None` without a SUT.
    pub fn host(&self) -> Option<HostId> {
        self.border
    }

    /// Its address.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Objects that remain after there was time for everything to end, which are leaks, and the census of each worker.
    pub fn leaks(&self, world: &mut World) -> (u64, Vec<BorderCensus>) {
        let census = self.censuses(world);
        let left = |census: &BorderCensus| {
            let sip =
                census.sip.clients + census.sip.servers + census.sip.index + census.sip.timers;
            call_objects(census) + (sip + census.outside + census.timers) as u64
        };
        (census.iter().map(left).sum(), census)
    }

    /// The census of each worker, including transactions and timers, because there is time to wait for their end.
    pub fn censuses(&self, world: &mut World) -> Vec<BorderCensus> {
        let Some(host) = self.border else {
            return Vec::new();
        };
        let census = |border: &mut Border, _: &mut Forwarder, _| border.census();
        let each = |worker| match self.workers {
            1 => world.with_control(host, census),
            _ => world.with_worker(host, worker, census),
        };
        (0..self.workers).filter_map(each).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_thread_are_refused_for_a_program() {
        assert!(check_program(&Sut::default()).is_ok());
        let pinned = Sut {
            cpu: Some(1),
            ..Sut::default()
        };
        let error = check_program(&pinned).unwrap_err().to_string();
        assert!(
            error.contains("sut.cpu needs a border on a thread"),
            "{error}"
        );
        assert!(error.contains("protection.gateway = \"lab\""), "{error}");
    }
}
