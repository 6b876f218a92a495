//! Header rules in operation: `hornwork rules try`, mistakes in a rule, and SIPp on both sides of a border.

use crate::common;

use common::{Process, border, example, free_port, installed, media_ports, root, scratch};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const INVITE: &str = "INVITE sip:030123@192.0.2.1 SIP/2.0\r\n\
    Via: SIP/2.0/UDP 127.0.0.1:5061;branch=z9hG4bK1\r\n\
    From: \"Alice\" <sip:alice@127.0.0.1>;tag=1\r\nTo: <sip:030123@192.0.2.1>\r\nCall-ID: c1\r\nCSeq: 1 INVITE\r\n\
    Contact: <sip:alice@127.0.0.1:5061>\r\nMax-Forwards: 70\r\nSubject: Re: lunch\r\nX-Internal: 1\r\nContent-Length: 0\r\n\r\n";

fn attempt(arguments: &[&str], message: &str) -> (Output, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["rules", "try"])
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut input = child.stdin.take().expect("piped input");
    // It may end without reading.
    let _ = input.write_all(message.as_bytes());
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (log, shown) = (text(&output.stderr), text(&output.stdout));
    (output, log, shown)
}

#[test]
fn example_is_tried_on_an_incoming_message() {
    let (output, log, shown) = attempt(&["examples/header-rules.toml"], INVITE);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(
        log.contains("rule 1 matches: international numbers"),
        "{log}"
    );
    assert!(log.contains("tag dialled = 030123"), "{log}");
    let expected = INVITE
        .replace("INVITE sip:030123@", "INVITE sip:+4930123@")
        .replace("To: <sip:030123@", "To: <sip:+4930123@");
    assert_eq!(shown, expected);
    // With the line ends of an editor.
    let (_, _, typed) = attempt(
        &["examples/header-rules.toml"],
        &INVITE.replace("\r\n", "\n"),
    );
    assert_eq!(typed, expected);
}

#[test]
fn example_is_tried_on_an_outgoing_message() {
    let (output, log, shown) = attempt(
        &[
            "examples/header-rules.toml",
            "--direction",
            "out",
            "--source",
            "127.0.0.1:5080",
            "--tag",
            "dialled=030123",
        ],
        INVITE,
    );
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(log.contains("rule 3 matches: towards the carrier"), "{log}");
    for line in [
        "User-Agent: Hornwork\r\n",
        "X-Account: acme-7\r\n",
        "X-Dialled: 030123\r\n",
        "Subject: lunch\r\n",
    ] {
        assert!(shown.contains(line), "{line} is not in\n{shown}");
    }
    assert!(!shown.contains("X-Internal"), "{shown}");
    // No rule matches towards a phone.
    let (_, log, shown) = attempt(
        &["examples/header-rules.toml", "--direction", "out"],
        INVITE,
    );
    assert!(log.contains("none of 4 rules matches"), "{log}");
    assert_eq!(shown, INVITE);
}

#[test]
fn refusals_and_failures_are_reported() {
    let premium = INVITE.replace("030123", "0900123");
    let (output, log, _) = attempt(&["examples/header-rules.toml"], &premium);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(
        log.contains("refused with 603 (Premium Numbers Are Barred)"),
        "{log}"
    );
    assert!(log.contains("dialled by alice at 192.0.2.1"), "{log}");
    let folder = scratch("rules-try");
    let file = folder.join("injection.toml");
    let base = std::fs::read_to_string(root().join("examples/loopback.toml")).expect("example");
    let rule = "\n[[rules]]\ndirection = \"in\"\nwhen = 'int(from.user) > 0 || true'\ndo = [{ add = \"X-From\", value = \"${from.user}\" }]\n";
    std::fs::write(&file, format!("{base}{rule}")).expect("file");
    let path = file.display().to_string();
    let evil = INVITE.replace("sip:alice@127.0.0.1>", "sip:a%0D%0AX:%20y@127.0.0.1>");
    let (output, log, shown) = attempt(&[&path], &evil);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(
        log.contains("skipped, because they would make the message invalid: 1 changes"),
        "{log}"
    );
    assert_eq!(shown, evil);
    for (arguments, message, word) in [
        (
            &[path.as_str(), "--interface", "nowhere"][..],
            INVITE,
            "no interface \"nowhere\"",
        ),
        (
            &[path.as_str(), "--trunk", "nobody"][..],
            INVITE,
            "no trunk \"nobody\"",
        ),
        (
            &[path.as_str(), "--source", "here"][..],
            INVITE,
            "is not an address",
        ),
        (&[path.as_str(), "--tag", "x"][..], INVITE, "is not a tag"),
        (&[path.as_str()][..], "hello", "no SIP"),
        (
            &[path.as_str()][..],
            "BYE sip:a SIP/2.0\r\n\r\n",
            "Missing Call-ID",
        ),
        (&["nowhere.toml"][..], INVITE, "nowhere.toml"),
    ] {
        let (output, log, _) = attempt(arguments, message);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {log}");
        assert!(log.contains(word), "{word} is not in {log}");
    }
}

