//! The pages of the console, which are built into the program.

use super::guard::API;
use super::problem::{Answer, Problem};
use axum::body::{Body, Bytes};
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderName, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use console::{PageFile, media_type, page_file};

/// Shown instead of pages that were not built.
const NO_PAGES: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Hornwork</title><p>This program was built without the pages of the console. Its API is at <a href=\"/api/v1/openapi.json\">/api/v1/openapi.json</a>.";

/// A file of the console; routes of the pages themselves get the first page.
pub(super) async fn show(method: Method, uri: Uri, headers: HeaderMap) -> Answer {
    if !matches!(method, Method::GET | Method::HEAD) {
        let problem = Problem::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method",
            format!("{method} is not supported by this resource"),
        );
        let mut response = problem.into_response();
        let allowed = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, allowed);
        return Ok(response);
    }
    let path = uri.path();
    if path.starts_with(API) {
        return Err(Problem::missing("resource"));
    }
    let name = path.trim_start_matches('/');
    // Files have an extension; everything else is a route of the pages.
    let is_route = !name.rsplit('/').next().unwrap_or_default().contains('.');
    let found = match is_route {
        true => page_file("index.html"),
        false => page_file(name),
    };
    match found {
        Some(file) => Ok(file_response(file, &headers)),
        None if is_route => {
            let kind = [(CONTENT_TYPE, "text/html; charset=utf-8")];
            Ok((kind, NO_PAGES).into_response())
        }
        None => Err(Problem::missing("file")),
    }
}

fn file_response(file: &'static PageFile, headers: &HeaderMap) -> Response {
    // Names of assets contain a hash of their content.
    let caching = match file.path.starts_with("assets/") {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    let known = headers.get(IF_NONE_MATCH);
    let is_known = known.is_some_and(|tag| tag.as_bytes() == file.tag.as_bytes());
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => Response::new(Body::from(Bytes::from_static(file.bytes))),
    };
    let mut set = |name: HeaderName, value: &'static str| {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    };
    set(CACHE_CONTROL, caching);
    set(ETAG, file.tag);
    if !is_known {
        set(CONTENT_TYPE, media_type(file.path));
    }
    response
}
