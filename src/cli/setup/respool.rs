//! Asks respool for its models, and tries a turn.

use std::time::Duration;

use serde_json::{Value, json};

use super::arguments::SetupArgs;
use super::model_choice::ask_for_model;
use crate::cli::failure::Failure;
use crate::cli::options::with_service;
use crate::cli::plain_http::plain_address;
use crate::cli::running::find_listener;
use client_settings::openclaw::Model;
use http_client::{client_for, root_cause};
use settings::{Flags, Settings};
use upstream::Address;

/// The first answer of a large model may take a while.
const TURN_WITHIN: Duration = Duration::from_mins(5);
/// How long to wait for a list of models, which needs no computation.
pub(super) const LIST_WITHIN: Duration = Duration::from_secs(10);

/// The respool that the client should use.
pub(super) struct Respool {
    pub(super) url: String,
    pub(super) key: Option<ClientKey>,
}

/// A client's key, and the environment variable that holds it.
pub(super) struct ClientKey {
    name: String,
    value: String,
}

/// An error in a conversation with respool; its text says what to do.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("respool does not answer at {url}: {cause}. {todo}")]
    Unreachable { url: String, cause: String, todo: String },
    #[error("respool at {url} {refusal}")]
    WrongKey { url: String, refusal: String },
    #[error(
        "the server at {url} is not respool. If it is the model server, write --upstream {url}; --url is the \
         address of respool, which `respool serve --upstream {url}` starts"
    )]
    NotRespool { url: String },
    #[error("respool answered {status}: {text}")]
    Refused { status: reqwest::StatusCode, text: String },
}

impl From<AskError> for Failure {
    fn from(error: AskError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Checks that the value of an option is the address of a server.
///
/// # Errors
/// The mistake in it, with what to write.
pub(super) fn check_address(option: &str, text: &str) -> Result<(), Failure> {
    text.parse::<Address>().map(drop).map_err(|why| format!("{option}: {why}").into())
}

/// Returns the address of the respool that runs, or else that at which the configured one listens.
fn usual_url() -> String {
    let settings = Settings::load(&with_service(Flags::default())).unwrap_or_default();
    format!("http://{}", find_listener(&settings).local_address())
}

impl Respool {
    /// Returns the respool that the options name, with a client's key.
    pub(super) fn from_arguments(args: &SetupArgs) -> Result<Self, Failure> {
        let url = args.url.clone().unwrap_or_else(usual_url);
        check_address("--url", &url)?;
        let url = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let key = match &args.key_env {
            Some(name) => {
                let value = std::env::var(name).map_err(|_| {
                format!(
                    "the environment variable `{name}` is not set: set it to one of respool's `client_keys`"
                )
            })?;
                Some(ClientKey { name: name.clone(), value })
            }
            None => None,
        };
        Ok(Self { url, key })
    }

    /// Returns the list of models.
    pub(super) async fn list_models(&self) -> Result<Vec<Model>, AskError> {
        self.upstream_names().await?;
        let request = self.http_client()?.get(format!("{}/v1/models", self.url)).timeout(LIST_WITHIN);
        let list = self.send_request(request).await?;
        let model = |entry: &Value| {
            Some(Model { id: entry["id"].as_str()?.to_owned(), window: entry["max_model_len"].as_u64() })
        };
        Ok(list["data"].as_array().into_iter().flatten().filter_map(model).collect())
    }

    /// Returns the names of its upstreams. Only respool has such a page.
    pub(super) async fn upstream_names(&self) -> Result<Vec<String>, AskError> {
        let request = self.http_client()?.get(format!("{}/ready", self.url)).timeout(LIST_WITHIN);
        let answer = async {
            let answer = request.send().await?;
            answer.text().await
        };
        let page = match answer.await {
            Ok(text) => serde_json::from_str::<Value>(&text).unwrap_or_default(),
            Err(error) => return Err(self.explain_unreachable(&error).await),
        };
        let upstreams =
            page["upstreams"].as_array().ok_or_else(|| AskError::NotRespool { url: self.url.clone() })?;
        Ok(upstreams.iter().filter_map(|upstream| upstream["name"].as_str().map(str::to_owned)).collect())
    }

    /// Returns the model's name and window.
    pub(super) async fn choose_model(
        &self,
        wanted: Option<String>,
    ) -> Result<(String, Option<u64>), Failure> {
        let models = self.list_models().await?;
        let names: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
        let found = match &wanted {
            Some(wanted) => models.iter().find(|model| model.id == *wanted),
            None => models.first().filter(|_| models.len() == 1),
        };
        let model = found.ok_or_else(|| ask_for_model(wanted.as_deref(), &names))?;
        Ok((model.id.clone(), model.window))
    }

    /// Tries one turn on this API.
    pub(super) async fn try_turn(&self, api: &str, model: &str) -> Result<(), Failure> {
        let words = "Answer with the word: ready";
        let messages = json!([{"role": "user", "content": words}]);
        let body = match api {
            "/v1/responses" => json!({"model": model, "input": words, "store": false}),
            "/v1/messages" => json!({"model": model, "messages": messages, "max_tokens": 2000}),
            _ => json!({"model": model, "messages": messages}),
        };
        let request = self.http_client()?.post(format!("{}{api}", self.url));
        let request = request.header("content-type", "application/json").body(body.to_string());
        Ok(self.send_request(request).await.map(drop)?)
    }

    fn http_client(&self) -> Result<reqwest::Client, AskError> {
        client_for(&self.url, reqwest::Client::builder().no_proxy().timeout(TURN_WITHIN)).map_err(|cause| {
            let todo = "Give its address with --url".to_owned();
            AskError::Unreachable { url: self.url.clone(), cause: cause.to_string(), todo }
        })
    }

    async fn send_request(&self, request: reqwest::RequestBuilder) -> Result<Value, AskError> {
        let request = match &self.key {
            Some(key) => request.bearer_auth(&key.value),
            None => request,
        };
        let answer = async {
            let answer = request.send().await?;
            Ok((answer.status(), answer.text().await?))
        };
        let (status, text) = match answer.await {
            Ok(answer) => answer,
            Err(error) => return Err(self.explain_unreachable(&error).await),
        };
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        if status.is_success() {
            return Ok(value);
        }
        if status == reqwest::StatusCode::UNAUTHORIZED {
            return Err(self.wrong_key());
        }
        let text = value["error"]["message"].as_str().map(str::to_owned).unwrap_or(text);
        Err(AskError::Refused { status, text })
    }

    async fn explain_unreachable(&self, error: &reqwest::Error) -> AskError {
        let todo = match plain_address(&self.url).await {
            Some(plain) => format!("It answers without TLS: write --url {plain}"),
            None => "Start it with `respool serve`, or give its address with --url".to_owned(),
        };
        AskError::Unreachable { url: self.url.clone(), cause: root_cause(error), todo }
    }

    fn wrong_key(&self) -> AskError {
        let refusal = match &self.key {
            Some(key) => format!(
                "does not accept the key in `{}`: set the variable to one of respool's `client_keys`",
                key.name
            ),
            None => "asks for a key: put one of its `client_keys` into an environment variable, and name the variable with --key-env"
                .to_owned(),
        };
        AskError::WrongKey { url: self.url.clone(), refusal }
    }
}
