//! The calling thread of a phone: prints occurrences, executes planned actions and commands, writes the recording and
//! the statistics.

use super::esp::{self, EspEnd};
use super::json_file::JsonFile;
use super::recording::WavRecording;
use super::report::{PhoneReport, PhoneTransfer};
use super::sequence_file::SequenceFile;
use super::thread::{self, PhoneCommand, PhoneMessage, PhoneResults, PhoneThreadPlan};
use super::tunnel::PhoneTunnel;
use super::{PhoneAction, PhoneOptions, PhonePeer, PhoneTask, setup};
use crate::error::{LabError, RunVerdict};
use crate::host::PhoneOccurrence;
use crate::link;
use crate::record::{AttemptKind, AttemptOutcome};
use engine::Time;
use engine::Transport;
use net::Clock;
use std::io::BufRead as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// Messages between the threads: minutes of occurrences, or seconds of audio.
const QUEUE: usize = 2_048;
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Longest wait for the answer to BYE, CANCEL or the removal of a registration.
const LAST_ANSWER: Duration = Duration::from_secs(2);
/// Wait after the refusal of an incoming call: without an ACK the response is sent again after T1, 500 ms (RFC 3261
/// section 17.2.1).
const REFUSAL: Duration = Duration::from_millis(600);
/// Beginning of the reason of a call without an answer.
const NO_RESPONSE: &str = "no response from ";
/// Time for the answer to the CANCEL after --ring-seconds; the peer has sent 100 at most until then.
const CANCELLED: Duration = Duration::from_secs(1);
/// Longest wait for the thread's results.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs a phone.
///
/// # Errors
/// [`LabError`] if an option is invalid, if the machine cannot run it, or if it was interrupted.
pub fn run(options: &PhoneOptions) -> Result<RunVerdict, LabError> {
    let real_time = match options.real_time {
        true => Some(setup::check_real_time()?),
        false => None,
    };
    let actions = setup::actions(options)?;
    let peer = setup::peer(options)?;
    let host = setup::plan(options, peer.as_ref())?;
    let transport = host.stream.unwrap_or(Transport::Udp);
    let listening = [(host.address, false)];
    let security = match transport {
        Transport::Tls if host.listens => Some(options.tls.security(&listening)?),
        Transport::Tls => Some(options.tls.security(&[])?),
        _ => None,
    };
    let prepared = options.esp.as_ref().map(|esp| {
        let callee = peer.as_ref().map(|peer| peer.address);
        esp::prepare(options, esp, (host.address, host.stream.is_some()), callee)
    });
    let (mut esp_plan, mut esp_report, mut numbers) = (None, None, None);
    let mut exchange = None;
    let mut tunnel_plan = None;
    if let Some(prepared) = prepared.transpose()? {
        for warning in &prepared.warnings {
            eprintln!("{warning}");
        }
        match prepared.networks {
            Some(networks) => {
                tunnel_plan = Some((prepared.plan, networks, prepared.exchange));
            }
            None => {
                esp_plan = Some(prepared.plan);
                exchange = prepared.exchange;
            }
        }
        esp_report = Some(prepared.report);
        numbers = prepared.numbers;
    }
    let recording = options
        .wav_out
        .as_deref()
        .map(WavRecording::create)
        .transpose()?;
    // A reference that cannot be read is refused before the call, not after it.
    if let Some(reference) = &options.speech_reference {
        crate::speech::read(reference)?;
    }
    let json = options.json.as_deref().map(JsonFile::create).transpose()?;
    net::Signals::install()
        .map_err(|error| LabError::cannot_run(format!("signals: {error}"), ""))?;
    // The phone's address exists from here on.
    let mut tunnel = tunnel_plan
        .map(|(plan, networks, exchange)| {
            PhoneTunnel::start(plan, host.address.ip(), networks, exchange)
        })
        .transpose()?;
    // Before a tunnel or the phone's thread has begun nothing is sealed, and an error returns the numbers.
    if let (Some(_), Some(numbers)) = (&tunnel, &mut numbers) {
        numbers.begin();
    }
    let (commands, inbox) = mpsc::channel();
    let (sender, messages) = mpsc::sync_channel(QUEUE);
    let registers = host.registrations.is_some();
    let plan = PhoneThreadPlan {
        host,
        target: peer.as_ref().map(|peer| peer.address),
        security,
        esp: esp_plan,
        exchange,
        device: tunnel.as_ref().map(|tunnel| tunnel.device().to_owned()),
        tunnel: tunnel.as_mut().and_then(PhoneTunnel::take_link),
        real_time,
        records: options.wav_out.is_some(),
        sound_out: options.sound_out.clone(),
    };
    let thread = std::thread::Builder::new()
        .name("phone".to_owned())
        .spawn(move || thread::run(plan, &inbox, &sender))
        .map_err(|error| LabError::cannot_run(format!("thread: {error}"), ""))?;
    if let Some(numbers) = &mut numbers {
        numbers.begin();
    }
    let mut control = PhoneControl {
        options,
        peer,
        commands,
        recording,
        stage: PhoneStage::Starting,
        clock: Clock::new(),
        // Registration and calls share the standard output with JSON if it is written there.
        quiet: options.json.as_deref() == Some(Path::new("-")),
        actions,
        rings: false,
        progressed: false,
        begun: Time::ZERO,
        ready_after: Duration::ZERO,
        established_at: None,
        report: PhoneReport {
            transport: transport.uri_name().to_uppercase(),
            esp: esp_report,
            ..PhoneReport::default()
        },
        esp_end: None,
        registered: false,
        registers,
        call: None,
        connection_failure: None,
        interrupted: false,
    };
    control.say_exchange();
    control.actions.sort_by_key(|(at, _)| *at);
    let typed = options.reads_commands.then(read_commands);
    control.note_plans();
    let mut result = control.work(&messages, typed.as_ref());
    match &mut result {
        Ok(results) => control.esp_end = results.esp.take().map(Box::new),
        // Without numbers to be stored, and with a tunnel, whose thread ends below, there is nothing to wait for.
        Err(_) if numbers.is_some() && tunnel.is_none() => control.await_esp_end(&messages),
        Err(_) => {}
    }
    drop(messages);
    if let Some(tunnel) = tunnel {
        let (end, ended) = tunnel.end();
        control.esp_end = end.map(Box::new);
        result = result.and_then(|results| ended.map(|()| results));
    }
    let stored = store(numbers, control.esp_end.as_deref());
    let result = match (result, stored) {
        (Err(error), Err(unstored)) => {
            eprintln!("{unstored}");
            Err(error)
        }
        (Ok(_), Err(error)) => Err(error),
        (result, Ok(())) => result,
    };
    // Without a receiver of its commands' sender the thread ends by itself.
    let ended = control.end(result, json);
    let _ = thread.join();
    ended
}

