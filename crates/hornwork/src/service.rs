//! `hornwork run`: runs the border from its configuration until its last call has drained.

use crate::alarms::{self, AlarmOutput};
use crate::announcement::announce;
use crate::background_read::BackgroundRead;
use crate::call_tap::call_tap;
use crate::capacity;
use crate::configuration;
use crate::control::{ConferenceControl, ControlPolicy};
use crate::driver_setup::{SIGNAL_WAIT, driver_config, log_machine_limits, media_keying, opened};
use crate::event_output::EventOutput;
use crate::gateway::{self, Gateway, carries_media_directly};
use crate::history::{CallHistory, HistorySink};
use crate::log::EventLog;
use crate::media_node;
use crate::media_path::{
    af_xdp, kernel_relay, log_af_xdp_packets, log_kernel_relay_changes, media_offload,
};
use crate::metrics;
use crate::name_service::with_name_service;
use crate::next_start::{StartConfig, warn_of_pending_changes};
use crate::notify::{StopExtension, Watchdog, notify};
use crate::operators::{self, Operators, ServiceRequest, WorkerContext};
use crate::ports::{self, Claims, ServedPart};
use crate::records::CallRecords;
use crate::reload_waiters::ReloadWaiters;
use crate::security::LoadedFiles;
use crate::store::{RegistrationSink, Store};
use crate::threads::ThreadSettings;
use crate::traces::CallTraces;
use crate::web::WebConsole;
use crate::workers::{SiblingWorkers, worker_driver_config};
use border::admission::MediaPaths;
use border::border::Border;
use clap::{Args, ValueEnum};
use config::Config;
use engine::{Event, EventKind, HashKey, Time};
use media::forward::{Forwarder, ForwarderLimits};
use net::{Clock, Driver, DriverConfig, KernelRelay, PortClaims, Signals};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Error for a file without an interface.
const NO_INTERFACE: &str = "the configuration has no interface for calls";
/// Longest wait for carriers to answer our deregistration.
const UNREGISTER_WAIT: Duration = Duration::from_secs(2);

/// Options of `hornwork run`.
#[derive(Debug, Args)]
#[command(after_help = "Example: hornwork run -c examples/pbx.toml")]
pub struct ServeOptions {
    /// Configuration file.
    #[arg(short, long, value_name = "FILE", default_value = configuration::DEFAULT_PATH)]
    config: PathBuf,
    /// Parts to run in this process.
    #[arg(long, value_enum, default_value_t = ServiceRole::All)]
    role: ServiceRole,
}

/// Parts that run in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ServiceRole {
    /// Signalling and media.
    All,
    /// Signalling only; media on media nodes.
    Signalling,
    /// Media node only.
    Media,
    /// IPsec gateway only.
    Gateway,
}

/// `hornwork run`.
pub fn run(options: &ServeOptions) -> ExitCode {
    if options.role == ServiceRole::Signalling {
        eprintln!("hornwork: --role signalling is not supported");
        eprintln!("  remedy: remove --role, or use --role all");
        return ExitCode::from(3);
    }
    let (config, loaded) = match configuration::load_all(&options.config, None) {
        Ok(loaded) => loaded,
        Err(refused) => return refused.print(),
    };
    let media = options.role == ServiceRole::Media;
    if media && config.ng_server.is_none() {
        eprintln!(
            "hornwork: {}: {}",
            options.config.display(),
            media_node::NO_NODE
        );
        return ExitCode::from(2);
    }
    let gateway = options.role == ServiceRole::Gateway;
    if gateway && config.gateway.is_none() {
        eprintln!(
            "hornwork: {}: there is no [gateway]",
            options.config.display()
        );
        eprintln!("  remedy: add [gateway] with [[gateway.tunnel]], or remove --role gateway");
        return ExitCode::from(2);
    }
    if options.role == ServiceRole::All && config.interfaces.is_empty() {
        eprintln!("hornwork: {}: {NO_INTERFACE}", options.config.display());
        eprintln!(
            "  remedy: use --role media or --role gateway for these parts alone, or add an [[interface]]"
        );
        return ExitCode::from(2);
    }
    let clock = Clock::new();
    let log = match EventLog::start(&config, clock) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("hornwork: cannot start the log: {error}");
            return ExitCode::from(3);
        }
    };
    if let Err(error) = net::free_memory_in_background() {
        eprintln!("hornwork: cannot start the thread that returns memory: {error}");
        return ExitCode::from(3);
    }
    warn_of_settings(&config, &loaded);
    if gateway {
        for table in without_calls(&config) {
            tracing::warn!("{table} is ignored: with --role gateway there are no calls");
        }
        return gateway::run(&config, loaded.gateway.as_ref(), &log, clock);
    }
    if !media && config.ng_server.is_some() {
        tracing::warn!(
            "[ng_server] is ignored: run it in a separate process: hornwork run --role media"
        );
    }
    let ignored = [
        ("[control]", config.control.is_some()),
        ("[records]", config.records.is_some()),
        ("[metrics]", config.metrics.is_some()),
        ("[console]", config.console.is_some()),
        ("[alarms]", config.alarms.is_some()),
        ("[traces]", config.traces.is_some()),
        ("[gateway]", config.gateway.is_some()),
    ];
    for (table, _) in ignored.iter().filter(|(_, present)| media && *present) {
        tracing::warn!("{table} is ignored: a media node has no calls of its own");
    }
    if media && config.store.is_some() {
        tracing::warn!("[store] is ignored: a media node has no signalling");
    }
    let own = log.clone();
    let served = match media {
        true => media_node::serve(&options.config, config, loaded, own, clock),
        false => serve(&options.config, config, loaded, own, clock),
    };
    match served {
        Ok(code) => {
            log.end("");
            code
        }
        Err(error) => {
            log.end(&format!("hornwork: {error}"));
            ExitCode::from(3)
        }
    }
}

