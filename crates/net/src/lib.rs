//! The driver over real sockets. It is the only crate with a clock and with `unsafe`.
//!
//! [`Driver`] runs one [`engine::Control`] with its [`engine::Forward`], or a plain [`engine::Engine`], over epoll,
//! `recvmmsg` and `sendmmsg`. The crate also wraps other services of the operating system: [`Clock`], [`entropy`],
//! [`Signals`], CPU time, pinning, kernel counters and the measurement of scheduling noise.

mod batch;
mod batching;
mod claims;
mod clock;
mod config;
mod counters;
mod driver;
mod esp_socket;
mod gso;
mod icmp;
mod isolation;
mod layer;
mod machine;
mod mailbox;
mod media;
mod memory;
mod network;
mod noise;
mod offload;
mod pacing;
mod packet;
mod plain_datagram;
mod plane;
mod process;
mod raw;
mod raw_ip;
mod record;
mod relay;
mod shared_port;
mod signals;
mod socket;
mod socket_filter;
mod source_counts;
mod source_guard;
mod steer;
mod tcp;
mod timed_udp;
pub mod tls;
mod tun;
mod tunnel;
mod xfrm;
mod xsk;

pub use claims::{ClaimError, Claimant, PortClaim, PortClaims, PortRange, claims};
pub use clock::{Clock, entropy};
pub use config::{DriverConfig, MediaSockets};
pub use counters::DriverCounters;
pub use driver::{Driver, NoForward, Plain, Turn, run_engine};
pub use esp_socket::{
    EspSendFailure, EspSocket, EspSocketKind, OutgoingEsp, ReceivedEsp, path_mtu,
};
pub use isolation::{bind_mount, isolate_process, receive_descriptor, send_descriptor};
pub use machine::{
    DiskSpace, InterfaceCounters, KernelCounters, Machine, disk_space, interface_counters,
    kernel_counters, machine,
};
pub use mailbox::{WorkerMailbox, worker_mailboxes};
pub use media::Waker;
pub use memory::free_memory_in_background;
pub use network::Network;
pub use noise::{NoiseReport, NoiseSampler, host_noise};
pub use packet::{
    InterfaceInfo, PacketCounts, PacketSocket, Readiness, ReceivedFrame, wait_any, wait_readable,
};
pub use process::{
    EndSignal, allowed_cpus, end_with_parent, kill, lock_memory, may_be_realtime, open_files,
    page_bytes, pause, pin, process_cpu, raise_open_files, raise_open_files_to, realtime,
    request_end, resident_bytes, resident_bytes_of, signal_group, thread_cpu, thread_cpu_wait,
    tight_timers, user_id,
};
pub use raw_ip::RawIpSocket;
pub use record::Recorder;
pub use relay::KernelRelay;
pub use signals::{Signals, block_all as block_signals, end_on_closed_pipe, stops};
pub use socket::{is_port_in_use, may_carry_esp, request_send_buffer};
pub use source_guard::SourceGuard;
pub use timed_udp::TimedUdpSocket;
pub use tun::TunDevice;
pub use tunnel::{TunnelPath, TunnelRoutes};
pub use xfrm::{
    Xfrm, XfrmAlgorithm, XfrmCounts, XfrmDirection, XfrmPolicy, XfrmRefusal, XfrmSelector,
    XfrmState, XfrmSuite, bypass_policies,
};
pub use xsk::AfXdp;

/// Whether this build contains the BPF programs.
pub const BPF_PRESENT: bool = cfg!(bpf_present);
