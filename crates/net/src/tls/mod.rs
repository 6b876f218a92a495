//! TLS for streams: certificates and keys from files, settings of listeners and of connections that we open.

mod names;
mod session;
mod verify;

pub use names::{Identities, date, user_names};
pub(crate) use session::{Sink, TlsFailure, TlsSession};
pub use verify::Sha256Fingerprint;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs as library};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ProducesTickets, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig, SignatureScheme, SupportedProtocolVersion, version,
};
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use verify::{Clients, Servers, sha256};

/// Files with the system's trusted authorities, in the order of preference.
const SYSTEM_ANCHORS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Sessions cached per client profile, for resumption.
const CACHED_SESSIONS: usize = 256;

/// The cryptographic provider, shared by all.
fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER
        .get_or_init(|| Arc::new(library::default_provider()))
        .clone()
}

/// Reason for which a certificate, a key or a list of authorities cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialError {
    /// The file.
    pub file: PathBuf,
    /// The problem.
    pub problem: String,
    /// The remedy.
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
                "check the path; in a configuration a relative one starts at the folder of that file, on the command line at the working directory"
            }
            std::io::ErrorKind::PermissionDenied => {
                "let the program's user read it: group of that user, mode 0640"
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
    let remedy = "the file must contain PEM: \"-----BEGIN CERTIFICATE-----\" and so on";
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let chain = chain.map_err(|error| bad(file, format!("not PEM: {error}"), remedy))?;
    if chain.is_empty() {
        return Err(bad(file, "it contains no certificate", remedy));
    }
    Ok(chain)
}

/// One of our certificates with its key.
#[derive(Clone)]
pub struct Identity {
    certified: Arc<CertifiedKey>,
    file: PathBuf,
    identities: Identities,
    fingerprint: Sha256Fingerprint,
}

impl fmt::Debug for Identity {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.file.display())
    }
}

impl Identity {
    /// Reads a certificate with its chain (PEM, our certificate first) and its private key (PEM: PKCS #8, PKCS #1 or
    /// SEC 1).
    ///
    /// # Errors
    /// Names the file and the problem: unreadable, no certificate, no key, or a key that does not belong to the
    /// certificate.
    pub fn read(chain: &Path, key: &Path) -> Result<Identity, CredentialError> {
        Identity::of_pem((chain, &read(chain)?), (key, &read(key)?))
    }

    /// The same from the contents of such files; the names are for messages.
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
                    "remove the passphrase, and let only the program's user read the file",
                ),
                false => bad(
                    key,
                    format!("it contains no private key: {error}"),
                    "the file must contain a PEM key: \"-----BEGIN PRIVATE KEY-----\"",
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
                "set the key that belongs to the certificate",
            )
        })?;
        Ok(Identity {
            certified: Arc::new(certified),
            file: chain.to_owned(),
            identities,
            fingerprint,
        })
    }

    /// Settings of an HTTPS server with this certificate, TLS 1.2 and 1.3, for HTTP/1.1. Tickets of earlier settings
    /// are not accepted, so that a client is verified again.
    ///
    /// # Errors
    /// The library rejects the settings; this does not happen with values from [`Identity::read`] and
    /// [`Anchors::read`].
    pub fn https_server(&self, clients: &ClientAuth) -> Result<Arc<ServerConfig>, String> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(MinimumVersion::Tls12.versions())
            .map_err(|error| error.to_string())?;
        let builder = match clients {
            ClientAuth::None => builder.with_no_client_auth(),
            ClientAuth::Request(anchors) | ClientAuth::Require(anchors) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(anchors.0.clone(), provider());
                let verifier = match clients {
                    ClientAuth::Require(_) => verifier,
                    _ => verifier.allow_unauthenticated(),
                };
                let verifier = verifier.build().map_err(|error| error.to_string())?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(CertificateByName {
            identities: vec![self.clone()],
        }));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.ticketer = ticketer()?;
        config.send_tls13_tickets = 1;
        Ok(Arc::new(config))
    }

    /// The file of the certificate.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Names and validity of the certificate.
    pub fn identities(&self) -> &Identities {
        &self.identities
    }

    /// SHA-256 of the certificate.
    pub fn fingerprint(&self) -> Sha256Fingerprint {
        self.fingerprint
    }
}

/// Trusted authorities.
#[derive(Clone, Debug)]
pub struct Anchors(Arc<RootCertStore>, Sha256Fingerprint);

impl Anchors {
    /// Reads the authorities of a PEM file.
    ///
    /// # Errors
    /// Names the file and the problem.
    pub fn read(file: &Path) -> Result<Anchors, CredentialError> {
        Anchors::of_pem(file, &read(file)?)
    }

