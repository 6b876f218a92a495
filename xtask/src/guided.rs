//! The release build with profile-guided optimisation: an instrumented build runs the training work, and its counts
//! guide the second build (placement and inlining). Results do not change, and a profile of an older source costs speed
//! only.

use crate::postlink::{LINKED, Tools};
use crate::process::{Running, check, root};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Training work on sockets, border and generator in one program: an experiment and its overrides. The shares are
/// similar, because the compiler treats rarely counted code as cold.
const EXPERIMENTS: [(&str, &[&str]); 9] = [
    (
        "call-rate",
        &[
            "levels.values=[600]",
            "callers.duration_seconds=10",
            "callers.hold_seconds=1",
        ],
    ),
    (
        "call-rate-anchored",
        &[
            "levels.values=[60]",
            "callers.duration_seconds=6",
            "callers.hold_seconds=3",
        ],
    ),
    (
        "call-rate-tls",
        &[
            "levels.values=[400]",
            "callers.duration_seconds=10",
            "callers.hold_seconds=1",
        ],
    ),
    (
        "call-rate-volte",
        &[
            "levels.values=[300]",
            "callers.duration_seconds=10",
            "callers.hold_seconds=1",
        ],
    ),
    ("header-rules", &["levels.values=[1]", "callers.rate=500"]),
    (
        "registration-rate",
        &["levels.values=[1500]", "registrations.users=12000"],
    ),
    (
        "re-registration-rate",
        &[
            "levels.values=[5000]",
            "registrations.users=12000",
            "registrations.rate=3000",
        ],
    ),
    (
        "media-capacity-srtp",
        &["levels.values=[120]", "callers.hold_seconds=8"],
    ),
    (
        "conference-jitter",
        &["levels.values=[12]", "conference.duration_seconds=8"],
    ),
];

/// Training work of the program as a service: a configuration, and its calls.
const SERVED: [(&str, &str, &[&str]); 3] = [
    (
        "loopback-bypass.toml",
        "call-rate",
        &[
            "levels.values=[600]",
            "callers.duration_seconds=12",
            "callers.hold_seconds=1",
        ],
    ),
    (
        "loopback.toml",
        "call-rate-anchored",
        &[
            "levels.values=[100]",
            "callers.duration_seconds=8",
            "callers.hold_seconds=4",
        ],
    ),
    (
        "header-rules.toml",
        "call-rate",
        &[
            "levels.values=[600]",
            "callers.duration_seconds=10",
            "callers.hold_seconds=1",
        ],
    ),
];

/// Listener and target of the examples.
const BORDER: &str = "127.0.0.1:5060";
const CALLED: &str = "127.0.0.1:5080";
/// Maximum duration of one piece of work, start and end included.
const PATIENCE: Duration = Duration::from_secs(180);

/// How a release is built.
#[derive(Clone, Debug)]
pub struct Guide {
    /// Compiler flags; empty for a plain build.
    flags: String,
    /// Cargo's target folder.
    target: PathBuf,
    /// The post-link optimiser, where it is installed.
    tools: Option<Tools>,
}

/// Environment variable with the target CPU, as `rustc -C target-cpu` accepts it; empty: the baseline of the
/// architecture.
const PROCESSOR: &str = "HORNWORK_TARGET_CPU";

/// The target CPU: HORNWORK_TARGET_CPU, else x86-64-v3 where this machine supports it (Intel since 2013, AMD since
/// 2015), which avoids run-time detection in searches and shifts.
fn processor() -> String {
    let named = std::env::var(PROCESSOR);
    named.unwrap_or_else(|_| level().unwrap_or_default().to_owned())
}

#[cfg(target_arch = "x86_64")]
fn level() -> Option<&'static str> {
    let has = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("movbe");
    has.then_some("x86-64-v3")
}

#[cfg(not(target_arch = "x86_64"))]
fn level() -> Option<&'static str> {
    None
}

/// The compiler's flag for that CPU with a leading space; empty for the baseline.
fn processor_flag() -> String {
    match processor() {
        none if none.is_empty() => none,
        named => format!(" -Ctarget-cpu={named}"),
    }
}

/// Cargo's target folder of the workspace.
fn target() -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root().join(target)
}

impl Guide {
    /// A plain release build.
    pub fn none() -> Guide {
        Guide {
            flags: String::new(),
            target: target(),
            tools: None,
        }
    }

    /// Guided by the existing profile; `None` without a profile of this compiler.
    fn found() -> Option<Guide> {
        let profile = profile();
        let stamp = std::fs::read_to_string(stamp()).ok()?;
        let tools = Tools::find();
        let mut flags = format!("-Cprofile-use={}{}", profile.display(), processor_flag());
        if tools.is_some() {
            flags = format!("{flags} {LINKED}");
        }
        (profile.is_file() && stamp == made_for().ok()?).then(|| Guide {
            flags,
            target: target().join("guided"),
            tools,
        })
    }

