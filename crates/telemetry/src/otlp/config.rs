//! `[otlp]`.

use serde::Deserialize;

use wire::settings::Scalar;
use wire::units::Secret;

wire::settings! {
    /// `[otlp]`.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct OtlpConfig {
        /// The collector that gets traces, OTLP over HTTP (docs/operating.md). Without a path, `/v1/traces`
        /// is added.
        pub endpoint: Option<String> = None,
            with_form(Scalar::HttpUrl),
            when_unset("no traces are sent", r#""http://127.0.0.1:4318""#);
        /// The environment variable with headers for the collector, `name=value` separated by commas.
        pub headers_env: Option<String> = None, when_unset("no headers", r#""OTLP_HEADERS""#);
        derived {
            /// The value of that variable, set when the configuration is loaded.
            pub headers: Option<Secret> = None;
        }
    }
}
