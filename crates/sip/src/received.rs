//! A received message with its transport.

use crate::api::Flow;
use wire::sip::Message;

/// A received request or response, and the flow on which it arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received<'m> {
    pub(crate) message: &'m Message<'m>,
    pub(crate) flow: &'m Flow,
}
