//! `@file` in a message: the text of the file is sent below the words, and a picture behind them. The person
//! names the file, so it may be anywhere to which the name itself leads.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use ignore::WalkBuilder;
use serde_json::Value;

use super::figures::format_count;
use super::pictures;
use super::transcript::code_block;
use tools::open_inside;
use wire::visible::one_line;

/// The most bytes of a file that are sent.
const MOST_BYTES: u64 = 64 << 10;
/// The most names of a directory that are sent, or offered for completion.
const MOST_NAMES: usize = 200;

/// The least signs of a path by which files are found, the most entries that are looked at for them, and the
/// most files that are offered.
const LEAST_PART: usize = 2;
const MOST_SEARCHED: usize = 20_000;
const MOST_FOUND: usize = 20;

/// A mention and its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mention {
    pub(super) note: String,
    pub(super) is_problem: bool,
}

/// The contents of files that a message mentions.
#[derive(Debug, Default)]
pub(super) struct Attached {
    /// Stands below the words.
    pub(super) text: String,
    /// Pictures, as parts of the message.
    pub(super) pictures: Vec<Value>,
    /// A line for the person about each.
    pub(super) mentions: Vec<Mention>,
}

/// The contents of a mentioned file.
enum Contents {
    Text(String),
    Picture(Value),
}

/// Returns what goes along for the files that a message's `line` mentions, and for the pictures whose paths
/// stand in it. `is_confined`: only files in `root` are sent, which has no symlinks. So it is with every name
/// of a place in it: a command may have put a link there.
pub(super) fn attach_files(line: &str, root: &Path, is_confined: bool) -> Attached {
    let mut attached = Attached::default();
    let is_inside = |path: &Path| {
        path.ancestors().any(|place| place.canonicalize().is_ok_and(|real| real.starts_with(root)))
    };
    let read = |name: &str| {
        let path = find_path(name, root);
        read_attachment(&path, root, is_confined || is_inside(&path))
    };
    for name in mentioned_names(line) {
        let (file, read) = read_mentioned(&name, read);
        match read {
            // A word such as `@property`.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !may_be_path(&name, root) => {}
            read => attached.add(&name, file, read),
        }
    }
    for path in pictures::dropped_paths(line).iter().filter(|path| find_path(path, root).is_file()) {
        match read(path) {
            // A name that only looks like a picture's.
            Ok((Contents::Text(_), _)) => {}
            read => attached.add(path, path, read),
        }
    }
    attached
}

impl Attached {
    /// Adds a file that was mentioned by this name. `file`: the name without a line's number.
    fn add(&mut self, name: &str, file: &str, read: io::Result<(Contents, String)>) {
        let shown = one_line(name, 200);
        let read = match read {
            Ok((Contents::Picture(_), _)) if self.pictures.len() == pictures::MOST_PICTURES => {
                let why = format!("a message has at most {} pictures", pictures::MOST_PICTURES);
                Err(io::Error::other(why))
            }
            read => read,
        };
        let (note, is_problem) = match read {
            Ok((Contents::Text(text), size)) => {
                let _ = write!(self.text, "\n\n{file}:\n{}", code_block(&text));
                (format!("@{shown} · {size}"), false)
            }
            Ok((Contents::Picture(part), size)) => {
                self.pictures.push(part);
                let _ = write!(self.text, "\n\n{file}: picture {} of this message", self.pictures.len());
                (format!("@{shown} · {size}"), false)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (format!("@{shown}: no such file"), true)
            }
            Err(error) => {
                let why = error.to_string();
                let why = why.split(" (os error").next().unwrap_or_default();
                // Otherwise the model would guess the contents.
                let _ = write!(self.text, "\n\n[the file {file} was not sent along: {why}]");
                (format!("@{shown} is not sent along: {why}"), true)
            }
        };
        self.mentions.push(Mention { note, is_problem });
    }
}

/// Returns true if a file could be meant: by its signs, or because files of the directory begin alike.
fn may_be_path(name: &str, root: &Path) -> bool {
    let start = |name: &str| name.chars().take(LEAST_PART + 1).collect::<String>().to_lowercase();
    name.contains(['/', '.', ':'])
        || directory_names(root).unwrap_or_default().iter().any(|known| start(known) == start(name))
}

/// Returns the names behind each `@` that begins a word: up to the next space, or in quotes. The last quote
/// may be missing.
fn mentioned_names(line: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        if c == '@' && before.is_whitespace() {
            let rest = &line[at + 1..];
            let quoted = rest.strip_prefix('"');
            let name = match quoted {
                Some(rest) => rest.split_once('"').map_or_else(|| rest.trim_end(), |(name, _)| name),
                None => rest
                    .split_whitespace()
                    .next()
                    .unwrap_or_default()
                    .trim_end_matches(|c| ",;:!?)".contains(c)),
            };
            let name = if quoted.is_none() { name.strip_suffix('.').unwrap_or(name) } else { name };
            if !name.is_empty()
                && !rest.starts_with(char::is_whitespace)
                && !names.iter().any(|known| known == name)
            {
                names.push(name.to_owned());
            }
        }
        before = c;
    }
    names
}

