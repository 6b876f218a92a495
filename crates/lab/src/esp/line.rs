//! Two gateways of this program with a line between them. Each host has one: inner packets pass its TUN device, ESP
//! packets (IP protocol 50) its interface on the line.
//!
//! ESP packets are Ethernet frames between addresses of the gateways, which are not those of the interfaces: the kernel
//! takes no such frame for itself, and answers none with "protocol unreachable".

use super::{EspCarriage, EspCase, EspEnds};
use crate::error::LabError;
use crate::hops::DelayCounter;
use engine::{Entropy, Time};
use net::{Clock, PacketSocket, TunDevice, wait_any};
use protect::esp::{InboundSa, MAX_HEADROOM, MAX_TAILROOM, OutboundSa, PacketRoom};
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use wire::ip::Ipv4View;

/// MTU of the TUN devices, bytes: the outer packet is not longer than 1,500.
pub(crate) const INNER_MTU: usize = 1_400;
/// Length of an Ethernet header.
const ETHERNET: usize = 14;
/// Room before an inner packet: ESP with its outer header, and the Ethernet header.
const BEFORE: usize = ETHERNET + MAX_HEADROOM;
const ROOM: usize = 2_048;
/// Packets of the TUN device before the line is looked at.
const BATCH: usize = 64;
/// Longest wait, after which a gateway looks whether it shall end.
const WAIT: Duration = Duration::from_millis(50);
/// Names of the gateways.
const NAMES: [&str; 2] = ["callers", "border"];

/// Times of sealing of one direction, by sequence number; of the last 65,536 packets.
#[derive(Debug)]
struct SealTimes(Vec<AtomicU64>);

impl SealTimes {
    const PACKETS: usize = 1 << 16;
    /// Bits of a time in nanoseconds: three days. Those above have the high bits of the sequence number.
    const TIME_BITS: u32 = 48;

    fn new() -> SealTimes {
        SealTimes((0..SealTimes::PACKETS).map(|_| AtomicU64::new(0)).collect())
    }

    fn slot(&self, sequence: u64) -> Option<&AtomicU64> {
        self.0.get(sequence as usize % SealTimes::PACKETS)
    }

    fn put(&self, sequence: u64, time: Duration) {
        let longest = (1 << SealTimes::TIME_BITS) - 1;
        let time = (time.as_nanos() as u64).min(longest);
        if let Some(slot) = self.slot(sequence) {
            let high = (sequence / SealTimes::PACKETS as u64) << SealTimes::TIME_BITS;
            slot.store(high | time, Ordering::Relaxed);
        }
    }

    /// The time, nanoseconds; `None` if a later packet has its place.
    fn of(&self, sequence: u64) -> Option<u64> {
        let value = self.slot(sequence)?.load(Ordering::Relaxed);
        let high = (sequence / SealTimes::PACKETS as u64) & 0xffff;
        let time = value & ((1 << SealTimes::TIME_BITS) - 1);
        (value >> SealTimes::TIME_BITS == high).then_some(time)
    }
}

/// Counts of a gateway.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineGatewayCount {
    /// Packets that were sealed.
    pub(crate) sealed: u64,
    /// Packets that were opened.
    pub(crate) opened: u64,
    /// Packets that it refused: duplicates, too late ones, damaged ones, and inner packets that ESP cannot carry.
    pub(crate) refused: u64,
    /// Frames of the line, and packets of the TUN device, that the kernel dropped before the gateway read them.
    pub(crate) kernel_drops: u64,
    /// Frames that the kernel refused to send.
    unsent: u64,
    /// CPU time of its thread.
    pub(crate) cpu_seconds: f64,
    /// Time of packets in both gateways, that on the line not included; counted where they are opened.
    pub(crate) delays: DelayCounter,
}

/// Reasons why the gateways lost packets, which is none of the line.
pub(crate) fn faults(counts: &[LineGatewayCount; 2]) -> Vec<String> {
    let mut faults = Vec::new();
    for (count, name) in counts.iter().zip(NAMES) {
        if count.kernel_drops > 0 {
            faults.push(format!(
                "the ESP gateway of the {name} cannot keep up: the kernel dropped {} packets before they were read",
                count.kernel_drops
            ));
        }
        if count.unsent > 0 {
            faults.push(format!(
                "the ESP gateway of the {name}: the kernel refused to send {} frames",
                count.unsent
            ));
        }
    }
    faults
}

type LineGatewayThread = JoinHandle<Result<LineGatewayCount, String>>;

/// The two gateways, a thread each.
#[derive(Debug)]
pub(crate) struct LineGateways {
    stopped: Arc<AtomicBool>,
    threads: Vec<LineGatewayThread>,
}

