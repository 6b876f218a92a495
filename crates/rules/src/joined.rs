//! Actions that leave the same in every message, put together when rules are loaded.

use crate::action::{Action, Value};
use crate::effects::Effects;

/// The actions of a rule with constant fields that follow each other put together: most rules write some, and what they leave is known
/// when they are loaded.
pub(crate) fn joined(actions: Vec<Action>) -> Vec<Action> {
    let mut all = Vec::with_capacity(actions.len());
    let mut constants = Vec::new();
    for action in actions {
        match action {
            Action::Add(_, Value::Constant(_)) | Action::Set(_, Value::Constant(_)) => {
                constants.push(action);
            }
            action => {
                join(&mut constants, &mut all);
                all.push(action);
            }
        }
    }
    join(&mut constants, &mut all);
    all
}

/// Moves constant fields over, as one action where that is worth it.
fn join(constants: &mut Vec<Action>, all: &mut Vec<Action>) {
    if constants.len() < 2 {
        all.append(constants);
        return;
    }
    let mut effects = Effects::default();
    let mut overruled = Vec::new();
    for action in &*constants {
        let mark = effects.mark();
        match action {
            Action::Add(name, Value::Constant(line)) => {
                effects.text().extend_from_slice(line);
                effects.add(name, mark);
            }
            Action::Set(name, Value::Constant(line)) => {
                effects.text().extend_from_slice(line);
                effects.set(name, mark);
                overruled.push(name.clone());
            }
            _ => {}
        }
    }
    let singly = core::mem::take(constants).into_boxed_slice();
    all.push(Action::Fields(singly, effects.into_prepared(overruled)));
}
