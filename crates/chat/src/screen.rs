//! The person's view of a turn: the text as it arrives, one block for each tool call, and a moving status
//! line at the bottom. Questions are asked in `screen/ask.rs`. It writes to the given writer; it calls no
//! model and runs no tool.

mod ask;
mod outcome;
mod shown;
mod whole;

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::answers::Answers;
use super::command;
use super::editor::PROMPT;
use super::figures::{format_count, format_seconds, format_thousands, terminal_columns};
use super::markdown::Markdown;
use super::outputs::{CallOutput, Outputs, keep_end};
use super::paint::Paint;
use super::preview::{self, Kind, Row, split_columns};
use super::reasoning::Reasoning;
use super::typed::{END, TypedText};
use agent::{CallOutcome, ToolEnd};
pub(super) use ask::Answer;
use outcome::{is_first_line_shown, is_in_part, is_note, outcome_text, refusal_text};
pub(super) use shown::Shown;
use tools::{Consent, named_subject, plain_text};
use wire::visible::{char_width, cut_line, make_visible, one_line, without_joined_emoji, wrap_text};

/// The most rows of a change that are shown at once.
const MOST_ROWS: usize = 40;
/// The most lines of a command's output that are shown.
const OUTPUT_LINES: usize = 6;
/// How much of a running command's output is kept for the bottom of the screen.
const OUTPUT: usize = 8 << 10;
/// Rows of an earlier answer that are shown when its conversation is resumed, and of the last one.
const PAST_ROWS: usize = 12;
const LAST_ROWS: usize = 100;
/// After this time the status line says how to stop.
const STOP_HINT: Duration = Duration::from_secs(3);
/// Fewer are rare in any language.
const BYTES_PER_TOKEN: usize = 5;
/// After this, a reply in which nothing more comes may have stopped.
const SILENCE: Duration = Duration::from_secs(15);
const SUMMARISED: &str = "\nThe conversation was summarised, because it nearly filled the model's window.";
const SHORTENED: &str = "\nThe model could not summarise the conversation, so older results are shortened for it; /compact tries again.";
const MODEL_AWAITED: &str = "waiting for the model";
/// Has the terminal cut lines that are too long for it, or wrap them again (DECAWM).
const UNWRAPPED: &str = "\u{1b}[?7l";
const WRAPPED: &str = "\u{1b}[?7h";
const SPINNER: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];

/// The status line at the bottom.
struct Status {
    what: String,
    since: Instant,
    frame: usize,
}

/// The text at the bottom of the terminal.
#[derive(Default)]
struct Drawn {
    text: String,
    /// The columns of the terminal when it was drawn.
    columns: usize,
}

/// One person's view.
pub(super) struct Screen {
    out: Box<dyn Write + Send>,
    paint: Paint,
    width: usize,
    /// Whether there is a moving status line.
    moves: bool,
    /// Where the model's words go.
    answers: Answers,
    markdown: Markdown,
    status: Option<Status>,
    /// The text at the bottom of the terminal that the next drawing replaces: what is not complete, and the
    /// status line.
    drawn: Drawn,
    /// The person has typed this for the next prompt.
    typed: TypedText,
    /// They had typed this before the turn.
    draft: TypedText,
    is_in_turn: bool,
    /// Pieces of the reply so far, and their bytes.
    pieces: usize,
    /// When the last one came.
    last_piece: Instant,
    bytes: usize,
    reasoning: Reasoning,
    /// The end of what the running command wrote.
    output: String,
    /// The command or file of the running call.
    subject: String,
    outputs: Outputs,
    /// Whether the model was asked for a summary.
    awaits_summary: bool,
    /// Asking for the last summary failed.
    summary_failed: bool,
    /// Whether a part of the reply is on the screen.
    is_begun: bool,
    /// Line breaks at the end of the written part: they wait for more text.
    breaks: String,
    /// Whether a call runs.
    is_open: bool,
    /// The time that the person took to decide about the running call.
    asked: Duration,
    /// The time that they took to decide in this turn.
    asked_in_turn: Duration,
    /// Why the model is asked again if the last reply does not end the turn.
    unusable: Option<&'static str>,
    /// Whether the call runs a second time, outside the sandbox.
    is_outside: bool,
    /// Whether the change was shown with the question.
    previewed: bool,
    /// The text of the reply until now.
    reply: String,
    /// Whether a call was denied.
    has_denied: bool,
    /// Whether the person lets the assistant only look.
    is_read_only: bool,
}

