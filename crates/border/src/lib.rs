//! The session border controller: configuration, policy, calls, registrar, and control of media.
#![forbid(unsafe_code)]

pub mod admission;
pub mod border;
pub mod call;
pub mod carrier;
pub mod conferences;
#[doc(hidden)]
pub mod fuzz;
pub(crate) mod hiding;
pub(crate) mod identity;
mod ng_client;
pub mod ng_server;
pub mod operate;
pub(crate) mod overload;
pub mod policy;
mod private_headers;
mod rate_limit;
pub mod registrar;
pub mod registrations;
pub(crate) mod rules;
pub mod trunks;
pub(crate) mod worker_pool;

#[doc(hidden)]
pub use fuzz::{fuzz_border, fuzz_border_with_dtls};
#[doc(hidden)]
pub use ng_client::fuzz::fuzz_ng_client;
pub use ng_server::fuzz::fuzz_ng_server;
