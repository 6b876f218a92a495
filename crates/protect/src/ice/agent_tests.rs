//! Two agents over a simulated network with loss, delay and NAT; and a hostile peer with handcrafted messages.

use super::*;
use crate::cipher::HmacSha1;
use crate::ice::LiteAgent;

/// A NAT in front of an agent with address and port dependent filtering.
#[derive(Clone, Debug)]
struct Nat {
    outside: SocketAddr,
    /// Each destination has its own external port (symmetric NAT).
    symmetric: bool,
    /// Destinations, and the external address of each.
    open: Vec<(SocketAddr, SocketAddr)>,
}

impl Nat {
    fn new(outside: &str, symmetric: bool) -> Option<Nat> {
        Some(Nat {
            outside: addr(outside),
            symmetric,
            open: Vec::new(),
        })
    }

    fn out(&mut self, to: SocketAddr) -> SocketAddr {
        if let Some(known) = self.open.iter().find(|known| known.0 == to) {
            return known.1;
        }
        let mut outside = self.outside;
        if self.symmetric {
            outside.set_port(outside.port() + 1 + self.open.len() as u16);
        }
        self.open.push((to, outside));
        outside
    }

    fn lets_in(&self, from: SocketAddr, to: SocketAddr) -> bool {
        self.open.contains(&(from, to))
    }
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

struct TestHost {
    agent: Agent,
    addresses: Vec<SocketAddr>,
    nat: Option<Nat>,
    events: Vec<IceEvent>,
}

impl TestHost {
    fn new(number: u64, role: IceRole, addresses: &[&str], nat: Option<Nat>) -> TestHost {
        let mut entropy = Entropy::from_number(number);
        let local = IceCredentials::generate(&mut entropy);
        let mut agent = Agent::new(local, role, entropy);
        let addresses: Vec<SocketAddr> = addresses.iter().map(|text| addr(text)).collect();
        for address in &addresses {
            agent.add_local(*address).unwrap();
        }
        TestHost {
            agent,
            addresses,
            nat,
            events: Vec::new(),
        }
    }

    fn selected(&self) -> Option<SocketAddr> {
        self.agent.selected().map(|path| path.remote)
    }
}

/// The agent as its written state says.
fn read_back(agent: &Agent) -> Agent {
    let written = serde_json::to_vec(agent).unwrap();
    let again: Agent = serde_json::from_slice(&written).unwrap();
    assert_eq!(serde_json::to_vec(&again).unwrap(), written);
    again
}

/// Two hosts and the network between them.
struct TestNetwork {
    hosts: [TestHost; 2],
    now: Time,
    entropy: Entropy,
    /// Loss, percent.
    loss: u64,
    /// Destinations whose datagrams are dropped.
    blackholed: Vec<SocketAddr>,
    in_flight: Vec<(Time, usize, u8, SocketAddr, Vec<u8>)>,
    sent: usize,
}

impl TestNetwork {
    fn new(a: TestHost, b: TestHost) -> TestNetwork {
        TestNetwork {
            hosts: [a, b],
            now: Time::from_secs(100),
            entropy: Entropy::from_number(99),
            loss: 0,
            blackholed: Vec::new(),
            in_flight: Vec::new(),
            sent: 0,
        }
    }

    /// Each side gets the other's credentials and candidates, as from a session description.
    fn signal(&mut self) {
        self.signal_to(0);
        self.signal_to(1);
    }

    fn signal_to(&mut self, to: usize) {
        let other = &self.hosts[1 - to].agent;
        let (credentials, candidates) = (
            other.local().clone(),
            other.candidates().collect::<Vec<_>>(),
        );
        let agent = &mut self.hosts[to].agent;
        agent.set_remote(credentials, false, self.now);
        for candidate in candidates {
            // Through the textual form.
            let read = IceCandidate::parse(candidate.to_string().as_bytes()).unwrap();
            agent.add_remote(read).unwrap();
        }
        agent.begin(self.now);
        self.transmit(to);
    }

