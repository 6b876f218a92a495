//! `make bench`: the border beside its peers, interleaved, at the same rate, one core each, part by part; at the end
//! every bar beside its figure. It measures the build of `make build` with its log as shipped; where a part compares
//! with a peer, the optimised build of `make release` is a second column.

mod calls;
mod conference;
mod esp;
mod gateway;
mod generator;
mod load;
mod memory;
mod pacing;
mod registrations;
mod relay;
mod rules;
mod standing;
mod store;
mod tls_connections;
mod transports;
mod virtual_time;
mod volte;
mod xdp;

use crate::guided::Guide;
use crate::process::{build_program, installed, named_program, program, root};
use std::path::{Path, PathBuf};

/// Calls a second at which CPU per call is compared.
const RATES: [u32; 2] = [2_000, 4_000];
/// Seconds of load per run.
const SECONDS: u32 = 10;
/// Interleaved rounds of each comparison where the command does not say otherwise.
const ROUNDS: usize = 5;
const SUBJECT_CORE: usize = 0;
const LOAD_CORE: usize = 1;

/// A part by its name; parts can be run one by one.
type Part = fn(&mut Bench) -> Result<(), String>;
const PARTS: [(&str, Part); 21] = [
    ("calls", calls::calls),
    ("calls-beside", calls::calls_beside),
    ("held", calls::held),
    ("volte", volte::volte),
    ("transports", transports::transports),
    ("header-rules", rules::header_rules),
    ("generator", generator::generator),
    ("pacing", pacing::pacing),
    ("tls-connections", tls_connections::tls_connections),
    ("virtual-time", virtual_time::virtual_time),
    ("registrations", registrations::registrations),
    ("refreshes", registrations::refreshes),
    ("relay", relay::relay),
    ("srtp", relay::srtp),
    ("esp", esp::esp),
    ("gateway", gateway::gateway),
    ("xdp", xdp::xdp),
    ("conference", conference::conference),
    ("standing", standing::standing),
    ("store", store::store),
    ("memory", memory::in_memory),
];

/// State of a run that its parts share, and the results.
struct Bench {
    /// Interleaved rounds of each comparison.
    rounds: usize,
    /// A folder for temporary files of the run.
    scratch: PathBuf,
    bars: Vec<Bar>,
    /// The optimised build, once a part has requested it; none where it cannot be made here.
    optimised: Option<Option<PathBuf>>,
}

/// A figure beside its bound.
struct Bar {
    what: String,
    measured: f64,
    bound: Bound,
}

enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bench {
    /// Records a figure beside its bound, and prints it.
    fn bar(&mut self, what: &str, measured: f64, bound: Bound) {
        let bar = Bar {
            what: what.to_owned(),
            measured,
            bound,
        };
        println!("{bar}");
        self.bars.push(bar);
    }
}

impl Bench {
    /// The program of the optimised build; built at the first request.
    fn optimised(&mut self) -> Option<PathBuf> {
        self.optimised
            .get_or_insert_with(|| {
                let guide = Guide::optional()?;
                if let Err(why) = guide.build(&["-p", "hornwork"]) {
                    println!("no optimised build: {why}");
                    return None;
                }
                println!("the optimised build is {}", guide.described());
                Some(guide.program())
            })
            .clone()
    }
}

impl Bar {
    fn holds(&self) -> bool {
        match self.bound {
            Bound::AtMost(bound) => self.measured <= bound,
            Bound::AtLeast(bound) => self.measured >= bound,
        }
    }
}

impl std::fmt::Display for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (word, bound) = match self.bound {
            Bound::AtMost(bound) => ("at most", bound),
            Bound::AtLeast(bound) => ("at least", bound),
        };
        let verdict = if self.holds() { "holds " } else { "MISSED" };
        let digits = if bound >= 100.0 { 0 } else { 2 };
        write!(
            f,
            "{verdict} {:8.digits$} ({word} {bound}) {}",
            self.measured, self.what
        )
    }
}

/// A system under test.
#[derive(Clone)]
struct Subject {
    name: &'static str,
    program: String,
    arguments: Vec<String>,
    port: u16,
}

impl Subject {
    /// The same with another file in place of the one whose name ends with `old`.
    fn with(mut self, old: &str, new: &Path) -> Subject {
        for argument in &mut self.arguments {
            if argument.ends_with(old) {
                *argument = new.display().to_string();
            }
        }
        self
    }

