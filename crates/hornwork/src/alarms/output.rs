//! Delivery of notices: a bounded queue for each receiver, which any thread fills without waiting, and a thread of its
//! own that empties them. A receiver that is down delays neither packets nor the other receivers; lost notices are
//! counted.

use super::AlarmBoard;
use super::notice::{AlarmNotice, NoticeSource, severity_of};
use super::receiver::{DeliveryError, Receiver};
use crate::http_client::HttpCredentials;
use crate::log::EventLog;
use crate::security::LoadedFiles;
use config::{AlarmSeverity, AlarmsSpec, Config};
use engine::{Event, EventKind, Time};
use net::Clock;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tokio_rustls::rustls::ClientConfig;

/// Pauses between the attempts for one notice: they double from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Interval of the reports of losses.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Longest wait at the end of the program for the last notices.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Threads for the look-up of names.
const LOOKUP_THREADS: usize = 2;

/// Counts of a receiver since the start.
#[derive(Debug, Default)]
pub(crate) struct ReceiverCounters {
    /// Notices that it accepted.
    pub(crate) sent: AtomicU64,
    /// Notices lost: the queue was full, they were retried for too long, or refused for good.
    pub(crate) lost: AtomicU64,
    /// Notices in the queue, with the one that is being sent.
    pub(crate) waiting: AtomicU64,
    /// Whether the last attempt failed.
    pub(crate) failing: AtomicBool,
}

/// The queue of a receiver, as seen by the alarms.
#[derive(Clone, Debug)]
pub(crate) struct NoticeQueue {
    /// Kind and address of the receiver.
    pub(crate) receiver: Arc<str>,
    pub(crate) counters: Arc<ReceiverCounters>,
    severity: AlarmSeverity,
    notices: mpsc::Sender<Arc<AlarmNotice>>,
}

impl NoticeQueue {
    /// Queues a notice without waiting, or counts it as lost.
    pub(super) fn offer(&self, notice: &Arc<AlarmNotice>) {
        if severity_of(notice.alarm.kind) < self.severity {
            return;
        }
        self.counters.waiting.fetch_add(1, Relaxed);
        if self.notices.try_send(notice.clone()).is_err() {
            self.counters.waiting.fetch_sub(1, Relaxed);
            self.counters.lost.fetch_add(1, Relaxed);
        }
    }
}

/// Secrets and TLS settings of the receivers, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct AlarmFiles {
    pub(crate) webhooks: Vec<HttpCredentials>,
    pub(crate) syslog: Vec<Option<Arc<ClientConfig>>>,
}

/// One line about the receivers; empty without any.
pub(crate) fn summary(config: &Config) -> String {
    config.alarms.as_ref().map_or_else(String::new, |spec| {
        let names: Vec<String> = receivers(spec, &AlarmFiles::default())
            .map(|(receiver, _)| receiver.name())
            .collect();
        format!("alarms to: {}\n", names.join(", "))
    })
}

fn receivers<'s>(
    spec: &'s AlarmsSpec,
    files: &'s AlarmFiles,
) -> impl Iterator<Item = (Receiver, AlarmSeverity)> + 's {
    let webhooks = spec.webhooks.iter().enumerate().map(|(at, one)| {
        let files = files.webhooks.get(at).cloned().unwrap_or_default();
        (Receiver::Webhook(one.clone(), files), one.severity)
    });
    let syslog = spec.syslog.iter().enumerate().map(|(at, one)| {
        let tls = files.syslog.get(at).cloned().flatten();
        (Receiver::Syslog(one.clone(), tls), one.severity)
    });
    let snmp = spec.snmp.iter();
    let snmp = snmp.map(|one| (Receiver::Snmp(one.clone()), one.severity));
    webhooks.chain(syslog).chain(snmp)
}

/// The host name, without characters that a syslog header cannot have.
fn host_name() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = text.chars().filter(char::is_ascii_graphic).collect();
    match name.is_empty() {
        true => "hornwork".to_owned(),
        false => name,
    }
}

/// The delivery of notices of a running border.
pub(crate) struct AlarmOutput {
    queues: Vec<NoticeQueue>,
    ending: Arc<Ending>,
    clock: Clock,
}

/// The end of the program, for tasks that pause.
#[derive(Default)]
struct Ending {
    has_begun: AtomicBool,
    begun: Notify,
}

