//! Recordings that cannot be written: the engine learns of them, and no octet is lost without a count.

use Order::{Append, Create};
use engine::{Deadline, Engine, EventKind, Input, Output, RecordingCommand, Time};
use net::{Clock, Driver, DriverConfig, Recorder};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(Clone, Copy)]
enum Order {
    Create(&'static str),
    Append(&'static [u8]),
}

/// Writes to recordings, by their numbers.
#[derive(Default)]
struct RecordingEngine {
    orders: VecDeque<(u64, Order)>,
    failed: Vec<u64>,
}

impl Engine for RecordingEngine {
    fn handle(&mut self, input: Input<'_>, _now: Time) {
        if let Input::RecordingFailed { file } = input {
            self.failed.push(file);
        }
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        let (file, order) = self.orders.pop_front()?;
        let command = match order {
            Create(name) => RecordingCommand::Create { name, header: b"" },
            Append(bytes) => RecordingCommand::Append { bytes },
        };
        Some(Output::Recording { file, command })
    }

    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("hornwork-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs until this many recordings have failed and this many octets are lost. Returns the numbers of the recordings.
fn run(driver: &mut Driver, orders: &[(u64, Order)], (failed, lost): (usize, u64)) -> Vec<u64> {
    let mut engine = RecordingEngine::default();
    engine.orders.extend(orders);
    let begun = Instant::now();
    let (mut logged, mut octets) = (0, 0);
    while engine.failed.len() < failed || logged < failed || octets < lost {
        assert!(begun.elapsed() < Duration::from_secs(60), "not reached");
        let wait = Duration::from_millis(5);
        driver.turn_engine(&mut engine, wait).unwrap();
        while let Some(event) = driver.next_event() {
            match event.kind {
                EventKind::RecordingFailed { .. } => logged += 1,
                EventKind::RecordingLost { bytes } => octets += bytes,
                _ => {}
            }
        }
    }
    assert_eq!((logged, octets), (failed, lost));
    engine.failed
}

#[test]
fn engine_learns_of_recordings_that_cannot_be_written() {
    let folder = folder("recordings-failed");
    std::fs::write(folder.join("a.pcap"), b"old").unwrap();
    let mut driver = Driver::plain(DriverConfig::default(), Clock::new()).unwrap();
    // Without a folder.
    assert_eq!(run(&mut driver, &[(1, Create("a.pcap"))], (1, 0)), [1]);
    driver.set_recorder(Some(Recorder::start(&folder).unwrap()));
    // The file exists, and the other one is written.
    let orders = [
        (2, Create("a.pcap")),
        (3, Create("b.pcap")),
        (2, Append(b"12345")),
        (3, Append(b"678")),
    ];
    assert_eq!(run(&mut driver, &orders, (1, 5)), [2]);
    driver.finish_recordings();
    assert_eq!(std::fs::read(folder.join("b.pcap")).unwrap(), b"678");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A folder that is not used any more: its queued data are written, and its losses logged.
#[test]
fn losses_of_a_replaced_recorder_are_logged() {
    let [old, new] = [folder("recordings-old"), folder("recordings-new")];
    let mut driver = Driver::plain(DriverConfig::default(), Clock::new()).unwrap();
    driver.set_recorder(Some(Recorder::start(&old).unwrap()));
    let mut engine = RecordingEngine::default();
    engine.orders.extend([
        (1, Create("a.pcap")),
        (1, Append(b"123")),
        (7, Append(b"4567")),
    ]);
    while !engine.orders.is_empty() {
        driver.turn_engine(&mut engine, Duration::ZERO).unwrap();
    }
    driver.set_recorder(Some(Recorder::start(&new).unwrap()));
    let counted = run(&mut driver, &[(1, Append(b"89"))], (0, 4 + 2));
    assert!(counted.is_empty());
    assert_eq!(std::fs::read(old.join("a.pcap")).unwrap(), b"123");
    for folder in [old, new] {
        std::fs::remove_dir_all(folder).unwrap();
    }
}
