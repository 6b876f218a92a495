//! Rules on the structure of the sources: circles of imports inside a crate, imports against the layers of `border`,
//! functions with many parameters. All of them are read from the text of the files, by paths that begin with `crate`,
//! `super` or `self`, and by `use` of a child module. A re-export (`pub use`) is no import of its own: an import of its
//! name counts as one of the file that has the item.

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

/// Layers of `border`, from the bottom. A module belongs to the layer of the longest prefix of its path, and imports
/// only from its own layer and those below. The fuzz targets use everything.
const LAYERS: [(&str, &[&str]); 5] = [
    (
        "values",
        &[
            "bodies",
            "calls::key",
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
            "calls::conference::pin_lockout",
            "calls::conference::state",
            "calls::ended",
            "calls::table",
            "calls::transfer::handover",
            "calls::transfer::join",
            "carrier",
            "certificate_names",
            "keepalive",
            "listeners",
            "located_peers",
            "media",
            "ng_client",
            "out_of_dialog::state",
            "registrar",
            "resolve",
            "rules",
            "targets",
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
            "calls::routing",
            "calls::setup",
            "calls::transfer",
            "ng_client::control",
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
        let circles = graph.circles();
        let (many, functions) = parameters(&files);
        println!(
            "structure: {name}: {} circles of imports; {many} of {functions} functions have six parameters or more ({:.2} %)",
            circles.len(),
            many as f64 * 100.0 / functions.max(1) as f64
        );
        for circle in &circles {
            println!("  {} files: {}", circle.len(), circle.join(" "));
        }
        if name == "border" {
            breaches.extend(graph.upward());
        }
        breaches.extend(crate::methods::breaches(name, &files));
        for circle in circles.iter().filter(|circle| circle.len() > CIRCLE) {
            breaches.push(format!(
                "{name}: {} files import each other, more than {CIRCLE}: {}",
                circle.len(),
                circle.join(" ")
            ));
        }
        let most = parameters_allowed(name);
        if many * 1000 > most * functions {
            breaches.push(format!("{name}: {many} of {functions} functions have six parameters or more, more than {most} per mille"));
        }
        breaches.extend(files.iter().flat_map(|file| allowed_parameters(file)));
    }
    breaches
}

/// Attributes that switch the lint on seven parameters off.
fn allowed_parameters(file: &Text) -> Vec<String> {
    let lines = file.text.lines().enumerate();
    lines
        .filter(|(_, line)| line.contains("too_many_arguments"))
        .map(|(at, _)| {
            format!(
                "{}:{}: too_many_arguments is allowed: bundle the parameters",
                file.name,
                at + 1
            )
        })
        .collect()
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
        let exports = Exports::of(files, &modules, &index);
        let imports = files
            .iter()
            .zip(&modules)
            .enumerate()
            .map(|(at, (file, module))| {
                let children = child_imports(&file.text, module, &index);
                paths(&file.text)
                    .iter()
                    .filter_map(|path| resolve(path, module))
                    .chain(children)
                    .filter_map(|path| nearest(&exports.followed(path, &index), &index))
                    .filter(|other| *other != at)
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

/// The re-exports of a crate.
#[derive(Default)]
struct Exports {
    /// Path of a re-exported name, and that of the item.
    names: BTreeMap<String, String>,
    /// Modules with `pub use a::*`, and the path of `a` with its text.
    globs: Vec<(String, String, String)>,
}

impl Exports {
    fn of(files: &[&Text], modules: &[String], index: &BTreeMap<&str, usize>) -> Self {
        let mut exports = Self::default();
        for (file, module) in files.iter().zip(modules) {
            for (path, is_public) in uses(&file.text) {
                let (path, name) = match path.split_once(" as ") {
                    Some((path, name)) => (path.to_owned(), name.trim().to_owned()),
                    None => {
                        let name = path.rsplit("::").next().unwrap_or_default().to_owned();
                        (path, name)
                    }
                };
                let Some(target) = within(&path, module, index).filter(|_| is_public) else {
                    continue;
                };
                if let Some(target) = target.strip_suffix("::*") {
                    let text = index.get(target).map(|at| files[*at].text.clone());
                    let text = text.unwrap_or_default();
                    exports
                        .globs
                        .push((module.clone(), target.to_owned(), text));
                } else {
                    exports.names.insert(joined(module, &name), target);
                }
            }
        }
        exports
    }

    /// The path of the item itself.
    fn followed(&self, path: String, index: &BTreeMap<&str, usize>) -> String {
        let mut path = path;
        // Re-exports of re-exports are few; the bound ends circles of them.
        for _ in 0..8 {
            let Some(next) = self.step(&path, index) else {
                break;
            };
            path = next;
        }
        path
    }

    fn step(&self, path: &str, index: &BTreeMap<&str, usize>) -> Option<String> {
        let parts: Vec<&str> = path.split("::").collect();
        for end in 1..=parts.len() {
            let head = parts[..end].join("::");
            // A module and a function may have one name; the module is meant where the path goes on.
            if index.contains_key(head.as_str()) && end < parts.len() {
                continue;
            }
            let rest = &parts[end..];
            if let Some(target) = self.names.get(&head) {
                let rest: String = rest.iter().map(|part| format!("::{part}")).collect();
                return Some(format!("{target}{rest}"));
            }
            let module = parts[..end - 1].join("::");
            let name = parts[end - 1];
            let glob = |(from, _, text): &&(String, String, String)| {
                *from == module && defines(text, name)
            };
            if let Some((_, target, _)) = self.globs.iter().find(glob) {
                return Some(joined(target, &parts[end - 1..].join("::")));
            }
        }
        None
    }
}

/// Whether a text defines an item.
fn defines(text: &str, name: &str) -> bool {
    let keywords = [
        "struct", "enum", "trait", "type", "fn", "const", "static", "union",
    ];
    keywords.iter().any(|keyword| {
        text.match_indices(&format!("pub {keyword} {name}"))
            .any(|(at, found)| {
                let next = text[at + found.len()..].chars().next();
                next.is_none_or(|c| !c.is_alphanumeric() && c != '_')
            })
    })
}

fn joined(module: &str, name: &str) -> String {
    match module.is_empty() {
        true => name.to_owned(),
        false => format!("{module}::{name}"),
    }
}

/// All `use` declarations of a text, groups taken apart, and whether each is a re-export.
fn uses(text: &str) -> Vec<(String, bool)> {
    let code = text.split("\n#[cfg(test)]\nmod tests {").next();
    let code = without_comments(code.unwrap_or_default());
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let line = code[..at].rsplit('\n').next().unwrap_or_default().trim();
        let is_public = line.starts_with("pub");
        if !line.is_empty() && !is_public {
            continue;
        }
        let Some(end) = code[at..].find(';') else {
            continue;
        };
        let path = &code[at + 4..at + end];
        let mut paths = Vec::new();
        apart("", path, &mut paths);
        found.extend(paths.into_iter().map(|path| (path, is_public)));
    }
    found
}

/// Takes the groups of a `use` declaration apart, and keeps `as` and `*`.
fn apart(head: &str, path: &str, found: &mut Vec<String>) {
    let path = path.trim();
    let Some(open) = path.find('{') else {
        // `a::{self}` is `a`.
        let whole = format!("{head}{path}");
        let whole = whole.strip_suffix("::self").unwrap_or(&whole).to_owned();
        if !path.is_empty() {
            found.push(whole);
        }
        return;
    };
    let head = format!("{head}{}", &path[..open]);
    let inner = &path[open + 1..];
    let inner = inner.rsplit_once('}').map_or(inner, |(inner, _)| inner);
    let (mut depth, mut part) = (0, 0);
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                apart(&head, &inner[part..at], found);
                part = at + 1;
            }
            _ => {}
        }
    }
    apart(&head, &inner[part..], found);
}

