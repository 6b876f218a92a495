//! The emulator's own error, measured before each use: a stream through a link between two pairs of virtual interfaces
//! in a network namespace of its own.

use super::Z999;
use super::ends::EndName;
use super::engine::{RealTimeLink, prepare_thread};
use super::settings::{BothWays, LineSettings};
use crate::error::LabError;
use crate::statistics::{Interval, has_too_few_samples, quantile};
use engine::Time;
use net::{Clock, Network, NoiseSampler, PacketSocket};
use serde::Serialize;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Delay of the test link.
const DELAY: Duration = Duration::from_millis(5);
/// Its loss, percent.
const LOSS_PERCENT: f64 = 3.0;
/// Packets of the test, and the time between two.
const PACKETS: u64 = 8_000;
const INTERVAL: Duration = Duration::from_micros(100);
/// Ethertype of the test's frames: for local experiments (IEEE 802).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// Length of the test's frames, bytes: a G.711 packet of 20 ms.
const FRAME: usize = 214;
/// Delay beyond the host's noise above which the link is not the configured one, microseconds (99th percentile).
const BEYOND_NOISE_US: f64 = 100.0;
/// Lateness of the host's threads (99th percentile), microseconds, above which it explains any delay, so that the link
/// is not judged: other work kept the machine busy ([`crate::caveats`]).
const MOST_NOISE_US: f64 = 4_000.0;
/// Most measurements: a stall of the host rarely comes in each of them.
const ATTEMPTS: u32 = 4;
/// Least share of the planned rate that the test has to send.
const LEAST_RATE: f64 = 0.95;
/// Time after the last packet.
const DRAIN: Duration = Duration::from_millis(100);

/// The own error.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OwnError {
    /// Packets sent through the test link.
    pub packets: u64,
    /// Packets sent per second.
    pub packets_per_second: f64,
    /// Packets that arrived: the samples of the delay.
    pub arrived: u64,
    /// Delay of the test link, milliseconds.
    pub delay_ms: f64,
    /// Measured delay less the set one: median, microseconds.
    pub error_p50_us: f64,
    /// 99th percentile, microseconds.
    pub error_p99_us: f64,
    /// Largest, microseconds.
    pub error_max_us: f64,
    /// Lateness of a sleeping thread on this host meanwhile, 99th percentile, microseconds.
    pub noise_p99_us: f64,
    /// Its mean, microseconds.
    pub noise_mean_us: f64,
    /// Its samples.
    pub noise_samples: u64,
    /// Lateness of the thread that sends the test's packets, 99th percentile, microseconds: as many packets as of the
    /// link are late after a stall of the host, which is a single sample of its noise.
    pub sender_late_p99_us: f64,
    /// The 99th percentile of the error beyond that of the sleeping thread, microseconds.
    pub beyond_noise_p99_us: f64,
    /// The same beyond the larger one of both lateness figures of the host: the link's part.
    pub link_p99_us: f64,
    /// Loss of the test link, percent.
    pub loss_percent: f64,
    /// Measured loss, percent.
    pub measured_loss_percent: f64,
    /// Its 95 % interval, percent.
    pub loss_interval: [f64; 2],
    /// The threads of the emulator have real-time priority.
    pub realtime: bool,
    /// Measurements until the first one within the bounds; without one, these figures are those of the one in which the
    /// host disturbed least.
    pub attempts: u32,
    /// `within its bounds`, `out of its bounds`, or `not judged`: the host was too busy, or the samples too few.
    pub verdict: &'static str,
}

impl OwnError {
    /// The part of the delay that is the host's: timers of a sleeping thread, or the test's sender, were late by it
    /// (99th percentile). The sender's packets come in the rhythm of those of the link: as many are late after a stall.
    fn host_us(&self) -> f64 {
        self.noise_p99_us.max(self.sender_late_p99_us)
    }

