//! The thread of a phone: its host on a driver. Datagrams pass between both at one place, [`PhoneEngine`], where ESP
//! protects them.

use super::PhoneAction;
use super::esp::EspEnd;
use super::exchange::{ExchangeEnd, StartedExchange};
use super::setup::REALTIME_PRIORITY;
use super::tunnel::TunnelLink;
use crate::error::LabError;
use crate::host::{HostPlan, LabHost, PhoneOccurrence, Results};
use crate::sut::system_entropy;
use codec::Resampler;
use engine::{Entropy, EventKind};
use media::live::LiveWriter;
use net::tls::Security;
use net::{Clock, Driver, DriverConfig};
use protect::esp::{EspEndpoint, EspEndpointPlan, EspSuite};
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError};
use std::time::Duration;

/// Longest time between two looks at the commands.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Longest time for the end of a key exchange, which deletes its associations at the peer.
const EXCHANGE_END: Duration = Duration::from_secs(3);
/// Busy polling before each deadline in real-time mode: longer than a wake-up of the kernel takes, and far below the
/// share of a CPU that the kernel leaves to real-time threads (sched_rt_runtime_us).
const SPIN: Duration = Duration::from_millis(2);

/// A message from the thread.
#[derive(Debug)]
pub(super) enum PhoneMessage {
    /// Its sockets are open.
    Ready(SocketAddr),
    /// An occurrence.
    Event(PhoneOccurrence),
    /// A command was refused.
    Refused(String),
    /// A connection failed, for this reason.
    ConnectionFailed(String),
    /// Recorded audio and its rate.
    Audio(Vec<i16>, u32),
    /// It cannot work, for this reason; with the end of its ESP.
    Fatal(String, Option<Box<EspEnd>>),
    /// An association with these algorithms seals.
    Negotiated(EspSuite),
    /// A line about the key exchange.
    Note(String),
    /// There are no keys: the reason and the remedy.
    ExchangeFailed(String, String),
    /// The results, its last message.
    Finished(Box<PhoneResults>),
}

/// The results of a thread.
#[derive(Debug)]
pub(super) struct PhoneResults {
    pub(super) host: Results,
    /// Samples that the queue had no room for.
    pub(super) samples_lost: u64,
    /// Digits that were sent, of those that were accepted.
    pub(super) digits_sent: String,
    pub(super) esp: Option<EspEnd>,
}

/// A command to the thread.
#[derive(Debug)]
pub(super) enum PhoneCommand {
    /// An action in the call.
    Act(PhoneAction),
    /// Remove the registration.
    Deregister,
    /// Return the results and end.
    Finish,
}

/// The parts of a thread.
pub(super) struct PhoneThreadPlan {
    pub(super) host: HostPlan,
    pub(super) target: Option<SocketAddr>,
    pub(super) security: Option<Security>,
    pub(super) esp: Option<EspEndpointPlan>,
    /// The key exchange of its ESP.
    pub(super) exchange: Option<StartedExchange>,
    /// Interface of its sockets, for ESP below the kernel.
    pub(super) device: Option<String>,
    /// The tunnel below the kernel; nothing is sent before it has keys.
    pub(super) tunnel: Option<TunnelLink>,
    /// CPU of the real-time mode.
    pub(super) real_time: Option<usize>,
    /// Whether received audio is handed over as [`PhoneMessage::Audio`].
    pub(super) records: bool,
    /// Where received audio is played.
    pub(super) sound_out: Option<LiveWriter>,
}

/// Runs a phone until it is told to finish.
pub(super) fn run(
    plan: PhoneThreadPlan,
    commands: &Receiver<PhoneCommand>,
    messages: &SyncSender<PhoneMessage>,
) {
    if let Err((why, esp)) = serve(plan, commands, messages) {
        let _ = messages.send(PhoneMessage::Fatal(why, esp));
    }
}

fn driver(plan: &mut PhoneThreadPlan, clock: Clock) -> Result<Driver, String> {
    let mut config = DriverConfig {
        receive_timestamps: true,
        report_unreachable: true,
        device: plan.device.take(),
        ..DriverConfig::default()
    };
    if let Some(cpu) = plan.real_time {
        net::tight_timers().map_err(|error| format!("timer slack: {error}"))?;
        config.pin = Some(cpu);
        config.realtime = Some(REALTIME_PRIORITY);
        config.spin = SPIN;
    }
    let mut driver = Driver::plain(config, clock).map_err(|error| error.to_string())?;
    if let Some(security) = plan.security.take() {
        driver.set_security(security);
    }
    Ok(driver)
}

/// A phone's host, with or without ESP between it and the driver.
// There is one value per thread: boxing the larger variant would serve nothing.
#[allow(clippy::large_enum_variant)]
enum PhoneEngine {
    Clear(LabHost),
    Esp(EspEndpoint<LabHost>),
}

