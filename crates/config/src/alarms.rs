//! `[alarms]`: receivers of alarms outside of the border.

use super::http_url::{HttpUrl, ReceiverAddress};
use super::sink::{Sink, seconds};
use super::tls::{CertificateFiles, FilePath, RawCertificate, Trust, trust};
use core::time::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Ports of receivers without one: syslog over UDP (RFC 5426) and, by custom, TCP; syslog over TLS (RFC 5425); traps.
const SYSLOG_PORT: u16 = 514;
const SYSLOG_TLS_PORT: u16 = 6514;
const TRAP_PORT: u16 = 162;
/// The enterprise number for examples (RFC 5612).
const EXAMPLE_ENTERPRISE: u32 = 32_473;

/// Least severity of the alarms that a receiver gets.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum AlarmSeverity {
    /// All alarms.
    #[default]
    Minor,
    /// Major and critical alarms.
    Major,
    /// Critical alarms.
    Critical,
}

impl AlarmSeverity {
    /// The severity of this name.
    pub fn named(name: &str) -> Option<AlarmSeverity> {
        match name {
            "minor" => Some(AlarmSeverity::Minor),
            "major" => Some(AlarmSeverity::Major),
            "critical" => Some(AlarmSeverity::Critical),
            _ => None,
        }
    }
}

/// Facility of syslog messages (RFC 5424 section 6.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are those of the RFC")]
pub enum SyslogFacility {
    User = 1,
    #[default]
    Daemon = 3,
    Auth = 4,
    Syslog = 5,
    Local0 = 16,
    Local1 = 17,
    Local2 = 18,
    Local3 = 19,
    Local4 = 20,
    Local5 = 21,
    Local6 = 22,
    Local7 = 23,
}

/// Transport of syslog messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyslogTransport {
    /// RFC 5426.
    Udp,
    /// RFC 6587, with octet counting.
    Tcp,
    /// RFC 5425.
    Tls,
}

impl SyslogTransport {
    /// The prefix of targets.
    pub const fn name(self) -> &'static str {
        match self {
            SyslogTransport::Udp => "udp",
            SyslogTransport::Tcp => "tcp",
            SyslogTransport::Tls => "tls",
        }
    }
}

/// A webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSpec {
    /// Resource that gets the requests.
    pub url: HttpUrl,
    /// File with the key of the signatures.
    pub secret: Option<FilePath>,
    /// File with the bearer token.
    pub token: Option<FilePath>,
    /// Authorities for https.
    pub ca: Trust,
    /// Longest duration of a request.
    pub timeout: Duration,
    /// Least severity.
    pub severity: AlarmSeverity,
}

/// A syslog server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyslogSpec {
    /// Its transport.
    pub transport: SyslogTransport,
    /// Its address.
    pub address: ReceiverAddress,
    /// Facility.
    pub facility: SyslogFacility,
    /// Authorities for TLS.
    pub ca: Trust,
    /// Our certificate for TLS.
    pub certificate: Option<CertificateFiles>,
    /// Least severity.
    pub severity: AlarmSeverity,
}

/// A receiver of SNMP notifications.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnmpSpec {
    /// Its address.
    pub address: ReceiverAddress,
    /// Community.
    pub community: String,
    /// Whether notifications are acknowledged.
    pub inform: bool,
    /// Enterprise number above our subtree.
    pub enterprise: u32,
    /// Least severity.
    pub severity: AlarmSeverity,
}

/// Receivers of alarms outside of the border.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlarmsSpec {
    /// Name of this border in notices; `None`: the host name.
    pub source: Option<String>,
    /// Notices that may wait for each receiver.
    pub queue: usize,
    /// Age at which a notice is no longer sent.
    pub retry: Duration,
    /// Webhooks.
    pub webhooks: Vec<WebhookSpec>,
    /// Syslog servers.
    pub syslog: Vec<SyslogSpec>,
    /// Receivers of SNMP notifications.
    pub snmp: Vec<SnmpSpec>,
}

