//! Connection URLs of PostgreSQL, as libpq has them (PostgreSQL, "Connection URIs").

use std::path::PathBuf;
use wire::sip::percent_decode;

/// Port of PostgreSQL.
const PORT: u16 = 5432;
/// Parameters that are understood.
const PARAMETERS: [&str; 6] = ["host", "port", "user", "sslmode", "sslrootcert", "passfile"];

/// The host of a database server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatabaseHost {
    /// A name or an IP address.
    Network(String),
    /// The folder of a Unix socket.
    Socket(PathBuf),
}

/// A PostgreSQL database and the way to it. It has no password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseSpec {
    /// Its server.
    pub host: DatabaseHost,
    /// Port of the server; of a Unix socket: the number in its name.
    pub port: u16,
    /// Role.
    pub user: String,
    /// Name of the database.
    pub database: String,
    /// File with the authorities that the certificate of the server is verified by, with its name; `None`: no TLS.
    pub authorities: Option<PathBuf>,
    /// File with the password.
    pub password_file: Option<PathBuf>,
}

/// A mistake in a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseUrlError {
    /// Description.
    pub message: String,
    /// Remedy.
    pub remedy: String,
}

impl core::fmt::Display for DatabaseUrlError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {}", self.message, self.remedy)
    }
}

impl core::error::Error for DatabaseUrlError {}

fn mistake<T>(message: impl Into<String>, remedy: &str) -> Result<T, DatabaseUrlError> {
    Err(DatabaseUrlError {
        message: message.into(),
        remedy: remedy.to_owned(),
    })
}

/// The part of a text after the scheme of a connection URL; `None`: it is no such URL.
fn after_scheme(text: &str) -> Option<&str> {
    let schemes = ["postgresql://", "postgres://"];
    schemes.iter().find_map(|scheme| text.strip_prefix(scheme))
}

impl DatabaseSpec {
    /// Whether a text is meant as a connection URL.
    pub fn is_url(text: &str) -> bool {
        after_scheme(text).is_some()
    }

    /// Parses `postgresql://ROLE@HOST[:PORT]/DATABASE[?PARAMETER=VALUE&...]`. Parameters: `sslmode` (`verify-full`, the
    /// default, or `disable`), `sslrootcert`, `passfile`, and `host` with the folder of a Unix socket.
    ///
    /// # Errors
    /// The text is no such URL, contains a password, or asks for TLS without verification.
    pub fn parse(text: &str) -> Result<DatabaseSpec, DatabaseUrlError> {
        const SHAPE: &str = "write postgresql://ROLE@HOST:PORT/DATABASE?sslrootcert=FILE";
        let Some(rest) = after_scheme(text) else {
            return mistake("it is no connection URL of PostgreSQL", SHAPE);
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, server) = authority.rsplit_once('@').unwrap_or(("", authority));
        if user.contains(':') {
            return mistake(
                "a password is not part of the URL",
                "write it to a file with the mode 0600 that passfile= or PGPASSFILE names, as HOST:PORT:DATABASE:ROLE:PASSWORD",
            );
        }
        let parameters = Parameters::parse(query)?;
        let (host, port) = server_of(server)?;
        let named = |name: &str, value: String| match parameters.get(name) {
            Some(other) if value.is_empty() => other.clone(),
            _ => value,
        };
        let user = named("user", decoded(user)?);
        let host = named("host", host);
        let database = decoded(database)?;
        for (part, value) in [("role", &user), ("host", &host), ("database", &database)] {
            if value.is_empty() {
                return mistake(format!("the URL has no {part}"), SHAPE);
            }
            // PostgreSQL's protocol ends texts with NUL.
            if value.contains('\0') {
                return mistake(format!("the {part} contains NUL"), SHAPE);
            }
        }
        let port = match parameters.get("port") {
            Some(text) => port_of(text)?,
            None => port.unwrap_or(PORT),
        };
        let host = match host.starts_with('/') {
            true => DatabaseHost::Socket(host.into()),
            false => DatabaseHost::Network(host),
        };
        Ok(DatabaseSpec {
            authorities: parameters.authorities(&host)?,
            password_file: parameters.path("passfile")?,
            host,
            port,
            user,
            database,
        })
    }
}

