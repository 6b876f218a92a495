//! SIPp's scenarios, run unchanged: an engine without clock and sockets, so that the same scenario runs over the network and in
//! virtual time.
//!
//! [`xml`] reads a file, [`compile`] makes a [`program`] of it, [`engine`] plays that for as many calls as the plan says. What a
//! scenario has that is not understood is refused by name before the first call.

mod act;
pub mod call;
pub mod compile;
pub mod digest;
pub mod distribution;
pub mod engine;
pub mod ere;
mod flow;
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
pub mod run;
pub mod schedule;
pub mod settings;
pub mod stats;
mod survey;
pub mod template;
pub mod xml;

pub use options::ScenarioOptions;
pub use run::run;

/// Any bytes as a scenario: read, compiled, and where it compiles, played for a while against any bytes. For fuzzing.
pub fn fuzz_scenario(data: &[u8]) {
    fuzz::scenario(data);
}
