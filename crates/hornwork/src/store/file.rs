//! The registrations file: a SQLite database with one table and one row per contact.

use border::registrar::{StoredContact, StoredCore, StoredRegistration, slack};
use engine::{Time, Transport};
use net::Clock;
use rusqlite::types::{Null, ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, Row, ToSql, params};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Interval of heartbeats in the file while it contains contacts and nothing else is written. A contact in the file was
/// registered at that time, even if its stored expiry has passed.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// Tolerance, seconds, for the age of the last heartbeat at the end of the program, since it is written with a delay.
const HEARTBEAT_TOLERANCE_S: i64 = HEARTBEAT_INTERVAL.as_secs() as i64 + 2;

/// "hwrk": identifies our files.
const APPLICATION_ID: i32 = 0x6877_726b;
const SCHEMA_VERSION: i32 = 1;
/// `service_route` has no value: phones do not get the route in the core.
const SCHEMA: &str = "
CREATE TABLE contact (
    aor TEXT NOT NULL,
    position INTEGER NOT NULL,
    uri TEXT NOT NULL,
    params TEXT NOT NULL,
    instance TEXT NOT NULL,
    call_id TEXT NOT NULL,
    path TEXT NOT NULL,
    transport TEXT NOT NULL,
    local TEXT NOT NULL,
    remote TEXT NOT NULL,
    q INTEGER NOT NULL,
    cseq INTEGER NOT NULL,
    reg_id INTEGER NOT NULL,
    lifetime INTEGER NOT NULL,
    until INTEGER NOT NULL,
    latest INTEGER NOT NULL,
    token TEXT,
    core_due INTEGER,
    core_until INTEGER,
    core_params TEXT,
    service_route TEXT,
    associated_uris TEXT,
    PRIMARY KEY (aor, position)
) WITHOUT ROWID;
CREATE TABLE program (alive INTEGER NOT NULL);
INSERT INTO program VALUES (0);
";
/// Condition for contacts that may still be registered: `latest` is the latest possible expiry, and an unwritten
/// refresh cannot be later than the last heartbeat.
const CURRENT: &str = "latest > ?1 AND ?2 + lifetime > ?1";

/// Reason why the file cannot be used.
#[derive(Debug)]
pub(super) enum StoreFailure {
    /// Another program uses it.
    InUse,
    /// It is unreadable and has to be moved aside.
    Corrupt(String),
    /// Another error, with its remedy.
    Other {
        /// Message of SQLite or of the system.
        why: String,
        /// Remedy.
        remedy: &'static str,
    },
}

const PERMISSION_REMEDY: &str = "give the program's user write permission in its folder, or set another file in `[registrar] store`";

/// Remedy for disk errors.
pub(super) const DISK_REMEDY: &str = "check its disk and the kernel's log";

impl From<rusqlite::Error> for StoreFailure {
    fn from(error: rusqlite::Error) -> StoreFailure {
        let why = error.to_string();
        if is_of_contents(&error) {
            return StoreFailure::Corrupt(why);
        }
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreFailure::InUse,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                StoreFailure::Corrupt(why)
            }
            code => StoreFailure::Other {
                why,
                remedy: match code {
                    Some(ErrorCode::DiskFull) => "free space on its file system",
                    Some(ErrorCode::SystemIoFailure) => DISK_REMEDY,
                    _ => PERMISSION_REMEDY,
                },
            },
        }
    }
}

/// Whether a value or a column is not what this program writes: reading it again does not help.
fn is_of_contents(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{
        FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnName, InvalidColumnType,
    };
    matches!(
        error,
        FromSqlConversionFailure(..)
            | IntegralValueOutOfRange(..)
            | InvalidColumnName(_)
            | InvalidColumnType(..)
    )
}

impl From<io::Error> for StoreFailure {
    fn from(error: io::Error) -> StoreFailure {
        StoreFailure::Other {
            remedy: match error.kind() {
                io::ErrorKind::StorageFull => "free space on its file system",
                _ => PERMISSION_REMEDY,
            },
            why: error.to_string(),
        }
    }
}

impl StoreFailure {
    /// Reason and remedy as texts.
    pub(super) fn reason_and_remedy(&self) -> (String, &'static str) {
        match self {
            StoreFailure::InUse => (
                "another program is using it".to_owned(),
                "set a different file in `[registrar] store` of each program",
            ),
            StoreFailure::Corrupt(why) => (why.clone(), "remove the file"),
            StoreFailure::Other { why, remedy } => (why.clone(), remedy),
        }
    }
}

