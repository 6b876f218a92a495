//! The number of calls for which this machine has capacity, as `hornwork check` prints it.

use border::admission::{MediaPath, MediaPaths, Price};
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
        // One of five is for connections, logs and records (`MediaSocketPool::set_open_files`).
        calls: files / 5 * 4 / FILES_PER_CALL,
        by: format!("the limit of {files} open files of this process"),
    });
    of_ports.chain(of_files).min_by_key(|bound| bound.calls)
}

/// The bound by the ports of an interface: a call takes a pair of each side, so two of them if both sides use the same
/// ports.
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

/// Number of calls of either kind for which the machine and this process have capacity if these paths carry their
/// media.
pub(crate) fn of_process(config: &Config, paths: &MediaPaths) -> String {
    line(config, paths, net::raise_open_files().ok())
}

/// The same for a process that may have `files` open.
fn line(config: &Config, paths: &MediaPaths, files: Option<u64>) -> String {
    let Some(limit) = Price::limit(&config.admission) else {
        return String::new();
    };
    let fit = Fit {
        limit,
        most: config.limits.calls as u64,
        bound: media_bound(config, files),
    };
    let signalling = fit.calls(Price::of_call(None, [None, None]));
    let (media, most) = match config.media.at_nodes {
        true => {
            let calls = signalling.min(calls_of_nodes(config));
            (format!("{calls} calls with media at media nodes"), calls)
        }
        false => {
            let calls = fit.anchored(Price::of_call(Some(paths.sockets()), [None, None]));
            let text = anchored(config, paths, &fit) + &protected(config, paths, &fit);
            (text, calls)
        }
    };
    let through_gateway = config.gateway.as_ref().map_or(String::new(), |_| {
        let calls = match paths.direct_tunnels {
            true => {
                let mut price = Price::of_call(Some(paths.sockets()), [None, None]);
                price += Price::of_tunnel_sides(1, true);
                fit.anchored(price)
            }
            false => (Price::GATEWAY / Price::GATEWAY_SIDE).min(most),
        };
        format!(", {calls} if one side is behind a tunnel of the gateway")
    });
    format!(
        "capacity: {media}{through_gateway}, or {signalling} with media bypass: {} MiB, {} % of a core; beyond that {}\n",
        limit.memory / 1_024,
        limit.processor / 10_000,
        config.admission.status
    )
}

/// Numbers of calls for which there is capacity.
struct Fit {
    /// Of memory and CPU time.
    limit: Price,
    /// Of the configuration.
    most: u64,
    bound: Option<MediaBound>,
}

impl Fit {
    /// Calls of this price, by memory and CPU time.
    fn calls(&self, price: Price) -> u64 {
        self.limit.capacity_for(price).min(self.most)
    }

    /// Calls of this price that need media ports.
    fn anchored(&self, price: Price) -> u64 {
        let bound = self.bound.as_ref().map_or(u64::MAX, |bound| bound.calls);
        self.calls(price).min(bound)
    }
}

/// Calls that the media nodes take together.
fn calls_of_nodes(config: &Config) -> u64 {
    let nodes = config.media_nodes.iter().filter(|node| !node.drain);
    let calls = nodes.map(|node| node.max_calls.map_or(u64::MAX, u64::from));
    calls.fold(0, u64::saturating_add)
}