    /// Reasons why a link on this machine is not the configured one, or why that is not known.
    pub fn faults(&self) -> Vec<String> {
        let mut faults: Vec<String> = self.not_judged().into_iter().collect();
        // Half of the packets come before any stall of the host, so its share of the median is small.
        let median = self.error_p50_us.abs() - self.noise_mean_us;
        if median > BEYOND_NOISE_US {
            faults.push(format!(
                "own error: the median delay is {:+.3} ms beside the set one, the host's timers are late by {:.3} ms (mean): more than {} ms are the link's",
                self.error_p50_us / 1e3,
                self.noise_mean_us / 1e3,
                BEYOND_NOISE_US / 1e3
            ));
        }
        let beyond = self.error_p99_us - self.host_us();
        if beyond > BEYOND_NOISE_US {
            faults.push(format!(
                "own error: the link delays packets by {:.3} ms more than set (p99, beyond the host's {:.3} ms), more than {} ms",
                beyond / 1e3,
                self.host_us() / 1e3,
                BEYOND_NOISE_US / 1e3
            ));
        }
        let (packets, share) = (self.packets as f64, self.loss_percent / 100.0);
        let spread = Z999 * (packets * share * (1.0 - share)).sqrt();
        let lost = self.measured_loss_percent / 100.0 * packets;
        if (lost - packets * share).abs() > spread + 1.0 {
            faults.push(format!(
                "own error: the link lost {:.2} % of {} packets, set are {} %",
                self.measured_loss_percent, self.packets, self.loss_percent
            ));
        }
        faults
    }

    /// Why the host, or too few samples, do not permit a judgement of the delay.
    fn not_judged(&self) -> Option<String> {
        let planned = 1.0 / INTERVAL.as_secs_f64();
        // A link that is within its bound by itself needs no excuse, however busy the host is.
        let needs_excuse = self.error_p99_us > BEYOND_NOISE_US;
        let why = if self.packets_per_second < planned * LEAST_RATE {
            format!(
                "the test sent {:.0} of {planned:.0} packets/s, as this host's sender was late by {:.3} ms (p99)",
                self.packets_per_second,
                self.sender_late_p99_us / 1e3
            )
        } else if has_too_few_samples(self.arrived, 0.99) || !self.error_p99_us.is_finite() {
            format!(
                "{} packets that arrived are too few for a 99th percentile",
                self.arrived
            )
        } else if needs_excuse && has_too_few_samples(self.noise_samples, 0.99) {
            format!(
                "{} samples of the host's noise are too few for a 99th percentile",
                self.noise_samples
            )
        } else if needs_excuse && self.host_us() > MOST_NOISE_US {
            format!(
                "the host is too busy: its timers are late by {:.3} ms, the test's sender by {:.3} ms (p99), more than {} ms; the link's packets by {:.3} ms",
                self.noise_p99_us / 1e3,
                self.sender_late_p99_us / 1e3,
                MOST_NOISE_US / 1e3,
                self.error_p99_us / 1e3
            )
        } else {
            return None;
        };
        Some(format!("own error not judged: {why}"))
    }

    /// The verdict in JSON.
    fn verdict_of(&self) -> &'static str {
        match (self.not_judged(), self.faults().is_empty()) {
            (Some(_), _) => "not judged",
            (None, true) => "within its bounds",
            (None, false) => "out of its bounds",
        }
    }

    /// One line for the terminal.
    pub fn text(&self) -> String {
        let [low, high] = self.loss_interval;
        let outside = match (low..=high).contains(&self.loss_percent) {
            true => "",
            false => "; the set loss is outside: this machine lost or kept other packets",
        };
        let times = match self.attempts {
            0 | 1 => String::new(),
            attempts => format!(", best of {attempts} measurements"),
        };
        format!(
            "own error at {:.0} packets/s: delay p50 {:+.3} ms, p99 {:+.3} ms, of which {:.3} ms are the host's (p99 of its timers {:.3} ms in {} samples, of the sender {:.3} ms) and {:+.3} ms the link's ({} packets), loss {:.2} % of {} % (interval {low:.2} to {high:.2} %{outside}): {}{times}",
            self.packets_per_second,
            self.error_p50_us / 1e3,
            self.error_p99_us / 1e3,
            self.host_us() / 1e3,
            self.noise_p99_us / 1e3,
            self.noise_samples,
            self.sender_late_p99_us / 1e3,
            self.link_p99_us / 1e3,
            self.arrived,
            self.measured_loss_percent,
            self.loss_percent,
            self.verdict,
        )
    }
}

