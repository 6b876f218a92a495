//! Loads messages of calls into a store and measures each search: median and 99th percentile, and the CPU time of
//! writing.
//!
//! `cargo run --release -p console --example ten_million_messages -- FOLDER [MESSAGES]`; ten million messages need
//! about 6 GB. The folder must not exist; it is removed at the end. `SOCKET_FOLDER:DATABASE` instead of FOLDER names an
//! empty database of PostgreSQL, which the role postgres writes. With `search` after MESSAGES, only the searches are
//! made in a store of that size that an interrupted run has left.

use console::{
    CallFilter, CallKind, DatabaseHost, DatabaseSettings, HistoryReader, HistoryWriter,
    StoreLocation, StoreSettings, StoredDirection, StoredMessage,
};
use engine::{Event, EventKind, Hundredths, ReportedJitter, Time, Transport};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Messages of one call.
const PER_CALL: u64 = 14;
/// Calls begun per second of virtual time.
const RATE: u64 = 2_000;
/// 24 November 2025, microseconds.
const START: i64 = 1_763_942_400_000_000;
/// Searches of each kind.
const ROUNDS: usize = 100;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let place = arguments.next().expect("a folder that does not exist");
    let folder = PathBuf::from(&place);
    let location = match place.split_once(':') {
        None => StoreLocation::Folder(folder.clone()),
        Some((socket, database)) => StoreLocation::Database(DatabaseSettings {
            host: DatabaseHost::Socket(socket.into()),
            port: 5432,
            user: "postgres".into(),
            database: database.into(),
            authorities: None,
            password_file: None,
        }),
    };
    let messages: u64 = arguments
        .next()
        .map_or(10_000_000, |text| text.parse().expect("a number"));
    let calls = messages / PER_CALL;
    if arguments.next().as_deref() == Some("search") {
        searches(&location, calls);
        return;
    }
    assert!(!folder.exists(), "{} exists", folder.display());
    write(&location, calls);
    searches(&location, calls);
    remove(&location);
    // A database has no folder of ours.
    let _ = std::fs::remove_dir_all(&folder);
}

/// Opens the store after its retention time: the writer renames the partition, a thread removes its files.
fn remove(location: &StoreLocation) {
    let begun = Instant::now();
    let writer = HistoryWriter::open(settings(location), START + 40 * 86_400_000_000);
    let writer = writer.expect("store");
    println!(
        "retention: all messages removed, {:.1} ms of the writer",
        begun.elapsed().as_secs_f64() * 1e3
    );
    drop(writer);
}

/// The largest memory of this process so far, MiB.
fn memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1_024
}

/// CPU time of this process, user and system.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|text| text.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

fn settings(location: &StoreLocation) -> StoreSettings {
    StoreSettings {
        location: location.clone(),
        node: "edge-1".into(),
        retention_days: 30,
        size: 64 << 30,
        secure_content: false,
        full_text: true,
    }
}

fn write(location: &StoreLocation, calls: u64) {
    let mut writer = HistoryWriter::open(settings(location), START).expect("store");
    let (begun, before, losses) = (Instant::now(), cpu(), writer.losses());
    for number in 0..calls {
        let at = START + (number * 1_000_000 / RATE) as i64;
        call(&mut writer, number, at);
        if number % 64 == 0 {
            writer.tick(at);
        }
        // Calls of ten seconds.
        if number >= RATE * 10 {
            end(&mut writer, number - RATE * 10, at);
        }
    }
    let last = START + ((calls + RATE) * 1_000_000 / RATE) as i64;
    writer.tick(last);
    writer.end(last + 1_000_000);
    let (took, used) = (begun.elapsed(), cpu() - before);
    let messages = calls * PER_CALL;
    println!(
        "written: {messages} messages of {calls} calls in {:.1} s, {:.2} us CPU per message, {:.1} us per call",
        took.as_secs_f64(),
        used.as_secs_f64() * 1e6 / messages as f64,
        used.as_secs_f64() * 1e6 / calls as f64,
    );
    let losses = losses.counts().total();
    println!("memory at most {} MiB, {losses} items lost", memory_mib());
}

fn number_of(number: u64) -> u64 {
    // Spreads the numbers: each caller has about seven calls.
    number.wrapping_mul(7_919) % 100_003
}

