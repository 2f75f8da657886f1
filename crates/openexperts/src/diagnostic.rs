//! Findings about a package: their codes, their places in files, and how they are shown to a person. Pure;
//! made by `yaml`, `fields`, the component readers and `check`, shown by the command line.

use std::fmt::Write as _;

use serde::Serialize;

/// Whether a package loads despite a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The package does not load.
    Error,
    /// The package loads.
    Warn,
}

/// Defines [`Code`]: each code with the severity it has unless a check says otherwise.
macro_rules! codes {
    ($($variant:ident = $word:literal $severity:ident),+ $(,)?) => {
        /// The kind of the finding; docs/experts-reference.md explains each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        #[expect(missing_docs, reason = "the word of each code is its name, and the docs explain it")]
        pub enum Code {
            $(#[serde(rename = $word)] $variant),+
        }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the code as it is printed.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            const fn severity(self) -> Severity {
                match self { $(Self::$variant => Severity::$severity),+ }
            }
        }
    };
}

codes! {
    MissingFile = "missing-file" Error,
    NotAFile = "not-a-file" Error,
    PathEscape = "path-escape" Error,
    TooLarge = "too-large" Error,
    NotUtf8 = "not-utf8" Error,
    BadYaml = "bad-yaml" Error,
    DuplicateKey = "duplicate-key" Error,
    MissingFrontmatter = "missing-frontmatter" Error,
    UnclosedFrontmatter = "unclosed-frontmatter" Error,
    MissingField = "missing-field" Error,
    WrongType = "wrong-type" Error,
    WrongEnum = "wrong-enum" Error,
    UnknownChannel = "unknown-channel" Error,
    BadDuration = "bad-duration" Error,
    OutOfRange = "out-of-range" Error,
    BadCron = "bad-cron" Error,
    BadTimezone = "bad-timezone" Error,
    BadPayloadPath = "bad-payload-path" Error,
    BadName = "bad-name" Error,
    UnsupportedSpec = "unsupported-spec" Error,
    UnknownProcess = "unknown-process" Error,
    UndeclaredTool = "undeclared-tool" Error,
    DuplicateName = "duplicate-name" Error,
    UnknownFunction = "unknown-function" Warn,
    UnlistedKnowledge = "unlisted-knowledge" Warn,
    UnlistedContext = "unlisted-context" Warn,
    UnlistedFile = "unlisted-file" Warn,
    UnknownTrigger = "unknown-trigger" Warn,
    TriggerMismatch = "trigger-mismatch" Warn,
    UnknownOverride = "unknown-override" Warn,
    ToolWithoutFile = "tool-without-file" Warn,
    ToolNotRequired = "tool-not-required" Warn,
    NoOperations = "no-operations" Warn,
    UnknownOperation = "unknown-operation" Warn,
    UnknownPreset = "unknown-preset" Warn,
    UnknownInput = "unknown-input" Warn,
    UnresolvableKey = "unresolvable-key" Warn,
    IgnoredField = "ignored-field" Warn,
    UnknownKey = "unknown-key" Warn,
    UnknownType = "unknown-type" Warn,
    UnquotedNumber = "unquoted-number" Warn,
    BadVersion = "bad-version" Warn,
    DuplicateEntry = "duplicate-entry" Warn,
    NoChecklist = "no-checklist" Warn,
    EmptyBody = "empty-body" Warn,
    MissingReadme = "missing-readme" Warn,
    SkillScripts = "skill-scripts" Warn,
}

/// A place in a file. Line and column count from 1; `width` is how many characters are underlined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
    /// How many characters of the line are meant; at least 1.
    pub width: usize,
}

impl At {
    /// The beginning of a file.
    pub const TOP: Self = Self { line: 1, column: 1, width: 1 };

    /// Returns the beginning of a line.
    pub const fn line(line: usize) -> Self {
        Self { line, column: 1, width: 1 }
    }
}

/// A value and where it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// Where it begins.
    pub at: At,
}

impl<T> Spanned<T> {
    /// Returns the value that was written there.
    pub const fn new(value: T, at: At) -> Self {
        Self { value, at }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Whether the package still loads.
    pub severity: Severity,
    /// The kind of finding.
    pub code: Code,
    /// The file, relative to the package.
    pub file: String,
    /// Where in the file; `None` if no particular line is meant.
    pub at: Option<At>,
    /// The problem.
    pub message: String,
    /// The remedy.
    pub help: String,
}

/// All findings of a package.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    diagnostics: Vec<Diagnostic>,
}

impl Report {
    /// Returns a recorder of findings in this file.
    pub(crate) fn file<'a>(&'a mut self, file: &'a str) -> FileReport<'a> {
        FileReport { file, report: self }
    }

