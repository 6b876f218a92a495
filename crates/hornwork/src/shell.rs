//! Shell completions and manual pages, both generated from the description of the command line, so that they cannot
//! differ from it; and the text of `hornwork` without a command.

use clap::CommandFactory;
use std::io::Write as _;
use std::path::PathBuf;
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
  hornwork lab run call-capacity --set sut.address=HOST:PORT --set callees.address=HERE:5080
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
    let _ = std::io::stdout().write_all(&text);
    ExitCode::SUCCESS
}

/// Writes the manual pages.
pub fn man<Arguments: CommandFactory>(options: &Man) -> ExitCode {
    match clap_mangen::generate_to(Arguments::command(), &options.directory) {
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
