//! Capacity that calls hold.

use crate::admission::{CostPart, CurrentLoad, MediaOffload, MediaPaths, Price, Reservation};
use crate::calls::key::{CallKey, CallSlot};
use crate::components::Components;
use crate::request::RequestRefusal;
use anchor::Side;
use codec::kind::Kind;
use config::Keying;
use protect::srtp::Suite;

impl Components {
    fn load(&self) -> CurrentLoad {
        CurrentLoad {
            registrations: self.registrar.location.len(),
            calls: self.calls.len(),
        }
    }

    /// Reserves capacity for a call to `uri`, or refuses it.
    pub(crate) fn reserve(
        &mut self,
        uri: &[u8],
        reservation: Reservation,
    ) -> Result<Reservation, RequestRefusal> {
        let load = self.load();
        self.admission
            .reservations
            .admit(&mut self.ctx, load, uri, reservation)
    }

    /// Current reservations by part, of this worker.
    pub(crate) fn reserved(&mut self) -> [(CostPart, Price); CostPart::ALL.len()] {
        let load = self.load();
        self.admission.reservations.by_part(&self.ctx, load)
    }

    /// Reserves for transcoding in an established call, once.
    pub(super) fn reserve_transcoding(&mut self, key: CallKey, kinds: [Kind; 2]) {
        let Some(slot) = self.calls.slot_of(key) else {
            return;
        };
        let reservations = &mut self.admission.reservations;
        if let Some(call) = self.calls.get_mut(slot)
            && reservations.add_transcoding(&mut call.reservation, kinds)
        {
            self.update_media_price(slot);
        }
    }

    /// Updates the reservation of a conference participant to its codec: it may differ from that of the first offer.
    pub(super) fn reserve_participant_codec(&mut self, slot: CallSlot, kind: Kind) {
        if let Some(call) = self.calls.get_mut(slot) {
            let reservations = &mut self.admission.reservations;
            reservations.set_participant_codec(&mut call.reservation, kind);
        }
    }

    /// Reserves for SRTP keys of one side of a media line.
    pub(super) fn reserve_srtp(
        &mut self,
        key: CallKey,
        line_side: (usize, Side),
        (keying, suite): (Keying, Suite),
    ) {
        let reservations = &mut self.admission.reservations;
        if keying == Keying::Dtls {
            reservations.record_handshake(Price::DTLS_HANDSHAKE, self.ctx.now);
        }
        let Some(slot) = self.calls.slot_of(key) else {
            return;
        };
        if let Some(call) = self.calls.get_mut(slot) {
            reservations.add_srtp(&mut call.reservation, line_side, (keying, suite));
            self.update_media_price(slot);
        }
    }

    /// Changes the fast path of media; reservations of established calls are updated.
    pub(crate) fn set_media_offload(&mut self, offload: MediaOffload) {
        self.set_media_paths(MediaPaths {
            offload,
            ..self.media.paths.clone()
        });
    }

    /// Changes whether media ports share a socket; reservations of established calls are updated.
    pub(crate) fn set_shared_ports(&mut self, shared_ports: bool) {
        self.set_media_paths(MediaPaths {
            shared_ports,
            ..self.media.paths.clone()
        });
    }

    /// Sets whether tunnels of the gateway are on this thread, for later calls.
    pub(crate) fn set_direct_tunnels(&mut self, direct_tunnels: bool) {
        self.media.paths.direct_tunnels = direct_tunnels;
    }

    fn set_media_paths(&mut self, paths: MediaPaths) {
        if self.media.paths == paths {
            return;
        }
        self.media.paths = paths;
        for slot in self.calls.slots() {
            self.update_media_price(slot);
        }
    }

    /// Updates the reservation for a call's media to its current path.
    fn update_media_price(&mut self, slot: CallSlot) {
        if let Some(call) = self.calls.get_mut(slot) {
            let interfaces = Side::BOTH.map(|side| *call.interfaces.get(side));
            let paths = &self.media.paths;
            let path = paths.between(&self.ctx.config, interfaces);
            let reservations = &mut self.admission.reservations;
            reservations.set_media_path(&mut call.reservation, path, paths.sockets());
        }
    }
}
