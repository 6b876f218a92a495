//! Calls.

pub(crate) mod headers;

/// Which side of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that called.
    Caller,
    /// The side that was called.
    Callee,
}

impl Side {
    /// The opposite side.
    pub fn other(self) -> Side {
        match self {
            Side::Caller => Side::Callee,
            Side::Callee => Side::Caller,
        }
    }

    /// 0 for the caller, 1 for the callee.
    pub fn index(self) -> usize {
        self as usize
    }

    /// For events.
    pub fn name(self) -> &'static str {
        match self {
            Side::Caller => "caller",
            Side::Callee => "callee",
        }
    }
}
