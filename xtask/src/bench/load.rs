//! SIPp as caller and callee, and the kernel's counters during the run.

use super::{LOAD_CORE, SECONDS, SUBJECT_CORE, Subject};
use crate::process::Running;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of SIPp on both sides: no terminal, no limit of simultaneous calls below the offered load. Its socket
/// buffers keep their default.
const SIPP: [&str; 3] = ["-nostdin", "-l", "200000"];
/// Options of SIPp where generators are compared: buffers that lose no message at any rate.
pub(super) const ROOMY_SIPP: [&str; 5] = ["-nostdin", "-buff_size", "4000000", "-l", "200000"];
/// SIPp writes its statistics each second.
const STATISTICS: [&str; 3] = ["-trace_stat", "-fd", "1"];
/// SIPp writes the response time of each call: from INVITE to 200, as its built-in scenario defines. Its clock has
/// steps of about 4 ms.
const RESPONSE_TIMES: [&str; 3] = ["-trace_rtt", "-rtt_freq", "1"];

/// Names of the border's threads that carry packets (`hornwork_cpu_seconds_total`).
const PACKET_THREADS: &[&str] = &["hornwork", "worker"];

/// Figures of one run.
#[derive(Clone)]
pub(super) struct Run {
    pub(super) micros_per_call: f64,
    /// Of the threads that carry packets alone; zero for programs that do not name them as the border does.
    pub(super) packet_micros_per_call: f64,
    pub(super) failed: u64,
    /// Messages that SIPp sent again, both sides.
    pub(super) retransmitted: u64,
    /// Response time, milliseconds, median and 99th percentile; none where the scenario measures none.
    pub(super) response: Option<(f64, f64)>,
    receive_buffer_errors: u64,
}

impl Run {
    /// Prints the line of a run.
    pub(super) fn print(&self, subject: &str) {
        let response = self.response.map_or(String::new(), |(median, late)| {
            format!(", response p50 {median:.0} ms p99 {late:.0} ms")
        });
        println!(
            "  {subject:<40} {:7.1} us/call, {} failed, {} retransmitted{response}, RcvbufErrors +{}",
            self.micros_per_call, self.failed, self.retransmitted, self.receive_buffer_errors
        );
    }
}

/// One run: SUT up, SIPp's built-in UAS behind it, SIPp's built-in UAC before it.
pub(super) fn plain(subject: &Subject, rate: u32, scratch: &Path) -> Result<Run, String> {
    played(
        subject,
        rate,
        SECONDS,
        &["-sn", "uac"],
        &["-sn", "uas"],
        scratch,
    )
}

/// The same with other scenarios, `seconds` long.
pub(super) fn played(
    subject: &Subject,
    rate: u32,
    seconds: u32,
    uac: &[&str],
    uas: &[&str],
    scratch: &Path,
) -> Result<Run, String> {
    let mut load = Load::start(subject, "127.0.0.1", uas, scratch)?;
    settle();
    let begun = load.call(rate, seconds, uac)?;
    load.end(begun)
}

/// SIPp's built-in calls through two systems at once, each at its own address and at `rate`: both share the cores, and
/// the noise of the machine affects both alike, so that small differences are visible.
pub(super) fn beside(
    subjects: [(&Subject, &str); 2],
    rate: u32,
    seconds: u32,
    scratch: &Path,
) -> Result<[Run; 2], String> {
    let [one, other] = subjects;
    let uas = ["-sn", "uas"];
    let mut one = Load::start(one.0, one.1, &uas, scratch)?;
    let mut other = Load::start(other.0, other.1, &uas, scratch)?;
    settle();
    let uac = ["-sn", "uac"];
    let first = one.call(rate, seconds, &uac)?;
    let second = other.call(rate, seconds, &uac)?;
    Ok([one.end(first)?, other.end(second)?])
}

pub(super) fn settle() {
    std::thread::sleep(Duration::from_millis(1_500));
}

/// A SUT with SIPp's called side behind it.
pub(super) struct Load<'a> {
    subject: &'a Subject,
    address: &'a str,
    pub(super) running: Running,
    uas: Running,
    scratch: &'a Path,
}

/// Calls that were begun.
pub(super) struct Begun {
    caller: Running,
    total: u32,
    seconds: u32,
    /// Of the SUT, and of the kernel, when they began.
    cpu: u64,
    packet_cpu: u64,
    errors: u64,
}

