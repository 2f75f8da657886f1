//! HTTP clients for what is beside the model servers: gateways, MCP servers, collectors of traces, webhooks.

use std::error::Error as _;

use reqwest::{Client, ClientBuilder};

/// A client for one address. One that is not `https` needs no certificates, which a bare container does not
/// have.
///
/// # Errors
/// When TLS cannot be set up, with what to do about it.
pub fn client_for(url: &str, builder: ClientBuilder) -> Result<Client, String> {
    let is_tls = url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
    let builder = if is_tls { builder } else { builder.tls_certs_only([]) };
    builder.build().map_err(|error| {
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        format!(
            "TLS cannot be set up: {cause}. If this system has no CA certificates, install them (`ca-certificates`), or set \
             SSL_CERT_FILE"
        )
    })
}

/// The error and its causes, outermost first.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
