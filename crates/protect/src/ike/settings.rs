//! Settings of `charon` and of its connections.

use super::{ViciPacket, ViciSection};
use crate::esp::{AddressPrefix, EspEncryption, EspIntegrity, EspSuite, SelectorPorts};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use wire::esp::NAT_TRAVERSAL_PORT;
use zeroize::Zeroizing;

/// Name of the one child of each connection.
pub const CHILD_NAME: &str = "net";
/// Least time between the time for new keys and the end of the old ones.
const OVERTIME: Duration = Duration::from_secs(60);
/// Beginning of names of connections.
const CONNECTION: &str = "tunnel-";

/// Algorithms, in the notation of strongSwan: parts with hyphens, for example `aes128gcm16-x25519`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IkeProposals {
    /// Of IKE messages.
    pub ike: Vec<String>,
    /// Of packets.
    pub esp: Vec<String>,
}

impl Default for IkeProposals {
    /// Algorithms that RFC 8221 and RFC 8247 require or recommend, AES-GCM first.
    fn default() -> IkeProposals {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        IkeProposals {
            ike: texts(&[
                "aes128gcm16-aes256gcm16-prfsha256-prfsha384-x25519-ecp256-ecp384-modp2048",
                "aes128-aes256-sha256-sha384-x25519-ecp256-ecp384-modp2048",
            ]),
            esp: texts(&[
                "aes128gcm16-aes256gcm16-chacha20poly1305-x25519-ecp256-ecp384-modp2048",
                "aes128-aes256-sha256-x25519-ecp256-ecp384-modp2048",
                "aes128gcm16-aes256gcm16-chacha20poly1305",
                "aes128-aes256-sha256",
            ]),
        }
    }
}

/// Ciphers that authenticate.
const COMBINED: [&str; 10] = [
    "aes128gcm16",
    "aes192gcm16",
    "aes256gcm16",
    "aes128gcm12",
    "aes192gcm12",
    "aes256gcm12",
    "aes128gcm8",
    "aes192gcm8",
    "aes256gcm8",
    "chacha20poly1305",
];
/// Ciphers with an integrity algorithm beside them.
const CIPHERS: [&str; 3] = ["aes128", "aes192", "aes256"];
const WEAK_CIPHERS: [&str; 1] = ["3des"];
const INTEGRITY: [&str; 4] = ["sha1", "sha256", "sha384", "sha512"];
const WEAK_INTEGRITY: [&str; 1] = ["md5"];
const GROUPS: [&str; 8] = [
    "x25519",
    "curve25519",
    "ecp256",
    "ecp384",
    "ecp521",
    "modp2048",
    "modp3072",
    "modp4096",
];

/// Checks a proposal for ESP: algorithms of [`crate::esp`], and groups for key exchange.
///
/// # Errors
/// The mistake.
pub fn check_proposal(text: &str, allow_weak: bool) -> Result<(), String> {
    let (mut combined, mut ciphers, mut integrity) = (0, 0, 0);
    for part in text.split('-') {
        let weak = WEAK_CIPHERS.contains(&part) || WEAK_INTEGRITY.contains(&part);
        if weak && !allow_weak {
            return Err(format!(
                "{part} is weak (RFC 8221), and needs allow_weak = true"
            ));
        }
        if COMBINED.contains(&part) {
            combined += 1;
        } else if CIPHERS.contains(&part) || WEAK_CIPHERS.contains(&part) {
            ciphers += 1;
        } else if INTEGRITY.contains(&part) || WEAK_INTEGRITY.contains(&part) {
            integrity += 1;
        } else if !GROUPS.contains(&part) {
            return Err(format!("\"{part}\" is no algorithm for ESP here"));
        }
    }
    match (combined, ciphers, integrity) {
        (0, 0, _) => Err("there is no cipher".to_owned()),
        (0, _, 0) => Err("the cipher needs an integrity algorithm, for example sha256".to_owned()),
        (0, _, _) | (_, 0, 0) => Ok(()),
        (_, 0, _) => Err("a cipher that authenticates takes no integrity algorithm".to_owned()),
        _ => Err("ciphers that authenticate need a proposal of their own".to_owned()),
    }
}

