//! Actions that leave the same in every message, put together when rules are loaded.

use crate::action::Action;
use crate::effects::Effects;
use crate::value::Value;

/// The actions of a rule with constant fields that follow each other put together, and a field behind them that is a user: most
/// rules write some, and what they leave is known when they are loaded.
pub(crate) fn joined(actions: Vec<Action>) -> Vec<Action> {
    let mut all = Vec::with_capacity(actions.len());
    let mut fields = Vec::new();
    for action in actions {
        match &action {
            Action::Add(_, Value::Constant(_)) | Action::Set(_, Value::Constant(_)) => {
                fields.push(action);
            }
            Action::Add(_, Value::User(..)) | Action::Set(_, Value::User(..)) => {
                fields.push(action);
                join(&mut fields, &mut all);
            }
            _ => {
                join(&mut fields, &mut all);
                all.push(action);
            }
        }
    }
    join(&mut fields, &mut all);
    all
}

/// Moves fields over, as one action where that is worth it.
fn join(fields: &mut Vec<Action>, all: &mut Vec<Action>) {
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
            Value::Constant(line) => effects.text().extend_from_slice(line),
            Value::User(begin, party, _) => {
                effects.text().extend_from_slice(begin);
                user = Some(*party);
            }
            Value::Template(..) => continue,
        }
        match action {
            Action::Set(..) => {
                effects.set(name, mark);
                overruled.push(name.clone());
            }
            _ => effects.add(name, mark),
        }
    }
    let singly = core::mem::take(fields).into_boxed_slice();
    all.push(Action::Fields(
        singly,
        effects.into_prepared(overruled, user),
    ));
}
