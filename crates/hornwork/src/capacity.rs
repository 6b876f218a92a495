//! The number of calls for which this machine has capacity, as `hornwork check` prints it.

use border::admission::{MediaOffload, MediaPath, Price};
use config::{Config, InterfaceId, SrtpPolicy};
use std::collections::BTreeSet;

/// Open files of an anchored call with one audio line: RTP and RTCP of both sides.
const FILES_PER_CALL: u64 = 4;

/// A bound of calls with anchored media other than memory and CPU time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MediaBound {
    calls: u64,
    /// Its cause.
    by: String,
}

/// The lowest bound by media ports and open files; `None` if media nodes have the ports.
fn media_bound(config: &Config, files: Option<u64>) -> Option<MediaBound> {
    if config.media.at_nodes {
        return None;
    }
    let of_ports = (0..config.interfaces.len()).filter_map(|index| port_bound(config, index));
    let of_files = files.map(|files| MediaBound {
        calls: files / FILES_PER_CALL,
        by: format!("the limit of {files} open files of this process"),
    });
    of_ports.chain(of_files).min_by_key(|bound| bound.calls)
}

/// The bound by the ports of an interface: a call takes a pair of each side, so two of them if both sides use the same ports.
fn port_bound(config: &Config, index: usize) -> Option<MediaBound> {
    let ranges_of = |index: usize| -> BTreeSet<usize> {
        let interface = config.interfaces.get(index);
        let media = interface.map_or(&[][..], |interface| &interface.media);
        media.iter().map(|media| media.range).collect()
    };
    let own = ranges_of(index);
    let pairs: u64 = own
        .iter()
        .filter_map(|range| config.media_ranges.get(*range))
        .map(|range| u64::from(range.last.saturating_sub(range.first)).div_ceil(2))
        .sum();
    let mut others = (0..config.interfaces.len()).filter(|other| *other != index);
    let other_side = others.any(|other| ranges_of(other).is_disjoint(&own));
    let calls = if other_side { pairs } else { pairs / 2 };
    let interface = config.interfaces.get(index).filter(|_| !own.is_empty())?;
    Some(MediaBound {
        calls,
        by: format!(
            "{pairs} pairs of media ports of interface {}",
            interface.name
        ),
    })
}

/// Number of calls of either kind for which the machine and this process have capacity if `offload` carries their media.
pub(crate) fn of_process(config: &Config, offload: &MediaOffload) -> String {
    line(config, offload, net::raise_open_files().ok())
}

/// The same for a process that may have `files` open.
fn line(config: &Config, offload: &MediaOffload, files: Option<u64>) -> String {
    let Some(limit) = Price::limit(&config.admission) else {
        return String::new();
    };
    let most = config.limits.calls as u64;
    let fit = |cost: Price| limit.capacity_for(cost).min(most);
    let bound = media_bound(config, files);
    let most_anchored = bound.as_ref().map_or(u64::MAX, |bound| bound.calls);
    let fit_anchored = |cost: Price| fit(cost).min(most_anchored);
    // The faster path applies to calls between the interfaces that it serves.
    let ways = config.interfaces.iter().enumerate().map(|(index, _)| {
        let id = InterfaceId(u16::try_from(index).unwrap_or(u16::MAX));
        offload.path_between(config, [id, id])
    });
    let served = ways.filter(|way| *way != MediaPath::Sockets).count();
    let sockets = fit_anchored(Price::of_call_by(MediaPath::Sockets, [None, None]));
    let anchored = match (served, offload.path) {
        (0, _) | (_, MediaPath::Sockets) => format!("{sockets} calls with anchored media"),
        (served, way) => {
            let calls = fit_anchored(Price::of_call_by(way, [None, None]));
            let (name, rest) = match way {
                MediaPath::Kernel => ("the kernel", "in sockets (SRTP, transcoding, IPv4 to IPv6)"),
                _ => ("AF_XDP", "in sockets"),
            };
            let all = config.interfaces.len();
            match served == all {
                true => format!("{calls} calls with anchored media in {name}, {sockets} {rest}"),
                false => format!(
                    "{sockets} calls with anchored media in sockets, {calls} in {name} (between {served} of {all} interfaces)"
                ),
            }
        }
    };
    // If a side may use SRTP: the number of calls with one SRTP side, at the price of the most expensive crypto suite.
    let sides = config
        .interfaces
        .iter()
        .map(|interface| &interface.security);
    let sides = sides.chain(config.trunks.iter().map(|trunk| &trunk.security));
    let protected = sides
        .filter(|security| matches!(security.srtp, SrtpPolicy::Require | SrtpPolicy::Prefer))
        .map(|security| {
            let mut cost = Price::of_call(true, [None, None]);
            cost += Price::of_security(security);
            fit_anchored(cost)
        })
        .min();
    let protected = protected.map_or(String::new(), |calls| {
        format!(", {calls} if one side has SRTP")
    });
    let through_gateway = config.gateway.as_ref().map_or(String::new(), |_| {
        let calls = (Price::GATEWAY / Price::GATEWAY_SIDE).min(sockets);
        format!(", {calls} if one side is behind a tunnel of the gateway")
    });
    let largest =
        [MediaPath::Sockets, offload.path].map(|way| fit(Price::of_call_by(way, [None, None])));
    let bounded = bound
        .filter(|bound| largest.iter().any(|calls| *calls > bound.calls))
        .map_or(String::new(), |bound| format!(" (bounded by {})", bound.by));
    format!(
        "capacity: {anchored}{bounded}{protected}{through_gateway}, or {} with media bypass: {} MiB, {} % of a core; beyond that {}\n",
        fit(Price::of_call(false, [None, None])),
        limit.memory / 1_024,
        limit.processor / 10_000,
        config.admission.status
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use border::admission::MediaOffload;

    fn interface(name: &str, address: &str, ports: &str) -> String {
        format!(
            "[[interface]]\nname='{name}'\nlisten='udp:{address}:5060'\nmedia={{ports='{ports}'}}\n"
        )
    }

    fn printed(text: &str, files: u64) -> String {
        let mut config = config::parse(text, "f").expect("configuration");
        config.admission.machine = Some(crate::machine::machine());
        line(&config, &MediaOffload::default(), Some(files))
    }

    #[test]
    fn capacity_is_bounded_by_media_ports() {
        let two = interface("out", "127.0.0.1", "14000-14199")
            + &interface("in", "127.0.0.2", "15000-15999");
        let found = printed(&two, 1_000_000);
        let wanted = "capacity: 100 calls with anchored media (bounded by 100 pairs of media ports of interface out), or ";
        assert!(found.starts_with(wanted), "{found}");
        // Both sides of a call take ports of the same range.
        let shared = interface("out", "127.0.0.1", "14000-14199")
            + &interface("in", "127.0.0.1", "14000-14199").replace("5060", "5070");
        for one in [shared, interface("out", "127.0.0.1", "14000-14199")] {
            let found = printed(&one, 1_000_000);
            assert!(found.starts_with("capacity: 50 calls"), "{found}");
        }
    }

    #[test]
    fn capacity_is_bounded_by_open_files() {
        let text = interface("out", "127.0.0.1", "14000-15999");
        let found = printed(&text, 1_024);
        let wanted = "capacity: 256 calls with anchored media (bounded by the limit of 1024 open files of this process), or ";
        assert!(found.starts_with(wanted), "{found}");
    }

    #[test]
    fn bound_above_the_capacity_is_not_named() {
        let found = printed(&interface("out", "127.0.0.1", "6000-32001"), 1_000_000);
        assert!(!found.contains("bounded"), "{found}");
    }
}
