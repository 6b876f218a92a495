//! SIPp on both sides of the border: its built-in scenarios at rate, and the shared scenarios one by one.

use crate::common;

use common::{
    Process, border, example, free_port, installed, media_ports, root, scratch, testdata,
};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A SIPp process on loopback.
pub(crate) fn sipp(folder: &Path, name: &str, port: u16, arguments: &[&str]) -> Process {
    Process::start(
        Command::new("sipp")
            .current_dir(folder)
            .args([
                "-i",
                "127.0.0.1",
                "-p",
                &port.to_string(),
                "-nostdin",
                "-buff_size",
                "4000000",
            ])
            .args(["-trace_err", "-error_file", &format!("{name}.err")])
            .args(arguments)
            .stdin(Stdio::null()),
        &folder.join(format!("{name}.log")),
    )
}

/// The errors that SIPp logged, for failure messages.
fn errors(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(format!("{name}.err"))).unwrap_or_default()
}

#[test]
fn ten_thousand_calls_at_a_thousand_a_second() {
    if !installed(&["sipp"]) {
        return;
    }
    for (name, file) in [
        ("sipp-bypass", "loopback-bypass.toml"),
        ("sipp-anchor", "loopback.toml"),
    ] {
        let folder = scratch(name);
        let (sip, trunk) = (free_port(), free_port());
        // A stalled machine has more calls up at a time than the price of media admits.
        let more = "[limits]\ncpu_percent = 100000\n";
        let text = example(file, sip, trunk, media_ports(2_000), more);
        let _border = border(&folder, &text, sip);
        let _uas = sipp(&folder, "uas", trunk, &["-sn", "uas", "-l", "8000"]).at_port(trunk);
        let target = format!("127.0.0.1:{sip}");
        let mut uac = sipp(
            &folder,
            "uac",
            sip + 1,
            &[
                "-sn", "uac", &target, "-r", "1000", "-m", "10000", "-l", "8000",
            ],
        );
        let ended = uac.wait(Duration::from_secs(60));
        assert_eq!(
            ended,
            Some(true),
            "{file}: {}\n{}",
            uac.log()
                .lines()
                .rev()
                .take(40)
                .collect::<Vec<_>>()
                .join("\n"),
            errors(&folder, "uac")
        );
    }
}

