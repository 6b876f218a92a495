//! `hornwork lab link`: options of the emulated link.

use clap::Args;
use lab::emulator::ends::EndName;
use lab::emulator::settings::{BothWays, LineSettings, check_effect, keys_of, profile, set_both};
use lab::emulator::{EmulatorOptions, LATE_MS};
use lab::{LabError, RunVerdict};
use std::path::{Path, PathBuf};

/// Options of `hornwork lab link`. A value with `/` has a part for each direction: 64kbit/256kbit.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: hornwork lab link --a veth1 --b veth2 --profile serial-64 --loss 1% --seconds 10"
)]
pub struct LinkOptions {
    /// First end: an interface, tun:NAME, or udp:LOCAL=PEER.
    #[arg(long, value_name = "END", value_parser = EndName::parse)]
    a: EndName,
    /// Second end, of the same kind.
    #[arg(long, value_name = "END", value_parser = EndName::parse)]
    b: EndName,
    /// Kind of network: lan, serial-64, serial-38, adsl2-perth-barcelona, wifi, lte, satellite. Further options change
    /// single values of it.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Rate of the line: 64kbit, 2mbit, 1gbit, none.
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
    /// Framing of the line, whose bytes count for the rate: none, ethernet, hdlc, ppp, atm, pppoa, pppoe (adsl).
    #[arg(long, value_name = "NAME")]
    framing: Option<String>,
    /// One-way delay: 20ms, 500us, 1.5s.
    #[arg(long, value_name = "TIME")]
    delay: Option<String>,
    /// Variation of the delay.
    #[arg(long, value_name = "TIME")]
    jitter: Option<String>,
    /// Its distribution: uniform (delay +- jitter), normal (standard deviation), tail (exponential, added).
    #[arg(long, value_name = "KIND")]
    jitter_kind: Option<String>,
    /// Order of packets under jitter: kept or free.
    #[arg(long, value_name = "ORDER")]
    order: Option<String>,
    /// Lost packets, percent.
    #[arg(long, value_name = "PERCENT")]
    loss: Option<String>,
    /// Mean length of a burst of losses, packets (Gilbert-Elliott).
    #[arg(long, value_name = "PACKETS")]
    loss_burst: Option<String>,
    /// Losses from a file, in both directions: 0 for a packet that arrives, 1 for a lost one, repeated.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["loss", "loss_burst"])]
    loss_trace: Option<PathBuf>,
    /// Duplicated packets, percent.
    #[arg(long, value_name = "PERCENT")]
    duplicate: Option<String>,
    /// Packets with a changed bit, percent.
    #[arg(long, value_name = "PERCENT")]
    corrupt: Option<String>,
    /// Packets that are delayed further so that later ones overtake them, percent.
    #[arg(long, value_name = "PERCENT")]
    reorder: Option<String>,
    /// Their further delay.
    #[arg(long, value_name = "TIME")]
    reorder_by: Option<String>,
    /// Queue before the line: packets (50), or bytes (6000bytes, 64kbytes).
    #[arg(long, value_name = "LENGTH")]
    queue: Option<String>,
    /// Controlled delay (CoDel): on, off, or TARGET:INTERVAL.
    #[arg(long, value_name = "CODEL")]
    codel: Option<String>,
    /// Largest IP packet, bytes; larger ones are lost.
    #[arg(long, value_name = "BYTES")]
    mtu: Option<String>,
    /// Settings of the direction from a to b: rate=64kbit,delay=20ms
    #[arg(long, value_name = "SETTINGS")]
    a_to_b: Option<String>,
    /// Settings of the direction from b to a.
    #[arg(long, value_name = "SETTINGS")]
    b_to_a: Option<String>,
    /// Duration, seconds [default: until Ctrl-C].
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Write the figures as JSON to this file; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Take requests while it runs: set, show, stop; from standard input (-) or a Unix socket at this path.
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Seed of all random values.
    #[arg(long)]
    seed: Option<u64>,
    /// Lateness beyond the host's noise, milliseconds (99th percentile), above which the link fails.
    #[arg(long, value_name = "MS", default_value_t = LATE_MS)]
    late_bound_ms: f64,
}

impl LinkOptions {
    fn settings(&self) -> Result<BothWays, String> {
        let mut both = match &self.profile {
            Some(name) => profile(name)?,
            None => BothWays::default(),
        };
        let values = [
            ("rate", &self.rate),
            ("framing", &self.framing),
            ("delay", &self.delay),
            ("jitter", &self.jitter),
            ("jitter-kind", &self.jitter_kind),
            ("order", &self.order),
            ("loss", &self.loss),
            ("loss-burst", &self.loss_burst),
            ("duplicate", &self.duplicate),
            ("corrupt", &self.corrupt),
            ("reorder", &self.reorder),
            ("reorder-by", &self.reorder_by),
            ("queue", &self.queue),
            ("codel", &self.codel),
            ("mtu", &self.mtu),
        ];
        debug_assert_eq!(values.map(|(key, _)| key), LineSettings::KEYS);
        for (key, value) in values {
            if let Some(value) = value {
                set_both(&mut both, key, value).map_err(|error| format!("--{error}"))?;
            }
        }
        if let Some(path) = &self.loss_trace {
            let trace = trace(path)?;
            for line in &mut both {
                line.loss_trace = Some(trace.clone());
            }
        }
        for (line, (name, words)) in both
            .iter_mut()
            .zip([("--a-to-b", &self.a_to_b), ("--b-to-a", &self.b_to_a)])
        {
            if let Some(words) = words {
                line.set_all(words)
                    .map_err(|error| format!("{name}: {error}"))?;
            }
        }
        let given = values.into_iter().filter(|(_, value)| value.is_some());
        check_effect(&[&both[0], &both[1]], given.map(|(key, _)| key))
            .map_err(|error| format!("--{error}"))?;
        for (line, (name, words)) in both
            .iter()
            .zip([("--a-to-b", &self.a_to_b), ("--b-to-a", &self.b_to_a)])
        {
            let keys = words.iter().flat_map(|words| keys_of(words));
            check_effect(&[line], keys).map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(both)
    }
}

fn trace(path: &Path) -> Result<sim::Loss, String> {
    let named = |error: String| format!("--loss-trace: {}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
    sim::Loss::parse_trace(&text).map_err(named)
}

/// `hornwork lab link`.
pub fn run(options: &LinkOptions) -> Result<RunVerdict, LabError> {
    let settings = options.settings().map_err(LabError::bad_input)?;
    let is_positive = |value: f64| value.is_finite() && value > 0.0;
    if options.seconds.is_some_and(|seconds| !is_positive(seconds)) {
        return Err(LabError::bad_input("--seconds: expected more than 0"));
    }
    if !is_positive(options.late_bound_ms) {
        return Err(LabError::bad_input("--late-bound-ms: expected more than 0"));
    }
    lab::emulator::run(&EmulatorOptions {
        ends: [options.a.clone(), options.b.clone()],
        settings,
        seconds: options.seconds,
        json: options.json.clone(),
        control: options.control.clone(),
        seed: options.seed,
        late_ms: options.late_bound_ms,
    })
}
