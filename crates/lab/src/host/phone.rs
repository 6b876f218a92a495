//! Softphone functions of a host: audio of a file, a choice of codecs, SRTP in both roles, digits, hold, transfer.
//!
//! A phone is a host with one call at a time. Commands take effect at once; their outputs leave with the next turn of
//! the driver. Its reports are [`PhoneOccurrence`]s.

use crate::record::AttemptOutcome;
use codec::Format;
use media::dtmf::DtmfError;
use media::live::LiveReader;
use std::time::Duration;

/// Softphone functions of a host.
#[derive(Clone, Debug)]
pub struct PhonePlan {
    /// Codecs of offers in order of preference; an answer follows the order of its offer.
    pub codecs: Vec<Format>,
    /// Media security.
    pub srtp: SrtpUse,
    /// Audio to send; silence if `None`.
    pub audio: Option<PhoneAudio>,
    /// Audio of a sound card, sent in place of `audio`.
    pub live: Option<LiveReader>,
    /// Whether received audio is decoded and kept until [`super::LabHost::take_recording`].
    pub records: bool,
    /// Longest playout delay of the jitter buffer.
    pub max_playout_delay: Duration,
}

/// Audio that a phone sends.
#[derive(Clone, Debug)]
pub struct PhoneAudio {
    /// Samples, mono.
    pub samples: Vec<i16>,
    /// Samples per second.
    pub rate: u32,
    /// The audio is repeated without end; otherwise silence follows it.
    pub repeats: bool,
}

/// Use of SRTP with keys in the session description (RFC 4568).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SrtpUse {
    /// RTP only.
    #[default]
    Off,
    /// Offers RTP, accepts both.
    Accepted,
    /// SRTP only.
    Required,
}

/// An occurrence of a phone.
#[derive(Clone, Debug, PartialEq)]
pub enum PhoneOccurrence {
    /// A provisional response above 100.
    Progress {
        /// Status.
        status: u16,
    },
    /// A call is offered.
    Incoming {
        /// Number of the call.
        call: u64,
        /// User of the caller.
        from: String,
    },
    /// The call is established.
    Established {
        /// Number of the call.
        call: u64,
        /// Codec; `None` without common media.
        format: Option<Format>,
        /// Crypto suite of SRTP; `None` for RTP.
        suite: Option<String>,
    },
    /// A digit was received.
    Digit(char),
    /// The peer put the call on hold, or resumed it.
    PeerHold(bool),
    /// Our hold (`true`) or resume was answered.
    HoldAnswered {
        /// Hold or resume.
        hold: bool,
        /// Status.
        status: u16,
    },
    /// Progress of our transfer: the response to REFER, or the status that the peer reports of the new call.
    Transfer {
        /// Status.
        status: u16,
        /// Whether the peer reports it (RFC 3515 section 2.4.5); otherwise it is the response to REFER.
        reported: bool,
    },
    /// A call has ended, or was not established: also one that was refused because the phone is in another call.
    Ended {
        /// Number of the call.
        call: u64,
        /// Outcome.
        outcome: AttemptOutcome,
        /// Final status of a refused call; 0 without.
        status: u16,
        /// Reason, if known.
        reason: String,
    },
    /// A registration, refresh or removal was answered.
    Registration {
        /// It was a removal.
        removal: bool,
        /// Status; 0 without a response.
        status: u16,
        /// Granted lifetime in seconds; 0: the binding was removed.
        expires_s: u32,
        /// Reason, if known.
        reason: String,
    },
    /// The connection by which a registered phone is called has ended, or could not be opened again: the phone
    /// registers again after this time.
    RegistrationLost {
        /// Wait.
        retry_after: Duration,
    },
}

/// Reason why a phone refused a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PhoneRefusal {
    /// There is no established call.
    NoCall,
    /// The peer has no telephone events at the clock rate of the codec.
    NoEvents,
    /// The digits are invalid, or too many are waiting.
    Digits(DtmfError),
    /// The dialog does not permit it now.
    Dialog(String),
}

impl std::fmt::Display for PhoneRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PhoneRefusal::NoCall => f.write_str("there is no established call"),
            PhoneRefusal::NoEvents => f.write_str(
                "the peer accepts no telephone events at the clock rate of the codec (RFC 4733)",
            ),
            PhoneRefusal::Digits(error) => error.fmt(f),
            PhoneRefusal::Dialog(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for PhoneRefusal {}
