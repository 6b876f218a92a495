//! A trial in virtual time: the same hosts, the same subject, on links that do what the experiment says.

use super::{Cast, Outcomes, Patience, Trial, held, merge};
use crate::error::LabError;
use crate::experiment::Network;
use crate::host::{Holdings, Host, Results};
use crate::subject::{Simulated, simulated_addresses};
use engine::Time;
use sim::{Delay, HostId, LinkConfig, Loss, TapRecord, World};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Number of the hosts in their simulated networks.
const HOST: u8 = 1;
/// Where streams without signalling are received.
const STREAM_PORT: u16 = 31_000;
/// First arrival: sockets are open by then.
const START: Time = Time::from_secs(1);
/// After the last call, transactions linger for 64 times T1 (RFC 3261 section 17); after that nothing may be left.
const LINGER: Duration = Duration::from_secs(70);
/// Steps in which the world is asked whether it is done.
const STEP: Duration = Duration::from_millis(250);

/// Runs a trial in virtual time.
///
/// # Errors
/// Where the experiment needs real sockets (a foreign subject).
pub fn simulate(trial: &Trial) -> Result<Outcomes, LabError> {
    in_world(trial, World::new(trial.seed)).map(|(outcomes, _)| outcomes)
}

/// The same, with the log of everything that happened, line by line: every input, output, loss and event.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_with_log(trial: &Trial) -> Result<(Outcomes, Vec<u8>), LabError> {
    let mut world = World::new(trial.seed);
    world.keep_log();
    in_world(trial, world).map(|(outcomes, world)| (outcomes, world.log().to_vec()))
}

/// The same, with every packet shown as it leaves its sender and as it arrives.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_watched(
    trial: &Trial,
    watch: impl FnMut(&TapRecord<'_>) + 'static,
) -> Result<Outcomes, LabError> {
    let mut world = World::new(trial.seed);
    world.set_tap(watch);
    in_world(trial, world).map(|(outcomes, _)| outcomes)
}

fn in_world(trial: &Trial, mut world: World) -> Result<(Outcomes, World), LabError> {
    let experiment = &trial.experiment;
    if experiment.subject.address.is_some() {
        return Err(LabError::bad(
            "a foreign subject cannot be simulated: leave out subject.address or --simulate",
        ));
    }
    if experiment.opens_websockets() {
        return Err(LabError::bad(
            "WebSockets are not opened in virtual time: leave out --simulate, or set the transport to udp or tcp",
        ));
    }
    if experiment.speaks_tls() {
        return Err(LabError::bad(
            "TLS is not spoken in virtual time: leave out --simulate, or set the transport to udp or tcp",
        ));
    }
    if experiment.link.is_some() {
        return Err(LabError::bad(
            "[link] is one of this machine's kernel: leave out --simulate",
        ));
    }
    if experiment.generator.workers > 1 {
        return Err(LabError::bad(
            "generator.workers: virtual time has one thread; leave it out, or --simulate",
        ));
    }
    world.set_default_link(link(&experiment.network, false));
    if experiment.conference.is_some() {
        return super::conference::in_world(trial, world);
    }
    let [near_ip, far_ip] = simulated_addresses(experiment, HOST);
    let cast = Cast::of(experiment, near_ip, far_ip, STREAM_PORT)?;
    let far = cast.far.map(|plan| add(&mut world, "far", far_ip, plan));
    let far_address = far.and_then(|host| address(&mut world, host));
    let subject = Simulated::add(&mut world, experiment, 0, far_address)?;
    let near = add(&mut world, "near", near_ip, cast.near);
    let near_address = address(&mut world, near);
    let target = subject.address().or(far_address).or(near_address);
    let target = target.ok_or_else(|| LabError::bad("no host has an address"))?;
    for host in [Some(near), far].into_iter().flatten() {
        world.with_engine(host, |host: &mut Host, _| host.begin(target, START));
    }
    let end = run(&mut world, trial, near, far);
    world.run_until(end + LINGER);
    let mut results: Vec<Results> = Vec::new();
    let mut holdings: Vec<Holdings> = Vec::new();
    for host in [Some(near), far].into_iter().flatten() {
        let ended = world.with_engine(host, |host: &mut Host, now| {
            (host.holdings(), host.finish(now))
        });
        let (held, result) = ended.ok_or_else(|| LabError::bad("a simulated host is down"))?;
        holdings.push(held);
        results.push(result);
    }
    let lingering: u64 = holdings.iter().map(|held| held.transactions as u64).sum();
    let (subject_holds, census) = subject.left(&mut world);
    let (attempts, streams) = merge(trial.number, results);
    let outcomes = Outcomes {
        attempts,
        streams,
        seconds: end.since(START).as_secs_f64(),
        leaks: Some(held(&holdings) + lingering + subject_holds),
        remarks: match held(&holdings) + lingering + subject_holds {
            0 => Vec::new(),
            _ => vec![format!("still held: hosts {holdings:?}, border {census:?}")],
        },
        digest: Some(format!("{:032x}", world.digest())),
        ..Outcomes::default()
    };
    Ok((outcomes, world))
}

fn add(world: &mut World, name: &str, ip: IpAddr, plan: crate::host::HostPlan) -> HostId {
    let entropy = world.entropy();
    world.add_engine(name, &[ip], Host::new(plan, entropy))
}

fn address(world: &mut World, host: HostId) -> Option<SocketAddr> {
    // Opening takes no virtual time, but is told in a step of its own.
    world.run_until(world.now() + Duration::from_millis(1));
    world
        .with_engine(host, |host: &mut Host, _| host.address())
        .flatten()
}

/// Lets time run until all is over; gives when that was.
fn run(world: &mut World, trial: &Trial, near: HostId, far: Option<HostId>) -> Time {
    let network = &trial.experiment.network;
    let heal = START + Duration::from_secs_f64(network.heal_seconds.max(0.0));
    let patience = Patience::of(&trial.experiment);
    let mut healed = network.heal_seconds <= 0.0;
    let (mut due, mut last_due) = (0, START);
    loop {
        world.run_until(world.now() + STEP);
        if !healed && world.now() >= heal {
            world.set_default_link(link(network, true));
            healed = true;
        }
        let state = world.with_engine(near, |host: &mut Host, _| (host.is_done(), host.progress()));
        let up = far.and_then(|far| world.with_engine(far, |host: &mut Host, _| host.is_done()));
        let Some((done, progress)) = state else {
            return world.now();
        };
        if progress.due > due {
            due = progress.due;
            last_due = world.now();
        }
        let idle = patience.is_over(progress.up, world.now().since(last_due));
        if healed && ((done && up.unwrap_or(true)) || idle) {
            return world.now();
        }
    }
}

fn link(network: &Network, healed: bool) -> LinkConfig {
    let ms = |value: f64| Duration::try_from_secs_f64(value.max(0.0) / 1e3).unwrap_or_default();
    let base = ms(network.delay_ms);
    let share = |percent: f64| if healed { 0.0 } else { percent / 100.0 };
    let delay = match network.jitter_ms > 0.0 {
        true => Delay::Uniform(base, base + ms(network.jitter_ms)),
        false if base.is_zero() => LinkConfig::default().delay,
        false => Delay::Constant(base),
    };
    LinkConfig {
        delay,
        loss: match share(network.loss_percent) {
            0.0 => Loss::None,
            loss => Loss::Random(loss),
        },
        duplicate: share(network.duplicate_percent),
        reorder: share(network.reorder_percent),
        ..LinkConfig::default()
    }
}
