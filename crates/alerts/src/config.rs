//! `[alerts]` and `[[alerts.sink]]`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::rule::Rule;
use wire::settings::{FormError, Scalar};
use wire::units::{Secret, deserialize_duration};

wire::string_enum! {
    /// Where alerts go.
    SinkKind {
        /// JSON by POST.
        #[default]
        Webhook = "webhook",
        /// A topic of ntfy.
        Ntfy = "ntfy",
        /// A webhook that takes what Slack's take.
        Slack = "slack",
        /// A mail.
        Email = "email",
        /// A program that gets JSON on its standard input.
        Command = "command",
        /// A message through OpenClaw's gateway, which needs no model.
        OpenClaw = "openclaw",
    }
}

const RULE: Scalar = Scalar::Form("a rule", check_rule);

fn check_rule(text: &str) -> Result<(), FormError> {
    let known = || Rule::ALL.iter().map(|rule| rule.as_str()).collect::<Vec<_>>().join(", ");
    Rule::from_name(text)
        .map(drop)
        .ok_or_else(|| format!("there is no rule {text:?}. Available rules: {}", known()).into())
}

wire::settings! {
    /// `[alerts]`.
    #[derive(Clone, Debug, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct AlertsConfig {
        /// How long respool waits before it repeats an alert that is still open.
        #[serde(deserialize_with = "deserialize_duration")]
        pub repeat: Duration = Duration::from_hours(4);
        /// Alerts that begin within this time are one message.
        #[serde(deserialize_with = "deserialize_duration")]
        pub group: Duration = Duration::from_secs(5), allow_zero();
        /// Rules that are turned off (docs/logs.md lists them).
        pub disabled: Vec<String> = Vec::new(), with_form(RULE), with_example(r#"["first_byte_slow"]"#);
        /// The page's address, for the link in messages.
        pub link: Option<String> = None,
            with_form(Scalar::HttpUrl),
            when_unset("the listen address", r#""http://box.lan:8003""#);
        sections {
            /// `[[alerts.sink]]`.
            pub sink: Vec<SinkConfig> = Vec::new(), at("sink[]");
        }
    }
}

wire::settings! {
    /// `[[alerts.sink]]`.
    #[derive(Clone, Debug, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct SinkConfig {
        /// Where alerts go.
        #[serde(rename = "type")]
        pub kind: SinkKind = SinkKind::default(), with_name("type"), must_be_set(r#""ntfy""#);
        /// The webhook, the topic of ntfy, OpenClaw's gateway, or the mail server (`smtps://HOST`,
        /// `smtp://HOST?tls=required`).
        pub url: Option<String> = None,
            when_unset("`command` needs none", r#""https://ntfy.example.org/respool""#);
        /// The token that is sent as `authorization: Bearer`, or the password of the mail server.
        pub token: Option<Secret> = None, when_unset("no token is sent", r#""secret""#);
        /// The environment variable that holds it.
        pub token_env: Option<String> = None, when_unset("the token in `token`", r#""NTFY_TOKEN""#);
        /// The user of the mail server.
        pub user: Option<String> = None, when_unset("no login", r#""respool""#);
        /// The sender of mails.
        pub from: Option<String> = None, when_unset("only `email` needs it", r#""respool <respool@example.org>""#);
        /// The receiver of mails, or the target of OpenClaw's message.
        pub to: Option<String> = None, when_unset("only `email` and `openclaw` need it", r#""owner@example.org""#);
        /// The channel of OpenClaw's message.
        pub channel: Option<String> = None, when_unset("the gateway's default", r#""telegram""#);
        /// The program of `command` and its arguments; it gets JSON on its standard input.
        pub program: Vec<String> = Vec::new(), with_example(r#"["/usr/local/bin/page-me"]"#);
        derived {
            /// Where the program starts; `None`: where this process does.
            pub directory: Option<PathBuf> = None;
            /// Variables for it, with a `PATH` without what commands write.
            pub variables: Vec<(&'static str, OsString)> = Vec::new();
            /// Why it is not started.
            pub refused: Option<String> = None;
        }
    }
}
