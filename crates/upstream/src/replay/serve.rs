//! The replay upstream's sockets: accepts, speaks HTTP/1.1, ends with its token.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Replay;

/// How long open replies may go on after the shutdown began.
const GRACE: Duration = Duration::from_secs(5);

/// Answers on `listener` until `shutdown`, then lets replies that are under way end (5 s at most).
pub async fn serve_replay(listener: TcpListener, replay: Arc<Replay>, shutdown: CancellationToken) {
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, _)) => {
                connections.spawn(serve_connection(socket, Arc::clone(&replay), shutdown.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "replay upstream: accept failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    connections.close();
    connections.wait().await;
}

async fn serve_connection(socket: TcpStream, replay: Arc<Replay>, shutdown: CancellationToken) {
    // A chunk is small and must leave at once; where this fails it is merely slower.
    let _ = socket.set_nodelay(true);
    let service = service_fn(move |request| {
        let replay = Arc::clone(&replay);
        async move { Ok::<_, Infallible>(replay.respond(request).await) }
    });
    let mut connection =
        std::pin::pin!(http1::Builder::new().serve_connection(TokioIo::new(socket), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(GRACE, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "replay upstream: connection ended early");
    }
}
