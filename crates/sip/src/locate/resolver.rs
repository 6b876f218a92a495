//! The resolver engine: pending queries, retransmission, validation of answers, cache.

use super::dns::{self, Code, DnsName, Question, RecordType};
use super::evaluate::{Evaluated, KnownAnswer, Oracle, evaluate};
use super::{LocateError, LocateRequest, Targets};
use engine::{Deadline, Entropy, Time, Transport};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Configuration of a [`Resolver`].
#[derive(Clone, Debug)]
pub struct ResolverConfig {
    /// Name servers in order of preference. Empty: only addresses and [`ResolverConfig::hosts`] are located.
    pub servers: Vec<SocketAddr>,
    /// Supported transports in order of preference.
    pub transports: Vec<Transport>,
    /// Whether A records are queried.
    pub ipv4: bool,
    /// Whether AAAA records are queried.
    pub ipv6: bool,
    /// Whether IPv6 addresses precede IPv4 addresses of the same name.
    pub prefer_ipv6: bool,
    /// Names with fixed addresses, which override DNS.
    pub hosts: Vec<(String, IpAddr)>,
    /// Time before the next try, doubled each time all servers have been tried.
    pub wait: Duration,
    /// Tries of one question over all servers.
    pub tries: u32,
    /// Time limit of a lookup.
    pub lookup_timeout: Duration,
    /// Pending lookups, at most.
    pub lookups: usize,
    /// Cached answers, at most.
    pub cache: usize,
    /// Upper bound of the time that an answer is cached.
    pub longest: Duration,
    /// Upper bound of the time that the absence of a name or record is cached.
    pub longest_negative: Duration,
}

impl Default for ResolverConfig {
    fn default() -> Self {
        ResolverConfig {
            servers: Vec::new(),
            transports: vec![Transport::Udp, Transport::Tcp],
            ipv4: true,
            ipv6: true,
            prefer_ipv6: false,
            hosts: Vec::new(),
            wait: Duration::from_secs(1),
            tries: 4,
            lookup_timeout: Duration::from_secs(8),
            lookups: 1_000,
            cache: 10_000,
            longest: Duration::from_secs(3_600),
            longest_negative: Duration::from_secs(60),
        }
    }
}

/// Time that a failure of all name servers is cached (RFC 9520 section 3.2: at least a second).
const FAILURE_KEPT: Duration = Duration::from_secs(5);
/// Time that an absence without SOA is cached.
const ABSENCE_KEPT: Duration = Duration::from_secs(5);
/// Time that an answer is kept after its end, for an outage of all name servers (RFC 8767 section 5: a day to three).
const STALE_KEPT: Duration = Duration::from_secs(86_400);
/// Time after which a lookup uses such answers (the client response timer of RFC 8767 section 5).
const STALE_WAIT: Duration = Duration::from_millis(1_800);
/// Time for which they count as current then (RFC 8767 section 4).
const STALE_LIFETIME: Duration = Duration::from_secs(30);
/// Time for which questions go first to the server that answered when the first one was silent.
const PREFERRED: Duration = Duration::from_secs(300);
/// Questions of one lookup over all its evaluations, at most.
const MAX_QUESTIONS: usize = 100;

/// The record types of the queried address families, in order of preference.
fn address_types(config: &ResolverConfig) -> Vec<RecordType> {
    let mut types = Vec::new();
    if config.ipv4 {
        types.push(RecordType::A);
    }
    if config.ipv6 {
        let index = if config.prefer_ipv6 { 0 } else { types.len() };
        types.insert(index, RecordType::Aaaa);
    }
    types
}

/// The names with fixed addresses of the queried families. Entries that are not domain names are ignored.
fn fixed_hosts(config: &ResolverConfig) -> BTreeMap<String, Vec<IpAddr>> {
    let mut hosts: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for (name, address) in &config.hosts {
        let enabled = match address.is_ipv4() {
            true => config.ipv4,
            false => config.ipv6,
        };
        if let Some(name) = DnsName::parse(name.as_bytes()).filter(|_| enabled) {
            hosts
                .entry(name.as_str().to_owned())
                .or_default()
                .push(*address);
        }
    }
    hosts
}

/// A pending lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LookupId(pub u64);

