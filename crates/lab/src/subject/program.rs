//! Programs in process groups of their own: start, probe, end.

use super::file::{ProbeKind, StopSignal};
use crate::error::LabError;
use net::EndSignal;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Wait for one answer.
const ANSWER: Duration = Duration::from_millis(200);
/// Time between two looks at a process.
const POLL: Duration = Duration::from_millis(20);
/// Largest part of a log that is read for a message, bytes.
const LOG_TAIL: u64 = 4_096;
/// Lines of a log in a message.
const LOG_LINES: usize = 3;

/// A test whether a program works.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    /// Kind.
    pub kind: ProbeKind,
    /// Address.
    pub at: SocketAddr,
    /// Further probes after the first answer.
    pub warm_up: u32,
    /// Longest time until the first answer.
    pub limit: Duration,
}

/// A program in a process group of its own, which ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    child: Child,
    log: PathBuf,
    stop: (StopSignal, Duration),
    ended: Option<ExitStatus>,
}

impl Program {
    /// Starts `command` with its output in `log`, and waits until it answers the probe.
    ///
    /// # Errors
    /// If it does not start, ends before it answers, or does not answer in time.
    pub fn start(
        name: &str,
        command: &mut Command,
        log: &Path,
        probe: Probe,
        stop: (StopSignal, Duration),
    ) -> Result<Program, LabError> {
        // The log is gone with the directory of a subject that did not start.
        let cannot = |why: String| {
            LabError::cannot_run(
                format!("{name}: {why}"),
                "correct its program or its arguments",
            )
        };
        let file = File::create(log).map_err(|error| cannot(error.to_string()))?;
        let copy = file
            .try_clone()
            .map_err(|error| cannot(error.to_string()))?;
        command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy)
            .process_group(0);
        net::end_with_parent(command);
        let child = command.spawn().map_err(|error| cannot(error.to_string()))?;
        let mut program = Program {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
            stop,
            ended: None,
        };
        program.wait_for_answer(probe)?;
        for _ in 0..probe.warm_up {
            answers(probe).map_err(|error| cannot(error.to_string()))?;
        }
        Ok(program)
    }

    fn wait_for_answer(&mut self, probe: Probe) -> Result<(), LabError> {
        let clock = net::Clock::new();
        let start = clock.now();
        let mut odd = None;
        while clock.now().since(start) < probe.limit {
            let answer = answers(probe).map_err(|error| {
                LabError::cannot_run(format!("{}: probe: {error}", self.name), "")
            })?;
            match answer {
                Answer::Expected => return Ok(()),
                Answer::Odd(text) => odd = Some(text),
                Answer::None => {}
            }
            if let Some(why) = self.ended() {
                return Err(LabError::cannot_run(
                    why,
                    "correct its files or its arguments",
                ));
            }
            if net::stops() > 0 {
                return Err(LabError::Interrupted(format!(
                    "interrupted while {} started",
                    self.name
                )));
            }
        }
        let what = match probe.kind {
            ProbeKind::Sip => format!("no answer to OPTIONS at {}", probe.at),
            ProbeKind::Ng => format!("no answer to the ng ping at {}", probe.at),
            ProbeKind::Port => format!("{} is not bound for UDP", probe.at),
        };
        let odd = odd.map_or(String::new(), |text| {
            format!(", but a datagram that is none: {text:?}")
        });
        Err(LabError::cannot_run(
            format!(
                "{}: {what} within {} s{odd}{}",
                self.name,
                probe.limit.as_secs_f64(),
                self.last_words()
            ),
            "correct its address, or raise start_s",
        ))
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The reason, if it has ended by itself.
    pub fn ended(&mut self) -> Option<String> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        let status = self.ended?;
        Some(format!(
            "{} has ended by itself ({status}){}",
            self.name,
            self.last_words()
        ))
    }

    /// The last lines of its log, for a message.
    fn last_words(&self) -> String {
        let mut text = Vec::new();
        let read = File::open(&self.log).and_then(|mut file| {
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
            file.take(LOG_TAIL).read_to_end(&mut text)
        });
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty())
            .collect();
        match (read, lines.is_empty()) {
            (Ok(_), false) => {
                let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
                format!("; the end of its log: {}", last.join(" | "))
            }
            _ => String::new(),
        }
    }

    /// A group that has ended needs no signal.
    fn signal(&self, signal: EndSignal) {
        let _ = net::signal_group(&self.child, signal);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let (signal, limit) = self.stop;
        self.signal(signal.signal());
        let rounds = limit.as_millis() / POLL.as_millis();
        for _ in 0..rounds {
            if self.ended.is_some() || matches!(self.child.try_wait(), Ok(Some(_))) {
                break;
            }
            std::thread::sleep(POLL);
        }
        // Descendants that are left, too.
        self.signal(EndSignal::Kill);
        let _ = self.child.wait();
    }
}

