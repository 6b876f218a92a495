//! The records page of a study: its own record, those of parts that are no experiments, and the files that these name.
//! Parts that are experiments have a records page of their own.

use super::page::Page;
use super::record::PlotRecord;
use super::rows::Measured;
use crate::error::LabError;
use crate::records_page::{Document, RECORDS, RecordsPage, href_on, link};
use crate::report::escape;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;

/// Largest JSON file of a part that the page shows value by value, bytes; a larger one is linked as a file.
const LARGEST_FILE: u64 = 512 << 10;

/// The files named by parts that are no experiments and shown on the records page.
pub(super) fn files(
    dir: &Path,
    parts: &[(super::PartRecord, Option<Measured>)],
) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    for (_, measured) in parts {
        let Some(Measured::Own(own)) = measured else {
            continue;
        };
        let of_tables = own
            .tables
            .iter()
            .flat_map(|table| table.links.iter().flatten());
        let of_rows = own.rows.iter().map(|row| &row.record);
        let of_plots = own.plots.iter().flat_map(PlotRecord::links);
        for name in of_tables.chain(of_rows).chain(of_plots) {
            let known = name.ends_with(".ndjson")
                || (name.ends_with(".json") && !name.ends_with("/part.json"));
            let size = known
                .then(|| std::fs::metadata(dir.join(name)).ok())
                .flatten();
            if size.is_some_and(|file| name.ends_with(".ndjson") || file.len() <= LARGEST_FILE) {
                files.insert(name.clone());
            }
        }
    }
    files
}

/// A text as a link to a file of a part: to its place on the records page, or to the file.
pub(super) fn file_link(files: &BTreeSet<String>, file: &str, html: &str) -> String {
    match (files.contains(file), file.ends_with(".ndjson")) {
        (true, true) => link(&format!("{file}:1"), html),
        (true, false) => link(&format!("{file}#"), html),
        (false, _) => format!("<a href=\"{}\">{html}</a>", escape(file)),
    }
}

/// Address of a record of a plot: a file, or `FILE#POINTER`.
pub(super) fn record_href(files: &BTreeSet<String>, reference: &str) -> String {
    let Some((file, pointer)) = reference.split_once('#') else {
        return match (files.contains(reference), reference.ends_with(".ndjson")) {
            (true, true) => href_on(RECORDS, &format!("{reference}:1")),
            (true, false) => href_on(RECORDS, &format!("{reference}#")),
            (false, _) => reference.to_owned(),
        };
    };
    match file.rsplit_once('/') {
        // A part that is an experiment has a records page of its own.
        Some((part, name)) if matches!(name, "run.json" | "computed.json") => {
            href_on(&format!("{part}/{RECORDS}"), &format!("{name}#{pointer}"))
        }
        _ => href_on(RECORDS, reference),
    }
}

/// Writes the records page into `dir`.
///
/// # Errors
/// If a file of records is broken, or `dir` is not writable.
pub(super) fn write(dir: &Path, page: &Page<'_>) -> Result<(), LabError> {
    let mut documents = vec![Document {
        name: "run.json".to_owned(),
        value: json!(page.record),
    }];
    for (part, measured) in page.parts {
        if let Some(Measured::Own(_)) = measured {
            documents.push(Document::read(dir, &format!("{}/part.json", part.name))?);
        }
    }
    let (lines, values): (Vec<&str>, Vec<&str>) = page
        .files
        .iter()
        .map(String::as_str)
        .partition(|name| name.ends_with(".ndjson"));
    for name in values {
        documents.push(Document::read(dir, name)?);
    }
    let records = RecordsPage {
        title: &page.record.title,
        of: "report.html",
        documents,
        lines: &lines,
    };
    records.write(dir, RECORDS)
}
