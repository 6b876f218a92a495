//! `hornwork ctl`: operator commands over the Unix socket of a running border.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Socket of a packaged installation.
pub(crate) const DEFAULT_SOCKET: &str = "/run/hornwork/control.sock";
/// Longest wait for a response.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Entries of a page of a list.
const PAGE: u32 = 1_000;
/// Pause after a refusal because of too many requests; the border admits a hundred in it.
const PAUSE: Duration = Duration::from_secs(1);
/// Most pauses for one page of a list.
const MAX_PAUSES: u32 = 30;
/// Status of such a refusal.
const TOO_MANY_REQUESTS: u16 = 429;
/// Largest response, octets.
const MAX_RESPONSE: u64 = 256 << 20;

/// Options of `hornwork ctl`.
#[derive(Debug, Args)]
#[command(after_help = "Example: hornwork ctl --socket /run/hornwork/control.sock calls list")]
pub struct ControlOptions {
    /// Socket of the border: `socket` in [control].
    #[arg(long, global = true, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: ControlCommand,
}

#[derive(Debug, Subcommand)]
enum ControlCommand {
    /// Calls in progress.
    #[command(
        subcommand,
        after_help = "Example: hornwork ctl calls list --limit 100"
    )]
    Calls(CallCommand),
    /// Registered users.
    #[command(
        subcommand,
        after_help = "Example: hornwork ctl registrations list --limit 100"
    )]
    Registrations(RegistrationCommand),
    /// Trunks: state, into and out of service.
    #[command(subcommand, after_help = "Example: hornwork ctl trunks list")]
    Trunks(TrunkCommand),
    /// Media nodes.
    #[command(subcommand, after_help = "Example: hornwork ctl nodes list --json")]
    Nodes(NodeCommand),
    /// Tunnels of the IPsec gateway: peers, keys, packets.
    #[command(subcommand, after_help = "Example: hornwork ctl tunnels list")]
    Tunnels(TunnelCommand),
    /// Limits of calls and registrations.
    #[command(subcommand, after_help = "Example: hornwork ctl limits show")]
    Limits(LimitCommand),
    /// Sources and users whose credentials are not checked, because of failures.
    #[command(subcommand, after_help = "Example: hornwork ctl bans list")]
    Bans(BanCommand),
    /// Log.
    #[command(subcommand, after_help = "Example: hornwork ctl log level debug")]
    Log(LogCommand),
    /// Alarms.
    #[command(subcommand, after_help = "Example: hornwork ctl alarms list")]
    Alarms(AlarmCommand),
    /// Read the configuration again; a faulty one changes nothing.
    #[command(after_help = "Example: hornwork ctl reload")]
    Reload,
    /// Refuse new calls, and end the program after the last call.
    #[command(after_help = "Example: hornwork ctl drain --timeout 600")]
    Drain {
        /// Seconds after which the remaining calls are ended.
        #[arg(long, value_name = "SECONDS")]
        timeout: Option<u32>,
    },
    /// State of the border; exit status 1 unless it is ready and has no critical alarm.
    #[command(after_help = "Example: hornwork ctl health")]
    Health,
    /// Discarded input by reason.
    #[command(after_help = "Example: hornwork ctl drops")]
    Drops,
    /// Version of the running program.
    #[command(after_help = "Example: hornwork ctl version")]
    Version,
}

#[derive(Debug, Subcommand)]
enum CallCommand {
    /// List calls.
    #[command(after_help = "Example: hornwork ctl calls list --limit 100")]
    List {
        /// Most calls; without it all.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        limit: Option<u32>,
        /// Only calls with higher numbers than this.
        #[arg(long, value_name = "ID")]
        after: Option<u64>,
    },
    /// Show a call.
    #[command(after_help = "Example: hornwork ctl calls show 1")]
    Show {
        /// Its number; or the Call-ID of one of its legs, with `call_id:` before it if it looks like a number.
        id: String,
    },
    /// End a call.
    #[command(after_help = "Example: hornwork ctl calls hangup 1")]
    Hangup {
        /// Its number; or the Call-ID of one of its legs, with `call_id:` before it if it looks like a number.
        id: String,
    },
}

