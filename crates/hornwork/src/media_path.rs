//! Media paths beside sockets, the kernel relay and AF_XDP: opened as configured, logged, and reported to admission
//! control.

use crate::log::EventLog;
use border::admission::{MediaOffload, MediaPath};
use config::{Config, OffloadMode};
use engine::{Event, EventKind};
use media::forward::Forwarder;
use net::{AfXdp, Clock, Driver, KernelRelay};
use std::io;
use std::net::IpAddr;

/// Loads the kernel relay if configured and possible; logs the result.
///
/// # Errors
/// If it is required and cannot be loaded.
pub(crate) fn kernel_relay(
    config: &Config,
    log: &EventLog,
    clock: &Clock,
) -> io::Result<Option<KernelRelay>> {
    let kernel = config.media.kernel_relay;
    let required = kernel == OffloadMode::Require;
    let failed = |why: &str| {
        io::Error::other(format!(
            "cannot start the kernel relay: {why}\n  remedy: set `[media] kernel_relay = \"auto\"` to run without it"
        ))
    };
    if kernel == OffloadMode::Never {
        return Ok(None);
    }
    let started = KernelRelay::start(&config.media_addresses(), config.media.dscp);
    let (relays, why) = match &started {
        Ok(relay) => relay.state(),
        Err(error) => (false, error.to_string()),
    };
    if required && !why.is_empty() {
        return Err(failed(&why));
    }
    log.event(&Event::new(clock.now(), kernel_relay_event(relays, why)));
    Ok(started.ok())
}

/// Event about the state of the kernel relay, with the reason.
fn kernel_relay_event(relays: bool, why: String) -> EventKind {
    let path = match relays {
        true => "kernel_relay",
        false => "no_kernel_relay",
    };
    EventKind::MediaPath {
        path: path.into(),
        reason: why,
    }
}

/// Opens AF_XDP for media if configured and possible; logs the result.
///
/// # Errors
/// If it is required and cannot be opened.
pub(crate) fn af_xdp(config: &Config, log: &EventLog, clock: &Clock) -> io::Result<Option<AfXdp>> {
    let wanted = config.media.af_xdp;
    if wanted == OffloadMode::Never {
        return Ok(None);
    }
    let started = AfXdp::start(&config.media_addresses(), config.media.dscp);
    let (how, unserved) = match &started {
        Ok(started) => started.state(),
        Err(error) => (String::new(), error.to_string()),
    };
    if wanted == OffloadMode::Require && !unserved.is_empty() {
        return Err(io::Error::other(format!(
            "cannot use AF_XDP for media: {unserved}\n  remedy: set `[media] af_xdp = \"auto\"` to run without it"
        )));
    }
    let path = match &started {
        Ok(_) => "af_xdp",
        Err(_) => "no_af_xdp",
    };
    let mut why = [how, unserved].to_vec();
    why.retain(|part| !part.is_empty());
    let note = EventKind::MediaPath {
        path: path.into(),
        reason: why.join("; "),
    };
    log.event(&Event::new(clock.now(), note));
    Ok(started.ok())
}

/// Logs the packets carried by AF_XDP, if it is in use.
pub(crate) fn log_af_xdp_packets(
    af_xdp: Option<&AfXdp>,
    driver: &Driver<Forwarder>,
    log: &EventLog,
) {
    if af_xdp.is_none() {
        return;
    }
    let counters = driver.counters();
    let note = EventKind::AfXdpStatistics {
        received: counters.af_xdp_in,
        sent: counters.af_xdp_out,
        sent_by_sockets: counters.af_xdp_bypassed,
        // The kernel does not report this count everywhere.
        dropped: driver.kernel_drops().unwrap_or_default(),
        received_by_queue: by_queue(&driver.af_xdp_queues()),
    };
    log.event(&Event::new(driver.clock().now(), note));
    log.flush();
}

/// Packets per queue of each interface, as text.
fn by_queue(queues: &[(&str, u32, u64)]) -> String {
    let interfaces = queues.chunk_by(|one, next| one.0 == next.0);
    let words = interfaces.map(|queues| {
        let counts: Vec<String> = queues.iter().map(|queue| queue.2.to_string()).collect();
        let name = queues.first().map_or("", |queue| queue.0);
        format!("{name}: {}", counts.join(" "))
    });
    words.collect::<Vec<String>>().join("; ")
}

/// Logs interfaces on which the kernel relay became active or inactive; returns whether there were any.
pub(crate) fn log_kernel_relay_changes(
    relay: Option<&KernelRelay>,
    log: &EventLog,
    clock: &Clock,
) -> bool {
    let changed = relay.and_then(KernelRelay::take_changed_state);
    let any = changed.is_some();
    if let Some((relays, why)) = changed {
        log.event(&Event::new(clock.now(), kernel_relay_event(relays, why)));
    }
    any
}

/// Media paths beside sockets that are currently in use.
pub(crate) fn media_offload(relay: Option<&KernelRelay>, af_xdp: Option<&AfXdp>) -> MediaOffload {
    let of = |way, addresses: Vec<IpAddr>| match addresses.is_empty() {
        true => MediaOffload::default(),
        false => MediaOffload {
            path: way,
            addresses: addresses.into(),
        },
    };
    match (relay, af_xdp) {
        (Some(relay), _) => of(MediaPath::Kernel, relay.served_addresses()),
        (None, Some(af_xdp)) => of(MediaPath::AfXdp, af_xdp.served_addresses()),
        (None, None) => MediaOffload::default(),
    }
}
