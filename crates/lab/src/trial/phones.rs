//! Telephones of several makers, measured one after the other: each calls a receiver of the load generator, which times
//! the packets by the kernel's receive times, while other streams load the machine.

use super::machine::receive_buffer_errors;
use super::progress::{kernel_drops, unparsable};
use super::{HostThread, Outcomes, Trial, from_start, merge};
use crate::error::LabError;
use crate::experiment::{MediaKind, PhoneLoad};
use crate::figures::NOISE;
use crate::host::{AnswerPlan, HostPlan, HostProgress, LabHost, StreamPlan};
use crate::phone;
use crate::private_directory::PrivateDirectory;
use crate::raw::{SocketShortage, Surroundings};
use crate::record::{Attempt, AttemptKind, AttemptOutcome};
use crate::sut::simulated_addresses;
use codec::{Format, speech, wav};
use engine::{Entropy, Time};
use net::{Clock, NoiseSampler};
use sim::World;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Longest wait for the call of a telephone.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Port of the receiver, and the first port of the streams of the load.
const RECEIVER_PORT: u16 = 5_060;
const LOAD_PORT: u16 = 30_000;
/// Ports of the telephones.
const PHONE_PORT: u16 = 5_070;
const PHONE_MEDIA_PORT: u16 = 20_000;
/// Host number of the telephone in the simulated networks.
const SIMULATED_HOST: u8 = 1;
const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// A call lasts this much longer than the measurement.
const MARGIN: Duration = Duration::from_secs(1);

/// A telephone of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telephone {
    Ours { real_time: bool },
    Baresip,
    Linphone,
}

impl Telephone {
    fn of(plan: &PhoneLoad) -> Telephone {
        match plan.program {
            2 => Telephone::Baresip,
            3 => Telephone::Linphone,
            program => Telephone::Ours {
                real_time: program == 1,
            },
        }
    }

    fn name(self) -> &'static str {
        match self {
            Telephone::Ours { real_time: true } => "hornwork phone --real-time",
            Telephone::Ours { real_time: false } => "hornwork phone",
            Telephone::Baresip => "baresip",
            Telephone::Linphone => "linphonec",
        }
    }
}

/// Begin of the names of the folders of telephones.
const FOLDERS: &str = "hornwork-phone-";

/// A running telephone with its folder; both end with this value.
struct RunningPhone {
    child: Child,
    folder: PrivateDirectory,
}

