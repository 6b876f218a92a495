//! A stored call, and the conditions of a search.

use crate::text::rfc3339;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Kind of an exchange of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallKind {
    /// INVITE.
    Call,
    /// REGISTER.
    Registration,
    /// SUBSCRIBE, NOTIFY, PUBLISH.
    Subscription,
    /// MESSAGE.
    Message,
    /// OPTIONS.
    Options,
    /// Any other.
    #[default]
    Other,
}

impl CallKind {
    /// All kinds with their words and their numbers in the index.
    pub const ALL: [(CallKind, &'static str); 6] = [
        (CallKind::Call, "call"),
        (CallKind::Registration, "registration"),
        (CallKind::Subscription, "subscription"),
        (CallKind::Message, "message"),
        (CallKind::Options, "options"),
        (CallKind::Other, "other"),
    ];

    /// The word in texts and JSON.
    pub fn name(self) -> &'static str {
        CallKind::ALL[self.number() as usize].1
    }

    pub(crate) fn number(self) -> i64 {
        CallKind::ALL
            .iter()
            .position(|(kind, _)| *kind == self)
            .unwrap_or(5) as i64
    }

    /// The kind of this word.
    pub fn from_name(name: &str) -> Option<CallKind> {
        let mut all = CallKind::ALL.iter();
        all.find(|(_, known)| *known == name).map(|(kind, _)| *kind)
    }

    pub(crate) fn of_method(method: &[u8]) -> CallKind {
        match method {
            b"INVITE" | b"ACK" | b"BYE" | b"CANCEL" | b"PRACK" | b"UPDATE" | b"INFO" => {
                CallKind::Call
            }
            b"REGISTER" => CallKind::Registration,
            b"SUBSCRIBE" | b"NOTIFY" | b"PUBLISH" => CallKind::Subscription,
            b"MESSAGE" => CallKind::Message,
            b"OPTIONS" => CallKind::Options,
            _ => CallKind::Other,
        }
    }
}

/// State of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// Not answered yet.
    #[default]
    Offered,
    /// Answered, and not ended.
    Answered,
    /// Ended.
    Ended,
    /// The program ended without having seen the end of the call.
    Interrupted,
}

impl CallState {
    /// The word in texts and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            CallState::Offered => "offered",
            CallState::Answered => "answered",
            CallState::Ended => "ended",
            CallState::Interrupted => "interrupted",
        }
    }

    pub(crate) const fn is_open(self) -> bool {
        matches!(self, CallState::Offered | CallState::Answered)
    }

    pub(crate) const fn number(self) -> i64 {
        match self {
            CallState::Offered => 0,
            CallState::Answered => 1,
            CallState::Ended => 2,
            CallState::Interrupted => 3,
        }
    }
}

/// Quality of the media of one side, as measured by the border.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SideQuality {
    /// RTP packets lost before they arrived, hundredths of a percent.
    pub loss: Option<u64>,
    /// Mean interarrival jitter (RFC 3550), hundredths of a millisecond.
    pub jitter: Option<u64>,
    /// The source reports jitter in whole milliseconds, as rtpengine does.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub jitter_whole_ms: bool,
    /// MOS-CQE by the E-model, hundredths.
    pub mos: Option<u64>,
}

impl SideQuality {
    /// In the units of call records: percent, milliseconds, MOS.
    pub fn json(&self) -> Value {
        let number = |hundredths: Option<u64>| {
            hundredths.map_or(Value::Null, |value| (value as f64 / 100.0).into())
        };
        serde_json::json!({
            "loss_percent": number(self.loss),
            "jitter_ms": match self.jitter.filter(|_| self.jitter_whole_ms) {
                Some(hundredths) => (hundredths / 100).into(),
                None => number(self.jitter),
            },
            "jitter_whole_ms": self.jitter_whole_ms,
            "mos": number(self.mos),
        })
    }
}

/// A call, or another exchange of messages with one Call-ID. Times are microseconds since the Unix epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoredCall {
    /// Its number in the store, ascending with the time of its first message.
    pub id: i64,
    /// Name of the border that recorded it; empty: none is configured.
    pub node: String,
    /// Kind.
    pub kind: CallKind,
    /// State.
    pub state: CallState,
    /// Call-IDs of its legs, that of the caller's leg first.
    pub call_ids: Vec<String>,
    /// Number of the call in the border's log; absent for messages without a call of the border.
    pub call: Option<u64>,
    /// User of the caller, or the address of record.
    pub from: String,
    /// User called.
    pub to: String,
    /// Interface that received it.
    pub interface: String,
    /// Route.
    pub route: String,
    /// Trunk, registration or domain of the target.
    pub trunk: String,
    /// Addresses of the peers.
    pub addresses: Vec<String>,
    /// Transports, in the order of their first use.
    pub transports: Vec<String>,
    /// Time of the first message.
    pub started: i64,
    /// Time of the answer.
    pub answered: Option<i64>,
    /// Time of the end.
    pub ended: Option<i64>,
    /// Final status; 200 after an answer.
    pub status: Option<u16>,
    /// The side that ended it: caller, callee (by BYE or a refusal) or border (also if no target has responded).
    pub ended_by: String,
    /// Reason of the end.
    pub reason: String,
    /// Media path.
    pub path: String,
    /// Codec.
    pub codec: String,
    /// Keying of media security: sdes, dtls; both sides separated by a slash; empty: none.
    pub protection: String,
    /// Quality of the media from the caller.
    pub caller: SideQuality,
    /// Quality of the media from the callee.
    pub callee: SideQuality,
    /// Number of messages.
    pub messages: u64,
    /// Method of the first request.
    pub method: String,
}

