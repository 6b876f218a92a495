//! The integration tests of `media`, linked as one program.

mod conference;
mod conference_streams;
mod endpoints;
mod forward;
mod hold;
mod participants;
mod ports;
mod quality;
mod speech_quality;
mod srtp;
mod statistics;
mod transcode;
mod transcoded_streams;
