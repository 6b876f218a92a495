//! Calls that wait for a media socket.

use super::super::HostState;
use super::{HostCallKey, HostCallPhase};
use crate::record::{AttemptOutcome, SocketShortage};
use engine::{SocketId, Time};
use sip::{Endpoint, MessageContent};
use std::net::SocketAddr;

impl HostState {
    pub(crate) fn media_opened(
        &mut self,
        endpoint: &mut Endpoint,
        socket: SocketId,
        local: SocketAddr,
        now: Time,
    ) {
        self.media.opened(socket, local);
        while let Some(key) = self.waiting_calls.pop_front() {
            let Some(phase) = self.call(key).map(|call| call.phase) else {
                continue;
            };
            if self.find_socket(key) {
                match phase {
                    HostCallPhase::Waiting => self.place(endpoint, key, now),
                    _ => self.plan_answer(endpoint, key, now),
                }
            }
            return;
        }
    }

    pub(crate) fn media_failed(
        &mut self,
        endpoint: &mut Endpoint,
        socket: SocketId,
        error: &str,
        now: Time,
    ) {
        self.media.failed(socket);
        let Some(key) = self.waiting_calls.pop_front() else {
            // A socket of the prefetched pool.
            self.fatal
                .get_or_insert_with(|| format!("media socket: {error}"));
            return;
        };
        if self.call(key).is_some() {
            SocketShortage::add(&mut self.shortage, error);
            self.end_without_socket(endpoint, key, error, now);
        }
    }

    /// A call that was offered is refused at once: the trial does not wait for its caller's limit.
    fn end_without_socket(
        &mut self,
        endpoint: &mut Endpoint,
        key: HostCallKey,
        error: &str,
        now: Time,
    ) {
        let Some(call) = self.call(key) else { return };
        let offered = (call.leg).filter(|_| call.phase == HostCallPhase::Offered);
        let mut why = format!("media socket: {error}");
        let status = match offered {
            None => 0,
            Some(leg) => {
                if let Err(refused) = endpoint.reject(leg, 500, &MessageContent::default(), now) {
                    why = format!("{why}; 500: {refused}");
                }
                500
            }
        };
        self.end(key, AttemptOutcome::CouldNotStart, status, why, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::File;
    use crate::host::{HostPlan, LabHost};
    use crate::trial::TrialHosts;
    use engine::{Datagram, Engine, Entropy, Input, Output};

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// Outputs of a host: opened sockets, and the first lines of datagrams.
    fn outputs(host: &mut LabHost) -> (Vec<SocketId>, Vec<String>) {
        let (mut opened, mut sent) = (Vec::new(), Vec::new());
        while let Some(output) = host.next_output() {
            match output {
                Output::OpenSocket { socket, .. } => opened.push(socket),
                Output::Datagram { bytes, .. } => {
                    let text = String::from_utf8_lossy(bytes);
                    sent.extend(text.lines().next().map(str::to_owned));
                }
                _ => {}
            }
        }
        (opened, sent)
    }

    /// A host whose signalling sockets are open, and that has begun.
    fn begun(plan: HostPlan) -> LabHost {
        let plan = HostPlan {
            media_sockets: 0,
            ..plan
        };
        let mut host = LabHost::new(plan, Entropy::from_number(1));
        let mut waiting = outputs(&mut host).0;
        while let Some(socket) = waiting.pop() {
            let local = at(5_070);
            host.handle(Input::Opened { socket, local }, Time::from_millis(1));
            waiting.extend(outputs(&mut host).0);
        }
        host.begin(at(5_060), Time::from_millis(10));
        host
    }

    fn hosts() -> TrialHosts {
        let text = "name = \"t\"\ntitle = \"t\"\n[sut]\ndirect = true\n[callers]\nrate = 5.0\ntotal = 1\n\
                    hold_seconds = 1.0\nmedia = \"tone\"\n[callees]\nmedia = \"tone\"\n";
        let file = File::parse("t", text).unwrap();
        TrialHosts::of(file.experiment(), at(0).ip(), at(0).ip(), 0).unwrap()
    }

    #[test]
    fn call_that_gets_no_socket_is_counted_as_a_shortage() {
        let mut host = begun(hosts().near);
        let mut opened = Vec::new();
        for ms in 10..1_000 {
            host.handle(Input::Timeout, Time::from_millis(ms));
            opened.extend(outputs(&mut host).0);
        }
        let [socket] = opened[..] else {
            panic!("{opened:?}");
        };
        let error = "Too many open files";
        host.handle(Input::OpenFailed { socket, error }, Time::from_secs(1));
        let results = host.finish(Time::from_secs(1));
        assert_eq!(results.attempts[0].outcome, AttemptOutcome::CouldNotStart);
        let shortage = results.shortage.unwrap();
        assert_eq!((shortage.calls, shortage.error.as_str()), (1, error));
    }

    #[test]
    fn called_side_without_a_socket_refuses_the_call() {
        let mut host = begun(hosts().far.unwrap());
        let body = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 6000 RTP/AVP 8\r\n";
        let mut invite = format!(
            "INVITE sip:b@127.0.0.1:5070 SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1:5060;branch=z9hG4bKx\r\n\
             From: <sip:a@127.0.0.1>;tag=1\r\nTo: <sip:b@127.0.0.1>\r\nCall-ID: c1\r\nCSeq: 1 INVITE\r\n\
             Contact: <sip:a@127.0.0.1:5060>\r\nMax-Forwards: 70\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes();
        let now = Time::from_millis(20);
        host.handle(
            Input::Datagram(Datagram {
                socket: SocketId(0),
                source: at(5_060),
                arrived: now,
                bytes: &mut invite,
            }),
            now,
        );
        let (opened, _) = outputs(&mut host);
        let [socket] = opened[..] else {
            panic!("{opened:?}");
        };
        let error = "Too many open files";
        host.handle(Input::OpenFailed { socket, error }, now);
        let (_, sent) = outputs(&mut host);
        assert!(
            sent.iter().any(|line| line.starts_with("SIP/2.0 500 ")),
            "{sent:?}"
        );
        let results = host.finish(Time::from_secs(1));
        assert_eq!(results.shortage.unwrap().calls, 1);
    }
}
