//! Records of a host, in chunks: appending never moves earlier records.

use crate::record::Attempt;

/// Records of a chunk.
const PIECE: usize = 4_096;

/// Records in order.
#[derive(Debug, Default)]
pub(crate) struct AttemptRecords {
    full: Vec<Vec<Attempt>>,
    last: Vec<Attempt>,
}

impl AttemptRecords {
    pub(crate) fn push(&mut self, attempt: Attempt) {
        if self.last.len() == PIECE {
            self.full.push(std::mem::take(&mut self.last));
        }
        if self.last.capacity() == 0 && !self.full.is_empty() {
            self.last.reserve_exact(PIECE);
        }
        self.last.push(attempt);
    }

    /// Returns all records; none is left.
    pub(crate) fn take(&mut self) -> Vec<Attempt> {
        let pieces = std::mem::take(&mut self.full);
        let last = std::mem::take(&mut self.last);
        if pieces.is_empty() {
            return last;
        }
        let mut all = Vec::with_capacity(pieces.len() * PIECE + last.len());
        for mut piece in pieces {
            all.append(&mut piece);
        }
        all.extend(last);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::AttemptKind;
    use engine::Time;

    #[test]
    fn records_are_returned_once_in_order() {
        let mut records = AttemptRecords::default();
        for count in [0, 1, PIECE, PIECE + 1, 3 * PIECE + 5] {
            for number in 0..count as u64 {
                records.push(Attempt::new("w", AttemptKind::Call, number, Time(0)));
            }
            let all = records.take();
            let numbers = all.iter().map(|attempt| attempt.number);
            assert!(numbers.eq(0..count as u64), "{count}");
            assert!(records.take().is_empty());
        }
    }
}
