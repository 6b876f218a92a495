//! Calls of seven messages over any transport, for `make bench`: Debian's SIPp has no TLS.
//!
//! `transport_calls certificates FOLDER` writes an authority and certificates;
//! `transport_calls uas TRANSPORT BIND FOLDER` answers; `transport_calls uac TRANSPORT BIND TARGET RATE TOTAL FOLDER`
//! calls, hangs up, and prints how many calls succeeded.

use engine::{Deadline, Engine, Input, Limits, Output, SocketId, SocketKind, Time, Transport};
use net::tls::{
    Anchors, ClientAuth, ClientSettings, Identity, MinimumVersion, Security, ServerSettings,
};
use net::{Clock, Driver, DriverConfig};
use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use sip::{
    Endpoint, EndpointConfig, Flow, Handler, Indication, Invite, ListenerConfig, ListenerId,
    MessageContent, Target,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

const SDP: &[u8] = b"v=0\r\no=user1 53655765 2353687637 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 6000 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n";
/// Name in all certificates.
const NAME: &str = "bench.example.com";
/// Time for the last calls to complete after the last one was started.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Party {
    succeeded: u64,
    failed: u64,
}

impl Handler for Party {
    fn on_indication(&mut self, endpoint: &mut Endpoint, indication: Indication<'_>, now: Time) {
        match indication {
            Indication::Offered { leg, .. } => {
                // A failure here is ended by the caller's timers, and counted there.
                let _ = endpoint.progress(leg, 180, &MessageContent::default(), false, now);
                let _ = endpoint.answer(leg, 200, &MessageContent::sdp(SDP), now);
            }
            Indication::Answered { leg, .. } => {
                let sent = endpoint.ack(leg, &MessageContent::default(), now);
                if sent
                    .and_then(|()| endpoint.bye(leg, &MessageContent::default(), now))
                    .is_err()
                {
                    self.failed += 1;
                }
            }
            Indication::Ended { reason: why, .. } => match why {
                sip::Ending::Local => self.succeeded += 1,
                sip::Ending::Peer => {}
                _ => self.failed += 1,
            },
            Indication::Failed { .. } => self.failed += 1,
            _ => {}
        }
    }
}

struct TransportHost {
    endpoint: Endpoint,
    party: Party,
    open: VecDeque<(SocketKind, SocketAddr)>,
}

impl Engine for TransportHost {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        self.endpoint.feed(input, now, &mut self.party);
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        if let Some((kind, local)) = self.open.pop_front() {
            let socket = SocketId(1);
            return Some(Output::OpenSocket {
                socket,
                kind,
                local,
            });
        }
        self.endpoint.next_output()
    }

    fn next_deadline(&self) -> Option<Deadline> {
        self.endpoint.next_deadline()
    }
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn transport_of(name: &str) -> Outcome<Transport> {
    Ok(match name {
        "udp" => Transport::Udp,
        "tcp" => Transport::Tcp,
        "tls" => Transport::Tls,
        other => return Err(format!("no transport of this program's: {other}").into()),
    })
}

fn certificates(folder: &Path) -> Outcome<()> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let leaf = CertificateParams::new(vec![NAME.to_owned()])?.signed_by(&key, &authority)?;
    std::fs::write(folder.join("ca.pem"), authority.pem())?;
    std::fs::write(folder.join("bench.pem"), leaf.pem())?;
    std::fs::write(folder.join("bench.key"), key.serialize_pem())?;
    Ok(())
}

fn security(folder: &Path, bind: SocketAddr) -> Outcome<Security> {
    let mut security = Security::default();
    let identity = Identity::read(&folder.join("bench.pem"), &folder.join("bench.key"))?;
    let settings = ServerSettings {
        identities: vec![identity],
        client_auth: ClientAuth::None,
        oldest: MinimumVersion::Tls12,
    };
    security.server(bind, false, settings, None)?;
    let settings = ClientSettings {
        anchors: Some(Anchors::read(&folder.join("ca.pem"))?),
        identity: None,
        pins: Vec::new(),
        oldest: MinimumVersion::Tls12,
    };
    security.client("", settings)?;
    Ok(security)
}

