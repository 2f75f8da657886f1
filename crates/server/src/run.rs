//! Runs the server on a listener until it is stopped: no new work, time to drain, then an honest end.

use std::time::Duration;

use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::agent_apis;
use super::routes::Routes;
use super::write_timeout::WriteTimeout;

/// After the abort, streams get this long to write their last event.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How the server is stopped.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// No new connections and requests; those in flight may finish.
    pub drain: CancellationToken,
    /// Requests that are still running end now, with an error event.
    pub abort: CancellationToken,
}

/// Serves until `stop.drain`, then waits for the requests in flight: at most `limits.drain`, or until
/// `stop.abort`. Returns the rest of that time.
pub async fn run_server(listener: TcpListener, routes: Routes, stop: Stop) -> Duration {
    let connections = TaskTracker::new();
    let (drain, current) = (stop.drain.clone(), routes.current());
    tokio::spawn(async move { drain.run_until_cancelled(agent_apis::watch_responses(current)).await });
    loop {
        tokio::select! {
            biased;
            () = stop.drain.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((socket, peer)) => {
                    connections.spawn(serve_connection(socket, routes.with_peer(peer.ip()), stop.drain.clone()));
                }
                Err(error) => {
                    // Out of descriptors: those in use will be closed.
                    tracing::warn!(target: "respool::server", %error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
    drop(listener);
    connections.close();
    let end = Instant::now() + routes.current().app().limits.drain;
    tokio::select! {
        () = connections.wait() => return end.saturating_duration_since(Instant::now()),
        () = tokio::time::sleep_until(end) => {}
        () = stop.abort.cancelled() => {}
    }
    stop.abort.cancel();
    let _ = tokio::time::timeout(LAST_WORDS, connections.wait()).await;
    end.saturating_duration_since(Instant::now())
}

async fn serve_connection(socket: TcpStream, routes: Routes, drain: CancellationToken) {
    // Without it small chunks wait for the client's delayed acknowledgement.
    let _ = socket.set_nodelay(true);
    let patience = routes.current().app().limits.client_timeout;
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(patience);
    let connection = builder.serve_connection(TokioIo::new(WriteTimeout::new(socket, patience)), routes);
    tokio::pin!(connection);
    let mut draining = false;
    loop {
        tokio::select! {
            // An error here is a client that went away, or does not speak HTTP: hyper has answered what it
            // could.
            _ = connection.as_mut() => return,
            () = drain.cancelled(), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
