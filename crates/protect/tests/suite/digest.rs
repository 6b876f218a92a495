//! Digest against the RFCs' own figures, and both roles against each other.

use engine::{Entropy, Time};
use protect::digest::{
    Algorithm, Challenge, ClientSession, Hash, Hex, NonceKey, Proof, Qop, Refusal, Secret, Server,
    ServerConfig, answer_header, ha1, user_hash,
};
use std::time::Duration;
use wire::sip::{Credentials, HeaderId, Message, Method, Writer};

fn text(hex: &Hex) -> &str {
    std::str::from_utf8(hex.as_bytes()).unwrap()
}

#[test]
fn rfc_2617_section_3_5() {
    let proof = Proof {
        algorithm: Algorithm::MD5,
        ha1: ha1(
            Hash::Md5,
            b"Mufasa",
            b"testrealm@host.com",
            b"Circle Of Life",
        ),
        nonce: b"dcd98b7102dd2f0e8b11d0f600bfb0c093",
        cnonce: b"0a4f113b",
        nc: b"00000001",
        qop: Qop::Auth,
        method: b"GET",
        uri: b"/dir/index.html",
        body: b"",
    };
    assert_eq!(text(&proof.response()), "6629fae49393a05397450978507c4ef1");
    // The same without qop: the formula of RFC 2069.
    let old = Proof {
        qop: Qop::None,
        ..proof
    };
    assert_eq!(text(&old.response()), "670fd8c2df070c60b045671b8b24ff02");
}

#[test]
fn rfc_7616_section_3_9_1() {
    for (algorithm, expected) in [
        (Algorithm::MD5, "8ca523f5e9506fed4657c9700eebdbec"),
        (
            Algorithm::SHA256,
            "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1",
        ),
    ] {
        let proof = Proof {
            algorithm,
            ha1: ha1(
                algorithm.hash,
                b"Mufasa",
                b"http-auth@example.org",
                b"Circle of Life",
            ),
            nonce: b"7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v",
            cnonce: b"f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ",
            nc: b"00000001",
            qop: Qop::Auth,
            method: b"GET",
            uri: b"/dir/index.html",
            body: b"",
        };
        assert_eq!(text(&proof.response()), expected);
    }
}

/// The figures of the RFC's text were made with SHA-512 cut short; these are the verified erratum's, with SHA-512/256.
#[test]
fn rfc_7616_section_3_9_2() {
    let username = "J\u{e4}s\u{f8}n Doe".as_bytes();
    let realm = b"api@example.org";
    let hashed = user_hash(Hash::Sha512_256, username, realm);
    assert_eq!(
        text(&hashed),
        "793263caabb707a56211940d90411ea4a575adeccb7e360aeb624ed06ece9b0b"
    );
    let proof = Proof {
        algorithm: Algorithm::SHA512_256,
        ha1: ha1(Hash::Sha512_256, username, realm, b"Secret, or not?"),
        nonce: b"5TsQWLVdgBdmrQ0XsxbDODV+57QdFR34I9HAbC/RVvkK",
        cnonce: b"NTg6RKcb9boFIAS3KrFK9BGeh+iDa/sm6jUMp2wds69v",
        nc: b"00000001",
        qop: Qop::Auth,
        method: b"GET",
        uri: b"/doe.json",
        body: b"",
    };
    assert_eq!(
        text(&proof.response()),
        "3798d4131c277846293534c3edc11bd8a5e4cdcbff78b05db9d95eeb1cec68a5"
    );
}

#[test]
fn algorithms_by_name() {
    for name in [
        "MD5",
        "MD5-sess",
        "SHA-256",
        "SHA-256-sess",
        "SHA-512-256",
        "SHA-512-256-sess",
    ] {
        assert_eq!(
            Algorithm::from_token(name.as_bytes()).unwrap().token(),
            name
        );
        assert_eq!(
            Algorithm::from_token(format!("\"{}\"", name.to_lowercase()).as_bytes())
                .unwrap()
                .token(),
            name
        );
    }
    assert_eq!(Algorithm::from_token(b"AKAv1-MD5"), None);
    assert!(Hex::from_digits(b"zz").is_none());
    assert!(
        Hex::from_digits(b"8CA523f5e9506fed4657c9700eebdbec")
            .unwrap()
            .matches(b"8ca523F5e9506fed4657c9700eebdbec")
    );
}

