//! The place of a store, from the configuration or the command line.

use config::{DatabaseHost, DatabaseSpec, StorePlace};
use console::{DatabaseSettings, StoreLocation};
use std::ffi::OsString;

/// Variable with the name of the password file, as libpq has it.
const PASSWORD_FILE: &str = "PGPASSFILE";

/// The place of a store for the reader and the writer.
pub(crate) fn location(place: &StorePlace) -> StoreLocation {
    match place {
        StorePlace::Folder(folder) => StoreLocation::Folder(folder.clone()),
        StorePlace::Database(database) => StoreLocation::Database(settings(database)),
    }
}

/// The place that `--store` names: a folder or the URL of a database.
///
/// # Errors
/// The URL is not usable.
pub(crate) fn parse(text: OsString) -> Result<StoreLocation, String> {
    match text.to_str().filter(|text| DatabaseSpec::is_url(text)) {
        None => Ok(StoreLocation::Folder(text.into())),
        Some(url) => {
            let database = DatabaseSpec::parse(url).map_err(|error| error.to_string())?;
            Ok(StoreLocation::Database(settings(&database)))
        }
    }
}

fn settings(database: &DatabaseSpec) -> DatabaseSettings {
    let file = database.password_file.clone();
    DatabaseSettings {
        host: match &database.host {
            DatabaseHost::Network(host) => console::DatabaseHost::Network(host.clone()),
            DatabaseHost::Socket(folder) => console::DatabaseHost::Socket(folder.clone()),
        },
        port: database.port,
        user: database.user.clone(),
        database: database.database.clone(),
        authorities: database.authorities.clone(),
        password_file: file.or_else(|| std::env::var_os(PASSWORD_FILE).map(Into::into)),
    }
}
