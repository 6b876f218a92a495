//! One registered contact in compact form: its texts share one allocation.

use super::{ContactRequest, ValidatedRegister};
use crate::policy::Contact;
use config::InterfaceId;
use core::ops::Range;
use engine::Time;
use sip::Flow;
use wire::sip::{HeaderId, Params, Values, append_decimal};

#[derive(Clone, Debug)]
pub(super) struct Binding {
    /// URI, parameters, instance, Call-ID, Path; `ends` has the end of each.
    pub(super) text: Box<[u8]>,
    pub(super) ends: [u16; 4],
    pub(super) flow: Flow,
    /// The interface of the flow when the binding was stored; a reload may have given it another index.
    pub(super) interface: InterfaceId,
    /// Preference in thousandths.
    pub(super) q: u16,
    pub(super) cseq: u32,
    /// reg-id of RFC 5626; 0: none.
    pub(super) reg_id: u32,
    /// Seconds granted with each REGISTER.
    pub(super) lifetime: u32,
    /// Time of the last refresh.
    pub(super) since: Time,
    /// Expiry.
    pub(super) until: Time,
    /// Expiry that was last drained for the file, in seconds.
    pub(super) written: u32,
    /// Token under which it was forwarded to the core; 0: kept here.
    pub(super) token: u64,
    /// State granted by the core.
    pub(super) core: CoreState,
}

/// State granted by the core for a forwarded contact.
#[derive(Clone, Debug, Default)]
pub(super) struct CoreState {
    /// Until then, unchanged REGISTERs are answered here.
    pub(super) due: Time,
    /// Expiry at the core.
    pub(super) until: Time,
    /// Other values of its response; usually none.
    pub(super) given: Option<Box<GrantedValues>>,
}

/// Values in each response to the phone until the core changes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GrantedValues {
    /// Contact parameters (including GRUU), each with its semicolon.
    pub(super) params: Vec<u8>,
    /// P-Associated-URI.
    pub(super) headers: Vec<(HeaderId, Vec<u8>)>,
}

impl Binding {
    pub(super) fn new(
        wanted: &ContactRequest<'_>,
        judged: &ValidatedRegister<'_>,
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
        let (text, ends) = Binding::text_of(parts);
        Binding {
            text,
            ends,
            flow,
            interface,
            q: wanted.address.q_thousandths().unwrap_or(1000),
            cseq: judged.cseq,
            reg_id: wanted.reg_id,
            lifetime: wanted.expires,
            since,
            until,
            written: 0,
            token,
            core: CoreState::default(),
        }
    }

    /// The concatenated texts, and the end of each except the last.
    pub(super) fn text_of(parts: [&[u8]; 5]) -> (Box<[u8]>, [u16; 4]) {
        let mut text = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
        let mut ends = [0; 4];
        for (index, part) in parts.iter().enumerate() {
            text.extend_from_slice(part);
            if let Some(end) = ends.get_mut(index) {
                *end = u16::try_from(text.len()).unwrap_or(u16::MAX);
            }
        }
        (text.into(), ends)
    }

    fn part(&self, range: Range<u16>) -> &[u8] {
        self.text
            .get(usize::from(range.start)..usize::from(range.end))
            .unwrap_or_default()
    }

    pub(super) fn uri(&self) -> &[u8] {
        self.part(0..self.ends[0])
    }

    pub(super) fn params(&self) -> &[u8] {
        self.part(self.ends[0]..self.ends[1])
    }

    pub(super) fn instance(&self) -> &[u8] {
        self.part(self.ends[1]..self.ends[2])
    }

    pub(super) fn call_id(&self) -> &[u8] {
        self.part(self.ends[2]..self.ends[3])
    }

    pub(super) fn path(&self) -> &[u8] {
        self.text
            .get(usize::from(self.ends[3])..)
            .unwrap_or_default()
    }

    /// Rounded up: never zero before the expiry.
    pub(super) fn seconds_left(&self, now: Time) -> u32 {
        let left = self.until.since(now);
        let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        u32::try_from(seconds).unwrap_or(u32::MAX)
    }

    /// Whether a contact of a REGISTER is this one, unchanged except for its lifetime.
    pub(super) fn is_repeated_by(
        &self,
        wanted: &ContactRequest<'_>,
        judged: &ValidatedRegister<'_>,
        flow: Flow,
    ) -> bool {
        self.token != 0
            && self.flow == flow
            && self.uri() == wanted.address.uri
            && self.call_id() == judged.call_id
            // An identical REGISTER is a repetition and gets the same response, because no transaction absorbed it.
            && judged.cseq >= self.cseq
            && self.reg_id == wanted.reg_id
            && self.instance() == wanted.instance
            && self.q == wanted.address.q_thousandths().unwrap_or(1000)
            && keeps(self.params(), wanted.address.params)
            && (judged.path.is_empty() == self.path().is_empty())
            && (judged.path.is_empty() || self.path() == judged.path.join(&b","[..]))
    }

    /// The value in the response to a forwarded REGISTER, with the values of the core.
    pub(super) fn listed_as_given(&self, now: Time) -> Vec<u8> {
        let mut value = Vec::with_capacity(self.uri().len() + 32);
        value.push(b'<');
        value.extend_from_slice(self.uri());
        value.push(b'>');
        if let Some(given) = &self.core.given {
            value.extend_from_slice(&given.params);
        }
        value.extend_from_slice(b";expires=");
        append_decimal(&mut value, u64::from(self.seconds_left(now)));
        value
    }

    /// The value in a 200 to REGISTER.
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

/// Whether `kept` is the result of [`kept_params`] for `params`.
fn keeps(kept: &[u8], params: Params<'_>) -> bool {
    let mut rest = kept;
    let mut eat = |text: &[u8]| {
        let next = rest.strip_prefix(text);
        rest = next.unwrap_or(rest);
        next.is_some()
    };
    let same = params
        .iter()
        .filter(|param| !param.name.eq_ignore_ascii_case(b"expires"))
        .all(|param| {
            eat(b";") && eat(param.name) && param.value.is_none_or(|value| eat(b"=") && eat(value))
        });
    same && rest.is_empty()
}

/// Contact parameters without `expires`, each with its semicolon.
pub(super) fn kept_params(params: Params<'_>) -> Vec<u8> {
    params_without(params, &[b"expires"])
}

/// Contact parameters without those with these names, each with its semicolon.
pub(super) fn params_without(params: Params<'_>, names: &[&[u8]]) -> Vec<u8> {
    let mut kept = Vec::new();
    for param in params.iter().filter(|param| {
        let mut names = names.iter();
        !names.any(|name| param.name.eq_ignore_ascii_case(name))
    }) {
        kept.push(b';');
        kept.extend_from_slice(param.name);
        if let Some(value) = param.value {
            kept.push(b'=');
            kept.extend_from_slice(value);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn kept_parameters_are_compared_by_value(text in "(;?(a|b|expires)(=(1|2|\"x;y\"))?){0,4}", other in "(;?(a|b|expires)(=(1|2|\"x;y\"))?){0,4}") {
            let (params, others) = (Params::new(text.as_bytes()), Params::new(other.as_bytes()));
            let kept = kept_params(params);
            prop_assert!(keeps(&kept, params));
            prop_assert_eq!(keeps(&kept, others), kept == kept_params(others));
        }
    }
}
