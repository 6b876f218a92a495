//! A border that is a program of its own, `hornwork run`, as in production: with `[gateway]` in its configuration,
//! where it has one. Its CPU time is that of all its threads, those of the gateway included.

use super::border_thread::EXPECTED_DROPS;
use super::layout::{CERTIFICATE_FILES, Layout, free_control};
use crate::error::LabError;
use crate::esp::border_tunnel::{BorderTunnel, KEY_FILE};
use crate::private_directory::PrivateDirectory;
use crate::subject::{Family, Probe, ProbeKind, Program, StopSignal, family, thread_cpu};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Begin of the names of its directories.
const PREFIX: &str = "hornwork-border-";
const CONFIGURATION: &str = "border.toml";
/// Longest wait for its sockets.
const START: Duration = Duration::from_secs(10);
/// Longest wait for its end.
const STOP: Duration = Duration::from_secs(5);
/// Longest wait for its metrics.
const SCRAPE: Duration = Duration::from_secs(2);
/// Largest answer with metrics, bytes.
const LARGEST_SCRAPE: u64 = 4 << 20;
/// Name of the thread that carries the packets of its gateway, unless the border's own does that.
const GATEWAY_THREAD: &str = "gateway";

/// Parts of the border's configuration beside its layout.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProgramPlan<'a> {
    /// The tunnel of its gateway, if it has one.
    pub(crate) tunnel: Option<&'a BorderTunnel>,
}

/// Counts of the border's gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct BorderGatewayCount {
    /// Packets that it has sealed, and packets that it has opened.
    pub(crate) sealed: u64,
    pub(crate) opened: u64,
    /// Of these, media that passed straight between ESP and the forwarder.
    pub(crate) direct: u64,
    /// ESP packets that it refused.
    pub(crate) refused: u64,
    /// CPU time of its thread, seconds; `None` if it has none of its own.
    pub(crate) cpu_seconds: Option<f64>,
}

/// The running border.
#[derive(Debug)]
pub struct BorderProgram {
    /// Ends before its directory is removed.
    program: Mutex<Program>,
    /// Its last figures, which remain if it ends by itself.
    last: Mutex<Family>,
    access: SocketAddr,
    stream: Option<SocketAddr>,
    metrics: SocketAddr,
    _dir: PrivateDirectory,
}

fn cannot(why: impl std::fmt::Display) -> LabError {
    LabError::cannot_run(
        format!("the border: {why}"),
        "see the end of its log; --set protection.gateway=lab runs the border on a thread of the test lab",
    )
}

/// The program: the running one, which has to be hornwork.
///
/// # Errors
/// It is another one: a test, or a program that has the test lab as a library.
pub(crate) fn program() -> Result<PathBuf, LabError> {
    let path = std::env::current_exe().map_err(|error| {
        LabError::cannot_run(format!("path of this program: {error}"), "mount /proc")
    })?;
    match path.file_name().is_some_and(|name| name == "hornwork") {
        true => Ok(path),
        false => Err(LabError::cannot_run(
            "[protection] runs the border as `hornwork run`, but this is another program",
            "run it as hornwork lab run, or with --set protection.gateway=lab",
        )),
    }
}

/// The configuration of the program, as TOML.
fn configuration(layout: &Layout, metrics: SocketAddr, plan: ProgramPlan<'_>) -> String {
    let mut layout = layout.clone();
    layout.is_program = true;
    let mut text = layout.toml();
    // Calls that the callers have not ended do not delay the next trial.
    text.push_str(&format!(
        "\n[metrics]\nlisten = \"{metrics}\"\n\n[drain]\ntimeout_s = 1\n"
    ));
    if let Some(tunnel) = plan.tunnel {
        text.push('\n');
        text.push_str(&tunnel.table());
    }
    text
}

/// Writes a file that its owner alone may read.
fn write(path: &Path, text: &str) -> Result<(), LabError> {
    let file = std::fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| cannot(format_args!("{}: {error}", path.display())))
}

