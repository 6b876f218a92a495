//! Port pairs with their sockets.

use super::{AnchorError, LineSide, MediaDirection, MediaPlane};
use media::ports::PortPair;
use smallvec::SmallVec;

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
            announced: false,
            signalled_rtp: None,
            signalled_rtcp: None,
            direction: MediaDirection {
                sends: true,
                receives: true,
            },
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
