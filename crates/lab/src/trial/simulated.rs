//! A trial in virtual time: the same hosts and SUT, on links with the delay and loss of the experiment.

use super::{Outcomes, Trial, TrialHosts, WaitLimits, merge, total_held};
use crate::error::LabError;
use crate::esp::WireMedium;
use crate::experiment::{Experiment, NetworkSettings, Protection};
use crate::hops::HopTap;
use crate::host::{Holdings, LabHost, Results};
use crate::sut::{Simulated, simulated_addresses};
use engine::Time;
use sim::{HostId, LinkConfig, TapRecord, World};
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

/// Host number in the simulated networks.
const HOST: u8 = 1;
/// Port for streams without signalling.
const STREAM_PORT: u16 = 31_000;
/// First arrival: sockets are open by then.
const START: Time = Time::from_secs(1);
/// After the last call, transactions remain for 64 times T1 (RFC 3261 section 17); after that nothing may be left.
const LINGER: Duration = Duration::from_secs(70);
/// Interval at which the end of the trial is checked.
const STEP: Duration = Duration::from_millis(250);

/// Runs a trial in virtual time.
///
/// # Errors
/// If the experiment needs real sockets (a foreign SUT).
pub fn simulate(trial: &Trial) -> Result<Outcomes, LabError> {
    in_world(trial, World::new(trial.seed)).map(|(outcomes, _)| outcomes)
}

/// As [`simulate`], with the log of every input, output, loss and event, line by line.
///
/// # Errors
/// As for [`simulate`].
pub fn simulate_with_log(trial: &Trial) -> Result<(Outcomes, Vec<u8>), LabError> {
    let mut world = World::new(trial.seed);
    world.keep_log();
    in_world(trial, world).map(|(outcomes, world)| (outcomes, world.log().to_vec()))
}