/// Receivers of alarms outside of the border; docs/alarms.md describes the notices. Each raised, cleared and
/// acknowledged alarm is sent to each of them. Off if the table is absent. Takes effect at the next start.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAlarms {
    /// Name of this border in notices: letters, digits and `- . _ :`. Default: the host name.
    pub source: Option<String>,
    /// Notices that may wait for each receiver. Further ones are lost and counted.
    #[serde(default = "queue")]
    #[schemars(range(min = 1, max = 100_000))]
    pub queue: u32,
    /// Seconds after which a notice that could not be delivered is given up and counted as lost. Until then it is sent
    /// again with growing pauses, from one second to one minute.
    #[serde(default = "retry")]
    #[schemars(range(min = 1, max = 604_800))]
    pub retry_s: u32,
    /// Webhooks: HTTP POST of a JSON object.
    #[serde(default)]
    pub webhook: Vec<RawWebhook>,
    /// Syslog servers (RFC 5424).
    #[serde(default)]
    pub syslog: Vec<RawSyslog>,
    /// Receivers of SNMP v2c notifications (RFC 3416); packaging/snmp/HORNWORK-MIB.txt describes them.
    #[serde(default)]
    pub snmp: Vec<RawSnmp>,
}

/// A webhook.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawWebhook {
    /// Resource that gets the requests: `https://HOST[:PORT][/PATH]`, or the same with `http`. Redirects are not
    /// followed.
    pub url: String,
    /// File with a key in one line, of 16 to 256 characters; only its owner may have access. Requests then have the
    /// header `X-Hornwork-Signature: sha256=HEX`, the HMAC-SHA256 of the body.
    pub secret_file: Option<String>,
    /// File with a token in one line; only its owner may have access. Requests then have `Authorization: Bearer TOKEN`.
    pub token_file: Option<String>,
    /// Trusted certificate authorities of https: a PEM file, or `system`.
    #[serde(default = "system")]
    pub ca: String,
    /// Longest duration of a request in seconds, with its connection.
    #[serde(default = "timeout")]
    #[schemars(range(min = 1, max = 300))]
    pub timeout_s: u32,
    /// Least severity: `minor` (all), `major` or `critical`.
    #[serde(default)]
    pub severity: AlarmSeverity,
}

/// A syslog server.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSyslog {
    /// Its address: `udp:HOST[:PORT]`, `tcp:HOST[:PORT]` (octet counting, RFC 6587) or `tls:HOST[:PORT]` (RFC 5425).
    /// Default ports: 514, 514 and 6514.
    pub target: String,
    /// Facility.
    #[serde(default)]
    pub facility: SyslogFacility,
    /// Trusted certificate authorities of TLS: a PEM file, or `system`. The certificate must contain the host of
    /// `target`.
    pub ca: Option<String>,
    /// Our certificate for TLS: `{ chain = "FILE", key = "FILE" }`.
    pub certificate: Option<RawCertificate>,
    /// Least severity: `minor` (all), `major` or `critical`.
    #[serde(default)]
    pub severity: AlarmSeverity,
}

/// A receiver of SNMP notifications.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSnmp {
    /// Its address: `udp:HOST[:PORT]`. Default port: 162.
    pub target: String,
    /// Community, which SNMP v2c sends in clear text.
    #[serde(default = "community")]
    pub community: String,
    /// Whether notifications are sent as InformRequest, which the receiver acknowledges and which is sent again
    /// otherwise. Traps over UDP are lost without notice if the receiver is down.
    #[serde(default)]
    pub inform: bool,
    /// Enterprise number above the subtree of the notifications: `1.3.6.1.4.1.ENTERPRISE.5060`. The default is the
    /// number for examples (RFC 5612), as none is registered for Hornwork. Another one needs the same change in the MIB
    /// file.
    #[serde(default = "enterprise")]
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub enterprise: u32,
    /// Least severity: `minor` (all), `major` or `critical`.
    #[serde(default)]
    pub severity: AlarmSeverity,
}

fn queue() -> u32 {
    1_000
}

fn retry() -> u32 {
    3_600
}

fn timeout() -> u32 {
    10
}

fn system() -> String {
    "system".to_owned()
}

fn community() -> String {
    "public".to_owned()
}

fn enterprise() -> u32 {
    EXAMPLE_ENTERPRISE
}

