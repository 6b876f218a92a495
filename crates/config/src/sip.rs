//! `[sip]`: behaviour that is common to all interfaces.

use super::sink::{Sink, one_line};
use super::units;
use core::time::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// SIP behaviour that is common to all interfaces.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Sip {
    /// Value of the Server and User-Agent headers.
    pub agent: String,
    /// Differentiated services code point of signalling (24 is class selector 3).
    #[schemars(range(max = 63))]
    pub dscp: u8,
    /// Seconds after which a ringing call is cancelled.
    #[serde(rename = "ring_timeout_s", with = "units::seconds")]
    #[schemars(with = "u32", range(min = 5, max = 3600))]
    pub ring_timeout: Duration,
    /// Longest batching delay of signalling in milliseconds: messages that arrive within it are processed together, at
    /// less cost for each. The delay is 0 while signalling uses less than a fifth of a CPU, and grows to this value at
    /// two fifths. A message waits up to this time on each pass through the border; more than 1 also creates bursts
    /// that the receive buffers of peers may lose. 0: no batching.
    #[serde(rename = "batching_delay_ms", with = "units::milliseconds")]
    #[schemars(with = "u32", range(max = 50))]
    pub batching_delay: Duration,
    /// Whether messages of equal length to one peer are sent by UDP segmentation offload (GSO), at less than half the
    /// cost. The peer receives single datagrams; a capture on the loopback interface shows the unsegmented buffer.
    pub gso: bool,
    /// Largest burst of signalling in bytes to one peer (address and port) over UDP. Further messages follow at twice
    /// the average rate of that peer, at least at 12 MB/s, so that a backlog does not overflow a receive buffer of 64
    /// KiB. With a larger value, peers with small receive buffers lose messages and retransmit. 0: no limit.
    #[schemars(with = "u32", range(max = 1_048_576))]
    pub burst_bytes: usize,
    /// Queueing delay in the socket, in milliseconds, above which the border counts as overloaded: new calls and
    /// registrations that waited 90 % of it (70 % with several workers) are refused with 503; established calls are
    /// served. It must be well above `batching_delay_ms`. 0: never. Default: 25, or three times `batching_delay_ms` if
    /// that is more.
    #[serde(rename = "queueing_delay_ms", with = "units::milliseconds_if_present")]
    #[schemars(with = "Option<u32>", range(max = 10_000))]
    pub queueing_delay: Option<Duration>,
    /// Worker threads for signalling and its media, each pinned to a CPU if there is one for each. A call belongs to
    /// one worker regardless of the listener of its messages. Registrations, rate limits, trunk states and the limit of
    /// calls are shared; media ports, limits of connections and transactions, memory and CPU time are divided evenly. A
    /// conference belongs to one worker: SipHash-1-3 of the called number under a zero key, modulo `workers`.
    #[schemars(range(min = 1, max = 64))]
    pub workers: u8,
    /// Maximum number of refused new calls per 100 accepted ones in a lasting flood over UDP, because refusals cost CPU
    /// time too. In the first moments, and whenever there is CPU time left, there may be more. Further INVITEs are
    /// dropped unread and refused when retransmitted later; in-dialog requests, emergency calls and other methods are
    /// never dropped. 0: all are refused, none is dropped.
    #[serde(with = "units::non_zero")]
    #[schemars(with = "u32", range(max = 10_000))]
    pub refusals_percent: Option<u32>,
    /// Whether neighbours that ask for overload control (`oc` in Via, RFC 7339) get the share of new requests to hold
    /// back.
    pub overload_feedback: bool,
    /// Numbers of emergency calls, for example `["112", "911"]`, as in the user part of Request-URIs. Like calls to
    /// `urn:service:sos`, calls to them are never refused by rate limits, `[limits] calls`, `max_calls` of a trunk,
    /// overload control or admission control, nor while the border drains; interfaces and routes decide about their
    /// callers. Targets that do not answer pings are called for them after all others. The first four numbers are also
    /// exempt from dropping unread (`refusals_percent`), in URIs `sip:NUMBER@HOST`.
    #[schemars(length(max = 16))]
    pub emergency_numbers: Vec<String>,
}

impl Default for Sip {
    fn default() -> Self {
        Sip {
            agent: "Hornwork".to_owned(),
            dscp: 24,
            ring_timeout: Duration::from_secs(180),
            batching_delay: Duration::from_millis(1),
            gso: true,
            burst_bytes: 16_384,
            queueing_delay: None,
            workers: 1,
            refusals_percent: Some(5),
            overload_feedback: true,
            emergency_numbers: Vec::new(),
        }
    }
}

/// Emergency numbers, at most.
const MAX_EMERGENCY_NUMBERS: usize = 16;
/// Characters of an emergency number, at most.
const MAX_NUMBER: usize = 20;

/// The table as written, checked. A queueing delay that is not written follows from the batching delay.
pub(super) fn sip(written: &Sip, sink: &mut Sink<'_>) -> Sip {
    if !one_line(&written.agent) {
        sink.report(
            "sip.agent",
            "`agent` contains control characters",
            "write one line of text",
        );
    }
    check_emergency_numbers(&written.emergency_numbers, sink);
    Sip {
        queueing_delay: queueing_delay(written, sink),
        ..written.clone()
    }
}

fn check_emergency_numbers(numbers: &[String], sink: &mut Sink<'_>) {
    if numbers.len() > MAX_EMERGENCY_NUMBERS {
        sink.report(
            "sip.emergency_numbers",
            format!("`emergency_numbers` has more than {MAX_EMERGENCY_NUMBERS} numbers"),
            "write only numbers of emergency services",
        );
    }
    let is_dialled = |byte: u8| byte.is_ascii_digit() || b"+*#".contains(&byte);
    for (index, number) in numbers.iter().enumerate() {
        let length = 1..=MAX_NUMBER;
        if !length.contains(&number.len()) || !number.bytes().all(is_dialled) {
            sink.report(
                &format!("sip.emergency_numbers[{index}]"),
                format!("`{}` is not a number", number.escape_debug()),
                "write digits as they are dialled, for example \"112\"",
            );
        }
    }
}

fn queueing_delay(sip: &Sip, sink: &mut Sink<'_>) -> Option<Duration> {
    let usual = (3 * sip.batching_delay).max(Duration::from_millis(25));
    let limit = sip.queueing_delay.unwrap_or(usual);
    if !limit.is_zero() && limit < 2 * sip.batching_delay {
        sink.report(
            "sip.queueing_delay_ms",
            format!(
                "queueing_delay_ms ({}) is less than twice batching_delay_ms ({}): batching alone would count as overload",
                limit.as_millis(),
                sip.batching_delay.as_millis()
            ),
            "raise queueing_delay_ms, lower batching_delay_ms, or set queueing_delay_ms to 0",
        );
    }
    (!limit.is_zero()).then_some(limit)
}
