//! Mapping of interface and trunk indices at a reload.

use crate::policy::HopStep;
use config::{Config, InterfaceId, TrunkId};

/// Mapping of indices of the old configuration to the new one, by name.
#[derive(Debug)]
pub(crate) struct IndexRemap {
    interfaces: Vec<Option<InterfaceId>>,
    trunks: Vec<Option<TrunkId>>,
}

impl IndexRemap {
    pub(crate) fn new(before: &Config, after: &Config) -> IndexRemap {
        IndexRemap {
            interfaces: before
                .interfaces
                .iter()
                .map(|interface| after.interface_named(&interface.name))
                .collect(),
            trunks: before
                .trunks
                .iter()
                .map(|trunk| after.trunk_named(&trunk.name))
                .collect(),
        }
    }

    /// The new index of an interface; an unused index for a removed one.
    pub(crate) fn interface(&self, old: InterfaceId) -> InterfaceId {
        let new = self.interfaces.get(usize::from(old.0)).copied().flatten();
        new.unwrap_or(InterfaceId(u16::MAX))
    }

    /// The new index of a trunk; `None` for a removed one.
    pub(crate) fn trunk(&self, old: TrunkId) -> Option<TrunkId> {
        self.trunks.get(usize::from(old.0)).copied().flatten()
    }

    /// Maps the indices in planned steps.
    pub(crate) fn steps(&self, steps: &mut [HopStep]) {
        for step in steps {
            step.interface = self.interface(step.interface);
            step.trunk = step.trunk.and_then(|trunk| self.trunk(trunk));
        }
    }
}