impl BorderProgram {
    /// Starts the border in the network namespace of the calling thread, and waits until it listens.
    ///
    /// # Errors
    /// It does not start, or a right is missing.
    pub(crate) fn start(layout: &Layout, plan: ProgramPlan<'_>) -> Result<BorderProgram, LabError> {
        let path = program()?;
        let metrics = free_control(Ipv4Addr::LOCALHOST.into())?;
        let dir = PrivateDirectory::new(PREFIX, "sut")?;
        let within = |name: &str| dir.path().join(name);
        write(
            &within(CONFIGURATION),
            &configuration(layout, metrics, plan),
        )?;
        if let Some(tunnel) = plan.tunnel {
            write(&within(KEY_FILE), &tunnel.key_file()?)?;
        }
        if let Some(credentials) = &layout.credentials {
            let pem = credentials.pem();
            let pem = pem.ok_or_else(|| cannot("it has no certificate of the trial"))?;
            for (name, text) in CERTIFICATE_FILES.into_iter().zip(pem) {
                write(&within(name), text)?;
            }
        }
        let mut command = Command::new(path);
        command
            .args(["run", "-c", CONFIGURATION])
            .current_dir(dir.path());
        // The gateway starts before the listeners.
        let probe = Probe {
            kind: ProbeKind::Port,
            at: layout.access(),
            warm_up: 0,
            limit: START,
        };
        let stop = (StopSignal::Term, STOP);
        let log = within("border.log");
        let program = Program::start("the border", &mut command, &log, probe, stop)?;
        Ok(BorderProgram {
            program: Mutex::new(program),
            last: Mutex::new(Family::default()),
            access: layout.access(),
            stream: layout.streams[0].map(|(_, address)| address),
            metrics,
            _dir: dir,
        })
    }

    /// Address for callers.
    pub fn address(&self) -> SocketAddr {
        self.access
    }

    /// Address for callers over TLS or WebSocket, if configured.
    pub fn stream_address(&self) -> Option<SocketAddr> {
        self.stream
    }

    fn process(&self) -> u32 {
        self.locked().id()
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Program> {
        // A panic elsewhere leaves the program as it was.
        self.program.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reason, if it has ended by itself.
    pub(crate) fn ended(&self) -> Option<String> {
        self.locked().ended()
    }

    /// CPU time of all its threads, and its memory; the last ones if it has ended by itself, which is a result of the
    /// trial ([`BorderProgram::ended`]).
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(crate) fn figures(&self, with_memory: bool) -> Result<Family, LabError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // A process that has ended and was not waited for has a CPU time, but no memory.
        if self.ended().is_some() {
            return Ok(*last);
        }
        let now = family(self.process(), with_memory).map_err(cannot)?;
        last.cpu_seconds = now.cpu_seconds;
        if with_memory {
            last.memory_bytes = now.memory_bytes;
        }
        Ok(now)
    }

    /// Number of its calls; `None` if it has ended by itself.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) fn calls(&self) -> Result<Option<u64>, LabError> {
        let text = self.scrape()?;
        Ok(text.map(|text| sum(&text, "hornwork_calls_active", |_| true)))
    }

