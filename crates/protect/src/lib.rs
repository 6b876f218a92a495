//! Digest authentication, SRTP and its keying, ESP, ICE. Sans-IO: nothing here opens a socket.
#![forbid(unsafe_code)]

pub mod cipher;
pub mod digest;
pub mod dtls;
pub mod esp;
#[cfg(feature = "fuzz")]
mod fuzz;
pub mod ice;
pub mod ike;
mod replay;
pub mod sdes;
pub mod srtp;
pub mod stun;
#[cfg(test)]
mod test_bytes;

#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub use esp::fuzz_esp;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub use fuzz::{fuzz_ice, fuzz_srtp};
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub use ike::fuzz_ike;
