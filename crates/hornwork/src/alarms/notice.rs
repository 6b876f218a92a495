//! Notices about alarms, and their forms: JSON, syslog (RFC 5424) and SNMP v2c.

use super::{AlarmKind, RaisedAlarm};
use crate::log::timestamp;
use config::AlarmSeverity;
use engine::Time;
use net::Clock;
use serde_json::{Map, Value};
use wire::snmp::{SnmpNotification, SnmpValue};
use wire::syslog::SyslogMessage;

/// Our number below the enterprise.
const SUBTREE: u32 = 5_060;
/// Longest text of an SNMP object (SnmpAdminString, RFC 3411), octets.
const MAX_ADMIN_STRING: usize = 255;
/// The identifier of our structured data; the enterprise number is that for examples (RFC 5612).
const STRUCTURED_DATA: &str = "hornwork@32473";
/// Syslog severity of an alarm that is cleared or acknowledged: notice (RFC 5674 section 2).
const SYSLOG_NOTICE: u8 = 5;

/// The change of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AlarmChange {
    /// It was raised.
    Raised,
    /// Its condition is over.
    Cleared,
    /// An operator has acknowledged it.
    Acknowledged,
}

impl AlarmChange {
    /// The word in notices.
    pub(crate) fn name(self) -> &'static str {
        match self {
            AlarmChange::Raised => "raised",
            AlarmChange::Cleared => "cleared",
            AlarmChange::Acknowledged => "acknowledged",
        }
    }
}

/// A notice: a change of an alarm, and the alarm after it.
#[derive(Clone, Debug)]
pub(crate) struct AlarmNotice {
    /// Number since the start of the program, from 1.
    pub(crate) number: u64,
    pub(crate) change: AlarmChange,
    pub(crate) at: Time,
    pub(crate) alarm: RaisedAlarm,
}

/// The sender of notices.
#[derive(Clone, Debug)]
pub(crate) struct NoticeSource {
    /// Name of this border.
    pub(crate) name: String,
    pub(crate) clock: Clock,
}

/// The severity of a kind, as it is compared with that of receivers.
pub(crate) fn severity_of(kind: AlarmKind) -> AlarmSeverity {
    AlarmSeverity::named(kind.severity()).unwrap_or_default()
}

/// The longest prefix of at most `limit` octets that ends at a character.
fn cut(text: &str, limit: usize) -> &str {
    let end = text.floor_char_boundary(limit);
    text.get(..end).unwrap_or_default()
}

impl AlarmNotice {
    fn by(&self) -> Option<&str> {
        self.alarm.acknowledged_by.as_deref()
    }

    /// One sentence.
    fn text(&self) -> String {
        let alarm = &self.alarm;
        let object = match alarm.object.is_empty() {
            true => String::new(),
            false => format!(" {}", alarm.object),
        };
        let rest = match self.change {
            AlarmChange::Raised => format!(": {}", alarm.detail),
            AlarmChange::Cleared => format!(" after {} s", self.duration_s()),
            AlarmChange::Acknowledged => format!(" by {}", self.by().unwrap_or_default()),
        };
        format!("{}{object} {}{rest}", alarm.kind.name(), self.change.name())
    }

    fn duration_s(&self) -> u64 {
        self.at.since(self.alarm.raised).as_secs()
    }

    /// The JSON object of webhooks. `lost`: notices that the receiver has not got since the start.
    pub(crate) fn json(&self, source: &NoticeSource, lost: u64) -> String {
        let alarm = &self.alarm;
        let time = |at: Time| Value::from(timestamp(source.clock.unix_nanos(at)));
        let mut object = Map::new();
        let mut set = |name: &str, value: Value| {
            object.insert(name.to_owned(), value);
        };
        set("source", source.name.as_str().into());
        set("notice", self.number.into());
        set("lost", lost.into());
        set("change", self.change.name().into());
        set("at", time(self.at));
        set("alarm", alarm.kind.name().into());
        set("id", alarm.id.into());
        set("severity", alarm.kind.severity().into());
        set("object", alarm.object.as_str().into());
        set("detail", alarm.detail.as_str().into());
        set("raised", time(alarm.raised));
        set("cleared", alarm.cleared.map_or(Value::Null, time));
        set("acknowledged", alarm.acknowledged.map_or(Value::Null, time));
        set(
            "acknowledged_by",
            self.by().map_or(Value::Null, Value::from),
        );
        Value::Object(object).to_string()
    }

    /// Severity of syslog (RFC 5674 section 2).
    fn syslog_severity(&self) -> u8 {
        match (self.change, severity_of(self.alarm.kind)) {
            (AlarmChange::Cleared | AlarmChange::Acknowledged, _) => SYSLOG_NOTICE,
            (_, AlarmSeverity::Critical) => 1,
            (_, AlarmSeverity::Major) => 2,
            (_, AlarmSeverity::Minor) => 3,
        }
    }

