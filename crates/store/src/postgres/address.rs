//! The address of the database: `store.url`, with `sslmode` and `sslrootcert` as libpq means them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use percent_encoding::percent_decode_str;
use postgres::config::{Host, SslMode};
use postgres::{Client, Config, Error};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::tls::{Check, Connector, Roots};
use crate::error::StoreError;

/// How long it may take to connect, unless the URL says otherwise.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// A connection whose other end is silent for this long is lost.
const SILENT_FOR: Duration = Duration::from_secs(15);

/// The address of a database.
#[derive(Clone)]
pub(super) struct Address {
    config: Config,
    tls: Connector,
}

impl Address {
    /// Reads the URL.
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let (rest, tls) = TlsOptions::take_from(url);
        let mut config: Config = rest.parse().map_err(|error: Error| {
            let why = with_causes(&error);
            StoreError(format!(
                "`store.url` cannot be read: {why}; write it as `postgres://USER@HOST/DATABASE`"
            ))
        })?;
        config.application_name("respool");
        config.keepalives_idle(SILENT_FOR).tcp_user_timeout(SILENT_FOR);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_WITHIN);
        }
        let (mode, check) = tls.read()?;
        // Sockets are not encrypted, whatever the mode.
        let is_remote = config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(_)));
        config.ssl_mode(if is_remote { mode } else { SslMode::Disable });
        Ok(Self { config, tls: Connector::new(check)? })
    }

    pub(super) fn connect(&self) -> Result<Client, Error> {
        self.config.connect(self.tls.clone())
    }

    /// The place of the database without its password.
    pub(super) fn describe(&self) -> String {
        let config = &self.config;
        let host = match config.get_hosts().first() {
            Some(Host::Tcp(host)) => host.clone(),
            #[cfg(unix)]
            Some(Host::Unix(path)) => path.display().to_string(),
            None => "localhost".to_owned(),
        };
        let name = config.get_dbname().or(config.get_user()).unwrap_or_default();
        let port = match config.get_ports() {
            [] | [5432] => String::new(),
            [port, ..] => format!(":{port}"),
        };
        format!("postgres://{host}{port}/{name}")
    }
}

/// The options that the client library does not know, or not all values of.
#[derive(Default)]
struct TlsOptions {
    mode: Option<String>,
    roots: Option<String>,
}

impl TlsOptions {
    /// Takes them out of a URL, or out of words as `host=db sslmode=require`.
    fn take_from(url: &str) -> (String, Self) {
        let (before, options, between) = match url.split_once('?') {
            Some((before, options)) if url.contains("://") => (format!("{before}?"), options, '&'),
            None if url.contains("://") => return (url.to_owned(), Self::default()),
            _ => (String::new(), url, ' '),
        };
        let mut found = Self::default();
        let value = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let rest = options.split(between).filter(|option| match option.split_once('=') {
            Some(("sslmode", mode)) => {
                found.mode = Some(mode.to_owned());
                false
            }
            Some(("sslrootcert", path)) => {
                found.roots = Some(if between == '&' { value(path) } else { path.to_owned() });
                false
            }
            _ => true,
        });
        let rest = rest.collect::<Vec<_>>().join(&between.to_string());
        ((before + &rest).trim_end_matches('?').to_owned(), found)
    }

    fn read(self) -> Result<(SslMode, Check), StoreError> {
        let roots = self.roots.as_deref();
        match (self.mode.as_deref(), roots) {
            (Some("disable"), _) => Ok((SslMode::Disable, Check::Nothing)),
            // The system's issuers certify everybody, so that the host must be checked.
            (None | Some("verify-full"), Some("system")) => {
                Ok((SslMode::Require, Check::IssuerAndHost(system_roots()?)))
            }
            (Some(mode), Some("system")) => Err(StoreError(format!(
                "`store.url` has `sslrootcert=system` and `sslmode={mode}`: the system's issuers need `sslmode=verify-full`"
            ))),
            (None | Some("prefer"), _) => Ok((SslMode::Prefer, Check::Nothing)),
            // As with libpq, a named issuer is checked.
            (Some("require"), Some(path)) => {
                Ok((SslMode::Require, Check::Issuer(read_roots(Path::new(path))?)))
            }
            (Some("require"), None) => Ok((SslMode::Require, Check::Nothing)),
            (Some("verify-ca"), _) => Ok((SslMode::Require, Check::Issuer(named_roots(roots)?))),
            (Some("verify-full"), _) => Ok((SslMode::Require, Check::IssuerAndHost(named_roots(roots)?))),
            (Some(mode), _) => Err(StoreError(format!(
                "`store.url` has `sslmode={mode}`; it can be disable, prefer, require, verify-ca or verify-full"
            ))),
        }
    }
}

/// The issuers of a file, or of the place where libpq looks for them.
fn named_roots(path: Option<&str>) -> Result<Roots, StoreError> {
    let usual = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".postgresql/root.crt"));
    let path = path.map(PathBuf::from).or_else(|| usual().filter(|path| path.exists()));
    let missing = || {
        let todo = "name the file of its issuer with `sslrootcert=FILE`, or trust those of the system with `sslrootcert=system`";
        StoreError(format!("`store.url` asks for a check of the server's certificate: {todo}"))
    };
    read_roots(&path.ok_or_else(missing)?)
}

