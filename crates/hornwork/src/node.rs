//! `hornwork run --role media`: a media node in service, from its configuration to the last call of its drain.

use crate::configuration;
use crate::log::Log;
use crate::notify::{Watchdog, notify};
use crate::ports::{self, Claims, Part};
use crate::reading::Reading;
use crate::security::Loaded;
use crate::service::{
    SIGNAL_WAIT, af_xdp, carried, driver_config, kernel_news, kernel_relay, look_around,
    media_keying, opened,
};
use crate::sounds::{self, Sounds};
use crate::threads::Placing;
use border::config::Config;
use border::node::Node;
use engine::{Event, HashKey, Note, Time};
use media::forward::{Forwarder, ForwarderLimits};
use net::{Clock, Driver, DriverConfig, PortClaims, Recorder, Signals};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

struct Service<'a> {
    path: &'a Path,
    loaded: Loaded,
    log: Log,
    clock: Clock,
    sounds: Sounds,
    /// The folder of the sounds.
    library: Option<PathBuf>,
    /// A new configuration, being read.
    reading: Reading<Result<Read, String>>,
    watchdog: Watchdog,
    /// Signals to stop so far.
    stops: u32,
    ready: bool,
    claims: Claims,
    /// The media ports of the configuration in force.
    claimed: PortClaims,
}

/// The folder for recordings, ready to be written to.
fn recorder(config: &Config) -> io::Result<Option<Recorder>> {
    let folder = config
        .node
        .as_ref()
        .and_then(|node| node.recordings.as_ref());
    let Some(folder) = folder else {
        return Ok(None);
    };
    let recorder = Recorder::start(folder).map_err(|error| {
        io::Error::other(format!(
            "recordings cannot be written to {}: {error}\n  remedy: make the folder, and let this program's user write there; `recordings` of [node] names it",
            folder.display()
        ))
    })?;
    Ok(Some(recorder))
}

/// The folder for sounds, ready to be read from.
fn library(config: &Config) -> io::Result<Option<PathBuf>> {
    let folder = config.node.as_ref().and_then(|node| node.sounds.as_ref());
    let Some(folder) = folder else {
        return Ok(None);
    };
    let found = sounds::folder(folder).map_err(|error| {
        io::Error::other(format!(
            "sounds cannot be read from {}: {error}\n  remedy: make the folder, and let this program's user read there; `sounds` of [node] names it",
            folder.display()
        ))
    })?;
    Ok(Some(found))
}

