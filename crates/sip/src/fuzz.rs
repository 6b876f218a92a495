//! Fuzz target: arbitrary bytes, time and commands into an endpoint. Tests replay its findings.

use crate::api::*;
use crate::{Endpoint, EndpointConfig, SessionConfig};
use core::time::Duration;
use engine::{
    CloseReason, ConnectionId, Datagram, Entropy, Input, Limits, Output, SocketId, Time, Transport,
};
use std::net::SocketAddr;
use wire::sip::Method;

const TRANSACTIONS: usize = 200;
const CALLS: usize = 40;
const CONNECTIONS: usize = 8;
const SDP: &[u8] = b"v=0\r\n";

/// The last output, so that the input can contain responses to it.
#[derive(Default)]
struct LastOutput {
    last: Vec<u8>,
}

/// A handler whose commands are chosen by the input.
struct FuzzHandler {
    choice: u8,
    legs: Vec<LegId>,
    waiting: Vec<ServerTransaction>,
    dialogs: Vec<DialogId>,
    /// Indications received, one bit for each kind.
    seen: u32,
}

/// The index of an indication's kind.
fn indication_index(indication: &Indication<'_>) -> u32 {
    match indication {
        Indication::Offered { .. } => 0,
        Indication::Progressed { .. } => 1,
        Indication::Answered { .. } => 2,
        Indication::Failed { .. } => 3,
        Indication::Acked { .. } => 4,
        Indication::Cancelled { .. } => 5,
        Indication::Pracked { .. } => 6,
        Indication::Request { .. } => 7,
        Indication::RequestCancelled { .. } => 8,
        Indication::Response { .. } => 9,
        Indication::TimedOut { .. } => 10,
        Indication::OutOfDialog { .. } => 11,
        Indication::OutOfDialogResponse { .. } => 12,
        Indication::OutOfDialogTimedOut { .. } => 13,
        Indication::Ended { .. } => 14,
        Indication::RefreshDue { .. } => 15,
        Indication::SessionExpired { .. } => 16,
        Indication::FlowFailed { .. } => 17,
        Indication::InDialog { .. } => 18,
    }
}

impl FuzzHandler {
    fn act(&mut self, endpoint: &mut Endpoint, leg: LegId, now: Time) {
        let content = match self.choice & 1 {
            0 => MessageContent::default(),
            _ => MessageContent::sdp(SDP),
        };
        // Commands that do not fit the leg's state must be refused without effect.
        let _ = match self.choice >> 1 & 15 {
            0 => endpoint
                .progress(leg, 180, &content, false, now)
                .map(|_| ()),
            1 => endpoint.progress(leg, 183, &content, true, now).map(|_| ()),
            2 | 3 => endpoint.answer(leg, 200, &content, now),
            4 => endpoint.reject(leg, 486, &content, now),
            5 => endpoint.cancel(leg, &content, now),
            6 | 7 => endpoint.ack(leg, &content, now),
            8 => endpoint.bye(leg, &content, now),
            9 => endpoint.hang_up(leg, &content, now),
            10 => endpoint
                .request(leg, Method::Invite, &content, now)
                .map(|_| ()),
            11 => endpoint
                .request(leg, Method::Update, &content, now)
                .map(|_| ()),
            12 => endpoint.prack(leg, Fork(0), &content, now).map(|_| ()),
            13 => endpoint.notify_refer(leg, 200, b"OK", now).map(|_| ()),
            14 => endpoint
                .request(leg, Method::Info, &content, now)
                .map(|_| ()),
            _ => Ok(()),
        };
    }
}

