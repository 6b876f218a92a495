//! Authorization of control requests: the token, and protection against requests that foreign web pages send from a
//! browser.

use crate::bearer_token::BearerToken;
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use config::{ControlSpec, FailureLimits};
use std::net::{IpAddr, Ipv6Addr};

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
pub(crate) type Denial = (StatusCode, &'static str);

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
        let host = own_host(headers, &self.hosts)?;
        same_origin(headers, host)?;
        let Some(token) = &self.token else {
            return Ok(());
        };
        let presented = bearer(headers);
        match presented {
            Some(presented) if token.matches(presented) => Ok(()),
            Some(_) => Err((StatusCode::UNAUTHORIZED, WRONG_TOKEN)),
            None => Err((StatusCode::UNAUTHORIZED, "no token in Authorization")),
        }
    }
}

/// The Host of a request, which must be a name of this server: one of `hosts`, `localhost` or an address.
///
/// # Errors
/// Status and reason of the refusal.
pub(crate) fn own_host<'h>(headers: &'h HeaderMap, hosts: &[String]) -> Result<&'h str, Denial> {
    let host = one(headers, &HOST).and_then(|host| host.to_str().ok());
    let Some(host) = host else {
        return Err((
            StatusCode::BAD_REQUEST,
            "exactly one Host header is required",
        ));
    };
    match is_own_name(host, hosts) {
        true => Ok(host),
        false => Err((
            StatusCode::FORBIDDEN,
            "Host is not a name of this server (`hosts` in the configuration)",
        )),
    }
}

/// Whether a request comes from no page of another origin.
///
/// # Errors
/// Status and reason of the refusal.
pub(crate) fn same_origin(headers: &HeaderMap, host: &str) -> Result<(), Denial> {
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
    Ok(())
}

/// The token of `Authorization: Bearer`.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let presented = one(headers, &AUTHORIZATION)?.as_bytes();
    match presented.split_at_checked(7) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case(b"bearer ") => Some(rest),
        _ => None,
    }
}

/// Whether `host`, a name with or without port, denotes this server.
fn is_own_name(host: &str, hosts: &[String]) -> bool {
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
        || hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
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
            token: token.then(|| BearerToken::of(TOKEN)),
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
}
