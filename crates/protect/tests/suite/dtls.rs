//! DTLS-SRTP between two of our endpoints, over a network with loss, duplication and reordering, in virtual time.

use crate::common;

use common::{protect_packet, rtp, unprotect_packet};
use engine::{DropReason, Entropy, Time};
use proptest::prelude::*;
use protect::dtls::{
    Certificate, CertificateFingerprint, DtlsEndpoint, DtlsEvent, DtlsFailure, DtlsSession, Epoch,
    Established, HashFunction, Role, Settings, Version,
};
use protect::srtp::{ContextLimits, Suite};
use std::time::{Duration, Instant};

fn endpoint(settings: Settings) -> DtlsEndpoint {
    let certificate = Certificate::generate().unwrap();
    DtlsEndpoint::new(settings, certificate, Epoch::new(Instant::now())).unwrap()
}

fn fingerprints(endpoint: &DtlsEndpoint) -> Vec<CertificateFingerprint> {
    vec![endpoint.certificate().fingerprint(HashFunction::Sha256)]
}

/// The outcome of one side.
#[derive(Default)]
struct Outcome {
    established: Option<Established>,
    failed: Option<DtlsFailure>,
    closed: bool,
    sent: usize,
}

fn drain(session: &mut DtlsSession, outcome: &mut Outcome) -> Vec<Vec<u8>> {
    let mut datagrams = Vec::new();
    while let Some(event) = session.next_event() {
        match event {
            DtlsEvent::Send(datagram) => datagrams.push(datagram.to_vec()),
            DtlsEvent::Established(established) => {
                assert!(outcome.established.is_none(), "reported once");
                outcome.established = Some(established);
            }
            DtlsEvent::Failed(failure) => {
                assert!(outcome.failed.is_none(), "reported once");
                outcome.failed = Some(failure);
            }
            DtlsEvent::Closed => outcome.closed = true,
        }
    }
    outcome.sent += datagrams.len();
    datagrams
}

/// Runs both ends until neither has work before `until`; `fate` returns how often each datagram arrives.
fn run(
    ends: &mut [DtlsSession; 2],
    mut fate: impl FnMut(usize, usize) -> usize,
    until: Time,
) -> [Outcome; 2] {
    let mut outcomes = [Outcome::default(), Outcome::default()];
    let mut now = Time::ZERO;
    let mut flying: Vec<(Time, usize, Vec<u8>)> = Vec::new();
    let mut count = 0;
    loop {
        for side in 0..2 {
            for datagram in drain(&mut ends[side], &mut outcomes[side]) {
                for copy in 0..fate(side, count) {
                    let at = now + Duration::from_millis(20 + 7 * copy as u64);
                    flying.push((at, 1 - side, datagram.clone()));
                }
                count += 1;
            }
        }
        assert!(count < 1_000, "an endless exchange");
        let arrival = flying.iter().map(|(at, ..)| *at).min();
        let timers = ends
            .iter()
            .filter_map(|end| end.next_deadline())
            .map(|deadline| deadline.at);
        let Some(next) = timers.chain(arrival).min().filter(|next| *next <= until) else {
            return outcomes;
        };
        now = now.max(next);
        let mut arrived = Vec::new();
        flying.retain(|(at, to, datagram)| {
            if *at <= now {
                arrived.push((*to, datagram.clone()));
            }
            *at > now
        });
        for (to, datagram) in arrived {
            let _ = ends[to].feed(&datagram, now);
        }
        for end in ends.iter_mut() {
            end.timeout(now);
        }
    }
}

fn pair(client: &DtlsEndpoint, server: &DtlsEndpoint) -> [DtlsSession; 2] {
    [
        DtlsSession::new(client, Role::Client, Some(fingerprints(server)), Time::ZERO),
        DtlsSession::new(server, Role::Server, Some(fingerprints(client)), Time::ZERO),
    ]
}

/// Both sides have keys, and each unprotects packets of the other.
fn assert_media_flows(outcomes: [Outcome; 2]) {
    let [client, server] = outcomes.map(|outcome| {
        assert_eq!(outcome.failed, None);
        outcome.established.expect("established")
    });
    assert_eq!(client.suite, server.suite);
    assert_ne!(client.local.key_and_salt(), client.remote.key_and_salt());
    let mut a = client.contexts(ContextLimits::default()).unwrap();
    let mut b = server.contexts(ContextLimits::default()).unwrap();
    let plain = rtp(1, 1, b"over there");
    assert_eq!(
        unprotect_packet(
            &mut b.inbound,
            &protect_packet(&mut a.outbound, &plain).unwrap()
        )
        .unwrap(),
        plain
    );
    assert_eq!(
        unprotect_packet(
            &mut a.inbound,
            &protect_packet(&mut b.outbound, &plain).unwrap()
        )
        .unwrap(),
        plain
    );
}

const LONG: Time = Time::from_secs(60);

