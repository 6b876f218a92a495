//! Claims of media port ranges in a network namespace, so that two programs with overlapping ranges detect it at
//! start instead of by calls that fail.
//!
//! A claim is an abstract Unix socket (unix(7)) whose name holds the range, the process and the claimant. Such names
//! belong to the network namespace, as ports do; any program can list them, and the kernel removes them when their
//! process ends, however it ends.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const PREFIX: &str = "hornwork-media/";
/// Bound while a program reads the claims and makes its own: serialises programs that start together.
const LOCK: &str = "hornwork-media-lock";
/// Number of attempts to get the lock, and the pause between two. A program that holds it for longer does not follow
/// this protocol.
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

/// A claimed range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortClaim {
    /// The ports.
    pub range: PortRange,
    /// Process ID, in the PID namespace of that process.
    pub process: u32,
    /// Random identifier of the claimant.
    claimant: u64,
}

impl PortClaim {
    fn parse(name: &str) -> Option<PortClaim> {
        let mut parts = name.strip_prefix(PREFIX)?.split('/');
        let address = parts.next()?.parse().ok()?;
        let (first, last) = parts.next()?.split_once('-')?;
        Some(PortClaim {
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

/// Reason for which ports cannot be claimed.
#[derive(Debug)]
pub enum ClaimError {
    /// Another program has claimed some of them.
    InUse {
        /// The requested ports.
        requested: PortRange,
        /// The claim of the other program.
        by: PortClaim,
    },
    /// Claims cannot be made or read on this system.
    Unsupported(io::Error),
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClaimError::InUse { requested, by } => write!(
                f,
                "media ports {requested} overlap with {}-{}, claimed by another Hornwork (process {})",
                by.range.first, by.range.last, by.process
            ),
            ClaimError::Unsupported(error) => write!(f, "media ports cannot be claimed: {error}"),
        }
    }
}

impl std::error::Error for ClaimError {}

/// Identity of a program that claims ports: its own claims never conflict.
#[derive(Clone, Copy, Debug)]
pub struct Claimant(u64);

/// Claimed ports; released when dropped.
#[derive(Clone, Debug, Default)]
pub struct PortClaims {
    _sockets: Vec<Arc<OwnedFd>>,
}

impl Claimant {
    /// A claimant with a new random identifier.
    ///
    /// # Errors
    /// The system gives no randomness.
    pub fn new() -> io::Result<Claimant> {
        Ok(Claimant(crate::entropy()?.u64()))
    }

    /// Claims ranges in this thread's network namespace.
    ///
    /// # Errors
    /// [`ClaimError`]; no range is claimed then.
    pub fn claim(self, ranges: &[PortRange]) -> Result<PortClaims, ClaimError> {
        let _lock = lock();
        let others = claims().map_err(ClaimError::Unsupported)?;
        let mut sockets = Vec::with_capacity(ranges.len());
        for requested in ranges {
            let foreign = |other: &&PortClaim| other.claimant != self.0;
            let mut others = others.iter().filter(foreign);
            if let Some(by) = others.find(|other| other.range.overlaps(requested)) {
                return Err(ClaimError::InUse {
                    requested: *requested,
                    by: *by,
                });
            }
            let fd = bind(&self.name(requested)).map_err(ClaimError::Unsupported)?;
            sockets.push(Arc::new(fd));
        }
        Ok(PortClaims { _sockets: sockets })
    }

    fn name(self, range: &PortRange) -> String {
        // A claimant may claim the same range again before the old claim is dropped, so names need a number.
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

/// All claims in this thread's network namespace.
///
/// # Errors
/// The kernel does not list the sockets.
pub fn claims() -> io::Result<Vec<PortClaim>> {
    let sockets = std::fs::read("/proc/thread-self/net/unix")?;
    let sockets = String::from_utf8_lossy(&sockets);
    let names = sockets
        .lines()
        .filter_map(|line| line.split(' ').next_back());
    let names = names.filter_map(|name| name.strip_prefix('@'));
    Ok(names.filter_map(PortClaim::parse).collect())
}

fn bind(name: &str) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let flags = SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    rustix::net::bind(&fd, &address)?;
    Ok(fd)
}

/// Gets the lock; `None` if another program holds it for too long.
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
    fn range_belongs_to_one_claimant_until_it_is_dropped() {
        // Addresses for documentation, which no program on this machine has claimed.
        let (four, six) = ("192.0.2.77", "2001:db8::77");
        let (one, two) = (Claimant::new().unwrap(), Claimant::new().unwrap());
        let sockets = one
            .claim(&[range(four, 20_000, 20_099), range(six, 20_000, 20_099)])
            .unwrap();
        let refused = two.claim(&[range(six, 30_000, 30_001), range(four, 20_099, 20_100)]);
        let Err(ClaimError::InUse { requested, by }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!((requested.first, by.process), (20_099, std::process::id()));
        assert_eq!(by.range, range(four, 20_000, 20_099));
        // The refused claim has left nothing behind, and adjacent ranges do not overlap.
        drop(one.claim(&[range(six, 30_000, 30_001)]).unwrap());
        drop(two.claim(&[range(four, 20_100, 20_199)]).unwrap());
        drop(two.claim(&[range("192.0.2.78", 20_000, 20_099)]).unwrap());
        // A claimant may claim its own ports again.
        let wider = one.claim(&[range(four, 20_000, 20_199)]).unwrap();
        drop(sockets);
        assert!(two.claim(&[range(four, 20_150, 20_151)]).is_err());
        assert!(two.claim(&[range(six, 20_000, 20_001)]).is_ok());
        drop(wider);
        assert!(two.claim(&[range(four, 20_150, 20_151)]).is_ok());
    }

    #[test]
    fn other_socket_names_are_no_claims() {
        for name in [
            "",
            "/tmp/.X11-unix/X0",
            "hornwork-media/",
            "hornwork-media/x/1-2/3/4/5",
        ] {
            assert_eq!(PortClaim::parse(name), None);
        }
        let claim = PortClaim::parse("hornwork-media/2001:db8::1/20000-20099/12/ff/0").unwrap();
        assert_eq!(claim.range, range("2001:db8::1", 20_000, 20_099));
        assert_eq!((claim.process, claim.claimant), (12, 255));
    }
}
