//! Header rules as an operator meets them: `hornwork rules try`, mistakes in a rule, and SIPp at both ends of a border.

use crate::common;

use common::{Process, border, example, installed, media_ports, root, scratch};
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
    let (said, shown) = (text(&output.stderr), text(&output.stdout));
    (output, said, shown)
}

#[test]
fn the_example_is_tried_on_a_message_that_comes() {
    let (output, said, shown) = attempt(&["examples/header-rules.toml"], INVITE);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("rule 1 holds: international numbers"),
        "{said}"
    );
    assert!(said.contains("tag dialled = 030123"), "{said}");
    let expected = INVITE
        .replace("INVITE sip:030123@", "INVITE sip:+4930123@")
        .replace("To: <sip:030123@", "To: <sip:+4930123@");
    assert_eq!(shown, expected);
    // As it is typed in an editor.
    let (_, _, typed) = attempt(
        &["examples/header-rules.toml"],
        &INVITE.replace("\r\n", "\n"),
    );
    assert_eq!(typed, expected);
}

#[test]
fn the_example_is_tried_on_a_message_that_leaves() {
    let (output, said, shown) = attempt(
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
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("rule 3 holds: towards the carrier"), "{said}");
    for line in [
        "User-Agent: Hornwork\r\n",
        "X-Account: acme-7\r\n",
        "X-Dialled: 030123\r\n",
        "Subject: lunch\r\n",
    ] {
        assert!(shown.contains(line), "{line} is not in\n{shown}");
    }
    assert!(!shown.contains("X-Internal"), "{shown}");
    // Towards a phone nothing of this holds.
    let (_, said, shown) = attempt(
        &["examples/header-rules.toml", "--direction", "out"],
        INVITE,
    );
    assert!(said.contains("none of 4 rules holds"), "{said}");
    assert_eq!(shown, INVITE);
}

#[test]
fn refusals_and_failures_are_told() {
    let premium = INVITE.replace("030123", "0900123");
    let (output, said, _) = attempt(&["examples/header-rules.toml"], &premium);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("refused with 603 (Premium Numbers Are Barred)"),
        "{said}"
    );
    assert!(said.contains("dialled by alice at 192.0.2.1"), "{said}");
    let folder = scratch("rules-try");
    let file = folder.join("injection.toml");
    let base = std::fs::read_to_string(root().join("examples/loopback.toml")).expect("example");
    let rule = "\n[[rules]]\ndirection = \"in\"\nwhen = 'int(from.user) > 0 || true'\ndo = [{ add = \"X-From\", value = \"${from.user}\" }]\n";
    std::fs::write(&file, format!("{base}{rule}")).expect("file");
    let path = file.display().to_string();
    let evil = INVITE.replace("sip:alice@127.0.0.1>", "sip:a%0D%0AX:%20y@127.0.0.1>");
    let (output, said, shown) = attempt(&[&path], &evil);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("left out, because the message would break: 1 changes"),
        "{said}"
    );
    assert_eq!(shown, evil);
    for (arguments, message, word) in [
        (
            &[path.as_str(), "--interface", "nowhere"][..],
            INVITE,
            "there is no interface \"nowhere\"",
        ),
        (
            &[path.as_str(), "--trunk", "nobody"][..],
            INVITE,
            "there is no trunk \"nobody\"",
        ),
        (
            &[path.as_str(), "--source", "here"][..],
            INVITE,
            "is no address",
        ),
        (&[path.as_str(), "--tag", "x"][..], INVITE, "is no tag"),
        (&[path.as_str()][..], "hello", "no SIP"),
        (
            &[path.as_str()][..],
            "BYE sip:a SIP/2.0\r\n\r\n",
            "Missing Call-ID",
        ),
        (&["nowhere.toml"][..], INVITE, "nowhere.toml"),
    ] {
        let (output, said, _) = attempt(arguments, message);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(word), "{word} is not in {said}");
    }
}

