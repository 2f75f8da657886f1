//! Tests of the room for request bodies, and of how they are read.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Frame, SizeHint};
use tokio::sync::mpsc;

use super::*;

/// A body that arrives as it is sent, with its declared length.
struct Sent {
    declared: u64,
    pieces: mpsc::UnboundedReceiver<Bytes>,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.pieces.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.declared)
    }
}

fn body(declared: u64) -> (mpsc::UnboundedSender<Bytes>, Sent) {
    let (sender, pieces) = mpsc::unbounded_channel();
    (sender, Sent { declared, pieces })
}

fn limits() -> LimitsConfig {
    LimitsConfig { client_timeout: Duration::from_mins(1), ..LimitsConfig::default() }
}

async fn take(room: &BodyBudget, length: usize) -> Result<BodyReservation, ApiError> {
    let mut taken = room.empty();
    taken.grow(length, Some(length as u64)).await.map(|()| taken)
}

#[tokio::test(start_paused = true)]
async fn room_is_free_once_a_body_is_dropped() {
    let room = BodyBudget::new(Size(8 << 10));
    let first = take(&room, 5 << 10).await.unwrap().attach_to(Bytes::from_static(b"a body"));
    assert_eq!(&first[..], b"a body");
    let part = first.slice(2..);
    drop(first);
    let full = take(&room, 4 << 10).await.err().unwrap();
    assert_eq!((full.status, full.code, full.retry_after), (503, Some(ErrorCode::BodiesFull), Some(5)));
    let mut small = take(&room, 1).await.unwrap();
    assert!(small.grows_to(3 << 10) && !small.grows_to(4 << 10), "3 KiB were left");
    drop((part, small));
    take(&room, 8 << 10).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn room_follows_a_changed_body() {
    let room = BodyBudget::new(Size(8 << 10));
    let mut taken = take(&room, 4 << 10).await.unwrap();
    assert_eq!(taken.resize(9 << 10).unwrap_err().code, Some(ErrorCode::BodiesFull));
    taken.resize(6 << 10).unwrap();
    assert_eq!(room.free.available_permits(), 2);
    taken.resize(5 << 10).unwrap();
    let rest = taken.split(2 << 10);
    let chat = taken.attach_to(Bytes::from_static(b"a chat request"));
    assert_eq!(room.free.available_permits(), 3);
    drop(chat);
    assert_eq!(room.free.available_permits(), 6);
    drop(rest);
    assert_eq!(room.free.available_permits(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_body_waits_for_room() {
    let room = BodyBudget::new(Size(8 << 10));
    let held = take(&room, 8 << 10).await.unwrap();
    let began = Instant::now();
    let free = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        drop(held);
    };
    let (taken, ()) = tokio::join!(take(&room, 8 << 10), free);
    assert!(taken.is_ok());
    assert_eq!(began.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_declared_length_soon_takes_no_room() {
    let room = BodyBudget::new(Size(8 << 10));
    let limits = limits();
    let (idle, never_comes) = body(8 << 10);
    idle.send(Bytes::from_static(b"{")).unwrap();
    let waiting = tokio::spawn({
        let (limits, room) = (limits.clone(), room.clone());
        async move { read_body(never_comes, &limits, &room).await.map(|_| ()) }
    });
    tokio::task::yield_now().await;
    assert_eq!(room.free.available_permits(), 0, "all of it may come at once");
    let (sender, whole) = body(6 << 10);
    (0..6).for_each(|_| sender.send(Bytes::from(vec![b' '; 1 << 10])).unwrap());
    drop(sender);
    let began = Instant::now();
    assert_eq!(read_body(whole, &limits, &room).await.unwrap().len(), 6 << 10);
    assert_eq!((began.elapsed().as_secs(), room.free.available_permits()), (2, 7), "one byte came of 8 KiB");
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!((error.status, room.free.available_permits()), (408, 8));
    drop(idle);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_trickles_in_is_refused() {
    let (sender, trickle) = body(1 << 20);
    let send = async {
        // Until the reader gives up.
        while sender.send(Bytes::from_static(b" ")).is_ok() {
            tokio::time::sleep(Duration::from_secs(9)).await;
        }
    };
    let began = Instant::now();
    let (limits, room) = (limits(), BodyBudget::new(Size(8 << 20)));
    let reading =
        async { (read_body(trickle, &limits, &room).await.unwrap_err(), began.elapsed().as_secs()) };
    let ((error, took), ()) = tokio::join!(reading, send);
    assert_eq!((error.status, took), (408, 60));
    assert!(error.message.contains("only 7 bytes of the request body came in 60 s"), "{}", error.message);
    // A slow and steady body is read, however long it takes.
    let (sender, slow) = body(4 << 20);
    let send = async move {
        for _ in 0..256 {
            sender.send(Bytes::from(vec![b' '; 16 << 10])).unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let (read, ()) = tokio::join!(super::read_body(slow, &limits, &room), send);
    assert_eq!(read.unwrap().len(), 4 << 20);
}