/// The algorithms that a proposal for ESP allows, each with the length of the encryption key and its salt, bytes;
/// `None` if one is not known here.
pub fn proposed_suites(text: &str) -> Option<Vec<(EspSuite, usize)>> {
    let (mut ciphers, mut integrity) = (Vec::new(), Vec::new());
    for part in text.split('-').filter(|part| !GROUPS.contains(part)) {
        match integrity_of(part) {
            Some(found) => integrity.push(found),
            None => ciphers.push(cipher_of(part)?),
        }
    }
    if integrity.is_empty() {
        integrity.push(EspIntegrity::None);
    }
    let suites = ciphers.iter().flat_map(|&(cipher, key_length)| {
        let suite = move |&integrity| (EspSuite::new(cipher, integrity), key_length);
        integrity.iter().map(suite)
    });
    Some(suites.collect())
}

fn integrity_of(part: &str) -> Option<EspIntegrity> {
    Some(match part {
        "md5" => EspIntegrity::HmacMd5,
        "sha1" => EspIntegrity::HmacSha1,
        "sha256" => EspIntegrity::HmacSha256,
        "sha256_96" => EspIntegrity::HmacSha256Truncated96,
        "sha384" => EspIntegrity::HmacSha384,
        "sha512" => EspIntegrity::HmacSha512,
        _ => return None,
    })
}

fn cipher_of(part: &str) -> Option<(EspEncryption, usize)> {
    match part {
        "chacha20poly1305" => return Some((EspEncryption::ChaCha20Poly1305, 36)),
        "3des" => return Some((EspEncryption::TripleDes, 24)),
        _ => {}
    }
    let (bits, mode) = part.strip_prefix("aes")?.split_at_checked(3)?;
    let bytes = match bits {
        "128" => 16,
        "192" => 24,
        "256" => 32,
        _ => return None,
    };
    Some(match mode {
        "" => (EspEncryption::AesCbc, bytes),
        "ctr" => (EspEncryption::AesCtr, bytes + 4),
        "gcm16" => (EspEncryption::AesGcm16, bytes + 4),
        "gcm12" => (EspEncryption::AesGcm12, bytes + 4),
        "gcm8" => (EspEncryption::AesGcm8, bytes + 4),
        _ => return None,
    })
}

/// How both ends prove who they are.
#[derive(Clone, PartialEq, Eq)]
pub enum IkeAuthentication {
    /// A shared secret.
    Secret(Zeroizing<Vec<u8>>),
    /// Certificates: ours, and those of the authorities that may have signed the peer's. PEM, one certificate each: the
    /// daemon reads the first one of a value.
    Certificates {
        /// This end's certificate.
        own: Vec<u8>,
        /// Certificates of authorities, each of which suffices.
        authorities: Vec<Vec<u8>>,
    },
}

impl core::fmt::Debug for IkeAuthentication {
    /// Omits the secret.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            IkeAuthentication::Secret(_) => "Secret",
            IkeAuthentication::Certificates { .. } => "Certificates",
        })
    }
}

/// A connection: the key exchange for one tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IkeConnection {
    /// Number of the tunnel.
    pub number: usize,
    /// Outer address of this end.
    pub local: IpAddr,
    /// This end has another port than 4500, so port 500 is not used.
    pub has_own_port: bool,
    /// Outer address of the peer, with its port for ESP in UDP; any if absent.
    pub peer: Option<SocketAddr>,
    /// Identity of this end; its address if absent.
    pub local_id: Option<String>,
    /// Identity of the peer; its address if absent.
    pub remote_id: Option<String>,
    /// Authentication.
    pub authentication: IkeAuthentication,
    /// Networks on this side.
    pub local_networks: Vec<String>,
    /// Networks behind the peer.
    pub remote_networks: Vec<String>,
    /// This end sets the tunnel up, and again when it is lost.
    pub initiates: bool,
    /// Time without a message of the peer after which it is asked whether it is alive.
    pub dead_peer: Duration,
    /// Time until new keys for packets.
    pub rekey: Duration,
    /// Time until new keys for IKE messages.
    pub ike_rekey: Duration,
    /// Algorithms.
    pub proposals: IkeProposals,
}

