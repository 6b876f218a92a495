//! The report as one self-contained HTML page.

use super::bounds::BoundCheck;
use super::chart::escape;
use super::data::RunResults;
use super::delays;
use super::html_table::grouped;
use super::level_summary::LevelSummary;
use super::measures;
use super::protection;
use super::rules::{LARGEST, SMALLEST};
use super::sources::{computed, extreme, figure};
use super::study::capacity_of;
use super::style::STYLE;
use super::sweep;
use super::tables;
use crate::decimal::plain;
use crate::error::RunVerdict;
use crate::raw::{MachineRecord, RawResults};
use crate::records_page::{self, RECORDS, link};
use std::fmt::Write;

/// Renders the page.
pub fn render(results: &RunResults, levels: &[LevelSummary], bounds: &[BoundCheck]) -> String {
    let raw = &results.raw;
    let mut html = String::with_capacity(64 << 10);
    head(&mut html, raw);
    caveats(&mut html, results);
    tiles(&mut html, raw, levels);
    facts(&mut html, raw);
    sweep::response_distribution(&mut html, results, levels);
    tables::classes(&mut html, raw, levels);
    tables::search(&mut html, raw);
    tables::study(&mut html, raw, levels);
    protection::table(&mut html, &raw.run, levels);
    tables::bounds(&mut html, raw, bounds);
    measures::tables(&mut html, levels);
    tables::summary(&mut html, raw, levels);
    tables::thresholds(&mut html, raw);
    tables::media(&mut html, raw, levels);
    tables::media_plane(&mut html, raw, levels);
    delays::tables(&mut html, results);
    tables::metrics(&mut html, raw, levels);
    tables::outcomes(&mut html, results);
    sweep::write(&mut html, results, levels);
    tables::surroundings(&mut html, results);
    plan(&mut html, raw);
    html.push_str("</main></body></html>\n");
    html
}

fn head(html: &mut String, raw: &RawResults) {
    let run = &raw.run;
    let title = escape(&run.title);
    let _ = write!(
        html,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title><style>{STYLE}</style></head>\
         <body><main><header><p class=\"kicker\">Hornwork test lab &middot; {}</p><h1>{title}</h1>\
         <span class=\"badge {}\">{}</span></header>",
        escape(&run.experiment),
        match run.verdict {
            RunVerdict::Passed => "passed",
            RunVerdict::Failed => "failed",
            RunVerdict::NotMeasured | RunVerdict::NotJudged => "open",
        },
        match run.verdict {
            RunVerdict::Passed => "passed: within every threshold that was measured",
            RunVerdict::Failed => "failed: a threshold was missed",
            RunVerdict::NotMeasured => "not measured: no figure with a threshold was measured",
            RunVerdict::NotJudged if run.cut_short => "not judged: cut short",
            RunVerdict::NotJudged => "not judged: no threshold applies",
        },
    );
    if !run.about.trim().is_empty() {
        let about = records_page::text("run.json#/about", run.about.trim());
        let _ = write!(html, "<p class=\"lead\">{about}</p>");
    }
    if !run.what.is_empty() {
        let _ = write!(
            html,
            "<p class=\"lead\"><strong>This run.</strong> {}</p>",
            records_page::text("run.json#/what", &run.what)
        );
    }
    if !run.overrides.is_empty() {
        let sets: Vec<String> = run
            .overrides
            .iter()
            .map(|set| format!("--set {set}"))
            .collect();
        let _ = write!(
            html,
            "<p class=\"lead\">Overrides of the experiment file, which the text above does not include: <code>{}</code></p>",
            escape(&sets.join(" "))
        );
    }
}

/// Caveats that limit the validity of the figures, shown above them.
fn caveats(html: &mut String, results: &RunResults) {
    let raw = &results.raw;
    let trials: Vec<(String, String)> = raw
        .run
        .trials
        .iter()
        .filter_map(|trial| {
            let caveats = crate::caveats::for_trial(trial);
            let place = results.place(trial.trial).unwrap_or_default();
            let record = format!("run.json#/trials/{place}");
            let name = link(&record, &tables::trial_name(trial));
            (!caveats.is_empty()).then(|| (name, records_page::text(&record, &caveats.join("; "))))
        })
        .collect();
    if trials.is_empty() {
        return;
    }
    let which = match raw.run.trials.len() {
        1 => "The".to_owned(),
        all => records_page::text(
            "run.json#/trials",
            &format!("In {} of {all} trials the", trials.len()),
        ),
    };
    let _ = write!(
        html,
        "<aside class=\"care\"><strong>Caveats.</strong> {which} limit may have been the generator or the machine, \
         not the system under test.<details><summary>Which, and why</summary><ul>",
    );
    for (name, caveats) in trials {
        let _ = write!(html, "<li>{name}: {caveats}</li>");
    }
    html.push_str("</ul></details></aside>");
}

