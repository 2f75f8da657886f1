// The plugin of respool's experts without a gateway: who sees what waits, and who decides. `node --test tests/openclaw/experts-plugin.test.mjs`
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import test from "node:test";

import plugin from "../../deploy/openclaw-experts/index.js";

/** The command `/experts` in front of a server that notes what it is asked. */
async function command(t) {
  const asked = [];
  const server = createServer((request, reply) => {
    asked.push(`${request.method} ${request.url}`);
    const id = request.url.split("/")[3] ?? "ab12";
    const deals = { long: `${"x".repeat(4_000)}\u202eand the end`, wide: `${"😀".repeat(1_600)} and all the rest ${"😀".repeat(600)}` };
    const deal = deals[id] ?? "secret";
    const approval = { id, agent: "expert/desk", requester: "process", process: "lend", state: "waiting", calls: [{ tool: "crm__move", arguments: { deal } }], reason: "why" };
    const answers = { "/v1/approvals": { data: [approval] }, "/v1/outbox": { data: [{ id: "i1", kind: "result", body: "secret" }] } };
    const decided = request.method === "POST" ? { approved: ["c1"] } : approval;
    reply.end(JSON.stringify(answers[request.url] ?? decided));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.close());
  process.env.EXPERTS_TEST_KEY = "sk-operator";
  let run, requiredScopes;
  const pluginConfig = { url: `http://127.0.0.1:${server.address().port}`, keyEnv: "EXPERTS_TEST_KEY" };
  plugin.register({ pluginConfig, registerCommand: (command) => ({ handler: run, requiredScopes } = command), on: () => {} });
  return { asked, requiredScopes, run: async (args, context) => (await run({ args, ...context })).text };
}

const VERBS = ["", "show ab12", "outbox", "approve ab12", "reject ab12 no"];

test("a sender who is no owner sees nothing and decides nothing", async (t) => {
  const { asked, run } = await command(t);
  for (const context of [{}, { senderIsOwner: false }, { gatewayClientScopes: ["operator.read", "operator.write"] }]) {
    for (const verb of VERBS) {
      assert.match(await run(verb, context), /only an owner/, verb);
    }
  }
  assert.deepEqual(asked, [], "respool is not even asked");
});

// Without scopes OpenClaw does not say who is an owner, so nobody in a channel could decide (tests/openclaw/run.sh DIR channel).
test("the command asks for the scope that lets OpenClaw name owners", async (t) => {
  assert.deepEqual((await command(t)).requiredScopes, ["operator.approvals"]);
});

test("owners, and clients that decide about approvals, see and decide", async (t) => {
  const { asked, run } = await command(t);
  for (const context of [{ senderIsOwner: true }, { gatewayClientScopes: ["operator.approvals"] }, { gatewayClientScopes: ["operator.admin"] }]) {
    assert.match(await run("", context), /expert\/desk {2}process "lend"\n {2}crm__move/);
    assert.match(await run("outbox", context), /i1 {2}result/);
    assert.match(await run("approve ab12", context), /^(Not approved yet.*\n.*\n.*secret|ab12 is approved)/);
    assert.equal(await run("approve ab12", context), "ab12 is approved.");
  }
  assert.equal(asked.filter((one) => one === "POST /v1/approvals/ab12").length, 5, "but for the one that had not been shown");
});

test("a request is approved only once all of it was shown, with nothing hidden", async (t) => {
  const { asked, run } = await command(t);
  const owner = { senderIsOwner: true };
  assert.match(await run("approve long", owner), /page 1 was not shown before[^]*page 1 of 2\n {2}crm__move/);
  assert.match(await run("show long", owner), /page 1 of 2/);
  const last = await run("approve long", owner);
  assert.match(last, /page 2 was not shown/);
  assert.ok(last.includes("\\u{202e}and the end") && !last.includes("\u202e"), last);
  assert.ok(!asked.includes("POST /v1/approvals/long"), "respool is not told");
  assert.equal(await run("approve long", owner), "long is approved.");
  assert.match(await run("show long 9", owner), /has 2 page/);
  const wide = await run("show wide 1", owner) + (await run("show wide 2", owner));
  assert.ok(wide.includes("and all the rest") && wide.includes("why") && !wide.includes("…"), wide);
});

test("a message is forwarded again while respool restarts", async (t) => {
  const taken = [];
  const server = createServer((request, reply) => {
    taken.push(request.url);
    reply.statusCode = taken.length < 3 ? 503 : 202;
    reply.end();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.close());
  const url = `http://127.0.0.1:${server.address().port}/hooks/desk/ask`;
  let receive;
  const pluginConfig = { triggers: [{ channel: "telegram", url, secretEnv: "NONE" }], pauses: [1, 1, 1] };
  plugin.register({ pluginConfig, registerCommand: () => {}, on: (_, handler) => (receive = handler) });
  receive({ content: "hello", messageId: "m1" }, { channelId: "telegram" });
  while (taken.length < 3) await new Promise((resolve) => setTimeout(resolve, 5));
  await new Promise((resolve) => setTimeout(resolve, 50));
  assert.equal(taken.length, 3, "and no more than needed");
});