/// Result of [`Resolver::locate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupStart {
    /// The result is known at once.
    Done(Result<Targets, LocateError>),
    /// A [`LookupOutcome`] follows.
    Pending(LookupId),
}

/// The end of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupOutcome {
    /// The lookup.
    pub lookup: LookupId,
    /// Its targets, at least one.
    pub targets: Result<Targets, LocateError>,
}

/// A datagram to a name server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The destination.
    pub server: SocketAddr,
    /// The payload.
    pub bytes: Vec<u8>,
}

/// A command for a TCP stream to a name server (RFC 7766): a question whose answer was truncated is queried again over
/// TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamWork {
    /// Open a stream and send the bytes.
    Open {
        /// Its number, which is never reused.
        stream: u32,
        /// The destination.
        server: SocketAddr,
        /// The query, preceded by its length.
        bytes: Vec<u8>,
    },
    /// Close a stream.
    Close {
        /// Its number.
        stream: u32,
    },
}

/// Reason why an answer of a name server was ignored; each is a counted drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IgnoredAnswer {
    /// It is not a valid response.
    Malformed,
    /// No pending query has its identifier, or that query was sent to another server.
    Unasked,
    /// It repeats another question, or ours in other letter case.
    Question,
}

#[derive(Debug)]
struct Flight {
    question: Question,
    server: SocketAddr,
    /// Index of the server that is tried first.
    first: u32,
    tries: u32,
    /// Whether the server that is tried first did not answer a datagram in time.
    silent: bool,
    edns: bool,
    upper: u64,
    due: Time,
    /// Time at which it is given up, regardless of the tries that are left.
    ends: Option<Time>,
    /// The question is queried over this stream instead of by datagram.
    stream: Option<DnsStream>,
    /// The records of a truncated answer, used if no server answers over TCP, and the time that they may be cached.
    partial: Option<(KnownAnswer, Duration)>,
}

#[derive(Debug)]
struct DnsStream {
    number: u32,
    /// Bytes received so far, the length included.
    bytes: Vec<u8>,
}

impl Flight {
    /// The time of the next try, not after the end.
    fn bounded(&self, due: Time) -> Time {
        self.ends.map_or(due, |ends| due.min(ends))
    }

    fn is_on(&self, number: u32) -> bool {
        self.stream
            .as_ref()
            .is_some_and(|stream| stream.number == number)
    }
}

/// Parses the answer to a pending question.
fn read(question: &Question, upper: u64, bytes: &[u8]) -> Result<dns::DnsAnswer, IgnoredAnswer> {
    dns::read_answer(bytes, question, upper).map_err(|error| match error {
        dns::AnswerMismatch::Malformed => IgnoredAnswer::Malformed,
        dns::AnswerMismatch::Question => IgnoredAnswer::Question,
    })
}

#[derive(Debug)]
struct Lookup {
    request: LocateRequest,
    ends: Time,
    /// When answers that have ended are used, if there are such to all pending questions.
    stale_at: Option<Time>,
    /// Answers to its own questions. They apply to this lookup even if the cache must not keep them.
    answers: BTreeMap<Question, KnownAnswer>,
    /// Pending questions.
    open: BTreeSet<Question>,
}

#[derive(Debug)]
struct CachedAnswer {
    known: KnownAnswer,
    /// End of its lifetime.
    until: Time,
    /// Time of its removal.
    kept: Time,
}

/// Locates servers. Send its queries over a UDP socket and pass received datagrams to [`Resolver::answer`]; perform its
/// stream commands.
#[derive(Debug)]
pub struct Resolver {
    config: ResolverConfig,
    address_types: Vec<RecordType>,
    hosts: BTreeMap<String, Vec<IpAddr>>,
    entropy: Entropy,
    lookups: BTreeMap<LookupId, Lookup>,
    next_lookup: u64,
    flights: BTreeMap<u16, Flight>,
    pending_questions: BTreeMap<Question, u16>,
    cache: BTreeMap<Question, CachedAnswer>,
    /// Cached questions by the time of their removal.
    ends: BTreeSet<(Time, Question)>,
    /// Index of the server that questions go to first, and until when.
    preferred: (u32, Time),
    queries: VecDeque<Query>,
    streams: VecDeque<StreamWork>,
    next_stream: u32,
    outcomes: VecDeque<LookupOutcome>,
}

