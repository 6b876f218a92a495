//! Rules on the language of comments, pages, texts in the sources and names of tests (docs/glossary.md): counted
//! phrases with a bound each, words that the glossary replaces, and functions whose name promises a question.

use crate::texts::Text;
use std::collections::{BTreeMap, BTreeSet};

/// Occurrences of each kind of phrase that comments and pages may have together. They are few and not none because a
/// page may quote an old word, or have a question as a heading.
const PHRASES: [(&str, usize); 3] = [
    (
        "nominal clauses (what ..., who ... as subject or object)",
        10,
    ),
    ("indefinite persons (whoever, somebody, nobody ...)", 10),
    ("persons (he, his, him)", 10),
];

/// The same for texts in the sources (log lines, errors, help, reports) and names of functions.
const TEXT_PHRASES: usize = 0;

/// Replaced words that a text may have, with the files and the reason.
const KEPT: [(&str, &str, &str); 10] = [
    (
        "crates/hornwork/tests/suite/command_line.rs",
        "coalesce",
        "a former configuration key",
    ),
    (
        "crates/config/src/renamed.rs",
        "coalesce",
        "a former configuration key",
    ),
    (
        "crates/config/src/renamed.rs",
        "seats",
        "a former configuration key",
    ),
    (
        "crates/lab/src/experiment/renamed_keys.rs",
        "seats",
        "a former key of experiments",
    ),
    (
        "crates/hornwork/src/control/former_paths.rs",
        "seats",
        "a former key of the control API",
    ),
    (
        "crates/lab/src/host/register.rs",
        "laboratory",
        "the realm, which scenarios of systems under test name",
    ),
    (
        "crates/console/src/database/layout.rs",
        "coalesce",
        "a function of SQL",
    ),
    (
        "crates/console/src/partition.rs",
        "coalesce",
        "a function of SQL",
    ),
    (
        "crates/lab/src/sipp/compile.rs",
        "repartition",
        "a keyword of SIPp's scenario files",
    ),
    (
        "crates/hornwork/tests/suite/peer_scenarios_accepted.rs",
        "repartition",
        "a keyword of SIPp's scenario files",
    ),
];

/// Most of the type names of the workspace that may be defined more than once, in percent of all definitions.
const REPEATED_TYPES: usize = 12;

const PERSONS: [&str; 4] = ["he", "his", "him", "himself"];
const INDEFINITE: [&str; 10] = [
    "whoever",
    "whomever",
    "whatever",
    "somebody",
    "someone",
    "nobody",
    "anybody",
    "anyone",
    "everybody",
    "everyone",
];
/// Words after which `who` or `whom` begins a nominal clause; after a noun it begins a relative clause, which is good
/// English.
const BEFORE_NOMINAL: [&str; 20] = [
    "of", "to", "by", "for", "from", "with", "on", "at", "in", "than", "as", "and", "or", "that",
    "is", "are", "says", "tells", "knows", "asks",
];

