//! Networks of their own (network_namespaces(7)): made by a thread, entered by others.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;

/// A network with nothing in it but a loopback interface that is down. It is gone when neither this nor a thread nor an interface
/// of it is left.
#[derive(Debug)]
pub struct Network {
    handle: File,
}

impl Network {
    /// Makes one.
    ///
    /// # Errors
    /// Where this process may not (CAP_SYS_ADMIN).
    pub fn new() -> io::Result<Network> {
        // A thread of its own: whoever asks stays in the network in which it is.
        let made = std::thread::spawn(|| {
            // SAFETY: CLONE_NEWNET changes what network this thread is in, and no memory.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
                return Err(io::Error::last_os_error());
            }
            File::open("/proc/thread-self/ns/net")
        });
        let handle = made
            .join()
            .map_err(|_| io::Error::other("the thread panicked"))??;
        Ok(Network { handle })
    }

    /// Makes one whose loopback interface is up.
    ///
    /// # Errors
    /// Where this process may not (CAP_SYS_ADMIN, CAP_NET_ADMIN).
    pub fn with_loopback() -> io::Result<Network> {
        let network = Network::new()?;
        let raised = std::thread::scope(|scope| {
            let raise = || {
                network.enter()?;
                raise_loopback()
            };
            scope.spawn(raise).join()
        });
        raised.map_err(|_| io::Error::other("the thread panicked"))??;
        Ok(network)
    }

    /// Moves the calling thread into it; threads and processes that it starts are in it, too.
    ///
    /// # Errors
    /// Where this process may not (CAP_SYS_ADMIN).
    pub fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.handle.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(())
    }

    /// A path under which other programs find it while this process runs.
    pub fn path(&self) -> PathBuf {
        let (process, handle) = (std::process::id(), self.handle.as_raw_fd());
        PathBuf::from(format!("/proc/{process}/fd/{handle}"))
    }
}

/// Brings up the loopback interface of the network in which the calling thread is (netdevice(7)).
fn raise_loopback() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind(("0.0.0.0", 0))?;
    let mut name = [0; libc::IFNAMSIZ];
    for (into, byte) in name.iter_mut().zip(b"lo") {
        *into = *byte as libc::c_char;
    }
    let request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short,
        },
    };
    // SAFETY: the request is initialised, lives longer than the call, and has the flags in it that SIOCSIFFLAGS reads.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
