//! `respool serve`: starts everything in order, and ends it in order.

use std::fs::{File, TryLockError};
use std::io::{self, IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::assembly::{Assembled, assemble, open_parts};
use super::banner;
use super::expert::warn_of_lost_models;
use super::failure::{Failure, log_problem};
use super::options::misspelt_note;
use super::reachability::IS_RESPOOL;
use super::reload::{Reloading, Stamp};
use super::running::{LOCK, find_listener};
use super::runtime::{new_runtime, stop_signals, stop_when_signalled};
use super::version;
use crate::relay_ports::RelayProbes;
use alerts::Watched;
use relay::Relay;
use server::{App, CurrentApp, Stop, build_routes};
use settings::{Advice, find_advice, find_unknown_keys, find_unknown_names, start_problems};
use settings::{Flags, Loaded, Settings};
use store::{AuditCopy, Store};
use tools::audit::{self, AuditLine};
use upstream::Fleet;
use usage::{Ledger, RunningList, keep_running_list};

/// How often the places at upstreams are divided among the processes that live.
const DIVIDE_EVERY: Duration = Duration::from_secs(3);
/// How often a second server looks whether the first has ended.
const TAKE_OVER_EVERY: Duration = Duration::from_secs(2);
/// How long an upstream has to say that it is a respool.
const RESPOOL_WITHIN: Duration = Duration::from_secs(5);
/// How long the end waits for threads that read or write files.
const END: Duration = Duration::from_secs(5);

pub(super) fn serve(loaded: &Loaded, flags: Flags) -> Result<(), Failure> {
    let flush = telemetry::init(&loaded.settings.log).map_err(|why| log_problem(loaded, why))?;
    telemetry::metrics::install_recorder();
    telemetry::metrics::set_build_info(env!("CARGO_PKG_VERSION"), version::commit().unwrap_or_default());
    raise_descriptor_limit();
    let runtime = new_runtime()?;
    let result = runtime.block_on(run_server(loaded, flags));
    // Whoever asked for their work has gone.
    for note in runtime.block_on(tools::end_commands()) {
        tracing::warn!(target: "respool::tools", "{note}");
    }
    runtime.shutdown_timeout(END);
    drop(flush);
    result
}

async fn run_server(loaded: &Loaded, flags: Flags) -> Result<(), Failure> {
    let settings = &loaded.settings;
    let seen = Stamp::stamp_of(loaded);
    let found = start_problems(settings);
    if !found.is_empty() {
        return Err(loaded.problems(found).into());
    }
    let stop = Stop::default();
    let parts = open_parts(settings, &stop.abort).await;
    let Assembled { app, upstreams, sources, traces } =
        assemble(&server_settings(settings), &stop.abort, parts)
            .await
            .map_err(|found| loaded.problems(found))?;
    for misspelt in &loaded.misspelt {
        tracing::warn!(target: "respool::server", "{}", misspelt_note(misspelt));
    }
    log_advice(settings, &app.access.key_names());
    let hangup = handle_hangup()?;
    let listener = bind_address(settings).await?;
    let lock = hold_state_dir(&settings.store.state_dir, &listener, &stop);
    let routes = build_routes(Arc::clone(&app));
    announce(loaded, &flags, &listener, &upstreams.fleet)?;
    stop_on_signals(&stop, routes.current())?;
    stop_with_terminal(&stop)?;
    // A file that reaches its size limit (systemd's `LimitFSIZE=`) then fails the write instead of ending the
    // process.
    let _ = signal(SignalKind::from_raw(nix::libc::SIGXFSZ));
    let (agents, access, experts) = (Arc::clone(&app.agents), Arc::clone(&app.access), app.experts.clone());
    let usage = Arc::clone(&app.usage);
    let (relay, relays) = watch::channel(Arc::clone(&app.relay));
    tokio::spawn(Arc::clone(&app.alerts).watch(watched_parts(&app, relays.clone()), stop.abort.clone()));
    list_running_requests(&usage, &settings.store.state_dir, lock.is_some(), &stop).await;
    let reloading = Reloading {
        flags,
        start: loaded.clone(),
        seen,
        holds: settings.clone(),
        current: routes.current(),
        upstreams,
        sources,
        relay,
        stop: stop.abort.clone(),
    };
    tokio::spawn(reloading.watch_configuration(hangup));
    if let Some(store) = agents.store() {
        store.note_configuration(loaded.digest());
        tokio::spawn(access.keep_operators(Arc::clone(store), stop.abort.clone()));
        tokio::spawn(stop.abort.clone().run_until_cancelled_owned(divide_places(Arc::clone(store), relays)));
    }
    let audit = begin_audit_copy(settings, agents.store().cloned(), stop.abort.clone());
    agents.start_housekeeping().await;
    if let Some(experts) = &experts {
        experts.start(&stop.abort);
    }
    let left = server::run_server(listener, routes, stop.clone()).await;
    stop.abort.cancel();
    agents.wait_for_runs(left).await;
    if let Some(experts) = &experts {
        experts.wait_for_end().await;
    }
    usage.save_keys().await;
    usage.close().await;
    usage.share().await;
    audit.copy_rest().await;
    if let Some(traces) = traces {
        traces.flush().await;
    }
    tracing::info!(target: "respool::server", "stopped");
    Ok(())
}

/// Lists the requests in progress in the state directory from now on. First, those on the list there are
/// recorded as cut, unless another server lives that may have written it.
async fn list_running_requests(usage: &Ledger, dir: &Path, is_alone: bool, stop: &Stop) {
    if is_alone {
        usage.record_cut_requests(RunningList::read_any(dir)).await;
    }
    tokio::spawn(keep_running_list(Arc::clone(&usage.in_flight), dir.to_owned(), stop.abort.clone()));
}

/// Copies the lines of the audit log to the database of all processes as they are written.
fn begin_audit_copy(
    settings: &Settings,
    store: Option<Arc<Store>>,
    stop: CancellationToken,
) -> Arc<AuditCopy> {
    let log = settings.store.state_dir.join(audit::FILE);
    let copy = Arc::new(AuditCopy::new(store, log, AuditLine::time_of));
    tokio::spawn(Arc::clone(&copy).copy_until(stop));
    copy
}

/// Returns the settings with the marks of a process that serves.
fn server_settings(settings: &Settings) -> Settings {
    let mut served = settings.clone();
    served.store.node.is_server = true;
    served.store.node.commit = version::commit();
    served
}

/// Returns what the alerts watch.
fn watched_parts(app: &App, relays: watch::Receiver<Arc<Relay>>) -> Watched {
    let experts = app.experts.clone();
    let not_ready = move || experts.as_ref().map(|experts| experts.readiness.not_ready()).unwrap_or_default();
    let agent_apis = Arc::clone(&app.agent_apis);
    let open_store = move || agent_apis.responses.open_store().cloned();
    Watched {
        open_store: Arc::new(open_store),
        upstreams: Arc::new(RelayProbes(relays)),
        agents: Arc::clone(&app.agents),
        usage: Arc::clone(&app.usage),
        not_ready: Arc::new(not_ready),
    }
}

/// Holds the lock of a state directory until it is dropped, and notes there where this server listens. If
/// another server has it, that is logged, and this one takes over when the other ends.
fn hold_state_dir(dir: &Path, listener: &TcpListener, stop: &Stop) -> Option<File> {
    let lock = lock_state_dir(dir).ok()?;
    if let (Some(lock), Ok(address)) = (&lock, listener.local_addr()) {
        note_address(lock, address);
    }
    if lock.is_none() {
        let todo =
            "give each its own `state_dir`, or let them share a database with `store.url` (docs/scaling.md)";
        tracing::warn!(target: "respool::server", dir = %dir.display(), todo,
            "another respool serves with this state directory: each counts budgets and limits of keys alone");
        if let Ok(address) = listener.local_addr() {
            tokio::spawn(take_over_state_dir(dir.to_owned(), address, stop.abort.clone()));
        }
    }
    lock
}

/// Holds the lock of a state directory as soon as the other server that has it ends: other commands then find
/// this one.
async fn take_over_state_dir(dir: PathBuf, address: SocketAddr, stop: CancellationToken) {
    let takes_over = async {
        loop {
            tokio::time::sleep(TAKE_OVER_EVERY).await;
            if let Ok(Some(lock)) = lock_state_dir(&dir) {
                note_address(&lock, address);
                return lock;
            }
        }
    };
    let Some(_lock) = stop.run_until_cancelled(takes_over).await else { return };
    stop.cancelled().await;
}

/// Locks a state directory; `None` if another process has locked it.
fn lock_state_dir(dir: &Path) -> io::Result<Option<File>> {
    let file = File::options().create(true).truncate(false).write(true).open(dir.join(LOCK))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Returns true if another respool with the same state directory listens at the configured port.
fn is_served_already(settings: &Settings) -> bool {
    let is_locked = matches!(lock_state_dir(&settings.store.state_dir), Ok(None));
    is_locked && find_listener(settings).port == settings.server.listen.port
}

/// Writes the address of the server into its lock, where other commands find it. Without it they look at the
/// configured one.
fn note_address(mut lock: &File, address: SocketAddr) {
    let text = address.to_string();
    let _ = lock.set_len(0).and_then(|()| lock.write_all(text.as_bytes()));
}

/// Logs settings that will not do what their owner expects. `keys`: the names of all client keys.
fn log_advice(settings: &Settings, keys: &[String]) {
    let unknown_keys = find_unknown_keys(settings, keys);
    let advice = find_advice(settings).into_iter().chain(find_unknown_names(settings)).chain(unknown_keys);
    for Advice { text, todo } in advice {
        tracing::warn!(target: "respool::server", todo, "{text}");
    }
}

/// Stops the server at a signal; a second one stops it at once.
fn stop_on_signals(stop: &Stop, current: CurrentApp) -> Result<(), Failure> {
    let in_progress = move || {
        let app = current.app();
        describe_rest(app.usage.in_flight.requests().len(), app.limits.drain)
    };
    tokio::spawn(stop_when_signalled(stop.clone(), stop_signals()?, in_progress));
    Ok(())
}

/// Stops a server that was started at a terminal when that is closed, as it would run on unseen. Elsewhere
/// SIGHUP only means that the configuration is read again.
fn stop_with_terminal(stop: &Stop) -> Result<(), Failure> {
    if !io::stderr().is_terminal() {
        return Ok(());
    }
    let (drain, mut hangup) = (stop.drain.clone(), handle_hangup()?);
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            if !io::stderr().is_terminal() {
                tracing::info!(target: "respool::server", "its terminal was closed");
                return drain.cancel();
            }
        }
    });
    Ok(())
}

