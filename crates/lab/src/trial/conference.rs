//! Conferences under load, on sockets and in virtual time: participants that speak in turns at every instance, a probe
//! conference at the first instance on a thread of its own, and some streams that bypass the SUT. The jitter of these
//! streams is that of the host itself.

use super::machine::{HostTime, local_ip_towards, receive_buffer_errors};
use super::namespaces::CallNetworks;
use super::progress::{drop_remarks, kernel_drops, unparsable, watch};
use super::protected::{CALLERS, ProtectedLink};
use super::{
    HostPlacement, HostThread, Outcomes, Trial, WaitLimits, from_start, merge, total_held,
};
use crate::error::LabError;
use crate::experiment::{ConferenceLoad, Experiment, HangUp, MediaKind};
use crate::figures::{NOISE, PROBE};
use crate::host::{CallFlow, HostPlan, HostProgress, LabHost, OutgoingCallPlan, StreamPlan};
use crate::pace::{ArrivalProcess, Bounds, HoldTime};
use crate::raw::{NoiseRecord, SendLateness, SocketShortage, Surroundings};
use crate::sut::{
    PortSpan, RunningSut, Simulated, SutPlacement, loopback, simulated_addresses, system_entropy,
};
use codec::Format;
use engine::{Entropy, Time, Transport};
use net::{Clock, NoiseSampler};
use sim::{HostId, World};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::time::Duration;

/// Time from the start request to the first call, in which threads settle.
const LEAD: Duration = Duration::from_millis(200);
/// Number of streams that show the host's jitter: as many as the probe has.
const STREAMS: u64 = 4;
/// Calls last this much longer than the measurement.
const MARGIN: Duration = Duration::from_secs(1);
/// Port for the bypassing streams in virtual time.
const STREAM_PORT: u16 = 31_000;
/// Host numbers in a simulated network: the probe, the two ends of the bypassing streams, participants from here on.
const PROBE_HOST: u8 = 2;
const SENDER: u8 = 3;
const RECEIVER: u8 = 4;
const PARTICIPANTS: u8 = 10;
/// First call in virtual time: sockets are open by then.
const START: Time = Time::from_secs(1);
/// After the last call, transactions remain for 64 times T1 (RFC 3261 section 17).
const LINGER: Duration = Duration::from_secs(70);

/// Host plans of the trial, without addresses.
struct ConferenceHosts {
    /// Participants at each instance.
    load: Vec<HostPlan>,
    probe: HostPlan,
    /// Sender and receiver of the bypassing streams.
    noise: [HostPlan; 2],
    /// Begin and length of the measurement.
    window: (Duration, Duration),
}

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value.max(0.0)).unwrap_or(Duration::MAX)
}

impl ConferenceHosts {
    fn of(
        experiment: &Experiment,
        plan: &ConferenceLoad,
        port: u16,
    ) -> Result<ConferenceHosts, LabError> {
        super::hosts::check_codecs(experiment)?;
        let total = plan.count * plan.participants;
        // With random arrivals joining takes a little longer at times.
        let joined = seconds(total as f64 / plan.rate * 1.5);
        let window = (
            joined + seconds(plan.warm_up_seconds),
            seconds(plan.duration_seconds),
        );
        let hold = window.0 + window.1 + MARGIN;
        let codec = plan.codec.format(false);
        let nobody = SocketAddr::from(([0, 0, 0, 0], 0));
        let host = |name: &str, first: u64, conferences: u64| {
            let mut host = HostPlan::new(name, nobody);
            let count = conferences * plan.participants;
            host.calls
                .push(calls(name, plan, (first, count), hold, codec));
            host.media_sockets = count as usize;
            host.window = Some(window);
            host.batch = Duration::from_micros(u64::from(experiment.generator.batch_us));
            host.spin = Duration::from_micros(u64::from(experiment.generator.spin_us));
            host.realtime = experiment.generator.realtime_priority;
            host
        };
        let load = (0..plan.instances).map(|_| host("participants", FIRST, plan.count));
        let streams = |to: Option<SocketAddr>| {
            let mut host = HostPlan::new(NOISE, nobody);
            host.media_sockets = STREAMS as usize;
            host.media_port = if to.is_some() { 0 } else { port };
            host.window = Some(window);
            // With the same priority as the SUT these streams suffer only delays that also affect the SUT.
            host.realtime = experiment
                .sut
                .realtime_priority
                .max(experiment.generator.realtime_priority);
            host.streams = Some(StreamPlan {
                name: NOISE.to_owned(),
                rate: 100.0,
                count: STREAMS,
                duration: window.0 + window.1 + MARGIN,
                sends: if to.is_some() {
                    MediaKind::Speech
                } else {
                    MediaKind::None
                },
                codec,
                expects: MediaKind::Speech,
                listen_percent: 0.0,
                to,
            });
            host
        };
        Ok(ConferenceHosts {
            load: load.collect(),
            probe: host(PROBE, FIRST + plan.count, 1),
            noise: [streams(Some(nobody)), streams(None)],
            window,
        })
    }
}