impl LineGateways {
    /// Starts them: of each host the TUN device and the socket of its interface on the line. `outer` are the addresses
    /// of tunnel mode.
    ///
    /// # Errors
    /// The algorithms have other keys than the case names, or there is no thread.
    pub(crate) fn start(
        ends: [(TunDevice, PacketSocket); 2],
        (case, carriage): (&EspCase, EspCarriage),
        outer: [Ipv4Addr; 2],
        entropy: &mut Entropy,
    ) -> Result<LineGateways, LabError> {
        let [first, second] = outer;
        let there = EspEnds::between(case, carriage, [first, second], entropy)?;
        let back = EspEnds::between(case, carriage, [second, first], entropy)?;
        let (there_times, back_times) = (Arc::new(SealTimes::new()), Arc::new(SealTimes::new()));
        let associations = [
            (
                there.outbound,
                back.inbound,
                there_times.clone(),
                back_times.clone(),
            ),
            (back.outbound, there.inbound, back_times, there_times),
        ];
        let mut gateways = LineGateways {
            stopped: Arc::new(AtomicBool::new(false)),
            threads: Vec::with_capacity(ends.len()),
        };
        let clock = Clock::new();
        for (side, ((tun, socket), (outbound, inbound, sealed, of_peer))) in
            ends.into_iter().zip(associations).enumerate()
        {
            let gateway = LineGateway {
                tun,
                socket,
                outbound,
                inbound,
                sealed,
                of_peer,
                outgoing: frame_header(side, 1 - side),
                incoming: frame_header(1 - side, side),
                clock,
                buffer: vec![0; ROOM],
                count: LineGatewayCount::default(),
            };
            let stopped = gateways.stopped.clone();
            let name = NAMES.get(side).copied().unwrap_or_default();
            let thread = std::thread::Builder::new()
                .name(format!("{name} gateway"))
                .spawn(move || gateway.run(&stopped));
            gateways.threads.push(thread.map_err(|error| {
                LabError::cannot_run(
                    format!("a thread of an ESP gateway: {error}"),
                    "raise the limit of threads (ulimit -u)",
                )
            })?);
        }
        Ok(gateways)
    }

    /// Whether one has ended, which it does by an error only.
    pub(crate) fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Ends both; returns their counts.
    ///
    /// # Errors
    /// A device or an interface was gone.
    pub(crate) fn finish(mut self) -> Result<[LineGatewayCount; 2], String> {
        self.stopped.store(true, Ordering::Relaxed);
        let mut threads = std::mem::take(&mut self.threads).into_iter();
        let mut next = || -> Result<LineGatewayCount, String> {
            let thread = threads.next().ok_or("an ESP gateway is missing")?;
            let ended = thread.join();
            ended.unwrap_or_else(|_| Err("an ESP gateway panicked".to_owned()))
        };
        Ok([next()?, next()?])
    }
}

impl Drop for LineGateways {
    /// An aborted trial leaves no thread behind.
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Ethernet header of the packets from the gateway of one host to that of the other.
fn frame_header(from: usize, to: usize) -> [u8; ETHERNET] {
    /// Last octet of the first gateway's address.
    const FIRST: u8 = 0xe0;
    let mut header = [0; ETHERNET];
    header[0] = 0x02;
    header[5] = FIRST + to as u8;
    header[6] = 0x02;
    header[11] = FIRST + from as u8;
    // IPv4.
    header[12] = 0x08;
    header
}

/// A gateway.
struct LineGateway {
    tun: TunDevice,
    socket: PacketSocket,
    outbound: OutboundSa,
    inbound: InboundSa,
    /// Times of the packets that it seals, and of those that it opens.
    sealed: Arc<SealTimes>,
    of_peer: Arc<SealTimes>,
    outgoing: [u8; ETHERNET],
    incoming: [u8; ETHERNET],
    clock: Clock,
    buffer: Vec<u8>,
    count: LineGatewayCount,
}

impl LineGateway {
    fn run(mut self, stopped: &AtomicBool) -> Result<LineGatewayCount, String> {
        while !stopped.load(Ordering::Relaxed) {
            let has_opened = self.open_waiting()?;
            let has_sealed = self.seal_waiting()?;
            if !has_opened && !has_sealed {
                let _ = wait_any([self.socket.as_fd(), self.tun.as_fd()], WAIT);
            }
        }
        let counts = self.socket.counts();
        self.count.kernel_drops = counts.kernel_drops;
        self.count.unsent = counts.refused;
        self.count.cpu_seconds = net::thread_cpu().as_secs_f64();
        Ok(self.count)
    }

