//! The page of a study: figures beside the study's, its plots drawn again, and the records of each number.

use super::plots::{PlacedPlot, chart};
use super::record::{PartMode, PartRecord, Reading, StudyRow, SuiteRecord, TableRecord};
use super::records::file_link;
use super::rows::Measured;
use crate::decimal::{counted, plain};
use crate::error::RunVerdict;
use crate::experiment::{EspMeasurement, File};
use crate::progress::duration;
use crate::raw::RunRecord;
use crate::records_page::{RECORDS, link, link_to, text, text_on};
use crate::report::{LevelSummary, STYLE, computed, date, escape};
use crate::search::record::SearchRecord;
use crate::statistics::INTERVAL_COLUMN;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Additions to the style of the reports.
pub(super) const MORE_STYLE: &str = "a{color:var(--accent)}td a{text-decoration-color:color-mix(in srgb,var(--accent) 40%,transparent)}\
    td.words{min-width:190px}td.unit{min-width:90px;max-width:150px;color:var(--soft)}tr:target>*{background:var(--study)}\
    @media(max-width:640px){table.stack thead{display:none}table.stack tr{display:block;padding:6px 0;border-bottom:1px solid var(--rule)}\
    table.stack th,table.stack td{display:block;position:relative;text-align:left;min-width:0;max-width:none;padding:1px 4px;border:0;white-space:normal;overflow-wrap:anywhere}\
    table.stack td{padding-left:98px;min-height:1.5em}table.stack td::before{content:attr(data-name);position:absolute;left:4px;color:var(--soft)}\
    table.stack td:empty{display:none}}\
    @media print{details{display:block}td.words,td.unit{min-width:0}a{color:inherit;text-decoration:none}}";

/// Everything that the page shows, from the records alone.
pub(super) struct Page<'a> {
    /// The record.
    pub record: &'a SuiteRecord,
    /// The parts with their results.
    pub parts: &'a [(PartRecord, Option<Measured>)],
    /// The plots.
    pub plots: &'a [PlacedPlot],
    /// Files of parts that the records page shows.
    pub files: &'a BTreeSet<String>,
}

/// Renders the page.
pub(super) fn render(page: &Page<'_>) -> String {
    let mut html = String::with_capacity(64 << 10);
    head(&mut html, page.record);
    facts(&mut html, page.record);
    rows(&mut html, page.record);
    differs(&mut html, page.record);
    plots(&mut html, page);
    tables(&mut html, page);
    parts(&mut html, page);
    records(&mut html, page.parts);
    html.push_str("</main></body></html>\n");
    html
}

fn badge(verdict: RunVerdict) -> (&'static str, &'static str) {
    match verdict {
        RunVerdict::Passed => ("passed", "passed: within every threshold that was measured"),
        RunVerdict::Failed => ("failed", "failed: a threshold was missed"),
        RunVerdict::NotMeasured => (
            "open",
            "not measured: no figure with a threshold was measured",
        ),
        RunVerdict::NotJudged => ("open", "not judged: no threshold applies"),
    }
}

/// Whether a built-in experiment measures processing time also in virtual time.
fn uses_the_clock(experiment: &str) -> bool {
    let text = crate::experiment::built_in(experiment).unwrap_or_default();
    File::parse(experiment, text).is_ok_and(|file| {
        let load = file.experiment().esp.as_ref();
        load.is_some_and(|load| load.measure != EspMeasurement::Bandwidth)
    })
}

