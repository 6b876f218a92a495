//! The Service-Route of a registration at a carrier (RFC 3608): the preloaded route of requests to the target that gave
//! it.

use wire::sip::{HeaderId, Message, NameAddr};

/// Values, at most: each is a proxy of the carrier, of which IMS has one or two.
const MAX_VALUES: usize = 8;
/// Octets of all values, at most: each request to the carrier has them.
const MAX_OCTETS: usize = 1_024;

/// The route of requests to a target of a trunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceRoute {
    /// Index of the target: other targets may not reach these proxies.
    pub(crate) target: usize,
    /// Route values, in order.
    pub(crate) values: Vec<Box<[u8]>>,
}

impl ServiceRoute {
    /// That of a response to REGISTER; `None` if it has none.
    ///
    /// # Errors
    /// The reason not to use it: a part of a route would lead elsewhere.
    pub(super) fn of(
        response: &Message<'_>,
        target: usize,
    ) -> Result<Option<ServiceRoute>, &'static str> {
        let mut values: Vec<Box<[u8]>> = Vec::new();
        let mut octets = 0;
        for value in response.values(HeaderId::ServiceRoute) {
            octets += value.len();
            if values.len() >= MAX_VALUES || octets > MAX_OCTETS {
                return Err("Service-Route not used: more than 8 values or 1024 octets");
            }
            let uri = NameAddr::parse(value).and_then(|address| address.parse_uri());
            // RFC 3608 section 5: values are name-addr. A strict router would need another Request-URI.
            if !uri.is_some_and(|uri| uri.is_sip() && uri.is_loose_router()) {
                return Err("Service-Route not used: a value is no URI of a loose router");
            }
            values.push(value.into());
        }
        Ok((!values.is_empty()).then_some(ServiceRoute { target, values }))
    }
}
