//! The reply of a request whose exchange is kept: its bytes are collected as they leave.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header;
use hyper::body::{Frame, SizeHint};

use telemetry::capture::Collector;

/// Returns the reply, whose head and body are collected.
pub(super) fn captured_reply(response: Response, collector: Arc<Collector>) -> Response {
    let content_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    collector.take_client_head(response.status().as_u16(), content_type.unwrap_or_default());
    response.map(|body| Body::new(CollectedBody { body, collector }))
}

struct CollectedBody {
    body: Body,
    collector: Arc<Collector>,
}

impl hyper::body::Body for CollectedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(piece) = frame.data_ref()
        {
            self.collector.take_client_piece(piece);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
