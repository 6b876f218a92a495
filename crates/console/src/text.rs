//! Texts: times in UTC, and values from the network on terminals.

use core::fmt::Write as _;

/// Microseconds per day.
const DAY: i64 = 86_400_000_000;

/// Year, month and day of a number of days since 1970 (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Days since 1970 of a date; the inverse of [`civil`].
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// A time in microseconds since the Unix epoch as RFC 3339 in UTC, with milliseconds.
pub fn rfc3339(micros: i64) -> String {
    let (year, month, day) = civil(micros.div_euclid(DAY));
    format!("{year:04}-{month:02}-{day:02}T{}Z", clock_time(micros, 3))
}

/// The time of day with up to six decimals.
pub(crate) fn clock_time(micros: i64, decimals: usize) -> String {
    let of_day = micros.rem_euclid(DAY);
    let (seconds, micros) = (of_day / 1_000_000, of_day % 1_000_000);
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    let mut text = format!("{hours:02}:{minutes:02}:{:02}.{micros:06}", seconds % 60);
    text.truncate(9 + decimals.min(6));
    text
}

/// The name of a partition that starts at this time: it sorts by time.
pub(crate) fn partition_name(micros: i64) -> String {
    let (year, month, day) = civil(micros.div_euclid(DAY));
    let time = clock_time(micros, 6).replace([':', '.'], "");
    format!("{year:04}{month:02}{day:02}-{time}")
}

/// The time of a partition's name.
pub(crate) fn partition_start(name: &str) -> Option<i64> {
    let (date, time) = name.split_once('-')?;
    if date.len() != 8 || time.len() != 12 || !name.is_ascii() {
        return None;
    }
    let part = |text: &str, from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let day = days(part(date, 0, 4)?, part(date, 4, 6)?, part(date, 6, 8)?);
    let seconds = part(time, 0, 2)? * 3_600 + part(time, 2, 4)? * 60 + part(time, 4, 6)?;
    Some(day * DAY + seconds * 1_000_000 + part(time, 6, 12)?)
}

/// The name of a day, YYYYMMDD.
pub(crate) fn day_name(day: i64) -> String {
    let (year, month, day) = civil(day);
    format!("{year:04}{month:02}{day:02}")
}

/// The day of a name, days since 1970.
pub(crate) fn day_of_name(name: &str) -> Option<i64> {
    partition_start(&format!("{name}-000000000000")).map(day_of)
}

/// The number of the day of a time.
pub(crate) fn day_of(micros: i64) -> i64 {
    micros.div_euclid(DAY)
}

/// The offset at the end of a time of day, in minutes, and the time before it (RFC 3339, section 5.6).
fn without_offset(time: &str) -> Option<(&str, i64)> {
    if let Some(time) = time.strip_suffix(['Z', 'z']) {
        return Some((time, 0));
    }
    let Some(at) = time.find(['+', '-']) else {
        return Some((time, 0));
    };
    let (time, offset) = time.split_at_checked(at)?;
    let sign = if offset.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let number = |text: &str, limit: i64| {
        let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        let value = text.parse::<i64>().ok().filter(|_| digits)?;
        (value < limit).then_some(value)
    };
    Some((
        time,
        sign * (number(hours, 24)? * 60 + number(minutes, 60)?),
    ))
}

/// A time as `YYYY-MM-DD[THH:MM[:SS[.mmm]][OFFSET]]`, in microseconds since the Unix epoch. A space is accepted for the
/// T. The offset is `Z` or that to UTC, such as `+01:00` (RFC 3339, section 5.6); without it the time is UTC.
pub fn parse_time(text: &str) -> Option<i64> {
    let (date, time) = match text.find(['T', 't', ' ']) {
        Some(at) => (text.get(..at)?, text.get(at + 1..)?),
        None => (text.strip_suffix('Z').unwrap_or(text), "00:00"),
    };
    let (time, offset) = without_offset(time)?;
    let mut parts = date.split('-');
    let mut next = |low: i64, high: i64| {
        let value = parts.next()?.parse::<i64>().ok()?;
        (low..=high).contains(&value).then_some(value)
    };
    let (year, month, day) = (next(0, 9999)?, next(1, 12)?, next(1, 31)?);
    if parts.next().is_some() {
        return None;
    }
    let number = days(year, month, day);
    // 31 February is no date.
    if civil(number) != (year, month, day) {
        return None;
    }
    let mut parts = time.split(':');
    let mut next = |limit: i64| {
        let value = parts.next()?.parse::<i64>().ok()?;
        (0..limit).contains(&value).then_some(value)
    };
    let minutes = next(24)? * 60 + next(60)? - offset;
    let seconds = match parts.next() {
        None => 0.0,
        Some(text) => text
            .parse::<f64>()
            .ok()
            .filter(|s| (0.0..61.0).contains(s))?,
    };
    if parts.next().is_some() {
        return None;
    }
    Some(number * DAY + minutes * 60_000_000 + (seconds * 1e6).round() as i64)
}

/// Whether a terminal could act on a character, or show text in another order because of it.
fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A value from the network for a terminal: characters that a terminal could act on, and bytes that are not UTF-8, are
/// written as escapes.
pub fn escape_controls(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                // Writing into a String cannot fail.
                '\u{0}'..='\u{7f}' if character.is_control() => {
                    let _ = write!(text, "\\x{:02x}", u32::from(character));
                }
                _ if is_unsafe(character) => {
                    let _ = write!(text, "\\u{{{:x}}}", u32::from(character));
                }
                _ => text.push(character),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_parsed() {
        let at = 1_764_000_123_456_789;
        assert_eq!(rfc3339(at), "2025-11-24T16:02:03.456Z");
        assert_eq!(parse_time("2025-11-24T16:02:03.456789"), Some(at));
        assert_eq!(parse_time(&rfc3339(at)), Some(at / 1_000 * 1_000));
        assert_eq!(parse_time("1970-01-01"), Some(0));
        assert_eq!(parse_time("2024-02-29 00:01"), Some(1_709_164_860_000_000));
        let other_offsets = [
            "2025-11-24T17:02:03.456789+01:00",
            "2025-11-24t10:32:03.456789-05:30",
            "2025-11-24 16:02:03.456789z",
        ];
        for same in other_offsets {
            assert_eq!(parse_time(same), Some(at), "{same}");
        }
        assert_eq!(parse_time("1969-12-31T23:59:59Z"), Some(-1_000_000));
        assert_eq!(partition_name(at), "20251124-160203456789");
        assert_eq!(partition_start(&partition_name(at)), Some(at));
        assert_eq!(day_name(day_of(at)), "20251124");
        assert_eq!(day_of_name("20251124"), Some(day_of(at)));
        assert_eq!(day_of_name("words"), None);
        for bad in [
            "",
            "x",
            "2025-02-31",
            "2025-13-01",
            "2025-01-01T24:00",
            "2025-01-01T1",
            "2025-1-1-1",
            "2025-01-01T10:00+1:00",
            "2025-01-01T10:00+24:00",
            "2025-01-01T10:00+01",
            "2025-01-01T+01:00",
        ] {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
        for bad in ["index.db", "20251124-1602", "lock", "2025112é-160203456789"] {
            assert_eq!(partition_start(bad), None, "{bad}");
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        let text = escape_controls("a\x1b[2J\r\n\u{202e}é\u{9b}".as_bytes());
        assert_eq!(text, "a\\x1b[2J\\x0d\\x0a\\u{202e}é\\u{9b}");
        assert_eq!(escape_controls(b"\xffok\xfe"), "\\xffok\\xfe");
    }
}
