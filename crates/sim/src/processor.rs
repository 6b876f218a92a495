//! Hosts with processing time: datagrams that arrive meanwhile wait.

use crate::host::{HostId, QueuedInput};
use crate::world::{World, WorldEvent};

impl World {
    /// Adds the time for one datagram to a worker's processor.
    pub(crate) fn add_processing_time(&mut self, id: HostId, worker: usize) {
        let now = self.now;
        let host = &mut self.hosts[id.0 as usize];
        let processing_time = host.processing_time;
        if !processing_time.is_zero() {
            let processor = host.processor(worker);
            processor.busy_until = processor.busy_until.max(now) + processing_time;
        }
    }

    /// Schedules the next turn of a worker with waiting inputs.
    pub(crate) fn plan_turn(&mut self, id: HostId, worker: usize) {
        let now = self.now;
        let host = &mut self.hosts[id.0 as usize];
        let life = host.life;
        let processor = host.processor(worker);
        if processor.planned || processor.waiting.is_empty() {
            return;
        }
        processor.planned = true;
        let at = processor.busy_until.max(now);
        let turn = WorldEvent::ProcessorTurn {
            host: id,
            worker,
            life,
        };
        self.agenda.push(at, turn);
    }

    /// Processes the first waiting input of a worker.
    pub(crate) fn turn(&mut self, id: HostId, worker: usize, life: u32) {
        let now = self.now;
        let host = &mut self.hosts[id.0 as usize];
        if host.life != life {
            return;
        }
        let processor = host.processor(worker);
        processor.planned = false;
        if processor.busy_until > now {
            // Its outputs have taken time, too.
            self.plan_turn(id, worker);
        } else if let Some(waiting) = processor.waiting.pop_front() {
            self.work(id, worker, waiting);
        }
    }

    /// Processes a datagram or a handoff message on a worker's processor.
    pub(crate) fn work(&mut self, id: HostId, worker: usize, waiting: QueuedInput) {
        let now = self.now;
        let host = &mut self.hosts[id.0 as usize];
        let processing_time = host.processing_time;
        host.processor(worker).busy_until = now + processing_time;
        match waiting {
            QueuedInput::Datagram {
                arrived,
                source,
                destination,
                bytes,
            } => self.receive_datagram(id, (source, destination), bytes, arrived),
            QueuedInput::Handoff(handoff) => {
                self.step(id, |node, now| node.deliver_handoff(&handoff, now));
            }
        }
        self.plan_turn(id, worker);
    }
}
