//! `hornwork top`: live view of a running border over its Unix socket.

use crate::ctl::{DEFAULT_SOCKET, request, shown, unreachable};
use clap::Args;
use serde_json::Value;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Options of `hornwork top`.
#[derive(Debug, Args)]
#[command(after_help = "Example: hornwork top --socket /run/hornwork/control.sock")]
pub struct TopOptions {
    /// Socket of the border: `socket` in [control].
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Seconds between two views.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    interval: u32,
    /// Number of views; 0: until it is interrupted.
    #[arg(long, default_value_t = 0)]
    count: u32,
}

/// Width of a view in columns.
const WIDTH: usize = 80;
/// Most trunks and alarms in a view.
const MAX_ROWS: usize = 8;

/// `hornwork top`.
pub fn run(options: &TopOptions) -> ExitCode {
    let terminal = std::io::stdout().is_terminal();
    let mut before: Option<Value> = None;
    let mut views = 0;
    loop {
        let (status, answer) = match request(&options.socket, "GET", "/v1/overview", None) {
            Ok(answer) => answer,
            Err(error) => return unreachable(&options.socket, &error),
        };
        let view = match status {
            200 => {
                let view = view(&answer, before.as_ref());
                before = Some(answer);
                view
            }
            // An overloaded border may respond too late, or admit no further request: then its figures matter most.
            429 | 503 if before.is_some() => format!(
                "hornwork  {}, next try in {} s\n",
                shown(answer.get("error")),
                options.interval
            ),
            _ => {
                eprintln!("hornwork: {}", shown(answer.get("error")));
                return ExitCode::from(3);
            }
        };
        let text = match terminal {
            // Home, the view with each line cleared to its end, and the rest of the screen cleared.
            true => format!("\x1b[H{}\x1b[J", view.replace('\n', "\x1b[K\n")),
            false => view,
        };
        print!("{text}");
        // A reader that has gone ends the program by SIGPIPE.
        if lab::output::output_failure().is_some() {
            return ExitCode::from(3);
        }
        views += 1;
        if options.count != 0 && views >= options.count {
            return ExitCode::SUCCESS;
        }
        std::thread::sleep(Duration::from_secs(options.interval.into()));
    }
}

fn number(value: &Value, at: &str) -> f64 {
    value.pointer(at).and_then(Value::as_f64).unwrap_or(0.0)
}

