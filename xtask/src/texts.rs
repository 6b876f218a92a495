//! Rules on the text of tracked files: length, forbidden names, dead links and paths.

use crate::process::root;
use engine::{DropReason, EventKind};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Longest Rust file, in lines, that needs no entry in [`LONG`].
const LINES: usize = 1_000;
/// Longer files on one topic, with the length that each may have: a ratchet that is set by hand, downward where a file
/// gets shorter.
const LONG: [(&str, usize); 17] = [
    // Both modes, every algorithm, every fault.
    ("crates/protect/tests/suite/esp.rs", 1_001),
    // Requests outside of dialogs, by all methods.
    ("crates/border/tests/suite/out_of_dialog.rs", 1_111),
    // Lookups of all kinds of records.
    ("crates/sip/src/locate/tests.rs", 1_049),
    // All requests of the console, by all roles.
    ("crates/hornwork/tests/suite/web.rs", 1_287),
    // The list of all events.
    ("crates/engine/src/event.rs", 1_463),
    ("crates/border/tests/suite/virtual_network/mod.rs", 1_053),
    ("crates/media/src/conference.rs", 1_104),
    ("crates/net/src/driver.rs", 1_033),
    ("crates/net/src/plane.rs", 1_126),
    ("crates/sip/src/process.rs", 1_110),
    ("crates/sip/tests/suite/dialogs.rs", 1_244),
    ("crates/sip/tests/suite/transport.rs", 1_232),
    ("crates/border/tests/suite/in_dialog.rs", 1_140),
    ("crates/engine/src/record.rs", 1_035),
    ("crates/rules/src/action.rs", 1_003),
    ("crates/sip/src/endpoint.rs", 1_072),
    ("crates/lab/src/experiment/parse.rs", 1_007),
];

/// Hosts of package registries and folders of one machine: the repository must build anywhere.
const FOREIGN: [&str; 11] = [
    concat!("crates", ".io"),
    concat!("npm", "js."),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("debian", ".org"),
    concat!("proxy.", "golang"),
    concat!("git", "hub.com"),
    concat!("/work", "/main"),
    concat!("/work", "/shared"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
];

/// Folders whose files are named in documents.
const FOLDERS: [&str; 9] = [
    "crates/",
    "docs/",
    "xtask/",
    "fuzz/",
    "examples/",
    "scenarios/",
    "packaging/",
    "bench/",
    ".ci/",
];

/// A tracked file and its text; the name is its path from the root of the repository.
pub struct Text {
    pub name: String,
    pub text: String,
}

/// Every breach, by file.
pub fn breaches(files: &[Text]) -> Vec<String> {
    let tests = tests(files);
    let mut breaches = Vec::new();
    for file in files {
        breaches.extend(length(file));
        breaches.extend(foreign(file));
        if file.name.ends_with(".md") {
            breaches.extend(dead_paths(file));
        }
        if file.name.starts_with("docs/conformance/") {
            breaches.extend(unknown_tests(file, &tests));
        }
    }
    breaches
}

/// The text files of the repository, those not yet committed included.
///
/// # Errors
/// Git cannot list the files.
pub fn tracked() -> Result<Vec<Text>, String> {
    let output = Command::new("git")
        .current_dir(root())
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .output()
        .map_err(|e| format!("git: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(names
        .split('\0')
        .filter(|name| !name.is_empty() && !name.starts_with("fuzz/seeds/"))
        .filter_map(|name| {
            // Binary files, and deletions that are not committed yet, are skipped.
            let text = std::fs::read_to_string(root().join(name)).ok()?;
            Some(Text {
                name: name.to_owned(),
                text,
            })
        })
        .collect())
}

fn length(file: &Text) -> Option<String> {
    let lines = file.text.lines().count();
    let known = LONG.iter().find(|(name, _)| *name == file.name);
    let most = known.map_or(LINES, |(_, lines)| *lines);
    (file.name.ends_with(".rs") && lines > most)
        .then(|| format!("{}: {lines} lines, more than {most}", file.name))
}

/// Lock files name the registry or addresses of authors, and licences their publishers.
fn foreign(file: &Text) -> Vec<String> {
    let exempt = ["Cargo.lock", "package-lock.json", "dist/licenses.txt"];
    if exempt.iter().any(|end| file.name.ends_with(end)) || file.name == "LICENSE" {
        return Vec::new();
    }
    FOREIGN
        .iter()
        .filter(|word| file.text.contains(**word))
        .map(|word| format!("{}: names {word}", file.name))
        .collect()
}

/// Text in backticks on one line; code blocks are left out.
fn code_words(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut words = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if !fenced {
            words.extend(
                line.split('`')
                    .skip(1)
                    .step_by(2)
                    .map(|word| (number + 1, word)),
            );
        }
    }
    words
}

/// Targets of Markdown links; code blocks are left out.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut links = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        links.extend(
            line.split("](")
                .skip(1)
                .filter_map(|rest| rest.split([')', '#', ' ']).next())
                .filter(|link| !link.is_empty() && !link.contains("://"))
                .map(|link| (number + 1, link)),
        );
    }
    links
}

