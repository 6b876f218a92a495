//! The tunnel between the callers and a border with `[gateway]` of its own: its table in the border's configuration,
//! its key file, and the associations of the callers' end.

use super::{EspCarriage, EspCase, EspEnds, random_spec};
use crate::error::LabError;
use engine::{Entropy, Time};
use protect::esp::{EspEncryption, EspIntegrity, InboundSa, OutboundSa, SaSpec};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use zeroize::Zeroizing;

/// Name of the key file beside the configuration.
pub(crate) const KEY_FILE: &str = "esp.keys";
/// TUN device of the border's gateway.
pub(crate) const DEVICE: &str = "esp0";
/// SPIs towards the border, and towards the callers.
const SPIS: [u32; 2] = [0x1000_0001, 0x1000_0002];

/// Replay window, packets: the default of `[gateway] replay_window`.
const WINDOW: usize = 1_024;

/// Addresses of a tunnel: of the callers, and of the border.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TunnelAddresses {
    /// Of the outer packets.
    pub(crate) outer: [Ipv4Addr; 2],
    /// In the tunnel.
    pub(crate) inner: [IpAddr; 2],
}

/// The tunnel, with manual keys.
#[derive(Clone, Debug)]
pub(crate) struct BorderTunnel {
    addresses: TunnelAddresses,
    case: &'static EspCase,
    /// `[gateway] media`.
    media: &'static str,
    /// Associations towards the border, and towards the callers.
    specs: [SaSpec; 2],
}

/// Name of the encryption in Wireshark's `esp_sa` table, of those that experiments with calls have.
fn encryption_name(encryption: EspEncryption) -> Option<&'static str> {
    Some(match encryption {
        EspEncryption::AesCbc => "AES-CBC [RFC3602]",
        EspEncryption::AesGcm16 => "AES-GCM with 16 octet ICV [RFC4106]",
        EspEncryption::ChaCha20Poly1305 => "ChaCha20 with Poly1305 [RFC7634]",
        EspEncryption::TripleDes => "TripleDES-CBC [RFC2451]",
        _ => return None,
    })
}

/// The same for authentication.
fn integrity_name(integrity: EspIntegrity) -> Option<&'static str> {
    Some(match integrity {
        EspIntegrity::None => "NULL",
        EspIntegrity::HmacSha1 => "HMAC-SHA-1-96 [RFC2404]",
        EspIntegrity::HmacSha256 => "HMAC-SHA-256-128 [RFC4868]",
        _ => return None,
    })
}

/// A key as the table has it.
fn push_key(line: &mut String, key: &[u8]) {
    line.push('"');
    if !key.is_empty() {
        line.push_str("0x");
    }
    for byte in key {
        let _ = write!(line, "{byte:02x}");
    }
    line.push('"');
}

impl BorderTunnel {
    /// A tunnel with random keys.
    pub(crate) fn new(
        case: &'static EspCase,
        media: &'static str,
        addresses: TunnelAddresses,
        entropy: &mut Entropy,
    ) -> BorderTunnel {
        let [callers, border] = addresses.outer;
        let mut spec = |spi: u32, from: Ipv4Addr, to: Ipv4Addr| SaSpec {
            replay_window: WINDOW,
            ..random_spec(case, EspCarriage::Tunnel, (spi, [from, to]), entropy)
        };
        let specs = [
            spec(SPIS[0], callers, border),
            spec(SPIS[1], border, callers),
        ];
        BorderTunnel {
            addresses,
            case,
            media,
            specs,
        }
    }

    /// `[gateway]` of the border, as TOML. ESP is in IP protocol 50, as between the gateways of the test lab.
    pub(crate) fn table(&self) -> String {
        let TunnelAddresses { outer, inner } = self.addresses;
        let weak = match self.case.suite.is_weak() {
            true => "allow_weak = true\n",
            false => "",
        };
        format!(
            "[gateway]\ndevice = \"{DEVICE}\"\nlocal = \"{}\"\nencapsulation = \"ip\"\nkey_file = \"{KEY_FILE}\"\n\
             numbers_file = \"esp.numbers\"\nroute_source = \"{}\"\nmedia = \"{}\"\n{weak}\n\
             [[gateway.tunnel]]\nname = \"callers\"\npeer = \"{}\"\nlocal_networks = [\"{}/32\"]\n\
             remote_networks = [\"{}/32\"]\n",
            outer[1], inner[1], self.media, outer[0], inner[1], inner[0],
        )
    }

