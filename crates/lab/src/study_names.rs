//! Names of the studies on the command line.

/// Studies whose parts are experiments.
pub const NAMES: [&str; 4] = ["study-u", "study-v", "study-s", "study-b"];
/// The study of networks and protections.
pub const STUDY_C: &str = "study-c";
