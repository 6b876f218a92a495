//! Findings of `hornwork check`: as text, coloured on a terminal, and as JSON.

use config::Mistake;
use serde_json::{Value, json};
use std::io::IsTerminal;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingLevel {
    /// The program does not start.
    Mistake,
    /// The program starts, with a setting that is rarely intended.
    Warning,
    /// The program starts with a remark, or does not start on this machine.
    Hint,
    /// Information.
    Remark,
}

impl FindingLevel {
    /// Its name in JSON.
    const fn name(self) -> &'static str {
        match self {
            FindingLevel::Mistake => "mistake",
            FindingLevel::Warning => "warning",
            FindingLevel::Hint => "hint",
            FindingLevel::Remark => "remark",
        }
    }

    /// Its label in text.
    const fn word(self) -> &'static str {
        match self {
            FindingLevel::Warning => "WARNING",
            other => other.name(),
        }
    }

    /// Select Graphic Rendition (ECMA-48): red, yellow, cyan.
    const fn colour(self) -> &'static str {
        match self {
            FindingLevel::Mistake => "1;31",
            FindingLevel::Warning => "1;33",
            FindingLevel::Hint | FindingLevel::Remark => "36",
        }
    }
}

/// A finding about a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    level: FindingLevel,
    message: String,
}

impl Finding {
    /// A finding without a line. The remedy, if any, follows the first semicolon of the message.
    pub fn new(level: FindingLevel, message: impl Into<String>) -> Finding {
        Finding {
            level,
            message: message.into(),
        }
    }

    /// Its severity.
    pub fn level(&self) -> FindingLevel {
        self.level
    }

    /// Its line of text.
    pub fn line(&self, colours: bool) -> String {
        format!(
            "{}: {}",
            paint(self.level.word(), self.level.colour(), colours),
            self.message
        )
    }

    /// Its object in the array of `--json`.
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

/// A mistake as an object in the array of `--json`.
pub fn mistake_json(mistake: &Mistake) -> Value {
    json!({
        "level": FindingLevel::Mistake.name(),
        "file": mistake.file,
        "line": mistake.line,
        "column": mistake.column,
        "message": mistake.message,
        "remedy": mistake.remedy,
    })
}

/// Each mistake with its line.
pub fn mistakes_text(text: &str, mistakes: &[Mistake], colours: bool) -> String {
    let red = |text: &str| paint(text, FindingLevel::Mistake.colour(), colours);
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

/// Whether `stream` gets colours: a terminal, and no NO_COLOR (no-color.org).
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
    fn finding_as_text_and_json() {
        let finding = Finding::new(
            FindingLevel::Warning,
            "interface a: open to all; set `allow`",
        );
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
    fn mistakes_are_coloured_on_request() {
        let mistakes = config::judge("a = \n", "a.toml").mistakes;
        let plain = mistakes_text("a = \n", &mistakes, false);
        assert!(plain.contains("1 mistake\n") && !plain.contains('\x1b'));
        assert!(mistakes_text("a = \n", &mistakes, true).contains("\x1b[1;31m^\x1b[0m"));
    }
}
