//! The key file of the gateway: lines of the `esp_sa` format, assigned to tunnels by their outer addresses.

use super::exchange::exchange_plan;
use crate::ike::IkeFiles;
use crate::secret_file;
use config::{GatewayKeySource, GatewaySpec, TunnelSpec};
use engine::Time;
use protect::esp::{
    EspCarrier, EspSaLine, InboundSa, SaSpec, TrafficSelector, UdpEncapsulation, parse_esp_sa_file,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use zeroize::Zeroizing;

/// Largest key file, bytes.
const LARGEST_FILE: u64 = 64 << 20;

/// Why keys without integrity are refused: without it there is no replay protection, and a stranger could direct the
/// packets elsewhere.
const NEEDS_INTEGRITY: &str = "peer_behind_nat needs an algorithm with integrity";

/// Associations of a tunnel.
#[derive(Clone, Debug)]
pub(crate) struct TunnelKeys {
    /// The one that seals.
    pub(super) outbound: SaSpec,
    /// Those that open.
    pub(super) inbound: Vec<SaSpec>,
}

/// Associations of all tunnels, in the order of the configuration.
#[derive(Clone, Debug)]
pub(crate) struct GatewayKeys {
    pub(super) tunnels: Vec<TunnelKeys>,
    /// Files of the key exchange; `tunnels` is empty then.
    pub(super) ike: Option<IkeFiles>,
}

/// A mistake, and its remedy.
type KeyMistake = (String, String);

fn read_text(path: &Path) -> Result<Zeroizing<String>, KeyMistake> {
    let name = path.display();
    let failed = |error: std::io::Error| {
        let write = || {
            "write one line for each direction of each tunnel; docs/how-to/ipsec-gateway.md makes the file".to_owned()
        };
        let remedy = secret_file::remedy_for(path, &error, write);
        (format!("{name} cannot be read: {error}"), remedy)
    };
    let file = File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if about.mode() & 0o077 != 0 {
        return Err((
            format!("{name} has keys, and is accessible by others than its owner"),
            format!("chmod 600 {name}"),
        ));
    }
    if about.len() > LARGEST_FILE {
        return Err((
            format!("{name} has more than {LARGEST_FILE} bytes"),
            "divide the tunnels among several gateways".to_owned(),
        ));
    }
    // Read into its final size: a growing buffer would leave copies of keys behind.
    let size = usize::try_from(about.len()).unwrap_or(0);
    let mut text = Zeroizing::new(String::with_capacity(size + 1));
    file.take(LARGEST_FILE)
        .read_to_string(&mut text)
        .map_err(failed)?;
    Ok(text)
}

/// The description of an association of a tunnel, without direction.
fn spec_of(
    line: &EspSaLine,
    gateway: &GatewaySpec,
    [from, to]: [std::net::SocketAddr; 2],
    selectors: Vec<TrafficSelector>,
) -> Result<SaSpec, String> {
    let spec = line.to_spec()?.tunnel(from.ip(), to.ip());
    let spec = SaSpec {
        replay_window: match spec.suite.authenticates() {
            true => gateway.replay_window,
            false => 0,
        },
        selectors,
        lifetime: gateway.lifetime,
        encapsulation: (gateway.carrier == EspCarrier::Udp).then_some(UdpEncapsulation {
            source_port: from.port(),
            destination_port: to.port(),
        }),
        dscp: gateway.dscp,
        allow_weak: gateway.allow_weak,
        ..spec
    };
    let spi = spec.spi;
    InboundSa::new(spec.clone(), Time::ZERO)
        .map_err(|error| format!("SPI {spi:#010x}: {error}"))?;
    Ok(spec)
}

fn tunnel_keys(
    tunnel: &TunnelSpec,
    gateway: &GatewaySpec,
    lines: &BTreeMap<(IpAddr, IpAddr), Vec<&EspSaLine>>,
) -> Result<TunnelKeys, String> {
    let found = |from: IpAddr, to: IpAddr| lines.get(&(from, to)).map_or(&[][..], Vec::as_slice);
    let between = |from: IpAddr, to: IpAddr| match (found(from, to), found(to, from)) {
        ([], []) => Err(format!("no line from {from} to {to}")),
        ([], [.., line]) => {
            let known = line.association();
            Err(format!(
                "no line from {from} to {to}, the other direction of {known}"
            ))
        }
        (found, _) => Ok(found),
    };
    let peer = tunnel.peer.ok_or("the peer has no address")?;
    let ends = [gateway.local, peer];
    let back = [peer, gateway.local];
    let sending = between(ends[0].ip(), ends[1].ip())?;
    let receiving = between(back[0].ip(), back[1].ip())?;
    let last = sending.last().ok_or("no line that sends")?;
    let reversed = || {
        tunnel
            .selectors
            .iter()
            .map(TrafficSelector::reversed)
            .collect()
    };
    let inbound: Vec<SaSpec> = receiving
        .iter()
        .map(|line| spec_of(line, gateway, back, reversed()))
        .collect::<Result<_, _>>()?;
    let open = inbound.iter().find(|spec| !spec.suite.authenticates());
    if let Some(spec) = open.filter(|_| tunnel.peer_behind_nat) {
        return Err(format!(
            "SPI {:#010x}: {NEEDS_INTEGRITY}, because the peer's address follows received packets",
            spec.spi
        ));
    }
    Ok(TunnelKeys {
        outbound: spec_of(last, gateway, ends, tunnel.selectors.clone())?,
        inbound,
    })
}

/// No key and no SPI is used twice: both ends count sequence numbers from one, and a shared key repeats nonces.
fn check_unique(tunnels: &[TunnelKeys]) -> Result<(), String> {
    let (mut keys, mut spis) = (BTreeSet::new(), BTreeSet::new());
    for tunnel in tunnels {
        for spec in tunnel.inbound.iter().chain([&tunnel.outbound]) {
            if !keys.insert(spec.keys.check_value()) {
                return Err(format!(
                    "SPI {:#010x} has the keys of another line; each line needs its own",
                    spec.spi
                ));
            }
        }
        for spec in &tunnel.inbound {
            if !spis.insert(spec.spi) {
                return Err(format!("SPI {:#010x} receives twice", spec.spi));
            }
        }
    }
    Ok(())
}

impl GatewayKeys {
    /// Reads the key file of a gateway.
    ///
    /// # Errors
    /// The mistake, and its remedy.
    pub(crate) fn read(gateway: &GatewaySpec) -> Result<GatewayKeys, KeyMistake> {
        let path = match &gateway.keys {
            GatewayKeySource::File(file) => file.path(),
            GatewayKeySource::Ike(ike) => {
                return Ok(GatewayKeys {
                    tunnels: Vec::new(),
                    ike: Some(IkeFiles::read(&exchange_plan(gateway, ike))?),
                });
            }
        };
        let text = read_text(path)?;
        let name = path.display();
        let mistake = |why: String, remedy: &str| (format!("{name}: {why}"), remedy.to_owned());
        let format = "docs/esp.md has the format";
        let lines = parse_esp_sa_file(&text).map_err(|error| mistake(error.to_string(), format))?;
        let mut by_ends: BTreeMap<(IpAddr, IpAddr), Vec<&EspSaLine>> = BTreeMap::new();
        for line in &lines {
            if let (Some(from), Some(to)) = (line.source(), line.destination()) {
                by_ends.entry((from, to)).or_default().push(line);
            }
        }
        let mut tunnels = Vec::with_capacity(gateway.tunnels.len());
        for tunnel in &gateway.tunnels {
            let keys = tunnel_keys(tunnel, gateway, &by_ends).map_err(|why| {
                let remedy = match () {
                    () if why.contains("is weak") => {
                        "make keys for other algorithms at both ends, or set allow_weak = true in [gateway]"
                    }
                    () if why.contains(NEEDS_INTEGRITY) => {
                        "make keys for AES-GCM or with an integrity algorithm at both ends"
                    }
                    () => {
                        "write one line for each direction, with the outer addresses of both ends"
                    }
                };
                mistake(format!("tunnel {}: {why}", tunnel.name), remedy)
            })?;
            tunnels.push(keys);
        }
        check_unique(&tunnels).map_err(|why| mistake(why, "make new keys"))?;
        Ok(GatewayKeys { tunnels, ike: None })
    }

    /// Weak algorithms in use, each once.
    pub(super) fn weak_algorithms(&self) -> Vec<String> {
        let specs = self
            .tunnels
            .iter()
            .flat_map(|tunnel| tunnel.inbound.iter().chain([&tunnel.outbound]));
        let weak = specs.filter(|spec| spec.suite.is_weak());
        let names: BTreeSet<String> = weak.map(|spec| spec.suite.to_string()).collect();
        names.into_iter().collect()
    }
}
