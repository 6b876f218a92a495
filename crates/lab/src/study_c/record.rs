//! Plan and record of a cell.

use super::model::{StudyCodec, StudyNetwork, StudyProtection};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Plan of a cell.
#[derive(Clone, Copy, Debug)]
pub struct CellPlan<'a> {
    /// Number in the run.
    pub number: usize,
    /// Codec.
    pub codec: StudyCodec,
    /// Network.
    pub network: StudyNetwork,
    /// Protection.
    pub protection: StudyProtection,
    /// Repetition, from 0.
    pub repetition: u32,
    /// Duration of the call.
    pub span: Duration,
    /// Seed of the line.
    pub seed: u64,
    /// Directory for captures and logs.
    pub dir: &'a Path,
    /// Whether tshark measures the capture, too.
    pub with_tshark: bool,
}

impl CellPlan<'_> {
    /// Name of its files.
    pub fn name(&self) -> String {
        format!(
            "{}-{}-{}-{}",
            self.codec.name, self.network.name, self.protection.name, self.repetition
        )
    }
}

/// A mean with its interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CellFigure {
    /// Value; `null` without one.
    pub value: Option<f64>,
    /// Means of the blocks of each direction, in order of time.
    pub blocks: Vec<Vec<f64>>,
}

/// Figures of the media that arrives at a host, by the sequence numbers and times of its capture.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ArrivedStream {
    /// Packets lost.
    pub lost: i64,
    /// Mean jitter, milliseconds.
    pub jitter_ms: f64,
    /// Largest time between two packets, milliseconds.
    pub delta_max_ms: f64,
}

/// Packets that the receiving ends of a protection accepted and refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PacketCount {
    /// Authentic ones.
    pub accepted: u64,
    /// Others, and copies.
    pub refused: u64,
}

impl PacketCount {
    /// The sum of both.
    pub fn with(self, other: PacketCount) -> PacketCount {
        PacketCount {
            accepted: self.accepted + other.accepted,
            refused: self.refused + other.refused,
        }
    }

    /// The reason, if the protection did not do its work: the lines of the study change and repeat no packet.
    pub fn fault(self) -> Option<String> {
        match (self.accepted, self.refused) {
            (0, _) => Some("the protection accepted no packet".to_owned()),
            (_, 0) => None,
            (_, refused) => Some(format!("the protection refused {refused} packets")),
        }
    }
}

/// Figures of a cell.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CellRecord {
    /// Name: codec, network, protection, repetition.
    pub name: String,
    /// Codec.
    pub codec: &'static str,
    /// Network.
    pub network: &'static str,
    /// Protection.
    pub protection: &'static str,
    /// Repetition.
    pub repetition: u32,
    /// Duration of the call, seconds.
    pub seconds: f64,
    /// The obstacle, if it was not measured.
    pub cause: Option<String>,
    /// Reasons why the line was not the configured one: figures are not judged.
    pub faults: Vec<String>,
    /// Packets that left the first and the second host.
    pub sent: [u64; 2],
    /// Packets that arrived at the other one.
    pub arrived: [u64; 2],
    /// Loss between the captures, percent, of both directions.
    pub loss_percent: Option<f64>,
    /// Correlation of the loss of neighbouring packets, 0 to 1: losses of a full queue come together.
    pub loss_correlation: f64,
    /// One-way latency between the captures, milliseconds, of both directions.
    pub latency_ms: CellFigure,
    /// Its 99th percentile.
    pub latency_p99_ms: Option<f64>,
    /// Jitter at the receivers (RFC 3550), milliseconds: the mean of our analyser.
    pub jitter_ms: CellFigure,
    /// Lateness of the hosts' sending, 99th percentile, milliseconds; `null` in virtual time.
    pub sender_late_p99_ms: Option<f64>,
    /// Streams that arrived at the first and the second host, by our analyser.
    pub analyser: [Option<ArrivedStream>; 2],
    /// The same by tshark; `null` if it was not run.
    pub tshark: [Option<ArrivedStream>; 2],
    /// Why tshark did not measure a capture.
    pub not_compared: Vec<String>,
    /// Both directions of the line.
    pub line: Vec<serde_json::Value>,
    /// Bytes of an IP packet with media on the line.
    pub line_packet_bytes: Option<f64>,
    /// Packets of SRTP or of our ESP at both hosts; `null` with another protection, and where only its bytes are
    /// simulated.
    pub protected: Option<PacketCount>,
    /// Captures, relative to the directory.
    pub captures: Vec<String>,
}

impl CellRecord {
    /// The record of a cell before its measurement.
    pub fn of(plan: &CellPlan<'_>) -> CellRecord {
        CellRecord {
            name: plan.name(),
            codec: plan.codec.name,
            network: plan.network.name,
            protection: plan.protection.name,
            repetition: plan.repetition,
            seconds: plan.span.as_secs_f64(),
            ..CellRecord::default()
        }
    }

    /// Whether its figures count.
    pub fn is_valid(&self) -> bool {
        self.cause.is_none() && self.faults.is_empty() && self.loss_percent.is_some()
    }

    /// Whether tshark measured another loss, mean jitter or largest delta (by more than 0.01 ms) in the same capture.
    pub fn differs_from_tshark(&self) -> bool {
        let near = |ours: f64, theirs: f64| (ours - theirs).abs() <= 0.01;
        let mut both = self.analyser.iter().zip(&self.tshark);
        both.any(|(ours, theirs)| match (ours, theirs) {
            (Some(ours), Some(theirs)) => {
                ours.lost != theirs.lost
                    || !near(ours.jitter_ms, theirs.jitter_ms)
                    || !near(ours.delta_max_ms, theirs.delta_max_ms)
            }
            (None, Some(_)) => true,
            (_, None) => false,
        })
    }

    /// Number of captures that tshark measured.
    pub fn compared(&self) -> usize {
        self.tshark.iter().flatten().count()
    }
}
