//! An AF_XDP socket at one queue of an interface: its frame memory, and the four rings that it shares with the
//! kernel.

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// Size of a frame buffer, bytes; the kernel reserves 256 of them on receipt.
pub(crate) const FRAME_BYTES: usize = 2_048;
/// Number of frame buffers for receiving, and for sending: a power of two.
const RING_ENTRIES: u32 = 2_048;
/// Attempts to have the kernel send, without progress between them.
const ATTEMPTS: u32 = 4;
/// Longest wait for the socket of an ended program to be released from the queues of an interface.
pub(crate) const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Memory shared with the kernel.
struct Mapping {
    first: *mut u8,
    length: usize,
}

// SAFETY: it points to memory that is valid as long as the value and is accessed only through it, by one thread at a
// time; concurrent changes by the kernel are atomic, or ordered by the rings.
unsafe impl Send for Mapping {}

impl Mapping {
    /// `of`: the socket and the offset of one of its rings; `None`: anonymous memory.
    fn new(length: usize, of: Option<(BorrowedFd<'_>, libc::off_t)>) -> io::Result<Mapping> {
        let (flags, fd, offset) = match of {
            Some((fd, offset)) => (
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd.as_raw_fd(),
                offset,
            ),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        };
        // SAFETY: a new mapping at an address that the kernel chooses.
        let first = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                fd,
                offset,
            )
        };
        if first == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping {
            first: first.cast(),
            length,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no reference is left.
        unsafe { libc::munmap(self.first.cast(), self.length) };
    }
}

