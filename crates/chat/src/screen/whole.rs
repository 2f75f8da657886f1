//! Texts that the person asks to see whole: the result of a call, the changes of files. One that is longer
//! than the screen goes to their pager.

use super::super::changes::FileChange;
use super::super::outputs::{CallOutput, NoOutput};
use super::super::{pager, preview};
use super::{Screen, rows_of, terminal_height};
use wire::visible::{make_visible, one_line, wrap_text};

impl Screen {
    /// Shows a result whole: in the pager if it is longer than the screen.
    ///
    /// # Errors
    /// [`NoOutput`], with the results that there are.
    pub(crate) fn show_whole_output(&mut self, number: Option<&str>) -> Result<(), NoOutput> {
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
    pub(crate) fn show_reasoning(&mut self) -> bool {
        self.measure_terminal();
        let text = wrap_text(&make_visible(self.reasoning.turn_text()), self.width);
        if !text.is_empty() {
            self.show_pageable(&format!("{text}\n"));
        }
        !text.is_empty()
    }

    /// Shows how files changed: in the pager if that is longer than the screen.
    pub(crate) fn show_changes(&mut self, changes: &[FileChange]) {
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
        if !self.moves || rows + 2 < terminal_height() || pager::show_paged(out).is_err() {
            self.write_text(out);
        }
    }
}
