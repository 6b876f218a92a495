//! Call records (CDRs): one for each call, built from the events of the border.
//!
//! The fields are declared once; written forms (JSON, CSV) and the reference of docs/records.md follow from this list.

use crate::event::EventKind;
use crate::figures::{Hundredths, ReportedJitter};
use crate::{Event, Reason, Time};
use std::collections::BTreeMap;

/// A value of a record, in the unit that the name of its field states.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RecordValue<'a> {
    /// Not known, or not measured.
    Absent,
    /// Text.
    Text(&'a str),
    /// A whole number.
    Integer(u64),
    /// A figure with two decimals.
    Decimal(Hundredths),
    /// Milliseconds, written as seconds with three decimals.
    Milliseconds(u64),
    /// A time, written in RFC 3339 (UTC).
    At(Time),
    /// A condition.
    Flag(bool),
}

/// A field that can be written.
trait RecordField {
    fn value(&self) -> RecordValue<'_>;
}

macro_rules! record_fields {
    ($($type:ty: $own:ident => $value:expr,)*) => {
        $(impl RecordField for $type {
            fn value(&self) -> RecordValue<'_> {
                let $own = self;
                $value
            }
        })*
    };
}

record_fields! {
    u64: own => RecordValue::Integer(*own),
    u16: own => RecordValue::Integer((*own).into()),
    bool: own => RecordValue::Flag(*own),
    String: own => RecordValue::Text(own),
    Time: own => RecordValue::At(*own),
    Hundredths: own => RecordValue::Decimal(*own),
    ReportedJitter: own => match own {
        ReportedJitter::Measured(jitter) => RecordValue::Decimal(*jitter),
        ReportedJitter::Whole(ms) => RecordValue::Integer(*ms),
    },
    RecordedSpan: own => RecordValue::Milliseconds(own.0),
}

/// A duration in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordedSpan(pub u64);

impl<T: RecordField> RecordField for Option<T> {
    fn value(&self) -> RecordValue<'_> {
        self.as_ref().map_or(RecordValue::Absent, T::value)
    }
}