    fn transmit(&mut self, number: usize) {
        let TestNetwork {
            hosts,
            now,
            entropy,
            loss,
            blackholed,
            in_flight,
            sent,
        } = self;
        let [a, b] = hosts;
        let (from, to) = if number == 0 { (a, b) } else { (b, a) };
        while let Some(event) = from.agent.next_event() {
            from.events.push(event);
        }
        while let Some((base, destination, bytes)) = from.agent.next_datagram() {
            *sent += 1;
            let inside = from.addresses[usize::from(base)];
            let source = match &mut from.nat {
                Some(nat) => nat.out(destination),
                None => inside,
            };
            if entropy.below(100) < *loss || blackholed.contains(&destination) {
                continue;
            }
            let arrives = *now + Duration::from_millis(5 + entropy.below(40));
            let base = match &to.nat {
                Some(nat) => nat.lets_in(source, destination).then_some(0),
                None => to.addresses.iter().position(|own| *own == destination),
            };
            if let Some(base) = base {
                in_flight.push((arrives, 1 - number, base as u8, source, bytes));
            }
        }
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        for step in 0..1_000_000 {
            let due = self
                .hosts
                .iter()
                .filter_map(|host| host.agent.next_deadline())
                .chain(self.in_flight.iter().map(|in_flight| in_flight.0))
                .min();
            let Some(due) = due.filter(|due| *due <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(due);
            if let Some(at) = self
                .in_flight
                .iter()
                .position(|in_flight| in_flight.0 <= self.now)
            {
                let (_, number, base, source, bytes) = self.in_flight.swap_remove(at);
                let _ = self.hosts[number]
                    .agent
                    .feed(base, &bytes, source, self.now);
            }
            for number in 0..2 {
                let agent = &mut self.hosts[number].agent;
                if agent.next_deadline().is_some_and(|due| due <= self.now) {
                    agent.timeout(self.now);
                    let due = agent.next_deadline();
                    assert!(
                        due.is_none_or(|due| due > self.now),
                        "deadline does not advance"
                    );
                }
                self.transmit(number);
                // Now and then an agent goes on with what its written state says.
                if step % 16 < 2 {
                    let agent = &mut self.hosts[number].agent;
                    *agent = read_back(agent);
                }
            }
        }
        panic!("no end");
    }

    fn agree(&self) -> bool {
        let [a, b] = &self.hosts;
        match (a.agent.selected(), b.agent.selected()) {
            (Some(one), Some(other)) => {
                let seen = |path: Path, host: &TestHost| match host.nat {
                    Some(_) => path.mapped,
                    None => host.addresses[usize::from(path.base)],
                };
                one.remote == seen(other, b) && other.remote == seen(one, a)
            }
            _ => false,
        }
    }
}

fn controlling(addresses: &[&str]) -> TestHost {
    TestHost::new(1, IceRole::Controlling, addresses, None)
}

fn controlled(addresses: &[&str]) -> TestHost {
    TestHost::new(2, IceRole::Controlled, addresses, None)
}

const SOON: Duration = Duration::from_secs(3);

#[test]
fn both_sides_select_the_best_pair() {
    let mut net = TestNetwork::new(
        controlling(&["192.0.2.1:10", "198.51.100.1:10", "[2001:db8::1]:10"]),
        controlled(&["192.0.2.2:20", "[2001:db8::2]:20"]),
    );
    net.signal();
    net.run(SOON);
    assert!(net.agree());
    assert_eq!(net.hosts[0].selected(), Some(addr("192.0.2.2:20")));
    for host in &net.hosts {
        let path = host.agent.selected().unwrap();
        assert_eq!(host.events, [IceEvent::Selected(path)]);
    }
    assert_eq!(net.hosts[0].agent.role(), IceRole::Controlling);
    // Only consent checks: about one in five seconds from each side, and its response.
    net.run(Duration::from_secs(5));
    net.sent = 0;
    net.run(Duration::from_secs(100));
    assert!(
        (2 * 2 * 15..=2 * 2 * 27).contains(&net.sent),
        "{}",
        net.sent
    );
    assert!(net.agree());
}

#[test]
fn unreachable_pair_is_not_selected() {
    let mut net = TestNetwork::new(
        controlling(&["192.0.2.1:10"]),
        controlled(&["192.0.2.2:20", "198.51.100.2:20"]),
    );
    net.blackholed.push(addr("192.0.2.2:20"));
    net.signal();
    net.run(SOON);
    assert!(net.agree());
    assert_eq!(net.hosts[0].selected(), Some(addr("198.51.100.2:20")));
}

#[test]
fn peer_behind_nat_is_found_as_peer_reflexive() {
    for symmetric in [false, true] {
        for number in 0..2 {
            let (mut a, mut b) = (controlling(&["10.0.0.1:10"]), controlled(&["192.0.2.2:20"]));
            let nat = Nat::new("203.0.113.9:7000", symmetric);
            match number {
                0 => a.nat = nat,
                _ => {
                    b.addresses = vec![addr("192.168.1.1:20")];
                    b = TestHost {
                        nat,
                        ..TestHost::new(2, IceRole::Controlled, &["192.168.1.1:20"], None)
                    };
                    a = controlling(&["192.0.2.1:10"]);
                }
            }
            let mut net = TestNetwork::new(a, b);
            net.signal();
            net.run(SOON);
            assert!(net.agree(), "{symmetric} {number}");
            let path = net.hosts[number].agent.selected().unwrap();
            assert_eq!(path.mapped.ip(), addr("203.0.113.9:7000").ip());
            assert_eq!(net.hosts[1 - number].selected(), Some(path.mapped));
        }
    }
}

#[test]
fn any_seed_connects_over_a_lossy_network() {
    for seed in 0..60 {
        let nat = (seed % 3 != 0).then(|| Nat::new("203.0.113.9:7000", seed % 3 == 1).unwrap());
        let mut net = TestNetwork::new(
            TestHost::new(seed, IceRole::Controlling, &["10.0.0.1:10"], nat),
            TestHost::new(
                seed + 1000,
                IceRole::Controlled,
                &["192.0.2.2:20", "192.0.2.3:20"],
                None,
            ),
        );
        net.entropy = Entropy::from_number(seed);
        net.loss = 30;
        net.signal();
        net.run(Duration::from_secs(20));
        assert!(net.agree(), "seed {seed}: {:?}", net.hosts[0].agent);
        // Moderate loss for ten minutes: consent holds, because it is checked six times within its lifetime.
        net.loss = 5;
        net.run(Duration::from_secs(600));
        assert!(net.agree(), "seed {seed}: {:?}", net.hosts[0].events);
    }
}

#[test]
fn role_conflict_is_resolved() {
    for role in [IceRole::Controlling, IceRole::Controlled] {
        for seed in 0..20 {
            let mut net = TestNetwork::new(
                TestHost::new(seed, role, &["192.0.2.1:10"], None),
                TestHost::new(seed + 500, role, &["192.0.2.2:20"], None),
            );
            net.signal();
            net.run(SOON);
            assert!(net.agree(), "{role:?} {seed}");
            let [a, b] = &net.hosts;
            assert_ne!(a.agent.role(), b.agent.role());
        }
    }
}

#[test]
fn checks_before_the_answer_are_processed_later() {
    let mut net = TestNetwork::new(controlling(&["192.0.2.1:10"]), controlled(&["10.0.0.2:20"]));
    net.hosts[1].nat = Nat::new("203.0.113.9:7000", true);
    // The offer has arrived, the answer has not.
    net.signal_to(1);
    net.run(Duration::from_secs(1));
    assert!(net.hosts[0].agent.admits(addr("203.0.113.9:7001")));
    assert_eq!(net.hosts[0].selected(), None);
    net.signal_to(0);
    net.run(SOON);
    assert!(net.agree());
    assert_eq!(net.hosts[0].selected(), Some(addr("203.0.113.9:7001")));
}

#[test]
fn trickled_candidate_is_checked() {
    let mut net = TestNetwork::new(
        controlling(&["192.0.2.1:10"]),
        controlled(&["192.0.2.2:20"]),
    );
    let candidates: Vec<IceCandidate> = net.hosts[1].agent.candidates().collect();
    let theirs = net.hosts[1].agent.local().clone();
    net.hosts[0].agent.set_remote(theirs, false, net.now);
    net.run(Duration::from_secs(10));
    assert_eq!(net.sent, 0);
    net.signal_to(1);
    net.blackholed.push(addr("192.0.2.1:10"));
    let now = net.now;
    for candidate in candidates {
        net.hosts[0].agent.add_remote(candidate).unwrap();
    }
    assert!(
        net.hosts[0]
            .agent
            .next_deadline()
            .is_some_and(|due| due <= now)
    );
    net.blackholed.clear();
    net.run(SOON);
    assert!(net.agree());
}

#[test]
fn restart_moves_the_call_to_another_pair() {
    let mut net = TestNetwork::new(
        controlling(&["192.0.2.1:10"]),
        controlled(&["192.0.2.2:20", "198.51.100.2:20"]),
    );
    net.signal();
    net.run(SOON);
    let before = net.hosts[0].agent.selected();
    assert!(net.agree());
    // The first path fails, and host 0 restarts: its offer leads to new credentials on both sides.
    net.blackholed.push(addr("192.0.2.2:20"));
    for (number, role) in [(0, IceRole::Controlling), (1, IceRole::Controlled)] {
        let local = IceCredentials::generate(&mut Entropy::from_number(70 + number as u64));
        net.hosts[number].agent.restart(local, role, net.now);
    }
    assert_eq!(net.hosts[0].agent.selected(), before, "media continues");
    net.signal_to(1);
    // Until the answer arrives, checks with the offerer's old credentials get responses and have no other effect.
    net.run(Duration::from_millis(500));
    assert_eq!(net.hosts[0].agent.selected(), before);
    net.signal_to(0);
    net.run(SOON);
    assert!(net.agree());
    assert_eq!(net.hosts[0].selected(), Some(addr("198.51.100.2:20")));
}

#[test]
fn expired_consent_is_restored_by_a_restart() {
    let mut net = TestNetwork::new(
        controlling(&["192.0.2.1:10"]),
        controlled(&["192.0.2.2:20"]),
    );
    net.signal();
    net.run(SOON);
    let path = net.hosts[0].agent.selected().unwrap();
    net.loss = 100;
    net.run(Duration::from_secs(25));
    assert!(net.agree(), "too early");
    net.run(Duration::from_secs(15));
    for host in &net.hosts {
        assert_eq!(host.agent.selected(), None);
        assert!(matches!(host.events.last(), Some(IceEvent::ConsentLost(_))));
    }
    assert_eq!(
        net.hosts[0].events.last(),
        Some(&IceEvent::ConsentLost(path))
    );
    let sent = net.sent;
    net.loss = 0;
    net.run(Duration::from_secs(60));
    assert_eq!((net.sent, net.hosts[0].selected()), (sent, None), "no more");
    assert_eq!(net.hosts[0].events.last(), Some(&IceEvent::Failed));
    for (number, role) in [(0, IceRole::Controlling), (1, IceRole::Controlled)] {
        let local = IceCredentials::generate(&mut Entropy::from_number(80 + number as u64));
        net.hosts[number].agent.restart(local, role, net.now);
    }
    net.signal();
    net.run(SOON);
    assert!(net.agree());
}

#[test]
fn failed_pair_is_replaced_by_a_working_one() {
    let mut net = TestNetwork::new(
        controlling(&["192.0.2.1:10", "198.51.100.1:10"]),
        controlled(&["192.0.2.2:20"]),
    );
    net.signal();
    net.run(SOON);
    assert_eq!(net.hosts[1].selected(), Some(addr("192.0.2.1:10")));
    // Datagrams to the first address of host 0 are lost, and so are the responses to its requests.
    net.blackholed.push(addr("192.0.2.1:10"));
    net.run(Duration::from_secs(45));
    assert!(net.agree(), "{:?}", net.hosts[0].events);
    assert_eq!(net.hosts[1].selected(), Some(addr("198.51.100.1:10")));
    for host in &net.hosts {
        assert!(matches!(host.events.get(1), Some(IceEvent::ConsentLost(_))));
        assert_eq!(host.events.len(), 3);
    }
}

#[test]
fn failure_is_reported_once_and_not_too_early() {
    let mut net = TestNetwork::new(
        controlling(&["192.0.2.1:10"]),
        controlled(&["192.0.2.2:20"]),
    );
    net.loss = 100;
    net.signal();
    net.run(Duration::from_secs(39));
    assert!(net.hosts[0].events.is_empty());
    net.run(Duration::from_secs(60));
    assert_eq!(net.hosts[0].events, [IceEvent::Failed]);
    assert_eq!(net.sent, 2 * usize::from(MAX_SENDS));
    assert_eq!(net.hosts[0].agent.next_deadline(), None);
}

#[test]
fn full_agent_controls_a_lite_peer() {
    let mut entropy = Entropy::from_number(3);
    let local = IceCredentials::generate(&mut entropy);
    let mut host = controlling(&["192.0.2.1:10"]);
    let mut lite = LiteAgent::new(local.clone(), Some(host.agent.local().clone()));
    let mut now = Time::from_secs(1);
    host.agent.set_remote(local, true, now);
    let candidate = crate::ice::host_candidate(1, 1, 65_535, addr("192.0.2.2:20"));
    let candidate = IceCandidate::parse(candidate.as_bytes()).unwrap();
    host.agent.add_remote(candidate).unwrap();
    for _ in 0..200 {
        let Some(due) = host.agent.next_deadline() else {
            break;
        };
        now = now.max(due);
        host.agent.timeout(now);
        while let Some((_, to, bytes)) = host.agent.next_datagram() {
            assert_eq!(to, addr("192.0.2.2:20"));
            lite.feed(&bytes, addr("192.0.2.1:10"), now).unwrap();
        }
        while let Some((_, answer)) = lite.next_answer() {
            let from = addr("192.0.2.2:20");
            host.agent.feed(0, &answer, from, now).unwrap();
        }
    }
    assert!(now > Time::from_secs(300), "consent is checked: {now}");
    assert_eq!(host.selected(), Some(addr("192.0.2.2:20")));
    assert_eq!(lite.selected(), Some(addr("192.0.2.1:10")));
    assert!(lite.consents(now));
}

/// A peer with handcrafted messages.
struct HostilePeer {
    host: TestHost,
    local: IceCredentials,
    now: Time,
}

impl HostilePeer {
    fn new(role: IceRole) -> HostilePeer {
        let local = IceCredentials::generate(&mut Entropy::from_number(5));
        let mut host = TestHost::new(4, role, &["192.0.2.1:10"], None);
        let now = Time::from_secs(1);
        host.agent.set_remote(local.clone(), false, now);
        HostilePeer { host, local, now }
    }