impl StoredCall {
    /// The lower MOS of both directions, hundredths.
    pub fn mos(&self) -> Option<u64> {
        let both = [self.caller.mos, self.callee.mos];
        both.into_iter().flatten().min()
    }

    /// Time from answer to end in milliseconds.
    pub fn duration_ms(&self) -> Option<i64> {
        Some(((self.ended? - self.answered?) / 1_000).max(0))
    }

    /// As JSON, with the names of call records.
    pub fn json(&self) -> Value {
        let text = |text: &String| match text.is_empty() {
            true => Value::Null,
            false => Value::from(text.as_str()),
        };
        let time = |time: Option<i64>| time.map_or(Value::Null, |time| rfc3339(time).into());
        let seconds = self.duration_ms().map(|ms| ms as f64 / 1_000.0);
        let mut json = Map::new();
        let mut put = |key: &str, value: Value| {
            json.insert(key.to_owned(), value);
        };
        put("id", self.id.to_string().into());
        put("node", text(&self.node));
        put("kind", self.kind.name().into());
        put("state", self.state.name().into());
        let first = self.call_ids.first().map(String::as_str);
        put("call_id", first.into());
        put("call_ids", self.call_ids.clone().into());
        put("call", self.call.into());
        put("method", text(&self.method));
        put("from", self.from.as_str().into());
        put("to", self.to.as_str().into());
        put("started", time(Some(self.started)));
        put("answered", time(self.answered));
        put("ended", time(self.ended));
        put("duration_s", seconds.into());
        put("status", self.status.into());
        put("ended_by", text(&self.ended_by));
        put("reason", text(&self.reason));
        put("interface", text(&self.interface));
        put("route", text(&self.route));
        put("trunk", text(&self.trunk));
        put("addresses", self.addresses.clone().into());
        put("transports", self.transports.clone().into());
        put("codec", text(&self.codec));
        put("protection", text(&self.protection));
        put("path", text(&self.path));
        let mos = self.mos().map(|hundredths| hundredths as f64 / 100.0);
        put("mos", mos.into());
        put("caller", self.caller.json());
        put("callee", self.callee.json());
        put("messages", self.messages.into());
        Value::Object(json)
    }
}

/// Conditions of a search; all that are given must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallFilter {
    /// Name of the border that recorded it.
    pub node: Option<String>,
    /// Kind.
    pub kind: Option<CallKind>,
    /// User of From or To, or the number dialled; with `*` at the end: its beginning.
    pub number: Option<String>,
    /// Call-ID of any leg.
    pub call_id: Option<String>,
    /// IP address of a peer.
    pub address: Option<String>,
    /// First message at this time or later.
    pub from: Option<i64>,
    /// First message before this time.
    pub until: Option<i64>,
    /// Lowest and highest final status.
    pub status: Option<(u16, u16)>,
    /// State.
    pub state: Option<CallState>,
    /// Shortest duration in milliseconds.
    pub duration_min: Option<i64>,
    /// Longest duration in milliseconds.
    pub duration_max: Option<i64>,
    /// Lowest MOS, hundredths; of the worse direction.
    pub mos_min: Option<u64>,
    /// Highest MOS, hundredths.
    pub mos_max: Option<u64>,
    /// Trunk, registration or domain of the target.
    pub trunk: Option<String>,
    /// Codec of either side.
    pub codec: Option<String>,
    /// Keying of either side: sdes, dtls; none: neither.
    pub protection: Option<String>,
    /// Words in display names, user agents and reasons (all of them).
    pub words: Option<String>,
    /// Text in any message, exactly.
    pub text: Option<Vec<u8>>,
}

/// Whether one of the two sides of `caller/callee` has this value.
fn has_side(value: &str, wanted: &str) -> bool {
    let mut sides = value.split('/');
    sides.any(|side| side.eq_ignore_ascii_case(wanted))
}

