//! URLs and addresses of systems to which the border sends reports.

use super::address::HostName;

/// A host and its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverAddress {
    /// Name or address.
    pub host: HostName,
    /// Port, not 0.
    pub port: u16,
}

impl ReceiverAddress {
    /// Parses `HOST[:PORT]`.
    pub(super) fn parse(text: &str, default_port: u16) -> Option<ReceiverAddress> {
        let host = HostName::parse(text)?;
        let port = host.port.unwrap_or(default_port);
        (port != 0).then_some(ReceiverAddress { host, port })
    }
}

impl core::fmt::Display for ReceiverAddress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}:{}", self.host.uri_host(), self.port)
    }
}

/// An HTTP resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpUrl {
    /// Host and port.
    pub address: ReceiverAddress,
    /// Whether the scheme is https.
    pub is_secure: bool,
    /// Value of Host: the authority as written.
    pub authority: String,
    /// Path with query, beginning with `/`.
    pub path: String,
}

impl HttpUrl {
    /// Parses `http://HOST[:PORT][/PATH]` or the same with https.
    ///
    /// # Errors
    /// The problem.
    pub fn parse(text: &str) -> Result<HttpUrl, &'static str> {
        let (is_secure, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://"))
        {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err("it does not begin with https:// or http://"),
        };
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) || rest.contains('#') {
            return Err("it has characters that a URL cannot have");
        }
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(at);
        // A user before the host is no host name; credentials have keys of their own.
        let address = ReceiverAddress::parse(authority, if is_secure { 443 } else { 80 });
        Ok(HttpUrl {
            address: address.ok_or("its host is neither a name nor an address")?,
            is_secure,
            authority: authority.to_owned(),
            path: match path.starts_with('/') {
                true => path.to_owned(),
                false => format!("/{path}"),
            },
        })
    }

    /// Scheme, host and port, without the path, which may contain a secret.
    pub fn origin(&self) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }
}
