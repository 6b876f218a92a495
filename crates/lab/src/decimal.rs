//! Numbers as decimal text, for sentences, tables and charts.

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
