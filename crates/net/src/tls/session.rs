//! One TLS connection without IO: ciphertext to plaintext and back. Buffers are kept only for incomplete records, so
//! that an idle connection needs little more memory than its keys.

use super::names::Identities;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, UnbufferedConnectionCommon, UnbufferedStatus,
};
use rustls::{ClientConfig, CommonState, Error, ServerConfig};
use std::collections::VecDeque;
use std::sync::Arc;

/// Largest number of buffered bytes of incomplete records: the largest handshake message, in records of the same
/// size.
const MAX_PARTIAL: usize = 128 << 10;
/// Upper bound of a record's overhead, bytes (RFC 8446 section 5.2, RFC 5246 section 6.2.3).
const OVERHEAD: usize = 64;
/// Largest content of a record, bytes.
const RECORD: usize = 16 << 10;

/// Reason for the end of a connection.
#[derive(Debug)]
pub(crate) struct TlsFailure {
    /// The handshake was complete: a broken record, not a refusal.
    pub(crate) was_established: bool,
    pub(crate) why: String,
}

/// Progress made by received bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsProgress {
    /// The handshake has just completed.
    pub(crate) established: bool,
    /// The peer has closed its side.
    pub(crate) closed: bool,
}

enum TlsSide {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// A TLS connection.
pub(crate) struct TlsSession {
    side: TlsSide,
    /// Bytes of incomplete records.
    partial: Vec<u8>,
    established: bool,
}

/// Common interface of the library's two connection types, which share no trait.
trait Records<Data> {
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Data>;
}

impl Records<ServerConnectionData> for UnbufferedConnectionCommon<ServerConnectionData> {
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, ServerConnectionData> {
        self.process_tls_records(incoming)
    }
}

impl Records<ClientConnectionData> for UnbufferedConnectionCommon<ClientConnectionData> {
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, ClientConnectionData> {
        self.process_tls_records(incoming)
    }
}

/// The output queue, and a reusable buffer.
pub(crate) struct Sink<'a> {
    pub(crate) out: &'a mut VecDeque<u8>,
    pub(crate) scratch: &'a mut Vec<u8>,
}

/// Result of processing records.
#[derive(Default)]
struct Round {
    used: usize,
    writable: bool,
    closed: bool,
    error: Option<Error>,
}

/// Processes all complete records of `incoming`.
fn run<Data>(
    connection: &mut (impl Records<Data> + ?Sized),
    incoming: &mut [u8],
    plain: &mut Vec<u8>,
    sink: &mut Sink<'_>,
) -> Round {
    let mut round = Round::default();
    loop {
        let rest = incoming.get_mut(round.used..).unwrap_or_default();
        let UnbufferedStatus { discard, state } = connection.process(rest);
        let mut more = 0;
        let go_on = match state {
            Err(error) => {
                round.error = Some(error);
                false
            }
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                while let Some(record) = traffic.next_record() {
                    match record {
                        Ok(record) => {
                            more += record.discard;
                            plain.extend_from_slice(record.payload);
                        }
                        Err(error) => round.error = Some(error),
                    }
                }
                round.error.is_none()
            }
            Ok(ConnectionState::EncodeTlsData(mut record)) => loop {
                match record.encode(sink.scratch) {
                    Ok(length) => {
                        sink.out
                            .extend(sink.scratch.get(..length).unwrap_or_default());
                        break true;
                    }
                    Err(EncodeError::InsufficientSize(size)) => {
                        sink.scratch.resize(size.required_size, 0);
                    }
                    Err(EncodeError::AlreadyEncoded) => break true,
                }
            },
            Ok(ConnectionState::TransmitTlsData(sent)) => {
                sent.done();
                true
            }
            Ok(ConnectionState::WriteTraffic(_)) => {
                round.writable = true;
                false
            }
            Ok(ConnectionState::PeerClosed) => {
                round.closed = true;
                true
            }
            Ok(ConnectionState::Closed) => {
                round.closed = true;
                false
            }
            Ok(_) => false,
        };
        round.used += discard + more;
        if round.error.is_some() {
            let rest = incoming.get_mut(round.used..).unwrap_or_default();
            alert(connection, rest, sink);
        }
        if !go_on {
            return round;
        }
    }
}

/// Queues the alert of an error, if there is one. To be called once, with the unprocessed bytes as `rest`: the
/// library may read them again.
fn alert<Data>(
    connection: &mut (impl Records<Data> + ?Sized),
    rest: &mut [u8],
    sink: &mut Sink<'_>,
) {
    if let Ok(ConnectionState::EncodeTlsData(mut record)) = connection.process(rest).state {
        sink.scratch.resize(sink.scratch.len().max(RECORD), 0);
        if let Ok(length) = record.encode(sink.scratch) {
            sink.out
                .extend(sink.scratch.get(..length).unwrap_or_default());
        }
    }
}

