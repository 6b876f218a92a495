//! Flows, relay, RTCP, receive statistics, sources, sinks, voice quality.
#![forbid(unsafe_code)]

pub mod audio;
pub mod dtmf;
pub mod echo;
pub mod forward;
pub mod ports;
pub mod quality;
pub mod room;
pub mod rtcp;
pub mod sink;
pub mod source;
pub mod stats;

#[doc(hidden)]
pub use forward::fuzz::{fuzz_forward, fuzz_recode};
pub use forward::{
    Carriage, Clocked, Component, Events, FlowPlan, Forwarder, ForwarderLimits, Keys, Latching,
    MediaCommand, MediaEvent, PlanError, PlayEnd, PlayPlace, PlayPlan, PlayVoice, Played,
    Protection, RecodePlan, SessionPlan, SidePlan, can_play,
};
