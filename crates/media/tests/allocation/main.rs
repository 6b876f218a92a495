//! Allocations of the forwarder in the steady state: none. A program of its own, because it replaces the allocator.

#[path = "../suite/conference/mod.rs"]
mod conference;
mod counting;
mod play;
mod recode;
mod relay;
mod room;
