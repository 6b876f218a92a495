//! A connection to the database server: login, time limits and errors.

use super::tls::Verified;
use crate::settings::{DatabaseHost, DatabaseSettings};
use std::error::Error as _;
use std::fmt;
use std::future::Future;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, NoTls};

/// Time limit of a connection with TLS and login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// Time for taking leave of the server.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(300);
/// Silence after which the system examines whether the peer is there.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Permission bits of group and others.
const OTHERS: u32 = 0o077;

/// A database that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DatabaseError {
    /// The server is not reached, does not answer in time, is starting or stopping, or has no room.
    Unavailable(String),
    /// The server refuses the login or a statement: SQLSTATE (PostgreSQL, "Error Codes") and reason.
    Refused(String, String),
    /// A file, the certificate of the server or the layout of the database is wrong.
    Unusable(String),
}

impl DatabaseError {
    /// Whether the server refuses rows because of their contents, so that it may accept others.
    pub(super) fn concerns_rows(&self) -> bool {
        // 22: data exception; 23: integrity; 44: check option; 54: a limit of the program is exceeded; P0: a trigger.
        let classes = ["22", "23", "44", "54", "P0"];
        matches!(self, DatabaseError::Refused(code, _)
            if classes.iter().any(|class| code.starts_with(class)))
    }
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DatabaseError::Unavailable(reason) | DatabaseError::Unusable(reason) => {
                f.write_str(reason)
            }
            DatabaseError::Refused(code, reason) => write!(f, "{reason} ({code})"),
        }
    }
}

impl From<tokio_postgres::Error> for DatabaseError {
    fn from(error: tokio_postgres::Error) -> DatabaseError {
        if let Some(reply) = error.as_db_error() {
            let code = reply.code().code().to_owned();
            // 08: connection; 53: no resources; 57: the server stops or starts; 58: its disk.
            let is_passing = ["08", "53", "57", "58"]
                .iter()
                .any(|class| code.starts_with(class));
            return match is_passing {
                true => DatabaseError::Unavailable(format!("{} ({code})", reply.message())),
                false => DatabaseError::Refused(code, reply.message().to_owned()),
            };
        }
        let mut reason = error.to_string();
        let mut is_certificate = false;
        let mut source = error.source();
        while let Some(cause) = source {
            let inner = cause.downcast_ref::<std::io::Error>();
            let inner = inner.and_then(std::io::Error::get_ref);
            is_certificate |= inner
                .and_then(|inner| inner.downcast_ref::<rustls::Error>())
                .is_some_and(|error| matches!(error, rustls::Error::InvalidCertificate(_)));
            let text = cause.to_string();
            if !reason.contains(&text) {
                reason = format!("{reason}: {text}");
            }
            source = cause.source();
        }
        // The kinds of these errors are private to the library.
        let is_setting = ["invalid configuration", "authentication error"]
            .iter()
            .any(|start| reason.starts_with(start));
        match is_certificate || is_setting || reason.contains("server does not support TLS") {
            true => DatabaseError::Unusable(reason),
            false => DatabaseError::Unavailable(reason),
        }
    }
}

