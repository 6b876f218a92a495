//! `[control]`: where conferences are commanded over HTTP, and by whom.

use super::check::Sink;
use super::raw::Raw;
use super::tls::FilePath;
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::SocketAddr;

/// HTTP control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSpec {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The file with the bearer token; `None`: whoever reaches a loopback address may command.
    pub token: Option<FilePath>,
    /// Names, in lower case, by which requests may call us beside IP addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Connections at a time.
    pub connections: u16,
    /// Of these, from one address, or one IPv6 network of 64 bits.
    pub connections_per_source: u16,
    /// How wrong tokens are limited.
    pub failures: crate::registrar::FailureLimits,
}

/// Control of conferences over HTTP: docs/control.md has the requests. Without TLS: towards other machines put a proxy before it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawControl {
    /// Where requests are taken: `http:ADDRESS:PORT`, for example `http:127.0.0.1:8080`. Counts from the next start.
    pub listen: String,
    /// File with the token that requests have to bring (`Authorization: Bearer`, RFC 6750): 16 to 256 letters, digits and
    /// `- . _ ~ + / =` in one line. Nobody but its owner may read or write it. Needed unless `listen` has a loopback address; read
    /// again by SIGHUP.
    pub token_file: Option<String>,
    /// Names by which requests may call this server (`Host`), beside IP addresses and `localhost`. Others are refused, so that no web page
    /// can command it under a name that its author made lead here.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Connections at a time; further ones are answered 503. Each is for one request. Counts from the next start.
    #[serde(default = "connections")]
    #[schemars(range(min = 1, max = 1000))]
    pub connections: u16,
    /// Of these, connections from one address (of IPv6, its /64), so that one client leaves places for others. A proxy is one client, with
    /// all who come through it. Counts from the next start.
    #[serde(default = "connections_per_source")]
    #[schemars(range(min = 1, max = 1000))]
    pub connections_per_source: u16,
    /// Wrong tokens of one source (of IPv6, its /64) in a row that are judged; then requests with a token from there get 429 with
    /// Retry-After until a delay is over, which doubles with each further one up to an hour. A source that has brought the right
    /// token is never delayed. 0: all are judged.
    #[serde(default = "token_failures")]
    pub token_failures: u32,
    /// The first delay, seconds.
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

/// The control that a file describes.
pub(super) fn control(raw: &Raw, sink: &mut Sink<'_>) -> Option<ControlSpec> {
    let written = raw.control.as_ref()?;
    let remedy = "write http:ADDRESS:PORT, for example \"http:127.0.0.1:8080\"";
    if written.listen.starts_with("https:") {
        sink.report(
            "control.listen",
            "control has no TLS of its own yet",
            "write http: with a loopback address, and let a proxy end TLS before it",
        );
        return None;
    }
    let listen = written.listen.strip_prefix("http:");
    let listen = listen.and_then(|address| address.parse::<SocketAddr>().ok());
    let Some(listen) = listen.filter(|address| address.port() != 0) else {
        sink.report(
            "control.listen",
            format!(
                "\"{}\" does not say where requests are taken",
                written.listen
            ),
            remedy,
        );
        return None;
    };
    if written.token_file.is_none() && !listen.ip().to_canonical().is_loopback() {
        sink.report(
            "control.listen",
            format!("whoever reaches {listen} could end calls: it is no loopback address, and no token is asked for"),
            "name a file with a token by `token_file`, or listen on 127.0.0.1",
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
                format!("\"{host}\" is no host name"),
                "write a name without port, such as \"sbc.example.com\"",
            );
        }
    }
    Some(ControlSpec {
        listen,
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
        failures: crate::registrar::FailureLimits {
            source: written.token_failures,
            // There is one token for all: failures of one source delay no other.
            user: 0,
            delay: super::check::seconds(written.token_failure_delay_s),
            longest: super::check::seconds(3_600),
        },
    })
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
        let far = with("[control]\nlisten=\"http:0.0.0.0:80\"\ntoken_file=\"/x\"\n").unwrap();
        assert_eq!(far.unwrap().token.unwrap().path().to_str(), Some("/x"));
        for (more, expected) in [
            ("listen=\"http:192.0.2.1:80\"", "no loopback address"),
            (
                "listen=\"http:[::ffff:192.0.2.1]:80\"",
                "no loopback address",
            ),
            ("listen=\"https:127.0.0.1:80\"", "no TLS"),
            ("listen=\"127.0.0.1:80\"", "where requests are taken"),
            ("listen=\"http:localhost:80\"", "where requests are taken"),
            ("listen=\"http:127.0.0.1:0\"", "where requests are taken"),
            ("", "`listen` is missing"),
            (
                "listen=\"http:127.0.0.1:80\"\nhosts=[\"a:80\"]",
                "no host name",
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
