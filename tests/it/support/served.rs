//! The real program in a process of its own.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The program with an environment of its own, in an empty directory.
pub fn program(directory: &std::path::Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_respool"));
    command.args(arguments).current_dir(directory).env_clear().env("HOME", directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn run(arguments: &[&str], file: Option<&str>, environment: &[(&str, &str)]) -> (i32, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let mut program = program(directory.path(), arguments);
    if let Some(text) = file {
        std::fs::write(directory.path().join("respool.toml"), text).unwrap();
        program.env("RESPOOL_CONFIG", "respool.toml");
    }
    let output = program.envs(environment.iter().copied()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// A running `respool serve` and the address it said it listens on.
pub struct Served {
    pub child: Child,
    /// The lines of its log.
    pub lines: std::sync::mpsc::Receiver<Value>,
    /// The warnings before it was ready.
    pub warned: Vec<Value>,
    pub address: std::net::SocketAddr,
    /// Where its configuration and its state are.
    pub directory: tempfile::TempDir,
}

impl Served {
    pub fn start(upstream: &str) -> Self {
        Self::configured(upstream, &[])
    }

    /// With these variables.
    pub fn configured(upstream: &str, environment: &[(&str, &str)]) -> Self {
        Self::run(&["serve", "--listen", "127.0.0.1:0", "--upstream", upstream], "", environment)
    }

    /// With this configuration file.
    pub fn with_file(toml: &str, environment: &[(&str, &str)]) -> Self {
        Self::run(&["serve", "--listen", "127.0.0.1:0"], toml, environment)
    }

    fn run(arguments: &[&str], toml: &str, environment: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("respool.toml"), toml).unwrap();
        let mut command = program(directory.path(), arguments);
        command.env("RESPOOL_CONFIG", "respool.toml");
        let mut child = command.envs(environment.iter().copied()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let line: Value =
                    serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON in the log: {line}"));
                let _ = sender.send(line);
            }
        });
        let (mut ready, mut warned) = (Value::Null, Vec::new());
        while ready["message"] != "ready" {
            ready = lines.recv_timeout(Duration::from_secs(10)).expect("a line when ready");
            warned.extend((ready["level"] == "WARN").then(|| ready.clone()));
        }
        let address = ready["listen"].as_str().unwrap().parse().unwrap();
        Self { child, lines, warned, address, directory }
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    pub fn exit(&mut self, within: Duration) -> i32 {
        let status = testing::waiting::look_blocking(within, || self.child.try_wait().unwrap());
        let status = status.unwrap_or_else(|| panic!("still running after {within:?}"));
        status.code().unwrap_or(-1)
    }

    /// The next line of the log that is meant.
    pub fn line(&self, is_meant: impl Fn(&Value) -> bool, within: Duration) -> Value {
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).expect("the line that is meant");
            if is_meant(&line) {
                return line;
            }
        }
    }

    /// The canonical line of the next request.
    pub fn request_line(&self) -> Value {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(20)).expect("a line of a request");
            if line["message"] == "request" {
                return line;
            }
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
