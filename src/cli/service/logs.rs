//! The log of the service for people: each line as `respool serve` shows it on a terminal, below its day.

use std::io;

use super::super::say::{columns_of, has_colours, try_say, try_say_in_own_colours};
use telemetry::LogLine;

/// A log on standard output.
pub(super) struct ShownLog {
    /// Whether only lines of JSON are wanted, as they are.
    json: bool,
    /// The width of the terminal.
    columns: Option<usize>,
    day: String,
}

impl ShownLog {
    pub(super) fn new(json: bool) -> Self {
        Self { json, columns: columns_of(io::stdout()), day: String::new() }
    }

    /// Shows a line of the manager's log. Its own lines ("Started respool") stay as they are.
    pub(super) fn show_line(&mut self, line: &str) -> io::Result<()> {
        let own = line.find('{').map(|start| &line[start..]);
        let read = own.and_then(|own| Some((own, LogLine::from_json(own)?)));
        match read {
            Some((own, _)) if self.json => try_say(own),
            None if self.json => Ok(()),
            Some((_, read)) => {
                if read.day() != self.day {
                    read.day().clone_into(&mut self.day);
                    try_say(&format!("{} (times in UTC)", self.day))?;
                }
                let is_coloured = self.columns.is_some() && has_colours();
                try_say_in_own_colours(&read.render(self.columns.unwrap_or(usize::MAX), is_coloured))
            }
            None => try_say(line),
        }
    }
}

/// Rewrites the lines of a log for people; other lines stay.
pub(super) fn readable_lines(log: &str) -> String {
    let line = |line: &str| match LogLine::from_json(line) {
        Some(read) => read.render(usize::MAX, false),
        None => line.to_owned(),
    };
    log.lines().map(line).collect::<Vec<_>>().join("\n")
}
