//! The page: what it shows, who may look, and that no button is pressed from elsewhere.

use std::path::Path;
use std::time::Duration;

use agent::{ApprovalRules, Decision};
use serde_json::{Value, json};
use store::{ClaimRequest, EntryEnd, NewMessage};

use crate::agents::{READ, echoing};
use crate::agents_approvals::{awaited, confirms, serve, supervised};
use crate::experts_run::{Desk, enqueue, invocation, is_over, triage, until};
use crate::support::client::{Client, Reply, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::support::wait_until;

const ALICE: &str = "sk-alice-0123456789";
const ROOT: &str = "sk-root-0123456789";
const PAGES: [&str; 6] = ["/", "/ui/requests", "/ui/runs", "/ui/experts", "/ui/usage", "/ui/approvals"];

async fn started(fake: &FakeVllm, dir: &Path, has_keys: bool) -> Respool {
    let (path, url) = (dir.display(), fake.url());
    std::fs::write(
        dir.join("keys.toml"),
        format!("alice = '{ALICE}'\n[root]\nkey = '{ROOT}'\noperator = true\n"),
    )
    .unwrap();
    let keys = if has_keys { format!("client_keys_file = \"{path}/keys.toml\"\n") } else { String::new() };
    let toml = format!(
        "{keys}state_dir = \"{path}\"\n[log]\nerrors_dir = \"{path}/logs\"\n[agents.helper]\nmodel = \"gpt-oss-20b\"\n\
         [[upstream]]\nname = \"box\"\nurl = \"{url}\"\n"
    );
    Respool::started(&toml, Some(echoing())).await
}

fn chat(model: &str) -> Request {
    Request::chat(
        &json!({"model": model, "messages": [{"role": "user", "content": "What is the capital of France?"}]}),
    )
}

async fn get(respool: &Respool, path: &str, cookie: &str) -> Reply {
    exchange(
        respool.address,
        &Request::get(path).without("host").header("host", "127.0.0.1").header("cookie", cookie),
    )
    .await
}

async fn post(respool: &Respool, path: &str, cookie: &str, form: &str, origin: &str) -> Reply {
    let request = Request::post(path, form).without("host").header("host", "127.0.0.1");
    let request = request.header("cookie", cookie).header("origin", origin);
    exchange(respool.address, &request).await
}

/// The session of an operator.
async fn logged_in(respool: &Respool) -> String {
    let reply = post(respool, "/ui/login", "", &format!("key={ROOT}"), "http://127.0.0.1").await;
    assert_eq!((reply.status, reply.headers.get("location").unwrap()), (303, "/"));
    let cookie = reply.headers.get("set-cookie").unwrap().to_owned();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && !cookie.contains("Secure"),
        "{cookie}"
    );
    cookie.split(';').next().unwrap().to_owned()
}

/// The first link of a page that begins so.
fn link_to(page: &str, start: &str) -> String {
    let link = page.split("href=\"").skip(1).find(|link| link.starts_with(start)).expect("a link");
    link.split('"').next().unwrap().replace("&amp;", "&")
}

