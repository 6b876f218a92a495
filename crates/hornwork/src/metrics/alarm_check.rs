//! The periodic check of alarms: figures of all threads, and the space of file systems.

use crate::alarms::{CHECK_INTERVAL, WatchedDisk, WatchedFigures, WrittenFolders};
use crate::operators::{Operators, Statistics};
use engine::{DropReason, Event};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// The figures that alarms watch.
fn figures_of(statistics: &Statistics, clock_error: Duration) -> WatchedFigures {
    let counters = &statistics.counters;
    let shed = statistics.drops.get(DropReason::SipShed);
    WatchedFigures {
        packets: statistics.counts.reported_packets,
        lost: statistics.counts.reported_lost,
        refused: counters.authentication_failed + counters.shielded + counters.shed + shed,
        store_lost: statistics.store.map_or(0, |store| store.lost.total()),
        overload: statistics.overload.active,
        queue_delay: statistics.overload.queue_delay,
        clock_error,
    }
}

/// Longest wait for the space of file systems; it is asked for again at the next check.
const LONGEST_MEASUREMENT: Duration = Duration::from_secs(1);

/// Checks alarms until the program ends.
pub(super) async fn check_alarms(operators: Operators, folders: WrittenFolders) {
    let mut measuring: Option<JoinHandle<Vec<WatchedDisk>>> = None;
    loop {
        sleep(CHECK_INTERVAL).await;
        // On a thread of its own, of which there is one: a remote file system may not answer.
        let folders = folders.clone();
        let begin = || tokio::task::spawn_blocking(move || folders.disks());
        let mut task = measuring.take().unwrap_or_else(begin);
        match timeout(LONGEST_MEASUREMENT, &mut task).await {
            Ok(disks) => {
                let now = operators.clock.now();
                for event in operators
                    .alarms
                    .check_disks(&disks.unwrap_or_default(), now)
                {
                    operators.log.event(&Event::new(now, event));
                }
            }
            Err(_) => measuring = Some(task),
        }
        let Ok(statistics) = operators.statistics().await else {
            continue;
        };
        let now = operators.clock.now();
        let wall = operators.clock.unix_nanos_now();
        let error = Duration::from_nanos(wall.abs_diff(operators.clock.unix_nanos(now)));
        let figures = figures_of(&statistics, error);
        let alarms = &operators.alarms;
        let events = alarms.check_nodes(&statistics.nodes, now).into_iter();
        for event in events.chain(alarms.check(&figures, now)) {
            operators.log.event(&Event::new(now, event));
        }
        operators.log.flush();
    }
}
