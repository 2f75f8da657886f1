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
    /// They answer, and a model server has this problem.
    Impaired(String),
    /// The relay answers that no model server does.
    NoUpstream(String),
    /// Nothing answers.
    Silent,
}

impl Readiness {
    /// Returns true if requests are taken.
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Ready | Self::Impaired(_))
    }

    /// Returns its meaning, and what to do.
    pub fn explain(&self, address: &str) -> String {
        match self {
            Self::Ready => format!("respool is ready at {address}"),
            Self::Impaired(said) => format!(
                "respool is ready at {address}, but requests may fail: {said}. `respool upstreams` asks each model \
                 server"
            ),
            Self::NoUpstream(said) => format!(
                "respool runs at {address}, but its model server does not answer: {said}. Check the address \
                 (`respool service install --upstream URL` changes it) and that the server has loaded its model. respool works as \
                 soon as it answers"
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
            if last.is_ready() || (last == Readiness::Silent && has_failed()) {
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
        Ok(answer) => {
            let status = answer.status();
            let body: serde_json::Value =
                serde_json::from_str(&answer.text().await.unwrap_or_default()).unwrap_or_default();
            let problems = problems_of(&body);
            match status.is_success() {
                true if problems.is_empty() => Readiness::Ready,
                true => Readiness::Impaired(problems),
                false if problems.is_empty() => Readiness::NoUpstream(format!("HTTP {status}")),
                false => Readiness::NoUpstream(problems),
            }
        }
    }
}

/// Returns the problems of the model servers in an answer of `/ready`.
fn problems_of(body: &serde_json::Value) -> String {
    let upstreams = body["upstreams"].as_array().into_iter().flatten();
    let described = upstreams.filter_map(|upstream| {
        let (problem, name) = (upstream["problem"].as_str()?, upstream["name"].as_str());
        Some(name.map_or_else(|| problem.to_owned(), |name| format!("upstream `{name}`: {problem}")))
    });
    described.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_named_also_when_ready() {
        let body = serde_json::json!({"upstreams": [
            {"name": "a", "problem": "it asks for a key (HTTP 401)"}, {"name": "b"}, {"problem": "down"},
        ]});
        assert_eq!(problems_of(&body), "upstream `a`: it asks for a key (HTTP 401); down");
        let told = Readiness::Impaired("x".into());
        assert!(told.is_ready() && told.explain("http://h").contains("but requests may fail: x."));
        assert!(!Readiness::NoUpstream("x".into()).is_ready());
    }
}
