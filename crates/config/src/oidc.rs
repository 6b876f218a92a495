//! `[console.oidc]`: login at the console by OpenID Connect.

use super::console::ConsoleRole;
use super::http_url::HttpUrl;
use super::sink::Sink;
use super::tls::{FilePath, Trust, trust};
use schemars::JsonSchema;
use serde::Deserialize;

/// Path of the console to which the provider sends the browser back.
const CALLBACK: &str = "/api/v1/session/oidc/callback";

/// Login by OpenID Connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcSpec {
    /// Identifier of the provider, exactly as in its tokens.
    pub issuer: String,
    /// Our identifier at the provider.
    pub client_id: String,
    /// File with the secret of the client; `None`: a public client.
    pub secret: Option<FilePath>,
    /// URL to which the provider sends the browser back.
    pub redirect: String,
    /// Authorities for https.
    pub ca: Trust,
    /// Scopes, separated by spaces.
    pub scopes: String,
    /// Claim with the name of the user.
    pub user_claim: String,
    /// Claim with the groups or roles of the user, by its path.
    pub role_claim: Vec<String>,
    /// Roles by value of that claim.
    pub roles: Vec<(String, ConsoleRole)>,
}

/// Login by OpenID Connect: authorization code with PKCE (RFC 7636); docs/console.md describes the set-up at the
/// provider. The role comes from a claim of the ID token.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawOidc {
    /// Identifier of the provider: an https URL, exactly as in `iss` of its tokens. Its settings are read from
    /// `ISSUER/.well-known/openid-configuration`. On loopback addresses http is possible.
    pub issuer: String,
    /// Our identifier at the provider.
    #[schemars(length(min = 1))]
    pub client_id: String,
    /// File with the secret of the client in one line; only its owner may have access. Without it the client is public.
    pub client_secret_file: Option<String>,
    /// URL of the console in browsers, such as `https://sbc.example.com`. The provider has to permit
    /// `URL/api/v1/session/oidc/callback` as redirect URI.
    pub console_url: String,
    /// Trusted certificate authorities of https: a PEM file, or `system`.
    #[serde(default = "system")]
    pub ca: String,
    /// Scopes; `openid` is added if it is missing.
    #[serde(default = "scopes")]
    pub scopes: Vec<String>,
    /// Claim with the name of the user, for the audit log. Without it the name is that of `sub`.
    #[serde(default = "user_claim")]
    pub user_claim: String,
    /// Claim of the ID token with a text or a list of texts, of which `role` names some: its name, or a path whose
    /// parts are separated by dots, such as `realm_access.roles`.
    #[serde(default = "role_claim")]
    pub role_claim: String,
    /// Roles by value of `role_claim`; of several the highest counts. A user without any is refused.
    pub role: Vec<RawOidcRole>,
}

/// A role by value of a claim.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawOidcRole {
    /// Value of the claim, such as the name of a group.
    #[schemars(length(min = 1))]
    pub value: String,
    /// Role of its users.
    pub role: ConsoleRole,
}

fn system() -> String {
    "system".to_owned()
}

fn scopes() -> Vec<String> {
    ["openid", "profile"].map(str::to_owned).to_vec()
}

fn user_claim() -> String {
    "preferred_username".to_owned()
}

fn role_claim() -> String {
    "groups".to_owned()
}

/// Whether a URL is https, or http on a loopback address, which no other machine reads.
fn is_protected(url: &HttpUrl) -> bool {
    let host = &url.address.host;
    let is_local = host.ip().is_some_and(|ip| ip.to_canonical().is_loopback());
    url.is_secure || is_local || host.text() == "localhost"
}

/// The login of a file; `None` if it was reported.
pub(super) fn oidc(written: &RawOidc, sink: &mut Sink<'_>) -> Option<OidcSpec> {
    let path = |key: &str| format!("console.oidc.{key}");
    for (key, text) in [
        ("issuer", &written.issuer),
        ("console_url", &written.console_url),
    ] {
        let problem = match HttpUrl::parse(text) {
            Ok(url) if is_protected(&url) && !text.contains('?') => continue,
            Ok(_) => "tokens would be sent without TLS, or it has a query",
            Err(problem) => problem,
        };
        sink.report(
            &path(key),
            format!("\"{text}\" is not the URL of a server: {problem}"),
            "write https://HOST[:PORT][/PATH]",
        );
        return None;
    }
    if written.role.is_empty() {
        sink.report(
            &path("role"),
            "no user would have a role",
            "add a [[console.oidc.role]] with value and role",
        );
    }
    let in_scope = |byte: u8| byte.is_ascii_graphic() && !b"\"\\".contains(&byte);
    for (index, scope) in written.scopes.iter().enumerate() {
        if scope.is_empty() || !scope.bytes().all(in_scope) {
            sink.report(
                &path(&format!("scopes[{index}]")),
                format!("\"{scope}\" is not a scope (RFC 6749 section 3.3)"),
                "write a word such as \"profile\"",
            );
        }
    }
    let mut scopes = written.scopes.clone();
    if !scopes.iter().any(|scope| scope == "openid") {
        scopes.insert(0, "openid".to_owned());
    }
    let secret = written.client_secret_file.as_ref();
    Some(OidcSpec {
        issuer: written.issuer.clone(),
        client_id: written.client_id.clone(),
        secret: secret.map(|name| FilePath::new(name, &path("client_secret_file"), sink)),
        redirect: format!("{}{CALLBACK}", written.console_url.trim_end_matches('/')),
        ca: trust(&written.ca, &path("ca"), sink),
        scopes: scopes.join(" "),
        user_claim: written.user_claim.clone(),
        role_claim: written.role_claim.split('.').map(str::to_owned).collect(),
        roles: written
            .role
            .iter()
            .map(|entry| (entry.value.clone(), entry.role))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn with(more: &str) -> Result<OidcSpec, String> {
        let text = format!(
            "[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1:5060\"\n[console]\nlisten=\"127.0.0.1:8080\"\n[console.oidc]\n{more}\n"
        );
        parse(&text, "f")
            .map(|config| config.console.and_then(|console| console.oidc).unwrap())
            .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn login_has_defaults_and_checked_urls() {
        let role = "[[console.oidc.role]]\nvalue=\"noc\"\nrole=\"operator\"";
        let urls = "issuer=\"https://idp.example/realm\"\nconsole_url=\"https://sbc.example/\"\nclient_id=\"x\"";
        let spec = with(&format!("{urls}\nscopes=[\"email\"]\n{role}")).unwrap();
        assert_eq!(
            spec.redirect,
            "https://sbc.example/api/v1/session/oidc/callback"
        );
        assert_eq!(spec.scopes, "openid email");
        assert_eq!(spec.roles, [("noc".to_owned(), ConsoleRole::Operator)]);
        assert_eq!(spec.role_claim, ["groups"]);
        let local = urls.replace("https://idp.example", "http://127.0.0.1:1");
        assert!(with(&format!("{local}\n{role}")).is_ok());
        for (text, expected) in [
            (urls.to_owned(), "`role` is missing"),
            (format!("{urls}\nrole=[]"), "no user would have a role"),
            (
                format!("{}\n{role}", urls.replace("https://idp", "http://idp")),
                "without TLS",
            ),
            (
                format!("{}\n{role}", urls.replace("https://sbc", "sbc")),
                "does not begin with",
            ),
            (
                format!("{urls}\nscopes=[\"a b\"]\n{role}"),
                "is not a scope",
            ),
        ] {
            let said = with(&text).unwrap_err();
            assert!(said.contains(expected), "{text}: {said}");
        }
    }
}
