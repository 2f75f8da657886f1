//! Markdown for a terminal, as it comes: complete lines leave rendered, tables when they are complete, and
//! [`Markdown::preview`] renders the rest. Without a terminal the text stays as the model wrote it.

use termimad::crossterm::style::{Attribute, Color};
use termimad::minimad::Alignment;
use termimad::{CompoundStyle, MadSkin};

use super::emphasis::with_clear_emphasis;
use super::paint::Paint;
use super::preview::split_columns;
use super::tables::{fit_columns, split_breaks, table_records};
use super::wrapping::wrap_styled;
use wire::visible::{char_width, make_visible, without_joined_emoji};

/// A text that is being written.
#[derive(Clone)]
pub(super) struct Markdown {
    skin: MadSkin,
    paint: Paint,
    /// False where nothing is rendered.
    is_rendered: bool,
    /// The columns of text and tables.
    width: usize,
    /// The columns of the terminal, which code may fill.
    columns: usize,
    /// The incomplete last line.
    line: String,
    /// The lines of a table that may continue.
    table: String,
    /// The marks that end the code block, and how far it is indented, as in an item of a list.
    fence: Option<(String, usize)>,
}

impl Markdown {
    pub(super) fn new(paint: Paint, is_rendered: bool, width: usize) -> Self {
        let skin = if paint.0 { coloured_skin() } else { plain_skin() };
        let (line, table) = (String::new(), String::new());
        Self { skin, paint, is_rendered, width, columns: width, line, table, fence: None }
    }

    /// Sets the new width of text, and that of the terminal.
    pub(super) fn resize(&mut self, width: usize, columns: usize) {
        (self.width, self.columns) = (width, columns);
    }

    /// Adds a piece and returns the lines that are complete now.
    pub(super) fn push(&mut self, text: &str) -> String {
        self.line.push_str(text);
        let mut out = String::new();
        while let Some(end) = self.line.find('\n') {
            let line: String = self.line.drain(..=end).collect();
            self.whole_line(line.trim_end_matches(['\n', '\r']), &mut out);
        }
        out
    }

    /// Renders what has not left yet, as it would look if the text ended here.
    pub(super) fn preview(&self) -> String {
        if self.line.is_empty() && self.table.is_empty() {
            return String::new();
        }
        self.clone().take_rest()
    }

    /// Ends the text and returns what is left of it. A block of code that was cut is closed.
    pub(super) fn finish(&mut self) -> String {
        let mut out = self.take_rest();
        if self.fence.take().is_some() {
            out.extend([self.paint.dim("  ╰").as_str(), "\n"]);
        }
        out
    }