/// Extension of the first conference.
const FIRST: u64 = 8_000;

/// `count` participants of conferences from extension `first` on.
fn calls(
    name: &str,
    plan: &ConferenceLoad,
    (first, count): (u64, u64),
    hold: Duration,
    codec: Format,
) -> OutgoingCallPlan {
    OutgoingCallPlan {
        name: name.to_owned(),
        // Random arrivals spread the packets of all participants over the packet time.
        pace: ArrivalProcess::Poisson { rate: plan.rate },
        after: Duration::ZERO,
        bounds: Bounds {
            total: Some(count),
            ..Bounds::default()
        },
        duration: None,
        hold: HoldTime::Fixed(hold.as_secs_f64()),
        dial: format!("{{number/{}+{first}}}", plan.participants),
        from: format!("{name}-{{number}}"),
        cycle: 0,
        login: None,
        domain: String::new(),
        transport: Transport::Udp,
        connections: 1,
        hang_up: HangUp::Caller,
        sends: MediaKind::Turns,
        expects: MediaKind::Turns,
        codec,
        participants: plan.participants,
        srtp: false,
        timed: false,
        cancel_percent: 0.0,
        hold_percent: 0.0,
        listen_percent: 0.0,
        ring_limit: Duration::from_secs(20),
        flow: CallFlow::Plain,
        reserve: Duration::ZERO,
    }
}

/// Longest wait for the end of calls.
fn wait_limits(experiment: &Experiment, hosts: &ConferenceHosts) -> WaitLimits {
    let mut limits = WaitLimits::of(experiment);
    limits.life += hosts.window.0 + hosts.window.1;
    limits
}

fn conference_plan(trial: &Trial) -> Result<&ConferenceLoad, LabError> {
    let plan = trial.experiment.conference.as_ref();
    plan.ok_or_else(|| LabError::bad_input("no [conference]"))
}

fn at_address(mut plan: HostPlan, ip: IpAddr) -> HostPlan {
    plan.address = SocketAddr::new(ip, 0);
    plan
}

/// Sets the target of the bypassing streams.
fn towards(mut plan: HostPlan, to: SocketAddr) -> HostPlan {
    if let Some(streams) = &mut plan.streams {
        streams.to = Some(to);
    }
    plan
}

// --- on sockets

/// CPU use at one moment.
#[derive(Clone, Copy)]
struct CpuSample {
    at: Time,
    /// CPU time of the SUT, seconds.
    sut: Option<f64>,
    /// CPU time of the machine.
    host: HostTime,
}

impl CpuSample {
    fn of(suts: &[RunningSut], clock: Clock) -> Result<CpuSample, LabError> {
        let (mut sum, mut beside) = (Some(0.0), Some(0.0));
        for sut in suts {
            sum = sum.zip(sut.cpu_seconds()?).map(|(a, b)| a + b);
            beside = beside.zip(sut.cpu_seconds_beside()?).map(|(a, b)| a + b);
        }
        Ok(CpuSample {
            at: clock.now(),
            sut: sum,
            host: HostTime::now(beside)?,
        })
    }
}

/// The reason, if one of the SUTs has ended by itself.
fn ended_by_itself(suts: &[RunningSut]) -> Result<Option<String>, LabError> {
    for sut in suts {
        if let Some(why) = sut.ended()? {
            return Ok(Some(why));
        }
    }
    Ok(None)
}

