//! An agent's name as `model`, on any wire. For `POST /v1/chat/completions` all of it: begins or continues a run, shows what is being done as
//! reasoning, keeps a silent stream alive, and spools the answer out.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use super::final_error::ErrorForm;
use super::heartbeat::{self, Source, frame};
use super::stream_head::{StreamHead, until_stopped};
use super::{App, respond};
use agent::{Agent, AgentRequest, ApprovalRequest, RequestedCall, Watch, WatchEvent, WorkEnd, WorkReport};
use openexperts::MODEL_PREFIX;
use relay::Wire;
use telemetry::RequestRecord;
use translate::{ChatSink, ClientProgram, Head, Ids, Reply, ReplyChoice, completion_json};
use wire::turn::{ChoiceEvent, FinishReason, ToolCall, Turn, TurnEvent, Usage};
use wire::{ApiError, ChatRequest, ErrorCode};

/// How long a conversation with an expert waits for the first start of its servers.
const FIRST_START: Duration = Duration::from_secs(5);

/// The header that names a run.
pub(super) const RUN_ID: HeaderName = HeaderName::from_static("x-respool-run-id");

/// The agent that a request body names, if it names one, and the program that asks. Nearly free where there is none.
pub(super) fn asked_for(app: &App, body: &Bytes) -> Option<(Arc<Agent>, ClientProgram)> {
    let names = |name: &str| memchr::memmem::find(body, name.as_bytes()).is_some();
    let is_expert = app.experts.is_some() && names(MODEL_PREFIX);
    if !is_expert && !app.agents.all_agents().iter().any(|agent| names(&agent.name)) {
        return None;
    }
    let request = ChatRequest::parse(body).ok()?;
    Some((app.agent(&request.model())?, ClientProgram::of_chat(&request)))
}

pub(super) async fn answer(
    app: App,
    (agent, program): (Arc<Agent>, ClientProgram),
    body: &Bytes,
    headers: &HeaderMap,
    record: &RequestRecord,
) -> Response {
    let form = app.error_form(Wire::Chat, program);
    let answer = match begin(app, (agent, program), body, headers, record).await {
        Ok(answer) => answer,
        Err(error) => return respond::error_as(form, error, &record.start().id),
    };
    let run = answer.run_id();
    let mut response = if answer.stream { answer.streamed().await } else { answer.whole().await };
    response.headers_mut().extend(run.map(|id| (RUN_ID, id)));
    response
}

/// Begins a run, or finds the one that the request belongs to.
///
/// # Errors
/// 403 for another site's page, 400 when the body is no chat request or asks for what an agent does not do.
pub(super) async fn begin(
    app: App,
    (agent, program): (Arc<Agent>, ClientProgram),
    body: &Bytes,
    headers: &HeaderMap,
    record: &RequestRecord,
) -> Result<RunReply, ApiError> {
    record.served_by_agent(&agent.name);
    app.access.foreign_page(headers).map_or(Ok(()), Err)?;
    let agent = with_known_tools(&app, agent).await;
    let request = AgentRequest::parse(body)?
        .of_client(headers.get(header::AUTHORIZATION).map_or(&[], HeaderValue::as_bytes));
    // Another agent's instructions and tools have no place beside an expert's policy.
    let request = if agent.name.starts_with(MODEL_PREFIX) { request.as_conversation() } else { request };
    let request = request.with_key(record.start().key().map(str::to_owned));
    let request = AgentRequest { part_of: record.trace_context(), ..request };
    record.stream(request.stream);
    let (stream, usage) = (request.stream, request.usage);
    let key = headers.get(header::AUTHORIZATION).cloned();
    if let Some((experts, name)) = app.experts.as_ref().zip(agent.name.strip_prefix(MODEL_PREFIX))
        && let Some(why) = experts.must_wait(name, &request).await
    {
        return Err(ApiError::new(503, ErrorCode::ExpertNotReady, why));
    }
    let watch = app.agents.serve_request(&agent, request, key).await;
    let errors = app.error_form(Wire::Chat, program);
    record.run(&watch.run);
    Ok(RunReply { app, agent, watch, record: record.clone(), stream, usage, errors })
}

