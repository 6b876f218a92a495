//! Conferences under load, for `make bench`: calls rooms of a border with G.729, plays frames that were encoded beforehand, and
//! measures at a conference of its own, the probe, how regularly the mixes come. Beside it runs what shows the host's own noise: a
//! thread that sends a datagram each 20 ms at absolute times, to the socket of the same probe.
//!
//! `conference_load ADDRESS PROCESS ROOMS SECONDS`: rooms of four at numbers 8000 and on, the last of which is the probe. In each
//! room one speaks at a time, for four seconds, the next half a second before he ends. One line of figures comes out.

use codec::packet::Packing;
use codec::{Format, Packetiser};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PACKET_TIME: Duration = Duration::from_millis(20);
const WARM_UP: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(5);
/// Participants of a room.
const SEATS: usize = 4;
/// Octets of a packet: two frames.
const BYTES: usize = 20;
/// Packets of a turn of speech, and of the part in which two speak.
const TURN: usize = 200;
const BOTH: usize = 25;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// When packets came, by the sender's port; in nanoseconds.
type Arrivals = Arc<Mutex<Vec<(u16, u64)>>>;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, process, rooms, seconds] = words.as_slice() else {
        return Err("usage: conference_load ADDRESS PROCESS ROOMS SECONDS".into());
    };
    let target: SocketAddr = address.parse()?;
    let process: u32 = process.parse()?;
    let rooms: usize = rooms.parse()?;
    let span = Duration::from_secs_f64(seconds.parse()?);
    if rooms == 0 {
        return Err("at least one room: the probe".into());
    }
    let load = UdpSocket::bind("127.0.0.1:0")?;
    let probe = UdpSocket::bind("127.0.0.1:0")?;
    let signalling = UdpSocket::bind("127.0.0.1:0")?;
    signalling.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut seats = Vec::new();
    for room in 0..rooms {
        let socket = if room + 1 == rooms { &probe } else { &load };
        for seat in 0..SEATS {
            let media = socket.local_addr()?;
            seats.push(join(&signalling, target, media, room, seat)?);
        }
    }
    let line = play(&load, &probe, &seats, span, process)?;
    println!("rooms {rooms} streams {} {line}", seats.len());
    Ok(())
}

/// Calls a room; where it takes the participant's media.
fn join(
    socket: &UdpSocket,
    target: SocketAddr,
    media: SocketAddr,
    room: usize,
    seat: usize,
) -> Outcome<SocketAddr> {
    let (own, number) = (socket.local_addr()?, 8_000 + room);
    let offer = format!(
        "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {} RTP/AVP 18\r\na=fmtp:18 annexb=no\r\na=ptime:20\r\n",
        media.port()
    );
    let id = format!("conference-{room}-{seat}");
    let invite = format!(
        "INVITE sip:{number}@{target} SIP/2.0\r\nVia: SIP/2.0/UDP {own};branch=z9hG4bK{id}\r\nMax-Forwards: 70\r\nFrom: <sip:{id}@127.0.0.1>;tag={id}\r\nTo: <sip:{number}@{target}>\r\nCall-ID: {id}\r\nCSeq: 1 INVITE\r\nContact: <sip:{id}@{own}>\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{offer}",
        offer.len()
    );
    let begun = Instant::now();
    socket.send_to(invite.as_bytes(), target)?;
    let mut bytes = [0; 4096];
    while begun.elapsed() < PATIENCE {
        let Ok((length, from)) = socket.recv_from(&mut bytes) else {
            socket.send_to(invite.as_bytes(), target)?;
            continue;
        };
        let response = String::from_utf8_lossy(&bytes[..length]).into_owned();
        if !response.contains(&format!("Call-ID: {id}\r\n")) || response.starts_with("SIP/2.0 1") {
            continue;
        }
        if !response.starts_with("SIP/2.0 200") {
            return Err(format!("{id} was refused: {response}").into());
        }
        let line = |name: &str| {
            let found = response.lines().find(|line| line.starts_with(name));
            found.ok_or_else(|| format!("no {name} in {response}"))
        };
        let ack = format!(
            "ACK sip:{target} SIP/2.0\r\nVia: SIP/2.0/UDP {own};branch=z9hG4bKack{id}\r\nMax-Forwards: 70\r\n{}\r\n{}\r\nCall-ID: {id}\r\nCSeq: 1 ACK\r\nContent-Length: 0\r\n\r\n",
            line("From:")?,
            line("To:")?
        );
        socket.send_to(ack.as_bytes(), from)?;
        let port = line("m=audio ")?.split(' ').nth(1).unwrap_or_default();
        return Ok(SocketAddr::new(target.ip(), port.parse()?));
    }
    Err(format!("{id} was not answered").into())
}

