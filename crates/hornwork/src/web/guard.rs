//! Checks before any handler: names of the server, origins, rates, credentials, roles and CSRF tokens; the audit log;
//! and the security headers of responses.

use super::access::{Caller, ClientNames, Presented, is_equal};
use super::api::ConsoleState;
use super::problem::{AcceptedValues, Problem};
use crate::control::{own_host, same_origin};
use crate::http::ClientAddress;
use axum::extract::{Extension, Request, State};
use axum::http::header::{
    CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, STRICT_TRANSPORT_SECURITY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use config::ConsoleRole;
use engine::Time;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// Content of pages: scripts, styles and data of the console itself only, in no frame.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types svelte-trusted-html";
const CSRF: HeaderName = HeaderName::from_static("x-csrf-token");
/// Whole seconds since the last input of the user, as our pages report them.
const IDLE: HeaderName = HeaderName::from_static("x-idle-seconds");
/// Path of the stream of figures.
const STREAM: &str = "/api/v1/live/stream";
/// Path to which a provider of OpenID Connect leads back, from its own site.
pub(super) const OIDC_CALLBACK: &str = "/api/v1/session/oidc/callback";
/// Paths of the API begin with this.
pub(super) const API: &str = "/api/";
/// Paths of the routes are below this one.
pub(super) const BASE: &str = "/api/v1";

/// Access of a route.
#[derive(Clone, Copy)]
pub(super) struct RouteAccess {
    /// Lowest role; `None`: no login.
    pub(super) role: Option<ConsoleRole>,
    /// Whether successful requests are in the audit log; refused ones are in any case.
    pub(super) audited: bool,
}

/// The outcome of the check of credentials, for the route.
#[derive(Clone)]
pub(super) struct Identified(pub(super) Result<Caller, Problem>);

/// Address of the client.
pub(super) fn source_of(client: ClientAddress) -> IpAddr {
    match client {
        ClientAddress::Tcp(address) => address.ip(),
        ClientAddress::Local => Ipv4Addr::LOCALHOST.into(),
    }
}

/// Checks a request before it is routed, and adds the headers of its response.
pub(super) async fn enter(
    State(state): State<Arc<ConsoleState>>,
    Extension(client): Extension<ClientAddress>,
    mut request: Request,
    next: Next,
) -> Response {
    let policy = state.policy();
    let checked = check(&state, client, &mut request);
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    };
    set(CONTENT_SECURITY_POLICY, PAGE_POLICY);
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(X_FRAME_OPTIONS, "DENY");
    set(REFERRER_POLICY, "no-referrer");
    set(
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    );
    set(
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    );
    set(
        HeaderName::from_static("permissions-policy"),
        "camera=(), microphone=(), geolocation=()",
    );
    if policy.is_secure {
        set(STRICT_TRANSPORT_SECURITY, "max-age=31536000");
    }
    response
}

fn check(
    state: &ConsoleState,
    client: ClientAddress,
    request: &mut Request,
) -> Result<(), Problem> {
    let policy = state.policy();
    let headers = request.headers();
    let origin = |(status, why)| Problem::new(status, "origin", why);
    let host = own_host(headers, &policy.hosts).map_err(origin)?;
    let path = request.uri().path();
    let is_api = path.starts_with(API);
    // A link to a page may be on another site, and a provider leads back to the callback; other requests of the API
    // come from our pages or from programs.
    if is_api && path != OIDC_CALLBACK {
        same_origin(headers, host).map_err(origin)?;
    }
    let (source, now) = (source_of(client), state.operators().clock.now());
    let mut access = state.access();
    if !access.admit(source, now) {
        return Err(Problem::later("too many requests", 1));
    }
    if is_api {
        let certificate = request.extensions().get::<ClientNames>().cloned();
        let presented = Presented {
            headers,
            input: input_of(path, headers, now)?,
            certificate: certificate.unwrap_or_default(),
        };
        let identified = access.identify(&policy, &presented, source, now);
        drop(access);
        // A search for tokens must leave a trace, as that for passwords does.
        if let Err(problem) = &identified
            && problem.is_of_token()
        {
            let action = path.strip_prefix(BASE).unwrap_or(path);
            let action = format!("{} {action}", request.method());
            state.audit_refused(client, ("-", &action), problem.status());
        }
        request.extensions_mut().insert(Identified(identified));
    }
    Ok(())
}

