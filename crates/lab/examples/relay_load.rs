//! Media through a relay, for `make bench`: sets calls up, plays 20 ms packets of G.729 or G.711 in both directions of
//! each, and measures received packets, their delay, and the CPU time of the relay.
//!
//! `relay_load border SIP_ADDRESS PROCESS CALLS SECONDS [BYTES [srtp]]` calls through a border whose trunk is at port
//! 5080; `relay_load rtpengine NG_ADDRESS PROCESS CALLS SECONDS [BYTES [srtp]]` commands a media proxy over its ng
//! protocol. BYTES is the payload of a packet: 20 (G.729, default) or 160 (G.711). With `srtp` the callers use SRTP
//! (SDES, AES_CM_128_HMAC_SHA1_80) and the callees RTP. `burst=MICROSECONDS` as last word sends all packets of such an
//! interval at its end, as media servers with a timer do; by default each packet leaves at a time of its own. The
//! output is one line of figures.

use engine::MediaPacket;
use protect::sdes::CryptoAttribute;
use protect::srtp::{ContextLimits, Inbound, MasterKey, Outbound};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Packet time.
const PACKET_TIME: Duration = Duration::from_millis(20);
/// Time before the measurement, in which addresses are learned.
const WARM_UP: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(5);
const RTP_HEADER: usize = 12;
/// Octets at the start of our payloads: number of the stream, nanoseconds since the start.
const MARK: usize = 12;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The two ends of all calls, one socket each; streams are identified by their payload.
struct Ends {
    sockets: [UdpSocket; 2],
    ports: [u16; 2],
}

/// The SDES key of all callers with SRTP.
const CRYPTO: &str = "1 AES_CM_128_HMAC_SHA1_80 inline:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwd";

/// Media addresses of a call at the relay.
struct Ways {
    /// From the caller, from the callee.
    to: [SocketAddr; 2],
    /// The relay's key towards the caller.
    key: Option<MasterKey>,
}

/// Payload size, and whether the callers use SRTP.
#[derive(Clone, Copy)]
struct Kind {
    bytes: usize,
    keys: bool,
    /// Nanoseconds whose packets leave at once; 1 for none.
    burst: u64,
}

fn main() -> Outcome<()> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let burst = match words.last().and_then(|word| word.strip_prefix("burst=")) {
        Some(micros) => 1_000 * micros.parse::<u64>()?.max(1),
        None => 1,
    };
    words.retain(|word| !word.starts_with("burst="));
    let [kind, address, process, calls, seconds, rest @ ..] = words.as_slice() else {
        return Err(
            "usage: relay_load border|rtpengine ADDRESS PROCESS CALLS SECONDS [BYTES [srtp]] [burst=MICROSECONDS]"
                .into(),
        );
    };
    let address: SocketAddr = address.parse()?;
    let process: u32 = process.parse()?;
    let calls: usize = calls.parse()?;
    let span = Duration::from_secs_f64(seconds.parse()?);
    let bytes: usize = rest.first().map_or(Ok(20), |word| word.parse())?;
    if bytes < MARK || calls == 0 {
        return Err(format!("at least one call and {MARK} bytes").into());
    }
    let keys = match rest.get(1).map(String::as_str) {
        None => false,
        Some("srtp") => true,
        Some(other) => return Err(format!("{other}: only srtp can stand there").into()),
    };
    let what = Kind { bytes, keys, burst };
    let ends = Ends::open()?;
    let ways = match kind.as_str() {
        "border" => border(address, &ends, calls, what)?,
        "rtpengine" => rtpengine(address, &ends, calls, what)?,
        other => return Err(format!("no relay of this program's: {other}").into()),
    };
    let figures = play(&ends, ways, span, what, process)?;
    println!("{figures}");
    Ok(())
}

impl Ends {
    fn open() -> Outcome<Ends> {
        let sockets = [
            UdpSocket::bind("127.0.0.1:0")?,
            UdpSocket::bind("127.0.0.1:0")?,
        ];
        let mut ports = [0; 2];
        for (port, socket) in ports.iter_mut().zip(&sockets) {
            socket.set_nonblocking(true)?;
            *port = socket.local_addr()?.port();
        }
        Ok(Ends { sockets, ports })
    }
}

/// The SDP of one end, with its key for SRTP.
fn sdp(port: u16, bytes: usize, keys: bool) -> String {
    let format = if bytes == 160 { 0 } else { 18 };
    let (profile, key) = match keys {
        true => ("RTP/SAVP", format!("a=crypto:{CRYPTO}\r\n")),
        false => ("RTP/AVP", String::new()),
    };
    format!(
        "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {port} {profile} {format}\r\n{key}"
    )
}

