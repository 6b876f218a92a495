//! The store of calls and messages: a running border with SIPp, `hornwork trace`, crashes, a full disk, a blocked
//! store, and HEP with programs of others.

use crate::common;

use crate::operators::{ctl_json, metric, metrics};
use common::{Process, border, example, installed, media_ports, scratch, testdata};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longer than the time between two transactions of the store in a folder (1 s) and in a database (0.4 s).
const COMMITTED: Duration = Duration::from_millis(1_500);

/// A border with a store, and the ports and folder of a test.
pub struct Rig {
    pub folder: PathBuf,
    /// The argument of `--store`.
    pub store: PathBuf,
    pub sip: u16,
    pub trunk: u16,
    pub configuration: String,
}

impl Rig {
    /// `more` are further keys of `[store]`.
    fn new(name: &str, file: &str, more: &str) -> Rig {
        let folder = scratch(name);
        let store = folder.join("store");
        let table = format!("[store]\nfolder = \"{}\"\n{more}\n", store.display());
        Rig::with(folder, file, store, &table)
    }

    /// `table` is added to the example configuration `file`.
    pub fn with(folder: PathBuf, file: &str, store: PathBuf, table: &str) -> Rig {
        let (sip, trunk) = (common::free_port(), common::free_port());
        Rig {
            configuration: example(file, sip, trunk, media_ports(2_000), table),
            folder,
            store,
            sip,
            trunk,
        }
    }

    pub fn border(&self) -> Process {
        border(&self.folder, &self.configuration, self.sip)
    }

    fn sipp(&self, name: &str, port: u16, arguments: &[&str]) -> Process {
        let port = port.to_string();
        let log = self.folder.join(format!("{name}.log"));
        Process::start(
            Command::new("sipp")
                .current_dir(&self.folder)
                .args([
                    "-i",
                    "127.0.0.1",
                    "-p",
                    &port,
                    "-nostdin",
                    "-buff_size",
                    "4000000",
                ])
                .args(arguments)
                // Times in its logs.
                .env("TZ", "UTC")
                .stdin(Stdio::null()),
            &log,
        )
    }

    pub fn callee(&self) -> Process {
        let uas = self.sipp("uas", self.trunk, &["-sn", "uas", "-l", "8000"]);
        uas.at_port(self.trunk)
    }

    /// Starts `calls` calls at `rate` per second to the user 600.
    pub fn callers(&self, calls: u32, rate: u32) -> Process {
        let (target, calls, rate) = (
            format!("127.0.0.1:{}", self.sip),
            calls.to_string(),
            rate.to_string(),
        );
        let arguments = [
            "-sn", "uac", &target, "-s", "600", "-r", &rate, "-m", &calls, "-l", "8000",
        ];
        self.sipp("uac", self.sip + 1, &arguments)
    }

