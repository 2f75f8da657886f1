//! Faults that the table cannot hold: other routes, other settings, TLS.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::support::accumulate::Rules;
use crate::support::client::{Client, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::http1::{Framing, Incoming};
use crate::support::replies;
use crate::support::requests;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::support::served::Served;

#[tokio::test]
async fn clients_that_read_nothing_are_dropped() {
    let chunk = replies::frame(&replies::chunk(&json!({"content": "x".repeat(4000)}), None));
    let fake = FakeVllm::start([Script::endless(200, "text/event-stream", chunk.repeat(16))]).await;
    let respool = Respool::with(&fake, "[limits]\nclient_timeout = \"400ms\"").await;
    let mut client = Client::sending(respool.address, &Request::chat(&requests::without_tools())).await;
    client.head().await;
    let began = Instant::now();
    let closed = fake.wait_until_closed(0).await;
    assert!(closed - began > Duration::from_millis(350), "a slow client is not a stuck one");
}

#[tokio::test]
async fn uploads_go_up_in_pieces() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let respool = Respool::configured(&format!("[[upstream]]\nname = \"box\"\nurl = \"{url}\"")).await;
    let mut client = Client::connect(respool.address).await;
    let head = "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: x\r\ncontent-type: audio/wav\r\ncontent-length: 12\r\n\r\n";
    client.send_raw(head.as_bytes()).await;
    client.send_raw(b"first ").await;
    let (read, write) = listener.accept().await.unwrap().0.into_split();
    let mut incoming: Incoming<OwnedReadHalf> = Incoming::new(read);
    let head = incoming.head().await.unwrap().unwrap();
    let mut framing = head.framing(Framing::Done).unwrap();
    assert_eq!(head.start, "POST /v1/audio/transcriptions HTTP/1.1");
    let first = incoming.piece(&mut framing).await.unwrap().unwrap();
    assert_eq!(first, b"first ", "it came before the second piece was sent");
    client.send_raw(b"second").await;
    assert_eq!(incoming.piece(&mut framing).await.unwrap().unwrap(), b"second");
    drop(write);
}

#[tokio::test]
async fn stopped_uploads_end_upstream_requests() {
    let fake = FakeVllm::start([]).await;
    fake.allow_cut_requests();
    let respool = Respool::with(&fake, "[limits]\nclient_timeout = \"300ms\"").await;
    let mut client = Client::connect(respool.address).await;
    client.send_raw(b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: 12\r\n\r\nfirst ").await;
    fake.wait_for_cut_requests(1).await;
    let reply = client.reply().await;
    assert_eq!((reply.status, &reply.error()["code"]), (400, &json!("incomplete_body")), "{}", reply.text());
}

/// Answers the first request of a connection, and closes it when the second one comes.
async fn one_request_per_connection(listener: TcpListener) {
    while let Ok((socket, _)) = listener.accept().await {
        let (read, mut write) = socket.into_split();
        let mut incoming = Incoming::new(read);
        let reply = Script::json(200, &replies::text("ok"));
        if let Ok(Some(head)) = incoming.head().await {
            let mut framing = head.framing(Framing::Done).unwrap();
            while let Ok(Some(_)) = incoming.piece(&mut framing).await {}
            crate::support::fake_vllm::play(&mut write, &reply, |_| ()).await;
        }
        let _ = incoming.head().await;
    }
}

#[tokio::test]
async fn stale_connections_cost_no_turn() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(one_request_per_connection(listener));
    // No head may wait, so the relay itself has no time to try again.
    let settings = "[limits]\ncommit_after = \"0s\"\n[[upstream]]\nname = \"box\"";
    let respool = Respool::configured(&format!("{settings}\nurl = \"{url}\"")).await;
    let mut body = requests::with_tools();
    body["stream"] = json!(false);
    body["stream_options"] = serde_json::Value::Null;
    for _ in 0..3 {
        let turn = exchange(respool.address, &Request::chat(&body)).await.completion(&Rules::default());
        assert_eq!(turn.choices[&0].content, "ok");
    }
    server.abort();
}

/// A CA of our own (its certificate as PEM), and a server that has a certificate of it.
async fn tls_server() -> (String, u16) {
    let mut ca = CertificateParams::new(vec![]).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![leaf.der().clone()], key).unwrap();
    let (acceptor, listener) =
        (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(socket).await else { continue };
            answer_over_tls(&mut stream).await;
        }
    });
    (ca.pem(), port)
}

async fn answer_over_tls(stream: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin)) {
    use tokio::io::AsyncWriteExt as _;
    let mut incoming = Incoming::new(&mut *stream);
    let head = incoming.head().await.unwrap().unwrap();
    let mut framing = head.framing(Framing::Done).unwrap();
    while let Ok(Some(_)) = incoming.piece(&mut framing).await {}
    let body = replies::text("over TLS").to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn private_cas_can_be_trusted() {
    let (ca, port) = tls_server().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.pem");
    std::fs::write(&file, ca).unwrap();
    let toml = format!("[[upstream]]\nname = \"box\"\nurl = \"https://localhost:{port}\"");
    let trusting = Served::with_file(&toml, &[("SSL_CERT_FILE", file.to_str().unwrap())]);
    let turn =
        exchange(trusting.address, &Request::chat(&requests::with_tools())).await.stream(&Rules::default());
    assert_eq!(turn.choices[&0].content, "over TLS");
    let doubting = Served::with_file(&toml, &[]);
    let reply = exchange(doubting.address, &Request::chat(&requests::with_tools())).await;
    assert_eq!((reply.status, &reply.error()["code"]), (502, &json!("upstream_tls")), "{}", reply.text());
}

#[tokio::test]
async fn endless_upstreams_end_in_time() {
    for (mode, body) in [("buffered", requests::without_tools()), ("live", requests::with_tools())] {
        let flood = Script::endless(200, "text/event-stream", ": ping\n\n".repeat(4096));
        let fake = FakeVllm::start([flood]).await;
        let settings = format!(
            "tools_mode = \"{mode}\"\n[limits]\ncommit_after = \"20ms\"\nheartbeat = \"20ms\"\n[[upstream]]\ntimeout = \"4s\""
        );
        let respool = Respool::with(&fake, &settings).await;
        let began = Instant::now();
        let turn = exchange(respool.address, &Request::chat(&body)).await.stream(&Rules::default());
        assert_eq!(turn.error.unwrap()["code"], 504);
        assert!(
            turn.heartbeats > 0 && began.elapsed() < Duration::from_secs(30),
            "{mode}: {:?}",
            began.elapsed()
        );
    }
}