impl Drop for RunningPhone {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

fn cannot(what: &str, error: impl std::fmt::Display) -> LabError {
    LabError::cannot_run(
        format!("{what}: {error}"),
        "install the program (Debian: baresip-core, linphone-cli), or leave its level out with --set levels.values=[1]",
    )
}

/// Runs a trial. The network namespace of the calling thread is private, so the ports are free.
pub(super) fn on_sockets(
    trial: &Trial,
    mut progress: impl FnMut(f64, &HostProgress),
) -> Result<Outcomes, LabError> {
    let plan = trial.experiment.phone.as_ref();
    let plan = plan.ok_or_else(|| LabError::bad_input("no [phone]"))?;
    let telephone = Telephone::of(plan);
    let clock = Clock::new();
    let mut entropy = Entropy::from_number(trial.seed);
    let span = |value: f64| Duration::try_from_secs_f64(value).unwrap_or_default();
    let (warm_up, measured) = (span(plan.warm_up_seconds), span(plan.duration_seconds));
    let mut start_host = |plan: HostPlan| HostThread::start(plan, None, entropy.fork(), clock);
    let address = SocketAddr::from((LOOPBACK, RECEIVER_PORT));
    let mut receiver = receiver(address, (Duration::from_secs(4) + warm_up, measured));
    receiver.realtime = trial.experiment.generator.realtime_priority;
    let receiver = start_host(receiver)?;
    let load = (plan.load_streams > 0)
        .then(|| {
            let far = start_host(streams(plan, None))?;
            let near = start_host(streams(plan, Some(SocketAddr::from((LOOPBACK, LOAD_PORT)))))?;
            Ok::<_, LabError>([near, far])
        })
        .transpose()?;
    let noise = NoiseSampler::start(Duration::from_millis(1), None)
        .map_err(|error| cannot("noise sampler", error))?;
    let realtime_noise = (telephone == Telephone::Ours { real_time: true })
        .then(realtime_sampler)
        .transpose()?
        .flatten();
    let kernel_before = receive_buffer_errors()?;
    let start = clock.now();
    for host in load.iter().flatten() {
        host.begin(host.address(), start)?;
    }
    let call_s = plan.warm_up_seconds + plan.duration_seconds + 4.0 + MARGIN.as_secs_f64();
    let mut phone = RunningPhone::start(telephone, call_s)?;
    // The window begins 4 s after the warm-up, so that the start of the program is not in it.
    receiver.begin(receiver.address(), start)?;
    let begun = clock.now();
    let mut answered: Option<Time> = None;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let seen = receiver.progress()?;
        let now = clock.now();
        progress(now.since(start).as_secs_f64(), &seen);
        if seen.up > 0 {
            answered.get_or_insert(now);
        }
        match answered {
            // A right is missing, for example: no call follows.
            None if phone.ended_by_now() => break,
            // Ctrl-C: the run marks this trial as cut short.
            _ if net::stops() > 0 => break,
            None if now.since(begun) > CALL_TIMEOUT => break,
            Some(at) if seen.up == 0 || now.since(at) > span(call_s) + MARGIN => break,
            _ => {}
        }
    }
    let said = answered.is_none().then(|| phone.last_words());
    drop(phone);
    let end = clock.now();
    let kernel_after = receive_buffer_errors()?;
    let noise = noise
        .stop()
        .map_err(|error| cannot("noise sampler", error))?;
    let realtime_noise = realtime_noise
        .map(NoiseSampler::stop)
        .transpose()
        .map_err(|error| cannot("noise sampler", error))?;
    let mut hosts = vec![receiver.finish()?];
    for host in load.into_iter().flatten() {
        hosts.push(host.finish()?);
    }
    let generator_drops = kernel_drops(&hosts);
    let generator_unparsable = unparsable(&hosts);
    let generator_shortage =
        SocketShortage::of_all(hosts.iter().map(|host| &host.results.shortage));
    let cpu_s: f64 = hosts.iter().map(|host| host.cpu_seconds).sum();
    let results = hosts.into_iter().map(|host| host.results).collect();
    let (attempts, streams) = merge(trial.number, results);
    let (mut attempts, streams) = from_start(attempts, streams, start);
    attempts.retain(|attempt| attempt.workload != NOISE);
    let received = streams
        .iter()
        .any(|stream| stream.workload == "receiver" && stream.received > 0);
    let mut call = attempt(trial.number, telephone, received, end.since(start));
    let mut remarks = vec![format!("the telephone was {}", telephone.name())];
    if let Some(said) = said.filter(|said| !said.is_empty()) {
        remarks.push(format!("no call: {}: {said}", telephone.name()));
        call.why = said;
    }
    attempts.push(call);
    Ok(Outcomes {
        attempts,
        streams,
        seconds: end.since(start).as_secs_f64(),
        remarks,
        surroundings: Some(Surroundings {
            own_noise: Some(realtime_noise.unwrap_or_else(|| noise.clone()).into()),
            noise: noise.into(),
            receive_buffer_errors_before: kernel_before,
            receive_buffer_errors_after: kernel_after,
            generator_drops,
            generator_unparsable,
            generator_shortage,
            subject_cpu_seconds: None,
            subject_waited_seconds: None,
            subject_grew_bytes: None,
            generator_cpu_seconds: cpu_s,
            callers_cpu_seconds: cpu_s,
            send_lateness: None,
            generator_is_realtime: trial.experiment.generator.realtime_priority > 0,
            other_programs_percent: None,
            resident_bytes: net::resident_bytes().map_err(|error| cannot("/proc", error))?,
        }),
        ..Outcomes::default()
    })
}

