//! Finds the declared tool that does what another assistant's tool of another name does: `edit_file` for
//! Claude Code's `Edit`.
//!
//! Models know these names from their training. Only the names of tools that take the same arguments are
//! listed, and the caller checks that the arguments fit. Pure. Used by `engine` for calls that the server
//! read.

use super::tools::{Tools, normalise_name};

/// Names that assistants give to the same tool, in lower case without `-` and `_`.
static NAMESAKES: [&[&str]; 4] = [
    &[
        "bash",
        "exec",
        "execcommand",
        "executebash",
        "executecommand",
        "localshell",
        "runcommand",
        "runinterminal",
        "runshellcommand",
        "runterminalcmd",
        "shell",
        "shellcommand",
    ],
    &["read", "readfile", "viewfile"],
    &["edit", "editfile", "replace", "replacestringinfile", "searchreplace", "strreplace"],
    &["createfile", "write", "writefile", "writetofile"],
];

/// Returns the only declared tool that shares a row with an undeclared name.
pub(crate) fn find_namesake<'a>(tools: &'a Tools, written: &str) -> Option<&'a str> {
    let written = normalise_name(written);
    let row = NAMESAKES.iter().find(|row| row.contains(&written.as_str()))?;
    let mut alike = tools.names().filter(|name| row.contains(&normalise_name(name).as_str()));
    alike.next().filter(|_| alike.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], written: &str, expected: Option<&str>) {
        let tools: Tools = names.iter().map(|name| ((*name).to_owned(), None)).collect();
        assert_eq!(find_namesake(&tools, written), expected, "{written}");
    }

    #[test]
    fn other_assistants_names_find_one_tool() {
        let chat = ["shell_command", "read_file", "edit_file", "write_file"];
        let pairs = [
            ("Bash", "shell_command"),
            ("shell", "shell_command"),
            ("run_shell_command", "shell_command"),
            ("Read", "read_file"),
            ("Edit", "edit_file"),
            ("replace", "edit_file"),
            ("create_file", "write_file"),
        ];
        pairs.iter().for_each(|(written, name)| check(&chat, written, Some(name)));
        check(&["exec", "read"], "bash", Some("exec"));
    }

    #[test]
    fn no_name_is_guessed() {
        for written in ["str_replace_editor", "apply_patch", "Grep", "python", "github__read", ""] {
            check(&["shell_command", "read_file", "edit_file", "write_file"], written, None);
        }
        check(&["exec", "shell"], "bash", None);
        check(&["read"], "bash", None);
    }
}
