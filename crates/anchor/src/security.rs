//! Media security of anchored calls: SRTP and its keying by SDES or DTLS, and ICE. Each side of a call has its own;
//! between both sides packets are in the clear.

mod association;
pub mod call;
mod ice;
#[cfg(test)]
mod ice_tests;
pub mod sdp;
pub mod side;
#[cfg(test)]
mod tests;
