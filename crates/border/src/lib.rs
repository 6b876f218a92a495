//! The session border controller: configuration, policy, calls, registrar, and control of media.
#![forbid(unsafe_code)]

pub mod admission;
mod bodies;
pub mod border;
pub mod calls;
pub mod carrier;
mod certificate_names;
pub(crate) mod components;
pub mod conferences;
mod counters;
mod emergency;
mod endpoint_settings;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod headers;
pub(crate) mod hiding;
pub(crate) mod identity;
mod index_remap;
mod keepalive;
mod listeners;
mod located_peers;
mod media;
mod ng_client;
pub mod operate;
pub mod operator;
mod out_of_dialog;
pub mod policy;
pub mod registrar;
pub mod registrations;
mod report;
mod request;
mod resolve;
mod responses;
mod routing_snapshot;
pub(crate) mod rules;
mod shared;
mod targets;
pub mod trunks;
pub mod views;
pub(crate) mod workers;

#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub use fuzz::{fuzz_border, fuzz_border_with_dtls};
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub use ng_client::fuzz::fuzz_ng_client;
