//! `[alerts]` and `[[alerts.sink]]`.

use std::ffi::OsString;
use std::time::Duration;

use serde::Deserialize;

use super::quiet::QuietHours;
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

/// `[alerts]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlertsConfig {
    /// After so long an alert that still holds is sent again.
    #[serde(deserialize_with = "deserialize_duration")]
    pub repeat: Duration,
    /// Alerts that begin within this time are one message.
    #[serde(deserialize_with = "deserialize_duration")]
    pub group: Duration,
    /// When nothing is sent, in UTC.
    pub quiet: Option<QuietHours>,
    /// Rules that are not looked at.
    pub disabled: Vec<String>,
    /// Where the page is reached, for the link in messages.
    pub link: Option<String>,
    /// `[[alerts.sink]]`.
    pub sink: Vec<SinkConfig>,
}

impl Default for AlertsConfig {
    fn default() -> Self {
        Self {
            repeat: Duration::from_hours(4),
            group: Duration::from_secs(5),
            quiet: None,
            disabled: Vec::new(),
            link: None,
            sink: Vec::new(),
        }
    }
}

/// `[[alerts.sink]]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SinkConfig {
    /// What it is.
    #[serde(rename = "type")]
    pub kind: SinkKind,
    /// The address of a webhook, a topic, a gateway, or a mail server (`smtps://HOST`).
    pub url: Option<String>,
    /// The token or password.
    pub token: Option<Secret>,
    /// The environment variable that holds it.
    pub token_env: Option<String>,
    /// The user of a mail server.
    pub user: Option<String>,
    /// The sender of mails.
    pub from: Option<String>,
    /// The receiver of mails, or the target of a message.
    pub to: Option<String>,
    /// The channel of a message through OpenClaw.
    pub channel: Option<String>,
    /// The program and its arguments.
    pub program: Vec<String>,
    /// Where the program finds others: `PATH` without directories that commands write.
    #[serde(skip)]
    pub search_path: Option<OsString>,
}