    /// Counts of its gateway so far; `None` if it has ended by itself.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) fn gateway(&self) -> Result<Option<BorderGatewayCount>, LabError> {
        let text = self.scrape()?;
        Ok(text.map(|text| BorderGatewayCount {
            cpu_seconds: thread_cpu(self.process(), GATEWAY_THREAD),
            ..gateway_count(&text)
        }))
    }

    /// Stops it; returns remarks about its drops.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) fn finish(self) -> Result<Vec<String>, LabError> {
        let text = self.scrape()?.unwrap_or_default();
        let mut drops = Vec::new();
        for name in ["hornwork_drops_total", "hornwork_gateway_drops_total"] {
            for (labels, count) in series(&text, name) {
                let reason = label(labels, "reason");
                if count > 0 && !EXPECTED_DROPS.contains(&reason) {
                    drops.push(format!("{reason} {count}"));
                }
            }
        }
        Ok(match drops.is_empty() {
            true => Vec::new(),
            false => vec![format!("border dropped: {}", drops.join(", "))],
        })
    }

    /// Whether it has ended by itself, or does so within a moment.
    fn ends_soon(&self) -> bool {
        const ROUNDS: u32 = 20;
        (0..ROUNDS).any(|round| {
            if round > 0 {
                std::thread::sleep(Duration::from_millis(10));
            }
            self.ended().is_some()
        })
    }

    /// Its metrics, in the text format of Prometheus, behind the header of the answer; `None` if it has ended by
    /// itself.
    fn scrape(&self) -> Result<Option<String>, LabError> {
        let mut text = Vec::new();
        let read = TcpStream::connect_timeout(&self.metrics, SCRAPE).and_then(|mut stream| {
            stream.set_read_timeout(Some(SCRAPE))?;
            stream.set_write_timeout(Some(SCRAPE))?;
            let request = format!(
                "GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
                self.metrics
            );
            stream.write_all(request.as_bytes())?;
            stream.take(LARGEST_SCRAPE).read_to_end(&mut text)
        });
        let text = String::from_utf8_lossy(&text).into_owned();
        match read {
            Ok(_) if text.starts_with("HTTP/1.1 200 ") => Ok(Some(text)),
            // The kernel closes its connections before its end is reported.
            _ if self.ends_soon() => Ok(None),
            Ok(_) => {
                let first = text.lines().next().unwrap_or("an empty answer");
                Err(cannot(format_args!("its metrics: {first}")))
            }
            Err(error) => Err(cannot(format_args!("its metrics: {error}"))),
        }
    }
}

/// Labels and values of the series of a metric.
fn series<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, u64)> {
    text.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => rest.split_once("} ")?,
            None => ("", rest.strip_prefix(' ')?),
        };
        let value: f64 = value.trim().parse().ok()?;
        Some((labels, value as u64))
    })
}

/// Value of a label.
fn label<'a>(labels: &'a str, name: &str) -> &'a str {
    let value = |one: &'a str| {
        one.strip_prefix(name)?
            .strip_prefix("=\"")?
            .strip_suffix('"')
    };
    labels.split(',').find_map(value).unwrap_or_default()
}

/// Sum of the series of a metric with these labels.
fn sum(text: &str, name: &str, has: impl Fn(&str) -> bool) -> u64 {
    let of = series(text, name).filter(|(labels, _)| has(labels));
    of.map(|(_, value)| value).sum()
}

