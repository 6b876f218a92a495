//! `lab plan`: nodes, cores, memory and bandwidth for a number of subscribers, from traffic and measured costs.
//!
//! Every figure is a step with its formula. An interval has the costs' lower ends together, or their upper ends: it is
//! wider than one of independent errors. A CPU time is taken at the load of the threads of the plan.

mod costs;
mod curve;
mod erlang;
mod estimate;
mod limits;
mod loss;
mod nodes;
mod real;
mod request;
mod text;

pub use costs::{Cost, Costs, FILE_NAME, FORMAT, KNOWN};
pub use curve::CostCurve;
pub use erlang::{MOST_ERLANGS, erlang_b, erlang_c, lines_for, mean_wait};
pub use estimate::{Estimate, IntervalEnd};
pub use limits::{NodeRate, RaisedLimit};
pub use loss::{LossCheck, simulate_loss};
pub use nodes::{NodeCheck, NodePhase, PeakLoad};
pub use real::{REAL_CALLS, RealCheck, RealOptions, RealRun, check_real, check_unused};
pub use request::{Codec, MediaPath, PlanRequest, Protection, Redundancy, Signalling};

use crate::decimal::plain;
use crate::error::LabError;
use curve::busy_share;
use nodes::{UnitLoads, simulate_nodes};
use serde::Serialize;
use serde_json::{Value, json};

/// One step of the plan: a figure, and how it was computed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Short name in formulas.
    pub symbol: String,
    /// Description.
    pub what: String,
    /// Formula with symbols and numbers; the source of a measured cost.
    pub formula: String,
    /// The figure.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// Its unit; empty for a number.
    pub unit: String,
}

/// A computed plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The request.
    pub request: PlanRequest,
    /// Machine and version of the costs.
    pub measured_on: String,
    /// The steps, in order of computation; the last four are the results.
    pub steps: Vec<Step>,
    /// Nodes, with redundancy.
    pub nodes: Estimate,
    /// Cores, with headroom and redundancy.
    pub cores: Estimate,
    /// Memory, GiB, with redundancy.
    pub memory_gib: Estimate,
    /// Traffic in each direction at the interfaces of all nodes together, Mbit/s, with Ethernet framing.
    pub bandwidth_mbit: Estimate,
    /// Limits that have to be raised in each node.
    pub limits: Vec<RaisedLimit>,
    /// Rates of a node, with the limit that binds.
    pub node_rates: Vec<NodeRate>,
    /// A simulation of the calls, if it was requested.
    pub check: Option<LossCheck>,
    /// A simulation of the nodes with a failure, if it was requested.
    pub node_check: Option<NodeCheck>,
    /// A real run of a few such calls, if it was requested.
    pub real_check: Option<RealCheck>,
}

/// Bytes of an Ethernet frame on the wire beside its payload: preamble, header, check sequence, gap.
const ETHERNET: f64 = 38.0;
/// RTP and UDP headers.
const RTP_UDP: f64 = 20.0;
/// Authentication tag of SRTP (AES_CM_128_HMAC_SHA1_80).
const SRTP_TAG: f64 = 10.0;
/// Media ports of one address: those above 1023, two for a side of a call (RTP and RTCP).
const CALLS_OF_AN_ADDRESS: f64 = 32_256.0;
/// Calls of one address with the default ports of a border, 20000-26999.
const CALLS_OF_DEFAULT_PORTS: f64 = 3_500.0;
/// Messages of a call that the planner knows: INVITE, 100, 180, 200, ACK, BYE, 200.
const MESSAGES_OF_A_CALL: f64 = 7.0;
const SECONDS_OF_AN_HOUR: f64 = 3_600.0;
const GIB: f64 = (1u64 << 30) as f64;

/// Length of an ESP packet in tunnel mode over the same IP version (AES-CBC with HMAC-SHA1-96, RFC 3602 and RFC 2404).
fn esp_bytes(inner: f64, ip: f64) -> f64 {
    let padded = ((inner + 2.0) / 16.0).ceil() * 16.0;
    ip + 8.0 + 16.0 + padded + 12.0
}

