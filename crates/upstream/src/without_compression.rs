//! The place of the decoders in a build without the feature `compression`.

use std::io;
use std::pin::Pin;

use bytes::Bytes;
use futures::Stream;

use super::pool::Live;

/// A body through a decoder.
pub(super) type Decoded = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// Returns the body unchanged.
pub(super) fn decode(body: Live, _: &str) -> Result<Decoded, Live> {
    Err(body)
}