/// Every breach, by file or by rule.
pub fn breaches(files: &[Text]) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut found: [Vec<String>; PHRASES.len()] = Default::default();
    let mut in_texts = Vec::new();
    let replaced = replaced_words(files);
    for file in files.iter().filter(|file| is_ours(&file.name)) {
        let prose = prose(file);
        for (number, line) in &prose {
            let at = || format!("{}:{number}", file.name);
            let words = words(line);
            found[0].extend(nominal_clauses(line, &words).map(|_| at()));
            found[1].extend(
                words
                    .iter()
                    .filter(|word| INDEFINITE.contains(&word.as_str()))
                    .map(|_| at()),
            );
            found[2].extend(
                words
                    .iter()
                    .filter(|word| PERSONS.contains(&word.as_str()))
                    .map(|_| at()),
            );
        }
        if file.name.ends_with(".rs") {
            breaches.extend(questions_that_change(file));
            let texts = texts(&file.text);
            breaches.extend(replaced_in_texts(file, &texts, &replaced));
            in_texts.extend(phrases_in_texts(file, &texts));
        }
        breaches.extend(uses_of_replaced(file, &prose, &replaced));
    }
    for ((phrase, most), at) in PHRASES.iter().zip(&found) {
        println!("language: {} {phrase}, at most {most}", at.len());
        if at.len() > *most {
            let some = at.iter().take(15).cloned().collect::<Vec<_>>().join(" ");
            breaches.push(format!(
                "{} {phrase}, more than {most}: {some} ...",
                at.len()
            ));
        }
    }
    println!(
        "language: {} such phrases in texts and names of functions, at most {TEXT_PHRASES}",
        in_texts.len()
    );
    if in_texts.len() > TEXT_PHRASES {
        breaches.push(format!(
            "nominal clauses or persons in texts or names of functions: {}",
            in_texts.join(" ")
        ));
    }
    breaches.extend(kept_in_vain(files));
    breaches.extend(repeated_types(files));
    breaches
}

/// Files whose language is judged: all but the glossary, which quotes what it replaces, and texts of others.
fn is_ours(name: &str) -> bool {
    (name.ends_with(".rs") || name.ends_with(".md") || has_toml_prose(name))
        && name != "docs/glossary.md"
        // This file names the words that it counts.
        && name != "xtask/src/language.rs"
}

/// Files of TOML with prose: comments of subjects and manifests, and descriptions.
fn has_toml_prose(name: &str) -> bool {
    (name.starts_with("subjects/") && name.ends_with(".toml"))
        || name == "Cargo.toml"
        || name.ends_with("/Cargo.toml")
}

/// Comments of Rust files, comments and descriptions of TOML files, and the text of pages outside code blocks, line by
/// line.
fn prose(file: &Text) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        if file.name.ends_with(".md") {
            let fence = line.trim_start().starts_with("```");
            fenced ^= fence;
            if !fenced && !fence {
                lines.push((number + 1, without_code(line)));
            }
        } else if file.name.ends_with(".toml") {
            let description = line.strip_prefix("description = ");
            let prose = description.or_else(|| line.trim_start().strip_prefix('#'));
            lines.extend(prose.map(|prose| (number + 1, without_code(prose))));
        } else if let Some(comment) = comment_of(line) {
            lines.push((number + 1, without_code(comment)));
        }
    }
    lines
}

/// The comment of a line of Rust; a `//` that follows a quote on the same line may be part of a text, and is left
/// alone.
fn comment_of(line: &str) -> Option<&str> {
    let at = line.find("//")?;
    let before = &line[..at];
    (before.trim().is_empty() || (before.ends_with(' ') && !before.contains('"')))
        .then(|| line[at..].trim_start_matches(['/', '!']))
}

/// A line without its parts in backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ` ")
}

/// Words in lower case.
fn words(line: &str) -> Vec<String> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '\'')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

/// `what` anywhere but in a question, and `who` or `whom` where no noun precedes it.
fn nominal_clauses<'a>(line: &str, words: &'a [String]) -> impl Iterator<Item = &'a str> {
    let question = line.trim_end().ends_with('?');
    words.iter().enumerate().filter_map(move |(at, word)| {
        let nominal = match word.as_str() {
            "what" => !question,
            "who" | "whom" => match at.checked_sub(1).map(|before| words[before].as_str()) {
                // At the start of a line the noun may end the line before.
                None => false,
                Some(before) => BEFORE_NOMINAL.contains(&before),
            },
            _ => false,
        };
        nominal.then_some(word.as_str())
    })
}

