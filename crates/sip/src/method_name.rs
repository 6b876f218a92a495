//! A declared method in saved state: its name.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use wire::sip::Method;

pub(crate) fn serialize<S: Serializer>(
    method: &Option<Method<'static>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let name = method.as_ref().map(Method::as_bytes);
    name.serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Method<'static>>, D::Error> {
    let Some(name) = Option::<Vec<u8>>::deserialize(deserializer)? else {
        return Ok(None);
    };
    match Method::from_bytes(&name).known() {
        Some(method) => Ok(Some(method)),
        None => Err(serde::de::Error::custom("unknown method")),
    }
}
