//! `write`: replaces a whole file at once (a temporary file in its directory takes its name) and keeps its
//! mode.

use std::borrow::Cow;
use std::io::{self, Write as _};
use std::path::Path;

use cap_std::fs::OpenOptions;

use super::super::contract::{Preview, ToolError, ToolOutput};
use super::super::diff::shorten_diff;
use super::read::{open_file, read_whole};
use super::text::decode_text;
use super::workspace::{Place, Workspace, io_failure};
use tool_call_parser::templates;
use wire::digest::{hex, sha256};

/// The largest file that is compared.
const MOST_COMPARED: u64 = 1 << 20;

pub(super) fn write_file(
    workspace: &Workspace,
    place: &Place,
    content: &str,
) -> Result<ToolOutput, ToolError> {
    let before = read_current(workspace, place)?;
    let content = &*whole_marks(content, before.as_deref());
    let display = change_diff(place, before, content).map(shorten_diff);
    replace_file(workspace, place, content.as_bytes())?;
    let text = format!("Wrote {} bytes to {}", content.len(), place.written.display());
    Ok(ToolOutput { text, display, ..ToolOutput::default() })
}

/// Returns the change that writing would make.
pub(super) fn preview_write(
    workspace: &Workspace,
    place: &Place,
    content: &str,
) -> Result<Option<Preview>, ToolError> {
    let before = read_current(workspace, place)?;
    let content = whole_marks(content, before.as_deref());
    if before.as_deref() == Some(&*content) && workspace.dir.symlink_metadata(&place.real).is_ok() {
        let path = place.written.display();
        return Err(ToolError::Failed(format!(
            "{path} has exactly this content already: nothing was written"
        )));
    }
    let diff = change_diff(place, before, &content);
    Ok(Some(Preview::Change { diff, replaces: file_state(workspace, place) }))
}

/// Returns a text that is another one when the file has changed; `None` if it cannot be read.
fn file_state(workspace: &Workspace, place: &Place) -> Option<String> {
    let Ok(found) = workspace.dir.symlink_metadata(&place.real) else { return Some("absent".to_owned()) };
    let (bytes, is_whole) = read_whole(&mut open_file(workspace, place).ok()?, place, MOST_COMPARED).ok()?;
    let of_large = || format!("{} bytes of {:?}", found.len(), found.modified().ok());
    Some(if is_whole { hex(&sha256(&bytes)) } else { of_large() })
}

/// Reads the text of the file; `None` if it is large or not text.
fn read_current(workspace: &Workspace, place: &Place) -> Result<Option<String>, ToolError> {
    if workspace.dir.symlink_metadata(&place.real).is_err() {
        return Ok(Some(String::new()));
    }
    let (bytes, is_whole) = read_whole(&mut open_file(workspace, place)?, place, MOST_COMPARED)?;
    Ok(decode_text(&bytes).map(|(text, _)| text).filter(|_| is_whole))
}

/// Restores marks that the model has read in broken form in the file that it now rewrites.
fn whole_marks<'a>(content: &'a str, before: Option<&str>) -> Cow<'a, str> {
    before.map_or(Cow::Borrowed(content), |before| templates::restore_marks(content, before))
}

fn change_diff(place: &Place, before: Option<String>, content: &str) -> Option<String> {
    let before = before.filter(|_| content.len() as u64 <= MOST_COMPARED)?;
    Some(whole_diff(&place.written, &before, content))
}

/// Returns the whole change as a unified diff: a person may be asked about it.
pub(super) fn whole_diff(path: &Path, before: &str, after: &str) -> String {
    let path = path.display().to_string().replace('\n', "\\n");
    crate::diff::unified_diff(&path, before, after)
}

/// Replaces the file's content with these bytes.
pub(super) fn replace_file(workspace: &Workspace, place: &Place, bytes: &[u8]) -> Result<(), ToolError> {
    let (dir, name) = workspace.open_parent(place)?;
    let temporary = format!(".respool-{:016x}.tmp", rand::random::<u64>());
    let write = || {
        let mut file = dir.open_with(&temporary, OpenOptions::new().write(true).create_new(true))?;
        if let Ok(before) = dir.symlink_metadata(name) {
            if before.is_dir() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            if before.is_file() {
                file.set_permissions(before.permissions())?;
            }
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        dir.rename(&temporary, &dir, name)
    };
    write().map_err(|error| {
        let _ = dir.remove_file(&temporary);
        io_failure(place.written.display(), &error)
    })
}

/// Gives a file back its content from before a change, or removes a new one (`before: None`). The path is in
/// the workspace `root`, both without symlinks.
///
/// # Errors
/// When a directory of the path has become a symlink, or the file cannot be written.
pub fn put_back(root: &Path, path: &Path, before: Option<&[u8]>) -> Result<(), ToolError> {
    let workspace = Workspace::open(root).map_err(ToolError::Failed)?;
    let place = Place::from_real(root, path);
    if let Some(before) = before {
        return replace_file(&workspace, &place, before);
    }
    let (dir, name) = workspace.open_parent(&place)?;
    match dir.remove_file(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_failure(place.written.display(), &error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: consent to replace a large file, or one that is not text, held after any change of it.
    #[test]
    fn every_change_of_a_file_shows() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(dir.path()).unwrap();
        let place = workspace.find_place("file").unwrap();
        let large = vec![b'a'; usize::try_from(MOST_COMPARED).unwrap() + 1];
        let contents: [&[u8]; 5] = [b"", b"text", b"\xff\x00", &large, &large[1..]];
        let mut states = vec![file_state(&workspace, &place).unwrap()];
        for content in contents {
            std::fs::write(dir.path().join("file"), content).unwrap();
            let Some(Preview::Change { replaces, .. }) = preview_write(&workspace, &place, "new").unwrap()
            else {
                panic!("it has no preview")
            };
            states.push(replaces.unwrap());
        }
        let different: std::collections::BTreeSet<&String> = states.iter().collect();
        assert_eq!(different.len(), states.len(), "{states:?}");
    }
}
