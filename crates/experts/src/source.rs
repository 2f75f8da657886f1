//! Where a package is installed from: a directory or a git repository. Its content is loaded and checked
//! before any of it is kept. Called by `library`.

use std::path::PathBuf;

use super::error::ExpertError;
use super::git;
use openexperts::{Loaded, MANIFEST, foreign::load_folder, skill::SKILL};

/// Where a package comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory that contains the package.
    Path(PathBuf),
    /// A repository with the package at its top.
    Git(String),
}

impl Source {
    /// Reads a source as written on the command line: anything with a scheme, or of the form
    /// `user@host:path`, is a repository.
    ///
    /// # Errors
    /// When a path cannot be made absolute.
    pub fn parse(text: &str) -> Result<Self, ExpertError> {
        let is_scp = text.split_once(':').is_some_and(|(host, _)| host.contains('@') && !host.contains('/'));
        if text.contains("://") || is_scp {
            return Ok(Self::Git(text.to_owned()));
        }
        if text.is_empty() {
            return Err("name a folder or a git URL".to_owned().into());
        }
        let path = std::path::absolute(text).map_err(|error| format!("{text} is not a path: {error}"))?;
        Ok(Self::Path(folder_of(path)))
    }

    /// Returns the source as text, to be read again.
    pub fn as_text(&self) -> String {
        match self {
            Self::Path(path) => path.display().to_string(),
            Self::Git(url) => url.clone(),
        }
    }

    /// Fetches and loads the package.
    ///
    /// # Errors
    /// When it cannot be fetched; a package that does not load is not an error here.
    pub fn load(&self) -> Result<Loaded, ExpertError> {
        match self {
            Self::Path(path) if path.exists() && !path.is_dir() => Err(format!(
                "{} is not a folder: name a package's folder. Unpack an archive first (`tar xf`, `unzip`)",
                path.display()
            )
            .into()),
            Self::Path(path) => Ok(load_folder(path)?),
            Self::Git(url) => {
                let staging = tempfile::tempdir().map_err(|error| {
                    ExpertError::Disk("no temporary directory can be made".to_owned(), error)
                })?;
                let target = staging.path().join("clone");
                git::clone_repository(url, &target)?;
                Ok(load_folder(&target)?)
            }
        }
    }
}

/// Returns the folder of a package or of a skill if the path is that of its main file.
fn folder_of(path: PathBuf) -> PathBuf {
    let is_main_file = path.is_file() && (path.ends_with(MANIFEST) || path.ends_with(SKILL));
    match path.parent() {
        Some(folder) if is_main_file => folder.to_owned(),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_main_file_stands_for_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        for name in [MANIFEST, SKILL] {
            let file = folder.path().join(name);
            let parsed = || Source::parse(file.to_str().unwrap()).unwrap();
            assert_eq!(parsed(), Source::Path(file.clone()), "there is none");
            std::fs::write(&file, "").unwrap();
            assert_eq!(parsed(), Source::Path(folder.path().to_owned()));
        }
    }
}
