//! Isolated functions: a call of one is a child run that gets the function's text, its declared inputs, tools
//! and knowledge, and nothing else from the calling run. Only the declared outputs come back. Created by
//! `assembly`, executed by `agent`.
//!
//! The child run ends with `finish_function`. It may also `escalate`, which ends the calling process too, as
//! does an output `confidence` of `low` if the package leaves such decisions to a person.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use super::bound::BoundTools;
use super::knowledge::readable_knowledge;
use super::learning::LearningFiles;
use super::model_access::AgentBase;
use super::notices::ConversationNotices;
use super::operations::Operations;
use super::tools::{ESCALATE, approval_rules, escalate_tool, tier_of, tool_spec};
use super::trigger::fenced_json;
use agent::{
    Agent, AgentRequest, ChildRuns, EndsRun, Executor, Notices, OfferedTool, Outcome, RequestedCall,
    Requester, RunSnapshot, SettledCall, Setup, Supervision, Tier,
};
use openexperts::{
    Function, FunctionSession, Package,
    label::call_name,
    outputs, path,
    prompt::{FunctionPrompt, one_line},
};
use tools::{Approver, Effect, Invocation, ToolError, ToolOutput, ToolSpec, Tools};

/// Ends a function with its outputs.
const FINISH_FUNCTION: &str = "finish_function";
/// The output in which a function says how sure it is.
const CONFIDENCE: &str = "confidence";
/// The longest text of outputs that the caller receives, in bytes.
const LONGEST_RESULT: usize = 64 * 1024;

/// The isolated functions of one run.
pub(super) struct IsolatedFunctions {
    pub(super) base: AgentBase,
    pub(super) package: Arc<Package>,
    pub(super) bound: BoundTools,
    /// The expert's files: what was learnt for a function is shown ahead of it.
    pub(super) root: PathBuf,
    /// Who asks a person for consent.
    pub(super) requester: Requester,
    /// The calling run executes a process: it fails when a server does, and a person may be asked to decide.
    pub(super) is_process: bool,
    /// The calls of earlier attempts of the same work that must not be repeated.
    pub(super) settled: Vec<SettledCall>,
    pub(super) is_dry: bool,
    pub(super) snapshot: RunSnapshot,
    /// The calling run may quote private knowledge, also in the inputs.
    pub(super) is_private: bool,
}

impl IsolatedFunctions {
    fn all(&self) -> impl Iterator<Item = &Function> {
        self.package.functions.items.iter().filter(|function| function.session == FunctionSession::Isolated)
    }

    fn called_function(&self, call: &RequestedCall) -> Option<&Function> {
        self.all().find(|function| call_name(&function.name.value) == call.name)
    }

    /// Returns true if an unsure function leaves the decision to a person.
    fn escalates_when_unsure(&self) -> bool {
        self.package.manifest.policy.on_low_confidence
    }

    fn agent(&self, function: &Function) -> Arc<Agent> {
        let tools = function.tools.items.iter().map(|name| name.value.clone());
        let operations = Operations::new(&self.package, Arc::clone(&self.bound), self.is_dry).only_of(tools);
        let learnt = LearningFiles::new(&self.root).text_before(&function.name.value).unwrap_or_default();
        let tiers = operations.tiers();
        let prompt = FunctionPrompt {
            package: &self.package,
            function,
            learnt: &learnt,
            tiers: &tiers,
            knowledge: readable_knowledge(&self.package, function),
            finish: FINISH_FUNCTION,
        };
        let supervision = self.supervision_of(&operations);
        let base = self.base.function_base(&function.name.value);
        let tools = FunctionTools {
            operations,
            package: Arc::clone(&self.package),
            function: function.clone(),
            is_process: self.is_process,
            has_corrected: AtomicBool::new(false),
        };
        Arc::new(base.agent(prompt.text(), Arc::new(tools), supervision))
    }

    fn supervision_of(&self, operations: &Operations) -> Supervision {
        let (mut tiers, mut ends_run) = (BTreeMap::new(), BTreeMap::new());
        for (name, tier) in operations.tiers_by_name() {
            tiers.insert(name.clone(), tier_of(if self.is_dry { openexperts::Tier::Auto } else { tier }));
            if self.is_process {
                ends_run.insert(name, EndsRun::OnFault);
            }
        }
        ends_run.extend([FINISH_FUNCTION, ESCALATE].map(|name| (name.to_owned(), EndsRun::OnSuccess)));
        Supervision {
            tiers,
            rules: approval_rules(&self.package, self.requester.clone()),
            ends_run,
            settled: self.settled.clone(),
            calls_once: self.is_process,
            snapshot: self.snapshot.clone(),
            is_private: self.is_private,
            ends_at_limits: self.is_process,
            notices: self.notices(),
            ..Supervision::default()
        }
    }

