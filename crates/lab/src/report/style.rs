//! Style of the pages.

/// Style of every page.
pub(crate) const STYLE: &str = include_str!("style.css");
