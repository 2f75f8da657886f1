//! HTTP clients for everything but the model servers: gateways, MCP servers, trace collectors, webhooks.

use std::error::Error;
use std::io;
use std::iter::successors;

use reqwest::{Client, ClientBuilder};
use rustls::{CertificateError, InvalidMessage};

/// TLS cannot be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "TLS cannot be set up: {0}. If this system has no CA certificates, install them (`ca-certificates`), or set SSL_CERT_FILE"
)]
pub struct TlsError(String);

/// Builds a client for one address. Only an `https` address loads CA certificates, because a bare container
/// has none.
///
/// # Errors
/// When TLS cannot be set up, with what to do about it.
pub fn client_for(url: &str, builder: ClientBuilder) -> Result<Client, TlsError> {
    let is_tls = url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
    let builder = if is_tls { builder } else { builder.tls_certs_only([]) };
    builder
        .build()
        .map_err(|error| TlsError(error.source().map_or_else(|| error.to_string(), ToString::to_string)))
}

/// Formats an error with its causes, outermost first.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<String> = successors(Some(error), |error| (**error).source()).map(describe).collect();
    texts.join(": ")
}

/// Formats the innermost cause of an error, which says what happened where the others only wrap it.
pub fn root_cause(error: &(dyn Error + 'static)) -> String {
    successors(Some(error), |error| (**error).source()).last().map_or_else(String::new, describe)
}

/// Formats an error without its causes. It puts the errors of TLS that a wrong setting leads to into words,
/// because the library calls them by the names of its types.
pub fn describe(error: &(dyn Error + 'static)) -> String {
    let tls = unwrap_io(error).downcast_ref();
    tls.and_then(describe_tls).map_or_else(|| error.to_string(), str::to_owned)
}

/// Finds the error of TLS among an error and its causes.
pub fn find_tls<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    successors(Some(error), |error| (**error).source()).find_map(|cause| unwrap_io(cause).downcast_ref())
}

/// Returns the error that I/O errors wrap. They do not name it as their source.
fn unwrap_io<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let wrapped = |error: &&'a (dyn Error + 'static)| -> Option<&'a (dyn Error + 'static)> {
        Some(error.downcast_ref::<io::Error>()?.get_ref()?)
    };
    successors(Some(error), wrapped).last().unwrap_or(error)
}

fn describe_tls(error: &rustls::Error) -> Option<&'static str> {
    match error {
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => Some("it answers without TLS"),
        rustls::Error::InvalidCertificate(certificate) => match certificate {
            CertificateError::UnknownIssuer => Some(
                "this system does not know the authority behind its certificate (SSL_CERT_FILE names others)",
            ),
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                Some("its certificate has expired")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Some("its certificate is for another host name")
            }
            CertificateError::Other(_) => Some(
                "its certificate is not a server's; one that signed itself has to say `basicConstraints = CA:FALSE`",
            ),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(error: rustls::Error, expected: &str) {
        assert_eq!(describe(&error), expected);
        let reported = io::Error::other(io::Error::other(error));
        assert_eq!(chain(&reported), expected, "as a connection reports it");
    }

    #[test]
    fn errors_of_tls_name_no_types() {
        check(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType), "it answers without TLS");
        check(
            rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer),
            "this system does not know the authority behind its certificate (SSL_CERT_FILE names others)",
        );
        check(rustls::Error::InvalidCertificate(CertificateError::Expired), "its certificate has expired");
        check(
            rustls::Error::InvalidCertificate(CertificateError::NotValidForName),
            "its certificate is for another host name",
        );
        check(rustls::Error::HandshakeNotComplete, "handshake not complete");
    }
}
