//! `hornwork run`: the border in service, from its configuration to the last call of its drain.

use crate::configuration;
use border::border::Border;
use border::config::Config;
use clap::{Args, ValueEnum};
use engine::{Event, HashKey, Note};
use media::forward::{Forwarder, ForwarderLimits};
use net::{Clock, Driver, DriverConfig, Signals};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How long a signal may wait for its answer: one that comes just before the driver's wait is seen after it.
const SIGNAL_WAIT: Duration = Duration::from_millis(200);

/// Options of `hornwork run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The configuration.
    #[arg(short, long, value_name = "FILE", default_value = configuration::USUAL)]
    config: PathBuf,
    /// Which parts run here.
    #[arg(long, value_enum, default_value_t = Role::All)]
    role: Role,
}

/// Which parts run in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Signalling and media.
    All,
    /// Signalling only; media on nodes of their own.
    Signalling,
    /// Media only, commanded from elsewhere.
    Media,
}

/// `hornwork run`.
pub fn run(options: &Run) -> ExitCode {
    if options.role != Role::All {
        eprintln!("hornwork: this version runs signalling and media in one process only: --role all");
        return ExitCode::from(3);
    }
    let config = match configuration::load(&options.config) {
        Ok(config) => config,
        Err(code) => return code,
    };
    start_log(&config);
    match serve(&options.config, config) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("hornwork: {error}");
            ExitCode::from(3)
        }
    }
}

/// Logs go to standard error; `[log]` says how much, RUST_LOG overrules it.
fn start_log(config: &Config) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(&config.log.level));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    if config.log.json {
        builder.json().init();
    } else {
        builder.with_ansi(false).init();
    }
}

fn driver_config(config: &Config) -> DriverConfig {
    DriverConfig {
        signalling_dscp: config.sip.dscp,
        media_dscp: config.media.dscp,
        connections: config.limits.connections,
        connections_per_source: config.limits.connections_per_source,
        ..DriverConfig::default()
    }
}

fn serve(path: &Path, config: Config) -> io::Result<ExitCode> {
    let signals = Signals::install()?;
    if let Err(error) = net::raise_open_files() {
        tracing::warn!("the limit of open files stays as it is: {error}");
    }
    let clock = Clock::new();
    let driver_config = driver_config(&config);
    let drain = config.drain.timeout;
    print!("{}", configuration::summary(&config));
    let mut entropy = net::entropy()?;
    let forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::new(&mut entropy));
    let mut border = Border::new(config, entropy);
    border.set_events_wanted(tracing::enabled!(tracing::Level::WARN));
    let mut driver = Driver::new(driver_config, clock, forwarder)?;
    let mut stops = 0;
    let mut failed = false;
    loop {
        driver.turn(&mut border, SIGNAL_WAIT)?;
        while let Some(event) = driver.next_event() {
            failed |= matches!(&event.note, Note::SocketFailed { what, .. } if what != "media");
            log(&event);
        }
        if failed && stops == 0 {
            // A border that does not listen where it should is no border; the supervisor shall know at once.
            return Ok(ExitCode::from(3));
        }
        if signals.take_reload() {
            reload(path, &mut border, &clock);
        }
        if signals.stops() > stops {
            stops = signals.stops();
            border.drain(if stops > 1 { Duration::ZERO } else { drain }, clock.now());
        }
        if border.is_drained() {
            driver.turn(&mut border, Duration::ZERO)?;
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// SIGHUP: a good file takes over, a bad one changes nothing.
fn reload(path: &Path, border: &mut Border, clock: &Clock) {
    match configuration::load(path) {
        Ok(config) => border.reload(config, clock.now()),
        Err(_) => tracing::error!("{}: refused, the old configuration stays", path.display()),
    }
}

/// Writes an event, at the level that it deserves.
fn log(event: &Event) {
    match &event.note {
        Note::SocketFailed { .. } | Note::ConfigurationRefused { .. } => tracing::error!("{event}"),
        Note::TrunkDown { .. } | Note::MediaPortsExhausted { .. } | Note::MediaTimeout { .. } => {
            tracing::warn!("{event}");
        }
        Note::CallProgressed { .. } | Note::CallRouted { .. } | Note::MediaLatched { .. } | Note::ConnectionClosed { .. } => {
            tracing::debug!("{event}");
        }
        _ => tracing::info!("{event}"),
    }
}
