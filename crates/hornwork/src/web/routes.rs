//! The routes of the API, each declared once: the router and the OpenAPI document are made from this table.

use super::api::{self, ConsoleState};
use super::problem::Problem;
use super::types::{
    AlarmsBody, AuditBody, BansBody, CallPageBody, CallQuery, CallsBody, DoneBody, DrainBody,
    DropsBody, HealthBody, LimitChange, LimitsBody, LiveCallsBody, LogLevelBody, LoginBody,
    MessagePageBody, NodesBody, Overview, OverviewQuery, PageQuery, RegistrationQuery,
    RegistrationsBody, ReportsBody, SessionBody, TrunkBody, TrunkChange, TrunksBody, TunnelsBody,
};
use super::{calls, guard, live, oidc_login, openapi, pages};
use axum::Router;
use axum::http::{Method, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, delete, get, post, put};
use config::ConsoleRole;
use config::ConsoleRole::{Admin, Operator, Viewer};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use std::sync::Arc;

pub(super) use super::guard::BASE;

/// Makes the schema of a type.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;
type Handler = fn() -> MethodRouter<Arc<ConsoleState>>;

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// Body of a successful response.
#[derive(Clone, Copy)]
pub(super) enum ResponseKind {
    /// JSON of this schema.
    Json(SchemaOf),
    /// This media type.
    Media(&'static str),
}

/// A route.
pub(super) struct RouteSpec {
    pub(super) method: &'static str,
    /// Path below [`BASE`].
    pub(super) path: &'static str,
    /// Lowest role; `None`: no login.
    pub(super) role: Option<ConsoleRole>,
    /// Whether successful requests are in the audit log; refused ones are in any case.
    pub(super) audited: bool,
    pub(super) summary: &'static str,
    pub(super) query: Option<SchemaOf>,
    pub(super) body: Option<SchemaOf>,
    pub(super) response: ResponseKind,
    handler: Handler,
}

const fn route(
    (method, path): (&'static str, &'static str),
    role: Option<ConsoleRole>,
    summary: &'static str,
    response: ResponseKind,
    handler: Handler,
) -> RouteSpec {
    RouteSpec {
        method,
        path,
        role,
        // Reading is not recorded, except exports.
        audited: !matches!(method.as_bytes(), b"GET"),
        summary,
        query: None,
        body: None,
        response,
        handler,
    }
}

impl RouteSpec {
    const fn query(mut self, query: SchemaOf) -> RouteSpec {
        self.query = Some(query);
        self
    }

    const fn body(mut self, body: SchemaOf) -> RouteSpec {
        self.body = Some(body);
        self
    }

