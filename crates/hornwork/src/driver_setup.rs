//! Start of the driver, shared by the border, its additional workers and the media node: settings, limits of the
//! machine, the certificate for DTLS.

use config::Config;
use engine::EventKind;
use net::{Clock, DriverConfig, KernelRelay, MediaSockets};
use protect::dtls;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

/// Longest delay in handling a signal: one that arrives just before the driver's wait is handled after it.
pub(crate) const SIGNAL_WAIT: Duration = Duration::from_millis(200);

/// Accepted connections above the limit of the border: new ones that replace silent ones, and those that are being
/// closed.
const SPARE_CONNECTIONS: usize = 256;

/// Settings of a driver for this configuration, without those of its thread.
pub(crate) fn driver_config(config: &Config, relay: Option<&KernelRelay>) -> DriverConfig {
    DriverConfig {
        relay: relay.cloned(),
        media_batching_delay: config.media.batching_delay,
        media_sockets: match config.media.sockets {
            config::MediaSocketMode::Auto => MediaSockets::Auto,
            config::MediaSocketMode::Shared => MediaSockets::One,
            config::MediaSocketMode::PerPort => MediaSockets::PerPort,
        },
        media_addresses: u8::try_from(config.media_addresses().len()).unwrap_or(u8::MAX),
        signalling_datagram: config.limits.message_bytes,
        signalling_dscp: config.sip.dscp,
        media_dscp: config.media.dscp,
        signalling_batching_delay: config.sip.batching_delay,
        signalling_timestamps: config.sip.queueing_delay.is_some(),
        pacing_burst: config.sip.burst_bytes,
        gso_order: config
            .sip
            .gso
            .then_some(wire::sip::call_number as fn(&[u8]) -> u32),
        report_unreachable: true,
        connections: config.limits.connections.saturating_add(SPARE_CONNECTIONS),
        connections_per_source: config.limits.connections_per_source,
        stream_buffer: config.limits.connection_queue,
        handshake_timeout: config.limits.handshake,
        handshakes_per_second: u32::try_from(config.limits.handshakes_per_second)
            .unwrap_or(u32::MAX),
        websocket_message: config.limits.message_bytes,
        // Nothing outside of the program stops its packets: sockets that cannot be opened are tried again later.
        waits_for_ports: false,
        ..DriverConfig::default()
    }
}

/// Logs limits of this machine that are unsuitable for the configuration; once at the start.
pub(crate) fn log_machine_limits(config: &Config) {
    match net::raise_open_files() {
        Ok(files) => {
            let pairs: u64 = config
                .media_ranges
                .iter()
                .map(|range| u64::from(range.last - range.first) + 1)
                .sum();
            if files / 5 * 4 < pairs {
                tracing::info!(
                    "the limit of open files is {files}, but the media ranges have {pairs} ports, each of which needs one during a call, and media may have four of five: further calls are refused; raise it with LimitNOFILE= or ulimit -n"
                );
            }
        }
        Err(error) => tracing::warn!("cannot raise the limit of open files: {error}; use ulimit"),
    }
    let root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if root {
        tracing::warn!(
            "running as root, which is not necessary: use the unit in packaging/, which has a user of its own"
        );
    }
}

/// Certificate for DTLS in media, generated at each start; its fingerprint is signalled in SDP.
pub(crate) fn media_keying(clock: &Clock) -> io::Result<dtls::DtlsEndpoint> {
    let certificate = dtls::Certificate::generate().map_err(io::Error::other)?;
    let epoch = dtls::Epoch::new(clock.zero());
    dtls::DtlsEndpoint::new(dtls::Settings::default(), certificate, epoch).map_err(io::Error::other)
}

/// Checks whether a listener was opened, or the socket for commands to media nodes.
///
/// # Errors
/// The reason with the remedy.
pub(crate) fn opened(note: &EventKind) -> io::Result<()> {
    match note {
        EventKind::SocketFailed {
            purpose: what,
            address,
            error,
        } if what == "ng client" => Err(io::Error::other(format!(
            "cannot open a socket for commands to the media node at {address}: {error}\n  remedy: correct `control` in [[media_node]], give this host an address of that family, or raise the limit of open files (LimitNOFILE=)"
        ))),
        EventKind::SocketFailed {
            purpose: what,
            address,
            error,
        } if what != "media" && what != "dns" => Err(io::Error::other(format!(
            "cannot listen on {address} ({what}): {error}\n  remedy: stop the program that uses the port, or correct `listen` in the configuration"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_threads_do_not_wait_for_ports() {
        let text = "[[interface]]\nname=\"x\"\nlisten=\"udp:192.0.2.1\"\n";
        let config = config::parse(text, "f").unwrap();
        assert!(!driver_config(&config, None).waits_for_ports);
    }

    #[test]
    fn socket_for_media_nodes_has_a_remedy_of_its_own() {
        let failed = |purpose: &str| EventKind::SocketFailed {
            purpose: purpose.to_owned(),
            address: "[2001:db8::5]:2223".to_owned(),
            error: "Address family not supported by protocol".to_owned(),
        };
        let text = |purpose| opened(&failed(purpose)).unwrap_err().to_string();
        let (client, listener) = (text("ng client"), text("sip"));
        assert!(
            client.contains("media node at [2001:db8::5]:2223"),
            "{client}"
        );
        assert!(client.contains("`control`") && !client.contains("`listen`"));
        assert!(listener.contains("`listen`"), "{listener}");
        assert!(opened(&failed("media")).is_ok());
        // Names are looked up later.
        assert!(opened(&failed("dns")).is_ok());
    }
}
