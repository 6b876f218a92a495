//! Authorization of control requests: the token, and protection against requests that foreign web pages send from a
//! browser.

use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use config::{ControlSpec, FailureLimits};
use sha2::{Digest as _, Sha256};
use std::io::Read as _;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use subtle::ConstantTimeEq as _;

/// Permitted length of a token, characters.
const MIN_TOKEN_CHARS: usize = 16;
const MAX_TOKEN_CHARS: usize = 256;

/// The bearer token (RFC 6750), stored as a hash only.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BearerToken([u8; 32]);

impl std::fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BearerToken(..)")
    }
}

impl BearerToken {
    fn of(text: &str) -> Option<BearerToken> {
        let good = (MIN_TOKEN_CHARS..=MAX_TOKEN_CHARS).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte));
        good.then(|| BearerToken(Sha256::digest(text).into()))
    }

    /// Reads the token file.
    ///
    /// # Errors
    /// The problem, and the remedy.
    pub(crate) fn read(path: &Path) -> Result<BearerToken, (String, String)> {
        let name = path.display();
        let failed = |error: std::io::Error| {
            let remedy = format!("write a token: (umask 077; openssl rand -hex 32 > {name})");
            (format!("{name} cannot be read: {error}"), remedy)
        };
        let file = std::fs::File::open(path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        if about.mode() & 0o077 != 0 {
            return Err((
                format!("{name} is readable or writable by others than its owner"),
                format!("chmod 600 {name}"),
            ));
        }
        let mut text = String::new();
        let most = MAX_TOKEN_CHARS as u64 + 2;
        file.take(most).read_to_string(&mut text).map_err(failed)?;
        BearerToken::of(text.trim_end_matches(['\r', '\n'])).ok_or_else(|| {
            (
                format!("{name} does not consist of one line with {MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} letters, digits and - . _ ~ + / ="),
                format!("write a token: (umask 077; openssl rand -hex 32 > {name})"),
            )
        })
    }

    /// Compares in constant time.
    fn matches(&self, text: &[u8]) -> bool {
        let digest: [u8; 32] = Sha256::digest(text).into();
        digest.ct_eq(&self.0).into()
    }
}

/// Rules for authorizing requests.
#[derive(Clone, Debug)]
pub(crate) struct ControlPolicy {
    token: Option<BearerToken>,
    hosts: Vec<String>,
    failures: FailureLimits,
}

/// Refusal of a request with another token.
pub(super) const WRONG_TOKEN: &str = "wrong token";

