//! Passes a request to a server that speaks the client's API itself.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header;

use crate::front::Arrival;
use crate::transparent;

/// Passes a request on unchanged, with the client's own headers.
pub(super) async fn pass_to_server(arrival: &mut Arrival, body: Bytes) -> Response {
    if arrival.record.start().account.is_some() {
        // The token counts of the reply must be readable here.
        arrival.parts.headers.remove(header::ACCEPT_ENCODING);
    }
    transparent::pass_on(arrival, Body::from(body)).await
}
