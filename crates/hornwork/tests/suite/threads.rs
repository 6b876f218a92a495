//! `[threads]`: what the kernel says of a running border's threads and memory; and what is said where the rights are missing.

use crate::common;

use common::{Process, free_port, installed, media_ports, scratch};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hornwork");

fn configuration(folder: &Path, threads: &str) -> PathBuf {
    let port = free_port();
    let (first, last) = media_ports(4);
    let path = folder.join("border.toml");
    let text = format!(
        "[threads]\n{threads}\n[[interface]]\nname = \"here\"\nlisten = [\"udp:127.0.0.1:{port}\"]\n\
         media = {{ address = \"127.0.0.1\", ports = \"{first}-{last}\" }}\n[[trunk]]\nname = \"there\"\ninterface = \"here\"\n\
         target = \"udp:127.0.0.1:9\"\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// A border that has said what it listens on.
fn running(command: &mut Command, folder: &Path) -> Process {
    let process = Process::start(command, &folder.join("border.log"));
    let begun = Instant::now();
    while !process.said().contains("what=\"sip udp\"") {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{}",
            process.said()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    process
}

/// A line of what the kernel says of the process.
fn status(process: u32, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.unwrap_or_default().trim().to_owned()
}

/// The scheduling policy of the first thread: field 41 of stat(5); 1 is SCHED_FIFO.
fn policy(process: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let behind = text.rsplit_once(')').unwrap().1;
    behind.split_whitespace().nth(38).unwrap().to_owned()
}

#[test]
fn what_the_rights_allow_is_so_and_is_said() {
    let folder = scratch("threads-auto");
    let allowed = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = allowed
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let first: String = allowed
        .unwrap()
        .trim()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    let threads = format!(
        "realtime = \"auto\"\npriority = 7\nlock_memory = \"auto\"\nprocessors = [{first}]"
    );
    let path = configuration(&folder, &threads);
    let process = running(
        Command::new(PROGRAM).args(["run", "-c"]).arg(&path),
        &folder,
    );
    let said = process.said();
    let line = |what: &str| {
        let found = said
            .lines()
            .find(|line| line.contains("threads_set") && line.contains(what));
        found.unwrap_or_else(|| panic!("{what}: {said}")).to_owned()
    };
    let done = |line: &str| line.contains("done=true");
    let id = process.id();
    let fifo = line("what=realtime");
    assert_eq!(done(&fifo), policy(id) == "1", "{fifo}");
    assert_eq!(
        done(&fifo),
        fifo.contains("SCHED_FIFO, priority 7"),
        "{fifo}"
    );
    let memory = line("what=memory");
    assert_eq!(done(&memory), status(id, "VmLck:") != "0 kB", "{memory}");
    if !done(&fifo) || !done(&memory) {
        eprintln!("in part: no rights here for SCHED_FIFO or locked memory: {fifo} {memory}");
    }
    assert!(done(&line("what=processors")));
    assert_eq!(status(id, "Cpus_allowed_list:"), first);
}

#[test]
fn nothing_is_asked_of_the_machine_unless_wanted() {
    let folder = scratch("threads-never");
    let path = configuration(&folder, "");
    let process = running(
        Command::new(PROGRAM).args(["run", "-c"]).arg(&path),
        &folder,
    );
    assert_eq!(policy(process.id()), "0");
    assert_eq!(status(process.id(), "VmLck:"), "0 kB");
    assert!(!process.said().contains("threads_set"));
}

/// Without the rights `require` is no start, and `auto` one that says what is missing.
#[test]
fn what_is_required_and_cannot_be_is_no_start() {
    let bare = ["--bounding-set=-all", "--inh-caps=-all"];
    if !installed(&["setpriv"]) {
        return;
    }
    let able = Command::new("setpriv").args(bare).arg("true").output();
    if !able.is_ok_and(|said| said.status.success()) {
        eprintln!("skipped: no right to drop capabilities (root)");
        return;
    }
    let folder = scratch("threads-require");
    for key in ["realtime", "lock_memory"] {
        let path = configuration(&folder, &format!("{key} = \"require\""));
        let said = Command::new("setpriv")
            .args(bare)
            .arg("prlimit")
            .args(["--rtprio=0", "--memlock=65536"])
            .arg(PROGRAM)
            .args(["run", "-c"])
            .arg(&path)
            .output()
            .unwrap();
        let why = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(3), "{why}");
        assert!(
            why.contains(&format!("[threads] {key} cannot be had")),
            "{why}"
        );
        assert!(why.contains("goes without"), "{why}");
    }
    let path = configuration(&folder, "realtime = \"auto\"\nlock_memory = \"auto\"");
    let process = running(
        Command::new("setpriv")
            .args(bare)
            .arg("prlimit")
            .args(["--rtprio=0", "--memlock=65536"])
            .arg(PROGRAM)
            .args(["run", "-c"])
            .arg(&path),
        &folder,
    );
    let said = process.said();
    assert_eq!(said.matches("done=false").count(), 2, "{said}");
}

#[test]
fn mistakes_are_named() {
    let folder = scratch("threads-mistakes");
    for (threads, what) in [
        ("processors = [0, 1]", "2 processors for 1 threads"),
        ("priority = 99", "`priority` is 99"),
        ("realtime = \"perhaps\"", "realtime"),
    ] {
        let path = configuration(&folder, threads);
        let said = Command::new(PROGRAM)
            .args(["check", "-c"])
            .arg(&path)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
        assert_eq!(said.status.code(), Some(2), "{text}");
        assert!(text.contains(what), "{text}");
    }
    // A processor that this machine does not have is no mistake of the file's, but no start.
    let path = configuration(&folder, "processors = [65000]");
    let said = Command::new(PROGRAM)
        .args(["run", "-c"])
        .arg(&path)
        .output()
        .unwrap();
    let why = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(said.status.code(), Some(3), "{why}");
    assert!(why.contains("may not use processor 65000"), "{why}");
}
