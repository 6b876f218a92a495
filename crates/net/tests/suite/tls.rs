//! TLS and WebSocket over real sockets: our own client and server, then other programs.

use crate::common;

use common::{Authority, Rig, ScriptedEngine, run_all, security};
use engine::{CloseReason, ConnectionId, DropReason, EventKind, SocketKind};
use net::tls::{ClientAuth, ClientSettings, Identity, MinimumVersion, Security, ServerSettings};
use std::time::{Duration, Instant};

const NAME: &str = "sip.example.com";

#[test]
fn tls_messages_are_exchanged_and_the_second_session_is_resumed() {
    let authority = Authority::new("there-and-back");
    let server = authority.identity(&["URI:sip:example.com"], |_| {});
    let (mut rig, address) = Rig::server(&security(&authority, server, ClientAuth::None));
    let mut client = Rig::client(&authority.client(None));
    for round in 0..2u64 {
        let id = ConnectionId(round + 1);
        client.host.connect(id, address, "example.com", "");
        // Sent before the handshake is complete: it is queued.
        client.host.send(id, b"hello");
        run_all(&mut [&mut rig, &mut client], |rigs| {
            rigs[1].host.text(id) == "hello"
        });
        assert_eq!(client.host.names(id), Some(vec!["example.com".to_owned()]));
        assert!(client.host.is_connected(id));
        client.host.close(id);
        run_all(&mut [&mut rig, &mut client], |rigs| {
            rigs.iter_mut().all(|rig| rig.driver.connections() == 0)
        });
    }
    let accepted = rig.host.accepted();
    assert_eq!(accepted.len(), 2);
    // The client presented no certificate.
    assert_eq!(rig.host.names(accepted[0]), Some(vec![]));
    for rig in [&rig, &client] {
        let counters = rig.driver.counters();
        assert_eq!(counters.tls_established, 2);
        assert_eq!(counters.tls_resumed, 1, "by the ticket of the first one");
        assert_eq!(counters.drops.total(), 0, "{:?}", counters.drops);
    }
}

#[test]
fn messages_of_a_turn_share_one_tls_record() {
    let authority = Authority::new("one-record");
    let server = authority.identity(&["example.com"], |_| {});
    let (mut rig, address) = Rig::server(&security(&authority, server, ClientAuth::None));
    let mut client = Rig::client(&authority.client(None));
    let id = ConnectionId(1);
    client.host.connect(id, address, "example.com", "");
    run_all(&mut [&mut rig, &mut client], |rigs| {
        rigs[1].host.is_connected(id)
    });
    let before = client.driver.counters().stream_bytes_out;
    for _ in 0..100 {
        client.host.send(id, b"0123456789");
    }
    run_all(&mut [&mut rig, &mut client], |rigs| {
        rigs[1].host.text(id).len() == 1_000
    });
    let sent = client.driver.counters().stream_bytes_out - before;
    // A record of TLS 1.3 has an overhead of 22 bytes.
    assert_eq!(sent, 1_022);
    // A message larger than a record arrives whole, too, and no buffer is kept afterwards.
    let large = "x".repeat(100_000);
    client.host.send(id, large.as_bytes());
    run_all(&mut [&mut rig, &mut client], |rigs| {
        rigs[1].host.text(id).len() == 101_000
    });
}

#[test]
fn handshakes_above_the_rate_wait_and_are_completed() {
    let authority = Authority::new("handshake-rate");
    let server = authority.identity(&["example.com"], |_| {});
    let settings = security(&authority, server, ClientAuth::None);
    let (mut rig, address) = Rig::server_with(&settings, SocketKind::TlsListener, |config| {
        config.handshakes_per_second = 40;
    });
    let mut client = Rig::client(&authority.client(None));
    let begun = Instant::now();
    // One source: half of the rate.
    let ids: Vec<ConnectionId> = (1..=40).map(ConnectionId).collect();
    for &id in &ids {
        client.host.connect(id, address, "example.com", "");
        client.host.send(id, b"hello");
    }
    run_all(&mut [&mut rig, &mut client], |rigs| {
        ids.iter().all(|&id| rigs[1].host.text(id) == "hello")
    });
    let span = begun.elapsed();
    assert!(span > Duration::from_millis(900), "{span:?}");
    let counters = rig.driver.counters();
    assert!(counters.handshakes_delayed >= 19, "{counters:?}");
    assert_eq!(counters.drops.total(), 0);
}

