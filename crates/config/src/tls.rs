//! TLS and WebSocket: certificate files and checks of peers. The program reads the files, not this module.

use super::address::{HostName, ListenAddress};
use super::mistake::Mistake;
use super::one_or_many::OneOrMany;
use super::sink::Sink;
use core::ops::Range;
use engine::Transport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Oldest accepted version of TLS.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub enum TlsVersion {
    /// 1.2 and 1.3.
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    /// 1.3 only.
    #[serde(rename = "1.3")]
    Tls13,
}

/// Client certificates.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum ClientAuthentication {
    /// Not requested.
    #[default]
    None,
    /// Requested; a certificate that is presented must be valid.
    Request,
    /// A valid certificate is required.
    Require,
}

/// A certificate and its key.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCertificate {
    /// PEM file with the certificate, followed by the intermediate certificates.
    #[schemars(length(min = 1))]
    pub chain: String,
    /// PEM file with the unencrypted private key.
    #[schemars(length(min = 1))]
    pub key: String,
}

/// TLS of an interface.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawListenTls {
    /// Certificates with their keys: `{ chain = "FILE", key = "FILE" }`, or a list of these. The one that matches the
    /// server name of the client (a wildcard stands for one label) and its signature algorithms is presented, otherwise
    /// the first. The files are read again at each reload.
    pub certificate: OneOrMany<RawCertificate>,
    /// Client certificates. `none`: not requested. `request`: requested; a certificate that is presented must be valid.
    /// `require`: a valid certificate is required.
    #[serde(default)]
    pub clients: ClientAuthentication,
    /// Certificate authorities for client certificates: a PEM file, or `system`. Required with `request` and `require`.
    pub client_ca: Option<String>,
    /// Oldest accepted version of TLS.
    #[serde(default)]
    pub oldest: TlsVersion,
}

/// Checks of WebSocket handshakes.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawWebSocket {
    /// Accepted origins of browsers, such as `https://phone.example.com`. Empty: any, and clients without Origin.
    #[serde(default)]
    pub origins: OneOrMany<String>,
    /// Accepted values of Host. Empty: any.
    #[serde(default)]
    pub hosts: OneOrMany<String>,
}

/// TLS towards a trunk.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTrunkTls {
    /// Trusted certificate authorities: a PEM file, or `system`.
    #[serde(default = "system")]
    pub ca: String,
    /// Name that the certificate of the trunk must contain. Default: the host of the target (RFC 5922).
    pub name: Option<String>,
    /// Our certificate, presented on request: `{ chain = "FILE", key = "FILE" }`.
    pub certificate: Option<RawCertificate>,
    /// Pinned certificates or public keys: SHA-256 in hexadecimal. Only these are accepted, and they must also be
    /// valid.
    #[serde(default)]
    pub pins: OneOrMany<String>,
    /// SIP domains that identify the trunk on connections to us: a peer with a valid certificate for one of them (RFC
    /// 5922) is this trunk, from any address, and other TLS connections never are. Empty: the trunk is identified by
    /// its address.
    #[serde(default)]
    pub client_names: OneOrMany<String>,
    /// Oldest accepted version of TLS.
    #[serde(default)]
    pub oldest: TlsVersion,
}

fn system() -> String {
    "system".to_owned()
}

/// A file named in the configuration, with its position for mistakes that appear when it is read.
#[derive(Clone, Debug)]
pub struct FilePath {
    path: PathBuf,
    span: Range<usize>,
}

impl PartialEq for FilePath {
    /// The position is ignored.
    fn eq(&self, other: &FilePath) -> bool {
        self.path == other.path
    }
}

impl Eq for FilePath {}

impl FilePath {
    /// The file `text`, written at `path` of the document.
    pub(super) fn new(text: &str, path: &str, sink: &Sink<'_>) -> FilePath {
        FilePath {
            path: sink.path(text),
            span: sink.span(path),
        }
    }

    /// The path; a relative one starts at the folder of the configuration file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A mistake about this file in the configuration `text` named `file`.
    pub fn mistake(&self, text: &str, file: &str, message: String, remedy: String) -> Mistake {
        Mistake::new(text, file, self.span.clone(), message, remedy)
    }
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate with its chain.
    pub chain: FilePath,
    /// The private key.
    pub key: FilePath,
}

/// Certificate authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Those of the system; the position is that of the value, or of the table without it.
    System(FilePath),
    /// Those of a file.
    File(FilePath),
}

