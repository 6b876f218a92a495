//! The driver over virtual time: hosts, links, faults, one seed.
#![forbid(unsafe_code)]
