//! The load of the part `gateway` of the benchmarks: UDP packets at a rate from one network to another,
//! `cargo xtask tunnel-load send FROM TO RATE BYTES SECONDS` and `tunnel-load receive AT COUNT`. Both ends are
//! processes of one machine, each in a network of its own, so delays are differences of one clock.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Octets at the start of a packet: its number, nanoseconds since 1970.
pub const MARK: usize = 12;
const LONGEST: usize = 1_500;
/// Silence after which the receiver ends, and its longest time before the first packet.
const SILENCE: Duration = Duration::from_secs(1);
const FIRST: Duration = Duration::from_secs(15);
/// A sender that takes longer than this multiple of its time has not made the load.
const SLOW: f64 = 1.05;

/// Runs one end.
///
/// # Errors
/// Arguments that make no load; a socket that cannot be opened; a load that was slower than requested; an altered or
/// repeated packet.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["send", from, to, rate, bytes, seconds] => send(
            (address(from)?, address(to)?),
            number(rate)?,
            number(bytes)?,
            number(seconds)?,
        ),
        ["receive", at, count] => receive(address(at)?, number(count)?),
        _ => Err(
            "usage: cargo xtask tunnel-load send FROM TO RATE BYTES SECONDS | receive AT COUNT"
                .to_owned(),
        ),
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("tunnel-load: {text}: expected ADDRESS:PORT"))
}

fn number(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("tunnel-load: {text}: expected a number above zero")),
    }
}

fn bound(at: SocketAddr) -> Result<UdpSocket, String> {
    UdpSocket::bind(at).map_err(|error| format!("tunnel-load: {at}: {error}"))
}

/// Nanoseconds since 1970, which two processes can compare.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Each packet has a deadline of its own; a timer that wakes late sends all packets that are due, as a phone's host
/// does.
fn send(
    (from, to): (SocketAddr, SocketAddr),
    rate: u32,
    bytes: u32,
    seconds: u32,
) -> Result<(), String> {
    let bytes = bytes as usize;
    if !(MARK..=LONGEST).contains(&bytes) {
        return Err(format!(
            "tunnel-load: {bytes} bytes: from {MARK} to {LONGEST}"
        ));
    }
    let socket = bound(from)?;
    socket
        .connect(to)
        .map_err(|error| format!("tunnel-load: {to}: {error}"))?;
    let count = rate.saturating_mul(seconds);
    let mut packet = vec![0x55; bytes];
    let mut refused = 0_u32;
    let begin = Instant::now();
    for number in 0..count {
        let due = Duration::from_secs_f64(f64::from(number) / f64::from(rate));
        if let Some(wait) = due.checked_sub(begin.elapsed()) {
            std::thread::sleep(wait);
        }
        packet[..4].copy_from_slice(&number.to_be_bytes());
        packet[4..MARK].copy_from_slice(&now().to_be_bytes());
        if socket.send(&packet).is_err() {
            refused += 1;
        }
    }
    let took = begin.elapsed().as_secs_f64();
    println!("sent {count} refused {refused} seconds {took:.3}");
    if took > f64::from(seconds) * SLOW {
        return Err(format!(
            "tunnel-load: {count} packets took {took:.2} s in place of {seconds} s: the load lacks CPU time"
        ));
    }
    Ok(())
}

fn receive(at: SocketAddr, count: u32) -> Result<(), String> {
    let socket = bound(at)?;
    let wait = |time| {
        let set = socket.set_read_timeout(Some(time));
        set.map_err(|error| format!("tunnel-load: {error}"))
    };
    wait(FIRST)?;
    println!("ready");
    let mut seen = vec![false; count as usize];
    let mut delays = Vec::with_capacity(count as usize);
    let mut packet = [0; LONGEST + 1];
    while delays.len() < seen.len() {
        let length = match socket.recv(&mut packet) {
            Ok(length) => length,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                break;
            }
            Err(error) => return Err(format!("tunnel-load: {at}: {error}")),
        };
        let arrived = now();
        if delays.is_empty() {
            wait(SILENCE)?;
        }
        let (number, sent) = mark(&packet[..length])?;
        match seen.get_mut(number as usize) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(format!("tunnel-load: packet {number} came twice")),
        }
        delays.push(arrived.saturating_sub(sent));
    }
    println!("{}", figures(count, delays));
    Ok(())
}

/// Number and time of a packet.
fn mark(packet: &[u8]) -> Result<(u32, u64), String> {
    let altered = || "tunnel-load: an altered packet".to_owned();
    let (number, rest) = packet.split_first_chunk::<4>().ok_or_else(altered)?;
    let (sent, rest) = rest.split_first_chunk::<8>().ok_or_else(altered)?;
    if rest.iter().any(|byte| *byte != 0x55) {
        return Err(altered());
    }
    Ok((u32::from_be_bytes(*number), u64::from_be_bytes(*sent)))
}

/// The line of figures; delays in microseconds.
fn figures(count: u32, mut delays: Vec<u64>) -> String {
    delays.sort_unstable();
    let quantile = |share: usize| -> f64 {
        let rank = (delays.len() * share).div_ceil(100).max(1);
        delays
            .get(rank - 1)
            .map_or(f64::NAN, |nanos| *nanos as f64 / 1e3)
    };
    let lost = count as usize - delays.len();
    format!(
        "received {} lost {lost} p50 {:.1} p99 {:.1}",
        delays.len(),
        quantile(50),
        quantile(99)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_quantiles_of_received_packets() {
        let delays = (1..=100).rev().map(|micros| micros * 1_000).collect();
        assert_eq!(
            figures(103, delays),
            "received 100 lost 3 p50 50.0 p99 99.0"
        );
        assert_eq!(figures(2, vec![7_000]), "received 1 lost 1 p50 7.0 p99 7.0");
        assert!(figures(2, Vec::new()).starts_with("received 0 lost 2 p50 NaN"));
    }

    #[test]
    fn an_altered_packet_is_noticed() {
        let mut packet = vec![0x55; 32];
        packet[..4].copy_from_slice(&7_u32.to_be_bytes());
        packet[4..MARK].copy_from_slice(&9_u64.to_be_bytes());
        assert_eq!(mark(&packet), Ok((7, 9)));
        packet[20] = 0;
        assert!(mark(&packet).is_err());
        assert!(mark(&packet[..MARK - 1]).is_err());
    }

    #[test]
    fn arguments_without_a_load_are_refused() {
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        for (text, part) in [
            ("send", "usage"),
            ("receive 127.0.0.1 5", "ADDRESS:PORT"),
            ("receive 127.0.0.1:9 0", "above zero"),
            ("send 127.0.0.1:0 127.0.0.1:9 1 11 1", "11 bytes"),
        ] {
            let error = run(&words(text)).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
