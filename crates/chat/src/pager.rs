//! A long text in the person's own pager: `PAGER`, or else `less`.

use std::io::{Error, ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ::tools::programs::{current_project, find_in_path, path_without};

/// Shows a text in the pager and waits until the person leaves it. Blocks.
///
/// # Errors
/// When no pager can be started, or it ends with an error at once.
pub(super) fn show_paged(text: &str) -> std::io::Result<()> {
    let pager = std::env::var("PAGER").ok().filter(|pager| !pager.trim().is_empty());
    let project: Vec<PathBuf> = current_project().into_iter().collect();
    let mut running = new_pager(pager.as_deref().unwrap_or("less"), &project)?.spawn()?;
    if let Some(mut input) = running.stdin.take() {
        // A person who leaves early does not read the rest.
        let _ = input.write_all(text.as_bytes());
    }
    match running.wait()?.code() {
        // The shell did not find the program.
        Some(126 | 127) => Err(Error::from(ErrorKind::NotFound)),
        _ => Ok(()),
    }
}

/// Prepares the pager. `PATH` may name directories of the project (an activated `.venv`), in which commands
/// write: neither the shell nor the pager comes from there.
fn new_pager(words: &str, project: &[PathBuf]) -> std::io::Result<Command> {
    let mut command = Command::new(find_in_path("sh", project).map_err(Error::other)?);
    command.arg("-c").arg(words).stdin(Stdio::piped()).env("PATH", path_without(project));
    if std::env::var_os("LESS").is_none() {
        // Colours, and the text stays on the screen.
        command.env("LESS", "RX");
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `/diff` ran `.venv/bin/less`, which a command had written, outside the sandbox.
    #[test]
    fn no_pager_comes_from_the_project() {
        let path = std::env::var_os("PATH").unwrap();
        let project = std::env::split_paths(&path).find(|directory| !directory.join("sh").exists()).unwrap();
        let command = new_pager("less", std::slice::from_ref(&project)).unwrap();
        assert!(command.get_program().as_encoded_bytes().starts_with(b"/"), "{command:?}");
        let (_, value) = command.get_envs().find(|(name, _)| *name == "PATH").unwrap();
        assert!(std::env::split_paths(value.unwrap()).all(|directory| directory != project), "{value:?}");
    }
}