const fn ip_header(request: &PlanRequest) -> f64 {
    if request.ipv6 { 40.0 } else { 20.0 }
}

/// Payload of an RTP packet.
fn payload_bytes(request: &PlanRequest) -> Estimate {
    let kbit = request.codec.kbit();
    kbit.times(request.packet_ms / 8.0).map(f64::ceil)
}

/// IP packet with media on the access side.
fn access_packet_bytes(request: &PlanRequest) -> Estimate {
    let ip = ip_header(request);
    let plain = payload_bytes(request).map(|bytes| bytes + RTP_UDP + ip);
    match request.protection.media() {
        "srtp" => plain.map(|bytes| bytes + SRTP_TAG),
        "esp" => plain.map(|bytes| esp_bytes(bytes, ip)),
        _ => plain,
    }
}

/// Steps, collected.
#[derive(Default)]
struct Steps {
    list: Vec<Step>,
    /// Loads of one call and of all registrations, for the simulation.
    loads: UnitLoads,
    /// Limits whose defaults do not suffice for a node.
    limits: Vec<RaisedLimit>,
    /// Rates of a node.
    node_rates: Vec<NodeRate>,
    /// Busy share of a thread, 0 to 1.
    busy_share: f64,
}

impl Steps {
    fn add(
        &mut self,
        symbol: &str,
        what: &str,
        unit: &str,
        (formula, estimate): (String, Estimate),
    ) -> Estimate {
        self.list.push(Step {
            symbol: symbol.to_owned(),
            what: what.to_owned(),
            formula,
            estimate,
            unit: unit.to_owned(),
        });
        estimate
    }

    /// A measured CPU time on a thread that is busy to this share.
    fn cpu_time(&mut self, demand: &Demand, busy: f64) -> Estimate {
        let (id, curve) = (&demand.id, &demand.cost);
        let formula = format!(
            "cost {id} on a thread that is {} % busy: {}",
            plain(busy * 100.0),
            curve.source(busy)
        );
        let cost = curve.at_busy(busy);
        self.add(demand.symbol, title_of(id), "us", (formula, cost))
    }

    /// A measured cost.
    fn cost(&mut self, symbol: &str, costs: &Costs, id: &str) -> Result<Estimate, LabError> {
        let cost = costs.get(id)?;
        let origin = (format!("cost {id}: {}", cost.origin), cost.estimate());
        Ok(self.add(symbol, title_of(id), &cost.unit, origin))
    }
}

fn title_of(id: &str) -> &'static str {
    match id.split('.').next() {
        Some("call") => "CPU time of a call",
        Some("registration") => "CPU time of a registration with digest",
        Some("refresh") => "CPU time of a re-registration from the cache",
        Some("packet") => "CPU time of a relayed packet",
        Some("bytes") => "signalling sent for each, and as much received",
        _ => "memory",
    }
}

/// Load of the busy hour.
struct Traffic {
    calls_per_s: f64,
    lines: Estimate,
    registrations_per_s: f64,
    packets_per_s: Estimate,
}