impl Screen {
    /// Returns a screen. `moves`: `out` is a terminal.
    pub(super) fn new(out: Box<dyn Write + Send>, paint: Paint, moves: bool, answers: Answers) -> Self {
        let width = if moves { terminal_width() } else { 100 };
        Self {
            out,
            paint,
            width,
            moves,
            answers,
            markdown: Markdown::new(paint, moves, width),
            status: None,
            drawn: Drawn::default(),
            typed: TypedText::default(),
            draft: TypedText::default(),
            is_in_turn: false,
            pieces: 0,
            last_piece: Instant::now(),
            bytes: 0,
            reasoning: Reasoning::default(),
            output: String::new(),
            subject: String::new(),
            outputs: Outputs::default(),
            awaits_summary: false,
            summary_failed: false,
            is_begun: false,
            breaks: String::new(),
            is_open: false,
            asked: Duration::ZERO,
            asked_in_turn: Duration::ZERO,
            unusable: None,
            is_outside: false,
            previewed: false,
            reply: String::new(),
            has_denied: false,
            is_read_only: false,
        }
    }

    pub(super) fn paint(&self) -> Paint {
        self.paint
    }

    /// Whether the model's words are shown here, not only its work.
    fn speaks(&self) -> bool {
        matches!(self.answers, Answers::Screen)
    }

    /// Returns where the model's words go.
    pub(super) fn answers_mut(&mut self) -> &mut Answers {
        &mut self.answers
    }

    /// Writes text above the status line.
    pub(super) fn write_text(&mut self, text: &str) {
        self.wipe_status();
        // A closed terminal ends the turn by its hang-up, not here.
        let _ = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
    }

    /// Writes what a command of the person's wrote to its terminal.
    pub(super) fn write_bytes(&mut self, bytes: &[u8]) {
        let _ = self.out.write_all(bytes).and_then(|()| self.out.flush());
    }

    pub(super) fn write_line(&mut self, text: &str) {
        self.write_text(&format!("{text}\n"));
    }

    /// Writes a line of respool's own; on a terminal it is wrapped between words.
    pub(super) fn write_note(&mut self, text: &str, paint: impl Fn(&str) -> String) {
        self.measure_terminal();
        let text = make_visible(text);
        let text = if self.moves { wrap_text(&text, self.width) } else { text };
        let lines: Vec<String> = text.lines().map(paint).collect();
        self.write_line(&lines.join("\n"));
    }

    /// Shows an earlier question and the first rows of its answer, unless only the work is shown.
    pub(super) fn show_exchange(&mut self, question: &str, answer: &str, is_last: bool) {
        if !self.speaks() {
            return;
        }
        self.measure_terminal();
        let question = one_line(question, self.width.saturating_sub(2));
        self.write_line(&format!("\n{} {}", self.paint.cyan("›"), self.paint.bold(&question)));
        let mut markdown = Markdown::new(self.paint, self.moves, self.width);
        let rendered = markdown.push(answer) + &markdown.finish();
        let lines: Vec<&str> = rendered.trim_end().lines().collect();
        let shown = lines.len().min(if is_last { LAST_ROWS } else { PAST_ROWS });
        for line in &lines[..shown] {
            self.write_line(line);
        }
        if lines.len() > shown {
            let count = format_count(lines.len() - shown, "more line");
            self.write_line(&self.paint.dim(&format!("… {count} (/save writes all)")));
        }
    }

    /// Returns true in the read-only mode.
    pub(super) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Sets whether the status line names the read-only mode.
    pub(super) fn set_read_only(&mut self, is_on: bool) {
        self.is_read_only = is_on;
    }

    /// Returns true if a call was denied.
    pub(super) fn has_denied(&self) -> bool {
        self.has_denied
    }

    /// Begins a turn.
    pub(super) fn begin_turn(&mut self) {
        self.markdown = Markdown::new(self.paint, self.moves, self.width);
        self.measure_terminal();
        (self.awaits_summary, self.asked_in_turn, self.is_in_turn) = (false, Duration::ZERO, true);
        self.unusable = None;
        self.reasoning.begin_turn();
    }