/// Speech and silence of a whole round of turns, encoded.
fn frames() -> Outcome<Vec<[u8; BYTES]>> {
    let packing = Packing {
        packet_ms: 20,
        suppress_silence: false,
    };
    let format = Format::G729 { annex_b: false };
    let mut packetiser = Packetiser::new(&format, 8_000, packing)?;
    let speech = codec::speech::speech();
    let round = SEATS * TURN;
    let mut samples = Vec::with_capacity(round * 160);
    for packet in 0..round {
        for sample in 0..160 {
            let speaks = packet < TURN + BOTH;
            let at = (packet * 160 + sample) % speech.len();
            samples.push(if speaks { speech[at] } else { 0 });
        }
    }
    let mut frames = Vec::with_capacity(round);
    packetiser.push(&samples, &mut |packet| {
        let mut frame = [0; BYTES];
        frame.copy_from_slice(packet.payload);
        frames.push(frame);
    })?;
    Ok(frames)
}

/// Takes what comes to a socket, with when it came.
fn listen(
    socket: &UdpSocket,
    start: Instant,
    over: &Arc<AtomicBool>,
    arrivals: &Arrivals,
) -> Outcome<std::thread::JoinHandle<()>> {
    let socket = socket.try_clone()?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    let (over, arrivals) = (over.clone(), arrivals.clone());
    Ok(std::thread::spawn(move || {
        let mut bytes = [0; 2048];
        while !over.load(Ordering::Relaxed) {
            let Ok((length, from)) = socket.recv_from(&mut bytes) else {
                continue;
            };
            let now = start.elapsed().as_nanos() as u64;
            // Reports are no mixes.
            let mix = length > 12 && !(200..=206).contains(&bytes[1]);
            if mix && let Ok(mut arrivals) = arrivals.lock() {
                arrivals.push((from.port(), now));
            }
        }
    }))
}