    fn take_rest(&mut self) -> String {
        let mut out = String::new();
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.whole_line(&line, &mut out);
        }
        self.end_table(&mut out);
        out
    }

    fn whole_line(&mut self, line: &str, out: &mut String) {
        let line = make_visible(line.trim_end());
        if !self.is_rendered {
            out.push_str(&line);
            out.push('\n');
            return;
        }
        if self.fence.is_none() && line.trim_start().starts_with('|') {
            self.table.push_str(&without_joined_emoji(&line));
            self.table.push('\n');
            return;
        }
        self.end_table(out);
        match (&self.fence, code_fence(&line)) {
            (None, Some((marks, language))) => {
                out.push_str(&self.paint.dim(&format!("  ╭ {language}")));
                out.push('\n');
                self.fence = Some((marks, line.len() - line.trim_start_matches(' ').len()));
            }
            (Some((open, _)), Some((marks, ""))) if marks.starts_with(open.as_str()) => {
                out.push_str(&self.paint.dim("  ╰"));
                out.push('\n');
                self.fence = None;
            }
            (Some((_, indent)), _) => {
                let own = line.len() - line.trim_start_matches(' ').len();
                self.render_code(&line[own.min(*indent)..], out);
            }
            (None, None) => self.render_line(&line, out),
        }
    }

    fn end_table(&mut self, out: &mut String) {
        let table = std::mem::take(&mut self.table);
        if table.is_empty() {
            return;
        }
        if let Some(records) = table_records(&table, self.width) {
            return records.iter().for_each(|line| self.render_line(line, out));
        }
        let rows = table.lines().flat_map(split_breaks);
        let plain = |row: String| with_clear_emphasis(&with_plain_marks(&with_plain_links(&row)));
        let rows = fit_columns(rows.map(plain).collect(), self.width);
        self.render_text(&rows.join("\n"), self.width, 0, out);
    }

    /// Renders a line of code; one that the terminal would wrap keeps its margin.
    fn render_code(&self, line: &str, out: &mut String) {
        for (index, part) in split_columns(line, self.columns.saturating_sub(4).max(8)).iter().enumerate() {
            let margin = if index == 0 { "  " } else { "  ┊ " };
            out.extend([margin, &self.paint.cyan(part), "\n"]);
        }
    }

    /// Renders a line. The renderer takes text behind four spaces for code; it belongs to a list.
    fn render_line(&self, line: &str, out: &mut String) {
        let text = line.trim_start_matches(' ');
        if text.len() >= 3 && ['*', '_', '='].iter().any(|mark| text.chars().all(|c| c == *mark)) {
            return self.render_text("---", self.width, 0, out);
        }
        let indent = match line.len() - text.len() {
            ..4 => 0,
            spaces if is_list_item(text) => spaces - 3,
            spaces => spaces,
        };
        let indent = indent.min(self.width / 2);
        let line =
            if indent > 0 && is_list_item(text) { format!("   {text}") } else { line[indent..].to_owned() };
        let line = with_clear_emphasis(&with_plain_marks(&with_plain_links(&with_boxes(&line))));
        let has_wide = line.chars().any(|c| char_width(c) > 1);
        if has_wide && !text.starts_with('>') {
            // The renderer breaks lines only at spaces.
            let whole = self.skin.text(&line, None).to_string();
            let wrapped = wrap_styled(whole.trim_end_matches('\n'), self.width - indent);
            return push_rows(&wrapped, indent, out);
        }
        self.render_text(&line, self.width - indent, indent, out);
    }

    fn render_text(&self, text: &str, width: usize, indent: usize, out: &mut String) {
        let rendered = self.skin.text(text, Some(width)).to_string();
        push_rows(rendered.trim_end_matches('\n'), indent, out);
    }
}

fn push_rows(rows: &str, indent: usize, out: &mut String) {
    for row in rows.split('\n') {
        out.extend([&" ".repeat(indent), row, "\n"]);
    }
}

/// Returns true for an item of a list.
fn is_list_item(text: &str) -> bool {
    let number = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_numbered = number.len() < text.len() && [". ", ") "].iter().any(|mark| number.starts_with(mark));
    is_numbered || ["- ", "* ", "+ "].iter().any(|mark| text.starts_with(mark))
}

/// Draws the boxes of a list of tasks.
fn with_boxes(line: &str) -> String {
    let Some((before, text)) = line.split_once("] ") else { return line.to_owned() };
    match before.trim_start() {
        "- [ " | "* [ " => line.replacen("[ ]", "☐", 1),
        "- [x" | "- [X" | "* [x" | "* [X" => format!("{}☑ {text}", before.trim_end_matches(['x', 'X', '['])),
        _ => line.to_owned(),
    }
}

/// Writes links as their text with the address behind it: `text (address)`.
fn with_plain_links(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('[') {
        out.push_str(before);
        let is_image = before.ends_with('!');
        let link = after.split_once("](").and_then(|(text, more)| {
            let (address, end) = more.split_once(')')?;
            let is_link = !text.contains(['[', ']', '`']) && !address.contains([' ', '(']);
            (is_link && out.matches('`').count().is_multiple_of(2)).then_some((text, address, end))
        });
        if link.is_some() && is_image {
            out.pop();
        }
        match link {
            Some((text, address, end)) if text == address || text.is_empty() => {
                out.push_str(address);
                rest = end;
            }
            Some((text, address, end)) => {
                out.extend([text, " (", address, ")"]);
                rest = end;
            }
            None => {
                out.push('[');
                rest = after;
            }
        }
    }
    out + rest
}

