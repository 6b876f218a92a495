//! Mixing of voices: the sum of all, and for each participant the sum without its own voice. Plain loops over slices,
//! which the compiler vectorises. Sums have 32 bits, so that 65,536 voices cannot overflow them.

/// Adds `samples` to `total`, up to the shorter length.
pub fn add(total: &mut [i32], samples: &[i16]) {
    for (sum, &sample) in total.iter_mut().zip(samples) {
        *sum += i32::from(sample);
    }
}

/// The sum as samples, clipped.
pub fn clip(total: &[i32], samples: &mut [i16]) {
    for (sample, &sum) in samples.iter_mut().zip(total) {
        *sample = sum.clamp(-32_768, 32_767) as i16;
    }
}

/// The sum without `own`, clipped: the mix for the participant with the voice `own`.
pub fn clip_minus(total: &[i32], own: &[i16], samples: &mut [i16]) {
    for ((sample, &sum), &own) in samples.iter_mut().zip(total).zip(own) {
        *sample = (sum - i32::from(own)).clamp(-32_768, 32_767) as i16;
    }
}

/// Scales the samples by `gain` in units of 1/256, clipped.
pub fn scale(samples: &mut [i16], gain: u16) {
    for sample in samples {
        *sample = ((i32::from(*sample) * i32::from(gain)) >> 8).clamp(-32_768, 32_767) as i16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_participant_receives_the_others() {
        let voices: [[i16; 5]; 3] = [
            [100, -200, 32_767, -32_768, 0],
            [1, 2, 32_767, -32_768, 5],
            [-7, 9, 10, -10, 32_767],
        ];
        let mut total = [0; 5];
        voices.iter().for_each(|voice| add(&mut total, voice));
        let mut all = [0; 5];
        clip(&total, &mut all);
        assert_eq!(all, [94, -189, 32_767, -32_768, 32_767]);
        let mut output = [0; 5];
        clip_minus(&total, &voices[0], &mut output);
        // Although the sum of all is clipped, that of the others is exact.
        assert_eq!(output, [-6, 11, 32_767, -32_768, 32_767]);
        clip_minus(&total, &voices[2], &mut output);
        assert_eq!(output, [101, -198, 32_767, -32_768, 5]);
        // A silent participant receives the whole sum.
        clip_minus(&total, &[0; 5], &mut output);
        assert_eq!(output, all);
    }

    #[test]
    fn levels() {
        let mut samples = [1000, -1000, 30_000, -30_000];
        scale(&mut samples, 128);
        assert_eq!(samples, [500, -500, 15_000, -15_000]);
        scale(&mut samples, 1024);
        assert_eq!(samples, [2000, -2000, 32_767, -32_768]);
    }
}
