//! Rules on the structure of the sources: circles of imports inside a crate, imports against the layers of `border`, functions with
//! many parameters. All of them are read from the text of the files, by paths that begin with `crate`, `super` or `self`.

use crate::texts::Text;
use std::collections::{BTreeMap, BTreeSet};

/// Largest circle of files that import each other, in files.
const CIRCLE: usize = 6;
/// Functions with six parameters or more, in per mille of a crate's functions.
const MANY_PARAMETERS: usize = 25;
/// Crates that are above, with their share.
const PARAMETERS: [(&str, usize); 1] = [
    // One function of C.
    ("bcg729", 50),
];

/// Layers of `border`, from the bottom. A module belongs to the layer of the longest prefix of its path, and imports only from its own
/// layer and those below. The fuzz targets use everything.
const LAYERS: [(&str, &[&str]); 5] = [
    (
        "values",
        &[
            "bodies",
            "calls::key",
            "certificate_names",
            "conferences",
            "counters",
            "emergency",
            "endpoint_settings",
            "headers",
            "hiding",
            "identity",
            "index_remap",
            "policy",
            "request",
            "responses",
            "shared",
            "views",
        ],
    ),
    (
        "components",
        &[
            "admission",
            "calls",
            "calls::challenge",
            "calls::conference::describe",
            "calls::conference::lobby",
            "calls::conference::pin_entry",
            "calls::conference::state",
            "calls::ended",
            "calls::table",
            "calls::transfer::handover",
            "calls::transfer::join",
            "carrier",
            "keepalive",
            "listeners",
            "media",
            "ng_client",
            "out_of_dialog::state",
            "registrar",
            "resolve",
            "rules",
            "trunks",
            "workers",
        ],
    ),
    ("lent", &["components"]),
    (
        "stages",
        &[
            "admission::screening",
            "calls::conference",
            "calls::dispatch",
            "calls::ending",
            "calls::in_dialog",
            "calls::media",
            "calls::quality",
            "calls::relay",
            "calls::reservations",
            "calls::setup",
            "calls::transfer",
            "ng_client::exchange",
            "ng_client::failover",
            "out_of_dialog",
            "resolve::lookups",
            "routing_snapshot",
            "rules::apply",
        ],
    ),
    (
        "engine",
        &[
            "admission::fast_path",
            "border",
            "calls::saved",
            "fuzz",
            "ng_client::fuzz",
            "operate",
            "operator",
            "registrations",
            "report",
        ],
    ),
];

/// Every breach; prints the figures of each crate.
pub fn breaches(files: &[Text]) -> Vec<String> {
    let mut breaches = Vec::new();
    for (name, files) in crates(files) {
        let graph = Graph::of(&files);
        let circle = graph
            .circles()
            .into_iter()
            .max_by_key(Vec::len)
            .unwrap_or_default();
        let (many, functions) = parameters(&files);
        let share = many * 1000 / functions.max(1);
        println!(
            "structure: {name}: largest circle of imports {} files; {many} of {functions} functions have six parameters or more ({}.{} %)",
            circle.len(),
            share / 10,
            share % 10
        );
        if name == "border" {
            breaches.extend(graph.upward());
        }
        if circle.len() > CIRCLE {
            breaches.push(format!(
                "{name}: {} files import each other, more than {CIRCLE}: {}",
                circle.len(),
                circle.join(" ")
            ));
        }
        let most = parameters_allowed(name);
        if share > most {
            breaches.push(format!("{name}: {share} per mille of functions have six parameters or more, more than {most}"));
        }
    }
    breaches
}

/// Functions with six parameters or more that a crate may have, in per mille of its functions.
fn parameters_allowed(name: &str) -> usize {
    PARAMETERS
        .iter()
        .find(|(known, _)| *known == name)
        .map_or(MANY_PARAMETERS, |(_, share)| *share)
}

/// The sources of each crate without files of tests.
fn crates(files: &[Text]) -> BTreeMap<&str, Vec<&Text>> {
    let mut crates: BTreeMap<&str, Vec<&Text>> = BTreeMap::new();
    for file in files {
        let Some((name, path)) = file
            .name
            .strip_prefix("crates/")
            .and_then(|rest| rest.split_once("/src/"))
        else {
            continue;
        };
        if path.ends_with(".rs") && !path.ends_with("tests.rs") {
            crates.entry(name).or_default().push(file);
        }
    }
    crates
}

/// The files of a crate and which of them each one imports from.
struct Graph {
    /// Path of the module of each file, `a::b`; empty for the root of the crate.
    modules: Vec<String>,
    imports: Vec<BTreeSet<usize>>,
}

impl Graph {
    fn of(files: &[&Text]) -> Self {
        let modules: Vec<String> = files.iter().map(|file| module_of(&file.name)).collect();
        let index: BTreeMap<&str, usize> = modules
            .iter()
            .enumerate()
            .map(|(at, name)| (name.as_str(), at))
            .collect();
        let imports = files
            .iter()
            .zip(&modules)
            .enumerate()
            .map(|(at, (file, module))| {
                paths(&file.text)
                    .iter()
                    .filter_map(|path| resolve(path, module))
                    .filter_map(|path| nearest(&path, &index))
                    // The root declares modules and re-exports; to import from it is no circle of two files.
                    .filter(|other| *other != at && !modules[*other].is_empty())
                    .collect()
            })
            .collect();
        Self { modules, imports }
    }

