//! The plan of a key exchange, and the events about the associations that it negotiates.

use config::{IkeSpec, IkeTunnelSpec};
use protect::esp::{AddressPrefix, NegotiatedPair, SaLifetime, SelectorLimits};
use std::net::{IpAddr, SocketAddr};

/// A key exchange for the tunnels of one outer address.
#[derive(Clone, Debug)]
pub(crate) struct ExchangePlan {
    /// Begins its errors: the table or the file of its settings.
    pub(crate) name: String,
    /// Outer address, with the port of ESP in UDP.
    pub(crate) local: SocketAddr,
    /// Port 500 is open beside that of ESP, and messages begin there. Otherwise both ends use the ports of ESP from the
    /// beginning (RFC 7296 section 2.23).
    pub(crate) uses_port_500: bool,
    /// Policies of the kernel send packets through the associations; its messages must pass beside them.
    pub(crate) has_kernel_policies: bool,
    /// Identity, algorithms and times.
    pub(crate) ike: IkeSpec,
    /// Properties of the negotiated associations.
    pub(crate) packets: PacketPlan,
    /// Tunnels; their index is the number in events.
    pub(crate) tunnels: Vec<ExchangeTunnel>,
}

/// Properties of associations that are not negotiated.
#[derive(Clone, Debug)]
pub(crate) struct PacketPlan {
    /// Its bounds in bytes; those in time follow from the key exchange.
    pub(crate) lifetime: SaLifetime,
    /// DSCP of outer headers; that of the inner header if absent.
    pub(crate) dscp: Option<u8>,
    /// Weak algorithms are allowed.
    pub(crate) allow_weak: bool,
    /// Packets.
    pub(crate) replay_window: usize,
}

/// A tunnel of a key exchange.
#[derive(Clone, Debug)]
pub(crate) struct ExchangeTunnel {
    /// Name, for errors.
    pub(crate) name: String,
    /// Outer address of the peer; any if absent.
    pub(crate) peer: Option<SocketAddr>,
    /// Identity and secret of the peer.
    pub(crate) ike: IkeTunnelSpec,
    /// Networks on this side.
    pub(crate) local_networks: Vec<AddressPrefix>,
    /// Networks behind the peer; empty: the address of the peer alone.
    pub(crate) remote_networks: Vec<AddressPrefix>,
    /// Protocol and ports.
    pub(crate) limits: SelectorLimits,
}

/// An event of a key exchange.
#[derive(Debug)]
pub(crate) enum SaEvent {
    /// A negotiated association opens from now on.
    Installed(Box<NegotiatedPair>),
    /// An association seals from now on, in the place of the one before.
    Sealing {
        tunnel: usize,
        /// SPI of sent packets.
        spi: u32,
        /// Outer address of the peer.
        peer: SocketAddr,
        algorithms: String,
        /// Identity of the peer; `None`: new keys of a tunnel that is up.
        identity: Option<String>,
    },
    /// An association was deleted.
    Deleted {
        /// SPIs of received and of sent packets.
        spis: [u32; 2],
        /// It opens no more; otherwise packets on their way are still opened.
        at_once: bool,
    },
    /// A tunnel has no association that seals.
    Down { tunnel: usize },
    /// A message to a peer, to be sent from the port of ESP after all associations that were installed before it.
    Message(Vec<u8>, SocketAddr),
    /// A negotiation has failed, or a message was refused.
    Problem {
        /// The tunnel, where it is known.
        tunnel: Option<usize>,
        /// The words of the daemon.
        problem: String,
        /// Problems before it that were not reported.
        suppressed: u64,
    },
    /// The daemon has failed, or has refused a command.
    Failed { reason: String },
}

/// The user of negotiated associations. It is called by the thread of the key exchange, and may wait.
pub(crate) trait SaSink: Send {
    /// Takes an event. Events are given in the order in which they must take effect.
    fn take(&mut self, event: SaEvent);

    /// Whether messages may be sent to a peer at this address; false if they would be routed into a tunnel.
    fn may_send_to(&mut self, _peer: IpAddr) -> bool {
        true
    }
}
