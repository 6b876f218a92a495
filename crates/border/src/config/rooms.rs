//! Conferences: names to indices, numbers and expressions, codecs that this build has.

use super::check::{Sink, interface_id, trunk_id};
use super::raw::{OneOrMany, Raw};
use super::{Interface, InterfaceId, TrunkId};
use codec::Kind;
use core::time::Duration;
use media::room::{MAX_COMMAND, RoomTerms};
use regex::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use smallvec::SmallVec;
use std::sync::Arc;
use subtle::ConstantTimeEq as _;

/// A codec of a conference.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
pub(super) enum RawRoomCodec {
    /// Opus (RFC 7587), mono.
    #[serde(rename = "opus")]
    Opus,
    /// G.722.
    G722,
    /// G.711 A-law.
    #[serde(rename = "PCMA")]
    Pcma,
    /// G.711 mu-law.
    #[serde(rename = "PCMU")]
    Pcmu,
    /// G.729, where libbcg729 was there when the program was built.
    G729,
}

/// When a conference plays a tone.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawTones {
    /// When somebody comes, and when somebody leaves.
    #[default]
    Both,
    /// When somebody comes.
    Entry,
    /// When somebody leaves.
    Leave,
    /// Never.
    None,
}

/// Conferences. Each number that is called is one of its own: everyone in it hears all others who speak.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRoom {
    /// Its name, unique; for events.
    #[schemars(length(min = 1))]
    pub name: String,
    /// The numbers (or users) that are called.
    #[serde(default)]
    pub number: OneOrMany<String>,
    /// A regular expression that a whole called number matches, instead of `number` or beside it.
    pub regex: Option<String>,
    /// Condition: interfaces on which the call came.
    #[serde(default)]
    pub interface: OneOrMany<String>,
    /// Condition: trunks from which the call came.
    #[serde(default)]
    pub from_trunk: OneOrMany<String>,
    /// Participants of one conference at a time; further ones are answered 486.
    #[serde(default = "room_seats")]
    #[schemars(range(min = 2, max = 500))]
    pub seats: u16,
    /// Conferences of this entry at a time; who would begin a further one is answered 503.
    #[serde(default = "room_rooms")]
    #[schemars(range(min = 1, max = 10000))]
    pub rooms: u32,
    /// How many are heard at the same time: the loudest of those who speak.
    #[serde(default = "room_speakers")]
    #[schemars(range(min = 1, max = 16))]
    pub speakers: u16,
    /// The codecs that are taken, the preferred one first. Default: opus, G722, PCMA, PCMU, and G729 where this build has it.
    #[serde(default)]
    pub codecs: Vec<RawRoomCodec>,
    /// Milliseconds of a packet towards participants who do not wish for another time.
    #[serde(default = "room_packet_time")]
    #[schemars(range(min = 10, max = 60))]
    pub packet_time: u32,
    /// When a tone is played to all.
    #[serde(default)]
    pub tones: RawTones,
    /// The digits by which participants silence themselves, and are heard again; empty: there are none.
    #[serde(default = "room_mute")]
    #[schemars(length(max = 8))]
    pub mute: String,
    /// The PIN that callers have to give: 4 to 16 digits, dialled after a tone, ended by `#` or by their number. They are heard as
    /// telephone events (RFC 4733), and where none were agreed upon in the sound, but for G.729. Until then they hear nobody and are heard by nobody. The third wrong one, or half a minute, ends the call.
    #[schemars(length(min = 4, max = 16))]
    pub pin: Option<String>,
    /// How many callers may wait at a time who have yet to give the PIN, in all conferences of this entry (of several workers, at each of them).
    /// They have places of their own. Where all are taken, who has been still for longest gives way: at once, where his source holds
    /// more places than the newcomer's, otherwise after 10 s, unless it holds fewer; where nobody does, the newcomer is answered 486. A source is a user who has
    /// proven who he is, a caller as a trunk names him, or an address (of IPv6, its /64).
    #[serde(default = "room_waiting")]
    #[schemars(range(min = 1, max = 10000))]
    pub waiting: u16,
    /// How long a late packet is waited for at most; milliseconds.
    #[serde(default = "room_max_delay")]
    #[schemars(range(min = 20, max = 1000))]
    pub max_delay: u32,
    /// Whether nothing is sent while nobody speaks, to those who take comfort noise (RFC 3389), or whose codec has silence
    /// suppression of its own.
    #[serde(default)]
    pub silence_suppression: bool,
}

