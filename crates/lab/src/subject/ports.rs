//! Free ports for a subject.

use crate::error::LabError;
use engine::Entropy;
use net::PortRange;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

/// Ports below the usual ephemeral ones.
const FIRST: u16 = 10_000;
const LAST: u16 = 32_000;

fn none_free(ip: IpAddr, error: impl std::fmt::Display) -> LabError {
    LabError::cannot_run(
        format!("no free port at {ip}: {error}"),
        "end the programs that use them, or raise the limit of open files (ulimit -n)",
    )
}

/// `N` addresses that are free for UDP and TCP; held open until all are found, so that they differ.
///
/// # Errors
/// If there are none.
pub(crate) fn addresses<const N: usize>(ip: IpAddr) -> Result<[SocketAddr; N], LabError> {
    let mut found = Vec::with_capacity(N);
    let mut held = Vec::with_capacity(N);
    let mut error = std::io::Error::other("none is free for both UDP and TCP");
    for _ in 0..N * 50 {
        let pair = UdpSocket::bind((ip, 0)).and_then(|socket| {
            let address = socket.local_addr()?;
            Ok((address, socket, TcpListener::bind(address)?))
        });
        match pair {
            Ok((address, socket, listener)) => {
                found.push(address);
                held.push((socket, listener));
            }
            Err(why) => error = why,
        }
        if let Ok(all) = <[SocketAddr; N]>::try_from(found.as_slice()) {
            return Ok(all);
        }
    }
    Err(none_free(ip, error))
}

/// First and last port of `count` ports that are free for UDP and that no border or media node claims; the first is
/// even (RFC 3550 section 11).
///
/// # Errors
/// If there are none.
pub(super) fn span(ip: IpAddr, count: u16, entropy: &mut Entropy) -> Result<[u16; 2], LabError> {
    let count = count.clamp(2, LAST - FIRST);
    let starts = u64::from(LAST - FIRST - count) / 2 + 1;
    // Without the list of claims, the check of open ports still applies.
    let claims = net::claims().unwrap_or_default();
    let mut error = String::new();
    for _ in 0..50 {
        let start = u16::try_from(entropy.u64() % starts).unwrap_or(0);
        let first = FIRST + start * 2;
        let range = PortRange {
            address: ip,
            first,
            last: first + count - 1,
        };
        if claims.iter().any(|claim| claim.range.overlaps(&range)) {
            error = "claimed by a border or media node".to_owned();
            continue;
        }
        let mut ports = first..first + count;
        match ports.try_for_each(|port| UdpSocket::bind((ip, port)).map(drop)) {
            Ok(()) => return Ok([first, first + count - 1]),
            Err(why) => error = why.to_string(),
        }
    }
    Err(none_free(ip, format!("{count} in a row: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claimed_ports_are_not_chosen() {
        // No other program of this machine uses this address.
        let ip = IpAddr::from([127, 9, 9, 10]);
        let claimant = net::Claimant::new().unwrap();
        let most = PortRange {
            address: ip,
            first: FIRST + 400,
            last: LAST,
        };
        let _claimed = claimant.claim(&[most]).unwrap();
        let mut entropy = Entropy::from_number(1);
        let found: Vec<[u16; 2]> = (0..20)
            .filter_map(|_| span(ip, 8, &mut entropy).ok())
            .collect();
        assert!(!found.is_empty());
        assert!(found.iter().all(|[_, last]| *last < FIRST + 400));
    }
}
