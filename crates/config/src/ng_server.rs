//! `[ng_server]`: media for other systems, which command it by the ng protocol of rtpengine.

use super::address::{self, Cidr, HostName, ListenAddress};
use super::media_addresses::{MediaAddress, MediaRange, RawMediaAddress, media_addresses};
use super::one_or_many::OneOrMany;
use super::sink::{Sink, cidrs};
use core::time::Duration;
use engine::Transport;
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// An ng server: media without signalling, commanded by the ng protocol of rtpengine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgServerSpec {
    /// Listening addresses for commands (`udp`, `tcp`, `ws`); at least one.
    pub listen: Vec<ListenAddress>,
    /// Networks whose commands are accepted.
    pub allow: Vec<Cidr>,
    /// Interfaces for media; the first is used if a command names none. At least one.
    pub interfaces: Vec<NgServerInterface>,
    /// Time for which media of a deleted call is still relayed, unless the command states one.
    pub delete_delay: Duration,
    /// Time from an offer until a call without an answer and without media is ended.
    pub offer_timeout: Duration,
    /// Directory for recordings; `None`: recording is refused.
    pub recordings: Option<PathBuf>,
    /// Recordings at a time, at most.
    pub max_recordings: u32,
    /// Directory of sounds for playback; `None`: playback of files is refused.
    pub sounds: Option<PathBuf>,
}

impl NgServerSpec {
    /// Whether commands from `source` are accepted.
    pub fn allows(&self, source: IpAddr) -> bool {
        let source = source.to_canonical();
        self.allow.iter().any(|net| net.contains(source))
    }

    /// The interface of this name.
    pub fn interface(&self, name: &str) -> Option<&NgServerInterface> {
        self.interfaces.iter().find(|known| known.name == name)
    }
}

/// A media interface of an ng server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgServerInterface {
    /// Name in `direction` of commands.
    pub name: String,
    /// At least one address, at most one per address family.
    pub media: Vec<MediaAddress>,
}

fn loopback() -> OneOrMany<String> {
    OneOrMany::Many(vec!["127.0.0.0/8".to_owned(), "::1".to_owned()])
}

/// More than timer C (RFC 3261 section 16.6) and `fr_inv_timer` of Kamailio.
fn offer_timeout() -> u32 {
    300
}

fn max_recordings() -> u32 {
    1_000
}

/// Media for Kamailio, OpenSIPS and others, commanded by the ng protocol of rtpengine. Run it by
/// `hornwork run --role media`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNgServer {
    /// Listening addresses for commands: `udp:ADDRESS:PORT`, `tcp:` or `ws:` (WebSocket, subprotocol
    /// `ng.rtpengine.com`).
    pub listen: OneOrMany<String>,
    /// Networks (`ADDRESS/BITS`) whose commands are accepted; other commands are dropped and counted. A source with
    /// access can direct media to any address. Default: loopback addresses.
    #[serde(default = "loopback")]
    pub allow: OneOrMany<String>,
    /// Interfaces for media. Commands select them by name (`direction`). Default: the first.
    #[schemars(length(min = 1))]
    pub interface: Vec<RawNgServerInterface>,
    /// Seconds for which media of a deleted call is still relayed, unless the command states a time.
    #[serde(default)]
    #[schemars(range(max = 3600))]
    pub delete_delay_s: u32,
    /// Seconds from an offer until a call without an answer and without media is ended: longer than the proxy lets a
    /// call ring. Checked each `[media] timeout_s`, which is the shortest time.
    #[serde(default = "offer_timeout")]
    #[schemars(range(min = 1, max = 86_400))]
    pub offer_timeout_s: u32,
    /// Directory for recordings (pcap, one file for each call and recording); it must exist. Without it, recording is
    /// refused.
    pub recordings: Option<String>,
    /// Recordings at a time, at most; each has an open file. A command that would start a further one is refused, also
    /// an offer or answer with `record-call`.
    #[serde(default = "max_recordings")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_recordings: u32,
    /// Directory of sounds (WAV files, also in subdirectories) for playback; it must exist. Without it, playback of
    /// files is refused.
    pub sounds: Option<String>,
}

