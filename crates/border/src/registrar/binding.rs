//! One registered contact, compact: its texts lie in one block.

use super::{Judged, Wanted};
use crate::config::InterfaceId;
use crate::policy::Contact;
use core::ops::Range;
use engine::Time;
use sip::Flow;
use wire::sip::{Params, Values};

#[derive(Clone, Debug)]
pub(super) struct Binding {
    /// URI, parameters, instance, Call-ID, Path; each ends where `ends` says.
    text: Box<[u8]>,
    ends: [u16; 4],
    pub(super) flow: Flow,
    pub(super) interface: InterfaceId,
    /// Preference in thousandths.
    pub(super) q: u16,
    pub(super) cseq: u32,
    /// RFC 5626; 0: none.
    pub(super) reg_id: u32,
    /// Last refreshed.
    pub(super) since: Time,
    /// Ends.
    pub(super) until: Time,
    /// Under which it was passed to the core; 0: kept here.
    pub(super) token: u64,
}

impl Binding {
    pub(super) fn new(
        wanted: &Wanted<'_>,
        judged: &Judged<'_>,
        interface: InterfaceId,
        flow: Flow,
        since: Time,
        until: Time,
        token: u64,
    ) -> Binding {
        let params = kept_params(wanted.address.params);
        let path = judged.path.join(&b","[..]);
        let parts = [
            wanted.address.uri,
            &params,
            wanted.instance,
            judged.call_id,
            &path,
        ];
        let mut text = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
        let mut ends = [0; 4];
        for (index, part) in parts.iter().enumerate() {
            text.extend_from_slice(part);
            if let Some(end) = ends.get_mut(index) {
                *end = u16::try_from(text.len()).unwrap_or(u16::MAX);
            }
        }
        Binding {
            text: text.into(),
            ends,
            flow,
            interface,
            q: wanted.address.q_thousandths().unwrap_or(1000),
            cseq: judged.cseq,
            reg_id: wanted.reg_id,
            since,
            until,
            token,
        }
    }

    fn part(&self, range: Range<u16>) -> &[u8] {
        self.text
            .get(usize::from(range.start)..usize::from(range.end))
            .unwrap_or_default()
    }

    pub(super) fn uri(&self) -> &[u8] {
        self.part(0..self.ends[0])
    }

    fn params(&self) -> &[u8] {
        self.part(self.ends[0]..self.ends[1])
    }

    pub(super) fn instance(&self) -> &[u8] {
        self.part(self.ends[1]..self.ends[2])
    }

    pub(super) fn call_id(&self) -> &[u8] {
        self.part(self.ends[2]..self.ends[3])
    }

    fn path(&self) -> &[u8] {
        self.text
            .get(usize::from(self.ends[3])..)
            .unwrap_or_default()
    }

    /// Rounded up: never zero while it stands.
    pub(super) fn seconds_left(&self, now: Time) -> u32 {
        let left = self.until.since(now);
        let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        u32::try_from(seconds).unwrap_or(u32::MAX)
    }

    /// As a 200 to REGISTER lists it.
    pub(super) fn listed(&self, now: Time) -> Vec<u8> {
        let mut value = b"<".to_vec();
        value.extend_from_slice(self.uri());
        value.push(b'>');
        value.extend_from_slice(self.params());
        value.extend_from_slice(format!(";expires={}", self.seconds_left(now)).as_bytes());
        value
    }

    pub(super) fn contact(&self) -> Contact {
        Contact {
            interface: self.interface,
            uri: self.uri().into(),
            path: Values::list(self.path()).map(Box::from).collect(),
            flow: self.flow,
            q: self.q,
        }
    }
}

/// Contact parameters without `expires`, each with its semicolon.
pub(super) fn kept_params(params: Params<'_>) -> Vec<u8> {
    let mut kept = Vec::new();
    for param in params
        .iter()
        .filter(|param| !param.name.eq_ignore_ascii_case(b"expires"))
    {
        kept.push(b';');
        kept.extend_from_slice(param.name);
        if let Some(value) = param.value {
            kept.push(b'=');
            kept.extend_from_slice(value);
        }
    }
    kept
}
