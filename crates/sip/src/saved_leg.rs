//! A leg as a value: its state and that of its transactions, written out and read back.
//!
//! Timers keep their keys, so a leg is read back into the endpoint that wrote it.

use crate::Endpoint;
use crate::api::LegId;
use crate::leg::Leg;
use crate::transaction::{Client, Owner, Server};
use engine::PagedSlab;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The parts of a saved leg: owned when it is read, borrowed when it is written.
#[derive(Serialize, Deserialize)]
struct LegParts<L, C, S> {
    id: LegId,
    leg: L,
    /// Client transactions by slot.
    clients: Vec<(u32, C)>,
    /// Server transactions by slot.
    servers: Vec<(u32, S)>,
}

/// A leg of an endpoint with its transactions, to be written out.
pub struct LegToSave<'e>(LegParts<&'e Leg, &'e Client, &'e Server>);

impl Serialize for LegToSave<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// A leg that was written out, for [`Endpoint::restore_leg`].
pub struct SavedLeg(LegParts<Leg, Client, Server>);

impl<'de> Deserialize<'de> for SavedLeg {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SavedLeg, D::Error> {
        let parts = LegParts::<Leg, Client, Server>::deserialize(deserializer)?;
        match parts.leg.cookie as u32 == parts.id.check {
            true => Ok(SavedLeg(parts)),
            false => Err(D::Error::custom("the leg has another cookie")),
        }
    }
}

impl Endpoint {
    /// A leg with its transactions; `None` if there is no such leg. It looks through all transactions.
    pub fn leg_to_save(&self, id: LegId) -> Option<LegToSave<'_>> {
        let leg = self.leg(id)?;
        let clients = self.clients.iter().filter(|(_, client)| {
            matches!(client.owner, Owner::InitialInvite(owner) | Owner::InDialog(owner) if owner == id)
        });
        let servers = self
            .servers
            .iter()
            .filter(|(_, server)| server.leg == Some(id));
        Some(LegToSave(LegParts {
            id,
            leg,
            clients: clients
                .map(|(slot, client)| (slot as u32, client))
                .collect(),
            servers: servers
                .map(|(slot, server)| (slot as u32, server))
                .collect(),
        }))
    }

    /// Whether a saved leg and its transactions have their places in this endpoint.
    pub fn knows_leg(&self, saved: &SavedLeg) -> bool {
        let SavedLeg(parts) = saved;
        let known = self.leg(parts.id);
        known.is_some_and(|leg| leg.cookie == parts.leg.cookie)
            && parts.clients.iter().all(|(slot, saved)| {
                let client = self.clients.get(*slot as usize);
                client.is_some_and(|client| client.cookie == saved.cookie)
            })
            && parts.servers.iter().all(|(slot, saved)| {
                let server = self.servers.get(*slot as usize);
                server.is_some_and(|server| (server.key, server.check) == (saved.key, saved.check))
            })
    }

    /// Replaces a leg and its transactions by their saved state; without effect for a leg that is not known (see
    /// [`Endpoint::knows_leg`]).
    pub fn restore_leg(&mut self, saved: SavedLeg) {
        if !self.knows_leg(&saved) {
            return;
        }
        let SavedLeg(parts) = saved;
        replace(&mut self.legs, parts.id.slot, parts.leg);
        for (slot, client) in parts.clients {
            replace(&mut self.clients, slot, client);
        }
        for (slot, server) in parts.servers {
            replace(&mut self.servers, slot, server);
        }
    }
}

fn replace<T>(table: &mut PagedSlab<T>, slot: u32, value: T) {
    if let Some(entry) = table.get_mut(slot as usize) {
        *entry = value;
    }
}