#[derive(Debug, Subcommand)]
enum RegistrationCommand {
    /// List registered users.
    #[command(after_help = "Example: hornwork ctl registrations list --limit 100")]
    List {
        /// Most users; without it all.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        limit: Option<u32>,
        /// Only users behind this one in the order of their names.
        #[arg(long, value_name = "USER")]
        after: Option<String>,
    },
    /// Show the contacts of a user.
    #[command(after_help = "Example: hornwork ctl registrations show 1001")]
    Show {
        /// User part of the address of record.
        user: String,
    },
    /// Remove all contacts of a user.
    #[command(after_help = "Example: hornwork ctl registrations delete 1001")]
    Delete {
        /// User part of the address of record.
        user: String,
    },
}

#[derive(Debug, Subcommand)]
enum TrunkCommand {
    /// List trunks.
    #[command(after_help = "Example: hornwork ctl trunks list")]
    List,
    /// Put a trunk into service.
    #[command(after_help = "Example: hornwork ctl trunks enable pbx")]
    Enable {
        /// Its name.
        name: String,
    },
    /// Take a trunk out of service: it gets no new calls, those in progress go on.
    #[command(after_help = "Example: hornwork ctl trunks disable pbx")]
    Disable {
        /// Its name.
        name: String,
    },
}

#[derive(Debug, Subcommand)]
enum TunnelCommand {
    /// List the tunnels of the IPsec gateway.
    #[command(after_help = "Example: hornwork ctl tunnels list")]
    List,
}

#[derive(Debug, Subcommand)]
enum NodeCommand {
    /// List media nodes.
    #[command(after_help = "Example: hornwork ctl nodes list --json")]
    List,
}

#[derive(Debug, Subcommand)]
enum LimitCommand {
    /// Show the limits.
    #[command(after_help = "Example: hornwork ctl limits show")]
    Show,
    /// Change the limit of calls until the next reload or restart.
    #[command(after_help = "Example: hornwork ctl limits set --calls 500")]
    Set {
        /// Most calls.
        #[arg(long)]
        calls: u32,
    },
}