/// Computes the plan.
///
/// # Errors
/// A request out of range (exit code 2), or a cost that was not measured (exit code 3).
pub fn plan(request: &PlanRequest, costs: &Costs) -> Result<Plan, LabError> {
    request.check()?;
    let mut steps = Steps::default();
    let traffic = traffic(request, &mut steps);
    let busy = cpu(request, costs, &traffic, &mut steps)?;
    let memory = memory(request, costs, &traffic, &mut steps)?;
    let bandwidth = bandwidth(request, costs, &traffic, &mut steps)?;
    let by_memory = nodes_by_memory(request, memory)?;
    let sizes = sizes(request, &traffic, [busy, by_memory, bandwidth], &mut steps);
    let (nodes, cores, memory_bytes) = (sizes[0], sizes[1], memory.0.plus(memory.1.by(sizes[0])));
    let copies = match request.redundancy {
        Redundancy::Pair => memory.0,
        Redundancy::None | Redundancy::Spare => Estimate::exact(0.0),
    };
    let memory_gib = steps.add(
        "memory",
        "memory, with the copies of standby nodes",
        "GiB",
        (
            match request.redundancy {
                Redundancy::Pair => "(2 x m_state + nodes x m_process) / 2^30",
                _ => "(m_state + nodes x m_process) / 2^30",
            }
            .to_owned(),
            memory_bytes.plus(copies).times(1.0 / GIB),
        ),
    );
    let check = request.simulate_seconds.map(|seconds| {
        simulate_loss(
            traffic.lines.value as u64,
            traffic.calls_per_s,
            request.hold_s,
            (seconds, request.seed),
        )
    });
    let node_check = request
        .simulate_seconds
        .map(|seconds| simulate_nodes(request, &steps.loads, nodes.value as u64, seconds));
    Ok(Plan {
        request: request.clone(),
        measured_on: format!("{}, version {}", costs.machine, costs.version),
        steps: steps.list,
        nodes,
        cores,
        memory_gib,
        bandwidth_mbit: bandwidth,
        limits: steps.limits,
        node_rates: steps.node_rates,
        check,
        node_check,
        real_check: None,
    })
}

fn traffic(request: &PlanRequest, steps: &mut Steps) -> Traffic {
    let subscribers = request.subscribers as f64;
    let calls_per_s = subscribers * request.busy_hour_calls / SECONDS_OF_AN_HOUR;
    steps.add(
        "rate",
        "calls in the busy hour",
        "/s",
        (
            format!(
                "subscribers x calls / 3600 = {} x {} / 3600",
                request.subscribers,
                plain(request.busy_hour_calls)
            ),
            Estimate::exact(calls_per_s),
        ),
    );
    let erlangs = calls_per_s * request.hold_s;
    steps.add(
        "A",
        "offered traffic: mean number of standing calls",
        "erlangs",
        (
            format!(
                "rate x hold = {} x {}",
                plain(calls_per_s),
                plain(request.hold_s)
            ),
            Estimate::exact(erlangs),
        ),
    );
    let lines = lines_for(erlangs, request.blocking) as f64;
    let spread = 1.96 * erlangs.sqrt();
    let lines = steps.add(
        "N",
        "standing calls that are provided for",
        "",
        (
            format!(
                "fewest N with Erlang B(N, A) <= {}; low: A - 1.96 sqrt(A), which the number of calls exceeds in 97.5 % of the time",
                plain_small(request.blocking)
            ),
            Estimate {
                value: lines,
                low: (erlangs - spread).clamp(0.0, lines),
                high: lines,
            },
        ),
    );
    let registrations_per_s = subscribers / request.registration_interval_s;
    steps.add(
        "R",
        "registrations and refreshes",
        "/s",
        (
            format!(
                "subscribers / interval = {} / {}",
                request.subscribers,
                plain(request.registration_interval_s)
            ),
            Estimate::exact(registrations_per_s),
        ),
    );
    let packets_per_s = match request.path {
        MediaPath::Bypass => {
            let nothing = "media bypass: no packet passes the nodes".to_owned();
            steps.add(
                "P",
                "relayed packets",
                "/s",
                (nothing, Estimate::exact(0.0)),
            )
        }
        MediaPath::Anchored => {
            let each = packets_of_a_call(request);
            let formula = format!(
                "N x 2 streams x 1000 / {} ms x {} % activity = N x {}",
                plain(request.packet_ms),
                plain(request.activity_percent),
                plain(each)
            );
            steps.add("P", "relayed packets", "/s", (formula, lines.times(each)))
        }
    };
    Traffic {
        calls_per_s,
        lines,
        registrations_per_s,
        packets_per_s,
    }
}

/// Relayed packets of a standing call per second.
fn packets_of_a_call(request: &PlanRequest) -> f64 {
    2.0 * 1_000.0 / request.packet_ms * request.activity_percent / 100.0
}