#[test]
fn every_pair_of_dtls_versions_interoperates() {
    let of = |version| {
        endpoint(Settings {
            version,
            ..Settings::default()
        })
    };
    for (a, b) in [
        (Version::Auto, Version::Auto),
        (Version::Auto, Version::Dtls12),
        (Version::Dtls12, Version::Auto),
        (Version::Auto, Version::Dtls13),
        (Version::Dtls13, Version::Auto),
        (Version::Dtls12, Version::Dtls12),
    ] {
        let mut ends = pair(&of(a), &of(b));
        assert_media_flows(run(&mut ends, |_, _| 1, LONG));
    }
}

#[test]
fn dtls_survives_lost_and_repeated_datagrams() {
    let (client, server) = (endpoint(Settings::default()), endpoint(Settings::default()));
    let twelve = endpoint(Settings {
        version: Version::Dtls12,
        ..Settings::default()
    });
    for server in [&server, &twelve] {
        // Each of the first datagrams is lost once.
        for lost in 0..12 {
            let mut ends = pair(&client, server);
            assert_media_flows(run(&mut ends, |_, nth| usize::from(nth != lost), LONG));
        }
        let mut ends = pair(&client, server);
        assert_media_flows(run(&mut ends, |_, _| 2, LONG));
        let mut entropy = Entropy::from_number(7);
        for _ in 0..5 {
            let mut ends = pair(&client, server);
            let fate = |_: usize, _: usize| usize::from(entropy.below(100) >= 20);
            assert_media_flows(run(&mut ends, fate, LONG));
        }
    }
}

#[test]
fn wrong_fingerprint_on_either_side_fails() {
    let (client, server, other) = (
        endpoint(Settings::default()),
        endpoint(Settings::default()),
        endpoint(Settings::default()),
    );
    for version in [Version::Auto, Version::Dtls12] {
        let client = DtlsEndpoint::new(
            Settings {
                version,
                ..Settings::default()
            },
            client.certificate().clone(),
            Epoch::new(Instant::now()),
        )
        .unwrap();
        let mut ends = pair(&client, &server);
        ends[0] = DtlsSession::new(
            &client,
            Role::Client,
            Some(fingerprints(&other)),
            Time::ZERO,
        );
        let [a, b] = run(&mut ends, |_, _| 1, LONG);
        assert_eq!(a.failed, Some(DtlsFailure::Fingerprint));
        assert!(a.established.is_none() && b.established.is_none());

        let mut ends = pair(&client, &server);
        ends[1] = DtlsSession::new(
            &server,
            Role::Server,
            Some(fingerprints(&other)),
            Time::ZERO,
        );
        let [_, b] = run(&mut ends, |_, _| 1, LONG);
        assert_eq!(b.failed, Some(DtlsFailure::Fingerprint));
        assert!(
            b.established.is_none(),
            "no keys for an unauthenticated peer"
        );
        assert_eq!(ends[1].next_deadline(), None);
        assert_eq!(
            ends[1].feed(&[22; 40], LONG),
            Err(DropReason::DtlsUnexpected)
        );
    }
    let mut session = DtlsSession::new(&client, Role::Client, Some(Vec::new()), Time::ZERO);
    let mut outcome = Outcome::default();
    assert!(drain(&mut session, &mut outcome).is_empty());
    assert_eq!(outcome.failed, Some(DtlsFailure::NoFingerprint));
}

/// The handshake may complete before the answer signals the fingerprint: the keys are withheld.
#[test]
fn late_fingerprint_withholds_the_keys() {
    let (client, server) = (endpoint(Settings::default()), endpoint(Settings::default()));
    for right in [true, false] {
        let mut ends = [
            DtlsSession::new(&client, Role::Client, None, Time::ZERO),
            DtlsSession::new(
                &server,
                Role::Server,
                Some(fingerprints(&client)),
                Time::ZERO,
            ),
        ];
        let [a, b] = run(&mut ends, |_, _| 1, Time::from_secs(5));
        assert!(a.established.is_none() && b.established.is_some());
        let signalled = if right { &server } else { &client };
        ends[0].set_fingerprints(fingerprints(signalled));
        let mut late = Outcome::default();
        drain(&mut ends[0], &mut late);
        if right {
            assert_media_flows([late, b]);
        } else {
            assert_eq!(late.failed, Some(DtlsFailure::Fingerprint));
            assert!(late.established.is_none());
        }
    }
}

#[test]
fn disallowed_srtp_profile_fails() {
    let only = |suite| {
        endpoint(Settings {
            profiles: vec![suite],
            ..Settings::default()
        })
    };
    let mut ends = pair(
        &only(Suite::AesCm128HmacSha1_80),
        &endpoint(Settings::default()),
    );
    let [a, _] = run(&mut ends, |_, _| 1, LONG);
    assert_eq!(
        a.failed,
        Some(DtlsFailure::ProfileNotAllowed(Suite::AeadAes256Gcm))
    );
    let certificate = Certificate::generate().unwrap();
    for profiles in [vec![Suite::AesCm128HmacSha1_32], vec![]] {
        let settings = Settings {
            profiles,
            ..Settings::default()
        };
        let result = DtlsEndpoint::new(settings, certificate.clone(), Epoch::new(Instant::now()));
        assert!(result.is_err());
    }
}

