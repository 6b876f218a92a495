//! Settings of a store, and its reports.

use crate::losses::LossCounts;
use std::path::PathBuf;

/// The place of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreLocation {
    /// A folder with SQLite and pcapng files, written by one border.
    Folder(PathBuf),
    /// A PostgreSQL database, written by several borders.
    Database(DatabaseSettings),
}

/// The host of a database server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatabaseHost {
    /// A name or an IP address.
    Network(String),
    /// The folder of a Unix socket.
    Socket(PathBuf),
}

/// A PostgreSQL database and the way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseSettings {
    /// Its server.
    pub host: DatabaseHost,
    /// Port of the server; of a Unix socket: the number in its name.
    pub port: u16,
    /// Role.
    pub user: String,
    /// Name of the database.
    pub database: String,
    /// File with the certificates of the authorities that the server's certificate is verified by, together with its
    /// name (`sslmode=verify-full` of libpq); `None`: no TLS.
    pub authorities: Option<PathBuf>,
    /// File with the password in the format of libpq (PostgreSQL, "The Password File"), read at each connection;
    /// `None`: no password.
    pub password_file: Option<PathBuf>,
}

impl std::fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StoreLocation::Folder(folder) => folder.display().fmt(f),
            StoreLocation::Database(database) => database.fmt(f),
        }
    }
}

impl std::fmt::Display for DatabaseSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (user, database) = (&self.user, &self.database);
        match &self.host {
            DatabaseHost::Network(host) if host.contains(':') => {
                write!(f, "postgresql://{user}@[{host}]:{}/{database}", self.port)
            }
            DatabaseHost::Network(host) => {
                write!(f, "postgresql://{user}@{host}:{}/{database}", self.port)
            }
            DatabaseHost::Socket(folder) => write!(
                f,
                "postgresql://{user}@/{database}?host={}&port={}",
                folder.display(),
                self.port
            ),
        }
    }
}

/// Settings of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// Its place.
    pub location: StoreLocation,
    /// Name of the border in the records; empty: none. A database needs one, which no other border has.
    pub node: String,
    /// Age in days from which partitions are removed.
    pub retention_days: u32,
    /// Size in bytes above which the oldest partitions are removed.
    pub size: u64,
    /// Whether messages of TLS, WS and WSS are stored in full.
    pub secure_content: bool,
    /// Whether words are indexed for full-text search.
    pub full_text: bool,
}

/// A report of the store for the event log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreNote {
    /// The store was completed after a crash.
    Completed {
        /// Messages added to the index.
        messages: u64,
        /// Calls that were open when the program ended.
        interrupted: u64,
    },
    /// Nothing can be written: the memory keeps a bounded part, and the rest is counted.
    Failed {
        /// Reason.
        reason: String,
    },
    /// Writing works again.
    Resumed {
        /// Duration of the outage, seconds.
        outage_s: u64,
    },
    /// Items that were not stored, since the last such note.
    Lost(LossCounts),
    /// Nothing is removed for its age, because the clock seems to be wrong.
    ClockAhead {
        /// Days by which it is ahead of the newest record, or of another clock.
        days: u64,
    },
    /// A partition could not be read and was moved aside.
    Replaced {
        /// Its new path.
        moved_to: String,
        /// Reason.
        reason: String,
    },
}
