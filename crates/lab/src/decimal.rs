//! Numbers as decimal text, for sentences, tables and charts.

/// A count with its noun: `1 trial`, `2 trials`. The noun is given in the singular.
pub fn counted<N: std::fmt::Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let plural = match noun {
        _ if count == N::from(1) => "",
        _ if noun.ends_with(['s', 'x']) || noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{count} {noun}{plural}")
}

/// A multiple of a decimal step as it is written in files: 3 x 0.1 is 0.30000000000000004 in binary, and equals no
/// level that a file names.
pub(crate) fn twelve_digits(value: f64) -> f64 {
    format!("{value:.11e}").parse().unwrap_or(value)
}

/// Formats a number without trailing zeros.
pub fn plain(value: f64) -> String {
    let magnitude = value.abs();
    let text = match magnitude {
        _ if magnitude == 0.0 => return "0".to_owned(),
        _ if magnitude >= 100.0 => format!("{value:.0}"),
        _ if magnitude >= 10.0 => format!("{value:.1}"),
        _ if magnitude >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Label of an axis whose labels are at least `step` apart: with as many decimals as tell two of them apart.
pub(crate) fn tick(value: f64, step: f64) -> String {
    let decimals = match step > 0.0 && step.is_finite() {
        true => (-step.log10()).ceil().clamp(0.0, 12.0) as usize,
        false => 3,
    };
    let text = format!("{value:.decimals$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => text.as_str(),
    };
    // Rounding leaves a sign at nothing.
    if text == "-0" { "0" } else { text }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::{counted, tick, twelve_digits};

    #[test]
    fn multiples_of_a_step_are_as_written() {
        let multiples = [3.0 * 0.1, 0.7 * 3.0, 1.1 - 0.2, 132_000.0, 1e-9, 0.0];
        let written = [0.3, 2.1, 0.9, 132_000.0, 1e-9, 0.0];
        assert_eq!(multiples.map(twelve_digits), written);
        assert_eq!(twelve_digits(f64::INFINITY), f64::INFINITY);
    }

    #[test]
    fn one_has_the_singular() {
        assert_eq!(counted(1_u32, "trial"), "1 trial");
        assert_eq!(counted(0_usize, "trial"), "0 trials");
        assert_eq!(counted(2_u64, "loss"), "2 losses");
        assert_eq!(counted(21_u64, "batch"), "21 batches");
    }

    #[test]
    fn label_of_an_axis_has_the_decimals_of_its_step() {
        let shown = [
            (950.0, 0.4),
            (949.6, 0.4),
            (0.0, 0.1),
            (-0.004, 0.1),
            (2e-4, 1e-4),
        ];
        let shown = shown.map(|(value, step)| tick(value, step));
        assert_eq!(shown, ["950", "949.6", "0", "0", "0.0002"]);
        assert_eq!(tick(12_250.0, 500.0), "12250");
    }
}
