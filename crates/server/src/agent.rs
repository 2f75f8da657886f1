//! Requests whose `model` is an agent's name, on any API. For `POST /v1/chat/completions` this file does
//! everything: it begins or continues a run, shows the activity as reasoning, keeps a silent stream alive,
//! and streams the answer.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use super::app::App;
use super::final_error::ErrorForm;
use super::front::NamedAgent;
use super::heartbeat::{self, Source, sse_frame};
use super::respond;
use super::respond::store_failed;
use super::stream_head::{StreamHead, run_until_stopped};
use agent::{Agent, AgentRequest, ApprovalRequest, RequestedCall, Watch, WatchEvent, WorkEnd, WorkReport};
use openexperts::MODEL_PREFIX;
use relay::Wire;
use telemetry::RequestRecord;
use translate::{ChatSink, ClientProgram, Head, Ids, Reply, ReplyChoice, completion_json};
use wire::turn::{ChoiceEvent, FinishReason, ToolCall, Turn, TurnEvent, Usage};
use wire::{ApiError, ErrorCode};

/// How long a conversation with an expert waits for the first start of its servers.
const FIRST_START: Duration = Duration::from_secs(5);

/// The header that names a run.
pub(super) const RUN_ID: HeaderName = HeaderName::from_static("x-respool-run-id");

/// Begins a run, or finds the one that the request belongs to.
///
/// # Errors
/// 403 for another site's page, 400 when the body is not a chat request or asks for something that an agent
/// does not do, 503 when the run cannot be kept where other processes look for it.
pub(super) async fn begin_run(
    app: App,
    named: NamedAgent,
    body: &Bytes,
    headers: &HeaderMap,
    record: &RequestRecord,
) -> Result<RunReply, ApiError> {
    let NamedAgent { agent, program } = named;
    record.set_serving_agent(&agent.name);
    app.access.foreign_page(headers).map_or(Ok(()), Err)?;
    let agent = with_known_tools(&app, agent).await;
    let request = AgentRequest::parse(body)?
        .with_client_key(headers.get(header::AUTHORIZATION).map_or(&[], HeaderValue::as_bytes));
    // The instructions and tools of another agent do not belong under an expert's policy.
    let request = if agent.name.starts_with(MODEL_PREFIX) { request.as_conversation() } else { request };
    let request = request.with_key(record.start().key_name().map(str::to_owned));
    let request = AgentRequest { part_of: record.trace_context(), ..request };
    record.set_stream(request.stream);
    let (stream, usage) = (request.stream, request.usage);
    let key = headers.get(header::AUTHORIZATION).cloned();
    if let Some((experts, name)) = app.experts.as_ref().zip(agent.name.strip_prefix(MODEL_PREFIX))
        && let Some(why) = experts.must_wait(name, &request).await
    {
        return Err(ApiError::new(503, ErrorCode::ExpertNotReady, why));
    }
    let watch = app.agents.serve_request(&agent, request, key).await.map_err(store_failed)?;
    let errors = app.error_form(Wire::Chat, program);
    record.set_run(&watch.run);
    Ok(RunReply { app, agent, watch, record: record.clone(), stream, usage, errors })
}

/// Returns the agent itself. For an expert whose servers start for the first time, it returns an agent made
/// once they have listed their tools.
async fn with_known_tools(app: &App, agent: Arc<Agent>) -> Arc<Agent> {
    let expert = app.experts.as_ref().zip(agent.name.strip_prefix(MODEL_PREFIX));
    match expert.filter(|(experts, name)| experts.is_starting(name)) {
        Some((experts, name)) => {
            experts.await_servers(name, FIRST_START).await;
            app.find_agent(&agent.name).unwrap_or(agent)
        }
        None => agent,
    }
}

/// The next output of an agent's run.
pub(super) enum RunOutput {
    /// The current activity, for a client that sees it.
    Progress(String),
    /// The answer.
    Answer(Box<Reply>),
    /// The run failed.
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
    /// Answers a client of chat completions.
    pub(super) async fn answer_chat(self) -> Response {
        let run = self.run_id();
        let mut response = if self.stream { self.answer_streamed().await } else { self.answer_whole().await };
        response.headers_mut().extend(run.map(|id| (RUN_ID, id)));
        response
    }

    /// Returns the program that asks.
    pub(super) fn client_program(&self) -> ClientProgram {
        self.errors.program
    }

