//! Identities of a certificate (RFC 5922 section 7).

use std::net::IpAddr;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Names and validity of a certificate, as far as TLS for SIP uses them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identities {
    /// SIP domains in lower case (RFC 5922 section 7.1).
    pub domains: Vec<String>,
    /// IP addresses of the subjectAltName: not in RFC 5922; they count only for a peer that is configured by its
    /// address.
    pub addresses: Vec<IpAddr>,
    /// DNS names of the subjectAltName in lower case, with a wildcard as their first label or without. They only select
    /// the certificate that we present to a client (RFC 9525 section 6.3).
    pub hosts: Vec<String>,
    /// Start of validity, seconds since 1970.
    pub not_before: i64,
    /// End of validity, seconds since 1970.
    pub not_after: i64,
}

impl Identities {
    /// Parses a certificate; `None` if it is invalid.
    pub fn of(der: &[u8]) -> Option<Identities> {
        let (rest, certificate) = X509Certificate::from_der(der).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let mut identities = Identities {
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
            ..Identities::default()
        };
        match certificate.subject_alternative_name().ok()? {
            Some(names) => identities.alternative(&names.value.general_names),
            // The common name counts only without a subjectAltName.
            None => {
                let names = certificate.subject().iter_common_name();
                let names = names.filter_map(|name| name.as_str().ok());
                identities.domains.extend(names.filter_map(domain));
            }
        }
        Some(identities)
    }

    fn alternative(&mut self, names: &[GeneralName<'_>]) {
        let uris = names.iter().filter_map(|name| match name {
            GeneralName::URI(uri) => domain_of_uri(uri),
            _ => None,
        });
        self.domains.extend(uris);
        // A DNS name counts only without a SIP URI.
        let dns = self.domains.is_empty();
        for name in names {
            if let GeneralName::DNSName(name) = name {
                let wildcard = name.strip_prefix("*.").and_then(domain);
                let host = wildcard.map_or_else(|| domain(name), |rest| Some(format!("*.{rest}")));
                self.hosts.extend(host);
            }
            match name {
                GeneralName::DNSName(name) if dns => self.domains.extend(domain(name)),
                GeneralName::IPAddress(bytes) => self.addresses.extend(address(bytes)),
                _ => {}
            }
        }
    }

    /// Whether the certificate is valid for `name`: a domain, compared without regard to case (RFC 5922 section 7.2:
    /// wildcards do not match), or an IP address.
    pub fn is_valid_for(&self, name: &str) -> bool {
        match name.parse::<IpAddr>() {
            Ok(ip) => self.addresses.contains(&ip),
            Err(_) => {
                let name = name.strip_suffix('.').unwrap_or(name);
                self.domains
                    .iter()
                    .any(|domain| domain.eq_ignore_ascii_case(name))
            }
        }
    }

    /// Whether a client that asks for the server `name` accepts the certificate: by its SIP identity, or by a DNS name,
    /// whose wildcard stands for one label.
    pub fn fits_server_name(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        let fits = |host: &String| match host.strip_prefix("*.") {
            Some(rest) => name
                .split_once('.')
                .is_some_and(|(_, domain)| domain.eq_ignore_ascii_case(rest)),
            None => host.eq_ignore_ascii_case(name),
        };
        self.is_valid_for(name) || self.hosts.iter().any(fits)
    }

    /// All names, for messages.
    pub fn list(&self) -> String {
        let addresses = self.addresses.iter().map(ToString::to_string);
        let names: Vec<String> = self.domains.iter().cloned().chain(addresses).collect();
        match names.is_empty() {
            true => "no SIP domain".to_owned(),
            false => names.join(" "),
        }
    }
}

/// Most names of a certificate that are compared.
const MAX_USER_NAMES: usize = 32;

/// Names that a certificate gives to its user, each with its kind: `cn:` (common name), `email:`, `dns:` and `uri:`
/// (subjectAltName). Empty if it is invalid.
pub fn user_names(der: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else {
        return Vec::new();
    };
    let common = certificate.subject().iter_common_name();
    let common = common.filter_map(|name| Some(format!("cn:{}", name.as_str().ok()?)));
    let mut names: Vec<String> = common.collect();
    if let Ok(Some(alternative)) = certificate.subject_alternative_name() {
        let general = alternative.value.general_names.iter();
        names.extend(general.filter_map(|name| match name {
            GeneralName::RFC822Name(name) => Some(format!("email:{name}")),
            GeneralName::DNSName(name) => Some(format!("dns:{name}")),
            GeneralName::URI(name) => Some(format!("uri:{name}")),
            _ => None,
        }));
    }
    names.truncate(MAX_USER_NAMES);
    names
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

/// The host of `sip:host`, without port and parameters; `None` with a user part.
fn domain_of_uri(uri: &str) -> Option<String> {
    let rest = uri
        .get(..4)
        .filter(|scheme| scheme.eq_ignore_ascii_case("sip:"))
        .and(uri.get(4..))?;
    if rest.contains('@') {
        return None;
    }
    domain(rest.split([':', ';', '?']).next()?)
}

/// A domain in the form in which it is compared; `None` if it is not a DNS name.
fn domain(name: &str) -> Option<String> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let label = |label: &str| {
        !label.is_empty()
            && label.len() < 64
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let good = name.len() < 254
        && name.split('.').all(label)
        && name.bytes().any(|byte| byte.is_ascii_alphabetic());
    good.then(|| name.to_ascii_lowercase())
}

/// Seconds since 1970 as a date and time in UTC (proleptic Gregorian calendar).
pub fn date(seconds: i64) -> String {
    let days = seconds.div_euclid(86_400);
    let second = seconds.rem_euclid(86_400);
    // Civil date from days, counted in eras of 400 years that begin on the first of March.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_gregorian_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00Z"),
            (951_782_400, "2000-02-29T00:00Z"),
            (1_709_251_199, "2024-02-29T23:59Z"),
            (4_102_444_800, "2100-01-01T00:00Z"),
            (-86_400, "1969-12-31T00:00Z"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }

    #[test]
    fn wildcard_stands_for_one_label_of_a_server_name_only() {
        let identities = Identities {
            hosts: vec!["*.web.example.com".into(), "sbc.example.com".into()],
            ..Identities::default()
        };
        for (name, fits) in [
            ("sbc.web.example.com", true),
            ("SBC.Web.example.com.", true),
            ("sbc.example.com", true),
            ("web.example.com", false),
            ("a.b.web.example.com", false),
            ("other.example.com", false),
        ] {
            assert_eq!(identities.fits_server_name(name), fits, "{name}");
            assert!(!identities.is_valid_for(name), "no SIP identity: {name}");
        }
    }

    #[test]
    fn domain_is_the_host_of_a_sip_uri_without_user() {
        for (uri, want) in [
            ("sip:Example.com", Some("example.com")),
            ("SIP:example.com:5061;transport=tls", Some("example.com")),
            ("sip:alice@example.com", None),
            ("sips:example.com", None),
            ("http://example.com", None),
            ("sip:*.example.com", None),
            ("sip:192.0.2.1", None),
            ("sip:", None),
            ("sié", None),
        ] {
            assert_eq!(domain_of_uri(uri).as_deref(), want, "{uri}");
        }
    }
}
