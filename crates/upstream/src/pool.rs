//! Connections to one server, kept for the next request.
//!
//! A connection has no task of its own: the caller that waits for an answer drives it. So neither a request
//! nor a piece of a stream costs a switch between tasks, what has arrived together is handed over together,
//! and a dropped answer closes its connection at once. Does not say what a failure means: `client` does, its
//! only caller.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Method, Request, Response, Uri, header};
use hyper::body::{Body, Frame, SizeHint};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tower::BoxError;
use tower::util::ServiceExt as _;

use super::connector::Connector;
use super::outgoing::Outgoing;
use super::setup_error::SetupProblem;
use super::unanswered::Unanswered;

/// A server that does not accept a connection within this time is not there. Covers the TLS handshake too:
/// some servers accept and then say nothing.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an unused connection is kept: less than uvicorn's 5 s, so that none is used while vLLM is closing
/// it.
const IDLE: Duration = Duration::from_secs(4);

/// How long no connection is reused after one that the server had closed: it may be closing others. Covers
/// the attempts that follow.
const AFTER_CLOSED: Duration = Duration::from_secs(2);

/// The connections to one server.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    connector: Connector,
    to: Uri,
    host: HeaderValue,
    idle: Arc<Idle>,
}

#[derive(Debug, Default)]
struct Idle(Mutex<IdleConnections>);

#[derive(Debug, Default)]
struct IdleConnections {
    /// The one that was used last is the last.
    links: Vec<(Instant, Link)>,
    /// When a kept one was found to be closed.
    closed: Option<Instant>,
    /// A task closes unused connections.
    swept: bool,
}

type Http1 = Connection<MaybeHttpsStream<TokioIo<TcpStream>>, Outgoing>;

/// One connection: the end that takes requests, and the work that makes them happen.
struct Link {
    sender: SendRequest<Outgoing>,
    /// `None` when it has ended.
    connection: Option<Pin<Box<Http1>>>,
}

/// An answer's body. Reading it drives its connection, which goes back to the pool at the end of the body.
pub struct Live {
    /// `None` only while it is dropped.
    body: Option<hyper::body::Incoming>,
    link: Option<Link>,
    idle: Arc<Idle>,
}

impl Pool {
    /// Connections to the host of `to`.
    pub(super) fn new(connector: Connector, to: Uri) -> Result<Self, SetupProblem> {
        let host = host_header(&to).ok_or_else(|| SetupProblem::NoHost(to.clone()))?;
        Ok(Self { connector, to, host, idle: Arc::default() })
    }

    /// Sends a request, whose URI is only a path and query, and waits for the head of its answer.
    pub(super) async fn send_request(
        &self,
        mut request: Request<Outgoing>,
    ) -> Result<Response<Live>, Unanswered> {
        request.headers_mut().insert(header::HOST, self.host.clone());
        let mut reusing = true;
        loop {
            let reused = if reusing { self.idle.take() } else { None };
            let may_be_stale = reused.is_some();
            let again = if may_be_stale { copy_request(&request) } else { None };
            let mut link = match reused {
                Some(link) => link,
                // Boxed as it is rare: every request pays for the size of its future.
                None => Box::pin(self.connect()).await.map_err(Unanswered::from_connect_error)?,
            };
            let mut error = match link.exchange(request).await {
                Ok(answer) => {
                    let idle = Arc::clone(&self.idle);
                    return Ok(answer.map(|body| Live { body: Some(body), link: Some(link), idle }));
                }
                Err(error) => error,
            };
            if may_be_stale {
                // The others were kept just as long: the caller's next attempt needs a new connection.
                self.idle.clear();
            }
            // The server closed the connection while it was idle. A request that was not written can be sent
            // again, and so can one that changes nothing; anything else the server may have read. A new
            // connection cannot have that fault, so none of those kept is tried again.
            let unsent = error.take_message();
            match unsent.or(again.filter(|_| !error.error().is_parse())).filter(|_| may_be_stale) {
                Some(same) => (request, reusing) = (same, false),
                None => return Err(Unanswered::Exchange(error.into_error())),
            }
        }
    }

    async fn connect(&self) -> Result<Link, BoxError> {
        let connected = self.connector.clone().oneshot(self.to.clone());
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connected).await??;
        let (sender, connection) = http1::handshake(stream).await?;
        Ok(Link { sender, connection: Some(Box::pin(connection)) })
    }
}

impl Link {
    /// Reads and writes what can be, without waiting. The exchange and its body learn what goes wrong.
    fn drive(&mut self, context: &mut Context<'_>) {
        // A connection that has ended answers a request it did not take only when it is dropped.
        self.connection.take_if(|connection| connection.as_mut().poll(context).is_ready());
    }

    async fn exchange(
        &mut self,
        request: Request<Outgoing>,
    ) -> Result<Response<hyper::body::Incoming>, TrySendError<Request<Outgoing>>> {
        let mut answer = pin!(self.sender.try_send_request(request));
        poll_fn(|context| {
            self.drive(context);
            answer.as_mut().poll(context)
        })
        .await
    }

    /// Returns true when it can take the next request.
    fn is_idle(&mut self, context: &mut Context<'_>) -> bool {
        self.drive(context);
        self.connection.is_some() && self.sender.is_ready()
    }
}

