//! Opens connections to a model server, with TLS where its address says so. `client` makes one for each pool.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::GaiResolver;
use rustls::{ClientConfig, RootCertStore};
use tower::util::{MapErr, ServiceExt as _};

use super::setup_error::SetupProblem;

/// After a silence of this length the system asks whether the other end of a connection is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);

pub(super) type Connector = HttpsConnector<HttpConnector<Resolver>>;
type Resolver = MapErr<GaiResolver, fn(io::Error) -> ResolveError>;

/// The host name of a server cannot be resolved.
#[derive(Debug)]
pub(super) struct ResolveError(io::Error);

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for ResolveError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// Returns a connector that reads the system's certificates only for a server that `is_tls`: a bare container
/// has none.
///
/// # Errors
/// When TLS cannot be set up, or the certificates cannot be read.
pub(super) fn new_connector(is_tls: bool) -> Result<Connector, SetupProblem> {
    let resolver: Resolver = GaiResolver::new().map_err(ResolveError);
    let mut tcp = HttpConnector::new_with_resolver(resolver);
    tcp.set_nodelay(true);
    tcp.enforce_http(false);
    // A server that loses its power, or a connection that a router forgets, ends a long wait for a reply too.
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE / 2));
    tcp.set_keepalive_retries(Some(4));
    let tls = HttpsConnectorBuilder::new().with_tls_config(tls_config(is_tls)?);
    Ok(tls.https_or_http().enable_http1().wrap_connector(tcp))
}

fn tls_config(is_tls: bool) -> Result<ClientConfig, SetupProblem> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(SetupProblem::Tls)?;
    let builder = if is_tls {
        let roots = builder.with_native_roots();
        roots.map_err(SetupProblem::Certificates)?
    } else {
        builder.with_root_certificates(RootCertStore::empty())
    };
    Ok(builder.with_no_client_auth())
}
