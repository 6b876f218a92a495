//! A trial on real sockets: the hosts on threads of their own, apart from the SUT's threads.

use super::machine::{HostTime, local_ip_towards, outgoing_ports, receive_buffer_errors};
use super::namespaces::{CallNetworks, link_error};
use super::progress::{
    connection_failures, drop_remarks, from_start, kernel_drops, total_progress, unparsable, watch,
};
use super::protected::{CALLERS, ProtectedLink};
use super::{
    HostPlacement, HostResults, HostThread, Outcomes, Trial, TrialHosts, UserConnections,
    WaitLimits, merge, total_held,
};
use crate::error::LabError;
use crate::esp::WireMedium;
use crate::experiment::{
    Experiment, RegistrarLocation, SPARE_DESCRIPTORS, SutMedia, TransportName,
};
use crate::host::{HostPlan, HostProgress, StreamPeer};
use crate::planes::{Sample, Samples};
use crate::raw::{NoiseRecord, SendLateness, SocketShortage, Surroundings};
use crate::sut::{PortSpan, RunningSut, SutPlacement, loopback, system_entropy};
use crate::tls::TrialCredentials;
use engine::Entropy;
use net::tls::Security;
use net::{Clock, Network, NoiseSampler};
use std::net::SocketAddr;
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
    // Calls with media may each take a socket, more than planned if the SUT answers late. Where the limit cannot be
    // raised, the trial names calls without a socket.
    let _ = net::raise_open_files();
    // A foreign SUT is reached in the network of this host, and a link has networks of its own.
    let sut = &experiment.sut;
    let all_ours = sut.address.is_none() && sut.agent().is_none() && experiment.link.is_none();
    let (mut outcomes, shared) = match all_ours.then(Network::with_loopback) {
        None => (run_here(trial, false, progress)?, None),
        Some(Ok(network)) => (
            in_network(&network, || run_here(trial, true, progress))?,
            None,
        ),
        Some(Err(error)) if experiment.network.is_set() => {
            return Err(LabError::cannot_run(
                format!("[network] needs network namespaces: unshare: {error}"),
                "run it as root (CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_RAW), or with --simulate",
            ));
        }
        Some(Err(error)) if experiment.sut.media == SutMedia::KernelRelay => {
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
    } else if experiment.esp.is_some() || experiment.phone.is_some() || experiment.link.is_some() {
        "[esp], [phone] and [link] have links of their own on sockets"
    } else {
        return Ok(());
    };
    Err(LabError::bad_input(format!("[network]: {reason}")))
}

/// Runs a trial in the network namespace of the calling thread, which may be its own.
fn run_here(
    trial: &Trial,
    private: bool,
    progress: impl FnMut(f64, &HostProgress) + Send,
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
        (None, None) => run_calls(trial, None, private, progress),
    }
}

/// Beginning of the remark of a trial that this machine did not permit on sockets.
pub(crate) const RAN_IN_VIRTUAL_TIME: &str = "the trial ran in virtual time: ";

