//! Other programs at addresses of the small network.

use super::*;

/// A program that takes datagrams and sends some.
pub trait Program {
    /// Whether it has a socket there.
    fn is_at(&self, address: SocketAddr) -> bool;
    /// A datagram comes; what leaves for it: from, to, bytes.
    fn hear(
        &mut self,
        to: SocketAddr,
        from: SocketAddr,
        bytes: &[u8],
        now: Time,
    ) -> Vec<(SocketAddr, SocketAddr, Vec<u8>)>;
}

impl Neighbourhood {
    /// Gives a datagram to the program at an address; `false` where there is none.
    pub(super) fn reaches_program(
        &mut self,
        to: SocketAddr,
        from: SocketAddr,
        bytes: &[u8],
    ) -> bool {
        let now = self.now;
        let mut programs = std::mem::take(&mut self.programs);
        let found = programs.iter_mut().find(|program| program.is_at(to));
        let sent = found.map(|program| program.hear(to, from, bytes, now));
        self.programs.append(&mut programs);
        let taken = sent.is_some();
        for (from, to, bytes) in sent.into_iter().flatten() {
            self.send_datagram(from, to, &bytes);
        }
        taken
    }
}
