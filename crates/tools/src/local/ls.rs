//! `ls`: the entries of one directory, sorted, directories with a `/`, symlinks with their target.

use cap_std::fs::{Dir, DirEntry};
use rustix::fs::OFlags;

use super::super::contract::{ToolError, ToolOutput};
use super::workspace::{Place, Workspace, io_failure};

/// The most entries that are read.
const MOST_READ: usize = 20_000;
/// The most entries that are shown.
const MOST_SHOWN: usize = 1_000;

pub(super) fn list_directory(workspace: &Workspace, place: &Place) -> Result<ToolOutput, ToolError> {
    let failed = |error: std::io::Error| io_failure(place.written.display(), &error);
    let directory = workspace.open_at(place, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let directory = Dir::from_std_file(directory.into());
    let entries = directory.entries().map_err(failed)?;
    let mut names = Vec::new();
    for entry in entries.take(MOST_READ) {
        names.push(format_entry(&directory, &entry.map_err(failed)?));
    }
    names.sort_unstable();
    let count = names.len();
    names.truncate(MOST_SHOWN);
    if count > MOST_SHOWN {
        let more = if count == MOST_READ { "at least " } else { "" };
        names.push(format!(
            "[{MOST_SHOWN} of {more}{count} entries shown; narrow it with `search` or `exec`]"
        ));
    } else if count == 0 {
        names.push("[the directory is empty]".to_owned());
    }
    Ok(ToolOutput { text: names.join("\n"), ..ToolOutput::default() })
}

fn format_entry(directory: &Dir, entry: &DirEntry) -> String {
    let name = entry.file_name().to_string_lossy().into_owned();
    match entry.file_type() {
        Ok(kind) if kind.is_dir() => format!("{name}/"),
        Ok(kind) if kind.is_symlink() => {
            let target = directory.read_link_contents(entry.file_name());
            format!("{name} -> {}", target.map_or_else(|_| "?".into(), |target| target.display().to_string()))
        }
        _ => name,
    }
}