/// Runs a trial with a protected access side; in virtual time where this machine does not permit the link.
fn run_protected(
    trial: &Trial,
    private: bool,
    progress: impl FnMut(f64, &HostProgress) + Send,
) -> Result<Outcomes, LabError> {
    let Some(protection) = &trial.experiment.protection else {
        return Err(LabError::bad_input("no [protection]"));
    };
    let link = match private {
        true => ProtectedLink::open(&trial.experiment, protection, trial.seed),
        false => Err(LabError::cannot_run(
            "no network namespace of its own, which needs CAP_SYS_ADMIN",
            "",
        )),
    };
    let link = match link {
        Ok(link) => link,
        // Programs of a tunnel and links in real time are not replaced by a simulation.
        Err(error) if protection.has_line(trial.experiment.network.is_set()) => return Err(error),
        // The signal of Ctrl-C ends commands of the set-up.
        Err(_) if net::stops() > 0 => {
            return Err(LabError::Interrupted(
                "interrupted while the access side was set up".to_owned(),
            ));
        }
        Err(error) => {
            let mut outcomes = super::simulate(trial)?;
            let text = format!("{RAN_IN_VIRTUAL_TIME}{error}");
            outcomes.remarks.push(text.replace('\n', ";"));
            return Ok(outcomes);
        }
    };
    let border = link.border_name();
    let mut outcomes = match super::protected::applied(&trial.experiment) {
        Some(experiment) => {
            let trial = Trial {
                experiment,
                ..trial.clone()
            };
            let network = link.border_network();
            let run = || match trial.experiment.conference.is_some() {
                true => super::conference::on_sockets(&trial, Some(link), progress),
                false => run_calls(&trial, Some(link), false, progress),
            };
            match network {
                Some(network) => in_network(&network, run)?,
                None => run()?,
            }
        }
        None => return Err(LabError::bad_input("no [protection]")),
    };
    outcomes.remarks.push(format!(
        "access side: {}, by a link between two network namespaces; {border}",
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

/// Randomness of this run for Call-IDs, tags and branches at a SUT that goes on after the trial: it remembers those of
/// the trials before, and a second run with the same seed would repeat them.
pub(super) fn identities(experiment: &Experiment) -> Result<Option<Entropy>, LabError> {
    experiment.sut.address.map(|_| system_entropy()).transpose()
}

/// Runs a trial of calls and registrations. `private`: its callers are in a network namespace of its own.
fn run_calls(
    trial: &Trial,
    link: Option<ProtectedLink>,
    private: bool,
    mut progress: impl FnMut(f64, &HostProgress),
) -> Result<Outcomes, LabError> {
    let mut experiment = trial.experiment.clone();
    // Links have namespaces of their own, with the kernel's range of ports.
    let links = experiment.network.is_set() || experiment.sut.media == SutMedia::KernelRelay;
    let private = private && !links;
    let fewer = [
        fit_caller_connections(&mut experiment, private),
        fit_connections(&mut experiment, private),
    ];
    let experiment = &experiment;
    let clock = Clock::new();
    let mut entropy = Entropy::from_number(trial.seed);
    let all_networks = match &link {
        // The link of `[network]` is part of the access side.
        Some(_) => None,
        None => CallNetworks::where_needed(experiment, trial.seed, clock)?,
    };
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
    let side = |side: usize| match networks {
        Some(networks) => networks.placement(side),
        None => HostPlacement::default(),
    };
    let mut identities = identities(experiment)?;
    let mut start_all =
        |plans: Vec<HostPlan>, placement: HostPlacement| -> Result<Vec<HostThread>, LabError> {
            let start = |mut plan: HostPlan| {
                let security = security(&plan)?;
                plan.identity_seed = identities.as_mut().map(Entropy::u64);
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
        program: link.as_ref().and_then(ProtectedLink::border_program),
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
    let host_before = HostTime::now(sut.cpu_seconds_beside()?)?;
    let mut cpu_before = sut.cpu_seconds()?;
    let mut waited_before = sut.waited_seconds()?;
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
    let mut fewest: Option<u64> = None;
    watch(
        WaitLimits::of(experiment),
        &near,
        clock,
        start,
        |seconds, seen| {
            // The warm-up is not counted.
            if seen.counts_from.is_some_and(|from| clock.now() <= from) {
                cpu_before = sut.cpu_seconds()?;
                waited_before = sut.waited_seconds()?;
            }
            if seen.counts_from.is_some_and(|from| clock.now() > from) {
                let open = seen.connections;
                fewest = Some(fewest.map_or(open, |fewest| fewest.min(open)));
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
            networks
                .iter()
                .for_each(|networks| networks.heal_at(seconds));
            link.iter().for_each(|link| link.heal_at(seconds));
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
    let host_after = HostTime::now(sut.cpu_seconds_beside()?)?;
    // Programs of a tunnel are neither the subject nor others.
    let has_programs = link.as_ref().is_some_and(ProtectedLink::has_programs);
    let others = host_before.others_percent(host_after);
    let cpu = match (sut.cpu_seconds()?, cpu_before) {
        (Some(after), Some(before)) => Some(after - before),
        _ => None,
    };
    let waited = match (sut.waited_seconds()?, waited_before) {
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
    let mut link = link;
    if let Some(link) = &mut link {
        link.read_border(&sut)?;
    }
    if ended.is_none() {
        ended = sut.ended()?.map(|why| format!("{why}, after the calls"));
    }
    let mut remarks = sut.finish()?;
    remarks.extend(drop_remarks(&near, &far));
    remarks.extend(connection_failures(&near, &far));
    remarks.extend(fewer.into_iter().flatten());
    let connections = user_connections(experiment, &near, fewest);
    let has_registrar = (experiment.registrations.as_ref())
        .is_some_and(|plan| plan.registrar == RegistrarLocation::Core);
    let accepted = |host: &HostResults| host.progress.accepted_registrations;
    let passed_on: Option<u64> = has_registrar.then(|| far.iter().map(accepted).sum());
    let noise: NoiseRecord = noise.into();
    let finished = all_networks.map(|networks| networks.finish(&noise));
    let (mut links, of_links) = finished.transpose()?.unwrap_or_default();
    remarks.extend(of_links);
    let all = || near.iter().chain(&far);
    let cpu_of = |hosts: &[HostResults]| hosts.iter().map(|host| host.cpu_seconds).sum::<f64>();
    let (callers_cpu, callees_cpu) = (cpu_of(&near), cpu_of(&far));
    let generator_drops = kernel_drops(all());
    let generator_unparsable = unparsable(all());
    let generator_shortage = SocketShortage::of_all(all().map(|host| &host.results.shortage));
    let send_lateness = SendLateness::of(all().map(|host| &host.results.send_times));
    let holdings: Vec<_> = all().map(|host| host.holdings).collect();
    let results = near
        .into_iter()
        .chain(far)
        .map(|host| host.results)
        .collect();
    let (attempts, streams) = merge(trial.number, results);
    let (attempts, streams) = from_start(attempts, streams, start);
    let access = ProtectedLink::account(link, (trial.number, &attempts), cpu, &noise)?;
    links.extend(access.links);
    remarks.extend(access.remarks);
    let cpu = access.cpu_seconds;
    Ok(Outcomes {
        attempts,
        streams,
        measures: access.measures,
        protection_ms: access.delay_ms,
        seconds: end.since(start).as_secs_f64(),
        leaks: sut_objects.map(|sut| sut + total_held(&holdings)),
        remarks,
        surroundings: Some(Surroundings {
            noise,
            own_noise: None,
            receive_buffer_errors_before: kernel_before,
            receive_buffer_errors_after: kernel_after,
            generator_drops,
            generator_unparsable,
            generator_shortage,
            subject_cpu_seconds: cpu,
            subject_waited_seconds: waited,
            subject_grew_bytes: grew,
            generator_cpu_seconds: callers_cpu + callees_cpu,
            callers_cpu_seconds: callers_cpu,
            send_lateness,
            generator_is_realtime: experiment.generator.realtime_priority > 0,
            other_programs_percent: others.filter(|_| !has_programs),
            resident_bytes: net::resident_bytes()
                .map_err(|error| LabError::cannot_run(format!("/proc: {error}"), ""))?,
        }),
        subject_cpu_seconds: cpu,
        // The kernel relay works in the time of the senders, outside the border's thread.
        host_cpu_percent: kernel_relayed.and_then(|_| host_before.busy_percent(host_after)),
        kernel_relayed,
        connections,
        passed_on,
        samples,
        node_calls,
        subject_ended: ended,
        links,
        ..Outcomes::default()
    })
}

/// The connections of registered users; `fewest`: during the re-registrations at a rate.
fn user_connections(
    experiment: &Experiment,
    near: &[HostResults],
    fewest: Option<u64>,
) -> Option<UserConnections> {
    let plan = experiment.registrations.as_ref()?;
    (plan.transport != TransportName::Udp).then(|| {
        let open: u64 = near.iter().map(|host| host.progress.connections).sum();
        let opened: u64 = near.iter().map(|host| host.connected).sum();
        UserConnections {
            open: fewest.unwrap_or(open),
            lost: opened.saturating_sub(open),
        }
    })
}

/// Limits the connections to the file descriptors of this process and to the ports of its address; returns a remark
/// with both numbers if users have to share them.
fn fit_connections(experiment: &mut Experiment, private: bool) -> Option<String> {
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
    let within = plan.connections_within(descriptors, ends);
    let ports = outgoing_ports(private);
    plan.connections = within.min(ports);
    let each = plan.users as f64 / f64::from(plan.connections);
    if each <= 1.0 {
        return None;
    }
    let why = match plan.connections < wanted {
        true if ports < within => format!(
            "; {wanted} were requested, but one address has {ports} ports for connections (net.ipv4.ip_local_port_range)"
        ),
        true => format!(
            "; {wanted} were requested, but {descriptors} file descriptors, {ends} per connection, permit no more (ulimit -n)"
        ),
        false => String::new(),
    };
    Some(format!(
        "{} users on {} connections: {} of them share one{why}",
        plan.users,
        plan.connections,
        crate::decimal::plain((each * 10.0).round() / 10.0)
    ))
}

/// The same for the connections that calls use in turn.
fn fit_caller_connections(experiment: &mut Experiment, private: bool) -> Option<String> {
    let ends = if experiment.sut.is_external() { 1 } else { 2 };
    let callers = experiment
        .callers
        .as_mut()
        .filter(|callers| callers.transport != TransportName::Udp && callers.connections > 1)?;
    let wanted = callers.connections;
    let descriptors =
        net::raise_open_files_to(u64::from(wanted).saturating_mul(ends) + SPARE_DESCRIPTORS);
    let within = descriptors.saturating_sub(SPARE_DESCRIPTORS) / ends;
    let ports = outgoing_ports(private);
    let within = u32::try_from(within).unwrap_or(u32::MAX).min(ports).max(1);
    callers.connections = wanted.min(within);
    (within < wanted).then(|| {
        format!(
            "calls use {within} connections; {wanted} were requested, but {descriptors} file descriptors, {ends} per connection (ulimit -n), and {ports} ports (net.ipv4.ip_local_port_range) permit no more"
        )
    })
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
