//! Ranges of media ports that programs claim for themselves in a network namespace, so that two whose ranges overlap learn of it
//! when they start, and not by calls that find their ports taken.
//!
//! A claim is an abstract Unix socket (unix(7)) whose name says the range, the process and who claims: such names belong to the
//! network namespace as ports do, any program may list them, and they are gone when their holder is, however it ended.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const PREFIX: &str = "hornwork-media/";
/// Held while a program looks for claims and makes its own, so that of two that start together one sees the other.
const LOCK: &str = "hornwork-media-lock";
/// How often, and how long each time, is waited for the lock: a program that holds it for longer does not do so by our rules.
const LOCK_TRIES: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Media ports of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// The address.
    pub address: IpAddr,
    /// The first port.
    pub first: u16,
    /// The last port, included.
    pub last: u16,
}

impl PortRange {
    /// Whether a port belongs to both.
    pub fn overlaps(&self, other: &PortRange) -> bool {
        self.address.to_canonical() == other.address.to_canonical()
            && self.first <= other.last
            && other.first <= self.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{} of {}", self.first, self.last, self.address)
    }
}

/// What a program has claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The ports.
    pub range: PortRange,
    /// The process, as its own PID namespace numbers it.
    pub process: u32,
    /// Who claims; random.
    claimant: u64,
}

impl Claimed {
    fn parse(name: &str) -> Option<Claimed> {
        let mut parts = name.strip_prefix(PREFIX)?.split('/');
        let address = parts.next()?.parse().ok()?;
        let (first, last) = parts.next()?.split_once('-')?;
        Some(Claimed {
            range: PortRange {
                address,
                first: first.parse().ok()?,
                last: last.parse().ok()?,
            },
            process: parts.next()?.parse().ok()?,
            claimant: u64::from_str_radix(parts.next()?, 16).ok()?,
        })
    }
}

/// Why ports could not be claimed.
#[derive(Debug)]
pub enum ClaimError {
    /// Another program has claimed some of them.
    Taken {
        /// The ports that were wanted.
        wanted: PortRange,
        /// What the other program has.
        by: Claimed,
    },
    /// Claims cannot be made or read here.
    Unsupported(io::Error),
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClaimError::Taken { wanted, by } => write!(
                f,
                "media ports {wanted} overlap with {}-{}, which another Hornwork (process {}) has claimed",
                by.range.first, by.range.last, by.process
            ),
            ClaimError::Unsupported(error) => write!(f, "media ports cannot be claimed: {error}"),
        }
    }
}

impl std::error::Error for ClaimError {}

/// Who claims: its own claims never stand in its way.
#[derive(Clone, Copy, Debug)]
pub struct Claimant(u64);

/// Ports that are claimed for as long as this exists.
#[derive(Clone, Debug, Default)]
pub struct PortClaims {
    _held: Vec<Arc<OwnedFd>>,
}

impl Claimant {
    /// A new one.
    ///
    /// # Errors
    /// Where the system gives no randomness.
    pub fn new() -> io::Result<Claimant> {
        Ok(Claimant(crate::entropy()?.u64()))
    }

    /// Claims ranges in this thread's network namespace.
    ///
    /// # Errors
    /// [`ClaimError`]; nothing is claimed then.
    pub fn claim(self, ranges: &[PortRange]) -> Result<PortClaims, ClaimError> {
        let _lock = lock();
        let others = claims().map_err(ClaimError::Unsupported)?;
        let mut held = Vec::with_capacity(ranges.len());
        for wanted in ranges {
            let foreign = |other: &&Claimed| other.claimant != self.0;
            let mut others = others.iter().filter(foreign);
            if let Some(by) = others.find(|other| other.range.overlaps(wanted)) {
                return Err(ClaimError::Taken {
                    wanted: *wanted,
                    by: *by,
                });
            }
            let fd = bind(&self.name(wanted)).map_err(ClaimError::Unsupported)?;
            held.push(Arc::new(fd));
        }
        Ok(PortClaims { _held: held })
    }

    fn name(self, range: &PortRange) -> String {
        // The same range may be claimed anew before the old claim is given up.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        format!(
            "{PREFIX}{}/{}-{}/{}/{:x}/{}",
            range.address.to_canonical(),
            range.first,
            range.last,
            std::process::id(),
            self.0,
            NUMBER.fetch_add(1, Ordering::Relaxed)
        )
    }
}

/// What is claimed in this thread's network namespace.
///
/// # Errors
/// Where the kernel does not say.
pub fn claims() -> io::Result<Vec<Claimed>> {
    let sockets = std::fs::read("/proc/thread-self/net/unix")?;
    let sockets = String::from_utf8_lossy(&sockets);
    let names = sockets
        .lines()
        .filter_map(|line| line.split(' ').next_back());
    let names = names.filter_map(|name| name.strip_prefix('@'));
    Ok(names.filter_map(Claimed::parse).collect())
}

fn bind(name: &str) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let flags = SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    rustix::net::bind(&fd, &address)?;
    Ok(fd)
}

/// The lock; `None` where another program does not give it up in time.
fn lock() -> Option<OwnedFd> {
    for _ in 0..LOCK_TRIES {
        match bind(LOCK) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                std::thread::sleep(LOCK_PAUSE);
            }
            done => return done.ok(),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(address: &str, first: u16, last: u16) -> PortRange {
        PortRange {
            address: address.parse().unwrap(),
            first,
            last,
        }
    }

    #[test]
    fn a_range_belongs_to_one_claimant_until_it_is_given_up() {
        // Addresses for documentation: no program of this machine has claimed them.
        let (four, six) = ("192.0.2.77", "2001:db8::77");
        let (one, two) = (Claimant::new().unwrap(), Claimant::new().unwrap());
        let held = one
            .claim(&[range(four, 20_000, 20_099), range(six, 20_000, 20_099)])
            .unwrap();
        let refused = two.claim(&[range(six, 30_000, 30_001), range(four, 20_099, 20_100)]);
        let Err(ClaimError::Taken { wanted, by }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!((wanted.first, by.process), (20_099, std::process::id()));
        assert_eq!(by.range, range(four, 20_000, 20_099));
        // What was refused has left nothing behind, and what only touches is free.
        drop(one.claim(&[range(six, 30_000, 30_001)]).unwrap());
        drop(two.claim(&[range(four, 20_100, 20_199)]).unwrap());
        drop(two.claim(&[range("192.0.2.78", 20_000, 20_099)]).unwrap());
        // A claimant may change its mind about its own ports.
        let wider = one.claim(&[range(four, 20_000, 20_199)]).unwrap();
        drop(held);
        assert!(two.claim(&[range(four, 20_150, 20_151)]).is_err());
        assert!(two.claim(&[range(six, 20_000, 20_001)]).is_ok());
        drop(wider);
        assert!(two.claim(&[range(four, 20_150, 20_151)]).is_ok());
    }

    #[test]
    fn names_of_others_are_no_claims() {
        for name in [
            "",
            "/tmp/.X11-unix/X0",
            "hornwork-media/",
            "hornwork-media/x/1-2/3/4/5",
        ] {
            assert_eq!(Claimed::parse(name), None);
        }
        let claim = Claimed::parse("hornwork-media/2001:db8::1/20000-20099/12/ff/0").unwrap();
        assert_eq!(claim.range, range("2001:db8::1", 20_000, 20_099));
        assert_eq!((claim.process, claim.claimant), (12, 255));
    }
}