    /// Opens the packets of the other gateway that have arrived. Returns whether there were frames.
    fn open_waiting(&mut self) -> Result<bool, String> {
        let LineGateway {
            tun,
            socket,
            inbound,
            of_peer,
            incoming,
            clock,
            buffer,
            count,
            ..
        } = self;
        let mut broken = None;
        let received = socket.receive(clock, &mut |frame| {
            // Other frames are those of the kernels.
            let Some(packet) = frame.bytes.strip_prefix(&incoming[..]) else {
                return;
            };
            // ESP does not authenticate the outer header, which a host drops if it is damaged.
            let is_whole = Ipv4View::parse(packet).is_some_and(|view| view.has_valid_checksum());
            let (true, Some(space)) = (is_whole, buffer.get_mut(..packet.len())) else {
                count.refused += 1;
                return;
            };
            space.copy_from_slice(packet);
            let mut room = PacketRoom::new(buffer, 0, packet.len());
            let Ok(opened) = inbound.open_packet(&mut room, Time::ZERO) else {
                count.refused += 1;
                return;
            };
            count.opened += 1;
            if let Err(error) = tun.send(room.packet()) {
                broken = Some(error.to_string());
                return;
            }
            if let Some(sealing) = of_peer.of(opened.sequence) {
                let opening = clock.now().since(frame.at).as_nanos() as u64;
                count.delays.record(sealing + opening);
            }
        });
        let received = received.map_err(|error| error.to_string())?;
        match broken {
            Some(why) => Err(why),
            None => Ok(received > 0),
        }
    }

    /// Seals the packets that the kernel has sent to the TUN device. Returns whether there were any.
    fn seal_waiting(&mut self) -> Result<bool, String> {
        let LineGateway {
            tun,
            socket,
            outbound,
            sealed,
            outgoing,
            clock,
            buffer,
            count,
            ..
        } = self;
        for number in 0..BATCH {
            let space = buffer
                .get_mut(BEFORE..ROOM - MAX_TAILROOM)
                .unwrap_or_default();
            let received = tun.receive(space).map_err(|error| error.to_string())?;
            let Some(length) = received else {
                return Ok(number > 0);
            };
            let read = clock.now();
            let mut room = PacketRoom::new(buffer, BEFORE, length);
            // The kernel's own packets of IPv6 (router solicitations) are not part of the experiment.
            if room.packet().first().is_none_or(|first| first >> 4 != 4) {
                continue;
            }
            let Ok(packet) = outbound.seal_packet(&mut room, Time::ZERO) else {
                count.refused += 1;
                continue;
            };
            let (start, end) = (room.start.saturating_sub(ETHERNET), room.end);
            let frame = buffer.get_mut(start..end).unwrap_or_default();
            if let Some(header) = frame.get_mut(..ETHERNET) {
                header.copy_from_slice(outgoing);
            }
            // Ahead of the packet, so that its time is there when the packet is; without the call that sends it.
            sealed.put(packet.sequence, clock.now().since(read));
            socket.send(std::iter::once(&*frame));
            count.sealed += 1;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_sealing_is_found_by_the_sequence_number() {
        let times = SealTimes::new();
        for sequence in 1..=70_000u64 {
            times.put(sequence, Duration::from_nanos(sequence * 10));
        }
        assert_eq!(times.of(70_000), Some(700_000));
        assert_eq!(times.of(65_536), Some(655_360));
        // Number 70,000 and those before have the places of these.
        assert_eq!(times.of(4_464), None);
        assert_eq!(times.of(4_465), Some(44_650));
        times.put(5, Duration::MAX);
        assert_eq!(times.of(5), Some((1 << 48) - 1));
    }

    #[test]
    fn frames_are_addressed_to_neither_interface() {
        let [there, back] = [frame_header(0, 1), frame_header(1, 0)];
        assert_eq!(there[..6], back[6..12]);
        assert_eq!(there[6..12], back[..6]);
        assert_eq!(there[12..], [0x08, 0x00]);
        // Those of the test bed end with 1 and 2.
        assert!(there[5] > 2 && back[5] > 2);
    }

    #[test]
    fn lost_frames_are_faults_of_the_gateway() {
        let mut counts = [LineGatewayCount::default(), LineGatewayCount::default()];
        counts[0].refused = 9;
        assert!(faults(&counts).is_empty());
        counts[1].kernel_drops = 3;
        let found = faults(&counts);
        assert!(
            found.len() == 1 && found[0].contains("border cannot keep up"),
            "{found:?}"
        );
    }
}