/// Calls with media anchored here, and the bound that is lower than memory and CPU time.
fn anchored(config: &Config, paths: &MediaPaths, fit: &Fit) -> String {
    let price = |path| Price::of_call(Some(path), [None, None]);
    let sockets = fit.anchored(price(paths.sockets()));
    // The faster path applies to calls between the interfaces that it serves.
    let between = config.interfaces.iter().enumerate().map(|(index, _)| {
        let id = InterfaceId(u16::try_from(index).unwrap_or(u16::MAX));
        paths.between(config, [id, id])
    });
    let served = between.filter(|path| !path.uses_sockets()).count();
    let fast = paths.offload.path;
    let text = match (served, fast.uses_sockets()) {
        (0, _) | (_, true) => format!("{sockets} calls with anchored media"),
        (served, false) => {
            let calls = fit.anchored(price(fast));
            let (name, rest) = match fast {
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
    let largest = [paths.sockets(), fast].map(|path| fit.calls(price(path)));
    let lower = |bound: &&MediaBound| largest.iter().any(|calls| *calls > bound.calls);
    let bounded = fit.bound.as_ref().filter(lower);
    let bounded = bounded.map_or(String::new(), |bound| format!(" (bounded by {})", bound.by));
    text + &bounded
}

/// If a side may use SRTP: the number of calls with one SRTP side, at the price of the most expensive crypto suite.
fn protected(config: &Config, paths: &MediaPaths, fit: &Fit) -> String {
    let sides = config
        .interfaces
        .iter()
        .map(|interface| &interface.security);
    let sides = sides.chain(config.trunks.iter().map(|trunk| &trunk.security));
    let calls = sides
        .filter(|security| matches!(security.srtp, SrtpPolicy::Require | SrtpPolicy::Prefer))
        .map(|security| {
            let mut price = Price::of_call(Some(paths.sockets()), [None, None]);
            price += Price::of_security(security);
            fit.anchored(price)
        })
        .min();
    calls.map_or(String::new(), |calls| {
        format!(", {calls} if one side has SRTP")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str, ports: &str) -> String {
        format!(
            "[[interface]]\nname='{name}'\nlisten='udp:{address}:5060'\nmedia={{ports='{ports}'}}\n"
        )
    }

    fn printed(text: &str, files: u64) -> String {
        let mut config = config::parse(text, "f").expect("configuration");
        config.admission.machine = Some(crate::machine::machine(config.sip.workers));
        line(&config, &MediaPaths::default(), Some(files))
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
        let wanted = "capacity: 204 calls with anchored media (bounded by the limit of 1024 open files of this process), or ";
        assert!(found.starts_with(wanted), "{found}");
    }

    #[test]
    fn bound_above_the_capacity_is_not_named() {
        let found = printed(&interface("out", "127.0.0.1", "6000-32001"), 1_000_000);
        assert!(!found.contains("bounded"), "{found}");
    }

    /// The first number of the line.
    fn calls(line: &str) -> u64 {
        let number = line
            .strip_prefix("capacity: ")
            .and_then(|rest| rest.split(' ').next());
        number
            .and_then(|number| number.parse().ok())
            .expect("a number")
    }

    #[test]
    fn price_of_media_is_not_below_the_measured_cost() {
        let costs = lab::planner::Costs::built_in().expect("costs");
        // Measured at several loads: a packet costs less on a busy thread.
        let packet = costs.curve("packet.none").expect("a cost");
        let ends = packet.points().iter();
        let low = ends.clone().map(|point| point.low).fold(f64::MAX, f64::min);
        let high = ends.map(|point| point.high).fold(0.0, f64::max);
        // 50 packets each way.
        for path in [MediaPath::SharedPortSocket, MediaPath::SocketPerPort] {
            let price = Price::of_media(path).processor as f64;
            assert!(price >= 100.0 * low, "{path:?}: {price} {packet:?}");
            assert!(price <= 200.0 * high, "{path:?}: {price} {packet:?}");
        }
        let text = interface("out", "127.0.0.1", "6000-32001");
        let mut config = config::parse(&text, "f").expect("configuration");
        config.admission.processor = Some(700_000);
        for shared_ports in [false, true] {
            let paths = MediaPaths {
                shared_ports,
                ..MediaPaths::default()
            };
            let promised = calls(&line(&config, &paths, None)) as f64;
            let planned = 700_000.0 / (100.0 * low);
            assert!(promised <= planned, "{promised} {planned}");
        }
    }

    #[test]
    fn direct_media_of_tunnels_is_bounded_by_the_border() {
        let gateway = "[gateway]\nlocal='203.0.113.1'\nkey_file='/k'\n[[gateway.tunnel]]\nname='site'\npeer='203.0.113.2'\nlocal_networks='192.0.2.0/24'\nremote_networks='10.1.0.0/24'\n";
        let text = interface("out", "127.0.0.1", "6000-32001") + gateway;
        let mut config = config::parse(&text, "f").expect("configuration");
        config.admission.processor = Some(700_000);
        let mut calls = |direct_tunnels| {
            let paths = MediaPaths {
                direct_tunnels,
                ..MediaPaths::default()
            };
            let found = line(&config, &paths, None);
            let (before, _) = found.split_once(" if one side is behind").expect("calls");
            let number = before.rsplit(' ').next().expect("number");
            number.parse::<u64>().expect("number")
        };
        let [kernel, direct] = [false, true].map(&mut calls);
        let without = Price::of_call(Some(MediaPath::SocketPerPort), [None, None]).processor;
        assert_eq!(direct, 700_000 / (without + Price::DIRECT_TUNNEL_SIDE));
        assert_eq!(
            kernel,
            (Price::GATEWAY / Price::GATEWAY_SIDE).min(700_000 / without)
        );
    }

    #[test]
    fn media_nodes_bound_the_calls_with_media_there() {
        let node = |name: &str, most: &str| {
            format!("[[media_node]]\nname='{name}'\ncontrol='udp:127.0.0.9:2223'\n{most}\n")
        };
        let border = "[media]\nanchor='nodes'\n[[interface]]\nname='out'\nlisten='udp:127.0.0.1:5060'\nnode_interface='x'\n";
        let found = printed(&format!("{border}{}", node("one", "max_calls=30")), 64);
        let wanted = "capacity: 30 calls with media at media nodes, or ";
        assert!(found.starts_with(wanted), "{found}");
        assert!(!found.contains("anchored"), "{found}");
        // Signalling alone costs as much as media bypass.
        let found = printed(&format!("{border}{}", node("one", "")), 64);
        let bypass = found
            .split(", or ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        assert_eq!(bypass, Some(&*calls(&found).to_string()), "{found}");
        let two =
            node("one", "max_calls=30") + &node("two", "max_calls=12").replace("2223", "2224");
        assert_eq!(calls(&printed(&format!("{border}{two}"), 64)), 42);
    }
}
