//! A `PostgreSQL` server for the tests of this process, from the system's packages, on a socket in a
//! directory of its own and, with TLS, on a port of the loopback. It ends with the process.
//!
//! `RESPOOL_PGBOUNCER=PROGRAM` puts this `PgBouncer` (1.21 or newer) in transaction mode in front of it.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

/// The user for whom the server runs where the tests run as root: `PostgreSQL` refuses root.
const USER: &str = "postgres";

/// Who may connect how: a role of this name needs its password.
const RULES: &str = "local all all trust
host all with_password all scram-sha-256
host all all all trust
";

struct Server {
    directory: TempDir,
    port: u16,
    programs: PathBuf,
    /// The user and group of its processes, where the tests run as root.
    user: Option<(u32, u32)>,
    /// The port of the pooler in front, whose socket is in the same directory.
    pooler: Option<u16>,
    processes: Vec<Child>,
}

static SERVER: OnceLock<Option<Server>> = OnceLock::new();
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// A database that is reached over TCP.
#[derive(Debug)]
pub struct RemoteDatabase {
    /// Its name.
    pub name: String,
    /// The server's port on the loopback. Its certificate is for `localhost`.
    pub port: u16,
    /// The port of `PgBouncer`, or the server's where there is no `PgBouncer`.
    pub front: u16,
    /// The certificate of the issuer of the server's.
    pub issuer: PathBuf,
}

/// Makes an empty database. Returns its URL; `None`, with a loud line, on a machine without `PostgreSQL`.
pub fn new_database() -> Option<String> {
    make_database(|server, name| {
        socket_url(server.directory.path(), server.pooler.unwrap_or(server.port), name)
    })
}

/// Makes an empty database that is reached over TCP.
pub fn new_remote_database() -> Option<RemoteDatabase> {
    make_database(|server, name| RemoteDatabase {
        name: name.to_owned(),
        port: server.port,
        front: server.pooler.unwrap_or(server.port),
        issuer: server.directory.path().join("issuer.crt"),
    })
}

/// Whether `PgBouncer` is in front of the databases: it passes no notifications on.
pub fn is_pooled() -> bool {
    std::env::var_os("RESPOOL_PGBOUNCER").is_some()
}

fn make_database<T: Send>(describe: impl FnOnce(&Server, &str) -> T + Send) -> Option<T> {
    let make = || {
        let server = SERVER.get_or_init(start_with_pooler).as_ref()?;
        let name = format!("test_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        let url = socket_url(server.directory.path(), server.port, "postgres");
        let mut client = Client::connect(&url, NoTls).unwrap();
        client.batch_execute(&format!("CREATE DATABASE {name}")).unwrap();
        Some(describe(server, &name))
    };
    // The client cannot be used on a thread of the runtime.
    std::thread::scope(|scope| scope.spawn(make).join().unwrap())
}

fn socket_url(directory: &Path, port: u16, database: &str) -> String {
    format!("host={} port={port} user={USER} dbname={database} sslmode=disable", directory.display())
}

fn start_with_pooler() -> Option<Server> {
    let mut server = start()?;
    if let Some(program) = std::env::var_os("RESPOOL_PGBOUNCER") {
        let (port, pooler) = start_pooler(&program, server.directory.path(), server.port, server.user);
        server.processes.extend([end_with_this_process(pooler.id()), pooler]);
        server.pooler = Some(port);
    }
    Some(server)
}

#[expect(clippy::print_stderr, reason = "the person who runs the tests must see what is skipped")]
fn start() -> Option<Server> {
    let Some(programs) = find_programs() else {
        assert!(std::env::var_os("CI").is_none(), "PostgreSQL is not installed: apt-get install postgresql");
        eprintln!("SKIPPED: the tests on PostgreSQL need its server: apt-get install postgresql");
        return None;
    };
    let directory = tempfile::Builder::new().prefix("respool-pg").tempdir_in("/tmp").unwrap();
    let user = nix::unistd::geteuid().is_root().then(|| {
        let user = nix::unistd::User::from_name(USER).unwrap().unwrap();
        nix::unistd::chown(directory.path(), Some(user.uid), Some(user.gid)).unwrap();
        (user.uid.as_raw(), user.gid.as_raw())
    });
    // Free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = Server { directory, port, programs, user, pooler: None, processes: Vec::new() };
    let made =
        server.command("initdb").args(["-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C", "-N"]).status();
    assert!(made.unwrap().success(), "initdb failed");
    fs::write(server.directory.path().join("data/pg_hba.conf"), RULES).unwrap();
    make_certificates(server.directory.path(), user);
    server.launch();
    Some(server)
}

impl Server {
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command.arg("-D").arg(self.directory.path().join("data")).current_dir("/");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Starts the server, and waits until it can be used.
    fn launch(&mut self) {
        let socket = self.directory.path().display().to_string();
        let fixed = ["max_connections=400", "ssl=on", "shared_preload_libraries=pg_stat_statements"];
        let mut settings = vec![format!("port={}", self.port)];
        settings.extend(fixed.map(str::to_owned));
        settings.extend([
            format!("ssl_cert_file={socket}/server.crt"),
            format!("ssl_key_file={socket}/server.key"),
        ]);
        let settings = settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]);
        let mut command = self.command("postgres");
        let process = command.args(settings).args(["-h", "127.0.0.1", "-k", &socket]).spawn().unwrap();
        let watcher = end_with_this_process(process.id());
        self.processes.extend([process, watcher]);
        let began = Instant::now();
        let url = socket_url(self.directory.path(), self.port, "postgres");
        while Client::connect(&url, NoTls).is_err() {
            assert!(began.elapsed() < Duration::from_secs(30), "PostgreSQL does not start");
            std::thread::yield_now();
        }
    }

    /// Ends the server, in a mode of `pg_ctl stop`.
    fn stop(&mut self, mode: &str) {
        let stopped = self.command("pg_ctl").args(["stop", "-m", mode]).status().unwrap();
        assert!(stopped.success(), "PostgreSQL does not stop");
        for mut process in self.processes.drain(..).rev() {
            // The watcher is the second, and still waits.
            let _ = process.kill();
            process.wait().unwrap();
        }
    }
}

