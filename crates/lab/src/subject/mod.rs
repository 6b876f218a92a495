//! What is measured: our border, a foreign system, or nothing at all.

mod border_thread;
mod layout;
mod node_thread;

pub use border_thread::{BorderState, BorderThread, Processor};
pub use layout::{Layout, PortSpan};
pub use node_thread::{NodeState, NodeThread};

use crate::error::LabError;
use crate::experiment::{Experiment, RegistrarPlace, SubjectMedia, TransportName, fill};
use crate::tls::Credentials;
use border::border::{Border, BorderCensus};
use engine::{Entropy, HashKey, Transport};
use media::{Forwarder, ForwarderLimits};
use net::Clock;
use sim::{HostId, World};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// A subject on real sockets.
#[derive(Debug)]
pub enum Subject {
    /// Nothing: callers and callees face each other.
    None,
    /// A foreign one.
    Foreign {
        /// Where it listens.
        address: SocketAddr,
        /// Its process on this machine, where its CPU time is to be read.
        process: Option<u32>,
    },
    /// Our border on a thread of this process, with its media nodes on theirs.
    Border(BorderThread, Vec<NodeThread>),
}

/// Clock ticks of /proc in a second (USER_HZ, the same on every Linux that we run on).
const TICKS: f64 = 100.0;
/// Longest wait for the border to let go of what the last call held.
const SETTLE: Duration = Duration::from_secs(3);

