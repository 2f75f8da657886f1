use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::super::answers::PlainText;
use super::super::approval::{Asking, OutputTail, SessionGrant};
use super::*;
use tools::{QuestionKind, Target};

/// The written text, for assertions.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn output(text: &str) -> Shown {
    let tail = OutputTail::default();
    tail.push(text);
    Shown::Output(tail)
}

fn shown(speaks: bool, all: Vec<Shown>) -> String {
    let paper = Paper::default();
    // Both outputs in one.
    let plain = || Answers::Plain(PlainText::new(Box::new(paper.clone())));
    let answers = if speaks { Answers::Screen } else { plain() };
    let mut screen = Screen::new(Box::new(paper.clone()), Paint(false), false, answers);
    screen.begin_turn();
    all.into_iter().for_each(|shown| screen.show(shown));
    screen.end_turn();
    String::from_utf8(paper.0.lock().unwrap().clone()).unwrap()
}

fn begins(tool: &str, arguments: &Value) -> Shown {
    Shown::Begins { tool: tool.into(), arguments: arguments.as_object().cloned().unwrap(), again: false }
}

fn ended(tool: &str, how: CallOutcome, text: &str, display: Option<&str>) -> Shown {
    let ended = ToolEnd::new(how, text, 1_500);
    Shown::Ended { tool: tool.into(), ended, display: display.map(str::to_owned) }
}

fn content(text: &str) -> Shown {
    Shown::Content(text.into())
}

fn replied(content: &str, calls: usize) -> Shown {
    Shown::Replied { content: content.into(), reasoning: String::new(), calls, refused: Vec::new() }
}

#[test]
fn the_last_answer_is_shown_whole() {
    let paper = Paper::default();
    let mut screen = Screen::new(Box::new(paper.clone()), Paint(false), false, Answers::Screen);
    let answer: Vec<String> = (1..=30).map(|line| line.to_string()).collect();
    screen.show_exchange("a", &answer.join("\n"), false);
    screen.show_exchange("b", &answer.join("\n"), true);
    let text = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("\n12\n… 18 more lines (/save writes all)\n"), "{text}");
    assert!(text.ends_with("\n29\n30\n"), "{text}");
}

#[test]
fn a_turn_reads_from_top_to_bottom() {
    let turn = vec![
        Shown::Asks { summary: false },
        Shown::Reasoning("I should look.".into()),
        content("I look.\n\n"),
        replied("I look.\n\n", 1),
        begins("shell_command", &json!({"command": "ls"})),
        ended("shell_command", CallOutcome::Ok, "a\n\nb\n", None),
        Shown::Asks { summary: false },
        content("Two "),
        content("files.\n\n\nDone."),
        replied("Two files.\n\n\nDone.", 0),
    ];
    assert_eq!(
        shown(true, turn),
        "\nI look.\n\n● shell_command ls\n  └ ok · 1.5 s\n    a\n    b\n\nTwo files.\n\n\nDone.\n"
    );
}

#[test]
fn with_a_prompt_all_words_are_standard_output() {
    let paper = Paper::default();
    let answers = Answers::Plain(PlainText::new(Box::new(paper.clone())));
    let mut screen = Screen::new(Box::new(std::io::sink()), Paint(false), true, answers);
    let written = || String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
    screen.begin_turn();
    screen.show(Shown::Asks { summary: false });
    screen.show(content("I lo"));
    assert_eq!(written(), "I lo", "it comes as it is written");
    screen.show(content("ok."));
    screen.show(replied("I look.", 1));
    screen.show(begins("shell_command", &json!({"command": "ls"})));
    screen.show(ended("shell_command", CallOutcome::Ok, "a\n", None));
    screen.show(Shown::Asks { summary: false });
    screen.show(replied("Not **streamed**.", 0));
    screen.end_turn();
    assert_eq!(written(), "I look.\n\nNot **streamed**.\n");
}

#[test]
fn a_summary_is_mentioned() {
    let turn = vec![Shown::Asks { summary: true }, Shown::Asks { summary: false }, replied("Done.", 0)];
    let out = shown(true, turn);
    assert!(out.contains("The conversation was summarised") && out.ends_with("\n\nDone.\n"), "{out}");
    assert!(!shown(true, vec![Shown::Asks { summary: true }]).contains("was summarised"));
    // Regression: the same was said when the model could not summarise.
    let failed = Shown::ModelFailed { text: "boom".into(), again: true };
    let out = shown(true, vec![Shown::Asks { summary: true }, failed, Shown::Asks { summary: false }]);
    assert!(out.contains("could not summarise") && !out.contains("was summarised"), "{out}");
}

