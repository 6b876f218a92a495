//! The client of a provider of OpenID Connect: authorization code with PKCE (RFC 6749, RFC 7636, OpenID Connect Core
//! 1.0 and Discovery 1.0).

mod token;

use super::problem::Problem;
use crate::http_client::{HttpCredentials, HttpLimits, exchange};
use axum::body::Body;
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, Request, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use config::{HttpUrl, OidcSpec};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use token::TokenError;
pub(super) use token::VerifiedUser;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Longest duration of a request to the provider.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest response of the provider, octets.
const MAX_RESPONSE: usize = 256 << 10;
/// Logins that speak with the provider at a time.
const MAX_LOGINS: usize = 4;
/// Time for which the settings of the provider are kept: clients without login have them read.
const SETTINGS_S: i64 = 300;
/// Characters of a reason of the provider that are shown.
const MAX_REASON: usize = 200;

/// The client of a provider.
#[derive(Debug)]
pub(super) struct OidcClient {
    spec: OidcSpec,
    files: HttpCredentials,
    requests: Semaphore,
    /// Settings of the provider, and when they were read, in seconds since 1970.
    settings: Mutex<Option<(i64, Provider)>>,
}

/// Random texts of a login: `state` ties the response of the provider to it, `nonce` the ID token, `verifier` the code.
pub(super) struct LoginSecrets {
    pub(super) state: String,
    pub(super) nonce: String,
    pub(super) verifier: String,
}

/// Settings of the provider.
#[derive(Clone, Debug)]
struct Provider {
    authorization: String,
    token: HttpUrl,
    keys: HttpUrl,
}

/// Text in a query or form.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            true => out.push(byte as char),
            // Writing to a String cannot fail.
            false => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

fn form(pairs: &[(&str, &str)]) -> String {
    let pairs = pairs
        .iter()
        .map(|(name, value)| format!("{name}={}", encoded(value)));
    pairs.collect::<Vec<String>>().join("&")
}

pub(super) fn unavailable(why: impl std::fmt::Display) -> Problem {
    Problem::busy(format!("single sign-on is not available: {why}"))
}

pub(super) fn refused(why: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "oidc", why)
}

/// The reason why the provider does not redeem a code (RFC 6749 section 5.2). Only `invalid_grant` is about the code;
/// the others are about this console, and no failure of the client that logs in.
fn code_problem(status: StatusCode, body: &[u8]) -> Problem {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |name: &str| -> String {
        let text = body.get(name).and_then(Value::as_str).unwrap_or_default();
        let shown = |one: &char| one.is_ascii_graphic() || *one == ' ';
        text.chars().filter(shown).take(MAX_REASON).collect()
    };
    match (status.is_client_error(), text("error")) {
        (true, error) if error == "invalid_grant" => refused("the provider refuses the login"),
        (_, error) => unavailable(format!(
            "the provider redeems no code: status {} {error} {}; check client_id and client_secret_file in [console.oidc]",
            status.as_u16(),
            text("error_description"),
        )),
    }
}

impl OidcClient {
    pub(super) fn new(spec: &OidcSpec, files: &HttpCredentials) -> OidcClient {
        OidcClient {
            spec: spec.clone(),
            files: files.clone(),
            requests: Semaphore::new(MAX_LOGINS),
            settings: Mutex::default(),
        }
    }

    /// Names the settings: sessions end when these change.
    pub(super) fn fingerprint(&self) -> String {
        let digest = Sha256::digest(format!("{:?}", self.spec));
        format!("oidc {}", STANDARD.encode(digest))
    }

    /// Identifier of the provider.
    pub(super) fn issuer(&self) -> &str {
        &self.spec.issuer
    }

