//! Login at the console by OpenID Connect, at a small provider that signs with openssl and checks PKCE.

use crate::common::{free_port, installed, scratch};
use crate::web::Rig;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

const CLIENT: &str = "border console";
const SECRET: &str = "secret of the client";

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn openssl(folder: &Path, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new("openssl")
        .current_dir(folder)
        .args(arguments)
        .output()
        .expect("openssl");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    output.stdout
}

/// A key of the provider, made by openssl.
fn make_key(folder: &Path, name: &str, kind: &str) {
    let file = format!("{name}.pem");
    let (algorithm, option) = match kind {
        "RS256" => ("RSA", "rsa_keygen_bits:2048"),
        _ => ("EC", "ec_paramgen_curve:P-256"),
    };
    openssl(
        folder,
        &[
            "genpkey",
            "-algorithm",
            algorithm,
            "-pkeyopt",
            option,
            "-out",
            &file,
        ],
    );
}

/// The public key as JWK.
fn public_key(folder: &Path, name: &str, kind: &str) -> Value {
    let file = format!("{name}.pem");
    if kind == "RS256" {
        let text = openssl(folder, &["rsa", "-in", &file, "-noout", "-modulus"]);
        let text = String::from_utf8(text).expect("text");
        let hex = text.trim().strip_prefix("Modulus=").expect("a modulus");
        let pairs = (0..hex.len()).step_by(2);
        let modulus: Vec<u8> = pairs
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"))
            .collect();
        return json!({ "kty": "RSA", "kid": name, "use": "sig", "n": encoded(modulus), "e": "AQAB" });
    }
    let der = openssl(
        folder,
        &["pkey", "-in", &file, "-pubout", "-outform", "DER"],
    );
    // The structure ends with the uncompressed point.
    let (x, y) = der[der.len() - 64..].split_at(32);
    json!({ "kty": "EC", "crv": "P-256", "kid": name, "x": encoded(x), "y": encoded(y) })
}

/// The 32 octets of an INTEGER in DER, and the bytes behind it.
fn integer(der: &[u8]) -> (Vec<u8>, &[u8]) {
    assert_eq!(der[0], 2);
    let (value, rest) = der[2..].split_at(der[1].into());
    let value: Vec<u8> = value
        .iter()
        .copied()
        .skip_while(|byte| *byte == 0)
        .collect();
    ([vec![0; 32 - value.len()], value].concat(), rest)
}

/// A token signed by openssl.
fn signed(folder: &Path, key: &str, header: &Value, claims: &Value) -> String {
    let text = format!(
        "{}.{}",
        encoded(header.to_string()),
        encoded(claims.to_string())
    );
    std::fs::write(folder.join("signed"), &text).expect("file");
    let file = format!("{key}.pem");
    let mut signature = openssl(folder, &["dgst", "-sha256", "-sign", &file, "signed"]);
    if key == "ec" {
        let (r, rest) = integer(&signature[2..]);
        let (s, _) = integer(rest);
        signature = [r, s].concat();
    }
    format!("{text}.{}", encoded(signature))
}

#[derive(Default)]
struct ProviderState {
    keys: Vec<Value>,
    /// The next ID token.
    token: String,
    /// PKCE challenge of the login.
    challenge: String,
    redirect: String,
    /// Whether it does not know the secret of the console.
    refuses_console: bool,
}

/// A provider of OpenID Connect.
struct Provider {
    issuer: String,
    state: Arc<Mutex<ProviderState>>,
}

fn decoded(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let pair = [bytes.next().expect("hex"), bytes.next().expect("hex")];
                u8::from_str_radix(std::str::from_utf8(&pair).expect("hex"), 16).expect("hex")
            }
            byte => byte,
        });
    }
    String::from_utf8(out).expect("UTF-8")
}

fn field(form: &str, name: &str) -> String {
    let pairs = form.split('&').filter_map(|pair| pair.split_once('='));
    let mut values = pairs.filter(|(own, _)| *own == name);
    decoded(
        values
            .next()
            .unwrap_or_else(|| panic!("no {name} in {form}"))
            .1,
    )
}