fn head(html: &mut String, record: &SuiteRecord) {
    let title = escape(&record.title);
    let (class, verdict) = badge(record.verdict);
    let _ = write!(
        html,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title><style>{STYLE}{MORE_STYLE}</style></head>\
         <body><main><header><p class=\"kicker\">Hornwork test lab &middot; {}</p><h1>{title}</h1>\
         <span class=\"badge {class}\">{verdict}{}</span></header><p class=\"lead\">{}</p>",
        escape(&record.suite),
        match record.not_run.is_empty() {
            true => String::new(),
            false => text(
                "run.json#/not_run",
                &format!(
                    "; {} of {} not run",
                    record.not_run.len(),
                    counted(record.planned_parts(), "part")
                )
            ),
        },
        text("run.json#/about", &record.about),
    );
    if let Some(gaps) = record.gaps() {
        let place = match record.not_run.is_empty() {
            true => "run.json#/parts",
            false => "run.json#/not_run",
        };
        let gaps = text(place, &gaps);
        let _ = write!(
            html,
            "<aside class=\"care\"><strong>Not complete.</strong> The verdict covers the other parts: {gaps}.</aside>"
        );
    }
    for (place, open) in record.not_judged.iter().enumerate() {
        let open = text(&format!("run.json#/not_judged/{place}"), &open.text());
        let _ = write!(
            html,
            "<aside class=\"care\"><strong>Not judged.</strong> {open}.</aside>"
        );
    }
    if record.driver == "simulation" {
        let timed: Vec<&str> = record
            .parts
            .iter()
            .filter(|part| part.measured && uses_the_clock(&part.experiment))
            .map(|part| part.name.as_str())
            .collect();
        let except = match timed.is_empty() {
            true => String::new(),
            false => format!(
                ", except the processing times of {}, which the clock of this machine measured in memory",
                timed.join(", ")
            ),
        };
        let _ = write!(
            html,
            "<aside class=\"care\"><strong>Simulation.</strong> The figures were computed in virtual time{}. See the differences \
             below.</aside>",
            escape(&except)
        );
    }
    if record.cut_short {
        html.push_str(
            "<aside class=\"care\"><strong>Interrupted.</strong> The page has the measurements until then.</aside>",
        );
    }
}

