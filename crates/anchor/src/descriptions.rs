//! The descriptions that were exchanged last. Repeated unchanged in a re-INVITE, the one of a side refreshes its
//! session without the other side (RFC 4028 section 7.4).

use super::CallMedia;
use crate::Side;
use core::hash::Hasher;
use serde::{Deserialize, Serialize};
use std::hash::DefaultHasher;

/// Descriptions of the present session.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ExchangedDescriptions {
    /// The last one sent to the caller and to the callee; empty if it is unknown or not needed.
    sent: [Box<[u8]>; 2],
    /// Fingerprints of the last ones received from them.
    received: [u64; 2],
    /// An offer without its final answer: as it was sent, and the fingerprint of the received one.
    offer: Option<(Box<[u8]>, u64)>,
    /// The sides whose descriptions are kept.
    kept: [bool; 2],
}

impl ExchangedDescriptions {
    /// Those of a call without any; both sides are kept.
    pub(super) fn new() -> ExchangedDescriptions {
        ExchangedDescriptions {
            kept: [true; 2],
            ..ExchangedDescriptions::default()
        }
    }

    /// An offer, as received and as sent.
    pub(super) fn offered(&mut self, offer: &[u8], sent: &[u8]) {
        self.offer = Some((sent.into(), fingerprint(offer)));
    }

    /// The open offer was written again.
    pub(super) fn offered_again(&mut self, sent: &[u8]) {
        if let Some((before, _)) = &mut self.offer {
            *before = sent.into();
        }
    }

    /// An answer of `from`, as received and as sent.
    pub(super) fn answered(&mut self, from: Side, answer: &[u8], sent: &[u8]) {
        if let Some((offer, offered)) = &self.offer {
            let (offer, offered) = (offer.clone(), *offered);
            self.set_sent(from, offer);
            self.set_received(from.other(), offered);
        }
        self.set_sent(from.other(), sent.into());
        self.set_received(from, fingerprint(answer));
        self.forget_unneeded();
    }

    /// The description of this side is not known.
    pub(super) fn forget(&mut self, side: Side) {
        self.set_sent(side, Box::default());
    }

    fn set_sent(&mut self, side: Side, description: Box<[u8]>) {
        if let Some(sent) = self.sent.get_mut(side.index()) {
            *sent = description;
        }
    }

    fn set_received(&mut self, side: Side, fingerprint: u64) {
        if let Some(received) = self.received.get_mut(side.index()) {
            *received = fingerprint;
        }
    }

    /// The offer was refused, or has its final answer.
    pub(super) fn close_offer(&mut self) {
        self.offer = None;
    }

    fn forget_unneeded(&mut self) {
        for (sent, kept) in self.sent.iter_mut().zip(self.kept) {
            if !kept {
                *sent = Box::default();
            }
        }
    }
}

impl CallMedia {
    /// From now on keeps the descriptions of these sides only (caller, callee): those whose sessions are refreshed by
    /// re-INVITE.
    pub fn keep_descriptions(&mut self, sides: [bool; 2]) {
        if sides == [false; 2] {
            self.exchanged = None;
        } else if let Some(exchanged) = &mut self.exchanged {
            exchanged.kept = sides;
            exchanged.forget_unneeded();
        }
    }

    /// The last description that was sent to this side, if it may be offered again. The role of DTLS in an answer is
    /// none in an offer (RFC 8842 section 5.1).
    pub fn description_for(&self, side: Side) -> Option<&[u8]> {
        let sent = self.exchanged.as_ref()?.sent.get(side.index())?;
        let has_role = lines(sent).any(|line| line.starts_with(b"a=setup:"));
        Some(&**sent).filter(|sent| !sent.is_empty() && !has_role)
    }

    /// Whether this description of a side is the same as its last one, except its version.
    pub fn is_unchanged(&self, side: Side, sdp: &[u8]) -> bool {
        let exchanged = self.exchanged.as_ref();
        let before = exchanged.and_then(|exchanged| exchanged.received.get(side.index()));
        before == Some(&fingerprint(sdp))
    }
}

fn lines(sdp: &[u8]) -> impl Iterator<Item = &[u8]> {
    sdp.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii_end)
}

/// Fingerprint of a description without its origin: some peers count its version with every message.
fn fingerprint(sdp: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for line in lines(sdp).filter(|line| !line.starts_with(b"o=")) {
        hasher.write(line);
        hasher.write_u8(b'\n');
    }
    hasher.finish()
}
