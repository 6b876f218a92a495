//! `hornwork run --role gateway`: the IPsec gateway alone in a process.

use super::{Gateway, GatewayKeys};
use crate::log::EventLog;
use crate::notify::{Watchdog, notify};
use config::Config;
use net::{Clock, Signals};
use std::io;
use std::process::ExitCode;
use std::time::Duration;

/// Longest delay in handling a signal.
const WAIT: Duration = Duration::from_millis(100);

/// `hornwork run --role gateway`: runs a gateway until a signal stops it. SIGHUP reads the key file again.
pub(crate) fn run(
    config: &Config,
    keys: Option<&GatewayKeys>,
    log: &EventLog,
    clock: Clock,
) -> ExitCode {
    if config
        .metrics
        .as_ref()
        .is_some_and(|metrics| metrics.csv.is_some())
    {
        tracing::warn!("`csv` in [metrics] is ignored: with --role gateway there are no calls");
    }
    match serve(config, keys, log, clock) {
        Ok(()) => {
            log.end("");
            ExitCode::SUCCESS
        }
        Err(error) => {
            log.end(&format!("hornwork: {error}"));
            ExitCode::from(3)
        }
    }
}

fn serve(
    config: &Config,
    keys: Option<&GatewayKeys>,
    log: &EventLog,
    clock: Clock,
) -> io::Result<()> {
    let signals = Signals::install()?;
    let Some(mut gateway) = Gateway::of(config, keys, false, (log, clock))? else {
        return Err(io::Error::other("there is no [gateway]"));
    };
    let figures = gateway.figures();
    crate::metrics::start_gateway(config.metrics.as_ref(), figures, (log, clock))?;
    log.flush();
    notify("READY=1");
    let mut watchdog = Watchdog::from_environment();
    let mut carries = Ok(());
    while signals.stops() == 0 {
        carries = gateway.check();
        if carries.is_err() {
            break;
        }
        if signals.take_reload() {
            gateway.reload();
        }
        watchdog.notify_if_due(clock.now(), || gateway.check_progress());
        // A signal ends the pause.
        net::pause(WAIT);
        log.flush();
    }
    notify("STOPPING=1");
    gateway.stop();
    log.flush();
    carries
}
