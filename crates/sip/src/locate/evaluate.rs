//! Evaluation of a lookup against known answers: its result is targets or missing questions.

use super::dns::{DnsName, DnsRecord, Naptr, Question, RecordType, Srv};
use super::{LocateError, LocateHost, LocateRequest, ResolvedTarget};
use engine::{Entropy, Transport};
use std::net::{IpAddr, SocketAddr};

/// Targets of one lookup, at most.
const MAX_TARGETS: usize = 64;
/// Records of one type that are considered, at most.
const MAX_CHOICES: usize = 32;
/// Aliases that are followed over several answers, at most.
const MAX_ALIASES: usize = 8;

/// Known answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KnownAnswer {
    /// The records; empty if the name has none of the type.
    Records(Vec<DnsRecord>),
    /// The name is an alias of this one.
    Alias(DnsName),
    /// No name server gave a usable answer.
    Failed,
}

/// Source of known answers and settings for an evaluation.
pub(super) trait Oracle {
    /// The known answer to `question`; `None`: it has to be queried.
    fn known_answer(&self, question: &Question) -> Option<&KnownAnswer>;
    /// Configured addresses of a name, which override DNS.
    fn fixed(&self, name: &str) -> Option<&[IpAddr]>;
    /// Supported transports in order of preference.
    fn transports(&self) -> &[Transport];
    /// Address record types to query, in order of preference.
    fn address_types(&self) -> &[RecordType];
}

/// Result of an evaluation.
#[derive(Debug)]
pub(super) enum Evaluated {
    Targets(Vec<ResolvedTarget>),
    Failed(LocateError),
    /// These questions must be answered first.
    Missing(Vec<Question>),
}

/// Evaluates a request.
pub(super) fn evaluate(
    request: &LocateRequest,
    oracle: &dyn Oracle,
    entropy: &mut Entropy,
) -> Evaluated {
    let mut evaluation = Evaluation {
        request,
        oracle,
        entropy,
        missing: Vec::new(),
        targets: Vec::new(),
        failure: None,
    };
    if let Err(error) = evaluation.run() {
        evaluation.note(error);
    }
    match (evaluation.missing.is_empty(), evaluation.targets.is_empty()) {
        (false, _) => Evaluated::Missing(evaluation.missing),
        (true, false) => Evaluated::Targets(evaluation.targets),
        (true, true) => Evaluated::Failed(evaluation.failure.unwrap_or(LocateError::NotFound)),
    }
}

struct Evaluation<'e> {
    request: &'e LocateRequest,
    oracle: &'e dyn Oracle,
    entropy: &'e mut Entropy,
    missing: Vec<Question>,
    targets: Vec<ResolvedTarget>,
    failure: Option<LocateError>,
}

impl<'e> Evaluation<'e> {
    /// Records the most significant failure: a failed name server is more significant than an absent name.
    fn note(&mut self, error: LocateError) {
        if self.failure.is_none_or(|old| old == LocateError::NotFound) {
            self.failure = Some(error);
        }
    }

    fn run(&mut self) -> Result<(), LocateError> {
        let name = match &self.request.host {
            LocateHost::Address(address) => {
                let transport = self.plain_transport()?;
                let port = self.request.port.unwrap_or(transport.default_port());
                self.add(*address, port, transport);
                return Ok(());
            }
            LocateHost::Name(name) => {
                DnsName::parse(name.as_bytes()).ok_or(LocateError::BadName)?
            }
        };
        let fixed = self.oracle.fixed(name.as_str()).is_some();
        if self.request.port.is_some() || fixed {
            let transport = self.plain_transport()?;
            let port = self.request.port.unwrap_or(transport.default_port());
            self.addresses(&name, port, transport);
            return Ok(());
        }
        if self.request.transport.is_some() {
            let transport = self.plain_transport()?;
            if !self.service(&name, transport) {
                self.addresses(&name, transport.default_port(), transport);
            }
            return Ok(());
        }
        self.by_naptr(&name)
    }

    /// Whether requests can be sent over a transport.
    fn supports(&self, transport: Transport) -> bool {
        let usable = &self.request.usable;
        self.oracle.transports().contains(&transport)
            && (usable.is_empty() || usable.contains(&transport))
    }

