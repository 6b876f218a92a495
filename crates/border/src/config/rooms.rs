//! Conferences: names to indices, numbers and expressions, codecs that this build has.

use super::check::{Sink, interface_id, trunk_id};
use super::raw::*;
use super::{Interface, InterfaceId, TrunkId};
use codec::Kind;
use core::time::Duration;
use media::room::{MAX_COMMAND, RoomTerms};
use regex::Regex;
use smallvec::SmallVec;
use std::sync::Arc;

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
    if let Some(first) = raw.room.first()
        && raw.sip.workers > 1
    {
        sink.report(
            "room[0]",
            format!(
                "the participants of a conference have to be in one place, but {} workers have their calls in different ones",
                raw.sip.workers
            ),
            format!("set `workers` of [sip] to 1, or take [[room]] \"{}\" out", first.name),
        );
    }
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