/// The name of a tunnel's connection.
pub fn connection_name(number: usize) -> String {
    format!("{CONNECTION}{number}")
}

/// The number of the tunnel of a connection.
pub fn connection_number(name: &str) -> Option<usize> {
    name.strip_prefix(CONNECTION)?.parse().ok()
}

/// The traffic selectors of one side in the daemon's notation: `10.0.0.0/24`, `10.0.0.0/24[17]` or
/// `10.0.0.0/24[17/5060]`.
pub fn daemon_selectors(
    networks: &[AddressPrefix],
    protocol: Option<u8>,
    ports: &[SelectorPorts],
) -> Vec<String> {
    let mut texts = Vec::new();
    for network in networks {
        match (protocol, ports.is_empty()) {
            (None, _) => texts.push(network.to_string()),
            (Some(protocol), true) => texts.push(format!("{network}[{protocol}]")),
            (Some(protocol), false) => {
                texts.extend(
                    ports
                        .iter()
                        .map(|ports| format!("{network}[{protocol}/{ports}]")),
                );
            }
        }
    }
    texts
}

fn seconds(time: Duration) -> String {
    format!("{}s", time.as_secs())
}

impl IkeConnection {
    fn remote_identity(&self) -> Option<String> {
        let address = self.peer.map(|peer| peer.ip().to_string());
        self.remote_id.clone().or(address)
    }

    /// The command that gives the daemon the shared secret; `None` without one.
    pub fn load_secret(&self) -> Option<ViciPacket> {
        let IkeAuthentication::Secret(secret) = &self.authentication else {
            return None;
        };
        let message = ViciSection::new()
            .with("id", connection_name(self.number))
            .with("type", "IKE")
            .with("data", secret)
            // The peer alone: of several secrets the one of its identity is used, never another.
            .with_list("owners", self.remote_identity());
        Some(ViciPacket::Command("load-shared".to_owned(), message))
    }

    /// The command that gives the daemon the connection, which it sets up once if this end initiates.
    pub fn load(&self) -> ViciPacket {
        let (local, remote) = self.ends();
        let start = if self.initiates { "start" } else { "none" };
        let child = ViciSection::new()
            .with("mode", "tunnel")
            .with_list("local_ts", &self.local_networks)
            .with_list("remote_ts", &self.remote_networks)
            .with_list("esp_proposals", &self.proposals.esp)
            .with("rekey_time", seconds(self.rekey))
            // New keys may need several attempts; both ends shall not begin at the same time.
            .with(
                "rand_time",
                seconds((self.rekey / 10).max(Duration::from_secs(1))),
            )
            .with(
                "life_time",
                seconds(self.rekey + OVERTIME.max(self.rekey / 10)),
            )
            .with("start_action", start)
            // The gateway sets a tunnel up again: the daemon would do so for each association that is deleted, also
            // where another one of the tunnel stays.
            .with("close_action", "none")
            .with("dpd_action", "clear");
        let anyone = match self.local.is_ipv4() {
            true => "0.0.0.0/0",
            false => "::/0",
        };
        let peer = self.peer.map(|peer| peer.ip().to_string());
        let mut connection = ViciSection::new()
            .with("version", "2")
            .with_list("local_addrs", [self.local.to_string()])
            .with_list("remote_addrs", [peer.unwrap_or_else(|| anyone.to_owned())])
            .with_list("proposals", &self.proposals.ike)
            // ESP is always in UDP.
            .with("encap", "yes")
            .with("mobike", "no")
            // Further attempts are requested, whatever the reason of the failure.
            .with("keyingtries", "1")
            .with("dpd_delay", seconds(self.dead_peer))
            .with("rekey_time", seconds(self.ike_rekey));
        let port = self.peer.map_or(NAT_TRAVERSAL_PORT, |peer| peer.port());
        if port != NAT_TRAVERSAL_PORT || self.has_own_port {
            // Port 500 is left out: the daemon would change from there to 4500 only.
            connection = connection
                .with("local_port", NAT_TRAVERSAL_PORT.to_string())
                .with("remote_port", port.to_string());
        }
        let connection = connection
            .with_section("local", local)
            .with_section("remote", remote)
            .with_section(
                "children",
                ViciSection::new().with_section(CHILD_NAME, child),
            );
        ViciPacket::Command(
            "load-conn".to_owned(),
            ViciSection::new().with_section(&connection_name(self.number), connection),
        )
    }

