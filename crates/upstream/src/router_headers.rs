//! The headers that tell a router in front of several model servers which conversation a request belongs to,
//! and how urgent it is. Pure. Called by `client`.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::config::UpstreamConfig;
use super::headers::is_hop_by_hop;
use super::priority::Priority;
use super::queue::QueueClient;
use super::setup_error::SetupProblem;

/// The header of the Gateway API's inference extension that names an `InferenceObjective`.
static OBJECTIVE: HeaderName = HeaderName::from_static("x-gateway-inference-objective");

/// The headers for one upstream. Empty unless it is a router.
#[derive(Debug, Default)]
pub(super) struct RouterHeaders {
    session: Option<HeaderName>,
    objectives: Vec<(Priority, HeaderValue)>,
}

impl RouterHeaders {
    /// Reads them from the configuration.
    pub(super) fn new(config: &UpstreamConfig) -> Result<Self, SetupProblem> {
        let session = config.session_header.as_deref().map(|text| {
            let name = HeaderName::try_from(text).ok().filter(|name| !has_a_meaning(name.as_str()));
            name.ok_or_else(|| SetupProblem::SessionHeader(text.to_owned()))
        });
        let objectives = config.objectives.iter().map(|(word, name)| {
            let problem = || SetupProblem::Objective(word.clone(), name.clone());
            let priority = Priority::from_word(word).ok_or_else(problem)?;
            Ok((priority, HeaderValue::try_from(name).map_err(|_| problem())?))
        });
        Ok(Self { session: session.transpose()?, objectives: objectives.collect::<Result<_, _>>()? })
    }

    /// Returns true when the upstream is no router.
    pub(super) fn is_empty(&self) -> bool {
        self.session.is_none() && self.objectives.is_empty()
    }

    /// Adds the headers that the client has not sent itself.
    pub(super) fn add_to(&self, headers: &mut HeaderMap, who: QueueClient) {
        if self.is_empty() {
            return;
        }
        let id = HeaderValue::try_from(format!("{:016x}", who.conversation));
        if let (Some(name), Ok(id)) = (&self.session, id)
            && !headers.contains_key(name)
        {
            headers.insert(name.clone(), id);
        }
        let objective = self.objectives.iter().find(|(priority, _)| *priority == who.priority);
        if let Some((_, name)) = objective.filter(|_| !headers.contains_key(&OBJECTIVE)) {
            headers.insert(OBJECTIVE.clone(), name.clone());
        }
    }
}

/// Returns true for a header that means something else to a server.
fn has_a_meaning(name: &str) -> bool {
    is_hop_by_hop(name)
        || ["accept", "content-"].iter().any(|beginning| name.starts_with(beginning))
        || matches!(
            name,
            "authorization" | "api-key" | "cookie" | "expect" | "host" | "user-agent" | "x-api-key"
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(session: &str, objective: (&str, &str)) -> Result<RouterHeaders, SetupProblem> {
        let objectives = [(objective.0.to_owned(), objective.1.to_owned())].into();
        let session_header = Some(session.to_owned());
        RouterHeaders::new(&UpstreamConfig { session_header, objectives, ..UpstreamConfig::default() })
    }

    #[test]
    fn headers_of_the_client_stay() {
        let router = read("X-SMG-Routing-Key", ("background", "batch")).unwrap();
        let who = QueueClient { conversation: 7, priority: Priority::Background, ..QueueClient::default() };
        let mut headers = HeaderMap::new();
        router.add_to(&mut headers, who);
        assert_eq!(headers["x-smg-routing-key"], "0000000000000007");
        assert_eq!(headers[&OBJECTIVE], "batch");
        let mut own = HeaderMap::new();
        own.insert("x-smg-routing-key", HeaderValue::from_static("own"));
        router.add_to(&mut own, QueueClient { priority: Priority::Interactive, ..who });
        assert_eq!((own.len(), own["x-smg-routing-key"].as_bytes()), (1, &b"own"[..]));
    }

    #[test]
    fn wrong_words_are_refused() {
        for name in ["x session", "Content-Length", "authorization", "connection"] {
            assert!(read(name, ("background", "batch")).is_err(), "{name}");
        }
        assert!(read("x-session-id", ("urgent", "batch")).is_err());
        assert!(read("x-session-id", ("background", "a\nb")).is_err());
        assert!(RouterHeaders::new(&UpstreamConfig::default()).unwrap().is_empty());
    }
}
