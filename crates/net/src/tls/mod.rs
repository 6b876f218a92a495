//! TLS for streams: certificates and keys read from files, settings for listeners and for connections that we open.

mod names;
mod session;
mod verify;

pub use names::{Identities, date};
pub(crate) use session::{Failure, Session, Sink};
pub use verify::Fingerprint;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs as library};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ProducesTickets, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use verify::{Clients, Servers, sha256};

/// Where systems keep the authorities that they trust, in the order of looking.
const SYSTEM_ANCHORS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Sessions that are remembered for one profile of ours, to be resumed.
const REMEMBERED: usize = 256;

/// The algorithms: one provider for all.
fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER
        .get_or_init(|| Arc::new(library::default_provider()))
        .clone()
}

/// Why a certificate, a key or a list of authorities cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for CredentialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.problem)
    }
}

impl std::error::Error for CredentialError {}

fn bad(file: &Path, problem: impl Into<String>, remedy: impl Into<String>) -> CredentialError {
    CredentialError {
        file: file.to_owned(),
        problem: problem.into(),
        remedy: remedy.into(),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, CredentialError> {
    std::fs::read(file).map_err(|error| {
        let remedy = match error.kind() {
            std::io::ErrorKind::NotFound => {
                "check the path; a relative one counts from where the program was started"
            }
            std::io::ErrorKind::PermissionDenied => {
                "let the program's user read it: it should belong to that user's group, mode 0640"
            }
            _ => "check the file",
        };
        bad(file, error.to_string(), remedy)
    })
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, CredentialError> {
    certificates_in(file, &read(file)?)
}

fn certificates_in(
    file: &Path,
    bytes: &[u8],
) -> Result<Vec<CertificateDer<'static>>, CredentialError> {
    let remedy = "the file must hold PEM: \"-----BEGIN CERTIFICATE-----\" and so on";
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let chain = chain.map_err(|error| bad(file, format!("not PEM: {error}"), remedy))?;
    if chain.is_empty() {
        return Err(bad(file, "there is no certificate in it", remedy));
    }
    Ok(chain)
}

/// A certificate of ours with its key.
#[derive(Clone)]
pub struct Identity {
    certified: Arc<CertifiedKey>,
    file: PathBuf,
    identities: Identities,
    fingerprint: Fingerprint,
}

impl fmt::Debug for Identity {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.file.display())
    }
}

impl Identity {
    /// Reads a certificate with its chain (PEM, ours first) and its private key (PEM: PKCS #8, PKCS #1 or SEC 1).
    ///
    /// # Errors
    /// What is wrong with which file: unreadable, no certificate, no key, or one that does not belong to the other.
    pub fn read(chain: &Path, key: &Path) -> Result<Identity, CredentialError> {
        Identity::of_pem((chain, &read(chain)?), (key, &read(key)?))
    }

    /// The same from what such files would hold; their names are for messages.
    ///
    /// # Errors
    /// As [`Identity::read`].
    pub fn of_pem(
        (chain, chain_bytes): (&Path, &[u8]),
        (key, bytes): (&Path, &[u8]),
    ) -> Result<Identity, CredentialError> {
        let certificates = certificates_in(chain, chain_bytes)?;
        let first = certificates.first();
        let identities = first
            .and_then(|first| Identities::of(first))
            .ok_or_else(|| {
                bad(
                    chain,
                    "its first certificate cannot be read",
                    "export it again as PEM",
                )
            })?;
        let fingerprint = first.map(|first| sha256(first)).unwrap_or_default();
        let private = PrivateKeyDer::from_pem_slice(bytes).map_err(|error| {
            let encrypted = bytes.windows(9).any(|part| part == b"ENCRYPTED");
            match encrypted {
                true => bad(
                    key,
                    "the key is encrypted",
                    "take the passphrase off, and let only the program's user read it",
                ),
                false => bad(
                    key,
                    format!("there is no private key in it: {error}"),
                    "the file must hold a PEM key: \"-----BEGIN PRIVATE KEY-----\"",
                ),
            }
        })?;
        let key_of = provider()
            .key_provider
            .load_private_key(private)
            .map_err(|error| {
                bad(
                    key,
                    format!("the key cannot be used: {error}"),
                    "use ECDSA P-256 or P-384, Ed25519, or RSA of 2048 bits or more",
                )
            })?;
        let certified = CertifiedKey::new(certificates, key_of);
        certified.keys_match().map_err(|_| {
            bad(
                key,
                format!(
                    "it is not the key of the certificate in {}",
                    chain.display()
                ),
                "name the key that the certificate was made for",
            )
        })?;
        Ok(Identity {
            certified: Arc::new(certified),
            file: chain.to_owned(),
            identities,
            fingerprint,
        })
    }

