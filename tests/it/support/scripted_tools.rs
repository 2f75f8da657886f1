//! A set of tools for agents that does what a test says and records what it was asked.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tools::{
    Approver, Consent, Invocation, Question, QuestionKind, Target, ToolError, ToolOutput, ToolSpec, Tools,
};

type Script = dyn Fn(&Invocation, usize) -> Result<String, ToolError> + Send + Sync;

/// The set.
pub struct ScriptedTools {
    specs: Vec<ToolSpec>,
    script: Box<Script>,
    calls: Mutex<Vec<Invocation>>,
    approved: Mutex<Vec<Invocation>>,
    delay: Duration,
}

impl ScriptedTools {
    /// Tools `read{path}` (repeatable), `exec{command}` and `web_search{query}` (repeatable); `script`
    /// answers each call, counted from 0.
    pub fn new(
        script: impl Fn(&Invocation, usize) -> Result<String, ToolError> + Send + Sync + 'static,
    ) -> Self {
        let specs = vec![
            spec("read", "path", true),
            spec("exec", "command", false),
            spec("web_search", "query", true),
        ];
        Self {
            specs,
            script: Box::new(script),
            calls: Mutex::default(),
            approved: Mutex::default(),
            delay: Duration::ZERO,
        }
    }

    /// The first tool, `read`, declares this schema.
    pub fn with_schema(mut self, parameters: Value) -> Self {
        self.specs[0].parameters = parameters;
        self
    }

    /// The duration of each call.
    pub fn slow(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// The calls until now: the tool and the value of its first argument.
    pub fn asked(&self) -> Vec<(String, String)> {
        let first = |call: &Invocation| {
            let value = call.arguments.values().next().and_then(Value::as_str).unwrap_or_default();
            (call.name.clone(), value.to_owned())
        };
        self.lock().iter().map(first).collect()
    }

    /// The names of the keys of those who asked for the calls.
    pub fn keys(&self) -> Vec<Option<String>> {
        self.lock().iter().map(|call| call.caller.key.clone()).collect()
    }

    /// How many calls ran with a person's consent.
    pub fn approved(&self) -> usize {
        lock(&self.approved).len()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Invocation>> {
        lock(&self.calls)
    }
}

fn lock(calls: &Mutex<Vec<Invocation>>) -> MutexGuard<'_, Vec<Invocation>> {
    calls.lock().unwrap()
}

fn spec(name: &str, argument: &str, is_repeatable: bool) -> ToolSpec {
    ToolSpec {
        name: name.into(),
        description: format!("The tool {name}."),
        parameters: json!({"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}),
        is_repeatable,
        timeout: None,
        result_limit: None,
    }
}

#[async_trait]
impl Tools for ScriptedTools {
    fn specs(&self) -> Vec<ToolSpec> {
        self.specs.clone()
    }

    async fn call(
        &self,
        invocation: &Invocation,
        approver: Option<&dyn Approver>,
    ) -> Result<ToolOutput, ToolError> {
        let count = {
            let mut calls = self.lock();
            calls.push(invocation.clone());
            calls.len() - 1
        };

        if let Some(approver) = approver {
            // No person sits at a served agent; the approver consents to this very call and to no other.
            let question = |arguments| Question {
                kind: QuestionKind::Call,
                tool: &invocation.name,
                arguments,
                target: &Target::Other,
                preview: None,
                is_by_default: false,
            };
            let consent = approver.approve(question(&invocation.arguments)).await;
            assert_eq!(consent, Consent::Given, "{invocation:?}");
            let mut other = invocation.arguments.clone();
            other.insert("more".to_owned(), Value::Null);
            assert_eq!(approver.approve(question(&other)).await, Consent::DECLINED);
            lock(&self.approved).push(invocation.clone());
        }
        testing::waiting::delay(self.delay).await;
        (self.script)(invocation, count).map(|text| ToolOutput { text, ..ToolOutput::default() })
    }
}