impl PhoneEngine {
    fn new(plan: HostPlan, esp: Option<EspEndpointPlan>, entropy: Entropy) -> PhoneEngine {
        let mut host = LabHost::new(plan, entropy);
        host.set_emits_events(false);
        match esp {
            Some(esp) => PhoneEngine::Esp(EspEndpoint::new(host, esp)),
            None => PhoneEngine::Clear(host),
        }
    }

    fn host(&mut self) -> &mut LabHost {
        match self {
            PhoneEngine::Clear(host) => host,
            PhoneEngine::Esp(endpoint) => endpoint.engine(),
        }
    }

    fn turn(&mut self, driver: &mut Driver) -> io::Result<()> {
        match self {
            PhoneEngine::Clear(host) => driver.turn_engine(host, POLL_INTERVAL)?,
            PhoneEngine::Esp(endpoint) => driver.turn_engine(endpoint, POLL_INTERVAL)?,
        };
        Ok(())
    }

    /// Lets the key exchange work; false once it has ended.
    fn exchange(
        &mut self,
        exchange: Option<&mut ExchangeEnd>,
        messages: &SyncSender<PhoneMessage>,
        clock: Clock,
    ) -> bool {
        match (self, exchange) {
            (PhoneEngine::Esp(endpoint), Some(exchange)) => {
                exchange.turn(endpoint, messages, clock.now())
            }
            _ => false,
        }
    }

    fn finish(&mut self, clock: Clock) -> PhoneResults {
        PhoneResults {
            host: self.host().finish(clock.now()),
            samples_lost: 0,
            digits_sent: String::new(),
            esp: self.esp_end(clock),
        }
    }

    /// The end of its ESP, if it has one.
    fn esp_end(&self, clock: Clock) -> Option<EspEnd> {
        match self {
            PhoneEngine::Clear(_) => None,
            PhoneEngine::Esp(endpoint) => Some(EspEnd::of(endpoint, clock.now())),
        }
    }
}

/// Why a phone cannot work, with the end of its ESP: used sequence numbers must be stored then, too.
type PhoneFailure = (String, Option<Box<EspEnd>>);

fn serve(
    mut plan: PhoneThreadPlan,
    commands: &Receiver<PhoneCommand>,
    messages: &SyncSender<PhoneMessage>,
) -> Result<(), PhoneFailure> {
    let clock = Clock::new();
    let driver = driver(&mut plan, clock);
    let entropy = system_entropy().map_err(|error: LabError| (error.to_string(), None))?;
    let mut engine = PhoneEngine::new(plan.host, plan.esp.take(), entropy);
    let done = driver.and_then(|driver| {
        let phone = PhoneLoop {
            driver,
            target: plan.target,
            exchange: plan.exchange.take().map(ExchangeEnd::new),
            tunnel: plan.tunnel.take(),
            received: ReceivedAudio {
                records: plan.records,
                sound_out: plan.sound_out.take(),
                resampler: None,
                samples: Vec::new(),
                lost: 0,
            },
            clock,
        };
        work(phone, &mut engine, commands, messages)
    });
    done.map_err(|why| (why, engine.esp_end(clock).map(Box::new)))
}

/// The parts of a phone beside its engine.
struct PhoneLoop {
    driver: Driver,
    target: Option<SocketAddr>,
    exchange: Option<ExchangeEnd>,
    tunnel: Option<TunnelLink>,
    received: ReceivedAudio,
    clock: Clock,
}

