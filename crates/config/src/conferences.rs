//! `[[conference]]`: conferences, with names resolved to indices, and codecs checked against those of this build.

use super::interfaces::InterfaceSpec;
use super::names::{InterfaceId, TrunkId};
use super::one_or_many::OneOrMany;
use super::sink::Sink;
use codec::Kind;
use core::time::Duration;
use media::conference::{ConferenceSettings, MAX_MUTE_DIGITS};
use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::sync::Arc;
use subtle::ConstantTimeEq as _;

/// A codec by its name in SDP.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawCodec(Kind);

impl<'de> serde::Deserialize<'de> for RawCodec {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<RawCodec, D::Error> {
        let name = String::deserialize(deserializer)?;
        let mut kinds = Kind::ALL.into_iter();
        let known = kinds.find(|kind| kind.name() == name).map(RawCodec);
        known.ok_or_else(|| {
            let names = Kind::ALL.map(Kind::name).join(", ");
            serde::de::Error::custom(format!("unknown codec `{name}`, expected one of {names}"))
        })
    }
}

impl JsonSchema for RawCodec {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "RawCodec".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let names = Kind::ALL.map(Kind::name);
        schemars::json_schema!({ "type": "string", "enum": names })
    }
}

/// Condition for playing a tone to a conference.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawTones {
    /// When a participant joins, and when a participant leaves.
    #[default]
    Both,
    /// When a participant joins.
    Entry,
    /// When a participant leaves.
    Leave,
    /// Never.
    None,
}

/// Conferences. Each called number is a conference of its own: every participant gets the mix of the others.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConference {
    /// Name in events, unique.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Numbers or users that callers dial.
    #[serde(default)]
    pub number: OneOrMany<String>,
    /// Regular expression for whole called numbers, instead of `number` or in addition to it.
    pub regex: Option<String>,
    /// Condition: interfaces from which the call comes.
    #[serde(default)]
    pub interface: OneOrMany<String>,
    /// Condition: trunks from which the call comes.
    #[serde(default)]
    pub from_trunk: OneOrMany<String>,
    /// Maximum number of participants of one conference. Further callers are refused with 486.
    #[serde(default = "default_max_participants")]
    #[schemars(range(min = 2, max = 500))]
    pub max_participants: u16,
    /// Maximum number of conferences of this entry. The first caller of a further one is refused with 503.
    #[serde(default = "default_max_conferences")]
    #[schemars(range(min = 1, max = 10000))]
    pub max_conferences: u32,
    /// Maximum number of participants in the mix: the loudest of those who speak.
    #[serde(default = "default_max_speakers")]
    #[schemars(range(min = 1, max = 16))]
    pub max_speakers: u16,
    /// Accepted codecs, best first. Default: opus, G722, PCMA, PCMU, and G729 if this build supports it.
    #[serde(default)]
    pub codecs: Vec<RawCodec>,
    /// Packet time in milliseconds towards participants that request none.
    #[serde(default = "default_packet_time_ms")]
    #[schemars(range(min = 10, max = 60))]
    pub packet_time_ms: u32,
    /// Events for which a tone is played to all participants.
    #[serde(default)]
    pub tones: RawTones,
    /// Digits by which participants mute and unmute themselves. Empty: none.
    #[serde(default = "default_mute_digits")]
    #[schemars(length(max = 8))]
    pub mute_digits: String,
    /// PIN that callers must enter: 4 to 16 digits, dialled after a tone, ended by `#` or complete at the length of the
    /// PIN. Digits are received as telephone events (RFC 4733), or as audio if none were negotiated, except with G.729.
    /// Until then the caller is in the lobby, without audio from or to the conference. The third wrong PIN, or half a
    /// minute without the right one, ends the call. After nine wrong PINs of a source (see `max_lobby`) in a row, at
    /// all workers together, its calls are refused with 403 for a minute; each further one doubles that time, to an
    /// hour.
    #[schemars(length(min = 4, max = 16))]
    pub pin: Option<String>,
    /// Maximum number of callers in the lobby, in all conferences of this entry (of several workers, at each of them),
    /// in addition to the participants. If the lobby is full, the caller that has sent no digit for longest is removed:
    /// at once if its source has more callers in the lobby than that of the new one, after 10 s if it has as many;
    /// otherwise the new caller is refused with 486. A source is an authenticated user, a caller as asserted by a
    /// trunk, or an address (of IPv6, its /64).
    #[serde(default = "default_max_lobby")]
    #[schemars(range(min = 1, max = 10000))]
    pub max_lobby: u16,
    /// Longest delay of the jitter buffers in milliseconds; later packets are lost.
    #[serde(default = "default_max_delay_ms")]
    #[schemars(range(min = 20, max = 1000))]
    pub max_delay_ms: u32,
    /// Whether no packets are sent during silence to participants that negotiated comfort noise (RFC 3389) or a codec
    /// with its own silence suppression.
    #[serde(default)]
    pub silence_suppression: bool,
}