/// Status and reason of a refused request.
pub(super) type Denial = (StatusCode, &'static str);

impl ControlPolicy {
    pub(crate) fn new(spec: &ControlSpec, token: Option<BearerToken>) -> ControlPolicy {
        ControlPolicy {
            token,
            hosts: spec.hosts.clone(),
            failures: spec.failures,
        }
    }

    /// Rate limits for wrong tokens.
    pub(super) fn failures(&self) -> FailureLimits {
        self.failures
    }

    /// Whether a request carries a token that has to be checked.
    pub(super) fn has_token(&self, headers: &HeaderMap) -> bool {
        self.token.is_some() && headers.contains_key(AUTHORIZATION)
    }

    /// Authorizes a request.
    ///
    /// A web page can send requests from the browser's machine. They are recognisable: with DNS rebinding the Host is
    /// the page's own name; otherwise browsers send its origin (`Origin`) or its relation to this site
    /// (`Sec-Fetch-Site`).
    ///
    /// # Errors
    /// Status and reason of the refusal.
    pub(super) fn authorize(&self, headers: &HeaderMap) -> Result<(), Denial> {
        let host = one(headers, &HOST).and_then(|host| host.to_str().ok());
        let Some(host) = host else {
            return Err((
                StatusCode::BAD_REQUEST,
                "exactly one Host header is required",
            ));
        };
        if !self.is_own_name(host) {
            return Err((
                StatusCode::FORBIDDEN,
                "Host is not a name of this server (`hosts` of [control])",
            ));
        }
        if headers.contains_key(ORIGIN) {
            let origin = one(headers, &ORIGIN).and_then(|origin| origin.to_str().ok());
            let own = origin
                .and_then(|origin| {
                    origin
                        .strip_prefix("http://")
                        .or(origin.strip_prefix("https://"))
                })
                .is_some_and(|origin| origin.eq_ignore_ascii_case(host));
            if !own {
                return Err((
                    StatusCode::FORBIDDEN,
                    "request from a page of another origin",
                ));
            }
        }
        let site = HeaderName::from_static("sec-fetch-site");
        let foreign = |site: &HeaderValue| site != "same-origin" && site != "none";
        if headers.get_all(site).iter().any(foreign) {
            return Err((StatusCode::FORBIDDEN, "request from a page of another site"));
        }
        let Some(token) = &self.token else {
            return Ok(());
        };
        let presented = one(headers, &AUTHORIZATION).map(HeaderValue::as_bytes);
        let presented = presented.and_then(|text| match text.split_at_checked(7) {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case(b"bearer ") => Some(rest),
            _ => None,
        });
        match presented {
            Some(presented) if token.matches(presented) => Ok(()),
            Some(_) => Err((StatusCode::UNAUTHORIZED, WRONG_TOKEN)),
            None => Err((StatusCode::UNAUTHORIZED, "no token in Authorization")),
        }
    }

    /// Whether `host`, a name with or without port, denotes this server.
    fn is_own_name(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => {
                let Some((address, port)) = rest.split_once(']') else {
                    return false;
                };
                let port = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
                return port && address.parse::<Ipv6Addr>().is_ok();
            }
            None => match host.split_once(':') {
                Some((name, port)) if is_port(port) => name,
                Some(_) => return false,
                None => host,
            },
        };
        // No page can have an address as its origin without being served from this address.
        name.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A header that occurs exactly once.
fn one<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    values.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn access(token: bool) -> ControlPolicy {
        ControlPolicy {
            token: token.then(|| BearerToken::of(TOKEN).unwrap()),
            hosts: vec!["sbc.example".to_owned()],
            failures: FailureLimits {
                source: 0,
                user: 0,
                delay: std::time::Duration::ZERO,
                longest: std::time::Duration::ZERO,
            },
        }
    }

    fn status(access: &ControlPolicy, headers: &[(&'static str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        match access.authorize(&map) {
            Ok(()) => 200,
            Err((status, _)) => status.as_u16(),
        }
    }

    #[test]
    fn requests_of_foreign_pages_are_refused() {
        let near = access(false);
        for host in [
            "127.0.0.1:8080",
            "127.0.0.1",
            "[::1]:8080",
            "[::1]",
            "localhost:8080",
            "LocalHost",
            "SBC.example:80",
            "192.0.2.1",
        ] {
            assert_eq!(status(&near, &[("host", host)]), 200, "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "sbc.example.evil",
            "127.0.0.1:x",
            "127.0.0.1:",
            "[::1",
            "[::1]x",
            "[x]:1",
            "",
        ] {
            assert_eq!(status(&near, &[("host", host)]), 403, "{host}");
        }
        assert_eq!(status(&near, &[]), 400);
        assert_eq!(
            status(&near, &[("host", "localhost"), ("host", "localhost")]),
            400
        );
        let from = |name: &'static str, value: &str| {
            status(&near, &[("host", "127.0.0.1:8080"), (name, value)])
        };
        assert_eq!(from("origin", "http://127.0.0.1:8080"), 200);
        for origin in [
            "http://127.0.0.1:9090",
            "http://127.0.0.1",
            "http://localhost:8080",
            "https://evil.example",
            "null",
            "",
            "file://",
        ] {
            assert_eq!(from("origin", origin), 403, "{origin}");
        }
        assert_eq!(from("sec-fetch-site", "same-origin"), 200);
        assert_eq!(from("sec-fetch-site", "none"), 200);
        assert_eq!(from("sec-fetch-site", "cross-site"), 403);
        assert_eq!(from("sec-fetch-site", "same-site"), 403);
    }

    #[test]
    fn only_the_token_authorizes() {
        let far = access(true);
        let with = |value: &str| status(&far, &[("host", "192.0.2.1"), ("authorization", value)]);
        assert_eq!(with(&format!("Bearer {TOKEN}")), 200);
        assert_eq!(with(&format!("bearer {TOKEN}")), 200);
        for wrong in [
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef ",
            "Bearer ",
            "Bearer",
            "Basic 0123456789abcdef",
            "",
        ] {
            assert_eq!(with(wrong), 401, "{wrong}");
        }
        assert_eq!(status(&far, &[("host", "192.0.2.1")]), 401);
        let good = format!("Bearer {TOKEN}");
        let twice = [
            ("host", "192.0.2.1"),
            ("authorization", good.as_str()),
            ("authorization", good.as_str()),
        ];
        assert_eq!(status(&far, &twice), 401);
    }

    #[test]
    fn token_file_must_be_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let path = std::env::temp_dir().join(format!("hornwork-token-{}", std::process::id()));
        let write = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            BearerToken::read(&path).map_err(|(message, _)| message)
        };
        assert_eq!(
            write("0123456789abcdef\n", 0o600),
            Ok(BearerToken::of(TOKEN).unwrap())
        );
        assert_eq!(
            write("0123456789abcdef", 0o400),
            Ok(BearerToken::of(TOKEN).unwrap())
        );
        for mode in [0o640, 0o604, 0o620, 0o610] {
            let error = write("0123456789abcdef", mode).unwrap_err();
            assert!(
                error.contains("by others than its owner"),
                "{mode:o}: {error}"
            );
        }
        let long = "x".repeat(257);
        for text in ["", "short", "0123456789abcde\n", "0123456789 abcdef", &long] {
            assert!(
                write(text, 0o600)
                    .unwrap_err()
                    .contains("does not consist of one line"),
                "{text}"
            );
        }
        std::fs::remove_file(&path).unwrap();
        assert!(
            BearerToken::read(&path)
                .unwrap_err()
                .0
                .contains("cannot be read")
        );
        assert_eq!(
            format!("{:?}", BearerToken::of(TOKEN).unwrap()),
            "BearerToken(..)"
        );
    }
}