fn room_seats() -> u16 {
    32
}

fn room_rooms() -> u32 {
    100
}

fn room_speakers() -> u16 {
    4
}

fn room_packet_time() -> u32 {
    20
}

fn room_mute() -> String {
    "*6".to_owned()
}

fn room_waiting() -> u16 {
    100
}

fn room_max_delay() -> u32 {
    200
}

/// Digits of a PIN at most.
pub const MAX_PIN: usize = 16;
/// Digits of a PIN at least.
const MIN_PIN: usize = 4;

/// The PIN of a conference. It is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Pin {
    /// Padded with zeros, which are no digits.
    digits: [u8; MAX_PIN],
    length: u8,
}

impl Pin {
    /// A PIN; none where the text is not 4 to 16 digits.
    pub fn new(text: &str) -> Option<Pin> {
        let good = (MIN_PIN..=MAX_PIN).contains(&text.len())
            && text.bytes().all(|digit| digit.is_ascii_digit());
        let digits = good.then(|| padded(text.as_bytes()))??;
        Some(Pin {
            digits,
            length: text.len() as u8,
        })
    }

    /// How many digits it has.
    pub fn digits(&self) -> usize {
        self.length.into()
    }

    /// Whether these are its digits. It takes as long whichever of them are wrong.
    pub fn is(&self, typed: &[u8]) -> bool {
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

/// Conferences of one kind.
#[derive(Clone, Debug)]
pub struct Room {
    /// Its name.
    pub name: String,
    /// Numbers that are called.
    pub numbers: Vec<String>,
    /// What called numbers match otherwise, as a whole.
    pub regex: Option<Regex>,
    /// Interfaces on which calls come; none: any.
    pub interfaces: Vec<InterfaceId>,
    /// Trunks from which calls come; none: any.
    pub from_trunks: Vec<TrunkId>,
    /// Conferences at a time.
    pub rooms: u32,
    /// Codecs, the preferred one first.
    pub codecs: Vec<Kind>,
    /// Milliseconds of a packet where no other time is wished for.
    pub packet_ms: u32,
    /// Whether nothing is sent while nobody speaks, where that can be.
    pub suppress_silence: bool,
    /// What callers have to give.
    pub pin: Option<Pin>,
    /// How many may wait at a time who have yet to give it.
    pub waiting: u16,
    /// What media has to know.
    pub terms: RoomTerms,
}

impl Room {
    /// Whether a call to `number` is for one of these.
    pub fn takes(&self, number: &str, interface: InterfaceId, trunk: Option<TrunkId>) -> bool {
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

pub(super) fn check(raw: &Raw, interfaces: &[Interface], sink: &mut Sink<'_>) -> Vec<Arc<Room>> {
    let mut rooms: Vec<Arc<Room>> = Vec::new();
    for (index, room) in raw.room.iter().enumerate() {
        let checked = room_of(raw, room, index, interfaces, sink);
        for (at, number) in checked.numbers.iter().enumerate() {
            let earlier = rooms.iter().position(|other| {
                other.numbers.contains(number)
                    && other.interfaces == checked.interfaces
                    && other.from_trunks == checked.from_trunks
            });
            if let Some(earlier) = earlier {
                let line = sink.line(&format!("room[{earlier}]"));
                sink.report(
                    &room.number.path(&format!("room[{index}].number"), at),
                    format!("calls to {number} go to the conference in line {line}"),
                    "give this one another number",
                );
            }
        }
        rooms.push(Arc::new(checked));
    }
    rooms
}

fn room_of(
    raw: &Raw,
    room: &RawRoom,
    index: usize,
    interfaces: &[Interface],
    sink: &mut Sink<'_>,
) -> Room {
    let path = format!("room[{index}]");
    if room.number.as_slice().is_empty() && room.regex.is_none() {
        sink.report(
            &path,
            "nobody can call this conference: it has no number",
            "add number = \"...\" or regex = \"...\"",
        );
    }
    for (at, number) in room.number.as_slice().iter().enumerate() {
        if number.is_empty()
            || number
                .bytes()
                .any(|b| b <= b' ' || b >= 0x7f || b"<>@\"".contains(&b))
        {
            sink.report(
                &room.number.path(&format!("{path}.number"), at),
                format!("\"{number}\" is no number that can be called"),
                "use digits, letters and - _ . + * #",
            );
        }
    }
    let regex = room
        .regex
        .as_ref()
        .and_then(|text| super::routes::anchored(text, &format!("{path}.regex"), sink));
    let mut here = Vec::new();
    for (at, name) in room.interface.as_slice().iter().enumerate() {
        let at = room.interface.path(&format!("{path}.interface"), at);
        here.push(interface_id(raw, name, &at, sink));
    }
    let mut from_trunks = Vec::new();
    for (at, name) in room.from_trunk.as_slice().iter().enumerate() {
        let at = room.from_trunk.path(&format!("{path}.from_trunk"), at);
        from_trunks.push(trunk_id(raw, name, &at, sink));
    }
    for (number, interface) in interfaces.iter().enumerate() {
        let id = InterfaceId(u16::try_from(number).unwrap_or(u16::MAX));
        if (here.is_empty() || here.contains(&id)) && interface.media.is_empty() {
            sink.report(
                &path,
                format!(
                    "interface \"{}\" has no media ports, so that calls on it can take no part in a conference",
                    interface.name
                ),
                "give the interface `media`, or name the room's interfaces with `interface`",
            );
        }
    }
    let mute = room.mute.as_bytes();
    if mute.len() > MAX_COMMAND
        || mute
            .iter()
            .any(|digit| !b"0123456789*#ABCD".contains(digit))
    {
        sink.report(
            &format!("{path}.mute"),
            format!("\"{}\" cannot be dialled as digits", room.mute),
            "use digits, * and #",
        );
    }
    let pin = room.pin.as_deref().map(Pin::new);
    if pin.as_ref().is_some_and(Option::is_none) {
        sink.report(
            &format!("{path}.pin"),
            "this is no PIN that can be dialled",
            format!("write {MIN_PIN} to {MAX_PIN} digits, in quotes"),
        );
    }
    if !room.packet_time.is_multiple_of(10) {
        sink.report(
            &format!("{path}.packet_time"),
            format!("no packet lasts {} ms", room.packet_time),
            "write 10, 20, 30, 40, 50 or 60",
        );
    }
    Room {
        name: room.name.clone(),
        numbers: room.number.as_slice().to_vec(),
        regex,
        interfaces: here,
        from_trunks,
        rooms: room.rooms,
        codecs: codecs(room, &path, sink),
        packet_ms: room.packet_time,
        suppress_silence: room.silence_suppression,
        pin: pin.flatten(),
        waiting: room.waiting,
        terms: RoomTerms {
            seats: room.seats,
            speakers: room.speakers,
            entry_tone: matches!(room.tones, RawTones::Both | RawTones::Entry),
            leave_tone: matches!(room.tones, RawTones::Both | RawTones::Leave),
            mute: SmallVec::from_slice(mute),
            max_delay: Duration::from_millis(room.max_delay.into()),
        },
    }
}

fn codecs(room: &RawRoom, path: &str, sink: &mut Sink<'_>) -> Vec<Kind> {
    if room.codecs.is_empty() {
        return Kind::ALL
            .into_iter()
            .filter(|kind| kind.is_available())
            .collect();
    }
    let mut kinds = Vec::new();
    for (at, codec) in room.codecs.iter().enumerate() {
        let at = format!("{path}.codecs[{at}]");
        let kind = match codec {
            RawRoomCodec::Opus => Kind::Opus,
            RawRoomCodec::G722 => Kind::G722,
            RawRoomCodec::Pcma => Kind::Pcma,
            RawRoomCodec::Pcmu => Kind::Pcmu,
            RawRoomCodec::G729 => Kind::G729,
        };
        if kinds.contains(&kind) {
            sink.report(
                &at,
                format!("{} is there twice", kind.name()),
                "take one of the two out",
            );
        }
        if !kind.is_available() {
            sink.report(
                &at,
                format!("this program was built without {}", kind.name()),
                "take it out, or build with libbcg729 (Debian: libbcg729-dev)",
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
    fn conferences() {
        let head = "[[interface]]\nname=\"a\"\nkind=\"core\"\nlisten=\"udp:192.0.2.1:5060\"\n";
        let with = |more: &str| {
            parse(&format!("{head}{more}"), "f")
                .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect::<String>())
        };
        let room = "[[room]]\nname=\"m\"\n";
        let config = with(&format!("{room}number=\"800\"\nregex='9\\d'\n")).unwrap();
        let meeting = &config.rooms[0];
        let here = InterfaceId(0);
        assert!(meeting.takes("800", here, None) && meeting.takes("91", here, None));
        assert!(!meeting.takes("8000", here, None) && !meeting.takes("911", here, None));
        assert_eq!((meeting.rooms, meeting.packet_ms), (100, 20));
        assert_eq!(meeting.waiting, 100);
        assert_eq!(meeting.terms, media::room::RoomTerms::default());
        assert_eq!(meeting.codecs[0], codec::Kind::Opus);
        let narrow = format!(
            "{room}number=\"800\"\ncodecs=[\"PCMU\",\"PCMA\"]\ntones=\"leave\"\nmute=\"\"\nseats=3\nspeakers=2\npacket_time=30\n"
        );
        let config = with(&narrow).unwrap();
        let terms = &config.rooms[0].terms;
        assert_eq!(
            config.rooms[0].codecs,
            [codec::Kind::Pcmu, codec::Kind::Pcma]
        );
        assert_eq!(
            (terms.entry_tone, terms.leave_tone, terms.seats),
            (false, true, 3)
        );
        assert!(terms.mute.is_empty());
        for (more, expected) in [
            (room.to_owned(), "it has no number"),
            (
                format!("{room}number=\"\"\n"),
                "is no number that can be called",
            ),
            (format!("{room}regex=\"(\"\n"), "is no regular expression"),
            (format!("{room}number=\"1\"\nseats=1\n"), "seats"),
            (format!("{room}number=\"1\"\nspeakers=0\n"), "speakers"),
            (format!("{room}number=\"1\"\npin=\"123\"\n"), "pin"),
            (
                format!("{room}number=\"1\"\npin=\"12#4\"\n"),
                "no PIN that can be dialled",
            ),
            (format!("{room}number=\"1\"\npin=1234\n"), "pin"),
            (
                format!("{room}number=\"1\"\nmute=\"x\"\n"),
                "cannot be dialled",
            ),
            (
                format!("{room}number=\"1\"\npacket_time=25\n"),
                "no packet lasts 25 ms",
            ),
            (
                format!("{room}number=\"1\"\ncodecs=[\"PCMA\",\"PCMA\"]\n"),
                "PCMA is there twice",
            ),
            (format!("{room}number=\"1\"\ncodecs=[\"GSM\"]\n"), "GSM"),
            (
                format!("{room}number=\"1\"\ninterface=\"b\"\n"),
                "interface",
            ),
            (format!("{room}number=\"1\"\nfrom_trunk=\"b\"\n"), "trunk"),
            (
                format!("{room}number=\"1\"\n{room}number=\"2\"\n"),
                "is there already",
            ),
            (
                format!("{room}number=\"1\"\n[[room]]\nname=\"n\"\nnumber=\"1\"\n"),
                "calls to 1 go to the conference in line",
            ),
            (
                format!("{room}number=\"1\"\npin=\"1234\"\nwaiting=0\n"),
                "waiting",
            ),
        ] {
            let said = with(&more).unwrap_err();
            assert!(said.contains(expected), "{more}: {said}");
            assert!(said.contains("f:"), "with its line: {said}");
        }
        let config = with(&format!("{room}number=\"1\"\ncodecs=[\"G729\"]\n"));
        assert_eq!(config.is_ok(), codec::Kind::G729.is_available());
    }
}