/// A part of a Rust file; together they are the whole file.
enum Piece<'a> {
    Code(&'a str),
    Comment(&'a str),
    /// A string literal with its quotes, and its content.
    Literal(&'a str, &'a str),
}

/// The parts of a Rust file, in order.
fn pieces(source: &str) -> Vec<Piece<'_>> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let (length, content) = match c {
            '/' if rest.starts_with("//") => {
                let length = rest.find('\n').unwrap_or(rest.len());
                found.push(Piece::Comment(&rest[..length]));
                rest = &rest[length..];
                continue;
            }
            // A raw string, perhaps of bytes: `r"..."`, `br#"..."#`.
            'r' if raw_start(rest).is_some() => {
                let (start, end) = raw_start(rest).unwrap_or_default();
                let text = &rest[start..];
                let length = text.find(&end).unwrap_or(text.len());
                let whole = (start + length + end.len()).min(rest.len());
                (whole, Some(&text[..length]))
            }
            '"' => {
                let length = closing_quote(&rest[1..]);
                ((length + 2).min(rest.len()), Some(&rest[1..=length]))
            }
            // The quotes of a character; a lifetime has only one.
            '\'' if rest.starts_with("'\"'") => (3, None),
            '\'' if rest.starts_with("'\\") => (3, None),
            // An identifier is skipped as a whole: its last letter may be an `r`.
            c if c.is_alphanumeric() || c == '_' => (identifier_length(rest), None),
            c => (c.len_utf8(), None),
        };
        let part = &rest[..length];
        found.push(match content {
            Some(content) => Piece::Literal(part, content),
            None => Piece::Code(part),
        });
        rest = &rest[length..];
    }
    found
}

/// The texts of a Rust file (its string literals) with their lines. Placeholders and escapes are blanks.
fn texts(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut line = 1;
    for piece in pieces(source) {
        let (Piece::Code(part) | Piece::Comment(part) | Piece::Literal(part, _)) = piece;
        if let Piece::Literal(_, content) = piece {
            found.push((line, plain_text(content)));
        }
        line += part.matches('\n').count();
    }
    found
}

/// A Rust file without its comments and texts; each line has its place.
fn code(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    for piece in pieces(source) {
        match piece {
            Piece::Code(part) => code.push_str(part),
            Piece::Comment(part) | Piece::Literal(part, _) => {
                code.push(' ');
                code.extend(part.matches('\n'));
            }
        }
    }
    code
}

/// Lines of a Rust file, counted from 0, that are comments as a whole.
pub fn lines_of_comments(source: &str) -> BTreeSet<usize> {
    let mut lines = BTreeSet::new();
    let (mut line, mut is_blank) = (0, true);
    for piece in pieces(source) {
        match piece {
            Piece::Comment(_) if is_blank => {
                lines.insert(line);
            }
            Piece::Code("\n") => {
                line += 1;
                is_blank = true;
            }
            Piece::Code(part) if part.trim().is_empty() => {}
            Piece::Code(part) | Piece::Comment(part) | Piece::Literal(part, _) => {
                line += part.matches('\n').count();
                is_blank = false;
            }
        }
    }
    lines
}

/// The length of the identifier or number that begins a text, without a prefix of a string.
fn identifier_length(text: &str) -> usize {
    if text.starts_with("b\"") || text.starts_with("br\"") || text.starts_with("br#") {
        return 1;
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    end.unwrap_or(text.len())
}

/// The start of the content of a raw string that begins a text, and its end mark.
fn raw_start(text: &str) -> Option<(usize, String)> {
    let rest = text.strip_prefix('r')?;
    let marks = rest.len() - rest.trim_start_matches('#').len();
    rest[marks..]
        .starts_with('"')
        .then(|| (marks + 2, format!("\"{}", "#".repeat(marks))))
}

/// The length of a text up to the quote that closes it.
fn closing_quote(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at,
            _ => {}
        }
    }
    text.len()
}