const SECRET: &str = "s3cr\"et";
const BODY: &[u8] = b"v=0\r\n";

/// A server, a client and the messages between them.
struct Bench {
    server: Server,
    entropy: Entropy,
    now: Time,
}

impl Bench {
    fn new(config: impl FnOnce(&mut ServerConfig)) -> Bench {
        let mut entropy = Entropy::from_number(7);
        let mut settings = ServerConfig {
            realm: b"a \"quoted\\\" realm".to_vec(),
            algorithms: vec![Algorithm::SHA256, Algorithm::MD5],
            auth_int: false,
            without_qop: false,
            nonce_lifetime: Duration::from_secs(60),
            nonces: 100,
        };
        config(&mut settings);
        let server = Server::new(settings, NonceKey([9; 32]), &mut entropy);
        Bench {
            server,
            entropy,
            now: Time::from_secs(5),
        }
    }

    /// The challenges of a 401 as the client chooses among them.
    fn challenge(&mut self, stale: bool, secret: &Secret) -> Challenge {
        let mut out = Vec::new();
        let mut writer = Writer::response(&mut out, 401, b"Unauthorized");
        self.server.write_challenges(
            HeaderId::WwwAuthenticate,
            stale,
            self.now,
            &mut self.entropy,
            &mut writer,
        );
        writer.finish();
        let response = Message::parse(&out).unwrap();
        let mut chosen = Challenge::choose(&response, HeaderId::WwwAuthenticate, secret);
        assert_eq!(chosen.len(), 1);
        chosen.remove(0)
    }

    fn session(&mut self, secret: &Secret) -> ClientSession {
        let challenge = self.challenge(false, secret);
        ClientSession::new(challenge, b"bob", secret, &mut self.entropy).unwrap()
    }

    fn check(&mut self, credentials: &[u8], secret: Option<&Secret>) -> Result<(), Refusal> {
        self.check_as(credentials, secret, b"REGISTER", BODY)
    }

    fn check_as(
        &mut self,
        credentials: &[u8],
        secret: Option<&Secret>,
        method: &'static [u8],
        body: &[u8],
    ) -> Result<(), Refusal> {
        let mut out = Vec::new();
        let mut writer = Writer::request(&mut out, Method::Register, b"sip:h");
        writer.header(HeaderId::Authorization, b"Digest realm=\"other\", x=\"y\"");
        writer.header(HeaderId::Authorization, credentials);
        writer.finish();
        let request = Message::parse(&out).unwrap();
        let presented = self.server.presented(&request, HeaderId::Authorization)?;
        assert_eq!(&*presented.username, b"bob");
        assert_eq!(&*presented.uri, b"sip:h");
        self.server
            .verify(&presented, b"bob", secret, method, body, self.now)
    }
}

fn password() -> Secret {
    Secret::Password(SECRET.into())
}

fn credentials(session: &mut ClientSession) -> Vec<u8> {
    let mut out = Vec::new();
    session.write_credentials(b"REGISTER", b"sip:h", BODY, &mut out);
    out
}