/// A media interface of an ng server.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNgServerInterface {
    /// Name, unique among the interfaces of the ng server.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Address and ports; at most one for IPv4 and one for IPv6.
    pub media: OneOrMany<RawMediaAddress>,
}

/// The ng server of a file.
pub(super) fn ng_server(
    raw: Option<&RawNgServer>,
    ranges: &mut Vec<MediaRange>,
    placed: &mut Vec<String>,
    sink: &mut Sink<'_>,
) -> Option<NgServerSpec> {
    let written = raw?;
    let mut interfaces: Vec<NgServerInterface> = Vec::new();
    for (index, interface) in written.interface.iter().enumerate() {
        let path = format!("ng_server.interface[{index}]");
        if interfaces.iter().any(|known| known.name == interface.name) {
            sink.report(
                &format!("{path}.name"),
                format!("interface \"{}\" exists already", interface.name),
                "give each interface its own name",
            );
        }
        if interface.media.as_slice().is_empty() {
            sink.report(
                &format!("{path}.media"),
                "`media` is empty",
                "write media = { address = \"ADDRESS\" }",
            );
        }
        interfaces.push(NgServerInterface {
            name: interface.name.clone(),
            media: media_addresses(&interface.media, &[], &path, ranges, placed, sink),
        });
    }
    let listen = listen(written, &interfaces, ranges, sink);
    let allow = cidrs(&written.allow, "ng_server.allow", sink);
    if written.allow.as_slice().is_empty() {
        sink.report(
            "ng_server.allow",
            "`allow` is empty, so that no command would be accepted",
            "list the networks of the controllers, or remove `allow` to accept loopback addresses",
        );
    }
    let mut directory = |key: &str, directory: Option<&String>| {
        let path = PathBuf::from(directory?);
        if path.is_absolute() {
            return Some(path);
        }
        sink.report(
            &format!("ng_server.{key}"),
            format!("\"{}\" is not an absolute path", path.display()),
            "write the absolute path of an existing directory",
        );
        None
    };
    let recordings = directory("recordings", written.recordings.as_ref());
    let sounds = directory("sounds", written.sounds.as_ref());
    Some(NgServerSpec {
        listen,
        allow,
        interfaces,
        delete_delay: super::sink::seconds(written.delete_delay_s),
        offer_timeout: super::sink::seconds(written.offer_timeout_s),
        recordings,
        max_recordings: written.max_recordings,
        sounds,
    })
}

fn listen(
    written: &RawNgServer,
    interfaces: &[NgServerInterface],
    ranges: &[MediaRange],
    sink: &mut Sink<'_>,
) -> Vec<ListenAddress> {
    let base = "ng_server.listen";
    let mut listen: Vec<ListenAddress> = Vec::new();
    if written.listen.as_slice().is_empty() {
        sink.report(
            base,
            "`listen` is empty",
            "add for example \"udp:127.0.0.1:2223\"",
        );
    }
    for (index, text) in written.listen.as_slice().iter().enumerate() {
        let at = written.listen.path(base, index);
        let remedy =
            "write udp:, tcp: or ws: with ADDRESS:PORT, for example \"udp:127.0.0.1:2223\"";
        let transport = match address::split_transport(text) {
            Ok((Some(transport), rest)) => Some((transport, rest)),
            _ => None,
        };
        let Some((transport, rest)) = transport.filter(|(transport, _)| {
            matches!(transport, Transport::Udp | Transport::Tcp | Transport::Ws)
        }) else {
            sink.report(
                &at,
                format!("\"{text}\" is not a transport for commands"),
                remedy,
            );
            continue;
        };
        let place = HostName::parse(rest).and_then(|host| Some((host.ip()?, host.port?)));
        let Some((ip, port)) = place else {
            sink.report(
                &at,
                format!("\"{rest}\" is not an address and port"),
                remedy,
            );
            continue;
        };
        let address = SocketAddr::new(ip, port);
        let one = ListenAddress { transport, address };
        if listen.iter().any(|other| {
            other.address == address && other.transport.is_reliable() == transport.is_reliable()
        }) {
            sink.report(&at, format!("{one} is used already"), "choose another port");
        }
        let media = interfaces.iter().flat_map(|interface| &interface.media);
        for range in media.filter_map(|media| ranges.get(media.range)) {
            if transport == Transport::Udp
                && (range.address == ip || ip.is_unspecified())
                && (range.first..=range.last).contains(&port)
            {
                sink.report(
                    &at,
                    format!(
                        "port {port} is one of the media ports {}-{}",
                        range.first, range.last
                    ),
                    "change the listening port or `media.ports`",
                );
            }
        }
        listen.push(one);
    }
    listen
}