/// Checks for `hornwork check` whether the file is writable; a border may be using it.
///
/// # Errors
/// If it is not writable.
pub(super) fn probe(path: &Path) -> io::Result<()> {
    if path.exists() {
        return OpenOptions::new().append(true).open(path).map(|_| ());
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    let trial = folder.join(format!(".hornwork-check-{}", std::process::id()));
    File::create_new(&trial)?;
    std::fs::remove_file(trial)
}

/// Bytes of a SIP message, stored as text if they are UTF-8.
struct MessageText<'t>(&'t [u8]);

impl ToSql for MessageText<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let value = match std::str::from_utf8(self.0) {
            Ok(_) => ValueRef::Text(self.0),
            Err(_) => ValueRef::Blob(self.0),
        };
        Ok(ToSqlOutput::Borrowed(value))
    }
}

/// Engine time and wall clock at one moment.
#[derive(Clone, Copy)]
pub(super) struct Dates {
    now: Time,
    unix_nanos: u64,
}

impl Dates {
    pub(super) fn now(clock: &Clock) -> Dates {
        Dates {
            now: clock.now(),
            unix_nanos: clock.unix_nanos_now(),
        }
    }

    /// Distance of the wall clock from engine time, nanoseconds: it changes only if the clock is set.
    pub(super) fn offset(&self) -> u64 {
        self.unix_nanos.saturating_sub(self.now.0)
    }

    /// By a wall clock that is so far behind.
    #[cfg(test)]
    pub(super) fn set_back(self, by: Duration) -> Dates {
        let by = by.as_nanos() as u64;
        Dates {
            unix_nanos: self.unix_nanos - by,
            ..self
        }
    }

    /// Seconds since 1970, rounded up.
    fn unix(&self, time: Time) -> i64 {
        let nanos = i128::from(self.unix_nanos) + i128::from(time.0) - i128::from(self.now.0);
        let seconds = (nanos + 999_999_999).div_euclid(1_000_000_000);
        i64::try_from(seconds).unwrap_or(i64::MAX)
    }

    /// The engine time of a date; the start of the program for earlier dates.
    fn time(&self, unix: i64) -> Time {
        let nanos = i128::from(unix) * 1_000_000_000 - i128::from(self.unix_nanos);
        let nanos = nanos + i128::from(self.now.0);
        Time(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }
}

/// The users of one transaction with all their contacts.
pub(super) type Batch = BTreeMap<String, Vec<StoredContact>>;

/// The open file. SQLite's lock is kept while it is open, so that no other program uses it.
pub(super) struct Database {
    connection: Connection,
    path: PathBuf,
    inode: u64,
}

impl Database {
    /// Opens the file or creates it with access for its owner only.
    pub(super) fn open(path: &Path) -> Result<Database, StoreFailure> {
        let about = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?
            .metadata()?;
        if !about.is_file() {
            return Err(io::Error::other("it is not a regular file").into());
        }
        // An existing file may be readable by other users, but numbers and addresses are confidential.
        if about.mode() & 0o077 != 0 {
            std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(Duration::ZERO)?;
        // In exclusive mode the index of the log is in memory, so that the file can be opened on a full disk.
        let wal: String = {
            let set = |name: &str, value: &str| {
                connection.pragma_update_and_check(None, name, value, |row| row.get(0))
            };
            let _: String = set("locking_mode", "EXCLUSIVE")?;
            set("journal_mode", "WAL")?
        };
        if wal != "wal" {
            return Err(
                io::Error::other("its file system does not support a write-ahead log").into(),
            );
        }
        connection.pragma_update(None, "synchronous", "FULL")?;
        // The log is checkpointed at 1 MiB, since file systems for state are often small.
        connection.pragma_update(None, "wal_autocheckpoint", 256)?;
        connection.pragma_update(None, "journal_size_limit", 8 << 20)?;
        connection.pragma_update(None, "trusted_schema", false)?;
        let mut database = Database {
            connection,
            path: path.to_owned(),
            inode: about.ino(),
        };
        database.check_schema()?;
        Ok(database)
    }

    fn check_schema(&mut self) -> Result<(), StoreFailure> {
        let number = |name| {
            let query = |row: &Row<'_>| row.get::<_, i32>(0);
            self.connection.pragma_query_value(None, name, query)
        };
        let (application, version) = (number("application_id")?, number("user_version")?);
        let count = "SELECT count(*) FROM sqlite_schema";
        let objects: i64 = self.connection.query_row(count, [], |row| row.get(0))?;
        if objects == 0 {
            let new = self.connection.transaction()?;
            new.execute_batch(SCHEMA)?;
            new.pragma_update(None, "application_id", APPLICATION_ID)?;
            new.pragma_update(None, "user_version", SCHEMA_VERSION)?;
            return Ok(new.commit()?);
        }
        match (application, version) {
            (APPLICATION_ID, SCHEMA_VERSION) => Ok(()),
            (APPLICATION_ID, _) => Err(StoreFailure::Corrupt(format!(
                "it has version {version}, this program supports version {SCHEMA_VERSION}"
            ))),
            _ => Err(StoreFailure::Other {
                why: "it is the database of another program".to_owned(),
                remedy: "set another file in `[registrar] store`",
            }),
        }
    }

    /// Whether the path still refers to this file.
    pub(super) fn is_in_place(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|about| about.ino() == self.inode)
    }