/// The mark of the viewer's session that buttons carry.
pub fn csrf_mark(page: &str) -> String {
    page.split("name=\"csrf\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn pages_load_nothing_foreign() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = started(&fake, dir.path(), false).await;
    for path in PAGES {
        let reply = get(&respool, path, "").await;
        assert_eq!(reply.status, 200, "{path}");
        let policy = reply.headers.get("content-security-policy").unwrap().to_owned();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert!(reply.headers.get("cache-control").is_some_and(|value| value == "no-store"));
        let text = reply.text();
        assert!(
            !text.contains("https://") && !text.contains("http://") && !text.contains(" style="),
            "{path}"
        );
        assert!(
            text.contains("<html lang=\"en\">")
                && text.contains("id=\"main\"")
                && text.contains("aria-current=\"page\""),
            "{path}"
        );
    }
    assert!(fake.requests().is_empty(), "nothing of it goes upstream");
    assert_eq!(get(&respool, "/ui/no/such", "").await.status, 404);
    assert_eq!(post(&respool, "/ui/no/such", "", "", "http://127.0.0.1").await.status, 404);
    let foreign = exchange(respool.address, &Request::get("/").header("sec-fetch-site", "cross-site")).await;
    assert_eq!(foreign.status, 403);
}

#[tokio::test]
async fn requests_are_shown_without_content() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = started(&fake, dir.path(), false).await;
    fake.then(Script::json(200, &replies::text("Paris")).unchecked());
    fake.then(Script::json(400, &replies::error(400, "<b>no</b>", "BadRequestError")).unchecked());
    exchange(respool.address, &chat("gpt-oss-20b")).await;
    exchange(respool.address, &chat("gpt-oss-20b")).await;
    let requests = get(&respool, "/ui/requests", "").await.text().clone();
    assert_eq!(requests.matches("<tr class=\"opens\">").count(), 2, "{requests}");
    // A reader of the screen, a keyboard and a phone show no `title`.
    assert!(!requests.contains(" title="), "{requests}");
    let failed = get(&respool, "/ui/requests?outcome=error", "").await.text().clone();
    assert_eq!(failed.matches("<tr class=\"opens\">").count(), 1, "{failed}");
    let one = get(&respool, &link_to(&failed, "/ui/requests/"), "").await.text().clone();
    assert!(one.contains("HTTP 400") && one.contains("1. box"), "{one}");
    assert!(!one.contains("capital"), "{one}");
    assert_eq!(get(&respool, "/ui/requests/no-such", "").await.status, 404);
    let first = get(&respool, "/", "").await.text().clone();
    assert!(first.contains("Last problems") && !first.contains("<b>"), "{first}");
    assert!(get(&respool, "/ui/usage", "").await.text().contains("<svg"));
    for page in [&requests, &first] {
        assert!(!page.contains("capital") && !page.contains("Paris"));
    }
}

#[tokio::test]
async fn adapted_requests_are_shown_with_their_cost() {
    let refused = replies::error(400, "Unknown parameter: 'pattern' is not permitted.", "BadRequestError");
    let fake = FakeVllm::start([Script::json(400, &refused), Script::json(200, &replies::text("ok"))]).await;
    let dir = tempfile::tempdir().unwrap();
    let respool = started(&fake, dir.path(), false).await;
    let tool = |name: &str, text: Value| {
        json!({"type": "function", "function": {"name": name, "description": "d",
        "parameters": {"type": "object", "properties": {"a": text}}}})
    };
    let pattern = json!({"type": "string", "pattern": "x"});
    let tools = json!([tool("f", pattern.clone()), tool("g", pattern), tool("h", json!({"type": "string"}))]);
    let body =
        json!({"model": "gpt-oss-20b", "messages": [{"role": "user", "content": "hi"}], "tools": tools});
    assert_eq!(exchange(respool.address, &Request::chat(&body)).await.status, 200);
    let page = get(&respool, "/", "").await.text();
    let expected = "<code>tools.pattern</code>, in 2 tools: <code>pattern</code> is left out";
    assert!(page.contains(expected), "{page}");
}

#[tokio::test]
async fn repaired_requests_are_counted() {
    let leaked = replies::text("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>");
    let fake = FakeVllm::start([Script::json(200, &leaked), Script::json(200, &replies::text("ok"))]).await;
    let dir = tempfile::tempdir().unwrap();
    let respool = started(&fake, dir.path(), false).await;
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let body =
        json!({"model": "gpt-oss-20b", "messages": [{"role": "user", "content": "hi"}], "tools": [tool]});
    assert_eq!(exchange(respool.address, &Request::chat(&body)).await.status, 200);
    exchange(respool.address, &chat("gpt-oss-20b")).await;
    let page = get(&respool, "/", "").await.text();
    let tile = "<dd>1</dd><dt><a href=\"/ui/requests?repaired=yes&amp;period=24h\">repaired today";
    assert!(page.contains(tile), "{page}");
    let listed = get(&respool, "/ui/requests?repaired=yes&period=24h", "").await.text();
    assert_eq!(listed.matches("<tr class=\"opens\">").count(), 1, "{listed}");
}

