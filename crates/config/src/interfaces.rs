//! `[[interface]]`: listeners, access and media addresses.

use super::address::{self, HostName, ListenAddress};
use super::check::{Sink, cidrs, host, trunk_id};
use super::raw::*;
use super::*;
use std::sync::Arc;

pub(super) fn interface_of(
    raw: &Raw,
    interface: &RawInterface,
    index: usize,
    ranges: &mut Vec<MediaRange>,
    placed: &mut Vec<String>,
    sink: &mut Sink<'_>,
) -> InterfaceSpec {
    let path = format!("interface[{index}]");
    let listen = listen(interface, &format!("{path}.listen"), sink);
    let advertise = interface
        .advertise
        .as_ref()
        .and_then(|text| host(text, &format!("{path}.advertise"), sink));
    if interface.advertise.is_none() && listen.iter().any(|l| l.address.ip().is_unspecified()) {
        sink.report(
            &format!("{path}.listen"),
            "the interface listens on all addresses, so that the address for Via and Contact is unknown",
            "add `advertise` with the address that peers reach, or listen on that address",
        );
    }
    let authenticate = match interface.authenticate {
        RawAuthenticate::None => Authenticate::None,
        RawAuthenticate::Digest => Authenticate::Digest,
        RawAuthenticate::Trunk => Authenticate::Trunk,
    };
    if authenticate == Authenticate::Digest && raw.user.is_empty() {
        sink.report(
            &format!("{path}.authenticate"),
            "`authenticate` is \"digest\", but there is no user",
            "add a [[user]] with name and password, or set authenticate = \"none\"",
        );
    }
    let register = register(raw, interface, &path, sink);
    let trusted = interface.trusted.unwrap_or(interface.kind == RawKind::Core);
    if authenticate == Authenticate::Trunk && !matches!(register, Register::Pass(_)) {
        sink.report(
            &format!("{path}.authenticate"),
            "`authenticate` is \"trunk\", but registrations are not forwarded to a trunk",
            "set register = \"pass:TRUNK\", or authenticate = \"digest\"",
        );
    }
    InterfaceSpec {
        name: interface.name.clone(),
        kind: match interface.kind {
            RawKind::Access => InterfaceKind::Access,
            RawKind::Core => InterfaceKind::Core,
        },
        trusted,
        hides: match interface.headers {
            None => !trusted,
            Some(RawHeaders::Known) => true,
            Some(RawHeaders::All) => false,
        },
        pass_headers: pass_headers(interface, trusted, &path, sink),
        allow: cidrs(&interface.allow, &format!("{path}.allow"), sink),
        authenticate,
        rate_limits: interface.rate_limits,
        register,
        contacts_by_address: interface.contacts == RawContacts::Address,
        subscribe: interface.subscribe == RawPassing::Pass,
        refer: interface.refer == RawPassing::Pass,
        assert_registered: interface.assert == RawAssert::Registered,
        gate_early_media: interface.early_media == RawEarlyMedia::Gate,
        charging_vector: interface.charging_vector == RawCharging::Generate,
        media: media_addresses(&interface.media, &listen, &path, ranges, placed, sink),
        node_interface: interface.node_interface.clone(),
        tls: tls::listen_tls(interface.tls.as_ref(), &listen, &path, sink),
        security: security::media_security(
            &security::Written {
                srtp: interface.srtp,
                keying: &interface.srtp_keying,
                suites: &interface.srtp_suites,
                ice: interface.ice,
            },
            &Arc::default(),
            &path,
            sink,
        ),
        transcoding: codecs::transcoding(
            &interface.transcode,
            interface.transcode_when,
            &Arc::default(),
            &path,
            sink,
        ),
        websocket: tls::websocket(interface.websocket.as_ref(), &listen, &path, sink),
        listen,
        advertise,
    }
}

/// Names of headers that topology hiding passes unchanged.
fn pass_headers(
    interface: &RawInterface,
    trusted: bool,
    path: &str,
    sink: &mut Sink<'_>,
) -> Vec<Box<str>> {
    let known = match interface.headers {
        None => !trusted,
        Some(headers) => headers == RawHeaders::Known,
    };
    let names = &interface.pass_headers;
    if !known && !names.as_slice().is_empty() {
        sink.report(
            &format!("{path}.pass_headers"),
            "`pass_headers` has no effect: `headers` is \"all\"",
            "set headers = \"known\", or remove `pass_headers`",
        );
    }
    for (index, name) in names.as_slice().iter().enumerate() {
        let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"-.!%*_+`'~".contains(byte);
        let problem = match name.as_bytes() {
            [] => Some("is not a header name"),
            name if !name.iter().all(token) => Some("is not a header name"),
            name if !super::headers::may_be_listed(name) => {
                Some("is written by the border itself, or subject to the trust domain")
            }
            _ => None,
        };
        if let Some(problem) = problem {
            sink.report(
                &names.path(&format!("{path}.pass_headers"), index),
                format!("\"{name}\" {problem}"),
                "write names such as \"X-Account\"; docs/topology-hiding.md lists the other headers",
            );
        }
    }
    names
        .as_slice()
        .iter()
        .map(|name| name.as_str().into())
        .collect()
}

