//! Digest authentication, SRTP and its keying: keys in, proofs and sealed packets out. Nothing here sees a socket.
#![forbid(unsafe_code)]

pub mod cipher;
pub mod digest;
pub mod dtls;
mod fuzz;
pub mod sdes;
pub mod srtp;

#[doc(hidden)]
pub use fuzz::fuzz_srtp;
