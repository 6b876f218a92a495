//! Reload of the configuration without dropping calls, and draining.

use crate::border::Border;
use crate::calls::conference::ConferenceCalls;
use crate::calls::ending::BYE_TIMEOUT;
use crate::conferences::{ConferenceName, ConferenceReply, ConferenceRequest};
use crate::endpoint_settings::{endpoint_calls, proxy_services};
use crate::index_remap::IndexRemap;
use crate::out_of_dialog::OutOfDialogControl;
use crate::shared::Alarm;
use crate::workers::{DrainState, Siblings, WorkerParts};
use config::{AdmissionLimits, ConferenceSpec, Config, TrunkId};
use core::time::Duration;
use engine::{Entropy, EventKind, Time, Worker};
use std::sync::Arc;

impl Border {
    /// Applies a checked configuration. Established calls are not changed; sockets are opened and closed by
    /// difference. A removed interface accepts no new calls; trunks keep their state by name.
    ///
    /// Settings that the SIP endpoint reads once (user agent name, its limits other than that of calls, session timers)
    /// take effect at the next start.
    pub fn reload(&mut self, config: impl Into<Arc<Config>>, now: Time) {
        let config = config.into();
        let worker = *self.endpoint.worker();
        self.parts.begin(now);
        let before = self.parts.ctx.config.clone();
        let changes = describe_changes(&before, &config);
        let renamed = IndexRemap::new(&before, &config);
        self.parts.ctx.config = config.clone();
        self.endpoint.set_call_limit(endpoint_calls(&config));
        self.endpoint.set_proxy_services(proxy_services(&config));
        self.parts.open_listeners(&mut self.endpoint);
        let parts = &mut self.parts;
        parts.resolver.reload_listeners(&config);
        parts.media.open_pools(&mut parts.ctx, &worker);
        parts.media.close_unused_sockets(&config);
        parts.trunks.reload(&config, now);
        parts.media_nodes.reload(&config, now);
        self.parts.report_node_events();
        self.parts.configure_admission(&mut self.endpoint);
        let parts = &mut self.parts;
        let first = parts
            .worker
            .siblings
            .as_mut()
            .is_none_or(Siblings::begin_reload);
        if first {
            parts.registrar.authority.lock().reload(&config, &before);
            parts
                .registrar
                .location
                .reload(config.registrar, config.limits.registrations);
            parts
                .registrar
                .location
                .set_number_prefixes(config.number_prefixes());
            parts.admission.rate_limiter.lock().reload();
            parts.admission.throttles.lock().rename(&renamed);
            parts.listeners.located_peers.lock().reload(&config);
            for admission in [
                &mut parts.registrar.limiter,
                &mut parts.registrar.authenticated_limiter,
            ] {
                let (rate, limit) = (
                    config.registrar.registrations_per_s,
                    config.limits.registrations,
                );
                admission.lock().reload(rate, limit);
            }
        }
        parts.carriers.reload(&config, now);
        if parts.worker.is_first() {
            for trunk in (0..).map(TrunkId).take(config.trunks.len()) {
                let route = parts.carriers.service_route(trunk);
                parts.trunks.set_service_route(trunk, route);
            }
        }
        self.parts.calls.remap_indices(&renamed);
        OutOfDialogControl::new(&mut self.lend()).remap_out_of_dialog_requests(&renamed);
        if config.dns != before.dns {
            self.lend().reload_dns();
        }
        if first {
            self.parts
                .ctx
                .events
                .tell(now, || EventKind::ConfigurationReloaded { changes });
        }
    }

    /// Refuses new calls from now on (503 with Retry-After) and removes our registrations at carriers. When the last
    /// call has ended, the event `drain_finished` is written and [`Border::is_drained`] is true. After `limit` the
    /// remaining calls are terminated; the drain ends at most two seconds later. A repeated call sets a new limit.
    pub fn drain(&mut self, limit: Duration, now: Time) {
        let parts = &mut self.parts;
        parts.begin(now);
        let timer = parts.ctx.timers.schedule(now + limit, Alarm::DrainTimeout);
        if let Some(draining) = parts.worker.draining.as_mut() {
            draining.until = now + limit;
            let old = match draining.finished && parts.calls.is_empty() {
                true => Some(timer),
                false => draining.timer.replace(timer),
            };
            if let Some(old) = old {
                parts.ctx.timers.cancel(old);
            }
            return;
        }
        parts.carriers.remove_all(now);
        parts.worker.draining = Some(DrainState {
            timer: Some(timer),
            until: now + limit,
            terminated: 0,
            time_expired: false,
            finished: false,
        });
        let calls = parts.total_calls() as u64;
        if parts.worker.is_first() {
            parts
                .ctx
                .events
                .tell(now, || EventKind::DrainStarted { calls });
        }
        let parts = &mut self.parts;
        parts
            .worker
            .finish_drain_if_idle(&mut parts.ctx, &parts.calls);
    }

    /// This worker, among those of one border.
    pub fn worker(&self) -> &engine::Worker {
        self.endpoint.worker()
    }

