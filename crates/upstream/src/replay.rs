//! The replay upstream: a small HTTP server that answers like a vLLM which says exactly what was recorded. It
//! stands behind `--upstream replay:DIR`, `respool demo` and tests.
//!
//! Every recording's NAME is a model id. The server is as strict about requests as vLLM 0.32, and in places
//! stricter (see `request.rs`), so that what works against it works against the real one. It never invents a
//! reply: a form that was not recorded is refused, and a stream recorded without a usage chunk has none.

mod answer;
mod error;
mod framing;
mod recording;
mod request;
mod serve;
mod tour;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;

use answer::{ReplayBody, ReplayResponse};
pub use error::{RecordingError, ReplayError};
pub use recording::{Form, Recording};
use request::{CheckedRequest, Refusal};
pub use serve::serve_replay;

/// How many requests [`Replay::seen`] remembers.
const REMEMBERED: usize = 64;
/// The largest request body, in bytes. vLLM has no limit; a process in front of it must not need more.
const MAX_BODY: usize = 64 << 20;

/// A request that the replay upstream got, and what it answered.
#[derive(Clone, Debug)]
pub struct SeenRequest {
    /// The method, as sent.
    pub method: String,
    /// Path and query, as sent.
    pub target: String,
    /// Header names in lower case with their values, in the order of arrival.
    pub headers: Vec<(String, String)>,
    /// The body, byte for byte.
    pub body: Bytes,
    /// The status of the answer.
    pub answer_status: u16,
    /// The whole body of the answer; of a stream, all its chunks.
    pub answer_body: Bytes,
}

/// The recordings, by model id, and the requests that came for them.
#[derive(Debug, Default)]
pub struct Replay {
    models: BTreeMap<String, Vec<Recording>>,
    chunk_delay: Duration,
    seen: Mutex<VecDeque<SeenRequest>>,
    /// How many requests each kind of reply has answered.
    answered: Mutex<BTreeMap<(String, bool, Form), usize>>,
    /// The replies that are sent in this order, whatever is asked.
    sequence: Option<Mutex<VecDeque<Recording>>>,
    /// Whether the last of them is repeated although it is a success.
    repeats_last: bool,
}

impl Replay {
    /// Reads every capture of a directory (`NAME.nonstream.resp.http`, `NAME.stream.resp.http`,
    /// `NAME.resp.http`, `NAME.nonstream.body`, `NAME.stream.body`, each also as `NAME.after-tool.…`); other
    /// files are passed over.
    ///
    /// # Errors
    /// The directory or a capture cannot be read or parsed, two captures hold the same reply, or there is
    /// none.
    pub fn load(dir: &Path) -> Result<Self, ReplayError> {
        let mut recordings: Vec<(String, Recording)> = Vec::new();
        for file in files_of(dir)? {
            let path = dir.join(&file);
            if !Recording::is_named(&file) {
                continue;
            }
            let bytes =
                std::fs::read(&path).map_err(|source| ReplayError::Unreadable(path.clone(), source))?;
            let recording = Recording::parse(&file, bytes.into())
                .map_err(|reason| ReplayError::NotACapture(path.clone(), reason))?;
            if let Some((other, _)) = recordings.iter().find(|(_, known)| known.stands_for_same(&recording)) {
                return Err(ReplayError::Twice(path, other.clone()));
            }
            recordings.push((file, recording));
        }
        if recordings.is_empty() {
            return Err(ReplayError::Empty(dir.to_owned()));
        }
        Ok(Self::from_recordings(recordings.into_iter().map(|(_, recording)| recording).collect()))
    }

    /// Serves these recordings. Those that stand for the same reply are sent in turn, and then from the first
    /// one again.
    pub fn from_recordings(recordings: Vec<Recording>) -> Self {
        let mut models: BTreeMap<String, Vec<Recording>> = BTreeMap::new();
        for recording in recordings {
            models.entry(recording.model.clone()).or_default().push(recording);
        }
        Self { models, ..Self::default() }
    }

    /// Sends each of these recordings once, in this order, whatever is asked. A failure at the end is
    /// repeated; after a success, further requests are refused.
    pub fn answer_in_order(recordings: Vec<Recording>) -> Self {
        let models = recordings.iter().map(|recording| (recording.model.clone(), Vec::new())).collect();
        Self { models, sequence: Some(Mutex::new(recordings.into())), ..Self::default() }
    }

    /// Repeats the last reply of [`Self::answer_in_order`] even if it is a success, such as a stream that
    /// broke off.
    #[must_use]
    pub fn repeating_last(mut self, repeats: bool) -> Self {
        self.repeats_last = repeats;
        self
    }

    /// Returns the recordings of `respool demo`.
    ///
    /// # Errors
    /// Never, as a test shows: they are part of the program.
    pub fn tour() -> Result<Self, RecordingError> {
        Ok(Self::from_recordings(tour::demo_recordings()?))
    }

    /// Lets this much time pass before each chunk of a stream.
    #[must_use]
    pub fn with_chunk_delay(mut self, delay: Duration) -> Self {
        self.chunk_delay = delay;
        self
    }

