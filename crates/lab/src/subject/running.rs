//! A subject that runs: its directory, its processes and their figures.

use super::file::{ProbeKind, SubjectFile, Values};
use super::ports;
use super::processes::{Family, family};
use super::program::{self, Probe, Program};
use crate::error::LabError;
use crate::private_directory::PrivateDirectory;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Media ports for each call: RTP and RTCP on both sides.
const PORTS_PER_CALL: u64 = 4;
/// Port ranges of a subject.
const MIN_PORTS: u64 = 64;
const MAX_PORTS: u64 = 12_000;
const SPARE_PORTS: u16 = 16;
/// Begin of the names of directories; then the subject, the process of the test lab and a random number.
const PREFIX: &str = "hornwork-subject-";

/// Where a subject listens, and where its calls go.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// Address of this machine at which it listens.
    pub ip: IpAddr,
    /// The called side; `None`: an address where nothing listens.
    pub called: Option<SocketAddr>,
    /// Most calls at a time.
    pub calls: u64,
}

/// A subject of this machine that runs; it ends when this value is dropped.
#[derive(Debug)]
pub struct RunningSubject {
    name: String,
    listen: SocketAddr,
    state: Mutex<State>,
    // Removed after the processes have ended.
    _dir: PrivateDirectory,
}

#[derive(Debug)]
struct State {
    /// Processes, and whether they count.
    processes: Vec<(Program, bool)>,
    /// The figures when all processes ran.
    last: Family,
}

impl Drop for State {
    fn drop(&mut self) {
        // The last one was started with the help of the first.
        while self.processes.pop().is_some() {}
    }
}

