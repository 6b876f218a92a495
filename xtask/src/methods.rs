//! Methods of one type in several files. A method needs no import, so that the circles of imports do not show calls
//! between the files of a type: here each call of a method on `self` that another file defines is an arrow.

use crate::texts::Text;
use std::collections::{BTreeMap, BTreeSet};

/// Files that may have an `impl` of one type.
const FILES: usize = 12;
/// Crates with more, at the figure that was reached: it may fall, not rise.
const MORE_FILES: [(&str, usize); 2] = [
    // Components: each stage that needs several components without the endpoint.
    ("border", 16),
    // Endpoint.
    ("sip", 21),
];
/// Files of one type that may call each other in a circle.
const CIRCLE: usize = 6;
/// Crates with larger circles, at the figure that was reached.
const LARGER_CIRCLES: [(&str, usize); 3] = [
    // Transfers and the requests in their dialogs.
    ("border", 7),
    // HostState.
    ("lab", 10),
    // Endpoint.
    ("sip", 20),
];
/// Types of a crate that lend the same state: their methods count as those of one type.
const FAMILIES: [(&str, &[&str]); 1] = [(
    "border",
    &[
        "Calls",
        "OutOfDialogControl",
        "TransferControl",
        "ConferenceCalls",
        "NodeControl",
    ],
)];

/// Every breach; prints the figures of the crate.
pub fn breaches(name: &str, files: &[&Text]) -> Vec<String> {
    let types = Types::of(files);
    let mut breaches = Vec::new();
    if let Some((count, largest)) = types.largest() {
        println!("  impl of {largest} in {count} files");
        let most = limit(name, &MORE_FILES, FILES);
        if count > most {
            breaches.push(format!(
                "{name}: impl of {largest} in {count} files, more than {most}: give parts of it types of their own"
            ));
        }
    }
    let circles = types.circles(families(name));
    let most = limit(name, &LARGER_CIRCLES, CIRCLE);
    for (owner, circle) in circles {
        println!(
            "  {} files of {owner} call each other: {}",
            circle.len(),
            circle.join(" ")
        );
        if circle.len() > most {
            breaches.push(format!(
                "{name}: {} files of {owner} call each other, more than {most}: {}",
                circle.len(),
                circle.join(" ")
            ));
        }
    }
    breaches
}

fn limit(name: &str, above: &[(&str, usize)], usual: usize) -> usize {
    let known = above.iter().find(|(known, _)| *known == name);
    known.map_or(usual, |(_, most)| *most)
}

fn families(name: &str) -> Vec<&'static [&'static str]> {
    let of_crate = FAMILIES.iter().filter(|(known, _)| *known == name);
    of_crate.map(|(_, types)| *types).collect()
}

/// The bodies of inherent `impl` blocks, by type and file.
struct Types(BTreeMap<String, BTreeMap<String, String>>);

impl Types {
    fn of(files: &[&Text]) -> Self {
        let mut types: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        for file in files {
            for (name, body) in impls(&file.text) {
                let of_type = types.entry(name).or_default();
                of_type
                    .entry(file.name.clone())
                    .or_default()
                    .push_str(&body);
            }
        }
        Self(types)
    }

    /// The type whose `impl` is in most files, if there are several.
    fn largest(&self) -> Option<(usize, &str)> {
        let counts = self
            .0
            .iter()
            .map(|(name, files)| (files.len(), name.as_str()));
        counts.max().filter(|(count, _)| *count > 1)
    }

    /// Circles of files of one type or family that call methods of each other, with the first type, the largest circle
    /// first.
    fn circles(&self, families: Vec<&[&str]>) -> Vec<(String, Vec<String>)> {
        let mut sets: Vec<Vec<&str>> = families.iter().map(|family| family.to_vec()).collect();
        for name in self.0.keys() {
            if !families
                .iter()
                .any(|family| family.contains(&name.as_str()))
            {
                sets.push(vec![name.as_str()]);
            }
        }
        let mut circles = Vec::new();
        for set in sets {
            let owner = set.first().copied().unwrap_or_default().to_owned();
            let found = circles_of(&self.arrows(&set));
            circles.extend(found.into_iter().map(|circle| (owner.clone(), circle)));
        }
        circles.sort_by_key(|(_, circle)| core::cmp::Reverse(circle.len()));
        circles
    }

