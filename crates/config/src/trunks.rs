//! `[[trunk]]`: targets, credentials and registration of a trunk.

use super::address::{self, HostName, ListenAddress};
use super::check::{Sink, cidrs, host, interface_id, optional_seconds, seconds};
use super::raw::*;
use super::*;

pub(super) fn trunk_of(
    raw: &Raw,
    trunk: &RawTrunk,
    index: usize,
    interfaces: &[InterfaceSpec],
    sink: &mut Sink<'_>,
) -> Trunk {
    let path = format!("trunk[{index}]");
    let interface = match (&trunk.interface, raw.interface.len()) {
        (Some(name), _) => interface_id(raw, name, &format!("{path}.interface"), sink),
        (None, 0 | 1) => InterfaceId(0),
        (None, _) => {
            sink.report(
                &path,
                format!(
                    "trunk \"{}\" has no `interface`, and there are several interfaces",
                    trunk.name
                ),
                format!(
                    "add interface = \"{}\"",
                    raw.interface.last().map_or("", |i| i.name.as_str())
                ),
            );
            InterfaceId(0)
        }
    };
    let listen = interfaces
        .get(usize::from(interface.0))
        .map_or(&[][..], |interface| interface.listen.as_slice());
    let targets = targets(trunk, &path, listen, sink);
    let secure = |target: &TargetSpec| match target.transport {
        Some(transport) => transport == Transport::Tls,
        // A resolved target may use TLS if the interface supports it.
        None => {
            target.host.ip().is_none()
                && listen
                    .iter()
                    .any(|listen| listen.transport == Transport::Tls)
        }
    };
    let secure = targets.iter().any(secure);
    let tls = tls::trunk_tls(trunk.tls.as_ref(), secure, &path, sink);
    let domain = trunk
        .domain
        .as_ref()
        .and_then(|text| host(text, &format!("{path}.domain"), sink));
    if let Some(user) = &trunk.from_user
        && (user.is_empty() || user.bytes().any(|b| b <= b' ' || b"<>@\"".contains(&b)))
    {
        sink.report(
            &format!("{path}.from_user"),
            format!("\"{user}\" cannot be the user part of a SIP address"),
            "write a number or a name",
        );
    }
    let register = trunk
        .register
        .as_ref()
        .and_then(|account| carrier(trunk, account, &domain, &targets, &path, sink));
    let inherited = interfaces
        .get(usize::from(interface.0))
        .map(|interface| interface.security.clone())
        .unwrap_or_default();
    let inherited_codecs = interfaces
        .get(usize::from(interface.0))
        .map(|interface| interface.transcoding.clone())
        .unwrap_or_default();
    let written = security::Written {
        srtp: trunk.srtp,
        keying: &trunk.srtp_keying,
        suites: &trunk.srtp_suites,
        ice: trunk.ice,
    };
    Trunk {
        security: security::media_security(&written, &inherited, &path, sink),
        transcoding: codecs::transcoding(
            &trunk.transcode,
            trunk.transcode_when,
            &inherited_codecs,
            &path,
            sink,
        ),
        name: trunk.name.clone(),
        interface,
        sources: cidrs(&trunk.sources, &format!("{path}.sources"), sink),
        credentials: credentials(trunk, &path, sink),
        register,
        targets,
        domain,
        ping_interval: optional_seconds(trunk.ping_interval_s),
        ping_failures: trunk.ping_failures,
        max_calls: trunk.max_calls,
        overload_control: trunk.overload_control,
        rate_limits: trunk.rate_limits,
        answer_timeout: seconds(trunk.answer_timeout_s),
        trusted: trunk.trusted,
        identity: match trunk.identity {
            RawIdentity::Pass => IdentityPassing::Pass,
            RawIdentity::Remove => IdentityPassing::Remove,
        },
        from_user: trunk.from_user.clone(),
        refer: match trunk.refer {
            RawRefer::Pass => Refer::Pass,
            RawRefer::Act => Refer::Act,
        },
        redirect: match trunk.redirect {
            RawRedirect::Pass => Redirect::Pass,
            RawRedirect::Follow => Redirect::Follow,
        },
        tls,
    }
}