/// Source of a scenario.
enum Source {
    Shared(&'static str),
    Own(&'static str),
    BuiltIn(&'static str),
    /// Our caller that expects this final status.
    Expect(u16),
}

use Source::{BuiltIn, Expect, Own, Shared};

/// Caller, callee; no callee if the border answers by itself. Of the shared ones registrations with digest are
/// excluded, since they need a SIPp with digest support.
const CASES: &[(&str, Source, Option<Source>)] = &[
    (
        "cancel",
        Shared("drachtio_drachtio-srf/uac-cancel.xml"),
        Some(Shared("drachtio_drachtio-srf/uas-cancel.xml")),
    ),
    (
        "cancel-2",
        Shared("thevoiceguy_siphon-rs/cancel.xml"),
        Some(Shared("drachtio_drachtio-srf/uas-cancel.xml")),
    ),
    (
        "delayed-ack",
        Shared("drachtio_drachtio-srf/uac-delayed-ack.xml"),
        Some(Own("uas-reinvite.xml")),
    ),
    (
        "480",
        Shared("drachtio_drachtio-srf/uac-expect-480.xml"),
        Some(Own("uas-480.xml")),
    ),
    (
        "no-sdp",
        Shared("drachtio_drachtio-srf/uac-nosdp.xml"),
        Some(BuiltIn("uas")),
    ),
    (
        "prack",
        Shared("drachtio_drachtio-srf/uac-prack.xml"),
        Some(Own("uas-prack.xml")),
    ),
    (
        "prack-2",
        Shared("thevoiceguy_siphon-rs/prack.xml"),
        Some(Own("uas-prack.xml")),
    ),
    (
        "prack-twice",
        Own("uac-prack-twice.xml"),
        Some(Own("uas-prack-twice.xml")),
    ),
    (
        "reinvited",
        Shared("drachtio_drachtio-srf/uac-recv-reinvite.xml"),
        Some(Own("uas-reinvite-bye.xml")),
    ),
    (
        "plain",
        Shared("drachtio_drachtio-srf/uac.xml"),
        Some(BuiltIn("uas")),
    ),
    (
        "302",
        Expect(302),
        Some(Shared("drachtio_drachtio-srf/uas-302.xml")),
    ),
    (
        "404",
        Expect(404),
        Some(Shared("drachtio_drachtio-srf/uas-404.xml")),
    ),
    (
        "basic",
        Shared("saghul_sipp-scenarios/sipp_uac_basic.xml"),
        Some(Shared("saghul_sipp-scenarios/sipp_uas_basic.xml")),
    ),
    (
        "late-offer",
        Shared("saghul_sipp-scenarios/sipp_uac_late_offer.xml"),
        Some(BuiltIn("uas")),
    ),
    (
        "options",
        Shared("saghul_sipp-scenarios/sipp_uac_options.xml"),
        None,
    ),
    (
        "options-2",
        Shared("thevoiceguy_siphon-rs/options.xml"),
        None,
    ),
    (
        "hold",
        Shared("saghul_sipp-scenarios/sipp_uac_hold.xml"),
        Some(Own("uas-any.xml")),
    ),
    (
        "proxy-invite-bye",
        Shared("thevoiceguy_siphon-rs/proxy_invite_bye.xml"),
        Some(Shared("thevoiceguy_siphon-rs/uas_invite.xml")),
    ),
    (
        "info",
        Shared("thevoiceguy_siphon-rs/info.xml"),
        Some(Own("uas-any.xml")),
    ),
    (
        "invite-bye",
        Shared("thevoiceguy_siphon-rs/invite_bye.xml"),
        Some(Shared("thevoiceguy_siphon-rs/uas_invite.xml")),
    ),
    (
        "max-forwards",
        Shared("thevoiceguy_siphon-rs/max_forwards_zero.xml"),
        None,
    ),
    (
        "message",
        Shared("thevoiceguy_siphon-rs/message.xml"),
        Some(Own("uas-message.xml")),
    ),
    (
        "subscribe",
        Shared("thevoiceguy_siphon-rs/subscribe_notify.xml"),
        Some(Own("uas-subscribe.xml")),
    ),
    (
        "register",
        Shared("thevoiceguy_siphon-rs/register.xml"),
        None,
    ),
    (
        "re-invite",
        Shared("thevoiceguy_siphon-rs/reinvite.xml"),
        Some(Own("uas-any.xml")),
    ),
    (
        "session-timer",
        Shared("thevoiceguy_siphon-rs/session_timer.xml"),
        Some(Own("uas-any.xml")),
    ),
    (
        "update",
        Shared("thevoiceguy_siphon-rs/update.xml"),
        Some(Own("uas-any.xml")),
    ),
];

/// Callers that end without BYE: their callee's scenario does not end.
const LEFT_OPEN: [&str; 2] = ["session-timer", "update"];

/// Converts a source to SIPp's arguments.
fn scenario(source: &Source, data: &Path, folder: &Path) -> Vec<String> {
    let own = root().join("crates/hornwork/tests/sipp");
    let file = |path: PathBuf| vec!["-sf".to_owned(), path.display().to_string()];
    match source {
        Shared(name) => file(data.join("sipp").join(name)),
        Own(name) => file(own.join(name)),
        BuiltIn(name) => vec!["-sn".to_owned(), (*name).to_owned()],
        Expect(status) => {
            let text = std::fs::read_to_string(own.join("uac-expect.xml")).expect("scenario");
            let path = folder.join("uac-expect.xml");
            std::fs::write(&path, text.replace("STATUS", &status.to_string())).expect("scenario");
            file(path)
        }
    }
}

/// The border supervises a trunk with OPTIONS.
#[test]
fn trunk_is_pinged() {
    let Some(data) = testdata() else { return };
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch("sipp-ping");
    let (sip, trunk) = (free_port(), free_port());
    let configuration = example("loopback.toml", sip, trunk, media_ports(100), "").replace(
        &format!("target = \"udp:127.0.0.1:{trunk}\""),
        &format!("target = \"udp:127.0.0.1:{trunk}\"\nping = 1"),
    );
    let border = border(&folder, &configuration, sip);
    let source = Shared("drachtio_drachtio-srf/uas-options-expect-200.xml");
    let list = scenario(&source, &data, &folder);
    let list: Vec<&str> = list
        .iter()
        .map(String::as_str)
        .chain(["-m", "2", "-l", "10", "-timeout", "20s"])
        .collect();
    let mut uas = sipp(&folder, "ping", trunk, &list);
    assert_eq!(
        uas.wait(Duration::from_secs(30)),
        Some(true),
        "{}\n{}",
        errors(&folder, "ping"),
        border.log()
    );
}

#[test]
fn shared_scenarios() {
    let Some(data) = testdata() else { return };
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch("sipp-scenarios");
    let (sip, trunk) = (free_port(), free_port());
    // Registrations are accepted without authentication: the scenario has no digest.
    let configuration = example("loopback.toml", sip, trunk, media_ports(1_000), "").replace(
        "kind = \"access\"",
        "kind = \"access\"\nregister = \"local\"",
    );
    let border = border(&folder, &configuration, sip);
    // A scenario plays a file relative to its working directory.
    std::fs::copy(
        data.join("captures/rtp/sipp-g711a.pcap"),
        folder.join("g711a.pcap"),
    )
    .expect("the capture");
    let mut failures = Vec::new();
    for (name, caller, callee) in CASES {
        let arguments = |source: &Source| scenario(source, &data, &folder);
        let mut uas = callee.as_ref().map(|source| {
            let list = arguments(source);
            let list: Vec<&str> = list
                .iter()
                .map(String::as_str)
                .chain(["-m", "1", "-l", "10", "-timeout", "20s"])
                .collect();
            sipp(&folder, &format!("{name}-uas"), trunk, &list).at_port(trunk)
        });
        let list = arguments(caller);
        let target = format!("127.0.0.1:{sip}");
        // The one scenario that reads its target from a file.
        std::fs::write(
            folder.join("target.csv"),
            format!("SEQUENTIAL\n127.0.0.1;{sip}\n"),
        )
        .expect("a file");
        let list: Vec<&str> = [
            target.as_str(),
            "-inf",
            "target.csv",
            "-m",
            "1",
            "-l",
            "10",
            "-d",
            "300",
            "-timeout",
            "15s",
        ]
        .into_iter()
        .chain(list.iter().map(String::as_str))
        .collect();
        let mut uac = sipp(&folder, &format!("{name}-uac"), sip + 1, &list);
        let good = uac.wait(Duration::from_secs(30)) == Some(true);
        let callee_good = LEFT_OPEN.contains(name)
            || uas
                .as_mut()
                .is_none_or(|uas| uas.wait(Duration::from_secs(30)) == Some(true));
        if !good || !callee_good {
            failures.push(format!(
                "{name}: caller {good}, callee {callee_good} {}\n{}",
                errors(&folder, &format!("{name}-uac")),
                errors(&folder, &format!("{name}-uas"))
            ));
        }
        drop(uas.take());
    }
    assert!(
        failures.is_empty(),
        "{} of {} failed:\n{}\nborder: {}",
        failures.len(),
        CASES.len(),
        failures.join("\n"),
        border.log()
    );
}
