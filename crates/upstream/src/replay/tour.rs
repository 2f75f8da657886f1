//! The recordings of `respool demo`: each model id stands for one thing that models and servers do.
//!
//! All but the last one were captured from vLLM; the `summary.json` next to each capture says why the model
//! wrote it.

use std::time::Duration;

use bytes::Bytes;

use super::error::RecordingError;
use super::recording::Recording;

/// How long the slow model says nothing.
const SILENCE: Duration = Duration::from_millis(1500);

macro_rules! capture {
    ($path:literal) => {
        ($path, include_bytes!(concat!("../../../../fixtures/", $path)).as_slice())
    };
}

type Capture = (&'static str, &'static [u8]);

const CALL: [Capture; 2] = [
    capture!("vllm/v0.32.0-gptoss-harmony/ok-tool.nonstream.resp.http"),
    capture!("vllm/v0.32.0-gptoss-harmony/ok-tool.stream.resp.http"),
];
const LEAKED: [Capture; 2] = [
    capture!("vllm/v0.32.0-scripted-hermes-qwen3/xml-in-hermes.nonstream.resp.http"),
    capture!("vllm/v0.32.0-scripted-hermes-qwen3/xml-in-hermes.stream.resp.http"),
];
const CUT: [Capture; 2] = [
    capture!("vllm/v0.32.0-gptoss-harmony/truncated-args.nonstream.resp.http"),
    capture!("vllm/v0.32.0-gptoss-harmony/truncated-args.stream.resp.http"),
];
const FAILED: [Capture; 2] = [
    capture!("vllm/v0.13.0-gptoss-harmony/header-garbage.nonstream.resp.http"),
    capture!("vllm/v0.13.0-gptoss-harmony/header-garbage.stream.resp.http"),
];
const ANSWER: [Capture; 2] = [
    capture!("vllm/v0.32.0-gptoss-harmony/ok-final.nonstream.resp.http"),
    capture!("vllm/v0.32.0-gptoss-harmony/ok-final.stream.resp.http"),
];
const NOTE: [Capture; 1] = [capture!("tour/note-taker.after-tool.nonstream.body")];

/// Returns the recordings, by model; those of one model are answered in turn.
pub(super) fn demo_recordings() -> Result<Vec<Recording>, RecordingError> {
    let slow = |recording: Recording| recording.with_silence(SILENCE);
    let groups: [Vec<Recording>; 7] = [
        model_recordings("native-call", &[CALL])?,
        model_recordings("leaked-call", &[LEAKED])?,
        model_recordings("cut-call", &[CUT, CALL])?,
        model_recordings("failing-server", &[FAILED, CALL])?,
        model_recordings("slow-model", &[ANSWER])?.into_iter().map(slow).collect(),
        model_recordings("looping-model", &[CALL])?,
        model_recordings("note-taker", &[LEAKED])?.into_iter().chain(parse_captures(&NOTE)?).collect(),
    ];
    Ok(groups.into_iter().flatten().collect())
}

fn model_recordings(model: &str, captures: &[[Capture; 2]]) -> Result<Vec<Recording>, RecordingError> {
    Ok(parse_captures(captures.as_flattened())?
        .into_iter()
        .map(|recording| recording.with_model(model))
        .collect())
}

fn parse_captures(captures: &[Capture]) -> Result<Vec<Recording>, RecordingError> {
    let file = |path: &'static str| path.rsplit('/').next().unwrap_or(path);
    captures.iter().map(|&(path, bytes)| Recording::parse(file(path), Bytes::from_static(bytes))).collect()
}
