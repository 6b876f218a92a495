//! TLS and WebSocket: which files, and what peers must show. The files are read by the program, not here.

use super::check::Sink;
use super::mistake::Mistake;
use super::raw::OneOrMany;
use super::raw::Raw;
use super::{HostName, Interface, ListenAddress, Trunk};
use core::ops::Range;
use engine::Transport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Oldest version that is spoken.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub enum TlsVersion {
    /// 1.2 and 1.3.
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    /// 1.3 alone.
    #[serde(rename = "1.3")]
    Tls13,
}

/// What clients must show.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum ClientProof {
    /// No certificate.
    #[default]
    None,
    /// A certificate is asked for; one that is shown must be good.
    Request,
    /// A good certificate.
    Require,
}

/// A certificate with its key.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCertificate {
    /// PEM file of the certificate, followed by those between it and the authority.
    #[schemars(length(min = 1))]
    pub chain: String,
    /// PEM file of its private key, not encrypted.
    #[schemars(length(min = 1))]
    pub key: String,
}

/// TLS of a listening point.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawListenTls {
    /// Certificates with their keys: `{ chain = "FILE", key = "FILE" }`, or a list of these. The one that stands for the
    /// name that a client asks for is shown, else the first. The files are read again at each reload.
    pub certificate: OneOrMany<RawCertificate>,
    /// Certificates of clients: `none`; `request` asks for one, and takes no bad one; `require` takes nobody without.
    #[serde(default)]
    pub clients: ClientProof,
    /// Authorities that issue clients' certificates: a PEM file, or `system`. Demanded with `request` and `require`.
    pub client_ca: Option<String>,
    /// Oldest version of TLS.
    #[serde(default)]
    pub oldest: TlsVersion,
}

/// What is asked of a WebSocket.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawWebSocket {
    /// Origins from which browsers may come, as `https://phone.example.com`. Empty: any, and programs that name none.
    #[serde(default)]
    pub origins: OneOrMany<String>,
    /// Names that may be asked for as Host. Empty: any.
    #[serde(default)]
    pub hosts: OneOrMany<String>,
}

/// TLS towards a trunk.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTrunkTls {
    /// Authorities that are believed: a PEM file, or `system`.
    #[serde(default = "system")]
    pub ca: String,
    /// Name that the peer's certificate must have. Default: the host of the target (RFC 5922).
    pub name: Option<String>,
    /// Our certificate, shown where the peer asks: `{ chain = "FILE", key = "FILE" }`.
    pub certificate: Option<RawCertificate>,
    /// Certificates, or public keys, that are taken and no others: SHA-256 in hexadecimal. They must be good beside that.
    #[serde(default)]
    pub pins: OneOrMany<String>,
    /// SIP domains by which it is known where it connects to us: who shows a good certificate for one of them (RFC 5922) is
    /// this trunk, from whatever address, and nobody else is on the TLS connections of others. Empty: its address says it.
    #[serde(default)]
    pub client_names: OneOrMany<String>,
    /// Oldest version of TLS.
    #[serde(default)]
    pub oldest: TlsVersion,
}

fn system() -> String {
    "system".to_owned()
}

/// A file that the configuration names, and where: for mistakes that show only when it is read.
#[derive(Clone, Debug)]
pub struct FilePath {
    path: PathBuf,
    span: Range<usize>,
}

impl PartialEq for FilePath {
    /// The place in the file does not matter.
    fn eq(&self, other: &FilePath) -> bool {
        self.path == other.path
    }
}

impl Eq for FilePath {}

impl FilePath {
    /// What `text` names, written at `path` of the document.
    pub(super) fn new(text: &str, path: &str, sink: &Sink<'_>) -> FilePath {
        FilePath {
            path: PathBuf::from(text),
            span: sink.span(path),
        }
    }

    /// The path as it is written.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A mistake about this file in the configuration `text` of the name `file`.
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

/// Authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Those of the system; where that is written, or the table that leaves it out.
    System(FilePath),
    /// Those of a file.
    File(FilePath),
}

/// TLS of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenTls {
    /// At least one.
    pub certificates: Vec<CertificateFiles>,
    /// What clients must show.
    pub clients: ClientProof,
    /// Who vouches for clients; there unless they need show nothing.
    pub client_ca: Option<Trust>,
    /// Oldest version.
    pub oldest: TlsVersion,
}

