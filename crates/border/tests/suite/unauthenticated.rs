//! Every example and the packaged configuration: an unauthenticated source reaches no trunk and no phone, unless the
//! file permits it explicitly: `authenticate = "trunk"` names the trunk that is reached, and authenticates.

use border::border::Border;
use config::{Authenticate, Config, InterfaceKind, Register, parse};
use engine::{ConnectionId, Datagram, Engine, Entropy, Input, Output, SocketId, Time, Transport};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const STRANGER: &str = "203.0.113.99:5060";
const INSIDE: &str = "10.66.66.66:5060";
const METHODS: [&str; 8] = [
    "INVITE",
    "REGISTER",
    "MESSAGE",
    "SUBSCRIBE",
    "REFER",
    "OPTIONS",
    "NOTIFY",
    "PUBLISH",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The examples and the packaged file by name.
fn files() -> Vec<(String, String)> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(root().join("examples"))
        .expect("examples")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "toml"))
        .collect();
    paths.sort();
    assert!(paths.len() >= 15, "{paths:?}");
    paths.push(root().join("packaging/hornwork.toml"));
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("file");
        (path.display().to_string(), text)
    };
    paths.into_iter().map(read).collect()
}

/// Datagrams and stream data that the border sent, by destination.
type Sent = Vec<(SocketAddr, String)>;

struct Rig {
    border: Border,
    sockets: HashMap<(SocketAddr, Transport), SocketId>,
    /// Connections and their peers.
    peers: HashMap<ConnectionId, SocketAddr>,
    opened: u64,
}

impl Rig {
    fn new(config: &Config) -> Rig {
        let border = Border::new(config.clone(), Entropy::from_number(7));
        let mut rig = Rig {
            border,
            sockets: HashMap::new(),
            peers: HashMap::new(),
            opened: 0,
        };
        // Pings and registrations of the border are sent before the test's requests.
        for _ in 0..4 {
            rig.border.handle(Input::Timeout, NOW);
            rig.drain(config);
        }
        rig
    }

    fn drain(&mut self, config: &Config) -> Sent {
        let mut sent = Vec::new();
        let mut opened = Vec::new();
        while let Some(output) = self.border.next_output() {
            match output {
                Output::OpenSocket { socket, local, .. } => opened.push((socket, local)),
                Output::Datagram {
                    destination, bytes, ..
                } => sent.push((destination, String::from_utf8_lossy(bytes).into_owned())),
                Output::Stream { connection, bytes } => {
                    let peer = self.peers.get(&connection).copied();
                    let peer = peer.unwrap_or_else(|| "0.0.0.0:1".parse().unwrap());
                    sent.push((peer, String::from_utf8_lossy(bytes).into_owned()));
                }
                Output::Connect {
                    connection, remote, ..
                } => {
                    self.peers.insert(connection, remote);
                }
                _ => {}
            }
        }
        for (socket, local) in opened {
            for interface in &config.interfaces {
                for listen in interface.listen.iter().filter(|l| l.address == local) {
                    self.sockets
                        .entry((local, listen.transport))
                        .or_insert(socket);
                }
            }
            self.border.handle(Input::Opened { socket, local }, NOW);
            sent.extend(self.drain(config));
        }
        sent
    }

    fn send(
        &mut self,
        config: &Config,
        at: (SocketAddr, Transport),
        from: SocketAddr,
        text: &str,
    ) -> Sent {
        let Some(&socket) = self.sockets.get(&at) else {
            panic!("no socket at {at:?}");
        };
        if at.1 == Transport::Udp {
            let mut bytes = text.as_bytes().to_vec();
            let datagram = Datagram {
                socket,
                source: from,
                arrived: NOW,
                bytes: &mut bytes,
            };
            self.border.handle(Input::Datagram(datagram), NOW);
            return self.drain(config);
        }
        self.opened += 1;
        let connection = ConnectionId(ConnectionId::ACCEPTED | self.opened);
        self.peers.insert(connection, from);
        let accepted = Input::Accepted {
            connection,
            socket,
            local: at.0,
            remote: from,
        };
        self.border.handle(accepted, NOW);
        let bytes = text.as_bytes();
        self.border.handle(Input::Stream { connection, bytes }, NOW);
        self.drain(config)
    }
}

const NOW: Time = Time(1_000_000_000);

