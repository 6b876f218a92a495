//! The page of a comparison, from its record `compare.json` alone.

use super::chart::escape;
use super::compare::{HEAD, LEGEND, RunComparison};
use super::put;
use super::style::STYLE;
use crate::error::LabError;
use crate::records_page::{Document, RecordsPage, link_to, text_on};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The record of a comparison.
const RECORD: &str = "compare.json";
/// The page of its records.
const RECORDS: &str = "compare-records.html";

/// Writes the record of a comparison into `dir`, and its page; returns the path of the page.
pub(super) fn publish(dir: &Path, comparison: &RunComparison) -> Result<PathBuf, LabError> {
    let path = dir.join(RECORD);
    let text = serde_json::to_string_pretty(comparison).map_err(std::io::Error::from);
    let text = text.map_err(|error| crate::files::cannot_write(&path, &error))?;
    put(&path, &format!("{text}\n"))?;
    write(dir)
}

/// Writes the page of the comparison whose record is in `dir` again, if there is one.
pub(super) fn write_again(dir: &Path) -> Result<(), LabError> {
    match dir.join(RECORD).exists() {
        true => write(dir).map(drop),
        false => Ok(()),
    }
}

fn write(dir: &Path) -> Result<PathBuf, LabError> {
    let record = Document::read(dir, RECORD)?;
    let path = dir.join(RECORD);
    let comparison: RunComparison = serde_json::from_value(record.value.clone())
        .map_err(|error| LabError::bad_input(format!("{}: {error}", path.display())))?;
    let mut documents = vec![record, Document::read(dir, "run.json")?];
    let baseline = format!("{}/run.json", comparison.baseline);
    // Without the baseline's folder its values are in the record; a run compared with itself is there already.
    if !comparison.baseline.is_empty() && dir.join(&baseline).exists() {
        documents.push(Document::read(dir, &baseline)?);
    }
    let records = RecordsPage {
        title: &comparison.title,
        of: "compare.html",
        documents,
        lines: &[],
    };
    records.write(dir, RECORDS)?;
    let page = dir.join("compare.html");
    put(&page, &render(&comparison))?;
    Ok(page)
}

fn render(comparison: &RunComparison) -> String {
    let title = escape(&comparison.title);
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\
         <title>Comparison: {title}</title><style>{STYLE}</style></head><body><main><header><p class=\"kicker\">Hornwork \
         test lab &middot; comparison</p><h1>{title}</h1></header>",
    );
    let words = |pointer: &str, text: &str| text_on(RECORDS, &format!("{RECORD}#{pointer}"), text);
    for (place, note) in comparison.notes.iter().enumerate() {
        let note = words(&format!("/notes/{place}"), note);
        let _ = write!(html, "<p class=\"note\">{note}</p>");
    }
    html.push_str("<section><div class=\"scroll\"><table><thead><tr>");
    for heading in HEAD {
        let class = if heading == HEAD[1] {
            " class=\"words\""
        } else {
            ""
        };
        let _ = write!(html, "<th scope=\"col\"{class}>{heading}</th>");
    }
    html.push_str("</tr></thead><tbody>");
    for (place, cells) in comparison.cells().into_iter().enumerate() {
        let [
            level,
            figure,
            baseline,
            new,
            difference,
            significant,
            judged,
        ] = cells;
        let cell = |pointer: &str, text: &str| record(&format!("/rows/{place}/{pointer}"), text);
        let _ = write!(
            html,
            "<tr><th scope=\"row\">{}</th><td class=\"words\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            cell("level", &level),
            words(&format!("/rows/{place}/figure"), &figure),
            cell("baseline", &baseline),
            cell("new", &new),
            cell("difference_percent", &difference),
            escape(&significant),
            escape(&judged),
        );
    }
    let _ = write!(
        html,
        "</tbody></table></div><p class=\"note\">{}</p><p class=\"note\">{}</p><p class=\"note\">Each number links to its record in \
         <a href=\"{RECORDS}\">{RECORDS}</a>, with the values of the single trials. The comparison is in {RECORD}.</p></section>\
         </main></body></html>",
        escape(LEGEND),
        words("/rows", &comparison.judgement())
    );
    html.push('\n');
    html
}

/// A text of the comparison as a link to its record, if it has a number.
fn record(pointer: &str, text: &str) -> String {
    link_to(RECORDS, &format!("{RECORD}#{pointer}"), &escape(text))
}
