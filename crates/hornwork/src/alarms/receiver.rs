//! Transports to the receivers of notices: HTTP, syslog and SNMP.

use super::notice::{AlarmNotice, NoticeSource};
use crate::http_client::{HttpCredentials, HttpLimits, connect, connect_tls, exchange};
use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, Request, StatusCode};
use config::{ReceiverAddress, SnmpSpec, SyslogSpec, SyslogTransport, WebhookSpec};
use protect::cipher::{HmacSha256, PacketMac as _};
use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UdpSocket;
use tokio::time::timeout;
use tokio_rustls::rustls::ClientConfig;
use wire::{snmp, syslog};

/// Largest response of a webhook that is read, octets. Its content has no meaning.
const MAX_RESPONSE: usize = 64 << 10;
/// Longest duration of a delivery by syslog.
const SYSLOG_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for a syslog server to close the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Wait for the response to an inform.
const INFORM_TIMEOUT: Duration = Duration::from_secs(3);
/// Wait for an ICMP error after a datagram without response.
const ICMP_WAIT: Duration = Duration::from_millis(100);

/// The reason why a notice was not delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryError {
    /// A further attempt may succeed.
    Transient(String),
    /// The receiver refuses this notice for good.
    Permanent(String),
}

fn transient(error: impl ToString) -> DeliveryError {
    DeliveryError::Transient(error.to_string())
}

/// A receiver with its transport.
pub(crate) enum Receiver {
    /// HTTP POST of JSON.
    Webhook(WebhookSpec, HttpCredentials),
    /// RFC 5424.
    Syslog(SyslogSpec, Option<Arc<ClientConfig>>),
    /// SNMP v2c.
    Snmp(SnmpSpec),
}

impl Receiver {
    /// Kind and address, without secrets.
    pub(crate) fn name(&self) -> String {
        match self {
            Receiver::Webhook(spec, _) => format!("webhook {}", spec.url.origin()),
            Receiver::Syslog(spec, _) => {
                format!("syslog {}:{}", spec.transport.name(), spec.address)
            }
            Receiver::Snmp(spec) => format!("snmp udp:{}", spec.address),
        }
    }

    /// Delivers a notice; `lost`: notices that were not delivered since the start.
    ///
    /// # Errors
    /// The receiver did not accept it, as far as its protocol tells.
    pub(crate) async fn deliver(
        &self,
        notice: &AlarmNotice,
        source: &NoticeSource,
        lost: u64,
    ) -> Result<(), DeliveryError> {
        match self {
            Receiver::Webhook(spec, files) => post(spec, files, notice.json(source, lost)).await,
            Receiver::Syslog(spec, tls) => {
                let message = notice.syslog(source, spec.facility as u8);
                let sent = timeout(SYSLOG_TIMEOUT, log_to(spec, tls.as_ref(), &message)).await;
                let late = || transient(format!("not accepted within {SYSLOG_TIMEOUT:?}"));
                sent.map_err(|_| late())?.map_err(transient)
            }
            Receiver::Snmp(spec) => notify(spec, notice, source).await,
        }
    }
}