    /// Whether no carrier has a registration of ours (any more).
    pub fn is_unregistered(&self) -> bool {
        self.parts.carriers.none_registered()
    }

    /// Whether a drain has finished, and no emergency call has come since within its time.
    pub fn is_drained(&self) -> bool {
        let draining = self.parts.worker.draining.as_ref();
        let calls = &self.parts.calls;
        let is_idle = calls.is_empty() && calls.ended.is_empty();
        let now = self.parts.ctx.now;
        draining.is_some_and(|draining| {
            draining.finished && (is_idle || now >= draining.until + BYE_TIMEOUT)
        })
    }
}

impl Border {
    /// The workers of one border, 1 to [`Worker::MAX`]. Each needs sockets of its own at the same addresses, and
    /// hands off the messages of its siblings. Every reload and every drain has to be passed to each of them.
    pub fn worker_pool(
        config: impl Into<Arc<Config>>,
        of: u8,
        mut entropy: Entropy,
    ) -> Vec<Border> {
        let config = config.into();
        if of <= 1 {
            return vec![Border::new(config, entropy)];
        }
        let of = of.min(Worker::MAX);
        let parts = WorkerParts::several(&config, of, &mut entropy);
        let border = |parts| {
            let endpoint = entropy.fork();
            Border::with(config.clone(), parts, endpoint, entropy.fork())
        };
        parts.into_iter().map(border).collect()
    }
}

impl Border {
    /// Handles a request about the conference `name` (about all conferences of this worker for
    /// [`ConferenceRequest::List`]).
    /// [`Border::next_conference_reply`] returns the reply under the same `number`, after this or one of the next
    /// turns. With several workers the caller passes the request to the one selected by [`worker_of`].
    pub fn request_conference(
        &mut self,
        number: u64,
        name: &ConferenceName,
        request: &ConferenceRequest,
        now: Time,
    ) {
        self.parts.begin(now);
        ConferenceCalls::new(&mut self.lend()).handle_conference_request(number, name, request);
    }

    /// The next reply to a request about conferences.
    pub fn next_conference_reply(&mut self) -> Option<(u64, ConferenceReply)> {
        self.parts.conferences.queries.replies.pop_front()
    }
}

/// Names of the changed parts, for the log.
fn describe_changes(before: &Config, after: &Config) -> String {
    // Without `..`, so that a new field is not forgotten.
    let Config {
        interfaces,
        ng_server,
        media_nodes,
        media_node_policy,
        trunks,
        routes,
        conferences,
        rules,
        identity,
        users,
        number_owners: _,
        realm,
        registrar,
        registrar_store,
        media,
        media_ranges,
        media_places: _,
        sip,
        threads,
        session_timer,
        limits,
        admission,
        dns,
        control,
        store,
        records,
        metrics,
        alarms,
        traces,
        console,
        gateway,
        drain,
        log,
        renamed_keys: _,
    } = before;
    // Of the machine, not of the configuration.
    let without_machine = |admission: &AdmissionLimits| AdmissionLimits {
        machine: None,
        ..*admission
    };
    // The debug output of a conference table hides its PIN.
    let pins =
        |list: &[Arc<ConferenceSpec>]| list.iter().map(|spec| spec.pin.clone()).collect::<Vec<_>>();
    let parts = [
        ("interfaces", *interfaces != after.interfaces),
        ("trunks", *trunks != after.trunks),
        ("users", *users != after.users),
        ("media ports", *media_ranges != after.media_ranges),
        ("media", *media != after.media),
        (
            "media nodes",
            *media_nodes != after.media_nodes || *media_node_policy != after.media_node_policy,
        ),
        ("ng server", *ng_server != after.ng_server),
        (
            "routes",
            format!("{routes:?}") != format!("{:?}", after.routes),
        ),
        (
            "conferences",
            format!("{conferences:?}") != format!("{:?}", after.conferences)
                || pins(conferences) != pins(&after.conferences),
        ),
        ("rules", *rules != after.rules),
        ("identity", *identity != after.identity),
        ("sip", *sip != after.sip),
        ("control", *control != after.control),
        ("realm", *realm != after.realm),
        (
            "registrar",
            *registrar != after.registrar || *registrar_store != after.registrar_store,
        ),
        ("session timer", *session_timer != after.session_timer),
        (
            "limits",
            *limits != after.limits
                || without_machine(admission) != without_machine(&after.admission),
        ),
        ("dns", *dns != after.dns),
        ("threads", *threads != after.threads),
        ("store", *store != after.store),
        ("records", *records != after.records),
        ("metrics", *metrics != after.metrics),
        ("alarms", *alarms != after.alarms),
        ("traces", *traces != after.traces),
        ("console", *console != after.console),
        ("gateway", *gateway != after.gateway),
        ("drain", *drain != after.drain),
        ("log", *log != after.log),
    ];
    let changed = parts.into_iter().filter(|(_, differs)| *differs);
    let names: Vec<&str> = changed.map(|(name, _)| name).collect();
    match names.is_empty() {
        true => "nothing".to_owned(),
        false => names.join(", "),
    }
}