#[test]
fn an_unstreamed_reply_is_shown() {
    assert_eq!(
        shown(true, vec![Shown::Asks { summary: false }, replied("All at once.", 0)]),
        "\nAll at once.\n"
    );
}

#[test]
fn a_call_that_was_stopped_is_not_left_open() {
    let out = shown(true, vec![begins("shell_command", &json!({"command": "sleep 9"}))]);
    assert!(
        out.ends_with("● shell_command sleep 9\n  └ stopped; it may have taken effect in part\n"),
        "{out}"
    );
}

#[test]
fn long_results_say_how_to_see_them() {
    let listed = ended("fs__list", CallOutcome::Ok, "a\nb\nc\n", None);
    let out = shown(true, vec![begins("fs__list", &json!({"path": "."})), listed]);
    assert!(out.contains("└ a · 3 lines (/output 1 shows all) · 1.5 s"), "{out}");
    let one = ended("fs__list", CallOutcome::Ok, "a\n", None);
    let out = shown(true, vec![begins("fs__list", &json!({"path": "."})), one]);
    assert!(out.contains("└ a · 1.5 s"), "{out}");
}

#[test]
fn a_silent_reply_says_so() {
    let mut screen = Screen::new(Box::new(Paper::default()), Paint(false), true, Answers::Screen);
    screen.begin_turn();
    screen.show(Shown::Asks { summary: false });
    screen.show(content("Half a wo"));
    let line = |screen: &Screen| screen.status_line(screen.status.as_ref().unwrap(), true);
    assert!(!line(&screen).contains("nothing for"), "{}", line(&screen));
    screen.last_piece -= SILENCE;
    assert!(line(&screen).contains(" · nothing for 15"), "{}", line(&screen));
}

#[test]
fn a_second_question_says_why() {
    let asks = || Shown::Asks { summary: false };
    let out = shown(true, vec![asks(), replied("<tool_call>{", 0), asks(), replied("Well.", 0)]);
    assert_eq!(
        out.matches("! the reply looks like a call that could not be read; asking again").count(),
        1,
        "{out}"
    );
    let out = shown(true, vec![asks(), replied("I look.", 1), asks(), replied("Well.", 0)]);
    assert!(!out.contains("asking again"), "{out}");
}

#[test]
fn a_running_command_shows_the_end_of_its_output() {
    let paper = Paper::default();
    let mut screen = Screen::new(Box::new(paper.clone()), Paint(false), true, Answers::Screen);
    screen.begin_turn();
    screen.show(begins("shell_command", &json!({"command": "make"})));
    let lines = (0..20).map(|number| format!("line {number}")).collect::<Vec<_>>().join("\n") + "\n";
    screen.show(output(&lines));
    screen.show(output("\u{1b}[2Jdone 1 %\rdone \u{1b}[32m50\u{1b}[0m %\r"));
    let preview = screen.output_preview();
    let found: Vec<&str> = preview.lines().map(str::trim).collect();
    assert_eq!(found, ["line 15", "line 16", "line 17", "line 18", "line 19", "done 50 %"]);
    screen.show(ended("shell_command", CallOutcome::Ok, "all\n", None));
    let drawn = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
    assert!(drawn.contains("    line 19\n") && !drawn.contains("line 13"), "{drawn}");
    assert!(drawn.ends_with("    all\n"), "{drawn}");
}

/// Regression: Ctrl-C erased the output of a command, and the model did not learn it.
#[test]
fn what_was_written_before_a_stop_is_kept() {
    let paper = Paper::default();
    let mut screen = Screen::new(Box::new(paper.clone()), Paint(false), true, Answers::Screen);
    screen.begin_turn();
    screen.show(Shown::Asks { summary: false });
    screen.show(content("Half a wo"));
    assert_eq!(screen.unfinished_text().unwrap(), "Your stopped reply began:\nHalf a wo");
    screen.show(replied("Half a word.", 1));
    assert_eq!(screen.unfinished_text(), None);
    screen.show(begins("shell_command", &json!({"command": "make"})));
    screen.show(output("built a\n"));
    assert_eq!(
        screen.unfinished_text().unwrap(),
        "The person stopped the command, which had written:\nbuilt a"
    );
    screen.end_turn();
    let drawn = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
    assert!(drawn.ends_with("    built a\n  └ stopped; it may have taken effect in part\n"), "{drawn}");
}

