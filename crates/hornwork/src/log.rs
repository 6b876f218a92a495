//! The log of a border in service.

use border::config::Config;
use engine::{Event, Note};
use net::Clock;
use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

/// Lines on their way to standard error: written once per turn, because a system call per line would be felt at
/// thousands of calls a second.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// Bytes that wait at most.
    const MOST: usize = 64 << 10;

    fn put(&self, bytes: &[u8]) -> io::Result<()> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.extend_from_slice(bytes);
        match waiting.len() > Lines::MOST {
            true => Lines::write_out(&mut waiting),
            false => Ok(()),
        }
    }

    fn flush(&self) -> io::Result<()> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Lines::write_out(&mut waiting)
    }

    fn write_out(waiting: &mut Vec<u8>) -> io::Result<()> {
        let done = match waiting.is_empty() {
            true => Ok(()),
            false => io::stderr().write_all(waiting),
        };
        waiting.clear();
        done
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log: on standard error, as `[log]` says; RUST_LOG overrules its level.
#[derive(Clone)]
pub struct Log {
    json: bool,
    clock: Clock,
    lines: Lines,
}

impl Drop for Log {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Log {
    /// Starts it, for the whole process.
    pub fn start(config: &Config, clock: Clock) -> Log {
        let filter = tracing_subscriber::EnvFilter::try_from_default_env()
            .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(&config.log.level));
        let log = Log {
            json: config.log.json,
            clock,
            lines: Lines::default(),
        };
        let lines = log.lines.clone();
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(move || lines.clone())
            .with_target(false);
        if log.json {
            builder.json().flatten_event(true).init();
        } else {
            builder.with_ansi(false).init();
        }
        log
    }

    /// Writes out what waits.
    pub fn flush(&self) {
        // A log that nobody takes any more is no reason to stop calls, and there is nowhere to say so.
        let _ = self.lines.flush();
    }

    fn json(&self, level: &str, event: &Event) {
        let line = json_line(self.clock.unix_nanos(event.at), level, event);
        // As above.
        let _ = self.lines.put(line.as_bytes());
    }

    /// Writes an event, at the level that it deserves.
    pub fn event(&self, event: &Event) {
        macro_rules! write {
            ($level:ident, $name:ident) => {
                match self.json {
                    _ if !tracing::enabled!(tracing::Level::$name) => {}
                    true => self.json(stringify!($name), event),
                    false => tracing::$level!("{event}"),
                }
            };
        }
        match &event.note {
            Note::SocketFailed { .. } | Note::ConfigurationRefused { .. } => write!(error, ERROR),
            Note::TrunkDown { .. }
            | Note::TlsRefused { .. }
            | Note::WebsocketRefused { .. }
            | Note::CertificateExpires { .. }
            | Note::MediaPortsExhausted { .. }
            | Note::MediaPortTaken { .. }
            | Note::MediaPortsLent { .. }
            | Note::RecordingFailed { .. }
            | Note::MediaNotKeyed { .. }
            | Note::MediaConsentLost { .. }
            | Note::MediaIceFailed { .. }
            | Note::MediaNodeDown { .. }
            | Note::MediaNodeFailed { .. }
            | Note::MediaNodeLost { .. }
            | Note::ControlRefused { .. }
            | Note::AuthenticationFailed { .. }
            | Note::MediaTimeout { .. } => write!(warn, WARN),
            Note::CallProgressed { .. }
            | Note::CallRouted { .. }
            | Note::MediaLatched { .. }
            | Note::MediaNodeChosen { .. }
            | Note::RequestRefused { .. }
            | Note::AuthenticationRequired { .. }
            | Note::Authenticated { .. }
            | Note::ConnectionClosed { .. } => write!(debug, DEBUG),
            _ => write!(info, INFO),
        }
    }
}

/// An event as one line of JSON, in the form of the lines that tracing writes.
fn json_line(unix_nanos: u64, level: &str, event: &Event) -> String {
    let mut object = serde_json::Map::new();
    object.insert("timestamp".to_owned(), timestamp(unix_nanos).into());
    object.insert("level".to_owned(), level.into());
    object.insert("event".to_owned(), event.note.name().into());
    object.insert("at".to_owned(), event.at.to_string().into());
    event.note.fields(&mut |name, value| {
        let text = value.to_string();
        let value = match text.parse::<u64>() {
            Ok(number) if number.to_string() == text && !NAMES.contains(&name) => number.into(),
            _ => text.into(),
        };
        object.insert(name.to_owned(), value);
    });
    format!("{}\n", serde_json::Value::Object(object))
}

/// Fields that are names, even where one happens to consist of digits.
const NAMES: [&str; 9] = [
    "number",
    "from",
    "to",
    "aor",
    "target",
    "trunk",
    "interface",
    "call_id",
    "why",
];

/// RFC 3339 in UTC with microseconds.
pub(crate) fn timestamp(unix_nanos: u64) -> String {
    let seconds = unix_nanos / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of year 0, in eras of 400 years: leap days then stand at the end of years.
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
    format!(
        "{:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}.{:06}Z",
        era * 400 + year + carry,
        second / 3_600,
        second / 60 % 60,
        second % 60,
        unix_nanos % 1_000_000_000 / 1_000
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Time;

    #[test]
    fn a_line_is_one_json_object() {
        let note = Note::CallOffered {
            call: 7,
            interface: "out".into(),
            call_id: "a\nb".into(),
            from: "sip:\"x\"@y".into(),
            to: "0800".into(),
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
    fn timestamps_are_dates() {
        let at = |seconds: u64| timestamp(seconds * 1_000_000_000);
        assert_eq!(at(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000000Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59.000000Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59.000000Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000000Z");
    }
}