    /// Guided by the existing profile or a new one; `None`, with a printed reason, where no profile can be made.
    pub fn optional() -> Option<Guide> {
        match Guide::found().map_or_else(make, Ok) {
            Ok(guide) => Some(guide),
            Err(why) => {
                println!("no profile for a guided build: {why}");
                None
            }
        }
    }

    /// Cargo with the options of the build.
    pub fn cargo(&self) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(root());
        cargo.env("CARGO_TARGET_DIR", &self.target);
        if !self.flags.is_empty() {
            cargo.env("RUSTFLAGS", with_flags(&self.flags));
            // The plain build does not optimise across crates (Cargo.toml).
            cargo.env("CARGO_PROFILE_RELEASE_LTO", "thin");
        }
        cargo
    }

    /// Builds a part of the workspace, and reorders the code of a new program.
    ///
    /// # Errors
    /// The output of cargo.
    pub fn build(&self, what: &[&str]) -> Result<(), String> {
        check(
            self.cargo()
                .args(["build", "--release", "--locked"])
                .args(what),
        )?;
        let (Some(tools), true) = (&self.tools, counts().is_file()) else {
            return Ok(());
        };
        let (built, arranged) = (self.release().join("hornwork"), arranged());
        let when = |path: &Path| path.metadata().and_then(|about| about.modified()).ok();
        if when(&built) <= when(&arranged) {
            return Ok(());
        }
        if let Err(why) = tools.arrange(&built, &counts(), &arranged) {
            println!("the program is not reordered: {why}");
            let _ = std::fs::remove_file(arranged);
        }
        Ok(())
    }

    /// The target directory.
    pub fn release(&self) -> PathBuf {
        self.target.join("release")
    }

    /// Where the program is.
    pub fn program(&self) -> PathBuf {
        let arranged = arranged();
        match self.tools.is_some() && arranged.is_file() {
            true => arranged,
            false => self.release().join("hornwork"),
        }
    }

    /// Describes the build, for the reader of the figures; valid after the build.
    pub fn described(&self) -> String {
        let how = match (&self.tools, self.flags.is_empty()) {
            (_, true) => "a plain release build",
            (Some(_), false) if arranged().is_file() => {
                "a release build guided by a profile, its code in the order that was counted"
            }
            (_, false) => "a release build guided by a profile",
        };
        match processor() {
            named if !self.flags.is_empty() && !named.is_empty() => format!("{how}, for {named}"),
            _ => how.to_owned(),
        }
    }
}

/// The caller's compiler flags followed by these.
fn with_flags(flags: &str) -> OsString {
    let mut all = std::env::var_os("RUSTFLAGS").unwrap_or_default();
    if !all.is_empty() {
        all.push(" ");
    }
    all.push(flags);
    all
}

fn profile() -> PathBuf {
    target().join("hornwork.profdata")
}

/// Execution counts of the built program.
fn counts() -> PathBuf {
    target().join("hornwork.fdata")
}

/// The reordered program, under its own name, because it starts itself as a child.
fn arranged() -> PathBuf {
    target().join("arranged/hornwork")
}

/// Compiler and target CPU of the profile; another compiler cannot read it.
fn stamp() -> PathBuf {
    target().join("hornwork.profdata.compiler")
}

fn said(command: &mut Command) -> Result<String, String> {
    let shown = format!("{command:?}");
    let output = command
        .output()
        .map_err(|error| format!("{shown}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{shown}: {}", output.status)),
    }
}

fn compiler() -> Result<String, String> {
    said(Command::new("rustc").arg("-vV"))
}

fn made_for() -> Result<String, String> {
    Ok(format!("{}processor: {}\n", compiler()?, processor()))
}

/// The tool that merges profiles; it must belong to the compiler.
fn merger() -> Result<PathBuf, String> {
    let find = || -> Result<Option<PathBuf>, String> {
        let sysroot = said(Command::new("rustc").args(["--print", "sysroot"]))?;
        let compiler = compiler()?;
        let host = compiler
            .lines()
            .find_map(|line| line.strip_prefix("host: "));
        let path = Path::new(sysroot.trim())
            .join("lib/rustlib")
            .join(host.unwrap_or_default())
            .join("bin/llvm-profdata");
        Ok(path.is_file().then_some(path))
    };
    if let Some(tool) = find()? {
        return Ok(tool);
    }
    println!("llvm-profdata is missing: rustup component add llvm-tools");
    check(Command::new("rustup").args(["component", "add", "llvm-tools"]))?;
    find()?.ok_or_else(|| "llvm-tools has no llvm-profdata".to_owned())
}

/// `cargo xtask release`: makes a new profile and builds the program by it.
///
/// # Errors
/// The compiler's tools are missing, or some work failed.
pub fn run() -> Result<(), String> {
    let guide = make()?;
    guide.build(&["-p", "hornwork"])?;
    println!("{}, {}", guide.program().display(), guide.described());
    let processor = processor();
    if !processor.is_empty() {
        println!(
            "it runs on processors of the kind {processor}; {PROCESSOR}= in front of the command builds for all of the architecture"
        );
    }
    Ok(())
}

