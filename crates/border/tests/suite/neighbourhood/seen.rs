//! What a phone was told, for tests to look at.

use engine::Time;
use sip::{DialogId, Ending, Failure, Fork, LegId, ServerTransaction, TransactionId};
use wire::sip::Message;

/// What a phone was told, kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
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
    Outside(ServerTransaction),
    InDialog(DialogId, ServerTransaction),
    OutsideResponse(u16),
    OutsideTimedOut,
    Ended(Ending),
    RefreshDue,
    SessionExpired,
    FlowFailed,
}

/// One indication with its message.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at: Time,
    pub leg: Option<LegId>,
    pub told: Told,
    pub bytes: Vec<u8>,
}

impl Seen {
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
