//! The facts that are known about the models of an upstream. `window` learns them.

use std::collections::HashMap;
use std::sync::RwLock;

use super::server::Server;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tool_call_parser::PreferredDialects;

/// Facts about one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// Its window in tokens, prompt and reply together.
    pub window: Option<u64>,
    /// Bytes of a request for each thousand tokens of its prompt, as replies showed.
    pub bytes_per_1000: Option<u64>,
    /// Its prompts are rendered by the harmony library (gpt-oss): `/tokenize` counts them wrongly (8 for 69
    /// tokens, vLLM 0.13 to 0.25).
    pub is_harmony: bool,
    /// The dialects that it is likely to write, by its name, the path of its weights, and the server's
    /// account of its parser or chat template.
    pub prior: PreferredDialects,
    /// It has reasoned although the request switched that off.
    pub ignores_off: bool,
}

/// Facts about the models of one upstream.
#[derive(Debug, Default)]
pub(super) struct Windows {
    pub(super) models: RwLock<HashMap<String, ModelFacts>>,
    /// The models of its last list.
    pub(super) listed: RwLock<Option<Vec<String>>>,
    /// The program behind its list of models.
    pub(super) server: RwLock<Option<Server>>,
    /// When `/v1/models` was asked last; locked while it is being asked.
    pub(super) asked: Mutex<Option<Instant>>,
    /// When `/tokenize` was found not to be there, or not in time.
    pub(super) uncounted: RwLock<Option<Instant>>,
}