/// What engineers get wrong in a rule: its lines, the line of the mistake counted from the rule's first, what it is called, and what
/// the remedy says.
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
        "a number with a text",
        "without quotes",
    ),
    (
        "direction = \"in\"\nwhen = 'from.user == '\ndo = [{ log = \"x\" }]",
        2,
        "this is no condition",
        "write CEL",
    ),
    (
        "direction = \"in\"\nwhen = 'from.user.matches(\"(\")'\ndo = [{ log = \"x\" }]",
        2,
        "no regular expression",
        "correct it",
    ),
    (
        "direction = \"in\"\ndo = [{ set = \"Via\", value = \"x\" }]",
        2,
        "no rule may change it",
        "take the action out",
    ),
    (
        "direction = \"in\"\ndo = [{ remove = \"Call-ID\" }]",
        2,
        "no rule may change it",
        "take the action out",
    ),
    (
        "direction = \"in\"\ndo = [{ set = \"From\", value = \"<sip:a@b>\" }]",
        2,
        "carries the tag",
        "change a part of it",
    ),
    (
        "direction = \"in\"\ndo = [{ rewrite = \"From\", part = \"params.tag\", value = \"x\" }]",
        2,
        "the tag names the dialog",
        "take the action out",
    ),
    (
        "direction = \"out\"\nmethod = \"BYE\"\ndo = [{ rewrite = \"From\", part = \"user\", value = \"x\" }]",
        3,
        "is that of the dialog",
        "INVITE",
    ),
    (
        "direction = \"in\"\non = \"response\"\ndo = [{ reject = 403 }]",
        3,
        "does nothing to a response",
        "on = \"request\"",
    ),
    (
        "direction = \"in\"\nmethod = \"ACK\"\ndo = [{ reject = 403 }]",
        3,
        "ACK cannot be refused",
        "take ACK out",
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
        "what leaves has been routed",
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
        "written in capitals",
        "INVITE",
    ),
    (
        "direction = \"in\"\ndo = [{ replace = \"Subject\", regex = '(a', with = \"b\" }]",
        2,
        "no regular expression",
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
        "no expression whose group",
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
        "`add` lacks `value`",
        "add value",
    ),
    (
        "direction = \"in\"\ndo = [{ add = \"X A\", value = \"x\" }]",
        2,
        "cannot be the name of a header",
        "X-Account",
    ),
    (
        "direction = \"in\"\ndo = [{ set = \"P-Asserted-Identity\", value = \"alice\" }]",
        2,
        "cannot be the value",
        "an address",
    ),
    (
        "direction = \"in\"\ndo = [{ rewrite = \"Subject\", part = \"host\", value = \"x\" }]",
        2,
        "are no addresses",
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
        "cannot be that part",
        "1 to 65535",
    ),
    (
        "direction = \"in\"\ndo = [{ number = \"To\", form = \"e164\" }]",
        2,
        "`form` without `country`",
        "country = \"49\"",
    ),
    (
        "direction = \"in\"\ndo = [{ number = \"To\" }]",
        2,
        "says nothing to do",
        "add `form`",
    ),
    (
        "direction = \"in\"\ndo = [{ add = \"X-A\", value = \"x\", regex = \"y\" }]",
        2,
        "`add` takes no `regex`",
        "take it out",
    ),
    (
        "direction = \"in\"\ndo = [{ value = \"x\" }]",
        2,
        "does not say what to do",
        "exactly one of",
    ),
    (
        "direction = \"in\"\ndo = [{ add = \"X-A\", set = \"X-A\", value = \"x\" }]",
        2,
        "more than one thing",
        "exactly one of",
    ),
    ("direction = \"in\"", 0, "the rule does nothing", "add `do`"),
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
fn every_rule_that_cannot_work_is_refused_with_line_and_remedy() {
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
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{rule}: {said}");
        for word in [
            format!("bad.toml:{}:", first + line),
            (*message).to_owned(),
            (*remedy).to_owned(),
        ] {
            assert!(
                said.contains(&word),
                "{word} is not in what is said of\n{rule}\n{said}"
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
fn sipp_meets_the_headers_that_rules_make_at_both_ends() {
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch("rules-sipp");
    let (sip, trunk) = (5250, 5270);
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
        && uas.wait(Duration::from_secs(10)) == Some(true);
    let errors = |name: &str| {
        std::fs::read_to_string(folder.join(format!("{name}.err"))).unwrap_or_default()
    };
    assert!(
        good,
        "caller: {}\ncallee: {}\nborder: {}",
        errors("uac"),
        errors("uas"),
        border.said()
    );
}
