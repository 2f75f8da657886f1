//! The runtime that commands use, and the signals that end them.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::failure::Failure;
use server::Stop;

/// Returns the runtime that all commands use.
pub(super) fn new_runtime() -> Result<tokio::runtime::Runtime, Failure> {
    // Fails only if a provider is installed already, which is just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| format!("the runtime cannot be started: {error}").into())
}

/// Listens for the signals that end a server.
pub(super) fn stop_signals() -> Result<[Signal; 2], Failure> {
    let handler =
        |kind| signal(kind).map_err(|error| Failure::Failed(format!("signals cannot be handled: {error}")));
    Ok([handler(SignalKind::terminate())?, handler(SignalKind::interrupt())?])
}

/// Waits for signals: the first lets requests in progress finish, the second ends them at once. `in_progress`
/// says which requests these are.
pub(super) async fn stop_when_signalled(
    stop: Stop,
    [mut terminate, mut interrupt]: [Signal; 2],
    in_progress: impl Fn() -> String,
) {
    let mut next = async || tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} };
    next().await;
    tracing::info!(target: "respool::server", "stopping: {}", in_progress());
    stop.drain.cancel();
    next().await;
    tracing::warn!(target: "respool::server", "stopping at once");
    stop.abort.cancel();
    tokio::time::sleep(Duration::from_millis(100)).await;
    std::process::exit(130);
}
