//! Event log of a running border. Threads that carry packets put lines into a bounded queue; a thread of its own writes
//! them to standard error, so that a stalled reader (stopped journal, full disk, pager) blocks neither packets nor
//! signals. Lines beyond the queue's capacity are counted, and the count is logged once writing works again.

use crate::alarms::AlarmBoard;
use config::Config;
use engine::event::{EventLevel, FieldValue};
use engine::{Event, EventKind};
use net::Clock;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Most queued bytes: half a second of three lines for each of 4,000 calls per second.
const MAX_QUEUED_BYTES: usize = 1 << 20;
/// Time for which the writer collects lines, so that a busy log costs a hundred system calls per second and not one per
/// line.
const COLLECT_TIME: Duration = Duration::from_millis(10);
/// Longest wait at the end of the program for lines to be written.
const END_TIMEOUT: Duration = Duration::from_millis(200);

/// Queue of lines for standard error.
#[derive(Clone, Default)]
struct LogLines(Arc<LogQueue>);

#[derive(Default)]
struct LogQueue {
    state: Mutex<LogQueueState>,
    /// Signals lines to the writer, and completion to the end of the program.
    changed: Condvar,
}

#[derive(Default)]
struct LogQueueState {
    /// Complete lines.
    waiting: Vec<u8>,
    /// Lines lost since the last successful write, because the queue was full or writing failed.
    lost: u64,
    /// The writer sleeps until it is woken.
    idle: bool,
    /// The writer is writing.
    writing: bool,
    /// The program ends: lines are written without delay.
    ending: bool,
}

impl LogLines {
    fn state(&self) -> MutexGuard<'_, LogQueueState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues one line, or counts it as lost if the queue is full.
    fn put(&self, line: &[u8]) {
        let mut state = self.state();
        match state.waiting.len() + line.len() > MAX_QUEUED_BYTES {
            true => state.lost += 1,
            false => state.waiting.extend_from_slice(line),
        }
    }

    /// Wakes the writer if it sleeps and lines are queued.
    fn flush(&self) {
        let mut state = self.state();
        if state.idle && (!state.waiting.is_empty() || state.lost > 0) {
            state.idle = false;
            self.0.changed.notify_all();
        }
    }

    /// Waits until everything is written, at most `limit`.
    fn end(&self, limit: Duration) {
        let mut state = self.state();
        state.ending = true;
        self.0.changed.notify_all();
        let waits = |state: &mut LogQueueState| state.writing || !state.waiting.is_empty();
        // Unread lines must not delay the end of the program.
        let _ = self
            .0
            .changed
            .wait_timeout_while(state, limit, waits)
            .unwrap_or_else(PoisonError::into_inner);
    }

    /// Writes lines to `out` until the program ends; `lost` formats the line about lost ones.
    fn write_out(&self, out: &mut impl io::Write, lost: impl Fn(u64) -> String) {
        let mut lines = Vec::new();
        loop {
            let mut state = self.state();
            state.writing = false;
            self.0.changed.notify_all();
            while state.waiting.is_empty() && state.lost == 0 {
                state.idle = true;
                state = self
                    .0
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            state.idle = false;
            state.writing = true;
            std::mem::swap(&mut lines, &mut state.waiting);
            let missing = std::mem::take(&mut state.lost);
            let hurry = state.ending;
            drop(state);
            if missing > 0 {
                // The lost lines came after the queued ones.
                lines.extend_from_slice(lost(missing).as_bytes());
            }
            let written = write_all(out, &lines);
            let failed = written < lines.len();
            if failed {
                let count =
                    |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
                let reported = u64::from(missing > 0);
                // The line about lost ones is not counted.
                let unwritten = count(&lines[written..]).saturating_sub(reported);
                self.state().lost += unwritten + missing;
            }
            lines.clear();
            if failed || !hurry {
                // After a failure writing is retried at a lower rate.
                std::thread::sleep(if failed {
                    COLLECT_TIME * 10
                } else {
                    COLLECT_TIME
                });
            }
        }
    }
}

/// Writes as much as possible and returns the number of bytes. A non-blocking descriptor is waited for.
fn write_all(out: &mut impl io::Write, mut bytes: &[u8]) -> usize {
    let all = bytes.len();
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => break,
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(COLLECT_TIME),
            Err(_) => break,
        }
    }
    all - bytes.len()
}

