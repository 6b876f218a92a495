//! The engine around evaluations: queries in flight, retransmission, answers checked, cache.

use super::dns::{self, Code, Kind, Name, Question};
use super::evaluate::{Evaluated, Known, Oracle, evaluate};
use super::{LocateError, Targets, Wanted};
use engine::{Deadline, Entropy, Time, Transport};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// How a [`Resolver`] works.
#[derive(Clone, Debug)]
pub struct ResolverConfig {
    /// Name servers, the preferred first. None: only addresses and [`ResolverConfig::hosts`] are located.
    pub servers: Vec<SocketAddr>,
    /// Transports that we have, the preferred first.
    pub transports: Vec<Transport>,
    /// Whether IPv4 addresses are asked for.
    pub ipv4: bool,
    /// Whether IPv6 addresses are asked for.
    pub ipv6: bool,
    /// Whether IPv6 addresses come before IPv4 ones of the same name.
    pub prefer_ipv6: bool,
    /// Names with addresses that win over DNS.
    pub hosts: Vec<(String, IpAddr)>,
    /// Wait for an answer before the next try, doubled each time the servers have all been tried.
    pub wait: Duration,
    /// Tries of one question over all servers.
    pub tries: u32,
    /// End of a lookup, whatever is still open.
    pub lookup_timeout: Duration,
    /// Lookups under way at most.
    pub lookups: usize,
    /// Answers kept at most.
    pub cache: usize,
    /// Answers are kept no longer than this, whatever their time to live.
    pub longest: Duration,
    /// That a name or record does not exist is kept no longer than this.
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

/// How long a failure of all name servers is remembered (RFC 9520 section 3.2: at least a second).
const FAILURE_KEPT: Duration = Duration::from_secs(5);
/// How long an absence without SOA is remembered.
const ABSENCE_KEPT: Duration = Duration::from_secs(5);
/// Questions of one lookup at most, over all its evaluations.
const MAX_QUESTIONS: usize = 100;

/// A lookup under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LookupId(pub u64);

/// What [`Resolver::locate`] gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Started {
    /// Known at once.
    Done(Result<Targets, LocateError>),
    /// An [`Outcome`] will come.
    Pending(LookupId),
}

/// The end of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Which.
    pub lookup: LookupId,
    /// Its targets, at least one.
    pub targets: Result<Targets, LocateError>,
}

/// A datagram to a name server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Where to.
    pub server: SocketAddr,
    /// The payload.
    pub bytes: Vec<u8>,
}

/// What is to be done with a stream to a name server (RFC 7766): a question whose answer did not fit into a datagram is
/// asked again over TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamWork {
    /// Open this stream and send the bytes.
    Open {
        /// Our number for it; none is used twice.
        stream: u32,
        /// Where to.
        server: SocketAddr,
        /// The query behind its length.
        bytes: Vec<u8>,
    },
    /// Close it.
    Close {
        /// Which.
        stream: u32,
    },
}

/// Why an answer of a name server's was not used; each is a counted drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ignored {
    /// It cannot be read as a response.
    Malformed,
    /// No query of ours has its identifier, or that query went to another server.
    Unasked,
    /// It repeats another question, or ours in other letters.
    Question,
}

#[derive(Debug)]
struct Flight {
    question: Question,
    server: SocketAddr,
    tries: u32,
    edns: bool,
    upper: u64,
    due: Time,
    /// The question is asked over this stream, not by a datagram.
    stream: Option<Stream>,
    /// What a truncated answer had, for when no server answers over a stream, and how long it may be kept.
    partial: Option<(Known, Duration)>,
}

#[derive(Debug)]
struct Stream {
    number: u32,
    /// What has come so far, the length in front.
    bytes: Vec<u8>,
}

impl Flight {
    fn is_on(&self, number: u32) -> bool {
        self.stream
            .as_ref()
            .is_some_and(|stream| stream.number == number)
    }
}

/// The answer to a question in flight.
fn read(question: &Question, upper: u64, bytes: &[u8]) -> Result<dns::Answer, Ignored> {
    dns::read_answer(bytes, question, upper).map_err(|error| match error {
        dns::Mismatch::Malformed => Ignored::Malformed,
        dns::Mismatch::Question => Ignored::Question,
    })
}

#[derive(Debug)]
struct Lookup {
    wanted: Wanted,
    ends: Time,
    /// Answers to its own questions: they hold for it even when the cache may not keep them.
    answers: BTreeMap<Question, Known>,
    /// Questions in flight that it waits for.
    open: BTreeSet<Question>,
}

#[derive(Debug)]
struct Cached {
    known: Known,
    until: Time,
}

