//! Packets of a tunnel: the bytes of the IP packet that carries an inner one.

/// The format of a tunnel's packets: headers, then the encrypted part, padded to whole blocks, then the check value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelFormat {
    /// Bytes before the encrypted part, outer headers included.
    pub header: usize,
    /// Bytes at the begin of the inner packet that stay in the clear (the IP header in transport mode).
    pub clear: usize,
    /// Bytes that are encrypted with the packet, at least: numbers, length and kind of the padding.
    pub trailer: usize,
    /// The encrypted part is padded to a multiple of this.
    pub block: usize,
    /// Bytes of the check value.
    pub check: usize,
}

impl TunnelFormat {
    /// Bytes of the outer IP packet for an inner one of `inner` bytes.
    pub fn outer_bytes(&self, inner: usize) -> usize {
        let encrypted = inner.saturating_sub(self.clear) + self.trailer;
        self.clear.min(inner)
            + self.header
            + encrypted.next_multiple_of(self.block.max(1))
            + self.check
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_give_the_bytes_of_their_documents() {
        // WireGuard (its white paper, 5.4.6): 16 bytes of header, blocks of 16, 16 of check value.
        let wireguard = TunnelFormat {
            header: 28 + 16,
            clear: 0,
            trailer: 0,
            block: 16,
            check: 16,
        };
        assert_eq!(wireguard.outer_bytes(64), 64 + 32 + 28);
        // ESP in transport mode, AES-128-CBC with HMAC-SHA1-96, voice of 160 bytes: 20 + 8 + 16 + 192 + 12.
        let transport = TunnelFormat {
            header: 8 + 16,
            clear: 20,
            trailer: 2,
            block: 16,
            check: 12,
        };
        assert_eq!(transport.outer_bytes(200), 248);
        assert_eq!(transport.outer_bytes(10), 10 + 24 + 16 + 12);
    }
}
