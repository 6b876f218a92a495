//! Digest authentication today; SRTP and ESP later: keys in, proofs out.
#![forbid(unsafe_code)]

pub mod digest;
