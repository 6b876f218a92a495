//! The commands `offer` and `answer`.

use super::access::Requester;
use super::branches::{DeferredOffer, NgBranch, PartyDescription};
use super::commands::CommandResult;
use super::options::{CommandError, CommandOptions, IceOption};
use super::replies::{error, ok};
use super::sdp::{SdpFinish, from_source, is_marked, origin_of, without_codecs};
use super::sides::{SdpSummary, choose_security};
use super::{NgAlarm, NgServer};
use anchor::Side;
use anchor::codecs::AudioDescription;
use anchor::{AnchorError, CallMedia};
use core::time::Duration;
use engine::EventKind;
use media::Latching;
use std::borrow::Cow;
use wire::ng::Value;

/// Time after an answer in which other early dialogs answer the same offer, at most (64 T1, RFC 3261 section 13.2.2.4).
const OTHER_ANSWERS: Duration = Duration::from_secs(32);

/// Required keys of an exchange.
struct ExchangeRequest<'a> {
    call: &'a [u8],
    from: &'a [u8],
    sdp: Cow<'a, [u8]>,
    summary: SdpSummary,
}

fn parse_exchange<'a>(options: &CommandOptions<'a>) -> Result<ExchangeRequest<'a>, CommandError> {
    let sdp = options.sdp.ok_or("No SDP body in message")?;
    let call = options.call_id.ok_or("No call-id in message")?;
    let from = options.from_tag.ok_or("No from-tag in message")?;
    let sdp = match (options.sip_source, options.received_from) {
        (false, _) => Cow::Borrowed(sdp),
        (true, Some(address)) => Cow::Owned(from_source(sdp, address)),
        (true, None) => return Err("SIP-source-address needs received-from".to_owned()),
    };
    let summary = SdpSummary::of(&sdp)?;
    Ok(ExchangeRequest {
        call,
        from,
        sdp,
        summary,
    })
}

impl ExchangeRequest<'_> {
    fn descriptions(&self) -> PartyDescription {
        PartyDescription {
            audio: AudioDescription::of(&self.sdp),
            ..self.summary.descriptions()
        }
    }
}

fn slot(side: Side, values: &mut [PartyDescription; 2]) -> &mut PartyDescription {
    let [first, second] = values;
    match side {
        Side::Caller => first,
        Side::Callee => second,
    }
}

impl NgServer {
    /// The branch that an offer continues, and its offering side.
    fn offered_branch(
        &self,
        options: &CommandOptions<'_>,
        exchange: &ExchangeRequest<'_>,
    ) -> Option<(u64, Side)> {
        let all = || self.branches.of_call(exchange.call);
        let same_via = |branch: &&NgBranch| {
            options.via_branch.is_none() || branch.via.as_deref() == options.via_branch
        };
        let Some(to) = options.to_tag.filter(|tag| !tag.is_empty()) else {
            let own = |branch: &&NgBranch| {
                branch.tag(Side::Caller) == exchange.from
                    && branch.via.as_deref() == options.via_branch
            };
            return all().find(own).map(|branch| (branch.session, Side::Caller));
        };
        let between = |branch: &&NgBranch| {
            let from = branch.side_of(exchange.from);
            from.is_some_and(|from| branch.tag(from.other()) == to)
        };
        let open = |branch: &&NgBranch| {
            branch.tag(Side::Caller) == exchange.from && branch.tag(Side::Callee).is_empty()
        };
        let found = all()
            .find(|branch| between(branch) && same_via(branch))
            .or_else(|| all().find(between))
            .or_else(|| all().find(|branch| open(branch) && same_via(branch)))
            .or_else(|| all().find(open))?;
        Some((found.session, found.side_of(exchange.from)?))
    }