impl Subject {
    /// Starts, or finds, the subject of `experiment`; calls are to reach `far`.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(
        experiment: &Experiment,
        far: &[SocketAddr],
        credentials: Option<&Credentials>,
        entropy: Entropy,
        clock: Clock,
    ) -> Result<Subject, LabError> {
        if experiment.subject.none {
            return Ok(Subject::None);
        }
        if let Some(address) = experiment.subject.address {
            return Ok(Subject::Foreign {
                address,
                process: experiment.subject.process,
            });
        }
        if experiment.subject.workers > 1 {
            return Err(LabError::bad(
                "subject.workers: several workers run in virtual time (--simulate), or in a border that runs by itself (subject.address)",
            ));
        }
        let addresses = loopback(experiment);
        let calls = most_calls(experiment);
        let spans = PortSpan::free_for_calls(calls, addresses, &mut system_entropy()?)?;
        Subject::border(experiment, far, credentials, spans, entropy, clock)
    }

    /// Starts so many subjects of `experiment`, which have conferences and calls to nobody else; a foreign one is one.
    ///
    /// # Errors
    /// Where one cannot be started.
    pub fn instances(
        experiment: &Experiment,
        count: u64,
        entropy: &mut Entropy,
        clock: Clock,
    ) -> Result<Vec<Subject>, LabError> {
        if experiment.subject.address.is_some() {
            return Ok(vec![Subject::start(
                experiment,
                &[],
                None,
                entropy.fork(),
                clock,
            )?]);
        }
        let addresses = loopback(experiment);
        // Each opens its ports when calls come: what is divided beforehand is not fought for.
        let calls = most_calls(experiment) * count;
        let spans = PortSpan::free_for_calls(calls, addresses, &mut system_entropy()?)?;
        let one = |number: u64| {
            let spans = spans.map(|span| span.part(number, count));
            Subject::border(experiment, &[], None, spans, entropy.fork(), clock)
        };
        (0..count).map(one).collect()
    }

    /// Starts our border with media ports in these spans.
    fn border(
        experiment: &Experiment,
        far: &[SocketAddr],
        credentials: Option<&Credentials>,
        spans: [PortSpan; 2],
        entropy: Entropy,
        clock: Clock,
    ) -> Result<Subject, LabError> {
        let addresses = loopback(experiment);
        let mut layout = Layout::on_free_ports(addresses, spans)?.for_experiment(experiment, far);
        let mut entropy = entropy;
        let nodes = start_nodes(experiment, &mut layout, &mut entropy, clock)?;
        let own = |name: &TransportName| name.is_secure() || name.is_websocket();
        let outside = experiment.transports().find(own).map(Transport::from);
        let inside = Some(layout.trunk_transport).filter(|inside| *inside == Transport::Tls);
        layout = layout.with_streams([outside, inside], credentials.cloned())?;
        let processor = Processor {
            cpu: experiment.subject.cpu,
            percent: experiment.subject.processor_percent,
            realtime: experiment.subject.realtime,
        };
        let border = BorderThread::start(&layout, entropy, clock, processor)?;
        Ok(Subject::Border(border, nodes))
    }

    /// Where it listens; `None` where there is none.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Subject::None => None,
            Subject::Foreign { address, .. } => Some(*address),
            Subject::Border(border, _) => Some(border.address()),
        }
    }

    /// Where it takes TLS or WebSockets; `None` where there is none, or it does not.
    pub fn stream_address(&self) -> Option<SocketAddr> {
        match self {
            Subject::None => None,
            Subject::Foreign { address, .. } => Some(*address),
            Subject::Border(border, _) => border.stream_address(),
        }
    }

    /// Its CPU time so far, seconds; `None` where it cannot be known.
    ///
    /// # Errors
    /// Where the stated process does not exist, or the border has stopped.
    pub fn cpu_seconds(&self) -> Result<Option<f64>, LabError> {
        match self {
            Subject::None => Ok(None),
            Subject::Foreign { process, .. } => process.map(process_cpu).transpose(),
            Subject::Border(border, nodes) => {
                let mut seconds = border.state()?.cpu_seconds;
                for node in nodes {
                    seconds += node.state()?.cpu_seconds;
                }
                Ok(Some(seconds))
            }
        }
    }

    /// Its resident memory, bytes; `None` where it shares this process, or is not on this machine.
    ///
    /// # Errors
    /// Where the stated process does not exist.
    pub fn resident_bytes(&self) -> Result<Option<u64>, LabError> {
        let Subject::Foreign { process, .. } = self else {
            return Ok(None);
        };
        let pages = process.map(|process| {
            let stat = stat(process).map_err(|error| no_process(process, &error))?;
            Ok(stat.pages * net::page_bytes())
        });
        pages.transpose()
    }

    /// Calls, legs, ports and sessions that it holds once all is over; `None` where it cannot be asked.
    ///
    /// # Errors
    /// Where it has stopped.
    pub fn settled_holdings(&self, clock: Clock) -> Result<Option<u64>, LabError> {
        let Subject::Border(border, nodes) = self else {
            return Ok(None);
        };
        let limit = clock.now() + SETTLE;
        loop {
            let mut held = held(&border.state()?.census);
            for node in nodes {
                held += node.state()?.held;
            }
            if held == 0 || clock.now() >= limit {
                return Ok(Some(held));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Calls that each media node was given; empty where there are none.
    ///
    /// # Errors
    /// Where one has stopped.
    pub fn node_calls(&self) -> Result<Vec<u64>, LabError> {
        match self {
            Subject::Border(_, nodes) => nodes
                .iter()
                .map(|node| node.state().map(|state| state.begun))
                .collect(),
            _ => Ok(Vec::new()),
        }
    }

    /// Ends it; gives remarks about it.
    ///
    /// # Errors
    /// Where it failed meanwhile.
    pub fn finish(self) -> Result<Vec<String>, LabError> {
        match self {
            Subject::None | Subject::Foreign { .. } => Ok(Vec::new()),
            // The border first: what it ends it ends at the nodes.
            Subject::Border(border, _nodes) => border.finish(),
        }
    }
}

/// Starts the media nodes of an experiment, and tells the border's layout where they are.
fn start_nodes(
    experiment: &Experiment,
    layout: &mut Layout,
    entropy: &mut Entropy,
    clock: Clock,
) -> Result<Vec<NodeThread>, LabError> {
    let count = u64::from(experiment.subject.nodes);
    if count == 0 {
        return Ok(Vec::new());
    }
    // A node that the border gives all calls needs ports for all of them.
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
    layout.nodes_drained = usize::from(experiment.subject.nodes_drained);
    Ok(nodes)
}

/// What a datagram, in or out, takes of a whole core in simulation: a seven-message call, six in and seven out, takes 52.
const DATAGRAM: Duration = Duration::from_micros(4);

/// The loopback addresses of a trial on this machine: towards callers, and towards the called side.
pub(crate) fn loopback(experiment: &Experiment) -> [IpAddr; 2] {
    experiment.subject.ip.sides().map(|six| match six {
        true => Ipv6Addr::LOCALHOST.into(),
        false => Ipv4Addr::LOCALHOST.into(),
    })
}

/// What belongs to calls: zero when the last one is over.
pub fn held(census: &BorderCensus) -> u64 {
    (census.calls + census.sip.legs + census.ports + census.sessions + census.sockets_busy) as u64
        + census.trunk_calls
}

/// Randomness of the operating system, for what must differ between runs of equal seeds (port numbers).
pub(crate) fn system_entropy() -> Result<Entropy, LabError> {
    net::entropy().map_err(|error| {
        LabError::cannot(format!("getrandom: {error}"), "run outside of the sandbox")
    })
}

/// Calls that may be open at a time, for the number of ports.
fn most_calls(experiment: &Experiment) -> u64 {
    if let Some(plan) = &experiment.conference {
        return (plan.rooms + 1) * plan.seats;
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
    /// Adds what an experiment's workloads need: a trunk to the called side, users who register.
    pub(crate) fn for_experiment(mut self, experiment: &Experiment, far: &[SocketAddr]) -> Layout {
        self.bypass = experiment.subject.media == SubjectMedia::Bypass;
        self.header_rules = experiment.subject.header_rules > 0;
        self.conference = experiment.conference.clone();
        self.srtp = experiment
            .callers
            .as_ref()
            .is_some_and(|callers| callers.srtp);
        let transcodes = experiment.transcodes_to();
        self.transcode = transcodes.map(|codec| codec.format(false).kind());
        self.call_limit = experiment.subject.call_limit;
        self.memory_mib = experiment.subject.memory_mib;
        let callers = experiment.callers.as_ref().map(|plan| plan.connections);
        let users = experiment
            .registrations
            .as_ref()
            .map(|plan| plan.connections_within(u64::MAX, 1));
        // A few more for what is opened anew while an old one still closes.
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
        self.registrar_behind = registrations.is_some_and(|plan| plan.at == RegistrarPlace::Core);
        if let Some(registrations) = registrations.filter(|plan| plan.at == RegistrarPlace::Border)
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

/// CPU time of a process and of all processes below it, those that have ended and were waited for included, seconds: a
/// server that works in children has done next to nothing itself.
fn process_cpu(process: u32) -> Result<f64, LabError> {
    let own = stat(process).map_err(|error| no_process(process, &error))?;
    let mut family = vec![process];
    let mut ticks = own.ticks;
    // A child may have a number below its parent's: rounds, until nobody is found any more.
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
            return Ok(ticks as f64 / TICKS);
        }
    }
}

fn no_process(process: u32, error: &std::io::Error) -> LabError {
    LabError::bad(format!("subject.process: {process}: {error}"))
}

/// What `/proc/N/stat` tells.
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
        _ => Err(std::io::Error::other("not as proc(5) says")),
    }
}

/// All processes; one that ends while we look is none.
fn processes() -> Result<Vec<(u32, Stat)>, LabError> {
    let cannot = |error: std::io::Error| LabError::cannot(format!("/proc: {error}"), "mount /proc");
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

/// A subject in virtual time.
#[derive(Debug)]
pub struct Simulated {
    border: Option<HostId>,
    workers: usize,
    address: Option<SocketAddr>,
}

/// Number of the border in both of its simulated networks.
const BORDER: u8 = 254;

/// Addresses of host `number` in the two networks of a simulation: that of the callers, and that of the called side.
pub(crate) fn simulated_addresses(experiment: &Experiment, number: u8) -> [IpAddr; 2] {
    let [near, far] = experiment.subject.ip.sides();
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
    /// Adds the subject of `experiment` to the world; of several, each is an `instance` of its own.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn add(
        world: &mut World,
        experiment: &Experiment,
        instance: u8,
        far: Option<SocketAddr>,
    ) -> Result<Simulated, LabError> {
        if experiment.subject.nodes > 0 {
            return Err(LabError::bad(
                "subject.nodes: media nodes run on sockets, not in virtual time",
            ));
        }
        if experiment.subject.none {
            return Ok(Simulated {
                border: None,
                workers: 0,
                address: None,
            });
        }
        let addresses = simulated_addresses(experiment, BORDER - instance);
        let [outside, inside] = addresses.map(|ip| SocketAddr::new(ip, 5060));
        let layout = Layout::new(
            outside,
            inside,
            [PortSpan::new(20_000, 10_000), PortSpan::new(40_000, 10_000)],
        )
        .for_experiment(experiment, far.as_slice());
        let config = layout.config()?;
        let mut entropy = world.entropy();
        let workers = experiment.subject.workers.max(1);
        let mut keys: Vec<HashKey> = (0..workers).map(|_| HashKey::new(&mut entropy)).collect();
        let borders = Border::crew(config, workers, entropy);
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
                world.add_crew(&name, &addresses, members)
            }
        };
        if experiment.subject.processor_percent > 0.0 {
            let slower = 100.0 / experiment.subject.processor_percent;
            world.set_effort(host, DATAGRAM.mul_f64(slower));
        }
        Ok(Simulated {
            border: Some(host),
            workers: usize::from(workers),
            address: Some(layout.outside()),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// What is left of it once there was time for everything to end, which is a leak, and what each worker says of it.
    pub fn left(&self, world: &mut World) -> (u64, Vec<BorderCensus>) {
        let census = self.censuses(world);
        let left = |census: &BorderCensus| {
            let sip =
                census.sip.clients + census.sip.servers + census.sip.index + census.sip.timers;
            held(census) + (sip + census.outside + census.timers) as u64
        };
        (census.iter().map(left).sum(), census)
    }

    /// What each of its workers still holds; also transactions and timers, because there is time to wait for their end.
    pub fn censuses(&self, world: &mut World) -> Vec<BorderCensus> {
        let Some(host) = self.border else {
            return Vec::new();
        };
        let census = |border: &mut Border, _: &mut Forwarder, _| border.census();
        let each = |worker| match self.workers {
            1 => world.with_control(host, census),
            _ => world.with_member(host, worker, census),
        };
        (0..self.workers).filter_map(each).collect()
    }
}