    /// Returns how long questions of this turn waited for the person.
    pub(super) fn asked_in_turn(&self) -> Duration {
        self.asked_in_turn
    }

    /// Shows what is waited for, until [`Self::end_turn`].
    pub(super) fn begin_wait(&mut self, what: &str) {
        self.begin_turn();
        self.set_status(what);
    }

    /// Reads the size of the terminal, which may have changed.
    fn measure_terminal(&mut self) {
        if self.moves {
            self.width = terminal_width();
            self.markdown.resize(self.width, terminal_columns());
        }
    }

    /// Shows anything except a question.
    pub(super) fn show(&mut self, shown: Shown) {
        if let Answers::Events(events) = &mut self.answers {
            events.push(&shown);
        }
        match shown {
            Shown::Asks { summary } => {
                (self.pieces, self.bytes, self.is_begun) = (0, 0, false);
                self.reasoning.begin_reply();
                self.reply.clear();
                self.breaks.clear();
                if std::mem::replace(&mut self.awaits_summary, summary) && !summary {
                    let paint = self.paint;
                    let note = if self.summary_failed { SHORTENED } else { SUMMARISED };
                    self.write_note(note, |line| paint.dim(line));
                }
                self.summary_failed = false;
                if let Some(why) = self.unusable.take().filter(|_| !summary) {
                    self.write_warning(&format!("{why}; asking again"));
                }
                self.set_status(if summary { "summarising the conversation" } else { MODEL_AWAITED });
            }
            Shown::ServerAwaited(why) => {
                let why = why.as_deref().map_or_else(|| MODEL_AWAITED.to_owned(), |why| one_line(why, 300));
                self.name_activity(&why);
            }
            Shown::Reasoning(text) => {
                self.count_piece(&text);
                self.name_activity("thinking");
                self.reasoning.push(&text);
            }
            Shown::Output(tail) => {
                keep_end(&mut self.output, &tail.take(), OUTPUT);
                self.draw();
            }
            Shown::Content(text) => self.show_content(&text),
            Shown::Replied { content, reasoning, refused, calls } => {
                self.unusable = (calls == 0 && refused.is_empty()).then(|| shown::why_unusable(&content));
                self.reasoning.end_reply(&reasoning);
                self.end_reply(&content);
                refused.iter().for_each(|why| self.write_warning(why));
            }
            Shown::ModelFailed { text, again } => {
                self.summary_failed = self.awaits_summary;
                self.model_failed(&text, again);
            }
            Shown::Begins { tool, arguments, again } => self.begin_call(&tool, &arguments, again),
            Shown::Ended { tool, ended, display } => self.end_call(&tool, &ended, display.as_deref()),
            Shown::Note(text) => self.write_line(&self.paint.dim(&one_line(&text, 160))),
            Shown::Warning(text) => self.write_warning(&one_line(&text, 600)),
            Shown::NotKept => {
                self.write_warning("the conversation cannot be kept on disk at present; it goes on");
            }
            // No person can answer a question that reaches this.
            Shown::Asking(asking) => drop(asking.answer.send(Consent::UNASKED)),
        }
    }

    fn write_warning(&mut self, text: &str) {
        let paint = self.paint;
        self.write_note(&format!("! {text}"), |line| paint.magenta(line));
    }

    fn count_piece(&mut self, text: &str) {
        self.pieces += 1;
        self.bytes += text.len();
        self.last_piece = Instant::now();
    }

    fn show_content(&mut self, text: &str) {
        self.count_piece(text);
        self.reply.push_str(text);
        match &self.answers {
            Answers::Screen => {
                self.name_activity("writing");
                let lines = self.markdown.push(text);
                if !lines.is_empty() {
                    self.write_answer(&lines);
                    self.draw();
                }
            }
            Answers::Plain(_) => self.write_plain(text),
            Answers::Events(_) => {}
        }
    }

    /// Writes words to standard output, which may be the same terminal: the status line gives way.
    fn write_plain(&mut self, text: &str) {
        self.status = None;
        self.wipe_status();
        if let Answers::Plain(plain) = &mut self.answers {
            plain.push(text);
        }
    }

