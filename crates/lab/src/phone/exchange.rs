//! A key exchange for a phone's ESP. The program has it; the phone's thread carries its messages and uses its
//! associations.

use super::thread::PhoneMessage;
use crate::error::LabError;
use engine::Time;
use protect::esp::{AddressPrefix, EspEndpoint, EspSuite, NegotiatedPair, SaError, VoiceReceiver};
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};

/// Most events that are taken between two turns of the phone.
const BATCH: usize = 64;

/// An event of a key exchange.
#[derive(Debug)]
pub enum PhoneSaEvent {
    /// A negotiated association opens from now on.
    Installed(Box<NegotiatedPair>),
    /// The association with this SPI of sent packets seals from now on, for the peer at this address; a line about it,
    /// unless it only has new keys.
    Sealing(u32, SocketAddr, Option<String>),
    /// An association was deleted: its SPIs of received and of sent packets. It opens no more if the second value is
    /// true.
    Deleted([u32; 2], bool),
    /// A message to a peer, with its marker.
    Message(Vec<u8>, SocketAddr),
    /// A line for the user.
    Note(String),
    /// There will be no association: the reason, and the remedy.
    Failed(String, String),
}

/// A key exchange that can be started.
pub trait PhoneKeyExchange: std::fmt::Debug + Send + Sync {
    /// Outer address of this end, with the port of ESP in UDP.
    fn local(&self) -> SocketAddr;

    /// Outer address of the peer; `None`: any.
    fn peer(&self) -> Option<SocketAddr>;

    /// Networks behind the peer; none: the tunnel is one between the outer addresses of both ends.
    fn remote_networks(&self) -> &[AddressPrefix];

    /// Starts it for a phone with this inner address. `initiates`: this end begins, unless its settings say otherwise.
    ///
    /// # Errors
    /// A part or a right is missing; settings are refused.
    fn start(&self, phone: IpAddr, initiates: bool) -> Result<StartedExchange, LabError>;
}

/// The way to a running key exchange.
pub trait ExchangeRequests: Send {
    /// Gives it a received message with its source; false if it has no room.
    fn received(&mut self, source: SocketAddr, message: Vec<u8>) -> bool;

    /// Requests its end: it deletes its associations at the peer. False if it has no room; then it is requested again.
    fn request_end(&mut self) -> bool;

    /// Waits for its end.
    fn join(&mut self);
}

/// A running key exchange.
pub struct StartedExchange {
    /// Its events; the sender is dropped at its end.
    pub events: Receiver<PhoneSaEvent>,
    /// Requests to it.
    pub requests: Box<dyn ExchangeRequests>,
    /// This end begins.
    pub initiates: bool,
}

/// ESP that has the keys of an exchange: inside of the phone's engine, or below the kernel.
pub(super) trait NegotiatedEsp {
    /// The next received message of the key exchange, with its marker, and its source.
    fn next_message(&mut self) -> Option<(SocketAddr, Vec<u8>)>;

    /// Whether the outer socket is open, so that messages can be sent.
    fn is_open(&self) -> bool;

    /// Takes an association, which opens at once.
    ///
    /// # Errors
    /// Its SPI is in use, or there are too many.
    fn install(&mut self, pair: NegotiatedPair, now: Time) -> Result<(), SaError>;

    /// Seals with the association of this SPI from now on, and sends to this address.
    fn seal_with(&mut self, spi: u32, peer: SocketAddr);

    /// Removes an association by its SPIs of received and of sent packets. It opens for ten more seconds; with
    /// `at_once`, no more.
    fn remove(&mut self, spis: [u32; 2], at_once: bool, now: Time);

    /// Sends a message of the key exchange, with its marker.
    fn send_message(&mut self, message: Vec<u8>, to: SocketAddr);
}

impl<E: VoiceReceiver> NegotiatedEsp for EspEndpoint<E> {
    fn next_message(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        EspEndpoint::next_message(self)
    }

    fn is_open(&self) -> bool {
        EspEndpoint::is_open(self)
    }

    fn install(&mut self, pair: NegotiatedPair, now: Time) -> Result<(), SaError> {
        EspEndpoint::install(self, pair, now)
    }

    fn seal_with(&mut self, spi: u32, peer: SocketAddr) {
        EspEndpoint::seal_with(self, spi, peer);
    }