/// The answers that one evaluation can use.
struct AnswerView<'r> {
    resolver: &'r Resolver,
    answers: &'r BTreeMap<Question, KnownAnswer>,
    now: Time,
}

/// Absent records, for a configuration without name servers.
static NO_RECORDS: KnownAnswer = KnownAnswer::Records(Vec::new());

impl Oracle for AnswerView<'_> {
    fn known_answer(&self, question: &Question) -> Option<&KnownAnswer> {
        if let Some(known) = self.answers.get(question) {
            return Some(known);
        }
        let cached = self.resolver.cache.get(question);
        if let Some(cached) = cached.filter(|cached| cached.until > self.now) {
            return Some(&cached.known);
        }
        self.resolver
            .config
            .servers
            .is_empty()
            .then_some(&NO_RECORDS)
    }

    fn fixed(&self, name: &str) -> Option<&[IpAddr]> {
        self.resolver.hosts.get(name).map(Vec::as_slice)
    }

    fn transports(&self) -> &[Transport] {
        &self.resolver.config.transports
    }

    fn address_types(&self) -> &[RecordType] {
        &self.resolver.address_types
    }
}

impl Resolver {
    /// A resolver. Entries of `hosts` that are not domain names are ignored.
    pub fn new(config: ResolverConfig, entropy: Entropy) -> Resolver {
        let (address_types, hosts) = (address_types(&config), fixed_hosts(&config));
        Resolver {
            config,
            address_types,
            hosts,
            entropy,
            lookups: BTreeMap::new(),
            next_lookup: 0,
            flights: BTreeMap::new(),
            pending_questions: BTreeMap::new(),
            cache: BTreeMap::new(),
            ends: BTreeSet::new(),
            preferred: (0, Time::ZERO),
            queries: VecDeque::new(),
            streams: VecDeque::new(),
            next_stream: 0,
            outcomes: VecDeque::new(),
        }
    }

    /// Applies other transports and address families. Cached answers and pending lookups remain: each is evaluated with
    /// them.
    pub fn set_supported(&mut self, transports: Vec<Transport>, ipv4: bool, ipv6: bool) {
        self.config.transports = transports;
        self.config.ipv4 = ipv4;
        self.config.ipv6 = ipv6;
        self.address_types = address_types(&self.config);
        self.hosts = fixed_hosts(&self.config);
    }

    /// Starts a lookup.
    pub fn locate(&mut self, request: LocateRequest, now: Time) -> LookupStart {
        let answers = BTreeMap::new();
        match self.evaluate(&request, &answers, now) {
            Evaluated::Targets(targets) => LookupStart::Done(Ok(Targets::new(targets))),
            Evaluated::Failed(error) => LookupStart::Done(Err(error)),
            Evaluated::Missing(_) if self.lookups.len() >= self.config.lookups => {
                LookupStart::Done(Err(LocateError::Busy))
            }
            Evaluated::Missing(missing) => {
                let id = LookupId(self.next_lookup);
                self.next_lookup += 1;
                let lookup = Lookup {
                    request,
                    ends: now + self.config.lookup_timeout,
                    stale_at: self.has_stale(&missing).then(|| now + STALE_WAIT),
                    answers,
                    open: missing.iter().cloned().collect(),
                };
                self.lookups.insert(id, lookup);
                for question in missing {
                    self.ask(question, now);
                }
                LookupStart::Pending(id)
            }
        }
    }

    /// Cancels a lookup; no outcome follows. Its queries continue, because their answers are worth caching.
    pub fn cancel(&mut self, lookup: LookupId) {
        self.lookups.remove(&lookup);
    }

