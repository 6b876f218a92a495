//! One lookup against what is known: targets, or the questions that are missing.

use super::dns::{Kind, Name, Naptr, Question, Record, Srv};
use super::{LocateError, Target, Wanted, WantedHost, default_port};
use engine::{Entropy, Transport};
use std::net::{IpAddr, SocketAddr};

/// Targets of one lookup at most.
const MAX_TARGETS: usize = 64;
/// Records of one kind that are looked at.
const MAX_CHOICES: usize = 32;
/// Aliases that are followed over several answers.
const MAX_ALIASES: usize = 8;

/// What is known of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// These records; none where the name has none of the kind.
    Records(Vec<Record>),
    /// The name is an alias of this one.
    Alias(Name),
    /// The name servers did not answer usably.
    Failed,
}

/// What an evaluation asks about.
pub(super) trait Oracle {
    /// What is known of `question`; `None`: it must be asked.
    fn known(&self, question: &Question) -> Option<&Known>;
    /// Addresses that the operator has given to a name: they win over DNS.
    fn fixed(&self, name: &str) -> Option<&[IpAddr]>;
    /// Transports that we have, the preferred first.
    fn transports(&self) -> &[Transport];
    /// Address kinds to ask for, the preferred first.
    fn address_kinds(&self) -> &[Kind];
}

/// How an evaluation ends.
#[derive(Debug)]
pub(super) enum Evaluated {
    Targets(Vec<Target>),
    Failed(LocateError),
    /// These questions must be answered first.
    Missing(Vec<Question>),
}