/// Reads what a mention names: a file, also with the number of a line behind it. Returns its name, too.
fn read_mentioned<T>(name: &str, read: impl Fn(&str) -> io::Result<T>) -> (&str, io::Result<T>) {
    match (read(name), name_before_line(name)) {
        (Err(error), Some(file)) if error.kind() == io::ErrorKind::NotFound => (file, read(file)),
        (read, _) => (name, read),
    }
}

/// Returns the name of the file in `src/main.rs:12`, `src/main.rs:12:5` or `src/main.rs:12-20`.
fn name_before_line(name: &str) -> Option<&str> {
    let without = |name: &'_ str| -> Option<usize> {
        let (file, line) = name.rsplit_once(':')?;
        let is_line = line.starts_with(|c: char| c.is_ascii_digit())
            && line.chars().all(|c| c.is_ascii_digit() || c == '-');
        is_line.then_some(file.len())
    };
    let file = &name[..without(name)?];
    Some(&file[..without(file).unwrap_or(file.len())])
}

/// Returns the path that the words of a name mean: `..` leads back, even behind a link.
fn find_path(name: &str, root: &Path) -> PathBuf {
    let path = match (name.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => root.join(name),
    };
    path.components().fold(PathBuf::new(), |mut found, part| {
        if part == Component::ParentDir {
            found.pop();
        } else {
            found.push(part);
        }
        found
    })
}

