//! `[node]`: media for others, who command it by the "ng" protocol.

use super::address::{self, HostName, ListenAddress};
use super::check::{Sink, cidrs};
use super::interfaces::media_addresses;
use super::raw::{OneOrMany, Raw, RawMediaAddress};
use super::{Cidr, MediaAddress, MediaRange};
use core::time::Duration;
use engine::Transport;
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// A media node: media without signalling, commanded by the "ng" protocol of rtpengine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where commands are taken in (`udp`, `tcp`, `ws`); at least one.
    pub listen: Vec<ListenAddress>,
    /// Networks whose commands are taken.
    pub allow: Vec<Cidr>,
    /// Where media is anchored; the first counts where a command names none. At least one.
    pub interfaces: Vec<NodeInterface>,
    /// How long a call that was deleted goes on, where the command does not say.
    pub delete_delay: Duration,
    /// The folder for recordings; `None`: nothing is recorded.
    pub recordings: Option<PathBuf>,
    /// The folder of sounds that may be played; `None`: no files are played.
    pub sounds: Option<PathBuf>,
}

impl Node {
    /// Whether commands are taken from there.
    pub fn allows(&self, source: IpAddr) -> bool {
        let source = source.to_canonical();
        self.allow.iter().any(|net| net.contains(source))
    }

    /// The interface of this name.
    pub fn interface(&self, name: &str) -> Option<&NodeInterface> {
        self.interfaces.iter().find(|known| known.name == name)
    }
}

/// A place where a node anchors media.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInterface {
    /// By which `direction` names it.
    pub name: String,
    /// At most one address per address family; at least one.
    pub media: Vec<MediaAddress>,
}

fn loopback() -> OneOrMany<String> {
    OneOrMany::Many(vec!["127.0.0.0/8".to_owned(), "::1".to_owned()])
}

/// A media node: media for Kamailio, OpenSIPS and others, who command it by the "ng" protocol of rtpengine. Served by
/// `hornwork run --role media`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNode {
    /// Where commands are taken in: `udp:ADDRESS:PORT`, `tcp:` or `ws:` (WebSocket, subprotocol `ng.rtpengine.com`).
    pub listen: OneOrMany<String>,
    /// Networks (`ADDRESS/BITS`) whose commands are taken; others are counted drops. Whoever may send commands may direct media
    /// anywhere. Default: this machine.
    #[serde(default = "loopback")]
    pub allow: OneOrMany<String>,
    /// Where media is anchored. Commands choose among them by name (`direction`); the first is the usual one.
    #[schemars(length(min = 1))]
    pub interface: Vec<RawNodeInterface>,
    /// Seconds for which the media of a deleted call still passes, where the command does not say.
    #[serde(default)]
    #[schemars(range(max = 3600))]
    pub delete_delay: u32,
    /// Folder for recordings (pcap, one file for each call and recording); it has to exist. Without it commands to record are
    /// refused.
    pub recordings: Option<String>,
    /// Folder of the sounds (WAV files) that commands may play, with the folders in it; it has to exist. Without it commands to play
    /// a file are refused.
    pub sounds: Option<String>,
}

/// A place where a node anchors media.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNodeInterface {
    /// Its name, unique among those of the node.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Address and ports; one for IPv4 and one for IPv6 at most.
    pub media: OneOrMany<RawMediaAddress>,
}

/// The node that a file describes.
pub(super) fn node_of(
    raw: &Raw,
    ranges: &mut Vec<MediaRange>,
    placed: &mut Vec<String>,
    sink: &mut Sink<'_>,
) -> Option<Node> {
    let written = raw.node.as_ref()?;
    let mut interfaces: Vec<NodeInterface> = Vec::new();
    for (index, interface) in written.interface.iter().enumerate() {
        let path = format!("node.interface[{index}]");
        if interfaces.iter().any(|known| known.name == interface.name) {
            sink.report(
                &format!("{path}.name"),
                format!("interface \"{}\" is there already", interface.name),
                "give each interface of the node a name of its own",
            );
        }
        if interface.media.as_slice().is_empty() {
            sink.report(
                &format!("{path}.media"),
                "`media` is empty",
                "write media = { address = \"ADDRESS\" }",
            );
        }
        interfaces.push(NodeInterface {
            name: interface.name.clone(),
            media: media_addresses(&interface.media, &[], &path, ranges, placed, sink),
        });
    }
    let listen = listen(written, &interfaces, ranges, sink);
    let allow = cidrs(&written.allow, "node.allow", sink);
    if written.allow.as_slice().is_empty() {
        sink.report(
            "node.allow",
            "`allow` is empty: nobody could command this node",
            "name the addresses of those who may, or leave it out for this machine alone",
        );
    }
    let mut folder = |key: &str, folder: Option<&String>| {
        let path = PathBuf::from(folder?);
        if path.is_absolute() {
            return Some(path);
        }
        sink.report(
            &format!("node.{key}"),
            format!("\"{}\" is no absolute path", path.display()),
            "write the whole path of a folder that exists",
        );
        None
    };
    let recordings = folder("recordings", written.recordings.as_ref());
    let sounds = folder("sounds", written.sounds.as_ref());
    Some(Node {
        listen,
        allow,
        interfaces,
        delete_delay: super::check::seconds(written.delete_delay),
        recordings,
        sounds,
    })
}