impl Idle {
    fn lock_kept(&self) -> MutexGuard<'_, IdleConnections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a connection that is still open, as far as is known.
    fn take(&self) -> Option<Link> {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            let mut kept = self.lock_kept();
            if kept.closed.is_some_and(|closed| closed.elapsed() < AFTER_CLOSED) {
                return None;
            }
            let (since, mut link) = kept.links.pop()?;
            drop(kept);
            if since.elapsed() < IDLE && link.is_idle(&mut context) {
                return Some(link);
            }
        }
    }

    fn put(self: &Arc<Self>, link: Link) {
        let mut kept = self.lock_kept();
        kept.links.push((Instant::now(), link));
        if !kept.swept
            && let Ok(runtime) = Handle::try_current()
        {
            kept.swept = true;
            runtime.spawn(Arc::clone(self).sweep());
        }
    }

    fn clear(&self) {
        let mut kept = self.lock_kept();
        kept.closed = Some(Instant::now());
        let links = std::mem::take(&mut kept.links);
        // Closed without the lock.
        drop(kept);
        drop(links);
    }

    /// Closes unused connections, until none is left.
    async fn sweep(self: Arc<Self>) {
        loop {
            tokio::time::sleep(IDLE).await;
            let mut kept = self.lock_kept();
            kept.links.retain(|(since, _)| since.elapsed() < IDLE);
            if kept.links.is_empty() {
                kept.swept = false;
                return;
            }
        }
    }
}

impl Live {
    fn release(&mut self, context: &mut Context<'_>) {
        let Some(mut link) = self.link.take() else { return };
        if link.is_idle(context) {
            self.idle.put(link);
        }
    }
}

impl Body for Live {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        if let Some(link) = &mut this.link {
            link.drive(context);
        }
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(&mut *body).poll_frame(context));
        if frame.is_none() || body.is_end_stream() {
            this.release(context);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl Drop for Live {
    /// Gives the connection of a stream that is left at its `[DONE]` back to the pool, if the end of the body
    /// has arrived as well.
    fn drop(&mut self) {
        drop(self.body.take());
        self.release(&mut Context::from_waker(Waker::noop()));
    }
}

/// Returns a copy of the request, where its body is at hand and sending it twice changes nothing.
fn copy_request(request: &Request<Outgoing>) -> Option<Request<Outgoing>> {
    let body = match request.body() {
        Outgoing::Whole(body) => Outgoing::Whole(body.clone()),
        Outgoing::Pieces(pieces) => Outgoing::Pieces(pieces.clone()),
        Outgoing::Streamed(..) => return None,
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return None;
    }
    let mut same = Request::new(body);
    same.method_mut().clone_from(request.method());
    same.uri_mut().clone_from(request.uri());
    same.headers_mut().clone_from(request.headers());
    Some(same)
}

/// Returns the `host` header for a server: the port only where it is not the scheme's own.
fn host_header(to: &Uri) -> Option<HeaderValue> {
    let authority = to.authority()?;
    let usual = if to.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 };
    let text =
        if authority.port_u16() == Some(usual) { authority.host() } else { Authority::as_str(authority) };
    HeaderValue::from_str(text).ok()
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    fn post() -> Request<Outgoing> {
        let mut request = Request::new(Outgoing::empty());
        *request.method_mut() = Method::POST;
        request
    }

    async fn read_head(socket: &mut TcpStream) {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            assert_ne!(socket.read_buf(&mut bytes).await.unwrap(), 0, "{bytes:?}");
        }
    }

    async fn pool() -> (TcpListener, Pool) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connector = crate::connector::new_connector(false).unwrap();
        let to = format!("http://{}", listener.local_addr().unwrap());
        let pool = Pool::new(connector, to.parse().unwrap()).unwrap();
        (listener, pool)
    }

    /// A server that was restarted resets all connections; with each attempt on another kept one, a request
    /// failed three times.
    #[tokio::test]
    async fn a_new_connection_follows_a_failed_one() {
        let (listener, pool) = pool().await;
        let server = tokio::spawn(async move {
            // Both first requests are answered, the second request of a connection is read and never
            // answered.
            let mut accepted = 0;
            while let Ok((mut socket, _)) = listener.accept().await {
                accepted += 1;
                tokio::spawn(async move {
                    read_head(&mut socket).await;
                    let _ = socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
                    read_head(&mut socket).await;
                });
                if accepted == 3 {
                    break;
                }
            }
            accepted
        });
        let (first, second) = tokio::join!(pool.send_request(post()), pool.send_request(post()));
        for answer in [first, second] {
            answer.unwrap().into_body().collect().await.unwrap();
        }
        assert_eq!(pool.idle.lock_kept().links.len(), 2);
        assert!(
            matches!(pool.send_request(post()).await, Err(Unanswered::Exchange(_))),
            "the server has read it"
        );
        let answer = pool.send_request(post()).await.unwrap();
        answer.into_body().collect().await.unwrap();
        assert_eq!(server.await.unwrap(), 3);
        // Another request's connection may have been kept meanwhile.
        assert_eq!(pool.idle.lock_kept().links.len(), 1);
        assert!(pool.idle.take().is_none());
    }

    /// Such a request was never sent and never answered: it waited for the upstream's `timeout`.
    #[tokio::test]
    async fn a_closing_connection_returns_the_request() {
        let (listener, pool) = pool().await;
        let answered = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            read_head(&mut socket).await;
            socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
            socket
        };
        let (answer, socket) = tokio::join!(pool.send_request(post()), answered);
        answer.unwrap().into_body().collect().await.unwrap();
        let mut link = pool.idle.take().expect("a connection that is kept");
        drop(socket);
        // The end arrives after the connection was taken and before the request is written.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let exchange = tokio::time::timeout(Duration::from_secs(20), link.exchange(post())).await;
        let mut error = exchange.expect("an answer or an error").expect_err("there is no answer");
        assert!(error.take_message().is_some(), "{:?}", error.error());
    }
}
