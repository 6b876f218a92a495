//! Offers and answers.

use super::Node;
use super::access::Asker;
use super::branches::{Branch, Heard, Held};
use super::carry::Outcome;
use super::replies::{error, ok};
use super::sides::{Reading, protections};
use super::text::{Finish, from_source, is_marked, origin_of, without_codecs};
use super::wishes::{IceWish, Refusal, Wishes};
use crate::anchor::codecs::Speech;
use crate::anchor::{AnchorError, CallMedia};
use crate::call::Side;
use engine::Note;
use std::borrow::Cow;
use wire::ng::Value;

/// What every exchange needs.
struct Named<'a> {
    call: &'a [u8],
    from: &'a [u8],
    sdp: Cow<'a, [u8]>,
    reading: Reading,
}

fn named<'a>(wishes: &Wishes<'a>) -> Result<Named<'a>, Refusal> {
    let sdp = wishes.sdp.ok_or("No SDP body in message")?;
    let call = wishes.call_id.ok_or("No call-id in message")?;
    let from = wishes.from_tag.ok_or("No from-tag in message")?;
    let sdp = match (wishes.sip_source, wishes.received_from) {
        (false, _) => Cow::Borrowed(sdp),
        (true, Some(address)) => Cow::Owned(from_source(sdp, address)),
        (true, None) => return Err("SIP-source-address needs received-from".to_owned()),
    };
    let reading = Reading::of(&sdp)?;
    Ok(Named {
        call,
        from,
        sdp,
        reading,
    })
}

impl Named<'_> {
    fn heard(&self) -> Heard {
        Heard {
            speech: Speech::of(&self.sdp),
            ..self.reading.heard()
        }
    }
}

fn slot(side: Side, values: &mut [Heard; 2]) -> &mut Heard {
    let [first, second] = values;
    match side {
        Side::Caller => first,
        Side::Callee => second,
    }
}

fn name(side: Side, names: &mut [String; 2]) -> &mut String {
    let [first, second] = names;
    match side {
        Side::Caller => first,
        Side::Callee => second,
    }
}

impl Node {
    /// The branch that an offer continues, and which of its sides offers.
    fn offered_branch(&self, wishes: &Wishes<'_>, named: &Named<'_>) -> Option<(u64, Side)> {
        let all = || self.branches.of_call(named.call);
        let same_way = |branch: &&Branch| {
            wishes.via_branch.is_none() || branch.via.as_deref() == wishes.via_branch
        };
        let Some(to) = wishes.to_tag.filter(|tag| !tag.is_empty()) else {
            let own = |branch: &&Branch| {
                branch.tag(Side::Caller) == named.from && branch.via.as_deref() == wishes.via_branch
            };
            return all().find(own).map(|branch| (branch.session, Side::Caller));
        };
        let between = |branch: &&Branch| {
            let from = branch.side_of(named.from);
            from.is_some_and(|from| branch.tag(from.other()) == to)
        };
        let open = |branch: &&Branch| {
            branch.tag(Side::Caller) == named.from && branch.tag(Side::Callee).is_empty()
        };
        let found = all()
            .find(|branch| between(branch) && same_way(branch))
            .or_else(|| all().find(between))
            .or_else(|| all().find(|branch| open(branch) && same_way(branch)))
            .or_else(|| all().find(open))?;
        Some((found.session, found.side_of(named.from)?))
    }

