//! Files on a disk that is full: a write that fails leaves no part of its text, and a start is not refused. The folder
//! of a file, whose disk it is.

use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

/// Whether a file system, or the share of it that the user may have, is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    )
}

/// Appends a text to a file of this length, which was opened for appending.
///
/// # Errors
/// Of the file system; the file then has its former length.
pub(crate) fn append_whole(mut file: &File, length: u64, text: &str) -> io::Result<()> {
    let written = file.write_all(text.as_bytes());
    if written.is_err() {
        // On a full disk a file can still be shortened.
        let _ = file.set_len(length);
    }
    written
}

/// The folder of a file; of a bare name, the working directory: the parent of such a path is empty, and no folder.
pub(crate) fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) => Path::new("."),
        None => Path::new("/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::process::Command;

    /// Variable with a file, for the test that runs itself with a limit of the size of files.
    const LIMITED: &str = "HORNWORK_TEST_LIMITED_FILE";

    #[test]
    fn a_bare_name_is_in_the_working_directory() {
        for (file, folder) in [("a.db", "."), ("b/a.db", "b"), ("/a.db", "/"), ("/", "/")] {
            assert_eq!(folder_of(Path::new(file)), Path::new(folder), "{file}");
        }
    }

    #[test]
    fn a_failed_write_leaves_no_part_of_its_text() {
        let name = "full_disk::tests::a_failed_write_leaves_no_part_of_its_text";
        if let Some(path) = std::env::var_os(LIMITED) {
            let file = OpenOptions::new().append(true).open(&path).unwrap();
            let failed = append_whole(&file, 6, &"x".repeat(2_000));
            assert!(failed.is_err(), "{failed:?}");
            assert_eq!(std::fs::read(&path).unwrap(), b"first\n");
            append_whole(&file, 6, "next\n").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"first\nnext\n");
            return;
        }
        let path = std::env::temp_dir().join(format!("hornwork-limited-{}", std::process::id()));
        std::fs::write(&path, "first\n").unwrap();
        // One block: a part of the text fits, as on a disk that fills up. The signal would end the program.
        let output = Command::new("sh")
            .args([
                "-c",
                "trap '' XFSZ; ulimit -f 1; exec \"$0\" --exact \"$1\" --nocapture",
            ])
            .arg(std::env::current_exe().unwrap())
            .arg(name)
            .env(LIMITED, &path)
            .output()
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
    }
}
