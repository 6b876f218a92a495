//! `hornwork demo`: border, PBX and phones on this machine, with registrations, calls with speech, and a report.

use crate::decimal::plain;
use crate::error::{LabError, RunVerdict};
use crate::experiment::{HangUp, MediaKind, Thresholds};
use crate::figures::{self, Details, Figures, ThresholdCheck};
use crate::files::{check_places, unix_seconds, write_json};
use crate::host::{
    AnswerPlan, HostPlan, HostProgress, LoginTemplates, OutgoingCallPlan, RegistrationPlan,
};
use crate::output::columns;
use crate::pace::{ArrivalProcess, Bounds, HoldTime};
use crate::planes::{Sample, Samples};
use crate::progress::DemoDisplay;
use crate::raw::{FORMAT, MachineRecord, RawWriter, RunRecord, Surroundings, TrialRecord};
use crate::report;
use crate::run::out_dir;
use crate::sut::{BorderThread, CpuLimits, Layout, PortSpan, system_entropy};
use crate::trial::{
    HostResults, HostThread, SAMPLED_EVERY_S, from_start, in_network, kernel_drops, merge,
    receive_buffer_errors, unparsable,
};
use codec::Format;
use engine::{Entropy, EventKind, Time, Transport};
use net::{Clock, Network, NoiseSampler, Signals};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of `hornwork demo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemoOptions {
    /// Longest run, seconds; 10 to 90.
    pub seconds: u32,
    /// Keep border and PBX running afterwards, so that a phone can register; until SIGINT or SIGTERM.
    pub stay: bool,
    /// Write the figures as JSON to this file (`-`: standard output).
    pub json: Option<PathBuf>,
    /// Directory for raw results and report; without it a new one in the system's temporary directory.
    pub out: Option<PathBuf>,
}

impl Default for DemoOptions {
    fn default() -> Self {
        DemoOptions {
            seconds: 60,
            stay: false,
            json: None,
            out: None,
        }
    }
}

/// Port of the border for phones.
const PORT: u16 = 5060;
/// Number of phones that register.
const PHONES: u64 = 20;
const USER_PATTERN: &str = "10{number:02}";
const PASSWORD_PATTERN: &str = "secret-{user}";
/// The PBX's extensions: one plays speech, one echoes.
const SPEECH_NUMBER: &str = "5000";
const ECHO_NUMBER: &str = "600";
/// Time from the start to the first call, in which the phones register.
const REGISTRATION_TIME: Duration = Duration::from_millis(1500);
/// Concurrent calls at the beginning and at the end of the ramp.
const CALLS_FROM: f64 = 5.0;
const CALLS_TO: f64 = 60.0;
/// Speech whose level at the far end differs by more than this was altered on the way, dB.
const LEVEL_LIMIT_DB: f64 = 1.0;

/// Phases of the demo.
#[derive(Clone, Copy, Debug)]
struct Times {
    rise: Duration,
    hold: f64,
}

impl Times {
    /// The remaining seconds are for start-up, registrations, the ends of the last calls, deregistration and the
    /// report.
    fn of(seconds: u32) -> Times {
        let hold = (f64::from(seconds) / 8.0).clamp(2.0, 8.0);
        let rise = f64::from(seconds) - REGISTRATION_TIME.as_secs_f64() - hold - 3.0;
        Times {
            rise: Duration::from_secs_f64(rise.max(2.0)),
            hold,
        }
    }

    /// Arrivals for a share of the calls.
    fn pace(&self, share: f64) -> ArrivalProcess {
        ArrivalProcess::Ramp {
            from: CALLS_FROM / self.hold * share,
            to: CALLS_TO / self.hold * share,
            over: self.rise.as_secs_f64(),
        }
    }
}

/// Runs the demo; progress and the final table go to standard output (to standard error if the JSON goes to standard
/// output).
///
/// # Errors
/// [`LabError`] if an option is out of range, or if the machine cannot run the demo.
pub fn run(options: &DemoOptions) -> Result<RunVerdict, LabError> {
    if !(10..=90).contains(&options.seconds) {
        return Err(LabError::bad_input(format!(
            "--seconds {}: must be from 10 to 90",
            options.seconds
        )));
    }
    // A phone that registers must reach the border; otherwise a network of its own keeps out other programs' ports.
    let network = match options.stay {
        true => None,
        false => Network::with_loopback().ok(),
    };
    match network {
        Some(network) => in_network(&network, || run_here(options)),
        None => run_here(options),
    }
}

/// Runs in the network namespace of the calling thread.
fn run_here(options: &DemoOptions) -> Result<RunVerdict, LabError> {
    let signals = Signals::install().map_err(|error| {
        LabError::cannot_run(
            format!("cannot install signal handlers: {error}"),
            "run it outside the sandbox",
        )
    })?;
    check_places(options.json.as_deref(), options.out.as_deref())?;
    let dir = out_dir(options.out.as_deref(), "demo")?;
    let raw = RawWriter::create(&dir)?;
    let times = Times::of(options.seconds);
    let mut demo = DemoNetwork::start(times, options.stay)?;
    let results = demo.run_calls(times, &signals)?;
    let (record, figures, details) = write_records(&demo, raw, results)?;
    let page = report::write(&dir)?;
    let mut shown = figures.clone();
    shown.report = page.display().to_string();
    let mut value =
        serde_json::to_value(&shown).map_err(|error| LabError::bad_input(error.to_string()))?;
    if let Some(object) = value.as_object_mut() {
        object.insert("planes".to_owned(), serde_json::json!(details.planes));
    }
    let text = final_table(&figures, &details, &record, &page);
    if options.json.as_deref() == Some(Path::new("-")) {
        eprint!("{text}");
    } else {
        crate::output::print(&text);
    }
    write_json(options.json.as_deref(), &value)?;
    demo.close(options.stay.then_some(&signals))?;
    Ok(record.verdict)
}

/// Addresses and media ports of the border: only free ports, because an occupied one costs a call.
fn choose_layout(stay: bool) -> Result<Layout, LabError> {
    let mut entropy = system_entropy()?;
    let spans = std::iter::repeat_with(|| PortSpan::for_calls(2 * CALLS_TO as u64, &mut entropy))
        .take(50)
        .find(|spans| spans.iter().all(|span| span.is_free()))
        .ok_or_else(|| {
            LabError::cannot_run(
                "no range of free UDP ports between 10000 and 20000 on 127.0.0.1",
                "stop the programs that use them, or raise the limit of open files (ulimit -n)",
            )
        })?;
    let layout = Layout::on_loopback_at(PORT, spans)?;
    if layout.access().port() != PORT {
        if stay {
            return Err(LabError::cannot_run(
                format!(
                    "127.0.0.1:{PORT} (UDP or TCP) is in use, but phones need the border at this address"
                ),
                format!(
                    "stop the program that listens there (ss -lnp 'sport = :{PORT}' names it), or run without --stay"
                ),
            ));
        }
        eprintln!(
            "127.0.0.1:{PORT} is in use: the border listens on {} instead",
            layout.access()
        );
    }
    Ok(layout)
}

/// Border, PBX and phones of the demo.
struct DemoNetwork {
    clock: Clock,
    layout: Layout,
    border: BorderThread,
    pbx: HostThread,
    entropy: Entropy,
    seed: u64,
    /// Start, seconds since 1970.
    started: u64,
}

/// Results of the demo.
struct DemoResults {
    phones: HostResults,
    pbx: HostResults,
    start: Time,
    seconds: f64,
    surroundings: Surroundings,
    samples: Samples,
    remaining: u64,
}

/// Each call has one end at the phones and one at the PBX; registrations do not count as calls.
fn sample(cpu_seconds: f64, phones: &HostProgress, pbx: &HostProgress) -> Sample {
    let both = phones.and(pbx);
    let ended = (both.good + both.failed).saturating_sub(both.registered);
    Sample {
        cpu_seconds,
        half_calls: (both.established + ended) / 2,
        packets: both.packets_in,
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

impl DemoNetwork {
    fn start(times: Times, stay: bool) -> Result<DemoNetwork, LabError> {
        let clock = Clock::new();
        let started = unix_seconds()?;
        let seed = system_entropy()?.u64() >> 1;
        let mut entropy = Entropy::from_number(seed);
        let mut layout = choose_layout(stay)?;
        let pbx = HostThread::start(pbx_plan(times), None, entropy.fork(), clock)?;
        layout.trunk = vec![pbx.address()];
        layout.users = (0..PHONES).map(|number| login().of(number)).collect();
        let border = BorderThread::start(&layout, entropy.fork(), clock, CpuLimits::default())?;
        Ok(DemoNetwork {
            started,
            clock,
            layout,
            border,
            pbx,
            entropy,
            seed,
        })
    }

    /// Phones register, calls ramp up, and all calls and registrations end; border and PBX keep running.
    fn run_calls(&mut self, times: Times, signals: &Signals) -> Result<DemoResults, LabError> {
        let clock = self.clock;
        let phones = HostThread::start(phones_plan(times), None, self.entropy.fork(), clock)?;
        let noise = NoiseSampler::start(Duration::from_millis(1), None).map_err(|error| {
            LabError::cannot_run(
                format!("cannot start the noise sampler: {error}"),
                "raise the limit of threads (ulimit -u)",
            )
        })?;
        let kernel_before = receive_buffer_errors()?;
        let before = self.border.state()?;
        let start = clock.now() + Duration::from_millis(100);
        phones.begin(self.layout.access(), start)?;
        self.pbx.begin(self.layout.core(), start)?;
        let samples = self.watch(times, &phones, start, signals)?;
        let after = self.border.state()?;
        let kernel_after = receive_buffer_errors()?;
        let seconds = clock.now().since(start).as_secs_f64();
        phones.deregister()?;
        let limit = clock.now() + Duration::from_secs(2);
        while phones.progress()?.registered > 0 && clock.now() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
        let noise = noise
            .stop()
            .map_err(|error| LabError::cannot_run(format!("noise sampler: {error}"), ""))?;
        let remaining = self.remaining_after_calls()?;
        let (phones, pbx) = (phones.finish()?, self.pbx.collect()?);
        Ok(DemoResults {
            start,
            seconds,
            remaining: remaining + crate::trial::total_held(&[phones.holdings, pbx.holdings]),
            surroundings: Surroundings {
                noise: noise.into(),
                own_noise: None,
                receive_buffer_errors_before: kernel_before,
                receive_buffer_errors_after: kernel_after,
                generator_drops: kernel_drops([&phones, &pbx]),
                generator_unparsable: unparsable([&phones, &pbx]),
                generator_shortage: crate::raw::SocketShortage::of_all([
                    &phones.results.shortage,
                    &pbx.results.shortage,
                ]),
                subject_cpu_seconds: Some(after.cpu_seconds - before.cpu_seconds),
                subject_waited_seconds: None,
                subject_grew_bytes: None,
                generator_cpu_seconds: phones.cpu_seconds + pbx.cpu_seconds,
                callers_cpu_seconds: phones.cpu_seconds,
                send_lateness: crate::raw::SendLateness::of([
                    &phones.results.send_times,
                    &pbx.results.send_times,
                ]),
                generator_is_realtime: false,
                other_programs_percent: None,
                resident_bytes: net::resident_bytes().map_err(|error| {
                    LabError::cannot_run(format!("/proc: {error}"), "mount /proc")
                })?,
            },
            samples,
            phones,
            pbx,
        })
    }

    fn watch(
        &self,
        times: Times,
        phones: &HostThread,
        start: Time,
        signals: &Signals,
    ) -> Result<Samples, LabError> {
        let mut samples = Samples::default();
        let mut sampled = f64::NEG_INFINITY;
        let limit = start
            + REGISTRATION_TIME
            + times.rise
            + Duration::from_secs_f64(times.hold)
            + Duration::from_secs(8);
        let all = (REGISTRATION_TIME + times.rise).as_secs_f64() + times.hold;
        let mut display = DemoDisplay::new(all);
        while !(phones.is_done()? && self.pbx.is_done()?) && self.clock.now() < limit {
            if signals.stops() > 0 {
                return Err(LabError::cannot_run("interrupted", "run it again"));
            }
            std::thread::sleep(Duration::from_millis(100));
            let seconds = self.clock.now().since(start).as_secs_f64();
            let (near, far) = (phones.progress()?, self.pbx.progress()?);
            display.update(seconds, &near, &far);
            if seconds - sampled >= SAMPLED_EVERY_S {
                sampled = seconds;
                samples.add(sample(self.border.state()?.cpu_seconds, &near, &far));
            }
        }
        display.finish();
        Ok(samples)
    }

    fn remaining_after_calls(&self) -> Result<u64, LabError> {
        let limit = self.clock.now() + Duration::from_secs(2);
        loop {
            let remaining = crate::sut::call_objects(&self.border.state()?.census);
            if remaining == 0 || self.clock.now() >= limit {
                return Ok(remaining);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops everything; with `stay` only after a signal.
    fn close(self, stay: Option<&Signals>) -> Result<(), LabError> {
        if let Some(signals) = stay {
            eprint!("{}", self.invitation());
            let events = self.border.events()?;
            while signals.stops() == 0 {
                self.border.state()?;
                match events.recv_timeout(Duration::from_millis(100)) {
                    Ok(event) if is_printed(&event.kind) => eprintln!("{event}"),
                    _ => {}
                }
            }
        }
        // The border first: it ends the remaining calls, and the PBX answers its requests.
        self.border.finish()?;
        self.pbx.finish()?;
        Ok(())
    }

    fn invitation(&self) -> String {
        let (first, last) = (login().of(0), login().of(PHONES - 1));
        let address = self.layout.access();
        format!(
            "\nThe border stays at {address} (UDP and TCP) until Ctrl-C. A phone on this machine can register:\n  \
             user       {} to {}\n  password   secret-USER, for example {}\n  registrar  sip:{address}\n\
             Then call {SPEECH_NUMBER} (speech), {ECHO_NUMBER} (echo), or another phone by its user name.\n  \
             baresip    in its accounts file: <sip:{}@{address}>;auth_pass={}\n  \
             linphonec  register sip:{}@{address} sip:{address} {}\n",
            first.0, last.0, first.1, first.0, first.1, first.0, first.1
        )
    }
}

/// Events that `--stay` prints: those that concern the registration and calls of a phone.
fn is_printed(note: &EventKind) -> bool {
    matches!(
        note,
        EventKind::RegistrationStored { .. }
            | EventKind::RegistrationEnded { .. }
            | EventKind::RequestRefused { .. }
            | EventKind::CallOffered { .. }
            | EventKind::CallAnswered { .. }
            | EventKind::CallEnded { .. }
    )
}

fn login() -> LoginTemplates {
    LoginTemplates {
        user: USER_PATTERN.to_owned(),
        password: PASSWORD_PATTERN.to_owned(),
    }
}

fn answers(name: &str) -> AnswerPlan {
    AnswerPlan {
        expects: MediaKind::Speech,
        listen_percent: 20.0,
        echo_number: Some(ECHO_NUMBER.to_owned()),
        ..AnswerPlan::new(name, MediaKind::Speech)
    }
}

fn calls(
    name: &str,
    times: Times,
    share: f64,
    dial: &str,
    from: &str,
    expects: MediaKind,
) -> OutgoingCallPlan {
    OutgoingCallPlan {
        name: name.to_owned(),
        pace: times.pace(share),
        after: REGISTRATION_TIME,
        bounds: Bounds::default(),
        duration: Some(REGISTRATION_TIME + times.rise),
        hold: HoldTime::Fixed(times.hold),
        dial: dial.to_owned(),
        from: from.to_owned(),
        cycle: PHONES,
        login: None,
        domain: String::new(),
        transport: Transport::Udp,
        connections: 1,
        hang_up: HangUp::Caller,
        sends: MediaKind::Speech,
        expects,
        codec: Format::Pcma,
        participants: 0,
        srtp: false,
        timed: false,
        cancel_percent: 0.0,
        hold_percent: 0.0,
        listen_percent: 20.0,
        ring_limit: Duration::from_secs(20),
        flow: crate::host::CallFlow::Plain,
        reserve: Duration::ZERO,
    }
}

fn pbx_plan(times: Times) -> HostPlan {
    let mut plan = HostPlan::new("pbx", loopback(0));
    plan.stream = Some(Transport::Tcp);
    plan.answers = Some(answers("pbx"));
    plan.media_sockets = CALLS_TO as usize + 40;
    plan.calls = vec![calls(
        "pbx to phones",
        times,
        0.35,
        USER_PATTERN,
        "5001",
        MediaKind::Speech,
    )];
    plan
}

fn phones_plan(times: Times) -> HostPlan {
    let mut plan = HostPlan::new("phones", loopback(0));
    plan.media_sockets = CALLS_TO as usize + 60;
    plan.answers = Some(answers("phones"));
    plan.registrations = Some(RegistrationPlan {
        name: "registrations".to_owned(),
        pace: ArrivalProcess::Constant { rate: 40.0 },
        users: PHONES,
        login: login(),
        domain: String::new(),
        expires: 300,
        refresh: None,
        follows_expiry: false,
        refreshes: 0,
        refresh_rate: 0.0,
        remove: false,
        transport: Transport::Udp,
        connections: 1,
    });
    let with_login = |plan: OutgoingCallPlan| OutgoingCallPlan {
        login: Some(login()),
        ..plan
    };
    plan.calls = vec![
        with_login(calls(
            "phones to pbx",
            times,
            0.45,
            SPEECH_NUMBER,
            USER_PATTERN,
            MediaKind::Speech,
        )),
        with_login(calls(
            "phones to echo",
            times,
            0.2,
            ECHO_NUMBER,
            USER_PATTERN,
            MediaKind::Echo,
        )),
    ];
    plan
}

fn thresholds() -> Thresholds {
    Thresholds {
        failed_percent: Some(0.0),
        response_p99_ms: Some(200.0),
        lost_percent: Some(0.5),
        mos: Some(4.0),
        correlation: Some(0.9),
        one_way_ms: Some(150.0),
        round_trip_ms: Some(250.0),
        leaks: Some(0),
        ..Thresholds::default()
    }
}

fn write_records(
    demo: &DemoNetwork,
    mut raw: RawWriter,
    results: DemoResults,
) -> Result<(TrialRecord, Figures, Details), LabError> {
    let remarks = [("phones", &results.phones), ("pbx", &results.pbx)]
        .into_iter()
        .flat_map(|(name, host)| {
            host.drops
                .iter()
                .map(move |(reason, count)| (name, *reason, *count))
        })
        .filter(|(_, reason, _)| *reason != "sip_retransmission")
        .map(|(name, reason, count)| format!("{name} dropped: {reason} {count}"))
        .collect();
    let (attempts, streams) = merge(0, vec![results.phones.results, results.pbx.results]);
    let (attempts, streams) = from_start(attempts, streams, results.start);
    raw.trial(&attempts, &streams)?;
    let cpu = results.surroundings.subject_cpu_seconds;
    let (figures, mut details) = figures::compute(&attempts, &streams, cpu);
    let calls = figures.response_ms.samples;
    details.planes = results.samples.divide(cpu, calls, details.packets);
    let mut checks = figures::judge(&thresholds(), &figures, &details, Some(results.remaining));
    checks.push(ThresholdCheck {
        name: "level_db".to_owned(),
        limit: LEVEL_LIMIT_DB,
        measured: figures.audio.level_db,
        holds: figures
            .audio
            .level_db
            .map(|level| level.abs() <= LEVEL_LIMIT_DB),
        required: false,
    });
    let verdict = figures::verdict(&checks);
    let record = TrialRecord {
        trial: 0,
        level: None,
        repetition: 0,
        seed: demo.seed,
        plan: demo.layout.toml(),
        seconds: results.seconds,
        figures: figures.clone(),
        details: details.clone(),
        checks,
        leaks: Some(results.remaining),
        verdict,
        remarks,
        short: false,
        surroundings: Some(results.surroundings),
        digest: None,
        links: Vec::new(),
    };
    raw.finish(&RunRecord {
        format: FORMAT,
        experiment: "demo".to_owned(),
        title: "A small voice network on this machine".to_owned(),
        about: format!(
            "{PHONES} phones register with digest at the border and call a PBX behind it, and the PBX calls them, in \
             rising load. Every call carries speech both ways; at the far end a fifth of them is listened to and \
             compared with the sent speech. The response time is the time from INVITE to 200, including the digest challenge."
        ),
        study: None,
        search: None,
        peak: None,
        bounds: Vec::new(),
        overrides: Vec::new(),
        what: String::new(),
        level_label: String::new(),
        seed: demo.seed,
        driver: "sockets".to_owned(),
        subject: "Hornwork border, media anchored".to_owned(),
        subject_file: String::new(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started: demo.started,
        machine: Some(MachineRecord::here()),
        subject_machine: None,
        plan: demo.layout.toml(),
        cut_short: false,
        trials: vec![record.clone()],
        verdict,
    })
    .map(|()| (record, figures, details))
}

fn final_table(figures: &Figures, details: &Details, record: &TrialRecord, page: &Path) -> String {
    let checks = &record.checks;
    let stall = record.surroundings.as_ref().map(|s| s.noise.max_us / 1e3);
    let number = |value: Option<f64>, unit: &str| {
        value.map_or("-".to_owned(), |value| format!("{}{unit}", plain(value)))
    };
    let calls = figures.calls;
    let rows = [
        (
            "phones registered",
            details.registrations.established.min(PHONES).to_string(),
        ),
        ("calls attempted", calls.attempted.to_string()),
        ("calls established", calls.established.to_string()),
        ("calls completed", calls.completed.to_string()),
        ("calls failed", calls.failed.to_string()),
        ("most concurrent calls", details.peak_calls.to_string()),
        ("response time p50", number(figures.response_ms.p50, " ms")),
        (
            match figures.response_ms.p99_of_few {
                true => "response time p99 (fewer than 300 samples: close to the largest)",
                false => "response time p99",
            },
            number(figures.response_ms.p99, " ms"),
        ),
        ("jitter mean", number(figures.jitter_ms.mean, " ms")),
        ("jitter p99", number(figures.jitter_ms.p99, " ms")),
        ("jitter max", number(figures.jitter_ms.max, " ms")),
        ("media packets", details.packets.to_string()),
        ("lost", number(figures.lost_percent, " %")),
        ("MOS", number(figures.mos, "")),
        ("audio analysed", format!("{} streams", details.listened)),
        (
            "speech correlation, minimum",
            number(figures.audio.correlation, ""),
        ),
        (
            "speech level, largest deviation",
            number(figures.audio.level_db, " dB"),
        ),
        (
            "CPU of the border per relayed packet",
            number(details.planes.media_us_per_packet, " us"),
        ),
        (
            "CPU of the border per call, signalling only",
            number(details.planes.signalling_us_per_call, " us"),
        ),
        (
            "longest scheduling delay of this machine",
            number(stall, " ms"),
        ),
    ];
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value])
        .collect();
    let mut out = format!("\n{}", columns(&["figure", "value"], &rows));
    if !details.planes.undivided.is_empty() {
        out.push_str(&format!(
            "CPU of signalling and of media could not be separated: {}\n",
            details.planes.undivided
        ));
    }
    for check in checks.iter().filter(|check| check.holds != Some(true)) {
        out.push_str(&format!("{}\n", crate::terminal::check_line("", check)));
    }
    out.push_str(&format!("{}\n", record.verdict.name()));
    out.push_str(&format!("report: {}\n", page.display()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_fit_into_the_duration() {
        for seconds in 10..=90 {
            let times = Times::of(seconds);
            let all = REGISTRATION_TIME.as_secs_f64() + times.rise.as_secs_f64() + times.hold + 2.0;
            assert!(all <= f64::from(seconds), "{seconds}: {all}");
            assert!(times.rise >= Duration::from_secs(2));
        }
    }

    #[test]
    fn invalid_options_are_rejected() {
        let options = DemoOptions {
            seconds: 91,
            ..DemoOptions::default()
        };
        assert_eq!(run(&options).unwrap_err().exit_code(), 2);
    }
}
