//! Media security of anchored calls: SRTP and its keying by SDES or DTLS, and ICE. Each side of a call has its own; between both sides
//! packets are in the clear.

pub(crate) mod call;
mod ice;
#[cfg(test)]
mod ice_tests;
pub(crate) mod sdp;
pub(super) mod side;
#[cfg(test)]
mod tests;