impl Provider {
    fn start(port: u16) -> Provider {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("provider");
        let provider = Provider {
            issuer: format!("http://127.0.0.1:{port}/realm"),
            state: Arc::default(),
        };
        let (state, issuer) = (provider.state.clone(), provider.issuer.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let mut text = String::new();
                let mut bytes = [0; 8_192];
                let complete = |text: &str| {
                    let (head, body) = text.split_once("\r\n\r\n")?;
                    let length = head.lines().find_map(|line| {
                        line.to_ascii_lowercase()
                            .strip_prefix("content-length: ")?
                            .parse()
                            .ok()
                    });
                    (body.len() >= length.unwrap_or(0_usize))
                        .then(|| (head.to_owned(), body.to_owned()))
                };
                let (head, body) = loop {
                    let length = stream.read(&mut bytes).expect("a request");
                    text.push_str(&String::from_utf8_lossy(&bytes[..length]));
                    if let Some(request) = complete(&text) {
                        break request;
                    }
                };
                let state = state.lock().unwrap();
                let (status, answer) = match head.split(' ').nth(1).expect("a path") {
                    "/realm/.well-known/openid-configuration" => (
                        200,
                        json!({
                            "issuer": issuer,
                            "authorization_endpoint": format!("{issuer}/authorize?realm=1"),
                            "token_endpoint": format!("{issuer}/token"),
                            "jwks_uri": format!("{issuer}/keys"),
                        }),
                    ),
                    "/realm/keys" => (200, json!({ "keys": state.keys })),
                    "/realm/token" => {
                        // RFC 6749 section 2.3.1, RFC 7636 section 4.6.
                        let pair = "border%20console:secret%20of%20the%20client";
                        let basic = format!("authorization: basic {}", STANDARD.encode(pair))
                            .to_ascii_lowercase();
                        let verifier = field(&body, "code_verifier");
                        let good = head.to_ascii_lowercase().contains(&basic)
                            && encoded(Sha256::digest(verifier)) == state.challenge
                            && field(&body, "redirect_uri") == state.redirect
                            && field(&body, "grant_type") == "authorization_code"
                            && field(&body, "code") == "the code";
                        match good {
                            _ if state.refuses_console => {
                                (401, json!({ "error": "invalid_client" }))
                            }
                            true => (
                                200,
                                json!({ "id_token": state.token, "token_type": "Bearer", "access_token": "x" }),
                            ),
                            false => (400, json!({ "error": "invalid_grant" })),
                        }
                    }
                    other => panic!("{other}"),
                };
                let body = answer.to_string();
                let answer = format!(
                    "HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(answer.as_bytes()).expect("an answer");
            }
        });
        provider
    }
}

/// A login that has begun: its cookie, state and nonce.
struct Begun {
    cookie: String,
    state: String,
    nonce: String,
}

fn begin(rig: &Rig, provider: &Provider) -> Begun {
    let answer = rig.with("GET", "/api/v1/session/oidc", "", "");
    assert_eq!(answer.status, 302, "{answer:?}");
    // Heads are in lower case here; the texts of the login are read as they are.
    let head = answer.raw_head.clone();
    let line = |name: &str| {
        let found = head.lines().find_map(|line| {
            let (own, value) = line.split_once(": ")?;
            own.eq_ignore_ascii_case(name).then(|| value.to_owned())
        });
        found.unwrap_or_else(|| panic!("no {name} in {head}"))
    };
    let target = line("location");
    let query = target
        .strip_prefix(&format!("{}/authorize?realm=1&", provider.issuer))
        .unwrap_or_else(|| panic!("{target}"));
    assert_eq!(field(query, "response_type"), "code");
    assert_eq!(field(query, "client_id"), CLIENT);
    assert_eq!(field(query, "scope"), "openid profile");
    assert_eq!(field(query, "code_challenge_method"), "S256");
    let cookie = line("set-cookie");
    assert!(
        cookie.contains("; HttpOnly; SameSite=Lax; Max-Age=600"),
        "{cookie}"
    );
    let mut state = provider.state.lock().unwrap();
    state.challenge = field(query, "code_challenge");
    state.redirect = field(query, "redirect_uri");
    Begun {
        cookie: cookie.split(';').next().expect("a cookie").to_owned(),
        state: field(query, "state"),
        nonce: field(query, "nonce"),
    }
}

/// The browser returns from the provider: status, body and cookie of the session.
fn finish(rig: &Rig, cookie: &str, state: &str) -> (u16, String, Option<String>) {
    let path =
        format!("/api/v1/session/oidc/callback?code=the%20code&state={state}&session_state=x");
    let headers = format!("Cookie: {cookie}\r\nSec-Fetch-Site: cross-site\r\n");
    let answer = rig.with("GET", &path, &headers, "");
    let session = answer.raw_head.lines().find_map(|line| {
        let pair = line.strip_prefix("set-cookie: ")?.split(';').next()?;
        (!pair.contains("-login")).then(|| pair.to_owned())
    });
    (
        answer.status,
        String::from_utf8_lossy(&answer.body).into_owned(),
        session,
    )
}