    /// The syslog message.
    pub(crate) fn syslog(&self, source: &NoticeSource, facility: u8) -> String {
        let alarm = &self.alarm;
        let (number, id) = (self.number.to_string(), alarm.id.to_string());
        let parameters = [
            ("notice", number.as_str()),
            ("change", self.change.name()),
            ("id", &id),
            ("severity", alarm.kind.severity()),
            ("object", &alarm.object),
            ("detail", &alarm.detail),
            ("by", self.by().unwrap_or_default()),
        ];
        let message = SyslogMessage {
            facility,
            severity: self.syslog_severity(),
            timestamp: &timestamp(source.clock.unix_nanos(self.at)),
            host: &source.name,
            program: "hornwork",
            process: std::process::id(),
            kind: alarm.kind.name(),
            data: STRUCTURED_DATA,
            parameters: &parameters,
            text: &self.text(),
        };
        message.to_text()
    }

    /// The number of the SNMP request.
    pub(crate) fn request(&self) -> i32 {
        (self.number & 0x7fff_ffff) as i32
    }

    /// The SNMP notification; packaging/snmp/HORNWORK-MIB.txt describes it.
    pub(crate) fn snmp(&self, source: &NoticeSource, spec: &config::SnmpSpec) -> Vec<u8> {
        let alarm = &self.alarm;
        let base = [1, 3, 6, 1, 4, 1, spec.enterprise, SUBTREE];
        let kind = match self.change {
            AlarmChange::Raised => 1,
            AlarmChange::Cleared => 2,
            AlarmChange::Acknowledged => 3,
        };
        let notification = [&base[..], &[0, kind]].concat();
        let severity = match severity_of(alarm.kind) {
            AlarmSeverity::Critical => 1,
            AlarmSeverity::Major => 2,
            AlarmSeverity::Minor => 3,
        };
        let date = date_and_time(&timestamp(source.clock.unix_nanos(alarm.raised)));
        let text = |text| SnmpValue::Octets(cut(text, MAX_ADMIN_STRING).as_bytes());
        let values = [
            SnmpValue::Unsigned(u32::try_from(alarm.id).unwrap_or(u32::MAX)),
            text(alarm.kind.name()),
            SnmpValue::Integer(severity),
            text(&alarm.object),
            text(&alarm.detail),
            SnmpValue::Octets(&date),
            text(self.by().unwrap_or_default()),
            text(&source.name),
        ];
        let names: Vec<Vec<u32>> = (1..=values.len() as u32)
            .map(|number| [&base[..], &[1, 1, number, 0]].concat())
            .collect();
        let objects: Vec<(&[u32], SnmpValue<'_>)> =
            names.iter().map(Vec::as_slice).zip(values).collect();
        let hundredths = self.at.since(Time::ZERO).as_millis() / 10;
        let message = SnmpNotification {
            community: spec.community.as_bytes(),
            request: self.request(),
            inform: spec.inform,
            // TimeTicks wrap after 497 days.
            uptime: hundredths as u32,
            kind: &notification,
            objects: &objects,
        };
        message.to_bytes()
    }
}

/// DateAndTime (RFC 2579) in UTC, from RFC 3339.
fn date_and_time(text: &str) -> [u8; 11] {
    let number = |from: usize, to: usize| {
        let digits = text.get(from..to).and_then(|digits| digits.parse().ok());
        digits.unwrap_or(0_u16)
    };
    let year = number(0, 4).to_be_bytes();
    let part = |from: usize| number(from, from + 2) as u8;
    [
        year[0],
        year[1],
        part(5),
        part(8),
        part(11),
        part(14),
        part(17),
        number(20, 21) as u8,
        b'+',
        0,
        0,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_times_of_notices() {
        let mut notice = AlarmNotice {
            number: 9,
            change: AlarmChange::Raised,
            at: Time::from_secs(5),
            alarm: RaisedAlarm::new(
                3,
                AlarmKind::TrunkDown,
                "pbx",
                "no answer",
                Time::from_secs(2),
            ),
        };
        assert_eq!(notice.text(), "trunk_down pbx raised: no answer");
        assert_eq!(notice.syslog_severity(), 1);
        notice.change = AlarmChange::Cleared;
        assert_eq!(notice.text(), "trunk_down pbx cleared after 3 s");
        assert_eq!(notice.syslog_severity(), SYSLOG_NOTICE);
        assert_eq!(
            date_and_time("2026-11-26T07:08:09.512345Z"),
            [0x07, 0xea, 11, 26, 7, 8, 9, 5, b'+', 0, 0]
        );
        assert_eq!(cut("aü", 2), "a");
    }
}