#[test]
fn handshake_that_waits_too_long_is_refused_with_the_reason() {
    let authority = Authority::new("handshake-wait");
    let server = authority.identity(&["example.com"], |_| {});
    let settings = security(&authority, server, ClientAuth::None);
    let (mut rig, address) = Rig::server_with(&settings, SocketKind::TlsListener, |config| {
        config.handshakes_per_second = 1;
        config.handshake_timeout = Duration::from_millis(300);
    });
    let mut client = Rig::client(&authority.client(None));
    for id in [1, 2, 3].map(ConnectionId) {
        client.host.connect(id, address, "example.com", "");
    }
    // The third one ends before.
    let mut reset = false;
    run_all(&mut [&mut rig, &mut client], |rigs| {
        if rigs[0].driver.counters().handshakes_delayed == 2 && !reset {
            rigs[1].host.close(ConnectionId(3));
            reset = true;
        }
        !rigs[0].events().is_empty() && rigs[1].host.closed(ConnectionId(2)).is_some()
    });
    assert!(client.host.is_connected(ConnectionId(1)));
    let reasons: Vec<String> = rig
        .events()
        .into_iter()
        .filter_map(|event| match event {
            EventKind::TlsHandshakeFailed { reason, .. } => Some(reason),
            _ => None,
        })
        .collect();
    assert_eq!(reasons[0], "more than 1 TLS handshakes per second");
    assert_eq!(
        rig.host.closed(rig.host.accepted()[1]),
        Some(CloseReason::TlsFailed)
    );
}

/// Connects to a server with a certificate for `names` and requests the name `requested`; returns the outcome.
fn refused(
    test: &str,
    names: &[&str],
    edit: impl FnOnce(&mut rcgen::CertificateParams),
    requested: &str,
    trusted: bool,
) -> (CloseReason, String, u64) {
    let authority = Authority::new(test);
    let untrusted_authority = Authority::new(&format!("{test}-untrusted"));
    let server = authority.identity(names, edit);
    let (mut rig, address) = Rig::server(&security(&authority, server, ClientAuth::None));
    let trusted_authority = if trusted {
        &authority
    } else {
        &untrusted_authority
    };
    let mut client = Rig::client(&trusted_authority.client(None));
    let id = ConnectionId(1);
    client.host.connect(id, address, requested, "");
    run_all(&mut [&mut rig, &mut client], |rigs| {
        rigs[1].host.closed(id).is_some() && !rigs[0].events().is_empty()
    });
    // Both sides report and count it.
    assert_eq!(
        rig.driver
            .counters()
            .drops
            .get(DropReason::TlsHandshakeFailed),
        1,
        "the server counts it"
    );
    let why = client
        .events()
        .into_iter()
        .find_map(|note| match note {
            EventKind::TlsHandshakeFailed {
                side,
                endpoint: place,
                reason: why,
                ..
            } => {
                assert_eq!((side.as_str(), place.as_str()), ("opened", requested));
                Some(why)
            }
            _ => None,
        })
        .expect("an event");
    let drops = client
        .driver
        .counters()
        .drops
        .get(DropReason::TlsHandshakeFailed);
    (client.host.closed(id).expect("it ended"), why, drops)
}

