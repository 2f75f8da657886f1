//! Texts that the person asks to see: the result of a call, the reasoning, the changes of files. One that is
//! longer than the screen goes to their pager, or during a turn, which a pager would hide, is cut.

use super::super::changes::FileChange;
use super::super::figures::format_count;
use super::super::lookups::{Found, Line};
use super::super::outputs::{CallOutput, NoOutput};
use super::super::{pager, preview};
use super::{Screen, rows_of, terminal_height};
use wire::visible::{make_visible, one_line, wrap_text};

impl Screen {
    /// Shows what a command found.
    pub(crate) fn show_found(&mut self, found: &Found) {
        let paint = self.paint;
        for line in &found.lines {
            match line {
                Line::Note(text) => self.write_note(text, |line| paint.dim(line)),
                Line::Problem(text) => self.write_note(text, |line| paint.red(line)),
            }
        }
        if !found.changes.is_empty() {
            self.show_changes(&found.changes);
        }
    }

    /// Shows the result of a call, or says why it cannot.
    pub(crate) fn answer_output(&mut self, number: Option<&str>) {
        if let Err(why) = self.show_whole_output(number) {
            self.show_found(&Found::problem(why.to_string()));
        }
    }

    /// Shows the reasoning of the turn, or says why it cannot. `has_turns`: there was a turn.
    pub(crate) fn answer_thinking(&mut self, has_turns: bool) {
        if !self.show_reasoning() {
            let why = match has_turns {
                _ if self.is_in_turn => "there is no reasoning in this turn yet",
                true => "the last turn has no reasoning: the model, or its server, sent none",
                false => "there is no turn yet",
            };
            self.show_found(&Found::problem(why.to_owned()));
        }
    }

    fn show_whole_output(&mut self, number: Option<&str>) -> Result<(), NoOutput> {
        self.measure_terminal();
        let CallOutput { tool, subject, text, is_change } = self.outputs.find(number)?.clone();
        let mut out = format!(
            "{} {} {}\n",
            self.paint.cyan("●"),
            self.paint.bold(&one_line(&tool, 60)),
            make_visible(&subject)
        );
        if is_change {
            out.push_str(&self.paint_rows(&preview::diff_rows(&text, self.width)));
        } else {
            out.extend(make_visible(&text).lines().map(|line| format!("    {line}\n")));
        }
        self.show_pageable(&out);
        Ok(())
    }

    /// Shows the reasoning of the turn; false without any.
    fn show_reasoning(&mut self) -> bool {
        self.measure_terminal();
        let text = wrap_text(&make_visible(self.reasoning.turn_text()), self.width);
        if !text.is_empty() {
            self.show_pageable(&format!("{text}\n"));
        }
        !text.is_empty()
    }

    fn show_changes(&mut self, changes: &[FileChange]) {
        self.measure_terminal();
        let mut out = String::new();
        for FileChange { path, diff } in changes {
            let path = one_line(path, self.width);
            let head = format!("{} {}\n", self.paint.cyan("●"), self.paint.bold(&path));
            out.extend([head, self.paint_rows(&preview::diff_rows(diff, self.width))]);
        }
        self.show_pageable(&out);
    }

    fn show_pageable(&mut self, out: &str) {
        let rows: usize = out.lines().map(|line| rows_of(line, self.width)).sum();
        if !self.moves || rows + 2 < terminal_height() {
            self.write_text(out);
        } else if self.is_in_turn {
            self.show_beginning(out);
        } else if pager::show_paged(out).is_err() {
            self.write_text(out);
        }
    }

    /// Shows the first lines of a text, and how many follow.
    fn show_beginning(&mut self, out: &str) {
        let mut room = terminal_height() / 2;
        let fits = |line: &&str| {
            let left = room.checked_sub(rows_of(line, self.width));
            room = left.unwrap_or(0);
            left.is_some()
        };
        let shown: Vec<&str> = out.lines().take_while(fits).collect();
        let count = format_count(out.lines().count() - shown.len(), "more line");
        let hint = self.paint.dim(&format!("… {count}; after this turn, the same command shows all"));
        self.write_line(&format!("{}\n{hint}", shown.join("\n")));
    }
}
