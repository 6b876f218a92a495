//! Port pairs with their sockets.

use super::security::side::SideSecurity;
use super::{AnchorError, CallMedia, LineSide, MediaDirection, MediaPlane};
use core::time::Duration;
use engine::SocketId;
use media::ports::PortPair;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::net::SocketAddr;

/// Result of the replacement of a port that could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortReplacement {
    /// The socket does not belong to this call.
    Foreign,
    /// Replaced by another pair before a description has named the port; the RTP address of the new one.
    By(SocketAddr),
    /// The same afterwards: the peer learns the new port from another offer or answer.
    Reannounced(SocketAddr),
    /// No other pair of this pool is left, or too many have failed.
    Exhausted(u16),
    /// No other port would help: open files or memory are at their limit, or the address is missing.
    AllFail,
    /// A description has named the port, and its DTLS association or ICE agent is bound to it.
    Announced,
    /// The call continues without an RTCP port on this side.
    WithoutRtcp,
}

/// The ports of a side that descriptions have named.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct PortAnnouncement {
    /// The present one.
    pub(super) current: bool,
    /// One that was replaced; the peer may still send to it.
    former: bool,
}

/// Pairs that are replaced in one call at most: enough for ranges of which nearly all ports are in use, since each pair
/// is tried once in [`LEFT_OUT`] by all calls together.
const MAX_REPLACED_PAIRS: u8 = 64;
/// Time for which a pair is left out after another program was seen to use a port of it.
const LEFT_OUT: Duration = Duration::from_secs(60);

/// Errors of the system that no other port would avert (EMFILE, ENFILE, ENOMEM, ENOBUFS, EADDRNOTAVAIL), as the
/// standard library ends their texts.
const ERRORS_OF_ALL_PORTS: [&str; 5] = [
    "(os error 24)",
    "(os error 23)",
    "(os error 12)",
    "(os error 105)",
    "(os error 99)",
];

/// Whether no port could be opened, for lack of resources or of the address.
fn concerns_all_ports(error: &str) -> bool {
    let mut errors = ERRORS_OF_ALL_PORTS.iter();
    errors.any(|end| error.ends_with(end))
}

/// Allocates a pair and opens both sockets at once, so that a port in use by another program is detected before a
/// description announces it.
pub(super) fn new_side(
    plane: &mut MediaPlane,
    pool: u16,
    carriage: media::Carriage,
) -> Result<LineSide, AnchorError> {
    let exhausted = AnchorError::Exhausted(pool);
    let now = plane.keying.now;
    let ports = &mut plane
        .pools
        .get_mut(usize::from(pool))
        .ok_or(exhausted)?
        .ports;
    let pair = ports.allocate(now).ok_or(exhausted)?;
    let [rtp_before, rtcp_before] = pair.previous_sockets();
    match plane
        .sockets
        .acquire_again(pair.rtp(), rtp_before, &mut plane.work)
    {
        Some(rtp) => Ok(LineSide {
            rtcp: match carriage {
                // Without a socket for RTCP the call continues without RTCP.
                media::Carriage::Rtp => {
                    plane
                        .sockets
                        .acquire_again(pair.rtcp(), rtcp_before, &mut plane.work)
                }
                _ => None,
            },
            pair,
            rtp,
            announced: PortAnnouncement::default(),
            signalled_rtp: None,
            signalled_rtcp: None,
            direction: MediaDirection {
                sends: true,
                receives: true,
            },
            latch_epoch: 0,
            clock_rates: SmallVec::new(),
            encodings: SmallVec::new(),
            special: SmallVec::new(),
            mux: false,
            encrypted: false,
            mux_offered: false,
            security: None,
        }),
        None => {
            give_back(plane, pool, pair);
            Err(exhausted)
        }
    }
}

pub(super) fn drop_side(plane: &mut MediaPlane, pool: u16, mut side: LineSide) {
    side.pair.set_sockets([Some(side.rtp), side.rtcp]);
    if let Some(security) = &mut side.security {
        security.close(side.rtp, &mut plane.keying.datagrams);
    }
    let now = plane.keying.now;
    plane.sockets.release(side.rtp, now);
    if let Some(rtcp) = side.rtcp {
        plane.sockets.release(rtcp, now);
    }
    give_back(plane, pool, side.pair);
}

fn give_back(plane: &mut MediaPlane, pool: u16, pair: PortPair) {
    let Some(pool) = plane.pools.get_mut(usize::from(pool)) else {
        return;
    };
    let returned = pool.ports.release(pair);
    debug_assert!(returned.is_ok(), "a pair went back to another pool");
}

impl MediaPlane {
    /// Address and range of a pool, for events; empty for a pool that the plane does not have.
    pub fn pool_texts(&self, pool: u16) -> [String; 2] {
        let pool = self.pools.get(usize::from(pool));
        let texts = pool.map(|pool| {
            let address = pool.ports.address().to_string();
            [address, format!("{}-{}", pool.first, pool.last)]
        });
        texts.unwrap_or_default()
    }
}

