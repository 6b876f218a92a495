//! The session border controller: configuration, policy, plans, calls, registrar, forwarder.
#![forbid(unsafe_code)]

pub(crate) mod anchor;
pub mod border;
pub mod call;
pub mod carrier;
pub mod config;
pub mod operate;
pub mod policy;
pub mod registrar;
pub mod trunks;
