//! An endpoint that returns received audio to its sender.

use engine::Entropy;
use wire::rtp::RtpView;

/// Rewrites received RTP packets as its own: with the same payload and timing, but its own source, sequence numbers and
/// timestamps.
#[derive(Clone, Copy, Debug)]
pub struct Echo {
    ssrc: u32,
    sequence: u16,
    timestamp: u32,
    packets: u64,
}

impl Echo {
    /// An echo with random identifiers.
    pub fn new(entropy: &mut Entropy) -> Echo {
        Echo {
            ssrc: entropy.u32(),
            sequence: entropy.u32() as u16,
            timestamp: entropy.u32(),
            packets: 0,
        }
    }

    /// Rewrites `packet` in place, to be sent back. Losses and reordering are preserved, as sequence numbers are
    /// shifted. Returns false and leaves the packet unchanged if it is not RTP.
    pub fn turn(&mut self, packet: &mut [u8]) -> bool {
        let Some(view) = RtpView::parse(packet) else {
            return false;
        };
        let sequence = view.sequence().wrapping_add(self.sequence);
        let timestamp = view.timestamp().wrapping_add(self.timestamp);
        if let Some(fields) = packet.get_mut(2..12) {
            let (numbers, source) = fields.split_at_mut(6);
            let (short, long) = numbers.split_at_mut(2);
            short.copy_from_slice(&sequence.to_be_bytes());
            long.copy_from_slice(&timestamp.to_be_bytes());
            source.copy_from_slice(&self.ssrc.to_be_bytes());
        }
        self.packets += 1;
        true
    }

    /// The synchronisation source.
    pub fn ssrc(&self) -> u32 {
        self.ssrc
    }

    /// Packets returned.
    pub fn packets(&self) -> u64 {
        self.packets
    }
}
