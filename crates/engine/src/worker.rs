//! Several engines that share a host's addresses: who owns what, what they hand to each other, and what they have in common.

use crate::io::ConnectionId;
use crate::table::HashKey;
use crate::time::Time;
use core::ops::{Deref, DerefMut};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One of several engines that share the addresses of a host: each owns what it began, and hands the others what is theirs
/// ([`Output::Hand`]).
#[derive(Clone, Copy, Debug)]
pub struct Worker {
    /// Its number, from 0.
    pub number: u8,
    /// How many there are, 1 to [`Worker::MOST`].
    pub of: u8,
    /// The hash by which all of them find the owner of what is new; it is secret, so that nobody chooses a worker.
    pub key: HashKey,
}

impl Worker {
    /// Workers at most.
    pub const MOST: u8 = 64;

    /// Whether there is no other.
    pub const fn is_alone(&self) -> bool {
        self.of <= 1
    }

    /// An even share of a limit, never nothing.
    pub fn share(&self, limit: usize) -> usize {
        (limit / usize::from(self.of.max(1))).max(1)
    }
}

impl Default for Worker {
    fn default() -> Worker {
        Worker {
            number: 0,
            of: 1,
            key: HashKey::default(),
        }
    }
}

/// What one worker hands to another: whatever came to the one and is the other's, or is to leave by a connection that the
/// other holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parcel<'a> {
    /// What it is.
    pub head: ParcelHead,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// What a [`Parcel`] is. Listening points have the same number at all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParcelHead {
    /// A datagram.
    Datagram {
        /// The listening point at which it came.
        local: u16,
        /// Who sent it.
        source: SocketAddr,
        /// When the kernel took it in.
        arrived: Time,
        /// When it was handed over.
        handed: Time,
        /// Workers that it has passed already.
        passed: u8,
    },
    /// A datagram that could not be delivered, as far as the network quotes it.
    Unreachable {
        /// The listening point from which it was sent.
        local: u16,
        /// Where it was sent.
        destination: SocketAddr,
    },
    /// A whole message that came on a connection.
    Message {
        /// The connection; the giver holds it.
        connection: ConnectionId,
        /// Its listening point.
        local: u16,
        /// The peer.
        remote: SocketAddr,
        /// Workers that it has passed already.
        passed: u8,
    },
    /// A whole message to be sent on a connection of the taker's.
    Send {
        /// The connection.
        connection: ConnectionId,
        /// Who sends it.
        from: u8,
    },
    /// Close a connection of the taker's.
    Close {
        /// The connection.
        connection: ConnectionId,
    },
    /// A connection of the giver's has ended.
    Closed {
        /// The connection.
        connection: ConnectionId,
    },
    /// A transfer for which calls of both are brought together goes on; what there is to know lies with what they have in common.
    Transfer {
        /// Which one.
        number: u64,
        /// What is to be done.
        step: TransferStep,
    },
}

/// Steps of a transfer whose calls belong to different workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferStep {
    /// The taker has the call whose far end is wanted: to be given.
    Asked,
    /// The taker wanted it: it was given, or refused.
    Answered,
    /// The taker gave it: what is left of its call ends, or gets it back.
    Over,
}

/// A value of an engine's own, or one that it has in common with the other workers. Alone, it costs nothing; in common, each
/// use is a lock that nobody holds for longer than the use takes.
#[derive(Debug)]
pub enum Held<T> {
    /// The engine's own.
    Own(T),
    /// In common.
    Common(Arc<Mutex<T>>),
}

/// The use of a [`Held`] value.
#[derive(Debug)]
pub enum Hold<'h, T> {
    /// Of the engine's own.
    Own(&'h mut T),
    /// Of one in common.
    Common(MutexGuard<'h, T>),
}

impl<T> Held<T> {
    /// The value, to be looked at and changed.
    pub fn hold(&mut self) -> Hold<'_, T> {
        match self {
            Held::Own(value) => Hold::Own(value),
            Held::Common(value) => Hold::Common(lock(value)),
        }
    }

    /// Looks at the value.
    pub fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        match self {
            Held::Own(value) => look(value),
            Held::Common(value) => look(&lock(value)),
        }
    }
}

/// Takes a lock; a worker that panicked while it held it has taken the process with it, so that what it left is not seen.
pub fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Deref for Hold<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        match self {
            Hold::Own(value) => value,
            Hold::Common(value) => value,
        }
    }
}

impl<T> DerefMut for Hold<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match self {
            Hold::Own(value) => value,
            Hold::Common(value) => value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_says_who_holds_it() {
        let id = ConnectionId(ConnectionId::ACCEPTED | ConnectionId::of_worker(63) | 12);
        assert_eq!((id.worker(), ConnectionId(12).worker()), (63, 0));
    }

    #[test]
    fn shares_add_up_to_no_more_than_the_limit() {
        for of in 1..=Worker::MOST {
            let worker = Worker {
                of,
                ..Worker::default()
            };
            assert!(worker.share(1_000) * usize::from(of) <= 1_000);
            assert_eq!(worker.share(0), 1, "a share is never nothing");
        }
    }

    #[test]
    fn what_is_held_in_common_is_one_value() {
        let common = Arc::new(Mutex::new(1));
        let (mut a, b) = (Held::Common(common.clone()), Held::Common(common));
        *a.hold() += 1;
        assert_eq!(b.look(|value| *value), 2);
        let mut own = Held::Own(5);
        *own.hold() += 1;
        assert_eq!(own.look(|value| *value), 6);
    }
}