/// A person who guesses an address of the page is no failed request of a client.
#[tokio::test]
async fn lost_visitors_are_no_failures() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = started(&fake, dir.path(), true).await;
    let cookie = logged_in(&respool).await;
    let visit = async |path: &str, cookie: &str| {
        let request = Request::get(path).header("accept", "text/html,*/*;q=0.8").header("cookie", cookie);
        exchange(respool.address, &request).await
    };
    let location = |reply: &Reply| (reply.status, reply.headers.get("location").map(str::to_owned));
    assert_eq!(location(&visit("/requests", &cookie).await), (303, Some("/ui/requests".into())));
    assert_eq!(location(&visit("/other", "").await), (303, Some("/ui/login".into())));
    let missing = visit("/other", &cookie).await;
    assert!(missing.status == 404 && missing.text().contains("/ui/requests"), "{}", missing.text());
    let list = get(&respool, "/ui/requests", &cookie).await.text();
    assert!(list.contains("No requests are recorded yet"), "{list}");
    assert_eq!(get(&respool, "/other", &cookie).await.status, 401, "a program is told what it lacks");
}

#[tokio::test]
async fn operator_keys_open_the_page() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = started(&fake, dir.path(), true).await;
    for path in PAGES.iter().chain(&["/ui/live"]) {
        for cookie in ["", "respool_session=1.2.3", "respool_session="] {
            let reply = get(&respool, path, cookie).await;
            assert_eq!(
                (reply.status, reply.headers.get("location").unwrap()),
                (303, "/ui/login"),
                "{path} {cookie}"
            );
        }
    }
    for (key, why) in [("sk-wrong", "not known"), (ALICE, "client&#39;s key")] {
        let reply = post(&respool, "/ui/login", "", &format!("key={key}"), "http://127.0.0.1").await;
        assert!(reply.status == 403 && reply.headers.get("set-cookie").is_none(), "{key}");
        assert!(
            reply.text().contains(why) || reply.text().contains(&why.replace("&#39;", "'")),
            "{}",
            reply.text()
        );
    }
    let cookie = logged_in(&respool).await;
    for path in PAGES {
        assert_eq!(get(&respool, path, &cookie).await.status, 200, "{path}");
    }
    let page = get(&respool, "/", &cookie).await.text().clone();
    let out =
        post(&respool, "/ui/logout", &cookie, &format!("csrf={}", csrf_mark(&page)), "http://127.0.0.1")
            .await;
    assert!(out.headers.get("set-cookie").is_some_and(|value| value.contains("Max-Age=0")));
    assert_eq!(get(&respool, "/", &cookie).await.status, 303, "a copy of the cookie opens nothing any more");
    let cookie = logged_in(&respool).await;
    // Over TLS the cookie stays there.
    let request = Request::post("/ui/login", format!("key={ROOT}")).header("origin", "https://respool");
    let reply = exchange(respool.address, &request).await;
    assert!(
        reply.headers.get("set-cookie").is_some_and(|value| value.contains("; Secure")),
        "{}",
        reply.text()
    );
    // Another key of the file opens nothing any more.
    std::fs::write(dir.path().join("keys.toml"), format!("alice = '{ALICE}'\n")).unwrap();
    let status = async || get(&respool, "/", &cookie).await.status;
    wait_until("a key that is taken away ends its sessions", async || status().await == 303).await;
}

