//! Words for full-text search, separated and compared as the SQLite store does (FTS5, `unicode61`): letters and digits,
//! without regard to case and diacritics. PostgreSQL's own parser treats host names and versions differently.

use core::fmt::Write as _;
use unicode_normalization::UnicodeNormalization as _;
use unicode_normalization::char::is_combining_mark;

/// Longest word in bytes; PostgreSQL refuses lexemes of 2 KiB.
const MAX_WORD: usize = 512;
/// Words of one call, at most: positions of PostgreSQL end at 16,383.
const MAX_WORDS: usize = 4_096;

/// The words of a text in their order.
fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|character: char| !character.is_alphanumeric() && !is_combining_mark(character))
        .map(|word| {
            let plain = word
                .nfd()
                .filter(|character| !is_combining_mark(*character));
            plain.flat_map(char::to_lowercase).collect::<String>()
        })
        .filter(|word| !word.is_empty() && word.len() <= MAX_WORD)
}

/// The text of a `tsvector` with the positions of the words. Words have letters and digits only, so that quoting them
/// is safe.
pub(super) fn vector(text: &str) -> String {
    let mut out = String::new();
    for (index, word) in words(text).take(MAX_WORDS).enumerate() {
        // Writing into a String cannot fail.
        let _ = write!(out, "'{word}':{} ", index + 1);
    }
    out
}

/// The text of a `tsquery` for all words of a condition; parts that are separated by spaces are phrases. `None`: there
/// is no word in it.
pub(super) fn query(text: &str) -> Option<String> {
    let phrases = text.split_whitespace().filter_map(|phrase| {
        let all: Vec<String> = words(phrase).map(|word| format!("'{word}'")).collect();
        (!all.is_empty()).then(|| format!("({})", all.join(" <-> ")))
    });
    let all: Vec<String> = phrases.collect();
    (!all.is_empty()).then(|| all.join(" & "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_letters_and_digits() {
        assert_eq!(
            vector("Acme-Phone/7.1 'é\\\n"),
            "'acme':1 'phone':2 '7':3 '1':4 'e':5 "
        );
        assert_eq!(
            query("acme-phone É").as_deref(),
            Some("('acme' <-> 'phone') & ('e')")
        );
        assert_eq!(query("\" * '"), None);
    }
}