    /// Returns the notices of a conversation; `None` in a process, which itself reports to people what its
    /// functions handed over.
    fn notices(&self) -> Option<Arc<dyn Notices>> {
        let expert = self.package.manifest.name.value.clone();
        let notices = ConversationNotices { expert, is_function: true };
        (!self.is_process).then(|| Arc::new(notices) as Arc<dyn Notices>)
    }

    /// Returns the end of a function, as the calling run receives it.
    fn end_function(
        &self,
        function: &Function,
        call: &RequestedCall,
        arguments: &Value,
        outcome: Outcome,
    ) -> Outcome {
        let declared = &function.outputs.items;
        let content = if declared.is_empty() {
            text_of(arguments, "result").to_owned()
        } else {
            let checked = outputs::check_outputs(declared, Some(arguments));
            let is_in_doubt =
                checked.outputs.get(CONFIDENCE) == Some(&json!("low")) && self.escalates_when_unsure();
            if is_in_doubt && self.is_process {
                return escalate_doubt(function, call, &checked.outputs, outcome);
            }
            result_text(&checked, is_in_doubt)
        };
        Outcome { content, ended_by: None, ..outcome }
    }
}

impl ChildRuns for IsolatedFunctions {
    fn child_tools(&self) -> Vec<OfferedTool> {
        let offered = |function: &Function| OfferedTool {
            name: call_name(&function.name.value),
            description: format!(
                "{}. Runs by itself: it gets these inputs and nothing of this conversation, and gives its outputs.",
                one_line(&function.description).trim_end_matches('.')
            ),
            parameters: input_schema(function),
            executor: Executor::Child,
            result_limit: LONGEST_RESULT,
            tier: Tier::Auto,
            ends_run: if self.is_process { EndsRun::OnFault } else { EndsRun::Never },
            judges_arguments: false,
        };
        self.all().map(offered).collect()
    }

    fn child_run(&self, call: &RequestedCall, seed: u64, at: u64) -> Result<(Arc<Agent>, Setup), String> {
        let function = self
            .called_function(call)
            .ok_or_else(|| format!("there is no isolated function {}", call.name))?;
        let agent = self.agent(function);
        let arguments = call.parsed_arguments();
        let declared = function.inputs.items.iter().map(|input| &input.name);
        let input = |name: &String| {
            let value = arguments.get(name).cloned();
            value.map(|value| (name.clone(), value)).ok_or_else(|| format!("the input `{name}` is missing"))
        };
        let inputs = declared.map(input).collect::<Result<Map<String, Value>, String>>()?;
        let task = format!(
            "Perform the function `{}` now.\n\n## Inputs\n\n{}\n\nWhen it is done, call `{FINISH_FUNCTION}`.",
            one_line(&function.name.value),
            fenced_json("the function's inputs", &Value::Object(inputs))
        );
        let setup = agent.child_setup(AgentRequest::from_task(&task), seed, at);
        Ok((agent, setup))
    }

    fn child_result(&self, call: &RequestedCall, outcome: Outcome) -> Outcome {
        let Some(function) = self.called_function(call) else { return outcome };
        if outcome.failure.is_some() || outcome.cancelled {
            // What it had written by then is not one of its outputs.
            return Outcome { content: String::new(), reasoning: String::new(), ..outcome };
        }
        let outcome = Outcome { reasoning: String::new(), ..outcome };
        match &outcome.ended_by {
            Some(by) if by.name == FINISH_FUNCTION => {
                self.end_function(function, call, &by.parsed_arguments(), outcome)
            }
            Some(_) => outcome,
            None if function.outputs.items.is_empty() => outcome,
            None => {
                let content = format!(
                    "[the function ended without its outputs, because it did not call {FINISH_FUNCTION}; nothing of it came back]"
                );
                Outcome { content, ..outcome }
            }
        }
    }
}

/// Returns the JSON Schema of a function's inputs: all are required.
fn input_schema(function: &Function) -> Value {
    let mut schema = outputs::schema_of(&function.inputs.items);
    schema["required"] = function.inputs.items.iter().map(|input| input.name.as_str()).collect();
    schema
}

/// Returns the correct outputs, and a note about the rest.
fn result_text(checked: &outputs::Checked, is_in_doubt: bool) -> String {
    let mut text = Value::Object(checked.outputs.clone()).to_string();
    if !checked.problems.is_empty() {
        text = format!("{text}\n[not as declared: {}]", checked.problems.join("; "));
    }
    if is_in_doubt {
        text.push_str("\n[the function is not sure: do not act on this, but let the person decide]");
    }
    text
}

