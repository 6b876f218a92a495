//! Rules as they are written, before they are compiled.

use crate::scene::{Direction, Kind};
use core::fmt;

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSpec {
    /// Its name for logs and for `hornwork rules try`.
    pub name: String,
    /// Interfaces at which it holds, as indices into [`Known::interfaces`]. Empty: all.
    pub interfaces: Vec<u16>,
    /// Kinds of places at which it holds. Empty: all.
    pub kinds: Vec<Kind>,
    /// Trunks with which it holds, as indices into [`Known::trunks`]. Empty: all, and none.
    pub trunks: Vec<u16>,
    /// Messages that come, or messages that leave.
    pub direction: Direction,
    /// Requests, responses or both.
    pub on: On,
    /// Methods (of a response: that of its request). Empty: all.
    pub methods: Vec<String>,
    /// Condition in CEL; `None`: always.
    pub when: Option<String>,
    /// What is done, in order.
    pub actions: Vec<ActionSpec>,
    /// Whether later rules are left out where this one was carried out.
    pub stop: bool,
}

/// Which messages a rule looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum On {
    /// Requests and responses.
    #[default]
    Any,
    /// Requests.
    Request,
    /// Responses.
    Response,
}

/// What an action does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// A header of that name behind all others.
    Add,
    /// The header has this one value, whatever it had.
    Set,
    /// The header, one of its values, or a part of an address goes.
    Remove,
    /// What an expression matches becomes something else.
    Replace,
    /// A part of an address becomes something else.
    Rewrite,
    /// The number of an address takes another form.
    Number,
    /// The request is refused.
    Reject,
    /// The request goes to this trunk.
    Route,
    /// A value is kept with the call.
    Tag,
    /// A line for the log.
    Log,
}

impl Verb {
    /// All of them.
    pub const ALL: [Verb; 10] = [
        Verb::Add,
        Verb::Set,
        Verb::Remove,
        Verb::Replace,
        Verb::Rewrite,
        Verb::Number,
        Verb::Reject,
        Verb::Route,
        Verb::Tag,
        Verb::Log,
    ];

    /// The key with which it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Verb::Add => "add",
            Verb::Set => "set",
            Verb::Remove => "remove",
            Verb::Replace => "replace",
            Verb::Rewrite => "rewrite",
            Verb::Number => "number",
            Verb::Reject => "reject",
            Verb::Route => "route",
            Verb::Tag => "tag",
            Verb::Log => "log",
        }
    }
}

/// Which values of a header an action takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The first.
    First,
    /// The last.
    Last,
    /// Every one.
    All,
    /// This one, counted from 1.
    Number(u16),
}

/// The form of a telephone number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `+` and country code (E.164, as RFC 3966 writes it).
    E164,
    /// The same without `+`.
    Digits,
    /// As it is dialled inside the country.
    National,
}

/// One action; which of the fields it takes follows from its verb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionSpec {
    /// What it does.
    pub verb: Verb,
    /// What it does it to: a header's name, `Request-URI`, a trunk, a tag's name, a status, or the text of a log line.
    pub object: String,
    /// The value: a template.
    pub value: Option<String>,
    /// Part of an address: `user`, `host`, `port`, `scheme`, `display`, `params.NAME`, `uri-params.NAME`.
    pub part: Option<String>,
    /// Which values.
    pub which: Option<Which>,
    /// Regular expression.
    pub regex: Option<String>,
    /// What the expression's match becomes: a template with captures.
    pub with: Option<String>,
    /// Form of a number.
    pub form: Option<Form>,
    /// Country code, digits.
    pub country: Option<String>,
    /// What is dialled before a number of the own country.
    pub national_prefix: Option<String>,
    /// What is dialled before a country code.
    pub international_prefix: Option<String>,
    /// Leading characters taken off.
    pub strip: Option<u32>,
    /// Put in front.
    pub prefix: Option<String>,
    /// Reason phrase.
    pub reason: Option<String>,
}

impl ActionSpec {
    /// An action with nothing but its object.
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
            international_prefix: None,
            strip: None,
            prefix: None,
            reason: None,
        }
    }
}

/// The names that rules may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Interfaces, in the order of their indices.
    pub interfaces: Vec<String>,
    /// Trunks, in the order of their indices.
    pub trunks: Vec<String>,
}

/// Why a rule cannot work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which rule, counted from 0.
    pub rule: usize,
    /// Where in it: `when`, `do[2].regex`; empty: the rule as a whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rules[{}].{}: {} (remedy: {})",
            self.rule, self.path, self.message, self.remedy
        )
    }
}

/// A fault without its place, which whoever compiles the rule knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) message: String,
    pub(crate) remedy: String,
}

impl Wrong {
    pub(crate) fn new(message: impl Into<String>, remedy: impl Into<String>) -> Wrong {
        Wrong {
            message: message.into(),
            remedy: remedy.into(),
        }
    }
}
