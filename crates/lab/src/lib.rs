//! The laboratory: workloads, pacing, experiments, analyser, reports.
#![forbid(unsafe_code)]

pub mod analyse;
pub mod demo;
pub mod error;
pub mod report;
pub mod run;

pub use error::{LabError, Verdict};
