//! Runs Hornwork media nodes beside the border, each on a thread of its own, as `hornwork run --role media` does in a
//! process.

use super::PortSpan;
use crate::error::LabError;
use engine::{Entropy, EventKind, HashKey, Time};
use media::{Forwarder, ForwarderLimits};
use net::{Clock, Driver, DriverConfig};
use ng::server::NgServer;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest time between two polls of the request channel.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longest wait for the sockets to open.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// State of a media node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeState {
    /// Calls begun since its start.
    pub begun: u64,
    /// Calls, sessions and port pairs in use.
    pub held: u64,
    /// CPU time of its thread, seconds.
    pub cpu_seconds: f64,
}

/// A running media node; dropping it stops it.
#[derive(Debug)]
pub struct NodeThread {
    requests: Option<Sender<Sender<NodeState>>>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

/// Names of the interfaces of a node, which are those of the border.
const SIDES: [&str; 2] = ["access", "core"];

fn cannot(why: impl std::fmt::Display) -> LabError {
    LabError::cannot_run(
        format!("a media node: {why}"),
        "free its ports, or raise the limit of open files (ulimit -n)",
    )
}

impl NodeThread {
    /// Starts a node and waits until it accepts commands at `control`; its media ports are those of `sides`, towards
    /// callers and towards the called side.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn start(
        control: SocketAddr,
        sides: [(IpAddr, PortSpan); 2],
        entropy: Entropy,
        clock: Clock,
    ) -> Result<NodeThread, LabError> {
        let mut text = format!("[ng_server]\nlisten = [\"udp:{control}\"]\n\n");
        for (name, (address, ports)) in SIDES.iter().zip(&sides) {
            let _ = write!(
                text,
                "[[ng_server.interface]]\nname = \"{name}\"\nmedia = {{ address = \"{address}\", ports = \"{}\" }}\n",
                ports.text()
            );
        }
        let (requests, inbox) = mpsc::channel();
        let (ready, wait) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("media node".to_owned())
            .spawn(move || serve(&text, entropy, clock, &inbox, &ready))
            .map_err(cannot)?;
        let mut node = NodeThread {
            requests: Some(requests),
            thread: Some(thread),
        };
        match wait.recv_timeout(OPEN_TIMEOUT) {
            Ok(()) => Ok(node),
            Err(_) => {
                let why = node.stop().err();
                Err(why.unwrap_or_else(|| cannot("its sockets did not open in time")))
            }
        }
    }

    /// The state of the node.
    ///
    /// # Errors
    /// If it has stopped.
    pub fn state(&self) -> Result<NodeState, LabError> {
        let (reply, receiver) = mpsc::channel();
        let sent = self
            .requests
            .as_ref()
            .is_some_and(|requests| requests.send(reply).is_ok());
        let state = if sent { receiver.recv().ok() } else { None };
        state.ok_or_else(|| cannot("it has stopped"))
    }

    fn stop(&mut self) -> Result<(), LabError> {
        self.requests = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result.map_err(cannot),
            Some(Err(_)) => Err(cannot("it panicked")),
            None => Ok(()),
        }
    }
}

impl Drop for NodeThread {
    fn drop(&mut self) {
        // Its state was read before; a failure at the stop does not affect the trial.
        let _ = self.stop();
    }
}

fn serve(
    text: &str,
    mut entropy: Entropy,
    clock: Clock,
    inbox: &Receiver<Sender<NodeState>>,
    ready: &Sender<()>,
) -> Result<(), String> {
    let config = config::parse(text, "media node").map_err(|mistakes| {
        let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        mistakes.join("\n")
    })?;
    let forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::new(&mut entropy));
    let settings = DriverConfig {
        report_unreachable: true,
        media_batching_delay: config.media.batching_delay,
        ..DriverConfig::default()
    };
    let mut driver = Driver::new(settings, clock, forwarder).map_err(|error| error.to_string())?;
    let mut node = NgServer::new(config, clock.unix_nanos(Time::ZERO), entropy)
        .ok_or("the configuration describes none")?;
    node.set_open_files(net::open_files().0);
    loop {
        driver
            .turn(&mut node, POLL_INTERVAL)
            .map_err(|error| error.to_string())?;
        // The program would read sound files here; the lab has none.
        while node.next_sound_request().is_some() {}
        while let Some(event) = driver.next_event() {
            match event.kind {
                EventKind::SocketOpened { .. } => {
                    // Sockets opened later are those of media.
                    let _ = ready.send(());
                }
                EventKind::SocketFailed {
                    purpose: what,
                    address,
                    error,
                } => return Err(format!("{what} {address}: {error}")),
                _ => {}
            }
        }
        loop {
            match inbox.try_recv() {
                Ok(reply) => {
                    let census = node.census();
                    let held = census.calls + census.sessions + census.ports;
                    // The requester may have stopped waiting.
                    let _ = reply.send(NodeState {
                        begun: node.counters().started,
                        held: held as u64,
                        cpu_seconds: net::thread_cpu().as_secs_f64(),
                    });
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
    }
}