/// The agent itself; of an expert whose servers start for the first time, one that is made when they have listed their tools.
async fn with_known_tools(app: &App, agent: Arc<Agent>) -> Arc<Agent> {
    let expert = app.experts.as_ref().zip(agent.name.strip_prefix(MODEL_PREFIX));
    match expert.filter(|(experts, name)| experts.is_starting(name)) {
        Some((experts, name)) => {
            experts.await_servers(name, FIRST_START).await;
            app.agent(&agent.name).unwrap_or(agent)
        }
        None => agent,
    }
}

/// What an agent's run says next.
pub(super) enum RunOutput {
    /// What is being done, for a client that is to see it.
    Progress(String),
    /// The answer.
    Answer(Box<Reply>),
    /// There is none.
    Failed(ApiError),
}

/// One reply of an agent.
pub(super) struct RunReply {
    app: App,
    agent: Arc<Agent>,
    watch: Watch,
    record: RequestRecord,
    stream: bool,
    usage: bool,
    errors: ErrorForm,
}

impl RunReply {
    /// The run's id, as a header.
    pub(super) fn run_id(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.watch.run).ok()
    }

    /// Waits for what the run says next. Safe to cancel.
    pub(super) async fn next(&mut self) -> RunOutput {
        loop {
            match self.see().await {
                WatchEvent::Progress(text) if self.agent.shows_progress() => {
                    return RunOutput::Progress(text);
                }
                WatchEvent::Progress(_) => {}
                WatchEvent::End(ended) => {
                    if let Some(error) = ended.error() {
                        return RunOutput::Failed(error);
                    }
                    self.answered(&ended).await;
                    return RunOutput::Answer(Box::new(self.reply(&ended, self.head())));
                }
            }
        }
    }

    async fn whole(mut self) -> Response {
        let ended = loop {
            if let WatchEvent::End(ended) = self.see().await {
                break ended;
            }
        };
        if let Some(error) = ended.error() {
            return respond::error_as(self.errors, error, &self.record.start().id);
        }
        self.answered(&ended).await;
        let reply = self.reply(&ended, self.head());
        respond::json(StatusCode::OK, completion_json(&reply, self.agent.reasoning))
    }

    /// A failure has its own status until there is something to show, or `commit_after` is over.
    async fn streamed(mut self) -> Response {
        let head = StreamHead::new(&self.app, &self.record);
        loop {
            let Some(seen) = head.wait(self.see()).await else { return self.committed(None) };
            match seen.unwrap_or_else(|_| WatchEvent::stopped()) {
                WatchEvent::End(ended) => match ended.error() {
                    Some(error) => return respond::error_as(self.errors, error, &self.record.start().id),
                    None => return self.committed(Some(WatchEvent::End(ended))),
                },
                seen @ WatchEvent::Progress(_) if self.shows() => return self.committed(Some(seen)),
                WatchEvent::Progress(_) => {}
            }
        }
    }

    /// Waits for what the run does next. Its client does not wait for work that goes on although respool is
    /// stopped.
    async fn see(&mut self) -> WatchEvent {
        let seen = until_stopped(&self.app.abort, self.watch.next()).await;
        seen.unwrap_or_else(|_| WatchEvent::stopped())
    }

    fn shows(&self) -> bool {
        self.agent.shows_progress() && self.agent.reasoning.is_some()
    }

    fn committed(self, seen: Option<WatchEvent>) -> Response {
        let (every, record) = (self.app.limits.heartbeat, self.record.clone());
        let head = self.head();
        let (mut sink, mut first) = (ChatSink::new(self.agent.reasoning, self.usage), Vec::new());
        sink.begin(&head);
        sink.roles(1, &mut first);
        heartbeat::streamed(
            RunSource { answer: self, sink, head, seen, ended: None },
            first.into(),
            every,
            &record,
        )
    }

    fn rest(&self, sink: &mut ChatSink, ended: &WorkReport, head: Head) -> Bytes {
        if let Some(error) = ended.error() {
            return respond::failed_tail(&self.errors.in_stream(error), &self.record);
        }
        let mut out = Vec::new();
        sink.write_reply(self.reply(ended, head), &mut out);
        out.into()
    }

    /// The client has it, as far as is known.
    async fn answered(&self, ended: &WorkReport) {
        if ended.end != WorkEnd::Left {
            self.app.agents.mark_answered(&self.watch.run).await;
        }
    }

    fn head(&self) -> Head {
        let id = Ids::new(rand::random(), HashSet::new()).reply_id();
        Head { id, created: clock::now_in_seconds(), model: self.agent.name.to_string(), tags: vec![] }
    }

    fn reply(&self, ended: &WorkReport, head: Head) -> Reply {
        let turn = turn(&ended.end);
        let usage = Usage {
            prompt: ended.spent.prompt,
            completion: ended.spent.completion,
            cached: (ended.spent.cached > 0).then_some(ended.spent.cached),
            reasoning: (ended.spent.reasoning > 0).then_some(ended.spent.reasoning),
            ..Usage::default()
        };
        self.record.usage(Some(usage));
        self.record.turn(&turn);
        self.record.is_whole();
        Reply {
            head,
            choices: vec![ReplyChoice { turn, ..ReplyChoice::default() }],
            usage: Some(usage),
            ..Reply::default()
        }
    }
}