/// Writes the signs that entities stand for, and addresses without their brackets, except in code.
fn with_plain_marks(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let (mut rest, mut is_code) = (line, false);
    while let Some(at) = rest.find(['&', '<', '`']) {
        let (before, mark) = rest.split_at(at);
        out.push_str(before);
        is_code ^= mark.starts_with('`');
        let entity = ENTITIES.iter().find(|(name, _)| !is_code && mark.starts_with(name));
        let address = mark[1..].split_once('>').map(|(address, _)| address).filter(|address| {
            let is_web = ["http://", "https://"].iter().any(|scheme| address.starts_with(scheme));
            !is_code && is_web && mark.starts_with('<') && !address.contains(' ')
        });
        let taken = match (entity, address) {
            (Some((name, sign)), _) => {
                out.push_str(sign);
                name.len()
            }
            (None, Some(address)) => {
                out.push_str(address);
                address.len() + 2
            }
            (None, None) => {
                out.push_str(&mark[..1]);
                1
            }
        };
        rest = &mark[taken..];
    }
    out + rest
}

/// Entities that models write.
const ENTITIES: [(&str, &str); 6] =
    [("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&"), ("&quot;", "\""), ("&#39;", "'"), ("&nbsp;", " ")];

/// Returns the marks of a code fence and the text after them.
fn code_fence(line: &str) -> Option<(String, &str)> {
    let text = line.trim_start();
    let mark = text.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let count = text.chars().take_while(|c| *c == mark).count();
    let rest = text[count..].trim();
    (count >= 3 && !rest.contains(mark)).then(|| (mark.to_string().repeat(count), rest))
}

fn coloured_skin() -> MadSkin {
    let mut skin = MadSkin::default();
    for header in &mut skin.headers {
        header.align = Alignment::Left;
        header.compound_style.remove_attr(Attribute::Underlined);
        header.compound_style.add_attr(Attribute::Bold);
        header.compound_style.set_fg(Color::DarkMagenta);
    }
    skin.inline_code = CompoundStyle::with_fg(Color::DarkCyan);
    skin
}

