//! `--subject`, `hornwork lab subjects` and `hornwork lab agent` with the real program, an agent also in another
//! network namespace.

use crate::common;

use common::certificates::Authority;
use common::{Process, free_port, installed, scratch};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hornwork");
/// A short level of `call-rate`.
const SHORT: [&str; 14] = [
    "--set",
    "levels=",
    "--set",
    "study=",
    "--set",
    "thresholds.figure=",
    "--set",
    "thresholds.response_p99_ms=",
    "--set",
    "callers.rate=20",
    "--set",
    "callers.duration_seconds=1",
    "--set",
    "callers.hold_seconds=0.3",
];

fn lab(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(PROGRAM)
        .arg("lab")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("hornwork")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn record(folder: &Path) -> Value {
    let text = std::fs::read(folder.join("out/run.json")).expect("run.json");
    serde_json::from_slice(&text).expect("JSON")
}

/// Checks that all calls of [`SHORT`] went through the border.
fn assert_measured(folder: &Path, output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let run = record(folder);
    let trial = &run["trials"][0];
    assert_eq!(trial["figures"]["calls"]["completed"], 20, "{trial:#}");
    assert!(trial["surroundings"]["subject_cpu_seconds"].is_number());
    run
}

#[test]
fn subjects_are_listed_and_bad_ones_refused() {
    let folder = scratch("subjects-listed");
    std::fs::create_dir(folder.join("subjects")).unwrap();
    let own = lab(&folder, &["subjects", "kamailio"]);
    let own = text(&own.stdout).replace("name = \"kamailio\"\ntitle", "name = \"mine\"\ntitle");
    std::fs::write(folder.join("subjects/mine.toml"), own).unwrap();
    std::fs::write(folder.join("subjects/bad.toml"), "name = 1\n").unwrap();
    let listed = text(&lab(&folder, &["subjects"]).stdout);
    for name in [
        "asterisk",
        "freeswitch",
        "hornwork",
        "kamailio",
        "mine",
        "rtpengine",
        "sipp",
    ] {
        assert!(
            listed.lines().any(|line| line.starts_with(name)),
            "{name}: {listed}"
        );
    }
    assert!(
        listed.contains("bad.toml") && listed.contains("mistake"),
        "{listed}"
    );
    let refused = lab(
        &folder,
        &["run", "call-rate", "--subject", "subjects/bad.toml"],
    );
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("subjects/bad.toml:1:"));
    // The file of Asterisk with a program that no machine has.
    let own = lab(&folder, &["subjects", "asterisk"]);
    let own = text(&own.stdout).replace("program = \"asterisk\"", "program = \"no-such-pbx\"");
    std::fs::write(folder.join("subjects/absent.toml"), own).unwrap();
    let file = "subjects/absent.toml";
    let refused = lab(&folder, &["run", "call-rate", "--subject", file]);
    assert_eq!(refused.status.code(), Some(3));
    let why = text(&refused.stderr);
    assert!(why.contains("not installed: no-such-pbx"), "{why}");
}

#[test]
fn border_is_measured_as_a_process_of_its_own() {
    let folder = scratch("subjects-border");
    let line = ["run", "call-rate", "--subject", "hornwork", "--out", "out"];
    let output = lab(&folder, &[&line[..], &SHORT[..]].concat());
    let run = assert_measured(&folder, &output);
    assert!(run["subject"].as_str().unwrap().starts_with("hornwork: "));
    assert!(run["trials"][0]["surroundings"]["subject_grew_bytes"].is_number());
}

/// An agent with a token.
struct Agent {
    process: Process,
    token: PathBuf,
    address: String,
}

impl Agent {
    fn start(folder: &Path, before: &[&str], ip: &str) -> Agent {
        Agent::start_with(folder, before, ip, &[])
    }

    fn start_with(folder: &Path, before: &[&str], ip: &str, more: &[&str]) -> Agent {
        let token = folder.join("token");
        std::fs::write(&token, "a token for this test only\n").unwrap();
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
        let address = format!("{ip}:{}", free_port());
        let words = [
            before,
            &[
                PROGRAM,
                "lab",
                "agent",
                "--listen",
                &address,
                "--token-file",
            ],
        ]
        .concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(&token).args(more);
        command.stdin(Stdio::null());
        let process = Process::start(&mut command, &folder.join("agent.log"));
        let agent = Agent {
            process,
            token,
            address,
        };
        agent.until("listening at");
        agent
    }