/// The key in an SDP, if `wanted`.
fn key_of(text: &str, wanted: bool) -> Outcome<Option<MasterKey>> {
    if !wanted {
        return Ok(None);
    }
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("a=crypto:"))
        .ok_or(format!("no key in: {text}"))?;
    let attribute = CryptoAttribute::parse(line.trim().as_bytes())
        .map_err(|error| format!("{line}: {error:?}"))?;
    Ok(attribute.keys.into_iter().next())
}

/// Address and port of the audio line of an SDP.
fn media_of(text: &str) -> Outcome<SocketAddr> {
    let after = |start: &str| {
        text.split(start)
            .nth(1)
            .ok_or(format!("no {start} in: {text}"))
    };
    let host = after("c=IN IP4 ")?;
    let port = after("m=audio ")?;
    let word = |text: &str| {
        text.split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    Ok(SocketAddr::new(word(host).parse()?, word(port).parse()?))
}

/// The value of a header field.
fn field<'a>(message: &'a str, name: &str) -> &'a str {
    let line = message.lines().find_map(|line| {
        let (known, value) = line.split_once(':')?;
        known.eq_ignore_ascii_case(name).then(|| value.trim())
    });
    line.unwrap_or_default()
}

/// All lines of a header field.
fn fields(message: &str, name: &str) -> String {
    let head = message.split("\r\n\r\n").next().unwrap_or_default();
    let with = format!("{}:", name.to_ascii_lowercase());
    let lines = head
        .lines()
        .filter(|line| line.to_ascii_lowercase().starts_with(&with));
    lines.map(|line| format!("{line}\r\n")).collect()
}