    /// Processes a datagram from `source`.
    pub fn answer(
        &mut self,
        source: SocketAddr,
        bytes: &[u8],
        now: Time,
    ) -> Result<(), IgnoredAnswer> {
        let id = dns::response_id(bytes).ok_or(IgnoredAnswer::Malformed)?;
        let flight = self
            .flights
            .get_mut(&id)
            .filter(|flight| flight.server == source && flight.stream.is_none());
        let flight = flight.ok_or(IgnoredAnswer::Unasked)?;
        let answer = read(&flight.question, flight.upper, bytes)?;
        if answer.truncated && matches!(answer.code, Code::Good | Code::NoName) {
            let absent = answer.records.is_empty() && answer.alias.is_none();
            let partial = self.evaluate_answer(answer);
            if let Some(flight) = self.flights.get_mut(&id).filter(|_| !absent) {
                flight.partial = Some(partial);
            }
            self.ask_over_stream(id, now);
            return Ok(());
        }
        self.on_answer(id, answer, now);
        Ok(())
    }

    /// Processes a complete answer.
    fn on_answer(&mut self, id: u16, answer: dns::DnsAnswer, now: Time) {
        match answer.code {
            Code::Format | Code::Failed => {
                if answer.code == Code::Format
                    && let Some(flight) = self.flights.get_mut(&id)
                {
                    flight.edns = false;
                }
                self.retry(id, now);
            }
            Code::Good | Code::NoName => {
                self.prefer_server_of(id, now);
                let (known, cache_time) = self.evaluate_answer(answer);
                self.settle(id, known, cache_time, now);
            }
        }
    }

    /// Has further questions go first to the server that answers this one, if the first one was silent: otherwise each
    /// lookup would wait for a server that is down, with NAPTR, SRV and addresses three times. A refusal costs no time,
    /// and the server that refuses one name may be the only one that has another.
    fn prefer_server_of(&mut self, id: u16, now: Time) {
        let Some(flight) = self.flights.get(&id).filter(|flight| flight.silent) else {
            return;
        };
        let mut servers = self.config.servers.iter();
        if let Some(at) = servers.position(|server| *server == flight.server) {
            self.preferred = (at as u32, now + PREFERRED);
        }
    }

    /// The content of an answer and the time that it may be cached.
    fn evaluate_answer(&self, answer: dns::DnsAnswer) -> (KnownAnswer, Duration) {
        let ttl = answer
            .ttl
            .map(|seconds| Duration::from_secs(u64::from(seconds)));
        let absent = answer.records.is_empty() && answer.alias.is_none();
        let cache_time = match absent {
            true => ttl
                .unwrap_or(ABSENCE_KEPT)
                .min(self.config.longest_negative),
            false => ttl.unwrap_or_default().min(self.config.longest),
        };
        let known = match answer.alias {
            Some(alias) => KnownAnswer::Alias(alias),
            None => KnownAnswer::Records(answer.records),
        };
        (known, cache_time)
    }

    /// Queries the server of a truncated answer again over TCP (RFC 7766 section 5; RFC 2181 section 9: the records of
    /// a truncated answer are not used).
    fn ask_over_stream(&mut self, id: u16, now: Time) {
        let number = self.next_stream;
        let wait = self.config.wait;
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        self.next_stream = number.wrapping_add(1);
        flight.stream = Some(DnsStream {
            number,
            bytes: Vec::new(),
        });
        // Twice the time, because the connection is opened first.
        flight.due = flight.bounded(now + wait * 2);
        let mut bytes = vec![0, 0];
        dns::write_query(id, &flight.question, flight.edns, flight.upper, &mut bytes);
        let length = (bytes.len() - 2) as u16;
        bytes[..2].copy_from_slice(&length.to_be_bytes());
        self.streams.push_back(StreamWork::Open {
            stream: number,
            server: flight.server,
            bytes,
        });
    }