    /// Permits a login that speaks with the provider.
    ///
    /// # Errors
    /// Too many do already.
    pub(super) fn permit(&self) -> Result<SemaphorePermit<'_>, Problem> {
        let permit = self.requests.try_acquire();
        permit.map_err(|_| Problem::busy("too many logins at a time"))
    }

    /// A request to the provider whose response is JSON. With `body` it redeems a code.
    async fn fetch(&self, url: &HttpUrl, body: Option<String>) -> Result<Value, Problem> {
        let redeems = body.is_some();
        let mut request = Request::new(Body::empty());
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(body) = body {
            let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
            headers.insert(CONTENT_TYPE, kind);
            if let Some(secret) = &self.files.secret {
                // RFC 6749 section 2.3.1: both are encoded as in forms.
                let pair = format!("{}:{}", encoded(&self.spec.client_id), encoded(secret));
                let value = format!("Basic {}", STANDARD.encode(pair));
                let mut value = HeaderValue::from_str(&value).map_err(unavailable)?;
                value.set_sensitive(true);
                headers.insert(AUTHORIZATION, value);
            }
            *request.method_mut() = Method::POST;
            *request.body_mut() = Body::from(body);
        }
        let limits = HttpLimits {
            time: REQUEST_TIMEOUT,
            body: MAX_RESPONSE,
        };
        let response = exchange(url, self.files.tls.as_ref(), request, limits).await;
        let response = response.map_err(unavailable)?;
        let body = response.body.unwrap_or_default();
        if !response.status.is_success() {
            return Err(match redeems {
                true => code_problem(response.status, &body),
                false => unavailable(format!(
                    "{}{} answers with status {}; check `issuer` in [console.oidc]",
                    url.origin(),
                    url.path,
                    response.status.as_u16()
                )),
            });
        }
        serde_json::from_slice(&body).map_err(|_| unavailable("the response is not JSON"))
    }

    /// An endpoint of the provider, which must be as protected as the provider itself.
    fn endpoint(&self, settings: &Value, name: &str) -> Result<(String, HttpUrl), Problem> {
        let text = settings.get(name).and_then(Value::as_str);
        let text = text.ok_or_else(|| unavailable(format!("its settings have no {name}")))?;
        let url = HttpUrl::parse(text).map_err(unavailable)?;
        if !url.is_secure && self.spec.issuer.starts_with("https:") {
            return Err(unavailable(format!("{name} is without TLS")));
        }
        Ok((text.to_owned(), url))
    }

    fn settings(&self) -> MutexGuard<'_, Option<(i64, Provider)>> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The settings that were read a short time before `now`.
    fn known(&self, now: i64) -> Option<Provider> {
        let settings = self.settings();
        let recent = settings
            .as_ref()
            .filter(|(at, _)| (0..SETTINGS_S).contains(&now.saturating_sub(*at)));
        recent.map(|(_, provider)| provider.clone())
    }

    /// The settings of the provider (OpenID Connect Discovery 1.0), at `now` in seconds since 1970.
    async fn discover(&self, now: i64) -> Result<Provider, Problem> {
        if let Some(provider) = self.known(now) {
            return Ok(provider);
        }
        let issuer = self.spec.issuer.trim_end_matches('/');
        let url = HttpUrl::parse(&format!("{issuer}/.well-known/openid-configuration"));
        let settings = self.fetch(&url.map_err(unavailable)?, None).await?;
        if settings.get("issuer").and_then(Value::as_str) != Some(&self.spec.issuer) {
            return Err(unavailable("its settings are those of another issuer"));
        }
        let provider = Provider {
            authorization: self.endpoint(&settings, "authorization_endpoint")?.0,
            token: self.endpoint(&settings, "token_endpoint")?.1,
            keys: self.endpoint(&settings, "jwks_uri")?.1,
        };
        *self.settings() = Some((now, provider.clone()));
        Ok(provider)
    }

    /// The URL at the provider to which a login leads the browser, at `now` in seconds since 1970.
    ///
    /// # Errors
    /// The provider does not answer as it should.
    pub(super) async fn authorization(
        &self,
        login: &LoginSecrets,
        now: i64,
    ) -> Result<String, Problem> {
        let provider = self.discover(now).await?;
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&login.verifier));
        let query = form(&[
            ("response_type", "code"),
            ("client_id", &self.spec.client_id),
            ("redirect_uri", &self.spec.redirect),
            ("scope", &self.spec.scopes),
            ("state", &login.state),
            ("nonce", &login.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        let separator = match provider.authorization.contains('?') {
            true => '&',
            false => '?',
        };
        Ok(format!("{}{separator}{query}", provider.authorization))
    }

    /// The user of an authorization code, at `now` in seconds since 1970.
    ///
    /// # Errors
    /// The provider does not answer as it should or refuses the code, or the ID token is not accepted.
    pub(super) async fn redeem(
        &self,
        code: &str,
        login: &LoginSecrets,
        now: i64,
    ) -> Result<VerifiedUser, Problem> {
        let provider = self.discover(now).await?;
        let body = form(&[
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &self.spec.redirect),
            ("client_id", &self.spec.client_id),
            ("code_verifier", &login.verifier),
        ]);
        let tokens = self.fetch(&provider.token, Some(body)).await?;
        let token = tokens.get("id_token").and_then(Value::as_str);
        let token = token.ok_or_else(|| refused("the provider sent no ID token"))?;
        let keys = self.fetch(&provider.keys, None).await?;
        token::verify(token, &keys, &self.spec, (&login.nonce, now)).map_err(|error| match error {
            TokenError::Invalid(why) => refused(why),
            TokenError::NoRole => Problem::forbidden("no role is granted to this user"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_encoded() {
        let text = form(&[("a", "x y&z=ü/"), ("b", "~-._")]);
        assert_eq!(text, "a=x%20y%26z%3D%C3%BC%2F&b=~-._");
    }

    #[test]
    fn only_a_wrong_code_is_a_failure_of_the_client() {
        let of = |status: u16, body: &str| {
            let status = StatusCode::from_u16(status).unwrap();
            let problem = code_problem(status, body.as_bytes());
            (problem.status().as_u16(), format!("{problem:?}"))
        };
        assert_eq!(of(400, "{\"error\":\"invalid_grant\"}").0, 401);
        let secret =
            "{\"error\":\"invalid_client\",\"error_description\":\"Invalid\\u0007 secret\"}";
        let (status, why) = of(401, secret);
        assert_eq!(status, 503);
        assert!(
            why.contains("401 invalid_client Invalid secret") && why.contains("client_secret_file"),
            "{why}"
        );
        for (status, body) in [(404, "no such page"), (429, "{}"), (400, "[]"), (302, "")] {
            assert_eq!(of(status, body).0, 503, "{status}");
        }
    }
}