/// Declares a part of the record: the struct, the reference, and the list of its values.
macro_rules! record {
    ($(#[doc = $text:literal])* $name:ident { $($(#[doc = $ftext:literal])* $field:ident : $type:ty),* $(,)? }) => {
        $(#[doc = $text])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[doc = $ftext])* pub $field: $type,)* }

        impl $name {
            /// Names and meanings of the fields, in the order of writing.
            pub const REFERENCE: &'static [(&'static str, &'static str)] =
                &[$((stringify!($field), concat!($($ftext),*)),)*];

            /// Passes the name and the value of each field to `each`, in the order of writing.
            pub fn fields<'r>(&'r self, each: &mut dyn FnMut(&'static str, RecordValue<'r>)) {
                $(each(stringify!($field), RecordField::value(&self.$field));)*
            }
        }
    };
}

record! {
    /// Fields of a call. JSON has the legs and tags after them.
    CallFields {
        /// Identifier of the record: start of the program in microseconds since 1970, and the number of the call.
        id: String,
        /// Call-ID of the caller's leg.
        call_id: String,
        /// From URI of the caller.
        from: String,
        /// Request-URI of the caller's INVITE.
        to: String,
        /// Arrival of the INVITE.
        started: Time,
        /// Arrival of the answer; null for a call that was not answered.
        answered: Option<Time>,
        /// End of the call; of a cut call, the time at which the border was last seen running.
        ended: Time,
        /// Seconds from the answer to the end; 0 for a call that was not answered.
        duration_s: RecordedSpan,
        /// Final status sent to the caller; 200 for an answered call; 0 for a call that was cut before its answer.
        status: u16,
        /// The side that ended the call: caller, callee (by BYE or a refusal) or border (also if no target has
        /// responded).
        ended_by: String,
        /// Reason of the end, in a few words, as in the event call_ended.
        reason: String,
        /// Trunk of the callee; of a call that was not answered, the one to which it was sent last; otherwise the trunk
        /// from which it came; null without one.
        trunk: Option<String>,
        /// Route of the target that answered, otherwise of the last one: name of the route, default, registration, rule
        /// or redirect; transfer if a transfer has replaced a leg; null if no target was tried.
        route: Option<String>,
        /// Header rule that refused the call; null if none did.
        rule: Option<String>,
        /// Media path: sockets, kernel, af_xdp, conference, node or bypass, also if no packet came; null for a call
        /// that ended before it had one.
        path: Option<String>,
        /// Number of targets that were tried, those of transfers included.
        targets: u64,
        /// Milliseconds from the INVITE to its answer; null for a call that was not answered.
        setup_ms: Option<u64>,
        /// Whether the border stopped without ending the call (crash, power failure): the record was written at the
        /// next start.
        cut: bool,
    }
}

record! {
    /// Fields of a leg: the one that was connected at the end of the call, or tried last if none was. The first leg is
    /// that of the caller; JSON has the media after them.
    LegFields {
        /// Call-ID of the leg; null if the leg does not exist.
        call_id: Option<String>,
        /// Interface of the leg.
        interface: Option<String>,
        /// Transport and address of the peer.
        address: Option<String>,
        /// Trunk of the leg.
        trunk: Option<String>,
        /// Codec of the media received from the peer, by its name in SDP; without media, the one that was negotiated;
        /// null if there was no answer.
        codec: Option<String>,
        /// Protection of the media with the peer: none, or srtp with the crypto suite, for example
        /// srtp:AES_CM_128_HMAC_SHA1_80; null if the border does not see it.
        protection: Option<String>,
    }
}

record! {
    /// Media received from the peer of a leg, measured here; all fields are null for media bypass, and for a leg
    /// without media.
    MediaFields {
        /// RTP packets received from the peer, of all its streams.
        packets_received: Option<u64>,
        /// Packets of the peer that were lost before they arrived here.
        lost: Option<u64>,
        /// Lost packets in percent of those sent by the peer.
        loss_percent: Option<Hundredths>,
        /// Mean interarrival jitter of the main stream (RFC 3550), milliseconds; without decimals where a media node
        /// reports whole milliseconds.
        jitter_ms: Option<ReportedJitter>,
        /// Voice quality of the main stream by the E-model (G.107, G.107.1): MOS-CQE, 1 to 4.5.
        mos: Option<Hundredths>,
        /// RTP packets sent to the peer.
        packets_sent: Option<u64>,
        /// Packets sent to the peer that were lost on the way, by its last RTCP report.
        remote_lost: Option<u64>,
        /// One-way delay between border and peer, milliseconds: half the round-trip time measured by RTCP.
        delay_ms: Option<Hundredths>,
    }
}

/// A leg with its media.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LegRecord {
    /// The leg.
    pub leg: LegFields,
    /// Its media; `None` if the border does not see it.
    pub media: Option<MediaFields>,
}

/// The record of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallRecord {
    /// Number of the call, as in events.
    pub call: u64,
    /// The call.
    pub fields: CallFields,
    /// Legs of caller and callee.
    pub legs: [LegRecord; 2],
    /// Values that header rules stored with the call.
    pub tags: Vec<(String, String)>,
}

/// A change of the set of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordChange {
    /// A call has begun or has changed, by its number: [`RecordBuilder::running_call`] has its values so far.
    Running(u64),
    /// A call has ended: its complete record.
    Ended(Box<CallRecord>),
    /// A call has ended by a challenge to its INVITE, which is repeated: it gets no record. Its values so far.
    Challenged(Box<CallRecord>),
    /// A call has ended whose beginning is not known, because its events were lost.
    Lost,
}

/// Whether [`RecordBuilder::add`] uses an event.
pub fn is_recorded(event: &EventKind) -> bool {
    matches!(
        event,
        EventKind::CallOffered { .. }
            | EventKind::CallRouted { .. }
            | EventKind::RuleRefused { .. }
            | EventKind::CallAnswered { .. }
            | EventKind::LegReplaced { .. }
            | EventKind::CallTagged { .. }
            | EventKind::CallMedia { .. }
            | EventKind::CallMediaInterval { .. }
            | EventKind::CallEnded { .. }
            | EventKind::CallRefused { .. }
    )
}

/// Targets besides the last one that are remembered until the answer of a call, at most: a call has 16 hops.
const MAX_TARGETS: usize = 16;

/// A call that has not ended.
#[derive(Debug)]
struct OpenRecord {
    record: Box<CallRecord>,
    /// Legs and routes of targets before the last one, until one answers: several may ring at the same time.
    earlier: Vec<(LegFields, Option<String>)>,
}

