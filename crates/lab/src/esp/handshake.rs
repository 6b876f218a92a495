//! Cost of a DTLS-SRTP handshake (RFC 5764): the callers of the test lab have SRTP with keys in the session description
//! only, so that the handshake is measured in memory and added to the call.

use crate::error::LabError;
use net::Clock;
use protect::dtls::{
    Certificate, DtlsEndpoint, DtlsEvent, DtlsSession, Epoch, HashFunction, Role, Settings,
};

/// Handshakes of a measurement.
const HANDSHAKES: u32 = 20;
/// IPv4 and UDP header.
const HEADERS: u64 = 28;
/// Turns after which a handshake has failed.
const TURNS: usize = 40;

/// Cost of a handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct HandshakeCost {
    /// CPU time of the end that answers, microseconds.
    pub(crate) cpu_us: f64,
    /// Bytes of IP packets, both ways.
    pub(crate) bytes: u64,
}

fn failed(why: impl std::fmt::Display) -> LabError {
    LabError::cannot_run(format!("DTLS handshake in memory: {why}"), "report it")
}

/// Measures handshakes; the mean of all.
///
/// # Errors
/// A handshake that fails.
pub(crate) fn handshake_cost() -> Result<HandshakeCost, LabError> {
    let clock = Clock::new();
    let endpoint = || {
        let certificate = Certificate::generate().map_err(failed)?;
        let print = certificate.fingerprint(HashFunction::Sha256);
        let endpoint =
            DtlsEndpoint::new(Settings::default(), certificate, Epoch::new(clock.zero()));
        Ok::<_, LabError>((endpoint.map_err(failed)?, print))
    };
    let (client, client_print) = endpoint()?;
    let (server, server_print) = endpoint()?;
    let mut cost = HandshakeCost::default();
    let mut nanos = 0u128;
    for _ in 0..HANDSHAKES {
        let now = clock.now();
        let mut ends = [
            DtlsSession::new(&client, Role::Client, Some(vec![server_print.clone()]), now),
            DtlsSession::new(&server, Role::Server, Some(vec![client_print.clone()]), now),
        ];
        let mut established = 0;
        let mut turns = 0;
        let mut flight: Vec<Vec<u8>> = Vec::new();
        while established < 2 {
            turns += 1;
            if turns > TURNS {
                return Err(failed("it does not end"));
            }
            for (side, end) in ends.iter_mut().enumerate() {
                let start = clock.now();
                for datagram in flight.drain(..) {
                    end.feed(&datagram, start)
                        .map_err(|reason| failed(reason.text()))?;
                }
                while let Some(event) = end.next_event() {
                    match event {
                        DtlsEvent::Send(datagram) => flight.push(datagram.to_vec()),
                        DtlsEvent::Established(_) => established += 1,
                        DtlsEvent::Failed(_) | DtlsEvent::Closed => {
                            return Err(failed("refused"));
                        }
                    }
                }
                if side == 1 {
                    nanos += clock.now().since(start).as_nanos();
                }
                let sent = flight
                    .iter()
                    .map(|datagram| datagram.len() as u64 + HEADERS);
                cost.bytes += sent.sum::<u64>();
            }
        }
    }
    cost.cpu_us = nanos as f64 / 1e3 / f64::from(HANDSHAKES);
    cost.bytes /= u64::from(HANDSHAKES);
    Ok(cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshake_has_a_cost() {
        let cost = handshake_cost().unwrap();
        assert!(cost.cpu_us > 10.0, "{cost:?}");
        assert!((1_000..10_000).contains(&cost.bytes), "{cost:?}");
    }
}
