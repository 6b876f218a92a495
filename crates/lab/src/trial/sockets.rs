//! A trial on real sockets: the hosts on threads of their own, apart from the SUT's threads.

use super::conference::processors;
use super::emulated::CarriedLink;
use super::namespaces::{CallNetworks, link_error};
use super::protected::{CALLERS, ProtectedLink};
use super::{
    HostPlacement, HostResults, HostThread, Outcomes, Trial, TrialHosts, WaitLimits, merge,
    total_held,
};
use crate::error::LabError;
use crate::esp::WireMedium;
use crate::experiment::{Experiment, SutMedia, TransportName};
use crate::host::{HostPlan, HostProgress, StreamPeer};
use crate::planes::{Sample, Samples};
use crate::raw::{LinkRecord, NoiseRecord, Surroundings};
use crate::record::{Attempt, StreamRecord};
use crate::sut::{PortSpan, RunningSut, SutPlacement, loopback, system_entropy};
use crate::tls::TrialCredentials;
use engine::{Entropy, Time};
use net::tls::Security;
use net::{Clock, Network, NoiseSampler};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::time::Duration;

/// Seconds between two samples of the SUT's CPU time; each takes a message to its thread.
pub(crate) const SAMPLED_EVERY_S: f64 = 0.25;
/// Time from the start request to the first arrival, in which threads settle.
const LEAD: Duration = Duration::from_millis(200);

/// Runs a trial. `progress` is called about ten times per second with the figures of the calling host.
///
/// # Errors
/// If this machine cannot run it.
pub fn on_sockets(
    trial: &Trial,
    progress: impl FnMut(f64, &HostProgress) + Send,
) -> Result<Outcomes, LabError> {
    let (allowed, refused) = with_allowed_priorities(trial);
    let trial = allowed.as_ref().unwrap_or(trial);
    let experiment = &trial.experiment;
    if experiment.network.is_set() {
        check_network(experiment)?;
    }
    // A foreign SUT is reached in the network of this host, and a link has networks of its own.
    let sut = &experiment.sut;
    let all_ours = sut.address.is_none() && sut.agent().is_none() && experiment.link.is_none();
    let (mut outcomes, shared) = match all_ours.then(Network::with_loopback) {
        None => (run_here(trial, false, progress)?, None),
        Some(Ok(network)) => (
            in_network(&network, || run_here(trial, true, progress))?,
            None,
        ),
        Some(Err(error))
            if experiment.sut.media == SutMedia::KernelRelay || experiment.network.is_set() =>
        {
            return Err(link_error("unshare", error));
        }
        Some(Err(error)) => {
            let remark = format!(
                "the trial used the network of this host, where other programs may use its ports: cannot create a network namespace ({error}); CAP_SYS_ADMIN is required"
            );
            (run_here(trial, false, progress)?, Some(remark))
        }
    };
    outcomes.remarks.extend(shared);
    outcomes.remarks.extend(refused);
    Ok(outcomes)
}

/// Checks that the links of `[network]` can be part of a trial on sockets.
fn check_network(experiment: &Experiment) -> Result<(), LabError> {
    let sut = &experiment.sut;
    let reason = if sut.address.is_some() || sut.agent().is_some() {
        "the system under test is reached by the network of this host; use `hornwork lab link` between two of its interfaces"
    } else if sut.media == SutMedia::Bypass && !sut.direct {
        "media that bypasses the border has no link of its own between callers and called side; use --simulate, or sut.media = \"anchored\""
    } else if sut.media_nodes > 0 {
        "media nodes are on the loopback interface; remove sut.media_nodes"
    } else if experiment.conference.is_some() {
        "conferences have no links on sockets; use --simulate"
    } else if experiment.protection.is_some()
        || experiment.esp.is_some()
        || experiment.phone.is_some()
        || experiment.link.is_some()
    {
        "[protection], [esp], [phone] and [link] have links of their own on sockets"
    } else {
        return Ok(());
    };
    Err(LabError::bad_input(format!("[network]: {reason}")))
}