    /// `offer`.
    pub(super) fn offer(&mut self, asker: &Asker, wishes: &Wishes<'_>) -> Result<Outcome, Refusal> {
        let mut named = named(wishes)?;
        if wishes.loop_protect && is_marked(&named.sdp, &self.mark) {
            let reply = Value::dictionary().with("sdp", named.sdp.as_ref());
            return Ok(Outcome::Now(ok(reply)));
        }
        if !wishes.codecs.strip.is_empty() {
            named.sdp = Cow::Owned(without_codecs(&named.sdp, &wishes.codecs)?);
        }
        if wishes.record && self.spec.recordings.is_none() {
            return Err("there is no folder for recordings in the configuration".to_owned());
        }
        let found = self.offered_branch(wishes, &named);
        let fresh = found.is_none();
        let (session, from) = match found {
            Some(found) => {
                self.prepare(found, wishes, &named)?;
                found
            }
            None => {
                let unknown = self.branches.call(named.call).is_none();
                if self.draining.is_some() && unknown {
                    return Ok(self.no_room(wishes, "the node is being shut down"));
                }
                match self.begin_branch(wishes, &named)? {
                    Some(session) => (session, Side::Caller),
                    None => return Ok(self.no_room(wishes, "Parallel session limit reached")),
                }
            }
        };
        let mut out = Vec::new();
        let Some(branch) = self.branches.get_mut(session) else {
            return Err("the call has ended".to_owned());
        };
        if let Err(why) = branch
            .media
            .offer(&mut self.plane, from, &named.sdp, &mut out)
        {
            let place = branch
                .interfaces
                .get(from.other().index())
                .cloned()
                .unwrap_or_default();
            let text = self.anchor_error(why, place);
            if fresh {
                self.end(session, "offer refused");
            }
            return Err(text);
        }
        if let Some(timer) = branch.deleting.take() {
            self.timers.cancel(timer);
        }
        *slot(from, &mut branch.heard) = named.heard();
        let finish = Finish {
            origin: match wishes.replace_origin {
                true => None,
                false => origin_of(&named.sdp),
            },
            names: wishes.generate_mid,
            mark: wishes.loop_protect.then(|| self.mark.clone()),
        };
        let overtaken = branch.held.take();
        let waits = branch.media.hold_back(&mut self.plane);
        if waits {
            branch.held = Some(Held {
                asker: asker.clone(),
                sdp: named.sdp.into_owned(),
                finish: finish.clone(),
            });
        }
        if let Some(call) = self.branches.call_mut(named.call) {
            call.signalled = self.now;
        }
        if let Some(overtaken) = overtaken {
            self.answer_to(&overtaken.asker, &error("another offer came meanwhile"));
        }
        if wishes.record {
            self.start_recording(session);
        }
        Ok(match waits {
            true => Outcome::Later,
            false => {
                let sdp = finish.apply(out);
                Outcome::Now(ok(Value::dictionary().with("sdp", sdp.as_slice())))
            }
        })
    }

    fn no_room(&self, wishes: &Wishes<'_>, why: &str) -> Outcome {
        // Whoever understands that asks another node.
        Outcome::Now(match wishes.load_limit {
            true => Value::dictionary()
                .with("result", "load limit")
                .with("message", why),
            false => error(why),
        })
    }

    /// The sockets of a held offer are open, or others have taken their place.
    pub(super) fn go_on(&mut self, session: u64) {
        let Some(branch) = self.branches.get_mut(session) else {
            return;
        };
        if branch.held.is_none() || branch.media.hold_back(&mut self.plane) {
            return;
        }
        let Some(held) = branch.held.take() else {
            return;
        };
        let mut out = Vec::new();
        branch
            .media
            .offer_again(&mut self.plane, &held.sdp, &mut out);
        let reply = match out.is_empty() {
            // The offer came to nothing while it waited.
            true => error("the offer is no longer open"),
            false => ok(Value::dictionary().with("sdp", held.finish.apply(out).as_slice())),
        };
        self.answer_to(&held.asker, &reply);
    }

    /// The text of an error, which is counted and told where it is the want of ports.
    fn anchor_error(&mut self, why: AnchorError, interface: String) -> Refusal {
        if let AnchorError::Exhausted(_) = why {
            self.counters.ports_exhausted += 1;
            self.tell(Note::MediaPortsExhausted { interface });
        }
        why.text().to_owned()
    }