/// A load of the threads.
struct Demand {
    /// Symbol of its cost.
    symbol: &'static str,
    /// Identifier of its cost.
    id: String,
    /// Calls, registrations or packets per second.
    rate: Estimate,
    /// Its CPU time.
    cost: CostCurve,
}

/// All loads of the threads: calls, registrations, refreshes, packets, as far as there are some.
fn demands(
    request: &PlanRequest,
    costs: &Costs,
    traffic: &Traffic,
) -> Result<Vec<Demand>, LabError> {
    let signalling = request.protection.signalling().name();
    let full = 1.0 - request.cached_percent / 100.0;
    let exact = Estimate::exact;
    let mut all = vec![(
        "c_call",
        format!("call.{}.{signalling}", request.path.name()),
        exact(traffic.calls_per_s),
    )];
    if full > 0.0 {
        let rate = exact(traffic.registrations_per_s * full);
        all.push(("c_reg", format!("registration.{signalling}"), rate));
    }
    if full < 1.0 {
        let rate = exact(traffic.registrations_per_s * (1.0 - full));
        all.push(("c_refresh", format!("refresh.{signalling}"), rate));
    }
    if request.path == MediaPath::Anchored {
        let id = format!("packet.{}", request.protection.media());
        all.push(("c_packet", id, traffic.packets_per_s));
    }
    let with_cost =
        |(symbol, id, rate): (&'static str, String, Estimate)| -> Result<Demand, LabError> {
            Ok(Demand {
                symbol,
                cost: costs.curve(&id)?,
                id,
                rate,
            })
        };
    all.into_iter().map(with_cost).collect()
}

/// Busy cores, without headroom. The threads of a plan are as busy as the headroom permits, or there is one that
/// carries all: the costs are taken at this share.
fn cpu(
    request: &PlanRequest,
    costs: &Costs,
    traffic: &Traffic,
    steps: &mut Steps,
) -> Result<Estimate, LabError> {
    let demands = demands(request, costs, traffic)?;
    let most = 1.0 - request.headroom_percent / 100.0;
    let one = Estimate::each(|end| {
        let loads = demands.iter().map(|of| (of.rate.at(end), &of.cost));
        busy_share(&loads.collect::<Vec<_>>(), end)
    });
    let busy = one.value.min(most);
    steps.busy_share = busy;
    let formula = match one.value < most {
        true => format!(
            "one thread carries all: less than 1 - headroom = {} %",
            plain(most * 100.0)
        ),
        false => "1 - headroom: several threads, each as busy as that".to_owned(),
    };
    steps.add(
        "busy",
        "busy share of a thread, for which the CPU times are taken",
        "%",
        (formula, Estimate::exact(busy * 100.0)),
    );
    let mut signalling = Estimate::default();
    let mut media = None;
    let mut registrations = Estimate::default();
    for demand in &demands {
        let cost = steps.cpu_time(demand, busy);
        let cores = demand.rate.by(cost).times(1e-6);
        match demand.symbol {
            "c_packet" => {
                steps.loads.call_cores = cost.times(packets_of_a_call(request) * 1e-6);
                media = Some(cores);
                continue;
            }
            "c_call" => steps.loads.call_s = cost.times(1e-6),
            _ => registrations = registrations.plus(cores),
        }
        signalling = signalling.plus(cores);
    }
    steps.loads.registration_cores = registrations;
    steps.add(
        "u_sig",
        "cores busy with signalling",
        "cores",
        (
            format!(
                "(rate x c_call + R x ({} % c_reg + {} % c_refresh)) / 10^6",
                plain(100.0 - request.cached_percent),
                plain(request.cached_percent)
            ),
            signalling,
        ),
    );
    if let Some(media) = media {
        let formula = "P x c_packet / 10^6".to_owned();
        steps.add(
            "u_media",
            "cores busy with media",
            "cores",
            (formula, media),
        );
    }
    // An end of the costs has threads of its own: they may be less busy than those of the values.
    let used = Estimate::each(|end| match one.at(end) < most {
        true => one.at(end),
        false => {
            let each = demands.iter();
            each.map(|of| of.rate.at(end) * of.cost.end_at(end, most) * 1e-6)
                .sum()
        }
    });
    Ok(steps.add(
        "u",
        "busy cores; the cost of one thread is taken for every core",
        "cores",
        (
            "u_sig + u_media; each end with the busy share that its costs give".to_owned(),
            used,
        ),
    ))
}

