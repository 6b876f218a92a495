//! Hosts of a trial on sockets: their common progress, the wait for their end, and remarks on their results.

use super::{HostResults, HostThread, WaitLimits};
use crate::decimal::counted;
use crate::error::LabError;
use crate::host::HostProgress;
use crate::record::{Attempt, StreamRecord};
use engine::{DropReason, Time};
use net::Clock;
use std::ops::ControlFlow;
use std::time::Duration;

/// Progress of all hosts together.
pub(super) fn total_progress(hosts: &[HostThread]) -> Result<HostProgress, LabError> {
    hosts.iter().try_fold(HostProgress::default(), |sum, host| {
        Ok(sum.and(&host.progress()?))
    })
}

fn are_done(hosts: &[HostThread]) -> Result<bool, LabError> {
    hosts
        .iter()
        .try_fold(true, |done, host| Ok(done && host.is_done()?))
}

/// Waits until the calling hosts are done, at most as long as `limits` permits, or until `progress` breaks.
pub(super) fn watch(
    limits: WaitLimits,
    near: &[HostThread],
    clock: Clock,
    start: Time,
    mut progress: impl FnMut(f64, &HostProgress) -> Result<ControlFlow<()>, LabError>,
) -> Result<(), LabError> {
    let mut due = 0;
    let mut last_due = start;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = clock.now();
        let seen = total_progress(near)?;
        if progress(now.since(start).as_secs_f64(), &seen)?.is_break() {
            return Ok(());
        }
        if seen.due > due {
            due = seen.due;
            last_due = now;
        }
        // After an interruption by the user the results so far are collected.
        if net::stops() > 0 || are_done(near)? || limits.is_over(seen.up, now.since(last_due)) {
            return Ok(());
        }
    }
}

/// Each host with the name of its side.
fn by_side<'a>(
    near: &'a [HostResults],
    far: &'a [HostResults],
) -> impl Iterator<Item = (&'static str, &'a HostResults)> {
    let near = near.iter().map(|host| ("callers", host));
    near.chain(far.iter().map(|host| ("callees", host)))
}

/// Responses that do not repeat the fields of their requests, and drops of the hosts by reason, without SIP
/// retransmissions.
pub(super) fn drop_remarks(near: &[HostResults], far: &[HostResults]) -> Vec<String> {
    let mismatched = by_side(near, far).filter_map(|(name, finished)| {
        let count = finished.results.mismatched;
        (count > 0).then(|| {
            format!(
                "the {name} received {} with another Call-ID, CSeq or From tag than the request",
                counted(count, "response")
            )
        })
    });
    let dropped = by_side(near, far).filter_map(|(name, finished)| {
        let drops: Vec<String> = finished
            .drops
            .iter()
            .filter(|(reason, _)| *reason != "sip_retransmission")
            .map(|(reason, count)| format!("{reason} {count}"))
            .collect();
        (!drops.is_empty()).then(|| format!("{name} dropped: {}", drops.join(", ")))
    });
    mismatched.chain(dropped).collect()
}

/// Reasons why TLS or WebSocket connections failed.
pub(super) fn connection_failures(near: &[HostResults], far: &[HostResults]) -> Vec<String> {
    by_side(near, far)
        .flat_map(|(name, finished)| {
            let refused = finished.failed_connections.iter();
            refused.map(move |((what, why), count)| match count {
                1 => format!("{what} of the {name}, {why}"),
                count => format!("{what} of the {name}, {why}; {count} times"),
            })
        })
        .collect()
}

/// Datagrams that the kernel dropped at the sockets of these hosts.
pub(crate) fn kernel_drops<'a>(hosts: impl IntoIterator<Item = &'a HostResults>) -> u64 {
    hosts.into_iter().map(|host| host.kernel_drops).sum()
}

/// Messages at the SIP ports of these hosts that are no SIP: other bytes, and responses that break its grammar.
pub(crate) fn unparsable<'a>(hosts: impl IntoIterator<Item = &'a HostResults>) -> u64 {
    let drops = hosts.into_iter().flat_map(|host| &host.drops);
    let unparsable =
        [DropReason::SipUnparsable, DropReason::SipMalformedResponse].map(DropReason::name);
    drops
        .filter(|(reason, _)| unparsable.contains(reason))
        .map(|(_, count)| *count)
        .sum()
}

