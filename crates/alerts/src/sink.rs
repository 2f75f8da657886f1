//! Delivers messages: each sink has a bounded queue and a task of its own, so that one that hangs holds no
//! other up. What cannot be delivered is tried again with growing pauses, a bounded number of times, and then
//! said in the log.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::config::{SinkConfig, SinkKind};
use super::mail::send_email;
use super::message::Message;
use super::sink_error::{SinkError, WITHIN};
use http_client::{chain, client_for};
use telemetry::metrics;

/// How many messages wait for one sink.
const MOST_WAITING: usize = 32;
/// The pauses between attempts, in seconds.
const PAUSES: [u64; 5] = [1, 5, 30, 120, 300];

/// Keeps the address out of the error, because it may hold a secret.
fn no_answer(error: reqwest::Error) -> SinkError {
    SinkError::NoAnswer(chain(&error.without_url()))
}

/// Where messages are handed in.
#[derive(Clone, Debug)]
pub(super) struct Sink {
    sender: mpsc::Sender<Message>,
    name: String,
}

/// The sender of one sink.
struct Sender {
    config: SinkConfig,
    link: Option<String>,
    client: reqwest::Client,
}

impl Sink {
    /// Starts a sink; it ends with `stop`.
    ///
    /// # Errors
    /// When it cannot work at all.
    pub(super) fn start(
        config: SinkConfig,
        link: Option<String>,
        stop: CancellationToken,
    ) -> Result<Self, SinkError> {
        let name = sink_name(&config);
        let sender = Arc::new(Sender::new(config, link)?);
        let (queue, mut waiting) = mpsc::channel(MOST_WAITING);
        let sink = name.clone();
        tokio::spawn(async move {
            let work = async {
                while let Some(message) = waiting.recv().await {
                    deliver_message(&sender, &sink, &message).await;
                }
            };
            if stop.run_until_cancelled(work).await.is_none() {
                let lost = std::iter::from_fn(|| waiting.try_recv().ok()).count();
                (0..lost).for_each(|_| metrics::count_lost_alert(&sink));
            }
        });
        metrics::register_alert_sink(&name);
        Ok(Self { sender: queue, name })
    }

    /// Hands a message in; one that finds no room is lost, and said.
    pub(super) fn send(&self, message: &Message) {
        if self.sender.try_send(message.clone()).is_err() {
            metrics::count_lost_alert(&self.name);
            tracing::error!(target: "respool::alerts", sink = self.name, "an alert was lost: too many are waiting for this sink");
        }
    }
}

async fn deliver_message(sender: &Sender, sink: &str, message: &Message) {
    for (attempt, pause) in PAUSES.iter().map(Some).chain([None]).enumerate() {
        let Err(why) = sender.send_once(message).await else { return };
        if let Some(seconds) = pause {
            tracing::warn!(target: "respool::alerts", sink, %why, attempt, "an alert could not be delivered: it will be tried again");
            tokio::time::sleep(Duration::from_secs(*seconds)).await;
        } else {
            metrics::count_lost_alert(sink);
            tracing::error!(target: "respool::alerts", sink, %why, "an alert could not be delivered: it is lost");
        }
    }
}

/// Returns the name of a sink in the log: never its address, which may hold a secret.
fn sink_name(config: &SinkConfig) -> String {
    let host = config.url.as_deref().and_then(|url| url::Url::parse(url).ok());
    match host.as_ref().and_then(|url| url.host_str()) {
        Some(host) => format!("{} {host}", config.kind),
        None => config.kind.to_string(),
    }
}

/// Sends one message to one sink, once.
///
/// # Errors
/// Why it did not arrive.
pub(super) async fn send_once(
    config: SinkConfig,
    link: Option<String>,
    message: &Message,
) -> (String, Result<(), SinkError>) {
    let name = sink_name(&config);
    match Sender::new(config, link) {
        Ok(sender) => (name, sender.send_once(message).await),
        Err(why) => (name, Err(why)),
    }
}