fn call(writer: &mut HistoryWriter, number: u64, at: i64) {
    let event = |kind| Event::new(Time(0), kind);
    let (a, b) = (
        format!("a-{number}@192.0.2.9"),
        format!("b-{number}@192.0.2.1"),
    );
    let (from, to) = (number_of(number), 600 + number % 1_000);
    let offered = EventKind::CallOffered {
        call: number,
        interface: "access".into(),
        call_id: a.clone(),
        from: format!("sip:{from}@example.net"),
        to: to.to_string(),
        source: "udp:10.0.0.1:5060".into(),
        trunk: None,
    };
    writer.event(&event(offered), at);
    let routed = EventKind::CallRouted {
        call: number,
        route: "main".into(),
        target: format!("trunk-{}", number % 20),
        address: "udp:192.0.2.20:5060".into(),
        call_id: b.clone(),
        interface: "core".into(),
        trunk: Some(format!("trunk-{}", number % 20)),
    };
    writer.event(&event(routed), at);
    let caller = SocketAddr::from((
        [10, (from >> 16) as u8, (from >> 8) as u8, from as u8],
        5060,
    ));
    let callee = SocketAddr::from(([192, 0, 2, 20 + (number % 20) as u8], 5060));
    let sides = [(caller, &a), (callee, &b)];
    let steps: [(usize, bool, &str, &str); 7] = [
        (0, false, "INVITE", ""),
        (0, true, "INVITE", "100 Trying"),
        (1, true, "INVITE", ""),
        (1, false, "INVITE", "180 Ringing"),
        (0, true, "INVITE", "180 Ringing"),
        (1, false, "INVITE", "200 OK"),
        (0, true, "INVITE", "200 OK"),
    ];
    let mut time = at;
    for (side, sent, method, status) in steps {
        let (peer, id) = sides[side];
        put(
            writer,
            time,
            (sent, peer),
            &message(method, status, id, from, to),
        );
        time += 500;
    }
    writer.event(
        &event(EventKind::CallAnswered {
            call: number,
            setup_ms: Some(3),
            call_id: None,
        }),
        time,
    );
    for (side, sent) in [(0, false), (1, true)] {
        let (peer, id) = sides[side];
        put(
            writer,
            time,
            (sent, peer),
            &message("ACK", "", id, from, to),
        );
    }
    // The end of the call follows at once in this example; only its time is later.
    for (side, sent, status) in [
        (0, false, ""),
        (1, true, ""),
        (1, false, "200 OK"),
        (0, true, "200 OK"),
    ] {
        let (peer, id) = sides[side];
        put(
            writer,
            time,
            (sent, peer),
            &message("INFO", status, id, from, to),
        );
    }
    put(
        writer,
        time,
        (false, callee),
        &message("INFO", "", &b, from, to),
    );
}

fn end(writer: &mut HistoryWriter, number: u64, at: i64) {
    let kind = EventKind::CallEnded {
        call: number,
        ended_by: "caller".into(),
        reason: "BYE".into(),
        status: if number % 50_000 == 7 { 503 } else { 200 },
        duration_ms: Some(1_000 + number % 20_000),
        trunk: Some(format!("trunk-{}", number % 20).into()),
        path: Some("sockets".into()),
        codec: Some(
            if number.is_multiple_of(3) {
                "G722"
            } else {
                "PCMA"
            }
            .into(),
        ),
        caller_loss_percent: Some(Hundredths(number % 100)),
        caller_jitter_ms: Some(ReportedJitter::Measured(Hundredths(number % 700))),
        caller_mos: Some(Hundredths(if number % 60_000 == 11 { 130 } else { 410 })),
        callee_loss_percent: None,
        callee_jitter_ms: None,
        callee_mos: Some(Hundredths(420)),
    };
    writer.event(&Event::new(Time(0), kind), at);
}

fn message(method: &str, status: &str, id: &str, from: u64, to: u64) -> String {
    let first = match status {
        "" => format!("{method} sip:{to}@192.0.2.1 SIP/2.0"),
        status => format!("SIP/2.0 {status}"),
    };
    let agent = if status.is_empty() {
        "User-Agent"
    } else {
        "Server"
    };
    format!(
        "{first}\r\nVia: SIP/2.0/UDP 192.0.2.9:5060;branch=z9hG4bK-{id}\r\nFrom: \"User {from}\" <sip:{from}@example.net>;tag=1\r\nTo: <sip:{to}@example.net>\r\nCall-ID: {id}\r\nCSeq: 1 {method}\r\nContact: <sip:{from}@192.0.2.9>\r\nMax-Forwards: 70\r\n{agent}: Acme {}\r\nContent-Length: 0\r\n\r\n",
        from % 50
    )
}

