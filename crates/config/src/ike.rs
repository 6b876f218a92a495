//! `[gateway.ike]`: key exchange by IKEv2 for the tunnels of the IPsec gateway.

use super::gateway::RawGateway;
use super::one_or_many::OneOrMany;
use super::sink::{Sink, one_line, seconds};
use super::tls::{CertificateFiles, FilePath};
use core::time::Duration;
use protect::ike::{IkeProposals, check_proposal};
use schemars::JsonSchema;
use serde::Deserialize;

/// Key exchange by IKEv2 (RFC 7296), by strongSwan's daemon in a network namespace of its own. It replaces `key_file`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawIke {
    /// Identity of this end, for example a host name. Default: the address of `local`.
    pub local_id: Option<String>,
    /// Certificate of this end, PEM, for tunnels without `secret_file`, followed by the intermediate certificates.
    /// Needs `private_key` and `authority`.
    pub certificate: Option<String>,
    /// Its private key, PEM.
    pub private_key: Option<String>,
    /// Certificate of the authority of the peers, PEM: that of a root, as strongSwan relies on no intermediate one. Of
    /// several in the file each suffices, for example the former and the next one.
    pub authority: Option<String>,
    /// Algorithms for IKE messages, in strongSwan's notation. Default: AES-GCM and AES-CBC with SHA-2, groups x25519,
    /// ecp256, ecp384 and modp2048.
    #[serde(default)]
    pub ike_proposals: OneOrMany<String>,
    /// Algorithms for packets, in strongSwan's notation, for example `aes128gcm16-x25519` or `aes128-sha256`. Default:
    /// AES-GCM and AES-CBC with SHA-256, with and without the groups.
    #[serde(default)]
    pub esp_proposals: OneOrMany<String>,
    /// Seconds until new keys for packets.
    #[serde(default = "rekey")]
    #[schemars(range(min = 5, max = 86_400))]
    pub rekey_s: u32,
    /// Seconds until new keys for IKE messages.
    #[serde(default = "ike_rekey")]
    #[schemars(range(min = 60, max = 604_800))]
    pub ike_rekey_s: u32,
    /// Seconds without a message of a peer after which it is asked whether it is alive (RFC 7296 section 2.4). Without
    /// an answer for another 26 s its tunnel is down.
    #[serde(default = "dead_peer")]
    #[schemars(range(min = 1, max = 3_600))]
    pub dead_peer_s: u32,
}

impl Default for RawIke {
    /// The table without a key.
    fn default() -> RawIke {
        RawIke {
            local_id: None,
            certificate: None,
            private_key: None,
            authority: None,
            ike_proposals: OneOrMany::default(),
            esp_proposals: OneOrMany::default(),
            rekey_s: rekey(),
            ike_rekey_s: ike_rekey(),
            dead_peer_s: dead_peer(),
        }
    }
}

fn rekey() -> u32 {
    3_600
}

fn ike_rekey() -> u32 {
    14_400
}

fn dead_peer() -> u32 {
    30
}

/// Key exchange by IKEv2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IkeSpec {
    /// Its table, for mistakes in its files.
    pub place: FilePath,
    /// Identity of this end; its address if absent.
    pub local_id: Option<String>,
    /// Certificate of this end, and the authority of the peers.
    pub certificate: Option<(CertificateFiles, FilePath)>,
    /// Algorithms.
    pub proposals: IkeProposals,
    /// Time until new keys for packets.
    pub rekey: Duration,
    /// Time until new keys for IKE messages.
    pub ike_rekey: Duration,
    /// Time without a message after which a peer is asked whether it is alive.
    pub dead_peer: Duration,
}

/// Key exchange for a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IkeTunnelSpec {
    /// Identity of the peer; its address if absent.
    pub remote_id: Option<String>,
    /// Shared secret; certificates without one.
    pub secret_file: Option<FilePath>,
    /// This end sets the tunnel up.
    pub initiates: bool,
}

/// Text that the daemon takes as an identity, and not as a pattern.
fn identity(text: Option<&String>, path: &str, sink: &mut Sink<'_>) -> Option<String> {
    let text = text?;
    if text.is_empty() || !one_line(text) || text.contains(['%', '*', '"']) {
        sink.report(
            path,
            format!("\"{text}\" is no identity"),
            "write an address, a host name, user@host or the subject of a certificate",
        );
    }
    Some(text.clone())
}

/// `table`: the path of the table, here and below.
fn proposals((raw, table): (&RawIke, &str), allow_weak: bool, sink: &mut Sink<'_>) -> IkeProposals {
    let path = |key: &str| format!("{table}.{key}");
    let mut proposals = IkeProposals::default();
    let given = |texts: &OneOrMany<String>| texts.as_slice().to_vec();
    if !raw.ike_proposals.as_slice().is_empty() {
        proposals.ike = given(&raw.ike_proposals);
    }
    if !raw.esp_proposals.as_slice().is_empty() {
        proposals.esp = given(&raw.esp_proposals);
    }
    for (index, text) in raw.ike_proposals.as_slice().iter().enumerate() {
        let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if text.is_empty() || !text.bytes().all(is_good) {
            sink.report(
                &raw.ike_proposals.path(&path("ike_proposals"), index),
                format!("\"{text}\" is no proposal"),
                "write algorithms with hyphens, for example \"aes128-sha256-x25519\"",
            );
        }
    }
    for (index, text) in raw.esp_proposals.as_slice().iter().enumerate() {
        if let Err(why) = check_proposal(text, allow_weak) {
            sink.report(
                &raw.esp_proposals.path(&path("esp_proposals"), index),
                why,
                "write for example \"aes128gcm16-x25519\" or \"aes128-sha256-x25519\"",
            );
        }
    }
    proposals
}

