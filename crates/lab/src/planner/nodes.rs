//! Check of the size of a plan by a simulation of its nodes in virtual time: calls arrive and are placed on nodes, one
//! of which fails at half time; the load of the busiest node is compared with the size of a node.

use super::estimate::Estimate;
use super::{GIB, MediaPath, PlanRequest, Redundancy};
use crate::error::RunVerdict;
use engine::Entropy;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most arrivals that are simulated.
const MOST_ARRIVALS: u64 = 20_000_000;
const NS: f64 = 1e9;

/// Needs of one call and of all registrations, from measured costs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnitLoads {
    /// CPU time for the signalling of a call, seconds.
    pub call_s: Estimate,
    /// Cores that are busy with the media of a standing call.
    pub call_cores: Estimate,
    /// Memory of a standing call, bytes.
    pub call_bytes: Estimate,
    /// Media of a standing call in each direction, Mbit/s.
    pub call_mbit: Estimate,
    /// Signalling of a call in each direction, Mbit.
    pub call_signalling_mbit: Estimate,
    /// Cores that are busy with the registrations of all nodes.
    pub registration_cores: Estimate,
    /// Memory of all registrations and their connections, bytes.
    pub registration_bytes: Estimate,
    /// Signalling of all registrations, Mbit/s.
    pub registration_mbit: Estimate,
    /// Memory of the process of a node, bytes.
    pub process_bytes: Estimate,
}

/// Size of a node.
#[derive(Clone, Copy, Debug)]
struct NodeSize {
    cores: f64,
    bytes: f64,
    mbit: f64,
    /// Calls for which it has media ports.
    ports: f64,
}

/// The largest load of a node, percent of its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PeakLoad {
    /// Cores, in one second.
    pub cores: Estimate,
    /// Memory.
    pub memory: Estimate,
    /// Bandwidth in each direction, in one second.
    pub bandwidth: Estimate,
}

/// One half of the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct NodePhase {
    /// Nodes that take calls.
    pub nodes: u64,
    /// Calls that arrived.
    pub arrived: u64,
    /// Calls of these for which no node had room.
    pub refused: u64,
    /// The busiest node.
    pub peak_percent: PeakLoad,
    /// Whether it was simulated to its end.
    pub finished: bool,
}

/// Result of the simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeCheck {
    /// Virtual seconds of each half, after a warm-up of five hold times.
    pub seconds: f64,
    /// Calls for which a node has room, by the values of the costs.
    pub calls_of_a_node: u64,
    /// With all nodes.
    pub before: NodePhase,
    /// After the failure of one; none without redundancy.
    pub after: Option<NodePhase>,
    /// Calls that ended with the failed node.
    pub cut_calls: u64,
    /// The simulation ended early, because it had simulated the most calls.
    pub cut_short: bool,
    /// In each half at most the planned share of calls was refused, and no node was above 100 percent by the values of
    /// the costs.
    pub holds: bool,
}

impl NodeCheck {
    /// Failed if a half does not hold; not measured if the simulation ended before that was decided. `blocking` is the
    /// planned share of refused calls.
    pub fn verdict(&self, blocking: f64) -> RunVerdict {
        let mut phases = [Some(&self.before), self.after.as_ref()]
            .into_iter()
            .flatten();
        match phases.any(|phase| phase.fails(blocking)) {
            true => RunVerdict::Failed,
            false if self.cut_short => RunVerdict::NotMeasured,
            false => RunVerdict::of(Some(self.holds)),
        }
    }
}

/// A node during the simulation.
#[derive(Clone, Debug, Default)]
struct Node {
    calls: u64,
    /// Calls that began in this second.
    begun: u64,
    /// Most calls at a time in this second.
    most: u64,
}