    /// Returns true if there is no error among the findings.
    pub(crate) fn loads(&self) -> bool {
        self.diagnostics.iter().all(|one| one.severity == Severity::Warn)
    }

    /// Returns the findings by file and line, `expert.yaml` first, without duplicates.
    pub(crate) fn into_sorted(mut self) -> Vec<Diagnostic> {
        let rank = |one: &Diagnostic| (one.file != super::MANIFEST, one.file.clone(), one.at, one.code);
        self.diagnostics.sort_by_cached_key(rank);
        self.diagnostics.dedup();
        self.diagnostics
    }
}

/// Records findings in one file.
pub struct FileReport<'a> {
    file: &'a str,
    report: &'a mut Report,
}

impl FileReport<'_> {
    /// Records a finding with the severity of its code.
    pub fn add(&mut self, code: Code, at: At, message: impl Into<String>, help: impl Into<String>) {
        self.push(code.severity(), code, Some(at), message.into(), help.into());
    }

    /// Records as a warning a finding whose code is usually an error, because it does not keep the package
    /// from loading here.
    pub fn warn(&mut self, code: Code, at: At, message: impl Into<String>, help: impl Into<String>) {
        self.push(Severity::Warn, code, Some(at), message.into(), help.into());
    }

    /// Records as an error a finding whose code is usually a warning, because it must not be overlooked here.
    pub fn fail(&mut self, code: Code, at: At, message: impl Into<String>, help: impl Into<String>) {
        self.push(Severity::Error, code, Some(at), message.into(), help.into());
    }

    /// Records a finding without a line.
    pub fn add_without_line(&mut self, code: Code, message: impl Into<String>, help: impl Into<String>) {
        self.push(code.severity(), code, None, message.into(), help.into());
    }

    fn push(&mut self, severity: Severity, code: Code, at: Option<At>, message: String, help: String) {
        let file = self.file.to_owned();
        self.report.diagnostics.push(Diagnostic { severity, code, file, at, message, help });
    }
}

impl Diagnostic {
    /// Returns the finding in one line, without what is written there.
    pub fn to_line(&self) -> String {
        let place = self.at.map(|at| format!(":{}:{}", at.line, at.column)).unwrap_or_default();
        let help = if self.help.is_empty() { String::new() } else { format!(" ({})", self.help.trim()) };
        format!("{}{place}: {}{help}", self.file, self.message)
    }

    /// Returns the finding for a terminal: file, line and column, the line itself with a caret, and what to
    /// do. `source` is the file's text.
    pub fn render(&self, source: Option<&str>) -> String {
        let severity = if self.severity == Severity::Error { "error" } else { "warn" };
        let place = self.at.map(|at| format!(":{}:{}", at.line, at.column)).unwrap_or_default();
        let (file, message) = (visible(&self.file), visible(&self.message));
        let mut out = format!("{file}{place}: {severity}[{}]: {message}\n", self.code.as_str());
        if let Some((at, line)) = self.at.zip(source).and_then(|(at, text)| Some((at, line_of(text, at)?))) {
            let number = at.line.to_string();
            let gutter = " ".repeat(number.len());
            let _ = write!(out, "{gutter} |\n{number} | {line}\n{gutter} | {}\n", draw_caret(at, &line));
        }
        if !self.help.is_empty() {
            let _ = writeln!(out, "  = {}", visible(&self.help));
        }
        out
    }
}

/// The longest line of a file that is shown with a finding.
const LONGEST_LINE: usize = 160;

fn line_of(text: &str, at: At) -> Option<String> {
    let line = text.lines().nth(at.line - 1)?.trim_end();
    let is_shown = !line.is_empty() && at.column <= LONGEST_LINE;
    is_shown.then(|| visible(&line.replace('\t', " ").chars().take(LONGEST_LINE).collect::<String>()))
}

fn draw_caret(at: At, line: &str) -> String {
    let rest = line.chars().count().saturating_sub(at.column - 1).max(1);
    format!("{}{}", " ".repeat(at.column - 1), "^".repeat(at.width.clamp(1, rest)))
}

/// Makes text of a package safe for a terminal: control characters become `?`.
pub fn visible(text: &str) -> String {
    let is_hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if is_hidden(c) { '?' } else { c }).collect()
}

/// The shortest beginning of a name that stands for it.
const BEGINNING: usize = 3;

/// Returns `did you mean "x"? ` if one of the candidates is close to the written text or begins with it, else
/// nothing.
pub fn suggest_nearest<'a>(written: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let begins = |name: &str| written.len() >= BEGINNING && name.starts_with(written);
    let near = candidates
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(written, name), name))
        .filter(|(distance, name)| *distance <= 1 + name.len() / 4 || begins(name))
        .min();
    near.map(|(_, name)| format!("did you mean \"{name}\"? ")).unwrap_or_default()
}