    fn remove(&mut self, spis: [u32; 2], at_once: bool, now: Time) {
        EspEndpoint::remove(self, spis, at_once, now);
    }

    fn send_message(&mut self, message: Vec<u8>, to: SocketAddr) {
        EspEndpoint::send_message(self, message, to);
    }
}

/// A key exchange in the thread that has its ESP.
pub(super) struct ExchangeEnd {
    started: Option<StartedExchange>,
    suites: InstalledSuites,
    overruns: u64,
}

impl ExchangeEnd {
    pub(super) fn new(started: StartedExchange) -> ExchangeEnd {
        ExchangeEnd {
            started: Some(started),
            suites: InstalledSuites::default(),
            overruns: 0,
        }
    }

    /// Received messages that it had no room for.
    pub(super) fn overruns(&self) -> u64 {
        self.overruns
    }

    /// Passes messages in both directions, and gives associations to ESP. False once the key exchange has ended.
    pub(super) fn turn(
        &mut self,
        esp: &mut dyn NegotiatedEsp,
        messages: &SyncSender<PhoneMessage>,
        now: Time,
    ) -> bool {
        let Some(started) = &mut self.started else {
            return false;
        };
        while let Some((source, message)) = esp.next_message() {
            self.overruns += u64::from(!started.requests.received(source, message));
        }
        // Messages before the socket is open would be lost.
        if !esp.is_open() {
            return true;
        }
        for _ in 0..BATCH {
            match started.events.try_recv() {
                Ok(event) => self.suites.take(event, esp, (messages, now)),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        true
    }

    /// Requests its end; false if that must be repeated.
    pub(super) fn request_end(&mut self) -> bool {
        let started = self.started.as_mut();
        started.is_none_or(|started| started.requests.request_end())
    }
}

impl Drop for ExchangeEnd {
    fn drop(&mut self) {
        let Some(StartedExchange {
            events,
            mut requests,
            ..
        }) = self.started.take()
        else {
            return;
        };
        // It does not wait for a reader of its events any more.
        drop(events);
        requests.request_end();
        requests.join();
    }
}

/// Algorithms of associations.
#[derive(Debug, Default)]
struct InstalledSuites {
    /// Those that are installed, by SPI of sent packets.
    installed: Vec<(u32, EspSuite)>,
    /// Weak ones, each told once.
    weak: Vec<EspSuite>,
}

impl InstalledSuites {
    /// Uses an event.
    fn take(
        &mut self,
        event: PhoneSaEvent,
        esp: &mut dyn NegotiatedEsp,
        (messages, now): (&SyncSender<PhoneMessage>, Time),
    ) {
        // The queue has room for minutes of occurrences.
        let tell = |message| drop(messages.try_send(message));
        match event {
            PhoneSaEvent::Installed(pair) => {
                let spec = pair.outbound.spec();
                let known = (spec.spi, spec.suite);
                if known.1.is_weak() && !self.weak.contains(&known.1) {
                    self.weak.push(known.1);
                    tell(PhoneMessage::Note(format!(
                        "warning: {} is weak (RFC 8221), and allowed by allow_weak",
                        known.1
                    )));
                }
                match esp.install(*pair, now) {
                    Ok(()) => self.installed.push(known),
                    // The daemon chooses SPIs that are not in use.
                    Err(error) => tell(PhoneMessage::Note(format!("IKEv2: {error}"))),
                }
            }
            PhoneSaEvent::Sealing(spi, peer, note) => {
                esp.seal_with(spi, peer);
                let mut installed = self.installed.iter();
                if let Some((_, suite)) = installed.find(|(known, _)| *known == spi) {
                    tell(PhoneMessage::Negotiated(*suite));
                }
                if let Some(note) = note {
                    tell(PhoneMessage::Note(note));
                }
            }
            PhoneSaEvent::Deleted(spis, at_once) => {
                self.installed.retain(|(known, _)| *known != spis[1]);
                esp.remove(spis, at_once, now);
            }
            PhoneSaEvent::Message(message, to) => esp.send_message(message, to),
            PhoneSaEvent::Note(note) => tell(PhoneMessage::Note(note)),
            PhoneSaEvent::Failed(why, remedy) => tell(PhoneMessage::ExchangeFailed(why, remedy)),
        }
    }
}