/// Runs a trial in the network namespace of the calling thread, which may be its own.
fn run_here(
    trial: &Trial,
    private: bool,
    progress: impl FnMut(f64, &HostProgress),
) -> Result<Outcomes, LabError> {
    if trial.experiment.esp.is_some() {
        return super::esp::run(trial, WireMedium::Loopback { private });
    }
    if trial.experiment.protection.is_some() {
        return run_protected(trial, private, progress);
    }
    if trial.experiment.phone.is_some() {
        return super::phones::on_sockets(trial, progress);
    }
    match (&trial.experiment.conference, &trial.experiment.link) {
        (Some(_), _) => super::conference::on_sockets(trial, None, progress),
        (None, Some(_)) => super::isolated::on_sockets(trial, progress),
        (None, None) => run_calls(trial, None, progress),
    }
}

/// Runs a trial with a protected access side; in virtual time where this machine does not permit the link.
fn run_protected(
    trial: &Trial,
    private: bool,
    progress: impl FnMut(f64, &HostProgress),
) -> Result<Outcomes, LabError> {
    let Some(protection) = &trial.experiment.protection else {
        return Err(LabError::bad_input("no [protection]"));
    };
    let link = match private {
        true => ProtectedLink::open(protection, trial.seed),
        false => Err(LabError::cannot_run("no network namespace of its own", "")),
    };
    let link = match link {
        Ok(link) => link,
        Err(error) => {
            let mut outcomes = super::simulate(trial)?;
            let text = format!("the trial ran in virtual time: {error}");
            outcomes.remarks.push(text.replace('\n', ";"));
            return Ok(outcomes);
        }
    };
    let mut outcomes = match super::protected::applied(&trial.experiment) {
        Some(experiment) => {
            let trial = Trial {
                experiment,
                ..trial.clone()
            };
            match trial.experiment.conference.is_some() {
                true => super::conference::on_sockets(&trial, Some(link), progress)?,
                false => run_calls(&trial, Some(link), progress)?,
            }
        }
        None => return Err(LabError::bad_input("no [protection]")),
    };
    outcomes.remarks.push(format!(
        "access side: {}, by a link between two network namespaces",
        protection.name()
    ));
    Ok(outcomes)
}

/// Runs `work` in a network namespace of its own, which excludes port collisions with other programs of this host.
/// Threads inherit the namespace of the thread that starts them.
pub(crate) fn in_network<T: Send>(
    network: &Network,
    work: impl FnOnce() -> Result<T, LabError> + Send,
) -> Result<T, LabError> {
    let in_namespace = || {
        network.enter().map_err(|error| {
            LabError::cannot_run(
                format!("cannot enter the network namespace: setns: {error}"),
                "run it as root",
            )
        })?;
        work()
    };
    std::thread::scope(|scope| scope.spawn(in_namespace).join())
        .unwrap_or_else(|_| Err(LabError::cannot_run("the trial's thread panicked", "")))
}

/// If the system denies a requested priority: the trial without it, and a remark.
fn with_allowed_priorities(trial: &Trial) -> (Option<Trial>, Option<String>) {
    let wanted = [
        trial.experiment.sut.realtime_priority,
        trial.experiment.generator.realtime_priority,
    ];
    let highest = wanted.into_iter().max().unwrap_or_default();
    if highest == 0 {
        return (None, None);
    }
    let Err(error) = net::may_be_realtime(u32::from(highest)) else {
        return (None, None);
    };
    let mut shared = trial.clone();
    shared.experiment.sut.realtime_priority = 0;
    shared.experiment.generator.realtime_priority = 0;
    let remark = format!(
        "threads ran without real-time priority: realtime_priority = {highest} was denied ({error}); CAP_SYS_NICE or RLIMIT_RTPRIO is required"
    );
    (Some(shared), Some(remark))
}