/// A literal without escapes and placeholders.
fn plain_text(literal: &str) -> String {
    let mut plain = String::with_capacity(literal.len());
    let (mut depth, mut escaped) = (0_usize, false);
    for c in literal.chars() {
        match c {
            _ if escaped => {
                escaped = false;
                plain.push(' ');
            }
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                plain.push(' ');
            }
            c if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    plain
}

/// Replaced words in texts, except those of [`KEPT`].
fn replaced_in_texts(
    file: &Text,
    texts: &[(usize, String)],
    replaced: &[(String, String)],
) -> Vec<String> {
    let mut breaches = Vec::new();
    for (number, text) in texts {
        let parts = identifier_parts(text);
        let used = replaced.iter().filter(|(word, _)| parts.contains(word));
        for (word, term) in used.filter(|(word, _)| !is_kept(&file.name, word)) {
            breaches.push(format!(
                "{}:{number}: {word} in a text (docs/glossary.md: {term})",
                file.name
            ));
        }
    }
    breaches
}

fn is_kept(file: &str, word: &str) -> bool {
    KEPT.iter()
        .any(|(kept_in, kept, _)| *kept_in == file && *kept == word)
}

/// Entries of [`KEPT`] whose file has the word no more.
fn kept_in_vain(files: &[Text]) -> Vec<String> {
    let stale = KEPT.iter().filter(|(name, word, _)| {
        let file = files.iter().find(|file| file.name == *name);
        file.is_some_and(|file| {
            let texts = texts(&file.text);
            !texts
                .iter()
                .any(|(_, text)| identifier_parts(text).contains(*word))
        })
    });
    stale
        .map(|(name, word, _)| format!("{name} has no text with {word}: remove it from KEPT"))
        .collect()
}

/// Nominal clauses and persons in texts of the product, and in names of functions. Texts of tests are mostly data.
fn phrases_in_texts(file: &Text, texts: &[(usize, String)]) -> Vec<String> {
    let mut found = Vec::new();
    let mut judge = |number: usize, text: &str| {
        let words = words(text);
        let person = words
            .iter()
            .any(|word| PERSONS.contains(&word.as_str()) || INDEFINITE.contains(&word.as_str()));
        if person || nominal_clauses(text, &words).next().is_some() {
            found.push(format!("{}:{number}", file.name));
        }
    };
    let product = file.name.contains("/src/") && !file.name.ends_with("tests.rs");
    let code = file.text.split("\n#[cfg(test)]\nmod tests {").next();
    let last = code.unwrap_or_default().lines().count();
    // A single word is a name or a keyword.
    for (number, text) in texts
        .iter()
        .filter(|(number, _)| product && *number <= last)
    {
        if text.trim().contains(' ') {
            judge(*number, text);
        }
    }
    for (at, line) in file.text.lines().enumerate() {
        let line = line.trim_start();
        if let Some(name) = line
            .strip_prefix("fn ")
            .or_else(|| line.strip_prefix("async fn "))
        {
            judge(at + 1, &name[..identifier_length(name)].replace('_', " "));
        }
    }
    found
}

/// `fn is_...` and `fn has_...` that take `&mut self`.
fn questions_that_change(file: &Text) -> Vec<String> {
    let asks = |(at, _): &(usize, &str)| {
        let name = &file.text[at + 3..];
        // Comments may name functions, too.
        let line = file.text[..*at].rsplit('\n').next().unwrap_or_default();
        !line.contains("//")
            && (name.starts_with("is_") || name.starts_with("has_"))
            // The receiver is the first parameter, perhaps on the next line; it has no parenthesis before it.
            && name.split_once(')').is_some_and(|(head, _)| takes_mut_self(head))
    };
    file.text
        .match_indices("fn ")
        .filter(asks)
        .map(|(at, _)| {
            let number = file.text[..at].lines().count();
            format!("{}:{number}: a question takes &mut self", file.name)
        })
        .collect()
}

/// Whether the head of a function, up to its first closing parenthesis, has the receiver `&mut self`.
fn takes_mut_self(head: &str) -> bool {
    let words: Vec<&str> = head.split_whitespace().collect();
    let head = words.join(" ");
    // A lifetime may stand between: `&'a mut self`.
    head.contains('&') && head.contains("mut self")
}

/// The words in backticks of the last column of the glossary and their plurals, with the term of their row.
fn replaced_words(files: &[Text]) -> Vec<(String, String)> {
    let Some(glossary) = files.iter().find(|file| file.name == "docs/glossary.md") else {
        return Vec::new();
    };
    let mut replaced = Vec::new();
    for line in glossary.text.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line
            .trim()
            .trim_matches('|')
            .split('|')
            .map(str::trim)
            .collect();
        if let [term, .., not] = &cells[..] {
            let words = not.split('`').skip(1).step_by(2);
            for word in words {
                let forms = [Some(word.to_owned()), plural(word)];
                replaced.extend(
                    forms
                        .into_iter()
                        .flatten()
                        .map(|form| (form, (*term).to_owned())),
                );
            }
        }
    }
    replaced
}

