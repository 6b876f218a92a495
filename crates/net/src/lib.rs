//! The driver over real sockets; the only owner of a clock and of `unsafe`.
//!
//! [`Driver`] runs one [`engine::Control`] with its [`engine::Forward`], or a plain [`engine::Engine`], over epoll,
//! `recvmmsg` and `sendmmsg`. Around it stand what a program needs of the operating system: [`Clock`], [`entropy`],
//! [`Signals`], CPU time, pinning, the kernel's own counters and the host's scheduling noise.

mod batch;
mod claims;
mod clock;
mod coalesce;
mod config;
mod counters;
mod driver;
mod exchange;
mod icmp;
mod layer;
mod machine;
mod media;
mod network;
mod noise;
mod pacing;
mod plane;
mod process;
mod range;
mod raw;
mod record;
mod relay;
mod sieve;
mod signals;
mod socket;
mod steer;
mod tcp;
pub mod tls;
mod train;
mod xsk;

pub use claims::{ClaimError, Claimant, Claimed, PortClaims, PortRange, claims};
pub use clock::{Clock, entropy};
pub use config::{DriverConfig, MediaSockets};
pub use counters::Counters;
pub use driver::{Driver, NoForward, Plain, Turn, run_engine};
pub use exchange::{Desk, desks};
pub use machine::{KernelCounters, Machine, kernel_counters, machine};
pub use media::Waker;
pub use network::Network;
pub use noise::{NoiseReport, NoiseSampler, host_noise};
pub use process::{
    allowed_cpus, lock_memory, may_be_realtime, open_files, page_bytes, pin, process_cpu,
    raise_open_files, realtime, resident_bytes, thread_cpu, tight_timers,
};
pub use record::Recorder;
pub use relay::KernelRelay;
pub use signals::{Signals, block_all as block_signals, end_on_closed_pipe, stops};
pub use xsk::AfXdp;
