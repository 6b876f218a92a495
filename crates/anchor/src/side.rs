//! The sides of a call.

use serde::{Deserialize, Serialize};

/// A side of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// The caller.
    Caller,
    /// The callee.
    Callee,
}

impl Side {
    /// Both sides.
    pub const BOTH: [Side; 2] = [Side::Caller, Side::Callee];

    /// The opposite side.
    pub const fn other(self) -> Side {
        match self {
            Side::Caller => Side::Callee,
            Side::Callee => Side::Caller,
        }
    }

    /// 0 for the caller, 1 for the callee.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name in events.
    pub const fn name(self) -> &'static str {
        match self {
            Side::Caller => "caller",
            Side::Callee => "callee",
        }
    }
}