fn host(transport: Transport, bind: SocketAddr) -> Outcome<(TransportHost, ListenerId)> {
    let config = EndpointConfig {
        limits: Limits {
            transactions: 8_000_000,
            connections: 100_000,
            connections_per_source: 100_000,
            ..Limits::default()
        },
        ..EndpointConfig::default()
    };
    let mut endpoint = Endpoint::new(config, net::entropy()?);
    let local = endpoint.add_listener(ListenerConfig {
        name: String::from("bench"),
        socket: SocketId(1),
        transport,
        address: bind,
        advertised: String::new(),
    });
    let open = VecDeque::from([(SocketKind::signalling(transport), bind)]);
    let host = TransportHost {
        endpoint,
        party: Party::default(),
        open,
    };
    Ok((host, local))
}

fn driver(transport: Transport, bind: SocketAddr, folder: &Path) -> Outcome<(Driver, Clock)> {
    let clock = Clock::new();
    let config = DriverConfig {
        stream_buffer: 64 << 20,
        ..DriverConfig::default()
    };
    let mut driver = Driver::plain(config, clock)?;
    if transport == Transport::Tls {
        driver.set_security(security(folder, bind)?);
    }
    Ok((driver, clock))
}

fn answer(transport: Transport, bind: SocketAddr, folder: &Path) -> Outcome<()> {
    let (mut host, _) = host(transport, bind)?;
    let (mut driver, _) = driver(transport, bind, folder)?;
    loop {
        driver.turn_engine(&mut host, Duration::from_secs(1))?;
    }
}

fn call(
    transport: Transport,
    [bind, target]: [SocketAddr; 2],
    rate: u64,
    total: u64,
    folder: &Path,
) -> Outcome<()> {
    let (mut host, local) = host(transport, bind)?;
    let (mut driver, clock) = driver(transport, bind, folder)?;
    let connection = match transport {
        Transport::Tls => Some(host.endpoint.peer(NAME, "")?),
        _ => None,
    };
    let flow = Flow {
        local,
        transport,
        remote: target,
        connection,
    };
    let uri = format!("sip:service@{target};transport={}", transport.uri_name());
    let start = clock.now();
    let (mut placed, mut refused) = (0, 0);
    let mut last = start;
    while host.party.succeeded + host.party.failed + refused < total {
        let now = clock.now();
        let due = total.min(now.since(start).as_nanos() as u64 * rate / 1_000_000_000 + 1);
        // No burst after a stall of the machine: a connection buffers a limited amount.
        let due = due.min(placed + rate / 100 + 1);
        while placed < due {
            let invite = Invite {
                content: MessageContent::sdp(SDP),
                ..Invite::new(Target::new(uri.as_bytes(), flow))
            };
            refused += u64::from(host.endpoint.invite(&invite, now).is_err());
            placed += 1;
            last = now;
        }
        if placed == total && now.since(last) > PATIENCE {
            break;
        }
        driver.turn_engine(&mut host, Duration::from_millis(1))?;
    }
    println!(
        "succeeded {} failed {}",
        host.party.succeeded,
        total - host.party.succeeded
    );
    Ok(())
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["certificates", folder] => certificates(Path::new(folder)),
        ["uas", transport, bind, folder] => {
            answer(transport_of(transport)?, bind.parse()?, Path::new(folder))
        }
        ["uac", transport, bind, target, rate, total, folder] => call(
            transport_of(transport)?,
            [bind.parse()?, target.parse()?],
            rate.parse()?,
            total.parse()?,
            Path::new(folder),
        ),
        _ => Err("see the head of crates/lab/examples/transport_calls.rs".into()),
    }
}
