// An expert of respool's as the model of the real OpenClaw, and the main agent that hands a task to it. Prints a line for each turn, exits 0
// only if all are right. Started by run.sh, which sets OWN (what the expert's function says), RELAY_LOG and the gateway's settings.
import fs from 'node:fs';
import { spawnSync } from 'node:child_process';
import { script, seen, turn, wait } from './gateway-client.mjs';

const { OC_VERSION, OWN, RELAY, RELAY_LOG, RESPOOL_OPERATOR_KEY, OPENCLAW, GATEWAY_PORT, GATEWAY_TOKEN } = process.env;
// It offers the tool itself; the new client hides it behind Tool Search.
const OLD = OC_VERSION === '2026.2.26';
const FUNCTION = ['read', { path: 'functions/sort-mail.md' }];

const CASES = [
  { name: 'the expert answers', provider: 'respool-expert', order: { text: 'pineapple-9' }, wants: ['pineapple-9'] },
  { name: 'the expert reads its function', provider: 'respool-expert', order: { calls: [FUNCTION] }, wants: [OWN] },
  { name: 'the main agent reads EXPERTS.md', provider: 'respool', order: { calls: [['read', { path: 'EXPERTS.md' }]] }, wants: ['## desk', 'sort-mail: Sorts a mail', 'respool/expert/desk'] },
];

let failed = 0;
for (const [at, { name, provider, order, wants }] of CASES.entries()) {
  const { status, text, seconds } = await turn(script({ tag: `expert-${at}`, ...order }), { provider });
  const { refused } = await seen(`expert-${at}`);
  const problems = refused.map((reason) => `upstream refused: ${reason}`);
  if (status !== 200) problems.push(`HTTP ${status}`);
  for (const want of wants) if (!text.includes(want)) problems.push(`no ${want} in the answer`);
  failed += problems.length ? 1 : 0;
  console.log(`${problems.length ? `FAIL (${problems.join('; ')})` : 'pass'}  ${name}, ${seconds.toFixed(1)} s: ${text.replace(/\s+/g, ' ').slice(0, 160)}`);
}
const FURTHER = OLD ? [delegated] : [delegated, delivered];
for (const check of FURTHER) failed += (await check()) ? 0 : 1;
console.log(failed ? `${failed} of ${CASES.length + FURTHER.length} failed` : `all ${CASES.length + FURTHER.length} passed`);
process.exitCode = failed ? 1 : 0;

// As EXPERTS.md says: `sessions_spawn` with the expert as the model. It returns at once, and the expert works in a session of its own, to which
// `sessions_send` brings more.
async function delegated() {
  const name = `e2e-delegation-${process.pid}`;
  const task = (tag) => script({ tag, calls: [FUNCTION] });
  const tool = (id, args) => OLD ? [id, args] : ['tool_call', { id, args }];
  const asked = async (tag, before) => {
    for (let second = 0; second < 60 && modelCalls() - before < 2; second += 1) await wait(1);
    return { calls: modelCalls() - before, refused: (await seen(tag)).refused };
  };
  let before = modelCalls();
  const spawned = await turn(script({ tag: 'expert-parent', calls: [tool('sessions_spawn', { task: task('expert-child'), model: 'respool-expert/expert/desk' })] }), { name });
  const first = await asked('expert-child', before);
  const key = spawned.text.match(/childSessionKey\W+([\w:-]+)/)?.[1];
  let ok = spawned.status === 200 && /accepted/.test(spawned.text) && first.calls >= 2 && !first.refused.length;
  tell(ok, 'a task is handed over by sessions_spawn', `${first.calls} model calls of the expert, ${first.refused.join('; ') || 'none refused'}: ${spawned.text}`);
  if (OLD) return ok;
  before = modelCalls();
  const sent = await turn(script({ tag: 'expert-parent-2', calls: [tool('sessions_send', { sessionKey: key, message: task('expert-again'), timeoutSeconds: 60 })] }), { name });
  const again = await asked('expert-again', before);
  const isSent = sent.status === 200 && again.calls >= 2 && !again.refused.length;
  tell(isSent, 'and more by sessions_send', `${again.calls} model calls, ${again.refused.join('; ') || 'none refused'}: ${sent.text}`);
  return ok && isSent;
}

