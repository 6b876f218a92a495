//! `[console]`: the web console and its API.

use super::oidc::{OidcSpec, RawOidc, oidc};
use super::realm::FailureLimits;
use super::sink::Sink;
use super::tls::{CertificateFiles, FilePath, RawCertificate, Trust, trust};
use core::time::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Longest delay after failed logins, seconds.
const LONGEST_DELAY_S: u32 = 3_600;

/// Rights of a user of the console; each role includes the ones before it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum ConsoleRole {
    /// Reads calls, figures and alarms; never bodies of messages, keys and credentials.
    Viewer,
    /// Reads messages in full, exports them, ends calls, changes trunks, limits and bans.
    Operator,
    /// Reloads the configuration, drains, changes the log level, reads the audit log.
    Admin,
}

impl ConsoleRole {
    /// The word in the configuration and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            ConsoleRole::Viewer => "viewer",
            ConsoleRole::Operator => "operator",
            ConsoleRole::Admin => "admin",
        }
    }
}

/// A user of the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleUser {
    /// Name.
    pub name: String,
    /// Role.
    pub role: ConsoleRole,
    /// Argon2id hash of the password as a PHC string; `None`: no login with a password.
    pub password_hash: Option<String>,
    /// SHA-256 of the bearer token; `None`: no token.
    pub token_hash: Option<[u8; 32]>,
    /// Name in a client certificate that is this user, with its kind; `None`: no certificate.
    pub certificate: Option<String>,
}

/// The web console.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsoleSpec {
    /// Listening address.
    pub listen: SocketAddr,
    /// Certificate for TLS; `None`: no TLS.
    pub certificate: Option<CertificateFiles>,
    /// Accepted values of Host in lower case, in addition to IP addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Login by OpenID Connect.
    pub oidc: Option<OidcSpec>,
    /// Authorities of client certificates; `None`: none are requested.
    pub client_ca: Option<Trust>,
    /// Whether connections without a client certificate are refused.
    pub requires_certificate: bool,
    /// Users; empty without login by OpenID Connect: each user and program of this machine is an operator.
    pub users: Vec<ConsoleUser>,
    /// Whether viewers see numbers only in part.
    pub redact_numbers: bool,
    /// Time without request after which a session ends.
    pub session_idle: Duration,
    /// Longest time of a session.
    pub session_longest: Duration,
    /// Limits of failed logins and wrong tokens.
    pub failures: FailureLimits,
    /// File of the audit log.
    pub audit: Option<PathBuf>,
    /// Folder with reports of the test lab.
    pub reports: Option<PathBuf>,
    /// Maximum number of connections.
    pub connections: u16,
    /// Maximum number of connections from one address, or one IPv6 /64.
    pub connections_per_source: u16,
}

/// The web console and its HTTP API; docs/console.md describes both. Off if the table is absent.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConsole {
    /// Listening address: `ADDRESS:PORT`, for example `127.0.0.1:8080`. Other than loopback addresses require
    /// `certificate` and at least one `[[console.user]]`. Takes effect at the next start.
    pub listen: String,
    /// Certificate for TLS: `{ chain = "FILE", key = "FILE" }`. Without it the console is served without TLS, on
    /// loopback addresses only. The files are read again at each reload.
    pub certificate: Option<RawCertificate>,
    /// Certificate authorities of client certificates: a PEM file, or `system`. Then clients are asked for a
    /// certificate, and one that names a user (`certificate` of the user) is its login. Requires `certificate`. The
    /// file is read again at each reload.
    pub client_ca: Option<String>,
    /// Whether connections without a valid client certificate are refused, also for logins with password or token.
    #[serde(default)]
    pub require_client_certificate: bool,
    /// Accepted values of Host, in addition to IP addresses and `localhost`. Other requests are refused, as a
    /// protection against DNS rebinding by web pages.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Users. Without users and without `oidc` there is no login: each program and user of this machine is an operator.
    #[serde(default)]
    pub user: Vec<RawConsoleUser>,
    /// Login by OpenID Connect.
    pub oidc: Option<RawOidc>,
    /// Whether viewers see of numbers and user names only the last two characters.
    #[serde(default)]
    pub redact_numbers: bool,
    /// Minutes without use after which a session ends: without input at its pages, which refresh themselves without
    /// counting as use. For a display on the wall: up to a week, or a user with a certificate, which has no session.
    #[serde(default = "session_idle")]
    #[schemars(range(min = 1, max = 10_080))]
    pub session_idle_min: u32,
    /// Hours after which a session ends in any case.
    #[serde(default = "session_longest")]
    #[schemars(range(min = 1, max = 720))]
    pub session_longest_h: u32,
    /// Failed logins or wrong tokens from one source (of IPv6, its /64), or for one user name, after which further ones
    /// are answered with 429 and Retry-After until a delay is over. The delay doubles with each further failure, up to
    /// an hour. Successes in between do not reset the count; it is forgotten after an hour without a failure. 0: no
    /// limit.
    #[serde(default = "login_failures")]
    pub login_failures: u32,
    /// First delay in seconds.
    #[serde(default = "login_failure_delay")]
    #[schemars(range(min = 1, max = 3600))]
    pub login_failure_delay_s: u32,
    /// File to which logins, commands, exports and refusals are appended, one JSON object a line. At 64 MiB it is
    /// renamed to FILE.1; nine earlier files are kept. Takes effect at the next start.
    pub audit: Option<String>,
    /// Folder with reports of the test lab, each a folder with `report.html`. Takes effect at the next start.
    pub reports: Option<String>,
    /// Maximum number of connections. Further ones are answered with 503. Takes effect at the next start.
    #[serde(default = "connections")]
    #[schemars(range(min = 1, max = 1000))]
    pub connections: u16,
    /// Maximum number of connections from one address (of IPv6, its /64). A page of the console uses up to seven. Takes
    /// effect at the next start.
    #[serde(default = "connections_per_source")]
    #[schemars(range(min = 1, max = 1000))]
    pub connections_per_source: u16,
}

