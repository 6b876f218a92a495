//! The integration tests of `rules`, linked as one program.

mod actions;
mod properties;
