//! Problems of a configuration: each with its place, its cause and its remedy.

use std::fmt;

/// Where a value was written: `respool.toml:12`, `environment NAME`, `--listen` or `default`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place(String);

impl Place {
    /// Returns a line of a file, counted from 1.
    pub(super) fn line(file: &str, line: usize) -> Self {
        Self(format!("{file}:{line}"))
    }

    /// Returns an environment variable.
    pub(super) fn environment(name: &str) -> Self {
        Self(format!("environment {name}"))
    }

    /// Returns a place by its text: a flag, a file, or one that was written with `Display`.
    pub(super) fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true for a value that is the default.
    pub fn is_default(&self) -> bool {
        self.0 == "default"
    }

    /// Returns true for a flag of the command line.
    pub fn is_flag(&self) -> bool {
        self.0.starts_with("--")
    }

    fn order(&self) -> (&str, usize) {
        let split = self.0.rsplit_once(':').and_then(|(file, line)| Some((file, line.parse().ok()?)));
        split.unwrap_or((&self.0, 0))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it was written.
    pub place: Place,
    /// The key, as `limits.max_body`; empty when it is not about one.
    pub key: String,
    /// The cause and the remedy.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.as_str() {
            "" => write!(out, "{}: {}", self.place, self.message),
            key => write!(out, "{}: {key}: {}", self.place, self.message),
        }
    }
}

/// All problems of a configuration: one per line when written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Adds one.
    pub(super) fn add(&mut self, place: Place, key: impl Into<String>, message: impl Into<String>) {
        let problem = Problem { place, key: key.into(), message: message.into() };
        if !self.0.contains(&problem) {
            self.0.push(problem);
        }
    }

    /// Returns one problem that leaves nothing else to look at.
    pub(super) fn one(place: Place, message: impl Into<String>) -> Self {
        Self(vec![Problem { place, key: String::new(), message: message.into() }])
    }

    /// Returns one problem with what `place` names: a flag, or a file.
    pub fn with_source(place: &str, message: impl Into<String>) -> Self {
        Self::one(Place::from_text(place), message)
    }

    /// Returns the problems, by place.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }

    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true when nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns an error when there is any, in the order of file and line. Where a key does not take text, it
    /// is not said that text needs quotes.
    pub(super) fn into_result(mut self) -> Result<(), Self> {
        let takes_no_text = |one: &&Problem| !one.key.is_empty() && one.message.starts_with("expected ");
        let others: Vec<Place> = self.0.iter().filter(takes_no_text).map(|one| one.place.clone()).collect();
        self.0.retain(|one| !one.key.is_empty() || !others.contains(&one.place));
        self.0.sort_by(|a, b| a.place.order().cmp(&b.place.order()));
        if self.is_empty() { Ok(()) } else { Err(self) }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let line_end = if index == 0 { "" } else { "\n" };
            write!(out, "{line_end}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
