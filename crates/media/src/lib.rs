//! Flows, relay, RTCP, receive statistics, sources, sinks, voice quality.
#![forbid(unsafe_code)]

pub mod quality;
pub mod stats;