    /// Processes received bytes of a stream.
    ///
    /// # Errors
    /// [`IgnoredAnswer`]. After [`IgnoredAnswer::Malformed`] and [`IgnoredAnswer::Question`] the stream is closed, and
    /// the question is retried.
    pub fn stream_bytes(
        &mut self,
        stream: u32,
        bytes: &[u8],
        now: Time,
    ) -> Result<(), IgnoredAnswer> {
        let (&id, flight) = self
            .flights
            .iter_mut()
            .find(|(_, flight)| flight.is_on(stream))
            .ok_or(IgnoredAnswer::Unasked)?;
        let Some(received) = flight.stream.as_mut() else {
            return Err(IgnoredAnswer::Unasked);
        };
        // The two length octets bound the buffer.
        let room = usize::from(u16::MAX) + 2 - received.bytes.len();
        received
            .bytes
            .extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        let Some((length, rest)) = received.bytes.split_first_chunk::<2>() else {
            return Ok(());
        };
        let length = usize::from(u16::from_be_bytes(*length));
        let Some(message) = rest.get(..length) else {
            return Ok(());
        };
        let answer = match dns::response_id(message) {
            Some(response_id) if response_id == id => read(&flight.question, flight.upper, message),
            _ => Err(IgnoredAnswer::Malformed),
        };
        match answer {
            Ok(answer) => self.on_answer(id, answer, now),
            Err(ignored) => {
                self.retry(id, now);
                return Err(ignored);
            }
        }
        Ok(())
    }

    /// Retries the question of a stream that could not be opened or has ended.
    pub fn stream_ended(&mut self, stream: u32, now: Time) {
        let id = self
            .flights
            .iter_mut()
            .find(|(_, flight)| flight.is_on(stream))
            .map(|(id, flight)| {
                flight.stream = None;
                *id
            });
        if let Some(id) = id {
            self.retry(id, now);
        }
    }

    /// Whether [`Resolver::next_stream_work`] returns a command.
    pub fn has_stream_work(&self) -> bool {
        !self.streams.is_empty()
    }

    /// The next stream command.
    pub fn next_stream_work(&mut self) -> Option<StreamWork> {
        self.streams.pop_front()
    }

    /// Replaces `old`, whose lookups end without outcome: closes its streams and does not reuse their numbers.
    pub fn take_over(&mut self, old: &Resolver) {
        self.next_stream = old.next_stream;
        for flight in old.flights.values() {
            if let Some(stream) = &flight.stream {
                self.streams.push_back(StreamWork::Close {
                    stream: stream.number,
                });
            }
        }
    }

    /// Closes the stream of a question.
    fn close_stream(&mut self, id: u16) {
        if let Some(stream) = self
            .flights
            .get_mut(&id)
            .and_then(|flight| flight.stream.take())
        {
            self.streams.push_back(StreamWork::Close {
                stream: stream.number,
            });
        }
    }

