//! Runs SIPp's scenarios unchanged: an engine without clock and sockets, so that the same scenario runs over the
//! network and in virtual time.
//!
//! [`xml`] reads a file, [`compile`] translates it to a [`program`], [`engine`] executes that for the calls of the
//! plan. Unsupported parts of a scenario are rejected by name before the first call.

mod act;
pub mod call;
pub mod compile;
pub mod digest;
pub mod distribution;
pub mod engine;
pub mod ere;
mod flow;
#[cfg(feature = "fuzz")]
mod fuzz;
pub mod incoming;
mod init;
pub mod inject;
pub mod media;
pub mod options;
pub mod outcome;
mod perform;
pub mod program;
mod receive;
pub mod render;
mod replies;
mod rtp;
pub mod run;
pub mod schedule;
pub mod settings;
pub mod stats;
mod survey;
pub mod template;
pub mod xml;

pub use options::ScenarioOptions;
pub use run::run;

/// Fuzz target: reads and compiles any bytes as a scenario and, if they compile, runs it for a while against any bytes.
#[cfg(feature = "fuzz")]
pub fn fuzz_scenario(data: &[u8]) {
    fuzz::scenario(data);
}
