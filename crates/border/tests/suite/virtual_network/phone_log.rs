//! The log of a phone: the indications that it received, with their messages.

use engine::Time;
use sip::{DialogId, Ending, Failure, Fork, LegId, ServerTransaction, TransactionId};
use wire::sip::Message;

/// An event at a phone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PhoneEvent {
    Offered,
    Progressed(u16, bool, Option<Fork>),
    Answered,
    Failed(Failure, u16),
    Acked,
    Cancelled,
    Pracked(ServerTransaction),
    Request(ServerTransaction),
    RequestCancelled,
    Response(u16, TransactionId),
    TimedOut,
    OutOfDialog(ServerTransaction),
    InDialog(DialogId, ServerTransaction),
    OutOfDialogResponse(u16),
    OutOfDialogTimedOut,
    Ended(Ending),
    RefreshDue,
    SessionExpired,
    FlowFailed,
}

/// An event with its message.
#[derive(Clone, Debug)]
pub struct LogEntry {
    pub at: Time,
    pub leg: Option<LegId>,
    pub event: PhoneEvent,
    pub bytes: Vec<u8>,
}

impl LogEntry {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    pub fn method(&self) -> String {
        Message::parse(&self.bytes)
            .map(|message| String::from_utf8_lossy(message.method().as_bytes()).into_owned())
            .unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> String {
        let message = Message::parse(&self.bytes).unwrap();
        let id = wire::sip::HeaderId::from_name(name.as_bytes());
        let value = match id {
            wire::sip::HeaderId::Other => message.header_named(name.as_bytes()),
            id => message.header(id),
        };
        String::from_utf8_lossy(value.unwrap_or_default()).into_owned()
    }

    pub fn body(&self) -> String {
        let message = Message::parse(&self.bytes).unwrap();
        String::from_utf8_lossy(message.body()).into_owned()
    }
}