fn request(method: &str, user: &str, from: &str, transport: Transport, number: usize) -> String {
    let via = match transport {
        Transport::Udp => "UDP",
        Transport::Tcp => "TCP",
        Transport::Tls => "TLS",
        Transport::Ws => "WS",
        Transport::Wss => "WSS",
    };
    let to = match method {
        "REGISTER" => "sip:border.example".to_owned(),
        _ if user.starts_with("urn:") => user.to_owned(),
        _ => format!("sip:{user}@border.example"),
    };
    let extra = match method {
        "SUBSCRIBE" => "Event: dialog\r\nExpires: 600\r\n",
        "NOTIFY" => "Event: dialog\r\nSubscription-State: active\r\n",
        "PUBLISH" => "Event: presence\r\nExpires: 600\r\n",
        "REFER" => "Refer-To: <sip:00900@border.example>\r\n",
        "REGISTER" => "Expires: 600\r\n",
        _ => "",
    };
    let target = if user.starts_with("urn:") {
        user.to_owned()
    } else {
        format!("sip:{user}@border.example")
    };
    format!(
        "{method} {to} SIP/2.0\r\nVia: SIP/2.0/{via} {from};branch=z9hG4bK{number};rport\r\nMax-Forwards: 70\r\n\
        From: <sip:{user}@border.example>;tag=t{number}\r\nTo: <{target}>\r\nCall-ID: c{number}@stranger\r\n\
        CSeq: 1 {method}\r\nContact: <sip:{user}@{from}>\r\n{extra}Content-Length: 0\r\n\r\n"
    )
}

/// Destinations that unauthenticated sources may reach on this interface: the trunk that authenticates.
fn consented(config: &Config, index: usize) -> Vec<SocketAddr> {
    let interface = &config.interfaces[index];
    let Register::Pass(trunk) = interface.register else {
        return Vec::new();
    };
    if interface.authenticate != Authenticate::Trunk {
        return Vec::new();
    }
    let targets = &config.trunk(trunk).expect("trunk").targets;
    let direct = targets.iter().filter_map(|target| target.direct());
    direct.map(|(address, _)| address).collect()
}

/// Registers a phone as 1000 on every interface that relays registrations; the core accepts it.
fn register_phone(rig: &mut Rig, config: &Config) {
    for (index, interface) in config.interfaces.iter().enumerate() {
        let core = consented(config, index);
        let Some(listen) = interface.listen.first().filter(|_| !core.is_empty()) else {
            continue;
        };
        // From the networks of the interface, if it lists any.
        let phone: SocketAddr = match interface.allow.is_empty() {
            true => "192.0.2.77:5062".parse().unwrap(),
            false => "127.0.0.77:5062".parse().unwrap(),
        };
        let transport = listen.transport;
        let text = request(
            "REGISTER",
            "1000",
            &phone.to_string(),
            transport,
            9_000 + index,
        );
        let sent = rig.send(config, (listen.address, transport), phone, &text);
        let (to, forwarded) = sent
            .iter()
            .find(|(_, text)| text.starts_with("REGISTER "))
            .unwrap_or_else(|| panic!("not passed on: {sent:?}"));
        assert!(core.contains(to));
        let answer: String = forwarded
            .split("\r\n")
            .filter(|line| {
                let kept = ["Via:", "From:", "Call-ID:", "CSeq:", "Contact:"];
                kept.iter().any(|name| line.starts_with(name))
            })
            .map(|line| format!("{line}\r\n"))
            .collect();
        let to_line = forwarded
            .split("\r\n")
            .find(|line| line.starts_with("To:"))
            .expect("To");
        let answer =
            format!("SIP/2.0 200 OK\r\n{answer}{to_line};tag=core\r\nContent-Length: 0\r\n\r\n");
        let from_core = config
            .interfaces
            .iter()
            .flat_map(|interface| &interface.listen)
            .find(|listen| {
                listen.transport == Transport::Udp && {
                    let via = forwarded
                        .split("\r\n")
                        .find(|line| line.starts_with("Via:"));
                    via.is_some_and(|via| via.contains(&listen.address.to_string()))
                }
            })
            .expect("own address")
            .address;
        let sent = rig.send(config, (from_core, Transport::Udp), *to, &answer);
        assert!(
            sent.iter()
                .any(|(to, text)| *to == phone && text.starts_with("SIP/2.0 200")),
            "{sent:?}"
        );
    }
}

