//! Names of interfaces and trunks, which other tables refer to, and their indices in the checked configuration.

use serde::{Deserialize, Serialize};

/// Index of an interface in [`Config::interfaces`](crate::Config::interfaces).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InterfaceId(pub u16);

/// Index of a trunk in [`Config::trunks`](crate::Config::trunks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TrunkId(pub u16);

/// Names as written, in the order of the file.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    pub(super) interfaces: Vec<String>,
    pub(super) trunks: Vec<String>,
}
