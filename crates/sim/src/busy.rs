//! Hosts that take their time: what comes meanwhile waits.

use crate::host::{HostId, Waiting};
use crate::world::{Happening, World};

impl World {
    /// A worker of a host that takes its time was busy with a datagram for so long.
    pub(crate) fn takes_effort(&mut self, id: HostId, member: usize) {
        let now = self.now;
        let host = &mut self.hosts[id.0 as usize];
        let effort = host.effort;
        if !effort.is_zero() {
            let processor = host.processor(member);
            processor.busy_until = processor.busy_until.max(now) + effort;
        }
    }

    /// Plans the next turn of a worker that has something before it.
    pub(crate) fn plan_turn(&mut self, id: HostId, member: usize) {
        let now = self.now;
        let host = &mut self.hosts[id.0 as usize];
        let life = host.life;
        let processor = host.processor(member);
        if processor.planned || processor.waiting.is_empty() {
            return;
        }
        processor.planned = true;
        let at = processor.busy_until.max(now);
        let turn = Happening::Turn {
            host: id,
            member,
            life,
        };
        self.agenda.push(at, turn);
    }

    /// A worker with something to do takes what has waited longest.
    pub(crate) fn turn(&mut self, id: HostId, member: usize, life: u32) {
        let now = self.now;
        let host = &mut self.hosts[id.0 as usize];
        if host.life != life {
            return;
        }
        let processor = host.processor(member);
        processor.planned = false;
        if processor.busy_until > now {
            // What it sent took time, too.
            self.plan_turn(id, member);
        } else if let Some(waiting) = processor.waiting.pop_front() {
            self.work(id, member, waiting);
        }
    }

    /// Keeps a worker busy with a datagram, or with what was handed to it.
    pub(crate) fn work(&mut self, id: HostId, member: usize, waiting: Waiting) {
        let now = self.now;
        let host = &mut self.hosts[id.0 as usize];
        let effort = host.effort;
        host.processor(member).busy_until = now + effort;
        match waiting {
            Waiting::Datagram {
                arrived,
                source,
                destination,
                bytes,
            } => self.take_in(id, (source, destination), bytes, arrived),
            Waiting::Handed(handed) => {
                self.step(id, |node, now| node.hand(&handed, now));
            }
        }
        self.plan_turn(id, member);
    }
}
