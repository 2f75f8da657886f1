//! Creates the upstreams of a configuration, and those of a changed one.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::failure::Failure;
use settings::Settings;
use upstream::replay::{self, Replay};
use upstream::{Address, Fleet, LISTS_EVERY, RuleFile, Upstream, UpstreamConfig};
use wire::units::UnusableSetting;

/// The upstreams in use, with the settings they were created from.
pub(super) struct ServedUpstreams {
    /// All of them.
    pub(super) fleet: Arc<Fleet>,
    /// In the same order.
    configs: Vec<UpstreamConfig>,
    /// Stops asking for their model lists, and looking for changes of their rules.
    lists: DropGuard,
}

impl ServedUpstreams {
    /// Returns the configured upstreams. Their model lists are refreshed until `abort`, or until this is
    /// dropped.
    ///
    /// # Errors
    /// Every unusable upstream.
    pub(super) async fn open(
        settings: &Settings,
        abort: &CancellationToken,
    ) -> Result<Self, Vec<UnusableSetting>> {
        let mut made = Vec::new();
        for config in &settings.upstreams {
            let upstream = start_upstream(config, abort).await.map_err(|failure| failure.to_string());
            let upstream =
                upstream.and_then(|config| Upstream::new(&config).map_err(|error| error.to_string()));
            made.push(upstream.map(Arc::new));
        }
        Self::serving_upstreams(settings, made, abort)
    }

    /// Returns the upstreams of a changed configuration. Unchanged ones continue as they are; changed ones
    /// keep their places at the server.
    ///
    /// # Errors
    /// Every unusable upstream.
    pub(super) fn change_upstreams(
        &self,
        settings: &Settings,
        abort: &CancellationToken,
    ) -> Result<Self, Vec<UnusableSetting>> {
        let made = settings.upstreams.iter().map(|config| {
            let before = self.configs.iter().position(|before| before.name == config.name);
            let Some((before, upstream)) =
                before.and_then(|index| Some((&self.configs[index], self.fleet.iter().nth(index)?)))
            else {
                return Upstream::new(config).map(Arc::new).map_err(|error| error.to_string());
            };
            if before == config {
                return Ok(Arc::clone(upstream));
            }
            // A replay keeps the address at which it was started.
            let url = if before.url == config.url { upstream.address().clone() } else { config.url.clone() };
            let changed = Upstream::succeeding(upstream, &UpstreamConfig { url, ..config.clone() });
            changed.map(Arc::new).map_err(|error| error.to_string())
        });
        Self::serving_upstreams(settings, made.collect(), abort)
    }

    /// Returns the names of the upstreams that are configured in another way there.
    pub(super) fn changed_upstreams<'a>(&self, new: &'a Self) -> impl Iterator<Item = &'a str> {
        let changed = new.configs.iter().filter(|config| !self.configs.contains(config));
        changed.map(|config| config.name.as_str())
    }

    /// Returns the upstreams of a configuration that never changes.
    pub(super) fn into_fleet(self) -> Arc<Fleet> {
        self.lists.disarm();
        self.fleet
    }

    fn serving_upstreams(
        settings: &Settings,
        made: Vec<Result<Arc<Upstream>, String>>,
        abort: &CancellationToken,
    ) -> Result<Self, Vec<UnusableSetting>> {
        let (mut upstreams, mut problems) = (Vec::new(), Vec::new());
        for (index, made) in made.into_iter().enumerate() {
            match made {
                Ok(upstream) => upstreams.push(upstream),
                Err(why) => {
                    problems.push(UnusableSetting::new(&["upstream", &index.to_string(), "url"], why));
                }
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let fleet = Arc::new(Fleet::new(upstreams, LISTS_EVERY));
        let lists = abort.child_token();
        let rules = Arc::new(RuleFile::new(&settings.store.state_dir));
        fleet.iter().for_each(|upstream| upstream.rules.keep_in(&rules));
        tokio::spawn(Arc::clone(&fleet).watch_rules(rules, lists.clone()));
        if fleet.is_several() {
            tokio::spawn(Arc::clone(&fleet).keep_lists(lists.clone()));
        }
        Ok(Self { fleet, configs: settings.upstreams.clone(), lists: lists.drop_guard() })
    }
}

async fn start_upstream(
    config: &UpstreamConfig,
    abort: &CancellationToken,
) -> Result<UpstreamConfig, Failure> {
    let Address::Replay(dir) = &config.url else { return Ok(config.clone()) };
    let replay = Replay::load(dir).map_err(|error| format!("upstream `{}`: {error}", config.name))?;
    let url = start_replay(Arc::new(replay), abort).await?;
    Ok(UpstreamConfig { url, ..config.clone() })
}

/// Serves a replay on a free loopback port until `abort`.
pub(super) async fn start_replay(replay: Arc<Replay>, abort: &CancellationToken) -> Result<Address, Failure> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await;
    let listener = listener.map_err(|error| format!("the replay upstream cannot listen: {error}"))?;
    let address =
        listener.local_addr().map_err(|error| format!("the replay upstream cannot listen: {error}"))?;
    tokio::spawn(replay::serve_replay(listener, replay, abort.clone()));
    Ok(format!("http://{address}").parse()?)
}
