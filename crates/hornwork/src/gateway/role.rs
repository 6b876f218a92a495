//! `hornwork run --role gateway`: the IPsec gateway alone in a process.

use super::{Gateway, GatewayKeys};
use crate::log::EventLog;
use crate::notify::{Watchdog, notify};
use crate::security::WatchedCertificate;
use config::{Config, GatewaySpec};
use engine::{Event, Time};
use net::{Clock, Signals};
use std::io;
use std::process::ExitCode;
use std::time::Duration;

/// Longest delay in handling a signal.
const WAIT: Duration = Duration::from_millis(100);
/// Interval of the checks of the certificate's expiry.
const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(86_400);

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
    let mut certificate = CertificateWatch::new(config, clock.now());
    certificate.read(log, clock.now());
    let mut carries = Ok(());
    while signals.stops() == 0 {
        carries = gateway.check();
        if carries.is_err() {
            break;
        }
        let now = clock.now();
        if signals.take_reload() {
            gateway.reload();
            certificate.read(log, now);
        }
        certificate.log_expiry(log, now);
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

/// The certificate of the key exchange, whose expiry is logged at the start, daily, and at each reload.
struct CertificateWatch<'c> {
    spec: Option<&'c GatewaySpec>,
    certificate: Option<WatchedCertificate<'c>>,
    next: Time,
}

impl<'c> CertificateWatch<'c> {
    fn new(config: &'c Config, now: Time) -> CertificateWatch<'c> {
        let spec = config.gateway.as_ref();
        let files = spec.and_then(GatewaySpec::certificate);
        CertificateWatch {
            spec,
            certificate: files.map(WatchedCertificate::new),
            next: now,
        }
    }

    /// Reads it together with the other files, one of which may be refused: then the one before stays in use.
    fn read(&mut self, log: &EventLog, now: Time) {
        let Some(certificate) = &mut self.certificate else {
            return;
        };
        if self
            .spec
            .is_some_and(|spec| GatewayKeys::read(spec).is_ok())
            && let Some(note) = certificate.read()
        {
            log.event(&Event::new(now, note));
        }
        self.next = now;
    }

    fn log_expiry(&mut self, log: &EventLog, now: Time) {
        if now < self.next {
            return;
        }
        self.next = now + CERTIFICATE_CHECK_INTERVAL;
        let certificate = self.certificate.as_ref();
        if let Some(note) = certificate.and_then(WatchedCertificate::expiry) {
            log.event(&Event::new(now, note));
        }
    }
}
