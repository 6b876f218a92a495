//! `[store]`: the history of calls, messages and events.

use super::database::DatabaseSpec;
use super::sink::Sink;
use core::time::Duration;
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Port of HEP collectors.
const HEP_PORT: u16 = 9060;

/// The place of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlace {
    /// A folder.
    Folder(PathBuf),
    /// A PostgreSQL database.
    Database(DatabaseSpec),
}

/// The history of calls, messages and events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSpec {
    /// Its place.
    pub place: StorePlace,
    /// Name of this border in the records; empty: none.
    pub node: String,
    /// Age in days from which records are removed.
    pub retention_days: u32,
    /// Size in bytes above which the oldest records are removed.
    pub size: u64,
    /// Bytes of messages that may be queued for the disk, of all workers.
    pub queue: usize,
    /// Whether messages of TLS, WS and WSS are stored in full.
    pub secure_content: bool,
    /// Whether texts of messages are indexed for full-text search.
    pub full_text: bool,
    /// Interval in which the quality of media is recorded; `None`: at the end of calls only.
    pub quality_interval: Option<Duration>,
    /// Exchange of messages with other systems.
    pub hep: HepSpec,
}

/// HEP version 3, the encapsulation protocol of HOMER, in both directions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HepSpec {
    /// Host and port of the collector that receives a copy of each message; the host is a name or an address.
    pub send: Option<(String, u16)>,
    /// Our number as a capture agent.
    pub id: u32,
    /// Our password at the collector; empty: none.
    pub password: String,
    /// Address that accepts messages of capture agents.
    pub listen: Option<SocketAddr>,
    /// Messages accepted per second, of all agents.
    pub rate: u32,
}

/// The history of calls, messages and events, for `hornwork trace`. Off if the table is absent. docs/store.md describes
/// it. Changes take effect at the next start.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawStore {
    /// Its folder, with an absolute path. It is created if it does not exist; only its owner has access. Required
    /// unless `database` is given.
    pub folder: Option<String>,
    /// A PostgreSQL database instead of the folder, shared by several borders:
    /// `postgresql://ROLE@HOST[:PORT]/DATABASE?sslrootcert=FILE[&passfile=FILE]`, as for psql. The certificate of the
    /// server is verified (`sslmode=verify-full`); `sslmode=disable`: no TLS. A Unix socket:
    /// `postgresql://ROLE@/DATABASE?host=FOLDER`. The password is in the file that `passfile` or the variable
    /// PGPASSFILE names.
    pub database: Option<String>,
    /// Name of this border in the records: up to 64 letters, digits and `- _ .`. Required with `database`, where each
    /// border has a name of its own.
    pub node: Option<String>,
    /// Age in days from which records are removed. Whole partitions are removed: at most a day of records each.
    #[serde(default = "retention_days")]
    #[schemars(range(min = 1, max = 3650))]
    pub retention_days: u32,
    /// Size of the folder or of the tables in MiB above which the oldest partitions are removed.
    #[serde(default = "size_mib")]
    #[schemars(range(min = 64, max = 100_000_000))]
    pub size_mib: u32,
    /// Memory in MiB for messages that are not yet written. Messages beyond it are not stored; they are counted and
    /// reported. At 2,000 calls per second, 64 MiB last for about four seconds without disk.
    #[serde(default = "queue_mib")]
    #[schemars(range(min = 4, max = 4096))]
    pub queue_mib: u32,
    /// Whether messages received or sent over TLS, WS and WSS are stored in full, and sent by HEP. Otherwise only their
    /// start line and the headers Via, From, To, Call-ID and CSeq are.
    #[serde(default)]
    pub secure_content: bool,
    /// Whether display names, user agents and reasons are indexed for full-text search.
    #[serde(default = "full_text")]
    pub full_text: bool,
    /// Seconds from one record of a call's media quality to the next: 5 to 3600; 0: quality is recorded at the end of
    /// calls only. The first interval of a call is up to half longer or shorter, because calls take turns. While the
    /// kernel relays media, at most 50 calls are queried in a second, and intervals are longer with more calls. Each
    /// record has packets, loss, jitter and MOS of both sides in that time. At media nodes at most 1,000 calls are
    /// queried in a second.
    #[serde(default = "quality_interval_s")]
    #[schemars(range(min = 0, max = 3600))]
    pub quality_interval_s: u32,
    /// Exchange of messages with HOMER, sngrep, Kamailio and others by HEP version 3.
    #[serde(default)]
    pub hep: RawHep,
}