    /// Writes lines of the answer. One empty line separates them from the text above; none is left below.
    fn write_answer(&mut self, lines: &str) {
        let lines = if self.is_begun { lines } else { lines.trim_start_matches('\n') };
        let text = lines.trim_end_matches('\n');
        if text.is_empty() {
            self.breaks.push_str(lines);
            return;
        }
        let before = if self.is_begun { std::mem::take(&mut self.breaks) } else { "\n".to_owned() };
        self.is_begun = true;
        self.write_text(&format!("{before}{text}\n"));
        lines[text.len()..].get(1..).unwrap_or_default().clone_into(&mut self.breaks);
    }

    fn end_reply(&mut self, content: &str) {
        self.reply.clear();
        match &self.answers {
            Answers::Screen => {
                let whole = if self.pieces == 0 { self.markdown.push(content) } else { String::new() };
                let rest = format!("{whole}{}", self.markdown.finish());
                self.write_answer(&rest);
            }
            Answers::Plain(plain) if !plain.is_begun() => self.write_plain(content),
            Answers::Plain(_) | Answers::Events(_) => {}
        }
        self.end_plain();
        self.status = None;
        self.wipe_status();
    }

    fn end_plain(&mut self) {
        if let Answers::Plain(plain) = &mut self.answers {
            plain.end_reply();
        }
    }

    fn model_failed(&mut self, text: &str, again: bool) {
        let rest = self.markdown.finish();
        if self.speaks() {
            self.write_answer(&rest);
        }
        self.end_plain();
        if again {
            self.write_warning(&format!("{}; asking again", one_line(text, 300).trim_end_matches('.')));
        }
        self.status = None;
        self.wipe_status();
    }

    fn begin_call(&mut self, tool: &str, arguments: &Map<String, Value>, again: bool) {
        (self.asked, self.previewed, self.is_open) = (Duration::ZERO, false, true);
        self.is_outside = false;
        // The model wrote this name; such a tool may not exist.
        let tool = &one_line(tool, 60);
        let again = if again { " (again)" } else { "" };
        let whole = || if arguments.is_empty() { String::new() } else { json!(arguments).to_string() };
        self.subject = named_subject(arguments).map_or_else(whole, |subject| subject.trim().to_owned());
        let subject = self.subject.replace('\n', " ⏎ ");
        let on = one_line(&subject, self.width.saturating_sub(tool.chars().count() + again.len() + 4));
        let head = format!("{} {}{again} {on}", self.paint.cyan("●"), self.paint.bold(tool));
        self.write_line(&format!("\n{head}"));
        (self.pieces, self.bytes) = (0, 0);
        self.reasoning.begin_reply();
        self.output.clear();
        self.set_status(&format!("{tool} runs"));
    }

    fn end_call(&mut self, tool: &str, ended: &ToolEnd, display: Option<&str>) {
        (self.status, self.is_open) = (None, false);
        self.has_denied |= ended.outcome == CallOutcome::Denied;
        let took = Duration::from_millis(ended.took).saturating_sub(self.asked);
        let number = (ended.outcome != CallOutcome::Denied).then(|| {
            self.outputs.add(CallOutput {
                tool: tool.to_owned(),
                subject: std::mem::take(&mut self.subject),
                text: display.unwrap_or(&ended.text).to_owned(),
                is_change: display.is_some(),
            })
        });
        let how = match ended.outcome {
            CallOutcome::Denied if self.asked > Duration::ZERO => "not done".to_owned(),
            CallOutcome::Denied => refusal_text(&ended.text),
            _ => {
                let place = if self.is_outside { " · outside the sandbox" } else { "" };
                let all = number.filter(|_| is_first_line_shown(tool, ended, display));
                let all = all.map_or_else(String::new, |number| {
                    format!(
                        " · {} (/output {number} shows all)",
                        format_count(ended.text.lines().count(), "line")
                    )
                });
                format!("{}{all}{place} · {}", outcome_text(tool, ended, display), format_seconds(took))
            }
        };
        let how = if self.moves { wrap_text(&how, self.width.saturating_sub(4)) } else { how };
        let painted = how.lines().map(|line| match ended.outcome {
            CallOutcome::Ok => self.paint.dim(line),
            CallOutcome::Denied => self.paint.magenta(line),
            _ => self.paint.red(line),
        });
        let painted = painted.collect::<Vec<_>>().join("\n    ");
        self.write_line(&format!("  {} {painted}", self.paint.dim("└")));
        let Some(number) = number else { return };
        match display.filter(|_| !self.previewed) {
            Some(diff) => self.show_change(diff, number),
            None if tool == "shell_command" => self.show_output(&ended.text, number),
            None => {}
        }
    }