fn read_roots(path: &Path) -> Result<Roots, StoreError> {
    let unusable = |why: &dyn std::fmt::Display| {
        StoreError(format!(
            "`sslrootcert` in `store.url`: {} has no usable certificate ({why}); name a PEM file",
            path.display()
        ))
    };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates = certificates.map_err(|error| unusable(&error))?;
    Roots::new(certificates).ok_or_else(|| unusable(&"nothing in it can be read"))
}

fn system_roots() -> Result<Roots, StoreError> {
    let missing =
        || StoreError("the system has no certificates of issuers: install `ca-certificates`".to_owned());
    Roots::new(rustls_native_certs::load_native_certs().certs).ok_or_else(missing)
}

/// Formats an error with its causes, outermost first.
pub(super) fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use testing::postgres_server::{RemoteDatabase, new_remote_database};

    use super::*;
    use crate::postgres::link::explain;

    fn check(url: &str, rest: &str, mode: Option<&str>, roots: Option<&str>) {
        let (found, options) = TlsOptions::take_from(url);
        assert_eq!(
            (&*found, options.mode.as_deref(), options.roots.as_deref()),
            (rest, mode, roots),
            "{url}"
        );
    }

    #[test]
    fn tls_options_are_taken_out() {
        check("postgres://a@b/c", "postgres://a@b/c", None, None);
        check("postgres://a@b/c?sslmode=require", "postgres://a@b/c", Some("require"), None);
        check(
            "postgres://a@b/c?sslrootcert=%2Fa%20b&connect_timeout=3&sslmode=verify-ca",
            "postgres://a@b/c?connect_timeout=3",
            Some("verify-ca"),
            Some("/a b"),
        );
        check("host=b sslmode=disable user=a", "host=b user=a", Some("disable"), None);
    }

    /// Connects. Returns whether the connection is encrypted, or why it cannot be made.
    fn connect(url: &str) -> Result<bool, String> {
        let address = Address::parse(url).map_err(|error| error.0)?;
        let mut client = address.connect().map_err(|error| explain(&error).0)?;
        let row = client.query_one("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", &[]);
        Ok(row.unwrap().get(0))
    }

    fn assert_refused(url: &str, expected: &str) {
        let why = connect(url).unwrap_err();
        assert!(why.contains(expected), "{url}: {why}");
    }

    #[test]
    fn connections_are_encrypted_as_the_mode_says() {
        let Some(RemoteDatabase { name, port, .. }) = new_remote_database() else { return };
        let url = format!("postgres://postgres@127.0.0.1:{port}/{name}");
        let is_encrypted = |mode: &str| connect(&format!("{url}?sslmode={mode}"));
        assert_eq!(connect(&url), Ok(true), "as if it were `prefer`");
        assert_eq!(is_encrypted("disable"), Ok(false));
        assert_eq!([is_encrypted("prefer"), is_encrypted("require")], [Ok(true), Ok(true)]);
        assert_refused(&format!("{url}?sslmode=verify"), "it can be disable, prefer, require");
    }

    #[test]
    fn certificates_are_checked_as_the_mode_says() {
        let Some(RemoteDatabase { name, port, issuer, .. }) = new_remote_database() else { return };
        let url = |host: &str, mode: &str, roots: &Path| {
            format!("postgres://postgres@{host}:{port}/{name}?sslmode={mode}&sslrootcert={}", roots.display())
        };
        let right = |host, mode| connect(&url(host, mode, &issuer));
        assert_eq!(
            [right("localhost", "verify-full"), right("127.0.0.1", "verify-ca")],
            [Ok(true), Ok(true)]
        );
        assert_eq!(right("127.0.0.1", "require"), Ok(true));
        assert_refused(&url("127.0.0.1", "verify-full", &issuer), "must be for the host in the URL");
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("other.crt");
        let key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(&other, key.cert.pem()).unwrap();
        for mode in ["require", "verify-ca", "verify-full"] {
            assert_refused(&url("localhost", mode, &other), "must name the certificate of its issuer");
        }
        assert_refused(&url("localhost", "verify-full", "system".as_ref()), "its issuer");
        assert_refused(&url("localhost", "verify-ca", "system".as_ref()), "need `sslmode=verify-full`");
        assert_refused(&url("localhost", "verify-ca", &directory.path().join("no")), "name a PEM file");
    }

    /// The certificate of many servers is its own issuer, and clients have a copy of it.
    #[test]
    fn the_certificate_itself_is_trusted() {
        let Some(RemoteDatabase { name, port, issuer, .. }) = new_remote_database() else { return };
        let own = issuer.with_file_name("server.crt");
        let url = format!("postgres://postgres@localhost:{port}/{name}?sslmode=verify-full");
        assert_eq!(connect(&format!("{url}&sslrootcert={}", own.display())), Ok(true));
    }

    #[test]
    fn a_wrong_password_is_refused() {
        let Some(RemoteDatabase { name, port, .. }) = new_remote_database() else { return };
        let url = |user: &str| format!("postgres://{user}@127.0.0.1:{port}/{name}");
        let mut client = Address::parse(&url("postgres")).unwrap().connect().unwrap();
        client.batch_execute("CREATE ROLE with_password LOGIN PASSWORD 'right'").unwrap();
        assert_eq!(connect(&url("with_password:right")), Ok(true));
        assert_refused(&url("with_password:wrong"), "check user and password");
    }

    #[test]
    fn a_server_without_tls_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            client.read_exact(&mut [0; 8]).unwrap();
            client.write_all(b"N").unwrap();
        });
        assert_refused(&format!("postgres://a@127.0.0.1:{port}/a?sslmode=require"), "does not support TLS");
        server.join().unwrap();
    }
}
