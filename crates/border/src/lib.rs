//! The session border controller: configuration, policy, plans, calls, registrar, forwarder.
#![forbid(unsafe_code)]

pub mod admission;
pub(crate) mod anchor;
pub mod border;
pub mod call;
pub mod carrier;
pub mod config;
pub(crate) mod crew;
mod feedback;
#[doc(hidden)]
pub mod fuzz;
mod gate;
pub(crate) mod hiding;
pub(crate) mod identity;
pub mod node;
mod nodes;
pub mod operate;
pub(crate) mod overload;
pub mod policy;
mod private_headers;
pub mod registrar;
pub mod registrations;
pub mod rooms;
pub(crate) mod rules;
pub mod trunks;

#[doc(hidden)]
pub use fuzz::{fuzz_border, fuzz_border_with_dtls};
pub use node::fuzz::fuzz_node;
#[doc(hidden)]
pub use nodes::fuzz::fuzz_nodes;
