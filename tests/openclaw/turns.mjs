// The turns that a real OpenClaw has to finish (or end honestly) through respool; prints a table, exits 0 only if all pass.
// Started by run.sh, which sets RELAY, UPSTREAM, FIXTURE, DOWN_LOG and the gateway's settings. ONLY=REGEX picks turns.
import fs from 'node:fs';
import { script, seen, turn, wait } from './gateway-client.mjs';

const { RELAY, FIXTURE, DOWN_LOG, OC_VERSION } = process.env;
const IS_OLD = OC_VERSION === '2026.2.26';
const READ = ['read', { path: 'fixture.txt' }];
const EXEC = ['exec', { command: 'echo sum-$((40+2))' }];
const SILENCE = 20; // seconds: two heartbeats of respool's defaults fit in
const RETRIES = [1, 3]; // requests that a turn costs whose server fails: OpenClaw does not repeat what respool has given up

// A turn that must succeed: `wants` are in the answer, the upstream saw exactly `requests`.
const good = (name, order, wants, requests, more = {}) => ({ name, order, wants, requests: [requests, requests], fails: false, ...more });
// A turn that must end with an error the owner can see, never with an answer.
const bad = (name, provider, order, requests, more = {}) => ({ name, provider, order, wants: [], requests, fails: true, ...more });

const CASES = [
  good('plain answer', { text: 'pineapple-9' }, ['pineapple-9'], 1),
  good('no tools: native stream', { text: 'one two three' }, ['one two three'], 1, { provider: 'respool-plain', streams: true, newOnly: true }),
  good('read', { calls: [READ] }, [FIXTURE], 2),
  good('read, with the minimal entry', { calls: [READ] }, [FIXTURE], 2, { provider: 'respool-minimal' }),
  good('exec', { calls: [EXEC] }, ['sum-42'], 2),
  good('two calls at once', { calls: [READ, EXEC] }, [FIXTURE, 'sum-42'], 2),
  good('reasoning comes back', { calls: [READ], reasoning: 'I need the file.' }, [FIXTURE], 2, { reasoning: 'I need the file.' }),
  // The minimal entry has no `requiresReasoningContentOnAssistantMessages`: the new client drops the reasoning.
  good('dropped reasoning comes back', { calls: [READ], rounds: 2, reasoning: 'I need the file.' }, [FIXTURE], 3, { provider: 'respool-minimal', reasoning: 'I need the file. | I need the file.' }),
  good('finish_reason "stop" + text + call', { calls: [READ], text: 'I will read it.', finish: 'stop' }, [FIXTURE], 2),
  good('empty arguments', { calls: [[IS_OLD ? 'session_status' : 'ls', '']] }, [IS_OLD ? 'OpenClaw' : 'fixture.txt'], 2),
  good('<tools> text', { calls: [READ], form: 'tools' }, [FIXTURE], 2),
  good('bare JSON text', { calls: [EXEC], form: 'bare' }, ['sum-42'], 2),
  good('JSON on several lines', { calls: [READ, EXEC], form: 'lines' }, [FIXTURE, 'sum-42'], 2),
  good(`${SILENCE} s of silence`, { calls: [READ], silent: SILENCE }, [FIXTURE], 2, { heartbeats: true }),
  bad('refused key (401)', 'respool-refused', { fail: { status: 401 } }, [1, 1], { thenWorks: true, says: /key/i }),
  bad('bad request (400)', 'respool-errors', { fail: { status: 400, message: 'temperature must be non-negative' } }, [1, 1], { thenWorks: true, says: /temperature/ }),
  bad('200 with an error body', 'respool-errors', { fail: 'ok-error' }, RETRIES),
  bad('refused key after silence', 'respool-refused', { fail: { status: 401 }, silent: 4 }, [1, 1], { thenWorks: true, says: /key/i }),
  bad('dies in mid-reply', 'respool-dies', { fail: 'cut' }, RETRIES, { slow: true }),
  bad('dies in mid-reply after silence', 'respool-dies', { fail: 'cut', silent: 4 }, RETRIES, { slow: true }),
  bad('down', 'respool-down', {}, [0, 0], { slow: true, relayRequests: RETRIES }),
  { name: 'client leaves', order: { silent: 30, text: 'nobody waits' }, leaves: true, newOnly: true },
];

const results = [];
const chosen = CASES.filter(({ name, newOnly }) => new RegExp(process.env.ONLY ?? '').test(name) && !(IS_OLD && newOnly)).map((test, at) => ({ provider: 'respool', tag: `t${at}`, ...test }));

// respool waits a minute for a server that is down: the failing turns run beside the others.
const slow = chosen.filter((test) => test.slow).map(run);
for (const test of chosen.filter((test) => !test.slow)) await run(test);
await Promise.all(slow);
report();

async function run(test) {
  const problems = [];
  const outcome = test.leaves ? await leave(test, problems) : await finish(test, problems);
  results.push({ test, problems, ...outcome });
  console.error(`${problems.length ? 'FAIL' : 'pass'}  ${test.name}`);
}

