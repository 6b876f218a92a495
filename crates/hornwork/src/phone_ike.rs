//! Key exchange of the softphone (`hornwork phone --ike FILE`): its file, and its events for the phone's thread.

use crate::ike::{
    ExchangePlan, ExchangeThread, ExchangeTunnel, IkeFiles, IkeParts, IkeRequest, IkeRequests,
    PacketPlan, SaEvent, SaSink,
};
use config::{PhoneIkeSpec, parse_phone_ike};
use lab::LabError;
use lab::phone::{ExchangeRequests, PhoneKeyExchange, PhoneSaEvent, StartedExchange};
use net::{Clock, Waker};
use protect::esp::{AddressPrefix, DEFAULT_ESP_WINDOW, SaLifetime, SelectorLimits};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use wire::esp::NAT_TRAVERSAL_PORT;

/// Events and requests that may wait.
const QUEUE: usize = 256;
/// Name of the one tunnel in errors.
const TUNNEL: &str = "the peer";

/// The key exchange of a file.
#[derive(Debug)]
pub(crate) struct PhoneIke {
    spec: PhoneIkeSpec,
    /// Without the phone's address.
    plan: ExchangePlan,
    files: IkeFiles,
}

/// The address of this machine on the route to `peer`.
fn address_towards(peer: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // Nothing is sent.
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

fn local_of(spec: &PhoneIkeSpec) -> Result<SocketAddr, LabError> {
    match (spec.local, spec.peer) {
        (Some(local), _) => Ok(local),
        (None, Some(peer)) => address_towards(peer)
            .map(|ip| SocketAddr::new(ip, NAT_TRAVERSAL_PORT))
            .map_err(|error| {
                LabError::cannot_run(
                    format!("IKEv2: no route to the peer {peer}: {error}"),
                    "add a route, or write `local` into the file of --ike",
                )
            }),
        (None, None) => Err(LabError::bad_input("--ike: `local` is missing")),
    }
}

impl PhoneIke {
    /// Reads the file and the files that it names.
    ///
    /// # Errors
    /// A mistake of the file, a file that cannot be read, or no route to the peer.
    pub(crate) fn read(path: &Path) -> Result<PhoneIke, LabError> {
        let name = path.display().to_string();
        let bad = |why: String| LabError::bad_input(format!("--ike {why}"));
        let text =
            std::fs::read_to_string(path).map_err(|error| bad(format!("{name}: {error}")))?;
        let spec = parse_phone_ike(&text, &name).map_err(|mistakes| {
            let texts: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            bad(texts.join("\n"))
        })?;
        let plan = ExchangePlan {
            name: format!("--ike {name}"),
            local: local_of(&spec)?,
            uses_port_500: false,
            has_kernel_policies: false,
            ike: spec.ike.clone(),
            packets: PacketPlan {
                lifetime: SaLifetime::default(),
                dscp: None,
                allow_weak: spec.allow_weak,
                replay_window: DEFAULT_ESP_WINDOW,
            },
            tunnels: vec![ExchangeTunnel {
                name: TUNNEL.to_owned(),
                peer: spec.peer,
                ike: spec.tunnel.clone(),
                local_networks: Vec::new(),
                remote_networks: spec.remote_networks.clone(),
                limits: SelectorLimits::default(),
            }],
        };
        let files = IkeFiles::read(&plan)
            .map_err(|(why, remedy)| bad(format!("{name}: {why}\n  remedy: {remedy}")))?;
        Ok(PhoneIke { spec, plan, files })
    }
}

/// An error of the key exchange, whose text may have its remedy.
fn cannot_start(error: &io::Error) -> LabError {
    let text = error.to_string();
    let (what, remedy) = text.split_once("\n  remedy: ").unwrap_or((&text, ""));
    LabError::cannot_run(what, remedy)
}

impl PhoneKeyExchange for PhoneIke {
    fn local(&self) -> SocketAddr {
        self.plan.local
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.spec.peer
    }

    fn remote_networks(&self) -> &[AddressPrefix] {
        &self.spec.remote_networks
    }

    fn start(&self, phone: IpAddr, initiates: bool) -> Result<StartedExchange, LabError> {
        let initiates = self
            .spec
            .initiate
            .unwrap_or(initiates && self.spec.peer.is_some());
        let mut plan = self.plan.clone();
        // An end that begins uses the port of ESP from its first message, so it needs no right to port 500. Peers may
        // begin there.
        plan.uses_port_500 = !initiates && plan.local.port() == NAT_TRAVERSAL_PORT;
        for tunnel in &mut plan.tunnels {
            tunnel.ike.initiates = initiates;
            tunnel.local_networks = vec![AddressPrefix::from(phone)];
        }
        let (events, received) = sync_channel(QUEUE);
        let (queue, inbox) = sync_channel(QUEUE);
        let waker = Waker::new().map_err(|error| cannot_start(&error))?;
        let requests = IkeRequests::new(queue, waker.clone());
        let peer = match self.spec.peer {
            Some(peer) => peer.ip().to_string(),
            None => "the peer".to_owned(),
        };
        let parts = IkeParts {
            plan,
            files: self.files.clone(),
            sink: Box::new(PhoneSink {
                events,
                initiates,
                was_up: false,
                peer,
            }),
            inbox,
            waker,
            clock: Clock::new(),
        };
        let thread = ExchangeThread::start("phone-ike", parts, requests.clone(), || {})
            .map_err(|error| cannot_start(&error))?;
        Ok(StartedExchange {
            events: received,
            requests: Box::new(PhoneRequests {
                requests,
                thread: Some(thread),
            }),
            initiates,
        })
    }
}

struct PhoneRequests {
    requests: IkeRequests,
    thread: Option<ExchangeThread>,
}

impl ExchangeRequests for PhoneRequests {
    fn received(&mut self, source: SocketAddr, message: Vec<u8>) -> bool {
        self.requests
            .try_send(IkeRequest::Received(source, message))
    }

    fn request_end(&mut self) -> bool {
        let thread = self.thread.as_ref();
        thread.is_none_or(ExchangeThread::request_end)
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

/// Gives the events of the key exchange to the phone's thread.
struct PhoneSink {
    events: SyncSender<PhoneSaEvent>,
    initiates: bool,
    /// The tunnel has been up: later problems end no call, as the key exchange goes on.
    was_up: bool,
    peer: String,
}

/// The remedy for a problem, in the words of the daemon.
fn remedy(problem: &str) -> &'static str {
    let has = |words: &[&str]| words.iter().any(|word| problem.contains(word));
    if has(&["giving up", "not responding"]) {
        "check that the peer runs, its address, and that UDP of its port (4500) passes"
    } else if has(&["TS_UNACCEPTABLE", "traffic selectors"]) {
        "compare remote_networks and the address of --local with the networks of the peer"
    } else if has(&[
        "AUTHENTICATION_FAILED",
        "MAC mismatched",
        "shared key",
        "private key",
        "no trusted",
        "constraint",
    ]) {
        "compare the secrets (or certificates), local_id and remote_id of both ends"
    } else if has(&["NO_PROPOSAL_CHOSEN", "proposal"]) {
        "compare ike_proposals and esp_proposals, and the addresses that the peer expects, of both ends"
    } else {
        "the log of the peer may have more"
    }
}

impl SaSink for PhoneSink {
    fn take(&mut self, event: SaEvent) {
        let peer = &self.peer;
        let event = match event {
            SaEvent::Installed(pair) => PhoneSaEvent::Installed(pair),
            SaEvent::Sealing {
                spi,
                peer,
                algorithms,
                identity,
                ..
            } => {
                self.was_up = true;
                let note = identity
                    .map(|identity| format!("IKEv2: tunnel to {peer} ({identity}), {algorithms}"));
                PhoneSaEvent::Sealing(spi, peer, note)
            }
            SaEvent::Deleted { spis, at_once } => PhoneSaEvent::Deleted(spis, at_once),
            SaEvent::Down { .. } => {
                PhoneSaEvent::Note(format!("IKEv2: the tunnel to {peer} is down"))
            }
            SaEvent::Message(message, to) => PhoneSaEvent::Message(message, to),
            SaEvent::Problem {
                tunnel, problem, ..
            } => {
                let text = format!("IKEv2 with {peer}: {problem}");
                match tunnel.is_some() && self.initiates && !self.was_up {
                    true => PhoneSaEvent::Failed(text, remedy(&problem).to_owned()),
                    false => PhoneSaEvent::Note(text),
                }
            }
            SaEvent::Failed { reason } => {
                let text = format!("IKEv2: {reason}");
                match self.was_up {
                    true => PhoneSaEvent::Note(text),
                    false => PhoneSaEvent::Failed(text, remedy(&reason).to_owned()),
                }
            }
        };
        // A phone that has ended reads no more.
        let _ = self.events.send(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_before_the_tunnel_is_up_end_the_phone_that_begins() {
        let (events, received) = sync_channel(QUEUE);
        let mut sink = PhoneSink {
            events,
            initiates: true,
            was_up: false,
            peer: "192.0.2.2".to_owned(),
        };
        let problem = |tunnel, text: &str| SaEvent::Problem {
            tunnel,
            problem: text.to_owned(),
            suppressed: 0,
        };
        let of_auth = "received AUTHENTICATION_FAILED notify error";
        sink.take(problem(Some(0), of_auth));
        let Ok(PhoneSaEvent::Failed(why, remedy)) = received.recv() else {
            panic!();
        };
        assert!(why.contains("192.0.2.2: received AUTHENTICATION_FAILED"));
        assert!(remedy.contains("secrets"), "{remedy}");
        // Problems of strangers end nothing, nor do those of a phone that waits, or whose tunnel was up.
        sink.take(problem(None, "no IKE config found"));
        assert!(matches!(received.recv(), Ok(PhoneSaEvent::Note(_))));
        sink.initiates = false;
        sink.take(problem(Some(0), of_auth));
        assert!(matches!(received.recv(), Ok(PhoneSaEvent::Note(_))));
        sink.initiates = true;
        sink.take(SaEvent::Sealing {
            tunnel: 0,
            spi: 7,
            peer: "192.0.2.2:4500".parse().unwrap(),
            algorithms: "AES-GCM-16".to_owned(),
            identity: None,
        });
        assert!(matches!(
            received.recv(),
            Ok(PhoneSaEvent::Sealing(7, _, None))
        ));
        sink.take(problem(Some(0), of_auth));
        assert!(matches!(received.recv(), Ok(PhoneSaEvent::Note(_))));
        sink.take(SaEvent::Failed {
            reason: "the daemon has ended".to_owned(),
        });
        assert!(matches!(received.recv(), Ok(PhoneSaEvent::Note(_))));
    }

    #[test]
    fn remedies_fit_problems() {
        for (problem, part) in [
            ("giving up after 4 retransmits", "the peer runs"),
            ("received NO_PROPOSAL_CHOSEN notify error", "ike_proposals"),
            (
                "received TS_UNACCEPTABLE notify, no CHILD_SA built",
                "remote_networks",
            ),
            (
                "tried 1 shared key for 'a' - 'b', but MAC mismatched",
                "secrets",
            ),
            ("unable to install policies", "log of the peer"),
        ] {
            assert!(remedy(problem).contains(part), "{problem}");
        }
    }
}
