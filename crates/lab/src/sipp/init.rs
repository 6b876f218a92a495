//! `<init>`, and connections that a call closes and opens.

use super::call::{PeerRoute, ScenarioCall, ScenarioCallPhase};
use super::engine::{GeneratorState, SHARED, ScenarioGenerator};
use super::flow::Continuation;
use super::program::ScenarioStep;
use super::stats::CallFailure;
use engine::{ConnectionId, Time};
use std::net::SocketAddr;

/// Steps of `<init>` after which it counts as endless.
const INIT_STEPS: usize = 100_000;
impl ScenarioGenerator {
    /// Executes `<init>` once, in a call that is not counted.
    pub(super) fn initialise(&mut self, now: Time) {
        if self.initialised || self.state != GeneratorState::Ready {
            return;
        }
        self.initialised = true;
        if self.program.init.is_empty() {
            return;
        }
        let program = self.program.clone();
        let slot = self.calls.len();
        let mut call = ScenarioCall::new();
        call.phase = ScenarioCallPhase::Receiving;
        call.started = now;
        self.calls.push(call);
        self.run_init(&program.init, slot, now);
        let failed = self
            .calls
            .get_mut(slot)
            .is_some_and(|call| match call.phase {
                ScenarioCallPhase::Free => true,
                _ => {
                    let failed = call.check_failed;
                    call.reset();
                    failed
                }
            });
        match failed {
            true => self.fatal = Some("<init> of the scenario has failed".to_owned()),
            false => self.free.push(slot as u32),
        }
    }

    fn run_init(&mut self, steps: &[ScenarioStep], slot: usize, now: Time) {
        let mut number = 0;
        for _ in 0..INIT_STEPS {
            let Some(step) = steps.get(number) else {
                // A jump beyond the end.
                if number > steps.len() {
                    self.fail(slot, CallFailure::Stopped, now);
                }
                return;
            };
            number += 1;
            match self.perform(&step.actions, slot, now) {
                Continuation::Jump(to) => number = usize::from(to),
                Continuation::Over => return,
                _ if self.branches(step, slot) => number = step.next.map_or(number, usize::from),
                _ => {}
            }
        }
        self.fail(slot, CallFailure::Endless, now);
    }

    /// `<closecon>`: closes the own connection of an outgoing call; its next message opens another. Shared connections
    /// stay.
    pub(super) fn close_own_connection(&mut self, slot: usize) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let PeerRoute::Stream(connection) = call.route else {
            return;
        };
        let own = connection != SHARED && connection.0 & ConnectionId::ACCEPTED == 0;
        if own && !call.unconnected {
            call.unconnected = true;
            self.connections.remove(&connection);
            self.outbox.close(connection);
        }
    }

    /// Opens another connection for a call whose own was closed by its scenario.
    pub(super) fn reconnect(&mut self, slot: usize) {
        let settings = &self.context.settings;
        let (local, send_to) = (SocketAddr::new(settings.local.ip(), 0), settings.send_to);
        let Some(call) = self.calls.get_mut(slot).filter(|call| call.unconnected) else {
            return;
        };
        call.unconnected = false;
        let connection = ConnectionId(self.next_connection);
        self.next_connection += 1;
        call.route = PeerRoute::Stream(connection);
        let owner = (slot as u32, call.generation);
        let remote = send_to.unwrap_or(call.remote);
        self.connect(connection, local, remote, Some(owner));
    }
}