impl Handler for FuzzHandler {
    fn on_indication(&mut self, endpoint: &mut Endpoint, indication: Indication<'_>, now: Time) {
        self.seen |= 1 << indication_index(&indication);
        if let Indication::OutOfDialog {
            transaction,
            request,
            flow,
        } = &indication
            && self.choice & 4 != 0
            && self.dialogs.len() < CALLS
        {
            let pinned = self.choice & 8 != 0;
            let dialog = endpoint.open_dialog(*transaction, request, *flow, pinned, 7);
            self.dialogs.extend(dialog);
        }
        if let (Some(&dialog), true) = (self.dialogs.last(), self.choice & 16 != 0) {
            let content = MessageContent::default();
            // As above.
            let _ = endpoint.dialog_request(dialog, Method::Notify, &content, 7, None, now);
        }
        match indication {
            Indication::Offered { leg, .. } => {
                self.legs.push(leg);
                self.act(endpoint, leg, now);
            }
            Indication::Progressed { leg, .. }
            | Indication::Answered { leg, .. }
            | Indication::Acked { leg, .. }
            | Indication::Response { leg, .. }
            | Indication::RefreshDue { leg }
            | Indication::SessionExpired { leg }
            | Indication::Failed { leg, .. }
            | Indication::Ended { leg, .. } => self.act(endpoint, leg, now),
            Indication::Pracked { transaction, .. }
            | Indication::Request { transaction, .. }
            | Indication::InDialog { transaction, .. }
            | Indication::OutOfDialog { transaction, .. } => match self.choice & 3 {
                0 => self.waiting.push(transaction),
                choice => {
                    let status = [200, 202, 488][usize::from(choice - 1) % 3];
                    // Refused if the endpoint has answered by itself.
                    let _ = endpoint.respond(transaction, status, &MessageContent::default(), now);
                }
            },
            _ => {}
        }
    }
}

fn config() -> EndpointConfig {
    EndpointConfig {
        session: Some(SessionConfig {
            expires: 100,
            min_se: 90,
        }),
        limits: Limits {
            calls: CALLS,
            transactions: TRANSACTIONS,
            connections: CONNECTIONS,
            connections_per_source: 4,
            message_bytes: 4_096,
            ..Limits::default()
        },
        ..EndpointConfig::default()
    }
}

/// See [`run_steps`].
pub fn fuzz_endpoint(data: &[u8]) {
    run_steps(data);
}

/// Reads `data` as a list of steps (datagrams, stream data, time, commands, responses to the endpoint's output) and
/// performs them. Panics if a limit is exceeded, or if something is left at the end. Returns a bit for each kind of
/// indication, so that tests can check the coverage of their steps.
pub fn run_steps(data: &[u8]) -> u32 {
    let mut endpoint = Endpoint::new(config(), Entropy::from_number(1));
    let address: SocketAddr = SocketAddr::from(([192, 0, 2, 1], 5060));
    let mut locals = Vec::new();
    for (socket, transport) in [(1, Transport::Udp), (2, Transport::Tcp)] {
        locals.push(endpoint.add_listener(ListenerConfig {
            name: String::from("f"),
            socket: SocketId(socket),
            transport,
            address,
            advertised: String::new(),
        }));
    }
    let mut handler = FuzzHandler {
        choice: 0,
        legs: Vec::new(),
        waiting: Vec::new(),
        dialogs: Vec::new(),
        seen: 0,
    };
    let mut last_output = LastOutput::default();
    let mut now = Time::ZERO;
    let mut rest = data;
    while let [kind, choice, length, tail @ ..] = rest {
        let length = usize::from(*length).saturating_mul(4).min(tail.len());
        let (bytes, tail) = tail.split_at(length);
        rest = tail;
        handler.choice = *choice;
        step(
            &mut endpoint,
            &mut handler,
            &locals,
            &mut last_output,
            *kind,
            bytes,
            &mut now,
        );
        drain(&mut endpoint, &mut last_output);
        let census = endpoint.census();
        assert!(
            census.clients + census.servers <= TRANSACTIONS,
            "{census:?}"
        );
        assert!(census.legs <= CALLS * 2, "{census:?}");
        assert!(census.connections <= 2 * CONNECTIONS, "{census:?}");
        assert!(census.timers <= TRANSACTIONS + CALLS * 2 * 3, "{census:?}");
    }
    finish(&mut endpoint, &mut handler, &mut last_output, now);
    handler.seen
}

