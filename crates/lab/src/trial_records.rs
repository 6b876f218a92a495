//! Parts of the record of a trial: the links of `[network]` and the lateness of the generator.

use crate::host::SendTimes;
use serde::{Deserialize, Serialize};

/// A link of `[network]` that carried packets in real time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkRecord {
    /// Its hosts: `callers` or `called side`. `bulk` and `ESP gateways` have faults alone.
    pub name: String,
    /// Settings and packets in words.
    pub remark: String,
    /// Reasons why it was not as configured: the trial is not judged.
    pub faults: Vec<String>,
    /// Time of packets in the link, both directions, milliseconds: mean, median, 99th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<[f64; 3]>,
    /// Figures of each direction, as those of `lab link`; `up` is from the hosts to the SUT.
    pub directions: Vec<serde_json::Value>,
}

/// Lateness of the generator's RTP packets in a trial: from their due time to the end of the calls that sent their
/// batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SendLateness {
    /// Packets sent.
    pub packets: u64,
    /// Packets that were not sent because they were too late.
    pub skipped: u64,
    /// Mean, milliseconds.
    #[serde(default)]
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Largest.
    pub max_ms: f64,
}

impl SendLateness {
    /// That of several hosts together; `None` if none has sent a packet.
    pub fn of<'a>(hosts: impl IntoIterator<Item = &'a SendTimes>) -> Option<SendLateness> {
        let mut all = SendTimes::default();
        hosts.into_iter().for_each(|times| all.add(times));
        Some(SendLateness {
            packets: all.packets(),
            skipped: all.skipped_packets(),
            mean_ms: all.mean_ms()?,
            p50_ms: all.quantile_ms(0.5)?,
            p99_ms: all.quantile_ms(0.99)?,
            max_ms: all.quantile_ms(1.0)?,
        })
    }
}