/// Ends the calling process as one for a person to decide, because a function is unsure.
fn escalate_doubt(
    function: &Function,
    call: &RequestedCall,
    outputs: &Map<String, Value>,
    outcome: Outcome,
) -> Outcome {
    let name = one_line(&function.name.value);
    let arguments = json!({
        "reason": format!("The function {name} is not sure of its result (confidence: low)."),
        "context": json!({"inputs": call.parsed_arguments(), "outputs": outputs}).to_string(),
        "recommendation": format!("Check what {name} found, then decide."),
    });
    let by = RequestedCall {
        name: ESCALATE.to_owned(),
        arguments: arguments.to_string(),
        ..RequestedCall::default()
    };
    Outcome { content: text_of(&arguments, "reason").to_owned(), ended_by: Some(by), ..outcome }
}

fn text_of<'a>(arguments: &'a Value, name: &str) -> &'a str {
    arguments[name].as_str().unwrap_or_default()
}

/// The tools of a function's own run.
struct FunctionTools {
    operations: Operations,
    package: Arc<Package>,
    function: Function,
    is_process: bool,
    /// The outputs have been sent back once.
    has_corrected: AtomicBool,
}

impl FunctionTools {
    fn read(&self, written: &str) -> Result<String, ToolError> {
        let (wanted, readable) =
            (path::normalize(written), readable_knowledge(&self.package, &self.function));
        let found = readable.iter().find(|(path, name)| **path == wanted || **name == wanted);
        let text = found.and_then(|(path, _)| self.package.files.get(path));
        text.cloned().ok_or_else(|| {
            let names: Vec<&str> = readable.values().map(String::as_str).collect();
            let known = names.join(", ");
            ToolError::Failed(format!("there is no file {written}; this function may read: {known}"))
        })
    }

    /// Ends the function. Wrong outputs are sent back once; after that, it ends with the correct ones.
    fn finish(&self, arguments: &Value) -> Result<String, ToolError> {
        let checked = outputs::check_outputs(&self.function.outputs.items, Some(arguments));
        let is_wrong = !self.function.outputs.items.is_empty() && !checked.problems.is_empty();
        if is_wrong && !self.has_corrected.swap(true, Ordering::Relaxed) {
            return Err(ToolError::Failed(format!(
                "the function has not ended, because its outputs are not as declared: {}. Call {FINISH_FUNCTION} again with all of them",
                checked.problems.join("; ")
            )));
        }
        Ok(Value::Object(checked.outputs).to_string())
    }

    fn finish_tool(&self) -> ToolSpec {
        let declared = &self.function.outputs.items;
        let description = "Ends the function with its outputs. Call it once, when all is done.";
        let mut tool = tool_spec(FINISH_FUNCTION, description, &json!({}), &[], true);
        tool.parameters = if declared.is_empty() {
            json!({"type": "object", "properties": {"result": {"type": "string", "description": "The result"}},
                "required": ["result"]})
        } else {
            outputs::strict_schema(declared)
        };
        tool
    }
}

#[async_trait]
impl Tools for FunctionTools {
    fn specs(&self) -> Vec<ToolSpec> {
        let mut specs: Vec<ToolSpec> =
            self.operations.all().iter().map(|operation| operation.spec.clone()).collect();
        let readable = readable_knowledge(&self.package, &self.function);
        if !readable.is_empty() {
            let names: Vec<&str> = readable.values().map(String::as_str).collect();
            let path = json!({"path": {"type": "string", "enum": names}});
            specs.push(tool_spec(
                "read",
                "Reads a file that this function may look up.",
                &path,
                &["path"],
                true,
            ));
        }
        specs.push(self.finish_tool());
        specs.extend(self.is_process.then(escalate_tool));
        specs
    }

    async fn call(
        &self,
        invocation: &Invocation,
        approver: Option<&dyn Approver>,
    ) -> Result<ToolOutput, ToolError> {
        if let Some(called) = self.operations.call(invocation, approver).await {
            return called;
        }
        let arguments = Value::Object(invocation.arguments.clone());
        let done = match invocation.name.as_str() {
            "read" => self.read(text_of(&arguments, "path")),
            FINISH_FUNCTION => self.finish(&arguments),
            ESCALATE if self.is_process => Ok(text_of(&arguments, "reason").to_owned()),
            other => Err(ToolError::Failed(format!("there is no tool {other}"))),
        };
        done.map(|text| ToolOutput { text, ..ToolOutput::default() })
    }

    async fn effect(&self, invocation: &Invocation) -> Option<Effect> {
        self.operations.effect(invocation).await
    }

    async fn note_refusal(&self, invocation: &Invocation, by: &str) {
        self.operations.note_refusal(invocation, by).await;
    }

    async fn note_unknown(&self, invocation: &Invocation) {
        self.operations.note_unknown(invocation).await;
    }
}
