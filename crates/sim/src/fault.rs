//! Faults that a run is put through.

use crate::host::HostId;
use crate::link::LinkConfig;
use std::time::Duration;

/// One fault, or the end of one.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Nothing passes between two hosts, in either direction.
    Partition(HostId, HostId),
    /// It passes again.
    Heal(HostId, HostId),
    /// The link from the first to the second host becomes another.
    Link(HostId, HostId, LinkConfig),
    /// All connections of a host are reset.
    Reset(HostId),
    /// One connection of the world, drawn from the seed, is reset, where there is one.
    ResetAny,
    /// A host stops without a word. It stays away until [`crate::World::restart`].
    Crash(HostId),
    /// The storm is over: links are their own again, partitions are healed.
    Calm,
}

/// A phase in which nothing wrong may happen, though hardly anything goes right. Draw its length, then run the world for
/// as long again as everything may need to finish.
#[derive(Clone, Debug, PartialEq)]
pub struct Storm {
    /// What every link between two hosts is like meanwhile.
    pub link: LinkConfig,
    /// Partitions of pairs of hosts, at times drawn from the seed.
    pub partitions: u32,
    /// How long each of them lasts; all end with the storm.
    pub partition: Duration,
    /// Resets of connections, at times drawn from the seed.
    pub resets: u32,
}
