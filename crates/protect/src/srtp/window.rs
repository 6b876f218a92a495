//! Packet indices, estimated from sequence numbers.

/// Default size of the replay window, packets.
pub const DEFAULT_WINDOW: usize = 128;

/// Estimates the index of a sequence number (RFC 3711 section 3.3.1); `None` if it would be negative or exceed 48
/// bits.
pub(super) fn estimate(highest: u64, sequence: u16) -> Option<u64> {
    let (cycle, last) = (highest >> 16, (highest & 0xffff) as u16);
    let cycle = if last < 0x8000 {
        if i32::from(sequence) - i32::from(last) > 0x8000 {
            cycle.checked_sub(1)?
        } else {
            cycle
        }
    } else if i32::from(last) - 0x8000 > i32::from(sequence) {
        cycle + 1
    } else {
        cycle
    };
    (cycle <= u64::from(u32::MAX)).then_some(cycle << 16 | u64::from(sequence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_estimated_across_wraps() {
        assert_eq!(estimate(100, 101), Some(101));
        assert_eq!(estimate(0xffff, 0), Some(0x1_0000));
        assert_eq!(estimate(0x1_0000, 0xffff), Some(0xffff));
        assert_eq!(estimate(0, 0xffff), None, "before the first cycle");
        assert_eq!(estimate(0x1_8000, 0), Some(0x1_0000));
        assert_eq!(estimate(0x1_8001, 0), Some(0x2_0000));
        assert_eq!(estimate(0x1_7fff, 0xffff), Some(0x1_ffff));
        assert_eq!(estimate(0x1_7ffe, 0xffff), Some(0xffff));
        assert_eq!(estimate((1 << 48) - 1, 3), None, "the last cycle ends");
    }
}
