//! `[otlp]`.

use std::collections::HashMap;

use serde::Deserialize;

use wire::units::Secret;

/// `[otlp]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OtlpConfig {
    /// The collector; `None`: no spans are made.
    pub endpoint: Option<String>,
    /// The environment variable with headers for the collector, `name=value` between commas.
    pub headers_env: Option<String>,
    /// The value of that variable, once the configuration is loaded.
    #[serde(skip)]
    pub headers: Option<Secret>,
}

impl OtlpConfig {
    /// The headers, by name.
    pub(super) fn headers(&self) -> HashMap<String, String> {
        let text = self.headers.as_ref().map(Secret::expose).unwrap_or_default();
        let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
    }
}