fn read(socket: &UdpSocket) -> Outcome<Option<(String, SocketAddr)>> {
    let mut bytes = [0; 4096];
    match socket.recv_from(&mut bytes) {
        Ok((length, from)) => Ok(Some((
            String::from_utf8_lossy(&bytes[..length]).into_owned(),
            from,
        ))),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sets up calls through a border, one after the other.
fn border(target: SocketAddr, ends: &Ends, calls: usize, what: Kind) -> Outcome<Vec<Ways>> {
    let caller = UdpSocket::bind("127.0.0.1:5061")?;
    let callee = UdpSocket::bind("127.0.0.1:5080")?;
    caller.set_nonblocking(true)?;
    callee.set_nonblocking(true)?;
    let mut ways = Vec::new();
    for number in 0..calls {
        let offer = sdp(ends.ports[0], what.bytes, what.keys);
        let invite = format!(
            "INVITE sip:{number}@{target} SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1:5061;branch=z9hG4bKrelay{number}\r\nMax-Forwards: 70\r\nFrom: <sip:a@127.0.0.1>;tag=a{number}\r\nTo: <sip:{number}@{target}>\r\nCall-ID: relay-{number}\r\nCSeq: 1 INVITE\r\nContact: <sip:a@127.0.0.1:5061>\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{offer}",
            offer.len()
        );
        caller.send_to(invite.as_bytes(), target)?;
        let begun = Instant::now();
        let (mut from_caller, mut from_callee, mut key) = (None, None, None);
        while from_caller.is_none() {
            if begun.elapsed() > PATIENCE {
                return Err(format!("call {number} was not answered").into());
            }
            if let Some((request, from)) = read(&callee)?
                && request.starts_with("INVITE ")
            {
                from_callee = Some(media_of(&request)?);
                callee.send_to(
                    answer(&request, &sdp(ends.ports[1], what.bytes, false), number).as_bytes(),
                    from,
                )?;
            }
            if let Some((response, from)) = read(&caller)? {
                if response.starts_with("SIP/2.0 1")
                    || !field(&response, "Call-ID").ends_with(&format!("-{number}"))
                {
                    continue;
                }
                if !response.starts_with("SIP/2.0 200") {
                    return Err(format!("call {number} was refused: {response}").into());
                }
                from_caller = Some(media_of(&response)?);
                key = key_of(&response, what.keys)?;
                let contact = field(&response, "Contact").trim_start_matches('<');
                let contact = contact.split('>').next().unwrap_or_default();
                let ack = format!(
                    "ACK {contact} SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1:5061;branch=z9hG4bKack{number}\r\nMax-Forwards: 70\r\n{}{}Call-ID: relay-{number}\r\nCSeq: 1 ACK\r\nContent-Length: 0\r\n\r\n",
                    fields(&response, "From"),
                    fields(&response, "To")
                );
                caller.send_to(ack.as_bytes(), from)?;
            }
        }
        let (Some(a), Some(b)) = (from_caller, from_callee) else {
            return Err(format!("call {number} was answered before it was offered").into());
        };
        ways.push(Ways { to: [a, b], key });
    }
    Ok(ways)
}

fn answer(request: &str, body: &str, number: usize) -> String {
    format!(
        "SIP/2.0 200 OK\r\n{}{}{}To: {};tag=b{number}\r\n{}{}Contact: <sip:b@127.0.0.1:5080>\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}",
        fields(request, "Via"),
        fields(request, "Record-Route"),
        fields(request, "From"),
        field(request, "To"),
        fields(request, "Call-ID"),
        fields(request, "CSeq"),
        body.len()
    )
}

/// Sets up sessions at rtpengine by its ng protocol (bencode over UDP).
fn rtpengine(target: SocketAddr, ends: &Ends, calls: usize, what: Kind) -> Outcome<Vec<Ways>> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let ask = |words: &[(&str, &str)], cookie: &str| -> Outcome<String> {
        let text: String = words
            .iter()
            .map(|(key, value)| format!("{}:{key}{}:{value}", key.len(), value.len()))
            .collect();
        socket.send_to(format!("{cookie} d{text}e").as_bytes(), target)?;
        let mut reply = [0; 4096];
        let (length, _) = socket.recv_from(&mut reply)?;
        let reply = String::from_utf8_lossy(&reply[..length]).into_owned();
        match reply.contains("6:result2:ok") {
            true => Ok(reply),
            false => Err(format!("rtpengine refused: {reply}").into()),
        }
    };
    let offer = sdp(ends.ports[0], what.bytes, what.keys);
    let reply = sdp(ends.ports[1], what.bytes, false);
    let towards_callee = if what.keys {
        &[("transport-protocol", "RTP/AVP")][..]
    } else {
        &[]
    };
    let mut ways = Vec::new();
    for number in 0..calls {
        let id = format!("relay-{number}");
        // Bencode requires sorted keys.
        let common = [("call-id", id.as_str())];
        let offered = [
            &common[..],
            &[("command", "offer"), ("from-tag", "a"), ("sdp", &offer)],
            towards_callee,
        ]
        .concat();
        let offered = ask(&offered, &format!("o{number}"))?;
        let answered = [
            &common[..],
            &[
                ("command", "answer"),
                ("from-tag", "a"),
                ("sdp", &reply),
                ("to-tag", "b"),
            ],
        ]
        .concat();
        let answered = ask(&answered, &format!("a{number}"))?;
        ways.push(Ways {
            to: [media_of(&answered)?, media_of(&offered)?],
            key: key_of(&answered, what.keys)?,
        });
    }
    Ok(ways)
}

struct Stream {
    end: usize,
    to: SocketAddr,
    packet: Vec<u8>,
    sequence: u16,
    timestamp: u32,
    /// Outbound SRTP of its packets.
    seal: Option<Outbound>,
}

/// Plays all streams, evenly spread over the packet time, and returns the line of figures.
fn play(ends: &Ends, ways: Vec<Ways>, span: Duration, what: Kind, process: u32) -> Outcome<String> {
    let bytes = what.bytes;
    let limits = ContextLimits::default();
    let ours = CryptoAttribute::parse(CRYPTO.as_bytes()).map_err(|error| format!("{error:?}"))?;
    let mut streams: Vec<Stream> = Vec::new();
    // Inbound SRTP of a call, by the source address at the relay.
    let mut opens: HashMap<SocketAddr, Inbound> = HashMap::new();
    for (number, way) in ways.iter().enumerate() {
        if let Some(key) = &way.key {
            opens.insert(way.to[0], Inbound::new(key, limits)?);
        }
        for (end, &to) in way.to.iter().enumerate() {
            let mut packet = vec![0; RTP_HEADER + bytes];
            packet[0] = 0x80;
            packet[1] = if bytes == 160 { 0 } else { 18 };
            packet[8..12].copy_from_slice(&(number as u32 * 2 + end as u32 + 1).to_be_bytes());
            streams.push(Stream {
                end,
                to,
                packet,
                sequence: 0,
                timestamp: 0,
                seal: match end == 0 && what.keys {
                    true => Some(Outbound::new(&ours.keys[0], limits)?),
                    false => None,
                },
            });
        }
    }
    // Streams adjacent in time belong to different calls and directions.
    let count = streams.len();
    let mut order: Vec<usize> = (0..count).collect();
    let step = (count * 5 / 13) | 1;
    order.sort_by_key(|&at| (at * step) % count);
    let gap = PACKET_TIME.as_nanos() as u64 / count as u64;
    let start = Instant::now();
    let (warm, end) = (
        WARM_UP.as_nanos() as u64,
        (WARM_UP + span).as_nanos() as u64,
    );
    let (mut next, mut turn) = (0u64, 0usize);
    let (mut sent, mut refused) = (0u64, 0u64);
    let mut delays: Vec<u32> =
        Vec::with_capacity((span.as_secs_f64() * 50.0 * count as f64) as usize);
    let mut buffer = [0; 2048];
    let mut cpu = 0;
    let mut spent = None;
    loop {
        let now = start.elapsed().as_nanos() as u64;
        if cpu == 0 && now >= warm {
            cpu = cpu_nanos(process)?;
        }
        if now >= end && spent.is_none() {
            spent = Some(cpu_nanos(process)? - cpu);
        }
        // Packets in flight may arrive within a quarter of a second.
        if now >= end + 250_000_000 {
            break;
        }
        while next <= now - now % what.burst && next < end {
            let stream = &mut streams[order[turn]];
            stream.sequence = stream.sequence.wrapping_add(1);
            stream.timestamp = stream.timestamp.wrapping_add(160);
            stream.packet[2..4].copy_from_slice(&stream.sequence.to_be_bytes());
            stream.packet[4..8].copy_from_slice(&stream.timestamp.to_be_bytes());
            let stamp = start.elapsed().as_nanos() as u64;
            stream.packet[RTP_HEADER + 4..RTP_HEADER + MARK].copy_from_slice(&stamp.to_be_bytes());
            let counted = stamp >= warm && stamp < end;
            let mut length = stream.packet.len();
            buffer[..length].copy_from_slice(&stream.packet);
            if let Some(seal) = &mut stream.seal {
                let room = &mut buffer[..length + MediaPacket::TAILROOM];
                length = seal.protect_rtp(room, length)?;
            }
            match ends.sockets[stream.end].send_to(&buffer[..length], stream.to) {
                Ok(_) => sent += u64::from(counted),
                Err(_) => refused += u64::from(counted),
            }
            turn = (turn + 1) % count;
            next += gap;
        }
        for socket in &ends.sockets {
            // A few at a time, so that sending is not delayed.
            for _ in 0..8 {
                let Ok((mut length, from)) = socket.recv_from(&mut buffer) else {
                    break;
                };
                if let Some(open) = opens.get_mut(&from) {
                    // A packet that fails authentication counts as lost.
                    let Ok(opened) = open.unprotect_rtp(&mut buffer[..length]) else {
                        continue;
                    };
                    length = opened;
                }
                let stamp = buffer
                    .get(RTP_HEADER + 4..RTP_HEADER + MARK)
                    .filter(|_| length >= RTP_HEADER + MARK);
                let stamp = stamp
                    .and_then(|bytes| bytes.try_into().ok())
                    .map_or(0, u64::from_be_bytes);
                if stamp >= warm && stamp < end {
                    let late = (start.elapsed().as_nanos() as u64).saturating_sub(stamp);
                    delays.push((late / 1_000).min(u64::from(u32::MAX)) as u32);
                }
            }
        }
    }
    let spent = spent.unwrap_or_default();
    let arrived = delays.len() as u64;
    delays.sort_unstable();
    let quantile = |share: f64| {
        delays
            .get((delays.len() as f64 * share) as usize)
            .copied()
            .unwrap_or(0)
    };
    Ok(format!(
        "calls {} packets/s {:.0} us/packet {:.3} sent {sent} lost {} refused {refused} delay p50 {} us p99 {} us",
        ways.len(),
        arrived as f64 / span.as_secs_f64(),
        spent as f64 / 1_000.0 / arrived.max(1) as f64,
        sent.saturating_sub(arrived),
        quantile(0.5),
        quantile(0.99),
    ))
}

/// CPU time of the threads of a process, nanoseconds.
fn cpu_nanos(process: u32) -> Outcome<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let line = std::fs::read_to_string(task?.path().join("schedstat"))?;
        sum += line
            .split_whitespace()
            .next()
            .unwrap_or_default()
            .parse::<u64>()?;
    }
    Ok(sum)
}
