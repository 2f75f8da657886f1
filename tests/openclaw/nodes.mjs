// Nodes of respool behind nginx, and the real OpenClaw in front: the node that works on a turn is killed in the middle of it, and the turn
// still ends right. Prints a line for each turn, exits 0 only if all are right. Started by run.sh, which sets NODES (their addresses),
// PIDS (their processes), OWN, JOURNAL (of the expert's CRM) and the gateway's settings.
import fs from 'node:fs';
import { script, seen, turn, wait } from './gateway-client.mjs';

const { NODES, PIDS, OWN, JOURNAL } = process.env;
const nodes = NODES.split(' ').map((url, at) => ({ url, pid: Number(PIDS.split(' ')[at]) }));
const READ = ['read', { path: 'note.txt' }];
const EXEC = ['exec', { command: 'echo sum-$((40+2))' }];
const MOVE = ['crm__update_deal_stage', { deal_id: 'd-1', stage: '4' }];
const ROUNDS = 3;

const CASES = [
  { name: 'a turn with tools', provider: 'respool', call: EXEC, wants: 'sum-42' },
  { name: 'an agent\'s run', provider: 'respool-agent', call: READ, wants: OWN },
  { name: 'an expert\'s run', provider: 'respool-expert', call: MOVE, wants: 'TOOL SAID', agent: 'expert/desk' },
];

// The node that waits for the model server at the moment.
async function working() {
  for (const node of nodes) {
    const ready = await fetch(`${node.url}/ready`).then((reply) => reply.json(), () => undefined);
    if (ready?.upstreams.some((upstream) => upstream.in_flight > 0)) return node;
  }
}

// Kills the node that works on the second model call of a turn, once. Returns whether it did.
async function killAtSecondCall(tag) {
  for (let tenths = 0; tenths < 600; tenths += 1) {
    const { requests } = await seen(tag);
    const node = requests.length > 1 ? await working() : undefined;
    if (node) {
      process.kill(node.pid, 'SIGKILL');
      nodes.splice(nodes.indexOf(node), 1);
      return true;
    }
    await wait(0.1);
  }
  return false;
}

// OpenClaw adds a note to the request that it repeats, so that it begins a run of its own, and the cut one goes on at another node once its
// own counts as gone. Waits for the end of both; each has made each of its calls once.
async function callsOfRuns(agent) {
  let runs = [];
  let made = 0;
  for (let second = 0; second < 60; second += 1) {
    const all = (await (await fetch(`${nodes[0].url}/v1/runs`)).json()).data;
    runs = all.filter((run) => run.agent === agent);
    made = fs.readFileSync(JOURNAL, 'utf8').trim().split('\n').length;
    if (runs.every((run) => run.status === 'done')) break;
    await wait(1);
  }
  return { ok: runs.length > 0 && made === runs.length * ROUNDS, text: `${made} calls of ${runs.length} runs, ` };
}

let failed = 0;
for (const { name, provider, call, wants, agent } of CASES) {
  const tag = `nodes-${provider}`;
  const order = script({ tag, calls: [call], rounds: ROUNDS, slow: 2 });
  const [{ status, text, seconds }, killed] = await Promise.all([turn(order, { provider }), killAtSecondCall(tag)]);
  const { requests, refused } = await seen(tag);
  const made = agent ? await callsOfRuns(agent) : { ok: true, text: '' };
  const ok = status === 200 && text.includes(wants) && killed && !refused.length && made.ok;
  failed += ok ? 0 : 1;
  console.log(`${ok ? 'pass' : 'FAIL'}  ${name}: ${killed ? 'a node killed' : 'no node killed'}, ${requests.length} upstream requests, ${made.text}${refused.join('; ') || 'none refused'}, ${seconds.toFixed(1)} s: ${text.replace(/\s+/g, ' ').slice(0, 160)}`);
}
process.exitCode = failed ? 1 : 0;