    fn request(&self, transaction: u8, role: u16, nominates: bool, key: &str) -> Vec<u8> {
        let ours = self.host.agent.local();
        let name = format!("{}:{}", ours.fragment(), self.local.fragment());
        let mut builder = Builder::new(message_type::BINDING_REQUEST, [transaction; 12])
            .attribute(attribute::USERNAME, name.as_bytes())
            .attribute(attribute::PRIORITY, &100u32.to_be_bytes())
            .attribute(role, &[0; 8]);
        if nominates {
            builder = builder.attribute(attribute::USE_CANDIDATE, &[]);
        }
        builder.finish(Some(&HmacSha1::new(key.as_bytes())))
    }

    fn feed(&mut self, bytes: &[u8], from: &str) -> Result<(), DropReason> {
        self.host.agent.feed(0, bytes, addr(from), self.now)
    }

    fn pass(&mut self, span: Duration) -> Vec<(SocketAddr, Vec<u8>)> {
        let end = self.now + span;
        let mut sent = Vec::new();
        loop {
            while let Some((_, to, bytes)) = self.host.agent.next_datagram() {
                sent.push((to, bytes));
            }
            let due = self.host.agent.next_deadline();
            let Some(due) = due.filter(|due| *due <= end) else {
                self.now = end;
                return sent;
            };
            self.now = self.now.max(due);
            self.host.agent.timeout(self.now);
        }
    }

