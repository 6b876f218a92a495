//! OPTIONS request to a SUT before a run, so that a wrong address fails within seconds and not as a table of failed
//! calls.

use crate::error::LabError;
use crate::experiment::{Experiment, TransportName};
use engine::Entropy;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

/// Time to wait for a response after each transmission (RFC 3261 section 17.1.2.2: T1, doubled).
const WAITS: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_millis(1_000),
    Duration::from_millis(1_500),
];

const REMEDY: &str = "start the system under test, or correct sut.address";

/// Probes the SUT of an experiment if it is a foreign program. Returns a warning if it does not answer: some programs
/// take calls but do not answer OPTIONS, among them the built-in UAS scenario of SIPp.
///
/// # Errors
/// If the network rejects the request, with its reason.
pub fn probe_sut(
    experiment: &Experiment,
    entropy: &mut Entropy,
) -> Result<Option<String>, LabError> {
    let Some(address) = experiment.sut.address else {
        return Ok(None);
    };
    let transport = experiment
        .callers
        .as_ref()
        .map(|callers| callers.transport)
        .or(experiment.registrations.as_ref().map(|plan| plan.transport));
    match transport {
        None | Some(TransportName::Udp) => by_datagram(address, &WAITS, entropy),
        Some(_) => by_connection(address).map(|()| None),
    }
}

fn no_answer(address: SocketAddr, why: &str) -> LabError {
    LabError::cannot_run(format!("no answer from {address}: {why}"), REMEDY)
}

/// Any datagram from the SUT counts as an answer, regardless of its content.
fn by_datagram(
    address: SocketAddr,
    waits: &[Duration],
    entropy: &mut Entropy,
) -> Result<Option<String>, LabError> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let broken = |error: std::io::Error| no_answer(address, &error.to_string());
    let socket = UdpSocket::bind(any).map_err(broken)?;
    // Only a connected socket receives ICMP errors.
    socket.connect(address).map_err(broken)?;
    let local = socket.local_addr().map_err(broken)?;
    let request = options(address, local, entropy);
    let mut answer = [0; 4_096];
    for wait in waits {
        socket.set_read_timeout(Some(*wait)).map_err(broken)?;
        let received = socket
            .send(request.as_bytes())
            .and_then(|_| socket.recv(&mut answer));
        match received {
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                return Err(no_answer(address, "ICMP port unreachable"));
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(broken(error)),
        }
    }
    let all: Duration = waits.iter().sum();
    Ok(Some(format!(
        "no answer from {address}: {} OPTIONS within {} s; the run continues, because some programs answer calls only (--no-probe skips the probe)",
        waits.len(),
        all.as_secs_f64()
    )))
}

/// An accepted connection counts as an answer.
fn by_connection(address: SocketAddr) -> Result<(), LabError> {
    let limit = Duration::from_secs(3);
    TcpStream::connect_timeout(&address, limit)
        .map(drop)
        .map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused => no_answer(address, "TCP connection refused"),
            ErrorKind::TimedOut => no_answer(address, "TCP connection not accepted in 3 s"),
            _ => no_answer(address, &error.to_string()),
        })
}

/// Max-Forwards is 0, so that a proxy answers itself and does not forward the request.
fn options(address: SocketAddr, local: SocketAddr, entropy: &mut Entropy) -> String {
    let (branch, tag, id) = (entropy.u64(), entropy.u64(), entropy.u64());
    format!(
        "OPTIONS sip:{address} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bK{branch:016x};rport\r\n\
         Max-Forwards: 0\r\nFrom: <sip:probe@{local}>;tag={tag:016x}\r\nTo: <sip:{address}>\r\n\
         Call-ID: {id:016x}@{local}\r\nCSeq: 1 OPTIONS\r\nContact: <sip:probe@{local}>\r\nContent-Length: 0\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: [Duration; 2] = [Duration::from_millis(40); 2];

    fn probe_address(address: SocketAddr) -> Result<Option<String>, LabError> {
        by_datagram(address, &SHORT, &mut Entropy::from_number(1))
    }

    #[test]
    fn closed_silent_and_answering_ports_are_distinguished() {
        let subject = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = subject.local_addr().unwrap();
        let warning = probe_address(address).unwrap().unwrap();
        let silent = format!("no answer from {address}: 2 OPTIONS within 0.08 s");
        assert!(warning.starts_with(&silent), "{warning}");
        // The request that arrived meanwhile is well-formed.
        let mut request = [0; 2_048];
        let (length, _) = subject.recv_from(&mut request).unwrap();
        let parsed = wire::sip::Message::parse(&request[..length]);
        assert!(parsed.is_ok(), "{parsed:?}");
        let answering = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = answering.local_addr().unwrap();
        let answers = std::thread::spawn(move || {
            let mut request = [0; 2_048];
            let (_, peer) = answering.recv_from(&mut request).unwrap();
            answering
                .send_to(b"SIP/2.0 483 Too Many Hops\r\n\r\n", peer)
                .unwrap();
        });
        let patient = [Duration::from_secs(20)];
        let heard = by_datagram(address, &patient, &mut Entropy::from_number(2));
        assert_eq!(heard, Ok(None));
        answers.join().unwrap();
        let error = probe_address(address).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("no answer from {address}: ICMP port unreachable")),
            "{error}"
        );
        assert_eq!(error.exit_code(), 3);
    }
}