/// Runs a trial of calls and registrations.
fn run_calls(
    trial: &Trial,
    link: Option<ProtectedLink>,
    mut progress: impl FnMut(f64, &HostProgress),
) -> Result<Outcomes, LabError> {
    let mut experiment = trial.experiment.clone();
    let fewer = fit_connections(&mut experiment);
    let experiment = &experiment;
    let clock = Clock::new();
    let mut entropy = Entropy::from_number(trial.seed);
    let own_error = match experiment.network.is_set() {
        true => Some(crate::emulator::own_error::measure()?),
        false => None,
    };
    let has_networks = experiment.sut.media == SutMedia::KernelRelay || own_error.is_some();
    // Its draws are apart from those of the hosts, whose seeds stay what they were without a network.
    let mut link_entropy = Entropy::from_number(trial.seed).fork();
    let mut all_networks = match has_networks {
        true => Some(CallNetworks::new(experiment, &mut link_entropy, clock)?),
        false => None,
    };
    let mut links = all_networks
        .as_mut()
        .map(|networks| std::mem::take(&mut networks.links))
        .unwrap_or_default();
    let networks = all_networks.as_ref();
    let elsewhere = experiment.sut.address.or(experiment.sut.agent());
    let [near, far] = match (elsewhere, networks) {
        (Some(sut), _) => [local_ip_towards(sut)?; 2],
        (None, Some(networks)) => networks.hosts,
        (None, None) => loopback(experiment),
    };
    let kernel_errors = || match networks {
        Some(networks) => networks.receive_buffer_errors(),
        None => receive_buffer_errors(),
    };
    let near = link.as_ref().map_or(near, |_| CALLERS);
    let stream_port = match &experiment.streams {
        Some(streams) => {
            let free = || -> Result<u16, LabError> {
                let mut entropy = system_entropy()?;
                Ok(PortSpan::free_for_calls(streams.count, [far; 2], &mut entropy)?[0].first())
            };
            match networks {
                Some(networks) => networks.at_side(1, free)?,
                None => free()?,
            }
        }
        None => 0,
    };
    let cast = TrialHosts::of(experiment, near, far, stream_port)?;
    let (near_plans, far_plans) = cast.split(&experiment.generator, entropy.u64())?;
    let credentials = credentials(experiment)?;
    let path = &experiment.sut.websocket_path;
    let security = |plan: &HostPlan| -> Result<Option<Security>, LabError> {
        let credentials = credentials.as_ref();
        let mut security = credentials
            .map(|credentials| credentials.security(&[(plan.address, false)]))
            .transpose()?;
        if !path.is_empty() {
            let security = security.get_or_insert_default();
            security
                .set_websocket_path(path)
                .map_err(LabError::bad_input)?;
        }
        Ok(security)
    };
    let side = |side: usize| HostPlacement {
        network: networks.and_then(|networks| networks.sides[side].clone()),
        ..HostPlacement::default()
    };
    let mut start_all =
        |plans: Vec<HostPlan>, placement: HostPlacement| -> Result<Vec<HostThread>, LabError> {
            let start = |plan: HostPlan| {
                let security = security(&plan)?;
                HostThread::start_in(placement.clone(), plan, security, entropy.fork(), clock)
            };
            plans.into_iter().map(start).collect()
        };
    let far = start_all(far_plans, side(1))?;
    let far_addresses: Vec<SocketAddr> = far.iter().map(HostThread::address).collect();
    let far_streams: Vec<SocketAddr> = far.iter().filter_map(HostThread::stream_address).collect();
    let called = match experiment.callees.as_ref().map(|callees| callees.transport) {
        Some(TransportName::Tls) => &far_streams,
        _ => &far_addresses,
    };
    let mut sut_entropy = Entropy::from_number(trial.seed);
    let placement = SutPlacement {
        addresses: networks.map_or_else(|| loopback(experiment), |networks| networks.border),
        called,
        credentials: credentials.as_ref(),
    };
    let sut = RunningSut::start(experiment, placement, sut_entropy.fork(), clock)?;
    // Without a SUT the callers reach the called sides directly.
    let opposite = |list: &[SocketAddr], index: usize| {
        let turn = index.checked_rem(list.len())?;
        list.get(turn).copied()
    };
    let mut near_plans = near_plans;
    for (index, plan) in near_plans.iter_mut().enumerate() {
        let called = opposite(&far_streams, index).filter(|_| experiment.sut.direct);
        let name = credentials.as_ref().map(TrialCredentials::name);
        plan.stream_peer = sut.stream_address().or(called).map(|address| StreamPeer {
            address,
            name: name.unwrap_or_default().to_owned(),
        });
    }
    let near = start_all(
        near_plans,
        match &link {
            Some(link) => ProtectedLink::placement(Some(link)),
            None => side(0),
        },
    )?;
    let target = |index: usize, own: SocketAddr| {
        let called = opposite(&far_addresses, index);
        sut.address().or(called).unwrap_or(own)
    };

    let noise = NoiseSampler::start(Duration::from_millis(1), None).map_err(|error| {
        LabError::cannot_run(
            format!("cannot start the noise sampler: {error}"),
            "raise the limit of threads (ulimit -u)",
        )
    })?;
    let kernel_before = kernel_errors()?;
    let host_before = processors()?;
    let mut cpu_before = sut.cpu_seconds()?;
    let memory_before = sut.resident_bytes()?;
    let start = clock.now() + LEAD;
    for (index, host) in far.iter().enumerate() {
        host.begin(target(index, host.address()), start)?;
    }
    for (index, host) in near.iter().enumerate() {
        host.begin(target(index, host.address()), start)?;
    }
    let mut ended: Option<String> = None;
    let mut samples = Samples::default();
    let mut sampled = f64::NEG_INFINITY;
    watch(
        WaitLimits::of(experiment),
        &near,
        clock,
        start,
        |seconds, seen| {
            // The warm-up is not counted.
            if seen.counts_from.is_some_and(|from| clock.now() <= from) {
                cpu_before = sut.cpu_seconds()?;
            }
            if seconds - sampled >= SAMPLED_EVERY_S
                && let Some(cpu_seconds) = sut.cpu_seconds()?
            {
                sampled = seconds;
                samples.add(Sample {
                    cpu_seconds,
                    half_calls: seen.established + seen.good + seen.failed,
                    packets: seen.packets_in + total_progress(&far)?.packets_in,
                });
            }
            let heal = experiment.network.heal_seconds;
            if heal > 0.0 && seconds >= heal {
                links.iter().for_each(CarriedLink::heal);
            }
            progress(seconds, seen);
            ended = sut
                .ended()?
                .map(|why| format!("{why}, after {seconds:.1} s"));
            Ok(match ended {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            })
        },
    )?;
    let end = clock.now();
    let host_cpu = busy_percent(host_before, processors()?);
    let cpu = match (sut.cpu_seconds()?, cpu_before) {
        (Some(after), Some(before)) => Some(after - before),
        _ => None,
    };
    let grew = match (sut.resident_bytes()?, memory_before) {
        (Some(after), Some(before)) => Some(after.saturating_sub(before)),
        _ => None,
    };
    // The far end may still be responding to the last BYE.
    let limit = end + Duration::from_secs(2);
    while total_progress(&far)?.up > 0 && clock.now() < limit {
        std::thread::sleep(Duration::from_millis(10));
    }
    let kernel_after = kernel_errors()?;
    let noise = noise
        .stop()
        .map_err(|error| LabError::cannot_run(format!("noise sampler: {error}"), ""))?;
    let finish = |hosts: Vec<HostThread>| -> Result<Vec<HostResults>, LabError> {
        hosts.into_iter().map(HostThread::finish).collect()
    };
    let (near, far) = (finish(near)?, finish(far)?);
    let sut_objects = sut.remaining_objects(clock)?;
    let node_calls = sut.node_calls()?;
    let kernel_relayed = sut.kernel_relayed()?;
    let mut remarks = sut.finish()?;
    remarks.extend(drop_remarks(&near, &far));
    remarks.extend(connection_failures(&near, &far));
    remarks.extend(fewer);
    remarks.extend(own_error.map(|error| error.text()));
    let noise: NoiseRecord = noise.into();
    let links = links.drain(..).map(|link| link.finish(&noise));
    let links = links.collect::<Result<Vec<LinkRecord>, LabError>>()?;
    remarks.extend(links.iter().map(|link| link.remark.clone()));
    let all = || near.iter().chain(&far);
    let cpu_of = |hosts: &[HostResults]| hosts.iter().map(|host| host.cpu_seconds).sum::<f64>();
    let (callers_cpu, callees_cpu) = (cpu_of(&near), cpu_of(&far));
    let holdings: Vec<_> = all().map(|host| host.holdings).collect();
    let results = near
        .into_iter()
        .chain(far)
        .map(|host| host.results)
        .collect();
    let (attempts, streams) = merge(trial.number, results);
    let (attempts, streams) = from_start(attempts, streams, start);
    let (cpu, measures) = ProtectedLink::account(link, (trial.number, &attempts), cpu)?;
    Ok(Outcomes {
        attempts,
        streams,
        measures,
        seconds: end.since(start).as_secs_f64(),
        leaks: sut_objects.map(|sut| sut + total_held(&holdings)),
        remarks,
        surroundings: Some(Surroundings {
            noise,
            receive_buffer_errors_before: kernel_before,
            receive_buffer_errors_after: kernel_after,
            subject_cpu_seconds: cpu,
            subject_grew_bytes: grew,
            generator_cpu_seconds: callers_cpu + callees_cpu,
            callers_cpu_seconds: callers_cpu,
            resident_bytes: net::resident_bytes()
                .map_err(|error| LabError::cannot_run(format!("/proc: {error}"), ""))?,
        }),
        subject_cpu_seconds: cpu,
        // The kernel relay works in the time of the senders, outside the border's thread.
        host_cpu_percent: host_cpu.filter(|_| kernel_relayed.is_some()),
        kernel_relayed,
        samples,
        node_calls,
        subject_ended: ended,
        links,
        ..Outcomes::default()
    })
}