impl io::Write for LogLines {
    /// Receives one line: tracing writes each line in one call.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The event log on standard error, configured by `[log]`; RUST_LOG overrides its level.
#[derive(Clone)]
pub struct EventLog {
    json: bool,
    clock: Clock,
    lines: LogLines,
    alarms: AlarmBoard,
    level: Arc<LogLevel>,
}

/// Applies a level.
type SetLevel = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// The present level, and the function that changes it.
struct LogLevel {
    text: Mutex<String>,
    set: OnceLock<SetLevel>,
}

impl EventLog {
    /// Starts the log for the whole process.
    ///
    /// # Errors
    /// If the thread cannot be started, or standard error is closed.
    pub fn start(config: &Config, clock: Clock) -> io::Result<EventLog> {
        let (filter, level) = match tracing_subscriber::EnvFilter::try_from_default_env() {
            Ok(filter) => (filter.to_string(), filter.to_string()),
            Err(_) => (directives(&config.log.level), config.log.level.clone()),
        };
        let filter = tracing_subscriber::EnvFilter::new(filter);
        let json = config.log.json;
        let log = EventLog {
            json,
            clock,
            lines: LogLines::default(),
            alarms: AlarmBoard::default(),
            level: Arc::new(LogLevel {
                text: Mutex::new(level),
                set: OnceLock::new(),
            }),
        };
        // Not through `io::stderr`, whose lock would be held during a blocking write.
        let mut out = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let lines = log.lines.clone();
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || {
                // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
                let _ = net::block_signals();
                lines.write_out(&mut out, |count| lost_line(json, &clock, count));
            })?;
        let lines = log.lines.clone();
        std::panic::set_hook(Box::new(move |panic| {
            let trace = std::backtrace::Backtrace::capture();
            lines.put(format!("{panic}\n{trace}\n").as_bytes());
            lines.end(END_TIMEOUT);
        }));
        let lines = log.lines.clone();
        let builder = tracing_subscriber::fmt()
            .with_writer(move || lines.clone())
            .with_target(false);
        let set: SetLevel = if log.json {
            let builder = builder.json().flatten_event(true);
            let builder = builder.with_env_filter(filter).with_filter_reloading();
            let handle = builder.reload_handle();
            builder.init();
            Box::new(move |level| handle.reload(level).map_err(|error| error.to_string()))
        } else {
            let builder = builder.with_ansi(false);
            let builder = builder.with_env_filter(filter).with_filter_reloading();
            let handle = builder.reload_handle();
            builder.init();
            Box::new(move |level| handle.reload(level).map_err(|error| error.to_string()))
        };
        // It is set once.
        let _ = log.level.set.set(set);
        Ok(log)
    }

    /// A log that nothing writes out: a process has one that does.
    #[cfg(test)]
    pub(crate) fn unwritten(clock: Clock) -> EventLog {
        EventLog {
            json: false,
            clock,
            lines: LogLines::default(),
            alarms: AlarmBoard::default(),
            level: Arc::new(LogLevel {
                text: Mutex::default(),
                set: OnceLock::new(),
            }),
        }
    }

    /// The alarms that follow the logged events.
    pub(crate) fn alarms(&self) -> AlarmBoard {
        self.alarms.clone()
    }