impl CallFilter {
    /// Whether a user or number fits the condition `number`.
    pub(crate) fn fits_number(pattern: &str, number: &str) -> bool {
        match pattern.strip_suffix('*') {
            Some(start) => number.starts_with(start),
            None => number == pattern,
        }
    }

    /// Whether one of the users of a call fits the condition `number`.
    pub(crate) fn fits_user(pattern: &str, call: &StoredCall) -> bool {
        let mut users = [&call.from, &call.to].into_iter();
        users.any(|user| CallFilter::fits_number(pattern, user))
    }

    /// Whether all conditions hold that are known without the index of words and the messages.
    pub(crate) fn holds(&self, call: &StoredCall) -> bool {
        let within = |value: Option<i64>, low: Option<i64>, high: Option<i64>| {
            (low.is_none() && high.is_none())
                || value.is_some_and(|value| {
                    low.is_none_or(|low| value >= low) && high.is_none_or(|high| value <= high)
                })
        };
        let mos = |bound: Option<u64>| bound.map(|mos| mos as i64);
        (self.node.as_ref()).is_none_or(|node| call.node == *node)
            && self.kind.is_none_or(|kind| call.kind == kind)
            && self.state.is_none_or(|state| call.state == state)
            && self.from.is_none_or(|from| call.started >= from)
            && self.until.is_none_or(|until| call.started < until)
            && self.status.is_none_or(|(low, high)| {
                call.status
                    .is_some_and(|status| (low..=high).contains(&status))
            })
            && within(call.duration_ms(), self.duration_min, self.duration_max)
            && within(
                call.mos().map(|mos| mos as i64),
                mos(self.mos_min),
                mos(self.mos_max),
            )
            && (self.trunk.as_ref()).is_none_or(|trunk| call.trunk.eq_ignore_ascii_case(trunk))
            && (self.codec.as_ref()).is_none_or(|codec| has_side(&call.codec, codec))
            && (self.protection.as_ref()).is_none_or(|wanted| match wanted.as_str() {
                "none" => call.protection.is_empty(),
                wanted => has_side(&call.protection, wanted),
            })
            && (self.address.as_ref()).is_none_or(|address| {
                let mut addresses = call.addresses.iter();
                addresses.any(|known| crate::index::ip_text(known) == address)
            })
            && (self.call_id.as_ref()).is_none_or(|id| {
                // The index has a key of the whole one, the record its beginning.
                call.call_ids
                    .contains(&crate::index::text_of(id.as_bytes()))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_hold_for_the_right_calls() {
        let call = StoredCall {
            kind: CallKind::Call,
            codec: "PCMU/G722".into(),
            trunk: "pbx".into(),
            status: Some(200),
            answered: Some(1_000_000),
            ended: Some(3_500_000),
            caller: SideQuality {
                mos: Some(410),
                ..SideQuality::default()
            },
            callee: SideQuality {
                mos: Some(290),
                ..SideQuality::default()
            },
            addresses: vec!["192.0.2.1:5060".into(), "[2001:db8::1]:5061".into()],
            ..StoredCall::default()
        };
        let all = CallFilter::default;
        assert!(all().holds(&call));
        for (filter, holds) in [
            (
                CallFilter {
                    mos_max: Some(300),
                    ..all()
                },
                true,
            ),
            (
                CallFilter {
                    mos_min: Some(300),
                    ..all()
                },
                false,
            ),
            (
                CallFilter {
                    duration_min: Some(2_500),
                    ..all()
                },
                true,
            ),
            (
                CallFilter {
                    duration_max: Some(2_499),
                    ..all()
                },
                false,
            ),
            (
                CallFilter {
                    codec: Some("g722".into()),
                    ..all()
                },
                true,
            ),
            (
                CallFilter {
                    codec: Some("G729".into()),
                    ..all()
                },
                false,
            ),
            (
                CallFilter {
                    protection: Some("none".into()),
                    ..all()
                },
                true,
            ),
            (
                CallFilter {
                    protection: Some("sdes".into()),
                    ..all()
                },
                false,
            ),
            (
                CallFilter {
                    status: Some((400, 499)),
                    ..all()
                },
                false,
            ),
            (
                CallFilter {
                    address: Some("2001:db8::1".into()),
                    ..all()
                },
                true,
            ),
            (
                CallFilter {
                    address: Some("192.0.2.10".into()),
                    ..all()
                },
                false,
            ),
            (
                CallFilter {
                    state: Some(CallState::Answered),
                    ..all()
                },
                false,
            ),
        ] {
            assert_eq!(filter.holds(&call), holds, "{filter:?}");
        }
        assert!(CallFilter::fits_number("60*", "600"));
        assert!(!CallFilter::fits_number("60", "600"));
        assert_eq!(call.json()["duration_s"], 2.5);
        assert_eq!(call.json()["mos"], 2.9);
    }
}