fn play(
    load: &UdpSocket,
    probe: &UdpSocket,
    seats: &[SocketAddr],
    span: Duration,
    process: u32,
) -> Outcome<String> {
    let frames = frames()?;
    let start = Instant::now();
    let over = Arc::new(AtomicBool::new(false));
    let arrivals: [Arrivals; 2] = Default::default();
    for arrivals in &arrivals {
        if let Ok(mut arrivals) = arrivals.lock() {
            arrivals.reserve(1 << 18);
        }
    }
    let [at_load, at_probe] = &arrivals;
    let mut threads = vec![
        listen(load, start, &over, at_load)?,
        listen(probe, start, &over, at_probe)?,
    ];
    // The host's own noise.
    let noise = UdpSocket::bind("127.0.0.1:0")?;
    let noise_port = noise.local_addr()?.port();
    let to_probe = probe.local_addr()?;
    let ends = over.clone();
    threads.push(std::thread::spawn(move || {
        let mut at = Duration::from_millis(7);
        while !ends.load(Ordering::Relaxed) {
            std::thread::sleep(at.saturating_sub(start.elapsed()));
            // What is not sent shows as noise.
            let _ = noise.send_to(&[0; 32], to_probe);
            at += PACKET_TIME;
        }
    }));
    let count = seats.len();
    let gap = PACKET_TIME / count as u32;
    let warm = WARM_UP.as_nanos() as u64;
    let end = WARM_UP + span;
    let mut cpu = None;
    let mut turn = 0usize;
    let mut packet = [0u8; 12 + BYTES];
    packet[0] = 0x80;
    packet[1] = 18;
    'all: loop {
        for (number, seat) in seats.iter().enumerate() {
            let due = PACKET_TIME * turn as u32 + gap * number as u32;
            let now = start.elapsed();
            if now >= end {
                break 'all;
            }
            if now.as_nanos() as u64 >= warm && cpu.is_none() {
                cpu = Some(cpu_nanos(process)?);
            }
            // Several at a time: a thread that sleeps for each would be late for most.
            if due > now + Duration::from_millis(1) {
                std::thread::sleep(due - now);
            }
            let place = turn + number % SEATS * TURN;
            packet[2..4].copy_from_slice(&(turn as u16).to_be_bytes());
            packet[4..8].copy_from_slice(&(turn as u32 * 160).to_be_bytes());
            packet[8..12].copy_from_slice(&(number as u32 + 1).to_be_bytes());
            packet[12..].copy_from_slice(&frames[place % frames.len()]);
            let socket = if number + SEATS >= count { probe } else { load };
            socket.send_to(&packet, seat)?;
        }
        turn += 1;
    }
    let spent = cpu_nanos(process)? - cpu.unwrap_or_default();
    over.store(true, Ordering::Relaxed);
    for thread in threads {
        let _ = thread.join();
    }
    let mut deviations = Vec::new();
    let mut host = Vec::new();
    let (mut came, mut wanted) = (0usize, 0usize);
    let each = (span.as_nanos() / PACKET_TIME.as_nanos()) as usize;
    for (which, arrivals) in arrivals.iter().enumerate() {
        let arrivals = arrivals.lock().map_err(|_| "a listener panicked")?;
        let mut ports: Vec<u16> = arrivals.iter().map(|arrival| arrival.0).collect();
        ports.sort_unstable();
        ports.dedup();
        for port in ports {
            let counted = arrivals
                .iter()
                .filter(|arrival| arrival.0 == port && arrival.1 >= warm);
            let times: Vec<u64> = counted.map(|arrival| arrival.1).collect();
            let ours = if port == noise_port {
                &mut host
            } else {
                &mut deviations
            };
            if which == 1 {
                let steps = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64);
                ours.extend(steps.map(|step| (step - PACKET_TIME.as_nanos() as f64).abs() / 1e6));
            }
            if port != noise_port {
                came += times.len();
                wanted += each;
            }
        }
    }
    let (mean, p99) = mean_and_p99(&mut deviations)?;
    let (host_mean, host_p99) = mean_and_p99(&mut host)?;
    let lost = wanted.saturating_sub(came + seats.len());
    Ok(format!(
        "mean {mean:.4} p99 {p99:.4} host-mean {host_mean:.4} host-p99 {host_p99:.4} lost {lost} of {wanted} core {:.4} us/stream {:.1}",
        spent as f64 / span.as_nanos() as f64,
        spent as f64 / 1_000.0 / span.as_secs_f64() / seats.len() as f64,
    ))
}

fn mean_and_p99(values: &mut [f64]) -> Outcome<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let p99 = values.get(values.len() * 99 / 100).ok_or("nothing came")?;
    Ok((values.iter().sum::<f64>() / values.len() as f64, *p99))
}

/// Processor time of a process, in nanoseconds.
fn cpu_nanos(process: u32) -> Outcome<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let said = std::fs::read_to_string(task?.path().join("schedstat"))?;
        sum += said
            .split_whitespace()
            .next()
            .unwrap_or("0")
            .parse::<u64>()?;
    }
    Ok(sum)
}
