//! Results of `hornwork check` one by one: for a person with colours where a terminal is, for programs as JSON.

use border::config::Mistake;
use serde_json::{Value, json};
use std::io::IsTerminal;

/// How much a finding weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The program does not start with it.
    Mistake,
    /// It starts, and does something that few want.
    Warning,
    /// It starts here with a remark, or not on this machine.
    Hint,
    /// Worth knowing.
    Remark,
}

impl Level {
    /// The word in JSON.
    const fn name(self) -> &'static str {
        match self {
            Level::Mistake => "mistake",
            Level::Warning => "warning",
            Level::Hint => "hint",
            Level::Remark => "remark",
        }
    }

    /// The word in front of a line for people.
    const fn word(self) -> &'static str {
        match self {
            Level::Warning => "WARNING",
            other => other.name(),
        }
    }

    /// Select Graphic Rendition (ECMA-48): red, yellow, cyan.
    const fn colour(self) -> &'static str {
        match self {
            Level::Mistake => "1;31",
            Level::Warning => "1;33",
            Level::Hint | Level::Remark => "36",
        }
    }
}

/// Something that is said about a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    level: Level,
    message: String,
}

impl Finding {
    /// A finding without a line of its own. The remedy, where there is one, stands behind the first semicolon of the message.
    pub fn new(level: Level, message: impl Into<String>) -> Finding {
        Finding {
            level,
            message: message.into(),
        }
    }

    /// How much it weighs.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Its line for people.
    pub fn line(&self, colours: bool) -> String {
        format!(
            "{}: {}",
            paint(self.level.word(), self.level.colour(), colours),
            self.message
        )
    }

    /// An object of the array that `--json` gives.
    pub fn json(&self, file: &str) -> Value {
        let (message, remedy) = match self.message.split_once("; ") {
            Some((message, remedy)) => (message, Some(remedy)),
            None => (self.message.as_str(), None),
        };
        json!({
            "level": self.level.name(),
            "file": file,
            "line": null,
            "message": message,
            "remedy": remedy,
        })
    }
}

/// A mistake as an object of the array that `--json` gives.
pub fn mistake_json(mistake: &Mistake) -> Value {
    json!({
        "level": Level::Mistake.name(),
        "file": mistake.file,
        "line": mistake.line,
        "column": mistake.column,
        "message": mistake.message,
        "remedy": mistake.remedy,
    })
}

/// Each mistake with the line it is about.
pub fn mistakes_text(text: &str, mistakes: &[Mistake], colours: bool) -> String {
    let red = |text: &str| paint(text, Level::Mistake.colour(), colours);
    let mut out = String::new();
    for mistake in mistakes {
        let line = text
            .lines()
            .nth(mistake.line.saturating_sub(1))
            .unwrap_or_default();
        out.push_str(&format!(
            "{}:{}:{}: {}\n  {:>4} | {line}\n       | {}{}\n  remedy: {}\n",
            mistake.file,
            mistake.line,
            mistake.column,
            red(&mistake.message),
            mistake.line,
            " ".repeat(mistake.column.saturating_sub(1)),
            red("^"),
            mistake.remedy
        ));
    }
    let count = mistakes.len();
    out.push_str(&format!(
        "{count} mistake{}\n",
        if count == 1 { "" } else { "s" }
    ));
    out
}

/// Whether colours are wanted there: a terminal, and no NO_COLOR (no-color.org).
pub fn colours(stream: &impl IsTerminal) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !refused
}

fn paint(text: &str, colour: &str, colours: bool) -> String {
    match colours {
        true => format!("\x1b[{colour}m{text}\x1b[0m"),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_for_people_and_for_programs() {
        let finding = Finding::new(Level::Warning, "interface a: open to all; set `allow`");
        assert_eq!(
            finding.line(false),
            "WARNING: interface a: open to all; set `allow`"
        );
        assert!(finding.line(true).starts_with("\x1b[1;33mWARNING\x1b[0m: "));
        let json = finding.json("a.toml");
        assert_eq!(json["level"], "warning");
        assert_eq!(json["message"], "interface a: open to all");
        assert_eq!(json["remedy"], "set `allow`");
        assert!(json["line"].is_null());
    }

    #[test]
    fn mistakes_have_colour_where_it_is_wanted() {
        let mistakes = border::config::judge("a = \n", "a.toml").mistakes;
        let plain = mistakes_text("a = \n", &mistakes, false);
        assert!(plain.contains("1 mistake\n") && !plain.contains('\x1b'));
        assert!(mistakes_text("a = \n", &mistakes, true).contains("\x1b[1;31m^\x1b[0m"));
    }
}
