//! The system under test: a Hornwork border, a foreign system, or none.

mod border_thread;
mod layout;
mod node_thread;

pub use border_thread::{BorderState, BorderThread, CpuLimits};
pub use layout::{Layout, PortSpan};
pub use node_thread::{NodeState, NodeThread};

use crate::error::LabError;
use crate::experiment::{Experiment, RegistrarLocation, SutMedia, TransportName, fill};
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
    /// A Hornwork border on a thread of this process, with its media nodes on further threads.
    Border(BorderThread, Vec<NodeThread>),
}

/// Clock ticks per second in /proc (USER_HZ, the same on every supported Linux).
const TICKS_PER_S: f64 = 100.0;
/// Longest wait for the border to release the resources of the last call.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);

impl RunningSut {
    /// Starts, or finds, the SUT of `experiment`; its calls go to `far`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(
        experiment: &Experiment,
        far: &[SocketAddr],
        credentials: Option<&TrialCredentials>,
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
        if experiment.sut.workers > 1 {
            return Err(LabError::bad_input(
                "sut.workers: several workers need virtual time (--simulate), or a border that runs as a process of its own (sut.address)",
            ));
        }
        let addresses = loopback(experiment);
        let calls = most_calls(experiment);
        let spans = PortSpan::free_for_calls(calls, addresses, &mut system_entropy()?)?;
        RunningSut::border(experiment, far, credentials, spans, entropy, clock)
    }

    /// Starts `count` SUTs of `experiment` with conferences and no called side; a foreign one counts as one.
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn instances(
        experiment: &Experiment,
        count: u64,
        entropy: &mut Entropy,
        clock: Clock,
    ) -> Result<Vec<RunningSut>, LabError> {
        if experiment.sut.address.is_some() {
            return Ok(vec![RunningSut::start(
                experiment,
                &[],
                None,
                entropy.fork(),
                clock,
            )?]);
        }
        let addresses = loopback(experiment);
        // Each opens its ports on demand; disjoint spans avoid collisions.
        let calls = most_calls(experiment) * count;
        let spans = PortSpan::free_for_calls(calls, addresses, &mut system_entropy()?)?;
        let one = |number: u64| {
            let spans = spans.map(|span| span.part(number, count));
            RunningSut::border(experiment, &[], None, spans, entropy.fork(), clock)
        };
        (0..count).map(one).collect()
    }

    /// Starts a border with media ports in these spans.
    fn border(
        experiment: &Experiment,
        far: &[SocketAddr],
        credentials: Option<&TrialCredentials>,
        spans: [PortSpan; 2],
        entropy: Entropy,
        clock: Clock,
    ) -> Result<RunningSut, LabError> {
        let addresses = loopback(experiment);
        let mut layout = Layout::on_free_ports(addresses, spans)?.for_experiment(experiment, far);
        let mut entropy = entropy;
        let nodes = start_nodes(experiment, &mut layout, &mut entropy, clock)?;
        let own = |name: &TransportName| name.is_secure() || name.is_websocket();
        let access = experiment.transports().find(own).map(Transport::from);
        let core = Some(layout.trunk_transport).filter(|core| *core == Transport::Tls);
        layout = layout.with_streams([access, core], credentials.cloned())?;
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
            RunningSut::Border(border, _) => Some(border.address()),
        }
    }

    /// Its address for TLS or WebSocket; `None` without one.
    pub fn stream_address(&self) -> Option<SocketAddr> {
        match self {
            RunningSut::None => None,
            RunningSut::Foreign { address, .. } => Some(*address),
            RunningSut::Border(border, _) => border.stream_address(),
        }
    }

    /// Its CPU time so far, seconds; `None` if unknown.
    ///
    /// # Errors
    /// If the given process does not exist, or the border has stopped.
    pub fn cpu_seconds(&self) -> Result<Option<f64>, LabError> {
        match self {
            RunningSut::None => Ok(None),
            RunningSut::Foreign { process, .. } => process.map(process_cpu).transpose(),
            RunningSut::Border(border, nodes) => {
                let mut seconds = border.state()?.cpu_seconds;
                for node in nodes {
                    seconds += node.state()?.cpu_seconds;
                }
                Ok(Some(seconds))
            }
        }
    }

    /// Its resident memory, bytes; `None` if it shares this process or runs on another machine.
    ///
    /// # Errors
    /// If the given process does not exist.
    pub fn resident_bytes(&self) -> Result<Option<u64>, LabError> {
        let RunningSut::Foreign { process, .. } = self else {
            return Ok(None);
        };
        let pages = process.map(|process| {
            let stat = stat(process).map_err(|error| no_process(process, &error))?;
            Ok(stat.pages * net::page_bytes())
        });
        pages.transpose()
    }

    /// Calls, legs, ports and sessions that remain after all calls have ended; `None` if it cannot be queried.
    ///
    /// # Errors
    /// If it has stopped.
    pub fn remaining_objects(&self, clock: Clock) -> Result<Option<u64>, LabError> {
        let RunningSut::Border(border, nodes) = self else {
            return Ok(None);
        };
        let limit = clock.now() + SETTLE_TIMEOUT;
        loop {
            let mut held = call_objects(&border.state()?.census);
            for node in nodes {
                held += node.state()?.held;
            }
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

    /// Stops it; returns remarks about it.
    ///
    /// # Errors
    /// If it failed.
    pub fn finish(self) -> Result<Vec<String>, LabError> {
        match self {
            RunningSut::None | RunningSut::Foreign { .. } => Ok(Vec::new()),
            // The border first: it deletes its sessions at the nodes.
            RunningSut::Border(border, _nodes) => border.finish(),
        }
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
    let address = IpAddr::from(Ipv4Addr::LOCALHOST);
    let calls = most_calls(experiment) * count * 2;
    let [span, _] = PortSpan::free_for_calls(calls, [address; 2], &mut system_entropy()?)?;
    let mut nodes = Vec::new();
    for number in 0..count {
        let control = layout::free_control(address)?;
        let ports = span.part(number, count);
        nodes.push(NodeThread::start(control, ports, entropy.fork(), clock)?);
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

/// CPU time of a process and its descendants, including those that have ended and were waited for, seconds: the main
/// process of a server with child processes does nearly nothing itself.
fn process_cpu(process: u32) -> Result<f64, LabError> {
    let own = stat(process).map_err(|error| no_process(process, &error))?;
    let mut family = vec![process];
    let mut ticks = own.ticks;
    // A child may have a lower number than its parent, so this repeats until no further child is found.
    let mut others = processes()?;
    loop {
        let before = family.len();
        others.retain(|&(number, ref stat)| {
            let ours = family.contains(&stat.parent);
            if ours {
                family.push(number);
                ticks += stat.ticks;
            }
            !ours
        });
        if family.len() == before {
            return Ok(ticks as f64 / TICKS_PER_S);
        }
    }
}

fn no_process(process: u32, error: &std::io::Error) -> LabError {
    LabError::bad_input(format!("sut.process_id: {process}: {error}"))
}

/// Values of `/proc/N/stat`.
struct Stat {
    parent: u32,
    ticks: u64,
    pages: u64,
}

/// Fields 4, 14 to 17 and 24 of `stat` (proc(5)).
fn stat(process: u32) -> std::io::Result<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name, in parentheses, may contain spaces.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    let parent = number(1).and_then(|parent| u32::try_from(parent).ok());
    let ticks: Option<u64> = (11..15).map(number).sum();
    match (parent, ticks, number(21)) {
        (Some(parent), Some(ticks), Some(pages)) => Ok(Stat {
            parent,
            ticks,
            pages,
        }),
        _ => Err(std::io::Error::other("not in the format of proc(5)")),
    }
}

/// All processes; those that end meanwhile are left out.
fn processes() -> Result<Vec<(u32, Stat)>, LabError> {
    let cannot =
        |error: std::io::Error| LabError::cannot_run(format!("/proc: {error}"), "mount /proc");
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc").map_err(cannot)? {
        let name = entry.map_err(cannot)?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        if let Some((number, stat)) = number.and_then(|n| Some((n, stat(n).ok()?))) {
            all.push((number, stat));
        }
    }
    Ok(all)
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
