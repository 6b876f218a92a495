//! Figures that an experiment measures itself: a table for each figure, with the cases as rows and the levels as
//! columns.

use super::chart::escape;
use super::level_summary::LevelSummary;
use super::sources;
use crate::decimal::plain;
use crate::esp;
use crate::output::columns;
use crate::records_page::link;
use std::fmt::Write;

/// A figure of an experiment, its description, and its cases.
struct FigureCases<'a> {
    name: &'a str,
    description: &'a str,
    /// Full name and name of the case.
    cases: Vec<(String, String)>,
}

/// The figures of the levels in the order of the list of all figures, cases by name.
fn figures(levels: &[LevelSummary]) -> Vec<FigureCases<'static>> {
    let mut names: Vec<&String> = levels.iter().flat_map(|l| l.measures.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let of = |(figure, description): &(&'static str, &'static str)| {
        let prefix = format!("esp.{figure}");
        let mut cases = Vec::new();
        for name in &names {
            match name.strip_prefix(prefix.as_str()) {
                Some("") => cases.push(((*name).clone(), "all cases".to_owned())),
                Some(case) if case.starts_with('.') => {
                    let case = case.trim_start_matches('.').replace('.', ", ");
                    cases.push(((*name).clone(), case));
                }
                _ => {}
            }
        }
        (!cases.is_empty()).then_some(FigureCases {
            name: figure,
            description,
            cases,
        })
    };
    esp::FIGURES.iter().filter_map(of).collect()
}

fn level_name(level: &LevelSummary) -> String {
    level.level.map_or("all".to_owned(), plain)
}

/// The tables of the page.
pub(super) fn tables(html: &mut String, levels: &[LevelSummary]) {
    for figure in figures(levels) {
        let _ = write!(
            html,
            "<section><h2>{}</h2><p class=\"note\">{}. Median of the rounds, with the 95 % confidence interval.</p>\
             <div class=\"scroll\"><table><thead><tr><th scope=\"col\">case</th>",
            escape(&figure.name.replace('_', " ")),
            escape(figure.description)
        );
        for (place, level) in levels.iter().enumerate() {
            let record = sources::computed(&format!("/levels/{place}/level"));
            let name = link(&record, &escape(&level_name(level)));
            let _ = write!(html, "<th scope=\"col\">{name}</th>");
        }
        html.push_str("</tr></thead><tbody>");
        for (name, case) in &figure.cases {
            let _ = write!(html, "<tr><th scope=\"row\">{}</th>", escape(case));
            for (place, level) in levels.iter().enumerate() {
                let value = level.measures.get(name);
                let value = value.map_or("&ndash;".to_owned(), |value| plain(*value));
                let value = link(&sources::figure(place, name), &value);
                let interval = level.intervals.get(name).map(|interval| interval.ends());
                let interval = interval.filter(|ends| !ends.is_empty());
                let _ = match interval {
                    None => write!(html, "<td>{value}</td>"),
                    Some(ends) => write!(
                        html,
                        "<td>{value} <span class=\"soft\">({})</span></td>",
                        link(&sources::interval(place, name), &escape(&ends))
                    ),
                };
            }
            html.push_str("</tr>");
        }
        html.push_str("</tbody></table></div></section>");
    }
}

/// The tables for a terminal, without intervals.
pub(crate) fn text(label: &str, levels: &[LevelSummary]) -> String {
    let mut out = String::new();
    for figure in figures(levels) {
        let _ = writeln!(out, "{}, by {label}", figure.description);
        let mut headings = vec![figure.name.to_owned()];
        headings.extend(levels.iter().map(level_name));
        let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
        let cell = |value: Option<&f64>| value.map_or("-".to_owned(), |value| plain(*value));
        let rows: Vec<Vec<String>> = figure
            .cases
            .iter()
            .map(|(name, case)| {
                let values = levels.iter().map(|level| cell(level.measures.get(name)));
                std::iter::once(case.clone()).chain(values).collect()
            })
            .collect();
        out.push_str(&columns(&headings, &rows));
        out.push('\n');
    }
    out
}

/// `measures.csv`: a row for each figure of each level.
pub(super) fn csv(levels: &[LevelSummary]) -> String {
    let mut out = String::from("level,figure,value,low,high,samples,of,method\r\n");
    let optional = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    for level in levels {
        for (name, value) in &level.measures {
            let interval = level.intervals.get(name);
            let _ = write!(out, "{},{name},{value},", optional(level.level));
            let _ = match interval {
                Some(interval) => write!(
                    out,
                    "{},{},{},{},{}\r\n",
                    optional(interval.low),
                    optional(interval.high),
                    interval.samples,
                    interval.of,
                    interval.method
                ),
                None => write!(out, ",,,,\r\n"),
            };
        }
    }
    out
}
