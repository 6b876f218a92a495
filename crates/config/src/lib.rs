//! The configuration: TOML text to a checked [`Config`], or all mistakes with file, line, column and remedy.
//!
//! Three steps. The text is parsed into a document with positions, in which former names of keys are replaced. The
//! document is validated against the JSON Schema of the raw types (unknown keys, wrong types, values out of range).
//! Then the raw types are converted to the checked types below: names become indices, texts become addresses, and
//! contradictions are refused.
//!
//! No key is ignored: it has an effect, or it is refused.
#![forbid(unsafe_code)]

mod address;
mod alarms;
mod check;
mod codecs;
mod conferences;
mod console;
mod contradictions;
mod control;
mod data_path;
mod database;
mod dns;
mod document;
mod drain;
mod gateway;
pub mod headers;
mod http_url;
mod ike;
mod interfaces;
mod limits;
mod listener_clashes;
mod log;
mod media;
mod media_addresses;
mod metrics;
mod mistake;
mod model;
mod names;
mod ng_client;
mod ng_server;
mod oidc;
mod one_or_many;
mod phone_ike;
mod rate_limits;
mod raw;
mod realm;
mod records;
mod registrar;
mod renamed;
mod routes;
mod rules;
mod schema;
mod security;
#[cfg(test)]
mod security_tests;
mod session_timer;
mod sink;
mod sip;
mod store;
#[cfg(test)]
mod tests;
mod threads;
mod tls;
mod traces;
mod trunks;
mod units;
mod users;
mod warnings;
mod workers;

pub use address::{Cidr, HostName, ListenAddress};
pub use alarms::{
    AlarmSeverity, AlarmsSpec, SnmpSpec, SyslogFacility, SyslogSpec, SyslogTransport, WebhookSpec,
};
pub use check::CheckedConfig;
pub use codecs::{TranscodeWhen, Transcoding};
pub use conferences::{ConferenceSpec, MAX_PIN, Pin};
pub use console::{ConsoleRole, ConsoleSpec, ConsoleUser};
pub use control::ControlSpec;
pub use data_path::{DataPath, GatewayMedia};
pub use database::{DatabaseHost, DatabaseSpec, DatabaseUrlError};
pub use dns::Dns;
pub use drain::Drain;
pub use gateway::{GatewayKeySource, GatewaySpec, TunnelSpec};
pub use http_url::{HttpUrl, ReceiverAddress};
pub use ike::{IkeSpec, IkeTunnelSpec};
pub use interfaces::{Authenticate, InterfaceKind, InterfaceSpec, Register};
pub use limits::{AdmissionLimits, MachineCapacity};
pub use log::LogSpec;
pub use media::{MediaSocketMode, MediaSpec, OffloadMode};
pub use media_addresses::{MediaAddress, MediaRange};
pub use metrics::MetricsSpec;
pub use mistake::{Mistake, did_you_mean};
pub use model::Config;
pub use names::{InterfaceId, TrunkId};
pub use ng_client::{MediaNodePolicy, MediaNodeSpec, NodeFailure, NodeLoad};
pub use ng_server::{NgServerInterface, NgServerSpec};
pub use oidc::OidcSpec;
pub use phone_ike::{PhoneIkeSpec, parse_phone_ike};
pub use rate_limits::RateLimits;
pub use realm::{DigestAlgorithm, FailureLimits, Realm};
pub use records::{RecordFormat, RecordsSpec};
pub use registrar::{Registrar, RegistrarStore};
pub use renamed::RenamedKeyWarning;
pub use routes::{Match, MediaMode, NumberRewrite, RouteAction, RouteSpec, RouteTrunk};
pub use rules::{History, IdentityPolicy};
pub use schema::{is_secret, json_schema, markdown};
pub use security::{Ice, Keying, MediaSecurity, Mux, SrtpPolicy};
pub use session_timer::SessionTimer;
pub use sip::Sip;
pub use store::{HepSpec, StorePlace, StoreSpec};
pub use threads::{PrivilegedMode, Threads};
pub use tls::{
    CertificateFiles, ClientAuthentication, FilePath, ListenTls, TlsVersion, TrunkTls, Trust,
    WebSocket,
};
pub use traces::TracesSpec;
pub use trunks::{
    CarrierAccount, IdentityPassing, KeepAlive, Redirect, Refer, TargetSpec, Trunk,
    TrunkCredentials,
};
pub use users::{Number, NumberOwners, UserSecret, UserSpec};

/// Parses and checks a configuration. Mistakes carry `file` as file name.
///
/// # Errors
/// All mistakes, in the order of the file.
pub fn parse(text: &str, file: &str) -> Result<Config, Vec<Mistake>> {
    check::parse(text, file)
}

/// Parses and checks a configuration, and reports mistakes of all steps: syntax, structure, meaning.
pub fn judge(text: &str, file: &str) -> CheckedConfig {
    check::judge(text, file)
}

/// The line and the column, from 1 on, of the interface or trunk that a warning of [`Config::warnings`] begins with.
pub fn place_of_warning(text: &str, warning: &str) -> Option<(usize, usize)> {
    let (object, _) = warning.split_once(": ")?;
    let (table, name) = object.split_once(' ')?;
    match table {
        "interface" | "trunk" => check::place_of_table(text, table, name),
        _ => None,
    }
}
