//! Other programs at addresses of the virtual network.

use super::*;

/// A program that receives and sends datagrams.
pub trait Program {
    /// Whether it has a socket with this address.
    fn has_socket(&self, address: SocketAddr) -> bool;
    /// Handles a datagram. Returns datagrams to send: source, destination, bytes.
    fn receive(
        &mut self,
        to: SocketAddr,
        from: SocketAddr,
        bytes: &[u8],
        now: Time,
    ) -> Vec<(SocketAddr, SocketAddr, Vec<u8>)>;
}

impl VirtualNetwork {
    /// Passes a datagram to the program with this address. Returns whether there is one.
    pub(super) fn deliver_to_program(
        &mut self,
        to: SocketAddr,
        from: SocketAddr,
        bytes: &[u8],
    ) -> bool {
        let now = self.now;
        let mut programs = std::mem::take(&mut self.programs);
        let found = programs.iter_mut().find(|program| program.has_socket(to));
        let sent = found.map(|program| program.receive(to, from, bytes, now));
        self.programs.append(&mut programs);
        let taken = sent.is_some();
        for (from, to, bytes) in sent.into_iter().flatten() {
            self.send_datagram(from, to, &bytes);
        }
        taken
    }
}
