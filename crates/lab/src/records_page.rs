//! The records of a page, each value at an address of its own: the numbers of the page are links to these addresses.
//!
//! A reference is `FILE#POINTER`, with a JSON pointer (RFC 6901), or `FILE:LINE` and `FILE:FIRST-LAST` for lines of an
//! NDJSON file. The page works without a server and without a script.

use crate::error::LabError;
use crate::files::replace;
use crate::report::{STYLE, escape};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The records page beside a report.
pub(crate) const RECORDS: &str = "records.html";

/// Lines of each NDJSON file that the page shows from its beginning; further ones only if a reference names them.
const LINES: usize = 200;
/// Characters of a text that the page shows; the file has all.
const CHARACTERS: usize = 4_000;

/// Additions to the style of the reports.
const MORE_STYLE: &str = "a{color:var(--accent)}tbody th,td{white-space:normal;overflow-wrap:anywhere;text-align:left;vertical-align:top}\
    tbody th{position:static;font-weight:400;color:var(--soft);min-width:15ch}td{white-space:pre-wrap}tr:target>*{background:var(--study);\
    color:var(--ink);font-weight:600}tr{scroll-margin-top:30vh}";

/// A JSON file of the page.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    /// Path relative to the page.
    pub name: String,
    /// Its content.
    pub value: Value,
}

impl Document {
    /// Reads a JSON file of `dir`.
    ///
    /// # Errors
    /// If it is missing or no JSON; the error names it.
    pub fn read(dir: &Path, name: &str) -> Result<Document, LabError> {
        let path = dir.join(name);
        let bad = |error: &dyn std::fmt::Display| {
            LabError::bad_input(format!("{}: {error}", path.display()))
        };
        let text = std::fs::read_to_string(&path).map_err(|error| bad(&error))?;
        Ok(Document {
            name: name.to_owned(),
            value: serde_json::from_str(&text).map_err(|error| bad(&error))?,
        })
    }
}

/// The records behind one page.
#[derive(Debug)]
pub(crate) struct RecordsPage<'a> {
    /// Title of the page that links here.
    pub title: &'a str,
    /// File of the page that links here.
    pub of: &'a str,
    /// JSON files.
    pub documents: Vec<Document>,
    /// Names of NDJSON files; missing ones are left out.
    pub lines: &'a [&'a str],
}