/// The plural of a word that is not one itself.
fn plural(word: &str) -> Option<String> {
    match word {
        word if word.ends_with("sh") || word.ends_with("ch") => Some(format!("{word}es")),
        word if word.ends_with('y') => Some(format!("{}ies", &word[..word.len() - 1])),
        word if word.ends_with('s') => None,
        word => Some(format!("{word}s")),
    }
}

/// Replaced words in prose and as parts of identifiers (`crew_size`, `CrewSize`), at their definition and in use.
fn uses_of_replaced(
    file: &Text,
    prose: &[(usize, String)],
    replaced: &[(String, String)],
) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut judge = |number: usize, parts: &BTreeSet<String>| {
        for (word, term) in replaced {
            if parts.contains(word) {
                breaches.push(format!(
                    "{}:{number}: {word} (docs/glossary.md: {term})",
                    file.name
                ));
            }
        }
    };
    if file.name.ends_with(".rs") {
        for (number, line) in code(&file.text).lines().enumerate() {
            judge(number + 1, &identifier_parts(line));
        }
    }
    for (number, line) in prose {
        judge(*number, &words(line).into_iter().collect());
    }
    breaches
}

/// The identifiers of a line, whole and in parts, in lower case.
fn identifier_parts(code: &str) -> BTreeSet<String> {
    let mut parts = BTreeSet::new();
    for identifier in code.split(|c: char| !c.is_alphanumeric() && c != '_') {
        parts.insert(identifier.to_lowercase());
        let mut part = String::new();
        for c in identifier.chars() {
            if c == '_' || (c.is_uppercase() && part.chars().last().is_some_and(char::is_lowercase))
            {
                parts.insert(std::mem::take(&mut part).to_lowercase());
            }
            if c != '_' {
                part.push(c);
            }
        }
        parts.insert(part.to_lowercase());
    }
    parts
}

/// Names of types with more than one definition in the sources.
fn repeated_types(files: &[Text]) -> Option<String> {
    let mut places: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for file in files
        .iter()
        .filter(|file| file.name.ends_with(".rs") && file.name.contains("/src/"))
    {
        for name in file.text.lines().filter_map(defined_type) {
            places.entry(name.to_owned()).or_default().push(&file.name);
        }
    }
    let all: usize = places.values().map(Vec::len).sum();
    let repeated: usize = places
        .values()
        .map(Vec::len)
        .filter(|count| *count > 1)
        .sum();
    let percent = repeated * 100 / all.max(1);
    println!("language: {percent} % of {all} types share their name, at most {REPEATED_TYPES} %");
    (percent > REPEATED_TYPES).then(|| {
        let mut worst: Vec<_> = places.iter().filter(|(_, files)| files.len() > 1).collect();
        worst.sort_by_key(|(_, files)| std::cmp::Reverse(files.len()));
        let some: Vec<String> = worst
            .iter()
            .take(15)
            .map(|(name, files)| format!("{name} {}", files.len()))
            .collect();
        format!(
            "{percent} % of types share their name, more than {REPEATED_TYPES} %: {}",
            some.join(", ")
        )
    })
}

