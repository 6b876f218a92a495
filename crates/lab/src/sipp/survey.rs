//! What a finished program needs: known once, not asked at every message.

use super::program::{Action, Kind, Program};
use super::template::Piece;

/// Looks through the program and notes what it needs.
pub fn survey(program: &mut Program) {
    program.server = program
        .steps
        .iter()
        .find_map(|step| match &step.kind {
            Kind::Send(_) => Some(false),
            Kind::Receive(_) => Some(true),
            _ => None,
        })
        .unwrap_or(false);
    let mut keeps_last = false;
    let mut see = |piece: &Piece| {
        keeps_last |= matches!(
            piece,
            Piece::Last { .. } | Piece::LastMessage | Piece::LastCseq(_) | Piece::LastRequestUri
        );
    };
    for step in program.steps.iter().chain(&program.init) {
        if let Kind::Send(send) = &step.kind {
            send.text.each(&mut see);
        }
        for action in &step.actions {
            action.each_text(&mut |text| text.each(&mut see));
        }
    }
    let steps = || program.steps.iter().chain(&program.init);
    let actions = || steps().flat_map(|step| &step.actions);
    // A check outside the step that receives looks at what came last, too.
    keeps_last |=
        actions().any(|action| matches!(action, Action::Match { .. } | Action::Verify { .. }));
    let media = actions().any(|action| matches!(action, Action::Media(_) | Action::Digits(_)));
    let commands = actions().any(|action| matches!(action, Action::Command(_)));
    let redirects = actions().any(|action| matches!(action, Action::Redirect { .. }));
    program.keeps_last = keeps_last;
    program.media = media;
    program.commands = commands;
    program.redirects = redirects;
}