/// The path of a `use` from the root of the crate; `None` if it belongs to another crate.
fn within(path: &str, module: &str, index: &BTreeMap<&str, usize>) -> Option<String> {
    let first = path.split("::").next()?;
    if ["crate", "super", "self"].contains(&first) {
        return resolve(path, module);
    }
    let child = joined(module, first);
    index
        .contains_key(child.as_str())
        .then(|| joined(module, path))
}

/// Private imports from a child module, which need no `self::`.
fn child_imports(text: &str, module: &str, index: &BTreeMap<&str, usize>) -> Vec<String> {
    let uses = uses(text).into_iter();
    uses.filter(|(path, is_public)| {
        !is_public && !["crate", "super", "self"].contains(&path.split("::").next().unwrap_or(""))
    })
    .filter_map(|(path, _)| within(&path, module, index))
    .collect()
}

fn without_comments(text: &str) -> String {
    let lines = text.lines();
    let lines = lines.filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
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
    let code = &without_exports(code);
    for start in ["crate::", "super::", "self::"] {
        paths_from(start, code, &mut found);
    }
    paths_from("crate::", tests, &mut found);
    found
}

/// A text without its re-exports.
fn without_exports(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    while let Some(at) = ["\npub use ", "\npub(crate) use ", "\npub(super) use "]
        .iter()
        .filter_map(|start| rest.find(start))
        .min()
    {
        kept.push_str(&rest[..=at]);
        let end = rest[at..].find(';').map_or(rest.len(), |end| at + end + 1);
        rest = &rest[end..];
    }
    kept + rest
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
        let rest_before = &rest[..at];
        let before = rest_before.chars().next_back();
        let path = &rest[at..];
        rest = &rest[at + start.len()..];
        // `super::super::x` is found at its first `super`; `$crate` belongs to the crate that uses the macro;
        // `pub(in crate::x)` is no import.
        let is_visibility = rest_before.ends_with("pub(in ");
        if !is_visibility
            && before.is_none_or(|c| !c.is_alphanumeric() && !['_', ':', '$'].contains(&c))
        {
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
    fn re_exports_are_followed_to_the_file_of_the_item() {
        let files = [
            text(
                "crates/x/src/lib.rs",
                "mod a;\nmod b;\nmod c;\nmod d;\npub use a::{Short as A, inner::*};\npub(crate) use self::d::D;\npub use engine::Time;\n",
            ),
            text("crates/x/src/a.rs", "use crate::b::B;\npub struct Short;\n"),
            text("crates/x/src/a/inner.rs", "pub struct Inner;\n"),
            text("crates/x/src/b.rs", "use crate::A;\n"),
            text("crates/x/src/c.rs", "use crate::{Inner, Time};\n"),
            text("crates/x/src/d.rs", "mod e;\nuse e::E;\npub struct D;\n"),
            text("crates/x/src/d/e.rs", "use crate::D;\npub struct E;\n"),
        ];
        let refs: Vec<&Text> = files.iter().collect();
        let graph = Graph::of(&refs);
        let circle = |names: [&str; 2]| names.map(str::to_owned).to_vec();
        assert_eq!(graph.circles(), [circle(["a", "b"]), circle(["d", "d::e"])]);
        let inner = graph.modules.iter().position(|name| name == "a::inner");
        let c = graph.modules.iter().position(|name| name == "c").unwrap();
        assert!(graph.imports[c].contains(&inner.unwrap()));
    }

    #[test]
    fn a_lint_on_parameters_that_is_switched_off_is_a_breach() {
        let file = text(
            "crates/x/src/a.rs",
            "#[allow(clippy::too_many_arguments)]\n",
        );
        assert_eq!(allowed_parameters(&file).len(), 1);
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
