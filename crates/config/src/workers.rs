//! Settings that cannot be combined with several workers are refused before the start.

use super::media::OffloadMode;
use super::model::Config;
use super::sink::Sink;
use engine::Worker;

pub(super) fn check(config: &Config, sink: &mut Sink<'_>) {
    let of = config.sip.workers;
    if of <= 1 {
        return;
    }
    let fewer = format!("set `workers` of [sip] to less than {of}, or remove it");
    if config.media.af_xdp != OffloadMode::Never {
        sink.report(
            "media.af_xdp",
            format!(
                "AF_XDP delivers all media of a network interface to one worker, but there are {of}"
            ),
            "set `workers` of [sip] to 1, or `af_xdp` of [media] to \"never\"",
        );
    }
    for (index, interface) in config.interfaces.iter().enumerate() {
        if interface.listen.iter().any(|at| at.address.port() == 0) {
            sink.report(
                &format!("interface[{index}].listen"),
                format!("{of} workers cannot share a port chosen by the system"),
                "write a port from 1 to 65535",
            );
        }
        let last = Worker {
            number: of - 1,
            count: of,
            ..Worker::default()
        };
        let ranges = interface.media.iter();
        let small = ranges
            .filter_map(|media| config.media_ranges.get(media.range))
            .any(|range| {
                let (first, last) = range.part(&last);
                // A call uses one pair on each side.
                last < first.saturating_add(3)
            });
        if small {
            sink.report(
                &format!("interface[{index}].media"),
                format!("too few media ports for {of} workers: each needs four"),
                fewer.clone(),
            );
        }
    }
    let limits = &config.limits;
    for (what, limit) in [
        ("connections", limits.connections),
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
