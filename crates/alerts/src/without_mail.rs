//! The place of mail in a build without the feature `mail`.

use super::config::SinkConfig;
use super::message::Message;
use super::sink_error::SinkError;

/// Sends nothing.
pub(super) fn send_email(
    _: &SinkConfig,
    _: &str,
    _: &Message,
    _: Option<&str>,
) -> std::future::Ready<Result<(), SinkError>> {
    let why = "this build of respool sends no mail: build it with the feature `mail`";
    std::future::ready(Err(SinkError::Mail(why.to_owned())))
}
