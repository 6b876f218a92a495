//! Ended calls whose statistics are pending.

use crate::shared::Ctx;
use anchor::{Encodings, Side};
use engine::{EventKind, Hundredths, Reason, ReportedJitter};
use serde::{Deserialize, Serialize};

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

/// The party that ended a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EndedBy {
    /// A side of the call.
    Side(Side),
    /// The border itself.
    Border,
}

impl EndedBy {
    /// The name in events and records.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EndedBy::Side(side) => side.name(),
            EndedBy::Border => "border",
        }
    }
}

/// An ended call whose statistics are pending.
#[derive(Debug)]
pub(crate) struct EndedCall {
    pub(super) by: EndedBy,
    pub(super) why: Reason,
    pub(super) status: u16,
    pub(super) duration_ms: Option<u64>,
    pub(super) trunk: Option<Box<str>>,
    pub(super) path: Option<&'static str>,
    pub(super) encodings: Encodings,
    /// The codec that was negotiated; caller/callee where they differ.
    pub(super) codec: Option<Box<str>>,
}

/// Statistics of the media received from one side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReceptionQuality {
    pub(crate) codec: Option<String>,
    pub(crate) loss_percent: Option<Hundredths>,
    pub(crate) jitter_ms: Option<ReportedJitter>,
    pub(crate) mos: Option<Hundredths>,
    pub(crate) totals: SideTotals,
}

/// Totals of one side over all media lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SideTotals {
    /// RTP packets received, and lost before they arrived.
    pub(crate) packets: Option<u64>,
    pub(crate) lost: Option<u64>,
    /// RTP packets sent, and lost on the way by the last report of the peer.
    pub(crate) sent: Option<u64>,
    pub(crate) remote_lost: Option<u64>,
    /// Half the round-trip time.
    pub(crate) delay_ms: Option<Hundredths>,
    pub(crate) protection: Option<String>,
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
        let (one, other) = (caller.totals, callee.totals);
        if one.packets.is_some() || other.packets.is_some() {
            ctx.events.tell(ctx.now, || EventKind::CallMedia {
                call,
                caller_packets: one.packets,
                caller_lost: one.lost,
                caller_sent: one.sent,
                caller_remote_lost: one.remote_lost,
                caller_delay_ms: one.delay_ms,
                caller_protection: one.protection,
                callee_packets: other.packets,
                callee_lost: other.lost,
                callee_sent: other.sent,
                callee_remote_lost: other.remote_lost,
                callee_delay_ms: other.delay_ms,
                callee_protection: other.protection,
            });
        }
        ctx.events.tell(ctx.now, || EventKind::CallEnded {
            call,
            ended_by: self.by.name().to_owned(),
            reason: self.why.text().to_owned(),
            status: self.status,
            duration_ms: self.duration_ms,
            trunk: self.trunk.clone(),
            path: path.or(self.path).map(str::to_owned),
            codec: codec_of(caller.codec, callee.codec)
                .or_else(|| self.codec.as_deref().map(str::to_owned)),
            caller_loss_percent: caller.loss_percent,
            caller_jitter_ms: caller.jitter_ms,
            caller_mos: caller.mos,
            callee_loss_percent: callee.loss_percent,
            callee_jitter_ms: callee.jitter_ms,
            callee_mos: callee.mos,
        });
    }
}

/// The codecs of both sides in one text; caller/callee where they differ.
pub(crate) fn codec_of(caller: Option<String>, callee: Option<String>) -> Option<String> {
    match (caller, callee) {
        (Some(caller), Some(callee)) if caller != callee => Some(format!("{caller}/{callee}")),
        (caller, callee) => caller.or(callee),
    }
}
