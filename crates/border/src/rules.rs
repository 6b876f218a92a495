//! Application of header rules: to received messages before they are processed, and to sent messages when they are
//! composed.
//!
//! In-dialog messages are processed on arrival and when they are forwarded. A request that creates a dialog is
//! processed after authentication of its sender, because digest credentials protect the received message, not the
//! result of rules. Messages that the endpoint composes itself (100, CANCEL, ACK of a refusal, PRACK without a body,
//! session refreshes) concern one peer, and are not subject to rules. The application to messages is in `apply`.

pub(crate) mod apply;

use crate::calls::key::CallSlot;
use ::rules::{RuleDirection, RuleLogLine, RuleTag};
use config::TrunkId;
use engine::EventKind;
use wire::sip::{Message, Method};

/// Values that rules store with a call.
pub(crate) type Tags = Option<Box<Vec<(Box<str>, Box<str>)>>>;

/// Maximum number of tags of a call.
pub(super) const MAX_TAGS: usize = 32;

/// Output of rules that is logged after the message was processed.
#[derive(Debug, Default)]
pub(crate) struct RuleOutput {
    /// Number of the call (0: none), and its slot.
    call: u64,
    slot: Option<CallSlot>,
    tags: Vec<RuleTag>,
    log: Vec<RuleLogLine>,
    refused_edits: u32,
    failed_conditions: u32,
    refused: bool,
    /// Events about changes of the message, while messages are stored.
    edits: Vec<EventKind>,
}

/// The message to which rules were applied.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleInput<'a> {
    direction: RuleDirection,
    /// The message that was received; `None` for a response of our own.
    message: Option<&'a Message<'a>>,
    method: Method<'a>,
    status: u16,
}

/// A request admitted by rules, with their changes.
#[derive(Debug, Default)]
pub(crate) struct AdmittedRequest {
    /// The message, if it was changed.
    bytes: Option<Vec<u8>>,
    /// The trunk selected by a rule instead of routes.
    pub(crate) route: Option<TrunkId>,
    /// Values to store with the call.
    pub(crate) tags: Tags,
    /// The authenticated user.
    pub(crate) user: Option<Box<str>>,
}

impl AdmittedRequest {
    /// The changed message.
    pub(crate) fn message(&self) -> Option<Message<'_>> {
        Message::parse(self.bytes.as_deref()?).ok()
    }
}

/// Result of rules for an indication.
pub(super) enum RuleOutcome {
    AsItCame,
    /// The message was changed to this.
    Changed(Vec<u8>),
    /// It was answered.
    Refused,
}