fn default_max_participants() -> u16 {
    32
}

fn default_max_conferences() -> u32 {
    100
}

fn default_max_speakers() -> u16 {
    4
}

fn default_packet_time_ms() -> u32 {
    20
}

fn default_mute_digits() -> String {
    "*6".to_owned()
}

fn default_max_lobby() -> u16 {
    100
}

fn default_max_delay_ms() -> u32 {
    200
}

/// Maximum length of a PIN.
pub const MAX_PIN: usize = 16;
/// Minimum length of a PIN.
const MIN_PIN: usize = 4;

/// The PIN of a conference. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// Padded with zero bytes, which are not digits.
    digits: [u8; MAX_PIN],
    length: u8,
}

impl Pin {
    /// A PIN; `None` unless the text is 4 to 16 digits.
    pub fn new(text: &str) -> Option<Pin> {
        let good = (MIN_PIN..=MAX_PIN).contains(&text.len())
            && text.bytes().all(|digit| digit.is_ascii_digit());
        let digits = good.then(|| padded(text.as_bytes()))??;
        Some(Pin {
            digits,
            length: text.len() as u8,
        })
    }

    /// The number of digits.
    pub fn digits(&self) -> usize {
        self.length.into()
    }

    /// Whether `typed` is the PIN, compared in constant time.
    pub fn matches(&self, typed: &[u8]) -> bool {
        padded(typed).is_some_and(|typed| bool::from(typed.ct_eq(&self.digits)))
    }
}

fn padded(digits: &[u8]) -> Option<[u8; MAX_PIN]> {
    let mut padded = [0; MAX_PIN];
    padded.get_mut(..digits.len())?.copy_from_slice(digits);
    Some(padded)
}

impl core::fmt::Debug for Pin {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Pin(..)")
    }
}

/// An expression in saved state: its text.
mod saved_regex {
    use regex::Regex;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        regex: &Option<Regex>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        regex.as_ref().map(Regex::as_str).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Regex>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        let regex = text.map(|text| Regex::new(&text)).transpose();
        regex.map_err(serde::de::Error::custom)
    }
}

/// One `[[conference]]` entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConferenceSpec {
    /// Name.
    pub name: String,
    /// Called numbers.
    pub numbers: Vec<String>,
    /// Expression for whole called numbers, in addition to `numbers`.
    #[serde(with = "saved_regex")]
    pub regex: Option<Regex>,
    /// Interfaces from which calls come; empty: any.
    pub interfaces: Vec<InterfaceId>,
    /// Trunks from which calls come; empty: any.
    pub from_trunks: Vec<TrunkId>,
    /// Maximum number of simultaneous conferences.
    pub max_conferences: u32,
    /// Codecs, best first.
    pub codecs: Vec<Kind>,
    /// Packet time in milliseconds, unless a participant requests another.
    pub packet_time_ms: u32,
    /// Whether silence is suppressed towards participants that support it.
    pub suppress_silence: bool,
    /// The PIN that callers must enter.
    pub pin: Option<Pin>,
    /// Maximum number of callers in the lobby.
    pub max_lobby: u16,
    /// Settings of the media conference.
    pub settings: ConferenceSettings,
}

impl ConferenceSpec {
    /// Whether a call to `number` belongs to a conference of this entry.
    pub fn matches_call(
        &self,
        number: &str,
        interface: InterfaceId,
        trunk: Option<TrunkId>,
    ) -> bool {
        let called = self.numbers.iter().any(|own| own == number)
            || self
                .regex
                .as_ref()
                .is_some_and(|regex| regex.is_match(number));
        called
            && (self.interfaces.is_empty() || self.interfaces.contains(&interface))
            && (self.from_trunks.is_empty()
                || trunk.is_some_and(|trunk| self.from_trunks.contains(&trunk)))
    }
}

pub(super) fn check(
    raw: &[RawConference],
    interfaces: &[InterfaceSpec],
    sink: &mut Sink<'_>,
) -> Vec<Arc<ConferenceSpec>> {
    let mut conferences: Vec<Arc<ConferenceSpec>> = Vec::new();
    for (index, entry) in raw.iter().enumerate() {
        let checked = conference_of(entry, index, interfaces, sink);
        for (at, number) in checked.numbers.iter().enumerate() {
            let earlier = conferences.iter().position(|other| {
                other.numbers.contains(number)
                    && other.interfaces == checked.interfaces
                    && other.from_trunks == checked.from_trunks
            });
            if let Some(earlier) = earlier {
                let line = sink.line(&format!("conference[{earlier}]"));
                sink.report(
                    &entry
                        .number
                        .path(&format!("conference[{index}].number"), at),
                    format!("number {number} belongs to the conference in line {line}"),
                    "choose another number",
                );
            }
        }
        conferences.push(Arc::new(checked));
    }
    conferences
}

