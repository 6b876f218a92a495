//! `hornwork run --role media`: runs a media node from its configuration until its last call has drained.

use crate::announcement::announce;
use crate::background_read::BackgroundRead;
use crate::configuration;
use crate::driver_setup::{SIGNAL_WAIT, driver_config, log_machine_limits, media_keying, opened};
use crate::log::EventLog;
use crate::media_path::{af_xdp, kernel_relay, log_af_xdp_packets, log_kernel_relay_changes};
use crate::next_start::{StartConfig, warn_of_pending_changes};
use crate::notify::{StopExtension, Watchdog, notify};
use crate::ports::{self, Claims, ServedPart};
use crate::security::LoadedFiles;
use crate::service::warn_of_settings;
use crate::sounds::{self, Sounds};
use crate::threads::ThreadSettings;
use config::Config;
use engine::{Event, EventKind, HashKey, Time};
use media::forward::{Forwarder, ForwarderLimits};
use net::{Clock, Driver, DriverConfig, PortClaims, Recorder, Signals};
use ng::server::NgServer;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

struct Service<'a> {
    path: &'a Path,
    start_config: StartConfig,
    loaded: LoadedFiles,
    log: EventLog,
    clock: Clock,
    sounds: Sounds,
    /// Folder of the sounds.
    library: Option<PathBuf>,
    /// Background read of a new configuration.
    reading: BackgroundRead<Result<NewNodeConfig, String>>,
    watchdog: Watchdog,
    stop_extension: StopExtension,
    /// Number of stop signals received.
    stops: u32,
    ready: bool,
    claims: Claims,
    /// Claims of the media ports of the current configuration.
    claimed: PortClaims,
}

/// Opens the folder for recordings.
fn recorder(config: &Config) -> io::Result<Option<Recorder>> {
    let folder = config
        .ng_server
        .as_ref()
        .and_then(|node| node.recordings.as_ref());
    let Some(folder) = folder else {
        return Ok(None);
    };
    let recorder = Recorder::start(folder).map_err(|error| {
        io::Error::other(format!(
            "cannot write recordings to {}: {error}\n  remedy: create the folder (`recordings` in [ng_server]), and give this program's user write permission",
            folder.display()
        ))
    })?;
    Ok(Some(recorder))
}

/// Opens the folder of sounds.
fn library(config: &Config) -> io::Result<Option<PathBuf>> {
    let folder = config
        .ng_server
        .as_ref()
        .and_then(|node| node.sounds.as_ref());
    let Some(folder) = folder else {
        return Ok(None);
    };
    let found = sounds::folder(folder).map_err(|error| {
        io::Error::other(format!(
            "cannot read sounds from {}: {error}\n  remedy: create the folder (`sounds` in [ng_server]), and give this program's user read permission",
            folder.display()
        ))
    })?;
    Ok(Some(found))
}

