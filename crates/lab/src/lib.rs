//! Test lab: workloads, pacing, experiments, capture analysis and reports.
#![forbid(unsafe_code)]

pub mod caveats;
pub mod demo;
pub mod error;
pub mod experiment;
pub mod figures;
pub mod host;
pub mod link;
pub mod metrics;
pub mod pace;
pub mod peak;
pub mod phone;
pub mod planes;
pub mod probe;
pub mod progress;
pub mod raw;
pub mod record;
pub mod report;
pub mod run;
pub mod search;
pub mod sipp;
pub mod statistics;
pub mod sut;
pub mod terminal;
pub mod tls;
pub mod trial;
pub mod workload;

pub use error::{LabError, RunVerdict};