/// Paths and links that lead nowhere.
fn dead_paths(file: &Text) -> Vec<String> {
    let folder = Path::new(&file.name).parent().unwrap_or(Path::new(""));
    let named = code_words(&file.text)
        .into_iter()
        .filter(|(_, word)| FOLDERS.iter().any(|folder| word.starts_with(folder)))
        .filter(|(_, word)| !word.contains(['*', '<', ' ', '{']))
        .map(|(line, word)| {
            let path = word.split([':', '#']).next().unwrap_or(word);
            (line, root().join(path), word)
        });
    let linked = links(&file.text)
        .into_iter()
        .map(|(line, link)| (line, root().join(folder).join(link), link));
    named
        .chain(linked)
        .filter(|(_, path, _)| !path.exists())
        .map(|(line, _, word)| format!("{}:{line}: {word} does not exist", file.name))
        .collect()
}

/// The names of all functions under `#[test]`, those inside `proptest!` included.
pub fn tests(files: &[Text]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in files.iter().filter(|file| file.name.ends_with(".rs")) {
        let mut marked = false;
        for line in file.text.lines().map(str::trim) {
            match line.strip_prefix("fn ") {
                Some(rest) if marked => {
                    names.extend(rest.split(['(', '<']).next().map(str::to_owned));
                    marked = false;
                }
                _ => marked = line == "#[test]" || (marked && line.starts_with(['#', '/'])),
            }
        }
    }
    names
}

/// Whether a word has the form of a test's name: words joined by underscores, a path before it or not. Tests are named
/// by the behaviour that they show, in three words or more.
fn is_test_name(word: &str) -> bool {
    word.matches('_').count() >= 2
        && word
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Pages of conformance name tests as `crate::module::name_of_the_test` or `name_of_the_test`; each must exist. Names
/// of events, drops and keys of the configuration look alike and are known.
fn unknown_tests(file: &Text, tests: &BTreeSet<String>) -> Vec<String> {
    let configuration =
        std::fs::read_to_string(root().join("docs/configuration.md")).unwrap_or_default();
    let known = |name: &str| {
        tests.contains(name)
            || DropReason::ALL.iter().any(|reason| reason.name() == name)
            || EventKind::REFERENCE.iter().any(|event| event.name == name)
            || configuration.contains(&format!("`{name}`"))
    };
    let mut named: Vec<(usize, &str)> = code_words(&file.text)
        .into_iter()
        .filter_map(|(line, word)| Some((line, word.rsplit("::").next()?)))
        .filter(|(_, name)| is_test_name(name) && !known(name))
        .chain(
            shown_by(&file.text)
                .into_iter()
                .filter(|(_, name)| !tests.contains(*name)),
        )
        .collect();
    named.sort_unstable();
    named.dedup();
    named
        .into_iter()
        .map(|(line, name)| format!("{}:{line}: there is no test {name}", file.name))
        .collect()
}

/// Text in backticks in the last column of tables whose heading says "shown by": tests and nothing else.
fn shown_by(text: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut names = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let Some(row) = line.trim().strip_prefix('|') else {
            inside = false;
            continue;
        };
        let last = row.trim_end_matches('|').rsplit('|').next().unwrap_or("");
        if last.trim() == "shown by" {
            inside = true;
        } else if inside {
            let words = last.split('`').skip(1).step_by(2);
            names.extend(words.filter_map(|word| Some((number + 1, word.rsplit("::").next()?))));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str, text: &str) -> Text {
        Text {
            name: name.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn names_of_tests_are_found_and_checked() {
        let code = "#[test]\nfn one_two_three() {}\n#[test]\n#[ignore]\nfn four_five_six() {}\nfn not_a_test() {}\n";
        let found = tests(&[text("a.rs", code)]);
        assert_eq!(found.len(), 2);
        let page = text(
            "docs/conformance/x.md",
            "`sip::one_two_three`, `not_a_test`, `sip_via_mismatch` and `short_one`\n```\n`in_a_block`\n```\n",
        );
        assert_eq!(
            unknown_tests(&page, &found),
            ["docs/conformance/x.md:1: there is no test not_a_test"]
        );
        let table = text(
            "docs/conformance/x.md",
            "| a | shown by |\n| --- | --- |\n| `x` | `one_two_three`, `gone` |\n\n| a | b |\n| `x` | `y` |\n",
        );
        assert_eq!(
            unknown_tests(&table, &found),
            ["docs/conformance/x.md:3: there is no test gone"]
        );
    }

    #[test]
    fn dead_links_and_paths_are_found() {
        let page = text(
            "docs/x.md",
            "[a](events.md#x) [b](gone.md) `crates/engine` `crates/gone/x.rs`\n",
        );
        assert_eq!(
            dead_paths(&page),
            [
                "docs/x.md:1: crates/gone/x.rs does not exist",
                "docs/x.md:1: gone.md does not exist"
            ]
        );
    }

    #[test]
    fn machines_and_registries_are_not_named() {
        let page = text("x.md", &format!("see {}main", concat!("/work", "/")));
        assert_eq!(foreign(&page).len(), 1);
        assert!(foreign(&text("x.md", "https://example.com")).is_empty());
        let lines = |name, lines| length(&text(name, &"\n".repeat(lines)));
        assert!(lines("x.rs", LINES + 1).is_some());
        let (long, most) = LONG[0];
        assert!(lines(long, most).is_none() && lines(long, most + 1).is_some());
    }
}
