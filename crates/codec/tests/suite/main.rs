//! The integration tests of `codec` in one program, to link once.

mod codec;
mod common;
mod foreign;
mod g722;
mod g729;
mod quality;
