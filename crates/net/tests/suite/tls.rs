//! TLS and WebSocket over real sockets: both ends of ours, then other people's programs.

use crate::common;

use common::{Authority, Host, Rig, pump, security};
use engine::{CloseWhy, ConnectionId, DropReason, Note, SocketKind};
use net::tls::{ClientSettings, Identity, Oldest, Proof, Security, ServerSettings};
use std::time::Duration;

const NAME: &str = "sip.example.com";

#[test]
fn a_message_goes_there_and_back_and_the_second_connection_is_a_short_one() {
    let authority = Authority::new("there-and-back");
    let server = authority.identity(&["URI:sip:example.com"], |_| {});
    let (mut rig, address) = Rig::server(&security(&authority, server, Proof::None));
    let mut client = Rig::client(&authority.client(None));
    for round in 0..2u64 {
        let id = ConnectionId(round + 1);
        client.host.connect(id, address, "example.com", "");
        // Given before it stands: it waits for the handshake.
        client.host.send(id, b"hello");
        pump(&mut [&mut rig, &mut client], |rigs| {
            rigs[1].host.text(id) == "hello"
        });
        assert_eq!(client.host.names(id), Some(vec!["example.com".to_owned()]));
        assert!(client.host.is_connected(id));
        client.host.close(id);
        pump(&mut [&mut rig, &mut client], |rigs| {
            rigs.iter_mut().all(|rig| rig.driver.connections() == 0)
        });
    }
    let accepted = rig.host.accepted();
    assert_eq!(accepted.len(), 2);
    // The client showed no certificate.
    assert_eq!(rig.host.names(accepted[0]), Some(vec![]));
    for rig in [&rig, &client] {
        let counters = rig.driver.counters();
        assert_eq!(counters.tls_established, 2);
        assert_eq!(counters.tls_resumed, 1, "by the ticket of the first one");
        assert_eq!(counters.drops.total(), 0, "{:?}", counters.drops);
    }
}

#[test]
fn all_messages_of_a_turn_leave_in_one_record() {
    let authority = Authority::new("one-record");
    let server = authority.identity(&["example.com"], |_| {});
    let (mut rig, address) = Rig::server(&security(&authority, server, Proof::None));
    let mut client = Rig::client(&authority.client(None));
    let id = ConnectionId(1);
    client.host.connect(id, address, "example.com", "");
    pump(&mut [&mut rig, &mut client], |rigs| {
        rigs[1].host.is_connected(id)
    });
    let before = client.driver.counters().stream_bytes_out;
    for _ in 0..100 {
        client.host.send(id, b"0123456789");
    }
    pump(&mut [&mut rig, &mut client], |rigs| {
        rigs[1].host.text(id).len() == 1_000
    });
    let sent = client.driver.counters().stream_bytes_out - before;
    // A record of TLS 1.3 has 22 bytes beside its content.
    assert_eq!(sent, 1_022);
    // What is larger than a record comes whole too, and nothing is held afterwards.
    let large = "x".repeat(100_000);
    client.host.send(id, large.as_bytes());
    pump(&mut [&mut rig, &mut client], |rigs| {
        rigs[1].host.text(id).len() == 101_000
    });
}

/// How a connection to a server of `names` ends that is asked for as `asked`.
fn refused(
    test: &str,
    names: &[&str],
    edit: impl FnOnce(&mut rcgen::CertificateParams),
    asked: &str,
    trusted: bool,
) -> (CloseWhy, String, u64) {
    let authority = Authority::new(test);
    let stranger = Authority::new(&format!("{test}-stranger"));
    let server = authority.identity(names, edit);
    let (mut rig, address) = Rig::server(&security(&authority, server, Proof::None));
    let believed = if trusted { &authority } else { &stranger };
    let mut client = Rig::client(&believed.client(None));
    let id = ConnectionId(1);
    client.host.connect(id, address, asked, "");
    pump(&mut [&mut rig, &mut client], |rigs| {
        rigs[1].host.closed(id).is_some() && !rigs[0].events().is_empty()
    });
    // Both sides tell, and count.
    assert_eq!(
        rig.driver.counters().drops.get(DropReason::TlsRefused),
        1,
        "the server counts it"
    );
    let why = client
        .events()
        .into_iter()
        .find_map(|note| match note {
            Note::TlsRefused {
                side, place, why, ..
            } => {
                assert_eq!((side.as_str(), place.as_str()), ("opened", asked));
                Some(why)
            }
            _ => None,
        })
        .expect("an event");
    let drops = client.driver.counters().drops.get(DropReason::TlsRefused);
    (client.host.closed(id).expect("it ended"), why, drops)
}