fn listen(
    written: &RawNode,
    interfaces: &[NodeInterface],
    ranges: &[MediaRange],
    sink: &mut Sink<'_>,
) -> Vec<ListenAddress> {
    let base = "node.listen";
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
                format!("\"{text}\" is nothing over which commands are taken"),
                remedy,
            );
            continue;
        };
        let place = HostName::parse(rest).and_then(|host| Some((host.ip()?, host.port?)));
        let Some((ip, port)) = place else {
            sink.report(&at, format!("\"{rest}\" is no address and port"), remedy);
            continue;
        };
        let address = SocketAddr::new(ip, port);
        let one = ListenAddress { transport, address };
        if listen.iter().any(|other| {
            other.address == address && other.transport.is_reliable() == transport.is_reliable()
        }) {
            sink.report(
                &at,
                format!("{one} is taken already"),
                "choose another port",
            );
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
                        "port {port} lies in the media ports {}-{}",
                        range.first, range.last
                    ),
                    "move the listening port or the range `media.ports`",
                );
            }
        }
        listen.push(one);
    }
    listen
}

#[cfg(test)]
mod tests {
    use crate::config::parse;

    const NODE: &str = "[node]\nlisten=['udp:127.0.0.1:2223']\n[[node.interface]]\nname='a'\n";
    const MEDIA: &str = "media={address='192.0.2.1',ports='20000-20099'}\n";

    #[test]
    fn a_node_alone_is_a_configuration() {
        let config = parse(&format!("{NODE}{MEDIA}"), "f").unwrap();
        let node = config.node.unwrap();
        assert!(config.interfaces.is_empty());
        assert!(node.allows("127.9.9.9".parse().unwrap()));
        assert!(node.allows("::1".parse().unwrap()));
        assert!(node.allows("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!node.allows("192.0.2.1".parse().unwrap()));
        assert_eq!(config.media_ranges.len(), 1);
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
                "not known on which address",
                "address",
            ),
            (
                format!("{NODE}{MEDIA}[[node.interface]]\nname='a'\n{MEDIA}"),
                7,
                "is there already",
                "a name of its own",
            ),
            (
                format!(
                    "{}{MEDIA}",
                    NODE.replace("udp:127.0.0.1:2223", "tls:127.0.0.1:2223")
                ),
                2,
                "nothing over which commands are taken",
                "udp:127.0.0.1:2223",
            ),
            (
                format!("{}{MEDIA}", NODE.replace(":2223", "")),
                2,
                "no address and port",
                "udp:127.0.0.1:2223",
            ),
            (
                format!(
                    "{}{MEDIA}",
                    NODE.replace("127.0.0.1:2223", "192.0.2.1:20050")
                ),
                2,
                "lies in the media ports",
                "move",
            ),
            (
                format!("{}{MEDIA}", NODE.replace("']", "','udp:127.0.0.1:2223']")),
                2,
                "taken already",
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
                "nobody could command",
                "leave it out",
            ),
            (
                format!("{}{MEDIA}", with("allow='x'")),
                3,
                "no IP address",
                "192.0.2.0/24",
            ),
            (
                format!("{}{MEDIA}", with("recordings='here'")),
                3,
                "no absolute path",
                "whole path",
            ),
            (
                format!("{}{MEDIA}", with("sounds='here'")),
                3,
                "no absolute path",
                "whole path",
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
