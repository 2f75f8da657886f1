//! Sends messages by mail.

use lettre::message::{Mailbox, header::ContentType};
use lettre::transport::smtp::authentication::Credentials;
use lettre::{AsyncSmtpTransport, AsyncTransport as _, Tokio1Executor};

use super::config::SinkConfig;
use super::message::Message;
use super::sink_error::SinkError;

/// Sends one message by the mail server at `url`.
pub(super) async fn send_email(
    config: &SinkConfig,
    url: &str,
    message: &Message,
    link: Option<&str>,
) -> Result<(), SinkError> {
    let address = |text: &Option<String>, key: &'static str| -> Result<Mailbox, SinkError> {
        let text = text.as_deref().ok_or(SinkError::NoSetting(key))?;
        text.parse::<Mailbox>().map_err(|error| SinkError::NotAnAddress(key, error.to_string()))
    };
    let mail = lettre::Message::builder()
        .from(address(&config.from, "from")?)
        .to(address(&config.to, "to")?)
        .subject(message.title())
        .header(ContentType::TEXT_PLAIN)
        .body(message.text(link))
        .map_err(|error| SinkError::Mail(error.to_string()))?;
    let transport = AsyncSmtpTransport::<Tokio1Executor>::from_url(url)
        .map_err(|error| SinkError::Mail(format!("`url`: {error}")))?;
    let transport = match (&config.user, &config.token) {
        (Some(user), Some(token)) => {
            transport.credentials(Credentials::new(user.clone(), token.expose_secret().to_owned()))
        }
        _ => transport,
    };
    transport.build().send(mail).await.map(drop).map_err(|error| SinkError::Mail(error.to_string()))
}
