//! The key exchange of a softphone, in a file of its own (`hornwork phone --ike FILE`).

use super::check;
use super::gateway::{ANY_PEER, optional_networks, outer_address};
use super::ike::{IkeSpec, IkeTunnelSpec, RawIke, RawTunnelIke};
use super::mistake::Mistake;
use super::one_or_many::OneOrMany;
use super::sink::Sink;
use core::net::SocketAddr;
use protect::esp::AddressPrefix;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The page with the keys of the file.
const REFERENCE: &str = "docs/how-to/phone.md";

/// Key exchange of a softphone. The keys are those of a `[[gateway.tunnel]]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RawPhoneIke {
    /// Outer address of this machine: `ADDRESS`, or `ADDRESS:PORT` if the UDP port of ESP is not 4500. Default: that of
    /// the route to the peer.
    local: Option<String>,
    /// Outer address of the peer: `ADDRESS`, or `ADDRESS:PORT` if its UDP port is not 4500. `any`: the peer sets the
    /// tunnel up.
    peer: String,
    /// Mode of ESP.
    #[serde(default)]
    mode: PhoneIkeMode,
    /// Networks behind the peer. Without one the tunnel carries packets between the outer addresses of both ends.
    #[serde(default)]
    remote_networks: OneOrMany<String>,
    /// Identity of the peer. Default: its address.
    remote_id: Option<String>,
    /// File with the secret that both ends share, one line. Only its owner may have access to it.
    secret_file: Option<String>,
    /// This end sets the tunnel up, and again when it is lost.
    initiate: Option<bool>,
    /// Allows algorithms that must not be used any more (RFC 8221).
    #[serde(default)]
    allow_weak: bool,
    /// Identity, certificate, algorithms and times.
    #[serde(default)]
    ike: RawIke,
}

/// Mode of ESP.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum PhoneIkeMode {
    /// Whole IP packets are protected.
    #[default]
    Tunnel,
    /// Payloads are protected. strongSwan refuses it without IPsec of the kernel.
    Transport,
}

/// Key exchange of a softphone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhoneIkeSpec {
    /// Outer address, with the port of ESP in UDP; that of the route to the peer if absent.
    pub local: Option<SocketAddr>,
    /// Outer address of the peer; any if absent.
    pub peer: Option<SocketAddr>,
    /// Networks behind the peer; empty: its outer address.
    pub remote_networks: Vec<AddressPrefix>,
    /// Whether this end initiates, if the file says so.
    pub initiate: Option<bool>,
    /// Weak algorithms are allowed.
    pub allow_weak: bool,
    /// Identity, certificate, algorithms and times.
    pub ike: IkeSpec,
    /// Identity and secret of the peer.
    pub tunnel: IkeTunnelSpec,
}

/// Parses and checks the file of a softphone's key exchange.
///
/// # Errors
/// All mistakes, in the order of the file.
pub fn parse_phone_ike(text: &str, file: &str) -> Result<PhoneIkeSpec, Vec<Mistake>> {
    let node = check::document(text, file)?;
    let schema = schemars::schema_for!(RawPhoneIke).to_value();
    let mut sink = Sink::new(text, file, &node);
    let of = (&mut sink, REFERENCE);
    let raw: RawPhoneIke = check::values((text, file), (&node, &schema), of)?;
    let spec = spec(&raw, &mut sink);
    match spec {
        Some(spec) if sink.mistakes.is_empty() => Ok(spec),
        _ => Err(sink.sorted()),
    }
}