fn certificate(
    (raw, table): (&RawIke, &str),
    sink: &mut Sink<'_>,
) -> Option<(CertificateFiles, FilePath)> {
    let path = |key: &str| format!("{table}.{key}");
    let given = [&raw.certificate, &raw.private_key, &raw.authority];
    let [Some(certificate), Some(key), Some(authority)] = given else {
        if given.iter().any(|text| text.is_some()) {
            let message = "certificate, private_key and authority belong together";
            sink.report(table, message, "write all three, or none");
        }
        return None;
    };
    let files = CertificateFiles {
        chain: FilePath::new(certificate, &path("certificate"), sink),
        key: FilePath::new(key, &path("private_key"), sink),
    };
    let authority = FilePath::new(authority, &path("authority"), sink);
    Some((files, authority))
}

/// Keys of `[gateway]` that have no effect with a key exchange.
fn refuse_manual(gateway: &RawGateway, sink: &mut Sink<'_>) {
    let manual = [
        ("key_file", gateway.key_file.is_some()),
        ("numbers_file", gateway.numbers_file.is_some()),
        ("rekey_delay_s", gateway.rekey_delay_s.is_some()),
        ("lifetime_s", gateway.lifetime_s != 0),
    ];
    for (key, _) in manual.iter().filter(|(_, given)| *given) {
        sink.report(
            &format!("gateway.{key}"),
            format!("`{key}` is for manual keys, and has no effect with [gateway.ike]"),
            "remove it; rekey_s of [gateway.ike] bounds the use of keys",
        );
    }
}

/// The key exchange of a gateway.
pub(super) fn ike(gateway: &RawGateway, sink: &mut Sink<'_>) -> Option<IkeSpec> {
    let raw = gateway.ike.as_ref()?;
    refuse_manual(gateway, sink);
    if gateway.encapsulation == super::gateway::Encapsulation::Ip {
        sink.report(
            "gateway.encapsulation",
            "with [gateway.ike] ESP is in UDP",
            "set encapsulation = \"udp\"",
        );
    }
    Some(spec((raw, "gateway.ike"), gateway.allow_weak, sink))
}

/// The settings of a table.
pub(super) fn spec(
    (raw, table): (&RawIke, &str),
    allow_weak: bool,
    sink: &mut Sink<'_>,
) -> IkeSpec {
    IkeSpec {
        place: FilePath::new("", table, sink),
        local_id: identity(raw.local_id.as_ref(), &format!("{table}.local_id"), sink),
        certificate: certificate((raw, table), sink),
        proposals: proposals((raw, table), allow_weak, sink),
        rekey: seconds(raw.rekey_s),
        ike_rekey: seconds(raw.ike_rekey_s),
        dead_peer: seconds(raw.dead_peer_s),
    }
}

/// The keys of a tunnel that belong to a key exchange.
#[derive(Clone, Copy)]
pub(super) struct RawTunnelIke<'r> {
    pub(super) remote_id: Option<&'r String>,
    pub(super) secret_file: Option<&'r String>,
    pub(super) initiate: Option<bool>,
}

/// The key exchange for a tunnel, whose keys begin with `prefix`. `has_peer`: the address of the peer is known.
pub(super) fn tunnel(
    raw: RawTunnelIke<'_>,
    prefix: &str,
    (ike, has_peer): (Option<&IkeSpec>, bool),
    sink: &mut Sink<'_>,
) -> Option<IkeTunnelSpec> {
    let path = |key: &str| format!("{prefix}{key}");
    let Some(ike) = ike else {
        for (key, given) in [
            ("remote_id", raw.remote_id.is_some()),
            ("secret_file", raw.secret_file.is_some()),
            ("initiate", raw.initiate.is_some()),
        ] {
            if given {
                let message =
                    format!("`{key}` is for a key exchange, and there is no [gateway.ike]");
                sink.report(&path(key), message, "remove it, or add [gateway.ike]");
            }
        }
        return None;
    };
    if raw.secret_file.is_some_and(|file| file.is_empty()) {
        let remedy = "write the name of the file with the secret";
        sink.report(&path("secret_file"), "the file name is empty", remedy);
    }
    if raw.secret_file.is_none() && ike.certificate.is_none() {
        sink.report(
            &path("secret_file"),
            "the tunnel has neither a shared secret nor certificates",
            "write secret_file, or certificate, private_key and authority of the key exchange",
        );
    }
    if !has_peer && raw.remote_id.is_none() {
        let message = "a peer of any address needs an identity";
        sink.report(&path("remote_id"), message, "write remote_id");
    }
    if !has_peer && raw.initiate == Some(true) {
        let message = "a peer of any address sets the tunnel up itself";
        sink.report(
            &path("initiate"),
            message,
            "remove it, or write the peer's address",
        );
    }
    Some(IkeTunnelSpec {
        remote_id: identity(raw.remote_id, &path("remote_id"), sink),
        secret_file: raw
            .secret_file
            .map(|file| FilePath::new(file, &path("secret_file"), sink)),
        initiates: raw.initiate.unwrap_or(has_peer),
    })
}