/// As [`simulate`]; each packet is passed to a closure as it leaves its sender and as it arrives.
///
/// # Errors
/// As for [`simulate`].
pub fn simulate_watched(
    trial: &Trial,
    watch: impl FnMut(&TapRecord<'_>) + 'static,
) -> Result<Outcomes, LabError> {
    let mut world = World::new(trial.seed);
    world.set_tap(watch);
    in_world(trial, world).map(|(outcomes, _)| outcomes)
}

fn in_world(trial: &Trial, world: World) -> Result<(Outcomes, World), LabError> {
    let experiment = &trial.experiment;
    if experiment.esp.is_some() {
        return Ok((super::esp::run(trial, WireMedium::Memory)?, world));
    }
    if experiment.phone.is_some() {
        return super::phones::in_world(trial, world);
    }
    if experiment.protection.is_some() {
        return super::protected::in_world(trial, world);
    }
    in_plain_world(trial, world)
}

/// Runs a trial in a world whose access side is as it is.
pub(super) fn in_plain_world(
    trial: &Trial,
    mut world: World,
) -> Result<(Outcomes, World), LabError> {
    let experiment = &trial.experiment;
    if experiment.sut.is_external() {
        return Err(LabError::bad_input(
            "a foreign system under test cannot be simulated: remove sut.address and sut.subject, or --simulate",
        ));
    }
    if experiment.uses_websockets() {
        return Err(LabError::bad_input(
            "WebSocket is not supported in virtual time: remove --simulate, or set the transport to udp or tcp",
        ));
    }
    if experiment.uses_tls() {
        return Err(LabError::bad_input(
            "TLS is not supported in virtual time: remove --simulate, or set the transport to udp or tcp",
        ));
    }
    if experiment.link.is_some() {
        return Err(LabError::bad_input(
            "[link] needs this machine's kernel: remove --simulate",
        ));
    }
    if experiment.generator.workers > 1 {
        return Err(LabError::bad_input(
            "generator.workers: virtual time has one thread; remove the key or --simulate",
        ));
    }
    let [up, _] = experiment.network.links(false);
    world.set_default_link(up);
    if experiment.conference.is_some() {
        return super::conference::in_world(trial, world);
    }
    let hops = Rc::new(RefCell::new(HopTap::default()));
    let watching = Rc::clone(&hops);
    world.add_tap(move |packet| watching.borrow_mut().take(packet));
    let [near_ip, far_ip] = simulated_addresses(experiment, HOST);
    let cast = TrialHosts::of(experiment, near_ip, far_ip, STREAM_PORT)?;
    let far = cast.far.map(|plan| add(&mut world, "far", far_ip, plan));
    let far_address = far.and_then(|host| address(&mut world, host));
    let sut = Simulated::add(&mut world, experiment, 0, far_address)?;
    let near = add(&mut world, "near", near_ip, cast.near);
    let near_address = address(&mut world, near);
    hops.borrow_mut()
        .set_ends([Some(near), far].into_iter().flatten());
    let target = sut.address().or(far_address).or(near_address);
    let target = target.ok_or_else(|| LabError::bad_input("no host has an address"))?;
    for host in [Some(near), far].into_iter().flatten() {
        world.with_engine(host, |host: &mut LabHost, _| host.begin(target, START));
    }
    let hosts = [Some(near), far].into_iter().flatten();
    let down: Vec<(HostId, HostId)> = match (sut.host(), far) {
        (Some(border), _) => hosts.map(|host| (border, host)).collect(),
        (None, Some(far)) => vec![(far, near)],
        (None, None) => Vec::new(),
    };
    set_down_links(&mut world, &experiment.network, &down, false);
    let access = sut.host().or(far).map(|other| (near, other));
    set_access_links(&mut world, experiment, access, false);
    let changed = ChangedLinks {
        down: &down,
        access,
    };
    let end = run(&mut world, trial, (near, far), changed);
    world.run_until(end + LINGER);
    let mut results: Vec<Results> = Vec::new();
    let mut holdings: Vec<Holdings> = Vec::new();
    for host in [Some(near), far].into_iter().flatten() {
        let ended = world.with_engine(host, |host: &mut LabHost, now| {
            (host.holdings(), host.finish(now))
        });
        let (held, result) =
            ended.ok_or_else(|| LabError::bad_input("a simulated host is down"))?;
        holdings.push(held);
        results.push(result);
    }
    let lingering: u64 = holdings.iter().map(|held| held.transactions as u64).sum();
    let (sut_objects, census) = sut.leaks(&mut world);
    let (attempts, streams) = merge(trial.number, results);
    let outcomes = Outcomes {
        attempts,
        streams,
        seconds: end.since(START).as_secs_f64(),
        leaks: Some(total_held(&holdings) + lingering + sut_objects),
        remarks: match total_held(&holdings) + lingering + sut_objects {
            0 => Vec::new(),
            _ => vec![format!("left over: hosts {holdings:?}, border {census:?}")],
        },
        digest: Some(format!("{:032x}", world.digest())),
        delay_split: hops.borrow().split(experiment.protection.is_some()),
        ..Outcomes::default()
    };
    Ok((outcomes, world))
}

/// Sets the links of the direction from the SUT to the hosts where they differ from the others.
pub(super) fn set_down_links(
    world: &mut World,
    network: &NetworkSettings,
    pairs: &[(HostId, HostId)],
    healed: bool,
) {
    if !network.is_asymmetric() {
        return;
    }
    for (from, to) in pairs {
        let [_, down] = network.links(healed);
        world.set_link(*from, *to, down);
    }
}

/// On the access side packets have the bytes of the protection's format. Without `[network]` no link counts bytes.
fn set_access_links(
    world: &mut World,
    experiment: &Experiment,
    access: Option<(HostId, HostId)>,
    healed: bool,
) {
    let protection = experiment.protection.as_ref();
    let format = protection.and_then(Protection::format);
    let (Some((near, other)), Some(_), true) = (access, format, experiment.network.is_set()) else {
        return;
    };
    let with_format = |link: LinkConfig| LinkConfig {
        tunnel: format,
        ..link
    };
    let [up, down] = experiment.network.links(healed).map(with_format);
    world.set_link(near, other, up);
    world.set_link(other, near, down);
}

fn add(world: &mut World, name: &str, ip: IpAddr, plan: crate::host::HostPlan) -> HostId {
    let entropy = world.entropy();
    world.add_engine(name, &[ip], LabHost::new(plan, entropy))
}

fn address(world: &mut World, host: HostId) -> Option<SocketAddr> {
    // Opening takes no virtual time, but is reported in a step of its own.
    world.run_until(world.now() + Duration::from_millis(1));
    world
        .with_engine(host, |host: &mut LabHost, _| host.address())
        .flatten()
}

/// Links that change when the network heals: those that are down, and that of the access side.
#[derive(Clone, Copy)]
struct ChangedLinks<'a> {
    down: &'a [(HostId, HostId)],
    access: Option<(HostId, HostId)>,
}

/// Advances the world until the trial has ended; returns the time of the end.
fn run(
    world: &mut World,
    trial: &Trial,
    (near, far): (HostId, Option<HostId>),
    changed: ChangedLinks<'_>,
) -> Time {
    let network = &trial.experiment.network;
    let heal = START + Duration::from_secs_f64(network.heal_seconds.max(0.0));
    let limits = WaitLimits::of(&trial.experiment);
    let mut healed = network.heal_seconds <= 0.0;
    let (mut due, mut last_due) = (0, START);
    loop {
        world.run_until(world.now() + STEP);
        if !healed && world.now() >= heal {
            let [up, _] = network.links(true);
            world.set_default_link(up);
            set_down_links(world, network, changed.down, true);
            set_access_links(world, &trial.experiment, changed.access, true);
            healed = true;
        }
        let state = world.with_engine(near, |host: &mut LabHost, _| {
            (host.is_done(), host.progress())
        });
        let up = far.and_then(|far| world.with_engine(far, |host: &mut LabHost, _| host.is_done()));
        let Some((done, progress)) = state else {
            return world.now();
        };
        if progress.due > due {
            due = progress.due;
            last_due = world.now();
        }
        let idle = limits.is_over(progress.up, world.now().since(last_due));
        if healed && ((done && up.unwrap_or(true)) || idle) {
            return world.now();
        }
    }
}
