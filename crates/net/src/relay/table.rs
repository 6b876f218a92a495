//! The records of the program `ebpf/relay.c`, as both sides see them in memory.

use engine::{Passed, Time};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, fence};
use std::time::Duration;

/// Values of a flow's first word.
const CLOSED: u32 = 0;
const OPEN: u32 = 1;
/// Looks at a record that the program has before we let others run.
const SPINS: u32 = 1_000;
/// Nanoseconds in a tick of the program, as a power of two.
const TICK: u32 = 10;

/// A table of the program, mapped into our memory.
pub(crate) struct Mapped<T> {
    first: *const T,
    count: usize,
}

// SAFETY: it points to memory that lives as long as the value, and whose parts are atomic.
unsafe impl<T: Sync> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Mapped<T> {}

impl<T> Mapped<T> {
    /// Maps a table of `count` values.
    ///
    /// # Safety
    /// The table's values are as `T` says, for which all bytes are valid, and which is changed through shared references alone.
    pub(crate) unsafe fn new(table: BorrowedFd<'_>, count: usize) -> io::Result<Mapped<T>> {
        // SAFETY: a new mapping at a place of the kernel's choice.
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
        // SAFETY: within the mapping, which lives as long as `self`.
        (at < self.count).then(|| unsafe { &*self.first.add(at) })
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no reference is left.
        unsafe { libc::munmap(self.first.cast_mut().cast(), self.count * size_of::<T>()) };
    }
}

/// As `struct flow`: sixteen words.
#[repr(C, align(64))]
pub(crate) struct Flow([AtomicU32; 16]);

/// As `struct flow6`: the words of `struct flow`, then three addresses.
#[repr(C, align(64))]
pub(crate) struct Flow6 {
    flow: Flow,
    addresses: [AtomicU32; 16],
}

/// As `struct way`: eight words, of which the first says whether it is valid.
#[repr(C)]
pub(crate) struct Way([AtomicU32; 8]);

/// Two halves of a word, in the order in which they lie in memory.
fn halves(first: [u8; 2], second: [u8; 2]) -> u32 {
    u32::from_ne_bytes([first[0], first[1], second[0], second[1]])
}

/// What a flow begins with.
pub(crate) struct Opening {
    pub(crate) local: SocketAddr,
    pub(crate) source: SocketAddr,
    pub(crate) out: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) ssrc: u32,
    pub(crate) payload_type: u8,
    /// Of the packet that may pass.
    pub(crate) sequence: u16,
    pub(crate) timestamp: u32,
    /// Monotonic nanoseconds.
    pub(crate) arrived: u64,
    pub(crate) clock_rate: u32,
    pub(crate) jitter: Duration,
    pub(crate) way: u16,
}

/// An address as it stands in a packet; IPv4 in the first four bytes.
fn octets(end: SocketAddr) -> [u8; 16] {
    let mut octets = [0; 16];
    match end.ip() {
        IpAddr::V4(address) => octets[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => octets = address.octets(),
    }
    octets
}

/// The same in words of the program.
fn words(end: SocketAddr) -> [u32; 4] {
    let octets = octets(end);
    [0, 4, 8, 12]
        .map(|at| u32::from_ne_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]))
}

/// What takes the checksum from the old ends to the new ones (RFC 1624), in the order of memory.
fn change(opening: &Opening) -> u16 {
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
    // The words that an address of IPv4 does not have are 0, and so, to this sum, is their complement.
    let old = old.iter().flatten().map(|word| u32::from(!word));
    let new = new.iter().flatten().map(|&word| u32::from(word));
    let mut sum: u32 = old.chain(new).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

impl Flow {
    /// Lets the stream pass. The record is closed, and nobody else opens it.
    pub(crate) fn open(&self, opening: &Opening) {
        let ip = |end: SocketAddr| words(end)[0];
        let port = |end: SocketAddr| end.port().to_be_bytes();
        // Ticks in a unit, times 65,536; one of less than 15 Hz has no jitter.
        let scale = (1_000_000_000u64 << 16 >> TICK)
            .checked_div(u64::from(opening.clock_rate))
            .unwrap_or(0);
        let jitter = opening.jitter.as_nanos() << 4 >> TICK;
        let way = opening.way.to_ne_bytes();
        let words = [
            ip(opening.source),
            halves(port(opening.source), port(opening.out)),
            u32::from(opening.sequence),
            opening.ssrc.to_be(),
            halves([opening.payload_type, 0], way),
            ip(opening.destination),
            halves(port(opening.destination), change(opening).to_ne_bytes()),
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

    /// Closes the stream's way and tells what took it. `first`: the sequence number with which it was opened; `now` in engine time
    /// and in monotonic nanoseconds.
    pub(crate) fn close(&self, first: u16, now: (Time, u64)) -> Passed {
        let mut looks = 0;
        // The program gives the record back after some hundred nanoseconds, unless its processor is taken away from it.
        while self.0[0]
            .compare_exchange_weak(OPEN, CLOSED, Acquire, Relaxed)
            .is_err_and(|state| state != CLOSED)
        {
            looks += 1;
            match looks > SPINS {
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
        Passed {
            packets: word(3).wrapping_sub(u32::from(first)),
            bytes: u64::from(word(11)),
            timestamp: word(9),
            arrived: Time(now.0.0.saturating_sub(u64::from(ago) << TICK)),
            jitter: span(u64::from(word(12) >> 4)),
            jitter_sum: span(u64::from(word(13))),
            jitter_most: span(u64::from(word(14) >> 4)),
            gap_least: gap([a, b]),
            gap_most: gap([c, d]),
        }
    }
}

impl Flow6 {
    /// As [`Flow::open`], between addresses of IPv6.
    pub(crate) fn open(&self, opening: &Opening) {
        let ends = [opening.source, opening.destination, opening.out];
        for (word, value) in self.addresses.iter().zip(ends.into_iter().flat_map(words)) {
            word.store(value, Relaxed);
        }
        self.flow.open(opening);
    }

    /// As [`Flow::close`].
    pub(crate) fn close(&self, first: u16, now: (Time, u64)) -> Passed {
        self.flow.close(first, now)
    }
}

/// What a way is written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    /// Place in the program's table of interfaces.
    pub(crate) device: u32,
    /// The interface's number.
    pub(crate) interface: u32,
    /// Our address, of IPv4; 0 otherwise.
    pub(crate) from: [u8; 4],
    /// The interface's own address, and that of the next one on the way.
    pub(crate) cards: ([u8; 6], [u8; 6]),
    /// Largest IP packet, bytes.
    pub(crate) longest: u16,
    /// Traffic class: the code point in its upper six bits.
    pub(crate) class: u8,
}

impl Way {
    /// Makes it valid. It is not, and was not long enough for the program to know nothing of it any more.
    pub(crate) fn set(&self, hop: &Hop) {
        let (own, [a, b, c, d, e, f]) = hop.cards;
        let longest = hop.longest.to_ne_bytes();
        let words = [
            hop.device,
            hop.interface,
            u32::from_ne_bytes(hop.from),
            u32::from_ne_bytes([a, b, c, d]),
            u32::from_ne_bytes([e, f, own[0], own[1]]),
            u32::from_ne_bytes([own[2], own[3], own[4], own[5]]),
            halves(longest, [hop.class, 0]),
        ];
        for (word, value) in self.0[1..].iter().zip(words) {
            word.store(value, Relaxed);
        }
        self.0[0].store(1, Release);
    }

    /// Whatever would go this way goes up.
    pub(crate) fn clear(&self) {
        self.0[0].store(0, Release);
    }
}