#[test]
fn refusals_say_why() {
    let good = |_: &mut rcgen::CertificateParams| {};
    let expired = |params: &mut rcgen::CertificateParams| {
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    };
    let future = |params: &mut rcgen::CertificateParams| {
        params.not_before = rcgen::date_time_ymd(2090, 1, 1);
        params.not_after = rcgen::date_time_ymd(2091, 1, 1);
    };
    let untrusted = CloseWhy::Untrusted;
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
fn names_are_compared_as_rfc_5922_says() {
    // What the certificate has, what is asked for, whether it fits.
    let cases: [(&[&str], &str, bool); 11] = [
        (&["URI:sip:example.com"], "example.com", true),
        (&["URI:SIP:example.com"], "EXAMPLE.com", true),
        // A DNS name counts only where no SIP URI does.
        (&["URI:sip:example.com", "sip.example.com"], NAME, false),
        (&["URI:sip:alice@example.com"], "example.com", false),
        (&["URI:sips:example.com"], "example.com", false),
        (&["URI:https://example.com", NAME], NAME, true),
        // No wildcards, no subdomains.
        (&["*.example.com"], NAME, false),
        (&["example.com"], NAME, false),
        // CN only where there is no subjectAltName.
        (&["CN:sip.example.com"], NAME, true),
        (&["CN:sip.example.com", "other.example.com"], NAME, false),
        // A peer that is known by its address alone.
        (&["IP:127.0.0.1"], "127.0.0.1", true),
    ];
    let authority = Authority::new("names");
    for (names, asked, fits) in cases {
        let server = authority.identity(names, |_| {});
        assert_eq!(server.identities().stand_for(asked), fits, "{names:?}");
        let (mut rig, address) = Rig::server(&security(&authority, server, Proof::None));
        let mut client = Rig::client(&authority.client(None));
        let id = ConnectionId(1);
        client.host.connect(id, address, asked, "");
        pump(&mut [&mut rig, &mut client], |rigs| {
            rigs[1].host.is_connected(id) || rigs[1].host.closed(id).is_some()
        });
        assert_eq!(client.host.is_connected(id), fits, "{names:?} {asked}");
    }
}

#[test]
fn the_certificate_is_chosen_by_the_name_that_is_asked_for() {
    let authority = Authority::new("sni");
    let settings = ServerSettings {
        identities: vec![
            authority.identity(&["first.example.com"], |_| {}),
            authority.identity(&["URI:sip:second.example.com"], |_| {}),
        ],
        proof: Proof::None,
        oldest: Oldest::Tls12,
    };
    let (mut rig, address) = Rig::server(&settings);
    let mut client = Rig::client(&authority.client(None));
    for (number, (name, stands)) in [
        ("first.example.com", true),
        ("second.example.com", true),
        // Nobody's: the first is shown, and not taken.
        ("third.example.com", false),
    ]
    .into_iter()
    .enumerate()
    {
        let id = ConnectionId(number as u64 + 1);
        client.host.connect(id, address, name, "");
        pump(&mut [&mut rig, &mut client], |rigs| {
            rigs[1].host.is_connected(id) || rigs[1].host.closed(id).is_some()
        });
        assert_eq!(client.host.is_connected(id), stands, "{name}");
        if stands {
            assert_eq!(client.host.names(id), Some(vec![name.to_owned()]));
        }
    }
}

#[test]
fn clients_show_a_certificate_where_they_must() {
    let authority = Authority::new("mutual");
    let stranger = Authority::new("mutual-stranger");
    let both = |params: &mut rcgen::CertificateParams| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    };
    // Public authorities no longer put the client's purpose into what they issue.
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
            "stranger's",
            Some(stranger.identity(&["peer.example"], both)),
        ),
        ("none", None),
    ];
    for (proof, takes) in [
        (
            Proof::Request(anchors.clone()),
            [true, true, false, false, true],
        ),
        (
            Proof::Require(anchors.clone()),
            [true, true, false, false, false],
        ),
    ] {
        for oldest in [Oldest::Tls12, Oldest::Tls13] {
            let server = authority.identity(&["example.com"], |_| {});
            let (mut rig, address) = Rig::server(&ServerSettings {
                oldest,
                ..security(&authority, server, proof.clone())
            });
            for ((what, identity), takes) in shown.iter().zip(takes) {
                let mut client = Rig::client(&authority.client(identity.clone()));
                let id = ConnectionId(1);
                client.host.connect(id, address, "example.com", "");
                client.host.send(id, b"x");
                // In TLS 1.3 a client thinks that all is well before the server has looked at its certificate.
                pump(&mut [&mut rig, &mut client], |rigs| {
                    rigs[1].host.text(id) == "x" || rigs[1].host.closed(id).is_some()
                });
                assert_eq!(client.host.text(id) == "x", takes, "{what} {proof:?}");
                if !takes {
                    let told = rig.events();
                    assert!(
                        told.iter().any(|note| matches!(note, Note::TlsRefused { side, .. } if side == "accepted")),
                        "{what}: {told:?}"
                    );
                }
                let named = rig
                    .host
                    .accepted()
                    .last()
                    .and_then(|id| rig.host.names(*id));
                if takes && identity.is_some() {
                    assert_eq!(named, Some(vec!["peer.example".to_owned()]));
                }
            }
        }
    }
}

