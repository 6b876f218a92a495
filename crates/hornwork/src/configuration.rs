//! `hornwork check` and `hornwork schema`, and the reading of configuration files.

use border::config::{Config, Mistake};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where a packaged installation keeps its configuration.
pub const USUAL: &str = "/etc/hornwork/hornwork.toml";

/// Options of `hornwork check`.
#[derive(Debug, Args)]
pub struct Check {
    /// The configuration.
    #[arg(short, long, value_name = "FILE", default_value = USUAL)]
    config: PathBuf,
}

/// Options of `hornwork schema`.
#[derive(Debug, Args)]
pub struct Schema {
    /// The reference page instead of the JSON Schema.
    #[arg(long)]
    markdown: bool,
}

/// Reads a configuration; every mistake goes to standard error.
///
/// # Errors
/// The exit code: 2.
pub fn load(path: &Path) -> Result<Config, ExitCode> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        eprintln!("hornwork: {}: {error}", path.display());
        ExitCode::from(2)
    })?;
    border::config::parse(&text, &path.display().to_string()).map_err(|mistakes| {
        explain(&text, &mistakes);
        ExitCode::from(2)
    })
}

/// Prints each mistake with the line it is about.
fn explain(text: &str, mistakes: &[Mistake]) {
    for mistake in mistakes {
        let line = text
            .lines()
            .nth(mistake.line.saturating_sub(1))
            .unwrap_or_default();
        eprintln!(
            "{}:{}:{}: {}",
            mistake.file, mistake.line, mistake.column, mistake.message
        );
        eprintln!("  {:>4} | {line}", mistake.line);
        eprintln!("       | {}^", " ".repeat(mistake.column.saturating_sub(1)));
        eprintln!("  remedy: {}", mistake.remedy);
    }
    let count = mistakes.len();
    eprintln!("{count} mistake{}", if count == 1 { "" } else { "s" });
}

/// `hornwork check`: says what the file does, or what is wrong with it.
pub fn check(options: &Check) -> ExitCode {
    match load(&options.config) {
        Err(code) => code,
        Ok(config) => {
            print!("{}", summary(&config));
            ExitCode::SUCCESS
        }
    }
}

/// What a configuration does, in a few lines.
pub fn summary(config: &Config) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for interface in &config.interfaces {
        let listens: Vec<String> = interface.listen.iter().map(ToString::to_string).collect();
        let _ = writeln!(
            text,
            "interface {}: listens on {}",
            interface.name,
            listens.join(", ")
        );
    }
    for trunk in &config.trunks {
        let _ = writeln!(
            text,
            "trunk {}: {} target{}",
            trunk.name,
            trunk.targets.len(),
            if trunk.targets.len() == 1 { "" } else { "s" }
        );
    }
    let _ = writeln!(
        text,
        "{} routes, {} users",
        config.routes.len(),
        config.users.len()
    );
    text
}

/// `hornwork schema`.
pub fn schema(options: &Schema) -> ExitCode {
    if options.markdown {
        print!("{}", border::config::markdown());
    } else {
        println!("{}", border::config::json_schema());
    }
    ExitCode::SUCCESS
}
