//! Refusals of requests, and the headers that explain them.

use ::rules::RuleRefusal;
use anchor::AnchorError;
use engine::{Reason, Time};
use sip::{Endpoint, MessageContent, ServerTransaction};
use wire::sip::{Edit, HeaderId};

/// Status and reason phrase of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StatusLine {
    pub(crate) status: u16,
    /// The phrase of a header rule; `None`: that of the status.
    pub(crate) reason: Option<Box<str>>,
}

impl StatusLine {
    /// Answers a request; `why` as in [`refuse_with`].
    pub(crate) fn refuse(
        &self,
        endpoint: &mut Endpoint,
        transaction: ServerTransaction,
        why: Option<Reason>,
        now: Time,
    ) {
        let warning = why.and_then(|why| warning_of(self.status, why));
        let retry: Option<&[u8]> = (self.status == 503).then_some(b"1");
        let edit = match (retry, warning.as_deref()) {
            (Some(value), _) => Some((HeaderId::RetryAfter, value)),
            (None, Some(value)) => Some((HeaderId::Warning, value)),
            (None, None) => None,
        };
        let edit = edit.map(|(id, value)| [Edit::Add { id, value }]);
        let edits: &[Edit<'_>] = edit.as_ref().map_or(&[], |edit| edit);
        let content = MessageContent {
            reason: self.reason.as_deref().map(str::as_bytes),
            ..MessageContent::default().with(edits)
        };
        let _ = endpoint.respond(transaction, self.status, &content, now);
    }
}

impl From<u16> for StatusLine {
    fn from(status: u16) -> StatusLine {
        StatusLine {
            status,
            reason: None,
        }
    }
}

impl From<&RuleRefusal> for StatusLine {
    fn from(refusal: &RuleRefusal) -> StatusLine {
        StatusLine {
            status: refusal.status,
            reason: refusal.reason.clone(),
        }
    }
}

/// Answers a request with a status.
pub(crate) fn refuse(
    endpoint: &mut Endpoint,
    transaction: ServerTransaction,
    status: u16,
    now: Time,
) {
    refuse_with(endpoint, transaction, status, None, now);
}

/// Answers a request; `why` is added in Warning if the SDP was the reason.
pub(crate) fn refuse_with(
    endpoint: &mut Endpoint,
    transaction: ServerTransaction,
    status: u16,
    why: Option<Reason>,
    now: Time,
) {
    StatusLine::from(status).refuse(endpoint, transaction, why, now);
}

/// The value of Warning (RFC 3261 section 20.43) for an unacceptable SDP; `None` for statuses that do not concern the
/// message of the peer.
pub(crate) fn warning_of(status: u16, why: Reason) -> Option<Vec<u8>> {
    matches!(status, 415 | 488).then(|| format!("399 hornwork \"{}\"", why.text()).into_bytes())
}

/// Reason (RFC 3326) for the end of a call with an unacceptable SDP.
pub(crate) fn reason_of(error: AnchorError) -> Vec<u8> {
    let (status, text) = (error.status(), error.text());
    format!("SIP;cause={status};text=\"{text}\"").into_bytes()
}