fn step(
    endpoint: &mut Endpoint,
    handler: &mut FuzzHandler,
    locals: &[ListenerId],
    last_output: &mut LastOutput,
    kind: u8,
    bytes: &[u8],
    now: &mut Time,
) {
    let source = SocketAddr::from(([192, 0, 2, 9], 5060 + u16::from(handler.choice & 3)));
    let connection = ConnectionId(ConnectionId::ACCEPTED | u64::from(handler.choice & 15));
    match kind % 11 {
        0 | 1 => datagram(endpoint, handler, bytes, source, *now),
        2 => {
            let input = Input::Accepted {
                connection,
                socket: SocketId(2),
                local: SocketAddr::from(([192, 0, 2, 1], 5060)),
                remote: source,
            };
            endpoint.feed(input, *now, handler);
        }
        3 => endpoint.feed(Input::Stream { connection, bytes }, *now, handler),
        4 => {
            let input = Input::Closed {
                connection,
                reason: CloseReason::Peer,
            };
            endpoint.feed(input, *now, handler);
        }
        5 => {
            *now += Duration::from_millis(1 << (handler.choice % 18));
            endpoint.feed(Input::Timeout, *now, handler);
        }
        6 => open(endpoint, handler, locals, source, *now),
        7 => {
            if let Some(&leg) = handler.legs.get(usize::from(handler.choice >> 5)) {
                handler.act(endpoint, leg, *now);
            }
            if let Some(transaction) = handler.waiting.pop() {
                // Refused if it has ended.
                let _ = endpoint.respond(transaction, 200, &MessageContent::sdp(SDP), *now);
            }
        }
        8 => {
            let reply = response_to(&last_output.last, handler.choice, bytes);
            datagram(endpoint, handler, &reply, source, *now);
        }
        9 => {
            let request = new_request(handler.choice, bytes);
            datagram(endpoint, handler, &request, source, *now);
        }
        _ => {
            let reply = request_of_peer(&last_output.last, handler.choice);
            datagram(endpoint, handler, &reply, source, *now);
        }
    }
}

fn datagram(
    endpoint: &mut Endpoint,
    handler: &mut FuzzHandler,
    bytes: &[u8],
    source: SocketAddr,
    now: Time,
) {
    let mut bytes = bytes.to_vec();
    let datagram = Datagram {
        socket: SocketId(1),
        source,
        arrived: now,
        bytes: &mut bytes,
    };
    endpoint.feed(Input::Datagram(datagram), now, handler);
}

fn open(
    endpoint: &mut Endpoint,
    handler: &mut FuzzHandler,
    locals: &[ListenerId],
    source: SocketAddr,
    now: Time,
) {
    let at = usize::from(handler.choice >> 6 & 1);
    let Some(&local) = locals.get(at) else {
        return;
    };
    let flow = Flow {
        local,
        transport: [Transport::Udp, Transport::Tcp][at],
        remote: source,
        connection: None,
    };
    let target = Target::new(b"sip:x@192.0.2.9", flow);
    let login = Some(Login {
        user: b"u",
        password: b"p",
    });
    if handler.choice & 1 == 0 {
        let invite = Invite {
            content: MessageContent::sdp(SDP),
            login,
            ..Invite::new(target)
        };
        if let Ok(leg) = endpoint.invite(&invite, now) {
            handler.legs.push(leg);
        }
    } else {
        let outside = OutOfDialogRequest {
            login,
            ..OutOfDialogRequest::new(Method::Options, target)
        };
        // Refused if tables are full.
        let _ = endpoint.send(&outside, now);
    }
}

/// A response to the last request sent.
fn response_to(request: &[u8], choice: u8, extra: &[u8]) -> Vec<u8> {
    let Ok(message) = wire::sip::Message::parse(request) else {
        return extra.to_vec();
    };
    const STATUS: [u16; 12] = [100, 180, 183, 200, 200, 302, 401, 407, 422, 481, 486, 491];
    let status = STATUS[usize::from(choice) % STATUS.len()];
    let mut out = Vec::new();
    let tag = [
        b"t",
        &extra[..extra.len().min(1)]
            .escape_ascii()
            .to_string()
            .into_bytes()[..],
    ]
    .concat();
    wire::sip::Response {
        to_tag: Some(&tag),
        ..wire::sip::Response::new(&message, status, b"X")
    }
    .write(
        |writer| {
            writer.header_named(b"Contact", b"<sip:y@192.0.2.9:5060>");
            if choice & 32 != 0 {
                writer.header_named(b"Allow", b"UPDATE");
            }
            if choice & 64 != 0 {
                writer.header_named(b"Require", b"100rel");
                writer.header_named(b"RSeq", b"1");
                writer.header_named(b"Session-Expires", b"90;refresher=uac");
            }
            if status == 401 || status == 407 {
                let name: &[u8] = if status == 401 {
                    b"WWW-Authenticate"
                } else {
                    b"Proxy-Authenticate"
                };
                writer.header_named(name, b"Digest realm=\"r\", nonce=\"n\", qop=\"auth\"");
            }
            writer.header_named(b"Min-SE", b"300");
        },
        &mut out,
    );
    out
}

