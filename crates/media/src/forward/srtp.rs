//! SRTP at packet time (RFC 3711): unprotects and protects packets in place with the contexts of a side.

use engine::{DropReason, MediaPacket};
use protect::srtp::{ContextLimits, Contexts, Inbound, KeyError, MasterKey, Outbound, Suite};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Synchronisation sources of one side and direction: every transfer and every announcement may bring another one.
const MAX_SSRCS: usize = 256;
/// Previous associations of a side whose contexts are kept: those of other early dialogs of the call. Not fewer than
/// the control side returns to (`MAX_EARLY` in the crate `anchor`).
const MAX_PREVIOUS: usize = 4;

/// Media security of a side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// None that we terminate: packets are relayed unchanged.
    #[default]
    None,
    /// SRTP whose keys are not agreed yet: no packet is accepted or sent.
    Pending,
    /// SRTP with these keys.
    Srtp(Arc<Keys>),
}

/// SRTP keys of a side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    /// Identifies the association. Another number resets the rollover counters to zero, as a new DTLS association does
    /// (RFC 5764). New keys under the same number are a re-keying, and the counters continue (RFC 3711 section 8.1).
    pub association: u32,
    /// Master key for packets that we send.
    pub local: MasterKey,
    /// Master keys for packets that we receive. There are several if the peer offered several (RFC 4568 section 6.1) or
    /// several peers answered one offer.
    pub remote: Vec<MasterKey>,
    /// Replay window in packets that the peer requested (`WSH`, RFC 4568 section 6.3.7). The default is the minimum.
    pub window: usize,
}

impl Keys {
    /// Whether contexts of these keys remain in use with the keys `now`.
    fn continues_in(&self, now: &Keys) -> bool {
        self.association == now.association || self.local == now.local
    }
}

/// SRTP state of a side.
#[derive(Debug)]
pub(crate) struct SideSrtp {
    /// Whether DTLS is expected on its RTP port; such datagrams are punted to control.
    pub(crate) dtls: bool,
    keys: Option<Arc<Keys>>,
    contexts: Option<Contexts>,
    /// Contexts of previous associations, the latest at the end. An early dialog follows another one, and the final
    /// answer may return to the first: with new contexts its key would repeat its keystream (RFC 3711 section 9.1).
    previous: Vec<(Arc<Keys>, Contexts)>,
}

impl SideSrtp {
    pub(crate) fn new(dtls: bool) -> SideSrtp {
        SideSrtp {
            dtls,
            keys: None,
            contexts: None,
            previous: Vec::new(),
        }
    }

    /// Applies the keys of a plan. With `None` no packet is accepted or sent until there are keys again.
    pub(crate) fn apply(&mut self, keys: Option<&Arc<Keys>>) {
        let before = core::mem::replace(&mut self.keys, keys.cloned());
        if before.as_ref() == keys {
            return;
        }
        let replaced = before.zip(self.contexts.take());
        let Some(keys) = keys else {
            self.keep(replaced);
            return;
        };
        let continued = match replaced {
            Some((before, contexts)) if before.continues_in(keys) => Some((before, contexts)),
            replaced => {
                let mut previous = self.previous.iter();
                let at = previous.position(|(previous, _)| previous.local == keys.local);
                let returning = at.map(|at| self.previous.remove(at));
                self.keep(replaced);
                returning
            }
        };
        self.contexts = match continued {
            Some((before, mut contexts)) => {
                let rekeyed = rekey(&mut contexts, &before, keys);
                rekeyed.is_ok().then_some(contexts)
            }
            None => contexts(keys).ok(),
        };
    }

    /// Keeps the contexts of an association that others replace.
    fn keep(&mut self, replaced: Option<(Arc<Keys>, Contexts)>) {
        if replaced.is_some() && self.previous.len() >= MAX_PREVIOUS {
            self.previous.remove(0);
        }
        self.previous.extend(replaced);
    }

    /// Reads the data that the next packet will access, see [`engine::Forward::prefetch`].
    pub(crate) fn prefetch(&self, inbound: bool) -> u64 {
        self.contexts.as_ref().map_or(0, |contexts| match inbound {
            true => contexts.inbound.prefetch(),
            false => contexts.outbound.prefetch(),
        })
    }

    /// Whether packets can be protected.
    pub(crate) fn is_keyed(&self) -> bool {
        self.contexts.is_some()
    }

    /// The crypto suite in use.
    pub(crate) fn suite(&self) -> Option<Suite> {
        self.keys.as_ref().map(|keys| keys.local.suite())
    }

    /// The highest sequence number that was sent with this source.
    pub(crate) fn last_sent(&self, ssrc: u32) -> Option<u16> {
        let mut sources = self.contexts.as_ref()?.outbound.sources();
        let highest = sources.find(|source| source.ssrc == ssrc)?.rtp?;
        Some(highest as u16)
    }

    /// Authenticates and decrypts a packet in place, which shortens it.
    pub(crate) fn unprotect(
        &mut self,
        packet: &mut MediaPacket<'_>,
        rtcp: bool,
    ) -> Result<(), DropReason> {
        let inbound = &mut self.contexts.as_mut().ok_or(DropReason::SrtpNoKey)?.inbound;
        let bytes = packet.bytes_mut();
        packet.length = match rtcp {
            true => inbound.unprotect_rtcp(bytes)?,
            false => inbound.unprotect_rtp(bytes)?,
        };
        Ok(())
    }

    /// Encrypts a packet in place. It grows into the free space behind it.
    pub(crate) fn protect(
        &mut self,
        packet: &mut MediaPacket<'_>,
        rtcp: bool,
    ) -> Result<(), DropReason> {
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
        sources: MAX_SSRCS,
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

/// Replaces the keys `before` by the keys `now`. In a re-keying packets under previous remote keys are accepted until
/// enough packets under a new key have been authenticated; another association accepts only its own keys.
fn rekey(contexts: &mut Contexts, before: &Keys, now: &Keys) -> Result<(), KeyError> {
    let continues = now.association == before.association;
    if continues {
        let mut added = (now.remote.iter()).filter(|key| !before.remote.contains(key));
        added.try_for_each(|key| contexts.inbound.replace(key))?;
    } else {
        contexts.inbound = inbound(now)?;
    }
    if now.local == before.local {
        // An unchanged key keeps its context: a new context would repeat its keystream.
        return Ok(());
    }
    if continues {
        contexts.outbound.rekey(&now.local)
    } else {
        contexts.outbound = Outbound::new(&now.local, limits(now))?;
        Ok(())
    }
}
