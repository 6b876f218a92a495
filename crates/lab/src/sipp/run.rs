//! Runs of a scenario on sockets, or in virtual time.

use super::engine::{Effect, ScenarioGenerator};
use super::options::{ScenarioOptions, load, settings};
use super::outcome::{ScenarioResult, write_csv_head, write_csv_line};
use super::settings::ScenarioSettings;
use super::stats::Statistics;
use crate::error::{LabError, RunVerdict};
use crate::files::{check_places, write_json};
use crate::sut::system_entropy;
use crate::tls::TlsSettings;
use engine::{Entropy, EventKind, Time};
use net::tls::Security;
use net::{Clock, Driver, DriverConfig, NoiseSampler, Signals};
use sim::{HostId, World};
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// Delay between opening the sockets and the first call.
const START_DELAY: Duration = Duration::from_millis(50);
/// Interval at which threads poll for commands and report figures.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Most unsent bytes of a connection.
const STREAM_BUFFER: usize = 64 << 20;
/// Most concurrent commands of a scenario.
const MAX_COMMANDS: usize = 256;
/// Longest simulated run by default.
const MAX_SIMULATED: Duration = Duration::from_secs(86_400);

/// Commands to the threads: the larger number has priority.
const CONTINUE: u32 = 0;
const STOP: u32 = 1;
const END: u32 = 2;

/// Runs a scenario with the options of the command line and prints the result.
///
/// # Errors
/// An invalid scenario or option, or a failure of this machine.
pub fn run(options: &ScenarioOptions) -> Result<RunVerdict, LabError> {
    let json = options.json.as_deref();
    check_places(json, None)?;
    let outcome = match options.simulate {
        true => simulate(options)?,
        false => on_sockets(options)?,
    };
    if json != Some(Path::new("-")) {
        crate::output::print(&outcome.to_text());
    }
    write_json(json, &outcome.to_json())?;
    Ok(outcome.verdict())
}

fn cannot_write(path: &Path, error: &std::io::Error) -> LabError {
    LabError::cannot_run(
        format!("{}: {error}", path.display()),
        "choose a writable file",
    )
}

/// Reports of a thread.
enum ThreadReport {
    Ready(SocketAddr),
    Failed(LabError),
    Effects(Vec<Effect>),
    Figures(usize, Box<Statistics>),
    Done(usize, Box<Statistics>, Duration),
}

/// Runs a scenario on sockets.
///
/// # Errors
/// As [`run`].
pub fn on_sockets(options: &ScenarioOptions) -> Result<ScenarioResult, LabError> {
    if options.against.is_some() {
        return Err(LabError::bad_input("--against needs --simulate"));
    }
    let loaded = load(&options.file, options)?;
    let mut entropy = match options.seed {
        Some(seed) => Entropy::from_number(seed),
        None => system_entropy()?,
    };
    let threads = settings(options, loaded.program.server, entropy.u64())?;
    let signals = Signals::install()
        .map_err(|error| LabError::cannot_run(format!("signals: {error}"), ""))?;
    // Calls with their own sockets need a descriptor each.
    net::raise_open_files().map_err(|error| {
        LabError::cannot_run(format!("limit of open files: {error}"), "ulimit -n")
    })?;
    let clock = Clock::new();
    let noise = NoiseSampler::start(Duration::from_millis(5), None).map_err(|error| {
        LabError::cannot_run(
            format!("cannot start the noise sampler: {error}"),
            "raise the limit of threads (ulimit -u)",
        )
    })?;
    let order = AtomicU32::new(CONTINUE);
    let (reports, inbox) = mpsc::channel();
    let mut sinks = Sinks::open(options, clock.unix_nanos(Time::ZERO))?;
    let count = threads.len();
    let start = clock.now() + START_DELAY;
    let cpu_before = net::process_cpu();
    let (statistics, cpu, timed_out) = std::thread::scope(|scope| {
        for (index, mut settings) in threads.into_iter().enumerate() {
            settings.start = start;
            settings.wall = clock.unix_nanos(Time::ZERO);
            let security = security(options, &settings, loaded.program.server)?;
            let generator = ScenarioGenerator::new(loaded.parts(settings), entropy.fork());
            let (reports, order) = (reports.clone(), &order);
            std::thread::Builder::new()
                .name(format!("scenario-{index}"))
                .spawn_scoped(scope, move || {
                    if let Err(error) = serve(index, generator, security, clock, order, &reports) {
                        // The main thread is gone only if the run has ended.
                        let _ = reports.send(ThreadReport::Failed(error));
                    }
                })
                .map_err(|error| LabError::cannot_run(format!("thread: {error}"), ""))?;
        }
        drop(reports);
        let watched = watch(
            options,
            &signals,
            &order,
            &inbox,
            &mut sinks,
            (clock, start, count),
        );
        order.fetch_max(END, Ordering::AcqRel);
        watched
    })?;
    let seconds = clock.now().since(start).as_secs_f64();
    let noise = noise
        .stop()
        .map_err(|error| LabError::cannot_run(format!("noise sampler: {error}"), ""))?;
    sinks.finish()?;
    let process = net::process_cpu().saturating_sub(cpu_before);
    Ok(ScenarioResult {
        program: loaded.program,
        file: options.file.display().to_string(),
        statistics,
        seconds,
        cpu: Some(process.max(cpu)),
        noise_p99_us: Some(noise.p99_us),
        simulated: false,
        timed_out: timed_out && options.timeout_fails,
        other: None,
    })
}