/// Works until the command to finish.
fn work(
    phone: PhoneLoop,
    engine: &mut PhoneEngine,
    commands: &Receiver<PhoneCommand>,
    messages: &SyncSender<PhoneMessage>,
) -> Result<(), String> {
    let PhoneLoop {
        mut driver,
        target,
        mut exchange,
        tunnel,
        mut received,
        clock,
    } = phone;
    let mut has_keys = tunnel.as_ref().is_none_or(|tunnel| tunnel.has_keys);
    let mut begun = false;
    let mut digits = String::new();
    loop {
        engine
            .turn(&mut driver)
            .map_err(|error| error.to_string())?;
        engine.exchange(exchange.as_mut(), messages, clock);
        while let Some(message) = tunnel
            .as_ref()
            .and_then(|tunnel| tunnel.messages.try_recv().ok())
        {
            has_keys |= matches!(message, PhoneMessage::Negotiated(_));
            // The queue has room for minutes of occurrences.
            let _ = messages.try_send(message);
        }
        let host = engine.host();
        if let Some(why) = host.fatal() {
            return Err(why.to_owned());
        }
        let ready = has_keys && host.is_ready();
        if let (false, true, Some(address)) = (begun, ready, host.address()) {
            begun = true;
            // Without a peer the phone only answers; the address is not used then.
            host.begin(target.unwrap_or(address), clock.now());
            let _ = messages.try_send(PhoneMessage::Ready(address));
        }
        report_events(&mut driver, host, messages);
        received.report(host, messages);
        loop {
            match commands.try_recv() {
                Ok(PhoneCommand::Act(action)) => {
                    let accepted = match &action {
                        PhoneAction::Digits(accepted) => accepted.clone(),
                        _ => String::new(),
                    };
                    match act(engine.host(), action, clock) {
                        Ok(()) => digits.push_str(&accepted),
                        Err(why) => drop(messages.try_send(PhoneMessage::Refused(why))),
                    }
                }
                Ok(PhoneCommand::Deregister) => engine.host().deregister(clock.now()),
                Ok(PhoneCommand::Finish) => {
                    // Outputs of the commands before it leave with a turn of the driver.
                    engine
                        .turn(&mut driver)
                        .map_err(|error| error.to_string())?;
                    let sent = usize::try_from(engine.host().digits_sent()).unwrap_or(usize::MAX);
                    let mut results = engine.finish(clock);
                    results.digits_sent = digits.chars().take(sent).collect();
                    report_events(&mut driver, engine.host(), messages);
                    received.report(engine.host(), messages);
                    results.samples_lost = received.lost;
                    if let (Some(esp), Some(exchange)) = (&mut results.esp, &exchange) {
                        esp.figures.ike_overruns = exchange.overruns();
                    }
                    // The receiver waits for this message.
                    let _ = messages.send(PhoneMessage::Finished(Box::new(results)));
                    return end_exchange(exchange, engine, (&mut driver, messages), clock);
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
    }
}

/// Ends the key exchange: its last messages are sent.
fn end_exchange(
    mut exchange: Option<ExchangeEnd>,
    engine: &mut PhoneEngine,
    (driver, messages): (&mut Driver, &SyncSender<PhoneMessage>),
    clock: Clock,
) -> Result<(), String> {
    let until = clock.now() + EXCHANGE_END;
    let mut requested = false;
    while let Some(exchange) = exchange.as_mut()
        && clock.now() < until
    {
        requested = requested || exchange.request_end();
        let goes_on = engine.exchange(Some(exchange), messages, clock);
        // The last messages are sent before the loop ends.
        engine.turn(driver).map_err(|error| error.to_string())?;
        if !goes_on {
            break;
        }
    }
    Ok(())
}

fn act(host: &mut LabHost, action: PhoneAction, clock: Clock) -> Result<(), String> {
    let now = clock.now();
    let done = match action {
        PhoneAction::Hold(hold) => host.hold(hold, now),
        PhoneAction::ToggleHold => {
            let hold = !host.is_holding();
            host.hold(hold, now)
        }
        PhoneAction::Transfer(uri) => host.transfer(&uri, now),
        PhoneAction::Digits(digits) => host.send_digits(&digits),
        PhoneAction::HangUp => {
            host.hang_up(now);
            Ok(())
        }
    };
    done.map_err(|refusal| refusal.to_string())
}

fn report_events(driver: &mut Driver, host: &mut LabHost, messages: &SyncSender<PhoneMessage>) {
    while let Some(event) = driver.next_event() {
        if let EventKind::TlsHandshakeFailed { reason, .. } = event.kind {
            let _ = messages.try_send(PhoneMessage::ConnectionFailed(format!("TLS: {reason}")));
        }
    }
    while let Some(event) = host.next_phone_event() {
        // The queue has room for minutes of occurrences; the end of a call is in the results, too.
        let _ = messages.try_send(PhoneMessage::Event(event));
    }
}

/// Received audio on its way to the sound card and to the recording.
struct ReceivedAudio {
    records: bool,
    sound_out: Option<LiveWriter>,
    resampler: Option<Resampler>,
    samples: Vec<i16>,
    /// Samples that the queue had no room for.
    lost: u64,
}

impl ReceivedAudio {
    fn report(&mut self, host: &mut LabHost, messages: &SyncSender<PhoneMessage>) {
        self.samples.clear();
        let rate = host.take_recording(&mut self.samples);
        let Some(rate) = rate.filter(|_| !self.samples.is_empty()) else {
            return;
        };
        self.play(rate);
        if self.records {
            let message = PhoneMessage::Audio(self.samples.clone(), rate);
            if let Err(TrySendError::Full(_)) = messages.try_send(message) {
                self.lost += self.samples.len() as u64;
            }
        }
    }

    fn play(&mut self, rate: u32) {
        let Some(sound) = &self.sound_out else { return };
        if self.resampler.is_none() {
            // The rates of codecs have filters to the rates of sound cards that are offered to it.
            self.resampler = Resampler::new(rate, sound.rate()).ok();
        }
        let Some(resampler) = &mut self.resampler else {
            return;
        };
        let mut converted = Vec::with_capacity(self.samples.len() * 6);
        resampler.process(&self.samples, &mut converted);
        converted.into_iter().for_each(|sample| sound.push(sample));
    }
}