    /// Returns the run's id, as a header.
    pub(super) fn run_id(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.watch.run).ok()
    }

    /// Waits for the next output of the run. Safe to cancel.
    pub(super) async fn next(&mut self) -> RunOutput {
        loop {
            match self.next_event().await {
                WatchEvent::Progress(text) if self.agent.shows_progress() => {
                    return RunOutput::Progress(text);
                }
                WatchEvent::Progress(_) => {}
                WatchEvent::End(ended) => {
                    if let Some(error) = ended.error() {
                        return RunOutput::Failed(error);
                    }
                    self.note_delivery(&ended).await;
                    return RunOutput::Answer(Box::new(self.build_reply(&ended, self.reply_head())));
                }
            }
        }
    }

    async fn answer_whole(mut self) -> Response {
        let ended = loop {
            if let WatchEvent::End(ended) = self.next_event().await {
                break ended;
            }
        };
        if let Some(error) = ended.error() {
            return respond::error_as(self.errors, error, &self.record.start().id);
        }
        self.note_delivery(&ended).await;
        let reply = self.build_reply(&ended, self.reply_head());
        respond::json_response(StatusCode::OK, completion_json(&reply, self.agent.reasoning))
    }

    /// Answers with a stream. A failure has its own status until there is something to show, or
    /// `commit_after` has passed.
    async fn answer_streamed(mut self) -> Response {
        let head = StreamHead::new(&self.app, &self.record);
        loop {
            let Some(seen) = head.wait_for(self.next_event()).await else { return self.commit_head(None) };
            match seen.unwrap_or_else(|_| WatchEvent::stop_event()) {
                WatchEvent::End(ended) => match ended.error() {
                    Some(error) => return respond::error_as(self.errors, error, &self.record.start().id),
                    None => return self.commit_head(Some(WatchEvent::End(ended))),
                },
                seen @ WatchEvent::Progress(_) if self.shows_progress() => {
                    return self.commit_head(Some(seen));
                }
                WatchEvent::Progress(_) => {}
            }
        }
    }

    /// Waits for the next event of the run. When respool stops, its client does not wait for work that
    /// continues.
    async fn next_event(&mut self) -> WatchEvent {
        let seen = run_until_stopped(&self.app.abort, self.watch.next()).await;
        seen.unwrap_or_else(|_| WatchEvent::stop_event())
    }

    fn shows_progress(&self) -> bool {
        self.agent.shows_progress() && self.agent.reasoning.is_some()
    }

    fn commit_head(self, seen: Option<WatchEvent>) -> Response {
        let (every, record) = (self.app.limits.heartbeat, self.record.clone());
        let head = self.reply_head();
        let (mut sink, mut first) = (ChatSink::new(self.agent.reasoning, self.usage), Vec::new());
        sink.set_head(&head);
        sink.write_roles(1, &mut first);
        heartbeat::stream_response(
            RunSource { answer: self, sink, head, seen, ended: None },
            first.into(),
            every,
            &record,
        )
    }

    fn final_frames(&self, sink: &mut ChatSink, ended: &WorkReport, head: Head) -> Bytes {
        if let Some(error) = ended.error() {
            return respond::failed_tail(&self.errors.apply_in_stream(error), &self.record);
        }
        let mut out = Vec::new();
        sink.write_reply(self.build_reply(ended, head), &mut out);
        out.into()
    }

    /// Notes that the client has the answer, as far as is known.
    async fn note_delivery(&self, ended: &WorkReport) {
        if ended.end != WorkEnd::Left {
            self.app.agents.mark_answered(&self.watch.run).await;
        }
    }

    fn reply_head(&self) -> Head {
        let id = Ids::new(rand::random(), HashSet::new()).reply_id();
        Head { id, created: clock::now_in_seconds(), model: self.agent.name.to_string(), tags: vec![] }
    }

    fn build_reply(&self, ended: &WorkReport, head: Head) -> Reply {
        let turn = client_turn(&ended.end);
        let usage = Usage {
            prompt: ended.spent.prompt,
            completion: ended.spent.completion,
            cached: (ended.spent.cached > 0).then_some(ended.spent.cached),
            reasoning: (ended.spent.reasoning > 0).then_some(ended.spent.reasoning),
            ..Usage::default()
        };
        self.record.set_usage(Some(usage));
        self.record.record_turn(&turn);
        self.record.mark_whole();
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
    /// The event that came before the head left.
    seen: Option<WatchEvent>,
    /// The end, once it has left.
    ended: Option<Arc<WorkReport>>,
}

impl Source for RunSource {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(ended) = &self.ended {
            self.answer.note_delivery(ended).await;
            return None;
        }
        let seen = match self.seen.take() {
            Some(seen) => seen,
            None => self.answer.next_event().await,
        };
        Some(match seen {
            WatchEvent::Progress(text) => self.progress_frame(text).unwrap_or_default(),
            WatchEvent::End(ended) => {
                let rest = self.answer.final_frames(&mut self.sink, &ended, self.head.clone());
                self.ended = Some(ended);
                rest
            }
        })
    }

    fn heartbeat(&mut self) -> Option<Bytes> {
        self.sink.heartbeat().filter(|_| self.ended.is_none()).map(|heartbeat| sse_frame(&heartbeat))
    }
}

impl RunSource {
    fn progress_frame(&mut self, text: String) -> Option<Bytes> {
        let mut out = Vec::new();
        let shows = self.answer.shows_progress();
        shows.then(|| self.sink.write_step(&ChoiceEvent::new(0, TurnEvent::Reasoning(text)), &mut out))?;
        Some(out.into())
    }
}

/// Returns the turn for the client of a run.
fn client_turn(end: &WorkEnd) -> Turn {
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
            Turn { content: approval_text(request), finish: Some(FinishReason::Stop), ..Turn::default() }
        }
        WorkEnd::Left => Turn::default(),
    }
}

/// Returns the text for the client of a run that waits for approval.
fn approval_text(request: &ApprovalRequest) -> String {
    let calls: Vec<String> =
        request.calls.iter().map(|call| format!("{} {}", call.name, call.arguments)).collect();
    format!(
        "{}\n\n[respool: the run waits for a person's approval `{}` of: {}. It goes on by itself when that is given]",
        request.content,
        request.id,
        calls.join("; ")
    )
    .trim_start()
    .to_owned()
}
