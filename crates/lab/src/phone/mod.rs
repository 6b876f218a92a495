//! The softphone: one call or registration from the command line, made of a host of the test lab
//! ([`crate::host::LabHost`]) on a driver of its own thread.
//!
//! The calling thread prints, reads commands and writes the recording, so that nothing of it can delay a packet.

mod control;
mod esp;
mod exchange;
mod json_file;
mod recording;
mod report;
mod sequence_file;
mod setup;
mod thread;
mod tunnel;

pub use control::run;
pub use esp::{EspFigures, EspReport, PhoneEspKeys, PhoneEspOptions};
pub use exchange::{ExchangeRequests, PhoneKeyExchange, PhoneSaEvent, StartedExchange};
pub use report::{PhoneReport, PhoneTransfer, Spread};
pub use setup::PhoneAccount;
pub(crate) use setup::{REALTIME_PRIORITY, voice_call};

use crate::host::SrtpUse;
use crate::tls::TlsSettings;
use codec::Format;
use engine::Transport;
use media::live::{LiveReader, LiveWriter};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The task of a phone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PhoneTask {
    /// Registers until its time is over.
    Register,
    /// Calls this URI.
    Call(String),
    /// Answers one call.
    Answer,
}

/// Options of a phone.
#[derive(Clone, Debug)]
pub struct PhoneOptions {
    /// The task.
    pub task: PhoneTask,
    /// User, password and registration.
    pub account: Option<PhoneAccount>,
    /// Transport of SIP; `None`: that of the URI, or UDP.
    pub transport: Option<Transport>,
    /// Next hop in place of the host of the URI: `host[:port]`.
    pub proxy: Option<String>,
    /// Local address: `address[:port]`.
    pub local: Option<String>,
    /// ESP around SIP and media.
    pub esp: Option<PhoneEspOptions>,
    /// Certificates and trust for TLS.
    pub tls: TlsSettings,
    /// Codecs in order of preference.
    pub codecs: Vec<Format>,
    /// Media security.
    pub srtp: SrtpUse,
    /// WAV file to send.
    pub wav_in: Option<PathBuf>,
    /// The file is repeated.
    pub repeats: bool,
    /// WAV file for received audio.
    pub wav_out: Option<PathBuf>,
    /// WAV file that the peer plays: the recording is compared with it.
    pub speech_reference: Option<PathBuf>,
    /// Samples of a microphone, sent in place of `wav_in`.
    pub sound_in: Option<LiveReader>,
    /// Where received audio is played.
    pub sound_out: Option<LiveWriter>,
    /// Longest playout delay of the jitter buffer.
    pub max_playout_delay: Duration,
    /// Duration of the call from its answer, or of the registration.
    pub limit: Option<Duration>,
    /// Longest ringing, or the longest wait for a call.
    pub ring_limit: Option<Duration>,
    /// Time from an incoming INVITE to its answer.
    pub answer_after: Duration,
    /// Actions at times after the answer.
    pub actions: Vec<(Duration, PhoneAction)>,
    /// Commands are read from standard input.
    pub reads_commands: bool,
    /// The statistics as JSON (`-`: standard output).
    pub json: Option<PathBuf>,
    /// Lowest acceptable MOS.
    pub min_mos: Option<f64>,
    /// Pinned, SCHED_FIFO, busy polling before deadlines, locked memory.
    pub real_time: bool,
}

/// An action in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PhoneAction {
    /// Hold (`true`) or resume.
    Hold(bool),
    /// Hold or resume, whichever changes the state.
    ToggleHold,
    /// Transfer to this URI.
    Transfer(String),
    /// Send digits.
    Digits(String),
    /// End the call.
    HangUp,
}

impl PhoneAction {
    /// The action of a line: `h` hold or resume, `t URI` transfer, `q` end, digits.
    ///
    /// # Errors
    /// The line is none of these.
    pub fn parse(line: &str) -> Result<PhoneAction, String> {
        let line = line.trim();
        let is_digit = |digit: char| "0123456789*#ABCD".contains(digit);
        match line.split_once(' ') {
            Some(("t", uri)) => Ok(PhoneAction::Transfer(uri.trim().to_owned())),
            None if line == "h" => Ok(PhoneAction::ToggleHold),
            None if line == "q" => Ok(PhoneAction::HangUp),
            None if !line.is_empty() && line.chars().all(is_digit) => {
                Ok(PhoneAction::Digits(line.to_owned()))
            }
            _ => Err(format!(
                "{line:?} is no command: h (hold, resume), t URI (transfer), digits, q (hang up)"
            )),
        }
    }
}

/// The peer of a phone: next hop and names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PhonePeer {
    /// Address of the next hop.
    address: SocketAddr,
    /// Name that its certificate must contain.
    name: String,
    /// Host part of URIs, with the port if it was given.
    domain: String,
    /// Dialled user; empty for a URI without one.
    user: String,
    transport: Transport,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_parsed() {
        let digits = PhoneAction::Digits("12#".to_owned());
        assert_eq!(PhoneAction::parse("12#\n"), Ok(digits));
        assert_eq!(PhoneAction::parse(" h"), Ok(PhoneAction::ToggleHold));
        let transfer = PhoneAction::Transfer("sip:7@a".to_owned());
        assert_eq!(PhoneAction::parse("t sip:7@a"), Ok(transfer));
        for line in ["", "t", "x", "12x", "h 1"] {
            assert!(PhoneAction::parse(line).is_err(), "{line}");
        }
    }
}