/// A connection. Each method blocks its thread until the server has answered or the time is over.
pub(super) struct Connection {
    runtime: Runtime,
    client: Option<Client>,
    /// Moves bytes while the runtime runs.
    driver: JoinHandle<()>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

impl Connection {
    /// Connects and logs in. `purpose` is shown in the server's list of sessions.
    pub(super) fn open(
        settings: &DatabaseSettings,
        purpose: &str,
    ) -> Result<Connection, DatabaseError> {
        let config = configuration(settings, purpose)?;
        let unusable = |reason: String| DatabaseError::Unusable(reason);
        let tls = settings.authorities.as_deref().map(Verified::new);
        let tls = tls.transpose().map_err(unusable)?;
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(|error| DatabaseError::Unavailable(error.to_string()))?;
        let connecting = async {
            match tls {
                Some(tls) => {
                    let (client, driver) = config.connect(tls).await?;
                    Ok::<_, DatabaseError>((
                        client,
                        tokio::spawn(async move { drop(driver.await) }),
                    ))
                }
                None => {
                    let (client, driver) = config.connect(NoTls).await?;
                    Ok((client, tokio::spawn(async move { drop(driver.await) })))
                }
            }
        };
        match limited(&runtime, CONNECT_TIMEOUT, connecting) {
            Ok((client, driver)) => Ok(Connection {
                runtime,
                client: Some(client),
                driver,
            }),
            Err(error) => {
                // Otherwise the end of the runtime waits for the look-up of the name, which no time limit ends.
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Runs statements within a time limit. After an error of any kind that this returns the connection is not to be
    /// used again.
    pub(super) fn run<'a, T, F>(
        &'a self,
        limit: Duration,
        statements: impl FnOnce(&'a Client) -> F,
    ) -> Result<T, DatabaseError>
    where
        F: Future<Output = Result<T, DatabaseError>>,
    {
        match &self.client {
            Some(client) => limited(&self.runtime, limit, statements(client)),
            None => Err(DatabaseError::Unavailable("closed".to_owned())),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.client = None;
        // The server notices a closed socket as well.
        let driver = &mut self.driver;
        let _ = self
            .runtime
            .block_on(async { timeout(CLOSE_TIMEOUT, driver).await });
    }
}

fn limited<T>(
    runtime: &Runtime,
    limit: Duration,
    future: impl Future<Output = Result<T, DatabaseError>>,
) -> Result<T, DatabaseError> {
    runtime.block_on(async {
        timeout(limit, future).await.unwrap_or_else(|_| {
            Err(DatabaseError::Unavailable(format!(
                "no answer within {} s",
                limit.as_secs()
            )))
        })
    })
}

fn configuration(settings: &DatabaseSettings, purpose: &str) -> Result<Config, DatabaseError> {
    let mut config = Config::new();
    match &settings.host {
        DatabaseHost::Network(host) => config.host(host),
        DatabaseHost::Socket(folder) => config.host_path(folder),
    };
    config
        .port(settings.port)
        .user(&settings.user)
        .dbname(&settings.database)
        .application_name(format!("hornwork {purpose}"))
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_user_timeout(KEEPALIVE)
        .keepalives_idle(KEEPALIVE)
        .ssl_mode(match settings.authorities {
            Some(_) => SslMode::Require,
            None => SslMode::Disable,
        });
    if let Some(file) = &settings.password_file {
        let found = password(file, settings).map_err(DatabaseError::Unusable)?;
        if let Some(password) = found {
            config.password(password);
        }
    }
    Ok(config)
}

/// The password of this database in a file.
fn password(file: &Path, settings: &DatabaseSettings) -> Result<Option<String>, String> {
    let shown = file.display();
    let failed = |error: std::io::Error| format!("{shown}: {error}");
    let mode = std::fs::metadata(file).map_err(failed)?.mode();
    if mode & OTHERS != 0 {
        return Err(format!(
            "{shown} is accessible for group or others: chmod 600 {shown}"
        ));
    }
    let text = std::fs::read_to_string(file).map_err(failed)?;
    Ok(password_in(&text, settings))
}

/// The password of the first line that fits: host, port, database, role and password, separated by colons; `*` fits
/// all, and a backslash precedes a colon or backslash that is part of a value (PostgreSQL, "The Password File").
fn password_in(text: &str, settings: &DatabaseSettings) -> Option<String> {
    let port = settings.port.to_string();
    let socket;
    let hosts: [&str; 2] = match &settings.host {
        DatabaseHost::Network(host) => [host, host],
        DatabaseHost::Socket(folder) => {
            socket = folder.display().to_string();
            ["localhost", &socket]
        }
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut lines = lines.map(fields);
    let fitting = lines.find(|fields| {
        let fits = |at: usize, value: &str| {
            let field = fields.get(at).map(String::as_str);
            field == Some("*") || field == Some(value)
        };
        fields.len() == 5
            && hosts.iter().any(|host| fits(0, host))
            && fits(1, &port)
            && fits(2, &settings.database)
            && fits(3, &settings.user)
    });
    fitting.and_then(|mut fields| fields.pop())
}

/// Four fields and the rest of a line.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(mut character) = characters.next() {
        if character == ':' && fields.len() < 5 {
            fields.push(String::new());
            continue;
        }
        if character == '\\' {
            character = characters.next().unwrap_or('\\');
        }
        if let Some(last) = fields.last_mut() {
            last.push(character);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_found_as_libpq_finds_them() {
        let settings = DatabaseSettings {
            host: DatabaseHost::Network("db.example.net".into()),
            port: 5432,
            user: "horn:work".into(),
            database: "calls".into(),
            authorities: None,
            password_file: None,
        };
        let of = |text: &str| password_in(text, &settings);
        let text = "# comment\nother:5432:calls:horn\\:work:no\n*:*:calls:horn\\:work:a:b\\\\c\n*:*:*:*:late";
        assert_eq!(of(text).as_deref(), Some("a:b\\c"));
        assert_eq!(of("db.example.net:5433:*:*:x\n").as_deref(), None);
        assert_eq!(of("db.example.net:5432:calls\n").as_deref(), None);
        let socket = DatabaseSettings {
            host: DatabaseHost::Socket("/run/postgresql".into()),
            ..settings.clone()
        };
        assert_eq!(
            password_in("localhost:*:*:*:s", &socket).as_deref(),
            Some("s")
        );
    }
}
