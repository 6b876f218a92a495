//! An access side with a line: callers and border in a network namespace each, and between them a third one, which
//! passes the packets as they are or through the link of `[network]`. Firewall and tunnels are the modules of study C,
//! ESP is that of two gateways of this program, or of one and the border's own (`tunnel_to_border.rs`).

use super::emulated::CarriedLink;
use super::namespaces::{finish_links, in_namespace};
use crate::emulator::own_error::{self, OwnError};
use crate::error::LabError;
use crate::esp::line::{LineGatewayCount, faults};
use crate::experiment::{Experiment, Protection};
use crate::raw::{LinkRecord, NoiseRecord};
use crate::study_c::Tunnel;
use crate::study_c::bench::{Bench, BenchPlan, LINE_ENDS, LINE_INTERFACE, remove_left_overs};
use engine::Entropy;
use net::{Clock, Network, interface_counters};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Addresses of callers and border, as the rest of the trial knows them.
const ACCESS: [&str; 2] = ["10.9.0.1", "10.9.0.2"];
/// Addresses on the line below a tunnel.
const BELOW: [&str; 2] = ["10.96.0.1", "10.96.0.2"];
/// Ports that the firewall opens on both hosts: those of the border and of the callers are free ones.
const PORTS: &str = "1024-65535";
const ETHERNET: u64 = 14;
/// Numbers of test beds begin above the cells of study C. Names of interfaces have room for five digits.
const FIRST_NUMBER: usize = 10_000;
const NUMBERS: usize = 80_000;

/// Test beds that this process has made.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// The access side.
#[derive(Debug)]
pub(super) struct Tunnelled {
    /// Ahead of the test bed, so that they end before it is removed.
    links: Vec<CarriedLink>,
    bench: Bench,
    own_error: Option<OwnError>,
    heal_seconds: f64,
    before: u64,
}

/// Figures of the access side.
#[derive(Debug)]
pub(super) struct TunnelledEnd {
    /// Bytes of IP packets on the line, both ways.
    pub(super) bytes: u64,
    /// The link of `[network]`.
    pub(super) links: Vec<LinkRecord>,
    /// Remarks on it.
    pub(super) remarks: Vec<String>,
    /// Gateways of our own ESP, that of the callers first.
    pub(super) gateways: Option<[LineGatewayCount; 2]>,
}

fn cannot(protection: &Protection, why: &str) -> LabError {
    LabError::cannot_run(
        format!("[protection], {}: {why}", protection.name()),
        "run it as root on a kernel with veth, bridge and TUN, with ip, nft and the programs of the tunnel, or use --simulate",
    )
}

/// The error of a set-up; after a stop signal it is the end that the user wants.
fn set_up_failed(protection: &Protection, why: &str) -> LabError {
    match net::stops() {
        0 => cannot(protection, why),
        _ => LabError::Interrupted(format!(
            "interrupted while {} was set up",
            protection.name()
        )),
    }
}

impl Tunnelled {
    /// Makes the namespaces, the line, then firewall and tunnel over it.
    ///
    /// # Errors
    /// A right or a program is missing, or the tunnel does not start.
    pub(super) fn open(
        experiment: &Experiment,
        protection: &Protection,
        seed: u64,
    ) -> Result<Tunnelled, LabError> {
        let failed = |why: String| set_up_failed(protection, &why);
        remove_left_overs()?;
        let own_error = match experiment.network.is_set() {
            true => Some(own_error::measure()?),
            false => None,
        };
        let number = FIRST_NUMBER + MADE.fetch_add(1, Ordering::Relaxed) % NUMBERS;
        let (module, esp) = (protection.module(), protection.esp());
        let line = match module.map(|module| module.tunnel) {
            None | Some(Tunnel::None) if esp.is_none() => ACCESS,
            _ => BELOW,
        };
        let mut entropy = Entropy::from_number(seed);
        let logs = Bench::private_logs(number).map_err(failed)?;
        let bench = Bench::of(BenchPlan {
            number,
            logs: &logs,
            line,
            inner: ACCESS,
            udp_ports: PORTS.to_owned(),
            tcp_ports: PORTS.to_owned(),
        });
        let mut bench = bench.map_err(|why| {
            let _ = std::fs::remove_dir_all(&logs);
            failed(why)
        })?;
        bench.owns(logs);
        let mut links = Vec::new();
        if experiment.network.is_set() {
            links.push(CarriedLink::start(
                "callers",
                (bench.networks[2].clone(), LINE_ENDS),
                &experiment.network,
                entropy.fork(),
                Clock::new(),
            )?);
        } else {
            bench.bridge().map_err(failed)?;
        }
        if let Some(module) = module {
            bench.protect(module).map_err(failed)?;
        }
        // A border with a gateway of its own has its tunnel on the line.
        let own = protection.border_gateway();
        if let Some(suite) = esp.filter(|_| own.is_none()) {
            bench.esp(suite, &mut entropy).map_err(failed)?;
        }
        let before = line_bytes(&bench)?;
        Ok(Tunnelled {
            links,
            bench,
            own_error,
            heal_seconds: experiment.network.heal_seconds,
            before,
        })
    }

    /// Namespaces of callers and border.
    pub(super) fn networks(&self) -> [Arc<Network>; 2] {
        [
            self.bench.networks[0].clone(),
            self.bench.networks[1].clone(),
        ]
    }

    /// Ends the faults of the link at their time.
    pub(super) fn heal_at(&self, seconds: f64) {
        if self.heal_seconds > 0.0 && seconds >= self.heal_seconds {
            self.links.iter().for_each(CarriedLink::heal);
        }
    }

    /// Ends the link, then removes the test bed.
    ///
    /// # Errors
    /// A program of the tunnel has ended during the trial, or an interface was gone.
    pub(super) fn finish(
        mut self,
        protection: &Protection,
        noise: &NoiseRecord,
    ) -> Result<TunnelledEnd, LabError> {
        self.bench.check().map_err(|why| cannot(protection, &why))?;
        let bytes = line_bytes(&self.bench)?.saturating_sub(self.before);
        let gateways = self.bench.finish_gateways();
        let gateways = gateways.map_err(|why| cannot(protection, &why))?;
        let (mut links, remarks) = finish_links(self.links, self.own_error.as_ref(), noise)?;
        if let Some(counts) = &gateways {
            let faults = faults(counts);
            links
                .iter_mut()
                .for_each(|link| link.faults.extend(faults.iter().cloned()));
        }
        Ok(TunnelledEnd {
            bytes,
            links,
            remarks,
            gateways,
        })
    }
}

/// Bytes of IP packets that passed the border's end of the line, both ways.
fn line_bytes(bench: &Bench) -> Result<u64, LabError> {
    let counters = in_namespace(&bench.networks[1], || {
        interface_counters(LINE_INTERFACE).map_err(|error| {
            LabError::cannot_run(format!("counters of {LINE_INTERFACE}: {error}"), "")
        })
    })?;
    let packets = counters.received_packets + counters.sent_packets;
    let bytes = counters.received_bytes + counters.sent_bytes;
    Ok(bytes.saturating_sub(packets * ETHERNET))
}