impl RunningSubject {
    /// Writes the files of a subject, starts its processes in order, and waits until each answers its probe.
    ///
    /// # Errors
    /// A program is missing, a process does not start, ends, or does not answer. The processes before it are ended.
    pub fn start(file: &SubjectFile, placement: Placement) -> Result<RunningSubject, LabError> {
        file.check_installed()?;
        let within = |error: LabError| match error {
            LabError::CannotRun { problem, remedy } => {
                LabError::cannot_run(format!("subject {}: {problem}", file.name), remedy)
            }
            other => other,
        };
        let mut entropy = net::entropy().map_err(|error| {
            LabError::cannot_run(format!("getrandom: {error}"), "run it outside the sandbox")
        })?;
        let [listen, control] = ports::addresses(placement.ip)?;
        let ports_of_calls = match file.text.contains("@media_first@") {
            true => placement.calls * PORTS_PER_CALL,
            false => 0,
        };
        let wanted = ports_of_calls.clamp(MIN_PORTS, MAX_PORTS);
        let media = ports::span(placement.ip, wanted as u16, &mut entropy)?;
        let mut spare = media;
        // Both ranges are free: they must not overlap.
        while spare[0] <= media[1] && media[0] <= spare[1] {
            spare = ports::span(placement.ip, SPARE_PORTS, &mut entropy)?;
        }
        let dir = PrivateDirectory::new(PREFIX, &file.name)?;
        let own = std::env::current_exe().map_err(|error| {
            LabError::cannot_run(format!("path of this program: {error}"), "mount /proc")
        })?;
        let values = Values {
            dir: dir.path().display().to_string(),
            program: own.display().to_string(),
            listen,
            called: placement
                .called
                .unwrap_or_else(|| SocketAddr::new(placement.ip, 9)),
            control,
            media,
            spare,
        };
        let fill = |text: &str| {
            let filled = values.fill(text);
            filled.map_err(|why| LabError::bad_input(format!("subject {}: {why}", file.name)))
        };
        for template in &file.file {
            let path = dir.path().join(&template.name);
            std::fs::write(&path, fill(template.text.trim_start())?).map_err(|error| {
                LabError::cannot_run(format!("{}: {error}", path.display()), "")
            })?;
        }
        let mut state = State {
            processes: Vec::new(),
            last: Family::default(),
        };
        for spec in &file.process {
            let found = program::find(&spec.program);
            let program = found.ok_or_else(|| {
                LabError::cannot_run(format!("not installed: {}", spec.program), "install it")
            })?;
            let mut command = Command::new(program);
            for argument in &spec.arguments {
                command.arg(fill(argument)?);
            }
            command.current_dir(dir.path());
            let probe = Probe {
                kind: spec.probe,
                at: match spec.probe {
                    ProbeKind::Ng => control,
                    ProbeKind::Sip | ProbeKind::Port => listen,
                },
                warm_up: spec.warm_up,
                limit: Duration::from_secs(u64::from(spec.start_s)),
            };
            let stop = (spec.stop, Duration::from_secs(u64::from(spec.stop_s)));
            let log = dir.path().join(format!("{}.log", spec.name));
            let started = Program::start(&spec.name, &mut command, &log, probe, stop);
            state
                .processes
                .push((started.map_err(within)?, spec.counts));
        }
        Ok(RunningSubject {
            name: file.name.clone(),
            listen,
            state: Mutex::new(state),
            _dir: dir,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves the state as it was.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its SIP address.
    pub fn address(&self) -> SocketAddr {
        self.listen
    }

    /// Number of its first process that counts; 0 if there is none.
    pub(crate) fn process(&self) -> u32 {
        let state = self.state();
        let first = state.processes.iter().find(|(_, counts)| *counts);
        first.map_or(0, |(program, _)| program.id())
    }

    /// CPU time in seconds and memory in bytes of the processes that count; the last ones once a process has ended.
    pub(crate) fn figures(&self, with_memory: bool) -> Family {
        let mut state = self.state();
        let mut sum = Family::default();
        for (program, counts) in &state.processes {
            if !counts {
                continue;
            }
            let Ok(one) = family(program.id(), with_memory) else {
                return state.last;
            };
            sum.cpu_seconds += one.cpu_seconds;
            sum.waited_seconds += one.waited_seconds;
            sum.memory_bytes += one.memory_bytes;
        }
        // The time of processes that have ended is lost with them.
        if sum.cpu_seconds >= state.last.cpu_seconds {
            state.last.cpu_seconds = sum.cpu_seconds;
        }
        if with_memory {
            state.last.memory_bytes = sum.memory_bytes;
        }
        Family {
            cpu_seconds: state.last.cpu_seconds,
            ..sum
        }
    }

    /// The reason, if one of its processes has ended by itself.
    pub fn ended(&self) -> Option<String> {
        let mut state = self.state();
        let why = state
            .processes
            .iter_mut()
            .find_map(|(program, _)| program.ended())?;
        Some(format!("subject {}: {why}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, probe: &str) -> SubjectFile {
        let text = format!(
            "name = \"shell\"\ntitle = \"t\"\ntakes = [\"calls\"]\nmedia = \"answered\"\n[[process]]\nname = \"sh\"\nprogram = \"sh\"\n\
             arguments = [\"-c\", '''{script}''']\nprobe = \"{probe}\"\nstart_s = 1\nstop_s = 1\n"
        );
        SubjectFile::parse("shell.toml", &text).unwrap()
    }

    fn start(file: &SubjectFile) -> Result<RunningSubject, LabError> {
        RunningSubject::start(
            file,
            Placement {
                ip: [127, 0, 0, 1].into(),
                called: None,
                calls: 1,
            },
        )
    }

    #[test]
    fn obstacles_are_named() {
        let at_once = start(&shell("echo bad file >&2; exit 3", "sip")).unwrap_err();
        let text = at_once.to_string();
        assert!(
            text.contains("subject shell: sh has ended by itself (exit status: 3); the end of its log: bad file"),
            "{text}"
        );
        assert_eq!(at_once.exit_code(), 3);
        let silent = start(&shell("sleep 30", "sip")).unwrap_err().to_string();
        assert!(
            silent.contains("no answer to OPTIONS at 127.0.0.1:"),
            "{silent}"
        );
        let unbound = start(&shell("sleep 30", "port")).unwrap_err().to_string();
        assert!(
            unbound.contains("is not bound for UDP within 1 s"),
            "{unbound}"
        );
        let mut missing = shell("true", "sip");
        "no-such-program".clone_into(&mut missing.process[0].program);
        "some-package".clone_into(&mut missing.package);
        let text = start(&missing).unwrap_err().to_string();
        assert!(text.contains("not installed: no-such-program"), "{text}");
        assert!(text.contains("install the package some-package"), "{text}");
    }
}
