//! Flows, relay, RTCP, receive statistics, sources, sinks, voice quality.
#![forbid(unsafe_code)]