impl<'a> Load<'a> {
    pub(super) fn start(
        subject: &'a Subject,
        address: &'a str,
        uas: &[&str],
        scratch: &'a Path,
    ) -> Result<Load<'a>, String> {
        let arguments: Vec<&str> = subject.arguments.iter().map(String::as_str).collect();
        let log = scratch.join(format!("subject-{address}.log"));
        let running = Running::start(SUBJECT_CORE, &subject.program, &arguments, &log)?;
        let file = statistics(scratch, "uas", address);
        let uas = [
            uas,
            &["-i", address, "-p", "5080", "-stf", &file],
            &SIPP,
            &STATISTICS,
        ]
        .concat();
        let log = scratch.join(format!("uas-{address}.log"));
        Ok(Load {
            subject,
            address,
            running,
            uas: Running::start(LOAD_CORE, "sipp", &uas, &log)?,
            scratch,
        })
    }

    pub(super) fn call(&mut self, rate: u32, seconds: u32, uac: &[&str]) -> Result<Begun, String> {
        let total = rate * seconds;
        let target = format!("{}:{}", self.address, self.subject.port);
        let (rate_text, total_text) = (rate.to_string(), total.to_string());
        let load = ["-i", self.address, "-p", "5061", "-r", &rate_text];
        let file = statistics(self.scratch, "uac", self.address);
        let uac = [
            uac,
            &[&target],
            &load,
            &["-m", &total_text, "-stf", &file],
            &SIPP,
            &STATISTICS,
            &RESPONSE_TIMES,
        ]
        .concat();
        // SIPp names the file of response times itself, in its working directory.
        let directory = self.directory();
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
        let (errors, cpu) = (receive_buffer_errors(), self.running.cpu_nanos());
        let packet_cpu = self.running.threads_nanos(PACKET_THREADS);
        Ok(Begun {
            caller: Running::start_in(&directory, LOAD_CORE, "sipp", &uac, &self.log())?,
            total,
            seconds,
            cpu,
            packet_cpu,
            errors,
        })
    }

    /// Working directory of the calling side.
    fn directory(&self) -> PathBuf {
        self.scratch.join(format!("uac-{}", self.address))
    }

    /// Messages that both sides of SIPp sent again.
    fn retransmitted(&mut self) -> Result<u64, String> {
        // The called side writes its file each second, and does not write it when a signal ends it.
        std::thread::sleep(Duration::from_millis(1_200));
        ["uac", "uas"]
            .into_iter()
            .map(|side| {
                let path = statistics(self.scratch, side, self.address);
                let text =
                    std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
                column(&text, "Retransmissions(C)")
                    .ok_or_else(|| format!("{path}: no column of retransmissions"))
            })
            .sum()
    }

    /// Median and 99th percentile of the response times in milliseconds.
    fn response(&self) -> Option<(f64, f64)> {
        let files = std::fs::read_dir(self.directory()).ok()?;
        let file = files
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.to_string_lossy().ends_with("_rtt.csv"))?;
        let text = std::fs::read_to_string(file).ok()?;
        let mut times: Vec<f64> = text
            .lines()
            .filter_map(|line| line.split(';').nth(1)?.trim().parse().ok())
            .collect();
        times.sort_by(f64::total_cmp);
        let at = |share: usize| times.get(times.len() * share / 100).copied();
        Some((at(50)?, at(99)?))
    }

    fn log(&self) -> PathBuf {
        self.scratch.join(format!("uac-{}.log", self.address))
    }

    pub(super) fn end(&mut self, mut begun: Begun) -> Result<Run, String> {
        let limit = Duration::from_secs(u64::from(begun.seconds) + 60);
        begun.caller.wait(limit)?;
        let spent = self.running.cpu_nanos() - begun.cpu;
        let packet = self.running.threads_nanos(PACKET_THREADS) - begun.packet_cpu;
        let text = String::from_utf8_lossy(&std::fs::read(self.log()).map_err(|e| e.to_string())?)
            .into_owned();
        let successful = figure(&text, "Successful call")
            .ok_or_else(|| format!("{}: SIPp gave no figures", self.subject.name))?;
        if successful == 0 {
            let log = self.scratch.join(format!("subject-{}.log", self.address));
            let said = std::fs::read_to_string(log).unwrap_or_default();
            return Err(format!(
                "{}: no call succeeded; it said:\n{said}",
                self.subject.name
            ));
        }
        let receive_buffer_errors = receive_buffer_errors() - begun.errors;
        let retransmitted = self.retransmitted()?;
        if self.uas.wait_for_code(Duration::ZERO).is_ok() {
            return Err(format!("{}: the called side has ended", self.subject.name));
        }
        Ok(Run {
            micros_per_call: spent as f64 / 1_000.0 / successful as f64,
            packet_micros_per_call: packet as f64 / 1_000.0 / successful as f64,
            failed: u64::from(begun.total) - successful,
            retransmitted,
            response: self.response(),
            receive_buffer_errors,
        })
    }
}

/// The file of statistics of one side.
fn statistics(scratch: &Path, side: &str, address: &str) -> String {
    scratch
        .join(format!("{side}-{address}.csv"))
        .display()
        .to_string()
}

/// The last value of a column of SIPp's statistics file.
pub(super) fn column(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    let place = lines.next()?.split(';').position(|word| word == name)?;
    lines
        .next_back()?
        .split(';')
        .nth(place)?
        .trim()
        .parse()
        .ok()
}

/// The cumulative figure of the last screen that SIPp printed.
fn figure(screen: &str, name: &str) -> Option<u64> {
    screen
        .lines()
        .rev()
        .find(|line| line.contains(name))?
        .split('|')
        .nth(2)?
        .trim()
        .parse()
        .ok()
}

/// Datagrams that the kernel dropped for lack of space in a socket's buffer.
pub(super) fn receive_buffer_errors() -> u64 {
    udp_counter("RcvbufErrors")
}

/// One of the kernel's counters for UDP.
fn udp_counter(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/net/snmp").unwrap_or_default();
    let mut lines = text.lines().filter(|line| line.starts_with("Udp:"));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
        return 0;
    };
    names
        .split_whitespace()
        .zip(values.split_whitespace())
        .find(|(known, _)| *known == name)
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(0)
}