// A message in the main session's chat starts the process; its question for consent arrives in that session, the plugin's command decides it past
// every model, exactly the recorded call runs, and the result arrives there too.
async function delivered() {
  const steps = [];
  const step = (ok, name, detail) => { tell(ok, name, detail); steps.push(ok); return ok; };
  const said = call('chat.send', { sessionKey: 'main', message: 'Move the deal, please', idempotencyKey: `say-${process.pid}` });
  const approval = await until(async () => (await outbox('approval'))[0]);
  step(approval, 'a chat message starts the process, which asks', approval ? JSON.stringify(approval.body.calls) : said);
  if (!approval) return false;
  const asked = await until(async () => (await outbox('approval'))[0].delivered && history().includes('asks for the user'));
  step(asked, 'the question is delivered into the main session', approval.problem ?? '');
  const id = approval.body.id;
  const byModel = await turn(script({ tag: 'expert-self', text: `/experts approve ${id}` }), { provider: 'respool' });
  step((await outbox('result')).length === 0, 'a model that says the command decides nothing', byModel.text);
  const bySend = await turn(script({ tag: 'expert-send', calls: [['tool_call', { id: 'sessions_send', args: { sessionKey: 'main', message: `/experts approve ${id}`, timeoutSeconds: 20 } }]] }), { provider: 'respool' });
  await wait(5);
  step((await outbox('result')).length === 0, 'nor one that sends it to the session', bySend.text);
  callAs('operator.read,operator.write,operator.approvals', 'chat.send', { sessionKey: 'main', message: '/experts', idempotencyKey: `list-${process.pid}` });
  step(await until(() => history().includes(`${id}  expert/desk`)), 'the command lists it', '');
  callAs('operator.read,operator.write,operator.approvals', 'chat.send', { sessionKey: 'main', message: `/experts show ${id}`, idempotencyKey: `show-${process.pid}` });
  step(await until(() => history().includes('page 1 of 1')), 'and shows all of it', '');
  const yes = callAs('operator.read,operator.write,operator.approvals', 'chat.send', { sessionKey: 'main', message: `/experts approve ${id}`, idempotencyKey: `yes-${process.pid}` });
  const result = await until(async () => (await outbox('result'))[0]);
  if (!result) console.log(yes, history().slice(-1500));
  const effects = fs.existsSync(process.env.JOURNAL) ? fs.readFileSync(process.env.JOURNAL, 'utf8').trim().split('\n') : [];
  step(result && effects.length === 1 && effects[0].includes('update_deal_stage'), 'the command approves, and the call runs once', effects.join(' '));
  step(await until(async () => (await outbox('result'))[0]?.delivered && history().includes('has finished the process move')), 'the result is delivered into the main session', '');
  return steps.every(Boolean);
}

function tell(ok, name, detail) {
  console.log(`${ok ? 'pass' : 'FAIL'}  ${name}: ${String(detail).replace(/\s+/g, ' ').slice(0, 200)}`);
}

async function until(look, seconds = 90) {
  for (let second = 0; second < seconds; second += 1) {
    const found = await look();
    if (found) return found;
    await wait(1);
  }
}

async function outbox(kind) {
  const reply = await fetch(`${RELAY.replace(/\/v1$/, '')}/v1/outbox?kind=${kind}`, { headers: { authorization: `Bearer ${RESPOOL_OPERATOR_KEY}` } });
  return (await reply.json()).data ?? [];
}

// A method of the gateway, as a client of its own calls it.
function call(method, params) {
  const [program, dir] = OPENCLAW.split(' ');
  const args = [dir, 'gateway', 'call', method, '--params', JSON.stringify(params), '--json', '--url', `ws://127.0.0.1:${GATEWAY_PORT}`, '--token', GATEWAY_TOKEN];
  const done = spawnSync(program, args, { encoding: 'utf8', timeout: 60_000 });
  return `${done.stdout}${done.stderr}`;
}

// The same with scopes that the command line does not ask for.
function callAs(scopes, method, params) {
  const [, dir] = OPENCLAW.split(' ');
  const [node, root] = [`${dir}/node24/node_modules/node/bin/node`, `${dir}/openclaw-${OC_VERSION}/node_modules/openclaw`];
  const args = [new URL('gateway-call.mjs', import.meta.url).pathname, root, method, JSON.stringify(params), `ws://127.0.0.1:${GATEWAY_PORT}`, GATEWAY_TOKEN, scopes];
  const { OPENCLAW_STATE_DIR, PATH } = process.env;
  const env = { HOME: `${dir}/home-${OC_VERSION}`, OPENCLAW_CONFIG_PATH: `${dir}/gateway/openclaw.json`, OPENCLAW_STATE_DIR, PATH };
  const done = spawnSync(node, args, { encoding: 'utf8', timeout: 90_000, env });
  return `${done.stdout}${done.stderr}`;
}

function history() {
  return call('chat.history', { sessionKey: 'main', limit: 100 });
}

// Model calls of agents that brought a reply.
function modelCalls() {
  const parts = ['"route":"agent_model"', '"outcome":"ok"'];
  return fs.readFileSync(RELAY_LOG, 'utf8').split('\n').filter((line) => parts.every((part) => line.includes(part))).length;
}