    /// The same from the contents of such a file; the name is for messages.
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

    /// The authorities of the system: from the file in `SSL_CERT_FILE`, else from the usual files.
    ///
    /// # Errors
    /// The system has none.
    pub fn system() -> Result<Anchors, CredentialError> {
        let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
        let usual = SYSTEM_ANCHORS.iter().map(PathBuf::from);
        let file = named.into_iter().chain(usual).find(|file| file.exists());
        let none = || {
            bad(
                Path::new(SYSTEM_ANCHORS[0]),
                "this system has no list of authorities",
                "install ca-certificates, or configure a file of authorities",
            )
        };
        let file = file.ok_or_else(none)?;
        let list = certificates(&file)?;
        let mut store = RootCertStore::empty();
        let all: Vec<u8> = list
            .iter()
            .flat_map(|certificate| certificate.iter().copied())
            .collect();
        // One unparsable certificate among many must not invalidate the system's list.
        let (added, _) = store.add_parsable_certificates(list);
        if added == 0 {
            return Err(none());
        }
        Ok(Anchors(Arc::new(store), sha256(&all)))
    }
}

/// Settings of a TLS client other than SIP, such as of HTTPS and syslog: the server's certificate must be valid for its
/// name by the usual rules (RFC 9525).
///
/// # Errors
/// The certificate cannot be used by a client.
pub fn client_config(
    anchors: &Anchors,
    identity: Option<&Identity>,
) -> Result<Arc<ClientConfig>, String> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(MinimumVersion::Tls12.versions())
        .map_err(|error| error.to_string())?
        .with_root_certificates(anchors.0.clone());
    Ok(Arc::new(match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => builder.with_client_cert_resolver(Arc::new(
            rustls::sign::SingleCertAndKey::from(identity.certified.clone()),
        )),
    }))
}

/// The oldest protocol version that is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinimumVersion {
    /// TLS 1.2 and 1.3.
    #[default]
    Tls12,
    /// TLS 1.3 alone.
    Tls13,
}

impl MinimumVersion {
    fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        static BOTH: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];
        match self {
            MinimumVersion::Tls12 => &BOTH,
            MinimumVersion::Tls13 => &BOTH[..1],
        }
    }
}

/// Authentication of the clients of a listener by certificates.
#[derive(Clone, Debug, Default)]
pub enum ClientAuth {
    /// No certificate.
    #[default]
    None,
    /// A certificate is requested; if the client presents one, it must be valid.
    Request(Anchors),
    /// A valid certificate is required.
    Require(Anchors),
}

impl ClientAuth {
    fn mark(&self) -> (u8, Sha256Fingerprint) {
        match self {
            ClientAuth::None => (0, [0; 32]),
            ClientAuth::Request(anchors) => (1, anchors.1),
            ClientAuth::Require(anchors) => (2, anchors.1),
        }
    }
}

/// Settings of a listener.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Certificates; the one for the name that the client requests (SNI) is used, else the first.
    pub identities: Vec<Identity>,
    /// Authentication of clients.
    pub client_auth: ClientAuth,
    /// Oldest accepted version.
    pub oldest: MinimumVersion,
}

/// Settings of connections that we open.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Trusted authorities. `None`: the peer's certificate and name are not verified; for tools that measure a server
    /// with a self-signed certificate, never for a border.
    pub anchors: Option<Anchors>,
    /// Our certificate, presented if the peer requests one.
    pub identity: Option<Identity>,
    /// SHA-256 of certificates or public keys: unless empty, the peer's must be among them, in addition to being
    /// valid.
    pub pins: Vec<Sha256Fingerprint>,
    /// Oldest accepted version.
    pub oldest: MinimumVersion,
}

/// Selects the certificate by the name that the client requests and by its signature algorithms.
#[derive(Debug)]
struct CertificateByName {
    identities: Vec<Identity>,
}

impl CertificateByName {
    /// The first certificate with this name and a key for one of these algorithms (RFC 8446 section 4.4.2.2); without
    /// such one, the first with the name, for whose refusal there is a reason, or the first with such a key.
    fn select(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<&Identity> {
        let named = |identity: &&Identity| {
            name.is_some_and(|name| identity.identities.fits_server_name(name))
        };
        let usable = |identity: &&Identity| identity.certified.key.choose_scheme(schemes).is_some();
        let all = || self.identities.iter();
        all()
            .find(|identity| named(identity) && usable(identity))
            .or_else(|| all().find(named))
            .or_else(|| all().find(usable))
            .or(self.identities.first())
    }
}

impl ResolvesServerCert for CertificateByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.select(hello.server_name(), hello.signature_schemes())
            .map(|identity| identity.certified.clone())
    }
}

