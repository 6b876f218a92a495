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
    /// Line and column of the file, from 1 on, if it is about one.
    place: Option<(usize, usize)>,
    message: String,
}

impl Finding {
    /// A finding without a line. The remedy, if any, follows the first semicolon of the message.
    pub fn new(level: FindingLevel, message: impl Into<String>) -> Finding {
        Finding {
            level,
            place: None,
            message: message.into(),
        }
    }

    /// The same about a line and a column of the file.
    pub fn at(self, line: usize, column: usize) -> Finding {
        Finding {
            place: Some((line, column)),
            ..self
        }
    }

    /// Its severity.
    pub fn level(&self) -> FindingLevel {
        self.level
    }

    /// Its line of text, with the place in `file` like that of mistakes.
    pub fn line(&self, file: &str, colours: bool) -> String {
        let place = self.place.map_or(String::new(), |(line, column)| {
            format!("{file}:{line}:{column}: ")
        });
        format!(
            "{}: {place}{}",
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
        let (line, column) = self.place.unzip();
        json!({
            "level": self.level.name(),
            "file": file,
            "line": line,
            "column": column,
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
        let line = text.lines().nth(mistake.line.saturating_sub(1));
        let line = without_secrets(line.unwrap_or_default());
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

/// A line of a configuration with stars in place of passwords: the journal has it if the service does not start. The
/// number of characters is the same.
fn without_secrets(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('=') {
        let (front, value) = rest.split_at(at + 1);
        shown.push_str(front);
        rest = value;
        let key = front.trim_end_matches('=').trim_end();
        let key = key.trim_matches(['"', '\'']);
        let is_key = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let key = key.rsplit(|c: char| !is_key(c)).next().unwrap_or_default();
        if config::is_secret(key) {
            // To the end of the line: with a mistake in it, its quotes do not tell where the value ends.
            let star = |c: char| if c.is_whitespace() { c } else { '*' };
            shown.extend(value.chars().map(star));
            return shown;
        }
    }
    shown + rest
}

/// Mistakes that [`mistakes_line`] names.
const NAMED: usize = 3;

/// The first mistakes with their places and remedies, and their number, in one line for logs and responses.
pub fn mistakes_line(mistakes: &[Mistake]) -> String {
    let named: Vec<String> = mistakes
        .iter()
        .take(NAMED)
        .map(|mistake| {
            format!(
                "{}:{}:{}: {}; {}",
                mistake.file, mistake.line, mistake.column, mistake.message, mistake.remedy
            )
        })
        .collect();
    let count = match mistakes.len() {
        1 => "1 mistake".to_owned(),
        count if count > NAMED => format!("{count} mistakes, the first"),
        count => format!("{count} mistakes"),
    };
    // Messages of the TOML parser may have several lines.
    format!("{count}: {}", named.join(" | ")).replace('\n', " ")
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
            finding.line("a.toml", false),
            "WARNING: interface a: open to all; set `allow`"
        );
        assert!(
            finding
                .line("a.toml", true)
                .starts_with("\x1b[1;33mWARNING\x1b[0m: ")
        );
        let json = finding.json("a.toml");
        assert_eq!(json["level"], "warning");
        assert_eq!(json["message"], "interface a: open to all");
        assert_eq!(json["remedy"], "set `allow`");
        assert!(json["line"].is_null());
        let there = finding.at(7, 3);
        assert_eq!(
            there.line("a.toml", false),
            "WARNING: a.toml:7:3: interface a: open to all; set `allow`"
        );
        assert_eq!(there.json("a.toml")["line"], 7);
        assert_eq!(there.json("a.toml")["column"], 3);
        assert_eq!(there.json("a.toml")["message"], json["message"]);
    }

    #[test]
    fn mistakes_in_one_line_are_bounded_and_counted() {
        let text =
            "[[interface]]\nname = \"x\"\nlisten = \"udp:192.0.2.1:5060\"\nalow = \"10.0.0.0/8\"\n";
        let one = mistakes_line(&config::judge(text, "a.toml").mistakes);
        assert_eq!(
            one,
            "1 mistake: a.toml:4:1: unknown key `alow` in `interface`; did you mean `allow`?"
        );
        let many: String = (0..9).map(|n| format!("key{n} = 1\n")).collect();
        let many = mistakes_line(&config::judge(&many, "a.toml").mistakes);
        assert!(
            many.starts_with("9 mistakes, the first: a.toml:1:1: "),
            "{many}"
        );
        assert!(
            many.contains("`key2`") && !many.contains("`key3`"),
            "{many}"
        );
        assert!(!many.contains('\n'), "{many}");
    }

    #[test]
    fn passwords_are_not_shown_with_a_mistake() {
        for (line, shown) in [
            ("password = \"geheim\"", "password = ********"),
            ("pasword=\"ge\\\"heim\" # x", "pasword=********** * *"),
            (
                "{ name = \"a\", password = \"x yz\", x = 1 }",
                "{ name = \"a\", password = ** **** * * * *",
            ),
            ("password = geheim", "password = ******"),
            ("\"password\" = \"geheim", "\"password\" = *******"),
            ("pin = 1234, name = \"b\"", "pin = ***** **** * ***"),
            ("password = \"ge\"heim\"", "password = *********"),
            ("pasword = \"\"\"geheim\"\"\"", "pasword = ************"),
            ("password = ge,heim", "password = *******"),
            ("name = \"password\"", "name = \"password\""),
            ("a = \"b=c\"", "a = \"b=c\""),
        ] {
            assert_eq!(without_secrets(line), shown);
        }
        let text = "[[user]]\nname = \"a\"\npasword = \"geheim\"\n";
        let mistakes = config::judge(text, "a.toml").mistakes;
        let shown = mistakes_text(text, &mistakes, false);
        assert!(shown.contains("unknown key `pasword`"), "{shown}");
        assert!(!shown.contains("geheim"), "{shown}");
    }

    #[test]
    fn mistakes_are_coloured_on_request() {
        let mistakes = config::judge("a = \n", "a.toml").mistakes;
        let plain = mistakes_text("a = \n", &mistakes, false);
        assert!(plain.contains("1 mistake\n") && !plain.contains('\x1b'));
        assert!(mistakes_text("a = \n", &mistakes, true).contains("\x1b[1;31m^\x1b[0m"));
    }
}
