//! Media nodes of ours beside the border, each on a thread of its own, as `hornwork run --role media` is in a process of its own.

use super::PortSpan;
use crate::error::LabError;
use border::config;
use border::node::Node;
use engine::{Entropy, HashKey, Note, Time};
use media::{Forwarder, ForwarderLimits};
use net::{Clock, Driver, DriverConfig};
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest time between two looks at the orders.
const LOOK: Duration = Duration::from_millis(20);
/// Longest wait for its sockets.
const OPENING: Duration = Duration::from_secs(5);

/// What a node says about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeState {
    /// Calls begun since it started.
    pub begun: u64,
    /// Calls, sessions and pairs of ports that it holds.
    pub held: u64,
    /// CPU time of its thread, seconds.
    pub cpu_seconds: f64,
}

/// A node that runs; dropping it ends it.
#[derive(Debug)]
pub struct NodeThread {
    orders: Option<Sender<Sender<NodeState>>>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

fn cannot(why: impl std::fmt::Display) -> LabError {
    LabError::cannot(
        format!("a media node: {why}"),
        "free its ports, or raise the limit of open files (ulimit -n)",
    )
}

impl NodeThread {
    /// Starts a node and waits until it takes commands at `control`; its media ports are those of `ports` at the same address.
    ///
    /// # Errors
    /// Where it cannot listen.
    pub fn start(
        control: SocketAddr,
        ports: PortSpan,
        entropy: Entropy,
        clock: Clock,
    ) -> Result<NodeThread, LabError> {
        let text = format!(
            "[node]\nlisten = [\"udp:{control}\"]\n\n[[node.interface]]\nname = \"default\"\n\
             media = {{ address = \"{}\", ports = \"{}\" }}\n",
            control.ip(),
            ports.text()
        );
        let (orders, inbox) = mpsc::channel();
        let (ready, wait) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("media node".to_owned())
            .spawn(move || serve(&text, entropy, clock, &inbox, &ready))
            .map_err(cannot)?;
        let mut node = NodeThread {
            orders: Some(orders),
            thread: Some(thread),
        };
        match wait.recv_timeout(OPENING) {
            Ok(()) => Ok(node),
            Err(_) => {
                let why = node.stop().err();
                Err(why.unwrap_or_else(|| cannot("its sockets were not opened in time")))
            }
        }
    }

    /// What it says about itself.
    ///
    /// # Errors
    /// Where it has stopped.
    pub fn state(&self) -> Result<NodeState, LabError> {
        let (give, take) = mpsc::channel();
        let sent = self
            .orders
            .as_ref()
            .is_some_and(|orders| orders.send(give).is_ok());
        let state = if sent { take.recv().ok() } else { None };
        state.ok_or_else(|| cannot("it stopped"))
    }

    fn stop(&mut self) -> Result<(), LabError> {
        self.orders = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result.map_err(cannot),
            Some(Err(_)) => Err(cannot("it panicked")),
            None => Ok(()),
        }
    }
}

impl Drop for NodeThread {
    fn drop(&mut self) {
        // Its state was asked for before; how it ends says nothing about the trial.
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
        unreachable: true,
        gather: config.media.gather,
        ..DriverConfig::default()
    };
    let mut driver = Driver::new(settings, clock, forwarder).map_err(|error| error.to_string())?;
    let mut node = Node::new(config, clock.unix_nanos(Time::ZERO), entropy)
        .ok_or("the configuration describes none")?;
    loop {
        driver
            .turn(&mut node, LOOK)
            .map_err(|error| error.to_string())?;
        // The program reads sounds for it; here there are none.
        while node.next_sound().is_some() {}
        while let Some(event) = driver.next_event() {
            match event.note {
                Note::SocketOpened { .. } => {
                    // Later ones are those of media.
                    let _ = ready.send(());
                }
                Note::SocketFailed {
                    what,
                    address,
                    error,
                } => return Err(format!("{what} {address}: {error}")),
                _ => {}
            }
        }
        loop {
            match inbox.try_recv() {
                Ok(give) => {
                    let census = node.census();
                    let held = census.calls + census.sessions + census.ports;
                    // Who asked may have gone.
                    let _ = give.send(NodeState {
                        begun: node.counters().begun,
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