/// The type that a line defines. An associated type (indented `type X`) is no definition of its own.
fn defined_type(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let code = match code.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.strip_prefix(' ')?,
        None => code,
    };
    let rest = ["struct ", "enum ", "trait ", "union "]
        .iter()
        .find_map(|keyword| code.strip_prefix(keyword))
        .or_else(|| {
            code.strip_prefix("type ")
                .filter(|_| !line.starts_with(' '))
        })?;
    let end = rest
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(rest.len());
    rest.starts_with(char::is_uppercase).then(|| &rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(line: &str) -> usize {
        nominal_clauses(line, &words(line)).count()
    }

    #[test]
    fn nominal_clauses_are_told_from_relative_clauses_and_questions() {
        assert_eq!(count("what comes from it is opened"), 1);
        assert_eq!(count("a peer who asks is answered"), 0);
        assert_eq!(count("the choice of who asks"), 1);
        assert_eq!(count("What is missing?"), 0);
    }

    #[test]
    fn comments_are_found_and_texts_are_not() {
        assert_eq!(comment_of("    /// Docs."), Some(" Docs."));
        assert_eq!(comment_of("let a = 1; // Why."), Some(" Why."));
        assert_eq!(comment_of("let a = \"http://x\";"), None);
        assert_eq!(without_code("a `what` b").matches("what").count(), 0);
    }

    #[test]
    fn lines_that_are_comments_are_found() {
        let source =
            "//! One.\n\n    // Two.\nlet a = 1; // Three.\nlet b = \"\n// four\n\";\n/// Five.\n";
        let lines = lines_of_comments(source);
        assert_eq!(Vec::from_iter(lines), [0, 2, 7]);
    }

    #[test]
    fn replaced_words_are_found_in_names_and_comments() {
        let glossary = Text {
            name: "docs/glossary.md".to_owned(),
            text: "| term | meaning | not |\n| --- | --- | --- |\n| worker pool | x | `crew` |\n"
                .to_owned(),
        };
        let code = Text {
            name: "crates/x/src/a.rs".to_owned(),
            text: "struct CrewSize;\n// The crew.\nlet text = \"crew\";\n".to_owned(),
        };
        let replaced = replaced_words(&[glossary]);
        let found = uses_of_replaced(&code, &prose(&code), &replaced);
        assert_eq!(found.len(), 2, "{found:?}");
        let found = replaced_in_texts(&code, &texts(&code.text), &replaced);
        let expected = "crates/x/src/a.rs:3: crew in a text (docs/glossary.md: worker pool)";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn replaced_words_are_found_in_fields_locals_and_plurals() {
        let glossary = Text {
            name: "docs/glossary.md".to_owned(),
            text: "| load shedding | x | RFC 5390 | `sieve` |\n| participant | x | RFC 4353 | `seat` |\n\
                | request | x | RFC 3261 | `wish` |\n| test lab | x | | `laboratory` |\n| rate | x | | `crowds` |\n"
                .to_owned(),
        };
        let file = Text {
            name: "crates/x/src/a.rs".to_owned(),
            text: concat!(
                "let sieve = 1;\n",
                "seats: usize,\n",
                "Reply::Seat { number } => list(\"one\n",
                "seat\", FreeSeats),\n",
                "f(wishes, laboratories, crowds); // A seat.\n",
                "let seating = \"sieve\"; /// `seat` in backticks\n",
            )
            .to_owned(),
        };
        let replaced = replaced_words(&[glossary]);
        let found = uses_of_replaced(&file, &prose(&file), &replaced);
        let found: Vec<&str> = found
            .iter()
            .filter_map(|breach| Some(breach.split_once(" (")?.0))
            .collect();
        let expected = [
            "crates/x/src/a.rs:1: sieve",
            "crates/x/src/a.rs:2: seats",
            "crates/x/src/a.rs:3: seat",
            "crates/x/src/a.rs:4: seats",
            "crates/x/src/a.rs:5: wishes",
            "crates/x/src/a.rs:5: laboratories",
            "crates/x/src/a.rs:5: crowds",
            "crates/x/src/a.rs:5: seat",
        ];
        assert_eq!(found, expected);
        let found = replaced_in_texts(&file, &texts(&file.text), &replaced);
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn texts_are_found_without_placeholders_and_comments() {
        let source = concat!(
            "// \"comment\"\n",
            "let a = \"one {what} two\\n\\\"three\\\"\"; let c = '\"';\n",
            "let b = br#\"four \"five\"\"#; fn f<'a>(x: &'a str) {}\n",
            "let d = b\"six\"; let escaped = '\\''; let e = r\"seven\";\n",
        );
        let found = texts(source);
        let words: Vec<(usize, String)> = found
            .into_iter()
            .map(|(line, text)| (line, words(&text).join(" ")))
            .collect();
        let expected = [
            (2, "one two three"),
            (3, "four five"),
            (4, "six"),
            (4, "seven"),
        ];
        let expected = expected.map(|(line, text)| (line, text.to_owned()));
        assert_eq!(words, expected);
    }

    #[test]
    fn phrases_in_texts_and_names_of_functions_are_found() {
        let file = |name: &str, text: &str| Text {
            name: name.to_owned(),
            text: text.to_owned(),
        };
        let phrases = |file: &Text| phrases_in_texts(file, &texts(&file.text));
        let text = "fn a() {\n    \"see what differs\";\n    \"what\";\n}\n";
        assert_eq!(phrases(&file("x/src/a.rs", text)), ["x/src/a.rs:2"]);
        assert!(phrases(&file("x/tests/a.rs", text)).is_empty());
        let name = "    fn queue_loses_what_is_counted() {}\n";
        assert_eq!(phrases(&file("x/tests/a.rs", name)), ["x/tests/a.rs:1"]);
    }

    #[test]
    fn a_question_that_changes_is_a_breach() {
        let code = |line: &str| Text {
            name: "a.rs".to_owned(),
            text: line.to_owned(),
        };
        assert_eq!(
            questions_that_change(&code("    fn is_due(&mut self) -> bool {")).len(),
            1
        );
        assert_eq!(
            questions_that_change(&code("    fn is_due(&self) -> bool {")).len(),
            0
        );
        let lines =
            "impl A {\n    fn is_due(\n        &mut self,\n        at: Time,\n    ) -> bool {";
        assert_eq!(
            questions_that_change(&code(lines)),
            ["a.rs:2: a question takes &mut self"]
        );
        let next = "    fn is_due(\n        &self,\n    ) -> bool {}\n    fn set(&mut self) {}";
        assert_eq!(questions_that_change(&code(next)).len(), 0);
    }

    #[test]
    fn subjects_and_manifests_are_judged() {
        assert!(is_ours("subjects/kamailio.toml") && is_ours("crates/codec/Cargo.toml"));
        assert!(!is_ours("examples/pbx.toml"));
        let file = Text {
            name: "subjects/a.toml".to_owned(),
            text: "# Calls that end.\nname = \"what\"\ndescription = \"All of it\"\n".to_owned(),
        };
        let found = prose(&file);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[1], (3, "\"All of it\"".to_owned()));
    }

    #[test]
    fn definitions_of_types_are_found() {
        assert_eq!(defined_type("pub(crate) struct Place {"), Some("Place"));
        assert_eq!(defined_type("    type Item = u8;"), None);
        assert_eq!(defined_type("type Part = fn();"), Some("Part"));
        assert_eq!(defined_type("pub fn x() {}"), None);
    }
}
