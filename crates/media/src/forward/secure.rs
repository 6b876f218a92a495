//! SRTP at packet time (RFC 3711): what a side opens with and seals with, in place.

use engine::{DropReason, Packet};
use protect::srtp::{ContextLimits, Contexts, Inbound, KeyError, MasterKey, Outbound, Suite};
use std::sync::Arc;

/// Synchronisation sources of one side and direction: every transfer and every prompt of a machine may bring another.
const SOURCES: usize = 256;

/// How the media of a side is protected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// Not by us: packets pass as they are.
    #[default]
    None,
    /// By SRTP whose keys are not known yet: nothing passes.
    Awaited,
    /// By SRTP with these keys.
    Srtp(Arc<Keys>),
}

/// Keys of a side's SRTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Another number begins anew with rollover counters at zero, as a new DTLS association does (RFC 5764); under the same number
    /// other keys are a re-keying, and counters go on (RFC 3711 section 8.1).
    pub association: u32,
    /// What we seal with.
    pub local: MasterKey,
    /// What we open with; several where the peer named several (RFC 4568 section 6.1), or several peers answered one offer.
    pub remote: Vec<MasterKey>,
    /// The replay window in packets that the peer thinks fit (`WSH`, RFC 4568 section 6.3.7); the default is the least.
    pub window: usize,
}

/// A side that is protected by SRTP.
#[derive(Debug)]
pub(crate) struct Secure {
    /// DTLS comes on its RTP port: control has to see it.
    pub(crate) dtls: bool,
    keys: Option<Arc<Keys>>,
    contexts: Option<Contexts>,
}

impl Secure {
    pub(crate) fn new(dtls: bool) -> Secure {
        Secure {
            dtls,
            keys: None,
            contexts: None,
        }
    }

    /// Takes the keys of a plan; none: what was there is forgotten.
    pub(crate) fn apply(&mut self, keys: Option<&Arc<Keys>>) {
        let Some(keys) = keys else {
            self.keys = None;
            self.contexts = None;
            return;
        };
        let before = self.keys.replace(keys.clone());
        match (&before, &mut self.contexts) {
            (Some(before), _) if before == keys => {}
            (Some(before), Some(contexts)) => {
                if renew(contexts, before, keys).is_err() {
                    self.contexts = None;
                }
            }
            _ => self.contexts = contexts(keys).ok(),
        }
    }

    /// Reads what opening or sealing the next packet will need, see [`engine::Forward::expect`].
    pub(crate) fn read_ahead(&self, open: bool) -> u64 {
        self.contexts.as_ref().map_or(0, |contexts| match open {
            true => contexts.inbound.read_ahead(),
            false => contexts.outbound.read_ahead(),
        })
    }

    /// Whether there is anything to seal with.
    pub(crate) fn is_keyed(&self) -> bool {
        self.contexts.is_some()
    }

    /// The suite in use.
    pub(crate) fn suite(&self) -> Option<Suite> {
        self.keys.as_ref().map(|keys| keys.local.suite())
    }

    /// Opens a packet; it is shorter then.
    pub(crate) fn open(&mut self, packet: &mut Packet<'_>, rtcp: bool) -> Result<(), DropReason> {
        let inbound = &mut self.contexts.as_mut().ok_or(DropReason::SrtpNoKey)?.inbound;
        let bytes = packet.bytes_mut();
        packet.length = match rtcp {
            true => inbound.unprotect_rtcp(bytes)?,
            false => inbound.unprotect_rtp(bytes)?,
        };
        Ok(())
    }

    /// Seals a packet, which grows into the room behind it.
    pub(crate) fn seal(&mut self, packet: &mut Packet<'_>, rtcp: bool) -> Result<(), DropReason> {
        let outbound = &mut self
            .contexts
            .as_mut()
            .ok_or(DropReason::SrtpNoKey)?
            .outbound;
        packet.length = match rtcp {
            true => outbound.protect_rtcp(packet.buffer, packet.length)?,
            false => outbound.protect_rtp(packet.buffer, packet.length)?,
        };
        Ok(())
    }
}

fn limits(keys: &Keys) -> ContextLimits {
    let default = ContextLimits::default();
    ContextLimits {
        window: default.window.max(keys.window),
        sources: SOURCES,
    }
}

fn inbound(keys: &Keys) -> Result<Inbound, KeyError> {
    let (first, more) = keys.remote.split_first().ok_or(KeyError::NoSuchKey)?;
    let mut inbound = Inbound::new(first, limits(keys))?;
    more.iter().try_for_each(|key| inbound.add(key))?;
    Ok(inbound)
}

fn contexts(keys: &Keys) -> Result<Contexts, KeyError> {
    Ok(Contexts {
        outbound: Outbound::new(&keys.local, limits(keys))?,
        inbound: inbound(keys)?,
    })
}

/// Brings contexts from the keys `before` to those of now. Packets under keys of theirs that were in force are opened until a new
/// one has proved itself.
fn renew(contexts: &mut Contexts, before: &Keys, now: &Keys) -> Result<(), KeyError> {
    let fresh = || now.remote.iter().filter(|key| !before.remote.contains(key));
    let room = fresh().try_for_each(|key| contexts.inbound.add(key));
    if room.is_err() {
        // As many keys as are kept at a time, or an identifier used again: only the new ones count.
        contexts.inbound = inbound(now)?;
    }
    if now.local == before.local {
        // Never anew with a key that was used: that would give its keystream away.
        return Ok(());
    }
    if now.association == before.association {
        contexts.outbound.rekey(&now.local)
    } else {
        contexts.outbound = Outbound::new(&now.local, limits(now))?;
        Ok(())
    }
}
