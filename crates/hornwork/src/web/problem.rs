//! Error responses: status, text and a word for programs.

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;

use crate::operators::CommandError;
use console::StoreError;

/// Reason for an error response.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    status: StatusCode,
    code: &'static str,
    why: String,
    retry_after_s: u64,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, why: impl Into<String>) -> Problem {
        Problem {
            status,
            code,
            why: why.into(),
            retry_after_s: 1,
        }
    }

    /// A malformed or impossible value.
    pub(super) fn bad(why: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "bad_request", why)
    }

    /// An object that does not exist.
    pub(super) fn missing(what: &str) -> Problem {
        Problem::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("no such {what}"),
        )
    }

    /// A part of the program that does not answer now.
    pub(super) fn busy(why: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", why)
    }

    /// The role does not permit it.
    pub(super) fn forbidden(why: impl Into<String>) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, "role", why)
    }

    /// Too many attempts; the next one is possible after this number of seconds.
    pub(super) fn later(why: &str, seconds: u64) -> Problem {
        Problem {
            retry_after_s: seconds.max(1),
            ..Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many", why)
        }
    }

    /// Whether a token was wrong, as opposed to a login that is missing.
    pub(super) fn is_token(&self) -> bool {
        self.code == "token"
    }

    /// Whether a token was refused: a wrong one, or any after too many wrong ones.
    pub(super) fn is_of_token(&self) -> bool {
        self.is_token() || self.status == StatusCode::TOO_MANY_REQUESTS
    }

    /// Whether it passes without a remedy.
    pub(super) fn is_busy(&self) -> bool {
        self.code == "busy"
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// The reason, for people.
    pub(super) fn why(&self) -> &str {
        &self.why
    }
}

impl From<&'static str> for Problem {
    fn from(why: &'static str) -> Problem {
        Problem::busy(why)
    }
}

impl From<CommandError> for Problem {
    fn from(error: CommandError) -> Problem {
        match error {
            CommandError::Busy(why) => Problem::busy(why),
            CommandError::BadValue(why) => Problem::bad(why),
            CommandError::Failed(why) => Problem::new(StatusCode::CONFLICT, "failed", why),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        let why = format!("the store cannot be read: {error}");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store", why)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({ "error": self.why, "code": self.code });
        let mut response = respond(self.status, &body);
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, self.retry_after_s.into());
            }
            _ => {}
        }
        response
    }
}

/// A JSON response that no cache keeps.
pub(super) fn respond(status: StatusCode, value: &impl Serialize) -> Response {
    let (status, text) = match serde_json::to_vec(value) {
        Ok(text) => (status, text),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, b"{}".to_vec()),
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A successful JSON response.
pub(super) fn ok(value: &impl Serialize) -> Answer {
    Ok(respond(StatusCode::OK, value))
}

/// Values that a command accepted, for the audit log: `name=value`. Never a secret.
#[derive(Clone, Debug)]
pub(super) struct AcceptedValues(pub(super) String);

/// A successful JSON response to a command with these values.
pub(super) fn accepted(values: String, value: &impl Serialize) -> Answer {
    let mut response = respond(StatusCode::OK, value);
    response.extensions_mut().insert(AcceptedValues(values));
    Ok(response)
}

/// Result of a handler.
pub(super) type Answer = Result<Response, Problem>;