/// The receivers of a file.
pub(super) fn alarms(raw: Option<&RawAlarms>, sink: &mut Sink<'_>) -> Option<AlarmsSpec> {
    let written = raw?;
    if written.webhook.is_empty() && written.syslog.is_empty() && written.snmp.is_empty() {
        sink.report(
            "alarms",
            "there is no receiver",
            "add an [[alarms.webhook]], [[alarms.syslog]] or [[alarms.snmp]]",
        );
    }
    let in_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    if let Some(name) = &written.source
        && !((1..=255).contains(&name.len()) && name.bytes().all(in_name))
    {
        sink.report(
            "alarms.source",
            format!("\"{name}\" is not a name of 1 to 255 letters, digits and - . _ :"),
            "write a name such as \"border-1\"",
        );
    }
    let webhooks = written.webhook.iter().enumerate();
    let webhooks = webhooks
        .filter_map(|(at, one)| webhook(one, at, sink))
        .collect();
    let syslog = written.syslog.iter().enumerate();
    let syslog = syslog
        .filter_map(|(at, one)| syslog_server(one, at, sink))
        .collect();
    let snmp = written.snmp.iter().enumerate();
    let snmp = snmp
        .filter_map(|(at, one)| snmp_receiver(one, at, sink))
        .collect();
    Some(AlarmsSpec {
        source: written.source.clone(),
        queue: written.queue as usize,
        retry: seconds(written.retry_s),
        webhooks,
        syslog,
        snmp,
    })
}

fn webhook(written: &RawWebhook, index: usize, sink: &mut Sink<'_>) -> Option<WebhookSpec> {
    let path = |key: &str| format!("alarms.webhook[{index}].{key}");
    let url = match HttpUrl::parse(&written.url) {
        Ok(url) => url,
        Err(problem) => {
            sink.report(
                &path("url"),
                format!("\"{}\" is not the URL of a webhook: {problem}", written.url),
                "write https://HOST[:PORT]/PATH",
            );
            return None;
        }
    };
    if !url.is_secure && written.token_file.is_some() {
        sink.report(
            &path("token_file"),
            "the token would be sent without TLS",
            "use an https URL, or sign the requests with `secret_file`",
        );
    }
    let file = |name: &Option<String>, key: &str, sink: &Sink<'_>| {
        name.as_ref()
            .map(|name| FilePath::new(name, &path(key), sink))
    };
    Some(WebhookSpec {
        secret: file(&written.secret_file, "secret_file", sink),
        token: file(&written.token_file, "token_file", sink),
        ca: trust(&written.ca, &path("ca"), sink),
        url,
        timeout: seconds(written.timeout_s),
        severity: written.severity,
    })
}

fn syslog_server(written: &RawSyslog, index: usize, sink: &mut Sink<'_>) -> Option<SyslogSpec> {
    let path = |key: &str| format!("alarms.syslog[{index}].{key}");
    let (kind, rest) = written.target.split_once(':').unwrap_or_default();
    let transport = match kind {
        "udp" => Some((SyslogTransport::Udp, SYSLOG_PORT)),
        "tcp" => Some((SyslogTransport::Tcp, SYSLOG_PORT)),
        "tls" => Some((SyslogTransport::Tls, SYSLOG_TLS_PORT)),
        _ => None,
    };
    let found = transport
        .and_then(|(transport, port)| Some((transport, ReceiverAddress::parse(rest, port)?)));
    let Some((transport, address)) = found else {
        sink.report(
            &path("target"),
            format!(
                "\"{}\" is not the address of a syslog server",
                written.target
            ),
            "write udp:HOST[:PORT], tcp:HOST[:PORT] or tls:HOST[:PORT]",
        );
        return None;
    };
    for (key, is_set) in [
        ("ca", written.ca.is_some()),
        ("certificate", written.certificate.is_some()),
    ] {
        if is_set && transport != SyslogTransport::Tls {
            sink.report(
                &path(key),
                format!("`{key}` has no effect without TLS"),
                format!("remove `{key}`, or use tls:HOST[:PORT]"),
            );
        }
    }
    Some(SyslogSpec {
        transport,
        address,
        facility: written.facility,
        ca: trust(written.ca.as_deref().unwrap_or("system"), &path("ca"), sink),
        certificate: written.certificate.as_ref().map(|files| CertificateFiles {
            chain: FilePath::new(&files.chain, &path("certificate.chain"), sink),
            key: FilePath::new(&files.key, &path("certificate.key"), sink),
        }),
        severity: written.severity,
    })
}

