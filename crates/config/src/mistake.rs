//! Mistakes of a configuration, with position and remedy.

use core::fmt;
use core::ops::Range;

/// One mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Name of the file, as passed to the parser.
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// The bytes of the text that it concerns.
    pub span: Range<usize>,
    /// Description of the mistake.
    pub message: String,
    /// The remedy.
    pub remedy: String,
}

impl Mistake {
    /// A mistake at these bytes of the text of a file.
    pub fn new(
        text: &str,
        file: &str,
        span: Range<usize>,
        message: String,
        remedy: String,
    ) -> Mistake {
        let start = floor_char(text, span.start);
        let before = text.get(..start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Mistake {
            file: file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before.get(line_start..).unwrap_or_default().chars().count() + 1,
            span: start..floor_char(text, span.end).max(start),
            message,
            remedy,
        }
    }
}

/// The last character boundary at or before `at`.
fn floor_char(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}:{}: {}\n  remedy: {}",
            self.file, self.line, self.column, self.message, self.remedy
        )
    }
}

impl std::error::Error for Mistake {}

/// The candidate most similar to `word`, if one is similar enough.
pub fn did_you_mean<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    candidates
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|&(distance, candidate)| distance <= 1 + candidate.len().max(word.len()) / 3)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edit distance of two words (restricted Damerau-Levenshtein), without regard to case.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.to_lowercase().chars().take(64).collect();
    let b: Vec<char> = b.to_lowercase().chars().take(64).collect();
    let mut rows = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1)
                .min(rows[i][j - 1] + 1)
                .min(rows[i - 1][j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}