#[cfg(test)]
mod tests {
    use crate::parse;

    const NODE: &str =
        "[ng_server]\nlisten=['udp:127.0.0.1:2223']\n[[ng_server.interface]]\nname='a'\n";
    const MEDIA: &str = "media={address='192.0.2.1',ports='20000-20099'}\n";

    #[test]
    fn ng_server_alone_is_a_configuration() {
        let config = parse(&format!("{NODE}{MEDIA}"), "f").unwrap();
        let node = config.ng_server.unwrap();
        assert!(config.interfaces.is_empty());
        assert!(node.allows("127.9.9.9".parse().unwrap()));
        assert!(node.allows("::1".parse().unwrap()));
        assert!(node.allows("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!node.allows("192.0.2.1".parse().unwrap()));
        assert_eq!(config.media_ranges.len(), 1);
        assert_eq!(node.offer_timeout.as_secs(), 300);
        assert!(node.interface("a").is_some() && node.interface("b").is_none());
    }

    #[test]
    fn mistakes_have_line_and_remedy() {
        let with = |more: &str| NODE.replace("[[", &format!("{more}\n[["));
        for (text, line, message, remedy) in [
            (NODE.to_owned(), 3, "`media` is missing", ""),
            (
                format!("{NODE}media=[]\n"),
                5,
                "`media` is empty",
                "media = {",
            ),
            (
                format!("{NODE}media={{ports='20000-20099'}}\n"),
                5,
                "media address is unknown",
                "address",
            ),
            (
                format!("{NODE}{MEDIA}[[ng_server.interface]]\nname='a'\n{MEDIA}"),
                7,
                "exists already",
                "its own name",
            ),
            (
                format!(
                    "{}{MEDIA}",
                    NODE.replace("udp:127.0.0.1:2223", "tls:127.0.0.1:2223")
                ),
                2,
                "not a transport for commands",
                "udp:127.0.0.1:2223",
            ),
            (
                format!("{}{MEDIA}", NODE.replace(":2223", "")),
                2,
                "not an address and port",
                "udp:127.0.0.1:2223",
            ),
            (
                format!(
                    "{}{MEDIA}",
                    NODE.replace("127.0.0.1:2223", "192.0.2.1:20050")
                ),
                2,
                "is one of the media ports",
                "change",
            ),
            (
                format!("{}{MEDIA}", NODE.replace("']", "','udp:127.0.0.1:2223']")),
                2,
                "used already",
                "another port",
            ),
            (
                format!("{}{MEDIA}", NODE.replace("['udp:127.0.0.1:2223']", "[]")),
                2,
                "`listen` is empty",
                "2223",
            ),
            (
                format!("{}{MEDIA}", with("allow=[]")),
                3,
                "no command would be accepted",
                "remove",
            ),
            (
                format!("{}{MEDIA}", with("allow='x'")),
                3,
                "not an IP address",
                "192.0.2.0/24",
            ),
            (
                format!("{}{MEDIA}", with("recordings='here'")),
                3,
                "not an absolute path",
                "absolute path",
            ),
            (
                format!("{}{MEDIA}", with("sounds='here'")),
                3,
                "not an absolute path",
                "absolute path",
            ),
            (
                format!("{}{MEDIA}", with("offer_timeout_s=0")),
                3,
                "offer_timeout_s",
                "",
            ),
            (format!("{}{MEDIA}", with("alow='x'")), 3, "alow", "allow"),
        ] {
            let Err(mistakes) = parse(&text, "f.toml") else {
                panic!("no mistake in {text}")
            };
            let found = mistakes.iter().any(|mistake| {
                mistake.line == line
                    && mistake.message.contains(message)
                    && mistake.remedy.contains(remedy)
            });
            assert!(found, "{text}: {mistakes:?}");
        }
    }
}
