// Long turns on a bad day with the real OpenClaw: each turn reads twelve files, one call at a time, while the model server spoils each reply
// with the same probability, in one of the 22 ways of misbehaviour.mjs. Prints a table; exits 0 only if, through respool, 99 % of the turns
// end right up to 40 % of spoilt replies and 95 % up to 60 %, with at most 1.15/(1 - p) requests to the model server for each request of OpenClaw.
// Started by `run.sh DIR long-turns`, which sets ROUTES and RELAY_LOG. TURNS=25 for each probability, SPOIL="10 20 30 40 50 60" (percent),
// PARALLEL=3, SEED=1.
import fs from 'node:fs';
import { script, seen, turn } from './gateway-client.mjs';

const { OC_VERSION, RELAY_LOG, PARALLEL = '3', SEED = '1', SPOIL = '10 20 30 40 50 60', TURNS = '25' } = process.env;
const ROUTES = process.env.ROUTES.split(' ');
const PARTS = 12;
const rows = [];
await turn('warm up', { provider: ROUTES[0] });
for (const route of ROUTES) for (const percent of SPOIL.split(' ').map(Number)) rows.push(await measure(route, percent));
report();

async function measure(route, percent) {
  const queue = Array.from({ length: Number(TURNS) }, (_, at) => `long-${route}-${percent}-${SEED}-${at}`);
  const row = { route, percent, right: 0, requests: 0, seconds: 0, asked: -relayLines(), lost: [] };
  const work = async () => {
    for (let tag; (tag = queue.shift());) {
      const reply = await turn(script({ tag, parts: PARTS, spoil: percent / 100 }), { provider: route });
      const { requests, refused } = await seen(tag);
      row.requests += requests.length;
      row.seconds += reply.seconds;
      if (reply.status === 200 && reply.text.includes('ALL PARTS READ') && !refused.length) row.right += 1;
      else row.lost.push(`${tag}: ${reply.status} ${reply.text.replace(/\s+/g, ' ').slice(0, 160)} ${refused.join('; ')}`);
    }
  };
  await Promise.all(Array.from({ length: Number(PARALLEL) }, work));
  row.asked += relayLines();
  console.error(`${route} ${percent} %: ${row.right} of ${TURNS} right, ${row.requests} requests`);
  return row;
}

// OpenClaw's own requests, as respool logs them.
function relayLines() {
  return fs.readFileSync(RELAY_LOG, 'utf8').split('\n').filter((line) => line.includes('"request":"POST /v1/chat/completions"')).length;
}

function judge({ percent, right, requests, asked }) {
  const problems = [];
  const least = percent > 40 ? 0.95 : 0.99;
  if (right < Math.floor(Number(TURNS) * least)) problems.push(`fewer than ${least * 100} % of the turns end right`);
  if (requests / asked > 1.15 / (1 - percent / 100)) problems.push('too many requests to the model server');
  return problems;
}

function report() {
  console.log(`\nOpenClaw ${OC_VERSION}, seed ${SEED}\n\n| route | spoilt replies | turns that end right | seconds each | requests to the model server for each of OpenClaw's |\n|---|---|---|---|---|`);
  let failed = 0;
  for (const row of rows) {
    const { route, percent, right, requests, seconds, asked, lost } = row;
    const problems = route === 'direct' ? [] : judge(row);
    const ratio = route === 'direct' ? '' : `${(requests / asked).toFixed(2)} (at most ${(1.15 / (1 - percent / 100)).toFixed(2)})`;
    console.log(`| ${route} | ${percent} % | ${right} of ${TURNS} | ${(seconds / Number(TURNS)).toFixed(1)} | ${ratio} |`);
    for (const line of lost) console.error(`lost  ${line}`);
    for (const problem of problems) console.error(`FAIL  ${route} ${percent} %: ${problem}`);
    failed += problems.length;
  }
  process.exitCode = failed || !rows.length ? 1 : 0;
}
