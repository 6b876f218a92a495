//! The control threads beside the first one: each runs a border of its own over sockets at the same addresses, and does what
//! the first one is told.

use crate::log::Log;
use crate::service::{driver_config, opened};
use crate::store::Keeper;
use crate::threads::Placing;
use border::admission::MediaCarrier;
use border::border::Border;
use border::config::Config;
use border::rooms::{RoomName, RoomReply, RoomWish};
use engine::{HashKey, Worker};
use media::forward::{Forwarder, ForwarderLimits};
use net::tls::Security;
use net::{Clock, Desk, Driver, DriverConfig, Waker};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a thread sleeps where nothing happens and nobody wakes it.
const IDLE: Duration = Duration::from_secs(60);
/// And where somebody waits for what a border has yet to answer.
const ASKED: Duration = Duration::from_millis(1);

enum Order {
    Reload(Arc<Config>, Security),
    Drain(Duration),
    Carry(MediaCarrier),
    Ask(u64, RoomName, RoomWish),
    Stop,
}

/// A thread.
struct Mate {
    orders: Sender<Order>,
    waker: Waker,
    drained: Arc<AtomicBool>,
    /// Turns that it has made, and how many they were when all threads had got on.
    turns: Arc<AtomicU64>,
    seen: u64,
    thread: JoinHandle<io::Result<()>>,
}

/// The threads beside the first.
#[derive(Default)]
pub(crate) struct Mates {
    /// The first of them is the second worker.
    mates: Vec<Mate>,
    /// What they answer to questions about conferences.
    replies: Option<Receiver<(u64, RoomReply)>>,
}

/// The driver's settings for one of several workers, `cpus` being those that the program may use.
pub(crate) fn shared(config: DriverConfig, worker: &Worker, cpus: &[usize]) -> DriverConfig {
    if worker.is_alone() {
        return config;
    }
    let enough = cpus.len() >= usize::from(worker.of);
    let cpu = cpus.get(usize::from(worker.number)).copied();
    DriverConfig {
        shared_ports: true,
        connections: worker.share(config.connections),
        connections_per_source: worker.share(config.connections_per_source),
        pin: cpu.filter(|_| enough),
        ..config
    }
}

impl Mates {
    /// Starts a thread for each of these; `first` wakes the first one, where there is something for it.
    ///
    /// # Errors
    /// Where the system gives no thread, epoll set or randomness.
    pub(crate) fn start(
        borders: Vec<(Border, Desk, Option<Keeper>)>,
        relay: Option<&net::KernelRelay>,
        placing: &Placing,
        security: &Security,
        log: &Log,
        clock: Clock,
        first: &Waker,
    ) -> io::Result<Mates> {
        let cpus = net::allowed_cpus();
        let (said, replies) = channel();
        let mut mates = Vec::new();
        for (border, desk, keeper) in borders {
            let worker = *border.worker();
            let settings = shared(driver_config(border.config(), relay), &worker, &cpus);
            let settings = placing.apply(worker.number, settings);
            let forwarder = Forwarder::new(
                ForwarderLimits::default(),
                HashKey::new(&mut net::entropy()?),
            );
            let mut driver = Driver::new(settings, clock, forwarder)?;
            driver.set_security(security.clone());
            driver.join(desk);
            let waker = driver.waker();
            if let Some(keeper) = &keeper {
                keeper.wake_by(waker.clone());
            }
            let (orders, inbox) = channel();
            let drained = Arc::new(AtomicBool::new(false));
            let turns = Arc::new(AtomicU64::new(0));
            let thread = Thread {
                border,
                driver,
                keeper,
                log: log.clone(),
                clock,
                inbox,
                asked: 0,
                replies: said.clone(),
                first: first.clone(),
                drained: drained.clone(),
                turns: turns.clone(),
            };
            let thread = std::thread::Builder::new()
                .name(format!("worker {}", worker.number))
                .spawn(move || thread.run())?;
            mates.push(Mate {
                orders,
                waker,
                drained,
                turns,
                seen: 0,
                thread,
            });
        }
        Ok(Mates {
            mates,
            replies: Some(replies),
        })
    }

    fn order(&self, order: impl Fn() -> Order) {
        for mate in &self.mates {
            mate.order(order());
        }
    }

    /// Wants something of a worker's conferences ([`Border::ask_rooms`]); of the first, or of one that is not there, nothing.
    pub(crate) fn ask_rooms(&self, worker: u8, number: u64, name: &RoomName, wish: &RoomWish) {
        let mate = usize::from(worker).checked_sub(1);
        if let Some(mate) = mate.and_then(|at| self.mates.get(at)) {
            mate.order(Order::Ask(number, name.clone(), wish.clone()));
        }
    }

