//! Check of a report: every number in a cell is a link to a record that exists and holds this number. Written without
//! the code that makes the pages; only the address of a record (`FILE/POINTER`, `FILE.ndjson/LINE`) is known here.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Counts of checked links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Linked numbers in cells.
    pub numbers: usize,
    /// Computed values that were computed again from the records that they name.
    pub computed: usize,
    /// Links over points and bars of plots.
    pub marks: usize,
}

/// Files that were read, so that each is read once.
#[derive(Default)]
struct Files {
    texts: BTreeMap<PathBuf, String>,
    values: BTreeMap<PathBuf, Value>,
}

impl Files {
    fn text(&mut self, path: &Path) -> Result<String, String> {
        if let Some(text) = self.texts.get(path) {
            return Ok(text.clone());
        }
        let text =
            fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        self.texts.insert(path.to_owned(), text.clone());
        Ok(text)
    }

    fn value(&mut self, path: &Path) -> Result<Value, String> {
        if let Some(value) = self.values.get(path) {
            return Ok(value.clone());
        }
        let text = self.text(path)?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        self.values.insert(path.to_owned(), value.clone());
        Ok(value)
    }
}

/// Checks the page `name` of `dir`, the records page that it links to, and its computed values.
pub fn check(dir: &Path, name: &str) -> Result<Checked, String> {
    let mut files = Files::default();
    let page = files.text(&dir.join(name))?;
    let mut checked = Checked::default();
    for cell in page.split("<td").skip(1) {
        let (attributes, rest) = cell.split_once('>').ok_or("a cell without an end")?;
        let content = rest.split("</td>").next().unwrap_or_default();
        let outside = text_outside_links(content);
        // Descriptions, units and commands have numbers that were not measured.
        if !attributes.contains("words") && !numbers(&outside).is_empty() {
            return Err(format!("a number without a link: {content}"));
        }
        for (href, text) in links(content) {
            let Some((file, _)) = href
                .split_once('#')
                .filter(|(file, _)| file.ends_with("records.html"))
            else {
                continue;
            };
            let record = record(&mut files, dir, &href)?;
            checked.numbers += holds(file, &href, &text, &record)?;
        }
    }
    running_text(&page)?;
    checked.marks = plots(&page)?;
    // Links outside of cells, too, have a target.
    for (href, _) in links(&page) {
        target(&mut files, dir, &page, &href)?;
    }
    let records = match name {
        "compare.html" => "compare-records.html",
        _ => "records.html",
    };
    let records = files.text(&dir.join(records))?;
    for (href, _) in links(&records) {
        target(&mut files, dir, &records, &href)?;
    }
    let computed = dir.join("computed.json");
    if computed.exists() {
        let value = files.value(&computed)?;
        checked.computed = compute_again(&mut files, dir, &value)?;
    }
    Ok(checked)
}

/// Elements whose text is a heading, a name or code.
const NAMES: [&str; 12] = [
    "h1",
    "h2",
    "h3",
    "th",
    "dt",
    "summary",
    "figcaption",
    "text",
    "title",
    "code",
    "pre",
    "style",
];
/// Elements without an end.
const VOID: [&str; 3] = ["!doctype", "meta", "br"];
/// Elements within a line of text.
const INLINE: [&str; 6] = ["a", "span", "strong", "small", "em", "i"];
/// Words before the number of a standard.
const STANDARDS: [&str; 4] = ["RFC", "section", "table", "clause"];
/// Numbers that are no records, with the words around them: constants of the methods, and status codes.
const CONSTANTS: [&str; 5] = [
    "95 %",
    "n - 1 degrees of freedom",
    "20 ms of packet time and 60 ms of jitter buffer",
    "over 20 conversations of ten minutes",
    "408, 500, 503, 504 or no answer",
];