/// Reads a text file, a picture or the names of a directory, each with its size in words.
fn read_attachment(path: &Path, root: &Path, is_confined: bool) -> io::Result<(Contents, String)> {
    let mut file = if is_confined {
        let real = path.canonicalize()?;
        if !real.starts_with(root) {
            return Err(io::Error::other("it is not in this directory"));
        }
        open_inside(root, &real).map_err(|error| io::Error::other(error.text().to_owned()))?
    } else {
        fs::File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?
    };
    let kind = file.metadata()?;
    if kind.is_dir() {
        let names = directory_names(path)?;
        let text = names[..names.len().min(MOST_NAMES)].join("\n");
        return Ok((Contents::Text(text), format_count(names.len(), "name")));
    }
    if !kind.is_file() {
        return Err(io::Error::other("it is neither a file nor a directory"));
    }
    let mut bytes = Vec::new();
    file.by_ref().take(MOST_BYTES).read_to_end(&mut bytes)?;
    if let Some(media_type) = pictures::media_type(&bytes) {
        file.take(pictures::MOST_BYTES + 1).read_to_end(&mut bytes)?;
        return picture_of(&bytes, media_type, kind.len());
    }
    if bytes.contains(&0) {
        return Err(io::Error::other("it is not text"));
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let lines = format_count(text.lines().count(), "line");
    if kind.len() > MOST_BYTES {
        let note = format!("\n[{} of {} bytes]", MOST_BYTES, kind.len());
        return Ok((Contents::Text(text + &note), format!("the first {lines}; the file is longer")));
    }
    Ok((Contents::Text(text), lines))
}

fn picture_of(bytes: &[u8], media_type: &str, size: u64) -> io::Result<(Contents, String)> {
    let size = pictures::size_text(size.max(bytes.len() as u64));
    if bytes.len() as u64 > pictures::MOST_BYTES {
        let most = pictures::size_text(pictures::MOST_BYTES);
        let why = format!("the picture has {size}, and at most {most} are sent: make it smaller");
        return Err(io::Error::other(why));
    }
    Ok((Contents::Picture(pictures::picture_part(bytes, media_type)), format!("picture, {size}")))
}

/// Returns the sorted names of a directory; those of directories end with a slash.
fn directory_names(path: &Path) -> io::Result<Vec<String>> {
    let name = |entry: fs::DirEntry| {
        let mark = if entry.path().is_dir() { "/" } else { "" };
        format!("{}{mark}", entry.file_name().to_string_lossy())
    };
    let mut names: Vec<String> = fs::read_dir(path)?.filter_map(Result::ok).map(name).collect();
    names.sort();
    Ok(names)
}

/// Completes the mention at the end of a line: where it begins, and what may stand there.
pub(super) fn complete_mention(line: &str, root: &Path) -> Option<(usize, Vec<String>)> {
    let (start, begun) = begun_mention(line)?;
    let (directory, name) = begun.split_at(begun.rfind('/').map_or(0, |at| at + 1));
    let names = directory_names(&find_path(directory, root)).unwrap_or_default();
    let fits = |found: &&String| {
        found.starts_with(name)
            && found.starts_with('.') == name.starts_with('.')
            && one_line(found, 500) == **found
    };
    let whole = |found: &String| match format!("{directory}{found}") {
        // A quote that stays open until the file is chosen.
        path if path.ends_with('/') && path.contains(' ') => format!("@\"{path}"),
        path if path.ends_with('/') => format!("@{path}"),
        path => quoted_mention(&path),
    };
    let mut found: Vec<String> = names.iter().filter(fits).take(MOST_NAMES).map(whole).collect();
    if found.is_empty() && begun.chars().count() >= LEAST_PART {
        found = find_files(begun, root).iter().map(|path| quoted_mention(path)).collect();
    }
    Some((start, found))
}

/// Finds a mention at the end of a line, in quotes that are still open or without them: where it begins, and
/// its path.
fn begun_mention(line: &str) -> Option<(usize, &str)> {
    let begins_word = |at: &usize| *at == 0 || line[..*at].ends_with(char::is_whitespace);
    let open = line.rfind("@\"").filter(begins_word).map(|at| (at, &line[at + 2..]));
    open.filter(|(_, path)| !path.contains('"')).or_else(|| {
        let start = line.rfind(char::is_whitespace).map_or(0, |at| at + 1);
        Some((start, line[start..].strip_prefix('@')?))
    })
}

/// Returns a mention of this path, with a space behind it.
fn quoted_mention(path: &str) -> String {
    if path.contains(' ') { format!("@\"{path}\" ") } else { format!("@{path} ") }
}

/// Finds files whose path contains this text, the shortest first, without those that git ignores.
fn find_files(part: &str, root: &Path) -> Vec<String> {
    let part = part.to_lowercase();
    let entries = WalkBuilder::new(root).build().filter_map(Result::ok).take(MOST_SEARCHED);
    let files = entries.filter(|entry| entry.file_type().is_some_and(|kind| kind.is_file()));
    let names = files.filter_map(|entry| Some(entry.path().strip_prefix(root).ok()?.to_str()?.to_owned()));
    let fits = |name: &String| name.to_lowercase().contains(&part) && one_line(name, 500) == *name;
    let mut found: Vec<String> = names.filter(fits).collect();
    found.sort_by_key(|name| (name.len(), name.clone()));
    found.truncate(MOST_FOUND);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("src")).unwrap();
        fs::write(dir.path().join("a.txt"), "one\n```\ntwo\n").unwrap();
        fs::write(dir.path().join("src/my file.rs"), "fn main() {}\n").unwrap();
        fs::write(dir.path().join("image"), [0, 1, 2]).unwrap();
        fs::write(dir.path().join("long"), "x".repeat(100 << 10)).unwrap();
        dir
    }

    #[test]
    fn mentioned_files_are_sent_below_the_words() {
        let dir = folder();
        let Attached { text: added, mentions, .. } =
            attach_files("Is @a.txt, or (me@b.c) @src right? @a.txt.", dir.path(), false);
        assert_eq!(added, "\n\na.txt:\n````\none\n```\ntwo\n````\n\nsrc:\n```\nmy file.rs\n```");
        let notes: Vec<&str> = mentions.iter().map(|mention| mention.note.as_str()).collect();
        assert_eq!(notes, ["@a.txt · 3 lines", "@src · 1 name"]);
        let Attached { text: added, mentions, .. } =
            attach_files("@\"src/my file.rs\" @long", dir.path(), false);
        assert!(added.contains("fn main() {}") && added.contains("[65536 of 102400 bytes]"));
        assert!(mentions.iter().all(|mention| !mention.is_problem), "{mentions:?}");
    }

    #[test]
    fn other_words_stay_and_mistakes_are_told() {
        let dir = folder();
        let Attached { text: added, mentions, .. } = attach_files("@property @ x a@b", dir.path(), false);
        assert_eq!((added.as_str(), mentions), ("", Vec::new()));
        let note = "@Imagen: no such file".to_owned();
        assert_eq!(attach_files("@Imagen", dir.path(), false).mentions, [Mention { note, is_problem: true }]);
        let Attached { text: added, mentions, .. } = attach_files("@src/nope.rs @image", dir.path(), false);
        assert_eq!(added, "\n\n[the file image was not sent along: it is not text]");
        assert_eq!(mentions.len(), 2);
        assert_eq!(attach_files("@\"src/my", dir.path(), false).mentions[0].note, "@src/my: no such file");
        assert!(mentions.iter().all(|mention| mention.is_problem));
        assert_eq!(mentions[0].note, "@src/nope.rs: no such file");
        assert_eq!(mentions[1].note, "@image is not sent along: it is not text");
    }

    #[test]
    fn pictures_are_bounded_and_may_be_dropped() {
        let dir = folder();
        let gif = |size: usize| [b"GIF89a".to_vec(), vec![0; size - 6]].concat();
        fs::write(dir.path().join("p.gif"), gif(2_000)).unwrap();
        fs::write(dir.path().join("most.gif"), gif(5 << 20)).unwrap();
        fs::write(dir.path().join("big.gif"), gif((5 << 20) + 1)).unwrap();
        fs::write(dir.path().join("text.png"), "words").unwrap();
        let place = dir.path().display();
        let line = format!("{place}/p.gif @most.gif '{place}/big.gif' {place}/text.png {place}/none.png");
        let Attached { text, pictures, mentions } = attach_files(&line, dir.path(), false);
        assert_eq!(pictures.len(), 2);
        assert!(pictures[0]["image_url"]["url"].as_str().unwrap().len() > 6_000_000, "whole");
        assert!(text.ends_with("at most 5.2 MB are sent: make it smaller]"), "{text}");
        let notes: Vec<&str> = mentions.iter().map(|mention| mention.note.as_str()).collect();
        assert_eq!(notes.len(), 3, "{notes:?}");
        assert_eq!(notes[0], "@most.gif · picture, 5.2 MB");
        assert!(notes[1].ends_with("p.gif · picture, 2 KB"), "{notes:?}");
        for count in 0..12 {
            fs::write(dir.path().join(format!("{count}.gif")), gif(10)).unwrap();
        }
        let many: Vec<String> = (0..12).map(|count| format!("@{count}.gif")).collect();
        let Attached { pictures, mentions, .. } = attach_files(&many.join(" "), dir.path(), false);
        assert_eq!(pictures.len(), 10);
        assert_eq!(mentions[11].note, "@11.gif is not sent along: a message has at most 10 pictures");
    }

    #[test]
    fn a_line_of_a_file_is_mentioned() {
        let dir = folder();
        for line in ["see @a.txt:2", "see @a.txt:2:1,", "see @a.txt:1-2."] {
            let Attached { text: added, mentions, .. } = attach_files(line, dir.path(), false);
            assert!(added.starts_with("\n\na.txt:\n") && !mentions[0].is_problem, "{line}: {mentions:?}");
        }
        assert_eq!(attach_files("@a.txt:x", dir.path(), false).mentions[0].note, "@a.txt:x: no such file");
    }

    #[test]
    fn a_confined_prompt_sends_files_of_its_directory() {
        let dir = folder();
        let root = dir.path().canonicalize().unwrap().join("src");
        let Attached { text: added, mentions, .. } =
            attach_files("@\"my file.rs\" @../a.txt @/etc/passwd", &root, true);
        assert!(added.starts_with("\n\nmy file.rs:") && !added.contains("two"), "{added}");
        let notes: Vec<&str> = mentions.iter().map(|mention| mention.note.as_str()).collect();
        assert_eq!(notes[1], "@../a.txt is not sent along: it is not in this directory");
        assert!(notes[2].ends_with("it is not in this directory"), "{notes:?}");
        // A command made the link, and the person does not know where it leads.
        std::os::unix::fs::symlink("../a.txt", root.join("link")).unwrap();
        let whole = format!("@link @{}/link @../src/link @../a.txt", root.display());
        let Attached { text: added, mentions, .. } = attach_files(&whole, &root, false);
        assert!(!added.contains("link:") && added.contains("two"), "{added}");
        for mention in &mentions[..3] {
            assert!(mention.note.ends_with("it is not in this directory"), "{mentions:?}");
        }
    }

    #[test]
    fn mentions_are_completed() {
        let dir = folder();
        let check = |line: &str, expected: Option<(usize, &[&str])>| {
            let found = complete_mention(line, dir.path());
            let found =
                found.as_ref().map(|(at, all)| (*at, all.iter().map(String::as_str).collect::<Vec<_>>()));
            assert_eq!(found, expected.map(|(at, all)| (at, all.to_vec())), "{line}");
        };
        check("see @a", Some((4, &["@a.txt "])));
        check("@s", Some((0, &["@src/"])));
        fs::create_dir(dir.path().join("my dir")).unwrap();
        fs::write(dir.path().join("my dir/b"), "").unwrap();
        check("@my", Some((0, &["@\"my dir/"])));
        check("@\"my dir/", Some((0, &["@\"my dir/b\" "])));
        check("@src/m", Some((0, &["@\"src/my file.rs\" "])));
        check("@nope/x", Some((0, &[])));
        check("in @FILE.r", Some((3, &["@\"src/my file.rs\" "])));
        check("@z", Some((0, &[])));
        check("x @\"src/my f", Some((2, &["@\"src/my file.rs\" "])));
        check("x @\"a\" @a", Some((7, &["@a.txt "])));
        check("see a", None);
    }
}
