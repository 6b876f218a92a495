//! Rules as configured, before compilation.

use crate::context::{PeerKind, RuleDirection};
use core::fmt;

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSpec {
    /// Name for logs and `hornwork rules try`.
    pub name: String,
    /// Interfaces to which it applies, as indices into [`RuleNames::interfaces`]. Empty: all.
    pub interfaces: Vec<u16>,
    /// Kinds of peers to which it applies. Empty: all.
    pub kinds: Vec<PeerKind>,
    /// Trunks to which it applies, as indices into [`RuleNames::trunks`]. Empty: all, and peers that are not trunks.
    pub trunks: Vec<u16>,
    /// Received or sent messages.
    pub direction: RuleDirection,
    /// Requests, responses or both.
    pub on: MessageFilter,
    /// Methods (of a response: that of its request). Empty: all.
    pub methods: Vec<String>,
    /// Condition in CEL; `None` for always.
    pub when: Option<String>,
    /// Actions, applied in order.
    pub actions: Vec<ActionSpec>,
    /// Whether later rules are skipped after this one was applied.
    pub stop: bool,
}

/// Message types to which a rule applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MessageFilter {
    /// Requests and responses.
    #[default]
    Any,
    /// Requests.
    Request,
    /// Responses.
    Response,
}

/// Declares the operations once: type, list and configuration keys.
macro_rules! verbs {
    ($($(#[$doc:meta])* $verb:ident $name:literal,)+) => {
        /// Operation of an action.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Verb {
            $($(#[$doc])* $verb,)+
        }

        impl Verb {
            /// All operations.
            pub const ALL: [Verb; [$(Verb::$verb),+].len()] = [$(Verb::$verb),+];

            /// The configuration key of the operation.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Verb::$verb => $name,)+
                }
            }
        }
    };
}

verbs! {
    /// Add a header field behind the others of its name.
    Add "add",
    /// Set the header to this one value.
    Set "set",
    /// Remove the header, one of its values, or a part of an address.
    Remove "remove",
    /// Replace the matches of a regular expression.
    Replace "replace",
    /// Change a part of an address.
    Rewrite "rewrite",
    /// Convert the number of an address to another form.
    Number "number",
    /// Refuse the request.
    Reject "reject",
    /// Route the request to this trunk.
    Route "route",
    /// Store a value with the call.
    Tag "tag",
    /// Write a log line.
    Log "log",
}

/// The values of a header to which an action applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSelector {
    /// The first value.
    First,
    /// The last value.
    Last,
    /// All values.
    All,
    /// The value with this number, counted from 1.
    Number(u16),
}

/// Form of a telephone number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberForm {
    /// `+` and country code (E.164, written as in RFC 3966).
    E164,
    /// Country code without `+`.
    Digits,
    /// As dialled within the country.
    National,
}

/// An action. Its verb determines the fields that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionSpec {
    /// The operation.
    pub verb: Verb,
    /// The object: a header name, `Request-URI`, a trunk, a tag name, a status, or the text of a log line.
    pub object: String,
    /// The value: a template.
    pub value: Option<String>,
    /// Part of an address: `user`, `host`, `port`, `scheme`, `display`, `params.NAME`, `uri-params.NAME`.
    pub part: Option<String>,
    /// The values to which it applies.
    pub which: Option<ValueSelector>,
    /// Regular expression.
    pub regex: Option<String>,
    /// Replacement of a match: a template with captures.
    pub with: Option<String>,
    /// Form of the number.
    pub form: Option<NumberForm>,
    /// Country code, digits.
    pub country: Option<String>,
    /// Prefix of national numbers.
    pub national_prefix: Option<String>,
    /// Number of digits of national numbers without a prefix.
    pub national_digits: Option<u32>,
    /// Prefix of a country code.
    pub international_prefix: Option<String>,
    /// Number of leading characters to remove.
    pub strip: Option<u32>,
    /// Prefix to add.
    pub prefix: Option<String>,
    /// Reason phrase.
    pub reason: Option<String>,
}

impl ActionSpec {
    /// An action with an object and no further fields.
    pub fn new(verb: Verb, object: impl Into<String>) -> ActionSpec {
        ActionSpec {
            verb,
            object: object.into(),
            value: None,
            part: None,
            which: None,
            regex: None,
            with: None,
            form: None,
            country: None,
            national_prefix: None,
            national_digits: None,
            international_prefix: None,
            strip: None,
            prefix: None,
            reason: None,
        }
    }
}

/// Names of the configuration that rules may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleNames {
    /// Interfaces, in the order of their indices.
    pub interfaces: Vec<String>,
    /// Trunks, in the order of their indices.
    pub trunks: Vec<String>,
}

/// An error of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    /// Index of the rule, counted from 0.
    pub rule: usize,
    /// Key within the rule: `when`, `do[2].regex`; empty for the whole rule.
    pub path: String,
    /// Description of the error.
    pub message: String,
    /// Remedy.
    pub remedy: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rules[{}].{}: {} (remedy: {})",
            self.rule, self.path, self.message, self.remedy
        )
    }
}

/// An error without its location, which the compiler of the rule adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Diagnosis {
    pub(crate) message: String,
    pub(crate) remedy: String,
}

impl Diagnosis {
    pub(crate) fn new(message: impl Into<String>, remedy: impl Into<String>) -> Diagnosis {
        Diagnosis {
            message: message.into(),
            remedy: remedy.into(),
        }
    }
}