fn conference_of(
    entry: &RawConference,
    index: usize,
    interfaces: &[InterfaceSpec],
    sink: &mut Sink<'_>,
) -> ConferenceSpec {
    let path = format!("conference[{index}]");
    if entry.number.as_slice().is_empty() && entry.regex.is_none() {
        sink.report(
            &path,
            "the conference has no number, so that it cannot be called",
            "add number = \"...\" or regex = \"...\"",
        );
    }
    for (at, number) in entry.number.as_slice().iter().enumerate() {
        if number.is_empty()
            || number
                .bytes()
                .any(|b| b <= b' ' || b >= 0x7f || b"<>@\"".contains(&b))
        {
            sink.report(
                &entry.number.path(&format!("{path}.number"), at),
                format!("\"{number}\" is not a number that can be called"),
                "use digits, letters and - _ . + * #",
            );
        }
    }
    let regex = entry
        .regex
        .as_ref()
        .and_then(|text| super::routes::anchored(text, &format!("{path}.regex"), sink));
    let mut here = Vec::new();
    for (at, name) in entry.interface.as_slice().iter().enumerate() {
        let at = entry.interface.path(&format!("{path}.interface"), at);
        here.push(sink.interface_id(name, &at));
    }
    let mut from_trunks = Vec::new();
    for (at, name) in entry.from_trunk.as_slice().iter().enumerate() {
        let at = entry.from_trunk.path(&format!("{path}.from_trunk"), at);
        from_trunks.push(sink.trunk_id(name, &at));
    }
    for (number, interface) in interfaces.iter().enumerate() {
        let id = InterfaceId(u16::try_from(number).unwrap_or(u16::MAX));
        if (here.is_empty() || here.contains(&id)) && interface.media.is_empty() {
            sink.report(
                &path,
                format!(
                    "interface \"{}\" has no media ports, which conferences require",
                    interface.name
                ),
                "add `media` to the interface, or restrict the conference to other interfaces by `interface`",
            );
        }
    }
    let mute = entry.mute_digits.as_bytes();
    if mute.len() > MAX_MUTE_DIGITS
        || mute
            .iter()
            .any(|digit| !b"0123456789*#ABCD".contains(digit))
    {
        sink.report(
            &format!("{path}.mute_digits"),
            format!(
                "\"{}\" contains characters that cannot be dialled",
                entry.mute_digits
            ),
            "use digits, * and #",
        );
    }
    let pin = entry.pin.as_deref().map(Pin::new);
    if pin.as_ref().is_some_and(Option::is_none) {
        sink.report(
            &format!("{path}.pin"),
            "the PIN contains characters that cannot be dialled",
            format!("write {MIN_PIN} to {MAX_PIN} digits, in quotes"),
        );
    }
    if !entry.packet_time_ms.is_multiple_of(10) {
        sink.report(
            &format!("{path}.packet_time_ms"),
            format!(
                "a packet time of {} ms is not supported",
                entry.packet_time_ms
            ),
            "write 10, 20, 30, 40, 50 or 60",
        );
    }
    ConferenceSpec {
        name: entry.name.clone(),
        numbers: entry.number.as_slice().to_vec(),
        regex,
        interfaces: here,
        from_trunks,
        max_conferences: entry.max_conferences,
        codecs: codecs(entry, &path, sink),
        packet_time_ms: entry.packet_time_ms,
        suppress_silence: entry.silence_suppression,
        pin: pin.flatten(),
        max_lobby: entry.max_lobby,
        settings: ConferenceSettings {
            max_participants: entry.max_participants,
            max_speakers: entry.max_speakers,
            entry_tone: matches!(entry.tones, RawTones::Both | RawTones::Entry),
            leave_tone: matches!(entry.tones, RawTones::Both | RawTones::Leave),
            mute_digits: SmallVec::from_slice(mute),
            max_delay: Duration::from_millis(entry.max_delay_ms.into()),
        },
    }
}