/// The source of the stream that shows a run.
struct RunSource {
    answer: RunReply,
    sink: ChatSink,
    head: Head,
    /// What was seen before the head left.
    seen: Option<WatchEvent>,
    /// The end has left.
    ended: Option<Arc<WorkReport>>,
}

impl Source for RunSource {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(ended) = &self.ended {
            self.answer.answered(ended).await;
            return None;
        }
        let seen = match self.seen.take() {
            Some(seen) => seen,
            None => self.answer.see().await,
        };
        Some(match seen {
            WatchEvent::Progress(text) => self.shown(text).unwrap_or_default(),
            WatchEvent::End(ended) => {
                let rest = self.answer.rest(&mut self.sink, &ended, self.head.clone());
                self.ended = Some(ended);
                rest
            }
        })
    }

    fn heartbeat(&mut self) -> Option<Bytes> {
        self.sink.heartbeat().filter(|_| self.ended.is_none()).map(|heartbeat| frame(&heartbeat))
    }
}

impl RunSource {
    fn shown(&mut self, text: String) -> Option<Bytes> {
        let mut out = Vec::new();
        let shows = self.answer.shows();
        shows.then(|| self.sink.write(&ChoiceEvent::new(0, TurnEvent::Reasoning(text)), &mut out))?;
        Some(out.into())
    }
}

/// The turn that a client gets of a run.
fn turn(end: &WorkEnd) -> Turn {
    let call = |call: &RequestedCall| ToolCall {
        id: Some(call.id.clone()),
        name: call.name.clone(),
        arguments: call.arguments.clone(),
        problems: call.problems.clone(),
    };
    match end {
        WorkEnd::Suspended(suspension) => Turn {
            reasoning: suspension.reasoning.clone(),
            content: suspension.content.clone(),
            calls: suspension.calls.iter().map(call).collect(),
            finish: Some(FinishReason::ToolCalls),
            ..Turn::default()
        },
        WorkEnd::Finished(outcome) => Turn {
            reasoning: outcome.reasoning.clone(),
            content: outcome.text(),
            finish: Some(if outcome.cut { FinishReason::Length } else { FinishReason::Stop }),
            ..Turn::default()
        },
        WorkEnd::AwaitingApproval(request) => {
            Turn { content: awaits(request), finish: Some(FinishReason::Stop), ..Turn::default() }
        }
        WorkEnd::Left => Turn::default(),
    }
}

/// The text that a client gets of a run that waits for consent.
fn awaits(request: &ApprovalRequest) -> String {
    let calls: Vec<String> =
        request.calls.iter().map(|call| format!("{} {}", call.name, call.arguments)).collect();
    format!(
        "{}\n\n[respool: the run waits for a person's approval `{}` of: {}. It goes on by itself when that is given]",
        request.reason.trim_end(),
        request.id,
        calls.join("; ")
    )
    .trim_start()
    .to_owned()
}