#[tokio::test]
async fn only_the_own_button_ends_runs() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    fake.allow_cut_requests();
    let respool = started(&fake, dir.path(), true).await;
    fake.then(Script::json(200, &replies::calls(&[READ])));
    fake.then(Script::json(200, &replies::text("late")).delay(std::time::Duration::from_mins(1)));
    let request = chat("helper").header("authorization", &format!("Bearer {ALICE}"));
    let _client = Client::sending(respool.address, &request).await;
    fake.wait_for_requests(2).await;
    let cookie = logged_in(&respool).await;
    let now = get(&respool, "/", &cookie).await.text().clone();
    assert!(now.contains("waiting for the model") && now.contains("alice"), "{now}");
    let list = get(&respool, "/ui/runs", &cookie).await.text().clone();
    let run = link_to(&list, "/ui/runs/").rsplit('/').next().unwrap().to_owned();
    let one = get(&respool, &format!("/ui/runs/{run}"), &cookie).await.text().clone();
    assert!(one.contains("Model call") && one.contains("Tool read") && !one.contains("capital"), "{one}");
    let (mark, end) = (csrf_mark(&one), format!("/ui/runs/{run}/end"));
    for (form, cookie, origin, expected) in [
        (String::new(), &*cookie, "http://127.0.0.1", 403),
        ("csrf=0123".to_owned(), &*cookie, "http://127.0.0.1", 403),
        (format!("csrf={mark}"), &*cookie, "https://evil.example", 403),
        (format!("csrf={mark}"), "", "http://127.0.0.1", 303),
    ] {
        let reply = post(&respool, &end, cookie, &form, origin).await;
        assert_eq!(reply.status, expected, "{form} {origin}");
        assert!(!respool.agents.active_runs().is_empty(), "the run goes on: {form} {origin}");
    }
    let reply = post(&respool, &end, &cookie, &format!("csrf={mark}"), "http://127.0.0.1").await;
    assert_eq!(
        (reply.status, reply.headers.get("location").unwrap().to_owned()),
        (303, format!("/ui/runs/{run}"))
    );
    wait_until("the run ends", async || respool.agents.active_runs().is_empty()).await;
}

#[tokio::test]
async fn forbidden_models_get_the_right_advice() {
    let (one, two, dir) =
        (FakeVllm::start([]).await, FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    one.serve_models(&["gpt-oss-20b"]);
    two.serve_models(&["fast"]);
    let path = dir.path().display();
    let bob = "sk-bob-0123456789";
    let keys =
        format!("[bob]\nkey = '{bob}'\nmodels = ['gpt-oss-*']\n[root]\nkey = '{ROOT}'\noperator = true\n");
    std::fs::write(dir.path().join("keys.toml"), keys).unwrap();
    let toml = format!(
        "client_keys_file = \"{path}/keys.toml\"\nstate_dir = \"{path}\"\n[[upstream]]\nname = \"one\"\nurl = \"{}\"\n\
         [[upstream]]\nname = \"two\"\nurl = \"{}\"\n",
        one.url(),
        two.url()
    );
    let respool = Respool::configured(&toml).await;
    for (key, model) in [(bob, "fast"), (ROOT, "renamed")] {
        let request = chat(model).header("authorization", &format!("Bearer {key}"));
        assert_eq!(exchange(respool.address, &request).await.status, 404, "{model}");
    }
    let cookie = logged_in(&respool).await;
    let page = get(&respool, "/", &cookie).await.text();
    let (unknown, forbidden) = page.split_once("<strong>fast</strong>").unwrap();
    assert!(forbidden.contains("The key <code>bob</code> may not use this model."), "{page}");
    assert!(!forbidden.contains("The server has: "), "{page}");
    assert!(unknown.contains("<strong>renamed</strong>"), "the name of an unknown model is kept: {page}");
    assert!(unknown.contains("The server has: <code>gpt-oss-20b</code>, <code>fast</code>."), "{page}");
    assert!(get(&respool, "/ui/requests", &cookie).await.text().contains("renamed<"));
}

#[tokio::test]
async fn failed_runs_show_the_reason() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = started(&fake, dir.path(), false).await;
    fake.then(Script::json(401, &replies::error(401, "Unauthorized", "AuthenticationError")).unchecked());
    exchange(respool.address, &chat("helper")).await;
    let list = get(&respool, "/ui/runs", "").await.text();
    let page = get(&respool, &link_to(&list, "/ui/runs/"), "").await.text();
    assert!(page.contains("No model call succeeded.") && page.contains("The requests of this run"), "{page}");
    let failed = "<dt>Failed</dt><dd><code>upstream_credentials_refused</code> Set or correct ";
    assert!(page.contains(failed) && page.contains("upstream </span>credentials refused"), "{page}");
}

