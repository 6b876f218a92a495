//! Digest with the test vectors of the RFCs, and both roles with each other.

use engine::{Entropy, Time};
use protect::digest::{
    Algorithm, Challenge, ClientSession, DigestServer, Hash, Hex, NonceKey, Qop, Refusal,
    ResponseInput, Secret, ServerConfig, answer_header, ha1, user_hash,
};
use std::time::Duration;
use wire::sip::{Credentials, HeaderId, Message, Method, Writer};

fn text(hex: &Hex) -> &str {
    std::str::from_utf8(hex.as_bytes()).unwrap()
}

#[test]
fn rfc_2617_section_3_5() {
    let input = ResponseInput {
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
    assert_eq!(text(&input.response()), "6629fae49393a05397450978507c4ef1");
    // Without qop: the formula of RFC 2069.
    let old = ResponseInput {
        qop: Qop::None,
        ..input
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
        let input = ResponseInput {
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
        assert_eq!(text(&input.response()), expected);
    }
}

/// The values in the RFC's text were computed with truncated SHA-512; these are from the verified erratum, with
/// SHA-512/256.
#[test]
fn rfc_7616_section_3_9_2() {
    let username = "J\u{e4}s\u{f8}n Doe".as_bytes();
    let realm = b"api@example.org";
    let hashed = user_hash(Hash::Sha512_256, username, realm);
    assert_eq!(
        text(&hashed),
        "793263caabb707a56211940d90411ea4a575adeccb7e360aeb624ed06ece9b0b"
    );
    let input = ResponseInput {
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
        text(&input.response()),
        "3798d4131c277846293534c3edc11bd8a5e4cdcbff78b05db9d95eeb1cec68a5"
    );
}

#[test]
fn digest_algorithms_are_found_by_name() {
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
struct DigestPair {
    server: DigestServer,
    entropy: Entropy,
    now: Time,
}

impl DigestPair {
    fn new(config: impl FnOnce(&mut ServerConfig)) -> DigestPair {
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
        let server = DigestServer::new(settings, NonceKey([9; 32]), &mut entropy);
        DigestPair {
            server,
            entropy,
            now: Time::from_secs(5),
        }
    }

    /// The challenge that the client chooses from a 401.
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
fn every_digest_algorithm_and_qop_works_in_both_roles() {
    for token in [
        "MD5",
        "MD5-sess",
        "SHA-256",
        "SHA-256-sess",
        "SHA-512-256",
        "SHA-512-256-sess",
    ] {
        let algorithm = Algorithm::from_token(token.as_bytes()).unwrap();
        let mut pair = DigestPair::new(|config| {
            config.algorithms = vec![algorithm];
            config.auth_int = true;
            config.without_qop = true;
        });
        let secret = password();
        for qop in [Qop::Auth, Qop::AuthInt, Qop::None] {
            let mut challenge = pair.challenge(false, &secret);
            assert_eq!((challenge.algorithm, challenge.qop), (algorithm, Qop::Auth));
            challenge.qop = qop;
            let mut session =
                ClientSession::new(challenge, b"bob", &secret, &mut pair.entropy).unwrap();
            let first = credentials(&mut session);
            assert_eq!(pair.check(&first, Some(&secret)), Ok(()), "{token} {qop:?}");
            assert_eq!(
                pair.check(&first, Some(&secret)),
                Err(Refusal::Stale),
                "replay"
            );
            let second = credentials(&mut session);
            let again = if qop == Qop::None {
                Err(Refusal::Stale)
            } else {
                Ok(())
            };
            assert_eq!(pair.check(&second, Some(&secret)), again, "{token} {qop:?}");
            let third = credentials(&mut session);
            assert_eq!(
                pair.check_as(&third, Some(&secret), b"INVITE", BODY),
                Err(Refusal::Wrong),
                "another method"
            );
            let other_body = pair.check_as(&third, Some(&secret), b"REGISTER", b"other");
            assert_eq!(
                other_body == Err(Refusal::Wrong),
                qop == Qop::AuthInt,
                "auth-int covers the body"
            );
        }
    }
}

#[test]
fn wrong_unknown_and_stored_digest_secrets() {
    let mut pair = DigestPair::new(|_| {});
    let mut session = pair.session(&password());
    let sent = credentials(&mut session);
    assert_eq!(
        pair.check(&sent, Some(&Secret::Password(b"wrong".to_vec()))),
        Err(Refusal::Wrong)
    );
    assert_eq!(pair.check(&sent, None), Err(Refusal::Wrong));
    // An unknown user cannot log in with the placeholder password either.
    let guess = Secret::Password(b"no such user".to_vec());
    let mut guessed = pair.session(&guess);
    assert_eq!(
        pair.check(&credentials(&mut guessed), None),
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
        pair.check(&sent, Some(&stored)),
        Err(Refusal::Wrong),
        "no SHA-256 stored"
    );
    let mut session = pair.session(&stored);
    assert_eq!(
        session.challenge().algorithm,
        Algorithm::MD5,
        "the strongest stored hash"
    );
    assert_eq!(
        pair.check(&credentials(&mut session), Some(&stored)),
        Ok(())
    );
    assert!(!format!("{session:?} {stored:?} {:?}", password()).contains("s3cr"));
    assert_eq!(
        pair.server.recorded_nonces(),
        1,
        "only nonces of correct responses are recorded"
    );
}

#[test]
fn expired_and_foreign_nonces_are_stale() {
    let mut pair = DigestPair::new(|_| {});
    let secret = password();
    let mut session = pair.session(&secret);
    pair.now = Time::from_secs(66);
    assert_eq!(
        pair.check(&credentials(&mut session), Some(&secret)),
        Err(Refusal::Stale)
    );
    let fresh = pair.challenge(true, &secret);
    assert!(fresh.stale && session.may_retry(&fresh));
    let wrong = pair.challenge(false, &secret);
    assert!(!session.may_retry(&wrong));
    // The nonce was accepted before: the password is not wrong.
    credentials(&mut session);
    assert!(session.may_retry(&wrong));
    // A nonce of another server, with the correct response.
    let mut foreign = fresh.clone();
    assert_eq!(foreign.nonce.len(), 32);
    foreign.nonce[20] ^= 1;
    let mut session = ClientSession::new(foreign, b"bob", &secret, &mut pair.entropy).unwrap();
    assert_eq!(
        pair.check(&credentials(&mut session), Some(&secret)),
        Err(Refusal::Stale)
    );
    let mut session = ClientSession::new(fresh, b"bob", &secret, &mut pair.entropy).unwrap();
    assert_eq!(
        pair.check(&credentials(&mut session), Some(&secret)),
        Ok(())
    );
}

#[test]
fn nonce_counts_may_be_reordered_but_not_reused() {
    let mut pair = DigestPair::new(|_| {});
    let secret = password();
    let mut session = pair.session(&secret);
    let sent: Vec<_> = (0..200).map(|_| credentials(&mut session)).collect();
    for index in [0, 5, 3, 4, 1, 150, 149, 90] {
        assert_eq!(
            pair.check(&sent[index], Some(&secret)),
            Ok(()),
            "count {index}"
        );
        assert_eq!(
            pair.check(&sent[index], Some(&secret)),
            Err(Refusal::Stale),
            "count {index} again"
        );
    }
    assert_eq!(
        pair.check(&sent[2], Some(&secret)),
        Err(Refusal::Stale),
        "too far behind"
    );
    assert_eq!(
        pair.check(&sent[80], Some(&secret)),
        Err(Refusal::Stale),
        "just too far behind"
    );
}

#[test]
fn full_nonce_table_evicts_without_allowing_replays() {
    let mut pair = DigestPair::new(|config| config.nonces = 10);
    let secret = password();
    let mut sent = Vec::new();
    for second in 0..30 {
        pair.now = Time::from_secs(100 + second);
        let mut session = pair.session(&secret);
        sent.push(credentials(&mut session));
        assert_eq!(pair.check(sent.last().unwrap(), Some(&secret)), Ok(()));
        assert!(pair.server.recorded_nonces() <= 10);
    }
    for replay in &sent {
        assert_eq!(pair.check(replay, Some(&secret)), Err(Refusal::Stale));
    }
    // Expired nonces are removed.
    pair.now = Time::from_secs(1000);
    let mut session = pair.session(&secret);
    assert_eq!(
        pair.check(&credentials(&mut session), Some(&secret)),
        Ok(())
    );
    assert_eq!(pair.server.recorded_nonces(), 1);
}

#[test]
fn malformed_and_unoffered_credentials_are_rejected() {
    let mut pair = DigestPair::new(|_| {});
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
            pair.check(sent.as_bytes(), Some(&secret)),
            Err(refusal),
            "{rest}"
        );
    }
    assert_eq!(
        pair.check(b"Basic xyz", Some(&secret)),
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
    // Without qop and algorithm in the challenge, the response has none.
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
fn authentication_info_proves_the_server() {
    let mut pair = DigestPair::new(|_| {});
    let secret = password();
    let mut session = pair.session(&secret);
    let sent = credentials(&mut session);
    let mut out = Vec::new();
    let mut writer = Writer::request(&mut out, Method::Register, b"sip:h");
    writer.header(HeaderId::Authorization, &sent);
    writer.finish();
    let request = Message::parse(&out).unwrap();
    let presented = pair
        .server
        .presented(&request, HeaderId::Authorization)
        .unwrap();
    let mut info = b"Digest ".to_vec();
    pair.server
        .write_authentication_info(&presented, b"bob", &secret, b"", &mut info)
        .unwrap();
    let info = Credentials::parse(&info).unwrap();
    let sent = Credentials::parse(&sent).unwrap();
    let challenge = session.challenge();
    let expected = ResponseInput {
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