#[test]
fn the_status_says_what_is_waited_for() {
    let mut screen = Screen::new(Box::new(Paper::default()), Paint(false), true, Answers::Screen);
    screen.begin_turn();
    let said = |screen: &Screen| screen.status.as_ref().map(|status| status.what.clone()).unwrap();
    screen.show(Shown::Asks { summary: false });
    assert_eq!(said(&screen), "waiting for the model");
    screen.show(Shown::ServerAwaited(Some("connection refused; trying again for 43 s".into())));
    assert_eq!(said(&screen), "connection refused; trying again for 43 s");
    screen.show(Shown::ServerAwaited(None));
    assert_eq!(said(&screen), "waiting for the model");
    screen.show(Shown::Reasoning("Hm.".into()));
    assert_eq!(said(&screen), "thinking");
    screen.show(content("Yes."));
    assert_eq!(said(&screen), "writing");
}

#[test]
fn outcomes_are_short() {
    let check = |tool: &str, how: CallOutcome, text: &str, display: Option<&str>, expected: &str| {
        let out = shown(true, vec![ended(tool, how, text, display)]);
        assert!(out.contains(expected), "{expected:?} in {out:?}");
    };
    check("shell_command", CallOutcome::Ok, "[no output]", None, "└ ok · 1.5 s\n");
    check("read_file", CallOutcome::Ok, "a\nb\n", None, "└ 2 lines");
    let part = "a\nb\n\n[lines 1 to 2; the file goes on; more]";
    check("read_file", CallOutcome::Ok, part, None, "└ lines 1 to 2 of a longer file · 1.5 s\n");
    check(
        "edit_file",
        CallOutcome::Ok,
        "Made 1 edit",
        Some("--- a\n+++ a\n-x\n+y\n+z\n"),
        "└ +2 −1 · 1.5 s\n        1 -x\n        1 +y\n        2 +z\n",
    );
    check("edit_file", CallOutcome::Failed, "a.txt does not exist", None, "└ a.txt does not exist");
    check("shell_command", CallOutcome::TimedOut, "", None, "└ took too long");
    check(
        "shell_command",
        CallOutcome::Denied,
        "`x` did not run: denied by rule 1. The same",
        None,
        "└ not done: denied by rule 1\n",
    );
}

#[test]
fn a_remark_hides_no_exit_code() {
    let check = |exit_code: Option<i32>, text: &str, expected: &str| {
        let ended = ToolEnd { exit_code, ..ToolEnd::new(CallOutcome::Ok, text, 1_500) };
        let out = shown(true, vec![Shown::Ended { tool: "shell_command".into(), ended, display: None }]);
        assert!(out.contains(expected), "{expected:?} in {out:?}");
    };
    check(Some(1), "x\n\n[exit code 1]", "└ exit code 1 · 1.5 s\n    x\n");
    check(
        Some(3),
        "x\n\n[exit code 3]\n[/tmp is empty]",
        "└ exit code 3 · 1.5 s\n    x\n    [/tmp is empty]\n",
    );
    check(Some(0), "[exit code 7]\n", "└ ok · 1.5 s\n");
    check(None, "x\n\n[ended by signal 9]\n[/tmp is empty]", "└ ended by signal 9 · 1.5 s\n    x\n");
}

#[test]
fn remarks_are_shown_whole() {
    let remark = format!("[/tmp is empty, {}: keep files in /w]", "as this directory is below it ".repeat(4));
    let out = shown(true, vec![ended("shell_command", CallOutcome::Ok, &format!("x\n{remark}"), None)]);
    assert!(out.ends_with("/w]\n"), "{out}");
    let list = format!("[{}]", "1,".repeat(400));
    let out = shown(true, vec![ended("shell_command", CallOutcome::Ok, &list, None)]);
    assert!(out.ends_with("…\n"), "{out}");
}