#[derive(Debug, Subcommand)]
enum BanCommand {
    /// List sources and users.
    #[command(after_help = "Example: hornwork ctl bans list")]
    List,
    /// Check the credentials of a source or a user again.
    #[command(after_help = "Example: hornwork ctl bans remove 192.0.2.7")]
    Remove {
        /// Address of the source, or user:NAME.
        source: String,
    },
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    /// Show the level, or set it until the restart.
    #[command(after_help = "Example: hornwork ctl log level debug")]
    Level {
        /// error, warn, info, debug or trace.
        level: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
enum AlarmCommand {
    /// List active alarms, then cleared ones.
    #[command(after_help = "Example: hornwork ctl alarms list")]
    List,
    /// Acknowledge an alarm.
    #[command(after_help = "Example: hornwork ctl alarms acknowledge 1")]
    Acknowledge {
        /// Its number.
        id: u64,
    },
}

/// Columns of a table: heading, and JSON pointer of the value.
type Columns = &'static [(&'static str, &'static str)];

const CALLS: Columns = &[
    ("ID", "/id"),
    ("STATE", "/state"),
    ("FROM", "/from"),
    ("TO", "/to"),
    ("IN", "/legs/0/interface"),
    ("TRUNK", "/legs/1/trunk"),
    ("CODEC", "/legs/0/codec"),
    ("MOS CALLER", "/legs/0/media/mos"),
    ("MOS CALLEE", "/legs/1/media/mos"),
    ("SECONDS", "/duration_s"),
];
const REGISTRATIONS: Columns = &[
    ("USER", "/user"),
    ("CONTACT", "/contacts/0/uri"),
    ("ADDRESS", "/contacts/0/address"),
    ("INTERFACE", "/contacts/0/interface"),
    ("EXPIRES", "/contacts/0/expires_s"),
];
const TRUNKS: Columns = &[
    ("NAME", "/name"),
    ("ENABLED", "/enabled"),
    ("UP", "/up"),
    ("CALLS", "/calls"),
    ("MAXIMUM", "/calls_max"),
    ("TARGET", "/targets/0/address"),
    ("TARGET UP", "/targets/0/up"),
];
const NODES: Columns = &[
    ("NAME", "/name"),
    ("ADDRESS", "/control"),
    ("UP", "/up"),
    ("DRAIN", "/drain"),
    ("CALLS", "/calls"),
    ("SESSIONS", "/sessions"),
];
const TUNNELS: Columns = &[
    ("NAME", "/name"),
    ("UP", "/up"),
    ("SINCE", "/since"),
    ("PEER", "/peer"),
    ("IDENTITY", "/identity"),
    ("ALGORITHMS", "/algorithms"),
    ("SEALED", "/sealed"),
    ("OPENED", "/opened"),
];
const BANS: Columns = &[
    ("SOURCE", "/source"),
    ("REASON", "/reason"),
    ("SECONDS", "/remaining_s"),
];
const DROPS: Columns = &[
    ("COUNT", "/count"),
    ("REASON", "/reason"),
    ("MEANING", "/meaning"),
];
const ALARMS: Columns = &[
    ("ID", "/id"),
    ("STATE", "/state"),
    ("SEVERITY", "/severity"),
    ("ALARM", "/alarm"),
    ("OBJECT", "/object"),
    ("DETAIL", "/detail"),
    ("RAISED", "/raised"),
    ("ACKNOWLEDGED", "/acknowledged"),
];

/// A request, and the form of its response: the name of the list with its columns, otherwise an object.
struct ControlCall {
    method: &'static str,
    path: String,
    body: Option<Value>,
    list: Option<(&'static str, Columns)>,
    pages: Option<ListPages>,
}

/// The part of a long list that is read, page by page.
struct ListPages {
    /// `None`: the whole list.
    limit: Option<u32>,
    /// The entry before it.
    after: Option<String>,
    /// Name of the field with the number of all calls or contacts.
    total: &'static str,
}

impl ControlCall {
    fn new(method: &'static str, path: impl Into<String>) -> ControlCall {
        ControlCall {
            method,
            path: path.into(),
            body: None,
            list: None,
            pages: None,
        }
    }

    fn list(path: impl Into<String>, name: &'static str, columns: Columns) -> ControlCall {
        ControlCall {
            list: Some((name, columns)),
            ..ControlCall::new("GET", path)
        }
    }

    fn with(self, body: Value) -> ControlCall {
        ControlCall {
            body: Some(body),
            ..self
        }
    }
}

/// A path segment, percent-encoded.
fn segment(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_~".contains(&byte);
    text.bytes()
        .map(|byte| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}

fn call_of(command: &ControlCommand) -> ControlCall {
    let trunk = |name: &str, enabled: bool| {
        ControlCall::new("PATCH", format!("/v1/trunks/{}", segment(name)))
            .with(json!({ "enabled": enabled }))
    };
    match command {
        ControlCommand::Calls(CallCommand::List { limit, after }) => ControlCall {
            pages: Some(ListPages {
                limit: *limit,
                after: after.map(|after| after.to_string()),
                total: "total",
            }),
            ..ControlCall::list("/v1/calls", "calls", CALLS)
        },
        ControlCommand::Calls(CallCommand::Show { id }) => {
            ControlCall::new("GET", format!("/v1/calls/{}", segment(id)))
        }
        ControlCommand::Calls(CallCommand::Hangup { id }) => {
            ControlCall::new("DELETE", format!("/v1/calls/{}", segment(id)))
        }
        ControlCommand::Registrations(RegistrationCommand::List { limit, after }) => ControlCall {
            pages: Some(ListPages {
                limit: *limit,
                after: after.clone(),
                total: "contacts",
            }),
            ..ControlCall::list("/v1/registrations", "registrations", REGISTRATIONS)
        },
        ControlCommand::Registrations(RegistrationCommand::Show { user }) => {
            ControlCall::new("GET", format!("/v1/registrations/{}", segment(user)))
        }
        ControlCommand::Registrations(RegistrationCommand::Delete { user }) => {
            ControlCall::new("DELETE", format!("/v1/registrations/{}", segment(user)))
        }
        ControlCommand::Trunks(TrunkCommand::List) => {
            ControlCall::list("/v1/trunks", "trunks", TRUNKS)
        }
        ControlCommand::Trunks(TrunkCommand::Enable { name }) => trunk(name, true),
        ControlCommand::Trunks(TrunkCommand::Disable { name }) => trunk(name, false),
        ControlCommand::Nodes(NodeCommand::List) => ControlCall::list("/v1/nodes", "nodes", NODES),
        ControlCommand::Tunnels(TunnelCommand::List) => {
            ControlCall::list("/v1/tunnels", "tunnels", TUNNELS)
        }
        ControlCommand::Limits(LimitCommand::Show) => ControlCall::new("GET", "/v1/limits"),
        ControlCommand::Limits(LimitCommand::Set { calls }) => {
            ControlCall::new("PATCH", "/v1/limits").with(json!({ "calls": calls }))
        }
        ControlCommand::Bans(BanCommand::List) => ControlCall::list("/v1/bans", "bans", BANS),
        ControlCommand::Bans(BanCommand::Remove { source }) => {
            ControlCall::new("DELETE", format!("/v1/bans/{}", segment(source)))
        }
        ControlCommand::Log(LogCommand::Level { level: None }) => {
            ControlCall::new("GET", "/v1/log")
        }
        ControlCommand::Log(LogCommand::Level { level: Some(level) }) => {
            ControlCall::new("PATCH", "/v1/log").with(json!({ "level": level }))
        }
        ControlCommand::Alarms(AlarmCommand::List) => {
            ControlCall::list("/v1/alarms", "alarms", ALARMS)
        }
        ControlCommand::Alarms(AlarmCommand::Acknowledge { id }) => {
            ControlCall::new("POST", format!("/v1/alarms/{id}/acknowledge"))
        }
        ControlCommand::Reload => ControlCall::new("POST", "/v1/reload"),
        ControlCommand::Drain { timeout } => {
            let query = timeout.map(|seconds| format!("?timeout_s={seconds}"));
            ControlCall::new("POST", format!("/v1/drain{}", query.unwrap_or_default()))
        }
        ControlCommand::Health => ControlCall::new("GET", "/v1/health"),
        ControlCommand::Drops => ControlCall::list("/v1/drops", "drops", DROPS),
        ControlCommand::Version => ControlCall::new("GET", "/v1/version"),
    }
}

/// Sends a request; returns status and JSON of the response.
///
/// # Errors
/// If the socket cannot be reached, or the response is none.
pub(crate) fn request(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> io::Result<(u16, Value)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let text = body.map(Value::to_string).unwrap_or_default();
    let content = match body {
        Some(_) => format!(
            "Content-Type: application/json\r\nContent-Length: {}\r\n",
            text.len()
        ),
        None => String::new(),
    };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{content}\r\n"
    );
    stream.write_all(format!("{head}{text}").as_bytes())?;
    let mut bytes = Vec::new();
    stream.take(MAX_RESPONSE).read_to_end(&mut bytes)?;
    let answer = String::from_utf8_lossy(&bytes);
    let broken = || io::Error::other("the response is not that of a hornwork border");
    let (head, rest) = answer.split_once("\r\n\r\n").ok_or_else(broken)?;
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let chunked = head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked");
    if chunked {
        return Err(broken());
    }
    let value = serde_json::from_str(rest).map_err(|_| broken())?;
    Ok((status.ok_or_else(broken)?, value))
}

/// As [`request`] for a page of a list: the border admits a number of requests of all its clients, and a list must not
/// be given up because of them.
///
/// # Errors
/// As [`request`].
fn request_page(socket: &Path, path: &str) -> io::Result<(u16, Value)> {
    for _ in 0..MAX_PAUSES {
        match request(socket, "GET", path, None)? {
            (TOO_MANY_REQUESTS, _) => std::thread::sleep(PAUSE),
            answer => return Ok(answer),
        }
    }
    request(socket, "GET", path, None)
}

/// Reads a list page by page. Returns the last response, with the entries of all pages.
///
/// # Errors
/// As [`request`].
fn read_pages(
    socket: &Path,
    (path, name): (&str, &str),
    pages: &ListPages,
) -> io::Result<(u16, Value)> {
    let mut after = pages.after.clone();
    let mut all: Vec<Value> = Vec::new();
    loop {
        let count = u32::try_from(all.len()).unwrap_or(u32::MAX);
        let left = pages.limit.map(|limit| limit.saturating_sub(count));
        let limit = left.unwrap_or(PAGE).min(PAGE);
        let behind = after.map(|after| format!("&after={}", segment(&after)));
        let path = format!("{path}?limit={limit}{}", behind.unwrap_or_default());
        let (status, mut value) = request_page(socket, &path)?;
        let Some(page) = value.get_mut(name) else {
            return Ok((status, value));
        };
        if let Value::Array(entries) = page.take() {
            all.extend(entries);
        }
        after = match value.get("next") {
            Some(Value::String(user)) => Some(user.clone()),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        if after.is_none() || left == Some(limit) {
            if let Some(page) = value.get_mut(name) {
                *page = Value::Array(all);
            }
            return Ok((status, value));
        }
    }
}

/// Tells on standard error that a list is not complete, and how to read on.
fn tell_rest(pages: &ListPages, shown_entries: usize, value: &Value) {
    let Some(next) = value.get("next").filter(|next| !next.is_null()) else {
        return;
    };
    let total = shown(value.get(pages.total));
    let part = match pages.total {
        "total" => format!("{shown_entries} of {total} calls"),
        _ => format!("{shown_entries} users; all users have {total} contacts"),
    };
    eprintln!("hornwork: {part}; more: --after {}", shown(Some(next)));
}

/// Reports a socket that cannot be reached; the exit status is 3.
pub(crate) fn unreachable(socket: &Path, error: &io::Error) -> ExitCode {
    eprintln!(
        "hornwork: cannot reach the border at {}: {error}",
        socket.display()
    );
    eprintln!(
        "  remedy: start the border, set `socket` in its [control], and run this as its user or a member of its group; or give --socket"
    );
    ExitCode::from(3)
}

/// `hornwork ctl`.
pub fn run(options: &ControlOptions) -> ExitCode {
    let call = call_of(&options.command);
    let answer = match (&call.pages, call.list) {
        (Some(pages), Some((name, _))) => read_pages(&options.socket, (&call.path, name), pages),
        _ => request(&options.socket, call.method, &call.path, call.body.as_ref()),
    };
    let (status, value) = match answer {
        Ok(answer) => answer,
        Err(error) => return unreachable(&options.socket, &error),
    };
    if !(200..300).contains(&status) {
        let why = value
            .get("error")
            .and_then(Value::as_str)
            .unwrap_or("the border refused");
        eprintln!("hornwork: {why}");
        return ExitCode::from(match status {
            503 | 429 | 408 => 3,
            _ => 2,
        });
    }
    let unhealthy = value
        .get("status")
        .and_then(Value::as_str)
        .is_some_and(|status| status != "ok");
    match call.list {
        Some((name, columns)) => {
            let list = value.get(name).cloned().unwrap_or_default();
            match options.json {
                true => println!("{list:#}"),
                false => print_table(&expanded(name, &list), columns),
            }
            if let Some(pages) = &call.pages {
                tell_rest(pages, list.as_array().map_or(0, Vec::len), &value);
            }
        }
        None if options.json => println!("{value:#}"),
        None => print_object(&value, ""),
    }
    match options.command {
        ControlCommand::Health if unhealthy => ExitCode::from(1),
        _ => ExitCode::SUCCESS,
    }
}

/// A value for people. Control characters from the network are replaced: a terminal must not obey them.
pub(crate) fn shown(value: Option<&Value>) -> String {
    let text = match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::Bool(true)) => "yes".to_owned(),
        Some(Value::Bool(false)) => "no".to_owned(),
        Some(Value::String(text)) if text.is_empty() => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// A list with a row for each contact of a user and each target of a trunk; further rows have no other values.
fn expanded(name: &str, list: &Value) -> Value {
    let (title, inner) = match name {
        "registrations" => ("user", "contacts"),
        "trunks" => ("name", "targets"),
        _ => return list.clone(),
    };
    let mut rows = Vec::new();
    for entry in list.as_array().into_iter().flatten() {
        rows.push(entry.clone());
        let all = entry.get(inner).and_then(Value::as_array);
        let further = all.into_iter().flatten().skip(1);
        rows.extend(further.map(|one| json!({ title: entry.get(title), inner: [one] })));
    }
    rows.into()
}

fn print_table(list: &Value, columns: Columns) {
    let rows: Vec<Vec<String>> = list
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| {
            columns
                .iter()
                .map(|(_, at)| shown(row.pointer(at)))
                .collect()
        })
        .collect();
    let width = |index: usize| {
        let cells = rows.iter().filter_map(|row| row.get(index));
        let longest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        longest.max(columns.get(index).map_or(0, |(name, _)| name.len()))
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    println!("{}", line(&mut columns.iter().map(|(name, _)| *name)));
    for row in &rows {
        println!("{}", line(&mut row.iter().map(String::as_str)));
    }
}

fn print_object(value: &Value, prefix: &str) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = match prefix {
                    "" => name.clone(),
                    prefix => format!("{prefix}.{name}"),
                };
                print_object(value, &name);
            }
        }
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                print_object(value, &format!("{prefix}[{index}]"));
            }
        }
        value => println!("{prefix}: {}", shown(Some(value))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_page_by_page() {
        let name = format!("hornwork-ctl-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let pages = [
            json!({ "contacts": 3, "registrations": [{"user": "a"}, {"user": "b c"}], "next": "b c" }),
            json!({ "contacts": 3, "registrations": [{"user": "d"}], "next": null }),
            json!({ "contacts": 3, "registrations": [{"user": "a"}], "next": "a" }),
        ];
        let border = std::thread::spawn(move || {
            let answer = |page: &Value| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut bytes = [0; 1_024];
                let count = stream.read(&mut bytes).unwrap();
                let text = format!("HTTP/1.1 200 OK\r\n\r\n{page}");
                stream.write_all(text.as_bytes()).unwrap();
                let request = String::from_utf8_lossy(&bytes[..count]).into_owned();
                request.split(' ').nth(1).map(str::to_owned)
            };
            pages.iter().filter_map(answer).collect::<Vec<_>>()
        });
        let list = ("/v1/registrations", "registrations");
        let mut wanted = ListPages {
            limit: None,
            after: None,
            total: "contacts",
        };
        let (_, all) = read_pages(&path, list, &wanted).unwrap();
        let users: Vec<&Value> = all["registrations"].as_array().unwrap().iter().collect();
        assert_eq!(
            users,
            [
                &json!({"user": "a"}),
                &json!({"user": "b c"}),
                &json!({"user": "d"})
            ]
        );
        assert!(all["next"].is_null());
        wanted.limit = Some(1);
        wanted.after = Some("0".to_owned());
        let (_, first) = read_pages(&path, list, &wanted).unwrap();
        assert_eq!(
            (&first["registrations"][0]["user"], &first["next"]),
            (&json!("a"), &json!("a"))
        );
        assert_eq!(
            border.join().unwrap(),
            [
                "/v1/registrations?limit=1000",
                "/v1/registrations?limit=1000&after=b%20c",
                "/v1/registrations?limit=1&after=0",
            ]
        );
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_list_goes_on_after_too_many_requests() {
        let name = format!("hornwork-ctl-429-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let border = std::thread::spawn(move || {
            for answer in [
                "200 OK\r\n\r\n{\"total\": 2, \"calls\": [{\"id\": 1}], \"next\": 1}",
                "429 Too Many Requests\r\nRetry-After: 1\r\n\r\n{\"error\": \"too many requests\"}",
                "200 OK\r\n\r\n{\"total\": 2, \"calls\": [{\"id\": 2}], \"next\": null}",
            ] {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(stream.read(&mut [0; 1_024]).unwrap() > 0);
                let text = format!("HTTP/1.1 {answer}");
                stream.write_all(text.as_bytes()).unwrap();
            }
        });
        let pages = ListPages {
            limit: None,
            after: None,
            total: "total",
        };
        let (status, all) = read_pages(&path, ("/v1/calls", "calls"), &pages).unwrap();
        assert_eq!(
            (status, &all["calls"]),
            (200, &json!([{"id": 1}, {"id": 2}]))
        );
        border.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn tables_have_all_contacts_and_targets() {
        let rows = |name: &str, list: Value, columns: Columns| -> Vec<Vec<String>> {
            let rows = expanded(name, &list);
            let cells = |row: &Value| {
                columns
                    .iter()
                    .map(|(_, at)| shown(row.pointer(at)))
                    .collect()
            };
            rows.as_array().unwrap().iter().map(cells).collect()
        };
        let trunks = json!([
            { "name": "a", "enabled": true, "up": true, "calls": 7, "calls_max": null,
              "targets": [{ "address": "x", "up": true }, { "address": "y", "up": false }] },
            { "name": "b", "enabled": false, "up": false, "calls": 0, "calls_max": 9, "targets": [] },
        ]);
        assert_eq!(
            rows("trunks", trunks, TRUNKS),
            [
                ["a", "yes", "yes", "7", "-", "x", "yes"],
                ["a", "-", "-", "-", "-", "y", "no"],
                ["b", "no", "no", "0", "9", "-", "-"],
            ]
        );
        let users =
            json!([{ "user": "600", "contacts": [{ "uri": "sip:1" }, { "uri": "sip:2" }] }]);
        let users = rows("registrations", users, REGISTRATIONS);
        let contacts: Vec<_> = users.iter().map(|row| (&*row[0], &*row[1])).collect();
        assert_eq!(contacts, [("600", "sip:1"), ("600", "sip:2")]);
        let calls = json!([{ "id": 1, "targets": [1, 2] }]);
        assert_eq!(expanded("calls", &calls), calls);
    }

    #[test]
    fn call_ids_are_encoded_in_paths() {
        assert_eq!(segment("a@b/..?x"), "a%40b%2F%2E%2E%3Fx");
    }

    #[test]
    fn terminals_get_no_control_characters() {
        assert_eq!(shown(Some(&json!("a\u{1b}[2J"))), "a\u{fffd}[2J");
        assert_eq!(
            (shown(None), shown(Some(&json!(true)))),
            ("-".into(), "yes".into())
        );
    }
}
