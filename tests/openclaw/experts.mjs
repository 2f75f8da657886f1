// An expert of respool's as the model of the real OpenClaw, and the main agent that hands a task to it. Prints a line for each turn, exits 0
// only if all are right. Started by run.sh, which sets OWN (what the expert's function says), RELAY_LOG and the gateway's settings.
import fs from 'node:fs';
import { script, seen, turn, wait } from './gateway-client.mjs';

const { OC_VERSION, OWN, RELAY_LOG } = process.env;
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
failed += (await delegated()) ? 0 : 1;
console.log(failed ? `${failed} of ${CASES.length + 1} failed` : `all ${CASES.length + 1} passed`);
process.exitCode = failed ? 1 : 0;

// As EXPERTS.md says: `sessions_spawn` with the expert as the model. It returns at once, and the expert works in a session of its own.
async function delegated() {
  const before = modelCalls();
  const args = { task: script({ tag: 'expert-child', calls: [FUNCTION] }), model: 'respool-expert/expert/desk' };
  const spawn = OLD ? ['sessions_spawn', args] : ['tool_call', { id: 'sessions_spawn', args }];
  const { status, text } = await turn(script({ tag: 'expert-parent', calls: [spawn] }), { provider: 'respool' });
  let asked = 0;
  for (let second = 0; second < 60 && asked < 2; second += 1) {
    await wait(1);
    asked = modelCalls() - before;
  }
  const { refused } = await seen('expert-child');
  const ok = status === 200 && /accepted/.test(text) && asked >= 2 && !refused.length;
  console.log(`${ok ? 'pass' : 'FAIL'}  a task is handed over: ${asked} model calls of the expert, ${refused.join('; ') || 'none refused'}: ${text.replace(/\s+/g, ' ').slice(0, 200)}`);
  return ok;
}

// Model calls of agents that brought a reply.
function modelCalls() {
  const parts = ['"route":"agent_model"', '"outcome":"ok"'];
  return fs.readFileSync(RELAY_LOG, 'utf8').split('\n').filter((line) => parts.every((part) => line.includes(part))).length;
}