#[test]
fn a_pinned_peer_is_the_only_one_that_is_taken() {
    let authority = Authority::new("pins");
    let server = authority.identity(&["example.com"], |_| {});
    let other = authority.identity(&["example.com"], |_| {});
    for (pin, stands) in [(server.fingerprint(), true), (other.fingerprint(), false)] {
        let (mut rig, address) = Rig::server(&security(&authority, server.clone(), Proof::None));
        let mut client = Rig::client(&ClientSettings {
            pins: vec![pin],
            ..authority.client(None)
        });
        let id = ConnectionId(1);
        client.host.connect(id, address, "example.com", "");
        pump(&mut [&mut rig, &mut client], |rigs| {
            rigs[1].host.is_connected(id) || rigs[1].host.closed(id).is_some()
        });
        assert_eq!(client.host.is_connected(id), stands);
    }
}

#[test]
fn certificates_change_while_connections_stand() {
    let authority = Authority::new("change");
    let old = authority.identity(&["old.example.com"], |_| {});
    let new = authority.identity(&["new.example.com"], |_| {});
    let (mut rig, address) = Rig::server(&security(&authority, old, Proof::None));
    let mut client = Rig::client(&authority.client(None));
    let first = ConnectionId(1);
    client.host.connect(first, address, "old.example.com", "");
    pump(&mut [&mut rig, &mut client], |rigs| {
        rigs[1].host.is_connected(first)
    });
    let mut changed = Security::default();
    let before = rig.security.clone();
    changed
        .server(
            rig.asked,
            false,
            security(&authority, new, Proof::None),
            Some(&before),
        )
        .unwrap();
    rig.driver.set_security(changed);
    let second = ConnectionId(2);
    client.host.connect(second, address, "new.example.com", "");
    client.host.send(first, b"still here");
    pump(&mut [&mut rig, &mut client], |rigs| {
        rigs[1].host.is_connected(second) && rigs[1].host.text(first) == "still here"
    });
    let third = ConnectionId(3);
    client.host.connect(third, address, "old.example.com", "");
    // By its ticket the client still knows the old one; a client that has none is refused.
    let mut fresh = Rig::client(&authority.client(None));
    fresh.host.connect(first, address, "old.example.com", "");
    pump(&mut [&mut rig, &mut client, &mut fresh], |rigs| {
        rigs[2].host.closed(first).is_some()
    });
    assert_eq!(fresh.host.closed(first), Some(CloseWhy::Untrusted));
}

#[test]
fn a_listener_without_a_certificate_does_not_open() {
    let mut rig = Rig::new(Security::default());
    let error = rig.open(SocketKind::TlsListener).unwrap_err();
    assert!(error.contains("certificate"), "{error}");
}

