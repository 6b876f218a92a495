//! Port 500, and the first messages of peers there and on the port of ESP.

use super::cannot;
use super::plan::ExchangePlan;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use wire::esp::{NatTraversalDatagram, is_ike_init_request};

/// Port of IKE (RFC 7296 section 2).
pub(crate) const IKE_PORT: u16 = 500;

/// Opens it, without waiting for datagrams.
///
/// # Errors
/// It is in use, or needs a right.
pub(super) fn open_port(plan: &ExchangePlan) -> io::Result<UdpSocket> {
    let at = SocketAddr::new(plan.local.ip(), IKE_PORT);
    let socket = UdpSocket::bind(at).map_err(|error| {
        cannot(
            format!("{}: cannot open UDP {at}: {error}", plan.name),
            "give the program CAP_NET_BIND_SERVICE, correct `local`, or stop the program that uses the port (strongSwan and others use 500)",
        )
    })?;
    socket.set_nonblocking(true)?;
    if plan.has_kernel_policies {
        net::bypass_policies(socket.as_fd(), at.is_ipv6())?;
    }
    Ok(socket)
}

/// Whether a message on this port begins a key exchange.
pub(super) fn is_first_message(port: u16, payload: &[u8]) -> bool {
    if port == IKE_PORT {
        return is_ike_init_request(payload);
    }
    match NatTraversalDatagram::parse(payload) {
        NatTraversalDatagram::Ike(message) => is_ike_init_request(message),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::esp::NAT_TRAVERSAL_PORT;

    /// A daemon without connections would refuse the first message of a peer for good; others are of associations that
    /// it has.
    #[test]
    fn first_messages_of_peers_are_told_from_others() {
        let mut message = vec![0; 40];
        message[0] = 1;
        message[17] = 0x20;
        message[18] = 34;
        message[19] = 0x08;
        message[27] = 40;
        let marked = [&[0; 4], &message[..]].concat();
        assert!(is_first_message(IKE_PORT, &message));
        assert!(is_first_message(NAT_TRAVERSAL_PORT, &marked));
        assert!(!is_first_message(NAT_TRAVERSAL_PORT, &message));
        assert!(!is_first_message(IKE_PORT, &[]));
        // Its response.
        message[19] = 0x20;
        assert!(!is_first_message(IKE_PORT, &message));
    }
}
