//! The integration tests of `sim`, one program: shared start-up, one link.

mod link;
mod processor;
mod world;