/// Answer to a probe.
enum Answer {
    Expected,
    /// Something else, its begin.
    Odd(String),
    None,
}

/// Whether a datagram begins with a status line (RFC 3261 section 7.2).
fn is_response(datagram: &[u8]) -> bool {
    let status = datagram.strip_prefix(b"SIP/2.0 ").unwrap_or_default();
    matches!(status, [b'1'..=b'6', a, b, b' ' | b'\r', ..] if a.is_ascii_digit() && b.is_ascii_digit())
}

fn answers(probe: Probe) -> std::io::Result<Answer> {
    if probe.kind == ProbeKind::Port {
        let bound = is_bound(probe.at)?;
        if !bound {
            std::thread::sleep(POLL);
        }
        return Ok(match bound {
            true => Answer::Expected,
            false => Answer::None,
        });
    }
    let any: SocketAddr = match probe.at {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(probe.at)?;
    socket.set_read_timeout(Some(ANSWER))?;
    let own = socket.local_addr()?;
    // A port of its own for each probe makes the branch unique. With Max-Forwards 0 a proxy answers itself.
    let request = match probe.kind {
        ProbeKind::Ng => "probe d7:command4:pinge".to_owned(),
        _ => format!(
            "OPTIONS sip:ping@{0} SIP/2.0\r\nVia: SIP/2.0/UDP {own};branch=z9hG4bKprobe{1}\r\nMax-Forwards: 0\r\n\
             From: <sip:ping@{own}>;tag=1\r\nTo: <sip:ping@{0}>\r\nCall-ID: probe-{1}@{own}\r\nCSeq: 1 OPTIONS\r\n\
             Contact: <sip:ping@{own}>\r\nContent-Length: 0\r\n\r\n",
            probe.at,
            own.port(),
        ),
    };
    let mut room = [0; 4_096];
    // The port may be closed until the program listens.
    let heard = socket
        .send(request.as_bytes())
        .and_then(|_| socket.recv(&mut room));
    let Ok(length) = heard else {
        std::thread::sleep(ANSWER / 4);
        return Ok(Answer::None);
    };
    let answer = &room[..length];
    let expected = match probe.kind {
        ProbeKind::Ng => answer.starts_with(b"probe ") && answer.ends_with(b"4:ponge"),
        _ => is_response(answer),
    };
    Ok(match expected {
        true => Answer::Expected,
        false => {
            std::thread::sleep(ANSWER / 4);
            Answer::Odd(String::from_utf8_lossy(&answer[..length.min(40)]).into_owned())
        }
    })
}

/// Whether a socket of this network namespace is bound to the address (proc(5), `/proc/net/udp`).
fn is_bound(at: SocketAddr) -> std::io::Result<bool> {
    let (file, ip) = match at.ip() {
        IpAddr::V4(ip) => ("udp", format!("{:08X}", u32::from(ip).swap_bytes())),
        IpAddr::V6(ip) => {
            let words = ip.octets();
            let words = words.chunks_exact(4).map(|word| {
                let word = [word[3], word[2], word[1], word[0]];
                format!("{:08X}", u32::from_be_bytes(word))
            });
            ("udp6", words.collect())
        }
    };
    let own = format!("{ip}:{:04X}", at.port());
    let any = format!("{}:{:04X}", "0".repeat(ip.len()), at.port());
    let text = std::fs::read_to_string(format!("/proc/thread-self/net/{file}"))?;
    let local = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
    Ok(text
        .lines()
        .filter_map(local)
        .any(|local| local == own || local == any))
}

/// The path of an installed program; a name with a slash is a path.
pub(crate) fn installed(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin"])
        .map(|folder| Path::new(folder).join(program))
        .find(|file| file.is_file())
}

/// As [`installed`]; `@self@` is this program.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    match program {
        "@self@" => std::env::current_exe().ok(),
        program => installed(program),
    }
}

/// The first line of a program's version.
pub(crate) fn version(program: &Path, arguments: &[String]) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let all = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&all);
    let line = text
        .lines()
        .map(str::trim)
        .find(|line| line.chars().any(|c| c.is_ascii_digit()))?;
    Some(line.chars().take(80).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_ports_are_found() {
        for any in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0"] {
            let Ok(socket) = UdpSocket::bind(any) else {
                continue;
            };
            let mut at = socket.local_addr().unwrap();
            if at.ip().is_unspecified() {
                at.set_ip(IpAddr::from([127, 0, 0, 1]));
            }
            assert!(is_bound(at).unwrap(), "{at}");
            drop(socket);
            assert!(!is_bound(at).unwrap(), "{at}");
        }
    }
}
