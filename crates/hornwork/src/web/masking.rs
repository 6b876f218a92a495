//! Numbers and users that a caller must not see: conditions of searches that would tell hidden digits, and texts about
//! a call that name its users once more.

use super::problem::Problem;
use super::types::{CallPageBody, CallQuery};
use console::{JoinedCall, MaskedUsers};
use engine::Time;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Fields of events with users.
const USER_FIELDS: [&str; 6] = ["from", "to", "user", "aor", "number", "called"];
/// Fields that users do not appear in, although a user may have the same number.
const PLAIN_FIELDS: [&str; 3] = ["call", "call_id", "status"];

/// Shortest number or user, in letters and digits, that a caller with masked numbers may search for. A masked extension
/// of three digits has ten candidates; a number of seven has 100,000, which [`NumberSearches`] makes a matter of days.
const MIN_SEARCHED: usize = 7;
/// Numbers that such a caller may search in [`SEARCH_PERIOD`].
const MAX_SEARCHES: usize = 20;
const SEARCH_PERIOD: Duration = Duration::from_secs(60);
/// Callers whose searches are counted. Users of an identity provider are not bounded.
const MAX_SEARCHERS: usize = 1_000;

/// Times of the latest number searches of callers with masked numbers.
#[derive(Debug, Default)]
pub(super) struct NumberSearches(BTreeMap<String, VecDeque<Time>>);

impl NumberSearches {
    /// Counts a search.
    ///
    /// # Errors
    /// The caller has searched too many numbers.
    pub(super) fn admit(&mut self, user: &str, now: Time) -> Result<(), Problem> {
        let is_recent = |at: &Time| now.since(*at) < SEARCH_PERIOD;
        if !self.0.contains_key(user) && self.0.len() >= MAX_SEARCHERS {
            self.0
                .retain(|_, times| times.back().is_some_and(is_recent));
            if self.0.len() >= MAX_SEARCHERS {
                return Err(Problem::later("too many users search numbers", 60));
            }
        }
        let times = self.0.entry(user.to_owned()).or_default();
        while times.front().is_some_and(|at| !is_recent(at)) {
            times.pop_front();
        }
        if let Some(first) = times.front().filter(|_| times.len() >= MAX_SEARCHES) {
            let wait = SEARCH_PERIOD.saturating_sub(now.since(*first)).as_secs() + 1;
            let why = "numbers are masked for this user, who may search 20 of them in a minute";
            return Err(Problem::later(why, wait));
        }
        times.push_back(now);
        Ok(())
    }
}

/// Refuses a short number or user: trying all of them would confirm a masked one.
pub(super) fn is_searchable(name: &str, number: &str) -> Result<(), Problem> {
    let length = number.chars().filter(|one| one.is_alphanumeric()).count();
    match length >= MIN_SEARCHED {
        true => Ok(()),
        false => Err(Problem::forbidden(format!(
            "{name}: numbers are masked for this user, so that only whole ones of {MIN_SEARCHED} letters and digits or more are searched"
        ))),
    }
}

/// Refuses conditions on parts of numbers: with them a caller with masked numbers could find the hidden digits one
/// by one.
pub(super) fn exact_numbers(query: &CallQuery) -> Result<(), Problem> {
    let number = query.number.as_deref().unwrap_or_default();
    if number.contains('*') {
        return Err(Problem::forbidden(
            "number: numbers are masked for this user, so that only a whole number is searched, without *",
        ));
    }
    if query.number.is_some() {
        is_searchable("number", number)?;
    }
    // Words are divided at all other characters: one of digits only may be a part of a number in a display name.
    let words = query.words.as_deref().unwrap_or_default();
    let mut words = words.split(|one: char| !one.is_alphanumeric());
    if words.any(|word| !word.is_empty() && word.chars().all(char::is_numeric)) {
        return Err(Problem::forbidden(
            "words: numbers are masked for this user, so that words without letters are not searched; use number",
        ));
    }
    Ok(())
}

/// The users of a call at all borders.
pub(super) fn users_of(joined: &JoinedCall) -> MaskedUsers {
    let mut users = MaskedUsers::default();
    for record in joined.records() {
        users.add(&record.call.from);
        users.add(&record.call.to);
        for event in &record.events {
            let fields = serde_json::from_str::<Map<String, Value>>(&event.fields);
            for (name, value) in fields.unwrap_or_default() {
                if let (true, Some(user)) = (USER_FIELDS.contains(&&*name), value.as_str()) {
                    users.add(user);
                }
            }
        }
    }
    for message in joined.messages() {
        users.add_message(&message.bytes);
    }
    users
}