#[test]
fn unauthenticated_source_reaches_no_target() {
    let mut asked = 0;
    for (name, text) in files() {
        let config = parse(&text, &name).expect("configuration");
        let mut rig = Rig::new(&config);
        register_phone(&mut rig, &config);
        let mut number = 0;
        for (index, interface) in config.interfaces.iter().enumerate() {
            let consented = consented(&config, index);
            for listen in &interface.listen {
                let sources = match interface.kind {
                    InterfaceKind::Access => vec![STRANGER],
                    InterfaceKind::Core => vec![STRANGER, INSIDE],
                };
                for source in sources {
                    for method in METHODS {
                        for user in ["1000", "800", "alice", "030123", "+4930123"] {
                            number += 1;
                            let transport = listen.transport;
                            let text = request(method, user, source, transport, number);
                            let at = (listen.address, transport);
                            let source: SocketAddr = source.parse().unwrap();
                            let sent = rig.send(&config, at, source, &text);
                            asked += 1;
                            for (to, said) in &sent {
                                let line = said.lines().next().unwrap_or_default();
                                let what =
                                    format!("{name}: {method} {user} at {listen}: {to} {line}");
                                if *to == source {
                                    let taken =
                                        line.starts_with("SIP/2.0 2") && method != "OPTIONS";
                                    assert!(!taken, "answered: {what}");
                                    continue;
                                }
                                assert!(consented.contains(to), "reached: {what}");
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(asked > 1_000, "{asked}");
}

/// The check gives no warning beyond the explicit permissions in the files.
#[test]
fn no_example_permits_unauthenticated_calls() {
    for (name, text) in files() {
        let config = parse(&text, &name).expect("configuration");
        let warnings = config.warnings();
        assert!(warnings.is_empty(), "{name}: {warnings:?}");
        let renamed = config.renamed_keys;
        assert!(renamed.is_empty(), "{name}: {renamed:?}");
    }
}

/// Emergency calls are routed as configured, also from unregistered phones.
#[test]
fn unauthenticated_emergency_call_is_routed() {
    let text = std::fs::read_to_string(root().join("examples/services.toml")).expect("example");
    let config = parse(&text, "services.toml").expect("configuration");
    let mut rig = Rig::new(&config);
    let at = ("192.0.2.10:5060".parse().unwrap(), Transport::Udp);
    let stranger: SocketAddr = STRANGER.parse().unwrap();
    let invite = request("INVITE", "urn:service:sos", STRANGER, Transport::Udp, 1);
    let sent = rig.send(&config, at, stranger, &invite);
    let center: SocketAddr = "10.0.0.112:5060".parse().unwrap();
    assert!(
        sent.iter()
            .any(|(to, text)| *to == center && text.starts_with("INVITE sip:112@")),
        "{sent:?}"
    );
}

/// `authenticate = "trunk"` on a core interface: sources that are not registered reach the trunk that authenticates,
/// and nothing else.
#[test]
fn stranger_on_a_core_interface_reaches_the_authenticating_trunk_alone() {
    let text = "[[interface]]\nname='phones'\nkind='core'\nlisten='udp:192.0.2.1:5060'\nregister='pass:pbx'\nauthenticate='trunk'\n\
        [[interface]]\nname='in'\nkind='core'\nlisten='udp:198.51.100.1:5060'\n\
        [[interface]]\nname='home'\nlisten='udp:192.0.2.2:5060'\nregister='local'\nauthenticate='digest'\n\
        [[trunk]]\nname='pbx'\ninterface='in'\ntarget='udp:10.2.0.1:5060'\n\
        [[trunk]]\nname='carrier'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\n\
        [[user]]\nname='2000'\npassword='x'\n\
        [[conference]]\nname='c'\nnumber='800'\n\
        [[route]]\nto={prefix='00'}\ntrunk='carrier'\n\
        [[route]]\nto={prefix='1'}\nregistered=true\n";
    let config = parse(text, "core.toml").expect("configuration");
    let mut rig = Rig::new(&config);
    register_phone(&mut rig, &config);
    let at = ("192.0.2.1:5060".parse().unwrap(), Transport::Udp);
    let pbx: SocketAddr = "10.2.0.1:5060".parse().unwrap();
    let stranger: SocketAddr = STRANGER.parse().unwrap();
    for (number, user) in ["00491234", "1000", "800"].into_iter().enumerate() {
        for (source, method) in [(STRANGER, "INVITE"), (STRANGER, "MESSAGE")] {
            let number = 2 * number + usize::from(method == "MESSAGE");
            let text = request(method, user, source, Transport::Udp, number)
                .replace("From: <sip:", "From: <sip:9");
            let sent = rig.send(&config, at, stranger, &text);
            assert!(sent.iter().any(|(to, _)| *to == pbx), "{user}: {sent:?}");
            for (to, said) in &sent {
                let taken = *to == stranger && said.starts_with("SIP/2.0 2");
                assert!(!taken && (*to == pbx || *to == stranger), "{sent:?}");
            }
        }
    }
    // The phone is authenticated by its registration.
    let phone = "192.0.2.77:5062";
    let text = request("INVITE", "00491234", phone, Transport::Udp, 99)
        .replace("From: <sip:00491234", "From: <sip:1000");
    let sent = rig.send(&config, at, phone.parse().unwrap(), &text);
    let carrier: SocketAddr = "10.2.0.2:5060".parse().unwrap();
    assert!(sent.iter().any(|(to, _)| *to == carrier), "{sent:?}");
}

/// `authenticate = "digest"`: an INVITE without credentials is routed by routes with `unauthenticated`, and by nothing
/// else: no other route, no header rule, no conference, no Replaces.
#[test]
fn call_without_credentials_takes_routes_that_permit_it_where_digest_is_required() {
    let text = "[[interface]]\nname='phones'\nlisten='udp:192.0.2.1:5060'\nauthenticate='digest'\nregister='local'\n\
        [[interface]]\nname='in'\nkind='core'\nlisten='udp:198.51.100.1:5060'\n\
        [[trunk]]\nname='psap'\ninterface='in'\ntarget='udp:10.2.0.1:5060'\n\
        [[trunk]]\nname='carrier'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\n\
        [[user]]\nname='2000'\npassword='x'\n\
        [[conference]]\nname='c'\nnumber='800'\n\
        [[rules]]\nkind='access'\ndirection='in'\nmethod='INVITE'\nwhen='uri.user == \"113\"'\ndo=[{route='carrier'}]\n\
        [[route]]\nto={urn='urn:service:sos'}\ntrunk='psap'\nunauthenticated=true\n\
        [[route]]\nto={user=['112','113','800']}\ninterface='phones'\ntrunk='psap'\nunauthenticated=true\n\
        [[route]]\ntrunk='carrier'\n";
    let config = parse(text, "digest.toml").expect("configuration");
    let mut rig = Rig::new(&config);
    let at = ("192.0.2.1:5060".parse().unwrap(), Transport::Udp);
    let stranger: SocketAddr = STRANGER.parse().unwrap();
    let psap: SocketAddr = "10.2.0.1:5060".parse().unwrap();
    let replaces = "Replaces: a@b;to-tag=1;from-tag=2\r\nContent-Length";
    for (number, (user, method, extra, routed)) in [
        ("112", "INVITE", "", true),
        ("urn:service:sos", "INVITE", "", true),
        ("113", "INVITE", "", true),
        ("800", "INVITE", "", true),
        ("004912", "INVITE", "", false),
        ("2000", "INVITE", "", false),
        ("112", "MESSAGE", "", false),
        ("112", "INVITE", replaces, false),
        (
            "112",
            "INVITE",
            "Authorization: Digest x=y\r\nContent-Length",
            false,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut invite = request(method, user, STRANGER, Transport::Udp, 100 + number);
        if !extra.is_empty() {
            invite = invite.replace("Content-Length", extra);
        }
        let sent = rig.send(&config, at, stranger, &invite);
        let reached: Vec<&SocketAddr> = sent
            .iter()
            .filter(|(_, text)| !text.starts_with("SIP/2.0"))
            .map(|(to, _)| to)
            .collect();
        let wanted: Vec<&SocketAddr> = routed.then_some(&psap).into_iter().collect();
        assert_eq!(reached, wanted, "{user} {method} {extra}: {sent:?}");
        let refused = |code: &str| {
            let mut sent = sent.iter();
            sent.any(|(to, text)| *to == stranger && text.starts_with(&format!("SIP/2.0 {code}")))
        };
        assert_eq!(refused("4"), !routed, "{user} {method} {extra}: {sent:?}");
    }
}

/// The address of a trunk's name precedes a network of another trunk that contains it, once the name is located.
#[test]
fn located_address_of_a_trunk_precedes_the_network_of_another() {
    let text = "[[interface]]\nname='out'\nlisten='udp:192.0.2.1:5060'\n\
        [[interface]]\nname='in'\nkind='core'\nlisten='udp:198.51.100.1:5060'\n\
        [[trunk]]\nname='wide'\ninterface='out'\ntarget='udp:203.0.113.10:5060'\nsources='203.0.113.0/24'\n\
        [[trunk]]\nname='named'\ninterface='out'\ntarget='udp:carrier.example:5060'\n\
        [[trunk]]\nname='first'\ninterface='in'\ntarget='udp:10.2.0.1:5060'\n\
        [[trunk]]\nname='second'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\n\
        [[route]]\nfrom_trunk='wide'\ntrunk='first'\n\
        [[route]]\nfrom_trunk='named'\ntrunk='second'\n\
        [[route]]\nfrom_trunk='first'\ntrunk='named'\n";
    let mut config = parse(text, "named.toml").expect("configuration");
    let carrier: SocketAddr = "203.0.113.20:5060".parse().unwrap();
    config.dns.hosts = vec![("carrier.example".to_owned(), carrier.ip())];
    let mut rig = Rig::new(&config);
    let outside = ("192.0.2.1:5060".parse().unwrap(), Transport::Udp);
    let inside = ("198.51.100.1:5060".parse().unwrap(), Transport::Udp);
    let first: SocketAddr = "10.2.0.1:5060".parse().unwrap();
    let second: SocketAddr = "10.2.0.2:5060".parse().unwrap();
    let reached = |sent: &Sent, to: SocketAddr| {
        let mut sent = sent.iter();
        sent.any(|(at, text)| *at == to && text.starts_with("INVITE "))
    };
    let call = |number| request("INVITE", "100", "203.0.113.20:5060", Transport::Udp, number);
    let sent = rig.send(&config, outside, carrier, &call(1));
    assert!(reached(&sent, first), "by the network: {sent:?}");
    let sent = rig.send(&config, inside, first, &call(2));
    assert!(reached(&sent, carrier), "{sent:?}");
    let sent = rig.send(&config, outside, carrier, &call(3));
    assert!(reached(&sent, second), "by the name: {sent:?}");
}

/// Two accounts at one carrier: the trunk that has the source in `sources` stays that of its calls once the name is
/// located, whatever the order of the file.
#[test]
fn trunk_with_name_and_network_precedes_one_with_the_name_alone() {
    let text = "[[interface]]\nname='out'\nlisten='udp:192.0.2.1:5060'\n\
        [[interface]]\nname='in'\nkind='core'\nlisten='udp:198.51.100.1:5060'\n\
        [[trunk]]\nname='fax'\ninterface='out'\ntarget='udp:carrier.example:5060'\n\
        [[trunk]]\nname='main'\ninterface='out'\ntarget='udp:carrier.example:5060'\nsources='203.0.113.0/24'\n\
        [[trunk]]\nname='first'\ninterface='in'\ntarget='udp:10.2.0.1:5060'\n\
        [[trunk]]\nname='second'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\n\
        [[route]]\nfrom_trunk='main'\ntrunk='first'\n\
        [[route]]\nfrom_trunk='fax'\ntrunk='second'\n\
        [[route]]\nfrom_trunk='first'\ntrunk='main'\n\
        [[route]]\nfrom_trunk='second'\ntrunk='fax'\n";
    let mut config = parse(text, "twins.toml").expect("configuration");
    let carrier: SocketAddr = "203.0.113.20:5060".parse().unwrap();
    config.dns.hosts = vec![("carrier.example".to_owned(), carrier.ip())];
    let mut rig = Rig::new(&config);
    let outside = ("192.0.2.1:5060".parse().unwrap(), Transport::Udp);
    let inside = ("198.51.100.1:5060".parse().unwrap(), Transport::Udp);
    let [first, second] = ["10.2.0.1:5060", "10.2.0.2:5060"].map(|at| at.parse().unwrap());
    let reached = |sent: &Sent, to: SocketAddr| {
        let mut sent = sent.iter();
        sent.any(|(at, text)| *at == to && text.starts_with("INVITE "))
    };
    let call = |number| request("INVITE", "100", "203.0.113.20:5060", Transport::Udp, number);
    let sent = rig.send(&config, outside, carrier, &call(1));
    assert!(reached(&sent, first), "before: {sent:?}");
    // Both names are located by calls to them.
    for (number, (at, peer)) in [("10.2.0.1:5060", first), ("10.2.0.2:5060", second)]
        .into_iter()
        .enumerate()
    {
        let text = request("INVITE", "200", at, Transport::Udp, 2 + number);
        let sent = rig.send(&config, inside, peer, &text);
        assert!(reached(&sent, carrier), "{sent:?}");
    }
    let sent = rig.send(&config, outside, carrier, &call(4));
    assert!(reached(&sent, first), "afterwards: {sent:?}");
}
