//! Header rules: per interface and direction, conditions in CEL over the facts of a message, and typed actions on its
//! headers, addresses and numbers.
//!
//! Everything is compiled when it is loaded ([`RuleSet::compile`]): a rule that cannot work is refused then, with the place
//! and a remedy ([`Fault`]). A message is judged by [`RuleSet::run`], which reads a [`Scene`] and writes [`Effects`]: edits
//! for [`wire::sip::emit`] or for whoever composes the message, a refusal, a trunk, tags, lines for the log. Nothing that a
//! message says makes a rule produce a malformed one: such an edit is left out and counted.
#![forbid(unsafe_code)]

mod action;
mod address;
mod condition;
mod effects;
mod fact;
mod grammar;
mod interpret;
mod joined;
mod number;
mod ruleset;
mod scene;
mod spec;
mod template;
mod types;
mod value;

#[doc(hidden)]
pub mod fuzz;

#[doc(hidden)]
pub use fuzz::fuzz_rules;

pub use effects::{Effects, Line, Refusal, Tag};
pub use grammar::{MAX_ADDED, left_to_the_border};
pub use ruleset::{Hit, RuleSet};
pub use scene::{Direction, Kind, Place, Scene};
pub use spec::{ActionSpec, Fault, Form, Known, On, RuleSpec, Verb, Which};