fn spec(raw: &RawPhoneIke, sink: &mut Sink<'_>) -> Option<PhoneIkeSpec> {
    if raw.mode == PhoneIkeMode::Transport {
        sink.report(
            "mode",
            "transport mode is not negotiated: strongSwan's daemon without IPsec of the kernel has tunnel mode only",
            "set mode = \"tunnel\"; without remote_networks the tunnel is one between the addresses of both ends",
        );
    }
    let peer = match raw.peer.as_str() {
        ANY_PEER => None,
        text => Some(outer_address(text, "peer", sink)),
    };
    let local = raw.local.as_ref();
    let local = local.map(|text| outer_address(text, "local", sink));
    if local.is_none() && peer.is_none() {
        let message = "with a peer of any address this end needs its own";
        sink.report("peer", message, "write local, or the peer's address");
    }
    if let (Some(local), Some(peer)) = (local, peer)
        && local.is_ipv4() != peer.is_ipv4()
    {
        let message = format!("{} and {} are of two families", local.ip(), peer.ip());
        sink.report("local", message, "write addresses of one family");
    }
    let ike = super::ike::spec((&raw.ike, "ike"), raw.allow_weak, sink);
    let tunnel = super::ike::tunnel(
        RawTunnelIke {
            remote_id: raw.remote_id.as_ref(),
            secret_file: raw.secret_file.as_ref(),
            initiate: raw.initiate,
        },
        "",
        (Some(&ike), peer.is_some()),
        sink,
    );
    Some(PhoneIkeSpec {
        local,
        peer,
        remote_networks: optional_networks(&raw.remote_networks, "remote_networks", sink),
        initiate: raw.initiate,
        allow_weak: raw.allow_weak,
        tunnel: tunnel?,
        ike,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let mistakes = parse_phone_ike(text, "f").unwrap_err();
        let texts: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        texts.join("\n")
    }

    #[test]
    fn a_file_names_the_peer_and_a_secret() {
        let text = "peer = \"192.0.2.2\"\nsecret_file = \"psk\"\n";
        let spec = parse_phone_ike(text, "f").unwrap();
        assert_eq!(spec.peer, "192.0.2.2:4500".parse().ok());
        assert_eq!((spec.local, spec.initiate), (None, None));
        assert!(spec.remote_networks.is_empty() && !spec.allow_weak);
        assert_eq!(spec.ike.rekey.as_secs(), 3_600);
        let text = "local = \"[2001:db8::1]:4501\"\npeer = \"any\"\nmode = \"tunnel\"\nremote_id = \"b.example\"\ninitiate = false\n\
                    remote_networks = [\"10.2.0.0/16\", \"fd00::/8\"]\n[ike]\nrekey_s = 5\n\
                    certificate = \"a.pem\"\nprivate_key = \"a.key\"\nauthority = \"ca.pem\"\n";
        let spec = parse_phone_ike(text, "f").unwrap();
        assert_eq!((spec.peer, spec.initiate), (None, Some(false)));
        assert_eq!(spec.remote_networks.len(), 2);
        assert!(spec.ike.certificate.is_some() && spec.tunnel.secret_file.is_none());
    }

    #[test]
    fn mistakes_have_their_line_and_a_remedy() {
        let peer = "peer = \"192.0.2.2\"\n";
        let secret = "secret_file = \"psk\"\n";
        for (text, said) in [
            (String::new(), "peer"),
            (peer.to_owned(), "neither a shared secret nor certificates"),
            (
                format!("{peer}{secret}mode = \"transport\"\n"),
                "f:3:8: transport mode is not negotiated",
            ),
            (format!("{peer}{secret}mode = \"beet\"\n"), "f:3:"),
            (format!("{peer}{secret}port = 1\n"), "f:3:"),
            (
                format!("peer = \"any\"\n{secret}remote_id = \"a\"\n"),
                "needs its own",
            ),
            (
                format!("peer = \"any\"\n{secret}local = \"192.0.2.1\"\n"),
                "needs an identity",
            ),
            (
                format!("{peer}{secret}local = \"2001:db8::1\"\n"),
                "two families",
            ),
            (
                format!("{peer}{secret}remote_networks = \"10.2.0.0/33\"\n"),
                "f:3:",
            ),
            (
                format!("{peer}{secret}[ike]\nesp_proposals = \"3des-sha1\"\n"),
                "f:4:",
            ),
            (format!("{peer}{secret}[ike]\nrekey_s = 1\n"), "f:4:"),
            (
                format!("{peer}{secret}[ike]\ncertificate = \"a\"\n"),
                "belong together",
            ),
        ] {
            let mistakes = refused(&text);
            assert!(mistakes.contains(said), "{text}: {mistakes}");
            assert!(mistakes.contains("remedy: "), "{mistakes}");
        }
    }
}
