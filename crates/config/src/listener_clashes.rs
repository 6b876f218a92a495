//! Two listeners of one process at the same address and port, of which the second one could not be opened at the start;
//! and listeners at media ports.

use super::model::Config;
use super::raw::Raw;
use super::sink::Sink;
use std::net::{IpAddr, SocketAddr};

/// A listening address of the file.
struct Listener {
    is_stream: bool,
    address: SocketAddr,
    /// As in messages.
    name: String,
    path: String,
}

/// Reports listeners of interfaces, `[control]`, `[metrics]`, `[console]` and HEP that use an address and port twice.
/// The ng server is a process of its own.
pub(super) fn check(config: &Config, raw: &Raw, sink: &mut Sink<'_>) {
    let mut seen: Vec<Listener> = Vec::new();
    for listener in listeners(config, raw) {
        let clash = seen.iter().find(|other| {
            other.is_stream == listener.is_stream
                && other.address.port() == listener.address.port()
                && same_place(other.address.ip(), listener.address.ip())
        });
        if let Some(other) = clash {
            let line = sink.line(&other.path);
            sink.report(
                &listener.path,
                format!(
                    "{} is already used by {} in line {line}",
                    listener.name, other.name
                ),
                "choose another port or address",
            );
        }
        seen.push(listener);
    }
    for listener in seen.iter().filter(|listener| !listener.is_stream) {
        at_media_ports(listener, config, sink);
    }
}

/// Reports a listener over UDP at a media port of any interface.
fn at_media_ports(listener: &Listener, config: &Config, sink: &mut Sink<'_>) {
    let (ip, port) = (listener.address.ip(), listener.address.port());
    let media = config.interfaces.iter().flat_map(|one| &one.media);
    let mut ranges = media.filter_map(|media| config.media_ranges.get(media.range));
    let at_port = ranges
        .find(|range| same_place(range.address, ip) && (range.first..=range.last).contains(&port));
    if let Some(range) = at_port {
        sink.report(
            &listener.path,
            format!(
                "port {port} of {} is one of the media ports {}-{}",
                listener.name, range.first, range.last
            ),
            "change the listening port or `media.ports`",
        );
    }
}

/// All listeners, those of interfaces first.
fn listeners(config: &Config, raw: &Raw) -> Vec<Listener> {
    let mut all = Vec::new();
    for (index, interface) in config.interfaces.iter().enumerate() {
        let base = format!("interface[{index}].listen");
        let written = raw.interface.get(index).map(|raw| &raw.listen);
        all.extend(interface.listen.iter().enumerate().map(|(at, listen)| {
            let path = written.map_or_else(|| base.clone(), |listen| listen.path(&base, at));
            Listener {
                is_stream: listen.transport.is_reliable(),
                address: listen.address,
                name: listen.to_string(),
                path,
            }
        }));
    }
    let control = config.control.as_ref().and_then(|control| control.listen);
    let metrics = config.metrics.as_ref().and_then(|metrics| metrics.listen);
    let console = config.console.as_ref().map(|console| console.listen);
    let hep = config.store.as_ref().and_then(|store| store.hep.listen);
    for (table, is_stream, address) in [
        ("control", true, control),
        ("metrics", true, metrics),
        ("console", true, console),
        ("store.hep", false, hep),
    ] {
        all.extend(address.map(|address| Listener {
            is_stream,
            address,
            name: format!("{address} of [{table}]"),
            path: format!("{table}.listen"),
        }));
    }
    all
}

/// Whether sockets on these addresses conflict at the same port.
fn same_place(a: IpAddr, b: IpAddr) -> bool {
    a == b || (a.is_ipv4() == b.is_ipv4() && (a.is_unspecified() || b.is_unspecified()))
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    fn mistakes(more: &str) -> Vec<String> {
        let text = format!(
            "[[interface]]\nname=\"a\"\nlisten=[\"udp:127.0.0.1:9060\",\"tcp:127.0.0.1:5060\"]\n{more}\n"
        );
        let mistakes = parse(&text, "f").err().unwrap_or_default();
        mistakes.iter().map(ToString::to_string).collect()
    }

    /// The pages of the console and of the control API have the same address.
    #[test]
    fn listeners_of_all_tables_have_addresses_of_their_own() {
        let control = "[control]\nlisten=\"http:127.0.0.1:8080\"\n";
        let console = "[console]\nlisten=\"127.0.0.1:8080\"\n";
        for (more, expected) in [
            (
                format!("{control}{console}"),
                "f:7:8: 127.0.0.1:8080 of [console] is already used by 127.0.0.1:8080 of [control] in line 5",
            ),
            (
                format!("{control}[metrics]\nlisten=\"127.0.0.1:8080\"\n"),
                "of [metrics] is already used by 127.0.0.1:8080 of [control] in line 5",
            ),
            (
                "[metrics]\nlisten=\"0.0.0.0:5060\"\n".to_owned(),
                "0.0.0.0:5060 of [metrics] is already used by tcp:127.0.0.1:5060 in line 3",
            ),
            (
                "[store]\nfolder=\"/x\"\nhep={listen=\"udp:127.0.0.1\"}\n".to_owned(),
                "of [store.hep] is already used by udp:127.0.0.1:9060 in line 3",
            ),
        ] {
            let found = mistakes(&more);
            assert_eq!(found.len(), 1, "{more}: {found:?}");
            assert!(found.iter().all(|one| one.contains(expected)), "{found:?}");
        }
        let media = "[[interface]]\nname=\"b\"\nlisten=\"udp:127.0.0.1:25060\"\nmedia={ports=\"10000-10999\"}\n";
        let everywhere = "[[interface]]\nname=\"b\"\nlisten=\"udp:0.0.0.0:25060\"\nadvertise=\"x\"\nmedia={address=\"127.0.0.1\"}\n";
        for more in [media, everywhere] {
            let found = mistakes(more);
            let expected = ":25060 is one of the media ports 20000-26999";
            assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
        }
        let others = "[console]\nlisten=\"[::1]:8080\"\n[metrics]\nlisten=\"127.0.0.2:8080\"\n";
        assert_eq!(mistakes(&format!("{control}{others}")), [""; 0]);
        // UDP and TCP have ports of their own.
        assert_eq!(mistakes("[metrics]\nlisten=\"127.0.0.1:9060\"\n"), [""; 0]);
    }
}