/// Locates servers. Hand its queries to a UDP socket, hand what comes back to [`Resolver::answer`]; open the streams that
/// it asks for.
#[derive(Debug)]
pub struct Resolver {
    config: ResolverConfig,
    kinds: Vec<Kind>,
    hosts: BTreeMap<String, Vec<IpAddr>>,
    entropy: Entropy,
    lookups: BTreeMap<LookupId, Lookup>,
    next_lookup: u64,
    flights: BTreeMap<u16, Flight>,
    asked: BTreeMap<Question, u16>,
    cache: BTreeMap<Question, Cached>,
    /// Cached questions by the time at which they end.
    ends: BTreeSet<(Time, Question)>,
    queries: VecDeque<Query>,
    streams: VecDeque<StreamWork>,
    next_stream: u32,
    outcomes: VecDeque<Outcome>,
}

/// What one evaluation sees.
struct View<'r> {
    resolver: &'r Resolver,
    answers: &'r BTreeMap<Question, Known>,
    now: Time,
}

/// Absent records, for when there is no one to ask.
static NOTHING: Known = Known::Records(Vec::new());

impl Oracle for View<'_> {
    fn known(&self, question: &Question) -> Option<&Known> {
        if let Some(known) = self.answers.get(question) {
            return Some(known);
        }
        let cached = self.resolver.cache.get(question);
        if let Some(cached) = cached.filter(|cached| cached.until > self.now) {
            return Some(&cached.known);
        }
        self.resolver.config.servers.is_empty().then_some(&NOTHING)
    }

    fn fixed(&self, name: &str) -> Option<&[IpAddr]> {
        self.resolver.hosts.get(name).map(Vec::as_slice)
    }

    fn transports(&self) -> &[Transport] {
        &self.resolver.config.transports
    }

    fn address_kinds(&self) -> &[Kind] {
        &self.resolver.kinds
    }
}

impl Resolver {
    /// A resolver. Names in `hosts` that are no domain names are left out.
    pub fn new(config: ResolverConfig, entropy: Entropy) -> Resolver {
        let mut kinds = Vec::new();
        if config.ipv4 {
            kinds.push(Kind::A);
        }
        if config.ipv6 {
            kinds.insert(if config.prefer_ipv6 { 0 } else { kinds.len() }, Kind::Aaaa);
        }
        let mut hosts: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        for (name, address) in &config.hosts {
            let wanted = if address.is_ipv4() {
                config.ipv4
            } else {
                config.ipv6
            };
            if let Some(name) = Name::parse(name.as_bytes()).filter(|_| wanted) {
                hosts
                    .entry(name.as_str().to_owned())
                    .or_default()
                    .push(*address);
            }
        }
        Resolver {
            config,
            kinds,
            hosts,
            entropy,
            lookups: BTreeMap::new(),
            next_lookup: 0,
            flights: BTreeMap::new(),
            asked: BTreeMap::new(),
            cache: BTreeMap::new(),
            ends: BTreeSet::new(),
            queries: VecDeque::new(),
            streams: VecDeque::new(),
            next_stream: 0,
            outcomes: VecDeque::new(),
        }
    }

    /// Starts a lookup.
    pub fn locate(&mut self, wanted: Wanted, now: Time) -> Started {
        let answers = BTreeMap::new();
        match self.evaluate(&wanted, &answers, now) {
            Evaluated::Targets(targets) => Started::Done(Ok(Targets::new(targets))),
            Evaluated::Failed(error) => Started::Done(Err(error)),
            Evaluated::Missing(_) if self.lookups.len() >= self.config.lookups => {
                Started::Done(Err(LocateError::Busy))
            }
            Evaluated::Missing(missing) => {
                let id = LookupId(self.next_lookup);
                self.next_lookup += 1;
                let lookup = Lookup {
                    wanted,
                    ends: now + self.config.lookup_timeout,
                    answers,
                    open: missing.iter().cloned().collect(),
                };
                self.lookups.insert(id, lookup);
                for question in missing {
                    self.ask(question, now);
                }
                Started::Pending(id)
            }
        }
    }

    /// Gives a lookup up; no outcome comes. Its questions run on: their answers are worth keeping.
    pub fn cancel(&mut self, lookup: LookupId) {
        self.lookups.remove(&lookup);
    }

    /// Takes a datagram that came from `source`.
    pub fn answer(&mut self, source: SocketAddr, bytes: &[u8], now: Time) -> Result<(), Ignored> {
        let id = dns::response_id(bytes).ok_or(Ignored::Malformed)?;
        let flight = self
            .flights
            .get_mut(&id)
            .filter(|flight| flight.server == source && flight.stream.is_none());
        let flight = flight.ok_or(Ignored::Unasked)?;
        let answer = read(&flight.question, flight.upper, bytes)?;
        if answer.truncated && matches!(answer.code, Code::Good | Code::NoName) {
            let absent = answer.records.is_empty() && answer.alias.is_none();
            let partial = self.judged(answer);
            if let Some(flight) = self.flights.get_mut(&id).filter(|_| !absent) {
                flight.partial = Some(partial);
            }
            self.ask_over_stream(id, now);
            return Ok(());
        }
        self.answered(id, answer, now);
        Ok(())
    }