fn cannot(what: &str, error: impl std::fmt::Display) -> LabError {
    LabError::cannot_run(
        format!("cannot measure the link's own error: {what}: {error}"),
        "run it as root (CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_RAW) on a kernel with veth, with ip (Debian: iproute2)",
    )
}

/// Measures it, up to four times until it is within its bounds; it takes about a second each time.
///
/// # Errors
/// A right or a program is missing.
pub fn measure() -> Result<OwnError, LabError> {
    let mut best = measure_once()?;
    for attempts in 2..=ATTEMPTS {
        if best.faults().is_empty() || net::stops() > 0 {
            break;
        }
        best = better(best, measure_once()?);
        best.attempts = attempts;
    }
    Ok(best)
}

/// The one of two measurements that is within its bounds, or else that in which the host disturbed less.
fn better(one: OwnError, other: OwnError) -> OwnError {
    let is_quieter = other.host_us() < one.host_us();
    match other.faults().is_empty() || is_quieter {
        true => other,
        false => one,
    }
}

fn measure_once() -> Result<OwnError, LabError> {
    let network = Network::new().map_err(|error| cannot("unshare", error))?;
    std::thread::scope(|scope| {
        let whole = || {
            network.enter().map_err(|error| cannot("setns", error))?;
            in_namespace()
        };
        let done = scope.spawn(whole).join();
        done.unwrap_or_else(|_| Err(cannot("a thread", "it panicked")))
    })
}

fn in_namespace() -> Result<OwnError, LabError> {
    // No IPv6: its own packets would be carried, too.
    let set_up = "ip link add s0 type veth peer name a0 && ip link add s1 type veth peer name b0 && \
                  for i in s0 a0 s1 b0; do ip link set $i addrgenmode none && ip link set $i up || exit 1; done";
    let done = Command::new("sh").args(["-c", set_up]).output();
    let done = done.map_err(|error| cannot("sh", error))?;
    if !done.status.success() {
        let why = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        return Err(cannot("ip link", why));
    }
    let clock = Clock::new();
    let line = LineSettings {
        delay: DELAY,
        loss: LOSS_PERCENT / 100.0,
        ..LineSettings::default()
    };
    let settings: BothWays = [line, LineSettings::default()];
    let ends = ["a0", "b0"].map(|name| EndName::Interface(name.to_owned()));
    let seed = net::entropy().map_err(|error| cannot("getrandom", error))?;
    let mut link = RealTimeLink::open(&ends, &settings, seed, clock)?;
    let open = |name: &str| PacketSocket::open(name).map_err(|error| cannot(name, error));
    let (mut sender, mut receiver) = (open("s0")?, open("s1")?);
    let stop = AtomicBool::new(false);
    let sampler = NoiseSampler::start(Duration::from_millis(1), None)
        .map_err(|error| cannot("a thread", error))?;
    let begin = clock.now() + Duration::from_millis(20);
    let last = begin + INTERVAL * PACKETS as u32;
    let (delays, realtime, (sending, mut late)) = std::thread::scope(|scope| {
        let forwarder = scope.spawn(|| {
            let realtime = prepare_thread();
            let end = last + DELAY + DRAIN * 2;
            link.run(end, &stop, None).map(|_| realtime)
        });
        let counter = scope.spawn(|| collect(&mut receiver, &clock, last + DELAY + DRAIN));
        prepare_thread();
        let late = send(&mut sender, &clock, begin);
        let sending = clock.now().since(begin);
        let delays = counter.join();
        stop.store(true, Ordering::Relaxed);
        (delays, forwarder.join(), (sending, late))
    });
    let noise = sampler
        .stop()
        .map_err(|error| cannot("noise sampler", error))?;
    let realtime = realtime.map_err(|_| cannot("a thread", "it panicked"))??;
    if net::stops() > 0 {
        // The link ended with the signal, and its packets with it.
        let text = "interrupted while the link's own error was measured";
        return Err(LabError::Interrupted(text.to_owned()));
    }
    let mut errors = delays
        .map_err(|_| cannot("a thread", "it panicked"))?
        .map_err(|error| cannot("receive", error))?;
    errors.sort_by(f64::total_cmp);
    late.sort_by(f64::total_cmp);
    let at = |q: f64| quantile(&errors, q).unwrap_or(f64::NAN);
    if errors.is_empty() {
        return Err(cannot("the test link", "no packet arrived"));
    }
    let lost = PACKETS.saturating_sub(errors.len() as u64);
    let interval = Interval::of_share(lost, PACKETS, 100.0, "packets");
    let p99 = at(0.99);
    let mut measured = OwnError {
        packets: PACKETS,
        arrived: errors.len() as u64,
        packets_per_second: PACKETS as f64 / sending.as_secs_f64().max(f64::MIN_POSITIVE),
        delay_ms: DELAY.as_secs_f64() * 1e3,
        error_p50_us: at(0.5),
        error_p99_us: p99,
        error_max_us: at(1.0),
        noise_p99_us: noise.p99_us,
        noise_mean_us: noise.mean_us,
        noise_samples: noise.samples,
        sender_late_p99_us: quantile(&late, 0.99).unwrap_or_default(),
        beyond_noise_p99_us: p99 - noise.p99_us,
        link_p99_us: 0.0,
        loss_percent: LOSS_PERCENT,
        measured_loss_percent: lost as f64 * 100.0 / PACKETS as f64,
        loss_interval: [interval.low.unwrap_or(0.0), interval.high.unwrap_or(100.0)],
        realtime,
        attempts: 1,
        verdict: "",
    };
    measured.link_p99_us = p99 - measured.host_us();
    measured.verdict = measured.verdict_of();
    Ok(measured)
}

