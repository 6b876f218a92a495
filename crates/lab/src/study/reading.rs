//! Figures that the studies state.

use serde::{Deserialize, Serialize};

/// A figure of a study: a number, or words if the study states no number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reading {
    /// A number.
    Number(f64),
    /// Words.
    Words(String),
}

impl Reading {
    /// As text.
    pub fn text(&self) -> String {
        match self {
            Reading::Number(number) => crate::decimal::plain(*number),
            Reading::Words(words) => words.clone(),
        }
    }

    /// The number.
    pub fn number(&self) -> Option<f64> {
        match self {
            Reading::Number(number) => Some(*number),
            Reading::Words(_) => None,
        }
    }
}