#[test]
fn output_that_was_cut_is_not_called_whole() {
    let lines = "line\n".repeat(20);
    let text = format!("{lines}\n[… 9 of 300 bytes left out here …]\n{lines}");
    let out = shown(true, vec![ended("shell_command", CallOutcome::Ok, &text, None)]);
    assert!(out.contains("    … earlier lines\n    line\n"), "{out}");
}

#[test]
fn long_output_and_long_diffs_are_capped() {
    let text: String =
        (0..100).flat_map(|line| ["line ".to_owned(), line.to_string(), "\n".to_owned()]).collect();
    let out = shown(true, vec![ended("shell_command", CallOutcome::Ok, &text, None)]);
    assert!(out.contains("… 94 earlier lines\n    line 94\n") && out.ends_with("line 99\n"), "{out}");
    let diff = format!("+{}", text.trim_end().replace('\n', "\n+"));
    let out = shown(true, vec![ended("write_file", CallOutcome::Ok, "", Some(&diff))]);
    assert!(out.contains("   40 +line 39\n    … 60 more lines\n") && !out.contains("+line 40\n"), "{out}");
}

#[test]
fn nothing_that_is_shown_acts_on_the_terminal() {
    let evil = "\u{1b}[2J\u{1b}]0;owned\u{7}\r\u{202e}x\n\u{9b}31m";
    let turn = vec![
        Shown::Asks { summary: false },
        Shown::Reasoning(evil.into()),
        content(evil),
        replied(evil, 1),
        begins("shell_command", &json!({"command": evil})),
        ended("shell_command", CallOutcome::Failed, evil, Some(evil)),
        begins(evil, &json!({"path": evil})),
        ended(evil, CallOutcome::Failed, evil, None),
        Shown::ModelFailed { text: evil.into(), again: true },
        Shown::Asks { summary: false },
        replied(evil, 0),
    ];
    for speaks in [true, false] {
        let out = shown(speaks, turn_again(&turn));
        assert!(out.chars().all(|c| c == '\n' || !(c.is_control() || c == '\u{202e}')), "{out:?}");
    }
}

/// Copies the turn; it contains no question, which could not be asked twice.
fn turn_again(turn: &[Shown]) -> Vec<Shown> {
    let again = |shown: &Shown| match shown {
        Shown::Reasoning(text) => Shown::Reasoning(text.clone()),
        Shown::Content(text) => Shown::Content(text.clone()),
        Shown::Replied { content, reasoning, calls, refused } => {
            let (content, reasoning, refused) = (content.clone(), reasoning.clone(), refused.clone());
            Shown::Replied { content, reasoning, calls: *calls, refused }
        }
        Shown::ModelFailed { text, again } => Shown::ModelFailed { text: text.clone(), again: *again },
        Shown::Begins { tool, arguments, again } => {
            Shown::Begins { tool: tool.clone(), arguments: arguments.clone(), again: *again }
        }
        Shown::Ended { tool, ended, display } => {
            Shown::Ended { tool: tool.clone(), ended: ended.clone(), display: display.clone() }
        }
        _ => Shown::Asks { summary: false },
    };
    turn.iter().map(again).collect()
}

#[tokio::test]
async fn a_question_after_the_turn_is_answered_no() {
    let mut screen = Screen::new(Box::new(Paper::default()), Paint(false), false, Answers::Screen);
    let (answer, answered) = oneshot::channel();
    screen.show(Shown::Asking(Asking {
        kind: QuestionKind::Call,
        tool: "write_file".into(),
        target: Target::Other,
        arguments: Map::new(),
        preview: None,
        always: SessionGrant::Never,
        stop: CancellationToken::new(),
        answer,
    }));
    assert_eq!(answered.await.unwrap(), Consent::UNASKED);
}

#[test]
fn the_end_of_a_long_thought_fits_its_place() {
    assert_eq!(end_of("one two three", 9), "two three");
    assert_eq!(end_of("漢字漢字", 5), "漢字");
    assert_eq!(end_of("a\nb\u{1b}", 20), "a b\\u{1b}");
}

