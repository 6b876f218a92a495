//! The link in real time: two ends, an engine for each direction, and the loop between them.

use super::control::{LinkRequest, RequestQueue};
use super::ends::{EndLosses, EndName, LinkEnd, Unsent, corrupt};
use super::settings::{BothWays, DIRECTIONS, LineSettings, check_effect, keys_of};
use crate::error::LabError;
use crate::hops::DelayCounter;
use engine::{Entropy, Time};
use hdrhistogram::Histogram;
use net::{Clock, wait_any};
use serde_json::{Value, json};
use sim::{Emulator, EmulatorCounts, Link, Passage};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Packets in one direction, at most: about 150 MB of full-sized ones.
const LIMIT: usize = 100_000;
/// Longest wait: requests and the end of the run are noticed after it.
const WAIT: Duration = Duration::from_millis(20);
/// Packets that are sent in one go.
const BATCH: usize = 64;
/// Longest time in which the packets that wait at an end are discarded: a flood would be read without end otherwise.
const DISCARD: Duration = Duration::from_millis(50);
/// Buffers kept for reuse.
const SPARE: usize = 4_096;

/// A packet, and the time at which it entered the link.
#[derive(Clone, Debug, Default)]
struct LinkPacket {
    bytes: Vec<u8>,
    entered: Time,
}

/// A packet of a batch that is sent.
#[derive(Debug)]
struct Leaving {
    /// Time at which it entered the link.
    entered: Time,
    /// Time at which it is due at the other end.
    due: Time,
    /// A bit of it was changed.
    is_corrupt: bool,
    /// Why the kernel did not send it.
    unsent: Option<Unsent>,
}

/// One direction of a running link.
#[derive(Debug)]
struct Line {
    settings: LineSettings,
    emulator: Emulator<LinkPacket>,
    /// Time between the due time of a packet and the end of the call that sent it, nanoseconds.
    lateness: Histogram<u64>,
    /// Time between the entry of a packet and the end of the call that sent it.
    delays: DelayCounter,
    bytes: u64,
    /// Packets whose way ended, and that the kernel did not send.
    not_sent: u64,
    /// Of those, refused ones without a changed bit: a kernel may refuse a packet whose header the link has damaged.
    refused: u64,
    /// Packets that waited before the beginning.
    discarded: u64,
    /// Losses are judged against the settings since this count.
    judged_from: EmulatorCounts,
}

impl Line {
    /// Counts a packet of a batch that was sent at `sent`.
    fn note(&mut self, packet: &Leaving, bytes: usize, sent: Time) {
        if let Some(why) = packet.unsent {
            self.not_sent += 1;
            self.refused += u64::from(why == Unsent::Refused && !packet.is_corrupt);
            return;
        }
        self.bytes += bytes as u64;
        self.lateness
            .saturating_record(sent.since(packet.due).as_nanos() as u64);
        self.delays
            .record(sent.since(packet.entered).as_nanos() as u64);
    }

    /// Packets by outcome; packets that the kernel did not send have not arrived.
    fn counts(&self) -> EmulatorCounts {
        let counts = self.emulator.counts();
        EmulatorCounts {
            arrived: counts.arrived.saturating_sub(self.not_sent),
            ..counts
        }
    }
}

/// Figures of one direction.
#[derive(Clone, Debug)]
pub struct LineFigures {
    /// Settings at the end.
    pub settings: LineSettings,
    /// Packets by outcome.
    pub counts: EmulatorCounts,
    /// Bytes that arrived, with the headers that the ends have.
    pub bytes: u64,
    /// Packets exposed to the loss of the settings, and lost, since the settings were changed last.
    pub exposed: (u64, u64),
    /// Lateness of sending: median, 99th percentile, largest, microseconds.
    pub late_us: [f64; 3],
    /// Packets that waited before the beginning, and did not enter the link.
    pub discarded: u64,
    /// Time of packets in the link.
    pub(crate) delays: DelayCounter,
    /// Losses at the end at which packets enter, and refusals at that at which they leave.
    pub losses: EndLosses,
}

/// A link between two ends.
#[derive(Debug)]
pub struct RealTimeLink {
    ends: [LinkEnd; 2],
    lines: [Line; 2],
    clock: Clock,
    entropy: Entropy,
    spare: Vec<Vec<u8>>,
    /// The packets of the batch, and their bytes.
    leaving: Vec<Leaving>,
    batch: Vec<Vec<u8>>,
}