impl CallMedia {
    /// Whether a pair was replaced before because another program uses a port of it.
    pub fn has_replaced_pairs(&self) -> bool {
        self.replaced_pairs > 0
    }

    /// Replaces the pair of a socket that could not be opened for this reason; the pair is left out for [`LEFT_OUT`].
    pub fn replace_pair(
        &mut self,
        plane: &mut MediaPlane,
        socket: SocketId,
        error: &str,
    ) -> PortReplacement {
        if self.switch_to_set_of(plane, socket) {
            let replaced = self.replace_pair_in_force(plane, socket, error);
            self.switch_back(plane);
            return replaced;
        }
        self.replace_pair_in_force(plane, socket, error)
    }

    fn replace_pair_in_force(
        &mut self,
        plane: &mut MediaPlane,
        socket: SocketId,
        error: &str,
    ) -> PortReplacement {
        let place = self.lines.iter().enumerate().find_map(|(index, line)| {
            let side = line.as_ref()?.sides.iter().position(|s| s.has(socket))?;
            Some((index, side))
        });
        let Some((index, number)) = place else {
            return PortReplacement::Foreign;
        };
        let (Some(media), Some(Some(line))) = (self.sides.get(number), self.lines.get_mut(index))
        else {
            return PortReplacement::Foreign;
        };
        let Some(slot) = line.sides.get_mut(number) else {
            return PortReplacement::Foreign;
        };
        let announced = slot.announced;
        if announced.current && slot.rtcp == Some(socket) {
            slot.rtcp = None;
            self.send_plan(plane);
            return PortReplacement::WithoutRtcp;
        }
        let is_bound = slot
            .security
            .as_deref()
            .is_some_and(SideSecurity::receives_stun_or_dtls);
        if announced.current && is_bound {
            return PortReplacement::Announced;
        }
        if concerns_all_ports(error) {
            // The next call may get their open files.
            plane.sockets.close_early(&mut plane.work);
            return PortReplacement::AllFail;
        }
        let until = plane.keying.now + LEFT_OUT;
        if let Some(pool) = plane.pools.get_mut(usize::from(media.pool)) {
            pool.ports.leave_out(&slot.pair, until);
        }
        if self.replaced_pairs >= MAX_REPLACED_PAIRS {
            return PortReplacement::Exhausted(media.pool);
        }
        self.replaced_pairs += 1;
        let Ok(new) = new_side(plane, media.pool, line.carriage) else {
            return PortReplacement::Exhausted(media.pool);
        };
        let new = LineSide {
            announced: PortAnnouncement {
                current: false,
                former: announced.former || announced.current,
            },
            signalled_rtp: slot.signalled_rtp,
            signalled_rtcp: slot.signalled_rtcp,
            direction: slot.direction,
            latch_epoch: slot.latch_epoch,
            clock_rates: core::mem::take(&mut slot.clock_rates),
            encodings: core::mem::take(&mut slot.encodings),
            special: core::mem::take(&mut slot.special),
            mux: slot.mux,
            // Further offers set it again; an open one may still be answered.
            mux_offered: slot.mux_offered && announced.current,
            encrypted: slot.encrypted,
            security: slot.security.take(),
            ..new
        };
        let address = new.pair.rtp();
        let old = core::mem::replace(slot, new);
        // The failed socket does not exist any more, and its number may belong to the new pair.
        for old_socket in core::iter::once(old.rtp).chain(old.rtcp) {
            if old_socket != socket {
                plane
                    .sockets
                    .discard(old_socket, plane.keying.now, &mut plane.work);
            }
        }
        if let Some(pool) = plane.pools.get_mut(usize::from(media.pool)) {
            let returned = pool.ports.release(old.pair);
            debug_assert!(returned.is_ok(), "a pair went back to another pool");
        }
        if self.added {
            self.send_plan(plane);
        }
        if announced.current
            && let Some(steps) = self.version_steps.get_mut(number)
        {
            *steps += 1;
        }
        match announced.current {
            true => PortReplacement::Reannounced(address),
            false => PortReplacement::By(address),
        }
    }

    /// Whether a peer may still send to a port that was replaced after a description had named it.
    pub fn has_former_ports(&self) -> bool {
        let lines = self.lines.iter().flatten();
        let mut sides = lines.flat_map(|line| &line.sides);
        sides.any(|side| side.announced.former)
    }

    /// Both sides have agreed on the ports that descriptions name now.
    pub fn forget_former_ports(&mut self) {
        let lines = self.lines.iter_mut().flatten();
        for side in lines.flat_map(|line| &mut line.sides) {
            // Another one may have failed since the last description.
            side.announced.former &= !side.announced.current;
        }
    }
}