/// What is asked of WebSockets of an interface.
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
    /// Who is believed.
    pub ca: Trust,
    /// Name that the certificate must have, where another than the target's.
    pub name: Option<String>,
    /// Our certificate.
    pub certificate: Option<CertificateFiles>,
    /// SHA-256 of what is taken; empty: anything good.
    pub pins: Vec<[u8; 32]>,
    /// SIP domains of the certificates that its connections to us show, in lower case; empty: its address says who it is.
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

fn trust(text: &str, path: &str, sink: &Sink<'_>) -> Trust {
    let place = file(text, path, sink);
    match text {
        "system" => Trust::System(place),
        _ => Trust::File(place),
    }
}

/// TLS of an interface: demanded where it listens with TLS, refused where it does not.
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
                format!("{needed} needs a certificate"),
                "add tls = { certificate = { chain = \"FILE\", key = \"FILE\" } } to the interface",
            );
            return None;
        }
    };
    if needed.is_none() && !listen.is_empty() {
        sink.report(
            &at,
            "`tls` does nothing: the interface does not listen with TLS",
            "add \"tls:ADDRESS:PORT\" or \"wss:ADDRESS:PORT\" to `listen`, or take `tls` out",
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
        (ClientProof::None, Some(_)) => sink.report(
            &ca,
            "`client_ca` does nothing: clients need show no certificate",
            "add clients = \"request\" or clients = \"require\", or take `client_ca` out",
        ),
        (ClientProof::Request | ClientProof::Require, None) => sink.report(
            &format!("{at}.clients"),
            "it is not said who vouches for clients",
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

/// What is asked of WebSockets of an interface.
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
            "`websocket` does nothing: the interface does not listen for WebSockets",
            "add \"wss:ADDRESS:PORT\" to `listen`, or take `websocket` out",
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
                format!("\"{origin}\" is no origin"),
                "write SCHEME://HOST or SCHEME://HOST:PORT without a path, such as \"https://phone.example.com\"",
            );
        }
    }
    WebSocket {
        origins: raw.origins.as_slice().to_vec(),
        hosts: raw.hosts.as_slice().to_vec(),
    }
}

/// TLS towards a trunk. `secure`: a target is reached by TLS, or may turn out to be.
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
            "`tls` does nothing: no target of the trunk is reached by TLS",
            "write the target as \"tls:HOST\", or take `tls` out",
        );
    }
    if let Some(name) = &raw.name
        && HostName::parse(name).is_none_or(|host| host.port.is_some())
    {
        sink.report(
            &format!("{at}.name"),
            format!("\"{name}\" can be nobody's name in a certificate"),
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
                format!("\"{text}\" is no SHA-256"),
                "write 64 hexadecimal digits, as of: openssl x509 -in CERTIFICATE -noout -fingerprint -sha256",
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

/// The domains by which a trunk is known.
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
            format!("\"{text}\" can be nobody's SIP domain in a certificate"),
            "write a domain such as \"sip.example.com\"",
        );
    }
    names
}

/// Trunks that are known by their certificates: where they come, certificates have to be asked for, and one certificate
/// stands for one trunk.
pub(super) fn known_by_certificate(
    raw: &Raw,
    interfaces: &[Interface],
    trunks: &[Trunk],
    sink: &mut Sink<'_>,
) {
    for (index, trunk) in trunks.iter().enumerate() {
        let names = trunk.tls.as_ref().map_or(&[][..], |tls| &tls.client_names);
        if names.is_empty() {
            continue;
        }
        let at = format!("trunk[{index}].tls.client_names");
        let interface = interfaces.get(usize::from(trunk.interface.0));
        let asks = interface
            .and_then(|interface| interface.tls.as_ref())
            .is_some_and(|tls| tls.clients != ClientProof::None);
        let listens = interface.is_some_and(|interface| {
            let mut listen = interface.listen.iter();
            listen.any(|listen| listen.transport == Transport::Tls)
        });
        if !(asks && listens) {
            let name = raw
                .interface
                .get(usize::from(trunk.interface.0))
                .map_or("", |interface| interface.name.as_str());
            sink.report(
                &at,
                format!("interface \"{name}\" asks nobody for a certificate by TLS"),
                "let it listen with tls:, and add clients = \"request\" and client_ca to its `tls`",
            );
        }
        let same = |other: &&Trunk| {
            let others = other.tls.as_ref().map_or(&[][..], |tls| &tls.client_names);
            other.interface == trunk.interface && others.iter().any(|name| names.contains(name))
        };
        if let Some(other) = trunks.iter().take(index).find(same) {
            sink.report(
                &at,
                format!("trunk \"{}\" is known by the same name", other.name),
                "give each trunk names of its own",
            );
        }
    }
}

/// 32 bytes in hexadecimal, with colons or without.
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
