//! Header rules: per interface and direction, conditions in CEL over the facts of a message, and typed actions on its
//! headers, addresses and numbers.
//!
//! Rules are compiled when they are loaded ([`RuleSet::compile`]). An invalid rule is refused then, with its location
//! and a remedy ([`RuleError`]). [`RuleSet::run`] evaluates the rules for a message: it reads a [`MessageContext`] and
//! writes [`Effects`], which are header edits for [`wire::sip::emit`] or the composer of the message, a refusal, a
//! trunk, tags and log lines. No content of a message can make a rule produce a malformed message: such an edit is
//! omitted and counted.
#![forbid(unsafe_code)]

mod action;
mod address;
mod condition;
mod context;
mod effects;
mod fact;
mod grammar;
mod interpret;
mod number;
mod prepared;
mod ruleset;
mod spec;
mod template;
mod types;
mod value;

#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;

#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub use fuzz::fuzz_rules;

pub use context::{MessageContext, PeerKind, PeerRef, RuleDirection};
pub use effects::{Effects, RuleLogLine, RuleRefusal, RuleTag};
pub use grammar::{MAX_ADDED, is_reserved_header};
pub use ruleset::{MatchedRule, RuleSet};
pub use spec::{
    ActionSpec, MessageFilter, NumberForm, RuleError, RuleNames, RuleSpec, ValueSelector, Verb,
};