    /// Returns the reasoning of the turn.
    pub(super) fn reasoning_mut(&mut self) -> &mut Reasoning {
        &mut self.reasoning
    }

    /// Forgets what belongs to a conversation that was left.
    pub(super) fn forget_conversation(&mut self) {
        self.outputs = Outputs::default();
        self.reasoning.begin_turn();
    }

    /// Returns the results of the calls.
    pub(super) fn outputs_mut(&mut self) -> &mut Outputs {
        &mut self.outputs
    }

    /// Says where hidden lines of a result are, if a prompt follows.
    fn output_hint(&self, number: usize, what: &str) -> String {
        if self.speaks() && self.moves { format!(" (/output {number} shows {what})") } else { String::new() }
    }

    fn show_output(&mut self, text: &str, number: usize) {
        let text = make_visible(text);
        let shown: Vec<&str> =
            text.lines().filter(|line| !line.trim().is_empty() && !is_note(line)).collect();
        // A line that says that one is missing would take its place.
        let skipped = match shown.len().saturating_sub(OUTPUT_LINES) {
            1 => 0,
            some => some,
        };
        let width = self.width.saturating_sub(4);
        let mut out = String::new();
        if skipped > 0 {
            let row = if is_in_part(&text) {
                format!("… earlier lines{}", self.output_hint(number, "their beginning and end"))
            } else {
                let count = format_count(skipped, "earlier line");
                format!("… {count}{}", self.output_hint(number, "all"))
            };
            out.push_str(&self.paint_block(&wrap_text(&row, width)));
        }
        for line in &shown[skipped..] {
            // A remark of respool's says at its end what to do.
            let is_remark = line.len() < 500 && line.starts_with('[') && line.ends_with(']');
            let row = if is_remark { wrap_text(line, width) } else { cut_line(line, width) };
            out.push_str(&self.paint_block(&row));
        }
        self.write_text(&out);
    }

    fn paint_block(&self, text: &str) -> String {
        text.lines().map(|row| self.paint.dim(&format!("    {row}\n"))).collect()
    }

    fn write_rows(&mut self, rows: &[Row]) {
        self.write_text(&self.paint_rows(rows));
    }

    fn paint_rows(&self, rows: &[Row]) -> String {
        let mut out = String::new();
        for Row { kind, text } in rows {
            let painted = match kind {
                Kind::Added => self.paint.green(text),
                Kind::Removed => self.paint.red(text),
                Kind::Context => self.paint.dim(text),
                Kind::Command => text.clone(),
            };
            out.extend(["    ", &painted, "\n"]);
        }
        out
    }

    /// Shows what a call changed, or the beginning of it.
    fn show_change(&mut self, diff: &str, number: usize) {
        let rows = preview::diff_rows(diff, self.width);
        let shown = rows.len().min(MOST_ROWS);
        self.write_rows(&rows[..shown]);
        if rows.len() > shown {
            let (count, hint) =
                (format_count(rows.len() - shown, "more line"), self.output_hint(number, "all"));
            self.write_line(&self.paint.dim(&format!("    … {count}{hint}")));
        }
    }

    /// Changes what the status line says, and not since when.
    fn name_activity(&mut self, what: &str) {
        if let Some(status) = self.status.as_mut().filter(|status| status.what != what) {
            what.clone_into(&mut status.what);
        }
    }

    fn set_status(&mut self, what: &str) {
        self.status = Some(Status { what: what.to_owned(), since: Instant::now(), frame: 0 });
        self.tick();
    }

    /// Shows what the person has typed for the next prompt.
    pub(super) fn set_typed(&mut self, typed: TypedText) {
        self.typed = if typed.text == END { TypedText::default() } else { typed };
    }

    /// Sets what they had typed before the turn.
    pub(super) fn set_draft(&mut self, draft: TypedText) {
        self.draft = draft;
    }

    /// Returns true if what they type now is a line of its own.
    pub(super) fn awaits_fresh_line(&self) -> bool {
        self.draft.is_finished()
    }

