//! Test lab: workloads, pacing, experiments, capture analysis and reports.
#![forbid(unsafe_code)]

// Ahead of all others: its macros are those of the whole crate.
#[macro_use]
pub mod output;

pub mod agent;
pub mod caveats;
pub mod conversation;
pub mod datasheet;
pub mod decimal;
pub mod demo;
pub mod emulator;
pub mod error;
pub mod esp;
pub mod experiment;
pub mod figures;
mod files;
pub mod hops;
pub mod host;
pub mod link;
pub mod measure;
mod memory_growth;
pub mod metrics;
mod not_judged;
pub mod pace;
pub mod pages;
pub mod peak;
pub mod phone;
pub mod planes;
pub mod planner;
mod private_directory;
pub mod probe;
pub mod progress;
pub mod raw;
pub mod record;
mod records_page;
mod refusal;
pub mod report;
pub mod run;
pub mod search;
pub mod sipp;
pub mod speech;
pub mod statistics;
pub mod study;
pub mod study_c;
mod study_names;
pub mod subject;
pub mod sut;
pub mod terminal;
pub mod tls;
pub mod trial;
mod trial_records;
pub mod workload;

pub use error::{LabError, RunVerdict};
pub use not_judged::NotJudged;