/// A ring of `RING_ENTRIES` entries of type `T`, of which the kernel has one end.
struct Ring<T> {
    map: Mapping,
    offsets: libc::xdp_ring_offset,
    /// Our index: the number of entries that were produced, or consumed.
    own: u32,
    entry: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn new(
        fd: BorrowedFd<'_>,
        which: libc::off_t,
        offsets: libc::xdp_ring_offset,
    ) -> io::Result<Ring<T>> {
        let length = offsets.desc as usize + RING_ENTRIES as usize * size_of::<T>();
        let map = Mapping::new(length, Some((fd, which)))?;
        for word in [offsets.producer, offsets.consumer, offsets.flags] {
            if word % 4 != 0 || word as usize + 4 > length {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(Ring {
            map,
            offsets,
            own: 0,
            entry: std::marker::PhantomData,
        })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: inside the mapping and aligned, as checked by `new`; both ends change it atomically.
        unsafe { &*self.map.first.add(offset as usize).cast::<AtomicU32>() }
    }

    /// The kernel requests a wake-up call.
    fn needs_wakeup(&self) -> bool {
        self.word(self.offsets.flags).load(Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    fn entry_address(&self, index: u32) -> *mut T {
        let index = (index & (RING_ENTRIES - 1)) as usize;
        // SAFETY: inside the mapping, by its length.
        unsafe {
            self.map
                .first
                .add(self.offsets.desc as usize)
                .cast::<T>()
                .add(index)
        }
    }

    /// Entries that the kernel has produced and we have not consumed.
    fn available(&self) -> u32 {
        let kernel_index = self.word(self.offsets.producer).load(Acquire);
        kernel_index.wrapping_sub(self.own).min(RING_ENTRIES)
    }

    /// Consumes the oldest entry; the ring must not be empty. The kernel may reuse its place after [`Ring::release`].
    fn take(&mut self) -> T {
        // SAFETY: the kernel wrote it before it advanced its index, which was read with `Acquire`.
        let entry = unsafe { self.entry_address(self.own).read() };
        self.own = self.own.wrapping_add(1);
        entry
    }

    fn release(&self) {
        self.word(self.offsets.consumer).store(self.own, Release);
    }

    /// Entries that we have produced and the kernel has not consumed.
    fn unconsumed(&self) -> u32 {
        let kernel_index = self.word(self.offsets.consumer).load(Acquire);
        self.own.wrapping_sub(kernel_index).min(RING_ENTRIES)
    }

    /// Produces an entry; there must be room. The kernel sees it after [`Ring::publish`].
    fn produce(&mut self, entry: T) {
        // SAFETY: the kernel has consumed the old entry, and reads the place again only after `publish`.
        unsafe { self.entry_address(self.own).write(entry) };
        self.own = self.own.wrapping_add(1);
    }

    fn publish(&self) {
        self.word(self.offsets.producer).store(self.own, Release);
    }
}

/// Sets a socket option: a plain C structure or number.
fn set<T>(fd: BorrowedFd<'_>, name: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    let value: *const T = value;
    // SAFETY: a value of the stated length, which outlives the call.
    let done =
        unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, value.cast(), length) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads a socket option.
///
/// # Safety
/// `T` is the option's C structure, for which all bytes are valid.
unsafe fn get<T>(fd: BorrowedFd<'_>, name: libc::c_int) -> io::Result<T> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: all zero is valid, by the contract of this function; the kernel writes at most `length` bytes.
    unsafe {
        let mut value: T = zeroed();
        let done = libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            name,
            (&raw mut value).cast(),
            &raw mut length,
        );
        match done {
            0 => Ok(value),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Calls `open` with true (zero-copy) if `zero_copy` is set, and with false if that fails; also returns the error of
/// the first attempt. While a queue is busy, `waits` decides whether the attempt is repeated: the kernel may still be
/// releasing the socket of an ended program.
fn prefer_zero_copy<T>(
    zero_copy: bool,
    mut waits: impl FnMut() -> bool,
    mut open: impl FnMut(bool) -> io::Result<T>,
) -> io::Result<(T, Option<io::Error>)> {
    let mut attempt = |zero_copy: bool| {
        loop {
            match open(zero_copy) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && waits() => {}
                done => return done,
            }
        }
    };
    let refused = match zero_copy.then(|| attempt(true)) {
        Some(Ok(opened)) => return Ok((opened, None)),
        Some(Err(error)) => Some(error),
        None => None,
    };
    Ok((attempt(false)?, refused))
}

/// A receive queue of an interface.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) name: Arc<str>,
    pub(crate) interface: u32,
    pub(crate) number: u32,
}

/// An AF_XDP socket.
pub(crate) struct XskSocket {
    fd: OwnedFd,
    queue: Queue,
    zero_copy: bool,
    memory: Mapping,
    fill: Ring<u64>,
    completion: Ring<u64>,
    rx: Ring<libc::xdp_desc>,
    tx: Ring<libc::xdp_desc>,
    /// Free buffers for sending.
    free: Vec<u64>,
    /// The kernel did not send all frames.
    blocked: bool,
    /// Frames received so far.
    received: u64,
}

impl XskSocket {
    /// Opens a socket at a queue, zero-copy if `zero_copy` is set and the driver supports it; also returns the error
    /// if zero-copy was tried and refused. `until`: end of the wait for the socket of an ended program to be
    /// released.
    pub(crate) fn open(
        queue: &Queue,
        zero_copy: bool,
        until: Instant,
    ) -> io::Result<(XskSocket, Option<io::Error>)> {
        let waits = || {
            let early = Instant::now() < until;
            if early {
                std::thread::sleep(Duration::from_millis(10));
            }
            early
        };
        prefer_zero_copy(zero_copy, waits, |zero_copy| {
            XskSocket::open_as(queue, zero_copy)
        })
    }

    fn open_as(queue: &Queue, zero_copy: bool) -> io::Result<XskSocket> {
        let family = AddressFamily::from_raw(libc::AF_XDP as u16);
        let fd = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let memory = Mapping::new(2 * RING_ENTRIES as usize * FRAME_BYTES, None)?;
        // SAFETY: all zero is valid for this plain C structure.
        let mut region: libc::xdp_umem_reg = unsafe { zeroed() };
        region.addr = memory.first as u64;
        region.len = memory.length as u64;
        region.chunk_size = FRAME_BYTES as u32;
        set(fd.as_fd(), libc::XDP_UMEM_REG, &region)?;
        for ring in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
            libc::XDP_TX_RING,
        ] {
            set(fd.as_fd(), ring, &RING_ENTRIES)?;
        }
        // SAFETY: the option's structure, of integers.
        let offsets: libc::xdp_mmap_offsets = unsafe { get(fd.as_fd(), libc::XDP_MMAP_OFFSETS)? };
        let socket = fd.as_fd();
        let mut fill = Ring::new(
            socket,
            libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t,
            offsets.fr,
        )?;
        let completed = libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t;
        let completion = Ring::new(socket, completed, offsets.cr)?;
        let rx = Ring::new(socket, libc::XDP_PGOFF_RX_RING, offsets.rx)?;
        let tx = Ring::new(socket, libc::XDP_PGOFF_TX_RING, offsets.tx)?;
        for number in 0..u64::from(RING_ENTRIES) {
            fill.produce(number * FRAME_BYTES as u64);
        }
        fill.publish();
        let own = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_USE_NEED_WAKEUP
                | match zero_copy {
                    true => libc::XDP_ZEROCOPY,
                    false => libc::XDP_COPY,
                },
            sxdp_ifindex: queue.interface,
            sxdp_queue_id: queue.number,
            sxdp_shared_umem_fd: 0,
        };
        let length = size_of_val(&own) as libc::socklen_t;
        // SAFETY: an address of the stated length, which outlives the call.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const own).cast(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the option's structure, of one integer.
        let options: u32 = unsafe { get(fd.as_fd(), libc::XDP_OPTIONS)? };
        Ok(XskSocket {
            fd,
            queue: queue.clone(),
            zero_copy: options & libc::XDP_OPTIONS_ZEROCOPY != 0,
            memory,
            fill,
            completion,
            rx,
            tx,
            free: (u64::from(RING_ENTRIES)..2 * u64::from(RING_ENTRIES))
                .map(|number| number * FRAME_BYTES as u64)
                .collect(),
            blocked: false,
            received: 0,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The queue of the socket.
    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Number of frames received so far, including queued ones.
    pub(crate) fn received_count(&self) -> u64 {
        self.received + u64::from(self.rx.available())
    }

    /// Passes at most `most` queued frames to `each`, with their number since the start; returns the count.
    pub(crate) fn receive(&mut self, most: usize, mut each: impl FnMut(u64, &[u8])) -> usize {
        let most = u32::try_from(most).unwrap_or(RING_ENTRIES);
        let count = self.rx.available().min(most);
        for _ in 0..count {
            let entry = self.rx.take();
            let (first, length) = (entry.addr as usize, entry.len as usize);
            let end = first.checked_add(length);
            // The kernel does not return frames outside our memory; such an entry would count as empty.
            if end.is_some_and(|end| end <= self.memory.length) {
                // SAFETY: inside the mapping; the buffer is ours until it is put into the fill ring.
                let frame =
                    unsafe { std::slice::from_raw_parts(self.memory.first.add(first), length) };
                each(self.received, frame);
            } else {
                each(self.received, &[]);
            }
            self.received += 1;
            self.fill.produce(entry.addr & !(FRAME_BYTES as u64 - 1));
        }
        if count > 0 {
            self.rx.release();
            self.fill.publish();
        }
        if self.fill.needs_wakeup() {
            // A wake-up only: the result is ignored, because received frames are found in the ring.
            let _ = rustix::net::recv(
                &self.fd,
                &mut [0u8; 0][..],
                rustix::net::RecvFlags::DONTWAIT,
            );
        }
        count as usize
    }

    /// Calls `write` with a buffer for a frame, which is sent by the next [`XskSocket::kick`]; false if there is no
    /// free buffer, or `write` refuses.
    pub(crate) fn send(&mut self, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        if self.blocked || self.tx.unconsumed() == RING_ENTRIES {
            return false;
        }
        if self.free.is_empty() {
            self.recover_buffers();
        }
        let Some(frame_address) = self.free.pop() else {
            return false;
        };
        // SAFETY: a buffer in the mapping that neither the kernel nor another reference uses.
        let room = unsafe {
            std::slice::from_raw_parts_mut(
                self.memory.first.add(frame_address as usize),
                FRAME_BYTES,
            )
        };
        let Some(length) = write(room).filter(|&length| length <= FRAME_BYTES) else {
            self.free.push(frame_address);
            return false;
        };
        self.tx.produce(libc::xdp_desc {
            addr: frame_address,
            len: length as u32,
            options: 0,
        });
        true
    }

    /// Recovers the buffers of sent frames.
    fn recover_buffers(&mut self) {
        let count = self.completion.available();
        for _ in 0..count {
            let frame_address = self.completion.take();
            self.free.push(frame_address);
        }
        if count > 0 {
            self.completion.release();
        }
    }

    /// Has the kernel send the produced frames. Returns the number of calls, and of frames that the kernel dropped.
    pub(crate) fn kick(&mut self) -> (usize, usize) {
        self.tx.publish();
        let (mut calls, mut dropped, mut idle) = (0, 0, 0);
        let mut unconsumed = self.tx.unconsumed();
        while unconsumed > 0 && idle < ATTEMPTS {
            if !self.tx.needs_wakeup() && self.zero_copy {
                break;
            }
            calls += 1;
            // SAFETY: it sends no data; it has the kernel process the ring.
            let done = unsafe {
                libc::sendto(
                    self.fd.as_raw_fd(),
                    std::ptr::null(),
                    0,
                    libc::MSG_DONTWAIT,
                    std::ptr::null(),
                    0,
                )
            };
            let error = (done < 0).then(|| io::Error::last_os_error().raw_os_error());
            if error == Some(Some(libc::EBUSY)) {
                dropped += 1;
            }
            self.recover_buffers();
            let now = self.tx.unconsumed();
            if now == unconsumed {
                idle += 1;
            } else {
                idle = 0;
            }
            unconsumed = now;
        }
        // The interface is down or its queue is full: packets use sockets until the ring is empty.
        self.blocked = unconsumed > 0 && !self.zero_copy;
        self.recover_buffers();
        (calls, dropped)
    }

    /// Whether frames are waiting in the send ring.
    pub(crate) fn has_unsent(&self) -> bool {
        self.tx.unconsumed() > 0
    }

    /// Frames for this socket that were dropped because its ring was full.
    pub(crate) fn drops(&self) -> io::Result<u64> {
        // SAFETY: the option's structure, of integers.
        let statistics: libc::xdp_statistics = unsafe { get(self.fd(), libc::XDP_STATISTICS)? };
        Ok(statistics.rx_dropped + statistics.rx_ring_full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `prefer_zero_copy` with the given outcomes; returns the attempts and the result.
    fn attempts_with(
        zero_copy: bool,
        outcomes: &[i32],
        waits: u32,
    ) -> (Vec<bool>, Result<i32, i32>) {
        let (mut tries, mut remaining, mut outcomes) = (Vec::new(), waits, outcomes.iter());
        let patient = || {
            let early = remaining > 0;
            remaining = remaining.saturating_sub(1);
            early
        };
        let done = prefer_zero_copy(zero_copy, patient, |zero_copy| {
            tries.push(zero_copy);
            match outcomes.next().expect("no more tries than that") {
                0 => Ok(()),
                code => Err(io::Error::from_raw_os_error(*code)),
            }
        });
        let code = |error: io::Error| error.raw_os_error().unwrap();
        let done = done.map(|((), refused)| refused.map_or(0, code));
        (tries, done.map_err(code))
    }

    #[test]
    fn zero_copy_is_tried_first() {
        use libc::{EBUSY, EINVAL, EOPNOTSUPP, EPERM};
        assert_eq!(attempts_with(true, &[0], 9), (vec![true], Ok(0)));
        // Refused: copy mode is used, and the error is returned.
        let refused = attempts_with(true, &[EOPNOTSUPP, 0], 9);
        assert_eq!(refused, (vec![true, false], Ok(EOPNOTSUPP)));
        let neither = attempts_with(true, &[EOPNOTSUPP, EINVAL], 9);
        assert_eq!(neither, (vec![true, false], Err(EINVAL)));
        // A busy queue is retried, not opened in copy mode.
        let busy = attempts_with(true, &[EBUSY, EBUSY, 0], 9);
        assert_eq!(busy, (vec![true, true, true], Ok(0)));
        let too_long = attempts_with(true, &[EBUSY, EBUSY, EBUSY], 1);
        assert_eq!(too_long, (vec![true, true, false], Err(EBUSY)));
        // Without `zero_copy` it is not tried.
        assert_eq!(attempts_with(false, &[0], 9), (vec![false], Ok(0)));
        assert_eq!(attempts_with(false, &[EPERM], 9), (vec![false], Err(EPERM)));
    }
}
