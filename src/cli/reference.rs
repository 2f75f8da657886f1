//! `respool man` and `respool completions`: pages and completions generated from the same command tree that
//! parses the arguments.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;

use super::failure::Failure;
use super::say::{say, say_piece};

/// Prints the completions for one shell.
pub(super) fn print_completions(mut command: Command, shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "respool", &mut script);
    say_piece(&String::from_utf8_lossy(&script));
}

/// Returns the program's page on standard output, or the pages of all commands (`respool-serve.1` and so on)
/// in a directory.
pub(super) fn print_manual(command: Command, directory: Option<&Path>) -> Result<(), Failure> {
    let Some(directory) = directory else {
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(command).render(&mut page);
        rendered.map_err(|error| format!("the man page cannot be made: {error}"))?;
        say_piece(&String::from_utf8_lossy(&page));
        return Ok(());
    };
    write_pages(command, directory)
        .map_err(|error| format!("the man pages cannot be written to {}: {error}", directory.display()))?;
    say(&format!("The man pages are in {}.", directory.display()));
    Ok(())
}

fn write_pages(command: Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(command, directory)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_command_that_is_not_hidden_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        write_pages(Cli::command(), directory.path()).unwrap();
        let names: Vec<String> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        for name in ["respool.1", "respool-serve.1", "respool-runs-list.1", "respool-config-show.1"] {
            assert!(names.iter().any(|found| found == name), "{name} is not among {names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("sandbox") || name.contains("help")), "{names:?}");
        for name in &names {
            let page = fs::read_to_string(directory.path().join(name)).unwrap();
            assert!(!page.contains("sandbox\\-exec"), "{name}: {page}");
        }
        let serve = fs::read_to_string(directory.path().join("respool-serve.1")).unwrap();
        assert!(serve.contains("respool\\-serve \\- Run the relay"), "{serve}");
        assert!(serve.contains("\\-\\-listen"), "{serve}");
    }

    #[test]
    fn every_shell_completes_commands_and_options() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "respool", &mut script);
            let script = String::from_utf8(script).unwrap();
            for word in ["serve", "completions", "upstream"] {
                assert!(script.contains(word), "{shell} does not complete {word}");
            }
            assert!(!script.contains("sandbox"), "{shell} offers a command that is not for people");
        }
    }

    #[test]
    fn the_tree_of_commands_is_sound() {
        Cli::command().debug_assert();
    }
}