#[test]
fn tls_refusals_state_the_reason() {
    let good = |_: &mut rcgen::CertificateParams| {};
    let expired = |params: &mut rcgen::CertificateParams| {
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    };
    let future = |params: &mut rcgen::CertificateParams| {
        params.not_before = rcgen::date_time_ymd(2090, 1, 1);
        params.not_after = rcgen::date_time_ymd(2091, 1, 1);
    };
    let untrusted = CloseReason::TlsFailed;
    let (why, text, drops) = refused("wrong", &["example.com"], good, "example.org", true);
    assert_eq!((why, drops), (untrusted, 1));
    assert_eq!(
        text,
        "the peer's certificate is not for example.org but for example.com"
    );
    let (why, text, _) = refused("expired", &["example.com"], expired, "example.com", true);
    assert_eq!(why, untrusted);
    assert_eq!(text, "the peer's certificate expired on 2021-01-01T00:00Z");
    let (_, text, _) = refused("future", &["example.com"], future, "example.com", true);
    assert_eq!(text, "the peer's certificate is not valid yet");
    let (_, text, _) = refused("unknown", &["example.com"], good, "example.com", false);
    assert_eq!(
        text,
        "the peer's certificate is from an authority that is not trusted here"
    );
}

#[test]
fn certificate_names_are_compared_per_rfc_5922() {
    // Names of the certificate, the requested name, whether it matches.
    let cases: [(&[&str], &str, bool); 11] = [
        (&["URI:sip:example.com"], "example.com", true),
        (&["URI:SIP:example.com"], "EXAMPLE.com", true),
        // A DNS name counts only without a SIP URI.
        (&["URI:sip:example.com", "sip.example.com"], NAME, false),
        (&["URI:sip:alice@example.com"], "example.com", false),
        (&["URI:sips:example.com"], "example.com", false),
        (&["URI:https://example.com", NAME], NAME, true),
        // No wildcards, no subdomains.
        (&["*.example.com"], NAME, false),
        (&["example.com"], NAME, false),
        // The common name counts only without a subjectAltName.
        (&["CN:sip.example.com"], NAME, true),
        (&["CN:sip.example.com", "other.example.com"], NAME, false),
        // A peer that is configured by its address.
        (&["IP:127.0.0.1"], "127.0.0.1", true),
    ];
    let authority = Authority::new("names");
    for (names, requested, fits) in cases {
        let server = authority.identity(names, |_| {});
        assert_eq!(
            server.identities().is_valid_for(requested),
            fits,
            "{names:?}"
        );
        let (mut rig, address) = Rig::server(&security(&authority, server, ClientAuth::None));
        let mut client = Rig::client(&authority.client(None));
        let id = ConnectionId(1);
        client.host.connect(id, address, requested, "");
        run_all(&mut [&mut rig, &mut client], |rigs| {
            rigs[1].host.is_connected(id) || rigs[1].host.closed(id).is_some()
        });
        assert_eq!(client.host.is_connected(id), fits, "{names:?} {requested}");
    }
}

#[test]
fn certificate_is_selected_by_server_name() {
    let authority = Authority::new("sni");
    let settings = ServerSettings {
        identities: vec![
            authority.identity(&["first.example.com"], |_| {}),
            authority.identity(&["URI:sip:second.example.com"], |_| {}),
        ],
        client_auth: ClientAuth::None,
        oldest: MinimumVersion::Tls12,
    };
    let (mut rig, address) = Rig::server(&settings);
    let mut client = Rig::client(&authority.client(None));
    for (number, (name, connects)) in [
        ("first.example.com", true),
        ("second.example.com", true),
        // An unknown name: the first certificate is presented, and rejected.
        ("third.example.com", false),
    ]
    .into_iter()
    .enumerate()
    {
        let id = ConnectionId(number as u64 + 1);
        client.host.connect(id, address, name, "");
        run_all(&mut [&mut rig, &mut client], |rigs| {
            rigs[1].host.is_connected(id) || rigs[1].host.closed(id).is_some()
        });
        assert_eq!(client.host.is_connected(id), connects, "{name}");
        if connects {
            assert_eq!(client.host.names(id), Some(vec![name.to_owned()]));
        }
    }
}

