//! Handlers of the login by OpenID Connect. The state of a login is in a cookie of the browser that began it, so that
//! the console keeps nothing and a login cannot be begun for another browser.

use super::access::{Credentials, cookie, cookie_name, is_equal};
use super::api::{ConsoleState, Parameters, Shared};
use super::guard::source_of;
use super::oidc::{LoginSecrets, refused, unavailable};
use super::problem::{Answer, Problem};
use crate::http::ClientAddress;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use schemars::JsonSchema;
use serde::Deserialize;

/// Path of the callback below `/api/v1`.
pub(super) const CALLBACK: &str = "/session/oidc/callback";
/// Longest time from the beginning of a login to its end, seconds.
const LOGIN_S: u32 = 600;
/// Characters of each secret of a login.
const SECRET_CHARS: usize = 43;
/// Credentials in the limits of failed logins.
const ACCOUNT: Credentials<'static> = Credentials::SingleSignOn;
/// Tells for which element of a page a browser sends a request (Fetch Metadata).
const DESTINATION: &str = "sec-fetch-dest";
/// The page after a login. The browser does not send the new cookie with a redirect that began at the provider, so that
/// this page begins a request of its own.
const PAGE: &str = "<!doctype html><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"0;url=/\"><title>Logged in</title><a href=\"/\">Continue</a>";

/// Parameters of the callback; providers add others.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct CallbackQuery {
    /// Code for the ID token.
    code: Option<String>,
    /// State of the login.
    state: Option<String>,
    /// Reason for which the provider refuses the login.
    error: Option<String>,
    /// The provider (RFC 9207).
    iss: Option<String>,
}

/// The secrets in the cookie of a login.
fn secrets_of(text: &str) -> Option<LoginSecrets> {
    let mut parts = text.split('.').map(str::to_owned);
    let login = LoginSecrets {
        state: parts.next()?,
        nonce: parts.next()?,
        verifier: parts.next()?,
    };
    let all = [&login.state, &login.nonce, &login.verifier];
    let whole = all.iter().all(|part| part.len() == SECRET_CHARS);
    (whole && parts.next().is_none()).then_some(login)
}

/// Name of the cookie with the state of a login.
fn login_cookie(is_secure: bool, headers: &HeaderMap) -> String {
    cookie_name("hornwork-login", is_secure, headers)
}

/// The value of `Set-Cookie`; browsers send it when the provider leads back (`Lax`).
fn set_cookie((is_secure, headers): (bool, &HeaderMap), value: &str, age_s: u32) -> String {
    let secure = if is_secure { "; Secure" } else { "" };
    let name = login_cookie(is_secure, headers);
    format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={age_s}{secure}")
}

fn add_cookie(response: &mut Response, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        response.headers_mut().append(SET_COOKIE, value);
    }
}

fn absent() -> Problem {
    Problem::missing("login: [console.oidc] is not configured")
}

/// The time in seconds since 1970.
fn unix_s(state: &ConsoleState) -> i64 {
    let unix_s = state.operators().clock.unix_nanos_now() / 1_000_000_000;
    i64::try_from(unix_s).unwrap_or(i64::MAX)
}

/// Whether a page of a browser is wanted: JSON would leave its user without a way back.
fn wants_page(asked: &HeaderMap) -> bool {
    let accepted = asked
        .get(ACCEPT)
        .and_then(|accepted| accepted.to_str().ok());
    accepted.is_some_and(|accepted| accepted.contains("text/html"))
}

