//! The emulator's own error, measured before each use: a stream through a link between two pairs of virtual interfaces
//! in a network namespace of its own.

use super::Z999;
use super::ends::EndName;
use super::engine::{RealTimeLink, prepare_thread};
use super::settings::{BothWays, LineSettings};
use crate::error::LabError;
use crate::statistics::Interval;
use crate::statistics::quantile;
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
    /// Lateness of the thread that sends the test's packets, 99th percentile, microseconds: as many packets as of the
    /// link are late after a stall of the host, which is a single sample of its noise.
    pub sender_late_p99_us: f64,
    /// The 99th percentile of the error beyond that of the host, microseconds.
    pub beyond_noise_p99_us: f64,
    /// Loss of the test link, percent.
    pub loss_percent: f64,
    /// Measured loss, percent.
    pub measured_loss_percent: f64,
    /// Its 95 % interval, percent.
    pub loss_interval: [f64; 2],
    /// The threads of the emulator have real-time priority.
    pub realtime: bool,
}

impl OwnError {
    /// Reasons why a link on this machine is not the configured one.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let planned = 1.0 / INTERVAL.as_secs_f64();
        if self.packets_per_second < planned * LEAST_RATE {
            faults.push(format!(
                "own error: the test sent {:.0} of {planned:.0} packets/s",
                self.packets_per_second
            ));
        }
        let host = self.noise_p99_us.max(self.sender_late_p99_us);
        if self.error_p99_us - host > BEYOND_NOISE_US {
            faults.push(format!(
                "own error: the link delays packets by {:.3} ms more than set (p99, beyond the host's noise), more than {} ms",
                (self.error_p99_us - host) / 1e3,
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

    /// One line for the terminal.
    pub fn text(&self) -> String {
        let [low, high] = self.loss_interval;
        let outside = match (low..=high).contains(&self.loss_percent) {
            true => "",
            false => "; the set loss is outside: this machine lost or kept other packets",
        };
        format!(
            "own error at {:.0} packets/s: delay p50 {:+.3} ms, p99 {:+.3} ms ({:+.3} ms beyond the host's noise of {:.3} ms), loss {:.2} % of {} % (interval {low:.2} to {high:.2} %{outside})",
            self.packets_per_second,
            self.error_p50_us / 1e3,
            self.error_p99_us / 1e3,
            self.beyond_noise_p99_us / 1e3,
            self.noise_p99_us / 1e3,
            self.measured_loss_percent,
            self.loss_percent,
        )
    }
}

fn cannot(what: &str, error: impl std::fmt::Display) -> LabError {
    LabError::cannot_run(
        format!("cannot measure the link's own error: {what}: {error}"),
        "run it as root (CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_RAW) on a kernel with veth, with ip (Debian: iproute2)",
    )
}

/// Measures it, once more if it is out of bounds; it takes about a second each time.
///
/// # Errors
/// A right or a program is missing.
pub fn measure() -> Result<OwnError, LabError> {
    let first = measure_once()?;
    match first.faults().is_empty() {
        true => Ok(first),
        false => measure_once(),
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
    Ok(OwnError {
        packets: PACKETS,
        packets_per_second: PACKETS as f64 / sending.as_secs_f64().max(f64::MIN_POSITIVE),
        delay_ms: DELAY.as_secs_f64() * 1e3,
        error_p50_us: at(0.5),
        error_p99_us: p99,
        error_max_us: at(1.0),
        noise_p99_us: noise.p99_us,
        sender_late_p99_us: quantile(&late, 0.99).unwrap_or_default(),
        beyond_noise_p99_us: p99 - noise.p99_us,
        loss_percent: LOSS_PERCENT,
        measured_loss_percent: lost as f64 * 100.0 / PACKETS as f64,
        loss_interval: [interval.low.unwrap_or(0.0), interval.high.unwrap_or(100.0)],
        realtime,
    })
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
            delay_ms: 5.0,
            error_p50_us: 20.0,
            error_p99_us: 200.0 + beyond_us,
            error_max_us: 900.0,
            noise_p99_us: 200.0,
            sender_late_p99_us: 80.0,
            beyond_noise_p99_us: beyond_us,
            loss_percent: LOSS_PERCENT,
            measured_loss_percent: loss_percent,
            loss_interval: [2.6, 3.4],
            realtime: true,
        }
    }

    #[test]
    fn own_error_out_of_bounds_is_a_fault() {
        assert!(own(99.0, 3.4, 9_999.0).faults().is_empty());
        let found = |own: OwnError| own.faults().join("; ");
        assert!(found(own(5_000.0, 3.0, 9_999.0)).contains("5.000 ms more than set"));
        // A stall of the host delays the sender as well.
        let mut stalled = own(5_000.0, 3.0, 9_999.0);
        stalled.sender_late_p99_us = 5_150.0;
        assert!(stalled.faults().is_empty());
        assert!(found(own(0.0, 9.0, 9_999.0)).contains("lost 9.00 %"));
        assert!(found(own(0.0, 2.0, 9_999.0)).contains("lost 2.00 %"));
        assert!(found(own(0.0, 3.0, 9_400.0)).contains("sent 9400 of 10000 packets/s"));
    }
}
