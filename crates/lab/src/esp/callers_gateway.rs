//! The gateway of the callers before a border with `[gateway]` of its own: inner packets pass its TUN device, ESP
//! packets (IP protocol 50) a raw socket, so that the kernel's routes and neighbours apply as between two machines.

use super::EspEnds;
use engine::Time;
use net::{EspSocket, OutgoingEsp, TunDevice, wait_any};
use protect::esp::{ArrivedEsp, InboundSa, MAX_HEADROOM, MAX_TAILROOM, OutboundSa, PacketRoom};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use wire::ip::protocol;

/// Room for a packet with its ESP header and trailer; also the longest payload of the socket.
pub(crate) const ROOM: usize = 2_048;
/// Longest wait, after which the gateway looks whether it shall end.
const WAIT: Duration = Duration::from_millis(50);

/// Counts of the gateway.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallersGatewayCount {
    /// Packets that it refused: damaged ones, duplicates, too late ones.
    pub(crate) refused: u64,
    /// Packets that the kernel refused to send.
    pub(crate) unsent: u64,
    /// ESP packets that the kernel dropped before the gateway read them.
    pub(crate) kernel_drops: u64,
}

/// The running gateway, on a thread of its own.
#[derive(Debug)]
pub(crate) struct CallersGateway {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<CallersGatewayCount, String>>>,
}

impl CallersGateway {
    /// Starts it; `outer` are its own address and that of the border's gateway.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn start(
        tun: TunDevice,
        socket: EspSocket,
        outer: [Ipv4Addr; 2],
        ends: EspEnds,
    ) -> std::io::Result<CallersGateway> {
        let stopped = Arc::new(AtomicBool::new(false));
        let loops = CallersLoop {
            tun,
            socket,
            outer: outer.map(IpAddr::V4),
            outbound: ends.outbound,
            inbound: ends.inbound,
            buffer: vec![0; ROOM * EspSocket::BATCH],
            outgoing: Vec::with_capacity(EspSocket::BATCH),
            count: CallersGatewayCount::default(),
        };
        let stop = stopped.clone();
        let thread = std::thread::Builder::new()
            .name("callers gateway".to_owned())
            .spawn(move || loops.run(&stop))?;
        Ok(CallersGateway {
            stopped,
            thread: Some(thread),
        })
    }

    /// Ends it; returns its counts.
    ///
    /// # Errors
    /// The device or the socket failed.
    pub(crate) fn finish(mut self) -> Result<CallersGatewayCount, String> {
        self.stopped.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        let ended = thread.ok_or("the callers' gateway is missing")?.join();
        ended.unwrap_or_else(|_| Err("the callers' gateway panicked".to_owned()))
    }
}

impl Drop for CallersGateway {
    /// An aborted trial leaves no thread behind.
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct CallersLoop {
    tun: TunDevice,
    socket: EspSocket,
    /// Its own address, and that of the border's gateway.
    outer: [IpAddr; 2],
    outbound: OutboundSa,
    inbound: InboundSa,
    /// Packets of a batch from the device, [`ROOM`] bytes each.
    buffer: Vec<u8>,
    outgoing: Vec<OutgoingEsp>,
    count: CallersGatewayCount,
}

impl CallersLoop {
    fn run(mut self, stopped: &AtomicBool) -> Result<CallersGatewayCount, String> {
        while !stopped.load(Ordering::Relaxed) {
            let has_opened = self.open_waiting()?;
            let has_sealed = self.seal_waiting()?;
            if !has_opened && !has_sealed {
                let _ = wait_any([self.socket.as_fd(), self.tun.as_fd()], WAIT);
            }
        }
        // A kernel that does not tell them is older than all that the product supports.
        self.count.kernel_drops = self.socket.kernel_drops().unwrap_or_default();
        Ok(self.count)
    }

    /// Opens the packets of the border's gateway that have arrived. Returns whether there were any.
    fn open_waiting(&mut self) -> Result<bool, String> {
        let received = self.socket.receive(EspSocket::BATCH);
        let received = received.map_err(|error| error.to_string())?;
        let [own, _] = self.outer;
        for index in 0..received {
            let Some(packet) = self.socket.received(index) else {
                continue;
            };
            let arrived = ArrivedEsp {
                source: packet.source.ip(),
                destination: own,
                traffic_class: packet.traffic_class,
            };
            let opened = self
                .inbound
                .open_payload(packet.bytes, &arrived, Time::ZERO);
            let inner = opened
                .ok()
                .and_then(|opened| packet.bytes.get(opened.range));
            match inner {
                Some(inner) => self.tun.send(inner).map_err(|error| error.to_string())?,
                None => self.count.refused += 1,
            }
        }
        Ok(received > 0)
    }

    /// Seals the packets that the kernel has sent to the TUN device. Returns whether there were any.
    fn seal_waiting(&mut self) -> Result<bool, String> {
        let [_, border] = self.outer;
        self.outgoing.clear();
        let mut read = 0;
        for slot in self.buffer.chunks_exact_mut(ROOM) {
            let start = read * ROOM;
            let space = slot.get_mut(MAX_HEADROOM..ROOM - MAX_TAILROOM);
            let received = self.tun.receive(space.unwrap_or_default());
            let Some(length) = received.map_err(|error| error.to_string())? else {
                break;
            };
            read += 1;
            let mut room = PacketRoom::new(slot, MAX_HEADROOM, length);
            // The kernel's own packets of IPv6 (router solicitations) are not part of the experiment.
            if room.packet().first().is_none_or(|first| first >> 4 != 4) {
                continue;
            }
            let sealed = self
                .outbound
                .seal_payload(&mut room, protocol::IPIP, Time::ZERO);
            let Ok(sealed) = sealed else {
                self.count.refused += 1;
                continue;
            };
            self.outgoing.push(OutgoingEsp {
                place: start + room.start..start + room.end,
                destination: SocketAddr::new(border, 0),
                traffic_class: sealed.traffic_class,
                dont_fragment: false,
            });
        }
        let unsent = &mut self.count.unsent;
        self.socket
            .send(&self.buffer, &self.outgoing, |_, _| *unsent += 1);
        Ok(read > 0)
    }
}
