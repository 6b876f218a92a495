//! Keys of experiment files under the names of earlier releases: accepted for one release, with a warning.
//!
//! Files, `--set` and the keys in `levels.set` all use [`RENAMED_KEYS`].

use std::ops::Range;
use toml_edit::{ImDocument, TableLike};

/// Old and new dotted paths, applied in order: keys of a renamed table are listed under its new name. A rename never
/// moves a key to another table.
pub(super) const RENAMED_KEYS: &[(&str, &str)] = &[
    ("subject", "sut"),
    ("sut.none", "sut.direct"),
    ("sut.call_limit", "sut.call_limit_per_second"),
    ("sut.nodes", "sut.media_nodes"),
    ("sut.nodes_drained", "sut.media_nodes_drained"),
    ("sut.processor_percent", "sut.cpu_percent"),
    ("sut.process", "sut.process_id"),
    ("sut.realtime", "sut.realtime_priority"),
    ("generator.realtime", "generator.realtime_priority"),
    ("callers.seconds", "callers.duration_seconds"),
    ("streams.seconds", "streams.duration_seconds"),
    ("conference.seconds", "conference.duration_seconds"),
    ("conference.rooms", "conference.count"),
    ("conference.seats", "conference.participants"),
    ("peak.seconds", "peak.trial_seconds"),
    ("registrations.expires", "registrations.expires_seconds"),
    ("registrations.at", "registrations.registrar"),
    ("link.mbit", "link.rate_mbit"),
    ("link.queue", "link.queue_packets"),
    ("link.shares", "link.isolated"),
];

/// The current path of a renamed key, or of a key in a renamed table; `None` if the path is current.
pub(super) fn current_path(path: &str) -> Option<String> {
    let mut current = path.to_owned();
    for (old, new) in RENAMED_KEYS {
        let rest = current
            .strip_prefix(old)
            .filter(|rest| rest.is_empty() || rest.starts_with('.'));
        if let Some(rest) = rest {
            current = format!("{new}{rest}");
        }
    }
    (current != path).then_some(current)
}

/// The warning about a key under its old name.
pub(super) fn renamed_key_warning(old: &str, new: &str) -> String {
    format!("the key {old} is now called {new}; the old name is accepted until the next release")
}

/// A part of the text that contains an old name.
struct OldName {
    span: Range<usize>,
    replacement: String,
    warning: String,
}

/// The text with current names of keys, and warnings about old ones. The number of lines and the order of keys stay the
/// same. Text that is not TOML is returned unchanged; its reader reports the error.
pub(super) fn with_current_keys(text: &str) -> (String, Vec<String>) {
    let mut text = text.to_owned();
    let mut warnings = Vec::new();
    // Each round replaces one old name. Spans are valid for one replacement only, so the text is parsed again.
    while let Some(old) = first_old_name(&text) {
        text.replace_range(old.span, &old.replacement);
        if !warnings.contains(&old.warning) {
            warnings.push(old.warning);
        }
    }
    (text, warnings)
}

fn first_old_name(text: &str) -> Option<OldName> {
    let document = ImDocument::parse(text).ok()?;
    old_key_in(document.as_table(), "").or_else(|| old_path_in_sweep(document.as_table()))
}

/// The first old key in document order; tables before their keys.
fn old_key_in(table: &dyn TableLike, parent: &str) -> Option<OldName> {
    table.iter().find_map(|(name, item)| {
        let path = match parent {
            "" => name.to_owned(),
            parent => format!("{parent}.{name}"),
        };
        let renamed = current_path(&path).and_then(|new| {
            let (key, _) = table.get_key_value(name)?;
            Some(OldName {
                span: key.span()?,
                replacement: new.rsplit('.').next()?.to_owned(),
                warning: renamed_key_warning(&path, &new),
            })
        });
        renamed.or_else(|| old_key_in(item.as_table_like()?, &path))
    })
}

/// The first old path in `levels.set`.
fn old_path_in_sweep(document: &dyn TableLike) -> Option<OldName> {
    let levels = document.get("levels")?.as_table_like()?;
    levels.get("set")?.as_array()?.iter().find_map(|value| {
        let old = value.as_str()?;
        let new = current_path(old)?;
        Some(OldName {
            span: value.span()?,
            warning: renamed_key_warning(old, &new),
            replacement: format!("\"{new}\""),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renames_stay_in_their_table_and_do_not_chain() {
        for (old, new) in RENAMED_KEYS {
            let parent = |path: &str| path.rsplit_once('.').map(|(parent, _)| parent.to_owned());
            assert_eq!(parent(old), parent(new), "{old}");
            assert_eq!(current_path(new), None, "{new}");
        }
    }

    #[test]
    fn every_renamed_key_is_on_the_page_of_renamed_names() {
        let page = include_str!("../../../../docs/renamed.md");
        for (old, new) in RENAMED_KEYS {
            // The page has the name of a table in the same release as that of its key.
            let old = match old.strip_prefix("sut.") {
                Some(key) => format!("subject.{key}"),
                None => (*old).to_owned(),
            };
            let row = format!("| `{old}` | `{new}` |");
            assert!(
                page.lines().any(|line| line == row),
                "docs/renamed.md: no {row}"
            );
        }
    }

    #[test]
    fn all_forms_of_old_keys_are_found() {
        let forms = [
            ("[subject]\nnone = true\n", "[sut]\ndirect = true\n"),
            (
                "subject.none = true\nsubject.cpu = 1\n",
                "sut.direct = true\nsut.cpu = 1\n",
            ),
            ("subject = { none = true }\n", "sut = { direct = true }\n"),
            ("[ \"subject\" ] # here\n", "[ sut ] # here\n"),
            (
                "[levels]\nset = [ 'subject.none', \"callers.rate\" ]\n",
                "[levels]\nset = [ \"sut.direct\", \"callers.rate\" ]\n",
            ),
        ];
        for (old, new) in forms {
            let (text, warnings) = with_current_keys(old);
            assert_eq!(text, new);
            assert!(!warnings.is_empty(), "{old}");
            assert_eq!(with_current_keys(new), (new.to_owned(), Vec::new()));
        }
        assert_eq!(with_current_keys("= no TOML").0, "= no TOML");
    }
}