/// A server of its own, with one database, that can be restarted.
pub struct RestartableServer {
    server: Server,
    /// The database.
    pub database: RemoteDatabase,
}

impl RestartableServer {
    /// Starts it; `None`, with a loud line, on a machine without `PostgreSQL`.
    pub fn start() -> Option<Self> {
        let server = std::thread::scope(|scope| scope.spawn(start).join().unwrap())?;
        let port = server.port;
        let issuer = server.directory.path().join("issuer.crt");
        Some(Self {
            server,
            database: RemoteDatabase { name: "postgres".to_owned(), port, front: port, issuer },
        })
    }

    /// Copies all that the server has, as it restarts. Blocks, and must not be called on a thread of the
    /// runtime.
    pub fn copy(&mut self) {
        self.server.stop("fast");
        copy_directory(
            &self.server.directory.path().join("data"),
            &self.server.directory.path().join("copy"),
        );
        self.server.launch();
    }

    /// Loses the server. Another one with what was copied takes its place. Blocks as well.
    pub fn replace_by_copy(&mut self) {
        self.server.stop("immediate");
        let data = self.server.directory.path().join("data");
        fs::remove_dir_all(&data).unwrap();
        copy_directory(&self.server.directory.path().join("copy"), &data);
        self.server.launch();
    }

    /// Stops the server, in a mode of `pg_ctl stop`, and starts it again. Blocks, and must not be called on a
    /// thread of the runtime.
    pub fn restart(&mut self, mode: &str) {
        self.server.stop(mode);
        self.server.launch();
    }
}

/// Copies a directory with its owner and rights.
fn copy_directory(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

impl Drop for RestartableServer {
    fn drop(&mut self) {
        self.server.stop("immediate");
    }
}

/// Starts `PgBouncer` before the server at this port. Returns the port of its own.
fn start_pooler(program: &OsStr, directory: &Path, server: u16, user: Option<(u32, u32)>) -> (u16, Child) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let socket = directory.display();
    let settings = format!(
        "[databases]\n* = host={socket} port={server} user={USER}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {port}\nunix_socket_dir = {socket}\nauth_type = any\npool_mode = transaction\n\
         max_prepared_statements = 200\ndefault_pool_size = 5\nmax_client_conn = 1000\n"
    );
    let file = directory.join("pgbouncer.ini");
    fs::write(&file, settings).unwrap();
    let mut command = Command::new(program);
    if let Some((user, group)) = user {
        command.uid(user).gid(group);
    }
    let pooler = command.arg("-q").arg(&file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    while Client::connect(&socket_url(directory, port, "postgres"), NoTls).is_err() {
        assert!(began.elapsed() < Duration::from_secs(30), "PgBouncer does not start");
        std::thread::yield_now();
    }
    (port, pooler)
}

/// Writes `issuer.crt`, `server.crt` and `server.key`, the last one readable by the server's user alone.
fn make_certificates(directory: &Path, user: Option<(u32, u32)>) {
    let mut issuer = CertificateParams::new(Vec::new()).unwrap();
    issuer.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(issuer, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let server = server.signed_by(&key, &issuer).unwrap();
    fs::write(directory.join("issuer.crt"), issuer.pem()).unwrap();
    fs::write(directory.join("server.crt"), server.pem()).unwrap();
    let path = directory.join("server.key");
    fs::write(&path, key.serialize_pem()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    if let Some((user, group)) = user {
        std::os::unix::fs::chown(&path, Some(user), Some(group)).unwrap();
    }
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
