//! TLS to the database server, with its certificate and its name verified.

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

/// Makes connections that trust the authorities of a file.
#[derive(Clone)]
pub(super) struct Verified(TlsConnector);

impl Verified {
    /// Reads the authorities (PEM).
    ///
    /// # Errors
    /// The file cannot be read, or has no certificate that can be an authority.
    pub(super) fn new(authorities: &Path) -> Result<Verified, String> {
        let shown = authorities.display();
        let mut roots = RootCertStore::empty();
        let certificates = CertificateDer::pem_file_iter(authorities);
        for certificate in certificates.map_err(|error| format!("{shown}: {error}"))? {
            let added = certificate
                .map_err(|error| error.to_string())
                .and_then(|certificate| roots.add(certificate).map_err(|error| error.to_string()));
            added.map_err(|error| format!("{shown}: {error}"))?;
        }
        if roots.is_empty() {
            return Err(format!("{shown} has no certificate"));
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Verified(TlsConnector::from(Arc::new(config))))
    }
}

impl<S> MakeTlsConnect<S> for Verified
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = SecureStream<S>;
    type TlsConnect = VerifiedName;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<VerifiedName> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(VerifiedName(self.0.clone(), name))
    }
}

/// Makes a connection to the server of this name.
pub(super) struct VerifiedName(TlsConnector, ServerName<'static>);

impl<S> TlsConnect<S> for VerifiedName
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = SecureStream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<SecureStream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move { self.0.connect(self.1, stream).await.map(SecureStream) })
    }
}

/// An established connection.
pub(super) struct SecureStream<S>(tokio_rustls::client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for SecureStream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        // The certificate is verified; SCRAM without channel binding is sufficient.
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for SecureStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for SecureStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
