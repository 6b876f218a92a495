//! Renamed keys and values. A former name is accepted for one release, with a warning that states the new name.
//!
//! [`apply`] renames keys in the parsed document, before validation. Spans stay, so that messages name the right line.

use super::document::{DocumentEntry, DocumentNode, DocumentValue};
use super::mistake::Mistake;

/// A key that was renamed, or whose values were renamed.
#[derive(Debug)]
pub(super) struct RenamedKey {
    /// The table by its current name, parts separated by dots (`interface.rate_limits`); empty at the top level. Of a
    /// list of tables, each one is searched.
    pub(super) table: &'static str,
    pub(super) old: &'static str,
    /// Equal to `old` where only values were renamed.
    pub(super) new: &'static str,
    pub(super) values: Conversion,
}

/// The change of a value from its former form to the current one.
#[derive(Debug)]
pub(super) enum Conversion {
    Unchanged,
    /// Former and current words.
    Words(&'static [(&'static str, &'static str)]),
    /// The factor between the former unit and the current one.
    Factor(i64),
}

const fn key(table: &'static str, old: &'static str, new: &'static str) -> RenamedKey {
    RenamedKey {
        table,
        old,
        new,
        values: Conversion::Unchanged,
    }
}

/// All renamed keys. The order matters: a table is renamed before the keys in it.
pub(super) const RENAMED: &[RenamedKey] = &[
    key("", "node", "ng_server"),
    key("ng_server", "delete_delay", "delete_delay_s"),
    key("", "room", "conference"),
    key("conference", "seats", "max_participants"),
    key("conference", "rooms", "max_conferences"),
    key("conference", "speakers", "max_speakers"),
    key("conference", "packet_time", "packet_time_ms"),
    key("conference", "mute", "mute_digits"),
    key("conference", "waiting", "max_lobby"),
    key("conference", "max_delay", "max_delay_ms"),
    key("interface", "rates", "rate_limits"),
    key("interface.rate_limits", "calls", "calls_per_s"),
    key(
        "interface.rate_limits",
        "registrations",
        "registrations_per_s",
    ),
    key(
        "interface.rate_limits",
        "source_calls",
        "source_calls_per_s",
    ),
    key(
        "interface.rate_limits",
        "source_registrations",
        "source_registrations_per_s",
    ),
    RenamedKey {
        table: "interface",
        old: "assert",
        new: "assert",
        values: Conversion::Words(&[("proven", "authenticated")]),
    },
    key("trunk", "rates", "rate_limits"),
    key("trunk.rate_limits", "calls", "calls_per_s"),
    key("trunk.rate_limits", "registrations", "registrations_per_s"),
    key("trunk.rate_limits", "source_calls", "source_calls_per_s"),
    key(
        "trunk.rate_limits",
        "source_registrations",
        "source_registrations_per_s",
    ),
    key("trunk", "ping", "ping_interval_s"),
    key("trunk", "answer_timeout", "answer_timeout_s"),
    key("trunk", "feedback", "overload_control"),
    key("trunk.register", "expires", "expires_s"),
    key("realm", "nonce_lifetime", "nonce_lifetime_s"),
    key("registrar", "min_expires", "min_expires_s"),
    key("registrar", "max_expires", "max_expires_s"),
    key("registrar", "default_expires", "default_expires_s"),
    key("registrar", "nat_expires", "nat_expires_s"),
    key("registrar", "flow_timer", "flow_timer_s"),
    key("registrar", "pass_every", "refresh_interval_s"),
    key("registrar", "rate", "registrations_per_s"),
    RenamedKey {
        table: "media",
        old: "node_check",
        new: "node_check_ms",
        values: Conversion::Factor(1000),
    },
    key("media", "node_failure_rate", "node_failure_calls_per_s"),
    key("media", "node_keep", "node_failure_wait_s"),
    key("media", "timeout", "timeout_s"),
    key("media", "hold_timeout", "hold_timeout_s"),
    key("media", "gather", "batching_delay_ms"),
    key("media", "kernel", "kernel_relay"),
    RenamedKey {
        table: "media",
        old: "sockets",
        new: "sockets",
        values: Conversion::Words(&[("one", "shared")]),
    },
    key("sip", "ring_timeout", "ring_timeout_s"),
    key("sip", "coalesce", "batching_delay_ms"),
    key("sip", "trains", "gso"),
    key("sip", "queue", "queueing_delay_ms"),
    key("sip", "refusals", "refusals_percent"),
    key("sip", "feedback", "overload_feedback"),
    key("threads", "processors", "cpus"),
    key("session_timer", "expires", "expires_s"),
    key("session_timer", "min", "min_se_s"),
    key("limits", "connection_idle", "connection_idle_s"),
    key("limits", "handshake", "handshake_timeout_s"),
    key("limits", "connection_queue", "connection_queue_bytes"),
    key("limits", "memory", "memory_mib"),
    key("limits", "processor", "cpu_percent"),
    key("drain", "timeout", "timeout_s"),
];

/// Warning about a key or a value under its former name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenamedKeyWarning {
    /// Line of the file, from 1 on.
    pub line: usize,
    /// Column in characters, from 1 on.
    pub column: usize,
    /// The former and the current name; the remedy follows a semicolon.
    pub message: String,
}

