//! The integration tests of `sim`, one program: shared start-up, one link.

mod busy;
mod link;
mod world;
