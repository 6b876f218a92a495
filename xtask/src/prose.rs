//! Line length of prose in Markdown files: at most [`WIDTH`] characters, unless a line has one sentence only. `cargo xtask docs` wraps
//! the lines, `cargo xtask tidy` names files that have longer ones. Tables, code blocks, headings and HTML stay as they are.

use crate::texts::{Text, tracked};
use std::fs;

/// Characters of a line of prose.
const WIDTH: usize = 120;

/// Files with prose that [`wrapped`] would change.
pub fn breaches(files: &[Text]) -> Vec<String> {
    let long = files
        .iter()
        .filter(|file| file.name.ends_with(".md") && wrapped(&file.text) != file.text);
    long.map(|file| {
        format!(
            "{}: lines of prose above {WIDTH} characters with several sentences; run: cargo xtask docs",
            file.name
        )
    })
    .collect()
}

/// Wraps the prose of all tracked Markdown files.
///
/// # Errors
/// A file cannot be read or written.
pub fn write() -> Result<(), String> {
    for file in tracked()? {
        let path = crate::process::root().join(&file.name);
        let text = wrapped(&file.text);
        if file.name.ends_with(".md") && text != file.text {
            fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
            println!("wrapped {}", path.display());
        }
    }
    Ok(())
}

/// The text with its paragraphs and list items wrapped, where a line is too long and has several sentences.
pub fn wrapped(text: &str) -> String {
    let mut output = Vec::new();
    let mut block: Vec<&str> = Vec::new();
    let mut in_code = false;
    for line in text.split('\n') {
        let start = line.trim_start();
        let is_fence = start.starts_with("```") || start.starts_with("~~~");
        let stands_alone = in_code || is_fence || start.is_empty() || is_no_prose(line, &block);
        if stands_alone || marker(start) > 0 {
            output.extend(wrap(&block));
            block.clear();
        }
        in_code ^= is_fence;
        match stands_alone {
            true => output.push(line.to_owned()),
            false => block.push(line),
        }
    }
    output.extend(wrap(&block));
    output.join("\n")
}

/// A heading, a row of a table, HTML, an image, the definition of a link, or a block of code by indentation.
fn is_no_prose(line: &str, block: &[&str]) -> bool {
    let start = line.trim_start();
    let definition = start.starts_with('[') && start.contains("]: ");
    let code = block.is_empty() && line.starts_with("    ");
    start.starts_with(['#', '|', '<', '>']) || start.starts_with("![") || definition || code
}

/// Length of the marker of a list item (`- `, `12. `) with its blanks, 0 without one.
fn marker(line: &str) -> usize {
    let digits = line.len() - line.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let sign = match digits {
        0 => line.starts_with(['-', '*', '+']),
        _ => line[digits..].starts_with('.'),
    };
    let rest = &line[(digits + 1).min(line.len())..];
    let blanks = rest.len() - rest.trim_start_matches(' ').len();
    match sign && blanks > 0 {
        true => digits + 1 + blanks,
        false => 0,
    }
}

/// One paragraph or list item, wrapped if it needs that.
fn wrap(block: &[&str]) -> Vec<String> {
    let unchanged = || block.iter().map(|&line| line.to_owned()).collect();
    let long = |line: &&str| line.chars().count() > WIDTH && has_sentences(line);
    let breaks = |line: &&str| line.ends_with("  ") || line.ends_with('\\');
    if !block.iter().any(long) || block.iter().any(breaks) {
        return unchanged();
    }
    let start = block[0].trim_start();
    let indentation = block[0].len() - start.len();
    let first = indentation + marker(start);
    let text: Vec<&str> = block.iter().map(|line| line.trim()).collect();
    let text = text.join(" ");
    let mut lines = Vec::new();
    let mut line = block[0][..first].to_owned();
    let mut is_empty = true;
    for word in words(&text[marker(start)..]) {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(std::mem::replace(&mut line, " ".repeat(first)));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(&word);
        is_empty = false;
    }
    lines.push(line);
    // A continued line must not begin like another element.
    let other =
        |line: &String| marker(line.trim_start()) > 0 || is_no_prose(line.trim_start(), &[]);
    match lines[1..].iter().any(other) {
        true => unchanged(),
        false => lines,
    }
}

/// Whether a sentence ends within the line.
fn has_sentences(line: &str) -> bool {
    let mut words = line.split(' ').filter(|word| !word.is_empty()).peekable();
    while let Some(word) = words.next() {
        let word = word.trim_end_matches([')', '"', '*', '`']);
        let begins = |next: &&str| {
            next.starts_with(|c: char| {
                c.is_ascii_uppercase() || c.is_ascii_digit() || "`[(*\"".contains(c)
            })
        };
        if word.ends_with(['.', '!', '?']) && words.peek().is_some_and(begins) {
            return true;
        }
    }
    false
}

/// The words of a text; code in backquotes and the text of a link are one word.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    for part in text.split(' ').filter(|part| !part.is_empty()) {
        if !word.is_empty() {
            word.push(' ');
        }
        word.push_str(part);
        let in_code = word.matches('`').count() % 2 == 1;
        let prose: String = word.split('`').step_by(2).collect();
        let in_link = prose.rfind('[') > prose.rfind(']');
        if !in_code && !in_link {
            words.push(std::mem::take(&mut word));
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_with_several_sentences_are_wrapped() {
        let sentence = "A call has two legs, and each of them has a codec and an address.";
        let text =
            format!("# Head\n\n- {sentence} {sentence}\n  End.\n\n| {sentence} {sentence} |\n");
        let expected = format!(
            "# Head\n\n- {sentence} A call has two legs, and each of them has a codec\n  and an address. End.\n\n| {sentence} {sentence} |\n"
        );
        assert_eq!(wrapped(&text), expected);
        assert_eq!(wrapped(&expected), expected);
    }

    #[test]
    fn one_sentence_a_line_and_code_are_left() {
        let long = "word ".repeat(40);
        let text = format!("{long}end.\n```\n{long}. {long}. A\n```\n    {long}. {long}\n");
        assert_eq!(wrapped(&text), text);
    }

    #[test]
    fn code_and_links_are_not_split() {
        let code = format!("`{}`", "a b ".repeat(20));
        let text = format!(
            "{} One. {code} [the page of it](page.md).",
            "word ".repeat(12)
        );
        let lines = wrapped(&text);
        assert_eq!(lines.lines().count(), 2, "{lines}");
        assert!(
            lines
                .lines()
                .nth(1)
                .is_some_and(|line| line.starts_with('`')),
            "{lines}"
        );
    }
}
