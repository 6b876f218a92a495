//! The data sheet in `docs/benchmarks.md`, from a stored record of `hornwork lab datasheet` (`docs/datasheet.json`).

use crate::process::root;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::PathBuf;

/// The lines between which the data sheet stands.
const BEGIN: &str = "<!-- data sheet: begin -->";
const END: &str = "<!-- data sheet: end -->";

/// The page and its current text.
///
/// # Errors
/// A file is missing or broken, or the page has no markers.
pub fn page() -> Result<(PathBuf, String), String> {
    let path = root().join("docs/benchmarks.md");
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let text = read(&path)?;
    let stored = root().join("docs/datasheet.json");
    let record: Value = serde_json::from_str(&read(&stored)?)
        .map_err(|error| format!("{}: {error}", stored.display()))?;
    let sheet = sheet(&record).map_err(|why| format!("{}: {why}", stored.display()))?;
    let text = replaced(&text, &sheet).map_err(|why| format!("{}: {why}", path.display()))?;
    Ok((path, text))
}

fn replaced(page: &str, sheet: &str) -> Result<String, String> {
    let parts = page
        .split_once(BEGIN)
        .and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.ok_or_else(|| format!("no lines {BEGIN} and {END}"))?;
    Ok(format!("{before}{BEGIN}\n{sheet}{END}{after}"))
}

/// The data sheet in Markdown.
fn sheet(record: &Value) -> Result<String, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if record["suite"] != "datasheet" {
        return Err("it is no record of hornwork lab datasheet (run.json)".to_owned());
    }
    let rows = record["study"].as_array().ok_or("it has no rows")?;
    let machine = &record["machine"];
    let seconds: f64 = record["parts"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|part| part["seconds"].as_f64())
        .sum();
    let mut gaps = String::new();
    let mut page = format!(
        "`hornwork lab datasheet`, setting {}, {:.0} min, {}, version {}, {}, {} cores, {}.\n\n\
         | figure | here | unit | 95 % interval or bracket | samples | remark |\n| --- | --- | --- | --- | --- | --- |\n",
        text(&record["setting"]),
        (seconds / 60.0).max(1.0),
        date(record["started"].as_u64().unwrap_or(0)),
        text(&record["version"]),
        text(&machine["cpu"]),
        machine["cores"],
        text(&machine["kernel"]),
    );
    let not_run = record["not_run"].as_array().into_iter().flatten();
    let not_run: Vec<String> = not_run
        .map(|part| format!("{} ({})", text(&part["part"]), text(&part["cause"])))
        .collect();
    if !not_run.is_empty() {
        let _ = write!(gaps, "\nParts that were not run: {}.\n", not_run.join(", "));
    }
    for row in rows {
        let interval = &row["interval"];
        let ends = [&interval["low"], &interval["high"]].map(Value::as_f64);
        let here = match (row["here"].as_f64(), ends) {
            (Some(here), _) => number(here),
            (None, [_, Some(high)]) => format!("below {}", number(high)),
            (None, _) => "not measured".to_owned(),
        };
        let ends = match ends {
            [Some(low), Some(high)] => format!("{} to {}", number(low), number(high)),
            [Some(low), None] => format!("{} or more", number(low)),
            [None, Some(high)] => format!("{} or less", number(high)),
            [None, None] => String::new(),
        };
        // The interval of a capacity is no confidence interval.
        let method = interval["method"].as_str().unwrap_or_default();
        let ends = match method.starts_with("between the highest passed") && !ends.is_empty() {
            true => format!("{ends} (bracket)"),
            false => ends,
        };
        let samples = row["samples"].as_u64().filter(|samples| *samples > 0);
        let ends = match (ends.is_empty(), samples) {
            (true, Some(1)) => "one sample".to_owned(),
            _ => ends,
        };
        let cells = [
            text(&row["what"]),
            here,
            text(&row["unit"]),
            ends,
            samples.map_or(String::new(), |samples| samples.to_string()),
            text(&row["remark"]),
        ];
        // Writing into a String cannot fail.
        let cells = cells.map(|cell| cell.replace('|', "\\|").replace('\n', " "));
        let _ = writeln!(page, "| {} |", cells.join(" | "));
    }
    page.push_str(&gaps);
    Ok(page)
}

/// Three significant digits, with commas for thousands.
fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 1_000.0 {
        let digits = format!("{size:.0}");
        let grouped: Vec<&str> = digits
            .as_bytes()
            .rchunks(3)
            .rev()
            .map(|chunk| std::str::from_utf8(chunk).unwrap_or_default())
            .collect();
        let sign = if value < 0.0 { "-" } else { "" };
        return format!("{sign}{}", grouped.join(","));
    }
    let places = match size {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.places$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// The day of a time in seconds since 1970, in UTC.
fn date(seconds: u64) -> String {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let (mut year, mut days) = (1970, seconds / 86_400);
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let months = [
        ("January", 31),
        ("February", february),
        ("March", 31),
        ("April", 30),
        ("May", 31),
        ("June", 30),
        ("July", 31),
        ("August", 31),
        ("September", 30),
        ("October", 31),
        ("November", 30),
        ("December", 31),
    ];
    for (name, length) in months {
        if days < length {
            return format!("{} {name} {year}", days + 1);
        }
        days -= length;
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sheet_stands_between_its_markers() {
        let record = json!({
            "suite": "datasheet", "setting": "quick", "version": "0.1.0", "started": 1_709_164_800_u64,
            "machine": { "cpu": "a CPU", "cores": 2, "kernel": "Linux 6.1" },
            "parts": [{ "seconds": 120.0 }],
            "study": [
                { "what": "calls | per second", "here": 1234.5, "unit": "calls/s", "interval": { "low": 1200.0, "high": null, "method": "between the highest passed and the lowest failed value" }, "samples": 3, "remark": "" },
                { "what": "more", "here": null, "unit": "", "interval": null, "samples": 0, "remark": "not installed" },
                { "what": "one", "here": 2.0, "unit": "us", "interval": { "low": null, "high": null }, "samples": 1, "remark": "kamailio 5.6.3" },
            ],
            "not_run": [{ "part": "standing", "cause": "not started" }],
        });
        let text = sheet(&record).unwrap();
        assert!(
            text.contains("2 min, 29 February 2024, version 0.1.0, a CPU, 2 cores, Linux 6.1"),
            "{text}"
        );
        assert!(
            text.contains(
                "| calls \\| per second | 1,234 | calls/s | 1,200 or more (bracket) | 3 |  |"
            ),
            "{text}"
        );
        assert!(
            text.contains("| more | not measured |  |  |  | not installed |"),
            "{text}"
        );
        assert!(
            text.contains("| one | 2 | us | one sample | 1 | kamailio 5.6.3 |"),
            "{text}"
        );
        assert!(
            text.contains("Parts that were not run: standing (not started)."),
            "{text}"
        );
        let page = replaced(&format!("a\n{BEGIN}\nold\n{END}\nb\n"), &text).unwrap();
        assert!(page.starts_with("a\n") && page.ends_with("\nb\n") && !page.contains("old"));
        assert_eq!(replaced(&page, &text).unwrap(), page);
        assert!(replaced("no markers", &text).is_err());
        assert!(sheet(&json!({ "suite": "study-u" })).is_err());
    }

    #[test]
    fn numbers_have_three_digits() {
        let shown = [0.0, 0.1234, 5.0, 12.34, 123.4, 99_999.5, -1_500.0].map(number);
        assert_eq!(
            shown,
            ["0", "0.123", "5", "12.3", "123", "100,000", "-1,500"]
        );
    }
}
