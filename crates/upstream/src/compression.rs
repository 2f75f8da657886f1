//! Decodes bodies that a server compressed.

use std::io;
use std::pin::Pin;

use async_compression::tokio::bufread::{BrotliDecoder, GzipDecoder, ZlibDecoder, ZstdDecoder};
use bytes::Bytes;
use futures::{Stream, TryStreamExt as _};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncBufRead, AsyncRead};
use tokio_util::io::{ReaderStream, StreamReader};

use super::pool::Live;

/// A body through a decoder.
pub(super) type Decoded = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// Returns the body without this content-encoding, or unchanged if the encoding is unknown.
pub(super) fn decode(body: Live, encoding: &str) -> Result<Decoded, Live> {
    Ok(match encoding {
        "gzip" | "x-gzip" => box_decoder(GzipDecoder::new(body_reader(body))),
        "br" => box_decoder(BrotliDecoder::new(body_reader(body))),
        // RFC 9110, section 8.4.1.2: the zlib format, not bare deflate.
        "deflate" => box_decoder(ZlibDecoder::new(body_reader(body))),
        "zstd" => box_decoder(ZstdDecoder::new(body_reader(body))),
        _ => return Err(body),
    })
}

fn body_reader(body: Live) -> impl AsyncBufRead + Send {
    let pieces = body.into_data_stream();
    StreamReader::new(pieces.map_err(|error| io::Error::new(io::ErrorKind::ConnectionAborted, error)))
}

fn box_decoder(decoder: impl AsyncRead + Send + 'static) -> Decoded {
    Box::pin(ReaderStream::new(decoder))
}
