//! ID tokens: signatures (RFC 7515, RFC 7518: RS256 and ES256) with the keys of the provider (RFC 7517), and claims
//! (OpenID Connect Core 1.0 section 3.1.3.7).

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use config::{ConsoleRole, OidcSpec};
use serde_json::Value;
use subtle::ConstantTimeEq as _;

/// Tolerated difference of the provider's clock, seconds.
const CLOCK_TOLERANCE: i64 = 60;
/// Octets of a coordinate of P-256.
const COORDINATE: usize = 32;
/// Longest name of a user, characters.
const MAX_NAME: usize = 64;
/// Most keys of a provider that are tried.
const MAX_KEYS: usize = 32;

/// A verified user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::web) struct VerifiedUser {
    pub(in crate::web) name: String,
    pub(in crate::web) role: ConsoleRole,
}

/// The reason why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenError {
    /// It is not valid: the text tells the reason.
    Invalid(&'static str),
    /// It is valid, but gives its user no role.
    NoRole,
}

use TokenError::Invalid;

fn text<'v>(value: &'v Value, name: &str) -> Option<&'v str> {
    value.get(name)?.as_str()
}

fn octets(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

fn json(part: &str) -> Option<Value> {
    serde_json::from_slice(&octets(part)?).ok()
}

/// Whether a key of the provider verifies the signature.
fn verifies(key: &Value, algorithm: &str, signed: &[u8], signature: &[u8]) -> Option<bool> {
    if text(key, "use").is_some_and(|purpose| purpose != "sig")
        || text(key, "alg").is_some_and(|own| own != algorithm)
    {
        return None;
    }
    let component = |name: &str| octets(text(key, name)?);
    let verified = match (algorithm, text(key, "kty")?) {
        ("RS256", "RSA") => {
            let key = RsaPublicKeyComponents {
                n: component("n")?,
                e: component("e")?,
            };
            key.verify(&RSA_PKCS1_2048_8192_SHA256, signed, signature)
        }
        ("ES256", "EC") if text(key, "crv") == Some("P-256") => {
            let (x, y) = (component("x")?, component("y")?);
            if x.len() != COORDINATE || y.len() != COORDINATE {
                return None;
            }
            let point = [&[4], &x[..], &y[..]].concat();
            UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(signed, signature)
        }
        _ => return None,
    };
    Some(verified.is_ok())
}

/// The claims of a signed token.
fn signed_claims(token: &str, keys: &Value) -> Result<Value, TokenError> {
    let mut parts = token.split('.');
    let four = [parts.next(), parts.next(), parts.next(), parts.next()];
    let [Some(head), Some(payload), Some(signature), None] = four else {
        return Err(Invalid("the ID token is not a signed token"));
    };
    let header = json(head).ok_or(Invalid("the header of the ID token cannot be read"))?;
    // Only these: neither `none` nor algorithms whose key would be the public one (RFC 8725 section 3.1).
    let algorithm = text(&header, "alg").filter(|name| ["RS256", "ES256"].contains(name));
    let algorithm = algorithm.ok_or(Invalid("the algorithm of the ID token is not accepted"))?;
    if header.get("crit").is_some() {
        return Err(Invalid("the ID token has critical extensions"));
    }
    let signature = octets(signature).ok_or(Invalid("the signature cannot be read"))?;
    let signed = token.get(..head.len() + 1 + payload.len());
    let signed = signed.unwrap_or_default().as_bytes();
    let keys = keys.get("keys").and_then(Value::as_array);
    let wanted = text(&header, "kid");
    let named = |key: &&Value| wanted.is_none() || text(key, "kid") == wanted;
    let mut fitting = keys.into_iter().flatten().take(MAX_KEYS).filter(named);
    match fitting.any(|key| verifies(key, algorithm, signed, &signature) == Some(true)) {
        true => json(payload).ok_or(Invalid("the claims of the ID token cannot be read")),
        false => Err(Invalid("no key of the provider verifies the ID token")),
    }
}

/// Checks the claims of a token.
fn check(claims: &Value, spec: &OidcSpec, nonce: &str, now: i64) -> Result<(), TokenError> {
    if text(claims, "iss") != Some(&spec.issuer) {
        return Err(Invalid("the ID token is of another issuer"));
    }
    let own = |value: &Value| value.as_str() == Some(&spec.client_id);
    let (for_us, is_shared) = match claims.get("aud") {
        Some(Value::Array(all)) => (all.iter().any(own), all.len() > 1),
        Some(one) => (own(one), false),
        None => (false, false),
    };
    let party = claims.get("azp");
    if !for_us || party.is_some_and(|party| !own(party)) || is_shared && party.is_none() {
        return Err(Invalid("the ID token is for another client"));
    }
    let time = |name: &str| claims.get(name).and_then(Value::as_i64);
    if time("exp").is_none_or(|until| until.saturating_add(CLOCK_TOLERANCE) <= now) {
        return Err(Invalid("the ID token has expired"));
    }
    let early = |at: i64| at.saturating_sub(CLOCK_TOLERANCE) > now;
    if time("iat").is_none_or(early) || time("nbf").is_some_and(early) {
        return Err(Invalid("the ID token is not valid yet"));
    }
    let presented = text(claims, "nonce").unwrap_or_default();
    if !bool::from(presented.as_bytes().ct_eq(nonce.as_bytes())) {
        return Err(Invalid("the ID token belongs to another login"));
    }
    Ok(())
}

/// Verifies an ID token of a login with `nonce`, at `now` in seconds since 1970, with the key set `keys`.
pub(super) fn verify(
    token: &str,
    keys: &Value,
    spec: &OidcSpec,
    (nonce, now): (&str, i64),
) -> Result<VerifiedUser, TokenError> {
    let claims = signed_claims(token, keys)?;
    check(&claims, spec, nonce, now)?;
    let subject = text(&claims, "sub").filter(|subject| !subject.is_empty());
    let subject = subject.ok_or(Invalid("the ID token has no subject"))?;
    let name = text(&claims, &spec.user_claim).unwrap_or(subject);
    let name: String = name
        .chars()
        .filter(|char| !char.is_control())
        .take(MAX_NAME)
        .collect();
    role_of(&claims, spec)
        .map(|role| VerifiedUser { name, role })
        .ok_or(TokenError::NoRole)
}

/// The highest role that the claims grant.
fn role_of(claims: &Value, spec: &OidcSpec) -> Option<ConsoleRole> {
    let nested = || {
        let mut parts = spec.role_claim.iter();
        parts.try_fold(claims, |value, part| value.get(part))
    };
    // Some providers demand URLs as names of further claims (Auth0): the dots are those of the name.
    let whole = claims.get(spec.role_claim.join("."));
    let place = whole.or_else(nested);
    let has = |wanted: &str| match place {
        Some(Value::Array(all)) => all.iter().any(|value| value.as_str() == Some(wanted)),
        Some(value) => value.as_str() == Some(wanted),
        None => false,
    };
    let granted = spec.roles.iter().filter(|(value, _)| has(value));
    granted.map(|(_, role)| *role).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn roles_are_in_nested_claims_and_in_claims_with_dots() {
        let spec = |claim: &str| {
            let text = format!(
                "[[interface]]\nname = \"a\"\nlisten = \"udp:192.0.2.1\"\n[console]\nlisten = \"127.0.0.1:1\"\n[console.oidc]\nissuer = \"https://id.example\"\nclient_id = \"a\"\nconsole_url = \"https://sbc.example\"\nrole_claim = \"{claim}\"\nrole = [{{ value = \"noc\", role = \"operator\" }}, {{ value = \"all\", role = \"viewer\" }}]\n"
            );
            let config = config::parse(&text, "f").unwrap();
            config.console.unwrap().oidc.unwrap()
        };
        let of = |claim: &str, claims: Value| role_of(&claims, &spec(claim));
        let (operator, viewer) = (Some(ConsoleRole::Operator), Some(ConsoleRole::Viewer));
        assert_eq!(of("groups", json!({ "groups": ["all", "noc"] })), operator);
        assert_eq!(of("groups", json!({ "groups": "all" })), viewer);
        let nested = json!({ "realm_access": { "roles": ["all"] } });
        assert_eq!(of("realm_access.roles", nested.clone()), viewer);
        assert_eq!(of("realm_access", nested), None);
        let named = json!({ "https://sbc.example/roles": ["noc"] });
        assert_eq!(of("https://sbc.example/roles", named), operator);
        assert_eq!(of("groups", json!({})), None);
    }
}
