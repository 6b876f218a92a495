//! Registrations forwarded to the core, with our Contact in place of the phone's. A token in it identifies the phone in
//! calls from the core. The core determines the lifetime.

use super::binding::{Binding, CoreState, GrantedValues, params_without};
use super::{
    ContactRequest, LONGEST, Location, MAX_KEPT, MAX_LISTED, RegisterResponse, ValidatedRegister,
};
use crate::headers::TOKEN;
use crate::policy::escape_user;
use config::InterfaceId;
use core::hash::BuildHasher as _;
use core::time::Duration;
use engine::{Reason, Time, Transport};
use sip::Flow;
use wire::sip::{HeaderId, Message, NameAddr, Uri};

/// A REGISTER to forward to the core, and the state needed for its response.
#[derive(Clone, Debug)]
pub struct Passing {
    /// User part of the address of record.
    pub user: String,
    /// Contact values for the core; empty for a query without Contact.
    pub contacts: Vec<Vec<u8>>,
    /// Call-ID for the core, derived from that of the phone (RFC 3261 section 10.2), which may contain the address of
    /// the phone.
    pub call_id: String,
    /// Option tags of the phone for the core: all except `outbound`, whose flow ends here.
    pub supported: Vec<u8>,
    /// The REGISTER of the phone.
    request: Box<[u8]>,
    tokens: Vec<u64>,
    interface: InterfaceId,
    flow: Flow,
}

impl Passing {
    /// The REGISTER of the phone.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// The interface of the phone.
    pub fn interface(&self) -> InterfaceId {
        self.interface
    }
}

impl Location {
    /// Prepares a REGISTER for the core. `host` is our `host[:port]` as reachable from the core over `transport`.
    ///
    /// # Errors
    /// The refusal of an invalid REGISTER, or for lack of capacity.
    pub fn pass(
        &mut self,
        user: &str,
        request: &Message<'_>,
        interface: InterfaceId,
        flow: Flow,
        host: &str,
        transport: Transport,
    ) -> Result<Passing, Box<RegisterResponse>> {
        let judged = self.validate_forwarded(request, flow)?;
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
            let expires = self.requested_from_core(wanted);
            passing
                .contacts
                .push(our_contact(user, wanted, host, transport, token, expires));
            passing.tokens.push(token);
        }
        Ok(passing)
    }

    /// Validates a REGISTER that the core answers. It does not grant outbound, because the flow ends here, so that the
    /// phone owes no keep-alives (RFC 5626 section 4.4): its REGISTERs keep the NAT binding open.
    pub(super) fn validate_forwarded<'m>(
        &self,
        request: &Message<'m>,
        flow: Flow,
    ) -> Result<ValidatedRegister<'m>, Box<RegisterResponse>> {
        let mut judged = self.validate(request, flow)?;
        for wanted in &mut judged.contacts {
            let longest = self.longest_expires(&wanted.uri, flow, &judged.path);
            wanted.expires = wanted.expires.min(longest);
        }
        Ok(judged)
    }

    /// Lifetime in seconds requested from the core: long enough that the next REGISTERs of the phone can be answered
    /// here.
    fn requested_from_core(&self, wanted: &ContactRequest<'_>) -> u32 {
        match (wanted.expires, self.settings.refresh_interval_s) {
            (0, _) => 0,
            (_, 0) => wanted.requested,
            (_, every) => wanted.requested.max(every.saturating_mul(2)).min(LONGEST),
        }
    }

    fn call_id_for(&self, user: &str, call_id: &[u8]) -> String {
        let half = |number: u8| self.disguise.hash_one((number, user, call_id));
        format!("{:016x}{:016x}", half(0), half(1))
    }

    /// Processes a 2xx of the core: stores the bindings and returns the Contacts for the phone. Other headers of the
    /// response are forwarded unchanged. Other responses need no processing.
    pub fn passed(
        &mut self,
        passing: &Passing,
        response: &Message<'_>,
        now: Time,
    ) -> RegisterResponse {
        let mut answer = RegisterResponse {
            status: response.status(),
            ..RegisterResponse::default()
        };
        let Ok(request) = Message::parse(&passing.request) else {
            return RegisterResponse::refuse(Reason::RegistrationLost);
        };
        // It was validated before; the settings may have changed in the meantime.
        let Ok(judged) = self.validate_forwarded(&request, passing.flow) else {
            return RegisterResponse::refuse(Reason::RegistrationRefusedMeanwhile);
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
            .map(|(wanted, &token)| granted(response, token, self.requested_from_core(wanted)))
            .collect();
        // Removals first, because they free capacity for the others.
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
            let answered_here = (seconds / 2).min(self.settings.refresh_interval_s);
            fresh.core = CoreState {
                due: now + Duration::from_secs(u64::from(answered_here)),
                until: now + Duration::from_secs(u64::from(seconds)),
                given: given(response, token),
            };
            self.put(user, place, fresh);
        }
        self.schedule(user);
        let changed = judged.star || !judged.contacts.is_empty();
        self.report_change(user, before, changed, now, &mut answer.notes);
        for contact in response.contacts().take(MAX_LISTED).flatten() {
            let Some(uri) = contact.parse_uri() else {
                continue;
            };
            let phone = uri
                .params
                .get(TOKEN)
                .and_then(|token| self.by_token_text(token));
            // Contacts that were not registered through us stay hidden.
            if let Some(phone) = phone {
                answer
                    .headers
                    .push((HeaderId::Contact, phone.listed_as_given(now)));
            }
        }
        // Path, as a registrar returns it (RFC 3327 section 5.3), so that proxies of the phone see that it was stored.
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

/// Seconds that the core grants for the contact of this token; 0: none.
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

/// Other values that the core grants.
fn given(response: &Message<'_>, token: u64) -> Option<Box<GrantedValues>> {
    let params = response
        .contacts()
        .take(MAX_LISTED)
        .flatten()
        .find(|contact| is_token(contact, token))
        // Some registrars add the source of the REGISTER, which is our address in the core.
        .map(|contact| params_without(contact.params, &[b"expires", b"received"]))
        .unwrap_or_default();
    // No phone gets Service-Route, the way in the core: see `crate::headers::NETWORK`.
    let id = HeaderId::PAssociatedUri;
    let headers: Vec<(HeaderId, Vec<u8>)> = response
        .all(id)
        .map(|value| (id, value.to_vec()))
        .take(MAX_LISTED)
        .collect();
    let length: usize = headers.iter().map(|(_, value)| value.len()).sum();
    let given = GrantedValues { params, headers };
    // Excessive values are not stored: the next REGISTER of the phone is then forwarded again, see `refreshes`.
    (given != GrantedValues::default() && given.params.len() + length <= MAX_KEPT)
        .then(|| Box::new(given))
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

/// Our Contact in place of the phone's. Its parameters stay (GRUU is processed by the core), except `reg-id`, because
/// the flow of RFC 5626 ends here.
fn our_contact(
    user: &str,
    wanted: &ContactRequest<'_>,
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