    /// Imports from a higher layer of [`LAYERS`], and modules without a layer.
    fn upward(&self) -> Vec<String> {
        let mut breaches = Vec::new();
        for (module, imports) in self.modules.iter().zip(&self.imports) {
            if module.is_empty() {
                continue;
            }
            let Some(own) = layer_of(module) else {
                breaches.push(format!("border: {module} belongs to no layer: add it to LAYERS in xtask/src/structure.rs"));
                continue;
            };
            for other in imports.iter().map(|at| &self.modules[*at]) {
                if layer_of(other).is_some_and(|layer| layer > own) {
                    breaches.push(format!(
                        "border: {module} ({}) imports {other} of a higher layer",
                        LAYERS[own].0
                    ));
                }
            }
        }
        breaches
    }

    /// Strongly connected components of two files or more (Tarjan).
    fn circles(&self) -> Vec<Vec<String>> {
        let count = self.modules.len();
        let reach: Vec<BTreeSet<usize>> = (0..count).map(|from| self.reachable(from)).collect();
        let mut done = BTreeSet::new();
        let mut circles = Vec::new();
        for from in 0..count {
            if done.contains(&from) {
                continue;
            }
            let circle: Vec<usize> = reach[from]
                .iter()
                .copied()
                .filter(|to| reach[*to].contains(&from))
                .collect();
            if circle.len() > 1 {
                done.extend(circle.iter().copied());
                circles.push(circle.iter().map(|at| self.modules[*at].clone()).collect());
            }
        }
        circles
    }

    fn reachable(&self, from: usize) -> BTreeSet<usize> {
        let mut reached = BTreeSet::new();
        let mut next = vec![from];
        while let Some(at) = next.pop() {
            for to in &self.imports[at] {
                if reached.insert(*to) {
                    next.push(*to);
                }
            }
        }
        reached
    }
}

/// The layer of a module of `border`.
fn layer_of(module: &str) -> Option<usize> {
    let begins = |prefix: &&&str| {
        let rest = module.strip_prefix(**prefix);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let longest = |(_, prefixes): &(&str, &[&str])| {
        prefixes
            .iter()
            .filter(begins)
            .map(|prefix| prefix.len())
            .max()
    };
    let layers = LAYERS.iter().enumerate();
    let (_, layer) = layers
        .filter_map(|(at, layer)| Some((longest(layer)?, at)))
        .max()?;
    Some(layer)
}

/// `crates/x/src/a/b.rs` and `crates/x/src/a/b/mod.rs` are `a::b`.
fn module_of(name: &str) -> String {
    let path = name.split_once("/src/").map_or(name, |(_, path)| path);
    let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
    match path {
        "lib" | "main" => String::new(),
        path => path.replace('/', "::"),
    }
}

/// All paths of a text that begin with `crate::`, `super::` or `self::`, groups in braces taken apart.
fn paths(text: &str) -> Vec<String> {
    // `super` in a test module is the file itself; its paths from the root of the crate count.
    let (code, tests) = text
        .split_once("\n#[cfg(test)]\nmod tests {")
        .unwrap_or((text, ""));
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        paths_from(start, code, &mut found);
    }
    paths_from("crate::", tests, &mut found);
    found
}

/// Adds the paths of a text that begin with `start`.
fn paths_from(start: &str, text: &str, found: &mut Vec<String>) {
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n");
    let mut rest = code.as_str();
    while let Some(at) = rest.find(start) {
        let before = rest[..at].chars().next_back();
        let path = &rest[at..];
        rest = &rest[at + start.len()..];
        // `super::super::x` is found at its first `super`; `$crate` belongs to whichever crate uses the macro.
        if before.is_none_or(|c| !c.is_alphanumeric() && !['_', ':', '$'].contains(&c)) {
            expand("", path, found);
        }
    }
}

/// Adds the paths of a path that may end with a group: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn expand(head: &str, path: &str, found: &mut Vec<String>) {
    let end = path
        .find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
        .unwrap_or(path.len());
    let plain = format!("{head}{}", &path[..end]);
    if !path[end..].starts_with('{') || !plain.ends_with("::") {
        found.push(plain.trim_end_matches(':').to_owned());
        return;
    }
    let mut depth = 0;
    let mut part = end + 1;
    for (at, c) in path.char_indices().skip_while(|(at, _)| *at < end) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if (c == ',' && depth == 1) || depth == 0 {
            expand(&plain, path[part..at].trim(), found);
            part = at + 1;
        }
        if depth == 0 {
            return;
        }
    }
}

/// The path from the root of the crate, as seen from `module`.
fn resolve(path: &str, module: &str) -> Option<String> {
    let mut place: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    let mut parts = path.split("::").peekable();
    match *parts.peek()? {
        "crate" => {
            place.clear();
            parts.next();
        }
        "self" => {
            parts.next();
        }
        _ => {
            while parts.peek() == Some(&"super") {
                place.pop();
                parts.next();
            }
        }
    }
    place.extend(parts);
    Some(place.join("::"))
}

