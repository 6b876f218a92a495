//! Directories in the temporary directory for the user alone, removed at their end, or by the next run after a kill.

use crate::error::LabError;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// A directory of its own, removed with this value.
#[derive(Debug)]
pub(crate) struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    /// Makes one, whose name begins with `prefix` and `name` and cannot be predicted, so that no other user has made it
    /// before. Those with the same prefix of runs that were killed are removed.
    ///
    /// # Errors
    /// The temporary directory is not writable, or there is no randomness.
    pub(crate) fn new(prefix: &str, name: &str) -> Result<PrivateDirectory, LabError> {
        remove_left_overs(&std::env::temp_dir(), prefix);
        let mut entropy = net::entropy().map_err(|error| {
            LabError::cannot_run(format!("getrandom: {error}"), "run it outside the sandbox")
        })?;
        let number = entropy.u64();
        let own = std::process::id();
        let path = std::env::temp_dir().join(format!("{prefix}{name}-{own}-{number:016x}"));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| {
                LabError::cannot_run(
                    format!("{}: {error}", path.display()),
                    "make the temporary directory writable (TMPDIR)",
                )
            })?;
        Ok(PrivateDirectory(path))
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Number of the process that has made a directory of this name; `None` for other names, as those of default results,
/// which may begin with the same prefix and end in two numbers.
fn maker(name: &str, prefix: &str) -> Option<u32> {
    let mut parts = name.strip_prefix(prefix)?.rsplit('-');
    let (number, process) = (parts.next()?, parts.next()?);
    let is_random = number.len() == 16 && number.bytes().all(|digit| digit.is_ascii_hexdigit());
    process.parse().ok().filter(|_| is_random)
}

/// Removes the directories of this user in `folder` whose process is over.
fn remove_left_overs(folder: &Path, prefix: &str) {
    let entries = std::fs::read_dir(folder);
    for entry in entries.into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| maker(name, prefix));
        let ended = |process: u32| !Path::new(&format!("/proc/{process}")).exists();
        let is_own = entry
            .metadata()
            .is_ok_and(|about| about.is_dir() && about.uid() == net::user_id());
        if is_own && process.is_some_and(ended) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const PREFIX: &str = "hornwork-private-test-";

    #[test]
    fn directory_is_for_its_user_alone_and_has_no_predictable_name() {
        let [one, other] =
            [(), ()].map(|()| PrivateDirectory::new(PREFIX, "a-program").expect("directory"));
        assert_ne!(one.path(), other.path());
        let mode = std::fs::metadata(one.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let path = one.path().to_owned();
        std::fs::write(path.join("file"), "x").unwrap();
        drop(one);
        assert!(!path.exists() && other.path().exists());
    }

    #[test]
    fn directories_of_killed_runs_are_removed() {
        let folder = std::env::temp_dir().join(format!("lab-left-overs-{}", std::process::id()));
        // No process has a number of ten digits.
        let left = folder.join(format!("{PREFIX}baresip-4000000000-0123456789abcdef"));
        let number = "0123456789abcdef";
        let running = folder.join(format!("{PREFIX}baresip-{}-{number}", std::process::id()));
        let other = folder.join(format!("hornwork-other-4000000000-{number}"));
        // Results without --out, of an experiment whose name begins so.
        let results = folder.join(format!("{PREFIX}jitter-1795955224-238363"));
        for path in [&left, &running, &other, &results] {
            std::fs::create_dir_all(path.join("inner")).unwrap();
        }
        remove_left_overs(&folder, PREFIX);
        assert!(!left.exists());
        assert!([running, other, results].iter().all(|path| path.exists()));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
