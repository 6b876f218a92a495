//! SDES: keys in session descriptions. Parses, writes and negotiates the `a=crypto` attribute (RFC 4568).
//!
//! The attribute is as secret as its key: it must be sent over protected signalling, and `Debug` never shows a key.

mod attribute;
mod negotiate;

pub use attribute::{CryptoAttribute, SessionParameters};
pub use negotiate::{Order, Policy, SdesAgreement, accept, answer, offer};

use crate::srtp::KeyError;
use core::fmt;

/// Reason for which an attribute, or an answer, is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Tag, suite or key is missing, or there is unexpected text.
    Syntax(&'static str),
    /// The suite's name is not known.
    UnknownSuite(String),
    /// Policy does not allow the suite.
    SuiteNotAllowed,
    /// A key method other than `inline`.
    KeyMethod,
    /// The key is not base64.
    Base64,
    /// The key is invalid: length, lifetime, identifier.
    Key(KeyError),
    /// Several keys, but not each with an identifier (RFC 4568 section 6.1).
    MkiMissing,
    /// A mandatory session parameter is unknown (RFC 4568 section 6.3.8) or not supported.
    Parameter(String),
    /// A session parameter is repeated.
    Repeated(&'static str),
    /// A session parameter's value is out of range.
    Value(&'static str),
    /// Policy does not allow SRTP or SRTCP without encryption.
    UnencryptedNotAllowed,
    /// Policy does not allow SRTP without authentication.
    UnauthenticatedNotAllowed,
    /// Two attributes of one description share a tag.
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
            Reason::MkiMissing => f.write_str("each of several keys needs a master key identifier"),
            Reason::Parameter(name) => write!(f, "session parameter {name} is not supported"),
            Reason::Repeated(name) => write!(f, "session parameter {name} is repeated"),
            Reason::Value(name) => write!(f, "session parameter {name} is out of range"),
            Reason::UnencryptedNotAllowed => {
                f.write_str("policy does not allow media without encryption")
            }
            Reason::UnauthenticatedNotAllowed => {
                f.write_str("policy does not allow media without authentication")
            }
            Reason::DuplicateTag => f.write_str("another attribute has the same tag"),
            Reason::AnswerCount(count) => {
                write!(f, "the answer has {count} crypto attributes instead of one")
            }
            Reason::TagNotOffered => f.write_str("the answer's tag was not offered"),
            Reason::SuiteChanged => f.write_str("the answer's suite differs from the offer's"),
            Reason::ParametersChanged => {
                f.write_str("the answer's session parameters differ from the offer's")
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

/// A rejected attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedAttribute {
    /// Its tag, if it could be parsed.
    pub tag: Option<u32>,
    /// The reason.
    pub reason: Reason,
}

impl fmt::Display for RejectedAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tag {
            Some(tag) => write!(f, "crypto {tag}: {}", self.reason),
            None => write!(f, "crypto: {}", self.reason),
        }
    }
}