/// Encrypts `plain` into `sink`, after pending protocol messages.
fn write<Data>(
    connection: &mut (impl Records<Data> + ?Sized),
    partial: &mut [u8],
    plain: Option<&[u8]>,
    sink: &mut Sink<'_>,
) -> Result<(), String> {
    loop {
        match connection.process(partial).state {
            Ok(ConnectionState::EncodeTlsData(mut record)) => {
                sink.scratch.resize(sink.scratch.len().max(RECORD), 0);
                let length = record
                    .encode(sink.scratch)
                    .map_err(|error| error.to_string())?;
                sink.out
                    .extend(sink.scratch.get(..length).unwrap_or_default());
            }
            Ok(ConnectionState::TransmitTlsData(sent)) => sent.done(),
            Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                let content = plain.map_or(2, <[u8]>::len);
                let room = content + (content / RECORD + 2) * OVERHEAD;
                if sink.scratch.len() < room {
                    sink.scratch.resize(room, 0);
                }
                let encrypted = match plain {
                    Some(plain) => traffic.encrypt(plain, sink.scratch),
                    None => traffic.queue_close_notify(sink.scratch),
                };
                return match encrypted {
                    Ok(length) => {
                        sink.out
                            .extend(sink.scratch.get(..length).unwrap_or_default());
                        Ok(())
                    }
                    Err(EncryptError::EncryptExhausted) => {
                        Err("the usage limit of the TLS keys is reached".to_owned())
                    }
                    Err(error) => Err(error.to_string()),
                };
            }
            Ok(_) => return Err("the connection is closed".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
    }
}

impl TlsSession {
    /// The server side of a connection.
    pub(crate) fn accept(config: Arc<ServerConfig>) -> Result<TlsSession, String> {
        let side = UnbufferedServerConnection::new(config).map_err(|error| error.to_string())?;
        Ok(TlsSession::new(TlsSide::Server(side)))
    }

    /// The client side of a connection; the server's certificate must be valid for `name`.
    pub(crate) fn connect(config: Arc<ClientConfig>, name: &str) -> Result<TlsSession, String> {
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| format!("{name:?} cannot be a name in a certificate"))?;
        let side =
            UnbufferedClientConnection::new(config, name).map_err(|error| error.to_string())?;
        Ok(TlsSession::new(TlsSide::Client(side)))
    }

    fn new(side: TlsSide) -> TlsSession {
        TlsSession {
            side,
            partial: Vec::new(),
            established: false,
        }
    }

    /// Whether the handshake is complete.
    pub(crate) fn is_established(&self) -> bool {
        self.established
    }

    /// Processes received bytes and appends the decrypted content to `plain`.
    pub(crate) fn receive(
        &mut self,
        bytes: &mut [u8],
        plain: &mut Vec<u8>,
        mut sink: Sink<'_>,
    ) -> Result<TlsProgress, TlsFailure> {
        let round = if self.partial.is_empty() {
            let round = self.side.run(bytes, plain, &mut sink);
            let rest = bytes.get(round.used..).unwrap_or_default();
            self.partial = rest.to_vec();
            round
        } else {
            let mut all = std::mem::take(&mut self.partial);
            all.extend_from_slice(bytes);
            let round = self.side.run(&mut all, plain, &mut sink);
            if round.used < all.len() {
                all.drain(..round.used);
                self.partial = all;
            }
            round
        };
        if let Some(error) = round.error {
            return Err(self.failure(explain(&error)));
        }
        if self.partial.len() > MAX_PARTIAL {
            return Err(self.failure("a handshake message without end".to_owned()));
        }
        let established =
            !self.established && round.writable && !self.side.state().is_handshaking();
        self.established |= established;
        Ok(TlsProgress {
            established,
            closed: round.closed,
        })
    }

    fn failure(&self, why: String) -> TlsFailure {
        TlsFailure {
            was_established: self.established,
            why,
        }
    }

    /// Encrypts `plain`; the handshake must be complete.
    pub(crate) fn send(&mut self, plain: &[u8], mut sink: Sink<'_>) -> Result<(), TlsFailure> {
        let partial = self.partial.as_mut_slice();
        let done = match &mut self.side {
            TlsSide::Server(server) => write(&mut **server, partial, Some(plain), &mut sink),
            TlsSide::Client(client) => write(&mut **client, partial, Some(plain), &mut sink),
        };
        done.map_err(|why| self.failure(why))
    }

    /// Queues the close message.
    pub(crate) fn close(&mut self, mut sink: Sink<'_>) {
        if !self.established {
            return;
        }
        let partial = self.partial.as_mut_slice();
        // If it cannot be encrypted, the end of the TCP stream closes the connection.
        let _ = match &mut self.side {
            TlsSide::Server(server) => write(&mut **server, partial, None, &mut sink),
            TlsSide::Client(client) => write(&mut **client, partial, None, &mut sink),
        };
    }

    /// The SIP domains of the peer's certificate; empty if it presented none.
    pub(crate) fn peer_names(&self) -> Vec<String> {
        self.side
            .state()
            .peer_certificates()
            .and_then(|chain| Identities::of(chain.first()?))
            .map(|identities| identities.domains)
            .unwrap_or_default()
    }

    /// Whether the handshake resumed an earlier session by its ticket.
    pub(crate) fn is_resumed(&self) -> bool {
        self.side.state().handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    }
}

