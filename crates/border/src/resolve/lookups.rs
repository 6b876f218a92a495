//! Lookups of hops, dialogs and out-of-dialog requests, and the use of their results.

use crate::calls::key::{CallKey, CallSlot};
use crate::components::{Calls, Components};
use crate::policy::StepTarget;
use crate::resolve::{DnsClient, DnsQuery, LookupWaiter, MOST_ADDRESSES, placed, wanted};
use config::HostName;
use engine::{Reason, Transport};
use sip::locate::{LocateError, LookupStart, ResolvedTarget};
use sip::{Flow, Fork, LegId, NamedHop};

impl Calls<'_> {
    /// Starts a lookup. [`Calls::deliver_lookups`] delivers the result.
    pub(crate) fn locate(
        &mut self,
        host: &HostName,
        transport: Option<Transport>,
        waiting: LookupWaiter,
    ) {
        let now = self.parts.ctx.now;
        let started = match wanted(host, transport) {
            Ok(wanted) => self.parts.resolver.resolver.locate(wanted, now),
            Err(error) => LookupStart::Done(Err(error)),
        };
        match started {
            LookupStart::Pending(lookup) => {
                self.parts.resolver.waiting.insert(lookup, waiting);
            }
            LookupStart::Done(result) => {
                let targets = result.map(|targets| targets.take(MOST_ADDRESSES).collect());
                self.located(waiting, targets);
            }
        }
    }

    /// Starts the lookup for a hop of a call.
    pub(crate) fn locate_hop(&mut self, slot: CallSlot, index: usize) {
        let now = self.parts.ctx.now;
        let key = self.parts.calls.key_of(slot);
        let Some(set_up) = self.parts.calls.set_up_mut(slot) else {
            return;
        };
        let Some(StepTarget::Name(host, transport)) =
            set_up.hops.get(index).map(|hop| hop.place.clone())
        else {
            return;
        };
        set_up.locating += 1;
        let started = match wanted(&host, transport) {
            Ok(wanted) => self.parts.resolver.resolver.locate(wanted, now),
            Err(error) => LookupStart::Done(Err(error)),
        };
        match started {
            LookupStart::Pending(lookup) => {
                self.parts
                    .resolver
                    .waiting
                    .insert(lookup, LookupWaiter::Hop(key, index));
            }
            LookupStart::Done(result) => {
                let targets = result.map(|targets| targets.take(MOST_ADDRESSES).collect());
                // The loop of the caller continues with the inserted steps.
                self.hop_located(key, index, targets);
            }
        }
        let _ = self.endpoint;
    }

    /// Sends queries, and delivers the results of finished lookups.
    pub(crate) fn deliver_lookups(&mut self) {
        while let Some(outcome) = self.parts.resolver.resolver.next_outcome() {
            let Some(waiting) = self.parts.resolver.waiting.remove(&outcome.lookup) else {
                continue;
            };
            let targets = outcome
                .targets
                .map(|targets| targets.take(MOST_ADDRESSES).collect());
            self.located(waiting, targets);
        }
        while let Some(query) = self.parts.resolver.resolver.next_query() {
            let socket = {
                let Components {
                    resolver,
                    listeners,
                    media,
                    ..
                } = &mut *self.parts;
                resolver.query_socket(listeners, &mut media.plane, query.server.is_ipv4())
            };
            self.parts.resolver.queries.push_back(DnsQuery {
                socket,
                server: query.server,
                bytes: query.bytes,
            });
        }
    }

    /// Resolves the host that requests of a dialog are sent to, if it is a name (RFC 3261 section 12.2.1.1).
    pub(crate) fn locate_dialog(&mut self, leg: LegId, fork: Option<Fork>) {
        let Some(hop) = self.endpoint.named_hop_of(leg, fork) else {
            return;
        };
        let waited = self.parts.resolver.waiting.values().any(
            |waiting| matches!(waiting, LookupWaiter::Dialog(other, same) if *other == leg && *same == hop),
        );
        if waited {
            return;
        }
        let Some(mut host) = HostName::parse(&hop.host) else {
            return;
        };
        host.port = hop.port;
        let transport = match hop.secure {
            true => Some(Transport::Tls),
            false => hop.transport,
        };
        self.locate(&host, transport, LookupWaiter::Dialog(leg, hop));
    }

    /// Sends further requests of the dialog to the first address of its name that is reachable from its interface,
    /// unless the current address is one of them.
    fn redirect_dialog(&mut self, leg: LegId, hop: &NamedHop, targets: &[ResolvedTarget]) {
        let Some(flow) = self.endpoint.flow_of(leg) else {
            return;
        };
        let here = |target: &ResolvedTarget| {
            (target.address, target.transport) == (flow.remote, flow.transport)
        };
        if targets.iter().any(here) {
            return;
        }
        let Some(interface) = self.parts.listeners.interface_of(flow.local) else {
            return;
        };
        let place = targets.iter().find_map(|target| {
            let local =
                self.parts
                    .listeners
                    .local_for(interface, target.transport, target.address)?;
            Some(Flow {
                local,
                transport: target.transport,
                remote: target.address,
                connection: None,
            })
        });
        if let Some(flow) = place {
            // The leg may have ended in the meantime.
            let _ = self.endpoint.set_hop_flow(leg, hop, flow);
        }
    }

    /// Applies changed DNS servers.
    pub(crate) fn reload_dns(&mut self) {
        let config = self.parts.ctx.config.clone();
        let entropy = self.parts.ctx.entropy.fork();
        for waiting in self
            .parts
            .resolver
            .replaced(DnsClient::new(&config, entropy))
        {
            self.located(waiting, Err(LocateError::NoAnswer));
        }
    }

    fn located(
        &mut self,
        waiting: LookupWaiter,
        targets: Result<Vec<ResolvedTarget>, LocateError>,
    ) {
        // Names written by a peer do not admit sources.
        let ours = !matches!(waiting, LookupWaiter::Dialog(..));
        for target in targets.iter().flatten().filter(|_| ours) {
            // Systems that we call by name may send requests to us. If the table is full, their requests are dropped on
            // interfaces with a list of sources.
            let ip = target.address.ip();
            let _ = self.parts.listeners.located_peers.lock().insert(ip, ());
        }
        match waiting {
            LookupWaiter::Hop(key, index) => {
                self.hop_located(key, index, targets);
                if let Some(slot) = self.parts.calls.slot_of(key) {
                    self.call_next_hops(slot);
                }
            }
            LookupWaiter::Dialog(leg, hop) => {
                self.redirect_dialog(leg, &hop, &targets.unwrap_or_default());
            }
            LookupWaiter::OutOfDialog(located) => {
                self.out_of_dialog_located(located, targets.unwrap_or_default());
            }
        }
    }

    /// Inserts the addresses of a hop's name after it.
    fn hop_located(
        &mut self,
        key: CallKey,
        index: usize,
        targets: Result<Vec<ResolvedTarget>, LocateError>,
    ) {
        let Some(slot) = self.parts.calls.slot_of(key) else {
            return;
        };
        let Some(set_up) = self.parts.calls.set_up_mut(slot) else {
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
            }
            Err(_) => set_up.best.offer(503, None, Reason::NameNotResolved),
        }
    }
}
