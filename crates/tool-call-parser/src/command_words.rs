//! Writes a command that the model gave as a list of words as one line of a shell.
//!
//! Codex's `shell` takes such lists, so models write `["bash", "-lc", "ls | head"]` for other tools, too.
//! Pure. Used by `coerce`.

use serde_json::Value;

use super::tools::normalise_name;

/// Returns true for the name of an argument that takes a line of a shell.
pub(crate) fn is_command_name(name: &str) -> bool {
    ["command", "cmd", "commandline", "shellcommand"].contains(&normalise_name(name).as_str())
}

/// Returns the line that runs the words of a list; `None` if they may be several commands.
pub(crate) fn join_words(value: &Value) -> Option<String> {
    let words: Option<Vec<&str>> = value.as_array()?.iter().map(Value::as_str).collect();
    match words?.as_slice() {
        [] | [""] => None,
        [line] | ["bash" | "/bin/bash" | "sh" | "/bin/sh", "-c" | "-lc", line] => Some((*line).to_owned()),
        [program, ..] if program.is_empty() || program.contains(char::is_whitespace) => None,
        words if words.iter().any(|word| is_operator(word)) => None,
        words => Some(words.iter().map(|word| quote_word(word)).collect::<Vec<_>>().join(" ")),
    }
}

/// Returns true for a word that was perhaps meant for a shell, not for the program.
fn is_operator(word: &str) -> bool {
    !word.is_empty()
        && word.chars().all(|sign| "|&;<>012".contains(sign))
        && word.contains(['|', '&', ';', '<', '>'])
}

fn quote_word(word: &str) -> String {
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "_@%+=:,./-".contains(sign);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_become_the_line_they_mean() {
        for (words, line) in [
            (json!(["ls", "-l"]), Some("ls -l")),
            (json!(["bash", "-lc", "ls | head"]), Some("ls | head")),
            (json!(["/bin/sh", "-c", "a && b"]), Some("a && b")),
            (json!(["zsh", "-c", "a b"]), Some("zsh -c 'a b'")),
            (json!(["cargo test"]), Some("cargo test")),
            (json!(["grep", "it's", "", "a.txt"]), Some(r"grep 'it'\''s' '' a.txt")),
            (json!(["echo", "$HOME", "*"]), Some("echo '$HOME' '*'")),
        ] {
            assert_eq!(join_words(&words).as_deref(), line, "{words}");
        }
    }

    #[test]
    fn several_commands_stay_a_list() {
        for words in [
            json!([]),
            json!([""]),
            json!(["cd src", "ls"]),
            json!(["ls", "|", "head"]),
            json!(["make", "2>&1"]),
            json!(["sleep", 1]),
            json!("ls"),
        ] {
            assert_eq!(join_words(&words), None, "{words}");
        }
    }
}