/// TLS of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenTls {
    /// Certificates; at least one.
    pub certificates: Vec<CertificateFiles>,
    /// Policy for client certificates.
    pub clients: ClientAuthentication,
    /// Authorities for client certificates; present unless none are requested.
    pub client_ca: Option<Trust>,
    /// Oldest version.
    pub oldest: TlsVersion,
}

/// Checks of WebSocket handshakes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebSocket {
    /// Origins; empty: any.
    pub origins: Vec<String>,
    /// Hosts; empty: any.
    pub hosts: Vec<String>,
}

/// TLS towards a trunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrunkTls {
    /// Trusted authorities.
    pub ca: Trust,
    /// Name that the certificate must contain, if it is not the host of the target.
    pub name: Option<String>,
    /// Our certificate.
    pub certificate: Option<CertificateFiles>,
    /// SHA-256 of pinned certificates or keys; empty: no pinning.
    pub pins: Vec<[u8; 32]>,
    /// SIP domains, in lower case, of the certificates that identify its connections to us; empty: it is identified by
    /// its address.
    pub client_names: Vec<String>,
    /// Oldest version.
    pub oldest: TlsVersion,
}

fn file(text: &str, path: &str, sink: &Sink<'_>) -> FilePath {
    FilePath::new(text, path, sink)
}

fn certificate(raw: &RawCertificate, path: &str, sink: &Sink<'_>) -> CertificateFiles {
    CertificateFiles {
        chain: file(&raw.chain, &format!("{path}.chain"), sink),
        key: file(&raw.key, &format!("{path}.key"), sink),
    }
}

pub(super) fn trust(text: &str, path: &str, sink: &Sink<'_>) -> Trust {
    let place = file(text, path, sink);
    match text {
        "system" => Trust::System(place),
        _ => Trust::File(place),
    }
}

/// TLS of an interface: required with TLS listeners, refused without.
pub(super) fn listen_tls(
    raw: Option<&RawListenTls>,
    listen: &[ListenAddress],
    path: &str,
    sink: &mut Sink<'_>,
) -> Option<ListenTls> {
    let secure =
        |listen: &&ListenAddress| matches!(listen.transport, Transport::Tls | Transport::Wss);
    let at = format!("{path}.tls");
    let (raw, needed) = match (raw, listen.iter().find(secure)) {
        (Some(raw), needed) => (raw, needed),
        (None, None) => return None,
        (None, Some(needed)) => {
            sink.report(
                &format!("{path}.listen"),
                format!("{needed} requires a certificate"),
                "add tls = { certificate = { chain = \"FILE\", key = \"FILE\" } } to the interface",
            );
            return None;
        }
    };
    if needed.is_none() && !listen.is_empty() {
        sink.report(
            &at,
            "`tls` has no effect: the interface has no TLS listener",
            "add \"tls:ADDRESS:PORT\" or \"wss:ADDRESS:PORT\" to `listen`, or remove `tls`",
        );
    }
    let base = format!("{at}.certificate");
    let certificates: Vec<CertificateFiles> = raw
        .certificate
        .as_slice()
        .iter()
        .enumerate()
        .map(|(index, one)| certificate(one, &raw.certificate.path(&base, index), sink))
        .collect();
    if certificates.is_empty() {
        let remedy = "add { chain = \"FILE\", key = \"FILE\" }";
        sink.report(&base, "`certificate` is empty", remedy);
    }
    let ca = format!("{at}.client_ca");
    match (raw.clients, &raw.client_ca) {
        (ClientAuthentication::None, Some(_)) => sink.report(
            &ca,
            "`client_ca` has no effect: client certificates are not requested",
            "set clients = \"request\" or \"require\", or remove `client_ca`",
        ),
        (ClientAuthentication::Request | ClientAuthentication::Require, None) => sink.report(
            &format!("{at}.clients"),
            "the certificate authorities for client certificates are missing",
            "add client_ca = \"FILE\" with the authorities that issue their certificates",
        ),
        _ => {}
    }
    Some(ListenTls {
        certificates,
        clients: raw.clients,
        client_ca: raw.client_ca.as_ref().map(|text| trust(text, &ca, sink)),
        oldest: raw.oldest,
    })
}

