//! OpenClaw's tools, by `POST /tools/invoke` of its gateway (measured on 2026.9.6 and 2026.2.26).
//!
//! Its file and shell tools are not available there: respool's own serve those names, and
//! `deploy/openclaw-plugin` adds some under other names. `gateway/answer.rs` reads the answers;
//! `gateway/known.rs` lists the known tools.

mod answer;
pub(super) mod known;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use serde_json::{Map, Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::config::GatewayConfig;
use super::contract::{Approver, Invocation, ToolError, ToolOutput};
use super::policy::{Subject, foreign};

use super::offer::Offer;
use super::source::{Permit, Source, run_with_limit};
use super::wanted::Wanted;
use http_client::{TlsError, client_for};

/// The largest request that the gateway accepts.
const LARGEST_REQUEST: usize = 2_000_000;
/// The time for the gateway to accept a connection.
const PROBE: Duration = Duration::from_secs(5);
/// The largest answer that is read.
const LARGEST_ANSWER: usize = 8 << 20;

/// A connection to the gateway, shared by all agents.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    client: reqwest::Client,
    endpoint: String,
    config: GatewayConfig,
}

/// The tools of the gateway that one agent has.
pub(super) struct Gateway {
    connection: Connection,
    /// The requested names; [`known::build_offer`] knows their tools.
    names: Vec<String>,
    workspace: Option<PathBuf>,
}

impl Connection {
    /// Returns `None` when no gateway is configured.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub(super) fn new(config: &GatewayConfig) -> Result<Option<Self>, TlsError> {
        let Some(url) = &config.url else { return Ok(None) };
        // Neither a proxy nor another host may see the token.
        let builder = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        let client = client_for(url, builder)?;
        let endpoint = format!("{}/tools/invoke", url.trim_end_matches('/'));
        Ok(Some(Self { client, endpoint, config: config.clone() }))
    }

    /// Returns the reason why nothing can be sent to the gateway; `None` while its address accepts
    /// connections.
    pub(super) async fn problem(&self) -> Option<String> {
        let url = reqwest::Url::parse(&self.endpoint).ok()?;
        let host = url.host_str()?.trim_matches(['[', ']']).to_owned();
        let connected = timeout(PROBE, TcpStream::connect((host, url.port_or_known_default()?))).await;
        match connected {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("it does not answer".to_owned()),
        }
    }

    /// Returns the reason why the gateway refuses respool; `None` if it does not. It is asked for a tool that
    /// it does not have, so nothing happens.
    pub(super) async fn refusal(&self) -> Option<String> {
        let body = json!({"tool": "respool_check", "args": {}}).to_string();
        let (status, retry_after, body) = timeout(PROBE, self.post_json(body)).await.ok()?.ok()?;
        let refused = answer::read_answer("respool_check", status, retry_after.as_deref(), &body).err();
        refused.filter(|_| matches!(status, 401 | 403)).map(|error| error.text().to_owned())
    }

    async fn post_json(&self, body: String) -> Result<(u16, Option<String>, String), ToolError> {
        let mut request =
            self.client.post(&self.endpoint).header(CONTENT_TYPE, "application/json").body(body);
        if let Some(token) = &self.config.token {
            request = request.bearer_auth(token.expose_secret());
        }
        let reply = request.send().await.map_err(|error| self.unreachable_error(&error))?;
        let status = reply.status().as_u16();
        let retry_after =
            reply.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let mut body = Vec::new();
        let mut pieces = reply.bytes_stream();
        while let Some(piece) = pieces.next().await {
            body.extend_from_slice(&piece.map_err(|error| self.unreachable_error(&error))?);
            if body.len() > LARGEST_ANSWER {
                return Err(ToolError::Failed("OpenClaw's answer is larger than 8 MiB: ask for less".into()));
            }
        }
        Ok((status, retry_after, String::from_utf8_lossy(&body).into_owned()))
    }

    fn unreachable_error(&self, error: &reqwest::Error) -> ToolError {
        let mut reason: &dyn std::error::Error = error;
        while let Some(source) = reason.source() {
            reason = source;
        }
        let text = format!("OpenClaw's gateway at {} did not answer: {reason}", self.endpoint);
        // Without a connection nothing was sent, so the call did not run.
        if error.is_connect() { ToolError::Unreachable(text) } else { ToolError::Transient(text) }
    }
}

impl Gateway {
    pub(super) fn new(connection: &Connection, wanted: &Wanted, workspace: Option<PathBuf>) -> Arc<Self> {
        Arc::new(Self { connection: connection.clone(), names: wanted.0.clone(), workspace })
    }

    fn request_json(&self, invocation: &Invocation) -> Value {
        let arguments = known::with_proper_names(&invocation.name, invocation.arguments.clone());
        let mut request =
            json!({"tool": invocation.name, "args": arguments, "idempotencyKey": invocation.key});
        if let Some(session) = &self.connection.config.session_key {
            request["sessionKey"] = json!(session);
        }
        request
    }
}

#[async_trait]
impl Source for Gateway {
    fn offers(&self) -> Vec<Offer> {
        self.names.iter().map(|name| known::build_offer(name)).collect()
    }

    async fn subject(&self, offer: &Offer, arguments: &Map<String, Value>) -> Result<Subject, ToolError> {
        let arguments = known::with_proper_names(&offer.spec.name, arguments.clone());
        let names = vec![offer.spec.name.clone(), offer.name.clone()];
        let is_known = known::is_operation(&offer.spec.name, &arguments);
        let subject =
            foreign::build_subject(names, &arguments, &offer.spec.parameters, self.workspace.as_deref());
        Ok(Subject { is_known, ..subject })
    }

    async fn run_call(
        &self,
        invocation: &Invocation,
        _: Permit,
        _: Option<&dyn Approver>,
    ) -> Result<ToolOutput, ToolError> {
        let body = self.request_json(invocation).to_string();
        if body.len() > LARGEST_REQUEST {
            let size = body.len();
            return Err(ToolError::Failed(format!(
                "the arguments are too large for OpenClaw: {size} bytes of at most 2 MB"
            )));
        }
        let (status, retry_after, body) =
            run_with_limit(invocation.timeout, self.connection.post_json(body)).await?;
        answer::read_answer(&invocation.name, status, retry_after.as_deref(), &body)
    }
}