    /// Leaves what was drawn at the bottom: a shell has written below it.
    pub(super) fn forget_drawn(&mut self) {
        self.drawn.text.clear();
    }

    /// Moves what is at the bottom: called ten times a second.
    pub(super) fn tick(&mut self) {
        self.measure_terminal();
        if let Some(status) = &mut self.status {
            status.frame += 1;
        }
        self.draw();
    }

    /// Draws the text that is not complete and the status line below it.
    fn draw(&mut self) {
        let Some(status) = self.status.as_ref().filter(|_| self.moves) else { return };
        let preview = match self.is_open {
            true => self.output_preview(),
            false if self.speaks() => self.markdown.preview(),
            false => String::new(),
        };
        // Some terminals keep a copy of a screen that is erased as a whole.
        let room = terminal_height() - 4;
        let preview = last_rows(preview.trim_end_matches('\n'), self.width, room);
        let breaks = if self.is_begun || self.is_open { self.breaks.as_str() } else { "\n" };
        let above = if preview.is_empty() { String::new() } else { format!("{breaks}{preview}\n") };
        let line = self.paint.dim(&self.status_line(status, preview.is_empty()));
        let drawn = Drawn { text: above + &line + &self.typed_line(), columns: terminal_columns() };
        let codes =
            std::mem::replace(&mut self.drawn, drawn).erasing_codes(terminal_columns(), terminal_height());
        let written = format!("{codes}{UNWRAPPED}{}{WRAPPED}", self.drawn.text);
        let _ = self.out.write_all(written.as_bytes()).and_then(|()| self.out.flush());
    }

    /// Returns the line below the status line: what the person has typed for the next prompt.
    fn typed_line(&self) -> String {
        let mut typed = self.draft.clone();
        typed.append(&self.typed);
        if typed.text == END {
            return self.paint.dim("\nleaves when this turn ends");
        }
        let does = if command::is_for_the_chat(typed.text.lines().next().unwrap_or_default()) {
            "runs"
        } else {
            "sent"
        };
        let sent = match typed.finished_length() {
            0 => String::new(),
            _ if typed.is_finished() => format!(" · {does} when this turn ends"),
            _ => format!(" · up to the last ⏎ {does} when this turn ends"),
        };
        let room = self.width.saturating_sub(PROMPT.chars().count() + 1 + sent.chars().count());
        match end_of(&typed.text.replace('\n', " ⏎ "), room) {
            typed if typed.is_empty() => typed,
            typed => self.paint.dim(&format!("\n{PROMPT}{typed}{sent}")),
        }
    }

    /// Returns the last lines that the running command wrote.
    fn output_preview(&self) -> String {
        // A progress bar writes over its own line.
        let last =
            |line: &str| line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default().to_owned();
        let lines: Vec<String> =
            self.output.lines().map(last).filter(|line| !line.trim().is_empty()).collect();
        let shown = &lines[lines.len().saturating_sub(OUTPUT_LINES)..];
        let row = |line: &String| {
            let line = cut_line(&make_visible(&plain_text(line)), self.width.saturating_sub(4));
            self.paint.dim(&format!("    {line}\n"))
        };
        shown.iter().map(row).collect()
    }

    /// Returns the status line: the current activity, its duration, the reply's tokens, and the end of the
    /// reasoning.
    fn status_line(&self, status: &Status, has_thought: bool) -> String {
        let spinner = SPINNER[status.frame % SPINNER.len()];
        // Most servers send one token per piece; some send several.
        let tokens = self.pieces.max(self.bytes / BYTES_PER_TOKEN);
        let count = format_thousands(tokens as u64);
        let tokens = if tokens > 0 { format!(" · {count} tokens") } else { String::new() };
        let silent = self.last_piece.elapsed();
        let silence = if self.pieces > 0 && silent >= SILENCE {
            format!(" · nothing for {}", format_seconds(silent))
        } else {
            String::new()
        };
        let seconds = format_seconds(status.since.elapsed());
        let stop = if self.speaks() && status.since.elapsed() >= STOP_HINT { " · Esc stops" } else { "" };
        let mode = if self.is_read_only { "read-only · " } else { "" };
        let line = format!("{spinner} {mode}{} · {seconds}{tokens}{silence}{stop}", status.what);
        let room = self.width.saturating_sub(line.chars().count() + 6);
        let tail = if has_thought { end_of(self.reasoning.reply_text(), room) } else { String::new() };
        let tail = if tail.is_empty() || room < 10 { String::new() } else { format!(" · {tail}") };
        let rows = wrap_text(&(line + &tail), self.width);
        rows.lines().flat_map(|row| split_columns(row, self.width)).collect::<Vec<_>>().join("\n")
    }