impl RealTimeLink {
    /// Opens both ends in the network namespace of the calling thread.
    ///
    /// # Errors
    /// As [`LinkEnd::open`], or the ends have packets of different forms.
    pub fn open(
        names: &[EndName; 2],
        settings: &BothWays,
        mut entropy: Entropy,
        clock: Clock,
    ) -> Result<RealTimeLink, LabError> {
        if names[0] == names[1] {
            return Err(LabError::bad_input(
                "both ends are the same: name two with --a and --b",
            ));
        }
        let ends = [LinkEnd::open(&names[0])?, LinkEnd::open(&names[1])?];
        if ends[0].form() != ends[1].form() {
            return Err(LabError::bad_input(
                "the ends have packets of different forms (Ethernet frames, IP packets or UDP payloads): name two of a kind",
            ));
        }
        let lines = [&settings[0], &settings[1]].map(|settings| Line {
            settings: settings.clone(),
            emulator: Emulator::new(Link::new(settings.config(), entropy.fork()), LIMIT),
            lateness: lateness(),
            delays: DelayCounter::default(),
            bytes: 0,
            not_sent: 0,
            refused: 0,
            discarded: 0,
            judged_from: EmulatorCounts::default(),
        });
        Ok(RealTimeLink {
            ends,
            lines,
            clock,
            entropy,
            spare: Vec::new(),
            leaving: Vec::with_capacity(BATCH),
            batch: Vec::with_capacity(BATCH),
        })
    }

    /// Carries packets until `stop` is set or a stop signal arrives, at most until `end`. Returns whether it was a
    /// signal.
    ///
    /// # Errors
    /// An interface is gone.
    pub fn run(
        &mut self,
        end: Time,
        stop: &AtomicBool,
        requests: Option<&RequestQueue>,
    ) -> Result<bool, LabError> {
        loop {
            let busy = self.receive()?;
            self.deliver();
            let signalled = net::stops() > 0;
            if signalled || stop.load(Ordering::Relaxed) || self.clock.now() >= end {
                return Ok(signalled);
            }
            while let Some(request) = requests.and_then(RequestQueue::next) {
                if self.serve(request) {
                    return Ok(false);
                }
            }
            if busy {
                continue;
            }
            let now = self.clock.now();
            let next = self.lines.iter().filter_map(|line| line.emulator.next_at());
            let wait = next.min().map_or(WAIT, |next| next.since(now).min(WAIT));
            if !wait.is_zero() {
                let ready = wait_any([self.ends[0].as_fd(), self.ends[1].as_fd()], wait);
                for (end, ready) in self.ends.iter().zip(ready) {
                    end.check(ready).map_err(end_failed)?;
                }
            }
        }
    }

    /// Discards the packets that wait at the ends, and counts them. Takes at most [`DISCARD`] for each end.
    ///
    /// # Errors
    /// An interface is gone.
    pub fn discard(&mut self) -> Result<(), LabError> {
        for (end, line) in self.ends.iter_mut().zip(&mut self.lines) {
            let clock = &self.clock;
            let has_times = end.has_arrival_times();
            let discarded = read_waiting(clock, |packet| {
                // Without times of arrival, only the bound of time ends the reading of a flood.
                end.receive(clock, &mut |at, _, _| packet(has_times.then_some(at)))
            });
            line.discarded += discarded.map_err(end_failed)?;
            // Frames that the kernel dropped meanwhile are none of the run.
            end.forget_losses();
        }
        Ok(())
    }

    /// Packets that wait at the ends enter the link. Returns whether more may wait.
    fn receive(&mut self) -> Result<bool, LabError> {
        let mut busy = false;
        for (end, line) in self.ends.iter_mut().zip(&mut self.lines) {
            let spare = &mut self.spare;
            let mut enter = |at: Time, bytes: &[u8], length: usize| {
                let mut packet = LinkPacket {
                    bytes: spare.pop().unwrap_or_default(),
                    entered: at,
                };
                packet.bytes.clear();
                packet.bytes.extend_from_slice(bytes);
                if let Err((packet, _)) = line.emulator.push(packet, length, at)
                    && spare.len() < SPARE
                {
                    spare.push(packet.bytes);
                }
            };
            busy |= end.receive(&self.clock, &mut enter).map_err(end_failed)?;
        }
        Ok(busy)
    }