impl OpenRecord {
    /// A target was tried. After the answer it is that of a transfer, which is not connected yet.
    fn route(&mut self, leg: LegFields, route: String) {
        let record = &mut self.record;
        record.fields.targets += 1;
        if record.fields.answered.is_some() {
            return;
        }
        let before = core::mem::replace(&mut record.legs[1].leg, leg);
        let before = (before, record.fields.route.replace(route));
        if before.0.call_id.is_some() {
            if self.earlier.len() >= MAX_TARGETS {
                self.earlier.remove(0);
            }
            self.earlier.push(before);
        }
        record.follow_trunk();
    }

    /// The leg with this Call-ID was answered.
    fn answer(&mut self, at: Time, setup_ms: Option<u64>, call_id: Option<&str>) {
        let record = &mut self.record;
        record.fields.answered = Some(at);
        record.fields.setup_ms = setup_ms;
        record.fields.status = 200;
        let mut earlier = core::mem::take(&mut self.earlier).into_iter();
        if call_id.is_some()
            && record.legs[1].leg.call_id.as_deref() != call_id
            && let Some((leg, route)) = earlier.find(|(leg, _)| leg.call_id.as_deref() == call_id)
        {
            record.legs[1].leg = leg;
            record.fields.route = route;
            record.follow_trunk();
        }
    }
}

impl CallRecord {
    /// The trunk of the call is that of the callee, otherwise that of the caller.
    fn follow_trunk(&mut self) {
        let [caller, callee] = &self.legs;
        let trunk = callee.leg.trunk.as_ref().or(caller.leg.trunk.as_ref());
        self.fields.trunk = trunk.cloned();
    }

    /// A leg of a side was replaced.
    fn replace_leg(&mut self, side: &str, leg: LegFields, is_transfer: bool) {
        let [caller, callee] = &mut self.legs;
        match side {
            "caller" => caller.leg = leg,
            _ => {
                callee.leg = leg;
                self.follow_trunk();
            }
        }
        if is_transfer {
            self.fields.route = Some("transfer".to_owned());
        }
    }
}

/// Builds records from events. Events of a call must be in order; those of several calls and workers may be mixed.
#[derive(Debug)]
pub struct RecordBuilder {
    /// Prefix of the identifiers.
    run: String,
    refused: u64,
    open: BTreeMap<u64, OpenRecord>,
}

impl RecordBuilder {
    /// No calls; `run` distinguishes the identifiers of this run of the program from those of others.
    pub fn new(run: String) -> RecordBuilder {
        RecordBuilder {
            run,
            refused: 0,
            open: BTreeMap::new(),
        }
    }

    /// Calls that have not ended, as far as known.
    pub fn running(&self) -> impl Iterator<Item = &CallRecord> {
        self.open.values().map(|open| &*open.record)
    }

    /// The values so far of a call that has not ended.
    pub fn running_call(&self, call: u64) -> Option<&CallRecord> {
        self.open.get(&call).map(|open| &*open.record)
    }

    fn record_mut(&mut self, call: u64) -> Option<&mut CallRecord> {
        self.open.get_mut(&call).map(|open| &mut *open.record)
    }

    /// Forgets a call whose end was lost; false if it was not known.
    pub fn forget(&mut self, call: u64) -> bool {
        self.open.remove(&call).is_some()
    }

