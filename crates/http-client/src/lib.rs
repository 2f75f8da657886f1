//! HTTP clients for everything but the model servers: gateways, MCP servers, trace collectors, webhooks.

use std::error::Error as _;

use reqwest::{Client, ClientBuilder};

/// Builds a client for one address. Only an `https` address loads CA certificates, because a bare container
/// has none.
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

/// Formats an error with its causes, outermost first.
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