/// Returns the rows that a terminal shows after this output.
fn terminal_rows(output: &str) -> Vec<String> {
    let mut rows = vec![String::new()];
    let mut at = 0;
    let mut rest = output;
    while let Some(c) = rest.chars().next() {
        if let Some(code) = rest.strip_prefix("\u{1b}[") {
            let end = code.find(|c: char| c.is_ascii_alphabetic()).unwrap();
            let count = code[..end].parse::<usize>().unwrap_or(0);
            match &code[end..=end] {
                "A" => {
                    at -= count;
                    // The rows below are erased already.
                    rows.truncate(at + 1);
                }
                "K" => rows[at].clear(),
                _ => {}
            }
            rest = &code[end + 1..];
            continue;
        }
        match c {
            '\n' => {
                at += 1;
                rows.resize_with(rows.len().max(at + 1), String::new);
            }
            '\r' => {}
            c => rows[at].push(c),
        }
        rest = &rest[c.len_utf8()..];
    }
    rows
}

#[test]
fn words_appear_before_their_line_is_complete() {
    let paper = Paper::default();
    let mut screen = Screen::new(Box::new(paper.clone()), Paint(false), true, Answers::Screen);
    let rows = || terminal_rows(&String::from_utf8(paper.0.lock().unwrap().clone()).unwrap());
    screen.begin_turn();
    screen.show(Shown::Asks { summary: false });
    screen.show(content("The first wo"));
    screen.tick();
    assert_eq!(rows()[..2], ["", "The first wo"]);
    assert!(rows()[2].contains("writing"), "{:?}", rows());
    screen.show(content("rd.\n\nThe sec"));
    screen.tick();
    assert_eq!(rows()[..4], ["", "The first word.", "", "The sec"]);
    screen.show(content("ond."));
    screen.show(replied("The first word.\n\nThe second.", 0));
    screen.end_turn();
    assert_eq!(rows(), ["", "The first word.", "", "The second.", ""]);
}

#[test]
fn typed_text_stands_below_the_status_line() {
    let paper = Paper::default();
    let mut screen = Screen::new(Box::new(paper.clone()), Paint(false), true, Answers::Screen);
    let rows = || terminal_rows(&String::from_utf8(paper.0.lock().unwrap().clone()).unwrap());
    screen.begin_turn();
    screen.show(Shown::Asks { summary: false });
    screen.set_typed(TypedText::draft("and then\nthat".into()));
    screen.tick();
    assert!(rows()[0].contains("waiting for the model") && rows()[1] == "❯ and then ⏎ that", "{:?}", rows());
    screen.set_typed(TypedText::message("and then\n".into()));
    screen.tick();
    assert_eq!(rows()[1], "❯ and then ⏎ · sent when this turn ends");
    screen.set_draft(TypedText::draft("look ".into()));
    screen.set_typed(TypedText { text: "here\nand".into(), ends: vec![5] });
    screen.tick();
    assert_eq!(rows()[1], "❯ look here ⏎ and · up to the last ⏎ sent when this turn ends");
    screen.set_draft(TypedText::message("/undo\n".into()));
    screen.set_typed(TypedText::default());
    screen.tick();
    assert_eq!(rows()[1], "❯ /undo ⏎ · runs when this turn ends");
    screen.end_turn();
    assert_eq!(rows(), [""]);
}

#[test]
fn long_lines_and_styles_are_counted_in_rows() {
    assert_eq!(rows_of("\u{1b}[36mab\u{1b}[0m", 2), 1);
    assert_eq!(rows_of("漢字", 3), 2);
    assert_eq!(rows_of("", 3), 1);
    assert_eq!(last_rows("a\nbcde\nf", 2, 3), "bcde\nf");
    assert_eq!(last_rows("a\nbcde\nf", 2, 2), "f");
    // Regression: a terminal that became narrower kept copies of what was drawn.
    let rows = |text: &str, columns, height| {
        let drawn = Drawn { text: text.into(), columns: 10 };
        drawn.erasing_codes(columns, height).matches("\u{1b}[K").count()
    };
    assert_eq!([rows("", 10, 9), rows("waiting", 10, 9), rows("one two\nwaiting", 10, 9)], [0, 1, 2]);
    assert_eq!([rows("one two\nwaiting", 4, 9), rows("one two\nwaiting", 4, 3)], [4, 3]);
    // Regression: joined emoji, which tmux shows in two columns, had the rows above erased.
    assert_eq!([rows("1234567 👩‍👩‍👧‍👦", 10, 9), rows("1234567 👩‍👩‍👧‍👦", 9, 9)], [1, 2]);
}
