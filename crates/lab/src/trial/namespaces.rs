//! Network namespaces with pairs of virtual interfaces between them.

use super::HostPlacement;
use super::emulated::{CarriedLink, ENDS};
use super::machine::receive_buffer_errors;
use crate::emulator::own_error::{self, OwnError};
use crate::error::LabError;
use crate::experiment::{Experiment, SutMedia};
use crate::raw::{LinkRecord, NoiseRecord};
use engine::Entropy;
use net::{Clock, Network};
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

/// MAC addresses of the hosts and of the border in each network. They are known to both ends, so that no address
/// resolution crosses a link with faults.
const MACS: [[&str; 2]; 2] = [
    ["02:00:00:00:01:01", "02:00:00:00:01:02"],
    ["02:00:00:00:02:01", "02:00:00:00:02:02"],
];

/// Namespaces of callers and called side, each linked with the namespace of the calling thread, where the border runs.
#[derive(Debug)]
pub(super) struct CallNetworks {
    /// Of callers and of the called side. Without a SUT (`sut.direct`) the called side is in the namespace of the
    /// calling thread; a conference has no called side.
    pub sides: [Option<Arc<Network>>; 2],
    /// Addresses of callers and of the called side.
    pub hosts: [IpAddr; 2],
    /// Addresses of the border towards each.
    pub border: [IpAddr; 2],
    /// Links of `[network]`.
    links: Vec<CarriedLink>,
    /// Time from the start after which the links have no faults, seconds; zero: never.
    heal_seconds: f64,
    /// The links' own error.
    own_error: Option<OwnError>,
}

impl CallNetworks {
    /// The networks of a trial whose media passes interfaces: with the kernel relay, or with `[network]`, whose links'
    /// own error is measured first.
    ///
    /// # Errors
    /// Those of [`CallNetworks::new`].
    pub fn where_needed(
        experiment: &Experiment,
        seed: u64,
        clock: Clock,
    ) -> Result<Option<CallNetworks>, LabError> {
        let own_error = match experiment.network.is_set() {
            true => Some(own_error::measure()?),
            false if experiment.sut.media == SutMedia::KernelRelay => None,
            false => return Ok(None),
        };
        // Its draws are apart from those of the hosts, whose seeds are the same without a network.
        let mut entropy = Entropy::from_number(seed).fork();
        let networks = CallNetworks::new(experiment, &mut entropy, clock)?;
        Ok(Some(CallNetworks {
            own_error,
            ..networks
        }))
    }

    /// Creates the namespaces and interfaces, with the links of `[network]` between them where it is set. The
    /// interfaces of callers and called side have GRO, without which a veth does not take frames that XDP redirects to
    /// it, and compute checksums, which XDP does not complete.
    ///
    /// # Errors
    /// Without the rights, or without the programs.
    fn new(
        experiment: &Experiment,
        entropy: &mut Entropy,
        clock: Clock,
    ) -> Result<CallNetworks, LabError> {
        let mut links = Vec::new();
        let mut side = |number: usize,
                        six: bool|
         -> Result<(Arc<Network>, IpAddr, IpAddr), LabError> {
            let network = Network::with_loopback().map_err(|error| link_error("unshare", error))?;
            let network = Arc::new(network);
            let (host, border, length) = addresses(number as u16 + 1, six);
            let wired = Wire {
                network: &network,
                border: BORDER_INTERFACES[number],
                macs: MACS[number],
            };
            let line = match experiment.network.is_set() {
                true => Some(wired.with_line()?),
                false => {
                    wired.alone()?;
                    None
                }
            };
            wired.addresses((host, border), length)?;
            if let Some(line) = line {
                let name = ["callers", "called side"][number];
                let entropy = entropy.fork();
                let settings = &experiment.network;
                links.push(CarriedLink::start(
                    name,
                    (line, ENDS),
                    settings,
                    entropy,
                    clock,
                )?);
            }
            Ok((network, host, border))
        };
        let [near, far] = experiment.sut.ip.sides();
        let near = side(0, near)?;
        let far = match experiment.sut.direct || experiment.conference.is_some() {
            true => (None, near.2, near.2),
            false => {
                let (network, host, border) = side(1, far)?;
                (Some(network), host, border)
            }
        };
        Ok(CallNetworks {
            sides: [Some(near.0), far.0],
            hosts: [near.1, far.1],
            border: [near.2, far.2],
            links,
            heal_seconds: experiment.network.heal_seconds,
            own_error: None,
        })
    }

    /// The place of the hosts of a side.
    pub fn placement(&self, side: usize) -> HostPlacement {
        HostPlacement {
            network: self.sides.get(side).cloned().flatten(),
            ..HostPlacement::default()
        }
    }

    /// Ends the faults of the links at their time.
    pub fn heal_at(&self, seconds: f64) {
        if self.heal_seconds > 0.0 && seconds >= self.heal_seconds {
            self.links.iter().for_each(CarriedLink::heal);
        }
    }

    /// Ends the links; returns their records, and remarks.
    ///
    /// # Errors
    /// An interface was gone.
    pub fn finish(self, noise: &NoiseRecord) -> Result<(Vec<LinkRecord>, Vec<String>), LabError> {
        finish_links(self.links, self.own_error.as_ref(), noise)
    }

