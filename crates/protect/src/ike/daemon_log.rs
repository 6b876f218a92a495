//! The log of `charon`: the associations that it has negotiated, with their keys.
//!
//! The log group CHD at level 4 has the keys of each association. A thread of the daemon processes one IKE message
//! after the other, and begins each line with its number: all facts about an association are lines of one thread, in a
//! fixed order. Read are: the sender of the message, whether it was a request (then this end is the responder), the
//! algorithms, the keys, the SPIs and the traffic selectors, with which an association is complete.

use crate::esp::{
    AddressPrefix, EspEncryption, EspIntegrity, EspKeys, EspSuite, SelectorPorts, TrafficSelector,
};
use core::net::SocketAddr;
use std::collections::BTreeMap;
use zeroize::{Zeroize as _, Zeroizing};

/// Longest line that is read, bytes; longer ones are skipped. A line about an association has the selectors of both
/// sides, at most 255 each (RFC 7296 section 3.13), of up to 98 characters.
const LONGEST_LINE: usize = 64 * 1024;
/// Longest key, bytes.
const LONGEST_KEY: usize = 128;
/// Most selectors of an association, as in a configuration. A peer may divide the networks that both ends allow into
/// many: their product would take memory for each association, and time for each packet.
const MAX_SELECTORS: usize = 1_024;
/// Most threads of a daemon.
const MAX_THREADS: usize = 1_024;

/// An association of both directions that the daemon has negotiated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NegotiatedChild {
    /// Name of the connection.
    pub connection: String,
    /// The daemon's number of it.
    pub id: u32,
    /// SPI of received packets.
    pub spi_in: u32,
    /// SPI of sent packets.
    pub spi_out: u32,
    /// Algorithms.
    pub suite: EspSuite,
    /// Keys of received packets.
    pub keys_in: EspKeys,
    /// Keys of sent packets.
    pub keys_out: EspKeys,
    /// Packets that are sent; those that are received are reversed.
    pub selectors: Vec<TrafficSelector>,
    /// The address from which the peer's last IKE message came.
    pub peer: SocketAddr,
}

/// A line of the log without secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DaemonLine<'a> {
    /// Name of the connection that it is about.
    pub connection: Option<&'a str>,
    /// The text.
    pub text: &'a str,
}

/// The meaning of a line of the log for packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonFact {
    /// An association, which opens from now on.
    Negotiated(NegotiatedChild),
    /// An association whose algorithms or selectors are not supported, or that is incomplete; or a line that is too
    /// long to be read.
    Unusable {
        /// The daemon's number of the association, where it is known.
        id: Option<u32>,
        /// Reason.
        why: String,
    },
    /// An association that has replaced another one seals: as the initiator at once, as the responder when the peer has
    /// deleted the old one. Before that the peer may not have it.
    Seals {
        /// Name of the connection.
        connection: String,
        /// SPI of received packets.
        spi_in: u32,
    },
    /// This end or the peer deletes an association, also one that another one has replaced. VICI has no event about the
    /// latter.
    Closes {
        /// Name of the connection.
        connection: String,
        /// SPI of received packets.
        spi_in: u32,
    },
}

/// The four keys, in the words of the log.
const KEY_NAMES: [&str; 4] = [
    "encryption initiator key",
    "encryption responder key",
    "integrity initiator key",
    "integrity responder key",
];

/// The lines of one thread since its last message.
#[derive(Debug, Default)]
struct Thread {
    peer: Option<SocketAddr>,
    is_responder: bool,
    encryption: String,
    integrity: String,
    keys: [Zeroizing<Vec<u8>>; 4],
    /// A key whose bytes follow: its number and how many are left.
    reading: Option<(usize, usize)>,
}

impl Thread {
    fn begin_child(&mut self) {
        self.encryption.clear();
        self.integrity.clear();
        self.keys = Default::default();
        self.reading = None;
    }
}