/// Evaluates `wanted`.
pub(super) fn evaluate(wanted: &Wanted, oracle: &dyn Oracle, entropy: &mut Entropy) -> Evaluated {
    let mut evaluation = Evaluation {
        wanted,
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
    wanted: &'e Wanted,
    oracle: &'e dyn Oracle,
    entropy: &'e mut Entropy,
    missing: Vec<Question>,
    targets: Vec<Target>,
    failure: Option<LocateError>,
}

impl<'e> Evaluation<'e> {
    /// Keeps the failure that says most: a failed name server over an absent name.
    fn note(&mut self, error: LocateError) {
        if self.failure.is_none_or(|old| old == LocateError::NotFound) {
            self.failure = Some(error);
        }
    }

    fn run(&mut self) -> Result<(), LocateError> {
        let name = match &self.wanted.host {
            WantedHost::Address(address) => {
                let transport = self.plain_transport()?;
                let port = self.wanted.port.unwrap_or(default_port(transport));
                self.add(*address, port, transport);
                return Ok(());
            }
            WantedHost::Name(name) => Name::parse(name.as_bytes()).ok_or(LocateError::BadName)?,
        };
        let fixed = self.oracle.fixed(name.as_str()).is_some();
        if self.wanted.port.is_some() || fixed {
            let transport = self.plain_transport()?;
            let port = self.wanted.port.unwrap_or(default_port(transport));
            self.addresses(&name, port, transport);
            return Ok(());
        }
        if self.wanted.transport.is_some() {
            let transport = self.plain_transport()?;
            let found = self.service(&name, transport)?;
            if !found {
                self.addresses(&name, default_port(transport), transport);
            }
            return Ok(());
        }
        self.by_naptr(&name)
    }

    /// The transport where nothing more is asked: the one given, else UDP, for sips TLS (RFC 3263 section 4.1).
    fn plain_transport(&self) -> Result<Transport, LocateError> {
        let transport = match (self.wanted.transport, self.wanted.secure) {
            (None, false) => {
                let ours = self.oracle.transports();
                let usual = [Transport::Udp, Transport::Tcp];
                let usual = usual.into_iter().find(|transport| ours.contains(transport));
                usual
                    .or(ours.first().copied())
                    .ok_or(LocateError::Unsupported)?
            }
            (None, true) => Transport::Tls,
            (Some(transport), false) => transport,
            // sips over "tcp" means TLS over TCP (RFC 3261 section 26.2.2).
            (Some(Transport::Tcp | Transport::Tls), true) => Transport::Tls,
            (Some(Transport::Ws | Transport::Wss), true) => Transport::Wss,
            (Some(Transport::Udp), true) => return Err(LocateError::Unsupported),
        };
        match self.oracle.transports().contains(&transport) {
            true => Ok(transport),
            false => Err(LocateError::Unsupported),
        }
    }

    fn by_naptr(&mut self, name: &Name) -> Result<(), LocateError> {
        let records = match self.ask(name, Kind::Naptr) {
            // There are name servers that do not answer questions of this kind, and SRV is asked next in any case.
            Err(LocateError::NoAnswer) => &[][..],
            asked => match asked? {
                Some(records) => records,
                None => return Ok(()),
            },
        };
        let services = self.usable(records);
        if !services.is_empty() {
            for (replacement, transport) in services {
                self.srv(&replacement, transport)?;
            }
            return Ok(());
        }
        let mut found = false;
        for transport in self.candidates() {
            found |= self.service(name, transport)?;
        }
        if !found && self.missing.is_empty() {
            let transport = self.plain_transport()?;
            self.addresses(name, default_port(transport), transport);
        }
        Ok(())
    }

    /// Our transports that fit the scheme, in our order.
    fn candidates(&self) -> Vec<Transport> {
        let secure = self.wanted.secure;
        let fits = |transport: &Transport| match transport {
            Transport::Udp | Transport::Tcp => !secure,
            Transport::Tls => secure,
            Transport::Ws | Transport::Wss => false,
        };
        self.oracle
            .transports()
            .iter()
            .copied()
            .filter(fits)
            .collect()
    }

    /// Replacements and transports of the NAPTR records that we can use: those of the lowest such order, by preference
    /// (RFC 3403 section 4.1).
    fn usable(&self, records: &[Record]) -> Vec<(Name, Transport)> {
        let mut usable: Vec<(&Naptr, Transport)> = records
            .iter()
            .take(MAX_CHOICES)
            .filter_map(|record| match record {
                Record::Naptr(naptr) => Some((naptr, self.naptr_transport(naptr)?)),
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
            () if self.wanted.secure => return None,
            () if is("SIP+D2U") => Transport::Udp,
            () if is("SIP+D2T") => Transport::Tcp,
            () if is("SIP+D2W") => Transport::Ws,
            () => return None,
        };
        self.oracle
            .transports()
            .contains(&transport)
            .then_some(transport)
    }

    /// The SRV records of a transport's service at `name`; false where there are none.
    fn service(&mut self, name: &Name, transport: Transport) -> Result<bool, LocateError> {
        let prefix = match transport {
            Transport::Udp => "_sip._udp",
            Transport::Tcp => "_sip._tcp",
            Transport::Tls => "_sips._tcp",
            // No SRV service is registered for WebSocket.
            Transport::Ws | Transport::Wss => return Ok(false),
        };
        let Some(service) = name.below(prefix) else {
            return Ok(false);
        };
        self.srv(&service, transport)
    }

    /// Adds the targets of SRV records; false where there are none. True while they are still asked for.
    fn srv(&mut self, service: &Name, transport: Transport) -> Result<bool, LocateError> {
        let Some(records) = self.ask(service, Kind::Srv)? else {
            return Ok(true);
        };
        let records: Vec<Srv> = records
            .iter()
            .take(MAX_CHOICES)
            .filter_map(|record| match record {
                Record::Srv(srv) => Some(srv.clone()),
                _ => None,
            })
            .collect();
        if records.is_empty() {
            return Ok(false);
        }
        for srv in ordered(records, self.entropy) {
            if srv.target.is_root() {
                self.note(LocateError::Refused);
            } else {
                self.addresses(&srv.target, srv.port, transport);
            }
        }
        Ok(true)
    }

    /// Adds the addresses of `name`.
    fn addresses(&mut self, name: &Name, port: u16, transport: Transport) {
        if let Some(fixed) = self.oracle.fixed(name.as_str()) {
            for address in fixed {
                self.add(*address, port, transport);
            }
            return;
        }
        for kind in self.oracle.address_kinds().to_vec() {
            match self.ask(name, kind) {
                Ok(Some(records)) => {
                    let addresses: Vec<IpAddr> = records
                        .iter()
                        .take(MAX_CHOICES)
                        .filter_map(|record| match record {
                            Record::A(address) => Some(IpAddr::from(*address)),
                            Record::Aaaa(address) => Some(IpAddr::from(*address)),
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
        let target = Target {
            address: SocketAddr::new(address, port),
            transport,
        };
        if port != 0 && self.targets.len() < MAX_TARGETS && !self.targets.contains(&target) {
            self.targets.push(target);
        }
    }

    /// The records of a question, aliases followed; `None` where it must be asked first.
    fn ask(&mut self, name: &Name, kind: Kind) -> Result<Option<&'e [Record]>, LocateError> {
        let mut question = Question {
            name: name.clone(),
            kind,
        };
        for _ in 0..MAX_ALIASES {
            match self.oracle.known(&question) {
                Some(Known::Records(records)) => return Ok(Some(records)),
                Some(Known::Failed) => return Err(LocateError::NoAnswer),
                Some(Known::Alias(name)) => question.name = name.clone(),
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
    // Those of weight 0 first within a priority, so that they have their small chance.
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