/// A request of the peer in the dialog of the last output: From and To are exchanged if that was a request; ACK and
/// CANCEL have branch and CSeq of the response, PRACK its RSeq.
fn request_of_peer(message: &[u8], choice: u8) -> Vec<u8> {
    let Ok(message) = wire::sip::Message::parse(message) else {
        return Vec::new();
    };
    use wire::sip::HeaderId;
    const METHODS: [&str; 12] = [
        "INVITE", "ACK", "BYE", "UPDATE", "PRACK", "INFO", "CANCEL", "REFER", "NOTIFY", "PRACK",
        "ACK", "CANCEL",
    ];
    let method = METHODS[usize::from(choice) % METHODS.len()];
    let text = |id| String::from_utf8_lossy(message.header(id).unwrap_or_default()).into_owned();
    let (from, to) = match message.is_request() {
        true => (HeaderId::To, HeaderId::From),
        false => (HeaderId::From, HeaderId::To),
    };
    let number = message.cseq().map_or(1, |cseq| cseq.number);
    let (via, number) = match method {
        "ACK" | "CANCEL" if !message.is_request() => (text(HeaderId::Via), number),
        _ => (
            format!("SIP/2.0/UDP 192.0.2.9:5060;branch=z9hG4bK{choice}"),
            number + 1 + u32::from(choice >> 6),
        ),
    };
    let rseq = message.rseq().unwrap_or(1);
    format!(
        "{method} sip:a@192.0.2.1 SIP/2.0\r\nVia: {via}\r\nFrom: {}\r\nTo: {}\r\nCall-ID: {}\r\n\
         CSeq: {number} {method}\r\nRAck: {rseq} {} INVITE\r\nContact: <sip:y@192.0.2.9:5061>\r\n\
         Content-Length: 0\r\n\r\n",
        text(from),
        text(to),
        text(HeaderId::CallId),
        message.cseq().map_or(1, |cseq| cseq.number),
    )
    .into_bytes()
}

/// A new request.
fn new_request(choice: u8, extra: &[u8]) -> Vec<u8> {
    let method = ["INVITE", "INVITE", "INVITE", "OPTIONS"][usize::from(choice & 3)];
    let more = match choice >> 2 & 3 {
        0 => "Supported: 100rel, timer\r\nSession-Expires: 120;refresher=uas\r\n",
        1 => "Require: 100rel\r\n",
        2 => "Supported: timer\r\nSession-Expires: 10\r\n",
        _ => "",
    };
    let id = extra.first().copied().unwrap_or(choice);
    format!(
        "{method} sip:a@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.9:5060;branch=z9hG4bKf{id}\r\n\
         From: <sip:y@192.0.2.9>;tag=y\r\nTo: <sip:a@192.0.2.1>\r\nCall-ID: {id}\r\nCSeq: 1 {method}\r\n\
         {more}Contact: <sip:y@192.0.2.9:5061>\r\nContent-Length: 0\r\n\r\n"
    )
    .into_bytes()
}

fn drain(endpoint: &mut Endpoint, last_output: &mut LastOutput) {
    while let Some(output) = endpoint.next_output() {
        if let Output::Datagram { bytes, .. } | Output::Stream { bytes, .. } = output
            && bytes.len() > 4
        {
            last_output.last = bytes.to_vec();
        }
    }
}

/// Hangs up every leg; then time alone must end everything.
fn finish(
    endpoint: &mut Endpoint,
    handler: &mut FuzzHandler,
    last_output: &mut LastOutput,
    mut now: Time,
) {
    handler.choice = 0xff;
    for dialog in handler.dialogs.drain(..) {
        endpoint.close_dialog(dialog);
    }
    for _ in 0..4 {
        for &leg in &handler.legs.clone() {
            // Refused if it is ending or has ended.
            let _ = endpoint.hang_up(leg, &MessageContent::default(), now);
        }
        drain(endpoint, last_output);
        let until = now + Duration::from_secs(100);
        while let Some(deadline) = endpoint.next_deadline().filter(|d| d.at <= until) {
            now = now.max(deadline.at);
            endpoint.feed(Input::Timeout, now, handler);
            drain(endpoint, last_output);
        }
        now = until;
        endpoint.feed(Input::Timeout, now, handler);
    }
    let mut census = endpoint.census();
    // A call that rings without end has to be ended by its handler; legs that were not indicated may remain.
    for &leg in &handler.legs {
        assert!(
            endpoint.state_of(leg).is_none(),
            "{:?} {census:?}",
            endpoint.state_of(leg)
        );
    }
    census.connections = 0;
    assert!(census.is_quiet(), "{census:?}");
}