#[test]
fn who_does_not_finish_the_handshake_is_cut_off() {
    let authority = Authority::new("slow");
    let server = authority.identity(&["example.com"], |_| {});
    let (mut rig, address) = Rig::server_with(
        &security(&authority, server, Proof::None),
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
    // A byte of a record's head now and then, for ever.
    while begun.elapsed() < Duration::from_millis(600) {
        for stream in &mut trickling {
            let _ = stream.write_all(&[0x16]);
        }
        rig.turn();
        assert!(rig.driver.connections() <= 20, "no more than the limit");
    }
    let counters = rig.driver.counters();
    assert_eq!(counters.accepted, 20);
    assert_eq!(counters.accept_refused, 10);
    // Either the time was over, or the bytes were no TLS.
    assert_eq!(counters.drops.get(DropReason::TlsRefused), 20);
    for id in rig.host.accepted() {
        assert!(rig.host.closed(id).is_some(), "the engine knows");
    }
    drop(trickling);
    while rig.driver.connections() > 0 {
        rig.turn();
    }
    let silent = std::net::TcpStream::connect(address).unwrap();
    let begun = std::time::Instant::now();
    while rig.driver.counters().drops.get(DropReason::StreamTooSlow) == 0 {
        rig.turn();
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    drop(silent);
}

#[test]
fn refusals_are_told_a_bounded_number_of_times_and_counted_always() {
    let authority = Authority::new("flood");
    let server = authority.identity(&["example.com"], |_| {});
    let (mut rig, address) = Rig::server(&security(&authority, server, Proof::None));
    use std::io::Write as _;
    let begun = std::time::Instant::now();
    for _ in 0..300 {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(b"INVITE sip:x SIP/2.0\r\n\r\n").unwrap();
        rig.turn();
    }
    while rig.driver.counters().drops.get(DropReason::TlsRefused) < 300 {
        rig.turn();
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    let seconds = begun.elapsed().as_secs() as usize + 2;
    assert!(rig.events().len() <= 20 * seconds);
}

#[test]
fn a_peer_that_does_not_read_is_closed_and_the_others_are_served() {
    let authority = Authority::new("stuck");
    let server = authority.identity(&["example.com"], |_| {});
    let (mut rig, address) = Rig::server_with(
        &security(&authority, server, Proof::None),
        SocketKind::TlsListener,
        |config| config.stream_buffer = 100_000,
    );
    let mut stuck = Rig::client(&authority.client(None));
    let mut other = Rig::client(&authority.client(None));
    let id = ConnectionId(1);
    stuck.host.connect(id, address, "example.com", "");
    other.host.connect(id, address, "example.com", "");
    pump(&mut [&mut rig, &mut stuck, &mut other], |rigs| {
        rigs[1].host.is_connected(id) && rigs[2].host.is_connected(id)
    });
    let first = rig.host.accepted()[0];
    let chunk = vec![b'x'; 50_000];
    // Only the server and the other client have their turns: the kernel's buffers fill, then ours.
    for round in 0..2_000 {
        if rig.host.closed(first).is_some() {
            break;
        }
        rig.host.send(first, &chunk);
        rig.turn();
        assert!(round < 1_999, "more than any kernel holds");
    }
    assert_eq!(rig.host.closed(first), Some(CloseWhy::Backpressure));
    assert_eq!(
        rig.driver
            .counters()
            .drops
            .get(DropReason::StreamBackpressure),
        1
    );
    other.host.send(id, b"and me?");
    pump(&mut [&mut rig, &mut other], |rigs| {
        rigs[1].host.text(id) == "and me?"
    });
}

#[test]
fn garbage_inside_ends_a_connection_that_stood() {
    let authority = Authority::new("garbage");
    let server = authority.identity(&["example.com"], |_| {});
    let (mut rig, address) = Rig::server(&security(&authority, server, Proof::None));
    // A relay in the middle that breaks one byte of what comes last.
    let mut client = Rig::client(&authority.client(None));
    let relay = common::Relay::to(address);
    let id = ConnectionId(1);
    client.host.connect(id, relay.address, "example.com", "");
    client.host.send(id, b"well");
    pump(&mut [&mut rig, &mut client], |rigs| {
        rigs[1].host.text(id) == "well"
    });
    relay.spoil();
    client.host.send(id, b"ill");
    pump(&mut [&mut rig, &mut client], |rigs| {
        rigs[1].host.closed(id).is_some()
    });
    assert_eq!(rig.driver.counters().drops.get(DropReason::TlsBroken), 1);
    let accepted = rig.host.accepted()[0];
    assert_eq!(rig.host.closed(accepted), Some(CloseWhy::Error));
    assert_eq!(rig.host.text(accepted), "well");
}

#[test]
fn an_idle_connection_costs_little() {
    const CONNECTIONS: u64 = 700;
    let authority = Authority::new("idle");
    let server = authority.identity(&["example.com"], |_| {});
    let (mut rig, address) = Rig::server(&security(&authority, server, Proof::None));
    let mut client = Rig::client(&authority.client(None));
    let connect = |rig: &mut Rig, client: &mut Rig, from: u64, to: u64| {
        for number in from..to {
            let id = ConnectionId(number);
            client.host.connect(id, address, "example.com", "");
            client.host.send(id, b"register");
        }
        pump(&mut [rig, client], |rigs| {
            (from..to).all(|number| rigs[1].host.text(ConnectionId(number)) == "register")
        });
    };
    // The first ones pay for what all share; few at a time, as handshakes under way hold more than connections that stand.
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
    drop::<Host>(rig.host);
}