/// Runs a trial in virtual time: the user agent of this program calls the receiver. Programs and the load of the
/// machine have no virtual time.
pub(super) fn in_world(trial: &Trial, mut world: World) -> Result<(Outcomes, World), LabError> {
    let plan = trial.experiment.phone.as_ref();
    let plan = plan.ok_or_else(|| LabError::bad_input("no [phone]"))?;
    let telephone = Telephone::of(plan);
    if !matches!(telephone, Telephone::Ours { .. }) {
        let remarks = vec![format!(
            "{}: not measured, a program of its own has no virtual time",
            telephone.name()
        )];
        let outcomes = Outcomes {
            remarks,
            ..Outcomes::default()
        };
        return Ok((outcomes, world));
    }
    let span = |value: f64| Duration::try_from_secs_f64(value).unwrap_or_default();
    let (warm_up, measured) = (span(plan.warm_up_seconds), span(plan.duration_seconds));
    let [phone_ip, receiver_ip] = simulated_addresses(&trial.experiment, SIMULATED_HOST);
    let to = SocketAddr::new(receiver_ip, RECEIVER_PORT);
    let call = phone::voice_call(
        SocketAddr::new(phone_ip, PHONE_PORT),
        to,
        warm_up + measured + 2 * MARGIN,
    )?;
    let receiver = receiver(to, (warm_up, measured));
    let mut add = |name: &str, plan: HostPlan| {
        let (ip, entropy) = (plan.address.ip(), world.entropy());
        world.add_engine(name, &[ip], LabHost::new(plan, entropy))
    };
    let hosts = [add("receiver", receiver), add("phone", call)];
    // Opening takes no virtual time, but is reported in a step of its own.
    world.run_until(world.now() + Duration::from_millis(1));
    let start = Time::from_secs(1);
    for host in hosts {
        world.with_engine(host, |host: &mut LabHost, _| host.begin(to, start));
    }
    let end = start + warm_up + measured + 4 * MARGIN;
    world.run_until(end);
    let mut results = Vec::new();
    for host in hosts {
        let ended = world.with_engine(host, |host: &mut LabHost, now| host.finish(now));
        results.push(ended.ok_or_else(|| LabError::bad_input("a simulated host is down"))?);
    }
    let (mut attempts, mut streams) = merge(trial.number, results);
    attempts.clear();
    // Streams that the phone itself receives are no figures of the experiment.
    streams.retain(|stream| stream.workload == "receiver");
    let received = streams.iter().any(|stream| stream.received > 0);
    attempts.push(attempt(trial.number, telephone, received, end.since(start)));
    let outcomes = Outcomes {
        attempts,
        streams,
        seconds: end.since(start).as_secs_f64(),
        remarks: vec![format!(
            "{}: its user agent in virtual time, without threads and without the load of the machine",
            telephone.name()
        )],
        digest: Some(format!("{:032x}", world.digest())),
        ..Outcomes::default()
    };
    Ok((outcomes, world))
}

/// Measures the host's noise as the telephone in real-time mode has it: with a higher priority, so that the spinning
/// telephone does not count, and on another CPU, so that it does not delay the telephone. `None` without the right,
/// without which this telephone makes no call.
fn realtime_sampler() -> Result<Option<NoiseSampler>, LabError> {
    let priority = phone::REALTIME_PRIORITY + 1;
    if net::may_be_realtime(priority).is_err() {
        return Ok(None);
    }
    let cpu = net::allowed_cpus().first().copied();
    let sampler = NoiseSampler::start_realtime(Duration::from_millis(1), cpu, priority);
    sampler
        .map(Some)
        .map_err(|error| cannot("noise sampler", error))
}

