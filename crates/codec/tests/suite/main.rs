//! The integration tests of `codec`, one program: shared start-up, one link.

mod codec;
mod common;
mod foreign;
mod g722;
mod g729;
mod quality;
