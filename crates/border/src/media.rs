//! Media that is anchored here: the plane with its sockets and sessions, and the port pools of the configuration.

use crate::admission::MediaPaths;
use crate::bodies::session_of;
use crate::shared::Ctx;
use anchor::sdp::{MediaFacts, parse_media};
use anchor::sockets::SocketWork;
use anchor::{AnchorError, MediaPlane, MediaPool, MediaSide};
use config::{Config, InterfaceId, MediaSecurity, TrunkId};
use engine::{EventKind, Worker};
use media::Latching;
use media::forward::SessionStats;
use media::ports::PortPool;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use wire::sip::Message;

/// Attribute of a description with ICE (RFC 8839).
const ICE: &[u8] = b"a=ice-ufrag:";

/// Addresses of a peer, for its media side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MediaPeer {
    /// Source or destination of its signalling.
    signals_from: IpAddr,
    /// Address of the first media line in use of its description.
    described: Option<IpAddr>,
    /// Its description has ICE: it may have candidates of other families.
    has_ice: bool,
}

impl MediaPeer {
    /// A peer without a description.
    pub(crate) fn new(signals_from: IpAddr) -> MediaPeer {
        MediaPeer {
            signals_from,
            described: None,
            has_ice: false,
        }
    }

    /// The sender of `message`, which may have a description.
    pub(crate) fn of_message(signals_from: IpAddr, message: &Message<'_>) -> MediaPeer {
        let session = session_of(message);
        let sdp = session.bytes(message.body()).unwrap_or_default();
        let lines = parse_media(sdp).unwrap_or_default();
        MediaPeer {
            signals_from,
            described: lines.iter().find_map(MediaFacts::rtp).map(|at| at.ip()),
            has_ice: sdp.windows(ICE.len()).any(|window| window == ICE),
        }
    }
}

/// Anchored media of this worker.
#[derive(Debug)]
pub(crate) struct BorderMedia {
    pub(crate) plane: MediaPlane,
    /// The index of the port pool of each range in the configuration.
    pools: Vec<u16>,
    /// Paths of media that is anchored here.
    pub(crate) paths: MediaPaths,
    pub(crate) last_stats: Option<(u64, Box<SessionStats>)>,
}

impl BorderMedia {
    pub(crate) fn new(plane: MediaPlane) -> BorderMedia {
        BorderMedia {
            plane,
            pools: Vec::new(),
            paths: MediaPaths::default(),
            last_stats: None,
        }
    }

    /// Opens the port pools of a configuration. Existing pools are kept with the ports that calls hold.
    pub(crate) fn open_pools(&mut self, ctx: &mut Ctx, worker: &Worker) {
        let config = ctx.config.clone();
        self.pools.clear();
        for range in &config.media_ranges {
            let (first, last) = range.part(worker);
            let known = self.plane.pools.iter().position(|pool| {
                (pool.ports.address(), pool.first, pool.last) == (range.address, first, last)
            });
            let index = match known {
                Some(index) => index,
                None => {
                    let entropy = ctx.entropy.fork();
                    match PortPool::new(range.address, first, last, entropy) {
                        Ok(ports) => {
                            self.plane.pools.push(MediaPool { first, last, ports });
                            self.plane.pools.len() - 1
                        }
                        // Checked configurations have at least one pair per range. An index beyond all pools refuses
                        // calls.
                        Err(_) => usize::from(u16::MAX),
                    }
                }
            };
            self.pools.push(u16::try_from(index).unwrap_or(u16::MAX));
        }
        self.plane.inactivity = config.media.timeout;
        self.plane.hold_inactivity = config.media.hold_timeout;
    }

    /// The media side of an interface towards a peer. Its address family is that of the peer's description, if there is
    /// one, and else that of its signalling: phones with both families may signal by one and offer media by the other.
    ///
    /// # Errors
    /// [`AnchorError::Family`], or [`AnchorError::Unanchorable`] without media addresses.
    pub(crate) fn media_side(
        &self,
        config: &Config,
        interface: InterfaceId,
        trunk: Option<TrunkId>,
        peer: MediaPeer,
    ) -> Result<MediaSide, AnchorError> {
        let interface_config = config.interface(interface);
        let media = &interface_config.ok_or(AnchorError::Unanchorable)?.media;
        let remote = peer.signals_from;
        let family = peer.described.unwrap_or(remote);
        let same = |at: &&config::MediaAddress| at.address.is_ipv4() == family.is_ipv4();
        let address = match media.iter().find(same) {
            Some(address) => Some(address),
            None if peer.described.is_some() && !peer.has_ice && !media.is_empty() => {
                return Err(AnchorError::Family);
            }
            None => media.first(),
        };
        let address = address.ok_or(AnchorError::Unanchorable)?;
        let pool = self.pools.get(address.range).copied();
        Ok(MediaSide {
            pool: pool.ok_or(AnchorError::Unanchorable)?,
            advertised: address.signalled(),
            latching: Latching::SameAddress(remote),
            dscp: config.media.dscp,
            hides: config.hiding(interface).is_some(),
            transcoding: config
                .transcoding(interface, trunk)
                .filter(|transcoding| !transcoding.codecs.is_empty())
                .cloned(),
            security: config
                .security(interface, trunk)
                .filter(|security| ***security != MediaSecurity::default())
                .cloned(),
        })
    }

    /// Reports that a port pool is exhausted.
    pub(crate) fn ports_exhausted(&self, ctx: &mut Ctx, pool: u16) {
        ctx.counters.ports_exhausted += 1;
        let config = ctx.config.clone();
        let pools = &self.pools;
        let plane = &self.plane;
        ctx.events.tell(ctx.now, || {
            let interface = config.interfaces.iter().find(|interface| {
                interface
                    .media
                    .iter()
                    .any(|media| pools.get(media.range) == Some(&pool))
            });
            let [address, ports] = plane.pool_texts(pool);
            EventKind::MediaPortsExhausted {
                interface: interface.map_or_else(String::new, |interface| interface.name.clone()),
                address,
                ports,
            }
        });
    }

    /// Closes unused media sockets outside of the configured ranges.
    pub(crate) fn close_unused_sockets(&mut self, config: &Config) {
        let wanted = |address: SocketAddr| {
            config.media_ranges.iter().any(|range| {
                range.address == address.ip()
                    && (range.first..=range.last).contains(&address.port())
            })
        };
        let mut work: VecDeque<SocketWork> = VecDeque::new();
        self.plane.sockets.close_outside_ranges(wanted, &mut work);
        self.plane.work.append(&mut work);
    }
}
