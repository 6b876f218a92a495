//! Preparation of actions whose result is the same for every message.

use crate::action::Action;
use crate::effects::Effects;
use crate::value::ValueTemplate;

/// Combines consecutive actions with constant fields, and a following field whose value is a user. Most rules have
/// some, so their text is composed when rules are loaded.
pub(crate) fn prepare_fields(actions: Vec<Action>) -> Vec<Action> {
    let mut all = Vec::with_capacity(actions.len());
    let mut fields = Vec::new();
    for action in actions {
        match &action {
            Action::Add(_, ValueTemplate::Constant(_))
            | Action::Set(_, ValueTemplate::Constant(_)) => {
                fields.push(action);
            }
            Action::Add(_, ValueTemplate::User(..)) | Action::Set(_, ValueTemplate::User(..)) => {
                fields.push(action);
                flush_fields(&mut fields, &mut all);
            }
            _ => {
                flush_fields(&mut fields, &mut all);
                all.push(action);
            }
        }
    }
    flush_fields(&mut fields, &mut all);
    all
}

/// Moves the fields to `all`, combined if there are several.
fn flush_fields(fields: &mut Vec<Action>, all: &mut Vec<Action>) {
    if fields.len() < 2 {
        all.append(fields);
        return;
    }
    let mut effects = Effects::default();
    let (mut overruled, mut user) = (Vec::new(), None);
    for action in &*fields {
        let (Action::Add(name, value) | Action::Set(name, value)) = action else {
            continue;
        };
        let mark = effects.mark();
        match value {
            ValueTemplate::Constant(line) => effects.text().extend_from_slice(line),
            ValueTemplate::User(begin, party, _) => {
                effects.text().extend_from_slice(begin);
                user = Some(*party);
            }
            ValueTemplate::Template(..) => continue,
        }
        match action {
            Action::Set(..) => {
                effects.set(name, mark);
                overruled.push(name.clone());
            }
            _ => effects.add(name, mark),
        }
    }
    let fields_in_order = core::mem::take(fields).into_boxed_slice();
    all.push(Action::Fields(
        fields_in_order,
        effects.into_prepared(overruled, user),
    ));
}
