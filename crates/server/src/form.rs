//! A multipart form for an upstream, as on the routes for audio: its model chooses the upstream, and an
//! alias becomes its target. The form is read ahead only up to that field, and its file streams: nearly all
//! clients write the small fields first.
//!
//! Where the model does not matter, nothing is read ahead. Called by `transparent`.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use axum::body::Body;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http_body_util::{BodyDataStream, BodyExt};

use super::app::App;
use super::body::{Pace, refuse_body};
use super::front::form_names_two_models;
use super::upload::{BufferedUpload, record_model, stream_upload};
use relay::Passing;
use telemetry::RequestRecord;
use upstream::Outgoing;
use wire::{ApiError, FormField, FormReader, Pieces};

/// The beginning of a form, up to its model.
#[derive(Default)]
struct FormPrefix {
    pieces: Vec<Bytes>,
    size: usize,
    model: Option<FormField>,
    /// Whether the form is complete.
    is_whole: bool,
}

/// Returns the form as it goes to the upstream, and the model that it names there.
///
/// # Errors
/// 408 when no piece of it comes for too long, 400 when it breaks off or names two models, 503 when the
/// budget for request bodies is used up.
pub(super) async fn buffer_form(
    app: &App,
    mut reader: FormReader,
    body: Body,
    record: &RequestRecord,
) -> Result<BufferedUpload, ApiError> {
    let fields = RecordedFields { app: app.clone(), record: record.clone() };
    let declared = hyper::body::Body::size_hint(&body).exact();
    let mut rest = BodyExt::into_data_stream(body);
    let mut prefix = FormPrefix::default();
    // The row of a request that a budget refuses names its model.
    if app.relay.depends_on_model() || app.usage.has_budgets() {
        prefix = match prefix.read_prefix(&fields, &mut reader, &mut rest).await {
            Ok(prefix) => prefix,
            Err(error) if error.status == 503 => return Err(refuse_body(error, rest).await),
            Err(error) => return Err(error),
        };
    }
    let FormPrefix { mut pieces, size, model, is_whole } = prefix;
    let target = model.as_ref().map(|field| app.relay.target(&field.value).to_owned()).unwrap_or_default();
    let (mut length, has_model) = (declared, model.is_some());
    if let Some(field) = model.filter(|field| field.value != target) {
        pieces = replace_value(&pieces, &field.place, &target);
        length = declared.map(|length| length - field.place.len() as u64 + target.len() as u64);
    }
    let refusal = Arc::default();
    if is_whole && size > 0 {
        return Ok(BufferedUpload { body: Passing::Whole(Pieces::from(pieces)), model: target, refusal });
    }
    let beginning = pieces.first().cloned().unwrap_or_default();
    let another_model = has_model.then(|| Arc::clone(&refusal));
    let rest = watch_fields(fields, reader, rest, another_model);
    let body = futures::stream::iter(pieces.into_iter().map(Ok)).chain(rest);
    let body = Passing::Streamed { body: Some(Outgoing::from_stream(body, length)), beginning };
    Ok(BufferedUpload { body, model: target, refusal })
}

impl FormPrefix {
    /// Reads until the model is known. A form that does not name it within the size of a chat request is
    /// left to the server.
    async fn read_prefix(
        mut self,
        recorded: &RecordedFields,
        reader: &mut FormReader,
        rest: &mut BodyDataStream<Body>,
    ) -> Result<Self, ApiError> {
        let app = &recorded.app;
        let (mut pace, mut room) = (Pace::new(app.limits.client_timeout), app.bodies.empty());
        while self.model.is_none() && self.size <= app.limits.max_body.to_usize() {
            let Some(piece) = pace.next_piece(rest).await? else {
                self.is_whole = true;
                break;
            };
            let fields = reader.push(&piece);
            recorded.note_fields(&fields);
            self.size += piece.len();
            self.pieces.push(room.keep_piece(piece)?);
            let mut models = fields.into_iter().filter(|field| field.name == "model");
            self.model = models.next();
            if models.next().is_some() {
                return Err(form_names_two_models());
            }
        }
        Ok(self)
    }
}

/// Replaces a value in the pieces of a form.
fn replace_value(pieces: &[Bytes], place: &Range<usize>, value: &str) -> Vec<Bytes> {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let mut begin = 0;
    for piece in pieces {
        let cut = |at: usize| at.saturating_sub(begin).min(piece.len());
        before.push(piece.slice(..cut(place.start)));
        after.push(piece.slice(cut(place.end)..));
        begin += piece.len();
    }
    before.push(Bytes::copy_from_slice(value.as_bytes()));
    before.extend(after);
    before.retain(|piece| !piece.is_empty());
    before
}

/// Reads the rest of a form for the log as it passes. `another_model`: a second model ends the form, and the
/// reason is put here.
fn watch_fields(
    recorded: RecordedFields,
    mut reader: FormReader,
    rest: BodyDataStream<Body>,
    another_model: Option<Arc<OnceLock<ApiError>>>,
) -> impl Stream<Item = Result<Bytes, axum::BoxError>> {
    let patience = recorded.app.limits.client_timeout;
    stream_upload(rest, patience).map(move |piece| {
        let piece = piece?;
        let fields = reader.push(&piece);
        if let Some(refusal) =
            another_model.as_ref().filter(|_| fields.iter().any(|field| field.name == "model"))
        {
            let error = refusal.get_or_init(form_names_two_models);
            return Err(error.message.clone().into());
        }
        recorded.note_fields(&fields);
        Ok(piece)
    })
}

/// Records the fields of a form that describe its request.
struct RecordedFields {
    app: App,
    record: RequestRecord,
}

impl RecordedFields {
    fn note_fields(&self, fields: &[FormField]) {
        for field in fields {
            match field.name.as_str() {
                "model" => record_model(&self.app, &field.value, &self.record),
                "stream" => self.record.set_stream(field.value.eq_ignore_ascii_case("true")),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_replaced_in_any_pieces() {
        let form = "before the value behind";
        for size in 1..=form.len() {
            let pieces: Vec<Bytes> = form.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
            for (place, value, expected) in [
                (11..16, "name", "before the name behind"),
                (11..11, "new ", "before the new value behind"),
                (0..6, "", " the value behind"),
                (17..23, "x", "before the value x"),
            ] {
                let replaced = Pieces::from(replace_value(&pieces, &place, value));
                assert_eq!(replaced.to_bytes(), expected.as_bytes(), "{size} {place:?}");
            }
        }
    }
}