/// A pointer's segment of this key (RFC 6901).
pub(crate) fn segment(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Address of a reference on the records page, without characters that an `id` or a fragment cannot have.
fn address(reference: &str) -> String {
    let joined = match (reference.split_once('#'), reference.rsplit_once(':')) {
        (Some((file, pointer)), _) => format!("{file}{pointer}"),
        (None, Some((file, lines))) => {
            let first = lines.split_once('-').map_or(lines, |(first, _)| first);
            format!("{file}/{first}")
        }
        (None, None) => reference.to_owned(),
    };
    let mut out = String::with_capacity(joined.len());
    for byte in joined.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'~' | b'/' | b'-' => {
                out.push(char::from(byte));
            }
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

/// Address of a record on the records page `page`.
pub(crate) fn href_on(page: &str, reference: &str) -> String {
    format!("{page}#{}", address(reference))
}

/// Address of a record on the records page beside the report. A line that the page does not show has that of its file.
pub(crate) fn href(reference: &str) -> String {
    match line_reference(reference) {
        Some((file, lines)) if lines.parse::<usize>().is_ok_and(|line| line > LINES) => {
            file.to_owned()
        }
        _ => href_on(RECORDS, reference),
    }
}

/// A number as a link to its record on `page`; text without a digit stays as it is. `html` is escaped already.
pub(crate) fn link_to(page: &str, reference: &str, html: &str) -> String {
    let text = html
        .split('<')
        .map(|part| part.split_once('>').map_or(part, |(_, text)| text));
    match text.flat_map(str::chars).any(|c| c.is_ascii_digit()) {
        true => format!(
            "<a href=\"{}\">{html}</a>",
            escape(&href_on(page, reference))
        ),
        false => html.to_owned(),
    }
}

/// Whether a word is a number: digits without letters. AES-128, G.711 and 2xx are names.
fn is_number(word: &str) -> bool {
    word.chars().any(|c| c.is_ascii_digit()) && !word.chars().any(char::is_alphabetic)
}

/// Running text, escaped, whose numbers become links by `as_link`.
pub(crate) fn with_links(text: &str, as_link: impl Fn(&str) -> String) -> String {
    let is_gap =
        |c: char| c.is_whitespace() || matches!(c, '(' | ')' | '[' | ']' | '"' | '\'' | ';');
    let mut out = String::with_capacity(text.len() * 2);
    for part in text.split_inclusive(is_gap) {
        let word = part.trim_end_matches(is_gap);
        let bare = word.trim_end_matches(['.', ',', ':', '?', '!']);
        match is_number(bare) {
            true => out.push_str(&as_link(&escape(bare))),
            false => out.push_str(&escape(bare)),
        }
        out.push_str(&escape(part.get(bare.len()..).unwrap_or_default()));
    }
    out
}

/// Running text, escaped, whose numbers are links to its record on `page`.
pub(crate) fn text_on(page: &str, reference: &str, text: &str) -> String {
    with_links(text, |number| link_to(page, reference, number))
}

/// Running text, escaped, whose numbers are links to its record on the records page beside the report.
pub(crate) fn text(reference: &str, text: &str) -> String {
    text_on(RECORDS, reference, text)
}

/// A number as a link to its record on the records page beside the report.
pub(crate) fn link(reference: &str, html: &str) -> String {
    link_to(RECORDS, reference, html)
}

impl RecordsPage<'_> {
    /// Writes the page into `dir` as `name`.
    ///
    /// # Errors
    /// If a file of records cannot be read, or `dir` is not writable.
    pub fn write(&self, dir: &Path, name: &str) -> Result<(), LabError> {
        let mut named = BTreeMap::new();
        for document in &self.documents {
            references(&document.value, &mut |reference| {
                if let Some((file, lines)) = line_reference(reference) {
                    let first = lines.split_once('-').map_or(lines, |(first, _)| first);
                    let first = first.parse::<usize>().unwrap_or_default();
                    named
                        .entry(file.to_owned())
                        .or_insert_with(BTreeSet::new)
                        .insert(first);
                }
            });
        }
        let mut html = self.head();
        for document in &self.documents {
            self.document(&mut html, document);
        }
        for file in self.lines {
            let named = named.remove(*file).unwrap_or_default();
            lines(&mut html, dir, file, &named)?;
        }
        html.push_str("</main></body></html>\n");
        replace(&dir.join(name), html.as_bytes())
    }

    fn head(&self) -> String {
        let title = escape(self.title);
        format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
             content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\
             <title>Records: {title}</title><style>{STYLE}{MORE_STYLE}</style></head><body><main><header><p class=\"kicker\">\
             Hornwork test lab &middot; records</p><h1>{title}</h1></header><p class=\"note\">The records of \
             <a href=\"{0}\">{0}</a>, value by value. Each has its JSON pointer (RFC 6901) in the file, or its line. \
             A computed value has the rule by which it was computed, and links to the records that it was computed from.</p>",
            escape(self.of)
        )
    }

    fn document(&self, html: &mut String, document: &Document) {
        let name = escape(&document.name);
        let _ = write!(
            html,
            "<section><h2><a href=\"{name}\">{name}</a></h2><div class=\"scroll\"><table><thead><tr><th scope=\"col\">pointer</th>\
             <th scope=\"col\" class=\"words\">value</th></tr></thead><tbody>"
        );
        self.value(html, &document.name, &mut String::new(), &document.value);
        html.push_str("</tbody></table></div></section>");
    }

    fn value(&self, html: &mut String, file: &str, pointer: &mut String, value: &Value) {
        if pointer.ends_with("/from")
            && let Value::Array(sources) = value
        {
            let links: Vec<String> = sources.iter().map(|source| self.source(source)).collect();
            row(html, file, pointer, &links.join("\n"));
            return;
        }
        let children: Vec<(String, &Value)> = match value {
            Value::Object(map) => map.iter().map(|(key, v)| (segment(key), v)).collect(),
            Value::Array(list) => (0..).map(|n: usize| n.to_string()).zip(list).collect(),
            Value::String(text) => return row(html, file, pointer, &shortened(text)),
            other => return row(html, file, pointer, &escape(&other.to_string())),
        };
        let kind = if value.is_object() { "object" } else { "list" };
        row(
            html,
            file,
            pointer,
            &format!("<span class=\"soft\">{kind} of {}</span>", children.len()),
        );
        let length = pointer.len();
        for (key, child) in children {
            let _ = write!(pointer, "/{key}");
            self.value(html, file, pointer, child);
            pointer.truncate(length);
        }
    }

    /// A link to a source of a computed value.
    fn source(&self, source: &Value) -> String {
        let Some(reference) = source.as_str() else {
            return escape(&source.to_string());
        };
        let text = escape(reference);
        let file = match (line_reference(reference), reference.split_once('#')) {
            (Some((file, _)), _) | (None, Some((file, _))) => file,
            (None, None) => reference,
        };
        let here = self.lines.contains(&file) || self.documents.iter().any(|d| d.name == file);
        if here {
            return format!("<a href=\"#{}\">{text}</a>", address(reference));
        }
        match (file.starts_with(".."), file.rsplit_once('/')) {
            // A part that is an experiment has a records page of its own.
            (false, Some((dir, name)))
                if reference.contains('#') && matches!(name, "run.json" | "computed.json") =>
            {
                let inner = reference.get(dir.len() + 1..).unwrap_or_default();
                format!(
                    "<a href=\"{}/{RECORDS}#{}\">{text}</a>",
                    escape(dir),
                    address(inner)
                )
            }
            _ => format!("<a href=\"{}\">{text}</a>", escape(file)),
        }
    }
}

