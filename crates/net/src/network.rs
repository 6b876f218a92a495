//! Network namespaces (network_namespaces(7)): created by one thread, entered by others.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;

/// A new network namespace with a loopback interface that is down. The kernel removes it when this handle and all
/// threads and interfaces in it are gone.
#[derive(Debug)]
pub struct Network {
    handle: File,
}

impl Network {
    /// Creates a namespace.
    ///
    /// # Errors
    /// Not permitted (CAP_SYS_ADMIN).
    pub fn new() -> io::Result<Network> {
        // On a thread of its own, so that the calling thread stays in its namespace.
        let created = std::thread::spawn(|| {
            // SAFETY: CLONE_NEWNET changes the namespace of this thread and no memory.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
                return Err(io::Error::last_os_error());
            }
            File::open("/proc/thread-self/ns/net")
        });
        let handle = created
            .join()
            .map_err(|_| io::Error::other("the thread panicked"))??;
        Ok(Network { handle })
    }

    /// Creates a namespace and sets its loopback interface up.
    ///
    /// # Errors
    /// Not permitted (CAP_SYS_ADMIN, CAP_NET_ADMIN).
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

    /// Opens a namespace that has a name (ip-netns(8)).
    ///
    /// # Errors
    /// There is none of this name.
    pub fn named(name: &str) -> io::Result<Network> {
        let handle = File::open(PathBuf::from("/run/netns").join(name))?;
        Ok(Network { handle })
    }

    /// Moves the calling thread into the namespace; threads and processes that it starts inherit it.
    ///
    /// # Errors
    /// Not permitted (CAP_SYS_ADMIN).
    pub fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.handle.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(())
    }

    /// A path by which other programs can open the namespace while this process runs.
    pub fn path(&self) -> PathBuf {
        let (process, handle) = (std::process::id(), self.handle.as_raw_fd());
        PathBuf::from(format!("/proc/{process}/fd/{handle}"))
    }
}

/// Sets the loopback interface of the calling thread's namespace up (netdevice(7)).
pub(crate) fn raise_loopback() -> io::Result<()> {
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
    // SAFETY: the request is initialised, outlives the call, and holds the flags that SIOCSIFFLAGS reads.
    match unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS as _,
            &raw const request,
        )
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
