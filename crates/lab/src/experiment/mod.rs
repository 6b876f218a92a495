//! Experiment files: TOML, every key known, every mistake named with its line.
//!
//! An *experiment* is a file. With a level of its sweep and a repetition it becomes a *trial*, which is one run. `--set`
//! overrides and the sweep use the same words: dotted paths into the file.

mod bound;
mod built_in;
mod model;
mod parse;
mod search_plan;
mod study;
mod template;

pub use bound::{Base, FigureBound, PEAK, PeakPlan};
pub use built_in::{BUILT_IN, built_in};
pub use model::{
    CallFlow, Callees, Callers, CodecName, Conference, Experiment, Generator, HangUp, HoldKind,
    IpVersions, Levels, Link, MediaKind, Network, PaceKind, RegistrarPlace, Registrations, Streams,
    Subject, SubjectMedia, Thresholds, TransportName,
};
pub use parse::{File, Level};
pub use search_plan::SearchPlan;
pub use study::{CAPACITY, Study, StudyLevel};
pub use template::fill;
