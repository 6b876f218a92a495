//! Call records (CDRs) of real calls: their number and fields, a crash, and a full disk.

use crate::common;
use crate::history::await_log;
use crate::peer_sipp::sipp;

use common::{Process, border, example, free_port, installed, media_ports, scratch};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The records of a folder; an incomplete line is ignored.
fn records(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("cdr.ndjson")).unwrap_or_default();
    let lines = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// Waits until a folder has this number of records.
pub(crate) fn wait_for_records(folder: &Path, count: usize) -> Vec<Value> {
    let end = Instant::now() + Duration::from_secs(40);
    loop {
        let found = records(folder);
        if found.len() >= count || Instant::now() > end {
            assert_eq!(found.len(), count, "{:?}", found.last());
            return found;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until the journal has this number of answered calls without an end, and notes twice after them that the border
/// runs, a second apart.
fn wait_for_journal(folder: &Path, count: usize) {
    let end = Instant::now() + Duration::from_secs(40);
    loop {
        let text = std::fs::read_to_string(folder.join("running.journal")).unwrap_or_default();
        let (mut running, mut notes) = (BTreeSet::new(), 0);
        for line in text.lines() {
            // The last line may be incomplete.
            let entry: Value = serde_json::from_str(line).unwrap_or_default();
            notes += u32::from(entry["alive"].is_string());
            if let Some(id) = entry["ended"].as_str() {
                running.remove(id);
            }
            let record = &entry["running"];
            if record["answered"].is_string() {
                running.insert(record["id"].as_str().expect("an identifier").to_owned());
                notes = 0;
            }
        }
        if running.len() == count && notes >= 2 {
            return;
        }
        assert!(Instant::now() < end, "{} of {count}", running.len());
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn configuration(folder: &Path, file: &str, sip: u16, trunk: u16, more: &str) -> String {
    let more = format!(
        "[records]\nfolder=\"{}\"\n{more}",
        folder.join("records").display()
    );
    example(file, sip, trunk, media_ports(2_000), &more)
}

#[test]
fn each_call_of_sipp_has_a_record() {
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch("records-sipp");
    let (sip, trunk) = (free_port(), free_port());
    let text = configuration(&folder, "loopback.toml", sip, trunk, "format=\"both\"\n");
    let mut border = border(&folder, &text, sip);
    let uas = sipp(&folder, "uas", trunk, &["-sn", "uas", "-l", "8000"]).at_port(trunk);
    let target = format!("127.0.0.1:{sip}");
    let calls = [
        "-sn", "uac", &target, "-r", "400", "-m", "3000", "-l", "4000",
    ];
    let mut uac = sipp(&folder, "uac", sip + 2, &calls);
    assert_eq!(
        uac.wait(Duration::from_secs(60)),
        Some(true),
        "{}",
        uac.log()
    );
    let written = wait_for_records(&folder.join("records"), 3_000);
    for record in &written {
        assert_eq!(record["status"], 200, "{record}");
        assert_eq!(
            (&record["ended_by"], &record["reason"]),
            (&"caller".into(), &"bye".into())
        );
        assert!(
            record["answered"].is_string()
                && record["ended"].as_str() >= record["answered"].as_str()
        );
        let legs = record["legs"].as_array().expect("legs");
        assert_eq!(legs.len(), 2);
        assert_eq!(record["call_id"], legs[0]["call_id"]);
        assert_ne!(legs[0]["call_id"], legs[1]["call_id"]);
        assert_eq!(legs[1]["address"], format!("udp:127.0.0.1:{trunk}"));
        assert_eq!(legs[0]["media"]["packets_received"], 0, "{record}");
    }
    let ids: std::collections::BTreeSet<&str> = written
        .iter()
        .filter_map(|record| record["id"].as_str())
        .collect();
    assert_eq!(ids.len(), 3_000, "each has an identifier of its own");
    let csv = std::fs::read_to_string(folder.join("records/cdr.csv")).expect("CSV");
    assert_eq!(csv.lines().count(), 3_001);
    // A refused call: nothing listens at the trunk any more.
    drop(uas);
    let refused = ["-sn", "uac", &target, "-r", "10", "-m", "5"];
    sipp(&folder, "refused", sip + 3, &refused).wait(Duration::from_secs(60));
    let written = wait_for_records(&folder.join("records"), 3_005);
    for record in written.iter().skip(3_000) {
        assert!(record["status"].as_u64() >= Some(400), "{record}");
        assert_eq!(
            (&record["answered"], &record["duration_s"]),
            (&Value::Null, &0.0.into())
        );
        assert!(
            record["reason"]
                .as_str()
                .is_some_and(|reason| !reason.is_empty())
        );
    }
    border.signal("TERM");
    assert_eq!(border.wait(Duration::from_secs(30)), Some(true));
    assert_eq!(
        records(&folder.join("records")).len(),
        3_005,
        "no call is cut"
    );
}

#[test]
fn calls_cut_by_kill_9_have_records_after_the_restart() {
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch("records-crash");
    let (sip, trunk) = (free_port(), free_port());
    let text = configuration(&folder, "loopback.toml", sip, trunk, "");
    let mut first = border(&folder, &text, sip);
    let _uas = sipp(&folder, "uas", trunk, &["-sn", "uas", "-l", "8000"]).at_port(trunk);
    let target = format!("127.0.0.1:{sip}");
    let ended = ["-sn", "uac", &target, "-r", "200", "-m", "400"];
    let mut uac = sipp(&folder, "ended", sip + 2, &ended);
    assert_eq!(
        uac.wait(Duration::from_secs(30)),
        Some(true),
        "{}",
        uac.log()
    );
    wait_for_records(&folder.join("records"), 400);
    let standing = [
        "-sn", "uac", &target, "-r", "100", "-m", "60", "-l", "60", "-d", "60000",
    ];
    let _standing = sipp(&folder, "standing", sip + 3, &standing);
    wait_for_journal(&folder.join("records"), 60);
    first.signal("KILL");
    first.wait(Duration::from_secs(30));
    let before = records(&folder.join("records")).len();
    assert_eq!(before, 400);
    let mut second = border(&folder, &text, sip);
    let written = wait_for_records(&folder.join("records"), 460);
    let cut: Vec<&Value> = written
        .iter()
        .filter(|record| record["cut"] == true)
        .collect();
    assert_eq!(cut.len(), 60);
    for record in cut {
        assert_eq!(
            (&record["status"], &record["reason"]),
            (&200.into(), &"border stopped".into())
        );
        assert!(record["duration_s"].as_f64() > Some(0.5), "{record}");
        assert_eq!(record["trunk"], "server", "{record}");
        assert_eq!(
            record["legs"][1]["address"],
            format!("udp:127.0.0.1:{trunk}")
        );
        assert!(record["legs"][1]["media"].is_object(), "{record}");
    }
    await_log(&second, "calls_cut");
    second.signal("KILL");
    second.wait(Duration::from_secs(30));
    let _third = border(&folder, &text, sip);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(
        records(&folder.join("records")).len(),
        460,
        "each is written once"
    );
}

/// A border in a mount namespace, whose records are on a file system of 128 KiB.
fn border_on_a_small_disk(folder: &Path, text: &str, sip: u16) -> Option<Process> {
    let probe = Command::new("unshare").args(["--mount", "true"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: `unshare --mount` is not permitted");
        return None;
    }
    let file = folder.join("hornwork.toml");
    std::fs::write(&file, text).expect("configuration");
    std::fs::create_dir_all(folder.join("records")).expect("folder");
    let script = "mount -t tmpfs -o size=128k tmpfs \"$1\" && exec \"$2\" run -c \"$3\"";
    let process = Process::start(
        Command::new("unshare")
            .args(["--mount", "sh", "-c", script, "sh"])
            .arg(folder.join("records"))
            .arg(env!("CARGO_BIN_EXE_hornwork"))
            .arg(&file),
        &folder.join("border.log"),
    );
    let end = Instant::now() + Duration::from_secs(30);
    while !common::answers_options(sip) {
        assert!(Instant::now() < end, "{}", process.log());
    }
    Some(process)
}

#[test]
fn full_disk_delays_records_and_no_call() {
    if !installed(&["sipp", "unshare"]) {
        return;
    }
    let folder = scratch("records-full");
    let (sip, trunk) = (free_port(), free_port());
    // Without overload control, which may refuse a call where the host stops the border for a moment.
    let more = "[sip]\nqueueing_delay_ms=0\n";
    let text = configuration(&folder, "loopback.toml", sip, trunk, more);
    let Some(border) = border_on_a_small_disk(&folder, &text, sip) else {
        return;
    };
    let _uas = sipp(&folder, "uas", trunk, &["-sn", "uas", "-l", "8000"]).at_port(trunk);
    let target = format!("127.0.0.1:{sip}");
    let calls = ["-sn", "uac", &target, "-r", "200", "-m", "1000"];
    let mut uac = sipp(&folder, "uac", sip + 2, &calls);
    assert_eq!(
        uac.wait(Duration::from_secs(60)),
        Some(true),
        "{}",
        uac.log()
    );
    await_log(&border, "records_failed");
    // Seen through the mount namespace of the border.
    let inside = Path::new("/proc")
        .join(border.id().to_string())
        .join("root")
        .join(folder.join("records").strip_prefix("/").expect("absolute"));
    let partial = records(&inside).len();
    assert!((1..1_000).contains(&partial), "{partial}");
    let grown = Command::new("nsenter")
        .args([
            "-m",
            "-t",
            &border.id().to_string(),
            "mount",
            "-o",
            "remount,size=64m",
        ])
        .arg(folder.join("records"))
        .status();
    assert!(grown.is_ok_and(|status| status.success()));
    wait_for_records(&inside, 1_000);
    let log = await_log(&border, "records_recovered");
    assert!(log.contains("lost=0"), "{log}");
}