fn snmp_receiver(written: &RawSnmp, index: usize, sink: &mut Sink<'_>) -> Option<SnmpSpec> {
    let path = |key: &str| format!("alarms.snmp[{index}].{key}");
    let rest = written.target.strip_prefix("udp:");
    let Some(address) = rest.and_then(|rest| ReceiverAddress::parse(rest, TRAP_PORT)) else {
        sink.report(
            &path("target"),
            format!(
                "\"{}\" is not the address of an SNMP receiver",
                written.target
            ),
            "write udp:HOST[:PORT]",
        );
        return None;
    };
    if written.community.is_empty() || written.community.len() > 255 {
        sink.report(
            &path("community"),
            "a community has 1 to 255 bytes",
            "write the community that the receiver accepts",
        );
    }
    Some(SnmpSpec {
        address,
        community: written.community.clone(),
        inform: written.inform,
        enterprise: written.enterprise,
        severity: written.severity,
    })
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn with(more: &str) -> Result<Option<AlarmsSpec>, String> {
        let text = format!("[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1:5060\"\n{more}");
        parse(&text, "f")
            .map(|config| config.alarms)
            .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn receivers_have_defaults() {
        assert_eq!(with("").unwrap(), None);
        let spec = with(
            "[[alarms.webhook]]\nurl=\"https://a.example?x=1\"\n[[alarms.syslog]]\ntarget=\"tls:[2001:db8::1]\"\nfacility=\"local3\"\n[[alarms.snmp]]\ntarget=\"udp:192.0.2.9\"\nseverity=\"major\"\n",
        );
        let spec = spec.unwrap().unwrap();
        assert_eq!(
            (spec.queue, spec.retry),
            (1_000, Duration::from_secs(3_600))
        );
        let url = &spec.webhooks[0].url;
        assert_eq!(url.origin(), "https://a.example:443");
        assert_eq!(
            (url.authority.as_str(), url.path.as_str()),
            ("a.example", "/?x=1")
        );
        let syslog = &spec.syslog[0];
        assert_eq!(syslog.address.to_string(), "[2001:db8::1]:6514");
        assert_eq!(syslog.facility as u8, 19);
        let snmp = &spec.snmp[0];
        assert_eq!((snmp.address.port, snmp.enterprise), (162, 32_473));
        assert!(snmp.severity > AlarmSeverity::Minor && snmp.community == "public");
    }

    #[test]
    fn mistakes_about_receivers_name_the_key() {
        for (more, expected) in [
            ("[alarms]\n", "there is no receiver"),
            ("[[alarms.webhook]]\nurl=\"ftp://x\"", "does not begin with"),
            ("[[alarms.webhook]]\nurl=\"https://u@h/\"", "neither a name"),
            ("[[alarms.webhook]]\nurl=\"http://h:0/\"", "neither a name"),
            ("[[alarms.webhook]]\nurl=\"http://h/a b\"", "characters"),
            (
                "[[alarms.webhook]]\nurl=\"http://h/\"\ntoken_file=\"/t\"",
                "without TLS",
            ),
            ("[[alarms.syslog]]\ntarget=\"192.0.2.1\"", "syslog server"),
            ("[[alarms.syslog]]\ntarget=\"udp:h:0\"", "syslog server"),
            (
                "[[alarms.syslog]]\ntarget=\"udp:h\"\nca=\"/x\"",
                "no effect without TLS",
            ),
            ("[[alarms.snmp]]\ntarget=\"tcp:h\"", "SNMP receiver"),
            (
                "[[alarms.snmp]]\ntarget=\"udp:h\"\ncommunity=\"\"",
                "1 to 255 bytes",
            ),
            (
                "[[alarms.snmp]]\ntarget=\"udp:h\"\nseverity=\"x\"",
                "severity",
            ),
            (
                "[alarms]\nsource=\"a b\"\n[[alarms.snmp]]\ntarget=\"udp:h\"",
                "is not a name",
            ),
        ] {
            let said = with(&format!("{more}\n")).unwrap_err();
            assert!(said.contains(expected), "{more}: {said}");
        }
    }
}