    /// What a whole answer says.
    fn answered(&mut self, id: u16, answer: dns::Answer, now: Time) {
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
                let (known, keep) = self.judged(answer);
                self.settle(id, known, keep, now);
            }
        }
    }

    /// What is known by an answer, and how long it may be kept.
    fn judged(&self, answer: dns::Answer) -> (Known, Duration) {
        let ttl = answer
            .ttl
            .map(|seconds| Duration::from_secs(u64::from(seconds)));
        let absent = answer.records.is_empty() && answer.alias.is_none();
        let keep = match absent {
            true => ttl
                .unwrap_or(ABSENCE_KEPT)
                .min(self.config.longest_negative),
            false => ttl.unwrap_or_default().min(self.config.longest),
        };
        let known = match answer.alias {
            Some(alias) => Known::Alias(alias),
            None => Known::Records(answer.records),
        };
        (known, keep)
    }

    /// Asks the server of a truncated answer again over TCP (RFC 7766 section 5; RFC 2181 section 9: what was cut off is
    /// not to be worked with).
    fn ask_over_stream(&mut self, id: u16, now: Time) {
        let number = self.next_stream;
        let wait = self.config.wait;
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        self.next_stream = number.wrapping_add(1);
        flight.stream = Some(Stream {
            number,
            bytes: Vec::new(),
        });
        // A connection is opened first: twice the time.
        flight.due = now + wait * 2;
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

    /// Takes bytes that came on a stream.
    ///
    /// # Errors
    /// [`Ignored`]; after [`Ignored::Malformed`] and [`Ignored::Question`] the stream is closed, and the question asked
    /// otherwise.
    pub fn stream_bytes(&mut self, stream: u32, bytes: &[u8], now: Time) -> Result<(), Ignored> {
        let (&id, flight) = self
            .flights
            .iter_mut()
            .find(|(_, flight)| flight.is_on(stream))
            .ok_or(Ignored::Unasked)?;
        let Some(came) = flight.stream.as_mut() else {
            return Err(Ignored::Unasked);
        };
        // A length of two octets bounds what is kept.
        let room = usize::from(u16::MAX) + 2 - came.bytes.len();
        came.bytes
            .extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        let Some((length, rest)) = came.bytes.split_first_chunk::<2>() else {
            return Ok(());
        };
        let length = usize::from(u16::from_be_bytes(*length));
        let Some(message) = rest.get(..length) else {
            return Ok(());
        };
        let answer = match dns::response_id(message) {
            Some(theirs) if theirs == id => read(&flight.question, flight.upper, message),
            _ => Err(Ignored::Malformed),
        };
        match answer {
            Ok(answer) => self.answered(id, answer, now),
            Err(ignored) => {
                self.retry(id, now);
                return Err(ignored);
            }
        }
        Ok(())
    }

    /// A stream could not be opened, or has ended: its question is asked otherwise.
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

    /// Whether [`Resolver::next_stream_work`] has something.
    pub fn has_stream_work(&self) -> bool {
        !self.streams.is_empty()
    }

    /// What is next to be done with streams.
    pub fn next_stream_work(&mut self) -> Option<StreamWork> {
        self.streams.pop_front()
    }

    /// Takes the place of `old`, whose lookups come to nothing: its streams are closed, their numbers stay its own.
    pub fn succeed(&mut self, old: &Resolver) {
        self.next_stream = old.next_stream;
        for flight in old.flights.values() {
            if let Some(stream) = &flight.stream {
                self.streams.push_back(StreamWork::Close {
                    stream: stream.number,
                });
            }
        }
    }

    /// The stream of a question is of no more use.
    fn leave_stream(&mut self, id: u16) {
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

    /// Retransmits, gives up: what is due at `now`.
    pub fn timeout(&mut self, now: Time) {
        let due: Vec<u16> = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.due <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.retry(id, now);
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

    /// The next lookup that has ended.
    pub fn next_outcome(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    /// When [`Resolver::timeout`] is next due.
    pub fn next_deadline(&self) -> Option<Deadline> {
        let flight = self.flights.values().map(|flight| flight.due).min();
        let lookup = self.lookups.values().map(|lookup| lookup.ends).min();
        let at = flight.into_iter().chain(lookup).min()?;
        Some(Deadline {
            at,
            why: "name server",
        })
    }

    /// Lookups under way, questions in flight, answers kept.
    pub fn census(&self) -> (usize, usize, usize) {
        (self.lookups.len(), self.flights.len(), self.cache.len())
    }

    fn evaluate(
        &mut self,
        wanted: &Wanted,
        answers: &BTreeMap<Question, Known>,
        now: Time,
    ) -> Evaluated {
        let mut entropy = self.entropy.fork();
        let view = View {
            resolver: self,
            answers,
            now,
        };
        evaluate(wanted, &view, &mut entropy)
    }

    /// Sends `question`, where it is not in flight already.
    fn ask(&mut self, question: Question, now: Time) {
        if self.asked.contains_key(&question) {
            return;
        }
        // As many identifiers as lookups times questions do not exist: a full table waits for no one.
        let free = (0..16).find_map(|_| {
            let id = self.entropy.u32() as u16;
            (!self.flights.contains_key(&id)).then_some(id)
        });
        let (Some(id), Some(server)) = (free, self.config.servers.first().copied()) else {
            return self.tell(&question, &Known::Failed, now);
        };
        self.asked.insert(question.clone(), id);
        let flight = Flight {
            question,
            server,
            tries: 0,
            edns: true,
            upper: 0,
            due: now,
            stream: None,
            partial: None,
        };
        self.flights.insert(id, flight);
        self.retry(id, now);
    }

    /// Sends a question (again), to the next server in turn; gives it up after the last try.
    fn retry(&mut self, id: u16, now: Time) {
        let upper = self.entropy.u64();
        self.leave_stream(id);
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        if flight.tries >= self.config.tries {
            // Half an answer is better than none where TCP is blocked on the way.
            let (known, keep) = flight
                .partial
                .take()
                .unwrap_or((Known::Failed, FAILURE_KEPT));
            return self.settle(id, known, keep, now);
        }
        let servers = self.config.servers.len().max(1) as u32;
        let turn = (flight.tries % servers) as usize;
        let round = (flight.tries / servers).min(6);
        if let Some(server) = self.config.servers.get(turn) {
            flight.server = *server;
        }
        // Random letters make an answer harder to forge. The last round leaves them: some servers do not keep them.
        let last_round = flight.tries + servers >= self.config.tries;
        flight.upper = if last_round { 0 } else { upper };
        flight.tries += 1;
        flight.due = now + self.config.wait * (1 << round);
        let mut bytes = Vec::with_capacity(64);
        dns::write_query(id, &flight.question, flight.edns, flight.upper, &mut bytes);
        self.queries.push_back(Query {
            server: flight.server,
            bytes,
        });
    }

    /// A question is answered, or will not be.
    fn settle(&mut self, id: u16, known: Known, keep: Duration, now: Time) {
        self.leave_stream(id);
        let Some(flight) = self.flights.remove(&id) else {
            return;
        };
        self.asked.remove(&flight.question);
        self.keep(flight.question.clone(), known.clone(), now + keep, now);
        self.tell(&flight.question, &known, now);
    }

    fn keep(&mut self, question: Question, known: Known, until: Time, now: Time) {
        self.expire(now);
        if self.config.cache == 0 || until <= now {
            return;
        }
        while self.cache.len() >= self.config.cache {
            let Some((_, oldest)) = self.ends.pop_first() else {
                break;
            };
            self.cache.remove(&oldest);
        }
        let cached = Cached { known, until };
        if let Some(old) = self.cache.insert(question.clone(), cached) {
            self.ends.remove(&(old.until, question.clone()));
        }
        self.ends.insert((until, question));
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

    /// Gives an answer to the lookups that wait for it, and evaluates those that wait for nothing more.
    fn tell(&mut self, question: &Question, known: &Known, now: Time) {
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
            self.step(id, now);
        }
    }

    fn step(&mut self, id: LookupId, now: Time) {
        let Some(mut lookup) = self.lookups.remove(&id) else {
            return;
        };
        match self.evaluate(&lookup.wanted, &lookup.answers, now) {
            Evaluated::Targets(targets) => self.finish(id, Ok(Targets::new(targets))),
            Evaluated::Failed(error) => self.finish(id, Err(error)),
            Evaluated::Missing(missing) if lookup.answers.len() + missing.len() > MAX_QUESTIONS => {
                self.finish(id, Err(LocateError::NoAnswer));
            }
            Evaluated::Missing(missing) => {
                lookup.open = missing.iter().cloned().collect();
                self.lookups.insert(id, lookup);
                for question in missing {
                    self.ask(question, now);
                }
            }
        }
    }

    fn finish(&mut self, lookup: LookupId, targets: Result<Targets, LocateError>) {
        self.lookups.remove(&lookup);
        self.outcomes.push_back(Outcome { lookup, targets });
    }
}
