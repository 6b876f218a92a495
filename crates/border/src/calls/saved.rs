//! A call as a value: written out with its legs and read back.
//!
//! The bytes hold keys and credentials of the call, so they are as secret as these. They hold no state of components
//! that all calls share: trunks, admission, ports, conferences. A call is read back into the border that wrote it, in
//! its slot; timers and transactions keep their places there.

use crate::border::Border;
use crate::calls::Call;
use crate::calls::key::CallSlot;
use anchor::Side;
use serde::{Deserialize, Serialize};
use sip::{LegId, LegToSave, SavedLeg};
use smallvec::SmallVec;

/// Version of the form; incremented with each change of a saved type.
const VERSION: u16 = 13;

/// The parts of a saved call: owned when it is read, borrowed when it is written.
#[derive(Serialize, Deserialize)]
struct CallParts<C, L> {
    version: u16,
    /// Inputs that the border had processed.
    inputs: u64,
    slot: u32,
    call: C,
    legs: Vec<L>,
}

/// Reason why a call cannot be written out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveError {
    /// There is no such call.
    UnknownCall,
    /// A DTLS handshake of its media is in progress, whose state is not ours to write out.
    DtlsHandshake,
}

/// Reason why a call cannot be read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// The bytes are not a saved call, or incomplete.
    Malformed(String),
    /// Saved by another version.
    Version(u16),
    /// The call has ended, or belongs to another border.
    UnknownCall,
    /// A leg has ended.
    UnknownLeg,
    /// The border has processed an input since the call was saved: ports, timers and transactions may be others.
    Stale,
}

impl core::fmt::Display for SaveError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SaveError::UnknownCall => f.write_str("there is no such call"),
            SaveError::DtlsHandshake => f.write_str("a DTLS handshake of the call is in progress"),
        }
    }
}

impl core::fmt::Display for RestoreError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            RestoreError::Malformed(reason) => write!(f, "not a saved call: {reason}"),
            RestoreError::Version(version) => {
                write!(
                    f,
                    "the call was saved in version {version}, this is {VERSION}"
                )
            }
            RestoreError::UnknownCall => {
                f.write_str("the call has ended, or is not of this border")
            }
            RestoreError::Stale => f.write_str("the border has gone on since the call was saved"),
            RestoreError::UnknownLeg => f.write_str("a leg of the call has ended"),
        }
    }
}

impl Call {
    /// All legs: of both sides, of unanswered branches, and of a transfer.
    fn all_legs(&self) -> SmallVec<[LegId; 4]> {
        let mut legs: SmallVec<[LegId; 4]> = Side::BOTH
            .iter()
            .filter_map(|&side| self.leg(side))
            .collect();
        if let Some(set_up) = self.kind.set_up() {
            legs.extend(set_up.branches.iter().map(|branch| branch.leg));
        }
        if let Some(join) = self.kind.join() {
            legs.extend(join.legs());
        }
        legs.sort_unstable();
        legs.dedup();
        legs
    }
}

impl Border {
    /// Numbers of the calls.
    pub fn call_numbers(&self) -> Vec<u64> {
        self.parts
            .calls
            .iter()
            .map(|(_, call)| call.number)
            .collect()
    }

    /// Writes out a call with its legs and transactions. The bytes contain its keys.
    ///
    /// # Errors
    /// [`SaveError`].
    pub fn save_call(&self, number: u64) -> Result<Vec<u8>, SaveError> {
        let mut calls = self.parts.calls.iter();
        let (slot, call) = calls
            .find(|(_, call)| call.number == number)
            .ok_or(SaveError::UnknownCall)?;
        let legs = call.all_legs();
        let parts: CallParts<&Call, LegToSave<'_>> = CallParts {
            version: VERSION,
            inputs: self.parts.ctx.inputs,
            slot: slot.0 as u32,
            call,
            legs: legs
                .into_iter()
                .filter_map(|leg| self.endpoint.leg_to_save(leg))
                .collect(),
        };
        // Nothing else refuses to be written.
        postcard::to_stdvec(&parts).map_err(|_| SaveError::DtlsHandshake)
    }

    /// Replaces a call, its legs and its transactions by their saved state.
    ///
    /// # Errors
    /// [`RestoreError`]; nothing was changed then.
    pub fn restore_call(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        let malformed = |error: postcard::Error| RestoreError::Malformed(error.to_string());
        let (version, _) = postcard::take_from_bytes::<u16>(bytes).map_err(malformed)?;
        if version != VERSION {
            return Err(RestoreError::Version(version));
        }
        let (parts, rest): (CallParts<Call, SavedLeg>, _) =
            postcard::take_from_bytes(bytes).map_err(malformed)?;
        if !rest.is_empty() {
            let reason = format!("{} bytes too many", rest.len());
            return Err(RestoreError::Malformed(reason));
        }
        let CallParts {
            inputs,
            slot,
            mut call,
            legs,
            ..
        } = parts;
        let slot = CallSlot(slot as usize);
        let existing = self.parts.calls.get(slot);
        if existing.is_none_or(|existing| existing.number != call.number) {
            return Err(RestoreError::UnknownCall);
        }
        if inputs != self.parts.ctx.inputs {
            return Err(RestoreError::Stale);
        }
        if !legs.iter().all(|leg| self.endpoint.knows_leg(leg)) {
            return Err(RestoreError::UnknownLeg);
        }
        for leg in legs {
            self.endpoint.restore_leg(leg);
        }
        self.share_settings(&mut call);
        if let Some(existing) = self.parts.calls.get_mut(slot) {
            *existing = call;
        }
        Ok(())
    }

    /// Shares the settings of a call that was read back with the configuration, where they are equal.
    fn share_settings(&self, call: &mut Call) {
        let config = &self.parts.ctx.config;
        if let Some(media) = call.media.anchored_mut() {
            for interface in &config.interfaces {
                media.share_settings(&interface.security, &interface.transcoding);
            }
            for trunk in &config.trunks {
                media.share_settings(&trunk.security, &trunk.transcoding);
            }
        }
        if let Some(participant) = call.kind.participant_mut() {
            participant.share_settings(&config.conferences);
        }
    }
}
