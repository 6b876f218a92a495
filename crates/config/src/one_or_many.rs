//! A value of a key that may also be a list.

use schemars::JsonSchema;
use serde::Deserialize;

/// One value or several.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum OneOrMany<T> {
    /// One.
    One(T),
    /// Several.
    Many(Vec<T>),
}

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        OneOrMany::Many(Vec::new())
    }
}

impl<T> OneOrMany<T> {
    pub(super) fn as_slice(&self) -> &[T] {
        match self {
            OneOrMany::One(value) => std::slice::from_ref(value),
            OneOrMany::Many(values) => values,
        }
    }

    /// The path of the value at `index` in the document, below `path`.
    pub(super) fn path(&self, path: &str, index: usize) -> String {
        match self {
            OneOrMany::One(_) => path.to_owned(),
            OneOrMany::Many(_) => format!("{path}[{index}]"),
        }
    }
}