/// Stores the sequence numbers at the end.
fn store(numbers: Option<SequenceFile>, end: Option<&EspEnd>) -> Result<(), LabError> {
    let states = end.and_then(|end| end.states.as_ref());
    match (numbers, states) {
        (Some(mut numbers), Some((outbound, inbound))) => numbers.write(outbound, inbound),
        // All reserved numbers count as used.
        _ => Ok(()),
    }
}

/// Reads commands from standard input on a thread of its own, which ends with the process.
fn read_commands() -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum PhoneStage {
    Starting,
    /// Calls, waits for a call, or is registered.
    Working,
    /// The call or the registration is being ended until this time at the latest.
    Ending(Time),
    /// The task is over.
    Over,
}

struct PhoneControl<'o> {
    options: &'o PhoneOptions,
    peer: Option<PhonePeer>,
    commands: Sender<PhoneCommand>,
    recording: Option<WavRecording>,
    stage: PhoneStage,
    clock: Clock,
    quiet: bool,
    actions: Vec<(Duration, PhoneAction)>,
    /// An incoming call is neither answered nor refused.
    rings: bool,
    /// The called end has sent a response.
    progressed: bool,
    begun: Time,
    /// Time from the beginning until the sockets were open.
    ready_after: Duration,
    established_at: Option<Time>,
    report: PhoneReport,
    /// The end of ESP.
    esp_end: Option<Box<EspEnd>>,
    registered: bool,
    /// The first registration has no answer yet.
    registers: bool,
    /// The call that was offered or established.
    call: Option<u64>,
    connection_failure: Option<String>,
    interrupted: bool,
}