/// The last input of the user of which a request tells. Pages refresh themselves, and say for how long their user has
/// done nothing; the stream, which a page opens by itself, tells of no input. A request of another program is its use.
///
/// # Errors
/// The header of the page is malformed.
fn input_of(path: &str, headers: &HeaderMap, now: Time) -> Result<Option<Time>, Problem> {
    let Some(idle) = headers.get(IDLE) else {
        return Ok((path != STREAM).then_some(now));
    };
    let seconds = idle.to_str().ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = seconds.ok_or_else(|| Problem::bad("X-Idle-Seconds: write whole seconds"))?;
    let nanos = seconds.saturating_mul(1_000_000_000);
    Ok(Some(Time(now.0.saturating_sub(nanos))))
}

/// Checks role and CSRF token of a request for a route; writes the audit log.
pub(super) async fn permit(
    State((state, route)): State<(Arc<ConsoleState>, RouteAccess)>,
    Extension(client): Extension<ClientAddress>,
    Extension(Identified(identified)): Extension<Identified>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(role) = route.role else {
        return next.run(request).await;
    };
    let caller = match identified {
        Ok(caller) => caller,
        Err(problem) => return problem.into_response(),
    };
    let action = format!("{} {}", request.method(), request.uri().path());
    let refused = if caller.role < role {
        let why = format!("the role {} is required", role.name());
        Some(Problem::forbidden(why))
    } else if is_forged(&caller, &request) {
        let why = "X-CSRF-Token is not that of the session (GET /api/v1/session)";
        let status = axum::http::StatusCode::FORBIDDEN;
        Some(Problem::new(status, "csrf", why))
    } else {
        None
    };
    if let Some(problem) = refused {
        state.audit(client, Some(&caller), (&action, ""), problem.status());
        return problem.into_response();
    }
    request.extensions_mut().insert(caller.clone());
    let response = next.run(request).await;
    let values = response.extensions().get::<AcceptedValues>();
    // Of requests that only read, those that tell values are audited: numbers searched by callers who must not see
    // them.
    if route.audited || values.is_some() {
        let values = values.map_or("", |AcceptedValues(values)| values);
        state.audit(client, Some(&caller), (&action, values), response.status());
    }
    response
}

/// Whether a request that changes something lacks the CSRF token of its session.
fn is_forged(caller: &Caller, request: &Request) -> bool {
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD);
    let Some(csrf) = caller.csrf.as_deref().filter(|_| !is_safe) else {
        return false;
    };
    let presented = request.headers().get(CSRF);
    let presented = presented.and_then(|value| value.to_str().ok());
    !presented.is_some_and(|presented| is_equal(presented, csrf))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_tell_of_inputs_and_the_stream_of_none() {
        let now = Time::from_secs(100);
        let input = |path: &str, idle: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.extend(idle.map(|idle| (IDLE, HeaderValue::from_static(idle))));
            input_of(path, &headers, now).map_err(|problem| problem.status().as_u16())
        };
        let alarms = "/api/v1/alarms";
        assert_eq!(input(alarms, None), Ok(Some(now)));
        assert_eq!(input(alarms, Some("40")), Ok(Some(Time::from_secs(60))));
        assert_eq!(
            input(alarms, Some("18446744073709551615")),
            Ok(Some(Time::ZERO))
        );
        assert_eq!(input(STREAM, None), Ok(None));
        for malformed in ["", "-1", "1.5", "soon"] {
            assert_eq!(input(alarms, Some(malformed)), Err(400), "{malformed:?}");
        }
    }
}