/// Checks that each number of running text is within a link: outside of headings, names and code, and but for the
/// constants.
fn running_text(page: &str) -> Result<(), String> {
    let mut open: Vec<&str> = Vec::new();
    let mut lines = String::new();
    for part in page.split('<').skip(1) {
        let (tag, content) = part.split_once('>').ok_or("a tag without an end")?;
        let is_end = tag.starts_with('/');
        let name = tag.trim_start_matches('/');
        let name = name.split([' ', '/']).next().unwrap_or_default();
        if is_end {
            if open.pop() != Some(name) {
                return Err(format!("</{name}> ends another element"));
            }
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
        if !INLINE.contains(&name) {
            lines.push('\n');
        }
        let is_linked = open.contains(&"a");
        let is_named = NAMES.iter().any(|name| open.contains(name));
        lines.push_str(match is_linked || is_named {
            true => " ",
            false => content,
        });
    }
    for line in without_tags(&lines).lines() {
        let free = CONSTANTS
            .iter()
            .fold(line.to_owned(), |text, known| text.replace(known, " "));
        let is_gap = |c: char| c.is_whitespace() || "()[]\"';".contains(c);
        let mut before = "";
        for word in free.split(is_gap) {
            let word = word.trim_matches(['.', ',', ':', '?', '!']);
            let is_number =
                word.contains(|c: char| c.is_ascii_digit()) && !word.contains(char::is_alphabetic);
            if is_number && !STANDARDS.contains(&before) {
                return Err(format!("{word:?} is not in a link: {}", line.trim()));
            }
            before = word;
        }
    }
    Ok(())
}

/// Checks that each drawn plot has links over its points or bars; the number of these links.
fn plots(page: &str) -> Result<usize, String> {
    let mut all = 0;
    for plot in page.split("<svg ").skip(1) {
        let plot = plot.split("</svg>").next().unwrap_or_default();
        let marks = plot.matches("<a href=").count();
        // A dot of a line has a link above it, unless the line is a link as a whole.
        let dots = plot.matches("<circle ").count();
        let is_whole = plot.contains("stroke=\"transparent\"");
        let title = plot.split('"').nth(3).unwrap_or_default();
        if marks == 0 || (dots > 2 * marks && !is_whole) {
            return Err(format!("plot {title:?}: {marks} links over {dots} dots"));
        }
        all += marks;
    }
    Ok(all)
}

/// Removes the pages of `dir`, has them made again, and compares their bytes.
pub fn same_again(dir: &Path, pages: &[&str], again: impl FnOnce()) -> Result<(), String> {
    let read = |name: &&str| fs::read(dir.join(name)).map_err(|error| format!("{name}: {error}"));
    let before: Vec<Vec<u8>> = pages.iter().map(read).collect::<Result<_, _>>()?;
    for page in pages {
        fs::remove_file(dir.join(page)).map_err(|error| error.to_string())?;
    }
    again();
    for (page, before) in pages.iter().zip(before) {
        if read(page)? != before {
            return Err(format!("{page} differs"));
        }
    }
    Ok(())
}

/// The links of a text: address and content without tags.
fn links(html: &str) -> Vec<(String, String)> {
    let found = html.split("<a ").skip(1).filter_map(|rest| {
        let href = rest.split("href=\"").nth(1)?.split('"').next()?;
        let content = rest.split_once('>')?.1.split("</a>").next()?;
        Some((href.replace("&amp;", "&"), without_tags(content)))
    });
    found.collect()
}

fn text_outside_links(html: &str) -> String {
    let mut parts = html.split("<a ");
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.filter_map(|part| Some(part.split_once("</a>")?.1));
    without_tags(&rest.fold(first, |all, part| format!("{all} {part}")))
}

fn without_tags(html: &str) -> String {
    let mut out = String::new();
    for (place, part) in html.split('<').enumerate() {
        out.push_str(match place {
            0 => part,
            _ => part.split_once('>').map_or("", |(_, text)| text),
        });
    }
    let named = [
        ("&amp;", "&"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&ndash;", "-"),
    ];
    let out = named
        .iter()
        .fold(out, |text, (name, sign)| text.replace(name, sign));
    // Signs by their number have digits that are none of the page.
    out.split("&#")
        .enumerate()
        .map(|(n, part)| {
            if n == 0 {
                part
            } else {
                part.split_once(';').map_or(part, |(_, t)| t)
            }
        })
        .collect()
}

/// Numbers of a text with the digits after their point.
fn numbers(text: &str) -> Vec<(f64, i32)> {
    let mut found = Vec::new();
    let mut token = String::new();
    for c in text.chars().chain([' ']) {
        let part = c.is_ascii_digit()
            || ((c == '.' || c == ',') && token.ends_with(|c: char| c.is_ascii_digit()));
        if part {
            token.push(c);
            continue;
        }
        let digits: String = token.trim_end_matches(['.', ',']).replace(',', "");
        if let Ok(value) = digits.parse::<f64>() {
            let after = digits.split_once('.').map_or(0, |(_, after)| after.len());
            found.push((value, after as i32));
        }
        token.clear();
    }
    found
}

/// File and content of a record.
struct Record {
    pointer: String,
    value: Value,
}

/// The record at an address of a records page, from the file itself.
fn record(files: &mut Files, dir: &Path, href: &str) -> Result<Record, String> {
    let (page, address) = href
        .split_once('#')
        .ok_or_else(|| format!("{href}: no address"))?;
    let page = dir.join(page);
    let html = files.text(&page)?;
    let id = format!("id=\"{address}\"");
    match html.matches(&id).count() {
        1 => {}
        count => return Err(format!("{href}: {count} targets")),
    }
    let address = decoded(address);
    let base = page.parent().unwrap_or(dir).to_owned();
    let mut ends: Vec<usize> = address.match_indices('/').map(|(at, _)| at).collect();
    ends.push(address.len());
    for end in ends {
        let path = base.join(&address[..end]);
        if !path.is_file() {
            continue;
        }
        let pointer = address[end..].to_owned();
        let value = match path.extension().is_some_and(|e| e == "ndjson") {
            true => {
                let line: usize = pointer
                    .trim_start_matches('/')
                    .parse()
                    .map_err(|_| format!("{href}: no line"))?;
                let text = files.text(&path)?;
                let line = text
                    .lines()
                    .nth(line.wrapping_sub(1))
                    .ok_or_else(|| format!("{href}: no such line"))?;
                serde_json::from_str(line).map_err(|error| format!("{href}: {error}"))?
            }
            false => {
                let value = files.value(&path)?;
                value
                    .pointer(&pointer)
                    .cloned()
                    .ok_or_else(|| format!("{href}: nothing there"))?
            }
        };
        return Ok(Record { pointer, value });
    }
    Err(format!("{href}: no such file"))
}

fn decoded(address: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = address.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let hex: String = rest.by_ref().take(2).map(char::from).collect();
        bytes.push(u8::from_str_radix(&hex, 16).unwrap_or(b'?'));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Numbers of the text, each of which the record holds, rounded.
fn holds(page: &str, href: &str, text: &str, record: &Record) -> Result<usize, String> {
    let mut held = Vec::new();
    collect(&record.value, &mut held);
    // Durations are shown in minutes and seconds; trials of a search are counted from 1.
    if page == "records.html"
        && record.pointer.starts_with("/parts/")
        && record.pointer.ends_with("/seconds")
    {
        return Ok(1);
    }
    if record.pointer.starts_with("/search/trials/") && record.pointer.ends_with("/trial") {
        held.iter_mut().for_each(|value| *value += 1.0);
    }
    // A cell of a table that links to a whole file begins with the value; other words may follow.
    let shown = numbers(text);
    let first = match record.pointer.is_empty() {
        true if text.starts_with("not measured") => 0,
        true => 1,
        false => shown.len(),
    };
    for (value, digits) in shown.iter().take(first) {
        let rounding = 0.5 * 10f64.powi(-digits) + 1e-9;
        if !held
            .iter()
            .any(|held| (held.abs() - value.abs()).abs() <= rounding)
        {
            return Err(format!("{href}: {text:?} is not in {}", record.value));
        }
    }
    Ok(shown.len())
}

fn collect(value: &Value, held: &mut Vec<f64>) {
    match value {
        Value::Number(number) => held.extend(number.as_f64()),
        Value::String(text) => held.extend(numbers(text).iter().map(|(value, _)| *value)),
        Value::Array(list) => list.iter().for_each(|child| collect(child, held)),
        Value::Object(map) => {
            for (key, child) in map {
                held.extend(key.parse::<f64>());
                collect(child, held);
            }
        }
        _ => {}
    }
}

/// Whether a link has its file, and its target there.
fn target(files: &mut Files, dir: &Path, page: &str, href: &str) -> Result<(), String> {
    let (file, anchor) = href.split_once('#').unwrap_or((href, ""));
    let html = match file {
        "" => page.to_owned(),
        file if anchor.is_empty() => {
            return match dir.join(file).is_file() {
                true => Ok(()),
                false => Err(format!("{href}: no such file")),
            };
        }
        file => files.text(&dir.join(file))?,
    };
    match html.contains(&format!("id=\"{anchor}\"")) {
        true => Ok(()),
        false => Err(format!("{href}: no such target")),
    }
}

/// Computes each value with a plain rule again from its sources; the number of these values.
fn compute_again(files: &mut Files, dir: &Path, value: &Value) -> Result<usize, String> {
    let mut count = 0;
    match value {
        Value::Array(list) => {
            for child in list {
                count += compute_again(files, dir, child)?;
            }
        }
        Value::Object(map) => {
            if let (Some(rule), Some(number), Some(from)) = (
                map.get("rule").and_then(Value::as_str),
                map.get("value").and_then(Value::as_f64),
                map.get("from").and_then(Value::as_array),
            ) {
                count += usize::from(is_combined(files, dir, rule, number, from)?);
            }
            for child in map.values() {
                count += compute_again(files, dir, child)?;
            }
        }
        _ => {}
    }
    Ok(count)
}

/// Whether the rule is one of those known here; an error if the value does not follow from its sources.
fn is_combined(
    files: &mut Files,
    dir: &Path,
    rule: &str,
    number: f64,
    from: &[Value],
) -> Result<bool, String> {
    if rule.starts_with("quantile ") {
        return between_lines(files, dir, number, from);
    }
    let mut values = Vec::new();
    for reference in from {
        let text = reference.as_str().unwrap_or_default();
        let Some((file, pointer)) = text.split_once('#') else {
            return Ok(false);
        };
        let record = files.value(&dir.join(file))?;
        match record
            .pointer(pointer)
            .ok_or_else(|| format!("{text}: nothing there"))?
        {
            Value::Null => {}
            other => values.extend(other.as_f64()),
        }
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    values.sort_by(f64::total_cmp);
    let again = match rule {
        "mean" => mean(&values),
        "sum" => values.iter().sum(),
        "largest" => values.last().copied().unwrap_or(f64::NAN),
        "smallest" => values.first().copied().unwrap_or(f64::NAN),
        "farthest from zero" => values
            .iter()
            .copied()
            .reduce(|a, b| if b.abs() > a.abs() { b } else { a })
            .unwrap_or(f64::NAN),
        "mean without the smallest and the largest" if values.len() > 2 => {
            mean(&values[1..values.len() - 1])
        }
        "mean without the smallest and the largest" => mean(&values),
        "divided by 1000" => values[0] / 1e3,
        "times 100" => values[0] * 100.0,
        _ => return Ok(false),
    };
    match (again - number).abs() <= 1e-9 * number.abs().max(1.0) {
        true => Ok(true),
        false => Err(format!("{rule} of {from:?} is {again}, not {number}")),
    }
}

/// Whether a quantile lies between the response times of the lines that are named first.
fn between_lines(
    files: &mut Files,
    dir: &Path,
    number: f64,
    from: &[Value],
) -> Result<bool, String> {
    let mut times = Vec::new();
    for reference in from.iter().filter_map(Value::as_str) {
        let Some((file, line)) = reference.rsplit_once(':') else {
            continue;
        };
        let (Ok(line), true) = (line.parse::<usize>(), times.len() < 2) else {
            break;
        };
        let text = files.text(&dir.join(file))?;
        let line = text
            .lines()
            .nth(line - 1)
            .ok_or_else(|| format!("{reference}: no such line"))?;
        let line: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let (Some(sent), Some(up)) = (line["sent"].as_f64(), line["established"].as_f64()) else {
            break;
        };
        times.push((up - sent) / 1e6);
    }
    let low = times.iter().copied().fold(f64::INFINITY, f64::min);
    let high = times.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match low - 1e-9 <= number && number <= high + 1e-9 {
        true => Ok(true),
        false => Err(format!(
            "{number} is not within {low} to {high} of {from:?}"
        )),
    }
}