    /// Sends the packets whose way has ended.
    fn deliver(&mut self) {
        for (index, line) in self.lines.iter_mut().enumerate() {
            let out = &mut self.ends[1 - index];
            loop {
                let now = self.clock.now();
                while self.batch.len() < BATCH
                    && let Some((at, passage)) = line.emulator.pop(now)
                {
                    match passage {
                        Passage::Arrived {
                            mut packet,
                            corrupt: is_corrupt,
                        } => {
                            if is_corrupt {
                                corrupt(out.form(), &mut packet.bytes, self.entropy.u64());
                            }
                            self.leaving.push(Leaving {
                                entered: packet.entered,
                                due: at,
                                is_corrupt,
                                unsent: None,
                            });
                            self.batch.push(packet.bytes);
                        }
                        Passage::Dropped { packet, .. } => self.spare.push(packet.bytes),
                    }
                }
                if self.batch.is_empty() {
                    break;
                }
                let leaving = &mut self.leaving;
                out.send(&self.batch, &mut |place, why| {
                    if let Some(packet) = leaving.get_mut(place) {
                        packet.unsent = Some(why);
                    }
                });
                let sent = self.clock.now();
                for (packet, bytes) in self.leaving.drain(..).zip(&self.batch) {
                    line.note(&packet, bytes.len(), sent);
                }
                self.spare.append(&mut self.batch);
                self.spare.truncate(SPARE);
            }
        }
    }

    /// Executes a request. Returns whether the link ends.
    fn serve(&mut self, request: LinkRequest) -> bool {
        let (answer, ends) = match request.text.split_once(' ') {
            _ if request.text == "show" => (self.show().to_string(), false),
            _ if request.text == "stop" => ("ok".to_owned(), true),
            Some(("set", words)) => match self.set(words) {
                Ok(()) => ("ok".to_owned(), false),
                Err(error) => (format!("error: {error}"), false),
            },
            _ => (
                "error: expected set [a-to-b|b-to-a] KEY=VALUE ..., show or stop".to_owned(),
                false,
            ),
        };
        request.answer(answer);
        ends
    }

    fn set(&mut self, words: &str) -> Result<(), String> {
        let (only, words) = match words.trim().split_once(' ') {
            Some((first, rest)) if first == DIRECTIONS[0] => (Some(0), rest),
            Some((first, rest)) if first == DIRECTIONS[1] => (Some(1), rest),
            _ => (None, words),
        };
        let mut changed: BothWays = [
            self.lines[0].settings.clone(),
            self.lines[1].settings.clone(),
        ];
        let is_meant = |index: usize| only.is_none_or(|only| only == index);
        let both = changed.iter_mut().enumerate();
        for (_, line) in both.filter(|(index, _)| is_meant(*index)) {
            line.set_all(words)?;
        }
        let both = changed.iter().enumerate();
        let meant: Vec<_> = both.filter(|(index, _)| is_meant(*index)).collect();
        let meant: Vec<_> = meant.into_iter().map(|(_, line)| line).collect();
        check_effect(&meant, keys_of(words))?;
        self.set_lines(&changed);
        Ok(())
    }

    /// Changes the settings of both directions, from now on.
    pub fn set_lines(&mut self, changed: &BothWays) {
        let now = self.clock.now();
        for (line, settings) in self.lines.iter_mut().zip(changed) {
            if line.settings != *settings {
                line.emulator.set(settings.config(), now);
                line.settings = settings.clone();
                line.judged_from = line.emulator.counts();
            }
        }
    }

    fn show(&self) -> Value {
        let lines = self.lines.iter().zip(DIRECTIONS).map(|(line, name)| {
            let counts = line.counts();
            json!({
                "direction": name,
                "settings": line.settings.to_json(),
                "offered": counts.offered,
                "arrived": counts.arrived,
                "waiting": line.emulator.waiting(),
                "in_link": line.emulator.packets(),
            })
        });
        Value::Array(lines.collect())
    }

    /// Figures until now, of each direction.
    pub fn figures(&mut self) -> [LineFigures; 2] {
        let losses = [self.ends[0].losses(), self.ends[1].losses()];
        let mut index = 0;
        [&self.lines[0], &self.lines[1]].map(|line| {
            let quantile = |q: f64| line.lateness.value_at_quantile(q) as f64 / 1e3;
            let max = line.lateness.max() as f64 / 1e3;
            let counts = line.counts();
            let figures = LineFigures {
                settings: line.settings.clone(),
                counts,
                bytes: line.bytes,
                exposed: (
                    counts.exposed - line.judged_from.exposed,
                    counts.lost - line.judged_from.lost,
                ),
                late_us: [quantile(0.5).min(max), quantile(0.99).min(max), max],
                discarded: line.discarded,
                delays: line.delays.clone(),
                losses: EndLosses {
                    refused: line.refused,
                    ..losses[index]
                },
            };
            index += 1;
            figures
        })
    }
}

