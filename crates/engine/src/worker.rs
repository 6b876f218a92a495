//! Workers: several engines that share the addresses of a host. Each owns its calls and connections; they exchange
//! handoff messages and share some state.

use crate::io::ConnectionId;
use crate::table::HashKey;
use crate::time::Time;
use core::ops::{Deref, DerefMut};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One of several engines that share the addresses of a host. Each owns the calls that it started, and hands off
/// messages that belong to another one ([`crate::Output::HandOff`]).
#[derive(Clone, Copy, Debug)]
pub struct Worker {
    /// Its number, from 0.
    pub number: u8,
    /// Number of workers, 1 to [`Worker::MAX`].
    pub count: u8,
    /// The hash by which all workers determine the owner of a new call; secret, so that senders cannot choose a worker.
    pub key: HashKey,
}

impl Worker {
    /// Maximum number of workers.
    pub const MAX: u8 = 64;

    /// Whether there is no other worker.
    pub const fn is_alone(&self) -> bool {
        self.count <= 1
    }

    /// The worker's even share of a limit, at least 1.
    pub fn share(&self, limit: usize) -> usize {
        (limit / usize::from(self.count.max(1))).max(1)
    }
}

impl Default for Worker {
    fn default() -> Worker {
        Worker {
            number: 0,
            count: 1,
            key: HashKey::default(),
        }
    }
}

/// A message from one worker to another: input that belongs to the other one, or output for a connection of the other
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandoffMessage<'a> {
    /// Kind and addresses.
    pub kind: HandoffKind,
    /// The payload.
    pub bytes: &'a [u8],
}

/// The kind of a [`HandoffMessage`]. A listener has the same number at all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoffKind {
    /// A datagram.
    Datagram {
        /// The listener that received it.
        listener: u16,
        /// Address of the sender.
        source: SocketAddr,
        /// When the kernel received it.
        arrived: Time,
        /// When it was handed off.
        handed_off: Time,
        /// Number of workers that have handed it off before.
        hops: u8,
    },
    /// An undeliverable datagram, as quoted in an ICMP message.
    Unreachable {
        /// The listener that sent it.
        listener: u16,
        /// Its destination.
        destination: SocketAddr,
    },
    /// A complete message received on a connection.
    Message {
        /// The connection; the sending worker owns it.
        connection: ConnectionId,
        /// The listener of the connection.
        listener: u16,
        /// The peer.
        remote: SocketAddr,
        /// Number of workers that have handed it off before.
        hops: u8,
    },
    /// A complete message to send on a connection of the receiving worker.
    Send {
        /// The connection.
        connection: ConnectionId,
        /// Number of the worker that sends it.
        from: u8,
    },
    /// Close a connection of the receiving worker.
    Close {
        /// The connection.
        connection: ConnectionId,
    },
    /// A connection of the sending worker has ended.
    Closed {
        /// The connection.
        connection: ConnectionId,
    },
    /// The next step of a transfer that joins calls of both workers; its state is shared by them.
    Transfer {
        /// Number of the transfer.
        number: u64,
        /// The step.
        step: TransferStep,
    },
}

/// Steps of a transfer that joins calls of different workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferStep {
    /// To the worker with the requested leg: it has to hand over the leg.
    Requested,
    /// To the worker that requested the leg: it was handed over, or refused.
    Answered,
    /// To the worker that handed over the leg: the rest of its call ends, or the leg is returned to it.
    Finished,
}

/// A value that an engine owns alone or shares with the other workers. An own value costs nothing; each use of a shared
/// one takes a lock for the duration of the use.
#[derive(Debug)]
pub enum MaybeShared<T> {
    /// Owned by the engine.
    Own(T),
    /// Shared with other workers.
    Shared(Arc<Mutex<T>>),
}

/// Exclusive access to a [`MaybeShared`] value.
#[derive(Debug)]
pub enum MaybeSharedGuard<'h, T> {
    /// To an own value.
    Own(&'h mut T),
    /// To a shared value.
    Shared(MutexGuard<'h, T>),
}

impl<T> MaybeShared<T> {
    /// Gives exclusive access to the value.
    pub fn lock(&mut self) -> MaybeSharedGuard<'_, T> {
        match self {
            MaybeShared::Own(value) => MaybeSharedGuard::Own(value),
            MaybeShared::Shared(value) => MaybeSharedGuard::Shared(lock(value)),
        }
    }

    /// Reads the value.
    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        match self {
            MaybeShared::Own(value) => read(value),
            MaybeShared::Shared(value) => read(&lock(value)),
        }
    }
}

/// Takes a lock. Poisoning is ignored: a worker that panics ends the process, so that no other worker can see an
/// inconsistent value.
pub fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Deref for MaybeSharedGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        match self {
            MaybeSharedGuard::Own(value) => value,
            MaybeSharedGuard::Shared(value) => value,
        }
    }
}

impl<T> DerefMut for MaybeSharedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match self {
            MaybeSharedGuard::Own(value) => value,
            MaybeSharedGuard::Shared(value) => value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_number_identifies_its_owner() {
        let id = ConnectionId(ConnectionId::ACCEPTED | ConnectionId::of_worker(63) | 12);
        assert_eq!((id.worker(), ConnectionId(12).worker()), (63, 0));
    }

    #[test]
    fn shares_add_up_to_no_more_than_the_limit() {
        for count in 1..=Worker::MAX {
            let worker = Worker {
                count,
                ..Worker::default()
            };
            assert!(worker.share(1_000) * usize::from(count) <= 1_000);
            assert_eq!(worker.share(0), 1, "a share is at least 1");
        }
    }

    #[test]
    fn shared_values_are_one_value() {
        let shared = Arc::new(Mutex::new(1));
        let (mut a, b) = (
            MaybeShared::Shared(shared.clone()),
            MaybeShared::Shared(shared),
        );
        *a.lock() += 1;
        assert_eq!(b.read(|value| *value), 2);
        let mut own = MaybeShared::Own(5);
        *own.lock() += 1;
        assert_eq!(own.read(|value| *value), 6);
    }
}
