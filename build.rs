//! Tells `respool --version` which commit it was built from and for which target.
//!
//! Debug builds are not told the commit: otherwise every commit would compile the whole crate again.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RESPOOL_COMMIT");
    let target = std::env::var("TARGET").unwrap_or_default();
    println!("cargo:rustc-env=RESPOOL_TARGET={target}");
    // "release" for the profiles that inherit from it, too.
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo:rustc-env=RESPOOL_COMMIT={}", packaged().or_else(checked_out).unwrap_or_default());
    }
}

/// A build without the repository, as in a container, takes the commit from `RESPOOL_COMMIT`.
fn packaged() -> Option<String> {
    std::env::var("RESPOOL_COMMIT").ok().filter(|commit| !commit.is_empty())
}

fn checked_out() -> Option<String> {
    for file in ["HEAD", "logs/HEAD", "index"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let commit = git(&["log", "-1", "--format=%h, %cs", "--abbrev=12"])?;
    let is_changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if is_changed.is_empty() { commit } else { format!("{commit}, with local changes") })
}

fn git(arguments: &[&str]) -> Option<String> {
    // A repository that merely contains an unpacked source archive says nothing about it.
    if !Path::new(".git").exists() {
        return None;
    }
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
