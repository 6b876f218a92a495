//! Settings that take effect at the next start only: a reload names those that it changes, or is refused.
//!
//! A reload is compared with the configuration of the start, not with that of the last reload: sockets, threads and
//! media paths are those of the start, however many reloads have been accepted since.

use config::{Config, MediaSocketMode, OffloadMode};
use std::net::IpAddr;
use std::sync::Arc;

/// Settings of a media node among those that take effect at the next start only; the others have no effect there.
const NODE_SETTINGS: [&str; 5] = [
    "[threads]",
    "[media] ",
    "media addresses",
    "[limits]",
    "[log]",
];

/// The configuration of the start.
#[derive(Clone)]
pub(crate) struct StartConfig(Arc<Config>);

impl StartConfig {
    pub(crate) fn new(config: Arc<Config>) -> StartConfig {
        StartConfig(config)
    }

    /// The reason to refuse a new configuration: it requires a media path that does not serve its media addresses.
    pub(crate) fn refusal(&self, new: &Config) -> Option<String> {
        required_media_path(&self.0, new)
    }

    /// Tables whose settings differ from those in effect until the next start.
    pub(crate) fn pending_changes(&self, new: &Config) -> Vec<&'static str> {
        changes_for_next_start(&self.0, new)
    }

    /// Those of a media node.
    pub(crate) fn pending_node_changes(&self, new: &Config) -> Vec<&'static str> {
        let mut changes = self.pending_changes(new);
        changes.retain(|change| NODE_SETTINGS.iter().any(|name| change.starts_with(name)));
        changes
    }
}

/// Logs which changed settings wait for the next start.
pub(crate) fn warn_of_pending_changes(changes: &[&str]) {
    if !changes.is_empty() {
        tracing::warn!(
            "changes in {} take effect at the next start",
            changes.join(", ")
        );
    }
}

/// Media addresses that only the new configuration has. The shared sockets, the kernel relay and AF_XDP serve the
/// addresses of the start.
fn added_media_addresses(old: &Config, new: &Config) -> Vec<IpAddr> {
    let before = old.media_addresses();
    let mut added = new.media_addresses();
    added.retain(|address| !before.contains(address));
    added
}

/// Whether media may use another path than a socket for each port.
fn has_special_media_path(config: &Config) -> bool {
    let media = &config.media;
    media.sockets != MediaSocketMode::PerPort
        || media.kernel_relay != OffloadMode::Never
        || media.af_xdp != OffloadMode::Never
}

/// The setting that forbids to serve media addresses of a reload by a socket for each port.
fn required_media_path(old: &Config, new: &Config) -> Option<String> {
    let media = &new.media;
    let setting = match media {
        _ if media.sockets == MediaSocketMode::Shared => "sockets = \"shared\"",
        _ if media.kernel_relay == OffloadMode::Require => "kernel_relay = \"require\"",
        _ if media.af_xdp == OffloadMode::Require => "af_xdp = \"require\"",
        _ => return None,
    };
    let added = added_media_addresses(old, new);
    let added: Vec<String> = added.iter().map(ToString::to_string).collect();
    (!added.is_empty()).then(|| {
        format!(
            "new media addresses {}: `[media] {setting}` serves those of the start; restart to add them",
            added.join(", ")
        )
    })
}