/// HEP version 3 over UDP.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawHep {
    /// Collector that receives a copy of each message: `udp:HOST[:PORT]`. A name is resolved at the start and again
    /// every five minutes, or after one to 60 seconds while that fails. Default port: 9060.
    pub send: Option<String>,
    /// Our number as a capture agent.
    pub id: u32,
    /// Password (authentication key) at the collector. It is sent in clear text, as HEP has it.
    pub password: Option<String>,
    /// Address that accepts messages of capture agents, which are stored like our own: `udp:ADDRESS[:PORT]`. HEP has no
    /// protection: choose an address that only agents reach.
    pub listen: Option<String>,
    /// Messages accepted per second, of all agents. Further ones are dropped and counted.
    #[serde(default = "rate")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub rate: u32,
}

fn retention_days() -> u32 {
    30
}

fn size_mib() -> u32 {
    10_240
}

fn queue_mib() -> u32 {
    64
}

fn quality_interval_s() -> u32 {
    10
}

fn full_text() -> bool {
    true
}

fn rate() -> u32 {
    20_000
}

/// The store of a file.
pub(super) fn store(raw: Option<&RawStore>, sink: &mut Sink<'_>) -> Option<StoreSpec> {
    let written = raw?;
    let place = place(written, sink);
    let node = node(written, sink);
    let hep = &written.hep;
    let listen = hep.listen.as_ref().and_then(|text| {
        let address = udp(text).and_then(|rest| address_of(rest, HEP_PORT));
        let address = address.filter(|address| address.port() != 0);
        if address.is_none() {
            sink.report(
                "store.hep.listen",
                format!("\"{text}\" is not a listening address"),
                "write udp:ADDRESS[:PORT], such as \"udp:127.0.0.1:9060\"",
            );
        }
        address
    });
    let send = hep.send.as_ref().and_then(|text| {
        let target = udp(text).and_then(host_and_port);
        if target.is_none() {
            sink.report(
                "store.hep.send",
                format!("\"{text}\" is not the address of a collector"),
                "write udp:HOST[:PORT], such as \"udp:192.0.2.9:9060\"",
            );
        }
        target
    });
    Some(StoreSpec {
        place: place?,
        node,
        retention_days: written.retention_days,
        size: u64::from(written.size_mib) << 20,
        queue: (written.queue_mib as usize) << 20,
        secure_content: written.secure_content,
        full_text: written.full_text,
        quality_interval: quality_interval(written.quality_interval_s, sink),
        hep: HepSpec {
            send,
            id: hep.id,
            password: hep.password.clone().unwrap_or_default(),
            listen,
            rate: hep.rate.max(1),
        },
    })
}

/// The shortest interval of quality records, seconds: that of RTCP (RFC 3550 section 6.2).
const SHORTEST_INTERVAL: u32 = 5;

fn quality_interval(seconds: u32, sink: &mut Sink<'_>) -> Option<Duration> {
    if seconds != 0 && seconds < SHORTEST_INTERVAL {
        sink.report(
            "store.quality_interval_s",
            format!("{seconds} seconds are too short"),
            "set 5 or more, or 0 for quality at the end of calls only",
        );
    }
    (seconds != 0).then(|| Duration::from_secs(seconds.max(SHORTEST_INTERVAL).into()))
}

/// The folder or the database.
fn place(written: &RawStore, sink: &mut Sink<'_>) -> Option<StorePlace> {
    match (&written.folder, &written.database) {
        (Some(folder), None) => {
            if !folder.starts_with('/') {
                sink.report(
                    "store.folder",
                    format!("\"{folder}\" is not an absolute path"),
                    "write the whole path, such as \"/var/lib/hornwork/store\"",
                );
            }
            Some(StorePlace::Folder(folder.into()))
        }
        (None, Some(url)) => match DatabaseSpec::parse(url) {
            Ok(database) => Some(StorePlace::Database(database)),
            Err(error) => {
                sink.report("store.database", error.message, error.remedy);
                None
            }
        },
        (Some(_), Some(_)) => {
            sink.report(
                "store.database",
                "the store has a folder already",
                "remove `folder` or `database`",
            );
            None
        }
        (None, None) => {
            sink.report(
                "store",
                "`folder` is missing",
                "set `folder = \"/var/lib/hornwork/store\"`, or `database`",
            );
            None
        }
    }
}

