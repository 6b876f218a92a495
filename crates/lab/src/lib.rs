//! The laboratory: workloads, pacing, experiments, analyser, reports.
#![forbid(unsafe_code)]

pub mod analyse;
