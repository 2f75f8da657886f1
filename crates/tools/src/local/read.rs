//! `read`: the lines of a text file from `offset` (1 is the first) to the limits, with a note on how to
//! continue.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;

use super::super::contract::{ToolError, ToolOutput};
use super::super::policy::quote_word;
use super::specs::Naming;
use super::text::decode_text;
use super::workspace::{Place, Workspace, io_failure};

/// Up to this size a file is read whole and its encoding detected; larger ones are read line by line as
/// UTF-8.
const WHOLE: u64 = 16 << 20;
const MOST_LINES: usize = 2_000;
const MOST_BYTES: usize = 128 << 10;
const LONGEST_LINE: usize = 16 << 10;
/// The chat's model gets less of a result than that: a file ends where the note can say so.
const MOST_BYTES_IN_CHAT: usize = 28 << 10;

/// The lines that a call wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedLines {
    /// The first one, from 1.
    pub(super) first: usize,
    /// The most lines.
    pub(super) limit: Option<usize>,
    /// Whose tool was called: the note about the rest names what its model can do.
    pub(super) naming: Naming,
}

/// Opens a regular file for reading. A pipe or device is refused without waiting for its other end.
pub(super) fn open_file(workspace: &Workspace, place: &Place) -> Result<File, ToolError> {
    let file = File::from(workspace.open_at(place, OFlags::RDONLY | OFlags::NONBLOCK)?);
    let about = file.metadata().map_err(|error| io_failure(place.written.display(), &error))?;
    let path = place.written.display();
    match about.file_type() {
        kind if kind.is_file() && about.nlink() > 1 && workspace.refuses_links.load(Ordering::Relaxed) => {
            let names = about.nlink();
            Err(ToolError::Failed(format!(
                "{path} has {names} names (hard links), and rules judge a file by its path: one of the others may be denied. \
                 Copy it to a file of its own first"
            )))
        }
        kind if kind.is_file() => Ok(file),
        kind if kind.is_dir() => Err(ToolError::Failed(format!("{path} is a directory: list it with `ls`"))),
        _ => Err(ToolError::Failed(format!("{path} is not a regular file"))),
    }
}

/// Reads a file up to `limit`; the second value is false if it is larger.
pub(super) fn read_whole(file: &mut File, place: &Place, limit: u64) -> Result<(Vec<u8>, bool), ToolError> {
    let mut bytes = Vec::new();
    let failed = |error: io::Error| io_failure(place.written.display(), &error);
    file.take(limit + 1).read_to_end(&mut bytes).map_err(failed)?;
    let is_whole = bytes.len() as u64 <= limit;
    Ok((bytes, is_whole))
}

pub(super) fn read_file(
    workspace: &Workspace,
    place: &Place,
    lines: WantedLines,
    stopped: &AtomicBool,
) -> Result<ToolOutput, ToolError> {
    let mut file = open_file(workspace, place)?;
    let (bytes, is_whole) = read_whole(&mut file, place, WHOLE)?;
    let mut window = Window::new(lines);
    if is_whole {
        let Some((text, _)) = decode_text(&bytes) else { return Err(binary_error(place, bytes.len())) };
        text.split_inclusive('\n').take_while(|line| window.push(line.as_bytes())).for_each(drop);
    } else {
        if bytes[..8 << 10].contains(&0) {
            return Err(ToolError::Failed(format!("{} is a binary file", place.written.display())));
        }
        let mut lines = BufReader::new(Cursor::new(bytes).chain(file));
        let mut line = Vec::new();
        while next_line(&mut lines, &mut line).map_err(|error| io_failure(place.written.display(), &error))? {
            if stopped.load(Ordering::Relaxed) || !window.push(&line) {
                break;
            }
        }
    }
    window.finish(place)
}

fn binary_error(place: &Place, size: usize) -> ToolError {
    ToolError::Failed(format!("{} is a binary file of {size} bytes, not text", place.written.display()))
}

/// Reads a line and keeps no more of it than can be shown.
fn next_line(lines: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    loop {
        let buffer = lines.fill_buf()?;
        if buffer.is_empty() {
            return Ok(!line.is_empty());
        }
        let end = memchr::memchr(b'\n', buffer).map_or(buffer.len(), |at| at + 1);
        let is_end = buffer[end - 1] == b'\n';
        let room = (2 * LONGEST_LINE).saturating_sub(line.len());
        line.extend_from_slice(&buffer[..end.min(room)]);
        lines.consume(end);
        if is_end {
            return Ok(true);
        }
    }
}

/// The lines that are shown.
struct Window {
    text: String,
    /// The lines seen.
    line: usize,
    first: usize,
    naming: Naming,
    /// The first line after the shown ones.
    end: usize,
    is_cut: bool,
}

impl Window {
    fn new(lines: WantedLines) -> Self {
        let WantedLines { first, limit, naming } = lines;
        let end = first.saturating_add(limit.unwrap_or(MOST_LINES).min(MOST_LINES));
        Self { text: String::new(), line: 0, first, naming, end, is_cut: false }
    }

    /// Adds the next line; false when no more is needed.
    fn push(&mut self, line: &[u8]) -> bool {
        let most_bytes = if self.naming == Naming::Chat { MOST_BYTES_IN_CHAT } else { MOST_BYTES };
        if self.line + 1 >= self.end || self.text.len() > most_bytes {
            self.is_cut = true;
            return false;
        }
        self.line += 1;
        if self.line >= self.first {
            let text = String::from_utf8_lossy(line);
            let text = text.strip_suffix("\r\n").map_or(text.to_string(), |text| format!("{text}\n"));
            if text.len() > LONGEST_LINE {
                let end = text.floor_char_boundary(LONGEST_LINE);
                self.text.push_str(&text[..end]);
                self.text.push_str(" [the rest of this line is left out]\n");
            } else {
                self.text.push_str(&text);
            }
        }
        true
    }

    fn finish(mut self, place: &Place) -> Result<ToolOutput, ToolError> {
        let path = place.written.display();
        if self.line < self.first && self.first > 1 {
            let lines = self.line;
            return Err(ToolError::Failed(format!("{path} ends at line {lines}; offset is {}", self.first)));
        }
        if self.is_cut {
            let (first, last) = (self.first, self.line);
            let rest = match self.naming {
                Naming::Agent => format!("read on with offset {}", last + 1),
                Naming::Chat => {
                    let path = quote_word(&place.written.display().to_string());
                    let (from, to) = (last + 1, last + last.saturating_sub(first) + 1);
                    format!("the file goes on; the command `sed -n {from},{to}p {path}` shows the next lines")
                }
            };
            let note = format!("\n[lines {first} to {last}; {rest}]");
            self.text.push_str(&note);
        } else if self.line == 0 {
            "[the file is empty]".clone_into(&mut self.text);
        }
        Ok(ToolOutput { text: self.text, ..ToolOutput::default() })
    }
}