/// Load of all processors between two readings, percent.
pub(super) fn busy_percent(before: [u64; 2], after: [u64; 2]) -> Option<f64> {
    let all = after[0].checked_sub(before[0]).filter(|all| *all > 0)?;
    Some(after[1].saturating_sub(before[1]) as f64 * 100.0 / all as f64)
}

/// Limits the connections to the file descriptors of this process; returns a remark if users have to share them.
fn fit_connections(experiment: &mut Experiment) -> Option<String> {
    let ours = !experiment.sut.is_external();
    let plan = experiment
        .registrations
        .as_mut()
        .filter(|plan| plan.transport != TransportName::Udp)?;
    // The border's end of each connection is in this process, too.
    let ends = if ours { 2 } else { 1 };
    let wanted = plan.connections_within(u64::MAX, 1);
    // If the limit cannot be raised, the current one applies.
    let descriptors = net::raise_open_files_to(plan.descriptors(ends));
    plan.connections = plan.connections_within(descriptors, ends);
    let each = plan.users as f64 / f64::from(plan.connections);
    if each <= 1.0 {
        return None;
    }
    let why = match plan.connections < wanted {
        true => format!(
            "; {wanted} were requested, but {descriptors} file descriptors, {ends} per connection, permit no more (ulimit -n)"
        ),
        false => String::new(),
    };
    Some(format!(
        "{} users on {} connections: {} of them share one{why}",
        plan.users,
        plan.connections,
        crate::report::plain((each * 10.0).round() / 10.0)
    ))
}