#[test]
fn client_certificates_are_required_as_configured() {
    let authority = Authority::new("mutual");
    let untrusted_authority = Authority::new("mutual-untrusted");
    let both = |params: &mut rcgen::CertificateParams| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    };
    // Public authorities no longer include the client's purpose in certificates.
    let server_only = |params: &mut rcgen::CertificateParams| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    };
    let code = |params: &mut rcgen::CertificateParams| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::CodeSigning];
    };
    let anchors = authority.anchors();
    let shown: [(&str, Option<Identity>); 5] = [
        (
            "good",
            Some(authority.identity(&["URI:sip:peer.example"], both)),
        ),
        (
            "server's",
            Some(authority.identity(&["peer.example"], server_only)),
        ),
        ("unfit", Some(authority.identity(&["peer.example"], code))),
        (
            "untrusted authority's",
            Some(untrusted_authority.identity(&["peer.example"], both)),
        ),
        ("none", None),
    ];
    for (client_auth, accepted) in [
        (
            ClientAuth::Request(anchors.clone()),
            [true, true, false, false, true],
        ),
        (
            ClientAuth::Require(anchors.clone()),
            [true, true, false, false, false],
        ),
    ] {
        for oldest in [MinimumVersion::Tls12, MinimumVersion::Tls13] {
            let server = authority.identity(&["example.com"], |_| {});
            let (mut rig, address) = Rig::server(&ServerSettings {
                oldest,
                ..security(&authority, server, client_auth.clone())
            });
            for ((what, identity), accepted) in shown.iter().zip(accepted) {
                let mut client = Rig::client(&authority.client(identity.clone()));
                let id = ConnectionId(1);
                client.host.connect(id, address, "example.com", "");
                client.host.send(id, b"x");
                // In TLS 1.3 the client's handshake completes before the server has verified its certificate.
                run_all(&mut [&mut rig, &mut client], |rigs| {
                    rigs[1].host.text(id) == "x" || rigs[1].host.closed(id).is_some()
                });
                assert_eq!(
                    client.host.text(id) == "x",
                    accepted,
                    "{what} {client_auth:?}"
                );
                if !accepted {
                    let reported = rig.events();
                    assert!(
                        reported.iter().any(|note| matches!(note, EventKind::TlsHandshakeFailed { side, .. } if side == "accepted")),
                        "{what}: {reported:?}"
                    );
                }
                let named = rig
                    .host
                    .accepted()
                    .last()
                    .and_then(|id| rig.host.names(*id));
                if accepted && identity.is_some() {
                    assert_eq!(named, Some(vec!["peer.example".to_owned()]));
                }
            }
        }
    }
}

#[test]
fn only_pinned_certificates_are_accepted() {
    let authority = Authority::new("pins");
    let server = authority.identity(&["example.com"], |_| {});
    let other = authority.identity(&["example.com"], |_| {});
    for (pin, connects) in [(server.fingerprint(), true), (other.fingerprint(), false)] {
        let (mut rig, address) =
            Rig::server(&security(&authority, server.clone(), ClientAuth::None));
        let mut client = Rig::client(&ClientSettings {
            pins: vec![pin],
            ..authority.client(None)
        });
        let id = ConnectionId(1);
        client.host.connect(id, address, "example.com", "");
        run_all(&mut [&mut rig, &mut client], |rigs| {
            rigs[1].host.is_connected(id) || rigs[1].host.closed(id).is_some()
        });
        assert_eq!(client.host.is_connected(id), connects);
    }
}

