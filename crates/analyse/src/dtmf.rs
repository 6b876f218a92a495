//! DTMF digits from telephone events (RFC 4733).

use super::report::DtmfEvent;
use super::report::seconds;
use wire::rtp::TelephoneEvent;

/// Events kept of a stream.
const MAX_EVENTS: usize = 1000;
/// Events back to which the timestamp of a late packet is compared, before it counts as a new event.
const MEMORY: usize = 4;

#[derive(Clone, Debug)]
struct ReceivedEvent {
    timestamp: u32,
    event: TelephoneEvent,
    /// Duration of its earlier segments.
    earlier: u32,
    packets: u32,
    started: u64,
}

/// Collects the events of one stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Dtmf {
    events: Vec<ReceivedEvent>,
}

impl Dtmf {
    /// Takes the payload of an event packet.
    pub(super) fn receive(&mut self, time: u64, timestamp: u32, payload: &[u8]) {
        let Some(event) = TelephoneEvent::parse(payload) else {
            return;
        };
        let same = |known: &&mut ReceivedEvent| {
            known.timestamp == timestamp && known.event.event == event.event
        };
        if let Some(known) = self.events.iter_mut().rev().take(MEMORY).find(same) {
            known.packets += 1;
            known.event.duration = known.event.duration.max(event.duration);
            known.event.end |= event.end;
            return;
        }
        // A tone longer than the field continues under a later timestamp (RFC 4733 section 2.5.1.3).
        if let Some(last) = self.events.last_mut()
            && last.event.event == event.event
            && !last.event.end
            && last.event.duration == u16::MAX
            && timestamp == last.timestamp.wrapping_add(u32::from(u16::MAX))
        {
            last.timestamp = timestamp;
            last.earlier = last.earlier.saturating_add(u32::from(u16::MAX));
            last.event.duration = event.duration;
            last.packets += 1;
            last.event.end |= event.end;
            return;
        }
        if self.events.len() < MAX_EVENTS {
            self.events.push(ReceivedEvent {
                timestamp,
                event,
                earlier: 0,
                packets: 1,
                started: time,
            });
        }
    }

    /// The digits in order. With `sure` the payload type is declared as telephone-event; otherwise an event needs two
    /// packets.
    pub(super) fn report(&self, clock_rate: u32, sure: bool) -> Vec<DtmfEvent> {
        self.events
            .iter()
            .filter(|event| sure || event.packets >= 2)
            .filter_map(|event| {
                let duration = f64::from(event.earlier) + f64::from(event.event.duration);
                Some(DtmfEvent {
                    digit: event.event.digit()?.to_string(),
                    at: seconds(event.started),
                    duration_ms: duration * 1000.0 / f64::from(clock_rate.max(1)),
                    volume_dbm0: -i32::from(event.event.volume),
                    ended: event.event.end,
                })
            })
            .collect()
    }
}

/// Whether a packet of an undeclared dynamic payload type may be a telephone event.
pub(super) fn may_be_event(payload_type: u8, sent_length: usize, head: &[u8]) -> bool {
    payload_type >= 96
        && sent_length == 4
        && matches!(head, [0..=16, flags, ..] if flags & 0x40 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_a_long_digit_are_added() {
        let mut dtmf = Dtmf::default();
        let packet = |duration: u16, end: bool| {
            let event = TelephoneEvent {
                event: 5,
                end,
                volume: 10,
                duration,
            };
            event.to_bytes()
        };
        let (first, second) = (1_000, 1_000 + u32::from(u16::MAX));
        dtmf.receive(0, first, &packet(8_000, false));
        dtmf.receive(1, first, &packet(u16::MAX, false));
        dtmf.receive(2, second, &packet(160, false));
        dtmf.receive(3, second, &packet(14_465, true));
        let digits = dtmf.report(8_000, true);
        assert_eq!(digits.len(), 1);
        assert!((digits[0].duration_ms - 10_000.0).abs() < 1.0);
        assert!(digits[0].ended);
    }
}