/// Certificates and trust, if the experiment uses TLS.
fn credentials(experiment: &Experiment) -> Result<Option<TrialCredentials>, LabError> {
    if !experiment.uses_tls() {
        return Ok(None);
    }
    match experiment.sut.address {
        Some(sut) => TrialCredentials::for_sut(&experiment.tls, sut),
        None => TrialCredentials::generate(),
    }
    .map(Some)
}

pub(super) fn receive_buffer_errors() -> Result<u64, LabError> {
    net::kernel_counters()
        .map(|counters| counters.receive_buffer_errors)
        .map_err(|error| LabError::cannot_run(format!("kernel counters: {error}"), "mount /proc"))
}

/// Local address of the route to a foreign SUT.
pub(crate) fn local_ip_towards(sut: SocketAddr) -> Result<IpAddr, LabError> {
    let any: SocketAddr = match sut {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Connecting a datagram socket sends nothing; it selects the route.
    std::net::UdpSocket::bind(any)
        .and_then(|socket| socket.connect(sut).and_then(|()| socket.local_addr()))
        .map(|local| local.ip())
        .map_err(|error| {
            LabError::cannot_run(
                format!("no route to {sut}: {error}"),
                "name an address to which this machine has a route",
            )
        })
}

/// Progress of all hosts together.
pub(super) fn total_progress(hosts: &[HostThread]) -> Result<HostProgress, LabError> {
    hosts.iter().try_fold(HostProgress::default(), |sum, host| {
        Ok(sum.and(&host.progress()?))
    })
}

fn are_done(hosts: &[HostThread]) -> Result<bool, LabError> {
    hosts
        .iter()
        .try_fold(true, |done, host| Ok(done && host.is_done()?))
}

/// Waits until the calling hosts are done, at most as long as `limits` permits, or until `progress` breaks.
pub(super) fn watch(
    limits: WaitLimits,
    near: &[HostThread],
    clock: Clock,
    start: Time,
    mut progress: impl FnMut(f64, &HostProgress) -> Result<ControlFlow<()>, LabError>,
) -> Result<(), LabError> {
    let mut due = 0;
    let mut last_due = start;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = clock.now();
        let seen = total_progress(near)?;
        if progress(now.since(start).as_secs_f64(), &seen)?.is_break() {
            return Ok(());
        }
        if seen.due > due {
            due = seen.due;
            last_due = now;
        }
        // After an interruption by the user the results so far are collected.
        if net::stops() > 0 || are_done(near)? || limits.is_over(seen.up, now.since(last_due)) {
            return Ok(());
        }
    }
}