/// Checks of WebSocket handshakes of an interface.
pub(super) fn websocket(
    raw: Option<&RawWebSocket>,
    listen: &[ListenAddress],
    path: &str,
    sink: &mut Sink<'_>,
) -> WebSocket {
    let Some(raw) = raw else {
        return WebSocket::default();
    };
    let at = format!("{path}.websocket");
    let web = |listen: &ListenAddress| matches!(listen.transport, Transport::Ws | Transport::Wss);
    if !listen.is_empty() && !listen.iter().any(web) {
        sink.report(
            &at,
            "`websocket` has no effect: the interface has no WebSocket listener",
            "add \"wss:ADDRESS:PORT\" to `listen`, or remove `websocket`",
        );
    }
    let base = format!("{at}.origins");
    for (index, origin) in raw.origins.as_slice().iter().enumerate() {
        let good = origin.split_once("://").is_some_and(|(scheme, host)| {
            !scheme.is_empty() && !host.is_empty() && !host.contains('/')
        });
        if !good {
            sink.report(
                &raw.origins.path(&base, index),
                format!("\"{origin}\" is not an origin"),
                "write SCHEME://HOST or SCHEME://HOST:PORT without a path, such as \"https://phone.example.com\"",
            );
        }
    }
    WebSocket {
        origins: raw.origins.as_slice().to_vec(),
        hosts: raw.hosts.as_slice().to_vec(),
    }
}

/// TLS towards a trunk. `secure`: a target uses TLS, or may use it.
pub(super) fn trunk_tls(
    raw: Option<&RawTrunkTls>,
    secure: bool,
    path: &str,
    sink: &mut Sink<'_>,
) -> Option<TrunkTls> {
    let at = format!("{path}.tls");
    let Some(raw) = raw else {
        return secure.then(|| TrunkTls {
            ca: Trust::System(file("system", &format!("{path}.target"), sink)),
            name: None,
            certificate: None,
            pins: Vec::new(),
            client_names: Vec::new(),
            oldest: TlsVersion::Tls12,
        });
    };
    let client_names = client_names(raw, &at, sink);
    if !secure && client_names.is_empty() {
        sink.report(
            &at,
            "`tls` has no effect: no target of the trunk uses TLS",
            "write the target as \"tls:HOST\", or remove `tls`",
        );
    }
    if let Some(name) = &raw.name
        && HostName::parse(name).is_none_or(|host| host.port.is_some())
    {
        sink.report(
            &format!("{at}.name"),
            format!("\"{name}\" cannot be a name in a certificate"),
            "write a domain such as \"sip.example.com\"",
        );
    }
    let base = format!("{at}.pins");
    let mut pins = Vec::new();
    for (index, text) in raw.pins.as_slice().iter().enumerate() {
        match fingerprint(text) {
            Some(pin) => pins.push(pin),
            None => sink.report(
                &raw.pins.path(&base, index),
                format!("\"{text}\" is not a SHA-256"),
                "write 64 hexadecimal digits, as printed by: openssl x509 -in CERTIFICATE -noout -fingerprint -sha256",
            ),
        }
    }
    let own = raw.certificate.as_ref();
    Some(TrunkTls {
        ca: trust(&raw.ca, &format!("{at}.ca"), sink),
        name: raw.name.clone(),
        certificate: own.map(|own| certificate(own, &format!("{at}.certificate"), sink)),
        pins,
        client_names,
        oldest: raw.oldest,
    })
}

/// The domains that identify a trunk.
fn client_names(raw: &RawTrunkTls, at: &str, sink: &mut Sink<'_>) -> Vec<String> {
    let base = format!("{at}.client_names");
    let mut names = Vec::new();
    for (index, text) in raw.client_names.as_slice().iter().enumerate() {
        let domain =
            HostName::parse(text).is_some_and(|host| host.port.is_none() && host.ip().is_none());
        if domain {
            names.push(text.to_ascii_lowercase());
            continue;
        }
        sink.report(
            &raw.client_names.path(&base, index),
            format!("\"{text}\" cannot be a SIP domain in a certificate"),
            "write a domain such as \"sip.example.com\"",
        );
    }
    names
}

/// Parses 32 bytes in hexadecimal, with or without colons.
fn fingerprint(text: &str) -> Option<[u8; 32]> {
    let text = text.strip_prefix("sha256:").unwrap_or(text);
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b':').collect();
    let mut out = [0; 32];
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    digits.iter().all(u8::is_ascii_hexdigit).then_some(out)
}