/// One view, at most [`WIDTH`] columns wide. Rates are those since `before`; without it, since the start.
fn view(now: &Value, before: Option<&Value>) -> String {
    let absent = Value::Null;
    let before = before.unwrap_or(&absent);
    let span = (number(now, "/uptime_s") - number(before, "/uptime_s")).max(0.001);
    let rate = |at: &str| ((number(now, at) - number(before, at)) / span).max(0.0);
    let mut lines = Vec::new();
    let state = match (now.pointer("/draining"), now.pointer("/overload")) {
        (Some(Value::Bool(true)), _) => "draining",
        (_, Some(Value::Bool(true))) => "overload",
        _ => "running",
    };
    lines.push(format!(
        "hornwork  {}  up {}  {state}",
        shown(now.get("time")).chars().take(19).collect::<String>(),
        span_text(number(now, "/uptime_s")),
    ));
    lines.push(format!(
        "calls     {:>8} active  {:>8.1}/s offered  {:>8.1}/s answered",
        number(now, "/calls/active"),
        rate("/calls/offered"),
        rate("/calls/answered"),
    ));
    let result = |name: &str| number(now, &format!("/calls/results/{name}"));
    lines.push(format!(
        "ended     {} completed  {} cancelled  {} declined  {} unanswered",
        result("completed"),
        result("cancelled"),
        result("declined"),
        result("unanswered"),
    ));
    lines.push(format!(
        "          {} refused  {} redirected  {} failed",
        result("refused"),
        result("redirected"),
        result("failed"),
    ));
    lines.push(format!(
        "contacts  {:>8} registered",
        number(now, "/registrations")
    ));
    let (packets, lost) = (rate("/media/ended_packets"), rate("/media/ended_lost"));
    let loss = match packets + lost > 0.0 {
        true => format!("{:.2} %", lost * 100.0 / (packets + lost)),
        false => "-".to_owned(),
    };
    lines.push(format!(
        "media     {:>8.0} packets/s   loss of ended calls {loss}",
        rate("/media/packets"),
    ));
    let threads = now.get("cpu_s").and_then(Value::as_object);
    let mut cpu: Vec<(&str, f64)> = threads
        .into_iter()
        .flatten()
        .map(|(name, seconds)| {
            let old = before.get("cpu_s").and_then(|old| old.get(name));
            let old = old.and_then(Value::as_f64).unwrap_or(0.0);
            (
                name.as_str(),
                (seconds.as_f64().unwrap_or(0.0) - old).max(0.0) * 100.0 / span,
            )
        })
        .collect();
    cpu.sort_by(|one, other| other.1.total_cmp(&one.1));
    let cpu: Vec<String> = cpu
        .iter()
        .take(5)
        .map(|(name, percent)| format!("{name} {percent:.0} %"))
        .collect();
    lines.push(format!(
        "cpu       {}   queue {:.1} ms",
        cpu.join("  "),
        number(now, "/queue_delay_ms"),
    ));
    let drops = now.get("drops").and_then(Value::as_object);
    let mut drops: Vec<(&str, f64)> = drops
        .into_iter()
        .flatten()
        .map(|(name, count)| (name.as_str(), count.as_f64().unwrap_or(0.0)))
        .collect();
    drops.sort_by(|one, other| other.1.total_cmp(&one.1));
    let drops: Vec<String> = drops
        .iter()
        .take(3)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    lines.push(format!(
        "drops     {}",
        if drops.is_empty() {
            "none".to_owned()
        } else {
            drops.join("  ")
        }
    ));
    lines.extend(store_line(now));
    lines.push(String::new());
    lines.push(format!(
        "{:<30} {:<9} {:<6} {:>8}",
        "TRUNK", "SERVICE", "STATE", "CALLS"
    ));
    let is = |trunk: &Value, at: &str| trunk.get(at) == Some(&Value::Bool(true));
    let trunks = now.get("trunks").and_then(Value::as_array);
    let mut trunks: Vec<&Value> = trunks.into_iter().flatten().collect();
    // Those that are out of service or down must not be among those that are left out.
    trunks.sort_by_key(|trunk| is(trunk, "enabled") && is(trunk, "up"));
    for trunk in trunks.iter().take(MAX_ROWS) {
        let text = |at: &str| is(trunk, at);
        let name: String = shown(trunk.get("name")).chars().take(30).collect();
        let service = if text("enabled") {
            "enabled"
        } else {
            "disabled"
        };
        let state = if text("up") { "up" } else { "down" };
        lines.push(format!(
            "{name:<30} {service:<9} {state:<6} {:>8}",
            number(trunk, "/calls")
        ));
    }
    if trunks.len() > MAX_ROWS {
        lines.push(format!("{} more", trunks.len() - MAX_ROWS));
    }
    lines.push(String::new());
    let alarms = now
        .get("alarms")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    lines.push(format!(
        "ALARMS    {}",
        if alarms.is_empty() {
            "none".to_owned()
        } else {
            alarms.len().to_string()
        }
    ));
    for alarm in alarms.iter().take(MAX_ROWS) {
        lines.push(format!(
            "{:>5}  {:<8}  {} {}  {}",
            shown(alarm.get("id")),
            shown(alarm.get("severity")),
            shown(alarm.get("alarm")),
            shown(alarm.get("object")),
            shown(alarm.get("detail")),
        ));
    }
    let cut = |line: &String| line.chars().take(WIDTH).collect::<String>();
    lines.iter().map(cut).collect::<Vec<_>>().join("\n") + "\n"
}