fn handle_hangup() -> Result<Signal, Failure> {
    Ok(signal(SignalKind::hangup()).map_err(|error| format!("signals cannot be handled: {error}"))?)
}

/// Says what a stopping server still waits for.
fn describe_rest(requests: usize, drain: Duration) -> String {
    let count = match requests {
        0 => return "no requests are in progress".to_owned(),
        1 => "1 request".to_owned(),
        count => format!("{count} requests"),
    };
    format!("{count} in progress, at most {} s; Ctrl-C again stops at once", drain.as_secs())
}

/// Divides the `max_concurrency` of each upstream among the processes of a database that have the same
/// configuration.
async fn divide_places(store: Arc<Store>, relays: watch::Receiver<Arc<Relay>>) {
    let mut looks = tokio::time::interval(DIVIDE_EVERY);
    loop {
        looks.tick().await;
        let processes = usize::try_from(store.live_nodes_alike()).unwrap_or(1);
        relays.borrow().upstreams().for_each(|upstream| upstream.state.share_places(processes));
    }
}

/// Says where the server listens: in the log, and to a person at a terminal with a banner.
fn announce(
    loaded: &Loaded,
    flags: &Flags,
    listener: &TcpListener,
    fleet: &Arc<Fleet>,
) -> Result<(), Failure> {
    let address = listener
        .local_addr()
        .map_err(|error| format!("the address of the listener is not known: {error}"))?;
    let settings = &loaded.settings;
    if banner::is_wanted(settings) {
        let (loaded, flags, fleet) = (loaded.clone(), flags.clone(), Arc::clone(fleet));
        tokio::spawn(async move { banner::print_banner(&loaded, &flags, address, &fleet).await });
    }
    let (watched, fleet) = (settings.clone(), Arc::clone(fleet));
    let experts_fleet = Arc::clone(&fleet);
    tokio::spawn(async move { warn_of_lost_models(&watched, &experts_fleet).await });
    tokio::spawn(warn_of_respools(fleet));
    let names: Vec<String> = settings.upstreams.iter().map(|upstream| upstream.name.clone()).collect();
    tracing::info!(
        target: "respool::server",
        version = env!("CARGO_PKG_VERSION"),
        listen = address.to_string(),
        upstreams = names.join(","),
        config = loaded.file.as_ref().map(|path| path.display().to_string()),
        "ready"
    );
    Ok(())
}