/// Tables with changed settings that take effect only at the next start.
fn changes_for_next_start(old: &Config, new: &Config) -> Vec<&'static str> {
    let limits = |config: &Config| engine::Limits {
        // These two are read for each call and registration.
        calls: 0,
        registrations: 0,
        ..config.limits.clone()
    };
    let once = |config: &Config| {
        let sip = &config.sip;
        (
            sip.agent.clone(),
            sip.dscp,
            sip.batching_delay,
            sip.gso,
            sip.burst_bytes,
            sip.queueing_delay.is_some(),
        )
    };
    let listens = |config: &Config| {
        let control = config.control.as_ref();
        control.map(|c| {
            (
                c.listen,
                c.socket.clone(),
                c.connections,
                c.connections_per_source,
            )
        })
    };
    let console = |config: &Config| {
        let console = config.console.as_ref();
        console.map(|c| {
            (
                c.listen,
                c.certificate.is_some(),
                c.audit.clone(),
                c.reports.clone(),
                (c.connections, c.connections_per_source),
            )
        })
    };
    let differ = [
        ("[sip]", once(old) != once(new)),
        ("[threads]", old.threads != new.threads),
        ("[session_timer]", old.session_timer != new.session_timer),
        ("[media] dscp", old.media.dscp != new.media.dscp),
        (
            "[media] batching_delay_ms",
            old.media.batching_delay != new.media.batching_delay,
        ),
        ("[media] sockets", old.media.sockets != new.media.sockets),
        (
            "[media] kernel_relay",
            old.media.kernel_relay != new.media.kernel_relay,
        ),
        ("[media] af_xdp", old.media.af_xdp != new.media.af_xdp),
        (
            "media addresses (their ports get one socket each until then)",
            has_special_media_path(new) && !added_media_addresses(old, new).is_empty(),
        ),
        ("[control]", listens(old) != listens(new)),
        ("[records]", old.records != new.records),
        ("[metrics]", old.metrics != new.metrics),
        ("[console]", console(old) != console(new)),
        ("[alarms]", old.alarms != new.alarms),
        ("[traces]", old.traces != new.traces),
        ("[gateway]", old.gateway != new.gateway),
        (
            "[registrar] store",
            old.registrar_store != new.registrar_store,
        ),
        ("[store]", old.store != new.store),
        ("[limits]", limits(old) != limits(new)),
        ("[log]", old.log != new.log),
    ];
    let names = differ.into_iter().filter(|(_, differs)| *differs);
    names.map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_for_the_next_start_are_named() {
        let read = |more: &str| {
            let text = format!("[[interface]]\nname=\"x\"\nlisten=\"udp:192.0.2.1\"\n{more}");
            config::parse(&text, "f").unwrap()
        };
        let old = read("");
        let same = read(
            "[limits]\ncalls=5\nregistrations=5\n[registrar]\nmax_contacts=5\n[sip]\nring_timeout_s=30\n[drain]\ntimeout_s=1\n",
        );
        assert!(changes_for_next_start(&old, &same).is_empty());
        for one in [
            "agent=\"x\"",
            "dscp=0",
            "batching_delay_ms=0",
            "gso=false",
            "queueing_delay_ms=0",
        ] {
            let other = read(&format!("[sip]\n{one}\n"));
            assert_eq!(changes_for_next_start(&old, &other), ["[sip]"], "{one}");
        }
        let other = read(
            "[sip]\nagent=\"x\"\n[session_timer]\nexpires_s=600\n[media]\ndscp=0\n[limits]\nconnections=5\n[log]\nlevel=\"warn\"\n",
        );
        assert_eq!(
            changes_for_next_start(&old, &other),
            [
                "[sip]",
                "[session_timer]",
                "[media] dscp",
                "[limits]",
                "[log]"
            ]
        );
    }

    #[test]
    fn changes_without_effect_on_a_media_node_are_not_named() {
        let read = |more: &str| {
            let text = format!(
                "[ng_server]\nlisten=\"udp:192.0.2.1:2223\"\n[[ng_server.interface]]\nname=\"x\"\nmedia={{address=\"192.0.2.1\",ports=\"27000-27099\"}}\n{more}"
            );
            config::parse(&text, "f").unwrap()
        };
        let start = StartConfig::new(Arc::new(read("")));
        let other = read(
            "[sip]\nagent=\"x\"\n[session_timer]\nexpires_s=600\n[media]\ndscp=0\nkernel_relay=\"never\"\n[log]\nlevel=\"warn\"\n",
        );
        assert_eq!(
            start.pending_node_changes(&other),
            ["[media] dscp", "[log]"]
        );
        assert!(
            start
                .pending_node_changes(&read("[limits]\ncalls=5\n"))
                .is_empty()
        );
    }

    #[test]
    fn media_addresses_of_a_reload_wait_for_the_next_start_or_are_refused() {
        let read = |media: &str, more: &str| {
            let text = format!(
                "[[interface]]\nname=\"x\"\nlisten=\"udp:192.0.2.1\"\n{more}\n[media]\n{media}\n"
            );
            config::parse(&text, "f").unwrap()
        };
        let second = "[[interface]]\nname=\"y\"\nlisten=\"udp:192.0.2.2\"";
        for (media, named, refused) in [
            ("sockets=\"per-port\"", false, false),
            ("sockets=\"auto\"", true, false),
            ("sockets=\"shared\"", true, true),
            ("sockets=\"per-port\"\nkernel_relay=\"auto\"", true, false),
            ("sockets=\"per-port\"\nkernel_relay=\"require\"", true, true),
            ("sockets=\"per-port\"\naf_xdp=\"require\"", true, true),
        ] {
            let (old, new) = (read(media, ""), read(media, second));
            let changes = changes_for_next_start(&old, &new);
            assert_eq!(changes.len(), usize::from(named), "{media}: {changes:?}");
            let why = required_media_path(&old, &new);
            assert_eq!(why.is_some(), refused, "{media}: {why:?}");
            assert!(why.is_none_or(|why| why.contains("192.0.2.2")));
            // An address that is removed changes nothing.
            assert!(changes_for_next_start(&new, &old).is_empty(), "{media}");
            assert!(required_media_path(&new, &old).is_none());
        }
    }

    #[test]
    fn second_reload_is_compared_with_the_start() {
        let read = |media: &str, more: &str| {
            let text = format!(
                "[[interface]]\nname=\"x\"\nlisten=\"udp:192.0.2.1\"\n{more}\n[media]\n{media}\n"
            );
            config::parse(&text, "f").unwrap()
        };
        let second = "[[interface]]\nname=\"y\"\nlisten=\"udp:192.0.2.2\"";
        for (lenient, required) in [
            ("sockets=\"auto\"", "sockets=\"shared\""),
            ("kernel_relay=\"auto\"", "kernel_relay=\"require\""),
            ("af_xdp=\"auto\"", "af_xdp=\"require\""),
        ] {
            let start = StartConfig::new(Arc::new(read(required, "")));
            // The first reload adds an address, which gets a socket for each port.
            let first = read(lenient, second);
            assert_eq!(start.refusal(&first), None, "{lenient}");
            // The second one requires the path that this address does not have.
            let why = start.refusal(&read(required, second)).unwrap_or_default();
            assert!(
                why.contains("192.0.2.2") && why.contains(required.split('=').next().unwrap()),
                "{why}"
            );
            // Without the address, everything is as at the start: no change is pending.
            let back = read(required, "");
            assert_eq!(start.refusal(&back), None, "{required}");
            assert!(start.pending_changes(&back).is_empty(), "{required}");
        }
        // An address of the start that one reload removes and the next one adds again has its path still.
        let start = StartConfig::new(Arc::new(read("sockets=\"shared\"", second)));
        assert_eq!(start.refusal(&read("sockets=\"shared\"", "")), None);
        assert_eq!(start.refusal(&read("sockets=\"shared\"", second)), None);
        // A change is pending until the restart, also if a later reload changes something else.
        let start = StartConfig::new(Arc::new(read("dscp=0", "")));
        for more in ["", "[limits]\ncalls=5"] {
            assert_eq!(
                start.pending_changes(&read("dscp=8", more)),
                ["[media] dscp"]
            );
        }
    }
}
