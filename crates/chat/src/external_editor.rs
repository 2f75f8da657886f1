//! A text in the person's own editor: `VISUAL`, `EDITOR`, or else `vi`.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tools::programs::{current_project, find_in_path, path_without};

/// Lets the person edit a text, and returns what they saved. Blocks.
///
/// # Errors
/// When there is no file for the text, or the editor cannot be started or fails.
pub(super) fn edit_text(text: &str) -> io::Result<String> {
    let path = std::env::temp_dir().join(format!("respool-{:016x}.md", rand::random::<u64>()));
    let mut named = ["VISUAL", "EDITOR"].into_iter().filter_map(|name| std::env::var(name).ok());
    let editor = named.find(|editor| !editor.trim().is_empty()).unwrap_or_else(|| "vi".into());
    let edited = edit_file(&path, text, &editor);
    let _ = fs::remove_file(&path);
    edited
}

fn edit_file(path: &Path, text: &str, editor: &str) -> io::Result<String> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    drop(file);
    // Commands write in the project, so no program comes from there.
    let project: Vec<PathBuf> = current_project().into_iter().collect();
    let mut command = Command::new(find_in_path("sh", &project).map_err(io::Error::other)?);
    // The name of the editor may have options behind it.
    command.arg("-c").arg(format!("{editor} \"$0\"")).arg(path).env("PATH", path_without(&project));
    let status = command.status()?;
    if !status.success() {
        return Err(io::Error::other(format!("`{editor}` ended with {status}")));
    }
    Ok(fs::read_to_string(path)?.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_saved_text_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a text.md");
        let edit = |editor: &str| {
            let _ = fs::remove_file(&path);
            edit_file(&path, "one\n", editor)
        };
        assert_eq!(edit("sed -i s/one/two/").unwrap(), "two");
        assert_eq!(edit("true").unwrap(), "one");
        assert!(edit("false").unwrap_err().to_string().contains("`false` ended with"));
        assert!(edit_file(&path, "", "true").is_err(), "a file of another is not written");
    }
}
