//! Values of fields that actions write whole.

use crate::effects::{Effects, Name, View};
use crate::fact::Names;
use crate::grammar::{fits, takes_any_line};
use crate::scene::Scene;
use crate::template::{Filled, Template};
use wire::sip::{COLON, HeaderId};

/// The value of a field that an action writes.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// The whole field, `name: value`: it is the same in every message.
    Constant(Box<[u8]>),
    /// `name: ` and what comes behind it, with places to fill in.
    Template(Box<[u8]>, Template),
    /// The same where all that comes behind it is the user of From or To, and the header takes any line.
    User(Box<[u8]>, HeaderId, Template),
}

impl Value {
    pub(crate) fn of(name: &Name, template: Template) -> Value {
        match template.constant() {
            Some(value) => Value::Constant([&*name.text, COLON, value].concat().into()),
            None => {
                let begin: Box<[u8]> = [&*name.text, COLON].concat().into();
                match template.user_of().filter(|_| takes_any_line(name.id)) {
                    Some(party) => Value::User(begin, party, template),
                    None => Value::Template(begin, template),
                }
            }
        }
    }
}

/// A header's whole value: added, or in the place of all.
pub(crate) fn whole(
    name: &Name,
    value: &Value,
    scene: &Scene<'_>,
    names: &Names,
    effects: &mut Effects,
    set: bool,
) {
    let mark = effects.mark();
    let (begin, template) = match value {
        Value::Constant(line) => {
            effects.text().extend_from_slice(line);
            return keep(name, mark, effects, set);
        }
        Value::Template(begin, template) => (begin, template),
        Value::User(begin, party, template) => match effects.plain_user(scene, *party) {
            // Nothing of his letters needs a second look.
            Some(user) => {
                effects.text().extend_from_slice(begin);
                effects.text().extend_from_slice(user);
                return match effects.is_full() {
                    true => effects.refuse_from(mark),
                    false => keep(name, mark, effects, set),
                };
            }
            None => (begin, template),
        },
    };
    let mut text = Filled::new();
    template.fill(&View { scene, effects }, names, None, &mut text);
    let text = text.trim_ascii();
    // Nothing to say is no mistake: the header that it comes from is not there.
    if text.is_empty() {
        return;
    }
    effects.text().extend_from_slice(begin);
    effects.text().extend_from_slice(text);
    match effects.is_full() || !fits(name.id, text) {
        true => effects.refuse_from(mark),
        false => keep(name, mark, effects, set),
    }
}

/// Keeps the field that was begun at `mark`.
#[inline]
fn keep(name: &Name, mark: usize, effects: &mut Effects, set: bool) {
    match set {
        true => effects.set(name, mark),
        false => effects.add(name, mark),
    }
}
