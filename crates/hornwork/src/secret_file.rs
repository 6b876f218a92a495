//! Files with a secret in one line, which only their owner may read.

use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Permitted length of a secret, characters.
pub(crate) const MIN_CHARS: usize = 16;
pub(crate) const MAX_CHARS: usize = 256;

/// The remedy for a file that cannot be opened: its owner, if that is the reason, or `otherwise`.
pub(crate) fn remedy_for(
    path: &Path,
    error: &std::io::Error,
    otherwise: impl FnOnce() -> String,
) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => format!(
            "chown it to the user of this program, which must also be able to enter its folder; for the packaged service: chown hornwork:hornwork {}",
            path.display()
        ),
        _ => otherwise(),
    }
}

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
    let failed = |error: std::io::Error| {
        let what = format!("{name} cannot be read: {error}");
        (what, remedy_for(path, &error, write))
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_another_user_has_a_remedy_that_does_not_replace_it() {
        let path = Path::new("/etc/hornwork/control.token");
        let remedy = |kind: ErrorKind| remedy_for(path, &kind.into(), || "write it".to_owned());
        let denied = remedy(ErrorKind::PermissionDenied);
        assert!(
            denied.contains("chown hornwork:hornwork /etc/hornwork/control.token"),
            "{denied}"
        );
        assert!(!denied.contains("write it"), "{denied}");
        assert_eq!(remedy(ErrorKind::NotFound), "write it");
    }
}
