//! `hornwork lab plan`.

use clap::Args;
use lab::planner::{
    Codec, Costs, FILE_NAME, MediaPath, PlanRequest, Protection, REAL_CALLS, RealOptions,
    Redundancy, check_real, plan,
};
use lab::{LabError, RunVerdict};
use std::path::{Path, PathBuf};

/// Options of `hornwork lab plan`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: hornwork lab plan --subscribers 10000000 --busy-hour-calls 2 --hold 120 --protection srtp --json -"
)]
pub struct PlanOptions {
    /// Number of subscribers.
    #[arg(long, value_name = "NUMBER")]
    subscribers: u64,
    /// Calls of a subscriber in the busy hour.
    #[arg(long, value_name = "NUMBER")]
    busy_hour_calls: f64,
    /// Mean duration of a call, seconds.
    #[arg(long, value_name = "SECONDS")]
    hold: f64,
    /// Protection on the access side: none, tls, srtp, tls-srtp, esp.
    #[arg(long, value_name = "NAME")]
    protection: String,
    /// Path of media: anchored (through the nodes) or bypass.
    #[arg(long, default_value = "anchored")]
    path: String,
    /// Codec: PCMU, PCMA, G722, G729, Opus.
    #[arg(long, default_value = "PCMA")]
    codec: String,
    /// Packet time, milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 20.0)]
    packet_ms: f64,
    /// Share of the time in which a party sends, percent; below 100 with silence suppression.
    #[arg(long, value_name = "PERCENT", default_value_t = 100.0)]
    activity: f64,
    /// IPv6 on both sides.
    #[arg(long)]
    ipv6: bool,
    /// Share of calls that may find no line in the busy hour.
    #[arg(long, value_name = "SHARE", default_value_t = 0.001)]
    blocking: f64,
    /// Interval between registrations of a subscriber, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800.0)]
    registration_interval: f64,
    /// Registrations that are answered from the cache, percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    cached: f64,
    /// Share of cores, memory and bandwidth that stays free in the busy hour, percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 30.0)]
    headroom: f64,
    /// Redundancy: none, n+1 (one spare node), 2n (a standby node for each).
    #[arg(long, default_value = "n+1")]
    redundancy: String,
    /// Cores of a node.
    #[arg(long, value_name = "NUMBER", default_value_t = 8)]
    node_cores: u32,
    /// Memory of a node, GiB.
    #[arg(long, value_name = "GIB", default_value_t = 16.0)]
    node_memory_gib: f64,
    /// Rate of a node's network interface, Mbit/s.
    #[arg(long, value_name = "MBIT", default_value_t = 10_000.0)]
    node_mbit: f64,
    /// Addresses of a node on each side; an address has media ports for 32,256 calls, by default for 3,500 of them.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    node_addresses: u32,
    /// Simulate this time of calls, too, in seconds: on lines, beside Erlang B, and on the nodes of the plan, before
    /// and after one fails. Exit code 1 if the nodes do not suffice.
    #[arg(long, value_name = "SECONDS")]
    simulate: Option<f64>,
    /// Run calls of this kind through a border on this machine, too, and compare their CPU time with the plan's; the
    /// directory gets the records.
    #[arg(long, value_name = "DIR")]
    check_real: Option<PathBuf>,
    /// Calls at a time of that run.
    #[arg(long, value_name = "NUMBER", default_value_t = REAL_CALLS, requires = "check_real")]
    check_calls: u32,
    /// Seed of the simulation and of the real run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File of measured costs [default: the figures of docs/benchmarks.md].
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    costs: Option<PathBuf>,
    /// Directory of a data sheet measured on this machine; its costs are used.
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Write the plan as JSON to this file; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// `hornwork lab plan`.
///
/// # Errors
/// A value out of range or a broken file (exit code 2), a cost that was not measured, or a real run that could not be
/// measured (exit code 3).
pub fn run(options: &PlanOptions) -> Result<RunVerdict, LabError> {
    let request = PlanRequest {
        subscribers: options.subscribers,
        busy_hour_calls: options.busy_hour_calls,
        hold_s: options.hold,
        protection: Protection::from_name(protection_name(&options.protection))?,
        path: MediaPath::from_name(&options.path)?,
        codec: Codec::from_name(&options.codec)?,
        packet_ms: options.packet_ms,
        activity_percent: options.activity,
        ipv6: options.ipv6,
        blocking: options.blocking,
        registration_interval_s: options.registration_interval,
        cached_percent: options.cached,
        headroom_percent: options.headroom,
        redundancy: Redundancy::from_name(&options.redundancy)?,
        node_cores: options.node_cores,
        node_memory_gib: options.node_memory_gib,
        node_mbit: options.node_mbit,
        node_addresses: options.node_addresses,
        simulate_seconds: options.simulate,
        seed: options.seed,
    };
    request.check()?;
    let costs = match (&options.costs, &options.from) {
        (Some(file), _) => Costs::read(file)?,
        (None, Some(dir)) => Costs::read(&dir.join(FILE_NAME))?,
        (None, None) => Costs::built_in()?,
    };
    let results = options.check_real.as_deref();
    if let Some(dir) = results {
        lab::run::check_directory("--check-real", dir)?;
        lab::planner::check_unused(dir)?;
    }
    lab::run::check_apart(options.json.as_deref(), options.costs.as_deref())?;
    lab::run::check_places(options.json.as_deref(), results)?;
    let mut plan = plan(&request, &costs)?;
    if let Some(dir) = &options.check_real {
        let options = RealOptions {
            dir: dir.clone(),
            calls: options.check_calls,
            seed: options.seed,
        };
        plan.real_check = Some(check_real(&request, &costs, &options)?);
    }
    // Standard output is reserved for JSON if it was requested there.
    if options.json.as_deref() != Some(Path::new("-")) {
        lab::output::print(&plan.text());
    }
    lab::run::write_json(options.json.as_deref(), &plan.json())?;
    let nodes = plan.node_check.iter();
    let nodes = nodes.map(|check| check.verdict(request.blocking));
    let real = plan.real_check.iter().map(|check| check.verdict());
    Ok(nodes.chain(real).fold(RunVerdict::Passed, RunVerdict::and))
}

/// Names as in `cost-of-protection` mean the same.
fn protection_name(name: &str) -> &str {
    match name {
        "srtp-sdes" => "srtp",
        "tls-srtp-sdes" => "tls-srtp",
        "esp-tunnel" => "esp",
        name => name,
    }
}