/// Memory for calls and registrations, and for each process, bytes.
fn memory(
    request: &PlanRequest,
    costs: &Costs,
    traffic: &Traffic,
    steps: &mut Steps,
) -> Result<(Estimate, Estimate), LabError> {
    let id = format!("memory.call.{}", request.path.name());
    let mut call = steps.cost("m_call", costs, &id)?;
    if request.protection.media() == "srtp" && request.path == MediaPath::Anchored {
        call = call.plus(steps.cost("m_srtp", costs, "memory.srtp")?);
    }
    let mut registration = steps.cost("m_reg", costs, "memory.registration")?;
    // Each registered phone keeps its connection, in calls and between them.
    if request.protection.signalling() == Signalling::Tls {
        registration = registration.plus(steps.cost("m_tls", costs, "memory.tls_side")?);
    }
    steps.loads.call_bytes = call;
    steps.loads.registration_bytes = registration.times(request.subscribers as f64);
    let state = steps.add(
        "m_state",
        "memory for calls, registrations and their connections",
        "bytes",
        (
            "N x (m_call + m_srtp) + subscribers x (m_reg + m_tls)".to_owned(),
            traffic
                .lines
                .by(call)
                .plus(registration.times(request.subscribers as f64)),
        ),
    );
    let process = steps.cost("m_process", costs, "memory.process")?;
    steps.loads.process_bytes = process;
    Ok((state, process))
}

/// Traffic in each direction, Mbit/s.
fn bandwidth(
    request: &PlanRequest,
    costs: &Costs,
    traffic: &Traffic,
    steps: &mut Steps,
) -> Result<Estimate, LabError> {
    let call = steps.cost("b_call", costs, "bytes.call")?;
    let registration = steps.cost("b_reg", costs, "bytes.registration")?;
    steps.loads.call_signalling_mbit = call.times(8e-6);
    steps.loads.registration_mbit = registration.times(traffic.registrations_per_s * 8e-6);
    let signalling = steps.add(
        "w_sig",
        "signalling in each direction",
        "Mbit/s",
        (
            "8 x (rate x b_call + R x b_reg) / 10^6".to_owned(),
            call.times(traffic.calls_per_s)
                .plus(registration.times(traffic.registrations_per_s))
                .times(8e-6),
        ),
    );
    if request.path == MediaPath::Bypass {
        let formula = "w_sig: media passes the nodes by".to_owned();
        return Ok(steps.add(
            "bandwidth",
            "bandwidth in each direction",
            "Mbit/s",
            (formula, signalling),
        ));
    }
    let ip = ip_header(request);
    let payload = payload_bytes(request);
    let plain_packet = payload.map(|bytes| bytes + RTP_UDP + ip);
    let protected = access_packet_bytes(request);
    let how = match request.protection.media() {
        "srtp" => "+ 10 (SRTP tag)",
        "esp" => "in ESP, tunnel mode: outer IP + 8 + 16 + padding to 16 + 12",
        _ => "no protection",
    };
    let packet = steps.add(
        "b_packet",
        "bytes of a packet with Ethernet framing, mean of access and core side",
        "bytes",
        (
            format!(
                "core side: {} (payload) + 20 (RTP, UDP) + {} (IP) + 38 (Ethernet); access side: {how}",
                plain(payload.value),
                plain(ip)
            ),
            plain_packet
                .plus(protected)
                .times(0.5)
                .map(|bytes| bytes + ETHERNET),
        ),
    );
    steps.loads.call_mbit = packet.times(packets_of_a_call(request) * 8e-6);
    Ok(steps.add(
        "bandwidth",
        "bandwidth in each direction, at the interfaces of all nodes together",
        "Mbit/s",
        (
            "8 x P x b_packet / 10^6 + w_sig".to_owned(),
            traffic
                .packets_per_s
                .by(packet)
                .times(8e-6)
                .plus(signalling),
        ),
    ))
}