    /// Another offer in a branch: its sides as this command wants them.
    fn prepare(
        &mut self,
        (session, from): (u64, Side),
        wishes: &Wishes<'_>,
        named: &Named<'_>,
    ) -> Result<(), Refusal> {
        let Some(branch) = self.branches.get(session) else {
            return Err("the call has ended".to_owned());
        };
        let to = from.other();
        let security = |side: Side| branch.media.side(side).security.clone();
        let known = branch.heard.get(to.index()).cloned().unwrap_or_default();
        let before = (security(from), security(to));
        let keyer = self.plane.keyer.dtls.is_some();
        let (own, other) = protections(wishes, &named.reading, &before, &known, keyer)?;
        let interface = |side: Side| branch.interfaces.get(side.index()).map(String::as_str);
        let (first, second) = match wishes.direction {
            Some((from, to)) => (Some(from), Some(to)),
            None => (interface(from), interface(to)),
        };
        let ipv6 = |side: Side| branch.media.side(side).advertised.is_ipv6();
        let family = named.reading.address.map_or(ipv6(from), |ip| ip.is_ipv6());
        let (from_name, mut from_side) = self.media_side(first, family, false, wishes, own)?;
        let wanted = wishes.ipv6.unwrap_or(ipv6(to));
        let demanded = wishes.ipv6.is_some();
        let (to_name, mut to_side) = self.media_side(second, wanted, demanded, wishes, other)?;
        from_side.latching = Node::latching(wishes, &named.reading);
        to_side.latching = branch.media.side(to).latching;
        for (which, side) in [(from, &mut from_side), (to, &mut to_side)] {
            let before = branch.media.side(which);
            // What an earlier command asked for stays until another asks for something else.
            if side.pool == before.pool {
                side.advertised = before.advertised;
            }
            if wishes.dscp.is_none() {
                side.dscp = before.dscp;
            }
        }
        if let Some(address) = wishes.media_address {
            to_side.advertised = address;
        }
        let (from_exhausted, to_exhausted) = (from_name.clone(), to_name.clone());
        let Some(branch) = self.branches.get_mut(session) else {
            return Err("the call has ended".to_owned());
        };
        branch.established = !branch.tag(Side::Callee).is_empty() && wishes.to_tag.is_some();
        for (side, media, place) in [
            (from, from_side, from_exhausted),
            (to, to_side, to_exhausted),
        ] {
            if *branch.media.side(side) == media {
                continue;
            }
            if let Err(why) = branch.media.rehome(&mut self.plane, side, media) {
                return Err(self.anchor_error(why, place));
            }
        }
        *name(from, &mut branch.interfaces) = from_name;
        *name(to, &mut branch.interfaces) = to_name;
        Ok(())
    }

    /// A new branch; `None`: there is no room for it.
    fn begin_branch(
        &mut self,
        wishes: &Wishes<'_>,
        named: &Named<'_>,
    ) -> Result<Option<u64>, Refusal> {
        let reading = &named.reading;
        let keyer = self.plane.keyer.dtls.is_some();
        let unheard = Heard::default();
        let (own, other) = protections(wishes, reading, &(None, None), &unheard, keyer)?;
        let (first, second) = wishes.direction.unzip();
        let ipv6 = reading.address.is_some_and(|address| address.is_ipv6());
        let (from_name, mut from_side) = self.media_side(first, ipv6, false, wishes, own)?;
        let wanted = wishes.ipv6.unwrap_or(ipv6);
        let demanded = wishes.ipv6.is_some();
        let (to_name, mut to_side) = self.media_side(second, wanted, demanded, wishes, other)?;
        from_side.latching = Node::latching(wishes, reading);
        if let Some(address) = wishes.media_address {
            to_side.advertised = address;
        }
        let now = self.now;
        let added = self
            .branches
            .add(named.call, now, |session, number| Branch {
                session,
                number,
                call: named.call.to_vec(),
                tags: [
                    named.from.to_vec(),
                    wishes.to_tag.unwrap_or_default().to_vec(),
                ],
                via: wishes.via_branch.map(<[u8]>::to_vec),
                media: Box::new(CallMedia::new(session, [from_side, to_side]).numbered(number)),
                held: None,
                heard: Default::default(),
                interfaces: [from_name, to_name],
                blocked: [false; 2],
                established: false,
                deleting: None,
                recording: None,
                playing: [None; 2],
                created: now,
            });
        if let Some(branch) = added.and_then(|session| self.branches.get(session)) {
            let note = Note::NodeCallBegun {
                call: branch.number,
                call_id: String::from_utf8_lossy(named.call).into_owned(),
                from_tag: String::from_utf8_lossy(named.from).into_owned(),
            };
            self.counters.begun += 1;
            self.tell(note);
        }
        Ok(added)
    }