    /// Runs a closure in the namespace of a side.
    ///
    /// # Errors
    /// Those of the closure; the namespace cannot be entered.
    pub fn at_side<R: Send>(
        &self,
        side: usize,
        job: impl FnOnce() -> Result<R, LabError> + Send,
    ) -> Result<R, LabError> {
        match &self.sides[side] {
            Some(network) => in_namespace(network, job),
            None => job(),
        }
    }

    /// The kernel's counter `RcvbufErrors` of all namespaces together.
    ///
    /// # Errors
    /// If /proc cannot be read.
    pub fn receive_buffer_errors(&self) -> Result<u64, LabError> {
        let mut sum = receive_buffer_errors()?;
        for network in self.sides.iter().flatten() {
            sum += in_namespace(network, receive_buffer_errors)?;
        }
        Ok(sum)
    }
}

/// Ends links, whose own error was measured; returns their records, and remarks.
///
/// # Errors
/// An interface was gone.
pub(super) fn finish_links(
    links: Vec<CarriedLink>,
    own_error: Option<&OwnError>,
    noise: &NoiseRecord,
) -> Result<(Vec<LinkRecord>, Vec<String>), LabError> {
    let links = links.into_iter().map(|link| link.finish(noise));
    let mut links = links.collect::<Result<Vec<LinkRecord>, LabError>>()?;
    let faults = own_error.map(OwnError::faults);
    for fault in faults.into_iter().flatten() {
        links
            .iter_mut()
            .for_each(|link| link.faults.push(fault.clone()));
    }
    let own_error = own_error.map(OwnError::text);
    let mut remarks: Vec<String> = own_error.into_iter().collect();
    remarks.extend(links.iter().map(|link| link.remark.clone()));
    Ok((links, remarks))
}

/// The interfaces between the namespace of a side and that of the calling thread.
struct Wire<'a> {
    network: &'a Network,
    border: &'static str,
    macs: [&'static str; 2],
}

impl Wire<'_> {
    /// One pair of interfaces.
    fn alone(&self) -> Result<(), LabError> {
        let (border, path) = (self.border, self.network.path());
        let [host_mac, border_mac] = self.macs;
        run_all(&[
            format!(
                "ip link add {border} address {border_mac} type veth peer name {FAR_INTERFACE} address {host_mac}"
            ),
            format!("ip link set {FAR_INTERFACE} netns {}", path.display()),
        ])
    }

    /// Two pairs of interfaces, whose other ends are in a third namespace, which is returned.
    fn with_line(&self) -> Result<Arc<Network>, LabError> {
        let line = Network::new().map_err(|error| link_error("unshare", error))?;
        let (border, path) = (self.border, self.network.path());
        let [host_mac, border_mac] = self.macs;
        let [to_hosts, to_sut] = ENDS;
        run_all(&[
            format!(
                "ip link add {FAR_INTERFACE} address {host_mac} type veth peer name {to_hosts}"
            ),
            format!("ip link set {to_hosts} netns {}", line.path().display()),
            format!("ip link set {FAR_INTERFACE} netns {}", path.display()),
            format!("ip link add {border} address {border_mac} type veth peer name {to_sut}"),
            format!("ip link set {to_sut} netns {}", line.path().display()),
            // Kernels before Linux 6.2 do not describe such segments to the link. The hosts, which compute checksums,
            // have none.
            format!("ethtool -K {border} tx-udp-segmentation off"),
        ])?;
        let mut lines = Vec::new();
        for end in ENDS {
            // Without an address of its own: its packets would be carried, too.
            lines.push(format!("ip link set {end} addrgenmode none up"));
            lines.push(format!("ethtool -K {end} gro on"));
        }
        commands(&line, &lines)?;
        Ok(Arc::new(line))
    }

    /// Addresses at both ends, and the routes of the hosts to all networks of the SUT.
    fn addresses(&self, (host, border): (IpAddr, IpAddr), length: u8) -> Result<(), LabError> {
        let nodad = if host.is_ipv6() { " nodad" } else { "" };
        let [host_mac, border_mac] = self.macs;
        let interface = self.border;
        // The veth's end in the namespace of the hosts comes up first: frames before that would be lost.
        commands(
            self.network,
            &[
                format!("ip link set {FAR_INTERFACE} addrgenmode none up"),
                format!("ip addr add {host}/{length} dev {FAR_INTERFACE}{nodad}"),
                format!(
                    "ip neigh add {border} lladdr {border_mac} dev {FAR_INTERFACE} nud permanent"
                ),
                format!("ip route add default via {border} dev {FAR_INTERFACE}"),
                format!("ethtool -K {FAR_INTERFACE} gro on"),
                format!("ethtool -K {FAR_INTERFACE} tx off"),
            ],
        )?;
        run_all(&[
            format!("ip link set {interface} addrgenmode none up"),
            format!("ip addr add {border}/{length} dev {interface}{nodad}"),
            format!("ip neigh add {host} lladdr {host_mac} dev {interface} nud permanent"),
        ])
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