/// Runs the training work and writes a new profile.
fn make() -> Result<Guide, String> {
    let merger = merger()?;
    let counting = Guide {
        // Threads share counters; a lost update is harmless.
        flags: format!("-Cprofile-generate{}", processor_flag()),
        target: target().join("counting"),
        tools: None,
    };
    counting.build(&["-p", "hornwork"])?;
    let counted = emptied("counts")?;
    let program = counting.release().join("hornwork");
    Worker {
        program: &program,
        counts: &counted,
    }
    .works_all()?;
    let mut merge = Command::new(merger);
    merge.arg("merge").arg("-o").arg(profile()).arg(&counted);
    check(&mut merge)?;
    std::fs::write(stamp(), made_for()?).map_err(|error| error.to_string())?;
    let _ = std::fs::remove_dir_all(&counted);
    // Cargo does not notice a changed profile.
    let _ = std::fs::remove_dir_all(target().join("guided"));
    let _ = std::fs::remove_file(counts());
    let _ = std::fs::remove_file(arranged());
    let guide = Guide::found().ok_or_else(|| "the profile was not written".to_owned())?;
    match &guide.tools {
        None => {
            println!("llvm-bolt is missing (Debian: bolt-15): the code keeps the compiler's order")
        }
        Some(tools) => {
            guide.build(&["-p", "hornwork"])?;
            if let Err(why) = count_order(tools, &guide.release().join("hornwork")) {
                println!("the code keeps the compiler's order: {why}");
            }
        }
    }
    Ok(guide)
}

/// An empty folder for counts.
fn emptied(name: &str) -> Result<PathBuf, String> {
    let folder = target().join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

/// Counts executions in the built program with the same work.
fn count_order(tools: &Tools, built: &Path) -> Result<(), String> {
    let counted = emptied("order")?;
    let program = target().join("counting-order");
    tools.count(built, &program, &counted.join("counts"))?;
    Worker {
        program: &program,
        counts: &target(),
    }
    .works_all()?;
    tools.merge(&counted, &counts())?;
    let _ = std::fs::remove_dir_all(counted);
    let _ = std::fs::remove_file(program);
    Ok(())
}

/// The instrumented program and its work.
struct Worker<'a> {
    program: &'a Path,
    counts: &'a Path,
}

impl Worker<'_> {
    /// Runs all training work.
    fn works_all(&self) -> Result<(), String> {
        let mut done = 0;
        for (name, sets) in EXPERIMENTS {
            done += usize::from(self.works(name, sets));
        }
        for (configuration, name, sets) in SERVED {
            done += usize::from(self.serves(configuration, name, sets)?);
        }
        let all = EXPERIMENTS.len() + SERVED.len();
        // A missing codec or a port in use skips one of them.
        match done * 2 < all {
            true => Err(format!(
                "only {done} of {all} training workloads could be run"
            )),
            false => Ok(()),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command
            .env("LLVM_PROFILE_FILE", self.counts.join("%p.profraw"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Runs an experiment. Missed thresholds are accepted, because an instrumented program is slow.
    fn works(&self, name: &str, sets: &[&str]) -> bool {
        let out = self.counts.join("report");
        let mut command = self.command();
        command
            .args(["lab", "run", name, "--repeat", "1", "--out"])
            .arg(&out);
        for set in sets {
            command.args(["--set", set]);
        }
        let ran = command
            .spawn()
            .map(Running::of)
            .map_err(|error| error.to_string())
            .and_then(|mut running| running.wait_for_code(PATIENCE));
        let _ = std::fs::remove_dir_all(&out);
        // 0: passed, 1: thresholds missed, 4: not judged, as the load was not offered.
        let done = matches!(ran, Ok(Some(0 | 1 | 4)));
        println!("counted {name}: {}", if done { "done" } else { "left out" });
        done
    }

    /// Runs the program as a service, and an experiment that calls through it.
    fn serves(&self, configuration: &str, name: &str, sets: &[&str]) -> Result<bool, String> {
        let mut command = self.command();
        command
            .args(["run", "-c"])
            .arg(root().join("examples").join(configuration));
        let mut service = command
            .spawn()
            .map(Running::of)
            .map_err(|error| error.to_string())?;
        std::thread::sleep(Duration::from_secs(2));
        let subject = format!("sut.address={BORDER}");
        let called = format!("callees.address={CALLED}");
        let sets = [&[subject.as_str(), called.as_str()], sets].concat();
        let done = self.works(name, &sets);
        // It writes its counts when it ends normally.
        service.terminate();
        let ended = matches!(service.wait_for_code(PATIENCE), Ok(Some(0)));
        println!(
            "  through {configuration}: {}",
            if ended { "done" } else { "left out" }
        );
        Ok(done && ended)
    }
}