fn put(writer: &mut HistoryWriter, at: i64, (sent, peer): (bool, SocketAddr), text: &str) {
    let ours = SocketAddr::from(([192, 0, 2, 1], 5060));
    let (source, destination) = if sent { (ours, peer) } else { (peer, ours) };
    let stored = StoredMessage {
        time: at as u64 * 1_000,
        direction: if sent {
            StoredDirection::Sent
        } else {
            StoredDirection::Received
        },
        transport: Transport::Udp,
        source,
        destination,
        bytes: text.as_bytes(),
    };
    writer.message(&stored, b"");
}

fn searches(location: &StoreLocation, calls: u64) {
    let reader = HistoryReader::open(location).expect("store");
    let all = || CallFilter {
        kind: Some(CallKind::Call),
        ..CallFilter::default()
    };
    let spread = |round: usize| (round as u64).wrapping_mul(6_700_417) % calls;
    type Search<'a> = (&'a str, Box<dyn Fn(usize) -> CallFilter + 'a>);
    let kinds: Vec<Search<'_>> = vec![
        ("newest calls", Box::new(|_| all())),
        (
            "number",
            Box::new(|round| CallFilter {
                number: Some(number_of(spread(round)).to_string()),
                ..all()
            }),
        ),
        (
            "number, absent",
            Box::new(|round| CallFilter {
                number: Some(format!("x{round}")),
                ..all()
            }),
        ),
        (
            "number, beginning",
            Box::new(|round| CallFilter {
                number: Some(format!("{}*", 9_000 + round)),
                ..all()
            }),
        ),
        (
            "Call-ID of the second leg",
            Box::new(|round| CallFilter {
                call_id: Some(format!("b-{}@192.0.2.1", spread(round))),
                ..all()
            }),
        ),
        (
            "address",
            Box::new(|round| {
                let from = number_of(spread(round));
                CallFilter {
                    address: Some(format!(
                        "10.{}.{}.{}",
                        from >> 16,
                        from >> 8 & 255,
                        from & 255
                    )),
                    ..all()
                }
            }),
        ),
        (
            "time",
            Box::new(|round| {
                let from = START + (spread(round) * 1_000_000 / RATE) as i64;
                CallFilter {
                    from: Some(from),
                    until: Some(from + 60_000_000),
                    ..all()
                }
            }),
        ),
        (
            "status 503, 14 calls",
            Box::new(|_| CallFilter {
                status: Some((503, 503)),
                ..all()
            }),
        ),
        (
            "MOS below 2, 12 calls",
            Box::new(|_| CallFilter {
                mos_max: Some(200),
                ..all()
            }),
        ),
        (
            "duration above 20.9 s",
            Box::new(|_| CallFilter {
                duration_min: Some(20_900),
                ..all()
            }),
        ),
        (
            "trunk, codec",
            Box::new(|round| CallFilter {
                trunk: Some(format!("trunk-{}", round % 20)),
                codec: Some("G722".into()),
                ..all()
            }),
        ),
        (
            "protection, absent",
            Box::new(|_| CallFilter {
                protection: Some("dtls".into()),
                ..all()
            }),
        ),
        (
            "words",
            Box::new(|round| CallFilter {
                words: Some(format!("user {}", number_of(spread(round)))),
                ..all()
            }),
        ),
        (
            "text in messages of one minute",
            Box::new(|round| {
                let number = spread(round);
                let from = START + (number * 1_000_000 / RATE) as i64 - 500_000;
                CallFilter {
                    from: Some(from),
                    until: Some(from + 1_000_000),
                    text: Some(format!("tag=1\r\nTo: <sip:{}@", 600 + number % 1_000).into_bytes()),
                    ..all()
                }
            }),
        ),
    ];
    for (name, filter) in kinds {
        let mut times = Vec::new();
        let mut found = 0;
        for round in 0..ROUNDS {
            let filter = filter(round);
            let begun = Instant::now();
            found += reader
                .search(&filter, None, 50)
                .expect("search")
                .calls
                .len();
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        println!(
            "{name:<34} median {:>8.2} ms, p99 {:>8.2} ms, {:.1} calls found",
            times[ROUNDS / 2].as_secs_f64() * 1e3,
            times[ROUNDS * 99 / 100].as_secs_f64() * 1e3,
            found as f64 / ROUNDS as f64
        );
    }
    let begun = Instant::now();
    let call = reader
        .find(&format!("a-{}@192.0.2.9", calls / 2))
        .expect("search")
        .expect("call");
    let messages = reader.messages(call.id).expect("messages").len();
    println!(
        "ladder of one call: {messages} messages, {:.2} ms",
        begun.elapsed().as_secs_f64() * 1e3
    );
}
