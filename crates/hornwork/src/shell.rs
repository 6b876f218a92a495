//! Shell completions and manual pages, both generated from the description of the command line, so that they cannot
//! differ from it; and the text of `hornwork` without a command.

use clap::CommandFactory;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `hornwork completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: hornwork completions bash > hornwork.bash")]
pub struct Completions {
    /// The shell.
    shell: clap_complete::Shell,
}

/// Options of `hornwork man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: hornwork man .")]
pub struct Man {
    /// An existing directory; one page is written for each command.
    directory: PathBuf,
}

/// The next steps of a new user.
const NEXT_STEPS: &str = "\
hornwork is a session border controller and a test lab for SIP systems.

  hornwork demo                          calls with speech through a border and a PBX on this machine, with a report
  hornwork check -c FILE                 check a configuration (examples: /usr/share/doc/hornwork/examples, or examples/ of the source)
  hornwork run -c FILE                   run the border
  hornwork lab list                      experiments of the test lab
  hornwork lab run pbx-capacity --set sut.address=HOST:PORT --set callees.address=HERE:5080
                                         load-test the PBX at HOST
  hornwork phone call sip:USER@HOST      call with the softphone
  hornwork help                          all commands
";

/// Prints the next steps. The exit status is that of a missing command.
pub fn next_steps() -> ExitCode {
    // A closed pipe is the reader's choice.
    let _ = std::io::stderr().write_all(NEXT_STEPS.as_bytes());
    ExitCode::from(2)
}

/// Prints the completions of a shell.
pub fn completions<Arguments: CommandFactory>(options: &Completions) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(
        options.shell,
        &mut Arguments::command(),
        "hornwork",
        &mut text,
    );
    print!("{}", String::from_utf8_lossy(&text));
    ExitCode::SUCCESS
}

/// Writes the manual pages. `version` is one line: it is part of the title line of each page, which a line break ends.
pub fn man<Arguments: CommandFactory>(options: &Man, version: &'static str) -> ExitCode {
    let mut command = Arguments::command()
        .version(version)
        .disable_help_subcommand(true);
    command.build();
    match pages(&command, &options.directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "hornwork: {}: {error}; name an existing directory",
                options.directory.display()
            );
            ExitCode::from(3)
        }
    }
}

/// Writes the page of a command and those of its subcommands.
fn pages(command: &clap::Command, directory: &Path) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        pages(inner, directory)?;
    }
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text = with_title(&String::from_utf8_lossy(&text), command);
    std::fs::write(directory.join(page.get_filename()), text)
}

/// A page with a title line of our own: clap_mangen writes an empty date as no argument, so that the source takes its
/// place, and takes the name of the subcommand for that of the program.
fn with_title(page: &str, command: &clap::Command) -> String {
    let name = command
        .get_display_name()
        .unwrap_or_else(|| command.get_name());
    let title = format!(
        ".TH {} 1 \"\" \"hornwork {}\" \"Hornwork manual\"",
        name.to_uppercase(),
        env!("CARGO_PKG_VERSION")
    );
    let lines = page.lines().map(|line| match line.starts_with(".TH ") {
        true => title.as_str(),
        false => line,
    });
    lines.map(|line| format!("{line}\n")).collect()
}