/// Runs a trial on sockets.
///
/// # Errors
/// If this machine cannot run it.
pub(super) fn on_sockets(
    trial: &Trial,
    link: Option<ProtectedLink>,
    mut progress: impl FnMut(f64, &HostProgress),
) -> Result<Outcomes, LabError> {
    let experiment = &trial.experiment;
    let plan = conference_plan(trial)?;
    let clock = Clock::new();
    let mut entropy = Entropy::from_number(trial.seed);
    let all_networks = match &link {
        Some(_) => None,
        None => CallNetworks::where_needed(experiment, trial.seed, clock)?,
    };
    let networks = all_networks.as_ref();
    let (ip, border) = match (networks, experiment.sut.address) {
        (Some(networks), _) => (networks.hosts[0], networks.border),
        (None, Some(sut)) => (local_ip_towards(sut)?, loopback(experiment)),
        (None, None) => (loopback(experiment)[0], loopback(experiment)),
    };
    // The bypassing streams stay in the namespace of the border.
    let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let (ip, noise_ip) = match (&link, networks) {
        (Some(_), _) => (CALLERS, localhost),
        (None, Some(_)) => (ip, localhost),
        (None, None) => (ip, ip),
    };
    let place = match networks {
        Some(networks) => networks.placement(0),
        None => ProtectedLink::placement(link.as_ref()),
    };
    let kernel_errors = || match networks {
        Some(networks) => networks.receive_buffer_errors(),
        None => receive_buffer_errors(),
    };
    let ports = PortSpan::free_for_calls(STREAMS, [noise_ip; 2], &mut system_entropy()?)?;
    let hosts = ConferenceHosts::of(experiment, plan, ports[0].first())?;
    let limits = wait_limits(experiment, &hosts);
    let window = hosts.window;
    let placement = SutPlacement {
        addresses: border,
        called: &[],
        credentials: None,
        program: link.as_ref().and_then(ProtectedLink::border_program),
    };
    let count = (plan.instances, placement);
    let suts = RunningSut::instances(experiment, count, &mut entropy, clock)?;
    let target = |instance: usize| {
        let sut = suts.get(instance).and_then(RunningSut::address);
        sut.ok_or_else(|| LabError::bad_input("[conference] needs a system under test"))
    };
    let mut identities = super::sockets::identities(experiment)?;
    let mut start_at = |mut plan: HostPlan, ip: IpAddr, placement: HostPlacement| {
        plan.identity_seed = identities.as_mut().map(Entropy::u64);
        HostThread::start_in(placement, at_address(plan, ip), None, entropy.fork(), clock)
    };
    let [sender, receiver] = hosts.noise;
    let far = [start_at(receiver, noise_ip, HostPlacement::default())?];
    let receiver_at = SocketAddr::new(noise_ip, ports[0].first());
    let sender = towards(sender, receiver_at);
    let sender = start_at(sender, noise_ip, HostPlacement::default())?;
    let mut start = |plan| start_at(plan, ip, place.clone());
    let mut targets = vec![target(0)?, target(0)?];
    let mut near = vec![start(hosts.probe)?, sender];
    for (instance, plan) in hosts.load.into_iter().enumerate() {
        near.push(start(plan)?);
        targets.push(target(instance)?);
    }
    let sampler = NoiseSampler::start(Duration::from_millis(1), None).map_err(|error| {
        LabError::cannot_run(
            format!("cannot start the noise sampler: {error}"),
            "raise the limit of threads (ulimit -u)",
        )
    })?;
    let kernel_before = kernel_errors()?;
    let begin = clock.now() + LEAD;
    far[0].begin(targets[0], begin)?;
    for (host, target) in near.iter().zip(&targets) {
        host.begin(*target, begin)?;
    }
    let (from, to) = (begin + window.0, begin + window.0 + window.1);
    let mut work: [Option<CpuSample>; 2] = [None, None];
    let mut ended: Option<String> = None;
    watch(limits, &near, clock, begin, |seconds, seen| {
        for (work, at) in work.iter_mut().zip([from, to]) {
            if work.is_none() && clock.now() >= at {
                *work = Some(CpuSample::of(&suts, clock)?);
            }
        }
        networks
            .iter()
            .for_each(|networks| networks.heal_at(seconds));
        progress(seconds, seen);
        ended = ended_by_itself(&suts)?.map(|why| format!("{why}, after {seconds:.1} s"));
        Ok(match ended {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        })
    })?;
    if work[1].is_none() {
        // This thread was not scheduled for a while.
        work[1] = Some(CpuSample::of(&suts, clock)?);
    }
    let end = clock.now();
    let kernel_after = kernel_errors()?;
    let noise = sampler
        .stop()
        .map_err(|error| LabError::cannot_run(format!("noise sampler: {error}"), ""))?;
    let finish = |hosts: Vec<HostThread>| -> Result<Vec<_>, LabError> {
        hosts.into_iter().map(HostThread::finish).collect()
    };
    let (near, far) = (finish(near)?, finish(far.into())?);
    let mut holds = Some(0);
    let mut remarks = Vec::new();
    let mut link = link;
    if ended.is_none() {
        ended = ended_by_itself(&suts)?.map(|why| format!("{why}, after the calls"));
    }
    for sut in suts {
        holds = holds.zip(sut.remaining_objects(clock)?).map(|(a, b)| a + b);
        if let Some(link) = &mut link {
            link.read_border(&sut)?;
        }
        remarks.extend(sut.finish()?);
    }
    remarks.extend(drop_remarks(&near, &far));
    let noise: NoiseRecord = noise.into();
    let finished = all_networks.map(|networks| networks.finish(&noise));
    let (mut links, of_links) = finished.transpose()?.unwrap_or_default();
    remarks.extend(of_links);
    let all = || near.iter().chain(&far);
    let generator_cpu = all().map(|host| host.cpu_seconds).sum();
    let callers_cpu = near.iter().map(|host| host.cpu_seconds).sum();
    let generator_drops = kernel_drops(all());
    let generator_unparsable = unparsable(all());
    let generator_shortage = SocketShortage::of_all(all().map(|host| &host.results.shortage));
    let send_lateness = SendLateness::of(all().map(|host| &host.results.send_times));
    let holdings: Vec<_> = all().map(|host| host.holdings).collect();
    let results = near.into_iter().chain(far).map(|host| host.results);
    let (attempts, streams) = merge(trial.number, results.collect());
    let (attempts, streams) = from_start(attempts, streams, begin);
    let counted = match work {
        [Some(first), Some(last)] => Some((first, last)),
        _ => None,
    };
    let spent = counted.and_then(|(first, last)| Some(last.sut? - first.sut?));
    // Programs of a tunnel are neither the subject nor others.
    let has_programs = link.as_ref().is_some_and(ProtectedLink::has_programs);
    let host = counted.map(|(first, last)| (first.host, last.host));
    // The CPU time of a gateway of the test lab is that of the whole trial, the border's that of the measurement: they
    // are not added. A gateway of the border itself is part of it.
    let access = ProtectedLink::account(link, (trial.number, &attempts), None, &noise)?;
    let measures = access.measures;
    links.extend(access.links);
    remarks.extend(access.remarks);
    Ok(Outcomes {
        attempts,
        streams,
        measures,
        seconds: end.since(begin).as_secs_f64(),
        leaks: holds.map(|sut| sut + total_held(&holdings)),
        remarks,
        surroundings: Some(Surroundings {
            noise,
            own_noise: None,
            receive_buffer_errors_before: kernel_before,
            receive_buffer_errors_after: kernel_after,
            generator_drops,
            generator_unparsable,
            generator_shortage,
            subject_cpu_seconds: spent,
            subject_waited_seconds: None,
            subject_grew_bytes: None,
            generator_cpu_seconds: generator_cpu,
            callers_cpu_seconds: callers_cpu,
            send_lateness,
            generator_is_realtime: experiment.generator.realtime_priority > 0,
            other_programs_percent: host
                .filter(|_| !has_programs)
                .and_then(|(first, last)| first.others_percent(last)),
            resident_bytes: net::resident_bytes()
                .map_err(|error| LabError::cannot_run(format!("/proc: {error}"), ""))?,
        }),
        subject_cpu_seconds: spent,
        subject_cores: counted
            .zip(spent)
            .map(|((first, last), spent)| spent / last.at.since(first.at).as_secs_f64()),
        host_cpu_percent: host.and_then(|(first, last)| first.busy_percent(last)),
        digest: None,
        subject_ended: ended,
        links,
        ..Outcomes::default()
    })
}