/// The receiver. Its window begins after the warm-up.
fn receiver(address: SocketAddr, window: (Duration, Duration)) -> HostPlan {
    let mut plan = HostPlan::new("receiver", address);
    plan.media_sockets = 1;
    plan.window = Some(window);
    let mut answers = AnswerPlan::new("receiver", MediaKind::Speech);
    answers.expects = MediaKind::Speech;
    plan.answers = Some(answers);
    plan
}

/// The call of the telephone, as an attempt.
fn attempt(number: u32, telephone: Telephone, received: bool, spent: Duration) -> Attempt {
    let mut attempt = Attempt::new("phone", AttemptKind::Stream, 0, Time::ZERO);
    attempt.trial = number;
    attempt.from = telephone.name().to_owned();
    attempt.sent = Some(0);
    attempt.ended = Some(spent.as_nanos() as u64);
    attempt.outcome = match received {
        true => AttemptOutcome::Completed,
        false => AttemptOutcome::NoMedia,
    };
    if received {
        attempt.established = Some(0);
    }
    attempt
}

/// One end of the load. Its streams have the name of streams that bypass a SUT, so that their jitter is shown as the
/// noise of the machine.
fn streams(plan: &PhoneLoad, to: Option<SocketAddr>) -> HostPlan {
    let mut host = HostPlan::new(NOISE, SocketAddr::from((LOOPBACK, 0)));
    host.media_sockets = plan.load_streams as usize;
    host.media_port = if to.is_some() { 0 } else { LOAD_PORT };
    // Their results count once they have ended, which is before the end of the call.
    let call_s = plan.warm_up_seconds + plan.duration_seconds + 3.5;
    host.streams = Some(StreamPlan {
        name: NOISE.to_owned(),
        rate: 100.0,
        count: plan.load_streams,
        duration: Duration::try_from_secs_f64(call_s).unwrap_or_default(),
        sends: match to {
            Some(_) => MediaKind::Speech,
            None => MediaKind::None,
        },
        codec: Format::Pcma,
        expects: MediaKind::Speech,
        listen_percent: 0.0,
        to,
    });
    host
}

impl RunningPhone {
    /// Starts a telephone in an own folder; it calls the receiver.
    fn start(telephone: Telephone, call_s: f64) -> Result<RunningPhone, LabError> {
        let program = telephone.name().replace(char::is_whitespace, "-");
        let io = |error: std::io::Error| cannot("files of the telephone", error);
        let folder = PrivateDirectory::new(FOLDERS, &program)?;
        let voice = folder.path().join("voice.wav");
        // baresip ends a call with its file.
        let length = (call_s + 10.0) as usize * speech::RATE as usize;
        let samples: Vec<i16> = speech::speech()
            .iter()
            .copied()
            .cycle()
            .take(length)
            .collect();
        let file = wav::write(wav::Encoding::Pcm16, speech::RATE, 1, &samples)
            .map_err(|error| cannot("speech", error))?;
        std::fs::write(&voice, file).map_err(io)?;
        let mut command = match telephone {
            Telephone::Ours { real_time } => ours(&voice, call_s, real_time)?,
            Telephone::Baresip => baresip(folder.path(), &voice, call_s).map_err(io)?,
            Telephone::Linphone => linphone(folder.path()).map_err(io)?,
        };
        let log = std::fs::File::create(folder.path().join("log")).map_err(io)?;
        let copy = log.try_clone().map_err(io)?;
        net::end_with_parent(&mut command);
        let started = command.stdout(log).stderr(copy).spawn();
        let child = started.map_err(|error| cannot(telephone.name(), error))?;
        let mut phone = RunningPhone { child, folder };
        if telephone == Telephone::Linphone {
            phone.dial_linphone(&voice)?;
        }
        Ok(phone)
    }

