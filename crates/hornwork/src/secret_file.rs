//! Files with a secret in one line, which only their owner may read.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Permitted length of a secret, characters.
pub(crate) const MIN_CHARS: usize = 16;
pub(crate) const MAX_CHARS: usize = 256;

/// Reads the first line of a file that only its owner may access, and checks it.
///
/// # Errors
/// The problem, and the remedy.
pub(crate) fn read(
    path: &Path,
    is_good: impl Fn(&str) -> bool,
    form: &str,
) -> Result<String, (String, String)> {
    let name = path.display();
    let write = || format!("write a secret: (umask 077; openssl rand -hex 32 > {name})");
    let failed = |error: std::io::Error| (format!("{name} cannot be read: {error}"), write());
    let file = std::fs::File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if about.mode() & 0o077 != 0 {
        return Err((
            format!("{name} is readable or writable by others than its owner"),
            format!("chmod 600 {name}"),
        ));
    }
    let mut text = String::new();
    // One character more than permitted, and the end of the line.
    let most = MAX_CHARS as u64 + 3;
    file.take(most).read_to_string(&mut text).map_err(failed)?;
    let secret = text.trim_end_matches(['\r', '\n']);
    let good = (MIN_CHARS..=MAX_CHARS).contains(&secret.len()) && is_good(secret);
    match good {
        true => Ok(secret.to_owned()),
        false => Err((
            format!("{name} does not consist of one line with {MIN_CHARS} to {MAX_CHARS} {form}"),
            write(),
        )),
    }
}
