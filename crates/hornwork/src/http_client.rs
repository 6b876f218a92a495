//! HTTP requests of the program to others: one connection for each request, limited in time and size. Redirects are not
//! followed.

use axum::body::{Body, Bytes, to_bytes};
use axum::http::header::{CONNECTION, HOST, USER_AGENT};
use axum::http::{HeaderValue, Request, StatusCode};
use config::{HttpUrl, ReceiverAddress};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// Largest head of a response, octets.
const MAX_HEAD_OCTETS: usize = 16 << 10;

/// Credentials and TLS settings of a server, from files.
#[derive(Clone, Default)]
pub(crate) struct HttpCredentials {
    /// Key of signatures, or secret of a client.
    pub(crate) secret: Option<String>,
    /// Bearer token.
    pub(crate) token: Option<String>,
    pub(crate) tls: Option<Arc<ClientConfig>>,
}

impl std::fmt::Debug for HttpCredentials {
    /// Omits the secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HttpCredentials(..)")
    }
}

impl HttpCredentials {
    /// The value of Authorization with the token.
    pub(crate) fn bearer(&self) -> Option<HeaderValue> {
        let token = self.token.as_deref()?;
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

/// Opens a TCP connection.
///
/// # Errors
/// The name has no address, or no address accepts it.
pub(crate) async fn connect(address: &ReceiverAddress) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((address.host.text(), address.port)).await?;
    // Without it small requests are only slower.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Opens a TLS connection, whose certificate must be valid for the host.
///
/// # Errors
/// As [`connect`], or the handshake fails.
pub(crate) async fn connect_tls(
    address: &ReceiverAddress,
    settings: &Arc<ClientConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(address.host.text().to_owned()).map_err(io::Error::other)?;
    let stream = connect(address).await?;
    TlsConnector::from(settings.clone())
        .connect(name, stream)
        .await
}

/// A response.
#[derive(Clone, Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: StatusCode,
    /// The body; `None` if it is too long or cut off. The end of some servers' TLS without close_notify is that.
    pub(crate) body: Option<Bytes>,
}

/// Bounds of an exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpLimits {
    /// Longest duration, from the name look-up to the last octet.
    pub(crate) time: Duration,
    /// Largest body of the response, octets.
    pub(crate) body: usize,
}

/// Sends a request and reads the response. The URI of the request is replaced by the path of `url`.
///
/// # Errors
/// The reason in one line: no connection, or no response in time.
pub(crate) async fn exchange(
    url: &HttpUrl,
    tls: Option<&Arc<ClientConfig>>,
    mut request: Request<Body>,
    limits: HttpLimits,
) -> Result<HttpResponse, String> {
    *request.uri_mut() = url.path.parse().map_err(|_| "invalid path".to_owned())?;
    let host = HeaderValue::from_str(&url.authority).map_err(|_| "invalid host".to_owned())?;
    let headers = request.headers_mut();
    headers.insert(HOST, host);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    let agent = concat!("hornwork/", env!("CARGO_PKG_VERSION"));
    headers.insert(USER_AGENT, HeaderValue::from_static(agent));
    let exchanged = timeout(limits.time, async {
        let failed = |error: io::Error| error.to_string();
        match (url.is_secure, tls) {
            (false, _) => {
                let stream = connect(&url.address).await.map_err(failed)?;
                over(stream, request, limits.body).await
            }
            (true, Some(tls)) => {
                let stream = connect_tls(&url.address, tls).await.map_err(failed)?;
                over(stream, request, limits.body).await
            }
            (true, None) => Err("no certificate authorities for https".to_owned()),
        }
    });
    match exchanged.await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("no response within {} s", limits.time.as_secs())),
    }
}

/// Aborts the task that drives a connection when its request has ended, however it ends.
struct Driven(tokio::task::JoinHandle<()>);

impl Drop for Driven {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn over<S>(stream: S, request: Request<Body>, limit: usize) -> Result<HttpResponse, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD_OCTETS);
    let opened = builder.handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = opened.map_err(|error| error.to_string())?;
    let _driven = Driven(tokio::spawn(async move {
        // Its error is also that of the request.
        let _ = connection.await;
    }));
    let response = sender.send_request(request).await;
    let response = response.map_err(|error| error.to_string())?;
    let status = response.status();
    let body = to_bytes(Body::new(response.into_body()), limit).await;
    let body = body.ok();
    Ok(HttpResponse { status, body })
}
