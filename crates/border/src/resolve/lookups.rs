//! Lookups of hops and out-of-dialog requests, and the use of their results.

use crate::calls::key::{CallKey, CallSlot};
use crate::components::{Calls, Components};
use crate::out_of_dialog::OutOfDialogControl;
use crate::policy::StepTarget;
use crate::resolve::{DnsQuery, LookupChoices, LookupResult, LookupWaiter, placed};
use config::TrunkId;
use engine::Reason;
use sip::locate::{LocateError, ResolvedTarget};
use wire::sip::Message;

impl Calls<'_> {
    /// Applies the result of a lookup. The set-up of a call that waited for it is continued by the caller.
    pub(crate) fn located(&mut self, (waiting, targets): LookupResult) {
        match waiting {
            LookupWaiter::Hop(key, index) => self.parts.hop_located(key, index, targets),
            // The transfer is continued by the caller.
            LookupWaiter::Transfer(key, index) => {
                let slot = self.parts.calls.slot_of(key);
                let join = slot.and_then(|slot| self.parts.calls.join(slot));
                let hop = join.and_then(|join| join.named_target(index));
                self.parts.store_located(hop, &targets.unwrap_or_default());
            }
            LookupWaiter::Dialog(leg, hop) => {
                self.redirect_dialog(leg, &hop, &targets.unwrap_or_default());
            }
            LookupWaiter::OutOfDialog(located) => {
                let targets = targets.unwrap_or_default();
                self.parts.store_located(located.named_target(), &targets);
                OutOfDialogControl::new(self).out_of_dialog_located(located, targets);
            }
        }
    }
}

impl Components {
    /// Stores the addresses of a target of a trunk, which may send requests to us. Names written by a peer, as in a
    /// redirect, admit no sources.
    fn store_located(&mut self, target: Option<(TrunkId, usize)>, located: &[ResolvedTarget]) {
        if let Some(target) = target {
            self.listeners.store_located(&self.ctx, target, located);
        }
    }

    /// Starts the lookup for a hop of a call.
    pub(crate) fn locate_hop(&mut self, slot: CallSlot, index: usize, invite: &Message<'_>) {
        let now = self.ctx.now;
        let key = self.calls.key_of(slot);
        let Some(set_up) = self.calls.set_up_mut(slot) else {
            return;
        };
        let hop = set_up.hops.get(index);
        let Some((StepTarget::Name(host, transport), interface)) =
            hop.map(|hop| (hop.place.clone(), hop.interface))
        else {
            return;
        };
        set_up.locating += 1;
        let source = set_up.source.ip();
        let seed = Some(self.calls.request_mark(invite, source));
        let choices = LookupChoices::from(&self.ctx.config, interface, transport).with_seed(seed);
        let waiting = LookupWaiter::Hop(key, index);
        let known = self.resolver.start(&host, choices, waiting, now);
        if let Some((_, targets)) = known {
            // The loop of the caller continues with the inserted steps.
            self.hop_located(key, index, targets);
        }
    }

    /// Inserts the addresses of a hop's name after it.
    fn hop_located(
        &mut self,
        key: CallKey,
        index: usize,
        targets: Result<Vec<ResolvedTarget>, LocateError>,
    ) {
        let Some(slot) = self.calls.slot_of(key) else {
            return;
        };
        let Some(set_up) = self.calls.set_up_mut(slot) else {
            return;
        };
        set_up.locating = set_up.locating.saturating_sub(1);
        match targets {
            Ok(targets) => {
                let Some(hop) = set_up.hops.get(index).cloned() else {
                    return;
                };
                let at = set_up.next.min(set_up.hops.len());
                set_up.hops.splice(at..at, placed(&hop, &targets));
                self.store_located(hop.named_target(), &targets);
            }
            Err(_) => set_up.best.offer(503, None, Reason::NameNotResolved),
        }
    }

    /// Queues the DNS queries of the resolver.
    pub(crate) fn send_queries(&mut self) {
        let now = self.ctx.now;
        while let Some(query) = self.resolver.resolver.next_query() {
            let socket = {
                let Components {
                    resolver,
                    listeners,
                    media,
                    ..
                } = self;
                let v4 = query.server.is_ipv4();
                resolver.query_socket(listeners, &mut media.plane, v4, now)
            };
            let Some(socket) = socket else { continue };
            self.resolver.queries.push_back(DnsQuery {
                socket,
                server: query.server,
                bytes: query.bytes,
            });
        }
    }
}
