//! Records of the program `ebpf/relay.c` in memory shared with it.

use engine::{OffloadStatistics, Time};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, fence};
use std::time::Duration;

/// Values of a flow's first word, its lock.
const CLOSED: u32 = 0;
const OPEN: u32 = 1;
/// Attempts to lock a record before the thread sleeps between them.
const SPINS: u32 = 1_000;
/// The program's time unit, as a power of two in nanoseconds.
const TICK: u32 = 10;

/// A map of the program, mapped into memory.
pub(crate) struct Mapped<T> {
    first: *const T,
    count: usize,
}

// SAFETY: it points to memory that is valid as long as the value, and whose parts are atomic.
unsafe impl<T: Sync> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Mapped<T> {}

impl<T> Mapped<T> {
    /// Maps `count` values.
    ///
    /// # Safety
    /// The map's values have the layout of `T`, for which all bytes are valid, and which is changed only through
    /// shared references.
    pub(crate) unsafe fn new(table: BorrowedFd<'_>, count: usize) -> io::Result<Mapped<T>> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let first = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count * size_of::<T>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                table.as_raw_fd(),
                0,
            )
        };
        if first == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapped {
            first: first.cast_const().cast(),
            count,
        })
    }

    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        let at = at as usize;
        // SAFETY: inside the mapping, which is valid as long as `self`.
        (at < self.count).then(|| unsafe { &*self.first.add(at) })
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no reference is left.
        unsafe { libc::munmap(self.first.cast_mut().cast(), self.count * size_of::<T>()) };
    }
}

/// Layout of `struct flow`: sixteen words.
#[repr(C, align(64))]
pub(crate) struct FlowRecord([AtomicU32; 16]);

/// Layout of `struct flow6`: the words of `struct flow`, then three addresses.
#[repr(C, align(64))]
pub(crate) struct FlowRecord6 {
    flow: FlowRecord,
    addresses: [AtomicU32; 16],
}

/// Layout of `struct path`: eight words, of which the first is 1 if the record is valid.
#[repr(C)]
pub(crate) struct NextHopRecord([AtomicU32; 8]);

/// Two half words in memory order.
fn halves(first: [u8; 2], second: [u8; 2]) -> u32 {
    u32::from_ne_bytes([first[0], first[1], second[0], second[1]])
}

/// Initial state of a flow.
pub(crate) struct Opening {
    pub(crate) local: SocketAddr,
    pub(crate) source: SocketAddr,
    pub(crate) out: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) ssrc: u32,
    pub(crate) payload_type: u8,
    /// Sequence number of the first packet to be relayed.
    pub(crate) sequence: u16,
    pub(crate) timestamp: u32,
    /// Monotonic nanoseconds.
    pub(crate) arrived: u64,
    pub(crate) clock_rate: u32,
    pub(crate) jitter: Duration,
    pub(crate) path: u16,
}

/// An address in network order; IPv4 in the first four bytes.
fn octets(end: SocketAddr) -> [u8; 16] {
    let mut octets = [0; 16];
    match end.ip() {
        IpAddr::V4(address) => octets[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => octets = address.octets(),
    }
    octets
}

/// The same as words of the program.
fn words(end: SocketAddr) -> [u32; 4] {
    let octets = octets(end);
    [0, 4, 8, 12]
        .map(|at| u32::from_ne_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]))
}

