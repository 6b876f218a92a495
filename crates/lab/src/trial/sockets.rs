//! A trial on real sockets: the hosts on threads of their own, apart from the subject's.

use super::{Cast, Finished, HostThread, Outcomes, Trial, held, merge};
use crate::error::LabError;
use crate::experiment::{Experiment, TransportName};
use crate::host::{HostPlan, Progress, SecurePeer};
use crate::raw::{NoiseRecord, Surroundings};
use crate::record::{Attempt, StreamRecord};
use crate::subject::{PortSpan, Subject, loopback, system_entropy};
use crate::tls::Credentials;
use engine::{Entropy, Time};
use net::{Clock, NoiseSampler};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// From the order to begin to the first arrival: threads have settled by then.
const LEAD: Duration = Duration::from_millis(200);

/// Runs a trial. `progress` is called about ten times a second with the figures of the calling host.
///
/// # Errors
/// Where this machine cannot run it.
pub fn on_sockets(
    trial: &Trial,
    mut progress: impl FnMut(f64, &Progress),
) -> Result<Outcomes, LabError> {
    let experiment = &trial.experiment;
    let clock = Clock::new();
    let mut entropy = Entropy::from_number(trial.seed);
    let [near, far] = match experiment.subject.address {
        Some(subject) => [local_ip_towards(subject)?; 2],
        None => loopback(experiment),
    };
    let stream_port = match &experiment.streams {
        Some(streams) => {
            PortSpan::free_for_calls(streams.count, [far; 2], &mut system_entropy()?)?[0].first()
        }
        None => 0,
    };
    let mut cast = Cast::of(experiment, near, far, stream_port)?;
    let credentials = credentials(experiment)?;
    let security = |plan: &HostPlan| {
        let credentials = credentials.as_ref();
        credentials
            .map(|credentials| credentials.security(&[plan.address]))
            .transpose()
    };
    let far = match cast.far {
        Some(plan) => {
            let security = security(&plan)?;
            Some(HostThread::start(plan, security, entropy.fork(), clock)?)
        }
        None => None,
    };
    let near_entropy = entropy.fork();
    let far_address = far.as_ref().map(HostThread::address);
    let far_streams = far.as_ref().and_then(HostThread::stream_address);
    let called = match experiment.callees.as_ref().map(|callees| callees.transport) {
        Some(TransportName::Tls) => far_streams,
        _ => far_address,
    };
    let subject = Subject::start(
        experiment,
        called.as_slice(),
        credentials.as_ref(),
        entropy.fork(),
        clock,
    )?;
    // With nothing in between the called side itself is what is reached by TLS.
    let secure = subject
        .tls_address()
        .or(far_streams.filter(|_| experiment.subject.none));
    if let (Some(address), Some(credentials)) = (secure, &credentials) {
        let name = credentials.name().to_owned();
        cast.near.secure = Some(SecurePeer { address, name });
    }
    let near_security = security(&cast.near)?;
    let near = HostThread::start(cast.near, near_security, near_entropy, clock)?;
    let target = subject
        .address()
        .or(far_address)
        .unwrap_or_else(|| near.address());

    let noise = NoiseSampler::start(Duration::from_millis(1), None)
        .map_err(|error| LabError::cannot(format!("noise sampler: {error}"), ""))?;
    let kernel_before = kernel()?;
    let cpu_before = subject.cpu_seconds()?;
    let start = clock.now() + LEAD;
    if let Some(far) = &far {
        far.begin(target, start)?;
    }
    near.begin(target, start)?;
    watch(
        experiment.settle_seconds,
        &near,
        clock,
        start,
        &mut progress,
    )?;
    let end = clock.now();
    if let Some(far) = &far {
        // What was hung up last is still being answered at the far end.
        let limit = end + Duration::from_secs(2);
        while far.progress()?.up > 0 && clock.now() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let cpu = match (subject.cpu_seconds()?, cpu_before) {
        (Some(after), Some(before)) => Some(after - before),
        _ => None,
    };
    let kernel_after = kernel()?;
    let noise = noise
        .stop()
        .map_err(|error| LabError::cannot(format!("noise sampler: {error}"), ""))?;
    let near = near.finish()?;
    let far = far.map(HostThread::finish).transpose()?;
    let subject_holds = subject.settled_holdings(clock)?;
    let mut remarks = subject.finish()?;
    remarks.extend(drop_remarks(&near, far.as_ref()));
    remarks.extend(tls_remarks(&near, far.as_ref()));
    if experiment.network != crate::experiment::Network::default() {
        remarks.push("[network] applies to simulations only; these links were real".to_owned());
    }
    let generator_cpu = near.cpu_seconds + far.as_ref().map_or(0.0, |far| far.cpu_seconds);
    let holdings: Vec<_> = std::iter::once(near.holdings)
        .chain(far.as_ref().map(|far| far.holdings))
        .collect();
    let results = std::iter::once(near.results)
        .chain(far.map(|far| far.results))
        .collect();
    let (attempts, streams) = merge(trial.number, results);
    let (attempts, streams) = from_start(attempts, streams, start);
    Ok(Outcomes {
        attempts,
        streams,
        seconds: end.since(start).as_secs_f64(),
        leaks: subject_holds.map(|subject| subject + held(&holdings)),
        remarks,
        surroundings: Some(Surroundings {
            noise: NoiseRecord {
                mean_us: noise.mean_us,
                p99_us: noise.p99_us,
                max_us: noise.max_us,
                lost_share: noise.lost_share,
            },
            receive_buffer_errors_before: kernel_before,
            receive_buffer_errors_after: kernel_after,
            subject_cpu_seconds: cpu,
            generator_cpu_seconds: generator_cpu,
            resident_bytes: net::resident_bytes()
                .map_err(|error| LabError::cannot(format!("/proc: {error}"), ""))?,
        }),
        subject_cpu_seconds: cpu,
        digest: None,
    })
}

/// Certificates and trust, where the experiment speaks TLS.
fn credentials(experiment: &Experiment) -> Result<Option<Credentials>, LabError> {
    if !experiment.speaks_tls() {
        return Ok(None);
    }
    match experiment.subject.address {
        Some(subject) => Credentials::of(&experiment.tls, subject),
        None => Credentials::made(),
    }
    .map(Some)
}

fn kernel() -> Result<u64, LabError> {
    net::kernel_counters()
        .map(|counters| counters.receive_buffer_errors)
        .map_err(|error| LabError::cannot(format!("kernel counters: {error}"), "mount /proc"))
}

/// Our address on the way to a foreign subject.
fn local_ip_towards(subject: SocketAddr) -> Result<IpAddr, LabError> {
    let any: SocketAddr = match subject {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Connecting a datagram socket sends nothing; it only asks for the route.
    std::net::UdpSocket::bind(any)
        .and_then(|socket| socket.connect(subject).and_then(|()| socket.local_addr()))
        .map(|local| local.ip())
        .map_err(|error| {
            LabError::cannot(
                format!("no way to {subject}: {error}"),
                "give an address that this machine has a route to",
            )
        })
}

/// Waits until the calling host is done, at most `settle` seconds after its last attempt was due.
fn watch(
    settle: f64,
    near: &HostThread,
    clock: Clock,
    start: Time,
    progress: &mut impl FnMut(f64, &Progress),
) -> Result<(), LabError> {
    let settle = Duration::try_from_secs_f64(settle.max(0.0)).unwrap_or(Duration::MAX);
    let mut due = 0;
    let mut last_due = start;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = clock.now();
        let seen = near.progress()?;
        progress(now.since(start).as_secs_f64(), &seen);
        if seen.due > due {
            due = seen.due;
            last_due = now;
        }
        // Established calls may last longer than `settle`: they are waited for as long as they live.
        let idle = seen.up == 0 && now.since(last_due) > settle;
        if near.is_done()? || idle {
            return Ok(());
        }
    }
}

fn drop_remarks(near: &Finished, far: Option<&Finished>) -> Vec<String> {
    let hosts = [("callers", Some(near)), ("callees", far)];
    hosts
        .into_iter()
        .filter_map(|(name, finished)| {
            let drops: Vec<String> = finished?
                .drops
                .iter()
                .filter(|(reason, _)| *reason != "sip_retransmission")
                .map(|(reason, count)| format!("{reason} {count}"))
                .collect();
            (!drops.is_empty()).then(|| format!("{name} dropped: {}", drops.join(", ")))
        })
        .collect()
}

/// Why TLS did not come about.
fn tls_remarks(near: &Finished, far: Option<&Finished>) -> Vec<String> {
    let hosts = [("callers", Some(near)), ("callees", far)];
    let told = hosts.into_iter().flat_map(|(name, finished)| {
        let refused = finished.map_or(&[][..], |finished| &finished.tls_refused);
        refused.iter().map(move |(why, count)| match count {
            1 => format!("TLS of the {name}, {why}"),
            count => format!("TLS of the {name}, {why}; {count} times"),
        })
    });
    told.collect()
}

/// Times from the trial's start on, not from the clock's.
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