    /// Parameters of `CURRENT`: now and the last heartbeat, seconds.
    fn moment(&self, dates: &Dates) -> Result<[i64; 2], StoreFailure> {
        let now = dates.unix(dates.now);
        let query = "SELECT max(alive) FROM program";
        let alive: Option<i64> = self.connection.query_row(query, [], |row| row.get(0))?;
        // The wall clock may have been set back.
        let alive = alive
            .unwrap_or(0)
            .saturating_add(HEARTBEAT_TOLERANCE_S)
            .min(now);
        Ok([now, alive])
    }

    /// Passes all registrations that may still be valid to `each`, which returns how many contacts it accepts; returns
    /// the number of rejected contacts.
    pub(super) fn read(
        &mut self,
        dates: &Dates,
        each: &mut dyn FnMut(StoredRegistration) -> usize,
    ) -> Result<u64, StoreFailure> {
        let moment = self.moment(dates)?;
        let query = format!("SELECT count(*) FROM contact WHERE NOT ({CURRENT})");
        let ended: i64 = self
            .connection
            .query_row(&query, moment, |row| row.get(0))?;
        let query = format!("SELECT * FROM contact WHERE {CURRENT} ORDER BY aor, position");
        let mut statement = self.connection.prepare(&query)?;
        let mut rows = statement.query(moment)?;
        let mut left_out = u64::try_from(ended).unwrap_or(0);
        let mut registration: Option<StoredRegistration> = None;
        let mut finish = |done: Option<StoredRegistration>| {
            done.map_or(0, |done| {
                let all = done.contacts.len();
                (all - each(done).min(all)) as u64
            })
        };
        while let Some(row) = rows.next()? {
            let user: String = row.get("aor")?;
            let Some(contact) = contact(row, dates, moment[1])? else {
                left_out += 1;
                continue;
            };
            match &mut registration {
                Some(known) if known.user == user => known.contacts.push(contact),
                _ => {
                    let next = StoredRegistration {
                        user,
                        contacts: vec![contact],
                    };
                    left_out += finish(registration.replace(next));
                }
            }
        }
        Ok(left_out + finish(registration))
    }

    /// Removes expired contacts; returns whether any are left.
    pub(super) fn sweep(&mut self, dates: &Dates) -> Result<bool, StoreFailure> {
        let moment = self.moment(dates)?;
        let ended = format!("DELETE FROM contact WHERE NOT ({CURRENT})");
        self.connection.execute(&ended, moment)?;
        let query = "SELECT EXISTS (SELECT 1 FROM contact)";
        Ok(self.connection.query_row(query, [], |row| row.get(0))?)
    }