    /// The command `offer`.
    pub(super) fn offer(
        &mut self,
        requester: &Requester,
        options: &CommandOptions<'_>,
    ) -> Result<CommandResult, CommandError> {
        let mut exchange = parse_exchange(options)?;
        if options.loop_protect && is_marked(&exchange.sdp, &self.mark) {
            let reply = Value::dictionary().with("sdp", exchange.sdp.as_ref());
            return Ok(CommandResult::Now(ok(reply)));
        }
        if !options.codecs.strip.is_empty() {
            exchange.sdp = Cow::Owned(without_codecs(&exchange.sdp, &options.codecs)?);
        }
        let found = self.offered_branch(options, &exchange);
        let fresh = found.is_none();
        if options.record == Some(true) {
            self.check_recordings(found.map(|(session, _)| session))?;
        }
        let (session, from) = match found {
            Some(found) => {
                self.update_sides(found, options, &exchange)?;
                found
            }
            None => {
                let unknown = self.branches.call(exchange.call).is_none();
                if self.draining.is_some() && unknown {
                    return Ok(self.refuse_new_call(options, "shutting down"));
                }
                match self.create_branch(options, &exchange)? {
                    Some(session) => (session, Side::Caller),
                    None => {
                        return Ok(self.refuse_new_call(options, "Parallel session limit reached"));
                    }
                }
            }
        };
        let mut out = Vec::new();
        let Some(branch) = self.branches.get_mut(session) else {
            return Err("the call has ended".to_owned());
        };
        if let Err(reason) = branch
            .media
            .offer(&mut self.plane, from, &exchange.sdp, &mut out)
        {
            let interface_name = branch
                .interfaces
                .get(from.other().index())
                .cloned()
                .unwrap_or_default();
            branch.undo_change(&mut self.plane);
            let text = self.anchor_error(reason, interface_name);
            if fresh {
                self.end_branch(session, "offer refused");
            }
            return Err(text);
        }
        let timers = [branch.deleting.take(), branch.releasing.take()];
        for timer in timers.into_iter().flatten() {
            self.timers.cancel(timer);
        }
        branch.offered = self.now;
        branch.note_source(from, options.received_from, false);
        *slot(from, &mut branch.descriptions) = exchange.descriptions();
        let finish = SdpFinish {
            origin: match options.replace_origin {
                true => None,
                false => origin_of(&exchange.sdp),
            },
            add_mids: options.generate_mid,
            mark: options.loop_protect.then(|| self.mark.clone()),
        };
        let superseded = branch.deferred.take();
        let waits = branch.media.defer_until_open(&mut self.plane);
        if waits {
            branch.deferred = Some(DeferredOffer {
                requester: requester.clone(),
                sdp: exchange.sdp.into_owned(),
                finish: finish.clone(),
            });
        }
        if let Some(call) = self.branches.call_mut(exchange.call) {
            call.signalled = self.now;
        }
        if let Some(superseded) = superseded {
            self.reply_to(&superseded.requester, &error("superseded by another offer"));
        }
        self.set_recording(session, options.record);
        Ok(match waits {
            true => CommandResult::Deferred,
            false => {
                let sdp = finish.apply(out);
                CommandResult::Now(ok(Value::dictionary().with("sdp", sdp.as_slice())))
            }
        })
    }

    fn refuse_new_call(&self, options: &CommandOptions<'_>, reason: &str) -> CommandResult {
        // A client that supports load limits uses another media node.
        CommandResult::Now(match options.load_limit {
            true => Value::dictionary()
                .with("result", "load limit")
                .with("message", reason),
            false => error(reason),
        })
    }

    /// Replies to a deferred offer once its sockets are open or replaced.
    pub(super) fn resume_offer(&mut self, session: u64) {
        let Some(branch) = self.branches.get_mut(session) else {
            return;
        };
        if branch.deferred.is_none() || branch.media.defer_until_open(&mut self.plane) {
            return;
        }
        let Some(deferred) = branch.deferred.take() else {
            return;
        };
        let mut out = Vec::new();
        branch
            .media
            .offer_again(&mut self.plane, &deferred.sdp, &mut out);
        let reply = match out.is_empty() {
            // The offer was discarded while it waited.
            true => error("the offer is no longer open"),
            false => ok(Value::dictionary().with("sdp", deferred.finish.apply(out).as_slice())),
        };
        self.reply_to(&deferred.requester, &reply);
    }