/// Simulates calls on `nodes` nodes for a warm-up and two halves of `seconds` each. The same seed gives the same
/// result.
pub(super) fn simulate_nodes(
    request: &PlanRequest,
    loads: &UnitLoads,
    nodes: u64,
    seconds: f64,
) -> NodeCheck {
    let size = NodeSize {
        cores: f64::from(request.node_cores),
        bytes: request.node_memory_gib * GIB,
        mbit: request.node_mbit,
        ports: match request.path {
            MediaPath::Anchored => super::CALLS_OF_AN_ADDRESS * f64::from(request.node_addresses),
            MediaPath::Bypass => f64::INFINITY,
        },
    };
    // Of each pair, one node takes calls; the other one continues them.
    let active = match request.redundancy {
        Redundancy::Pair => (nodes / 2).max(1),
        Redundancy::None | Redundancy::Spare => nodes.max(1),
    };
    let room = calls_of_a_node(request, loads, &size, active);
    let mut world = NodeWorld::new(request, room, active);
    world.run_for(5.0 * request.hold_s, None);
    let before = world.run_for(seconds, Some((loads, &size)));
    let (cut_calls, after) = match request.redundancy {
        Redundancy::None => (0, None),
        Redundancy::Pair => (0, Some(world.run_for(seconds, Some((loads, &size))))),
        Redundancy::Spare => {
            let cut = world.fail_one();
            (cut, Some(world.run_for(seconds, Some((loads, &size)))))
        }
    };
    let holds = [Some(&before), after.as_ref()];
    let holds = holds
        .into_iter()
        .flatten()
        .all(|phase| phase.holds(request.blocking));
    NodeCheck {
        seconds,
        calls_of_a_node: room,
        before,
        after,
        cut_calls,
        cut_short: world.is_cut_short(),
        holds: holds && !world.is_cut_short(),
    }
}

/// The number of calls at which the first resource of a node is used up.
fn calls_of_a_node(request: &PlanRequest, loads: &UnitLoads, size: &NodeSize, nodes: u64) -> u64 {
    let share = 1.0 / nodes as f64;
    let fits = |whole: f64, fixed: f64, each: f64| match each > 0.0 {
        true => (whole - fixed).max(0.0) / each,
        false => f64::INFINITY,
    };
    let parts = [
        fits(
            size.cores,
            loads.registration_cores.value * share,
            loads.call_cores.value + loads.call_s.value / request.hold_s,
        ),
        fits(
            size.bytes,
            loads.registration_bytes.value * share + loads.process_bytes.value,
            loads.call_bytes.value,
        ),
        fits(
            size.mbit,
            loads.registration_mbit.value * share,
            loads.call_mbit.value + loads.call_signalling_mbit.value / request.hold_s,
        ),
        size.ports,
    ];
    parts.into_iter().fold(f64::INFINITY, f64::min) as u64
}

impl NodePhase {
    /// Whether it is known not to hold: a load only grows until the end, the share of refused calls may fall.
    fn fails(&self, blocking: f64) -> bool {
        let peaks = self.peak_percent;
        let mut peaks = [peaks.cores, peaks.memory, peaks.bandwidth].into_iter();
        self.finished && !self.holds(blocking) || peaks.any(|peak| peak.value > 100.0)
    }

    fn holds(&self, blocking: f64) -> bool {
        let PeakLoad {
            cores,
            memory,
            bandwidth,
        } = self.peak_percent;
        let refused = self.refused as f64 <= blocking * self.arrived as f64;
        refused
            && [cores, memory, bandwidth]
                .iter()
                .all(|peak| peak.value <= 100.0)
    }
}

/// Nodes with their calls.
struct NodeWorld {
    /// Calls per second.
    rate: f64,
    hold_s: f64,
    room: u64,
    entropy: Entropy,
    nodes: Vec<Node>,
    /// Nodes from here on have failed: they are the last ones.
    alive: usize,
    /// Ends of calls, nanoseconds, with the node.
    ends: BinaryHeap<Reverse<(u64, u32)>>,
    now: f64,
    next_arrival: f64,
    total: u64,
}

impl NodeWorld {
    fn new(request: &PlanRequest, room: u64, nodes: u64) -> NodeWorld {
        let rate = request.subscribers as f64 * request.busy_hour_calls / super::SECONDS_OF_AN_HOUR;
        let mut entropy = Entropy::from_number(request.seed);
        NodeWorld {
            rate,
            hold_s: request.hold_s,
            room,
            next_arrival: entropy.exponential(1.0 / rate),
            entropy,
            nodes: vec![Node::default(); nodes as usize],
            alive: nodes as usize,
            ends: BinaryHeap::new(),
            now: 0.0,
            total: 0,
        }
    }

    fn is_cut_short(&self) -> bool {
        self.total >= MOST_ARRIVALS
    }

    /// The last node fails; returns the number of its calls. Its phones register with the others, and its calls end.
    fn fail_one(&mut self) -> u64 {
        let Some(last) = self.alive.checked_sub(1) else {
            return 0;
        };
        self.alive = last;
        let failed = last as u32;
        self.ends.retain(|Reverse((_, node))| *node != failed);
        let node = self.nodes.get_mut(last);
        node.map_or(0, |node| core::mem::take(node).calls)
    }