/// A user of the console: a person with a password, a program with a token, or either with a client certificate.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConsoleUser {
    /// Name for the login and the audit log.
    #[schemars(length(min = 1))]
    pub name: String,
    /// `viewer` reads calls, figures and alarms, but never bodies of messages, keys and credentials. `operator` also
    /// reads and exports messages in full, ends calls, removes registrations, changes trunks, limits and bans, and
    /// acknowledges alarms. `admin` also reloads, drains, changes the log level and reads the audit log.
    pub role: ConsoleRole,
    /// Hash of the password, as `hornwork console hash-password` prints it (Argon2id, PHC string).
    pub password_hash: Option<String>,
    /// Hash of the token, as `hornwork console token` prints it (SHA-256, hexadecimal). Requests contain the token in
    /// `Authorization: Bearer` (RFC 6750).
    pub token_hash: Option<String>,
    /// Name in the client certificate of this user: `cn:NAME` (common name of the subject), or `email:ADDRESS`,
    /// `dns:NAME`, `uri:URI` of its subjectAltName. Requires `client_ca`.
    pub certificate: Option<String>,
}

fn session_idle() -> u32 {
    30
}

fn session_longest() -> u32 {
    12
}

fn login_failures() -> u32 {
    5
}

fn login_failure_delay() -> u32 {
    30
}

fn connections() -> u16 {
    64
}

fn connections_per_source() -> u16 {
    24
}

