//! Markdown with YAML frontmatter between two lines of `---`. Pure; called by the component readers.

use super::diagnostic::{At, Code, FileReport};
use super::yaml::{self, Node, Value};

/// Whether a file must have frontmatter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// Required.
    Required,
    /// Optional.
    Optional,
    /// Frontmatter is cut off and not read.
    Skipped,
}

/// A file split into its two parts.
#[derive(Clone, Debug)]
pub(crate) struct Markdown<'t> {
    /// The frontmatter as a tree. `None` if the file has no frontmatter, or if it could not be read, which
    /// has then been reported.
    pub head: Option<Node>,
    /// The text after the frontmatter.
    pub body: &'t str,
}

enum Cut<'t> {
    None,
    Unclosed,
    Head { head: &'t str, body: &'t str },
}

/// Splits a file into frontmatter and body, and reads the frontmatter.
pub(crate) fn read_markdown<'t>(text: &'t str, head: Head, report: &mut FileReport<'_>) -> Markdown<'t> {
    match cut_head(text) {
        Cut::None => {
            if head == Head::Required {
                let help = "begin the file with ---, name: …, description: … and ---";
                report.add(Code::MissingFrontmatter, At::TOP, "the file has no frontmatter", help);
            }
            Markdown { head: None, body: text }
        }
        Cut::Unclosed => {
            let help = "close the frontmatter with a line that is --- alone";
            if head == Head::Required {
                report.add(Code::UnclosedFrontmatter, At::TOP, "the frontmatter is never closed", help);
            } else {
                let message =
                    "the file begins with --- and no later line is --- alone; all of it is taken as text";
                report.warn(Code::UnclosedFrontmatter, At::TOP, message, help);
            }
            Markdown { head: None, body: text }
        }
        Cut::Head { body, .. } if head == Head::Skipped => Markdown { head: None, body },
        Cut::Head { head, body } => Markdown { head: read_head(head, report), body },
    }
}

fn read_head(text: &str, report: &mut FileReport<'_>) -> Option<Node> {
    let mut node = yaml::read_yaml(text, 2, report)?;
    match &node.value {
        Value::Map(_) => Some(node),
        Value::Null => {
            node.value = Value::Map(Vec::new());
            Some(node)
        }
        other => {
            let message = format!("the frontmatter is {}, but it must be a map", other.kind());
            report.add(Code::WrongType, node.at, message, "write fields, such as name: …");
            None
        }
    }
}

fn cut_head(text: &str) -> Cut<'_> {
    let is_fence = |line: &str| line.trim_end() == "---";
    let mut lines = text.split_inclusive('\n');
    let Some(first) = lines.next().filter(|line| is_fence(line)) else { return Cut::None };
    let mut end = first.len();
    for line in lines {
        if is_fence(line) {
            return Cut::Head { head: &text[first.len()..end], body: &text[end + line.len()..] };
        }
        end += line.len();
    }
    Cut::Unclosed
}

/// Returns the mark that opens a fenced code block, such as ```` ``` ````, and what follows it in its line.
fn fence_of(line: &str) -> Option<(&str, &str)> {
    let text = line.trim_start_matches(' ');
    let mark = text.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let rest = text.trim_start_matches(mark);
    let fence = &text[..text.len() - rest.len()];
    let is_fence = line.len() - text.len() <= 3 && fence.len() >= 3 && !(mark == '`' && rest.contains('`'));
    is_fence.then_some((fence, rest))
}

/// Returns the lines of a text that are outside of fenced code blocks (`CommonMark` 0.31, 4.5).
fn lines_outside_code(body: &str) -> impl Iterator<Item = &str> {
    let mut open: Option<&str> = None;
    body.lines().filter(move |line| {
        let found = fence_of(line);
        match (open, found) {
            (None, Some((fence, _))) => open = Some(fence),
            (None, None) => return true,
            (Some(opening), Some((fence, rest))) if fence.starts_with(opening) && rest.trim().is_empty() => {
                open = None;
            }
            (Some(_), _) => {}
        }
        false
    })
}

/// Returns the first heading of a text, without its `#` marks.
pub(crate) fn first_heading(body: &str) -> Option<&str> {
    let heading = lines_outside_code(body).find_map(|line| {
        let rest = line.trim_start_matches('#');
        (rest.len() < line.len() && rest.starts_with(' '))
            .then(|| rest.trim().trim_end_matches('#').trim_end())
    });
    heading.filter(|text| !text.is_empty())
}

/// Returns the steps of a process: its `- [ ]` lines, including ticked ones.
pub fn steps(body: &str) -> Vec<&str> {
    let step = |line: &'_ str| -> Option<usize> {
        let trimmed = line.trim_start();
        let rest = trimmed.strip_prefix(['-', '*', '+'])?.trim_start();
        let is_box = ["[ ]", "[x]", "[X]"].iter().any(|mark| rest.starts_with(mark));
        is_box.then(|| line.len() - rest.len() + 3)
    };
    body.lines().filter_map(|line| step(line).map(|start| line[start..].trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::Report;

    #[test]
    fn frontmatter_ends_at_the_first_fence() {
        let mut report = Report::default();
        let found =
            read_markdown("---\nname: a\n---\n\ntext\n---\nmore\n", Head::Required, &mut report.file("a.md"));
        assert_eq!(found.body, "\ntext\n---\nmore\n");
        assert!(matches!(found.head.unwrap().value, Value::Map(entries) if entries[0].key.at.line == 2));
        assert!(report.into_sorted().is_empty());
    }

    #[test]
    fn headings_and_steps() {
        assert_eq!(first_heading("text\n# Price list #\n"), Some("Price list"));
        assert_eq!(first_heading("#hashtag\n"), None);
        for fenced in [
            "```sh\n# a comment\n```\n# Prices\n",
            "~~~\n# one\n```\n# two\n~~~\n# Prices\n",
            "  ````\n```\n# one\n````` \n# Prices\n",
            "``` not `a` fence\n# Prices\n",
            "    ```\n# Prices\n",
            "```\n``` not its end\n# one\n```\n# Prices\n",
        ] {
            assert_eq!(first_heading(fenced), Some("Prices"), "{fenced}");
        }
        assert_eq!(first_heading("```\n# never closed\n"), None);
        assert_eq!(steps("- [ ] one\n  * [x] two\n- three\n- [ ]four"), ["one", "two", "four"]);
    }
}
