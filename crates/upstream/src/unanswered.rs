//! Why a server gave no answer, read from the types of the errors. `pool` reports it, and `client` makes the
//! client's error of it.

use std::error::Error;
use std::io;

use http_client::{chain, find_tls};
use tower::BoxError;
use wire::ErrorCode;

use super::connector::ResolveError;
use super::failure::{Tier, UpstreamError};
use super::failure_words::unanswered_words;

/// Why no answer came.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// The host name cannot be resolved.
    Resolve(BoxError),
    /// The server cannot be reached.
    Connect(BoxError),
    /// The TLS handshake failed.
    Handshake(BoxError),
    /// The connection broke, or the answer is not HTTP.
    Exchange(hyper::Error),
}

impl Unanswered {
    /// Sorts an error of the connector.
    pub(super) fn from_connect_error(error: BoxError) -> Self {
        if error_chain(error.as_ref()).any(<dyn Error>::is::<ResolveError>) {
            Self::Resolve(error)
        } else if error.is::<io::Error>() {
            // Errors of the TCP connection have a type of their own; the handshake's are plain I/O errors.
            Self::Handshake(error)
        } else {
            Self::Connect(error)
        }
    }

    /// Returns the error for the client. `name` and `address` are the server's.
    pub(super) fn as_upstream_error(&self, name: &str, address: &str) -> UpstreamError {
        let details = match self {
            Self::Resolve(error) | Self::Connect(error) | Self::Handshake(error) => chain(error.as_ref()),
            Self::Exchange(error) => chain(error),
        };
        let last = details.rsplit(": ").next().unwrap_or_default();
        // The number of the error is in the log.
        let last = last.split(" (os error ").next().unwrap_or_default();
        let (status, code) = self.status_and_code();
        let what = unanswered_words(code, address, last);
        let details = if what.ends_with(&details) { "" } else { &*details };
        let error = UpstreamError::new_broken(name, status, code, &what, details);
        match code {
            // Not a byte came back: as when a server restarts behind its load balancer.
            ErrorCode::UpstreamClosed => UpstreamError { tier: Tier::Transient, ..error },
            _ => error,
        }
    }

    fn status_and_code(&self) -> (u16, ErrorCode) {
        match self {
            Self::Resolve(_) => (503, ErrorCode::UpstreamDns),
            Self::Connect(_) => (503, ErrorCode::UpstreamUnreachable),
            Self::Handshake(_) => (502, ErrorCode::UpstreamTls),
            // A server that wants a certificate of the client says so after the handshake.
            Self::Exchange(error) if find_tls(error).is_some() => (502, ErrorCode::UpstreamTls),
            Self::Exchange(error) if error.is_user() => (400, ErrorCode::IncompleteBody),
            Self::Exchange(error) if error.is_parse() => (502, ErrorCode::UpstreamNotHttp),
            Self::Exchange(_) => (502, ErrorCode::UpstreamClosed),
        }
    }
}

/// Returns the error and its causes, outermost first.
fn error_chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (**error).source())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use hyper_util::rt::TokioIo;
    use rustls::CertificateError;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_util::io::StreamReader;

    use super::*;
    use crate::{Outgoing, Upstream, UpstreamConfig};
    use http::HeaderMap;

    async fn code_at(url: &str) -> (Option<ErrorCode>, Tier) {
        let upstream = Upstream::new(&UpstreamConfig::with_address(url.parse().unwrap())).unwrap();
        let error = upstream.get_json("/health", HeaderMap::new()).await.unwrap_err();
        (error.error.code, error.tier)
    }

    /// Answers the first bytes of each connection with `answer` and closes it.
    async fn server(answer: &'static [u8]) -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let _ = socket.read(&mut [0; 4096]).await;
                let _ = socket.write_all(answer).await;
            }
        });
        port
    }

    #[tokio::test]
    async fn unresolvable_host() {
        // A label of more than 63 characters: no name server is asked.
        let url = format!("http://{}.invalid", "tls".repeat(30));
        assert_eq!(code_at(&url).await.0, Some(ErrorCode::UpstreamDns));
    }

    #[tokio::test]
    async fn failed_handshake() {
        for answer in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
            let url = format!("https://127.0.0.1:{}", server(answer).await);
            assert_eq!(code_at(&url).await.0, Some(ErrorCode::UpstreamTls), "{answer:?}");
        }
    }

    #[tokio::test]
    async fn closed_or_odd_plain_connection() {
        let url = format!("http://127.0.0.1:{}", server(b"").await);
        assert_eq!(code_at(&url).await, (Some(ErrorCode::UpstreamClosed), Tier::Transient));
        let url = format!("http://127.0.0.1:{}", server(b"tls handshake\r\n\r\n").await);
        assert_eq!(code_at(&url).await.0, Some(ErrorCode::UpstreamNotHttp));
    }

    /// The error of a request whose connection breaks with `cause` once it is written.
    async fn exchange_error(cause: io::Error) -> UpstreamError {
        let broken = futures::stream::once(async {
            tokio::task::yield_now().await;
            Err::<Bytes, _>(cause)
        });
        let socket = tokio::io::join(StreamReader::new(Box::pin(broken)), tokio::io::sink());
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
        let request = http::Request::get("/").body(Outgoing::empty()).unwrap();
        let (answer, _) = tokio::join!(sender.send_request(request), connection);
        Unanswered::Exchange(answer.unwrap_err()).as_upstream_error("u", "https://u")
    }

    /// It was an error of TLS, and not tried again, because its text has the letters "TLS".
    #[tokio::test]
    async fn end_without_close_notify_is_transient() {
        let text = "peer closed connection without sending TLS close_notify";
        let error = exchange_error(io::Error::new(io::ErrorKind::UnexpectedEof, text)).await;
        assert_eq!((error.error.code, error.tier), (Some(ErrorCode::UpstreamClosed), Tier::Transient));
    }

    /// Regression: people read `Other(OtherError(CaUsedAsEndEntity))`.
    #[test]
    fn certificates_are_explained() {
        for (problem, words) in [
            (CertificateError::UnknownIssuer, "SSL_CERT_FILE"),
            (CertificateError::Expired, "has expired"),
            (CertificateError::NotValidForName, "another host name"),
            (CertificateError::Other(rustls::OtherError(Arc::new(io::Error::other("x")))), "CA:FALSE"),
        ] {
            // As a connection reports it.
            let error = io::Error::other(io::Error::other(rustls::Error::InvalidCertificate(problem)));
            let error = Unanswered::from_connect_error(error.into()).as_upstream_error("box", "https://box");
            assert!(error.error.message.contains(words), "{}", error.error.message);
            assert!(error.log_text().matches(words).count() == 1, "{}", error.log_text());
        }
    }

    #[tokio::test]
    async fn refused_client_certificate_is_tls() {
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired);
        let error = exchange_error(io::Error::new(io::ErrorKind::InvalidData, alert)).await;
        assert_eq!(error.error.code, Some(ErrorCode::UpstreamTls));
    }
}