/// The counts of the gateway in its metrics.
fn gateway_count(text: &str) -> BorderGatewayCount {
    let packets: BTreeMap<&str, u64> = series(text, "hornwork_gateway_packets_total")
        .map(|(labels, count)| (label(labels, "direction"), count))
        .collect();
    let of = |direction: &str| packets.get(direction).copied().unwrap_or(0);
    // Others are failures to send, and packets that are none of ESP.
    let is_esp = |labels: &str| label(labels, "reason").starts_with("esp_");
    BorderGatewayCount {
        sealed: of("sealed"),
        opened: of("opened"),
        direct: sum(text, "hornwork_gateway_direct_packets_total", |_| true),
        refused: sum(text, "hornwork_gateway_drops_total", is_esp),
        cpu_seconds: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::esp::border_tunnel::TunnelAddresses;
    use crate::experiment::Protection;
    use crate::sut::PortSpan;
    use crate::tls::TrialCredentials;
    use engine::{Entropy, Transport};

    fn layout() -> Layout {
        let at = |ip: [u8; 4], port| SocketAddr::from((ip, port));
        let spans = [PortSpan::new(10_000, 64), PortSpan::new(10_064, 64)];
        let access = at([10, 9, 0, 2], 5_060);
        let mut layout = Layout::new(access, at([127, 0, 0, 1], 5_080), spans);
        layout.trunk = vec![at([127, 0, 0, 1], 5_090)];
        layout
    }

    /// The text is one that the product accepts, with the gateway as a user has it.
    #[test]
    fn configuration_is_accepted_with_each_mode_of_the_gateway() {
        let metrics = SocketAddr::from(([127, 0, 0, 1], 9_464));
        let clear = configuration(&layout(), metrics, ProgramPlan::default());
        let config = config::parse(&clear, CONFIGURATION).unwrap();
        assert!(config.gateway.is_none() && !clear.contains("[gateway]"));
        assert!(
            clear.contains("[limits]\ncpu_percent = 100000\n"),
            "{clear}"
        );
        for (kind, media) in [(11, "direct"), (13, "kernel"), (19, "direct")] {
            let (case, _) = Protection::of(kind).esp().unwrap();
            let addresses = TunnelAddresses {
                outer: [[10, 96, 0, 1].into(), [10, 96, 0, 2].into()],
                inner: [[10, 9, 0, 1].into(), [10, 9, 0, 2].into()],
            };
            let mut entropy = Entropy::from_number(1);
            let tunnel = BorderTunnel::new(case, media, addresses, &mut entropy);
            let plan = ProgramPlan {
                tunnel: Some(&tunnel),
            };
            let text = configuration(&layout(), metrics, plan);
            assert!(text.contains(&format!("media = \"{media}\"\n")), "{text}");
            let config = config::parse(&text, CONFIGURATION).unwrap();
            let gateway = config.gateway.unwrap();
            assert_eq!(gateway.device, "esp0");
            assert_eq!(gateway.carrier, protect::esp::EspCarrier::Ip);
            assert_eq!(gateway.tunnels.len(), 1);
            assert_eq!(gateway.allow_weak, kind == 19);
        }
    }

    #[test]
    fn metrics_of_the_gateway_are_read() {
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n\
                    # HELP hornwork_gateway_packets_total Packets.\n\
                    hornwork_gateway_packets_total{direction=\"sealed\"} 12\n\
                    hornwork_gateway_packets_total{direction=\"opened\"} 7\n\
                    hornwork_gateway_direct_packets_total{direction=\"sealed\"} 6\n\
                    hornwork_gateway_direct_packets_total{direction=\"opened\"} 5\n\
                    hornwork_gateway_drops_total{reason=\"esp_replayed\"} 2\n\
                    hornwork_gateway_drops_total{reason=\"esp_selector\"} 1\n\
                    hornwork_gateway_drops_total{reason=\"send_failed\"} 5\n\
                    hornwork_calls_active 3\nhornwork_calls_active_more 9\n";
        let expected = BorderGatewayCount {
            sealed: 12,
            opened: 7,
            direct: 11,
            refused: 3,
            cpu_seconds: None,
        };
        assert_eq!(gateway_count(text), expected);
        assert_eq!(sum(text, "hornwork_calls_active", |_| true), 3);
        assert_eq!(gateway_count(""), BorderGatewayCount::default());
    }

    /// TLS: the files that the configuration names, and no key in a log.
    #[test]
    fn certificate_of_the_trial_is_written_for_the_program() {
        let credentials = TrialCredentials::generate().unwrap();
        let [chain, key] = credentials.pem().unwrap();
        assert_eq!(chain.matches("BEGIN CERTIFICATE").count(), 2);
        assert!(key.contains("PRIVATE KEY"));
        assert!(!format!("{credentials:?}").contains("PRIVATE KEY"));
        let mut layout = layout();
        let tls = SocketAddr::from(([10, 9, 0, 2], 5_061));
        layout.streams[0] = Some((Transport::Tls, tls));
        let metrics = SocketAddr::from(([127, 0, 0, 1], 9_464));
        let text = configuration(&layout, metrics, ProgramPlan::default());
        for name in CERTIFICATE_FILES {
            assert!(text.contains(name), "{text}");
        }
        config::parse(&text, CONFIGURATION).unwrap();
    }

    #[test]
    fn another_program_is_named() {
        let error = program().unwrap_err().to_string();
        assert!(error.contains("this is another program"), "{error}");
        assert!(error.contains("protection.gateway=lab"), "{error}");
    }
}
