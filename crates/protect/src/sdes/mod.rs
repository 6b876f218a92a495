//! Keys in session descriptions: the `a=crypto` attribute (RFC 4568) read, written and agreed on.
//!
//! The line is as secret as the key in it: whoever carries it must see to it that signalling is protected, and nothing here
//! shows a key in `Debug`.

mod attribute;
mod negotiate;

pub use attribute::{CryptoAttribute, SessionParameters};
pub use negotiate::{Agreed, Order, Policy, accept, answer, offer};

use crate::srtp::KeyError;
use core::fmt;

/// Why an attribute, or a choice among several, is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Tag, suite or key is missing, or something stands where nothing may.
    Syntax(&'static str),
    /// The suite has no name that we know.
    UnknownSuite(String),
    /// Policy does not allow the suite.
    SuiteNotAllowed,
    /// A key method other than `inline`.
    KeyMethod,
    /// The key is no base64.
    Base64,
    /// The key does not fit: length, lifetime, identifier.
    Key(KeyError),
    /// Several keys, but not each with an identifier (RFC 4568 section 6.1).
    MkiMissing,
    /// A session parameter that we do not know and must (RFC 4568 section 6.3.8), or do not support.
    Parameter(String),
    /// A session parameter stands twice.
    Repeated(&'static str),
    /// A session parameter's value is out of its range.
    Value(&'static str),
    /// Policy does not allow SRTP or SRTCP without encryption.
    UnencryptedNotAllowed,
    /// Policy does not allow SRTP without authentication.
    UnauthenticatedNotAllowed,
    /// Two attributes of one description have the same tag.
    DuplicateTag,
    /// The answer has no attribute, or more than one.
    AnswerCount(usize),
    /// The answer's tag was not offered.
    TagNotOffered,
    /// The answer has another suite than the offer under the same tag.
    SuiteChanged,
    /// The answer has other negotiated parameters than the offer.
    ParametersChanged,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Syntax(what) => write!(f, "the attribute is malformed: {what}"),
            Reason::UnknownSuite(name) => write!(f, "unknown crypto suite {name}"),
            Reason::SuiteNotAllowed => f.write_str("policy does not allow this crypto suite"),
            Reason::KeyMethod => f.write_str("the key method is not inline"),
            Reason::Base64 => f.write_str("the key is not base64"),
            Reason::Key(error) => error.fmt(f),
            Reason::MkiMissing => {
                f.write_str("with several keys each needs a master key identifier")
            }
            Reason::Parameter(name) => write!(f, "session parameter {name} is not supported"),
            Reason::Repeated(name) => write!(f, "session parameter {name} stands twice"),
            Reason::Value(name) => write!(f, "session parameter {name} is out of its range"),
            Reason::UnencryptedNotAllowed => {
                f.write_str("policy does not allow media without encryption")
            }
            Reason::UnauthenticatedNotAllowed => {
                f.write_str("policy does not allow media without authentication")
            }
            Reason::DuplicateTag => f.write_str("another attribute has the same tag"),
            Reason::AnswerCount(count) => {
                write!(f, "the answer must have one crypto attribute, not {count}")
            }
            Reason::TagNotOffered => f.write_str("the answer's tag was not offered"),
            Reason::SuiteChanged => f.write_str("the answer's suite is not the offer's"),
            Reason::ParametersChanged => {
                f.write_str("the answer's session parameters are not the offer's")
            }
        }
    }
}

impl std::error::Error for Reason {}

impl From<KeyError> for Reason {
    fn from(error: KeyError) -> Reason {
        Reason::Key(error)
    }
}

/// An attribute that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its tag, where it could be read.
    pub tag: Option<u32>,
    /// Why.
    pub reason: Reason,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tag {
            Some(tag) => write!(f, "crypto {tag}: {}", self.reason),
            None => write!(f, "crypto: {}", self.reason),
        }
    }
}
