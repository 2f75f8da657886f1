//! The entries of a git index, read without git: commands write indexes, and to read one with git starts git.
//! The format is that of gitformat-index(5), versions 2 to 4.

/// The longest name of an entry, as paths have it, and the most bytes of all names: in version 4 they share
/// their beginnings, so that a small file can stand for much.
const LONGEST_NAME: usize = 4096;
const MOST_NAMES: usize = 128 << 20;
/// The flag of an entry that has more flags.
const EXTENDED: u8 = 0x40;

/// Reads the names in an index that is not split; `None` for anything else. `config`: the repository's.
pub(super) fn read_names(index: &[u8], config: &str) -> Option<Vec<Vec<u8>>> {
    let config = config.to_ascii_lowercase();
    let is_sha256 = config.contains("objectformat") && config.contains("sha256");
    parse(index, if is_sha256 { 32 } else { 20 })
}

/// Returns the names of the entries; `None` for anything else than an index.
fn parse(bytes: &[u8], digest: usize) -> Option<Vec<Vec<u8>>> {
    let body = bytes.get(..bytes.len().checked_sub(digest)?)?;
    let number = |at: usize| Some(u32::from_be_bytes(body.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let (version, count) = (number(4)?, number(8)?);
    if !body.starts_with(b"DIRC") || !(2..=4).contains(&version) {
        return None;
    }
    let (mut at, mut name, mut names, mut total) = (12, Vec::new(), Vec::new(), 0);
    for _ in 0..count {
        let start = at;
        at += 40 + digest;
        let is_extended = version > 2 && body.get(at)? & EXTENDED != 0;
        at += if is_extended { 4 } else { 2 };
        let kept = if version == 4 { name.len().checked_sub(read_offset(body, &mut at)?)? } else { 0 };
        name.truncate(kept);
        let length = body.get(at..)?.iter().position(|byte| *byte == 0)?;
        name.extend(&body[at..at + length]);
        total += name.len();
        if name.len() > LONGEST_NAME || total > MOST_NAMES {
            return None;
        }
        at += length + 1;
        if version < 4 {
            at = start + (at - start).next_multiple_of(8);
        }
        names.push(name.clone());
    }
    Some(names)
}

/// Reads a number as packs have it, seven bits in a byte.
fn read_offset(body: &[u8], at: &mut usize) -> Option<usize> {
    let mut value = 0_usize;
    loop {
        let byte = *body.get(*at)?;
        *at += 1;
        value = value.checked_mul(128)?.checked_add(usize::from(byte & 0x7F))?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
        value = value.checked_add(1)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn git(directory: &Path, arguments: &[&str]) {
        let mut git = std::process::Command::new("git");
        git.args(["-c", "user.name=me", "-c", "user.email=me@example.org"]).args(arguments);
        let done = git.current_dir(directory).env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    }

    /// git itself writes the indexes, in each version and with both kinds of digests.
    #[test]
    fn indexes_of_git_are_read() {
        for format in ["sha1", "sha256"] {
            let directory = tempfile::tempdir().unwrap();
            let top = directory.path().to_owned();
            git(&top, &["init", "-q", &format!("--object-format={format}")]);
            for name in ["a", "directory/with a name", "directory/with another", "skipped"] {
                fs::create_dir_all(top.join(name).parent().unwrap()).unwrap();
                fs::write(top.join(name), name).unwrap();
            }
            git(&top, &["add", "-A"]);
            git(&top, &["update-index", "--skip-worktree", "skipped"]);
            let own = top.join(".git");
            for version in ["--index-version=2", "--index-version=4"] {
                git(&top, &["update-index", version]);
                let config = fs::read_to_string(own.join("config")).unwrap();
                let names = read_names(&fs::read(own.join("index")).unwrap(), &config).unwrap();
                let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name)).collect();
                assert_eq!(
                    names,
                    ["a", "directory/with a name", "directory/with another", "skipped"],
                    "{format} {version}"
                );
            }
        }
    }

    #[test]
    fn other_files_are_no_indexes() {
        for bytes in
            [&b""[..], b"DIRC", &[b'x'; 200], &[&b"DIRC\0\0\0\x02\xff\xff\xff\xff"[..], &[0; 90]].concat()]
        {
            assert_eq!(parse(bytes, 20), None);
        }
    }
}