/// The name of this border in the records; empty: none.
fn node(written: &RawStore, sink: &mut Sink<'_>) -> String {
    let Some(node) = &written.node else {
        if written.database.is_some() {
            sink.report(
                "store.database",
                "the border has no name in the shared store",
                "set `node` to a name that no other border has, such as \"edge-1\"",
            );
        }
        return String::new();
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !(1..=64).contains(&node.len()) || !node.bytes().all(is_name) {
        sink.report(
            "store.node",
            "it is no name of a node",
            "write 1 to 64 letters, digits, `-`, `_` and `.`",
        );
    }
    node.clone()
}

fn udp(text: &str) -> Option<&str> {
    text.strip_prefix("udp:").filter(|rest| !rest.is_empty())
}

/// A host, which is a name or an address, and a port.
fn host_and_port(text: &str) -> Option<(String, u16)> {
    if let Some(address) = address_of(text, HEP_PORT) {
        return Some((address.ip().to_string(), address.port())).filter(|(_, port)| *port != 0);
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok().filter(|port| *port != 0)?),
        None => (text, HEP_PORT),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (!host.is_empty() && host.bytes().all(is_name)).then(|| (host.to_owned(), port))
}

/// An IP address with or without port.
fn address_of(text: &str, port: u16) -> Option<SocketAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    text.parse()
        .ok()
        .or_else(|| Some(SocketAddr::new(bare.parse().ok()?, port)))
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::StorePlace;
    use core::time::Duration;

    #[test]
    fn the_store_has_bounds_and_checked_addresses() {
        let with = |more: &str| {
            let text = format!("[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1:5060\"\n{more}");
            parse(&text, "f")
                .map(|config| config.store)
                .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect::<String>())
        };
        assert_eq!(with("").unwrap(), None);
        let plain = with("[store]\nfolder=\"/var/x\"\n").unwrap().unwrap();
        assert_eq!((plain.retention_days, plain.size), (30, 10 << 30));
        assert_eq!(plain.quality_interval, Some(Duration::from_secs(10)));
        let without = with("[store]\nfolder=\"/var/x\"\nquality_interval_s=0\n").unwrap();
        assert_eq!(without.unwrap().quality_interval, None);
        let short = with("[store]\nfolder=\"/var/x\"\nquality_interval_s=4\n").unwrap_err();
        assert!(short.contains("4 seconds are too short"), "{short}");
        assert!(!plain.secure_content && plain.full_text && plain.hep.send.is_none());
        let shared =
            "[store]\nnode=\"edge-1\"\ndatabase=\"postgresql://a@/c?host=/run/postgresql\"\n";
        let shared = with(shared).unwrap().unwrap();
        assert_eq!(shared.node, "edge-1");
        assert!(matches!(shared.place, StorePlace::Database(database) if database.user == "a"));
        let hep =
            "[store]\nfolder=\"/x\"\nhep={send=\"udp:192.0.2.9\",id=7,listen=\"udp:[::1]\"}\n";
        let hep = with(hep).unwrap().unwrap().hep;
        assert_eq!(hep.send, Some(("192.0.2.9".to_owned(), 9060)));
        assert_eq!(hep.listen, Some("[::1]:9060".parse().unwrap()));
        assert_eq!(hep.id, 7);
        for (more, expected) in [
            ("folder=\"x\"", "not an absolute path"),
            (
                "folder=\"/x\"\ndatabase=\"postgresql://a@b/c\"\nnode=\"a\"",
                "folder already",
            ),
            (
                "database=\"postgresql://a@/c?host=/run\"",
                "no name in the shared store",
            ),
            (
                "database=\"postgresql://a@b/c\"\nnode=\"a\"",
                "cannot be verified",
            ),
            ("folder=\"/x\"\nnode=\"a b\"", "no name of a node"),
            ("", "`folder` is missing"),
            ("folder=\"/x\"\nqueue_mib=1", "queue_mib"),
            (
                "folder=\"/x\"\nhep={listen=\"udp:x\"}",
                "not a listening address",
            ),
            (
                "folder=\"/x\"\nhep={listen=\"udp:127.0.0.1:0\"}",
                "not a listening address",
            ),
            ("folder=\"/x\"\nhep={send=\"tcp:192.0.2.1\"}", "collector"),
            ("folder=\"/x\"\nkeep=1", "unknown key"),
        ] {
            let said = with(&format!("[store]\n{more}\n")).unwrap_err();
            assert!(said.contains(expected), "{more}: {said}");
        }
    }
}
