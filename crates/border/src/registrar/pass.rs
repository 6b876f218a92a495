//! Registrations that are passed to the core: our Contact goes there in the place of the phone's, with a token by which
//! the core's calls find the phone; how long it lasts is what the core's answer says.

use super::binding::{Binding, Core, Given, kept_params};
use super::{Answer, LONGEST, Location, MAX_KEPT, MAX_LISTED, TOKEN, Wanted};
use crate::config::InterfaceId;
use crate::policy::escape_user;
use core::hash::BuildHasher as _;
use core::time::Duration;
use engine::{Time, Transport};
use sip::Flow;
use wire::sip::{HeaderId, Message, NameAddr, Uri};

/// A REGISTER on its way to the core: what to send, and what to remember until the answer comes.
#[derive(Clone, Debug)]
pub struct Passing {
    /// The user part of the address of record.
    pub user: String,
    /// Contact values for the core, in the place of the phone's; empty: the phone only asks.
    pub contacts: Vec<Vec<u8>>,
    /// Call-ID for the core: the same for all REGISTERs that carry the same one of the phone's (RFC 3261 section 10.2),
    /// which itself may name the phone's address.
    pub call_id: String,
    /// What the phone supports and the core has to know: all but `outbound`, whose flow ends at us.
    pub supported: Vec<u8>,
    /// The phone's REGISTER.
    request: Box<[u8]>,
    tokens: Vec<u64>,
    interface: InterfaceId,
    flow: Flow,
}

impl Passing {
    /// The phone's REGISTER.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Where it came in.
    pub fn interface(&self) -> InterfaceId {
        self.interface
    }
}

impl Location {
    /// Prepares a REGISTER for the core. `host` is our `host[:port]` as the core reaches it, over `transport`.
    ///
    /// # Errors
    /// What to answer the phone at once: a REGISTER that no registrar would take, or no room.
    pub fn pass(
        &mut self,
        user: &str,
        request: &Message<'_>,
        interface: InterfaceId,
        flow: Flow,
        host: &str,
        transport: Transport,
    ) -> Result<Passing, Box<Answer>> {
        let judged = self.judge(request, flow)?;
        self.admit(user, &judged)?;
        let mut passing = Passing {
            user: user.to_owned(),
            contacts: Vec::new(),
            call_id: self.call_id_for(user, judged.call_id),
            supported: supported(request),
            request: request.bytes().into(),
            tokens: Vec::new(),
            interface,
            flow,
        };
        if judged.star {
            passing.contacts.push(b"*".to_vec());
        }
        for wanted in &judged.contacts {
            let known = self
                .find(user, wanted)
                .and_then(|place| self.bindings_of(user).get(place))
                .map_or(0, |binding| binding.token);
            let token = match known {
                0 => self.entropy.u64() | 1,
                known => known,
            };
            let expires = self.asked_of_core(wanted);
            passing
                .contacts
                .push(our_contact(user, wanted, host, transport, token, expires));
            passing.tokens.push(token);
        }
        Ok(passing)
    }

    /// Seconds that the core is asked for: long enough that the phone's next REGISTERs can be answered here.
    fn asked_of_core(&self, wanted: &Wanted<'_>) -> u32 {
        match (wanted.expires, self.settings.pass_every) {
            (0, _) => 0,
            (_, 0) => wanted.wish,
            (_, every) => wanted.wish.max(every.saturating_mul(2)).min(LONGEST),
        }
    }

    fn call_id_for(&self, user: &str, call_id: &[u8]) -> String {
        let half = |number: u8| self.disguise.hash_one((number, user, call_id));
        format!("{:016x}{:016x}", half(0), half(1))
    }

