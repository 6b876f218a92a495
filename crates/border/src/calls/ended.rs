//! Ended calls whose statistics are pending.

use crate::shared::Ctx;
use anchor::Encodings;
use engine::{EventKind, Hundredths};

/// The report that the end of a call waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StatisticsSource {
    /// None.
    #[default]
    Nothing,
    /// That of the forwarder.
    Forwarder,
    /// That of the media node.
    Node,
}

/// An ended call whose statistics are pending.
#[derive(Debug)]
pub(crate) struct EndedCall {
    pub(super) by: &'static str,
    pub(super) why: &'static str,
    pub(super) status: u16,
    pub(super) duration_ms: Option<u64>,
    pub(super) path: Option<&'static str>,
    pub(super) encodings: Encodings,
}

/// Statistics of the media received from one side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReceptionQuality {
    pub(crate) codec: Option<String>,
    pub(crate) loss_percent: Option<Hundredths>,
    pub(crate) jitter_ms: Option<Hundredths>,
    pub(crate) mos: Option<Hundredths>,
}

impl EndedCall {
    /// Logs the end of a call with the statistics of the media received from both sides.
    pub(super) fn report(
        &self,
        ctx: &mut Ctx,
        call: u64,
        path: Option<&'static str>,
        [caller, callee]: [ReceptionQuality; 2],
    ) {
        ctx.events.tell(ctx.now, || EventKind::CallEnded {
            call,
            ended_by: self.by.to_owned(),
            reason: self.why.to_owned(),
            status: self.status,
            duration_ms: self.duration_ms,
            path: path.or(self.path).map(str::to_owned),
            codec: codec_of(caller.codec, callee.codec),
            caller_loss_percent: caller.loss_percent,
            caller_jitter_ms: caller.jitter_ms,
            caller_mos: caller.mos,
            callee_loss_percent: callee.loss_percent,
            callee_jitter_ms: callee.jitter_ms,
            callee_mos: callee.mos,
        });
    }
}

fn codec_of(caller: Option<String>, callee: Option<String>) -> Option<String> {
    match (caller, callee) {
        (Some(caller), Some(callee)) if caller != callee => Some(format!("{caller}/{callee}")),
        (caller, callee) => caller.or(callee),
    }
}