/// Nodes by memory: each has its process beside its part of the state.
fn nodes_by_memory(
    request: &PlanRequest,
    (state, process): (Estimate, Estimate),
) -> Result<Estimate, LabError> {
    let usable = request.node_memory_gib * GIB * (1.0 - request.headroom_percent / 100.0);
    if usable <= process.high {
        return Err(LabError::bad_input(format!(
            "--node-memory-gib {} --headroom {}: the process of a node alone takes up to {:.3} GiB: expected more memory",
            request.node_memory_gib,
            request.headroom_percent,
            process.high / GIB
        )));
    }
    Ok(Estimate::each(|end| {
        state.at(end) / (usable - process.at(end))
    }))
}

/// Nodes and cores, from busy cores, nodes by memory and Mbit/s.
fn sizes(
    request: &PlanRequest,
    traffic: &Traffic,
    [busy, by_memory, bandwidth]: [Estimate; 3],
    steps: &mut Steps,
) -> [Estimate; 2] {
    let share = 1.0 - request.headroom_percent / 100.0;
    let of_thread = steps.busy_share;
    let needed = steps.add(
        "C",
        "cores with headroom",
        "cores",
        (
            format!("u / (1 - {} %)", plain(request.headroom_percent)),
            busy.times(1.0 / share),
        ),
    );
    steps.add(
        "p_wait",
        "probability that a message waits for its worker (a call belongs to one worker)",
        "",
        (
            "Erlang C(1, busy): each worker is a queue of its own".to_owned(),
            Estimate::exact(erlang_c(1, of_thread)),
        ),
    );
    if of_thread < 1.0 {
        let message = steps.loads.call_s.times(1e6 / MESSAGES_OF_A_CALL);
        steps.add(
            "t_wait",
            "mean time that a message waits for its worker, at this load",
            "us",
            (
                format!(
                    "p_wait x (c_call / {MESSAGES_OF_A_CALL}) / (1 - busy): Poisson arrivals, exponential service"
                ),
                message.map(|service| mean_wait(1, of_thread, service)),
            ),
        );
    }
    let mut parts = vec![
        ("cores", needed.times(1.0 / f64::from(request.node_cores))),
        ("memory", by_memory),
        (
            "bandwidth",
            bandwidth.times(1.0 / (request.node_mbit * share)),
        ),
    ];
    if request.path == MediaPath::Anchored {
        let calls = CALLS_OF_AN_ADDRESS * f64::from(request.node_addresses);
        parts.push(("ports", traffic.lines.times(1.0 / calls)));
    }
    let active = parts.iter().fold(Estimate::exact(1.0), |most, (_, part)| {
        most.or_larger(part.map(f64::ceil))
    });
    let decides = parts
        .iter()
        .max_by(|a, b| a.1.value.total_cmp(&b.1.value))
        .map_or("", |(name, _)| name);
    let calls = traffic.lines.value / active.value;
    let ports = ports_needed(request, calls);
    let load = limits::NodeShare {
        subscribers: request.subscribers as f64 / active.value,
        calls,
        calls_per_s: traffic.calls_per_s / active.value,
        registrations_per_s: traffic.registrations_per_s / active.value,
    };
    steps.limits = limits::raised_limits(request, &load);
    let raised = limits::limits_text(&steps.limits);
    let used: Vec<(&str, f64)> = parts
        .iter()
        .map(|(name, part)| (*name, part.value / active.value))
        .collect();
    steps.node_rates = limits::node_rates(request, &load, &used);
    let formula: Vec<String> = parts
        .iter()
        .map(|(name, part)| format!("{name} {}", plain_small(part.value)))
        .collect();
    let active = steps.add(
        "n",
        "nodes that carry the load",
        "",
        (
            format!(
                "largest of, rounded up: {} (a node: {} cores, {} GiB less m_process and {} Mbit/s with the same headroom, at most 32,256 calls for each of {} addresses); decided by {decides}{ports}{raised}",
                formula.join(", "),
                request.node_cores,
                plain(request.node_memory_gib),
                plain(request.node_mbit),
                request.node_addresses
            ),
            active,
        ),
    );
    limit_steps(request, &load, steps);
    let (how, nodes) = match request.redundancy {
        Redundancy::None => ("n", active),
        Redundancy::Spare => ("n + 1", active.map(|n| n + 1.0)),
        Redundancy::Pair => ("2 x n", active.times(2.0)),
    };
    let nodes = steps.add("nodes", "nodes", "", (format!("{how} (redundancy)"), nodes));
    let rounded = needed.map(|cores| cores.ceil().max(1.0));
    let (how, cores) = match request.redundancy {
        Redundancy::None => ("C rounded up".to_owned(), rounded),
        Redundancy::Spare => {
            let one = f64::from(request.node_cores);
            (
                format!("C rounded up + {} of the spare node", request.node_cores),
                rounded.map(|cores| cores + one),
            )
        }
        Redundancy::Pair => ("2 x C rounded up".to_owned(), rounded.times(2.0)),
    };
    let cores = steps.add("cores", "cores", "cores", (how, cores));
    [nodes, cores]
}

