//! Who may command: the token, and what keeps web pages from commanding in the name of whoever looks at them.

use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use border::config::ControlSpec;
use border::registrar::FailureLimits;
use sha2::{Digest as _, Sha256};
use std::io::Read as _;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use subtle::ConstantTimeEq as _;

/// Characters of a token.
const SHORTEST: usize = 16;
const LONGEST: usize = 256;

/// The bearer token (RFC 6750), of which only a hash is kept.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token([u8; 32]);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    fn of(text: &str) -> Option<Token> {
        let good = (SHORTEST..=LONGEST).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte));
        good.then(|| Token(Sha256::digest(text).into()))
    }

    /// Reads the token's file.
    ///
    /// # Errors
    /// What is wrong with it, and the remedy.
    pub(crate) fn read(path: &Path) -> Result<Token, (String, String)> {
        let name = path.display();
        let failed = |error: std::io::Error| {
            let remedy = format!("write a token: (umask 077; openssl rand -hex 32 > {name})");
            (format!("{name} cannot be read: {error}"), remedy)
        };
        let file = std::fs::File::open(path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        if about.mode() & 0o077 != 0 {
            return Err((
                format!("others than the owner of {name} may read or write it"),
                format!("chmod 600 {name}"),
            ));
        }
        let mut text = String::new();
        let most = LONGEST as u64 + 2;
        file.take(most).read_to_string(&mut text).map_err(failed)?;
        Token::of(text.trim_end_matches(['\r', '\n'])).ok_or_else(|| {
            (
                format!("{name} has no line of {SHORTEST} to {LONGEST} letters, digits and - . _ ~ + / ="),
                format!("write a token: (umask 077; openssl rand -hex 32 > {name})"),
            )
        })
    }

    /// Whether this is it. It takes as long wherever the difference is.
    fn is(&self, text: &[u8]) -> bool {
        let digest: [u8; 32] = Sha256::digest(text).into();
        digest.ct_eq(&self.0).into()
    }
}

/// Who may command.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    token: Option<Token>,
    hosts: Vec<String>,
    failures: FailureLimits,
}

/// Why a request with another token is not let in.
pub(super) const WRONG_TOKEN: &str = "wrong token";

/// Why a request is not let in.
pub(super) type Denied = (StatusCode, &'static str);

impl Access {
    pub(crate) fn new(spec: &ControlSpec, token: Option<Token>) -> Access {
        Access {
            token,
            hosts: spec.hosts.clone(),
            failures: spec.failures,
        }
    }

    /// How wrong tokens are limited.
    pub(super) fn failures(&self) -> FailureLimits {
        self.failures
    }

    /// Whether a request brings a token that has to be judged.
    pub(super) fn judges(&self, headers: &HeaderMap) -> bool {
        self.token.is_some() && headers.contains_key(AUTHORIZATION)
    }

    /// Whether a request is let in.
    ///
    /// A page that somebody looks at can send requests from his machine. It gives itself away: its name for us is its own, where that
    /// was made to lead here (DNS rebinding); else browsers say which page it is (`Origin`), or whose (`Sec-Fetch-Site`).
    ///
    /// # Errors
    /// Why not.
    pub(super) fn admits(&self, headers: &HeaderMap) -> Result<(), Denied> {
        let host = one(headers, &HOST).and_then(|host| host.to_str().ok());
        let Some(host) = host else {
            return Err((StatusCode::BAD_REQUEST, "no Host, or several"));
        };
        if !self.is_us(host) {
            return Err((StatusCode::FORBIDDEN, "Host is no name of this server"));
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
                return Err((StatusCode::FORBIDDEN, "a page of another origin asks"));
            }
        }
        let site = HeaderName::from_static("sec-fetch-site");
        let foreign = |site: &HeaderValue| site != "same-origin" && site != "none";
        if headers.get_all(site).iter().any(foreign) {
            return Err((StatusCode::FORBIDDEN, "a page of another site asks"));
        }
        let Some(token) = &self.token else {
            return Ok(());
        };
        let brought = one(headers, &AUTHORIZATION).map(HeaderValue::as_bytes);
        let brought = brought.and_then(|text| match text.split_at_checked(7) {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case(b"bearer ") => Some(rest),
            _ => None,
        });
        match brought {
            Some(brought) if token.is(brought) => Ok(()),
            Some(_) => Err((StatusCode::UNAUTHORIZED, WRONG_TOKEN)),
            None => Err((StatusCode::UNAUTHORIZED, "no token")),
        }
    }

    /// Whether `host`, a name with a port or without, means us.
    fn is_us(&self, host: &str) -> bool {
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
        // No page can be under an address that leads elsewhere than where it comes from.
        name.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A header that is there once.
fn one<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    values.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn access(token: bool) -> Access {
        Access {
            token: token.then(|| Token::of(TOKEN).unwrap()),
            hosts: vec!["sbc.example".to_owned()],
            failures: FailureLimits {
                source: 0,
                user: 0,
                delay: std::time::Duration::ZERO,
                longest: std::time::Duration::ZERO,
            },
        }
    }

    fn status(access: &Access, headers: &[(&'static str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        match access.admits(&map) {
            Ok(()) => 200,
            Err((status, _)) => status.as_u16(),
        }
    }

    #[test]
    fn pages_of_others_are_not_let_in() {
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
    fn only_the_token_lets_in() {
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
    fn a_token_file_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let path = std::env::temp_dir().join(format!("hornwork-token-{}", std::process::id()));
        let write = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Token::read(&path).map_err(|(message, _)| message)
        };
        assert_eq!(
            write("0123456789abcdef\n", 0o600),
            Ok(Token::of(TOKEN).unwrap())
        );
        assert_eq!(
            write("0123456789abcdef", 0o400),
            Ok(Token::of(TOKEN).unwrap())
        );
        for mode in [0o640, 0o604, 0o620, 0o610] {
            let error = write("0123456789abcdef", mode).unwrap_err();
            assert!(error.contains("others than the owner"), "{mode:o}: {error}");
        }
        let long = "x".repeat(257);
        for text in ["", "short", "0123456789abcde\n", "0123456789 abcdef", &long] {
            assert!(
                write(text, 0o600).unwrap_err().contains("has no line"),
                "{text}"
            );
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Token::read(&path).unwrap_err().0.contains("cannot be read"));
        assert_eq!(format!("{:?}", Token::of(TOKEN).unwrap()), "Token(..)");
    }
}