    /// The same of another build.
    fn built(&self, name: &'static str, program: &Path) -> Subject {
        Subject {
            name,
            program: program.display().to_string(),
            ..self.clone()
        }
    }
}

/// Runs the parts that are named (all by default) and prints the table of bars: `bench [ROUNDS] [PART...]`.
///
/// # Errors
/// A program is missing, a part is unknown, some part could not be measured (the others are measured), or a bar is
/// missed.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let (rounds, names) = match arguments.first().map(|word| word.parse::<usize>()) {
        Some(Ok(0)) => return Err("bench: the number of rounds must be at least 1".into()),
        Some(Ok(rounds)) => (rounds, &arguments[1..]),
        _ => (ROUNDS, arguments),
    };
    let known = || PARTS.map(|(name, _)| name).join(", ");
    for name in names {
        if !PARTS.iter().any(|(known, _)| known == name) {
            return Err(format!(
                "bench: there is no part {name}; there are {}",
                known()
            ));
        }
    }
    let missing: Vec<&str> = ["sipp", "kamailio", "taskset"]
        .into_iter()
        .filter(|p| !installed(p))
        .collect();
    if !missing.is_empty() {
        return Err(format!(
            "missing for the comparison: {} (Debian: sip-tester kamailio util-linux)",
            missing.join(", ")
        ));
    }
    build_program()?;
    let named = named_program()?;
    match &named {
        Some(path) => println!("measured is {}", path.display()),
        None => println!("measured is {}", Guide::none().described()),
    }
    let scratch = std::env::temp_dir().join(format!("hornwork-bench-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
    let mut bench = Bench {
        rounds,
        scratch,
        bars: Vec::new(),
        // Beside a named program there is no second build of ours.
        optimised: named.map(|_| None),
    };
    let mut failed = Vec::new();
    for (name, part) in PARTS {
        if !names.is_empty() && !names.iter().any(|word| word == name) {
            continue;
        }
        println!("\n== {name}, {rounds} interleaved rounds");
        if let Err(why) = part(&mut bench) {
            println!("{name}: {why}");
            failed.push(name);
        }
    }
    let _ = std::fs::remove_dir_all(&bench.scratch);
    println!("\n== bars, by medians");
    for bar in &bench.bars {
        println!("{bar}");
    }
    let missed = bench.bars.iter().filter(|bar| !bar.holds()).count();
    match (missed, failed.is_empty()) {
        (0, true) => Ok(()),
        (_, false) => Err(format!("not measured: {}", failed.join(", "))),
        (missed, true) => Err(format!("{missed} of {} bars missed", bench.bars.len())),
    }
}

/// The border with media bypass, the peer, the border with media anchored.
///
/// # Errors
/// The subject file of the peer is missing or broken.
fn subjects(bench: &Bench) -> Result<Vec<Subject>, String> {
    let hornwork = program().display().to_string();
    let example = |name: &str| root().join("examples").join(name).display().to_string();
    let border = |name, file: &str| Subject {
        name,
        program: hornwork.clone(),
        arguments: vec!["run".into(), "-c".into(), example(file)],
        port: 5060,
    };
    let values = [("listen", "127.0.0.1:5070"), ("called", "127.0.0.1:5080")];
    let mut kamailio = crate::subjects::command("kamailio", &bench.scratch, &values)?;
    Ok(vec![
        border("border, media bypass", "loopback-bypass.toml"),
        Subject {
            name: "kamailio",
            program: kamailio.remove(0),
            arguments: kamailio,
            port: 5070,
        },
        border("border, media anchored", "loopback.toml"),
    ])
}

/// Measures each of `count` systems in turn, `rounds` times; returns the measurements of each.
///
/// # Errors
/// The error of a measurement.
fn in_turn<T>(
    rounds: usize,
    count: usize,
    mut measure: impl FnMut(usize) -> Result<T, String>,
) -> Result<Vec<Vec<T>>, String> {
    let mut results: Vec<Vec<T>> = (0..count).map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (which, results) in results.iter_mut().enumerate() {
            results.push(measure(which)?);
        }
    }
    Ok(results)
}

/// The same for one figure: the median of each of `names`.
///
/// # Errors
/// The error of a measurement.
fn interleaved(
    rounds: usize,
    names: &[&str],
    measure: impl FnMut(usize) -> Result<f64, String>,
) -> Result<Vec<f64>, String> {
    let results = in_turn(rounds, names.len(), measure)?;
    Ok(results.into_iter().map(median).collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}
