//! The integration tests of `rules`, one program: shared start-up, one link.

mod actions;
mod properties;
