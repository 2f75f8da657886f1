//! Unpacks an untrusted archive: tar, gzipped tar or zip. Only regular files below the directory come out,
//! within limits on their number and size. Links, devices and paths that leave the directory are refused, not
//! skipped; what file managers and archivers add is skipped. Called by `source`.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use super::error::ExpertError;
use openexperts::own_files::is_clutter;

/// The most files an archive may have.
const MOST_FILES: usize = 2_000;
/// The most bytes of all its files together; headers may add to that.
const MOST_BYTES: u64 = 64 << 20;
/// The largest file.
const LARGEST_FILE: u64 = 4 << 20;
/// The most bytes that are decompressed in total.
const MOST_DECOMPRESSED: u64 = MOST_BYTES + (16 << 20);

/// Unpacks an archive into an empty directory.
///
/// # Errors
/// Why it was not unpacked; the directory may then contain a part of it.
pub(super) fn unpack(archive: &Path, into: &Path) -> Result<(), ExpertError> {
    let cannot = |error| ExpertError::disk_error(archive, "cannot be read")(error);
    let metadata = fs::metadata(archive).map_err(cannot)?;
    // Opening a pipe would wait for its writer.
    if !metadata.is_file() {
        return Err(format!(
            "{} is neither a folder nor a file: name a package's folder or archive",
            archive.display()
        )
        .into());
    }
    let mut file = File::open(archive).map_err(cannot)?;
    if metadata.len() > MOST_BYTES {
        return Err(format!("{} is larger than 64 MiB", archive.display()).into());
    }
    let mut head = [0_u8; 4];
    let read = file.read(&mut head).and_then(|read| file.seek(SeekFrom::Start(0)).map(|_| read));
    read.map_err(cannot)?;
    let mut target = Target { into, files: 0, bytes: 0 };
    let done = match head {
        [0x1f, 0x8b, ..] => target.unpack_tar(flate2::read::GzDecoder::new(file)),
        [b'P', b'K', 3, 4] => target.unpack_zip(file),
        _ => target.unpack_tar(file),
    };
    done.map_err(|why| format!("{} was not unpacked: {why}", archive.display()).into())
}

/// Why an archive cannot be unpacked. Paths are made visible for people.
#[derive(Debug, thiserror::Error)]
enum ArchiveError {
    /// It has none of the known formats, or its end is missing.
    #[error("it is not a tar, tar.gz or zip archive, or it is incomplete")]
    NotTar,
    /// The zip archive cannot be read.
    #[error("it is not a zip archive that can be read: {0}")]
    Zip(zip::result::ZipError),
    /// An entry is neither a file nor a folder.
    #[error("{0} is a link or a device; a package has only files")]
    NotAFile(String),
    /// A file would leave the package.
    #[error("its file {0} would be written outside of the package")]
    Outside(String),
    /// It has more files than a package may have.
    #[error("it has more than {MOST_FILES} files")]
    TooManyFiles,
    /// A file is larger than allowed, or makes the whole larger than allowed.
    #[error("its file {0} makes it too large: one file may have 4 MiB, all together 64 MiB")]
    TooLarge(String),
    /// A file cannot be written.
    #[error("its file {0} cannot be written: {1}")]
    Unwritable(String, io::Error),
}

struct Target<'a> {
    into: &'a Path,
    files: usize,
    bytes: u64,
}

impl Target<'_> {
    fn unpack_tar(&mut self, source: impl Read) -> Result<(), ArchiveError> {
        let mut archive = tar::Archive::new(source.take(MOST_DECOMPRESSED));
        let broken = |_: io::Error| ArchiveError::NotTar;
        for entry in archive.entries().map_err(broken)? {
            let entry = entry.map_err(broken)?;
            let path = entry.path().map_err(broken)?.into_owned();
            if is_clutter_inside(&path) {
                continue;
            }
            match entry.header().entry_type() {
                kind if kind.is_file() || kind == tar::EntryType::Continuous => {
                    self.write_file(&path, entry)?;
                }
                kind if kind.is_dir() || kind.is_pax_global_extensions() => {}
                _ => return Err(ArchiveError::NotAFile(show_path(&path))),
            }
        }
        Ok(())
    }

    fn unpack_zip(&mut self, source: File) -> Result<(), ArchiveError> {
        let broken = ArchiveError::Zip;
        let mut archive = zip::ZipArchive::new(source).map_err(broken)?;
        for index in 0..archive.len() {
            let entry = archive.by_index(index).map_err(broken)?;
            let path = PathBuf::from(entry.name().map_err(broken)?.into_owned());
            if is_clutter_inside(&path) {
                continue;
            }
            if entry.is_file() && !entry.is_symlink() {
                self.write_file(&path, entry)?;
            } else if !entry.is_dir() {
                return Err(ArchiveError::NotAFile(show_path(&path)));
            }
        }
        Ok(())
    }

    /// Writes one file. The sizes that the archive states are not trusted.
    fn write_file(&mut self, path: &Path, source: impl Read) -> Result<(), ArchiveError> {
        let shown = show_path(path);
        if !is_inside(path) || path.to_str().is_none_or(|text| text.contains('\\')) {
            return Err(ArchiveError::Outside(shown));
        }
        self.files += 1;
        if self.files > MOST_FILES {
            return Err(ArchiveError::TooManyFiles);
        }
        let target = self.into.join(path);
        let written = target.parent().map_or(Ok(()), fs::create_dir_all);
        let written = written.and_then(|()| {
            let mut file = File::options().write(true).create_new(true).open(&target)?;
            io::copy(&mut source.take(LARGEST_FILE + 1), &mut file)
        });
        let length = written.map_err(|error| ArchiveError::Unwritable(shown.clone(), error))?;
        self.bytes += length;
        if length > LARGEST_FILE || self.bytes > MOST_BYTES {
            return Err(ArchiveError::TooLarge(shown));
        }
        Ok(())
    }
}

fn is_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// Returns true if a path in the package is that of a file which a file manager or an archiver added, such as
/// `__MACOSX/._expert.yaml`.
fn is_clutter_inside(path: &Path) -> bool {
    is_inside(path) && path.iter().any(|part| part.to_str().is_some_and(is_clutter))
}

fn show_path(path: &Path) -> String {
    openexperts::visible(&path.display().to_string())
}