/// Makes times relative to the start of the trial.
pub(crate) fn from_start(
    mut attempts: Vec<Attempt>,
    mut streams: Vec<StreamRecord>,
    start: Time,
) -> (Vec<Attempt>, Vec<StreamRecord>) {
    for attempt in &mut attempts {
        attempt.due = attempt.due.saturating_sub(start.0);
        for time in [
            &mut attempt.sent,
            &mut attempt.first_answer,
            &mut attempt.ringing,
            &mut attempt.established,
            &mut attempt.hung_up,
            &mut attempt.ended,
        ]
        .into_iter()
        .flatten()
        {
            *time = time.saturating_sub(start.0);
        }
    }
    for stream in &mut streams {
        for time in [&mut stream.first, &mut stream.last].into_iter().flatten() {
            *time = time.saturating_sub(start.0);
        }
    }
    (attempts, streams)
}

#[cfg(test)]
mod tests {
    use super::super::TrialHosts;
    use super::*;
    use crate::experiment::File;
    use engine::Entropy;
    use std::net::{SocketAddr, UdpSocket};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Answers each INVITE with 200, and sends no BYE.
    fn answer_invites(socket: &UdpSocket, own: SocketAddr) {
        let mut room = [0; 4096];
        let Ok((length, from)) = socket.recv_from(&mut room) else {
            return;
        };
        let text = String::from_utf8_lossy(&room[..length]).into_owned();
        if !text.starts_with("INVITE ") {
            return;
        }
        let kept = ["Via: ", "From: ", "Call-ID: ", "CSeq: "];
        let lines = text
            .lines()
            .filter(|l| kept.iter().any(|k| l.starts_with(k)));
        let lines: String = lines.map(|line| format!("{line}\r\n")).collect();
        let to = text.lines().find(|line| line.starts_with("To: ")).unwrap();
        let body = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 6000 RTP/AVP 8\r\n";
        let answer = format!(
            "SIP/2.0 200 OK\r\n{lines}{to};tag=x\r\nContact: <sip:x@{own}>\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let _ = socket.send_to(answer.as_bytes(), from);
    }

    #[test]
    fn missing_bye_is_not_waited_for() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let own = socket.local_addr().unwrap();
        let wait = Some(Duration::from_millis(50));
        socket.set_read_timeout(wait).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let stop = over.clone();
        let peer = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                answer_invites(&socket, own);
            }
        });
        let text = format!(
            "name = \"t\"\ntitle = \"t\"\n[sut]\naddress = \"{own}\"\n[callers]\nrate = 10.0\ntotal = 2\nhold_seconds = 0.1\nhang_up = \"callee\"\n"
        );
        let experiment = File::parse("t", &text).unwrap().experiment().clone();
        let cast = TrialHosts::of(&experiment, own.ip(), own.ip(), 0).unwrap();
        let clock = Clock::new();
        let entropy = Entropy::from_number(1);
        let near = HostThread::start(cast.near, None, entropy, clock).unwrap();
        let start = clock.now() + Duration::from_millis(200);
        near.begin(own, start).unwrap();
        let near = [near];
        let mut most = 0;
        let seen = |up: &mut u64, seen: &HostProgress| *up = seen.up.max(*up);
        // Both calls are up, and neither side sends BYE.
        let limit = clock.now() + Duration::from_secs(60);
        while most < 2 {
            seen(&mut most, &total_progress(&near).unwrap());
            assert!(clock.now() < limit, "{most}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let limits = WaitLimits {
            settle: Duration::from_millis(100),
            life: Duration::from_millis(400),
        };
        watch(limits, &near, clock, start, |_, progress| {
            seen(&mut most, progress);
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
        assert!(!are_done(&near).unwrap());
        assert_eq!(most, 2);
        over.store(true, Ordering::Relaxed);
        peer.join().unwrap();
    }
}