impl core::fmt::Display for RenamedKeyWarning {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

/// Renames former keys and values in `document`. Returns one warning for each of them, and a mistake for each key that
/// is present under both names; the former one is then removed from the document.
pub(super) fn apply(
    document: &mut DocumentNode,
    text: &str,
    file: &str,
) -> (Vec<RenamedKeyWarning>, Vec<Mistake>) {
    let mut renaming = Renaming {
        text,
        file,
        warnings: Vec::new(),
        mistakes: Vec::new(),
    };
    for renamed in RENAMED {
        let parts: Vec<&str> = renamed
            .table
            .split('.')
            .filter(|part| !part.is_empty())
            .collect();
        renaming.descend(document, &parts, renamed);
    }
    (renaming.warnings, renaming.mistakes)
}

struct Renaming<'t> {
    text: &'t str,
    file: &'t str,
    warnings: Vec<RenamedKeyWarning>,
    mistakes: Vec<Mistake>,
}

impl Renaming<'_> {
    /// Finds every table at `path` below `node`.
    fn descend(&mut self, node: &mut DocumentNode, path: &[&str], renamed: &RenamedKey) {
        match &mut node.value {
            DocumentValue::Array(nodes) => {
                for node in nodes {
                    self.descend(node, path, renamed);
                }
            }
            DocumentValue::Table(entries) => match path.split_first() {
                Some((first, rest)) => {
                    for entry in entries.iter_mut().filter(|entry| entry.key == *first) {
                        self.descend(&mut entry.node, rest, renamed);
                    }
                }
                None => self.rename(entries, renamed),
            },
            _ => {}
        }
    }

    fn rename(&mut self, entries: &mut Vec<DocumentEntry>, renamed: &RenamedKey) {
        let Some(at) = entries.iter().position(|entry| entry.key == renamed.old) else {
            return;
        };
        let both =
            renamed.old != renamed.new && entries.iter().any(|entry| entry.key == renamed.new);
        if both {
            let former = entries.remove(at);
            self.mistakes.push(Mistake::new(
                self.text,
                self.file,
                former.key_span,
                format!(
                    "`{}` is the former name of `{}`, and both are present",
                    renamed.old, renamed.new
                ),
                format!("remove `{}`", renamed.old),
            ));
            return;
        }
        let Some(entry) = entries.get_mut(at) else {
            return;
        };
        let word = convert(&mut entry.node.value, &renamed.values);
        if renamed.old == renamed.new && word.is_none() {
            return;
        }
        renamed.new.clone_into(&mut entry.key);
        let place = match renamed.table {
            "" => String::new(),
            table => format!("{table}."),
        };
        let place_in_file = Mistake::new(
            self.text,
            self.file,
            entry.key_span.clone(),
            String::new(),
            String::new(),
        );
        let (old, new) = (renamed.old, renamed.new);
        let change = match (word, &renamed.values) {
            (Some((former, current)), _) => {
                format!("value \"{former}\" of {place}{new} is now \"{current}\"")
            }
            (None, Conversion::Factor(factor)) => {
                format!("{place}{old} is now {place}{new} (multiply the value by {factor})")
            }
            (None, _) => format!("{place}{old} is now {place}{new}"),
        };
        self.warnings.push(RenamedKeyWarning {
            line: place_in_file.line,
            column: place_in_file.column,
            message: format!("{change}; the former name will be refused by the next release"),
        });
    }
}