/// A reader of the log.
#[derive(Debug, Default)]
pub struct DaemonLog {
    threads: BTreeMap<u16, Thread>,
    /// A line whose end is not read yet.
    line: Zeroizing<Vec<u8>>,
    is_too_long: bool,
}

/// A line: thread, group, connection and text.
struct Line<'a> {
    thread: u16,
    group: &'a str,
    connection: Option<&'a str>,
    text: &'a str,
}

/// `13[CHD] <name|1> text`.
fn split(line: &str) -> Option<Line<'_>> {
    let (thread, rest) = line.split_once('[')?;
    let (group, rest) = rest.split_once("] ")?;
    let thread = thread.trim().parse().ok()?;
    let (connection, text) = match rest
        .strip_prefix('<')
        .and_then(|rest| rest.split_once("> "))
    {
        Some((names, text)) => (names.rsplit_once('|').map(|(name, _)| name), text),
        None => (None, rest),
    };
    Some(Line {
        thread,
        group,
        connection,
        text,
    })
}

/// `192.0.2.1[4500]`.
fn bracketed_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.strip_suffix(']')?.split_once('[')?;
    Some(SocketAddr::new(ip.parse().ok()?, port.parse().ok()?))
}

fn suite_of(encryption: &str, integrity: &str) -> Option<EspSuite> {
    let encryption = match encryption {
        "AES_CBC" => EspEncryption::AesCbc,
        "AES_CTR" => EspEncryption::AesCtr,
        "AES_GCM_16" => EspEncryption::AesGcm16,
        "AES_GCM_12" => EspEncryption::AesGcm12,
        "AES_GCM_8" => EspEncryption::AesGcm8,
        "CHACHA20_POLY1305" => EspEncryption::ChaCha20Poly1305,
        "3DES_CBC" => EspEncryption::TripleDes,
        "NULL" => EspEncryption::Null,
        _ => return None,
    };
    let integrity = match integrity {
        "" | "UNDEFINED" => EspIntegrity::None,
        "HMAC_MD5_96" => EspIntegrity::HmacMd5,
        "HMAC_SHA1_96" => EspIntegrity::HmacSha1,
        "HMAC_SHA2_256_128" => EspIntegrity::HmacSha256,
        "HMAC_SHA2_384_192" => EspIntegrity::HmacSha384,
        "HMAC_SHA2_512_256" => EspIntegrity::HmacSha512,
        _ => return None,
    };
    let suite = EspSuite::new(encryption, integrity);
    suite.is_combination().then_some(suite)
}

/// One side of a traffic selector: `10.1.0.0/24`, `10.1.0.1/32[17/5060]`, `10.1.0.0/24[17]` or `10.1.0.0/24[6/80-90]`.
/// The daemon has neither names of protocols nor of ports ([`super::daemon_settings`]).
fn selector_side(text: &str) -> Option<(AddressPrefix, Option<u8>, SelectorPorts)> {
    let (network, limits) = match text.split_once('[') {
        Some((network, limits)) => (network, Some(limits.strip_suffix(']')?)),
        None => (text, None),
    };
    let network = network.parse::<AddressPrefix>().ok()?;
    let Some(limits) = limits else {
        return Some((network, None, SelectorPorts::ANY));
    };
    let (protocol, ports) = match limits.split_once('/') {
        Some((protocol, ports)) => (protocol, Some(ports)),
        None => (limits, None),
    };
    let protocol = match protocol {
        "0" => None,
        number => Some(number.parse::<u8>().ok()?),
    };
    let ports = match ports.map(|ports| ports.split_once('-').unwrap_or((ports, ports))) {
        None => SelectorPorts::ANY,
        Some((first, last)) => SelectorPorts {
            first: first.parse().ok()?,
            last: last.parse().ok()?,
        },
    };
    Some((network, protocol, ports))
}