/// Transactions and new TLS connections of a node, which settings limit.
fn limit_steps(request: &PlanRequest, load: &limits::NodeShare, steps: &mut Steps) {
    let headroom = plain(request.headroom_percent);
    let transactions = Estimate::exact(load.transactions(request));
    steps.add(
        "x_node",
        "SIP transactions of a node at a time ([limits] transactions)",
        "",
        (limits::transactions_formula(&headroom), transactions),
    );
    if request.protection.signalling() == Signalling::Tls {
        steps.add(
            "h_node",
            "new TLS connections of a node ([limits] handshakes_per_s)",
            "/s",
            (
                format!(
                    "(R / n) / (1 - {headroom} %): after a restart of a node its phones connect again within a registration interval"
                ),
                Estimate::exact(load.connections_per_s(request)),
            ),
        );
    }
}

/// The setting for the media ports of a node with this number of calls, if the default does not suffice.
fn ports_needed(request: &PlanRequest, calls: f64) -> String {
    let calls = calls / f64::from(request.node_addresses);
    if request.path == MediaPath::Bypass || calls <= CALLS_OF_DEFAULT_PORTS {
        return String::new();
    }
    format!(
        "; {} calls at an address need more media ports than the default 20000-26999 (3,500 calls): `media = {{ ports = ... }}` of each interface, with the ephemeral ports among them reserved (net.ipv4.ip_local_reserved_ports)",
        plain(calls.ceil())
    )
}

/// A small number with three significant digits.
fn plain_small(value: f64) -> String {
    match value.abs() < 0.01 && value != 0.0 {
        true => format!("{value:.2e}"),
        false => plain(value),
    }
}

fn with_interval(estimate: Estimate) -> Value {
    json!({
        "value": estimate.value,
        "interval": { "low": estimate.low, "high": estimate.high },
    })
}

impl Plan {
    /// The plan as JSON.
    pub fn json(&self) -> Value {
        json!({
            "nodes": with_interval(self.nodes),
            "cores": with_interval(self.cores),
            "memory_gib": with_interval(self.memory_gib),
            "bandwidth_mbit": with_interval(self.bandwidth_mbit),
            "request": self.request,
            "measured_on": self.measured_on,
            "steps": self.steps,
            "limits": self.limits,
            "node_rates": self.node_rates,
            "check": self.check,
            "node_check": self.node_check,
            "real_check": self.real_check,
        })
    }

    /// A step by its symbol.
    pub fn step(&self, symbol: &str) -> Option<&Step> {
        self.steps.iter().find(|step| step.symbol == symbol)
    }
}

#[cfg(test)]
mod tests;
