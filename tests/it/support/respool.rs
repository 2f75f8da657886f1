//! The product under test, in this process: the one place of the support code that knows `respool`'s own interfaces.

use std::net::SocketAddr;
use std::sync::Arc;

use respool::relay::{Relay, RelayConfig, RelayLimits};
use respool::server::{App, LimitsConfig, Stop, router, run};
use respool::translate::GuardLimits;
use respool::upstream::{Upstream, UpstreamConfig};
use tokio::net::TcpListener;

/// A server in front of one upstream. Stops when dropped.
#[derive(Debug)]
pub struct Respool {
    /// Where it listens.
    pub address: SocketAddr,
    /// Ends it.
    pub stop: Stop,
}

impl Respool {
    /// With every setting at its default.
    pub async fn start(upstream: &str) -> Self {
        Self::with(
            &UpstreamConfig::at(upstream.parse().unwrap()),
            RelayConfig::default(),
            LimitsConfig::default(),
        )
        .await
    }

    /// With these settings.
    pub async fn with(upstream: &UpstreamConfig, relay: RelayConfig, limits: LimitsConfig) -> Self {
        // The process under test does so at its start; here each test may be the first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let guard =
            GuardLimits { max_tool_results: limits.max_tool_results, max_repeats: limits.max_repeats };
        let bounds =
            RelayLimits { max_body: limits.max_body.bytes(), commit_after: limits.commit_after, guard };
        let upstreams = vec![(Arc::new(Upstream::new(upstream).unwrap()), None)];
        let stop = Stop::default();
        let app = App {
            relay: Arc::new(Relay::new(relay, upstreams, bounds)),
            limits: limits.clone(),
            log_content: false,
            abort: stop.abort.clone(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(run(listener, router(app), stop.clone(), limits.drain));
        Self { address, stop }
    }
}

impl Drop for Respool {
    fn drop(&mut self) {
        self.stop.drain.cancel();
        self.stop.abort.cancel();
    }
}
