//! What several workers cannot share is refused before they start.

use super::check::Sink;
use super::{Config, Wanted};
use engine::Worker;

pub(super) fn check(config: &Config, sink: &mut Sink<'_>) {
    let of = config.sip.workers;
    if of <= 1 {
        return;
    }
    let fewer = format!("set `workers` of [sip] to less than {of}, or leave it out");
    if config.media.af_xdp != Wanted::Never {
        sink.report(
            "media.af_xdp",
            format!("AF_XDP leads all media of an interface to one worker, but there are {of}"),
            "set `workers` of [sip] to 1, or `af_xdp` of [media] to \"never\"",
        );
    }
    for (index, interface) in config.interfaces.iter().enumerate() {
        if interface.listen.iter().any(|at| at.address.port() == 0) {
            sink.report(
                &format!("interface[{index}].listen"),
                format!("{of} workers cannot share a port that the system chooses"),
                "write the port",
            );
        }
        let last = Worker {
            number: of - 1,
            of,
            ..Worker::default()
        };
        let ranges = interface.media.iter();
        let small = ranges
            .filter_map(|media| config.media_ranges.get(media.range))
            .any(|range| {
                let (first, last) = range.part(&last);
                // A call takes a pair on each side.
                last < first.saturating_add(3)
            });
        if small {
            sink.report(
                &format!("interface[{index}].media"),
                format!(
                    "the media ports are too few to be divided among {of} workers: each needs four"
                ),
                fewer.clone(),
            );
        }
    }
    let limits = &config.limits;
    for (what, limit) in [
        ("connections", limits.connections),
        ("connections_per_source", limits.connections_per_source),
        ("transactions", limits.transactions),
        ("registrations", limits.registrations),
    ] {
        if limit < usize::from(of) {
            sink.report(
                &format!("limits.{what}"),
                format!("`{what}` ({limit}) cannot be divided among {of} workers"),
                fewer.clone(),
            );
        }
    }
}