/// Reads the packets that came before the call, by `receive`, which passes the times of a batch, if they are known, and
/// returns whether more may wait. Later packets of the last batch are read, too. Returns the number of all.
fn read_waiting(
    clock: &Clock,
    mut receive: impl FnMut(&mut dyn FnMut(Option<Time>)) -> std::io::Result<bool>,
) -> std::io::Result<u64> {
    let begin = clock.now();
    let until = begin + DISCARD;
    let mut count = 0;
    loop {
        let mut is_later = false;
        let more = receive(&mut |at| {
            count += 1;
            is_later |= at.is_some_and(|at| at > begin);
        })?;
        if !more || is_later || clock.now() >= until {
            return Ok(count);
        }
    }
}

fn end_failed(error: std::io::Error) -> LabError {
    LabError::cannot_run(
        format!("an end of the link failed: {error}"),
        "keep both interfaces up while the link runs",
    )
}

/// A histogram of up to a minute with three digits. It is empty memory if the bounds are refused, which they are not.
fn lateness() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3)
        .unwrap_or_else(|error| unreachable!("bounds of a histogram: {error}"))
}

/// Gives the calling thread, which runs a link, exact timers, and real-time priority where it is permitted. Returns
/// whether it is.
pub fn prepare_thread() -> bool {
    // Both are refused in some sandboxes; the lateness that follows is measured.
    let _ = net::tight_timers();
    net::realtime(PRIORITY).is_ok()
}

/// Lowest real-time priority: above all ordinary threads.
const PRIORITY: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use net::Network;

    #[test]
    fn discarding_ends_under_a_flood() {
        let clock = Clock::new();
        // A device without times of arrival, which is never empty.
        let endless = read_waiting(&clock, |packet| {
            packet(None);
            Ok(true)
        });
        assert!(endless.unwrap() > 0);
        // With them, the first packet that came after the beginning is the last one.
        let mut read = 0;
        let count = read_waiting(&clock, |packet| {
            read += 1;
            packet(Some(match read {
                1..=3 => Time::ZERO,
                _ => clock.now() + WAIT,
            }));
            Ok(true)
        });
        assert_eq!((count.unwrap(), read), (4, 4));
    }

    #[test]
    fn discarded_packets_are_counted() {
        let bound = [0_u16; 2].map(|port| std::net::UdpSocket::bind(("127.0.0.78", port)).unwrap());
        let [a, b] = bound.map(|socket| socket.local_addr().unwrap());
        let ends = [EndName::Udp(a, b), EndName::Udp(b, a)];
        let clock = Clock::new();
        let seed = Entropy::from_number(1);
        let mut link = RealTimeLink::open(&ends, &BothWays::default(), seed, clock).unwrap();
        let sender = std::net::UdpSocket::bind("127.0.0.78:0").unwrap();
        for _ in 0..BATCH + 36 {
            sender.send_to(b"waits", a).unwrap();
        }
        // The times of arrival are those of another clock: they may seem a little later than they were.
        std::thread::sleep(WAIT);
        link.discard().unwrap();
        let figures = link.figures();
        let offered = figures.each_ref().map(|line| line.counts.offered);
        assert_eq!(figures.each_ref().map(|line| line.discarded), [100, 0]);
        assert_eq!(offered, [0, 0]);
        assert!(!link.receive().unwrap(), "no packet is left");
    }

    /// Without the error the thread of the link would spin at real-time priority, and carry nothing.
    #[test]
    fn link_ends_when_a_tun_device_is_removed() {
        let Ok(network) = Network::new() else {
            eprintln!("skipped: no right to a network namespace");
            return;
        };
        let job = move || {
            network.enter().unwrap();
            let clock = Clock::new();
            let ends = ["gone0", "gone1"].map(|name| EndName::Tun(name.to_owned()));
            let entropy = Entropy::from_number(1);
            let link = RealTimeLink::open(&ends, &BothWays::default(), entropy, clock);
            let Ok(mut link) = link else {
                eprintln!("skipped: no TUN devices");
                return;
            };
            let stop = AtomicBool::new(false);
            // Both devices are there.
            let soon = clock.now() + WAIT * 2;
            assert!(!link.run(soon, &stop, None).unwrap());
            let removed = std::process::Command::new("ip")
                .args(["link", "del", "gone1"])
                .status();
            assert!(removed.unwrap().success());
            let late = clock.now() + Duration::from_secs(10);
            let error = link.run(late, &stop, None).unwrap_err().to_string();
            assert!(error.contains("gone1 was removed"), "{error}");
        };
        std::thread::spawn(job).join().unwrap();
    }
}
