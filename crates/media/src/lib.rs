//! Media at packet level: the forwarder with transcoding, playback and conferences, and the parts of a media endpoint:
//! RTP source and sink, RTCP, telephone events, receive statistics, and voice quality by the E-model.
#![forbid(unsafe_code)]

pub mod audio;
pub mod conference;
pub mod dtmf;
pub mod echo;
mod expected_loss;
pub mod forward;
pub mod live;
pub mod playout;
pub mod ports;
pub mod quality;
pub mod rtcp;
pub mod shared_tone;
pub mod sink;
pub mod source;
pub mod speech_quality;
pub mod stats;

#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub use forward::fuzz::{fuzz_forward, fuzz_transcode};
pub use forward::{
    Carriage, Component, EventMapping, FlowPlan, Forwarder, ForwarderLimits, Keys, Latching,
    MediaCommand, MediaEvent, PayloadClock, PlanError, PlaybackEncoding, PlaybackEnd, PlaybackPlan,
    PlaybackResult, PlaybackTarget, Protection, SessionPlan, SidePlan, TranscodePlan, can_play,
};