    /// For each file of these types, the files whose methods it calls.
    fn arrows(&self, set: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
        let mut bodies: BTreeMap<&str, String> = BTreeMap::new();
        for (file, body) in set.iter().filter_map(|name| self.0.get(*name)).flatten() {
            bodies.entry(file).or_default().push_str(body);
        }
        let mut owners: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (file, body) in &bodies {
            for (method, _) in names_after("fn ", body) {
                owners.entry(method).or_default().insert(file);
            }
        }
        let arrows = bodies.iter().map(|(file, body)| {
            let body = with_plain_receivers(body, set);
            let called = called(&body, set).into_iter();
            let to: BTreeSet<String> = called
                .filter_map(|method| owners.get(method))
                .filter(|owners| !owners.contains(file))
                .flatten()
                .map(|to| (*to).to_owned())
                .collect();
            ((*file).to_owned(), to)
        });
        arrows.collect()
    }
}

/// The inherent `impl` blocks of a text: type and body.
fn impls(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    while let Some(line) = lines.next() {
        let rest = line.strip_prefix("impl").unwrap_or_default();
        if !rest.starts_with([' ', '<']) {
            continue;
        }
        let mut header = line.to_owned();
        while !header.contains('{') {
            let Some(next) = lines.next() else {
                return found;
            };
            header.push(' ');
            header.push_str(next.trim());
        }
        let mut body = String::new();
        if !header.ends_with('}') {
            for line in lines.by_ref().take_while(|line| *line != "}") {
                body.push_str(line);
                body.push('\n');
            }
        }
        found.extend(implemented(&header).map(|name| (name, body)));
    }
    found
}

/// The type of an `impl` without a trait.
fn implemented(header: &str) -> Option<String> {
    let rest = header.strip_prefix("impl")?;
    let rest = match rest.starts_with('<') {
        true => after_generics(rest)?,
        false => rest,
    };
    let head = rest.split('{').next()?;
    if head.split_whitespace().any(|word| word == "for") {
        return None;
    }
    let name = identifier(rest.trim_start());
    (!name.is_empty()).then(|| name.to_owned())
}

/// The text behind generic parameters.
fn after_generics(text: &str) -> Option<&str> {
    let (mut depth, mut before) = (0, ' ');
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return text.get(at + 1..);
        }
        before = c;
    }
    None
}

/// The identifier that begins a text; may be empty.
fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// Identifiers behind each `start` that stands for itself, and the text behind them.
fn names_after<'t>(start: &str, text: &'t str) -> Vec<(&'t str, &'t str)> {
    let mut names = Vec::new();
    for (at, found) in text.match_indices(start) {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || ['_', '.', ':'].contains(&c)) {
            continue;
        }
        let rest = &text[at + found.len()..];
        let name = identifier(rest);
        if !name.is_empty() {
            names.push((name, &rest[name.len()..]));
        }
    }
    names
}

/// The body with chains of calls on one line, in which the types of a set that lend each other are `self`.
fn with_plain_receivers(body: &str, set: &[&str]) -> String {
    let mut plain = String::with_capacity(body.len());
    for line in body.lines().map(str::trim) {
        if !line.starts_with('.') {
            plain.push('\n');
        }
        plain.push_str(line);
    }
    for name in set {
        let start = format!("{name}::new(");
        while let Some(at) = plain.find(&start) {
            let Some(end) = closing(&plain[at + start.len()..]) else {
                break;
            };
            plain.replace_range(at..at + start.len() + end, "self");
        }
    }
    plain.replace("self.calls()", "self")
}

/// The end of a text that follows an open parenthesis, behind the closing one.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

/// Methods that a body calls on `self`, and functions of the types.
fn called<'t>(body: &'t str, set: &[&str]) -> BTreeSet<&'t str> {
    let mut names = names_after("self.", body);
    names.extend(names_after("Self::", body));
    for name in set {
        names.extend(names_after(&format!("{name}::"), body));
    }
    // A field may have the name of a method.
    let calls = names
        .into_iter()
        .filter(|(_, rest)| rest.starts_with(['(', ':']));
    calls.map(|(name, _)| name).collect()
}

