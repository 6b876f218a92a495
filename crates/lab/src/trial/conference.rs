//! Conferences under load, on sockets and in virtual time: participants who speak in turns at every instance, a probe conference at
//! the first one on a thread of its own, and beside both a few streams that go past the subject: what those show in jitter is the
//! host's own.

use super::sockets::{drop_remarks, kernel, local_ip_towards, watch};
use super::{HostThread, Outcomes, Patience, Trial, from_start, held, merge};
use crate::error::LabError;
use crate::experiment::{Conference, Experiment, HangUp, MediaKind};
use crate::figures::{NOISE, PROBE};
use crate::host::{CallFlow, CallPlan, Host, HostPlan, Progress, StreamPlan};
use crate::pace::{Bounds, Hold, Pace};
use crate::raw::Surroundings;
use crate::subject::{PortSpan, Simulated, Subject, loopback, simulated_addresses, system_entropy};
use codec::Format;
use engine::{Entropy, Time, Transport};
use net::{Clock, NoiseSampler};
use sim::{HostId, World};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// From the order to begin to the first call: threads have settled by then.
const LEAD: Duration = Duration::from_millis(200);
/// Streams that show the host's own jitter: as many as the probe has.
const STREAMS: u64 = 4;
/// Calls stand for so much longer than they are counted.
const MARGIN: Duration = Duration::from_secs(1);
/// Where the host's own streams are received in virtual time.
const STREAM_PORT: u16 = 31_000;
/// Hosts of a simulated network, by number: the probe, the two ends of the host's own streams, participants from here on.
const PROBE_HOST: u8 = 2;
const SENDER: u8 = 3;
const RECEIVER: u8 = 4;
const PARTICIPANTS: u8 = 10;
/// First call in virtual time: sockets are open by then.
const START: Time = Time::from_secs(1);
/// After the last call, transactions linger for 64 times T1 (RFC 3261 section 17).
const LINGER: Duration = Duration::from_secs(70);

/// Who plays: hosts without addresses, and what they are to do.
struct Scene {
    /// Participants at each instance.
    load: Vec<HostPlan>,
    probe: HostPlan,
    /// Sender and receiver of the host's own streams.
    noise: [HostPlan; 2],
    /// From when on, and for how long, everything is counted.
    window: (Duration, Duration),
}

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value.max(0.0)).unwrap_or(Duration::MAX)
}

impl Scene {
    fn of(experiment: &Experiment, plan: &Conference, port: u16) -> Result<Scene, LabError> {
        super::cast::coders(experiment)?;
        let total = plan.rooms * plan.seats;
        // Who calls at random needs a little longer at times.
        let joined = seconds(total as f64 / plan.rate * 1.5);
        let window = (
            joined + seconds(plan.warm_up_seconds),
            seconds(plan.seconds),
        );
        let hold = window.0 + window.1 + MARGIN;
        let codec = plan.codec.format(false);
        let nobody = SocketAddr::from(([0, 0, 0, 0], 0));
        let host = |name: &str, first: u64, rooms: u64| {
            let mut host = HostPlan::new(name, nobody);
            let count = rooms * plan.seats;
            host.calls
                .push(calls(name, plan, (first, count), hold, codec));
            host.media_sockets = count as usize;
            host.window = Some(window);
            host.batch = Duration::from_micros(u64::from(experiment.generator.batch_us));
            host.realtime = experiment.generator.realtime;
            host
        };
        let load = (0..plan.instances).map(|_| host("participants", FIRST, plan.rooms));
        let streams = |to: Option<SocketAddr>| {
            let mut host = HostPlan::new(NOISE, nobody);
            host.media_sockets = STREAMS as usize;
            host.media_port = if to.is_some() { 0 } else { port };
            host.window = Some(window);
            // What holds up the subject holds up these, and nothing else does.
            host.realtime = experiment
                .subject
                .realtime
                .max(experiment.generator.realtime);
            host.streams = Some(StreamPlan {
                name: NOISE.to_owned(),
                rate: 100.0,
                count: STREAMS,
                lasting: window.0 + window.1 + MARGIN,
                say: if to.is_some() {
                    MediaKind::Speech
                } else {
                    MediaKind::None
                },
                codec,
                hear: MediaKind::Speech,
                listen_percent: 0.0,
                to,
            });
            host
        };
        Ok(Scene {
            load: load.collect(),
            probe: host(PROBE, FIRST + plan.rooms, 1),
            noise: [streams(Some(nobody)), streams(None)],
            window,
        })
    }
}