/// The store of calls and messages: whether it is written, and its losses since the start. `None`: there is none.
fn store_line(now: &Value) -> Option<String> {
    let store = now.get("store")?.as_object()?;
    let state = match store.get("failing") == Some(&Value::Bool(true)) {
        true => "FAILING",
        false => "writing",
    };
    let lost = store.get("lost").and_then(Value::as_object);
    let lost: Vec<String> = lost
        .into_iter()
        .flatten()
        .filter(|(_, count)| count.as_u64() != Some(0))
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    let lost = match lost.is_empty() {
        true => "none".to_owned(),
        false => lost.join("  "),
    };
    Some(format!("store     {state}   lost {lost}"))
}

fn span_text(seconds: f64) -> String {
    let seconds = seconds as u64;
    format!(
        "{}:{:02}:{:02}",
        seconds / 3_600,
        seconds / 60 % 60,
        seconds % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn view_has_rates_and_fits_a_terminal() {
        let at = |uptime: f64, offered: u64| {
            json!({
                "time": "2026-11-24T10:00:00.000000Z", "uptime_s": uptime, "draining": false, "overload": false,
                "calls": { "active": 12, "offered": offered, "answered": offered, "results": { "completed": 7 } },
                "registrations": 3, "media": { "packets": 1000, "ended_packets": 0, "ended_lost": 0 },
                "queue_delay_ms": 0.4, "cpu_s": { "hornwork": uptime / 2.0 }, "drops": { "sip_unparsable": 4 },
                "trunks": [{ "name": "x".repeat(60), "enabled": false, "up": true, "calls": 5 }],
                "alarms": [{ "id": 1, "severity": "critical", "alarm": "trunk_down", "object": "y".repeat(90), "detail": "z" }],
            })
        };
        let text = view(&at(12.0, 120), Some(&at(10.0, 100)));
        assert!(
            text.contains("10.0/s offered") && text.contains("hornwork 50 %"),
            "{text}"
        );
        assert!(!text.contains("store"), "{text}");
        assert!(
            text.contains("disabled") && text.contains("trunk_down"),
            "{text}"
        );
        let mut stored = at(12.0, 120);
        stored["store"] = json!({
            "failing": true, "unindexed": 1, "lost": { "messages": 7, "events": 2, "drops": 0, "calls": 0 },
        });
        let with_store = view(&stored, None);
        assert!(
            with_store.contains("store     FAILING   lost 7 messages  2 events\n"),
            "{with_store}"
        );
        assert!(
            text.lines().all(|line| line.chars().count() <= WIDTH),
            "{text}"
        );
    }
    #[test]
    fn trunks_that_are_down_are_not_left_out() {
        let trunk = |number: usize| json!({ "name": format!("trunk-{number}"), "enabled": number != 10, "up": number != 11, "calls": 0 });
        let trunks: Vec<Value> = (0..12).map(trunk).collect();
        let text = view(&json!({ "trunks": trunks }), None);
        let rows: Vec<&str> = text
            .lines()
            .skip_while(|line| !line.starts_with("TRUNK"))
            .skip(1)
            .take(MAX_ROWS + 1)
            .collect();
        assert!(rows[0].contains("trunk-10") && rows[0].contains("disabled"));
        assert!(rows[1].contains("trunk-11") && rows[1].contains("down"));
        assert!(rows[2].contains("trunk-0"), "{text}");
        assert_eq!(rows[MAX_ROWS], "4 more", "{text}");
    }

    #[test]
    fn an_overloaded_border_does_not_end_the_view() {
        use std::io::{Read as _, Write as _};
        let name = format!("hornwork-top-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let border = std::thread::spawn(move || {
            for answer in ["200 OK", "503 x", "429 x", "200 OK", "503 x"] {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(stream.read(&mut [0; 1_024]).unwrap() > 0);
                let text = format!("HTTP/1.1 {answer}\r\n\r\n{{\"uptime_s\": 1}}");
                stream.write_all(text.as_bytes()).unwrap();
            }
        });
        let run_views = |count| {
            let options = TopOptions {
                socket: path.clone(),
                interval: 1,
                count,
            };
            format!("{:?}", run(&options))
        };
        assert_eq!(run_views(4), format!("{:?}", ExitCode::SUCCESS));
        // Without any figures it is a refusal.
        assert_eq!(run_views(1), format!("{:?}", ExitCode::from(3)));
        border.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
