//! Records of a host, kept in pieces: what was written is never moved while there is more to come.

use crate::record::Attempt;

/// Records of a piece.
const PIECE: usize = 4_096;

/// Records in order.
#[derive(Debug, Default)]
pub(crate) struct Records {
    full: Vec<Vec<Attempt>>,
    last: Vec<Attempt>,
}

impl Records {
    pub(crate) fn push(&mut self, attempt: Attempt) {
        if self.last.len() == PIECE {
            self.full.push(std::mem::take(&mut self.last));
        }
        if self.last.capacity() == 0 && !self.full.is_empty() {
            self.last.reserve_exact(PIECE);
        }
        self.last.push(attempt);
    }

    /// All of them; none is left.
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
    use crate::record::Kind;
    use engine::Time;

    #[test]
    fn every_record_is_given_once_and_in_order() {
        let mut records = Records::default();
        for count in [0, 1, PIECE, PIECE + 1, 3 * PIECE + 5] {
            for number in 0..count as u64 {
                records.push(Attempt::new("w", Kind::Call, number, Time(0)));
            }
            let all = records.take();
            let numbers = all.iter().map(|attempt| attempt.number);
            assert!(numbers.eq(0..count as u64), "{count}");
            assert!(records.take().is_empty());
        }
    }
}