/// Each host with the name of its side.
fn by_side<'a>(
    near: &'a [HostResults],
    far: &'a [HostResults],
) -> impl Iterator<Item = (&'static str, &'a HostResults)> {
    let near = near.iter().map(|host| ("callers", host));
    near.chain(far.iter().map(|host| ("callees", host)))
}

pub(super) fn drop_remarks(near: &[HostResults], far: &[HostResults]) -> Vec<String> {
    by_side(near, far)
        .filter_map(|(name, finished)| {
            let drops: Vec<String> = finished
                .drops
                .iter()
                .filter(|(reason, _)| *reason != "sip_retransmission")
                .map(|(reason, count)| format!("{reason} {count}"))
                .collect();
            (!drops.is_empty()).then(|| format!("{name} dropped: {}", drops.join(", ")))
        })
        .collect()
}

/// Reasons why TLS or WebSocket connections failed.
fn connection_failures(near: &[HostResults], far: &[HostResults]) -> Vec<String> {
    by_side(near, far)
        .flat_map(|(name, finished)| {
            let refused = finished.failed_connections.iter();
            refused.map(move |((what, why), count)| match count {
                1 => format!("{what} of the {name}, {why}"),
                count => format!("{what} of the {name}, {why}; {count} times"),
            })
        })
        .collect()
}