/// The checksum difference between the old and the new addresses and ports (RFC 1624), in memory order.
fn checksum_change(opening: &Opening) -> u16 {
    let words = |end: SocketAddr| {
        let mut words = [0u16; 9];
        for (word, pair) in words.iter_mut().zip(octets(end).chunks_exact(2)) {
            *word = u16::from_ne_bytes([pair[0], pair[1]]);
        }
        words[8] = u16::from_ne_bytes(end.port().to_be_bytes());
        words
    };
    let old = [opening.source, opening.local].map(words);
    let new = [opening.out, opening.destination].map(words);
    // IPv4 leaves words unused: they are 0, and their complement is 0 in one's complement arithmetic, too.
    let old = old.iter().flatten().map(|word| u32::from(!word));
    let new = new.iter().flatten().map(|&word| u32::from(word));
    let mut sum: u32 = old.chain(new).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

impl FlowRecord {
    /// Opens the flow. Its record must be closed, and no other thread may open it.
    pub(crate) fn open(&self, opening: &Opening) {
        let ip = |end: SocketAddr| words(end)[0];
        let port = |end: SocketAddr| end.port().to_be_bytes();
        // Ticks per RTP timestamp unit, times 65,536; a clock rate below 15 Hz yields no jitter.
        let scale = (1_000_000_000u64 << 16 >> TICK)
            .checked_div(u64::from(opening.clock_rate))
            .unwrap_or(0);
        let jitter = opening.jitter.as_nanos() << 4 >> TICK;
        let path = opening.path.to_ne_bytes();
        let words = [
            ip(opening.source),
            halves(port(opening.source), port(opening.out)),
            u32::from(opening.sequence),
            opening.ssrc.to_be(),
            halves([opening.payload_type, 0], path),
            ip(opening.destination),
            halves(
                port(opening.destination),
                checksum_change(opening).to_ne_bytes(),
            ),
            u32::try_from(scale).unwrap_or(0),
            opening.timestamp,
            (opening.arrived >> TICK) as u32,
            0,
            u32::try_from(jitter).unwrap_or(u32::MAX),
            0,
            0,
            halves([0xff; 2], [0; 2]),
        ];
        for (word, value) in self.0[1..].iter().zip(words) {
            word.store(value, Relaxed);
        }
        self.0[0].store(OPEN, Release);
    }

    /// Closes the flow and returns its counts. `first`: the sequence number with which it was opened; `now` in engine
    /// time and in monotonic nanoseconds.
    pub(crate) fn close(&self, first: u16, now: (Time, u64)) -> OffloadStatistics {
        let mut attempts = 0;
        // The program holds the lock for some hundred nanoseconds, unless its CPU is preempted.
        while self.0[0]
            .compare_exchange_weak(OPEN, CLOSED, Acquire, Relaxed)
            .is_err_and(|state| state != CLOSED)
        {
            attempts += 1;
            match attempts > SPINS {
                true => std::thread::sleep(Duration::from_micros(10)),
                false => std::hint::spin_loop(),
            }
        }
        fence(Acquire);
        let word = |at: usize| self.0[at].load(Relaxed);
        let span = |ticks: u64| Duration::from_nanos(ticks << TICK);
        let ago = ((now.1 >> TICK) as u32).wrapping_sub(word(10));
        let [a, b, c, d] = word(15).to_ne_bytes();
        let gap = |bytes: [u8; 2]| span(u64::from(u16::from_ne_bytes(bytes)) << 6);
        OffloadStatistics {
            packets: word(3).wrapping_sub(u32::from(first)),
            bytes: u64::from(word(11)),
            timestamp: word(9),
            arrived: Time(now.0.0.saturating_sub(u64::from(ago) << TICK)),
            jitter: span(u64::from(word(12) >> 4)),
            jitter_sum: span(u64::from(word(13))),
            jitter_max: span(u64::from(word(14) >> 4)),
            gap_min: gap([a, b]),
            gap_max: gap([c, d]),
        }
    }
}

impl FlowRecord6 {
    /// As [`FlowRecord::open`], for IPv6.
    pub(crate) fn open(&self, opening: &Opening) {
        let ends = [opening.source, opening.destination, opening.out];
        for (word, value) in self.addresses.iter().zip(ends.into_iter().flat_map(words)) {
            word.store(value, Relaxed);
        }
        self.flow.open(opening);
    }

    /// As [`FlowRecord::close`].
    pub(crate) fn close(&self, first: u16, now: (Time, u64)) -> OffloadStatistics {
        self.flow.close(first, now)
    }
}

/// Next hop of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextHop {
    /// Index in the program's table of interfaces.
    pub(crate) device: u32,
    /// Interface index of the kernel.
    pub(crate) interface: u32,
    /// Local IPv4 address; 0 for IPv6.
    pub(crate) from: [u8; 4],
    /// Link-layer addresses of the interface and of the next hop.
    pub(crate) macs: ([u8; 6], [u8; 6]),
    /// MTU: largest IP packet, bytes.
    pub(crate) mtu: u16,
    /// Traffic class: the code point is in the upper six bits.
    pub(crate) class: u8,
}

impl NextHopRecord {
    /// Makes the record valid. It has been invalid for long enough that the program no longer uses its old content.
    pub(crate) fn set(&self, hop: &NextHop) {
        let (own, [a, b, c, d, e, f]) = hop.macs;
        let mtu = hop.mtu.to_ne_bytes();
        let words = [
            hop.device,
            hop.interface,
            u32::from_ne_bytes(hop.from),
            u32::from_ne_bytes([a, b, c, d]),
            u32::from_ne_bytes([e, f, own[0], own[1]]),
            u32::from_ne_bytes([own[2], own[3], own[4], own[5]]),
            halves(mtu, [hop.class, 0]),
        ];
        for (word, value) in self.0[1..].iter().zip(words) {
            word.store(value, Relaxed);
        }
        self.0[0].store(1, Release);
    }

    /// Invalidates the record: packets of its flows are delivered to sockets.
    pub(crate) fn clear(&self) {
        self.0[0].store(0, Release);
    }
}