fn codecs(entry: &RawConference, path: &str, sink: &mut Sink<'_>) -> Vec<Kind> {
    if entry.codecs.is_empty() {
        return Kind::ALL
            .into_iter()
            .filter(|kind| kind.is_available())
            .collect();
    }
    let mut kinds = Vec::new();
    for (at, codec) in entry.codecs.iter().enumerate() {
        let at = format!("{path}.codecs[{at}]");
        let kind = codec.0;
        if kinds.contains(&kind) {
            sink.report(
                &at,
                format!("{} is listed twice", kind.name()),
                "remove one of the two",
            );
        }
        if !kind.is_available() {
            sink.report(
                &at,
                format!("this build does not support {}", kind.name()),
                "build with libbcg729 (Debian: libbcg729-dev), or remove the codec",
            );
        }
        kinds.push(kind);
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::super::{InterfaceId, parse};

    #[test]
    fn conference_entries_are_checked() {
        let head = "[[interface]]\nname=\"a\"\nkind=\"core\"\nlisten=\"udp:192.0.2.1:5060\"\n";
        let with = |more: &str| {
            parse(&format!("{head}{more}"), "f")
                .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect::<String>())
        };
        let conference = "[[conference]]\nname=\"m\"\n";
        let config = with(&format!("{conference}number=\"800\"\nregex='9\\d'\n")).unwrap();
        let meeting = &config.conferences[0];
        let here = InterfaceId(0);
        assert!(meeting.matches_call("800", here, None) && meeting.matches_call("91", here, None));
        assert!(
            !meeting.matches_call("8000", here, None) && !meeting.matches_call("911", here, None)
        );
        assert_eq!((meeting.max_conferences, meeting.packet_time_ms), (100, 20));
        assert_eq!(meeting.max_lobby, 100);
        assert_eq!(
            meeting.settings,
            media::conference::ConferenceSettings::default()
        );
        assert_eq!(meeting.codecs[0], codec::Kind::Opus);
        let narrow = format!(
            "{conference}number=\"800\"\ncodecs=[\"PCMU\",\"PCMA\"]\ntones=\"leave\"\nmute_digits=\"\"\nmax_participants=3\nmax_speakers=2\npacket_time_ms=30\n"
        );
        let config = with(&narrow).unwrap();
        let settings = &config.conferences[0].settings;
        assert_eq!(
            config.conferences[0].codecs,
            [codec::Kind::Pcmu, codec::Kind::Pcma]
        );
        assert_eq!(
            (
                settings.entry_tone,
                settings.leave_tone,
                settings.max_participants
            ),
            (false, true, 3)
        );
        assert!(settings.mute_digits.is_empty());
        for (more, expected) in [
            (conference.to_owned(), "has no number"),
            (
                format!("{conference}number=\"\"\n"),
                "is not a number that can be called",
            ),
            (
                format!("{conference}regex=\"(\"\n"),
                "is not a valid regular expression",
            ),
            (
                format!("{conference}number=\"1\"\nmax_participants=1\n"),
                "max_participants",
            ),
            (
                format!("{conference}number=\"1\"\nmax_speakers=0\n"),
                "max_speakers",
            ),
            (format!("{conference}number=\"1\"\npin=\"123\"\n"), "pin"),
            (
                format!("{conference}number=\"1\"\npin=\"12#4\"\n"),
                "cannot be dialled",
            ),
            (format!("{conference}number=\"1\"\npin=1234\n"), "pin"),
            (
                format!("{conference}number=\"1\"\nmute_digits=\"x\"\n"),
                "cannot be dialled",
            ),
            (
                format!("{conference}number=\"1\"\npacket_time_ms=25\n"),
                "a packet time of 25 ms",
            ),
            (
                format!("{conference}number=\"1\"\ncodecs=[\"PCMA\",\"PCMA\"]\n"),
                "PCMA is listed twice",
            ),
            (
                format!("{conference}number=\"1\"\ncodecs=[\"GSM\"]\n"),
                "GSM",
            ),
            (
                format!("{conference}number=\"1\"\ninterface=\"b\"\n"),
                "interface",
            ),
            (
                format!("{conference}number=\"1\"\nfrom_trunk=\"b\"\n"),
                "trunk",
            ),
            (
                format!("{conference}number=\"1\"\n{conference}number=\"2\"\n"),
                "exists already",
            ),
            (
                format!("{conference}number=\"1\"\n[[conference]]\nname=\"n\"\nnumber=\"1\"\n"),
                "number 1 belongs to the conference in line",
            ),
            (
                format!("{conference}number=\"1\"\npin=\"1234\"\nmax_lobby=0\n"),
                "max_lobby",
            ),
        ] {
            let messages = with(&more).unwrap_err();
            assert!(messages.contains(expected), "{more}: {messages}");
            assert!(messages.contains("f:"), "with its line: {messages}");
        }
        let config = with(&format!("{conference}number=\"1\"\ncodecs=[\"G729\"]\n"));
        assert_eq!(config.is_ok(), codec::Kind::G729.is_available());
    }
}
