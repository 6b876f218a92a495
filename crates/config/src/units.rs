//! Numbers of the file as values with units: `#[serde(with = "units::seconds")]` and others.

use core::time::Duration;
use serde::{Deserialize, Deserializer, Serializer};

/// Seconds.
pub(super) mod seconds {
    use super::*;

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        Ok(Duration::from_secs(u32::deserialize(from)?.into()))
    }

    pub(crate) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(value.as_secs())
    }
}

/// Seconds; 0 is none.
pub(super) mod optional_seconds {
    use super::*;

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let value = seconds::deserialize(from)?;
        Ok((!value.is_zero()).then_some(value))
    }

    pub(crate) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_u64(value.map_or(0, |value| value.as_secs()))
    }
}

/// Milliseconds.
pub(super) mod milliseconds {
    use super::*;

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        Ok(Duration::from_millis(u32::deserialize(from)?.into()))
    }

    pub(crate) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(value.as_millis() as u64)
    }
}

/// Milliseconds; none if the key is absent.
pub(super) mod milliseconds_if_present {
    use super::*;

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let value = Option::<u32>::deserialize(from)?;
        Ok(value.map(|value| Duration::from_millis(value.into())))
    }

    pub(crate) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.serialize_u64(value.as_millis() as u64),
            None => to.serialize_none(),
        }
    }
}

/// A number; 0 is none.
pub(super) mod non_zero {
    use super::*;

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
        Ok(Some(u32::deserialize(from)?).filter(|value| *value != 0))
    }

    pub(crate) fn serialize<S: Serializer>(value: &Option<u32>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(value.unwrap_or(0))
    }
}