    /// The ports of an offer cannot be opened: media keeps its previous ones, or the call ends if it has none.
    pub(super) fn refuse_ports(&mut self, session: u64) {
        let branch = self.branches.get_mut(session);
        let Some(branch) = branch.filter(|branch| branch.media.is_changing()) else {
            return self.end_branch(session, "media port");
        };
        branch.undo_change(&mut self.plane);
        if let Some(deferred) = branch.deferred.take() {
            self.reply_to(&deferred.requester, &error("no media port left"));
        }
    }

    /// The text of an error; exhausted ports are counted and reported.
    fn anchor_error(&mut self, reason: AnchorError, interface: String) -> CommandError {
        if let AnchorError::Exhausted(pool) = reason {
            self.ports_exhausted(pool, interface);
        }
        reason.text().to_owned()
    }

    /// Counts and reports that a pool has no port left. Without a name of the interface, that of the first one with the
    /// pool.
    pub(super) fn ports_exhausted(&mut self, pool: u16, interface: String) {
        self.counters.ports_exhausted += 1;
        let uses = |media: &config::MediaAddress| self.pools.get(media.range) == Some(&pool);
        let mut interfaces = self.settings.interfaces.iter();
        let interface = match interface.is_empty() {
            true => interfaces
                .find(|interface| interface.media.iter().any(uses))
                .map_or_else(String::new, |interface| interface.name.clone()),
            false => interface,
        };
        let [address, ports] = self.plane.pool_texts(pool);
        self.tell(EventKind::MediaPortsExhausted {
            interface,
            address,
            ports,
        });
    }

    /// Updates the sides of a branch for another offer.
    fn update_sides(
        &mut self,
        (session, from): (u64, Side),
        options: &CommandOptions<'_>,
        exchange: &ExchangeRequest<'_>,
    ) -> Result<(), CommandError> {
        if let Some(branch) = self.branches.get_mut(session)
            && branch.media.open_offer() != Some(from)
        {
            // The other side offers: it has refused the open offer.
            branch.undo_change(&mut self.plane);
        }
        let Some(branch) = self.branches.get(session) else {
            return Err("the call has ended".to_owned());
        };
        let to = from.other();
        let security = |side: Side| branch.media.side(side).security.clone();
        let existing = branch
            .descriptions
            .get(to.index())
            .cloned()
            .unwrap_or_default();
        let before = (security(from), security(to));
        let keyer = self.plane.keying.dtls.is_some();
        let (own, other) = choose_security(options, &exchange.summary, &before, &existing, keyer)?;
        let interface = |side: Side| branch.interfaces.get(side.index()).map(String::as_str);
        let (first, second) = match options.direction {
            Some((from, to)) => (Some(from), Some(to)),
            None => (interface(from), interface(to)),
        };
        let ipv6 = |side: Side| branch.media.side(side).advertised.is_ipv6();
        let family = exchange
            .summary
            .address
            .map_or(ipv6(from), |ip| ip.is_ipv6());
        let (from_name, mut from_side) = self.media_side(first, family, false, own)?;
        let requested = options.ipv6.unwrap_or(ipv6(to));
        let demanded = options.ipv6.is_some();
        let (to_name, mut to_side) = self.media_side(second, requested, demanded, other)?;
        from_side.latching =
            NgServer::latching(options, &exchange.summary, branch.media.side(from).latching);
        to_side.latching = branch.media.side(to).latching;
        let (names, mut sides) = match from {
            Side::Caller => ([from_name, to_name], [from_side, to_side]),
            Side::Callee => ([to_name, from_name], [to_side, from_side]),
        };
        let Some(branch) = self.branches.get_mut(session) else {
            return Err("the call has ended".to_owned());
        };
        branch.established = !branch.tag(Side::Callee).is_empty() && options.to_tag.is_some();
        let pools = sides.each_ref().map(|side| side.pool);
        if pools != Side::BOTH.map(|side| branch.media.side(side).pool) {
            branch.undo_change(&mut self.plane);
        }
        for (which, side) in Side::BOTH.into_iter().zip(&mut sides) {
            let before = branch.media.side(which);
            // Options of an earlier command stay in force until they are changed.
            if side.pool == before.pool {
                side.advertised = before.advertised;
            }
            if let Some(address) = options.media_address.filter(|_| which == to) {
                side.advertised = address;
            }
        }
        if let Err(reason) = branch.media.update_sides(&mut self.plane, sides) {
            let exhausted = names.into_iter().zip(pools);
            let exhausted = exhausted.filter(|(_, pool)| reason == AnchorError::Exhausted(*pool));
            let interface_name = exhausted.map(|(name, _)| name).next();
            return Err(self.anchor_error(reason, interface_name.unwrap_or_default()));
        }
        let before = core::mem::replace(&mut branch.interfaces, names);
        if branch.media.is_changing() && branch.interfaces_before.is_none() {
            branch.interfaces_before = Some(Box::new(before));
        }
        Ok(())
    }

