//! Running tools in tests: a set from TOML, calls by name and JSON, and a person who answers questions.

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tools::{
    Approver, Caller, Consent, Invocation, Question, Sources, ToolError, ToolOutput, ToolSet, Tools,
    ToolsConfig,
};

/// The section `[tools]`, from TOML without that prefix.
pub fn config(toml: &str) -> ToolsConfig {
    toml::from_str(toml).unwrap_or_else(|problem| panic!("{problem}\nin\n{toml}"))
}

/// respool itself, which starts commands in their sandbox.
pub fn launcher() -> std::path::PathBuf {
    env!("CARGO_BIN_EXE_respool").into()
}

/// A set with these tools.
pub async fn set(toml: &str, wanted: &[&str]) -> ToolSet {
    let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = config(toml);
    config.local.launcher = Some(launcher());
    Sources::open(&config)
        .unwrap()
        .select_tools(&wanted)
        .await
        .unwrap_or_else(|problems| panic!("{problems:?}"))
}

/// The problems of a set with these tools, each as `check` reports it.
pub async fn problems_of(toml: &str, wanted: &[&str]) -> Vec<String> {
    let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
    match Sources::open(&config(toml)) {
        Ok(sources) => {
            sources.select_tools(&wanted).await.err().iter().flatten().map(ToString::to_string).collect()
        }
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

/// One call.
pub fn invocation(name: &str, arguments: &Value) -> Invocation {
    let arguments = arguments.as_object().unwrap().clone();
    Invocation {
        name: name.into(),
        arguments,
        key: "key-1".into(),
        timeout: Duration::from_secs(20),
        caller: Caller::default(),
    }
}

/// Calls without a person to ask.
pub async fn call(set: &dyn Tools, name: &str, arguments: Value) -> Result<ToolOutput, ToolError> {
    set.call(&invocation(name, &arguments), None).await
}

/// The text of a call that has to work.
pub async fn text(set: &dyn Tools, name: &str, arguments: Value) -> String {
    call(set, name, arguments.clone())
        .await
        .unwrap_or_else(|error| panic!("{name} {arguments}: {error:?}"))
        .text
}

/// The text of a call that has to fail in this way.
pub async fn failure(set: &dyn Tools, name: &str, arguments: Value) -> String {
    match call(set, name, arguments.clone()).await {
        Err(ToolError::Failed(text)) => text,
        other => panic!("{name} {arguments} gave {other:?}"),
    }
}

/// Somebody who always answers the same and remembers what was asked.
pub struct Person {
    answer: bool,
    /// Each question: the tool and the preview.
    pub asked: Mutex<Vec<(String, Option<String>)>>,
}

impl Person {
    /// Who answers this.
    pub fn who_says(answer: bool) -> Self {
        Self { answer, asked: Mutex::default() }
    }
}

#[async_trait]
impl Approver for Person {
    async fn approve(&self, question: Question<'_>) -> Consent {
        self.asked.lock().unwrap().push((question.tool.to_owned(), question.preview));
        Consent::from_answer(self.answer)
    }
}