/// Parameters of a URL by name, each once.
struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn parse(query: &str) -> Result<Parameters, DatabaseUrlError> {
        let mut all: Vec<(String, String)> = Vec::new();
        for parameter in query.split('&').filter(|text| !text.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if !PARAMETERS.contains(&name) {
                return mistake(
                    format!("\"{}\" is no known parameter", name.escape_default()),
                    "the parameters are host, port, user, sslmode, sslrootcert and passfile",
                );
            }
            if all.iter().any(|(known, _)| known == name) {
                return mistake(format!("\"{name}\" is there twice"), "write it once");
            }
            all.push((name.to_owned(), decoded(value)?));
        }
        Ok(Parameters(all))
    }

    fn get(&self, name: &str) -> Option<&String> {
        let mut all = self.0.iter();
        all.find(|(known, _)| known == name).map(|(_, value)| value)
    }

    fn path(&self, name: &str) -> Result<Option<PathBuf>, DatabaseUrlError> {
        match self.get(name) {
            None => Ok(None),
            Some(path) if path.starts_with('/') => Ok(Some(path.into())),
            Some(path) => mistake(
                format!("{name}: \"{path}\" is not an absolute path"),
                "write the whole path of the file",
            ),
        }
    }

    fn authorities(&self, host: &DatabaseHost) -> Result<Option<PathBuf>, DatabaseUrlError> {
        let authorities = self.path("sslrootcert")?;
        let is_socket = matches!(host, DatabaseHost::Socket(_));
        let mode = self.get("sslmode").map(String::as_str);
        match (mode, authorities) {
            (Some("disable"), None) => Ok(None),
            (None, None) if is_socket => Ok(None),
            (Some("verify-full") | None, Some(_)) if is_socket => mistake(
                "there is no TLS over a Unix socket",
                "remove sslrootcert and sslmode",
            ),
            (Some("verify-full") | None, Some(file)) => Ok(Some(file)),
            (Some("disable"), Some(_)) => mistake(
                "sslrootcert has no effect with sslmode=disable",
                "remove one of them",
            ),
            (Some("verify-full") | None, None) => mistake(
                "the certificate of the server cannot be verified",
                "name the file of its authority with sslrootcert=FILE; or write sslmode=disable if the network path is protected otherwise",
            ),
            (Some(other), _) => mistake(
                format!("sslmode \"{other}\" is not supported"),
                "write verify-full (TLS, with the certificate verified) or disable (no TLS)",
            ),
        }
    }
}

fn decoded(text: &str) -> Result<String, DatabaseUrlError> {
    let bytes = percent_decode(text.as_bytes()).into_owned();
    String::from_utf8(bytes).or_else(|_| {
        mistake(
            "a percent escape of the URL is not UTF-8",
            "write the characters themselves",
        )
    })
}

fn port_of(text: &str) -> Result<u16, DatabaseUrlError> {
    let port = text.parse().ok().filter(|port| *port != 0);
    port.map_or_else(
        || mistake("the port of the URL is no port", "write 1 to 65535"),
        Ok,
    )
}

/// Host and port; the host is empty if there is none.
fn server_of(text: &str) -> Result<(String, Option<u16>), DatabaseUrlError> {
    if text.contains(',') {
        return mistake(
            "several hosts are not supported",
            "name one, such as the address that a cluster moves to its primary server",
        );
    }
    // An IPv6 address is in brackets.
    if let Some(rest) = text.strip_prefix('[') {
        let Some((host, rest)) = rest.split_once(']') else {
            return mistake("the address of the URL has no end", "write [ADDRESS]:PORT");
        };
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host.to_owned(), Some(port_of(port)?))),
            None => Ok((host.to_owned(), None)),
        };
    }
    match text.split_once(':') {
        Some((host, port)) => Ok((decoded(host)?, Some(port_of(port)?))),
        None => Ok((decoded(text)?, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_those_of_libpq() {
        let url = "postgresql://border@db.example.net/calls?sslmode=verify-full&sslrootcert=/etc/ca.pem&passfile=/etc/pass";
        let spec = DatabaseSpec::parse(url).unwrap();
        assert_eq!(spec.host, DatabaseHost::Network("db.example.net".into()));
        assert_eq!(
            (spec.port, &*spec.user, &*spec.database),
            (5432, "border", "calls")
        );
        assert_eq!(spec.authorities, Some("/etc/ca.pem".into()));
        assert_eq!(spec.password_file, Some("/etc/pass".into()));
        let spec = DatabaseSpec::parse("postgres://a%40b@/c?host=/run/postgresql&port=5433");
        let spec = spec.unwrap();
        assert_eq!(spec.host, DatabaseHost::Socket("/run/postgresql".into()));
        assert_eq!((spec.port, &*spec.user), (5433, "a@b"));
        let spec = DatabaseSpec::parse("postgresql://a@[2001:db8::1]:6000/c?sslmode=disable");
        let spec = spec.unwrap();
        assert_eq!(spec.host, DatabaseHost::Network("2001:db8::1".into()));
        assert_eq!((spec.port, spec.authorities), (6000, None));
    }

    #[test]
    fn mistakes_have_remedies_and_show_no_password() {
        for (url, expected) in [
            ("mysql://a@b/c", "no connection URL"),
            ("postgresql://a:geheim@b/c", "password is not part"),
            ("postgresql://b/c?sslmode=disable", "no role"),
            ("postgresql://a@/c", "no host"),
            ("postgresql://a@b?sslmode=disable", "no database"),
            ("postgresql://a@b/c", "cannot be verified"),
            ("postgresql://a@b/c?sslmode=require", "not supported"),
            (
                "postgresql://a@b/c?sslmode=disable&sslrootcert=/x",
                "no effect",
            ),
            ("postgresql://a@b/c?sslrootcert=x", "absolute path"),
            (
                "postgresql://a@b/c?sslmode=disable&sslmode=disable",
                "twice",
            ),
            ("postgresql://a@/c?host=/run&sslrootcert=/x", "Unix socket"),
            ("postgresql://a@b:0/c?sslmode=disable", "no port"),
            ("postgresql://a@b,c/d", "several hosts"),
            ("postgresql://a@b/c?password=geheim", "no known parameter"),
            ("postgresql://a@b/%00?sslmode=disable", "NUL"),
            ("postgresql://a@b/%ff?sslmode=disable", "UTF-8"),
        ] {
            let error = DatabaseSpec::parse(url).unwrap_err().to_string();
            assert!(error.contains(expected), "{url}: {error}");
            assert!(!error.contains("geheim"), "{error}");
        }
    }
}