    /// Adds an event.
    pub fn add(&mut self, event: Event) -> Option<RecordChange> {
        let at = event.at;
        match event.kind {
            EventKind::CallOffered {
                call,
                interface,
                call_id,
                from,
                to,
                source,
                trunk,
            } => {
                let record = self.begin(format!("{}-{call}", self.run), at);
                let record = CallRecord {
                    call,
                    fields: CallFields {
                        call_id: call_id.clone(),
                        from,
                        to,
                        trunk: trunk.clone(),
                        ..record.fields
                    },
                    legs: [
                        LegRecord {
                            leg: LegFields {
                                call_id: Some(call_id),
                                interface: Some(interface),
                                address: Some(source),
                                trunk,
                                ..LegFields::default()
                            },
                            media: None,
                        },
                        LegRecord::default(),
                    ],
                    ..record
                };
                let open = OpenRecord {
                    record: Box::new(record),
                    earlier: Vec::new(),
                };
                self.open.insert(call, open);
                Some(RecordChange::Running(call))
            }
            EventKind::CallRouted {
                call,
                route,
                address,
                call_id,
                interface,
                trunk,
                ..
            } => {
                let leg = LegFields {
                    call_id: Some(call_id),
                    interface: Some(interface),
                    address: Some(address),
                    trunk,
                    ..LegFields::default()
                };
                self.open.get_mut(&call)?.route(leg, route);
                Some(RecordChange::Running(call))
            }
            EventKind::CallAnswered {
                call,
                setup_ms,
                call_id,
            } => {
                let open = self.open.get_mut(&call)?;
                open.answer(at, setup_ms, call_id.as_deref());
                Some(RecordChange::Running(call))
            }
            EventKind::LegReplaced {
                call,
                side,
                cause,
                call_id,
                interface,
                address,
                trunk,
            } => {
                let leg = LegFields {
                    call_id: Some(call_id),
                    interface: Some(interface),
                    address: Some(address),
                    trunk,
                    ..LegFields::default()
                };
                let record = self.record_mut(call)?;
                record.replace_leg(&side, leg, cause == "transfer");
                Some(RecordChange::Running(call))
            }
            EventKind::CallTagged { call, tag, value } => {
                let record = self.record_mut(call)?;
                record.tags.retain(|(name, _)| *name != tag);
                record.tags.push((tag, value));
                Some(RecordChange::Running(call))
            }
            EventKind::RuleRefused { call, rule, .. } => {
                self.record_mut(call)?.fields.rule = Some(rule);
                None
            }
            EventKind::CallMedia { call, .. } => {
                add_media(self.record_mut(call)?, event.kind);
                None
            }
            EventKind::CallMediaInterval { call, .. } => {
                let record = self.record_mut(call)?;
                add_interval(record, event.kind);
                Some(RecordChange::Running(call))
            }
            EventKind::CallRefused { .. } => {
                Some(RecordChange::Ended(self.refused(at, event.kind)))
            }
            EventKind::CallEnded {
                call, ref reason, ..
            } => {
                let challenged = reason == Reason::Challenged.text();
                let Some(mut record) = self.open.remove(&call).map(|open| open.record) else {
                    return (!challenged).then_some(RecordChange::Lost);
                };
                if challenged {
                    return Some(RecordChange::Challenged(record));
                }
                end(&mut record, at, event.kind);
                Some(RecordChange::Ended(record))
            }
            _ => None,
        }
    }

    fn begin(&self, id: String, at: Time) -> CallRecord {
        CallRecord {
            fields: CallFields {
                id,
                started: at,
                ended: at,
                ..CallFields::default()
            },
            ..CallRecord::default()
        }
    }

    /// The record of an INVITE that was refused before it became a call.
    fn refused(&mut self, at: Time, kind: EventKind) -> Box<CallRecord> {
        self.refused += 1;
        let mut record = self.begin(format!("{}-r{}", self.run, self.refused), at);
        if let EventKind::CallRefused {
            interface,
            call_id,
            from,
            to,
            source,
            trunk,
            status,
            reason,
            route,
            rule,
        } = kind
        {
            record.fields.call_id.clone_from(&call_id);
            record.fields.from = from;
            record.fields.to = to;
            record.fields.status = status;
            record.fields.ended_by = "border".to_owned();
            record.fields.reason = reason;
            record.fields.route = route;
            record.fields.rule = rule;
            record.fields.trunk.clone_from(&trunk);
            record.legs[0].leg = LegFields {
                call_id: Some(call_id),
                interface: Some(interface),
                address: Some(source),
                trunk,
                ..LegFields::default()
            };
        }
        Box::new(record)
    }
}

/// Adds the totals of the media of an ended call.
fn add_media(record: &mut CallRecord, kind: EventKind) {
    let EventKind::CallMedia {
        caller_packets,
        caller_lost,
        caller_sent,
        caller_remote_lost,
        caller_delay_ms,
        caller_protection,
        callee_packets,
        callee_lost,
        callee_sent,
        callee_remote_lost,
        callee_delay_ms,
        callee_protection,
        ..
    } = kind
    else {
        return;
    };
    let [caller, callee] = &mut record.legs;
    caller.leg.protection = caller_protection;
    caller.media = Some(MediaFields {
        packets_received: caller_packets,
        lost: caller_lost,
        packets_sent: caller_sent,
        remote_lost: caller_remote_lost,
        delay_ms: caller_delay_ms,
        ..MediaFields::default()
    });
    callee.leg.protection = callee_protection;
    callee.media = Some(MediaFields {
        packets_received: callee_packets,
        lost: callee_lost,
        packets_sent: callee_sent,
        remote_lost: callee_remote_lost,
        delay_ms: callee_delay_ms,
        ..MediaFields::default()
    });
}