/// Tiles with the main figures.
fn tiles(html: &mut String, raw: &RawResults, levels: &[LevelSummary]) {
    let trials = &raw.run.trials;
    let sum = |count: &dyn Fn(&crate::raw::TrialRecord) -> u64| -> f64 {
        trials.iter().map(count).sum::<u64>() as f64
    };
    let attempted = sum(&|t| t.figures.calls.attempted + t.details.registrations.attempted);
    let failed = sum(&|t| t.figures.calls.failed + t.details.registrations.failed);
    let total =
        |name: &str, value: f64| link(&computed(&format!("/totals/{name}/value")), &grouped(value));
    let mut tiles: Vec<(String, String)> = Vec::new();
    if levels.len() > 1 {
        let found = capacity_of(&raw.run, levels);
        let sign = if found.is_open_above { "&ge; " } else { "" };
        let value = found.value.map_or("none".to_owned(), grouped);
        let label = records_page::text("run.json#/level_label", tables::label(raw));
        let what = format!("{label}: the highest level within every threshold");
        tiles.push((
            format!("{sign}{}", link(&computed("/capacity/value"), &value)),
            what,
        ));
    }
    if attempted > 0.0 {
        let what = format!("of {} attempts failed", total("attempted", attempted));
        tiles.push((total("failed", failed), what));
    }
    let worst = |what: &str| match levels.len() {
        1 => what.to_owned(),
        _ => format!("{what}, worst level"),
    };
    let mut add = |name: &str, how: &str, unit: &str, what: &str| {
        if let Some((place, value)) = extreme(levels, name, how) {
            let value = link(&figure(place, name), &grouped(value));
            tiles.push((format!("{value}<small>{unit}</small>"), escape(what)));
        }
    };
    add(
        "response_p99_ms",
        LARGEST,
        " ms",
        &worst("response time, 99th percentile"),
    );
    add("lost_percent", LARGEST, " %", &worst("media lost"));
    add(
        "jitter_p99_ms",
        LARGEST,
        " ms",
        &worst("jitter, 99th percentile"),
    );
    add("mos", SMALLEST, "", &worst("mean opinion score"));
    let of_media = levels.iter().any(|l| l.cpu_us_packet.is_some());
    let divided = levels
        .iter()
        .any(|l| l.signalling_us.is_some() || l.media_us.is_some());
    let mut cpu = |name: &str, what: &str| add(name, SMALLEST, " \u{b5}s", what);
    match of_media {
        false => cpu(
            "cpu_us_each",
            match levels.len() {
                1 => "CPU of the SUT per attempt",
                _ => "CPU of the SUT per attempt, best level",
            },
        ),
        true if divided => {
            cpu(
                "signalling_us_per_call",
                "CPU of the SUT for the signalling of a call",
            );
            cpu("media_us_per_packet", "CPU of the SUT per relayed packet");
        }
        true => cpu(
            "cpu_us_per_packet",
            "CPU of the SUT per media packet, signalling included: it could not be separated",
        ),
    }
    if tiles.is_empty() {
        return;
    }
    html.push_str("<div class=\"tiles\">");
    for (value, what) in tiles {
        let _ = write!(
            html,
            "<div class=\"tile\"><strong>{value}</strong><span>{what}</span></div>"
        );
    }
    html.push_str("</div>");
    if raw.run.driver == "simulation" {
        html.push_str(
            "<p class=\"note\">Virtual time: computing takes none, so response times are those of links, timers and the called side. \
             The capacity of a machine is measured on sockets only.</p>",
        );
    }
}

fn machine_text(machine: &MachineRecord) -> String {
    let memory = machine.memory as f64 / (1u64 << 30) as f64;
    format!(
        "{}, {} cores, {} GiB",
        machine.cpu,
        machine.cores,
        plain(memory)
    )
}

fn facts(html: &mut String, raw: &RawResults) {
    let run = &raw.run;
    let mut rows = vec![
        ("System under test", "subject", run.subject.clone()),
        (
            "Ran on",
            "driver",
            match run.driver.as_str() {
                "simulation" => "virtual time (simulation)".to_owned(),
                "memory" => "memory, with the clock of this machine; no sockets".to_owned(),
                _ => "real sockets".to_owned(),
            },
        ),
        ("Trials", "trials", run.trials.len().to_string()),
        ("Seed", "seed", run.seed.to_string()),
        ("Version", "version", run.version.clone()),
    ];
    if run.started > 0 {
        rows.push(("Started", "started", date(run.started)));
    }
    if let Some(machine) = &run.machine {
        let name = match &run.subject_machine {
            Some(_) => "Machine of the generator",
            None => "Machine",
        };
        rows.push((name, "machine", machine_text(machine)));
        rows.push(("Kernel", "machine/kernel", machine.kernel.clone()));
    }
    if let Some(machine) = &run.subject_machine {
        rows.push((
            "Machine of the system under test",
            "subject_machine",
            machine_text(machine),
        ));
        let kernel = machine.kernel.clone();
        rows.push(("Its kernel", "subject_machine/kernel", kernel));
    }
    if let Some(study) = &run.study {
        rows.push(("Study rows", "study/row", study.row.clone()));
    }
    html.push_str("<dl class=\"facts\">");
    for (name, key, value) in rows {
        let value = link(&format!("run.json#/{key}"), &escape(&value));
        let _ = write!(html, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    }
    html.push_str("</dl>");
}

/// Formats seconds since 1970 as a date (UTC), with the usual conversion from days by eras of 400 years.
pub(crate) fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

fn plan(html: &mut String, raw: &RawResults) {
    let _ = write!(
        html,
        "<section><details><summary>The experiment file, with its overrides</summary><pre>{}</pre></details>\
         <p class=\"note\">Each number links to its record in <a href=\"{RECORDS}\">{RECORDS}</a>, a computed one with its rule and the records \
         behind it. Raw results beside this page: run.json, attempts.ndjson, streams.ndjson, measures.ndjson; computed from them: \
         computed.json, levels.csv, attempts.csv, streams.csv, measures.csv.</p></section>",
        escape(&raw.run.plan)
    );
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_767_225_599), "2025-12-31 23:59:59 UTC");
    }
}
