//! Debian's SIPp as a flood, against the real program, which is let run for a small part of the time only.

mod common;

use common::{Process, border, example, free_port, installed, scratch};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The flood: calls a second, and in all.
const RATE: &str = "3000";
const CALLS: &str = "12000";
/// The border runs for so long, and then stands still for so long, while the flood lasts: well within what a message may wait.
const RUNS: Duration = Duration::from_millis(3);
const STANDS: Duration = Duration::from_millis(47);
/// How long a message may wait, in milliseconds.
const QUEUE: &str = "200";
/// An overload is over five seconds after the last refusal; a call that nobody answered is sent for the last time 7.5 s after the
/// first time, here.
const CALM: Duration = Duration::from_secs(60);

/// An ACK may be lost in a full socket, and the BYE that follows means nothing to SIPp's callee then: it is sent again for 32 s.
const DRAINED: Duration = Duration::from_secs(90);

/// A process that may use a small part of a processor, for as long as this value lives.
struct Slowed {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Slowed {
    fn new(process: &Process) -> Slowed {
        let pid = Pid::from_raw(process.id() as i32).expect("a process");
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                // One that has ended is seen by who waits for its answers.
                let _ = kill_process(pid, Signal::STOP);
                std::thread::sleep(STANDS);
                let _ = kill_process(pid, Signal::CONT);
                std::thread::sleep(RUNS);
            }
        });
        Slowed {
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn sipp(folder: &Path, name: &str, port: u16, arguments: &[&str]) -> Process {
    Process::start(
        Command::new("sipp")
            .current_dir(folder)
            .args(["-i", "127.0.0.1", "-p", &port.to_string(), "-nostdin"])
            .args(["-buff_size", "4000000", "-l", "8000"])
            .args(arguments)
            .stdin(Stdio::null()),
        &folder.join(format!("{name}.log")),
    )
}

/// What SIPp counted at last, by the names of its columns; of the file whose name ends so.
fn counted(folder: &Path, end: &str) -> BTreeMap<String, u64> {
    let files = std::fs::read_dir(folder).expect("folder");
    let file = files
        .filter_map(|file| Some(file.ok()?.path()))
        .find(|path| path.to_string_lossy().ends_with(end))
        .unwrap_or_else(|| panic!("SIPp left no file {end}"));
    let text = std::fs::read_to_string(file).expect("figures");
    let mut lines = text.lines();
    let names = lines.next().expect("names").split(';');
    let values = lines.next_back().expect("figures").split(';');
    names
        .zip(values)
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect()
}

/// Whoever gets an answer gets a whole one: calls that are taken end as planned, the others are refused with a time after which
/// they may come again, or are sent again for nothing. The border sees that it is over, and takes everything again.
#[test]
fn a_flood_of_sipp_costs_no_call_that_was_answered() {
    if !installed(&["sipp"]) {
        return;
    }
    for workers in ["1", "2"] {
        let folder = scratch(&format!("flood-{workers}"));
        let (sip, trunk, caller) = (free_port(), free_port(), free_port());
        let more = format!("[sip]\nworkers = {workers}\nqueue = {QUEUE}\n");
        let text = example("loopback-bypass.toml", sip, trunk, (34000, 34999), &more)
            .replace("level = \"warn\"", "level = \"info\"");
        let mut process = border(&folder, &text, sip);
        let _uas = sipp(&folder, "uas", trunk, &["-sn", "uas"]).at_port(trunk);
        let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sipp/uac-flood.xml");
        let target = format!("127.0.0.1:{sip}");
        let arguments = [
            "-sf",
            scenario.to_str().expect("a path in UTF-8"),
            &target,
            "-r",
            RATE,
            "-m",
            CALLS,
            "-max_invite_retrans",
            "3",
            "-trace_stat",
            "-trace_counts",
        ];
        let slowed = Slowed::new(&process);
        let mut uac = sipp(&folder, "uac", caller, &arguments);
        // Callers whom nobody answers have failed, as far as SIPp is concerned.
        let ended = uac.wait(Duration::from_secs(120));
        drop(slowed);
        assert!(ended.is_some(), "SIPp does not end: {}", uac.said());
        let counts = counted(&folder, "_counts.csv");
        let count = |name: &str| counts.get(name).copied().unwrap_or_default();
        let (refused, answered) = (count("3_503_Recv"), count("4_200_Recv"));
        println!("{workers} workers: {answered} answered, {refused} refused");
        assert!(answered > 100 && refused > 100, "{counts:?}");
        for ends in ["5_ACK_Sent", "7_BYE_Sent", "8_200_Recv"] {
            assert_eq!(count(ends), answered, "{ends}: {counts:?}");
        }
        assert_eq!(count("9_ACK_Sent"), refused, "{counts:?}");
        // Nothing but silence is a failure here: no 503 without Retry-After, nothing that was not expected.
        let figures = counted(&folder, "_.csv");
        let figure = |name: &str| figures.get(name).copied().unwrap_or_default();
        assert_eq!(figure("SuccessfulCall(C)"), answered + refused);
        assert_eq!(
            figure("FailedCall(C)"),
            figure("FailedMaxUDPRetrans(C)"),
            "{figures:?}"
        );
        let end = Instant::now() + CALM;
        while !process.said().contains("overload state=ended") {
            assert!(Instant::now() < end, "no end: {}", process.said());
            std::thread::sleep(Duration::from_millis(50));
        }
        let calls = ["-sn", "uac", &target, "-r", "50", "-m", "100"];
        let mut after = sipp(&folder, "after", free_port(), &calls);
        let ended = after.wait(Duration::from_secs(60));
        assert_eq!(ended, Some(true), "{}", after.said());
        process.signal("TERM");
        assert_eq!(process.wait(DRAINED), Some(true), "{}", process.said());
        let said = process.said();
        let lines = |what: &str| said.matches(what).count() as u64;
        assert!(lines("call_answered") >= answered + 100);
        assert_eq!(lines("call_answered"), lines("call_ended"));
    }
}
