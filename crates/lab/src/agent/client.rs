//! The test lab's side of an agent.

use super::channel;
use super::messages::{AgentAnswer, AgentRequest};
use super::wire::{Side, Token, Wire, WireError, read_token};
use crate::error::LabError;
use crate::raw::MachineRecord;
use crate::subject::{Family, Placement, SubjectFile};
use net::tls::Anchors;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest set-up of a connection, and longest wait for figures.
const ANSWER: Duration = Duration::from_secs(5);
/// Longest start of a subject: eight processes of 120 s at most, and their warm-up.
const START: Duration = Duration::from_secs(1_000);
/// Longest stop.
const STOP: Duration = Duration::from_secs(1_000);

/// A subject as an agent describes it.
#[derive(Debug)]
pub struct Described {
    /// Its file.
    pub file: SubjectFile,
    /// Version of its program.
    pub version: String,
    /// Programs that are not installed there.
    pub missing: Vec<String>,
    /// The machine, if it is another one.
    pub machine: Option<MachineRecord>,
}

/// An agent and the means to reach it.
#[derive(Clone, Debug)]
pub struct AgentAccess {
    address: SocketAddr,
    token: Token,
    /// Authorities of its certificate; without them the connection has no TLS.
    anchors: Option<Anchors>,
}

impl AgentAccess {
    /// Reads the files of an agent's token and, for TLS, of its authorities (an empty path: no TLS).
    ///
    /// # Errors
    /// A file is missing or invalid.
    pub fn new(
        address: SocketAddr,
        token: &str,
        authorities: &str,
    ) -> Result<AgentAccess, LabError> {
        let anchors = match authorities {
            "" => None,
            file => Some(
                Anchors::read(Path::new(file))
                    .map_err(|error| LabError::bad_input(format!("sut.agent_ca_file: {error}")))?,
            ),
        };
        Ok(AgentAccess {
            address,
            token: read_token(Path::new(token))?,
            anchors,
        })
    }
}

/// A session with an agent.
#[derive(Debug)]
struct Session {
    agent: SocketAddr,
    wire: Wire,
}

impl Session {
    fn open(access: &AgentAccess) -> Result<Session, LabError> {
        let agent = access.address;
        let stream = TcpStream::connect_timeout(&agent, ANSWER).map_err(|error| {
            LabError::cannot_run(
                format!("agent {agent}: {error}"),
                "start it there: hornwork lab agent --listen ADDRESS:PORT --token-file FILE",
            )
        })?;
        let channel = match &access.anchors {
            Some(anchors) => channel::client(stream, anchors, ANSWER),
            None => channel::plain(stream, ANSWER),
        };
        let opened =
            channel.and_then(|channel| Wire::open(channel, Side::Lab, &access.token, ANSWER));
        match opened {
            Ok(wire) => Ok(Session { agent, wire }),
            Err(error) => Err(broken(agent, &error)),
        }
    }

    fn ask(&mut self, request: &AgentRequest, limit: Duration) -> Result<AgentAnswer, LabError> {
        let agent = self.agent;
        let body = serde_json::to_vec(request)
            .map_err(|error| LabError::bad_input(format!("agent {agent}: {error}")))?;
        // Figures are wanted after an interruption, too.
        let answer = self
            .wire
            .send(&body)
            .and_then(|()| self.wire.receive(limit, false))
            .map_err(|error| broken(agent, &error))?;
        match serde_json::from_slice(&answer) {
            Ok(AgentAnswer::Refused { problem, remedy }) => Err(LabError::cannot_run(
                format!("agent {agent}: {problem}"),
                remedy,
            )),
            Ok(answer) => Ok(answer),
            Err(error) => Err(unexpected(agent, &error.to_string())),
        }
    }
}

fn broken(agent: SocketAddr, error: &WireError) -> LabError {
    let remedy = match error {
        WireError::Unauthenticated => {
            "give both ends the same token file; after 5 wrong tokens wait a minute"
        }
        WireError::Tls(_) => {
            "the agent needs --tls-certificate, with its IP address in the certificate; --agent-ca-file names the authority that issued it"
        }
        WireError::NoAgent => {
            "name the address of hornwork lab agent, of the same version; an agent with TLS needs --agent-ca-file"
        }
        _ => {
            "see the messages of the agent, and start it again; one with TLS needs --agent-ca-file"
        }
    };
    LabError::cannot_run(format!("agent {agent}: {error}"), remedy)
}

fn unexpected(agent: SocketAddr, what: &str) -> LabError {
    LabError::cannot_run(
        format!("agent {agent}: unexpected answer: {what}"),
        "use the same version at both ends",
    )
}

/// Asks an agent for a subject.
///
/// # Errors
/// If the agent is not reached, refuses the token, or has no such subject.
pub fn describe(name: &str, access: &AgentAccess) -> Result<Described, LabError> {
    let agent = access.address;
    let request = AgentRequest::Describe {
        subject: name.to_owned(),
    };
    match Session::open(access)?.ask(&request, ANSWER)? {
        AgentAnswer::Described {
            text,
            version,
            missing,
            machine,
        } => Ok(Described {
            file: SubjectFile::parse(&format!("{name}@{agent}"), &text)?,
            version,
            missing,
            machine: Some(machine),
        }),
        other => Err(unexpected(agent, &format!("{other:?}"))),
    }
}

/// A subject that an agent runs; it ends when this value is dropped.
#[derive(Debug)]
pub struct AgentSubject {
    listen: SocketAddr,
    session: Mutex<Session>,
}

impl AgentSubject {
    /// Lets an agent start a subject; its own address is that of the connection.
    ///
    /// # Errors
    /// If the agent is not reached, or the subject does not start.
    pub fn start(
        name: &str,
        access: &AgentAccess,
        placement: Placement,
    ) -> Result<AgentSubject, LabError> {
        let agent = access.address;
        let mut session = Session::open(access)?;
        let request = AgentRequest::Start {
            subject: name.to_owned(),
            called: placement.called,
            calls: placement.calls,
        };
        match session.ask(&request, START)? {
            AgentAnswer::Started { listen } => Ok(AgentSubject {
                listen,
                session: Mutex::new(session),
            }),
            other => Err(unexpected(agent, &format!("{other:?}"))),
        }
    }

    /// Its SIP address.
    pub fn address(&self) -> SocketAddr {
        self.listen
    }

    /// CPU time and memory of the processes that count, and the reason if it has ended by itself.
    ///
    /// # Errors
    /// If the agent does not answer.
    pub(crate) fn figures(&self, memory: bool) -> Result<(Family, Option<String>), LabError> {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        match session.ask(&AgentRequest::Figures { memory }, ANSWER)? {
            AgentAnswer::Figures {
                cpu_seconds,
                memory_bytes,
                ended,
            } => {
                let figures = Family {
                    cpu_seconds,
                    memory_bytes,
                    // Not asked for: its processors are not those of the generator.
                    waited_seconds: 0.0,
                };
                Ok((figures, ended))
            }
            other => Err(unexpected(session.agent, &format!("{other:?}"))),
        }
    }

    /// Stops it.
    ///
    /// # Errors
    /// If the agent does not answer.
    pub fn stop(self) -> Result<(), LabError> {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        session.ask(&AgentRequest::Stop, STOP).map(drop)
    }
}