/// Each local side with each remote side of the same family and protocol (RFC 7296 section 2.9).
fn selectors_of(local: &str, remote: &str) -> Option<Vec<TrafficSelector>> {
    let sides = |text: &str| {
        text.split_ascii_whitespace()
            .map(selector_side)
            .collect::<Option<Vec<_>>>()
    };
    let (local, remote) = (sides(local)?, sides(remote)?);
    if local.len().saturating_mul(remote.len()) > MAX_SELECTORS {
        return None;
    }
    let mut selectors = Vec::new();
    for (source, first, source_ports) in &local {
        for (destination, second, destination_ports) in &remote {
            let protocols_fit = first == second || first.is_none() || second.is_none();
            if source.address().is_ipv4() == destination.address().is_ipv4() && protocols_fit {
                selectors.push(TrafficSelector {
                    source: Some(*source),
                    destination: Some(*destination),
                    protocol: first.or(*second),
                    source_ports: *source_ports,
                    destination_ports: *destination_ports,
                });
            }
        }
    }
    (!selectors.is_empty()).then_some(selectors)
}

/// The hexadecimal bytes of a line `  16: 20 85 A6 C6    ...`, at most `most`.
fn dumped_bytes(text: &str, most: usize, into: &mut Vec<u8>) -> Option<usize> {
    let (offset, bytes) = text.split_once(": ")?;
    offset.trim().parse::<usize>().ok()?;
    let most = most.min(16);
    let words = bytes.split_ascii_whitespace().take(most);
    let mut count = 0;
    for word in words {
        let byte = (word.len() == 2).then(|| u8::from_str_radix(word, 16).ok())??;
        into.push(byte);
        count += 1;
    }
    (count == most).then_some(count)
}

/// `081005ce_i`, or with the end `_o`.
fn spi(text: &str, end: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_suffix(end)?, 16).ok()
}

/// `closing [expired ]CHILD_SA NAME{N} with SPIs I_i (8 bytes) O_o (8 bytes) and TS A === B`.
fn closes(line: &Line<'_>) -> Option<DaemonFact> {
    let text = line.text.strip_prefix("closing ")?;
    let text = text.strip_prefix("expired ").unwrap_or(text);
    let (_, facts) = text.strip_prefix("CHILD_SA ")?.split_once(" with SPIs ")?;
    let (spi_in, _) = facts.split_once(' ')?;
    Some(DaemonFact::Closes {
        connection: line.connection?.to_owned(),
        spi_in: spi(spi_in, "_i")?,
    })
}

impl DaemonLog {
    /// A reader at the beginning of a log.
    pub fn new() -> DaemonLog {
        DaemonLog::default()
    }

    /// Reads more of the log. `said` receives the lines that may be shown: without keys and secrets. `known` receives
    /// their meaning.
    pub fn read(
        &mut self,
        bytes: &[u8],
        mut said: impl FnMut(DaemonLine<'_>),
        mut known: impl FnMut(DaemonFact),
    ) {
        for &byte in bytes {
            if byte != b'\n' {
                match self.line.len() < LONGEST_LINE {
                    true => self.line.push(byte),
                    false => self.is_too_long = true,
                }
                continue;
            }
            let mut line = core::mem::take(&mut self.line);
            if core::mem::take(&mut self.is_too_long) {
                known(DaemonFact::Unusable {
                    id: None,
                    why: format!("a line of the daemon's log has more than {LONGEST_LINE} bytes"),
                });
            } else if let Ok(text) = core::str::from_utf8(&line) {
                self.line(text, &mut said, &mut known);
            }
            // The buffer is used again.
            line.zeroize();
            self.line = line;
        }
    }

    fn line(
        &mut self,
        text: &str,
        said: &mut impl FnMut(DaemonLine<'_>),
        known: &mut impl FnMut(DaemonFact),
    ) {
        let Some(line) = split(text) else {
            // Plugins that could not be loaded, errors before the log is open.
            said(DaemonLine {
                connection: None,
                text,
            });
            return;
        };
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&line.thread) {
            return;
        }
        let thread = self.threads.entry(line.thread).or_default();
        match line.group {
            "NET" => thread.network(line.text),
            "ENC" => thread.message(line.text),
            "CHD" => thread.child(line.text),
            _ => said(DaemonLine {
                connection: line.connection,
                text: line.text,
            }),
        }
        if let Some(fact) = closes(&line).or_else(|| thread.established(&line)) {
            known(fact);
        }
    }
}

impl Thread {
    /// `received packet: from A[P] to B[Q] (N bytes)`.
    fn network(&mut self, text: &str) {
        let from = text.strip_prefix("received packet: from ");
        let from = from.and_then(|rest| rest.split_ascii_whitespace().next());
        if let Some(address) = from.and_then(bracketed_address) {
            self.peer = Some(address);
        }
    }