    pub fn trace(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["trace", "--store"])
            .arg(&self.store)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("hornwork trace")
    }

    /// The calls that `hornwork trace` finds.
    pub fn calls(&self, arguments: &[&str]) -> Vec<Value> {
        let all = [arguments, &["--json", "--limit", "100000"]].concat();
        let output = self.trace(&all);
        let calls: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
        calls.as_array().expect("an array").clone()
    }

    /// Waits until `hornwork trace` finds as many calls, and the same ones for a while: the last messages of a call
    /// follow its end, and may be in the next transaction.
    pub fn await_calls(&self, arguments: &[&str], count: usize) -> Vec<Value> {
        let until = Instant::now() + Duration::from_secs(60);
        let (mut before, mut changed) = (Vec::new(), Instant::now());
        loop {
            let calls = self.calls(arguments);
            let now = Instant::now();
            if calls != before {
                (before, changed) = (calls, now);
            }
            let is_settled = before.len() == count && now - changed > COMMITTED;
            if is_settled || now > until {
                assert_eq!(before.len(), count, "{arguments:?}");
                return before;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits until the log of a border has this text.
pub fn await_log(process: &Process, expected: &str) -> String {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let log = process.log();
        if log.contains(expected) {
            return log;
        }
        assert!(Instant::now() < until, "no {expected} in {log}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The number of SIP messages that tshark sees in a capture.
pub fn tshark(file: &Path) -> usize {
    let output = Command::new("tshark")
        .args([
            "-r",
            &file.display().to_string(),
            "-Y",
            "sip",
            "-T",
            "fields",
            "-e",
            "sip.Call-ID",
        ])
        .output()
        .expect("tshark");
    text(&output.stdout).lines().count()
}

#[test]
fn calls_are_found_with_both_legs() {
    if !installed(&["sipp"]) {
        return;
    }
    let rig = Rig::new("store-calls", "loopback.toml", "");
    let _border = rig.border();
    let _callee = rig.callee();
    let mut callers = rig.callers(100, 200);
    assert_eq!(callers.wait(Duration::from_secs(60)), Some(true));
    let calls = rig.await_calls(&["--number", "600", "--state", "ended"], 100);
    for call in &calls {
        let facts = (
            &call["status"],
            &call["to"],
            &call["trunk"],
            &call["ended_by"],
        );
        assert_eq!(
            facts,
            (
                &200.into(),
                &"600".into(),
                &"server".into(),
                &"caller".into()
            )
        );
        // INVITE, 100, 180, 200, ACK, BYE and 200 with the caller; the callee sends no 100. A machine that stands still
        // for half a second makes SIPp repeat some.
        assert!(call["messages"].as_u64() >= Some(13), "{call}");
        assert_eq!(call["call_ids"].as_array().map(Vec::len), Some(2));
        assert!(call["duration_s"].is_number() && call["started"].is_string());
    }
    let mut unrepeated = calls.iter().filter(|call| call["messages"] == 13);
    let one = unrepeated.next().expect("a call without retransmissions");
    assert!(unrepeated.count() >= 50, "{calls:?}");
    let leg = |at: usize| one["call_ids"][at].as_str().expect("a Call-ID").to_owned();
    for id in [leg(0), leg(1)] {
        let ladder = rig.trace(&[&id]);
        let ladder = text(&ladder.stdout);
        assert_eq!(ladder.matches("INVITE (SDP)").count(), 2, "{ladder}");
        assert_eq!(ladder.matches("BYE-").count(), 2, "{ladder}");
        assert!(
            ladder.contains("hornwork") && ladder.contains(&leg(0)) && ladder.contains(&leg(1))
        );
    }
    let full = text(&rig.trace(&[&leg(1), "--full"]).stdout);
    assert_eq!(full.matches("\nCSeq: ").count(), 13, "{full}");
    let json: Value =
        serde_json::from_slice(&rig.trace(&[&leg(0), "--json"]).stdout).expect("JSON");
    assert_eq!(json["messages"].as_array().map(Vec::len), Some(13));
    assert_eq!(
        rig.calls(&["--address", "127.0.0.1", "--status", "2xx"])
            .len(),
        100
    );
    assert_eq!(rig.trace(&["--number", "601"]).status.code(), Some(1));
    assert_eq!(rig.trace(&["--status", "x"]).status.code(), Some(2));
    if installed(&["tshark"]) {
        let file = rig.folder.join("call.pcapng");
        let done = rig.trace(&[&leg(0), "--pcapng", &file.display().to_string()]);
        assert!(done.status.success());
        assert_eq!(tshark(&file), 13);
        let partition = std::fs::read_dir(&rig.store).expect("store").flatten();
        let mut partition = partition
            .map(|entry| entry.path())
            .filter(|path| path.is_dir());
        let segment = partition
            .next()
            .expect("a partition")
            .join("messages-000001.pcapng");
        assert!(tshark(&segment) >= 1_300);
    }
}

/// Call-IDs of the calls of which SIPp has got the response to BYE before this time, by its log of messages.
fn ended_before(messages: &str, time: SystemTime) -> BTreeSet<String> {
    let since = time.duration_since(UNIX_EPOCH).expect("a time after 1970");
    let micros = i64::try_from(since.as_micros()).expect("microseconds");
    // As SIPp writes it, up to the microseconds.
    let until = console::rfc3339(micros).replace('T', " ").replace('Z', "");
    let rule = "-".repeat(47);
    let ended = messages.split(&rule).filter_map(|entry| {
        let (at, message) = entry.trim_start().split_once('\n')?;
        let is_end = message.contains("message received")
            && message.contains("\nSIP/2.0 200 ")
            && message.contains("\nCSeq: 2 BYE");
        let id = message
            .lines()
            .find_map(|line| line.strip_prefix("Call-ID: "))?;
        (is_end && *at < *until).then(|| id.trim().to_owned())
    });
    ended.collect()
}

#[test]
fn a_killed_border_has_all_calls_but_those_of_the_last_second() {
    if !installed(&["sipp"]) {
        return;
    }
    let mut rig = Rig::new("store-killed", "loopback-bypass.toml", "");
    let records = rig.folder.join("records");
    let table = format!("[records]\nfolder = \"{}\"\n", records.display());
    rig.configuration.push_str(&table);
    let mut first = rig.border();
    let _callee = rig.callee();
    let target = format!("127.0.0.1:{}", rig.sip);
    let burst = [
        "-sn", "uac", &target, "-s", "600", "-r", "300", "-m", "9000", "-l", "8000",
    ];
    let logged = ["-trace_msg", "-message_file", "uac.messages"];
    let more = rig.sipp("uac", rig.sip + 1, &[&burst[..], &logged].concat());
    // In the middle of it.
    std::thread::sleep(Duration::from_secs(3));
    first.signal("KILL");
    let killed = SystemTime::now();
    assert_eq!(first.wait(Duration::from_secs(60)), Some(false));
    drop(more);
    let messages = std::fs::read(rig.folder.join("uac.messages")).expect("SIPp's messages");
    let over = ended_before(&text(&messages), killed - Duration::from_secs(1));
    assert!(over.len() >= 50, "{}", over.len());
    // A reader needs no border.
    assert!(rig.calls(&["--number", "600"]).len() >= over.len());
    let second = rig.border();
    let log = await_log(&second, "store_completed");
    assert!(!log.contains("store_failed"), "{log}");
    // Each call that SIPp saw end more than a second before is whole, and has its record.
    let ended = rig.calls(&["--number", "600", "--state", "ended"]);
    let whole: BTreeSet<&str> = ended
        .iter()
        .filter(|call| call["messages"].as_u64() >= Some(13))
        .filter_map(|call| call["call_ids"][0].as_str())
        .collect();
    let recorded = std::fs::read_to_string(records.join("cdr.ndjson")).expect("records");
    let recorded: Vec<Value> = recorded
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .filter(|record: &Value| record["cut"] != true)
        .collect();
    let recorded: BTreeSet<&str> = recorded
        .iter()
        .filter_map(|record| record["call_id"].as_str())
        .collect();
    let lost = |known: &BTreeSet<&str>| -> Vec<&String> {
        over.iter()
            .filter(|id| !known.contains(id.as_str()))
            .collect()
    };
    assert_eq!(
        (lost(&whole), lost(&recorded)),
        (vec![], vec![]),
        "of {}",
        over.len()
    );
    // Calls that were up are marked, and none stays open.
    assert!(
        rig.calls(&["--trunk", "server", "--state", "answered"])
            .is_empty()
    );
    assert!(
        rig.calls(&["--trunk", "server", "--state", "offered"])
            .is_empty()
    );
}

#[test]
fn calls_go_on_while_the_store_is_blocked() {
    if !installed(&["sipp"]) {
        return;
    }
    let rig = Rig::new("store-blocked", "loopback-bypass.toml", "queue_mib = 4");
    let border = rig.border();
    let _callee = rig.callee();
    let partition = std::fs::read_dir(&rig.store).expect("store").flatten();
    let mut partition = partition
        .map(|entry| entry.path())
        .filter(|path| path.is_dir());
    let index = partition.next().expect("a partition").join("index.db");
    // Another writer holds the lock of the index, as a stalled disk would.
    let lock = rusqlite::Connection::open(index).expect("index");
    lock.execute_batch("BEGIN IMMEDIATE").expect("lock");
    let mut callers = rig.callers(2_000, 400);
    assert_eq!(
        callers.wait(Duration::from_secs(60)),
        Some(true),
        "{}",
        callers.log()
    );
    let log = await_log(&border, "store_failed");
    assert!(log.contains("locked"), "{log}");
    lock.execute_batch("ROLLBACK").expect("unlock");
    await_log(&border, "store_resumed");
    await_log(&border, "store_messages_lost");
    // New calls are stored again.
    let mut callers = rig.callers(20, 100);
    assert_eq!(callers.wait(Duration::from_secs(60)), Some(true));
    let until = Instant::now() + Duration::from_secs(20);
    let whole = || {
        let calls = rig.calls(&["--number", "600", "--state", "ended", "--min-duration", "0"]);
        // A machine that stalls makes SIPp repeat some.
        let is_whole = |call: &&Value| call["messages"].as_u64() >= Some(13);
        calls.iter().filter(is_whole).count()
    };
    while whole() < 20 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A border whose store is on a file system of this size, in a mount namespace of its own; `None`, with a printed
/// reason, without the right to make one.
fn border_on_a_disk(rig: &Rig, file: &Path, size: &str) -> Option<Process> {
    let script = format!(
        "mount -t tmpfs -o size={size} none '{}' && exec '{}' run -c '{}'",
        rig.store.display(),
        env!("CARGO_BIN_EXE_hornwork"),
        file.display()
    );
    let may = Command::new("unshare").args(["-m", "true"]).status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no right to make a mount namespace");
        return None;
    }
    let border = Process::start(
        Command::new("unshare")
            .args(["-m", "sh", "-c", &script])
            .stdin(Stdio::null()),
        &rig.folder.join("border.log"),
    );
    let until = Instant::now() + Duration::from_secs(20);
    while !common::answers_options(rig.sip) {
        assert!(Instant::now() < until, "{}", border.log());
    }
    Some(border)
}

#[test]
fn calls_go_on_with_a_full_disk() {
    if !installed(&["sipp", "unshare", "mount"]) {
        return;
    }
    let mut rig = Rig::new("store-full", "loopback-bypass.toml", "size_mib = 64");
    let scrape = common::free_port();
    let socket = rig.folder.join("control.sock");
    rig.configuration.push_str(&format!(
        "[metrics]\nlisten = \"127.0.0.1:{scrape}\"\n[control]\nsocket = \"{}\"\n",
        socket.display()
    ));
    std::fs::create_dir_all(&rig.store).expect("folder");
    let file = rig.folder.join("hornwork.toml");
    std::fs::write(&file, &rig.configuration).expect("configuration");
    let Some(border) = border_on_a_disk(&rig, &file, "3m") else {
        return;
    };
    let _callee = rig.callee();
    let mut callers = rig.callers(2_000, 400);
    assert_eq!(
        callers.wait(Duration::from_secs(60)),
        Some(true),
        "{}",
        callers.log()
    );
    // The loss is visible while the disk is full.
    let log = await_log(&border, "store_messages_lost");
    assert!(
        log.contains("store_failed") && !log.contains("store_resumed"),
        "{log}"
    );
    assert_eq!(metric(&metrics(scrape), "hornwork_store_failing"), 1);
    await_log(&border, "store_loss");
    let health = ctl_json(&rig.folder, &["health"]);
    assert_eq!(health["store"]["failing"], true, "{health}");
    let top = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["top", "--count", "1", "--socket"])
        .arg(&socket)
        .output()
        .expect("hornwork top");
    assert!(text(&top.stdout).contains("store     FAILING   lost"));
    // Space is freed: a larger file system has the same effect.
    let resize = format!("mount -o remount,size=64m '{}'", rig.store.display());
    let id = border.id().to_string();
    let resized = Command::new("nsenter")
        .args(["-m", "-t", &id, "sh", "-c", &resize])
        .status();
    assert!(resized.is_ok_and(|status| status.success()));
    await_log(&border, "store_resumed");
    let mut callers = rig.callers(20, 100);
    assert_eq!(callers.wait(Duration::from_secs(60)), Some(true));
    // Each message of these calls is stored or counted as lost; there are some more: retransmissions and OPTIONS.
    let handed_in = 13 * 2_020;
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let lost = metric(
            &metrics(scrape),
            "hornwork_store_lost_total{kind=\"messages\"}",
        );
        let stored = stored_messages(&rig, &id);
        if (handed_in..handed_in + handed_in / 20).contains(&(stored + lost)) {
            assert!(stored > 260 && lost > 1_000, "{stored} {lost}");
            break;
        }
        assert!(Instant::now() < until, "{stored} + {lost}");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(metric(&metrics(scrape), "hornwork_store_failing"), 0);
}

#[test]
fn a_disk_that_fills_up_is_an_alarm_before_writing_fails() {
    if !installed(&["unshare", "mount", "nsenter"]) {
        return;
    }
    let rig = Rig::new("store-low", "loopback-bypass.toml", "size_mib = 64");
    std::fs::create_dir_all(&rig.store).expect("folder");
    let file = rig.folder.join("hornwork.toml");
    std::fs::write(&file, &rig.configuration).expect("configuration");
    let Some(border) = border_on_a_disk(&rig, &file, "40m") else {
        return;
    };
    let id = border.id().to_string();
    let inside = |command: &str| {
        let command = format!("cd '{}' && {command}", rig.store.display());
        let done = Command::new("nsenter")
            .args(["-m", "-t", &id, "sh", "-c", &command])
            .status();
        assert!(done.is_ok_and(|status| status.success()), "{command}");
    };
    // Less than a tenth stays free.
    inside("head -c 37m /dev/zero > other");
    let log = await_log(&border, "alarm_raised");
    let alarm = format!(
        "alarm=disk id=1 severity=major object={}",
        rig.store.display()
    );
    assert!(
        log.contains(&alarm) && !log.contains("store_failed"),
        "{log}"
    );
    inside("rm other");
    crate::operators::until("it is cleared", || {
        border.log().contains("alarm_cleared alarm=disk id=1")
    });
}

/// Messages in the store of a border with a mount namespace of its own.
fn stored_messages(rig: &Rig, id: &str) -> u64 {
    let output = Command::new("nsenter")
        .args(["-m", "-t", id, env!("CARGO_BIN_EXE_hornwork")])
        .args(["trace", "--kind", "any", "--json", "--limit", "100000"])
        .arg("--store")
        .arg(&rig.store)
        .stdin(Stdio::null())
        .output()
        .expect("hornwork trace");
    let calls: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    let calls = calls.as_array().expect("an array").iter();
    calls
        .map(|call| call["messages"].as_u64().expect("a number"))
        .sum()
}

/// Sends a packet to a HEP listener.
fn send_hep(port: u16, bytes: &[u8]) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
    socket.send_to(bytes, ("127.0.0.1", port)).expect("sent");
}

#[test]
fn hep_of_agents_is_stored_and_a_flood_is_harmless() {
    let Some(data) = testdata() else { return };
    let port = common::free_port();
    let metrics = common::free_port();
    let more = format!(
        "hep = {{ listen = \"udp:127.0.0.1:{port}\", rate = 500 }}\n\n[metrics]\nlisten = \"127.0.0.1:{metrics}\""
    );
    let rig = Rig::new("store-hep", "loopback-bypass.toml", &more);
    let border = rig.border();
    let packet = std::fs::read(data.join("hep/hep3-sip-200-options.bin")).expect("packet");
    send_hep(port, &packet);
    let id = "BC099884@6dfcffe8";
    let found = rig.await_calls(&["--call-id", id, "--kind", "any"], 1);
    assert_eq!(
        found[0]["addresses"],
        serde_json::json!(["192.168.247.250:5060", "192.168.245.250:5060"])
    );
    let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
    for number in 0..20_000_u32 {
        let mut bytes = packet.clone();
        match number % 3 {
            0 => bytes.truncate(number as usize % packet.len()),
            1 => bytes[6 + number as usize % 100] ^= 0xff,
            _ => {}
        }
        // The receiver may be slower than this loop.
        let _ = socket.send_to(&bytes, ("127.0.0.1", port));
    }
    assert!(common::serves(rig.sip));
    let log = await_log(&border, "rate limit");
    assert!(
        log.contains("hep_packets_dropped") && log.contains("malformed"),
        "{log}"
    );
    let text = crate::operators::metrics(metrics);
    let packets = |result: &str| {
        let name =
            format!("hornwork_hep_packets_total{{direction=\"received\",result=\"{result}\"}}");
        crate::operators::metric(&text, &name)
    };
    // 20,000 were sent at once: 500 in a second are looked at, and the kernel drops some.
    assert!(packets("rate limit") > 500, "{text}");
    assert!(packets("malformed") > 0 && packets("ok") > 0, "{text}");
}

/// Bytes that rtpengine sent with `--homer` and `--homer-id=77` for a sender report of a call `rtpe-7@192.0.2.1`.
const RTCP: &[u8] = include_bytes!("hep_rtcp_of_rtpengine.bin");

#[test]
fn rtcp_of_rtpengine_becomes_an_event_of_its_call() {
    let (port, metrics) = (common::free_port(), common::free_port());
    let more = format!(
        "hep = {{ send = \"udp:127.0.0.1:9\", listen = \"udp:127.0.0.1:{port}\" }}\n\n[metrics]\nlisten = \"127.0.0.1:{metrics}\""
    );
    let rig = Rig::new("store-hep-rtcp", "loopback-bypass.toml", &more);
    let border = rig.border();
    for socket in [
        format!("purpose=hep address=udp:127.0.0.1:{port}"),
        format!("purpose=metrics address=http://127.0.0.1:{metrics}"),
    ] {
        await_log(&border, &socket);
    }
    let log = border.log();
    assert!(
        log.contains("HEP: copies of messages to udp:127.0.0.1:9, as agent"),
        "{log}"
    );
    assert!(
        log.contains(&format!(
            "HEP: from capture agents at udp:127.0.0.1:{port}, at most"
        )),
        "{log}"
    );
    let count = |result: &str| {
        let text = crate::operators::metrics(metrics);
        let name =
            format!("hornwork_hep_packets_total{{direction=\"received\",result=\"{result}\"}}");
        crate::operators::metric(&text, &name)
    };
    // Before its call, and of another protocol.
    send_hep(port, RTCP);
    let mut other = RTCP.to_vec();
    let kind = other.windows(6).position(|six| six == b"\0\0\0\x0b\0\x07");
    other[kind.expect("the protocol type") + 6] = 34;
    send_hep(port, &other);
    crate::operators::until("counted", || {
        (count("unknown call"), count("no SIP")) == (1, 1)
    });
    let id = "rtpe-7@192.0.2.1";
    let phone = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let local = phone.local_addr().expect("address");
    let invite = format!(
        "INVITE sip:600@127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bKrtcp\r\nMax-Forwards: 70\r\n\
         From: <sip:1@127.0.0.1>;tag=1\r\nTo: <sip:600@127.0.0.1>\r\nCall-ID: {id}\r\nCSeq: 1 INVITE\r\n\
         Contact: <sip:1@{local}>\r\nContent-Length: 0\r\n\r\n"
    );
    phone
        .send_to(invite.as_bytes(), ("127.0.0.1", rig.sip))
        .expect("sent");
    rig.await_calls(&["--call-id", id], 1);
    send_hep(port, RTCP);
    crate::operators::until("stored", || count("ok") == 1);
    let ladder = || text(&rig.trace(&[id]).stdout);
    crate::operators::until("in the ladder", || ladder().contains("rtcp_report"));
    let ladder = ladder();
    for field in [
        "agent=77",
        "source=127.0.7.8:40001",
        "ssrc=286331153",
        "media_ssrc=572662306",
        "loss_percent=9.77",
        "packets_lost=10",
        "jitter_units=40",
    ] {
        assert!(ladder.contains(field), "{field}: {ladder}");
    }
}

#[test]
fn a_border_starts_before_the_name_of_its_collector_is_known() {
    let more = "hep = { send = \"udp:homer.does-not-exist.invalid:9060\" }";
    let rig = Rig::new("store-no-name", "loopback-bypass.toml", more);
    // It answers OPTIONS, which are stored.
    let border = rig.border();
    let until = Instant::now() + Duration::from_secs(20);
    while rig.calls(&["--kind", "options"]).is_empty() {
        assert!(Instant::now() < until, "{}", border.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    let log = await_log(&border, "receiver_failed");
    assert!(
        log.contains("HEP collector udp:homer.does-not-exist.invalid:9060"),
        "{log}"
    );
    let log = await_log(&border, "hep_packets_dropped");
    assert!(log.contains("reason=socket"), "{log}");
}

#[test]
fn kamailio_sends_hep_to_us() {
    if !installed(&["kamailio"]) {
        return;
    }
    let port = common::free_port();
    let more = format!("hep = {{ listen = \"udp:127.0.0.1:{port}\" }}");
    let rig = Rig::new("store-kamailio", "loopback-bypass.toml", &more);
    let _border = rig.border();
    let own = common::free_port();
    let configuration = format!(
        "debug=2\nlog_stderror=yes\nfork=no\nchildren=1\nlisten=udp:127.0.0.1:{own}\n\
         loadmodule \"sl.so\"\nloadmodule \"pv.so\"\nloadmodule \"tm.so\"\nloadmodule \"rr.so\"\nloadmodule \"siptrace.so\"\n\
         modparam(\"siptrace\", \"duplicate_uri\", \"sip:127.0.0.1:{port}\")\n\
         modparam(\"siptrace\", \"hep_mode_on\", 1)\nmodparam(\"siptrace\", \"hep_version\", 3)\n\
         modparam(\"siptrace\", \"hep_capture_id\", 77)\nmodparam(\"siptrace\", \"trace_to_database\", 0)\n\
         modparam(\"siptrace\", \"trace_on\", 1)\nmodparam(\"siptrace\", \"trace_mode\", 1)\n\
         request_route {{ sl_send_reply(\"200\", \"OK\"); }}\n"
    );
    let file = rig.folder.join("kamailio.cfg");
    std::fs::write(&file, configuration).expect("configuration");
    let kamailio = Process::start(
        Command::new("kamailio")
            .args(["-DD", "-E", "-f"])
            .arg(&file)
            .args(["-w", "/tmp", "-Y"])
            .arg(&rig.folder)
            .stdin(Stdio::null()),
        &rig.folder.join("kamailio.log"),
    );
    let until = Instant::now() + Duration::from_secs(20);
    while !common::answers_options(own) {
        assert!(Instant::now() < until, "{}", kamailio.log());
    }
    let observed = || {
        let calls = rig.calls(&[
            "--kind",
            "options",
            "--text",
            &format!("sip:127.0.0.1:{own}"),
        ]);
        calls
            .iter()
            .map(|call| call["messages"].as_u64().unwrap_or(0))
            .sum::<u64>()
    };
    let until = Instant::now() + Duration::from_secs(20);
    // The request and its response.
    while observed() < 2 {
        assert!(Instant::now() < until, "{}", kamailio.log());
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn sngrep_reads_our_hep() {
    if !installed(&["sngrep", "sipp", "tshark", "timeout"]) {
        return;
    }
    let port = common::free_port();
    let more = format!("hep = {{ send = \"udp:127.0.0.1:{port}\", id = 2001 }}");
    let rig = Rig::new("store-sngrep", "loopback-bypass.toml", &more);
    let capture = rig.folder.join("sngrep.pcap");
    let mut sngrep = Process::start(
        Command::new("timeout")
            .args([
                "-s",
                "INT",
                "90",
                "sngrep",
                "-N",
                "-q",
                "-L",
                &format!("udp:127.0.0.1:{port}"),
                "-O",
            ])
            .arg(&capture)
            .stdin(Stdio::null()),
        &rig.folder.join("sngrep.log"),
    );
    let listens = || {
        let sockets = std::fs::read_to_string("/proc/net/udp").unwrap_or_default();
        sockets.contains(&format!("0100007F:{port:04X}"))
    };
    let limit = Instant::now() + Duration::from_secs(20);
    while !listens() {
        assert!(
            Instant::now() < limit,
            "sngrep does not listen: {}",
            sngrep.log()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let _border = rig.border();
    let _callee = rig.callee();
    let mut callers = rig.callers(10, 50);
    assert_eq!(callers.wait(Duration::from_secs(30)), Some(true));
    std::thread::sleep(Duration::from_secs(2));
    sngrep.signal("INT");
    let _ = sngrep.wait(Duration::from_secs(5));
    let seen = tshark(&capture);
    // Ten calls of 13 messages, and the OPTIONS that wait for the border.
    assert!(seen >= 130, "{seen}: {}", sngrep.log());
}