    /// Runs for so many seconds; with loads, it measures.
    fn run_for(&mut self, seconds: f64, loads: Option<(&UnitLoads, &NodeSize)>) -> NodePhase {
        let mut phase = NodePhase {
            nodes: self.alive as u64,
            ..NodePhase::default()
        };
        let end = self.now + seconds;
        while self.now < end && !self.is_cut_short() {
            let until = (self.now + 1.0).min(end);
            for node in &mut self.nodes {
                (node.begun, node.most) = (0, node.calls);
            }
            self.second(until, &mut phase);
            if let Some((loads, size)) = loads {
                let share = 1.0 / self.alive.max(1) as f64;
                for node in self.nodes.iter().take(self.alive) {
                    phase.peak_percent.take(node, loads, (size, share));
                }
            }
            self.now = until;
        }
        phase.finished = !self.is_cut_short();
        phase
    }

    fn second(&mut self, until: f64, phase: &mut NodePhase) {
        while self.next_arrival < until && !self.is_cut_short() {
            let at = self.next_arrival;
            self.end_calls((at * NS) as u64);
            self.next_arrival = at + self.entropy.exponential(1.0 / self.rate);
            self.total += 1;
            phase.arrived += 1;
            let Some(place) = self.place() else {
                phase.refused += 1;
                continue;
            };
            let ends = at + self.entropy.exponential(self.hold_s);
            self.ends.push(Reverse(((ends * NS) as u64, place as u32)));
            if let Some(node) = self.nodes.get_mut(place) {
                node.calls += 1;
                node.begun += 1;
                node.most = node.most.max(node.calls);
            }
        }
        self.end_calls((until * NS) as u64);
    }

    /// A random node, as DNS and trunks spread calls; where it has no room, the next one with room.
    fn place(&mut self) -> Option<usize> {
        if self.alive == 0 {
            return None;
        }
        let first = self.entropy.below(self.alive as u64) as usize;
        let order = (0..self.alive).map(|step| (first + step) % self.alive);
        let mut with_room = order.filter(|node| {
            let node = self.nodes.get(*node);
            node.is_some_and(|node| node.calls < self.room)
        });
        with_room.next()
    }

    fn end_calls(&mut self, until: u64) {
        while let Some(Reverse((at, node))) = self.ends.peek().copied() {
            if at > until {
                return;
            }
            self.ends.pop();
            if let Some(node) = self.nodes.get_mut(node as usize) {
                node.calls -= 1;
            }
        }
    }
}

impl PeakLoad {
    /// The load of a node in a second, if it is larger; `share`: its part of the registrations.
    fn take(&mut self, node: &Node, loads: &UnitLoads, (size, share): (&NodeSize, f64)) {
        let (begun, most) = (node.begun as f64, node.most as f64);
        let cores = loads.call_s.times(begun).plus(loads.call_cores.times(most));
        let memory = loads.call_bytes.times(most).plus(loads.process_bytes);
        let media = loads.call_mbit.times(most);
        let bandwidth = media.plus(loads.call_signalling_mbit.times(begun));
        let percent = |used: Estimate, fixed: Estimate, whole: f64| {
            used.plus(fixed.times(share)).times(100.0 / whole)
        };
        let larger = |peak: &mut Estimate, now: Estimate| *peak = peak.or_larger(now);
        larger(
            &mut self.cores,
            percent(cores, loads.registration_cores, size.cores),
        );
        larger(
            &mut self.memory,
            percent(memory, loads.registration_bytes, size.bytes),
        );
        larger(
            &mut self.bandwidth,
            percent(bandwidth, loads.registration_mbit, size.mbit),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulation_that_ended_early_is_not_decided_unless_a_finished_half_failed() {
        let phase = |refused: u64, finished: bool| NodePhase {
            arrived: 1_000,
            refused,
            finished,
            ..NodePhase::default()
        };
        let verdict = |before: NodePhase, after: NodePhase, cut_short: bool| {
            let check = NodeCheck {
                seconds: 60.0,
                calls_of_a_node: 100,
                before,
                after: Some(after),
                cut_calls: 0,
                cut_short,
                holds: !cut_short && before.holds(0.01) && after.holds(0.01),
            };
            check.verdict(0.01)
        };
        let (good, bad) = (phase(5, true), phase(50, true));
        assert_eq!(verdict(good, good, false), RunVerdict::Passed);
        assert_eq!(verdict(good, bad, false), RunVerdict::Failed);
        let begun = phase(50, false);
        assert_eq!(verdict(good, begun, true), RunVerdict::NotMeasured);
        assert_eq!(verdict(bad, begun, true), RunVerdict::Failed);
        let mut loaded = begun;
        loaded.peak_percent.cores.value = 120.0;
        assert_eq!(verdict(good, loaded, true), RunVerdict::Failed);
    }
}