#[test]
fn every_algorithm_and_qop_both_ways() {
    for token in [
        "MD5",
        "MD5-sess",
        "SHA-256",
        "SHA-256-sess",
        "SHA-512-256",
        "SHA-512-256-sess",
    ] {
        let algorithm = Algorithm::from_token(token.as_bytes()).unwrap();
        let mut bench = Bench::new(|config| {
            config.algorithms = vec![algorithm];
            config.auth_int = true;
            config.without_qop = true;
        });
        let secret = password();
        for qop in [Qop::Auth, Qop::AuthInt, Qop::None] {
            let mut challenge = bench.challenge(false, &secret);
            assert_eq!((challenge.algorithm, challenge.qop), (algorithm, Qop::Auth));
            challenge.qop = qop;
            let mut session =
                ClientSession::new(challenge, b"bob", &secret, &mut bench.entropy).unwrap();
            let first = credentials(&mut session);
            assert_eq!(
                bench.check(&first, Some(&secret)),
                Ok(()),
                "{token} {qop:?}"
            );
            assert_eq!(
                bench.check(&first, Some(&secret)),
                Err(Refusal::Stale),
                "a replay"
            );
            let second = credentials(&mut session);
            let again = if qop == Qop::None {
                Err(Refusal::Stale)
            } else {
                Ok(())
            };
            assert_eq!(
                bench.check(&second, Some(&secret)),
                again,
                "{token} {qop:?}"
            );
            let third = credentials(&mut session);
            assert_eq!(
                bench.check_as(&third, Some(&secret), b"INVITE", BODY),
                Err(Refusal::Wrong),
                "another method"
            );
            let other_body = bench.check_as(&third, Some(&secret), b"REGISTER", b"other");
            assert_eq!(
                other_body == Err(Refusal::Wrong),
                qop == Qop::AuthInt,
                "auth-int covers the body"
            );
        }
    }
}

#[test]
fn wrong_unknown_and_stored_secrets() {
    let mut bench = Bench::new(|_| {});
    let mut session = bench.session(&password());
    let sent = credentials(&mut session);
    assert_eq!(
        bench.check(&sent, Some(&Secret::Password(b"wrong".to_vec()))),
        Err(Refusal::Wrong)
    );
    assert_eq!(bench.check(&sent, None), Err(Refusal::Wrong));
    // A user who is unknown cannot log in with the stand-in password either.
    let guess = Secret::Password(b"no such user".to_vec());
    let mut guessed = bench.session(&guess);
    assert_eq!(
        bench.check(&credentials(&mut guessed), None),
        Err(Refusal::Wrong)
    );
    let stored = Secret::Ha1(vec![(
        Hash::Md5,
        ha1(
            Hash::Md5,
            b"bob",
            b"a \"quoted\\\" realm",
            SECRET.as_bytes(),
        ),
    )]);
    assert_eq!(
        bench.check(&sent, Some(&stored)),
        Err(Refusal::Wrong),
        "no SHA-256 stored"
    );
    let mut session = bench.session(&stored);
    assert_eq!(
        session.challenge().algorithm,
        Algorithm::MD5,
        "the strongest that the store serves"
    );
    assert_eq!(
        bench.check(&credentials(&mut session), Some(&stored)),
        Ok(())
    );
    assert!(!format!("{session:?} {stored:?} {:?}", password()).contains("s3cr"));
    assert_eq!(
        bench.server.remembered(),
        1,
        "only right responses are remembered"
    );
}

#[test]
fn nonces_age_and_are_ours() {
    let mut bench = Bench::new(|_| {});
    let secret = password();
    let mut session = bench.session(&secret);
    bench.now = Time::from_secs(66);
    assert_eq!(
        bench.check(&credentials(&mut session), Some(&secret)),
        Err(Refusal::Stale)
    );
    let fresh = bench.challenge(true, &secret);
    assert!(fresh.stale && session.may_retry(&fresh));
    let wrong = bench.challenge(false, &secret);
    assert!(!session.may_retry(&wrong));
    // A nonce that another made, with the right response.
    let mut foreign = fresh.clone();
    foreign.nonce[40] ^= 1;
    let mut session = ClientSession::new(foreign, b"bob", &secret, &mut bench.entropy).unwrap();
    assert_eq!(
        bench.check(&credentials(&mut session), Some(&secret)),
        Err(Refusal::Stale)
    );
    let mut session = ClientSession::new(fresh, b"bob", &secret, &mut bench.entropy).unwrap();
    assert_eq!(
        bench.check(&credentials(&mut session), Some(&secret)),
        Ok(())
    );
}