    /// The key file, a line for each direction.
    ///
    /// # Errors
    /// The key file has no name for the algorithms.
    pub(crate) fn key_file(&self) -> Result<Zeroizing<String>, LabError> {
        let suite = self.case.suite;
        let names = encryption_name(suite.encryption).zip(integrity_name(suite.integrity));
        let (encryption, integrity) = names.ok_or_else(|| {
            LabError::bad_input(format!(
                "{}: a key file of the border's gateway has no name for these algorithms: set protection.gateway = \"lab\"",
                self.case.name
            ))
        })?;
        let [callers, border] = self.addresses.outer;
        // Of its final size: a growing buffer would leave copies of keys behind.
        let mut text = Zeroizing::new(String::with_capacity(1_024));
        for (spec, (from, to)) in self
            .specs
            .iter()
            .zip([(callers, border), (border, callers)])
        {
            let start = format!(
                "\"IPv4\",\"{from}\",\"{to}\",\"0x{:08x}\",\"{encryption}\",",
                spec.spi
            );
            text.push_str(&start);
            push_key(&mut text, spec.keys.expose_encryption());
            text.push_str(",\"");
            text.push_str(integrity);
            text.push_str("\",");
            push_key(&mut text, spec.keys.expose_integrity());
            text.push('\n');
        }
        Ok(text)
    }

    /// The associations of the callers' end.
    ///
    /// # Errors
    /// The algorithms have other keys than the case names.
    pub(crate) fn callers_end(&self, entropy: &mut Entropy) -> Result<EspEnds, LabError> {
        let bad = |error| LabError::bad_input(format!("ESP {}: {error}", self.case.name));
        let [to_border, to_callers] = self.specs.clone();
        Ok(EspEnds {
            outbound: OutboundSa::new(to_border, entropy, Time::ZERO).map_err(bad)?,
            inbound: InboundSa::new(to_callers, Time::ZERO).map_err(bad)?,
        })
    }

    /// `[gateway] media`.
    pub(crate) fn media(&self) -> &'static str {
        self.media
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::esp::packets::{VoiceStream, write_udp_packet};
    use crate::experiment::Protection;
    use protect::esp::{EspEndRole, EspSaLine, PacketRoom, esp_sa_pair, parse_esp_sa_file};

    fn tunnel(kind: u8, media: &'static str) -> BorderTunnel {
        let (case, _) = Protection::of(kind).esp().unwrap();
        let addresses = TunnelAddresses {
            outer: [[10, 96, 0, 1].into(), [10, 96, 0, 2].into()],
            inner: [[10, 9, 0, 1].into(), [10, 9, 0, 2].into()],
        };
        BorderTunnel::new(case, media, addresses, &mut Entropy::from_number(7))
    }

    #[test]
    fn table_of_the_border_is_that_of_a_user() {
        let text = tunnel(13, "direct").table();
        assert_eq!(
            text,
            "[gateway]\ndevice = \"esp0\"\nlocal = \"10.96.0.2\"\nencapsulation = \"ip\"\nkey_file = \"esp.keys\"\n\
             numbers_file = \"esp.numbers\"\nroute_source = \"10.9.0.2\"\nmedia = \"direct\"\n\n\
             [[gateway.tunnel]]\nname = \"callers\"\npeer = \"10.96.0.1\"\nlocal_networks = [\"10.9.0.2/32\"]\n\
             remote_networks = [\"10.9.0.1/32\"]\n"
        );
        let text = tunnel(19, "kernel").table();
        assert!(text.contains("media = \"kernel\"\nallow_weak = true\n"));
    }

    /// The border's end, made from the key file as the product does it, opens packets of the callers' end, and the
    /// reverse, with all algorithms.
    #[test]
    fn key_file_has_the_keys_of_the_callers() {
        for kind in [11, 13, 15, 17, 19] {
            let tunnel = tunnel(kind, "direct");
            let mut entropy = Entropy::from_number(8);
            let mut callers = tunnel.callers_end(&mut entropy).unwrap();
            let lines = parse_esp_sa_file(&tunnel.key_file().unwrap()).unwrap();
            assert_eq!(lines.len(), 2, "{kind}");
            let [peer, local] = tunnel.addresses.outer.map(IpAddr::V4);
            let pair = esp_sa_pair(&lines, local, Some(peer), EspEndRole::First).unwrap();
            let spec = |line: &EspSaLine, from: IpAddr, to: IpAddr| SaSpec {
                allow_weak: true,
                ..line.to_spec().unwrap().tunnel(from, to)
            };
            let receives = spec(&pair.inbound, peer, local);
            assert_eq!(receives.spi, SPIS[0], "{kind}");
            let mut inbound = InboundSa::new(receives, Time::ZERO).unwrap();
            let sends = spec(&pair.outbound, local, peer);
            let mut outbound = OutboundSa::new(sends, &mut entropy, Time::ZERO).unwrap();
            let mut inner = vec![0; 512];
            let length = write_udp_packet(&mut inner, VoiceStream::new(160).next_rtp());
            inner.truncate(length);
            assert!(length > 160);
            for (seals, opens) in [
                (&mut callers.outbound, &mut inbound),
                (&mut outbound, &mut callers.inbound),
            ] {
                let mut buffer = vec![0; 1_024];
                buffer[256..256 + inner.len()].copy_from_slice(&inner);
                let mut room = PacketRoom::new(&mut buffer, 256, inner.len());
                seals.seal_packet(&mut room, Time::ZERO).unwrap();
                opens.open_packet(&mut room, Time::ZERO).unwrap();
                assert_eq!(room.packet(), inner, "{kind}");
            }
        }
    }
}
