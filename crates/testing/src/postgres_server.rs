//! A `PostgreSQL` server for the tests of this process, from the system's packages, on a socket in a
//! directory of its own. It ends with the process.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};
use tempfile::TempDir;

/// The user for whom the server runs where the tests run as root: `PostgreSQL` refuses root.
const USER: &str = "postgres";

struct Server {
    directory: TempDir,
    _process: Child,
    _watcher: Child,
}

static SERVER: OnceLock<Option<Server>> = OnceLock::new();
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// Makes an empty database. Returns its URL; `None`, with a loud line, on a machine without `PostgreSQL`.
pub fn new_database() -> Option<String> {
    std::thread::spawn(|| {
        let server = SERVER.get_or_init(start).as_ref()?;
        let name = format!("test_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        let url = |name: &str| {
            format!("host={} user={USER} dbname={name} sslmode=disable", server.directory.path().display())
        };
        let mut client = Client::connect(&url("postgres"), NoTls).unwrap();
        client.batch_execute(&format!("CREATE DATABASE {name}")).unwrap();
        Some(url(&name))
    })
    .join()
    .unwrap()
}

#[expect(clippy::print_stderr, reason = "the person who runs the tests must see what is skipped")]
fn start() -> Option<Server> {
    let Some(programs) = find_programs() else {
        assert!(std::env::var_os("CI").is_none(), "PostgreSQL is not installed: apt-get install postgresql");
        eprintln!("SKIPPED: the tests on PostgreSQL need its server: apt-get install postgresql");
        return None;
    };
    let directory = tempfile::Builder::new().prefix("respool-pg").tempdir_in("/tmp").unwrap();
    let data = directory.path().join("data");
    let root = nix::unistd::geteuid().is_root().then(|| {
        let user = nix::unistd::User::from_name(USER).unwrap().unwrap();
        nix::unistd::chown(directory.path(), Some(user.uid), Some(user.gid)).unwrap();
        (user.uid.as_raw(), user.gid.as_raw())
    });
    let command = |name: &str| {
        let mut command = Command::new(programs.join(name));
        if let Some((user, group)) = root {
            command.uid(user).gid(group);
        }
        command.arg("-D").arg(&data).current_dir("/").stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let made = command("initdb").args(["-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C", "-N"]).status();
    assert!(made.unwrap().success(), "initdb failed");
    let socket = directory.path().display().to_string();
    let settings = ["-c", "listen_addresses=", "-c", "max_connections=400", "-k", &socket];
    let process = command("postgres").args(settings).spawn().unwrap();
    let watcher = end_with_this_process(process.id());
    let began = Instant::now();
    let url = format!("host={socket} user={USER} dbname=postgres sslmode=disable");
    while Client::connect(&url, NoTls).is_err() {
        assert!(began.elapsed() < Duration::from_secs(30), "PostgreSQL does not start");
        std::thread::yield_now();
    }
    Some(Server { directory, _process: process, _watcher: watcher })
}

fn find_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let programs = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    programs.filter(|programs| programs.join("initdb").exists()).max()
}

/// Ends the server when this process has ended, however that happens.
fn end_with_this_process(server: u32) -> Child {
    let own = std::process::id();
    let script = format!("while kill -0 {own} 2>/dev/null; do sleep 0.5; done; kill -QUIT {server}");
    let mut watcher = Command::new("sh");
    watcher.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    watcher.process_group(0).spawn().unwrap()
}