    /// The transport without further queries: the requested one, otherwise UDP, for sips TLS (RFC 3263 section 4.1).
    fn plain_transport(&self) -> Result<Transport, LocateError> {
        let transport = match (self.request.transport, self.request.secure) {
            (None, false) => {
                let usual = [Transport::Udp, Transport::Tcp];
                let mut supported = usual
                    .iter()
                    .chain(self.oracle.transports())
                    .filter(|transport| self.supports(**transport));
                supported.next().copied().ok_or(LocateError::Unsupported)?
            }
            (None, true) => Transport::Tls,
            (Some(transport), false) => transport,
            // sips over "tcp" means TLS over TCP (RFC 3261 section 26.2.2).
            (Some(Transport::Tcp | Transport::Tls), true) => Transport::Tls,
            (Some(Transport::Ws | Transport::Wss), true) => Transport::Wss,
            (Some(Transport::Udp), true) => return Err(LocateError::Unsupported),
        };
        match self.supports(transport) {
            true => Ok(transport),
            false => Err(LocateError::Unsupported),
        }
    }

    fn by_naptr(&mut self, name: &DnsName) -> Result<(), LocateError> {
        let records = match self.ask(name, RecordType::Naptr) {
            // Some name servers do not answer NAPTR queries, and SRV is queried next in any case.
            Err(LocateError::NoAnswer) => &[][..],
            answer => match answer? {
                Some(records) => records,
                None => return Ok(()),
            },
        };
        let services = self.usable(records);
        let mut found = false;
        if services.is_empty() {
            for transport in self.candidates() {
                found |= self.service(name, transport);
            }
        }
        for (replacement, transport) in &services {
            found |= self.srv(replacement, *transport);
        }
        if !found {
            // Without SRV records, the name itself is the host (RFC 3263 section 4.2). NAPTR has selected the
            // transport.
            let transport = match services.first() {
                Some((_, transport)) => *transport,
                None => self.plain_transport()?,
            };
            self.addresses(name, transport.default_port(), transport);
        }
        Ok(())
    }

    /// The supported transports that fit the scheme, in order of preference.
    fn candidates(&self) -> Vec<Transport> {
        let secure = self.request.secure;
        let fits = |transport: &Transport| match transport {
            Transport::Udp | Transport::Tcp => !secure,
            Transport::Tls => secure,
            Transport::Ws | Transport::Wss => false,
        };
        self.oracle
            .transports()
            .iter()
            .copied()
            .filter(|transport| fits(transport) && self.supports(*transport))
            .collect()
    }

    /// Replacements and transports of the usable NAPTR records with the lowest order, by preference (RFC 3403 section
    /// 4.1).
    fn usable(&self, records: &[DnsRecord]) -> Vec<(DnsName, Transport)> {
        let mut usable: Vec<(&Naptr, Transport)> = records
            .iter()
            .take(MAX_CHOICES)
            .filter_map(|record| match record {
                DnsRecord::Naptr(naptr) => Some((naptr, self.naptr_transport(naptr)?)),
                _ => None,
            })
            .collect();
        usable.sort_by_key(|(naptr, _)| (naptr.order, naptr.preference));
        let order = usable.first().map(|(naptr, _)| naptr.order);
        usable
            .into_iter()
            .filter(|(naptr, _)| Some(naptr.order) == order)
            .map(|(naptr, transport)| (naptr.replacement.clone(), transport))
            .collect()
    }

    fn naptr_transport(&self, naptr: &Naptr) -> Option<Transport> {
        if !naptr.flags.eq_ignore_ascii_case(b"s") || naptr.replacement.is_root() {
            return None;
        }
        let is = |service: &str| naptr.service.eq_ignore_ascii_case(service.as_bytes());
        let transport = match () {
            () if is("SIPS+D2T") => Transport::Tls,
            () if is("SIPS+D2W") => Transport::Wss,
            () if self.request.secure => return None,
            () if is("SIP+D2U") => Transport::Udp,
            () if is("SIP+D2T") => Transport::Tcp,
            () if is("SIP+D2W") => Transport::Ws,
            () => return None,
        };
        self.supports(transport).then_some(transport)
    }

