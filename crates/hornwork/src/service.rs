//! `hornwork run`: the border in service, from its configuration to the last call of its drain.

use crate::configuration;
use crate::control::{Access, Control};
use crate::log::Log;
use crate::node;
use crate::notify::{Watchdog, notify};
use crate::ports::{self, Claims, Part};
use crate::reading::Reading;
use crate::security::Loaded;
use crate::store::{Keeper, Store};
use crate::threads::Placing;
use crate::workers::{Mates, shared};
use border::admission::{MediaCarrier, MediaWay};
use border::border::Border;
use border::config::{Config, Wanted};
use clap::{Args, ValueEnum};
use engine::{Event, HashKey, Note, Time};
use media::forward::{Forwarder, ForwarderLimits};
use net::{AfXdp, Clock, Driver, DriverConfig, KernelRelay, MediaSockets, PortClaims, Signals};
use protect::dtls;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// How long a signal may wait for its answer: one that comes just before the driver's wait is seen after it.
pub(crate) const SIGNAL_WAIT: Duration = Duration::from_millis(200);

/// How long carriers have to answer that we are leaving.
const UNREGISTER_WAIT: Duration = Duration::from_secs(2);
/// Transactions of each kind for which a worker has memory from the start: those of 32 s at a thousand calls a second. Beyond that tables grow.
const TRANSACTIONS: usize = 32_768;

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
    if options.role == Role::Signalling {
        eprintln!("hornwork: this version cannot leave the media of its calls to other nodes");
        eprintln!("  remedy: leave --role out, or say --role all");
        return ExitCode::from(3);
    }
    let (config, loaded) = match configuration::load_all(&options.config, None) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    let media = options.role == Role::Media;
    if media && config.node.is_none() {
        eprintln!("hornwork: {}: {}", options.config.display(), node::NO_NODE);
        return ExitCode::from(2);
    }
    if !media && config.interfaces.is_empty() {
        eprintln!(
            "hornwork: {}: the configuration describes a media node, and no interface for calls",
            options.config.display()
        );
        eprintln!("  remedy: say --role media, or add an [[interface]]");
        return ExitCode::from(2);
    }
    let clock = Clock::new();
    let log = match Log::start(&config, clock) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("hornwork: the log cannot be started: {error}");
            return ExitCode::from(3);
        }
    };
    if !media && config.node.is_some() {
        tracing::warn!("[node] is served by a process of its own: hornwork run --role media");
    }
    if media && config.control.is_some() {
        tracing::warn!(
            "[control] commands conferences, of which a media node has none: it is not served"
        );
    }
    let own = log.clone();
    let served = match media {
        true => node::serve(&options.config, config, loaded, own, clock),
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

/// Where media ports are.
fn media_addresses(config: &Config) -> Vec<IpAddr> {
    let ranges = config.media_ranges.iter();
    let mut addresses: Vec<IpAddr> = ranges.map(|range| range.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// The relay in the kernel, where it is wanted and can be; what came of it is logged.
///
/// # Errors
/// It is required and cannot be.
pub(crate) fn kernel_relay(
    config: &Config,
    log: &Log,
    clock: &Clock,
) -> io::Result<Option<KernelRelay>> {
    let kernel = config.media.kernel;
    let required = kernel == Wanted::Require;
    let failed = |why: &str| {
        io::Error::other(format!(
            "the kernel cannot relay media: {why}\n  remedy: `[media] kernel = \"auto\"` goes without"
        ))
    };
    if kernel == Wanted::Never {
        return Ok(None);
    }
    let started = KernelRelay::start(&media_addresses(config), config.media.dscp);
    let (relays, why) = match &started {
        Ok(relay) => relay.state(),
        Err(error) => (false, error.to_string()),
    };
    if required && !why.is_empty() {
        return Err(failed(&why));
    }
    log.event(&Event::new(clock.now(), kernel_path(relays, why)));
    Ok(started.ok())
}

/// Whether the kernel relays anything, and why not or for what not.
fn kernel_path(relays: bool, why: String) -> Note {
    let path = match relays {
        true => "kernel",
        false => "no_kernel",
    };
    Note::MediaPath {
        path: path.into(),
        why,
    }
}

/// AF_XDP for media, where it is wanted and can be; what came of it is logged.
///
/// # Errors
/// It is required and cannot be.
pub(crate) fn af_xdp(config: &Config, log: &Log, clock: &Clock) -> io::Result<Option<AfXdp>> {
    let wanted = config.media.af_xdp;
    if wanted == Wanted::Never {
        return Ok(None);
    }
    let started = AfXdp::start(&media_addresses(config), config.media.dscp);
    let (how, unserved) = match &started {
        Ok(started) => started.state(),
        Err(error) => (String::new(), error.to_string()),
    };
    if wanted == Wanted::Require && !unserved.is_empty() {
        return Err(io::Error::other(format!(
            "AF_XDP cannot carry media: {unserved}\n  remedy: `[media] af_xdp = \"auto\"` goes without"
        )));
    }
    let path = match &started {
        Ok(_) => "af_xdp",
        Err(_) => "no_af_xdp",
    };
    let mut why = [how, unserved].to_vec();
    why.retain(|part| !part.is_empty());
    let note = Note::MediaPath {
        path: path.into(),
        why: why.join("; "),
    };
    log.event(&Event::new(clock.now(), note));
    Ok(started.ok())
}

/// Logs how much AF_XDP carried, where it is in use.
pub(crate) fn carried(af_xdp: Option<&AfXdp>, driver: &Driver<Forwarder>, log: &Log) {
    if af_xdp.is_none() {
        return;
    }
    let counters = driver.counters();
    let note = Note::MediaCarried {
        received: counters.express_in,
        sent: counters.express_out,
        aside: counters.express_aside,
        // What the kernel does not tell is not known.
        dropped: driver.kernel_drops().unwrap_or_default(),
        queues: by_queue(&driver.express_queues()),
    };
    log.event(&Event::new(driver.clock().now(), note));
    log.flush();
}

/// What came by the queues of each interface, in words.
fn by_queue(queues: &[(&str, u32, u64)]) -> String {
    let interfaces = queues.chunk_by(|one, next| one.0 == next.0);
    let words = interfaces.map(|queues| {
        let counts: Vec<String> = queues.iter().map(|queue| queue.2.to_string()).collect();
        let name = queues.first().map_or("", |queue| queue.0);
        format!("{name}: {}", counts.join(" "))
    });
    words.collect::<Vec<String>>().join("; ")
}

/// Logs when interfaces begin or cease to send what the kernel relays; whether they have.
pub(crate) fn kernel_news(relay: Option<&KernelRelay>, log: &Log, clock: &Clock) -> bool {
    let news = relay.and_then(KernelRelay::news);
    let any = news.is_some();
    if let Some((relays, why)) = news {
        log.event(&Event::new(clock.now(), kernel_path(relays, why)));
    }
    any
}

/// What carries media beside sockets at present.
fn carrier_of(relay: Option<&KernelRelay>, af_xdp: Option<&AfXdp>) -> MediaCarrier {
    let of = |way, addresses: Vec<IpAddr>| match addresses.is_empty() {
        true => MediaCarrier::default(),
        false => MediaCarrier {
            way,
            addresses: addresses.into(),
        },
    };
    match (relay, af_xdp) {
        (Some(relay), _) => of(MediaWay::Kernel, relay.serves()),
        (None, Some(af_xdp)) => of(MediaWay::AfXdp, af_xdp.serves()),
        (None, None) => MediaCarrier::default(),
    }
}

pub(crate) fn driver_config(config: &Config, relay: Option<&KernelRelay>) -> DriverConfig {
    DriverConfig {
        relay: relay.cloned(),
        gather: config.media.gather,
        media_sockets: match config.media.sockets {
            border::config::MediaSockets::Auto => MediaSockets::Auto,
            border::config::MediaSockets::One => MediaSockets::One,
            border::config::MediaSockets::PerPort => MediaSockets::PerPort,
        },
        media_addresses: u8::try_from(media_addresses(config).len()).unwrap_or(u8::MAX),
        signalling_datagram: config.limits.message_bytes,
        signalling_dscp: config.sip.dscp,
        media_dscp: config.media.dscp,
        coalesce: config.sip.coalesce,
        signalling_timestamps: config.sip.queue.is_some(),
        burst: config.sip.burst_bytes,
        order: config
            .sip
            .trains
            .then_some(wire::sip::call_number as fn(&[u8]) -> u32),
        unreachable: true,
        connections: config.limits.connections,
        connections_per_source: config.limits.connections_per_source,
        stream_buffer: config.limits.connection_queue,
        handshake_timeout: config.limits.handshake,
        websocket_message: config.limits.message_bytes,
        ..DriverConfig::default()
    }
}

/// Where the file names no servers, the machine's own.
fn with_servers(mut config: Config) -> Config {
    if config.dns.servers.is_empty() {
        let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        config.dns.servers = name_servers(&text);
    }
    config
}

/// The name servers of a resolv.conf; those with a zone (`fe80::1%eth0`) are left out.
fn name_servers(text: &str) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        .filter(|rest| rest.starts_with([' ', '\t']))
        .filter_map(|rest| rest.split_whitespace().next()?.parse::<IpAddr>().ok())
        .map(|ip| SocketAddr::new(ip, 53))
        .collect()
}

/// What the border lacks or has too much of on this machine; said once.
pub(crate) fn look_around(config: &Config) {
    match net::raise_open_files() {
        Ok(files) => {
            let pairs: u64 = config
                .media_ranges
                .iter()
                .map(|range| u64::from(range.last - range.first) + 1)
                .sum();
            if files < pairs {
                tracing::info!(
                    "{files} open files are allowed, but the media ranges hold {pairs} ports, each of which takes one while a call has it: calls beyond are refused; LimitNOFILE= or ulimit -n raises it"
                );
            }
        }
        Err(error) => tracing::warn!("the limit of open files stays as it is: {error}"),
    }
    let root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if root {
        tracing::warn!(
            "running as root, which the border never needs: packaging/ has a unit with a user of its own"
        );
    }
}

/// What DTLS in media paths needs: a certificate of our own making, which only this start has, for descriptions tell of it.
pub(crate) fn media_keying(clock: &Clock) -> io::Result<dtls::Endpoint> {
    let certificate = dtls::Certificate::generate().map_err(io::Error::other)?;
    let epoch = dtls::Epoch::new(clock.zero());
    dtls::Endpoint::new(dtls::Settings::default(), certificate, epoch).map_err(io::Error::other)
}

fn serve(
    path: &Path,
    config: Config,
    loaded: Loaded,
    log: Log,
    clock: Clock,
) -> io::Result<ExitCode> {
    let signals = Signals::install()?;
    look_around(&config);
    let drain = config.drain.timeout;
    let config = with_servers(config);
    let claims = Claims::of(Part::Border)?;
    let claimed = claims.claim_at_start(&config)?;
    print!("{}", configuration::summary(&config));
    for note in ports::remarks(&config) {
        log.event(&Event::new(clock.now(), note));
    }
    let mut entropy = net::entropy()?;
    let forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::new(&mut entropy));
    let workers = config.sip.workers;
    let config = Arc::new(config);
    let mut borders = Border::crew(config.clone(), workers, entropy);
    for border in &mut borders {
        border.reserve(TRANSACTIONS);
    }
    let keying = media_keying(&clock)?;
    for border in &mut borders {
        border.set_dtls(keying.clone());
    }
    let cpus = net::allowed_cpus();
    let relay = kernel_relay(&config, &log, &clock)?;
    let relay = relay.as_ref();
    let af_xdp = af_xdp(&config, &log, &clock)?;
    let carrier = carrier_of(relay, af_xdp.as_ref());
    print!("{}", configuration::capacity(&config, &carrier));
    for border in &mut borders {
        border.set_media_carrier(carrier.clone());
    }
    let mut border = borders.remove(0);
    let store = Store::start(&mut border, &log, clock)?;
    let keeper = store.as_ref().map(Store::keeper);
    let settings = DriverConfig {
        af_xdp: af_xdp.clone(),
        ..driver_config(border.config(), relay)
    };
    let settings = shared(settings, border.worker(), &cpus);
    let placing = Placing::of(border.config(), &log, &clock)?;
    let settings = placing.apply(border.worker().number, settings);
    let mut driver = Driver::new(settings, clock, forwarder)?;
    driver.set_security(loaded.security.clone());
    let mut mates = Mates::default();
    if workers > 1 {
        let mut desks = net::desks(workers).into_iter();
        if let Some(desk) = desks.next() {
            driver.join(desk);
        }
        let others = borders.into_iter().zip(desks);
        let others = others.map(|(border, desk)| (border, desk, keeper.clone()));
        let others = others.collect();
        let first = driver.waker();
        mates = Mates::start(
            others,
            relay,
            &placing,
            &loaded.security,
            &log,
            clock,
            &first,
        )?;
    }
    let control = match &border.config().control {
        None => None,
        Some(spec) => {
            let access = Access::new(spec, loaded.token.clone());
            let started = Control::start(spec, access, driver.waker(), &log, clock)?;
            Some(started)
        }
    };
    if let Some(keeper) = &keeper {
        keeper.wake_by(driver.waker());
    }
    let mut service = Service {
        control,
        keeper,
        loaded,
        certificates_told: None,
        reading: Reading::new(driver.waker()),
        watchdog: Watchdog::from_environment(),
        path,
        log,
        clock,
        drain,
        stops: 0,
        ready: false,
        drained: None,
        mates,
        claims,
        claimed,
    };
    // Registrations are left to be written.
    let mut more = false;
    loop {
        let wait = match service.ready && !more {
            true => service.control.as_ref().map_or(SIGNAL_WAIT, Control::wait),
            false => Duration::ZERO,
        };
        driver.turn(&mut border, wait)?;
        let keeper = service.keeper.as_mut();
        more = keeper.is_some_and(|keeper| keeper.take(&mut border));
        if let Some(control) = &mut service.control {
            control.serve(&mut border, &service.mates, clock.now());
        }
        service.mates.look()?;
        let mates = &mut service.mates;
        service.watchdog.feed(clock.now(), || mates.all_turn());
        service.path_news(relay, &mut border);
        if !service.events(&mut driver) {
            return Ok(ExitCode::from(3));
        }
        service.certificates();
        service.signals(&signals, &mut border);
        service.reloaded(&mut border, &mut driver)?;
        if service.is_over(&border) {
            driver.turn(&mut border, Duration::ZERO)?;
            service.events(&mut driver);
            carried(af_xdp.as_ref(), &driver, &service.log);
            service.mates.stop();
            if let (Some(store), Some(mut keeper)) = (store, service.keeper) {
                while keeper.take(&mut border) {}
                store.end();
            }
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Tables of the configuration in which something differs that is taken at the start only.
fn from_next_start(old: &Config, new: &Config) -> Vec<&'static str> {
    let limits = |config: &Config| engine::Limits {
        // These two are looked at anew for each call and registration.
        calls: 0,
        registrations: 0,
        ..config.limits.clone()
    };
    let once = |config: &Config| {
        let sip = &config.sip;
        (
            sip.agent.clone(),
            sip.dscp,
            sip.coalesce,
            sip.trains,
            sip.burst_bytes,
            sip.queue.is_some(),
        )
    };
    let listens = |config: &Config| {
        let control = config.control.as_ref();
        control.map(|c| (c.listen, c.connections, c.connections_per_source))
    };
    let differ = [
        ("[sip]", once(old) != once(new)),
        ("[threads]", old.threads != new.threads),
        ("[session_timer]", old.session_timer != new.session_timer),
        ("[media] dscp", old.media.dscp != new.media.dscp),
        ("[media] gather", old.media.gather != new.media.gather),
        ("[media] sockets", old.media.sockets != new.media.sockets),
        ("[media] kernel", old.media.kernel != new.media.kernel),
        ("[media] af_xdp", old.media.af_xdp != new.media.af_xdp),
        ("[control]", listens(old) != listens(new)),
        (
            "[registrar] store",
            old.registrar_store != new.registrar_store,
        ),
        ("[limits]", limits(old) != limits(new)),
        ("[log]", old.log != new.log),
    ];
    let names = differ.into_iter().filter(|(_, differs)| *differs);
    names.map(|(name, _)| name).collect()
}

/// Whether a listening socket could be opened.
///
/// # Errors
/// Why not, with the remedy.
pub(crate) fn opened(note: &Note) -> io::Result<()> {
    match note {
        Note::SocketFailed {
            what,
            address,
            error,
        } if what != "media" => Err(io::Error::other(format!(
            "cannot listen on {address} ({what}): {error}\n  remedy: is another program there, and is it an address of this machine? `listen` in the configuration says where"
        ))),
        _ => Ok(()),
    }
}

/// How often the end of certificates is looked at.
const CERTIFICATES_EVERY: Duration = Duration::from_secs(86_400);

struct Service<'a> {
    path: &'a Path,
    control: Option<Control>,
    /// Takes registrations that have changed, where they are kept over a restart.
    keeper: Option<Keeper>,
    loaded: Loaded,
    /// When the state of certificates was last told.
    certificates_told: Option<Time>,
    /// A new configuration, being read.
    reading: Reading<Result<Read, String>>,
    watchdog: Watchdog,
    log: Log,
    clock: Clock,
    drain: Duration,
    /// Signals to stop so far.
    stops: u32,
    ready: bool,
    /// When the last call of a drain had ended.
    drained: Option<Time>,
    /// The other threads.
    mates: Mates,
    claims: Claims,
    /// The media ports of the configuration in force.
    claimed: PortClaims,
}

/// What a new configuration names.
struct Read {
    config: Config,
    loaded: Loaded,
    claimed: PortClaims,
}

impl Read {
    /// Reads it, and claims its media ports.
    ///
    /// # Errors
    /// Why it is not taken.
    fn of(path: &Path, before: &Loaded, claims: Claims) -> Result<Read, String> {
        let read = configuration::load_all(path, Some(before));
        let stays = "the old one stays in force";
        let (config, loaded) = read.map_err(|_| format!("{}: {stays}", path.display()))?;
        let claimed = claims.claim(&config);
        Ok(Read {
            claimed: claimed.map_err(|why| format!("{}: {why}; {stays}", path.display()))?,
            config: with_servers(config),
            loaded,
        })
    }
}

impl Service<'_> {
    /// Logs what happened; `false` where the border does not listen as it should: its supervisor shall know at once.
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
        // The first turn has opened the listening sockets, or said above which it could not.
        if !self.ready {
            self.ready = true;
            notify("READY=1");
        }
        true
    }

    /// The kernel relays other media than before: the log says so, and admission counts with it from now on.
    fn path_news(&mut self, relay: Option<&KernelRelay>, border: &mut Border) {
        if !kernel_news(relay, &self.log, &self.clock) {
            return;
        }
        let carrier = carrier_of(relay, None);
        let capacity = configuration::capacity(border.config(), &carrier);
        tracing::info!("{}", capacity.trim_end());
        border.set_media_carrier(carrier.clone());
        self.mates.carry(&carrier);
    }

    /// Tells of certificates that must be renewed: at the start and daily.
    fn certificates(&mut self) {
        let now = self.clock.now();
        let first = self.certificates_told.is_none();
        if self
            .certificates_told
            .is_some_and(|told| now.since(told) < CERTIFICATES_EVERY)
        {
            return;
        }
        self.certificates_told = Some(now);
        let mut notes = self.loaded.alarms();
        if first {
            notes.splice(0..0, self.loaded.news(None));
        }
        for note in notes {
            self.log.event(&Event::new(now, note));
        }
    }

    fn signals(&mut self, signals: &Signals, border: &mut Border) {
        let now = self.clock.now();
        if signals.take_reload() {
            self.reading.ask();
        }
        if signals.stops() > self.stops {
            self.stops = signals.stops();
            notify("STOPPING=1");
            let limit = match self.stops {
                1 => self.drain,
                _ => Duration::ZERO,
            };
            border.drain(limit, now);
            self.mates.drain(limit);
        }
    }

    /// Whether a stop has come to its end: no call is left, and no registration of ours, for which carriers have a moment
    /// to answer.
    fn is_over(&mut self, border: &Border) -> bool {
        if !border.is_drained() || !self.mates.are_drained() {
            return false;
        }
        let now = self.clock.now();
        let since = *self.drained.get_or_insert(now);
        border.is_unregistered() || self.stops > 1 || now.since(since) > UNREGISTER_WAIT
    }

    /// SIGHUP: the files are read by a thread of their own; a good configuration takes over, a bad one changes nothing.
    fn reloaded(&mut self, border: &mut Border, driver: &mut Driver<Forwarder>) -> io::Result<()> {
        let (path, loaded, claims) = (self.path.to_owned(), &self.loaded, self.claims);
        self.reading.begin(|| {
            let loaded = loaded.clone();
            move || Read::of(&path, &loaded, claims)
        })?;
        if let Some(read) = self.reading.take() {
            self.reload(read, border, driver, self.clock.now());
        }
        Ok(())
    }

    fn reload(
        &mut self,
        read: Result<Read, String>,
        border: &mut Border,
        driver: &mut Driver<Forwarder>,
        now: Time,
    ) {
        match read {
            Ok(Read { config, .. }) if config.sip.workers != border.worker().of => {
                let why = format!(
                    "workers: {} run, and the file says {}; that needs a new start",
                    border.worker().of,
                    config.sip.workers
                );
                self.log
                    .event(&Event::new(now, Note::ConfigurationRefused { why }));
            }
            Ok(Read {
                config,
                loaded,
                claimed,
            }) => {
                // Calls keep the ports that they have; those of the old ranges are free for other programs as they end.
                self.claimed = claimed;
                // Before the border opens what is new: its listeners ask for their certificates.
                driver.set_security(loaded.security.clone());
                let news = loaded.news(Some(&self.loaded));
                for note in news.into_iter().chain(loaded.alarms()) {
                    self.log.event(&Event::new(now, note));
                }
                self.loaded = loaded;
                self.certificates_told = Some(now);
                self.drain = config.drain.timeout;
                if let (Some(control), Some(spec)) = (&self.control, &config.control) {
                    control.reload(spec, self.loaded.token.clone());
                }
                let waiting = from_next_start(border.config(), &config);
                let config = Arc::new(config);
                self.mates.reload(&config, &self.loaded.security);
                border.reload(config, now);
                if !waiting.is_empty() {
                    tracing::warn!(
                        "what changed in {} counts from the next start",
                        waiting.join(", ")
                    );
                }
            }
            Err(why) => {
                self.log
                    .event(&Event::new(now, Note::ConfigurationRefused { why }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_from_the_next_start_is_named() {
        let read = |more: &str| {
            let text = format!("[[interface]]\nname=\"x\"\nlisten=\"udp:192.0.2.1\"\n{more}");
            border::config::parse(&text, "f").unwrap()
        };
        let old = read("");
        let same = read(
            "[limits]\ncalls=5\nregistrations=5\n[sip]\nring_timeout=30\n[drain]\ntimeout=1\n",
        );
        assert!(from_next_start(&old, &same).is_empty());
        for one in [
            "agent=\"x\"",
            "dscp=0",
            "coalesce=0",
            "trains=false",
            "queue=0",
        ] {
            let other = read(&format!("[sip]\n{one}\n"));
            assert_eq!(from_next_start(&old, &other), ["[sip]"], "{one}");
        }
        let other = read(
            "[sip]\nagent=\"x\"\n[session_timer]\nexpires=600\n[media]\ndscp=0\n[limits]\nconnections=5\n[log]\nlevel=\"warn\"\n",
        );
        assert_eq!(
            from_next_start(&old, &other),
            [
                "[sip]",
                "[session_timer]",
                "[media] dscp",
                "[limits]",
                "[log]"
            ]
        );
    }

    #[test]
    fn name_servers_are_read_as_resolvers_read_them() {
        let text = "# x\nsearch example.com\nnameserver 192.0.2.53\n nameserver\t2001:db8::53 \nnameservers 1.1.1.1\nnameserver fe80::1%eth0\n";
        let servers: Vec<String> = name_servers(text).iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["192.0.2.53:53", "[2001:db8::53]:53"]);
    }
}
