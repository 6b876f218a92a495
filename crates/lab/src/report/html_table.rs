//! Tables of the report as HTML, and the numbers in them.

use super::chart::escape;
use crate::decimal::plain;
use crate::records_page;
use std::fmt::Write;

/// Formats a number, or a dash without a measurement.
pub(super) fn number(value: Option<f64>) -> String {
    value.map_or("&ndash;".to_owned(), grouped)
}

/// Formats a number without trailing zeros, with thousands separators.
pub(super) fn grouped(value: f64) -> String {
    let text = plain(value);
    let digits = text.trim_start_matches('-');
    if digits.contains('.') || digits.len() < 5 {
        return text;
    }
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    match text.starts_with('-') {
        true => format!("-{out}"),
        false => out,
    }
}

/// Formats a count; zero is drawn faint.
pub(super) fn count(value: f64) -> String {
    match value {
        0.0 => "<span class=\"nil\">0</span>".to_owned(),
        value => grouped(value),
    }
}

/// One table.
#[derive(Default)]
pub(super) struct HtmlTable<'a> {
    /// Heading.
    pub title: &'a str,
    /// Text above the table; may be empty.
    pub note: &'a str,
    /// Reference to the record of the note's numbers; empty if it has none.
    pub note_record: &'a str,
    /// Headings of the columns.
    pub columns: Vec<&'a str>,
    /// Text columns, aligned to the left; the first column always is.
    pub words: &'a [usize],
    /// The rows; a table without any is not written.
    pub rows: Vec<TableRow>,
    /// Whether only its heading is shown at first.
    pub folded: bool,
}

/// A row of a table.
#[derive(Default)]
pub(super) struct TableRow {
    /// HTML of the cells.
    pub cells: Vec<String>,
    /// Class of the row; may be empty.
    pub class: &'static str,
}

impl From<Vec<String>> for TableRow {
    fn from(cells: Vec<String>) -> TableRow {
        TableRow { cells, class: "" }
    }
}

impl HtmlTable<'_> {
    /// Writes the table.
    pub fn write(&self, html: &mut String) {
        if self.rows.is_empty() {
            return;
        }
        let title = escape(self.title);
        let _ = match self.folded {
            true => write!(
                html,
                "<section><details><summary>{title} ({})</summary>",
                self.rows.len()
            ),
            false => write!(html, "<section><h2>{title}</h2>"),
        };
        if !self.note.is_empty() {
            let note = match self.note_record {
                "" => escape(self.note),
                record => records_page::text(record, self.note),
            };
            let _ = write!(html, "<p class=\"note\">{note}</p>");
        }
        html.push_str("<div class=\"scroll\"><table><thead><tr>");
        for (place, column) in self.columns.iter().enumerate() {
            let _ = write!(
                html,
                "<th scope=\"col\"{}>{}</th>",
                self.align(place),
                escape(column)
            );
        }
        html.push_str("</tr></thead><tbody>");
        for row in &self.rows {
            let _ = match row.class {
                "" => write!(html, "<tr>"),
                class => write!(html, "<tr class=\"{class}\">"),
            };
            for (place, cell) in row.cells.iter().enumerate() {
                // A cell may bring its own attributes.
                let _ = match (place, cell.strip_prefix("<td")) {
                    (0, _) => write!(html, "<th scope=\"row\">{cell}</th>"),
                    (_, Some(_)) => write!(html, "{cell}"),
                    _ => write!(html, "<td{}>{cell}</td>", self.align(place)),
                };
            }
            html.push_str("</tr>");
        }
        html.push_str("</tbody></table></div>");
        html.push_str(match self.folded {
            true => "</details></section>",
            false => "</section>",
        });
    }

    fn align(&self, place: usize) -> &'static str {
        match self.words.contains(&place) {
            true => " class=\"words\"",
            false => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        let written = [0.0, 999.0, 1200.0, 23_400.0, -1_234_567.0, 0.25].map(grouped);
        assert_eq!(
            written,
            ["0", "999", "1200", "23,400", "-1,234,567", "0.25"]
        );
    }
}
