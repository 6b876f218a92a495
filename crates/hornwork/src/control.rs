//! Control of conferences over HTTP (docs/control.md). A thread of its own serves the requests; what they want of the border is put
//! into a queue, which the border's thread looks at after each turn, and the answer goes back the same way. So whoever talks to this
//! server holds up no call, however he does it. Of several workers the first one's thread looks, and asks the one whose conference it is.

mod access;
mod api;
mod server;

pub(crate) use access::{Access, Token};

use crate::log::Log;
use crate::workers::Mates;
use api::Shared;
use border::border::Border;
use border::config::ControlSpec;
use border::rooms::{RoomName, RoomReply, RoomView, RoomWish, worker_of};
use engine::{Event, Note, Time};
use net::{Clock, Waker};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// Requests in the queue at most; further ones are answered 503.
const QUEUE: usize = 64;

/// Something that is wanted of the border.
#[derive(Debug)]
struct Order {
    name: RoomName,
    wish: RoomWish,
    reply: oneshot::Sender<RoomReply>,
}

/// An order that waits for its answer.
#[derive(Debug)]
struct Asked {
    reply: oneshot::Sender<RoomReply>,
    /// Workers that have yet to answer.
    left: u8,
    /// What others have listed.
    rooms: Vec<RoomView>,
}

/// The border's end of the queue.
#[derive(Debug)]
pub(crate) struct Control {
    listen: SocketAddr,
    orders: Receiver<Order>,
    waiting: BTreeMap<u64, Asked>,
    numbers: u64,
    access: watch::Sender<Access>,
}

impl Control {
    /// Listens, and starts the thread that serves; it wakes `waker` with each order.
    ///
    /// # Errors
    /// The address cannot be had, or there is no thread.
    pub(crate) fn start(
        spec: &ControlSpec,
        access: Access,
        waker: Waker,
        log: &Log,
        clock: Clock,
    ) -> io::Result<Control> {
        let listener = TcpListener::bind(spec.listen).map_err(|error| {
            io::Error::other(format!(
                "cannot listen on {} (control): {error}\n  remedy: is another program there, and is it an address of this machine? `listen` of [control] says where",
                spec.listen
            ))
        })?;
        let (orders, taken) = sync_channel(QUEUE);
        let (access, current) = watch::channel(access);
        let shared = Arc::new(Shared::new(orders, waker, current, log.clone(), clock));
        server::start(listener, spec, shared)?;
        let note = Note::SocketOpened {
            what: "control http".to_owned(),
            address: spec.listen.to_string(),
        };
        log.event(&Event::new(clock.now(), note));
        Ok(Control {
            listen: spec.listen,
            orders: taken,
            waiting: BTreeMap::new(),
            numbers: 0,
            access,
        })
    }

    /// How long the border's thread may sleep: hardly at all while somebody waits for an answer.
    pub(crate) fn wait(&self) -> Duration {
        match self.waiting.is_empty() {
            true => crate::service::SIGNAL_WAIT,
            false => Duration::from_millis(1),
        }
    }

    /// Gives the border what was ordered, and what it answered to those who wait; after each turn.
    pub(crate) fn serve(&mut self, border: &mut Border, mates: &Mates, now: Time) {
        while let Some((number, reply)) =
            border.next_room_reply().or_else(|| mates.next_room_reply())
        {
            self.answered(number, reply);
        }
        if !self.waiting.is_empty() {
            self.waiting.retain(|_, asked| !asked.reply.is_closed());
        }
        while let Ok(Order { name, wish, reply }) = self.orders.try_recv() {
            self.numbers += 1;
            let workers = border.worker().of;
            let asked = match wish {
                RoomWish::List => 0..workers,
                _ => {
                    let owner = worker_of(&name.number, workers);
                    owner..owner + 1
                }
            };
            let waits = Asked {
                reply,
                left: asked.len() as u8,
                rooms: Vec::new(),
            };
            self.waiting.insert(self.numbers, waits);
            for worker in asked {
                match worker {
                    0 => border.ask_rooms(self.numbers, &name, &wish, now),
                    _ => mates.ask_rooms(worker, self.numbers, &name, &wish),
                }
            }
        }
    }

    /// A worker has answered; who asked is told when all have.
    fn answered(&mut self, number: u64, reply: RoomReply) {
        let Some(mut asked) = self.waiting.remove(&number) else {
            return;
        };
        let reply = match reply {
            RoomReply::Rooms(rooms) => {
                asked.left -= 1;
                asked.rooms.extend(rooms);
                if asked.left > 0 {
                    self.waiting.insert(number, asked);
                    return;
                }
                let mut rooms = asked.rooms;
                rooms.sort_by(|one, other| one.name.cmp(&other.name));
                RoomReply::Rooms(rooms)
            }
            reply => reply,
        };
        // Whoever waits no longer needs no answer.
        let _ = asked.reply.send(reply);
    }

    /// A new configuration: token and names count at once, but only for the address that they were written for.
    pub(crate) fn reload(&self, spec: &ControlSpec, token: Option<Token>) {
        if spec.listen == self.listen {
            self.access.send_replace(Access::new(spec, token));
        }
    }
}
