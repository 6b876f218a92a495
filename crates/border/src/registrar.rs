//! The location store.

/// Name of the URI parameter by which a passed registration's contact is found again.
pub const TOKEN: &[u8] = b"hw";