/// Waits for the threads and executes their effects. Returns their figures and CPU time, and whether the time limit has
/// ended the run.
fn watch(
    options: &ScenarioOptions,
    signals: &Signals,
    order: &AtomicU32,
    inbox: &Receiver<ThreadReport>,
    sinks: &mut Sinks,
    (clock, start, count): (Clock, Time, usize),
) -> Result<(Statistics, Duration, bool), LabError> {
    let mut timed_out = false;
    let mut figures: Vec<Option<Box<Statistics>>> = vec![None; count];
    let (mut done, mut cpu) = (0, Duration::ZERO);
    let mut display = LiveLine::new();
    let end = options
        .timeout
        .and_then(|seconds| Some(start + Duration::try_from_secs_f64(seconds.max(0.0)).ok()?));
    while done < count {
        let report = match inbox.recv_timeout(POLL_INTERVAL) {
            Ok(report) => Some(report),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        match report {
            Some(ThreadReport::Ready(address)) => display.ready(address),
            Some(ThreadReport::Failed(error)) => {
                order.fetch_max(END, Ordering::AcqRel);
                display.end();
                return Err(error);
            }
            Some(ThreadReport::Effects(effects)) => sinks.execute(effects)?,
            Some(ThreadReport::Figures(index, statistics)) => {
                if let Some(place) = figures.get_mut(index) {
                    *place = Some(statistics);
                }
            }
            Some(ThreadReport::Done(index, statistics, thread_cpu)) => {
                if let Some(place) = figures.get_mut(index) {
                    *place = Some(statistics);
                }
                done += 1;
                cpu += thread_cpu;
            }
            None => {}
        }
        let now = clock.now();
        let ordered = match signals.is_terminated() {
            true => END,
            false => signals.stops().min(END),
        };
        let before = order.fetch_max(ordered, Ordering::AcqRel);
        if before == CONTINUE && ordered == STOP {
            let total = merged(&figures);
            display.stopping(total.map_or(0, |total| total.open));
        }
        if end.is_some_and(|end| now >= end) && done < count {
            timed_out |= order.fetch_max(END, Ordering::AcqRel) != END;
        }
        if display.take_due(now) {
            let total = merged(&figures);
            display.show(now, start, total.as_ref());
            sinks.figures(now, start, total.as_ref())?;
        }
    }
    let total = merged(&figures);
    sinks.figures(clock.now(), start, total.as_ref())?;
    display.end();
    total
        .map(|total| (total, cpu, timed_out))
        .ok_or_else(|| LabError::cannot_run("no thread reported its figures", ""))
}

fn merged(figures: &[Option<Box<Statistics>>]) -> Option<Statistics> {
    let mut total: Option<Statistics> = None;
    for one in figures.iter().flatten() {
        match &mut total {
            None => total = Some(Statistics::clone(one)),
            Some(total) => total.merge(one),
        }
    }
    total
}

/// TLS identities and trust; `None` without TLS.
fn security(
    options: &ScenarioOptions,
    settings: &ScenarioSettings,
    server: bool,
) -> Result<Option<Security>, LabError> {
    if settings.transport != engine::Transport::Tls {
        if options.tls != TlsSettings::default() {
            return Err(LabError::bad_input("certificates need --transport tls"));
        }
        return Ok(None);
    }
    let listening: &[_] = match server {
        true => &[(settings.local, false)],
        false => &[],
    };
    options.tls.security(listening).map(Some)
}

fn serve(
    index: usize,
    mut generator: ScenarioGenerator,
    security: Option<Security>,
    clock: Clock,
    order: &AtomicU32,
    reports: &Sender<ThreadReport>,
) -> Result<(), LabError> {
    let failed = |why: String| {
        let remedy = "free the port, choose another with --local, or raise the limit of open files";
        LabError::cannot_run(why, remedy)
    };
    let batch = generator.settings().batch;
    let config = DriverConfig {
        receive_timestamps: true,
        report_unreachable: true,
        signalling_batching_delay: batch,
        gso_order: Some(wire::sip::call_number),
        connections: generator.settings().room,
        connections_per_source: generator.settings().room,
        // One connection may carry all calls: a pausing peer leaves many messages unread.
        stream_buffer: STREAM_BUFFER,
        ..DriverConfig::default()
    };
    let mut driver = Driver::plain(config, clock).map_err(|error| failed(error.to_string()))?;
    if let Some(security) = security {
        driver.set_security(security);
    }
    let cpu_before = net::thread_cpu();
    let mut last_report = Time::ZERO;
    let mut ready = false;
    loop {
        driver
            .turn_engine(&mut generator, POLL_INTERVAL)
            .map_err(|error| failed(error.to_string()))?;
        let now = clock.now();
        generator.settle(now);
        while let Some(event) = driver.next_event() {
            if let EventKind::TlsHandshakeFailed {
                peer, reason: why, ..
            } = event.kind
            {
                let line = format!("TLS with {peer}: {why}");
                report(reports, ThreadReport::Effects(vec![Effect::Warning(line)]));
            }
        }
        if let Some(why) = generator.fatal() {
            return Err(failed(why.to_owned()));
        }
        if let Some(peer) = generator.absent() {
            return Err(LabError::cannot_run(
                format!("no answer from {peer}: ICMP port unreachable"),
                "start the system under test, or correct the address",
            ));
        }
        if !ready && generator.is_ready() {
            ready = true;
            report(reports, ThreadReport::Ready(generator.address()));
        }
        let effects = generator.effects();
        if !effects.is_empty() {
            report(reports, ThreadReport::Effects(effects));
        }
        match order.load(Ordering::Acquire) {
            CONTINUE => {}
            STOP => generator.stop(),
            _ => generator.end(now),
        }
        if generator.is_done() || order.load(Ordering::Acquire) == END {
            break;
        }
        if now.since(last_report) >= POLL_INTERVAL * 5 {
            last_report = now;
            let statistics = Box::new(generator.statistics().clone());
            report(reports, ThreadReport::Figures(index, statistics));
        }
    }
    // Messages of the last step still have to be sent.
    driver
        .turn_engine(&mut generator, Duration::ZERO)
        .map_err(|error| failed(error.to_string()))?;
    report(reports, ThreadReport::Effects(generator.effects()));
    let cpu = net::thread_cpu().saturating_sub(cpu_before);
    let statistics = Box::new(generator.statistics().clone());
    report(reports, ThreadReport::Done(index, statistics, cpu));
    Ok(())
}

fn report(reports: &Sender<ThreadReport>, report: ThreadReport) {
    // The main thread closes the channel only at the end.
    let _ = reports.send(report);
}

/// Destinations of messages, log lines and figures.
struct Sinks {
    /// Wall clock at time zero, nanoseconds since 1970.
    wall: u64,
    trace: Option<BufWriter<File>>,
    log: Option<BufWriter<File>>,
    csv: Option<BufWriter<File>>,
    children: Vec<Child>,
    warnings: u64,
}

impl Sinks {
    fn open(options: &ScenarioOptions, wall: u64) -> Result<Sinks, LabError> {
        let open = |path: &Option<std::path::PathBuf>| {
            path.as_ref()
                .map(|path| {
                    File::create(path)
                        .map(BufWriter::new)
                        .map_err(|error| cannot_write(path, &error))
                })
                .transpose()
        };
        let mut sinks = Sinks {
            wall,
            trace: open(&options.trace)?,
            log: open(&options.log)?,
            csv: open(&options.csv)?,
            children: Vec::new(),
            warnings: 0,
        };
        if let Some(csv) = &mut sinks.csv {
            write_csv_head(csv).map_err(|error| write_failed(&error))?;
        }
        Ok(sinks)
    }

    fn execute(&mut self, effects: Vec<Effect>) -> Result<(), LabError> {
        for effect in effects {
            match effect {
                Effect::Log(line) => {
                    let Some(log) = &mut self.log else { continue };
                    log.write_all(&line)
                        .and_then(|()| log.write_all(b"\n"))
                        .map_err(|error| write_failed(&error))?;
                }
                Effect::Warning(line) => {
                    self.warnings += 1;
                    // The first ones show the problem; thousands more would hide it.
                    if self.warnings <= 20 {
                        eprintln!("{line}");
                    }
                    if self.warnings == 20 {
                        eprintln!("further warnings are not shown");
                    }
                }
                Effect::Command(line) => self.command(&String::from_utf8_lossy(&line)),
                Effect::Message {
                    at,
                    sent,
                    peer,
                    bytes,
                } => {
                    let Some(trace) = &mut self.trace else {
                        continue;
                    };
                    let unix = self.wall.saturating_add(at.as_nanos());
                    let peer = peer.map_or("-".to_owned(), |peer| peer.to_string());
                    write_message(trace, (unix, sent, &peer), &bytes)
                        .map_err(|error| write_failed(&error))?;
                }
            }
        }
        Ok(())
    }

    fn command(&mut self, line: &str) {
        self.children
            .retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if self.children.len() >= MAX_COMMANDS {
            eprintln!("not run, {MAX_COMMANDS} commands are running: {line}");
            return;
        }
        let child = Command::new("sh")
            .args(["-c", line])
            .stdin(Stdio::null())
            .spawn();
        match child {
            Ok(child) => self.children.push(child),
            Err(error) => eprintln!("{line}: {error}"),
        }
    }

    fn figures(
        &mut self,
        now: Time,
        start: Time,
        total: Option<&Statistics>,
    ) -> Result<(), LabError> {
        if let (Some(csv), Some(total)) = (&mut self.csv, total) {
            write_csv_line(csv, now.since(start).as_secs_f64(), total)
                .map_err(|error| write_failed(&error))?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), LabError> {
        for file in [&mut self.trace, &mut self.log, &mut self.csv]
            .into_iter()
            .flatten()
        {
            file.flush().map_err(|error| write_failed(&error))?;
        }
        for mut child in self.children {
            child
                .wait()
                .map_err(|error| LabError::cannot_run(format!("a command: {error}"), ""))?;
        }
        Ok(())
    }
}

fn write_failed(error: &std::io::Error) -> LabError {
    LabError::cannot_run(
        format!("a file cannot be written: {error}"),
        "free space on the disk",
    )
}

fn write_message(
    out: &mut impl Write,
    (unix, sent, peer): (u64, bool, &str),
    bytes: &[u8],
) -> std::io::Result<()> {
    let word = if sent { "sent to" } else { "received from" };
    writeln!(
        out,
        "----- {}.{:09} {word} {peer}, {} bytes",
        unix / 1_000_000_000,
        unix % 1_000_000_000,
        bytes.len()
    )?;
    out.write_all(bytes)?;
    out.write_all(b"\n")
}

/// The live display of a run: one line on a terminal.
struct LiveLine {
    terminal: bool,
    next: Time,
    shown: bool,
}

impl LiveLine {
    fn new() -> LiveLine {
        LiveLine {
            terminal: std::io::stderr().is_terminal(),
            next: Time::ZERO,
            shown: false,
        }
    }

    fn ready(&self, address: SocketAddr) {
        eprintln!("at {address}");
    }

    fn take_due(&mut self, now: Time) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now + Duration::from_secs(1);
        true
    }

    fn show(&mut self, now: Time, start: Time, total: Option<&Statistics>) {
        let Some(total) = total.filter(|_| self.terminal) else {
            return;
        };
        self.shown = true;
        eprint!(
            "\r{:7.1} s  {} calls, {} open, {} good, {} failed, {} retransmissions   ",
            now.since(start).as_secs_f64(),
            total.created,
            total.open,
            total.successful,
            total.failures(),
            total.retransmissions()
        );
    }

    /// Says how to end calls that are still open after the first Ctrl-C.
    fn stopping(&mut self, open: u64) {
        if open > 0 {
            self.end();
            self.shown = false;
            eprintln!("no further calls; {open} open, Ctrl-C again ends them");
        }
    }

    fn end(&self) {
        if self.shown {
            eprintln!();
        }
    }
}

/// Runs a client's scenario against a server's in virtual time.
///
/// # Errors
/// As [`run`].
pub fn simulate(options: &ScenarioOptions) -> Result<ScenarioResult, LabError> {
    let Some(against) = &options.against else {
        return Err(LabError::bad_input(
            "--simulate needs the scenario of the other end: --against FILE",
        ));
    };
    if options.threads != 1 || !options.targets.is_empty() || options.local.is_some() {
        return Err(LabError::bad_input(
            "targets, local addresses and threads are not possible in virtual time",
        ));
    }
    let (ours, theirs) = (load(&options.file, options)?, load(against, options)?);
    if ours.program.commands || theirs.program.commands {
        return Err(LabError::bad_input(
            "a scenario runs shell commands (<exec command=...>), which is not possible in virtual time",
        ));
    }
    let (client, server, swapped) = match (ours.program.server, theirs.program.server) {
        (false, true) => (ours, theirs, false),
        (true, false) => (theirs, ours, true),
        _ => {
            return Err(LabError::bad_input(
                "one of the two scenarios has to start the calls, the other to wait for them",
            ));
        }
    };
    let mut sinks = Sinks::open(options, 0)?;
    let seed = options.seed.unwrap_or(1);
    let mut world = World::new(seed);
    let (near, far) = (
        SocketAddr::from(([10, 0, 0, 1], 5060)),
        SocketAddr::from(([10, 0, 0, 2], 5060)),
    );
    let base = ScenarioOptions {
        targets: vec![far.to_string()],
        local: Some(near.to_string()),
        ..options.clone()
    };
    let one = |mut list: Vec<ScenarioSettings>| {
        list.pop()
            .ok_or_else(|| LabError::bad_input("a run without a thread"))
    };
    let mut client_settings = one(settings(&base, false, seed)?)?;
    if client_settings.transport == engine::Transport::Tls {
        return Err(LabError::bad_input(
            "--transport tls: there is no TLS in virtual time; use udp or tcp",
        ));
    }
    security(options, &client_settings, false)?;
    client_settings.start = Time::from_millis(100);
    client_settings.at_once = true;
    let mut server_settings = one(settings(
        &ScenarioOptions {
            targets: Vec::new(),
            local: Some(far.to_string()),
            calls: None,
            users: 0,
            rate: None,
            rate_to: None,
            ramp: 0.0,
            poisson: false,
            limit: None,
            ..base
        },
        true,
        seed,
    )?)?;
    server_settings.limits = super::schedule::CallLimits::default();
    let entropy = world.entropy();
    let server = world.add_engine(
        "server",
        &[far.ip()],
        ScenarioGenerator::new(server.parts(server_settings), entropy),
    );
    let entropy = world.entropy();
    let client = world.add_engine(
        "client",
        &[near.ip()],
        ScenarioGenerator::new(client.parts(client_settings), entropy),
    );
    let limit = match options.timeout {
        Some(seconds) => Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(MAX_SIMULATED),
        None => MAX_SIMULATED,
    };
    let end = Time::ZERO + limit;
    let both = match swapped {
        false => [client, server],
        true => [server, client],
    };
    let (mut next_line, mut timed_out) = (Time::ZERO, true);
    while world.now() < end {
        world.run_until(world.now() + POLL_INTERVAL);
        collect(&mut world, both, &mut sinks)?;
        if world.now() >= next_line {
            next_line = world.now() + Duration::from_secs(1);
            write_figures(&mut world, both[0], &mut sinks)?;
        }
        let done = world.with_engine(client, |client: &mut ScenarioGenerator, _| client.is_done());
        if done != Some(false) {
            timed_out = false;
            break;
        }
    }
    let seconds = world.now().as_secs_f64();
    if timed_out {
        // Otherwise the calls would go on while those of the server linger.
        world.with_engine(client, |client: &mut ScenarioGenerator, now| {
            client.end(now)
        });
    }
    // The last calls of the server may linger.
    world.run_until(world.now() + Duration::from_secs(40));
    let mut finish = |host| {
        world
            .with_engine(host, |generator: &mut ScenarioGenerator, now| {
                generator.end(now);
                (generator.program().clone(), generator.statistics().clone())
            })
            .ok_or_else(|| LabError::bad_input("a simulated host is down"))
    };
    let (client, server) = (finish(client)?, finish(server)?);
    collect(&mut world, both, &mut sinks)?;
    write_figures(&mut world, both[0], &mut sinks)?;
    sinks.finish()?;
    let outcome = |file: &Path, (program, statistics)| ScenarioResult {
        program,
        file: file.display().to_string(),
        statistics,
        seconds,
        cpu: None,
        noise_p99_us: None,
        simulated: true,
        timed_out: timed_out && options.timeout_fails,
        other: None,
    };
    let (mut own, other) = match swapped {
        false => (outcome(&options.file, client), outcome(against, server)),
        true => (outcome(&options.file, server), outcome(against, client)),
    };
    own.other = Some(Box::new(other));
    Ok(own)
}

/// Executes the effects of both ends in virtual time: of the peer's only warnings, as it would be another process.
fn collect(world: &mut World, [own, peer]: [HostId; 2], sinks: &mut Sinks) -> Result<(), LabError> {
    let mut effects = |host| {
        let taken = world.with_engine(host, |generator: &mut ScenarioGenerator, _| {
            generator.effects()
        });
        taken.unwrap_or_default()
    };
    let mut all = effects(own);
    let theirs = effects(peer).into_iter();
    all.extend(theirs.filter(|effect| matches!(effect, Effect::Warning(_))));
    sinks.execute(all)
}

/// Writes a line of figures in virtual time.
fn write_figures(world: &mut World, own: HostId, sinks: &mut Sinks) -> Result<(), LabError> {
    let now = world.now();
    let total = world.with_engine(own, |generator: &mut ScenarioGenerator, _| {
        generator.statistics().clone()
    });
    sinks.figures(now, Time::ZERO, total.as_ref())
}