/// Adds an interval of a running call, which stands for its media if the program ends before the call; `call_media` and
/// `call_ended` replace it.
fn add_interval(record: &mut CallRecord, kind: EventKind) {
    let EventKind::CallMediaInterval {
        caller_packets,
        caller_lost,
        caller_jitter_ms,
        caller_mos,
        callee_packets,
        callee_lost,
        callee_jitter_ms,
        callee_mos,
        ..
    } = kind
    else {
        return;
    };
    let sides = [
        (caller_packets, caller_lost, caller_jitter_ms, caller_mos),
        (callee_packets, callee_lost, callee_jitter_ms, callee_mos),
    ];
    for (leg, (packets, lost, jitter_ms, mos)) in record.legs.iter_mut().zip(sides) {
        let Some(packets) = packets else { continue };
        let media = leg.media.get_or_insert_with(MediaFields::default);
        let before = media.packets_received.unwrap_or(0);
        // Means are weighted by packets.
        media.jitter_ms = match (media.jitter_ms, jitter_ms) {
            (Some(known), Some(new)) => Some(known.mean(before, new, packets)),
            (known, new) => known.or(new),
        };
        media.mos = match (media.mos, mos) {
            (Some(known), Some(new)) => Some(known.mean(before, new, packets)),
            (known, new) => known.or(new),
        };
        let packets = before.saturating_add(packets);
        media.packets_received = Some(packets);
        if let Some(lost) = lost {
            media.lost = Some(media.lost.unwrap_or(0).saturating_add(lost));
        }
        let sent = media.lost.unwrap_or(0).saturating_add(packets);
        media.loss_percent = media
            .lost
            .filter(|_| sent > 0)
            .map(|lost| Hundredths(lost.saturating_mul(10_000) / sent));
    }
}

