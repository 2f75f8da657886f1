//! TLS to the database: how much of the server's certificate is checked, as libpq's `sslmode` says it.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::{BoxFuture, FutureExt as _};
use postgres::Socket;
use postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;

use crate::error::StoreError;

/// The checks of the server's certificate.
#[derive(Debug)]
pub(super) enum Check {
    /// Nothing (`prefer`, `require`): those who read along learn nothing, those in between do.
    Nothing,
    /// That one of these issued it (`verify-ca`).
    Issuer(Roots),
    /// That one of these issued it, and for this host (`verify-full`).
    IssuerAndHost(Roots),
}

/// The certificates of trusted issuers.
#[derive(Debug)]
pub(super) struct Roots {
    issuers: RootCertStore,
    certificates: Vec<CertificateDer<'static>>,
}

impl Roots {
    /// Returns `None` if none of the certificates can be read.
    pub(super) fn new(certificates: Vec<CertificateDer<'static>>) -> Option<Self> {
        let mut issuers = RootCertStore::empty();
        let (usable, _) = issuers.add_parsable_certificates(certificates.iter().cloned());
        (usable > 0).then_some(Self { issuers, certificates })
    }
}

/// Makes encrypted connections.
#[derive(Clone)]
pub(super) struct Connector(TlsConnector);

impl Connector {
    pub(super) fn new(check: Check) -> Result<Self, StoreError> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Verifier { check, provider: Arc::clone(&provider) };
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder =
            builder.map_err(|error| StoreError(format!("TLS to the database cannot be set up: {error}")))?;
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = builder.with_no_client_auth();
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Encrypted;
    type TlsConnect = ToHost;
    type Error = HandshakeError;

    fn make_tls_connect(&mut self, host: &str) -> Result<ToHost, HandshakeError> {
        Ok(ToHost { connector: self.0.clone(), host: host.to_owned() })
    }
}

/// Encrypts a connection to a host.
pub(super) struct ToHost {
    connector: TlsConnector,
    /// Empty for a socket, which is not encrypted.
    host: String,
}

impl TlsConnect<Socket> for ToHost {
    type Stream = Encrypted;
    type Error = HandshakeError;
    type Future = BoxFuture<'static, Result<Encrypted, HandshakeError>>;

    fn connect(self, socket: Socket) -> Self::Future {
        let Self { connector, host } = self;
        async move {
            let unusable = |_| HandshakeError(format!("{host:?} is no name of a host; correct `store.url`"));
            let name = ServerName::try_from(host.clone()).map_err(unusable)?;
            let handshake = connector.connect(name, socket).await;
            handshake.map(Encrypted).map_err(|error| HandshakeError::from_io(&error))
        }
        .boxed()
    }
}

/// Why a connection could not be encrypted, and what to do.
#[derive(Debug)]
pub(super) struct HandshakeError(String);

impl HandshakeError {
    fn from_io(error: &io::Error) -> Self {
        let is_certificate = error
            .get_ref()
            .and_then(|cause| cause.downcast_ref())
            .is_some_and(|cause| matches!(cause, Error::InvalidCertificate(_)));
        let todo = if is_certificate {
            "; `sslrootcert` must name the certificate of its issuer, and with `sslmode=verify-full` it must be for \
             the host in the URL"
        } else {
            ""
        };
        Self(format!("{error}{todo}"))
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for HandshakeError {}

/// An encrypted connection.
pub(super) struct Encrypted(tokio_rustls::client::TlsStream<Socket>);

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Encrypted {
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

#[derive(Debug)]
struct Verifier {
    check: Check,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let (roots, must_name_host) = match &self.check {
            Check::Nothing => return Ok(ServerCertVerified::assertion()),
            Check::Issuer(roots) => (roots, false),
            Check::IssuerAndHost(roots) => (roots, true),
        };
        let parsed = ParsedCertificate::try_from(certificate)?;
        // One that is trusted itself needs no issuer, as with a server whose certificate is self-signed.
        if !roots.certificates.contains(certificate) {
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(
                &parsed,
                &roots.issuers,
                intermediates,
                now,
                algorithms,
            )?;
        }
        if must_name_host {
            verify_server_name(&parsed, host)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
