//! Links of `[network]` in real time: between the namespace of a side and that of the SUT lies a third one, in which a
//! thread carries the packets as `hornwork lab link` does.

use super::namespaces::{in_namespace, link_error};
use crate::emulator::ends::EndName;
use crate::emulator::engine::{LineFigures, RealTimeLink, prepare_thread};
use crate::emulator::settings::BothWays;
use crate::emulator::{LatenessBound, faults, line_json};
use crate::error::LabError;
use crate::experiment::NetworkSettings;
use crate::raw::{LinkRecord, NoiseRecord};
use crate::report::plain;
use engine::Entropy;
use net::{Clock, Network};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interfaces of the namespace between two others: towards the hosts, and towards the SUT.
pub(super) const ENDS: [&str; 2] = ["hosts", "sut"];
/// Names of both directions in records.
const DIRECTIONS: [&str; 2] = ["up", "down"];
/// Lateness of sending above which a trial is not judged: a tenth of the packet time of voice. The hosts of the trial
/// share the processors with the link.
const LATENESS: LatenessBound = LatenessBound {
    ms: 2.0,
    from_packets: 300,
};
/// Time after which the thread looks whether it shall end, or the faults have.
const SLICE: Duration = Duration::from_millis(20);
/// Wait between two looks at the interfaces once a stop signal arrived, with which the link no longer waits for
/// packets.
const AFTER_SIGNAL: Duration = Duration::from_micros(200);

/// A link that a thread of its own carries.
#[derive(Debug)]
pub(super) struct CarriedLink {
    name: &'static str,
    stop: Arc<AtomicBool>,
    healed: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<[LineFigures; 2], LabError>>>,
    /// The namespace lives as long as the link.
    _line: Arc<Network>,
}

impl CarriedLink {
    /// Starts to carry packets between two interfaces in the namespace `line`.
    ///
    /// # Errors
    /// A right is missing.
    pub fn start(
        name: &'static str,
        (line, ends): (Arc<Network>, [&str; 2]),
        settings: &NetworkSettings,
        entropy: Entropy,
        clock: Clock,
    ) -> Result<CarriedLink, LabError> {
        let ends = ends.map(|name| EndName::Interface(name.to_owned()));
        let before = settings.lines(false);
        let after = settings.lines(true);
        let link = in_namespace(&line, || RealTimeLink::open(&ends, &before, entropy, clock))?;
        let (stop, healed) = (Arc::default(), Arc::default());
        let (stopped, faults_ended) = (Arc::clone(&stop), Arc::clone(&healed));
        let place = line.clone();
        let carry = move || {
            place.enter().map_err(|error| link_error("setns", error))?;
            carry(link, &stopped, &faults_ended, &after, clock)
        };
        let thread = std::thread::Builder::new()
            .name(format!("link {name}"))
            .spawn(carry)
            .map_err(|error| link_error("a thread", error))?;
        Ok(CarriedLink {
            name,
            stop,
            healed,
            thread: Some(thread),
            _line: line,
        })
    }

    /// The faults end.
    pub fn heal(&self) {
        self.healed.store(true, Ordering::Relaxed);
    }

    /// Ends the link; returns its record. `noise` is that of the trial.
    ///
    /// # Errors
    /// An interface was gone.
    pub fn finish(mut self, noise: &NoiseRecord) -> Result<LinkRecord, LabError> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        let figures = match ended {
            Some(Ok(figures)) => figures?,
            _ => return Err(link_error("a thread", "it panicked")),
        };
        let faults = faults(&figures, noise, LATENESS);
        Ok(LinkRecord {
            name: self.name.to_owned(),
            remark: remark(self.name, &figures),
            faults: faults
                .iter()
                .map(|fault| {
                    let fault = fault
                        .replace("a-to-b", DIRECTIONS[0])
                        .replace("b-to-a", DIRECTIONS[1]);
                    format!("{}: {fault}", self.name)
                })
                .collect(),
            delay_ms: delays_of(&figures),
            directions: figures
                .iter()
                .zip(DIRECTIONS)
                .map(|(line, name)| line_json(line, name))
                .collect(),
        })
    }
}

impl Drop for CarriedLink {
    /// An aborted trial leaves no thread behind.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn carry(
    mut link: RealTimeLink,
    stop: &AtomicBool,
    healed: &AtomicBool,
    after: &BothWays,
    clock: Clock,
) -> Result<[LineFigures; 2], LabError> {
    prepare_thread();
    let mut has_faults = true;
    while !stop.load(Ordering::Relaxed) {
        if has_faults && healed.load(Ordering::Relaxed) {
            link.set_lines(after);
            has_faults = false;
        }
        // Calls that go on after a stop signal have their network until they are over.
        if link.run(clock.now() + SLICE, stop, None)? {
            std::thread::sleep(AFTER_SIGNAL);
        }
    }
    Ok(link.figures())
}

/// Time of packets in a link, both directions: mean, median, 99th percentile.
fn delays_of([up, down]: &[LineFigures; 2]) -> Option<[f64; 3]> {
    let mut both = up.delays.clone();
    both.add(&down.delays);
    let [mean, p50, p99] = both.figures();
    Some([mean?, p50?, p99?])
}

/// Description of a link and of the packets on it.
fn remark(name: &str, figures: &[LineFigures; 2]) -> String {
    let line = |(line, direction): (&LineFigures, &str)| {
        let counts = &line.counts;
        let queue = counts.queue_full + counts.codel;
        format!(
            "{direction} {}: {} packets, {} lost, {queue} dropped by the queue, {} by the MTU or the interface, late p99 {} ms",
            line.settings.text(),
            counts.offered,
            counts.lost,
            counts.too_large + line.losses.refused + line.losses.unsupported,
            plain(line.late_us[1] / 1e3),
        )
    };
    let lines: Vec<String> = figures.iter().zip(DIRECTIONS).map(line).collect();
    format!("link of {name}: {}", lines.join("; "))
}