#[test]
fn counts_may_come_out_of_order_but_not_twice() {
    let mut bench = Bench::new(|_| {});
    let secret = password();
    let mut session = bench.session(&secret);
    let sent: Vec<_> = (0..200).map(|_| credentials(&mut session)).collect();
    for index in [0, 5, 3, 4, 1, 150, 149, 90] {
        assert_eq!(
            bench.check(&sent[index], Some(&secret)),
            Ok(()),
            "count {index}"
        );
        assert_eq!(
            bench.check(&sent[index], Some(&secret)),
            Err(Refusal::Stale),
            "count {index} again"
        );
    }
    assert_eq!(
        bench.check(&sent[2], Some(&secret)),
        Err(Refusal::Stale),
        "too far behind"
    );
    assert_eq!(
        bench.check(&sent[80], Some(&secret)),
        Err(Refusal::Stale),
        "just too far behind"
    );
}

#[test]
fn a_full_table_forgets_without_letting_replays_in() {
    let mut bench = Bench::new(|config| config.nonces = 10);
    let secret = password();
    let mut sent = Vec::new();
    for second in 0..30 {
        bench.now = Time::from_secs(100 + second);
        let mut session = bench.session(&secret);
        sent.push(credentials(&mut session));
        assert_eq!(bench.check(sent.last().unwrap(), Some(&secret)), Ok(()));
        assert!(bench.server.remembered() <= 10);
    }
    for replay in &sent {
        assert_eq!(bench.check(replay, Some(&secret)), Err(Refusal::Stale));
    }
    // Time empties it.
    bench.now = Time::from_secs(1000);
    let mut session = bench.session(&secret);
    assert_eq!(
        bench.check(&credentials(&mut session), Some(&secret)),
        Ok(())
    );
    assert_eq!(bench.server.remembered(), 1);
}

#[test]
fn malformed_and_unoffered_credentials() {
    let mut bench = Bench::new(|_| {});
    let secret = password();
    let realm =
        r#"username="bob", realm="a \"quoted\\\" realm", nonce="n", uri="sip:h", response="r""#;
    for (rest, refusal) in [
        (
            ", algorithm=MD5, qop=auth, cnonce=\"c\"",
            Refusal::Malformed,
        ),
        (", algorithm=MD5, qop=auth, nc=00000001", Refusal::Malformed),
        (
            ", algorithm=MD5, qop=auth, nc=1, cnonce=\"c\", uri=\"sip:x\"",
            Refusal::Malformed,
        ),
        (", algorithm=MD5", Refusal::Unsupported),
        (
            ", algorithm=SHA-512-256, qop=auth, nc=00000001, cnonce=\"c\"",
            Refusal::Unsupported,
        ),
        (
            ", algorithm=MD5, qop=auth-int, nc=00000001, cnonce=\"c\"",
            Refusal::Unsupported,
        ),
        (
            ", algorithm=X, qop=auth, nc=00000001, cnonce=\"c\"",
            Refusal::Unsupported,
        ),
        (
            ", algorithm=MD5, qop=auth, nc=00000001, cnonce=\"c\"",
            Refusal::Wrong,
        ),
    ] {
        let sent = format!("Digest {realm}{rest}");
        assert_eq!(
            bench.check(sent.as_bytes(), Some(&secret)),
            Err(refusal),
            "{rest}"
        );
    }
    assert_eq!(
        bench.check(b"Basic xyz", Some(&secret)),
        Err(Refusal::Absent)
    );
}