#[tokio::test]
async fn what_runs_is_told_live() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    fake.allow_cut_requests();
    let respool = started(&fake, dir.path(), false).await;
    let mut live = Client::sending(respool.address, &Request::get("/ui/live")).await;
    assert_eq!(live.head().await.headers.get("content-type").unwrap(), "text/event-stream");
    let mut told = String::new();
    while !told.contains("Nothing is running") {
        told += &String::from_utf8_lossy(&live.chunk().await.unwrap().bytes);
    }
    fake.then(Script::json(200, &replies::text("late")).delay(std::time::Duration::from_mins(1)).unchecked());
    let _client = Client::sending(respool.address, &chat("gpt-oss-20b")).await;
    // The numbers above the table and the table of upstreams say the same as the table.
    let in_progress = "box</a></th><td class=\"words\"><span class=\"badge good\">works</span></td><td class=\"number\">1</td>";
    for part in ["waiting for the model", "<dd>1</dd><dt>running now</dt>", in_progress] {
        while !told.contains(part) {
            told += &String::from_utf8_lossy(&live.chunk().await.unwrap().bytes);
        }
    }
    for part in ["tiles", "upstreams", "alerts", "problems"] {
        assert!(told.contains(&format!("event: {part}\ndata: ")), "{told}");
    }
    assert!(told.contains("event: now\ndata: ") && !told.contains("capital"), "{told}");
}

/// On a loopback address, operator keys alone turn no client away: the page opens without a session, except
/// for what a client without a key may not see elsewhere.
#[tokio::test]
async fn operator_keys_alone_leave_the_page_open() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let (path, url) = (dir.path().display(), fake.url());
    let toml = format!(
        "operator_keys_env = \"OPERATORS\"\nstate_dir = \"{path}\"\n[log]\nerrors_dir = \"{path}/logs\"\n\
         [[upstream]]\nname = \"box\"\nurl = \"{url}\"\n"
    );
    let respool = Respool::started_in(&toml, &[("OPERATORS", ROOT)], None).await;
    for path in PAGES {
        assert_eq!(get(&respool, path, "").await.status, 200, "{path}");
    }
    let approvals = async |cookie: &str| get(&respool, "/ui/approvals", cookie).await.text().clone();
    assert!(approvals("").await.contains("log in with an operator key"));
    let form = get(&respool, "/ui/login", "").await.text();
    assert!(form.contains("name=\"key\""), "the link leads to a form: {form}");
    let cookie = logged_in(&respool).await;
    assert!(!approvals(&cookie).await.contains("log in with an operator key"));
}

