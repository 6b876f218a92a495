//! Properties of a compiled program, determined once rather than at every message.

use super::program::{ScenarioAction, ScenarioProgram, StepKind};
use super::template::TextPiece;
use std::collections::BTreeSet;

/// The fields of injection files that the texts of the program have, as file and field.
pub fn fields(program: &ScenarioProgram) -> BTreeSet<(u16, u16)> {
    let mut fields = BTreeSet::new();
    let mut visit = |piece: &TextPiece| {
        if let TextPiece::Field { file, field, .. } = piece {
            fields.insert((*file, *field));
        }
    };
    for step in program.steps.iter().chain(&program.init) {
        if let StepKind::Send(send) = &step.kind {
            send.text.each(&mut visit);
        }
        for action in &step.actions {
            action.each_text(&mut |text| text.each(&mut visit));
        }
    }
    fields
}

/// Determines the properties of the program.
pub fn survey(program: &mut ScenarioProgram) {
    program.server = program
        .steps
        .iter()
        .find_map(|step| match &step.kind {
            StepKind::Send(_) => Some(false),
            StepKind::Receive(_) => Some(true),
            _ => None,
        })
        .unwrap_or(false);
    let mut keeps_last = false;
    let mut visit = |piece: &TextPiece| {
        keeps_last |= matches!(
            piece,
            TextPiece::Last { .. }
                | TextPiece::LastMessage
                | TextPiece::LastCseq(_)
                | TextPiece::LastRequestUri
        );
    };
    for step in program.steps.iter().chain(&program.init) {
        if let StepKind::Send(send) = &step.kind {
            send.text.each(&mut visit);
        }
        for action in &step.actions {
            action.each_text(&mut |text| text.each(&mut visit));
        }
    }
    let steps = || program.steps.iter().chain(&program.init);
    let actions = || steps().flat_map(|step| &step.actions);
    // A check outside the receive step examines the last received message, too.
    keeps_last |= actions().any(|action| {
        matches!(
            action,
            ScenarioAction::Match { .. } | ScenarioAction::Verify { .. }
        )
    });
    let media = actions()
        .any(|action| matches!(action, ScenarioAction::Media(_) | ScenarioAction::Digits(_)));
    let commands = actions().any(|action| matches!(action, ScenarioAction::Command(_)));
    let redirects = actions().any(|action| matches!(action, ScenarioAction::Redirect { .. }));
    program.keeps_last = keeps_last;
    program.media = media;
    program.commands = commands;
    program.redirects = redirects;
}