    /// The command that sets the tunnel up; its response does not wait for the peer.
    pub fn initiate(&self) -> ViciPacket {
        let message = ViciSection::new()
            .with("ike", connection_name(self.number))
            .with("child", CHILD_NAME)
            .with("timeout", "-1");
        ViciPacket::Command("initiate".to_owned(), message)
    }

    /// The command that renews the keys of the tunnel's packets.
    pub fn rekey(number: usize) -> ViciPacket {
        let message = ViciSection::new()
            .with("ike", connection_name(number))
            .with("child", CHILD_NAME);
        ViciPacket::Command("rekey".to_owned(), message)
    }

    /// The command that deletes an association by the daemon's number of it; its response does not wait for the peer.
    pub fn terminate(child: u32) -> ViciPacket {
        let message = ViciSection::new()
            .with("child-id", child.to_string())
            .with("timeout", "-1");
        ViciPacket::Command("terminate".to_owned(), message)
    }

    /// The command that deletes an IKE association with its children, by the daemon's number of it; its response does
    /// not wait for the peer.
    pub fn terminate_exchange(number: u32) -> ViciPacket {
        let message = ViciSection::new()
            .with("ike-id", number.to_string())
            .with("timeout", "-1");
        ViciPacket::Command("terminate".to_owned(), message)
    }

    /// Authentication of this end and of the peer.
    fn ends(&self) -> (ViciSection, ViciSection) {
        let method = match self.authentication {
            IkeAuthentication::Secret(_) => "psk",
            IkeAuthentication::Certificates { .. } => "pubkey",
        };
        let mut local = ViciSection::new().with("auth", method);
        let mut remote = ViciSection::new().with("auth", method);
        if let Some(id) = &self.local_id {
            local = local.with("id", id);
        }
        if let Some(id) = self.remote_identity() {
            remote = remote.with("id", id);
        }
        if let IkeAuthentication::Certificates { own, authorities } = &self.authentication {
            local = local.with_list("certs", [own]);
            remote = remote.with_list("cacerts", authorities);
        }
        (local, remote)
    }
}