    /// Returns the model ids served, sorted.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.models.keys().map(String::as_str)
    }

    /// Returns the last requests that came (up to 64), oldest first.
    pub fn seen_requests(&self) -> Vec<SeenRequest> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Returns the last request to a model, which questions about the server are not.
    pub fn last_posted(&self) -> Option<SeenRequest> {
        self.seen_requests().into_iter().rfind(|seen| seen.method == "POST")
    }

    fn remember(&self, request: SeenRequest) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() == REMEMBERED {
            seen.pop_front();
        }
        seen.push_back(request);
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<ReplayBody> {
        let (head, body) = request.into_parts();
        let (answer, body) = match Limited::new(body, MAX_BODY).collect().await {
            Ok(body) => {
                let body = body.to_bytes();
                (self.route(&head.method, head.uri.path(), &head.headers, &body), body)
            }
            Err(error) => (answer::unreadable_body(&*error), Bytes::new()),
        };
        self.remember(SeenRequest {
            method: head.method.to_string(),
            target: head.uri.to_string(),
            headers: answer::readable_headers(&head.headers),
            body,
            answer_status: answer.status.as_u16(),
            answer_body: answer.whole_body(),
        });
        if !answer.silence.is_zero() {
            tokio::time::sleep(answer.silence).await;
        }
        answer.into_response(self.chunk_delay)
    }

    fn route(&self, method: &Method, path: &str, headers: &HeaderMap, body: &[u8]) -> ReplayResponse {
        let allowed = match path {
            "/v1/chat/completions" => Method::POST,
            "/v1/models" | "/health" | "/version" => Method::GET,
            _ => return answer::detail_response(StatusCode::NOT_FOUND, "Not Found"),
        };
        if method != allowed {
            return answer::method_not_allowed(&allowed);
        }
        match path {
            "/v1/models" => answer::models_response(self.models()),
            "/health" => answer::health_response(),
            "/version" => answer::version_response(),
            _ => self.answer_chat(headers, body).unwrap_or_else(answer::refusal_response),
        }
    }

    /// Answers a chat request. It checks in vLLM's order: the request's shape, then its model, then the
    /// conversation.
    fn answer_chat(&self, headers: &HeaderMap, body: &[u8]) -> Result<ReplayResponse, Refusal> {
        if let Some(sequence) = &self.sequence {
            let mut left = sequence.lock().unwrap_or_else(PoisonError::into_inner);
            let is_repeated = |last: &Recording| self.repeats_last || !last.status.is_success();
            let stays = left.len() == 1 && left.front().is_some_and(is_repeated);
            let next = if stays { left.front().cloned() } else { left.pop_front() };
            let recording = next.ok_or_else(Refusal::nothing_left)?;
            return Ok(answer::recorded_response(&recording, true));
        }
        let asked = CheckedRequest::read(headers, body)?;
        let recordings = match &asked.model {
            Some(model) => {
                self.models.get(model).ok_or_else(|| Refusal::unknown_model(model, self.models()))?
            }
            None => self.models.values().next().ok_or_else(|| Refusal::unknown_model("", self.models()))?,
        };
        asked.check_history()?;
        let recording = self.next_of(recordings, choose_recording(recordings, &asked)?);
        Ok(answer::recorded_response(recording, asked.include_usage))
    }

    /// Returns the recording whose turn it is among those that stand for the same reply as `first`.
    fn next_of<'r>(&self, recordings: &'r [Recording], first: &'r Recording) -> &'r Recording {
        let same: Vec<&Recording> =
            recordings.iter().filter(|recording| recording.stands_for_same(first)).collect();
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let count = answered.entry((first.model.clone(), first.after_tool, first.form)).or_default();
        let turn = *count % same.len().max(1);
        *count += 1;
        same.get(turn).copied().unwrap_or(first)
    }
}

/// Returns the recording for this turn: of those after a tool result when the conversation ends in one and
/// there are any, the one of the form asked for, else a recorded error, which a server gives in either form.
fn choose_recording<'r>(
    recordings: &'r [Recording],
    asked: &CheckedRequest,
) -> Result<&'r Recording, Refusal> {
    let after_tool = asked.ends_in_tool_result && recordings.iter().any(|recording| recording.after_tool);
    let form = if asked.stream { Form::Stream } else { Form::Whole };
    let of_this_turn = || recordings.iter().filter(|recording| recording.after_tool == after_tool);
    of_this_turn()
        .find(|recording| recording.form == form)
        .or_else(|| of_this_turn().find(|recording| !recording.status.is_success()))
        .ok_or_else(|| Refusal::not_recorded(asked))
}

fn files_of(dir: &Path) -> Result<Vec<String>, ReplayError> {
    let unreadable = |source| ReplayError::Unreadable(dir.to_owned(), source);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(unreadable)? {
        if let Ok(name) = entry.map_err(unreadable)?.file_name().into_string() {
            files.push(name);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests;
