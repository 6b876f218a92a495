//! `[control]`: operator commands and control of conferences, over HTTP and a Unix socket.

use super::sink::Sink;
use super::tls::FilePath;
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Longest path of a Unix socket (sun_path without its final zero).
const MAX_SOCKET_PATH: usize = 107;

/// The control interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSpec {
    /// Listening address for HTTP.
    pub listen: Option<SocketAddr>,
    /// Path of the Unix socket.
    pub socket: Option<PathBuf>,
    /// The file with the bearer token; `None`: no token, on loopback addresses only.
    pub token: Option<FilePath>,
    /// Accepted values of Host in lower case, in addition to IP addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Maximum number of connections.
    pub connections: u16,
    /// Maximum number of connections from one address, or one IPv6 /64.
    pub connections_per_source: u16,
    /// Limits of wrong tokens.
    pub failures: super::FailureLimits,
}

/// Operator commands and control of conferences, over HTTP and a Unix socket; docs/control.md describes the requests.
/// There is no TLS: use a reverse proxy for other machines.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawControl {
    /// Listening address: `http:ADDRESS:PORT`, for example `http:127.0.0.1:8080`. `listen`, `socket` or both are
    /// required. Takes effect at the next start.
    pub listen: Option<String>,
    /// Path of a Unix socket for `hornwork ctl` and `hornwork top`. Access is granted by its owner and group (mode
    /// 0660); there is no token. Takes effect at the next start.
    pub socket: Option<String>,
    /// File with the token that requests must contain (`Authorization: Bearer`, RFC 6750): 16 to 256 letters, digits
    /// and `- . _ ~ + / =` in one line. Only its owner may have access. Required unless `listen` has a loopback
    /// address. Read again on SIGHUP.
    pub token_file: Option<String>,
    /// Accepted values of Host, in addition to IP addresses and `localhost`. Other requests are refused, as a
    /// protection against DNS rebinding by web pages.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Maximum number of connections. Further ones are answered with 503. Each connection serves one request. Takes
    /// effect at the next start.
    #[serde(default = "connections")]
    #[schemars(range(min = 1, max = 1000))]
    pub connections: u16,
    /// Maximum number of connections from one address (of IPv6, its /64), so that one client does not block others. A
    /// reverse proxy with all its users is one client. Takes effect at the next start.
    #[serde(default = "connections_per_source")]
    #[schemars(range(min = 1, max = 1000))]
    pub connections_per_source: u16,
    /// Wrong tokens from one source (of IPv6, its /64) after which its requests are answered with 429 and Retry-After
    /// until a delay is over. The delay doubles with each further failure, up to an hour. A source that has sent the
    /// right token is never delayed. The count is forgotten after an hour without a failure. 0: no limit.
    #[serde(default = "token_failures")]
    pub token_failures: u32,
    /// First delay in seconds.
    #[serde(default = "token_failure_delay")]
    #[schemars(range(min = 1, max = 3600))]
    pub token_failure_delay_s: u32,
}

fn token_failures() -> u32 {
    10
}

fn token_failure_delay() -> u32 {
    30
}

fn connections() -> u16 {
    32
}

fn connections_per_source() -> u16 {
    8
}

/// The control interface of a file.
pub(super) fn control(raw: Option<&RawControl>, sink: &mut Sink<'_>) -> Option<ControlSpec> {
    let written = raw?;
    if written.listen.is_none() && written.socket.is_none() {
        sink.report(
            "control",
            "`listen` and `socket` are missing",
            "set `socket = \"/run/hornwork/control.sock\"`, or `listen = \"http:127.0.0.1:8080\"`",
        );
        return None;
    }
    let listen = match written.listen.as_deref() {
        None => None,
        Some(text) => Some(listening_address(text, written.token_file.is_some(), sink)?),
    };
    let socket = written.socket.as_deref().map(|text| sink.path(text));
    if let Some(socket) = &socket
        && socket.as_os_str().len() > MAX_SOCKET_PATH
    {
        sink.report(
            "control.socket",
            format!("a path of a Unix socket has at most {MAX_SOCKET_PATH} bytes"),
            "choose a shorter path",
        );
    }
    for (index, host) in written.hosts.iter().enumerate() {
        let good = !host.is_empty()
            && host
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        if !good {
            sink.report(
                &format!("control.hosts[{index}]"),
                format!("\"{host}\" is not a host name"),
                "write a name without port, such as \"sbc.example.com\"",
            );
        }
    }
    Some(ControlSpec {
        listen,
        socket,
        token: written
            .token_file
            .as_ref()
            .map(|path| FilePath::new(path, "control.token_file", sink)),
        hosts: written
            .hosts
            .iter()
            .map(|host| host.to_ascii_lowercase())
            .collect(),
        connections: written.connections,
        connections_per_source: written.connections_per_source,
        failures: super::FailureLimits {
            source: written.token_failures,
            // One token serves all sources: failures of one source do not delay others.
            user: 0,
            delay: super::sink::seconds(written.token_failure_delay_s),
            longest: super::sink::seconds(3_600),
        },
    })
}