/// The console of a file.
pub(super) fn console(raw: Option<&RawConsole>, sink: &mut Sink<'_>) -> Option<ConsoleSpec> {
    let written = raw?;
    let text = written.listen.as_str();
    let address = text
        .strip_prefix("https:")
        .or(text.strip_prefix("http:"))
        .unwrap_or(text);
    let listen = address.parse::<SocketAddr>().ok();
    let Some(listen) = listen.filter(|address| address.port() != 0) else {
        sink.report(
            "console.listen",
            format!("\"{text}\" is not a listening address"),
            "write ADDRESS:PORT, for example \"127.0.0.1:8080\"",
        );
        return None;
    };
    if !listen.ip().to_canonical().is_loopback() {
        if written.certificate.is_none() {
            sink.report(
                "console.listen",
                format!(
                    "passwords would be sent to {listen} without TLS: it is not a loopback address"
                ),
                "set `certificate = { chain = \"FILE\", key = \"FILE\" }`, or listen on 127.0.0.1",
            );
        }
        if written.user.is_empty() && written.oidc.is_none() {
            sink.report(
                "console.listen",
                format!("access to {listen} without login could end calls: it is not a loopback address, and there are no users"),
                "add a [[console.user]], or listen on 127.0.0.1",
            );
        }
    }
    for (index, host) in written.hosts.iter().enumerate() {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_name) {
            sink.report(
                &format!("console.hosts[{index}]"),
                format!("\"{host}\" is not a host name"),
                "write a name without port, such as \"sbc.example.com\"",
            );
        }
    }
    let users = written.user.iter().enumerate();
    let users = users.map(|(index, user)| {
        certificate_name(index, written, sink);
        let earlier = written.user.iter().take(index);
        if earlier.clone().any(|other| other.name == user.name) {
            let message = format!("there are two users \"{}\"", user.name);
            sink.report(
                &format!("console.user[{index}].name"),
                message,
                "give each user a name of its own",
            );
        }
        console_user(index, user, sink)
    });
    let users = users.collect();
    let certificate = written.certificate.as_ref().map(|files| CertificateFiles {
        chain: FilePath::new(&files.chain, "console.certificate.chain", sink),
        key: FilePath::new(&files.key, "console.certificate.key", sink),
    });
    let client_ca = written.client_ca.as_ref();
    if client_ca.is_some() && certificate.is_none() {
        sink.report(
            "console.client_ca",
            "client certificates need TLS",
            "set `certificate = { chain = \"FILE\", key = \"FILE\" }`",
        );
    }
    if client_ca.is_none() && written.require_client_certificate {
        sink.report(
            "console.require_client_certificate",
            "no client certificate could be verified without authorities",
            "set `client_ca = \"FILE\"`",
        );
    }
    Some(ConsoleSpec {
        oidc: match &written.oidc {
            None => None,
            // A mistake must not become a console without login.
            Some(written) => Some(oidc(written, sink)?),
        },
        client_ca: client_ca.map(|name| trust(name, "console.client_ca", sink)),
        requires_certificate: written.require_client_certificate,
        listen,
        certificate,
        hosts: written
            .hosts
            .iter()
            .map(|host| host.to_ascii_lowercase())
            .collect(),
        users,
        redact_numbers: written.redact_numbers,
        session_idle: Duration::from_secs(u64::from(written.session_idle_min) * 60),
        session_longest: Duration::from_secs(u64::from(written.session_longest_h) * 3_600),
        failures: FailureLimits {
            source: written.login_failures,
            user: written.login_failures,
            delay: super::sink::seconds(written.login_failure_delay_s),
            longest: super::sink::seconds(LONGEST_DELAY_S),
        },
        audit: written.audit.as_deref().map(|text| sink.path(text)),
        reports: written.reports.as_deref().map(|text| sink.path(text)),
        connections: written.connections,
        connections_per_source: written.connections_per_source,
    })
}

fn console_user(index: usize, user: &RawConsoleUser, sink: &mut Sink<'_>) -> ConsoleUser {
    let place = |key: &str| format!("console.user[{index}].{key}");
    if user.name.is_empty() || user.name.len() > 64 || user.name.chars().any(char::is_control) {
        sink.report(
            &place("name"),
            "a name has 1 to 64 characters, without control characters",
            "correct `name`",
        );
    }
    if user.password_hash.is_none() && user.token_hash.is_none() && user.certificate.is_none() {
        sink.report(
            &format!("console.user[{index}]"),
            format!(
                "the user \"{}\" has neither password nor token nor certificate",
                user.name
            ),
            "set `password_hash` (hornwork console hash-password), `token_hash` (hornwork console token) or `certificate`",
        );
    }
    if let Some(hash) = &user.password_hash
        && !is_argon2id(hash)
    {
        sink.report(
            &place("password_hash"),
            "it is not an Argon2id hash with at most 1 GiB of memory and 32 passes",
            "write the line that `hornwork console hash-password` prints",
        );
    }
    let token_hash = user.token_hash.as_ref().and_then(|text| {
        let hash = sha256_of_hex(text);
        if hash.is_none() {
            sink.report(
                &place("token_hash"),
                "it does not consist of 64 hexadecimal digits",
                "write the hash that `hornwork console token` prints",
            );
        }
        hash
    });
    ConsoleUser {
        name: user.name.clone(),
        role: user.role,
        password_hash: user.password_hash.clone(),
        token_hash,
        certificate: user.certificate.clone(),
    }
}

/// Checks the name in the certificate of a user.
fn certificate_name(index: usize, written: &RawConsole, sink: &mut Sink<'_>) {
    let name = |user: &RawConsoleUser| user.certificate.clone();
    let Some(own) = written.user.get(index).and_then(name) else {
        return;
    };
    let path = format!("console.user[{index}].certificate");
    let (kind, value) = own.split_once(':').unwrap_or_default();
    if !["cn", "email", "dns", "uri"].contains(&kind) || value.is_empty() {
        sink.report(
            &path,
            format!("\"{own}\" is not a name in a certificate"),
            "write cn:NAME, email:ADDRESS, dns:NAME or uri:URI",
        );
    }
    let mut earlier = written.user.iter().take(index);
    if earlier.any(|other| name(other).as_ref() == Some(&own)) {
        sink.report(
            &path,
            format!("two users have the certificate of \"{own}\""),
            "give each user a certificate of its own",
        );
    }
    if written.client_ca.is_none() {
        sink.report(
            &path,
            "no client certificate could be verified without authorities",
            "set `client_ca` in [console]",
        );
    }
}

