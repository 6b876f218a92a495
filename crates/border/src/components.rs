//! The components of the border, and the struct that lends them together with the endpoint.

use crate::admission::AdmissionControl;
use crate::admission::overload::Overload;
use crate::calls::conference::state::Conferences;
use crate::calls::quality_intervals::QualityIntervals;
use crate::calls::table::OngoingCalls;
use crate::carrier::Carriers;
use crate::certificate_names::learn_targets;
use crate::keepalive::KeepAlives;
use crate::listeners::Listeners;
use crate::media::BorderMedia;
use crate::ng_client::MediaNodes;
use crate::out_of_dialog::state::OutOfDialog;
use crate::registrar::BorderRegistrar;
use crate::resolve::DnsClient;
use crate::rules::RuleOutput;
use crate::shared::Ctx;
use crate::trunks::Trunks;
use crate::workers::{PoolMember, WorkerParts};
use anchor::MediaPlane;
use anchor::sockets::MEDIA_SOCKETS;
use config::Config;
use engine::{Deadline, Entropy, Time};
use sip::Endpoint;
use std::cell::RefCell;
use std::sync::Arc;

/// The state of the border, except the endpoint: each component owns its fields.
#[derive(Debug)]
pub(crate) struct Components {
    pub(crate) ctx: Ctx,
    pub(crate) calls: OngoingCalls,
    pub(crate) quality_intervals: QualityIntervals,
    pub(crate) conferences: Conferences,
    pub(crate) media: BorderMedia,
    /// Media nodes that relay the media of calls.
    pub(crate) media_nodes: MediaNodes,
    pub(crate) admission: AdmissionControl,
    pub(crate) listeners: Listeners,
    pub(crate) registrar: BorderRegistrar,
    pub(crate) trunks: Trunks,
    pub(crate) carriers: Carriers,
    pub(crate) keep_alives: KeepAlives,
    pub(crate) out_of_dialog: OutOfDialog,
    pub(crate) resolver: DnsClient,
    pub(crate) worker: PoolMember,
    /// Log lines of header rules while a message is forwarded.
    pub(crate) rule_output: RefCell<Vec<RuleOutput>>,
}

/// The endpoint and the components, lent while an input is processed. Stages of calls are its methods: they need both.
#[derive(Debug)]
pub(crate) struct Calls<'a> {
    pub(crate) endpoint: &'a mut Endpoint,
    pub(crate) parts: &'a mut Components,
}

impl Components {
    /// The components of one worker, and its listeners in `endpoint`.
    pub(crate) fn new(
        config: Arc<Config>,
        share: WorkerParts,
        endpoint: &mut Endpoint,
        mut entropy: Entropy,
    ) -> Components {
        let worker = share.worker;
        let sockets = worker.share(MEDIA_SOCKETS);
        let plane = MediaPlane::new(sockets, share.sockets, entropy.fork());
        let ours = worker.number == 0;
        let carriers = Carriers::new(&config, ours, share.carriers, Time::ZERO);
        let resolver = DnsClient::new(&config, share.resolver);
        let media_nodes = MediaNodes::new(&config, worker, entropy.fork());
        let mut parts = Components {
            ctx: Ctx::new(config, entropy),
            calls: OngoingCalls::new(share.hash_key),
            quality_intervals: QualityIntervals::default(),
            conferences: Conferences::new(share.conferences, share.pin_lockout),
            media: BorderMedia::new(plane),
            media_nodes,
            admission: AdmissionControl::new(
                share.rate_limiter,
                share.throttles,
                Overload::new(share.shed_lists, worker.count),
            ),
            listeners: Listeners::new(
                share.certificate_domains,
                share.located_peers,
                share.hash_key,
            ),
            registrar: BorderRegistrar {
                authority: share.authority,
                location: share.location,
                limiter: share.register_limiter,
                authenticated_limiter: share.authenticated_register_limiter,
            },
            trunks: share.trunks,
            carriers,
            keep_alives: KeepAlives::default(),
            out_of_dialog: OutOfDialog::default(),
            resolver,
            worker: PoolMember {
                siblings: share.siblings,
                draining: None,
            },
            rule_output: RefCell::default(),
        };
        parts.open_listeners(endpoint);
        parts.media.open_pools(&mut parts.ctx, &worker);
        parts.configure_admission(endpoint);
        parts
    }

    /// Opens and closes listeners as configured.
    pub(crate) fn open_listeners(&mut self, endpoint: &mut Endpoint) {
        self.listeners
            .open(&mut self.ctx, &mut self.media.plane, endpoint);
        learn_targets(endpoint, &self.ctx.config, &self.listeners.list);
    }

    /// Applies the settings of admission control.
    pub(crate) fn configure_admission(&mut self, endpoint: &mut Endpoint) {
        self.admission.reset_feedback(&self.ctx, endpoint);
        let numbers = &self.ctx.config.sip.emergency_numbers;
        self.admission.overload.set_emergency_numbers(numbers);
    }

    /// Starts the processing of an input.
    pub(crate) fn begin(&mut self, now: Time) {
        self.ctx.now = now;
        self.ctx.inputs += 1;
        self.media.plane.keying.now = now;
        self.resolver.current_query = None;
        self.publish_call_count();
        self.worker.limit_late_calls(&mut self.ctx, &self.calls);
    }

    /// Publishes our number of calls to the other workers.
    pub(crate) fn publish_call_count(&self) {
        self.worker.publish_calls(self.calls.len());
    }

    /// Number of calls of all workers.
    pub(crate) fn total_calls(&self) -> usize {
        self.worker.total_calls(self.calls.len())
    }

    pub(crate) fn next_deadline(&self) -> Option<Deadline> {
        let timers = self.ctx.timers.next_at();
        let timers = timers.map(|at| Deadline::new(at, "calls"));
        let ports = self.media.plane.next_deadline();
        let trunks = self.trunks.next_deadline();
        let location = self.registrar.location.next_deadline();
        let carriers = self.carriers.next_deadline();
        let names = self.resolver.next_deadline();
        let nodes = self.media_nodes.next_deadline();
        [trunks, location, carriers, names, nodes, ports]
            .into_iter()
            .fold(timers, Deadline::earlier)
    }
}