/// The listening address of `text`; `None` if it was reported.
fn listening_address(text: &str, token: bool, sink: &mut Sink<'_>) -> Option<SocketAddr> {
    let remedy = "write http:ADDRESS:PORT, for example \"http:127.0.0.1:8080\"";
    if text.starts_with("https:") {
        sink.report(
            "control.listen",
            "control does not support TLS",
            "use http: with a loopback address, and terminate TLS in a reverse proxy",
        );
        return None;
    }
    let listen = text.strip_prefix("http:");
    let listen = listen.and_then(|address| address.parse::<SocketAddr>().ok());
    let Some(listen) = listen.filter(|address| address.port() != 0) else {
        let message = format!("\"{text}\" is not a listening address");
        sink.report("control.listen", message, remedy);
        return None;
    };
    if !token && !listen.ip().to_canonical().is_loopback() {
        sink.report(
            "control.listen",
            format!("unauthenticated access to {listen} could end calls: it is not a loopback address, and there is no token"),
            "set `token_file`, or listen on 127.0.0.1",
        );
    }
    Some(listen)
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    #[test]
    fn control_is_off_on_a_loopback_address_or_has_a_token() {
        let with = |more: &str| {
            let text = format!("[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1:5060\"\n{more}");
            parse(&text, "f")
                .map(|config| config.control)
                .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect::<String>())
        };
        assert_eq!(with("").unwrap(), None);
        let near =
            with("[control]\nlisten=\"http:[::1]:8080\"\nhosts=[\"SBC.example\"]\n").unwrap();
        let near = near.unwrap();
        assert_eq!((near.token, near.connections), (None, 32));
        assert_eq!(near.connections_per_source, 8);
        assert_eq!(near.hosts, ["sbc.example"]);
        let socket = with("[control]\nsocket=\"/run/x.sock\"\n")
            .unwrap()
            .unwrap();
        assert_eq!((socket.listen, socket.token), (None, None));
        let far = with("[control]\nlisten=\"http:0.0.0.0:80\"\ntoken_file=\"/x\"\n").unwrap();
        assert_eq!(far.unwrap().token.unwrap().path().to_str(), Some("/x"));
        for (more, expected) in [
            ("listen=\"http:192.0.2.1:80\"", "not a loopback address"),
            (
                "listen=\"http:[::ffff:192.0.2.1]:80\"",
                "not a loopback address",
            ),
            ("listen=\"https:127.0.0.1:80\"", "does not support TLS"),
            ("listen=\"127.0.0.1:80\"", "not a listening address"),
            ("listen=\"http:localhost:80\"", "not a listening address"),
            ("listen=\"http:127.0.0.1:0\"", "not a listening address"),
            ("", "`listen` and `socket` are missing"),
            (
                "listen=\"http:127.0.0.1:80\"\nhosts=[\"a:80\"]",
                "not a host name",
            ),
            ("listen=\"http:127.0.0.1:80\"\nconnections=0", "connections"),
            (
                "listen=\"http:127.0.0.1:80\"\nconnections_per_source=0",
                "connections_per_source",
            ),
            ("listen=\"http:127.0.0.1:80\"\ntoken=\"x\"", "unknown key"),
        ] {
            let said = with(&format!("[control]\n{more}\n")).unwrap_err();
            assert!(said.contains(expected), "{more}: {said}");
        }
    }
}
