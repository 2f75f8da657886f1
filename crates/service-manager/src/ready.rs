//! Asks a service whether it is ready.

use std::time::Duration;

/// How long a service may take to become ready; a model server that is loading its model takes longer.
const WITHIN: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(250);
const ONE_ANSWER: Duration = Duration::from_secs(10);

/// The answer of `/ready`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The relay and a model server answer.
    Ready,
    /// The relay answers that no model server does.
    NoUpstream(String),
    /// Nothing answers.
    Silent,
}

impl Readiness {
    /// Returns its meaning, and what to do.
    pub fn explain(&self, address: &str) -> String {
        match self {
            Self::Ready => format!("it is ready at {address}"),
            Self::NoUpstream(said) => format!(
                "respool runs at {address}, but its model server does not answer: {said}. Check the address \
                 (`respool service install --upstream URL` changes it) and that the server has loaded its model"
            ),
            Self::Silent => {
                format!("nothing answers at {address}: the service has not started, or it listens elsewhere")
            }
        }
    }
}

/// Polls until it is ready, has failed, or time is up.
pub async fn wait_until_ready(address: &str, has_failed: impl Fn() -> bool) -> Readiness {
    let mut last = Readiness::Silent;
    let waiting = async {
        loop {
            last = query_readiness(address).await;
            if last == Readiness::Ready || (last == Readiness::Silent && has_failed()) {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    // When time is up, the last answer counts.
    let _ = tokio::time::timeout(WITHIN, waiting).await;
    last
}

/// Queries once.
pub async fn query_readiness(address: &str) -> Readiness {
    // It speaks plain HTTP, also where there are no certificates.
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).timeout(ONE_ANSWER).build();
    let Ok(client) = client else {
        return Readiness::Silent;
    };
    match client.get(format!("{address}/ready")).send().await {
        Err(_) => Readiness::Silent,
        Ok(answer) if answer.status().is_success() => Readiness::Ready,
        Ok(answer) => {
            let status = answer.status();
            let body: serde_json::Value =
                serde_json::from_str(&answer.text().await.unwrap_or_default()).unwrap_or_default();
            let problems: Vec<&str> = body["upstreams"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|upstream| upstream["problem"].as_str())
                .collect();
            let said = if problems.is_empty() { format!("HTTP {status}") } else { problems.join("; ") };
            Readiness::NoUpstream(said)
        }
    }
}