    /// Replaces the contacts of these users in one transaction. `keep`: removes the users for whom it returns false.
    /// `alive`: the file now matches the border.
    pub(super) fn write(
        &mut self,
        batch: &Batch,
        keep: Option<&dyn Fn(&str) -> bool>,
        alive: bool,
        dates: &Dates,
    ) -> Result<(), StoreFailure> {
        let transaction = self.connection.transaction()?;
        {
            let mut remove = transaction.prepare("DELETE FROM contact WHERE aor = ?1")?;
            let mut add = transaction.prepare(
                "INSERT INTO contact VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)",
            )?;
            for (user, contacts) in batch {
                remove.execute([user])?;
                for (position, contact) in (0i64..).zip(contacts) {
                    let core = contact.core.as_ref();
                    let until = dates.unix(contact.until);
                    let latest = dates.unix(contact.until + slack(contact.lifetime));
                    add.execute(params![
                        user,
                        position,
                        MessageText(&contact.uri),
                        MessageText(&contact.params),
                        MessageText(&contact.instance),
                        MessageText(&contact.call_id),
                        MessageText(&contact.path),
                        contact.transport.uri_name(),
                        contact.local.to_string(),
                        contact.remote.to_string(),
                        contact.q,
                        contact.cseq,
                        contact.reg_id,
                        contact.lifetime,
                        until,
                        latest,
                        core.map(|core| format!("{:016x}", core.token)),
                        core.map(|core| dates.unix(core.due)),
                        core.map(|core| dates.unix(core.until)),
                        core.map(|core| MessageText(&core.params)),
                        Null,
                        core.map(|core| MessageText(&core.associated_uris)),
                    ])?;
                }
            }
            if let Some(keep) = keep {
                let mut others: Vec<String> = Vec::new();
                let mut users = transaction.prepare("SELECT DISTINCT aor FROM contact")?;
                let mut rows = users.query([])?;
                while let Some(row) = rows.next()? {
                    let user: String = row.get(0)?;
                    if !keep(&user) {
                        others.push(user);
                    }
                }
                for user in others {
                    remove.execute([user])?;
                }
            }
        }
        if alive {
            let now = dates.unix(dates.now);
            transaction.execute("UPDATE program SET alive = ?1", [now])?;
        }
        Ok(transaction.commit()?)
    }
}

/// The contact of a row; `None` if a column is unreadable.
fn contact(row: &Row<'_>, dates: &Dates, alive: i64) -> rusqlite::Result<Option<StoredContact>> {
    let text = |name: &str| -> rusqlite::Result<Vec<u8>> {
        match row.get_ref(name)? {
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Ok(bytes.to_vec()),
            _ => Ok(Vec::new()),
        }
    };
    let word = |name: &str| -> rusqlite::Result<String> {
        text(name).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    };
    let number = |name: &str| -> rusqlite::Result<u32> {
        let number: i64 = row.get(name)?;
        Ok(u32::try_from(number).unwrap_or(u32::MAX))
    };
    let transport = match &*word("transport")? {
        "udp" => Transport::Udp,
        "tcp" => Transport::Tcp,
        _ => return Ok(None),
    };
    let address =
        |name: &str| -> rusqlite::Result<Option<SocketAddr>> { Ok(word(name)?.parse().ok()) };
    let (Some(local), Some(remote)) = (address("local")?, address("remote")?) else {
        return Ok(None);
    };
    let token: Option<String> = row.get("token")?;
    let core = match token.map(|token| u64::from_str_radix(&token, 16)) {
        None => None,
        Some(Ok(token)) if token != 0 => {
            let date = |name: &str| -> rusqlite::Result<Time> {
                let date: Option<i64> = row.get(name)?;
                Ok(dates.time(date.unwrap_or(0)))
            };
            Some(StoredCore {
                token,
                due: date("core_due")?,
                until: date("core_until")?,
                params: text("core_params")?,
                associated_uris: text("associated_uris")?,
            })
        }
        Some(_) => return Ok(None),
    };
    let lifetime = number("lifetime")?;
    let latest: i64 = row.get("latest")?;
    Ok(Some(StoredContact {
        uri: text("uri")?,
        params: text("params")?,
        instance: text("instance")?,
        call_id: text("call_id")?,
        path: text("path")?,
        transport,
        local,
        remote,
        q: u16::try_from(number("q")?).unwrap_or(u16::MAX),
        cseq: number("cseq")?,
        reg_id: number("reg_id")?,
        lifetime,
        until: dates.time(latest.min(alive + i64::from(lifetime))),
        written: dates.time(row.get("until")?),
        core,
    }))
}

/// Moves an unreadable file aside with its write-ahead log; returns its new path.
pub(super) fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let beside = |path: &Path, end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    let aside = beside(path, ".corrupt");
    std::fs::rename(path, &aside)?;
    match std::fs::rename(beside(path, "-wal"), beside(&aside, "-wal")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(aside),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let name = format!("hornwork-store-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn contact(lifetime: u32, until: Time) -> StoredContact {
        StoredContact {
            uri: b"sip:a@192.168.1.1".to_vec(),
            params: b";+x=\"\xff\"".to_vec(),
            instance: b"<urn:x>".to_vec(),
            call_id: b"c@1".to_vec(),
            path: b"<sip:edge;lr>".to_vec(),
            transport: Transport::Udp,
            local: "192.0.2.1:5060".parse().unwrap(),
            remote: "[2001:db8::1]:5060".parse().unwrap(),
            q: 500,
            cseq: u32::MAX,
            reg_id: 3,
            lifetime,
            until,
            written: until,
            core: Some(StoredCore {
                token: u64::MAX,
                due: Time::from_secs(500),
                until: Time::from_secs(1_000),
                params: b";pub-gruu=\"g\"".to_vec(),
                associated_uris: b"<sip:a@x>".to_vec(),
            }),
        }
    }

    fn read(database: &mut Database, dates: &Dates) -> (Vec<StoredRegistration>, u64) {
        let mut all = Vec::new();
        let left_out = database
            .read(dates, &mut |registration| {
                let contacts = registration.contacts.len();
                all.push(registration);
                contacts
            })
            .unwrap();
        (all, left_out)
    }

    /// Dates of a start `seconds` later.
    fn later(dates: &Dates, seconds: u64) -> Dates {
        Dates {
            now: Time::from_secs(1),
            unix_nanos: dates.unix_nanos + seconds * 1_000_000_000,
        }
    }

    #[test]
    fn contacts_are_read_as_written() {
        let folder = folder("written");
        let path = folder.join("r.db");
        let mut database = Database::open(&path).unwrap();
        let dates = Dates {
            now: Time::from_secs(100),
            unix_nanos: 1_700_000_000_000_000_000,
        };
        let written = [
            contact(3_600, Time::from_secs(3_000)),
            contact(30, Time::from_secs(130)),
        ];
        let mut batch = Batch::new();
        batch.insert("1000".to_owned(), written.to_vec());
        batch.insert("removed".to_owned(), written.to_vec());
        database.write(&batch, None, true, &dates).unwrap();
        let removed = Batch::from([("removed".to_owned(), Vec::new())]);
        database.write(&removed, None, true, &dates).unwrap();
        assert!(matches!(Database::open(&path), Err(StoreFailure::InUse)));
        drop(database);

        let mut database = Database::open(&path).unwrap();
        let soon = later(&dates, 5);
        let (all, left_out) = read(&mut database, &soon);
        assert_eq!((all.len(), left_out), (1, 0));
        assert_eq!(all[0].user, "1000");
        // Second 1 of the new start is second 105 of the old one. Refreshes of an eighth of an hour may be unwritten,
        // and the short contact may have been refreshed just before the end.
        let expected = |old: &StoredContact, until: u64| StoredContact {
            until: Time::from_secs(until),
            written: Time(old.until.0 - 104_000_000_000),
            core: old.core.clone().map(|core| StoredCore {
                due: Time::from_secs(396),
                until: Time::from_secs(896),
                ..core
            }),
            ..old.clone()
        };
        assert_eq!(all[0].contacts[0], expected(&written[0], 2_896 + 450));
        assert_eq!(all[0].contacts[1], expected(&written[1], 1 + 30));

        // Too late for the short one, then for both.
        let (all, left_out) = read(&mut database, &later(&dates, 60));
        assert_eq!((all[0].contacts.len(), left_out), (1, 1));
        let (all, left_out) = read(&mut database, &later(&dates, 4_000));
        assert_eq!((all.len(), left_out), (0, 2));
        assert!(database.sweep(&later(&dates, 60)).unwrap());
        assert_eq!(read(&mut database, &soon).1, 0);
        assert!(!database.sweep(&later(&dates, 4_000)).unwrap());
        // With a clock that was set back no contact gets more than its lifetime.
        database.write(&batch, None, true, &dates).unwrap();
        let past = Dates {
            unix_nanos: 1_000_000_000_000_000_000,
            ..soon
        };
        let (all, _) = read(&mut database, &past);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].contacts[0].until, Time::from_secs(3_601));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn foreign_files_are_distinguished_from_corrupt_ones() {
        let folder = folder("foreign");
        let path = folder.join("r.db");
        std::fs::write(&path, "x".repeat(5_000)).unwrap();
        assert!(matches!(
            Database::open(&path),
            Err(StoreFailure::Corrupt(_))
        ));
        let aside = move_aside(&path).unwrap();
        assert!(aside.is_file() && !path.exists());
        drop(Database::open(&path).unwrap());
        let mode = std::fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        let connection = Connection::open(&path).unwrap();
        connection.pragma_update(None, "user_version", 9).unwrap();
        drop(connection);
        assert!(
            matches!(Database::open(&path), Err(StoreFailure::Corrupt(why)) if why.contains("version 9"))
        );
        let foreign = folder.join("foreign.db");
        let connection = Connection::open(&foreign).unwrap();
        connection.execute_batch("CREATE TABLE a (b)").unwrap();
        drop(connection);
        assert!(matches!(
            Database::open(&foreign),
            Err(StoreFailure::Other { why, .. }) if why.contains("another program")
        ));
        assert!(matches!(
            Database::open(&folder),
            Err(StoreFailure::Other { .. })
        ));
        assert!(probe(&path).is_ok() && probe(&folder.join("new")).is_ok());
        assert!(!folder.join("new").exists());
        assert!(probe(&folder.join("no/new")).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
