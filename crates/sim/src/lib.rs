//! The driver in virtual time: hosts, links, faults, one seed.
//!
//! [`World`] runs any number of [`engine::Engine`]s and [`engine::Control`]s with their forwarders over links that
//! lose, duplicate, reorder and delay. Everything depends only on its seed and its setup, so that the same seed gives
//! the same log, byte for byte.
#![forbid(unsafe_code)]

mod agenda;
mod codel;
mod emulator;
mod fault;
mod framing;
mod host;
pub mod link;
mod log;
mod processor;
mod queued;
mod stream;
mod tap;
mod transport;
mod tunnel;
mod workers;
mod world;

pub use codel::CodelSettings;
pub use emulator::{Emulator, EmulatorCounts, Passage};
pub use fault::{Fault, Storm};
pub use framing::Framing;
pub use host::HostId;
pub use link::{Delay, Link, LinkConfig, Loss};
pub use log::Detail;
pub use tap::{TapPoint, TapRecord, TapTransport};
pub use tunnel::TunnelFormat;
pub use world::{Counts, World};
