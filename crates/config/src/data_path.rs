//! `data_path` and `media` of `[gateway]`: ESP in this program or in the kernel, and the path of media.

use super::gateway::{GatewayKeySource, GatewaySpec};
use super::sink::Sink;
use protect::esp::AddressPrefix;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Place where packets are sealed and opened.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum DataPath {
    /// The kernel, if it has ESP with each algorithm of `esp_proposals`, and if this configuration allows it: with
    /// `[gateway.ike]`, without `dscp`, without a remote network that overlaps a local one, and without a peer of
    /// changing address (`peer_behind_nat`, `any`). Otherwise this program.
    #[default]
    Auto,
    /// This program.
    User,
    /// The kernel's own IPsec (XFRM); refused where `auto` would not choose it.
    Kernel,
}

/// Path of media of calls whose address is inside of a tunnel.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum GatewayMedia {
    /// Between the tunnel and the media ports of this program, on the thread of media: without TUN device and sockets,
    /// at less than half of the CPU time. Packet filters and captures of the TUN device do not see these packets. With
    /// several `workers` of `[sip]`, with media at media nodes and with ESP in the kernel it is the same as `kernel`.
    #[default]
    Direct,
    /// Through the TUN device and the kernel, by a thread of the gateway.
    Kernel,
}

impl GatewaySpec {
    /// Why no kernel can carry the packets of this configuration: the key, and the reason.
    pub fn needs_user_space(&self) -> Option<(String, &'static str)> {
        if matches!(self.keys, GatewayKeySource::File(_)) {
            // The used numbers of such keys are in a file, and the kernel has no bound for them.
            let reason = "keys of a file are used by this program only";
            return Some(("gateway.data_path".to_owned(), reason));
        }
        if self.dscp.is_some() {
            let reason = "the kernel has no fixed DSCP for outer headers";
            return Some(("gateway.dscp".to_owned(), reason));
        }
        let overlaps = |one: &AddressPrefix, other: &AddressPrefix| {
            one.contains(other.address()) || other.contains(one.address())
        };
        let around = self.tunnels.iter().position(|tunnel| {
            let mut remote = tunnel.remote_networks.iter();
            remote.any(|remote| {
                tunnel
                    .local_networks
                    .iter()
                    .any(|local| overlaps(local, remote))
            })
        });
        if let Some(around) = around {
            // They come before routes: packets of a local network to itself would be sealed.
            let reason = "policies of the kernel would take packets between local networks, too";
            return Some((format!("gateway.tunnel[{around}].remote_networks"), reason));
        }
        let moving = self.tunnels.iter().position(|one| one.peer_behind_nat)?;
        let key = match self.tunnels.get(moving)?.peer {
            Some(_) => "peer_behind_nat",
            None => "peer",
        };
        let reason = "associations in the kernel do not follow a peer whose address changes";
        Some((format!("gateway.tunnel[{moving}].{key}"), reason))
    }
}

/// `kernel` contradicts keys that only this program can follow.
pub(super) fn check_data_path(spec: &GatewaySpec, sink: &mut Sink<'_>) {
    if spec.data_path == DataPath::Kernel
        && let Some((path, reason)) = spec.needs_user_space()
    {
        sink.report(
            &path,
            format!("data_path = \"kernel\" is not possible: {reason}"),
            "remove data_path, or set data_path = \"user\"",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::gateway::GatewaySpec;
    use super::super::parse;
    use super::{DataPath, GatewayMedia};

    fn with(keys: &str, tunnel: &str) -> Result<GatewaySpec, String> {
        let source = match keys.contains("ike") {
            true => "",
            false => "key_file=\"/k\"",
        };
        let remote = match tunnel.contains("remote_networks") {
            true => "",
            false => "remote_networks=\"10.2.0.0/16\"\n",
        };
        let networks = format!("local_networks=\"10.1.0.0/16\"\n{remote}");
        let text = format!(
            "[gateway]\nlocal=\"192.0.2.1\"\n{source}\n{keys}\n[[gateway.tunnel]]\nname=\"b\"\n{networks}\n{tunnel}\n"
        );
        let parsed = parse(&text, "f").map(|config| config.gateway.expect("gateway"));
        parsed.map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn media_passes_directly_by_default() {
        const PEER: &str = "peer=\"192.0.2.2\"";
        let media = |keys| with(keys, PEER).map(|spec| spec.media);
        assert_eq!(media(""), Ok(GatewayMedia::Direct));
        assert_eq!(media("media=\"direct\""), Ok(GatewayMedia::Direct));
        assert_eq!(media("media=\"kernel\""), Ok(GatewayMedia::Kernel));
        let mistake = media("media=\"xfrm\"").unwrap_err();
        assert!(
            mistake.contains("direct") && mistake.contains("kernel"),
            "{mistake}"
        );
    }

    #[test]
    fn the_kernel_needs_a_suitable_configuration() {
        const PEER: &str = "peer=\"192.0.2.2\"";
        const SECRET: &str = "peer=\"192.0.2.2\"\nsecret_file=\"/s\"";
        let spec = with("[gateway.ike]", SECRET).unwrap();
        assert_eq!(spec.data_path, DataPath::Auto);
        assert_eq!(spec.needs_user_space(), None);
        let spec = with("data_path=\"kernel\"\n[gateway.ike]", SECRET).unwrap();
        assert_eq!(spec.data_path, DataPath::Kernel);
        let moving = format!("{SECRET}\npeer_behind_nat=true");
        let all = format!("{SECRET}\nremote_networks=\"0.0.0.0/0\"");
        let any = "peer=\"any\"\nremote_id=\"o\"\nsecret_file=\"/s\"";
        for (keys, tunnel, key) in [
            ("", PEER, "gateway.data_path"),
            ("dscp=46\n[gateway.ike]", SECRET, "gateway.dscp"),
            (
                "[gateway.ike]",
                &moving,
                "gateway.tunnel[0].peer_behind_nat",
            ),
            ("[gateway.ike]", &all, "gateway.tunnel[0].remote_networks"),
            ("[gateway.ike]", any, "gateway.tunnel[0].peer"),
        ] {
            let (at, reason) = with(keys, tunnel).unwrap().needs_user_space().unwrap();
            assert_eq!(at, key);
            let said = with(&format!("data_path=\"kernel\"\n{keys}"), tunnel).unwrap_err();
            let expected = format!("data_path = \"kernel\" is not possible: {reason}");
            assert!(said.contains(&expected), "{said}");
            assert!(with(&format!("data_path=\"user\"\n{keys}"), tunnel).is_ok());
        }
    }
}