/// Typical mistakes in a rule: its lines, the line of the mistake counted from the rule's first, its message, and its
/// remedy.
const MISTAKES: &[(&str, usize, &str, &str)] = &[
    (
        "direction = \"in\"\nwhen = 'frm.user == \"x\"'\ndo = [{ log = \"x\" }]",
        2,
        "there is no fact `frm`",
        "did you mean `from`?",
    ),
    (
        "direction = \"in\"\nwhen = 'status == \"200\"'\ndo = [{ log = \"x\" }]",
        2,
        "a number and a text",
        "without quotes",
    ),
    (
        "direction = \"in\"\nwhen = 'from.user == '\ndo = [{ log = \"x\" }]",
        2,
        "invalid condition",
        "write CEL",
    ),
    (
        "direction = \"in\"\nwhen = 'from.user.matches(\"(\")'\ndo = [{ log = \"x\" }]",
        2,
        "not a valid regular expression",
        "correct it",
    ),
    (
        "direction = \"in\"\ndo = [{ set = \"Via\", value = \"x\" }]",
        2,
        "rules cannot change it",
        "remove the action",
    ),
    (
        "direction = \"in\"\ndo = [{ remove = \"Call-ID\" }]",
        2,
        "rules cannot change it",
        "remove the action",
    ),
    (
        "direction = \"in\"\ndo = [{ set = \"From\", value = \"<sip:a@b>\" }]",
        2,
        "contains the tag",
        "change a part of it",
    ),
    (
        "direction = \"in\"\ndo = [{ rewrite = \"From\", part = \"params.tag\", value = \"x\" }]",
        2,
        "the tag identifies the dialog",
        "remove the action",
    ),
    (
        "direction = \"out\"\nmethod = \"BYE\"\ndo = [{ rewrite = \"From\", part = \"user\", value = \"x\" }]",
        3,
        "is fixed by the dialog",
        "INVITE",
    ),
    (
        "direction = \"in\"\non = \"response\"\ndo = [{ reject = 403 }]",
        3,
        "has no effect on a response",
        "on = \"request\"",
    ),
    (
        "direction = \"in\"\nmethod = \"ACK\"\ndo = [{ reject = 403 }]",
        3,
        "ACK cannot be refused",
        "remove ACK",
    ),
    (
        "direction = \"in\"\ndo = [{ reject = 302 }]",
        2,
        "must be from 400 to 699",
        "from 400 to 699",
    ),
    (
        "direction = \"in\"\ndo = [{ route = \"sever\" }]",
        2,
        "there is no trunk \"sever\"",
        "did you mean \"server\"?",
    ),
    (
        "direction = \"out\"\ndo = [{ route = \"server\" }]",
        2,
        "a sent message is already routed",
        "direction = \"in\"",
    ),
    (
        "direction = \"in\"\ntrunk = \"servr\"\ndo = [{ log = \"x\" }]",
        2,
        "there is no trunk \"servr\"",
        "did you mean \"server\"?",
    ),
    (
        "direction = \"in\"\ninterface = \"loop\"\ndo = [{ log = \"x\" }]",
        2,
        "there is no interface \"loop\"",
        "loopback",
    ),
    (
        "direction = \"in\"\nmethod = \"invite\"\ndo = [{ log = \"x\" }]",
        2,
        "case-sensitive",
        "INVITE",
    ),
    (
        "direction = \"in\"\nmethod = [\"INVITE\", \"CANCEL\"]\ndo = [{ log = \"x\" }]",
        2,
        "CANCEL is hop-by-hop",
        "remove it",
    ),
    (
        "direction = \"in\"\ndo = [{ replace = \"Subject\", regex = '(a', with = \"b\" }]",
        2,
        "not a valid regular expression",
        "correct it",
    ),
    (
        "direction = \"in\"\ndo = [{ replace = \"Subject\", regex = '(a)', with = \"$2\" }]",
        2,
        "no group 2",
        "0 to 1",
    ),
    (
        "direction = \"in\"\ndo = [{ add = \"X-A\", value = \"$1\" }]",
        2,
        "there is no regular expression",
        "add `regex`",
    ),
    (
        "direction = \"in\"\ndo = [{ add = \"X-A\", value = \"${from.usr}\" }]",
        2,
        "no `usr`",
        "user, host",
    ),
    (
        "direction = \"in\"\ndo = [{ add = \"X-A\" }]",
        2,
        "`add` requires `value`",
        "add value",
    ),
    (
        "direction = \"in\"\ndo = [{ add = \"X A\", value = \"x\" }]",
        2,
        "not a valid header name",
        "X-Account",
    ),
    (
        "direction = \"in\"\ndo = [{ set = \"P-Asserted-Identity\", value = \"alice\" }]",
        2,
        "not a valid value",
        "an address",
    ),
    (
        "direction = \"in\"\ndo = [{ rewrite = \"Subject\", part = \"host\", value = \"x\" }]",
        2,
        "are not addresses",
        "change the whole value",
    ),
    (
        "direction = \"in\"\ndo = [{ rewrite = \"To\", part = \"hst\", value = \"x\" }]",
        2,
        "no part \"hst\"",
        "host",
    ),
    (
        "direction = \"in\"\ndo = [{ rewrite = \"To\", part = \"port\", value = \"sip\" }]",
        2,
        "not valid for this part",
        "1 to 65535",
    ),
    (
        "direction = \"in\"\ndo = [{ number = \"To\", form = \"e164\" }]",
        2,
        "`form` requires `country`",
        "country = \"49\"",
    ),
    (
        "direction = \"in\"\ndo = [{ number = \"To\" }]",
        2,
        "requires `form`, `strip`",
        "add `form`",
    ),
    (
        "direction = \"in\"\ndo = [{ add = \"X-A\", value = \"x\", regex = \"y\" }]",
        2,
        "`add` does not accept `regex`",
        "remove it",
    ),
    (
        "direction = \"in\"\ndo = [{ value = \"x\" }]",
        2,
        "the action has no verb",
        "exactly one of",
    ),
    (
        "direction = \"in\"\ndo = [{ add = \"X-A\", set = \"X-A\", value = \"x\" }]",
        2,
        "the action has several verbs",
        "exactly one of",
    ),
    (
        "direction = \"in\"",
        0,
        "the rule has no effect",
        "add `do`",
    ),
    (
        "do = [{ log = \"x\" }]",
        0,
        "`direction` is missing",
        "`direction`",
    ),
    (
        "direction = \"in\"\nwen = \"true\"\ndo = [{ log = \"x\" }]",
        2,
        "unknown key `wen`",
        "did you mean `when`?",
    ),
];