#[test]
fn provider_grants_roles_and_forged_tokens_are_refused() {
    if !installed(&["openssl"]) {
        return;
    }
    let folder = scratch("web-oidc-provider");
    for (name, kind) in [("rsa", "RS256"), ("ec", "ES256"), ("stranger", "RS256")] {
        make_key(&folder, name, kind);
    }
    let secret = folder.join("secret");
    std::fs::write(&secret, SECRET).expect("secret");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&secret, mode).expect("mode");
    let provider = Provider::start(free_port());
    let keys = [("rsa", "RS256"), ("ec", "ES256")];
    let keys = keys
        .map(|(name, kind)| public_key(&folder, name, kind))
        .to_vec();
    provider.state.lock().unwrap().keys = keys;
    let console = format!(
        "[console.oidc]\nissuer = \"{}\"\nclient_id = \"{CLIENT}\"\nclient_secret_file = \"{}\"\nconsole_url = \"http://localhost:1/\"\nrole_claim = \"realm_access.roles\"\nrole = [{{ value = \"noc\", role = \"operator\" }}, {{ value = \"all\", role = \"viewer\" }}]\n",
        provider.issuer,
        secret.display(),
    );
    let rig = Rig::new("web-oidc", &console);
    // Without login there is no access any more, although there are no users.
    assert_eq!(rig.with("GET", "/api/v1/limits", "", "").status, 401);
    let open = rig.get("/session");
    assert_eq!(
        (&open["login"], &open["oidc"]),
        (&json!(true), &json!(true))
    );
    // Requests that any page can cause lock out no user, far beyond `login_failures`.
    for number in 0..10 {
        let headers = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Dest: image\r\n";
        let answer = rig.with("GET", "/api/v1/session/oidc/callback", headers, "");
        assert_eq!(answer.status, 401, "{number}");
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("time")
        .as_secs();
    let claims = |nonce: &str| {
        json!({
            "iss": provider.issuer, "sub": "17", "aud": CLIENT, "nonce": nonce, "iat": now, "exp": now + 300,
            "preferred_username": "ann", "realm_access": { "roles": ["other", "all", "noc"] },
        })
    };
    let header = |key: &str| {
        let algorithm = if key == "ec" { "ES256" } else { "RS256" };
        json!({ "alg": algorithm, "kid": key, "typ": "JWT" })
    };
    // One whole login; `token` makes the ID token from its nonce.
    let login = |token: &dyn Fn(&str) -> String| {
        let begun = begin(&rig, &provider);
        provider.state.lock().unwrap().token = token(&begun.nonce);
        finish(&rig, &begun.cookie, &begun.state)
    };
    // A wrong secret of the console is no failure of its users, far beyond `login_failures`.
    provider.state.lock().unwrap().refuses_console = true;
    for number in 0..10 {
        let (status, body, _) = login(&|_| String::new());
        assert!(
            status == 503 && body.contains("client_secret_file"),
            "{number}: {status} {body}"
        );
    }
    provider.state.lock().unwrap().refuses_console = false;
    for key in ["rsa", "ec"] {
        let (status, body, session) =
            login(&|nonce| signed(&folder, key, &header(key), &claims(nonce)));
        assert_eq!(status, 200, "{key}: {body}");
        let cookie = format!("Cookie: {}\r\n", session.expect("a session"));
        let session = rig.with("GET", "/api/v1/session", &cookie, "").json();
        assert_eq!(
            (&session["user"], &session["role"]),
            (&json!("oidc:ann"), &json!("operator"))
        );
        assert_eq!(rig.with("GET", "/api/v1/limits", &cookie, "").status, 200);
        assert_eq!(rig.with("GET", "/api/v1/audit", &cookie, "").status, 403);
        let change = rig.with("PUT", "/api/v1/limits", &cookie, "{\"calls\":9}");
        assert_eq!(change.status, 403, "no CSRF token");
    }
    // Claims of a token that is signed well.
    let altered = |pointer: &str, value: Value| {
        let (status, body, session) = login(&|nonce| {
            let mut claims = claims(nonce);
            match value.clone() {
                Value::Null => drop(
                    claims
                        .as_object_mut()
                        .expect("claims")
                        .remove(&pointer[1..]),
                ),
                value => *claims.pointer_mut(pointer).expect("a claim") = value,
            }
            signed(&folder, "rsa", &header("rsa"), &claims)
        });
        assert!(session.is_none());
        (status, body)
    };
    for (pointer, value, reason) in [
        ("/nonce", json!("another"), "another login"),
        ("/nonce", Value::Null, "another login"),
        ("/aud", json!("another client"), "another client"),
        ("/aud", json!([CLIENT, "another"]), "another client"),
        ("/aud", Value::Null, "another client"),
        ("/exp", json!(now - 120), "has expired"),
        ("/exp", Value::Null, "has expired"),
        ("/iat", json!(now + 3_600), "not valid yet"),
        ("/iss", json!("http://127.0.0.1:1/realm"), "another issuer"),
        ("/sub", Value::Null, "no subject"),
    ] {
        let (status, body) = altered(pointer, value);
        assert!(
            status == 401 && body.contains(reason),
            "{pointer}: {status} {body}"
        );
    }
    assert_eq!(altered("/realm_access/roles", json!(["other"])).0, 403);
    assert_eq!(altered("/realm_access", Value::Null).0, 403);
    // Signatures.
    let unsigned = |nonce: &str| {
        format!(
            "{}.{}.",
            encoded("{\"alg\":\"none\"}"),
            encoded(claims(nonce).to_string())
        )
    };
    let by_public_key = |nonce: &str| {
        let text = format!(
            "{}.{}",
            encoded("{\"alg\":\"HS256\",\"kid\":\"rsa\"}"),
            encoded(claims(nonce).to_string())
        );
        format!("{text}.{}", encoded(Sha256::digest(&text)))
    };
    let by_stranger = |nonce: &str| signed(&folder, "stranger", &header("rsa"), &claims(nonce));
    let unknown_key =
        |nonce: &str| signed(&folder, "stranger", &header("stranger"), &claims(nonce));
    let other_kind = |nonce: &str| {
        signed(
            &folder,
            "rsa",
            &json!({ "alg": "ES256", "kid": "rsa" }),
            &claims(nonce),
        )
    };
    let critical = |nonce: &str| {
        let header = json!({ "alg": "RS256", "kid": "rsa", "crit": ["x"], "x": 1 });
        signed(&folder, "rsa", &header, &claims(nonce))
    };
    let changed = |nonce: &str| {
        let token = signed(&folder, "rsa", &header("rsa"), &claims(nonce));
        let mut claims = claims(nonce);
        claims["preferred_username"] = json!("root");
        let parts: Vec<&str> = token.split('.').collect();
        format!("{}.{}.{}", parts[0], encoded(claims.to_string()), parts[2])
    };
    type TokenOf<'t> = &'t dyn Fn(&str) -> String;
    let forged: [(&str, TokenOf<'_>); 7] = [
        ("algorithm of the ID token", &unsigned),
        ("algorithm of the ID token", &by_public_key),
        ("no key of the provider", &by_stranger),
        ("no key of the provider", &unknown_key),
        ("no key of the provider", &other_kind),
        ("critical extensions", &critical),
        ("no key of the provider", &changed),
    ];
    for (reason, token) in forged {
        let (status, body, session) = login(token);
        assert!(status == 401 && body.contains(reason), "{status} {body}");
        assert!(session.is_none());
    }
    // State, cookie and PKCE.
    let (one, other) = (begin(&rig, &provider), begin(&rig, &provider));
    provider.state.lock().unwrap().token =
        signed(&folder, "rsa", &header("rsa"), &claims(&other.nonce));
    for (cookie, state) in [
        ("", &*other.state),
        (&*one.cookie, &*other.state),
        (&*other.cookie, ""),
        (&*other.cookie, "x"),
    ] {
        let (status, body, _) = finish(&rig, cookie, state);
        assert!(
            status == 401 && body.contains("has not begun the login"),
            "{status} {body}"
        );
    }
    let cut = other.cookie.rfind('.').expect("three parts");
    let wrong_verifier = format!("{}.{}", &other.cookie[..cut], "x".repeat(43));
    let (status, body, _) = finish(&rig, &wrong_verifier, &other.state);
    assert!(
        status == 401 && body.contains("refuses the login"),
        "{status} {body}"
    );
    let image = format!("{}\r\nSec-Fetch-Dest: image", other.cookie);
    let (status, body, _) = finish(&rig, &image, &other.state);
    assert!(
        status == 401 && body.contains("has not begun the login"),
        "{status} {body}"
    );
    assert_eq!(finish(&rig, &other.cookie, &other.state).0, 200);
    // Other requests from foreign pages stay refused.
    let foreign = rig.with(
        "GET",
        "/api/v1/session",
        "Sec-Fetch-Site: cross-site\r\n",
        "",
    );
    assert_eq!(foreign.status, 403);
    let audit = std::fs::read_to_string(rig.folder.join("audit.ndjson")).expect("audit log");
    assert!(audit.contains("\"user\":\"oidc:ann\""), "{audit}");
    assert!(!rig.border.log().contains(SECRET));
}
