//! An expert's persistent state files: created once from the package's templates, and overwritten only if
//! they still equal an older template. Files of a single session are not created here. Called by the command
//! line when a package is installed or updated.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use openexperts::{Package, Scope, path::state_file};

/// Creates missing files of a package, and updates those that still equal the template in `old`. Returns what
/// was written.
///
/// # Errors
/// When the workspace cannot be written.
pub fn prepare(root: &Path, old: Option<&Package>, new: &Package) -> io::Result<Vec<String>> {
    let before = old.map(state_templates).unwrap_or_default();
    let mut written = Vec::new();
    for (path, text) in state_templates(new) {
        let target = root.join(&path);
        if old.is_none() && fs::metadata(&target).is_ok() {
            continue;
        }
        match fs::read(&target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_folder(&target)?;
                // One that another process created in between is kept.
                atomic_file::create(&target, text.as_bytes())?;
            }
            Err(error) => return Err(error),
            Ok(found) => {
                let is_old_template =
                    before.get(&path).is_some_and(|old| old.as_bytes() == found && *old != text);
                if !is_old_template {
                    continue;
                }
                atomic_file::replace(&target, text.as_bytes())?;
            }
        }
        written.push(path);
    }
    Ok(written)
}

fn state_templates(package: &Package) -> BTreeMap<String, &str> {
    let lasting = package.state.items.iter().filter(|state| state.scope == Scope::Persistent);
    lasting.map(|state| (state_file(&state.path), state.template.as_str())).collect()
}

/// Makes the folder of a file.
fn make_folder(target: &Path) -> io::Result<()> {
    fs::create_dir_all(target.parent().unwrap_or(Path::new(".")))
}

/// Creates missing files of one session. A run does not wait for the disk here: after a power failure such a
/// file may be empty, and it is then created again.
///
/// # Errors
/// When the folder cannot be written.
pub(super) fn prepare_session(folder: &Path, package: &Package) -> io::Result<()> {
    for one in package.state.items.iter().filter(|one| one.scope == Scope::Session) {
        let target = folder.join(state_file(&one.path));
        match fs::metadata(&target) {
            Ok(found) if found.len() > 0 || one.template.is_empty() => continue,
            Ok(_) => fs::remove_file(&target)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        make_folder(&target)?;
        atomic_file::create_unsynced(&target, one.template.as_bytes())?;
    }
    Ok(())
}

/// Copies an expert's own data, without what belongs to single sessions.
///
/// # Errors
/// When it cannot be read or written.
pub fn copy_state(root: &Path, target: &Path) -> io::Result<()> {
    for folder in ["state", "learnings"] {
        copy_files(&root.join(folder), &target.join(folder))?;
    }
    Ok(())
}

/// Copies the regular files of a folder and its subfolders.
fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    fs::create_dir_all(to)?;
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_files(&entry.path(), &to.join(entry.file_name()))?;
        } else if kind.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