impl AlarmOutput {
    /// Starts the thread if there are receivers, and has `log` tell it the changes of alarms.
    ///
    /// # Errors
    /// If the thread or its epoll set cannot be created.
    pub(crate) fn start(
        config: &Config,
        files: &LoadedFiles,
        log: &EventLog,
        clock: Clock,
    ) -> io::Result<Option<AlarmOutput>> {
        let Some(spec) = &config.alarms else {
            return Ok(None);
        };
        let source = NoticeSource {
            name: spec.source.clone().unwrap_or_else(host_name),
            clock,
        };
        let ending = Arc::<Ending>::default();
        let (mut queues, mut deliveries) = (Vec::<NoticeQueue>::new(), Vec::new());
        for (receiver, severity) in receivers(spec, &files.alarms) {
            let (sender, notices) = mpsc::channel(spec.queue);
            // Labels of metrics are distinct.
            let same = |queue: &&NoticeQueue| {
                let rest = queue.receiver.strip_prefix(&receiver.name());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" #"))
            };
            let name: Arc<str> = match queues.iter().filter(same).count() {
                0 => receiver.name().into(),
                count => format!("{} #{}", receiver.name(), count + 1).into(),
            };
            let counters = Arc::<ReceiverCounters>::default();
            queues.push(NoticeQueue {
                receiver: name.clone(),
                counters: counters.clone(),
                severity,
                notices: sender,
            });
            deliveries.push(Delivery {
                name,
                receiver,
                notices,
                counters,
                retry: spec.retry,
                source: source.clone(),
                ending: ending.clone(),
                failing_since: None,
                reported: (0, Time::ZERO),
                log: log.clone(),
            });
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(LOOKUP_THREADS)
            .build()?;
        std::thread::Builder::new()
            .name("alarms".to_owned())
            .spawn(move || {
                // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
                let _ = net::block_signals();
                runtime.block_on(async move {
                    let tasks = deliveries.into_iter();
                    let tasks: Vec<_> = tasks.map(|one| tokio::spawn(one.run())).collect();
                    for task in tasks {
                        // A task ends with its queue.
                        let _ = task.await;
                    }
                });
            })?;
        let board: AlarmBoard = log.alarms();
        board.set_receivers(queues.clone());
        Ok(Some(AlarmOutput {
            queues,
            ending,
            clock,
        }))
    }

    /// Waits for a limited time until the notices in the queues are delivered or lost.
    pub(crate) fn end(self) {
        self.ending.has_begun.store(true, Relaxed);
        self.ending.begun.notify_waiters();
        let until = self.clock.now() + END_TIMEOUT;
        let waits = |queue: &NoticeQueue| queue.counters.waiting.load(Relaxed) > 0;
        while self.queues.iter().any(waits) && self.clock.now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The delivery to one receiver.
struct Delivery {
    name: Arc<str>,
    receiver: Receiver,
    notices: mpsc::Receiver<Arc<AlarmNotice>>,
    counters: Arc<ReceiverCounters>,
    retry: Duration,
    source: NoticeSource,
    ending: Arc<Ending>,
    failing_since: Option<Time>,
    /// Losses that were reported, and the time of the last report.
    reported: (u64, Time),
    log: EventLog,
}

impl Delivery {
    async fn run(mut self) {
        loop {
            match timeout(REPORT_INTERVAL, self.notices.recv()).await {
                Ok(Some(notice)) => {
                    self.deliver(&notice).await;
                    self.counters.waiting.fetch_sub(1, Relaxed);
                }
                Ok(None) => return,
                Err(_) => {}
            }
            self.report_losses();
        }
    }

    async fn deliver(&mut self, notice: &AlarmNotice) {
        let mut pause = FIRST_PAUSE;
        loop {
            let lost = self.counters.lost.load(Relaxed);
            let outcome = self.receiver.deliver(notice, &self.source, lost).await;
            let expires = notice.at + self.retry;
            match outcome {
                Ok(()) => {
                    self.counters.sent.fetch_add(1, Relaxed);
                    self.recovered();
                    return;
                }
                Err(DeliveryError::Permanent(reason)) => {
                    self.counters.lost.fetch_add(1, Relaxed);
                    self.failed(reason);
                    return;
                }
                Err(DeliveryError::Transient(reason)) => self.failed(reason),
            }
            let ending = self.ending.has_begun.load(Relaxed);
            if ending || self.source.clock.now() + pause > expires {
                self.counters.lost.fetch_add(1, Relaxed);
                return;
            }
            self.report_losses();
            // The end of the pause, or of the program.
            let _ = timeout(pause, self.ending.begun.notified()).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn tell(&self, kind: EventKind) {
        self.log.event(&Event::new(self.source.clock.now(), kind));
        self.log.flush();
    }

    fn failed(&mut self, reason: String) {
        self.counters.failing.store(true, Relaxed);
        if self.failing_since.is_none() {
            self.failing_since = Some(self.source.clock.now());
            self.tell(EventKind::ReceiverFailed {
                receiver: self.name.to_string(),
                reason,
            });
        }
    }

    fn recovered(&mut self) {
        self.counters.failing.store(false, Relaxed);
        if let Some(since) = self.failing_since.take() {
            self.tell(EventKind::ReceiverRecovered {
                receiver: self.name.to_string(),
                outage_s: self.source.clock.now().since(since).as_secs(),
            });
        }
    }

    fn report_losses(&mut self) {
        let (before, at) = self.reported;
        let (lost, now) = (self.counters.lost.load(Relaxed), self.source.clock.now());
        let due = before == 0 || now.since(at) >= REPORT_INTERVAL;
        if lost > before && due {
            self.reported = (lost, now);
            self.tell(EventKind::ReceiverLost {
                receiver: self.name.to_string(),
                lost: lost - before,
            });
        }
    }
}
