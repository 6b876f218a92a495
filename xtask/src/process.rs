//! Child processes: started on a core of their own, measured, and never left behind.

use crate::guided::Guide;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Arguments of cargo for tests and lints: features that need a library of this machine.
pub fn features() -> &'static [&'static str] {
    match Path::new("/usr/include/alsa/asoundlib.h").exists() {
        true => &["--features", "hornwork/sound"],
        false => &[],
    }
}

/// Where cargo leaves release builds.
pub fn release() -> PathBuf {
    Guide::none().release()
}

/// Environment variable with the path of the program to measure, in place of the one that `make build` makes.
const PROGRAM: &str = "HORNWORK_PROGRAM";

/// The program that the environment names, with its whole path: parts run in folders and networks of their own.
///
/// # Errors
/// There is no file of this name.
pub fn named_program() -> Result<Option<PathBuf>, String> {
    let Some(path) = std::env::var_os(PROGRAM).filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let path = PathBuf::from(path);
    match path.canonicalize() {
        Ok(path) if path.is_file() => Ok(Some(path)),
        Ok(path) => Err(format!("{PROGRAM}: {} is no file", path.display())),
        Err(error) => Err(format!("{PROGRAM}: {}: {error}", path.display())),
    }
}

/// The program to measure.
pub fn program() -> PathBuf {
    match named_program() {
        Ok(Some(path)) => path,
        _ => Guide::none().program(),
    }
}

/// Builds the program to measure, unless the environment names one.
///
/// # Errors
/// The output of cargo; the named program is missing.
pub fn build_program() -> Result<(), String> {
    match named_program()? {
        Some(_) => Ok(()),
        None => build(&["-p", "hornwork"]),
    }
}

/// Builds a part of the workspace as `make build` does.
///
/// # Errors
/// The output of cargo.
pub fn build(what: &[&str]) -> Result<(), String> {
    Guide::none().build(what)
}

/// Whether a program can be found on the PATH (or where Debian keeps daemons).
pub fn installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin"])
        .any(|folder| Path::new(folder).join(program).is_file())
}

/// Runs a command to its end, its output shown.
pub fn check(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

/// A child that is ended when this value is dropped.
pub struct Running {
    child: Child,
}

impl Running {
    /// Starts `program` pinned to CPU `core`; its output goes to `log`.
    pub fn start(
        core: usize,
        program: &str,
        arguments: &[&str],
        log: &Path,
    ) -> Result<Running, String> {
        Running::start_in(Path::new("."), core, program, arguments, log)
    }

    /// The same in a working directory of its own.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn start_in(
        directory: &Path,
        core: usize,
        program: &str,
        arguments: &[&str],
        log: &Path,
    ) -> Result<Running, String> {
        let file = std::fs::File::create(log).map_err(|e| format!("{}: {e}", log.display()))?;
        let copy = file.try_clone().map_err(|e| e.to_string())?;
        let child = Command::new("taskset")
            .current_dir(directory)
            .args(["-c", &core.to_string(), program])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy)
            .spawn()
            .map_err(|e| format!("taskset {program}: {e}"))?;
        Ok(Running { child })
    }

    /// A child that was started already.
    pub fn of(child: Child) -> Running {
        Running { child }
    }

    /// Requests its end (SIGTERM).
    pub fn terminate(&self) {
        let _ = Command::new("kill")
            .arg(self.child.id().to_string())
            .stderr(Stdio::null())
            .status();
    }

    /// Number of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Nanoseconds that the process and its descendants have spent on a processor.
    pub fn cpu_nanos(&self) -> u64 {
        family(self.child.id()).into_iter().map(cpu_nanos).sum()
    }

    /// The same of its threads whose name begins with one of these.
    pub fn threads_nanos(&self, names: &[&str]) -> u64 {
        let named = |task: &Path| {
            let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
            names.iter().any(|prefix| name.starts_with(prefix))
        };
        tasks(self.child.id())
            .filter(|task| named(task))
            .map(|task| task_nanos(&task))
            .sum()
    }

    /// Resident bytes of the process.
    pub fn resident_bytes(&self) -> u64 {
        std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))
            .unwrap_or_default()
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .map_or(0, |kib| kib * 1024)
    }

    /// Waits for the end, at most `limit`; whether it was a success.
    pub fn wait(&mut self, limit: Duration) -> Result<bool, String> {
        Ok(self.wait_for_code(limit)? == Some(0))
    }

    /// The same; gives the exit code, `None` where a signal ended it.
    pub fn wait_for_code(&mut self, limit: Duration) -> Result<Option<i32>, String> {
        let end = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status.code()),
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
                Ok(None) => return Err(format!("still running after {limit:?}")),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for process in family(self.child.id()) {
            let _ = Command::new("kill")
                .arg(process.to_string())
                .stderr(Stdio::null())
                .status();
        }
        if self.wait(Duration::from_secs(5)).is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A process and all that it started.
fn family(head: u32) -> Vec<u32> {
    let mut members = vec![head];
    let mut next = 0;
    while let Some(&parent) = members.get(next) {
        next += 1;
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))
            .unwrap_or_default();
        members.extend(
            children
                .split_whitespace()
                .filter_map(|word| word.parse::<u32>().ok()),
        );
    }
    members
}

/// Time on a processor, summed over the threads.
fn cpu_nanos(process: u32) -> u64 {
    tasks(process).map(|task| task_nanos(&task)).sum()
}

/// The folders of the threads of a process.
fn tasks(process: u32) -> impl Iterator<Item = PathBuf> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
    tasks
        .into_iter()
        .flatten()
        .flatten()
        .map(|task| task.path())
}

/// Time of a thread on a processor (`schedstat`'s first figure).
fn task_nanos(task: &Path) -> u64 {
    std::fs::read_to_string(task.join("schedstat"))
        .ok()
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}
