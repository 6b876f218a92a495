//! Packet loss that an encoder protects against, from reception reports.

use wire::rtcp::ReportBlock;

/// Weight of the loss before, in quarters, while it decreases.
const DECAY: u32 = 3;

/// Loss of the recent packets of a stream, as its receiver reports it. It follows an increase at once, so that
/// redundancy is sent from the next packet on, and a decrease slowly, because losses come in bursts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExpectedLoss {
    /// In 1/256, as in reports.
    fraction: u8,
    percent: u8,
}

impl ExpectedLoss {
    /// Takes a report about the stream. Returns the new percentage if it has changed.
    pub(crate) fn receive(&mut self, block: &ReportBlock) -> Option<u8> {
        let slow =
            (u32::from(self.fraction) * DECAY + u32::from(block.fraction_lost)) / (DECAY + 1);
        self.fraction = block.fraction_lost.max(slow as u8);
        let percent = (u32::from(self.fraction) * 100).div_ceil(256) as u8;
        let changed = percent != self.percent;
        self.percent = percent;
        changed.then_some(percent)
    }

    /// The loss in percent.
    pub(crate) fn percent(self) -> u8 {
        self.percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_rises_at_once_and_falls_slowly() {
        let mut loss = ExpectedLoss::default();
        let report = |fraction_lost: u8| ReportBlock {
            fraction_lost,
            ..ReportBlock::default()
        };
        assert_eq!(loss.receive(&report(0)), None);
        assert_eq!(loss.receive(&report(51)), Some(20));
        assert_eq!(loss.receive(&report(51)), None);
        assert_eq!(loss.receive(&report(0)), Some(15));
        for _ in 0..30 {
            loss.receive(&report(0));
        }
        assert_eq!(loss.percent(), 0);
    }
}
