//! The OpenAPI document (version 3.1), made from the table of routes and the types of their bodies.

use super::problem::{Answer, ok};
use super::routes::{BASE, ROUTES, ResponseKind, RouteSpec};
use super::types::ErrorBody;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

static DOCUMENT: LazyLock<Value> = LazyLock::new(document);

/// `GET /openapi.json`.
pub(super) async fn show() -> Answer {
    ok(&*DOCUMENT)
}

fn generator() -> SchemaGenerator {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.into_generator()
}

/// The names in braces of a path.
fn path_parameters(path: &str) -> impl Iterator<Item = &str> {
    let parts = path.split('/');
    parts.filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// The schema of a parameter of a path.
fn path_schema(path: &str, name: &str) -> Value {
    match (path, name) {
        ("/alarms/{id}/acknowledge", _) | (_, "index") => {
            json!({ "type": "integer", "minimum": 0 })
        }
        (_, "source") => {
            json!({ "type": "string", "anyOf": [
                { "format": "ipv4" },
                { "format": "ipv6" },
                { "pattern": "^user:." },
            ] })
        }
        _ => json!({ "type": "string" }),
    }
}

/// Parameters of the query: the properties of its type.
fn query_parameters(schema: &Schema, definitions: &Map<String, Value>) -> Vec<Value> {
    let schema = schema.as_value();
    let name = schema.get("$ref").and_then(Value::as_str);
    let name = name.and_then(|text| text.rsplit('/').next());
    let schema = name
        .and_then(|name| definitions.get(name))
        .unwrap_or(schema);
    let properties = schema.get("properties").and_then(Value::as_object);
    let properties = properties.into_iter().flatten();
    properties
        .map(|(name, property)| {
            let mut property = property.clone();
            let description = property.get("description").cloned();
            if let Some(property) = property.as_object_mut() {
                property.remove("description");
                // A parameter is absent instead of null.
                if let Some(Value::Array(kinds)) = property.get_mut("type") {
                    kinds.retain(|kind| kind != "null");
                    if let [one] = kinds.as_slice() {
                        let one = one.clone();
                        property.insert("type".to_owned(), one);
                    }
                }
            }
            json!({
                "name": name,
                "in": "query",
                "required": false,
                "description": description,
                "schema": property,
            })
        })
        .collect()
}

/// Error responses of a route.
fn problems(spec: &RouteSpec) -> Map<String, Value> {
    let mut statuses = vec![
        (400, "A parameter, the body or Host is wrong."),
        (
            403,
            "The role, the CSRF token or the origin does not permit it.",
        ),
        (
            429,
            "Too many requests or wrong credentials; Retry-After tells when to try again.",
        ),
        (503, "The border or the store does not respond."),
    ];
    let is_login = spec.path.starts_with("/session");
    if spec.role.is_some() || is_login {
        statuses.push((401, "Login or token required, or wrong."));
    }
    let may_be_absent = ["/calls", "/session/oidc"];
    let may_be_absent = may_be_absent.iter().any(|path| spec.path.starts_with(path));
    if spec.path.contains('{') || may_be_absent {
        statuses.push((404, "There is no such object."));
    }
    if spec.path == "/reload" || spec.path == "/log-level" {
        statuses.push((409, "It was tried, and failed."));
    }
    if spec.body.is_some() {
        statuses.extend([
            (408, "The body was not received in time."),
            (413, "The body is too large."),
            (415, "The body is not application/json."),
        ]);
    }
    let reference = json!({ "$ref": "#/components/schemas/ErrorBody" });
    let content = json!({ "application/json": { "schema": reference } });
    let all = statuses.into_iter().map(|(status, description)| {
        let response = json!({ "description": description, "content": content });
        (status.to_string(), response)
    });
    all.collect()
}

fn operation(spec: &RouteSpec, generator: &mut SchemaGenerator) -> Value {
    let mut responses = problems(spec);
    let (media, schema) = match spec.response {
        ResponseKind::Json(schema) => ("application/json", schema(generator).to_value()),
        ResponseKind::Media("application/json") => {
            ("application/json", json!({ "type": "object" }))
        }
        ResponseKind::Media(media) => (media, json!({ "type": "string" })),
    };
    let content = json!({ media: { "schema": schema } });
    match spec.path {
        "/session/oidc" => responses.insert(
            "302".to_owned(),
            json!({ "description": "To the provider." }),
        ),
        _ => responses.insert(
            "200".to_owned(),
            json!({ "description": "Success.", "content": content }),
        ),
    };
    if ["/health", "/ready"].contains(&spec.path) {
        responses.insert(
            "503".to_owned(),
            json!({ "description": "Not healthy, or not ready.", "content": content }),
        );
    }
    responses.sort_keys();
    let mut parameters: Vec<Value> = path_parameters(spec.path)
        .map(|name| {
            let schema = path_schema(spec.path, name);
            json!({ "name": name, "in": "path", "required": true, "schema": schema })
        })
        .collect();
    if let Some(query) = spec.query {
        let schema = query(generator);
        parameters.extend(query_parameters(&schema, generator.definitions()));
    }
    let words = spec.path.replace(['{', '}'], "");
    let mut operation = json!({
        "operationId": format!("{}{}", spec.method.to_lowercase(), words.replace(['/', '.', '-'], "_")),
        "summary": spec.summary,
        "parameters": parameters,
        "responses": responses,
        "security": match spec.role {
            None => json!([]),
            Some(_) => json!([{ "token": [] }, { "session": [] }]),
        },
    });
    if let Some(role) = spec.role {
        operation["x-role"] = role.name().into();
    }
    if let Some(body) = spec.body {
        let schema = body(generator).to_value();
        operation["requestBody"] = json!({
            "required": true,
            "content": { "application/json": { "schema": schema } },
        });
    }
    operation
}

/// The document.
pub(super) fn document() -> Value {
    let mut generator = generator();
    let _ = generator.subschema_for::<ErrorBody>();
    let mut paths = Map::new();
    for spec in ROUTES {
        let item = paths
            .entry(format!("{BASE}{}", spec.path))
            .or_insert_with(|| json!({}));
        item[spec.method.to_lowercase()] = operation(spec, &mut generator);
    }
    let schemas = generator.take_definitions(true);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Hornwork console",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Calls, messages, figures, alarms and operator commands of a border. Requests that change something need the header X-CSRF-Token (GET /api/v1/session), unless they have a bearer token.",
            "license": { "name": "GPL-3.0-or-later", "identifier": "GPL-3.0-or-later" },
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "session": { "type": "apiKey", "in": "cookie", "name": "hornwork" },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every reference in a value.
    fn references<'v>(value: &'v Value, all: &mut Vec<&'v str>) {
        match value {
            Value::Object(object) => {
                for (key, value) in object {
                    match (key.as_str(), value) {
                        ("$ref", Value::String(target)) => all.push(target),
                        _ => references(value, all),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, all)),
            _ => {}
        }
    }

    /// Requests that the document permits must not be refused as malformed.
    #[test]
    fn the_document_has_the_bounds_of_parameters() {
        let document = document();
        let schema = |method: &str, path: &str, name: &str| {
            let operation = &document["paths"][&format!("{BASE}{path}")][method];
            let mut all = operation["parameters"].as_array().unwrap().iter();
            all.find(|one| one["name"] == name).unwrap()["schema"].clone()
        };
        for path in ["/calls", "/live/calls", "/registrations", "/audit"] {
            let limit = schema("get", path, "limit");
            assert_eq!(
                (&limit["minimum"], &limit["maximum"]),
                (&json!(1), &json!(1000))
            );
        }
        let seconds = schema("get", "/overview", "seconds");
        assert_eq!(
            (&seconds["minimum"], &seconds["maximum"]),
            (&json!(5), &json!(3600))
        );
        for name in ["number", "call_id", "node", "trunk", "words", "text"] {
            let text = schema("get", "/calls", name);
            assert_eq!(
                (&text["minLength"], &text["maxLength"]),
                (&json!(1), &json!(1024))
            );
        }
        for name in ["from", "to", "address"] {
            let formats = &schema("get", "/calls", name)["anyOf"];
            assert_eq!(formats.as_array().unwrap().len(), 2, "{name}");
        }
        assert_eq!(
            schema("get", "/calls", "kind")["enum"]
                .as_array()
                .unwrap()
                .len(),
            7
        );
        assert_eq!(
            schema("delete", "/bans/{source}", "source")["anyOf"][0]["format"],
            "ipv4"
        );
        assert_eq!(
            schema("post", "/alarms/{id}/acknowledge", "id")["type"],
            "integer"
        );
        let level = &document["components"]["schemas"]["LogLevelBody"]["properties"]["level"];
        assert_eq!(level["enum"].as_array().unwrap().len(), 5);
        let calls = &document["components"]["schemas"]["LimitChange"]["properties"]["calls"];
        assert_eq!(calls["maximum"], u32::MAX);
    }

    #[test]
    fn every_route_is_in_the_document() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        let methods: usize = paths
            .values()
            .map(|item| item.as_object().unwrap().len())
            .sum();
        assert_eq!(methods, ROUTES.len());
        for spec in ROUTES {
            let operation = &paths[&format!("{BASE}{}", spec.path)][spec.method.to_lowercase()];
            assert_eq!(operation["summary"], spec.summary, "{}", spec.path);
            assert_eq!(spec.body.is_some(), operation["requestBody"].is_object());
            // One request leads to another server instead of answering.
            let success = match spec.path {
                "/session/oidc" => &operation["responses"]["302"]["description"],
                _ => &operation["responses"]["200"]["content"],
            };
            assert!(!success.is_null(), "{}", spec.path);
            let parameters = operation["parameters"].as_array().unwrap();
            let in_path = parameters.iter().filter(|one| one["in"] == "path").count();
            assert_eq!(in_path, path_parameters(spec.path).count());
            assert_eq!(
                spec.query.is_some(),
                parameters.len() > in_path,
                "{}",
                spec.path
            );
        }
        let mut all = Vec::new();
        references(&document, &mut all);
        assert!(all.len() > ROUTES.len());
        for target in all {
            let pointer = target.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{target}");
        }
    }
}