// --- in virtual time

/// Runs a trial in a simulated world.
///
/// # Errors
/// If the SUT cannot be created, or is a foreign one.
pub(super) fn in_world(trial: &Trial, mut world: World) -> Result<(Outcomes, World), LabError> {
    let experiment = &trial.experiment;
    let plan = conference_plan(trial)?;
    let hosts = ConferenceHosts::of(experiment, plan, STREAM_PORT)?;
    let limits = wait_limits(experiment, &hosts);
    let address = |number: u8| simulated_addresses(experiment, number)[0];
    let mut suts = Vec::new();
    for instance in 0..plan.instances {
        suts.push(Simulated::add(
            &mut world,
            experiment,
            instance as u8,
            None,
        )?);
    }
    let target = |instance: usize| {
        let sut = suts.get(instance).and_then(Simulated::address);
        sut.ok_or_else(|| LabError::bad_input("[conference] needs a system under test"))
    };
    let mut add = |plan: HostPlan, number: u8| {
        let entropy = world.entropy();
        let plan = at_address(plan, address(number));
        world.add_engine(
            &format!("host {number}"),
            &[address(number)],
            LabHost::new(plan, entropy),
        )
    };
    let [sender, receiver] = hosts.noise;
    let receiver_at = SocketAddr::new(address(RECEIVER), STREAM_PORT);
    let mut targets: Vec<(HostId, SocketAddr)> = vec![
        (add(receiver, RECEIVER), target(0)?),
        (add(hosts.probe, PROBE_HOST), target(0)?),
        (add(towards(sender, receiver_at), SENDER), target(0)?),
    ];
    for (instance, plan) in hosts.load.into_iter().enumerate() {
        let number = PARTICIPANTS + instance as u8;
        targets.push((add(plan, number), target(instance)?));
    }
    let borders = suts.iter().filter_map(Simulated::host);
    let down: Vec<(HostId, HostId)> = borders
        .flat_map(|border| targets.iter().map(move |(host, _)| (border, *host)))
        .collect();
    super::simulated::set_down_links(&mut world, &experiment.network, &down, false);
    // Opening takes no virtual time, but is reported in a step of its own.
    world.run_until(world.now() + Duration::from_millis(1));
    for (host, target) in &targets {
        world.with_engine(*host, |host: &mut LabHost, _| host.begin(*target, START));
    }
    let near = targets.get(1..).unwrap_or_default();
    let (mut due, mut last_due) = (0, START);
    let end = loop {
        world.run_until(world.now() + Duration::from_millis(250));
        let mut seen = HostProgress::default();
        let mut done = true;
        for (host, _) in near {
            let state = world.with_engine(*host, |host: &mut LabHost, _| {
                (host.is_done(), host.progress())
            });
            let (is_done, progress) =
                state.ok_or_else(|| LabError::bad_input("a simulated host is down"))?;
            done &= is_done;
            seen = seen.and(&progress);
        }
        if seen.due > due {
            due = seen.due;
            last_due = world.now();
        }
        if done || limits.is_over(seen.up, world.now().since(last_due)) {
            break world.now();
        }
    };
    world.run_until(end + LINGER);
    let (mut results, mut holdings) = (Vec::new(), Vec::new());
    for (host, _) in &targets {
        let ended = world.with_engine(*host, |host: &mut LabHost, now| {
            (host.holdings(), host.finish(now))
        });
        let (held, result) =
            ended.ok_or_else(|| LabError::bad_input("a simulated host is down"))?;
        holdings.push(held);
        results.push(result);
    }
    let mut left = total_held(&holdings);
    for sut in &suts {
        left += sut.leaks(&mut world).0;
    }
    let (attempts, streams) = merge(trial.number, results);
    let outcomes = Outcomes {
        attempts,
        streams,
        seconds: end.since(START).as_secs_f64(),
        leaks: Some(left),
        digest: Some(format!("{:032x}", world.digest())),
        ..Outcomes::default()
    };
    Ok((outcomes, world))
}