/// A person approves one of two calls on the page, with a comment.
#[tokio::test]
async fn calls_are_approved_one_by_one() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = started(&fake, dir.path(), true).await;
    let calls = [("exec", r#"{"command":"one"}"#), ("exec", r#"{"command":"two"}"#)];
    fake.then(Script::json(200, &replies::calls(&calls)));
    fake.then(Script::json(200, &replies::text("Done.")));
    let agent = supervised(&respool, confirms(&["exec"], ApprovalRules::default()));
    let asked = awaited(serve(&respool, &agent).await.1);
    let cookie = logged_in(&respool).await;
    let page = get(&respool, "/ui/approvals", &cookie).await.text();
    assert_eq!(page.matches("type=\"checkbox\"").count(), 2, "{page}");
    assert!(page.contains("Approve the marked calls") && page.contains("it has made no calls"), "{page}");
    let form =
        format!("csrf={}&call={}&comment=one+is+enough&approve=yes", csrf_mark(&page), asked.calls[0].id);
    let path = format!("/ui/approvals/{}", asked.id);
    let done = post(&respool, &path, &cookie, &form, "http://127.0.0.1").await;
    assert_eq!(done.status, 303);
    let said = get(&respool, done.headers.get("location").unwrap(), &cookie).await.text();
    assert!(said.contains("Approved: these calls are made now."), "{said}");
    let store = respool.agents.store().unwrap();
    let decided = store.approval(&asked.id).await.unwrap().unwrap().decision.unwrap();
    let decision: Decision = serde_json::from_str(&decided).unwrap();
    assert_eq!(decision.approved, [asked.calls[0].id.clone()]);
    assert_eq!((&*decision.by, decision.comment.as_deref()), ("root", Some("one is enough")));
    let again = post(&respool, &path, &cookie, &form, "http://127.0.0.1").await;
    assert_eq!(again.status, 409);
    let again = again.text();
    assert!(again.contains("1 of its 2 calls were approved by root at 2"), "{again}");
    assert!(again.contains("Back to the approvals") && again.contains("/ui/runs"), "{again}");
    fake.wait_for_requests(2).await;
}

#[tokio::test]
async fn inputs_are_changed_on_the_page() {
    let call = ("exec", r#"{"command":"one\ntwo"}"#);
    for (written, expected) in [("one%0D%0Atwo", None), ("one%0D%0A2", Some(r#"{"command":"one\n2"}"#))] {
        let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
        let respool = started(&fake, dir.path(), true).await;
        let agent = supervised(&respool, confirms(&["exec"], ApprovalRules::default()));
        let cookie = logged_in(&respool).await;
        fake.then(Script::json(200, &replies::calls(&[call])));
        fake.then(Script::json(200, &replies::text("Done.")));
        let asked = awaited(serve(&respool, &agent).await.1);
        let page = get(&respool, "/ui/approvals", &cookie).await.text();
        let (csrf, id) = (csrf_mark(&page), &asked.calls[0].id);
        assert!(page.contains(&format!("name=\"input/{id}/command\"")), "{page}");
        let form = format!("csrf={csrf}&call={id}&approve=yes&input/{id}/command={written}");
        let path = format!("/ui/approvals/{}", asked.id);
        assert_eq!(post(&respool, &path, &cookie, &form, "http://127.0.0.1").await.status, 303);
        let row = respool.agents.store().unwrap().approval(&asked.id).await.unwrap().unwrap();
        let decision: Decision = serde_json::from_str(&row.decision.unwrap()).unwrap();
        assert_eq!(decision.changed.get(id).map(String::as_str), expected, "{written}");
        assert!(decision.approves(&asked.calls[0]));
        fake.wait_for_requests(2).await;
        respool.killed().await;
    }
}

/// Without keys the page showed what `/v1/approvals` refuses, and let anybody drop dead letters.
#[tokio::test]
async fn approvals_are_for_operators() {
    for has_keys in [false, true] {
        let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
        let respool = started(&fake, dir.path(), has_keys).await;
        let store = respool.agents.store().unwrap();
        enqueue(store, invocation("letter-1", "triage", json!({"order_id": 4711}))).await;
        let request = ClaimRequest {
            queues: vec!["sales-desk".into()],
            most: 1,
            lease: Duration::from_mins(1),
            ..ClaimRequest::default()
        };
        let claimed = store.claim_entries(request).await.unwrap().remove(0);
        let end = EntryEnd::DeadLetter;
        assert!(store.complete(&claimed.lease, end, "`say` is why it failed".into()).await.unwrap());
        let cookie = if has_keys { logged_in(&respool).await } else { String::new() };
        let page = get(&respool, "/ui/approvals", &cookie).await.text();
        assert_eq!(page.contains("<code>say</code> is why it failed"), has_keys, "{page}");
        assert_eq!(page.contains("&quot;order_id&quot;: 4711"), has_keys, "{page}");
        assert_eq!(page.contains("operator_keys_env"), !has_keys, "{page}");
        let mark = if has_keys { csrf_mark(&page) } else { String::new() };
        let form = format!("csrf={mark}&what=drop");
        post(&respool, "/ui/letters/letter-1", &cookie, &form, "http://127.0.0.1").await;
        assert_eq!(store.entry("letter-1").await.unwrap().is_none(), has_keys);
        respool.killed().await;
    }
}

/// A respool with operators, whose expert has triaged one mail.
async fn with_a_triaged_mail(desk: &Desk, fake: &FakeVllm) -> Respool {
    let toml = format!("operator_keys_env = \"OPERATORS\"\n{}", desk.toml(&fake.url()));
    let respool = Respool::started_in(&toml, &[("OPERATORS", ROOT)], None).await;
    let store = respool.agents.store().unwrap();
    let mail = json!({"message_id": "m1", "contact_id": "sarah@acme.example"});
    enqueue(store, invocation("i1", "inbound-email-triage", mail)).await;
    until(store, "i1", is_over).await;
    respool
}

/// Drafts waited in the outbox, and no page spoke of them.
#[tokio::test]
async fn drafts_and_results_are_shown() {
    for is_private in [false, true] {
        let fake = FakeVllm::thinking(triage).await;
        let desk = Desk::new(&fake.url());
        if !is_private {
            desk.edit("knowledge/margins.md", "type: private", "type: static");
        }
        let respool = with_a_triaged_mail(&desk, &fake).await;
        let notice = "1 draft of an expert waits for you";
        let cookie = logged_in(&respool).await;
        assert!(get(&respool, "/", &cookie).await.text().contains(notice));
        assert!(!get(&respool, "/ui/approvals", "").await.text().contains("email.send"), "for operators");
        let page = get(&respool, "/ui/approvals", &cookie).await.text();
        assert!(page.contains("<code>email.send</code>"), "{page}");
        for text in ["how about a demo on Thursday", "Buying signal from Sarah at Acme."] {
            assert_eq!(page.contains(text), !is_private, "{text}: {page}");
        }
        let (_, draft) = page.split_once(r#"<h2 id="drafts">"#).unwrap();
        assert_eq!(draft.contains("<dt>text</dt>"), !is_private, "texts can be copied: {draft}");
        assert!(draft.contains("What it is for") && draft.contains("It is yours to send"), "{draft}");
        let path = link_to_form(&page, "/ui/drafts/");
        let form = format!("csrf={}", csrf_mark(&page));
        assert_eq!(post(&respool, &path, "", &form, "http://127.0.0.1").await.status, 403);
        assert_eq!(post(&respool, &path, &cookie, &form, "http://127.0.0.1").await.status, 303);
        assert!(!get(&respool, "/", &cookie).await.text().contains(notice));
        respool.killed().await;
    }
}

/// The first form of a page whose address begins so.
fn link_to_form(page: &str, start: &str) -> String {
    let action = page.split("action=\"").skip(1).find(|action| action.starts_with(start)).expect("a form");
    action.split('"').next().unwrap().to_owned()
}

/// Open drafts behind many finished ones were neither counted nor shown.
#[tokio::test]
async fn old_drafts_are_not_hidden_by_finished_ones() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = started(&fake, dir.path(), true).await;
    let store = respool.agents.store().unwrap();
    let draft = |id: String| NewMessage {
        id,
        expert: "desk".into(),
        kind: "draft".into(),
        body: json!({"draft": {"operation": "email.send"}}),
        ..NewMessage::default()
    };
    assert!(store.post(draft("the-old-one".into()), 1_000).await.unwrap());
    for number in 0..250 {
        let id = format!("done-{number}");
        assert!(store.post(draft(id.clone()), 2_000 + number).await.unwrap());
        assert!(store.end_message(&id, 3_000, None).await.unwrap());
    }
    let cookie = logged_in(&respool).await;
    assert!(get(&respool, "/", &cookie).await.text().contains("1 draft of an expert waits for you"));
    assert!(get(&respool, "/ui/approvals", &cookie).await.text().contains("/ui/drafts/the-old-one"));
}

/// No page said when an expert starts next.
#[tokio::test]
async fn experts_have_a_page() {
    let fake = FakeVllm::thinking(triage).await;
    let desk = Desk::new(&fake.url());
    let respool = with_a_triaged_mail(&desk, &fake).await;
    let open = get(&respool, "/", "").await.text();
    assert!(open.contains(r#"href="/ui/experts""#), "{open}");
    let cookie = logged_in(&respool).await;
    let page = get(&respool, "/ui/experts", &cookie).await.text();
    for text in [">ready<", "/ui/experts/sales-desk", ">done<"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let page = get(&respool, "/ui/experts/sales-desk", &cookie).await.text();
    for text in [">send<", "POST /hooks/sales-desk/", "inbound-email-triage", "1 under Approvals", ">done<"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let page = get(&respool, "/ui/experts/sales-desk", "").await.text();
    assert!(page.contains("log in with an operator key") && !page.contains(">done<"), "{page}");
    assert_eq!(get(&respool, "/ui/experts/nobody", &cookie).await.status, 404);
}