    /// The present level.
    pub(crate) fn level(&self) -> String {
        let text = self.level.text.lock();
        text.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the level until the end of the program.
    ///
    /// # Errors
    /// If the level cannot be changed.
    pub(crate) fn set_level(&self, level: &str) -> Result<(), String> {
        let set = self.level.set.get().ok_or("the log has not started")?;
        set(&directives(level))?;
        let text = self.level.text.lock();
        level.clone_into(&mut text.unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }

    /// Starts writing the lines of this turn without waiting for completion.
    pub fn flush(&self) {
        self.lines.flush();
    }

    /// Writes `line`, unless it is empty, and all queued lines at the end of the program; waits for a limited time.
    pub fn end(&self, line: &str) {
        if !line.is_empty() {
            self.lines.put(format!("{line}\n").as_bytes());
        }
        self.lines.end(END_TIMEOUT);
    }

    /// Queues the line of an event. It is formatted here, since tracing takes twice as long.
    fn put(&self, level: &str, event: &Event) {
        let nanos = self.clock.unix_nanos(event.at);
        let line = match self.json {
            true => json_line(nanos, level, event),
            false => text_line(nanos, level, event),
        };
        self.lines.put(line.as_bytes());
    }

    /// Logs an event at its declared level, and the alarm that it raises or clears.
    pub fn event(&self, event: &Event) {
        self.write(event);
        if let Some(alarm) = self.alarms.observe(&event.kind, event.at) {
            self.write(&Event::new(event.at, alarm));
        }
    }

    /// Whether events of level debug are logged at present.
    pub(crate) fn has_debug(&self) -> bool {
        tracing::enabled!(tracing::Level::DEBUG)
    }

    fn write(&self, event: &Event) {
        macro_rules! write {
            ($name:ident) => {
                if tracing::enabled!(tracing::Level::$name) {
                    self.put(stringify!($name), event);
                }
            };
        }
        match event.kind.level() {
            EventLevel::Error => write!(ERROR),
            EventLevel::Warn => write!(WARN),
            EventLevel::Info => write!(INFO),
            EventLevel::Debug => write!(DEBUG),
        }
    }
}

/// The filter of a level: it is that of this program. Libraries, such as the loader of BPF programs, log their
/// internals at levels of their own, and are heard from `warn` on.
fn directives(level: &str) -> String {
    let libraries = match level {
        "error" => "error",
        _ => "warn",
    };
    format!("{libraries},{}={level}", env!("CARGO_CRATE_NAME"))
}

/// Formats an event as one line of JSON, as tracing does.
fn json_line(unix_nanos: u64, level: &str, event: &Event) -> String {
    let mut object = serde_json::Map::new();
    object.insert("timestamp".to_owned(), timestamp(unix_nanos).into());
    object.insert("level".to_owned(), level.into());
    object.insert("event".to_owned(), event.kind.name().into());
    object.insert("at".to_owned(), event.at.to_string().into());
    event.kind.typed_fields(&mut |name, value| {
        // By the declared type: a user or a tag that consists of digits is a text, as others are.
        let value: serde_json::Value = match value {
            FieldValue::Text(text) => text.into(),
            FieldValue::Integer(number) => number.into(),
            FieldValue::Decimal(figure) => (figure.0 as f64 / 100.0).into(),
            FieldValue::Flag(flag) => flag.to_string().into(),
        };
        object.insert(name.to_owned(), value);
    });
    format!("{}\n", serde_json::Value::Object(object))
}

/// Bytes of most lines.
const LINE: usize = 320;

/// Formats an event as one line of text, as tracing does. The event's text escapes control characters, so that a log
/// cannot control the terminal that shows it.
fn text_line(unix_nanos: u64, level: &str, event: &Event) -> String {
    let mut line = String::with_capacity(LINE);
    append_timestamp(&mut line, unix_nanos);
    // Aligned to the right of five columns, after a space.
    line.push_str("      ".get(level.len().min(5)..).unwrap_or_default());
    line.push_str(level);
    line.push(' ');
    event.append_to(&mut line);
    line.push('\n');
    line
}

/// The line about lost ones.
fn lost_line(json: bool, clock: &Clock, lines: u64) -> String {
    let event = Event::new(clock.now(), EventKind::LogLinesDropped { lines });
    let nanos = clock.unix_nanos(event.at);
    match json {
        true => json_line(nanos, "WARN", &event),
        false => text_line(nanos, "WARN", &event),
    }
}

/// RFC 3339 in UTC with microseconds.
pub(crate) fn timestamp(unix_nanos: u64) -> String {
    let mut text = String::new();
    append_timestamp(&mut text, unix_nanos);
    text
}

fn append_timestamp(text: &mut String, unix_nanos: u64) {
    let seconds = unix_nanos / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of year 0, in eras of 400 years: leap days are then at the end of years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    for (number, width, end) in [
        (era * 400 + year + carry, 4, '-'),
        (month, 2, '-'),
        (date, 2, 'T'),
        (second / 3_600, 2, ':'),
        (second / 60 % 60, 2, ':'),
        (second % 60, 2, '.'),
        (unix_nanos % 1_000_000_000 / 1_000, 6, 'Z'),
    ] {
        engine::push_digits(text, number, width);
        text.push(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{Hundredths, ReportedJitter, Time};

    /// A sink that accepts some writes, then blocks the writer or fails.
    #[derive(Clone, Default)]
    struct Pipe(Arc<Mutex<(bool, bool, Vec<u8>)>>);

    impl Pipe {
        fn set(&self, full: bool, broken: bool) {
            let mut pipe = self.0.lock().unwrap();
            (pipe.0, pipe.1) = (full, broken);
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().2.clone()).unwrap()
        }

        /// Waits for a text, long enough for a thread at idle priority.
        fn has(&self, text: &str) -> bool {
            (0..6_000).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                self.text().contains(text)
            })
        }
    }

    impl io::Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            while self.0.lock().unwrap().0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let mut pipe = self.0.lock().unwrap();
            if pipe.1 {
                return Err(ErrorKind::StorageFull.into());
            }
            pipe.2.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn writer(pipe: &Pipe) -> LogLines {
        let (lines, mut pipe) = (LogLines::default(), pipe.clone());
        let own = lines.clone();
        std::thread::spawn(move || own.write_out(&mut pipe, |count| format!("lost {count}\n")));
        lines
    }

    #[test]
    fn blocked_log_blocks_no_thread_and_lost_lines_are_reported() {
        let pipe = Pipe::default();
        let lines = writer(&pipe);
        lines.put(b"first\n");
        lines.flush();
        assert!(pipe.has("first\n"));
        pipe.set(true, false);
        let line = [b"x".repeat(1_023), b"\n".to_vec()].concat();
        // The writer has some of the lines, the queue as many as its capacity. The pipe is full until these calls have
        // returned: one that waited for it would not return.
        for _ in 0..4_096 {
            lines.put(&line);
            lines.flush();
        }
        lines.end(Duration::from_millis(50));
        pipe.set(false, false);
        assert!(pipe.has("lost "), "{}", pipe.text().len());
        let text = pipe.text();
        let lost: usize = text
            .lines()
            .find_map(|line| line.strip_prefix("lost "))
            .and_then(|count| count.parse().ok())
            .unwrap();
        let written = text.lines().filter(|line| line.starts_with('x')).count();
        assert_eq!(written + lost, 4_096);
        assert!(
            written >= MAX_QUEUED_BYTES / line.len() && lost > 1_000,
            "{lost}"
        );
        lines.put(b"last\n");
        lines.end(Duration::from_secs(60));
        assert!(pipe.text().ends_with("last\n"));
    }

    #[test]
    fn lines_lost_on_a_full_disk_are_reported_once_it_has_space() {
        let pipe = Pipe::default();
        let lines = writer(&pipe);
        pipe.set(false, true);
        for lost in 1..=3 {
            lines.put(b"nowhere\n");
            lines.flush();
            // A thread at idle priority may be late.
            let is_lost = |_| {
                std::thread::sleep(Duration::from_millis(10));
                lines.state().lost == lost
            };
            assert!((0..6_000).any(is_lost), "{lost}");
        }
        pipe.set(false, false);
        lines.put(b"last\n");
        lines.flush();
        assert!(pipe.has("lost 3\n"), "{}", pipe.text());
        assert!(!pipe.text().contains("nowhere"));
    }

    #[test]
    fn levels_are_those_of_the_program_and_libraries_are_heard_from_warn_on() {
        let written = |level: &str| {
            let pipe = Pipe::default();
            let own = pipe.clone();
            let subscriber = tracing_subscriber::fmt()
                .with_writer(move || own.clone())
                .with_env_filter(tracing_subscriber::EnvFilter::new(directives(level)))
                .finish();
            tracing::subscriber::with_default(subscriber, || {
                tracing::debug!("own debug");
                tracing::error!("own error");
                tracing::debug!(target: "aya_obj::relocation", "foreign debug");
                tracing::info!(target: "aya::bpf", "foreign info");
                tracing::warn!(target: "rustls", "foreign warn");
            });
            pipe.text()
        };
        let debug = written("debug");
        for (text, shown) in [
            ("own debug", true),
            ("own error", true),
            ("foreign debug", false),
            ("foreign info", false),
            ("foreign warn", true),
        ] {
            assert_eq!(debug.contains(text), shown, "{text}: {debug}");
        }
        assert_eq!(written("error").lines().count(), 1);
    }

    #[test]
    fn a_line_is_one_json_object() {
        let note = EventKind::CallOffered {
            call: 7,
            interface: "out".into(),
            call_id: "a\nb".into(),
            from: "sip:\"x\"@y".into(),
            to: "0800".into(),
            source: "udp:192.0.2.1:5060".into(),
            trunk: None,
        };
        let line = json_line(
            1_700_000_000_123_456_789,
            "INFO",
            &Event::new(Time::ZERO, note),
        );
        assert_eq!(line.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["timestamp"], "2023-11-14T22:13:20.123456Z");
        assert_eq!((&value["call"], &value["to"]), (&7.into(), &"0800".into()));
        assert_eq!(value["call_id"], "a\nb");
    }

    #[test]
    fn texts_of_digits_are_texts() {
        let tagged = EventKind::CallTagged {
            call: 7,
            tag: "1".into(),
            value: "4711".into(),
        };
        let down = EventKind::TrunkUp { trunk: "1".into() };
        let failed = EventKind::AuthenticationFailed {
            source: "1".into(),
            aor: "1".into(),
            user: "4930123456".into(),
            reason: "1".into(),
            suppressed: 3,
        };
        for (kind, texts) in [
            (tagged, &["tag", "value"][..]),
            (down, &["trunk"]),
            (failed, &["source", "aor", "user", "reason"]),
        ] {
            let line = json_line(0, "INFO", &Event::new(Time::ZERO, kind));
            let value: serde_json::Value = serde_json::from_str(&line).unwrap();
            for name in texts {
                assert!(value[name].is_string(), "{name}: {value}");
            }
            assert!(value["call"].is_null() || value["call"] == 7);
        }
    }

    #[test]
    fn figures_are_numbers_and_absent_where_there_are_none() {
        let note = EventKind::CallEnded {
            call: 7,
            ended_by: "caller".into(),
            reason: "bye".into(),
            status: 200,
            duration_ms: Some(61_500),
            trunk: None,
            path: Some("sockets".into()),
            codec: Some("PCMA".into()),
            caller_loss_percent: Some(Hundredths::of(0.0)),
            caller_jitter_ms: Some(ReportedJitter::measured(1.2345)),
            caller_mos: Some(Hundredths::of(4.409)),
            callee_loss_percent: None,
            callee_jitter_ms: Some(ReportedJitter::Whole(2)),
            callee_mos: None,
        };
        let event = Event::new(Time::ZERO, note);
        let value: serde_json::Value = serde_json::from_str(&json_line(0, "INFO", &event)).unwrap();
        assert_eq!(value["duration_ms"], 61_500);
        assert_eq!(value["caller_jitter_ms"], 1.23);
        assert_eq!(value["callee_jitter_ms"].to_string(), "2");
        assert_eq!(value["caller_mos"], 4.41);
        assert_eq!(value["caller_loss_percent"], 0.0);
        assert!(value.get("callee_mos").is_none());
        let line = text_line(0, "INFO", &event);
        assert!(
            line.ends_with(
                "caller_loss_percent=0.00 caller_jitter_ms=1.23 caller_mos=4.41 callee_jitter_ms=2\n"
            ),
            "{line}"
        );
    }

    #[test]
    fn a_line_of_text_has_no_control_characters() {
        let note = EventKind::CallAnswered {
            call: 7,
            setup_ms: None,
            call_id: None,
        };
        let at = 1_700_000_000_123_456_789;
        assert_eq!(
            text_line(at, "INFO", &Event::new(Time::ZERO, note)),
            "2023-11-14T22:13:20.123456Z  INFO 0.000000000 call_answered call=7\n"
        );
        let note = EventKind::RegistrationEnded {
            aor: "a\u{1b}[2J\nb\u{9b}ü".into(),
            reason: "removed".into(),
        };
        let line = text_line(at, "WARN", &Event::new(Time::ZERO, note));
        assert_eq!(line.chars().filter(|c| c.is_control()).count(), 1);
        assert!(line.ends_with('\n') && line.contains('ü'), "{line}");
    }

    #[test]
    fn timestamps_are_dates() {
        let at = |seconds: u64| timestamp(seconds * 1_000_000_000);
        assert_eq!(at(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000000Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59.000000Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59.000000Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000000Z");
    }
}
