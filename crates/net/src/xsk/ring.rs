//! A socket of AF_XDP at one queue of one interface: its memory for frames, and the four rings that it shares with the kernel.

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// Bytes of a frame's place in memory; the kernel takes 256 of them for itself on receipt.
pub(crate) const PLACE: usize = 2_048;
/// Places for frames that come, and as many for frames that leave: a power of two.
const PLACES: u32 = 2_048;
/// Attempts to have the kernel take what is to be sent, without any progress.
const ATTEMPTS: u32 = 4;
/// How long the socket of another program may take to be gone from the queues of an interface.
pub(crate) const CLEARED: Duration = Duration::from_secs(2);

/// Memory that is shared with the kernel.
struct Mapping {
    first: *mut u8,
    length: usize,
}

// SAFETY: it points to memory that lives as long as the value and is reached through it alone, by one thread at a time; what the kernel
// changes beside us is atomic, or is ours or the kernel's by the rings' order.
unsafe impl Send for Mapping {}

impl Mapping {
    /// `of`: a ring of a socket, and which; or memory of our own.
    fn new(length: usize, of: Option<(BorrowedFd<'_>, libc::off_t)>) -> io::Result<Mapping> {
        let (flags, fd, offset) = match of {
            Some((fd, offset)) => (
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd.as_raw_fd(),
                offset,
            ),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        };
        // SAFETY: a new mapping at a place of the kernel's choice.
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

/// A ring of `PLACES` entries of type `T`, of which the kernel has one end.
struct Ring<T> {
    map: Mapping,
    offsets: libc::xdp_ring_offset,
    /// Our end: what was put in, or taken out, so far.
    own: u32,
    entry: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn new(
        fd: BorrowedFd<'_>,
        which: libc::off_t,
        offsets: libc::xdp_ring_offset,
    ) -> io::Result<Ring<T>> {
        let length = offsets.desc as usize + PLACES as usize * size_of::<T>();
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
        // SAFETY: within the mapping and aligned, as was looked at when it was made; both ends change it atomically.
        unsafe { &*self.map.first.add(offset as usize).cast::<AtomicU32>() }
    }

    /// The kernel wants to be called.
    fn needs_wakeup(&self) -> bool {
        self.word(self.offsets.flags).load(Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    fn place(&self, at: u32) -> *mut T {
        let at = (at & (PLACES - 1)) as usize;
        // SAFETY: within the mapping, by its length.
        unsafe {
            self.map
                .first
                .add(self.offsets.desc as usize)
                .cast::<T>()
                .add(at)
        }
    }

    /// Entries that the kernel has put in and we have not taken out.
    fn waiting(&self) -> u32 {
        let there = self.word(self.offsets.producer).load(Acquire);
        there.wrapping_sub(self.own).min(PLACES)
    }

    /// Takes the oldest one out, of which there is one; the kernel may use its place after [`Ring::taken`].
    fn take(&mut self) -> T {
        // SAFETY: the kernel wrote it before it moved its end, which was read with `Acquire`.
        let entry = unsafe { self.place(self.own).read() };
        self.own = self.own.wrapping_add(1);
        entry
    }

    fn taken(&self) {
        self.word(self.offsets.consumer).store(self.own, Release);
    }

    /// Entries that we have put in and the kernel has not taken out.
    fn left(&self) -> u32 {
        let there = self.word(self.offsets.consumer).load(Acquire);
        self.own.wrapping_sub(there).min(PLACES)
    }

    /// Puts one in, for which there is room; the kernel sees it after [`Ring::put_in`].
    fn put(&mut self, entry: T) {
        // SAFETY: the kernel has taken out what was there, and looks at it again only after `put_in`.
        unsafe { self.place(self.own).write(entry) };
        self.own = self.own.wrapping_add(1);
    }

    fn put_in(&self) {
        self.word(self.offsets.producer).store(self.own, Release);
    }
}

/// What the kernel calls an option of such sockets, of a plain C structure or number.
fn set<T>(fd: BorrowedFd<'_>, name: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    let value: *const T = value;
    // SAFETY: a value of the length that is stated, which lives through the call.
    let done =
        unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, value.cast(), length) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads such an option.
///
/// # Safety
/// `T` is the option's C structure, for which all bytes are valid.
unsafe fn get<T>(fd: BorrowedFd<'_>, name: libc::c_int) -> io::Result<T> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: all zero is valid, by the caller's promise; the kernel writes at most `length` bytes.
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

/// What `open` opens without copies (true) where that may be tried and is not refused, else with them; and why it was refused. While a
/// queue is busy, `waits` says whether to try the same again: the kernel clears away the socket of a program that has just ended.
fn first_of<T>(
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

/// The socket.
pub(crate) struct Xsk {
    fd: OwnedFd,
    at: Queue,
    zero_copy: bool,
    memory: Mapping,
    fill: Ring<u64>,
    completion: Ring<u64>,
    rx: Ring<libc::xdp_desc>,
    tx: Ring<libc::xdp_desc>,
    /// Places for frames to be sent that are free.
    free: Vec<u64>,
    /// The kernel did not take all that was to be sent.
    blocked: bool,
    /// Frames taken so far.
    taken: u64,
}

impl Xsk {
    /// Opens one at a queue, without copies where `zero_copy` says that this may be tried and the driver can do that; and why it is not
    /// without them where it was tried. `until`: when to wait no longer for another program's socket to be gone from there.
    pub(crate) fn open(
        queue: &Queue,
        zero_copy: bool,
        until: Instant,
    ) -> io::Result<(Xsk, Option<io::Error>)> {
        let waits = || {
            let early = Instant::now() < until;
            if early {
                std::thread::sleep(Duration::from_millis(10));
            }
            early
        };
        first_of(zero_copy, waits, |zero_copy| Xsk::open_as(queue, zero_copy))
    }

    fn open_as(queue: &Queue, zero_copy: bool) -> io::Result<Xsk> {
        let family = AddressFamily::from_raw(libc::AF_XDP as u16);
        let fd = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let memory = Mapping::new(2 * PLACES as usize * PLACE, None)?;
        // SAFETY: all zero is valid for this plain C structure.
        let mut region: libc::xdp_umem_reg = unsafe { zeroed() };
        region.addr = memory.first as u64;
        region.len = memory.length as u64;
        region.chunk_size = PLACE as u32;
        set(fd.as_fd(), libc::XDP_UMEM_REG, &region)?;
        for ring in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
            libc::XDP_TX_RING,
        ] {
            set(fd.as_fd(), ring, &PLACES)?;
        }
        // SAFETY: the option's structure, of numbers.
        let offsets: libc::xdp_mmap_offsets = unsafe { get(fd.as_fd(), libc::XDP_MMAP_OFFSETS)? };
        let at = fd.as_fd();
        let mut fill = Ring::new(
            at,
            libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t,
            offsets.fr,
        )?;
        let completed = libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t;
        let completion = Ring::new(at, completed, offsets.cr)?;
        let rx = Ring::new(at, libc::XDP_PGOFF_RX_RING, offsets.rx)?;
        let tx = Ring::new(at, libc::XDP_PGOFF_TX_RING, offsets.tx)?;
        for place in 0..u64::from(PLACES) {
            fill.put(place * PLACE as u64);
        }
        fill.put_in();
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
        // SAFETY: an address of the length that is stated, which lives through the call.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const own).cast(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the option's structure, of one number.
        let options: u32 = unsafe { get(fd.as_fd(), libc::XDP_OPTIONS)? };
        Ok(Xsk {
            fd,
            at: queue.clone(),
            zero_copy: options & libc::XDP_OPTIONS_ZEROCOPY != 0,
            memory,
            fill,
            completion,
            rx,
            tx,
            free: (u64::from(PLACES)..2 * u64::from(PLACES))
                .map(|place| place * PLACE as u64)
                .collect(),
            blocked: false,
            taken: 0,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The queue at which it is.
    pub(crate) fn at(&self) -> &Queue {
        &self.at
    }

    pub(crate) fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// How many frames have come so far, those included that wait.
    pub(crate) fn come(&self) -> u64 {
        self.taken + u64::from(self.rx.waiting())
    }

    /// Gives at most `most` waiting frames to `each`, with their number since the start; tells how many there were.
    pub(crate) fn receive(&mut self, most: usize, mut each: impl FnMut(u64, &[u8])) -> usize {
        let most = u32::try_from(most).unwrap_or(PLACES);
        let count = self.rx.waiting().min(most);
        for _ in 0..count {
            let entry = self.rx.take();
            let (first, length) = (entry.addr as usize, entry.len as usize);
            let end = first.checked_add(length);
            // What does not lie in our memory is nothing; the kernel does not do that.
            if end.is_some_and(|end| end <= self.memory.length) {
                // SAFETY: within the mapping; the place is ours until it is put into the fill ring.
                let frame =
                    unsafe { std::slice::from_raw_parts(self.memory.first.add(first), length) };
                each(self.taken, frame);
            } else {
                each(self.taken, &[]);
            }
            self.taken += 1;
            self.fill.put(entry.addr & !(PLACE as u64 - 1));
        }
        if count > 0 {
            self.rx.taken();
            self.fill.put_in();
        }
        if self.fill.needs_wakeup() {
            // Only wakes: what it returns is told by what comes.
            let _ = rustix::net::recv(
                &self.fd,
                &mut [0u8; 0][..],
                rustix::net::RecvFlags::DONTWAIT,
            );
        }
        count as usize
    }

    /// Has `write` make a frame, which leaves with the next [`Xsk::kick`]; false where there is no room for it, or it does not fit.
    pub(crate) fn send(&mut self, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        if self.blocked || self.tx.left() == PLACES {
            return false;
        }
        if self.free.is_empty() {
            self.reap();
        }
        let Some(place) = self.free.pop() else {
            return false;
        };
        // SAFETY: a place in the mapping that neither the kernel nor anybody else has at present.
        let room =
            unsafe { std::slice::from_raw_parts_mut(self.memory.first.add(place as usize), PLACE) };
        let Some(length) = write(room).filter(|&length| length <= PLACE) else {
            self.free.push(place);
            return false;
        };
        self.tx.put(libc::xdp_desc {
            addr: place,
            len: length as u32,
            options: 0,
        });
        true
    }

    /// Takes back the places of what was sent.
    fn reap(&mut self) {
        let count = self.completion.waiting();
        for _ in 0..count {
            let place = self.completion.take();
            self.free.push(place);
        }
        if count > 0 {
            self.completion.taken();
        }
    }

    /// Has the kernel send what is to be sent. Calls of it, and how many frames it dropped there.
    pub(crate) fn kick(&mut self) -> (usize, usize) {
        self.tx.put_in();
        let (mut calls, mut dropped, mut idle) = (0, 0, 0);
        let mut left = self.tx.left();
        while left > 0 && idle < ATTEMPTS {
            if !self.tx.needs_wakeup() && self.zero_copy {
                break;
            }
            calls += 1;
            // SAFETY: sends nothing of its own: it has the kernel look at the ring.
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
            self.reap();
            let now = self.tx.left();
            if now == left {
                idle += 1;
            } else {
                idle = 0;
            }
            left = now;
        }
        // With an interface that is down, or one that is full: sockets send until that has left.
        self.blocked = left > 0 && !self.zero_copy;
        self.reap();
        (calls, dropped)
    }

    /// Something could not be sent so far, or waits for that.
    pub(crate) fn has_more(&self) -> bool {
        self.tx.left() > 0
    }

    /// Frames that were for us and found no room.
    pub(crate) fn drops(&self) -> io::Result<u64> {
        // SAFETY: the option's structure, of numbers.
        let told: libc::xdp_statistics = unsafe { get(self.fd(), libc::XDP_STATISTICS)? };
        Ok(told.rx_dropped + told.rx_ring_full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries in order, with what comes of each.
    fn tried(zero_copy: bool, outcomes: &[i32], waits: u32) -> (Vec<bool>, Result<i32, i32>) {
        let (mut tries, mut left, mut outcomes) = (Vec::new(), waits, outcomes.iter());
        let patient = || {
            let early = left > 0;
            left = left.saturating_sub(1);
            early
        };
        let done = first_of(zero_copy, patient, |zero_copy| {
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
    fn without_copies_comes_first() {
        use libc::{EBUSY, EINVAL, EOPNOTSUPP, EPERM};
        assert_eq!(tried(true, &[0], 9), (vec![true], Ok(0)));
        // Refused: in copies, and why is known.
        let refused = tried(true, &[EOPNOTSUPP, 0], 9);
        assert_eq!(refused, (vec![true, false], Ok(EOPNOTSUPP)));
        let neither = tried(true, &[EOPNOTSUPP, EINVAL], 9);
        assert_eq!(neither, (vec![true, false], Err(EINVAL)));
        // Busy for a while is no reason for copies.
        let busy = tried(true, &[EBUSY, EBUSY, 0], 9);
        assert_eq!(busy, (vec![true, true, true], Ok(0)));
        let too_long = tried(true, &[EBUSY, EBUSY, EBUSY], 1);
        assert_eq!(too_long, (vec![true, true, false], Err(EBUSY)));
        // Where it makes no sense it is not tried.
        assert_eq!(tried(false, &[0], 9), (vec![false], Ok(0)));
        assert_eq!(tried(false, &[EPERM], 9), (vec![false], Err(EPERM)));
    }
}