    /// `parsed CREATE_CHILD_SA request 5 [ ... ]`.
    fn message(&mut self, text: &str) {
        let Some(rest) = text.strip_prefix("parsed ") else {
            return;
        };
        match rest.split_ascii_whitespace().nth(1) {
            Some("request") => self.is_responder = true,
            Some("response") => self.is_responder = false,
            _ => {}
        }
    }

    fn child(&mut self, text: &str) {
        if let Some((number, left)) = self.reading.take() {
            let Some(key) = self.keys.get_mut(number) else {
                return;
            };
            if let Some(count) = dumped_bytes(text, left, key) {
                self.reading = (left > count).then_some((number, left - count));
                return;
            }
            key.clear();
        }
        if text.ends_with("CREATED => INSTALLING") {
            self.begin_child();
        }
        let used = |purpose: &str| {
            let rest = text.trim_start().strip_prefix("using ")?;
            rest.strip_suffix(purpose)
        };
        if let Some(name) = used(" for encryption") {
            name.clone_into(&mut self.encryption);
        }
        if let Some(name) = used(" for integrity") {
            name.clone_into(&mut self.integrity);
        }
        for (number, name) in KEY_NAMES.iter().enumerate() {
            let length = text
                .strip_prefix(name)
                .and_then(|rest| rest.strip_prefix(" => "))
                .and_then(|rest| rest.split_once(" bytes"))
                .and_then(|(length, _)| length.parse::<usize>().ok());
            if let (Some(length), Some(key)) = (length, self.keys.get_mut(number)) {
                // In its final size, so that no copy is left behind.
                *key = Zeroizing::new(Vec::with_capacity(LONGEST_KEY));
                self.reading = (1..=LONGEST_KEY)
                    .contains(&length)
                    .then_some((number, length));
            }
        }
    }

    /// `[inbound ]CHILD_SA NAME{N} established with SPIs I_i O_o and TS A === B`, with which an association is
    /// complete; with `outbound ` one that is known seals.
    fn established(&mut self, line: &Line<'_>) -> Option<DaemonFact> {
        let text = line.text;
        let outbound = text.strip_prefix("outbound ");
        let text = outbound.or(text.strip_prefix("inbound ")).unwrap_or(text);
        let (name, facts) = text
            .strip_prefix("CHILD_SA ")?
            .split_once(" established with SPIs ")?;
        let connection = line.connection?;
        if outbound.is_some() {
            let (spi_in, _) = facts.split_once(' ')?;
            return Some(DaemonFact::Seals {
                connection: connection.to_owned(),
                spi_in: spi(spi_in, "_i")?,
            });
        }
        // `net{1}`.
        let id = name
            .strip_suffix('}')
            .and_then(|name| name.rsplit_once('{'));
        let id = id.and_then(|(_, id)| id.parse().ok());
        let child = id.and_then(|id| self.negotiated((connection, id), facts));
        self.begin_child();
        Some(match child {
            Some(child) => DaemonFact::Negotiated(child),
            None => DaemonFact::Unusable {
                id,
                why: format!(
                    "{connection} {name}: algorithms, keys or selectors are not supported ({facts})"
                ),
            },
        })
    }