/// Completes a record with the event of its end.
fn end(record: &mut CallRecord, at: Time, kind: EventKind) {
    let EventKind::CallEnded {
        ended_by,
        reason,
        status,
        duration_ms,
        trunk,
        path,
        codec,
        caller_loss_percent,
        caller_jitter_ms,
        caller_mos,
        callee_loss_percent,
        callee_jitter_ms,
        callee_mos,
        ..
    } = kind
    else {
        return;
    };
    let measured = path.as_deref().is_some_and(|path| path != "bypass");
    let duration = duration_ms.map(core::time::Duration::from_millis);
    if let (None, Some(duration)) = (record.fields.answered, duration) {
        // Only answered calls have a duration: the event of the answer was lost.
        let before = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        record.fields.answered = Some(Time(at.0.saturating_sub(before)).max(record.fields.started));
    }
    record.fields.ended = match (record.fields.answered, duration) {
        // The event waits for the statistics of the media; the duration was taken at the end.
        (Some(answered), Some(duration)) => answered + duration,
        _ => at,
    };
    record.fields.duration_s = RecordedSpan(duration_ms.unwrap_or(0));
    record.fields.status = status;
    record.fields.ended_by = ended_by;
    record.fields.reason = reason;
    record.fields.path = path;
    record.fields.trunk = trunk.map(String::from);
    // One name, or caller/callee where they differ; a name has no slash.
    let codecs = match codec.as_deref().and_then(|c| c.split_once('/')) {
        Some((caller, callee)) => [Some(caller.to_owned()), Some(callee.to_owned())],
        None => [codec.clone(), codec],
    };
    let quality = [
        (caller_loss_percent, caller_jitter_ms, caller_mos),
        (callee_loss_percent, callee_jitter_ms, callee_mos),
    ];
    let sides = codecs.into_iter().zip(quality);
    for (leg, (codec, (loss_percent, jitter_ms, mos))) in record.legs.iter_mut().zip(sides) {
        // The second leg of a conference does not exist.
        leg.leg.codec = codec.filter(|_| leg.leg.call_id.is_some());
        if !measured || leg.leg.call_id.is_none() {
            leg.media = None;
            leg.leg.protection = None;
            continue;
        }
        leg.media = Some(MediaFields {
            loss_percent,
            jitter_ms,
            mos,
            ..leg.media.take().unwrap_or_default()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(call: u64) -> EventKind {
        EventKind::CallOffered {
            call,
            interface: "access".into(),
            call_id: "a@x".into(),
            from: "sip:1@x".into(),
            to: "sip:2@x".into(),
            source: "udp:192.0.2.1:5060".into(),
            trunk: None,
        }
    }

    fn routed(call: u64, trunk: &str) -> EventKind {
        EventKind::CallRouted {
            call,
            route: "default".into(),
            target: trunk.into(),
            address: "udp:192.0.2.2:5060".into(),
            call_id: "b".into(),
            interface: "core".into(),
            trunk: Some(trunk.into()),
        }
    }

    /// A target of call 7 with this route and Call-ID.
    fn called(route: &str, call_id: &str) -> EventKind {
        EventKind::CallRouted {
            call: 7,
            route: route.into(),
            target: "2".into(),
            address: format!("udp:{call_id}:5060"),
            call_id: call_id.into(),
            interface: "core".into(),
            trunk: None,
        }
    }

    fn answered(call_id: &str) -> EventKind {
        EventKind::CallAnswered {
            call: 7,
            setup_ms: Some(900),
            call_id: Some(call_id.into()),
        }
    }

    fn replaced(side: &str, cause: &str) -> EventKind {
        EventKind::LegReplaced {
            call: 7,
            side: side.into(),
            cause: cause.into(),
            call_id: "new".into(),
            interface: "other".into(),
            address: "udp:192.0.2.9:5060".into(),
            trunk: Some("third".into()),
        }
    }

    /// The record of a call with these events after its offer.
    fn record_of(events: Vec<EventKind>) -> Box<CallRecord> {
        let mut builder = RecordBuilder::new("5".into());
        add(&mut builder, 0, offered(7));
        for kind in events {
            assert_eq!(add(&mut builder, 1, kind), Some(RecordChange::Running(7)));
        }
        match add(&mut builder, 9_000, ended(7)) {
            Some(RecordChange::Ended(record)) => record,
            other => panic!("{other:?}"),
        }
    }

    fn call_ids(record: &CallRecord) -> [&str; 2] {
        let legs = record.legs.each_ref();
        legs.map(|leg| leg.leg.call_id.as_deref().unwrap_or_default())
    }

    fn ended(call: u64) -> EventKind {
        EventKind::CallEnded {
            call,
            ended_by: "callee".into(),
            reason: "bye".into(),
            status: 200,
            duration_ms: Some(2_500),
            trunk: Some("pbx".into()),
            path: Some("sockets".into()),
            codec: Some("opus/PCMA".into()),
            caller_loss_percent: Some(Hundredths(125)),
            caller_jitter_ms: None,
            caller_mos: Some(Hundredths(430)),
            callee_loss_percent: None,
            callee_jitter_ms: None,
            callee_mos: None,
        }
    }

    fn media(call: u64) -> EventKind {
        EventKind::CallMedia {
            call,
            caller_packets: Some(79),
            caller_lost: Some(1),
            caller_sent: Some(80),
            caller_remote_lost: None,
            caller_delay_ms: None,
            caller_protection: Some("none".into()),
            callee_packets: Some(80),
            callee_lost: Some(0),
            callee_sent: Some(79),
            callee_remote_lost: None,
            callee_delay_ms: None,
            callee_protection: Some("none".into()),
        }
    }

    fn add(builder: &mut RecordBuilder, ms: u64, kind: EventKind) -> Option<RecordChange> {
        builder.add(Event::new(Time::from_millis(ms), kind))
    }

    #[test]
    fn record_of_a_call_follows_its_events() {
        let mut builder = RecordBuilder::new("5".into());
        let first = add(&mut builder, 100, offered(7));
        assert!(matches!(first, Some(RecordChange::Running(_))));
        for (ms, trunk) in [(101, "first"), (102, "pbx")] {
            // A crash while it rings leaves the target in the journal.
            let change = add(&mut builder, ms, routed(7, trunk));
            assert_eq!(change, Some(RecordChange::Running(7)));
            let record = builder.running_call(7).expect("in progress");
            assert_eq!(record.legs[1].leg.trunk.as_deref(), Some(trunk));
            assert_eq!(record.fields.route.as_deref(), Some("default"));
        }
        let answered = EventKind::CallAnswered {
            call: 7,
            setup_ms: Some(900),
            call_id: Some("b".into()),
        };
        add(&mut builder, 1_000, answered);
        // The statistics arrive later than the end.
        assert_eq!(add(&mut builder, 3_900, media(7)), None);
        let Some(RecordChange::Ended(record)) = add(&mut builder, 3_900, ended(7)) else {
            panic!("no record");
        };
        assert_eq!(builder.running().count(), 0);
        let fields = &record.fields;
        assert_eq!(fields.id, "5-7");
        assert_eq!(fields.ended, Time::from_millis(3_500));
        assert_eq!((fields.targets, fields.trunk.as_deref()), (2, Some("pbx")));
        assert_eq!(record.legs[0].leg.codec.as_deref(), Some("opus"));
        assert_eq!(record.legs[1].leg.codec.as_deref(), Some("PCMA"));
        let media = record.legs[0].media.as_ref().unwrap();
        assert_eq!((media.packets_received, media.lost), (Some(79), Some(1)));
        assert_eq!(
            (media.mos, media.packets_sent),
            (Some(Hundredths(430)), Some(80))
        );
    }

    /// The queue of the events was full when the answer came.
    #[test]
    fn answered_call_without_the_event_of_its_answer_has_its_time() {
        let mut builder = RecordBuilder::new("5".into());
        add(&mut builder, 100, offered(7));
        let Some(RecordChange::Ended(record)) = add(&mut builder, 5_000, ended(7)) else {
            panic!("no record");
        };
        let fields = &record.fields;
        assert_eq!(fields.answered, Some(Time::from_millis(2_500)));
        assert_eq!(fields.ended, Time::from_millis(5_000));
        assert_eq!(fields.duration_s, RecordedSpan(2_500));
    }

    /// Several contacts ring at the same time.
    #[test]
    fn callee_is_the_target_that_answered() {
        for answers in ["a", "b", "c"] {
            let targets = ["a", "b", "c"].map(|id| called(&format!("route {id}"), id));
            let mut events = Vec::from(targets);
            events.push(answered(answers));
            let record = record_of(events);
            let leg = &record.legs[1].leg;
            assert_eq!(leg.call_id.as_deref(), Some(answers));
            assert_eq!(leg.address, Some(format!("udp:{answers}:5060")));
            assert_eq!(record.fields.route, Some(format!("route {answers}")));
            assert_eq!(record.fields.targets, 3);
        }
    }

    #[test]
    fn target_of_a_failed_transfer_is_not_the_callee() {
        let transfer = called("transfer", "busy");
        let record = record_of(vec![called("default", "b"), answered("b"), transfer]);
        assert_eq!(call_ids(&record), ["a@x", "b"]);
        assert_eq!(record.fields.route.as_deref(), Some("default"));
        assert_eq!(record.fields.targets, 2);
    }

    #[test]
    fn leg_of_a_transfer_stands_on_the_side_that_it_replaced() {
        for (side, expected) in [("caller", ["new", "b"]), ("callee", ["a@x", "new"])] {
            let record = record_of(vec![
                called("default", "b"),
                answered("b"),
                called("transfer", "new"),
                replaced(side, "transfer"),
            ]);
            assert_eq!(call_ids(&record), expected);
            assert_eq!(record.fields.call_id, "a@x");
            assert_eq!(record.fields.route.as_deref(), Some("transfer"));
            let new = &record.legs[usize::from(side == "callee")].leg;
            assert_eq!(new.trunk.as_deref(), Some("third"));
            assert_eq!(new.interface.as_deref(), Some("other"));
        }
    }

    #[test]
    fn leg_of_an_invite_with_replaces_keeps_the_route_of_the_call() {
        let record = record_of(vec![
            called("default", "b"),
            answered("b"),
            replaced("callee", "replaces"),
        ]);
        assert_eq!(call_ids(&record), ["a@x", "new"]);
        assert_eq!(record.fields.route.as_deref(), Some("default"));
    }

    #[test]
    fn rule_that_refuses_towards_the_target_is_in_the_record() {
        let mut builder = RecordBuilder::new("5".into());
        add(&mut builder, 1, offered(3));
        let refused = EventKind::RuleRefused {
            rule: "no 0900".into(),
            call: 3,
            status: 480,
        };
        add(&mut builder, 2, refused);
        let Some(RecordChange::Ended(record)) = add(&mut builder, 3, ended(3)) else {
            panic!("no record");
        };
        assert_eq!(record.fields.rule.as_deref(), Some("no 0900"));
    }

    #[test]
    fn end_of_an_unknown_call_is_a_lost_record() {
        let mut builder = RecordBuilder::new("5".into());
        assert_eq!(add(&mut builder, 1, ended(3)), Some(RecordChange::Lost));
        add(&mut builder, 2, offered(4));
        assert!(builder.forget(4) && !builder.forget(4));
    }

    #[test]
    fn refused_call_is_a_record_without_a_second_leg() {
        let mut builder = RecordBuilder::new("5".into());
        let refused = EventKind::CallRefused {
            interface: "access".into(),
            call_id: "a".into(),
            from: "sip:1@x".into(),
            to: "sip:2@x".into(),
            source: "udp:192.0.2.1:5060".into(),
            trunk: None,
            status: 403,
            reason: "refused by a route".into(),
            route: Some("premium".into()),
            rule: Some("no 0900".into()),
        };
        let Some(RecordChange::Ended(record)) = add(&mut builder, 1, refused) else {
            panic!("no record");
        };
        assert_eq!((record.fields.status, record.fields.answered), (403, None));
        assert_eq!(record.fields.route.as_deref(), Some("premium"));
        assert_eq!(record.fields.rule.as_deref(), Some("no 0900"));
        assert_eq!(record.fields.ended_by, "border");
        assert_eq!(record.legs[1], LegRecord::default());
    }

    #[test]
    fn intervals_stand_for_the_media_of_a_running_call() {
        let mut builder = RecordBuilder::new("5".into());
        add(&mut builder, 1, offered(1));
        let interval =
            |packets: u64, lost: u64, jitter: u64, mos: u64| EventKind::CallMediaInterval {
                call: 1,
                interval_ms: 10_000,
                caller_packets: Some(packets),
                caller_lost: Some(lost),
                caller_loss_percent: None,
                caller_jitter_ms: Some(ReportedJitter::Measured(Hundredths(jitter))),
                caller_mos: Some(Hundredths(mos)),
                callee_packets: None,
                callee_lost: None,
                callee_loss_percent: None,
                callee_jitter_ms: None,
                callee_mos: None,
            };
        add(&mut builder, 10_000, interval(300, 0, 100, 440));
        let change = add(&mut builder, 20_000, interval(100, 100, 300, 400));
        assert_eq!(change, Some(RecordChange::Running(1)));
        let record = builder.running_call(1).expect("in progress");
        let caller = record.legs[0].media.as_ref().unwrap();
        assert_eq!(
            (caller.packets_received, caller.lost),
            (Some(400), Some(100))
        );
        assert_eq!(caller.loss_percent, Some(Hundredths(2_000)));
        let jitter = ReportedJitter::Measured(Hundredths(150));
        assert_eq!(
            (caller.jitter_ms, caller.mos),
            (Some(jitter), Some(Hundredths(430)))
        );
        assert_eq!(record.legs[1].media, None);
        // The figures of the whole call replace them.
        add(&mut builder, 25_000, media(1));
        let Some(RecordChange::Ended(record)) = add(&mut builder, 25_000, ended(1)) else {
            panic!("no record");
        };
        let caller = record.legs[0].media.as_ref().unwrap();
        assert_eq!(
            (caller.packets_received, caller.jitter_ms),
            (Some(79), None)
        );
    }

    #[test]
    fn media_bypass_has_no_media() {
        let mut builder = RecordBuilder::new("5".into());
        add(&mut builder, 1, offered(1));
        add(&mut builder, 2, media(1));
        let mut end = ended(1);
        if let EventKind::CallEnded { path, .. } = &mut end {
            *path = Some("bypass".into());
        }
        let Some(RecordChange::Ended(record)) = add(&mut builder, 2, end) else {
            panic!("no record");
        };
        assert!(record.legs.iter().all(|leg| leg.media.is_none()));
        assert_eq!(record.legs[0].leg.codec.as_deref(), Some("opus"));
    }

    /// A challenged INVITE is repeated as a call of its own.
    #[test]
    fn challenged_call_has_no_record() {
        let mut builder = RecordBuilder::new("5".into());
        let challenged = |call| {
            let mut end = ended(call);
            if let EventKind::CallEnded { reason, status, .. } = &mut end {
                (*reason, *status) = (Reason::Challenged.text().to_owned(), 407);
            }
            end
        };
        add(&mut builder, 1, offered(1));
        let change = add(&mut builder, 2, challenged(1));
        assert!(matches!(change, Some(RecordChange::Challenged(record)) if record.call == 1));
        assert_eq!(builder.running().count(), 0);
        assert_eq!(add(&mut builder, 3, challenged(2)), None);
    }
}