/// Logs the warnings that `hornwork check` prints.
pub(crate) fn warn_of_settings(config: &Config, loaded: &LoadedFiles) {
    for renamed in &config.renamed_keys {
        tracing::warn!("{renamed}");
    }
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    for invalid in &loaded.warnings {
        tracing::warn!("{}; {}", invalid.message, invalid.remedy);
    }
}

/// Tables of the file that have no effect without calls.
fn without_calls(config: &Config) -> Vec<&'static str> {
    let tables = [
        ("[[interface]]", !config.interfaces.is_empty()),
        ("[ng_server]", config.ng_server.is_some()),
        ("[control]", config.control.is_some()),
        ("[records]", config.records.is_some()),
        ("[store]", config.store.is_some()),
        ("[console]", config.console.is_some()),
        ("[alarms]", config.alarms.is_some()),
        ("[traces]", config.traces.is_some()),
    ];
    let present = tables.into_iter().filter(|(_, present)| *present);
    present.map(|(table, _)| table).collect()
}

fn serve(
    path: &Path,
    config: Config,
    loaded: LoadedFiles,
    log: EventLog,
    clock: Clock,
) -> io::Result<ExitCode> {
    let signals = Signals::install()?;
    log_machine_limits(&config);
    let alarm_output = AlarmOutput::start(&config, &loaded, &log, clock)?;
    let drain = config.drain.timeout;
    let config = with_name_service(config);
    // No alarm is active before.
    let objects = alarms::objects(&config, loaded.certificate_names());
    log.alarms().set_objects(objects, clock.now());
    let claims = Claims::of(ServedPart::Border)?;
    let claimed = claims.claim_at_start(&config)?;
    ports::refuse_shared_listeners(&config)?;
    announce(configuration::summary(&config));
    for note in ports::remarks(&config) {
        log.event(&Event::new(clock.now(), note));
    }
    let mut entropy = net::entropy()?;
    let forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::new(&mut entropy));
    let workers = config.sip.workers;
    let config = Arc::new(config);
    let mut borders = Border::worker_pool(config.clone(), workers, entropy);
    let files = net::open_files().0 / borders.len().max(1) as u64;
    for border in &mut borders {
        border.set_open_files(files);
        border.set_wall_clock(Duration::from_nanos(clock.unix_nanos(Time::ZERO)));
        border.set_call_records(
            config.records.is_some() || config.traces.is_some() || config.store.is_some(),
        );
    }
    let keying = media_keying(&clock)?;
    for border in &mut borders {
        border.set_dtls(keying.clone());
    }
    let cpus = net::allowed_cpus();
    let relay = kernel_relay(&config, &log, &clock)?;
    let relay = relay.as_ref();
    let af_xdp = af_xdp(&config, &log, &clock)?;
    let offload = media_offload(relay, af_xdp.as_ref());
    for border in &mut borders {
        border.set_media_offload(offload.clone());
    }
    let mut border = borders.remove(0);
    let records = match &config.records {
        None => None,
        Some(spec) => Some(CallRecords::start(spec, &log, clock)?),
    };
    let (tap, taps) = config.console.as_ref().map(|_| call_tap()).unzip();
    let traces = CallTraces::start(&config, &loaded.traces, &log, clock)?;
    let sinks = (
        records.as_ref().map(CallRecords::sink),
        traces.as_ref().map(CallTraces::sink),
    );
    let events = EventOutput::new(log.clone(), sinks, tap);
    let store = Store::start(&mut border, &log, clock)?;
    let sink = store.as_ref().map(Store::sink);
    let mut history = CallHistory::start(border.config(), &log, clock)?;
    let mut histories = history
        .as_mut()
        .map_or_else(Vec::new, CallHistory::take_sinks)
        .into_iter();
    let own_history = histories.next();
    if let Some(history) = &own_history {
        history.attach(&mut border);
    }
    let settings = DriverConfig {
        af_xdp: af_xdp.clone(),
        ..driver_config(border.config(), relay)
    };
    let settings = worker_driver_config(settings, border.worker(), &cpus);
    let placing = ThreadSettings::of(border.config(), &log, &clock)?;
    let settings = placing.apply(border.worker().number, settings);
    let mut driver = Driver::new(settings, clock, forwarder)?;
    driver.set_security(loaded.security.clone());
    let paths = MediaPaths {
        offload,
        shared_ports: driver.has_shared_ports(),
        direct_tunnels: carries_media_directly(&config),
    };
    announce(capacity::of_process(&config, &paths));
    border.set_shared_ports(paths.shared_ports);
    let mut siblings = SiblingWorkers::default();
    if workers > 1 {
        let mut worker_mailboxes = net::worker_mailboxes(workers).into_iter();
        if let Some(mailbox) = worker_mailboxes.next() {
            driver.attach_mailbox(mailbox);
        }
        let others = borders.into_iter().zip(worker_mailboxes);
        let others =
            others.map(|(border, mailbox)| (border, mailbox, sink.clone(), histories.next()));
        let others = others.collect();
        let first = driver.waker();
        siblings = SiblingWorkers::start(
            others,
            relay,
            &placing,
            &loaded.security,
            &events,
            clock,
            &first,
        )?;
    }
    let (line, operator_inbox) = operators::line(driver.waker());
    let lines = std::iter::once(line).chain(siblings.take_lines()).collect();
    let counters = (
        records.as_ref().map(CallRecords::counters),
        traces.as_ref().map(CallTraces::counters),
    );
    let keys = loaded.gateway.as_ref();
    let gateway = Gateway::of(border.config(), keys, true, (&log, clock))?;
    if let Some(path) = gateway.as_ref().and_then(Gateway::media_path) {
        driver.attach_tunnel(path)?;
        border.set_direct_tunnels(true);
    }
    let mut operators = Operators::new(lines, counters, &log, clock);
    operators.store = history.as_ref().map(CallHistory::losses);
    operators.hep = history.as_ref().map(CallHistory::hep_counts);
    operators.gateway = gateway.as_ref().map(Gateway::figures);
    // Always, because it clears alarms as well.
    metrics::start(border.config(), operators.clone())?;
    let control = match &border.config().control {
        None => None,
        Some(spec) => {
            let access = ControlPolicy::new(spec, loaded.token.clone());
            let started = ConferenceControl::start(spec, access, driver.waker(), &operators)?;
            Some(started)
        }
    };
    let console = WebConsole::start(border.config(), &loaded, &operators, taps)?;
    if let Some(sink) = &sink {
        sink.wake_by(driver.waker());
    }
    let mut service = BorderService {
        control,
        console,
        sink,
        history: own_history,
        gateway,
        loaded,
        certificates_logged: None,
        reading: BackgroundRead::new(driver.waker()),
        watchdog: Watchdog::from_environment(),
        stop_extension: StopExtension::default(),
        path,
        start_config: StartConfig::new(config),
        events,
        log,
        clock,
        drain,
        stops: 0,
        ready: false,
        drained: None,
        siblings,
        claims,
        claimed,
        operators,
        reload_waiters: ReloadWaiters::default(),
    };
    // Whether registrations are left to be written.
    let mut more = false;
    loop {
        let wait = match service.ready && !more && !service.reload_waiters.is_opening() {
            true => service
                .control
                .as_ref()
                .map_or(SIGNAL_WAIT, ConferenceControl::wait)
                .min(
                    service
                        .history
                        .as_ref()
                        .map_or(SIGNAL_WAIT, HistorySink::wait),
                ),
            false => Duration::ZERO,
        };
        driver.turn(&mut border, wait)?;
        let sink = service.sink.as_mut();
        more = sink.is_some_and(|sink| sink.drain_from(&mut border));
        more |= operator_inbox.process(&mut WorkerContext {
            border: &mut border,
            driver: &mut driver,
            counts: service.events.counts(),
            now: clock.now(),
        });
        if let Some(control) = &mut service.control {
            control.process(&mut border, &service.siblings, clock.now());
        }
        service.siblings.check()?;
        if let Some(gateway) = &service.gateway {
            gateway.check()?;
        }
        let (siblings, gateway) = (&mut service.siblings, &mut service.gateway);
        service.watchdog.notify_if_due(clock.now(), || {
            siblings.all_have_turned() && gateway.as_mut().is_none_or(Gateway::check_progress)
        });
        service.handle_kernel_relay_changes(relay, &mut border, driver.has_shared_ports());
        if !service.events(&mut driver) {
            return Ok(ExitCode::from(3));
        }
        if let Some(history) = &mut service.history {
            history.hand_over(&mut border, clock.now());
        }
        border.set_debug_events(service.history.is_some() || service.events.has_debug());
        service.log_expiring_certificates();
        service.signals(&signals, &mut border);
        service.operator_requests(&mut border);
        service.poll_reload(&mut border, &mut driver);
        if service.poll_stopped(&border) {
            driver.turn(&mut border, Duration::ZERO)?;
            service.events(&mut driver);
            log_af_xdp_packets(af_xdp.as_ref(), &driver, &service.log);
            service.siblings.stop();
            if let Some(gateway) = service.gateway.take() {
                gateway.stop();
            }
            if let Some(control) = &service.control {
                control.end();
            }
            if let Some(records) = records {
                records.end();
            }
            if let (Some(store), Some(mut sink)) = (store, service.sink) {
                while sink.drain_from(&mut border) {}
                store.end();
            }
            if let Some(sink) = service.history.take() {
                sink.finish(&mut border, &clock);
            }
            if let Some(history) = history {
                history.end();
            }
            if let Some(traces) = traces {
                traces.end();
            }
            if let Some(alarms) = alarm_output {
                alarms.end();
            }
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Interval of the checks of certificate expiry.
const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(86_400);

struct BorderService<'a> {
    path: &'a Path,
    start_config: StartConfig,
    control: Option<ConferenceControl>,
    console: Option<WebConsole>,
    /// Takes changed registrations, if they are stored.
    sink: Option<RegistrationSink>,
    /// Takes messages and events, if they are stored.
    history: Option<HistorySink>,
    /// The IPsec gateway.
    gateway: Option<Gateway>,
    loaded: LoadedFiles,
    /// Time of the last report about certificates.
    certificates_logged: Option<Time>,
    /// Background read of a new configuration.
    reading: BackgroundRead<Result<NewBorderConfig, String>>,
    watchdog: Watchdog,
    stop_extension: StopExtension,
    events: EventOutput,
    log: EventLog,
    clock: Clock,
    drain: Duration,
    /// Number of stop signals received.
    stops: u32,
    ready: bool,
    /// Time at which the last call of a drain had ended.
    drained: Option<Time>,
    /// The other workers.
    siblings: SiblingWorkers,
    operators: Operators,
    /// Operators that wait for the outcome of a reload.
    reload_waiters: ReloadWaiters,
    claims: Claims,
    /// Claims of the media ports of the current configuration.
    claimed: PortClaims,
}

/// A new configuration and its files.
struct NewBorderConfig {
    config: Config,
    loaded: LoadedFiles,
    claimed: PortClaims,
}

impl NewBorderConfig {
    /// Reads the configuration, and claims its media ports.
    ///
    /// # Errors
    /// Why it is rejected.
    fn of(path: &Path, before: &LoadedFiles, claims: Claims) -> Result<NewBorderConfig, String> {
        let read = configuration::load_all(path, Some(before));
        let unchanged = "the current configuration stays in effect";
        let (config, loaded) =
            read.map_err(|refused| format!("{}; {unchanged}", refused.reason()))?;
        // As at the start.
        if config.interfaces.is_empty() {
            return Err(format!(
                "{}: {NO_INTERFACE}: add an [[interface]]; {unchanged}",
                path.display()
            ));
        }
        let claimed = claims.claim(&config);
        Ok(NewBorderConfig {
            claimed: claimed.map_err(|why| format!("{}: {why}; {unchanged}", path.display()))?,
            config: with_name_service(config),
            loaded,
        })
    }
}

impl BorderService<'_> {
    /// Logs events; `false` if a listener failed, so that the program ends and its supervisor notices.
    fn events(&mut self, driver: &mut Driver<Forwarder>) -> bool {
        while let Some(event) = driver.next_event() {
            let failed = opened(&event.kind).err();
            self.events.take(&event);
            if let Some(error) = &failed
                && self.ready
            {
                self.reload_waiters.listener_failed(error.to_string());
            } else if let Some(error) = failed {
                self.log.end(&format!("hornwork: {error}"));
                return false;
            }
            if let Some(history) = &mut self.history {
                history.event(event);
            }
        }
        self.events.flush();
        self.reload_waiters.opened();
        // The first turn has opened all listeners, or returned above.
        if !self.ready {
            self.ready = true;
            notify("READY=1");
        }
        true
    }

    /// Logs a change of the kernel relay, and informs admission control.
    fn handle_kernel_relay_changes(
        &mut self,
        relay: Option<&KernelRelay>,
        border: &mut Border,
        shared_ports: bool,
    ) {
        if !log_kernel_relay_changes(relay, &self.log, &self.clock) {
            return;
        }
        let offload = media_offload(relay, None);
        border.set_media_offload(offload.clone());
        self.siblings.set_media_offload(&offload);
        let paths = MediaPaths {
            offload,
            shared_ports,
            direct_tunnels: self.gateway.as_ref().is_some_and(Gateway::is_direct),
        };
        let capacity = capacity::of_process(border.config(), &paths);
        tracing::info!("{}", capacity.trim_end());
    }

    /// Logs certificates that have to be renewed: at the start and daily.
    fn log_expiring_certificates(&mut self) {
        let now = self.clock.now();
        let first = self.certificates_logged.is_none();
        if self
            .certificates_logged
            .is_some_and(|logged| now.since(logged) < CERTIFICATE_CHECK_INTERVAL)
        {
            return;
        }
        self.certificates_logged = Some(now);
        let mut notes = self.loaded.expiry_events();
        if first {
            notes.splice(0..0, self.loaded.changes(None));
        }
        for note in notes {
            self.log.event(&Event::new(now, note));
        }
    }

    fn signals(&mut self, signals: &Signals, border: &mut Border) {
        let now = self.clock.now();
        if signals.take_reload() {
            self.reading.request();
        }
        if signals.stops() > self.stops {
            self.stops = signals.stops();
            notify("STOPPING=1");
            let limit = match self.stops {
                1 => self.drain,
                _ => Duration::ZERO,
            };
            border.drain(limit, now);
            self.siblings.drain(limit);
            self.stop_extension.begin(limit, now);
        }
        self.stop_extension.notify_if_due(now);
    }

    /// Requests of the control interface to the main thread.
    fn operator_requests(&mut self, border: &mut Border) {
        for request in self.operators.take_requests() {
            match request {
                ServiceRequest::Reload(reply) => {
                    self.reload_waiters.add(reply);
                    self.reading.request();
                }
                ServiceRequest::Drain(limit) => {
                    let limit = limit.unwrap_or(self.drain);
                    border.drain(limit, self.clock.now());
                    self.siblings.drain(limit);
                }
            }
        }
    }

    /// Whether a stop is complete: no call and no registration of ours is left, or the wait for the carriers' responses
    /// is over.
    fn poll_stopped(&mut self, border: &Border) -> bool {
        if !border.is_drained() || !self.siblings.are_drained() {
            return false;
        }
        let now = self.clock.now();
        let since = *self.drained.get_or_insert(now);
        border.is_unregistered() || self.stops > 1 || now.since(since) > UNREGISTER_WAIT
    }

    /// SIGHUP: a thread of its own reads the files; a valid configuration takes effect, an invalid one changes nothing.
    fn poll_reload(&mut self, border: &mut Border, driver: &mut Driver<Forwarder>) {
        let (path, loaded, claims) = (self.path.to_owned(), &self.loaded, self.claims);
        let began = self.reading.begin(|| {
            let loaded = loaded.clone();
            move || NewBorderConfig::of(&path, &loaded, claims)
        });
        if began {
            self.reload_waiters.read_began();
        }
        if let Some(read) = self.reading.take() {
            let read = read.unwrap_or_else(|failure| Err(failure.to_string()));
            self.reload(read, border, driver, self.clock.now());
        }
    }

    fn reload(
        &mut self,
        read: Result<NewBorderConfig, String>,
        border: &mut Border,
        driver: &mut Driver<Forwarder>,
        now: Time,
    ) {
        match read {
            Ok(NewBorderConfig { config, .. }) if config.sip.workers != border.worker().count => {
                let why = format!(
                    "workers: {} are running, the file has {}; restart to change it",
                    border.worker().count,
                    config.sip.workers
                );
                self.refuse_configuration(why, now);
            }
            Ok(NewBorderConfig { config, .. }) if self.start_config.refusal(&config).is_some() => {
                let why = self.start_config.refusal(&config).unwrap_or_default();
                self.refuse_configuration(why, now);
            }
            Ok(NewBorderConfig {
                config,
                loaded,
                claimed,
            }) => {
                // Calls keep their ports; those of the old ranges become free as the calls end.
                self.claimed = claimed;
                // Before the border opens new listeners, which need their certificates.
                driver.set_security(loaded.security.clone());
                // Before the events about new certificates.
                let objects = alarms::objects(&config, loaded.certificate_names());
                for note in self.log.alarms().set_objects(objects, now) {
                    self.log.event(&Event::new(now, note));
                }
                let changes = loaded.changes(Some(&self.loaded));
                for note in changes.into_iter().chain(loaded.expiry_events()) {
                    self.log.event(&Event::new(now, note));
                }
                self.loaded = loaded;
                self.certificates_logged = Some(now);
                self.drain = config.drain.timeout;
                if let (Some(control), Some(spec)) = (&self.control, &config.control) {
                    control.reload(spec, self.loaded.token.clone());
                }
                if let (Some(console), Some(spec)) = (&self.console, &config.console) {
                    console.reload(spec, &self.loaded);
                }
                if let Some(gateway) = &self.gateway {
                    gateway.reload();
                }
                warn_of_settings(&config, &self.loaded);
                let postponed = self.start_config.pending_changes(&config);
                let config = Arc::new(config);
                self.siblings.reload(&config, &self.loaded.security);
                border.reload(config, now);
                self.reload_waiters.accepted();
                warn_of_pending_changes(&postponed);
            }
            Err(why) => self.refuse_configuration(why, now),
        }
    }

    fn refuse_configuration(&mut self, why: String, now: Time) {
        self.reload_waiters.refused(&why);
        let note = EventKind::ConfigurationRefused { reason: why };
        self.log.event(&Event::new(now, note));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_without_interfaces_is_refused() {
        let name = format!("hornwork-no-interface-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        // A file of several roles, without the part of the border.
        let node = "[ng_server]\nlisten = \"udp:127.0.0.1:2223\"\n[[ng_server.interface]]\nname = \"a\"\nmedia = { address = \"127.0.0.1\", ports = \"27000-27101\" }\n";
        std::fs::write(&path, node).unwrap();
        let claims = Claims::of(ServedPart::Border).unwrap();
        let read = NewBorderConfig::of(&path, &LoadedFiles::default(), claims);
        std::fs::remove_file(&path).unwrap();
        let why = read.err().unwrap();
        assert!(why.contains("no interface for calls"), "{why}");
    }

    #[test]
    fn each_table_without_effect_at_a_gateway_is_named() {
        let text = "[ng_server]\nlisten = \"udp:127.0.0.1:2223\"\n[[ng_server.interface]]\nname = \"a\"\nmedia = { address = \"127.0.0.1\", ports = \"27000-27101\" }\n[metrics]\nlisten = \"127.0.0.1:9100\"\n";
        let config = config::parse(text, "f").unwrap();
        assert_eq!(without_calls(&config), ["[ng_server]"]);
    }
}