fn listen(interface: &RawInterface, path: &str, sink: &mut Sink<'_>) -> Vec<ListenAddress> {
    let mut listen = Vec::new();
    if interface.listen.as_slice().is_empty() {
        sink.report(
            path,
            "`listen` is empty",
            "add for example \"udp:192.0.2.1:5060\"",
        );
    }
    for (index, text) in interface.listen.as_slice().iter().enumerate() {
        let at = interface.listen.path(path, index);
        let (transport, rest) = match address::split_transport(text) {
            Ok((Some(transport), rest)) => (transport, rest),
            Ok((None, _)) => {
                sink.report(
                    &at,
                    format!("\"{text}\" has no transport"),
                    format!("write \"udp:{text}\" or \"tcp:{text}\""),
                );
                continue;
            }
            Err(why) => {
                sink.report(&at, why, "write udp:, tcp:, tls:, ws: or wss:");
                continue;
            }
        };
        let parsed = HostName::parse(rest);
        match parsed
            .as_ref()
            .and_then(|host| Some((host.ip()?, host.port)))
        {
            Some((ip, port)) => {
                let port = port.unwrap_or(address::default_port(transport));
                let address = SocketAddr::new(ip, port);
                listen.push(ListenAddress { transport, address });
            }
            None if parsed.is_some() => sink.report(
                &at,
                format!("\"{rest}\" is a name; interfaces listen on IP addresses"),
                "write the address in `listen` and the name in `advertise`",
            ),
            None => sink.report(
                &at,
                format!("\"{rest}\" is not an address and port"),
                "write udp:ADDRESS:PORT with a port from 1 to 65535, IPv6 as udp:[ADDRESS]:PORT",
            ),
        }
    }
    listen
}

fn register(raw: &Raw, interface: &RawInterface, path: &str, sink: &mut Sink<'_>) -> Register {
    let at = format!("{path}.register");
    match interface.register.as_deref() {
        None if raw.user.is_empty() => Register::Refuse,
        None => Register::Local,
        Some("local") => Register::Local,
        Some("refuse") => Register::Refuse,
        Some(text) => match text.strip_prefix("pass:") {
            Some(name) => Register::Pass(trunk_id(raw, name, &at, sink)),
            None => {
                let remedy = "write \"local\", \"pass:TRUNK\" or \"refuse\"";
                sink.report(
                    &at,
                    format!("\"{text}\" is not a value of `register`"),
                    remedy,
                );
                Register::Refuse
            }
        },
    }
}

/// Default media ports. Those of a border, an ng server and the test lab (10000-19999) on one host do not overlap, and
/// are outside of the ephemeral range of the kernel.
const BORDER_PORTS: &str = "20000-26999";
const NODE_PORTS: &str = "27000-32767";

pub(super) fn media_addresses(
    media: &OneOrMany<RawMediaAddress>,
    listen: &[ListenAddress],
    path: &str,
    ranges: &mut Vec<MediaRange>,
    placed: &mut Vec<String>,
    sink: &mut Sink<'_>,
) -> Vec<MediaAddress> {
    let base = format!("{path}.media");
    let default = [RawMediaAddress {
        address: None,
        advertise: None,
        ports: None,
    }];
    let (written, entries): (bool, &[RawMediaAddress]) = match media.as_slice() {
        [] => (false, &default),
        entries => (true, entries),
    };
    let mut addresses: Vec<MediaAddress> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let at = if written {
            media.path(&base, index)
        } else {
            path.to_owned()
        };
        let Some(address) = media_address(entry, listen, &at, sink) else {
            continue;
        };
        let written = entry.ports.as_deref();
        let ports = written.unwrap_or(match path.starts_with("ng_server.") {
            true => NODE_PORTS,
            false => BORDER_PORTS,
        });
        let Some((first, last)) = media_ports(ports, &format!("{at}.ports"), sink) else {
            continue;
        };
        if addresses
            .iter()
            .any(|other| other.address.is_ipv4() == address.is_ipv4())
        {
            sink.report(
                &at,
                "a second media address of the same address family",
                "keep one for IPv4 and one for IPv6",
            );
            continue;
        }
        let range = MediaRange {
            address,
            first,
            last,
        };
        let Some(range) = place_range(range, &at, ranges, placed, sink) else {
            continue;
        };
        let advertise = entry.advertise.as_ref().and_then(|text| {
            let at = format!("{at}.advertise");
            let ip = ip_address(text, &at, sink)?;
            if ip.is_ipv4() != address.is_ipv4() {
                sink.report(
                    &at,
                    format!("{ip} and {address} are of different address families"),
                    "advertise an address of the same family",
                );
            }
            Some(ip)
        });
        addresses.push(MediaAddress {
            range,
            address,
            advertise,
        });
    }
    for listen in listen {
        let ports = addresses.iter().filter_map(|media| ranges.get(media.range));
        for range in ports {
            let inside = (range.first..=range.last).contains(&listen.address.port());
            if listen.transport == Transport::Udp && range.address == listen.address.ip() && inside
            {
                sink.report(
                    &format!("{path}.listen"),
                    format!(
                        "port {} of udp:{} is one of the media ports {}-{}",
                        listen.address.port(),
                        listen.address.ip(),
                        range.first,
                        range.last
                    ),
                    "change the listening port or `media.ports`",
                );
            }
        }
    }
    addresses
}