    /// Processes timeouts at `now`: retransmits or gives up.
    pub fn timeout(&mut self, now: Time) {
        let due: Vec<u16> = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.due <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            if let Some(flight) = self.flights.get_mut(&id) {
                flight.silent |= flight.tries == 1 && flight.stream.is_none();
            }
            self.retry(id, now);
        }
        let waiting = |lookup: &Lookup| lookup.stale_at.is_some_and(|at| at <= now);
        let waiting: Vec<LookupId> = self
            .lookups
            .iter()
            .filter(|(_, lookup)| waiting(lookup))
            .map(|(id, _)| *id)
            .collect();
        for lookup in waiting {
            self.finish_by_stale(lookup, now);
        }
        let ended: Vec<LookupId> = self
            .lookups
            .iter()
            .filter(|(_, lookup)| lookup.ends <= now)
            .map(|(id, _)| *id)
            .collect();
        for lookup in ended {
            self.finish(lookup, Err(LocateError::NoAnswer));
        }
        self.expire(now);
    }

    /// The next datagram to send.
    pub fn next_query(&mut self) -> Option<Query> {
        self.queries.pop_front()
    }

    /// The next outcome of a lookup.
    pub fn next_outcome(&mut self) -> Option<LookupOutcome> {
        self.outcomes.pop_front()
    }

    /// The next deadline for [`Resolver::timeout`].
    pub fn next_deadline(&self) -> Option<Deadline> {
        let flight = self.flights.values().map(|flight| flight.due).min();
        let lookup = |lookup: &Lookup| {
            lookup
                .stale_at
                .map_or(lookup.ends, |at| at.min(lookup.ends))
        };
        let lookup = self.lookups.values().map(lookup).min();
        let at = flight.into_iter().chain(lookup).min()?;
        Some(Deadline {
            at,
            reason: "name server",
        })
    }

    /// Numbers of pending lookups, pending questions and cached answers.
    pub fn census(&self) -> (usize, usize, usize) {
        (self.lookups.len(), self.flights.len(), self.cache.len())
    }

    fn evaluate(
        &mut self,
        request: &LocateRequest,
        answers: &BTreeMap<Question, KnownAnswer>,
        now: Time,
    ) -> Evaluated {
        let mut entropy = match request.seed {
            Some(number) => {
                let mut seed = [0; 32];
                seed[..8].copy_from_slice(&number.to_le_bytes());
                Entropy::from_seed(seed)
            }
            None => self.entropy.fork(),
        };
        let view = AnswerView {
            resolver: self,
            answers,
            now,
        };
        evaluate(request, &view, &mut entropy)
    }

    /// Sends `question` unless it is pending already.
    fn ask(&mut self, question: Question, now: Time) {
        if self.pending_questions.contains_key(&question) {
            return;
        }
        // The table of 16-bit identifiers may be full. Then the question fails at once instead of waiting.
        let free = (0..16).find_map(|_| {
            let id = self.entropy.u32() as u16;
            (!self.flights.contains_key(&id)).then_some(id)
        });
        let (Some(id), Some(server)) = (free, self.config.servers.first().copied()) else {
            return self.deliver_answer(&question, &KnownAnswer::Failed, now);
        };
        let (preferred, until) = self.preferred;
        let first = if now < until { preferred } else { 0 };
        self.pending_questions.insert(question.clone(), id);
        // Some name servers do not answer NAPTR queries at all. Half of the time is left for the questions that follow.
        let ends =
            (question.kind == RecordType::Naptr).then(|| now + self.config.lookup_timeout / 2);
        let flight = Flight {
            question,
            server,
            first,
            tries: 0,
            silent: false,
            edns: true,
            upper: 0,
            due: now,
            ends,
            stream: None,
            partial: None,
        };
        self.flights.insert(id, flight);
        self.retry(id, now);
    }

    /// Sends a question (again) to the next server in turn, or gives it up after the last try.
    fn retry(&mut self, id: u16, now: Time) {
        let upper = self.entropy.u64();
        self.close_stream(id);
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        if flight.tries >= self.config.tries || flight.ends.is_some_and(|ends| ends <= now) {
            // A partial answer is better than none if TCP is blocked.
            let (known, cache_time) = flight
                .partial
                .take()
                .unwrap_or((KnownAnswer::Failed, FAILURE_KEPT));
            return self.settle(id, known, cache_time, now);
        }
        let servers = self.config.servers.len().max(1) as u32;
        let turn = (flight.first.wrapping_add(flight.tries) % servers) as usize;
        let round = (flight.tries / servers).min(6);
        if let Some(server) = self.config.servers.get(turn) {
            flight.server = *server;
        }
        // Random letter case makes a forged answer harder. The last round omits it, because some servers do not
        // preserve it.
        let last_round = flight.tries + servers >= self.config.tries;
        flight.upper = if last_round { 0 } else { upper };
        flight.tries += 1;
        flight.due = flight.bounded(now + self.config.wait * (1 << round));
        let mut bytes = Vec::with_capacity(64);
        dns::write_query(id, &flight.question, flight.edns, flight.upper, &mut bytes);
        self.queries.push_back(Query {
            server: flight.server,
            bytes,
        });
    }

    /// Ends a question with its answer or its failure. An answer that has ended is better than a failure.
    fn settle(&mut self, id: u16, known: KnownAnswer, cache_time: Duration, now: Time) {
        self.close_stream(id);
        let Some(flight) = self.flights.remove(&id) else {
            return;
        };
        self.pending_questions.remove(&flight.question);
        let stale = match known {
            KnownAnswer::Failed => self.revive(&flight.question, now),
            KnownAnswer::Records(_) | KnownAnswer::Alias(_) => None,
        };
        if let Some(stale) = stale {
            return self.deliver_answer(&flight.question, &stale, now);
        }
        self.cache_answer(
            flight.question.clone(),
            known.clone(),
            now + cache_time,
            now,
        );
        self.deliver_answer(&flight.question, &known, now);
    }

    fn cache_answer(&mut self, question: Question, known: KnownAnswer, until: Time, now: Time) {
        self.expire(now);
        if let Some(old) = self.cache.remove(&question) {
            self.ends.remove(&(old.kept, question.clone()));
        }
        if self.config.cache == 0 || until <= now {
            return;
        }
        while self.cache.len() >= self.config.cache {
            let Some((_, oldest)) = self.ends.pop_first() else {
                break;
            };
            self.cache.remove(&oldest);
        }
        let kept = match known {
            KnownAnswer::Failed => until,
            KnownAnswer::Records(_) | KnownAnswer::Alias(_) => until + STALE_KEPT,
        };
        let cached = CachedAnswer { known, until, kept };
        self.cache.insert(question.clone(), cached);
        self.ends.insert((kept, question));
    }

    /// Whether there is an answer to each of these questions that has ended.
    fn has_stale(&self, questions: &[Question]) -> bool {
        let is_stale = |question: &Question| {
            let cached = self.cache.get(question);
            cached.is_some_and(|cached| cached.known != KnownAnswer::Failed)
        };
        questions.iter().all(is_stale)
    }

    /// The answer to a question that has ended, if there is one; it counts as current for a while.
    fn revive(&mut self, question: &Question, now: Time) -> Option<KnownAnswer> {
        let cached = self.cache.get_mut(question)?;
        if cached.known == KnownAnswer::Failed || cached.kept <= now {
            return None;
        }
        cached.until = cached.until.max((now + STALE_LIFETIME).min(cached.kept));
        Some(cached.known.clone())
    }

    /// Ends a lookup by answers that have ended, if they lead to targets (RFC 8767). Its questions stay pending: a name
    /// server that is slow answers them for the lookups that follow.
    fn finish_by_stale(&mut self, id: LookupId, now: Time) {
        self.expire(now);
        let Some(lookup) = self.lookups.get_mut(&id) else {
            return;
        };
        lookup.stale_at = None;
        let (request, answers) = (lookup.request.clone(), lookup.answers.clone());
        for _ in 0..MAX_QUESTIONS {
            match self.evaluate(&request, &answers, now) {
                Evaluated::Targets(targets) => {
                    return self.finish(id, Ok(Targets::new(targets)));
                }
                Evaluated::Missing(missing) if self.has_stale(&missing) => {
                    for question in &missing {
                        self.revive(question, now);
                    }
                }
                // The name servers may still answer.
                Evaluated::Missing(_) | Evaluated::Failed(_) => return,
            }
        }
    }

    fn expire(&mut self, now: Time) {
        while let Some((until, _)) = self.ends.first()
            && *until <= now
        {
            if let Some((_, question)) = self.ends.pop_first() {
                self.cache.remove(&question);
            }
        }
    }

    /// Gives an answer to the lookups that wait for it, and evaluates those that have no pending question any more.
    fn deliver_answer(&mut self, question: &Question, known: &KnownAnswer, now: Time) {
        let mut ready = Vec::new();
        for (id, lookup) in &mut self.lookups {
            if lookup.open.remove(question) {
                lookup.answers.insert(question.clone(), known.clone());
                if lookup.open.is_empty() {
                    ready.push(*id);
                }
            }
        }
        for id in ready {
            self.reevaluate(id, now);
        }
    }

    fn reevaluate(&mut self, id: LookupId, now: Time) {
        let Some(mut lookup) = self.lookups.remove(&id) else {
            return;
        };
        match self.evaluate(&lookup.request, &lookup.answers, now) {
            Evaluated::Targets(targets) => self.finish(id, Ok(Targets::new(targets))),
            Evaluated::Failed(error) => self.finish(id, Err(error)),
            Evaluated::Missing(missing) if lookup.answers.len() + missing.len() > MAX_QUESTIONS => {
                self.finish(id, Err(LocateError::NoAnswer));
            }
            Evaluated::Missing(missing) => {
                lookup.open = missing.iter().cloned().collect();
                lookup.stale_at = self.has_stale(&missing).then(|| now + STALE_WAIT);
                self.lookups.insert(id, lookup);
                for question in missing {
                    self.ask(question, now);
                }
            }
        }
    }

    fn finish(&mut self, lookup: LookupId, targets: Result<Targets, LocateError>) {
        self.lookups.remove(&lookup);
        self.outcomes.push_back(LookupOutcome { lookup, targets });
    }
}
