//! Configurations between which the fuzzed border is reloaded.

use config::{Config, parse};
use std::sync::OnceLock;

/// Calls at a time.
pub(super) const CALLS: usize = 12;
/// Transactions at a time.
pub(super) const TRANSACTIONS: usize = 240;
/// Stream connections at a time.
pub(super) const CONNECTIONS: usize = 6;
/// Registered contacts.
pub(super) const REGISTRATIONS: usize = 12;
/// DNS queries at a time.
pub(super) const QUERIES: usize = 8;
/// Prefix of every password in the configurations.
pub(super) const SECRET: &[u8] = b"hush-";

/// Common part. Few ports, so that they run out.
const COMMON: &str = "
[[route]]
to = { prefix = '9' }
trunk = ['carrier', 'pbx']
[[route]]
to = { prefix = '8' }
trunk = 'pbx'
media = 'bypass'
[[route]]
to = { prefix = '7' }
reject = 403
[[route]]
to = { prefix = '6' }
trunk = 'vault'
[[route]]
registered = true
to = { prefix = '100' }
[[route]]
trunk = 'pbx'
[[user]]
name = '1000'
password = 'hush-1000'
[[user]]
name = '1001'
password = 'hush-1001'
[realm]
algorithms = ['SHA-256', 'MD5']
[registrar]
min_expires_s = 10
max_contacts = 4
[media]
timeout_s = 40
hold_timeout_s = 90
[sip]
ring_timeout_s = 60
[session_timer]
expires_s = 100
[limits]
calls = 12
transactions = 240
registrations = 12
connections = 6
connections_per_source = 4
message_bytes = 4096
[dns]
servers = ['10.8.0.53:53', '10.8.0.54:53']
";

/// All features.
const FULL: &str = "
[[interface]]
name = 'out'
kind = 'access'
listen = ['udp:192.0.2.1:5060', 'tcp:192.0.2.1:5060', 'udp:[2001:db8::1]:5060']
register = 'local'
media = [{ address = '192.0.2.1', ports = '20000-20011' }, { address = '2001:db8::1', ports = '20000-20007' }]
[[interface]]
name = 'strict'
kind = 'access'
listen = 'udp:192.0.2.2:5060'
authenticate = 'digest'
register = 'local'
media = { address = '192.0.2.1', ports = '20000-20011' }
[[interface]]
name = 'passing'
kind = 'access'
listen = 'udp:192.0.2.3:5060'
allow = '10.1.0.0/16'
register = 'pass:pbx'
rate_limits = { registrations_per_s = 5, source_calls_per_s = 3, status = 486 }
media = { address = '192.0.2.1', ports = '20000-20011' }
[[interface]]
name = 'in'
kind = 'core'
listen = ['udp:198.51.100.1:5060', 'tcp:198.51.100.1:5060']
media = { address = '198.51.100.1', ports = '30000-30019' }
transcode = ['PCMA', 'G722']
[[trunk]]
name = 'pbx'
interface = 'in'
target = ['udp:10.2.0.1:5060', { address = 'tcp:10.2.0.2:5060', priority = 1 }]
ping_interval_s = 30
refer = 'act'
redirect = 'follow'
[[trunk]]
name = 'carrier'
interface = 'out'
target = 'carrier.example'
domain = 'carrier.example'
username = 'us'
password = 'hush-carrier'
max_calls = 3
register = { expires_s = 60 }
[[interface]]
name = 'keyed'
kind = 'access'
listen = 'udp:192.0.2.5:5060'
register = 'local'
srtp = 'require'
srtp_keying = ['dtls', 'sdes']
ice = 'lite'
media = { address = '192.0.2.1', ports = '20000-20011' }
[[interface]]
name = 'either'
kind = 'core'
listen = 'udp:198.51.100.2:5060'
srtp = 'prefer'
srtp_keying = ['sdes', 'dtls']
ice = 'full'
media = { address = '198.51.100.1', ports = '30000-30019' }
[[trunk]]
name = 'vault'
interface = 'either'
target = 'udp:10.2.0.3:5060'
";

/// The trunk has another address, the carrier and two interfaces are removed, ports and order differ.
const MOVED: &str = "
[[interface]]
name = 'in'
kind = 'core'
listen = 'udp:198.51.100.1:5060'
media = { address = '198.51.100.1', ports = '30000-30019' }
[[interface]]
name = 'out'
kind = 'access'
listen = ['udp:192.0.2.1:5060', 'tcp:192.0.2.1:5060', 'udp:192.0.2.4:5060']
srtp = 'prefer'
media = { address = '192.0.2.1', ports = '22000-22011' }
[[trunk]]
name = 'carrier'
interface = 'out'
target = ['udp:10.3.0.1:5060', 'udp:10.3.0.2:5060']
identity = 'remove'
[[trunk]]
name = 'pbx'
interface = 'in'
target = 'udp:10.2.0.3:5060'
[[trunk]]
name = 'vault'
interface = 'in'
target = 'udp:10.2.0.2:5060'
srtp = 'require'
srtp_keying = 'dtls'
";

/// Nothing that acts periodically: no pings, no registrations of ours.
const QUIET: &str = "
[[interface]]
name = 'out'
kind = 'access'
listen = ['udp:192.0.2.1:5060', 'tcp:192.0.2.1:5060']
register = 'local'
media = { address = '192.0.2.1', ports = '20000-20011' }
[[trunk]]
name = 'pbx'
target = 'udp:10.2.0.1:5060'
[[trunk]]
name = 'carrier'
target = 'udp:10.3.0.1:5060'
[[trunk]]
name = 'vault'
interface = 'out'
target = 'udp:10.3.0.2:5060'
";

/// A configuration: 0 all features, 1 moved, otherwise quiet.
pub(super) fn configuration(number: u8) -> Config {
    static ALL: OnceLock<[Config; 3]> = OnceLock::new();
    let all = ALL.get_or_init(|| [FULL, MOVED, QUIET].map(checked));
    let [full, moved, quiet] = all;
    match number {
        0 => full.clone(),
        1 => moved.clone(),
        _ => quiet.clone(),
    }
}

fn checked(text: &str) -> Config {
    match parse(&format!("{text}{COMMON}"), "fuzz.toml") {
        Ok(mut config) => {
            config.limits.dns_queries = QUERIES;
            config.limits.dns_cache = 2 * QUERIES;
            config
        }
        Err(mistakes) => {
            let text: String = mistakes.iter().map(ToString::to_string).collect();
            panic!("the fuzzer's own configuration: {text}");
        }
    }
}