async function finish(test, problems) {
  const heartbeats = test.heartbeats ? countHeartbeats(test) : undefined;
  const reply = await turn(script({ tag: test.tag, ...test.order }), { provider: test.provider });
  const upstream = await seen(test.tag);
  checkReply(test, reply, problems);
  checkUpstream(test, upstream, problems);
  if (test.thenWorks) await checkNext(test, problems);
  if (test.relayRequests) checkCount('relay requests', relayLines(), test.relayRequests, problems);
  const beats = await heartbeats;
  if (test.heartbeats && beats < 1) problems.push('no heartbeat chunk in the silence');
  return { reply, requests: test.relayRequests ? relayLines() : upstream.requests.length, beats };
}

function checkReply({ fails, wants, says }, { status, text }, problems) {
  for (const want of wants) if (!text.includes(want)) problems.push(`no ${JSON.stringify(want)} in the answer`);
  if (status === 0) problems.push('OpenClaw never answered');
  // The old client shows an error as the answer, with status 200.
  if (fails && status === 200 && !IS_OLD) problems.push('an error came out as an answer');
  if (!fails && status !== 200) problems.push(`HTTP ${status}`);
  if (says && !says.test(text)) problems.push(`the error does not say ${says}`);
}

function checkUpstream({ requests, streams = false, reasoning }, upstream, problems) {
  checkCount('upstream requests', upstream.requests.length, requests, problems);
  for (const reason of upstream.refused) problems.push(`upstream refused: ${reason}`);
  if (upstream.requests.some((request) => request.stream !== streams)) problems.push(`upstream was asked stream:${!streams}`);
  if (reasoning && !IS_OLD && upstream.requests.at(-1)?.reasoning !== reasoning) problems.push(`reasoning came back as ${upstream.requests.at(-1)?.reasoning}`);
}

function checkCount(what, count, [least, most], problems) {
  if (count < least || count > most) problems.push(`${what}: ${count}, not ${least}${most > least ? `-${most}` : ''}`);
}

// A failed turn must not cost the provider its next one.
async function checkNext({ provider, tag }, problems) {
  const next = await turn(script({ tag: `${tag}-next`, text: 'still here' }), { provider });
  if (!next.text.includes('still here')) problems.push(`the next turn: ${next.text}`);
}

// The same silent turn as a bare request to the relay: empty-content chunks between the role and the end.
async function countHeartbeats({ tag, order }) {
  const tools = [{ type: 'function', function: { name: 'read', parameters: { type: 'object', properties: { path: { type: 'string' } } } } }];
  const messages = [{ role: 'user', content: script({ tag: `${tag}-raw`, ...order }) }];
  const reply = await fetch(`${RELAY}/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ model: 'gpt-oss-120b', stream: true, tools, messages }) });
  const chunks = (await reply.text()).split('\n').filter((line) => line.startsWith('data: {')).map((line) => JSON.parse(line.slice(6)));
  return chunks.filter(({ choices }) => choices?.[0]?.delta?.content === '' && !choices[0].delta.role).length;
}

// The owner hangs up while the model is silent: the request must leave the model server too.
async function leave(test, problems) {
  const owner = new AbortController();
  const answer = turn(script({ tag: test.tag, ...test.order }), { provider: test.provider, leave: owner.signal });
  await until(async () => (await seen(test.tag)).requests.length);
  owner.abort();
  const reply = await answer;
  await until(async () => (await seen(test.tag)).aborted);
  const { requests, aborted } = await seen(test.tag);
  if (reply.status !== 0) problems.push('it did not wait');
  if (requests.length !== 1 || aborted !== 1) problems.push(`${requests.length} requests, ${aborted} aborted`);
  return { reply: { ...reply, text: '(left)' }, requests: requests.length };
}

// Waits until it is so, a minute at most.
async function until(isSo) {
  for (let tries = 0; tries < 240 && !(await isSo()); tries += 1) await wait(0.25);
}

// Requests that the relay before the dead address has logged.
function relayLines() {
  try { return fs.readFileSync(DOWN_LOG, 'utf8').split('\n').filter((line) => line.includes('/chat/completions')).length; } catch { return 0; }
}

function report() {
  const cell = (text) => text.replace(/\s+/g, ' ').replaceAll('|', '/').slice(0, 90);
  results.sort((a, b) => chosen.indexOf(a.test) - chosen.indexOf(b.test));
  console.log(`\nOpenClaw ${OC_VERSION}\n\n| turn | verdict | seconds | requests | OpenClaw said |\n|---|---|---|---|---|`);
  for (const { test, problems, reply, requests, beats } of results) {
    const verdict = problems.length ? `FAIL: ${problems.join('; ')}` : 'pass';
    const note = beats === undefined ? '' : ` (${beats} heartbeats)`;
    console.log(`| ${test.name} | ${verdict} | ${reply.seconds.toFixed(1)} | ${requests} | ${reply.status} ${cell(reply.text)}${note} |`);
  }
  const failed = results.filter(({ problems }) => problems.length).length;
  console.log(failed ? `\n${failed} of ${results.length} failed` : `\nall ${results.length} passed`);
  process.exitCode = failed || !results.length ? 1 : 0;
}