/// No peer: retransmissions at growing intervals, and a timeout.
#[test]
fn dtls_handshake_without_a_peer_times_out() {
    let client = endpoint(Settings {
        timeout: Duration::from_secs(5),
        ..Settings::default()
    });
    let server = endpoint(Settings::default());
    let mut ends = pair(&client, &server);
    let [a, b] = run(&mut ends, |_, _| 0, LONG);
    assert_eq!(a.failed, Some(DtlsFailure::Timeout));
    assert!((3..=8).contains(&a.sent), "{} datagrams", a.sent);
    assert_eq!(b.sent, 0, "a server waits");
    assert_eq!(ends[0].next_deadline(), None);
}

#[test]
fn dtls_close_is_reported() {
    let (client, server) = (endpoint(Settings::default()), endpoint(Settings::default()));
    let mut ends = pair(&client, &server);
    assert_media_flows(run(&mut ends, |_, _| 1, Time::from_secs(5)));
    ends[0].close();
    let [_, b] = run(&mut ends, |_, _| 1, Time::from_secs(10));
    assert!(b.closed);
}

/// A session can be written out once its handshake is over. One that was read back has its keys elsewhere and takes no
/// part any more.
#[test]
fn session_is_read_back_after_its_handshake_only() {
    let (client, server) = (endpoint(Settings::default()), endpoint(Settings::default()));
    let mut ends = pair(&client, &server);
    let refused = serde_json::to_string(&ends[0]).unwrap_err().to_string();
    assert!(refused.contains("handshake is in progress"), "{refused}");
    assert_media_flows(run(&mut ends, |_, _| 1, Time::from_secs(5)));
    let written = serde_json::to_string(&ends[0]).unwrap();
    let mut again: DtlsSession = serde_json::from_str(&written).unwrap();
    assert_eq!(serde_json::to_string(&again).unwrap(), written);
    assert!(again.next_deadline().is_none());
    ends[1].close();
    let alerts = drain(&mut ends[1], &mut Outcome::default());
    assert!(!alerts.is_empty());
    for alert in alerts {
        let fed = again.feed(&alert, Time::from_secs(6));
        assert_eq!(fed, Err(DropReason::DtlsUnexpected));
    }
    again.close();
    assert!(again.next_event().is_none());
}

/// An unauthenticated alert does not end a handshake that proceeds; one that does not proceed fails with it.
#[test]
fn unauthenticated_alert_does_not_end_the_handshake() {
    let (client, server) = (endpoint(Settings::default()), endpoint(Settings::default()));
    let alert = |level, number| [21, 254, 253, 0, 0, 0, 0, 0, 0, 0, 9, 0, 2, level, number];
    for (level, number) in [(2, 40), (1, 0), (2, 0), (1, 90)] {
        let mut ends = pair(&client, &server);
        for end in &mut ends {
            let fed = end.feed(&alert(level, number), Time::ZERO);
            assert_eq!(fed, Err(DropReason::DtlsUnexpected));
        }
        assert_media_flows(run(&mut ends, |_, _| 1, LONG));
    }
    let mut ends = pair(&client, &server);
    let _ = ends[0].feed(&alert(2, 40), Time::from_millis(100));
    let [a, _] = run(&mut ends, |_, _| 0, LONG);
    assert_eq!(a.failed, Some(DtlsFailure::Refused(40)));
    assert!(a.sent <= 5, "it ended early");
    // A server that waits for its client, as while a telephone rings.
    let mut ends = pair(&client, &server);
    let fed = ends[1].feed(&alert(2, 40), Time::ZERO);
    assert_eq!(fed, Err(DropReason::DtlsUnexpected));
    // Its client is heard after more than two seconds.
    let late = |_, count| usize::from(count >= 5);
    assert_media_flows(run(&mut ends, late, LONG));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    /// Datagrams of other senders before the first of the peer's: the handshake still completes.
    #[test]
    fn datagrams_of_other_senders_do_not_end_the_handshake(datagrams in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 0..20), kind in 20u8..24) {
        let (client, server) = (endpoint(Settings::default()), endpoint(Settings::default()));
        let mut ends = pair(&client, &server);
        for (nth, datagram) in datagrams.iter().enumerate() {
            let mut like = vec![kind, 0xfe, 0xfd, 0, 0, 0, 0, 0, 0, 0, nth as u8];
            like.extend_from_slice(&(datagram.len() as u16).to_be_bytes());
            like.extend_from_slice(datagram);
            for end in &mut ends {
                let _ = end.feed(datagram, Time::ZERO);
                let _ = end.feed(&like, Time::ZERO);
            }
        }
        let outcomes = run(&mut ends, |_, _| 1, LONG);
        let ends: Vec<_> = outcomes.iter().map(|one| (one.established.is_some(), one.failed.clone())).collect();
        prop_assert!(ends.iter().all(|end| end.0), "{:?}", ends);
    }
}
