//! What a driver counts. Written by the thread that owns the plane, read by any.

use engine::{DropReason, Drops};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[doc = $text:literal])* $name:ident,)*) => {
        /// Figures of a driver since its start, both threads together.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $text])* pub $name: u64,)*
            /// Discarded by the driver itself, or by the forwarder's verdict.
            pub drops: Drops,
        }

        /// The shared form: one writer, so that adding is a load and a store.
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

            pub(crate) fn add_to(&self, total: &mut Counters) {
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
    /// Datagrams taken in.
    datagrams_in,
    /// Their payload bytes.
    bytes_in,
    /// Frames taken in by AF_XDP; their datagrams are among those taken in.
    express_in,
    /// Datagrams sent by AF_XDP, among those sent.
    express_out,
    /// Media datagrams that went by a socket although there is AF_XDP: their way is not known or leads elsewhere, they are too large for
    /// it, or its ring was full.
    express_aside,
    /// Calls of `sendmmsg` and `sendto`.
    send_calls,
    /// Datagrams sent.
    datagrams_out,
    /// Their payload bytes.
    bytes_out,
    /// Calls of `epoll_pwait2`.
    waits,
    /// Deadlines served.
    timeouts,
    /// Stream connections accepted.
    accepted,
    /// Stream connections refused at a limit, or for want of a file descriptor.
    accept_refused,
    /// Stream connections opened by us.
    connected,
    /// TLS handshakes that came to their end, both directions.
    tls_established,
    /// Those among them that took up an earlier session by its ticket.
    tls_resumed,
    /// Bytes read from stream connections.
    stream_bytes_in,
    /// Bytes written to stream connections.
    stream_bytes_out,
    /// Packets that the forwarder wanted control to see, but the queue between the threads was full.
    punts_lost,
    /// Events that the program did not take in time.
    events_lost,
    /// Datagrams that left in trains, with others.
    coupled,
    /// Signalling datagrams that pacing held for a moment.
    held,
    /// Signalling datagrams of which the network says that it could not deliver them.
    undelivered,
    /// Shortcuts opened in the kernel.
    shortcuts,
    /// Packets that took them, counted when one is closed.
    passed,
    /// Outputs that name a socket or connection that does not exist (any more).
    strays,
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
