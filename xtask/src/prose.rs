//! Line length of prose: no line of a Markdown file, and none of a comment of Rust, has more than [`WIDTH`] characters.
//! `cargo xtask docs` wraps paragraphs and list items with a longer line as a whole, `cargo xtask tidy` names the first
//! such line of a file. Tables, code blocks, headings, HTML, definitions of links and blocks with a hard line break
//! stay as they are, and a word, code in backquotes or the text of a link is not divided.

use crate::language::lines_of_comments;
use crate::texts::{Text, tracked};
use std::fs;

/// Characters of a line of prose, those of its indentation and of its comment mark included.
const WIDTH: usize = 120;

/// Files with prose that [`rewrapped`] would change, and the first line.
pub fn breaches(files: &[Text]) -> Vec<String> {
    files.iter().filter_map(breach).collect()
}

fn breach(file: &Text) -> Option<String> {
    let text = rewrapped(file)?;
    let same = text.split('\n').zip(file.text.split('\n'));
    let same = same.take_while(|(after, before)| after == before).count();
    (text != file.text).then(|| {
        format!(
            "{}:{}: a paragraph with a line above {WIDTH} characters; run: cargo xtask docs",
            file.name,
            same + 1
        )
    })
}

/// Wraps the prose of all tracked Markdown files and the comments of all tracked Rust files.
///
/// # Errors
/// A file cannot be read or written.
pub fn write() -> Result<(), String> {
    for file in tracked()? {
        let path = crate::process::root().join(&file.name);
        if let Some(text) = rewrapped(&file).filter(|text| *text != file.text) {
            fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
            println!("wrapped {}", path.display());
        }
    }
    Ok(())
}

/// The text of a file with its prose wrapped; `None` for files without prose.
fn rewrapped(file: &Text) -> Option<String> {
    match file.name.rsplit_once('.')?.1 {
        "md" => Some(wrapped(&file.text)),
        "rs" => Some(wrapped_comments(&file.text)),
        _ => None,
    }
}

/// The text of a page with its paragraphs and list items wrapped, where a line is too long.
pub fn wrapped(text: &str) -> String {
    wrapped_to(text, WIDTH)
}

/// The text of a Rust file with its comments wrapped: neighbouring lines with one indentation and one mark are a page.
fn wrapped_comments(source: &str) -> String {
    if source.lines().all(|line| line.chars().count() <= WIDTH) {
        return source.to_owned();
    }
    let comments = lines_of_comments(source);
    let mut output = Vec::new();
    let mut group: (&str, Vec<&str>) = ("", Vec::new());
    for (number, line) in source.split('\n').enumerate() {
        let comment = comments.contains(&number).then(|| head_and_text(line));
        let comment = comment.flatten();
        if comment.is_none_or(|(head, _)| head != group.0) {
            output.extend(wrapped_group(&group));
            group.1.clear();
        }
        match comment {
            Some((head, text)) => {
                group.0 = head;
                group.1.push(text);
            }
            None => output.push(line.to_owned()),
        }
    }
    output.extend(wrapped_group(&group));
    output.join("\n")
}

/// The lines of one comment with its head.
fn wrapped_group((head, lines): &(&str, Vec<&str>)) -> Vec<String> {
    if lines.is_empty() {
        return Vec::new();
    }
    let text = wrapped_to(&lines.join("\n"), WIDTH.saturating_sub(head.len() + 1));
    let commented = |line: &str| match line.is_empty() {
        true => (*head).to_owned(),
        false => format!("{head} {line}"),
    };
    text.split('\n').map(commented).collect()
}

/// Indentation with the mark of a comment, and its text; `None` where no blank is between.
fn head_and_text(line: &str) -> Option<(&str, &str)> {
    let start = line.trim_start_matches(' ');
    let text = start.strip_prefix("//")?.trim_start_matches(['/', '!']);
    let head = &line[..line.len() - text.len()];
    match text.is_empty() {
        true => Some((head, "")),
        false => Some((head, text.strip_prefix(' ')?)),
    }
}

fn wrapped_to(text: &str, width: usize) -> String {
    let mut output = Vec::new();
    let mut block: Vec<&str> = Vec::new();
    let mut in_code = false;
    for line in text.split('\n') {
        let start = line.trim_start();
        let is_fence = start.starts_with("```") || start.starts_with("~~~");
        let stands_alone = in_code || is_fence || start.is_empty() || is_no_prose(line, &block);
        if stands_alone || marker(start) > 0 {
            output.extend(wrap(&block, width));
            block.clear();
        }
        in_code ^= is_fence;
        match stands_alone {
            true => output.push(line.to_owned()),
            false => block.push(line),
        }
    }
    output.extend(wrap(&block, width));
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
    // Past a character of several octets there is no marker.
    let rest = line.get(digits + 1..).unwrap_or_default();
    let blanks = rest.len() - rest.trim_start_matches(' ').len();
    match sign && blanks > 0 {
        true => digits + 1 + blanks,
        false => 0,
    }
}