/// Number of the first conference.
const FIRST: u64 = 8_000;

/// Participants of conferences from the number `first` on, `count` in all.
fn calls(
    name: &str,
    plan: &Conference,
    (first, count): (u64, u64),
    hold: Duration,
    codec: Format,
) -> CallPlan {
    CallPlan {
        name: name.to_owned(),
        // At random, so that packets of all are spread over the packet time.
        pace: Pace::Poisson { rate: plan.rate },
        after: Duration::ZERO,
        bounds: Bounds {
            total: Some(count),
            ..Bounds::default()
        },
        lasting: None,
        hold: Hold::Fixed(hold.as_secs_f64()),
        dial: format!("{{number/{}+{first}}}", plan.seats),
        from: format!("{name}-{{number}}"),
        cycle: 0,
        login: None,
        domain: String::new(),
        transport: Transport::Udp,
        connections: 1,
        hang_up: HangUp::Caller,
        say: MediaKind::Turns,
        hear: MediaKind::Turns,
        codec,
        seats: plan.seats,
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

/// How long calls are waited for.
fn patience(experiment: &Experiment, scene: &Scene) -> Patience {
    let mut patience = Patience::of(experiment);
    patience.life += scene.window.0 + scene.window.1;
    patience
}

fn planned(trial: &Trial) -> Result<&Conference, LabError> {
    let plan = trial.experiment.conference.as_ref();
    plan.ok_or_else(|| LabError::bad("no [conference]"))
}

fn at(mut plan: HostPlan, ip: IpAddr) -> HostPlan {
    plan.address = SocketAddr::new(ip, 0);
    plan
}

/// The sender of the host's own streams sends them there.
fn towards(mut plan: HostPlan, to: SocketAddr) -> HostPlan {
    if let Some(streams) = &mut plan.streams {
        streams.to = Some(to);
    }
    plan
}

// --- on sockets

/// What processors did between two moments.
#[derive(Clone, Copy)]
struct Work {
    at: Time,
    /// CPU time of the subject, seconds.
    subject: Option<f64>,
    /// Ticks of all processors, and those of them in which they were busy.
    host: [u64; 2],
}

impl Work {
    fn of(subjects: &[Subject], clock: Clock) -> Result<Work, LabError> {
        let mut sum = Some(0.0);
        for subject in subjects {
            sum = sum.zip(subject.cpu_seconds()?).map(|(a, b)| a + b);
        }
        Ok(Work {
            at: clock.now(),
            subject: sum,
            host: processors()?,
        })
    }
}

/// Ticks of all processors together, and of these the busy ones: what a hypervisor took is not idle.
fn processors() -> Result<[u64; 2], LabError> {
    let cannot = |why: String| LabError::cannot(format!("/proc/stat: {why}"), "mount /proc");
    let text = std::fs::read_to_string("/proc/stat").map_err(|error| cannot(error.to_string()))?;
    let line = text.lines().next().unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user already (proc(5)).
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|field| field.parse().ok())
        .collect();
    let [_, _, _, idle, waiting, ..] = ticks.as_slice() else {
        return Err(cannot("not as proc(5) says".to_owned()));
    };
    let all: u64 = ticks.iter().sum();
    Ok([all, all - idle - waiting])
}

/// Runs a trial on sockets.
///
/// # Errors
/// Where this machine cannot run it.
pub(super) fn on_sockets(
    trial: &Trial,
    mut progress: impl FnMut(f64, &Progress),
) -> Result<Outcomes, LabError> {
    let experiment = &trial.experiment;
    let plan = planned(trial)?;
    let clock = Clock::new();
    let mut entropy = Entropy::from_number(trial.seed);
    let ip = match experiment.subject.address {
        Some(subject) => local_ip_towards(subject)?,
        None => loopback(experiment)[0],
    };
    let ports = PortSpan::free_for_calls(STREAMS, [ip; 2], &mut system_entropy()?)?;
    let scene = Scene::of(experiment, plan, ports[0].first())?;
    let patience = patience(experiment, &scene);
    let window = scene.window;
    let subjects = Subject::instances(experiment, plan.instances, &mut entropy, clock)?;
    let target = |instance: usize| {
        let subject = subjects.get(instance).and_then(Subject::address);
        subject.ok_or_else(|| LabError::bad("[conference] needs a subject"))
    };
    let mut start = |plan: HostPlan| HostThread::start(at(plan, ip), None, entropy.fork(), clock);
    let [sender, receiver] = scene.noise;
    let far = [start(receiver)?];
    let mut targets = vec![target(0)?, target(0)?];
    let mut near = vec![
        start(scene.probe)?,
        start(towards(sender, SocketAddr::new(ip, ports[0].first())))?,
    ];
    for (instance, plan) in scene.load.into_iter().enumerate() {
        near.push(start(plan)?);
        targets.push(target(instance)?);
    }
    let sampler = NoiseSampler::start(Duration::from_millis(1), None)
        .map_err(|error| LabError::cannot(format!("noise sampler: {error}"), ""))?;
    let kernel_before = kernel()?;
    let begin = clock.now() + LEAD;
    far[0].begin(targets[0], begin)?;
    for (host, target) in near.iter().zip(&targets) {
        host.begin(*target, begin)?;
    }
    let (from, to) = (begin + window.0, begin + window.0 + window.1);
    let mut work: [Option<Work>; 2] = [None, None];
    watch(patience, &near, clock, begin, |seconds, seen| {
        for (work, at) in work.iter_mut().zip([from, to]) {
            if work.is_none() && clock.now() >= at {
                *work = Some(Work::of(&subjects, clock)?);
            }
        }
        progress(seconds, seen);
        Ok(())
    })?;
    if work[1].is_none() {
        // The program was kept from looking for a while.
        work[1] = Some(Work::of(&subjects, clock)?);
    }
    let end = clock.now();
    let kernel_after = kernel()?;
    let noise = sampler
        .stop()
        .map_err(|error| LabError::cannot(format!("noise sampler: {error}"), ""))?;
    let finish = |hosts: Vec<HostThread>| -> Result<Vec<_>, LabError> {
        hosts.into_iter().map(HostThread::finish).collect()
    };
    let (near, far) = (finish(near)?, finish(far.into())?);
    let mut holds = Some(0);
    let mut remarks = Vec::new();
    for subject in subjects {
        holds = holds
            .zip(subject.settled_holdings(clock)?)
            .map(|(a, b)| a + b);
        remarks.extend(subject.finish()?);
    }
    remarks.extend(drop_remarks(&near, &far));
    if experiment.network != crate::experiment::Network::default() {
        remarks.push("[network] applies to simulations only; these links were real".to_owned());
    }
    let all = || near.iter().chain(&far);
    let generator_cpu = all().map(|host| host.cpu_seconds).sum();
    let callers_cpu = near.iter().map(|host| host.cpu_seconds).sum();
    let holdings: Vec<_> = all().map(|host| host.holdings).collect();
    let results = near.into_iter().chain(far).map(|host| host.results);
    let (attempts, streams) = merge(trial.number, results.collect());
    let (attempts, streams) = from_start(attempts, streams, begin);
    let counted = match work {
        [Some(first), Some(last)] => Some((first, last)),
        _ => None,
    };
    let spent = counted.and_then(|(first, last)| Some(last.subject? - first.subject?));
    Ok(Outcomes {
        attempts,
        streams,
        seconds: end.since(begin).as_secs_f64(),
        leaks: holds.map(|subject| subject + held(&holdings)),
        remarks,
        surroundings: Some(Surroundings {
            noise: noise.into(),
            receive_buffer_errors_before: kernel_before,
            receive_buffer_errors_after: kernel_after,
            subject_cpu_seconds: spent,
            subject_grew_bytes: None,
            generator_cpu_seconds: generator_cpu,
            callers_cpu_seconds: callers_cpu,
            resident_bytes: net::resident_bytes()
                .map_err(|error| LabError::cannot(format!("/proc: {error}"), ""))?,
        }),
        subject_cpu_seconds: spent,
        subject_cores: counted
            .zip(spent)
            .map(|((first, last), spent)| spent / last.at.since(first.at).as_secs_f64()),
        host_cpu_percent: counted.and_then(|(first, last)| {
            let all = last.host[0]
                .checked_sub(first.host[0])
                .filter(|all| *all > 0)?;
            let busy = last.host[1].saturating_sub(first.host[1]);
            Some(busy as f64 * 100.0 / all as f64)
        }),
        digest: None,
        ..Outcomes::default()
    })
}

// --- in virtual time

/// Runs a trial in a world.
///
/// # Errors
/// Where the subject cannot be made, or is a foreign one.
pub(super) fn in_world(trial: &Trial, mut world: World) -> Result<(Outcomes, World), LabError> {
    let experiment = &trial.experiment;
    let plan = planned(trial)?;
    let scene = Scene::of(experiment, plan, STREAM_PORT)?;
    let patience = patience(experiment, &scene);
    let address = |number: u8| simulated_addresses(experiment, number)[0];
    let mut subjects = Vec::new();
    for instance in 0..plan.instances {
        subjects.push(Simulated::add(
            &mut world,
            experiment,
            instance as u8,
            None,
        )?);
    }
    let target = |instance: usize| {
        let subject = subjects.get(instance).and_then(Simulated::address);
        subject.ok_or_else(|| LabError::bad("[conference] needs a subject"))
    };
    let mut add = |plan: HostPlan, number: u8| {
        let entropy = world.entropy();
        let plan = at(plan, address(number));
        world.add_engine(
            &format!("host {number}"),
            &[address(number)],
            Host::new(plan, entropy),
        )
    };
    let [sender, receiver] = scene.noise;
    let receiver_at = SocketAddr::new(address(RECEIVER), STREAM_PORT);
    let mut hosts: Vec<(HostId, SocketAddr)> = vec![
        (add(receiver, RECEIVER), target(0)?),
        (add(scene.probe, PROBE_HOST), target(0)?),
        (add(towards(sender, receiver_at), SENDER), target(0)?),
    ];
    for (instance, plan) in scene.load.into_iter().enumerate() {
        let number = PARTICIPANTS + instance as u8;
        hosts.push((add(plan, number), target(instance)?));
    }
    // Opening takes no virtual time, but is told in a step of its own.
    world.run_until(world.now() + Duration::from_millis(1));
    for (host, target) in &hosts {
        world.with_engine(*host, |host: &mut Host, _| host.begin(*target, START));
    }
    let near = hosts.get(1..).unwrap_or_default();
    let (mut due, mut last_due) = (0, START);
    let end = loop {
        world.run_until(world.now() + Duration::from_millis(250));
        let mut seen = Progress::default();
        let mut done = true;
        for (host, _) in near {
            let state = world.with_engine(*host, |host: &mut Host, _| {
                (host.is_done(), host.progress())
            });
            let (is_done, progress) =
                state.ok_or_else(|| LabError::bad("a simulated host is down"))?;
            done &= is_done;
            seen = seen.and(&progress);
        }
        if seen.due > due {
            due = seen.due;
            last_due = world.now();
        }
        if done || patience.is_over(seen.up, world.now().since(last_due)) {
            break world.now();
        }
    };
    world.run_until(end + LINGER);
    let (mut results, mut holdings) = (Vec::new(), Vec::new());
    for (host, _) in &hosts {
        let ended = world.with_engine(*host, |host: &mut Host, now| {
            (host.holdings(), host.finish(now))
        });
        let (held, result) = ended.ok_or_else(|| LabError::bad("a simulated host is down"))?;
        holdings.push(held);
        results.push(result);
    }
    let mut left = held(&holdings);
    for subject in &subjects {
        left += subject.left(&mut world).0;
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