#[test]
fn every_invalid_rule_is_rejected_with_line_and_remedy() {
    let folder = scratch("rules-check");
    let base = std::fs::read_to_string(root().join("examples/loopback.toml")).expect("example");
    let first = base.lines().count() + 2;
    for (rule, line, message, remedy) in MISTAKES {
        let file = folder.join("bad.toml");
        std::fs::write(&file, format!("{base}\n[[rules]]\n{rule}\n")).expect("file");
        let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["check", "-c", &file.display().to_string()])
            .output()
            .expect("the program starts");
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{rule}: {log}");
        for word in [
            format!("bad.toml:{}:", first + line),
            (*message).to_owned(),
            (*remedy).to_owned(),
        ] {
            assert!(
                log.contains(&word),
                "{word} is not in the message about\n{rule}\n{log}"
            );
        }
    }
}

fn sipp(folder: &Path, name: &str, port: u16, arguments: &[&str]) -> Process {
    Process::start(
        Command::new("sipp")
            .current_dir(folder)
            .args([
                "-i",
                "127.0.0.1",
                "-p",
                &port.to_string(),
                "-nostdin",
                "-m",
                "5",
                "-r",
                "5",
            ])
            .args([
                "-trace_err",
                "-error_file",
                &format!("{name}.err"),
                "-timeout",
                "20s",
            ])
            .args(arguments)
            .stdin(Stdio::null()),
        &folder.join(format!("{name}.log")),
    )
}

#[test]
fn sipp_receives_headers_changed_by_rules_on_both_sides() {
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch("rules-sipp");
    let (sip, trunk) = (free_port(), free_port());
    let text = example("header-rules.toml", sip, trunk, media_ports(1_000), "");
    let border = border(&folder, &text, sip);
    let scenario = |name: &str| {
        let file = root().join("crates/hornwork/tests/sipp").join(name);
        file.canonicalize().expect("scenario").display().to_string()
    };
    let uas = ["-sf", &scenario("uas-rules.xml")];
    let mut uas = sipp(&folder, "uas", trunk, &uas).at_port(trunk);
    let target = format!("127.0.0.1:{sip}");
    let mut uac = sipp(
        &folder,
        "uac",
        sip + 1,
        &["-sf", &scenario("uac-rules.xml"), &target],
    );
    let good = uac.wait(Duration::from_secs(30)) == Some(true)
        && uas.wait(Duration::from_secs(30)) == Some(true);
    let errors = |name: &str| {
        std::fs::read_to_string(folder.join(format!("{name}.err"))).unwrap_or_default()
    };
    assert!(
        good,
        "caller: {}\ncallee: {}\nborder: {}",
        errors("uac"),
        errors("uas"),
        border.log()
    );
}
