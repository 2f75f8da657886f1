//! The product under test, in this process: the real settings, router and server on a free loopback port.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use agent::Agents;
use experts::Experts;
use futures::future::BoxFuture;
use relay::Relay;
use server::{Stop, build_routes, run_server};
use settings::{FileText, resolve};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use usage::Ledger;

use super::fake_vllm::FakeVllm;
use super::scripted_tools::ScriptedTools;

/// Settings without second attempts: what the first one brought stands.
pub const ONCE: &str = "[recovery]\nattempts = 0\n";

/// A running respool. Dropping it ends it at once.
pub struct Respool {
    /// Where it listens.
    pub address: SocketAddr,
    /// How to end it.
    pub stop: Stop,
    /// Done when it has ended.
    pub ended: Option<JoinHandle<std::time::Duration>>,
    /// Its agents.
    pub agents: Arc<Agents>,
    /// Where its state lies when the configuration does not say.
    _state: tempfile::TempDir,
    /// Its experts.
    pub experts: Option<Arc<Experts>>,
    /// The usage ledger.
    pub usage: Arc<Ledger>,
    /// The way to the models.
    pub relay: Arc<Relay>,
}

impl Respool {
    /// In front of `upstream`, with default settings.
    pub async fn before(upstream: &FakeVllm) -> Self {
        Self::with(upstream, "").await
    }

    /// In front of `upstream`; `extra` is TOML that stands before the upstream's table. It may end with an
    /// open `[[upstream]]` table by naming keys after the line `[[upstream]]`.
    pub async fn with(upstream: &FakeVllm, extra: &str) -> Self {
        let (before, keys) = extra.split_once("[[upstream]]").unwrap_or((extra, ""));
        Self::configured(&format!(
            "{before}\n[[upstream]]\nname = \"box\"\nurl = \"{}\"\n{keys}",
            upstream.url()
        ))
        .await
    }

    /// With this configuration file.
    pub async fn configured(toml: &str) -> Self {
        Self::started(toml, None).await
    }

    /// In front of `upstream`, with an agent `helper` that has these tools, durable runs in `state`, and
    /// `extra` settings of the agent.
    pub async fn with_agent(
        upstream: &FakeVllm,
        tools: &Arc<ScriptedTools>,
        state: &Path,
        extra: &str,
    ) -> Self {
        let toml = format!(
            "state_dir = \"{}\"\n[[upstream]]\nname = \"box\"\nurl = \"{}\"\n\
             [agents.helper]\nmodel = \"gpt-oss-20b\"\n{extra}\n",
            state.display(),
            upstream.url()
        );
        Self::started(&toml, Some(Arc::clone(tools))).await
    }

    /// With this configuration file and these tools for its agents.
    pub async fn started(toml: &str, tools: Option<Arc<ScriptedTools>>) -> Self {
        Self::started_in(toml, &[], tools).await
    }

    /// The same, with these environment variables.
    pub async fn started_in(
        toml: &str,
        environment: &[(&str, &str)],
        tools: Option<Arc<ScriptedTools>>,
    ) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        telemetry::metrics::install_recorder();
        let file = FileText { path: "test.toml".as_ref(), text: toml };
        let variable = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let environment = environment.iter().map(variable).collect();
        let loaded = resolve(Some(file), &environment, &settings::Flags::default());
        let mut settings = loaded.unwrap_or_else(|problems| panic!("{problems}\nin\n{toml}")).settings;
        if !toml.contains("wait_for_upstream") {
            // Tests of what a broken upstream is answered with do not wait for it to come back.
            settings.relay.recovery.wait_for_upstream = std::time::Duration::ZERO;
        }
        let state = tempfile::tempdir().unwrap();
        if !toml.contains("state_dir") {
            settings.store.state_dir = state.path().join("state");
            // Tests that name no directory leave nothing in it unasked.
            settings.usage.keep = std::time::Duration::ZERO;
        }
        let stop = Stop::default();
        let app = match &tools {
            None => respool::cli::app(&settings, &stop.abort).await.unwrap(),
            Some(tools) => {
                let set: Arc<dyn tools::Tools> = tools.clone();
                let open =
                    move |_| -> BoxFuture<'_, _> { Box::pin(std::future::ready(Ok(Arc::clone(&set)))) };
                respool::cli::app_with(&settings, &stop.abort, &open).await.unwrap()
            }
        };
        let (agents, experts) = (Arc::clone(&app.agents), app.experts.clone());
        let (usage, relay) = (Arc::clone(&app.usage), Arc::clone(&app.relay));
        if let Some(store) = agents.store() {
            tokio::spawn(Arc::clone(&app.access).keep_operators(Arc::clone(store), stop.abort.clone()));
        }
        agents.start_housekeeping().await;
        if let Some(experts) = &experts {
            experts.start(&stop.abort);
        }
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let ended = tokio::spawn(run_server(listener, build_routes(app), stop.clone()));
        Self { address, stop, ended: Some(ended), agents, experts, usage, relay, _state: state }
    }
}

impl Respool {
    /// Ends it at once, and waits until nothing of it is left.
    pub async fn killed(mut self) {
        self.stop.drain.cancel();
        self.stop.abort.cancel();
        if let Some(ended) = self.ended.take() {
            ended.await.unwrap();
        }
        self.agents.wait_for_runs(std::time::Duration::ZERO).await;
        if let Some(experts) = &self.experts {
            experts.wait_for_end().await;
        }
        self.usage.save_keys().await;
        self.usage.flush().await;
    }
}

impl Drop for Respool {
    fn drop(&mut self) {
        self.stop.drain.cancel();
        self.stop.abort.cancel();
    }
}
