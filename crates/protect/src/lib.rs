//! Digest authentication, SRTP and its keying, ICE. Sans-IO: nothing here opens a socket.
#![forbid(unsafe_code)]

pub mod cipher;
pub mod digest;
pub mod dtls;
mod fuzz;
pub mod ice;
pub mod sdes;
pub mod srtp;
pub mod stun;

#[doc(hidden)]
pub use fuzz::{fuzz_ice, fuzz_srtp};
