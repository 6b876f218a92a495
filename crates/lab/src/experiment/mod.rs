//! Experiment files: TOML with a closed set of keys; errors name the line.
//!
//! An *experiment* is a file. With a level of its sweep and a repetition it becomes a *trial*, which is one run.
//! `--set` overrides and the sweep address keys in the same way: dotted paths into the file.

mod bound;
mod built_in;
mod model;
mod parse;
mod phone_load;
mod renamed_keys;
mod search_plan;
mod study;
mod template;

pub use bound::{FigureBound, PEAK, PeakPlan, ReferenceValue};
pub use built_in::{BUILT_IN, built_in};
pub use model::{
    CallFlow, Callees, Callers, CodecName, ConferenceLoad, Experiment, GeneratorSettings, HangUp,
    HoldKind, IpVersions, Levels, LinkSettings, MediaKind, NetworkSettings, PaceKind,
    RegistrarLocation, Registrations, StreamLoad, Sut, SutMedia, Thresholds, TransportName,
};
pub use parse::{File, Level};
pub use phone_load::PhoneLoad;
pub use search_plan::SearchPlan;
pub use study::{CAPACITY, Study, StudyLevel};
pub use template::{escape, fill};
