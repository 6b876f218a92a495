//! Number of receive queues of an interface.

use crate::relay::netlink::Netlink;
use std::ffi::CStr;
use std::io;
use std::os::fd::AsRawFd as _;

// linux/ethtool.h, linux/sockios.h
const GET_CHANNELS: u32 = 0x3c;
const ETHTOOL: libc::c_ulong = 0x8946;

/// `struct ethtool_channels`: the command; the maximum of receive, transmit, other and combined channels; their
/// present number.
#[repr(C)]
#[derive(Default)]
struct Channels([u32; 9]);

#[repr(C)]
struct EthtoolRequest {
    name: [libc::c_char; libc::IF_NAMESIZE],
    value: *mut Channels,
    unused: [u8; 16],
}

/// Receive queues of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queues {
    /// The number that the driver reports.
    Reported(u32),
    /// The maximum, if the driver does not report the number.
    AtMost(u32),
}

/// The name of an interface, and its receive queues.
pub(super) fn of(interface: u32) -> io::Result<(String, Queues)> {
    let mut name: [libc::c_char; libc::IF_NAMESIZE] = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has room for the longest name.
    if unsafe { libc::if_indextoname(interface, name.as_mut_ptr()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the name is NUL-terminated inside the array.
    let text = unsafe { CStr::from_ptr(name.as_ptr()) };
    let text = text.to_string_lossy().into_owned();
    let mut channels = Channels::default();
    channels.0[0] = GET_CHANNELS;
    let mut request = EthtoolRequest {
        name,
        value: &raw mut channels,
        unused: [0; 16],
    };
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    // SAFETY: a request in the kernel's layout, with a value that outlives the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), ETHTOOL as _, &raw mut request) };
    let [_, _, _, _, _, receiving, _, _, combined] = channels.0;
    let queues = match done {
        0 => Queues::Reported(receiving.saturating_add(combined).max(1)),
        _ => {
            let interface_info = Netlink::routes()?.interface(interface)?;
            Queues::AtMost(interface_info.map_or(1, |interface_info| interface_info.queues.max(1)))
        }
    };
    Ok((text, queues))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_without_channel_report_counts_as_one_queue() {
        // SAFETY: the name is NUL-terminated.
        let number = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
        assert_eq!(of(number).unwrap(), ("lo".into(), Queues::AtMost(1)));
        assert!(of(u32::MAX).is_err());
    }
}