    fn ended_by_now(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// The end of its output, in one line.
    fn last_words(&self) -> String {
        let text = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        let last = lines.get(lines.len().saturating_sub(3)..);
        last.unwrap_or_default().join("; ")
    }

    /// Types the call into linphone's console, which takes commands a moment after its start.
    fn dial_linphone(&mut self, voice: &Path) -> Result<(), LabError> {
        let lines = format!(
            "soundcard use files\nplay {}\ncall sip:600@{LOOPBACK}:{RECEIVER_PORT}\n",
            voice.display()
        );
        std::thread::sleep(Duration::from_secs(2));
        let console = self.child.stdin.as_mut();
        let console = console.ok_or_else(|| cannot("linphonec", "no console"))?;
        console
            .write_all(lines.as_bytes())
            .and_then(|()| console.flush())
            .map_err(|error| cannot("linphonec", error))
    }
}

fn ours(voice: &Path, call_s: f64, real_time: bool) -> Result<Command, LabError> {
    let program = std::env::current_exe().map_err(|error| cannot("this program", error))?;
    let mut command = Command::new(program);
    command
        .args(["phone", "call"])
        .arg(format!("sip:600@{LOOPBACK}:{RECEIVER_PORT}"))
        .args(["--codec", "pcma", "--loop", "--seconds"])
        .arg(call_s.to_string())
        .arg("--wav-in")
        .arg(voice)
        .args(real_time.then_some("--real-time"))
        .stdin(Stdio::null());
    Ok(command)
}

fn baresip(folder: &Path, voice: &Path, call_s: f64) -> std::io::Result<Command> {
    let modules = [
        "/usr/lib/baresip/modules",
        "/usr/lib/x86_64-linux-gnu/baresip/modules",
        "/usr/lib/aarch64-linux-gnu/baresip/modules",
    ];
    let modules = modules.into_iter().find(|path| Path::new(path).is_dir());
    // Its audio driver for files writes received audio; the sending thread has its own timer.
    let config = format!(
        "net_interface {LOOPBACK}\nsip_listen {LOOPBACK}:{PHONE_PORT}\naudio_player aufile,{0}/player.wav\n\
         audio_source aufile,{1}\naudio_alert aufile,/dev/null\nausrc_srate 8000\nauplay_srate 8000\n\
         ausrc_channels 1\nauplay_channels 1\naudio_txmode thread\nrtp_ports {PHONE_MEDIA_PORT}-{2}\n\
         module_path {3}\nmodule g711.so\nmodule aufile.so\nmodule_app account.so\nmodule_app menu.so\n",
        folder.display(),
        voice.display(),
        PHONE_MEDIA_PORT + 100,
        modules.unwrap_or("/usr/lib/baresip/modules"),
    );
    std::fs::write(folder.join("config"), config)?;
    let account = format!("<sip:baresip@{LOOPBACK}>;regint=0;audio_codecs=PCMA\n");
    std::fs::write(folder.join("accounts"), account)?;
    let mut command = Command::new("baresip");
    command
        .arg("-f")
        .arg(folder)
        .args(["-e", &format!("/dial sip:600@{LOOPBACK}:{RECEIVER_PORT}")])
        .args(["-t", &(call_s.ceil() as u64).to_string()])
        .stdin(Stdio::null());
    Ok(command)
}

fn linphone(folder: &Path) -> std::io::Result<Command> {
    for path in [".local/share/linphone", ".config/linphone"] {
        std::fs::create_dir_all(folder.join(path))?;
    }
    let settings = folder.join("linphonerc");
    let text = format!(
        "[sip]\nsip_port={PHONE_PORT}\nsip_tcp_port=0\nsip_tls_port=0\nguess_hostname=0\nuse_ipv6=0\n\
         contact=\"linphone\" <sip:linphone@{LOOPBACK}>\nregister_only_when_network_is_up=0\nmedia_encryption=none\n\
         [net]\nfirewall_policy=0\n[rtp]\naudio_rtp_port={PHONE_MEDIA_PORT}\n"
    );
    std::fs::write(&settings, text)?;
    let mut command = Command::new("linphonec");
    command
        .env("HOME", folder)
        .arg("-c")
        .arg(settings)
        .stdin(Stdio::piped());
    Ok(command)
}