    /// The core took it (a 2xx): stores what it stored, and gives the Contacts for the phone. Other headers of the
    /// response pass as they came. For any other answer of the core there is nothing to do here.
    pub fn passed(&mut self, passing: &Passing, response: &Message<'_>, now: Time) -> Answer {
        let mut answer = Answer {
            status: response.status(),
            ..Answer::default()
        };
        let Ok(request) = Message::parse(&passing.request) else {
            return Answer::refuse(500, "Registration Lost");
        };
        // It was judged before; the settings may have changed meanwhile.
        let Ok(judged) = self.judge(&request, passing.flow) else {
            return Answer::refuse(500, "Registration Refused Meanwhile");
        };
        let user = passing.user.as_str();
        let before = self.bindings_of(user).len();
        if judged.star {
            self.remove(user, |binding| binding.token != 0);
        }
        let granted: Vec<u32> = judged
            .contacts
            .iter()
            .zip(&passing.tokens)
            .map(|(wanted, &token)| granted(response, token, self.asked_of_core(wanted)))
            .collect();
        // Removals first: they make room for the others.
        for (wanted, _) in judged
            .contacts
            .iter()
            .zip(&granted)
            .filter(|(_, seconds)| **seconds == 0)
        {
            if let Some(place) = self.find(user, wanted) {
                self.remove_at(user, place);
            }
        }
        let contacts = judged.contacts.iter().zip(&passing.tokens).zip(&granted);
        for ((wanted, &token), &seconds) in contacts.filter(|(_, seconds)| **seconds > 0) {
            let place = self.find(user, wanted);
            let until = now + Duration::from_secs(u64::from(seconds.min(wanted.expires)));
            let (interface, flow) = (passing.interface, passing.flow);
            let mut fresh = Binding::new(wanted, &judged, interface, flow, now, until, token);
            let answered_here = (seconds / 2).min(self.settings.pass_every);
            fresh.core = Core {
                due: now + Duration::from_secs(u64::from(answered_here)),
                until: now + Duration::from_secs(u64::from(seconds)),
                given: given(response, token),
            };
            self.put(user, place, fresh);
        }
        self.schedule(user);
        let changed = judged.star || !judged.contacts.is_empty();
        self.tell(user, before, changed, now, &mut answer.notes);
        for contact in response.contacts().take(MAX_LISTED).flatten() {
            let Some(uri) = contact.parse_uri() else {
                continue;
            };
            let phone = uri
                .params
                .get(TOKEN)
                .and_then(|token| self.by_token_text(token));
            // Contacts that did not come through us stay hidden.
            if let Some(phone) = phone {
                answer
                    .headers
                    .push((HeaderId::Contact, phone.listed_as_given(now)));
            }
        }
        // As a registrar would have it (RFC 3327 section 5.3): whoever is on the way to the phone sees that it was kept.
        for path in request.all(HeaderId::Path) {
            answer.headers.push((HeaderId::Path, path.to_vec()));
        }
        answer
    }
}

fn supported(request: &Message<'_>) -> Vec<u8> {
    let options: Vec<&[u8]> = request
        .supported()
        .filter(|option| !option.eq_ignore_ascii_case(b"outbound"))
        .take(MAX_LISTED)
        .collect();
    options.join(&b", "[..])
}

/// Seconds that the core's answer gives the contact of this token; 0: it has it not (any more).
fn granted(response: &Message<'_>, token: u64, wanted: u32) -> u32 {
    response
        .contacts()
        .take(MAX_LISTED)
        .flatten()
        .find(|contact| is_token(contact, token))
        .map_or(0, |contact| {
            contact
                .expires()
                .or_else(|| response.expires().ok())
                .unwrap_or(wanted)
        })
}

/// What the core's answer says beside how long.
fn given(response: &Message<'_>, token: u64) -> Option<Box<Given>> {
    let params = response
        .contacts()
        .take(MAX_LISTED)
        .flatten()
        .find(|contact| is_token(contact, token))
        .map(|contact| kept_params(contact.params))
        .unwrap_or_default();
    let repeated = [HeaderId::ServiceRoute, HeaderId::PAssociatedUri];
    let headers: Vec<(HeaderId, Vec<u8>)> = repeated
        .into_iter()
        .flat_map(|id| response.all(id).map(move |value| (id, value.to_vec())))
        .take(MAX_LISTED)
        .collect();
    let length: usize = headers.iter().map(|(_, value)| value.len()).sum();
    let given = Given { params, headers };
    // More than a sane core sends is not kept: the phone's next REGISTER goes on again, see `refresh`.
    (given != Given::default() && given.params.len() + length <= MAX_KEPT).then(|| Box::new(given))
}

fn is_token(contact: &NameAddr<'_>, token: u64) -> bool {
    let number = |text: &[u8]| {
        std::str::from_utf8(text)
            .ok()
            .and_then(|text| u64::from_str_radix(text, 16).ok())
    };
    contact
        .parse_uri()
        .and_then(|uri: Uri<'_>| uri.params.get(TOKEN).and_then(number))
        == Some(token)
}

/// Our Contact in the place of the phone's: its parameters stay (GRUU is the core's matter), but `reg-id` goes, because
/// the flow of RFC 5626 ends at us.
fn our_contact(
    user: &str,
    wanted: &Wanted<'_>,
    host: &str,
    transport: Transport,
    token: u64,
    expires: u32,
) -> Vec<u8> {
    let mut value = b"<sip:".to_vec();
    escape_user(user, &mut value);
    value.extend_from_slice(format!("@{host}").as_bytes());
    if transport != Transport::Udp {
        value.extend_from_slice(format!(";transport={}", transport.uri_name()).as_bytes());
    }
    value.push(b';');
    value.extend_from_slice(TOKEN);
    value.extend_from_slice(format!("={token:016x}>").as_bytes());
    for param in wanted.address.params.iter() {
        if [&b"reg-id"[..], b"expires"]
            .iter()
            .any(|name| param.name.eq_ignore_ascii_case(name))
        {
            continue;
        }
        value.push(b';');
        value.extend_from_slice(param.name);
        if let Some(text) = param.value {
            value.push(b'=');
            value.extend_from_slice(text);
        }
    }
    value.extend_from_slice(format!(";expires={expires}").as_bytes());
    value
}
