//! SIPp scenarios over TLS: our player against itself, with a trusted and with an untrusted certificate.

use crate::common;

use common::{Process, free_port, root, scratch};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const CALLS: &str = "50";

fn player(folder: &Path, scenario: &str, arguments: &[&str], log: &str) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hornwork"));
    command
        .current_dir(folder)
        .args(["lab", "run"])
        .arg(root().join("scenarios/sipp").join(scenario))
        .args(["-t", "tls", "--calls", CALLS])
        .args(arguments);
    Process::start(&mut command, &folder.join(log))
}

#[test]
fn calls_succeed_over_tls_and_untrusted_certificate_ends_the_run() {
    let folder = scratch("scenario-tls");
    for name in ["here", "elsewhere"] {
        let made =
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("certificate");
        std::fs::write(folder.join(format!("{name}.pem")), made.cert.pem()).expect("file");
        std::fs::write(
            folder.join(format!("{name}.key")),
            made.signing_key.serialize_pem(),
        )
        .expect("file");
    }
    let at = format!("127.0.0.1:{}", free_port());
    let ours = [
        "--local",
        &at,
        "--tls-cert",
        "here.pem",
        "--tls-key",
        "here.key",
    ];
    let mut callee = player(&folder, "uas.xml", &ours, "callee.log");
    let ready = std::time::Instant::now();
    while std::net::TcpStream::connect(&at).is_err() && ready.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let trusting = |authority| {
        [
            at.as_str(),
            "--rate",
            "50",
            "--tls-ca",
            authority,
            "--tls-name",
            "localhost",
        ]
    };
    let mut stranger = player(
        &folder,
        "uac.xml",
        &trusting("elsewhere.pem"),
        "stranger.log",
    );
    assert_eq!(stranger.wait(Duration::from_secs(30)), Some(false));
    assert!(stranger.log().contains("certificate"), "{}", stranger.log());
    let mut caller = player(&folder, "uac.xml", &trusting("here.pem"), "caller.log");
    let done = caller.wait(Duration::from_secs(60));
    assert_eq!(done, Some(true), "{}", caller.log());
    assert!(
        caller.log().contains("50 successful, 0 failed"),
        "{}",
        caller.log()
    );
    let done = callee.wait(Duration::from_secs(60));
    assert_eq!(done, Some(true), "{}", callee.log());
}
