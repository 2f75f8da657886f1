//! `respool expert new`: writes a small package that loads, for an author to change.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::cli::failure::Failure;
use crate::cli::say::say;
use openexperts::name::{self, NameKind};
use openexperts::starter;

/// Writes a new package into `folder`, or into a folder with the package's name.
pub(super) fn write_package(name: &str, folder: Option<PathBuf>, has_tool: bool) -> Result<(), Failure> {
    name::check_name(name, NameKind::Package)
        .map_err(|why| format!("{name:?} cannot be the name of an expert: {why}"))?;
    let folder = folder.unwrap_or_else(|| PathBuf::from(name));
    if folder.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(format!("{} is not empty: name another folder with --folder", folder.display()).into());
    }
    for (file, text) in starter::package_files(name, has_tool) {
        let file = folder.join(file);
        write_file(&file, &text).map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
        say(&format!("Wrote {}.", file.display()));
    }
    // A bare name would mean an installed expert.
    let folder = if folder.components().count() == 1 { Path::new(".").join(folder) } else { folder };
    say(&format!(
        "Change the files, check them with `respool expert validate {0}`, and install them with `respool expert install {0}`.",
        folder.display()
    ));
    Ok(())
}

fn write_file(file: &Path, text: &str) -> io::Result<()> {
    fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))?;
    fs::File::create_new(file)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_package_loads_without_findings() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("helper");
        for (has_tool, process) in [(false, "report"), (true, "enter-order")] {
            let folder = folder.join(process);
            write_package("front-desk", Some(folder.clone()), has_tool).unwrap();
            let loaded = openexperts::load(&folder).unwrap();
            assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
            let package = loaded.package.unwrap();
            assert_eq!(package.manifest.name.value, "front-desk");
            assert!(package.process(process).is_some());
            assert_eq!(package.asks_people(), has_tool);
        }
        let again = write_package("front-desk", Some(folder), false).unwrap_err().to_string();
        assert!(again.contains("is not empty"), "{again}");
        let why = write_package("Front Desk", Some(dir.path().join("x")), false).unwrap_err().to_string();
        assert!(why.contains("cannot be the name of an expert"), "{why}");
    }
}