fn media_address(
    entry: &RawMediaAddress,
    listen: &[ListenAddress],
    at: &str,
    sink: &mut Sink<'_>,
) -> Option<IpAddr> {
    if let Some(text) = &entry.address {
        let at = format!("{at}.address");
        let ip = ip_address(text, &at, sink)?;
        if ip.is_unspecified() {
            sink.report(
                &at,
                "media needs one address, not all addresses",
                "write the local address; behind NAT, add the public one as `advertise`",
            );
            return None;
        }
        return Some(ip);
    }
    // An unreadable `listen` was reported already; an ng server has its own addresses.

    let node = at.starts_with("ng_server.");
    let ip = match listen.first() {
        Some(listen) => listen.address.ip(),
        None if node => IpAddr::from([0u8; 4]),
        None => return None,
    };
    if ip.is_unspecified() {
        sink.report(
            at,
            "the media address is unknown",
            "add media = { address = \"ADDRESS\" }",
        );
        return None;
    }
    Some(ip)
}

fn ip_address(text: &str, at: &str, sink: &mut Sink<'_>) -> Option<IpAddr> {
    let ip = text.trim_matches(['[', ']']).parse().ok();
    if ip.is_none() {
        sink.report(
            at,
            format!("\"{text}\" is not an IP address"),
            "write an address such as \"192.0.2.1\" or \"2001:db8::1\", without a port",
        );
    }
    ip
}

fn media_ports(text: &str, at: &str, sink: &mut Sink<'_>) -> Option<(u16, u16)> {
    let remedy =
        "write FIRST-LAST with an even first and an odd last port, for example \"20000-26999\"";
    let (first, last) = match address::port_range(text) {
        Ok(range) => range,
        Err(why) => {
            sink.report(at, why, remedy);
            return None;
        }
    };
    if first > last {
        sink.report(
            at,
            format!("the port range {first}-{last} is empty"),
            remedy,
        );
        return None;
    }
    if first % 2 == 1 || last % 2 == 0 {
        sink.report(
            at,
            format!("{first}-{last} does not consist of pairs of an even and an odd port"),
            format!("write \"{}-{}\"", first & !1, last | 1),
        );
        return None;
    }
    if last - first < 3 {
        sink.report(
            at,
            format!("{first}-{last} is too small: a call uses one pair on each side"),
            "use at least four ports",
        );
        return None;
    }
    if first < 1024 {
        sink.report(
            at,
            format!("{first}-{last} includes ports below 1024, which require privileges"),
            "begin at 1024 or higher",
        );
        return None;
    }
    Some((first, last))
}

/// The index of a range. Ranges that overlap but differ are refused.
fn place_range(
    range: MediaRange,
    at: &str,
    ranges: &mut Vec<MediaRange>,
    placed: &mut Vec<String>,
    sink: &mut Sink<'_>,
) -> Option<usize> {
    if let Some(known) = ranges.iter().position(|known| *known == range) {
        return Some(known);
    }
    let clash = ranges.iter().position(|known| {
        known.address == range.address && known.first <= range.last && range.first <= known.last
    });
    if let Some(clash) = clash {
        let other = ranges[clash];
        let line = placed.get(clash).map_or(1, |path| sink.line(path));
        sink.report(
            at,
            format!(
                "media ports {}-{} of {} overlap with {}-{} in line {line}",
                range.first, range.last, range.address, other.first, other.last
            ),
            "use the same range for both interfaces, which then share it, or separate ranges",
        );
        return None;
    }
    ranges.push(range);
    placed.push(at.to_owned());
    Some(ranges.len() - 1)
}

pub(super) fn listening_clashes(interfaces: &[InterfaceSpec], raw: &Raw, sink: &mut Sink<'_>) {
    let mut seen: Vec<(ListenAddress, String)> = Vec::new();
    for (index, interface) in interfaces.iter().enumerate() {
        for (place, listen) in interface.listen.iter().enumerate() {
            let base = format!("interface[{index}].listen");
            let at = raw
                .interface
                .get(index)
                .map_or(base.clone(), |raw| raw.listen.path(&base, place));
            let clash = seen.iter().find(|(other, _)| {
                other.transport.is_reliable() == listen.transport.is_reliable()
                    && other.address.port() == listen.address.port()
                    && same_place(other.address.ip(), listen.address.ip())
            });
            if let Some((other, path)) = clash {
                let line = sink.line(path);
                sink.report(
                    &at,
                    format!("{listen} is already used by {other} in line {line}"),
                    "choose another port or address",
                );
            }
            seen.push((*listen, at));
        }
    }
}

/// Whether sockets on these addresses conflict at the same port.
fn same_place(a: IpAddr, b: IpAddr) -> bool {
    a == b || (a.is_ipv4() == b.is_ipv4() && (a.is_unspecified() || b.is_unspecified()))
}