    /// The file of its certificate.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Whom it stands for, and how long.
    pub fn identities(&self) -> &Identities {
        &self.identities
    }

    /// SHA-256 of the certificate.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

/// Authorities that are trusted.
#[derive(Clone, Debug)]
pub struct Anchors(Arc<RootCertStore>, Fingerprint);

impl Anchors {
    /// Those of a PEM file.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn read(file: &Path) -> Result<Anchors, CredentialError> {
        Anchors::of_pem(file, &read(file)?)
    }

    /// The same from what such a file would hold; its name is for messages.
    ///
    /// # Errors
    /// As [`Anchors::read`].
    pub fn of_pem(file: &Path, bytes: &[u8]) -> Result<Anchors, CredentialError> {
        let list = certificates_in(file, bytes)?;
        let mut store = RootCertStore::empty();
        let mut all = Vec::new();
        for certificate in list {
            all.extend_from_slice(&certificate);
            store.add(certificate).map_err(|error| {
                bad(
                    file,
                    format!("a certificate in it cannot be an authority: {error}"),
                    "leave only certificates of authorities in the file",
                )
            })?;
        }
        Ok(Anchors(Arc::new(store), sha256(&all)))
    }

    /// Those of the system: of the file that `SSL_CERT_FILE` names, else of the usual places.
    ///
    /// # Errors
    /// Where the system has none.
    pub fn system() -> Result<Anchors, CredentialError> {
        let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
        let usual = SYSTEM_ANCHORS.iter().map(PathBuf::from);
        let file = named.into_iter().chain(usual).find(|file| file.exists());
        let none = || {
            bad(
                Path::new(SYSTEM_ANCHORS[0]),
                "this system has no list of authorities",
                "install ca-certificates, or name a file of authorities",
            )
        };
        let file = file.ok_or_else(none)?;
        let list = certificates(&file)?;
        let mut store = RootCertStore::empty();
        let all: Vec<u8> = list
            .iter()
            .flat_map(|certificate| certificate.iter().copied())
            .collect();
        // One odd certificate among a system's many is no reason to trust none.
        let (taken, _) = store.add_parsable_certificates(list);
        if taken == 0 {
            return Err(none());
        }
        Ok(Anchors(Arc::new(store), sha256(&all)))
    }
}

/// The oldest version that is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Oldest {
    /// TLS 1.2 and 1.3.
    #[default]
    Tls12,
    /// TLS 1.3 alone.
    Tls13,
}

impl Oldest {
    fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        static BOTH: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];
        match self {
            Oldest::Tls12 => &BOTH,
            Oldest::Tls13 => &BOTH[..1],
        }
    }
}

/// What clients of a listener must show.
#[derive(Clone, Debug, Default)]
pub enum Proof {
    /// No certificate.
    #[default]
    None,
    /// A certificate is asked for; one that is shown must be good.
    Request(Anchors),
    /// A good certificate.
    Require(Anchors),
}

impl Proof {
    fn mark(&self) -> (u8, Fingerprint) {
        match self {
            Proof::None => (0, [0; 32]),
            Proof::Request(anchors) => (1, anchors.1),
            Proof::Require(anchors) => (2, anchors.1),
        }
    }
}

/// Settings of a listener.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Certificates; the one that stands for the name that the client asks for (SNI) is shown, else the first.
    pub identities: Vec<Identity>,
    /// What clients must show.
    pub proof: Proof,
    /// Oldest version.
    pub oldest: Oldest,
}

/// Settings of connections that we open.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Who is believed. `None`: the peer, whoever it is and whatever it is called; for tools that measure a server with
    /// a certificate of its own making, never for a border.
    pub anchors: Option<Anchors>,
    /// Our certificate, shown where the peer asks.
    pub identity: Option<Identity>,
    /// SHA-256 of certificates or public keys: where there is any, the peer's must be among them, beside being good.
    pub pins: Vec<Fingerprint>,
    /// Oldest version.
    pub oldest: Oldest,
}

/// Chooses the certificate by the name that the client asks for.
#[derive(Debug)]
struct ByName {
    identities: Vec<Identity>,
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let named = hello.server_name().and_then(|name| {
            self.identities
                .iter()
                .find(|identity| identity.identities.stand_for(name))
        });
        named
            .or(self.identities.first())
            .map(|identity| identity.certified.clone())
    }
}

#[derive(Clone)]
struct Server {
    config: Arc<ServerConfig>,
    mark: (u8, Fingerprint),
}

/// What is asked of a request to open a WebSocket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebSocketSettings {
    /// Origins from which browsers may come (RFC 6455 section 10.2), as `scheme://host[:port]`; empty: all, and programs
    /// that name none.
    pub origins: Vec<String>,
    /// Hosts that may be asked for; empty: all.
    pub hosts: Vec<String>,
    /// The subprotocol that is served; `None`: that of SIP.
    pub protocol: Option<&'static str>,
}