/// Makes times relative to the start of the trial.
pub(crate) fn from_start(
    mut attempts: Vec<Attempt>,
    mut streams: Vec<StreamRecord>,
    start: Time,
) -> (Vec<Attempt>, Vec<StreamRecord>) {
    for attempt in &mut attempts {
        attempt.due = attempt.due.saturating_sub(start.0);
        for time in [
            &mut attempt.sent,
            &mut attempt.first_answer,
            &mut attempt.ringing,
            &mut attempt.established,
            &mut attempt.hung_up,
            &mut attempt.ended,
        ]
        .into_iter()
        .flatten()
        {
            *time = time.saturating_sub(start.0);
        }
    }
    for stream in &mut streams {
        for time in [&mut stream.first, &mut stream.last].into_iter().flatten() {
            *time = time.saturating_sub(start.0);
        }
    }
    (attempts, streams)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::File;
    use std::net::UdpSocket;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Answers each INVITE with 200, and sends no BYE.
    fn answer_invites(socket: &UdpSocket, own: SocketAddr) {
        let mut room = [0; 4096];
        let Ok((length, from)) = socket.recv_from(&mut room) else {
            return;
        };
        let text = String::from_utf8_lossy(&room[..length]).into_owned();
        if !text.starts_with("INVITE ") {
            return;
        }
        let kept = ["Via: ", "From: ", "Call-ID: ", "CSeq: "];
        let lines = text
            .lines()
            .filter(|l| kept.iter().any(|k| l.starts_with(k)));
        let lines: String = lines.map(|line| format!("{line}\r\n")).collect();
        let to = text.lines().find(|line| line.starts_with("To: ")).unwrap();
        let body = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 6000 RTP/AVP 8\r\n";
        let answer = format!(
            "SIP/2.0 200 OK\r\n{lines}{to};tag=x\r\nContact: <sip:x@{own}>\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let _ = socket.send_to(answer.as_bytes(), from);
    }

    #[test]
    fn missing_bye_is_not_waited_for() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let own = socket.local_addr().unwrap();
        let wait = Some(Duration::from_millis(50));
        socket.set_read_timeout(wait).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let stop = over.clone();
        let peer = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                answer_invites(&socket, own);
            }
        });
        let text = format!(
            "name = \"t\"\ntitle = \"t\"\n[sut]\naddress = \"{own}\"\n[callers]\nrate = 10.0\ntotal = 2\nhold_seconds = 0.1\nhang_up = \"callee\"\n"
        );
        let experiment = File::parse("t", &text).unwrap().experiment().clone();
        let cast = TrialHosts::of(&experiment, own.ip(), own.ip(), 0).unwrap();
        let clock = Clock::new();
        let entropy = Entropy::from_number(1);
        let near = HostThread::start(cast.near, None, entropy, clock).unwrap();
        let start = clock.now() + LEAD;
        near.begin(own, start).unwrap();
        let near = [near];
        let mut most = 0;
        let seen = |up: &mut u64, seen: &HostProgress| *up = seen.up.max(*up);
        // Both calls are up, and neither side sends BYE.
        let limit = clock.now() + Duration::from_secs(60);
        while most < 2 {
            seen(&mut most, &total_progress(&near).unwrap());
            assert!(clock.now() < limit, "{most}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let limits = WaitLimits {
            settle: Duration::from_millis(100),
            life: Duration::from_millis(400),
        };
        watch(limits, &near, clock, start, |_, progress| {
            seen(&mut most, progress);
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
        assert!(!are_done(&near).unwrap());
        assert_eq!(most, 2);
        over.store(true, Ordering::Relaxed);
        peer.join().unwrap();
    }
}