    /// Creates a branch; `None` at the limit.
    fn create_branch(
        &mut self,
        options: &CommandOptions<'_>,
        exchange: &ExchangeRequest<'_>,
    ) -> Result<Option<u64>, CommandError> {
        let summary = &exchange.summary;
        let keyer = self.plane.keying.dtls.is_some();
        let unheard = PartyDescription::default();
        let (own, other) = choose_security(options, summary, &(None, None), &unheard, keyer)?;
        let (first, second) = options.direction.unzip();
        let ipv6 = summary.address.is_some_and(|address| address.is_ipv6());
        let (from_name, mut from_side) = self.media_side(first, ipv6, false, own)?;
        let requested = options.ipv6.unwrap_or(ipv6);
        let demanded = options.ipv6.is_some();
        let (to_name, mut to_side) = self.media_side(second, requested, demanded, other)?;
        from_side.latching = NgServer::latching(options, summary, Latching::Signalled);
        if let Some(address) = options.media_address {
            to_side.advertised = address;
        }
        let now = self.now;
        let added = self
            .branches
            .add(exchange.call, now, |session, number| NgBranch {
                session,
                number,
                call: exchange.call.to_vec(),
                tags: [
                    exchange.from.to_vec(),
                    options.to_tag.unwrap_or_default().to_vec(),
                ],
                via: options.via_branch.map(<[u8]>::to_vec),
                sources: [options.received_from, None],
                media: Box::new(CallMedia::new(session, [from_side, to_side]).with_number(number)),
                deferred: None,
                descriptions: Default::default(),
                interfaces: [from_name, to_name],
                interfaces_before: None,
                blocked: [false; 2],
                established: false,
                answered: false,
                deleting: None,
                releasing: None,
                recording: None,
                playing: [None; 2],
                created: now,
                offered: now,
            });
        if let Some(branch) = added.and_then(|session| self.branches.get(session)) {
            let notice = EventKind::NgCallStarted {
                call: branch.number,
                call_id: String::from_utf8_lossy(exchange.call).into_owned(),
                from_tag: String::from_utf8_lossy(exchange.from).into_owned(),
            };
            self.counters.started += 1;
            self.tell(notice);
        }
        Ok(added)
    }

    /// The branch whose open offer is answered, or else the branch that was answered before.
    fn answered_branch(
        &self,
        options: &CommandOptions<'_>,
        exchange: &ExchangeRequest<'_>,
        to: &[u8],
    ) -> Option<u64> {
        let all = || self.branches.of_call(exchange.call);
        let same_via = |branch: &&NgBranch| branch.via.as_deref() == options.via_branch;
        let between = |branch: &&NgBranch| {
            branch
                .side_of(exchange.from)
                .is_some_and(|from| branch.tag(from.other()) == to)
        };
        let offers = |branch: &&NgBranch| {
            branch.tag(Side::Caller) == exchange.from
                && branch.media.open_offer() == Some(Side::Caller)
        };
        let unanswered = |branch: &&NgBranch| branch.tag(Side::Callee).is_empty();
        all()
            .find(|branch| between(branch) && (options.via_branch.is_none() || same_via(branch)))
            .or_else(|| all().find(|branch| offers(branch) && same_via(branch)))
            .or_else(|| all().find(between))
            .or_else(|| all().find(|branch| offers(branch) && unanswered(branch)))
            .or_else(|| all().find(offers))
            .map(|branch| branch.session)
    }