/// One paragraph or list item, wrapped if a line with several words is too long.
fn wrap(block: &[&str], width: usize) -> Vec<String> {
    let long = |line: &&str| line.chars().count() > width && can_be_divided(line.trim());
    let breaks = |line: &&str| line.ends_with("  ") || line.ends_with('\\');
    if !block.iter().any(long) || block.iter().any(breaks) {
        return block.iter().map(|&line| line.to_owned()).collect();
    }
    let start = block[0].trim_start();
    let first = block[0].len() - start.len() + marker(start);
    let text: Vec<&str> = block.iter().map(|line| line.trim()).collect();
    let text = text.join(" ");
    let mut lines = Vec::new();
    let mut line = block[0][..first].to_owned();
    let mut is_empty = true;
    for word in words(&text[marker(start)..]) {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > width {
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
    lines
}

fn can_be_divided(line: &str) -> bool {
    words(&line[marker(line)..]).len() > 1
}

/// The words of a text. Code in backquotes and the text of a link are one word; one that a new line would turn into
/// another element (a dash, a number with a full stop) belongs to the word before it.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut push = |word: &str| {
        let line = format!("{word} ");
        let is_other = marker(&line) > 0 || is_no_prose(&line, &[]);
        match words.last_mut().filter(|_| is_other) {
            Some(last) => {
                last.push(' ');
                last.push_str(word);
            }
            None if word.is_empty() => {}
            None => words.push(word.to_owned()),
        }
    };
    let (mut start, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with(' ') {
            push(&text[start..at]);
            at += 1;
            start = at;
        } else {
            at += undivided(&text[at..]);
        }
    }
    push(&text[start..]);
    words
}

/// Length of the code or of the text of a link at the start of `text`, or that of its first character.
fn undivided(text: &str) -> usize {
    let ticks = text.len() - text.trim_start_matches('`').len();
    let code = text[ticks..]
        .find(&text[..ticks])
        .filter(|_| ticks > 0)
        .map(|end| ticks + end + ticks);
    let link = || {
        let end = text.starts_with('[').then(|| text.find("](")).flatten()?;
        (!text[1..end].contains('[')).then_some(end + 2)
    };
    let first = || text.chars().next().map_or(0, char::len_utf8);
    code.or_else(link).unwrap_or_else(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENTENCE: &str = "A call has two legs, and each of them has a codec and an address.";

    #[test]
    fn long_lines_are_wrapped() {
        let text =
            format!("# Head\n\n- {SENTENCE} {SENTENCE}\n  End.\n\n| {SENTENCE} {SENTENCE} |\n");
        let expected = format!(
            "# Head\n\n- {SENTENCE} A call has two legs, and each of them has a codec\n  and an address. End.\n\n| {SENTENCE} {SENTENCE} |\n"
        );
        assert_eq!(wrapped(&text), expected);
        assert_eq!(wrapped(&expected), expected);
    }

    #[test]
    fn line_of_one_sentence_is_wrapped_and_code_is_left() {
        let long = "word ".repeat(40);
        let text = format!("{long}end.\n");
        let lines = wrapped(&text);
        let lines: Vec<&str> = lines.lines().collect();
        assert!(lines.len() == 2 && lines.iter().all(|line| line.len() <= WIDTH));
        let code = format!("```\n{long}. {long}. A\n```\n    {long}. {long}\n");
        assert_eq!(wrapped(&code), code);
    }

    #[test]
    fn lines_that_cannot_be_divided_are_left() {
        let address = "x".repeat(WIDTH + 1);
        for text in [
            format!("{address}\n"),
            format!("- {address}\n"),
            format!("One.\n{address}\nTwo.\n"),
            format!("`{} b`\n", "a ".repeat(WIDTH)),
            format!("[page]: {address} b\n"),
            format!("{SENTENCE} {SENTENCE}  \nA new line.\n"),
        ] {
            assert_eq!(wrapped(&text), text);
        }
    }

    #[test]
    fn no_line_begins_like_another_element() {
        let words = "word ".repeat(23);
        for sign in ["-", "12.", "#", "<a>"] {
            let text = format!("{words}more {sign} x {words}");
            let lines = wrapped(&text);
            assert!(lines.contains(&format!("\nmore {sign} x")), "{lines}");
            assert_eq!(wrapped(&lines), lines);
        }
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
        let all = ["[0,", "5)", "`a b`", "[the page](x.md),", "`", "é", "[a]"];
        assert_eq!(words(&all.join("  ")), all);
    }

    #[test]
    fn comments_are_wrapped_and_texts_are_not() {
        let long = "word ".repeat(22);
        let source = format!(
            "//! {long} end.\n\nfn a() {{\n    // {long} more.\n    // End.\n    let b = \"\n    // {long} {long}\";\n    /// | {long} {long} |\n    ///\n    //{long}{long}\n}}\n"
        );
        let expected = source.replace(
            &format!("// {long} more.\n    // End."),
            &format!("// {}\n    // more. End.", long.trim_end()),
        );
        assert_eq!(wrapped_comments(&source), expected);
        assert_eq!(wrapped_comments(&expected), expected);
    }

    #[test]
    fn breach_names_the_line() {
        let file = |name: &str, text: String| Text {
            name: name.to_owned(),
            text,
        };
        let long = format!("{SENTENCE} {SENTENCE}");
        let page = file("docs/x.md", format!("# Head\n\n{long}\n"));
        let found = breaches(&[
            page,
            file("a.rs", format!("fn a() {{}}\n// {long}\n")),
            file("a.toml", format!("# {long}\n")),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("docs/x.md:3: ") && found[1].starts_with("a.rs:2: "));
    }
}
