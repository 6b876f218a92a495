//! Network namespaces with pairs of virtual interfaces between them.

use super::machine::receive_buffer_errors;
use crate::error::LabError;
use crate::experiment::Experiment;
use net::Network;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;

pub(super) fn link_error(what: &str, error: impl std::fmt::Display) -> LabError {
    LabError::cannot_run(
        format!("cannot set up the test link: {what}: {error}"),
        "run it as root (CAP_SYS_ADMIN, CAP_NET_ADMIN) on a kernel with veth, HTB and TBF, with ip, tc and ethtool (Debian: iproute2 ethtool)",
    )
}

/// Runs a closure in a network namespace, on a thread of its own.
pub(super) fn in_namespace<R: Send>(
    network: &Network,
    job: impl FnOnce() -> Result<R, LabError> + Send,
) -> Result<R, LabError> {
    let whole = || {
        network
            .enter()
            .map_err(|error| link_error("setns", error))?;
        job()
    };
    std::thread::scope(|scope| scope.spawn(whole).join())
        .unwrap_or_else(|_| Err(link_error("a thread", "it panicked")))
}

/// Runs commands in a network namespace; each line is one.
pub(super) fn commands(network: &Network, lines: &[String]) -> Result<(), LabError> {
    in_namespace(network, || run_all(lines))
}

/// Runs commands in the namespace of the calling thread.
fn run_all(lines: &[String]) -> Result<(), LabError> {
    for line in lines {
        let mut words = line.split(' ');
        let program = words.next().unwrap_or_default();
        let output = Command::new(program).args(words).output();
        let output = output.map_err(|error| link_error(program, error))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(link_error(line, why));
        }
    }
    Ok(())
}

/// Interfaces of the border, in its own namespace.
const BORDER_INTERFACES: [&str; 2] = ["access", "core"];
/// The other end of both pairs, in the namespaces of callers and called side.
const FAR_INTERFACE: &str = "voice";

/// Namespaces of callers and called side, each linked with the namespace of the calling thread, where the border runs.
#[derive(Debug)]
pub(super) struct CallNetworks {
    /// Of callers and of the called side.
    pub sides: [Arc<Network>; 2],
    /// Addresses of callers and of the called side.
    pub hosts: [IpAddr; 2],
    /// Addresses of the border towards each.
    pub border: [IpAddr; 2],
}

impl CallNetworks {
    /// Creates the namespaces and interfaces. The interfaces of callers and called side have GRO, without which a veth
    /// does not take frames that XDP redirects to it, and compute checksums, which XDP does not complete.
    ///
    /// # Errors
    /// Without the rights, or without the programs.
    pub fn new(experiment: &Experiment) -> Result<CallNetworks, LabError> {
        let side = |number: usize, six: bool| -> Result<(Arc<Network>, IpAddr, IpAddr), LabError> {
            let network = Network::with_loopback().map_err(|error| link_error("unshare", error))?;
            let interface = BORDER_INTERFACES[number];
            let (host, border, length) = addresses(number as u16 + 1, six);
            let nodad = if six { " nodad" } else { "" };
            let path = network.path();
            run_all(&[
                format!("ip link add {interface} type veth peer name {FAR_INTERFACE}"),
                format!("ip link set {FAR_INTERFACE} netns {}", path.display()),
                format!("ip addr add {border}/{length} dev {interface}{nodad}"),
                format!("ip link set {interface} up"),
            ])?;
            commands(
                &network,
                &[
                    format!("ip addr add {host}/{length} dev {FAR_INTERFACE}{nodad}"),
                    format!("ip link set {FAR_INTERFACE} up"),
                    format!("ethtool -K {FAR_INTERFACE} gro on"),
                    format!("ethtool -K {FAR_INTERFACE} tx off"),
                ],
            )?;
            Ok((Arc::new(network), host, border))
        };
        let [near, far] = experiment.sut.ip.sides();
        let (near, far) = (side(0, near)?, side(1, far)?);
        Ok(CallNetworks {
            sides: [near.0, far.0],
            hosts: [near.1, far.1],
            border: [near.2, far.2],
        })
    }

    /// The kernel's counter `RcvbufErrors` of all three namespaces together.
    ///
    /// # Errors
    /// If /proc cannot be read.
    pub fn receive_buffer_errors(&self) -> Result<u64, LabError> {
        let mut sum = receive_buffer_errors()?;
        for network in &self.sides {
            sum += in_namespace(network, receive_buffer_errors)?;
        }
        Ok(sum)
    }
}

/// Addresses of the host and of the border in a network, and the prefix length.
fn addresses(network: u16, six: bool) -> (IpAddr, IpAddr, u8) {
    let address = |host: u16| -> IpAddr {
        match six {
            true => [0xfd09, network, 0, 0, 0, 0, 0, host].into(),
            false => [10, 9, network as u8, host as u8].into(),
        }
    };
    (address(1), address(2), if six { 64 } else { 24 })
}
