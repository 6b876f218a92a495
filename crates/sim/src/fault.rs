//! Faults of a run.

use crate::host::HostId;
use crate::link::LinkConfig;
use std::time::Duration;

/// One fault, or the end of one.
#[expect(clippy::large_enum_variant, reason = "a plan has few faults")]
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// No packet passes between two hosts, in either direction.
    Partition(HostId, HostId),
    /// Ends a partition.
    Heal(HostId, HostId),
    /// Replaces the settings of the link from the first to the second host.
    Link(HostId, HostId, LinkConfig),
    /// Resets all connections of a host.
    Reset(HostId),
    /// Resets one connection of the world, drawn from the seed, if there is one.
    ResetAny,
    /// Stops a host without closing its connections. It is down until [`crate::World::restart`].
    Crash(HostId),
    /// Ends the storm: links have their own settings again, partitions are removed.
    Calm,
}

/// A phase with many faults, in which nothing may break although little succeeds. Afterwards run the world as long as
/// all activities need to finish.
#[derive(Clone, Debug, PartialEq)]
pub struct Storm {
    /// Settings of every link between two hosts meanwhile.
    pub link: LinkConfig,
    /// Number of partitions between two hosts, at times drawn from the seed.
    pub partitions: u32,
    /// Duration of each partition; all end with the storm.
    pub partition: Duration,
    /// Number of connection resets, at times drawn from the seed.
    pub resets: u32,
}
