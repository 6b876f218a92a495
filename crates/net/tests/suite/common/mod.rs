//! Engines that note what they are told, and certificates made on the spot.
#![allow(dead_code)] // each test takes what it needs

use engine::{
    CloseWhy, ConnectionId, Deadline, Engine, Input, Note, Output, Secure, SocketId, SocketKind,
    Time,
};
use net::tls::{
    Anchors, ClientSettings, Identity, Oldest, Proof, Security, ServerSettings, WebSocketSettings,
};
use net::{Clock, Driver, DriverConfig};
use rcgen::{CertificateParams, CertifiedIssuer, DnType, KeyPair, SanType};
use std::collections::{BTreeMap, VecDeque};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// An authority with a directory for its files.
pub struct Authority {
    pub directory: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
    issued: AtomicUsize,
}

impl Authority {
    pub fn new(test: &str) -> Authority {
        let directory =
            std::env::temp_dir().join(format!("hornwork-tls-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, test);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(directory.join("ca.pem"), issuer.pem()).unwrap();
        Authority {
            directory,
            issuer,
            issued: AtomicUsize::new(0),
        }
    }

    /// A certificate in files; names as `URI:...`, `IP:...`, `CN:...`, else DNS.
    pub fn files(
        &self,
        names: &[&str],
        edit: impl FnOnce(&mut CertificateParams),
    ) -> (PathBuf, PathBuf) {
        let number = self.issued.fetch_add(1, Ordering::Relaxed);
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        for name in names {
            let san = match name.split_once(':') {
                Some(("URI", uri)) => SanType::URI(uri.try_into().unwrap()),
                Some(("IP", ip)) => SanType::IpAddress(ip.parse().unwrap()),
                Some(("CN", name)) => {
                    params.distinguished_name = rcgen::DistinguishedName::new();
                    params.distinguished_name.push(DnType::CommonName, name);
                    continue;
                }
                _ => SanType::DnsName((*name).try_into().unwrap()),
            };
            params.subject_alt_names.push(san);
        }
        edit(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let chain = self.directory.join(format!("{number}.pem"));
        let private = self.directory.join(format!("{number}.key"));
        std::fs::write(&chain, certificate.pem() + &self.issuer.pem()).unwrap();
        std::fs::write(&private, key.serialize_pem()).unwrap();
        (chain, private)
    }

    pub fn identity(&self, names: &[&str], edit: impl FnOnce(&mut CertificateParams)) -> Identity {
        let (chain, key) = self.files(names, edit);
        Identity::read(&chain, &key).unwrap()
    }

    pub fn anchors(&self) -> Anchors {
        Anchors::read(&self.directory.join("ca.pem")).unwrap()
    }

    pub fn client(&self, identity: Option<Identity>) -> ClientSettings {
        ClientSettings {
            anchors: Some(self.anchors()),
            identity,
            pins: Vec::new(),
            oldest: Oldest::Tls12,
        }
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub fn security(_: &Authority, identity: Identity, proof: Proof) -> ServerSettings {
    ServerSettings {
        identities: vec![identity],
        proof,
        oldest: Oldest::Tls12,
    }
}

enum Out {
    Open(SocketKind, SocketAddr),
    Connect(ConnectionId, SocketAddr, String, String),
    /// A WebSocket, over TLS where a name is given.
    Web(ConnectionId, SocketAddr, Option<String>),
    Stream(ConnectionId, Vec<u8>),
    Close(ConnectionId),
}

/// An engine that does as it is told; a server sends back what it gets.
#[derive(Default)]
pub struct Host {
    out: VecDeque<Out>,
    lent: Option<Out>,
    echo: bool,
    /// All of its connections have TLS.
    pub secures: bool,
    pub opened: Option<Result<SocketAddr, String>>,
    accepted: Vec<ConnectionId>,
    connected: Vec<ConnectionId>,
    names: BTreeMap<ConnectionId, Vec<String>>,
    /// Each message, as it was told.
    pub messages: BTreeMap<ConnectionId, Vec<Vec<u8>>>,
    closed: BTreeMap<ConnectionId, CloseWhy>,
}

impl Host {
    pub fn connect(&mut self, id: ConnectionId, to: SocketAddr, name: &str, profile: &str) {
        self.closed.remove(&id);
        self.out
            .push_back(Out::Connect(id, to, name.into(), profile.into()));
    }

    /// Opens a WebSocket, over TLS to whoever has a certificate of `name`.
    pub fn open_websocket(&mut self, id: ConnectionId, to: SocketAddr, name: Option<&str>) {
        self.closed.remove(&id);
        self.out.push_back(Out::Web(id, to, name.map(Into::into)));
    }

    pub fn send(&mut self, id: ConnectionId, bytes: &[u8]) {
        self.out.push_back(Out::Stream(id, bytes.to_vec()));
    }

    pub fn close(&mut self, id: ConnectionId) {
        self.out.push_back(Out::Close(id));
    }

    pub fn accepted(&self) -> Vec<ConnectionId> {
        self.accepted.clone()
    }

    pub fn is_connected(&self, id: ConnectionId) -> bool {
        self.connected.contains(&id)
    }

    pub fn names(&self, id: ConnectionId) -> Option<Vec<String>> {
        self.names.get(&id).cloned()
    }

    pub fn text(&self, id: ConnectionId) -> String {
        let all = self.messages.get(&id).map(|all| all.concat());
        String::from_utf8(all.unwrap_or_default()).unwrap()
    }

    pub fn closed(&self, id: ConnectionId) -> Option<CloseWhy> {
        self.closed.get(&id).copied()
    }
}

impl Engine for Host {
    fn handle(&mut self, input: Input<'_>, _now: Time) {
        match input {
            Input::Opened { local, .. } => self.opened = Some(Ok(local)),
            Input::OpenFailed { error, .. } => self.opened = Some(Err(error.to_owned())),
            Input::Accepted { connection, .. } => self.accepted.push(connection),
            Input::Connected { connection, .. } => {
                let secured = self.names.contains_key(&connection);
                assert!(secured || !self.secures, "secured before");
                self.connected.push(connection);
            }
            Input::Handed(_) => panic!("there is one worker"),
            Input::Secured { connection, names } => {
                let before = self.names.insert(connection, names.to_vec());
                assert!(before.is_none(), "secured twice");
            }
            Input::Sifted { .. } => panic!("nothing here is sifted"),
            Input::Stream { connection, bytes } => {
                assert!(!self.closed.contains_key(&connection), "after its end");
                self.messages
                    .entry(connection)
                    .or_default()
                    .push(bytes.to_vec());
                if self.echo {
                    self.send(connection, bytes);
                }
            }
            Input::Closed { connection, why } => {
                let before = self.closed.insert(connection, why);
                assert!(before.is_none(), "closed twice");
            }
            Input::Timeout | Input::Datagram(_) | Input::Unreachable { .. } => {}
        }
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        self.lent = self.out.pop_front();
        Some(match self.lent.as_ref()? {
            &Out::Open(kind, local) => Output::Open {
                socket: SocketId(1),
                kind,
                local,
            },
            Out::Connect(connection, remote, name, profile) => Output::Connect {
                connection: *connection,
                local: None,
                remote: *remote,
                secure: Some(Secure { name, profile }),
                websocket: false,
            },
            Out::Web(connection, remote, name) => Output::Connect {
                connection: *connection,
                local: None,
                remote: *remote,
                secure: name.as_deref().map(|name| Secure { name, profile: "" }),
                websocket: true,
            },
            Out::Stream(connection, bytes) => Output::Stream {
                connection: *connection,
                bytes,
            },
            &Out::Close(connection) => Output::Close { connection },
        })
    }

    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

pub struct Rig {
    pub host: Host,
    pub driver: Driver,
    pub security: Security,
    pub asked: SocketAddr,
    events: Vec<Note>,
}

impl Rig {
    pub fn new(security: Security) -> Rig {
        Rig::with(security, |_| {})
    }

    fn with(security: Security, edit: impl FnOnce(&mut DriverConfig)) -> Rig {
        let mut config = DriverConfig::default();
        edit(&mut config);
        let mut driver = Driver::plain(config, Clock::new()).unwrap();
        driver.set_security(security.clone());
        Rig {
            host: Host {
                secures: true,
                ..Host::default()
            },
            driver,
            security,
            asked: "127.0.0.1:0".parse().unwrap(),
            events: Vec::new(),
        }
    }

    pub fn server(settings: &ServerSettings) -> (Rig, SocketAddr) {
        Rig::server_with(settings, SocketKind::TlsListener, |_| {})
    }

    pub fn server_with(
        settings: &ServerSettings,
        kind: SocketKind,
        edit: impl FnOnce(&mut DriverConfig),
    ) -> (Rig, SocketAddr) {
        let asked = "127.0.0.1:0".parse().unwrap();
        let mut security = Security::default();
        let websocket = kind == SocketKind::WssListener;
        security
            .server(asked, websocket, settings.clone(), None)
            .unwrap();
        let mut rig = Rig::with(security, edit);
        let address = rig.open(kind).unwrap();
        rig.host.echo = true;
        (rig, address)
    }

    /// A listener of WebSockets in the clear.
    pub fn websocket(settings: WebSocketSettings) -> (Rig, SocketAddr) {
        Rig::websocket_with(settings, |config| config.websocket_message = 10_000)
    }

    pub fn websocket_with(
        settings: WebSocketSettings,
        edit: impl FnOnce(&mut DriverConfig),
    ) -> (Rig, SocketAddr) {
        let mut security = Security::default();
        security.websocket("127.0.0.1:0".parse().unwrap(), settings);
        let mut rig = Rig::with(security, edit);
        let address = rig.open(SocketKind::WsListener).unwrap();
        rig.host.echo = true;
        (rig, address)
    }

    pub fn client(settings: &ClientSettings) -> Rig {
        let mut security = Security::default();
        security.client("", settings.clone()).unwrap();
        Rig::new(security)
    }

    pub fn open(&mut self, kind: SocketKind) -> Result<SocketAddr, String> {
        self.host.out.push_back(Out::Open(kind, self.asked));
        while self.host.opened.is_none() {
            self.turn();
        }
        self.host.opened.clone().unwrap()
    }

    pub fn turn(&mut self) {
        self.driver
            .turn_engine(&mut self.host, Duration::from_millis(1))
            .unwrap();
        while let Some(event) = self.driver.next_event() {
            self.events.push(event.note);
        }
    }

    pub fn events(&self) -> Vec<Note> {
        self.events.clone()
    }
}

/// Lets all take turns until `done`.
pub fn pump(rigs: &mut [&mut Rig], mut done: impl FnMut(&mut [&mut Rig]) -> bool) {
    let begun = Instant::now();
    while !done(rigs) {
        for rig in rigs.iter_mut() {
            rig.turn();
        }
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "it does not come"
        );
    }
}

/// A relay for one connection that can spoil what the client sends.
pub struct Relay {
    pub address: SocketAddr,
    spoil: Arc<AtomicBool>,
}

impl Relay {
    pub fn to(server: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let spoil = Arc::new(AtomicBool::new(false));
        let spoils = spoil.clone();
        std::thread::spawn(move || {
            let (client, _) = listener.accept().unwrap();
            let onward = TcpStream::connect(server).unwrap();
            let (mut from, mut to) = (onward.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            let (mut client, mut onward) = (client, onward);
            let mut buffer = [0; 4_096];
            while let Ok(n) = client.read(&mut buffer) {
                if n == 0 {
                    break;
                }
                if spoils.load(Ordering::Acquire) {
                    buffer[n - 1] ^= 1;
                }
                if onward.write_all(&buffer[..n]).is_err() {
                    break;
                }
            }
        });
        Relay { address, spoil }
    }

    pub fn spoil(&self) {
        self.spoil.store(true, Ordering::Release);
    }
}