    fn wipe_status(&mut self) {
        if self.drawn.text.is_empty() {
            return;
        }
        self.measure_terminal();
        let codes = std::mem::take(&mut self.drawn).erasing_codes(terminal_columns(), terminal_height());
        let _ = self.out.write_all(codes.as_bytes()).and_then(|()| self.out.flush());
    }

    /// Describes for the model what a stopped turn had written: a part of the reply, or a command's output.
    pub(super) fn unfinished_text(&self) -> Option<String> {
        let (what, text) = if self.is_open {
            ("The person stopped the command, which had written", &self.output)
        } else {
            ("Your stopped reply began", &self.reply)
        };
        (!text.trim().is_empty()).then(|| format!("{what}:\n{}", text.trim_end()))
    }

    /// Ends the turn: removes the status line and shows the rest of the text.
    pub(super) fn end_turn(&mut self) {
        self.is_in_turn = false;
        let rest = self.markdown.finish();
        if self.speaks() {
            self.write_answer(&rest);
        }
        self.end_plain();
        self.status = None;
        self.wipe_status();
        if std::mem::take(&mut self.is_open) {
            let output = self.output_preview();
            self.write_text(&output);
            let mark = self.paint.dim("└");
            self.write_line(&format!("  {mark} stopped; it may have taken effect in part"));
        }
    }
}

/// Returns the columns that respool's own text fills at most.
fn terminal_width() -> usize {
    terminal_columns().min(120)
}

/// Returns the rows of the terminal.
fn terminal_height() -> usize {
    let (_, rows) = termimad::terminal_size();
    usize::from(rows).clamp(10, 500)
}

/// Returns the last lines of `text` that fit into `rows` rows of a terminal.
fn last_rows(text: &str, width: usize, rows: usize) -> &str {
    let mut room = rows;
    let mut start = text.len();
    for line in text.split_inclusive('\n').rev() {
        let Some(left) = room.checked_sub(rows_of(line, width)) else { break };
        (room, start) = (left, start - line.len());
    }
    &text[start..]
}

impl Drawn {
    /// Returns the codes that erase it row by row. Each line has a row, whatever the terminal's idea of its
    /// width: it was drawn unwrapped. A terminal that is narrower now has wrapped it again.
    fn erasing_codes(&self, columns: usize, height: usize) -> String {
        if self.text.is_empty() {
            return String::new();
        }
        let rows_of = |line: &str| match columns {
            columns if columns >= self.columns => 1,
            columns => rows_of(&without_joined_emoji(line), columns),
        };
        let rows: usize = self.text.split('\n').map(rows_of).sum();
        format!("\r\u{1b}[K{}", "\u{1b}[1A\u{1b}[K".repeat(rows.min(height) - 1))
    }
}

/// Returns the rows that a line takes in a terminal of this width. The line may have styles.
fn rows_of(line: &str, width: usize) -> usize {
    let mut is_style = false;
    let mut columns = 0;
    for c in line.trim_end_matches('\n').chars() {
        match c {
            '\u{1b}' => is_style = true,
            'm' if is_style => is_style = false,
            _ if is_style => {}
            _ => columns += char_width(c),
        }
    }
    columns.div_ceil(width).max(1)
}

/// Returns the end of a text on one line of `width` columns.
fn end_of(text: &str, width: usize) -> String {
    let flat = make_visible(&text.replace(['\n', '\r', '\t'], " "));
    let mut room = width;
    let fits = |c: &char| {
        let fits = char_width(*c) <= room;
        room = room.saturating_sub(char_width(*c));
        fits
    };
    let kept: Vec<char> = flat.trim_end().chars().rev().take_while(fits).collect();
    kept.into_iter().rev().collect::<String>().trim_start().to_owned()
}

#[cfg(test)]
mod tests;
