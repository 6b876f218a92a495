//! Bodies of forwarded messages.

use anchor::{CallMedia, MediaPlane};
use sip::Body;
use wire::sip::{HeaderId, Message, Session};

/// The role of an SDP in its exchange (RFC 3264).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SdpRole {
    Offer,
    Answer,
    /// An answer of one early dialog; others may follow.
    EarlyAnswer,
}

/// The body of a forwarded message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    /// Unchanged.
    Untouched,
    /// With the SDP in the buffer.
    Rewritten,
    /// Removed.
    Nothing,
}

/// The body of a forwarded message, with the buffer for its SDP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CarriedBody<'b> {
    pub(crate) carried: Carried,
    pub(crate) sdp: &'b [u8],
}

impl<'b> CarriedBody<'b> {
    pub(crate) fn of(self, message: &'b Message<'_>) -> Body<'b> {
        body_of(self.carried, self.sdp, message)
    }

    /// The SDP that is forwarded with `message`; empty if there is none.
    pub(crate) fn sdp_of(self, message: &'b Message<'_>) -> &'b [u8] {
        let sdp = match self.carried {
            Carried::Nothing => None,
            Carried::Untouched => session_of(message).bytes(message.body()),
            Carried::Rewritten if is_multipart(message) => {
                let kind = message.header(HeaderId::ContentType);
                Session::of(kind, self.sdp).bytes(self.sdp)
            }
            Carried::Rewritten => Some(self.sdp),
        };
        sdp.unwrap_or_default()
    }
}

/// The SDP in a message. An unreadable Content-Type counts as none.
pub(crate) fn session_of(message: &Message<'_>) -> Session {
    if message.body().is_empty() {
        return Session::None;
    }
    let kind = message
        .header(HeaderId::ContentType)
        .filter(|_| message.content_type().is_ok());
    Session::of(kind, message.body())
}

/// Whether the message has an SDP.
pub(crate) fn has_sdp(message: &Message<'_>) -> bool {
    session_of(message) != Session::None
}

/// Whether the SDP is part of a multipart body.
pub(crate) fn is_multipart(message: &Message<'_>) -> bool {
    matches!(session_of(message), Session::Part(_))
}

/// The body of a forwarded message.
pub(crate) fn body_of<'b>(carried: Carried, body: &'b [u8], message: &'b Message<'_>) -> Body<'b> {
    match carried {
        Carried::Untouched => Body::Template,
        Carried::Nothing => Body::None,
        Carried::Rewritten => Body::New {
            content_type: message
                .header(HeaderId::ContentType)
                .filter(|_| is_multipart(message))
                .unwrap_or(b"application/sdp"),
            bytes: body,
        },
    }
}

/// Composes the pending offer again, for another target or after the sockets were opened.
pub(crate) fn offer_again(
    media: &mut CallMedia,
    plane: &mut MediaPlane,
    message: &Message<'_>,
    out: &mut Vec<u8>,
) {
    let session = session_of(message);
    let body = message.body();
    let offer = session.bytes(body).unwrap_or_default();
    session.replace(body, |out| media.offer_again(plane, offer, out), out);
}