impl PhoneControl<'_> {
    fn say(&self, text: &str) {
        if !self.quiet {
            crate::output::print(&format!("{text}\n"));
        }
    }

    /// Notes the planned digits and the planned transfer: the report says if they were not sent.
    fn note_plans(&mut self) {
        for (_, action) in self.actions.clone() {
            self.note(&action);
        }
    }

    fn note(&mut self, action: &PhoneAction) {
        match action {
            PhoneAction::Digits(digits) => self.report.digits_sent[0].push_str(digits),
            PhoneAction::Transfer(to) => {
                self.report.transfer = Some(PhoneTransfer {
                    to: to.clone(),
                    status: None,
                });
            }
            PhoneAction::Hold(_) | PhoneAction::ToggleHold | PhoneAction::HangUp => {}
        }
    }

    fn send(&self, command: PhoneCommand) -> Result<(), LabError> {
        self.commands
            .send(command)
            .map_err(|_| LabError::cannot_run("the phone's thread has stopped", ""))
    }

    /// Works until the task is over, and returns the results.
    fn work(
        &mut self,
        messages: &Receiver<PhoneMessage>,
        typed: Option<&Receiver<String>>,
    ) -> Result<Box<PhoneResults>, LabError> {
        self.begun = self.clock.now();
        let begun = self.begun;
        while self.stage != PhoneStage::Over {
            match messages.recv_timeout(POLL_INTERVAL) {
                Ok(message) => self.message(message)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(LabError::cannot_run("the phone's thread has stopped", ""));
                }
            }
            self.act(typed)?;
            self.watch_time(begun)?;
        }
        self.send(PhoneCommand::Finish)?;
        loop {
            match messages.recv_timeout(FINISH_TIMEOUT) {
                Ok(PhoneMessage::Finished(results)) => return Ok(results),
                Ok(message) => self.message(message)?,
                Err(_) => return Err(LabError::cannot_run("the phone's thread has stopped", "")),
            }
        }
    }

    /// Waits for the end of ESP after an error; a thread that has ended by itself has reported it.
    fn await_esp_end(&mut self, messages: &Receiver<PhoneMessage>) {
        // A thread that has ended has left its last message.
        let _ = self.send(PhoneCommand::Finish);
        while self.esp_end.is_none() {
            match messages.recv_timeout(FINISH_TIMEOUT) {
                Ok(PhoneMessage::Finished(results)) => {
                    self.esp_end = results.esp.map(Box::new);
                    return;
                }
                Ok(PhoneMessage::Fatal(_, end)) => self.esp_end = end,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// Executes planned actions and typed commands.
    fn act(&mut self, typed: Option<&Receiver<String>>) -> Result<(), LabError> {
        while let Some(line) = typed.and_then(|lines| lines.try_recv().ok()) {
            match PhoneAction::parse(&line) {
                Ok(PhoneAction::HangUp) => self.stop()?,
                Ok(action) => match setup::checked(action) {
                    Ok(action) => {
                        self.note(&action);
                        self.send(PhoneCommand::Act(action))?;
                    }
                    Err(error) => self.say(&error.to_string()),
                },
                Err(error) => self.say(&error),
            }
        }
        let Some(established) = self.established_at else {
            return Ok(());
        };
        let now = self.clock.now();
        while self
            .actions
            .first()
            .is_some_and(|(at, _)| now.since(established) >= *at)
        {
            let (_, action) = self.actions.remove(0);
            self.send(PhoneCommand::Act(action))?;
        }
        Ok(())
    }

    fn watch_time(&mut self, begun: Time) -> Result<(), LabError> {
        if net::stops() > u32::from(self.interrupted) {
            if self.interrupted {
                self.stage = PhoneStage::Over;
            }
            self.interrupted = true;
            self.stop()?;
        }
        if let PhoneStage::Ending(limit) = self.stage
            && self.clock.now() >= limit
        {
            self.leave()?;
        }
        let now = self.clock.now();
        let passed = |limit: Option<Duration>| limit.is_some_and(|limit| now.since(begun) >= limit);
        // A phone that waits for the key exchange of its peer waits for a call.
        let negotiates = self.stage == PhoneStage::Starting && self.exchanges();
        if self.stage != PhoneStage::Working && !negotiates {
            return Ok(());
        }
        let waits = self.options.task == PhoneTask::Answer && self.established_at.is_none();
        if waits && passed(self.options.ring_limit) {
            "no call within the time of --wait".clone_into(&mut self.report.reason);
            self.stop()?;
        } else if matches!(self.options.task, PhoneTask::Call(_))
            && !self.progressed
            && self.stage == PhoneStage::Working
            && passed(
                self.options
                    .ring_limit
                    .map(|limit| limit + self.ready_after + CANCELLED),
            )
        {
            // Without a response there is nothing to cancel yet (RFC 3261 section 9.1).
            let peer = self.peer.as_ref().map(|peer| peer.address.to_string());
            self.report.reason = format!(
                "{NO_RESPONSE}{} in the time of --ring-seconds",
                peer.unwrap_or_default()
            );
            self.stop()?;
            self.stage = PhoneStage::Ending(now);
        } else if self.options.task == PhoneTask::Register && passed(self.options.limit) {
            self.stop()?;
        }
        Ok(())
    }

    /// Ends the call, then the registration.
    fn stop(&mut self) -> Result<(), LabError> {
        if let PhoneStage::Ending(_) | PhoneStage::Over = self.stage {
            return Ok(());
        }
        self.send(PhoneCommand::Act(PhoneAction::HangUp))?;
        let calls =
            matches!(self.options.task, PhoneTask::Call(_)) || self.established_at.is_some();
        let wait = match (calls, self.rings) {
            (true, _) => LAST_ANSWER,
            (false, true) => REFUSAL,
            (false, false) => return self.leave(),
        };
        self.stage = PhoneStage::Ending(self.clock.now() + wait);
        Ok(())
    }

    /// The call is over, or there was none: removes the registration.
    fn leave(&mut self) -> Result<(), LabError> {
        // A registration that is under way is removed once it is answered.
        let begun = self.ready_after > Duration::ZERO;
        let under_way = std::mem::take(&mut self.registers) && begun;
        if !(std::mem::take(&mut self.registered) || under_way) {
            self.stage = PhoneStage::Over;
            return Ok(());
        }
        self.stage = PhoneStage::Ending(self.clock.now() + LAST_ANSWER);
        self.send(PhoneCommand::Deregister)
    }

    fn message(&mut self, message: PhoneMessage) -> Result<(), LabError> {
        match message {
            PhoneMessage::Ready(address) => {
                self.stage = PhoneStage::Working;
                self.ready_after = self.clock.now().since(self.begun);
                self.say_ready(address);
            }
            PhoneMessage::Event(event) => self.event(event)?,
            PhoneMessage::Refused(why) => self.say(&format!("refused: {why}")),
            PhoneMessage::ConnectionFailed(why) => {
                self.say(&why);
                self.connection_failure = Some(why);
            }
            PhoneMessage::Audio(samples, rate) => {
                if let Some(recording) = &mut self.recording {
                    recording.append(&samples, rate)?;
                }
            }
            PhoneMessage::Fatal(why, end) => {
                self.esp_end = end;
                let remedy = match self.options.esp {
                    Some(_) => {
                        "compare --esp-local, --esp-peer, --esp-over and --esp-shortcut of both ends"
                    }
                    None => "name a free address of this machine with --local ADDRESS:PORT",
                };
                return Err(LabError::cannot_run(why, remedy));
            }
            PhoneMessage::Negotiated(suite) => {
                if let Some(esp) = &mut self.report.esp {
                    esp.suite = Some(suite);
                }
            }
            PhoneMessage::Note(note) => self.say(&note),
            PhoneMessage::ExchangeFailed(why, remedy) => {
                return Err(LabError::cannot_run(why, &remedy));
            }
            PhoneMessage::Finished(..) => {}
        }
        Ok(())
    }

    /// Whether its keys are those of a key exchange.
    fn exchanges(&self) -> bool {
        self.report.esp.as_ref().is_some_and(|esp| esp.exchanges)
    }

    fn say_exchange(&self) {
        let Some(esp) = self.report.esp.as_ref().filter(|esp| esp.exchanges) else {
            return;
        };
        match esp.initiates {
            true => self.say(&format!("IKEv2 with {}: negotiating", esp.peer.ip())),
            false => self.say(&format!("IKEv2 at {}: waiting for the peer", esp.local)),
        }
    }

    fn say_ready(&self, address: SocketAddr) {
        let transport = &self.report.transport;
        if let Some(esp) = self.report.esp.as_ref().filter(|esp| !esp.exchanges) {
            let (mode, carrier) = (esp.mode(), esp.carrier.name());
            self.say(&format!(
                "ESP in {mode} mode over {carrier}, {} to {}",
                esp.local.ip(),
                esp.peer.ip()
            ));
        }
        match (&self.options.task, &self.peer) {
            (PhoneTask::Call(uri), Some(peer)) => {
                self.say(&format!(
                    "calling {uri} at {} over {transport}",
                    peer.address
                ));
            }
            (PhoneTask::Answer, None) => {
                self.say(&format!("waiting for a call at {address} over {transport}"));
            }
            (_, Some(peer)) => {
                self.say(&format!("registering at {} over {transport}", peer.address));
            }
            _ => {}
        }
    }

    fn event(&mut self, event: PhoneOccurrence) -> Result<(), LabError> {
        match event {
            PhoneOccurrence::Progress { status } => {
                self.progressed = true;
                self.say(&format!("progress: {status}"));
            }
            PhoneOccurrence::Incoming { call, from } => {
                self.rings = true;
                self.call = Some(call);
                self.say(&format!("call from {from:?}"));
            }
            PhoneOccurrence::Established {
                call,
                format,
                suite,
            } => {
                (self.rings, self.progressed) = (false, true);
                self.call = Some(call);
                self.report.established = true;
                // Those of an earlier call, which was not established.
                self.report.reason.clear();
                self.report.status = 0;
                self.report.codec = format.map(|format| format.kind().name().to_owned());
                self.report.suite = suite;
                self.established_at = Some(self.clock.now());
                let codec = self.report.codec.as_deref().unwrap_or("no common codec");
                self.say(&format!(
                    "established: {codec}, {}",
                    self.report.protection()
                ));
            }
            PhoneOccurrence::Digit(digit) => {
                self.report.digits.push(digit);
                self.say(&format!("digit: {digit}"));
            }
            PhoneOccurrence::PeerHold(true) => self.say("the peer has put the call on hold"),
            PhoneOccurrence::PeerHold(false) => self.say("the peer has resumed the call"),
            PhoneOccurrence::HoldAnswered { hold, status } => {
                let what = if hold { "hold" } else { "resume" };
                self.say(&format!("{what}: {status}"));
            }
            PhoneOccurrence::Transfer { status, reported } => self.transfer(status, reported)?,
            PhoneOccurrence::Ended { call, status, .. }
                if self.call.is_some_and(|own| own != call) =>
            {
                self.say(&format!("another call was refused with {status}"));
            }
            PhoneOccurrence::Ended {
                outcome,
                status,
                reason,
                ..
            } => {
                self.call = None;
                self.call_ended(outcome, status, &reason)?;
            }
            PhoneOccurrence::Registration {
                removal,
                status,
                expires_s,
                reason,
            } => self.registration((removal, status), expires_s, &reason),
            PhoneOccurrence::RegistrationLost { retry_after } => {
                let seconds = retry_after.as_secs();
                self.say(&format!(
                    "the connection to the registrar has failed: registering again in {seconds} s"
                ));
            }
        }
        Ok(())
    }

    /// The transferor hangs up once the new call is answered (RFC 5589 section 6.1).
    fn transfer(&mut self, status: u16, reported: bool) -> Result<(), LabError> {
        if let Some(transfer) = &mut self.report.transfer {
            transfer.status = Some(status);
        }
        match (reported, status) {
            (false, 200..300) => self.say("transfer: accepted"),
            (false, _) => self.say(&format!("transfer: refused with {status}")),
            (true, 200..300) => {
                self.say(&format!("transfer: answered with {status}"));
                "transferred".clone_into(&mut self.report.reason);
                self.stop()?;
            }
            (true, _) => self.say(&format!("transfer: {status}")),
        }
        Ok(())
    }

    fn call_ended(
        &mut self,
        outcome: AttemptOutcome,
        status: u16,
        reason: &str,
    ) -> Result<(), LabError> {
        let established = self.established_at.is_some();
        self.rings = false;
        let text = match self.stage {
            // The phone has given up, and its reason stands.
            PhoneStage::Over if !self.report.reason.is_empty() => self.report.reason.clone(),
            _ => self.reason(outcome, status, reason),
        };
        if self.report.reason.is_empty() || !established {
            self.report.reason.clone_from(&text);
            self.report.status = if established { 0 } else { status };
        }
        self.say(&format!("ended: {text}"));
        // An incoming call that was not established leaves the phone waiting.
        if established || matches!(self.options.task, PhoneTask::Call(_)) {
            self.leave()?;
        }
        Ok(())
    }

    fn reason(&self, outcome: AttemptOutcome, status: u16, reason: &str) -> String {
        let address = self.peer.as_ref().map(|peer| peer.address.to_string());
        let address = address.unwrap_or_default();
        match (outcome, status) {
            (AttemptOutcome::NoMedia, _) if reason.is_empty() => {
                "ended by this phone; no audio was received".to_owned()
            }
            (AttemptOutcome::NoMedia, _) => format!("{reason}; no audio was received"),
            (AttemptOutcome::Completed, _) if reason.is_empty() => "ended by this phone".to_owned(),
            (AttemptOutcome::Completed, _) => reason.to_owned(),
            (AttemptOutcome::Refused, 401 | 407) => format!(
                "{status} {reason}: the user name or the password is wrong, or none was given (--user, --password-file)"
            ),
            (AttemptOutcome::Refused, 1..) => format!("{status} {reason}").trim().to_owned(),
            (AttemptOutcome::Refused, 0) => match &self.connection_failure {
                Some(failure) => format!("no connection to {address}: {failure}"),
                None => format!(
                    "{address} is unreachable over {}: nothing listens there, or there is no route",
                    self.report.transport
                ),
            },
            (AttemptOutcome::TimedOut, _) if reason.starts_with("ringing") => {
                "no answer in the time of --ring-seconds".to_owned()
            }
            (AttemptOutcome::TimedOut, _) => {
                format!("{NO_RESPONSE}{address}: {}", outcome.description())
            }
            // The end of the phone did not wait for the peer.
            (AttemptOutcome::Unfinished, _) if self.established_at.is_some() => {
                "ended by this phone; the other side did not confirm it".to_owned()
            }
            (AttemptOutcome::Unfinished, _) if self.progressed => {
                "ended by this phone before an answer".to_owned()
            }
            (AttemptOutcome::Unfinished, _) => match self.options.task {
                PhoneTask::Call(_) => format!("{NO_RESPONSE}{address}"),
                _ => "ended by this phone before an answer".to_owned(),
            },
            _ if reason.is_empty() => outcome.description().to_owned(),
            _ => format!("{}: {reason}", outcome.description()),
        }
    }

    /// The answer to a registration, refresh or removal.
    fn registration(&mut self, (removal, status): (bool, u16), expires_s: u32, reason: &str) {
        let is_ending = matches!(self.stage, PhoneStage::Ending(_));
        self.registers = false;
        match status {
            200..300 if removal => {
                self.say("registration removed");
                self.stage = PhoneStage::Over;
            }
            // The removal follows.
            200..300 if is_ending => {}
            200..300 => {
                let again = std::mem::replace(&mut self.registered, true);
                let what = if again {
                    "registration refreshed"
                } else {
                    "registered"
                };
                self.say(&format!("{what} for {expires_s} s"));
                if self.options.task == PhoneTask::Register {
                    self.report.established = true;
                }
            }
            _ => {
                let outcome = match status {
                    0 if reason.is_empty() && self.connection_failure.is_none() => {
                        AttemptOutcome::TimedOut
                    }
                    _ => AttemptOutcome::Refused,
                };
                let text = self.reason(outcome, status, reason);
                self.say(&format!("registration failed: {text}"));
                self.registered = false;
                if is_ending {
                    self.stage = PhoneStage::Over;
                    return;
                }
                self.report.reason = format!("registration failed: {text}");
                self.report.status = status;
                // A call that is up goes on without the registration.
                if self.established_at.is_none() {
                    self.report.established = false;
                    self.stage = PhoneStage::Over;
                }
            }
        }
    }

    /// Compares the finished recording with the file that the peer has played.
    fn compare_speech(&mut self) {
        let files = self
            .options
            .speech_reference
            .as_ref()
            .zip(self.options.wav_out.as_ref());
        let Some((reference, recording)) = files.filter(|_| self.report.established) else {
            return;
        };
        let compared = crate::speech::compare_call(reference, recording);
        self.report.speech = Some(compared.map_err(|error| error.to_string()));
    }

    /// Writes statistics and recording, and judges.
    fn end(
        mut self,
        result: Result<Box<PhoneResults>, LabError>,
        json: Option<JsonFile>,
    ) -> Result<RunVerdict, LabError> {
        let recorded = self.recording.take().map_or(Ok(()), WavRecording::finish);
        let results = *result?;
        self.report.recording_lost = results.samples_lost;
        self.report.digits_sent[1].clone_from(&results.digits_sent);
        let sound_in = self.options.sound_in.as_ref();
        self.report.sound_in = sound_in.map(|sound| (sound.rate(), sound.figures()));
        let sound_out = self.options.sound_out.as_ref();
        self.report.sound_out = sound_out.map(|sound| (sound.rate(), sound.figures()));
        if let (Some(report), Some(end)) = (&mut self.report.esp, self.esp_end.take()) {
            report.figures = end.figures;
            if self.report.reason.starts_with(NO_RESPONSE)
                && let Some(hint) = report.unanswered_hint()
            {
                self.report.reason.push_str(hint);
            }
        }
        let mut results = results.host;
        recorded?;
        let attempts = results.attempts.iter();
        let attempt = attempts
            .filter(|attempt| matches!(attempt.kind, AttemptKind::Call | AttemptKind::Answer))
            .rfind(|attempt| attempt.established.is_some());
        let streams = link::complete(std::mem::take(&mut results.streams));
        self.report.add(attempt, streams.last());
        self.compare_speech();
        if self.interrupted && self.report.reason.is_empty() {
            "interrupted".clone_into(&mut self.report.reason);
        }
        if !self.quiet {
            crate::output::print(&self.report.text(self.options));
        }
        json.map_or(Ok(()), |json| json.write(&self.report.to_json()))?;
        if self.interrupted {
            return Err(LabError::Interrupted("interrupted".to_owned()));
        }
        let transfer = self.report.transfer.as_ref();
        let transferred = transfer.is_none_or(PhoneTransfer::succeeded);
        if !self.report.established || !transferred {
            return Ok(RunVerdict::Failed);
        }
        match (self.options.min_mos, self.report.mos) {
            (None, _) => Ok(RunVerdict::Passed),
            (Some(least), Some(mos)) if mos >= least => Ok(RunVerdict::Passed),
            (Some(least), mos) => {
                let mos = mos.map_or("not measured".to_owned(), |mos| format!("{mos:.2}"));
                self.say(&format!("MOS {mos} is below --min-mos {least}"));
                Ok(RunVerdict::Failed)
            }
        }
    }
}