#[test]
fn certificates_can_be_replaced_during_connections() {
    let authority = Authority::new("change");
    let old = authority.identity(&["old.example.com"], |_| {});
    let new = authority.identity(&["new.example.com"], |_| {});
    let (mut rig, address) = Rig::server(&security(&authority, old, ClientAuth::None));
    let mut client = Rig::client(&authority.client(None));
    let first = ConnectionId(1);
    client.host.connect(first, address, "old.example.com", "");
    run_all(&mut [&mut rig, &mut client], |rigs| {
        rigs[1].host.is_connected(first)
    });
    let mut changed = Security::default();
    let before = rig.security.clone();
    changed
        .server(
            rig.requested,
            false,
            security(&authority, new, ClientAuth::None),
            Some(&before),
        )
        .unwrap();
    rig.driver.set_security(changed);
    let second = ConnectionId(2);
    client.host.connect(second, address, "new.example.com", "");
    client.host.send(first, b"still here");
    run_all(&mut [&mut rig, &mut client], |rigs| {
        rigs[1].host.is_connected(second) && rigs[1].host.text(first) == "still here"
    });
    let third = ConnectionId(3);
    client.host.connect(third, address, "old.example.com", "");
    // With its ticket the client resumes the old session; a client without one is refused.
    let mut fresh = Rig::client(&authority.client(None));
    fresh.host.connect(first, address, "old.example.com", "");
    run_all(&mut [&mut rig, &mut client, &mut fresh], |rigs| {
        rigs[2].host.closed(first).is_some()
    });
    assert_eq!(fresh.host.closed(first), Some(CloseReason::TlsFailed));
}

#[test]
fn listener_without_a_certificate_is_refused() {
    let mut rig = Rig::new(Security::default());
    let error = rig.open(SocketKind::TlsListener).unwrap_err();
    assert!(error.contains("certificate"), "{error}");
}