/// Everything of a driver's that is about TLS and WebSocket: read from files, given to the driver, and exchanged while
/// connections stand. What is exchanged counts for connections that come after.
#[derive(Clone, Default)]
pub struct Security {
    servers: HashMap<(SocketAddr, bool), Server>,
    clients: HashMap<String, Arc<ClientConfig>>,
    websockets: HashMap<SocketAddr, Arc<WebSocketSettings>>,
    /// `None`: the root.
    websocket_path: Option<Box<str>>,
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Security")
            .field("servers", &self.servers.len())
            .field("clients", &self.clients.len())
            .finish_non_exhaustive()
    }
}

impl Security {
    /// Sets what a listener on `address` (as the engine asks for it) does; `websocket`: it speaks WebSocket inside.
    /// Sessions of `before` can be resumed where clients had to show the same then as now.
    ///
    /// # Errors
    /// Where the settings contradict the library: none that [`Identity::read`] and [`Anchors::read`] let pass.
    pub fn server(
        &mut self,
        address: SocketAddr,
        websocket: bool,
        settings: ServerSettings,
        before: Option<&Security>,
    ) -> Result<(), String> {
        let mark = settings.proof.mark();
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(settings.oldest.versions())
            .map_err(|error| error.to_string())?;
        let builder = match settings.proof {
            Proof::None => builder.with_no_client_auth(),
            Proof::Request(anchors) => {
                builder.with_client_cert_verifier(Arc::new(Clients::new(anchors, false)?))
            }
            Proof::Require(anchors) => {
                builder.with_client_cert_verifier(Arc::new(Clients::new(anchors, true)?))
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(ByName {
            identities: settings.identities,
        }));
        // What is registered for SIP is sip/2; some say sip.
        config.alpn_protocols = match websocket {
            true => vec![b"http/1.1".to_vec()],
            false => vec![b"sip/2".to_vec(), b"sip".to_vec()],
        };
        let key = (address, websocket);
        config.ticketer = match before.and_then(|before| before.servers.get(&key)) {
            Some(old) if old.mark == mark => old.config.ticketer.clone(),
            _ => ticketer()?,
        };
        config.send_tls13_tickets = 1;
        config.max_fragment_size = None;
        let config = Arc::new(config);
        self.servers.insert(key, Server { config, mark });
        Ok(())
    }

    /// Sets how connections of `profile` are opened; the empty name is for those that name none.
    ///
    /// # Errors
    /// Where the certificate is unfit for a client.
    pub fn client(&mut self, profile: &str, settings: ClientSettings) -> Result<(), String> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(settings.oldest.versions())
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Servers::new(
                settings.anchors,
                settings.pins,
            )));
        let mut config = match settings.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder.with_client_cert_resolver(Arc::new(
                rustls::sign::SingleCertAndKey::from(identity.certified.clone()),
            )),
        };
        config.resumption = Resumption::in_memory_sessions(REMEMBERED);
        self.clients.insert(profile.to_owned(), Arc::new(config));
        Ok(())
    }

    /// Sets what is asked of WebSockets at a listener.
    pub fn websocket(&mut self, address: SocketAddr, settings: WebSocketSettings) {
        self.websockets.insert(address, Arc::new(settings));
    }

    /// Sets what path WebSockets ask for that we open; the root where it is never set.
    ///
    /// # Errors
    /// Where it is no path: no slash in front, or a character that a request line cannot have.
    pub fn websocket_path_to_ask(&mut self, path: &str) -> Result<(), String> {
        if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("{path:?} is no path of a WebSocket"));
        }
        self.websocket_path = Some(path.into());
        Ok(())
    }

    pub(crate) fn websocket_path(&self) -> &str {
        self.websocket_path.as_deref().unwrap_or("/")
    }

    pub(crate) fn server_of(
        &self,
        address: SocketAddr,
        websocket: bool,
    ) -> Option<Arc<ServerConfig>> {
        self.servers
            .get(&(address, websocket))
            .map(|server| server.config.clone())
    }

    pub(crate) fn client_of(&self, profile: &str) -> Option<Arc<ClientConfig>> {
        self.clients
            .get(profile)
            .or_else(|| self.clients.get(""))
            .cloned()
    }

    pub(crate) fn websocket_of(&self, address: SocketAddr) -> Arc<WebSocketSettings> {
        self.websockets.get(&address).cloned().unwrap_or_default()
    }
}

fn ticketer() -> Result<Arc<dyn ProducesTickets>, String> {
    library::Ticketer::new().map_err(|error| error.to_string())
}

/// Seconds since 1970, for the validity of certificates.
pub fn wall_clock() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
        })
}