    fn answer(&self, check: &[u8], kind: u16, mapped: Option<&str>, key: &str) -> Vec<u8> {
        let mut builder = Builder::new(kind, StunMessage::parse(check).unwrap().transaction());
        if let Some(mapped) = mapped {
            builder = builder.mapped_address(addr(mapped));
        }
        if kind == message_type::BINDING_ERROR {
            builder = builder.error(487, "Role Conflict");
        }
        builder.finish(Some(&HmacSha1::new(key.as_bytes())))
    }
}

const PEER: &str = "198.51.100.7:7";
const OTHER: &str = "198.51.100.8:8";

#[test]
fn hostile_requests_and_responses_are_rejected() {
    let mut peer = HostilePeer::new(IceRole::Controlled);
    let ours = peer.host.agent.local().password().to_owned();
    let theirs = peer.local.password().to_owned();
    let controlling = attribute::ICE_CONTROLLING;
    // A request with a wrong password gets an unauthenticated response and triggers no check.
    for number in 0..200 {
        let bytes = peer.request(number, controlling, true, "a password that is wrong");
        assert_eq!(
            peer.feed(&bytes, OTHER),
            Err(DropReason::StunUnauthenticated)
        );
    }
    assert!(!peer.host.agent.admits(addr(OTHER)));
    let sent = peer.pass(Duration::from_secs(1));
    assert_eq!(sent.len(), MAX_DATAGRAMS);
    let codes = sent
        .iter()
        .map(|(_, bytes)| StunMessage::parse(bytes).unwrap().error_code());
    assert!(codes.into_iter().all(|code| code == Some(401)));
    // A valid one triggers a check. Ten thousand within a second trigger no more checks than the pace allows.
    for _ in 0..10_000 {
        let bytes = peer.request(1, controlling, false, &ours);
        peer.feed(&bytes, PEER).unwrap();
    }
    let sent = peer.pass(Duration::from_secs(1));
    let checks: Vec<&Vec<u8>> = sent
        .iter()
        .map(|(_, bytes)| bytes)
        .filter(|bytes| StunMessage::parse(bytes).unwrap().message_type() == 1)
        .collect();
    assert!((1..=2).contains(&checks.len()), "{}", checks.len());
    let check = checks[0].clone();
    // Responses that are unsolicited, unauthenticated, or from another source.
    let success = message_type::BINDING_SUCCESS;
    let foreign = Builder::new(success, [3; 12]).finish(None);
    assert_eq!(peer.feed(&foreign, PEER), Err(DropReason::StunUnexpected));
    let forged = peer.answer(&check, success, Some("192.0.2.1:10"), "wrong");
    assert_eq!(
        peer.feed(&forged, PEER),
        Err(DropReason::StunUnauthenticated)
    );
    assert!(
        peer.host
            .agent
            .pairs
            .iter()
            .all(|pair| pair.mapped.is_none())
    );
    let elsewhere = peer.answer(&check, success, Some("192.0.2.1:10"), &theirs);
    peer.feed(&elsewhere, OTHER).unwrap();
    assert_eq!(peer.host.agent.pairs[0].state, PairState::Failed);
    // A failed pair is checked again at the peer's next check; it is nominated, and selected when our check succeeds.
    let bytes = peer.request(4, controlling, true, &ours);
    peer.feed(&bytes, PEER).unwrap();
    assert_eq!(peer.host.selected(), None);
    let sent = peer.pass(Duration::from_millis(60));
    let check = sent.last().unwrap().1.clone();
    let good = peer.answer(&check, success, Some("192.0.2.1:10"), &theirs);
    peer.feed(&good, PEER).unwrap();
    assert_eq!(peer.host.selected(), Some(addr(PEER)));
    assert_eq!(peer.feed(&good, PEER), Err(DropReason::StunUnexpected));
    assert_eq!(peer.feed(&good[..30], PEER), Err(DropReason::StunMalformed));
    assert_eq!(
        peer.host.agent.feed(7, &bytes, addr(PEER), peer.now),
        Err(DropReason::StunUnexpected),
        "no such address"
    );
}

#[test]
fn excess_candidates_are_rejected() {
    let mut peer = HostilePeer::new(IceRole::Controlling);
    let mut refused = 0;
    for number in 0..10_000u32 {
        let [_, _, a, b] = number.to_be_bytes();
        let text = format!("{number} 1 udp {} 10.1.{a}.{b} 9 typ host", number + 1);
        let candidate = IceCandidate::parse(text.as_bytes()).unwrap();
        refused += usize::from(peer.host.agent.add_remote(candidate).is_err());
    }
    assert_eq!(refused, 10_000 - MAX_REMOTE);
    // Checks are paced, and each pair is checked seven times at most.
    let sent = peer.pass(Duration::from_secs(1)).len();
    assert!(sent <= 2 * 21, "{sent}");
    let sent = sent + peer.pass(Duration::from_secs(600)).len();
    assert_eq!(sent, MAX_REMOTE * usize::from(MAX_SENDS));
    assert_eq!(peer.host.agent.next_event(), Some(IceEvent::Failed));
    // Peer-reflexive candidates have the same limit.
    let ours = peer.host.agent.local().password().to_owned();
    for port in 1..100 {
        let bytes = peer.request(1, attribute::ICE_CONTROLLED, false, &ours);
        peer.feed(&bytes, &format!("10.9.9.9:{port}")).unwrap();
    }
    assert_eq!(peer.host.agent.remotes.len(), MAX_REMOTE);
    assert!(peer.host.agent.next_event().is_none());
}

#[test]
fn pairs_are_bounded_and_the_best_are_kept() {
    let mut entropy = Entropy::from_number(6);
    let local = IceCredentials::generate(&mut entropy);
    let mut agent = Agent::new(local, IceRole::Controlling, entropy);
    for port in 1..20 {
        let added = agent.add_local(SocketAddr::from(([192, 0, 2, 1], port)));
        assert_eq!(added.is_some(), usize::from(port) <= MAX_LOCAL);
    }
    for number in 1..=MAX_REMOTE as u32 {
        let text = format!(
            "{number} 1 udp {} 10.0.0.{number} 9 typ host",
            number * 1000
        );
        let candidate = IceCandidate::parse(text.as_bytes()).unwrap();
        agent.add_remote(candidate.clone()).unwrap();
        agent.add_remote(candidate).unwrap();
    }
    assert_eq!(agent.pairs.len(), MAX_PAIRS);
    let best = (0, MAX_REMOTE as u8 - 1);
    assert!(agent.pairs.iter().any(|pair| pair.id == best));
    assert!(
        agent
            .pairs
            .iter()
            .all(|pair| pair.id.1 >= MAX_REMOTE as u8 - 13)
    );
    let other = IceCandidate::parse(b"9 2 udp 9 10.0.0.99 9 typ host").unwrap();
    assert_eq!(
        agent.add_remote(other),
        Ok(()),
        "RTCP candidates are ignored"
    );
    assert_eq!(agent.find_remote(addr("10.0.0.99:9")), None);
}

#[test]
fn role_conflict_reported_by_the_peer_changes_our_role() {
    let mut peer = HostilePeer::new(IceRole::Controlling);
    let candidate = format!("1 1 udp 100 {} 7 typ host", addr(PEER).ip());
    let candidate = IceCandidate::parse(candidate.as_bytes()).unwrap();
    peer.host.agent.add_remote(candidate).unwrap();
    let check = peer.pass(Duration::ZERO).remove(0).1;
    let theirs = peer.local.password().to_owned();
    let before = peer.host.agent.tie_breaker;
    let conflict = peer.answer(&check, message_type::BINDING_ERROR, None, &theirs);
    peer.feed(&conflict, PEER).unwrap();
    assert_eq!(peer.host.agent.role(), IceRole::Controlled);
    assert_ne!(peer.host.agent.tie_breaker, before);
    let again = peer.pass(Duration::from_millis(60)).remove(0).1;
    let again = StunMessage::parse(&again).unwrap();
    assert!(again.attribute(attribute::ICE_CONTROLLED).is_some());
    assert!(again.attribute(attribute::ICE_CONTROLLING).is_none());
}

#[test]
fn best_of_several_nominated_pairs_is_selected() {
    let mut peer = HostilePeer::new(IceRole::Controlled);
    let ours = peer.host.agent.local().password().to_owned();
    let theirs = peer.local.password().to_owned();
    for (priority, from, expected) in [
        (50, OTHER, OTHER),
        (900, PEER, PEER),
        (10, "198.51.100.9:9", PEER),
    ] {
        let candidate = format!(
            "{priority} 1 udp {priority} {} {} typ host",
            addr(from).ip(),
            addr(from).port()
        );
        let candidate = IceCandidate::parse(candidate.as_bytes()).unwrap();
        peer.host.agent.add_remote(candidate).unwrap();
        let bytes = peer.request(1, attribute::ICE_CONTROLLING, true, &ours);
        peer.feed(&bytes, from).unwrap();
        for (to, check) in peer.pass(Duration::from_millis(120)) {
            if to == addr(from) && StunMessage::parse(&check).unwrap().message_type() == 1 {
                let good = peer.answer(
                    &check,
                    message_type::BINDING_SUCCESS,
                    Some("192.0.2.1:10"),
                    &theirs,
                );
                let _ = peer.feed(&good, from);
            }
        }
        assert_eq!(peer.host.selected(), Some(addr(expected)));
    }
    // A peer that renominates repeats the nomination of the other pair, and not of the selected one.
    let bytes = peer.request(1, attribute::ICE_CONTROLLING, true, &ours);
    peer.feed(&bytes, PEER).unwrap();
    peer.pass(Duration::from_millis(900));
    peer.feed(&bytes, OTHER).unwrap();
    assert_eq!(peer.host.selected(), Some(addr(PEER)));
    peer.pass(Duration::from_millis(200));
    peer.feed(&bytes, OTHER).unwrap();
    assert_eq!(peer.host.selected(), Some(addr(OTHER)));
}