impl TlsSide {
    fn state(&self) -> &CommonState {
        match self {
            TlsSide::Server(server) => server,
            TlsSide::Client(client) => client,
        }
    }

    fn run(&mut self, bytes: &mut [u8], plain: &mut Vec<u8>, sink: &mut Sink<'_>) -> Round {
        match self {
            TlsSide::Server(server) => run(&mut **server, bytes, plain, sink),
            TlsSide::Client(client) => run(&mut **client, bytes, plain, sink),
        }
    }
}

/// Describes an error for an operator.
fn explain(error: &Error) -> String {
    use rustls::CertificateError as Bad;
    use rustls::{AlertDescription as Alert, PeerIncompatible as Unfit};
    match error {
        Error::InvalidCertificate(bad) => match bad {
            Bad::Expired => "the peer's certificate has expired".to_owned(),
            Bad::ExpiredContext { not_after, .. } => {
                let seconds = i64::try_from(not_after.as_secs()).unwrap_or(i64::MAX);
                format!("the peer's certificate expired on {}", super::date(seconds))
            }
            Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
                "the peer's certificate is not valid yet".to_owned()
            }
            Bad::UnknownIssuer => {
                "the peer's certificate is from an authority that is not trusted here".to_owned()
            }
            Bad::NotValidForNameContext {
                expected,
                presented,
            } => format!(
                "the peer's certificate is not for {} but for {}",
                expected.to_str(),
                presented.join(" ")
            ),
            Bad::InvalidPurpose | Bad::InvalidPurposeContext { .. } => {
                "the peer's certificate is not valid for this purpose".to_owned()
            }
            other => format!("the peer's certificate is invalid: {other}"),
        },
        Error::NoCertificatesPresented => "the peer shows no certificate".to_owned(),
        Error::PeerIncompatible(unfit) => match unfit {
            Unfit::NoCipherSuitesInCommon => "no cipher in common".to_owned(),
            Unfit::Tls12NotOffered
            | Unfit::Tls12NotOfferedOrEnabled
            | Unfit::Tls13RequiredForQuic
            | Unfit::SupportedVersionsExtensionRequired
            // Only clients older than TLS 1.2 omit this extension.
            | Unfit::SignatureAlgorithmsExtensionRequired
            | Unfit::ServerTlsVersionIsDisabledByOurConfig => {
                "no version of TLS in common".to_owned()
            }
            other => format!("nothing in common: {other:?}"),
        },
        Error::NoApplicationProtocol => {
            "no protocol in common (ALPN): the peer does not offer SIP".to_owned()
        }
        Error::AlertReceived(alert) => match alert {
            Alert::UnknownCA => {
                "the peer does not trust the authority of our certificate".to_owned()
            }
            Alert::CertificateRequired => "the peer requires a certificate of ours".to_owned(),
            Alert::CertificateExpired => "the peer finds our certificate expired".to_owned(),
            Alert::BadCertificate | Alert::CertificateUnknown => {
                "the peer refuses our certificate".to_owned()
            }
            Alert::ProtocolVersion => "the peer has no TLS version in common with us".to_owned(),
            Alert::HandshakeFailure => "the peer has no algorithms in common with us".to_owned(),
            other => format!("the peer sent the alert {other:?}"),
        },
        Error::InvalidMessage(_) => "the peer does not send TLS".to_owned(),
        Error::DecryptError => "a record cannot be decrypted".to_owned(),
        Error::General(text) => text.clone(),
        other => other.to_string(),
    }
}