    /// The branch whose open offer an answer answers; without one, the branch that was answered before.
    fn answered_branch(&self, wishes: &Wishes<'_>, named: &Named<'_>, to: &[u8]) -> Option<u64> {
        let all = || self.branches.of_call(named.call);
        let same_way = |branch: &&Branch| branch.via.as_deref() == wishes.via_branch;
        let between = |branch: &&Branch| {
            branch
                .side_of(named.from)
                .is_some_and(|from| branch.tag(from.other()) == to)
        };
        let offers = |branch: &&Branch| {
            branch.tag(Side::Caller) == named.from
                && branch.media.open_offer() == Some(Side::Caller)
        };
        let unanswered = |branch: &&Branch| branch.tag(Side::Callee).is_empty();
        all()
            .find(|branch| between(branch) && (wishes.via_branch.is_none() || same_way(branch)))
            .or_else(|| all().find(|branch| offers(branch) && same_way(branch)))
            .or_else(|| all().find(between))
            .or_else(|| all().find(|branch| offers(branch) && unanswered(branch)))
            .or_else(|| all().find(offers))
            .map(|branch| branch.session)
    }

    /// `answer`.
    pub(super) fn answer(&mut self, wishes: &Wishes<'_>) -> Result<Outcome, Refusal> {
        let named = named(wishes)?;
        let to = wishes.to_tag.ok_or("No to-tag in message")?;
        if !wishes.codecs.strip.is_empty() {
            return Err("codec strip in an answer is not supported".to_owned());
        }
        if self.branches.call(named.call).is_none() {
            return Err("Unknown call-id".to_owned());
        }
        let session = self
            .answered_branch(wishes, &named, to)
            .ok_or("there is no offer that this answers")?;
        let Some(branch) = self.branches.get_mut(session) else {
            return Err("the call has ended".to_owned());
        };
        // The tag of whoever offered stands first, whichever side that is.
        let offerer = match branch.media.open_offer() {
            Some(side) => side,
            None => branch.side_of(named.from).unwrap_or(Side::Caller),
        };
        let answerer = offerer.other();
        let mut side = branch.media.side(answerer).clone();
        side.latching = Node::latching(wishes, &named.reading);
        let mut back = branch.media.side(offerer).clone();
        if let Some(address) = wishes.media_address {
            back.advertised = address;
        }
        if let Some(dscp) = wishes.dscp {
            side.dscp = dscp;
            back.dscp = dscp;
        }
        // Neither has another pool than before, so that nothing can be wanting.
        for (which, media) in [(answerer, side), (offerer, back)] {
            if *branch.media.side(which) != media
                && let Err(why) = branch.media.rehome(&mut self.plane, which, media)
            {
                return Err(self.anchor_error(why, String::new()));
            }
        }
        if wishes.ice == IceWish::Remove {
            branch.media.answer_without_ice(offerer);
        }
        let provisional = !branch.established;
        let mut out = Vec::new();
        let answered =
            branch
                .media
                .answer(&mut self.plane, answerer, &named.sdp, provisional, &mut out);
        if let Err(why) = answered {
            return Err(self.anchor_error(why, String::new()));
        }
        *slot(answerer, &mut branch.heard) = named.heard();
        if answerer == Side::Callee {
            let [_, callee] = &mut branch.tags;
            *callee = to.to_vec();
        }
        let number = branch.number;
        let finish = Finish {
            origin: match wishes.replace_origin {
                true => None,
                false => origin_of(&named.sdp),
            },
            names: wishes.generate_mid,
            mark: None,
        };
        if let Some(call) = self.branches.call_mut(named.call) {
            call.signalled = self.now;
        }
        self.tell(Note::CallAnswered { call: number });
        self.retune(session);
        if wishes.record {
            self.start_recording(session);
        }
        let sdp = finish.apply(out);
        Ok(Outcome::Now(ok(
            Value::dictionary().with("sdp", sdp.as_slice())
        )))
    }
}