/// Runs the node of a configuration.
///
/// # Errors
/// If it cannot run: a socket, a privilege or a folder is missing.
pub fn serve(
    path: &Path,
    config: Config,
    loaded: LoadedFiles,
    log: EventLog,
    clock: Clock,
) -> io::Result<ExitCode> {
    let signals = Signals::install()?;
    log_machine_limits(&config);
    let claims = Claims::of(ServedPart::Node)?;
    let claimed = claims.claim_at_start(&config)?;
    announce(configuration::node_summary(&config));
    let mut entropy = net::entropy()?;
    let forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::new(&mut entropy));
    let relay = kernel_relay(&config, &log, &clock)?;
    let af_xdp = af_xdp(&config, &log, &clock)?;
    let settings = DriverConfig {
        af_xdp: af_xdp.clone(),
        ..driver_config(&config, relay.as_ref())
    };
    let settings = ThreadSettings::of(&config, &log, &clock)?.apply(0, settings);
    let mut driver = Driver::new(settings, clock, forwarder)?;
    driver.set_security(loaded.security.clone());
    driver.set_recorder(recorder(&config)?);
    let sounds = Sounds::start(driver.waker())?;
    let library = library(&config)?;
    let lent = ports::remarks(&config);
    let epoch = clock.unix_nanos(Time::ZERO);
    let config = Arc::new(config);
    let Some(mut node) = NgServer::new(config.clone(), epoch, entropy) else {
        return Err(io::Error::other(NO_NODE));
    };
    node.set_open_files(net::open_files().0);
    node.set_dtls(media_keying(&clock)?);
    let mut service = Service {
        path,
        start_config: StartConfig::new(config),
        loaded,
        log,
        clock,
        sounds,
        library,
        reading: BackgroundRead::new(driver.waker()),
        watchdog: Watchdog::from_environment(),
        stop_extension: StopExtension::default(),
        stops: 0,
        ready: false,
        claims,
        claimed,
    };
    for note in lent {
        service.log.event(&Event::new(clock.now(), note));
    }
    loop {
        let wait = match service.ready {
            true => SIGNAL_WAIT,
            false => Duration::ZERO,
        };
        driver.turn(&mut node, wait)?;
        service.read_sounds(&mut node);
        log_kernel_relay_changes(relay.as_ref(), &service.log, &service.clock);
        if !service.events(&mut driver) {
            return Ok(ExitCode::from(3));
        }
        service.watchdog.notify_if_due(clock.now(), || true);
        service.signals(&signals, &mut node);
        service.poll_reload(&mut node, &mut driver);
        if node.is_drained() {
            // The last messages are still to be sent.
            driver.turn(&mut node, Duration::ZERO)?;
            driver.finish_recordings();
            service.events(&mut driver);
            log_af_xdp_packets(af_xdp.as_ref(), &driver, &service.log);
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Error for a file without a media node.
pub const NO_NODE: &str = "the configuration has no media node\n  remedy: add [ng_server] with listen and [[ng_server.interface]], or remove --role media";

impl Service<'_> {
    /// Logs events; `false` if a listener failed, so that the program ends and its supervisor notices.
    fn events(&mut self, driver: &mut Driver<Forwarder>) -> bool {
        while let Some(event) = driver.next_event() {
            self.log.event(&event);
            if !self.ready
                && let Err(error) = opened(&event.kind)
            {
                self.log.end(&format!("hornwork: {error}"));
                return false;
            }
        }
        self.log.flush();
        if !self.ready {
            self.ready = true;
            notify("READY=1");
        }
        true
    }

    /// Starts reading the sounds that the node requests, and passes finished ones to it.
    fn read_sounds(&mut self, node: &mut NgServer) {
        while let Some(request) = node.next_sound_request() {
            let number = request.number;
            let folder = self.library.as_deref();
            let requested = folder.is_some_and(|folder| self.sounds.request(folder, request));
            if !requested {
                let why = "no folder for sounds is configured, or its reader has ended".to_owned();
                node.sound_read(number, Err(why), self.clock.now());
            }
        }
        while let Some((number, file)) = self.sounds.next() {
            node.sound_read(number, file, self.clock.now());
        }
    }

    fn signals(&mut self, signals: &Signals, node: &mut NgServer) {
        let now = self.clock.now();
        if signals.take_reload() {
            self.reading.request();
        }
        if signals.stops() > self.stops {
            self.stops = signals.stops();
            notify("STOPPING=1");
            let limit = match self.stops {
                1 => node.config().drain.timeout,
                _ => Duration::ZERO,
            };
            node.drain(limit, now);
            self.stop_extension.begin(limit, now);
        }
        self.stop_extension.notify_if_due(now);
    }

    /// SIGHUP: a thread of its own reads the files; a valid configuration takes effect, an invalid one changes nothing.
    fn poll_reload(&mut self, node: &mut NgServer, driver: &mut Driver<Forwarder>) {
        let (path, loaded, old) = (self.path.to_owned(), &self.loaded, node.config());
        let claims = self.claims;
        self.reading.begin(|| {
            let (loaded, recordings) = (loaded.clone(), recordings(old).cloned());
            let start = self.start_config.clone();
            move || NewNodeConfig::of(&path, (&loaded, &start), recordings.as_ref(), claims)
        });
        let now = self.clock.now();
        let read = self.reading.take();
        match read.map(|read| read.unwrap_or_else(|failure| Err(failure.to_string()))) {
            None => {}
            Some(Ok(read)) => self.reload(read, node, driver, now),
            Some(Err(why)) => {
                let note = EventKind::ConfigurationRefused { reason: why };
                self.log.event(&Event::new(now, note));
            }
        }
    }

    fn reload(
        &mut self,
        read: NewNodeConfig,
        node: &mut NgServer,
        driver: &mut Driver<Forwarder>,
        now: Time,
    ) {
        self.library = read.library;
        // Calls keep their ports; those of the old ranges become free as the calls end.
        self.claimed = read.claimed;
        // Before the node's reload, which begins another file for each recording if the folder has changed.
        if let Some(recorder) = read.recorder {
            driver.set_recorder(recorder);
        }
        driver.set_security(read.loaded.security.clone());
        self.loaded = read.loaded;
        for note in ports::remarks(&read.config) {
            self.log.event(&Event::new(now, note));
        }
        warn_of_settings(&read.config, &self.loaded);
        warn_of_pending_changes(&self.start_config.pending_node_changes(&read.config));
        node.reload(read.config, now);
    }
}

fn recordings(config: &Config) -> Option<&PathBuf> {
    config.ng_server.as_ref()?.recordings.as_ref()
}

/// A new configuration and its files.
struct NewNodeConfig {
    config: Config,
    loaded: LoadedFiles,
    claimed: PortClaims,
    library: Option<PathBuf>,
    /// Set if the folder for recordings has changed.
    recorder: Option<Option<Recorder>>,
}

impl NewNodeConfig {
    /// Reads the configuration, and checks its folders.
    ///
    /// # Errors
    /// Why it is rejected.
    fn of(
        path: &Path,
        (loaded, start): (&LoadedFiles, &StartConfig),
        recorded: Option<&PathBuf>,
        claims: Claims,
    ) -> Result<NewNodeConfig, String> {
        let read = configuration::load_all(path, Some(loaded));
        let (config, loaded) = read.map_err(|refused| {
            format!(
                "{}; the current configuration stays in effect",
                refused.reason()
            )
        })?;
        if config.ng_server.is_none() {
            return Err("it no longer has a media node ([ng_server])".to_owned());
        }
        if let Some(why) = start.refusal(&config) {
            return Err(why);
        }
        let library = library(&config).map_err(|error| error.to_string())?;
        let claimed = claims.claim(&config)?;
        let moved = recordings(&config) != recorded;
        let recorder = moved.then(|| recorder(&config)).transpose();
        Ok(NewNodeConfig {
            recorder: recorder.map_err(|error| error.to_string())?,
            config,
            loaded,
            claimed,
            library,
        })
    }
}
