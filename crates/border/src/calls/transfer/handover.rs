//! Legs handed over between workers: a table shared by all of them.

use crate::calls::key::CallKey;
use core::time::Duration;
use engine::worker::lock;
use engine::{HandoffKind, Reason, Time, TransferStep};
use sip::{DetachedDialog, Endpoint};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Lifetime of a transfer: two re-INVITEs of 32 s each, and glare.
pub(super) const LIFETIME: Duration = Duration::from_secs(90);

/// Call-ID and tags, as in Replaces.
pub(super) type Dialog = (Vec<u8>, Vec<u8>, Vec<u8>);

/// The far leg of a call, detached for another worker.
#[derive(Debug)]
pub(super) struct TransferredLeg {
    pub(super) moving: DetachedDialog,
    /// By name: the other worker may have another version of the configuration.
    pub(super) interface: Option<String>,
    pub(super) trunk: Option<String>,
    /// The worker that detached it, and its call.
    pub(super) owner: u8,
    pub(super) call: CallKey,
}

#[derive(Debug)]
pub(super) enum TransferState {
    Requested(Dialog),
    Refused(u16),
    Detached(Box<TransferredLeg>),
    Attached {
        owner: u8,
        call: CallKey,
    },
    /// For the worker that detached it; whether the ends of its call need a new offer and answer.
    Returned(Box<TransferredLeg>, bool),
    Ended {
        call: CallKey,
        why: Reason,
    },
}

#[derive(Debug)]
pub(super) struct Transfer {
    /// The worker that carries it out, and its call.
    pub(super) requester: u8,
    pub(super) call: CallKey,
    /// When the transfer expires, after the leg was detached.
    pub(super) expires_at: Time,
    pub(super) state: TransferState,
}

/// Transfers that involve calls of two workers. Each exists for at most [`LIFETIME`].
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    pub(super) last: u64,
    pub(super) open: BTreeMap<u64, Transfer>,
}

impl Transfers {
    /// Number of transfers.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn ask(&mut self, requester: u8, call: CallKey, dialog: Dialog) -> u64 {
        self.last += 1;
        let state = TransferState::Requested(dialog);
        let transfer = Transfer {
            requester,
            call,
            expires_at: Time::NEVER,
            state,
        };
        self.open.insert(self.last, transfer);
        self.last
    }
}

/// Takes a detached leg; the transfer is then marked as attached.
///
/// # Errors
/// The status of a refusal. A request without a response stays as it is.
pub(super) fn take(transfers: &Mutex<Transfers>, number: u64) -> Result<TransferredLeg, u16> {
    let mut table = lock(transfers);
    let open = table.open.get_mut(&number).ok_or(481u16)?;
    let attached = match &open.state {
        TransferState::Detached(detached) => TransferState::Attached {
            owner: detached.owner,
            call: detached.call,
        },
        TransferState::Refused(status) => return Err(*status),
        _ => return Err(481),
    };
    match core::mem::replace(&mut open.state, attached) {
        TransferState::Detached(detached) => Ok(*detached),
        _ => Err(481),
    }
}

/// Announces a change of the table to another worker.
pub(super) fn announce(endpoint: &mut Endpoint, worker: u8, number: u64, step: TransferStep) {
    endpoint.send_to_worker(worker, HandoffKind::Transfer { number, step });
}