    const fn audited(mut self) -> RouteSpec {
        self.audited = true;
        self
    }
}

use ResponseKind::{Json, Media};

/// All routes.
pub(super) static ROUTES: &[RouteSpec] = &[
    route(
        ("GET", "/session"),
        None,
        "Who the caller is, and whether a login is needed.",
        Json(schema::<SessionBody>),
        || get(api::show_session),
    ),
    route(
        ("POST", "/session"),
        None,
        "Log in: sets the cookie of a session.",
        Json(schema::<SessionBody>),
        || post(api::begin_session),
    )
    .body(schema::<LoginBody>),
    route(
        ("GET", "/session/oidc"),
        None,
        "Begin a login by OpenID Connect: leads to the provider.",
        Media("text/html"),
        || get(oidc_login::begin),
    ),
    route(
        ("GET", oidc_login::CALLBACK),
        None,
        "The provider leads back here: sets the cookie of a session.",
        Media("text/html"),
        || get(oidc_login::end),
    )
    .query(schema::<oidc_login::CallbackQuery>),
    route(
        ("DELETE", "/session"),
        Some(Viewer),
        "Log out.",
        Json(schema::<SessionBody>),
        || delete(api::end_session),
    ),
    route(
        ("GET", "/calls"),
        Some(Viewer),
        "Search calls and other exchanges of messages in the store, newest first.",
        Json(schema::<CallsBody>),
        || get(calls::search),
    )
    .query(schema::<CallQuery>),
    route(
        ("GET", "/calls/{id}"),
        Some(Viewer),
        "A call by its number in the store or the Call-ID of a leg, with messages, media, decisions and events.",
        Json(schema::<CallPageBody>),
        || get(calls::show),
    ),
    route(
        ("GET", "/calls/{id}/messages/{index}"),
        Some(Viewer),
        "A message in full, with the edits of the border; for viewers without body and credentials.",
        Json(schema::<MessagePageBody>),
        || get(calls::show_message),
    ),
    route(
        ("GET", "/calls/{id}/pcap"),
        Some(Operator),
        "The messages of a call as pcapng.",
        Media("application/octet-stream"),
        || get(calls::export_pcap),
    )
    .audited(),
    route(
        ("GET", "/calls/{id}/text"),
        Some(Operator),
        "The ladder of a call and its messages in full, as text.",
        Media("text/plain"),
        || get(calls::export_text),
    )
    .audited(),
    route(
        ("GET", "/live/calls"),
        Some(Viewer),
        "Calls in progress, by number.",
        Json(schema::<LiveCallsBody>),
        || get(live::list_calls),
    )
    .query(schema::<PageQuery>),
    route(
        ("DELETE", "/live/calls/{id}"),
        Some(Operator),
        "End a call by its number in the log or the Call-ID of a leg.",
        Json(schema::<DoneBody>),
        || delete(live::hang_up),
    ),
    route(
        ("GET", "/live/stream"),
        Some(Viewer),
        "Server-sent events: `overview` every 5 s, `call` and `alarm` when they change. Ends after 10 minutes: reconnect.",
        Media("text/event-stream"),
        || get(live::stream),
    ),
    route(
        ("GET", "/registrations"),
        Some(Viewer),
        "Registered contacts, by user.",
        Json(schema::<RegistrationsBody>),
        || get(live::list_registrations),
    )
    .query(schema::<RegistrationQuery>),
    route(
        ("DELETE", "/registrations/{aor}"),
        Some(Operator),
        "Remove all contacts of a user.",
        Json(schema::<DoneBody>),
        || delete(live::remove_registration),
    ),
    route(
        ("GET", "/trunks"),
        Some(Viewer),
        "Trunks and their states.",
        Json(schema::<TrunksBody>),
        || get(live::list_trunks),
    ),
    route(
        ("PUT", "/trunks/{name}"),
        Some(Operator),
        "Put a trunk into or out of service; calls in progress go on.",
        Json(schema::<TrunkBody>),
        || put(live::change_trunk),
    )
    .body(schema::<TrunkChange>),
    route(
        ("GET", "/nodes"),
        Some(Viewer),
        "Media nodes.",
        Json(schema::<NodesBody>),
        || get(live::list_nodes),
    ),
    route(
        ("GET", "/tunnels"),
        Some(Viewer),
        "Tunnels of the IPsec gateway.",
        Json(schema::<TunnelsBody>),
        || get(live::list_tunnels),
    ),
    route(
        ("GET", "/limits"),
        Some(Viewer),
        "Capacities.",
        Json(schema::<LimitsBody>),
        || get(live::show_limits),
    ),
    route(
        ("PUT", "/limits"),
        Some(Operator),
        "Change the limit of calls until the next reload or restart.",
        Json(schema::<LimitsBody>),
        || put(live::change_limits),
    )
    .body(schema::<LimitChange>),
    route(
        ("GET", "/bans"),
        Some(Viewer),
        "Sources and users whose SIP credentials are not checked, because of failures.",
        Json(schema::<BansBody>),
        || get(live::list_bans),
    ),
    route(
        ("DELETE", "/bans/{source}"),
        Some(Operator),
        "Check the credentials of a source (its address) or of a user (user:NAME) again.",
        Json(schema::<DoneBody>),
        || delete(live::remove_ban),
    ),
    route(
        ("GET", "/log-level"),
        Some(Viewer),
        "The level of the log.",
        Json(schema::<LogLevelBody>),
        || get(live::show_log_level),
    ),
    route(
        ("PUT", "/log-level"),
        Some(Admin),
        "Change the level of the log until the restart.",
        Json(schema::<LogLevelBody>),
        || put(live::change_log_level),
    )
    .body(schema::<LogLevelBody>),
    route(
        ("POST", "/reload"),
        Some(Admin),
        "Read the configuration again; a faulty one changes nothing.",
        Json(schema::<DoneBody>),
        || post(live::reload),
    ),
    route(
        ("POST", "/drain"),
        Some(Admin),
        "Refuse new calls, and end the program after the last call.",
        Json(schema::<DoneBody>),
        || post(live::drain),
    )
    .body(schema::<DrainBody>),
    route(
        ("GET", "/overview"),
        Some(Viewer),
        "Figures now and over the last hour.",
        Json(schema::<Overview>),
        || get(live::overview),
    )
    .query(schema::<OverviewQuery>),
    route(
        ("GET", "/drops"),
        Some(Viewer),
        "Discarded input by reason.",
        Json(schema::<DropsBody>),
        || get(live::drops),
    ),
    route(
        ("GET", "/alarms"),
        Some(Viewer),
        "Active alarms, then cleared ones.",
        Json(schema::<AlarmsBody>),
        || get(live::list_alarms),
    ),
    route(
        ("POST", "/alarms/{id}/acknowledge"),
        Some(Operator),
        "Acknowledge an active alarm.",
        Json(schema::<DoneBody>),
        || post(live::acknowledge),
    ),
    route(
        ("GET", "/reports"),
        Some(Viewer),
        "Reports of the test lab.",
        Json(schema::<ReportsBody>),
        || get(api::list_reports),
    ),
    route(
        ("GET", "/reports/{name}/"),
        Some(Viewer),
        "The page of a report.",
        Media("text/html"),
        || get(api::show_report),
    ),
    route(
        ("GET", "/audit"),
        Some(Admin),
        "The audit log, newest first: the last 10000 entries.",
        Json(schema::<AuditBody>),
        || get(api::audit_log),
    )
    .query(schema::<PageQuery>),
    route(
        ("GET", "/health"),
        None,
        "Health of the border; 503 if it does not respond.",
        Json(schema::<HealthBody>),
        || get(api::health),
    ),
    route(
        ("GET", "/ready"),
        None,
        "As health; 503 also during a drain.",
        Json(schema::<HealthBody>),
        || get(api::ready),
    ),
    route(
        ("GET", "/openapi.json"),
        None,
        "This document.",
        Media("application/json"),
        || get(openapi::show),
    ),
];

/// The router of all paths.
pub(super) fn router(state: Arc<ConsoleState>) -> Router {
    let absent = || async { Problem::missing("resource") };
    let wrong_method = |method: Method| async move {
        Problem::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method",
            format!("{method} is not supported by this resource"),
        )
    };
    let mut api: Router<Arc<ConsoleState>> = Router::new();
    for spec in ROUTES {
        let access = guard::RouteAccess {
            role: spec.role,
            audited: spec.audited,
        };
        let permit = from_fn_with_state((state.clone(), access), guard::permit);
        api = api.route(spec.path, (spec.handler)().layer(permit));
    }
    let api = api
        .fallback(absent)
        .method_not_allowed_fallback(wrong_method);
    Router::new()
        .nest(BASE, api)
        .fallback(pages::show)
        .layer(from_fn_with_state(state.clone(), guard::enter))
        .with_state(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guard_lets_providers_lead_back_to_the_callback_only() {
        let callback = format!("{BASE}{}", oidc_login::CALLBACK);
        assert_eq!(guard::OIDC_CALLBACK, callback);
    }

    #[test]
    fn routes_are_declared_once_and_changes_need_a_role() {
        let mut all: Vec<(&str, &str)> = ROUTES.iter().map(|r| (r.path, r.method)).collect();
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count);
        for spec in ROUTES {
            assert!(spec.summary.ends_with('.'), "{}", spec.path);
            let is_login = (spec.method, spec.path) == ("POST", "/session");
            if spec.method != "GET" && !is_login {
                assert!(spec.role.is_some() && spec.audited, "{}", spec.path);
            }
            let open = [
                "/session",
                "/session/oidc",
                oidc_login::CALLBACK,
                "/health",
                "/ready",
                "/openapi.json",
            ];
            let is_open = open.contains(&spec.path);
            assert_eq!(
                spec.role.is_none(),
                is_open && (is_login || spec.method == "GET")
            );
        }
    }
}