/// Runs the node of a configuration.
///
/// # Errors
/// It cannot run: a socket, a right or a folder is wanting.
pub fn serve(
    path: &Path,
    config: Config,
    loaded: Loaded,
    log: Log,
    clock: Clock,
) -> io::Result<ExitCode> {
    let signals = Signals::install()?;
    look_around(&config);
    let claims = Claims::of(Part::Node)?;
    let claimed = claims.claim_at_start(&config)?;
    print!("{}", configuration::node_summary(&config));
    let mut entropy = net::entropy()?;
    let forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::new(&mut entropy));
    let relay = kernel_relay(&config, &log, &clock)?;
    let af_xdp = af_xdp(&config, &log, &clock)?;
    let settings = DriverConfig {
        af_xdp: af_xdp.clone(),
        ..driver_config(&config, relay.as_ref())
    };
    let settings = Placing::of(&config, &log, &clock)?.apply(0, settings);
    let mut driver = Driver::new(settings, clock, forwarder)?;
    driver.set_security(loaded.security.clone());
    driver.set_recorder(recorder(&config)?);
    let sounds = Sounds::start(driver.waker())?;
    let library = library(&config)?;
    let lent = ports::remarks(&config);
    let epoch = clock.unix_nanos(Time::ZERO);
    let Some(mut node) = Node::new(config, epoch, entropy) else {
        return Err(io::Error::other(NO_NODE));
    };
    node.set_dtls(media_keying(&clock)?);
    let mut service = Service {
        path,
        loaded,
        log,
        clock,
        sounds,
        library,
        reading: Reading::new(driver.waker()),
        watchdog: Watchdog::from_environment(),
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
        service.read(&mut node);
        kernel_news(relay.as_ref(), &service.log, &service.clock);
        if !service.events(&mut driver) {
            return Ok(ExitCode::from(3));
        }
        service.watchdog.feed(clock.now(), || true);
        service.signals(&signals, &mut node);
        service.reloaded(&mut node, &mut driver)?;
        if node.is_drained() {
            // What was said last still has to leave.
            driver.turn(&mut node, Duration::ZERO)?;
            service.events(&mut driver);
            carried(af_xdp.as_ref(), &driver, &service.log);
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Why a file cannot be run as a media node.
pub const NO_NODE: &str = "the configuration describes no media node\n  remedy: add [node] with listen and [[node.interface]], or leave --role media out";

impl Service<'_> {
    /// Logs what happened; `false` where the node does not listen as it should: its supervisor shall know at once.
    fn events(&mut self, driver: &mut Driver<Forwarder>) -> bool {
        while let Some(event) = driver.next_event() {
            self.log.event(&event);
            if !self.ready
                && let Err(error) = opened(&event.note)
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

    /// Has the node's sounds read, and gives it those that were.
    fn read(&mut self, node: &mut Node) {
        while let Some(wanted) = node.next_sound() {
            let number = wanted.number;
            let folder = self.library.as_deref();
            let asked = folder.is_some_and(|folder| self.sounds.ask(folder, wanted));
            if !asked {
                let why = "the folder for sounds is not there any more".to_owned();
                node.sound(number, Err(why), self.clock.now());
            }
        }
        while let Some((number, file)) = self.sounds.next() {
            node.sound(number, file, self.clock.now());
        }
    }

    fn signals(&mut self, signals: &Signals, node: &mut Node) {
        let now = self.clock.now();
        if signals.take_reload() {
            self.reading.ask();
        }
        if signals.stops() > self.stops {
            self.stops = signals.stops();
            notify("STOPPING=1");
            let limit = match self.stops {
                1 => node.config().drain.timeout,
                _ => Duration::ZERO,
            };
            node.drain(limit, now);
        }
    }

    /// SIGHUP: the files are read by a thread of their own; a good configuration takes over, a bad one changes nothing.
    fn reloaded(&mut self, node: &mut Node, driver: &mut Driver<Forwarder>) -> io::Result<()> {
        let (path, loaded, old) = (self.path.to_owned(), &self.loaded, node.config());
        let claims = self.claims;
        self.reading.begin(|| {
            let (loaded, recordings) = (loaded.clone(), recordings(old).cloned());
            move || Read::of(&path, &loaded, recordings.as_ref(), claims)
        })?;
        let now = self.clock.now();
        match self.reading.take() {
            None => {}
            Some(Ok(read)) => self.reload(read, node, driver, now),
            Some(Err(why)) => {
                let note = Note::ConfigurationRefused { why };
                self.log.event(&Event::new(now, note));
            }
        }
        Ok(())
    }

    fn reload(&mut self, read: Read, node: &mut Node, driver: &mut Driver<Forwarder>, now: Time) {
        self.library = read.library;
        // Calls keep the ports that they have; those of the old ranges are free for other programs as they end.
        self.claimed = read.claimed;
        if let Some(recorder) = read.recorder {
            driver.set_recorder(recorder);
        }
        driver.set_security(read.loaded.security.clone());
        self.loaded = read.loaded;
        for note in ports::remarks(&read.config) {
            self.log.event(&Event::new(now, note));
        }
        node.reload(read.config, now);
    }
}

fn recordings(config: &Config) -> Option<&PathBuf> {
    config.node.as_ref()?.recordings.as_ref()
}

/// What a new configuration names.
struct Read {
    config: Config,
    loaded: Loaded,
    claimed: PortClaims,
    library: Option<PathBuf>,
    /// Where the folder for recordings is another one.
    recorder: Option<Option<Recorder>>,
}

impl Read {
    /// Reads it, and looks at its folders.
    ///
    /// # Errors
    /// Why it is not taken.
    fn of(
        path: &Path,
        loaded: &Loaded,
        recorded: Option<&PathBuf>,
        claims: Claims,
    ) -> Result<Read, String> {
        let read = configuration::load_all(path, Some(loaded));
        let (config, loaded) =
            read.map_err(|_| format!("{}: the old one stays in force", path.display()))?;
        if config.node.is_none() {
            return Err("it describes no media node any more".to_owned());
        }
        let library = library(&config).map_err(|error| error.to_string())?;
        let claimed = claims.claim(&config)?;
        let moved = recordings(&config) != recorded;
        let recorder = moved.then(|| recorder(&config)).transpose();
        Ok(Read {
            recorder: recorder.map_err(|error| error.to_string())?,
            config,
            loaded,
            claimed,
            library,
        })
    }
}
