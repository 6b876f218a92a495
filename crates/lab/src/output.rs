//! Standard output and standard error of all commands, and tables of text. The macros of this module take the place of
//! the standard library's in this crate: those panic when the output is a full disk, a closed pipe, or a terminal that
//! has gone, and a run would lose its results with its progress.

use std::fmt::Write;
use std::sync::OnceLock;

/// Prints to standard error. There is no place to report its errors to.
macro_rules! eprint {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stderr(), $($text)*);
    }};
}

/// Prints a line to standard error.
macro_rules! eprintln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// The first error of standard output.
static OUTPUT_FAILURE: OnceLock<std::io::Error> = OnceLock::new();

/// Prints to standard output. An error does not stop the command, whose measurements and files are worth more than
/// their text: the program ends with it ([`output_failure`]). A closed pipe is no error: the reader has read enough.
pub fn print(text: &str) {
    print_bytes(text.as_bytes());
}

/// As [`print`], for bytes that may be no text (a SIP message).
pub fn print_bytes(bytes: &[u8]) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let _ = OUTPUT_FAILURE.set(error);
        }
        _ => (),
    }
}

/// The first error of [`print`], for the exit code at the end of the program.
pub fn output_failure() -> Option<&'static std::io::Error> {
    OUTPUT_FAILURE.get()
}

/// Rows under headings; the first column is aligned to the left, the others to the right.
pub fn columns(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |index: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(index))
            .map(|cell| cell.chars().count());
        cells
            .chain(headings.get(index).map(|heading| heading.chars().count()))
            .max()
            .unwrap_or(0)
    };
    let mut out = String::new();
    let headings: Vec<String> = headings.iter().map(|&heading| heading.to_owned()).collect();
    for row in std::iter::once(&headings).chain(rows) {
        let mut line = String::new();
        for (index, cell) in row.iter().enumerate() {
            let width = width(index);
            let _ = match index {
                0 => write!(line, "{cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
