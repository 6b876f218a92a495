//! Counters of a driver. Written by the thread that owns the plane, read by any.

use engine::{DropReason, Drops};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[doc = $text:literal])* $name:ident,)*) => {
        /// Counters of a driver since its start, both threads together.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct DriverCounters {
            $($(#[doc = $text])* pub $name: u64,)*
            /// Packets dropped by the driver, or by the forwarder's verdict.
            pub drops: Drops,
        }

        /// The shared form. Each counter has one writer, so adding is a load and a store.
        #[derive(Debug)]
        pub(crate) struct Shared {
            $(pub(crate) $name: Count,)*
            drops: Box<[Count]>,
        }

        impl Shared {
            pub(crate) fn new() -> Shared {
                Shared {
                    $($name: Count::default(),)*
                    drops: DropReason::ALL.iter().map(|_| Count::default()).collect(),
                }
            }

            pub(crate) fn add_to(&self, total: &mut DriverCounters) {
                $(total.$name += self.$name.get();)*
                for &reason in DropReason::ALL {
                    total.drops.add(reason, self.drops.get(reason as usize).map_or(0, Count::get));
                }
            }
        }
    };
}

/// A counter with one writer.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: usize) {
        self.0
            .store(self.0.load(Relaxed).wrapping_add(n as u64), Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

counters! {
    /// Calls of `recvmmsg`.
    receive_calls,
    /// Datagrams received.
    datagrams_in,
    /// Payload bytes received.
    bytes_in,
    /// Frames received through AF_XDP; included in the received datagrams.
    af_xdp_in,
    /// Datagrams sent through AF_XDP; included in the sent datagrams.
    af_xdp_out,
    /// Media datagrams sent through a socket despite AF_XDP: no route through its interfaces is known, they are too
    /// large, or the ring was full.
    af_xdp_bypassed,
    /// Datagrams received through the tunnel path; included in the received datagrams.
    tunnel_in,
    /// Datagrams sent through the tunnel path; included in the sent datagrams.
    tunnel_out,
    /// Calls of `sendmmsg` and `sendto`.
    send_calls,
    /// Datagrams sent.
    datagrams_out,
    /// Payload bytes sent.
    bytes_out,
    /// Calls of `epoll_pwait2`.
    waits,
    /// Deadlines processed.
    timeouts,
    /// Stream connections accepted.
    accepted,
    /// Stream connections refused at a limit, or because file descriptors were used up.
    accept_refused,
    /// Stream connections opened by us.
    connected,
    /// TLS handshakes completed, both directions.
    tls_established,
    /// TLS handshakes that resumed an earlier session by its ticket.
    tls_resumed,
    /// Accepted connections whose TLS handshake was delayed by its rate limit.
    handshakes_delayed,
    /// Bytes read from stream connections.
    stream_bytes_in,
    /// Bytes written to stream connections.
    stream_bytes_out,
    /// Packets for control that were dropped because the queue between the threads was full.
    punts_lost,
    /// Events dropped because the program did not read them in time.
    events_lost,
    /// Datagrams sent in GSO bursts.
    gso_datagrams,
    /// Signalling datagrams held back by pacing.
    paced,
    /// Signalling datagrams that the network reported as undeliverable.
    undelivered,
    /// Flows opened in the kernel relay.
    relay_flows,
    /// Packets relayed by the kernel, counted when a flow is closed.
    relayed_in_kernel,
    /// Outputs for a socket or connection that does not exist (any more).
    unknown_targets,
}

impl Shared {
    pub(crate) fn drop_one(&self, reason: DropReason) {
        if let Some(count) = self.drops.get(reason as usize) {
            count.add(1);
        }
    }

    pub(crate) fn dropped(&self, reason: DropReason, n: usize) {
        if let Some(count) = self.drops.get(reason as usize) {
            count.add(n);
        }
    }
}

/// Checks at compile time that the media thread's counters can be shared.
const _: fn() = || {
    fn shareable<T: Sync + Send>() {}
    shareable::<Shared>();
};