impl CallPageBody {
    /// Masks the users of the call in all texts: short numbers and names are known as such from the call only.
    pub(super) fn mask_users(&mut self, users: &MaskedUsers) {
        let masked = |fields: &mut Map<String, Value>| {
            let fields = fields.iter_mut();
            for (_, value) in fields.filter(|(name, _)| !PLAIN_FIELDS.contains(&name.as_str())) {
                if let Value::String(text) = value {
                    *text = users.mask(text);
                }
            }
        };
        for message in &mut self.messages {
            // A response begins with its status.
            let kept = message.status.map_or(0, |_| 3).min(message.summary.len());
            if let Some((status, rest)) = message.summary.split_at_checked(kept) {
                message.summary = format!("{status}{}", users.mask(rest));
            }
        }
        for step in &mut self.decision {
            step.detail = users.mask(&step.detail);
            masked(&mut step.values);
        }
        for event in &mut self.events {
            masked(&mut event.fields);
        }
        for call in self.related.iter_mut().chain([&mut self.call]) {
            if let Some(Value::String(reason)) = call.get_mut("reason") {
                *reason = users.mask(reason);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::access::Caller;
    use super::super::calls::{call_json, decision, fields_of, filter_of, message_body};
    use super::super::types::EventBody;
    use super::*;
    use config::ConsoleRole;
    use console::{CallRecord, LoadedMessage, StoredCall, StoredDirection, StoredEvent};

    fn caller(role: ConsoleRole) -> Caller {
        Caller {
            user: "ann".into(),
            role,
            redact: role == ConsoleRole::Viewer,
            csrf: None,
            session: None,
        }
    }

    #[test]
    fn parts_of_masked_numbers_are_no_conditions() {
        let viewer = caller(ConsoleRole::Viewer);
        let refused = |change: &dyn Fn(&mut CallQuery)| {
            let mut query = CallQuery {
                call_id: Some("1".into()),
                ..CallQuery::default()
            };
            change(&mut query);
            let of = |caller: &Caller| filter_of(&query, caller).err();
            assert!(of(&caller(ConsoleRole::Operator)).is_none());
            of(&viewer).map(|problem| problem.status().as_u16())
        };
        for number in ["5*", "*", "5*0", "*5"] {
            assert_eq!(
                refused(&|query| query.number = Some(number.into())),
                Some(403)
            );
        }
        // Short ones could be confirmed by trying all.
        for number in ["5034", "600", "ann", "123456", "+12-34 56"] {
            assert_eq!(
                refused(&|query| query.number = Some(number.into())),
                Some(403)
            );
        }
        for words in ["030", "Anna 49", "030-1234567", "x \u{664}\u{665}"] {
            assert_eq!(
                refused(&|query| query.words = Some(words.into())),
                Some(403)
            );
        }
        assert_eq!(
            refused(&|query| query.number = Some("4930123456".into())),
            None
        );
        assert_eq!(
            refused(&|query| query.words = Some("Yealink T46S busy".into())),
            None
        );
        assert_eq!(refused(&|query| query.address = Some("[::1]".into())), None);
    }

    #[test]
    fn searched_numbers_are_counted_for_each_user() {
        let mut searches = NumberSearches::default();
        let at = |ms: u64| Time::ZERO + Duration::from_millis(ms);
        for number in 0..20 {
            assert!(searches.admit("ann", at(number * 10)).is_ok());
        }
        let refused = searches.admit("ann", at(30_000)).unwrap_err();
        assert_eq!(refused.status().as_u16(), 429);
        assert!(searches.admit("bob", at(30_000)).is_ok());
        assert!(searches.admit("ann", at(60_001)).is_ok());
        assert!(searches.admit("ann", at(60_002)).is_err());
        // The table is bounded; users without recent searches are forgotten.
        for number in 0..MAX_SEARCHERS + 10 {
            let _ = searches.admit(&number.to_string(), at(60_003));
        }
        assert_eq!(searches.0.len(), MAX_SEARCHERS);
        assert!(searches.admit("new", at(200_000)).is_ok());
        assert_eq!(searches.0.len(), 1);
    }

    #[test]
    fn short_numbers_of_a_call_are_masked_in_its_texts() {
        let record = CallRecord {
            call: StoredCall {
                call_ids: vec!["7".into()],
                from: "600".into(),
                to: "ann".into(),
                reason: "600 does not want ann".into(),
                status: Some(600),
                ..StoredCall::default()
            },
            messages: vec![LoadedMessage {
                time: 1_000_000_000,
                direction: StoredDirection::Received,
                transport: engine::Transport::Udp,
                source: "192.0.2.1:5060".parse().unwrap(),
                destination: "192.0.2.2:5060".parse().unwrap(),
                bytes: b"SIP/2.0 600 No 600, no 601\r\nVia: SIP/2.0/UDP x\r\nFrom: <sip:600@x>\r\nTo: <sip:601@x>\r\nCall-ID: 7\r\nCSeq: 1 INVITE\r\n\r\n".to_vec(),
                node: String::new(),
            }],
            events: vec![StoredEvent {
                at: 1_500_000,
                name: "rule_logged".into(),
                fields: r#"{"rule":"night","call":"600","text":"600 from 192.0.2.600, 602, ann: closed","user":"602","status":"600"}"#.into(),
            }],
        };
        let viewer = caller(ConsoleRole::Viewer);
        let body = |joined: &JoinedCall| CallPageBody {
            call: call_json(record.call.clone(), &viewer),
            nodes: Vec::new(),
            messages: vec![message_body(0, &record.messages[0], joined, &viewer)],
            truncated: false,
            streams: Vec::new(),
            decision: decision(&record, &viewer),
            events: vec![EventBody {
                node: None,
                at: String::new(),
                name: "rule_logged".into(),
                fields: fields_of(&record.events[0], &viewer),
            }],
            related: Vec::new(),
        };
        let joined = JoinedCall::new(vec![record.clone()], 100);
        let mut body = body(&joined);
        body.mask_users(&users_of(&joined));
        assert_eq!(body.call["reason"], "*00 does not want *nn");
        assert_eq!(body.messages[0].summary, "600 No *00, no *01");
        let fields = &body.events[0].fields;
        assert_eq!(fields["text"], "*00 from 192.0.2.600, *02, *nn: closed");
        assert_eq!(
            (&fields["call"], &fields["status"]),
            (&"600".into(), &"600".into())
        );
        let texts = serde_json::to_string(&body.decision).unwrap();
        for hidden in ["No 600", "ann", "602"] {
            assert!(!texts.contains(hidden), "{hidden} in {texts}");
        }
    }
}