    /// The command `answer`.
    pub(super) fn answer(
        &mut self,
        options: &CommandOptions<'_>,
    ) -> Result<CommandResult, CommandError> {
        let exchange = parse_exchange(options)?;
        let to = options.to_tag.ok_or("No to-tag in message")?;
        if !options.codecs.strip.is_empty() {
            return Err("codec strip in an answer is not supported".to_owned());
        }
        if self.branches.call(exchange.call).is_none() {
            return Err("Unknown call-id".to_owned());
        }
        let session = self
            .answered_branch(options, &exchange, to)
            .ok_or("no open offer for this answer")?;
        if options.record == Some(true) {
            self.check_recordings(Some(session))?;
        }
        let Some(branch) = self.branches.get_mut(session) else {
            return Err("the call has ended".to_owned());
        };
        // The offerer's tag is the first one, for either side.
        let offerer = match branch.media.open_offer() {
            Some(side) => side,
            None => branch.side_of(exchange.from).unwrap_or(Side::Caller),
        };
        let answerer = offerer.other();
        let mut side = branch.media.side(answerer).clone();
        side.latching = NgServer::latching(options, &exchange.summary, side.latching);
        let mut back = branch.media.side(offerer).clone();
        if let Some(address) = options.media_address {
            back.advertised = address;
        }
        let sides = match offerer {
            Side::Caller => [back, side],
            Side::Callee => [side, back],
        };
        // The pools are unchanged, so that this cannot fail for lack of ports.
        if let Err(reason) = branch.media.update_sides(&mut self.plane, sides) {
            return Err(self.anchor_error(reason, String::new()));
        }
        if options.ice == IceOption::Remove {
            branch.media.answer_without_ice(offerer);
        }
        let known = branch.tag(answerer);
        let is_other = !known.is_empty() && known != to && answerer == Side::Callee;
        branch.note_source(answerer, options.received_from, is_other);
        let provisional = !branch.established;
        let mut out = Vec::new();
        let answered = branch.media.answer(
            &mut self.plane,
            answerer,
            &exchange.sdp,
            provisional,
            &mut out,
        );
        if let Err(reason) = answered {
            return Err(self.anchor_error(reason, String::new()));
        }
        branch.media.keep_side(&mut self.plane);
        branch.interfaces_before = None;
        let deleting = branch.deleting.take();
        // The command does not tell an early answer from the final one.
        let releasing = match provisional && branch.media.has_rejected_lines() {
            true => {
                let due = self.now + OTHER_ANSWERS;
                let timer = self.timers.schedule(due, NgAlarm::ReleaseRejected(session));
                branch.releasing.replace(timer)
            }
            false => branch.releasing.take(),
        };
        for timer in deleting.into_iter().chain(releasing) {
            self.timers.cancel(timer);
        }
        *slot(answerer, &mut branch.descriptions) = exchange.descriptions();
        if answerer == Side::Callee {
            let [_, callee] = &mut branch.tags;
            *callee = to.to_vec();
        }
        let number = branch.number;
        let first = !core::mem::replace(&mut branch.answered, true);
        let finish = SdpFinish {
            origin: match options.replace_origin {
                true => None,
                false => origin_of(&exchange.sdp),
            },
            add_mids: options.generate_mid,
            mark: None,
        };
        if let Some(call) = self.branches.call_mut(exchange.call) {
            call.signalled = self.now;
        }
        if first {
            self.tell(EventKind::CallAnswered {
                call: number,
                setup_ms: None,
                call_id: None,
            });
        }
        self.update_playback(session);
        self.set_recording(session, options.record);
        let sdp = finish.apply(out);
        Ok(CommandResult::Now(ok(
            Value::dictionary().with("sdp", sdp.as_slice())
        )))
    }
}