/// The daemon's settings file. It logs to its standard error; its own data path (`kernel-libipsec`) has a device in its
/// own network namespace and never gets a packet.
///
/// It gives up on a peer that does not answer after 26 s: 2 s + 3 s + 4.5 s + 6.75 s + 10.1 s.
pub fn daemon_settings() -> String {
    // Its packets are marked, so that its own routes of the tunnels are not used for them.
    let mark = "0x68";
    format!(
        "charon {{
  load = random nonce openssl pkcs1 pkcs8 pem x509 pubkey constraints kdf socket-default kernel-libipsec kernel-netlink vici
  plugins {{
    vici {{ socket = unix:///run/charon.vici }}
    kernel-libipsec {{ allow_peer_ts = yes }}
    kernel-netlink {{ fwmark = !{mark} }}
    socket-default {{ fwmark = {mark} }}
  }}
  retransmit_timeout = 2
  retransmit_base = 1.5
  retransmit_tries = 4
  cookie_threshold = 100
  cookie_threshold_ip = 30
  block_threshold = 100
  init_limit_half_open = 2000
  ikesa_table_size = 256
  ikesa_table_segments = 4
  filelog {{
    stderr {{
      default = 1
      chd = 4
      ike_name = yes
      flush_line = yes
    }}
  }}
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> IkeConnection {
        IkeConnection {
            number: 3,
            local: "192.0.2.1".parse().unwrap(),
            has_own_port: false,
            peer: Some("192.0.2.2:4500".parse().unwrap()),
            local_id: Some("office.example".to_owned()),
            remote_id: None,
            authentication: IkeAuthentication::Secret(Zeroizing::new(b"not-a-secret".to_vec())),
            local_networks: vec!["10.1.0.0/24".to_owned()],
            remote_networks: vec!["10.2.0.0/24".to_owned()],
            initiates: true,
            dead_peer: Duration::from_secs(30),
            rekey: Duration::from_secs(3_600),
            ike_rekey: Duration::from_secs(14_400),
            proposals: IkeProposals::default(),
        }
    }

    #[test]
    fn a_connection_has_its_peer_as_the_owner_of_its_secret() {
        let connection = connection();
        let Some(ViciPacket::Command(name, message)) = connection.load_secret() else {
            panic!();
        };
        assert_eq!(name, "load-shared");
        assert_eq!(message.text("data"), Some("not-a-secret"));
        assert!(!format!("{message:?} {connection:?}").contains("not-a-secret"));
        let ViciPacket::Command(_, message) = connection.load() else {
            panic!();
        };
        let section = message.section("tunnel-3").unwrap();
        assert_eq!(
            section.section("remote").unwrap().text("id"),
            Some("192.0.2.2")
        );
        assert_eq!(section.text("remote_port"), None);
        let child = section
            .section("children")
            .unwrap()
            .section(CHILD_NAME)
            .unwrap();
        assert_eq!(child.text("start_action"), Some("start"));
        assert_eq!(child.text("close_action"), Some("none"));
        assert_eq!(connection_number("tunnel-3"), Some(3));
    }

    #[test]
    fn a_connection_has_all_authorities() {
        let connection = IkeConnection {
            authentication: IkeAuthentication::Certificates {
                own: b"own certificate".to_vec(),
                authorities: vec![b"old authority".to_vec(), b"new authority".to_vec()],
            },
            ..connection()
        };
        assert!(connection.load_secret().is_none());
        let bytes = connection.load().to_bytes().unwrap();
        for part in ["own certificate", "old authority", "new authority"] {
            let has_part = bytes.windows(part.len()).any(|at| at == part.as_bytes());
            assert!(has_part, "{part}");
        }
    }

    #[test]
    fn selectors_have_protocol_and_ports() {
        let networks = ["10.1.0.0/24".parse().unwrap(), "fd01::/64".parse().unwrap()];
        assert_eq!(
            daemon_selectors(&networks, None, &[]),
            ["10.1.0.0/24", "fd01::/64"]
        );
        assert_eq!(
            daemon_selectors(&networks, Some(132), &[]),
            ["10.1.0.0/24[132]", "fd01::/64[132]"]
        );
        let ports = [
            SelectorPorts::one(5_060),
            SelectorPorts {
                first: 6_000,
                last: 6_010,
            },
        ];
        assert_eq!(
            daemon_selectors(&networks[..1], Some(17), &ports),
            ["10.1.0.0/24[17/5060]", "10.1.0.0/24[17/6000-6010]"]
        );
    }

    #[test]
    fn proposals_are_those_of_esp() {
        for good in IkeProposals::default()
            .esp
            .iter()
            .map(String::as_str)
            .chain(["aes256-sha512", "chacha20poly1305-x25519"])
        {
            assert_eq!(check_proposal(good, false), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("", "no algorithm"),
            ("x25519", "no cipher"),
            ("aes128", "needs an integrity"),
            ("aes128gcm16-sha256", "takes no integrity"),
            ("aes128gcm16-aes128-sha256", "a proposal of their own"),
            ("3des-sha1", "weak"),
            ("aes128-sha256-esn", "\"esn\" is no algorithm"),
        ] {
            let said = check_proposal(bad, false).unwrap_err();
            assert!(said.contains(why), "{bad}: {said}");
        }
        assert_eq!(check_proposal("3des-md5", true), Ok(()));
    }
}
