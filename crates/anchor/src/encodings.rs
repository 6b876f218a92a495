//! Encodings of dynamic payload types.

use crate::Side;
use smallvec::SmallVec;

/// A payload type of a side of a media line, with the name of its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadEncoding {
    /// Index of the line.
    pub line: u8,
    /// The side that sends it.
    pub side: Side,
    /// The payload type.
    pub payload_type: u8,
    /// Name of the encoding.
    pub name: &'static str,
}

/// Encodings of the dynamic payload types of a call.
pub type Encodings = SmallVec<[PayloadEncoding; 2]>;
