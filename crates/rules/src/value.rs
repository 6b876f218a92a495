//! Complete field values written by actions.

use crate::context::MessageContext;
use crate::effects::{Effects, HeaderName, MessageView};
use crate::fact::RuleNames;
use crate::grammar::{fits, takes_any_line};
use crate::template::{Filled, Template};
use wire::sip::{COLON, HeaderId};

/// The value of a field that an action writes.
#[derive(Clone, Debug)]
pub(crate) enum ValueTemplate {
    /// The whole field, `name: value`, if it is the same in every message.
    Constant(Box<[u8]>),
    /// `name: ` and a template for the value.
    Template(Box<[u8]>, Template),
    /// The same if the value is the user of From or To and the header accepts any text.
    User(Box<[u8]>, HeaderId, Template),
}

impl ValueTemplate {
    /// The value of a header's field for this template.
    pub(crate) fn of(name: &HeaderName, template: Template) -> ValueTemplate {
        match template.constant() {
            Some(value) => ValueTemplate::Constant([&*name.text, COLON, value].concat().into()),
            None => {
                let begin: Box<[u8]> = [&*name.text, COLON].concat().into();
                match template.user_of().filter(|_| takes_any_line(name.id)) {
                    Some(party) => ValueTemplate::User(begin, party, template),
                    None => ValueTemplate::Template(begin, template),
                }
            }
        }
    }
}

/// Writes a complete header value, added or in place of all others.
pub(crate) fn write_value(
    name: &HeaderName,
    value: &ValueTemplate,
    context: &MessageContext<'_>,
    names: &RuleNames,
    effects: &mut Effects,
    set: bool,
) {
    let mark = effects.mark();
    let (begin, template) = match value {
        ValueTemplate::Constant(line) => {
            effects.text().extend_from_slice(line);
            return keep(name, mark, effects, set);
        }
        ValueTemplate::Template(begin, template) => (begin, template),
        ValueTemplate::User(begin, party, template) => match effects.plain_user(context, *party) {
            // A plain user needs no check.
            Some(user) => {
                effects.text().extend_from_slice(begin);
                effects.text().extend_from_slice(user);
                return match effects.is_full() {
                    true => effects.discard_from(mark),
                    false => keep(name, mark, effects, set),
                };
            }
            None => (begin, template),
        },
    };
    let mut text = Filled::new();
    template.fill(&MessageView { context, effects }, names, None, &mut text);
    let text = text.trim_ascii();
    // An empty value is no error: the header that it is taken from is absent.
    if text.is_empty() {
        return;
    }
    effects.text().extend_from_slice(begin);
    effects.text().extend_from_slice(text);
    match effects.is_full() || !fits(name.id, text) {
        true => effects.discard_from(mark),
        false => keep(name, mark, effects, set),
    }
}

/// Adds or sets the field that was begun at `mark`.
#[inline]
fn keep(name: &HeaderName, mark: usize, effects: &mut Effects, set: bool) {
    match set {
        true => effects.set(name, mark),
        false => effects.add(name, mark),
    }
}