/// Returns the same layout without colours: <https://no-color.org> leaves bold and italic type.
fn plain_skin() -> MadSkin {
    let mut skin = MadSkin::no_style();
    for header in &mut skin.headers {
        header.align = Alignment::Left;
        header.compound_style = CompoundStyle::with_attr(Attribute::Bold);
    }
    skin.bold = CompoundStyle::with_attr(Attribute::Bold);
    skin.italic = CompoundStyle::with_attr(Attribute::Italic);
    skin.inline_code = CompoundStyle::with_attr(Attribute::Underlined);
    skin
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(is_rendered: bool, pieces: &[&str]) -> String {
        let mut markdown = Markdown::new(Paint(is_rendered), is_rendered, 60);
        let mut out: String = pieces.iter().map(|piece| markdown.push(piece)).collect();
        out.push_str(&markdown.finish());
        out
    }

    /// Returns the text that stays on the screen.
    fn text(is_rendered: bool, markdown: &str) -> String {
        without_styles(&whole(is_rendered, &[markdown]))
    }

    fn without_styles(painted: &str) -> String {
        let mut parts = painted.split('\u{1b}');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
    }

    #[test]
    fn marks_become_styles() {
        let painted =
            whole(true, &["# Title\n**bold** and `code`\n- item\n  - inner\n1. first\n10. tenth\n"]);
        for part in ["Title", "\u{1b}[1mbold", "code", " item", "•", "inner", "first", "10"] {
            assert!(painted.contains(part), "{part} in {painted:?}");
        }
        assert!(!painted.contains("**") && !painted.contains('#') && !painted.contains('`'), "{painted:?}");
    }

    #[test]
    fn signs_and_deep_lists_are_text() {
        let shown =
            text(true, "2 * 3 * 4\n- [x] done\n- [ ] open\n1. a\n    - deep *item*\n      more of it\n");
        assert_eq!(shown, "2 * 3 * 4\n• ☑ done\n• ☐ open\n1. a\n    • deep item\n      more of it\n");
        assert!(text(true, "| a |\n|---|\n| 2 * 3 |\n").contains("2 * 3"));
        assert_eq!(text(true, "***"), text(true, "---"));
    }

    #[test]
    fn code_stays_as_it_is() {
        assert_eq!(
            text(true, "1. so:\n   ```\n   a\n     b\n  c\n   ```\n"),
            "1. so:\n  ╭ \n  a\n    b\n  c\n  ╰\n"
        );
        let shown = text(true, "```rust\nlet a = \"**x**\"; # | no table\n| a\n```\nafter\n");
        assert!(shown.contains("  let a = \"**x**\"; # | no table\n  | a\n"), "{shown:?}");
        assert!(shown.contains("╭ rust") && shown.ends_with("after\n"), "{shown:?}");
    }

    #[test]
    fn code_that_was_cut_is_closed() {
        assert_eq!(text(true, "```\nlet a"), "  ╭ \n  let a\n  ╰\n");
        assert_eq!(text(true, "```\nlet a\n```\n"), "  ╭ \n  let a\n  ╰\n");
    }

    #[test]
    fn a_long_line_of_code_keeps_its_margin() {
        let shown = text(true, &format!("```\n{}\n```\n", "x".repeat(100)));
        let rows: Vec<usize> = shown.lines().map(|row| row.chars().count()).collect();
        assert_eq!(rows, [4, 58, 48, 3], "{shown}");
        assert!(shown.contains("\n  ┊ xxx"), "{shown}");
        let shown = text(true, &format!("```\n{}\n```\n", "one two ".repeat(8)));
        assert!(shown.contains("two \n  ┊ one two"), "it breaks between words: {shown}");
    }

    #[test]
    fn a_link_is_its_text_and_address() {
        for (line, expected) in [
            ("see [the docs](https://a.b/c) now", "see the docs (https://a.b/c) now"),
            ("[https://a.b](https://a.b)", "https://a.b"),
            ("a[0](x y) [x] `[a](b)`", "a[0](x y) [x] `[a](b)`"),
            ("![a cat](u.png) ![](v.png)!", "a cat (u.png) v.png!"),
        ] {
            assert_eq!(with_plain_links(line), expected);
        }
    }

    #[test]
    fn entities_and_breaks_are_read() {
        for (line, expected) in [
            ("&lt;a&gt; &amp;lt; &nbsp;R&D `&lt;` &quot;", "<a> &lt;  R&D `&lt;` \""),
            ("<https://a.b/c> <b> `<https://a>` 1 < 2", "https://a.b/c <b> `<https://a>` 1 < 2"),
        ] {
            assert_eq!(with_plain_marks(line), expected);
        }
        let shown = text(true, "| a | b |\n|---|---|\n| one<br>two | x |\n| 3 | y |\n");
        assert!(shown.contains("│one│x  │\n│two│   │\n│3  │y  │\n"), "{shown}");
        assert_eq!(text(true, "Title\n====="), text(true, "Title\n---"));
        assert!(text(true, "| a |\n|---|\n| [b](c) |\n").contains("│b (c)│"));
    }

    #[test]
    fn a_table_comes_whole() {
        let mut markdown = Markdown::new(Paint(true), true, 60);
        assert_eq!(markdown.push("| a | b |\n|---|---|\n| 1 | 2 |\n"), "");
        assert!(markdown.push("\n").contains('1'));
    }

    #[test]
    fn cells_have_no_joined_emoji() {
        let shown = text(true, "| a | b |\n|---|---|\n| 👩‍💻 | 👍🏽 |\n\n👩‍💻\n");
        assert!(shown.contains("│👩 │👍 │") && shown.ends_with("👩‍💻\n"), "{shown}");
    }

    #[test]
    fn incomplete_lines_and_tables_are_previewed() {
        let check = |text: &str, expected: &str| {
            let mut markdown = Markdown::new(Paint(true), true, 60);
            markdown.push(text);
            assert_eq!(without_styles(&markdown.preview()), expected, "{text:?}");
        };
        check("done\nso **far** and", "so far and\n");
        check("```\nlet a", "  let a\n");
        check("complete\n", "");
        let mut markdown = Markdown::new(Paint(true), true, 60);
        markdown.push("| a | b |\n|---|---|\n| 1");
        assert!(markdown.preview().contains('1'));
        assert!(markdown.push(" | 2 |\n\n").contains('2'), "a preview takes nothing away");
    }

    #[test]
    fn without_colours_the_layout_stays() {
        let mut markdown = Markdown::new(Paint(false), true, 60);
        let shown = markdown.push("# Title\n**bold** and `code`\n| a |\n|---|\n| 1 |\n\n");
        assert!(!shown.contains('#') && !shown.contains("**") && shown.contains('│'), "{shown:?}");
        assert!(!shown.contains("\u{1b}[3") && !shown.contains("38;5"), "a colour: {shown:?}");
    }

    #[test]
    fn a_too_wide_table_becomes_lists() {
        let row = format!("| a | {} |\n", "b | ".repeat(6));
        let table = format!("| 1 |{}\n|{}\n{row}", " a long name |".repeat(6), "---|".repeat(7));
        let shown = text(true, &table);
        assert!(shown.contains("• 1: a\n• a long name: b\n"), "{shown:?}");
        let more = text(true, &format!("{table}| a |{}", " b |".repeat(6) + " surplus |"));
        assert!(more.contains("surpl"), "nothing is lost: {more:?}");
        let narrow = "| a | b |\n|---|---|\n| 1 | 2 |\n";
        assert!(text(true, narrow).contains('│'));
    }

    #[test]
    fn long_lines_are_wrapped_to_the_width() {
        let shown = text(true, &"word ".repeat(40));
        assert!(
            shown.lines().count() > 2 && shown.lines().all(|line| line.chars().count() <= 60),
            "{shown:?}"
        );
    }

    /// Regression: a line broke before the first long run of signs, which have no spaces between them.
    #[test]
    fn scripts_without_spaces_fill_the_line() {
        let signs = "の三行目で、ループが最初の価格を飛ばしています。".repeat(2);
        let shown = text(true, &format!("1. 合計は **違い** ました。`calc.py` {signs}"));
        let columns = |row: &str| row.chars().map(char_width).sum::<usize>();
        assert!(shown.lines().count() > 1 && shown.lines().all(|row| columns(row) <= 60), "{shown}");
        assert!(columns(shown.lines().next().unwrap()) >= 58, "{shown}");
        assert!(shown.lines().skip(1).all(|row| row.starts_with("   ")), "{shown}");
    }

    #[test]
    fn unrendered_text_stays_and_nothing_in_it_acts() {
        assert_eq!(whole(false, &["# a\n**b** \u{1b}[31m"]), "# a\n**b** \\u{1b}[31m\n");
        assert!(!text(true, "x \u{1b}]0;title\u{7} y").contains('\u{7}'));
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(text in "[a-z`*# |\n~-]{0,80}", cut in 0..80_usize) {
            let cut = text.floor_char_boundary(cut.min(text.len()));
            prop_assert_eq!(whole(true, &[&text]), whole(true, &[&text[..cut], &text[cut..]]));
        }
    }
}