/// Sends the test's frames, each with the time of its sending; returns the lateness of each, microseconds.
fn send(socket: &mut PacketSocket, clock: &Clock, begin: Time) -> Vec<f64> {
    let mut late = Vec::with_capacity(PACKETS as usize);
    let mut frame = [0; FRAME];
    frame[..6].fill(0xff);
    frame[6] = 2;
    frame[12..14].copy_from_slice(&ETHERTYPE);
    for number in 0..PACKETS {
        let due = begin + INTERVAL * number as u32;
        clock.sleep_until(due, Duration::ZERO);
        let now = clock.now();
        late.push(now.since(due).as_nanos() as f64 / 1e3);
        frame[14..22].copy_from_slice(&now.0.to_be_bytes());
        socket.send(std::iter::once(&frame[..]));
    }
    late
}

/// Errors of the delays of the frames that arrive until `end`, microseconds.
fn collect(socket: &mut PacketSocket, clock: &Clock, end: Time) -> std::io::Result<Vec<f64>> {
    use std::os::fd::AsFd as _;
    let mut errors = Vec::with_capacity(PACKETS as usize);
    while clock.now() < end {
        let received = socket.receive(clock, &mut |frame| {
            let stamp = frame
                .bytes
                .get(14..22)
                .and_then(|bytes| bytes.try_into().ok());
            if let (Some(stamp), Some(kind)) = (stamp, frame.bytes.get(12..14))
                && kind == ETHERTYPE
            {
                let sent = u64::from_be_bytes(stamp);
                let delay = frame.at.0 as f64 - sent as f64;
                errors.push((delay - DELAY.as_nanos() as f64) / 1e3);
            }
        })?;
        if received == 0 {
            net::wait_readable(&[socket.as_fd()], Duration::from_millis(5));
        }
    }
    Ok(errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(beyond_us: f64, loss_percent: f64, rate: f64) -> OwnError {
        OwnError {
            packets: PACKETS,
            packets_per_second: rate,
            arrived: 7_760,
            delay_ms: 5.0,
            error_p50_us: 20.0,
            error_p99_us: 200.0 + beyond_us,
            error_max_us: 900.0,
            noise_p99_us: 200.0,
            noise_mean_us: 70.0,
            noise_samples: 900,
            sender_late_p99_us: 80.0,
            beyond_noise_p99_us: beyond_us,
            link_p99_us: beyond_us,
            loss_percent: LOSS_PERCENT,
            measured_loss_percent: loss_percent,
            loss_interval: [2.6, 3.4],
            realtime: true,
            attempts: 1,
            verdict: "within its bounds",
        }
    }

    fn found(own: &OwnError) -> String {
        own.faults().join("; ")
    }

    #[test]
    fn own_error_out_of_bounds_is_a_fault() {
        let good = own(99.0, 3.4, 9_999.0);
        assert!(good.faults().is_empty());
        assert_eq!(good.verdict_of(), "within its bounds");
        let slow = own(5_000.0, 3.0, 9_999.0);
        assert!(found(&slow).contains("5.000 ms more than set"));
        assert_eq!(slow.verdict_of(), "out of its bounds");
        // A stall of the host delays the sender as well.
        let mut stalled = own(3_000.0, 3.0, 9_999.0);
        stalled.sender_late_p99_us = 3_150.0;
        assert!(stalled.faults().is_empty());
        assert!(found(&own(0.0, 9.0, 9_999.0)).contains("lost 9.00 %"));
        assert!(found(&own(0.0, 2.0, 9_999.0)).contains("lost 2.00 %"));
        let text = found(&own(0.0, 3.0, 9_400.0));
        assert!(
            text.contains("not judged: the test sent 9400 of 10000 packets/s"),
            "{text}"
        );
    }

    #[test]
    fn noise_is_no_excuse_without_a_limit() {
        // Every packet is late by 0.5 ms; the tail of the noise would hide it.
        let mut shifted = own(0.0, 3.0, 9_999.0);
        (shifted.noise_p99_us, shifted.noise_mean_us) = (2_000.0, 120.0);
        (shifted.error_p50_us, shifted.error_p99_us) = (500.0, 2_050.0);
        let text = found(&shifted);
        assert!(
            text.contains("median delay is +0.500 ms") && !text.contains("p99"),
            "{text}"
        );
        shifted.error_p50_us = 210.0;
        assert!(shifted.faults().is_empty(), "{}", found(&shifted));
        // Packets that come early are no work of the host.
        shifted.error_p50_us = -300.0;
        assert!(found(&shifted).contains("-0.300 ms"));
        let mut busy = own(0.0, 3.0, 9_999.0);
        (busy.noise_p99_us, busy.error_p99_us) = (9_000.0, 9_050.0);
        let text = found(&busy);
        assert!(
            text.contains("own error not judged: the host is too busy"),
            "{text}"
        );
        assert_eq!(busy.verdict_of(), "not judged");
        let mut fine = busy.clone();
        (fine.noise_samples, fine.error_p99_us) = (200, 60.0);
        assert!(fine.faults().is_empty(), "{}", found(&fine));
        // The measurement in which the host disturbed less is kept.
        let mut quiet = own(700.0, 3.0, 9_999.0);
        quiet.noise_p99_us = 100.0;
        assert_eq!(better(busy.clone(), quiet.clone()), quiet);
        assert_eq!(better(quiet.clone(), busy), quiet);
        let good = own(0.0, 3.0, 9_999.0);
        assert_eq!(better(quiet, good.clone()), good);
    }

    #[test]
    fn few_samples_pass_nothing_and_the_text_names_the_parts() {
        let mut few = own(0.0, 3.0, 9_999.0);
        few.noise_samples = 299;
        assert!(found(&few).contains("299 samples of the host's noise are too few"));
        few.noise_samples = 300;
        assert!(few.faults().is_empty());
        few.arrived = 299;
        assert!(found(&few).contains("299 packets that arrived are too few"));
        let mut unknown = own(0.0, 3.0, 9_999.0);
        unknown.error_p99_us = f64::NAN;
        assert_eq!(unknown.verdict_of(), "not judged");
        let text = own(50.0, 3.0, 9_999.0).text();
        let parts = "p99 +0.250 ms, of which 0.200 ms are the host's (p99 of its timers 0.200 ms in 900 samples, of the sender 0.080 ms) and +0.050 ms the link's (7760 packets)";
        assert!(
            text.starts_with("own error at 9999 packets/s") && text.contains(parts),
            "{text}"
        );
        assert!(text.ends_with(": within its bounds"), "{text}");
    }
}
