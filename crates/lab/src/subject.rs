//! What is measured: our border, a foreign system, or nothing at all.

use crate::error::LabError;
use crate::experiment::Experiment;
use engine::Entropy;
use net::Clock;
use sim::World;
use std::net::SocketAddr;

/// A subject on real sockets.
#[derive(Debug)]
pub struct Subject {
    address: Option<SocketAddr>,
    process: Option<u32>,
}

/// Clock ticks of /proc in a second (USER_HZ, the same on every Linux that we run on).
const TICKS: f64 = 100.0;

impl Subject {
    /// Starts, or finds, the subject of `experiment`; calls are to reach `far`.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(
        experiment: &Experiment,
        far: Option<SocketAddr>,
        entropy: Entropy,
        clock: Clock,
    ) -> Result<Subject, LabError> {
        let _ = (far, entropy, clock);
        if experiment.subject.none || experiment.subject.address.is_some() {
            return Ok(Subject {
                address: experiment.subject.address,
                process: experiment.subject.process,
            });
        }
        Err(LabError::cannot(
            "the border as a subject is not in this build yet",
            "measure a foreign one with --set subject.address=IP:PORT",
        ))
    }

    /// Where it listens; `None` where there is none.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Its CPU time so far, seconds; `None` where it cannot be known.
    ///
    /// # Errors
    /// Where the stated process does not exist.
    pub fn cpu_seconds(&self) -> Result<Option<f64>, LabError> {
        self.process.map(process_cpu).transpose()
    }

    /// Calls and ports that it holds once all is over; `None` where it cannot be asked.
    ///
    /// # Errors
    /// Where it has stopped.
    pub fn settled_holdings(&self) -> Result<Option<u64>, LabError> {
        Ok(None)
    }

    /// Ends it; gives remarks about it.
    ///
    /// # Errors
    /// Where it failed meanwhile.
    pub fn finish(self) -> Result<Vec<String>, LabError> {
        Ok(Vec::new())
    }
}

/// CPU time of a process and of its children that it has waited for, seconds (proc(5), fields 14 to 17 of `stat`).
fn process_cpu(process: u32) -> Result<f64, LabError> {
    let path = format!("/proc/{process}/stat");
    let text = std::fs::read_to_string(&path)
        .map_err(|error| LabError::bad(format!("subject.process: {path}: {error}")))?;
    // The name, in parentheses, may contain spaces.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(4)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Ok(ticks as f64 / TICKS)
}

/// A subject in virtual time.
#[derive(Debug)]
pub struct Simulated {
    address: Option<SocketAddr>,
}

impl Simulated {
    /// Adds the subject of `experiment` to the world.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn add(
        world: &mut World,
        experiment: &Experiment,
        far: Option<SocketAddr>,
    ) -> Result<Simulated, LabError> {
        let _ = (world, far);
        if experiment.subject.none {
            return Ok(Simulated { address: None });
        }
        Err(LabError::cannot(
            "the border as a subject is not in this build yet",
            "",
        ))
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// What it still holds.
    pub fn holdings(&self, world: &mut World) -> Option<u64> {
        let _ = world;
        None
    }
}