/// Whether a text is a PHC string of Argon2id whose verification needs bounded memory and time.
fn is_argon2id(text: &str) -> bool {
    let parts: Vec<&str> = text.split('$').collect();
    let ["", "argon2id", "v=19", parameters, salt, hash] = parts.as_slice() else {
        return false;
    };
    let is_base64 = |text: &str, length: core::ops::RangeInclusive<usize>| {
        length.contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(&byte))
    };
    let mut bounds = [
        ("m", 8, 1 << 20, false),
        ("t", 1, 32, false),
        ("p", 1, 16, false),
    ];
    let fit = parameters.split(',').all(|parameter| {
        let (key, value) = parameter.split_once('=').unwrap_or_default();
        let bound = bounds.iter_mut().find(|bound| bound.0 == key);
        bound.is_some_and(|(_, low, high, seen)| {
            let first = !core::mem::replace(seen, true);
            first
                && value
                    .parse::<u32>()
                    .is_ok_and(|value| (*low..=*high).contains(&value))
        })
    });
    fit && bounds.iter().all(|bound| bound.3)
        && is_base64(salt, 11..=64)
        && is_base64(hash, 22..=86)
}

fn sha256_of_hex(text: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    const HASH: &str = "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0$dGVzdHRlc3R0ZXN0dGVzdHRlc3R0ZXN0dGVzdHRlc3Q";

    fn with(more: &str) -> Result<Option<ConsoleSpec>, String> {
        let text = format!("[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1:5060\"\n{more}");
        parse(&text, "f")
            .map(|config| config.console)
            .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn console_is_on_by_one_key() {
        assert_eq!(with("").unwrap(), None);
        let spec = with("[console]\nlisten=\"127.0.0.1:8080\"\n")
            .unwrap()
            .unwrap();
        assert_eq!(spec.listen.port(), 8080);
        assert!(spec.users.is_empty() && spec.certificate.is_none() && !spec.redact_numbers);
        let token = "ab".repeat(32);
        let spec = with(&format!(
            "[console]\nlisten=\"0.0.0.0:443\"\ncertificate={{chain=\"/c\",key=\"/k\"}}\n[[console.user]]\nname=\"ann\"\nrole=\"admin\"\npassword_hash=\"{HASH}\"\n[[console.user]]\nname=\"bot\"\nrole=\"viewer\"\ntoken_hash=\"{token}\"\n"
        ));
        let spec = spec.unwrap().unwrap();
        assert_eq!(spec.users[0].role, ConsoleRole::Admin);
        assert_eq!(spec.users[1].token_hash, Some([0xab; 32]));
        assert!(ConsoleRole::Viewer < ConsoleRole::Operator);
    }

    #[test]
    fn mistakes_about_the_console_name_the_key() {
        let user = |more: &str| {
            format!("listen=\"127.0.0.1:1\"\n[[console.user]]\nname=\"a\"\nrole=\"viewer\"\n{more}")
        };
        for (more, expected) in [
            ("", "`listen` is missing"),
            ("listen=\"x\"", "not a listening address"),
            ("listen=\"127.0.0.1:0\"", "not a listening address"),
            ("listen=\"192.0.2.1:80\"", "without TLS"),
            ("listen=\"192.0.2.1:80\"", "there are no users"),
            ("listen=\"127.0.0.1:1\"\nhosts=[\"a b\"]", "not a host name"),
            (user("").as_str(), "neither password nor token"),
            (
                user("password_hash=\"secret\"").as_str(),
                "not an Argon2id hash",
            ),
            (
                user("password_hash=\"$argon2id$v=19$m=4000000,t=2,p=1$c2FsdHNhbHRzYWx0$dGVzdHRlc3R0ZXN0dGVzdHRlc3R0ZXN0\"").as_str(),
                "not an Argon2id hash",
            ),
            (user("token_hash=\"12\"").as_str(), "64 hexadecimal digits"),
            (user("certificate=\"cn:ann\"").as_str(), "without authorities"),
            (user("certificate=\"ann\"").as_str(), "not a name in a certificate"),
            (
                "listen=\"127.0.0.1:1\"\nclient_ca=\"/ca.pem\"",
                "client certificates need TLS",
            ),
            (
                "listen=\"127.0.0.1:1\"\nrequire_client_certificate=true",
                "without authorities",
            ),
            (
                "listen=\"127.0.0.1:1\"\n[[console.user]]\nname=\"a\"\nrole=\"root\"",
                "no value of `role`",
            ),
        ] {
            let said = with(&format!("[console]\n{more}\n")).unwrap_err();
            assert!(said.contains(expected), "{more}: {said}");
        }
    }
}