fn targets(
    trunk: &RawTrunk,
    path: &str,
    listen: &[ListenAddress],
    sink: &mut Sink<'_>,
) -> Vec<TargetSpec> {
    let base = format!("{path}.target");
    let mut targets = Vec::new();
    if trunk.target.as_slice().is_empty() {
        sink.report(
            &base,
            "`target` is empty",
            "add for example \"udp:192.0.2.1:5060\"",
        );
    }
    for (index, target) in trunk.target.as_slice().iter().enumerate() {
        let mut at = trunk.target.path(&base, index);
        let (text, priority, weight) = match target {
            RawTarget::Short(text) => (text, 0, 1),
            RawTarget::Full(table) => {
                at.push_str(".address");
                (&table.address, table.priority, table.weight)
            }
        };
        let (transport, rest) = match address::split_transport(text) {
            Ok(parts) => parts,
            Err(why) => {
                sink.report(&at, why, "write udp:, tcp: or tls:");
                continue;
            }
        };
        if matches!(transport, Some(Transport::Ws | Transport::Wss)) {
            sink.report(
                &at,
                "a border does not open WebSocket connections",
                "write udp:, tcp: or tls:",
            );
            continue;
        }
        let Some(host) = host(rest, &at, sink) else {
            continue;
        };
        check_target(&host, transport, listen, &at, sink);
        targets.push(TargetSpec {
            host,
            transport,
            priority,
            weight,
        });
    }
    targets
}

/// A target must be reachable from its interface, and must not be the border itself.
fn check_target(
    host: &HostName,
    transport: Option<Transport>,
    listen: &[ListenAddress],
    at: &str,
    sink: &mut Sink<'_>,
) {
    let wanted = transport.unwrap_or(Transport::Udp);
    let usable: Vec<&ListenAddress> = listen
        .iter()
        .filter(|listen| listen.transport == wanted)
        .collect();
    if !listen.is_empty() && usable.is_empty() && (transport.is_some() || host.ip().is_some()) {
        sink.report(
            at,
            format!("the trunk's interface has no {wanted} listener"),
            format!("add \"{wanted}:ADDRESS:PORT\" to `listen` of the interface, or change the transport"),
        );
        return;
    }
    let Some(ip) = host.ip() else {
        return;
    };
    if !usable.is_empty()
        && !usable
            .iter()
            .any(|listen| listen.address.is_ipv4() == ip.is_ipv4())
    {
        sink.report(
            at,
            format!("{ip} and the addresses of its interface are of different address families"),
            "add an address of that family to `listen` of the interface",
        );
    }
    let own = SocketAddr::new(ip, host.port.unwrap_or(address::default_port(wanted)));
    if usable.iter().any(|listen| listen.address == own) {
        sink.report(
            at,
            format!("{own} is an address of this border, so that calls would loop"),
            "write the address of the other system",
        );
    }
}

fn credentials(trunk: &RawTrunk, path: &str, sink: &mut Sink<'_>) -> Option<TrunkCredentials> {
    match (&trunk.username, &trunk.password) {
        (Some(username), Some(password)) => Some(TrunkCredentials {
            username: username.clone(),
            password: password.clone(),
        }),
        (None, None) => None,
        (Some(_), None) => {
            sink.report(
                &format!("{path}.username"),
                "`username` without `password`",
                "add `password`",
            );
            None
        }
        (None, Some(_)) => {
            sink.report(
                &format!("{path}.password"),
                "`password` without `username`",
                "add `username`",
            );
            None
        }
    }
}

fn carrier(
    trunk: &RawTrunk,
    account: &RawCarrier,
    domain: &Option<HostName>,
    targets: &[TargetSpec],
    path: &str,
    sink: &mut Sink<'_>,
) -> Option<CarrierAccount> {
    let at = format!("{path}.register");
    let Some(user) = account.user.clone().or_else(|| trunk.username.clone()) else {
        sink.report(
            &at,
            "the user to register is unknown",
            "add `user` here, or `username` and `password` to the trunk",
        );
        return None;
    };
    let domain = match &account.domain {
        Some(text) => host(text, &format!("{at}.domain"), sink)?,
        None => match domain {
            Some(domain) => domain.clone(),
            None => targets.first()?.host.clone(),
        },
    };
    Some(CarrierAccount {
        contact_user: account.contact_user.clone().unwrap_or_else(|| user.clone()),
        user,
        domain,
        expires: seconds(account.expires_s),
        keep_alive: match account.keep_alive {
            RawKeepAlive::Auto => KeepAlive::Auto,
            RawKeepAlive::Always => KeepAlive::Always,
            RawKeepAlive::Never => KeepAlive::Never,
        },
    })
}
