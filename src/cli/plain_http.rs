//! Finds out whether a server that does not answer over TLS answers without it. The message to the user then
//! says what to write instead.

use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};

use http_client::client_for;

/// A server on the right scheme answers at once.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// Returns the address with `http` in place of `https`, if a server answers there.
pub(super) async fn plain_address(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once(':')?;
    if !scheme.eq_ignore_ascii_case("https") {
        return None;
    }
    let plain = format!("http:{rest}");
    let builder = Client::builder().no_proxy().redirect(Policy::none()).timeout(ANSWER_WITHIN);
    let request = client_for(&plain, builder).ok()?.get(format!("{plain}/v1/models"));
    let status = request.send().await.ok()?.status();
    // With these, servers of TLS answer a request without it.
    let refuses_plain = status == StatusCode::BAD_REQUEST || status.is_redirection();
    (!refuses_plain).then_some(plain)
}