/// Converts a value. Returns the words where a word was replaced.
fn convert(
    value: &mut DocumentValue,
    conversion: &Conversion,
) -> Option<(&'static str, &'static str)> {
    match (value, conversion) {
        (DocumentValue::Text(text), Conversion::Words(words)) => {
            let &(old, new) = words.iter().find(|pair| pair.0 == text.as_str())?;
            new.clone_into(text);
            Some((old, new))
        }
        (DocumentValue::Integer(number), Conversion::Factor(factor)) => {
            *number = number.saturating_mul(*factor);
            None
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{judge, parse};

    /// A file in which every renamed key and value has its former name.
    const FORMER: &str = include_str!("former_names.toml");

    /// The document of `renamed` alone, under its former or its current name, and the path of the key in it.
    fn snippet(renamed: &RenamedKey, name: &str, value: &str) -> String {
        match renamed.table {
            "" => format!("[{name}]\n"),
            table => format!("[{table}]\n{name} = {value}\n"),
        }
    }

    fn document(text: &str) -> DocumentNode {
        let document = toml_edit::ImDocument::parse(text).unwrap();
        DocumentNode::document(document.as_table(), text.len())
    }

    #[test]
    fn every_former_name_is_replaced_with_a_warning() {
        for renamed in RENAMED {
            let (former, current) = match renamed.values {
                Conversion::Unchanged => ("7".to_owned(), "7".to_owned()),
                Conversion::Words(words) => {
                    (format!("\"{}\"", words[0].0), format!("\"{}\"", words[0].1))
                }
                Conversion::Factor(factor) => ("7".to_owned(), (7 * factor).to_string()),
            };
            let text = format!("\n{}", snippet(renamed, renamed.old, &former));
            let mut before = document(&text);
            let (warnings, mistakes) = apply(&mut before, &text, "f.toml");
            assert_eq!(
                (warnings.len(), mistakes.len()),
                (1, 0),
                "{renamed:?}: {warnings:?}"
            );
            let line = if renamed.table.is_empty() { 2 } else { 3 };
            assert_eq!(warnings[0].line, line, "{warnings:?}");
            assert!(warnings[0].message.contains(renamed.new), "{warnings:?}");
            let expected = document(&snippet(renamed, renamed.new, &current)).to_json();
            assert_eq!(before.to_json(), expected, "{renamed:?}");
        }
    }

    #[test]
    fn a_key_under_both_names_is_a_mistake() {
        for renamed in RENAMED
            .iter()
            .filter(|one| one.old != one.new && !one.table.is_empty())
        {
            let text = format!(
                "[{}]\n{} = 1\n{} = 2\n",
                renamed.table, renamed.new, renamed.old
            );
            let mut both = document(&text);
            let (warnings, mistakes) = apply(&mut both, &text, "f.toml");
            assert_eq!((warnings.len(), mistakes.len()), (0, 1), "{renamed:?}");
            assert_eq!(mistakes[0].line, 3);
            assert!(
                mistakes[0].message.contains(renamed.new)
                    && mistakes[0].message.contains(renamed.old)
            );
        }
    }

    #[test]
    fn a_file_with_former_names_alone_is_accepted() {
        let config =
            parse(FORMER, "former_names.toml").unwrap_or_else(|mistakes| panic!("{mistakes:?}"));
        let warnings = config.renamed_keys;
        for renamed in RENAMED {
            let place = match renamed.table {
                "" => String::new(),
                table => format!("{table}."),
            };
            let expected = match renamed.values {
                Conversion::Words(words) => {
                    format!("value \"{}\" of {place}{}", words[0].0, renamed.new)
                }
                _ => format!("{place}{} is now {place}{}", renamed.old, renamed.new),
            };
            assert!(
                warnings
                    .iter()
                    .any(|warning| warning.message.contains(&expected)),
                "{expected}: {warnings:?}"
            );
        }
        let judged = judge(FORMER, "former_names.toml");
        assert!(judged.mistakes.is_empty() && judged.config.is_some());
    }

    #[test]
    fn every_renamed_key_is_on_the_page_of_renamed_names() {
        let page = include_str!("../../../docs/renamed.md");
        for renamed in RENAMED {
            let (table, old, new) = (renamed.table, renamed.old, renamed.new);
            let rows = match &renamed.values {
                Conversion::Words(words) => words
                    .iter()
                    .map(|(former, current)| format!("| `{table}.{old} {former}` | `{current}` |"))
                    .collect(),
                Conversion::Factor(factor) => vec![format!(
                    "| `{table}.{old}` | `{table}.{new}` (multiply the value by {factor}) |"
                )],
                Conversion::Unchanged if table.is_empty() => {
                    // A table, or a list of tables.
                    let lists = format!("| `[[{old}]]` | `[[{new}]]` |");
                    let tables = format!("| `[{old}]` | `[{new}]` |");
                    vec![if page.contains(&lists) { lists } else { tables }]
                }
                Conversion::Unchanged => vec![format!("| `{table}.{old}` | `{table}.{new}` |")],
            };
            for row in rows {
                assert!(
                    page.lines().any(|line| line == row),
                    "docs/renamed.md: no {row}"
                );
            }
        }
    }

    #[test]
    fn current_names_give_no_warning() {
        let text = "[[interface]]\nname='a'\nlisten='udp:192.0.2.1:5060'\nassert='authenticated'\n[media]\nsockets='shared'\n";
        assert!(parse(text, "f.toml").unwrap().renamed_keys.is_empty());
    }
}
