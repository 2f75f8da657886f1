//! The probe of an upstream, which all requests share that wait for it to come back.
//!
//! A probe is a connection or `GET /health`, never a request to the model. A request that waits probes; while
//! one probes, the others wait for its finding, so that a server that is starting is asked once a second by
//! all of them together. Nothing runs in the background: probes end with the last request that waits. Called
//! by `relay`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::HeaderMap;
use tokio::time::{Instant, sleep_until, timeout};

use super::client::Upstream;
use super::probes::{Health, Waiter};

/// The pause between two probes.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// How long a probe may take.
const PROBE_WITHIN: Duration = Duration::from_secs(2);

/// Those who waited are let go over a time that grows with their number, up to [`LONGEST_SPREAD`].
const SPREAD_EACH: Duration = Duration::from_millis(20);
const LONGEST_SPREAD: Duration = Duration::from_secs(5);

impl Upstream {
    /// Returns its health as a probe finds it that begins at `since` or later.
    pub async fn health_since(&self, since: Instant) -> Health {
        self.probe_since(since).await.1
    }

    /// Waits until a probe finds it up, at the longest until `until`. True when it is up. Those who waited
    /// come back one after the other. Safe to cancel.
    pub async fn wait_until_up(&self, until: Instant) -> bool {
        let _waiter = Waiter::new(&self.probes.waiting);
        let mut since = Instant::now();
        loop {
            let (at, health) = self.probed_at_most_once_a_second(since).await;
            if health == Health::Up {
                self.wait_spread(until).await;
                return true;
            }
            since = at + PROBE_EVERY;
            if since >= until {
                sleep_until(until).await;
                return false;
            }
            sleep_until(since).await;
        }
    }

    /// Returns its circuit (`closed`, `open` or `half_open`), the requests in progress, and those that wait
    /// for a place or for its return.
    pub fn load_report(&self) -> (&'static str, usize, usize) {
        let (circuit, taken, waiting) = self.state.circuit_report();
        (circuit, taken, waiting + self.probes.waiting.load(Ordering::Relaxed))
    }

    async fn probe_since(&self, since: Instant) -> (Instant, Health) {
        self.last_probe_or_new(|at, _| at >= since).await
    }

    /// Probes as [`Upstream::probed`] does, but a failed probe of the last second is as good as a new one:
    /// requests that begin to wait one after the other do not each probe.
    async fn probed_at_most_once_a_second(&self, since: Instant) -> (Instant, Health) {
        self.last_probe_or_new(|at, health| {
            at >= since || (health == Health::Down && at.elapsed() < PROBE_EVERY)
        })
        .await
    }

    async fn last_probe_or_new(&self, is_usable: impl Fn(Instant, Health) -> bool) -> (Instant, Health) {
        let mut last = self.probes.last.lock().await;
        if let Some(found) = last.filter(|(at, health)| is_usable(*at, *health)) {
            return found;
        }
        let at = Instant::now();
        let found = (at, self.probe().await);
        *last = Some(found);
        found
    }

    async fn probe(&self) -> Health {
        match timeout(PROBE_WITHIN, Box::pin(self.get_json("/health", HeaderMap::new()))).await {
            // A server without such a route is there.
            Ok(Ok((status, _))) if !status.is_server_error() => Health::Up,
            _ => Health::Down,
        }
    }

    async fn wait_spread(&self, until: Instant) {
        let others = self.probes.waiting.load(Ordering::Relaxed).saturating_sub(1);
        let spread =
            SPREAD_EACH.saturating_mul(u32::try_from(others).unwrap_or(u32::MAX)).min(LONGEST_SPREAD);
        if !spread.is_zero() {
            sleep_until((Instant::now() + spread.mul_f64(rand::random())).min(until)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::{Address, UpstreamConfig};
    use testing::idle_time::IdleTime;

    /// A server whose `/health` says 503 until it is ready; how often it was asked.
    async fn server(ready: &Arc<AtomicBool>) -> (Arc<Upstream>, Arc<AtomicUsize>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url: Address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let (ready, asked) = (Arc::clone(ready), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&asked);
        tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                let mut head = [0; 1024];
                let length = socket.read(&mut head).await.unwrap();
                assert!(head[..length].starts_with(b"GET /health "), "a probe is no request to the model");
                let status = if ready.load(Ordering::Relaxed) { "200 OK" } else { "503 Starting" };
                let answer = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
                let _ = socket.write_all(answer.as_bytes()).await;
            }
        });
        (Arc::new(Upstream::new(&UpstreamConfig::with_address(url)).unwrap()), asked)
    }

    #[tokio::test]
    async fn all_who_wait_share_one_probe_a_second() {
        let time = IdleTime::begin();
        let ready = Arc::default();
        let (upstream, asked) = server(&ready).await;
        let until = Instant::now() + Duration::from_mins(1);
        let waiters: Vec<_> = (0..50)
            .map(|_| {
                let upstream = Arc::clone(&upstream);
                tokio::spawn(async move { upstream.wait_until_up(until).await })
            })
            .collect();
        time.pass(Duration::from_millis(5500)).await;
        let probes = asked.load(Ordering::Relaxed);
        assert_eq!(upstream.load_report(), ("closed", 0, 50), "they wait, as /ready and the page say");
        assert_eq!(probes, 6, "one at the beginning of each second");
        ready.store(true, Ordering::Relaxed);
        for waiter in waiters {
            assert!(waiter.await.unwrap());
        }
        assert_eq!(upstream.probes.waiting.load(Ordering::Relaxed), 0);
    }

    /// A server that has just started would get all of them at once.
    #[tokio::test]
    async fn those_who_waited_come_back_one_after_the_other() {
        let time = IdleTime::begin();
        let ready = Arc::new(AtomicBool::new(false));
        let (upstream, _) = server(&ready).await;
        let until = Instant::now() + Duration::from_mins(1);
        let waiters: Vec<_> = (0..100)
            .map(|_| {
                let upstream = Arc::clone(&upstream);
                tokio::spawn(async move { upstream.wait_until_up(until).await.then(Instant::now) })
            })
            .collect();
        time.pass(Duration::from_millis(2500)).await;
        ready.store(true, Ordering::Relaxed);
        let back = futures::future::join_all(waiters).await;
        let mut back: Vec<Instant> = back.into_iter().map(|when| when.unwrap().expect("it is up")).collect();
        back.sort();
        // 20 ms for each of the others. The test's clock moves in steps of 100 ms.
        let (first, half, last) = (back[0], back[50], back[99]);
        assert!(
            half - first > Duration::from_millis(300) && last - half > Duration::from_millis(300),
            "{back:?}"
        );
        assert!(last - first < Duration::from_millis(2500), "{back:?}");
    }

    #[tokio::test]
    async fn an_older_finding_says_nothing_about_a_later_failure() {
        let time = IdleTime::begin();
        let ready = Arc::new(AtomicBool::new(true));
        let (upstream, asked) = server(&ready).await;
        assert_eq!(upstream.health_since(Instant::now()).await, Health::Up);
        ready.store(false, Ordering::Relaxed);
        time.pass(Duration::from_secs(1)).await;
        assert_eq!(upstream.health_since(Instant::now()).await, Health::Down);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn waiting_ends_in_time() {
        let _time = IdleTime::begin();
        let upstream =
            Upstream::new(&UpstreamConfig::with_address("http://127.0.0.1:9".parse().unwrap())).unwrap();
        let until = Instant::now() + Duration::from_secs(5);
        assert!(!upstream.wait_until_up(until).await);
        assert!(until.elapsed() < Duration::from_secs(1));
    }
}
