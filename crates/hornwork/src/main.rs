//! The hornwork program.
#![forbid(unsafe_code)]

fn main() {}
