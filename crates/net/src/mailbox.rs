//! Mailboxes of a worker pool. Each worker has one; the others deliver handoff messages to it in bundles, once per
//! turn, so that all messages of a turn share the cost of the lock and of waking a sleeping owner.

use crate::media::Waker;
use crate::source_counts::SourceCounts;
use engine::worker::lock;
use engine::{HandoffKind, HandoffMessage};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Capacity of a mailbox, bytes. Further bundles are dropped, as at a full socket.
const MAX_MAILBOX_BYTES: usize = 16 << 20;

/// Handoff messages in one block of memory.
#[derive(Debug, Default)]
pub(crate) struct HandoffBundle {
    heads: Vec<(HandoffKind, u32)>,
    bytes: Vec<u8>,
}

impl HandoffBundle {
    fn clear(&mut self) {
        self.heads.clear();
        self.bytes.clear();
    }

    fn append(&mut self, other: &HandoffBundle) {
        self.heads.extend_from_slice(&other.heads);
        self.bytes.extend_from_slice(&other.bytes);
    }

    /// The messages in order.
    pub(crate) fn messages(&self) -> impl Iterator<Item = HandoffMessage<'_>> {
        let mut rest = self.bytes.as_slice();
        self.heads.iter().map(move |&(head, length)| {
            // Each length is that of the bytes that were appended with it.
            let (bytes, after) = rest.split_at_checked(length as usize).unwrap_or_default();
            rest = after;
            HandoffMessage { kind: head, bytes }
        })
    }
}

#[derive(Debug, Default)]
struct Mailbox {
    waiting: Mutex<HandoffBundle>,
    /// Whether it holds messages, readable without the lock.
    filled: AtomicBool,
    owner: OnceLock<Waker>,
}

/// The end of a worker: its own mailbox, and the messages that it sends to siblings. See
/// [`crate::Driver::attach_mailbox`].
#[derive(Debug)]
pub struct WorkerMailbox {
    number: u8,
    mailboxes: Arc<[Mailbox]>,
    /// Messages to be delivered at the end of this turn, by worker.
    out: Vec<HandoffBundle>,
    inbox: HandoffBundle,
    /// Accepted connections of all workers.
    sources: SourceCounts,
}

/// The mailboxes of a pool of `workers` on one host.
pub fn worker_mailboxes(workers: u8) -> Vec<WorkerMailbox> {
    let mailboxes: Arc<[Mailbox]> = (0..workers).map(|_| Mailbox::default()).collect();
    let sources = SourceCounts::default();
    let mailbox = |number| WorkerMailbox {
        number,
        mailboxes: mailboxes.clone(),
        out: (0..workers).map(|_| HandoffBundle::default()).collect(),
        inbox: HandoffBundle::default(),
        sources: sources.clone(),
    };
    (0..workers).map(mailbox).collect()
}

impl WorkerMailbox {
    /// Number of the worker.
    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    /// Accepted connections of all workers, by source.
    pub(crate) fn sources(&self) -> SourceCounts {
        self.sources.clone()
    }

    fn own(&self) -> Option<&Mailbox> {
        self.mailboxes.get(usize::from(self.number))
    }

    /// Sets the waker of the owner, which is notified of new messages.
    pub(crate) fn set_owner(&self, waker: Waker) {
        if let Some(own) = self.own() {
            // Each mailbox is attached to one driver.
            let _ = own.owner.set(waker);
        }
    }

    /// Queues a message for the end of the turn; `false` if there is no such worker.
    pub(crate) fn queue(&mut self, worker: u8, message: HandoffMessage<'_>) -> bool {
        let Some(bundle) = self.out.get_mut(usize::from(worker)) else {
            return false;
        };
        bundle.bytes.extend_from_slice(message.bytes);
        bundle
            .heads
            .push((message.kind, message.bytes.len() as u32));
        true
    }

    /// Delivers the queued messages; returns the number of messages dropped at full mailboxes.
    pub(crate) fn deliver(&mut self) -> usize {
        let mut lost = 0;
        for (bundle, mailbox) in self.out.iter_mut().zip(self.mailboxes.iter()) {
            if bundle.heads.is_empty() {
                continue;
            }
            let mut waiting = lock(&mailbox.waiting);
            if waiting.heads.is_empty() {
                core::mem::swap(&mut *waiting, bundle);
            } else if waiting.bytes.len() + bundle.bytes.len() <= MAX_MAILBOX_BYTES {
                waiting.append(bundle);
            } else {
                lost += bundle.heads.len();
            }
            mailbox.filled.store(true, Ordering::SeqCst);
            drop(waiting);
            bundle.clear();
            if let Some(owner) = mailbox.owner.get() {
                owner.nudge();
            }
        }
        lost
    }

    /// Whether messages are waiting.
    pub(crate) fn has_messages(&self) -> bool {
        self.own()
            .is_some_and(|own| own.filled.load(Ordering::SeqCst))
    }

    /// Takes all waiting messages; the bundle is returned with [`WorkerMailbox::recycle`].
    pub(crate) fn take(&mut self) -> HandoffBundle {
        let mut messages = core::mem::take(&mut self.inbox);
        if let Some(own) = self.own() {
            let mut waiting = lock(&own.waiting);
            own.filled.store(false, Ordering::SeqCst);
            core::mem::swap(&mut *waiting, &mut messages);
        }
        messages
    }

    /// Returns a bundle, so that its memory is used again.
    pub(crate) fn recycle(&mut self, mut bundle: HandoffBundle) {
        bundle.clear();
        self.inbox = bundle;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::ConnectionId;

    fn message(number: u64, bytes: &[u8]) -> HandoffMessage<'_> {
        let connection = ConnectionId(number);
        let head = HandoffKind::Closed { connection };
        HandoffMessage { kind: head, bytes }
    }

    #[test]
    fn messages_arrive_whole_and_in_order() {
        let mut worker_mailboxes = worker_mailboxes(2);
        for round in 0..3 {
            assert!(worker_mailboxes[0].queue(1, message(round * 2, b"one")));
            assert!(worker_mailboxes[0].queue(1, message(round * 2 + 1, b"")));
            assert_eq!(worker_mailboxes[0].deliver(), 0);
        }
        assert!(
            !worker_mailboxes[0].queue(2, message(0, b"")),
            "there is no such worker"
        );
        assert!(worker_mailboxes[1].has_messages() && !worker_mailboxes[0].has_messages());
        let bundle = worker_mailboxes[1].take();
        let numbers: Vec<(HandoffKind, usize)> = bundle
            .messages()
            .map(|message| (message.kind, message.bytes.len()))
            .collect();
        let expected: Vec<(HandoffKind, usize)> = (0..6)
            .map(|number| {
                (
                    message(number, b"").kind,
                    if number % 2 == 0 { 3 } else { 0 },
                )
            })
            .collect();
        assert_eq!(numbers, expected);
        worker_mailboxes[1].recycle(bundle);
        assert!(!worker_mailboxes[1].has_messages() && worker_mailboxes[1].take().heads.is_empty());
    }

    #[test]
    fn full_mailbox_drops_and_counts_messages() {
        let mut worker_mailboxes = worker_mailboxes(2);
        let much = vec![0; MAX_MAILBOX_BYTES / 2 + 1];
        for lost in [0, 1] {
            worker_mailboxes[0].queue(1, message(1, &much));
            assert_eq!(worker_mailboxes[0].deliver(), lost);
        }
        assert_eq!(worker_mailboxes[1].take().heads.len(), 1);
    }
}
