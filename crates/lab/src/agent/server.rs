//! The agent: waits for test labs, and runs subjects for them.

use super::channel;
use super::limiter::ConnectionLimiter;
use super::messages::{AgentAnswer, AgentRequest};
use super::wire::{Side, Wire, WireError, read_token};
use crate::error::{LabError, RunVerdict};
use crate::raw::MachineRecord;
use crate::subject::{self, Placement, RunningSubject};
use net::tls::Identity;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest authentication.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Longest time between two requests of a test lab; then its subject is stopped.
const IDLE: Duration = Duration::from_secs(60);
/// Time between two looks for a connection or a stop.
const POLL: Duration = Duration::from_millis(50);
/// Most calls for which ports are reserved.
const MAX_CALLS: u64 = 1_000_000;

/// Options of `hornwork lab agent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentOptions {
    /// Address for test labs.
    pub listen: SocketAddr,
    /// File with the token.
    pub token_file: PathBuf,
    /// Folder with subject files beside the built-in ones.
    pub subjects: PathBuf,
    /// Files with certificate chain and private key (PEM): test labs connect with TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
}

/// Runs an agent until SIGINT or SIGTERM.
///
/// # Errors
/// If the token cannot be read, or the address is in use.
pub fn run(options: &AgentOptions) -> Result<RunVerdict, LabError> {
    let token = read_token(&options.token_file)?;
    let tls = options.tls.as_ref().map(tls_settings).transpose()?;
    let cannot = |error: std::io::Error| {
        LabError::cannot_run(
            format!("{}: {error}", options.listen),
            "name a free address of this host with --listen",
        )
    };
    net::Signals::install().map_err(|error| {
        LabError::cannot_run(format!("cannot install a signal handler: {error}"), "")
    })?;
    let listener = TcpListener::bind(options.listen).map_err(cannot)?;
    listener.set_nonblocking(true).map_err(cannot)?;
    let own = listener.local_addr().map_err(cannot)?;
    let with = if tls.is_some() { " with TLS" } else { "" };
    crate::output::print(&format!("agent: listening at {own}{with}\n"));
    let clock = net::Clock::new();
    let limiter = Arc::new(Mutex::new(ConnectionLimiter::default()));
    let mut sessions = Vec::new();
    while net::stops() == 0 {
        let (stream, peer) = match listener.accept() {
            Ok((stream, peer)) => (stream, canonical(peer)),
            Err(_) => {
                std::thread::sleep(POLL);
                continue;
            }
        };
        if let Err(why) = locked(&limiter).enter(peer.ip(), clock.now()) {
            eprintln!("agent: refused {peer}: {why}");
            continue;
        }
        let token = token.clone();
        let mut entered = Entered {
            limiter: Arc::clone(&limiter),
            source: peer.ip(),
            authenticated: false,
        };
        let folder = options.subjects.clone();
        let tls = tls.clone();
        let open = move || -> Result<(Wire, IpAddr), WireError> {
            // Accepted sockets inherit nothing from the listener on Linux.
            stream.set_nonblocking(false)?;
            let ip = canonical(stream.local_addr()?).ip();
            let channel = match &tls {
                Some(settings) => channel::server(stream, settings, HANDSHAKE),
                None => channel::plain(stream, HANDSHAKE),
            };
            Ok((Wire::open(channel?, Side::Agent, &token, HANDSHAKE)?, ip))
        };
        let session = move || {
            let (wire, ip) = match open() {
                Ok(opened) => opened,
                // Silence, too: a source without the token could keep out those that have it.
                Err(error) => {
                    locked(&entered.limiter).failed(peer.ip(), clock.now());
                    eprintln!("agent: {peer}: {error}");
                    return;
                }
            };
            entered.authenticated();
            match serve(wire, ip, peer, &folder) {
                Ok(()) | Err(WireError::Closed) => eprintln!("agent: {peer}: end"),
                Err(error) => eprintln!("agent: {peer}: {error}"),
            }
        };
        let thread = std::thread::Builder::new().name("agent session".to_owned());
        match thread.spawn(session) {
            Ok(thread) => sessions.push(thread),
            Err(error) => eprintln!("agent: {peer}: {error}"),
        }
        sessions.retain(|session: &std::thread::JoinHandle<()>| !session.is_finished());
    }
    for session in sessions {
        // A session that panicked has ended its subject as well.
        let _ = session.join();
    }
    Ok(RunVerdict::Passed)
}

/// The address itself: one of IPv4 is mapped into IPv6 at a listener of both, and no subject listens or calls there.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn tls_settings((chain, key): &(PathBuf, PathBuf)) -> Result<Arc<rustls::ServerConfig>, LabError> {
    let identity = Identity::read(chain, key)
        .map_err(|error| LabError::cannot_run(error.to_string(), error.remedy))?;
    channel::server_settings(&identity).map_err(LabError::bad_input)
}

/// A connection that counts.
struct Entered {
    limiter: Arc<Mutex<ConnectionLimiter>>,
    source: IpAddr,
    authenticated: bool,
}