/// RFC 8760 section 2.4 and its example: several challenges for one realm, several realms.
#[test]
fn rfc_8760_choice_among_challenges() {
    let response = b"SIP/2.0 401 Unauthorized\r\n\
        WWW-Authenticate: Digest realm=\"atlanta.example.com\", qop=\"auth\", algorithm=SHA-999, nonce=\"n0\"\r\n\
        WWW-Authenticate: Digest realm=\"atlanta.example.com\", qop=\"auth\", algorithm=MD5, nonce=\"n1\", opaque=\"\"\r\n\
        WWW-Authenticate: Digest realm=\"atlanta.example.com\", qop=\"auth\", algorithm=SHA-256, nonce=\"n2\", opaque=\"o\\\"\"\r\n\
        WWW-Authenticate: Digest realm=\"atlanta.example.com\", qop=\"auth\", algorithm=SHA-256, nonce=\"n3\"\r\n\
        WWW-Authenticate: Digest realm=\"second\", nonce=\"n4\"\r\n\
        WWW-Authenticate: Digest realm=\"third\", nonce=\"n5\", qop=\"auth-conf\"\r\n\
        WWW-Authenticate: Basic realm=\"fourth\"\r\n\r\n";
    let response = Message::parse(response).unwrap();
    let chosen = Challenge::choose(&response, HeaderId::WwwAuthenticate, &password());
    let nonces: Vec<_> = chosen
        .iter()
        .map(|challenge| challenge.nonce.as_slice())
        .collect();
    assert_eq!(nonces, [b"n2", b"n4"]);
    assert_eq!(
        (chosen[1].algorithm, chosen[1].qop),
        (Algorithm::MD5, Qop::None)
    );
    let mut entropy = Entropy::from_number(1);
    let mut session =
        ClientSession::new(chosen[0].clone(), b"bob", &password(), &mut entropy).unwrap();
    let mut out = Vec::new();
    session.write_credentials(b"INVITE", b"sip:x", b"", &mut out);
    let written = Credentials::parse(&out).unwrap();
    assert_eq!(written.params.get(b"opaque"), Some(&b"\"o\\\"\""[..]));
    assert_eq!(written.params.get(b"nc"), Some(&b"00000001"[..]));
    assert_eq!(written.params.get(b"algorithm"), Some(&b"SHA-256"[..]));
    // Without qop and algorithm in the challenge, none in the answer.
    let mut session =
        ClientSession::new(chosen[1].clone(), b"bob", &password(), &mut entropy).unwrap();
    let mut out = Vec::new();
    session.write_credentials(b"INVITE", b"sip:x", b"", &mut out);
    let written = Credentials::parse(&out).unwrap();
    assert!(
        [&b"qop"[..], b"nc", b"cnonce", b"algorithm"]
            .iter()
            .all(|name| written.params.get(name).is_none())
    );
    assert_eq!(
        answer_header(HeaderId::ProxyAuthenticate),
        HeaderId::ProxyAuthorization
    );
}

#[test]
fn the_server_proves_itself_too() {
    let mut bench = Bench::new(|_| {});
    let secret = password();
    let mut session = bench.session(&secret);
    let sent = credentials(&mut session);
    let mut out = Vec::new();
    let mut writer = Writer::request(&mut out, Method::Register, b"sip:h");
    writer.header(HeaderId::Authorization, &sent);
    writer.finish();
    let request = Message::parse(&out).unwrap();
    let presented = bench
        .server
        .presented(&request, HeaderId::Authorization)
        .unwrap();
    let mut info = b"Digest ".to_vec();
    bench
        .server
        .write_authentication_info(&presented, b"bob", &secret, b"", &mut info)
        .unwrap();
    let info = Credentials::parse(&info).unwrap();
    let sent = Credentials::parse(&sent).unwrap();
    let challenge = session.challenge();
    let expected = Proof {
        algorithm: challenge.algorithm,
        ha1: secret.ha1(Hash::Sha256, b"bob", &challenge.realm).unwrap(),
        nonce: &challenge.nonce,
        cnonce: &wire::sip::unquote(sent.params.get(b"cnonce").unwrap()),
        nc: b"00000001",
        qop: Qop::Auth,
        method: b"",
        uri: b"sip:h",
        body: b"",
    };
    let found = wire::sip::unquote(info.params.get(b"rspauth").unwrap());
    assert_eq!(text(&expected.response()).as_bytes(), &*found);
}
