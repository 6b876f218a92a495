//! Heap allocations of the forwarder in the steady state: none. A separate program, because it replaces the allocator.

mod conference;
mod counting;
#[path = "../suite/participants/mod.rs"]
mod participants;
mod playback;
mod relay;
mod transcode;