    fn until(&self, word: &str) {
        let end = Instant::now() + Duration::from_secs(20);
        while !self.process.log().contains(word) {
            assert!(Instant::now() < end, "{word}: {}", self.process.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn arguments<'a>(&'a self, subject: &'a str, token: &'a Path) -> Vec<&'a str> {
        let token = token.to_str().unwrap();
        let line = [
            "run",
            "call-rate",
            "--subject",
            subject,
            "--agent-token-file",
            token,
        ];
        [&line[..], &["--out", "out"], &SHORT[..]].concat()
    }
}

#[test]
fn agent_starts_subjects_for_owners_of_its_token() {
    let folder = scratch("subjects-agent");
    let agent = Agent::start(&folder, &[], "127.0.0.1");
    let subject = format!("hornwork@{}", agent.address);
    let output = lab(&folder, &agent.arguments(&subject, &agent.token));
    let run = assert_measured(&folder, &output);
    assert!(run["subject"].as_str().unwrap().ends_with(&agent.address));
    // The machine of the subject is that of the agent, which is the same one here.
    assert_eq!(run["subject_machine"], run["machine"]);
    let page = std::fs::read_to_string(folder.join("out/report.html")).unwrap();
    for words in [
        "Machine of the generator",
        "Machine of the system under test",
    ] {
        assert!(page.contains(words), "{words}");
    }
    // A wrong token.
    let wrong = folder.join("wrong");
    std::fs::write(&wrong, "another token for this test").unwrap();
    let open = lab(&folder, &agent.arguments(&subject, &wrong));
    assert!(text(&open.stderr).contains("can be read by others"));
    std::fs::set_permissions(&wrong, std::fs::Permissions::from_mode(0o600)).unwrap();
    let refused = lab(&folder, &agent.arguments(&subject, &wrong));
    assert_eq!(refused.status.code(), Some(3));
    assert!(
        text(&refused.stderr).contains("the token is wrong"),
        "{}",
        text(&refused.stderr)
    );
    // The earlier results are still there.
    assert_eq!(record(&folder)["trials"].as_array().unwrap().len(), 1);
    // No command, and no file beside the agent's folder.
    let other = format!("../../etc/x@{}", agent.address);
    let refused = lab(&folder, &agent.arguments(&other, &agent.token));
    assert_eq!(refused.status.code(), Some(3));
    assert!(
        text(&refused.stderr).contains("no subject"),
        "{}",
        text(&refused.stderr)
    );
    // An unknown source gets a greeting and nothing else; after some wrong proofs it is refused at once.
    for _ in 0..8 {
        let mut unknown = TcpStream::connect(&agent.address).unwrap();
        unknown
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let _ = unknown.write_all(&[b'x'; 4_096]);
        let mut heard = Vec::new();
        let _ = unknown.read_to_end(&mut heard);
        assert!(heard.len() <= 48, "{}", heard.len());
    }
    agent.until("too many failed authentications from this source");
    let refused = lab(&folder, &agent.arguments(&subject, &agent.token));
    assert_eq!(refused.status.code(), Some(3));
}

/// Connections without a word have two places, for the five seconds of an authentication.
#[test]
fn silent_connections_do_not_occupy_an_agent() {
    let folder = scratch("subjects-silent");
    let agent = Agent::start(&folder, &[], "127.0.0.1");
    let connect = || {
        let stream = TcpStream::connect(&agent.address).unwrap();
        let wait = Some(Duration::from_secs(20));
        stream.set_read_timeout(wait).unwrap();
        stream
    };
    let mut silent: Vec<TcpStream> = (0..3).map(|_| connect()).collect();
    agent.until("too many connections without authentication from this source");
    for stream in &mut silent {
        let _ = stream.read_to_end(&mut Vec::new());
    }
    agent.until("no message in time");
    let subject = format!("hornwork@{}", agent.address);
    let output = lab(&folder, &agent.arguments(&subject, &agent.token));
    assert_measured(&folder, &output);
    // Silence is a failed authentication.
    for _ in 0..2 {
        let mut pair = [connect(), connect()];
        for stream in &mut pair {
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
    let refused = lab(&folder, &agent.arguments(&subject, &agent.token));
    assert_eq!(refused.status.code(), Some(3));
    agent.until("too many failed authentications from this source");
}

#[test]
fn end_of_agent_or_subject_has_a_clear_outcome() {
    let folder = scratch("subjects-ends");
    std::fs::create_dir(folder.join("subjects")).unwrap();
    let own = text(&lab(&folder, &["subjects", "hornwork"]).stdout);
    let own = own.replace("name = \"hornwork\"", "name = \"mine\"");
    std::fs::write(folder.join("subjects/mine.toml"), own).unwrap();
    let subjects = folder.join("subjects");
    let words = ["env", "-C", folder.to_str().unwrap()];
    assert!(subjects.is_dir());
    let agent = Agent::start(&folder, &words, "127.0.0.1");
    let subject = format!("mine@{}", agent.address);
    for (kills_agent, code, expected) in [
        (false, 1, "ended by itself (signal: 9"),
        (true, 3, "agent "),
    ] {
        let started = agent.process.log().matches("started mine").count();
        let mut arguments = agent.arguments(&subject, &agent.token);
        arguments.extend(["--force", "--set", "callers.duration_seconds=20"]);
        let running = Command::new(PROGRAM)
            .arg("lab")
            .args(&arguments)
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Beside other tests, the test lab takes long to begin.
        let end = Instant::now() + Duration::from_secs(60);
        while agent.process.log().matches("started mine").count() == started {
            assert!(Instant::now() < end, "{}", agent.process.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(600));
        let children = format!("/proc/{0}/task", agent.process.id());
        match kills_agent {
            true => agent.process.signal("KILL"),
            false => {
                for child in children_of(Path::new(&children)) {
                    let _ = Command::new("kill").args(["-KILL", &child]).status();
                }
            }
        }
        let output = running.wait_with_output().unwrap();
        let all = text(&output.stderr) + &text(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{all}");
        let recorded = match kills_agent {
            true => all.clone(),
            false => record(&folder)["trials"][0]["remarks"].to_string(),
        };
        assert!(recorded.contains(expected), "{recorded}\n{all}");
    }
}

#[test]
fn agent_with_tls_is_checked_by_the_authority() {
    let folder = scratch("subjects-agent-tls");
    let authority = Authority::new(&folder, "ca");
    Authority::new(&folder, "other");
    authority.issue_address("agent", [127, 0, 0, 1].into());
    let file = |name: &str| folder.join(name).display().to_string();
    let (chain, key) = (file("agent.pem"), file("agent.key"));
    let options = ["--tls-certificate", &chain, "--tls-key", &key];
    let agent = Agent::start_with(&folder, &[], "127.0.0.1", &options);
    agent.until("with TLS");
    let subject = format!("hornwork@{}", agent.address);
    let (ca, other) = (file("ca.pem"), file("other.pem"));
    let run = |more: &[&str]| {
        let arguments = [&agent.arguments(&subject, &agent.token)[..], more].concat();
        lab(&folder, &arguments)
    };
    assert_measured(&folder, &run(&["--agent-ca-file", &ca]));
    // Another authority, and no TLS.
    let refused = run(&["--agent-ca-file", &other, "--force"]);
    let why = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(3), "{why}");
    assert!(
        why.contains("TLS: ") && why.contains("--agent-ca-file"),
        "{why}"
    );
    let refused = run(&["--force"]);
    let why = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(3), "{why}");
    assert!(why.contains("--agent-ca-file"), "{why}");
    // TLS towards an agent that has none.
    let plain = Agent::start(&folder, &[], "127.0.0.1");
    let subject = format!("hornwork@{}", plain.address);
    let arguments = plain.arguments(&subject, &plain.token);
    let refused = lab(
        &folder,
        &[&arguments[..], &["--agent-ca-file", &ca, "--force"]].concat(),
    );
    let why = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(3), "{why}");
    // Half of the options, and files in each other's place.
    let bad = lab(
        &folder,
        &[
            "agent",
            "--listen",
            "127.0.0.1:1",
            "--token-file",
            "token",
            "--tls-key",
            &key,
        ],
    );
    assert_eq!(bad.status.code(), Some(2));
    let bad = ["agent", "--listen", "127.0.0.1:1", "--token-file", "token"];
    let bad = lab(
        &folder,
        &[&bad[..], &["--tls-certificate", &key, "--tls-key", &chain]].concat(),
    );
    assert_eq!(bad.status.code(), Some(3), "{}", text(&bad.stderr));
}

/// Children of all threads of a process.
fn children_of(tasks: &Path) -> Vec<String> {
    let threads = std::fs::read_dir(tasks).unwrap().flatten();
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|text| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn agent_in_another_network_namespace() {
    if !installed(&["unshare", "nsenter", "ip"]) {
        return;
    }
    let folder = scratch("subjects-namespaces");
    // Two hosts, 10.9.3.1 and 10.9.3.2, and a program in the first one.
    let script = "set -e\n\
        unshare -n sleep 300 & far=$!\n\
        trap 'kill $far' EXIT\n\
        for turn in $(seq 1500); do [ \"$(readlink /proc/$far/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ] && break; sleep 0.02; done\n\
        ip link add va type veth peer name vb netns $far\n\
        ip addr add 10.9.3.1/24 dev va; ip link set va up; ip link set lo up\n\
        nsenter -t $far -n sh -ec 'ip addr add 10.9.3.2/24 dev vb; ip link set vb up; ip link set lo up'\n\
        echo 'a token for this test only' > token; chmod 600 token\n\
        nsenter -t $far -n \"$PROGRAM\" lab agent --listen 10.9.3.2:7060 --token-file token > agent.log 2>&1 & agent=$!\n\
        trap 'kill $agent $far' EXIT\n\
        for turn in $(seq 1500); do grep -q listening agent.log && break; sleep 0.02; done\n\
        \"$PROGRAM\" lab run call-rate --subject hornwork@10.9.3.2:7060 --agent-token-file token --out out \"$@\"\n";
    let able = Command::new("unshare").args(["-n", "true"]).status();
    if !able.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no right to network namespaces");
        return;
    }
    let output = Command::new("unshare")
        .args(["-n", "sh", "-c", script, "sh"])
        .args(SHORT)
        .env("PROGRAM", PROGRAM)
        .current_dir(&folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let run = assert_measured(&folder, &output);
    assert!(
        run["subject"]
            .as_str()
            .unwrap()
            .ends_with("at the agent 10.9.3.2:7060")
    );
}
