//! The connection below the messages: TCP, or TLS over it.

use super::wire::WireError;
use net::tls::{Anchors, ClientAuth, Identity, client_config};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConfig, ServerConnection, StreamOwned};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks for a stop.
const SLICE: Duration = Duration::from_millis(100);

/// A connection in both directions.
pub(super) trait Channel: Read + Write + Send {}

impl<T: Read + Write + Send> Channel for T {}

/// A connection with its limits of time.
pub(super) type BoxedChannel = Box<dyn Channel>;

fn prepare(stream: &TcpStream, limit: Duration) -> Result<(), WireError> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SLICE))?;
    Ok(stream.set_write_timeout(Some(limit))?)
}

/// A connection without TLS.
///
/// # Errors
/// It is broken.
pub(super) fn plain(stream: TcpStream, limit: Duration) -> Result<BoxedChannel, WireError> {
    prepare(&stream, limit)?;
    Ok(Box::new(stream))
}

/// Settings of an agent with TLS.
///
/// # Errors
/// The library refuses the certificate.
pub(super) fn server_settings(identity: &Identity) -> Result<Arc<ServerConfig>, String> {
    // A client without ALPN is accepted.
    identity.https_server(&ClientAuth::None)
}

/// The agent's end of a connection with TLS.
///
/// # Errors
/// The handshake fails, or does not end in time.
pub(super) fn server(
    stream: TcpStream,
    settings: &Arc<ServerConfig>,
    limit: Duration,
) -> Result<BoxedChannel, WireError> {
    let mut connection = ServerConnection::new(settings.clone())
        .map_err(refused)?
        .into();
    let stream = handshake(stream, &mut connection, limit)?;
    match connection {
        Connection::Server(connection) => Ok(Box::new(StreamOwned::new(connection, stream))),
        Connection::Client(_) => Err(WireError::Tls("not a server".to_owned())),
    }
}

/// The test lab's end: the certificate must be issued by a trusted authority, and contain the agent's IP address.
///
/// # Errors
/// The certificate is not valid, or the handshake does not end in time.
pub(super) fn client(
    stream: TcpStream,
    anchors: &Anchors,
    limit: Duration,
) -> Result<BoxedChannel, WireError> {
    let settings = client_config(anchors, None).map_err(WireError::Tls)?;
    let name = ServerName::from(stream.peer_addr()?.ip());
    let mut connection = ClientConnection::new(settings, name)
        .map_err(refused)?
        .into();
    let stream = handshake(stream, &mut connection, limit)?;
    match connection {
        Connection::Client(connection) => Ok(Box::new(StreamOwned::new(connection, stream))),
        Connection::Server(_) => Err(WireError::Tls("not a client".to_owned())),
    }
}

fn refused(error: rustls::Error) -> WireError {
    WireError::Tls(error.to_string())
}

fn handshake(
    mut stream: TcpStream,
    connection: &mut Connection,
    limit: Duration,
) -> Result<TcpStream, WireError> {
    prepare(&stream, limit)?;
    let clock = net::Clock::new();
    let start = clock.now();
    while connection.is_handshaking() {
        if net::stops() > 0 {
            return Err(WireError::Stopped);
        }
        if clock.now().since(start) > limit {
            return Err(WireError::Silent);
        }
        match connection.complete_io(&mut stream) {
            Ok(_) => {}
            Err(error) if is_later(&error) => {}
            // The library wraps its errors.
            Err(error)
                if error
                    .get_ref()
                    .is_some_and(|inner| inner.is::<rustls::Error>()) =>
            {
                return Err(WireError::Tls(error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(stream)
}

/// Whether an error ends with another try.
pub(super) fn is_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}