/// File and lines of a reference to lines.
fn line_reference(reference: &str) -> Option<(&str, &str)> {
    let (file, lines) = reference.rsplit_once(':')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (first, last) = lines.split_once('-').unwrap_or((lines, lines));
    (file.ends_with(".ndjson") && is_number(first) && is_number(last)).then_some((file, lines))
}

/// Calls `found` with each source of a computed value.
fn references<'a>(value: &'a Value, found: &mut impl FnMut(&'a str)) {
    match value {
        Value::Object(map) => {
            for (key, child) in map {
                match (key.as_str(), child) {
                    ("from", Value::Array(list)) => {
                        list.iter().filter_map(Value::as_str).for_each(&mut *found);
                    }
                    _ => references(child, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|child| references(child, found)),
        _ => {}
    }
}

fn row(html: &mut String, file: &str, pointer: &str, value: &str) {
    let shown = if pointer.is_empty() {
        "the whole file"
    } else {
        pointer
    };
    let _ = write!(
        html,
        "<tr id=\"{}\"><th scope=\"row\">{}</th><td>{value}</td></tr>",
        address(&format!("{file}#{pointer}")),
        escape(shown)
    );
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(CHARACTERS) {
        None => escape(text),
        Some((end, _)) => format!(
            "{} <span class=\"soft\">(cut here; the file has all of its {} bytes)</span>",
            escape(text.get(..end).unwrap_or_default()),
            text.len()
        ),
    }
}

/// The lines of an NDJSON file: the first ones, and those that references name.
fn lines(
    html: &mut String,
    dir: &Path,
    file: &str,
    named: &BTreeSet<usize>,
) -> Result<(), LabError> {
    let path = dir.join(file);
    if !path.exists() {
        return Ok(());
    }
    let bad = |error: std::io::Error| LabError::bad_input(format!("{}: {error}", path.display()));
    let reader = BufReader::new(File::open(&path).map_err(bad)?);
    let mut rows = String::new();
    let (mut all, mut shown) = (0, 0);
    for (place, line) in reader.lines().enumerate() {
        let line = line.map_err(bad)?;
        all = place + 1;
        if all > LINES && !named.contains(&all) {
            continue;
        }
        shown += 1;
        let _ = write!(
            rows,
            "<tr id=\"{}\"><th scope=\"row\">{all}</th><td>{}</td></tr>",
            address(&format!("{file}:{all}")),
            shortened(&line)
        );
    }
    let name = escape(file);
    let _ = write!(
        html,
        "<section><h2><a href=\"{name}\">{name}</a></h2><p class=\"note\">{shown} of {all} lines: the first {LINES}, and those that a \
         rule above names. The file has all.</p><div class=\"scroll\"><table><thead><tr><th scope=\"col\">line</th>\
         <th scope=\"col\" class=\"words\">record</th></tr></thead><tbody>{rows}</tbody></table></div></section>"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Entropy;
    use serde_json::json;

    /// A page that is made from the records has the same figures as the one that was made at the end of the run.
    #[test]
    fn figures_are_read_exactly_as_they_were_written() {
        let mut entropy = Entropy::from_number(5);
        for _ in 0..100_000 {
            let figure = entropy.unit() * 1e3;
            let text = json!(figure).to_string();
            assert_eq!(
                serde_json::from_str::<f64>(&text).ok(),
                Some(figure),
                "{text}"
            );
        }
    }

    #[test]
    fn numbers_are_linked_and_words_are_not() {
        assert_eq!(
            link("run.json#/trials/0/a b", "7"),
            "<a href=\"records.html#run.json/trials/0/a%20b\">7</a>"
        );
        assert_eq!(link("run.json#/a", "not measured"), "not measured");
        // A digit of a class is none of the text.
        assert_eq!(
            link("run.json#/a", "<i class=\"c1\">-</i>"),
            "<i class=\"c1\">-</i>"
        );
        assert_eq!(address("attempts.ndjson:12-40"), "attempts.ndjson/12");
    }

    #[test]
    fn numbers_of_running_text_are_links() {
        let linked = |of: &str| {
            let link = "<a href=\"records.html#run.json/about\">";
            let html = text("run.json#/about", of);
            html.replace(link, "[").replace("</a>", "]")
        };
        assert_eq!(
            linked("at most 0.1 % (95 %), 1,000 packets; 20-30 ms."),
            "at most [0.1] % ([95] %), [1,000] packets; [20-30] ms."
        );
        assert_eq!(
            linked("AES-128, G.711 <2xx>: 3; at 4"),
            "AES-128, G.711 &lt;2xx&gt;: [3]; at [4]"
        );
        assert_eq!(linked("no number"), "no number");
        assert_eq!(linked("-5, \u{2265}7"), "[-5], [\u{2265}7]");
        // Lines beyond those of the page have the address of the file.
        assert_eq!(href("a.ndjson:200"), "records.html#a.ndjson/200");
        assert_eq!(href("a.ndjson:201"), "a.ndjson");
        assert_eq!(href("run.json#/a b"), "records.html#run.json/a%20b");
    }

    #[test]
    fn values_have_addresses_and_sources_are_links() {
        let dir = std::env::temp_dir().join(format!("lab-records-page-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let many: String = (1..=LINES + 2)
            .map(|n| format!("{{\"n\":{n}}}\n"))
            .collect();
        std::fs::write(dir.join("a.ndjson"), many).unwrap();
        let value = json!({ "a/b <c": { "value": 1.5, "from": ["a.ndjson:202", "part/run.json#/x", "../o/run.json#/x"] } });
        let page = RecordsPage {
            title: "<t>",
            of: "report.html",
            documents: vec![Document {
                name: "computed.json".to_owned(),
                value,
            }],
            lines: &["a.ndjson", "missing.ndjson"],
        };
        page.write(&dir, RECORDS).unwrap();
        let html = std::fs::read_to_string(dir.join(RECORDS)).unwrap();
        for part in [
            "id=\"computed.json/a~1b%20%3Cc/value\"><th scope=\"row\">/a~1b &lt;c/value</th><td>1.5</td>",
            "<a href=\"#a.ndjson/202\">",
            "<a href=\"part/records.html#run.json/x\">",
            "<a href=\"../o/run.json\">",
            "id=\"a.ndjson/200\"",
            "id=\"a.ndjson/202\"",
            "201 of 202 lines",
        ] {
            assert!(html.contains(part), "{part}");
        }
        assert!(!html.contains("id=\"a.ndjson/201\"") && !html.contains("<t>"));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