/// Logs upstreams that are other respools.
async fn warn_of_respools(fleet: Arc<Fleet>) {
    for upstream in fleet.iter() {
        if upstream.is_respool(RESPOOL_WITHIN).await {
            tracing::warn!(target: "respool::server", upstream = upstream.name, todo = "name the model server behind it",
                "{IS_RESPOOL}");
        }
    }
}

async fn bind_address(settings: &Settings) -> Result<TcpListener, Failure> {
    let listen = &settings.server.listen;
    let bound = TcpListener::bind((listen.host.as_str(), listen.port)).await;
    bound.map_err(|error| {
        let what_to_do = match error.kind() {
            io::ErrorKind::AddrInUse => format!(
                "{}: `ss -ltnp 'sport = :{}'` names it; stop it, or choose another port with --listen",
                if is_served_already(settings) {
                    "a respool runs there already"
                } else {
                    "another program uses this port (another respool?)"
                },
                listen.port
            ),
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 need a privilege; choose a higher one with --listen".to_owned()
            }
            _ => "correct --listen or `listen` in respool.toml".to_owned(),
        };
        format!("cannot listen on {listen}: {error}; {what_to_do}").into()
    })
}

/// Raises the limit of open files: a thousand streams need two thousand descriptors, and many systems start a
/// process with 1024 and allow it more.
fn raise_descriptor_limit() {
    // macOS refuses more than its `OPEN_MAX`, and reports no limit.
    let most = if cfg!(target_os = "macos") { 10_240 } else { u64::MAX };
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard.min(most), hard));
    if let Err(error) = raised {
        tracing::warn!(target: "respool::server", %error, "the limit of open files cannot be raised");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_has_a_state_directory() {
        let dir = tempfile::tempdir().unwrap();
        let first = lock_state_dir(dir.path()).unwrap().unwrap();
        assert!(lock_state_dir(dir.path()).unwrap().is_none());
        drop(first);
        assert!(lock_state_dir(dir.path()).unwrap().is_some());
    }

    /// Regression: a service that began while a `serve` ran was never found, also when that had ended.
    #[tokio::test(start_paused = true)]
    async fn the_second_server_takes_over() {
        let dir = tempfile::tempdir().unwrap();
        let noted = || std::fs::read_to_string(dir.path().join(LOCK)).unwrap();
        let first = lock_state_dir(dir.path()).unwrap().unwrap();
        note_address(&first, "127.0.0.1:1".parse().unwrap());
        let stop = CancellationToken::new();
        let second = "127.0.0.1:2".parse().unwrap();
        let waiting = tokio::spawn(take_over_state_dir(dir.path().to_owned(), second, stop.clone()));
        tokio::time::sleep(2 * TAKE_OVER_EVERY).await;
        assert_eq!(noted(), "127.0.0.1:1");
        drop(first);
        tokio::time::sleep(2 * TAKE_OVER_EVERY).await;
        assert_eq!(noted(), "127.0.0.1:2");
        assert!(lock_state_dir(dir.path()).unwrap().is_none());
        stop.cancel();
        waiting.await.unwrap();
        assert!(lock_state_dir(dir.path()).unwrap().is_some());
    }

    #[test]
    fn a_stopping_server_says_what_it_waits_for() {
        let rest = |requests| describe_rest(requests, Duration::from_secs(30));
        assert_eq!(rest(0), "no requests are in progress");
        assert_eq!(rest(2), "2 requests in progress, at most 30 s; Ctrl-C again stops at once");
    }
}