    fn negotiated(&self, (connection, id): (&str, u32), facts: &str) -> Option<NegotiatedChild> {
        let (spis, selectors) = facts.split_once(" and TS ")?;
        let (spi_in, spi_out) = spis.split_once(' ')?;
        let (local, remote) = selectors.split_once(" === ")?;
        let suite = suite_of(&self.encryption, &self.integrity)?;
        let [
            encryption_initiator,
            encryption_responder,
            integrity_initiator,
            integrity_responder,
        ] = &self.keys;
        let initiator = (encryption_initiator, integrity_initiator);
        let responder = (encryption_responder, integrity_responder);
        let (sends, receives) = match self.is_responder {
            true => (responder, initiator),
            false => (initiator, responder),
        };
        let keys = |(encryption, integrity): (&Zeroizing<Vec<u8>>, &Zeroizing<Vec<u8>>)| {
            let fit = self.reading.is_none()
                && suite.encryption.accepts_key_length(encryption.len())
                && suite.integrity.key_length() == integrity.len();
            fit.then(|| EspKeys::new(encryption, integrity))
        };
        Some(NegotiatedChild {
            connection: connection.to_owned(),
            id,
            spi_in: spi(spi_in, "_i")?,
            spi_out: spi(spi_out, "_o")?,
            suite,
            keys_in: keys(receives)?,
            keys_out: keys(sends)?,
            selectors: selectors_of(local, remote)?,
            peer: self.peer?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as strongSwan 5.9.8 of Debian 12 writes them, with keys of a test.
    const INITIATOR: &str = "00[DMN] Starting IKE charon daemon (strongSwan 5.9.8)
13[NET] <tunnel-0|1> received packet: from 192.0.2.2[4500] to 192.0.2.1[4500] (208 bytes)
13[ENC] <tunnel-0|1> parsed IKE_AUTH response 1 [ IDr AUTH SA TSi TSr ]
14[NET] <tunnel-7|1> received packet: from 192.0.2.9[4500] to 192.0.2.1[4500] (208 bytes)
13[CHD] <tunnel-0|1> CHILD_SA net{1} state change: CREATED => INSTALLING
13[CHD] <tunnel-0|1>   using AES_CBC for encryption
13[CHD] <tunnel-0|1>   using HMAC_SHA2_256_128 for integrity
13[CHD] <tunnel-0|1> seed => 16 bytes @ 0x7effb5fd0960
13[CHD] <tunnel-0|1>    0: D6 DE 1D 17 DE AB 07 B9 2A EA 56 32 BE 11 B6 D3  ........*.V2....
13[CHD] <tunnel-0|1> encryption initiator key => 16 bytes @ 0x7eff84003290
13[CHD] <tunnel-0|1>    0: 63 6F 81 8C 41 41 C6 DF F3 5A 63 26 B2 B9 8C EF  co..AA...Zc&....
13[CHD] <tunnel-0|1> encryption responder key => 16 bytes @ 0x7eff84004790
14[ENC] <tunnel-7|1> parsed IKE_AUTH request 1 [ IDi AUTH SA TSi TSr ]
13[CHD] <tunnel-0|1>    0: 37 21 71 64 CC F8 19 BD A3 50 0C BF 9A C8 61 59  7!qd.....P....aY
13[CHD] <tunnel-0|1> integrity initiator key => 32 bytes @ 0x7eff84004790
13[CHD] <tunnel-0|1>    0: 01 02 03 04 05 06 07 08 09 0A 0B 0C 0D 0E 0F 10  ................
13[CHD] <tunnel-0|1>   16: 11 12 13 14 15 16 17 18 19 1A 1B 1C 1D 1E 1F 20  ................
13[CHD] <tunnel-0|1> integrity responder key => 32 bytes @ 0x7eff84004790
13[CHD] <tunnel-0|1>    0: A1 02 03 04 05 06 07 08 09 0A 0B 0C 0D 0E 0F 10  ................
13[CHD] <tunnel-0|1>   16: 11 12 13 14 15 16 17 18 19 1A 1B 1C 1D 1E 1F 20  ................
13[CHD] <tunnel-0|1> adding inbound ESP SA
13[CHD] <tunnel-0|1>   SPI 0x081005ce, src 192.0.2.2 dst 192.0.2.1
13[CHD] <tunnel-0|1> adding outbound ESP SA
13[CHD] <tunnel-0|1>   SPI 0x5cdf1653, src 192.0.2.1 dst 192.0.2.2
13[IKE] <tunnel-0|1> CHILD_SA net{1} established with SPIs 081005ce_i 5cdf1653_o and TS 10.1.0.0/24 === 10.2.0.0/24 10.3.0.1/32[17/5060]
";

    fn read(text: &str) -> (Vec<String>, Vec<DaemonFact>) {
        let mut log = DaemonLog::new();
        let (mut said, mut children) = (Vec::new(), Vec::new());
        for part in text.as_bytes().chunks(7) {
            log.read(
                part,
                |line| said.push(line.text.to_owned()),
                |child| {
                    children.push(child);
                },
            );
        }
        (said, children)
    }

    #[test]
    fn initiator_and_responder_have_opposite_keys() {
        let (said, children) = read(INITIATOR);
        let [DaemonFact::Negotiated(child)] = &children[..] else {
            panic!("{children:?}");
        };
        assert_eq!((child.connection.as_str(), child.id), ("tunnel-0", 1));
        assert_eq!((child.spi_in, child.spi_out), (0x0810_05ce, 0x5cdf_1653));
        assert_eq!(child.suite.to_string(), "AES-CBC+HMAC-SHA2-256-128");
        assert_eq!(child.keys_out.expose_encryption()[..2], [0x63, 0x6f]);
        assert_eq!(child.keys_in.expose_encryption()[..2], [0x37, 0x21]);
        assert_eq!(child.keys_in.expose_integrity()[0], 0xa1);
        assert_eq!(child.peer, "192.0.2.2:4500".parse().unwrap());
        assert_eq!(child.selectors.len(), 2);
        assert_eq!(
            child.selectors[0].source.unwrap().address().to_string(),
            "10.1.0.0"
        );
        assert_eq!(child.selectors[1].protocol, Some(17));
        assert_eq!(
            child.selectors[1].destination_ports,
            SelectorPorts::one(5_060)
        );
        // Lines with keys are not shown.
        assert!(said.iter().all(|line| !line.contains("63 6F")), "{said:?}");
        assert_eq!(said.len(), 2, "{said:?}");
        let responder = INITIATOR.replace("IKE_AUTH response", "CREATE_CHILD_SA request");
        let responder =
            responder.replace("IKE] <tunnel-0|1> CHILD", "IKE] <tunnel-0|1> inbound CHILD");
        let (_, children) = read(&responder);
        let [DaemonFact::Negotiated(other)] = &children[..] else {
            panic!("{children:?}");
        };
        assert_eq!(other.keys_in, child.keys_out);
        assert_eq!(other.keys_out, child.keys_in);
    }

    #[test]
    fn many_selectors_are_refused() {
        let networks = |count: usize| -> String {
            let each = (0..count).map(|host| format!("10.1.0.{host}/32"));
            each.collect::<Vec<_>>().join(" ")
        };
        for (count, is_usable) in [(32, true), (33, false), (250, false)] {
            let both = format!("TS {0} === {0}\n", networks(count));
            let (head, _) = INITIATOR.split_once("TS 10.1.0.0/24").unwrap();
            let (_, facts) = read(&format!("{head}{both}"));
            match (&facts[..], is_usable) {
                ([DaemonFact::Negotiated(child)], true) => {
                    assert_eq!(child.selectors.len(), 1_024);
                }
                ([DaemonFact::Unusable { id: Some(1), why }], false) => {
                    assert!(why.contains("selectors"), "{why}");
                }
                other => panic!("{count}: {other:?}"),
            }
        }
    }

    #[test]
    fn incomplete_associations_are_errors() {
        for (from, to) in [
            ("AES_CBC", "CAMELLIA_CBC"),
            ("HMAC_SHA2_256_128", "AES_XCBC_96"),
            (
                "integrity responder key => 32",
                "integrity responder key => 31",
            ),
            ("37 21 71 64", "37 21 71 6"),
            ("10.1.0.0/24 ===", "10.1.0.0..10.1.0.9 ==="),
            ("10.1.0.0/24 ===", "fd00::/8 ==="),
            ("received packet", "sending packet"),
        ] {
            let (_, children) = read(&INITIATOR.replace(from, to));
            let [DaemonFact::Unusable { id: Some(1), .. }] = &children[..] else {
                panic!("{from}: {children:?}");
            };
        }
        let long = format!("13[IKE] <tunnel-0|1> {}\n", "x".repeat(LONGEST_LINE));
        let (said, facts) = read(&long);
        assert!(said.is_empty());
        assert!(matches!(
            &facts[..],
            [DaemonFact::Unusable { id: None, .. }]
        ));
        // Without a name it is no connection of ours.
        let (_, children) = read(&INITIATOR.replace("<tunnel-0|1>", "<1>"));
        assert!(children.is_empty());
        // The switch to sealing of a known association.
        let (_, children) =
            read(&INITIATOR.replace("> CHILD_SA net{1} est", "> outbound CHILD_SA net{1} est"));
        let seals = DaemonFact::Seals {
            connection: "tunnel-0".to_owned(),
            spi_in: 0x0810_05ce,
        };
        assert_eq!(children, [seals]);
    }

    /// The lines of the responder of a change of keys, by strongSwan 5.9.8: the old association closes before the new
    /// one seals.
    #[test]
    fn associations_close_by_their_spis() {
        let closes = |spi_in| DaemonFact::Closes {
            connection: "tunnel-0".to_owned(),
            spi_in,
        };
        let text = "05[IKE] <tunnel-0|2> received DELETE for ESP CHILD_SA with SPI 5372f2e4
05[IKE] <tunnel-0|2> closing CHILD_SA net{1} with SPIs 9ceeebbf_i (0 bytes) 5372f2e4_o (0 bytes) and TS 10.1.0.0/24 === 10.2.0.0/24
05[IKE] <tunnel-0|2> sending DELETE for ESP CHILD_SA with SPI 9ceeebbf
05[IKE] <tunnel-0|2> CHILD_SA closed
05[IKE] <tunnel-0|2> outbound CHILD_SA net{3} established with SPIs 64642e83_i 24c7e523_o and TS 10.1.0.0/24 === 10.2.0.0/24
05[IKE] <tunnel-0|2> closing expired CHILD_SA net{3} with SPIs 64642e83_i 24c7e523_o and TS 10.1.0.0/24 === 10.2.0.0/24
";
        let (_, facts) = read(text);
        let seals = DaemonFact::Seals {
            connection: "tunnel-0".to_owned(),
            spi_in: 0x6464_2e83,
        };
        assert_eq!(facts, [closes(0x9cee_ebbf), seals, closes(0x6464_2e83)]);
        for other in [
            "closing IKE_SA due CHILD_SA setup failure",
            "closing CHILD_SA net{1} with SPIs x_i (0",
        ] {
            let (_, facts) = read(&format!("05[IKE] <tunnel-0|2> {other}\n"));
            assert_eq!(facts, [], "{other}");
        }
    }

    /// As many networks as a message of IKE can have, on one side.
    #[test]
    fn lines_about_many_networks_are_read() {
        let networks = |first: u32, count: u32| -> String {
            let each = (0..count)
                .map(|host| format!("fd00:1111:2222:3333:4444:5555:{first}:{host:04}/128"));
            each.collect::<Vec<_>>().join(" ")
        };
        let (head, _) = INITIATOR.split_once("TS 10.1.0.0/24").unwrap();
        let both = format!("TS {} === {}\n", networks(1_000, 4), networks(2_000, 255));
        assert!(both.len() > 10_000);
        let (_, facts) = read(&format!("{head}{both}"));
        let [DaemonFact::Negotiated(child)] = &facts[..] else {
            panic!("{facts:?}");
        };
        assert_eq!(child.selectors.len(), 1_020);
    }
}