/// The response to a login that failed.
fn failed(problem: Problem, asked: &HeaderMap) -> Response {
    // The provider chooses a part of the text.
    let why = problem.why().replace('&', "&amp;").replace('<', "&lt;");
    let mut response = problem.into_response();
    if wants_page(asked) {
        let page = format!(
            "<!doctype html><meta charset=\"utf-8\"><title>Login failed</title><h1>Login failed</h1><p>{why}</p><a href=\"/\">Back to the console</a>"
        );
        *response.body_mut() = Body::from(page);
        let html = HeaderValue::from_static("text/html; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, html);
    }
    response
}

/// `GET /session/oidc`: leads the browser to the provider.
pub(super) async fn begin(state: Shared, asked: HeaderMap) -> Response {
    let begun = lead_to_provider(state, &asked).await;
    begun.unwrap_or_else(|problem| failed(problem, &asked))
}

async fn lead_to_provider(State(state): Shared, asked: &HeaderMap) -> Answer {
    let policy = state.policy();
    let client = policy.oidc.as_ref().ok_or_else(absent)?;
    let _permit = client.permit()?;
    let [own, nonce, verifier] = state.access().secrets();
    let cookie = format!("{own}.{nonce}.{verifier}");
    let login = LoginSecrets {
        state: own,
        nonce,
        verifier,
    };
    let target = client.authorization(&login, unix_s(&state)).await?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::FOUND;
    let headers = response.headers_mut();
    headers.insert(
        LOCATION,
        HeaderValue::from_str(&target).map_err(unavailable)?,
    );
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let place = (policy.is_secure, asked);
    add_cookie(&mut response, &set_cookie(place, &cookie, LOGIN_S));
    Ok(response)
}

/// `GET /session/oidc/callback`: the browser returns from the provider; begins a session.
pub(super) async fn end(
    state: Shared,
    Extension(client): Extension<ClientAddress>,
    Parameters(query): Parameters<CallbackQuery>,
    asked: HeaderMap,
) -> Response {
    let ended = begin_session(state, client, query, &asked).await;
    ended.unwrap_or_else(|problem| failed(problem, &asked))
}

async fn begin_session(
    State(state): Shared,
    client: ClientAddress,
    query: CallbackQuery,
    asked: &HeaderMap,
) -> Answer {
    let policy = state.policy();
    let oidc = policy.oidc.as_ref().ok_or_else(absent)?;
    let (source, now) = (source_of(client), state.operators().clock.now());
    let refuse_uncounted = |problem: Problem| {
        state.audit_refused(client, ("-", "login"), problem.status());
        Err(problem)
    };
    let refuse = |problem: Problem| {
        state.access().judged(false, source, ACCOUNT, now);
        refuse_uncounted(problem)
    };
    let not_begun = || refused("this browser has not begun the login, or too long ago");
    // Any page can have browsers send such a request, for an image for example: it tells nothing about its sender, and
    // is no failure.
    let is_page = asked
        .get(DESTINATION)
        .is_none_or(|destination| destination == "document");
    let login = cookie(asked, &login_cookie(policy.is_secure, asked)).and_then(secrets_of);
    let Some(login) = login.filter(|_| is_page) else {
        return refuse_uncounted(not_begun());
    };
    if let Some(seconds) = state.access().locked_out(&policy, source, ACCOUNT, now) {
        return Err(Problem::later("too many failed logins", seconds));
    }
    if !is_equal(&login.state, query.state.as_deref().unwrap_or_default()) {
        return refuse(not_begun());
    }
    if query.iss.is_some_and(|issuer| issuer != oidc.issuer()) {
        return refuse(refused("the response is of another provider"));
    }
    if let Some(error) = query.error {
        let error: String = error
            .chars()
            .filter(char::is_ascii_graphic)
            .take(64)
            .collect();
        return refuse(refused(format!("the provider refuses the login: {error}")));
    }
    let code = query.code.unwrap_or_default();
    let _permit = oidc.permit()?;
    let user = match oidc.redeem(&code, &login, unix_s(&state)).await {
        Ok(user) => user,
        // Only a wrong login is a failure of its source.
        Err(problem) if problem.status() == StatusCode::SERVICE_UNAVAILABLE => {
            return refuse_uncounted(problem);
        }
        Err(problem) => return refuse(problem),
    };
    let name = format!("oidc:{}", user.name);
    let mut access = state.access();
    access.judged(true, source, ACCOUNT, now);
    let begun = access
        .sessions
        .begin_granted((&name, user.role), &oidc.fingerprint(), now);
    drop(access);
    state.audit_login(client, (&name, user.role.name()));
    let mut response = Response::new(Body::from(PAGE));
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/html; charset=utf-8"),
    );
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    add_cookie(&mut response, &policy.set_cookie(&begun.0, asked));
    let place = (policy.is_secure, asked);
    add_cookie(&mut response, &set_cookie(place, "", 0));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_of_a_login_is_read_from_its_cookie_only_in_full() {
        let part = "x".repeat(43);
        assert!(secrets_of(&format!("{part}.{part}.{part}")).is_some());
        for wrong in [
            "",
            "..",
            &part,
            &format!("{part}.{part}.x"),
            &format!("{part}.{part}.{part}."),
        ] {
            assert!(secrets_of(wrong).is_none(), "{wrong}");
        }
    }
    #[test]
    fn a_failed_login_is_a_page_for_browsers() {
        let of = |accepted: &'static str| {
            let mut asked = HeaderMap::new();
            asked.insert(ACCEPT, HeaderValue::from_static(accepted));
            let response = failed(refused("<b>&\"no\""), &asked);
            let status = response.status().as_u16();
            let kind = response.headers()[CONTENT_TYPE]
                .to_str()
                .unwrap()
                .to_owned();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap();
            let body = axum::body::to_bytes(response.into_body(), 10_000);
            let body = runtime.block_on(body).unwrap();
            (status, kind, String::from_utf8(body.to_vec()).unwrap())
        };
        let (status, kind, page) = of("text/html,application/xhtml+xml,*/*;q=0.8");
        assert_eq!((status, kind.as_str()), (401, "text/html; charset=utf-8"));
        assert!(page.contains("<p>&lt;b>&amp;\"no\"</p>"), "{page}");
        assert!(page.contains("href=\"/\""), "{page}");
        let (status, kind, body) = of("*/*");
        assert_eq!((status, kind.as_str()), (401, "application/json"));
        assert!(body.contains("\"code\":\"oidc\""), "{body}");
    }
}
