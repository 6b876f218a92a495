//! Standard output and standard error of all commands. The macros of this module take the place of the standard
//! library's in this crate: those panic when the output is a full disk or a closed pipe.

use std::process::ExitCode;

/// Prints to standard output; errors are judged at the end ([`end`]).
macro_rules! print {
    ($($text:tt)*) => { lab::output::print(&format!($($text)*)) };
}

/// Prints a line to standard output.
macro_rules! println {
    ($($text:tt)*) => { lab::output::print(&(format!($($text)*) + "\n")) };
}

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

/// The exit code of a command that ended with `code`: 3 if it was successful, but its output was lost.
pub(crate) fn end(code: ExitCode) -> ExitCode {
    let Some(error) = lab::output::output_failure() else {
        return code;
    };
    eprintln!("hornwork: standard output: {error}");
    match code == ExitCode::SUCCESS {
        true => ExitCode::from(3),
        false => code,
    }
}

/// Prints a help text or the version that `clap` returned instead of arguments.
pub(crate) fn help(text: &clap::Error) -> ExitCode {
    let styled = text.render();
    match crate::findings::colours(&std::io::stdout()) {
        true => print!("{}", styled.ansi()),
        false => print!("{styled}"),
    }
    end(ExitCode::SUCCESS)
}