fn facts(html: &mut String, record: &SuiteRecord) {
    let mut facts = Vec::new();
    if !record.source.is_empty() {
        facts.push(("Study", "source", record.source.clone()));
    }
    facts.push(("Setting", "setting", record.setting.clone()));
    let driver = match record.driver.as_str() {
        "simulation" => "virtual time (simulation)",
        _ => "real sockets",
    };
    facts.push(("Ran on", "driver", driver.to_owned()));
    let seconds: f64 = record.parts.iter().map(|part| part.seconds).sum();
    if record.driver != "simulation" {
        facts.push(("Duration", "parts", duration(seconds)));
    }
    facts.push(("Version", "version", record.version.clone()));
    if record.started > 0 {
        facts.push(("Started", "started", date(record.started)));
    }
    if let Some(machine) = &record.machine {
        let memory = plain(machine.memory as f64 / (1u64 << 30) as f64);
        let text = format!("{}, {} cores, {memory} GiB", machine.cpu, machine.cores);
        facts.push(("Machine", "machine", text));
        facts.push(("Kernel", "machine/kernel", machine.kernel.clone()));
    }
    html.push_str("<dl class=\"facts\">");
    for (name, key, value) in facts {
        let value = link(&format!("run.json#/{key}"), &escape(&value));
        let _ = write!(html, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    }
    html.push_str("</dl>");
}

/// Anchor of the records of a part at a level.
fn anchor(part: &str, level: Option<f64>) -> String {
    match level {
        Some(level) => format!("{part}-at-{level}"),
        None => part.to_owned(),
    }
}

fn rows(html: &mut String, record: &SuiteRecord) {
    let beside = record.study.iter().any(|row| row.study.is_some());
    let (title, note) = match beside {
        true => (
            "Beside the study",
            "Each of our figures has its 95 % interval and links to its records; a figure that was not measured has the reason. \
             A capacity has the bracket of its search: the highest load that passed, and the lowest that failed.",
        ),
        false => (
            "Figures",
            "Each figure has its 95 % interval and links to its records; a figure that was not measured has the reason. \
             A capacity has the bracket of its search: the highest load that passed, and the lowest that failed.",
        ),
    };
    let study = if beside { "<th>study</th>" } else { "" };
    let _ = write!(
        html,
        "<section><h2>{title}</h2><p class=\"note\">{note}</p><div class=\"scroll\"><table class=\"stack\"><thead><tr><th>row</th>\
         <th class=\"words\">figure</th>{study}<th>here</th><th class=\"words unit\">unit</th><th>{INTERVAL_COLUMN}</th><th>samples</th><th class=\"words\">remark</th>\
         </tr></thead><tbody>"
    );
    for (place, row) in record.study.iter().enumerate() {
        study_row(html, place, row, beside);
    }
    html.push_str("</tbody></table></div></section>");
}

fn study_row(html: &mut String, place: usize, row: &StudyRow, beside: bool) {
    let own = |key: &str, text: &str| link(&format!("run.json#/study/{place}/{key}"), text);
    let _ = write!(
        html,
        "<tr><th>{}</th><td class=\"words\" data-name=\"figure\">{}</td>",
        escape(&row.row),
        text(&format!("run.json#/study/{place}/{}", "what"), &row.what)
    );
    if beside {
        let theirs = row.study.as_ref().map_or(String::new(), Reading::text);
        let _ = write!(
            html,
            "<td data-name=\"study\">{}</td>",
            own("study", &escape(&theirs))
        );
    }
    let _ = match row.here {
        Some(here) => write!(
            html,
            "<td data-name=\"here\">{}</td>",
            own("here", &plain(here))
        ),
        None if row.interval.is_some() => {
            write!(
                html,
                "<td data-name=\"here\">{}</td>",
                own("interval", &escape(&row.missing()))
            )
        }
        None => write!(
            html,
            "<td class=\"nil\" data-name=\"here\">not measured</td>"
        ),
    };
    let interval = row.interval.as_ref();
    let ends = row.interval_text();
    let samples = match (row.samples, interval) {
        (0, _) => String::new(),
        (samples, Some(interval)) if interval.samples == samples => {
            own("interval", &escape(&interval.counted()))
        }
        (samples, _) => own("samples", &samples.to_string()),
    };
    let _ = write!(
        html,
        "<td class=\"words unit\" data-name=\"unit\">{}</td><td data-name=\"interval\">{}</td><td data-name=\"samples\">{samples}</td>\
         <td class=\"words\" data-name=\"remark\">{}</td></tr>",
        text(&format!("run.json#/study/{place}/unit"), &row.unit),
        own("interval", &escape(&ends)),
        own("remark", &escape(&row.remark)),
    );
}

/// Differences in the set-up: those of several rows together.
fn differs(html: &mut String, record: &SuiteRecord) {
    let mut seen: Vec<(&str, String, BTreeSet<&str>)> = Vec::new();
    for (place, row) in record.study.iter().enumerate() {
        for (at, differs) in row.differs.iter().enumerate() {
            match seen.iter_mut().find(|(known, ..)| known == differs) {
                Some((.., rows)) => {
                    rows.insert(&row.row);
                }
                None => {
                    let source = format!("run.json#/study/{place}/differs/{at}");
                    seen.push((differs, source, BTreeSet::from([row.row.as_str()])));
                }
            }
        }
    }
    if seen.is_empty() {
        return;
    }
    html.push_str("<section><h2>Differences of the set-up</h2><ul>");
    for (differs, source, rows) in seen {
        let rows: Vec<&str> = rows.into_iter().collect();
        let _ = write!(
            html,
            "<li>{} <span class=\"soft\">({})</span></li>",
            text(&source, differs),
            escape(&rows.join(", "))
        );
    }
    html.push_str("</ul></section>");
}

fn plots(html: &mut String, page: &Page<'_>) {
    let drawn = page
        .plots
        .iter()
        .filter_map(|(part, plot)| Some((part, chart(plot, page.files)?)));
    let mut any = false;
    for (part, chart) in drawn {
        if !any {
            html.push_str("<section><h2>Figures drawn again</h2><div class=\"charts\">");
            any = true;
        }
        let wide = if chart.is_wide() {
            " class=\"wide\" style=\"grid-column:1/-1\""
        } else {
            ""
        };
        let _ = write!(html, "<figure{wide}><figcaption>");
        match part.as_str() {
            "" => html.push_str(&escape(chart.title())),
            part => {
                let _ = write!(
                    html,
                    "<a href=\"#{}\">{}</a>",
                    escape(part),
                    escape(chart.title())
                );
            }
        }
        for (name, colour) in chart.legend() {
            let _ = write!(
                html,
                "<span class=\"key\"><i style=\"background:{colour}\"></i>{}</span>",
                escape(name)
            );
        }
        let _ = write!(html, "</figcaption>{}</figure>", chart.html());
    }
    if any {
        html.push_str("</div></section>");
    }
}

fn tables(html: &mut String, page: &Page<'_>) {
    for (record, measured) in page.parts {
        let Some(Measured::Own(own)) = measured else {
            continue;
        };
        for (place, table) in own.tables.iter().enumerate() {
            one_table(html, page, record, (place, table));
        }
        if own.notes.is_empty() {
            continue;
        }
        html.push_str("<section><h2>Remarks</h2><ul>");
        for (place, note) in own.notes.iter().enumerate() {
            let source = format!("{}/part.json#/notes/{place}", record.name);
            let _ = write!(html, "<li>{}</li>", text(&source, note));
        }
        html.push_str("</ul></section>");
    }
}

fn one_table(
    html: &mut String,
    page: &Page<'_>,
    record: &PartRecord,
    (at, table): (usize, &TableRecord),
) {
    let _ = write!(
        html,
        "<section><h2>{}</h2><p class=\"note\">{} Records: <a href=\"{1}/part.json\">{1}/part.json</a>.</p>\
         <div class=\"scroll\"><table><thead><tr>",
        escape(&table.title),
        escape(&record.name),
    );
    if !table.note.is_empty() {
        let source = format!("{}/part.json#/tables/{at}/note", record.name);
        let note = format!("<p class=\"note\">{}</p>", text(&source, &table.note));
        let before = html.rfind("<div class=\"scroll\">").unwrap_or(html.len());
        html.insert_str(before, &note);
    }
    for name in &table.head {
        let _ = write!(html, "<th>{}</th>", escape(name));
    }
    html.push_str("</tr></thead><tbody>");
    for (number, row) in table.rows.iter().enumerate() {
        html.push_str("<tr>");
        for (place, cell) in row.iter().enumerate() {
            let tag = if place == 0 { "th" } else { "td" };
            let file = table.links.get(number).and_then(|links| links.get(place));
            let text = escape(cell);
            let cell = match file.filter(|file| !file.is_empty()) {
                Some(file) => file_link(page.files, file, &text),
                None => {
                    let cell = format!("/tables/{at}/rows/{number}/{place}");
                    link(&format!("{}/part.json#{cell}", record.name), &text)
                }
            };
            let _ = write!(html, "<{tag}>{cell}</{tag}>");
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div></section>");
}

/// The command that repeats a part.
fn command(page: &Page<'_>, part: &PartRecord) -> String {
    let mut text = match part.mode {
        PartMode::Run => format!("hornwork lab run {}", part.experiment),
        PartMode::Search => format!("hornwork lab search {}", part.experiment),
        PartMode::Own => {
            return match page.record.suite.as_str() {
                crate::study::DATASHEET => format!("hornwork lab {}", page.record.suite),
                suite => format!("hornwork lab run {suite}"),
            };
        }
    };
    for set in &part.overrides {
        let _ = write!(text, " --set '{set}'");
    }
    if let Some(seed) = page.record.seed {
        let _ = write!(text, " --seed {seed}");
    }
    if page.record.driver == "simulation" {
        text.push_str(" --simulate");
    }
    text
}

fn parts(html: &mut String, page: &Page<'_>) {
    html.push_str(
        "<section><h2>Parts</h2><div class=\"scroll\"><table><thead><tr><th>part</th><th class=\"words\">verdict</th>\
         <th>duration</th><th class=\"words\">records</th><th class=\"words\">command that repeats it</th></tr></thead><tbody>",
    );
    for (place, (part, _)) in page.parts.iter().enumerate() {
        let name = escape(&part.name);
        let (class, _) = badge(part.verdict);
        let words = |cause: &str| text(&format!("run.json#/parts/{place}/cause"), cause);
        let verdict = match (&part.cause, part.measured) {
            (Some(cause), false) => {
                format!("<span class=\"soft\">not measured: {}</span>", words(cause))
            }
            (Some(cause), true) => format!(
                "<span class=\"mark {class}\">{}</span>; {}",
                part.verdict.name(),
                words(cause)
            ),
            (None, _) => format!(
                "<span class=\"mark {class}\">{}</span>",
                part.verdict.name()
            ),
        };
        let files = match (part.measured, part.experiment.is_empty()) {
            (false, _) => String::new(),
            (true, true) => format!("<a href=\"{name}/part.json\">part.json</a>"),
            (true, false) => format!(
                "<a href=\"{name}/report.html\">report</a>, <a href=\"{name}/{RECORDS}\">records</a>, \
                 <a href=\"{name}/run.json\">run.json</a>"
            ),
        };
        let _ = write!(
            html,
            "<tr id=\"{name}\"><th>{name}</th><td class=\"words\">{verdict}</td><td>{}</td><td class=\"words\">{files}</td>\
             <td class=\"words\"><code>{}</code></td></tr>",
            link(
                &format!("run.json#/parts/{place}/seconds"),
                &duration(part.seconds)
            ),
            escape(&command(page, part))
        );
    }
    html.push_str("</tbody></table></div></section>");
}

/// The verdict of a level in words. A search decides by the majority of the trials at its result.
pub(super) fn level_verdict(run: &RunRecord, level: &LevelSummary) -> String {
    let is_result =
        |search: &&SearchRecord| search.result.is_some() && search.result == level.level;
    let result = run.search.as_ref().filter(is_result);
    match result.and_then(SearchRecord::failures_at_result) {
        Some(failures) => format!("{}: {failures}", RunVerdict::Passed.name()),
        None => level.verdict.name().to_owned(),
    }
}

/// Trials of each part and level, to which the figures link, with their files.
fn records(html: &mut String, parts: &[(PartRecord, Option<Measured>)]) {
    html.push_str(
        "<section><h2>Records</h2><p class=\"note\">The trials behind each figure. run.json has the figures of a trial under its \
         number, attempts.ndjson and streams.ndjson have a line for each attempt and stream with that number.</p>\
         <div class=\"scroll\"><table><thead><tr><th>part and level</th><th class=\"words\">trials</th><th>attempts</th>\
         <th>streams</th><th class=\"words\">verdict</th><th class=\"words\">files</th></tr></thead><tbody>",
    );
    for (part, measured) in parts {
        let Some(Measured::Experiment(run, levels)) = measured else {
            continue;
        };
        let name = escape(&part.name);
        let page = format!("{}/{RECORDS}", part.name);
        for (at, level) in levels.iter().enumerate() {
            let trials: Vec<(usize, &crate::raw::TrialRecord)> = run
                .trials
                .iter()
                .enumerate()
                .filter(|(_, trial)| trial.level == level.level && !trial.short)
                .collect();
            let numbers: Vec<String> = trials
                .iter()
                .map(|(place, trial)| {
                    let text = format!("{} (seed {})", trial.trial, trial.seed);
                    link_to(&page, &format!("run.json#/trials/{place}"), &text)
                })
                .collect();
            let attempts: u64 = trials
                .iter()
                .map(|(_, t)| t.figures.calls.attempted + t.details.registrations.attempted)
                .sum();
            let streams: u64 = trials.iter().map(|(_, trial)| trial.details.streams).sum();
            let sum = |name: &str, value: u64| {
                let record = computed(&format!("/levels/{at}/sums/{name}/value"));
                link_to(&page, &record, &value.to_string())
            };
            let (attempts, streams) = (sum("attempts", attempts), sum("streams", streams));
            let label = match level.level {
                Some(value) => {
                    let level = computed(&format!("/levels/{at}/level"));
                    let level = link_to(&page, &level, &plain(value));
                    format!("{name}, {} {level}", escape(&run.level_label))
                }
                None => name.clone(),
            };
            let _ = write!(
                html,
                "<tr id=\"{}\"><th>{label}</th><td class=\"words\">{}</td><td>{attempts}</td><td>{streams}</td>\
                 <td class=\"words\">{}</td><td class=\"words\"><a href=\"{name}/run.json\">run.json</a>, \
                 <a href=\"{name}/levels.csv\">levels.csv</a>, <a href=\"{name}/attempts.ndjson\">attempts</a>, \
                 <a href=\"{name}/streams.ndjson\">streams</a></td></tr>",
                escape(&anchor(&part.name, level.level)),
                numbers.join(", "),
                text_on(&page, "run.json#/search/result", &level_verdict(run, level)),
            );
        }
    }
    html.push_str("</tbody></table></div></section>");
}