/// The file in which the item of a path is: the longest module that begins it.
fn nearest(path: &str, index: &BTreeMap<&str, usize>) -> Option<usize> {
    let mut path = path;
    loop {
        if let Some(at) = index.get(path) {
            return Some(*at);
        }
        path = path.rsplit_once("::").map_or("", |(head, _)| head);
        if path.is_empty() {
            return index.get("").copied();
        }
    }
}

/// Functions with six parameters or more (`self` is one), and all functions.
fn parameters(files: &[&Text]) -> (usize, usize) {
    let (mut many, mut all) = (0, 0);
    for file in files {
        let code: String = file
            .text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .collect::<Vec<_>>()
            .join("\n");
        for (at, _) in code.match_indices("fn ") {
            let named = code[at + 3..].starts_with(|c: char| c.is_lowercase() || c == '_');
            let free = at == 0 || !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            if let (true, true, Some(count)) = (named, free, count_parameters(&code[at..])) {
                all += 1;
                many += usize::from(count >= 6);
            }
        }
    }
    (many, all)
}

/// Parameters of the function that begins a text.
fn count_parameters(text: &str) -> Option<usize> {
    let open = parenthesis(text)?;
    let (mut depth, mut count, mut some) = (0_i32, 0, false);
    let mut before = ' ';
    for c in text[open..].chars() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            // `->` closes nothing.
            '>' if before == '-' => {}
            ')' | ']' | '}' | '>' => depth -= 1,
            ',' if depth == 1 => {
                count += usize::from(some);
                some = false;
            }
            c if depth >= 1 && !c.is_whitespace() => some = true,
            _ => {}
        }
        if depth == 0 {
            return Some(count + usize::from(some));
        }
        before = c;
    }
    None
}

/// Where the parameters begin: the first parenthesis behind the generic parameters.
fn parenthesis(text: &str) -> Option<usize> {
    let mut depth = 0_i32;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            '(' if depth == 0 => return Some(at),
            '{' | ';' if depth == 0 => return None,
            _ => {}
        }
        before = c;
    }
    None
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
    fn circles_are_found_through_groups_and_super() {
        let files = [
            text("crates/x/src/lib.rs", "mod a;\nmod b;\nmod c;\n"),
            text("crates/x/src/a.rs", "use crate::{b::B, c::C};\nstruct A;\n"),
            text("crates/x/src/b.rs", "use super::a::A;\n"),
            text("crates/x/src/c.rs", "use crate::x;\n"),
        ];
        let refs: Vec<&Text> = files.iter().collect();
        let graph = Graph::of(&refs);
        assert_eq!(graph.circles(), [["a".to_owned(), "b".to_owned()]]);
    }

    #[test]
    fn imports_from_a_higher_layer_are_found() {
        assert_eq!(layer_of("calls::setup::hunting"), Some(3));
        assert_eq!(layer_of("calls::key"), Some(0));
        assert_eq!(layer_of("callsign"), None);
        let files = [
            text("crates/border/src/lib.rs", ""),
            text(
                "crates/border/src/trunks.rs",
                "use crate::components::Components;\n",
            ),
            text(
                "crates/border/src/components.rs",
                "use crate::trunks::Trunks;\n",
            ),
            text("crates/border/src/new.rs", ""),
        ];
        let refs: Vec<&Text> = files.iter().collect();
        let breaches = Graph::of(&refs).upward();
        assert!(
            breaches[0].contains("trunks (components) imports components"),
            "{breaches:?}"
        );
        assert!(
            breaches[1].contains("new belongs to no layer"),
            "{breaches:?}"
        );
        assert_eq!(breaches.len(), 2);
    }

    #[test]
    fn imports_of_test_modules_count_from_the_root_of_the_crate() {
        let text = "use crate::a::B;\nuse super::c;\n#[cfg(test)]\nmod tests {\n    use super::*;\n    use crate::d::E;\n}\n";
        assert_eq!(paths(text), ["crate::a::B", "super::c", "crate::d::E"]);
    }

    #[test]
    fn parameters_are_counted() {
        let count = |text| count_parameters(text);
        assert_eq!(count("fn a() {}"), Some(0));
        assert_eq!(
            count("fn a<F: Fn(u8, u8) -> u8>(&self, f: F, b: (u8, u8), c: &[u8; 4],) -> u8 {"),
            Some(4)
        );
        assert_eq!(count("fn a(f: impl Fn(u8) -> Vec<u8>, b: u8)"), Some(2));
    }

    #[test]
    fn modules_have_the_path_of_their_file() {
        assert_eq!(module_of("crates/x/src/lib.rs"), "");
        assert_eq!(module_of("crates/x/src/a/b.rs"), "a::b");
        assert_eq!(module_of("crates/x/src/a/mod.rs"), "a");
        assert_eq!(
            resolve("super::super::d::D", "a::b").as_deref(),
            Some("d::D")
        );
    }
}