#[derive(Clone)]
struct TlsListener {
    config: Arc<ServerConfig>,
    mark: (u8, Sha256Fingerprint),
}

/// Requirements on WebSocket handshake requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebSocketSettings {
    /// Accepted origins of browsers (RFC 6455 section 10.2), as `scheme://host[:port]`; empty: all, including
    /// requests without an origin.
    pub origins: Vec<String>,
    /// Accepted hosts; empty: all.
    pub hosts: Vec<String>,
    /// The accepted subprotocol; `None`: that of SIP.
    pub protocol: Option<&'static str>,
}

/// All settings of a driver for TLS and WebSocket. They are read from files, passed to the driver, and can be
/// replaced while connections are established; new settings apply to new connections.
#[derive(Clone, Default)]
pub struct Security {
    servers: HashMap<(SocketAddr, bool), TlsListener>,
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
    /// Sets the TLS settings of the listener on `address` (as requested by the engine); `websocket`: it is a
    /// WebSocket listener. Sessions of `before` can be resumed if its requirements on clients were the same.
    ///
    /// # Errors
    /// The library rejects the settings; this does not happen with values from [`Identity::read`] and
    /// [`Anchors::read`].
    pub fn server(
        &mut self,
        address: SocketAddr,
        websocket: bool,
        settings: ServerSettings,
        before: Option<&Security>,
    ) -> Result<(), String> {
        let mark = settings.client_auth.mark();
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(settings.oldest.versions())
            .map_err(|error| error.to_string())?;
        let builder = match settings.client_auth {
            ClientAuth::None => builder.with_no_client_auth(),
            ClientAuth::Request(anchors) => {
                builder.with_client_cert_verifier(Arc::new(Clients::new(anchors, false)?))
            }
            ClientAuth::Require(anchors) => {
                builder.with_client_cert_verifier(Arc::new(Clients::new(anchors, true)?))
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(CertificateByName {
            identities: settings.identities,
        }));
        // The registered ALPN identifier of SIP is sip/2; some peers send sip.
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
        self.servers.insert(key, TlsListener { config, mark });
        Ok(())
    }

    /// Sets how connections of `profile` are opened; the empty name is for those without a profile.
    ///
    /// # Errors
    /// The certificate cannot be used by a client.
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
        config.resumption = Resumption::in_memory_sessions(CACHED_SESSIONS);
        self.clients.insert(profile.to_owned(), Arc::new(config));
        Ok(())
    }

    /// Sets the requirements on WebSocket requests at a listener.
    pub fn websocket(&mut self, address: SocketAddr, settings: WebSocketSettings) {
        self.websockets.insert(address, Arc::new(settings));
    }

    /// Sets the path that our WebSocket requests use; the root by default.
    ///
    /// # Errors
    /// It is not a path: it does not begin with a slash, or contains a character that a request line cannot have.
    pub fn set_websocket_path(&mut self, path: &str) -> Result<(), String> {
        if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!(
                "{path:?} is not a WebSocket path: it must begin with / and be ASCII without spaces"
            ));
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

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519};

    #[test]
    fn certificate_is_selected_by_name_and_signature_algorithm() {
        let identity = |name: &str, algorithm| {
            let key = KeyPair::generate_for(algorithm).unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            let certificate = params.self_signed(&key).unwrap().pem();
            let (chain, private) = (Path::new("chain"), Path::new("key"));
            let key = key.serialize_pem();
            Identity::of_pem((chain, certificate.as_bytes()), (private, key.as_bytes())).unwrap()
        };
        let all = CertificateByName {
            identities: vec![
                identity("sip.example.com", &PKCS_ECDSA_P256_SHA256),
                identity("sip.example.com", &PKCS_ED25519),
                identity("*.web.example.com", &PKCS_ECDSA_P256_SHA256),
            ],
        };
        let ecdsa: &[SignatureScheme] = &[SignatureScheme::ECDSA_NISTP256_SHA256];
        let ed25519: &[SignatureScheme] = &[SignatureScheme::ED25519];
        for (name, schemes, selected) in [
            (Some("sip.example.com"), ecdsa, 0),
            (Some("sip.example.com"), ed25519, 1),
            (Some("sbc.web.example.com"), ecdsa, 2),
            // No key of this certificate is usable, but it has the name.
            (Some("sbc.web.example.com"), ed25519, 2),
            (Some("other.example.com"), ed25519, 1),
            (None, ecdsa, 0),
            (None, ed25519, 1),
            (None, &[], 0),
        ] {
            let identity = all.select(name, schemes).unwrap();
            let index = all
                .identities
                .iter()
                .position(|one| one.fingerprint == identity.fingerprint);
            assert_eq!(index, Some(selected), "{name:?} {schemes:?}");
        }
    }
}