impl Sender {
    fn new(config: SinkConfig, link: Option<String>) -> Result<Self, SinkError> {
        let builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).timeout(WITHIN);
        let client = client_for(config.url.as_deref().unwrap_or_default(), builder)
            .map_err(|error| SinkError::NoClient(error.to_string()))?;
        Ok(Self { config, link, client })
    }

    async fn send_once(&self, message: &Message) -> Result<(), SinkError> {
        let work = async {
            match self.config.kind {
                SinkKind::Webhook => {
                    self.send_request(self.build_request()?.json_body(&message.json(self.link()))).await
                }
                SinkKind::Slack => {
                    self.send_request(
                        self.build_request()?.json_body(&json!({"text": self.plain_text(message)})),
                    )
                    .await
                }
                SinkKind::Ntfy => self.send_request(self.ntfy_request(message)?).await,
                SinkKind::OpenClaw => self.send_to_openclaw(message).await,
                SinkKind::Command => self.run_command(message).await,
                SinkKind::Email => send_email(&self.config, self.url()?, message, self.link()).await,
            }
        };
        tokio::time::timeout(WITHIN, work).await.unwrap_or(Err(SinkError::TooSlow))
    }

    fn link(&self) -> Option<&str> {
        self.link.as_deref()
    }

    fn plain_text(&self, message: &Message) -> String {
        match message.entries.len() {
            // The text begins with what the title says.
            0 | 1 => format!("{}: {}", message.sender(), message.text(self.link())),
            _ => format!("{}\n\n{}", message.title(), message.text(self.link())),
        }
    }

    fn url(&self) -> Result<&str, SinkError> {
        self.config.url.as_deref().ok_or(SinkError::NoSetting("url"))
    }

    fn build_request(&self) -> Result<reqwest::RequestBuilder, SinkError> {
        Ok(self.with_token(self.client.post(self.url()?)))
    }

    fn with_token(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.config.token {
            Some(token) => request.bearer_auth(token.expose_secret()),
            None => request,
        }
    }

    async fn send_request(&self, request: reqwest::RequestBuilder) -> Result<(), SinkError> {
        self.send_for_answer(request).await.map(drop)
    }

    async fn send_for_answer(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<reqwest::Response, SinkError> {
        let reply = request.send().await.map_err(no_answer)?;
        let status = reply.status();
        if status.is_success() { Ok(reply) } else { Err(SinkError::Status(status.as_u16())) }
    }

    fn ntfy_request(&self, message: &Message) -> Result<reqwest::RequestBuilder, SinkError> {
        // A header holds ASCII alone.
        let title: String = message
            .title()
            .chars()
            .map(|char| if char.is_ascii_graphic() || char == ' ' { char } else { '?' })
            .collect();
        let priority = if message.is_urgent() { "high" } else { "default" };
        // ntfy shows these as symbols.
        let tag = match message {
            _ if message.is_urgent() => "rotating_light",
            _ if message.is_over() => "white_check_mark",
            _ => "warning",
        };
        let request = self
            .build_request()?
            .header("title", title)
            .header("priority", priority)
            .header("tags", tag)
            .body(message.text(self.link()));
        Ok(match self.link() {
            Some(link) => request.header("click", link),
            None => request,
        })
    }

    /// Its `message` tool needs no model, so it works when the model is down.
    async fn send_to_openclaw(&self, message: &Message) -> Result<(), SinkError> {
        let endpoint = format!("{}/tools/invoke", self.url()?.trim_end_matches('/'));
        let mut arguments = json!({"action": "send", "message": self.plain_text(message)});
        for (name, value) in [("channel", &self.config.channel), ("target", &self.config.to)] {
            if let Some(value) = value {
                arguments[name] = value.as_str().into();
            }
        }
        let body = json!({"tool": "message", "args": arguments});
        let reply =
            self.send_for_answer(self.with_token(self.client.post(endpoint)).json_body(&body)).await?;
        let text = reply.text().await.map_err(no_answer)?;
        // A tool that failed is answered with 200 too.
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        if answer["ok"] == false || answer["error"].is_object() {
            let why = answer["error"]["message"].as_str().unwrap_or("it does not say why");
            return Err(SinkError::OpenClaw(why[..why.floor_char_boundary(300)].to_owned()));
        }
        Ok(())
    }

    async fn run_command(&self, message: &Message) -> Result<(), SinkError> {
        let (program, arguments) =
            self.config.program.split_first().ok_or(SinkError::NoSetting("program"))?;
        if let Some(why) = &self.config.refused {
            return Err(SinkError::NotSafe(why.clone()));
        }
        let mut command = tokio::process::Command::new(program);
        command.args(arguments).env_clear().kill_on_drop(true);
        for name in ["PATH", "HOME", "LANG", "USER"] {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        command.envs(self.config.variables.iter().cloned());
        if let Some(directory) = &self.config.directory {
            command.current_dir(directory);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| SinkError::NotStarted(program.clone(), error))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program may ignore its input.
            let _ = stdin.write_all(message.json(self.link()).to_string().as_bytes()).await;
        }
        let status = child.wait().await.map_err(|error| SinkError::NotStarted(program.clone(), error))?;
        if status.success() { Ok(()) } else { Err(SinkError::ProgramFailed(program.clone(), status)) }
    }
}

/// JSON as a body, without the feature of the client for it.
trait JsonBody {
    fn json_body(self, body: &serde_json::Value) -> Self;
}

impl JsonBody for reqwest::RequestBuilder {
    fn json_body(self, body: &serde_json::Value) -> Self {
        self.header(reqwest::header::CONTENT_TYPE, "application/json").body(body.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A changed configuration drops its sinks, but delivers their messages.
    #[tokio::test]
    async fn waiting_messages_are_delivered_at_the_end() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("said");
        let script = format!("sleep 0.1; cat > {}-$$", file.display());
        let config: SinkConfig =
            toml::from_str(&format!("type = \"command\"\nprogram = [\"/bin/sh\", \"-c\", {script:?}]"))
                .unwrap();
        let sink = Sink::start(config, None, CancellationToken::new()).unwrap();
        (0..3).for_each(|_| sink.send(&Message::new_test(7)));
        drop(sink);
        let delivered = async || std::fs::read_dir(dir.path()).unwrap().count() == 3;
        testing::waiting::wait_until("all messages are delivered", delivered).await;
    }
}