/// The signature of a body.
pub(crate) fn signature(secret: &str, body: &[u8]) -> String {
    let digest = HmacSha256::new(secret.as_bytes()).tag(body, &[]);
    let mut text = String::from("sha256=");
    for byte in digest {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

async fn post(
    spec: &WebhookSpec,
    files: &HttpCredentials,
    body: String,
) -> Result<(), DeliveryError> {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = Method::POST;
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(secret) = &files.secret {
        let signature = signature(secret, body.as_bytes());
        let value = HeaderValue::from_str(&signature).map_err(transient)?;
        headers.insert("x-hornwork-signature", value);
    }
    if let Some(token) = files.bearer() {
        headers.insert(AUTHORIZATION, token);
    }
    *request.body_mut() = Body::from(body);
    let limits = HttpLimits {
        time: spec.timeout,
        body: MAX_RESPONSE,
    };
    let response = exchange(&spec.url, files.tls.as_ref(), request, limits).await;
    judged(response.map_err(transient)?.status)
}

/// Whether a response accepts the notice. A redirect is a wrong URL, and so are most client errors.
fn judged(status: StatusCode) -> Result<(), DeliveryError> {
    let reason = || format!("status {}", status.as_u16());
    let again = [
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_EARLY,
        StatusCode::TOO_MANY_REQUESTS,
        // A token or a resource that is being replaced.
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::NOT_FOUND,
    ];
    match status {
        _ if status.is_success() => Ok(()),
        _ if status.is_server_error() || again.contains(&status) => Err(transient(reason())),
        _ => Err(DeliveryError::Permanent(reason())),
    }
}

async fn log_to(
    spec: &SyslogSpec,
    tls: Option<&Arc<ClientConfig>>,
    message: &str,
) -> io::Result<()> {
    match (spec.transport, tls) {
        (SyslogTransport::Udp, _) => {
            let socket = datagram_socket(&spec.address).await?;
            socket.send(message.as_bytes()).await?;
            icmp_error(&socket).await
        }
        (SyslogTransport::Tcp, _) => write_frame(connect(&spec.address).await?, message).await,
        (SyslogTransport::Tls, Some(tls)) => {
            write_frame(connect_tls(&spec.address, tls).await?, message).await
        }
        (SyslogTransport::Tls, None) => Err(io::Error::other("no certificate authorities")),
    }
}

/// Writes a message, and closes the connection: a server that has closed it as well has read the message, as far as
/// syslog, which has no acknowledgement, tells.
async fn write_frame<S>(mut stream: S, message: &str) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    stream.write_all(&syslog::counted(message)).await?;
    stream.shutdown().await?;
    let mut unread = [0; 256];
    let ended = timeout(CLOSE_TIMEOUT, async {
        while stream.read(&mut unread).await? > 0 {}
        io::Result::Ok(())
    });
    match ended.await {
        // A peer that ends TLS without close_notify has got everything before.
        Ok(Err(error)) if error.kind() != ErrorKind::UnexpectedEof => Err(error),
        // Servers may keep their side open.
        _ => Ok(()),
    }
}

/// A socket for datagrams to an address.
async fn datagram_socket(address: &ReceiverAddress) -> io::Result<UdpSocket> {
    let mut found = tokio::net::lookup_host((address.host.text(), address.port)).await?;
    let target = found.next();
    let target = target.ok_or_else(|| io::Error::other("the name has no address"))?;
    let local: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(target).await?;
    Ok(socket)
}

/// The error that the host of a receiver returns if its port is closed.
async fn icmp_error(socket: &UdpSocket) -> io::Result<()> {
    let mut unread = [0; 64];
    match timeout(ICMP_WAIT, socket.recv(&mut unread)).await {
        Ok(Err(error)) => Err(error),
        _ => Ok(()),
    }
}

async fn notify(
    spec: &SnmpSpec,
    notice: &AlarmNotice,
    source: &NoticeSource,
) -> Result<(), DeliveryError> {
    let datagram = notice.snmp(source, spec);
    let socket = datagram_socket(&spec.address).await.map_err(transient)?;
    socket.send(&datagram).await.map_err(transient)?;
    if !spec.inform {
        return icmp_error(&socket).await.map_err(transient);
    }
    let answered = timeout(INFORM_TIMEOUT, async {
        let mut bytes = [0; 1_500];
        loop {
            let length = socket.recv(&mut bytes).await.map_err(transient)?;
            let datagram = bytes.get(..length).unwrap_or_default();
            let response = snmp::response(datagram, spec.community.as_bytes());
            match response.filter(|response| response.request == i64::from(notice.request())) {
                Some(response) if response.error == 0 => return Ok(()),
                Some(response) => {
                    let reason = format!("SNMP error {}", response.error);
                    return Err(DeliveryError::Permanent(reason));
                }
                // Anything else is not the response.
                None => {}
            }
        }
    });
    let late = || transient(format!("no response within {INFORM_TIMEOUT:?}"));
    answered.await.unwrap_or_else(|_| Err(late()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_is_that_of_rfc_4231() {
        // Test case 2.
        assert_eq!(
            signature("Jefe", b"what do ya want for nothing?"),
            "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }

    #[test]
    fn responses_are_accepted_repeated_or_final() {
        assert_eq!(judged(StatusCode::NO_CONTENT), Ok(()));
        for again in [408, 429, 500, 503, 401] {
            let judged = judged(StatusCode::from_u16(again).unwrap());
            assert!(
                matches!(judged, Err(DeliveryError::Transient(_))),
                "{again}"
            );
        }
        for never in [301, 400, 413, 422] {
            let judged = judged(StatusCode::from_u16(never).unwrap());
            assert!(
                matches!(judged, Err(DeliveryError::Permanent(_))),
                "{never}"
            );
        }
    }
}
