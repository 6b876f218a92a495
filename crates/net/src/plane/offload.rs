//! Flows that the forwarder offloads to the kernel relay.

use super::{IdMap, Plane, PortBacking};
use crate::clock::Clock;
use crate::relay::{FlowSlot, KernelRelay, Opening};
use engine::{Forward, OffloadChange, OffloadStatistics, OffloadedStream, SocketId, Time};
use std::net::SocketAddr;
use std::time::Duration;

/// Every flow is closed at this interval and opened again at its next packet, because the program's counters have 32
/// bits.
const ROUND: Duration = Duration::from_secs(60);
/// Largest number of flows closed for that reason in a turn.
const MAX_PER_TURN: usize = 64;

/// An open flow.
struct OffloadedFlow {
    slot: FlowSlot,
    /// The sequence number with which it was opened.
    first: u16,
    path: u16,
}

/// The offloaded flows of a plane.
pub(super) struct KernelOffload {
    relay: KernelRelay,
    clock: Clock,
    open: IdMap<SocketId, OffloadedFlow>,
    /// Flows to be closed in the present round.
    due: Vec<SocketId>,
    next_round_at: Time,
    /// Counts of flows whose sockets were closed, until the forwarder asks for them.
    unreported: Vec<(SocketId, OffloadStatistics)>,
}

impl KernelOffload {
    /// Closes the flow of a socket; `None` if there is none.
    pub(super) fn close(&mut self, id: SocketId, now: Time) -> Option<OffloadStatistics> {
        let flow = self.open.remove(&id)?;
        let now = (now, self.clock.monotonic(now));
        let statistics = self.relay.close(flow.slot, flow.first, now);
        self.relay.leave(flow.path);
        Some(statistics)
    }

    /// The same when the socket itself is closed.
    pub(super) fn close_with_socket(&mut self, id: SocketId) {
        let now = self.clock.now();
        if let Some(statistics) = self.close(id, now) {
            self.unreported.push((id, statistics));
        }
    }

    fn take_unreported(&mut self, id: SocketId) -> Option<OffloadStatistics> {
        let at = self
            .unreported
            .iter()
            .position(|(unreported, _)| *unreported == id)?;
        Some(self.unreported.swap_remove(at).1)
    }

    /// The next flow of the round.
    fn next_due(&mut self, now: Time) -> Option<SocketId> {
        if self.due.is_empty() && now >= self.next_round_at {
            self.next_round_at = now + ROUND;
            self.due.extend(self.open.keys());
        }
        self.due.pop()
    }
}

impl Plane {
    /// Enables the kernel relay.
    pub(crate) fn start_offload(&mut self, relay: KernelRelay, clock: Clock) {
        self.offload = Some(KernelOffload {
            relay,
            clock,
            open: IdMap::default(),
            due: Vec::new(),
            unreported: Vec::new(),
            next_round_at: clock.now() + ROUND,
        });
    }

    /// Closes the flow of a socket that received a packet: the forwarder takes over before it gets that packet.
    pub(super) fn close_offload<F: Forward>(&mut self, id: SocketId, forwarder: &mut F) {
        let Some(offload) = &mut self.offload else {
            return;
        };
        if offload.open.is_empty() {
            return;
        }
        let now = offload.clock.now();
        if let Some(statistics) = offload.close(id, now) {
            self.shared
                .relayed_in_kernel
                .add(statistics.packets as usize);
            forwarder.offload_closed(id, &statistics, now);
        }
    }

    /// Processes the forwarder's relay requests.
    pub(super) fn process_relay_requests<F: Forward>(&mut self, forwarder: &mut F) {
        let Some(offload) = &mut self.offload else {
            return;
        };
        let now = offload.clock.now();
        for _ in 0..MAX_PER_TURN {
            let Some(id) = offload.next_due(now) else {
                break;
            };
            if let Some(statistics) = offload.close(id, now) {
                self.shared
                    .relayed_in_kernel
                    .add(statistics.packets as usize);
                forwarder.offload_closed(id, &statistics, now);
            }
        }
        while let Some(change) = forwarder.next_offload_change() {
            match change {
                OffloadChange::Open(stream) => {
                    if self.open_flow(&stream).is_some() {
                        self.shared.relay_flows.add(1);
                    }
                }
                OffloadChange::Close(id) => {
                    let statistics = self.offload.as_mut().and_then(|offload| {
                        let unreported = offload.take_unreported(id);
                        unreported.or_else(|| offload.close(id, now))
                    });
                    let statistics = statistics.unwrap_or_default();
                    self.shared
                        .relayed_in_kernel
                        .add(statistics.packets as usize);
                    forwarder.offload_closed(id, &statistics, now);
                }
            }
        }
        while let Some((id, statistics)) =
            self.offload.as_mut().and_then(|all| all.unreported.pop())
        {
            self.shared
                .relayed_in_kernel
                .add(statistics.packets as usize);
            forwarder.offload_closed(id, &statistics, now);
        }
    }

    /// Local address of a media socket.
    fn local_address(&self, id: SocketId) -> Option<SocketAddr> {
        let socket = self.sockets.get(*self.by_id.get(&id)? as usize)?;
        match socket.backing {
            PortBacking::Own(_) => socket.local,
            PortBacking::Shared(_, local_address) => Some(local_address),
        }
    }

    fn open_flow(&mut self, stream: &OffloadedStream) -> Option<()> {
        let local_address = self.local_address(stream.socket)?;
        let out = self.local_address(stream.out_socket)?;
        let (source, destination) = (stream.source, stream.destination);
        // Between address families the headers change in size: such streams are forwarded by sockets.
        let six = |end: SocketAddr| end.is_ipv6();
        if [source, out, destination]
            .iter()
            .any(|&end| six(end) != six(local_address))
        {
            return None;
        }
        let offload = self.offload.as_mut()?;
        let slot = offload.relay.slot(local_address)?;
        let now = offload.clock.now();
        // The forwarder has closed it already and waits for the report; its counts are reported first.
        if offload.open.contains_key(&stream.socket) {
            return None;
        }
        let path = offload.relay.path(out.ip(), destination.ip())?;
        let first = stream.sequence.wrapping_add(1);
        let opening = Opening {
            local: local_address,
            source,
            out,
            destination,
            ssrc: stream.ssrc,
            payload_type: stream.payload_type,
            sequence: first,
            timestamp: stream.timestamp,
            arrived: offload.clock.monotonic(stream.arrived.min(now)),
            clock_rate: stream.clock_rate,
            jitter: stream.jitter,
            path,
        };
        offload.relay.open(slot, &opening);
        let flow = OffloadedFlow { slot, first, path };
        offload.open.insert(stream.socket, flow);
        Some(())
    }
}