    /// Adds the targets of a transport's SRV service at `name`; false if there are none.
    fn service(&mut self, name: &DnsName, transport: Transport) -> bool {
        let prefix = match transport {
            Transport::Udp => "_sip._udp",
            Transport::Tcp => "_sip._tcp",
            Transport::Tls => "_sips._tcp",
            // No SRV service is registered for WebSocket.
            Transport::Ws | Transport::Wss => return false,
        };
        let Some(service) = name.below(prefix) else {
            return false;
        };
        self.srv(&service, transport)
    }

    /// Adds the targets of SRV records; false if there are none or their query failed, true while they are queried. A
    /// failure of one service does not prevent the use of others.
    fn srv(&mut self, service: &DnsName, transport: Transport) -> bool {
        let records = match self.ask(service, RecordType::Srv) {
            Ok(Some(records)) => records,
            Ok(None) => return true,
            Err(error) => {
                self.note(error);
                return false;
            }
        };
        let records: Vec<Srv> = records
            .iter()
            .take(MAX_CHOICES)
            .filter_map(|record| match record {
                DnsRecord::Srv(srv) => Some(srv.clone()),
                _ => None,
            })
            .collect();
        if records.is_empty() {
            return false;
        }
        for srv in ordered(records, self.entropy) {
            if srv.target.is_root() {
                self.note(LocateError::Refused);
            } else {
                self.addresses(&srv.target, srv.port, transport);
            }
        }
        true
    }

    /// Adds the addresses of `name`.
    fn addresses(&mut self, name: &DnsName, port: u16, transport: Transport) {
        if let Some(fixed) = self.oracle.fixed(name.as_str()) {
            for address in fixed {
                self.add(*address, port, transport);
            }
            return;
        }
        for kind in self.oracle.address_types().to_vec() {
            match self.ask(name, kind) {
                Ok(Some(records)) => {
                    let addresses: Vec<IpAddr> = records
                        .iter()
                        .take(MAX_CHOICES)
                        .filter_map(|record| match record {
                            DnsRecord::A(address) => Some(IpAddr::from(*address)),
                            DnsRecord::Aaaa(address) => Some(IpAddr::from(*address)),
                            _ => None,
                        })
                        .collect();
                    for address in addresses {
                        self.add(address, port, transport);
                    }
                }
                Ok(None) => {}
                Err(error) => self.note(error),
            }
        }
    }

    fn add(&mut self, address: IpAddr, port: u16, transport: Transport) {
        let target = ResolvedTarget {
            address: SocketAddr::new(address, port),
            transport,
        };
        if port != 0 && self.targets.len() < MAX_TARGETS && !self.targets.contains(&target) {
            self.targets.push(target);
        }
    }

    /// The records of a question after following aliases; `None` if it has to be queried first.
    fn ask(
        &mut self,
        name: &DnsName,
        kind: RecordType,
    ) -> Result<Option<&'e [DnsRecord]>, LocateError> {
        let mut question = Question {
            name: name.clone(),
            kind,
        };
        for _ in 0..MAX_ALIASES {
            match self.oracle.known_answer(&question) {
                Some(KnownAnswer::Records(records)) => return Ok(Some(records)),
                Some(KnownAnswer::Failed) => return Err(LocateError::NoAnswer),
                Some(KnownAnswer::Alias(name)) => question.name = name.clone(),
                None => {
                    if !self.missing.contains(&question) {
                        self.missing.push(question);
                    }
                    return Ok(None);
                }
            }
        }
        Err(LocateError::Aliases)
    }
}

/// SRV records in the order of trying: priorities ascending, within one drawn by weight (RFC 2782).
pub(super) fn ordered(mut records: Vec<Srv>, entropy: &mut Entropy) -> Vec<Srv> {
    // Records of weight 0 are first within a priority, so that they have their small chance.
    records.sort_by_key(|srv| (srv.priority, srv.weight != 0));
    let mut ordered = Vec::with_capacity(records.len());
    while let Some(priority) = records.first().map(|srv| srv.priority) {
        let group = records.iter().take_while(|srv| srv.priority == priority);
        let total: u64 = group.map(|srv| u64::from(srv.weight)).sum();
        let draw = entropy.below(total + 1);
        let mut sum = 0;
        let chosen = records.iter().position(|srv| {
            sum += u64::from(srv.weight);
            sum >= draw
        });
        ordered.push(records.remove(chosen.unwrap_or(0)));
    }
    ordered
}
