//! Conferences under the paths and keys of earlier releases, `/v1/rooms`: accepted for one release. The first request
//! to such a path logs a warning.

use super::api::{ApiState, CONFERENCES, Problem, SharedState, conference_routes};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The former path of the conferences.
const FORMER: &str = "/v1/rooms";

/// Former and current keys of the responses.
const FORMER_KEYS: [(&str, &str); 5] = [
    ("rooms", "conferences"),
    ("room", "conference"),
    ("seats", "participant_count"),
    ("waiting", "lobby_count"),
    ("waiting", "in_lobby"),
];

/// Whether the warning was logged.
#[derive(Debug, Default)]
pub(super) struct FormerPathWarning(AtomicBool);

impl FormerPathWarning {
    /// Logs the warning, once.
    fn log(&self) {
        if !self.0.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "control: {FORMER} is now {CONFERENCES}, with other keys (docs/renamed.md); the former path will be removed by the next release"
            );
        }
    }
}

/// The routes of the conferences at their former path.
pub(super) fn routes(shared: &Arc<ApiState>) -> Router<Arc<ApiState>> {
    let with_former_keys = from_fn_with_state(shared.clone(), answer_with_former_keys);
    conference_routes(FORMER).route_layer(with_former_keys)
}

async fn answer_with_former_keys(
    State(shared): SharedState,
    request: Request,
    next: Next,
) -> Response {
    shared.former_path_warning().log();
    let (mut parts, body) = next.run(request).await.into_parts();
    let unreadable =
        |reason: String| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, reason).into_response();
    parts.headers.remove(CONTENT_LENGTH);
    // A response of the border, bounded by the number of its calls.
    let body = match to_bytes(body, usize::MAX).await {
        Ok(body) => body,
        Err(error) => return unreadable(error.to_string()),
    };
    let value: Value = match serde_json::from_slice(&body) {
        Ok(value) => value,
        // A response without a body, as to HEAD.
        Err(_) if body.is_empty() => return Response::from_parts(parts, Body::empty()),
        Err(error) => return unreadable(error.to_string()),
    };
    Response::from_parts(parts, Body::from(format!("{}\n", former(value))))
}

/// The value with the former keys, in the same order.
fn former(value: Value) -> Value {
    match value {
        Value::Array(values) => values.into_iter().map(former).collect(),
        Value::Object(entries) => {
            let entries = entries
                .into_iter()
                .map(|(key, value)| (former_key(&key).to_owned(), former(value)));
            Value::Object(entries.collect())
        }
        other => other,
    }
}

fn former_key(key: &str) -> &str {
    let renamed = FORMER_KEYS.iter().find(|(_, current)| *current == key);
    renamed.map_or(key, |(former, _)| *former)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_have_the_former_keys() {
        let current = r#"{"conferences":[{"conference":"a","number":"800","participant_count":2,"lobby_count":1,"locked":false}]}"#;
        let expected =
            r#"{"rooms":[{"room":"a","number":"800","seats":2,"waiting":1,"locked":false}]}"#;
        let value = serde_json::from_str(current).unwrap();
        assert_eq!(former(value).to_string(), expected);
        let current = r#"{"conference":"a","participants":[{"id":7,"in_lobby":true}]}"#;
        let expected = r#"{"room":"a","participants":[{"id":7,"waiting":true}]}"#;
        let value = serde_json::from_str(current).unwrap();
        assert_eq!(former(value).to_string(), expected);
    }

    #[test]
    fn former_keys_are_on_the_page_of_renamed_names() {
        let page = include_str!("../../../../docs/renamed.md");
        for (former, current) in FORMER_KEYS {
            let row = format!("| `{former}` | `{current}` |");
            assert!(page.contains(&row), "{row}");
        }
        let row = format!("| `{FORMER}` | `{}` |", CONFERENCES);
        assert!(page.contains(&row), "{row}");
    }
}