/// Strongly connected components of two files or more.
fn circles_of(arrows: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> = arrows
        .keys()
        .map(|from| (from, reachable(arrows, from)))
        .collect();
    let mut done = BTreeSet::new();
    let mut circles = Vec::new();
    for (from, reached) in &reach {
        if done.contains(from) {
            continue;
        }
        let back = |to: &&&String| reach.get(**to).is_some_and(|back| back.contains(*from));
        let circle: Vec<&String> = reached.iter().filter(back).copied().collect();
        if circle.len() > 1 {
            done.extend(circle.iter().copied());
            circles.push(circle.iter().map(|file| short(file)).collect());
        }
    }
    circles
}

fn reachable<'g>(
    arrows: &'g BTreeMap<String, BTreeSet<String>>,
    from: &str,
) -> BTreeSet<&'g String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = vec![from];
    while let Some(at) = next.pop() {
        for to in arrows.get(at).into_iter().flatten() {
            if reached.insert(to) {
                next.push(to);
            }
        }
    }
    reached
}

/// The path of a file in its crate.
fn short(file: &str) -> String {
    let path = file.split_once("/src/").map_or(file, |(_, path)| path);
    path.trim_end_matches(".rs").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str, text: &str) -> Text {
        Text {
            name: format!("crates/x/src/{name}"),
            text: text.to_owned(),
        }
    }

    fn types(files: &[Text]) -> Types {
        Types::of(&files.iter().collect::<Vec<_>>())
    }

    #[test]
    fn impl_blocks_without_a_trait_are_found() {
        let found = impls(
            "impl<'a, T: Fn(u8) -> u8> Calls<'a> {\n    fn a() {}\n}\nimpl Drop for Calls<'_> {\n}\n// impl Other {\nimpl Empty {}\nimpl Long<\n    'a,\n> {\n    fn b() {}\n}\n",
        );
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["Calls", "Empty", "Long"]);
        assert_eq!(found[0].1, "    fn a() {}\n");
        assert_eq!(found[2].1, "    fn b() {}\n");
    }

    #[test]
    fn the_type_with_most_files_is_the_largest() {
        let files = [
            text("a.rs", "impl A {\n}\nimpl A {\n}\nimpl B {\n}\n"),
            text("b.rs", "impl B {\n}\n"),
        ];
        assert_eq!(types(&files).largest(), Some((2, "B")));
        assert_eq!(types(&files[..1]).largest(), None);
    }

    #[test]
    fn a_circle_of_method_calls_is_found() {
        let files = [
            text(
                "a.rs",
                "impl Calls {\n    fn one(&mut self) {\n        self\n            .two();\n    }\n}\n",
            ),
            text(
                "b.rs",
                "impl Calls {\n    fn two(&mut self) {\n        self.three();\n        self.one;\n    }\n}\n",
            ),
            text(
                "c.rs",
                "impl Calls {\n    fn three(&mut self) {\n        Self::one(self);\n    }\n    fn four(&mut self) {}\n}\n",
            ),
            text(
                "d.rs",
                "impl Calls {\n    fn five(&mut self) {\n        self.four();\n    }\n}\n",
            ),
        ];
        let circles = types(&files).circles(Vec::new());
        assert_eq!(circles.len(), 1);
        assert_eq!(circles[0].1, ["a", "b", "c"]);
        // A field of the name of a method is no call.
        let circles = types(&files[..2]).circles(Vec::new());
        assert!(circles.is_empty(), "{circles:?}");
    }

    #[test]
    fn types_that_lend_the_same_state_count_as_one() {
        let files = [
            text(
                "a.rs",
                "impl Calls {\n    fn one(&mut self) {\n        Transfers::new(self).two();\n    }\n}\n",
            ),
            text(
                "b.rs",
                "impl Transfers {\n    fn two(&mut self) {\n        self.calls()\n            .one();\n    }\n}\n",
            ),
        ];
        assert!(types(&files).circles(Vec::new()).is_empty());
        let family: &[&str] = &["Calls", "Transfers"];
        let circles = types(&files).circles(vec![family]);
        assert_eq!(
            circles,
            [("Calls".to_owned(), vec!["a".to_owned(), "b".to_owned()])]
        );
    }
}