#[test]
fn unfinished_tls_handshake_times_out() {
    let authority = Authority::new("slow");
    let server = authority.identity(&["example.com"], |_| {});
    let (mut rig, address) = Rig::server_with(
        &security(&authority, server, ClientAuth::None),
        SocketKind::TlsListener,
        |config| {
            config.handshake_timeout = Duration::from_millis(200);
            config.connections_per_source = 20;
        },
    );
    use std::io::Write as _;
    let mut trickling: Vec<std::net::TcpStream> = (0..30)
        .map(|_| std::net::TcpStream::connect(address).unwrap())
        .collect();
    let begun = std::time::Instant::now();
    // A byte of a record header from time to time, without end.
    let ended = |rig: &Rig| {
        let drops = rig.driver.counters().drops;
        drops.get(DropReason::TlsHandshakeFailed)
    };
    while begun.elapsed() < Duration::from_millis(600) || ended(&rig) < 20 {
        for stream in &mut trickling {
            let _ = stream.write_all(&[0x16]);
        }
        rig.turn();
        assert!(rig.driver.connections() <= 20, "no more than the limit");
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    let counters = rig.driver.counters();
    assert_eq!(counters.accepted, 20);
    assert_eq!(counters.accept_refused, 10);
    // Either the timeout expired, or the bytes were not TLS.
    assert_eq!(counters.drops.get(DropReason::TlsHandshakeFailed), 20);
    for id in rig.host.accepted() {
        assert!(rig.host.closed(id).is_some(), "the engine knows");
    }
    drop(trickling);
    while rig.driver.connections() > 0 {
        rig.turn();
    }
    let silent = std::net::TcpStream::connect(address).unwrap();
    let begun = std::time::Instant::now();
    while rig.driver.counters().drops.get(DropReason::StreamTimeout) == 0 {
        rig.turn();
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    drop(silent);
}

#[test]
fn tls_refusal_events_are_rate_limited_and_all_are_counted() {
    let authority = Authority::new("flood");
    let server = authority.identity(&["example.com"], |_| {});
    let (mut rig, address) = Rig::server(&security(&authority, server, ClientAuth::None));
    use std::io::Write as _;
    let begun = std::time::Instant::now();
    for _ in 0..300 {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(b"INVITE sip:x SIP/2.0\r\n\r\n").unwrap();
        rig.turn();
    }
    while rig
        .driver
        .counters()
        .drops
        .get(DropReason::TlsHandshakeFailed)
        < 300
    {
        rig.turn();
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    let seconds = begun.elapsed().as_secs() as usize + 2;
    assert!(rig.events().len() <= 20 * seconds);
}

#[test]
fn peer_that_does_not_read_is_closed_and_others_are_served() {
    let authority = Authority::new("stuck");
    let server = authority.identity(&["example.com"], |_| {});
    let (mut rig, address) = Rig::server_with(
        &security(&authority, server, ClientAuth::None),
        SocketKind::TlsListener,
        |config| config.stream_buffer = 100_000,
    );
    let mut stuck = Rig::client(&authority.client(None));
    let mut other = Rig::client(&authority.client(None));
    let id = ConnectionId(1);
    stuck.host.connect(id, address, "example.com", "");
    other.host.connect(id, address, "example.com", "");
    run_all(&mut [&mut rig, &mut stuck, &mut other], |rigs| {
        rigs[1].host.is_connected(id) && rigs[2].host.is_connected(id)
    });
    let first = rig.host.accepted()[0];
    let chunk = vec![b'x'; 50_000];
    // Only the server and the other client run turns: the kernel's buffers fill up, then ours.
    for round in 0..2_000 {
        if rig.host.closed(first).is_some() {
            break;
        }
        rig.host.send(first, &chunk);
        rig.turn();
        assert!(round < 1_999, "more than any kernel holds");
    }
    assert_eq!(rig.host.closed(first), Some(CloseReason::Backpressure));
    assert_eq!(
        rig.driver
            .counters()
            .drops
            .get(DropReason::StreamBackpressure),
        1
    );
    other.host.send(id, b"and me?");
    run_all(&mut [&mut rig, &mut other], |rigs| {
        rigs[1].host.text(id) == "and me?"
    });
}

#[test]
fn corrupt_record_closes_an_established_connection() {
    let authority = Authority::new("garbage");
    let server = authority.identity(&["example.com"], |_| {});
    let (mut rig, address) = Rig::server(&security(&authority, server, ClientAuth::None));
    // A relay that corrupts one byte of the last record.
    let mut client = Rig::client(&authority.client(None));
    let relay = common::Relay::to(address);
    let id = ConnectionId(1);
    client.host.connect(id, relay.address, "example.com", "");
    client.host.send(id, b"well");
    run_all(&mut [&mut rig, &mut client], |rigs| {
        rigs[1].host.text(id) == "well"
    });
    relay.corrupt();
    client.host.send(id, b"ill");
    run_all(&mut [&mut rig, &mut client], |rigs| {
        rigs[1].host.closed(id).is_some()
    });
    assert_eq!(rig.driver.counters().drops.get(DropReason::TlsBroken), 1);
    let accepted = rig.host.accepted()[0];
    assert_eq!(rig.host.closed(accepted), Some(CloseReason::Error));
    assert_eq!(rig.host.text(accepted), "well");
}

#[test]
fn idle_tls_connection_uses_little_memory() {
    const CONNECTIONS: u64 = 700;
    let authority = Authority::new("idle");
    let server = authority.identity(&["example.com"], |_| {});
    let (mut rig, address) = Rig::server(&security(&authority, server, ClientAuth::None));
    let mut client = Rig::client(&authority.client(None));
    let connect = |rig: &mut Rig, client: &mut Rig, from: u64, to: u64| {
        for number in from..to {
            let id = ConnectionId(number);
            client.host.connect(id, address, "example.com", "");
            client.host.send(id, b"register");
        }
        run_all(&mut [rig, client], |rigs| {
            (from..to).all(|number| rigs[1].host.text(ConnectionId(number)) == "register")
        });
    };
    // The first connections pay for shared data; few at a time, because handshakes in progress hold more memory than
    // established connections.
    for group in 0..20 {
        connect(&mut rig, &mut client, 1 + group * 10, 11 + group * 10);
    }
    let before = net::resident_bytes().unwrap();
    for group in 20..20 + CONNECTIONS / 10 {
        connect(&mut rig, &mut client, 1 + group * 10, 11 + group * 10);
    }
    let after = net::resident_bytes().unwrap();
    let each = (after.saturating_sub(before)) / CONNECTIONS / 2;
    println!("an idle TLS connection holds {each} bytes");
    assert!(each < 16 << 10, "{each} bytes");
    drop::<ScriptedEngine>(rig.host);
}