    /// The next answer of any of them.
    pub(crate) fn next_room_reply(&self) -> Option<(u64, RoomReply)> {
        self.replies.as_ref()?.try_recv().ok()
    }

    /// Gives all of them a new configuration.
    pub(crate) fn reload(&self, config: &Arc<Config>, security: &Security) {
        self.order(|| Order::Reload(config.clone(), security.clone()));
    }

    /// Tells all of them what carries media from now on.
    pub(crate) fn carry(&self, carrier: &MediaCarrier) {
        self.order(|| Order::Carry(carrier.clone()));
    }

    /// Lets all of them drain.
    pub(crate) fn drain(&self, limit: Duration) {
        self.order(|| Order::Drain(limit));
    }

    /// Whether all have ended their drain.
    pub(crate) fn are_drained(&self) -> bool {
        let mut mates = self.mates.iter();
        mates.all(|mate| mate.drained.load(Ordering::Acquire))
    }

    /// Whether all of them still work.
    ///
    /// # Errors
    /// Why one does not.
    pub(crate) fn look(&mut self) -> io::Result<()> {
        let mut mates = self.mates.iter();
        let Some(ended) = mates.position(|mate| mate.thread.is_finished()) else {
            return Ok(());
        };
        match self.mates.swap_remove(ended).thread.join() {
            Ok(Err(error)) => Err(error),
            _ => Err(io::Error::other("a worker has ended")),
        }
    }

    /// Whether each has made a turn since this was last so; those that sleep are woken for one.
    pub(crate) fn all_turn(&mut self) -> bool {
        let turned = |mate: &Mate| mate.turns.load(Ordering::Relaxed) != mate.seen;
        for mate in self.mates.iter().filter(|mate| !turned(mate)) {
            mate.waker.wake();
        }
        if !self.mates.iter().all(turned) {
            return false;
        }
        for mate in &mut self.mates {
            mate.seen = mate.turns.load(Ordering::Relaxed);
        }
        true
    }

    /// Ends all of them.
    pub(crate) fn stop(self) {
        self.order(|| Order::Stop);
        for mate in self.mates {
            // What it has to say is said; the program ends.
            let _ = mate.thread.join();
        }
    }
}

impl Mate {
    fn order(&self, order: Order) {
        // A thread that has ended is noticed by [`Mates::look`].
        let _ = self.orders.send(order);
        self.waker.wake();
    }
}

struct Thread {
    border: Border,
    driver: Driver<Forwarder>,
    keeper: Option<Keeper>,
    log: Log,
    clock: Clock,
    inbox: Receiver<Order>,
    /// Questions that the border has not answered.
    asked: usize,
    replies: Sender<(u64, RoomReply)>,
    first: Waker,
    drained: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
}

impl Thread {
    fn run(mut self) -> io::Result<()> {
        // Signals are the first thread's.
        net::block_signals()?;
        let mut ready = false;
        let mut at_once = true;
        loop {
            let wait = match (at_once, self.asked) {
                (true, _) => Duration::ZERO,
                (false, 0) => IDLE,
                (false, _) => ASKED,
            };
            self.driver.turn(&mut self.border, wait)?;
            self.turns.fetch_add(1, Ordering::Relaxed);
            while let Some(event) = self.driver.next_event() {
                self.log.event(&event);
                if !ready {
                    opened(&event.note)?;
                }
            }
            self.log.flush();
            while let Some(reply) = self.border.next_room_reply() {
                self.asked = self.asked.saturating_sub(1);
                // Where nobody listens any more the program ends.
                let _ = self.replies.send(reply);
                self.first.wake();
            }
            ready = true;
            let keeper = self.keeper.as_mut();
            at_once = keeper.is_some_and(|keeper| keeper.take(&mut self.border));
            while let Ok(order) = self.inbox.try_recv() {
                let now = self.clock.now();
                match order {
                    Order::Reload(config, security) => {
                        // Before the border opens what is new: its listeners ask for their certificates.
                        self.driver.set_security(security);
                        self.border.reload(config, now);
                    }
                    Order::Drain(limit) => self.border.drain(limit, now),
                    Order::Carry(carrier) => self.border.set_media_carrier(carrier),
                    Order::Ask(number, name, wish) => {
                        self.asked += 1;
                        self.border.ask_rooms(number, &name, &wish, now);
                    }
                    Order::Stop => {
                        self.driver.turn(&mut self.border, Duration::ZERO)?;
                        if let Some(keeper) = &mut self.keeper {
                            while keeper.take(&mut self.border) {}
                        }
                        return Ok(());
                    }
                }
                at_once = true;
            }
            self.drained
                .store(self.border.is_drained(), Ordering::Release);
        }
    }
}
