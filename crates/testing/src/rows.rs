//! The rows that requests leave in the usage ledger.

use std::sync::{Arc, Mutex};

use telemetry::{EndedRequest, Recording, RequestRecord, RequestStart, UsageSink};
use wire::UsageRow;

#[derive(Debug, Default)]
struct Rows(Mutex<Vec<UsageRow>>);

impl UsageSink for Rows {
    fn record_request(&self, ended: EndedRequest) {
        self.0.lock().unwrap().push(ended.row);
    }
}

/// Returns the row of a request to which this happens.
///
/// # Panics
/// When the request leaves no row.
pub fn row_of(happens: impl FnOnce(&RequestRecord)) -> UsageRow {
    let rows = Arc::new(Rows::default());
    let start = RequestStart::new("r".into(), "POST /", "other");
    let recording = Recording { sink: Some(Arc::clone(&rows) as _), ..Recording::default() };
    happens(&RequestRecord::begin(start, &recording));
    rows.0.lock().unwrap().remove(0)
}
