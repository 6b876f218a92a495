//! The HTTP API of the console under schemathesis: requests that it generates from our OpenAPI document, valid and
//! invalid, in each role. All its checks apply: status codes, content types and schemas of responses, refusal of
//! invalid data, acceptance of valid data, methods, authentication, objects that were removed.

use crate::common::{Process, installed, root};
use crate::web::{Rig, TOKENS, entries, until, users};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Number of requests of each kind for an operation, at most. With one, the default, there is one run, as admin, of
/// some 20 s; a search before a release takes 10, in each role.
const EXAMPLES: &str = "HORNWORK_SCHEMATHESIS_EXAMPLES";
/// Requests of a run, at least: fewer mean that it did not test.
const LEAST: u64 = 300;
/// Longest run with one example of each kind, on a machine that is busy with other work: it takes some 20 s on two
/// cores.
const LIMIT: Duration = Duration::from_secs(300);
/// A body beyond 8 KiB is refused for its size, before its content is read.
const CONFIGURATION: &str = "[checks.negative_data_rejection]\n\
    expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429]\n";

/// The number before this word in a log.
fn figure(log: &str, word: &str) -> u64 {
    let at = log.find(word).unwrap_or_else(|| panic!("no {word}: {log}"));
    let number = log[..at].split_whitespace().next_back();
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// schemathesis: that of `make peers`, or one on PATH.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let of_peers = root().join("target/schemathesis/bin");
    let folders = std::iter::once(of_peers).chain(std::env::split_paths(&path));
    folders
        .map(|folder| folder.join("schemathesis"))
        .find(|file| file.is_file())
}

#[test]
fn schemathesis_finds_no_fault_in_the_api() {
    let Some(program) = program() else {
        // Python's registry has it, not Debian: a machine without that registry skips the test.
        eprintln!("skipped: no schemathesis in target/schemathesis or on PATH (make peers)");
        return;
    };
    let examples = std::env::var(EXAMPLES).unwrap_or_else(|_| "1".to_owned());
    let each: u32 = examples.parse().expect(EXAMPLES);
    if !installed(&["sipp"]) {
        return;
    }
    // schemathesis sends wrong tokens too.
    let rig = Rig::new(
        "web-schemathesis",
        &format!("login_failures = 0\n{}", users()),
    );
    let _callee = rig.callee();
    let mut calls = rig.calls(12, 300);
    assert_eq!(calls.wait(Duration::from_secs(30)), Some(true));
    let token = |role: &str| {
        let (_, token) = TOKENS.iter().find(|(name, _)| *name == role).expect("role");
        format!("Authorization: Bearer {token}")
    };
    until("all calls are in the store", || {
        let header = format!("{}\r\n", token("admin"));
        let page = rig.with("GET", "/api/v1/calls?outcome=answered", &header, "");
        (entries(&page.json(), "calls").len() == 12).then_some(())
    });
    std::fs::write(rig.folder.join("schemathesis.toml"), CONFIGURATION).expect("configuration");
    let document = format!("http://127.0.0.1:{}/api/v1/openapi.json", rig.http);
    let roles = TOKENS.iter().map(|(role, _)| *role);
    for role in roles.filter(|role| each > 1 || *role == "admin") {
        let mut command = Command::new(&program);
        command
            .current_dir(&rig.folder)
            .args(["run", &document, "--header", &token(role)])
            .args(["--max-examples", &examples, "--seed", "1"])
            .args(["--checks", "all", "--continue-on-failure", "--no-color"])
            .args(["--generation-database", "none"])
            // Below the limit of the console for one source.
            .args(["--rate-limit", "95/s", "--request-timeout", "20"])
            // It does not end; `operators_see_and_change_the_border` reads it.
            .args(["--exclude-path", "/api/v1/live/stream"])
            .stdin(Stdio::null());
        if role == "admin" {
            // It ends the border.
            command.args(["--exclude-path", "/api/v1/drain"]);
        }
        let log = rig.folder.join(format!("schemathesis-{role}.log"));
        let mut run = Process::start(&mut command, &log);
        let done = run.wait(LIMIT * each);
        assert_eq!(done, Some(true), "{role}: {}", run.log());
        let requests = figure(&run.log(), " generated");
        println!("{role}: {requests} requests");
        assert!(requests >= LEAST, "{role}: {}", run.log());
    }
    assert!(!rig.border.log().contains("panicked"));
}