impl Entered {
    /// It has proved that it knows the token.
    fn authenticated(&mut self) {
        self.authenticated = true;
        locked(&self.limiter).authenticated(self.source);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut limiter = locked(&self.limiter);
        if !self.authenticated {
            limiter.authenticated(self.source);
        }
        limiter.leave();
    }
}

fn locked(limiter: &Mutex<ConnectionLimiter>) -> MutexGuard<'_, ConnectionLimiter> {
    limiter.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session with a test lab; its subject ends with it.
fn serve(mut wire: Wire, ip: IpAddr, peer: SocketAddr, folder: &Path) -> Result<(), WireError> {
    eprintln!("agent: {peer}: authenticated");
    let mut session = Session {
        peer,
        ip,
        folder,
        subject: None,
    };
    loop {
        let body = wire.receive(IDLE, true)?;
        let answer = match serde_json::from_slice(&body) {
            Ok(request) => session
                .answer(request)
                .unwrap_or_else(|error| refused(&error)),
            Err(error) => AgentAnswer::Refused {
                problem: format!("request: {error}"),
                remedy: "use the same version at both ends".to_owned(),
            },
        };
        let body = serde_json::to_vec(&answer).map_err(std::io::Error::from)?;
        wire.send(&body)?;
    }
}

fn refused(error: &LabError) -> AgentAnswer {
    match error {
        LabError::CannotRun { problem, remedy } => AgentAnswer::Refused {
            problem: problem.clone(),
            remedy: remedy.clone(),
        },
        other => AgentAnswer::Refused {
            problem: other.to_string(),
            remedy: String::new(),
        },
    }
}

struct Session<'a> {
    peer: SocketAddr,
    ip: IpAddr,
    folder: &'a Path,
    subject: Option<RunningSubject>,
}

impl Session<'_> {
    fn answer(&mut self, request: AgentRequest) -> Result<AgentAnswer, LabError> {
        match request {
            AgentRequest::Describe { subject } => {
                let file = subject::named(&subject, self.folder)?;
                let missing = file.missing();
                Ok(AgentAnswer::Described {
                    version: match missing.is_empty() {
                        true => file.version(),
                        false => String::new(),
                    },
                    missing: missing.into_iter().map(str::to_owned).collect(),
                    text: file.text.clone(),
                    machine: MachineRecord::here(),
                })
            }
            AgentRequest::Start {
                subject,
                called,
                calls,
            } => self.start(&subject, called, calls),
            AgentRequest::Figures { memory } => {
                let subject = self.subject.as_ref().ok_or_else(|| none(self.peer))?;
                let figures = subject.figures(memory);
                Ok(AgentAnswer::Figures {
                    cpu_seconds: figures.cpu_seconds,
                    memory_bytes: figures.memory_bytes,
                    ended: subject.ended(),
                })
            }
            AgentRequest::Stop => {
                self.subject = None;
                Ok(AgentAnswer::Stopped)
            }
        }
    }

    fn start(
        &mut self,
        name: &str,
        called: Option<SocketAddr>,
        calls: u64,
    ) -> Result<AgentAnswer, LabError> {
        // A test lab cannot aim a subject at others.
        if let Some(called) = called.filter(|called| called.ip() != self.peer.ip()) {
            return Err(LabError::bad_input(format!(
                "the called side {called} is not at the test lab's address {}",
                self.peer.ip()
            )));
        }
        self.subject = None;
        let file = subject::named(name, self.folder)?;
        let placement = Placement {
            ip: self.ip,
            called,
            calls: calls.min(MAX_CALLS),
        };
        let running = RunningSubject::start(&file, placement)?;
        let listen = running.address();
        eprintln!("agent: {}: started {name} at {listen}", self.peer);
        self.subject = Some(running);
        Ok(AgentAnswer::Started { listen })
    }
}

fn none(peer: SocketAddr) -> LabError {
    LabError::bad_input(format!("no subject runs for {peer}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn test_lab_of_ipv4_has_its_address_at_a_listener_of_ipv6() {
        let Ok(listener) = TcpListener::bind("[::]:0") else {
            eprintln!("skipped: no IPv6");
            return;
        };
        let port = listener.local_addr().unwrap().port();
        let Ok(lab) = TcpStream::connect(("127.0.0.1", port)) else {
            eprintln!("skipped: IPv6 sockets take no IPv4");
            return;
        };
        let (stream, peer) = listener.accept().unwrap();
        let peer = canonical(peer);
        assert_eq!(peer, lab.local_addr().unwrap());
        let ip = canonical(stream.local_addr().unwrap()).ip();
        assert_eq!(ip, IpAddr::from([127, 0, 0, 1]));
        // The called side is at the address of the test lab.
        let mut session = Session {
            peer,
            ip,
            folder: Path::new("absent"),
            subject: None,
        };
        let called = Some(SocketAddr::from(([127, 0, 0, 1], 5_070)));
        let error = session.start("no-such-subject", called, 1).unwrap_err();
        assert!(error.to_string().contains("no subject"), "{error}");
    }
}
