//! Mistakes with line and remedy, and the checked configuration of valid files.

use super::*;
use codec::kind::Kind;
use core::time::Duration;
use engine::{Limits, Transport};

const INTERFACE: &str = "[[interface]]\nname = \"a\"\nlisten = \"udp:192.0.2.1:5060\"\n";

/// Text below [`INTERFACE`] (its first line is line 4), line of the mistake, and parts of its message and remedy.
const MISTAKES: &[(&str, usize, &str, &str)] = &[
    // Syntax and structure.
    ("x = ", 4, "not TOML", "correct the line"),
    ("x = 1\nx = 2", 5, "duplicate key", "correct the line"),
    (
        "lissten = 1",
        4,
        "unknown key `lissten`",
        "did you mean `listen`?",
    ),
    (
        "blurb = 1",
        4,
        "unknown key `blurb`",
        "known here: name, kind",
    ),
    (
        "[[truck]]",
        4,
        "unknown key `truck` in the file",
        "did you mean `trunk`?",
    ),
    (
        "[media]\ntimeout_s = \"60\"",
        5,
        "must be a whole number, not a text",
        "timeout_s = 60, without quotes",
    ),
    (
        "[media]\ntimeout_s = 1.5",
        5,
        "not a number with a fraction",
        "whole number",
    ),
    ("[media]\ndscp = 64", 5, "`dscp` is 64", "from 0 to 63"),
    (
        "[media]\ntimeout_s = -1",
        5,
        "`timeout_s` is -1",
        "from 0 to 86400",
    ),
    (
        "[trunk]\nname = \"x\"",
        4,
        "must be a list of tables, not a table",
        "[[trunk]] instead of [trunk]",
    ),
    (
        "[[media]]",
        4,
        "must be a table, not a list",
        "[media] instead of [[media]]",
    ),
    (
        "kind = \"acess\"",
        4,
        "\"acess\" is no value of `kind`",
        "did you mean \"access\"?",
    ),
    (
        "kind = 7",
        4,
        "`kind` must be a text",
        "\"access\", \"core\"",
    ),
    (
        "[[trunk]]\nname = \"t\"",
        4,
        "`target` is missing in `trunk`",
        "[udp:|tcp:|tls:]HOST",
    ),
    (
        "[[trunk]]\nname = \"\"\ntarget = \"192.0.2.2\"",
        5,
        "`name` is empty",
        "at least 1",
    ),
    (
        "[[trunk]]\nname = \"t\"\ntarget = { address = \"192.0.2.2\", wieght = 2 }",
        6,
        "unknown key `wieght`",
        "`weight`",
    ),
    (
        "[log]\nlevel = \"verbose\"",
        5,
        "no value of `level`",
        "\"debug\"",
    ),
    // Interfaces.
    (
        INTERFACE,
        5,
        "interface \"a\" exists already in line 2",
        "another name",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=\"udp:192.0.2.1:5060\"",
        6,
        "already used by udp:192.0.2.1:5060 in line 3",
        "another port",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=[\"tcp:192.0.2.1\",\"udp:0.0.0.0:5060\"]\nadvertise=\"192.0.2.1\"\nmedia={address=\"192.0.2.9\"}",
        6,
        "already used",
        "another port",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=\"192.0.2.2:5060\"",
        6,
        "has no transport",
        "\"udp:192.0.2.2:5060\"",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=\"sctp:192.0.2.2:5060\"",
        6,
        "sctp is not available",
        "wss:",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=\"tls:192.0.2.2:5061\"",
        6,
        "tls:192.0.2.2:5061 requires a certificate",
        "chain = \"FILE\"",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=\"udp:192.0.2.2\"\ntls={certificate={chain=\"c\",key=\"k\"}}",
        7,
        "has no TLS listener",
        "tls:ADDRESS:PORT",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=\"tls:192.0.2.2\"\ntls={certificate=[]}",
        7,
        "`certificate` is empty",
        "chain = \"FILE\"",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=\"tls:192.0.2.2\"\ntls={certificate={chain=\"c\",key=\"k\"},clients=\"require\"}",
        7,
        "certificate authorities for client certificates",
        "client_ca",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=\"tls:192.0.2.2\"\ntls={certificate={chain=\"c\",key=\"k\"},client_ca=\"system\"}",
        7,
        "client certificates are not requested",
        "clients = ",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=\"udp:192.0.2.2\"\nwebsocket={origins=\"https://x.example\"}",
        7,
        "has no WebSocket listener",
        "wss:ADDRESS:PORT",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=\"ws:192.0.2.2\"\nwebsocket={origins=[\"https://x.example/path\"]}",
        7,
        "is not an origin",
        "SCHEME://HOST",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=[\"tcp:192.0.2.2:5061\",\"ws:192.0.2.2:5061\"]",
        6,
        "already used",
        "another port",
    ),
    (
        "[[trunk]]\nname=\"b\"\ntarget=\"wss:192.0.2.9\"",
        6,
        "does not open WebSocket",
        "tls:",
    ),
    (
        "[[trunk]]\nname=\"b\"\ntarget=\"udp:192.0.2.9\"\ntls={name=\"x.example\"}",
        7,
        "no target of the trunk uses TLS",
        "tls:HOST",
    ),
    (
        "[[trunk]]\nname=\"b\"\ntarget=\"udp:192.0.2.9\"\ntls={client_names=\"x.example\"}",
        7,
        "does not request client certificates",
        "clients = \"request\"",
    ),
    (
        "[[trunk]]\nname=\"b\"\ntarget=\"udp:192.0.2.9\"\ntls={client_names=[\"192.0.2.9\"]}",
        7,
        "cannot be a SIP domain",
        "sip.example.com",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=\"tls:192.0.2.2\"\ntls={certificate={chain=\"c\",key=\"k\"},clients=\"request\",client_ca=\"system\"}\n[[trunk]]\nname=\"c\"\ninterface=\"b\"\ntarget=\"tls:c.example\"\ntls={client_names=\"x.example\"}\n[[trunk]]\nname=\"d\"\ninterface=\"b\"\ntarget=\"tls:d.example\"\ntls={client_names=[\"y.example\",\"X.example\"]}",
        17,
        "the same client name",
        "its own client names",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=\"udp:192.0.2.2:99999\"",
        6,
        "not an address and port",
        "1 to 65535",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=\"udp:300.0.2.2:5060\"",
        6,
        "not an address and port",
        "udp:ADDRESS:PORT",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=\"udp:sip.example.com:5060\"",
        6,
        "is a name",
        "`advertise`",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=[]",
        6,
        "`listen` is empty",
        "add",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=\"udp:0.0.0.0:5070\"\nmedia={address=\"192.0.2.1\"}",
        6,
        "all addresses",
        "add `advertise`",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=\"udp:0.0.0.0:5070\"\nadvertise=\"192.0.2.7\"",
        4,
        "media address is unknown",
        "media = {",
    ),
    (
        "allow = \"10.0.0.0/33\"",
        4,
        "no prefix length from 0 to 32",
        "192.0.2.0/24",
    ),
    (
        "allow = [\"10.0.0.0/8\", \"10.0.0\"]",
        4,
        "is not an IP address",
        "192.0.2.0/24",
    ),
    (
        "allow = \"10.1.2.3/8\"",
        4,
        "the network is 10.0.0.0/8",
        "write a network",
    ),
    (
        "advertise = \"a b\"",
        4,
        "neither a host name nor an address",
        "HOST or HOST:PORT",
    ),
    (
        "authenticate = \"digest\"",
        4,
        "there is no user",
        "add a [[user]]",
    ),
    (
        "register = \"pas:pbx\"",
        4,
        "not a value of `register`",
        "\"pass:TRUNK\"",
    ),
    (
        "register = \"pass:pbx\"",
        4,
        "there is no trunk \"pbx\"",
        "add a [[trunk]]",
    ),
    (
        "media = { ports = \"20000\" }",
        4,
        "no range of ports",
        "FIRST-LAST",
    ),
    (
        "media = { ports = \"20001-30000\" }",
        4,
        "does not consist of pairs",
        "\"20000-30001\"",
    ),
    (
        "media = { ports = \"30000-20001\" }",
        4,
        "is empty",
        "FIRST-LAST",
    ),
    (
        "media = { ports = \"20000-20001\" }",
        4,
        "too small",
        "four ports",
    ),
    (
        "media = { ports = \"1000-2001\" }",
        4,
        "below 1024",
        "1024 or higher",
    ),
    (
        "media = { ports = \"5000-5999\" }",
        3,
        "is one of the media ports",
        "change the listening port",
    ),
    (
        "media = { address = \"0.0.0.0\" }",
        4,
        "all addresses",
        "`advertise`",
    ),
    (
        "media = { address = \"x\" }",
        4,
        "is not an IP address",
        "without a port",
    ),
    (
        "media = { advertise = \"2001:db8::1\" }",
        4,
        "different address families",
        "same family",
    ),
    (
        "media = [{ address = \"192.0.2.1\" }, { address = \"192.0.2.2\" }]",
        4,
        "second media address",
        "one for IPv4",
    ),
    (
        "[[interface]]\nname=\"b\"\nlisten=\"tcp:192.0.2.1:5070\"\nmedia={ports=\"26000-29999\"}",
        7,
        "overlap with 20000-26999 in line 1",
        "the same range",
    ),
    // Trunks.
    (
        "[[trunk]]\nname=\"t\"\ninterface=\"aa\"\ntarget=\"192.0.2.2\"",
        6,
        "no interface \"aa\"",
        "did you mean \"a\"?",
    ),
    (
        "[[trunk]]\nname=\"t\"\ntarget=\"192.0.2.1:5060\"",
        6,
        "an address of this border",
        "the other system",
    ),
    (
        "[[trunk]]\nname=\"t\"\ntarget=\"tcp:192.0.2.2\"",
        6,
        "no tcp listener",
        "add \"tcp:",
    ),
    (
        "[[trunk]]\nname=\"t\"\ntarget=\"[2001:db8::1]:5060\"",
        6,
        "different address families",
        "that family",
    ),
    (
        "[[trunk]]\nname=\"t\"\ntarget=\"sips://x\"",
        6,
        "neither a host name",
        "HOST:PORT",
    ),
    (
        "[[trunk]]\nname=\"t\"\ntarget=\"192.0.2.2\"\nusername=\"u\"",
        7,
        "`username` without `password`",
        "add `password`",
    ),
    (
        "[[trunk]]\nname=\"t\"\ntarget=\"192.0.2.2\"\nregister={}",
        7,
        "user to register",
        "add `user`",
    ),
    (
        "[[trunk]]\nname=\"t\"\ntarget=\"192.0.2.2\"\nregister={user=\"u\", expires_s=5}",
        7,
        "`expires_s` is 5",
        "from 30 to 86400",
    ),
    // Routes.
    ("[[route]]", 4, "has no action", "exactly one of"),
    (
        "[[route]]\nregistered=true\nreject=403",
        4,
        "several actions",
        "exactly one of",
    ),
    (
        "[[route]]\nreject=200",
        5,
        "`reject` is 200",
        "from 400 to 699",
    ),
    (
        "[[route]]\ntrunk=\"t\"",
        5,
        "no trunk \"t\"",
        "add a [[trunk]]",
    ),
    (
        "[[route]]\nreject=403\nto={regex=\"(\"}",
        6,
        "not a valid regular expression",
        "'...'",
    ),
    (
        "[[route]]\nreject=403\nto={prefix=\"\"}",
        6,
        "`prefix` is empty",
        "remove the key",
    ),
    (
        "[[route]]\nreject=403\nto={domain=\"a:b\"}",
        6,
        "is not a host",
        "without a port",
    ),
    (
        "[[route]]\nreject=403\nto={urn=\"urn:sos\"}",
        6,
        "not a service URN",
        "urn:service:sos",
    ),
    (
        "[[route]]\nreject=403\nfrom={urn=\"urn:service:sos\"}",
        6,
        "callers are not services",
        "to `to`",
    ),
    (
        "[[route]]\nreject=403\nto={urn=\"urn:service:sos\",user=\"1\"}",
        6,
        "matches no call",
        "two routes",
    ),
    (
        "[[route]]\nreject=403\nprefix=\"1\"\nto={urn=\"urn:service:sos\"}",
        7,
        "have no effect on a service URN",
        "`replace`",
    ),
    (
        "[[route]]\nregistered=true\nto={urn=\"urn:service:sos\"}",
        6,
        "cannot be registered",
        "set `trunk`",
    ),
    (
        "[[route]]\nregistered=true\nreplace=\"1\"",
        6,
        "no effect without `to.regex`",
        "add to = {",
    ),
    (
        "[[route]]\nregistered=true\nto={regex='0(\\d+)'}\nreplace=\"+43$2\"",
        7,
        "no group 2",
        "0 to 1",
    ),
    (
        "[[route]]\nregistered=true\nto={regex='0(\\d+)'}\nreplace=\"$1x\"",
        7,
        "no group 1x",
        "0 to 1",
    ),
    (
        "[[route]]\nreject=403\n[[route]]\nreject=404",
        6,
        "the route in line 4 matches every call",
        "move it before",
    ),
    (
        "[[route]]\ninterface=\"b\"\nreject=403",
        5,
        "no interface \"b\"",
        "did you mean \"a\"?",
    ),
    (
        "[[route]]\nreject={status=403, reason=\"a\\nb\"}",
        5,
        "control characters",
        "one line",
    ),
    // Users and other tables.
    (
        "[[user]]\nname=\"1\"\npassword=\"x\"\n[[user]]\nname=\"1\"\npassword=\"y\"",
        8,
        "exists already in line 5",
        "remove one",
    ),
    (
        "[[user]]\nname=\"1\"",
        4,
        "has no password",
        "`password` or `ha1`",
    ),
    (
        "[[user]]\nname=\"1\"\npassword=\"\"",
        6,
        "password is empty",
        "write a password",
    ),
    (
        "[[user]]\nname=\"1\"\npassword=\"x\"\nha1=\"x\"",
        7,
        "both",
        "remove one",
    ),
    (
        "[[user]]\nname=\"1\"\nha1=\"xyz\"",
        6,
        "32 hexadecimal",
        "1:hornwork:PASSWORD",
    ),
    (
        "[[user]]\nname=\"a@b\"\npassword=\"x\"",
        5,
        "user part",
        "letters, digits",
    ),
    (
        "[realm]\nalgorithms=[\"MD6\"]",
        5,
        "\"MD6\" is no value",
        "\"MD5\"",
    ),
    (
        "[realm]\nalgorithms=[]",
        5,
        "`algorithms` is empty",
        "at least 1",
    ),
    (
        "[realm]\nalgorithms=[\"SHA-256\"]\n[[user]]\nname=\"1\"\nha1=\"00112233445566778899aabbccddeeff\"",
        5,
        "MD5, which is not offered",
        "add \"MD5\"",
    ),
    (
        "[registrar]\nmin_expires_s=100\nmax_expires_s=50\ndefault_expires_s=100\nnat_expires_s=0",
        5,
        "above max_expires_s",
        "lower min_expires_s",
    ),
    (
        "[registrar]\ndefault_expires_s=9000",
        5,
        "is not between min_expires",
        "choose a value",
    ),
    (
        "[sip]\nbatching_delay_ms=20\nqueueing_delay_ms=30",
        6,
        "less than twice batching_delay_ms",
        "raise queue",
    ),
    (
        "[sip]\nemergency_numbers=[\"112\", \"fire\"]",
        5,
        "`fire` is not a number",
        "write digits",
    ),
    (
        "[registrar]\nnat_expires_s=20",
        5,
        "below min_expires_s",
        "raise nat_expires_s",
    ),
    (
        "[session_timer]\nexpires_s=95\nmin_se_s=100",
        5,
        "below min_se_s",
        "raise expires_s",
    ),
    (
        "[session_timer]\nmin_se_s=100",
        5,
        "has no effect",
        "set `expires_s`",
    ),
    (
        "[dns]\nservers=[\"ns.example.com\"]",
        5,
        "is not an IP address",
        "ADDRESS:PORT",
    ),
    (
        "[limits]\nmessage_bytes=100",
        5,
        "`message_bytes` is 100",
        "from 2048 to 65535",
    ),
];

#[test]
fn every_mistake_has_its_line_and_remedy() {
    let mut wrong = Vec::new();
    for (more, line, message, remedy) in MISTAKES {
        let text = format!("{INTERFACE}{more}\n");
        let Err(mistakes) = parse(&text, "f.toml") else {
            wrong.push(format!("taken: {text}"));
            continue;
        };
        let found = mistakes
            .iter()
            .any(|m| m.line == *line && m.message.contains(message) && m.remedy.contains(remedy));
        if !found {
            wrong.push(format!(
                "wanted line {line}, {message:?}, {remedy:?} for\n{text}got {mistakes:#?}"
            ));
        }
        for mistake in &mistakes {
            assert!(
                mistake.column >= 1 && mistake.line <= text.lines().count().max(1),
                "{mistake:?}"
            );
            assert!(!mistake.remedy.is_empty() && mistake.file == "f.toml");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn several_mistakes_come_at_once_in_the_order_of_the_file() {
    let text = "[[interface]]\nname = \"a\"\nlisten = \"udp:1.2.3.4.5:1\"\nallow = \"x\"\n[[trunk]]\nname = \"t\"\n\
         target = \"a b\"\n[[route]]\ntrunk = \"tt\"\n";
    let lines: Vec<usize> = parse(text, "f")
        .unwrap_err()
        .iter()
        .map(|m| m.line)
        .collect();
    assert_eq!(lines, [3, 4, 7, 9]);
    let text = "foo = 1\nbar = 2\n[media]\ntimeout_s = \"x\"\n";
    let lines: Vec<usize> = parse(text, "f")
        .unwrap_err()
        .iter()
        .map(|m| m.line)
        .collect();
    assert_eq!(lines, [1, 2, 4], "two unknown keys, a wrong type");
    let nothing = parse("[media]\ntimeout_s = 5\n", "f").unwrap_err();
    assert_eq!(nothing.len(), 1);
    assert_eq!(nothing[0].message, "there is no interface");
    assert!(nothing[0].remedy.contains("[[interface]]"));
}

#[test]
fn columns_count_characters() {
    let text = "[[interface]]\nname = \"ü\" ; x\n";
    let mistakes = parse(text, "f").unwrap_err();
    assert_eq!(
        (mistakes[0].line, mistakes[0].column),
        (2, 12),
        "{mistakes:?}"
    );
}

#[test]
fn a_small_file_has_good_defaults() {
    let text = "[[interface]]\nname=\"out\"\nlisten=[\"udp:192.0.2.1\", \"tcp:192.0.2.1:5062\"]\n\
         [[trunk]]\nname=\"pbx\"\ntarget=\"192.0.2.2\"\n";
    let config = parse(text, "f").unwrap();
    let interface = &config.interfaces[0];
    assert_eq!(interface.listen[0].to_string(), "udp:192.0.2.1:5060");
    assert_eq!(interface.listen[1].to_string(), "tcp:192.0.2.1:5062");
    assert_eq!(
        (interface.kind, interface.register),
        (InterfaceKind::Access, Register::Refuse)
    );
    assert!(interface.allows("203.0.113.9".parse().unwrap()));
    let range = config.media_ranges[interface.media[0].range];
    assert_eq!((range.first, range.last), (20_000, 26_999));
    let trunk = &config.trunks[0];
    assert_eq!(
        (trunk.interface, trunk.ping_interval, trunk.max_calls),
        (InterfaceId(0), None, None)
    );
    assert_eq!(
        trunk.targets[0].direct(),
        Some(("192.0.2.2:5060".parse().unwrap(), Transport::Udp))
    );
    assert_eq!(config.media.timeout, Some(Duration::from_secs(60)));
    assert_eq!(config.limits, Limits::default());
    assert_eq!(
        config.realm.algorithms,
        [DigestAlgorithm::Md5],
        "the default is the algorithm that every phone supports"
    );
}

#[test]
fn the_same_range_is_shared_and_families_have_one_each() {
    let text = "[[interface]]\nname=\"a\"\nlisten=[\"udp:192.0.2.1\",\"udp:[2001:db8::1]:5060\"]\n\
         media=[{address=\"192.0.2.1\"},{address=\"2001:db8::1\"}]\n\
         [[interface]]\nname=\"b\"\nlisten=\"udp:192.0.2.1:5070\"\n";
    let config = parse(text, "f").unwrap();
    assert_eq!(config.media_ranges.len(), 2);
    assert_eq!(config.interfaces[0].media.len(), 2);
    assert_eq!(config.interfaces[1].media[0].range, 0);
}

#[test]
fn users_make_a_registrar_and_secrets_do_not_show() {
    let text = format!(
        "{INTERFACE}authenticate=\"digest\"\n[realm]\nalgorithms=[\"SHA-256\",\"MD5\"]\n[[user]]\nname=\"1000\"\npassword=\"geheim\"\n[[user]]\nname=\"1001\"\nha1=\"00112233445566778899AABBCCDDEEFF\"\n[[trunk]]\nname=\"t\"\ntarget=\"192.0.2.2\"\nusername=\"u\"\npassword=\"geheim\"\n"
    );
    let config = parse(&text, "f").unwrap();
    assert_eq!(config.interfaces[0].register, Register::Local);
    assert_eq!(
        config.realm.algorithms,
        [DigestAlgorithm::Md5],
        "only MD5 can be checked"
    );
    assert_eq!(
        config.users["1001"].secret,
        UserSecret::Ha1("00112233445566778899aabbccddeeff".into())
    );
    let shown = format!("{config:?}");
    assert!(
        !shown.contains("geheim") && !shown.contains("0011223344"),
        "{shown}"
    );
}

#[test]
fn requests_are_told_to_come_from_a_trunk() {
    let text = "[[interface]]\nname=\"a\"\nlisten=[\"udp:192.0.2.1\",\"tcp:192.0.2.1\"]\n\
         [[trunk]]\nname=\"t\"\ntarget=\"192.0.2.2:5080\"\n\
         [[trunk]]\nname=\"u\"\ntarget=\"carrier.example\"\nsources=\"198.51.100.0/24\"\n";
    let config = parse(text, "f").unwrap();
    let of = |source: &str, transport| {
        config.trunk_of(InterfaceId(0), source.parse().unwrap(), transport, None)
    };
    assert_eq!(of("192.0.2.2:5080", Transport::Udp), Some(TrunkId(0)));
    assert_eq!(
        of("192.0.2.2:5081", Transport::Udp),
        None,
        "another program on that machine"
    );
    assert_eq!(of("192.0.2.2:50810", Transport::Tcp), Some(TrunkId(0)));
    assert_eq!(of("198.51.100.77:1024", Transport::Udp), Some(TrunkId(1)));
    assert_eq!(of("203.0.113.1:5060", Transport::Udp), None);
}

#[test]
fn risky_but_allowed_settings_cause_a_hint() {
    let text = INTERFACE.replace(":5060", ":506");
    let low = parse(&text, "f").unwrap().hints().join("\n");
    assert!(
        low.contains("port 506 is below 1024") && low.contains("CAP_NET_BIND_SERVICE"),
        "{low}"
    );
}

/// A trunk cannot authenticate without forwarded registrations.
#[test]
fn authentication_by_a_trunk_requires_forwarded_registrations() {
    let text = format!("{INTERFACE}authenticate=\"trunk\"\n");
    let mistakes = parse(&text, "f").unwrap_err();
    assert!(
        mistakes[0]
            .message
            .contains("registrations are not forwarded to a trunk"),
        "{mistakes:?}"
    );
}

/// A number belongs to one user.
#[test]
fn numbers_of_users_are_checked() {
    let users = |a: &str, b: &str| {
        let text = format!(
            "{INTERFACE}[[user]]\nname=\"a\"\npassword=\"x\"\nnumbers={a}\n[[user]]\nname=\"b\"\npassword=\"x\"\nnumbers={b}\n"
        );
        let mistakes = parse(&text, "f").err().unwrap_or_default();
        mistakes.first().map(|mistake| mistake.message.clone())
    };
    assert_eq!(users("\"+431*\"", "[\"+432\", \"+4330*\"]"), None);
    for (a, b) in [
        ("\"+431\"", "\"+431\""),
        ("\"+431*\"", "\"+4312\""),
        ("\"+4312\"", "\"+431*\""),
        ("\"+431*\"", "\"+4312*\""),
        ("\"b\"", "[]"),
        ("[]", "\"a*\""),
    ] {
        let message = users(a, b).unwrap_or_default();
        assert!(message.contains("number in common"), "{a} {b}: {message}");
    }
    for bad in ["\"*\"", "\"\"", "\"+43 1\"", "\"a@b\""] {
        assert!(
            users(bad, "[]")
                .unwrap_or_default()
                .contains("is not a number"),
            "{bad}"
        );
    }
    let text = format!("{INTERFACE}[realm]\nfailure_delay_s=60\nfailure_delay_max_s=30\n");
    let mistakes = parse(&text, "f").unwrap_err();
    assert!(mistakes[0].message.contains("above failure_delay_max_s"));
}

#[test]
fn networks_contain_addresses_of_their_prefix() {
    let net = |text: &str| Cidr::parse(text).unwrap();
    let ip = |text: &str| text.parse().unwrap();
    assert!(net("0.0.0.0/0").contains(ip("203.0.113.1")));
    assert!(!net("0.0.0.0/0").contains(ip("2001:db8::1")));
    assert!(net("::/0").contains(ip("2001:db8::1")));
    assert!(net("192.0.2.0/24").contains(ip("::ffff:192.0.2.9")));
    assert!(!net("192.0.2.0/24").contains(ip("192.0.3.0")));
    assert!(net("192.0.2.1").contains(ip("192.0.2.1")));
    assert!(!net("2001:db8::/33").contains(ip("2001:db8:8000::1")));
}

#[test]
fn the_schema_describes_every_key_and_the_page_names_it() {
    let schema = schema::schema();
    let page = markdown();
    let mut keys = 0;
    let tables = std::iter::once(&schema).chain(
        schema["$defs"]
            .as_object()
            .unwrap()
            .values()
            .filter(|table| table.get("properties").is_some()),
    );
    for table in tables {
        assert_eq!(table["additionalProperties"], false, "{table}");
        for (key, property) in table["properties"].as_object().unwrap() {
            let text = property["description"].as_str().unwrap_or_default();
            assert!(text.len() > 5, "{key} has no description");
            assert!(
                page.contains(&format!("| `{key}` |")),
                "{key} is not in the page"
            );
            keys += 1;
        }
    }
    assert!(keys > 90, "{keys}");
    // A cell is read on a phone; the rest of its text is below the table.
    let row = page.lines().find(|line| line.starts_with("| `af_xdp` |"));
    let cell = row.unwrap().rsplit(" | ").next().unwrap();
    assert!(cell.split(' ').count() < 40, "{cell}");
    assert!(page.contains("\n- `af_xdp`: "), "{page}");
}

#[test]
fn media_security_is_inherited_and_checked() {
    let parsed = |interface: &str, trunk: &str| {
        let text =
            format!("{INTERFACE}{interface}[[trunk]]\nname=\"t\"\ntarget=\"192.0.2.2\"\n{trunk}");
        parse(&text, "f").map_err(|mistakes| {
            let texts: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            texts.join("\n")
        })
    };
    let config = parsed(
        "srtp=\"require\"\nsrtp_keying=[\"dtls\",\"sdes\"]\nice=\"lite\"\n",
        "srtp=\"prefer\"\nice=\"off\"\n",
    )
    .unwrap();
    let (outside, trunk) = (&config.interfaces[0].security, &config.trunks[0].security);
    assert_eq!(
        (outside.srtp, trunk.srtp),
        (SrtpPolicy::Require, SrtpPolicy::Prefer)
    );
    assert_eq!((outside.ice, trunk.ice), (Ice::Lite, Ice::Off));
    assert_eq!(
        trunk.keying,
        [Keying::Dtls, Keying::Sdes],
        "the interface's"
    );
    assert!(config.may_use_dtls());
    let plain = parsed("", "").unwrap();
    assert!(plain.interfaces[0].security.is_pass() && !plain.may_use_dtls());
    for (interface, expected) in [
        ("srtp=\"perhaps\"\n", "srtp"),
        (
            "srtp=\"require\"\nsrtp_suites=\"AES_CM_64\"\n",
            "is not supported",
        ),
        (
            "srtp=\"require\"\nsrtp_suites=\"NULL_HMAC_SHA1_80\"\n",
            "is not supported",
        ),
        (
            "srtp_suites=[\"AEAD_AES_128_GCM\",\"AEAD_AES_128_GCM\"]\n",
            "is listed twice",
        ),
        (
            "srtp=\"require\"\nsrtp_keying=\"dtls\"\nsrtp_suites=\"AES_CM_128_HMAC_SHA1_32\"\n",
            "DTLS supports none of these suites",
        ),
        (
            "srtp=\"refuse\"\nsrtp_keying=\"sdes\"\n",
            "has no effect, because SRTP is refused",
        ),
        (
            "srtp_keying=[\"sdes\",\"sdes\"]\n",
            "a keying method is listed twice",
        ),
    ] {
        let said = parsed(interface, "").unwrap_err();
        assert!(said.contains(expected), "{interface}: {said}");
        assert!(said.contains("f:"), "with its line: {said}");
    }
}

#[test]
fn transcoding_is_inherited_and_checked() {
    let parsed = |interface: &str, trunk: &str| {
        let text =
            format!("{INTERFACE}{interface}[[trunk]]\nname=\"t\"\ntarget=\"192.0.2.2\"\n{trunk}");
        parse(&text, "f").map_err(|mistakes| {
            let texts: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            texts.join("\n")
        })
    };
    let config = parsed(
        "transcode=[\"OPUS\",\"pcma\"]\n",
        "transcode_when=\"always\"\n",
    )
    .unwrap();
    let (outside, trunk) = (
        &config.interfaces[0].transcoding,
        &config.trunks[0].transcoding,
    );
    assert_eq!(outside.codecs, [Kind::Opus, Kind::Pcma]);
    assert_eq!(outside.when, TranscodeWhen::Needed);
    assert_eq!(trunk.codecs, outside.codecs, "the interface's");
    assert_eq!(trunk.when, TranscodeWhen::Always);
    let other = parsed("transcode=\"PCMA\"\n", "transcode=\"G722\"\n").unwrap();
    assert_eq!(other.trunks[0].transcoding.codecs, [Kind::G722]);
    for (interface, expected) in [
        ("transcode=\"GSM\"\n", "\"GSM\" is not supported"),
        ("transcode=[\"PCMA\",\"pcma\"]\n", "PCMA is listed twice"),
        (
            "transcode_when=\"always\"\n",
            "has no effect without codecs",
        ),
        ("transcode_when=\"often\"\n", "transcode_when"),
    ] {
        let said = parsed(interface, "").unwrap_err();
        assert!(said.contains(expected), "{interface}: {said}");
        assert!(said.contains("f:"), "with its line: {said}");
    }
}

#[test]
fn srtp_keys_over_unencrypted_signalling_are_hinted_at() {
    let hints = |listen: &str, more: &str| {
        let text = format!("[[interface]]\nname=\"a\"\nkind=\"core\"\nlisten=\"{listen}\"\n{more}");
        parse(&text, "f").unwrap().hints().join("\n")
    };
    let open = hints("udp:192.0.2.1:5060", "srtp=\"prefer\"\n");
    assert!(
        open.contains("SRTP keys are sent in session descriptions"),
        "{open}"
    );
    assert_eq!(
        hints(
            "udp:192.0.2.1:5060",
            "srtp=\"prefer\"\nsrtp_keying=\"dtls\"\n"
        ),
        ""
    );
    assert_eq!(hints("udp:192.0.2.1:5060", "srtp=\"refuse\"\n"), "");
    let tls = "srtp=\"require\"\ntls={certificate={chain=\"a\",key=\"b\"}}\n";
    assert_eq!(hints("tls:192.0.2.1:5061", tls), "");
    let trunk = format!("{tls}[[trunk]]\nname=\"t\"\ntarget=\"tls:192.0.2.2\"\n");
    assert_eq!(hints("tls:192.0.2.1:5061", &trunk), "");
}
